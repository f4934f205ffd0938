/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The nodes and edges of a sharding problem. Every operator, input and parameter is a node of its
 * own, since here, unlike in layer_problem.h, forward, backward and update may be sharded
 * independently. Nodes that look the same share one strategy table (planner/intra_op/set.c), so a
 * model of many layers has few tables, and an edge's costs are computed only when someone asks for
 * them.
 */

#include "planner/intra_op/problem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "planner/intra_op/intra_op_private.h"

void ap_shard_problem_destroy(ap_shard_problem_t *problem)
{
    if (problem == NULL) {
        return;
    }
    for (int s = 0; s < problem->sets; ++s) {
        ap_strategy_list_free(&problem->set[s].strategies);
    }
    free(problem->set);
    xm_arena_clear(&problem->arena);
    ap_reshard_memo_destroy(problem->memo);
    free(problem);
}

/* Adds a node for an operator or for a tensor that no operator makes. */
static xm_status_t add_node(ap_shard_problem_t *p, int op, int tensor)
{
    int n = p->nodes++;

    p->node[n].op = op;
    p->node[n].tensor = tensor;
    if (op >= 0) {
        p->op_node[op] = n;
    } else {
        p->tensor_node[tensor] = n;
    }
    return ap_strategy_table_find(p, op, tensor, &p->node[n].set);
}

/* The node and the term that make a tensor. */
static int maker(const ap_shard_problem_t *p, int tensor, int *term)
{
    int producer = ap_graph_tensor(p->params.graph, tensor)->producer;

    *term = 0;
    if (producer < 0) {
        return p->tensor_node[tensor];
    }
    *term = ap_op_result_term(ap_graph_op(p->params.graph, producer), tensor);
    return p->op_node[producer];
}

/* How often a tensor is resharded in a micro-batch: in a loop in each run, unless it comes from
 * outside; for an update once per iteration, of which a micro-batch bears its share. */
static double runs_of(const ap_shard_problem_t *p, int tensor, int to)
{
    const ap_op_t *user = ap_graph_op(p->params.graph, p->node[to].op);

    return ap_price_reshard_runs(p->params.graph, tensor, user) *
           (user->phase == AP_PHASE_UPDATE ? ap_shard_per_iteration(p) : 1);
}

/* An edge runs from the node that makes a tensor to a term of one that uses it. For a tensor whose
 * storage is taken over, that term is a result. */
static void add_wire(ap_shard_problem_t *p, int tensor, int to, int to_term, bool alias)
{
    ap_shard_wire_t *wire = &p->wire[p->wires++];

    wire->tensor = tensor;
    wire->from = maker(p, tensor, &wire->from_term);
    wire->to = to;
    wire->to_term = to_term;
    wire->alias = alias;
    wire->weight = runs_of(p, tensor, to);
}

/* Inputs and parameters come first, then operators in the order of the graph;
 * planner/intra_op/symmetric.c relies on the order. */
static xm_status_t add_nodes(ap_shard_problem_t *p)
{
    const ap_graph_t *graph = p->params.graph;
    xm_status_t status = XM_OK;

    for (int t = 0; t < ap_graph_tensors(graph) && status == XM_OK; ++t) {
        p->tensor_node[t] = -1;
        if (ap_graph_tensor(graph, t)->producer < 0) {
            status = add_node(p, -1, t);
        }
    }
    for (int o = 0; o < ap_graph_ops(graph) && status == XM_OK; ++o) {
        status = add_node(p, o, -1);
    }
    return status;
}

/* An edge for each operand, and one for each result that takes over the storage of another tensor:
 * the new value of a weight ends where the old one was. */
static void add_wires(ap_shard_problem_t *p)
{
    const ap_graph_t *graph = p->params.graph;

    for (int o = 0; o < ap_graph_ops(graph); ++o) {
        const ap_op_t *op = ap_graph_op(graph, o);

        for (int i = 0; i < op->operand_count; ++i) {
            add_wire(p, op->operands[i], p->op_node[o], i, false);
        }
        for (int r = 0; r < op->result_count; ++r) {
            int old = ap_graph_tensor(graph, op->results[r])->alias_of;

            if (old >= 0) {
                add_wire(p, old, p->op_node[o], op->operand_count + r, true);
            }
        }
    }
}

