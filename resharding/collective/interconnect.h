/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file interconnect.h
 * What moves of a program share, and the least time that a collective needs there.
 *
 * Either *dimensions*: devices lie in a mesh of up to four, the first of which varies fastest, and
 * have a full-duplex port in each, or share it with their neighbours, as the devices of a host
 * share a NIC. A message takes ports of the last dimension in which its ends differ, and those of
 * the last dimension where one end is a switch. Or *links*: a matrix of rates between devices, and
 * nothing else. The bytes of a dimension may be encoded: fewer on the wire, and time to encode at
 * its ends.
 */
#pragma once

#include "resharding/collective/program.h"

enum { XM_INTERCONNECT_MOST = 4 };

typedef struct xm_dimension {
    int extent;
    int share;       /**< devices that share a port, neighbours in number */
    double rate;     /**< bytes/s of a port, per direction */
    double latency;  /**< seconds */
    double overhead; /**< seconds that a move occupies its ports besides its bytes */
    double ratio;    /**< bytes on the wire for a byte of data */
    double coding;   /**< bytes/s of data that are encoded and decoded; 0: at once */
    /* Of queues.h only. */
    double burst;   /**< bytes that a port lets through at once after a pause (token buckets) */
    double message; /**< seconds of a processor for a move, both ends together */
    double cpu;     /**< the same for a byte of data */
} xm_dimension_t;

typedef struct xm_interconnect {
    int devices, dimensions;
    int processors; /**< of queues.h: shared by all devices, as by ranks of one machine; 0: never
                       the limit */
    xm_dimension_t
        dimension[XM_INTERCONNECT_MOST]; /**< with links: the first's latency and coding */
    double *link; /**< bytes/s from device a to b at a · devices + b; NULL: ports */
} xm_interconnect_t;

/** What a message occupies: ports, of which a switch has none, or a link. */
typedef struct xm_occupied {
    int count, resource[2];
    double rate; /**< bytes/s of data */
    const xm_dimension_t *dimension;
} xm_occupied_t;

int xm_interconnect_resources(const xm_interconnect_t *interconnect);
/** XM_ERR_INVALID_ARGUMENT when no link connects the two. */
xm_status_t xm_interconnect_use(const xm_interconnect_t *interconnect, int from, int to,
                                xm_occupied_t *occupied);

/**
 * Seconds below which no program can be. @p bytes is what a device has in the end, or at first: of
 * all-to-all, all its blocks. In all-reduce every part of a partition needs what the others add
 * and they its own, which are 2 (parts - 1) crossings of every byte; where switches add
 * (@p switches), one out of and one into each part; of the others a byte enters each part once.
 * With links, all-reduce has the bound of the packing of trees, and the flow to the device that is
 * hardest to reach (@p packed: xm_packing_rate(), else 0).
 */
xm_status_t xm_collective_bound(const xm_interconnect_t *interconnect, xm_collective_t kind,
                                bool switches, double bytes, double packed, double *seconds);
