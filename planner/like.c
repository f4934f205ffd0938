#include "planner/like.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/clock.h"
#include "planner/like_private.h"
#include "planner/plan_schedule.h"
#include "planner/training.h"

/* Stands for the memory of a device where a row does not look at it. */
static const double ENDLESS = 1e18;

void ap_like_result_clear(ap_like_result_t *result)
{
    if (result != NULL) {
        ap_plan_destroy(result->plan);
        free(result->curve);
        *result = (ap_like_result_t){0};
    }
}

/* Largest share that a copy of the parameters has in their state, over the types of the model. */
static double version_share(const ap_graph_t *graph)
{
    double share = 0.0;

    for (int t = 0; t < ap_graph_tensors(graph); ++t) {
        const ap_tensor_t *tensor = ap_graph_tensor(graph, t);
        double bytes = ap_dtype_bytes(tensor->dtype);

        if (tensor->kind == AP_TENSOR_PARAMETER) {
            share = fmax(share, bytes / (2.0 * bytes + ap_training_state_bytes(AP_OPTIMIZER_ADAM,
                                                                               tensor->dtype)));
        }
    }
    return share;
}

static double fullest(const ap_plan_t *plan)
{
    double most = 0.0;

    for (int i = 0; i < ap_plan_stages(plan); ++i) {
        most = fmax(most, ap_plan_stage_memory(ap_plan_stage(plan, i)));
    }
    return most;
}

/* A plan that fits before one that does not, where the row looks at memory; then the faster; of two
 * that do not fit the one that needs less. */
static bool is_better(const ap_like_t *like, double step, double over)
{
    const ap_like_result_t *best = like->result;

    if (best->plan == NULL) {
        return true;
    }
    if (like->row->costs.memory && (over > 0.0 || best->over_bytes > 0.0)) {
        return over < best->over_bytes;
    }
    return step < best->step;
}

bool ap_like_can_improve(const ap_like_t *like, double step)
{
    return is_better(like, step, 0.0);
}

xm_status_t ap_like_consider_plan(ap_like_t *like, ap_plan_t *plan, bool *kept)
{
    ap_plan_judgement_t judgement = AP_PLAN_JUDGEMENT_INIT;
    const char *kind = strcmp(like->row->schedule.kind, "auto") == 0 ? ap_plan_info(plan)->schedule
                                                                     : like->row->schedule.kind;
    ap_plan_t *judged = NULL;
    ap_graph_t *made = NULL;
    const ap_graph_t *graph = NULL;
    xm_status_t status = ap_schedule_find(kind, &judgement.kind);

    *kept = false;
    if (status == XM_OK) {
        status =
            ap_planner_graph_open(&like->setup, ap_plan_info(plan)->micro_batches, &graph, &made);
    }
    if (status == XM_OK) {
        judgement.stash = like->row->schedule.stash;
        judgement.version_share = version_share(graph);
        judgement.memory_limit = like->limit;
        ++like->result->judged;
        status = ap_plan_judge(plan, &judgement, &judged);
    }
    if (status == XM_OK) {
        double step = ap_plan_info(judged)->step, memory = fullest(judged);
        double over = fmax(0.0, memory - like->limit);

        if (is_better(like, step, over)) {
            ap_plan_t *worse = like->result->plan;

            like->result->plan = judged;
            like->result->step = step;
            like->result->memory = memory;
            like->result->over_bytes = over;
            judged = worse;
            *kept = true;
        }
    } else if (status == XM_ERR_NO_SOLUTION) { /* too few micro-batches for this schedule */
        (void)snprintf(like->result->why, sizeof(like->result->why), "%s", xm_last_error());
        status = XM_OK;
    }
    ap_plan_destroy(judged);
    ap_plan_destroy(plan);
    ap_graph_destroy(made);
    return status;
}

xm_status_t ap_like_consider(ap_like_t *like, const ap_like_case_t *one,
                             const ap_plan_part_t *parts, int count, bool *kept)
{
    const ap_plan_info_t info = ap_planner_info(&like->setup);
    ap_plan_recipe_t recipe = {.graph = one->graph,
                               .cross_mesh = like->setup.cross_mesh,
                               .hosts = like->hosts,
                               .devices_per_host = like->devices_per_host,
                               .micro_batches = (int)one->micro_batches,
                               .memory_limit = like->limit,
                               .parts = parts,
                               .part_count = count};
    char optimiser[96];
    ap_plan_t *plan;
    xm_status_t status;

    (void)snprintf(optimiser, sizeof(optimiser), "like %s: %s", like->row->name,
                   ap_search_kind_name(like->row->search));
    recipe.optimiser = optimiser;
    status = ap_plan_assemble(&recipe, &info, &plan);
    return status == XM_OK ? ap_like_consider_plan(like, plan, kept) : status;
}

