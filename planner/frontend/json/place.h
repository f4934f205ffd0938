/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where a value stands in a JSON text: jansson tells line and column of what it cannot parse, this
 * tells them of what it could.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

enum { JSON_PLACE_DEPTH = 6 };

/* The way to a value: keys of objects, or where `key` is NULL positions in arrays. */
typedef struct json_place {
    int depth;
    bool fixed; /* the fault is here: nothing enters or leaves any more */
    struct {
        const char *key;
        size_t index;
    } step[JSON_PLACE_DEPTH];
} json_place_t;

void json_place_enter(json_place_t *place, const char *key);
void json_place_enter_at(json_place_t *place, size_t index);
void json_place_leave(json_place_t *place);

/*
 * Finds the value in a text that is known to be valid JSON; as much of the way as there is. Line
 * and column count from 1.
 */
void json_place_find(const json_place_t *place, const char *text, size_t size, int *line,
                     int *column);
