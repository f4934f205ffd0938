/* SPDX-License-Identifier: Apache-2.0 */
/* Plans whose stages take unequal hosts in an order of their own. */
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "planner/explain/explain_private.h"
#include "planner/plan/schedule.h"
#include "planner/explain/verify.h"
#include "planner/search/planner.h"
#include "tests/planner/search/planner_fixture.h"
#include "xm_test.h"

enum { MOST_HOSTS = 4 };

static const int64_t b8[] = {8};
static const double alternating[] = {1.0, 0.5, 1.0, 0.5};

/* Four blocks, a batch of 32 in eight parts. */
static ap_planner_params_t params_of(const xm_cluster_profile_t *profile)
{
    ap_planner_params_t params = AP_PLANNER_PARAMS_INIT;

    params.model = "gpt-125m";
    params.layers = 4;
    params.profile = profile;
    params.global_batch = 32;
    params.micro_batches = b8;
    params.micro_batch_count = 1;
    params.recompute = AP_RECOMPUTE_OFF;
    return params;
}

static double step_of(const ap_planner_params_t *params)
{
    ap_planner_result_t result;
    double step;

    ck_assert_xm_ok(ap_planner_run(params, &result));
    step = ap_plan_info(result.plan)->step;
    ap_planner_result_clear(&result);
    return step;
}

/* The best step over every order of the hosts that a profile can say. */
static double best_of_all(const ap_planner_params_t *asked, int *order, int placed, int *orders)
{
    int hosts = xm_cluster_profile_hosts(asked->profile);
    double best = INFINITY;

    if (placed == hosts) {
        ap_planner_params_t params = *asked;
        xm_cluster_profile_t *profile;

        if (xm_cluster_profile_reorder(asked->profile, order, &profile) != XM_OK) {
            return INFINITY; /* of a rack torn apart */
        }
        ++*orders;
        params.profile = profile;
        params.keep_host_order = true;
        best = step_of(&params);
        xm_cluster_profile_destroy(profile);
        return best;
    }
    for (int host = 0; host < hosts; ++host) {
        bool taken = false;

        for (int i = 0; i < placed; ++i) {
            taken = taken || order[i] == host;
        }
        if (!taken) {
            order[placed] = host;
            best = fmin(best, best_of_all(asked, order, placed + 1, orders));
        }
    }
    return best;
}

static unsigned next_random(unsigned *state)
{
    *state = *state * 1664525U + 1013904223U;
    return *state >> 16;
}

/* Random clusters of unequal hosts: no order of all there are is faster than the plan's. */
START_TEST(no_other_order_is_faster)
{
    static const double speeds[] = {1.0, 0.5, 0.3}, rates[] = {1e9, 2e8, 5e7};
    static const char *const schedules[] = {"1f1b", "1f1b", "1f1b", "gpipe"};
    double shares[MOST_HOSTS], nics[MOST_HOSTS], best;
    int order[MOST_HOSTS], hosts, devices, orders = 0, racks;
    unsigned state = 12345U + 77U * (unsigned)_i;
    xm_cluster_profile_t *profile;
    ap_planner_params_t params;
    ap_planner_result_t result;

    hosts = 2 + (int)(next_random(&state) % 3U);
    devices = 1 + (int)(next_random(&state) % 2U);
    racks = _i % 5 == 4 ? 2 : 0;
    for (int h = 0; h < hosts; ++h) {
        shares[h] = speeds[next_random(&state) % 3U];
        nics[h] = rates[next_random(&state) % 3U];
    }
    profile = planner_fixture_unequal(hosts, devices, 64e9, _i % 3 == 1 ? NULL : shares,
                                      _i % 3 == 0 ? NULL : nics, racks);
    params = params_of(profile);
    params.schedule = schedules[_i % 4];
    params.max_stages = 1 + (int)(next_random(&state) % 4U);
    ck_assert_xm_ok(ap_planner_run(&params, &result));
    best = best_of_all(&params, order, 0, &orders);
    ck_assert_int_gt(result.host_orders, 0);
    ck_assert_int_le(result.host_orders, orders);
    /* Moving hosts must save a millionth; a simulation judges what the search proposes. */
    ck_assert_double_le(ap_plan_info(result.plan)->step,
                        best * (strcmp(params.schedule, "1f1b") == 0 ? 1.0 + 2e-6 : 1.01));
    ck_assert_double_ge(ap_plan_info(result.plan)->step, best * (1.0 - 2e-6));
    ck_assert_xm_ok(ap_plan_verify(&params, result.plan));
    ap_planner_result_clear(&result);
    xm_cluster_profile_destroy(profile);
}
END_TEST

