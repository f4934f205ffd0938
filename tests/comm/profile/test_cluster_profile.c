/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/profile/cluster_profile.h"

#include <dirent.h>
#include <stdio.h>
#include <unistd.h>

#include "xm_test.h"

static const char document[] =
    "{\"version\": 1, \"name\": \"lab\", \"provenance\": \"assumed\", \"hosts\": 2,\n"
    " \"devices_per_host\": 4,\n"
    " \"device\": {\"flop_per_s\": 1e12, \"memory_bytes\": 16e9, \"memory_bytes_per_s\": 1e11},\n"
    " \"nic\": {\"bytes_per_s\": 1.25e9},\n"
    " \"curves\": {\"self\": [[8, 1e-7], [1024, 2e-7]],\n"
    "  \"intra_host\": [[8, 1e-6], [1024, 2e-6]],\n"
    "  \"inter_host\": [[8, 1e-5], [1000, 2e-5], [2000, 2e-5], [4000, 6e-5]]}}\n";

/* The document with the first @p from replaced by @p to. */
static char *edited(const char *from, const char *to)
{
    static char text[4096];
    const char *place = strstr(document, from);

    ck_assert_msg(place != NULL, "'%s' is not in the document", from);
    (void)snprintf(text, sizeof(text), "%.*s%s%s", (int)(place - document), document, to,
                   place + strlen(from));
    return text;
}

static xm_status_t parse(const char *text, xm_cluster_profile_t **profile)
{
    return xm_cluster_profile_from_text(text, strlen(text), "lab.json", profile);
}

static xm_cluster_profile_t *sample(void)
{
    xm_cluster_profile_t *profile = NULL;

    ck_assert_xm_ok(parse(document, &profile));
    return profile;
}

START_TEST(every_key_arrives)
{
    xm_cluster_profile_t *profile = sample();
    const xm_curve_point_t *curve;
    size_t points;

    ck_assert_str_eq(xm_cluster_profile_name(profile), "lab");
    ck_assert_str_eq(xm_cluster_profile_provenance(profile), "assumed");
    ck_assert_int_eq(xm_cluster_profile_hosts(profile), 2);
    ck_assert_int_eq(xm_cluster_profile_devices_per_host(profile), 4);
    ck_assert_double_eq(xm_cluster_profile_device_flops(profile), 1e12);
    ck_assert_double_eq(xm_cluster_profile_device_memory_bytes(profile), 16e9);
    ck_assert_double_eq(xm_cluster_profile_device_memory_bandwidth(profile), 1e11);
    ck_assert_double_eq(xm_cluster_profile_nic_bandwidth(profile), 1.25e9);
    curve = xm_cluster_profile_curve(profile, XM_LINK_INTER_HOST, &points);
    ck_assert_uint_eq(points, 4);
    ck_assert_uint_eq(curve[1].bytes, 1000);
    ck_assert_double_eq(curve[3].seconds, 6e-5);
    xm_cluster_profile_destroy(profile);
    xm_cluster_profile_destroy(NULL);
}
END_TEST

START_TEST(seconds_interpolate_and_extrapolate)
{
    xm_cluster_profile_t *profile = sample();
    const struct {
        double bytes, seconds;
    } expected[] = {{0, 1e-5},    {8, 1e-5},    {504, 1.5e-5}, {1000, 2e-5},
                    {1500, 2e-5}, {3000, 4e-5}, {4000, 6e-5},  {14000, 26e-5}};

    for (size_t i = 0; i < sizeof(expected) / sizeof(expected[0]); ++i) {
        ck_assert_double_eq_tol(
            xm_cluster_profile_seconds(profile, XM_LINK_INTER_HOST, expected[i].bytes),
            expected[i].seconds, 1e-15);
    }
    ck_assert_double_eq(xm_cluster_profile_latency(profile, XM_LINK_INTER_HOST), 1e-5);
    ck_assert_double_eq_tol(xm_cluster_profile_bandwidth(profile, XM_LINK_INTER_HOST), 1e8, 1);
    ck_assert_double_eq_tol(xm_cluster_profile_bandwidth(profile, XM_LINK_SELF), 5.12e9, 1);
    xm_cluster_profile_destroy(profile);
}
END_TEST

/* On a grid of sizes the binary search must agree with a plain scan, and never fall. */
START_TEST(seconds_agree_with_a_scan)
{
    xm_cluster_profile_t *profile = NULL;
    size_t points;
    const xm_curve_point_t *curve;
    double last = 0;

    ck_assert_xm_ok(xm_cluster_profile_load(
        xm_test_source_path("tests/fixtures/profiles/lab-2x4.json"), &profile));
    curve = xm_cluster_profile_curve(profile, XM_LINK_INTRA_HOST, &points);
    for (double bytes = 1; bytes < 1e9; bytes *= 1.07) {
        size_t segment = 0;
        double seconds = xm_cluster_profile_seconds(profile, XM_LINK_INTRA_HOST, bytes), expected;

        while (segment + 2 < points && (double)curve[segment + 1].bytes < bytes) {
            ++segment;
        }
        expected =
            curve[segment].seconds + (bytes - (double)curve[segment].bytes) *
                                         (curve[segment + 1].seconds - curve[segment].seconds) /
                                         (double)(curve[segment + 1].bytes - curve[segment].bytes);
        if (bytes <= (double)curve[0].bytes) {
            expected = curve[0].seconds;
        }
        ck_assert_double_eq_tol(seconds, expected, 1e-12 * expected);
        ck_assert_double_ge(seconds, last);
        last = seconds;
    }
    xm_cluster_profile_destroy(profile);
}
END_TEST

