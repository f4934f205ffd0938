#include "planner/shard_problem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "planner/reshard_memo.h"

/* An operator (op >= 0) or an input or parameter (tensor >= 0). */
typedef struct shard_node {
    int op, tensor;
    ap_strategy_list_t strategies; /* of an operator */
    ap_spec_t *specs;              /* of a tensor */
    double *costs, *memory;
} shard_node_t;

struct ap_shard_problem {
    ap_shard_params_t params;
    ap_reshard_memo_t *memo;
    ap_intra_op_problem_t problem;
    shard_node_t *nodes;
    int *op_node, *tensor_node; /* -1 = none */
    int *counts;
    const double **costs, **memory;
    ap_intra_op_edge_t *edges;
};

static xm_status_t no_memory(void)
{
    return xm_error_set(XM_ERR_NO_MEMORY, "no memory for a sharding problem");
}

void ap_shard_problem_destroy(ap_shard_problem_t *problem)
{
    if (problem == NULL) {
        return;
    }
    for (int n = 0; n < problem->problem.nodes && problem->nodes != NULL; ++n) {
        ap_strategy_list_free(&problem->nodes[n].strategies);
        free(problem->nodes[n].specs);
        free(problem->nodes[n].costs);
        free(problem->nodes[n].memory);
    }
    for (int e = 0; e < problem->problem.edges; ++e) {
        free((double *)problem->edges[e].costs);
    }
    free(problem->nodes);
    free(problem->op_node);
    free(problem->tensor_node);
    free(problem->counts);
    free(problem->costs);
    free(problem->memory);
    free(problem->edges);
    ap_reshard_memo_destroy(problem->memo);
    free(problem);
}

static double local_bytes(const ap_shard_problem_t *p, int tensor, ap_spec_t spec)
{
    return ap_graph_tensor_bytes(p->params.graph, tensor) /
           ap_cost_mesh_devices(p->params.mesh, ap_spec_used_axes(spec));
}

/* An input or parameter: one strategy per spec. */
static xm_status_t fill_tensor_node(ap_shard_problem_t *p, shard_node_t *node, int *count)
{
    const ap_tensor_t *tensor = ap_graph_tensor(p->params.graph, node->tensor);
    const ap_cost_model_t *model = ap_cost_mesh_model(p->params.mesh);
    bool parameter = tensor->kind == AP_TENSOR_PARAMETER;
    ap_spec_t specs[AP_MAX_SPECS];

    *count = ap_specs_enumerate(p->params.mesh, &tensor->shape, specs);
    if (parameter && ap_cost_model_forces_data_parallel(model)) {
        *count = 1; /* the first spec is the replicated one */
    }
    node->specs = malloc((size_t)*count * sizeof(*node->specs));
    node->costs = calloc((size_t)*count, sizeof(*node->costs));
    node->memory = calloc((size_t)*count, sizeof(*node->memory));
    if (node->specs == NULL || node->costs == NULL || node->memory == NULL) {
        return no_memory();
    }
    for (int s = 0; s < *count; ++s) {
        double bytes = local_bytes(p, node->tensor, specs[s]);

        node->specs[s] = specs[s];
        if (specs[s] == AP_SPEC_REPLICATED && ap_cost_mesh_axes(p->params.mesh) != 0) {
            node->costs[s] = ap_cost_replicated(p->params.mesh);
        }
        if (parameter) {
            node->memory[s] =
                2 * bytes + p->params.state_bytes * bytes / ap_dtype_bytes(tensor->dtype);
        }
    }
    return XM_OK;
}

/* Whether an operator of the backward phase reads a tensor that the forward phase makes. */
static bool is_saved(const ap_graph_t *graph, int tensor)
{
    int producer = ap_graph_tensor(graph, tensor)->producer;

    if (producer < 0 || ap_graph_op(graph, producer)->phase != AP_PHASE_FORWARD) {
        return false;
    }
    for (int o = 0; o < ap_graph_ops(graph); ++o) {
        const ap_op_t *op = ap_graph_op(graph, o);

        for (int i = 0; i < op->operand_count && op->phase == AP_PHASE_BACKWARD; ++i) {
            if (op->operands[i] == tensor) {
                return true;
            }
        }
    }
    return false;
}

/* Whether a term of an operator is the gradient of a parameter: communicated once per iteration. */
static bool is_parameter_gradient(const ap_graph_t *graph, const ap_op_t *op, int term)
{
    int of;

    if (term < op->operand_count) {
        return false;
    }
    of = ap_graph_tensor(graph, op->results[term - op->operand_count])->gradient_of;
    return of >= 0 && ap_graph_tensor(graph, of)->kind == AP_TENSOR_PARAMETER;
}

