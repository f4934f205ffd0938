/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A sharding problem as variables with options, memory buffers and their uses over time.
 * planner/intra_op/network_emit.c turns that into the arrays of a cost function network. The step
 * in between exists because one decision means several things at once: a strategy fixes specs for
 * all neighbours, whether a tensor is kept, computed again or dropped changes its bytes in three
 * stretches of time, and a class of symmetric nodes counts for all of its layers.
 *
 * A buffer is an amount of memory by option of one variable; a use is a buffer over some times. So
 * the solver sees sums of tables over intervals.
 */

#include "planner/intra_op/network.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Activations whose copies could matter have at least this part of the yardstick. Every copy is a
 * variable of its own, so counting all of them would make the problem several times larger. */
static const double copied_part = 1.0 / 32;
/* What is worth computing again: the whole tensors of a class together have at least this part of
 * the yardstick. */
static const double recomputed_part = 1.0 / 1024;

static const ap_op_t *op_of(const ap_shard_network_t *n, int node)
{
    return ap_graph_op(n->problem->params.graph, n->problem->node[node].op);
}

/* Finds which tensors are gradients of parameters, and which are optimizer state. A graph that was
 * differentiated by us says so. Of others (HLO of a training step) the structure tells: a gradient
 * is made in the backward pass and read behind it; state is updated in place and not read before
 * that pass begins. */
static xm_status_t classify(ap_shard_network_t *n)
{
    const ap_graph_t *graph = n->problem->params.graph;
    size_t tensors = (size_t)ap_graph_tensors(graph) + 1;

    n->gradient = xm_arena_get(&n->arena, tensors, sizeof(bool));
    n->state = xm_arena_get(&n->arena, tensors, sizeof(bool));
    XM_NEED_MEMORY(!n->arena.failed, "the network of a sharding problem");
    for (int w = 0; w < n->problem->wires; ++w) {
        const ap_shard_wire_t *wire = &n->problem->wire[w];

        n->state[wire->tensor] = n->state[wire->tensor] || wire->alias;
    }
    for (int w = 0; w < n->problem->wires; ++w) {
        const ap_shard_wire_t *wire = &n->problem->wire[w];
        const ap_tensor_t *tensor = ap_graph_tensor(graph, wire->tensor);
        const ap_op_t *user = op_of(n, wire->to);

        if (wire->alias) {
            continue;
        }
        if (n->problem->node[wire->to].op < n->live_ranges.turn) {
            n->state[wire->tensor] = false;
        }
        if (tensor->producer >= 0) {
            n->state[wire->tensor] = false;
            n->gradient[wire->tensor] =
                tensor->gradient_of >= 0
                    ? ap_graph_tensor(graph, tensor->gradient_of)->kind == AP_TENSOR_PARAMETER
                    : n->gradient[wire->tensor] ||
                          (ap_graph_op(graph, tensor->producer)->phase == AP_PHASE_BACKWARD &&
                           user->phase != AP_PHASE_BACKWARD);
        }
    }
    return XM_OK;
}

/* By how much a strategy's reduce-scatters make a term smaller: before them the whole partial
 * result exists. */
static double scattering(const ap_shard_problem_t *p, const ap_strategy_t *strategy, int term)
{
    double parts = 1;

    for (int c = 0; c < strategy->collective_count; ++c) {
        const ap_collective_t *on = &strategy->collective[c];

        if (on->kind == AP_REDUCE_SCATTER && on->term == term) {
            parts *= ap_cost_mesh_size(p->params.mesh, on->axis);
        }
    }
    return parts;
}

/* What scattering gradients after every micro-batch costs more than once per iteration. The cheap
 * way keeps all of the sum until the end, the expensive one only a part of it. */
static double early_extra(const ap_shard_problem_t *p, int op, const ap_strategy_t *strategy)
{
    const ap_priced_op_t priced =
        ap_price_op(p->params.graph, p->params.mesh, op, p->params.state_bytes);
    double extra = 0;

    for (int c = 0; c < strategy->collective_count; ++c) {
        const ap_collective_t *on = &strategy->collective[c];

        if (on->kind == AP_REDUCE_SCATTER &&
            ap_price_is_parameter_gradient(p->params.graph, priced.op, on->term)) {
            extra += (1 - ap_shard_per_iteration(p)) * ap_price_collective(&priced, on);
        }
    }
    return extra;
}

