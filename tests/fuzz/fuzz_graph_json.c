/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes: the front end refuses them with a sentence that names the place, or makes a graph that
 * can be written, read back and trained, or says why not. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "planner/frontend/json.h"
#include "planner/passes/training.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    ap_graph_t *graph = NULL, *again = NULL, *training = NULL;
    char *text;

    if (ap_json_from_text((const char *)data, size, "fuzz", &graph) < 0) {
        if (graph != NULL || strstr(xm_last_error(), "line ") == NULL) {
            abort();
        }
        return 0;
    }
    for (int o = 0; o < ap_graph_ops(graph); ++o) {
        if (!(ap_graph_op(graph, o)->flops >= 0)) {
            abort();
        }
    }
    text = ap_json_text(graph);
    if (text == NULL || ap_json_from_text(text, strlen(text), "again", &again) < 0 ||
        ap_graph_ops(again) != ap_graph_ops(graph)) {
        abort();
    }
    free(text);
    if (ap_graph_loss(graph, NULL) >= 0 &&
        ap_training_expand(graph, AP_OPTIMIZER_ADAM, &training) < 0 && xm_last_error()[0] == '\0') {
        abort();
    }
    ap_graph_destroy(training);
    ap_graph_destroy(again);
    ap_graph_destroy(graph);
    return 0;
}
