/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `auto`: a portfolio of strategies and schedulers. Each combination is made as a whole plan and
 * simulated, and the best by makespan is kept, because no combination is best everywhere and the
 * simulation is the only measure that counts all that a plan occupies.
 *
 * How long that may take is limited by counted work, not by a clock, so that all ranks choose the
 * same plan. The limit falls with what is left to gain: near the bound only cheap combinations are
 * tried, and at the bound none.
 */
#include <inttypes.h>
#include <stdlib.h>

#include "comm/base.h"
#include "resharding/plan/bundles.h"

enum {
    CLOSE_ENOUGH = 200,   /* within bound / this of the bound nothing is worth trying */
    WIDE_GAP = 20,        /* from bound / this on all the work is */
    MOST_WORK = 4000000,  /* hops and unit tasks of all combinations: a few seconds */
    FAR_WORK = 32000000,  /* of openshop alone, once, where the best so far is twice the bound */
    LEAST_WORK = 100000,  /* that is always allowed: a few hundredths of a second */
    DFS_TASKS = 64,       /* dfs is not asked to order more than this */
    DFS_WORK = 100000,    /* what its search counts as */
    GREEDY_WORK = 20,     /* what greedy's tries count as, for each task */
    LARGE = 100000,       /* tasks times hosts, or … */
    MANY_HOSTS = 32,      /* … hosts from which on balance comes first */
    MANY_PIECES = 200000, /* that hops between ends of different rates are cut into, of a chunk's
                             length at least, … */
    FEW_PIECES = 5000     /* … or so few */
};

/* The best combination so far. */
typedef struct {
    xm_scheduling_t *s;
    bool may_relay;
    int64_t receivers; /* of all tasks that cross the network */
    xm_builder_t builder;
    xm_strategy_t strategy;
    xm_scheduler_t scheduler;
    int64_t makespan_ns; /* INT64_MAX: none yet */
    int64_t work;        /* spent on all so far */
    bool went_far;       /* with FAR_WORK */
} portfolio_t;

/*
 * openshop comes first unless there is so much to plan that it would take long: it says who sends
 * to whom at every moment, where the simulation must assume that of the others, so of plans with
 * equal makespans its own are the fastest on a real network (docs/results.md).
 */
#define SHOP(single, near, pieces)                                                                 \
    {                                                                                              \
        XM_SCHEDULER_OPENSHOP, single, near, pieces                                                \
    }
#define SHOPS(near)                                                                                \
    SHOP(true, near, MANY_PIECES), SHOP(true, near, FEW_PIECES), SHOP(true, near, 0),              \
        SHOP(false, near, MANY_PIECES), SHOP(false, near, FEW_PIECES), SHOP(false, near, 0)
/* In a circle: small problems start with the second. */
static const xm_way_t ways[] = {{.scheduler = XM_SCHEDULER_BALANCE},
                                SHOPS(false),
                                SHOPS(true),
                                {.scheduler = XM_SCHEDULER_GREEDY},
                                {.scheduler = XM_SCHEDULER_NAIVE},
                                {.scheduler = XM_SCHEDULER_DFS}};
/* A strategy of each task's own comes first: it is a good one for all kinds of tasks. The published
 * ones are last: now and then they are the best for a few elements. */
static const xm_strategy_t strategies[] = {
    XM_STRATEGY_AUTO,      XM_STRATEGY_BROADCAST,        XM_STRATEGY_ALLGATHER,
    XM_STRATEGY_SEND_RECV, XM_STRATEGY_GLOBAL_ALLGATHER, XM_STRATEGY_LOCAL_ALLGATHER,
    XM_STRATEGY_ALPA};

enum {
    WAYS = sizeof(ways) / sizeof(ways[0]),
    STRATEGIES = sizeof(strategies) / sizeof(strategies[0])
};

/* How much work is left for one more combination: all of it where the gap is wide, and in
 * proportion to the gap where it is not. */
static int64_t work_left(const portfolio_t *p)
{
    int64_t bound = p->s->plan->bound_ns, gap = p->makespan_ns - bound, most = MOST_WORK;

    if (p->makespan_ns != INT64_MAX && gap < bound / WIDE_GAP) {
        most = (int64_t)((double)MOST_WORK * (double)gap * WIDE_GAP / (double)bound);
    }
    most = most > LEAST_WORK ? most : LEAST_WORK;
    return most - p->work;
}

/* The same for one way. A plan of twice the bound is worth a long search for a better one, and
 * openshop is the way to find it. */
static int64_t work_for(const portfolio_t *p, const xm_way_t *way)
{
    bool far = way->scheduler == XM_SCHEDULER_OPENSHOP && !p->went_far &&
               p->makespan_ns != INT64_MAX && p->makespan_ns / 2 > p->s->plan->bound_ns;

    return far ? FAR_WORK : work_left(p);
}

/* Whether the plan cannot gain half a per cent any more. */
static bool is_close(const portfolio_t *p)
{
    int64_t bound = p->s->plan->bound_ns;

    return p->makespan_ns != INT64_MAX && p->makespan_ns - bound <= bound / CLOSE_ENOUGH;
}

/* Whether openshop makes nothing new this way: it sends parts along chains of its own, so only
 * whether each receiver is served by itself makes a difference to it; single copies are one only
 * where they could help, cut hops only where rates differ: there they come first. */
