/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rows whose pipelines have equal stages. Megatron, GPipe and PipeDream-2BW have so few
 * combinations of degrees that each is judged; a bound leaves out those that cannot win. Galvatron
 * chooses per layer among a few uniform ways, under the memory limit; its dynamic programme over
 * layers is the curve of time over memory (planner/published/choice/frontier.h) on a chain.
 */

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "planner/published/like/like_private.h"
#include "planner/published/choice.h"

enum { OPTIONS = 7, POINTS = 64 };

/* Micro-batches in flight on stage i of p, as planners count them. */
static int in_flight(const ap_like_t *like, const ap_like_case_t *one, int stages, int i)
{
    bool all = strcmp(like->row->schedule.kind, "gpipe") == 0;
    int64_t left = stages - i;

    return (int)(all || left > one->micro_batches ? one->micro_batches : left);
}

static void set_layers(const ap_like_t *like, int stages, int i, ap_stage_query_t *query)
{
    query->first = (int)((int64_t)i * like->layers / stages);
    query->last = (int)((int64_t)(i + 1) * like->layers / stages) - 1;
}

/* A device's passes of one step, which no schedule can shorten. */
static double busy(const ap_like_case_t *one, const ap_stage_cost_t *cost)
{
    return (double)one->micro_batches * (cost->forward + cost->backward) + cost->sync +
           cost->update;
}

/* Whether the judge need not look: slower than the best for certain, or too large where the best
 * fits. */
static bool is_hopeless(const ap_like_t *like, double bound, double memory)
{
    const ap_like_result_t *best = like->result;

    return best->plan != NULL &&
           (!ap_like_can_improve(like, bound) ||
            (like->row->memory && best->over_bytes <= 0.0 && memory > like->limit));
}

/* The solutions are freed here, judged or not. */
static xm_status_t evaluate_parts(ap_like_t *like, const ap_like_case_t *one, ap_plan_part_t *parts,
                                  int count, xm_status_t status)
{
    bool kept;

    if (status == XM_OK) {
        status = ap_like_consider(like, one, parts, count, &kept);
    }
    for (int i = 0; i < count; ++i) {
        ap_stage_solution_destroy(parts[i].solution);
    }
    free(parts);
    return status;
}

static xm_status_t allocate_parts(int count, ap_plan_part_t **parts)
{
    *parts = calloc((size_t)count, sizeof(**parts));
    return *parts != NULL ? XM_OK : XM_NO_MEMORY("%d stages", count);
}

/* One point of the grid: evaluated first, which is quick, and solved only if it may win. */
static xm_status_t try_degrees(ap_like_t *like, const ap_like_case_t *one, int stages,
                               const ap_stage_query_t *degrees)
{
    double bound = 0.0, memory = 0.0;
    ap_plan_part_t *parts;
    xm_status_t status = XM_OK;

    for (int i = 0; i < stages && status == XM_OK; ++i) {
        ap_stage_query_t query = *degrees;
        ap_stage_cost_t cost;

        set_layers(like, stages, i, &query);
        status = ap_stage_evaluate(one->context, &query, &cost);
        if (status == XM_OK) {
            bound = fmax(bound, busy(one, &cost));
            memory = fmax(memory, ap_stage_memory(&cost, in_flight(like, one, stages, i)));
        }
    }
    if (status != XM_OK || is_hopeless(like, bound, memory)) {
        return status;
    }
    status = allocate_parts(stages, &parts);
    if (status != XM_OK) {
        return status;
    }
    for (int i = 0; i < stages && status == XM_OK; ++i) {
        parts[i].query = *degrees;
        parts[i].first_device = i * degrees->hosts * degrees->devices;
        set_layers(like, stages, i, &parts[i].query);
        status = ap_stage_solve(one->context, &parts[i].query, &parts[i].solution);
    }
    return evaluate_parts(like, one, parts, stages, status);
}

typedef xm_status_t try_fn(ap_like_t *like, const ap_like_case_t *one, int stages,
                           const ap_stage_query_t *degrees, void *arg);

