/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ways to shard one operator, derived from its rule. Alpa lists strategies per kind of operator
 * by hand; here each mesh axis goes to one factor or to none, and specs, partial sums and
 * collectives follow. With four axes and eight factors there are at most 9^4 assignments, so all
 * are enumerated and invalid ones dropped.
 *
 * The order is fixed, because indices of strategies are part of solutions.
 */

#include "planner/cost/strategy.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Each axis cuts one permutation factor at most and is scattered over once; what is left of a
 * result is summed at once. */
static size_t collectives_most(const ap_sharding_rule_t *rule)
{
    return 2 * AP_MAX_MESH_RANK + (size_t)rule->results;
}

static size_t terms_of(const ap_sharding_rule_t *rule)
{
    return (size_t)rule->operands + (size_t)rule->results;
}

/* Bytes of the block of a strategy; the largest entries come first, so all are aligned. */
static size_t block_bytes(const ap_sharding_rule_t *rule)
{
    size_t bytes = collectives_most(rule) * sizeof(ap_collective_t) +
                   terms_of(rule) * sizeof(ap_spec_t) +
                   ((size_t)rule->factors + (size_t)rule->results) * sizeof(unsigned);

    return (bytes + sizeof(double) - 1) / sizeof(double) * sizeof(double);
}

static void point_into(const ap_sharding_rule_t *rule, void *block, ap_strategy_t *strategy)
{
    strategy->collective = block;
    strategy->spec = (ap_spec_t *)(strategy->collective + collectives_most(rule));
    strategy->axes = (unsigned *)(strategy->spec + terms_of(rule));
    strategy->partial = strategy->axes + rule->factors;
}

static xm_status_t no_memory(void)
{
    return XM_NO_MEMORY("strategies");
}

xm_status_t ap_strategy_open(const ap_sharding_rule_t *rule, ap_strategy_t *strategy)
{
    void *block = calloc(1, block_bytes(rule));

    if (block == NULL) {
        return no_memory();
    }
    *strategy = (ap_strategy_t){.devices = 1};
    point_into(rule, block, strategy);
    return XM_OK;
}

xm_status_t ap_strategy_copy(const ap_sharding_rule_t *rule, const ap_strategy_t *from,
                             ap_strategy_t *strategy)
{
    XM_TRY(ap_strategy_open(rule, strategy));

    memcpy(strategy->collective, from->collective, block_bytes(rule));
    strategy->devices = from->devices;
    strategy->collective_count = from->collective_count;
    return XM_OK;
}

void ap_strategy_release(ap_strategy_t *strategy)
{
    free(strategy->collective);
    *strategy = (ap_strategy_t){0};
}

double ap_strategy_element_bytes(const ap_strategy_context_t *site, int term)
{
    return site->graph == NULL
               ? site->element_bytes
               : ap_dtype_bytes(ap_graph_tensor(site->graph, ap_op_tensor(site->op, term))->dtype);
}

double ap_strategy_local_bytes(const ap_strategy_context_t *site, int term, ap_spec_t spec)
{
    ap_shape_t shape = ap_sharding_rule_shape(site->rule, term);
    double bytes = ap_strategy_element_bytes(site, term);

    for (int d = 0; d < shape.rank; ++d) {
        bytes *= (double)ap_cost_mesh_share(site->mesh, shape.dims[d], ap_spec_axes(spec, d));
    }
    return bytes;
}

double ap_strategy_moved_bytes(const ap_strategy_context_t *site, const ap_spec_t *spec)
{
    double sum = 0;

    for (int t = 0; t < site->rule->operands + site->rule->results; ++t) {
        int touched = site->touched != NULL ? site->touched[t] : 0;
        double bytes = touched < 0 ? 0 : ap_strategy_local_bytes(site, t, spec[t]);

        if (touched > 0) {
            bytes = fmin(bytes, ap_strategy_local_bytes(site, touched - 1, spec[touched - 1]));
        }
        sum += bytes * ap_cost_mesh_lead(site->mesh, ap_spec_used_axes(spec[t]));
    }
    return sum;
}

