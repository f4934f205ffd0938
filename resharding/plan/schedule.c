/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Turns a plan's tasks into transfers: chooses a strategy for each task, asks a scheduler
 * for the order, fills the plan builder and simulates the result.
 */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

#include "comm/base.h"
#include "resharding/plan/bundles.h"
#include "resharding/plan/simulate.h"
#include "resharding/layout.h"

enum {
    NODE_BUDGET = 200000,
    LARGEST_CHUNK = 8 * 1024 * 1024, /* as much as an executor packs at once (execute.h) */
    HOST_CHUNKS = 8 /* chunks of slices that stay inside a host may be so much larger */
};

static const char *const scheduler_names[XM_SCHEDULER_COUNT] = {"naive",  "balance",  "dfs",
                                                                "greedy", "openshop", "auto"};

const char *xm_scheduler_name(xm_scheduler_t scheduler)
{
    return scheduler_names[scheduler];
}

xm_status_t xm_scheduler_parse(const char *name, xm_scheduler_t *scheduler)
{
    int index;

    XM_NEED_ARGUMENTS(name, scheduler);
    XM_TRY(xm_text_choose("scheduler", name, scheduler_names, XM_SCHEDULER_COUNT, &index));
    *scheduler = (xm_scheduler_t)index;
    return XM_OK;
}

/* The error of every allocation in this file, with the size of the problem. */
static xm_status_t no_memory(const xm_scheduling_t *s)
{
    return XM_NO_MEMORY("scheduling %" PRId64 " unit tasks", s->plan->task_count);
}

/* One demand with the lists of rails that the lanes own, not copies of them. */
static void add_demand(xm_scheduling_t *s, const xm_item_t *item, int64_t bytes, const int *rails,
                       int count)
{
    int64_t class = s->classes->class_of[item->task];

    s->items[s->count] = *item;
    s->demands[s->count++] = (xm_demand_t){.bytes = bytes,
                                           .holders = s->lanes.holders[class].rails,
                                           .holder_count = s->lanes.holders[class].count,
                                           .receivers = rails,
                                           .receiver_count = count};
}

/* The number of demands that a task may be: one for each receiver or receiving host that its
 * strategy serves by itself, or one for each lane. */
static int64_t demands_of(const xm_scheduling_t *s, int64_t task)
{
    int64_t index = s->classes->class_of[task];
    const xm_class_t *class = &s->classes->classes[index];

    switch (s->strategy[task]) {
    case XM_STRATEGY_SEND_RECV:
        return class->remote_count;
    case XM_STRATEGY_LOCAL_ALLGATHER:
        return class->remote_host_count;
    case XM_STRATEGY_GLOBAL_ALLGATHER:
        return class->remote_count > 0;
    default:
        return s->lanes.by_class[index].end - s->lanes.by_class[index].first;
    }
}

/* With send_recv each receiver gets a message of its own, so that a host with several receivers
 * takes the data in several times. */
static void add_receivers(xm_scheduling_t *s, int64_t task, const xm_class_t *class)
{
    for (int r = 0; r < class->remote_count; ++r) {
        int receiver = class->remote[r];
        const xm_item_t item = {task, {0, s->plan->tasks[task].elements}, receiver, -1};

        add_demand(s, &item, xm_task_bytes(s->plan, task), &s->lanes.rail_of[receiver], 1);
    }
}

static void add_lanes(xm_scheduling_t *s, int64_t task, const xm_class_t *class)
{
    const xm_lane_range_t *lanes = &s->lanes.by_class[s->classes->class_of[task]];
    int64_t size = s->plan->tensors[s->plan->tasks[task].tensor].element_size;

    for (int64_t l = lanes->first; l < lanes->end; ++l) {
        const xm_lane_t *lane = &s->lanes.lanes[l];
        const xm_item_t item = {task, xm_lane_part(&s->lanes, s->plan, lane, task), -1, -1};

        if (item.part.first < item.part.end) {
            add_demand(s, &item, (item.part.end - item.part.first) * size, lane->rails,
                       class->remote_host_count);
        }
    }
}

/* The published strategies know one NIC a host, so they have the rails of a class's first lane:
 * those of one receiving host by itself, or (−1) of all together. */
static void add_published(xm_scheduling_t *s, int64_t task, const xm_class_t *class, int host)
{
    const xm_lane_range_t *lanes = &s->lanes.by_class[s->classes->class_of[task]];
    const int *rails = s->lanes.lanes[lanes->first].rails;
    const xm_item_t item = {task, {0, s->plan->tasks[task].elements}, -1, host};

    add_demand(s, &item, xm_published_bytes(s->plan, class, task, host),
               host < 0 ? rails : rails + host, host < 0 ? class->remote_host_count : 1);
}

