/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads the attributes of HLO instructions when a rule asks for them. The parser keeps attributes
 * as text, because most are never looked at and each has a grammar of its own; so a new kind of
 * instruction needs no change of the parser.
 *
 * All numbers come from a file: lists are bounded, dimensions are checked against the rank, and
 * whatever does not parse is an error with line and column.
 */

#include "planner/frontend/hlo/attribute.h"

#include <string.h>

hlo_slice_t hlo_attribute(const hlo_instruction_t *of, const char *key)
{
    for (int a = 0; a < of->attribute_count; ++a) {
        if (hlo_slice_is(of->attributes[a].key, key)) {
            hlo_slice_t value = of->attributes[a].value;

            if (value.length >= 2 && value.at[0] == '"') {
                value = (hlo_slice_t){value.at + 1, value.length - 2};
            }
            return value;
        }
    }
    return (hlo_slice_t){0};
}

/* Looks for a key inside `metadata={op_type="…" op_name="…"}`. The value is the text between the
 * quotes, escapes included. Metadata are for people, so what does not parse gives an empty slice
 * and no error. */
hlo_slice_t hlo_metadata(const hlo_module_t *module, const hlo_instruction_t *of, const char *key)
{
    hlo_slice_t metadata = hlo_attribute(of, "metadata");
    hlo_cursor_t cursor = hlo_cursor_of(&module->text, metadata);

    (void)hlo_accept(&cursor, "{");
    while (cursor.at < cursor.end) {
        hlo_slice_t word = hlo_word(&cursor);

        if (word.length == 0 || !hlo_accept(&cursor, "=")) {
            break;
        }
        if (hlo_peek(&cursor) == '"') {
            size_t start = ++cursor.at;

            while (cursor.at < cursor.end && module->text.bytes[cursor.at] != '"') {
                cursor.at += module->text.bytes[cursor.at] == '\\' ? 2 : 1;
            }
            if (cursor.at < cursor.end && hlo_slice_is(word, key)) {
                return (hlo_slice_t){module->text.bytes + start, cursor.at - start};
            }
            ++cursor.at;
        } else if (hlo_word(&cursor).length == 0) {
            break;
        }
    }
    return (hlo_slice_t){0};
}

/* Reads a list such as "{1,2}" from a cursor. Without a limit (below 0) the numbers are sizes and
 * may come twice; with one they are dimensions. */
static void read_list(hlo_cursor_t *cursor, int64_t limit, const char *key, hlo_list_t *list)
{
    hlo_expect(cursor, "{");
    while (hlo_more(cursor, list->count, "}")) {
        size_t at = cursor->at;
        int64_t value = hlo_integer(cursor);

        if (value < 0 || (limit >= 0 && value >= limit)) {
            (void)hlo_fail(cursor, at, "%s: there is no dimension %lld", key, (long long)value);
        }
        if (list->count == OPERATOR_MAX_LIST || (limit >= 0 && hlo_list_has(list, value))) {
            (void)hlo_fail(cursor, at, "%s: %s", key,
                           list->count == OPERATOR_MAX_LIST ? "too many numbers"
                                                            : "a dimension comes twice");
            return;
        }
        list->values[list->count++] = value;
    }
}

xm_status_t hlo_attribute_dims(const hlo_module_t *module, const hlo_instruction_t *of,
                               const char *key, int limit, hlo_list_t *list)
{
    hlo_slice_t value = hlo_attribute(of, key);
    hlo_cursor_t cursor = hlo_cursor_of(&module->text, value);

    list->count = 0;
    if (value.length > 0) {
        read_list(&cursor, limit, key, list);
    }
    return cursor.status;
}

xm_status_t hlo_attribute_number(const hlo_module_t *module, const hlo_instruction_t *of,
                                 const char *key, int64_t otherwise, int64_t *value)
{
    hlo_slice_t text = hlo_attribute(of, key);
    hlo_cursor_t cursor = hlo_cursor_of(&module->text, text);

    *value = text.length == 0 ? otherwise : hlo_integer(&cursor);
    return cursor.status;
}

bool hlo_list_has(const hlo_list_t *list, int64_t value)
{
    for (int i = 0; i < list->count; ++i) {
        if (list->values[i] == value) {
            return true;
        }
    }
    return false;
}

/* Reads a field such as "3x3" or "1_1x0_0": one or two numbers for each dimension. A dimension
 * stays trivial as long as all of its numbers, in all fields, are `neutral`. */
static void read_window_field(hlo_cursor_t *cursor, hlo_window_t *window, int64_t neutral,
                              int64_t *values)
{
    for (int d = 0; d < AP_MAX_RANK; ++d) {
        do {
            int64_t value = hlo_integer(cursor);

            window->trivial[d] = window->trivial[d] && value == neutral;
            if (values != NULL) {
                values[d] = value;
            }
        } while (hlo_accept(cursor, "_"));
        window->rank = values == window->size ? d + 1 : window->rank;
        if (!hlo_accept(cursor, "x")) {
            return;
        }
    }
    (void)hlo_fail(cursor, cursor->at, "a window has at most %d dimensions", AP_MAX_RANK);
}