/* Costs count for all nodes of the class. */
static void add_option(ap_shard_variable_t *v, int strategy, ap_shard_keep_t keep, bool early,
                       double cost)
{
    v->option[v->options++] = (ap_shard_option_t){
        .strategy = strategy, .keep = keep, .early = early, .cost = v->copies * cost};
}

/* Lists the options of a variable: each strategy kept as it is, scattering early, computed again
 * (which costs it twice), or dropped. Dropping costs nothing more, and is allowed only if no
 * operator of the backward part reads the tensor itself. */
static xm_status_t make_options(ap_shard_network_t *n, ap_shard_variable_t *v, bool needed)
{
    const ap_shard_problem_t *p = n->problem;
    const ap_strategy_table_t *set = ap_strategy_table_of(p, v->node);
    int op = p->node[v->node].op;

    /* An operator that can be neither computed again nor dropped has one mode, and needs one buffer
     * in place of three. */
    v->modes = op >= 0 && (n->live_ranges.again[op] || n->live_ranges.spare[op]);
    v->option = xm_arena_take(&n->arena, (size_t)set->count * 3 * sizeof(*v->option));
    XM_NEED_MEMORY(v->option, "the network of a sharding problem");
    for (int s = 0; s < set->count; ++s) {
        double extra = op >= 0 ? early_extra(p, op, &set->strategies.items[s]) : 0;
        double cost = set->costs[s] - ap_shard_reduction_seconds(&n->sharing, p, &n->alike,
                                                                 n->alike.class_of[v->node], s);

        add_option(v, s, AP_SHARD_KEPT, false, cost);
        if (extra > 0) {
            add_option(v, s, AP_SHARD_KEPT, true, cost + extra);
        }
        if (op >= 0 && n->live_ranges.again[op]) {
            add_option(v, s, AP_SHARD_REMATERIALISED, false, 2 * cost);
        }
        if (v->modes && !needed) {
            add_option(v, s, AP_SHARD_DROPPED, false, cost);
        }
    }
    return XM_OK;
}

/* No rows yet, with room for one per result. */
static xm_status_t open_rows(ap_shard_network_t *n, int node, ap_shard_variable_t *v)
{
    int results = n->problem->node[node].op >= 0 ? op_of(n, node)->result_count : 1;

    v->node = node;
    v->rows =
        (ap_shard_rows_t){xm_arena_take(&n->arena, (size_t)results * sizeof(int)), -1, -1, -1, -1};
    for (int r = 0; r < results && v->rows.result != NULL; ++r) {
        v->rows.result[r] = -1;
    }
    return v->rows.result != NULL ? XM_OK : XM_NO_MEMORY("the network of a sharding problem");
}

/* Makes a variable for each class; its first node stands for the class, and `copies` counts the
 * rest. */
static xm_status_t make_variables(ap_shard_network_t *n)
{
    const ap_shard_problem_t *p = n->problem;
    bool *needed = xm_arena_get(&n->arena, (size_t)n->alike.classes, sizeof(bool));
    xm_status_t status = XM_OK;

    n->variable = xm_arena_get(&n->arena, (size_t)n->alike.classes, sizeof(*n->variable));
    XM_NEED_MEMORY(!n->arena.failed, "the network of a sharding problem");
    for (int node = 0; node < p->nodes; ++node) {
        int class = n->alike.class_of[node];
        ap_shard_variable_t *v = &n->variable[class];

        if (v->copies++ == 0) {
            status = open_rows(n, node, v);
            if (status != XM_OK) {
                break;
            }
        }
        /* One node of a class that is needed makes the class needed. */
        needed[class] = needed[class] || (p->node[node].op >= 0 &&
                                          n->live_ranges.of[op_of(n, node)->results[0]].needed);
    }
    for (int c = 0; c < n->alike.classes && status == XM_OK; ++c) {
        status = make_options(n, &n->variable[c], needed[c]);
    }
    return status;
}

