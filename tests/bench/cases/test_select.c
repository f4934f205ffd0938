/* SPDX-License-Identifier: Apache-2.0 */
/* Which cases, in which variants, a command line asks for. */
#include "bench/cases/select.h"

#include "xm_test.h"

enum { MOST_ARGUMENTS = 12 };

/* Parses "--suite alpa-nm …" and selects. */
static xm_status_t select_by(const char *line, rb_options_t *options, rb_selection_t *selection)
{
    static char program[] = "reshard-bench", copy[256];
    char *argv[MOST_ARGUMENTS] = {program};
    int argc = 1;
    xm_status_t status;

    (void)snprintf(copy, sizeof(copy), "%s", line);
    for (char *rest = copy, *word; argc < MOST_ARGUMENTS && (word = strsep(&rest, " ")) != NULL;) {
        argv[argc++] = word;
    }
    status = rb_options_parse(argc, argv, options);
    if (status < 0) {
        return status;
    }
    status = rb_select(options, selection);
    if (status < 0) {
        rb_options_clear(options);
    }
    return status;
}

static void check_variants(const rb_selection_t *selection, int first, const char *name,
                           const xm_strategy_t *strategies, const xm_scheduler_t *schedulers,
                           int count)
{
    for (int v = 0; v < count; ++v) {
        const rb_case_t *one = &selection->cases[first + v];

        ck_assert_str_eq(one->name, name);
        ck_assert_int_eq(one->variant, v);
        ck_assert_int_eq(one->variants, count);
        ck_assert_int_eq(one->strategy, (int)strategies[v]);
        ck_assert_int_eq(one->scheduler, (int)schedulers[v]);
    }
}

/* Nine cases, each by broadcast under the five schedulers. */
START_TEST(ablation_has_five_variants_of_every_case)
{
    static const xm_strategy_t strategies[] = {XM_STRATEGY_BROADCAST, XM_STRATEGY_BROADCAST,
                                               XM_STRATEGY_BROADCAST, XM_STRATEGY_BROADCAST,
                                               XM_STRATEGY_BROADCAST};
    static const xm_scheduler_t schedulers[] = {XM_SCHEDULER_NAIVE, XM_SCHEDULER_BALANCE,
                                                XM_SCHEDULER_DFS, XM_SCHEDULER_GREEDY,
                                                XM_SCHEDULER_OPENSHOP};
    rb_options_t options;
    rb_selection_t selection;

    ck_assert_xm_ok(select_by("--suite alpa-ablation --list", &options, &selection));
    ck_assert_int_eq(selection.count, 45);
    ck_assert_int_eq(rb_selection_cases(&selection), 9);
    for (int i = 0; i < 9; ++i) {
        char name[] = {'n', 'm', (char)('1' + i), '\0'};

        check_variants(&selection, 5 * i, name, strategies, schedulers, 5);
    }
    rb_selection_clear(&selection);
    rb_options_clear(&options);
}
END_TEST

START_TEST(ablation_can_be_narrowed)
{
    static const xm_strategy_t strategies[] = {XM_STRATEGY_BROADCAST, XM_STRATEGY_BROADCAST};
    static const xm_scheduler_t schedulers[] = {XM_SCHEDULER_OPENSHOP, XM_SCHEDULER_NAIVE};
    rb_options_t options;
    rb_selection_t selection;

    ck_assert_xm_ok(select_by("--suite alpa-ablation --case nm3 --scheduler openshop,naive",
                              &options, &selection));
    ck_assert_int_eq(selection.count, 2);
    check_variants(&selection, 0, "nm3", strategies, schedulers, 2);
    rb_selection_clear(&selection);
    rb_options_clear(&options);
    ck_assert_xm_fails(select_by("--suite alpa-ablation --case 1m1", &options, &selection),
                       XM_ERR_INVALID_ARGUMENT, "unknown case '1m1'");
}
END_TEST