static const struct {
    const char *from, *to, *sentence;
    xm_status_t status;
} refused[] = {
    {"\"hosts\": 2,", "\"hosts\": 2", "lab.json: line 2, column 19: '}' expected near",
     XM_ERR_PARSE},
    {"\"hosts\": 2", "\"hosts\": 2, \"hosts\": 3", "duplicate object key", XM_ERR_PARSE},
    {"\"version\": 1", "\"version\": 3", "version is 3; this program reads versions 1 to 2",
     XM_ERR_UNSUPPORTED},
    {"\"version\": 1, ", "", "key 'version' is missing", XM_ERR_PARSE},
    {"\"version\": 1", "\"version\": \"1\"", "version is a string; it must be an integer",
     XM_ERR_PARSE},
    {"\"hosts\": 2", "\"hosts\": 2.5", "hosts is a number; it must be an integer", XM_ERR_PARSE},
    {"\"hosts\": 2", "\"hosts\": 0", "hosts is 0; it must be at least 1", XM_ERR_INVALID_ARGUMENT},
    {"\"hosts\": 2", "\"hosts\": -3", "hosts is -3", XM_ERR_PARSE},
    {"\"hosts\": 2", "\"hosts\": 99999999999", "hosts is 99999999999", XM_ERR_PARSE},
    {"\"hosts\": 2", "\"hosts\": 2147483647", "at most 16777216 devices", XM_ERR_INVALID_ARGUMENT},
    {"\"hosts\"", "\"host\"", "unknown key 'host'; did you mean 'hosts'?", XM_ERR_PARSE},
    {"\"flop_per_s\"", "\"flops_per_s\"",
     "unknown key 'device.flops_per_s'; did you mean 'device.flop_per_s'?", XM_ERR_PARSE},
    {"\"memory_bytes\": 16e9, ", "", "key 'device.memory_bytes' is missing", XM_ERR_PARSE},
    {"1.25e9", "\"10 Gbit\"", "nic.bytes_per_s is a string; it must be a number", XM_ERR_PARSE},
    {"1.25e9", "0", "nic.bytes_per_s is 0; it must be positive", XM_ERR_INVALID_ARGUMENT},
    {"1.25e9", "-1", "nic.bytes_per_s is -1", XM_ERR_INVALID_ARGUMENT},
    {"{\"bytes_per_s\": 1.25e9}", "[1.25e9]", "nic is an array; it must be an object",
     XM_ERR_PARSE},
    {"\"self\"", "\"sefl\"", "unknown key 'curves.sefl'; did you mean 'curves.self'?",
     XM_ERR_PARSE},
    {"\"intra_host\": [[8, 1e-6], [1024, 2e-6]],", "", "key 'curves.intra_host' is missing",
     XM_ERR_PARSE},
    {"[[8, 1e-7], [1024, 2e-7]]", "[[8, 1e-7]]", "curves.self has 1 points; it needs 2",
     XM_ERR_INVALID_ARGUMENT},
    {"[1000, 2e-5]", "[1000, 2e-5, 3]",
     "curves.inter_host[1] has 3 elements and the points before it have 2", XM_ERR_PARSE},
    {"[1000, 2e-5]", "[1000, 2e-5, 3, 4]", "curves.inter_host[1] has 4 elements", XM_ERR_PARSE},
    {"[[8, 1e-7], [1024, 2e-7]]", "[[8, 1e-7, \"x\"], [1024, 2e-7, 0]]",
     "curves.self[0][2] is a string; it must be a number (spread)", XM_ERR_PARSE},
    {"[[8, 1e-7], [1024, 2e-7]]", "[[8, 1e-7, -1], [1024, 2e-7, 0]]",
     "curves.self[0]: a spread of -1", XM_ERR_INVALID_ARGUMENT},
    {"1.25e9}", "1.25e9, \"spread\": -1}", "nic.spread is -1; it must not be negative",
     XM_ERR_INVALID_ARGUMENT},
    {" \"nic\"", " \"fabric\": {\"bytes\": 1}, \"nic\"", "unknown key 'fabric.bytes'",
     XM_ERR_PARSE},
    {" \"nic\"", " \"cores\": {\"nic_s_per_byte\": 1}, \"nic\"",
     "key 'cores.per_host' is missing; it must be a number", XM_ERR_PARSE},
    {" \"nic\"", " \"cores\": {\"per_host\": 1, \"host_s_per_byte\": -1}, \"nic\"",
     "cores.host_s_per_byte is -1; it must not be negative", XM_ERR_INVALID_ARGUMENT},
    {" \"nic\"", " \"collectives\": {}, \"nic\"",
     "collectives is an object; it must be an array of objects", XM_ERR_PARSE},
    {" \"nic\"", " \"collectives\": [3], \"nic\"", "collectives[0] is an integer", XM_ERR_PARSE},
    {" \"nic\"", " \"collectives\": [{\"colective\": 3}], \"nic\"",
     "unknown key 'collectives[0].colective'; did you mean 'collectives[0].collective'?",
     XM_ERR_PARSE},
    {"[1000, 2e-5]", "1000", "curves.inter_host[1] is an integer; it must be an array",
     XM_ERR_PARSE},
    {"[1000, 2e-5]", "[1e3, 2e-5]", "curves.inter_host[1][0] is a number; it must be an integer",
     XM_ERR_PARSE},
    {"[1000, 2e-5]", "[-1, 2e-5]", "curves.inter_host[1][0] is -1", XM_ERR_PARSE},
    {"[1000, 2e-5]", "[1000, null]", "curves.inter_host[1][1] is null; it must be a number",
     XM_ERR_PARSE},
    {"[1000, 2e-5]", "[8, 2e-5]", "curves.inter_host[1]: 8 bytes after 8; bytes must rise",
     XM_ERR_INVALID_ARGUMENT},
    {"[1000, 2e-5]", "[1000, 2e-6]", "curves.inter_host[1]: 2e-06 seconds after 1e-05",
     XM_ERR_INVALID_ARGUMENT},
    {"[1000, 2e-5]", "[1000, 0]", "curves.inter_host[1]: 0 seconds", XM_ERR_INVALID_ARGUMENT},
    {"[1024, 2e-6]", "[1024, 1e-6]", "curves.intra_host: the last two times are equal",
     XM_ERR_INVALID_ARGUMENT},
    {" \"nic\"", " \"runtime\": {\"pass_s\": -1}, \"nic\"",
     "runtime.pass_s is -1; it must be 0 or more", XM_ERR_PARSE},
    {" \"nic\"", " \"runtime\": {\"weight_share\": 1.5}, \"nic\"",
     "runtime.weight_share is 1.5; it must be below 1", XM_ERR_PARSE},
    {" \"nic\"", " \"runtime\": {\"pass\": 1}, \"nic\"",
     "unknown key 'runtime.pass'; did you mean 'runtime.pass_s'?", XM_ERR_PARSE},
    {" \"nic\"", " \"runtime\": {\"blocking\": 1}, \"nic\"",
     "runtime.blocking is an integer; it must be true or false", XM_ERR_PARSE},
    {" \"nic\"", " \"gradient_overlap\": 1.5, \"nic\"",
     "gradient_overlap is 1.5; it must be 0 to 1", XM_ERR_INVALID_ARGUMENT},
    {" \"nic\"", " \"op_times\": {}, \"nic\"",
     "op_times is an object; it must be an array of objects", XM_ERR_PARSE},
    {" \"nic\"", " \"op_times\": [7], \"nic\"", "op_times[0] is an integer; it must be an object",
     XM_ERR_PARSE},
    {" \"nic\"", " \"op_times\": [{\"op\": \"einsum\", \"flop\": 1}], \"nic\"",
     "unknown key 'op_times[0].flop'; did you mean 'op_times[0].flops'?", XM_ERR_PARSE},
    {" \"nic\"", " \"op_times\": [{\"op\": \"einsum\", \"flops\": 1, \"bytes\": 1}], \"nic\"",
     "key 'op_times[0].seconds' is missing", XM_ERR_PARSE},
    {" \"nic\"",
     " \"op_times\": [{\"op\": \"einsum\", \"flops\": 1, \"bytes\": 1, \"seconds\": 0}], \"nic\"",
     "op_times[0].seconds is 0; it must be positive", XM_ERR_INVALID_ARGUMENT},
    {" \"nic\"",
     " \"op_times\": [{\"op\": \"\", \"flops\": 1, \"bytes\": 1, \"seconds\": 1}], \"nic\"",
     "op_times[0].op must name a kind of operator", XM_ERR_INVALID_ARGUMENT},
    {"\"lab\"", "\"\"", "name is empty", XM_ERR_INVALID_ARGUMENT},
    {"\"assumed\"", "\"\"", "provenance is empty", XM_ERR_INVALID_ARGUMENT},
};

