/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/profile/collective_import.h"

#include <stdio.h>

#include "xm_test.h"

static xm_collective_hint_t no_hint(void)
{
    return (xm_collective_hint_t)XM_COLLECTIVE_HINT_INIT;
}

/* Imports a fixture that has one curve. */
static xm_collective_curve_t *imported(const char *name, const xm_collective_hint_t *hint)
{
    char path[512], file[128];
    xm_collective_curve_t *curves = NULL;
    size_t count = 0;

    (void)snprintf(file, sizeof(file), "tests/fixtures/collectives/%s", name);
    (void)snprintf(path, sizeof(path), "%s", xm_test_source_path(file));
    ck_assert_xm_ok(xm_collective_import_file(path, hint, &curves, &count));
    ck_assert_uint_eq(count, 1);
    return curves;
}

static void assert_shape(const xm_collective_curve_t *curve, xm_collective_t kind, int hosts,
                         int devices, int groups)
{
    ck_assert_int_eq(curve->kind, kind);
    ck_assert_int_eq(curve->hosts, hosts);
    ck_assert_int_eq(curve->devices_per_host, devices);
    ck_assert_int_eq(curve->groups_per_host, groups);
}

static void assert_point(const xm_collective_curve_t *curve, size_t point, uint64_t bytes,
                         double microseconds)
{
    ck_assert_uint_lt(point, curve->count);
    ck_assert_uint_eq(curve->points[point].bytes, bytes);
    ck_assert_double_eq_tol(curve->points[point].seconds, microseconds * 1e-6, 1e-12);
}

START_TEST(nccl_text_tells_everything)
{
    xm_collective_hint_t hint = no_hint();
    xm_collective_curve_t *curve = imported("nccl-all-reduce.txt", &hint);

    assert_shape(curve, XM_ALL_REDUCE, 2, 4, 1);
    ck_assert_str_eq(curve->library, "NCCL 2.28.7");
    ck_assert_ptr_null(curve->spread);
    /* The row of size 0 is gone; 12.0 and 11.8 became their mean. */
    ck_assert_uint_eq(curve->count, 5);
    assert_point(curve, 0, 1024, 11.5);
    assert_point(curve, 1, 4096, 11.9);
    assert_point(curve, 2, 16384, 11.9);
    assert_point(curve, 4, 1048576, 120);
    xm_collective_curves_free(curve, 1);
}
END_TEST

START_TEST(groups_of_a_split_share_their_hosts)
{
    xm_collective_hint_t hint = no_hint();
    xm_collective_curve_t *curve = imported("nccl-split-all-gather.txt", &hint);

    assert_shape(curve, XM_ALL_GATHER, 2, 1, 4);
    assert_point(curve, 1, 1048576, 900);
    xm_collective_curves_free(curve, 1);
}
END_TEST

START_TEST(nccl_json_is_read)
{
    xm_collective_hint_t hint = no_hint();
    xm_collective_curve_t *curve = imported("nccl-alltoall.json", &hint);

    assert_shape(curve, XM_ALL_TO_ALL, 1, 4, 1);
    ck_assert_str_eq(curve->library, "NCCL 2.28.7");
    /* A device's buffer times four devices. */
    ck_assert_uint_eq(curve->count, 2);
    assert_point(curve, 0, 4096, 10);
    assert_point(curve, 1, 4 * 65536, 50);
    xm_collective_curves_free(curve, 1);
}
END_TEST

START_TEST(osu_sizes_become_those_of_the_tensor)
{
    const xm_collective_hint_t hint = {
        .kind = -1, .hosts = 2, .devices_per_host = 4, .groups_per_host = 1};
    xm_collective_curve_t *curve = imported("osu-allreduce.txt", &hint);

    assert_shape(curve, XM_ALL_REDUCE, 2, 4, 1);
    ck_assert_str_eq(curve->library, "MPI");
    assert_point(curve, 2, 65536, 220);
    xm_collective_curves_free(curve, 1);
    /* What a rank contributes, eight times. */
    curve = imported("osu-allgather.txt", &hint);
    assert_shape(curve, XM_ALL_GATHER, 2, 4, 1);
    assert_point(curve, 1, 8192, 40);
    xm_collective_curves_free(curve, 1);
    /* What a rank sends to one other, eight times eight; the average of three columns. */
    curve = imported("osu-alltoall-full.txt", &hint);
    assert_shape(curve, XM_ALL_TO_ALL, 2, 4, 1);
    assert_point(curve, 0, 64, 6);
    assert_point(curve, 1, 262144, 90);
    xm_collective_curves_free(curve, 1);
}
END_TEST

