#include "resharding/simulate.h"

#include <math.h>
#include <stdio.h>

#include "random_relay.h"
#include "xm_test.h"

enum { RANKS = 32, MOST_CHUNKS = 40 };

/* ---- what a message occupies, from the words of network.h -------------------------------------
 */

enum { EGRESS, INGRESS, UPLINK, DOWNLINK, PORT_OUT, PORT_IN, RESOURCE_KINDS };

typedef struct {
    int kind[4], number[4], count;
    int64_t latency_ns;
} use_t;

static void add_use(use_t *use, int kind, int number)
{
    use->kind[use->count] = kind;
    use->number[use->count++] = number;
}

static use_t use_of(const xm_network_t *network, int sender, int receiver)
{
    int from = xm_network_host_of(network, sender), to = xm_network_host_of(network, receiver);
    use_t use = {.count = 0};

    if (from == to) {
        add_use(&use, PORT_OUT, sender);
        add_use(&use, PORT_IN, receiver);
        use.latency_ns = llround(1e9 * xm_network_host_latency(network));
        return use;
    }
    add_use(&use, EGRESS, from);
    add_use(&use, INGRESS, to);
    use.latency_ns = llround(1e9 * xm_network_nic_latency(network));
    if (xm_network_rack_of(network, from) != xm_network_rack_of(network, to) &&
        xm_network_uplink_bandwidth(network) > 0) {
        add_use(&use, UPLINK, xm_network_rack_of(network, from));
        add_use(&use, DOWNLINK, xm_network_rack_of(network, to));
    }
    return use;
}

static int64_t busy_ns(const xm_network_t *network, int kind, int number, uint64_t bytes)
{
    switch (kind) {
    case EGRESS:
        return xm_network_egress_ns(network, number, bytes);
    case INGRESS:
        return xm_network_ingress_ns(network, number, bytes);
    case UPLINK:
    case DOWNLINK:
        return xm_network_uplink_ns(network, bytes);
    default:
        return xm_network_port_ns(network, bytes);
    }
}

static double rate_of(const xm_network_t *network, int kind, int number)
{
    switch (kind) {
    case EGRESS:
        return xm_network_egress(network, number);
    case INGRESS:
        return xm_network_ingress(network, number);
    case UPLINK:
    case DOWNLINK:
        return xm_network_uplink_bandwidth(network);
    default:
        return xm_network_host_bandwidth(network);
    }
}

/* ---- all messages of a plan, one chunk of one hop each ------------------------------------------
 */

typedef struct {
    int64_t hop, task, first, end;
    uint64_t bytes;
    int sender, receiver;
    bool reads_source; /* its sender holds the slice */
    use_t use;
    int64_t next; /* message that delivered to the same (task, receiver) before, or −1 */
    int64_t start, arrived;
} message_t;

typedef struct {
    const xm_plan_t *plan;
    const xm_network_t *network;
    message_t *messages;
    int64_t count;
    int64_t *latest; /* by task and rank: the last message to it so far */
} trace_t;

static void trace_transfer(trace_t *trace, int64_t index)
{
    const xm_transfer_t *transfer = &trace->plan->draft.transfers[index];
    const xm_route_t *route = xm_plan_route(trace->plan, transfer->route);
    int64_t chunk = xm_plan_chunk_elements(trace->plan, transfer->task);
    int64_t size =
        xm_plan_tensor_element_size(trace->plan, trace->plan->tasks[transfer->task].tensor);

    if (xm_transfer_is_copy(transfer, route)) {
        return;
    }
    for (int64_t first = transfer->first; first < transfer->end; first += chunk) {
        for (int h = 0; h < route->count; ++h) {
            message_t *message = &trace->messages[trace->count++];

            *message =
                (message_t){.hop = xm_plan_first_hop(trace->plan, index) + h,
                            .task = transfer->task,
                            .first = first,
                            .end = first + chunk < transfer->end ? first + chunk : transfer->end,
                            .sender = xm_hop_sender(transfer, route, h),
                            .receiver = route->ranks[h],
                            .reads_source = route->parents[h] < 0 && transfer->parent < 0};
            message->bytes = (uint64_t)((message->end - first) * size);
            message->use = use_of(trace->network, message->sender, message->receiver);
        }
    }
}