START_TEST(bad_documents_name_the_place)
{
    xm_cluster_profile_t *profile = NULL;

    ck_assert_xm_fails(parse(edited(refused[_i].from, refused[_i].to), &profile),
                       refused[_i].status, refused[_i].sentence);
    ck_assert_msg(strncmp(xm_last_error(), "lab.json: ", 10) == 0, "%s", xm_last_error());
    ck_assert_ptr_null(profile);
}
END_TEST

START_TEST(hosts_may_differ_and_share_uplinks)
{
    static const struct {
        const char *from, *to, *sentence;
    } bad[] = {
        {"1.25e9}", "1.25e9, \"hosts\": [1e9]}",
         "nic.hosts has 1 entries; the cluster has 2 hosts"},
        {"1.25e9}", "1.25e9, \"hosts\": [1e9, 0]}", "nic.hosts[1] is 0; it must be positive"},
        {"1.25e9}", "1.25e9, \"hosts\": [1e9, \"x\"]}",
         "nic.hosts[1] is a string; it must be a number"},
        {"1.25e9}", "1.25e9, \"hosts\": 3}",
         "nic.hosts is an integer; it must be an array of numbers"},
        {" \"nic\"", " \"uplink\": {\"hosts_per_rack\": 0, \"bytes_per_s\": 1}, \"nic\"",
         "uplink.hosts_per_rack is 0; it must be at least 1"},
        {" \"nic\"", " \"uplink\": {\"hosts_per_rack\": 1, \"bytes_per_s\": 0}, \"nic\"",
         "uplink.bytes_per_s is 0; it must be positive"},
    };
    xm_cluster_profile_t *profile, *again, *larger;
    char *text;

    ck_assert_xm_ok(parse(edited("1.25e9},", "1.25e9, \"hosts\": [1e9, 5e8]},\n \"uplink\": "
                                             "{\"hosts_per_rack\": 1, \"bytes_per_s\": 3e8},"),
                          &profile));
    ck_assert_xm_ok(xm_cluster_profile_to_text(profile, &text));
    ck_assert_xm_ok(parse(text, &again));
    free(text);
    ck_assert(xm_cluster_profile_hosts_differ(again));
    ck_assert_double_eq(xm_cluster_profile_host_nic_bandwidth(again, 1), 5e8);
    ck_assert_int_eq(xm_cluster_profile_hosts_per_rack(again), 1);
    ck_assert_double_eq(xm_cluster_profile_uplink_bandwidth(again), 3e8);
    ck_assert_xm_ok(xm_cluster_profile_resize(again, 5, 4, &larger));
    ck_assert_double_eq(xm_cluster_profile_host_nic_bandwidth(larger, 3), 5e8);
    ck_assert_double_eq(xm_cluster_profile_host_nic_bandwidth(larger, 4), 1e9);
    xm_cluster_profile_destroy(larger);
    xm_cluster_profile_destroy(again);
    xm_cluster_profile_destroy(profile);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); ++i) {
        ck_assert_int_lt(parse(edited(bad[i].from, bad[i].to), &profile), 0);
        ck_assert_msg(strstr(xm_last_error(), bad[i].sentence) != NULL, "%s", xm_last_error());
    }
}
END_TEST

