/* SPDX-License-Identifier: Apache-2.0 */
#include "xm_test.h"

#include "planner/cost/cost.h"
#include "planner/cost/strategy.h"

/* A logical mesh under Alpa's constants: strategies need only its sizes. */
typedef struct fixture {
    ap_cost_model_t *model;
    ap_cost_mesh_t *mesh;
    ap_sharding_rule_t rule;
    ap_strategy_context_t site;
} fixture_t;

static void set_up(fixture_t *f, const int *shape, int rank, const char *text,
                   const char *replicated, const char *sizes, const ap_shape_t *operands, int count)
{
    ap_alpa_params_t alpa = AP_ALPA_PARAMS_INIT;
    int devices = 1;

    for (int a = 0; a < rank; ++a) {
        devices *= shape[a];
    }
    ck_assert_xm_ok(ap_cost_model_create_alpa(&alpa, &f->model));
    ck_assert_xm_ok(ap_cost_mesh_create(f->model, 1, devices, shape, rank, &f->mesh));
    ck_assert_xm_ok(
        ap_sharding_rule_create(text, replicated, "r", sizes, operands, count, &f->rule));
    f->site = (ap_strategy_context_t){.rule = &f->rule, .mesh = f->mesh, .element_bytes = 4};
}

static void tear_down(fixture_t *f)
{
    ap_sharding_rule_destroy(&f->rule);
    ap_cost_mesh_destroy(f->mesh);
    ap_cost_model_destroy(f->model);
}

static const ap_shape_t matmul[] = {{3, {8, 16, 32}}, {3, {8, 32, 64}}};

/* The strategy whose text starts so. */
static const ap_strategy_t *find(const fixture_t *f, const ap_strategy_list_t *list,
                                 const char *specs)
{
    char text[192];

    for (int s = 0; s < list->count; ++s) {
        (void)ap_strategy_format(&f->rule, &list->items[s], text, sizeof(text));
        if (strncmp(text, specs, strlen(specs)) == 0 &&
            (text[strlen(specs)] == '\0' || text[strlen(specs)] == ' ')) {
            return &list->items[s];
        }
    }
    return NULL;
}

/* Rows of Alpa's table 3 for C[b,i,j] = A[b,i,k] B[b,k,j] on 2 x 4. */
START_TEST(batched_matmul_has_alpas_table)
{
    const int shape[] = {2, 4};
    const ap_strategy_options_t options = {0};
    const double m = 8 * 16 * 64 * 4;
    ap_strategy_list_t list;
    const ap_strategy_t *s;
    fixture_t f;

    set_up(&f, shape, 2, "bik,bkj->bij", NULL, NULL, matmul, 2);
    ck_assert_xm_ok(ap_strategy_enumerate(&f.site, &options, &list));
    /* Each axis goes to b, i, k, j or none. */
    ck_assert_int_eq(list.count, 25);
    s = find(&f, &list, "RS0R,RRS1->RS0S1");
    ck_assert_ptr_nonnull(s);
    ck_assert_int_eq(s->collective_count, 0);
    ck_assert_double_eq_tol(s->devices, 8, 1e-9);
    s = find(&f, &list, "RS0S1,RS1R->RS0R");
    ck_assert_ptr_nonnull(s);
    ck_assert_int_eq(s->collective_count, 1);
    ck_assert_int_eq(s->collective[0].kind, AP_ALL_REDUCE);
    ck_assert_int_eq(s->collective[0].axis, 1);
    ck_assert_double_eq_tol(s->collective[0].bytes, m / 2, 1e-9);
    s = find(&f, &list, "RRS01,RS01R->RRR");
    ck_assert_ptr_nonnull(s);
    ck_assert_int_eq(s->collective_count, 1);
    ck_assert_uint_eq(s->collective[0].axes, 3);
    ck_assert_double_eq_tol(s->collective[0].bytes, m, 1e-9);
    ck_assert_uint_eq(s->partial[0], 3);
    s = find(&f, &list, "S0S1R,S0RR->S0S1R");
    ck_assert_ptr_nonnull(s);
    ck_assert_int_eq(s->collective_count, 0);
    s = find(&f, &list, "RRR,RRR->RRR");
    ck_assert_ptr_nonnull(s);
    ck_assert_double_eq_tol(s->devices, 1, 1e-9);
    ap_strategy_list_free(&list);
    tear_down(&f);
}
END_TEST

START_TEST(all_axes_leaves_no_repeated_work)
{
    const int shape[] = {2, 4};
    const ap_strategy_options_t options = {.all_axes = true};
    ap_strategy_list_t list;
    fixture_t f;

    set_up(&f, shape, 2, "bik,bkj->bij", NULL, NULL, matmul, 2);
    ck_assert_xm_ok(ap_strategy_enumerate(&f.site, &options, &list));
    ck_assert_int_eq(list.count, 16);
    for (int s = 0; s < list.count; ++s) {
        ck_assert_double_eq_tol(list.items[s].devices, 8, 1e-9);
    }
    ap_strategy_list_free(&list);
    tear_down(&f);
}
END_TEST

