/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What one strategy of a forward operator costs, with its backward operators and parameters. A
 * forward operator, its backward operators and its parameters share one assignment of axes to
 * factors. This is what makes the problem small: a node per forward operator, a quarter of what
 * free backward operators would take. It costs little, since forward and backward operators of a
 * good plan mostly agree.
 *
 * Costs are kept in parts (seconds forward and backward, once per iteration, bytes by kind),
 * because weights differ: memory has many prices, and recomputation counts the forward part twice.
 */

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "planner/stage/layer_problem.h"

/* The one scalar that searches compare, from parts and weights. */
double ap_parts_cost(const ap_parts_t *parts, const ap_layer_weights_t *weights)
{
    return weights->forward * parts->forward + parts->backward +
           weights->per_iteration * (parts->sync + parts->update) +
           weights->stage_byte * parts->mem_stage + weights->act_byte * parts->mem_act;
}

/* Buffers are used one after the other, so the largest counts; all else adds up. */
void ap_parts_add(ap_parts_t *sum, const ap_parts_t *parts)
{
    sum->forward += parts->forward;
    sum->backward += parts->backward;
    sum->sync += parts->sync;
    sum->update += parts->update;
    sum->mem_stage += parts->mem_stage;
    sum->mem_act += parts->mem_act;
    sum->mem_layer += parts->mem_layer;
    sum->mem_work = fmax(sum->mem_work, parts->mem_work);
}

/* Prices the forward operator: compute on the local part, then the collectives of its partial
 * results. What a collective does forwards, its opposite does backwards to the gradient, if there
 * is one: a reduce-scatter is followed by an all-gather, a permute by one in the other direction;
 * an all-reduce leaves a whole result, whose gradient is whole as well. */
static void price_forward(const ap_priced_op_t *op, const ap_strategy_t *strategy, bool learns,
                          ap_parts_t *parts, double *compute)
{
    *compute = ap_price_compute(op, strategy);
    parts->forward += *compute;
    for (int c = 0; c < strategy->collective_count; ++c) {
        ap_collective_t on = strategy->collective[c];

        *(ap_price_is_once(op->graph, op->op, on.term) ? &parts->sync : &parts->forward) +=
            ap_price_collective(op, &on);
        on.kind = on.kind == AP_REDUCE_SCATTER ? AP_ALL_GATHER : on.kind;
        parts->backward += learns && on.kind != AP_ALL_REDUCE ? ap_price_collective(op, &on) : 0;
    }
}

/* A backward operator of a node, with room for the strategy that it is priced under. */
typedef struct backward_op {
    ap_priced_op_t op;
    ap_strategy_t carried;
    unsigned *axes; /* per factor of its rule */
    bool *passing;  /* per term */
} backward_op_t;

/* Carries the assignment of a forward strategy over to a backward operator, letter by letter:
 * training.c makes backward rules over the factors of the forward rule. False: the axes do not
 * divide there. */
static bool carry_over(const ap_priced_op_t *forward, const ap_strategy_t *strategy,
                       const backward_op_t *backward, ap_strategy_t *carried)
{
    const ap_sharding_rule_t *rule = &backward->op.op->rule;

    for (int f = 0; f < rule->factors; ++f) {
        int same = ap_sharding_rule_factor(&forward->op->rule, rule->factor[f].letter,
                                           rule->factor[f].number);

        backward->axes[f] = same < 0 ? 0 : strategy->axes[same];
    }
    return ap_strategy_assign(&backward->op.site, backward->axes, carried);
}

/* The three ways to keep one parameter, whose gradient is partial over the axes `partial`:
 * replicated; with its optimizer state sharded over those axes (ZeRO-1); with the weight sharded as
 * well and gathered in every pass (ZeRO-3). */
