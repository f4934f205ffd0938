/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file text.h
 * Small text helpers that every command and parser shares: nearest match for misspelt names, strict
 * number parsing, sizes with units.
 *
 * Strict means: the whole string must be consumed, leading blanks are refused, overflow is refused,
 * and the failure sentence quotes the text. Threads: no shared state.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "comm/base/status.h"

/** Whether @p length bytes of @p word are one of the words of @p list, which blanks part. */
bool xm_text_in_words(const char *list, const char *word, size_t length);

/**
 * Copies the first word of the list at *list, which @p separator parts, cut where it has more than
 * @p size bytes; *list is behind it then, or NULL where it was the last. Returns the word's length.
 */
size_t xm_text_word(const char **list, char separator, char *word, size_t size);

/**
 * The entry of @p names (count entries) that is nearest to @p word by edit distance with
 * transpositions (Damerau, optimal string alignment), or NULL when none is near enough to be a
 * plausible typo (more than a third of the word's length, at least 2). The first of equals wins.
 */
const char *xm_text_nearest(const char *word, const char *const *names, size_t count);

/**
 * Index of @p name among @p names. Fails with "unknown <what> '<name>'; did you mean …?", or with
 * the list of known names when none is near.
 */
xm_status_t xm_text_choose(const char *what, const char *name, const char *const *names,
                           size_t count, int *index);

/** Parses a decimal integer in [minimum, maximum]. @p what names the value in the failure sentence.
 */
xm_status_t xm_text_parse_int(const char *what, const char *text, int64_t minimum, int64_t maximum,
                              int64_t *value);

/** Parses a finite decimal number in [minimum, maximum]. */
xm_status_t xm_text_parse_double(const char *what, const char *text, double minimum, double maximum,
                                 double *value);

/** Parses a byte count: digits with an optional suffix B, kB, MB, GB (10^n) or KiB, MiB, GiB, TiB
 * (2^n). */
xm_status_t xm_text_parse_bytes(const char *what, const char *text, uint64_t *bytes);

/**
 * Writes @p bytes as e.g. "512 B", "1.50 MiB", "2.00 GiB" into @p buffer (at least 32 bytes) and
 * returns the buffer.
 */
char *xm_text_format_bytes(uint64_t bytes, char *buffer, size_t size);

/** Writes @p seconds as a person reads them, "11 h 50 min", "2 min 5 s", "1.23 s", "12.3 ms", into
 * @p buffer and returns the buffer. */
char *xm_text_format_seconds(double seconds, char *buffer, size_t size);

/** Columns of what commands print; tables and sentences keep to them. */
enum { XM_TEXT_COLUMNS = 132 };

/** Prints a sentence in lines of at most @p columns, broken between words: the first begins with
 * @p first, the others with @p rest. */
void xm_text_print_wrapped(FILE *file, size_t columns, const char *first, const char *rest,
                           const char *format, ...) XM_PRINTF(5, 6);

/** Appends an item to the list that @p list (@p size bytes) holds, behind @p separator unless it is
 * the first. The list is cut where it is full. */
XM_API void xm_text_list_add(char *list, size_t size, const char *separator, const char *format,
                             ...) XM_PRINTF(4, 5);

/** Bytes of the UTF-8 character that @p text begins with, 1 to 4; 0 at its end, and where there is
 * none. */
size_t xm_text_character(const char *text);

/**
 * Copies as many whole characters of @p text as fit into @p size bytes, and returns @p buffer.
 * Bytes that are no UTF-8 become '?'; a character that ends unfinished with the text is left out.
 */
char *xm_text_copy(const char *text, char *buffer, size_t size);

/** The same for a line on a terminal: control characters become \n, \t, \x1b and so on. */
char *xm_text_printable(const char *text, char *buffer, size_t size);

/** Writes @p text for XML: special characters are escaped, control characters left out. Names from
 * models' files may hold anything. */
void xm_text_put_xml(FILE *file, const char *text);