/* NICs and devices go with their hosts, all else stays; racks are not torn apart. */
START_TEST(hosts_may_change_places)
{
    static const int order[] = {4, 3, 2, 1, 0}, twice[] = {0, 1, 2, 1, 4},
                     beyond[] = {0, 1, 5, 3, 4};
    static const int racks[] = {3, 2, 0, 1, 4}, torn[] = {0, 2, 1, 3, 4}, last[] = {4, 1, 2, 3, 0};
    xm_cluster_profile_t *pair, *profile, *other;
    char *text, *back;

    ck_assert_xm_ok(parse(edited("1.25e9},", "1.25e9, \"hosts\": [1e9, 5e8]},"), &pair));
    ck_assert_xm_ok(xm_cluster_profile_resize(pair, 5, 4, &profile));
    ck_assert_xm_ok(xm_cluster_profile_reorder(profile, racks, &other));
    for (int h = 0; h < 5; ++h) {
        ck_assert_double_eq(xm_cluster_profile_host_nic_bandwidth(other, h),
                            xm_cluster_profile_host_nic_bandwidth(profile, racks[h]));
    }
    xm_cluster_profile_destroy(other);
    ck_assert_xm_ok(xm_cluster_profile_reorder(profile, order, &other)); /* reads the same */
    ck_assert_xm_ok(xm_cluster_profile_to_text(profile, &text));
    ck_assert_xm_ok(xm_cluster_profile_to_text(other, &back));
    ck_assert_str_eq(text, back);
    free(back);
    free(text);
    xm_cluster_profile_destroy(other);
    ck_assert_xm_fails(xm_cluster_profile_reorder(profile, twice, &other), XM_ERR_INVALID_ARGUMENT,
                       "names host 1 in places 1 and 3");
    ck_assert_xm_fails(xm_cluster_profile_reorder(profile, beyond, &other), XM_ERR_INVALID_ARGUMENT,
                       "names host 5 in place 2; the cluster has hosts 0 to 4");
    xm_cluster_profile_destroy(profile);
    xm_cluster_profile_destroy(pair);
    ck_assert_xm_ok(parse(edited(" \"nic\"", " \"uplink\": {\"hosts_per_rack\": 2, "
                                             "\"bytes_per_s\": 1e9}, \"nic\""),
                          &pair));
    ck_assert_xm_ok(xm_cluster_profile_resize(pair, 5, 4, &profile));
    ck_assert_xm_ok(xm_cluster_profile_reorder(profile, racks, &other));
    xm_cluster_profile_destroy(other);
    ck_assert_xm_fails(xm_cluster_profile_reorder(profile, torn, &other), XM_ERR_INVALID_ARGUMENT,
                       "puts hosts 0 and 2 of two racks into places 0 and 1 of one");
    ck_assert_xm_fails(xm_cluster_profile_reorder(profile, last, &other), XM_ERR_INVALID_ARGUMENT,
                       "of two racks");
    xm_cluster_profile_destroy(profile);
    xm_cluster_profile_destroy(pair);
}
END_TEST

START_TEST(hosts_may_have_devices_of_their_own)
{
#define DEVICES                                                                                    \
    "{\"flop_per_s\": 1e12, \"memory_bytes\": 16e9, \"memory_bytes_per_s\": 1e11, \"hosts\": "
#define FAST "{\"flop_per_s\": 3e12, \"memory_bytes\": 32e9, \"memory_bytes_per_s\": 2e11}"
#define SLOW "{\"flop_per_s\": 1e12, \"memory_bytes\": 16e9, \"memory_bytes_per_s\": 1e11}"
    static const char plain[] =
        "{\"flop_per_s\": 1e12, \"memory_bytes\": 16e9, \"memory_bytes_per_s\": 1e11}";
    static const struct {
        const char *to, *sentence;
    } bad[] = {
        {DEVICES "[" FAST "]}", "device.hosts has 1 entries; the cluster has 2 hosts"},
        {DEVICES "3}", "device.hosts is an integer; it must be an array of objects"},
        {DEVICES "[" FAST ", 3]}", "it must be an object"},
        {DEVICES "[" FAST ", {\"flop_per_s\": 1}]}", "device.hosts[1].memory_bytes"},
        {DEVICES "[" FAST ", {\"flop_per_s\": 0, \"memory_bytes\": 1, \"memory_bytes_per_s\": 1}]}",
         "device.hosts[1].flop_per_s is 0; it must be positive"},
    };
    xm_cluster_profile_t *profile, *again, *larger;
    char *text;

    ck_assert_xm_ok(parse(edited(plain, DEVICES "[" FAST ", " SLOW "]}"), &profile));
    ck_assert_xm_ok(xm_cluster_profile_to_text(profile, &text));
    ck_assert_xm_ok(parse(text, &again));
    free(text);
    ck_assert(xm_cluster_profile_devices_differ(again));
    ck_assert_double_eq(xm_cluster_profile_host_device(again, 0).flops, 3e12);
    ck_assert_double_eq(xm_cluster_profile_host_device(again, 1).memory_bytes, 16e9);
    ck_assert_xm_ok(xm_cluster_profile_resize(again, 3, 8, &larger));
    ck_assert_double_eq(xm_cluster_profile_host_device(larger, 2).memory_bandwidth, 2e11);
    ck_assert_double_eq(xm_cluster_profile_host_device(larger, 2).memory_bytes, 16e9);
    xm_cluster_profile_destroy(larger);
    xm_cluster_profile_destroy(again);
    xm_cluster_profile_destroy(profile);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); ++i) {
        ck_assert_int_lt(parse(edited(plain, bad[i].to), &profile), 0);
        ck_assert_msg(strstr(xm_last_error(), bad[i].sentence) != NULL, "%s", xm_last_error());
    }
    profile = sample();
    ck_assert(!xm_cluster_profile_devices_differ(profile));
    ck_assert_double_eq(xm_cluster_profile_host_device(profile, 1).flops, 1e12);
    xm_cluster_profile_destroy(profile);
}
END_TEST

/* A collective's entry; the curve has a spread. */
#define COLLECTIVE(kind, hosts, groups, library)                                                   \
    "{\"collective\": \"" kind "\", \"hosts\": " hosts ", \"devices_per_host\": 4, "               \
    "\"groups_per_host\": " groups ", \"library\": \"" library "\", "                              \
    "\"curve\": [[1024, 1e-5, 0.01], [4096, 3e-5, 0.02]]}"

