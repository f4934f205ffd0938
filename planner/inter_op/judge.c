/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a plan takes: by the objective, which the dynamic programme can bound, and by the caller's
 * judge, who simulates it. The objective is never above what the judge says as long as its tables
 * are lower bounds; so plans are judged in the order of their objectives, until that of the next
 * one is not below the best that was judged.
 */

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "planner/inter_op/inter_op_private.h"

/* The period that a run of stages allows: what its first stage hands over comes back after all of
 * it, and by then so many micro-batches may be under way that the window of the first is larger
 * than that of the last. */
static double window_period(const ap_inter_op_clock_t *clock, const ap_inter_op_stage_t *stages,
                            int first, int last, double *inside)
{
    int tokens = clock->ahead * (last - first) + 1;

    *inside += (1.0 - clock->delayed) * stages[first].seconds;
    return (*inside + clock->delayed * stages[first].seconds) / tokens;
}

/* Evaluates T of a plan from its stages, not from the programme's value: that one is a sum in
 * another order, or a lower bound. */
void ap_inter_op_measure(const ap_inter_op_problem_t *problem, const ap_inter_op_stage_t *stages,
                         int count, ap_inter_op_result_t *result)
{
    const ap_inter_op_clock_t *clock = &problem->clock;

    result->sum = 0.0;
    result->period = 0.0;
    for (int i = 0; i < count; ++i) {
        double inside = 0.0;

        result->sum += stages[i].seconds + stages[i].boundary_seconds;
        result->period = fmax(result->period, stages[i].seconds);
        result->period = fmax(result->period, clock->station * stages[i].boundary_seconds);
        for (int first = i; clock->ahead > 0 && first >= 0; --first) {
            result->period = fmax(result->period, window_period(clock, stages, first, i, &inside));
            inside += clock->certain * stages[first].boundary_seconds;
        }
    }
    result->objective = result->sum + (double)(problem->micro_batches - 1) * result->period;
    result->stage_count = count;
}

/* The caller's stop function may look at a clock, so it is asked once per point and per threshold
 * only. */
bool ap_inter_op_must_stop(ap_inter_op_judge_t *judge)
{
    judge->stopped = judge->stopped || (judge->problem->stop != NULL &&
                                        judge->problem->stop(judge->problem->stop_arg));
    return judge->stopped;
}

/* Whether every stage of a plan may have as many stages after it as it has. */
static bool fits_memory(const ap_inter_op_problem_t *problem, const ap_inter_op_stage_t *stages,
                        int count)
{
    for (int i = 0; problem->max_successors != NULL && i < count; ++i) {
        size_t cell = ap_inter_op_cell(problem, stages[i].first_layer, stages[i].last_layer,
                                       stages[i].submesh);
        size_t entry = cell * (size_t)problem->config_count + (size_t)stages[i].config;

        if (problem->max_successors[entry] < count - 1 - i) {
            return false;
        }
    }
    return true;
}

/* How many devices a plan uses. */
static int devices_of(const ap_inter_op_problem_t *problem, const ap_inter_op_stage_t *stages,
                      int count)
{
    int devices = 0;

    for (int i = 0; i < count; ++i) {
        const ap_submesh_t *shape = &problem->submeshes[stages[i].submesh];

        devices += shape->hosts * shape->devices;
    }
    return devices;
}

/* Of plans that are as fast, the one that leaves more hosts out. */
static bool is_better(const ap_inter_op_problem_t *problem, const ap_inter_op_stage_t *stages,
                      const ap_inter_op_result_t *found, const ap_inter_op_result_t *best)
{
    static const double EQUAL = 1e-6;

    if (!problem->spare_hosts || best->stage_count == 0 ||
        fabs(found->seconds - best->seconds) > EQUAL * best->seconds) {
        return found->seconds < best->seconds;
    }
    return devices_of(problem, stages, found->stage_count) <
           devices_of(problem, best->stages, best->stage_count);
}

/* What plans that begin so take at least. The objective knows nothing of when what happens; the
 * caller's floor may, so the larger of both says which front is the most promising. */
static double floor_of(const ap_inter_op_problem_t *problem, const ap_inter_op_stage_t *stages,
                       int count, double rest)
{
    return problem->judge != NULL && problem->floor != NULL
               ? problem->floor(problem->judge_arg, stages, count, rest)
               : 0.0;
}

void ap_inter_op_consider(ap_inter_op_judge_t *judge, const ap_inter_op_stage_t *stages,
                          const ap_inter_op_result_t *measured)
{
    const ap_inter_op_problem_t *problem = judge->problem;
    ap_inter_op_result_t *best = judge->best, found = *measured;

    ++best->limits_tried;
    if (!fits_memory(problem, stages, measured->stage_count)) {
        judge->misfit = true;
        return;
    }
    if (measured->objective >= best->seconds ||
        floor_of(problem, stages, measured->stage_count, 0.0) >= best->seconds) {
        return;
    }
    found.seconds = problem->judge != NULL
                        ? problem->judge(problem->judge_arg, stages, measured->stage_count)
                        : measured->objective;
    if (is_better(problem, stages, &found, best)) {
        memcpy(best->stages, stages, (size_t)found.stage_count * sizeof(*stages));
        found.stages = best->stages;
        found.limits_tried = best->limits_tried;
        *best = found;
    }
}

