/* SPDX-License-Identifier: Apache-2.0 */
/* Which log lines are written: a level for everything and levels for subjects, where the
 * subject of a line follows from the file that logs it. So no call has to name its subject, and
 * moving a file to another room needs no change but in the table. A malformed text changes
 * nothing: the default applies. */
#include "comm/base/log_filter.h"

#include <string.h>

static const char *const level_names[XM_LOG_LEVEL_COUNT] = {"error", "warn", "info", "debug",
                                                            "trace"};

static const struct {
    const char *name, *files;
} subjects[XM_LOG_SUBJECT_COUNT] = {
#define SUBJECT_ROW(id, name, files) {name, files},
    XM_LOG_SUBJECT_TABLE(SUBJECT_ROW)
#undef SUBJECT_ROW
};

const char *xm_log_subject_name(xm_log_subject_t subject)
{
    return subjects[subject].name;
}

/* Whether a word of `files` stands in the path from its beginning or a slash on: __FILE__ is what
 * the compiler was given, so the tree may lie below any other folders. */
static bool matches(const char *files, const char *file)
{
    for (const char *word = files; *word != '\0'; word += strspn(word, " ")) {
        size_t length = strcspn(word, " ");

        for (const char *at = file; at != NULL; at = strchr(at, '/')) {
            at += *at == '/';
            if (strncmp(word, at, length) == 0) {
                return true;
            }
        }
        word += length;
    }
    return false;
}

/* The first subject that matches; the last one takes all that is left. */
xm_log_subject_t xm_log_subject_of(const char *file)
{
    int subject = 0;

    while (subject < XM_LOG_OTHER && !matches(subjects[subject].files, file)) {
        ++subject;
    }
    return (xm_log_subject_t)subject;
}

static bool is_word(const char *text, size_t length, const char *word)
{
    return strlen(word) == length && strncmp(text, word, length) == 0;
}

/* The index of a level, -1: there is none of that name. */
static int find_level(const char *text, size_t length)
{
    int level = XM_LOG_LEVEL_COUNT - 1;

    while (level >= 0 && !is_word(text, length, level_names[level])) {
        --level;
    }
    return level;
}

static int find_subject(const char *text, size_t length)
{
    int subject = XM_LOG_SUBJECT_COUNT - 1;

    while (subject >= 0 && !is_word(text, length, subjects[subject].name)) {
        --subject;
    }
    return subject;
}

/* Reads one part of the text into the levels given so far; -1 in `named`: not given. */
static bool parse_part(const char *part, size_t length, int *common, int *named)
{
    const char *equals = memchr(part, '=', length);
    size_t name_length = equals != NULL ? (size_t)(equals - part) : 0;
    const char *level_text = equals != NULL ? equals + 1 : part;
    int level = find_level(level_text, length - (size_t)(level_text - part));
    int subject = equals != NULL ? find_subject(part, name_length) : 0;

    if (level < 0 || subject < 0) {
        return false;
    }
    *(equals != NULL ? &named[subject] : common) = level;
    return true;
}

/* Parses the whole text before anything is set, and returns the part that is wrong, for the
 * sentence. A subject's own level counts wherever it stands in the text. */
bool xm_log_filter_parse(const char *text, xm_log_filter_t *filter, const char **bad, int *length)
{
    int common = XM_LOG_WARN, named[XM_LOG_SUBJECT_COUNT];
    bool ok = true;

    for (int s = 0; s < XM_LOG_SUBJECT_COUNT; ++s) {
        named[s] = -1;
    }
    for (const char *part = text; ok && part != NULL;) {
        size_t part_length = strcspn(part, ",");

        ok = parse_part(part, part_length, &common, named);
        if (!ok) {
            *bad = part;
            *length = (int)part_length;
        }
        part = part[part_length] == ',' ? part + part_length + 1 : NULL;
    }
    for (int s = 0; s < XM_LOG_SUBJECT_COUNT; ++s) {
        filter->level[s] = !ok             ? XM_LOG_WARN
                           : named[s] >= 0 ? (xm_log_level_t)named[s]
                                           : (xm_log_level_t)common;
    }
    return ok;
}
