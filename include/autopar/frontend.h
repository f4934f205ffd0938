/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file frontend.h
 * Where graphs come from: built-in models, and files or texts of HLO, ONNX and JSON.
 *
 * A file that starts with `{` is a JSON graph (docs/graph.md), one with `HloModule` HLO text
 * (docs/hlo.md), anything else an ONNX model (docs/onnx.md); what is no file is the name of a
 * built-in model, as `gpt-1.3b` or `llama3-8b`. ONNX, JSON and built-in models are forward passes
 * of one micro-batch, HLO is what was lowered, usually a whole training step.
 *
 * Operators without a rule of their own need all of everything on every device; the notes list
 * them. For HLO the notes also know the way back into the text, which exports need (export.h).
 *
 * Ownership: texts are not kept; graphs and notes belong to the caller. Threads: notes are
 * immutable.
 *
 * @code
 *     // The training step of a built-in model; says which operators were not understood.
 *     xm_status_t load(const char *model, ap_graph_t **graph)
 *     {
 *         ap_frontend_params_t params = AP_FRONTEND_PARAMS_INIT;
 *         ap_frontend_notes_t *notes;
 *         xm_status_t status;
 *
 *         params.batch = 8;
 *         status = ap_frontend_load(model, &params, graph, &notes);
 *         if (status != XM_OK) {
 *             return status;
 *         }
 *         for (int i = 0; i < ap_frontend_notes_count(notes); i++) {
 *             printf("%s has no rule\n", ap_frontend_notes_get(notes, i, NULL));
 *         }
 *         ap_frontend_notes_destroy(notes);
 *         return ap_frontend_train(AP_OPTIMIZER_ADAM, graph);
 *     }
 * @endcode
 */
#ifndef AUTOPAR_FRONTEND_H
#define AUTOPAR_FRONTEND_H

#include <autopar/graph.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ap_frontend_notes ap_frontend_notes_t;

typedef struct ap_frontend_params {
    size_t struct_size;
    int64_t batch;           /**< built-in models: samples of a micro-batch; 0 = 1, mlp 1024 */
    int64_t hidden;          /**< built-in mlpN: extent of a weight; 0 = 128 */
    int layers;              /**< built-in language models: blocks; 0 = theirs */
    int sequence;            /**< built-in language models: tokens of a sample; 0 = theirs */
    const char *const *dims; /**< ONNX: sizes of symbolic dimensions, "batch=8" */
    size_t dim_count;
} ap_frontend_params_t;

#define AP_FRONTEND_PARAMS_INIT                                                                    \
    {                                                                                              \
        sizeof(ap_frontend_params_t), 0, 0, 0, 0, NULL, 0                                          \
    }

typedef enum ap_optimizer { AP_OPTIMIZER_SGD, AP_OPTIMIZER_ADAM } ap_optimizer_t;

/**
 * The graph as the model or file has it. @p params may be NULL, @p notes too. Refused: what the
 * front end refuses, and a size that is not for this kind of model. XM_ERR_NOT_FOUND gives the
 * nearest name.
 */
XM_API xm_status_t ap_frontend_load(const char *model, const ap_frontend_params_t *params,
                                    ap_graph_t **graph, ap_frontend_notes_t **notes);

/** Replaces a forward graph that names a loss by its training step; others stay as they are. */
XM_API xm_status_t ap_frontend_train(ap_optimizer_t optimizer, ap_graph_t **graph);

/** Name @p index of the built-in models, NULL past the end. `mlpN`, N square weights, is not
 * listed. */
XM_API const char *ap_zoo_name(size_t index);

/**
 * Reads @p size bytes of HLO text, as JAX (`lower(…).as_text(dialect="hlo")`) and XLA print it.
 * @p name stands for the file in sentences; @p notes may be NULL. Entry parameters whose buffers
 * are donated to a result are parameters of the model. Refused with line and column: text that does
 * not parse, shapes that do not go together, recursion, a module that computes nothing.
 */
XM_API xm_status_t ap_hlo_from_text(const char *text, size_t size, const char *name,
                                    ap_graph_t **graph, ap_frontend_notes_t **notes);

/** Reads @p size bytes of a JSON graph. Refused with line and column. */
XM_API xm_status_t ap_json_from_text(const char *text, size_t size, const char *name,
                                     ap_graph_t **graph);

/** A graph as such JSON, which ap_free() ends; NULL without memory. */
XM_API char *ap_json_text(const ap_graph_t *graph);

typedef struct ap_onnx_params {
    size_t struct_size;
    const char *const *dims; /**< "batch=8": sizes of symbolic dimensions */
    size_t dim_count;
} ap_onnx_params_t;

#define AP_ONNX_PARAMS_INIT                                                                        \
    {                                                                                              \
        sizeof(ap_onnx_params_t), NULL, 0                                                          \
    }

/** Reads @p size bytes of an ONNX model. @p params and @p notes may be NULL. Refused with the node:
 * what is no ONNX model, shapes that do not go together, dimensions without a size. */
XM_API xm_status_t ap_onnx_from_bytes(const void *bytes, size_t size, const char *name,
                                      const ap_onnx_params_t *params, ap_graph_t **graph,
                                      ap_frontend_notes_t **notes);

/** Kinds of operators that were not understood, and one: what it is and how often it comes (@p
 * count may be NULL). */
XM_API int ap_frontend_notes_count(const ap_frontend_notes_t *notes);
XM_API const char *ap_frontend_notes_get(const ap_frontend_notes_t *notes, int index, int *count);

/** NULL is accepted. */
XM_API void ap_frontend_notes_destroy(ap_frontend_notes_t *notes);

#ifdef __cplusplus
}
#endif

#endif
