/* SPDX-License-Identifier: Apache-2.0 */
#include "xm_test.h"

#include "planner/graph/sharding_rule.h"

static const ap_shape_t bsh = {3, {8, 16, 32}}, hf = {2, {32, 64}}, vector = {1, {32}};

static ap_factor_kind_t kind(const ap_sharding_rule_t *rule, char letter)
{
    int f = ap_sharding_rule_factor(rule, letter, 0);

    ck_assert_int_ge(f, 0);
    return rule->factor[f].kind;
}

START_TEST(einsum_factors_have_their_kinds)
{
    const ap_shape_t operands[] = {bsh, hf};
    ap_sharding_rule_t rule;
    ap_shape_t result;

    ck_assert_xm_ok(ap_sharding_rule_create("bsh,hf->bsf", NULL, NULL, NULL, operands, 2, &rule));
    ck_assert_int_eq(rule.factors, 4);
    ck_assert_int_eq(kind(&rule, 'b'), AP_FACTOR_PASS_THROUGH);
    ck_assert_int_eq(kind(&rule, 's'), AP_FACTOR_PASS_THROUGH);
    ck_assert_int_eq(kind(&rule, 'h'), AP_FACTOR_REDUCTION);
    ck_assert_int_eq(kind(&rule, 'f'), AP_FACTOR_PASS_THROUGH);
    ck_assert_int_eq(ap_sharding_rule_factor(&rule, 'z', 0), -1);
    result = ap_sharding_rule_shape(&rule, 2);
    ck_assert_int_eq(result.rank, 3);
    ck_assert_int_eq(result.dims[2], 64);
    ck_assert_double_eq_tol(ap_sharding_rule_points(&rule), 8.0 * 16 * 32 * 64, 1e-9);
    ck_assert(ap_sharding_rule_carries(&rule, 1, ap_sharding_rule_factor(&rule, 'h', 0)));
    ck_assert(!ap_sharding_rule_carries(&rule, 2, ap_sharding_rule_factor(&rule, 'h', 0)));
    ap_sharding_rule_destroy(&rule);
}
END_TEST

START_TEST(marked_factors_keep_their_mark)
{
    const ap_shape_t operands[] = {bsh, vector};
    ap_sharding_rule_t rule;

    ck_assert_xm_ok(ap_sharding_rule_create("bsh,h->bsh", "h", "s", NULL, operands, 2, &rule));
    ck_assert_int_eq(kind(&rule, 'h'), AP_FACTOR_NEED_REPLICATION);
    ck_assert_int_eq(kind(&rule, 's'), AP_FACTOR_PERMUTATION);
    ap_sharding_rule_destroy(&rule);
}
END_TEST

START_TEST(compound_dimensions_open_and_close)
{
    const ap_shape_t opened = {4, {8, 16, 4, 8}};
    ap_sharding_rule_t rule;
    ap_shape_t result;

    ck_assert_xm_ok(ap_sharding_rule_create("bs(nd)->bsnd", NULL, NULL, "n=4", &bsh, 1, &rule));
    result = ap_sharding_rule_shape(&rule, 1);
    ck_assert_int_eq(result.rank, 4);
    ck_assert_int_eq(result.dims[2], 4);
    ck_assert_int_eq(result.dims[3], 8);
    ap_sharding_rule_destroy(&rule);
    ck_assert_xm_ok(ap_sharding_rule_create("bsnd->bs(nd)", NULL, NULL, NULL, &opened, 1, &rule));
    ck_assert_int_eq(ap_sharding_rule_shape(&rule, 1).dims[2], 32);
    ap_sharding_rule_destroy(&rule);
}
END_TEST

START_TEST(scalars_and_several_results)
{
    ap_sharding_rule_t rule;

    ck_assert_xm_ok(ap_sharding_rule_create("bsh->", NULL, NULL, NULL, &bsh, 1, &rule));
    ck_assert_int_eq(ap_sharding_rule_shape(&rule, 1).rank, 0);
    ck_assert_int_eq(kind(&rule, 's'), AP_FACTOR_REDUCTION);
    ap_sharding_rule_destroy(&rule);
    ck_assert_xm_ok(ap_sharding_rule_create("bsh->bsh,h", NULL, NULL, NULL, &bsh, 1, &rule));
    ck_assert_int_eq(rule.results, 2);
    /* In one result only: the other sums over it. */
    ck_assert_int_eq(kind(&rule, 'b'), AP_FACTOR_REDUCTION);
    ck_assert_int_eq(kind(&rule, 'h'), AP_FACTOR_PASS_THROUGH);
    ap_sharding_rule_destroy(&rule);
}
END_TEST

/* As many operands and factors as there are: names go on with a1 behind z, and a rule over some
 * terms of another keeps them. */
