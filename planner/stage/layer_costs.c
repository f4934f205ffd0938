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

/* An operator of the training graph with the context for pricing it. */
typedef struct priced_op {
    const ap_op_t *op;
    ap_dtype_t dtype; /* that it computes in */
    ap_strategy_context_t site;
} priced_op_t;

/* What pricing needs to know of an operator: its rule, the mesh, and the bytes of an element of
 * each tensor. */
static priced_op_t priced_op(const ap_graph_t *graph, const ap_cost_mesh_t *mesh, int id)
{
    priced_op_t made = {.op = ap_graph_op(graph, id)};

    made.dtype = ap_graph_op_dtype(graph, made.op);
    made.site.rule = &made.op->rule;
    made.site.mesh = mesh;
    made.site.touched = made.op->touched;
    for (int o = 0; o < made.op->operand_count; ++o) {
        made.site.element_bytes[o] =
            ap_dtype_bytes(ap_graph_tensor(graph, made.op->operands[o])->dtype);
    }
    for (int r = 0; r < made.op->result_count; ++r) {
        made.site.element_bytes[made.op->operand_count + r] =
            ap_dtype_bytes(ap_graph_tensor(graph, made.op->results[r])->dtype);
    }
    return made;
}

/* Prices the forward operator: compute on the local part, then the collectives of its partial
 * results. What a collective does forwards, its opposite does backwards to the gradient: a
 * reduce-scatter is followed by an all-gather, a permute by one in the other direction; an
 * all-reduce leaves a whole result, whose gradient is whole as well. */
static void price_forward(const priced_op_t *op, const ap_strategy_t *strategy, ap_parts_t *parts,
                          double *compute)
{
    const ap_cost_mesh_t *mesh = op->site.mesh;
    double bytes = ap_strategy_moved_bytes(&op->site, strategy->spec);

    *compute = ap_cost_op(mesh, op->op->kind, op->dtype, op->op->flops / strategy->devices, bytes);
    parts->forward += *compute;
    parts->mem_work = fmax(parts->mem_work, bytes);
    for (int c = 0; c < strategy->collective_count; ++c) {
        const ap_collective_t *on = &strategy->collective[c];

        parts->forward += ap_cost_collective(mesh, on->kind, on->axis, on->bytes);
        if (on->kind == AP_REDUCE_SCATTER) {
            /* Backward, the gradient of the scattered result is gathered again. */
            parts->backward += ap_cost_collective(mesh, AP_ALL_GATHER, on->axis, on->bytes);
        } else if (on->kind == AP_PERMUTE) {
            parts->backward += ap_cost_collective(mesh, on->kind, on->axis, on->bytes);
        }
    }
}

/* Carries the assignment of a forward strategy over to a backward operator, letter by letter:
 * training.c writes backward rules over the letters of the forward rule. False: the axes do not
 * divide there. */
static bool carry_over(const priced_op_t *forward, const ap_strategy_t *strategy,
                       const priced_op_t *backward, ap_strategy_t *carried)
{
    unsigned axes[AP_MAX_FACTORS];

    for (int f = 0; f < backward->op->rule.factors; ++f) {
        int same = ap_sharding_rule_factor(&forward->op->rule, backward->op->rule.factor[f].letter);

        axes[f] = same < 0 ? 0 : strategy->axes[same];
    }
    return ap_strategy_assign(&backward->site, axes, carried);
}

/* Prices the three ways to keep one parameter, whose gradient is partial over the axes `partial`:
 * replicated; with its optimizer state sharded over those axes (ZeRO-1); with the weight sharded as
 * well and gathered in every pass (ZeRO-3). Only a part of the gradient's collectives is charged,
 * as the profile says how much of them hides behind the backward pass; gathering weights hides
 * behind nothing. */
