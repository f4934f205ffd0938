/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The events of yajl's parser, and what they put together: flat lists of numbers. Internal to the
 * reader.
 */
#pragma once

#include <yajl/yajl_parse.h>

#include "planner/solver/network/network.h"

/* A list of numbers, or of the places where lists of numbers begin. */
typedef struct ap_cfn_numbers {
    int64_t *at;
    size_t count, capacity;
} ap_cfn_numbers_t;

/* Where in the document the reader is: which list the next number belongs to. */
typedef enum ap_cfn_place {
    AP_CFN_PLACE_OTHER, /* skipped */
    AP_CFN_PLACE_NAME,
    AP_CFN_PLACE_LIMIT,
    AP_CFN_PLACE_INTERVALS,
    AP_CFN_PLACE_COSTS,
    AP_CFN_PLACE_USAGES,
    AP_CFN_PLACE_SCOPES,
    AP_CFN_PLACE_CELLS,
    AP_CFN_PLACE_COUNT
} ap_cfn_place_t;

/* The objects around the place: the document, its "problem", and "nodes" or "edges" in that. */
enum { AP_CFN_LEVEL_TOP, AP_CFN_LEVEL_PROBLEM, AP_CFN_LEVEL_MEMBER };

typedef struct ap_cfn_reader {
    int depth;     /* brackets and braces that are open */
    int skip;      /* depth at which a skipped value began; 0: none */
    int object;    /* AP_CFN_LEVEL_… of the innermost object, when it is one of ours */
    bool in_edges; /* of the members of AP_CFN_LEVEL_MEMBER */
    ap_cfn_place_t place;
    int list;                      /* lists open at `place`: 0, 1, 2; -1: an object must follow */
    bool seen[AP_CFN_PLACE_COUNT]; /* members that came */
    ap_cfn_numbers_t values[AP_CFN_PLACE_COUNT], begins[AP_CFN_PLACE_COUNT];
    int64_t limit;
    char name[256];
    bool out_of_memory;
    char complaint[256];
    size_t line, column;   /* of the piece's first byte, from 1 */
    ap_cfn_fault_t fault;  /* what was refused once all was read */
    ap_cfn_place_t wanted; /* in a second reading: the list to stop at, `found` the sentence */
    int64_t wanted_index;
    char found[256];
} ap_cfn_reader_t;

/* The context is a reader. They stop the parser with a complaint. */
extern const yajl_callbacks ap_cfn_read_events;
