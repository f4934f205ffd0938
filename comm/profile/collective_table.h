/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file collective_table.h
 * What an importer has read of one benchmark: rows, ranks, the collective. Internal to the import.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "comm/profile/collective_import.h"

enum { XM_TABLE_ROWS = 256, XM_TABLE_HOST = 64, XM_TABLE_RANKS = 1 << 14 };

typedef struct xm_table_rank {
    int group;
    char host[XM_TABLE_HOST];
} xm_table_rank_t;

typedef struct xm_collective_table {
    int kind;             /**< -1: unknown */
    char library[64];     /**< "" : unknown */
    uint64_t scale_power; /**< bytes of collective_curve.h = size * devices ^ scale_power */
    xm_curve_point_t rows[XM_TABLE_ROWS]; /**< size as printed, seconds */
    size_t count;
    xm_table_rank_t *ranks; /**< freed with free() */
    size_t rank_count, rank_room;
} xm_collective_table_t;

/** Adds a row. A size of 0 is left out; sentences have no place in front yet. */
xm_status_t xm_table_add_row(xm_collective_table_t *table, uint64_t size, double microseconds);

xm_status_t xm_table_add_rank(xm_collective_table_t *table, int group, const char *host,
                              size_t length);

/** The collective of an nccl-tests program ("…/all_reduce_perf"), or -1. */
int xm_table_nccl_kind(const char *program, size_t length);

/** "NCCL 2.28.7" from 22807, into the table. */
void xm_table_nccl_version(xm_collective_table_t *table, long version);

/** Readers of the formats. Sentences name the line. */
xm_status_t xm_table_read_nccl_text(const char *text, size_t length, xm_collective_table_t *table);
xm_status_t xm_table_read_osu_text(const char *text, size_t length, xm_collective_table_t *table);