static void add_demands(xm_scheduling_t *s, int64_t task)
{
    const xm_class_t *class = &s->classes->classes[s->classes->class_of[task]];

    switch (s->strategy[task]) {
    case XM_STRATEGY_SEND_RECV:
        add_receivers(s, task, class);
        break;
    case XM_STRATEGY_LOCAL_ALLGATHER:
        for (int h = 0; h < class->remote_host_count; ++h) {
            add_published(s, task, class, h);
        }
        break;
    case XM_STRATEGY_GLOBAL_ALLGATHER:
        if (class->remote_count > 0) {
            add_published(s, task, class, -1);
        }
        break;
    default:
        add_lanes(s, task, class);
    }
}

/* Lists what must cross the network, task by task. Tasks that stay inside hosts are not
 * scheduled, as they use no NIC. */
static xm_status_t list_demands(xm_scheduling_t *s)
{
    int64_t room = 1;

    for (int64_t t = 0; t < s->plan->task_count; ++t) {
        room += demands_of(s, t);
    }
    s->count = 0;
    s->demands = malloc((size_t)room * sizeof(*s->demands));
    s->items = malloc((size_t)room * sizeof(*s->items));
    if (s->demands == NULL || s->items == NULL) {
        return no_memory(s);
    }
    for (int64_t t = 0; t < s->plan->task_count; ++t) {
        add_demands(s, t);
    }
    return XM_OK;
}

/* The most hops that a chain of this class can have: its receiving hosts, then the ranks
 * of one of them; or the ring of all. */
static int chain_hops(const xm_class_t *class, xm_strategy_t strategy)
{
    if (strategy == XM_STRATEGY_SEND_RECV || strategy == XM_STRATEGY_GLOBAL_ALLGATHER) {
        return strategy == XM_STRATEGY_SEND_RECV ? 1 : class->remote_count;
    }
    return class->remote_host_count + class->widest - 1;
}

/* Chunks are only ever made shorter, so several parts of a task can each set their limit
 * in any order. */
void xm_scheduling_set_chunk(const xm_scheduling_t *s, xm_builder_t *builder, int64_t task,
                             int64_t bytes)
{
    int64_t elements = bytes / s->plan->tensors[s->plan->tasks[task].tensor].element_size;

    elements = elements < 1 ? 1 : elements;
    if (elements < builder->chunk_elements[task]) {
        builder->chunk_elements[task] = elements;
    }
}

/* True when the slice is one piece of memory at both ends, so that nobody packs it. */
static bool is_flat(const xm_plan_t *plan, int64_t task)
{
    const xm_unit_task_t *row = &plan->tasks[task];
    const xm_planned_tensor_t *tensor = &plan->tensors[row->tensor];
    xm_box_t box, src, dst;
    xm_view_t view;

    xm_plan_task_box(plan, task, &box);
    xm_layout_tile_box(tensor->src, row->src_tile, &src);
    xm_layout_tile_box(tensor->dst, row->dst_tile, &dst);
    xm_view_init(&view, &src, &box, tensor->element_size);
    if (!xm_view_is_flat(&view)) {
        return false;
    }
    xm_view_init(&view, &dst, &box, tensor->element_size);
    return xm_view_is_flat(&view);
}

/* A slice that stays inside its host shares no NIC with anybody, and a receiver copies it out of
 * the holder's memory: then it is the handshakes that cost, so there are fewer of them. */
static uint64_t chunk_limit(const xm_scheduling_t *s, int64_t task, const xm_class_t *class)
{
    uint64_t limit = s->largest_chunk;
    bool wide = s->params->chunk_bytes == 0 && class->remote_count == 0 && class->near_count > 0 &&
                is_flat(s->plan, task);

    if (!wide) {
        return limit;
    }
    return limit < LARGEST_CHUNK / HOST_CHUNKS ? limit * HOST_CHUNKS : LARGEST_CHUNK;
}

/*
 * Chooses the chunks before anything is scheduled, because the emitters need them: the
 * length that balances the pipeline's filling against the cost of each chunk. The longest
 * chain of a task counts, inside the host or over the network, unless hops are cut into messages,
 * which are chunks.
 */
static void set_chunks(const xm_scheduling_t *s, xm_builder_t *builder, bool parts, bool messages)
{
    for (int64_t t = 0; t < s->plan->task_count; ++t) {
        const xm_class_t *class = &s->classes->classes[s->classes->class_of[t]];
        int hops = parts ? 1 : chain_hops(class, s->strategy[t]);

        if (hops < class->near_count && !(messages && class->remote_count > 0)) {
            hops = class->near_count;
        }
        xm_scheduling_set_chunk(s, builder, t,
                                xm_chunk_bytes(s->lanes.network, xm_task_bytes(s->plan, t), hops,
                                               chunk_limit(s, t, class)));
    }
}