/* Two kinds in turn, two stages of two hosts each: in the profile's order both stages run at the
 * pace of the slow ones, 2 of 3 parts of what the cluster can do. */
START_TEST(like_hosts_come_together)
{
    xm_cluster_profile_t *profile = planner_fixture_unequal(4, 2, 64e9, alternating, NULL, 0);
    ap_planner_params_t params = params_of(profile);
    double kept;
    ap_planner_result_t result;
    const int *order;

    params.min_stages = params.max_stages = 2;
    params.layers = 12;
    params.keep_host_order = true;
    kept = step_of(&params);
    params.keep_host_order = false;
    ck_assert_xm_ok(ap_planner_run(&params, &result));
    order = ap_plan_info(result.plan)->host_order;
    ck_assert_ptr_nonnull(order);
    ck_assert_int_eq(order[0] % 2, order[1] % 2);
    ck_assert_int_eq(order[2] % 2, order[3] % 2);
    ck_assert_double_lt(ap_plan_info(result.plan)->step, 0.8 * kept);
    ck_assert_int_eq(result.host_orders, 6);
    ck_assert_ptr_nonnull(
        strstr(ap_plan_info(result.plan)->optimiser, "; hosts in the best found of all 6 orders"));
    ap_planner_result_clear(&result);
    xm_cluster_profile_destroy(profile);
}
END_TEST

/* A slow NIC carries less at an end of the pipeline, which only one boundary is beside. */
START_TEST(a_slow_nic_stands_at_an_end)
{
    static const double nics[] = {1e9, 2e7, 1e9};
    xm_cluster_profile_t *profile = planner_fixture_unequal(3, 1, 64e9, NULL, nics, 0);
    ap_planner_params_t params = params_of(profile);
    ap_planner_result_t result;
    const int *order;
    double kept;

    params.min_stages = 3;
    params.keep_host_order = true;
    kept = step_of(&params);
    params.keep_host_order = false;
    ck_assert_xm_ok(ap_planner_run(&params, &result));
    order = ap_plan_info(result.plan)->host_order;
    ck_assert_ptr_nonnull(order);
    ck_assert(order[0] == 1 || order[2] == 1);
    ck_assert_double_lt(ap_plan_info(result.plan)->step, kept);
    ap_planner_result_clear(&result);
    xm_cluster_profile_destroy(profile);
}
END_TEST

/* Cases that are planned at the same time share the orders, and find what each finds alone. */
START_TEST(cases_share_the_orders)
{
    static const double nics[] = {1e9, 1e8, 1e9, 1e8};
    static const int64_t counts[] = {4, 8, 16, 32};
    xm_cluster_profile_t *profile =
        planner_fixture_unequal(4, 2, 64e9, _i == 0 ? alternating : NULL, nics, 0);
    ap_planner_params_t params = params_of(profile);
    double together, least = INFINITY;

    params.recompute = AP_RECOMPUTE_UNIFORM;
    params.schedule = _i == 0 ? "1f1b" : "auto";
    params.micro_batches = counts;
    params.micro_batch_count = 4;
    together = step_of(&params);
    params.micro_batch_count = 1;
    for (int i = 0; i < 4; ++i) {
        params.micro_batches = &counts[i];
        least = fmin(least, step_of(&params));
    }
    ck_assert_double_le(together, least * 1.0011); /* what is left alone saves less */
    ck_assert_double_ge(together, least * (1.0 - 1e-9));
    xm_cluster_profile_destroy(profile);
}
END_TEST

