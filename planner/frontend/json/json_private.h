/* SPDX-License-Identifier: Apache-2.0 */
/* The inside of the JSON front end: shared by planner/frontend/json/json.c,
 * planner/frontend/json/kinds.c and json_read.c. */
#pragma once

#include <jansson.h>

#include "planner/graph.h"
#include "planner/frontend/json/place.h"
#include "planner/rules.h"

typedef struct json_reader {
    json_place_t place; /* of what is being read */
    ap_graph_t *graph;
    json_t *tensors, *ops; /* ids by name */
} json_reader_t;

/* Members of an object; each notes the place of what it refuses. */
xm_status_t json_get_string(json_reader_t *r, const json_t *object, const char *key,
                            const char **text);
xm_status_t json_get_bool(json_reader_t *r, const json_t *object, const char *key, bool *value);
/* A finite number that is not negative. */
xm_status_t json_get_number(json_reader_t *r, const json_t *object, const char *key,
                            double *number);
xm_status_t json_get_int(json_reader_t *r, const json_t *object, const char *key, int64_t minimum,
                         int64_t maximum, int64_t *number);
/* At most `room` integers in range. */
xm_status_t json_get_ints(json_reader_t *r, const json_t *object, const char *key, int64_t minimum,
                          int64_t maximum, int room, int64_t *numbers, int *count);
/* Dimensions of a shape: positive, and not more than 2^48 elements. */
xm_status_t json_get_shape(json_reader_t *r, const json_t *object, const char *key,
                           ap_shape_t *shape);
xm_status_t json_get_dtype(json_reader_t *r, const json_t *object, const char *key,
                           ap_dtype_t *dtype);
/* Refuses other keys than these, with the nearest. */
xm_status_t json_check_keys(json_reader_t *r, const json_t *object, const char *const *keys,
                            size_t count);
/* A failure at member `key` (or at the object itself when NULL). */
xm_status_t json_refuse(json_reader_t *r, const char *key, const char *format, ...) XM_PRINTF(3, 4);

/* One operator whose operands are known. */
typedef struct json_op {
    const char *name, *kind;
    const char *label; /* NULL: none */
    ap_phase_t phase;
    int operands[AP_MAX_OPERANDS];
    int count;
    double repeat;
} json_op_t;

/* Adds an operator by what it is; its results go into `results`, their number into `made`. */
xm_status_t json_add_by_kind(json_reader_t *r, const json_t *object, const json_op_t *op,
                             int *results, int *made);
