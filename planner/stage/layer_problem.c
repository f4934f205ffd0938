/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One layer as a problem of choosing a strategy per forward operator: nodes with classes of
 * strategies, and what comes from outside of the layer. The number of strategies on a mesh of two
 * axes is in the tens; but neighbours only see the specs and the partial gradients of the tensor
 * between them. So strategies are grouped into classes by what is seen.
 */

#include "planner/stage/layer_problem.h"

#include <stdlib.h>
#include <string.h>

ap_parts_t ap_layer_edge_parts(const ap_layer_edge_t *edge, int from_class, int to_class)
{
    int cell = from_class * edge->to_count + to_class;

    return (ap_parts_t){.forward = edge->forward[cell], .backward = edge->backward[cell]};
}

void ap_layer_problem_release(ap_layer_problem_t *problem)
{
    for (int n = 0; problem != NULL && n < problem->nodes; ++n) {
        ap_strategy_list_free(&problem->node[n].strategies);
    }
}

/* Groups a node's strategies by their interface. Classes are numbered by their first strategy, so
 * the numbering depends on the order of enumeration alone. */
static xm_status_t make_classes(xm_arena_t *arena, ap_layer_node_t *node)
{
    size_t count = (size_t)node->strategies.count;

    node->class_of = xm_arena_get(arena, count, sizeof(int));
    node->first_of = xm_arena_get(arena, count, sizeof(int));
    XM_NEED_MEMORY(!arena->failed, "%zu strategies", count);
    for (int s = 0; s < node->strategies.count; ++s) {
        int c = 0;

        while (c < node->classes && memcmp(&node->interface[node->first_of[c] * node->terms],
                                           &node->interface[s * node->terms],
                                           (size_t)node->terms * sizeof(*node->interface)) != 0) {
            ++c;
        }
        if (c == node->classes) {
            node->first_of[node->classes++] = s;
        }
        node->class_of[s] = c;
    }
    return XM_OK;
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

/* Only forward operators are nodes; the others are priced with them. */
static xm_status_t make_nodes(const ap_graph_t *training, const ap_layer_ops_t *ops,
                              const ap_cost_mesh_t *mesh, ap_optimizer_t optimizer,
                              bool rematerialize, const ap_layer_space_t *space,
                              ap_layer_problem_t *problem)
{
    /* As many again for activations with several readers. */
    problem->node =
        xm_arena_get(problem->arena, 2 * (size_t)ops->count + 2, sizeof(*problem->node));
    XM_NEED_MEMORY(problem->node, "%d operators", ops->count);
    for (int o = 0; o < ops->count; ++o) {
        ap_layer_node_t *node = &problem->node[problem->nodes];
        xm_status_t status;

        if (ap_graph_op(training, ops->ids[o])->phase != AP_PHASE_FORWARD) {
            continue;
        }
        problem->op_nodes = ++problem->nodes;
        node->op = ops->ids[o];
        status = ap_layer_node_price(training, ops, mesh, optimizer, rematerialize, space,
                                     problem->arena, node);
        node->tied_again = read_before(training, problem, problem->op_nodes - 1, ops->tied);
        XM_THEN(status, make_classes(problem->arena, node));
        XM_TRY(status);
    }
    return XM_OK;
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
                        .mem_act = rematerialize && ops->goes_back ? bytes : 0};
}

static ap_spec_t resting_spec(const ap_graph_t *training, const ap_layer_ops_t *ops,
                              const ap_cost_mesh_t *mesh, int tensor)
{
    const ap_shape_t *shape = &ap_graph_tensor(training, tensor)->shape;
    const int axes[] = {ap_cost_mesh_devices(mesh, 1U), ap_cost_mesh_devices(mesh, 2U)};

    return ap_spec_resting(shape->rank, shape->dims, axes, ops->batch_axes);
}

/* Adds the resharding between a node's term and the resting copy of its tensor, and of the gradient
 * the other way, to the node's strategies. A resting copy has one cut, so this is no edge. */
static xm_status_t add_rest(const ap_graph_t *training, const ap_layer_ops_t *ops,
                            const ap_cost_mesh_t *mesh, ap_reshard_memo_t *memo,
                            ap_layer_node_t *node, int term, int tensor, bool reads)
{
    double runs = reads ? ap_price_reshard_runs(training, tensor, ap_graph_op(training, node->op))
                        : ap_graph_tensor_turns(training, tensor);
    ap_spec_t rest = resting_spec(training, ops, mesh, tensor);
    int handle;
    XM_TRY(ap_reshard_memo_tensor(memo, &ap_graph_tensor(training, tensor)->shape,
                                  ap_graph_tensor_bytes(training, tensor), &handle));

    for (int s = 0; s < node->strategies.count; ++s) {
        uint64_t seen = node->interface[s * node->terms + term];
        ap_spec_t spec = ap_layer_seen_spec(seen);
        unsigned partial = ap_layer_seen_partial(seen);

        node->base[s].forward += runs * (reads ? ap_reshard_memo_cost(memo, handle, rest, spec)
                                               : ap_reshard_memo_cost(memo, handle, spec, rest));
        if (ops->learns[tensor]) {
            node->base[s].backward +=
                runs * (reads ? ap_reshard_memo_reduce(memo, handle, spec, partial, rest)
                              : ap_reshard_memo_reduce(memo, handle, rest, 0, spec));
        }
    }
    return XM_OK;
}