static void trace_create(const xm_plan_t *plan, const xm_network_t *network, trace_t *trace)
{
    size_t pairs = (size_t)plan->task_count * RANKS + 1;
    int64_t most = 0;

    *trace = (trace_t){.plan = plan, .network = network};
    for (int64_t t = 0; t < plan->draft.transfer_count; ++t) {
        most +=
            xm_plan_chunks(plan, t) * xm_plan_route(plan, plan->draft.transfers[t].route)->count;
    }
    trace->messages = malloc(((size_t)most + 1) * sizeof(*trace->messages));
    trace->latest = malloc(pairs * sizeof(*trace->latest));
    ck_assert(trace->messages != NULL && trace->latest != NULL);
    for (size_t p = 0; p < pairs; ++p) {
        trace->latest[p] = -1;
    }
    for (int64_t t = 0; t < plan->draft.transfer_count; ++t) {
        trace_transfer(trace, t);
    }
    for (int64_t m = 0; m < trace->count; ++m) {
        message_t *message = &trace->messages[m];
        int64_t *latest = &trace->latest[message->task * RANKS + message->receiver];

        message->next = *latest;
        *latest = m;
    }
}

static void trace_destroy(trace_t *trace)
{
    free(trace->latest);
    free(trace->messages);
}

/* The next message towards its sender that brings elements of this one, −1 at the end. */
static int64_t next_source(const trace_t *trace, const message_t *message, int64_t after)
{
    int64_t m = after < 0 ? trace->latest[message->task * RANKS + message->sender]
                          : trace->messages[after].next;

    while (m >= 0 &&
           (trace->messages[m].end <= message->first || trace->messages[m].first >= message->end)) {
        m = trace->messages[m].next;
    }
    return m;
}

/* ---- exclusive ---------------------------------------------------------------------------------
 */

/* Message by message, in plan order: each starts when its data and all that it occupies are there.
 */
static int64_t run_exclusive(trace_t *trace)
{
    int64_t free_at[RESOURCE_KINDS][RANKS] = {{0}}, makespan = 0;

    for (int64_t m = 0; m < trace->count; ++m) {
        message_t *message = &trace->messages[m];
        int64_t longest = 0;

        if (!message->reads_source) {
            for (int64_t source = next_source(trace, message, -1); source >= 0;
                 source = next_source(trace, message, source)) {
                ck_assert_int_lt(source, m);
                if (trace->messages[source].arrived > message->start) {
                    message->start = trace->messages[source].arrived;
                }
            }
        }
        for (int u = 0; u < message->use.count; ++u) {
            int64_t at = free_at[message->use.kind[u]][message->use.number[u]];

            message->start = at > message->start ? at : message->start;
        }
        for (int u = 0; u < message->use.count; ++u) {
            int kind = message->use.kind[u], number = message->use.number[u];
            int64_t busy = busy_ns(trace->network, kind, number, message->bytes);

            free_at[kind][number] = message->start + busy;
            longest = busy > longest ? busy : longest;
        }
        message->arrived = message->start + longest + message->use.latency_ns;
        makespan = message->arrived > makespan ? message->arrived : makespan;
    }
    return makespan;
}

/* First start and last arrival of every hop, from the messages. */
static xm_span_t *spans_of(const trace_t *trace)
{
    xm_span_t *spans = calloc((size_t)xm_plan_hops(trace->plan) + 1, sizeof(*spans));

    ck_assert_ptr_nonnull(spans);
    for (int64_t m = trace->count - 1; m >= 0; --m) {
        const message_t *message = &trace->messages[m];
        xm_span_t *span = &spans[message->hop];

        span->start_ns = message->start;
        span->end_ns = message->arrived > span->end_ns ? message->arrived : span->end_ns;
    }
    return spans;
}