START_TEST(rules_have_any_number_of_terms)
{
    enum { OPERANDS = 60 };
    const int terms[] = {OPERANDS, OPERANDS - 1};
    ap_shape_t operands[OPERANDS];
    ap_sharding_rule_t rule, again, part;

    ck_assert_xm_ok(ap_sharding_rule_open(OPERANDS, 1, OPERANDS + 1, &rule));
    for (int t = 0; t <= OPERANDS; ++t) {
        rule.rank[t] = 2;
        rule.dim[t][0] = (ap_rule_dim_t){.count = 1, .factor = {0}};
        rule.dim[t][1] = (ap_rule_dim_t){.count = 1, .factor = {(uint16_t)(t % OPERANDS + 1)}};
        rule.factor[t].size = t + 3;
    }
    ck_assert_xm_ok(ap_sharding_rule_close(&rule));
    ck_assert_int_eq(strncmp(rule.text, "ab,ac,", 6), 0);
    ck_assert_ptr_nonnull(strstr(rule.text, ",az,aa1,ab1,"));
    ck_assert_int_eq(rule.factor[ap_sharding_rule_factor(&rule, 'b', 2)].size, 2 * 26 + 1 + 3);
    for (int o = 0; o < OPERANDS; ++o) {
        operands[o] = ap_sharding_rule_shape(&rule, o);
    }
    ck_assert_xm_ok(
        ap_sharding_rule_create(rule.text, "a1c", NULL, NULL, operands, OPERANDS, &again));
    ck_assert_str_eq(again.text, rule.text);
    ck_assert_int_eq(again.factors, rule.factors);
    ck_assert_int_eq(again.factor[ap_sharding_rule_factor(&again, 'a', 1)].kind,
                     AP_FACTOR_NEED_REPLICATION);
    ck_assert_int_eq(kind(&again, 'a'), AP_FACTOR_PASS_THROUGH);
    ck_assert_int_eq(kind(&again, 'c'), AP_FACTOR_NEED_REPLICATION);
    ck_assert_xm_ok(ap_sharding_rule_pick(&again, terms, 1, 1, &part));
    ck_assert_str_eq(part.text, "ab->ai2");
    ck_assert_int_eq(ap_sharding_rule_shape(&part, 1).dims[1], OPERANDS + 3);
    ap_sharding_rule_destroy(&part);
    ap_sharding_rule_destroy(&again);
    ap_sharding_rule_destroy(&rule);
}
END_TEST

START_TEST(bad_rules_are_refused)
{
    const ap_shape_t operands[] = {bsh, {2, {33, 64}}};
    ap_sharding_rule_t rule;

    ck_assert_xm_fails(ap_sharding_rule_create("bsh,hf->bsf", NULL, NULL, NULL, operands, 2, &rule),
                       XM_ERR_INVALID_ARGUMENT, "operand 1 dimension 0 is 33");
    ck_assert_xm_fails(ap_sharding_rule_create("bs,hf->bsf", NULL, NULL, NULL, operands, 2, &rule),
                       XM_ERR_INVALID_ARGUMENT, "operand 0 has rank 3");
    ck_assert_xm_fails(ap_sharding_rule_create("bsh->bsh", NULL, NULL, NULL, operands, 2, &rule),
                       XM_ERR_INVALID_ARGUMENT, "for 1 operands, not 2");
    ck_assert_xm_fails(ap_sharding_rule_create("bsh", NULL, NULL, NULL, operands, 1, &rule),
                       XM_ERR_PARSE, "exactly one '->'");
    ck_assert_xm_fails(ap_sharding_rule_create("b->s->h", NULL, NULL, NULL, operands, 1, &rule),
                       XM_ERR_PARSE, "exactly one '->'");
    ck_assert_xm_fails(ap_sharding_rule_create("bsH->b", NULL, NULL, NULL, operands, 1, &rule),
                       XM_ERR_PARSE, "'H' is not a factor");
    ck_assert_xm_fails(ap_sharding_rule_create("bs(h->b", NULL, NULL, NULL, operands, 1, &rule),
                       XM_ERR_PARSE, "'-'");
    ck_assert_xm_fails(ap_sharding_rule_create("bsh->bshz", NULL, NULL, NULL, operands, 1, &rule),
                       XM_ERR_INVALID_ARGUMENT, "factor z has no size");
    ck_assert_xm_fails(ap_sharding_rule_create("bsh->bsh", NULL, NULL, "q=3", operands, 1, &rule),
                       XM_ERR_PARSE, "name no factor");
    ck_assert_xm_fails(
        ap_sharding_rule_create("bs(nd)->bsnd", NULL, NULL, "n=5", operands, 1, &rule),
        XM_ERR_INVALID_ARGUMENT, "dimension 2 is 32");
    ck_assert_xm_fails(
        ap_sharding_rule_create("bsh->abcdefgij", NULL, NULL, NULL, operands, 1, &rule),
        XM_ERR_INVALID_ARGUMENT, "more than 8");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("sharding_rule");
    TCase *tcase = tcase_create("all");

    tcase_add_test(tcase, einsum_factors_have_their_kinds);
    tcase_add_test(tcase, marked_factors_keep_their_mark);
    tcase_add_test(tcase, compound_dimensions_open_and_close);
    tcase_add_test(tcase, scalars_and_several_results);
    tcase_add_test(tcase, rules_have_any_number_of_terms);
    tcase_add_test(tcase, bad_rules_are_refused);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
