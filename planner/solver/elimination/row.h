/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file planner/solver/elimination/row.h
 * The inner loop of elimination.h: one row of a message. Not installed.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "planner/solver/elimination/elimination.h"

/** A table that mentions the variable that goes. */
typedef struct ap_elimination_source {
    const double *values;
    double *turned; /**< owned: the values with the last variable of the message side by side */
    double *low;    /**< owned: the least of every row; NULL: all along a row it is the same */
    size_t offset, stride;                /**< stride: of the variable that goes */
    size_t strides[AP_ELIMINATION_SCOPE]; /**< of the message's variables; of the last 1 or 0 */
} ap_elimination_source_t;

/** A row of the message: the cells that differ in its last variable only, side by side. */
typedef struct ap_elimination_row {
    int width;
    int last; /**< place of the last variable in the message's scope; -1: it has none */
    double *sum, *least, *winner; /**< of one value of the variable that goes; of all; which one */
    bool *taken;                  /**< per value */
} ap_elimination_row_t;

/**
 * Least sum over the @p size values of the variable that goes, and the first value that gives it.
 * Values that cannot win anywhere are left out; so first come those that won in the row @p before
 * (NULL: there is none).
 */
void ap_elimination_minimise(const ap_elimination_source_t *sources, int source_count, int size,
                             const uint16_t *before, const ap_elimination_row_t *row);
