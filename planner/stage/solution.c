/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What was chosen for each operator of a stage, what came second, and where the costs come from. A
 * plan keeps only cells of tables, because tables are asked for many thousand stages and
 * explanations for the few that become a plan. The choices behind a cell are found again here by
 * tracing the elimination; layers with the same cell have the same choices, so each kind is traced
 * once.
 */

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "planner/stage/stage_private.h"

enum { WHY_TEXT = 1024, RUNNER_UP_TEXT = 192, SUM_TEXT = 128, SUMS_TEXT = 512 };

typedef struct choice_entry {
    ap_stage_choice_t choice;
    int terms;
    ap_spec_t *specs; /* the choice's; its rule's text is behind them */
    char sums[SUMS_TEXT];
    char why[WHY_TEXT];
    char runner_up[RUNNER_UP_TEXT];
} choice_entry_t;

/* The texts lie beside the choices; only at the end, when entries no longer move, are the choices
 * pointed at them. */
struct ap_stage_solution {
    ap_stage_cost_t cost;
    int count;
    choice_entry_t *entries;
};

const ap_stage_cost_t *ap_stage_solution_cost(const ap_stage_solution_t *solution)
{
    return &solution->cost;
}

int ap_stage_solution_choices(const ap_stage_solution_t *solution)
{
    return solution->count;
}

const ap_stage_choice_t *ap_stage_solution_choice(const ap_stage_solution_t *solution, int index)
{
    return &solution->entries[index].choice;
}

void ap_stage_solution_destroy(ap_stage_solution_t *solution)
{
    if (solution != NULL) {
        for (int c = 0; c < solution->count; ++c) {
            free(solution->entries[c].specs);
        }
        free(solution->entries);
        free(solution);
    }
}

/* Gives an entry its own copy of an operator's specs and of its rule's text. */
static xm_status_t own_specs(choice_entry_t *entry, int terms, const ap_spec_t *specs,
                             const char *rule)
{
    const size_t size = (size_t)terms * sizeof(*specs), length = strlen(rule) + 1;

    entry->terms = terms;
    entry->specs = malloc(size + length);
    XM_NEED_MEMORY(entry->specs, "a plan");
    memcpy(entry->specs, specs, size);
    memcpy(entry->specs + terms, rule, length);
    return XM_OK;
}

/* One layer of the plan, with what is needed to explain it. */
typedef struct traced_layer {
    const ap_stage_context_t *context;
    const ap_layer_problem_t *problem;
    const ap_layer_weights_t *weights;
    const ap_cost_mesh_t *mesh;
    const ap_stage_cell_t *cell;
    int *strategies; /* per node */
    int shift;       /* from an operator of the problem to the same one of this layer */
} traced_layer_t;

static const ap_op_t *op_of(const traced_layer_t *t, int n)
{
    return ap_graph_op(t->context->training, t->problem->node[n].op + t->shift);
}

/* The class of a node as it was chosen, or the spec of a boundary. */
static int class_at(const traced_layer_t *t, int end)
{
    if (end == AP_IN) {
        return t->cell->in;
    }
    return end == AP_OUT ? t->cell->out : t->problem->node[end].class_of[t->strategies[end]];
}

/* The weighted cost of the edges of node n if it were in class c, all other nodes being as they
 * are. */
static double edge_costs(const traced_layer_t *t, int n, int c)
{
    double cost = 0;

    for (int e = 0; e < t->problem->edges; ++e) {
        const ap_layer_edge_t *edge = &t->problem->edge[e];
        ap_parts_t parts;

        if (edge->to == n || edge->from == n) {
            parts = ap_layer_edge_parts(edge, edge->from == n ? c : class_at(t, edge->from),
                                        edge->to == n ? c : class_at(t, edge->to));
            cost += ap_parts_cost(&parts, t->weights);
        }
    }
    return cost;
}

/* Seconds of a micro-batch that the edges into a node take. What a tensor's readers share is borne
 * by the first of them. */
static double reshard_seconds(const traced_layer_t *t, int n)
{
    double seconds = 0;
    int shared = -1;

    for (int e = 0; e < t->problem->edges; ++e) {
        const ap_layer_edge_t *edge = &t->problem->edge[e];
        bool first = edge->from >= t->problem->op_nodes && edge->from != shared;
        ap_parts_t parts;

        shared = first ? edge->from : shared;
        if (edge->to == n) {
            parts = ap_layer_edge_parts(edge, class_at(t, edge->from), class_at(t, n));
            seconds += t->weights->forward * parts.forward + parts.backward +
                       (first ? reshard_seconds(t, edge->from) : 0);
        }
    }
    return seconds;
}

