/* SPDX-License-Identifier: Apache-2.0 */
/* Python that every exported module for JAX ends with. Private to planner/export/jax.c. */
#pragma once

extern const char ap_export_jax_text[];
