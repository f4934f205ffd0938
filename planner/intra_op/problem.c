/*
 * The nodes and edges of a sharding problem. Every operator, input and parameter is a node of its
 * own, since here, unlike in layer_problem.h, forward, backward and update may be sharded
 * independently. Nodes that look the same share one strategy table (planner/intra_op/set.c), so a
 * model of many layers has few tables, and an edge's costs are computed only when someone asks for
 * them.
 *
 * The tables of planner/solver/elimination/pairwise.h at the end are for that solver and the tests;
 * planner/intra_op/network.c works from nodes and edges.
 */

#include "planner/intra_op/problem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "planner/intra_op/intra_op_private.h"

static xm_status_t no_memory(void)
{
    return xm_error_set(XM_ERR_NO_MEMORY, "no memory for a sharding problem");
}

void ap_shard_problem_destroy(ap_shard_problem_t *problem)
{
    if (problem == NULL) {
        return;
    }
    for (int s = 0; s < problem->sets; ++s) {
        ap_strategy_table_release(&problem->set[s]);
    }
    for (int n = 0; n < problem->nodes && problem->memory != NULL; ++n) {
        free(problem->memory[n]);
    }
    for (int e = 0; e < problem->problem.edges; ++e) {
        free((double *)problem->edges[e].costs);
    }
    free(problem->set);
    free(problem->node);
    free(problem->wire);
    free(problem->op_node);
    free(problem->tensor_node);
    free(problem->counts);
    free(problem->costs);
    free(problem->memory);
    free(problem->edges);
    ap_reshard_memo_destroy(problem->memo);
    free(problem);
}

/* Finds the tensors that the forward phase makes and the backward phase reads. */
static xm_status_t find_saved(const ap_graph_t *graph, bool **saved)
{
    *saved = calloc((size_t)ap_graph_tensors(graph) + 1, sizeof(bool));
    if (*saved == NULL) {
        return no_memory();
    }
    for (int o = 0; o < ap_graph_ops(graph); ++o) {
        const ap_op_t *op = ap_graph_op(graph, o);

        for (int i = 0; i < op->operand_count && op->phase == AP_PHASE_BACKWARD; ++i) {
            int producer = ap_graph_tensor(graph, op->operands[i])->producer;

            if (producer >= 0 && ap_graph_op(graph, producer)->phase == AP_PHASE_FORWARD) {
                (*saved)[op->operands[i]] = true;
            }
        }
    }
    return XM_OK;
}

/* Memory of a node's strategies as planner/solver/elimination/pairwise.h has it: one sum without
 * time. Parameters count with gradient and optimizer state, activations if they are saved;
 * everything else comes and goes. */
static xm_status_t fill_memory(ap_shard_problem_t *p, int n, const bool *saved)
{
    const ap_graph_t *graph = p->params.graph;
    const ap_strategy_table_t *set = ap_strategy_table_of(p, n);
    const ap_shard_node_t *node = &p->node[n];
    const ap_op_t *op = node->op >= 0 ? ap_graph_op(graph, node->op) : NULL;
    double *memory = p->memory[n] = calloc((size_t)set->count, sizeof(*memory));

    if (memory == NULL) {
        return no_memory();
    }
    if (op == NULL) {
        const ap_tensor_t *tensor = ap_graph_tensor(graph, node->tensor);

        for (int s = 0; s < set->count && tensor->kind == AP_TENSOR_PARAMETER; ++s) {
            double bytes = ap_shard_local_bytes(p, node->tensor, set->specs[s]);

            memory[s] = 2 * bytes + p->params.state_bytes * bytes / ap_dtype_bytes(tensor->dtype);
        }
        return XM_OK;
    }
    for (int r = 0; r < op->result_count; ++r) {
        for (int s = 0; s < set->count && saved[op->results[r]]; ++s) {
            memory[s] += ap_shard_local_bytes(p, op->results[r],
                                              ap_shard_spec_at(set, s, op->operand_count + r));
        }
    }
    return XM_OK;
}

/* Makes the tables of planner/solver/elimination/pairwise.h: every edge gets its full table, also
 * between equal layers. */
