/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A plan, checked as a whole. Whoever holds an ap_plan_t may rely on it: layers without gap or
 * overlap, every rank at most once, specs that fit their meshes, numbers that are finite. There is
 * one way to make a plan, from a JSON document, so files, planners and plug-ins all pass the same
 * checks.
 *
 * The digest is that of the document without its digest, keys sorted and without blanks: it does
 * not depend on who wrote the file or how.
 */

#include "planner/plan/plan.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "comm/base.h"
#include "planner/plan/plan_private.h"

xm_status_t ap_plan_check_times(const char *place, const double *seconds, int count)
{
    for (int i = 0; i < count; ++i) {
        if (!(seconds[i] >= 0.0) || isinf(seconds[i])) {
            return XM_MALFORMED("%s: %g is not a number of seconds or bytes", place, seconds[i]);
        }
    }
    return XM_OK;
}

/* Every rank of the cluster at most once over all stages; @p taken has one entry per rank. */
static xm_status_t check_devices(const ap_plan_t *plan, int index, int *taken)
{
    const ap_plan_stage_t *stage = &plan->stages[index];
    int ranks = plan->info.hosts * plan->info.devices_per_host;

    for (int i = 0; i < stage->hosts * stage->devices_per_host; ++i) {
        int rank = stage->devices[i];

        if (rank >= ranks) {
            return XM_MALFORMED("stages[%d]: rank %d is outside the %d of the cluster", index, rank,
                                ranks);
        }
        if (taken[rank] != 0) {
            return XM_MALFORMED("stages[%d]: rank %d belongs to stage %d already", index, rank,
                                taken[rank] - 1);
        }
        taken[rank] = index + 1;
    }
    return XM_OK;
}

/* Groups of layers cover the stage in order. A plan without any groups is allowed: it says where
 * stages run and leaves the rest to others. */
static xm_status_t check_sharding(const ap_plan_stage_t *stage, int index)
{
    int layer = stage->first_layer;

    for (int i = 0; i < stage->layer_count; ++i) {
        if (stage->layers[i].first_layer != layer ||
            stage->layers[i].last_layer < stage->layers[i].first_layer) {
            return XM_MALFORMED("stages[%d].sharding[%d]: layers %d to %d where %d comes next",
                                index, i, stage->layers[i].first_layer, stage->layers[i].last_layer,
                                layer);
        }
        layer = stage->layers[i].last_layer + 1;
    }
    if (stage->layer_count > 0 && layer != stage->last_layer + 1) {
        return XM_MALFORMED("stages[%d].sharding ends at layer %d, the stage at %d", index,
                            layer - 1, stage->last_layer);
    }
    return XM_OK;
}

static xm_status_t check_stage(const ap_plan_t *plan, int index, int *taken)
{
    const ap_plan_stage_t *stage = &plan->stages[index];
    const double times[] = {stage->forward,   stage->backward,    stage->sync,
                            stage->update,    stage->state_bytes, stage->activation_bytes,
                            stage->work_bytes};
    int next = index > 0 ? plan->stages[index - 1].last_layer + 1 : 0;
    char place[32];

    (void)snprintf(place, sizeof(place), "stages[%d]", index);
    if (stage->first_layer != next || stage->last_layer < stage->first_layer) {
        return XM_MALFORMED("%s: layers %d to %d where %d comes next", place, stage->first_layer,
                            stage->last_layer, next);
    }
    if (stage->shape[0] * stage->shape[1] != stage->hosts * stage->devices_per_host) {
        return XM_MALFORMED("%s: mesh %dx%d is not a shape of the submesh %dx%d", place,
                            stage->shape[0], stage->shape[1], stage->hosts,
                            stage->devices_per_host);
    }
    if (stage->in_flight < 1) {
        return XM_MALFORMED("%s: %d micro-batches in flight", place, stage->in_flight);
    }
    XM_TRY(ap_plan_check_times(place, times, sizeof(times) / sizeof(times[0])));
    XM_TRY(check_sharding(stage, index));
    return check_devices(plan, index, taken);
}