static void parameter_modes(const ap_priced_op_t *op, int operand, const ap_strategy_t *strategy,
                            unsigned partial, bool trained, ap_parts_t *modes)
{
    const ap_price_parameter_t price =
        ap_price_parameter(op, operand, strategy->spec[operand], partial);
    double weight = ap_strategy_local_bytes(&op->site, operand, strategy->spec[operand]);
    double state = weight / ap_strategy_element_bytes(&op->site, operand) * op->state_bytes;
    double shards = ap_cost_mesh_devices(op->site.mesh, partial);

    memset(modes, 0, AP_PARAMETER_MODES * sizeof(*modes));
    modes[AP_PARAMETER_REPLICATED].sync = price.reduce;
    modes[AP_PARAMETER_REPLICATED].update = price.update;
    /* Weight and gradient in the weight's own type, and the optimizer's state. */
    modes[AP_PARAMETER_REPLICATED].mem_stage = 2 * weight + state;
    modes[AP_PARAMETER_STATE_SHARDED].sync = price.scatter + price.gather;
    modes[AP_PARAMETER_STATE_SHARDED].update = price.update_part;
    modes[AP_PARAMETER_STATE_SHARDED].mem_stage = 2 * weight + state / shards;
    modes[AP_PARAMETER_SHARDED].sync = price.scatter;
    /* An update of a part touches a part of the state, which is what makes sharded state cheaper
     * even where memory is no matter. */
    modes[AP_PARAMETER_SHARDED].update = price.update_part;
    modes[AP_PARAMETER_SHARDED].mem_stage = weight + (weight + state) / shards;
    /* The gathered weight exists while one operator runs. */
    modes[AP_PARAMETER_SHARDED].mem_work = weight;
    modes[AP_PARAMETER_SHARDED].forward = price.gather;
    modes[AP_PARAMETER_SHARDED].backward = price.gather;
    for (int m = 0; m < AP_PARAMETER_MODES; ++m) {
        if (!trained) {
            modes[m] = (ap_parts_t){.mem_stage = weight}; /* the weight is all that there is */
        }
        /* What is kept must lie as the model's author demands. */
        if (!ap_strategy_meets(op->site.mesh, ap_graph_tensor(op->graph, op->op->operands[operand]),
                               strategy->spec[operand], m == AP_PARAMETER_SHARDED ? partial : 0)) {
            modes[m].forward += AP_COST_INFINITE;
        }
    }
}

/* The first forward operator whose backward operators read `tensor`; -1 when none does. A kept
 * activation is booked there, once, though several backward operators may read it. If its producer
 * is among them, the producer counts, as it has the tensor anyway. */
static int first_saver(const ap_graph_t *graph, const ap_layer_ops_t *ops, int tensor)
{
    int producer = ap_graph_tensor(graph, tensor)->producer, first = -1;

    for (int b = 0; b < ops->count; ++b) {
        const ap_op_t *op = ap_graph_op(graph, ops->ids[b]);

        for (int i = 0; i < op->operand_count && op->forward >= 0; ++i) {
            if (op->operands[i] != tensor) {
                continue;
            }
            if (op->forward == producer) {
                return producer;
            }
            first = first < 0 || op->forward < first ? op->forward : first;
        }
    }
    return first;
}

/* Whether a node keeps the tensor of a term of its operator for the backward pass. Parameters are
 * there in any case. */
static bool saves_term(const ap_graph_t *graph, const ap_layer_ops_t *ops, int id, int term)
{
    int tensor = ap_op_tensor(ap_graph_op(graph, id), term);

    return ap_graph_tensor(graph, tensor)->kind != AP_TENSOR_PARAMETER &&
           first_saver(graph, ops, tensor) == id;
}

/* Whether the tensor of a term comes and goes: neither kept nor in the state of parameters, which
 * are counted there. */
static bool passes_term(const ap_graph_t *graph, const ap_layer_ops_t *ops, int id, int term)
{
    const ap_op_t *op = ap_graph_op(graph, id);
    const ap_tensor_t *tensor = ap_graph_tensor(graph, ap_op_tensor(op, term));
    bool forward =
        tensor->producer < 0 || ap_graph_op(graph, tensor->producer)->phase == AP_PHASE_FORWARD;

    return tensor->kind != AP_TENSOR_PARAMETER &&
           !ap_price_is_parameter_gradient(graph, op, term) &&
           (!forward || first_saver(graph, ops, ap_op_tensor(op, term)) < 0);
}

/* The bytes of those terms that `which` says. */
static double bytes_of_terms(const ap_priced_op_t *op, const ap_strategy_t *strategy,
                             const bool *which)
{
    double bytes = 0;

    for (int t = 0; t < op->op->operand_count + op->op->result_count; ++t) {
        bytes += which[t] ? ap_strategy_local_bytes(&op->site, t, strategy->spec[t]) : 0;
    }
    return bytes;
}

/* A tensor with several readers gets several gradients, which must be added; these sums are
 * operators of no forward operator. */
int ap_layer_gradient_sums(const ap_graph_t *training, const ap_layer_ops_t *ops, int tensor)
{
    int sums = 0;

    for (int o = 0; o < ops->count; ++o) {
        sums += ap_gradient_sum_of(training, ops->ids[o]) == tensor;
    }
    return sums;
}

