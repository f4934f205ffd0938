/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file table.h
 * The tables that commands print: a head of names and units behind a "#", then rows whose columns
 * stay in place, 132 columns wide at most unless all are asked for; or the same as CSV, with all
 * columns. A missing number is a dash, and nothing in CSV.
 *
 * @code
 *     static const xm_table_column_t columns[] = {
 *         {"case", "", 10, false}, {"median", "us", 10, false}, {"stddev", "us", 10, true}};
 *     xm_table_t table = {stdout, columns, 3, .wide = options->wide, .csv = options->csv};
 *     xm_table_head(&table);
 *     xm_table_text(&table, "%s", name);
 *     xm_table_number(&table, 1, median * 1e6);
 *     xm_table_number(&table, 1, stddev * 1e6); // the last cell ends the row
 * @endcode
 */
#pragma once

#include <stdbool.h>
#include <stdio.h>

#include "comm/base.h"

typedef struct xm_table_column {
    const char *name, *unit; /**< unit "": none */
    int width;               /**< negative: text, to the left, which is cut where it is longer */
    bool wide;               /**< left out of a table that is neither wide nor CSV */
} xm_table_column_t;

typedef struct xm_table {
    FILE *file;
    const xm_table_column_t *columns;
    int count;
    bool wide, csv;
    char start; /**< of rows: '#' where they are remarks themselves; 0: a blank */
    int next;   /**< the column of the next cell */
} xm_table_t;

void xm_table_head(xm_table_t *table);

/** The cells of a row, one after the other, those that are left out as well. */
void xm_table_text(xm_table_t *table, const char *format, ...) XM_PRINTF(2, 3);
/** NaN is a number that is missing. */
void xm_table_number(xm_table_t *table, int digits, double value);
