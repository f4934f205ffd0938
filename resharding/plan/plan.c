/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Makes a plan from layouts: checks the batch, lists its unit tasks, groups them into
 * classes, computes the bound, asks the scheduler, and has the result verified by
 * independent code before anyone sees it. All checks on sizes and times come first, so
 * that every sum in the bounds, schedulers and simulations behind them fits 64 bits and
 * none of them needs checks of its own.
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/base.h"
#include "resharding/plan/plan_private.h"
#include "resharding/plan/regular/regular.h"

enum { LARGEST_ELEMENT = 128 /* bits */ };

/* The longest time that can be planned: below 2^63 by far more than rounding up every
 * transfer adds. */
static const double longest_ns = 9e18;

/* Clones a layout; elements of less than a byte are counted in bytes from here on. */
static xm_status_t clone_layout(const xm_layout_t *layout, int element_bits, xm_layout_t **clone)
{
    return element_bits < 8 ? xm_layout_pack_innermost(layout, 8 / element_bits, clone)
                            : xm_layout_clone(layout, clone);
}

/* Every rank of a mesh must be a rank of the network, so that it has a host. */
static xm_status_t check_ranks(const xm_plan_params_t *params, const xm_layout_t *layout,
                               const char *side)
{
    int rank = xm_mesh_max_rank(xm_layout_mesh(layout));

    if (rank >= xm_network_ranks(params->network)) {
        return XM_INVALID("the %s mesh names rank %d, but the job has ranks 0 … %d", side, rank,
                          xm_network_ranks(params->network) - 1);
    }
    return XM_OK;
}

static xm_status_t check_element(int bits)
{
    bool packed = bits == 1 || bits == 2 || bits == 4;

    if (!packed && (bits < 8 || bits > LARGEST_ELEMENT || bits % 8 != 0)) {
        return XM_INVALID("an element has 1 to 16 bytes, or 1, 2 or 4 bits, not %d bits", bits);
    }
    return XM_OK;
}

/* Adds the bytes of a tensor with all its copies to *total, which must fit 63 bits.
 * Copies count because a schedule may send each of them by itself. */
static xm_status_t check_size(const xm_planned_tensor_t *tensor, int64_t *total)
{
    int copies = xm_mesh_size(xm_layout_mesh(tensor->dst)) / xm_layout_tiles(tensor->dst);
    int64_t bytes = tensor->element_size, all;

    for (int d = 0; d < xm_layout_dims(tensor->src); ++d) {
        if (__builtin_mul_overflow(bytes, xm_layout_shape(tensor->src)[d], &bytes)) {
            return XM_INVALID("the tensor has more than 2^63 bytes (up to dimension %d)", d);
        }
    }
    if (__builtin_mul_overflow(bytes, copies, &all) || __builtin_add_overflow(*total, all, total)) {
        return XM_INVALID(
            "the %d copies of the tensor at the destination have more than 2^63 bytes", copies);
    }
    return XM_OK;
}

/* Adds one tensor to the batch. It is counted before anything can fail, so that
 * xm_plan_destroy() frees what it has so far; a missing name becomes the tensor's number. */
static xm_status_t add_tensor(xm_plan_t *plan, const xm_plan_params_t *params,
                              const xm_tensor_t *tensor, int64_t *total)
{
    xm_planned_tensor_t *added = &plan->tensors[plan->tensor_count];
    char number[16];

    (void)snprintf(number, sizeof(number), "%d", plan->tensor_count);
    added->name = strdup(tensor->name != NULL ? tensor->name : number);
    ++plan->tensor_count;
    if (added->name == NULL) {
        /* The prefix of the error sentence prints the name, so there has to be one. */
        added->name = strdup("");
        return XM_NO_MEMORY("a tensor's name");
    }
    added->element_size = tensor->element_bits < 8 ? 1 : tensor->element_bits / 8;
    XM_TRY(check_element(tensor->element_bits));
    XM_TRY(check_ranks(params, tensor->src, "source"));
    XM_TRY(check_ranks(params, tensor->dst, "destination"));
    XM_TRY(clone_layout(tensor->src, tensor->element_bits, &added->src));
    XM_TRY(clone_layout(tensor->dst, tensor->element_bits, &added->dst));
    return check_size(added, total);
}

/* Sums of nanoseconds are 64 bits wide: all copies one after the other over the slowest
 * link are the most that any plan adds up, and that must fit. */
xm_status_t xm_plan_check_time(const xm_network_t *network, int64_t bytes)
{
    double rate = fmin(xm_network_nic_bandwidth(network), xm_network_host_bandwidth(network));
    double uplink = xm_network_uplink_bandwidth(network), ns;

    rate = uplink > 0 ? fmin(rate, uplink) : rate;
    ns = (double)bytes * 1e9 / rate;

    if (ns >= longest_ns) {
        return XM_INVALID("all copies have %" PRId64
                          " bytes, which take %g s at %g bytes/s; at most %g s can be planned",
                          bytes, ns * 1e-9, rate, longest_ns * 1e-9);
    }
    return XM_OK;
}