/* The front of a pipeline whose rest is still open. */
typedef struct front {
    double bound;       /* of T, whatever follows */
    double sum, period; /* so far */
    int parent;         /* -1: none */
    int edge;           /* its last stage; -1: it has none */
    int value;          /* what follows */
    int count;
} front_t;

/* Fronts by their bounds: a heap of indices into an array that only grows. */
typedef struct fronts {
    ap_inter_op_judge_t *judge;
    ap_inter_op_graph_t *graph;
    xm_arena_t arena;                 /* the arrays that do not grow */
    double *least_sum, *least_period; /* per value: of the rest of the pipeline */
    front_t *front;
    int *heap, count, waiting;
    size_t room, heap_room;
    ap_inter_op_stage_t *stages; /* scratch */
} fronts_t;

/* Of fronts with equal bounds the older one comes first, so that the order depends on the tables
 * alone. */
static bool before(const fronts_t *fronts, int a, int b)
{
    double left = fronts->front[a].bound, right = fronts->front[b].bound;

    return left < right || (left == right && a < b);
}

/* Takes a front in. The caller has made room for it. */
static void push(fronts_t *fronts, const front_t *front)
{
    int at = fronts->waiting++;

    fronts->front[fronts->count] = *front;
    while (at > 0 && before(fronts, fronts->count, fronts->heap[(at - 1) / 2])) {
        fronts->heap[at] = fronts->heap[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    fronts->heap[at] = fronts->count++;
}

/* Takes the front with the least bound from the heap; it stays in the array, for others name it as
 * their parent. */
static int pop(fronts_t *fronts)
{
    int top = fronts->heap[0], moved = fronts->heap[--fronts->waiting], at = 0;

    for (int child = 1; child < fronts->waiting; child = 2 * at + 1) {
        if (child + 1 < fronts->waiting &&
            before(fronts, fronts->heap[child + 1], fronts->heap[child])) {
            ++child;
        }
        if (!before(fronts, fronts->heap[child], moved)) {
            break;
        }
        fronts->heap[at] = fronts->heap[child];
        at = child;
    }
    fronts->heap[at] = moved;
    return top;
}

/* Makes room for so many more; false: no memory. What there is stays in any case. */
static bool reserve(fronts_t *fronts, int more)
{
    size_t wanted = (size_t)fronts->count + (size_t)more;

    return xm_array_reserve(&fronts->front, &fronts->room, wanted, sizeof(*fronts->front)) &&
           xm_array_reserve(&fronts->heap, &fronts->heap_room, wanted, sizeof(*fronts->heap));
}

/* Writes the stages of a front and measures them. */
static void trace(const fronts_t *fronts, int index, ap_inter_op_result_t *measured)
{
    const ap_inter_op_graph_t *graph = fronts->graph;
    int count = fronts->front[index].count;

    for (int at = index; fronts->front[at].parent >= 0; at = fronts->front[at].parent) {
        const front_t *parent = &fronts->front[fronts->front[at].parent];
        const ap_inter_op_node_t *node =
            &graph->nodes[ap_inter_op_node_behind(graph, parent->value)];

        ap_inter_op_stage_of(graph, node, parent->value - node->first_out,
                             &graph->edges[fronts->front[at].edge],
                             &fronts->stages[fronts->front[at].count - 1]);
    }
    ap_inter_op_measure(graph->space->problem, fronts->stages, count, measured);
}

/* Asks for the costs of a whole pipeline's boundaries. *changed: its objective has grown. */
static xm_status_t settle(const fronts_t *fronts, int index, bool *changed)
{
    const ap_inter_op_graph_t *graph = fronts->graph;

    for (int at = index; fronts->front[at].parent >= 0; at = fronts->front[at].parent) {
        const front_t *parent = &fronts->front[fronts->front[at].parent];
        const ap_inter_op_node_t *node =
            &graph->nodes[ap_inter_op_node_behind(graph, parent->value)];

        XM_TRY(ap_inter_op_settle_one(graph, node, parent->value - node->first_out,
                                      graph->edges[fronts->front[at].edge].in, 0.0, changed));
    }
    return XM_OK;
}

/* Adds every stage that can follow, as long as its bound is below the best. */
static bool expand(fronts_t *fronts, int index)
{
    const ap_inter_op_graph_t *graph = fronts->graph;
    front_t front = fronts->front[index];
    const ap_inter_op_node_t *node = &graph->nodes[ap_inter_op_node_behind(graph, front.value)];
    double rounds = (double)(graph->space->problem->micro_batches - 1);

    if (!reserve(fronts, (int)(node->end_edge - node->first_edge))) {
        return false;
    }
    for (size_t e = node->first_edge; e < node->end_edge; ++e) {
        int after = graph->edges[e].after;
        front_t next = {.parent = index, .edge = (int)e, .value = after, .count = front.count + 1};
        ap_inter_op_result_t measured;

        if (!(fronts->least_sum[after] < INFINITY)) {
            continue;
        }
        fronts->front[fronts->count] = next;
        trace(fronts, fronts->count, &measured);
        next.sum = measured.sum;
        next.period = measured.period;
        next.bound = fmax(front.bound, next.sum + fronts->least_sum[after] +
                                           rounds * fmax(next.period, fronts->least_period[after]));
        next.bound = fmax(next.bound, floor_of(graph->space->problem, fronts->stages, next.count,
                                               fronts->least_sum[after]));
        if (next.bound < fronts->judge->best->seconds) {
            push(fronts, &next);
        }
    }
    return true;
}

/* Bounds the rest of the pipeline behind every value: least sum and least period, each by a run of
 * its own. */
static bool bound_rests(fronts_t *fronts)
{
    ap_inter_op_graph_t *graph = fronts->graph;
    const ap_inter_op_node_t *end = &graph->nodes[graph->node_count - 1];
    int values = end->first_out + end->out_count;
    ap_inter_op_start_t start;

    fronts->least_sum = xm_arena_take(&fronts->arena, (size_t)values * sizeof(double));
    fronts->least_period = xm_arena_take(&fronts->arena, (size_t)values * sizeof(double));
    fronts->stages =
        xm_arena_take(&fronts->arena, (size_t)graph->space->layers * sizeof(*fronts->stages));
    if (fronts->arena.failed) {
        return false;
    }
    graph->limit = INFINITY;
    for (int pass = 0; pass < 2; ++pass) {
        double *least = pass == 0 ? fronts->least_sum : fronts->least_period;

        graph->use_max = pass == 1;
        (void)ap_inter_op_graph_run(graph, &start);
        for (int v = 0; v < values; ++v) {
            least[v] = graph->value[v].count > 0 ? graph->value[v].label[0].cost : INFINITY;
        }
    }
    return true;
}

/* Takes up the most promising front again and again. Whole pipelines are judged; of others the next
 * stages are looked at. What is still waiting at the end bounds what was not looked at. */
static double search(fronts_t *fronts, int budget)
{
    enum { MOST_FRONTS = 1 << 14 };
    ap_inter_op_judge_t *judge = fronts->judge;
    const ap_inter_op_graph_t *graph = fronts->graph;

    while (fronts->waiting > 0 && fronts->count < MOST_FRONTS && budget > 0 &&
           judge->status == XM_OK && fronts->front[fronts->heap[0]].bound < judge->best->seconds) {
        int index = pop(fronts);
        const ap_inter_op_node_t *node =
            &graph->nodes[ap_inter_op_node_behind(graph, fronts->front[index].value)];
        ap_inter_op_result_t measured = {0};
        bool changed = false;
        double bound;

        if (node->layer < graph->space->layers) {
            if (!expand(fronts, index)) {
                return fronts->front[index].bound;
            }
            continue;
        }
        judge->status = settle(fronts, index, &changed);
        trace(fronts, index, &measured);
        bound = fmax(measured.objective,
                     floor_of(judge->problem, fronts->stages, measured.stage_count, 0.0));
        if ((changed || bound > fronts->front[index].bound) && reserve(fronts, 1)) {
            front_t again = fronts->front[index];

            again.bound = fmax(again.bound, bound);
            push(fronts, &again);
            continue;
        }
        ap_inter_op_consider(judge, fronts->stages, &measured);
        --budget;
    }
    return fronts->waiting > 0 ? fmin(judge->best->seconds, fronts->front[fronts->heap[0]].bound)
                               : judge->best->seconds;
}

/* A failure for want of memory bounds nothing, and is none for the caller: what was found before
 * stays. */
double ap_inter_op_enumerate(ap_inter_op_judge_t *judge, ap_inter_op_graph_t *graph, int budget)
{
    fronts_t fronts = {.judge = judge, .graph = graph};
    double bound = 0.0;

    if (graph->node_count > 0 && bound_rests(&fronts) && reserve(&fronts, graph->node_count)) {
        for (int n = 0; n < graph->node_count; ++n) {
            const ap_inter_op_node_t *node = &graph->nodes[n];
            front_t whole = {.parent = -1, .edge = -1, .value = node->first_out};

            if (node->layer == 0 && fronts.least_sum[node->first_out] < INFINITY) {
                push(&fronts, &whole);
            }
        }
        bound = search(&fronts, budget);
    }
    free(fronts.heap);
    free(fronts.front);
    xm_arena_clear(&fronts.arena);
    return bound;
}
