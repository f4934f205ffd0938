/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checks a plan that somebody else made. It need not be the plan that our search finds, or price
 * its stages as we do; but it must be possible, and must not be better than possible. So for each
 * claim a lower bound is computed from our own costs, over everything that the plan leaves open
 * (how parameters are kept, which of several strategies has these specs), and only a claim below it
 * is refused.
 *
 * Bounds are sums of minima per node and edge: weaker than solving each stage, but quick, and
 * certain for any combination.
 */

#include "planner/explain/verify.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/base.h"
#include "planner/search.h"
#include "planner/plan.h"
#include "planner/stage.h"

/* Sums in another order, and profiles that passed through a text, differ in their last digits. */
static const double slack = 1e-6;

enum { PLACE = 48 };

typedef struct verification {
    const ap_plan_t *plan;
    const ap_plan_info_t *info;
    ap_planner_setup_t setup;
    const ap_graph_t *graph;
    ap_graph_t *made;
    ap_stage_context_t **context; /* per class of devices, then the same recomputing */
    ap_layer_weights_t weights;   /* of the plan's objective, memory for nothing; of the stage */
} verification_t;

/* What a stage takes at least with the shardings it names. */
typedef struct least {
    double seconds, state, activations;
} least_t;

/* Which strategies of a node have the specs that the plan names. */
typedef struct fitting {
    bool *strategy;
    int count;
} fitting_t;

static xm_status_t wrong_count(const char *what, int64_t says, int64_t asked)
{
    return xm_error_set(XM_ERR_MISMATCH, "the plan is for %" PRId64 " %s, not %" PRId64, says, what,
                        asked);
}

/* Without a list, any number that divides the batch is an answer. */
static bool is_asked(const verification_t *v)
{
    const ap_planner_params_t *params = v->setup.params;

    if (v->setup.micro_batches != 0) {
        return v->info->micro_batches == v->setup.micro_batches;
    }
    for (size_t i = 0; i < params->micro_batch_count; ++i) {
        if (params->micro_batches[i] == v->info->micro_batches) {
            return true;
        }
    }
    return params->micro_batch_count == 0 && v->info->micro_batches > 0 &&
           v->info->global_batch % v->info->micro_batches == 0;
}

static xm_status_t check_question(const verification_t *v)
{
    const ap_planner_params_t *params = v->setup.params;
    const ap_plan_info_t *info = v->info;
    int stages = ap_plan_stages(v->plan);
    const char *schedule = params->schedule != NULL ? params->schedule : "1f1b", *which;
    char text[PLACE];

    if (strcmp(info->model, params->model) != 0) {
        return xm_error_set(XM_ERR_MISMATCH, "the plan is for the model '%s', not '%s'",
                            info->model, params->model);
    }
    if (info->global_batch != v->setup.global_batch) {
        return wrong_count("samples", info->global_batch, v->setup.global_batch);
    }
    if (!is_asked(v)) {
        return xm_error_set(XM_ERR_MISMATCH, "%" PRId64 " micro-batches were not asked for",
                            info->micro_batches);
    }
    if (stages < params->min_stages || (params->max_stages > 0 && stages > params->max_stages)) {
        return xm_error_set(XM_ERR_MISMATCH, "%d stages were not asked for", stages);
    }
    if (strcmp(schedule, "auto") != 0 && strcmp(schedule, info->schedule) != 0) {
        return xm_error_set(XM_ERR_MISMATCH, "the plan has the schedule %s, not %s", info->schedule,
                            schedule);
    }
    which = ap_plan_recompute_text(v->plan, text, sizeof(text));
    if ((params->recompute == AP_RECOMPUTE_ON && strcmp(which, "on") != 0) ||
        (params->recompute == AP_RECOMPUTE_OFF && strcmp(which, "off") != 0) ||
        (params->recompute == AP_RECOMPUTE_UNIFORM && strcmp(which, "on") != 0 &&
         strcmp(which, "off") != 0)) {
        return xm_error_set(XM_ERR_MISMATCH, "recomputation is %s in the plan", which);
    }
    if (info->memory_limit > v->setup.memory_limit * (1 + slack)) {
        return xm_error_set(XM_ERR_MISMATCH,
                            "the plan takes %.0f bytes a device for given, not %.0f",
                            info->memory_limit, v->setup.memory_limit);
    }
    return XM_OK;
}

