/* SPDX-License-Identifier: Apache-2.0 */
/* The largest value of the least of some planes: no point of a fine grid is above it. */
#include <check.h>
#include <math.h>
#include <stdint.h>

#include "planner/solver/cut_model.h"
#include "tests/xm_test.h"

enum { MODELS = 500, GRID = 9 };

static uint64_t state = 1;

static int below(int limit)
{
    state = state * UINT64_C(6364136223846793005) + 1442695040888963407u;
    return (int)((state >> 33) % (uint64_t)limit);
}

static double value_at(const ap_cut_model_t *model, const double *price)
{
    double least = HUGE_VAL;

    for (int i = 0; i < model->planes; ++i) {
        double value = model->constant[i];

        for (int j = 0; j < model->prices; ++j) {
            value += model->slope[i][j] * price[j];
        }
        least = fmin(least, value);
    }
    return least;
}

START_TEST(nothing_is_above_the_maximum)
{
    for (int k = 0; k < MODELS; ++k) {
        static ap_cut_model_t model;
        double ceiling[AP_CUT_PRICES], price[AP_CUT_PRICES], point[3], most;
        /* From costs and bytes as plans have them to small numbers. */
        double money = k % 2 ? 1e11 : 1.0, bytes = k % 3 ? 1e10 : 1.0;

        state = (uint64_t)k * 7919 + 3;
        model.prices = 1 + below(3);
        model.planes = 1 + below(k % 5 == 0 ? AP_CUT_PLANES : 8);
        for (int i = 0; i < model.planes; ++i) {
            model.constant[i] = money * (1 + below(100) / 10.0);
            for (int j = 0; j < model.prices; ++j) {
                model.slope[i][j] = bytes * (below(41) - 25) / 10.0;
            }
        }
        for (int j = 0; j < model.prices; ++j) {
            ceiling[j] = (1 + below(50)) / 10.0 * money / bytes;
        }
        most = ap_cut_model_maximise(&model, ceiling, price);
        ck_assert_double_eq_tol(value_at(&model, price), most, 1e-8 * money * 100);
        for (int j = 0; j < model.prices; ++j) {
            ck_assert(price[j] >= 0 && price[j] <= ceiling[j] * (1 + 1e-9));
        }
        for (int at = 0; at < GRID * GRID * GRID; ++at) {
            point[0] = ceiling[0] * (at % GRID) / (GRID - 1);
            point[1] = ceiling[model.prices > 1] * (at / GRID % GRID) / (GRID - 1);
            point[2] = ceiling[model.prices > 2 ? 2 : 0] * (at / GRID / GRID) / (GRID - 1);
            ck_assert_double_le(value_at(&model, point), most + 1e-8 * money * 100);
        }
    }
}
END_TEST

/* Two planes that cross: the maximum is where they do. */
START_TEST(planes_meet_at_the_maximum)
{
    static ap_cut_model_t model = {
        .prices = 1, .planes = 2, .constant = {10, 40}, .slope = {{5}, {-10}}};
    const double ceiling[] = {100};
    double price[1];

    ck_assert_double_eq_tol(ap_cut_model_maximise(&model, ceiling, price), 20, 1e-9);
    ck_assert_double_eq_tol(price[0], 2, 1e-9);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("cut_model");
    TCase *all = tcase_create("all");

    tcase_set_timeout(all, 60);
    tcase_add_test(all, nothing_is_above_the_maximum);
    tcase_add_test(all, planes_meet_at_the_maximum);
    suite_add_tcase(suite, all);
    return xm_test_run(suite);
}