/* Whether a factor is the major one of a dimension of several: its parts must be equal then, or the
 * minor factors would not lie where the spec says. */
static bool is_compound(const ap_sharding_rule_t *rule, int factor)
{
    for (int t = 0; t < rule->operands + rule->results; ++t) {
        for (int d = 0; d < rule->rank[t]; ++d) {
            if (rule->dim[t][d].count > 1 && rule->dim[t][d].factor[0] == factor) {
                return true;
            }
        }
    }
    return false;
}

/* Whether a factor can be cut over a set of axes. */
static bool can_cut(const ap_strategy_context_t *site, int factor, unsigned axes)
{
    const ap_factor_t *of = &site->rule->factor[factor];

    if (of->kind == AP_FACTOR_NEED_REPLICATION || !ap_cost_mesh_cuts(site->mesh, of->size, axes)) {
        return false;
    }
    /* Unequal shards cannot be exchanged one for one. */
    return ap_cost_mesh_divides(site->mesh, of->size, axes) ||
           (of->kind != AP_FACTOR_PERMUTATION && !is_compound(site->rule, factor));
}

/* The spec of one term; false when an axis comes twice or a minor factor is cut. */
static bool term_spec(const ap_sharding_rule_t *rule, int term, const unsigned *axes,
                      ap_spec_t *spec)
{
    unsigned used = 0;

    *spec = AP_SPEC_REPLICATED;
    for (int d = 0; d < rule->rank[term]; ++d) {
        const ap_rule_dim_t *dim = &rule->dim[term][d];

        for (int k = 0; k < dim->count; ++k) {
            unsigned cut = axes[dim->factor[k]];

            if ((cut & used) != 0 || (k > 0 && cut != 0)) {
                return false;
            }
            used |= cut;
            *spec = k == 0 ? ap_spec_with(*spec, d, cut) : *spec;
        }
    }
    return true;
}

/* The axes on factors that an operand brings in and the result lacks: each device then holds a part
 * of the sum. */
static unsigned partial_axes(const ap_sharding_rule_t *rule, int result, const unsigned *axes)
{
    unsigned partial = 0;

    for (int f = 0; f < rule->factors; ++f) {
        bool brought = false;

        for (int o = 0; o < rule->operands && !brought; ++o) {
            brought = ap_sharding_rule_carries(rule, o, f);
        }
        if (brought && !ap_sharding_rule_carries(rule, rule->operands + result, f)) {
            partial |= axes[f];
        }
    }
    return partial;
}

static void add_collective(ap_strategy_t *strategy, ap_collective_kind_t kind, int axis, int term,
                           double bytes)
{
    strategy->collective[strategy->collective_count++] = (ap_collective_t){
        .kind = kind, .axis = axis, .axes = 1U << axis, .term = term, .bytes = bytes};
}

/* One all-reduce of what is still partial, on the bytes that are left after scattering. */
static void all_reduce(const ap_strategy_context_t *site, ap_strategy_t *strategy, int result,
                       unsigned axes)
{
    int term = site->rule->operands + result, first = 0;

    if (axes == 0) {
        return;
    }
    while ((axes >> first & 1U) == 0) {
        ++first;
    }
    add_collective(strategy, AP_ALL_REDUCE, first, term,
                   ap_strategy_local_bytes(site, term, strategy->spec[term]));
    strategy->collective[strategy->collective_count - 1].axes = axes;
}

/* A cut permutation factor sends each device's shard of the first operand to a neighbour. */
static void permute(const ap_strategy_context_t *site, ap_strategy_t *strategy)
{
    for (int f = 0; f < site->rule->factors; ++f) {
        for (int a = 0; a < ap_cost_mesh_rank(site->mesh); ++a) {
            if (site->rule->factor[f].kind == AP_FACTOR_PERMUTATION &&
                (strategy->axes[f] >> a & 1U) != 0) {
                add_collective(strategy, AP_PERMUTE, a, 0,
                               ap_strategy_local_bytes(site, 0, strategy->spec[0]));
            }
        }
    }
}