static void price_op(ap_shard_problem_t *p, shard_node_t *node, const ap_strategy_site_t *site,
                     int s)
{
    const ap_op_t *op = ap_graph_op(p->params.graph, node->op);
    const ap_strategy_t *strategy = &node->strategies.items[s];
    double rare = 1.0 / (p->params.micro_batches > 0 ? p->params.micro_batches : 1);
    double bytes = 0;

    for (int t = 0; t < op->operand_count + op->result_count; ++t) {
        bytes += ap_strategy_local_bytes(site, t, strategy->spec[t]);
    }
    node->costs[s] =
        (op->phase == AP_PHASE_UPDATE ? rare : 1) * op->repeat *
        ap_cost_compute(p->params.mesh, op->flops / op->repeat / strategy->devices, bytes);
    for (int c = 0; c < strategy->collective_count; ++c) {
        const ap_collective_t *on = &strategy->collective[c];

        node->costs[s] += (is_parameter_gradient(p->params.graph, op, on->term) ? rare : 1) *
                          op->repeat *
                          ap_cost_collective(p->params.mesh, on->kind, on->axis, on->bytes);
    }
}

static xm_status_t fill_op_node(ap_shard_problem_t *p, shard_node_t *node, int *count)
{
    const ap_graph_t *graph = p->params.graph;
    const ap_op_t *op = ap_graph_op(graph, node->op);
    bool alpa = ap_cost_model_is_alpa(ap_cost_mesh_model(p->params.mesh));
    ap_strategy_options_t options = {.scatter = !alpa,
                                     .all_axes = alpa && op->kind == AP_OP_EINSUM};
    ap_strategy_site_t site = {.rule = &op->rule, .mesh = p->params.mesh};
    xm_status_t status;

    for (int t = 0; t < op->operand_count + op->result_count; ++t) {
        int tensor = t < op->operand_count ? op->operands[t] : op->results[t - op->operand_count];

        site.element_bytes[t] = ap_dtype_bytes(ap_graph_tensor(graph, tensor)->dtype);
    }
    status = ap_strategy_enumerate(&site, &options, &node->strategies);
    if (status == XM_OK && node->strategies.count == 0 && options.all_axes) {
        /* Too small or too odd to occupy every axis: some must repeat the work. */
        options.all_axes = false;
        status = ap_strategy_enumerate(&site, &options, &node->strategies);
    }
    if (status != XM_OK) {
        return status;
    }
    *count = node->strategies.count;
    if (*count == 0) {
        return xm_error_set(
            XM_ERR_NO_SOLUTION,
            "operator '%s' cannot be sharded: no factor of '%s' divides by the mesh", op->name,
            op->rule.text);
    }
    node->costs = calloc((size_t)*count, sizeof(*node->costs));
    node->memory = calloc((size_t)*count, sizeof(*node->memory));
    if (node->costs == NULL || node->memory == NULL) {
        return no_memory();
    }
    for (int s = 0; s < *count; ++s) {
        price_op(p, node, &site, s);
    }
    for (int r = 0; r < op->result_count; ++r) {
        bool saved = is_saved(graph, op->results[r]);

        for (int s = 0; s < *count && saved; ++s) {
            node->memory[s] += local_bytes(p, op->results[r],
                                           node->strategies.items[s].spec[op->operand_count + r]);
        }
    }
    return XM_OK;
}

static xm_status_t add_node(ap_shard_problem_t *p, int op, int tensor)
{
    int n = p->problem.nodes++;
    shard_node_t *node = &p->nodes[n];
    xm_status_t status;

    node->op = op;
    node->tensor = tensor;
    if (op >= 0) {
        p->op_node[op] = n;
        status = fill_op_node(p, node, &p->counts[n]);
    } else {
        p->tensor_node[tensor] = n;
        status = fill_tensor_node(p, node, &p->counts[n]);
    }
    p->costs[n] = node->costs;
    p->memory[n] = node->memory;
    return status;
}

/* Node and term that make a tensor. */
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

static ap_spec_t spec_at(const ap_shard_problem_t *p, int node, int strategy, int term)
{
    const shard_node_t *of = &p->nodes[node];

    return of->op < 0 ? of->specs[strategy] : of->strategies.items[strategy].spec[term];
}

/* How often a tensor is resharded: in a loop in each run, unless it comes from outside. */
static double runs_of(const ap_shard_problem_t *p, int from, int to)
{
    const ap_graph_t *graph = p->params.graph;
    double made = p->nodes[from].op < 0 ? 1 : ap_graph_op(graph, p->nodes[from].op)->repeat;
    double used = p->nodes[to].op < 0 ? 1 : ap_graph_op(graph, p->nodes[to].op)->repeat;

    return made < used ? made : used;
}

