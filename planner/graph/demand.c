/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shardings that a model's author demands, as a number of parts per dimension and how far apart the
 * devices of two neighbours are: what an annotation says, whatever the axes of the mesh that the
 * plan is made for.
 */

#include <stdio.h>
#include <string.h>

#include "planner/graph/graph_private.h"

void ap_graph_demand(ap_graph_t *graph, int tensor, const ap_cut_t *cuts)
{
    memcpy(graph->tensors[tensor].cut, cuts, sizeof(graph->tensors[tensor].cut));
}

bool ap_tensor_demands(const ap_tensor_t *tensor)
{
    for (int d = 0; d < tensor->shape.rank; ++d) {
        if (tensor->cut[d].parts != 0) {
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

        if (tensor->cut[d].parts != 0) {
            (void)snprintf(number, sizeof(number), "%d", tensor->cut[d].parts);
        }
        length +=
            (size_t)snprintf(buffer + length, size - length, "%s%s", d > 0 ? "x" : "", number);
    }
    return buffer;
}

/* The cut of a dimension goes where its factor goes; one that a dimension of several
 * factors takes up, or that nothing does, is given up. */
void ap_graph_carry_demand(const ap_op_t *op, const ap_tensor_t *operand, ap_cut_t *cuts)
{
    const ap_sharding_rule_t *rule = &op->rule;
    int result = op->operand_count;

    memset(cuts, 0, AP_MAX_RANK * sizeof(*cuts));
    for (int d = 0; d < rule->rank[result]; ++d) {
        for (int from = 0; from < rule->rank[0]; ++from) {
            if (rule->dim[result][d].count == 1 && rule->dim[0][from].count == 1 &&
                rule->dim[result][d].factor[0] == rule->dim[0][from].factor[0]) {
                cuts[d] = operand->cut[from];
            }
        }
    }
}
