/* SPDX-License-Identifier: Apache-2.0 */
/* Settings from the environment, by one table of names, types and defaults from which
 * documentation and checks are made as well. Values are read from the environment each time and
 * never stored, so there is no state to initialise and no order of calls. Checking is separate
 * from reading: xm_config_check() complains once, at the start of a job, and a reader of a
 * malformed value gets the default instead of an error that it could not handle. */
#include "comm/base/config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/base/log_filter.h"
#include "comm/base/path_pattern.h"
#include "comm/base/text.h"

extern char **environ;

/* The type column of the table, as text that also serves the documentation. */
#define SECONDS         "seconds"
#define PERIOD          "seconds or 0"
#define BYTES           "bytes"
#define COUNT           "count"
#define STRING          "string"
#define PATTERN         "path"
#define LEVELS          "levels"
#define CHOICE(choices) choices

static const xm_config_row_t rows[XM_CONFIG_COUNT] = {
#define CONFIG_ROW(id, type, fallback, uniform, doc) {"XM_" #id, type, fallback, uniform, doc},
    XM_CONFIG_TABLE(CONFIG_ROW)
#undef CONFIG_ROW
};

enum { MAX_COUNT = 64, MAX_SECONDS = 86400 };

const xm_config_row_t *xm_config_row(xm_config_id_t id)
{
    return &rows[id];
}

/* The string belongs to the environment and is valid until somebody changes it. */
const char *xm_config_string(xm_config_id_t id)
{
    const char *value = getenv(rows[id].name);

    return value != NULL ? value : rows[id].default_value;
}

/* Tells a default from the same value that a user has asked for. */
bool xm_config_is_set(xm_config_id_t id)
{
    return getenv(rows[id].name) != NULL;
}

/* A choice is one of the words that the type lists, by its position. */
static xm_status_t parse_choice(const xm_config_row_t *row, const char *text, int *index)
{
    const char *choice = row->type;
    size_t length = strlen(text);

    for (int i = 0;; ++i) {
        size_t choice_length = strcspn(choice, "|");

        if (choice_length == length && strncmp(choice, text, length) == 0) {
            *index = i;
            return XM_OK;
        }
        /* The last word of the type has no bar behind it. */
        if (choice[choice_length] == '\0') {
            return XM_MALFORMED("%s: '%s' is not one of %s", row->name, text, row->type);
        }
        choice += choice_length + 1;
    }
}

static xm_status_t check_pattern(const xm_config_row_t *row, const char *text)
{
    return xm_path_pattern_is_valid(text)
               ? XM_OK
               : XM_MALFORMED("%s: '%s' has a percent sign before something else than r (rank), h "
                              "(host), p (process id) or another one",
                              row->name, text);
}

/* The parts of levels are checked by the code that reads them, log_filter.h. */
static xm_status_t check_levels(const xm_config_row_t *row, const char *text)
{
    xm_log_filter_t filter;
    const char *bad;
    char names[256] = "";
    int length;

    if (xm_log_filter_parse(text, &filter, &bad, &length)) {
        return XM_OK;
    }
    for (int s = 0; s < XM_LOG_SUBJECT_COUNT; ++s) {
        xm_text_list_add(names, sizeof(names), ", ", "%s",
                         xm_log_subject_name((xm_log_subject_t)s));
    }
    return XM_MALFORMED("%s: '%.*s' is neither a level (error, warn, info, debug, trace) nor of "
                        "the form SUBJECT=LEVEL with one of %s",
                        row->name, length, bad, names);
}

typedef union {
    double seconds;
    uint64_t bytes;
    int64_t count;
    int choice;
} value_t;

/* Parses a value by its row's type. */
static xm_status_t parse(const xm_config_row_t *row, const char *text, value_t *value)
{
    if (strcmp(row->type, SECONDS) == 0) {
        return xm_text_parse_double(row->name, text, 0.001, MAX_SECONDS, &value->seconds);
    }
    if (strcmp(row->type, PERIOD) == 0) {
        /* Below a hundredth of a second a sleeping processor would count as dead. */
        return strcmp(text, "0") == 0
                   ? XM_OK
                   : xm_text_parse_double(row->name, text, 0.01, MAX_SECONDS, &value->seconds);
    }
    if (strcmp(row->type, BYTES) == 0) {
        xm_status_t status = xm_text_parse_bytes(row->name, text, &value->bytes);

        return status < 0 || value->bytes > 0
                   ? status
                   : XM_MALFORMED("%s: '%s' is no size; it must be at least a byte", row->name,
                                  text);
    }
    if (strcmp(row->type, COUNT) == 0) {
        return xm_text_parse_int(row->name, text, 1, MAX_COUNT, &value->count);
    }
    /* Any text is a string; what it means is checked where it is used. */
    if (strcmp(row->type, STRING) == 0) {
        return XM_OK;
    }
    if (strcmp(row->type, PATTERN) == 0) {
        return check_pattern(row, text);
    }
    if (strcmp(row->type, LEVELS) == 0) {
        return check_levels(row, text);
    }
    return parse_choice(row, text, &value->choice);
}

/* A malformed value means the default. */
static value_t value_or_default(xm_config_id_t id)
{
    value_t value = {0};

    if (parse(&rows[id], xm_config_string(id), &value) < 0) {
        (void)parse(&rows[id], rows[id].default_value, &value);
    }
    return value;
}

double xm_config_seconds(xm_config_id_t id)
{
    return value_or_default(id).seconds;
}

uint64_t xm_config_bytes(xm_config_id_t id)
{
    return value_or_default(id).bytes;
}

int xm_config_count(xm_config_id_t id)
{
    return (int)value_or_default(id).count;
}

int xm_config_choice(xm_config_id_t id)
{
    return value_or_default(id).choice;
}

/* Checks all values, then looks for names that begin with XM_ and are unknown: a misspelt
 * setting would otherwise be ignored without a word. */
xm_status_t xm_config_check(void)
{
    const char *names[XM_CONFIG_COUNT];

    for (int id = 0; id < XM_CONFIG_COUNT; ++id) {
        value_t value;

        XM_TRY(parse(&rows[id], xm_config_string((xm_config_id_t)id), &value));
        names[id] = rows[id].name;
    }
    for (char **entry = environ; *entry != NULL; ++entry) {
        char name[64];
        size_t length = strcspn(*entry, "=");
        const char *nearest;
        bool known = false;

        /* A name that is longer than any setting's cannot be a misspelt one. */
        if (strncmp(*entry, "XM_", 3) != 0 || length >= sizeof(name)) {
            continue;
        }
        memcpy(name, *entry, length);
        name[length] = '\0';
        for (int id = 0; id < XM_CONFIG_COUNT; ++id) {
            known = known || strcmp(name, names[id]) == 0;
        }
        if (known) {
            continue;
        }
        nearest = xm_text_nearest(name, names, XM_CONFIG_COUNT);
        if (nearest != NULL) {
            return XM_NOT_FOUND("unknown setting %s; did you mean %s?", name, nearest);
        }
        return XM_NOT_FOUND("unknown setting %s; docs/configuration.md lists them all", name);
    }
    return XM_OK;
}

/* All settings that must be equal on all ranks, as one text that ranks compare. */
char *xm_config_fingerprint(char *buffer, size_t size)
{
    buffer[0] = '\0';
    for (int id = 0; id < XM_CONFIG_COUNT; ++id) {
        if (rows[id].uniform) {
            xm_text_list_add(buffer, size, " ", "%s=%s", rows[id].name,
                             xm_config_string((xm_config_id_t)id));
        }
    }
    return buffer;
}