/* Fills in all but the collectives on results. */
static bool assign(const ap_strategy_context_t *site, const unsigned *axes, ap_strategy_t *strategy)
{
    const ap_sharding_rule_t *rule = site->rule;

    strategy->devices = 1;
    strategy->collective_count = 0;
    for (int f = 0; f < rule->factors; ++f) {
        strategy->axes[f] = axes[f];
        if (axes[f] != 0 && !can_cut(site, f, axes[f])) {
            return false;
        }
        strategy->devices *= (double)rule->factor[f].size /
                             (double)ap_cost_mesh_share(site->mesh, rule->factor[f].size, axes[f]);
    }
    if (ap_cost_mesh_first_part(site->mesh, 0) > 0) {
        strategy->devices = ap_cost_mesh_speedup(site->mesh, ap_strategy_axes(rule, strategy));
    }
    for (int t = 0; t < rule->operands + rule->results; ++t) {
        if (!term_spec(rule, t, axes, &strategy->spec[t])) {
            return false;
        }
    }
    for (int r = 0; r < rule->results; ++r) {
        strategy->partial[r] = partial_axes(rule, r, axes);
    }
    permute(site, strategy);
    return true;
}

unsigned ap_strategy_axes(const ap_sharding_rule_t *rule, const ap_strategy_t *strategy)
{
    unsigned axes = 0;

    for (int f = 0; f < rule->factors; ++f) {
        axes |= strategy->axes[f];
    }
    return axes;
}

bool ap_strategy_assign(const ap_strategy_context_t *site, const unsigned *axes,
                        ap_strategy_t *strategy)
{
    if (!assign(site, axes, strategy)) {
        return false;
    }
    for (int r = 0; r < site->rule->results; ++r) {
        all_reduce(site, strategy, r, strategy->partial[r]);
    }
    return true;
}

typedef struct enumeration {
    const ap_strategy_context_t *site;
    const ap_strategy_options_t *options;
    ap_strategy_list_t *list;
    ap_strategy_t strategy; /* being made */
    size_t items, blocks;   /* that there is room for */
} enumeration_t;

/* Adds the strategy as it is. The room moves when it grows, so the items are pointed into it at the
 * end. */
static xm_status_t append(enumeration_t *e)
{
    const size_t bytes = block_bytes(e->site->rule);
    ap_strategy_list_t *list = e->list;

    if (!xm_array_reserve(&list->items, &e->items, (size_t)list->count + 1, sizeof(*list->items)) ||
        !xm_array_reserve(&list->room, &e->blocks, (size_t)list->count + 1, bytes)) {
        return no_memory();
    }
    memcpy((char *)list->room + (size_t)list->count * bytes, e->strategy.collective, bytes);
    list->items[list->count++] = e->strategy;
    return XM_OK;
}

/* Every way to all-reduce or scatter the first result's partial axes from `axis` on. Only the first
 * result is scattered; operators with several results that are partial are few, and all
 * combinations would be many. The recursion goes up by an axis each time, and leaves the strategy
 * as it was. */
static xm_status_t finish_result(enumeration_t *e, int axis, unsigned reduced)
{
    const ap_sharding_rule_t *rule = e->site->rule;
    ap_strategy_t *strategy = &e->strategy;
    const int term = rule->operands, rank = ap_cost_mesh_rank(e->site->mesh);
    const int collectives = strategy->collective_count;
    const ap_spec_t spec = strategy->spec[term];
    ap_shape_t shape = ap_sharding_rule_shape(rule, term);
    xm_status_t status;

    while (axis < rank && (strategy->partial[0] >> axis & 1U) == 0) {
        ++axis;
    }
    if (axis == rank) {
        all_reduce(e->site, strategy, 0, reduced);
        for (int r = 1; r < rule->results; ++r) {
            all_reduce(e->site, strategy, r, strategy->partial[r]);
        }
        status = append(e);
        strategy->collective_count = collectives;
        return status;
    }
    status = finish_result(e, axis + 1, reduced | 1U << axis);
    for (int d = 0; d < shape.rank && e->options->scatter && status == XM_OK; ++d) {
        unsigned cut = ap_spec_axes(spec, d);

        if (cut >> axis != 0 ||
            !ap_cost_mesh_cuts(e->site->mesh, shape.dims[d], cut | 1U << axis)) {
            continue;
        }
        strategy->spec[term] = ap_spec_with(spec, d, cut | 1U << axis);
        add_collective(strategy, AP_REDUCE_SCATTER, axis, term,
                       ap_cost_mesh_size(e->site->mesh, axis) *
                           ap_strategy_local_bytes(e->site, term, strategy->spec[term]));
        status = finish_result(e, axis + 1, reduced);
        strategy->spec[term] = spec;
        strategy->collective_count = collectives;
    }
    return status;
}

