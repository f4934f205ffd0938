/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One layer as a problem of choosing a strategy per forward operator: nodes with classes of
 * strategies, edges with resharding costs. The number of strategies on a mesh of two axes is in the
 * tens, and an edge would have their square; but neighbours only see the specs and the partial
 * gradients of the tensor between them. So strategies are grouped into classes by what is seen, and
 * edges are priced between different views of one tensor only, then spread to classes.
 */

#include "planner/stage/layer_problem.h"

#include <stdlib.h>
#include <string.h>

/* The bits where price_strategy() of layer_costs.c puts the partial axes. */
static const uint64_t partial_bits = 0x70;

ap_parts_t ap_layer_edge_parts(const ap_layer_edge_t *edge, int from_class, int to_class)
{
    int cell = from_class * edge->to_count + to_class;

    return (ap_parts_t){.forward = edge->forward[cell], .backward = edge->backward[cell]};
}

void ap_layer_problem_destroy(ap_layer_problem_t *problem)
{
    if (problem == NULL) {
        return;
    }
    for (int n = 0; n < problem->nodes; ++n) {
        ap_layer_node_t *node = &problem->node[n];

        ap_strategy_list_free(&node->strategies);
        free(node->base);
        free(node->compute);
        free(node->partial);
        free(node->modes);
        free(node->class_of);
        free(node->interface);
        free(node->first_of);
    }
    for (int e = 0; e < problem->edges; ++e) {
        free(problem->edge[e].forward);
        free(problem->edge[e].backward);
    }
    free(problem->node);
    free(problem->edge);
    free(problem->in_specs);
    free(problem->out_specs);
    free(problem->in_parts);
    free(problem);
}

/* Groups a node's strategies by their interface. Classes are numbered by their first strategy, so
 * the numbering depends on the order of enumeration alone. */
static xm_status_t make_classes(ap_layer_node_t *node)
{
    size_t count = (size_t)node->strategies.count;

    node->class_of = malloc(count * sizeof(int));
    node->first_of = malloc(count * sizeof(int));
    if (node->class_of == NULL || node->first_of == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "no memory for %zu strategies", count);
    }
    for (int s = 0; s < node->strategies.count; ++s) {
        int c = 0;

        while (c < node->classes && memcmp(node->interface[node->first_of[c]], node->interface[s],
                                           sizeof(node->interface[s])) != 0) {
            ++c;
        }
        if (c == node->classes) {
            node->first_of[node->classes++] = s;
        }
        node->class_of[s] = c;
    }
    return XM_OK;
}

/* Only forward operators are nodes; the others are priced with them. */
static xm_status_t make_nodes(const ap_graph_t *training, const ap_layer_ops_t *ops,
                              const ap_cost_mesh_t *mesh, ap_optimizer_t optimizer,
                              bool rematerialize, const ap_layer_space_t *space,
                              ap_layer_problem_t *problem)
{
    problem->node = calloc((size_t)ops->count + 1, sizeof(*problem->node));
    if (problem->node == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "no memory for %d operators", ops->count);
    }
    for (int o = 0; o < ops->count; ++o) {
        ap_layer_node_t *node = &problem->node[problem->nodes];
        xm_status_t status;

        if (ap_graph_op(training, ops->ids[o])->phase != AP_PHASE_FORWARD) {
            continue;
        }
        ++problem->nodes;
        node->op = ops->ids[o];
        status = ap_layer_node_price(training, ops, mesh, optimizer, rematerialize, space, node);
        if (status == XM_OK) {
            status = make_classes(node);
        }
        if (status != XM_OK) {
            return status;
        }
    }
    return XM_OK;
}

/* The node that makes a tensor, or AP_IN if it comes from outside of the layer. */
static int node_of(const ap_graph_t *training, const ap_layer_problem_t *problem, int tensor)
{
    for (int n = 0; n < problem->nodes; ++n) {
        if (problem->node[n].op == ap_graph_tensor(training, tensor)->producer) {
            return n;
        }
    }
    return AP_IN;
}

static int result_term(const ap_op_t *op, int tensor)
{
    for (int r = 0; r < op->result_count; ++r) {
        if (op->results[r] == tensor) {
            return op->operand_count + r;
        }
    }
    return -1;
}