/* Finds the next best strategy of an operator when all others are kept. Its extra cost is what a
 * user would pay to change only this operator; changing neighbours along with it could cost
 * less. */
static void find_runner_up(const traced_layer_t *t, int n, choice_entry_t *entry)
{
    const ap_layer_node_t *node = &t->problem->node[n];
    int chosen = t->strategies[n], second = -1;
    double chosen_cost = 0, second_cost = HUGE_VAL;

    for (int s = 0; s < node->strategies.count; ++s) {
        ap_parts_t parts = ap_layer_strategy_parts(node, s, t->weights);
        double cost = ap_parts_cost(&parts, t->weights) + edge_costs(t, n, node->class_of[s]);

        if (s == chosen) {
            chosen_cost = cost;
        } else if (cost < second_cost) {
            second = s;
            second_cost = cost;
        }
    }
    if (second >= 0 && second_cost < AP_COST_INFINITE) {
        (void)ap_strategy_format(&ap_graph_op(t->context->training, node->op)->rule,
                                 &node->strategies.items[second], entry->runner_up,
                                 sizeof(entry->runner_up));
        entry->choice.runner_up_extra = second_cost - chosen_cost;
    }
}

static void append(choice_entry_t *entry, const char *text)
{
    size_t length = strlen(entry->why);

    (void)snprintf(entry->why + length, sizeof(entry->why) - length, "%s%s", length > 0 ? "; " : "",
                   text);
}

/* Explains a collective by the steps that it is made of. */
static void explain_collective(const traced_layer_t *t, ap_collective_kind_t kind, unsigned axes,
                               double bytes, choice_entry_t *entry)
{
    ap_collective_step_t steps[AP_MAX_COLLECTIVE_STEPS];
    int count;
    char text[512];

    (void)ap_cost_collective_steps(t->mesh, kind, axes, bytes, steps, &count);
    for (int s = 0; s < count; ++s) {
        append(entry, ap_cost_explain_collective(t->mesh, steps[s].kind, steps[s].axis,
                                                 steps[s].bytes, text, sizeof(text)));
    }
}

/* Appends the steps of a collective over several axes, "reduce-scatter 1, all-gather 1". */
static void append_steps(const traced_layer_t *t, ap_collective_kind_t kind, unsigned axes,
                         double bytes, char *text, size_t size, int *total)
{
    ap_collective_step_t steps[AP_MAX_COLLECTIVE_STEPS];
    int count;

    (void)ap_cost_collective_steps(t->mesh, kind, axes, bytes, steps, &count);
    for (int s = 0; s < count; ++s) {
        size_t length = strlen(text);

        (void)snprintf(text + length, size - length, "%s%s %d", (*total)++ > 0 ? ", " : " ",
                       ap_collective_name(steps[s].kind), steps[s].axis);
    }
}

/* Adds what sums a term to the choice, unless one all-reduce does. */
static void add_sum(int term, const char *steps, int count, choice_entry_t *entry)
{
    size_t length = strlen(entry->sums);

    if (count > 1) {
        (void)snprintf(entry->sums + length, sizeof(entry->sums) - length, "%s%d:%s",
                       length > 0 ? "; " : "", term, steps);
    }
}

/* Writes down how sums are made: gradients of parameters, whose optimizer state may be sharded, and
 * results that are summed whole. Just so they were priced. */
static void describe_sums(const traced_layer_t *t, int n, choice_entry_t *entry)
{
    const ap_layer_node_t *node = &t->problem->node[n];
    const ap_strategy_t *strategy = &node->strategies.items[t->strategies[n]];
    const ap_op_t *op = op_of(t, n);

    for (int p = 0; p < node->parameters; ++p) {
        int operand = node->parameter_operand[p], count = 0;
        int tensor = op->operands[operand];
        bool whole = ap_layer_parameter_mode(node, t->strategies[n], p, t->weights) ==
                     AP_PARAMETER_REPLICATED;
        unsigned axes = node->partial[t->strategies[n] * node->parameters + p];
        double bytes = ap_cost_mesh_local_bytes(
            t->mesh, &ap_graph_tensor(t->context->training, tensor)->shape,
            ap_graph_tensor_bytes(t->context->training, tensor), strategy->spec[operand]);
        char text[SUM_TEXT] = "";

        append_steps(t, whole ? AP_ALL_REDUCE : AP_REDUCE_SCATTER, axes, bytes, text, sizeof(text),
                     &count);
        if (!whole) {
            append_steps(t, AP_ALL_GATHER, axes, bytes, text, sizeof(text), &count);
        }
        add_sum(operand, text, count, entry);
    }
    for (int c = 0; c < strategy->collective_count; ++c) {
        const ap_collective_t *on = &strategy->collective[c];
        char text[SUM_TEXT] = "";
        int count = 0;

        if (on->kind == AP_ALL_REDUCE) {
            append_steps(t, on->kind, on->axes, on->bytes, text, sizeof(text), &count);
            add_sum(on->term, text, count, entry);
        }
    }
}

