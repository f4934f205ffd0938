/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Galvatron's search: equal numbers of devices to every stage, and in a stage one of a few uniform
 * shardings for each layer, chosen under the memory limit by the curve of time over memory
 * (planner/published/choice/frontier.h) on a chain. Layers move between stages until none takes
 * longer, or needs more, for nothing. A file of Galvatron takes the place of both choices.
 */

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "planner/published/choice.h"
#include "planner/published/like/galvatron.h"
#include "planner/published/like/like_private.h"

enum { OPTIONS = 7, POINTS = 64 };

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
    int *chosen; /* per layer: its option; then what it was before a layer was moved */
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
    xm_status_t status = XM_OK;

    XM_TRY(ap_cfn_core_begin(&size, &maker));
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

    XM_NEED_MEMORY(parts, "%d layers", layers);
    for (int i = 0; i < layers && status == XM_OK; ++i) {
        int option = u->list[assignment[i]];
        int before = i > 0 ? u->list[assignment[i - 1]] : option;
        ap_stage_query_t query = layer_query(like, u, first + i, before, option);

        status = ap_stage_solve(u->context[option], &query, &parts[i]);
    }
    XM_THEN(status, ap_stage_solution_join(parts, layers, solution));
    for (int i = 0; i < layers; ++i) {
        ap_stage_solution_destroy(parts[i]);
    }
    free(parts);
    return status;
}

/* The option that Galvatron's file has for a layer; -1: this shape has none. */
static int told_option(const uniform_t *u, const ap_galvatron_layer_t *told)
{
    const int *shape = u->degrees.shape;

    for (int i = 0; i < u->count; ++i) {
        const option_t *option = &options[u->list[i]];
        int degree = 1;
        bool whole;

        for (int a = 0; a < 2; ++a) {
            degree *= option->role[a] == AP_ROLE_TENSOR ? shape[a] : 1;
        }
        whole = degree == 1 || degree == shape[0] * shape[1] || shape[1] == 1;
        if (degree == told->tensor &&
            (whole || told->consecutive == (option->role[1] == AP_ROLE_TENSOR)) &&
            (option->sharded == told->sharded || degree == shape[0] * shape[1])) {
            return i;
        }
    }
    return -1;
}

static xm_status_t take_told(const ap_galvatron_t *told, const uniform_t *u, int first, int layers,
                             int *assignment)
{
    for (int i = 0; i < layers; ++i) {
        assignment[i] = told_option(u, &told->layer[first + i]);
        if (assignment[i] < 0) {
            return XM_NO_SOLUTION("no mesh of two axes on %d devices has a tensor parallel degree "
                                  "of %d in layer %d besides the others'",
                                  u->degrees.shape[0] * u->degrees.shape[1],
                                  told->layer[first + i].tensor, first + i);
        }
    }
    return XM_OK;
}

/* Chooses by the curve of time over memory. */
static xm_status_t search_layers(const ap_like_t *like, const ap_like_case_t *one,
                                 const uniform_t *u, int stage, const ap_plan_part_t *part,
                                 int *assignment)
{
    int first = part->query.first, layers = part->query.last - first + 1;
    ap_frontier_t frontier = {0};
    layer_choices_t choices = {0};
    xm_status_t status = choices_open(like, one, u, first, layers,
                                      ap_like_in_flight(like, one, u->stages, stage), &choices);

    XM_THEN(status, ap_search_frontier(choices.network, POINTS, &frontier));
    if (status == XM_OK) {
        const ap_frontier_point_t *point = pick(like, u, layers, &choices, &frontier);

        memcpy(assignment, point->assignment, (size_t)layers * sizeof(*assignment));
        status = point->seconds < AP_COST_INFINITE
                     ? XM_OK
                     : XM_NO_SOLUTION(
                           "no uniform sharding of layers %d to %d divides on %d x %d devices",
                           first, part->query.last, u->degrees.shape[0], u->degrees.shape[1]);
    }
    ap_frontier_clear(&frontier);
    choices_close(&choices);
    return status;
}

/* A stage, and what it is worth. */
typedef struct weighed {
    ap_plan_part_t part;
    double seconds, over; /* of a device: busy in a step, bytes beyond the limit */
} weighed_t;

static bool is_lighter(const weighed_t *a, const weighed_t *b)
{
    return a->over < b->over || (a->over <= b->over && a->seconds < b->seconds);
}

