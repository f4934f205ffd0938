/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Turns a plan's tasks into transfers: chooses a strategy for each task, asks a scheduler
 * for the order, fills the plan builder and simulates the result. `auto` does this with
 * several schedulers and keeps the best by simulated makespan, because no scheduler is
 * best everywhere and the simulation is the only measure that counts all that a plan
 * occupies.
 */
#include <inttypes.h>
#include <stdlib.h>

#include "comm/base.h"
#include "resharding/plan/schedule_private.h"
#include "resharding/plan/simulate.h"
#include "resharding/layout.h"

enum {
    NODE_BUDGET = 200000,
    LARGEST_CHUNK = 8 * 1024 * 1024, /* as much as an executor packs at once (execute.h) */
    HOST_CHUNKS = 8,    /* chunks of slices that stay inside a host may be so much larger */
    DFS_TASKS = 64,     /* `auto` does not ask dfs to order more than this */
    CLOSE_ENOUGH = 200, /* `auto` stops at a schedule within bound / this of the bound */
    LARGE = 100000,     /* tasks times hosts, or … */
    MANY_HOSTS = 32     /* … hosts from which on `auto` asks openshop late */
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
    xm_status_t status;

    if (XM_IS_NULL(name) || XM_IS_NULL(scheduler)) {
        return XM_ERR_INVALID_ARGUMENT;
    }
    status = xm_text_choose("scheduler", name, scheduler_names, XM_SCHEDULER_COUNT, &index);
    if (status == XM_OK) {
        *scheduler = (xm_scheduler_t)index;
    }
    return status;
}

/* The error of every allocation in this file, with the size of the problem. */
static xm_status_t no_memory(const xm_scheduling_t *s)
{
    return xm_error_set(XM_ERR_NO_MEMORY, "no memory to schedule %" PRId64 " unit tasks",
                        s->plan->task_count);
}

/* One demand with the class's host lists, not copies of them. `host` selects a single
 * receiving host by its place in the class; −1 stands for all. */
static void add_demand(xm_scheduling_t *s, int64_t task, int64_t index, int64_t bytes, int receiver,
                       int host)
{
    const xm_class_t *class = &s->classes->classes[index];

    s->items[s->count] = (xm_item_t){task, receiver};
    s->demands[s->count++] =
        (xm_demand_t){.bytes = bytes,
                      .holders = class->holder_hosts,
                      .holder_count = class->holder_host_count,
                      .receivers = host < 0 ? class->remote_hosts : class->remote_hosts + host,
                      .receiver_count = host < 0 ? class->remote_host_count : 1};
}

/*
 * Adds one demand for each remote receiver of a task, or one for all. With send_recv each
 * receiver gets a message of its own, so a host with several receivers takes the data in
 * several times.
 */
static void add_demands(xm_scheduling_t *s, int64_t task, int64_t index, int64_t bytes, bool each)
{
    const xm_class_t *class = &s->classes->classes[index];

    if (!each) {
        add_demand(s, task, index, bytes, -1, -1);
        return;
    }
    for (int h = 0; h < class->remote_host_count; ++h) {
        for (int r = class->remote_first[h]; r < class->remote_first[h + 1]; ++r) {
            add_demand(s, task, index, bytes, class->remote[r], h);
        }
    }
}

/* Lists what must cross the network, task by task. Tasks that stay inside hosts are not
 * scheduled, as they use no NIC. */
static xm_status_t list_demands(xm_scheduling_t *s)
{
    int64_t room = 1;

    for (int64_t t = 0; t < s->plan->task_count; ++t) {
        const xm_class_t *class = &s->classes->classes[s->classes->class_of[t]];

        room +=
            s->strategy[t] == XM_STRATEGY_SEND_RECV ? class->remote_count : class->remote_count > 0;
    }
    s->count = 0;
    s->demands = malloc((size_t)room * sizeof(*s->demands));
    s->items = malloc((size_t)room * sizeof(*s->items));
    if (s->demands == NULL || s->items == NULL) {
        return no_memory(s);
    }
    for (int64_t t = 0; t < s->plan->task_count; ++t) {
        if (s->classes->classes[s->classes->class_of[t]].remote_count > 0) {
            add_demands(s, t, s->classes->class_of[t], xm_task_bytes(s->plan, t),
                        s->strategy[t] == XM_STRATEGY_SEND_RECV);
        }
    }
    return XM_OK;
}