/* Tries every number of stages and logical shape that the row and the caller allow. */
static xm_status_t each_degrees(ap_like_t *like, const ap_like_case_t *one, try_fn *attempt,
                                void *arg)
{
    int total = like->hosts * like->devices_per_host;
    int most = like->params.max_stages > 0 ? like->params.max_stages : total;
    xm_status_t status = XM_OK;

    for (int stages = 1; stages <= most && stages <= total && status == XM_OK; ++stages) {
        ap_stage_query_t query = AP_STAGE_QUERY_INIT;

        if (stages < like->params.min_stages || !ap_like_submesh(like, stages, &query)) {
            continue;
        }
        while (status == XM_OK && ap_like_next_shape(like, &query)) {
            status = attempt(like, one, stages, &query, arg);
            if (status == XM_ERR_NO_SOLUTION) {
                (void)snprintf(like->result->why, sizeof(like->result->why), "%s", xm_last_error());
                status = XM_OK;
            }
        }
    }
    return status;
}

static xm_status_t try_grid(ap_like_t *like, const ap_like_case_t *one, int stages,
                            const ap_stage_query_t *degrees, void *arg)
{
    (void)arg;
    return try_degrees(like, one, stages, degrees);
}

xm_status_t ap_like_grid(ap_like_t *like, ap_like_case_t *one)
{
    return each_degrees(like, one, try_grid, NULL);
}

/* What a layer does with the two axes, in the layer-wise search. */
typedef struct option {
    unsigned role[2];
    bool sharded; /* parameters live in parts on the data axes */
} option_t;

static const option_t options[OPTIONS] = {
    {{AP_ROLE_DATA, AP_ROLE_DATA}, false},     {{AP_ROLE_DATA, AP_ROLE_DATA}, true},
    {{AP_ROLE_DATA, AP_ROLE_TENSOR}, false},   {{AP_ROLE_DATA, AP_ROLE_TENSOR}, true},
    {{AP_ROLE_TENSOR, AP_ROLE_DATA}, false},   {{AP_ROLE_TENSOR, AP_ROLE_DATA}, true},
    {{AP_ROLE_TENSOR, AP_ROLE_TENSOR}, false},
};

/* The options that differ on one logical shape, and a context for each. */
typedef struct uniform {
    ap_stage_context_t *context[OPTIONS]; /* of all options */
    int list[OPTIONS], count;             /* those that differ here */
    ap_stage_query_t degrees;
    int stages;
} uniform_t;

/* Lists the options that differ here: an axis of one device is called `data`, so no option comes
 * twice under two names. */
static void list_options(uniform_t *u)
{
    u->count = 0;
    for (int o = 0; o < OPTIONS; ++o) {
        bool differs = true;

        for (int a = 0; a < 2; ++a) {
            differs = differs && (u->degrees.shape[a] > 1 || options[o].role[a] == AP_ROLE_DATA);
        }
        if (differs) {
            u->list[u->count++] = o;
        }
    }
}

/* The spec between two layers: the batch, dimension 0, over the data axes. */
static ap_spec_t spec_of(const uniform_t *u, int option)
{
    unsigned axes = 0;

    for (int a = 0; a < 2; ++a) {
        axes |= u->degrees.shape[a] > 1 && options[option].role[a] == AP_ROLE_DATA ? 1U << a : 0U;
    }
    return ap_spec_with(AP_SPEC_REPLICATED, 0, axes);
}

static ap_stage_query_t layer_query(const ap_like_t *like, const uniform_t *u, int layer,
                                    int before, int option)
{
    ap_stage_query_t query = u->degrees;

    query.first = query.last = layer;
    query.fix_input = layer > 0;
    query.input = spec_of(u, before);
    query.fix_output = layer < like->layers - 1;
    query.output = spec_of(u, option);
    return query;
}