START_TEST(what_version_2_added_arrives)
{
    xm_cluster_profile_t *profile, *again, *extended;
    const xm_collective_curve_t *curve;
    xm_collective_curve_t added;
    double per_host, nic, host;
    char *text;

    ck_assert_xm_ok(parse(
        edited("1.25e9},",
               "1.25e9, \"per_host\": 4, \"spread\": 0.015, \"both_ways_bytes_per_s\": 1.2e9},\n"
               " \"fabric\": {\"bytes_per_s\": 7e9},\n \"cores\": {\"per_host\": 2.5, "
               "\"nic_s_per_byte\": 4e-10},\n \"collectives\": [" COLLECTIVE(
                   "all-reduce", "2", "1", "Open MPI 4.1.4") ", " COLLECTIVE("all-to-all", "1", "1",
                                                                             "x") "],"),
        &profile));
    ck_assert_xm_ok(xm_cluster_profile_to_text(profile, &text));
    ck_assert_ptr_nonnull(strstr(text, "\"version\": 2"));
    ck_assert_xm_ok(parse(text, &again));
    free(text);
    ck_assert_int_eq(xm_cluster_profile_nics_per_host(again), 4);
    ck_assert_double_eq(xm_cluster_profile_nic_spread(again), 0.015);
    ck_assert_double_eq(xm_cluster_profile_nic_both_ways(again), 1.2e9);
    ck_assert_double_eq(xm_cluster_profile_host_fabric(again), 7e9);
    xm_cluster_profile_processors(again, &per_host, &nic, &host);
    ck_assert(per_host == 2.5 && nic == 4e-10 && host == 0);
    ck_assert_ptr_null(xm_cluster_profile_spread(again, XM_LINK_SELF));
    ck_assert_uint_eq(xm_cluster_profile_collectives(again), 2);
    curve = xm_cluster_profile_find_collective(again, XM_ALL_REDUCE, 2, 4, 1);
    ck_assert_ptr_nonnull(curve);
    ck_assert_str_eq(curve->library, "Open MPI 4.1.4");
    ck_assert_uint_eq(curve->count, 2);
    ck_assert_uint_eq(curve->points[1].bytes, 4096);
    ck_assert_double_eq(curve->points[1].seconds, 3e-5);
    ck_assert_double_eq(curve->spread[1], 0.02);
    ck_assert_double_eq_tol(xm_curve_seconds(curve->points, curve->count, 2560), 2e-5, 1e-12);
    ck_assert_int_eq(xm_collective_curve_devices(curve), 8);
    ck_assert_ptr_null(xm_cluster_profile_find_collective(again, XM_ALL_REDUCE, 1, 4, 1));
    ck_assert_ptr_null(xm_cluster_profile_find_collective(again, XM_ALL_REDUCE, 2, 4, 2));
    ck_assert_ptr_null(xm_cluster_profile_find_collective(again, XM_ALL_GATHER, 2, 4, 1));
    /* One that is there already is replaced. */
    added = *curve;
    added.library = "NCCL";
    ck_assert_xm_ok(
        xm_cluster_profile_add_collectives(again, &added, 1, "collectives from x", &extended));
    ck_assert_uint_eq(xm_cluster_profile_collectives(extended), 2);
    curve = xm_cluster_profile_find_collective(extended, XM_ALL_REDUCE, 2, 4, 1);
    ck_assert_str_eq(curve->library, "NCCL");
    ck_assert_str_eq(xm_cluster_profile_provenance(extended), "assumed; collectives from x");
    ck_assert_double_eq(xm_cluster_profile_host_fabric(extended), 7e9);
    xm_cluster_profile_destroy(extended);
    xm_cluster_profile_destroy(again);
    xm_cluster_profile_destroy(profile);
}
END_TEST

/* Measured operators come back by kind and work, and a copy of another size has them too. */
START_TEST(measured_operators_arrive)
{
    xm_cluster_profile_t *profile, *again, *larger, *hidden;
    const xm_op_time_t *times;
    double seconds;
    size_t count;
    char *text;

    ck_assert_xm_ok(parse(
        edited(" \"nic\"",
               " \"gradient_overlap\": 0.25, \"op_times\": [\n"
               "{\"op\": \"softmax\", \"flops\": 5, \"bytes\": 8000, \"seconds\": 2e-6},\n"
               "{\"op\": \"einsum\", \"flops\": 1e12, \"bytes\": 1, \"seconds\": 3},\n"
               "{\"op\": \"einsum\", \"flops\": 1e9, \"bytes\": 1, \"seconds\": 0.5}], \"nic\""),
        &profile));
    ck_assert_xm_ok(xm_cluster_profile_to_text(profile, &text));
    ck_assert_xm_ok(parse(text, &again));
    free(text);
    ck_assert_xm_ok(xm_cluster_profile_resize(again, 3, 5, &larger));
    times = xm_cluster_profile_op_times(larger, &count);
    ck_assert_uint_eq(count, 3);
    ck_assert_str_eq(times[0].op, "einsum");
    ck_assert_double_eq(times[0].flops, 1e9);
    ck_assert_double_eq(times[1].seconds, 3);
    ck_assert_str_eq(times[2].op, "softmax");
    ck_assert_double_eq(times[2].bytes, 8000);
    ck_assert_double_eq_tol(xm_cluster_profile_op_seconds(larger, "einsum", XM_NUMBER_ANY, 1e12, 1),
                            3, 1e-9);
    ck_assert_double_eq_tol(xm_cluster_profile_op_seconds(larger, "einsum", XM_NUMBER_ANY, 2e12, 1),
                            6, 1e-9);
    seconds = xm_cluster_profile_op_seconds(larger, "reduce", XM_NUMBER_ANY, 1e12, 1);
    ck_assert_double_eq_tol(seconds, 1e12 / xm_cluster_profile_device_flops(larger), 1e-9);
    ck_assert_double_eq(xm_cluster_profile_gradient_overlap(larger), 0.25);
    ck_assert_xm_ok(xm_cluster_profile_set_gradient_overlap(larger, 0.5, &hidden));
    ck_assert_double_eq(xm_cluster_profile_gradient_overlap(hidden), 0.5);
    ck_assert_int_eq(xm_cluster_profile_hosts(hidden), 3);
    (void)xm_cluster_profile_op_times(hidden, &count);
    ck_assert_uint_eq(count, 3);
    ck_assert_int_lt(xm_cluster_profile_set_gradient_overlap(larger, -1, &hidden), 0);
    xm_cluster_profile_destroy(hidden);
    xm_cluster_profile_destroy(larger);
    xm_cluster_profile_destroy(again);
    xm_cluster_profile_destroy(profile);
}
END_TEST

