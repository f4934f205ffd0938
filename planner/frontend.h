/**
 * @file frontend.h
 * One door for all front ends: a model by name, or a file by what is in it.
 *
 * A file that starts with `{` is a JSON graph (frontend_json.h), one with `HloModule` HLO text
 * (frontend_hlo.h), anything else an ONNX model (frontend_onnx.h); what is no file is the name of a
 * built-in model (frontend_zoo.h).
 *
 * @code
 *     ap_frontend_params_t params = AP_FRONTEND_PARAMS_INIT;
 *     status = ap_frontend_load("model.onnx", &params, &graph, &notes);
 *     status = ap_frontend_train(AP_OPTIMIZER_SGD, &graph);
 * @endcode
 *
 * Threads: no shared state.
 */
#ifndef AP_PLANNER_FRONTEND_H
#define AP_PLANNER_FRONTEND_H

#include "planner/frontend_notes.h"
#include "planner/graph.h"

typedef struct ap_frontend_params {
    size_t struct_size;
    int64_t batch, hidden;   /**< built-in models, see ap_zoo_params_t; 0 = theirs */
    int layers, sequence;    /**< built-in models; 0 = theirs */
    const char *const *dims; /**< ONNX: "batch=8" */
    size_t dim_count;
} ap_frontend_params_t;

#define AP_FRONTEND_PARAMS_INIT                                                                    \
    {                                                                                              \
        .struct_size = sizeof(ap_frontend_params_t)                                                \
    }

/**
 * The graph as the model or file has it. @p notes (may be NULL) are the operators without a rule,
 * an empty list where there can be none. Refused: what the front end refuses, and a size that is
 * not for this kind of model.
 */
XM_API xm_status_t ap_frontend_load(const char *model, const ap_frontend_params_t *params,
                                    ap_graph_t **graph, ap_frontend_notes_t **notes);

/** Whether a model is a file, or was meant to be one, rather than the name of a built-in model. */
XM_API bool ap_frontend_is_file(const char *model);

#endif