/* Assigns axis after axis to a factor or to none; `axes` is as it was when it returns. */
static xm_status_t assign_axis(enumeration_t *e, unsigned *axes, int axis)
{
    const ap_sharding_rule_t *rule = e->site->rule;
    xm_status_t status = XM_OK;

    if (axis < 0) {
        return assign(e->site, axes, &e->strategy) ? finish_result(e, 0, 0) : XM_OK;
    }
    if (ap_cost_mesh_size(e->site->mesh, axis) == 1) {
        return assign_axis(e, axes, axis - 1);
    }
    for (int f = 0; f < rule->factors && status == XM_OK; ++f) {
        axes[f] |= 1U << axis;
        status = assign_axis(e, axes, axis - 1);
        axes[f] &= ~(1U << axis);
    }
    return status == XM_OK ? assign_axis(e, axes, axis - 1) : status;
}

/* Drops strategies that let an axis repeat the work where another one cuts all that they cut and
 * that axis too. */
static void drop_repeating(const ap_sharding_rule_t *rule, ap_strategy_list_t *list)
{
    bool cut[1U << AP_MAX_MESH_RANK] = {false}; /* per set of axes: some strategy cuts by it */
    int kept = 0;

    for (int s = 0; s < list->count; ++s) {
        cut[ap_strategy_axes(rule, &list->items[s])] = true;
    }
    for (int s = 0; s < list->count; ++s) {
        unsigned axes = ap_strategy_axes(rule, &list->items[s]);
        bool more = false;

        for (unsigned other = axes + 1; other < 1U << AP_MAX_MESH_RANK; ++other) {
            more = more || (cut[other] && (other & axes) == axes);
        }
        if (!more) {
            list->items[kept++] = list->items[s];
        }
    }
    list->count = kept;
}

xm_status_t ap_strategy_enumerate(const ap_strategy_context_t *site,
                                  const ap_strategy_options_t *options, ap_strategy_list_t *list)
{
    const ap_sharding_rule_t *rule = site->rule;
    ap_strategy_list_t made = {0};
    enumeration_t e = {.site = site, .options = options, .list = &made};
    unsigned *axes = calloc((size_t)rule->factors + 1, sizeof(*axes));
    xm_status_t status = axes == NULL ? no_memory() : ap_strategy_open(rule, &e.strategy);

    if (status == XM_OK) {
        status = assign_axis(&e, axes, ap_cost_mesh_rank(site->mesh) - 1);
        ap_strategy_release(&e.strategy);
    }
    free(axes);
    if (status != XM_OK) {
        ap_strategy_list_free(&made);
        return status;
    }
    for (int s = 0; s < made.count; ++s) {
        point_into(rule, (char *)made.room + (size_t)s * block_bytes(rule), &made.items[s]);
    }
    if (options->all_axes) {
        drop_repeating(rule, &made);
    }
    *list = made;
    return XM_OK;
}

/* How far apart the devices of two neighbouring parts are: the step of the last axis that cuts. */
static int stride_of(const ap_cost_mesh_t *mesh, unsigned axes)
{
    int stride = 1;

    for (int a = ap_cost_mesh_rank(mesh) - 1; a >= 0; --a) {
        if ((axes >> a & 1U) != 0 && ap_cost_mesh_size(mesh, a) > 1) {
            return stride;
        }
        stride *= ap_cost_mesh_size(mesh, a);
    }
    return 0;
}

/* An annotation was made on some mesh, which need not be this one: its stride counts where axes of
 * this one have it. */