/* The arrays have room for all tensors and operators, so adding nodes and edges cannot fail. */
static xm_status_t allocate(ap_shard_problem_t *p)
{
    const ap_graph_t *graph = p->params.graph;
    size_t tensors = (size_t)ap_graph_tensors(graph), ops = (size_t)ap_graph_ops(graph);

    p->node = xm_arena_get(&p->arena, tensors + ops, sizeof(*p->node));
    p->op_node = xm_arena_get(&p->arena, ops, sizeof(int));
    p->tensor_node = xm_arena_get(&p->arena, tensors, sizeof(int));
    p->wire = xm_arena_get(&p->arena, ap_graph_terms(graph), sizeof(*p->wire));
    return p->arena.failed ? XM_NO_MEMORY("a sharding problem")
                           : ap_reshard_memo_create(p->params.mesh, &p->memo);
}

/* Needs nodes before edges, since an edge names both of its ends. */
xm_status_t ap_shard_problem_create(const ap_shard_params_t *params, ap_shard_problem_t **problem)
{
    ap_shard_problem_t *made = calloc(1, sizeof(*made));
    xm_status_t status;

    XM_NEED_MEMORY(made, "a sharding problem");
    made->params = *params;
    status = allocate(made);
    XM_THEN(status, add_nodes(made));
    if (status == XM_OK) {
        add_wires(made);
    }
    if (status != XM_OK) {
        ap_shard_problem_destroy(made);
        return status;
    }
    *problem = made;
    return XM_OK;
}

int ap_shard_problem_nodes(const ap_shard_problem_t *problem)
{
    return problem->nodes;
}

int ap_shard_problem_node_op(const ap_shard_problem_t *problem, int node)
{
    return problem->node[node].op;
}

const char *ap_shard_problem_node_name(const ap_shard_problem_t *problem, int node)
{
    const ap_shard_node_t *of = &problem->node[node];

    return of->op >= 0 ? ap_graph_op(problem->params.graph, of->op)->name
                       : ap_graph_tensor(problem->params.graph, of->tensor)->name;
}

/* Inputs and parameters are shown by their spec, operators by rule and specs. */
char *ap_shard_problem_strategy(const ap_shard_problem_t *problem, int node, int strategy,
                                char *buffer, size_t size)
{
    const ap_shard_node_t *of = &problem->node[node];
    const ap_strategy_table_t *set = ap_strategy_table_of(problem, node);

    if (of->op >= 0) {
        return ap_strategy_format(&ap_graph_op(problem->params.graph, of->op)->rule,
                                  &set->strategies.items[strategy], buffer, size);
    }
    return ap_spec_format(set->specs[strategy],
                          ap_graph_tensor(problem->params.graph, of->tensor)->shape.rank, buffer,
                          size);
}

unsigned ap_shard_problem_axes(const ap_shard_problem_t *problem)
{
    unsigned axes = 0;

    for (int t = 0; t < problem->sets; ++t) {
        const ap_strategy_table_t *set = &problem->set[t];

        for (int s = 0; s < set->count && set->op >= 0; ++s) {
            axes |= ap_strategy_axes(&ap_graph_op(problem->params.graph, set->op)->rule,
                                     &set->strategies.items[s]);
        }
    }
    return axes;
}

const ap_shard_params_t *ap_shard_problem_params(const ap_shard_problem_t *problem)
{
    return &problem->params;
}

/* Only operators have a strategy; inputs and parameters have a spec. */
const ap_strategy_t *ap_shard_problem_op_strategy(const ap_shard_problem_t *problem,
                                                  const int *choice, int op)
{
    int node = problem->op_node[op];

    return &ap_strategy_table_of(problem, node)->strategies.items[choice[node]];
}

/* Inputs and parameters are made in the spec that they are kept in. */
ap_spec_t ap_shard_problem_spec(const ap_shard_problem_t *problem, const int *choice, int tensor)
{
    int term, node = maker(problem, tensor, &term);

    return ap_shard_spec_at(ap_strategy_table_of(problem, node), choice[node], term);
}