/* The devices of a stage are a submesh of the cluster as it says: so many of each of its hosts. */
static xm_status_t check_submesh(const verification_t *v, const ap_plan_stage_t *stage, int index)
{
    int *of_host = calloc((size_t)v->info->hosts, sizeof(*of_host));
    int hosts = 0, most = 0;

    if (of_host == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "no memory for %d hosts", v->info->hosts);
    }
    for (int d = 0; d < stage->hosts * stage->devices_per_host; ++d) {
        int host = stage->devices[d] / v->info->devices_per_host;

        hosts += of_host[host] == 0;
        ++of_host[host];
        most = of_host[host] > most ? of_host[host] : most;
    }
    free(of_host);
    if (hosts != stage->hosts || most != stage->devices_per_host) {
        return xm_error_set(XM_ERR_MISMATCH,
                            "stages[%d]: a submesh of %d x %d devices, whose ranks are on %d hosts "
                            "with up to %d on one",
                            index, stage->hosts, stage->devices_per_host, hosts, most);
    }
    return XM_OK;
}

/* Whether the specs of the terms first … first + count - 1 are what a plan's text says: "S0RR,RS1".
 */
static bool terms_are(const ap_sharding_rule_t *rule, const ap_strategy_t *strategy, int first,
                      int count, const char *text)
{
    for (int t = first; t < first + count; ++t) {
        char spec[AP_SPEC_TEXT];
        size_t length =
            strlen(ap_spec_format(strategy->spec[t], rule->rank[t], spec, sizeof(spec)));

        if (strncmp(text, spec, length) != 0) {
            return false;
        }
        text += length;
        if (t + 1 < first + count && *text++ != ',') {
            return false;
        }
    }
    return *text == '\0';
}

/* At least one strategy must fit, or the operator cannot run that way. */
static xm_status_t fit_node(const ap_layer_node_t *node, const ap_op_t *op,
                            const ap_plan_op_t *planned, const char *place, fitting_t *fit)
{
    if (strcmp(op->rule.text, planned->rule) != 0) {
        return xm_error_set(XM_ERR_MISMATCH, "%s: operator '%s' is '%s' where the model has '%s'",
                            place, planned->name, planned->rule, op->rule.text);
    }
    fit->strategy = calloc((size_t)node->strategies.count + 1, sizeof(*fit->strategy));
    if (fit->strategy == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "no memory for %d strategies",
                            node->strategies.count);
    }
    for (int s = 0; s < node->strategies.count; ++s) {
        const ap_strategy_t *strategy = &node->strategies.items[s];

        fit->strategy[s] =
            terms_are(&op->rule, strategy, 0, op->operand_count, planned->operands) &&
            terms_are(&op->rule, strategy, op->operand_count, op->result_count, planned->results);
        fit->count += fit->strategy[s];
    }
    return fit->count > 0
               ? XM_OK
               : xm_error_set(XM_ERR_MISMATCH,
                              "%s: operator '%s' ('%s') cannot be sharded as %s -> %s", place,
                              planned->name, planned->rule, planned->operands, planned->results);
}

/* The least a node can take, over the strategies that fit and the ways to keep its parameters; time
 * and memory each by themselves, as if they could be had together. */