/* What does not depend on the strategy, found once per node. */
typedef struct node_facts {
    xm_arena_t arena; /* all arrays */
    ap_priced_op_t forward;
    int backward_count;
    backward_op_t *backward;
    const bool *learning;  /* per tensor: it has a gradient */
    bool learns;           /* the results have */
    bool *saved, *passing; /* per term */
    int *sums;             /* per result: of gradients, in this layer */
    unsigned *partial; /* per operand: axes that its gradient is partial over, of one strategy */
    ap_optimizer_t optimizer;
    bool rematerialize;
} node_facts_t;

static void facts_close(node_facts_t *facts)
{
    for (int b = 0; b < facts->backward_count; ++b) {
        ap_strategy_release(&facts->backward[b].carried);
    }
    xm_arena_clear(&facts->arena);
}

static xm_status_t add_backward(node_facts_t *facts, const ap_layer_ops_t *ops, int id)
{
    const ap_op_t *op = ap_graph_op(facts->forward.graph, id);
    const ap_sharding_rule_t *rule = &op->rule;
    const int terms = op->operand_count + op->result_count;
    backward_op_t *made = &facts->backward[facts->backward_count];

    XM_TRY(ap_strategy_open(rule, &made->carried));
    made->op = ap_price_op(facts->forward.graph, facts->forward.site.mesh, id, 0);
    made->axes = xm_arena_get(&facts->arena, (size_t)rule->factors, sizeof(*made->axes));
    made->passing = xm_arena_get(&facts->arena, (size_t)terms, sizeof(*made->passing));
    ++facts->backward_count;
    XM_NEED_MEMORY(!facts->arena.failed, "an operator's costs");
    for (int t = 0; t < terms; ++t) {
        made->passing[t] = passes_term(facts->forward.graph, ops, id, t);
    }
    return XM_OK;
}

/* Fills in what is known of the operator before any strategy is. */
static xm_status_t facts_open(const ap_graph_t *training, const ap_layer_ops_t *ops,
                              const ap_cost_mesh_t *mesh, int id, node_facts_t *facts)
{
    const ap_op_t *op = ap_graph_op(training, id);
    const size_t terms = (size_t)op->operand_count + (size_t)op->result_count;
    int backward = 0;

    for (int b = 0; b < ops->count; ++b) {
        backward += ap_graph_op(training, ops->ids[b])->forward == id;
    }
    facts->forward = ap_price_op(training, mesh, id, 0);
    facts->learning = ops->learns;
    facts->backward = xm_arena_get(&facts->arena, (size_t)backward, sizeof(*facts->backward));
    facts->saved = xm_arena_get(&facts->arena, terms, sizeof(*facts->saved));
    facts->passing = xm_arena_get(&facts->arena, terms, sizeof(*facts->passing));
    facts->sums = xm_arena_get(&facts->arena, terms, sizeof(*facts->sums));
    facts->partial = xm_arena_get(&facts->arena, terms, sizeof(*facts->partial));
    XM_NEED_MEMORY(!facts->arena.failed, "an operator's costs");
    for (int t = 0; t < (int)terms; ++t) {
        facts->saved[t] = saves_term(training, ops, id, t);
        facts->passing[t] = passes_term(training, ops, id, t);
    }
    for (int r = 0; r < op->result_count; ++r) {
        facts->learns = facts->learns || ops->learns[op->results[r]];
        facts->sums[r] = ap_layer_gradient_sums(training, ops, op->results[r]);
    }
    for (int b = 0; b < ops->count; ++b) {
        if (ap_graph_op(training, ops->ids[b])->forward == id) {
            XM_TRY(add_backward(facts, ops, ops->ids[b]));
        }
    }
    return XM_OK;
}

/* Prices the backward operators under the same assignment, and collects over which axes the
 * gradients of operands stay partial. */
static void price_backward(const node_facts_t *facts, ap_layer_node_t *node, int s)
{
    const ap_strategy_t *strategy = &node->strategies.items[s];
    ap_parts_t *parts = &node->base[s];

    for (int b = 0; b < facts->backward_count; ++b) {
        const ap_priced_op_t *backward = &facts->backward[b].op;
        ap_strategy_t *carried = &facts->backward[b].carried;
        double seconds;

        /* A strategy whose axes do not divide a backward operator is no strategy. */
        if (!carry_over(&facts->forward, strategy, &facts->backward[b], carried)) {
            parts->backward += AP_COST_INFINITE;
            continue;
        }
        seconds = ap_price_compute(backward, carried);
        parts->backward += seconds;
        node->compute[s] += seconds;
        parts->mem_work =
            fmax(parts->mem_work, bytes_of_terms(backward, carried, facts->backward[b].passing));
        for (int r = 0; r < backward->op->result_count; ++r) {
            /* Partial gradients of operands: the edges must reduce them, and so must the
             * parameters. */
            facts->partial[backward->op->differentiates[r]] |= carried->partial[r];
        }
    }
    for (int r = 0; r < facts->forward.op->result_count; ++r) {
        double seconds =
            facts->sums[r] == 0
                ? 0
                : facts->sums[r] *
                      ap_price_gradient_sum(facts->forward.graph, facts->forward.site.mesh,
                                            facts->forward.op->results[r],
                                            strategy->spec[facts->forward.op->operand_count + r]);

        parts->backward += seconds;
        node->compute[s] += seconds;
    }
}

