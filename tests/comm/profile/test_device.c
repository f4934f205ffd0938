/* SPDX-License-Identifier: Apache-2.0 */
/* Devices that compute at another rate in each type of number: how files say so, and what an
 * operator then takes. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/profile.h"
#include "xm_test.h"

/* A profile whose device has `more` keys, with `rest` behind its curves. */
static xm_status_t read_profile(const char *more, const char *rest, xm_cluster_profile_t **profile)
{
    static const char curve[] = "[[8, 1e-6], [1024, 2e-6]]";
    char text[2048];

    (void)snprintf(text, sizeof(text),
                   "{\"version\": 2, \"name\": \"test\", \"provenance\": \"assumed\", \"hosts\": 2,"
                   "\"devices_per_host\": 1, \"device\": {\"flop_per_s\": 1e12, \"memory_bytes\": "
                   "16e9, \"memory_bytes_per_s\": 1e11%s}, \"nic\": {\"bytes_per_s\": 1e9},"
                   "\"curves\": {\"self\": %s, \"intra_host\": %s, \"inter_host\": %s}%s}",
                   more, curve, curve, curve, rest);
    return xm_cluster_profile_from_text(text, strlen(text), "test.json", profile);
}

/* The same after it was written and read, with the arrays of another size. */
static xm_cluster_profile_t *again(xm_cluster_profile_t *profile)
{
    xm_cluster_profile_t *read, *larger;
    char *text;

    ck_assert_xm_ok(xm_cluster_profile_to_text(profile, &text));
    ck_assert_xm_ok(xm_cluster_profile_from_text(text, strlen(text), "again", &read));
    ck_assert_xm_ok(xm_cluster_profile_resize(read, 4, 2, &larger));
    xm_cluster_profile_destroy(read);
    xm_cluster_profile_destroy(profile);
    free(text);
    return larger;
}

static double seconds(const xm_cluster_profile_t *profile, const char *op, xm_number_t number,
                      double flops)
{
    return xm_cluster_profile_op_seconds(profile, op, number, flops, 1);
}

START_TEST(one_rate_stands_for_all_types)
{
    xm_cluster_profile_t *profile;

    ck_assert_xm_ok(read_profile("", "", &profile));
    profile = again(profile);
    for (int n = 0; n < XM_NUMBER_COUNT; ++n) {
        ck_assert_double_eq_tol(seconds(profile, "einsum", (xm_number_t)n, 2e12), 2, 1e-12);
    }
    xm_cluster_profile_destroy(profile);
}
END_TEST

START_TEST(types_have_rates_of_their_own)
{
    xm_cluster_profile_t *profile;
    xm_cluster_device_t device, least;

    ck_assert_xm_ok(
        read_profile(", \"flop_per_s_of\": {\"float16\": 8e12, \"float64\": 5e11}, \"hosts\": ["
                     "{\"flop_per_s\": 2e12, \"memory_bytes\": 1e9, \"memory_bytes_per_s\": 1e11, "
                     "\"flop_per_s_of\": {\"bfloat16\": 4e12}}, "
                     "{\"flop_per_s\": 3e12, \"memory_bytes\": 2e9, \"memory_bytes_per_s\": 1e10}]",
                     "", &profile));
    profile = again(profile);
    ck_assert_double_eq_tol(seconds(profile, "einsum", XM_NUMBER_FLOAT16, 8e12), 1, 1e-12);
    ck_assert_double_eq_tol(seconds(profile, "einsum", XM_NUMBER_FLOAT64, 1e12), 2, 1e-12);
    ck_assert_double_eq_tol(seconds(profile, "einsum", XM_NUMBER_FLOAT32, 1e12), 1, 1e-12);
    device = xm_cluster_profile_host_device(profile, 2);
    ck_assert_double_eq(xm_cluster_device_flops(&device, XM_NUMBER_BFLOAT16), 4e12);
    ck_assert_double_eq(xm_cluster_device_flops(&device, XM_NUMBER_FLOAT16), 2e12);
    /* The second host has no rate for the type, so its general one counts. */
    least = xm_cluster_profile_host_device(profile, 3);
    least = xm_cluster_device_least(&device, &least);
    ck_assert_double_eq(xm_cluster_device_flops(&least, XM_NUMBER_BFLOAT16), 3e12);
    ck_assert_double_eq(xm_cluster_device_flops(&least, XM_NUMBER_INT8), 2e12);
    ck_assert_double_eq(least.memory_bytes, 5e8);
    ck_assert_double_eq(least.memory_bandwidth, 1e10);
    ck_assert(!xm_cluster_device_same(&least, &device));
    xm_cluster_profile_destroy(profile);
}
END_TEST