static xm_status_t check_info(const ap_plan_t *plan)
{
    const ap_plan_info_t *info = &plan->info;
    const double times[] = {
        info->step,           info->bound,      info->sum,  info->bottleneck, info->memory_limit,
        info->memory_reserve, info->parameters, info->send, info->split,      info->weight};
    ap_schedule_kind_t kind;

    /* Bounds on the cluster keep the number of ranks within an int. */
    if (info->hosts < 1 || info->devices_per_host < 1 || info->hosts > 1 << 16 ||
        info->devices_per_host > 1 << 12) {
        return XM_MALFORMED("cluster: %d hosts of %d devices; a plan is for at most %d of %d",
                            info->hosts, info->devices_per_host, 1 << 16, 1 << 12);
    }
    if (info->micro_batches < 1 || info->global_batch < 1 ||
        info->global_batch % info->micro_batches != 0) {
        return XM_MALFORMED("schedule: a batch of %" PRId64 " does not divide into %" PRId64
                            " micro-batches",
                            info->global_batch, info->micro_batches);
    }
    if (ap_schedule_find(info->schedule, &kind) != XM_OK || !ap_plan_can_have(kind)) {
        return XM_MALFORMED("schedule: kind '%s' is not one that a plan can have", info->schedule);
    }
    if (info->weight >= 1.0) {
        return XM_MALFORMED("predicted: weight_share is %g; it must be below 1", info->weight);
    }
    if (plan->stage_count < 1 || plan->boundary_count < plan->stage_count - 1) {
        return XM_MALFORMED("%d stages with %d reshardings between them", plan->stage_count,
                            plan->boundary_count);
    }
    return ap_plan_check_times("predicted", times, sizeof(times) / sizeof(times[0]));
}

/* Stages take the devices in the order of hosts, none left out. */
static xm_status_t check_ranks_in_order(const ap_plan_t *plan)
{
    int per_host = plan->info.devices_per_host, next = 0;

    for (int i = 0; i < plan->stage_count; ++i) {
        const ap_plan_stage_t *stage = &plan->stages[i];

        for (int d = 0; d < stage->hosts * stage->devices_per_host; ++d, ++next) {
            int rank = plan->info.host_order[next / per_host] * per_host + next % per_host;

            if (stage->devices[d] != rank) {
                return XM_MALFORMED(
                    "stages[%d]: rank %d where rank %d comes next by the cluster's host_order", i,
                    stage->devices[d], rank);
            }
        }
    }
    return XM_OK;
}

/* The order of hosts has each of them once, and is that of the stages. */
static xm_status_t check_host_order(const ap_plan_t *plan)
{
    const ap_plan_info_t *info = &plan->info;
    int *place;
    xm_status_t status = XM_OK;

    if (info->host_order == NULL) {
        return XM_OK;
    }
    place = calloc((size_t)info->hosts, sizeof(*place));
    XM_NEED_MEMORY(place, "the plan");
    for (int i = 0; i < info->hosts && status == XM_OK; ++i) {
        int *first = &place[info->host_order[i]];

        if (*first != 0) {
            status = XM_MALFORMED("cluster: host_order has host %d as its entries %d and %d",
                                  info->host_order[i], *first - 1, i);
        }
        *first = i + 1;
    }
    XM_THEN(status, check_ranks_in_order(plan));
    free(place);
    return status;
}

/* Whether all stages recompute is said once for all; a stage's own word must not contradict it. */
static xm_status_t check_recompute(const ap_plan_t *plan)
{
    bool all = true;

    for (int i = 0; i < plan->stage_count; ++i) {
        all = all && plan->stages[i].recompute;
    }
    return all == plan->info.rematerialize
               ? XM_OK
               : XM_MALFORMED("schedule: rematerialize is %s where %s stages recompute",
                              plan->info.rematerialize ? "true" : "false", all ? "all" : "not all");
}

bool ap_plan_can_have(ap_schedule_kind_t kind)
{
    return ap_schedule_chunks(kind) == 1 && kind != AP_SCHEDULE_CHIMERA &&
           kind != AP_SCHEDULE_TERAPIPE;
}

bool ap_plan_may_choose(ap_schedule_kind_t kind)
{
    return ap_plan_can_have(kind) && ap_schedule_is_synchronous(kind) && kind != AP_SCHEDULE_VARUNA;
}