/* Adds a buffer of zeroes. Rows of the array move when it grows, so callers keep numbers and not
 * pointers. */
xm_status_t ap_shard_buffer_add(ap_shard_network_t *n, int variable, int options,
                                ap_shard_part_t part, int *row)
{
    double *bytes = xm_arena_get(&n->arena, (size_t)options, sizeof(*bytes));

    if (bytes == NULL || !XM_ARRAY_ROOM(n->row, n->row_capacity, n->rows)) {
        return XM_NO_MEMORY("the network of a sharding problem");
    }
    *row = n->rows;
    n->row[n->rows++] = (ap_shard_buffer_t){.variable = variable, .part = part, .bytes = bytes};
    return XM_OK;
}

/* Adds a use of a buffer; an empty stretch of time, or no buffer, is none. */
xm_status_t ap_shard_use_add(ap_shard_network_t *n, int row, int first, int end)
{
    if (row < 0 || first >= end) {
        return XM_OK;
    }
    XM_NEED_MEMORY(XM_ARRAY_ROOM(n->use, n->use_capacity, n->uses),
                   "the network of a sharding problem");
    n->use[n->uses++] = (ap_shard_use_t){.row = row, .first = first, .end = end};
    return XM_OK;
}

/* An input or parameter has its local bytes under each spec. What only the optimizer
 * reads is reported as state. */
static xm_status_t make_tensor_row(ap_shard_network_t *n, int class)
{
    const ap_shard_problem_t *p = n->problem;
    ap_shard_variable_t *v = &n->variable[class];
    const ap_strategy_table_t *set = ap_strategy_table_of(p, v->node);
    int tensor = p->node[v->node].tensor;
    ap_shard_part_t part = ap_graph_tensor(p->params.graph, tensor)->kind == AP_TENSOR_INPUT
                               ? AP_SHARD_INPUTS
                           : n->state[tensor] ? AP_SHARD_STATE
                                              : AP_SHARD_PARAMETERS;
    xm_status_t status = ap_shard_buffer_add(n, class, v->options, part, &v->rows.result[0]);

    for (int k = 0; k < v->options && status == XM_OK; ++k) {
        n->row[v->rows.result[0]].bytes[k] =
            ap_shard_local_bytes(p, tensor, set->specs[v->option[k].strategy]);
    }
    return status;
}

/* Makes the buffers of a result: until the gap, during it, and after it. A kept tensor is in all
 * three, one that is computed again not in the second, a dropped one only in the first. Sums of
 * gradients over micro-batches are whole until they are scattered, unless that is done early. */
static xm_status_t make_result_rows(ap_shard_network_t *n, int class, int r)
{
    const ap_shard_problem_t *p = n->problem;
    ap_shard_variable_t *v = &n->variable[class];
    const ap_strategy_table_t *set = ap_strategy_table_of(p, v->node);
    const ap_op_t *op = op_of(n, v->node);
    int term = op->operand_count + r, tensor = op->results[r];
    bool sums =
        p->params.micro_batches > 1 && ap_price_is_parameter_gradient(p->params.graph, op, term);
    ap_shard_part_t part = n->gradient[tensor] ? AP_SHARD_GRADIENTS : AP_SHARD_ACTIVATIONS;
    xm_status_t status;

    if (ap_graph_tensor(p->params.graph, tensor)->alias_of >= 0) {
        return XM_OK; /* written where the old value was */
    }
    status = ap_shard_buffer_add(n, class, v->options, part, &v->rows.result[r]);
    if (status == XM_OK && v->modes) {
        status = ap_shard_buffer_add(n, class, v->options, part, &v->rows.kept);
    }
    if (status == XM_OK && v->modes) {
        status = ap_shard_buffer_add(n, class, v->options, part, &v->rows.late);
    }
    for (int k = 0; k < v->options && status == XM_OK; ++k) {
        const ap_shard_option_t *option = &v->option[k];
        const ap_strategy_t *strategy = &set->strategies.items[option->strategy];
        double bytes = ap_shard_local_bytes(p, tensor, strategy->spec[term]);

        if (sums && !option->early) {
            bytes *= scattering(p, strategy, term);
        }
        n->row[v->rows.result[r]].bytes[k] = bytes;
        if (v->modes) {
            n->row[v->rows.kept].bytes[k] = option->keep == AP_SHARD_KEPT ? bytes : 0;
            n->row[v->rows.late].bytes[k] = option->keep != AP_SHARD_DROPPED ? bytes : 0;
        }
    }
    return status;
}