/* Says in words how the gradients of parameters are summed, and which parameters' state is sharded
 * over their replicas. */
static void explain_parameters(const traced_layer_t *t, int n, choice_entry_t *entry)
{
    const ap_layer_node_t *node = &t->problem->node[n];
    const ap_op_t *op = op_of(t, n);

    for (int p = 0; p < node->parameters; ++p) {
        int at = t->strategies[n] * node->parameters + p, operand = node->parameter_operand[p];
        int mode = ap_layer_parameter_mode(node, t->strategies[n], p, t->weights);
        const ap_tensor_t *of = ap_graph_tensor(t->context->training, op->operands[operand]);
        char text[160];

        if (node->modes[at * AP_PARAMETER_MODES].sync <= 0) {
            continue; /* no replicas: all modes are one */
        }
        if (mode != AP_PARAMETER_REPLICATED) {
            (void)snprintf(text, sizeof(text), "%s%s sharded over its replicas%s",
                           mode == AP_PARAMETER_STATE_SHARDED ? "optimizer state of " : "",
                           of->name,
                           mode == AP_PARAMETER_SHARDED ? " and gathered in every pass" : "");
            append(entry, text);
        }
        explain_collective(t, mode == AP_PARAMETER_REPLICATED ? AP_ALL_REDUCE : AP_REDUCE_SCATTER,
                           node->partial[at],
                           ap_cost_mesh_local_bytes(
                               t->mesh, &of->shape,
                               ap_graph_tensor_bytes(t->context->training, op->operands[operand]),
                               node->strategies.items[t->strategies[n]].spec[operand]),
                           entry);
    }
}

/* Puts the sources of an operator's costs into words. */
static void explain(const traced_layer_t *t, int n, choice_entry_t *entry)
{
    const ap_layer_node_t *node = &t->problem->node[n];
    const ap_strategy_t *strategy = &node->strategies.items[t->strategies[n]];
    const ap_op_t *op = op_of(t, n);
    char text[512];

    /* Collectives and products are explained with their number's source: the curve and the points
     * around it. */
    for (int c = 0; c < strategy->collective_count; ++c) {
        const ap_collective_t *on = &strategy->collective[c];

        explain_collective(t, on->kind, on->axes, on->bytes, entry);
    }
    if (op->kind == AP_OP_EINSUM) {
        append(entry,
               ap_cost_explain_op(t->mesh, op->kind, ap_graph_op_dtype(t->context->training, op),
                                  op->flops / strategy->devices, 0, text, sizeof(text)));
    }
    explain_parameters(t, n, entry);
}

/* Fills in one operator's choice. Communication is what is left of forward and backward seconds
 * after compute; resharding is booked on the operator that reads, so no edge counts twice. */
static xm_status_t fill_choice(const traced_layer_t *t, int n, choice_entry_t *entry)
{
    const ap_layer_node_t *node = &t->problem->node[n];
    const ap_strategy_t *strategy = &node->strategies.items[t->strategies[n]];
    const ap_op_t *op = op_of(t, n);
    ap_parts_t all = ap_layer_strategy_parts(node, t->strategies[n], t->weights);
    ap_stage_choice_t *choice = &entry->choice;

    choice->op = node->op + t->shift;
    choice->compute = node->compute[t->strategies[n]];
    choice->comm = all.forward + all.backward - choice->compute;
    choice->reshard = reshard_seconds(t, n);
    choice->sync = all.sync;
    choice->memory = all.mem_stage;
    choice->act = all.mem_act;
    describe_sums(t, n, entry);
    explain(t, n, entry);
    find_runner_up(t, n, entry);
    return own_specs(entry, op->operand_count + op->result_count, strategy->spec, op->rule.text);
}

/* Traces one layer. `given` has the strategy of every node of the layer; NULL: those behind the
 * plan's cell are traced. Either way *strategies, which the caller frees, is what they are. */