/* Prices one strategy: its operators, what it keeps, its parameters, and its interface. With
 * recomputation, what would be kept lives only while its own layer runs backward. */
static void price_strategy(const ap_graph_t *graph, const node_facts_t *facts,
                           ap_layer_node_t *node, int s)
{
    const ap_op_t *op = facts->forward.op;
    const ap_strategy_t *strategy = &node->strategies.items[s];
    const int terms = op->operand_count + op->result_count;
    unsigned *partial = facts->partial;

    price_forward(&facts->forward, strategy, facts->learns, &node->base[s], &node->compute[s]);
    memset(partial, 0, (size_t)terms * sizeof(*partial));
    node->base[s].mem_work = bytes_of_terms(&facts->forward, strategy, facts->passing);
    price_backward(facts, node, s);
    *(facts->rematerialize ? &node->base[s].mem_layer : &node->base[s].mem_act) +=
        bytes_of_terms(&facts->forward, strategy, facts->saved);
    for (int p = 0; p < node->parameters; ++p) {
        int operand = node->parameter_operand[p];
        bool trained = facts->learning[op->operands[operand]];
        ap_priced_op_t with = facts->forward;

        node->partial[s * node->parameters + p] = partial[operand];
        with.state_bytes = ap_training_state_bytes(
            facts->optimizer, ap_graph_tensor(graph, op->operands[operand])->dtype);
        if (p == node->tied && trained) {
            node->added[s] = (ap_parts_t){
                .backward = ap_price_gradient_sum(graph, with.site.mesh, op->operands[operand],
                                                  strategy->spec[operand]),
                .mem_stage = ap_strategy_local_bytes(&with.site, operand, strategy->spec[operand])};
        }
        parameter_modes(&with, operand, strategy, partial[operand], trained,
                        &node->modes[(s * node->parameters + p) * AP_PARAMETER_MODES]);
    }
    for (int t = 0; t < terms; ++t) {
        bool operand = t < op->operand_count;

        if (operand && ap_graph_tensor(graph, op->operands[t])->kind != AP_TENSOR_ACTIVATION) {
            continue;
        }
        /* Axes fill 4 bits of a byte, so the partial axes of an operand's gradient fit beside those
         * of dimension 0 (ap_layer_seen_partial()). Neighbours see both: where the tensor is wanted
         * and what its gradient still lacks. */
        node->interface[s * terms + t] =
            strategy->spec[t] | (operand ? (uint64_t)partial[t] << 4 : (uint64_t)0);
    }
}

/* A mode outside the space becomes too expensive to be chosen; taking it out of the table would
 * move the others. */
static void forbid_modes(unsigned allowed, ap_layer_node_t *node)
{
    for (int i = 0; i < node->strategies.count * node->parameters; ++i) {
        for (int m = 0; m < AP_PARAMETER_MODES; ++m) {
            node->modes[i * AP_PARAMETER_MODES + m].forward +=
                (allowed >> m & 1U) != 0 ? 0.0 : AP_COST_INFINITE;
        }
    }
}

/* Prices all strategies of a node. Where the space, or what the model's author demands, leaves none
 * at all, the node keeps its list, but
 * every strategy gets the forbidding cost; so the stage has no plan, without a special case in the
 * solver. */
