/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A planning question taken apart: what holds for the whole run (model file, classes of devices,
 * boundary prices) is opened once as a setup, what depends on the number of micro-batches as a
 * case. Everyone who examines plans, not only the search, opens the same setup and thus has the
 * same prices.
 */

#include <inttypes.h>
#include <math.h>

#include "planner/frontend.h"
#include "planner/frontend/zoo.h"
#include "planner/search/case.h"

enum { DEFAULT_BATCH = 1024, MOST_SAMPLES = 1 << 30 };

static xm_status_t check_params(const ap_planner_params_t *params)
{
    if (params->struct_size < sizeof(*params) || params->model == NULL || params->profile == NULL) {
        return XM_INVALID(
            "a model and a cluster profile are needed, and AP_PLANNER_PARAMS_INIT to start from");
    }
    if (params->min_stages < 0 || params->max_stages < 0 ||
        (params->max_stages > 0 && params->min_stages > params->max_stages)) {
        return XM_INVALID("the stage limits %d to %d are not a range", params->min_stages,
                          params->max_stages);
    }
    if (!isfinite(params->time_limit) || params->time_limit < 0.0) {
        return XM_INVALID("a time limit of %g s: 0 or more", params->time_limit);
    }
    if (params->global_batch < 0 || params->micro_batch_count > AP_PLANNER_MICRO_BATCHES) {
        return XM_INVALID(
            "a batch of %" PRId64
            " in one of %zu numbers of micro-batches: positive, and at most %d numbers",
            params->global_batch, params->micro_batch_count, AP_PLANNER_MICRO_BATCHES);
    }
    return XM_OK;
}

/* Whether stages may have so many devices, or a multiple. */
static bool may_have(const ap_planner_params_t *params, int64_t devices)
{
    int64_t all = (int64_t)xm_cluster_profile_hosts(params->profile) *
                  xm_cluster_profile_devices_per_host(params->profile);

    return devices <= all &&
           (params->all_submeshes || all % devices == 0 || (devices & (devices - 1)) == 0);
}

/* What a model's author demands must be possible in some stage. */
static xm_status_t check_demands(const ap_planner_params_t *params, const ap_graph_t *graph)
{
    for (int t = 0; t < ap_graph_tensors(graph); ++t) {
        const ap_tensor_t *tensor = ap_graph_tensor(graph, t);
        int64_t devices = 1;
        char parts[AP_SPEC_TEXT];

        for (int d = 0; d < tensor->shape.rank && may_have(params, devices); ++d) {
            devices *= tensor->cut[d].parts > 0 ? tensor->cut[d].parts : 1;
        }
        if (!may_have(params, devices)) {
            return XM_INVALID("%s: the model's annotation cuts '%s' into %s parts, which no stage "
                              "on %d hosts of %d devices can have",
                              params->model, tensor->name,
                              ap_tensor_parts(tensor, parts, sizeof(parts)),
                              xm_cluster_profile_hosts(params->profile),
                              xm_cluster_profile_devices_per_host(params->profile));
        }
    }
    return XM_OK;
}

/* The batch of a step: what is asked for, or what the file's own micro-batch makes of the number
 * asked for, or of the usual batch. Where micro-batches can have no other size, the batch decides
 * their number. */
static xm_status_t find_batch(ap_planner_setup_t *setup)
{
    const ap_planner_params_t *params = setup->params;
    int64_t samples = setup->samples;
    int64_t count = params->global_batch > 0 ? params->global_batch / samples
                    : params->micro_batch_count == 1 && params->micro_batches[0] > 0
                        ? params->micro_batches[0]
                    : samples < DEFAULT_BATCH ? DEFAULT_BATCH / samples
                                              : 1;

    if (setup->read.fixed[0] != '\0' && params->global_batch % samples != 0) {
        return XM_INVALID("%s is a micro-batch of %" PRId64 " samples: a batch of %" PRId64
                          " is not a number of them, and %s",
                          params->model, samples, params->global_batch, setup->read.fixed);
    }
    if (count > MOST_SAMPLES / samples) {
        return XM_INVALID("%" PRId64 " micro-batches of %" PRId64
                          " samples: a step has at most %d samples",
                          count, samples, MOST_SAMPLES);
    }
    setup->global_batch = params->global_batch > 0 ? params->global_batch : count * samples;
    setup->micro_batches = setup->read.fixed[0] != '\0' ? count : 0;
    return XM_OK;
}

