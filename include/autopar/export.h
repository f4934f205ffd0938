/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file export.h
 * Shardings and plans in the words of JAX, XLA and PyTorch, as text that ap_free() ends.
 *
 *  - `jax`: a Python module with the mesh and PartitionSpecs; for a graph that came from HLO text
 *    also its `lower(function, mesh, *arguments)`, which traces the function again and puts
 *    `with_sharding_constraint` around its operators;
 *  - `torch`: JSON with one DTensor placement per mesh axis: `Shard(0)`, `Replicate()`,
 *    `Partial()`;
 *  - `hlo`: of a sharding, a copy of the HLO text with `sharding={…}` in XLA's V2 form and the
 * steps of every resharding; of a plan, the JSON of `torch` with XLA's attributes.
 *
 * The axes of meshes are called "x", "y", "z", "w"; device k is logical device k of the mesh, row-major.
 * Threads: no shared state.
 *
 * @code
 *     xm_status_t print_placements(const ap_sharding_t *sharding)
 *     {
 *         char *text;
 *         xm_status_t status = ap_export_sharding(sharding, NULL, AP_EXPORT_TORCH, &text);
 *
 *         if (status == XM_OK) {
 *             fputs(text, stdout);
 *             ap_free(text);
 *         }
 *         return status;
 *     }
 * @endcode
 */
#ifndef AUTOPAR_EXPORT_H
#define AUTOPAR_EXPORT_H

#include <autopar/frontend.h>
#include <autopar/plan.h>
#include <autopar/shard.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum ap_export_form { AP_EXPORT_JAX, AP_EXPORT_HLO, AP_EXPORT_TORCH } ap_export_form_t;

/** @p notes are those of the front end, or NULL: then JAX has specs by name, and no `lower`.
 * XM_ERR_UNSUPPORTED for AP_EXPORT_HLO, which needs the text: ap_export_sharding_hlo(). */
XM_API xm_status_t ap_export_sharding(const ap_sharding_t *sharding,
                                      const ap_frontend_notes_t *notes, ap_export_form_t form,
                                      char **text);

/**
 * The annotated copy of @p hlo, @p size bytes called @p name in sentences. @p notes are those of
 * ap_hlo_from_text() for the very same text, from which the sharding's graph comes.
 */
XM_API xm_status_t ap_export_sharding_hlo(const ap_sharding_t *sharding,
                                          const ap_frontend_notes_t *notes, const char *hlo,
                                          size_t size, const char *name, char **text);

/** Per stage its mesh, its devices and the shardings of its operators, told by layer and name as in
 * the plan, and how tensors pass between stages. */
XM_API xm_status_t ap_export_plan_text(const ap_plan_t *plan, ap_export_form_t form, char **text);

#ifdef __cplusplus
}
#endif

#endif
