/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Slices of a sequence against all ways to cut it, which are tried one by one here; against what is
 * easily found by hand; and fits of times that follow the formula.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "planner/pipeline/token_slices.h"
#include "xm_test.h"

/* The least m sum + (p - 1) longest over all 2^(n - 1) ways to cut n units. */
static double least_of_all(const double time[3], int points, int unit, int stages, int rounds)
{
    double best = INFINITY;

    for (unsigned cuts = 0; cuts < 1U << (points - 1); ++cuts) {
        double sum = 0, longest = 0;

        for (int from = 0, to = 1; to <= points; ++to) {
            if (to == points || (cuts >> (to - 1) & 1U) != 0) {
                double length = (to - from) * unit, behind = from * unit;
                double seconds =
                    time[0] + time[1] * length + time[2] * (length * behind + length * length / 2);

                sum += seconds;
                longest = fmax(longest, seconds);
                from = to;
            }
        }
        best = fmin(best, rounds * sum + (stages - 1) * longest);
    }
    return best;
}

START_TEST(the_best_of_all_ways_is_found)
{
    for (uint64_t seed = 7; seed < 7 + 200 * 7; seed += 7) {
        int points = 1 + (int)(xm_random_of(seed) % 11),
            unit = 1 + (int)(xm_random_of(seed + 1) % 9);
        const double time[] = {(double)(xm_random_of(seed + 2) % 50),
                               1 + (double)(xm_random_of(seed + 3) % 10),
                               0.1 * (double)(xm_random_of(seed + 4) % 10)};
        ap_token_slices_t slices = {.stages = 1 + (int)(xm_random_of(seed + 5) % 12),
                                    .micro_batches = 1 + (int)(xm_random_of(seed + 6) % 3)};
        double least;
        int tokens = 0;

        ck_assert_xm_ok(ap_token_slices_find(time, points * unit, unit, &slices));
        least = least_of_all(time, points, unit, slices.stages, slices.micro_batches);
        ck_assert(fabs(slices.seconds - least) <= 1e-9 * least);
        for (int s = 0; s < slices.count; ++s) {
            tokens += slices.length[s];
        }
        ck_assert_int_eq(tokens, points * unit);
        ap_token_slices_clear(&slices);
    }
}
END_TEST

/* Times 1 + l, 12 tokens, 4 stages: n equal slices take n + 12 + 3 (1 + 12 / n), least at n =
 * 6: 27.
 */
START_TEST(measured_times_are_fitted)
{
    const char *path = "token_slices.txt";
    ap_token_slices_t slices;
    FILE *file = fopen(path, "w");

    ck_assert(file != NULL);
    (void)fprintf(file, "# tokens, tokens before, seconds\n1 0 2\n2 4 3\n12 0 13\n6 6 7\n");
    (void)fclose(file);
    ck_assert_xm_ok(ap_token_slices_load(path, 4, 1, 0, &slices));
    ck_assert_int_eq(slices.count, 6);
    ck_assert(fabs(slices.seconds - 27) < 1e-6);
    ck_assert(fabs(slices.share[0] - 3.0 / 13) < 1e-9);
    ap_token_slices_clear(&slices);
    ck_assert_xm_ok(ap_token_slices_load(path, 4, 1, 3, &slices));
    ck_assert(fabs(slices.seconds - (3 + 12 + 3 * 5)) < 1e-6);
    ap_token_slices_clear(&slices);
    ck_assert_int_eq(ap_token_slices_load(path, 4, 1, 5, &slices), XM_ERR_INVALID_ARGUMENT);
    file = fopen(path, "w");
    (void)fprintf(file, "1 0 2\n2 zero 3\n12 0 13\n");
    (void)fclose(file);
    ck_assert_int_eq(ap_token_slices_load(path, 4, 1, 0, &slices), XM_ERR_PARSE);
    (void)remove(path);
    ck_assert_int_eq(ap_token_slices_load(path, 4, 1, 0, &slices), XM_ERR_NOT_FOUND);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("token_slices");
    TCase *unit = tcase_create("unit");

    tcase_add_test(unit, the_best_of_all_ways_is_found);
    tcase_add_test(unit, measured_times_are_fitted);
    suite_add_tcase(suite, unit);
    return xm_test_run(suite);
}
