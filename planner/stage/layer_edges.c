/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The edges of a layer: activations on their way from the operator that makes them to those that
 * read them, and their gradients on the way back. What several operators read gets a node between
 * (planner/cost/share.h): k, v and q of an attention so pay for one gather of their input, and for
 * one reduction of its gradient.
 *
 * An edge would have the square of the number of strategies; but only different views of the tensor
 * are priced, then spread to classes.
 */

#include <math.h>
#include <stdlib.h>

#include "planner/stage/layer_problem.h"

/* What edges are made of. */
typedef struct site {
    const ap_graph_t *training;
    const ap_layer_ops_t *ops;
    const ap_cost_mesh_t *mesh;
    ap_reshard_memo_t *memo;
    ap_layer_problem_t *problem;
} site_t;

/* The node that makes a tensor, or AP_IN if it comes from outside of the layer. */
static int node_of(const site_t *x, int tensor)
{
    for (int n = 0; n < x->problem->op_nodes; ++n) {
        if (x->problem->node[n].op == ap_graph_tensor(x->training, tensor)->producer) {
            return n;
        }
    }
    return AP_IN;
}

/* What one end of an edge looks like to the other, for a class of its node or for a boundary
 * spec. */
static uint64_t seen_at(const ap_layer_problem_t *problem, int end, int term, int index)
{
    const ap_layer_node_t *node;

    if (end == AP_IN) {
        return problem->in_specs[index];
    }
    if (end == AP_OUT) {
        return problem->out_specs[index];
    }
    node = &problem->node[end];
    return end >= problem->op_nodes ? (uint64_t)index
                                    : node->interface[node->first_of[index] * node->terms + term];
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
        uint64_t value = seen_at(problem, end, term, c);
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

/* Prices an edge between two views. Forwards, the activation goes from the producer's spec to the
 * reader's. Backwards, the gradient goes from the reader's spec to the producer's, and partial axes
 * are reduced on the way: by a reduce-scatter where the producer cuts along them, otherwise by an
 * all-reduce. */
static void price_views(const ap_shared_t *shared, const ap_layer_problem_t *problem,
                        const ap_layer_edge_t *edge, uint64_t from, uint64_t to, double *forward,
                        double *backward)
{
    if (edge->to >= problem->op_nodes) {
        const ap_shared_value_t *value = &problem->node[edge->to].value[to];

        *forward = ap_shared_make(shared, value, from);
        *backward = ap_shared_return(shared, value, from);
    } else {
        ap_shared_value_t plain = {.made = from, .copy = from, .sum = -1};
        const ap_shared_value_t *value =
            edge->from >= problem->op_nodes ? &problem->node[edge->from].value[from] : &plain;

        *forward = ap_shared_read(shared, value, ap_layer_seen_spec(to));
        *backward =
            ap_shared_give(shared, value, ap_layer_seen_spec(to), ap_layer_seen_partial(to));
    }
}

/* Prices an edge between distinct views and spreads the costs over all pairs of classes. */
static void fill_edge(const ap_shared_t *shared, const ap_layer_problem_t *problem,
                      ap_layer_edge_t *edge, const uint64_t *from_values, const int *from_index,
                      int from_distinct, const uint64_t *to_values, const int *to_index,
                      int to_distinct, double *scratch)
{
    double *forward = scratch, *backward = scratch + from_distinct * to_distinct;

    for (int cell = 0; cell < from_distinct * to_distinct; ++cell) {
        price_views(shared, problem, edge, from_values[cell / to_distinct],
                    to_values[cell % to_distinct], &forward[cell], &backward[cell]);
    }
    for (int f = 0; f < edge->from_count; ++f) {
        for (int t = 0; t < edge->to_count; ++t) {
            int cell = from_index[f] * to_distinct + to_index[t];

            edge->forward[f * edge->to_count + t] = forward[cell];
            edge->backward[f * edge->to_count + t] = backward[cell];
        }
    }
}

/* Adds an edge that carries a tensor. */
static xm_status_t add_edge(const site_t *x, const ap_shared_t *shared, int tensor, int from,
                            int from_term, int to, int to_term)
{
    ap_layer_problem_t *problem = x->problem;
    ap_layer_edge_t *edge = &problem->edge[problem->edges++];
    size_t from_count = (size_t)end_count(problem, from), to_count = (size_t)end_count(problem, to);
    xm_arena_t arena = {0};
    uint64_t *values = xm_arena_take(&arena, (from_count + to_count) * sizeof(*values));
    int *index = xm_arena_take(&arena, (from_count + to_count) * sizeof(*index));
    double *scratch = xm_arena_take(&arena, 2 * from_count * to_count * sizeof(*scratch));
    xm_status_t status = XM_OK;

    *edge = (ap_layer_edge_t){.from = from,
                              .to = to,
                              .from_term = from_term,
                              .to_term = to_term,
                              .tensor = tensor,
                              .from_count = (int)from_count,
                              .to_count = (int)to_count};
    edge->forward = xm_arena_take(problem->arena, from_count * to_count * sizeof(double));
    edge->backward = xm_arena_take(problem->arena, from_count * to_count * sizeof(double));
    if (arena.failed || problem->arena->failed) {
        status = XM_NO_MEMORY("%zu resharding costs", from_count * to_count);
    } else {
        int from_distinct = distinct(problem, from, from_term, edge->from_count, values, index);
        int to_distinct =
            distinct(problem, to, to_term, edge->to_count, values + from_count, index + from_count);

        fill_edge(shared, problem, edge, values, index, from_distinct, values + from_count,
                  index + from_count, to_distinct, scratch);
    }
    xm_arena_clear(&arena);
    return status;
}

/* The operands of all operators together. */
static size_t reads_of(const site_t *x)
{
    size_t reads = 0;

    for (int n = 0; n < x->problem->op_nodes; ++n) {
        reads += (size_t)ap_graph_op(x->training, x->problem->node[n].op)->operand_count;
    }
    return reads;
}

/* The readers of an activation: operators' terms, and the boundary after the layer. */
typedef struct readers {
    int count;
    int *to, *term;
    double least_runs, most_runs;
} readers_t;

static xm_status_t find_readers(const site_t *x, int tensor, xm_arena_t *arena, readers_t *readers)
{
    const ap_layer_problem_t *problem = x->problem;
    size_t most = reads_of(x) + 1;
    int boundary = ap_graph_boundary_rests(x->training, problem->layer)
                       ? -1
                       : ap_graph_boundary(x->training, problem->layer);

    *readers = (readers_t){.to = xm_arena_take(arena, most * sizeof(int)),
                           .term = xm_arena_take(arena, most * sizeof(int)),
                           .least_runs = HUGE_VAL};
    XM_NEED_MEMORY(!arena->failed, "the readers of a tensor");
    for (int n = 0; n <= problem->op_nodes; ++n) {
        const ap_op_t *op =
            n < problem->op_nodes ? ap_graph_op(x->training, problem->node[n].op) : NULL;
        int terms = op != NULL ? op->operand_count : boundary == tensor;
        double runs = op != NULL ? ap_price_reshard_runs(x->training, tensor, op) : 1;

        for (int i = 0; i < terms; ++i) {
            if (op == NULL || op->operands[i] == tensor) {
                readers->to[readers->count] = op != NULL ? n : AP_OUT;
                readers->term[readers->count++] = i;
                readers->least_runs = fmin(readers->least_runs, runs);
                readers->most_runs = fmax(readers->most_runs, runs);
            }
        }
    }
    return XM_OK;
}

/* Counts what the ends of an activation can do: see ap_shared_t. */
static void count_ends(const site_t *x, const readers_t *readers, int from, int from_term,
                       const ap_shared_t *shared, bool *made, int *wanted)
{
    const int sets = 1 << AP_MAX_MESH_RANK;

    for (int s = 0; s < shared->specs; ++s) {
        for (int c = 0; c < end_count(x->problem, from); ++c) {
            made[s] = made[s] || seen_at(x->problem, from, from_term, c) == shared->spec[s];
        }
    }
    for (int r = 0; r < readers->count; ++r) {
        for (int cell = 0; cell < shared->specs * sets; ++cell) {
            bool has = false;

            for (int c = 0; c < end_count(x->problem, readers->to[r]); ++c) {
                uint64_t seen = seen_at(x->problem, readers->to[r], readers->term[r], c);

                has = has || (ap_layer_seen_spec(seen) == shared->spec[cell / sets] &&
                              (int)ap_layer_seen_partial(seen) == cell % sets);
            }
            wanted[cell] += has;
        }
    }
}

/* Makes the node of an activation with several readers. */
static xm_status_t add_shared(const site_t *x, const readers_t *readers, int from, int from_term,
                              ap_shared_t *shared)
{
    xm_arena_t *arena = x->problem->arena;
    ap_layer_node_t *node = &x->problem->node[x->problem->nodes++];
    bool made[AP_MAX_SPECS] = {false};
    int wanted[AP_MAX_SPECS << AP_MAX_MESH_RANK] = {0};
    size_t count;

    count_ends(x, readers, from, from_term, shared, made, wanted);
    shared->made = made;
    shared->wanted = wanted;
    node->op = -1;
    node->strategies.count = node->classes = ap_shared_values(shared, NULL);
    count = (size_t)node->classes;
    node->value = xm_arena_get(arena, count, sizeof(*node->value));
    node->base = xm_arena_get(arena, count, sizeof(*node->base));
    node->compute = xm_arena_get(arena, count, sizeof(*node->compute));
    node->class_of = xm_arena_get(arena, count, sizeof(int));
    node->first_of = xm_arena_get(arena, count, sizeof(int));
    XM_NEED_MEMORY(!arena->failed, "a tensor with several readers");
    (void)ap_shared_values(shared, node->value);
    for (int v = 0; v < node->classes; ++v) {
        node->class_of[v] = node->first_of[v] = v;
    }
    return XM_OK;
}

/* What adding two gradients of a tensor takes. */
typedef struct adder {
    const site_t *site;
    int tensor;
} adder_t;

static double add_gradients(const void *of, ap_spec_t spec)
{
    const adder_t *adder = of;

    return ap_price_gradient_sum(adder->site->training, adder->site->mesh, adder->tensor, spec);
}

/* The edges of an activation to its readers. Those that run differently often share nothing. */
static xm_status_t add_edges(const site_t *x, int tensor)
{
    const ap_tensor_t *of = ap_graph_tensor(x->training, tensor);
    const adder_t adder = {.site = x, .tensor = tensor};
    ap_spec_t specs[AP_MAX_SPECS];
    ap_shared_t shared = {.memo = x->memo,
                          .add = x->ops->learns[tensor] ? add_gradients : NULL,
                          .adder = &adder,
                          .rank = of->shape.rank,
                          .specs = ap_specs_enumerate(x->mesh, &of->shape, specs),
                          .spec = specs};
    int from = node_of(x, tensor), node = x->problem->nodes;
    int term = from < 0
                   ? 0
                   : ap_op_result_term(ap_graph_op(x->training, x->problem->node[from].op), tensor);
    xm_arena_t arena = {0};
    readers_t readers;
    xm_status_t status = find_readers(x, tensor, &arena, &readers);

    XM_THEN(status,
            ap_reshard_memo_tensor(x->memo, &of->shape, ap_graph_tensor_bytes(x->training, tensor),
                                   &shared.tensor));
    shared.runs = readers.most_runs;
    if (status == XM_OK && readers.count > 1 && readers.most_runs <= readers.least_runs) {
        status = add_shared(x, &readers, from, term, &shared);
        XM_THEN(status, add_edge(x, &shared, tensor, from, term, node, 0));
        from = node;
        term = 0;
    }
    for (int r = 0; r < readers.count && status == XM_OK; ++r) {
        shared.runs = readers.to[r] < 0
                          ? 1
                          : ap_price_reshard_runs(
                                x->training, tensor,
                                ap_graph_op(x->training, x->problem->node[readers.to[r]].op));
        status = add_edge(x, &shared, tensor, from, term, readers.to[r], readers.term[r]);
    }
    xm_arena_clear(&arena);
    return status;
}

/* Edges for all activations that operators read, and for the last tensor to the boundary after the
 * layer, but for copies that rest. Parameters have no edges: they lie where their reader wants
 * them. */
xm_status_t ap_layer_edges_create(const ap_graph_t *training, const ap_layer_ops_t *ops,
                                  const ap_cost_mesh_t *mesh, ap_reshard_memo_t *memo,
                                  ap_layer_problem_t *problem)
{
    const site_t x = {training, ops, mesh, memo, problem};
    int boundary = ap_graph_boundary(training, problem->layer);
    bool *seen = calloc((size_t)ap_graph_tensors(training) + 1, sizeof(bool));
    xm_status_t status = XM_OK;

    problem->edge = xm_arena_get(problem->arena, 2 * (reads_of(&x) + 1), sizeof(*problem->edge));
    if (problem->edge == NULL || seen == NULL) {
        free(seen);
        return XM_NO_MEMORY("edges");
    }
    for (int n = 0; n < problem->op_nodes && status == XM_OK; ++n) {
        const ap_op_t *op = ap_graph_op(training, problem->node[n].op);

        for (int i = 0; i < op->operand_count && status == XM_OK; ++i) {
            int tensor = op->operands[i];

            if (ap_graph_tensor(training, tensor)->kind == AP_TENSOR_ACTIVATION && !seen[tensor] &&
                !ap_graph_reads_rest(training, problem->layer, tensor)) {
                seen[tensor] = true;
                status = add_edges(&x, tensor);
            }
        }
    }
    if (status == XM_OK && boundary >= 0 && !seen[boundary] &&
        !ap_graph_boundary_rests(training, problem->layer)) {
        status = add_edges(&x, boundary);
    }
    free(seen);
    return status;
}