static least_t least_of_node(const verification_t *v, const ap_layer_node_t *node,
                             const fitting_t *fit)
{
    least_t least = {.seconds = HUGE_VAL, .state = HUGE_VAL, .activations = HUGE_VAL};

    for (int s = 0; s < node->strategies.count; ++s) {
        double seconds = ap_parts_cost(&node->base[s], &v->weights);
        double state = node->base[s].mem_stage, activations = node->base[s].mem_act;

        for (int p = 0; p < node->parameters; ++p) {
            const ap_parts_t *modes = &node->modes[(s * node->parameters + p) * AP_PARAMETER_MODES];
            double time = HUGE_VAL, held = HUGE_VAL;

            for (int m = 0; m < AP_PARAMETER_MODES; ++m) {
                time = fmin(time, ap_parts_cost(&modes[m], &v->weights));
                held = fmin(held, modes[m].mem_stage);
            }
            seconds += time;
            state += held;
        }
        if (fit->strategy[s]) {
            least.seconds = fmin(least.seconds, seconds);
            least.state = fmin(least.state, state);
            least.activations = fmin(least.activations, activations);
        }
    }
    return least;
}

/* Whether this class of a node, or this spec of a boundary, may be the plan's. `fixed`: its spec,
 * if the plan names one. */
static bool may_be(const ap_layer_problem_t *problem, const fitting_t *fits, int end, int index,
                   const ap_spec_t *fixed_in, const ap_spec_t *fixed_out)
{
    const ap_layer_node_t *node;

    if (end == AP_IN) {
        return fixed_in == NULL || problem->in_specs[index] == *fixed_in;
    }
    if (end == AP_OUT) {
        return fixed_out == NULL || problem->out_specs[index] == *fixed_out;
    }
    node = &problem->node[end];
    if (end >= problem->op_nodes) {
        return true; /* plans do not say what readers share */
    }
    for (int s = 0; s < node->strategies.count; ++s) {
        if (fits[end].strategy[s] && node->class_of[s] == index) {
            return true;
        }
    }
    return false;
}

static double least_of_edge(const verification_t *v, const ap_layer_problem_t *problem,
                            const ap_layer_edge_t *edge, const fitting_t *fits,
                            const ap_spec_t *fixed_in, const ap_spec_t *fixed_out)
{
    double least = HUGE_VAL;

    for (int from = 0; from < edge->from_count; ++from) {
        if (!may_be(problem, fits, edge->from, from, fixed_in, fixed_out)) {
            continue;
        }
        for (int to = 0; to < edge->to_count; ++to) {
            if (may_be(problem, fits, edge->to, to, fixed_in, fixed_out)) {
                ap_parts_t parts = ap_layer_edge_parts(edge, from, to);

                least = fmin(least, ap_parts_cost(&parts, &v->weights));
            }
        }
    }
    return least;
}

/* One layer with the shardings of its group; the specs that its stage's boundaries fix, or NULL. */
static xm_status_t least_of_layer(const verification_t *v, const ap_layer_problem_t *problem,
                                  const ap_plan_layers_t *group, const ap_spec_t *fixed_in,
                                  const ap_spec_t *fixed_out, const char *place, least_t *sum)
{
    fitting_t *fits = calloc((size_t)problem->nodes + 1, sizeof(*fits));
    xm_status_t status = XM_OK;

    if (fits == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "no memory for %d operators", problem->nodes);
    }
    if (group->op_count != problem->op_nodes) {
        status = xm_error_set(XM_ERR_MISMATCH, "%s: %d operators where the model has %d", place,
                              group->op_count, problem->op_nodes);
    }
    for (int n = 0; n < problem->op_nodes && status == XM_OK; ++n) {
        const ap_layer_node_t *node = &problem->node[n];

        status = fit_node(node, ap_graph_op(ap_stage_training(v->context[0]), node->op),
                          &group->ops[n], place, &fits[n]);
        if (status == XM_OK) {
            least_t least = least_of_node(v, node, &fits[n]);

            sum->seconds += least.seconds;
            sum->state += least.state;
            sum->activations += least.activations;
        }
    }
    for (int e = 0; e < problem->edges && status == XM_OK; ++e) {
        sum->seconds += least_of_edge(v, problem, &problem->edge[e], fits, fixed_in, fixed_out);
    }
    for (int n = 0; n < problem->op_nodes; ++n) {
        free(fits[n].strategy);
    }
    free(fits);
    return status;
}

static xm_status_t too_good(const char *place, const char *what, double says, double least)
{
    return xm_error_set(XM_ERR_MISMATCH, "%s: %s of %.9g, which is at least %.9g", place, what,
                        says, least);
}

