/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Adds the operators of HLO instructions to the graph. A rule may have more operands, results or
 * factors than a graph's operator can; such an instruction becomes several operators or an opaque
 * one, never a wrong one.
 *
 * In a dry run nothing is added, and results get the number 0: all that a dry run asks is which
 * values hold data.
 */

#include <stdio.h>
#include <string.h>

#include "planner/frontend/hlo/build.h"
#include "planner/frontend/hlo/rules.h"

static const operand_type_t scalar = {.dtype = AP_DTYPE_F32};

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
                       const operator_rule_text_t *text, int *results)
{
    ap_op_params_t params = operator_rule_params(rule, text);
    char name[200], label[200];
    xm_status_t status;

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
    for (int r = 1; r < rule->results; ++r) {
        ap_dtype_t other = rule->type[rule->operands + r]->dtype;

        params.result_dtype = ap_dtype_bytes(other) > ap_dtype_bytes(params.result_dtype)
                                  ? other
                                  : params.result_dtype;
    }
    params.repeat = b->repeat;
    status = ap_graph_add_op(b->graph, &params, results);
    if (status != XM_OK) {
        return hlo_error(&b->module->text, of->at, "%s", xm_last_error());
    }
    if (rule->results == 1 && !rule->opaque) {
        ap_graph_set_fusion(b->graph, ap_graph_ops(b->graph) - 1, hlo_fusion(of->opcode));
    }
    return XM_OK;
}

/* A concatenation of many: a few operands at a time are written into the result, which the next
 * piece takes as its first operand. Every piece has the dimensions of the whole, so all can be cut
 * alike. */
static xm_status_t emit_pieces(hlo_build_t *b, const hlo_instruction_t *of,
                               const operator_rule_t *rule, const int *tensors, int *result,
                               bool *fits)
{
    const int out = rule->operands;
    int done = 0;

    *fits = true;
    while (done < rule->operands && *fits) {
        operator_rule_t piece = *rule;
        operator_rule_text_t text;
        int operands[AP_MAX_OPERANDS], count = 0;
        xm_status_t status;

        if (done > 0) {
            piece.type[0] = rule->type[out];
            memcpy(piece.dim[0], rule->dim[out], sizeof(piece.dim[0]));
            operands[count++] = *result;
        }
        while (done < rule->operands && count < AP_MAX_OPERANDS) {
            piece.type[count] = rule->type[done];
            memcpy(piece.dim[count], rule->dim[done], sizeof(piece.dim[0]));
            operands[count++] = tensors[done++];
        }
        piece.operands = count;
        piece.type[count] = rule->type[out];
        memcpy(piece.dim[count], rule->dim[out], sizeof(piece.dim[0]));
        memset(piece.ignored, 0, sizeof(piece.ignored));
        *fits = operator_rule_write(&piece, operands, &text);
        if (*fits && text.operand_count > 0) {
            status = add(b, of, &piece, &text, result);
            if (status != XM_OK) {
                return status;
            }
        }
    }
    return XM_OK;
}

xm_status_t hlo_emit(hlo_build_t *b, const hlo_instruction_t *of, operator_rule_t *rule,
                     const int *tensors, int *results)
{
    operator_rule_text_t text;
    xm_status_t status;
    bool fits;

    if (operator_rule_write(rule, tensors, &text)) {
        return add(b, of, rule, &text, results);
    }
    /* Operands without data are left out first: what each device fills in for itself is part of no
     * transfer. */
    if (hlo_slice_is(of->opcode, "concatenate") && !rule->opaque) {
        int data[OPERATOR_MAX_OPERANDS], count = 0;
        operator_rule_t packed = *rule;

        for (int o = 0; o < rule->operands && count < OPERATOR_MAX_OPERANDS; ++o) {
            if (tensors[o] != OPERATOR_NO_TENSOR) {
                packed.type[count] = rule->type[o];
                memcpy(packed.dim[count], rule->dim[o], sizeof(packed.dim[0]));
                data[count++] = tensors[o];
            }
        }
        packed.type[count] = rule->type[rule->operands];
        memmove(packed.dim[count], rule->dim[rule->operands], sizeof(packed.dim[0]));
        packed.operands = count;
        status = emit_pieces(b, of, &packed, data, results, &fits);
        if (status != XM_OK || fits) {
            return status;
        }
    }
    /* Whatever still does not fit is counted as an operator without a rule, for that is how it is
     * treated. */
    status = hlo_build_note(b, "", of->opcode);
    return status == XM_OK ? hlo_emit_opaque(b, of, rule->type, tensors, rule->operands,
                                             rule->type + rule->operands, rule->results, results)
                           : status;
}

