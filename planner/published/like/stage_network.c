/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A stage as a flat network of choices, for the searches of other published planners (random walks,
 * other eliminations). They get the very costs that our own search uses, so a comparison with them
 * compares searches and spaces, not cost models. All tables of a distinct layer are made once and
 * shared by the layers that equal it.
 */

#include "planner/published/like/stage_network.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A variable: per value its seconds, its bytes, and what it does with each mesh axis. */
typedef struct choice {
    int domain;
    const double *seconds, *bytes;
    const uint8_t *part; /* [domain][AP_CHOICE_LEVELS], 0 = nothing */
} choice_t;

/* A distinct layer: the values and tables that all layers equal to it share. */
typedef struct layer_tables {
    const ap_layer_problem_t *problem;
    choice_t input; /* its input tensor */
    choice_t *nodes;
    int **strategy;      /* per node and value */
    double **edge_table; /* per edge, over values */
} layer_tables_t;

struct ap_stage_network {
    ap_stage_context_t *context;
    ap_stage_query_t query;
    ap_layer_weights_t weights;
    layer_tables_t *distinct; /* per kind of layer of the context */
    choice_t output;
    int layers;
    int *first_node; /* per layer: variable of its first node */
    ap_cfn_core_t *choices;
    const uint8_t **part; /* per variable */
    xm_arena_t arena;
};

/* Bytes that a search sees: state and kept activations. Buffers are left out, since they do not add
 * up. */
static double bytes_of(const ap_stage_network_t *n, const ap_parts_t *parts)
{
    return parts->mem_stage + n->query.in_flight * parts->mem_act;
}

/* What a strategy does with every axis: the factor that it cuts, counted from 1. Searches that
 * decide axis by axis read these. */
static void strategy_parts(const ap_strategy_t *strategy, int factors, uint8_t *part)
{
    for (int a = 0; a < AP_CHOICE_LEVELS; ++a) {
        for (int f = 0; f < factors; ++f) {
            part[a] = (strategy->axes[f] >> a & 1U) != 0 ? (uint8_t)(f + 1) : part[a];
        }
    }
}

static void spec_parts(ap_spec_t spec, uint8_t *part)
{
    for (int a = 0; a < AP_CHOICE_LEVELS; ++a) {
        for (int d = 0; d < AP_MAX_RANK; ++d) {
            part[a] = (ap_spec_axes(spec, d) >> a & 1U) != 0 ? (uint8_t)(d + 1) : part[a];
        }
    }
}

/* Whether another strategy of the same class is as fast and as small; of equals the first stays.
 * Neighbours cannot tell strategies of one class apart, so nothing is lost by leaving these out. */
static bool is_beaten(const ap_layer_node_t *node, const double *seconds, const double *bytes,
                      int s)
{
    for (int t = 0; t < node->strategies.count; ++t) {
        bool equal = seconds[t] == seconds[s] && bytes[t] == bytes[s];

        if (t != s && node->class_of[t] == node->class_of[s] && seconds[t] <= seconds[s] &&
            bytes[t] <= bytes[s] && (!equal || t < s)) {
            return true;
        }
    }
    return false;
}

/* Lists the values of an operator: the strategies that no other one of their class makes useless,
 * in the order of the strategies. */