xm_status_t ap_like_context(const ap_like_t *like, const ap_like_case_t *one,
                            const ap_space_t *space, ap_stage_context_t **context)
{
    ap_stage_context_params_t params = AP_STAGE_CONTEXT_PARAMS_INIT;

    params.graph = one->graph;
    /* Of unequal hosts the slowest counts: these searches know one kind of device. */
    params.cost =
        like->setup.classes->classes[ap_device_classes_find(like->setup.classes, 0, like->hosts)]
            .cost;
    params.micro_batches = (int)one->micro_batches;
    params.rematerialize = one->recompute;
    params.space = space;
    return ap_stage_context_create(&params, context);
}

static bool wants_recompute(const ap_like_t *like, bool recompute)
{
    ap_recompute_t asked = like->params.recompute;

    return asked == AP_RECOMPUTE_AUTO || asked == AP_RECOMPUTE_UNIFORM ||
           (asked == AP_RECOMPUTE_ON) == recompute;
}

xm_status_t ap_like_each_case(ap_like_t *like, ap_like_case_fn *search)
{
    xm_status_t status = XM_OK;
    int cases = 2 * like->micro_batch_count;

    for (int i = 0; i < cases && status == XM_OK; ++i) {
        ap_like_case_t one = {.micro_batches = like->micro_batches[i / 2], .recompute = i % 2 == 1};

        if (!wants_recompute(like, one.recompute)) {
            continue;
        }
        if (like->params.progress != NULL) {
            like->params.progress(like->params.progress_arg, (double)i / cases, like->row->name);
        }
        status = ap_planner_graph_open(&like->setup, one.micro_batches, &one.graph, &one.made);
        if (status == XM_OK) {
            status = ap_like_context(like, &one, &like->row->space, &one.context);
        }
        if (status == XM_OK) {
            status = search(like, &one);
        }
        if (status == XM_ERR_NO_SOLUTION) {
            (void)snprintf(like->result->why, sizeof(like->result->why), "%s", xm_last_error());
            status = XM_OK;
        }
        ap_stage_context_destroy(one.context);
        ap_graph_destroy(one.made);
    }
    return status;
}

bool ap_like_submesh(const ap_like_t *like, int stages, ap_stage_query_t *query)
{
    int total = like->hosts * like->devices_per_host, each = total / stages;

    if (total % stages != 0 || stages > like->layers ||
        (each <= like->devices_per_host ? like->devices_per_host % each
                                        : each % like->devices_per_host) != 0) {
        return false;
    }
    query->hosts = each <= like->devices_per_host ? 1 : each / like->devices_per_host;
    query->devices = each / query->hosts;
    return like->row->space.stage_devices == 0 || each <= like->row->space.stage_devices;
}

bool ap_like_next_shape(const ap_like_t *like, ap_stage_query_t *query)
{
    int devices = query->hosts * query->devices;
    int most = like->row->space.one_axis ? 1 : devices;

    do {
        ++query->shape[0];
    } while (query->shape[0] <= most && devices % query->shape[0] != 0);
    query->shape[1] = query->shape[0] <= most ? devices / query->shape[0] : 0;
    return query->shape[0] <= most;
}

/* Our planner in the row's space. Under 1f1b its own objective chooses among all numbers of
 * micro-batches; otherwise it plans for each, and the judge chooses. */
xm_status_t ap_like_stages(ap_like_t *like)
{
    bool together = strcmp(like->row->schedule.kind, "1f1b") == 0 ||
                    strcmp(like->row->schedule.kind, "auto") == 0;
    int runs = together ? 1 : like->micro_batch_count;
    xm_status_t status = XM_OK;

    for (int i = 0; i < runs && status == XM_OK; ++i) {
        ap_planner_params_t params = like->params;
        ap_planner_result_t found;
        bool kept;

        params.space = &like->row->space;
        params.keep_host_order =
            params.keep_host_order || strcmp(like->row->name, "default") != 0; /* but ours */
        params.memory_limit = like->row->costs.memory ? like->limit : ENDLESS;
        params.free_boundaries = !like->row->costs.transfers;
        params.steady = like->row->costs.steady;
        params.schedule = together ? like->row->schedule.kind : NULL;
        if (!together) {
            params.micro_batches = &like->micro_batches[i];
            params.micro_batch_count = 1;
        }
        status = ap_planner_run(&params, &found);
        if (status == XM_ERR_NO_SOLUTION) {
            (void)snprintf(like->result->why, sizeof(like->result->why), "%s", xm_last_error());
            status = XM_OK;
            continue;
        }
        if (status == XM_OK) {
            status = ap_like_consider_plan(like, found.plan, &kept);
            found.plan = NULL;
            ap_planner_result_clear(&found);
        }
    }
    return status;
}

