/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Piper's problem (Tarnawski et al., NeurIPS'21), solved exactly. Their dynamic programme minimises
 * time over down-sets, devices and replicas; here it is turned round: for a limit on the time, each
 * cell holds the fewest devices, which fit 16 bits, and a stage is used by one sweep of minima over
 * a row of cells, which compilers vectorise. The least limit is found by bisection over the times
 * that stages can take, so the answer is one of them and exact.
 *
 * Stages are priced once for all limits. A first answer along one order of the layers bounds the
 * times, and everything slower is never priced.
 */

#include "planner/published/piper/piper.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "planner/published/piper/stage.h"

enum {
    MOST_IDEALS = 200000,
    MOST_CELLS = 1 << 29, /* of the table of device counts */
    MOST_DEVICES = 10000,
    NOT_REACHED = 20000 /* devices; with MOST_DEVICES added still a 16-bit number */
};

/* A stage: the layers of a down-set without those of a smaller one, on t * d devices. Its steps
 * take longer for more micro-batches in flight. */
typedef struct option {
    int32_t below;
    int16_t data, tensor;
    int32_t first_step, step_count;
} option_t;

typedef struct solver {
    const ap_piper_problem_t *problem;
    const ap_ideals_t *ideals;
    ap_piper_pricing_t pricing;
    double limit; /* slower stages cannot be in the answer */
    int bound;    /* largest s: sum of the data-parallel degrees of stages */
    int *degrees; /* tensor-parallel degrees in the problem, rising */
    int degree_count;
    double *least;     /* [node]: seconds at any degree */
    int *first_option; /* [ideal + 1] */
    option_t *options;
    ap_piper_step_t *steps;
    int64_t option_count, step_count;
    size_t option_room, step_room;
    ap_ideals_walk_t walk;
    double *least_at;      /* [depth]: seconds that the part in the walk takes at least */
    int16_t *fewest;       /* [ideal][s]: devices */
    int *lowest, *highest; /* [ideal]: s that are reached */
    double *times;         /* that stages can take, rising */
    int64_t time_count;
    xm_arena_t arena; /* of the tables over the down-sets */
} solver_t;

static xm_status_t no_memory(const ap_piper_problem_t *problem)
{
    return XM_NO_MEMORY("planning %d layers on %d devices", problem->node_count, problem->devices);
}

/* Adds the steps of the stage in the pricing on t * d devices. Each step holds for a stretch of
 * micro-batches in flight, and the next begins behind it; times only rise, so the first that is too
 * slow ends it. */
static bool add_option(solver_t *solver, int below, int tensor, int data)
{
    int most = (solver->bound + data - 1) / data, from = 1, up_to = 0;
    option_t option = {below, (int16_t)data, (int16_t)tensor, (int32_t)solver->step_count, 0};

    ap_piper_pricing_set_data(&solver->pricing, data);
    while (from <= most) {
        double seconds = ap_piper_pricing_best(&solver->pricing, from, most, &up_to);

        if (isinf(seconds) || seconds > solver->limit) {
            break;
        }
        if (!XM_ARRAY_ROOM(solver->steps, solver->step_room, solver->step_count)) {
            return false;
        }
        solver->steps[solver->step_count++] = (ap_piper_step_t){seconds, up_to};
        ++option.step_count;
        from = up_to + 1;
    }
    if (option.step_count > 0) {
        if (!XM_ARRAY_ROOM(solver->options, solver->option_room, solver->option_count)) {
            return false;
        }
        solver->options[solver->option_count++] = option;
    }
    return true;
}

/* The walk ends when memory is short. */
static bool price_stage(void *arg, int above, int below)
{
    solver_t *solver = arg;
    const ap_piper_problem_t *problem = solver->problem;

    (void)above;
    for (int i = 0; i < solver->degree_count; ++i) {
        int tensor = solver->degrees[i];

        if (tensor > problem->devices || !ap_piper_pricing_set_tensor(&solver->pricing, tensor)) {
            continue;
        }
        for (int data = 1; data * tensor <= problem->devices && data <= solver->bound; ++data) {
            if (problem->micro_batches % data == 0 && !add_option(solver, below, tensor, data)) {
                return true;
            }
        }
    }
    return false;
}