/* Whether the graph can have micro-batches of other sizes is found by making one. */
static void try_another_batch(ap_planner_setup_t *setup)
{
    ap_graph_t *made = NULL;

    if (setup->samples < 2) {
        (void)snprintf(setup->read.fixed, sizeof(setup->read.fixed),
                       "which dimension of a single sample is the batch cannot be told");
    } else if (ap_graph_with_batch(setup->graph, setup->samples, 1, &made) != XM_OK) {
        (void)snprintf(setup->read.fixed, sizeof(setup->read.fixed), "%s", xm_last_error());
    }
    ap_graph_destroy(made);
}

/* Reads a file, once for all cases. */
static xm_status_t open_graph(ap_planner_setup_t *setup)
{
    const ap_planner_params_t *params = setup->params;
    xm_status_t status = XM_OK;

    setup->graph = params->graph;
    if (setup->graph == NULL && ap_frontend_is_file(params->model)) {
        status = ap_planner_model_read(params->model, params->dims, params->dim_count,
                                       &params->layering, &setup->read);
        setup->graph = setup->read.graph;
    } else if (params->dim_count > 0 || ap_planner_model_is_given(&params->layering)) {
        status = XM_INVALID("%s are told for files; %s has its own",
                            params->dim_count > 0 ? "dimensions" : "layers", params->model);
    }
    if (status != XM_OK || setup->graph == NULL) {
        return status;
    }
    XM_TRY(check_demands(params, setup->graph));
    setup->samples = ap_planner_model_samples(setup->graph);
    try_another_batch(setup);
    return find_batch(setup);
}

/* What plans may use of the device with the most memory, and what they leave. */
static xm_status_t find_memory(ap_planner_setup_t *setup)
{
    const xm_cluster_profile_t *profile = setup->params->profile;
    double most = 0.0, least = INFINITY;

    for (int host = 0; host < xm_cluster_profile_hosts(profile); ++host) {
        double bytes = xm_cluster_profile_host_device(profile, host).memory_bytes;

        most = fmax(most, bytes);
        least = fmin(least, bytes);
    }
    setup->memory_limit = ap_memory_budget_usable(&setup->budget, most);
    setup->memory_reserve =
        setup->budget.cap > 0.0 ? 0.0 : ap_memory_budget_reserve(&setup->budget, most);
    return ap_memory_budget_check(&setup->budget, least);
}

/* On failure the setup holds what was opened so far, and is closed like any other. */
xm_status_t ap_planner_setup_open(const ap_planner_params_t *params, double cap,
                                  ap_planner_setup_t *setup)
{
    xm_status_t status = check_params(params);

    *setup = (ap_planner_setup_t){.params = params};
    XM_TRY(status);
    setup->global_batch = params->global_batch > 0 ? params->global_batch : DEFAULT_BATCH;
    XM_TRY(open_graph(setup));
    setup->budget = (ap_memory_budget_t){params->memory_limit, params->memory_reserve, cap};
    XM_TRY(find_memory(setup));
    XM_TRY(ap_device_classes_create(params->profile, setup->budget, &setup->classes));
    return ap_cross_mesh_create(params->profile, &setup->cross_mesh);
}

void ap_planner_setup_close(ap_planner_setup_t *setup)
{
    ap_cross_mesh_destroy(setup->cross_mesh);
    ap_device_classes_destroy(setup->classes);
    ap_planner_model_clear(&setup->read);
}

/* How a file was read goes into the plan, so that whoever reads the file again gets the same
 * layers. */
ap_plan_info_t ap_planner_info(const ap_planner_setup_t *setup)
{
    const ap_planner_params_t *params = setup->params;
    const ap_layering_t *how = &params->layering;
    ap_plan_info_t info = {.model = params->model,
                           .global_batch = setup->global_batch,
                           .cluster = xm_cluster_profile_name(params->profile),
                           .cluster_provenance = xm_cluster_profile_provenance(params->profile),
                           .memory_reserve = setup->memory_reserve,
                           .frozen = params->frozen};

    if (setup->graph != NULL && params->graph == NULL) { /* of a file that can be read again */
        info.reading = (ap_plan_reading_t){.layers = how->layers,
                                           .pattern = how->pattern,
                                           .marks = how->marks,
                                           .mark_count = how->mark_count,
                                           .dims = params->dims,
                                           .dim_count = params->dim_count};
    }
    return info;
}

xm_status_t ap_planner_graph_open(const ap_planner_setup_t *setup, int64_t micro_batches,
                                  const ap_graph_t **graph, ap_graph_t **made)
{
    ap_zoo_params_t zoo = AP_ZOO_PARAMS_INIT;
    int frozen = setup->params->frozen;
    bool as_it_is = setup->graph != NULL && setup->samples * micro_batches == setup->global_batch;
    xm_status_t status;

    *made = NULL;
    *graph = setup->graph;
    if (as_it_is && frozen == 0) {
        return XM_OK;
    }
    zoo.layers = setup->params->layers;
    zoo.batch = setup->global_batch / micro_batches;
    if (as_it_is) {
        status = ap_graph_copy_whole(setup->graph, made);
        XM_THEN(status, ap_graph_finish(*made));
    } else if (setup->graph != NULL) {
        status = ap_graph_with_batch(setup->graph, setup->samples, zoo.batch, made);
    } else {
        status = ap_zoo_create(setup->params->model, &zoo, made);
    }
    *graph = *made;
    if (status == XM_OK && frozen > 0) {
        status = ap_graph_freeze(*made, frozen);
    }
    if (status != XM_OK) {
        ap_graph_destroy(*made);
        *graph = *made = NULL;
    }
    return status;
}