xm_status_t ap_layer_node_price(const ap_graph_t *training, const ap_layer_ops_t *ops,
                                const ap_cost_mesh_t *mesh, ap_optimizer_t optimizer,
                                bool rematerialize, const ap_layer_space_t *space,
                                xm_arena_t *arena, ap_layer_node_t *node)
{
    node_facts_t facts = {.optimizer = optimizer, .rematerialize = rematerialize};
    const ap_strategy_options_t options = {.scatter = true};
    const ap_op_t *op = ap_graph_op(training, node->op);
    bool possible;
    size_t count;
    xm_status_t status = facts_open(training, ops, mesh, node->op, &facts);

    node->parameter_operand =
        xm_arena_get(arena, (size_t)op->operand_count, sizeof(*node->parameter_operand));
    if (status == XM_OK && node->parameter_operand == NULL) {
        status = XM_NO_MEMORY("an operator's costs");
    }
    node->tied = -1;
    for (int o = 0; o < op->operand_count && status == XM_OK; ++o) {
        if (ap_graph_tensor(training, op->operands[o])->kind == AP_TENSOR_PARAMETER) {
            node->tied = op->operands[o] == ops->tied ? node->parameters : node->tied;
            node->parameter_operand[node->parameters++] = o;
        }
    }
    XM_THEN(status, ap_strategy_enumerate(&facts.forward.site, &options, &node->strategies));
    if (status != XM_OK) {
        facts_close(&facts);
        return status;
    }
    possible = ap_strategy_list_demand(training, op, mesh, &node->strategies);
    possible = (space == NULL || ap_space_filter(space->space, &op->rule, &space->roles[node->op],
                                                 mesh, &node->strategies)) &&
               possible;
    count = (size_t)node->strategies.count;
    node->terms = op->operand_count + op->result_count;
    node->base = xm_arena_get(arena, count, sizeof(*node->base));
    node->compute = xm_arena_get(arena, count, sizeof(*node->compute));
    node->partial = xm_arena_get(arena, count * (size_t)node->parameters, sizeof(*node->partial));
    node->modes = xm_arena_get(arena, count * (size_t)node->parameters * AP_PARAMETER_MODES,
                               sizeof(*node->modes));
    node->interface = xm_arena_get(arena, count * (size_t)node->terms, sizeof(*node->interface));
    node->added = xm_arena_get(arena, count, sizeof(*node->added));
    if (arena->failed) {
        facts_close(&facts);
        return XM_NO_MEMORY("%zu strategies", count);
    }
    for (int s = 0; s < node->strategies.count; ++s) {
        price_strategy(training, &facts, node, s);
        node->base[s].forward += possible ? 0.0 : AP_COST_INFINITE;
    }
    if (space != NULL) {
        forbid_modes(space->space->parameter_modes, node);
    }
    facts_close(&facts);
    return XM_OK;
}

/* The cheapest mode of a parameter under the given weights. It depends on nothing but the node's
 * strategy, so it is chosen here and not by the search; a higher price on memory turns to sharded
 * state by itself. */
int ap_layer_parameter_mode(const ap_layer_node_t *node, int strategy, int parameter,
                            const ap_layer_weights_t *weights)
{
    const ap_parts_t *modes =
        &node->modes[(strategy * node->parameters + parameter) * AP_PARAMETER_MODES];
    int best = 0;

    for (int m = 1; m < AP_PARAMETER_MODES; ++m) {
        if (ap_parts_cost(&modes[m], weights) < ap_parts_cost(&modes[best], weights)) {
            best = m;
        }
    }
    return best;
}

uint64_t ap_layer_tied_view(const ap_layer_node_t *node, int strategy)
{
    unsigned partial = node->partial[strategy * node->parameters + node->tied];

    return node->strategies.items[strategy].spec[node->parameter_operand[node->tied]] |
           (uint64_t)partial << 4;
}

/* What of a parameter is left for one of its readers, all of which have it alike. Its mode is the
 * first one's, as the same weights choose it. */
static void tie_parameter(const ap_layer_node_t *node, int strategy, const ap_layer_tie_t *tie,
                          ap_parts_t *kept)
{
    if (tie->held || node->tied_again) {
        kept->sync = kept->update = kept->mem_stage = 0;
        ap_parts_add(kept, &node->added[strategy]);
    }
    kept->forward += ap_layer_tied_view(node, strategy) == tie->view ? 0.0 : AP_COST_INFINITE;
}

/* The parts of a strategy depend on the weights, as those choose its parameters' modes. */
ap_parts_t ap_layer_strategy_parts(const ap_layer_node_t *node, int strategy,
                                   const ap_layer_weights_t *weights)
{
    ap_parts_t parts = node->base[strategy];

    for (int p = 0; p < node->parameters; ++p) {
        int mode = ap_layer_parameter_mode(node, strategy, p, weights);
        ap_parts_t kept =
            node->modes[(strategy * node->parameters + p) * AP_PARAMETER_MODES + mode];

        if (weights->tie.alike && p == node->tied) {
            tie_parameter(node, strategy, &weights->tie, &kept);
        }
        ap_parts_add(&parts, &kept);
    }
    return parts;
}
