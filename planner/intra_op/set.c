/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Strategies of the nodes of a sharding problem, and what they cost: one table for all nodes that
 * look the same. A table is found by a hash and confirmed by a comparison of everything that enters
 * a price; so equal tables mean equal costs, which is what planner/intra_op/symmetric.c builds on.
 * A graph of 14,000 operators has some dozens of tables.
 */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/base.h"
#include "planner/intra_op/intra_op_private.h"

/* What happens once per iteration is borne by all micro-batches alike. */
double ap_shard_per_iteration(const ap_shard_problem_t *p)
{
    return 1.0 / (p->params.micro_batches > 0 ? p->params.micro_batches : 1);
}

double ap_shard_local_bytes(const ap_shard_problem_t *p, int tensor, ap_spec_t spec)
{
    return ap_cost_mesh_local_bytes(p->params.mesh,
                                    &ap_graph_tensor(p->params.graph, tensor)->shape,
                                    ap_graph_tensor_bytes(p->params.graph, tensor), spec);
}

/* All that must be equal for two operators to have the same strategies and costs, apart from FLOPs
 * and roles of tensors, which same_op() compares. */
static uint64_t hash_op(const ap_graph_t *graph, const ap_op_t *op)
{
    uint64_t hash = xm_hash_mix((uint64_t)op->kind, (uint64_t)op->phase);

    for (const char *letter = op->rule.text; *letter != '\0'; ++letter) {
        hash = xm_hash_mix(hash, (uint64_t)(unsigned char)*letter);
    }
    for (int f = 0; f < op->rule.factors; ++f) {
        hash = xm_hash_mix(hash, (uint64_t)op->rule.factor[f].size << 2 | op->rule.factor[f].kind);
    }
    for (int t = 0; t < op->operand_count + op->result_count; ++t) {
        hash = xm_hash_mix(hash, (uint64_t)ap_graph_tensor(graph, ap_op_tensor(op, t))->dtype);
    }
    for (int t = 0; t < op->operand_count + op->result_count; ++t) {
        hash = xm_hash_mix(hash, (uint64_t)op->touched[t]);
    }
    return xm_hash_mix(hash, (uint64_t)op->repeat);
}

/* Equality without the warning that comparing doubles draws: both are copies of the same numbers,
 * so no tolerance is wanted. */
static bool same_number(double a, double b)
{
    return a <= b && a >= b;
}

/* Whether the strategies of both operators and all their costs are equal. Gradients of parameters
 * and updates of parameters are priced differently, so both must be or neither. */
static bool same_op(const ap_graph_t *graph, const ap_op_t *a, const ap_op_t *b)
{
    if (a->kind != b->kind || a->phase != b->phase || !same_number(a->flops, b->flops) ||
        !same_number(a->repeat, b->repeat) || strcmp(a->rule.text, b->rule.text) != 0 ||
        memcmp(a->touched, b->touched,
               (size_t)(a->operand_count + a->result_count) * sizeof(*a->touched)) != 0 ||
        ap_price_updates_parameter(graph, a) != ap_price_updates_parameter(graph, b)) {
        return false;
    }
    for (int f = 0; f < a->rule.factors; ++f) {
        if (a->rule.factor[f].size != b->rule.factor[f].size ||
            a->rule.factor[f].kind != b->rule.factor[f].kind) {
            return false;
        }
    }
    for (int r = 0; r < a->result_count; ++r) {
        if (memcmp(ap_graph_tensor(graph, a->results[r])->cut,
                   ap_graph_tensor(graph, b->results[r])->cut,
                   sizeof(ap_graph_tensor(graph, 0)->cut)) != 0) {
            return false;
        }
    }
    for (int t = 0; t < a->operand_count + a->result_count; ++t) {
        if (ap_graph_tensor(graph, ap_op_tensor(a, t))->dtype !=
                ap_graph_tensor(graph, ap_op_tensor(b, t))->dtype ||
            ap_price_is_parameter_gradient(graph, a, t) !=
                ap_price_is_parameter_gradient(graph, b, t) ||
            ap_price_is_once(graph, a, t) != ap_price_is_once(graph, b, t)) {
            return false;
        }
    }
    return true;
}