/* What a file's own step computes again is what its author wants; a search without a limit of
 * memory would drop it. */
ap_recompute_t ap_planner_recompute(const ap_planner_setup_t *setup)
{
    bool own =
        setup->params->recompute == AP_RECOMPUTE_AUTO && ap_planner_model_recomputes(&setup->read);

    return own ? AP_RECOMPUTE_ON : setup->params->recompute;
}

xm_status_t ap_planner_case_open(const ap_planner_setup_t *setup,
                                 const ap_planner_case_options_t *options, ap_planner_case_t *one)
{
    const ap_planner_params_t *asked = setup->params;
    ap_stage_table_params_t params = {0};
    xm_status_t status;

    *one = (ap_planner_case_t){0};
    XM_TRY(ap_planner_graph_open(setup, options->micro_batches, &one->graph, &one->made));
    one->version_share = ap_training_version_share(one->graph);
    one->accumulated = ap_schedule_accumulated(options->schedule, (int)options->micro_batches);
    params.graph = one->graph;
    params.classes = setup->classes;
    params.cross_mesh = setup->cross_mesh;
    params.hosts = xm_cluster_profile_hosts(asked->profile);
    params.devices_per_host = xm_cluster_profile_devices_per_host(asked->profile);
    params.micro_batches = (int)options->micro_batches;
    params.recompute = options->recompute;
    params.schedule = options->schedule;
    params.stages = options->stages;
    params.memory_limit = options->memory_limit;
    params.lean_plans = true;
    params.all_submeshes = asked->all_submeshes;
    params.pins = options->pins != NULL ? options->pins : asked->pins;
    params.pin_count = options->pins != NULL ? options->pin_count : asked->pin_count;
    params.spare_hosts = !asked->all_devices && params.pins == NULL;
    params.space = asked->space;
    /* What passes between stages that are given is looked at once they have a plan. */
    params.free_boundaries = asked->free_boundaries || options->pins != NULL;
    params.stop = options->stop;
    params.stop_arg = options->stop_arg;
    status = ap_stage_table_create(&params, &one->table);
    if (status != XM_OK) {
        ap_graph_destroy(one->made);
        *one = (ap_planner_case_t){0};
    }
    return status;
}

void ap_planner_case_close(ap_planner_case_t *one)
{
    ap_stage_table_destroy(one->table);
    ap_graph_destroy(one->made);
    *one = (ap_planner_case_t){0};
}

xm_status_t ap_planner_check_counts(const ap_planner_setup_t *setup)
{
    const ap_planner_params_t *params = setup->params;
    int64_t batch = setup->global_batch, own = setup->micro_batches;

    for (size_t i = 0; i < params->micro_batch_count; ++i) {
        int64_t b = params->micro_batches[i];

        if (own != 0 && b != own) {
            return XM_INVALID("%s is a micro-batch of %" PRId64 " samples, so a batch of %" PRId64
                              " has %" PRId64 " micro-batches, not %" PRId64 ": %s",
                              params->model, batch / own, batch, own, b, setup->read.fixed);
        }
        if (b < 1 || batch % b != 0) {
            return XM_INVALID(
                "a batch of %" PRId64 " does not divide into %" PRId64 " micro-batches", batch, b);
        }
    }
    return XM_OK;
}

/* The counts are checked after they are listed, because either may be what the caller gave. */
xm_status_t ap_planner_micro_batches(const ap_planner_setup_t *setup, int64_t *values, int *count)
{
    const ap_planner_params_t *params = setup->params;
    int64_t batch = setup->global_batch;

    *count = 0;
    if (setup->micro_batches != 0) {
        values[(*count)++] = setup->micro_batches;
    } else if (params->micro_batch_count == 0) {
        for (int64_t b = 1; b <= AP_PLANNER_MOST_MICRO_BATCHES && batch % b == 0; b *= 2) {
            values[(*count)++] = b;
        }
    } else {
        for (size_t i = 0; i < params->micro_batch_count; ++i) {
            values[(*count)++] = params->micro_batches[i];
        }
    }
    return ap_planner_check_counts(setup);
}