/* A batch, or the parameters' single tensor as a batch of one. */
static xm_status_t add_tensors(xm_plan_t *plan, const xm_plan_params_t *params)
{
    const xm_tensor_t single = {.src = params->src,
                                .dst = params->dst,
                                .element_bits =
                                    params->element_size >= 1 && params->element_size <= 16
                                        ? (int)params->element_size * 8
                                        : 0};
    const xm_tensor_t *tensors = params->tensors != NULL ? params->tensors : &single;
    int count = params->tensors != NULL ? params->tensor_count : 1;
    int64_t total = 0;
    xm_status_t status = XM_OK;

    if (count < 1) {
        return XM_INVALID("a batch has at least one tensor, not %d", count);
    }
    if (params->tensors == NULL && single.element_bits == 0) {
        return XM_INVALID("an element has 1 to 16 bytes, not %" PRId64, params->element_size);
    }
    plan->tensors = calloc((size_t)count, sizeof(*plan->tensors));
    XM_NEED_MEMORY(plan->tensors, "%d tensors", count);
    for (int i = 0; status == XM_OK && i < count; ++i) {
        status = add_tensor(plan, params, &tensors[i], &total);
    }
    if (status < 0 && params->tensors != NULL) {
        return xm_error_prefix(status, "tensor %s", plan->tensors[plan->tensor_count - 1].name);
    }
    return status < 0 ? status : xm_plan_check_time(params->network, total);
}

/* The number of a layout among the different ones, from a table of twice as many places as there
 * are layouts. The tensors of a model share few objects, and what follows from a layout is worked
 * out once for all of them. */
static int number_layout(xm_plan_t *plan, const xm_layout_t *layout, uint64_t mask,
                         const xm_layout_t **known, int *index)
{
    uint64_t at = ((uintptr_t)layout >> 4) * UINT64_C(0x9e3779b97f4a7c15) >> 20 & mask;

    while (known[at] != NULL && known[at] != layout) {
        at = (at + 1) & mask;
    }
    if (known[at] == NULL) {
        known[at] = layout;
        index[at] = plan->layout_count++;
    }
    return index[at];
}

xm_status_t xm_plan_number_layouts(xm_plan_t *plan)
{
    size_t size = 4;
    const xm_layout_t **known;
    int *index;
    xm_status_t status = XM_OK;

    while (size < 4 * (size_t)plan->tensor_count) {
        size *= 2;
    }
    known = calloc(size, sizeof(*known));
    index = malloc(size * sizeof(*index));
    if (known == NULL || index == NULL) {
        status = XM_NO_MEMORY("the layouts of %d tensors", plan->tensor_count);
    }
    for (int i = 0; status == XM_OK && i < plan->tensor_count; ++i) {
        xm_planned_tensor_t *tensor = &plan->tensors[i];

        tensor->src_index = number_layout(plan, tensor->src, size - 1, known, index);
        tensor->dst_index = number_layout(plan, tensor->dst, size - 1, known, index);
    }
    free(index);
    free(known);
    return status;
}

/* Lists the unit tasks of all tensors in one array. The first tensor's list is taken over
 * as it is, so that a plan of one tensor copies nothing. */
static xm_status_t list_tasks(xm_plan_t *plan)
{
    size_t room = 0;

    for (int i = 0; i < plan->tensor_count; ++i) {
        xm_unit_task_t *tasks = NULL;
        int64_t count = 0;

        XM_TRY(xm_unit_tasks_create(plan->tensors[i].src, plan->tensors[i].dst, i, &tasks, &count));
        if (i == 0) {
            plan->tasks = tasks;
            plan->task_count = count;
            room = (size_t)count;
            continue;
        }
        if (!xm_array_reserve(&plan->tasks, &room, (size_t)(plan->task_count + count),
                              sizeof(*plan->tasks))) {
            free(tasks);
            return XM_NO_MEMORY("%" PRId64 " unit tasks", plan->task_count + count);
        }
        if (count > 0) {
            memcpy(plan->tasks + plan->task_count, tasks, (size_t)count * sizeof(*tasks));
        }
        plan->task_count += count;
        free(tasks);
    }
    return XM_OK;
}

static void count_ranks(xm_plan_t *plan)
{
    for (int i = 0; i < plan->tensor_count; ++i) {
        int src = xm_mesh_max_rank(xm_layout_mesh(plan->tensors[i].src)) + 1;
        int dst = xm_mesh_max_rank(xm_layout_mesh(plan->tensors[i].dst)) + 1;

        plan->ranks = src > plan->ranks ? src : plan->ranks;
        plan->ranks = dst > plan->ranks ? dst : plan->ranks;
    }
}

/* Keeps the host of each rank that occurs; the plan outlives the caller's network. */
xm_status_t xm_plan_take_network(xm_plan_t *plan, const xm_network_t *network)
{
    plan->host_of_rank = malloc((size_t)plan->ranks * sizeof(*plan->host_of_rank));
    XM_NEED_MEMORY(plan->host_of_rank, "%d ranks", plan->ranks);
    for (int r = 0; r < plan->ranks; ++r) {
        plan->host_of_rank[r] = xm_network_host_of(network, r);
    }
    return xm_network_clone(network, &plan->network);
}