static uint64_t hash_tensor(const ap_tensor_t *tensor)
{
    uint64_t hash = xm_hash_mix(1 + (uint64_t)tensor->kind, (uint64_t)tensor->dtype);

    for (int d = 0; d < tensor->shape.rank; ++d) {
        hash = xm_hash_mix(hash, (uint64_t)tensor->shape.dims[d]);
    }
    return hash;
}

static bool same_tensor(const ap_tensor_t *a, const ap_tensor_t *b)
{
    return a->kind == b->kind && a->dtype == b->dtype && ap_shape_equal(&a->shape, &b->shape) &&
           memcmp(a->cut, b->cut, sizeof(a->cut)) == 0;
}

/* What the author demands of a tensor and no axes of the mesh give. */
static xm_status_t unmet(const ap_shard_problem_t *p, int tensor)
{
    const ap_tensor_t *of = ap_graph_tensor(p->params.graph, tensor);
    char parts[AP_SPEC_TEXT], mesh[AP_SPEC_TEXT];
    int length = 0;

    for (int a = 0; a < ap_cost_mesh_rank(p->params.mesh); ++a) {
        length += snprintf(mesh + length, sizeof(mesh) - (size_t)length, "%s%d", a > 0 ? "x" : "",
                           ap_cost_mesh_size(p->params.mesh, a));
    }
    return XM_INVALID(
        "the model's annotation cuts '%s' into %s parts, which no axes of the mesh %s do", of->name,
        ap_tensor_parts(of, parts, sizeof(parts)), mesh);
}

/* Keeps the specs that meet what is demanded. */
static int keep_met(const ap_shard_problem_t *p, const ap_tensor_t *tensor, ap_spec_t *specs,
                    int count)
{
    int kept = 0;

    for (int s = 0; s < count; ++s) {
        if (ap_strategy_meets(p->params.mesh, tensor, specs[s], 0)) {
            specs[kept++] = specs[s];
        }
    }
    return kept;
}

/* Keeps the specs of an input or parameter that the filter likes best. */
static int keep_liked_specs(const ap_shard_filter_t *filter, const ap_tensor_t *tensor,
                            ap_spec_t *specs, int count)
{
    int best = 1, kept = 0;

    for (int s = 0; s < count; ++s) {
        int rank = filter->tensor(filter->arg, tensor, specs[s]);

        kept = rank > best ? 0 : kept;
        best = rank > best ? rank : best;
        if (rank == best) {
            specs[kept++] = specs[s];
        }
    }
    return kept;
}

/* The same of an operator's strategies. */
static xm_status_t keep_liked(const ap_shard_problem_t *p, const ap_op_t *op,
                              ap_strategy_list_t *list)
{
    const ap_shard_filter_t *filter = p->params.filter;
    int best = 1, kept = 0;

    for (int s = 0; s < list->count && filter != NULL; ++s) {
        int rank = filter->op(filter->arg, p->params.graph, op, &list->items[s]);

        kept = rank > best ? 0 : kept;
        best = rank > best ? rank : best;
        if (rank == best) {
            list->items[kept++] = list->items[s];
        }
    }
    if (filter != NULL && kept == 0) {
        return XM_NO_SOLUTION("'%s' cannot be cut over the mesh as the template demands", op->name);
    }
    list->count = filter != NULL ? kept : list->count;
    return XM_OK;
}

/* An input or parameter has one strategy per spec. The costs are 0 but for the replicated spec
 * where the cost model has a penalty on it (Alpa's has). */
static xm_status_t fill_tensor(ap_shard_problem_t *p, ap_strategy_table_t *set)
{
    const ap_tensor_t *tensor = ap_graph_tensor(p->params.graph, set->tensor);
    const ap_cost_model_t *model = ap_cost_mesh_model(p->params.mesh);
    ap_spec_t specs[AP_MAX_SPECS];

    set->count = ap_specs_enumerate(p->params.mesh, &tensor->shape, specs);
    if (tensor->kind == AP_TENSOR_PARAMETER && ap_cost_model_forces_data_parallel(model)) {
        set->count = 1; /* the first spec is the replicated one */
    }
    set->count = keep_met(p, tensor, specs, set->count);
    if (set->count == 0) {
        return unmet(p, set->tensor);
    }
    if (p->params.filter != NULL) {
        set->count = keep_liked_specs(p->params.filter, tensor, specs, set->count);
    }
    set->specs = xm_arena_take(&p->arena, (size_t)set->count * sizeof(*set->specs));
    set->costs = xm_arena_get(&p->arena, (size_t)set->count, sizeof(*set->costs));
    XM_NEED_MEMORY(!p->arena.failed, "the strategies of a graph");
    memcpy(set->specs, specs, (size_t)set->count * sizeof(*specs));
    for (int s = 0; s < set->count; ++s) {
        if (specs[s] == AP_SPEC_REPLICATED && ap_cost_mesh_axes(p->params.mesh) != 0) {
            set->costs[s] = ap_cost_replicated(p->params.mesh);
        }
    }
    return XM_OK;
}

