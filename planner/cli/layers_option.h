/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file layers_option.h
 * `--layers auto|COUNT|FILE` and `--layer-pattern REGEX`: how a model file's operators become
 * layers.
 */
#pragma once

#include "planner/passes.h"

/** Holds what the layering points at. Start from zero. */
typedef struct ap_layers_option {
    char *text;
    const char **marks;
} ap_layers_option_t;

/**
 * Reads both options; either may be NULL. A file has on each line the name of an operator that a
 * layer begins with; empty lines and what follows a # are skipped.
 */
xm_status_t ap_layers_option_read(const char *layers, const char *pattern,
                                  ap_layers_option_t *option, ap_layering_t *how);

void ap_layers_option_clear(ap_layers_option_t *option);