/* What one end of an edge looks like to the other, for a class of its node or for a boundary
 * spec. */
static uint64_t interface_at(const ap_layer_problem_t *problem, int end, int term, int index)
{
    if (end == AP_IN) {
        return problem->in_specs[index];
    }
    if (end == AP_OUT) {
        return problem->out_specs[index];
    }
    return problem->node[end].interface[problem->node[end].first_of[index]][term];
}

static int end_count(const ap_layer_problem_t *problem, int end)
{
    if (end == AP_IN) {
        return problem->in_count;
    }
    return end == AP_OUT ? problem->out_count : problem->node[end].classes;
}

/* Lists the distinct views at one end, and which one each class has. An operator of many strategies
 * often has only a few specs for one of its tensors. */
static int distinct(const ap_layer_problem_t *problem, int end, int term, int count,
                    uint64_t *values, int *index)
{
    int found = 0;

    for (int c = 0; c < count; ++c) {
        uint64_t value = interface_at(problem, end, term, c);
        int i = 0;

        while (i < found && values[i] != value) {
            ++i;
        }
        if (i == found) {
            values[found++] = value;
        }
        index[c] = i;
    }
    return found;
}

/* Prices an edge between distinct views and spreads the costs over all pairs of classes. Forwards,
 * the activation goes from the producer's spec to the reader's. Backwards, the gradient goes from
 * the reader's spec to the producer's, and partial axes are reduced on the way: by a reduce-scatter
 * where the producer cuts along them, otherwise by an all-reduce. */
static void fill_edge(ap_reshard_memo_t *memo, int tensor, bool learns, double runs,
                      ap_layer_edge_t *edge, const uint64_t *from_values, const int *from_index,
                      int from_distinct, const uint64_t *to_values, const int *to_index,
                      int to_distinct, double *scratch)
{
    double *forward = scratch, *backward = scratch + from_distinct * to_distinct;
    for (int f = 0; f < from_distinct; ++f) {
        for (int t = 0; t < to_distinct; ++t) {
            ap_spec_t spec = to_values[t] & ~partial_bits;
            unsigned partial = (unsigned)((to_values[t] & partial_bits) >> 4);

            forward[f * to_distinct + t] =
                runs * ap_reshard_memo_cost(memo, tensor, from_values[f], spec);
            backward[f * to_distinct + t] =
                learns ? runs * ap_reshard_memo_reduce(memo, tensor, spec, partial, from_values[f])
                       : 0;
        }
    }
    for (int f = 0; f < edge->from_count; ++f) {
        for (int t = 0; t < edge->to_count; ++t) {
            int cell = from_index[f] * to_distinct + to_index[t];

            edge->forward[f * edge->to_count + t] = forward[cell];
            edge->backward[f * edge->to_count + t] = backward[cell];
        }
    }
}

/* The memo knows reshardings by shape, so edges of equal tensors are priced once per mesh. */
static xm_status_t price_edge(const ap_graph_t *training, const ap_layer_ops_t *ops,
                              const ap_layer_problem_t *problem, ap_reshard_memo_t *memo,
                              ap_layer_edge_t *edge)
{
    double runs = edge->to < 0
                      ? 1
                      : ap_price_reshard_runs(training, edge->tensor,
                                              ap_graph_op(training, problem->node[edge->to].op));
    const ap_tensor_t *tensor = ap_graph_tensor(training, edge->tensor);
    size_t from = (size_t)edge->from_count, to = (size_t)edge->to_count;
    uint64_t *values = malloc((from + to) * sizeof(*values));
    int *index = malloc((from + to) * sizeof(*index));
    double *scratch = malloc(2 * from * to * sizeof(*scratch));
    int handle;
    xm_status_t status = ap_reshard_memo_tensor(
        memo, &tensor->shape, ap_graph_tensor_bytes(training, edge->tensor), &handle);

    edge->forward = malloc(from * to * sizeof(double));
    edge->backward = malloc(from * to * sizeof(double));
    if (status == XM_OK && (values == NULL || index == NULL || scratch == NULL ||
                            edge->forward == NULL || edge->backward == NULL)) {
        status = xm_error_set(XM_ERR_NO_MEMORY, "no memory for %zu resharding costs", from * to);
    }
    if (status == XM_OK) {
        int from_distinct =
            distinct(problem, edge->from, edge->from_term, edge->from_count, values, index);
        int to_distinct =
            distinct(problem, edge->to, edge->to_term, edge->to_count, values + from, index + from);

        fill_edge(memo, handle, ops->learns[edge->tensor], runs, edge, values, index, from_distinct,
                  values + from, index + from, to_distinct, scratch);
    }
    free(values);
    free(index);
    free(scratch);
    return status;
}