/* Makes the other buffers of an operator: partial results before they are scattered, which exist
 * while the operator runs, and the optimizer's state where the graph does not hold it. The state
 * lies where the update runs, so a sharded update shards it. */
static xm_status_t make_other_rows(ap_shard_network_t *n, int class)
{
    const ap_shard_problem_t *p = n->problem;
    const ap_graph_t *graph = p->params.graph;
    ap_shard_variable_t *v = &n->variable[class];
    const ap_strategy_table_t *set = ap_strategy_table_of(p, v->node);
    const ap_op_t *op = op_of(n, v->node);
    int old = ap_graph_tensor(graph, op->results[0])->alias_of;
    bool state = op->phase == AP_PHASE_UPDATE && old >= 0 && p->params.state_bytes > 0;
    double largest = 0;
    xm_status_t status =
        ap_shard_buffer_add(n, class, v->options, AP_SHARD_TEMPORARIES, &v->rows.passing);

    if (status == XM_OK && state) {
        status = ap_shard_buffer_add(n, class, v->options, AP_SHARD_STATE, &v->rows.state);
    }
    for (int k = 0; k < v->options && status == XM_OK; ++k) {
        const ap_strategy_t *strategy = &set->strategies.items[v->option[k].strategy];
        double *passing = &n->row[v->rows.passing].bytes[k];

        for (int r = 0; r < op->result_count; ++r) {
            int term = op->operand_count + r;

            /* The scattered result has a buffer already; this is the rest of the whole. */
            *passing += (scattering(p, strategy, term) - 1) *
                        ap_shard_local_bytes(p, op->results[r], strategy->spec[term]);
        }
        largest = fmax(largest, *passing);
        if (state) {
            n->row[v->rows.state].bytes[k] =
                p->params.state_bytes / ap_dtype_bytes(ap_graph_tensor(graph, old)->dtype) *
                ap_shard_local_bytes(p, old, strategy->spec[op->operand_count]);
        }
    }
    if (status == XM_OK && largest <= 0) { /* made last, but for the state's buffer */
        v->rows.passing = -1;
    }
    return status;
}

/* Inputs and parameters have one buffer; operators have one set per result and those of their
 * own. */
static xm_status_t make_rows(ap_shard_network_t *n)
{
    xm_status_t status = XM_OK;

    for (int c = 0; c < n->alike.classes && status == XM_OK; ++c) {
        int node = n->variable[c].node;

        if (n->problem->node[node].op < 0) {
            status = make_tensor_row(n, c);
            continue;
        }
        for (int r = 0; r < op_of(n, node)->result_count && status == XM_OK; ++r) {
            status = make_result_rows(n, c, r);
        }
        XM_THEN(status, make_other_rows(n, c));
    }
    return status;
}

/* Uses the buffers of a node over its own times. All nodes of a class share buffers, each with uses
 * of its own, so the class' choice counts in every layer. */