/* A kind has operators of several speeds. Of a part of one its own larger and smaller parts tell
 * the time, though one of another speed is nearer; where there are none on one side, all tell. */
START_TEST(parts_of_an_operator_tell_of_it)
{
    xm_cluster_profile_t *profile;

    ck_assert_xm_ok(parse(
        edited(" \"nic\"",
               " \"op_times\": [\n"
               "{\"op\": \"gradient\", \"flops\": 8e9, \"bytes\": 8.08e9, \"seconds\": 9},\n"
               "{\"op\": \"gradient\", \"flops\": 1e9, \"bytes\": 1e9, \"seconds\": 2},\n"
               "{\"op\": \"gradient\", \"flops\": 0, \"bytes\": 5e9, \"seconds\": 500},\n"
               "{\"op\": \"gradient\", \"flops\": 0, \"bytes\": 3e9, \"seconds\": 300}], \"nic\""),
        &profile));
    ck_assert_double_eq_tol(
        xm_cluster_profile_op_seconds(profile, "gradient", XM_NUMBER_ANY, 4e9, 4e9), 5, 0.1);
    ck_assert_double_eq_tol(
        xm_cluster_profile_op_seconds(profile, "gradient", XM_NUMBER_ANY, 0, 4e9), 400, 0.1);
    ck_assert_double_gt(xm_cluster_profile_op_seconds(profile, "gradient", XM_NUMBER_ANY, 2e9, 4e9),
                        300);
    xm_cluster_profile_destroy(profile);
}
END_TEST

START_TEST(bad_collectives_name_the_entry)
{
    static const struct {
        const char *entries, *sentence;
    } bad[] = {
        {COLLECTIVE("all-red", "2", "1", "x"), "collectives[0]: unknown collective 'all-red'"},
        {COLLECTIVE("all-reduce", "0", "1", "x"), "collectives[0].hosts is 0; it must be 1 to"},
        {COLLECTIVE("all-reduce", "2", "1", ""), "collectives[0].library is empty"},
        {COLLECTIVE("all-reduce", "2", "0", "x"), "collectives[0].groups_per_host is 0"},
        {COLLECTIVE("all-reduce", "2", "1", "x") ", " COLLECTIVE("all-reduce", "2", "1", "y"),
         "collectives[1] is about the same collective and group as collectives[0]"},
        {"{\"collective\": \"all-reduce\", \"hosts\": 1, \"devices_per_host\": 1, "
         "\"groups_per_host\": 1, \"library\": \"x\", \"curve\": [[1, 1], [2, 2]]}",
         "collectives[0] has a group of 1 x 1 devices; a collective has 2 to"},
        {"{\"collective\": \"all-reduce\", \"hosts\": 1, \"devices_per_host\": 2, "
         "\"groups_per_host\": 1, \"library\": \"x\", \"curve\": [[1, 1]]}",
         "collectives[0] has 1 points; it needs 2"},
    };

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); ++i) {
        xm_cluster_profile_t *profile = NULL;
        char inserted[1024];

        (void)snprintf(inserted, sizeof(inserted), " \"collectives\": [%s], \"nic\"",
                       bad[i].entries);
        ck_assert_int_lt(parse(edited(" \"nic\"", inserted), &profile), 0);
        ck_assert_msg(strstr(xm_last_error(), bad[i].sentence) != NULL, "%s", xm_last_error());
    }
}
END_TEST

START_TEST(other_documents_are_refused)
{
    xm_cluster_profile_t *profile = NULL;

    ck_assert_xm_fails(parse("", &profile), XM_ERR_PARSE, "lab.json: line 1, column 0");
    ck_assert_xm_fails(parse("[]", &profile), XM_ERR_PARSE, "the document is an array");
    ck_assert_xm_fails(parse("{}", &profile), XM_ERR_PARSE, "'version' is missing");
    ck_assert_xm_fails(xm_cluster_profile_load("/nonexistent/lab.json", &profile), XM_ERR_NOT_FOUND,
                       "/nonexistent/lab.json: No such file");
    ck_assert_xm_fails(xm_cluster_profile_load("/", &profile), XM_ERR_INVALID_ARGUMENT, "/: ");
    ck_assert_ptr_null(profile);
}
END_TEST

static void assert_equal(const xm_cluster_profile_t *a, const xm_cluster_profile_t *b)
{
    char *text_a = NULL, *text_b = NULL;

    ck_assert_xm_ok(xm_cluster_profile_to_text(a, &text_a));
    ck_assert_xm_ok(xm_cluster_profile_to_text(b, &text_b));
    ck_assert_str_eq(text_a, text_b);
    free(text_a);
    free(text_b);
    ck_assert_double_eq(xm_cluster_profile_device_flops(a), xm_cluster_profile_device_flops(b));
    for (int i = 0;; ++i) {
        xm_profile_figure_t of_a, of_b;

        if (!xm_cluster_profile_figure(a, i, &of_a)) {
            ck_assert_int_eq(i, XM_NUMBER_COUNT + 4);
            break;
        }
        ck_assert(xm_cluster_profile_figure(b, i, &of_b));
        ck_assert_double_eq(of_a.value, of_b.value);
        ck_assert_double_eq(of_a.spread, of_b.spread);
    }
    for (int link = 0; link < XM_LINK_CURVES; ++link) {
        size_t points_a, points_b;
        const xm_curve_point_t *curve_a =
            xm_cluster_profile_curve(a, (xm_link_class_t)link, &points_a);
        const xm_curve_point_t *curve_b =
            xm_cluster_profile_curve(b, (xm_link_class_t)link, &points_b);

        ck_assert_uint_eq(points_a, points_b);
        for (size_t i = 0; i < points_a; ++i) {
            ck_assert_uint_eq(curve_a[i].bytes, curve_b[i].bytes);
            ck_assert_double_eq(curve_a[i].seconds, curve_b[i].seconds);
        }
    }
}