static xm_status_t check_plan(const ap_plan_t *plan)
{
    xm_status_t status = check_info(plan);
    int *taken;

    XM_TRY(status);
    taken = calloc((size_t)plan->info.hosts * (size_t)plan->info.devices_per_host, sizeof(*taken));
    XM_NEED_MEMORY(taken, "the plan");
    for (int i = 0; i < plan->stage_count && status == XM_OK; ++i) {
        status = check_stage(plan, i, taken);
    }
    free(taken);
    for (int i = 0; i < plan->boundary_count && status == XM_OK; ++i) {
        status = ap_plan_check_boundary(plan, i);
    }
    XM_THEN(status, check_recompute(plan));
    XM_THEN(status, check_host_order(plan));
    if (status == XM_OK &&
        plan->stages[plan->stage_count - 1].last_layer + 1 != plan->info.layers) {
        return XM_MALFORMED("the stages end at layer %d of a model of %d layers",
                            plan->stages[plan->stage_count - 1].last_layer, plan->info.layers);
    }
    return status;
}

/* Computes the hash of the document without its digest, keys sorted. */
static xm_status_t set_digest(ap_plan_t *plan)
{
    json_t *bare = json_copy(plan->document);
    xm_status_t status = XM_NO_MEMORY("the plan's digest");
    XXH128_hash_t hash;
    char *text;

    if (bare == NULL) {
        return status;
    }
    (void)json_object_del(bare, "digest");
    text = json_dumps(bare, JSON_SORT_KEYS | JSON_COMPACT);
    if (text != NULL) {
        hash = XXH3_128bits(text, strlen(text));
        (void)snprintf(plan->digest, sizeof(plan->digest), "%016" PRIx64 "%016" PRIx64,
                       (uint64_t)hash.high64, (uint64_t)hash.low64);
        status = XM_OK;
    }
    free(text);
    json_decref(bare);
    return status;
}

/* Takes over @p document, also on failure. The digest is computed before reading, which compares it
 * with the file's, and entered afterwards. */
static xm_status_t plan_from_document(json_t *document, ap_plan_t **result)
{
    ap_plan_t *plan = calloc(1, sizeof(*plan));
    xm_status_t status;

    if (plan == NULL) {
        json_decref(document);
        return XM_NO_MEMORY("the plan");
    }
    plan->document = document;
    status = set_digest(plan);
    XM_THEN(status, ap_plan_from_json(plan));
    XM_THEN(status, check_plan(plan));
    if (status != XM_OK) {
        ap_plan_destroy(plan);
        return status;
    }
    if (json_object_set_new(document, "digest", json_string(plan->digest)) != 0) {
        ap_plan_destroy(plan);
        return XM_NO_MEMORY("the plan");
    }
    *result = plan;
    return XM_OK;
}

xm_status_t ap_plan_create(const ap_plan_params_t *params, ap_plan_t **plan)
{
    json_t *document;

    if (params->stage_count < 1 || params->stages == NULL ||
        (params->stage_count > 1 && params->boundaries == NULL)) {
        return XM_INVALID("a plan needs its stages and the boundaries between them (%d stages)",
                          params->stage_count);
    }
    document = ap_plan_to_json(params);
    if (document == NULL) {
        return XM_INVALID(
            "the plan holds a text that is absent or not UTF-8, or a number that is not finite");
    }
    return plan_from_document(document, plan);
}

ap_plan_params_t ap_plan_params(const ap_plan_t *plan)
{
    return (ap_plan_params_t){.info = plan->info,
                              .stages = plan->stages,
                              .stage_count = plan->stage_count,
                              .boundaries = plan->boundaries,
                              .skip_count = plan->boundary_count + 1 - plan->stage_count};
}

xm_status_t ap_plan_parse(const char *name, const char *text, size_t length, ap_plan_t **plan)
{
    XM_NEED_ARGUMENTS(name, text, plan);
    json_t *document;
    xm_status_t status;

    XM_TRY(xm_json_parse(name, text, length, &document));
    status = plan_from_document(document, plan);
    return status == XM_OK ? XM_OK : xm_error_prefix(status, "%s", name);
}