/* ---- whole tasks -------------------------------------------------------------------------------
 */

/* Asks one of the schedulers for whole demands. Their optimality is not reported; the
 * plan compares its makespan with its own bound, which also holds for plans in parts. */
static xm_status_t order_steps(const xm_scheduling_t *s, xm_scheduler_t scheduler, xm_step_t *steps)
{
    xm_problem_t problem = {s->lanes.network, s->demands, s->count};
    int64_t budget = s->params->node_budget > 0 ? s->params->node_budget : NODE_BUDGET;
    bool optimal;

    switch (scheduler) {
    case XM_SCHEDULER_NAIVE:
        return xm_schedule_naive(&problem, steps);
    case XM_SCHEDULER_BALANCE:
        return xm_schedule_balance(&problem, steps);
    case XM_SCHEDULER_DFS:
        return xm_schedule_dfs(&problem, s->params->seed, budget, steps, &optimal);
    default:
        return xm_schedule_greedy(&problem, s->params->seed, steps);
    }
}

/* Turns one step into transfers. Demands of one receiver are plain messages; the others
 * go as the task's strategy says. */
static xm_status_t emit_step(xm_scheduling_t *s, xm_transfer_emitter_t *emitter,
                             const xm_step_t *step)
{
    const xm_item_t *item = &s->items[step->demand];
    const xm_demand_t *demand = &s->demands[step->demand];
    const xm_chain_t chain = {item->task,   item->part.first,  item->part.end,
                              step->sender, demand->receivers, demand->receiver_count};

    if (item->receiver >= 0) {
        return xm_strategy_send_recv_emit(emitter, item->task, step->sender, item->receiver);
    }
    switch (s->strategy[item->task]) {
    case XM_STRATEGY_ALLGATHER:
        return xm_strategy_allgather_emit(emitter, &chain);
    case XM_STRATEGY_LOCAL_ALLGATHER:
    case XM_STRATEGY_GLOBAL_ALLGATHER:
        return xm_strategy_published_emit(emitter, item->task, step->sender, item->host);
    default:
        return xm_chain_emit(emitter, &chain);
    }
}

/* Schedules whole demands. The lists are freed in here because the next scheduler that
 * `auto` tries makes its own. */
static xm_status_t schedule_whole(xm_scheduling_t *s, xm_scheduler_t scheduler,
                                  xm_transfer_emitter_t *emitter)
{
    xm_step_t *steps = NULL;
    xm_status_t status = list_demands(s);

    if (status == XM_OK && s->count > 0) {
        steps = malloc((size_t)s->count * sizeof(*steps));
        status = steps == NULL ? no_memory(s) : order_steps(s, scheduler, steps);
    }
    for (int64_t i = 0; status == XM_OK && i < s->count; ++i) {
        status = emit_step(s, emitter, &steps[i]);
    }
    free(steps);
    free(s->items);
    free(s->demands);
    s->items = NULL;
    s->demands = NULL;
    return status;
}

/* ---- choosing ----------------------------------------------------------------------------------
 */

/* The published baselines send whole slices: no receiver relays parts of them between hosts. */
static bool goes_in_parts(xm_strategy_t strategy)
{
    return strategy != XM_STRATEGY_LOCAL_ALLGATHER && strategy != XM_STRATEGY_GLOBAL_ALLGATHER &&
           strategy != XM_STRATEGY_ALPA;
}

/* The bundles that go this way: those of the last open shop, where they are the same. */
static xm_status_t find_bundles(xm_scheduling_t *s, const xm_way_t *way)
{
    double single = s->asked == XM_STRATEGY_SEND_RECV ? 1 : way->single ? s->single : 0;
    int64_t message = xm_scheduling_message(s, way->pieces);

    if (s->bundles->lanes != NULL && s->bundles->single <= single && s->bundles->single >= single &&
        s->bundles->near == way->near && s->bundles->message == message) {
        return XM_OK;
    }
    xm_bundles_clear(s->bundles);
    return xm_bundles_create(s, single, way->near, message, s->bundles);
}

/* Fills the plan builder in one way and simulates it, leaving both in the plan. On failure the
 * builder is cleared again. */
