/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>

#include "tests/resharding/plan/plan_mutation.h"
#include "tests/resharding/plan/random_relay.h"
#include "xm_test.h"

/* A copy of the parts of a plan that mutations change. Routes they add stand behind `routes`. */
typedef struct {
    xm_transfer_t *transfers;
    xm_unit_task_t *tasks;
    int64_t *chunk_elements;
    int64_t transfer_count, task_count;
    int routes;
} saved_t;

static void *copy_of(const void *items, size_t size)
{
    void *copy = malloc(size + 1);

    ck_assert_ptr_nonnull(copy);
    if (size > 0) {
        memcpy(copy, items, size);
    }
    return copy;
}

static void save(const xm_plan_t *plan, saved_t *saved)
{
    const xm_builder_t *builder = &plan->builder;

    *saved = (saved_t){.transfer_count = builder->transfer_count,
                       .task_count = plan->task_count,
                       .routes = builder->route_count};
    saved->transfers =
        copy_of(builder->transfers, (size_t)builder->transfer_count * sizeof(*builder->transfers));
    saved->tasks = copy_of(plan->tasks, (size_t)plan->task_count * sizeof(*plan->tasks));
    saved->chunk_elements = copy_of(builder->chunk_elements,
                                    (size_t)plan->task_count * sizeof(*builder->chunk_elements));
}

static void restore(xm_plan_t *plan, const saved_t *saved)
{
    xm_builder_t *builder = &plan->builder;

    while (builder->route_count > saved->routes) {
        free((int *)(uintptr_t)builder->routes[--builder->route_count].ranks);
    }
    builder->transfer_count = saved->transfer_count;
    plan->task_count = saved->task_count;
    memcpy(builder->transfers, saved->transfers,
           (size_t)saved->transfer_count * sizeof(*builder->transfers));
    memcpy(plan->tasks, saved->tasks, (size_t)saved->task_count * sizeof(*plan->tasks));
    memcpy(builder->chunk_elements, saved->chunk_elements,
           (size_t)saved->task_count * sizeof(*builder->chunk_elements));
}

static void saved_clear(saved_t *saved)
{
    free(saved->chunk_elements);
    free(saved->tasks);
    free(saved->transfers);
}

enum { ATTEMPTS = 60, PLACES = 10 };

/* Applies every kind of mutation at random places of one plan, one at a time. */
static void mutate_plan(random_t *random, const random_batch_t *batch, xm_plan_t *plan,
                        int64_t *applied)
{
    saved_t saved;

    save(plan, &saved);
    for (int kind = 0; kind < PLAN_MUTATIONS; ++kind) {
        int places = 0;

        for (int attempt = 0; attempt < ATTEMPTS && places < PLACES; ++attempt) {
            int64_t at = (int64_t)(xm_random_next(random) % (uint64_t)plan->builder.transfer_count);

            if (plan_mutations[kind].apply(random, plan, at)) {
                ++places;
                ck_assert_msg(xm_plan_verify(plan) == XM_ERR_CORRUPT,
                              "passed: %s (transfer %d); %s", plan_mutations[kind].name, (int)at,
                              random_batch_text(batch));
            }
            restore(plan, &saved);
        }
        applied[kind] += places;
    }
    ck_assert_xm_ok(xm_plan_verify(plan));
    saved_clear(&saved);
}

static int64_t fewest(const int64_t applied[PLAN_MUTATIONS])
{
    int64_t least = INT64_MAX;

    for (int kind = 0; kind < PLAN_MUTATIONS; ++kind) {
        least = applied[kind] < least ? applied[kind] : least;
    }
    return least;
}

START_TEST(every_mutation_is_caught)
{
    random_t random = {21};
    int64_t applied[PLAN_MUTATIONS] = {0};
    int relayed = 0, enough = xm_test_rounds(200);

    /* Some can seldom be applied. */
    for (int i = 0; i < 1500 && (i < xm_test_rounds(1500) || fewest(applied) < enough); ++i) {
        random_batch_t batch;
        xm_plan_t *plan;

        random_batch_create(&random, &batch);
        ck_assert_xm_ok(xm_plan_create(&batch.params, &plan));
        if (plan->builder.transfer_count > 0) {
            relayed += i % 3 != 0 ? random_relay(&random, plan) : 0;
            mutate_plan(&random, &batch, plan, applied);
        }
        xm_plan_destroy(plan);
        random_batch_destroy(&batch);
    }
    ck_assert_int_gt(relayed, 0);
    for (int kind = 0; kind < PLAN_MUTATIONS; ++kind) {
        ck_assert_msg(applied[kind] >= enough, "%s: applied %d times", plan_mutations[kind].name,
                      (int)applied[kind]);
    }
}
END_TEST