xm_status_t ap_plan_load(const char *path, ap_plan_t **plan)
{
    XM_NEED_ARGUMENTS(path, plan);
    char *text;
    size_t length;
    xm_status_t status;

    XM_TRY(xm_text_load(path, &text, &length));
    status = ap_plan_parse(path, text, length, plan);
    free(text);
    return status;
}

char *ap_plan_text(const ap_plan_t *plan)
{
    if (XM_IS_NULL(plan)) {
        return NULL;
    }
    return json_dumps(plan->document, JSON_INDENT(1));
}

xm_status_t ap_plan_save(const ap_plan_t *plan, const char *path)
{
    XM_NEED_ARGUMENTS(plan, path);
    char *text = ap_plan_text(plan);
    xm_status_t status;

    XM_NEED_MEMORY(text, "the text of the plan");
    status = xm_text_save(path, text);
    free(text);
    return status == XM_OK ? XM_OK : xm_error_prefix(status, "cannot write");
}

const ap_plan_info_t *ap_plan_info(const ap_plan_t *plan)
{
    if (XM_IS_NULL(plan)) {
        return NULL;
    }
    return &plan->info;
}

int ap_plan_stages(const ap_plan_t *plan)
{
    if (XM_IS_NULL(plan)) {
        return 0;
    }
    return plan->stage_count;
}

const ap_plan_stage_t *ap_plan_stage(const ap_plan_t *plan, int index)
{
    if (XM_IS_NULL(plan)) {
        return NULL;
    }
    return &plan->stages[index];
}

int ap_plan_boundaries(const ap_plan_t *plan)
{
    if (XM_IS_NULL(plan)) {
        return 0;
    }
    return plan->boundary_count;
}

const ap_plan_boundary_t *ap_plan_boundary(const ap_plan_t *plan, int index)
{
    if (XM_IS_NULL(plan)) {
        return NULL;
    }
    return &plan->boundaries[index];
}

/* What happens once per step is spread over the micro-batches. */
double ap_plan_stage_seconds(const ap_plan_t *plan, int index)
{
    const ap_plan_stage_t *stage = &plan->stages[index];

    return stage->forward + stage->backward +
           (stage->sync + stage->update) / (double)plan->info.micro_batches;
}

double ap_plan_memory(const ap_plan_t *plan)
{
    double most = 0.0;

    for (int i = 0; i < ap_plan_stages(plan); ++i) {
        most = fmax(most, ap_plan_stage_memory(ap_plan_stage(plan, i)));
    }
    return most;
}

double ap_plan_stage_memory(const ap_plan_stage_t *stage)
{
    if (XM_IS_NULL(stage)) {
        return 0;
    }
    return stage->state_bytes + (double)stage->in_flight * stage->activation_bytes +
           stage->work_bytes;
}

const char *ap_plan_recompute_text(const ap_plan_t *plan, char *text, size_t size)
{
    size_t length = 0;
    int recomputing = 0;

    for (int i = 0; i < plan->stage_count; ++i) {
        recomputing += plan->stages[i].recompute;
    }
    if (recomputing == 0 || recomputing == plan->stage_count) {
        return recomputing == 0 ? "off" : "on";
    }
    length = (size_t)snprintf(text, size, recomputing == 1 ? "in stage" : "in stages");
    recomputing = 0;
    for (int i = 0; i < plan->stage_count && length < size; ++i) {
        int last = i;

        if (!plan->stages[i].recompute) {
            continue;
        }
        while (last + 1 < plan->stage_count && plan->stages[last + 1].recompute) {
            ++last;
        }
        /* Runs of recomputing stages, as far as the text has room. */
        length += (size_t)snprintf(text + length, size - length, "%s%d",
                                   recomputing++ == 0 ? " " : ", ", i);
        if (last > i && length < size) {
            length += (size_t)snprintf(text + length, size - length, "-%d", last);
        }
        i = last;
    }
    return text;
}

const char *ap_plan_digest(const ap_plan_t *plan)
{
    if (XM_IS_NULL(plan)) {
        return NULL;
    }
    return plan->digest;
}

void ap_plan_destroy(ap_plan_t *plan)
{
    if (plan == NULL) {
        return;
    }
    xm_arena_clear(&plan->arena);
    json_decref(plan->document);
    free(plan);
}