/* An edge from a tensor to one reader. Several readers of a tensor make several edges, each with
 * its own resharding. */
static xm_status_t add_edge(const ap_graph_t *training, const ap_layer_ops_t *ops,
                            ap_layer_problem_t *problem, ap_reshard_memo_t *memo, int tensor,
                            int to, int to_term)
{
    ap_layer_edge_t *edge = &problem->edge[problem->edges++];
    int from = node_of(training, problem, tensor);

    edge->from = from;
    edge->from_term =
        from < 0 ? 0 : result_term(ap_graph_op(training, problem->node[from].op), tensor);
    edge->to = to;
    edge->to_term = to_term;
    edge->tensor = tensor;
    edge->from_count = end_count(problem, from);
    edge->to_count = end_count(problem, to);
    return price_edge(training, ops, problem, memo, edge);
}

/* Prices an input: the sums of its gradients, and with recomputation the memory to keep it, as its
 * inputs are all that a layer then keeps. */
static ap_parts_t input_parts(const ap_graph_t *training, const ap_layer_ops_t *ops,
                              const ap_cost_mesh_t *mesh, int tensor, ap_spec_t spec,
                              bool rematerialize)
{
    double bytes = ap_cost_mesh_local_bytes(mesh, &ap_graph_tensor(training, tensor)->shape,
                                            ap_graph_tensor_bytes(training, tensor), spec);

    return (ap_parts_t){.backward = ap_layer_gradient_sums(training, ops, tensor) *
                                    ap_price_gradient_sum(training, mesh, tensor, spec),
                        .mem_act = rematerialize ? bytes : 0};
}

static ap_spec_t resting_spec(const ap_graph_t *training, const ap_cost_mesh_t *mesh, int tensor)
{
    const ap_shape_t *shape = &ap_graph_tensor(training, tensor)->shape;
    const int axes[] = {ap_cost_mesh_devices(mesh, 1U), ap_cost_mesh_devices(mesh, 2U)};

    return ap_spec_resting(shape->rank, shape->dims, axes);
}

/* Adds the resharding between a node's term and the resting copy of its tensor, and of the gradient
 * the other way, to the node's strategies. A resting copy has one cut, so this is no edge. */
static xm_status_t add_rest(const ap_graph_t *training, const ap_layer_ops_t *ops,
                            const ap_cost_mesh_t *mesh, ap_reshard_memo_t *memo,
                            ap_layer_node_t *node, int term, int tensor, bool reads)
{
    double runs = reads ? ap_price_reshard_runs(training, tensor, ap_graph_op(training, node->op))
                        : ap_graph_tensor_turns(training, tensor);
    ap_spec_t rest = resting_spec(training, mesh, tensor);
    int handle;
    xm_status_t status = ap_reshard_memo_tensor(memo, &ap_graph_tensor(training, tensor)->shape,
                                                ap_graph_tensor_bytes(training, tensor), &handle);

    for (int s = 0; s < node->strategies.count && status == XM_OK; ++s) {
        uint64_t seen = node->interface[s][term];
        ap_spec_t spec = seen & ~partial_bits;
        unsigned partial = (unsigned)((seen & partial_bits) >> 4);

        node->base[s].forward += runs * (reads ? ap_reshard_memo_cost(memo, handle, rest, spec)
                                               : ap_reshard_memo_cost(memo, handle, spec, rest));
        if (ops->learns[tensor]) {
            node->base[s].backward +=
                runs * (reads ? ap_reshard_memo_reduce(memo, handle, spec, partial, rest)
                              : ap_reshard_memo_reduce(memo, handle, rest, 0, spec));
        }
    }
    return status;
}