/* The order of fields is free. Fields that are missing are neutral, so a dimension is trivial
 * unless some field says otherwise; only `size` tells how many dimensions there are. */
xm_status_t hlo_attribute_window(const hlo_module_t *module, const hlo_instruction_t *of,
                                 hlo_window_t *window)
{
    const struct {
        const char *name;
        int64_t neutral;
        int64_t *values; /* where they are kept; NULL: they are not */
    } fields[] = {{"size", 1, window->size}, {"stride", 1, NULL},
                  {"pad", 0, NULL},          {"lhs_dilate", 1, window->spread},
                  {"rhs_dilate", 1, NULL},   {"rhs_reversal", 0, NULL}};
    hlo_cursor_t cursor = hlo_cursor_of(&module->text, hlo_attribute(of, "window"));

    memset(window, 0, sizeof(*window));
    memset(window->trivial, true, sizeof(window->trivial));
    for (int d = 0; d < AP_MAX_RANK; ++d) {
        window->spread[d] = 1;
    }
    if (!hlo_accept(&cursor, "{")) {
        return XM_OK;
    }
    while (cursor.status == XM_OK && !hlo_accept(&cursor, "}")) {
        size_t at = cursor.at;
        hlo_slice_t word = hlo_word(&cursor);
        bool known = false;

        hlo_expect(&cursor, "=");
        for (size_t f = 0; f < sizeof(fields) / sizeof(fields[0]); ++f) {
            if (hlo_slice_is(word, fields[f].name)) {
                read_window_field(&cursor, window, fields[f].neutral, fields[f].values);
                known = true;
            }
        }
        if (!known) {
            (void)hlo_fail(&cursor, at, "'%.*s' is not a part of a window",
                           (int)(word.length > 40 ? 40 : word.length), word.at);
        }
    }
    for (int d = 0; d < window->rank && cursor.status == XM_OK; ++d) {
        if (window->size[d] <= 0 || window->spread[d] <= 0) {
            return hlo_error(&module->text, of->at, "%s %d of the window is not positive",
                             window->size[d] <= 0 ? "size" : "lhs_dilate", d);
        }
    }
    return cursor.status;
}

/* Reads one group of labels, e.g. "b01f": `letters` get dimension numbers in `named`, digits in
 * `spatial`. Returns the number of spatial dimensions, or -1 when a label is unknown, missing or
 * comes twice. */
static int read_labels(hlo_cursor_t *cursor, const char *letters, int *named, int *spatial)
{
    const char *bytes = cursor->text->bytes;
    int count = 0, dim = 0;

    named[0] = named[1] = -1;
    for (int i = 0; i < AP_MAX_RANK; ++i) {
        spatial[i] = -1;
    }
    for (; cursor->at < cursor->end && bytes[cursor->at] != '_' && bytes[cursor->at] != '-';
         ++cursor->at, ++dim) {
        char c = bytes[cursor->at];
        int *place = c == letters[0]                         ? &named[0]
                     : c == letters[1]                       ? &named[1]
                     : c >= '0' && c < '0' + AP_MAX_RANK - 2 ? &spatial[c - '0']
                                                             : NULL;

        if (place == NULL || *place >= 0 || dim == AP_MAX_RANK) {
            return -1;
        }
        *place = dim;
        count += c >= '0' && c <= '9';
    }
    for (int i = 0; i < count; ++i) {
        if (spatial[i] < 0) {
            return -1;
        }
    }
    return named[0] < 0 || named[1] < 0 ? -1 : count;
}

/* The three groups must name the same spatial dimensions, and each all of its own, so that every
 * dimension of a convolution is known by exactly one label. */
xm_status_t hlo_attribute_conv_dims(const hlo_module_t *module, const hlo_instruction_t *of,
                                    hlo_conv_dims_t *dims)
{
    hlo_cursor_t cursor = hlo_cursor_of(&module->text, hlo_attribute(of, "dim_labels"));
    int lhs, rhs, out;

    lhs = read_labels(&cursor, "bf", dims->lhs, dims->lhs_spatial);
    (void)hlo_accept(&cursor, "_");
    rhs = read_labels(&cursor, "io", dims->rhs, dims->rhs_spatial);
    (void)hlo_accept(&cursor, "->");
    out = read_labels(&cursor, "bf", dims->out, dims->out_spatial);
    if (lhs < 0 || lhs != rhs || lhs != out || cursor.at != cursor.end) {
        return hlo_error(&module->text, of->at,
                         "a convolution needs dim_labels such as b01f_01io->b01f");
    }
    dims->spatial = lhs;
    return XM_OK;
}

xm_status_t hlo_attribute_computation(const hlo_module_t *module, const hlo_instruction_t *of,
                                      const char *key, int *computation)
{
    hlo_slice_t name = hlo_attribute(of, key);

    *computation = name.length == 0 ? -1 : hlo_module_find(module, name);
    if (*computation < 0) {
        return hlo_error(&module->text, of->at, "%s names no computation of this module: '%.*s'",
                         key, (int)(name.length > 80 ? 80 : name.length),
                         name.length > 0 ? name.at : "");
    }
    return XM_OK;
}