/* A layer that joins the stage makes it slower, so the walk turns back where it is too slow. */
static bool enter(void *arg, int node, int depth)
{
    solver_t *solver = arg;

    solver->pricing.inside[node] = true;
    solver->pricing.nodes[solver->pricing.node_count++] = node;
    solver->least_at[depth] = solver->least_at[depth - 1] + solver->least[node];
    return solver->least_at[depth] <= solver->limit;
}

static void leave(void *arg, int node, int depth)
{
    solver_t *solver = arg;

    (void)depth;
    solver->pricing.inside[node] = false;
    --solver->pricing.node_count;
}

/* Prices all stages, and lists the different times they can take. */
static xm_status_t price_all(solver_t *solver)
{
    int count = ap_ideals_count(solver->ideals);
    int64_t kept = 0;

    for (int ideal = 0; ideal < count; ++ideal) {
        solver->first_option[ideal] = (int)solver->option_count;
        if (ap_ideals_walk(&solver->walk, ideal) || solver->option_count > INT32_MAX / 2 ||
            solver->step_count > INT32_MAX / 2) {
            return no_memory(solver->problem);
        }
    }
    solver->first_option[count] = (int)solver->option_count;
    solver->times = xm_arena_get(&solver->arena, (size_t)solver->step_count, sizeof(double));
    if (solver->times == NULL) {
        return no_memory(solver->problem);
    }
    for (int64_t i = 0; i < solver->step_count; ++i) {
        solver->times[i] = solver->steps[i].seconds;
    }
    qsort(solver->times, (size_t)solver->step_count, sizeof(double), xm_order_doubles);
    for (int64_t i = 0; i < solver->step_count; ++i) {
        if (kept == 0 || solver->times[i] != solver->times[kept - 1]) {
            solver->times[kept++] = solver->times[i];
        }
    }
    solver->time_count = kept;
    return XM_OK;
}

/* The largest s of a stage within the time; 0 when it is too slow. Steps rise in time, so a
 * bisection finds it. */
static int largest_sum(const solver_t *solver, const option_t *option, double seconds)
{
    const ap_piper_step_t *steps = solver->steps + option->first_step;
    int low = 0;
    int64_t sum;

    XM_BISECT(int, i, low, option->step_count, steps[i].seconds <= seconds);
    if (low == 0) {
        return 0;
    }
    sum = (int64_t)option->data * steps[low - 1].in_flight;
    return sum < solver->bound ? (int)sum : solver->bound;
}

/* to[s + shift] = min(to[s + shift], from[s] + devices) for `count` values of s. Sums stay within
 * 16 bits: NOT_REACHED plus the most devices does. */
static void relax(int16_t *restrict to, const int16_t *restrict from, int count, int devices)
{
    int16_t more = (int16_t)devices;

    for (int i = 0; i < count; ++i) {
        int16_t sum = (int16_t)(from[i] + more);

        to[i] = sum < to[i] ? sum : to[i];
    }
}

static int16_t *row_of(const solver_t *solver, int ideal)
{
    return solver->fewest + (size_t)ideal * ((size_t)solver->bound + 1);
}

/* Uses one option for the stage that ends at @p ideal: only over the s that its smaller set reaches
 * and the stage allows. */
static void use_option(solver_t *solver, int ideal, const option_t *option, double seconds)
{
    int low = solver->lowest[option->below], high = solver->highest[option->below];
    int most = largest_sum(solver, option, seconds) - option->data;

    high = high < most ? high : most;
    if (high >= low) {
        relax(row_of(solver, ideal) + low + option->data, row_of(solver, option->below) + low,
              high - low + 1, option->data * option->tensor);
    }
}

/* Finds the fewest devices for every down-set and s with stages no slower than @p seconds. True
 * when there is a plan. Sets are numbered by size, so a smaller one is finished before it is
 * used. */
