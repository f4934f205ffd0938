/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdio.h>

#include "tests/resharding/plan/message_trace.h"
#include "tests/resharding/plan/random_relay.h"
#include "xm_test.h"

enum { MOST_CHUNKS = 40 };

typedef struct {
    message_trace_t trace;
    double *left, *rate, *due; /* by message; due: when it arrives once it has left */
    bool *moving, *arrived;
} flows_t;

static double used_of(const flows_t *f, int kind, int number)
{
    double used = 0;

    for (int64_t m = 0; m < f->trace.count; ++m) {
        const message_use_t *use = &f->trace.messages[m].use;

        for (int u = 0; f->moving[m] && u < use->count; ++u) {
            used += use->kind[u] == kind && use->number[u] == number ? f->rate[m] : 0;
        }
    }
    return used;
}

/* Max-min fair: every flow has a full resource of which it has as much as any other flow. */
static void check_shares(const flows_t *f)
{
    for (int64_t m = 0; m < f->trace.count; ++m) {
        const message_use_t *use = &f->trace.messages[m].use;
        bool limited = !f->moving[m];

        for (int u = 0; f->moving[m] && u < use->count; ++u) {
            double rate = resource_rate(f->trace.network, use->kind[u], use->number[u]) * 1e-9;
            double used = used_of(f, use->kind[u], use->number[u]);
            bool most = true;

            ck_assert_double_le(used, rate * (1 + 1e-9));
            for (int64_t n = 0; n < f->trace.count; ++n) {
                const message_use_t *other = &f->trace.messages[n].use;

                for (int v = 0; f->moving[n] && v < other->count; ++v) {
                    most = most &&
                           (other->kind[v] != use->kind[u] || other->number[v] != use->number[u] ||
                            f->rate[n] <= f->rate[m] * (1 + 1e-9));
                }
            }
            limited = limited || (most && used >= rate * (1 - 1e-9));
        }
        ck_assert(limited);
    }
}

/* How much more the flows that are not settled may all have. */
static double headroom(const flows_t *f, const bool *settled, const message_use_t *use, int u)
{
    int open = 0;

    for (int64_t m = 0; m < f->trace.count; ++m) {
        const message_use_t *other = &f->trace.messages[m].use;

        for (int v = 0; f->moving[m] && !settled[m] && v < other->count; ++v) {
            open += other->kind[v] == use->kind[u] && other->number[v] == use->number[u];
        }
    }
    return (resource_rate(f->trace.network, use->kind[u], use->number[u]) * 1e-9 -
            used_of(f, use->kind[u], use->number[u])) /
           open;
}

/* All flows grow together; those that meet a full resource stay behind. */
static void share(flows_t *f)
{
    bool *settled = calloc((size_t)f->trace.count + 1, sizeof(*settled));
    int64_t open = 0;

    ck_assert_ptr_nonnull(settled);
    for (int64_t m = 0; m < f->trace.count; ++m) {
        f->rate[m] = 0;
        open += f->moving[m];
    }
    while (open > 0) {
        double least = INFINITY;

        for (int64_t m = 0; m < f->trace.count; ++m) {
            for (int u = 0; f->moving[m] && !settled[m] && u < f->trace.messages[m].use.count;
                 ++u) {
                least = fmin(least, headroom(f, settled, &f->trace.messages[m].use, u));
            }
        }
        for (int64_t m = 0; m < f->trace.count; ++m) {
            f->rate[m] += f->moving[m] && !settled[m] ? least : 0;
        }
        for (int64_t m = 0; m < f->trace.count; ++m) {
            const message_use_t *use = &f->trace.messages[m].use;
            bool full = false;

            for (int u = 0; f->moving[m] && !settled[m] && u < use->count; ++u) {
                double rate = resource_rate(f->trace.network, use->kind[u], use->number[u]) * 1e-9;

                full = full || used_of(f, use->kind[u], use->number[u]) >= rate * (1 - 1e-12);
            }
            settled[m] = settled[m] || full;
            open -= full;
        }
    }
    free(settled);
    check_shares(f);
}

/* Starts what may start: earlier messages between the same two ranks have left, its data is there.
 * Returns whether any did. */
static bool start_messages(flows_t *f, double now, bool *started)
{
    bool any = false;

    for (int64_t m = 0; m < f->trace.count; ++m) {
        traced_message_t *message = &f->trace.messages[m];
        bool may = !started[m];

        for (int64_t n = 0; may && n < m; ++n) {
            may = f->trace.messages[n].sender != message->sender ||
                  f->trace.messages[n].receiver != message->receiver || f->left[n] <= 0;
        }
        for (int64_t source = message->reads_source ? -1
                                                    : message_trace_source(&f->trace, message, -1);
             may && source >= 0; source = message_trace_source(&f->trace, message, source)) {
            may = f->arrived[source];
        }
        if (may) {
            started[m] = f->moving[m] = any = true;
            message->start = llround(now);
        }
    }
    return any;
}

