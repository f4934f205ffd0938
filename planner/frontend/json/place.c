/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where a value stands in a JSON text. jansson tells line and column of a syntax error and forgets
 * them for everything that parses; but a wrong shape in a file of a thousand operators needs a
 * place, too. Instead of a parser that keeps positions, the way to the faulty value (keys and
 * indices) is remembered and followed through the text again, after a failure and only then.
 *
 * The text is known to be valid JSON, so commas and colons can be skipped like blanks.
 */

#include "planner/frontend/json/place.h"

#include <string.h>

/* Steps beyond the room are counted and not kept: the place found is then that of the value
 * around. */
void json_place_enter(json_place_t *place, const char *key)
{
    if (place->fixed) {
        return;
    }
    if (place->depth < JSON_PLACE_DEPTH) {
        place->step[place->depth].key = key;
        place->step[place->depth].index = 0;
    }
    ++place->depth;
}

void json_place_enter_at(json_place_t *place, size_t index)
{
    json_place_enter(place, NULL);
    if (!place->fixed && place->depth <= JSON_PLACE_DEPTH) {
        place->step[place->depth - 1].index = index;
    }
}

void json_place_leave(json_place_t *place)
{
    place->depth -= !place->fixed;
}

typedef struct scanner {
    const char *text;
    size_t size, at;
} scanner_t;

static char peek(scanner_t *s)
{
    while (s->at < s->size && strchr(" \t\r\n,:", s->text[s->at]) != NULL) {
        ++s->at;
    }
    return s->at < s->size ? s->text[s->at] : '\0';
}

/* Past a string, whose opening quote is next. */
static void skip_string(scanner_t *s)
{
    for (++s->at; s->at < s->size && s->text[s->at] != '"'; ++s->at) {
        s->at += s->text[s->at] == '\\';
    }
    ++s->at;
}

/* Moves past a value of any kind. Every round consumes a character, and the end of the text ends
 * it. */
static void skip_value(scanner_t *s)
{
    int depth = 0;

    do {
        char c = peek(s);

        if (c == '\0') {
            return;
        }
        if (c == '"') {
            skip_string(s);
            continue;
        }
        depth += (c == '{' || c == '[') - (c == '}' || c == ']');
        ++s->at;
        while (c != '{' && c != '[' && c != '}' && c != ']' && s->at < s->size &&
               strchr(" \t\r\n,:]}", s->text[s->at]) == NULL) {
            ++s->at;
        }
    } while (depth > 0);
}

/* Whether the string that is next is `key`, written without escapes. A key with escapes is not
 * found, and the place is then that of its object. */
static bool is_key(const scanner_t *s, const char *key)
{
    size_t length = strlen(key);

    return s->size - s->at > length + 1 && memcmp(s->text + s->at + 1, key, length) == 0 &&
           s->text[s->at + length + 1] == '"';
}

/* Into an object or array, to the value of a step; false when there is none. */
static bool descend(scanner_t *s, const char *key, size_t index)
{
    if (peek(s) != (key != NULL ? '{' : '[')) {
        return false;
    }
    ++s->at;
    for (size_t i = 0; peek(s) != '}' && peek(s) != ']' && peek(s) != '\0'; ++i) {
        if (key != NULL) {
            bool found = is_key(s, key);

            skip_string(s);
            (void)peek(s);
            if (found) {
                return true;
            }
        } else if (i == index) {
            return true;
        }
        skip_value(s);
    }
    return false;
}

/* Follows the way as far as it goes, then counts lines. */
void json_place_find(const json_place_t *place, const char *text, size_t size, int *line,
                     int *column)
{
    scanner_t s = {.text = text, .size = size};
    size_t found;

    (void)peek(&s);
    found = s.at;
    for (int d = 0; d < place->depth && d < JSON_PLACE_DEPTH; ++d) {
        if (!descend(&s, place->step[d].key, place->step[d].index)) {
            break;
        }
        found = s.at;
    }
    *line = *column = 1;
    for (size_t i = 0; i < found && i < size; ++i) {
        ++*column;
        if (text[i] == '\n') {
            ++*line;
            *column = 1;
        }
    }
}
