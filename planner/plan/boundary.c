/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What passes between stages, as a plan has it: its tensors one by one, and the checks that make a
 * boundary one that can be resharded between the meshes of its stages.
 */

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "comm/base.h"
#include "planner/plan/plan_private.h"

/* Every cut must divide, because reshardings are planned on even tiles. */
static xm_status_t check_cuts(const char *place, const ap_plan_tensor_t *tensor, const char *text,
                              const ap_plan_stage_t *stage)
{
    ap_spec_t spec;
    xm_status_t status = ap_spec_parse(text, tensor->rank, 2, &spec);

    if (status != XM_OK) {
        return xm_error_prefix(XM_ERR_PARSE, "%s", place);
    }
    for (int d = 0; d < tensor->rank; ++d) {
        unsigned axes = ap_spec_axes(spec, d);
        int parts =
            ((axes & 1U) != 0 ? stage->shape[0] : 1) * ((axes & 2U) != 0 ? stage->shape[1] : 1);

        if (tensor->shape[d] % parts != 0) {
            return XM_MALFORMED("%s: dimension %d of %" PRId64 " elements does not divide into %d",
                                place, d, tensor->shape[d], parts);
        }
    }
    return XM_OK;
}

static xm_status_t check_tensor(const char *place, const ap_plan_tensor_t *tensor)
{
    /* In doubles, so that an absurd shape cannot overflow before it is compared. */
    double bytes = (double)tensor->element_size;

    for (int d = 0; d < tensor->rank; ++d) {
        bytes *= (double)tensor->shape[d];
    }
    return tensor->element_size >= 1 && (double)tensor->bytes == bytes
               ? XM_OK
               : XM_MALFORMED("%s: %" PRId64 " bytes, but shape and element size make %g", place,
                              tensor->bytes, bytes);
}

/* A boundary repeats the mesh of its stages, for those who take it alone; both must say the
 * same. */
static xm_status_t check_side(const char *place, const ap_plan_side_t *side,
                              const ap_plan_stage_t *stage)
{
    if (side->shape[0] != stage->shape[0] || side->shape[1] != stage->shape[1] ||
        memcmp(side->devices, stage->devices, (size_t)side->device_count * sizeof(int)) != 0) {
        return XM_MALFORMED("%s: the mesh is not that of its stage", place);
    }
    return XM_OK;
}

ap_plan_tensor_t ap_plan_boundary_tensor(const ap_plan_boundary_t *boundary, int index)
{
    ap_plan_tensor_t first = {.tensor = boundary->tensor,
                              .rank = boundary->rank,
                              .dtype = boundary->dtype,
                              .element_size = boundary->element_size,
                              .bytes = boundary->bytes,
                              .src = boundary->src.spec,
                              .dst = boundary->dst.spec};

    if (index > 0) {
        return boundary->more[index - 1];
    }
    memcpy(first.shape, boundary->shape, sizeof(first.shape));
    return first;
}

int64_t ap_plan_boundary_bytes(const ap_plan_boundary_t *boundary)
{
    int64_t bytes = boundary->bytes;

    for (int i = 0; i < boundary->more_count; ++i) {
        bytes += boundary->more[i].bytes;
    }
    return bytes;
}

/* Neighbours come first, then those over stages in ascending order. */
static xm_status_t check_stages(const ap_plan_t *plan, const char *place, int index)
{
    const ap_plan_boundary_t *at = &plan->boundaries[index], *before = at - 1;
    bool neighbours = index < plan->stage_count - 1;

    if (neighbours ? at->from == index && at->to == index + 1
                   : at->from >= 0 && at->from + 1 < at->to && at->to < plan->stage_count &&
                         (index == plan->stage_count - 1 || before->from < at->from ||
                          (before->from == at->from && before->to < at->to))) {
        return XM_OK;
    }
    return XM_MALFORMED("%s: stages %d and %d, where those between neighbours come first and then "
                        "those over stages, in ascending order",
                        place, at->from, at->to);
}

/* The sides as such, then every tensor. */
static xm_status_t check_tensors(const ap_plan_t *plan, const char *place,
                                 const ap_plan_boundary_t *boundary)
{
    const ap_plan_stage_t *from = &plan->stages[boundary->from], *to = &plan->stages[boundary->to];
    char inner[64];

    (void)snprintf(inner, sizeof(inner), "%s.src", place);
    XM_TRY(check_side(inner, &boundary->src, from));
    (void)snprintf(inner, sizeof(inner), "%s.dst", place);
    XM_TRY(check_side(inner, &boundary->dst, to));
    for (int i = 0; i <= boundary->more_count; ++i) {
        const ap_plan_tensor_t tensor = ap_plan_boundary_tensor(boundary, i);
        char which[64] = "";

        if (i > 0) {
            (void)snprintf(which, sizeof(which), ".more[%d]", i - 1);
        }
        (void)snprintf(inner, sizeof(inner), "%.30s%.20s.src", place, which);
        XM_TRY(check_cuts(inner, &tensor, tensor.src, from));
        (void)snprintf(inner, sizeof(inner), "%.30s%.20s.dst", place, which);
        XM_TRY(check_cuts(inner, &tensor, tensor.dst, to));
    }
    return XM_OK;
}

static xm_status_t check_links(const ap_plan_t *plan, const char *place,
                               const ap_plan_boundary_t *boundary)
{
    for (int i = 0; i < boundary->link_count; ++i) {
        const ap_link_load_t *link = &boundary->links[i];

        if (link->index >= plan->info.hosts) { /* nor are there more racks than hosts */
            return XM_MALFORMED("%s: %s %d of a cluster of %d hosts", place,
                                link->rack ? "rack" : "host", link->index, plan->info.hosts);
        }
        XM_TRY(ap_plan_check_times(place, link->forward, AP_LINK_DIRECTIONS));
        XM_TRY(ap_plan_check_times(place, link->backward, AP_LINK_DIRECTIONS));
    }
    return XM_OK;
}

xm_status_t ap_plan_check_boundary(const ap_plan_t *plan, int index)
{
    const ap_plan_boundary_t *boundary = &plan->boundaries[index];
    const double times[] = {boundary->forward, boundary->backward, boundary->bound,
                            (double)boundary->net_bytes};
    char place[40];

    (void)snprintf(place, sizeof(place), "reshardings[%d]", index);
    for (int i = 0; i <= boundary->more_count; ++i) {
        const ap_plan_tensor_t tensor = ap_plan_boundary_tensor(boundary, i);

        XM_TRY(check_tensor(place, &tensor));
    }
    XM_TRY(ap_plan_check_times(place, times, sizeof(times) / sizeof(times[0])));
    XM_TRY(check_links(plan, place, boundary));
    XM_TRY(check_stages(plan, place, index));
    return check_tensors(plan, place, boundary);
}