static bool sweep(solver_t *solver, double seconds)
{
    int count = ap_ideals_count(solver->ideals);

    for (int ideal = 0; ideal < count; ++ideal) {
        int16_t *row = row_of(solver, ideal);
        int low = solver->bound + 1, high = -1;

        for (int s = 0; s <= solver->bound; ++s) {
            row[s] = NOT_REACHED;
        }
        row[0] = ideal == 0 ? 0 : NOT_REACHED;
        for (int i = solver->first_option[ideal]; i < solver->first_option[ideal + 1]; ++i) {
            use_option(solver, ideal, &solver->options[i], seconds);
        }
        for (int s = 0; s <= solver->bound; ++s) {
            if (row[s] > solver->problem->devices) {
                row[s] = NOT_REACHED;
            } else {
                low = low <= solver->bound ? low : s;
                high = s;
            }
        }
        solver->lowest[ideal] = low;
        solver->highest[ideal] = high;
    }
    return solver->highest[count - 1] >= 0;
}

/* The least time that leaves a plan; the last sweep is for that. Negative when none does. A longer
 * time only adds stages, so the bisection is right. */
static double bisect(solver_t *solver)
{
    int64_t low = 0, high = solver->time_count - 1;

    if (solver->time_count == 0 || !sweep(solver, solver->times[high])) {
        return -1.0;
    }
    XM_BISECT(int64_t, i, low, high, !sweep(solver, solver->times[i]));
    (void)sweep(solver, solver->times[low]);
    return solver->times[low];
}

static xm_status_t fill_stage(solver_t *solver, int above, const option_t *option, int sum,
                              xm_arena_t *arena, ap_piper_stage_t *stage)
{
    ap_piper_pricing_t *pricing = &solver->pricing;
    int count = solver->problem->node_count, up_to;

    pricing->node_count = 0;
    for (int node = 0; node < count; ++node) {
        pricing->inside[node] = ap_ideals_has(solver->ideals, above, node) &&
                                !ap_ideals_has(solver->ideals, option->below, node);
        if (pricing->inside[node]) {
            pricing->nodes[pricing->node_count++] = node;
        }
    }
    *stage = (ap_piper_stage_t){
        .data = option->data,
        .tensor = option->tensor,
        .in_flight = (sum + option->data - 1) / option->data,
        .node_count = pricing->node_count,
        .nodes = xm_arena_get(arena, (size_t)pricing->node_count, sizeof(int)),
        .variants = xm_arena_get(arena, (size_t)pricing->node_count, sizeof(int))};
    if (arena->failed) {
        return no_memory(solver->problem);
    }
    (void)ap_piper_pricing_set_tensor(pricing, stage->tensor);
    ap_piper_pricing_set_data(pricing, stage->data);
    stage->seconds = ap_piper_pricing_best(pricing, stage->in_flight, solver->bound, &up_to);
    stage->memory = ap_piper_pricing_memory(pricing, stage->in_flight);
    ap_piper_pricing_variants(pricing, stage->variants);
    memcpy(stage->nodes, pricing->nodes, (size_t)stage->node_count * sizeof(int));
    return XM_OK;
}

/* Follows the last sweep back from all layers, the first stage first: the down-sets are closed
 * under successors. */
static xm_status_t trace(solver_t *solver, double seconds, ap_piper_plan_t *plan)
{
    int ideal = ap_ideals_count(solver->ideals) - 1, sum = solver->lowest[ideal];
    xm_status_t status = XM_OK;

    for (int s = sum; s <= solver->highest[ideal]; ++s) {
        sum = row_of(solver, ideal)[s] < row_of(solver, ideal)[sum] ? s : sum;
    }
    plan->seconds = seconds;
    plan->devices = row_of(solver, ideal)[sum];
    plan->stages =
        xm_arena_get(&plan->arena, (size_t)solver->problem->node_count, sizeof(*plan->stages));
    if (plan->stages == NULL) {
        return no_memory(solver->problem);
    }
    while (ideal != 0 && status == XM_OK) {
        int option = solver->first_option[ideal], end = solver->first_option[ideal + 1];

        for (; option < end; ++option) {
            const option_t *of = &solver->options[option];

            if (sum >= of->data && sum <= largest_sum(solver, of, seconds) &&
                row_of(solver, of->below)[sum - of->data] + of->data * of->tensor ==
                    row_of(solver, ideal)[sum]) {
                break;
            }
        }
        if (option == end) {
            return xm_error_set(XM_ERR_INTERNAL, "the plan's stages cannot be found again");
        }
        status = fill_stage(solver, ideal, &solver->options[option], sum, &plan->arena,
                            &plan->stages[plan->stage_count++]);
        ideal = solver->options[option].below;
        sum -= solver->options[option].data;
    }
    return status;
}