static xm_status_t read_side(const ap_plan_boundary_t *boundary, const ap_plan_side_t *side,
                             ap_spec_t *spec)
{
    return ap_spec_parse(side->spec, boundary->rank, 2, spec);
}

/* The class of devices that a stage stands on; scattered hosts count as the slowest there is, for
 * whom the bound is not exact. A stage whose run of hosts would end beyond the cluster is one of
 * them. */
static int class_of(const verification_t *v, const ap_plan_stage_t *stage)
{
    const ap_device_classes_t *classes = v->setup.classes;
    int per_host = v->info->devices_per_host, host = v->info->hosts, class = -1;

    for (int d = 0; d < stage->hosts * stage->devices_per_host; ++d) {
        host = stage->devices[d] / per_host < host ? stage->devices[d] / per_host : host;
    }
    if (host + stage->hosts <= classes->hosts) {
        class = ap_device_classes_find(classes, host, stage->hosts);
    }
    return class >= 0 ? class : ap_device_classes_find(classes, 0, classes->hosts);
}

static xm_status_t sum_layers(const verification_t *v, const ap_plan_stage_t *stage, int index,
                              least_t *sum)
{
    ap_stage_query_t query = AP_STAGE_QUERY_INIT;
    ap_spec_t in = 0, out = 0;
    bool has_in = index > 0, has_out = index + 1 < ap_plan_stages(v->plan);
    ap_stage_context_t *context =
        v->context[class_of(v, stage) + (stage->recompute ? v->setup.classes->count : 0)];
    xm_status_t status = XM_OK;

    query.hosts = stage->hosts;
    query.devices = stage->devices_per_host;
    query.shape[0] = stage->shape[0];
    query.shape[1] = stage->shape[1];
    if (has_in) {
        const ap_plan_boundary_t *boundary = ap_plan_boundary(v->plan, index - 1);

        status = read_side(boundary, &boundary->dst, &in);
    }
    if (status == XM_OK && has_out) {
        const ap_plan_boundary_t *boundary = ap_plan_boundary(v->plan, index);

        status = read_side(boundary, &boundary->src, &out);
    }
    for (int g = 0; g < stage->layer_count && status == XM_OK; ++g) {
        const ap_plan_layers_t *group = &stage->layers[g];

        for (int layer = group->first_layer; layer <= group->last_layer && status == XM_OK;
             ++layer) {
            const ap_layer_problem_t *problem;
            char place[PLACE];

            (void)snprintf(place, sizeof(place), "stages[%d], layer %d", index, layer);
            status = ap_stage_layer_problem(context, &query, layer, &problem);
            if (status == XM_OK) {
                status = least_of_layer(
                    v, problem, group, has_in && layer == stage->first_layer ? &in : NULL,
                    has_out && layer == stage->last_layer ? &out : NULL, place, sum);
            }
        }
    }
    return status;
}

/* The limit is the caller's, or else the memory of the devices that the stage stands on. A byte of
 * slack makes up for the rounding of bytes in the document. */
static xm_status_t check_stage(verification_t *v, int index)
{
    const ap_plan_stage_t *stage = ap_plan_stage(v->plan, index);
    least_t least = {0};
    char place[PLACE];
    double memory;
    xm_status_t status = check_submesh(v, stage, index);

    v->weights.forward = stage->recompute ? 2 : 1;
    (void)snprintf(place, sizeof(place), "stages[%d]", index);
    if (status == XM_OK && stage->layer_count == 0) {
        status =
            xm_error_set(XM_ERR_MISMATCH, "%s does not say how its operators are sharded", place);
    }
    if (status == XM_OK) {
        status = sum_layers(v, stage, index, &least);
    }
    if (status != XM_OK) {
        return status;
    }
    if (ap_plan_stage_seconds(v->plan, index) < least.seconds * (1 - slack)) {
        return too_good(place, "seconds", ap_plan_stage_seconds(v->plan, index), least.seconds);
    }
    if (stage->state_bytes < least.state * (1 - slack) - 1) {
        return too_good(place, "state_bytes", stage->state_bytes, least.state);
    }
    if (stage->activation_bytes < least.activations * (1 - slack) - 1) {
        return too_good(place, "activation_bytes", stage->activation_bytes, least.activations);
    }
    memory = v->setup.classes->classes[class_of(v, stage)].device.memory_bytes;
    if (ap_plan_stage_memory(stage) > memory * (1 + slack) + 1) {
        return xm_error_set(XM_ERR_MISMATCH, "%s needs %.0f bytes a device, %.0f are there", place,
                            ap_plan_stage_memory(stage), memory);
    }
    return XM_OK;
}