static bool meets_cut(const ap_cost_mesh_t *mesh, const ap_cut_t *cut, unsigned axes)
{
    if (cut->parts == 0) {
        return true;
    }
    if (ap_cost_mesh_devices(mesh, axes) != cut->parts) {
        return false;
    }
    if (cut->stride == 0 || stride_of(mesh, axes) == cut->stride) {
        return true;
    }
    for (unsigned other = 1; other < 1U << ap_cost_mesh_rank(mesh); ++other) {
        if (ap_cost_mesh_devices(mesh, other) == cut->parts &&
            stride_of(mesh, other) == cut->stride) {
            return false;
        }
    }
    return true;
}

/* The recursion gives one axis of `more` after the other to a dimension, and goes up by an axis
 * each time. */
bool ap_strategy_meets(const ap_cost_mesh_t *mesh, const ap_tensor_t *tensor, ap_spec_t spec,
                       unsigned more)
{
    int axis = 0;

    if (more != 0) {
        while ((more >> axis & 1U) == 0) {
            ++axis;
        }
        for (int d = 0; d < tensor->shape.rank; ++d) {
            ap_spec_t with = ap_spec_with(spec, d, ap_spec_axes(spec, d) | 1U << axis);

            if (ap_strategy_meets(mesh, tensor, with, more & ~(1U << axis))) {
                return true;
            }
        }
        return false;
    }
    for (int d = 0; d < tensor->shape.rank; ++d) {
        if (!meets_cut(mesh, &tensor->cut[d], ap_spec_axes(spec, d))) {
            return false;
        }
    }
    return true;
}

static bool meets_all(const ap_graph_t *graph, const ap_op_t *op, const ap_cost_mesh_t *mesh,
                      const ap_strategy_t *strategy)
{
    for (int r = 0; r < op->result_count; ++r) {
        if (!ap_strategy_meets(mesh, ap_graph_tensor(graph, op->results[r]),
                               strategy->spec[op->operand_count + r], 0)) {
            return false;
        }
    }
    return true;
}

bool ap_strategy_list_demand(const ap_graph_t *graph, const ap_op_t *op, const ap_cost_mesh_t *mesh,
                             ap_strategy_list_t *list)
{
    int kept = 0, left = 0;

    for (int s = 0; s < list->count; ++s) {
        left += meets_all(graph, op, mesh, &list->items[s]);
    }
    for (int s = 0; s < list->count && left > 0; ++s) {
        if (meets_all(graph, op, mesh, &list->items[s])) {
            list->items[kept++] = list->items[s];
        }
    }
    list->count = left > 0 ? left : list->count;
    return left > 0;
}

char *ap_strategy_format(const ap_sharding_rule_t *rule, const ap_strategy_t *strategy,
                         char *buffer, size_t size)
{
    char spec[AP_SPEC_TEXT];
    size_t length = 0;
    bool first = true;

    buffer[0] = '\0';
    for (int t = 0; t < rule->operands + rule->results && length < size; ++t) {
        const char *separator = t == 0 ? "" : t == rule->operands ? "->" : ",";

        length +=
            (size_t)snprintf(buffer + length, size - length, "%s%s", separator,
                             ap_spec_format(strategy->spec[t], rule->rank[t], spec, sizeof(spec)));
    }
    for (int f = 0; f < rule->factors; ++f) {
        for (int a = 0; a < AP_MAX_MESH_RANK && length < size; ++a) {
            if ((strategy->axes[f] >> a & 1U) != 0) {
                char name[AP_FACTOR_TEXT];

                length +=
                    (size_t)snprintf(buffer + length, size - length, "%s%s:%d", first ? " {" : ",",
                                     ap_factor_name(&rule->factor[f], name, sizeof(name)), a);
                first = false;
            }
        }
    }
    if (!first && length < size) {
        (void)snprintf(buffer + length, size - length, "}");
    }
    return buffer;
}

void ap_strategy_list_free(ap_strategy_list_t *list)
{
    free(list->items);
    free(list->room);
    *list = (ap_strategy_list_t){0};
}
