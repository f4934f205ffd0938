/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes: the front end refuses them with a sentence that names the place, or makes a graph
 * whose operators have sound rules. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "planner/frontend/hlo/hlo.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    ap_graph_t *graph = NULL;
    ap_frontend_notes_t *notes = NULL;

    if (ap_hlo_from_text((const char *)data, size, "fuzz", &graph, &notes) < 0) {
        if (graph != NULL || notes != NULL || strlen(xm_last_error()) == 0) {
            abort();
        }
        return 0;
    }
    for (int o = 0; o < ap_graph_ops(graph); ++o) {
        const ap_op_t *op = ap_graph_op(graph, o);

        if (!(op->flops >= 0) || !(op->repeat > 0)) {
            abort();
        }
        for (int i = 0; i < op->operand_count; ++i) {
            ap_shape_t shape = ap_sharding_rule_shape(&op->rule, i);

            const ap_shape_t *is = &ap_graph_tensor(graph, op->operands[i])->shape;

            if (shape.rank != is->rank ||
                memcmp(shape.dims, is->dims, (size_t)is->rank * sizeof(is->dims[0])) != 0) {
                abort();
            }
        }
    }
    ap_frontend_notes_destroy(notes);
    ap_graph_destroy(graph);
    return 0;
}