static xm_status_t search(ap_like_t *like)
{
    static ap_like_case_fn *const searches[] = {
        [AP_SEARCH_STAGES] = NULL,
        [AP_SEARCH_GRID] = ap_like_grid,
        [AP_SEARCH_REDUCTION] = ap_like_choices,
        [AP_SEARCH_ORDERING] = ap_like_choices,
        [AP_SEARCH_MCMC] = ap_like_choices,
        [AP_SEARCH_RECURSIVE] = ap_like_choices,
        [AP_SEARCH_GREEDY] = ap_like_choices,
        [AP_SEARCH_FRONTIER] = ap_like_choices,
        [AP_SEARCH_LAYERWISE] = ap_like_layerwise,
        [AP_SEARCH_IDEALS] = ap_like_ideals,
        [AP_SEARCH_PLACEMENT] = ap_like_placement,
    };
    ap_like_case_fn *const of_case = searches[like->row->search];

    return of_case == NULL ? ap_like_stages(like) : ap_like_each_case(like, of_case);
}

/* The caller's limits on stages and recomputation, and the row's. */
static xm_status_t narrow(ap_like_t *like)
{
    const ap_space_t *space = &like->row->space;
    ap_planner_params_t *params = &like->params;
    int devices = like->hosts * like->devices_per_host;

    /* A placement may leave devices idle. */
    if (space->stage_devices == 1 && devices > like->layers &&
        like->row->search != AP_SEARCH_PLACEMENT) {
        return xm_error_set(XM_ERR_NO_SOLUTION,
                            "%s has stages of one device: %d layers do not fill %d devices",
                            like->row->name, like->layers, devices);
    }
    if (!space->pipeline) {
        if (params->min_stages > 1) {
            return xm_error_set(XM_ERR_NO_SOLUTION, "%s has no pipeline, at least %d stages asked",
                                like->row->name, params->min_stages);
        }
        params->max_stages = 1;
    }
    if ((!space->recompute && params->recompute == AP_RECOMPUTE_ON) ||
        (!space->keep && params->recompute == AP_RECOMPUTE_OFF)) {
        return xm_error_set(XM_ERR_NO_SOLUTION, "%s %s", like->row->name,
                            space->keep ? "never recomputes activations"
                                        : "always recomputes activations");
    }
    if (!space->recompute || !space->keep) {
        params->recompute = space->keep ? AP_RECOMPUTE_OFF : AP_RECOMPUTE_ON;
    }
    if (!space->mixed && params->recompute == AP_RECOMPUTE_AUTO) {
        params->recompute = AP_RECOMPUTE_UNIFORM;
    }
    return XM_OK;
}

static xm_status_t open(ap_like_t *like)
{
    const ap_graph_t *graph;
    ap_graph_t *made;
    xm_status_t status = ap_planner_setup_open(&like->params, &like->setup);

    if (status == XM_OK) {
        like->limit = like->setup.memory_limit;
        like->hosts = xm_cluster_profile_hosts(like->params.profile);
        like->devices_per_host = xm_cluster_profile_devices_per_host(like->params.profile);
        status =
            ap_planner_micro_batches(&like->setup, like->micro_batches, &like->micro_batch_count);
    }
    if (status == XM_OK) {
        status = ap_planner_graph_open(&like->setup, like->micro_batches[0], &graph, &made);
    }
    if (status == XM_OK) {
        like->layers = ap_graph_layers(graph);
        ap_graph_destroy(made);
    }
    return status;
}

xm_status_t ap_like_run(const ap_planner_row_t *row, const ap_planner_params_t *params,
                        ap_like_result_t *result)
{
    ap_like_result_t made = {.row = row};
    ap_like_t like = {.row = row, .params = *params, .result = &made};
    double start = xm_clock_seconds();
    xm_status_t status;

    if (params->struct_size < sizeof(*params) || params->model == NULL || params->profile == NULL) {
        return xm_error_set(XM_ERR_INVALID_ARGUMENT,
                            "a model and a cluster profile are needed, and "
                            "AP_PLANNER_PARAMS_INIT to start from");
    }
    status = open(&like);
    if (status == XM_OK) {
        status = narrow(&like);
        if (status == XM_OK) {
            status = search(&like);
        }
        if (status == XM_ERR_NO_SOLUTION || status == XM_ERR_UNSUPPORTED) {
            (void)snprintf(made.why, sizeof(made.why), "%s", xm_last_error());
            status = XM_OK;
        }
    }
    ap_planner_setup_close(&like.setup);
    if (status != XM_OK) {
        ap_like_result_clear(&made);
        return status;
    }
    if (made.plan == NULL && made.why[0] == '\0') {
        (void)snprintf(made.why, sizeof(made.why),
                       "%s has no plan for %d layers on %d x %d devices", row->name, like.layers,
                       like.hosts, like.devices_per_host);
    }
    made.search_seconds = xm_clock_seconds() - start;
    *result = made;
    return XM_OK;
}