/* The solution is made anew. */
static xm_status_t weigh(const ap_like_t *like, const ap_like_case_t *one, uniform_t *u, int stage,
                         weighed_t *of)
{
    int first = of->part.query.first, layers = of->part.query.last - first + 1;
    int *assignment = malloc((size_t)layers * sizeof(*assignment));
    xm_status_t status = assignment == NULL ? XM_NO_MEMORY("%d layers", layers)
                         : like->effort.galvatron != NULL
                             ? take_told(like->effort.galvatron, u, first, layers, assignment)
                             : search_layers(like, one, u, stage, &of->part, assignment);

    of->part.solution = NULL;
    XM_THEN(status, solve_layers(like, u, first, layers, assignment, &of->part.solution));
    if (status == XM_OK) {
        const ap_stage_cost_t *cost = ap_stage_solution_cost(of->part.solution);

        of->seconds = ap_like_busy(one, cost);
        of->over = fmax(0, ap_stage_memory(cost, ap_like_in_flight(like, one, u->stages, stage)) -
                               like->limit);
        for (int i = 0; i < layers; ++i) {
            u->chosen[first + i] = u->list[assignment[i]];
        }
    }
    free(assignment);
    return status;
}

/* Moves a layer from one stage to the one beside it. False: that is no better. */
static xm_status_t move_layer(const ap_like_t *like, const ap_like_case_t *one, uniform_t *u,
                              weighed_t *stages, int from, int to, bool *moved)
{
    weighed_t now[2] = {stages[from], stages[to]};
    xm_status_t status;

    *(to < from ? &now[0].part.query.first : &now[0].part.query.last) += to < from ? 1 : -1;
    *(to < from ? &now[1].part.query.last : &now[1].part.query.first) += to < from ? 1 : -1;
    now[1].part.solution = NULL;
    memcpy(u->chosen + like->layers, u->chosen, (size_t)like->layers * sizeof(*u->chosen));
    status = weigh(like, one, u, from, &now[0]);
    XM_THEN(status, weigh(like, one, u, to, &now[1]));
    *moved =
        status == XM_OK && is_lighter(&now[0], &stages[from]) && is_lighter(&now[1], &stages[from]);
    for (int i = 0; i < 2; ++i) {
        weighed_t *old = &stages[i == 0 ? from : to];

        ap_stage_solution_destroy(*moved ? old->part.solution : now[i].part.solution);
        *old = *moved ? now[i] : *old;
    }
    if (!*moved) {
        memcpy(u->chosen, u->chosen + like->layers, (size_t)like->layers * sizeof(*u->chosen));
    }
    return status == XM_ERR_NO_SOLUTION ? XM_OK : status;
}

/* Balances stages by both time and memory: the one that needs too much, or else takes longest,
 * gives a layer to a stage beside it as long as neither becomes as heavy. */
static xm_status_t balance(const ap_like_t *like, const ap_like_case_t *one, uniform_t *u,
                           weighed_t *stages)
{
    bool moved = true;

    while (moved) {
        int heavy = 0;

        for (int i = 1; i < u->stages; ++i) {
            heavy = is_lighter(&stages[heavy], &stages[i]) ? i : heavy;
        }
        moved = false;
        for (int to = heavy - 1; to <= heavy + 1 && !moved; to += 2) {
            if (to >= 0 && to < u->stages &&
                stages[heavy].part.query.first < stages[heavy].part.query.last) {
                XM_TRY(move_layer(like, one, u, stages, heavy, to, &moved));
            }
        }
    }
    return XM_OK;
}

/* The embedding is in the first stage and the head in the last. */
static void set_told_layers(const ap_galvatron_t *told, int stage, ap_stage_query_t *query)
{
    query->first = stage > 0;
    for (int s = 0; s < stage; ++s) {
        query->first += told->division[s];
    }
    query->last =
        query->first + told->division[stage] - 1 + (stage == 0) + (stage == told->stages - 1);
}

