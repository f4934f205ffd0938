/* SPDX-License-Identifier: Apache-2.0 */
/* Python that every exported module for JAX ends with. Private to planner/export/jax.c. */
#ifndef AP_PLANNER_EXPORT_JAX_TEXT_H
#define AP_PLANNER_EXPORT_JAX_TEXT_H

extern const char ap_export_jax_text[];

#endif
