/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file planner/frontend/hlo/type.h
 * Reading the types of HLO values.
 */
#pragma once

#include "planner/frontend/common.h"
#include "planner/frontend/hlo/lexer.h"
#include "planner/rules.h"

/** Reads a type with its layouts: `f32[8,128]{1,0:T(8,128)}`, `(s32[], (f32[2], pred[]))`. */
xm_status_t hlo_type_parse(hlo_cursor_t *cursor, xm_arena_t *arena, const operand_type_t **type);
