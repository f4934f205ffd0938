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
    xm_status_t status;    /* the first failure; nothing is read, entered or refused after it */
} json_reader_t;

/* Members of an object; what is refused is noted in the reader, with its place, and the value is
 * then the one for a member that is not there ("" for a string). */
const char *json_get_string(json_reader_t *r, const json_t *object, const char *key);
/* NULL when it is missing. */
const char *json_get_optional_string(json_reader_t *r, const json_t *object, const char *key);
/* The index of a string among these. */
int json_get_choice(json_reader_t *r, const json_t *object, const char *key, const char *what,
                    const char *const *names, size_t count);
bool json_get_bool(json_reader_t *r, const json_t *object, const char *key);
/* A finite number that is not negative. */
double json_get_number(json_reader_t *r, const json_t *object, const char *key, double otherwise);
int64_t json_get_int(json_reader_t *r, const json_t *object, const char *key, int64_t minimum,
                     int64_t maximum, int64_t otherwise);
/* At most `room` integers in range; returns their number, or `otherwise` where there is no list. */
int json_get_ints(json_reader_t *r, const json_t *object, const char *key, int64_t minimum,
                  int64_t maximum, int room, int64_t *numbers, int otherwise);
/* Dimensions of a shape: positive, and not more than 2^48 elements. */
ap_shape_t json_get_shape(json_reader_t *r, const json_t *object, const char *key);
ap_dtype_t json_get_dtype(json_reader_t *r, const json_t *object, const char *key,
                          ap_dtype_t otherwise);
/* Refuses other keys than these, with the nearest. */
void json_check_keys(json_reader_t *r, const json_t *object, const char *const *keys, size_t count);
/* A failure at member `key` (or at the object itself when NULL). */
void json_refuse(json_reader_t *r, const char *key, const char *format, ...) XM_PRINTF(3, 4);
/* Notes what another room made of member `key`; its sentence is set when it failed. False: it
 * failed. */
bool json_note(json_reader_t *r, const char *key, xm_status_t status);

/* One operator whose operands are known. */
typedef struct json_op {
    const char *name, *kind;
    const char *label; /* NULL: none */
    ap_phase_t phase;
    int operands[AP_MAX_OPERANDS];
    int count;
    double repeat;
} json_op_t;

/* Adds an operator by what it is; its results go into `results`. Returns their number. */
int json_add_by_kind(json_reader_t *r, const json_t *object, const json_op_t *op, int *results);
