/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file planner/frontend/hlo/lexer.h
 * A cursor over HLO text: words, numbers, balanced brackets, and errors with line and column.
 *
 * The text is borrowed and never copied: what is read are slices of it. Blanks and comments of the
 * forms used by XLA are skipped between tokens.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "comm/base.h"

/** What is read, for the sentences. */
typedef struct hlo_text {
    const char *name; /**< file */
    const char *bytes;
    size_t size;
} hlo_text_t;

typedef struct hlo_slice {
    const char *at;
    size_t length;
} hlo_slice_t;

typedef struct hlo_cursor {
    const hlo_text_t *text;
    size_t at, end;     /**< offsets into the text */
    xm_status_t status; /**< the first failure; it is at the end then, and finds nothing more */
} hlo_cursor_t;

/** Fails with "NAME: line L, column C: …" for the offset @p at. */
xm_status_t hlo_error(const hlo_text_t *text, size_t at, const char *format, ...) XM_PRINTF(3, 4);

/** Notes a failure at the offset @p at, unless there was one; returns the first one. */
xm_status_t hlo_fail(hlo_cursor_t *cursor, size_t at, const char *format, ...) XM_PRINTF(3, 4);

/** A cursor over a slice of the text. */
hlo_cursor_t hlo_cursor_of(const hlo_text_t *text, hlo_slice_t slice);

bool hlo_slice_is(hlo_slice_t slice, const char *text);
bool hlo_slice_equal(hlo_slice_t a, hlo_slice_t b);

/** The next character that is neither blank nor comment, '\0' at the end; not consumed. */
char hlo_peek(hlo_cursor_t *cursor);
/** Consumes @p what when it is next. */
bool hlo_accept(hlo_cursor_t *cursor, const char *what);
/** As hlo_accept(); otherwise a failure that says what was found. */
void hlo_expect(hlo_cursor_t *cursor, const char *what);
/** Whether one more entry follows the @p done ones of a list that ends with @p close. */
bool hlo_more(hlo_cursor_t *cursor, int done, const char *close);
/** A name: letters, digits and `_ . -`; empty when none is next. A leading % is dropped. */
hlo_slice_t hlo_word(hlo_cursor_t *cursor);
/** An integer; 0 after a failure. */
int64_t hlo_integer(hlo_cursor_t *cursor);
/** Skips a value and gives it: up to a comma, a closing bracket or the end of the line outside of
 * brackets and strings. */
hlo_slice_t hlo_value(hlo_cursor_t *cursor);
/** Skips from an opening bracket, which is next, past the one that closes it; gives what is
 * inside. */
hlo_slice_t hlo_balanced(hlo_cursor_t *cursor);