static xm_status_t list_values(ap_stage_network_t *n, layer_tables_t *tables, int index)
{
    const ap_layer_node_t *node = &tables->problem->node[index];
    size_t count = (size_t)node->strategies.count;
    double *all_seconds = xm_arena_get(&n->arena, count, sizeof(double));
    double *all_bytes = xm_arena_get(&n->arena, count, sizeof(double));
    double *seconds = xm_arena_get(&n->arena, count, sizeof(double));
    double *bytes = xm_arena_get(&n->arena, count, sizeof(double));
    uint8_t *part = xm_arena_get(&n->arena, count, AP_CHOICE_LEVELS);
    int *strategy = xm_arena_get(&n->arena, count, sizeof(int)), domain = 0;

    XM_NEED_MEMORY(all_seconds != NULL && all_bytes != NULL && seconds != NULL && bytes != NULL &&
                       part != NULL && strategy != NULL,
                   "the choices of a stage");
    for (int s = 0; s < node->strategies.count; ++s) {
        ap_parts_t parts = ap_layer_strategy_parts(node, s, &n->weights);

        all_seconds[s] = ap_parts_cost(&parts, &n->weights);
        all_bytes[s] = bytes_of(n, &parts);
    }
    for (int s = 0; s < node->strategies.count; ++s) {
        if (!is_beaten(node, all_seconds, all_bytes, s)) {
            strategy[domain] = s;
            seconds[domain] = all_seconds[s];
            bytes[domain] = all_bytes[s];
            if (index < tables->problem->op_nodes) {
                strategy_parts(&node->strategies.items[s],
                               ap_graph_op(ap_stage_training(n->context), node->op)->rule.factors,
                               &part[domain * AP_CHOICE_LEVELS]);
            }
            ++domain;
        }
    }
    tables->strategy[index] = strategy;
    tables->nodes[index] = (choice_t){domain, seconds, bytes, part};
    return XM_OK;
}

/* Makes the variable of a tensor between layers; `parts`: what keeping it costs, NULL: nothing. */
static xm_status_t list_specs(ap_stage_network_t *n, const ap_spec_t *specs, int count,
                              const ap_parts_t *parts, choice_t *variable)
{
    double *seconds = xm_arena_get(&n->arena, (size_t)count, sizeof(double));
    double *bytes = xm_arena_get(&n->arena, (size_t)count, sizeof(double));
    uint8_t *part = xm_arena_get(&n->arena, (size_t)count, AP_CHOICE_LEVELS);

    XM_NEED_MEMORY(seconds != NULL && bytes != NULL && part != NULL, "the choices of a stage");
    for (int s = 0; s < count; ++s) {
        seconds[s] = parts == NULL ? 0.0 : ap_parts_cost(&parts[s], &n->weights);
        bytes[s] = parts == NULL ? 0.0 : bytes_of(n, &parts[s]);
        spec_parts(specs[s], &part[s * AP_CHOICE_LEVELS]);
    }
    *variable = (choice_t){count, seconds, bytes, part};
    return XM_OK;
}

/* The values of an edge's end, and the class (or spec) of each. */
static int end_domain(const layer_tables_t *tables, int end, int count)
{
    return end < 0 ? count : tables->nodes[end].domain;
}

static int end_class(const layer_tables_t *tables, int end, int value)
{
    return end < 0 ? value : tables->problem->node[end].class_of[tables->strategy[end][value]];
}

/* Spreads an edge's costs from classes to values, for searches that know values only. */
static xm_status_t spread_edge(ap_stage_network_t *n, layer_tables_t *tables, int e)
{
    const ap_layer_edge_t *edge = &tables->problem->edge[e];
    int rows = end_domain(tables, edge->from, edge->from_count);
    int columns = end_domain(tables, edge->to, edge->to_count);
    double *table = xm_arena_get(&n->arena, (size_t)rows * (size_t)columns, sizeof(double));

    XM_NEED_MEMORY(table, "the choices of a stage");
    for (int i = 0; i < rows; ++i) {
        for (int j = 0; j < columns; ++j) {
            ap_parts_t parts = ap_layer_edge_parts(edge, end_class(tables, edge->from, i),
                                                   end_class(tables, edge->to, j));

            table[i * columns + j] = ap_parts_cost(&parts, &n->weights);
        }
    }
    tables->edge_table[e] = table;
    return XM_OK;
}