/* The first device of a mesh whose ranks follow each other; -1 when they do not. */
static int first_of_run(const ap_plan_side_t *side)
{
    for (int d = 1; d < side->device_count; ++d) {
        if (side->devices[d] != side->devices[0] + d) {
            return -1;
        }
    }
    return side->devices[0];
}

static xm_status_t check_boundary_cost(const verification_t *v, const ap_plan_boundary_t *boundary,
                                       const char *place)
{
    ap_cross_mesh_tensor_t *tensors = calloc((size_t)boundary->more_count + 1, sizeof(*tensors));
    ap_cross_mesh_transfer_t transfer = {
        .src = {first_of_run(&boundary->src), {boundary->src.shape[0], boundary->src.shape[1]}},
        .dst = {first_of_run(&boundary->dst), {boundary->dst.shape[0], boundary->dst.shape[1]}},
        .tensors = tensors,
        .count = boundary->more_count + 1};
    ap_cross_mesh_cost_t cost;
    xm_status_t status = XM_OK;

    if (tensors == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "no memory for %d tensors", transfer.count);
    }
    for (int i = 0; i < transfer.count && status == XM_OK; ++i) {
        const ap_plan_tensor_t tensor = ap_plan_boundary_tensor(boundary, i);

        tensors[i].shape.rank = tensor.rank;
        memcpy(tensors[i].shape.dims, tensor.shape, sizeof(tensor.shape));
        tensors[i].element_size = (int)tensor.element_size;
        status = ap_spec_parse(tensor.src, tensor.rank, 2, &tensors[i].src);
        if (status == XM_OK) {
            status = ap_spec_parse(tensor.dst, tensor.rank, 2, &tensors[i].dst);
        }
    }
    /* Of scattered ranks the bound of the stages is all that is known. */
    if (status == XM_OK && transfer.src.first_device >= 0 && transfer.dst.first_device >= 0) {
        status = ap_cross_mesh_cost(v->setup.cross_mesh, &transfer, &cost);
        if (status == XM_OK && boundary->forward < cost.bound * (1 - slack)) {
            status = too_good(place, "forward_s", boundary->forward, cost.bound);
        }
    }
    free(tensors);
    return status;
}

static bool is_tensor(const ap_plan_tensor_t *passing, const ap_tensor_t *tensor)
{
    bool same = passing->rank == tensor->shape.rank &&
                strcmp(passing->dtype, ap_dtype_name(tensor->dtype)) == 0 &&
                passing->element_size == ap_dtype_bytes(tensor->dtype);

    for (int d = 0; d < passing->rank && same; ++d) {
        same = passing->shape[d] == tensor->shape.dims[d];
    }
    return same;
}

/* Whether the plan passes a tensor, by name, from one stage to another. */
static bool passes(const ap_plan_t *plan, int from, int to, const ap_tensor_t *tensor)
{
    for (int b = 0; b < ap_plan_boundaries(plan); ++b) {
        const ap_plan_boundary_t *boundary = ap_plan_boundary(plan, b);

        for (int i = 0; i <= boundary->more_count && boundary->from == from && boundary->to == to;
             ++i) {
            const ap_plan_tensor_t passing = ap_plan_boundary_tensor(boundary, i);

            if (strcmp(passing.tensor, tensor->name) == 0 && is_tensor(&passing, tensor)) {
                return true;
            }
        }
    }
    return false;
}

