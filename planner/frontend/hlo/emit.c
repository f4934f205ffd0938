/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Adds the operators of HLO instructions to the graph, one for each. What a graph's rule cannot say
 * becomes an opaque operator, never a wrong one.
 *
 * In a dry run nothing is added, and results get the number 0: all that a dry run asks is which
 * values hold data.
 */

#include <stdio.h>
#include <string.h>

#include "planner/frontend/hlo/build.h"
#include "planner/frontend/hlo/rules.h"

/* JAX names what differentiation made transpose(…). The phase is for printing and for cutting the
 * step in two; no cost depends on it. */
static ap_phase_t phase_of(const hlo_module_t *module, const hlo_instruction_t *of)
{
    static const char mark[] = "transpose(";
    hlo_slice_t name = hlo_metadata(module, of, "op_name");

    for (size_t i = 0; i + sizeof(mark) - 1 <= name.length; ++i) {
        if (memcmp(name.at + i, mark, sizeof(mark) - 1) == 0) {
            return AP_PHASE_BACKWARD;
        }
    }
    return AP_PHASE_FORWARD;
}

/* The author's name for what an instruction belongs to, with the escapes of its text removed. */
static const char *label_of(const hlo_module_t *module, const hlo_instruction_t *of, char *label,
                            size_t size)
{
    hlo_slice_t name = hlo_metadata(module, of, "op_name");
    size_t length = 0;

    for (size_t i = 0; i < name.length && length + 1 < size; ++i) {
        if (name.at[i] != '\\') {
            label[length++] = name.at[i];
        }
    }
    label[length] = '\0';
    return length > 0 ? label : NULL;
}

static xm_status_t add(hlo_build_t *b, const hlo_instruction_t *of, const operator_rule_t *rule,
                       const int *tensors, int *results)
{
    ap_op_params_t params = AP_OP_PARAMS_INIT;
    char name[200], label[200];
    xm_status_t status;

    if (rule->status != XM_OK) {
        return rule->status;
    }
    if (b->dry) {
        memset(results, 0, (size_t)rule->results * sizeof(int));
        return XM_OK;
    }
    (void)snprintf(name, sizeof(name), "%.*s", (int)of->name.length, of->name.at);
    params.phase = phase_of(b->module, of);
    params.name = name;
    params.label = label_of(b->module, of, label, sizeof(label));
    /* A graph has one element type for all results of an operator; the widest one overestimates the
     * others rather than underestimating them. */
    params.result_dtype = rule->type[rule->operands]->dtype;
    for (int r = 1; r < rule->results; ++r) {
        ap_dtype_t other = rule->type[rule->operands + r]->dtype;

        params.result_dtype = ap_dtype_bytes(other) > ap_dtype_bytes(params.result_dtype)
                                  ? other
                                  : params.result_dtype;
    }
    params.repeat = b->repeat;
    status = operator_rule_add(rule, tensors, &params, b->graph, results);
    if (status != XM_OK) {
        return hlo_error(&b->module->text, of->at, "%s", xm_last_error());
    }
    if (rule->results == 1 && !rule->opaque) {
        ap_graph_set_fusion(b->graph, ap_graph_ops(b->graph) - 1, hlo_fusion(of->opcode));
    }
    return XM_OK;
}

/* What a graph's rule cannot say is counted as an operator without a rule, for that is how it is
 * treated. */
xm_status_t hlo_emit(hlo_build_t *b, const hlo_instruction_t *of, operator_rule_t *rule,
                     const int *tensors, int *results)
{
    if (!operator_rule_fits(rule)) {
        rule->kind = AP_OP_RESHAPE;
        rule->flops = 0;
        operator_rule_make_opaque(rule);
        XM_TRY(hlo_build_note(b, "", of->opcode));
    }
    return add(b, of, rule, tensors, results);
}

xm_status_t hlo_emit_opaque(hlo_build_t *b, const hlo_instruction_t *of,
                            const operand_type_t **types, const int *tensors, int operands,
                            const operand_type_t **made, int results, int *ids)
{
    operator_rule_t rule;
    xm_status_t status;

    operator_rule_begin(&rule, operands, results);
    for (int t = 0; t < rule.operands + rule.results; ++t) {
        rule.type[t] = t < operands ? types[t] : made[t - operands];
    }
    rule.kind = AP_OP_RESHAPE;
    operator_rule_make_opaque(&rule);
    status = add(b, of, &rule, tensors, ids);
    operator_rule_end(&rule);
    return status;
}

/* With `passes_on` no bytes are touched: the operator only lets the plan decide on a sharding, as
 * for what a loop carries from round to round. */
xm_status_t hlo_emit_alike(hlo_build_t *b, const hlo_instruction_t *of, const operand_type_t *type,
                           const int *tensors, int operands, bool passes_on, int *result)
{
    operator_rule_t rule;
    xm_status_t status;

    operator_rule_begin(&rule, operands, 1);
    rule.linear = true;
    for (int t = 0; t < rule.operands + rule.results; ++t) {
        rule.type[t] = type;
        rule.touched[t] = passes_on ? AP_TOUCHES_NONE : AP_TOUCHES_ALL;
    }
    for (int d = 0; d < type->shape.rank && rule.status == XM_OK; ++d) {
        int factor = operator_rule_open(&rule, 0, d);

        for (int t = 1; t <= operands; ++t) {
            operator_rule_put(&rule, t, d, factor);
        }
    }
    status = rule.status == XM_OK ? hlo_emit(b, of, &rule, tensors, result) : rule.status;
    operator_rule_end(&rule);
    return status;
}