/* One stage's choice network: a variable per layer, a link to the next. */
typedef struct layer_choices {
    ap_cfn_core_t *network;
    double *work; /* [layers][options] */
} layer_choices_t;

static void choices_close(layer_choices_t *c)
{
    ap_cfn_core_destroy(c->network);
    free(c->work);
}

/* Seconds of a layer in one option after another; AP_COST_INFINITE where nothing divides. */
static xm_status_t layer_cost(const ap_like_t *like, const ap_like_case_t *one, const uniform_t *u,
                              int layer, int before, int option, ap_stage_cost_t *cost,
                              double *seconds)
{
    ap_stage_query_t query = layer_query(like, u, layer, before, option);
    xm_status_t status = ap_stage_evaluate(u->context[option], &query, cost);

    *seconds =
        status == XM_OK ? ap_stage_objective(cost, (int)one->micro_batches) : AP_COST_INFINITE;
    if (status != XM_OK) {
        *cost = (ap_stage_cost_t){0};
    }
    /* A spec that does not divide is refused as an argument. */
    return status == XM_ERR_NO_SOLUTION || status == XM_ERR_INVALID_ARGUMENT ? XM_OK : status;
}

/* A layer's seconds depend on the option before it, so they stand in the link to it; only the first
 * layer has seconds of its own. Options that are impossible stay infinite in both. */
static xm_status_t choices_open(const ap_like_t *like, const ap_like_case_t *one,
                                const uniform_t *u, int first, int layers, int held,
                                layer_choices_t *c)
{
    size_t n = (size_t)layers, k = (size_t)u->count;
    const ap_cfn_core_size_t size = {.variables = layers,
                                     .links = layers - 1,
                                     .times = 1,
                                     .values = n * k,
                                     .segments = n,
                                     .usages = n * k,
                                     .cells = (n - 1) * k * k};
    ap_cfn_core_maker_t maker;
    xm_status_t status = ap_cfn_core_begin(&size, &maker);

    if (status != XM_OK) {
        return status;
    }
    c->work = calloc(n * k, sizeof(double));
    if (c->work == NULL) {
        status = XM_NO_MEMORY("%d layers", layers);
    }
    for (int i = 0; i < layers && status == XM_OK; ++i) {
        double *seconds = ap_cfn_core_add_variable(&maker, u->count);
        double *bytes = ap_cfn_core_add_segment(&maker, 0, 1);
        double *table = i > 0 ? ap_cfn_core_add_link(&maker, i - 1, i) : NULL;

        for (int to = 0; to < u->count && status == XM_OK; ++to) {
            ap_stage_cost_t cost;

            status =
                layer_cost(like, one, u, first + i, u->list[to], u->list[to], &cost, &seconds[to]);
            bytes[to] = cost.mem_stage + held * cost.mem_act;
            c->work[i * u->count + to] = cost.mem_work;
            seconds[to] = i == 0 || seconds[to] >= AP_COST_INFINITE ? seconds[to] : 0.0;
            for (int from = 0; from < u->count && i > 0 && status == XM_OK; ++from) {
                status = layer_cost(like, one, u, first + i, u->list[from], u->list[to], &cost,
                                    &table[from * u->count + to]);
            }
        }
    }
    c->network = ap_cfn_core_finish(&maker);
    return status;
}

/* The fastest point whose memory fits, else the one with the least memory. */
static const ap_frontier_point_t *pick(const ap_like_t *like, const uniform_t *u, int layers,
                                       const layer_choices_t *c, const ap_frontier_t *frontier)
{
    for (int i = 0; i < frontier->count; ++i) {
        const ap_frontier_point_t *point = &frontier->points[i];
        double work = 0.0;

        for (int l = 0; l < layers; ++l) {
            work = fmax(work, c->work[l * u->count + point->assignment[l]]);
        }
        if (point->bytes + work <= like->limit) {
            return point;
        }
    }
    return &frontier->points[frontier->count - 1];
}