static void price_parameter(const priced_op_t *op, const ap_tensor_t *tensor, int operand,
                            const ap_strategy_t *strategy, unsigned partial,
                            ap_optimizer_t optimizer, ap_parts_t *modes)
{
    const ap_cost_mesh_t *mesh = op->site.mesh;
    double weight = ap_strategy_local_bytes(&op->site, operand, strategy->spec[operand]);
    double elements = weight / ap_dtype_bytes(tensor->dtype);
    double state = elements * ap_training_state_bytes(optimizer, tensor->dtype);
    double moved = elements * ap_training_update_bytes(optimizer, tensor->dtype);
    double shards = ap_cost_mesh_devices(mesh, partial);
    double reduce = 0, scatter = 0, gather = 0, share = ap_cost_gradient_share(mesh);

    memset(modes, 0, AP_PARAMETER_MODES * sizeof(*modes));
    for (int a = 0; a < ap_cost_mesh_rank(mesh); ++a) {
        if ((partial >> a & 1U) != 0) {
            reduce += share * ap_cost_collective(mesh, AP_ALL_REDUCE, a, weight);
            scatter += share * ap_cost_collective(mesh, AP_REDUCE_SCATTER, a, weight);
            gather += ap_cost_collective(mesh, AP_ALL_GATHER, a, weight);
        }
    }
    modes[AP_PARAMETER_REPLICATED].sync = reduce;
    modes[AP_PARAMETER_REPLICATED].update =
        ap_cost_op(mesh, AP_OP_UPDATE, AP_DTYPE_F32, 12 * elements, moved);
    /* Weight and gradient in the weight's own type, and the optimizer's state. */
    modes[AP_PARAMETER_REPLICATED].mem_stage = 2 * weight + state;
    modes[AP_PARAMETER_STATE_SHARDED].sync = scatter + gather;
    modes[AP_PARAMETER_STATE_SHARDED].update =
        ap_cost_op(mesh, AP_OP_UPDATE, AP_DTYPE_F32, 12 * elements / shards, moved / shards);
    modes[AP_PARAMETER_STATE_SHARDED].mem_stage = 2 * weight + state / shards;
    modes[AP_PARAMETER_SHARDED].sync = scatter;
    /* An update of a part touches a part of the state, which is what makes sharded state cheaper
     * even where memory is no matter. */
    modes[AP_PARAMETER_SHARDED].update = modes[AP_PARAMETER_STATE_SHARDED].update;
    modes[AP_PARAMETER_SHARDED].mem_stage = weight + (weight + state) / shards;
    /* The gathered weight exists while one operator runs. */
    modes[AP_PARAMETER_SHARDED].mem_work = weight;
    modes[AP_PARAMETER_SHARDED].forward = gather;
    modes[AP_PARAMETER_SHARDED].backward = gather;
    /* What is kept must lie as the model's author demands. */
    for (int m = 0; m < AP_PARAMETER_MODES; ++m) {
        if (!ap_strategy_meets(mesh, tensor, strategy->spec[operand],
                               m == AP_PARAMETER_SHARDED ? partial : 0)) {
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

/* The terms of a node's operator whose tensors it keeps for the backward pass, as a set. Parameters
 * are there in any case. */
static unsigned saved_terms(const ap_graph_t *graph, const ap_layer_ops_t *ops, int id)
{
    const ap_op_t *op = ap_graph_op(graph, id);
    unsigned saved = 0;

    for (int t = 0; t < op->operand_count + op->result_count; ++t) {
        int tensor = t < op->operand_count ? op->operands[t] : op->results[t - op->operand_count];

        if (ap_graph_tensor(graph, tensor)->kind != AP_TENSOR_PARAMETER &&
            first_saver(graph, ops, tensor) == id) {
            saved |= 1U << t;
        }
    }
    return saved;
}

/* A tensor with several readers gets several gradients, which must be added; these sums are
 * operators of no forward operator. */
int ap_layer_gradient_sums(const ap_graph_t *training, const ap_layer_ops_t *ops, int tensor)
{
    int sums = 0;

    for (int o = 0; o < ops->count; ++o) {
        const ap_op_t *op = ap_graph_op(training, ops->ids[o]);

        sums += op->phase == AP_PHASE_BACKWARD && op->forward < 0 &&
                ap_graph_tensor(training, op->results[0])->gradient_of == tensor;
    }
    return sums;
}

/* What does not depend on the strategy, found once per node. */
typedef struct node_facts {
    priced_op_t forward;
    int backward_count;
    priced_op_t backward[AP_MAX_OPERANDS + 1];
    unsigned saved;
    int sums[AP_MAX_RESULTS];
    ap_optimizer_t optimizer;
    bool rematerialize;
} node_facts_t;

/* Prices the backward operators under the same assignment, and collects over which axes the
 * gradients of operands stay partial. */
static void price_backward(const node_facts_t *facts, ap_layer_node_t *node, int s,
                           unsigned *partial)
{
    const ap_strategy_t *strategy = &node->strategies.items[s];
    ap_parts_t *parts = &node->base[s];

    for (int b = 0; b < facts->backward_count; ++b) {
        const priced_op_t *backward = &facts->backward[b];
        ap_strategy_t carried;
        double bytes, seconds;

        /* A strategy whose axes do not divide a backward operator is no strategy. */
        if (!carry_over(&facts->forward, strategy, backward, &carried)) {
            parts->backward += AP_COST_INFINITE;
            continue;
        }
        bytes = ap_strategy_moved_bytes(&backward->site, carried.spec);
        seconds = ap_cost_op(backward->site.mesh, backward->op->kind, backward->dtype,
                             backward->op->flops / carried.devices, bytes);
        parts->backward += seconds;
        node->compute[s] += seconds;
        parts->mem_work = fmax(parts->mem_work, bytes);
        for (int r = 0; r < backward->op->result_count; ++r) {
            /* Partial gradients of operands: the edges must reduce them, and so must the
             * parameters. */
            partial[backward->op->differentiates[r]] |= carried.partial[r];
        }
    }
    /* Sums of gradients of this operator's results read two tensors and write one, hence three
     * times its bytes. */
    for (int r = 0; r < facts->forward.op->result_count; ++r) {
        int term = facts->forward.op->operand_count + r;
        double bytes = ap_strategy_local_bytes(&facts->forward.site, term, strategy->spec[term]);
        double seconds =
            facts->sums[r] * ap_cost_op(facts->forward.site.mesh, AP_OP_ELEMENTWISE,
                                        facts->forward.dtype,
                                        bytes / facts->forward.site.element_bytes[term], 3 * bytes);

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
    unsigned partial[AP_MAX_OPERANDS] = {0};

    price_forward(&facts->forward, strategy, &node->base[s], &node->compute[s]);
    price_backward(facts, node, s, partial);
    for (int t = 0; t < op->operand_count + op->result_count; ++t) {
        double *kept = facts->rematerialize ? &node->base[s].mem_layer : &node->base[s].mem_act;

        if ((facts->saved >> t & 1U) != 0) {
            *kept += ap_strategy_local_bytes(&facts->forward.site, t, strategy->spec[t]);
        }
    }
    for (int p = 0; p < node->parameters; ++p) {
        int operand = node->parameter_operand[p];

        price_parameter(&facts->forward, ap_graph_tensor(graph, op->operands[operand]), operand,
                        strategy, partial[operand], facts->optimizer,
                        &node->modes[(s * node->parameters + p) * AP_PARAMETER_MODES]);
    }
    for (int t = 0; t < op->operand_count + op->result_count; ++t) {
        bool operand = t < op->operand_count;

        if (operand && ap_graph_tensor(graph, op->operands[t])->kind != AP_TENSOR_ACTIVATION) {
            continue;
        }
        /* Axes fill 3 bits of a byte, so the partial axes of an operand's gradient fit beside those
         * of dimension 0. Neighbours see both: where the tensor is wanted and what its gradient
         * still lacks. */
        node->interface[s][t] =
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
                                ap_layer_node_t *node)
{
    node_facts_t facts = {.optimizer = optimizer, .rematerialize = rematerialize};
    const ap_strategy_options_t options = {.scatter = true};
    const ap_op_t *op = ap_graph_op(training, node->op);
    bool possible;
    size_t count;
    xm_status_t status;

    facts.forward = priced_op(training, mesh, node->op);
    for (int b = 0; b < ops->count; ++b) {
        if (ap_graph_op(training, ops->ids[b])->forward == node->op &&
            facts.backward_count <= AP_MAX_OPERANDS) {
            facts.backward[facts.backward_count++] = priced_op(training, mesh, ops->ids[b]);
        }
    }
    facts.saved = saved_terms(training, ops, node->op);
    for (int r = 0; r < op->result_count; ++r) {
        facts.sums[r] = ap_layer_gradient_sums(training, ops, op->results[r]);
    }
    for (int o = 0; o < op->operand_count; ++o) {
        if (ap_graph_tensor(training, op->operands[o])->kind == AP_TENSOR_PARAMETER) {
            node->parameter_operand[node->parameters++] = o;
        }
    }
    status = ap_strategy_enumerate(&facts.forward.site, &options, &node->strategies);
    if (status != XM_OK) {
        return status;
    }
    possible = ap_strategy_list_demand(training, op, mesh, &node->strategies);
    possible = (space == NULL || ap_space_filter(space->space, &op->rule, &space->roles[node->op],
                                                 mesh, &node->strategies)) &&
               possible;
    count = (size_t)node->strategies.count;
    node->base = calloc(count, sizeof(*node->base));
    node->compute = calloc(count, sizeof(*node->compute));
    node->modes =
        calloc(count * (size_t)(node->parameters + 1) * AP_PARAMETER_MODES, sizeof(*node->modes));
    node->interface = calloc(count, sizeof(*node->interface));
    if (node->base == NULL || node->compute == NULL || node->modes == NULL ||
        node->interface == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "no memory for %zu strategies", count);
    }
    for (int s = 0; s < node->strategies.count; ++s) {
        price_strategy(training, &facts, node, s);
        node->base[s].forward += possible ? 0.0 : AP_COST_INFINITE;
    }
    if (space != NULL) {
        forbid_modes(space->space->parameter_modes, node);
    }
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

/* The parts of a strategy depend on the weights, as those choose its parameters' modes. */
ap_parts_t ap_layer_strategy_parts(const ap_layer_node_t *node, int strategy,
                                   const ap_layer_weights_t *weights)
{
    ap_parts_t parts = node->base[strategy];

    for (int p = 0; p < node->parameters; ++p) {
        int mode = ap_layer_parameter_mode(node, strategy, p, weights);

        ap_parts_add(&parts,
                     &node->modes[(strategy * node->parameters + p) * AP_PARAMETER_MODES + mode]);
    }
    return parts;
}