static xm_status_t use_node(ap_shard_network_t *n, int node)
{
    const ap_shard_problem_t *p = n->problem;
    const ap_shard_variable_t *v = &n->variable[n->alike.class_of[node]];
    int op = p->node[node].op, ops = ap_graph_ops(p->params.graph);
    xm_status_t status;

    if (op < 0) {
        const ap_shard_live_range_t *live_range = &n->live_ranges.of[p->node[node].tensor];

        return ap_shard_use_add(n, v->rows.result[0], live_range->begin, live_range->end);
    }
    status = ap_shard_use_add(n, v->rows.passing, op, op + 1);
    XM_THEN(status, ap_shard_use_add(n, v->rows.state, 0, ops));
    for (int r = 0; r < op_of(n, node)->result_count && status == XM_OK; ++r) {
        const ap_shard_live_range_t *live_range = &n->live_ranges.of[op_of(n, node)->results[r]];

        status = ap_shard_use_add(n, v->rows.result[r], live_range->begin,
                                  v->modes ? live_range->pause : live_range->end);
        if (v->modes && status == XM_OK) {
            status = ap_shard_use_add(n, v->rows.kept, live_range->pause, live_range->resume);
        }
        if (v->modes && status == XM_OK) {
            status = ap_shard_use_add(n, v->rows.late, live_range->resume, live_range->end);
        }
    }
    return status;
}

/* Both ends can be computed again together only if they are in one segment, as segments are
 * computed again one after the other. */
bool ap_shard_same_segment(const ap_shard_network_t *n, const ap_shard_wire_t *wire)
{
    int from = n->problem->node[wire->from].op, to = n->problem->node[wire->to].op;

    return from >= 0 && from < n->live_ranges.turn && to < n->live_ranges.turn &&
           n->live_ranges.segment[from] == n->live_ranges.segment[to];
}

/* A parameter, or a large tensor, that is read in another spec needs memory for a copy while its
 * reader runs. Under a limit smaller ones are not counted: see copied_part. */
bool ap_shard_has_copies(const ap_shard_network_t *n, const ap_shard_wire_t *wire)
{
    const ap_graph_t *graph = n->problem->params.graph;

    return !wire->alias && (ap_graph_tensor(graph, wire->tensor)->kind == AP_TENSOR_PARAMETER ||
                            ap_graph_tensor_bytes(graph, wire->tensor) >= n->copied_bytes);
}

/* Builds the network. Without a limit there is no point in computing anything again, so no operator
 * is a candidate then. */
xm_status_t ap_shard_network_create(const ap_shard_problem_t *problem,
                                    const ap_shard_options_t *options, bool limited,
                                    ap_shard_network_t **network)
{
    ap_shard_network_t *made = calloc(1, sizeof(*made));
    double yardstick = options->yardstick > 0 ? options->yardstick : options->memory_limit;
    xm_status_t status;

    XM_NEED_MEMORY(made, "the network of a sharding problem");
    made->problem = problem;
    made->copied_bytes = options->memory_limit > 0 ? copied_part * yardstick : 0;
    status = ap_shard_symmetric_create(problem, !options->every_layer, &made->arena, &made->alike);
    XM_THEN(status, ap_shard_live_ranges_create(
                        problem, &made->alike,
                        limited && options->recompute ? recomputed_part * yardstick : HUGE_VAL,
                        &made->arena, &made->live_ranges));
    if (status == XM_OK) {
        /* Alpa charges every reader. */
        bool share = !ap_cost_model_is_alpa(ap_cost_mesh_model(problem->params.mesh));

        status = ap_shard_sharing_create(problem, &made->alike, share, limited,
                                         made->live_ranges.turn, &made->arena, &made->sharing);
    }
    XM_THEN(status, classify(made));
    XM_THEN(status, make_variables(made));
    XM_THEN(status, make_rows(made));
    for (int node = 0; node < problem->nodes && status == XM_OK; ++node) {
        status = use_node(made, node);
    }
    XM_THEN(status, ap_shard_network_emit(made, limited ? options->memory_limit : 0));
    if (status != XM_OK) {
        ap_shard_network_destroy(made);
        return status;
    }
    *network = made;
    return XM_OK;
}

/* The option of a node, and the spec in which a term of it is. */
static const ap_shard_option_t *option_of(const ap_shard_network_t *n, const int *choice, int node)
{
    int class = n->alike.class_of[node];

    return &n->variable[class].option[choice[class]];
}

static ap_spec_t spec_of(const ap_shard_network_t *n, const int *choice, int node, int term)
{
    return ap_shard_spec_at(ap_strategy_table_of(n->problem, node),
                            option_of(n, choice, node)->strategy, term);
}

