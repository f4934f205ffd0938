/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/planner/cost/profile_fixture.h"

#include "planner/cost/reshard_memo.h"

static const ap_shape_t shape = {3, {8, 64, 32}};
static const double bytes = 8 * 64 * 32 * 2;

typedef struct fixture {
    xm_cluster_profile_t *profile;
    ap_cost_model_t *model;
    ap_cost_mesh_t *mesh;
    ap_reshard_memo_t *memo;
    int tensor;
} fixture_t;

static void set_up(fixture_t *f)
{
    const int mesh_shape[] = {2, 4};

    f->profile = fixture_profile();
    ck_assert_xm_ok(ap_cost_model_create_profile(f->profile, &f->model));
    ck_assert_xm_ok(ap_cost_mesh_create(f->model, 2, 4, mesh_shape, 2, &f->mesh));
    ck_assert_xm_ok(ap_reshard_memo_create(f->mesh, &f->memo));
    ck_assert_xm_ok(ap_reshard_memo_tensor(f->memo, &shape, bytes, &f->tensor));
}

static void tear_down(fixture_t *f)
{
    ap_reshard_memo_destroy(f->memo);
    ap_cost_mesh_destroy(f->mesh);
    ap_cost_model_destroy(f->model);
    xm_cluster_profile_destroy(f->profile);
}

static ap_spec_t spec(const char *text)
{
    ap_spec_t parsed;

    ck_assert_xm_ok(ap_spec_parse(text, 3, 2, &parsed));
    return parsed;
}

START_TEST(remembered_costs_are_the_costs)
{
    ap_spec_t specs[AP_MAX_SPECS];
    int again, count;
    fixture_t f;

    set_up(&f);
    ck_assert_xm_ok(ap_reshard_memo_tensor(f.memo, &shape, bytes, &again));
    ck_assert_int_eq(again, f.tensor);
    ck_assert_xm_ok(ap_reshard_memo_tensor(f.memo, &shape, 2 * bytes, &again));
    ck_assert_int_ne(again, f.tensor);
    count = ap_specs_enumerate(f.mesh, &shape, specs);
    ck_assert_int_eq(count, 16);
    ck_assert_uint_eq(specs[0], AP_SPEC_REPLICATED);
    for (int round = 0; round < 2; ++round) {
        for (int i = 0; i < count; ++i) {
            for (int j = 0; j < count; ++j) {
                ck_assert_double_eq_tol(
                    ap_reshard_memo_cost(f.memo, f.tensor, specs[i], specs[j]),
                    ap_cost_reshard(f.mesh, &shape, bytes, specs[i], specs[j], NULL, NULL), 1e-15);
            }
        }
    }
    tear_down(&f);
}
END_TEST

START_TEST(partial_sums_are_scattered_where_that_is_wanted)
{
    fixture_t f;

    set_up(&f);
    /* Wanted cut over the partial axis: a reduce-scatter. */
    ck_assert_double_eq_tol(
        ap_reshard_memo_reduce(f.memo, f.tensor, spec("S0RR"), 2, spec("S0S1R")),
        ap_cost_collective(f.mesh, AP_REDUCE_SCATTER, 1, bytes / 2), 1e-15);
    /* Wanted whole: an all-reduce. */
    ck_assert_double_eq_tol(ap_reshard_memo_reduce(f.memo, f.tensor, spec("S0RR"), 2, spec("S0RR")),
                            ap_cost_collective(f.mesh, AP_ALL_REDUCE, 1, bytes / 2), 1e-15);
    /* Both: scattered over axis 0 first, the smaller rest is all-reduced over axis 1. */
    ck_assert_double_eq_tol(ap_reshard_memo_reduce(f.memo, f.tensor, spec("RRR"), 3, spec("RS0R")),
                            ap_cost_collective(f.mesh, AP_REDUCE_SCATTER, 0, bytes) +
                                ap_cost_collective(f.mesh, AP_ALL_REDUCE, 1, bytes / 2),
                            1e-15);
    /* Axis 0 may not become the major axis of a cut dimension by scattering. */
    ck_assert_double_ge(ap_reshard_memo_reduce(f.memo, f.tensor, spec("S1RR"), 1, spec("S01RR")),
                        ap_cost_collective(f.mesh, AP_ALL_REDUCE, 0, bytes / 4));
    /* Nothing partial: plain resharding. */
    ck_assert_double_eq_tol(ap_reshard_memo_reduce(f.memo, f.tensor, spec("S0RR"), 0, spec("RRR")),
                            ap_reshard_memo_cost(f.memo, f.tensor, spec("S0RR"), spec("RRR")),
                            1e-15);
    tear_down(&f);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("reshard_memo");
    TCase *tcase = tcase_create("all");

    tcase_add_test(tcase, remembered_costs_are_the_costs);
    tcase_add_test(tcase, partial_sums_are_scattered_where_that_is_wanted);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