static char *text_of(const ap_planner_params_t *params, int host_orders)
{
    ap_planner_result_t result;
    char *text;

    ck_assert_xm_ok(ap_planner_run(params, &result));
    ck_assert_int_eq(result.host_orders, host_orders);
    text = ap_plan_text(result.plan);
    ck_assert_ptr_nonnull(text);
    ap_planner_result_clear(&result);
    return text;
}

/* Nothing is searched, and nothing said, where hosts are alike; nor where they are listed one by
 * one and alike all the same. */
START_TEST(alike_hosts_stay)
{
    static const double same[] = {1.0, 1.0, 1.0, 1.0}, rates[] = {1e9, 1e9, 1e9, 1e9};
    xm_cluster_profile_t *profiles[] = {planner_fixture_profile(4, 2, 64e9),
                                        planner_fixture_unequal(4, 2, 64e9, same, rates, 2)};

    for (int i = 0; i < 2; ++i) {
        ap_planner_params_t params = params_of(profiles[i]);
        char *free_order, *kept;

        free_order = text_of(&params, 1);
        params.keep_host_order = true;
        kept = text_of(&params, 1);
        ck_assert_str_eq(free_order, kept);
        ck_assert_ptr_null(strstr(kept, "host_order"));
        ck_assert_ptr_null(strstr(kept, "orders"));
        free(kept);
        free(free_order);
        xm_cluster_profile_destroy(profiles[i]);
    }
}
END_TEST

static ap_plan_t *moved_plan(const xm_cluster_profile_t *profile, ap_planner_params_t *params)
{
    ap_planner_result_t result;
    ap_plan_t *plan;

    *params = params_of(profile);
    params->layers = 0; /* the model's own, which is what explanations look at */
    params->min_stages = params->max_stages = 2;
    ck_assert_xm_ok(ap_planner_run(params, &result));
    plan = result.plan;
    result.plan = NULL;
    ap_planner_result_clear(&result);
    ck_assert_ptr_nonnull(ap_plan_info(plan)->host_order);
    return plan;
}

/* Who reads a plan beside the cluster's profile finds the numbers of the plan. */
START_TEST(readers_agree_on_moved_hosts)
{
    static const double nics[] = {1e9, 2e8, 1e9, 2e8};
    xm_cluster_profile_t *profile =
        planner_fixture_unequal(4, 2, 64e9, alternating, nics, _i == 0 ? 0 : 4);
    ap_planner_params_t params;
    ap_plan_t *plan = moved_plan(profile, &params), *again;
    const int *order = ap_plan_info(plan)->host_order;
    char path[] = "/tmp/planner-orders-XXXXXX";
    ap_explanation_t *explanation;
    bool told = false;

    /* Ranks are the cluster's own, and so are the NICs that reshardings need. */
    for (int s = 0, next = 0; s < 2; ++s) {
        const ap_plan_stage_t *stage = ap_plan_stage(plan, s);

        for (int d = 0; d < stage->hosts * stage->devices_per_host; ++d, ++next) {
            ck_assert_int_eq(stage->devices[d], order[next / 2] * 2 + next % 2);
        }
    }
    for (int l = 0; l < ap_plan_boundary(plan, 0)->link_count; ++l) {
        const ap_link_load_t *link = &ap_plan_boundary(plan, 0)->links[l];
        bool source = link->index == order[0] || link->index == order[1];

        ck_assert(!link->rack);
        ck_assert_double_gt(link->forward[source ? AP_LINK_OUT : AP_LINK_IN], 0.0);
        ck_assert_int_ge(link->index, l > 0 ? link[-1].index : 0);
    }
    ck_assert_xm_ok(ap_plan_verify(&params, plan));
    ck_assert_int_eq(planner_fixture_step_ns(plan, AP_SCHEDULE_1F1B, profile),
                     planner_fixture_step_ns(plan, AP_SCHEDULE_1F1B, NULL));
    ck_assert_int_eq(planner_fixture_step_ns(plan, AP_SCHEDULE_ZB_H1, profile),
                     planner_fixture_step_ns(plan, AP_SCHEDULE_ZB_H1, NULL));
    ck_assert_int_ge(close(mkstemp(path)), 0);
    ck_assert_xm_ok(ap_plan_save(plan, path));
    ck_assert_xm_ok(ap_plan_load(path, &again));
    ck_assert_str_eq(ap_plan_digest(again), ap_plan_digest(plan));
    (void)unlink(path);
    ck_assert_xm_ok(ap_explanation_create(again, profile, 1, &explanation));
    for (int d = 0; d < explanation->count; ++d) {
        const ap_decision_t *decision = &explanation->decisions[d];

        if (strcmp(decision->subject, "order of hosts") == 0) {
            told = true;
            ck_assert_str_eq(decision->runner_up, "the profile's");
            ck_assert_int_eq(strncmp(decision->chosen, "hosts ", 6), 0);
            ck_assert_double_gt(decision->runner_up_seconds, 0.0);
        }
        if (strstr(decision->subject, "logical mesh") != NULL &&
            decision->runner_up_seconds < INFINITY) {
            ck_assert_double_ge(decision->runner_up_seconds,
                                decision->chosen_seconds * (1.0 - 1e-6));
        }
    }
    ck_assert(told);
    ap_explanation_destroy(explanation);
    ap_plan_destroy(again);
    ap_plan_destroy(plan);
    xm_cluster_profile_destroy(profile);
}
END_TEST