/* Steps of equal length, so short that what happens within one does not count. */
static double run_fair(flows_t *f, double step)
{
    bool *started = calloc((size_t)f->trace.count + 1, sizeof(*started));
    int64_t arrived = 0;
    bool changed = true;
    double now = 0;

    ck_assert_ptr_nonnull(started);
    while (arrived < f->trace.count) {
        if (changed) {
            while (start_messages(f, now, started)) {
            }
            share(f);
            changed = false;
        }
        now += step;
        for (int64_t m = 0; m < f->trace.count; ++m) {
            if (f->moving[m]) {
                f->left[m] -= f->rate[m] * step;
                if (f->left[m] <= 0) {
                    f->moving[m] = false;
                    changed = true;
                    f->due[m] = now + (double)f->trace.messages[m].use.latency_ns;
                }
            }
            if (started[m] && !f->moving[m] && !f->arrived[m] && f->due[m] <= now) {
                f->arrived[m] = changed = true;
                f->trace.messages[m].arrived = llround(now);
                ++arrived;
            }
        }
    }
    free(started);
    return now;
}

static void compare_fair(const xm_plan_t *plan, const random_batch_t *batch)
{
    size_t count;
    int64_t makespan;
    double expected, tolerance;
    xm_span_t *spans = malloc(((size_t)xm_plan_hops(plan) + 1) * sizeof(*spans)), *reference;
    flows_t f;

    ck_assert_ptr_nonnull(spans);
    ck_assert_xm_ok(xm_simulate(plan, batch->network, XM_SHARING_FAIR, spans, &makespan));
    message_trace_create(plan, batch->network, &f.trace);
    count = (size_t)f.trace.count + 1;
    f.left = calloc(count, sizeof(double));
    f.rate = calloc(count, sizeof(double));
    f.due = calloc(count, sizeof(double));
    f.moving = calloc(count, sizeof(bool));
    f.arrived = calloc(count, sizeof(bool));
    ck_assert(f.left != NULL && f.rate != NULL && f.due != NULL && f.moving != NULL &&
              f.arrived != NULL);
    for (int64_t m = 0; m < f.trace.count; ++m) {
        f.left[m] = (double)f.trace.messages[m].bytes;
    }
    tolerance = 1e-3 * (double)makespan;
    /* Every message may be noticed a step late, at its end and at its arrival. */
    expected = run_fair(&f, tolerance / (double)(2 * f.trace.count + 2));
    reference = message_trace_spans(&f.trace);
    ck_assert_msg(fabs((double)makespan - expected) <= tolerance + 2, "%lld ns, not %.0f: %s",
                  (long long)makespan, expected, random_batch_text(batch));
    for (int64_t h = 0; h < xm_plan_hops(plan); ++h) {
        ck_assert_double_eq_tol((double)spans[h].start_ns, (double)reference[h].start_ns,
                                tolerance + 2);
        ck_assert_double_eq_tol((double)spans[h].end_ns, (double)reference[h].end_ns,
                                tolerance + 2);
    }
    free(reference);
    free(f.arrived);
    free(f.moving);
    free(f.due);
    free(f.rate);
    free(f.left);
    message_trace_destroy(&f.trace);
    free(spans);
}

START_TEST(fair_agrees_with_small_steps)
{
    random_t random = {43};
    int checked = 0;

    while (checked < xm_test_rounds(300)) {
        random_batch_t batch;
        xm_plan_t *plan;
        int64_t messages = 0;

        random_batch_create(&random, &batch);
        ck_assert_xm_ok(xm_plan_create(&batch.params, &plan));
        random_chunks(&random, plan, 3);
        random_trees(&random, plan);
        (void)random_relay(&random, plan);
        for (int64_t t = 0; t < plan->builder.transfer_count; ++t) {
            messages += xm_plan_chunks(plan, t) *
                        xm_plan_route(plan, plan->builder.transfers[t].route)->count;
        }
        if (messages >= 3 && messages <= 40 && xm_plan_makespan_ns(plan) > 100) {
            compare_fair(plan, &batch);
            ++checked;
        }
        xm_plan_destroy(plan);
        random_batch_destroy(&batch);
    }
}
END_TEST

START_TEST(fair_is_not_below_the_bound)
{
    random_t random = {44};

    for (int i = 0; i < xm_test_rounds(1500); ++i) {
        random_batch_t batch;
        xm_plan_t *plan;
        int64_t makespan;

        random_batch_create(&random, &batch);
        ck_assert_xm_ok(xm_plan_create(&batch.params, &plan));
        random_chunks(&random, plan, MOST_CHUNKS);
        ck_assert_xm_ok(xm_simulate(plan, batch.network, XM_SHARING_FAIR, NULL, &makespan));
        ck_assert_msg(makespan >= xm_plan_bound_ns(plan), "%lld ns, bound %lld: %s",
                      (long long)makespan, (long long)xm_plan_bound_ns(plan),
                      random_batch_text(&batch));
        xm_plan_destroy(plan);
        random_batch_destroy(&batch);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("simulate_fair");
    TCase *tcase = tcase_create("all");

    tcase_set_timeout(tcase, 600);
    tcase_add_test(tcase, fair_agrees_with_small_steps);
    tcase_add_test(tcase, fair_is_not_below_the_bound);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