START_TEST(a_hint_wins)
{
    const xm_collective_hint_t hint = {
        .kind = XM_REDUCE_SCATTER, .hosts = 4, .devices_per_host = 2, .groups_per_host = 3};
    xm_collective_curve_t *curve = imported("nccl-all-reduce.txt", &hint);

    assert_shape(curve, XM_REDUCE_SCATTER, 4, 2, 3);
    xm_collective_curves_free(curve, 1);
}
END_TEST

START_TEST(our_own_documents_hold_several)
{
    static const char text[] =
        "{\"version\": 2, \"collectives\": ["
        "{\"collective\": \"all-reduce\", \"hosts\": 1, \"devices_per_host\": 2, "
        "\"groups_per_host\": 1, \"library\": \"Open MPI\", \"curve\": [[8, 1e-6], [64, 2e-6]]},"
        "{\"collective\": \"all-gather\", \"hosts\": 2, \"devices_per_host\": 2, "
        "\"groups_per_host\": 1, \"library\": \"Open MPI\", \"curve\": [[8, 1e-6], [64, 2e-6]]}]}";
    xm_collective_hint_t hint = no_hint();
    xm_collective_curve_t *curves = NULL;
    size_t count = 0;

    ck_assert_xm_ok(xm_collective_import(text, sizeof(text) - 1, "x.json", &hint, &curves, &count));
    ck_assert_uint_eq(count, 2);
    assert_shape(&curves[1], XM_ALL_GATHER, 2, 2, 1);
    xm_collective_curves_free(curves, count);
}
END_TEST

#define RANK(rank, host) "#  Rank " #rank " Group  0 Pid 12 on " host " device  0 [0000:01:00] X\n"
#define HEAD                                                                                       \
    "# size count type redop root time algbw busbw #wrong\n# (B) (elements) (us) (GB/s) (GB/s)\n"
#define TWO   RANK(0, "a") RANK(1, "b")
#define ROWS  "8 2 float sum -1 1.0 0.1 0.1 0\n64 16 float sum -1 2.0 0.1 0.1 0\n"
#define START "# Collective test starting: all_reduce_perf\n"
#define OSU   "# OSU MPI Allreduce Latency Test v7.5\n# Size Avg Latency(us)\n"