static bool is_same_shop(const portfolio_t *p, xm_strategy_t strategy, const xm_way_t *way)
{
    bool all_single = strategy == XM_STRATEGY_SEND_RECV;

    return (p->s->params->strategy == XM_STRATEGY_AUTO && strategy != XM_STRATEGY_AUTO &&
            !all_single) ||
           (way->pieces > 0 &&
            xm_scheduling_message(p->s, way->pieces) ==
                xm_scheduling_message(p->s, way->pieces == MANY_PIECES ? FEW_PIECES : 0)) ||
           (way->near && !p->may_relay) ||
           (!way->single && (all_single || p->s->single <= 0 || p->s->single >= 1));
}

/* Whether openshop, which makes at least a transfer for each receiver of a task, would make more
 * than there is work left for. */
static bool is_too_large(const portfolio_t *p, const xm_way_t *way)
{
    return p->s->params->scheduler == XM_SCHEDULER_AUTO && p->receivers > work_for(p, way);
}

static bool is_useless(const portfolio_t *p, xm_strategy_t strategy, const xm_way_t *way)
{
    return (way->scheduler == XM_SCHEDULER_OPENSHOP &&
            (is_same_shop(p, strategy, way) || is_too_large(p, way))) ||
           (way->scheduler == XM_SCHEDULER_DFS && p->s->plan->task_count > DFS_TASKS &&
            p->makespan_ns != INT64_MAX);
}

/* Makes one combination and keeps it when it is the best; the first of equals stays. */
static xm_status_t try_one(portfolio_t *p, xm_strategy_t strategy, const xm_way_t *way)
{
    xm_plan_t *plan = p->s->plan;
    xm_status_t status;

    p->s->work_left = work_for(p, way);
    p->went_far = p->went_far || p->s->work_left == FAR_WORK;
    p->s->limit_ns = p->makespan_ns;
    status = xm_schedule_once(p->s, strategy, way);
    p->work += plan->task_count + (way->scheduler == XM_SCHEDULER_DFS ? DFS_WORK : 0) +
               (way->scheduler == XM_SCHEDULER_GREEDY ? GREEDY_WORK * plan->task_count : 0);
    if (status < 0) {
        /* Only openshop declines, and the others never do, so something is always chosen. */
        return status == XM_ERR_UNSUPPORTED ? XM_OK : status;
    }
    p->work += plan->builder.transfer_count > 0
                   ? plan->builder.first_hop[plan->builder.transfer_count]
                   : 0;
    if (plan->makespan_ns >= p->makespan_ns) {
        xm_builder_clear(&plan->builder);
        return XM_OK;
    }
    /* The builder moves by value; the plan's own is filled anew by the next combination. */
    xm_builder_clear(&p->builder);
    p->builder = plan->builder;
    plan->builder = (xm_builder_t){0};
    p->makespan_ns = plan->makespan_ns;
    p->strategy = strategy;
    p->scheduler = way->scheduler;
    return XM_OK;
}

/* Tries one way after the other with each strategy, as far as `auto` was asked for. */
static xm_status_t try_all(portfolio_t *p)
{
    const xm_plan_params_t *params = p->s->params;
    int hosts = xm_network_hosts(params->network);
    bool large = hosts > MANY_HOSTS || p->s->plan->task_count > LARGE / hosts;
    int count = params->strategy == XM_STRATEGY_AUTO ? STRATEGIES * WAYS : WAYS;

    for (int i = 0; i < count && !is_close(p); ++i) {
        const xm_way_t *way = &ways[(i + !large) % WAYS];
        xm_strategy_t strategy =
            params->strategy == XM_STRATEGY_AUTO ? strategies[i / WAYS] : params->strategy;

        if ((params->scheduler == XM_SCHEDULER_AUTO || params->scheduler == way->scheduler) &&
            !is_useless(p, strategy, way) &&
            (p->makespan_ns == INT64_MAX || work_for(p, way) > 0)) {
            XM_TRY(try_one(p, strategy, way));
        }
    }
    return XM_OK;
}

static xm_status_t choose(xm_scheduling_t *s)
{
    portfolio_t p = {.s = s, .may_relay = xm_scheduling_may_relay(s), .makespan_ns = INT64_MAX};
    xm_status_t status;

    for (int64_t k = 0; k < s->classes->count; ++k) {
        p.receivers += s->classes->classes[k].task_count * s->classes->classes[k].remote_count;
    }
    status = try_all(&p);

    if (status == XM_OK && p.makespan_ns == INT64_MAX) {
        status = try_one(&p, s->params->strategy, &(xm_way_t){.scheduler = XM_SCHEDULER_GREEDY});
    }
    if (status < 0) {
        xm_builder_clear(&p.builder);
        return status;
    }
    s->plan->builder = p.builder;
    s->plan->makespan_ns = p.makespan_ns;
    s->plan->chosen = p.scheduler;
    s->plan->chosen_strategy = p.strategy;
    return XM_OK;
}

xm_status_t xm_schedule(xm_plan_t *plan, const xm_plan_params_t *params,
                        const xm_classes_t *classes)
{
    xm_bundles_t bundles = {0};
    xm_scheduling_t s = {.plan = plan, .params = params, .classes = classes, .bundles = &bundles};
    xm_status_t status;

    s.largest_chunk = xm_schedule_chunk_limit(params);
    s.strategy = malloc((size_t)plan->task_count + 1);
    XM_NEED_MEMORY(s.strategy, "scheduling %" PRId64 " unit tasks", plan->task_count);
    status = xm_lanes_create(plan, params->network, classes, 0, false, &s.lanes);
    XM_THEN(status, xm_lanes_single(params->network, classes, &s.single));
    XM_THEN(status, choose(&s));
    xm_bundles_clear(&bundles);
    xm_lanes_clear(&s.lanes);
    free(s.strategy);
    return status;
}
