/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file shipped.h
 * Profiles of clusters that people have, under names such as "h100-8x8". Their numbers are assumed;
 * each says by which sources. Threads: no shared state.
 */
#pragma once

#include <stddef.h>

/** Name number @p index, in alphabetical order, or NULL. */
const char *xm_cluster_shipped_name(size_t index);

/** The JSON text of a name, or NULL. */
const char *xm_cluster_shipped_text(const char *name);
