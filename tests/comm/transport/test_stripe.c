/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/transport/stripe.h"

#include "xm_test.h"

static const uint64_t gbit = 1000000000;

/* Every byte belongs to exactly one rail, and no rail in use gets none. */
static void expect_pieces(const xm_stripe_t *stripe, size_t length, double tolerance)
{
    size_t begin = 0;

    for (int rail = 0; rail < stripe->rails; ++rail) {
        size_t end = xm_stripe_end(stripe, length, rail);
        uint32_t share = stripe->end[rail] - (rail > 0 ? stripe->end[rail - 1] : 0);

        ck_assert_uint_ge(end, begin);
        ck_assert_int_eq(end > begin, xm_stripe_uses(stripe, rail));
        ck_assert_double_eq_tol((double)(end - begin), (double)length * share / 65536, tolerance);
        begin = end;
    }
    ck_assert_uint_eq(begin, length);
}

static void expect_all_lengths(const xm_stripe_t *stripe)
{
    for (size_t length = 65536; length < 65536 + 200; ++length) {
        expect_pieces(stripe, length, 2);
    }
    expect_pieces(stripe, 1048577, 2);
    expect_pieces(stripe, ((size_t)1 << 42) + 12345, 2);
}

START_TEST(shares_follow_the_smaller_rate)
{
    const uint64_t ours[] = {gbit, gbit}, theirs[] = {gbit, gbit / 3};
    xm_stripe_t stripe, mirrored;

    xm_stripe_make(&stripe, ours, theirs, 2);
    xm_stripe_make(&mirrored, theirs, ours, 2);
    ck_assert_mem_eq(&stripe, &mirrored, sizeof(stripe));
    ck_assert_int_eq(stripe.used, 2);
    ck_assert_uint_eq(stripe.end[0], 49152);
    ck_assert_uint_eq(stripe.end[1], 65536);
    expect_all_lengths(&stripe);
}
END_TEST

START_TEST(unknown_rates)
{
    const uint64_t none[XM_NICS_MAX] = {0}, some[] = {3 * gbit, 0, gbit},
                   all[] = {gbit, gbit, gbit};
    xm_stripe_t stripe;

    xm_stripe_make(&stripe, none, none, XM_NICS_MAX);
    ck_assert_int_eq(stripe.used, XM_NICS_MAX);
    ck_assert_uint_eq(stripe.end[0], 8192);
    expect_all_lengths(&stripe);
    /* A rail without any rate makes all equal; a rate that one end knows is enough. */
    xm_stripe_make(&stripe, some, none, 3);
    ck_assert_uint_eq(stripe.end[0], 21845);
    expect_all_lengths(&stripe);
    xm_stripe_make(&stripe, (const uint64_t[]){2 * gbit, 0}, (const uint64_t[]){0, gbit}, 2);
    ck_assert_uint_eq(stripe.end[0], 43690);
    xm_stripe_make(&stripe, some, all, 3);
    ck_assert_uint_eq(stripe.end[0], 21845);
}
END_TEST

START_TEST(thin_rails_are_left_out)
{
    const uint64_t rates[] = {gbit, 1, gbit / 14, gbit / 40};
    xm_stripe_t stripe;

    xm_stripe_make(&stripe, rates, rates, 4);
    ck_assert_int_eq(stripe.used, 2);
    ck_assert(xm_stripe_uses(&stripe, 0));
    ck_assert(!xm_stripe_uses(&stripe, 1));
    ck_assert(xm_stripe_uses(&stripe, 2));
    ck_assert(!xm_stripe_uses(&stripe, 3));
    ck_assert_uint_eq(stripe.end[3], 65536);
    expect_all_lengths(&stripe);
}
END_TEST

START_TEST(largest_rates_do_not_overflow)
{
    uint64_t rates[XM_NICS_MAX];
    xm_stripe_t stripe;

    for (int i = 0; i < XM_NICS_MAX; ++i) {
        rates[i] = XM_NICS_MAX_RATE;
    }
    xm_stripe_make(&stripe, rates, rates, XM_NICS_MAX);
    ck_assert_int_eq(stripe.used, XM_NICS_MAX);
    ck_assert_uint_eq(stripe.end[6], 57344);
    expect_all_lengths(&stripe);
}
END_TEST

/* Lost rails carry nothing, whatever their rates; thin ones are used when they are all there is. */
START_TEST(lost_rails_are_left_out)
{
    const uint64_t rates[] = {100 * gbit, gbit, 3 * gbit}, none[] = {0, 0, 0},
                   some[] = {gbit, 0, gbit};
    xm_stripe_t stripe;

    xm_stripe_make_without(&stripe, rates, rates, 3, 0);
    ck_assert_int_eq(stripe.used, 1);
    xm_stripe_make_without(&stripe, rates, rates, 3, 1u << 0);
    ck_assert_int_eq(stripe.used, 2);
    ck_assert(!xm_stripe_uses(&stripe, 0));
    ck_assert_uint_eq(stripe.end[1], 65536 / 4);
    expect_all_lengths(&stripe);
    xm_stripe_make_without(&stripe, rates, rates, 3, 1u << 0 | 1u << 2);
    ck_assert_int_eq(stripe.used, 1);
    ck_assert(xm_stripe_uses(&stripe, 1));
    xm_stripe_make_without(&stripe, some, some, 3, 1u << 1); /* nobody asks for its rate */
    ck_assert_uint_eq(stripe.end[0], 65536 / 2);
    xm_stripe_make_without(&stripe, none, none, 3, 1u << 1);
    ck_assert_int_eq(stripe.used, 2);
    expect_all_lengths(&stripe);
    xm_stripe_make_without(&stripe, rates, rates, 3, 7);
    ck_assert_int_eq(stripe.used, 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("stripe");
    TCase *tcase = tcase_create("all");

    tcase_add_test(tcase, shares_follow_the_smaller_rate);
    tcase_add_test(tcase, unknown_rates);
    tcase_add_test(tcase, thin_rails_are_left_out);
    tcase_add_test(tcase, largest_rates_do_not_overflow);
    tcase_add_test(tcase, lost_rails_are_left_out);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