static const struct {
    const char *text, *sentence;
} refused[] = {
    {"", "x.txt: neither the table of nccl-tests"},
    {"hello\n", "x.txt: neither the table of nccl-tests"},
    {HEAD TWO ROWS, "x.txt: it does not tell which collective it is; --collective must"},
    {START HEAD ROWS, "x.txt: it does not tell how its ranks lie on hosts; --axis must"},
    {START TWO HEAD, "x.txt: it has 0 rows; a curve needs at least 2"},
    {START TWO HEAD "8 2 float sum -1 1.0 0.1 0.1 0\n", "it has 1 rows"},
    {START TWO HEAD ROWS "128 32 float sum -1 1.0 0.1 0.1\n",
     "x.txt: line 8: 8 words; a row of this table has 9 columns"},
    {START TWO HEAD ROWS "real 0m3.1s\n", "x.txt: line 8: 2 words"},
    {START TWO HEAD ROWS "128 32 float sum -1 2.5 0.1 0.1 3\n", "x.txt: line 8: 3 wrong elements"},
    {START TWO HEAD ROWS "64 32 float sum -1 2.5 0.1 0.1 0\n",
     "x.txt: line 8: size 64 after 64; sizes must rise"},
    {START TWO HEAD ROWS "-1 32 float sum -1 2.5 0.1 0.1 0\n", "x.txt: line 8: the size"},
    {START TWO HEAD ROWS "128 32 float sum -1 nan 0.1 0.1 0\n", "x.txt: line 8: the time"},
    {START TWO HEAD ROWS "128 32 float sum -1 0 0.1 0.1 0\n",
     "x.txt: line 8: a time of 0 us; it must be positive"},
    {"# Collective test starting: broadcast_perf\n",
     "x.txt: line 1: 'broadcast_perf' is none of all_gather_perf"},
    {START START, "x.txt: line 2: a second test begins"},
    {START "#  Rank  0 Group  x Pid 12 on a device  0 [0] X\n", "x.txt: line 2: the group"},
    {START "#  Rank  0 Group  0 on a device  0 [0] X\n", "x.txt: line 2: a rank must be"},
    {START RANK(0, "a") RANK(1, "a") RANK(2, "b") HEAD ROWS,
     "its 3 ranks do not lie evenly on 2 hosts in 1 groups; --axis must say"},
    {START TWO "# size count type redop root\n# (us)\n", "x.txt: line 4: the table has no column"},
    {START TWO "# size count type time\n8 2 float 3\n",
     "x.txt: line 5: below the head of the table must be a line of units"},
    {"# OSU MPI Broadcast Latency Test v7.5\n", "x.txt: line 1: '# OSU MPI Broadcast Latency"},
    {"# OSU MPI Allreduce Latency Test v7.5\n", "the OSU benchmark has no table"},
    {"# OSU MPI Allreduce Latency Test v7.5\n# Size Bandwidth (MB/s)\n",
     "x.txt: line 2: the second column must be 'Avg Latency(us)'"},
    {OSU "4 1.0\n8\n", "x.txt: line 4: one word; a row has a size and a time"},
    {OSU "4 1.0\n8 x\n", "x.txt: line 4: the time"},
    {OSU "4 1.0\n8 2.0\n", "it does not tell how its ranks lie on hosts"},
    {OSU OSU, "x.txt: line 3: a second benchmark begins"},
    {"{\"args\": ", "x.txt: line 1, column"},
    {"{\"args\": [\"all_reduce_perf\"], \"results\": 3}", "x.txt: results is an integer"},
    {"{\"args\": [\"all_reduce_perf\"]}", "x.txt: key 'results' is missing"},
    {"{\"results\": [{\"size\": 8}]}", "results[0]: key 'results[0].time' is missing"},
    {"{\"results\": [{\"size\": 8, \"in_place\": {\"time\": 1.5, \"nwrong\": 2.0}}]}",
     "results[0]: 2 wrong elements"},
    {"{\"results\": [{\"size\": -8}]}",
     "results[0].size is an integer; it must be an integer of at"},
    {"{\"devices\": [{\"group\": 0}], \"results\": []}", "devices[0] must have an integer 'group'"},
    {"{\"collectives\": 3}", "x.txt: collectives is an integer"},
};

START_TEST(bad_results_name_the_line)
{
    xm_collective_hint_t hint = no_hint();
    xm_collective_curve_t *curves = NULL;
    size_t count = 0;

    ck_assert_int_lt(xm_collective_import(refused[_i].text, strlen(refused[_i].text), "x.txt",
                                          &hint, &curves, &count),
                     0);
    ck_assert_msg(strstr(xm_last_error(), refused[_i].sentence) != NULL, "'%s' lacks '%s'",
                  xm_last_error(), refused[_i].sentence);
    ck_assert_ptr_null(curves);
}
END_TEST

START_TEST(sizes_that_overflow_are_refused)
{
    static const char text[] = "# OSU MPI All-to-All Personalized Exchange Latency Test v7.5\n"
                               "# Size Avg Latency(us)\n1 1.0\n9223372036854775807 2.0\n";
    const xm_collective_hint_t hint = {
        .kind = -1, .hosts = 2, .devices_per_host = 4, .groups_per_host = 1};
    xm_collective_curve_t *curves = NULL;
    size_t count = 0;

    ck_assert_xm_fails(xm_collective_import(text, sizeof(text) - 1, "x", &hint, &curves, &count),
                       XM_ERR_PARSE, "row 2: the whole tensor has more than 2^63 bytes");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("collective_import");
    TCase *tcase = tcase_create("all");

    tcase_add_test(tcase, nccl_text_tells_everything);
    tcase_add_test(tcase, groups_of_a_split_share_their_hosts);
    tcase_add_test(tcase, nccl_json_is_read);
    tcase_add_test(tcase, osu_sizes_become_those_of_the_tensor);
    tcase_add_test(tcase, a_hint_wins);
    tcase_add_test(tcase, our_own_documents_hold_several);
    tcase_add_loop_test(tcase, bad_results_name_the_line, 0,
                        (int)(sizeof(refused) / sizeof(refused[0])));
    tcase_add_test(tcase, sizes_that_overflow_are_refused);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