/* The boundary after a layer is the next layer's input, so a layer brings its own input only. */
static xm_status_t make_tables(ap_stage_network_t *n, int layer)
{
    layer_tables_t *tables = &n->distinct[ap_stage_layer_kind(n->context, layer)];
    const ap_layer_problem_t *problem;

    if (tables->problem != NULL) {
        return XM_OK;
    }
    XM_TRY(ap_stage_layer_problem(n->context, &n->query, layer, &problem));
    tables->problem = problem;
    tables->nodes = xm_arena_get(&n->arena, (size_t)problem->nodes, sizeof(*tables->nodes));
    tables->strategy = xm_arena_get(&n->arena, (size_t)problem->nodes, sizeof(*tables->strategy));
    tables->edge_table =
        xm_arena_get(&n->arena, (size_t)problem->edges, sizeof(*tables->edge_table));
    if (tables->nodes == NULL || tables->strategy == NULL || tables->edge_table == NULL) {
        return XM_NO_MEMORY("the choices of a stage");
    }
    XM_TRY(list_specs(n, problem->in_specs, problem->in_count, problem->in_parts, &tables->input));
    for (int i = 0; i < problem->nodes; ++i) {
        XM_TRY(list_values(n, tables, i));
    }
    for (int e = 0; e < problem->edges; ++e) {
        XM_TRY(spread_edge(n, tables, e));
    }
    return XM_OK;
}

static const layer_tables_t *tables_of(const ap_stage_network_t *n, int i)
{
    return &n->distinct[ap_stage_layer_kind(n->context, n->query.first + i)];
}

static void add_choice(ap_stage_network_t *n, ap_cfn_core_maker_t *maker, const choice_t *choice)
{
    size_t bytes = (size_t)choice->domain * sizeof(double);

    n->part[maker->core->variables] = choice->part;
    memcpy(ap_cfn_core_add_variable(maker, choice->domain), choice->seconds, bytes);
    memcpy(ap_cfn_core_add_segment(maker, 0, 1), choice->bytes, bytes);
}

/* Counts what the network has, and numbers the first operator of every layer. Variables are
 * numbered: the tensors before the layers and after the last one, then the operators layer by
 * layer; so assignments begin with the specs, which is the form that ap_stage_solve_assigned()
 * takes. */
static ap_cfn_core_size_t measure(ap_stage_network_t *n)
{
    ap_cfn_core_size_t size = {.variables = n->layers + 1, .times = 1};

    size.values = (size_t)n->output.domain;
    for (int i = 0; i < n->layers; ++i) {
        const layer_tables_t *tables = tables_of(n, i);

        n->first_node[i] = size.variables;
        size.variables += tables->problem->nodes;
        size.links += tables->problem->edges;
        size.values += (size_t)tables->input.domain;
        for (int v = 0; v < tables->problem->nodes; ++v) {
            size.values += (size_t)tables->nodes[v].domain;
        }
    }
    size.segments = (size_t)size.variables;
    size.usages = size.values;
    return size;
}

static xm_status_t connect(ap_stage_network_t *n)
{
    ap_cfn_core_size_t size;
    ap_cfn_core_maker_t maker;
    xm_status_t status;

    n->first_node = xm_arena_get(&n->arena, (size_t)n->layers, sizeof(int));
    XM_NEED_MEMORY(n->first_node, "the choices of a stage");
    size = measure(n);
    n->part = xm_arena_get(&n->arena, (size_t)size.variables, sizeof(*n->part));
    status =
        n->part == NULL ? XM_NO_MEMORY("the choices of a stage") : ap_cfn_core_begin(&size, &maker);
    XM_TRY(status);
    for (int i = 0; i <= n->layers; ++i) {
        add_choice(n, &maker, i < n->layers ? &tables_of(n, i)->input : &n->output);
    }
    for (int i = 0; i < n->layers; ++i) {
        const layer_tables_t *tables = tables_of(n, i);

        for (int v = 0; v < tables->problem->nodes; ++v) {
            add_choice(n, &maker, &tables->nodes[v]);
        }
        for (int e = 0; e < tables->problem->edges; ++e) {
            const ap_layer_edge_t *edge = &tables->problem->edge[e];

            ap_cfn_core_borrow_link(&maker, edge->from == AP_IN ? i : n->first_node[i] + edge->from,
                                    edge->to == AP_OUT ? i + 1 : n->first_node[i] + edge->to,
                                    tables->edge_table[e]);
        }
    }
    n->choices = ap_cfn_core_finish(&maker);
    return XM_OK;
}