/* Adds up the memory of a choice at every operator from the buffers, independently of the solver's
 * own usage. Copies are added by comparing specs edge by edge, as they have no option of their own
 * in a choice of classes. */
void ap_shard_network_memory(const ap_shard_network_t *n, const int *choice,
                             ap_shard_memory_t *memory)
{
    int ops = ap_graph_ops(n->problem->params.graph);

    memset(memory, 0, ((size_t)ops + 1) * sizeof(*memory));
    for (int u = 0; u < n->uses; ++u) { /* changes first, then their sums */
        const ap_shard_buffer_t *row = &n->row[n->use[u].row];
        double bytes = row->variable < n->alike.classes ? row->bytes[choice[row->variable]] : 0;

        memory[n->use[u].first].part[row->part] += bytes;
        memory[n->use[u].end].part[row->part] -= bytes;
    }
    for (int o = 1; o < ops; ++o) {
        for (int part = 0; part < AP_SHARD_PARTS; ++part) {
            memory[o].part[part] += memory[o - 1].part[part];
        }
    }
    for (int w = 0; w < n->problem->wires; ++w) {
        const ap_shard_wire_t *wire = &n->problem->wire[w];

        ap_spec_t made = spec_of(n, choice, wire->from, wire->from_term),
                  used = spec_of(n, choice, wire->to, wire->to_term);
        double bytes = ap_shard_local_bytes(n->problem, wire->tensor, used);
        /* A reader cuts a slice out itself. Under a limit the solver counts it, and so must this.
         */
        bool cut =
            n->copied_bytes <= 0 && bytes < ap_shard_local_bytes(n->problem, wire->tensor, made);
        int op = n->problem->node[wire->to].op, g = n->sharing.group_of[w];
        int next = g < 0 ? -1 : ap_shard_next_reader(&n->sharing, w);

        if (!ap_shard_has_copies(n, wire) || cut) {
            continue;
        }
        if (made != used) {
            memory[op].part[AP_SHARD_TEMPORARIES] += bytes;
        }
        /* A copy that serves a later reader as well waits for it. */
        for (int o = op + 1; next >= 0 && o < n->problem->node[n->problem->wire[next].to].op; ++o) {
            memory[o].part[AP_SHARD_TEMPORARIES] +=
                n->sharing.group[g].copy[choice[n->alike.classes + n->copies + g]];
        }
    }
}

/* The objective of a choice in the units of the cost model, without the rounding of the network. An
 * operator that is computed again reads its operands again, so their resharding is paid twice. */
double ap_shard_network_cost(const ap_shard_network_t *n, const int *choice)
{
    double cost = 0;

    for (int c = 0; c < n->alike.classes; ++c) {
        cost += n->variable[c].option[choice[c]].cost;
    }
    for (int g = 0; g < n->sharing.groups; ++g) {
        const ap_shard_shared_t *group = &n->sharing.group[g];
        int value = choice[n->alike.classes + n->copies + g];

        cost += group->count * group->own[value];
        for (int e = 0; e < group->ends; ++e) {
            cost += group->count *
                    ap_shard_end_cost(group, e, option_of(n, choice, group->end[e].node), value);
        }
    }
    for (int w = 0; w < n->problem->wires; ++w) {
        const ap_shard_wire_t *wire = &n->problem->wire[w];

        if (n->sharing.group_of[w] >= 0) {
            continue;
        }
        bool twice = option_of(n, choice, wire->to)->keep == AP_SHARD_REMATERIALISED;

        cost +=
            (twice ? 2 : 1) * ap_shard_wire_cost(n->problem, wire,
                                                 spec_of(n, choice, wire->from, wire->from_term),
                                                 spec_of(n, choice, wire->to, wire->to_term));
    }
    return cost;
}

void ap_shard_network_destroy(ap_shard_network_t *network)
{
    if (network == NULL) {
        return;
    }
    free(network->row);
    free(network->use);
    xm_arena_clear(&network->arena);
    ap_cfn_destroy(network->cfn);
    free(network);
}