/* What was chosen, as Galvatron would have it written. */
static xm_status_t keep_galvatron(ap_like_t *like, const ap_like_case_t *one, const uniform_t *u,
                                  const weighed_t *stages)
{
    ap_galvatron_t *made;

    XM_TRY(ap_galvatron_create(u->stages, like->layers - 2, &made));
    made->batch = ap_plan_info(like->result->plan)->global_batch;
    made->chunks = one->micro_batches;
    made->recompute = one->recompute;
    made->state_sharded = like->effort.galvatron != NULL && like->effort.galvatron->state_sharded;
    for (int s = 0; s < u->stages; ++s) {
        const ap_stage_query_t *query = &stages[s].part.query;

        made->division[s] = query->last - query->first + 1 - (s == 0) - (s == u->stages - 1);
    }
    for (int l = 0; l < like->layers; ++l) {
        const option_t *option = &options[u->chosen[l]];
        const bool cut[2] = {option->role[0] == AP_ROLE_TENSOR, option->role[1] == AP_ROLE_TENSOR};

        made->layer[l] = (ap_galvatron_layer_t){
            .tensor = (cut[0] ? u->degrees.shape[0] : 1) * (cut[1] ? u->degrees.shape[1] : 1),
            .consecutive = !cut[0] || cut[1] || u->degrees.shape[1] == 1,
            .sharded = option->sharded};
    }
    ap_galvatron_destroy(like->result->galvatron);
    like->result->galvatron = made;
    return XM_OK;
}

static xm_status_t try_layerwise(ap_like_t *like, const ap_like_case_t *one, int stages,
                                 const ap_stage_query_t *degrees, void *arg)
{
    const ap_galvatron_t *told = like->effort.galvatron;
    uniform_t *u = arg;
    weighed_t *of = calloc((size_t)stages, sizeof(*of));
    ap_plan_part_t *parts = NULL;
    double bound = 0.0;
    bool kept = false;
    xm_status_t status = of == NULL ? XM_NO_MEMORY("%d stages", stages) : XM_OK;

    u->degrees = *degrees;
    u->stages = stages;
    list_options(u);
    for (int i = 0; i < stages && status == XM_OK; ++i) {
        of[i].part.query = *degrees;
        of[i].part.first_device = i * degrees->hosts * degrees->devices;
        if (told != NULL) {
            set_told_layers(told, i, &of[i].part.query);
        } else {
            ap_like_set_layers(like, stages, i, &of[i].part.query);
        }
        status = weigh(like, one, u, i, &of[i]);
    }
    if (status == XM_OK && told == NULL) {
        status = balance(like, one, u, of);
    }
    for (int i = 0; i < stages && status == XM_OK; ++i) {
        bound = fmax(bound, of[i].seconds);
        status = ap_like_is_hopeless(like, bound, 0.0) ? XM_ERR_NO_SOLUTION : XM_OK;
    }
    if (of != NULL &&
        (status != XM_OK || (parts = calloc((size_t)stages, sizeof(*parts))) == NULL)) {
        for (int i = 0; i < stages; ++i) {
            ap_stage_solution_destroy(of[i].part.solution);
        }
    }
    if (parts != NULL) {
        for (int i = 0; i < stages; ++i) {
            parts[i] = of[i].part;
        }
        status = ap_like_evaluate_parts(like, one, parts, stages, status, &kept);
    }
    if (status == XM_OK && kept && like->layers > 2) {
        status = keep_galvatron(like, one, u, of);
    }
    free(of);
    return status;
}

/* Refuses a file of another model than this one. */
static xm_status_t check_told(const ap_like_t *like)
{
    const ap_galvatron_t *told = like->effort.galvatron;

    return told == NULL || told->layers + 2 == like->layers
               ? XM_OK
               : XM_INVALID("the file has %d layers, the model %d besides embedding and head",
                            told->layers, like->layers - 2);
}

xm_status_t ap_like_layerwise(ap_like_t *like, ap_like_case_t *one)
{
    uniform_t u = {.chosen = calloc(2 * (size_t)like->layers, sizeof(*u.chosen))};
    unsigned whole = like->effort.galvatron != NULL && like->effort.galvatron->state_sharded
                         ? AP_PARAMETER_STATE_SHARDED
                         : AP_PARAMETER_REPLICATED;
    xm_status_t status =
        u.chosen == NULL ? XM_NO_MEMORY("%d layers", like->layers) : check_told(like);

    for (int o = 0; o < OPTIONS && status == XM_OK; ++o) {
        ap_space_t space = like->row->space;

        space.roles[0] = options[o].role[0];
        space.roles[1] = options[o].role[1];
        space.parameter_modes = 1U << (options[o].sharded ? AP_PARAMETER_SHARDED : whole);
        status = ap_like_context(like, one, &space, &u.context[o]);
    }
    XM_THEN(status, ap_like_each_degrees(like, one, try_layerwise, &u));
    for (int o = 0; o < OPTIONS; ++o) {
        ap_stage_context_destroy(u.context[o]);
    }
    free(u.chosen);
    return status;
}
