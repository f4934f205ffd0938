#include "planner/export_site.h"

bool ap_export_site_used(const ap_shard_solution_t *solution, const hlo_site_t *site, int operand,
                         ap_spec_t *spec)
{
    const ap_op_t *op;
    int skip = 0, tensor;

    if (operand >= HLO_SITE_OPERANDS || site->op_count != 1 || site->operands[operand] < 0) {
        return false;
    }
    tensor = site->operands[operand];
    for (int o = 0; o < operand; ++o) {
        skip += site->operands[o] == tensor;
    }
    op = ap_graph_op(solution->graph, site->first_op);
    for (int i = 0; i < op->operand_count; ++i) {
        if (op->operands[i] == tensor && skip-- == 0) {
            *spec = ap_shard_solution_used(solution, site->first_op, i);
            return true;
        }
    }
    return false;
}

int ap_export_site_path(const ap_shard_solution_t *solution, int tensor, ap_spec_t used,
                        ap_spec_t *path)
{
    ap_reshard_step_t steps[AP_MAX_RESHARD_STEPS];
    int count = 0;

    (void)ap_cost_reshard(solution->mesh, &ap_graph_tensor(solution->graph, tensor)->shape,
                          ap_graph_tensor_bytes(solution->graph, tensor), solution->made[tensor],
                          used, steps, &count);
    path[0] = solution->made[tensor];
    for (int s = 0; s < count; ++s) {
        path[s + 1] = steps[s].after;
    }
    return count + 1;
}
