/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The one price of a strategy. What a graph says of an operator (its phase, what its results are
 * the gradients of, how often it runs) meets here what the cost model knows of a mesh; searches
 * only add up and weigh.
 */

#include "planner/cost/price.h"

/* FLOPs of Adam per element, as the pass that derives a training step has them. */
static const double update_flops = 12;

ap_priced_op_t ap_price_op(const ap_graph_t *graph, const ap_cost_mesh_t *mesh, int op,
                           double state_bytes)
{
    ap_priced_op_t made = {
        .graph = graph, .op = ap_graph_op(graph, op), .state_bytes = state_bytes};

    made.site.rule = &made.op->rule;
    made.site.mesh = mesh;
    made.site.touched = made.op->touched;
    made.site.graph = graph;
    made.site.op = made.op;
    return made;
}

/* Operands never are, as they are made elsewhere. */
bool ap_price_is_parameter_gradient(const ap_graph_t *graph, const ap_op_t *op, int term)
{
    int of;

    if (term < op->operand_count) {
        return false;
    }
    of = ap_graph_tensor(graph, op->results[term - op->operand_count])->gradient_of;
    return of >= 0 && ap_graph_tensor(graph, of)->kind == AP_TENSOR_PARAMETER;
}

/* The operator that reads a tensor, if it is one and reads it once; else NULL. */
static const ap_op_t *only_reader(const ap_graph_t *graph, int tensor)
{
    const ap_op_t *found = NULL;

    for (int o = ap_graph_tensor(graph, tensor)->producer + 1; o < ap_graph_ops(graph); ++o) {
        const ap_op_t *op = ap_graph_op(graph, o);

        for (int i = 0; i < op->operand_count; ++i) {
            if (op->operands[i] == tensor && found != NULL) {
                return NULL;
            }
            found = op->operands[i] == tensor ? op : found;
        }
    }
    return found;
}

/* Follows a number to the loss. The derivative of what is linear does not read it. */
static bool waits_for_loss(const ap_graph_t *graph, int tensor)
{
    bool seed;
    const int loss = ap_graph_loss(graph, &seed);

    while (loss >= 0 && tensor != loss && ap_graph_tensor(graph, tensor)->shape.rank == 0) {
        const ap_op_t *reader = only_reader(graph, tensor);

        if (reader == NULL || reader->kind != AP_OP_ELEMENTWISE || !reader->linear) {
            return false;
        }
        tensor = reader->results[0];
    }
    return tensor == loss;
}

bool ap_price_is_once(const ap_graph_t *graph, const ap_op_t *op, int term)
{
    return ap_price_is_parameter_gradient(graph, op, term) ||
           (term >= op->operand_count && op->phase == AP_PHASE_FORWARD &&
            waits_for_loss(graph, op->results[term - op->operand_count]));
}

bool ap_price_updates_parameter(const ap_graph_t *graph, const ap_op_t *op)
{
    int old = ap_graph_tensor(graph, op->results[0])->alias_of;

    return op->phase == AP_PHASE_UPDATE && old >= 0 &&
           ap_graph_tensor(graph, old)->kind == AP_TENSOR_PARAMETER;
}

double ap_price_bytes(const ap_priced_op_t *op, const ap_strategy_t *strategy)
{
    double bytes = ap_strategy_moved_bytes(&op->site, strategy->spec);
    int term = op->op->operand_count;

    if (ap_price_updates_parameter(op->graph, op->op)) {
        bytes += 2 * op->state_bytes / ap_strategy_element_bytes(&op->site, term) *
                 ap_strategy_local_bytes(&op->site, term, strategy->spec[term]);
    }
    return bytes;
}

/* FLOPs are those of all runs, bytes those of one. */
double ap_price_compute(const ap_priced_op_t *op, const ap_strategy_t *strategy)
{
    double repeat = op->op->repeat;

    return repeat * ap_cost_op(op->site.mesh, op->op->kind, ap_graph_op_dtype(op->graph, op->op),
                               op->op->flops / repeat / strategy->devices,
                               ap_price_bytes(op, strategy));
}

/* The loss is partial over an axis because samples are cut there, and so are gradients: it goes
 * along with their sum, as a number more. What is summed over several axes goes over one after the
 * other, and alone. */
double ap_price_collective(const ap_priced_op_t *op, const ap_collective_t *on)
{
    bool gradient = ap_price_is_parameter_gradient(op->graph, op->op, on->term);

    if (!gradient && (on->axes & (on->axes - 1)) == 0 &&
        ap_price_is_once(op->graph, op->op, on->term)) {
        return 0;
    }
    return op->op->repeat * (gradient ? ap_cost_gradient_collective : ap_cost_collective_over)(
                                op->site.mesh, on->kind, on->axes, on->bytes);
}

/* Updates, gradients of parameters and the loss happen once per iteration. */
void ap_price_strategy(const ap_priced_op_t *op, const ap_strategy_t *strategy, double *micro_batch,
                       double *iteration)
{
    *micro_batch = *iteration = 0;
    *(op->op->phase == AP_PHASE_UPDATE ? iteration : micro_batch) += ap_price_compute(op, strategy);
    for (int c = 0; c < strategy->collective_count; ++c) {
        const ap_collective_t *on = &strategy->collective[c];

        *(ap_price_is_once(op->graph, op->op, on->term) ? iteration : micro_batch) +=
            ap_price_collective(op, on);
    }
}

double ap_price_reshard_runs(const ap_graph_t *graph, int tensor, const ap_op_t *reader)
{
    double made = ap_graph_tensor_turns(graph, tensor);

    return made < reader->repeat ? made : reader->repeat;
}

/* Gathering weights hides behind nothing, unlike the gradient's collectives. */
ap_price_parameter_t ap_price_parameter(const ap_priced_op_t *op, int operand, ap_spec_t spec,
                                        unsigned partial)
{
    const ap_cost_mesh_t *mesh = op->site.mesh;
    double weight = ap_strategy_local_bytes(&op->site, operand, spec);
    double elements = weight / ap_strategy_element_bytes(&op->site, operand);
    /* An update reads and writes the state, and has the gradient and the weight, old and new. */
    double moved = 2 * op->state_bytes * elements + 3 * weight;
    double shards = ap_cost_mesh_devices(mesh, partial);
    double repeat = op->op->repeat;

    return (ap_price_parameter_t){
        .reduce = repeat * ap_cost_gradient_collective(mesh, AP_ALL_REDUCE, partial, weight),
        .scatter = repeat * ap_cost_gradient_collective(mesh, AP_REDUCE_SCATTER, partial, weight),
        .gather = ap_cost_collective_over(mesh, AP_ALL_GATHER, partial, weight),
        .update = ap_cost_op(mesh, AP_OP_UPDATE, AP_DTYPE_F32, update_flops * elements, moved),
        .update_part = ap_cost_op(mesh, AP_OP_UPDATE, AP_DTYPE_F32,
                                  update_flops * elements / shards, moved / shards)};
}

double ap_price_gradient_sum(const ap_graph_t *graph, const ap_cost_mesh_t *mesh, int tensor,
                             ap_spec_t spec)
{
    const ap_tensor_t *of = ap_graph_tensor(graph, tensor);
    double bytes =
        ap_cost_mesh_local_bytes(mesh, &of->shape, ap_graph_tensor_bytes(graph, tensor), spec);

    /* It reads two tensors and writes one. */
    return ap_cost_op(mesh, AP_OP_ELEMENTWISE, of->dtype, bytes / ap_dtype_bytes(of->dtype),
                      3 * bytes);
}
