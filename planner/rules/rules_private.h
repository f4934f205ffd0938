/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the files of shape_rule.h. */
#pragma once

#include "planner/rules/shape_rule.h"

int shape_rank(const shape_rule_t *op, int term);
int64_t shape_extent(const shape_rule_t *op, int term, int dim);
/* Notes a failure unless there are so many operands. */
bool shape_need_operands(shape_rule_t *op, int least, int most);
/* Notes a failure unless a term has that dimension. */
bool shape_need_dim(shape_rule_t *op, int term, int dim);