/* The gradient that an update goes back to, through operators on tensors of the same shape; -1. An
 * optimizer's arithmetic keeps the shape of the parameter, so other operands cannot be its
 * gradient. The depth limits a search that could otherwise visit long chains of updates. */
static int find_gradient(const ap_graph_t *graph, int tensor, int depth)
{
    int producer = ap_graph_tensor(graph, tensor)->producer;
    const ap_op_t *op;

    if (producer < 0) {
        return -1;
    }
    op = ap_graph_op(graph, producer);
    if (ap_graph_tensor(graph, tensor)->gradient_of >= 0 || op->phase == AP_PHASE_BACKWARD) {
        return tensor;
    }
    for (int i = 0; i < op->operand_count && depth > 0; ++i) {
        int found = -1;

        if (ap_shape_equal(&ap_graph_tensor(graph, op->operands[i])->shape,
                           &ap_graph_tensor(graph, tensor)->shape)) {
            found = find_gradient(graph, op->operands[i], depth - 1);
        }
        if (found >= 0) {
            return found;
        }
    }
    return -1;
}

/* Reads the stage of ZeRO off the choice; no option sets it. A parameter that is smaller where it
 * is kept than where it is read is gathered (3); an updated value smaller than the parameter means
 * sharded state (1), with its gradient smaller as well (2). A thousandth of tolerance absorbs
 * uneven parts. */
int ap_shard_problem_zero_stage(const ap_shard_problem_t *p, const int *choice, int tensor)
{
    enum { DEPTH = 12 };
    const ap_graph_t *graph = p->params.graph;
    int updated = -1, gradient, users = 0;
    bool gathered = false;
    double kept;

    if (ap_graph_tensor(graph, tensor)->kind != AP_TENSOR_PARAMETER) {
        return -1;
    }
    kept = ap_shard_local_bytes(p, tensor, ap_shard_problem_spec(p, choice, tensor));
    for (int w = 0; w < p->wires; ++w) {
        const ap_shard_wire_t *wire = &p->wire[w];
        const ap_op_t *op = ap_graph_op(graph, p->node[wire->to].op);

        if (wire->tensor != tensor) {
            continue;
        }
        if (wire->alias) {
            updated = op->results[wire->to_term - op->operand_count];
        } else if (op->phase != AP_PHASE_UPDATE) {
            ap_spec_t used = ap_shard_spec_at(ap_strategy_table_of(p, wire->to), choice[wire->to],
                                              wire->to_term);

            ++users;
            gathered = gathered || ap_shard_local_bytes(p, tensor, used) > 1.001 * kept;
        }
    }
    if (updated < 0 || users == 0) {
        return -1;
    }
    if (gathered) {
        return 3;
    }
    if (ap_shard_local_bytes(p, tensor, ap_shard_problem_spec(p, choice, updated)) > 0.999 * kept) {
        return 0;
    }
    gradient = find_gradient(graph, updated, DEPTH);
    return gradient >= 0 &&
                   ap_shard_local_bytes(p, tensor, ap_shard_problem_spec(p, choice, gradient)) <
                       0.999 * kept
               ? 2
               : 1;
}

/* The axes that a strategy of a node cuts, and by which factor or dimension. */
void ap_shard_problem_parts(const ap_shard_problem_t *p, int node, int strategy,
                            uint8_t part[AP_MAX_MESH_RANK])
{
    const ap_strategy_table_t *set = ap_strategy_table_of(p, node);
    int op = p->node[node].op;
    int count = op >= 0 ? ap_graph_op(p->params.graph, op)->rule.factors
                        : ap_graph_tensor(p->params.graph, p->node[node].tensor)->shape.rank;

    for (int f = 0; f < count; ++f) {
        unsigned axes = op >= 0 ? set->strategies.items[strategy].axes[f]
                                : ap_spec_axes(set->specs[strategy], f);

        for (int a = 0; a < AP_MAX_MESH_RANK; ++a) {
            part[a] = (axes >> a & 1U) != 0 ? (uint8_t)(f + 1) : part[a];
        }
    }
}
