/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What each event of the parser means, by where in the document it comes. That is the only state:
 * the objects that are open, and which list the next number belongs to.
 */

#include "planner/solver/network/read_events.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The nesting that is accepted. Skipped members may nest, and their depth is the file's choice, so
 * it has a limit. */
enum { DEPTH_MAX = 64 };

/* Yajl's callbacks return 0 to stop the parser; the complaint is what it stopped for. */
static int complain(ap_cfn_reader_t *reader, const char *sentence)
{
    (void)snprintf(reader->complaint, sizeof(reader->complaint), "%s", sentence);
    return 0;
}

/* Lists grow by half, not by doubling: with gigabytes of numbers the slack of a doubled list
 * counts. */
static int append(ap_cfn_reader_t *reader, ap_cfn_numbers_t *list, int64_t value)
{
    if (list->count == list->capacity) {
        size_t capacity = list->capacity > 0 ? list->capacity + list->capacity / 2 : 1024;
        int64_t *grown = realloc(list->at, capacity * sizeof(*grown));

        if (grown == NULL) {
            reader->out_of_memory = true;
            return complain(reader, "out of memory");
        }
        list->at = grown;
        list->capacity = capacity;
    }
    list->at[list->count++] = value;
    return 1;
}

/* Takes a number as text, since yajl's own conversion would make doubles of fractions and
 * exponents. Only digits pass, so signs, fractions and exponents are refused by one test. 19
 * digits always fit into 64 bits without a sign, so the sum cannot overflow before it is
 * compared. */
static int on_number(void *context, const char *text, size_t length)
{
    ap_cfn_reader_t *reader = context;
    uint64_t value = 0;

    if (reader->list == -1) {
        return complain(reader, "an object is expected");
    }
    if (reader->skip > 0 || reader->place == AP_CFN_PLACE_OTHER) {
        return 1;
    }
    /* Numbers are in lists of lists only. */
    if (reader->place != AP_CFN_PLACE_LIMIT && reader->list != 2) {
        return complain(reader, "a number where a list of lists is expected");
    }
    if (reader->place == AP_CFN_PLACE_NAME) {
        return complain(reader, "\"name\" must be a string");
    }
    /* Nothing longer can be below 2^63. */
    if (length > 19) {
        return complain(reader, "a number that is not an integer of 0 to 2^63 - 1");
    }
    for (size_t k = 0; k < length; ++k) {
        if (text[k] < '0' || text[k] > '9') {
            return complain(reader, "a number that is not an integer of 0 to 2^63 - 1");
        }
        value = 10 * value + (uint64_t)(text[k] - '0');
    }
    if (value > INT64_MAX) {
        return complain(reader, "a number that is not an integer of 0 to 2^63 - 1");
    }
    if (reader->place == AP_CFN_PLACE_LIMIT) {
        reader->limit = (int64_t)value;
        reader->place = AP_CFN_PLACE_OTHER;
        return 1;
    }
    return append(reader, &reader->values[reader->place], (int64_t)value);
}

/* Takes a value that is neither number, list nor object. Inside members that the format does not
 * know, any value is fine. */
static int on_scalar(ap_cfn_reader_t *reader)
{
    if (reader->list == -1) {
        return complain(reader, "an object is expected");
    }
    if (reader->skip > 0 || (reader->place == AP_CFN_PLACE_OTHER && reader->depth > 0)) {
        return 1;
    }
    if (reader->depth == 0) {
        return complain(reader, "an object with the member \"problem\" is expected");
    }
    return complain(reader, "an integer is expected");
}

/* Null is a value only as the limit. */
static int on_null(void *context)
{
    ap_cfn_reader_t *reader = context;

    if (reader->place == AP_CFN_PLACE_LIMIT && reader->skip == 0) { /* no limit */
        reader->seen[AP_CFN_PLACE_LIMIT] = false;
        reader->place = AP_CFN_PLACE_OTHER;
        return 1;
    }
    return on_scalar(reader);
}

static int on_boolean(void *context, int value)
{
    (void)value;
    return on_scalar(context);
}

/* A string is a value only as the name. */
static int on_string(void *context, const unsigned char *text, size_t length)
{
    ap_cfn_reader_t *reader = context;

    /* A longer name is cut off: it serves messages only. */
    if (reader->place == AP_CFN_PLACE_NAME && reader->skip == 0) {
        length = length < sizeof(reader->name) ? length : sizeof(reader->name) - 1;
        memcpy(reader->name, text, length);
        reader->name[length] = '\0';
        reader->place = AP_CFN_PLACE_OTHER;
        return 1;
    }
    return on_scalar(reader);
}

/* Keys come without a terminating zero. */
static bool is_key(const unsigned char *text, size_t length, const char *key)
{
    return length == strlen(key) && memcmp(text, key, length) == 0;
}

/* Finds the place that a key announces. "costs" and "nodes" each have two meanings, so the object
 * around the key decides. A member that comes twice is refused; the lists of both would run
 * together. */