/* The same hosts and stages, said to stand as in the profile: then a stage has slow devices too,
 * and claims more than they can do. */
START_TEST(verification_goes_by_the_order)
{
    xm_cluster_profile_t *profile = planner_fixture_unequal(4, 2, 64e9, alternating, NULL, 0);
    ap_planner_params_t params;
    ap_plan_t *plan = moved_plan(profile, &params), *changed;
    char *text = ap_plan_text(plan), *edited;
    json_t *document = json_loads(text, 0, NULL), *stages, *sides;
    int next = 0;

    (void)json_object_del(document, "digest");
    (void)json_object_del(json_object_get(document, "cluster"), "host_order");
    stages = json_object_get(document, "stages");
    sides = json_array_get(json_object_get(document, "reshardings"), 0);
    for (size_t s = 0; s < json_array_size(stages); ++s) {
        json_t *ranks = json_object_get(json_array_get(stages, s), "ranks");

        for (size_t d = 0; d < json_array_size(ranks); ++d) {
            (void)json_array_set_new(ranks, d, json_integer(next++));
        }
        (void)json_object_set(json_object_get(sides, s == 0 ? "src" : "dst"), "ranks", ranks);
    }
    edited = json_dumps(document, 0);
    ck_assert_xm_ok(ap_plan_parse("edited", edited, strlen(edited), &changed));
    ck_assert_xm_fails(ap_plan_verify(&params, changed), XM_ERR_MISMATCH, "seconds of");
    free(edited);
    json_decref(document);
    free(text);
    ap_plan_destroy(changed);
    ap_plan_destroy(plan);
    xm_cluster_profile_destroy(profile);
}
END_TEST

static const struct {
    const char *order, *sentence;
} bad_orders[] = {
    {"[0, 2, 1]", "bad: cluster: host_order must be a list of the 4 hosts"},
    {"7", "bad: cluster: host_order must be a list of the 4 hosts"},
    {"[0, 2, 1, 4]", "bad: cluster: entry 3 of host_order is not one of the hosts 0 to 3"},
    {"[0, -1, 1, 3]", "bad: cluster: entry 1 of host_order is not one of the hosts 0 to 3"},
    {"[0, 2, 1, \"3\"]", "bad: cluster: entry 3 of host_order is not one of the hosts 0 to 3"},
    {"[0, 2, 1, 2]", "bad: cluster: host_order has host 2 as its entries 1 and 3"},
    {"[0, 1, 2, 3]", "by the cluster's host_order"},
};

