/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shardings that a model's author demands, as a number of parts per dimension: what an annotation
 * says, whatever the axes of the mesh that the plan is made for.
 */

#include <stdio.h>
#include <string.h>

#include "planner/graph/graph_private.h"

void ap_graph_demand_parts(ap_graph_t *graph, int tensor, const int *parts)
{
    memcpy(graph->tensors[tensor].parts, parts, sizeof(graph->tensors[tensor].parts));
}

bool ap_tensor_demands(const ap_tensor_t *tensor)
{
    for (int d = 0; d < tensor->shape.rank; ++d) {
        if (tensor->parts[d] != 0) {
            return true;
        }
    }
    return false;
}

char *ap_tensor_parts(const ap_tensor_t *tensor, char *buffer, size_t size)
{
    size_t length = 0;

    buffer[0] = '\0';
    for (int d = 0; d < tensor->shape.rank && length < size; ++d) {
        char number[16] = "?";

        if (tensor->parts[d] != 0) {
            (void)snprintf(number, sizeof(number), "%d", tensor->parts[d]);
        }
        length +=
            (size_t)snprintf(buffer + length, size - length, "%s%s", d > 0 ? "x" : "", number);
    }
    return buffer;
}

/* The number of parts of a dimension goes where its factor goes; one that a dimension of several
 * factors takes up, or that nothing does, is given up. */
void ap_graph_carry_parts(const ap_op_t *op, const ap_tensor_t *operand, int *parts)
{
    const ap_sharding_rule_t *rule = &op->rule;
    int result = op->operand_count;

    memset(parts, 0, AP_MAX_RANK * sizeof(*parts));
    for (int d = 0; d < rule->rank[result]; ++d) {
        for (int from = 0; from < rule->rank[0]; ++from) {
            if (rule->dim[result][d].count == 1 && rule->dim[0][from].count == 1 &&
                rule->dim[result][d].factor[0] == rule->dim[0][from].factor[0]) {
                parts[d] = operand->parts[from];
            }
        }
    }
}
