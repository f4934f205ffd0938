/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A cursor over HLO text, and errors with line and column. The text may be a mapping of hundreds of
 * megabytes, so nothing is copied: words and values are slices of it, and line numbers are counted
 * only when there is an error to report.
 *
 * A cursor never reads beyond `end`, and every function either consumes something or fails, which
 * is why no loop of the parser can hang on malformed text.
 */

#include "planner/frontend/hlo/lexer.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { MAX_BRACKETS = 64 };

/* Counting lines from the beginning costs a pass over the text, once. */
/* Puts the place in front of the sentence. */
static xm_status_t locate(const hlo_text_t *text, size_t at)
{
    size_t line = 1, column = 1;

    for (size_t i = 0; i < at && i < text->size; ++i) {
        bool ends = text->bytes[i] == '\n';

        line += ends;
        column = ends ? 1 : column + 1;
    }
    return xm_error_prefix(XM_ERR_PARSE, "%s: line %zu, column %zu", text->name, line, column);
}

xm_status_t hlo_error(const hlo_text_t *text, size_t at, const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    (void)xm_error_set_list(XM_ERR_PARSE, format, arguments);
    va_end(arguments);
    return locate(text, at);
}

xm_status_t hlo_fail(hlo_cursor_t *cursor, size_t at, const char *format, ...)
{
    va_list arguments;

    if (cursor->status == XM_OK) {
        va_start(arguments, format);
        (void)xm_error_set_list(XM_ERR_PARSE, format, arguments);
        va_end(arguments);
        cursor->status = locate(cursor->text, at);
        cursor->at = cursor->end;
    }
    return cursor->status;
}

hlo_cursor_t hlo_cursor_of(const hlo_text_t *text, hlo_slice_t slice)
{
    size_t at = slice.at == NULL ? 0 : (size_t)(slice.at - text->bytes);

    return (hlo_cursor_t){.text = text, .at = at, .end = at + slice.length};
}

bool hlo_slice_is(hlo_slice_t slice, const char *text)
{
    return slice.length == strlen(text) && memcmp(slice.at, text, slice.length) == 0;
}

bool hlo_slice_in(hlo_slice_t slice, const char *words)
{
    return xm_text_in_words(words, slice.at, slice.length);
}

bool hlo_slice_equal(hlo_slice_t a, hlo_slice_t b)
{
    return a.length == b.length && memcmp(a.at, b.at, a.length) == 0;
}

static bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

static bool starts(const hlo_cursor_t *cursor, const char *what)
{
    size_t length = strlen(what);

    return cursor->end - cursor->at >= length &&
           memcmp(cursor->text->bytes + cursor->at, what, length) == 0;
}

/* Moves past everything up to and with `last`, or to the end. */
static void skip_past(hlo_cursor_t *cursor, const char *last)
{
    while (cursor->at < cursor->end && !starts(cursor, last)) {
        ++cursor->at;
    }
    cursor->at += cursor->at < cursor->end ? strlen(last) : 0;
}

/* Comments and blanks are skipped between tokens. A zero byte in the text is returned as '?', so
 * that '\0' means the end and nothing else. */
char hlo_peek(hlo_cursor_t *cursor)
{
    for (;;) {
        if (cursor->at >= cursor->end) {
            return '\0';
        }
        if (starts(cursor, "/*")) {
            cursor->at += 2;
            skip_past(cursor, "*/");
        } else if (starts(cursor, "//")) {
            skip_past(cursor, "\n");
        } else if (is_blank(cursor->text->bytes[cursor->at])) {
            ++cursor->at;
        } else {
            char next = cursor->text->bytes[cursor->at];

            return next == '\0' ? '?' : next;
        }
    }
}

bool hlo_accept(hlo_cursor_t *cursor, const char *what)
{
    (void)hlo_peek(cursor);
    if (!starts(cursor, what)) {
        return false;
    }
    cursor->at += strlen(what);
    return true;
}

void hlo_expect(hlo_cursor_t *cursor, const char *what)
{
    char found;

    if (hlo_accept(cursor, what)) {
        return;
    }
    found = hlo_peek(cursor);
    if (found == '\0') {
        (void)hlo_fail(cursor, cursor->at, "the text ends where '%s' is expected", what);
    } else if (found < ' ' || found > '~') {
        (void)hlo_fail(cursor, cursor->at, "'%s' is expected here", what);
    } else {
        (void)hlo_fail(cursor, cursor->at, "'%s' is expected here, not '%c'", what, found);
    }
}

/* A comma may stand behind the last entry. */
bool hlo_more(hlo_cursor_t *cursor, int done, const char *close)
{
    if (done > 0 && !hlo_accept(cursor, ",")) {
        hlo_expect(cursor, close);
        return false;
    }
    return !hlo_accept(cursor, close) && cursor->status == XM_OK;
}