static int on_key(void *context, const unsigned char *text, size_t length)
{
    static const struct {
        const char *key;
        int level;
        bool edges;
        ap_cfn_place_t place;
    } keys[] = {
        {"name", AP_CFN_LEVEL_PROBLEM, false, AP_CFN_PLACE_NAME},
        {"usage_limit", AP_CFN_LEVEL_PROBLEM, false, AP_CFN_PLACE_LIMIT},
        {"intervals", AP_CFN_LEVEL_MEMBER, false, AP_CFN_PLACE_INTERVALS},
        {"costs", AP_CFN_LEVEL_MEMBER, false, AP_CFN_PLACE_COSTS},
        {"usages", AP_CFN_LEVEL_MEMBER, false, AP_CFN_PLACE_USAGES},
        {"nodes", AP_CFN_LEVEL_MEMBER, true, AP_CFN_PLACE_SCOPES},
        {"costs", AP_CFN_LEVEL_MEMBER, true, AP_CFN_PLACE_CELLS},
    };
    ap_cfn_reader_t *reader = context;

    if (reader->skip > 0) {
        return 1;
    }
    reader->place = AP_CFN_PLACE_OTHER;
    for (size_t k = 0; k < sizeof(keys) / sizeof(keys[0]); ++k) {
        if (keys[k].level == reader->object &&
            (reader->object == AP_CFN_LEVEL_PROBLEM || keys[k].edges == reader->in_edges) &&
            is_key(text, length, keys[k].key)) {
            if (reader->seen[keys[k].place]) {
                return complain(reader, "this member came before");
            }
            reader->place = keys[k].place;
            reader->seen[keys[k].place] = true;
            return 1;
        }
    }
    /* A key that announces an object is marked by list = -1, which on_open() turns into a level;
     * everything else is skipped. */
    if (reader->object == AP_CFN_LEVEL_TOP && is_key(text, length, "problem")) {
        reader->list = -1;
    } else if (reader->object == AP_CFN_LEVEL_PROBLEM && is_key(text, length, "nodes")) {
        reader->list = -1;
        reader->in_edges = false;
    } else if (reader->object == AP_CFN_LEVEL_PROBLEM && is_key(text, length, "edges")) {
        reader->list = -1;
        reader->in_edges = true;
    }
    return 1;
}

/* Opens a list or an object. Three things can be open: an object of ours, a list of numbers at a
 * known place (two levels deep), and something unknown, which is skipped until its own bracket
 * closes. */
static int on_open(ap_cfn_reader_t *reader, bool object)
{
    if (++reader->depth > DEPTH_MAX) {
        return complain(reader, "lists are nested too deep");
    }
    if (reader->skip > 0) {
        return 1;
    }
    /* The document itself must be an object. */
    if (reader->depth == 1) {
        reader->object = AP_CFN_LEVEL_TOP;
        return object ? 1 : complain(reader, "an object with the member \"problem\" is expected");
    }
    /* The announced object opens: one level down. */
    if (reader->list == -1) {
        reader->list = 0;
        if (!object) {
            return complain(reader, "an object is expected");
        }
        ++reader->object;
        return 1;
    }
    if (reader->place == AP_CFN_PLACE_OTHER) {
        reader->skip = reader->depth;
        return 1;
    }
    if (object || reader->place == AP_CFN_PLACE_LIMIT || reader->place == AP_CFN_PLACE_NAME ||
        reader->list == 2) {
        return complain(reader, object ? "an object where numbers are expected"
                                       : "a list where a number is expected");
    }
    /* An inner list begins a node's or an edge's numbers, so the count of numbers so far is where
     * they start. In a second reading, this is also where the search for a refused node or edge
     * ends. */
    if (++reader->list == 2) {
        if (reader->place == reader->wanted &&
            (int64_t)reader->begins[reader->place].count == reader->wanted_index) {
            return complain(reader, reader->found);
        }
        return append(reader, &reader->begins[reader->place],
                      (int64_t)reader->values[reader->place].count);
    }
    return 1;
}

/* The closing bracket of a skipped value ends the skipping; its depth tells which one that is. */
static int on_close(void *context)
{
    ap_cfn_reader_t *reader = context;
    int depth = reader->depth--;

    if (reader->skip > 0) {
        reader->skip = reader->skip == depth ? 0 : reader->skip;
        return 1;
    }
    if (reader->list > 0) {
        --reader->list;
    } else if (reader->object > AP_CFN_LEVEL_TOP) {
        --reader->object;
        reader->place = AP_CFN_PLACE_OTHER;
    }
    return 1;
}

static int on_start_map(void *context)
{
    return on_open(context, true);
}
static int on_start_array(void *context)
{
    return on_open(context, false);
}

const yajl_callbacks ap_cfn_read_events = {
    .yajl_null = on_null,
    .yajl_boolean = on_boolean,
    .yajl_number = on_number,
    .yajl_string = on_string,
    .yajl_start_map = on_start_map,
    .yajl_map_key = on_key,
    .yajl_end_map = on_close,
    .yajl_start_array = on_start_array,
    .yajl_end_array = on_close,
};
