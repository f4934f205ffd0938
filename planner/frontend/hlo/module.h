/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file planner/frontend/hlo/module.h
 * An HLO module as parsed: computations of instructions, whose operands are already resolved.
 *
 * Attributes stay text until a rule asks for them (planner/frontend/hlo/attribute.h); literals stay
 * where they are. Everything lives in the module's arena and points into the text, which must
 * outlive it.
 */
#pragma once

#include "planner/frontend/hlo/type.h"

typedef struct hlo_attribute {
    hlo_slice_t key, value;
} hlo_attribute_t;

typedef struct hlo_instruction {
    hlo_slice_t name, opcode;
    size_t at;  /**< offset, for sentences */
    size_t end; /**< offset behind its last attribute */
    const operand_type_t *type;
    int operand_count;
    int *operands; /**< instructions of the same computation, all before this one */
    int attribute_count;
    hlo_attribute_t *attributes;
    int64_t number;      /**< of a parameter */
    hlo_slice_t literal; /**< of a constant */
    bool needed;         /**< the root depends on it */
} hlo_instruction_t;

typedef struct hlo_computation {
    hlo_slice_t name;
    size_t at;
    bool entry;
    int count, room;
    hlo_instruction_t *instructions;
    int root;
    int parameter_count;
    int *parameters; /**< instruction of each parameter number */
} hlo_computation_t;

typedef struct hlo_module {
    hlo_text_t text;
    xm_arena_t arena;
    hlo_slice_t name;
    int attribute_count;
    hlo_attribute_t *attributes;
    int count, room;
    hlo_computation_t *computations;
    int entry;
} hlo_module_t;

/**
 * Parses @p text, which is borrowed. Refused with line and column: text that does not parse, an
 * operand that is not defined before its use, names or parameters twice, no or two entries.
 */
xm_status_t hlo_module_parse(const hlo_text_t *text, hlo_module_t **module);

/** Index of the computation called @p name (with or without %), or -1. */
int hlo_module_find(const hlo_module_t *module, hlo_slice_t name);

void hlo_module_destroy(hlo_module_t *module);
