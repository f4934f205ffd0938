/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A solution as seen from a place in HLO text. The graph has one tensor where the text may have
 * several names for it, and a loop carries an array in one spec whatever spec it arrived in; so the
 * spec that an instruction finds depends on where it stands. Both exports for HLO ask here and thus
 * write the same.
 */

#include "planner/export/instance.h"

/* Operands that come twice are told apart by counting: the operator lists a tensor as often as it
 * reads it in different ways. */
bool ap_export_instance_used(const ap_shard_solution_t *solution, const hlo_instance_t *instance,
                             int operand, ap_spec_t *spec)
{
    const ap_op_t *op;
    int skip = 0, tensor;

    if (operand >= instance->operand_count || instance->op_count != 1 ||
        instance->operands[operand] < 0) {
        return false;
    }
    tensor = instance->operands[operand];
    for (int o = 0; o < operand; ++o) {
        skip += instance->operands[o] == tensor;
    }
    op = ap_graph_op(solution->graph, instance->first_op);
    for (int i = 0; i < op->operand_count; ++i) {
        if (op->operands[i] == tensor && skip-- == 0) {
            *spec = ap_shard_solution_used(solution, instance->first_op, i);
            return true;
        }
    }
    return false;
}

/* Whether all operators of a loop's body that read a tensor from outside want it in one spec, and
 * which. */
static bool common_use(const ap_shard_solution_t *solution, const hlo_loop_t *loop, int tensor,
                       ap_spec_t *spec)
{
    bool any = false;

    for (int o = loop->first_op; o < loop->end_op; ++o) {
        const ap_op_t *op = ap_graph_op(solution->graph, o);

        for (int i = 0; i < op->operand_count; ++i) {
            ap_spec_t used = ap_shard_solution_used(solution, o, i);

            if (op->operands[i] != tensor) {
                continue;
            }
            if (any && used != *spec) {
                return false;
            }
            *spec = used;
            any = true;
        }
    }
    return any;
}

ap_spec_t ap_export_instance_carried(const ap_shard_solution_t *solution, const hlo_loop_t *loop,
                                     int array)
{
    const hlo_carried_t *of = &loop->state[array];
    ap_spec_t spec = AP_SPEC_REPLICATED;

    if (of->inside < 0) {
        return spec;
    }
    return of->inside == of->outside && common_use(solution, loop, of->inside, &spec)
               ? spec
               : solution->made[of->inside];
}

/* From the context outwards, the first loop that carries the tensor decides; outside of loops it is
 * found as it was made. */
ap_spec_t ap_export_instance_found(const ap_shard_solution_t *solution, const hlo_source_t *source,
                                   int context, int tensor)
{
    for (; context >= 0; context = source->contexts[context].parent) {
        for (int l = 0; l < source->loop_count; ++l) {
            const hlo_loop_t *loop = &source->loops[l];

            for (int i = 0; loop->body == context && i < loop->count; ++i) {
                if (loop->state[i].inside == tensor) {
                    return ap_export_instance_carried(solution, loop, i);
                }
            }
        }
    }
    return solution->made[tensor];
}

int ap_export_instance_way(const ap_shard_solution_t *solution, const hlo_source_t *source,
                           const hlo_loop_t *loop, int array, bool round, ap_spec_t *path)
{
    const hlo_carried_t *of = &loop->state[array];
    const int tensor = round ? of->returned : of->outside;
    const ap_spec_t carried = ap_export_instance_carried(solution, loop, array);

    if (tensor < 0) {
        path[0] = carried;
        return 1;
    }
    return ap_export_instance_path(
        solution, tensor,
        ap_export_instance_found(solution, source, round ? loop->body : loop->context, tensor),
        carried, path);
}

/* The path is found by the same search that priced the resharding, so what is written is what was
 * paid for. */
int ap_export_instance_path(const ap_shard_solution_t *solution, int tensor, ap_spec_t found,
                            ap_spec_t used, ap_spec_t *path)
{
    ap_reshard_step_t steps[AP_MAX_RESHARD_STEPS];
    int count = 0;

    (void)ap_cost_reshard(solution->mesh, &ap_graph_tensor(solution->graph, tensor)->shape,
                          ap_graph_tensor_bytes(solution->graph, tensor), found, used, steps,
                          &count);
    path[0] = found;
    for (int s = 0; s < count; ++s) {
        path[s + 1] = steps[s].after;
    }
    return count + 1;
}