START_TEST(cases_keep_their_own_without_a_list)
{
    static const xm_strategy_t send_recv[] = {XM_STRATEGY_SEND_RECV};
    static const xm_strategy_t automatic[] = {XM_STRATEGY_AUTO};
    static const xm_scheduler_t best[] = {XM_SCHEDULER_AUTO};
    rb_options_t options;
    rb_selection_t selection;

    ck_assert_xm_ok(select_by("--case t1 --case nm3", &options, &selection));
    ck_assert_int_eq(selection.count, 2);
    check_variants(&selection, 0, "t1", send_recv, best, 1);
    check_variants(&selection, 1, "nm3", automatic, best, 1);
    rb_selection_clear(&selection);
    rb_options_clear(&options);
}
END_TEST

/* Strategies outside, schedulers inside, in the order in which they were named. */
START_TEST(lists_are_combined)
{
    static const xm_strategy_t strategies[] = {XM_STRATEGY_AUTO, XM_STRATEGY_AUTO,
                                               XM_STRATEGY_SEND_RECV, XM_STRATEGY_SEND_RECV};
    static const xm_scheduler_t schedulers[] = {XM_SCHEDULER_GREEDY, XM_SCHEDULER_NAIVE,
                                                XM_SCHEDULER_GREEDY, XM_SCHEDULER_NAIVE};
    rb_options_t options;
    rb_selection_t selection;

    ck_assert_xm_ok(
        select_by("--case t1 --case nm3 --strategy auto,send_recv --scheduler greedy,naive",
                  &options, &selection));
    ck_assert_int_eq(selection.count, 8);
    check_variants(&selection, 0, "t1", strategies, schedulers, 4);
    check_variants(&selection, 4, "nm3", strategies, schedulers, 4);
    rb_selection_clear(&selection);
    rb_options_clear(&options);
    ck_assert_xm_ok(select_by("--case t1 --strategy all --scheduler all", &options, &selection));
    ck_assert_int_eq(selection.count, XM_STRATEGY_COUNT * XM_SCHEDULER_COUNT);
    rb_selection_clear(&selection);
    rb_options_clear(&options);
}
END_TEST

/* A model is loaded once; its variants share it. */
START_TEST(variants_share_a_model)
{
    rb_options_t options;
    rb_selection_t selection;

    ck_assert_xm_ok(select_by("--case dense-7b --scale 1/64 --strategy broadcast,send_recv",
                              &options, &selection));
    ck_assert_int_eq(selection.count, 2);
    ck_assert_ptr_nonnull(selection.cases[0].model);
    ck_assert_ptr_eq(selection.cases[0].model, selection.cases[1].model);
    rb_selection_clear(&selection);
    rb_options_clear(&options);
}
END_TEST

static const struct {
    const char *line, *sentence;
} refused[] = {
    {"--case t1 --strategy broadcast,broadcast", "--strategy names broadcast twice"},
    {"--case t1 --strategy broadcast,", "--strategy: '' is not one of send_recv|"},
    {"--case t1 --scheduler naive,gredy",
     "--scheduler: 'gredy' is unknown; did you mean 'greedy'?"},
    {"--case t1 --strategy all --plot x.svg", "--plot is about one plan, but 7 are asked for"},
    {"--case t1 --case t2 --strategy all --dump-plan x", "about one case, but 2 are selected"},
};

START_TEST(bad_lists_are_refused)
{
    rb_options_t options;
    rb_selection_t selection;

    ck_assert_xm_fails(select_by(refused[_i].line, &options, &selection), XM_ERR_INVALID_ARGUMENT,
                       refused[_i].sentence);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("select");
    TCase *tests = tcase_create("select");

    tcase_add_test(tests, ablation_has_five_variants_of_every_case);
    tcase_add_test(tests, ablation_can_be_narrowed);
    tcase_add_test(tests, cases_keep_their_own_without_a_list);
    tcase_add_test(tests, lists_are_combined);
    tcase_add_test(tests, variants_share_a_model);
    tcase_add_loop_test(tests, bad_lists_are_refused, 0,
                        (int)(sizeof(refused) / sizeof(refused[0])));
    suite_add_tcase(suite, tests);
    return xm_test_run(suite);
}