static xm_status_t trace_layer(ap_stage_context_t *context, const ap_stage_plan_t *plan, int layer,
                               const int *given, choice_entry_t *entries, int *count,
                               int **strategies)
{
    const ap_stage_cell_t *cell = &plan->cells[layer - plan->first];
    traced_layer_t t = {.context = context,
                        .weights = &cell->multiplier->weights,
                        .mesh = plan->mesh->cost,
                        .cell = cell};
    xm_status_t status = XM_OK;

    XM_TRY(ap_stage_problem_get(context, plan->mesh, layer, &t.problem));
    t.strategies = calloc((size_t)t.problem->nodes + 1, sizeof(int));
    XM_NEED_MEMORY(t.strategies, "a plan");
    if (given != NULL) {
        memcpy(t.strategies, given, (size_t)t.problem->nodes * sizeof(int));
    } else {
        status = ap_layer_problem_trace(t.problem, t.weights, cell->in, cell->out, t.strategies);
    }
    /* The problem is that of the first layer of this structure. Operators of equal layers come in
     * the same order, so the distance of the first ones is that of all. */
    for (int o = 0; o < ap_graph_ops(context->training) && status == XM_OK; ++o) {
        if (ap_graph_op(context->training, o)->layer == layer) {
            t.shift = o - t.problem->node[0].op;
            break;
        }
    }
    for (int n = 0; n < t.problem->op_nodes && status == XM_OK; ++n) {
        status = fill_choice(&t, n, &entries[(*count)++]);
    }
    *strategies = t.strategies;
    return status;
}

/* Only forward operators have choices; the others share theirs. */
static int forward_ops(const ap_graph_t *graph, int first, int last)
{
    int count = 0;

    for (int o = 0; o < ap_graph_ops(graph); ++o) {
        const ap_op_t *op = ap_graph_op(graph, o);

        count += op->phase == AP_PHASE_FORWARD && op->layer >= first && op->layer <= last;
    }
    return count;
}

static xm_status_t solution_create(int count, ap_stage_solution_t **solution)
{
    ap_stage_solution_t *made = calloc(1, sizeof(*made));

    if (made != NULL) {
        made->entries = calloc((size_t)count + 1, sizeof(*made->entries));
    }
    if (made == NULL || made->entries == NULL) {
        free(made);
        return XM_NO_MEMORY("%d choices", count);
    }
    *solution = made;
    return XM_OK;
}

/* Points the choices at the texts beside them. */
static void point_at_texts(ap_stage_solution_t *solution)
{
    for (int c = 0; c < solution->count; ++c) {
        choice_entry_t *entry = &solution->entries[c];

        entry->choice.specs = entry->specs;
        entry->choice.rule = (const char *)(entry->specs + entry->terms);
        entry->choice.why = entry->why;
        entry->choice.sums = entry->sums;
        entry->choice.runner_up = entry->runner_up;
    }
}

/* An earlier layer of a plan that has the same structure, table and cell, or -1. */
static int find_same(const ap_stage_context_t *context, const ap_stage_plan_t *plan, int layer)
{
    const ap_stage_cell_t *cell = &plan->cells[layer - plan->first];

    for (int earlier = plan->first; earlier < layer; ++earlier) {
        const ap_stage_cell_t *other = &plan->cells[earlier - plan->first];

        if (context->distinct_of[earlier] == context->distinct_of[layer] &&
            other->multiplier == cell->multiplier && other->in == cell->in &&
            other->out == cell->out) {
            return earlier;
        }
    }
    return -1;
}

/* Writes the solution of a finished plan; `strategies` per layer as in trace_layer(), or NULL. On a
 * failure nothing is left allocated. */
static xm_status_t write_solution(ap_stage_context_t *context, const ap_stage_plan_t *plan,
                                  const int *const *strategies, ap_stage_solution_t **solution)
{
    int layers = plan->last - plan->first + 1;
    int **traced; /* per layer: the strategy of every node */
    ap_stage_solution_t *made;
    xm_status_t status = XM_OK;

    XM_TRY(solution_create(forward_ops(context->training, plan->first, plan->last), &made));
    traced = calloc((size_t)layers, sizeof(*traced));
    if (traced == NULL) {
        ap_stage_solution_destroy(made);
        return XM_NO_MEMORY("a plan");
    }
    ap_stage_plan_cost(context, plan, &made->cost);
    for (int i = 0; i < layers && status == XM_OK; ++i) {
        int same = strategies == NULL ? find_same(context, plan, plan->first + i) : -1;
        const int *given = same >= 0 ? traced[same - plan->first] : NULL;

        status =
            trace_layer(context, plan, plan->first + i, strategies != NULL ? strategies[i] : given,
                        made->entries, &made->count, &traced[i]);
    }
    for (int i = 0; i < layers; ++i) {
        free(traced[i]);
    }
    free(traced);
    if (status != XM_OK) {
        ap_stage_solution_destroy(made);
        return status;
    }
    point_at_texts(made);
    *solution = made;
    return XM_OK;
}