/* Every resting copy that a stage reads must come to it from the stage that makes it. */
static xm_status_t check_resting(const verification_t *v)
{
    int *resting = malloc(((size_t)ap_graph_tensors(v->graph) + 1) * sizeof(*resting));
    int stages = ap_plan_stages(v->plan);
    xm_status_t status = XM_OK;

    if (resting == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "no memory for the tensors between stages");
    }
    for (int pair = 0; pair < stages * stages; ++pair) {
        int from = pair / stages, to = pair % stages, count = 0;
        const ap_plan_stage_t *src = ap_plan_stage(v->plan, from),
                              *dst = ap_plan_stage(v->plan, to);

        if (from < to) {
            count = ap_graph_resting(v->graph, (int[]){src->first_layer, src->last_layer},
                                     (int[]){dst->first_layer, dst->last_layer}, resting);
        }
        for (int i = 0; i < count && status == XM_OK; ++i) {
            const ap_tensor_t *tensor = ap_graph_tensor(v->graph, resting[i]);

            if (!passes(v->plan, from, to, tensor)) {
                status = xm_error_set(XM_ERR_MISMATCH,
                                      "reshardings: '%s' does not pass from stage %d, which makes "
                                      "it, to stage %d, which reads it",
                                      tensor->name, from, to);
            }
        }
    }
    free(resting);
    return status;
}

static xm_status_t check_boundary(const verification_t *v, int index)
{
    const ap_plan_boundary_t *boundary = ap_plan_boundary(v->plan, index);
    const ap_plan_tensor_t first = ap_plan_boundary_tensor(boundary, 0);
    int layer = ap_plan_stage(v->plan, boundary->from)->last_layer;
    const ap_tensor_t *tensor = ap_graph_tensor(v->graph, ap_graph_boundary(v->graph, layer));
    char place[PLACE];

    (void)snprintf(place, sizeof(place), "reshardings[%d]", index);
    if (boundary->to == boundary->from + 1 && !is_tensor(&first, tensor)) {
        return xm_error_set(XM_ERR_MISMATCH,
                            "%s: shape or type are not those of '%s', which passes after layer %d",
                            place, tensor->name, layer);
    }
    return check_boundary_cost(v, boundary, place);
}

/* Checks the step against what the plan's own stages and reshardings take under its schedule. The
 * plan may claim more. */
static xm_status_t check_step(const verification_t *v)
{
    ap_plan_simulation_t simulation = AP_PLAN_SIMULATION_INIT;
    ap_schedule_t *schedule;
    ap_pipeline_run_t *run;
    double step;
    xm_status_t status;

    status = ap_schedule_find(v->info->schedule, &simulation.kind);
    if (status == XM_OK) {
        status = ap_plan_simulate(v->plan, &simulation, &schedule, &run);
    }
    if (status != XM_OK) {
        return status;
    }
    step = 1e-9 * (double)run->step_ns;
    ap_pipeline_run_destroy(run);
    ap_schedule_destroy(schedule);
    return v->info->step < step * (1 - slack) ? too_good("predicted", "step_s", v->info->step, step)
                                              : XM_OK;
}

/* A stage holds as many micro-batches as its schedule puts there; claiming fewer would claim memory
 * that is not there. */
static xm_status_t check_in_flight(const verification_t *v)
{
    int stages = ap_plan_stages(v->plan);
    ap_schedule_kind_t kind;
    xm_status_t status = ap_schedule_find(v->info->schedule, &kind);

    if (status != XM_OK) {
        return status;
    }
    for (int i = 0; i < stages; ++i) {
        int64_t least = ap_schedule_in_flight(kind, i, stages - 1 - i, v->info->micro_batches);

        if (ap_plan_stage(v->plan, i)->in_flight < least) {
            return xm_error_set(XM_ERR_MISMATCH,
                                "stages[%d] has %d micro-batches in flight, of at least %" PRId64,
                                i, ap_plan_stage(v->plan, i)->in_flight, least);
        }
    }
    return XM_OK;
}