/* The stage's layers, each solved in its option, joined to one solution. */
static xm_status_t solve_layers(const ap_like_t *like, const uniform_t *u, int first, int layers,
                                const int *assignment, ap_stage_solution_t **solution)
{
    ap_stage_solution_t **parts = calloc((size_t)layers, sizeof(ap_stage_solution_t *));
    xm_status_t status = XM_OK;

    if (parts == NULL) {
        return XM_NO_MEMORY("%d layers", layers);
    }
    for (int i = 0; i < layers && status == XM_OK; ++i) {
        int option = u->list[assignment[i]];
        int before = i > 0 ? u->list[assignment[i - 1]] : option;
        ap_stage_query_t query = layer_query(like, u, first + i, before, option);

        status = ap_stage_solve(u->context[option], &query, &parts[i]);
    }
    if (status == XM_OK) {
        status = ap_stage_solution_join(parts, layers, solution);
    }
    for (int i = 0; i < layers; ++i) {
        ap_stage_solution_destroy(parts[i]);
    }
    free(parts);
    return status;
}

static xm_status_t choose_layers(const ap_like_t *like, const ap_like_case_t *one,
                                 const uniform_t *u, int stage, ap_plan_part_t *part)
{
    int first = part->query.first, layers = part->query.last - first + 1;
    ap_frontier_t frontier = {0};
    layer_choices_t choices = {0};
    const ap_frontier_point_t *point;
    xm_status_t status =
        choices_open(like, one, u, first, layers, in_flight(like, one, u->stages, stage), &choices);

    if (status == XM_OK) {
        status = ap_search_frontier(choices.network, POINTS, &frontier);
    }
    if (status == XM_OK) {
        point = pick(like, u, layers, &choices, &frontier);
        status = point->seconds < AP_COST_INFINITE
                     ? solve_layers(like, u, first, layers, point->assignment, &part->solution)
                     : XM_NO_SOLUTION(
                           "no uniform sharding of layers %d to %d divides on %d x %d devices",
                           first, part->query.last, u->degrees.shape[0], u->degrees.shape[1]);
    }
    ap_frontier_clear(&frontier);
    choices_close(&choices);
    return status;
}

static xm_status_t try_layerwise(ap_like_t *like, const ap_like_case_t *one, int stages,
                                 const ap_stage_query_t *degrees, void *arg)
{
    uniform_t *u = arg;
    ap_plan_part_t *parts;
    double bound = 0.0;
    xm_status_t status = allocate_parts(stages, &parts);

    u->degrees = *degrees;
    u->stages = stages;
    list_options(u);
    for (int i = 0; i < stages && status == XM_OK; ++i) {
        parts[i].query = *degrees;
        parts[i].first_device = i * degrees->hosts * degrees->devices;
        set_layers(like, stages, i, &parts[i].query);
        status = choose_layers(like, one, u, i, &parts[i]);
        if (status == XM_OK) {
            bound = fmax(bound, busy(one, ap_stage_solution_cost(parts[i].solution)));
            status = is_hopeless(like, bound, 0.0) ? XM_ERR_NO_SOLUTION : XM_OK;
        }
    }
    return evaluate_parts(like, one, parts, stages, status);
}

xm_status_t ap_like_layerwise(ap_like_t *like, ap_like_case_t *one)
{
    uniform_t u = {0};
    xm_status_t status = XM_OK;

    for (int o = 0; o < OPTIONS && status == XM_OK; ++o) {
        ap_space_t space = like->row->space;

        space.roles[0] = options[o].role[0];
        space.roles[1] = options[o].role[1];
        space.parameter_modes =
            1U << (options[o].sharded ? AP_PARAMETER_SHARDED : AP_PARAMETER_REPLICATED);
        status = ap_like_context(like, one, &space, &u.context[o]);
    }
    if (status == XM_OK) {
        status = each_degrees(like, one, try_layerwise, &u);
    }
    for (int o = 0; o < OPTIONS; ++o) {
        ap_stage_context_destroy(u.context[o]);
    }
    return status;
}