/* Adds one operator that needs all of everything, when it fits the graph's limits; *fits tells. */
static xm_status_t emit_whole(hlo_build_t *b, const hlo_instruction_t *of,
                              const operand_type_t **types, const int *tensors, int operands,
                              const operand_type_t **made, int results, int *ids, bool *fits)
{
    operator_rule_t rule = {.kind = AP_OP_RESHAPE, .operands = operands, .results = results};
    operator_rule_text_t text;

    *fits = operands <= AP_MAX_OPERANDS && results <= AP_MAX_RESULTS;
    if (!*fits) {
        return XM_OK;
    }
    for (int t = 0; t < operands; ++t) {
        rule.type[t] = types[t];
    }
    for (int r = 0; r < results; ++r) {
        rule.type[operands + r] = made[r];
    }
    operator_rule_make_opaque(&rule);
    if (rule.status != XM_OK) {
        return rule.status;
    }
    *fits = operator_rule_write(&rule, tensors, &text) && text.operand_count > 0;
    return *fits ? add(b, of, &rule, &text, ids) : XM_OK;
}

xm_status_t hlo_emit_opaque(hlo_build_t *b, const hlo_instruction_t *of,
                            const operand_type_t **types, const int *tensors, int operands,
                            const operand_type_t **made, int results, int *ids)
{
    const operand_type_t *token = &scalar;
    int chain = OPERATOR_NO_TENSOR;
    bool fits;
    xm_status_t status = emit_whole(b, of, types, tensors, operands, made, results, ids, &fits);

    if (status != XM_OK || fits) {
        return status;
    }
    /* What is too large for one operator: each operand is read whole into a token, which every
     * result comes from. */
    for (int o = 0; o < operands; ++o) {
        const operand_type_t *read[] = {types[o], token};
        const int pair[] = {tensors[o], chain};

        if (tensors[o] == OPERATOR_NO_TENSOR) {
            continue;
        }
        status = emit_whole(b, of, read, pair, 2, &token, 1, &chain, &fits);
        if (status != XM_OK) {
            return status;
        }
    }
    for (int r = 0; r < results; ++r) {
        status = emit_whole(b, of, &token, &chain, 1, &made[r], 1, &ids[r], &fits);
        if (status != XM_OK) {
            return status;
        }
    }
    return XM_OK;
}

/* With `passes_on` no bytes are touched: the operator only lets the plan decide on a sharding, as
 * for what a loop carries from round to round. */
xm_status_t hlo_emit_alike(hlo_build_t *b, const hlo_instruction_t *of, const operand_type_t *type,
                           const int *tensors, int operands, bool passes_on, int *result)
{
    operator_rule_t rule = {
        .kind = AP_OP_ELEMENTWISE, .operands = operands, .results = 1, .linear = true};

    for (int t = 0; t <= operands; ++t) {
        rule.type[t] = type;
        rule.touched[t] = passes_on ? AP_TOUCHES_NONE : AP_TOUCHES_ALL;
    }
    for (int d = 0; d < type->shape.rank; ++d) {
        int factor = operator_rule_open(&rule, 0, d);

        for (int t = 1; t <= operands; ++t) {
            operator_rule_put(&rule, t, d, factor);
        }
    }
    return rule.status == XM_OK ? hlo_emit(b, of, &rule, tensors, result) : rule.status;
}
