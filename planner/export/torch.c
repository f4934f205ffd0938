/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A solution as DTensor placements, in JSON. DTensor can hold partial sums, so a result has two
 * entries: as the operator computes it, with Partial() where it sums over an axis, and as it is
 * after the collectives. The collective itself is then what redistribute() does between the two.
 */

#include "planner/export/torch.h"

#include "planner/export/spec.h"

/* Inputs and parameters; a name that is no UTF-8 gives null, which json_pack() refuses. */
static json_t *tensors_json(const ap_shard_solution_t *solution, const ap_export_mesh_t *mesh)
{
    json_t *list = json_array();

    for (int t = 0; t < ap_graph_tensors(solution->graph); ++t) {
        const ap_tensor_t *tensor = ap_graph_tensor(solution->graph, t);

        if (tensor->producer >= 0) {
            continue;
        }
        (void)json_array_append_new(
            list, json_pack("{s:s, s:s, s:o, s:s, s:o}", "name", tensor->name, "kind",
                            tensor->kind == AP_TENSOR_PARAMETER ? "parameter" : "input", "shape",
                            ap_export_shape_json(&tensor->shape), "dtype",
                            ap_dtype_name(tensor->dtype), "placements",
                            ap_export_placements(mesh, solution->made[t], tensor->shape.rank, 0)));
    }
    return list;
}

/* The spec of a result before its collectives: what the factors alone cut. */
static ap_spec_t computed_spec(const ap_op_t *op, const ap_strategy_t *strategy, int term)
{
    ap_spec_t spec = AP_SPEC_REPLICATED;

    for (int d = 0; d < op->rule.rank[term]; ++d) {
        if (op->rule.dim[term][d].count > 0) {
            spec = ap_spec_with(spec, d, strategy->axes[op->rule.dim[term][d].factor[0]]);
        }
    }
    return spec;
}

static json_t *operator_json(const ap_shard_solution_t *solution, const ap_export_mesh_t *mesh,
                             int o)
{
    const ap_op_t *op = ap_graph_op(solution->graph, o);
    const ap_strategy_t *strategy = &solution->ops[o];
    json_t *operands = json_array(), *results = json_array();

    for (int i = 0; i < op->operand_count; ++i) {
        const ap_tensor_t *tensor = ap_graph_tensor(solution->graph, op->operands[i]);

        (void)json_array_append_new(
            operands,
            json_pack("{s:s, s:o}", "tensor", tensor->name, "placements",
                      ap_export_placements(mesh, strategy->spec[i], tensor->shape.rank, 0)));
    }
    for (int r = 0; r < op->result_count; ++r) {
        const ap_tensor_t *tensor = ap_graph_tensor(solution->graph, op->results[r]);
        int term = op->operand_count + r;

        (void)json_array_append_new(
            results,
            json_pack("{s:s, s:o, s:o}", "tensor", tensor->name, "computed",
                      ap_export_placements(mesh, computed_spec(op, strategy, term),
                                           tensor->shape.rank, strategy->partial[r]),
                      "placements",
                      ap_export_placements(mesh, strategy->spec[term], tensor->shape.rank, 0)));
    }
    return json_pack("{s:s, s:s, s:o, s:o}", "name", op->name, "rule", op->rule.text, "operands",
                     operands, "results", results);
}

xm_status_t ap_export_torch(const ap_shard_solution_t *solution, FILE *stream)
{
    const ap_export_mesh_t mesh = ap_export_mesh_of(solution->mesh);
    json_t *operators = json_array(), *document;
    int failed;

    for (int o = 0; o < ap_graph_ops(solution->graph); ++o) {
        (void)json_array_append_new(operators, operator_json(solution, &mesh, o));
    }
    document =
        json_pack("{s:s, s:i, s:s, s:o, s:o, s:o}", "format", "crossmesh-dtensor", "version", 1,
                  "model", ap_graph_name(solution->graph), "mesh", ap_export_mesh_json(&mesh),
                  "tensors", tensors_json(solution, &mesh), "operators", operators);
    failed = document == NULL || json_dumpf(document, stream, JSON_INDENT(1)) != 0;
    json_decref(document);
    if (failed) {
        return xm_error_set(XM_ERR_IO, "cannot write %d operators as JSON",
                            ap_graph_ops(solution->graph));
    }
    (void)putc('\n', stream);
    return XM_OK;
}
