/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file lanes.h
 * Which rail of each receiving host takes in which bytes. The receivers of a class on one host may
 * use several rails, and what reaches one of them by its rail reaches the others over the ports.
 * That choice is made here, once for the whole batch, so that all rails of a host are busy for
 * equally long. Schedulers then see rails as hosts: every demand names the rails that hold it and
 * one rail of each receiving host. Where every host has one rail, a class is one lane.
 *
 * Where the ports would take longer than the rails, a part of every class comes to each of its
 * receivers by itself, so that less is left for the ports. Not installed.
 */
#pragma once

#include "resharding/plan/plan_private.h"

/* Bytes [first, end) of a class, whose tasks are taken end to end. */
typedef struct {
    int64_t first, end;
    const int *rails; /* one of each receiving host, ascending */
    int count;
    int receiver; /* the one rank that gets it, or −1: all remote ones */
} xm_lane_t;

/* The lanes of a class: [first, end) of all. */
typedef struct {
    int64_t first, end;
} xm_lane_range_t;

/* Rails, ascending, each once. */
typedef struct {
    const int *rails;
    int count;
} xm_rail_list_t;

typedef struct xm_lanes {
    xm_network_t *network; /* its hosts are the rails */
    xm_lane_t *lanes;
    xm_lane_range_t *by_class;
    xm_rail_list_t *holders; /* by class: the rails that hold it */
    int *rail_of;            /* by rank */
    int64_t *offset;         /* by task: of its first byte in its class */
    int64_t count;
    size_t room;      /* of `lanes` */
    xm_arena_t arena; /* owns the lists of rails */
} xm_lanes_t;

/* Elements [first, end) of a task. */
typedef struct {
    int64_t first, end;
} xm_part_t;

/* `single` is the part of every class that comes to each receiver by itself. With `near`, receivers
 * beside a holder count as holders: their rails send on what they get from it. */
xm_status_t xm_lanes_create(const xm_plan_t *plan, const xm_network_t *network,
                            const xm_classes_t *classes, double single, bool near,
                            xm_lanes_t *lanes);
void xm_lanes_clear(xm_lanes_t *lanes);

/* The part for which ports and rails take equally long; 0 where the ports are faster anyway. */
xm_status_t xm_lanes_single(const xm_network_t *network, const xm_classes_t *classes,
                            double *single);

/* The elements of a task that a lane of its class carries; an element that is cut belongs to the
 * later lane. May be none. */
xm_part_t xm_lane_part(const xm_lanes_t *lanes, const xm_plan_t *plan, const xm_lane_t *lane,
                       int64_t task);