/* What keeping a resting copy costs a layer, once: the sums of its gradients, and with
 * recomputation its memory, for it is an input. */
static void add_rest_input(const ap_graph_t *training, const ap_layer_ops_t *ops,
                           const ap_cost_mesh_t *mesh, bool rematerialize, int tensor,
                           ap_layer_node_t *node)
{
    ap_parts_t parts = input_parts(training, ops, mesh, tensor,
                                   resting_spec(training, mesh, tensor), rematerialize);

    for (int s = 0; s < node->strategies.count; ++s) {
        ap_parts_add(&node->base[s], &parts);
    }
}

/* Whether an operator before node n of the layer reads the tensor as well. */
static bool read_before(const ap_graph_t *training, const ap_layer_problem_t *problem, int n,
                        int tensor)
{
    for (int m = 0; m < n; ++m) {
        const ap_op_t *op = ap_graph_op(training, problem->node[m].op);

        for (int i = 0; i < op->operand_count; ++i) {
            if (op->operands[i] == tensor) {
                return true;
            }
        }
    }
    return false;
}

/* The resting copies that a node reads and makes. */
static xm_status_t add_rests(const ap_graph_t *training, const ap_layer_ops_t *ops,
                             const ap_cost_mesh_t *mesh, ap_reshard_memo_t *memo,
                             bool rematerialize, ap_layer_problem_t *problem, int n)
{
    ap_layer_node_t *node = &problem->node[n];
    const ap_op_t *op = ap_graph_op(training, node->op);
    xm_status_t status = XM_OK;

    for (int i = 0; i < op->operand_count && status == XM_OK; ++i) {
        if (ap_graph_reads_rest(training, problem->layer, op->operands[i])) {
            status = add_rest(training, ops, mesh, memo, node, i, op->operands[i], true);
            if (!read_before(training, problem, n, op->operands[i])) {
                add_rest_input(training, ops, mesh, rematerialize, op->operands[i], node);
            }
        }
    }
    for (int i = 0; i < op->result_count && status == XM_OK; ++i) {
        if (ap_graph_rests_until(training, op->results[i]) > problem->layer) {
            status = add_rest(training, ops, mesh, memo, node, op->operand_count + i,
                              op->results[i], false);
        }
    }
    return status;
}

/* Edges for all activations that operators read, and one from the last tensor to the boundary after
 * the layer. Parameters have no edges: they lie where their reader wants them. */
static xm_status_t make_edges(const ap_graph_t *training, const ap_layer_ops_t *ops,
                              ap_layer_problem_t *problem, ap_reshard_memo_t *memo)
{
    xm_status_t status = XM_OK;

    problem->edge = calloc((size_t)problem->nodes * AP_MAX_OPERANDS + 1, sizeof(*problem->edge));
    if (problem->edge == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "no memory for edges");
    }
    for (int n = 0; n < problem->nodes && status == XM_OK; ++n) {
        const ap_op_t *op = ap_graph_op(training, problem->node[n].op);

        for (int i = 0; i < op->operand_count && status == XM_OK; ++i) {
            if (ap_graph_tensor(training, op->operands[i])->kind == AP_TENSOR_ACTIVATION &&
                !ap_graph_reads_rest(training, problem->layer, op->operands[i])) {
                status = add_edge(training, ops, problem, memo, op->operands[i], n, i);
            }
        }
    }
    if (status == XM_OK && ap_graph_boundary(training, problem->layer) >= 0 &&
        !ap_graph_boundary_rests(training, problem->layer)) {
        status = add_edge(training, ops, problem, memo, ap_graph_boundary(training, problem->layer),
                          AP_OUT, 0);
    }
    return status;
}

/* Lists the specs of the boundary after a layer; one replicated dummy when there is none, so that
 * the ends of a model need no special case. */
static xm_status_t boundary_specs(const ap_graph_t *training, const ap_cost_mesh_t *mesh, int layer,
                                  ap_spec_t **specs, int *count)
{
    int tensor = layer >= 0 ? ap_graph_boundary(training, layer) : -1;

    *specs = calloc(AP_MAX_SPECS, sizeof(**specs));
    if (*specs == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "no memory for boundary specs");
    }
    *count = 1;
    if (tensor >= 0 && ap_graph_boundary_rests(training, layer)) {
        (*specs)[0] = resting_spec(training, mesh, tensor);
    } else if (tensor >= 0) {
        *count = ap_specs_enumerate(mesh, &ap_graph_tensor(training, tensor)->shape, *specs);
    }
    return XM_OK;
}

