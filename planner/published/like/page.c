/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The page is the only list of all systems, so the build puts its text into the program, and what a
 * name stands for is read from it: a second list would soon say something else.
 */

#include "planner/published/like/page.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

static const unsigned char page[] = {
#include "planner/published/like/page.inc"
    , 0};

/* A part of a line. */
typedef struct span {
    const char *begin, *end;
} span_t;

/* Whether a letter counts in a name; the bytes of a raised number do. */
static bool counts(char c)
{
    return isalnum((unsigned char)c) != 0 || c == '+' || (unsigned char)c >= 0x80;
}

/* Moves on to the next word, and over it. */
static span_t next_word(span_t *in)
{
    span_t word;

    while (in->begin < in->end && !counts(*in->begin)) {
        ++in->begin;
    }
    word.begin = in->begin;
    while (in->begin < in->end && counts(*in->begin)) {
        ++in->begin;
    }
    word.end = in->begin;
    return word;
}

/* The letters of a name without its blanks and hyphens, small; a raised two is a two. Stops after a
 * word at which `until` of them are there; returns how many there are. */
static size_t squeeze(span_t in, size_t until, char *letters, size_t size)
{
    size_t count = 0;

    while (in.begin < in.end && count < until) {
        span_t word = next_word(&in);

        for (const char *c = word.begin; c < word.end && count + 1 < size; ++c) {
            if ((unsigned char)*c == 0xC2) {
                continue;
            }
            letters[count++] = (unsigned char)*c == 0xB2 ? '2' : (char)tolower((unsigned char)*c);
        }
    }
    letters[count] = '\0';
    return count;
}

/* The next of the names of a first cell, which commas, brackets and "and" part. */
static bool next_name(span_t *cell, span_t *name)
{
    if (cell->begin >= cell->end) {
        return false;
    }
    name->begin = cell->begin;
    while (cell->begin < cell->end && strchr(",()", *cell->begin) == NULL &&
           strncmp(cell->begin, " and ", 5) != 0) {
        ++cell->begin;
    }
    name->end = cell->begin;
    cell->begin += cell->begin < cell->end && *cell->begin == ' ' ? 5 : 1;
    return true;
}

static bool is_named(span_t cell, const char *name)
{
    enum { LETTERS = 96 };
    char wanted[LETTERS], letters[LETTERS];
    size_t length = squeeze((span_t){name, name + strlen(name)}, LETTERS, wanted, LETTERS);
    span_t one, rest = cell;

    (void)squeeze(cell, length, letters, LETTERS);
    if (length > 2 && strcmp(wanted, letters) == 0) {
        return true;
    }
    while (next_name(&rest, &one)) {
        (void)squeeze(one, length, letters, LETTERS);
        if (length > 1 && strcmp(wanted, letters) == 0) {
            return true;
        }
    }
    return false;
}

/* Cells end at bars; one with a backslash before it is part of a cell. */
static span_t next_cell(span_t *line)
{
    span_t cell = {line->begin, line->begin};

    while (cell.end < line->end && (*cell.end != '|' || cell.end[-1] == '\\')) {
        ++cell.end;
    }
    line->begin = cell.end < line->end ? cell.end + 1 : cell.end;
    while (cell.begin < cell.end && *cell.begin == ' ') {
        ++cell.begin;
    }
    while (cell.end > cell.begin && cell.end[-1] == ' ') {
        --cell.end;
    }
    return cell;
}

/* Adds a cell without what only a page needs: backticks, and where links lead. */
static size_t add_plain(span_t cell, char *text, size_t size, size_t used)
{
    for (const char *c = cell.begin; c < cell.end && used + 1 < size; ++c) {
        const char *to = *c == ']' && c[1] == '(' ? memchr(c, ')', (size_t)(cell.end - c)) : NULL;

        if (to != NULL) {
            c = to;
        } else if (*c != '`' && *c != '[') {
            text[used++] = *c;
        }
    }
    text[used] = '\0';
    return used;
}

bool ap_published_page_find(const char *name, char *text, size_t size)
{
    const char *at = (const char *)page;

    while (*at != '\0') {
        const char *end = strchr(at, '\n');
        span_t line = {at + 1, end != NULL ? end : at + strlen(at)}, cell;

        if (*at == '|' && is_named(cell = next_cell(&line), name)) {
            size_t used = add_plain(cell, text, size, 0);

            used += (size_t)snprintf(text + used, size - used, ": ");
            used = add_plain(next_cell(&line), text, size, used);
            cell = next_cell(&line);
            if (*cell.begin == '`') {
                used += (size_t)snprintf(text + used, size - used, "; ");
                (void)add_plain(cell, text, size, used);
            }
            return true;
        }
        at = end != NULL ? end + 1 : line.end;
    }
    return false;
}