/* The best plan over the given down-sets that is within the limit. */
static xm_status_t price_and_trace(solver_t *solver, ap_piper_plan_t *plan)
{
    size_t count = (size_t)ap_ideals_count(solver->ideals);
    xm_arena_t *arena = &solver->arena;
    double seconds;

    solver->first_option = xm_arena_get(arena, count + 1, sizeof(int));
    solver->least_at = xm_arena_get(arena, (size_t)solver->problem->node_count + 1, sizeof(double));
    solver->fewest = xm_arena_get(arena, count * ((size_t)solver->bound + 1), sizeof(int16_t));
    solver->lowest = xm_arena_get(arena, count, sizeof(int));
    solver->highest = xm_arena_get(arena, count, sizeof(int));
    solver->walk = (ap_ideals_walk_t){.ideals = solver->ideals,
                                      .enter = enter,
                                      .leave = leave,
                                      .visit = price_stage,
                                      .arg = solver};
    solver->pricing.node_count = 0;
    memset(solver->pricing.inside, 0, (size_t)solver->problem->node_count * sizeof(bool));
    XM_TRY(ap_ideals_walk_init(&solver->walk, arena));
    XM_TRY(price_all(solver));
    plan->stages_priced = solver->option_count;
    seconds = bisect(solver);
    return seconds >= 0.0 ? trace(solver, seconds, plan)
                          : XM_NO_SOLUTION("no plan fits %d devices with %g bytes of memory each",
                                           solver->problem->devices, solver->problem->memory);
}

/* Each search begins with no options; their lists grow, so they are none of the arena's. */
static xm_status_t solve_over(solver_t *solver, ap_ideals_t *ideals, ap_piper_plan_t *plan)
{
    xm_status_t status;

    solver->ideals = ideals;
    solver->options = NULL;
    solver->steps = NULL;
    solver->option_count = solver->step_count = 0;
    solver->option_room = solver->step_room = 0;
    status = price_and_trace(solver, plan);
    free(solver->options);
    free(solver->steps);
    xm_arena_clear(&solver->arena);
    return status;
}

/* Turns the edges of the graph round: down-sets are then closed under successors, as the stages
 * after one are. */
static ap_precedence_t *turned_edges(const ap_piper_problem_t *problem, xm_arena_t *arena)
{
    ap_precedence_t *edges = xm_arena_get(arena, (size_t)problem->edge_count, sizeof(*edges));

    for (int i = 0; edges != NULL && i < problem->edge_count; ++i) {
        edges[i] = (ap_precedence_t){problem->edges[i].after, problem->edges[i].before};
    }
    return edges;
}

/* Lists the tensor-parallel degrees that occur, and what each layer takes at least. */
static xm_status_t bounding_pass(solver_t *solver)
{
    const ap_piper_problem_t *problem = solver->problem;
    xm_arena_t *arena = &solver->pricing.arena;
    bool *seen = xm_arena_get(arena, (size_t)problem->devices + 1, sizeof(*seen));

    if (arena->failed) {
        return no_memory(problem);
    }
    for (int i = 0; i < problem->node_count; ++i) {
        solver->least[i] = INFINITY;
        for (int j = 0; j < problem->nodes[i].degree_count; ++j) {
            const ap_piper_degree_t *degree = &problem->nodes[i].degrees[j];

            if (degree->tensor > problem->devices) {
                continue;
            }
            seen[degree->tensor] = true;
            for (int l = 0; l < degree->variant_count; ++l) {
                int data = problem->devices / degree->tensor;

                data = data < solver->bound ? data : solver->bound;
                solver->least[i] = fmin(solver->least[i], degree->variants[l].time / data);
            }
        }
        /* Rounding in sums must not cut off an answer. */
        solver->least[i] *= 1.0 - 1e-9;
    }
    for (int tensor = 1; tensor <= problem->devices; ++tensor) {
        if (seen[tensor]) {
            solver->degrees[solver->degree_count++] = tensor;
        }
    }
    return XM_OK;
}