static int entries(const char *directory)
{
    DIR *dir = opendir(directory);
    int count = 0;

    while (readdir(dir) != NULL) {
        ++count;
    }
    (void)closedir(dir);
    return count - 2;
}

START_TEST(a_saved_profile_reads_back_equal)
{
    /* Numbers with more digits than the file keeps: creation rounds them, so nothing is lost later.
     */
    xm_curve_point_t curve[] = {{8, 1.0 / 3e6}, {UINT64_C(1) << 40, 2.0 / 3.0}};
    xm_cluster_profile_params_t params = XM_CLUSTER_PROFILE_PARAMS_INIT;
    xm_cluster_profile_t *profile = NULL, *again = NULL;
    char directory[] = "/tmp/xm-profile-XXXXXX", path[64];

    params.name = "a \"name\"\n";
    params.provenance = "measured ½";
    params.hosts = 3;
    params.devices_per_host = 5;
    params.device.flops = 1e13 / 7;
    params.device.memory_bytes = 16e9;
    params.device.memory_bandwidth = 1e11 / 3;
    params.nic_bandwidth = 1e9 / 3;
    params.device.number_spread[XM_NUMBER_ANY] = 0.01 / 3;
    params.device.number_spread[XM_NUMBER_INT8] = 0.02 / 3;
    params.device.memory_spread = 0.04 / 3;
    params.nic_both_ways = 1e8 / 3;
    params.nic_both_ways_spread = 0.05 / 3;
    params.host_fabric = 1e10 / 3;
    params.host_fabric_spread = 0.07 / 3;
    /* All classes, and one of them in a cache. */
    for (int link = 0; link <= XM_LINK_HOT; ++link) {
        params.curve[link] = curve;
        params.curve_points[link] = 2;
    }
    ck_assert_xm_ok(xm_cluster_profile_create(&params, &profile));
    ck_assert_ptr_nonnull(mkdtemp(directory));
    (void)snprintf(path, sizeof(path), "%s/lab.json", directory);
    ck_assert_xm_ok(xm_cluster_profile_save(profile, path));
    ck_assert_xm_ok(xm_cluster_profile_save(profile, path)); /* replaces */
    ck_assert_int_eq(entries(directory), 1);
    ck_assert_xm_ok(xm_cluster_profile_load(path, &again));
    assert_equal(profile, again);
    xm_cluster_profile_destroy(again);
    (void)unlink(path);
    (void)rmdir(directory);
    ck_assert_xm_fails(xm_cluster_profile_save(profile, path), XM_ERR_IO, "lab.json: No such file");
    xm_cluster_profile_destroy(profile);
}
END_TEST

START_TEST(a_failed_save_leaves_the_old_file)
{
    xm_cluster_profile_t *profile = sample();
    char directory[] = "/tmp/xm-profile-XXXXXX";

    ck_assert_ptr_nonnull(mkdtemp(directory));
    /* A directory cannot be replaced by a file: the rename fails after everything was written. */
    ck_assert_xm_fails(xm_cluster_profile_save(profile, directory), XM_ERR_IO, directory);
    ck_assert_int_eq(access(directory, F_OK), 0);
    ck_assert_int_eq(entries(directory), 0);
    (void)rmdir(directory);
    xm_cluster_profile_destroy(profile);
}
END_TEST

/* By their names alone, and as what they are: no measurements. */
START_TEST(clusters_that_ship_are_found_by_name)
{
    static const struct {
        const char *name;
        int hosts, devices;
        double flops; /* of the data sheet, dense, 16 bits */
    } shipped[] = {{"a100-8x8", 8, 8, 312e12},
                   {"gb200-nvl72", 1, 72, 2500e12},
                   {"h100-8x8", 8, 8, 989.4e12},
                   {"mi300x-8x8", 8, 8, 1307.4e12},
                   {"p3-8x8", 8, 8, 125e12}};
    xm_cluster_profile_t *profile = NULL;

    for (size_t i = 0; i < sizeof(shipped) / sizeof(shipped[0]); ++i) {
        xm_cluster_device_t device;
        double rate;

        ck_assert_xm_ok(xm_cluster_profile_load(shipped[i].name, &profile));
        ck_assert_str_eq(xm_cluster_profile_name(profile), shipped[i].name);
        ck_assert_int_eq(xm_cluster_profile_hosts(profile), shipped[i].hosts);
        ck_assert_int_eq(xm_cluster_profile_devices_per_host(profile), shipped[i].devices);
        ck_assert_ptr_eq(strstr(xm_cluster_profile_provenance(profile), "assumed: "),
                         xm_cluster_profile_provenance(profile));
        device = xm_cluster_profile_device(profile);
        rate = xm_cluster_device_flops(&device, XM_NUMBER_FLOAT16);
        ck_assert_double_gt(rate, 0.4 * shipped[i].flops);
        ck_assert_double_lt(rate, shipped[i].flops);
        /* A device reaches others of its host faster than those of others. */
        ck_assert_double_lt(xm_cluster_profile_seconds(profile, XM_LINK_INTRA_HOST, 1e9),
                            xm_cluster_profile_seconds(profile, XM_LINK_INTER_HOST, 1e9));
        xm_cluster_profile_destroy(profile);
    }
    ck_assert_xm_fails(xm_cluster_profile_load("h100-9x9", &profile), XM_ERR_NOT_FOUND,
                       "h100-9x9: no such file, and no cluster that ships (a100-8x8, gb200-nvl72, "
                       "h100-8x8, mi300x-8x8, p3-8x8)");
}
END_TEST