static xm_status_t fill_tables(ap_shard_problem_t *p)
{
    size_t nodes = (size_t)p->nodes + 1;
    bool *saved = NULL;
    xm_status_t status;

    p->counts = calloc(nodes, sizeof(int));
    p->costs = calloc(nodes, sizeof(*p->costs));
    p->memory = calloc(nodes, sizeof(*p->memory));
    p->edges = calloc((size_t)p->wires + 1, sizeof(*p->edges));
    if (p->counts == NULL || p->costs == NULL || p->memory == NULL || p->edges == NULL) {
        return no_memory();
    }
    status = find_saved(p->params.graph, &saved);
    for (int n = 0; n < p->nodes && status == XM_OK; ++n) {
        p->counts[n] = ap_strategy_table_of(p, n)->count;
        p->costs[n] = ap_strategy_table_of(p, n)->costs;
        status = fill_memory(p, n, saved);
    }
    free(saved);
    for (int w = 0; w < p->wires && status == XM_OK; ++w) {
        const ap_shard_wire_t *wire = &p->wire[w];
        size_t cells = (size_t)p->counts[wire->from] * (size_t)p->counts[wire->to];
        double *costs = malloc(cells * sizeof(*costs));

        if (costs == NULL) {
            return no_memory();
        }
        /* The edge owns its table from here on, so a failure later frees it with the problem. */
        p->edges[w] = (ap_intra_op_edge_t){.a = wire->from, .b = wire->to, .costs = costs};
        ++p->problem.edges;
        status = ap_shard_wire_costs(p, wire, costs);
    }
    p->problem.nodes = p->nodes;
    p->problem.strategies = p->counts;
    p->problem.costs = p->costs;
    p->problem.memory = (const double *const *)p->memory;
    p->problem.edge = p->edges;
    p->problem.memory_limit = p->params.memory_limit;
    return status;
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
    const ap_op_t *op;

    *term = 0;
    if (producer < 0) {
        return p->tensor_node[tensor];
    }
    op = ap_graph_op(p->params.graph, producer);
    for (int r = 0; r < op->result_count; ++r) {
        *term = op->results[r] == tensor ? op->operand_count + r : *term;
    }
    return p->op_node[producer];
}

/* How often a tensor is resharded in a micro-batch: in a loop in each run, unless it comes from
 * outside; for an update once per iteration, of which a micro-batch bears its share. */
static double runs_of(const ap_shard_problem_t *p, int tensor, int to)
{
    const ap_graph_t *graph = p->params.graph;
    const ap_op_t *user = ap_graph_op(graph, p->node[to].op);
    double made = ap_graph_tensor_turns(graph, tensor);

    return (made < user->repeat ? made : user->repeat) *
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

    p->node = calloc(tensors + ops, sizeof(*p->node));
    p->op_node = calloc(ops + 1, sizeof(int));
    p->tensor_node = calloc(tensors + 1, sizeof(int));
    p->wire = calloc(ops * (AP_MAX_OPERANDS + AP_MAX_RESULTS) + 1, sizeof(*p->wire));
    if (p->node == NULL || p->op_node == NULL || p->tensor_node == NULL || p->wire == NULL) {
        return no_memory();
    }
    return ap_reshard_memo_create(p->params.mesh, &p->memo);
}

/* Needs nodes before edges, since an edge names both of its ends. */
xm_status_t ap_shard_problem_create(const ap_shard_params_t *params, ap_shard_problem_t **problem)
{
    ap_shard_problem_t *made = calloc(1, sizeof(*made));
    xm_status_t status;

    if (made == NULL) {
        return no_memory();
    }
    made->params = *params;
    made->problem = (ap_intra_op_problem_t)AP_INTRA_OP_PROBLEM_INIT;
    status = allocate(made);
    if (status == XM_OK) {
        status = add_nodes(made);
    }
    if (status == XM_OK) {
        add_wires(made);
    }
    if (status == XM_OK && !params->without_tables) {
        status = fill_tables(made);
    }
    if (status != XM_OK) {
        ap_shard_problem_destroy(made);
        return status;
    }
    *problem = made;
    return XM_OK;
}

const ap_intra_op_problem_t *ap_shard_problem_get(const ap_shard_problem_t *problem)
{
    return &problem->problem;
}

int ap_shard_problem_nodes(const ap_shard_problem_t *problem)
{
    return problem->nodes;
}

int ap_shard_problem_op_node(const ap_shard_problem_t *problem, int op)
{
    return problem->op_node[op];
}

int ap_shard_problem_node_op(const ap_shard_problem_t *problem, int node)
{
    return problem->node[node].op;
}

int ap_shard_problem_tensor_node(const ap_shard_problem_t *problem, int tensor)
{
    return problem->tensor_node[tensor];
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