/* Enumerates and prices the strategies of an operator. Alpa's space differs from ours: every
 * axis that can cut an einsum must, and partial results are never scattered. */
static xm_status_t fill_op(ap_shard_problem_t *p, ap_strategy_table_t *set)
{
    bool alpa = ap_cost_model_is_alpa(ap_cost_mesh_model(p->params.mesh));
    ap_priced_op_t op =
        ap_price_op(p->params.graph, p->params.mesh, set->op, p->params.state_bytes);
    bool own = alpa && p->params.filter == NULL;
    const ap_strategy_options_t options = {.scatter = !own,
                                           .all_axes = own && op.op->kind == AP_OP_EINSUM};

    XM_TRY(ap_strategy_enumerate(&op.site, &options, &set->strategies));
    if (!ap_strategy_list_demand(p->params.graph, op.op, p->params.mesh, &set->strategies) &&
        set->strategies.count != 0) {
        return unmet(p, op.op->results[0]);
    }
    XM_TRY(keep_liked(p, op.op, &set->strategies));
    set->count = set->strategies.count;
    set->costs = xm_arena_get(&p->arena, (size_t)set->count, sizeof(*set->costs));
    XM_NEED_MEMORY(set->costs, "the strategies of a graph");
    for (int s = 0; s < set->count; ++s) {
        double micro_batch, iteration;

        ap_price_strategy(&op, &set->strategies.items[s], &micro_batch, &iteration);
        set->costs[s] = micro_batch + ap_shard_per_iteration(p) * iteration;
    }
    return XM_OK;
}

/* The hash decides nearly always; the comparison makes sure. */
static bool belongs(const ap_shard_problem_t *p, const ap_strategy_table_t *set, uint64_t hash,
                    int op, int tensor)
{
    const ap_graph_t *graph = p->params.graph;
    const ap_shard_filter_t *filter = p->params.filter;

    if (set->hash != hash || (set->op >= 0) != (op >= 0) ||
        (op >= 0 && filter != NULL &&
         filter->kind(filter->arg, graph, ap_graph_op(graph, set->op)) !=
             filter->kind(filter->arg, graph, ap_graph_op(graph, op)))) {
        return false;
    }
    return op >= 0
               ? same_op(graph, ap_graph_op(graph, set->op), ap_graph_op(graph, op))
               : same_tensor(ap_graph_tensor(graph, set->tensor), ap_graph_tensor(graph, tensor));
}

/* Finds or makes the table of a node. A linear search is enough for dozens of tables. Pointers to
 * tables are not kept, as the array moves when it grows. */
xm_status_t ap_strategy_table_find(ap_shard_problem_t *p, int op, int tensor, int *set)
{
    const ap_graph_t *graph = p->params.graph;
    uint64_t hash = op >= 0 ? hash_op(graph, ap_graph_op(graph, op))
                            : hash_tensor(ap_graph_tensor(graph, tensor));
    ap_strategy_table_t made = {.hash = hash, .op = op, .tensor = tensor};
    xm_status_t status;

    for (int k = 0; k < p->sets; ++k) {
        if (belongs(p, &p->set[k], hash, op, tensor)) {
            *set = k;
            return XM_OK;
        }
    }
    XM_NEED_MEMORY(XM_ARRAY_ROOM(p->set, p->set_capacity, p->sets), "the strategies of a graph");
    status = op >= 0 ? fill_op(p, &made) : fill_tensor(p, &made);
    if (status != XM_OK) {
        ap_strategy_list_free(&made.strategies);
        return status;
    }
    *set = p->sets;
    p->set[p->sets++] = made;
    return XM_OK;
}