/* A holder in place of another, or a different order of unrelated transfers: still right. */
START_TEST(right_plans_pass)
{
    random_t random = {22};
    int replaced = 0, swapped = 0;

    for (int i = 0; i < xm_test_rounds(300); ++i) {
        random_batch_t batch;
        xm_plan_t *plan;

        random_batch_create(&random, &batch);
        ck_assert_xm_ok(xm_plan_create(&batch.params, &plan));
        (void)random_relay(&random, plan);
        for (int64_t t = 0; t < plan->builder.transfer_count; ++t) {
            xm_transfer_t *transfer = &plan->builder.transfers[t];
            int rank = random_int(&random, 0, plan->ranks - 1);

            if (transfer->parent < 0 && plan_holds(plan, transfer->task, rank) &&
                !xm_transfer_is_copy(transfer, plan_route_of(plan, transfer)) &&
                !plan_needs(plan, transfer->task, rank)) {
                replaced += transfer->sender != rank;
                transfer->sender = rank;
            }
        }
        ck_assert_xm_ok(xm_plan_verify(plan));
        for (int64_t t = 0; t + 1 < plan->builder.transfer_count; ++t) {
            xm_transfer_t *transfers = plan->builder.transfers, first = transfers[t];
            bool relays = false;

            for (int64_t u = t; u < plan->builder.transfer_count; ++u) {
                relays = relays || transfers[u].parent == t || transfers[u].parent == t + 1;
            }
            if (!relays) {
                transfers[t] = transfers[t + 1];
                transfers[t + 1] = first;
                ++swapped;
            }
        }
        ck_assert_xm_ok(xm_plan_verify(plan));
        xm_plan_destroy(plan);
        random_batch_destroy(&batch);
    }
    ck_assert_int_gt(replaced, 0);
    ck_assert_int_gt(swapped, 0);
}
END_TEST

START_TEST(sentences_name_the_violation)
{
    random_t random = {1};
    random_batch_t batch;
    xm_plan_t *plan;
    saved_t saved;
    char expected[128];

    for (;;) {
        random_batch_create(&random, &batch);
        ck_assert_xm_ok(xm_plan_create(&batch.params, &plan));
        if (plan->builder.transfer_count >= 3 && plan->builder.transfers[2].parent < 0) {
            break;
        }
        xm_plan_destroy(plan);
        random_batch_destroy(&batch);
    }
    save(plan, &saved);
    plan->builder.transfers[2].sender = 1000;
    (void)snprintf(expected, sizeof(expected),
                   "transfer 2: rank 1000 sends task %d, which it does not hold",
                   (int)plan->builder.transfers[2].task);
    ck_assert_xm_fails(xm_plan_verify(plan), XM_ERR_CORRUPT, expected);
    restore(plan, &saved);
    route_ranks(plan_own_route(plan, &plan->builder.transfers[2]))[0] = 1000;
    (void)snprintf(expected, sizeof(expected), "route %d: entry 0 is rank 1000", saved.routes);
    ck_assert_xm_fails(xm_plan_verify(plan), XM_ERR_CORRUPT, expected);
    restore(plan, &saved);
    plan->builder.chunk_elements[0] = 0;
    ck_assert_xm_fails(xm_plan_verify(plan), XM_ERR_CORRUPT, "task 0 has chunks of 0 elements");
    restore(plan, &saved);
    ++plan->tasks[0].elements;
    (void)snprintf(expected, sizeof(expected), "tile %d have %lld in common",
                   plan->tasks[0].dst_tile, (long long)saved.tasks[0].elements);
    ck_assert_xm_fails(xm_plan_verify(plan), XM_ERR_CORRUPT, expected);
    restore(plan, &saved);
    ck_assert_xm_ok(xm_plan_verify(plan));
    saved_clear(&saved);
    xm_plan_destroy(plan);
    random_batch_destroy(&batch);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("verify");
    TCase *tcase = tcase_create("all");

    tcase_set_timeout(tcase, 600);
    tcase_add_test(tcase, every_mutation_is_caught);
    tcase_add_test(tcase, right_plans_pass);
    tcase_add_test(tcase, sentences_name_the_violation);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