static xm_status_t fill_builder(xm_scheduling_t *s, const xm_way_t *way)
{
    bool parts = way->scheduler == XM_SCHEDULER_OPENSHOP;
    xm_plan_t *plan = s->plan;
    xm_transfer_emitter_t emitter;
    xm_status_t status;

    if (parts && !goes_in_parts(s->asked)) {
        return XM_UNSUPPORTED("openshop cuts slices into parts that are relayed, which %s does not",
                              xm_strategy_name(s->asked));
    }
    XM_TRY(parts ? find_bundles(s, way) : XM_OK);
    XM_TRY(xm_builder_init(&plan->builder, plan));
    status = xm_transfer_emitter_init(&emitter, plan, s->params->network, s->lanes.network,
                                      s->classes, &plan->builder);
    if (status < 0) {
        goto clear_builder;
    }
    set_chunks(s, &plan->builder, parts, parts && s->bundles->message > 0);
    /* Work inside hosts comes first for every scheduler: it costs no NIC and settles
     * which ranks have what. */
    status = xm_emit_local(&emitter, s->asked);
    XM_THEN(status, parts ? xm_schedule_parts(s, s->bundles, &emitter)
                          : schedule_whole(s, way->scheduler, &emitter));
    XM_THEN(status, xm_builder_number_hops(&plan->builder));
    /* Pieces of tasks are simulated when they are transfers of their tasks (without.c). */
    if (status == XM_OK && plan->sides == NULL) {
        status = xm_simulate_until(plan, s->params->network, s->limit_ns, &plan->makespan_ns);
    }
    xm_transfer_emitter_clear(&emitter);
    if (status == XM_OK) {
        return XM_OK;
    }

clear_builder:
    xm_builder_clear(&plan->builder);
    return status;
}

int64_t xm_scheduling_message(const xm_scheduling_t *s, int64_t pieces)
{
    double bytes = 0, message = fmax((double)s->largest_chunk, XM_SMALLEST_CHUNK);

    if (pieces == 0 || (xm_network_uniform(s->lanes.network) &&
                        xm_network_uplink_bandwidth(s->lanes.network) <= 0)) {
        return 0;
    }
    for (int64_t k = 0; k < s->classes->count; ++k) {
        const xm_class_t *class = &s->classes->classes[k];

        bytes += (double)class->bytes * class->remote_host_count;
    }
    return bytes <= message ? 0 : (int64_t)fmax(message, bytes / (double)pieces);
}

bool xm_scheduling_may_relay(const xm_scheduling_t *s)
{
    const xm_network_t *network = s->params->network;
    bool may = false;

    for (int64_t k = 0; !may && k < s->classes->count; ++k) {
        const xm_class_t *class = &s->classes->classes[k];

        may = class->near_count > 0 && class->remote_count > 0;
    }
    return may && xm_network_rails(network) > xm_network_hosts(network);
}

/* The strategy that serves one task, one of so many that cross the network. Alpa gathers only where
 * a slice has its receivers on one host; others it sends to every receiver by itself. */
static xm_strategy_t strategy_of(const xm_scheduling_t *s, int64_t task, int64_t remote)
{
    const xm_class_t *class = &s->classes->classes[s->classes->class_of[task]];

    switch (s->asked) {
    case XM_STRATEGY_AUTO:
        return xm_strategy_predict(s->params->network, class, xm_task_bytes(s->plan, task), remote);
    case XM_STRATEGY_ALPA:
        return class->remote_host_count == 1 ? XM_STRATEGY_LOCAL_ALLGATHER : XM_STRATEGY_SEND_RECV;
    default:
        return s->asked;
    }
}

/* Fixes each task's strategy. The prediction weighs a task's pipeline filling by its share of the
 * work, so it needs the count of tasks that cross the network first. */
static void set_strategies(xm_scheduling_t *s, xm_strategy_t strategy)
{
    int64_t remote = 0;

    s->asked = strategy;
    for (int64_t t = 0; t < s->plan->task_count; ++t) {
        remote += s->classes->classes[s->classes->class_of[t]].remote_count > 0;
    }
    for (int64_t t = 0; t < s->plan->task_count; ++t) {
        s->strategy[t] = (unsigned char)strategy_of(s, t, remote > 0 ? remote : 1);
    }
}

xm_status_t xm_schedule_once(xm_scheduling_t *s, xm_strategy_t strategy, const xm_way_t *way)
{
    set_strategies(s, strategy);
    return fill_builder(s, way);
}

uint64_t xm_schedule_chunk_limit(const xm_plan_params_t *params)
{
    uint64_t limit =
        params->chunk_bytes > 0 ? params->chunk_bytes : xm_config_bytes(XM_CONFIG_CHUNK_SIZE);

    return limit < LARGEST_CHUNK ? limit : LARGEST_CHUNK;
}