/* What keeping a resting copy costs a layer, once: the sums of its gradients, and with
 * recomputation its memory, for it is an input. */
static void add_rest_input(const ap_graph_t *training, const ap_layer_ops_t *ops,
                           const ap_cost_mesh_t *mesh, bool rematerialize, int tensor,
                           ap_layer_node_t *node)
{
    ap_parts_t parts = input_parts(training, ops, mesh, tensor,
                                   resting_spec(training, ops, mesh, tensor), rematerialize);

    for (int s = 0; s < node->strategies.count; ++s) {
        ap_parts_add(&node->base[s], &parts);
    }
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

/* Lists the specs of the boundary after a layer; one replicated dummy when there is none, so that
 * the ends of a model need no special case. */
static xm_status_t boundary_specs(const ap_graph_t *training, const ap_layer_ops_t *ops,
                                  const ap_cost_mesh_t *mesh, int layer, xm_arena_t *arena,
                                  ap_spec_t **specs, int *count)
{
    int tensor = layer >= 0 ? ap_graph_boundary(training, layer) : -1;

    *specs = xm_arena_get(arena, AP_MAX_SPECS, sizeof(**specs));
    XM_NEED_MEMORY(*specs, "boundary specs");
    *count = 1;
    if (tensor >= 0 && ap_graph_boundary_rests(training, layer)) {
        (*specs)[0] = resting_spec(training, ops, mesh, tensor);
    } else if (tensor >= 0) {
        *count = ap_specs_enumerate(mesh, &ap_graph_tensor(training, tensor)->shape, *specs);
    }
    return XM_OK;
}

static xm_status_t price_input(const ap_graph_t *training, const ap_layer_ops_t *ops,
                               const ap_cost_mesh_t *mesh, int tensor, bool rematerialize,
                               ap_layer_problem_t *problem)
{
    problem->in_parts =
        xm_arena_get(problem->arena, (size_t)problem->in_count, sizeof(*problem->in_parts));
    XM_NEED_MEMORY(problem->in_parts, "boundary specs");
    for (int s = 0; s < problem->in_count && tensor >= 0; ++s) {
        problem->in_parts[s] =
            input_parts(training, ops, mesh, tensor, problem->in_specs[s], rematerialize);
    }
    return XM_OK;
}

/* The operators of a layer, of all phases, in the order of the graph. */
static xm_status_t list_ops(const ap_graph_t *training, int layer, xm_arena_t *arena,
                            ap_layer_ops_t *ops)
{
    ops->count = 0;
    ops->ids = xm_arena_take(arena, (size_t)ap_graph_ops(training) * sizeof(int));
    ops->learns = xm_arena_take(arena, (size_t)ap_graph_tensors(training) * sizeof(bool));
    XM_NEED_MEMORY(!arena->failed, "the operators of layer %d", layer);
    ap_graph_learning(training, ops->learns);
    for (int o = 0; o < ap_graph_ops(training); ++o) {
        if (ap_graph_op(training, o)->layer == layer) {
            ops->ids[ops->count++] = o;
            ops->goes_back = ops->goes_back || ap_graph_op(training, o)->phase == AP_PHASE_BACKWARD;
        }
    }
    return XM_OK;
}

/* Builds the problem. Nodes come before edges, since edges need the classes. */
xm_status_t ap_layer_problem_create(const ap_graph_t *training, int layer, int tied,
                                    const ap_cost_mesh_t *mesh, ap_reshard_memo_t *memo,
                                    ap_optimizer_t optimizer, bool rematerialize,
                                    const ap_layer_space_t *space, xm_arena_t *arena,
                                    ap_layer_problem_t **problem)
{
    int input = layer > 0 ? ap_graph_boundary(training, layer - 1) : -1;
    ap_layer_problem_t *made = xm_arena_get(arena, 1, sizeof(*made));
    ap_layer_ops_t ops = {.tied = tied,
                          .batch_axes = ap_space_batch_axes(space != NULL ? space->space : NULL)};
    xm_arena_t scratch = {0};
    xm_status_t status;

    *problem = made;
    XM_NEED_MEMORY(made, "layer %d", layer);
    made->arena = arena;
    made->layer = layer;
    status = list_ops(training, layer, &scratch, &ops);
    XM_THEN(status, boundary_specs(training, &ops, mesh, layer - 1, arena, &made->in_specs,
                                   &made->in_count));
    if (status == XM_OK) {
        status =
            boundary_specs(training, &ops, mesh, layer, arena, &made->out_specs, &made->out_count);
    }
    XM_THEN(status, price_input(training, &ops, mesh, input, rematerialize, made));
    XM_THEN(status, make_nodes(training, &ops, mesh, optimizer, rematerialize, space, made));
    for (int n = 0; n < made->nodes && status == XM_OK; ++n) {
        status = add_rests(training, &ops, mesh, memo, rematerialize, made, n);
    }
    XM_THEN(status, ap_layer_edges_create(training, &ops, mesh, memo, made));
    xm_arena_clear(&scratch);
    return status;
}
