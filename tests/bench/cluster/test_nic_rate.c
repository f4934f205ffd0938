/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/cluster/nic_rate.h"

#include "xm_test.h"

static int64_t parsed(const char *text)
{
    int64_t rate = -1;

    ck_assert_xm_ok(rb_nic_rate_parse("--nic", text, &rate));
    return rate;
}

START_TEST(rates_have_units)
{
    ck_assert_int_eq(parsed("1gbit"), 1000000000);
    ck_assert_int_eq(parsed("500mbit"), 500000000);
    ck_assert_int_eq(parsed("2.5Gbit"), 2500000000);
    ck_assert_int_eq(parsed("64kbit"), 64000);
    ck_assert_int_eq(parsed("100000bit"), 100000);
    ck_assert_int_eq(parsed("0.1GBIT"), 100000000);
    ck_assert_int_eq(parsed("400gbit"), RB_NIC_RATE_MAX);
}
END_TEST

START_TEST(other_texts_are_refused)
{
    static const char *const texts[] = {"",          "1",      "gbit",   "1 gbit",
                                        "1g",        "1tbit",  "-1gbit", "1gbit ",
                                        "1.2.3gbit", "1e9bit", "1gbits", "infgbit"};
    int64_t rate = 77;

    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); ++i) {
        ck_assert_xm_fails(rb_nic_rate_parse("--nic", texts[i], &rate), XM_ERR_PARSE, "--nic");
    }
    ck_assert_xm_fails(rb_nic_rate_parse("--nic", "63kbit", &rate), XM_ERR_INVALID_ARGUMENT,
                       "63kbit is outside 64 kbit/s … 400 Gbit/s");
    ck_assert_xm_fails(rb_nic_rate_parse("--nic", "401gbit", &rate), XM_ERR_INVALID_ARGUMENT,
                       "outside");
    ck_assert_int_eq(rate, 77);
}
END_TEST

START_TEST(lists_have_commas)
{
    int64_t rates[3];
    int count = 77;

    ck_assert_xm_ok(rb_nic_rate_parse_list("--nic", "1gbit,500mbit,64kbit", rates, 3, &count));
    ck_assert_int_eq(count, 3);
    ck_assert_int_eq(rates[1], 500000000);
    ck_assert_xm_fails(rb_nic_rate_parse_list("--nic", "1gbit,1gbit,1gbit,1gbit", rates, 3, &count),
                       XM_ERR_INVALID_ARGUMENT, "--nic has more than 3 rates");
    ck_assert_xm_fails(rb_nic_rate_parse_list("--nic", "1gbit,", rates, 3, &count), XM_ERR_PARSE,
                       "'' is not a rate");
    ck_assert_int_eq(count, 3);
}
END_TEST

START_TEST(rates_are_printed)
{
    char text[32];

    ck_assert_str_eq(rb_nic_rate_format(1000000000, text, sizeof(text)), "1 Gbit/s");
    ck_assert_str_eq(rb_nic_rate_format(62500000, text, sizeof(text)), "62.5 Mbit/s");
    ck_assert_str_eq(rb_nic_rate_format(64000, text, sizeof(text)), "64 kbit/s");
    ck_assert_str_eq(rb_nic_rate_format(8, text, sizeof(text)), "8 bit/s");
}
END_TEST

/* Measured shares: 0.9564 at an MTU of 1500, 0.9927 at 9000. */
START_TEST(headers_take_their_share)
{
    ck_assert_double_eq_tol(rb_nic_rate_payload(1, 1500), 0.9564, 5e-5);
    ck_assert_double_eq_tol(rb_nic_rate_payload(1e9, 9000), 0.9927e9, 5e4);
}
END_TEST

/* A burst has two segments at any rate, and neither is longer than 2 ms unless frames are. */
START_TEST(slow_nics_have_short_segments)
{
    static const struct {
        int64_t rate, segment, burst;
        int mtu;
    } rows[] = {{16000000, 4000, 8000, 1500},     {1000000, 3000, 6000, 1500},
                {1000000, 18000, 36000, 9000},    {200000000, 50000, 100000, 1500},
                {400000000, 62500, 125000, 1500}, {1000000000, 62500, 250000, 1500},
                {64000, 62500, 125000, 65521}};

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); ++i) {
        ck_assert_int_eq(rb_nic_rate_segment(rows[i].rate, rows[i].mtu), rows[i].segment);
        ck_assert_int_eq(rb_nic_rate_burst(rows[i].rate, rows[i].mtu), rows[i].burst);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("nic_rate");
    TCase *tcase = tcase_create("texts");

    tcase_add_test(tcase, rates_have_units);
    tcase_add_test(tcase, other_texts_are_refused);
    tcase_add_test(tcase, lists_have_commas);
    tcase_add_test(tcase, rates_are_printed);
    tcase_add_test(tcase, headers_take_their_share);
    tcase_add_test(tcase, slow_nics_have_short_segments);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