START_TEST(scattering_replaces_all_reduce)
{
    const int shape[] = {4};
    const ap_strategy_options_t options = {.scatter = true};
    ap_strategy_list_t list;
    const ap_strategy_t *s;
    fixture_t f;

    set_up(&f, shape, 1, "bik,bkj->bij", NULL, NULL, matmul, 2);
    ck_assert_xm_ok(ap_strategy_enumerate(&f.site, &options, &list));
    ck_assert_int_eq(list.count, 5 + 3);
    s = find(&f, &list, "RRS0,RS0R->RS0R");
    ck_assert_ptr_nonnull(s);
    ck_assert_int_eq(s->collective_count, 1);
    ck_assert_int_eq(s->collective[0].kind, AP_REDUCE_SCATTER);
    ck_assert_double_eq_tol(s->collective[0].bytes, 8 * 16 * 64 * 4, 1e-9);
    ap_strategy_list_free(&list);
    tear_down(&f);
}
END_TEST

START_TEST(normalised_dimensions_stay_whole)
{
    const int shape[] = {2, 2};
    const ap_shape_t scores = {4, {4, 8, 16, 16}};
    const ap_strategy_options_t options = {0};
    ap_strategy_list_t list;
    fixture_t f;

    set_up(&f, shape, 2, "bnst->bnst", "t", NULL, &scores, 1);
    ck_assert_xm_ok(ap_strategy_enumerate(&f.site, &options, &list));
    ck_assert_int_eq(list.count, 16);
    for (int s = 0; s < list.count; ++s) {
        ck_assert_uint_eq(ap_spec_axes(list.items[s].spec[0], 3), 0);
        ck_assert_uint_eq(list.items[s].spec[0], list.items[s].spec[1]);
        ck_assert_int_eq(list.items[s].collective_count, 0);
    }
    ap_strategy_list_free(&list);
    tear_down(&f);
}
END_TEST

START_TEST(sizes_must_divide_and_minor_factors_stay_whole)
{
    const int shape[] = {4};
    const ap_shape_t odd = {2, {6, 8}}, heads = {2, {6, 32}};
    const ap_strategy_options_t options = {0};
    ap_strategy_list_t list;
    fixture_t f;

    set_up(&f, shape, 1, "ab->ab", NULL, NULL, &odd, 1);
    ck_assert_xm_ok(ap_strategy_enumerate(&f.site, &options, &list));
    ck_assert_int_eq(list.count, 2); /* b, none */
    ck_assert_ptr_null(find(&f, &list, "S0R->S0R"));
    ap_strategy_list_free(&list);
    tear_down(&f);

    set_up(&f, shape, 1, "a(nd)->and", NULL, "n=8", &heads, 1);
    ck_assert_xm_ok(ap_strategy_enumerate(&f.site, &options, &list));
    ck_assert_int_eq(list.count, 2); /* n, none; not a (6) and not d (minor) */
    ck_assert_ptr_nonnull(find(&f, &list, "RS0->RS0R"));
    ap_strategy_list_free(&list);
    tear_down(&f);
}
END_TEST

START_TEST(permuted_factors_pay_a_neighbour_exchange)
{
    const int shape[] = {4};
    const ap_shape_t row = {2, {6, 32}};
    const ap_strategy_options_t options = {0};
    ap_strategy_list_t list;
    const ap_strategy_t *s;
    fixture_t f;

    set_up(&f, shape, 1, "ar->ar", NULL, NULL, &row, 1);
    ck_assert_xm_ok(ap_strategy_enumerate(&f.site, &options, &list));
    s = find(&f, &list, "RS0->RS0");
    ck_assert_ptr_nonnull(s);
    ck_assert_int_eq(s->collective_count, 1);
    ck_assert_int_eq(s->collective[0].kind, AP_PERMUTE);
    ck_assert_double_eq_tol(s->collective[0].bytes, 6 * 32 * 4 / 4.0, 1e-9);
    ap_strategy_list_free(&list);
    tear_down(&f);
}
END_TEST

START_TEST(three_axes_work_as_well)
{
    const int shape[] = {2, 2, 2};
    const ap_strategy_options_t options = {0};
    ap_strategy_list_t list;
    fixture_t f;

    set_up(&f, shape, 3, "bik,bkj->bij", NULL, NULL, matmul, 2);
    ck_assert_xm_ok(ap_strategy_enumerate(&f.site, &options, &list));
    ck_assert_int_eq(list.count, 125);
    ck_assert_ptr_nonnull(find(&f, &list, "S0S1S2,S0S2R->S0S1R"));
    ck_assert_ptr_nonnull(find(&f, &list, "RS012R,RRR->RS012R"));
    ap_strategy_list_free(&list);
    tear_down(&f);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("strategy");
    TCase *tcase = tcase_create("all");

    tcase_add_test(tcase, batched_matmul_has_alpas_table);
    tcase_add_test(tcase, all_axes_leaves_no_repeated_work);
    tcase_add_test(tcase, scattering_replaces_all_reduce);
    tcase_add_test(tcase, normalised_dimensions_stay_whole);
    tcase_add_test(tcase, sizes_must_divide_and_minor_factors_stay_whole);
    tcase_add_test(tcase, permuted_factors_pay_a_neighbour_exchange);
    tcase_add_test(tcase, three_axes_work_as_well);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