START_TEST(resizing_keeps_the_hardware)
{
    xm_cluster_profile_t *profile = sample(), *resized = NULL;

    ck_assert_xm_ok(xm_cluster_profile_resize(profile, 8, 16, &resized));
    ck_assert_int_eq(xm_cluster_profile_hosts(resized), 8);
    ck_assert_int_eq(xm_cluster_profile_devices_per_host(resized), 16);
    ck_assert_double_eq(xm_cluster_profile_device_memory_bytes(resized), 4e9);
    ck_assert_double_eq(xm_cluster_profile_nic_bandwidth(resized), 1.25e9);
    ck_assert_str_eq(xm_cluster_profile_provenance(resized),
                     "assumed; resized from 2 x 4 to 8 x 16 devices");
    xm_cluster_profile_destroy(resized);
    ck_assert_xm_ok(xm_cluster_profile_resize(profile, 1, 1, &resized));
    ck_assert_double_eq(xm_cluster_profile_device_memory_bytes(resized), 16e9);
    xm_cluster_profile_destroy(resized);
    ck_assert_xm_fails(xm_cluster_profile_resize(profile, 0, 4, &resized), XM_ERR_INVALID_ARGUMENT,
                       "hosts is 0");
    xm_cluster_profile_destroy(profile);
}
END_TEST

/* However long the provenance, a resized profile keeps all of it and can be written. */
START_TEST(resizing_keeps_a_long_provenance)
{
    static const char expected[] = "; resized from 1 x 1 to 2 x 3 devices";
    const xm_curve_point_t curve[] = {{8, 1e-6}, {64, 1}};
    xm_cluster_profile_params_t params = XM_CLUSTER_PROFILE_PARAMS_INIT;
    xm_cluster_profile_t *profile, *resized;
    char long_text[2001], *text;

    for (size_t i = 0; i + 1 < sizeof(long_text); i += 2) {
        memcpy(long_text + i, "\xc3\xa9", 2);
    }
    memcpy(long_text, "ab", 2);
    long_text[sizeof(long_text) - 1] = '\0';
    params.name = "x";
    params.provenance = long_text + 1; /* an odd byte first: no cut at an even place is clean */
    params.hosts = params.devices_per_host = 1;
    params.device.flops = params.device.memory_bytes = params.device.memory_bandwidth = 1;
    params.nic_bandwidth = 1;
    for (int link = 0; link < XM_LINK_CLASS_COUNT; ++link) {
        params.curve[link] = curve;
        params.curve_points[link] = 2;
    }
    ck_assert_xm_ok(xm_cluster_profile_create(&params, &profile));
    ck_assert_xm_ok(xm_cluster_profile_resize(profile, 2, 3, &resized));
    ck_assert_uint_eq(strlen(xm_cluster_profile_provenance(resized)),
                      strlen(params.provenance) + strlen(expected));
    ck_assert_ptr_nonnull(strstr(xm_cluster_profile_provenance(resized), expected));
    ck_assert_xm_ok(xm_cluster_profile_to_text(resized, &text));
    free(text);
    xm_cluster_profile_destroy(resized);
    xm_cluster_profile_destroy(profile);
}
END_TEST

START_TEST(creation_checks_its_input)
{
    xm_curve_point_t curve[] = {{8, 1e-6}, {UINT64_MAX, 1}};
    xm_cluster_profile_params_t params = XM_CLUSTER_PROFILE_PARAMS_INIT;
    xm_cluster_profile_t *profile = NULL;

    params.name = "x";
    params.provenance = "x";
    params.hosts = params.devices_per_host = 1;
    params.device.flops = params.device.memory_bytes = params.device.memory_bandwidth = 1;
    params.nic_bandwidth = 1.0 / 0.0;
    ck_assert_xm_fails(xm_cluster_profile_create(&params, &profile), XM_ERR_INVALID_ARGUMENT,
                       "nic.bytes_per_s is inf");
    params.nic_bandwidth = 1;
    ck_assert_xm_fails(xm_cluster_profile_create(&params, &profile), XM_ERR_INVALID_ARGUMENT,
                       "curves.self has 0 points");
    for (int link = 0; link < XM_LINK_CLASS_COUNT; ++link) {
        params.curve[link] = curve;
        params.curve_points[link] = 2;
    }
    ck_assert_xm_fails(xm_cluster_profile_create(&params, &profile), XM_ERR_INVALID_ARGUMENT,
                       "18446744073709551615 bytes; the most is");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("cluster_profile");
    TCase *tcase = tcase_create("all");

    tcase_add_test(tcase, every_key_arrives);
    tcase_add_test(tcase, seconds_interpolate_and_extrapolate);
    tcase_add_test(tcase, seconds_agree_with_a_scan);
    tcase_add_loop_test(tcase, bad_documents_name_the_place, 0,
                        (int)(sizeof(refused) / sizeof(refused[0])));
    tcase_add_test(tcase, what_version_2_added_arrives);
    tcase_add_test(tcase, measured_operators_arrive);
    tcase_add_test(tcase, parts_of_an_operator_tell_of_it);
    tcase_add_test(tcase, bad_collectives_name_the_entry);
    tcase_add_test(tcase, other_documents_are_refused);
    tcase_add_test(tcase, hosts_may_differ_and_share_uplinks);
    tcase_add_test(tcase, hosts_may_change_places);
    tcase_add_test(tcase, hosts_may_have_devices_of_their_own);
    tcase_add_test(tcase, a_saved_profile_reads_back_equal);
    tcase_add_test(tcase, a_failed_save_leaves_the_old_file);
    tcase_add_test(tcase, clusters_that_ship_are_found_by_name);
    tcase_add_test(tcase, resizing_keeps_the_hardware);
    tcase_add_test(tcase, resizing_keeps_a_long_provenance);
    tcase_add_test(tcase, creation_checks_its_input);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