/* An edge from the maker of a tensor to a term of a node; `alias`: both must have one spec. */
static xm_status_t add_edge(ap_shard_problem_t *p, int tensor, int to, int to_term, bool alias)
{
    int from_term, from = maker(p, tensor, &from_term), handle;
    ap_intra_op_edge_t *edge = &p->edges[p->problem.edges];
    const double runs = runs_of(p, from, to);
    double *costs = malloc((size_t)p->counts[from] * (size_t)p->counts[to] * sizeof(*costs));
    xm_status_t status =
        ap_reshard_memo_tensor(p->memo, &ap_graph_tensor(p->params.graph, tensor)->shape,
                               ap_graph_tensor_bytes(p->params.graph, tensor), &handle);

    if (status == XM_OK && costs == NULL) {
        status = no_memory();
    }
    if (status != XM_OK) {
        free(costs);
        return status;
    }
    for (int s = 0; s < p->counts[from]; ++s) {
        for (int t = 0; t < p->counts[to]; ++t) {
            ap_spec_t made = spec_at(p, from, s, from_term), used = spec_at(p, to, t, to_term);

            costs[s * p->counts[to] + t] =
                alias ? (made == used ? 0 : AP_COST_INFINITE)
                      : runs * ap_reshard_memo_cost(p->memo, handle, made, used);
        }
    }
    edge->a = from;
    edge->b = to;
    edge->costs = costs;
    ++p->problem.edges;
    return XM_OK;
}

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

static xm_status_t add_edges(ap_shard_problem_t *p)
{
    const ap_graph_t *graph = p->params.graph;
    xm_status_t status = XM_OK;

    for (int o = 0; o < ap_graph_ops(graph) && status == XM_OK; ++o) {
        const ap_op_t *op = ap_graph_op(graph, o);

        for (int i = 0; i < op->operand_count && status == XM_OK; ++i) {
            status = add_edge(p, op->operands[i], p->op_node[o], i, false);
        }
        for (int r = 0; r < op->result_count && status == XM_OK; ++r) {
            int old = ap_graph_tensor(graph, op->results[r])->alias_of;

            if (old >= 0) {
                status = add_edge(p, old, p->op_node[o], op->operand_count + r, true);
            }
        }
    }
    return status;
}

static xm_status_t allocate(ap_shard_problem_t *p)
{
    const ap_graph_t *graph = p->params.graph;
    size_t tensors = (size_t)ap_graph_tensors(graph), ops = (size_t)ap_graph_ops(graph);

    p->nodes = calloc(tensors + ops, sizeof(*p->nodes));
    p->op_node = calloc(ops + 1, sizeof(int));
    p->tensor_node = calloc(tensors + 1, sizeof(int));
    p->counts = calloc(tensors + ops, sizeof(int));
    p->costs = calloc(tensors + ops, sizeof(*p->costs));
    p->memory = calloc(tensors + ops, sizeof(*p->memory));
    p->edges = calloc(ops * (AP_MAX_OPERANDS + AP_MAX_RESULTS) + 1, sizeof(*p->edges));
    if (p->nodes == NULL || p->op_node == NULL || p->tensor_node == NULL || p->counts == NULL ||
        p->costs == NULL || p->memory == NULL || p->edges == NULL) {
        return no_memory();
    }
    return ap_reshard_memo_create(p->params.mesh, &p->memo);
}

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
        status = add_edges(made);
    }
    if (status != XM_OK) {
        ap_shard_problem_destroy(made);
        return status;
    }
    made->problem.strategies = made->counts;
    made->problem.costs = made->costs;
    made->problem.memory = made->memory;
    made->problem.edge = made->edges;
    made->problem.memory_limit = params->memory_limit;
    *problem = made;
    return XM_OK;
}

const ap_intra_op_problem_t *ap_shard_problem_get(const ap_shard_problem_t *problem)
{
    return &problem->problem;
}

int ap_shard_problem_op_node(const ap_shard_problem_t *problem, int op)
{
    return problem->op_node[op];
}

int ap_shard_problem_tensor_node(const ap_shard_problem_t *problem, int tensor)
{
    return problem->tensor_node[tensor];
}

const char *ap_shard_problem_node_name(const ap_shard_problem_t *problem, int node)
{
    const shard_node_t *of = &problem->nodes[node];

    return of->op >= 0 ? ap_graph_op(problem->params.graph, of->op)->name
                       : ap_graph_tensor(problem->params.graph, of->tensor)->name;
}

char *ap_shard_problem_strategy(const ap_shard_problem_t *problem, int node, int strategy,
                                char *buffer, size_t size)
{
    const shard_node_t *of = &problem->nodes[node];

    if (of->op >= 0) {
        return ap_strategy_format(&ap_graph_op(problem->params.graph, of->op)->rule,
                                  &of->strategies.items[strategy], buffer, size);
    }
    return ap_spec_format(of->specs[strategy],
                          ap_graph_tensor(problem->params.graph, of->tensor)->shape.rank, buffer,
                          size);
}

const ap_shard_params_t *ap_shard_problem_params(const ap_shard_problem_t *problem)
{
    return &problem->params;
}

const ap_strategy_t *ap_shard_problem_op_strategy(const ap_shard_problem_t *problem,
                                                  const int *choice, int op)
{
    int node = problem->op_node[op];

    return &problem->nodes[node].strategies.items[choice[node]];
}

ap_spec_t ap_shard_problem_spec(const ap_shard_problem_t *problem, const int *choice, int tensor)
{
    int term, node = maker(problem, tensor, &term);

    return spec_at(problem, node, choice[node], term);
}