/* The most hops that a chain of this class can have: its receiving hosts, then the ranks
 * of one of them. */
static int chain_hops(const xm_class_t *class)
{
    int most = 1;

    for (int h = 0; h < class->remote_host_count; ++h) {
        int devices = class->remote_first[h + 1] - class->remote_first[h];

        most = devices > most ? devices : most;
    }
    return class->remote_host_count + most - 1;
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
static uint64_t chunk_limit(const xm_scheduling_t *s, int64_t task, const xm_class_t *class,
                            uint64_t limit)
{
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
 * chain of a task counts, inside the host or over the network.
 */
static void set_chunks(const xm_scheduling_t *s, xm_builder_t *builder, uint64_t limit)
{
    for (int64_t t = 0; t < s->plan->task_count; ++t) {
        const xm_class_t *class = &s->classes->classes[s->classes->class_of[t]];
        int hops = s->strategy[t] == XM_STRATEGY_SEND_RECV ? 1 : chain_hops(class);

        if (hops < class->near_count) {
            hops = class->near_count;
        }
        xm_scheduling_set_chunk(s, builder, t,
                                xm_chunk_bytes(s->params->network, xm_task_bytes(s->plan, t), hops,
                                               chunk_limit(s, t, class, limit)));
    }
}

/* ---- whole tasks -------------------------------------------------------------------------------
 */

/* Asks one of the schedulers for whole demands. Their optimality is not reported; the
 * plan compares its makespan with its own bound, which also holds for plans in parts. */
static xm_status_t order_steps(const xm_scheduling_t *s, xm_scheduler_t scheduler, xm_step_t *steps)
{
    xm_problem_t problem = {s->params->network, s->demands, s->count};
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

    if (item->receiver >= 0) {
        return xm_strategy_send_recv_emit(emitter, item->task, step->sender, item->receiver);
    }
    return s->strategy[item->task] == XM_STRATEGY_ALLGATHER
               ? xm_strategy_allgather_emit(emitter, item->task, step->sender)
               : xm_strategy_broadcast_emit(emitter, item->task, step->sender);
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

uint64_t xm_schedule_chunk_limit(const xm_plan_params_t *params)
{
    uint64_t limit =
        params->chunk_bytes > 0 ? params->chunk_bytes : xm_config_bytes(XM_CONFIG_CHUNK_SIZE);

    return limit < LARGEST_CHUNK ? limit : LARGEST_CHUNK;
}

/* Fills the plan builder by one scheduler and simulates it, leaving both in the plan. On
 * failure the builder is cleared again. */
static xm_status_t make_builder(xm_scheduling_t *s, xm_scheduler_t scheduler)
{
    xm_plan_t *plan = s->plan;
    uint64_t limit = xm_schedule_chunk_limit(s->params);
    xm_transfer_emitter_t emitter;
    xm_status_t status;

    status = xm_builder_init(&plan->builder, plan);
    if (status < 0) {
        return status;
    }
    status =
        xm_transfer_emitter_init(&emitter, plan, s->params->network, s->classes, &plan->builder);
    if (status < 0) {
        goto clear_builder;
    }
    set_chunks(s, &plan->builder, limit);
    /* Work inside hosts comes first for every scheduler: it costs no NIC and settles
     * which ranks have what. */
    status = xm_emit_local(&emitter, s->params->strategy);
    if (status == XM_OK) {
        status = scheduler == XM_SCHEDULER_OPENSHOP ? xm_schedule_parts(s, &emitter)
                                                    : schedule_whole(s, scheduler, &emitter);
    }
    if (status == XM_OK) {
        status = xm_builder_number_hops(&plan->builder);
    }
    if (status == XM_OK) {
        plan->chosen = scheduler;
        status =
            xm_simulate(plan, s->params->network, XM_SHARING_EXCLUSIVE, NULL, &plan->makespan_ns);
    }
    xm_transfer_emitter_clear(&emitter);
    if (status == XM_OK) {
        return XM_OK;
    }

clear_builder:
    xm_builder_clear(&plan->builder);
    return status;
}

/* openshop declines problems beyond its size; then whole tasks are scheduled greedily. */
static xm_status_t make_or_fall_back(xm_scheduling_t *s, xm_scheduler_t scheduler)
{
    xm_status_t status = make_builder(s, scheduler);

    return status == XM_ERR_UNSUPPORTED ? make_builder(s, XM_SCHEDULER_GREEDY) : status;
}

/*
 * Tries one scheduler after the other and keeps the best plan, the first of equals.
 * openshop comes first unless there is so much to plan that it would take long: it says
 * who sends to whom at every moment, where the simulation must assume that of the others,
 * so of plans with equal makespans its own are the fastest on a real network
 * (docs/results.md).
 */
static xm_status_t choose_best(xm_scheduling_t *s)
{
    static const xm_scheduler_t quickest[] = {XM_SCHEDULER_BALANCE, XM_SCHEDULER_GREEDY,
                                              XM_SCHEDULER_OPENSHOP, XM_SCHEDULER_DFS};
    static const xm_scheduler_t steadiest[] = {XM_SCHEDULER_OPENSHOP, XM_SCHEDULER_GREEDY,
                                               XM_SCHEDULER_BALANCE, XM_SCHEDULER_DFS};
    int hosts = xm_network_hosts(s->params->network);
    bool large = hosts > MANY_HOSTS || s->plan->task_count > LARGE / hosts;
    const xm_scheduler_t *candidates = large ? quickest : steadiest;
    xm_plan_t *plan = s->plan;
    xm_builder_t best = {0};
    xm_scheduler_t chosen = candidates[0];
    int64_t makespan = INT64_MAX;
    xm_status_t status = XM_OK;

    for (size_t c = 0; c < sizeof(quickest) / sizeof(quickest[0]); ++c) {
        /* Half a per cent above the bound is close enough: no scheduler could gain more
         * than that. */
        if (makespan - plan->bound_ns <= plan->bound_ns / CLOSE_ENOUGH ||
            (candidates[c] == XM_SCHEDULER_DFS && plan->task_count > DFS_TASKS)) {
            break;
        }
        status = make_builder(s, candidates[c]);
        if (status == XM_ERR_UNSUPPORTED) {
            /* Only openshop declines, and the others never do, so something is always
             * chosen. */
            continue;
        }
        if (status < 0) {
            xm_builder_clear(&best);
            return status;
        }
        /* The builder moves into `best` by value; the plan's own is filled anew by the
         * next scheduler. */
        if (plan->makespan_ns < makespan) {
            xm_builder_clear(&best);
            best = plan->builder;
            makespan = plan->makespan_ns;
            chosen = candidates[c];
        } else {
            xm_builder_clear(&plan->builder);
        }
    }
    plan->builder = best;
    plan->makespan_ns = makespan;
    plan->chosen = chosen;
    return XM_OK;
}

xm_status_t xm_schedule(xm_plan_t *plan, const xm_plan_params_t *params,
                        const xm_classes_t *classes)
{
    xm_scheduling_t s = {.plan = plan, .params = params, .classes = classes};
    int64_t remote = 0; /* tasks that cross the network */
    xm_status_t status;

    s.strategy = malloc((size_t)plan->task_count + 1);
    if (s.strategy == NULL) {
        return no_memory(&s);
    }
    /* The prediction weighs a task's pipeline filling by its share of the work, so it
     * needs the count first. */
    for (int64_t t = 0; t < plan->task_count; ++t) {
        remote += classes->classes[classes->class_of[t]].remote_count > 0;
    }
    for (int64_t t = 0; t < plan->task_count; ++t) {
        xm_strategy_t strategy = params->strategy;

        if (strategy == XM_STRATEGY_AUTO) {
            strategy = xm_strategy_predict(params->network, &classes->classes[classes->class_of[t]],
                                           xm_task_bytes(plan, t), remote > 0 ? remote : 1);
        }
        s.strategy[t] = (unsigned char)strategy;
    }
    status = params->scheduler == XM_SCHEDULER_AUTO ? choose_best(&s)
                                                    : make_or_fall_back(&s, params->scheduler);
    free(s.strategy);
    return status;
}