/* Counts the bytes that cross between hosts, hop by hop: relayed data counts each time it
 * crosses. Regular plans know theirs. */
static void count_net_bytes(xm_plan_t *plan)
{
    for (int64_t i = 0; plan->regular == NULL && i < plan->builder.transfer_count; ++i) {
        const xm_transfer_t transfer = xm_plan_transfer(plan, i);
        const xm_route_t *route = xm_builder_route_of(&plan->builder, &transfer);
        uint64_t crossings = 0;

        for (int h = 0; h < route->count; ++h) {
            crossings += plan->host_of_rank[xm_hop_sender(&transfer, route, h)] !=
                         plan->host_of_rank[route->ranks[h]];
        }
        plan->net_bytes += crossings * (uint64_t)((transfer.end - transfer.first) *
                                                  xm_task_element_size(plan, transfer.task));
    }
}

/* Verification failing here means a fault of this library, never of the caller's, hence
 * the internal error. */
xm_status_t xm_plan_finish(xm_plan_t *plan)
{
    xm_status_t status;

    count_net_bytes(plan);
    XM_TRY(xm_plan_hash(plan));
    status = xm_plan_verify(plan);
    return status < 0 ? xm_error_prefix(XM_ERR_INTERNAL, "the new plan is wrong") : XM_OK;
}

/* Copies what the caller wants into this library's version of the parameters; pointers
 * that a plan cannot do without are checked here, by name. */
static xm_status_t take_params(const xm_plan_params_t *given, xm_plan_params_t *params)
{
    static const char function[] = "xm_plan_create";

    XM_TRY(xm_params_copy(function, "xm_plan_params_t", params, sizeof(*params), given));
    if (xm_is_null(function, "params.network", params->network) ||
        (params->tensors == NULL && (xm_is_null(function, "params.src", params->src) ||
                                     xm_is_null(function, "params.dst", params->dst)))) {
        return XM_ERR_INVALID_ARGUMENT;
    }
    for (int i = 0; params->tensors != NULL && i < params->tensor_count; ++i) {
        if (xm_is_null(function, "the source layout of a tensor", params->tensors[i].src) ||
            xm_is_null(function, "the destination layout of a tensor", params->tensors[i].dst)) {
            return XM_ERR_INVALID_ARGUMENT;
        }
    }
    return XM_OK;
}

/* Plans task by task. The classes serve the bound and the scheduler only and are freed before the
 * plan is finished. */
static xm_status_t plan_tasks(xm_plan_t *plan, const xm_plan_params_t *params)
{
    xm_classes_t classes = {0};
    xm_bound_t bound;
    xm_status_t status = list_tasks(plan);

    XM_THEN(status, xm_classes_create(plan, params->network, &classes));
    XM_THEN(status, xm_classes_bound(&classes, params->network, &bound));
    if (status == XM_OK) {
        plan->bound_ns = bound.ns;
        status = xm_schedule(plan, params, &classes);
    }
    xm_classes_clear(&classes);
    return status;
}

/* The steps depend on each other in this order. */
xm_status_t xm_plan_create(const xm_plan_params_t *given, xm_plan_t **plan)
{
    xm_plan_params_t own = XM_PLAN_PARAMS_INIT;
    const xm_plan_params_t *params = &own;
    xm_plan_t *created;
    xm_status_t status;

    XM_TRY(take_params(given, &own));
    XM_NEED_ARGUMENTS(plan);
    created = calloc(1, sizeof(*created));
    XM_NEED_MEMORY(created, "a plan");
    created->strategy = params->strategy;
    created->scheduler = params->scheduler;
    created->chunk_bytes = params->chunk_bytes;
    created->seed = params->seed;
    created->node_budget = params->node_budget;
    status = add_tensors(created, params);
    XM_THEN(status, xm_plan_number_layouts(created));
    if (status == XM_OK) {
        count_ranks(created);
        status = xm_plan_take_network(created, params->network);
    }
    XM_THEN(status, xm_regular_fits(created, params) ? xm_regular_create(created, params)
                                                     : plan_tasks(created, params));
    XM_THEN(status, xm_plan_finish(created));
    if (status < 0) {
        xm_plan_destroy(created);
        return status;
    }
    *plan = created;
    return XM_OK;
}

void xm_plan_destroy(xm_plan_t *plan)
{
    if (plan != NULL) {
        xm_builder_clear(&plan->builder);
        xm_network_destroy(plan->network);
        free(plan->host_of_rank);
        free(plan->kept);
        xm_regular_destroy(plan->regular);
        free(plan->tasks);
        for (int i = 0; i < plan->tensor_count; ++i) {
            xm_layout_destroy(plan->tensors[i].dst);
            xm_layout_destroy(plan->tensors[i].src);
            free(plan->tensors[i].name);
        }
        free(plan->tensors);
        free(plan);
    }
}