static void compare_exclusive(const xm_plan_t *plan, const random_batch_t *batch)
{
    int64_t makespan, expected;
    xm_span_t *spans = malloc(((size_t)xm_plan_hops(plan) + 1) * sizeof(*spans)), *reference;
    trace_t trace;

    ck_assert_ptr_nonnull(spans);
    ck_assert_xm_ok(xm_simulate(plan, batch->network, XM_SHARING_EXCLUSIVE, spans, &makespan));
    trace_create(plan, batch->network, &trace);
    expected = run_exclusive(&trace);
    reference = spans_of(&trace);
    ck_assert_msg(makespan == expected, "%lld ns, not %lld: %s", (long long)makespan,
                  (long long)expected, random_batch_text(batch));
    for (int64_t h = 0; h < xm_plan_hops(plan); ++h) {
        ck_assert_msg(spans[h].start_ns == reference[h].start_ns &&
                          spans[h].end_ns == reference[h].end_ns,
                      "hop %d is from %lld to %lld, not from %lld to %lld: %s", (int)h,
                      (long long)spans[h].start_ns, (long long)spans[h].end_ns,
                      (long long)reference[h].start_ns, (long long)reference[h].end_ns,
                      random_batch_text(batch));
    }
    ck_assert_xm_ok(xm_simulate(plan, batch->network, XM_SHARING_EXCLUSIVE, NULL, &makespan));
    ck_assert_int_eq(makespan, expected);
    free(reference);
    free(spans);
    trace_destroy(&trace);
}

START_TEST(exclusive_is_message_by_message_in_plan_order)
{
    random_t random = {41};
    int long_ones = 0;

    for (int i = 0; i < random_rounds(4000); ++i) {
        random_batch_t batch;
        xm_plan_t *plan;

        random_batch_create(&random, &batch);
        ck_assert_xm_ok(xm_plan_create(&batch.params, &plan));
        if (i % 2 == 0) {
            random_trees(&random, plan);
            random_chunks(&random, plan, 300);
        }
        if (i % 3 == 0) {
            (void)random_relay(&random, plan);
        }
        compare_exclusive(plan, &batch);
        for (int64_t t = 0; t < plan->draft.transfer_count; ++t) {
            long_ones += xm_plan_chunks(plan, t) > 20;
        }
        xm_plan_destroy(plan);
        random_batch_destroy(&batch);
    }
    ck_assert_int_gt(long_ones, random_rounds(4000)); /* the simulation's short cut is taken */
}
END_TEST

/* The network simulated on need not be the one that was planned for. */
START_TEST(any_network_will_do)
{
    random_t random = {42};
    int different = 0;

    for (int i = 0; i < random_rounds(200); ++i) {
        random_batch_t batch, other;
        xm_plan_t *plan;
        int64_t own, foreign;

        random_batch_create(&random, &batch);
        random_batch_create(&random, &other);
        ck_assert_xm_ok(xm_plan_create(&batch.params, &plan));
        if (other.ranks >= batch.ranks) {
            xm_network_t *network = batch.network;

            ck_assert_xm_ok(xm_simulate(plan, network, XM_SHARING_EXCLUSIVE, NULL, &own));
            ck_assert_int_eq(own, xm_plan_makespan_ns(plan));
            batch.network = other.network;
            compare_exclusive(plan, &batch);
            ck_assert_xm_ok(xm_simulate(plan, batch.network, XM_SHARING_EXCLUSIVE, NULL, &foreign));
            different += own != foreign;
            batch.network = network;
        }
        xm_plan_destroy(plan);
        random_batch_destroy(&other);
        random_batch_destroy(&batch);
    }
    ck_assert_int_gt(different, 0);
}
END_TEST

/* ---- fair --------------------------------------------------------------------------------------
 */

typedef struct {
    trace_t trace;
    double *left, *rate, *due; /* by message; due: when it arrives once it has left */
    bool *moving, *arrived;
} flows_t;