/* Entries of the operator's own type come first, then those of none; others never count. */
START_TEST(measured_operators_have_types)
{
    xm_cluster_profile_t *profile;

    ck_assert_xm_ok(read_profile(
        ", \"flop_per_s_of\": {\"float16\": 8e12}",
        ", \"op_times\": ["
        "{\"op\": \"einsum\", \"flops\": 1e12, \"bytes\": 1, \"seconds\": 3},"
        "{\"op\": \"einsum\", \"flops\": 8e12, \"bytes\": 1, \"seconds\": 2, \"type\": "
        "\"float16\"},"
        "{\"op\": \"reduce\", \"flops\": 1e12, \"bytes\": 1, \"seconds\": 5, \"type\": \"int8\"}]",
        &profile));
    profile = again(profile);
    ck_assert_double_eq_tol(seconds(profile, "einsum", XM_NUMBER_FLOAT32, 2e12), 6, 1e-9);
    ck_assert_double_eq_tol(seconds(profile, "einsum", XM_NUMBER_FLOAT16, 16e12), 4, 1e-9);
    ck_assert_double_eq_tol(seconds(profile, "reduce", XM_NUMBER_INT8, 2e12), 10, 1e-9);
    ck_assert_double_eq_tol(seconds(profile, "reduce", XM_NUMBER_FLOAT16, 8e12), 1, 1e-9);
    xm_cluster_profile_destroy(profile);
}
END_TEST

START_TEST(what_is_no_rate_is_refused)
{
    static const char *const rows[][3] = {
        {", \"flop_per_s_of\": {\"fp16\": 1}", "", "device.flop_per_s_of has 'fp16'; types of"},
        {", \"spread\": {\"any\": 1}", "",
         "device.spread has 'any'; it may have flop_per_s, memory"},
        {", \"spread\": {\"int8\": -1}", "", "device.spread.int8 is -1; it must be positive"},
        {", \"flop_per_s_of\": {\"any\": 1}", "", "device.flop_per_s_of has 'any'; types of"},
        {", \"flop_per_s_of\": {\"int8\": 0}", "", "flop_per_s_of.int8 is 0; it must be positive"},
        {", \"flop_per_s_of\": {\"int8\": \"1\"}", "", "int8 is a string; it must be a number"},
        {", \"flop_per_s_of\": 1", "", "flop_per_s_of is an integer; it must be an object"},
        {", \"hosts\": [{\"flop_per_s\": 1, \"memory_bytes\": 1, \"memory_bytes_per_s\": 1, "
         "\"flop_per_s_of\": {\"int8\": -1}}, {}]",
         "", "device.hosts[0].flop_per_s_of.int8 is -1; it must be positive"},
        {"",
         ", \"op_times\": [{\"op\": \"x\", \"flops\": 1, \"bytes\": 1, \"seconds\": 1, \"type\": "
         "\"half\"}]",
         "op_times[0].type is 'half'; types of numbers are"},
        {"",
         ", \"op_times\": [{\"op\": \"x\", \"flops\": 1, \"bytes\": 1, \"seconds\": 1, \"type\": "
         "16}]",
         "op_times[0].type is an integer; it must be a string"},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); ++i) {
        xm_cluster_profile_t *profile;

        ck_assert(read_profile(rows[i][0], rows[i][1], &profile) < 0);
        ck_assert_msg(strstr(xm_last_error(), rows[i][2]) != NULL, "row %zu: %s", i,
                      xm_last_error());
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("device");
    TCase *tcase = tcase_create("types");

    tcase_add_test(tcase, one_rate_stands_for_all_types);
    tcase_add_test(tcase, types_have_rates_of_their_own);
    tcase_add_test(tcase, measured_operators_have_types);
    tcase_add_test(tcase, what_is_no_rate_is_refused);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