/* Lists the different specs of a term, and which of them each strategy has. Strategies are many and
 * specs few, so resharding is priced between specs and spread. */
static int distinct_specs(const ap_strategy_table_t *set, int term, ap_spec_t *specs, int *index)
{
    int count = 0;

    for (int s = 0; s < set->count; ++s) {
        ap_spec_t spec = ap_shard_spec_at(set, s, term);
        int at = 0;

        while (at < count && specs[at] != spec) {
            ++at;
        }
        if (at == count) {
            specs[count++] = spec;
        }
        index[s] = at;
    }
    return count;
}

/* The cost of an edge between two specs; `handle` is the tensor's in the memo. */
static double wire_cost(const ap_shard_problem_t *p, const ap_shard_wire_t *wire, int handle,
                        ap_spec_t made, ap_spec_t used)
{
    double cost;

    if (made == used) {
        return 0;
    }
    /* What a loop carries has one sharding, and so has everything in the alpa model. */
    if (wire->alias && (ap_cost_model_is_alpa(ap_cost_mesh_model(p->params.mesh)) ||
                        ap_op_passes_on(ap_graph_op(p->params.graph, p->node[wire->to].op)))) {
        return AP_COST_INFINITE;
    }
    /* The new value of what was updated goes back to where the old one is kept: against the
     * direction of the edge. */
    cost = wire->alias ? ap_reshard_memo_cost(p->memo, handle, used, made)
                       : ap_reshard_memo_cost(p->memo, handle, made, used);
    return cost < AP_COST_INFINITE ? wire->weight * cost : AP_COST_INFINITE;
}

/* For one pair; the memo makes repeated questions cheap. */
double ap_shard_wire_cost(const ap_shard_problem_t *p, const ap_shard_wire_t *wire, ap_spec_t made,
                          ap_spec_t used)
{
    const ap_graph_t *graph = p->params.graph;
    int handle;

    if (made == used) {
        return 0;
    }
    if (ap_reshard_memo_tensor(p->memo, &ap_graph_tensor(graph, wire->tensor)->shape,
                               ap_graph_tensor_bytes(graph, wire->tensor), &handle) != XM_OK) {
        return AP_COST_INFINITE;
    }
    return wire_cost(p, wire, handle, made, used);
}

/* For all pairs of strategies at once: a table between specs, spread over the strategies. */
xm_status_t ap_shard_wire_costs(const ap_shard_problem_t *p, const ap_shard_wire_t *wire,
                                double *costs)
{
    const ap_strategy_table_t *from = ap_strategy_table_of(p, wire->from),
                              *to = ap_strategy_table_of(p, wire->to);
    const ap_tensor_t *tensor = ap_graph_tensor(p->params.graph, wire->tensor);
    ap_spec_t made[AP_MAX_SPECS], used[AP_MAX_SPECS];
    xm_arena_t arena = {0};
    int *index = xm_arena_take(&arena, ((size_t)from->count + (size_t)to->count) * sizeof(*index));
    double *table;
    int makes, uses, handle;
    xm_status_t status = ap_reshard_memo_tensor(
        p->memo, &tensor->shape, ap_graph_tensor_bytes(p->params.graph, wire->tensor), &handle);
    if (status != XM_OK || index == NULL) {
        goto release;
    }
    makes = distinct_specs(from, wire->from_term, made, index);
    uses = distinct_specs(to, wire->to_term, used, index + from->count);
    table = xm_arena_take(&arena, (size_t)makes * (size_t)uses * sizeof(*table));
    if (table == NULL) {
        goto release;
    }
    for (int cell = 0; cell < makes * uses; ++cell) {
        table[cell] = wire_cost(p, wire, handle, made[cell / uses], used[cell % uses]);
    }
    for (int s = 0; s < from->count; ++s) {
        const double *row = table + (size_t)index[s] * (size_t)uses;

        for (int t = 0; t < to->count; ++t) {
            *costs++ = row[index[from->count + t]];
        }
    }

release:
    status = arena.failed ? XM_NO_MEMORY("the strategies of a graph") : status;
    xm_arena_clear(&arena);
    return status;
}