static xm_status_t price_input(const ap_graph_t *training, const ap_layer_ops_t *ops,
                               const ap_cost_mesh_t *mesh, int tensor, bool rematerialize,
                               ap_layer_problem_t *problem)
{
    problem->in_parts = calloc((size_t)problem->in_count, sizeof(*problem->in_parts));
    if (problem->in_parts == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "no memory for boundary specs");
    }
    for (int s = 0; s < problem->in_count && tensor >= 0; ++s) {
        problem->in_parts[s] =
            input_parts(training, ops, mesh, tensor, problem->in_specs[s], rematerialize);
    }
    return XM_OK;
}

/* Which tensors a parameter has a part in; operators stand in order. */
static void mark_learning(const ap_graph_t *training, bool *learns)
{
    for (int t = 0; t < ap_graph_tensors(training); ++t) {
        learns[t] = ap_graph_tensor(training, t)->kind == AP_TENSOR_PARAMETER;
    }
    for (int o = 0; o < ap_graph_ops(training); ++o) {
        const ap_op_t *op = ap_graph_op(training, o);
        bool any = false;

        for (int i = 0; i < op->operand_count; ++i) {
            any = any || learns[op->operands[i]];
        }
        for (int r = 0; r < op->result_count; ++r) {
            learns[op->results[r]] =
                any && ap_dtype_is_smooth(ap_graph_tensor(training, op->results[r])->dtype);
        }
    }
}

/* The operators of a layer, of all phases, in the order of the graph. */
static xm_status_t list_ops(const ap_graph_t *training, int layer, ap_layer_ops_t *ops)
{
    ops->count = 0;
    ops->ids = malloc((size_t)ap_graph_ops(training) * sizeof(int));
    ops->learns = malloc(((size_t)ap_graph_tensors(training) + 1) * sizeof(bool));
    if (ops->ids == NULL || ops->learns == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "no memory for the operators of layer %d", layer);
    }
    mark_learning(training, ops->learns);
    for (int o = 0; o < ap_graph_ops(training); ++o) {
        if (ap_graph_op(training, o)->layer == layer) {
            ops->ids[ops->count++] = o;
        }
    }
    return XM_OK;
}

/* Builds the problem. Nodes come before edges, since edges need the classes. */
xm_status_t ap_layer_problem_create(const ap_graph_t *training, int layer,
                                    const ap_cost_mesh_t *mesh, ap_reshard_memo_t *memo,
                                    ap_optimizer_t optimizer, bool rematerialize,
                                    const ap_layer_space_t *space, ap_layer_problem_t **problem)
{
    int input = layer > 0 ? ap_graph_boundary(training, layer - 1) : -1;
    ap_layer_problem_t *made = calloc(1, sizeof(*made));
    ap_layer_ops_t ops = {0};
    xm_status_t status;

    if (made == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "no memory for layer %d", layer);
    }
    made->layer = layer;
    status = list_ops(training, layer, &ops);
    if (status == XM_OK) {
        status = boundary_specs(training, mesh, layer - 1, &made->in_specs, &made->in_count);
    }
    if (status == XM_OK) {
        status = boundary_specs(training, mesh, layer, &made->out_specs, &made->out_count);
    }
    if (status == XM_OK) {
        status = price_input(training, &ops, mesh, input, rematerialize, made);
    }
    if (status == XM_OK) {
        status = make_nodes(training, &ops, mesh, optimizer, rematerialize, space, made);
    }
    for (int n = 0; n < made->nodes && status == XM_OK; ++n) {
        status = add_rests(training, &ops, mesh, memo, rematerialize, made, n);
    }
    if (status == XM_OK) {
        status = make_edges(training, &ops, made, memo);
    }
    free(ops.ids);
    free(ops.learns);
    if (status != XM_OK) {
        ap_layer_problem_destroy(made);
        return status;
    }
    *problem = made;
    return XM_OK;
}