/* Weights are those of memory at no price: searches hold bytes against their limit themselves. */
xm_status_t ap_stage_network_create(ap_stage_context_t *context, const ap_stage_query_t *query,
                                    ap_stage_network_t **network)
{
    ap_stage_network_t *n = calloc(1, sizeof(*n));
    const ap_layer_problem_t *end;
    xm_status_t status;

    XM_NEED_MEMORY(n, "the choices of a stage");
    n->context = context;
    n->query = *query;
    n->layers = query->last - query->first + 1;
    n->weights = ap_stage_weights(context);
    n->distinct =
        xm_arena_get(&n->arena, (size_t)ap_stage_layer_kinds(context), sizeof(*n->distinct));
    status = n->distinct == NULL ? XM_NO_MEMORY("the choices of a stage") : XM_OK;
    for (int layer = query->first; layer <= query->last && status == XM_OK; ++layer) {
        status = make_tables(n, layer);
    }
    if (status == XM_OK) {
        end = tables_of(n, n->layers - 1)->problem;
        status = list_specs(n, end->out_specs, end->out_count, NULL, &n->output);
    }
    XM_THEN(status, connect(n));
    if (status != XM_OK) {
        ap_stage_network_destroy(n);
        return status;
    }
    *network = n;
    return XM_OK;
}

const ap_cfn_core_t *ap_stage_network_choices(const ap_stage_network_t *network)
{
    return network->choices;
}

const uint8_t *const *ap_stage_network_parts(const ap_stage_network_t *network)
{
    return network->part;
}

/* The layer and node of an operator's variable; false for a tensor. */
static bool find_node(const ap_stage_network_t *n, int variable, int *layer, int *node)
{
    for (int i = 0; i < n->layers; ++i) {
        int at = variable - n->first_node[i];

        if (at >= 0 && at < tables_of(n, i)->problem->op_nodes) {
            *layer = i;
            *node = at;
            return true;
        }
    }
    return false;
}

const ap_op_t *ap_stage_network_op(const ap_stage_network_t *network, int variable, int *layer,
                                   int *first)
{
    int i = 0, node;

    if (!find_node(network, variable, layer, &node)) {
        return NULL;
    }
    while (tables_of(network, i) != tables_of(network, *layer)) {
        ++i;
    }
    *first = network->first_node[i] + node;
    return ap_graph_op(ap_stage_training(network->context),
                       tables_of(network, i)->problem->node[node].op);
}

int ap_stage_network_variable(const ap_stage_network_t *network, int layer, int node)
{
    return layer < network->layers && node < tables_of(network, layer)->problem->op_nodes
               ? network->first_node[layer] + node
               : -1;
}

const ap_strategy_t *ap_stage_network_strategy(const ap_stage_network_t *network, int variable,
                                               int value)
{
    int layer, node;

    if (!find_node(network, variable, &layer, &node)) {
        return NULL;
    }
    return &tables_of(network, layer)
                ->problem->node[node]
                .strategies.items[tables_of(network, layer)->strategy[node][value]];
}

/* The number of axes of a mesh over which a strategy cuts the batch. */
static int data_axes(const ap_stage_network_t *n, const ap_layer_node_t *node,
                     const ap_strategy_t *strategy)
{
    const ap_op_t *op = ap_graph_op(ap_stage_training(n->context), node->op);
    const ap_factor_roles_t *roles = ap_stage_roles(n->context);
    int axes = 0;

    for (int a = 0; a < 2 && roles != NULL; ++a) {
        axes += ap_space_role(&op->rule, &roles[node->op], strategy, a) == AP_ROLE_DATA;
    }
    return axes;
}

/* Gives a variable the value that is the cheapest beside those of the others. */
static void take_cheapest(const ap_stage_network_t *n, int variable, int *assignment)
{
    double least = ap_cfn_core_cost_of(n->choices, variable, 0, assignment);

    for (int x = 1; x < n->choices->variable[variable].size; ++x) {
        double seconds = ap_cfn_core_cost_of(n->choices, variable, x, assignment);

        assignment[variable] = seconds < least ? x : assignment[variable];
        least = seconds < least ? seconds : least;
    }
}