/* Where there are too many down-sets, the answer along one order is what there is, and `exact`
 * stays false. */
static xm_status_t solve(solver_t *solver, const ap_precedence_t *edges, ap_piper_plan_t *plan)
{
    int nodes = solver->problem->node_count, count = solver->problem->edge_count;
    int most = MOST_CELLS / (solver->bound + 1);
    ap_piper_plan_t along = {0};
    ap_ideals_t *ideals;
    xm_status_t found, status = ap_ideals_create_chain(nodes, edges, count, false, &ideals);

    XM_TRY(status);
    found = solve_over(solver, ideals, &along);
    ap_ideals_destroy(ideals);
    if (found != XM_OK && found != XM_ERR_NO_SOLUTION) {
        ap_piper_plan_clear(&along);
        return found;
    }
    status =
        ap_ideals_create(nodes, edges, count, most < MOST_IDEALS ? most : MOST_IDEALS, &ideals);
    if (status == XM_ERR_NO_SOLUTION && found == XM_OK) {
        *plan = along;
        return XM_OK;
    }
    if (status == XM_OK) {
        solver->limit = found == XM_OK ? along.seconds * (1.0 + 1e-12) : INFINITY;
        status = solve_over(solver, ideals, plan);
        plan->exact = solver->pricing.exact;
        plan->ideals = ap_ideals_count(ideals);
        ap_ideals_destroy(ideals);
    }
    ap_piper_plan_clear(&along);
    return status;
}

/* What is needed for all searches lives as long as the pricing. */
static xm_status_t prepare(solver_t *solver, ap_precedence_t **edges)
{
    const ap_piper_problem_t *problem = solver->problem;
    xm_arena_t *arena = &solver->pricing.arena;
    xm_status_t status = ap_piper_pricing_create(problem, &solver->pricing);

    solver->bound =
        problem->micro_batches < problem->devices ? problem->micro_batches : problem->devices;
    solver->degrees = xm_arena_get(arena, (size_t)problem->devices, sizeof(int));
    solver->least = xm_arena_get(arena, (size_t)problem->node_count, sizeof(double));
    *edges = turned_edges(problem, arena);
    return status == XM_OK ? bounding_pass(solver) : status;
}

xm_status_t ap_piper_solve(const ap_piper_problem_t *problem, ap_piper_plan_t *plan)
{
    solver_t solver = {.problem = problem, .limit = INFINITY};
    ap_piper_plan_t found = {0};
    ap_precedence_t *edges;
    xm_status_t status;

    if (problem->node_count < 1 || problem->devices < 1 || problem->devices > MOST_DEVICES ||
        problem->micro_batches < 1 || !(problem->bandwidth > 0.0)) {
        return XM_INVALID("%d layers on %d devices, %d micro-batches, %g bytes per second: at "
                          "least one of each, and at most %d devices",
                          problem->node_count, problem->devices, problem->micro_batches,
                          problem->bandwidth, MOST_DEVICES);
    }
    status = prepare(&solver, &edges);
    XM_THEN(status, solve(&solver, edges, &found));
    ap_piper_pricing_clear(&solver.pricing);
    if (status != XM_OK) {
        ap_piper_plan_clear(&found);
        return status;
    }
    *plan = found;
    return XM_OK;
}

void ap_piper_plan_clear(ap_piper_plan_t *plan)
{
    xm_arena_clear(&plan->arena);
    *plan = (ap_piper_plan_t){0};
}

void ap_piper_problem_clear(ap_piper_problem_t *problem)
{
    xm_arena_clear(&problem->arena);
    *problem = (ap_piper_problem_t){0};
}