START_TEST(a_wrong_order_is_refused)
{
    xm_cluster_profile_t *profile = planner_fixture_unequal(4, 2, 64e9, alternating, NULL, 0);
    ap_planner_params_t params;
    ap_plan_t *plan = moved_plan(profile, &params), *changed = NULL;
    char *text = ap_plan_text(plan), *edited;
    json_t *document = json_loads(text, 0, NULL);

    (void)json_object_del(document, "digest");
    ck_assert_int_eq(json_object_set_new(json_object_get(document, "cluster"), "host_order",
                                         json_loads(bad_orders[_i].order, JSON_DECODE_ANY, NULL)),
                     0);
    edited = json_dumps(document, 0);
    ck_assert_xm_fails(ap_plan_parse("bad", edited, strlen(edited), &changed), XM_ERR_PARSE,
                       bad_orders[_i].sentence);
    free(edited);
    json_decref(document);
    free(text);
    ap_plan_destroy(plan);
    xm_cluster_profile_destroy(profile);
}
END_TEST

/* An order that the profile's racks cannot stand in, of a plan made without them. */
START_TEST(racks_are_not_torn_apart)
{
    xm_cluster_profile_t *flat = planner_fixture_unequal(4, 2, 64e9, alternating, NULL, 0);
    xm_cluster_profile_t *racks = planner_fixture_unequal(4, 2, 64e9, alternating, NULL, 2);
    ap_planner_params_t params;
    ap_plan_t *plan = moved_plan(flat, &params);

    params.profile = racks;
    ck_assert_xm_fails(ap_plan_verify(&params, plan), XM_ERR_INVALID_ARGUMENT, "of two racks");
    ap_plan_destroy(plan);
    xm_cluster_profile_destroy(racks);
    xm_cluster_profile_destroy(flat);
}
END_TEST

/* 252 orders: those tried give no worse plan than the profile's, and twice the same. */
START_TEST(where_there_are_too_many_some_are_tried)
{
    double shares[10], kept;
    xm_cluster_profile_t *profile;
    ap_planner_params_t params;
    char *once, *twice;

    for (int h = 0; h < 10; ++h) {
        shares[h] = h % 2 == 0 ? 1.0 : 0.5;
    }
    profile = planner_fixture_unequal(10, 1, 64e9, shares, NULL, 0);
    params = params_of(profile);
    params.max_stages = 3;
    params.all_submeshes = true;
    once = text_of(&params, 0);
    twice = text_of(&params, 0);
    ck_assert_str_eq(once, twice);
    ck_assert_ptr_nonnull(strstr(once, "hosts in the best of the orders tried"));
    params.keep_host_order = true;
    kept = step_of(&params);
    params.keep_host_order = false;
    ck_assert_double_lt(step_of(&params), kept);
    free(twice);
    free(once);
    xm_cluster_profile_destroy(profile);
}
END_TEST

int main(void)
{
    enum { CLUSTERS = 20, SANITIZED = 5 };
    Suite *suite = suite_create("planner_orders");
    TCase *tcase = tcase_create("all");

    tcase_set_timeout(tcase, 60);
    tcase_add_loop_test(tcase, no_other_order_is_faster, 0,
                        getenv("TEST_FEW") != NULL ? SANITIZED : CLUSTERS);
    tcase_add_test(tcase, like_hosts_come_together);
    tcase_add_test(tcase, a_slow_nic_stands_at_an_end);
    tcase_add_loop_test(tcase, cases_share_the_orders, 0, 2);
    tcase_add_test(tcase, alike_hosts_stay);
    tcase_add_loop_test(tcase, readers_agree_on_moved_hosts, 0, 2);
    tcase_add_test(tcase, verification_goes_by_the_order);
    tcase_add_loop_test(tcase, a_wrong_order_is_refused, 0,
                        (int)(sizeof(bad_orders) / sizeof(bad_orders[0])));
    tcase_add_test(tcase, racks_are_not_torn_apart);
    tcase_add_test(tcase, where_there_are_too_many_some_are_tried);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
