/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes: the front end refuses them with a sentence, or makes a graph whose operators have
 * sound rules, and that can be trained, or says why not. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "planner/frontend/onnx.h"
#include "planner/passes/training.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const dims[] = {"batch=4"};
    ap_onnx_params_t params = AP_ONNX_PARAMS_INIT;
    ap_graph_t *graph = NULL, *training = NULL;
    ap_frontend_notes_t *notes = NULL;

    params.dims = dims;
    params.dim_count = size > 0 && data[size - 1] % 2 == 0; /* both with and without */
    if (ap_onnx_from_bytes(data, size, "fuzz", &params, &graph, &notes) < 0) {
        if (graph != NULL || notes != NULL || xm_last_error()[0] == '\0') {
            abort();
        }
        return 0;
    }
    for (int o = 0; o < ap_graph_ops(graph); ++o) {
        const ap_op_t *op = ap_graph_op(graph, o);

        if (!(op->flops >= 0)) {
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
    if (ap_graph_loss(graph, NULL) >= 0 &&
        ap_training_expand(graph, AP_OPTIMIZER_SGD, &training) < 0 && xm_last_error()[0] == '\0') {
        abort();
    }
    ap_graph_destroy(training);
    ap_frontend_notes_destroy(notes);
    ap_graph_destroy(graph);
    return 0;
}