/* Gives a tensor with several readers the value that is the cheapest for them. */
static void serve_readers(const ap_stage_network_t *n, int layer, int shared, int *assignment)
{
    const layer_tables_t *tables = tables_of(n, layer);
    const ap_layer_problem_t *problem = tables->problem;
    double least = HUGE_VAL;

    for (int x = 0; x < tables->nodes[shared].domain; ++x) {
        double seconds = 0;

        for (int e = 0; e < problem->edges; ++e) {
            int to = problem->edge[e].to;

            if (problem->edge[e].from == shared && to >= 0) {
                seconds += tables->edge_table[e][x * tables->nodes[to].domain +
                                                 assignment[n->first_node[layer] + to]];
            }
        }
        assignment[n->first_node[layer] + shared] =
            seconds < least ? x : assignment[n->first_node[layer] + shared];
        least = fmin(least, seconds);
    }
}

/* Data parallelism as far as each operator allows it. */
void ap_stage_network_data_parallel(const ap_stage_network_t *n, int *assignment)
{
    /* Every operator cuts the batch over as many axes as it can; of equal ones the first strategy
     * wins. */
    memset(assignment, 0, (size_t)n->choices->variables * sizeof(*assignment));
    for (int i = 0; i < n->layers; ++i) {
        const layer_tables_t *tables = tables_of(n, i);

        for (int v = 0; v < tables->problem->op_nodes; ++v) {
            const ap_layer_node_t *node = &tables->problem->node[v];
            int most = -1;

            for (int x = 0; x < tables->nodes[v].domain; ++x) {
                int axes = data_axes(n, node, &node->strategies.items[tables->strategy[v][x]]);

                if (axes > most) {
                    most = axes;
                    assignment[n->first_node[i] + v] = x;
                }
            }
        }
    }
    /* What several of them read is as they want it, the specs between layers are the cheapest ones
     * beside that, and so is what is copied. */
    for (int round = 0; round < 2; ++round) {
        for (int i = 0; i < n->layers; ++i) {
            const ap_layer_problem_t *problem = tables_of(n, i)->problem;

            for (int v = problem->op_nodes; v < problem->nodes; ++v) {
                if (round == 0) {
                    serve_readers(n, i, v, assignment);
                } else {
                    take_cheapest(n, n->first_node[i] + v, assignment);
                }
            }
        }
        for (int i = 0; i <= n->layers && round == 0; ++i) {
            take_cheapest(n, i, assignment);
        }
    }
}

/* Turns values back into strategies, and has the stage priced as such. */
xm_status_t ap_stage_network_solution(ap_stage_network_t *n, const int *assignment,
                                      ap_stage_solution_t **solution)
{
    size_t nodes = (size_t)n->choices->variables;
    xm_arena_t arena = {0};
    int *strategies = xm_arena_take(&arena, nodes * sizeof(*strategies)), used = 0;
    const int **of_layer = xm_arena_take(&arena, (size_t)n->layers * sizeof(*of_layer));
    xm_status_t status;

    if (arena.failed) {
        xm_arena_clear(&arena);
        return XM_NO_MEMORY("the choices of a stage");
    }
    for (int i = 0; i < n->layers; ++i) {
        const layer_tables_t *tables = tables_of(n, i);

        of_layer[i] = &strategies[used];
        for (int v = 0; v < tables->problem->nodes; ++v) {
            strategies[used++] = tables->strategy[v][assignment[n->first_node[i] + v]];
        }
    }
    status = ap_stage_solve_assigned(n->context, &n->query, assignment, of_layer, solution);
    xm_arena_clear(&arena);
    return status;
}

void ap_stage_network_destroy(ap_stage_network_t *network)
{
    if (network == NULL) {
        return;
    }
    ap_cfn_core_destroy(network->choices);
    xm_arena_clear(&network->arena);
    free(network);
}