static bool in_word(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '.' || c == '-';
}

/* A word may hold dots and dashes, as HLO's names do, but ends before the arrow of a signature. */
hlo_slice_t hlo_word(hlo_cursor_t *cursor)
{
    hlo_slice_t word = {0};

    if (hlo_peek(cursor) == '%') {
        ++cursor->at;
    }
    word.at = cursor->text->bytes + cursor->at;
    while (cursor->at < cursor->end && in_word(cursor->text->bytes[cursor->at]) &&
           !starts(cursor, "->")) {
        ++cursor->at;
        ++word.length;
    }
    return word;
}

/* Overflow is an error here, so that no reader has to wonder about sizes that wrapped around. */
int64_t hlo_integer(hlo_cursor_t *cursor)
{
    bool negative = hlo_accept(cursor, "-");
    size_t start;
    int64_t sum = 0;

    (void)hlo_peek(cursor);
    start = cursor->at;
    while (cursor->at < cursor->end && cursor->text->bytes[cursor->at] >= '0' &&
           cursor->text->bytes[cursor->at] <= '9') {
        int digit = cursor->text->bytes[cursor->at++] - '0';

        if (__builtin_mul_overflow(sum, 10, &sum) || __builtin_add_overflow(sum, digit, &sum)) {
            (void)hlo_fail(cursor, start, "this number does not fit into 64 bits");
            return 0;
        }
    }
    if (cursor->at == start) {
        (void)hlo_fail(cursor, start, "a number is expected here");
    }
    return negative ? -sum : sum;
}

/* The character that closes an opening bracket, or '\0'. */
static char closing(char c)
{
    return c == '{' ? '}' : c == '(' ? ')' : c == '[' ? ']' : '\0';
}

/* A backslash takes the next character with it; one at the very end leaves the string open. */
static void skip_string(hlo_cursor_t *cursor)
{
    size_t start = cursor->at++;

    while (cursor->at < cursor->end && cursor->text->bytes[cursor->at] != '"') {
        cursor->at += cursor->text->bytes[cursor->at] == '\\' ? 2 : 1;
    }
    if (cursor->at >= cursor->end) {
        (void)hlo_fail(cursor, start, "this string does not end");
    } else {
        ++cursor->at;
    }
}

/* Skips one bracketed piece, one string or one character. Brackets are matched with a stack of
 * their closing ones, not counted, so "{(})" is refused; strings and comments hide theirs. */
static void skip_piece(hlo_cursor_t *cursor)
{
    char stack[MAX_BRACKETS];
    size_t start = cursor->at;
    int depth = 0;

    do {
        char c = cursor->at < cursor->end ? cursor->text->bytes[cursor->at] : '\0';

        if (cursor->at >= cursor->end) {
            (void)hlo_fail(cursor, start, "this '%c' is never closed", cursor->text->bytes[start]);
            return;
        }
        if (c == '"') {
            skip_string(cursor);
            continue;
        }
        if (starts(cursor, "/*")) {
            skip_past(cursor, "*/");
            continue;
        }
        ++cursor->at;
        if (closing(c) != '\0') {
            if (depth == MAX_BRACKETS) {
                (void)hlo_fail(cursor, start, "brackets are nested deeper than %d", MAX_BRACKETS);
                return;
            }
            stack[depth++] = closing(c);
        } else if (depth > 0 && c == stack[depth - 1]) {
            --depth;
        } else if (depth > 0 && (c == '}' || c == ')' || c == ']')) {
            (void)hlo_fail(cursor, cursor->at - 1, "'%c' is expected here, not '%c'",
                           stack[depth - 1], c);
        }
    } while (depth > 0);
}

/* A value ends at a comma, a closing bracket or the end of the line that is not inside brackets or
 * a string. */
hlo_slice_t hlo_value(hlo_cursor_t *cursor)
{
    hlo_slice_t value;
    size_t start;

    (void)hlo_peek(cursor);
    start = cursor->at;
    while (cursor->at < cursor->end && strchr(",})]\n", cursor->text->bytes[cursor->at]) == NULL) {
        skip_piece(cursor);
    }
    if (cursor->at == start) {
        (void)hlo_fail(cursor, start, "a value is expected here");
    }
    value = (hlo_slice_t){cursor->text->bytes + start, cursor->at - start};
    while (value.length > 0 && is_blank(value.at[value.length - 1])) {
        --value.length;
    }
    return value;
}

hlo_slice_t hlo_balanced(hlo_cursor_t *cursor)
{
    size_t start, length;

    (void)hlo_peek(cursor);
    start = cursor->at;
    skip_piece(cursor);
    length = cursor->at - start;
    return (hlo_slice_t){cursor->text->bytes + start + 1, length > 2 ? length - 2 : 0};
}