/* The plan of a query, traced to its operators. */
xm_status_t ap_stage_solve(ap_stage_context_t *context, const ap_stage_query_t *query,
                           ap_stage_solution_t **solution)
{
    ap_stage_plan_t plan = {0};
    xm_status_t status = ap_stage_plan(context, query, &plan);

    XM_THEN(status, write_solution(context, &plan, NULL, solution));
    ap_stage_plan_free(&plan);
    return status;
}

/* Prices strategies that a search from outside has chosen. The cells carry the specs only; memory
 * has no price here, so the first multiplier step stands for the weights. */
xm_status_t ap_stage_solve_assigned(ap_stage_context_t *context, const ap_stage_query_t *query,
                                    const int *specs, const int *const *strategies,
                                    ap_stage_solution_t **solution)
{
    int layers = query->last - query->first + 1;
    ap_stage_plan_t plan = {.first = query->first, .last = query->last};
    ap_stage_multiplier_t *multiplier;
    xm_status_t status = XM_OK;

    XM_TRY(ap_stage_mesh_get(context, query, &plan.mesh));
    XM_TRY(ap_stage_multiplier_get(context, plan.mesh, 0, 0, (ap_layer_tie_t){0}, &multiplier));
    plan.cells = calloc((size_t)layers, sizeof(*plan.cells));
    XM_NEED_MEMORY(plan.cells, "a plan");
    for (int i = 0; i < layers && status == XM_OK; ++i) {
        const ap_layer_problem_t *problem;

        plan.cells[i] =
            (ap_stage_cell_t){.multiplier = multiplier, .in = specs[i], .out = specs[i + 1]};
        status = ap_stage_problem_get(context, plan.mesh, query->first + i, &problem);
        if (status == XM_OK) {
            ap_parts_t parts = ap_layer_assignment_parts(problem, &multiplier->weights, specs[i],
                                                         specs[i + 1], strategies[i]);

            ap_parts_add(&plan.parts, &parts);
        }
    }
    XM_THEN(status, write_solution(context, &plan, strategies, solution));
    ap_stage_plan_free(&plan);
    return status;
}

/* Joins the solutions of consecutive ranges into one. Costs add up, apart from buffers, of which
 * the largest counts. There is no bound: parts that were best on their own need not be together. */
xm_status_t ap_stage_solution_join(ap_stage_solution_t *const *parts, int count,
                                   ap_stage_solution_t **solution)
{
    const ap_stage_cost_t *last = &parts[count - 1]->cost;
    ap_stage_solution_t *made;
    ap_stage_cost_t *sum;
    int choices = 0;
    xm_status_t status = XM_OK;

    for (int i = 0; i < count; ++i) {
        choices += parts[i]->count;
    }
    XM_TRY(solution_create(choices, &made));
    sum = &made->cost;
    *sum = parts[0]->cost;
    for (int i = 0; i < count; ++i) {
        const ap_stage_cost_t *cost = &parts[i]->cost;

        for (int c = 0; c < parts[i]->count && status == XM_OK; ++c) {
            const choice_entry_t *entry = &parts[i]->entries[c];

            made->entries[made->count] = *entry;
            status = own_specs(&made->entries[made->count++], entry->terms, entry->specs,
                               (const char *)(entry->specs + entry->terms));
        }
        if (i == 0) {
            continue;
        }
        sum->forward += cost->forward;
        sum->backward += cost->backward;
        sum->sync += cost->sync;
        sum->update += cost->update;
        sum->mem_stage += cost->mem_stage;
        sum->mem_act += cost->mem_act;
        sum->mem_work = fmax(sum->mem_work, cost->mem_work);
    }
    if (status != XM_OK) {
        ap_stage_solution_destroy(made);
        return status;
    }
    sum->output = last->output;
    sum->output_tensor = last->output_tensor;
    sum->bound = 0.0;
    point_at_texts(made);
    *solution = made;
    return XM_OK;
}