static xm_status_t open_model(verification_t *v)
{
    ap_stage_context_params_t params = AP_STAGE_CONTEXT_PARAMS_INIT;
    xm_status_t status =
        ap_planner_graph_open(&v->setup, v->info->micro_batches, &v->graph, &v->made);

    if (status == XM_OK && ap_graph_layers(v->graph) != v->info->layers) {
        status = wrong_count("layers", v->info->layers, ap_graph_layers(v->graph));
    }
    if (status != XM_OK) {
        return status;
    }
    v->context = calloc(2 * (size_t)v->setup.classes->count, sizeof(ap_stage_context_t *));
    if (v->context == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "out of memory for the stages of a plan");
    }
    params.graph = v->graph;
    params.micro_batches = (int)v->info->micro_batches;
    v->weights = (ap_layer_weights_t){.per_iteration = 1.0 / (double)v->info->micro_batches};
    for (int c = 0; c < 2 * v->setup.classes->count && status == XM_OK; ++c) {
        params.rematerialize = c >= v->setup.classes->count;
        params.cost = v->setup.classes->classes[c % v->setup.classes->count].cost;
        status = ap_stage_context_create(&params, &v->context[c]);
    }
    return status;
}

static xm_status_t verify(verification_t *v)
{
    xm_status_t status = check_question(v);

    if (status == XM_OK) {
        status = open_model(v);
    }
    for (int i = 0; i < ap_plan_stages(v->plan) && status == XM_OK; ++i) {
        status = check_stage(v, i);
    }
    for (int i = 0; i < ap_plan_boundaries(v->plan) && status == XM_OK; ++i) {
        status = check_boundary(v, i);
    }
    if (status == XM_OK) {
        status = check_resting(v);
    }
    if (status == XM_OK) {
        status = check_in_flight(v);
    }
    return status == XM_OK ? check_step(v) : status;
}

static xm_status_t check_size(const ap_plan_info_t *info, const xm_cluster_profile_t *profile)
{
    int hosts = xm_cluster_profile_hosts(profile);
    int devices = xm_cluster_profile_devices_per_host(profile);

    if (info->hosts != hosts) {
        return wrong_count("hosts", info->hosts, hosts);
    }
    return info->devices_per_host == devices
               ? XM_OK
               : wrong_count("devices a host", info->devices_per_host, devices);
}

/* Verifies a plan with its hosts in their order, as asked on the profile in the same order. */
static xm_status_t verify_view(const ap_planner_params_t *asked, const ap_plan_view_t *view)
{
    verification_t v = {.plan = view->plan, .info = ap_plan_info(view->plan)};
    ap_planner_params_t params = *asked;
    xm_status_t status;

    params.profile = view->profile;
    status = ap_planner_setup_open(&params, &v.setup);
    if (status == XM_OK) {
        status = verify(&v);
    }
    for (int c = 0; v.context != NULL && c < 2 * v.setup.classes->count; ++c) {
        ap_stage_context_destroy(v.context[c]);
    }
    free(v.context);
    ap_graph_destroy(v.made);
    ap_planner_setup_close(&v.setup);
    return status;
}

/* The sizes are compared first, because a view needs them to agree. */
xm_status_t ap_plan_verify(const ap_planner_params_t *params, const ap_plan_t *plan)
{
    if (XM_IS_NULL(plan)) {
        return XM_ERR_INVALID_ARGUMENT;
    }
    ap_door_planner_t own;
    ap_plan_view_t view = {.plan = plan};
    xm_status_t status = ap_door_planner_params(&own, __func__, params);

    if (status != XM_OK) {
        return status;
    }
    params = &own.params;
    view.profile = params->profile;
    if (params->profile != NULL) { /* the planner's setup says that one is needed */
        status = check_size(ap_plan_info(plan), params->profile);
        if (status == XM_OK) {
            status = ap_plan_view_open(plan, params->profile, &view);
        }
    }
    if (status == XM_OK) {
        status = verify_view(params, &view);
    }
    ap_plan_view_close(&view);
    return status;
}