static double used_of(const flows_t *f, int kind, int number)
{
    double used = 0;

    for (int64_t m = 0; m < f->trace.count; ++m) {
        const use_t *use = &f->trace.messages[m].use;

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
        const use_t *use = &f->trace.messages[m].use;
        bool limited = !f->moving[m];

        for (int u = 0; f->moving[m] && u < use->count; ++u) {
            double rate = rate_of(f->trace.network, use->kind[u], use->number[u]) * 1e-9;
            double used = used_of(f, use->kind[u], use->number[u]);
            bool most = true;

            ck_assert_double_le(used, rate * (1 + 1e-9));
            for (int64_t n = 0; n < f->trace.count; ++n) {
                const use_t *other = &f->trace.messages[n].use;

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
static double headroom(const flows_t *f, const bool *settled, const use_t *use, int u)
{
    int open = 0;

    for (int64_t m = 0; m < f->trace.count; ++m) {
        const use_t *other = &f->trace.messages[m].use;

        for (int v = 0; f->moving[m] && !settled[m] && v < other->count; ++v) {
            open += other->kind[v] == use->kind[u] && other->number[v] == use->number[u];
        }
    }
    return (rate_of(f->trace.network, use->kind[u], use->number[u]) * 1e-9 -
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
            const use_t *use = &f->trace.messages[m].use;
            bool full = false;

            for (int u = 0; f->moving[m] && !settled[m] && u < use->count; ++u) {
                double rate = rate_of(f->trace.network, use->kind[u], use->number[u]) * 1e-9;

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
        message_t *message = &f->trace.messages[m];
        bool may = !started[m];

        for (int64_t n = 0; may && n < m; ++n) {
            may = f->trace.messages[n].sender != message->sender ||
                  f->trace.messages[n].receiver != message->receiver || f->left[n] <= 0;
        }
        for (int64_t source = message->reads_source ? -1 : next_source(&f->trace, message, -1);
             may && source >= 0; source = next_source(&f->trace, message, source)) {
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
    trace_create(plan, batch->network, &f.trace);
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
    reference = spans_of(&f.trace);
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
    trace_destroy(&f.trace);
    free(spans);
}

START_TEST(fair_agrees_with_small_steps)
{
    random_t random = {43};
    int checked = 0;

    while (checked < random_rounds(300)) {
        random_batch_t batch;
        xm_plan_t *plan;
        int64_t messages = 0;

        random_batch_create(&random, &batch);
        ck_assert_xm_ok(xm_plan_create(&batch.params, &plan));
        random_chunks(&random, plan, 3);
        random_trees(&random, plan);
        (void)random_relay(&random, plan);
        for (int64_t t = 0; t < plan->draft.transfer_count; ++t) {
            messages += xm_plan_chunks(plan, t) *
                        xm_plan_route(plan, plan->draft.transfers[t].route)->count;
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

    for (int i = 0; i < random_rounds(1500); ++i) {
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

/* ---- by hand -----------------------------------------------------------------------------------
 */

/* Bytes from ranks 0 … to the ranks behind them; two ranks on a host; NICs of 1 byte/ns. */
typedef struct {
    xm_network_t *network;
    xm_plan_t *plan;
} small_t;

static void small_create(const char *src_mesh, const char *src_spec, const char *dst_mesh,
                         const char *dst_spec, int64_t bytes, double slow_ingress, small_t *s)
{
    xm_network_params_t network = XM_NETWORK_PARAMS_INIT;
    xm_plan_params_t params = XM_PLAN_PARAMS_INIT;
    double egress[16], ingress[16];
    int host_of[16];
    xm_mesh_t *meshes[2];
    xm_layout_t *src, *dst;
    xm_spec_t spec;

    ck_assert_xm_ok(xm_mesh_parse(src_mesh, NULL, 0, &meshes[0]));
    ck_assert_xm_ok(
        xm_mesh_parse(dst_mesh, NULL, (xm_mesh_size(meshes[0]) + 1) / 2 * 2, &meshes[1]));
    network.ranks = xm_mesh_max_rank(meshes[1]) + 1;
    for (int r = 0; r < 16; ++r) {
        host_of[r] = r / 2;
        egress[r] = ingress[r] = 1e9;
    }
    ingress[(network.ranks - 1) / 2] = slow_ingress;
    network.host_of_rank = host_of;
    network.egress = egress;
    network.ingress = ingress;
    network.nic_latency = 5e-6;
    network.host_bandwidth = 1e10;
    network.host_latency = 1e-6;
    ck_assert_xm_ok(xm_network_create(&network, &s->network));
    ck_assert_xm_ok(xm_spec_parse(src_spec, &spec));
    ck_assert_xm_ok(xm_layout_create(meshes[0], &spec, XM_PARTITION_EVEN, &bytes, &src));
    ck_assert_xm_ok(xm_spec_parse(dst_spec, &spec));
    ck_assert_xm_ok(xm_layout_create(meshes[1], &spec, XM_PARTITION_EVEN, &bytes, &dst));
    params.src = src;
    params.dst = dst;
    params.element_size = 1;
    params.network = s->network;
    params.scheduler = XM_SCHEDULER_NAIVE;
    ck_assert_xm_ok(xm_plan_create(&params, &s->plan));
    for (int64_t t = 0; t < s->plan->task_count; ++t) {
        int64_t *chunk = &s->plan->draft.chunk_elements[t];

        *chunk = s->plan->tasks[t].elements < 100000 ? s->plan->tasks[t].elements : 100000;
    }
    xm_layout_destroy(dst);
    xm_layout_destroy(src);
    xm_mesh_destroy(meshes[1]);
    xm_mesh_destroy(meshes[0]);
}

static void expect(const char *src_mesh, const char *src_spec, const char *dst_mesh,
                   const char *dst_spec, int64_t bytes, double slow_ingress, int64_t exclusive,
                   int64_t fair)
{
    small_t s;
    int64_t makespan;

    small_create(src_mesh, src_spec, dst_mesh, dst_spec, bytes, slow_ingress, &s);
    ck_assert_xm_ok(xm_simulate(s.plan, s.network, XM_SHARING_EXCLUSIVE, NULL, &makespan));
    ck_assert_int_eq(makespan, exclusive);
    ck_assert_xm_ok(xm_simulate(s.plan, s.network, XM_SHARING_FAIR, NULL, &makespan));
    ck_assert_int_ge(makespan, fair);
    ck_assert_int_le(makespan, fair + 1);
    xm_plan_destroy(s.plan);
    xm_network_destroy(s.network);
}

START_TEST(hand_made_cases)
{
    /* One message, or ten chunks: the bytes and the latency, once. */
    expect("1", "R", "1", "R", 50000, 1e9, 55000, 55000);
    expect("1", "R", "1", "R", 1000000, 1e9, 1005000, 1005000);
    /* A slow receiver. */
    expect("1", "R", "1", "R", 1000000, 2.5e8, 4005000, 4005000);
    /* Two flows share both NICs: twice as long. */
    expect("2", "S0", "2", "S0", 2000000, 1e9, 2005000, 2005000);
    /* Two flows on two pairs of hosts do not. */
    expect("4", "S0", "4", "S0", 4000000, 1e9, 2005000, 2005000);
    /* Two chains over three hosts, one after the other or at half the rate each: two chunks' times
     * and three latencies to fill them. */
    expect("1", "R", "3x2", "S1", 2000000, 1e9, 2215000, 2415000);
}
END_TEST

/* Max-min shares: 250 MB/s to the slow host leave 750 MB/s to the other. */
START_TEST(the_scarcest_resource_decides)
{
    small_t s;
    int64_t makespan;
    xm_span_t spans[4];

    small_create("1", "R", "4x1", "S0", 4000000, 2.5e8, &s);
    ck_assert_xm_ok(xm_simulate(s.plan, s.network, XM_SHARING_FAIR, spans, &makespan));
    for (int64_t t = 0; t < 4; ++t) {
        int to = xm_plan_route(s.plan, s.plan->draft.transfers[t].route)->ranks[0];
        int64_t end = to < 4 ? 2671667 : 8005000;

        ck_assert_int_eq(spans[t].start_ns, 0);
        ck_assert_int_ge(spans[t].end_ns, end - 1);
        ck_assert_int_le(spans[t].end_ns, end + 1);
    }
    xm_plan_destroy(s.plan);
    xm_network_destroy(s.network);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("simulate");
    TCase *tcase = tcase_create("all");

    tcase_set_timeout(tcase, 600);
    tcase_add_test(tcase, exclusive_is_message_by_message_in_plan_order);
    tcase_add_test(tcase, any_network_will_do);
    tcase_add_test(tcase, fair_agrees_with_small_steps);
    tcase_add_test(tcase, fair_is_not_below_the_bound);
    tcase_add_test(tcase, hand_made_cases);
    tcase_add_test(tcase, the_scarcest_resource_decides);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
