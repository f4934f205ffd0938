/* SPDX-License-Identifier: Apache-2.0 */
/* Texts: numbers with limits, suggestions for misspelt names, sizes and times for people, and
 * UTF-8 that may be broken. All parsers take the whole text or refuse it, since "10x" is a
 * mistake and not 10. */
#include "comm/base/text.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_WORD = 63 };

static size_t min2(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Optimal string alignment distance: insertions, deletions, replacements and exchanges of
 * neighbours, the typing errors that people make. Words longer than MAX_WORD are cut, so that
 * three rows on the stack are enough. */
static size_t edit_distance(const char *a, const char *b)
{
    size_t rows[3][MAX_WORD + 1];
    size_t *before = rows[0], *previous = rows[1], *current = rows[2];
    size_t length_a = min2(strlen(a), MAX_WORD), length_b = min2(strlen(b), MAX_WORD);

    for (size_t j = 0; j <= length_b; ++j) {
        previous[j] = j;
        before[j] = j;
    }
    for (size_t i = 1; i <= length_a; ++i) {
        size_t *oldest;

        current[0] = i;
        for (size_t j = 1; j <= length_b; ++j) {
            size_t cost = a[i - 1] != b[j - 1];
            size_t best = min2(previous[j] + 1, current[j - 1] + 1);

            best = min2(best, previous[j - 1] + cost);
            /* Two neighbours are exchanged; this needs the row before the previous one. */
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
                best = min2(best, before[j - 2] + 1);
            }
            current[j] = best;
        }
        /* The three rows change places, and the oldest is written over next. */
        oldest = before;
        before = previous;
        previous = current;
        current = oldest;
    }
    return previous[length_b];
}

size_t xm_text_word(const char **list, char separator, char *word, size_t size)
{
    size_t length = strcspn(*list, (const char[]){separator, '\0'});

    (void)snprintf(word, size, "%.*s", (int)(length < size ? length : size), *list);
    *list = (*list)[length] == separator ? *list + length + 1 : NULL;
    return length;
}

/* A word with a blank in it is in no list. */
bool xm_text_in_words(const char *list, const char *word, size_t length)
{
    while (*list != '\0') {
        size_t own = strcspn(list, " ");

        if (own == length && memcmp(list, word, length) == 0) {
            return length > 0;
        }
        list += own + (list[own] == ' ');
    }
    return false;
}

/* The nearest name within a third of the word's length; farther ones would be guesses. */
const char *xm_text_nearest(const char *word, const char *const *names, size_t count)
{
    /* Two errors are allowed in short words as well. */
    size_t limit = strlen(word) / 3 > 2 ? strlen(word) / 3 : 2;
    size_t best_distance = limit + 1;
    const char *best = NULL;

    for (size_t i = 0; i < count; ++i) {
        size_t distance = edit_distance(word, names[i]);

        /* A name that would have to be replaced completely is not near, however short it is. */
        if (distance < best_distance && distance < strlen(names[i])) {
            best_distance = distance;
            best = names[i];
        }
    }
    return best;
}

/* Finds a name, or fails with the nearest one or with all of them. */
xm_status_t xm_text_choose(const char *what, const char *name, const char *const *names,
                           size_t count, int *index)
{
    /* The search is cheap and choices are made at the start, so it is done before it is needed. */
    const char *nearest = xm_text_nearest(name, names, count);
    char known[512];

    for (size_t i = 0; i < count; ++i) {
        if (strcmp(name, names[i]) == 0) {
            *index = (int)i;
            return XM_OK;
        }
    }
    if (nearest != NULL) {
        return XM_INVALID("unknown %s '%s'; did you mean %s?", what, name, nearest);
    }
    known[0] = '\0';
    for (size_t i = 0; i < count; ++i) {
        xm_text_list_add(known, sizeof(known), ", ", "%s", names[i]);
    }
    return XM_INVALID("unknown %s '%s'; known are %s", what, name, known);
}

/* strtoll() and strtod() skip blanks and take words such as "nan", which are no numbers here. */
static bool starts_like_number(const char *text)
{
    return (*text >= '0' && *text <= '9') || *text == '-' || *text == '+' || *text == '.';
}

xm_status_t xm_text_parse_int(const char *what, const char *text, int64_t minimum, int64_t maximum,
                              int64_t *value)
{
    char *end;
    long long parsed;

    errno = 0;
    parsed = strtoll(text, &end, 10);
    if (!starts_like_number(text) || end == text || *end != '\0') {
        return XM_MALFORMED("%s: '%s' is not an integer", what, text);
    }
    /* ERANGE matters if a limit is that of the type: strtoll() then returns the limit itself. */
    if (errno == ERANGE || parsed < minimum || parsed > maximum) {
        return XM_INVALID("%s: %s is outside %" PRId64 " … %" PRId64, what, text, minimum, maximum);
    }
    *value = parsed;
    return XM_OK;
}

xm_status_t xm_text_parse_double(const char *what, const char *text, double minimum, double maximum,
                                 double *value)
{
    char *end;
    double parsed = strtod(text, &end);

    if (!starts_like_number(text) || end == text || *end != '\0' || !isfinite(parsed)) {
        return XM_MALFORMED("%s: '%s' is not a number", what, text);
    }
    /* Infinity has been refused above, so an open limit can be given as any large number. */
    if (parsed < minimum || parsed > maximum) {
        return XM_INVALID("%s: %s is outside %g … %g", what, text, minimum, maximum);
    }
    *value = parsed;
    return XM_OK;
}

/* Powers of 1000 and of 1024 have different names. A letter alone is a power of 1024, as in
 * nccl-tests and ucx_perftest, in either case. */
static const struct {
    const char *suffix;
    double factor;
} byte_units[] = {{"", 1},          {"B", 1},        {"kB", 1e3},   {"MB", 1e6},
                  {"GB", 1e9},      {"TB", 1e12},    {"KiB", 1024}, {"MiB", 1048576},
                  {"GiB", 1 << 30}, {"TiB", 0x1p40}, {"K", 1024},   {"M", 1048576},
                  {"G", 1 << 30},   {"T", 0x1p40},   {"k", 1024},   {"m", 1048576},
                  {"g", 1 << 30},   {"t", 0x1p40}};

/* The largest double below 2^64 is the limit: above it the conversion is undefined. */
xm_status_t xm_text_parse_bytes(const char *what, const char *text, uint64_t *bytes)
{
    char *end;
    double number = strtod(text, &end);

    /* No sign is allowed: a count of bytes has none. */
    if (*text < '0' || *text > '9' || !isfinite(number)) {
        return XM_MALFORMED("%s: '%s' is not a byte count", what, text);
    }
    for (size_t i = 0; i < sizeof(byte_units) / sizeof(byte_units[0]); ++i) {
        if (strcmp(end, byte_units[i].suffix) == 0) {
            double product = number * byte_units[i].factor;

            if (product >= 18446744073709549568.0) {
                break;
            }
            *bytes = (uint64_t)product;
            return XM_OK;
        }
    }
    return XM_MALFORMED(
        "%s: '%s' is not a byte count (digits, then K, M, G, KiB, MiB, GiB, kB, MB or GB)", what,
        text);
}

char *xm_text_format_bytes(uint64_t bytes, char *buffer, size_t size)
{
    static const char *const units[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    double value = (double)bytes;
    int unit = -1;

    /* The unit stops at EiB, which is enough for 64 bits. */
    while (value >= 1024.0 && unit < 5) {
        value /= 1024.0;
        ++unit;
    }
    if (unit < 0) {
        (void)snprintf(buffer, size, "%" PRIu64 " B", bytes);
    } else {
        (void)snprintf(buffer, size, "%.2f %s", value, units[unit]);
    }
    return buffer;
}

/* Three digits are more than any prediction knows; two units where a person thinks in two. */
char *xm_text_format_seconds(double seconds, char *buffer, size_t size)
{
    const char *unit = seconds >= 1.0 ? "s" : seconds >= 1e-3 ? "ms" : "us";
    double value = seconds * (seconds >= 1.0 ? 1.0 : seconds >= 1e-3 ? 1e3 : 1e6);
    long long minutes = llround(seconds / 60.0), whole = llround(seconds);

    if (seconds >= 172800.0) {
        (void)snprintf(buffer, size, "%.*f days", seconds < 864000.0, seconds / 86400.0);
    } else if (minutes >= 60) {
        (void)snprintf(buffer, size, "%lld h %lld min", minutes / 60, minutes % 60);
    } else if (whole >= 100) {
        (void)snprintf(buffer, size, "%lld min %lld s", whole / 60, whole % 60);
    } else if (seconds == 0.0) {
        (void)snprintf(buffer, size, "0 s");
    } else {
        (void)snprintf(buffer, size, "%.*f %s", value < 9.995 ? 2 : value < 99.95, value, unit);
    }
    return buffer;
}

/* The smallest character that needs so many bytes: a longer form of a smaller one is invalid. */
static const unsigned smallest[] = {0, 0, 0x80, 0x800, 0x10000};

void xm_text_list_add(char *list, size_t size, const char *separator, const char *format, ...)
{
    size_t used = strlen(list);
    va_list args;

    if (used > 0) {
        (void)snprintf(list + used, size - used, "%s", separator);
        used = strlen(list);
    }
    va_start(args, format);
    (void)vsnprintf(list + used, size - used, format, args);
    va_end(args);
}

static size_t count_columns(const char *text, size_t bytes)
{
    size_t columns = 0;

    for (size_t i = 0; i < bytes; ++i) {
        columns += ((unsigned char)text[i] & 0xc0) != 0x80;
    }
    return columns;
}

void xm_text_print_wrapped(FILE *file, size_t columns, const char *first, const char *rest,
                           const char *format, ...)
{
    size_t column = count_columns(first, strlen(first)), words = 0;
    char *all;
    va_list args;
    int length;

    va_start(args, format);
    length = vasprintf(&all, format, args);
    va_end(args);
    if (length < 0) {
        return;
    }
    (void)fputs(first, file);
    for (const char *at = all + strspn(all, " "); *at != '\0'; at += strspn(at, " ")) {
        size_t bytes = strcspn(at, " "), width = count_columns(at, bytes);

        if (words > 0 && column + 1 + width > columns) {
            (void)fprintf(file, "\n%s", rest);
            column = count_columns(rest, strlen(rest));
            words = 0;
        }
        (void)fprintf(file, "%s%.*s", words > 0 ? " " : "", (int)bytes, at);
        column += (words > 0) + width;
        ++words;
        at += bytes;
    }
    (void)fputc('\n', file);
    free(all);
}

/* Length of the UTF-8 character at the text's beginning; 0 for anything invalid: overlong
 * forms, surrogates, values beyond Unicode. */
size_t xm_text_character(const char *text)
{
    const unsigned char *at = (const unsigned char *)text;
    size_t length = *at < 0x80             ? 1
                    : (*at & 0xe0) == 0xc0 ? 2
                    : (*at & 0xf0) == 0xe0 ? 3
                    : (*at & 0xf8) == 0xf0 ? 4
                                           : 0;
    unsigned character;

    if (*at == 0 || length <= 1) {
        return *at == 0 ? 0 : length;
    }
    character = *at & (0x7fU >> length);
    for (size_t i = 1; i < length; ++i) {
        /* The end of the text is no continuation byte either, so nothing is read behind it. */
        if ((at[i] & 0xc0) != 0x80) {
            return 0;
        }
        character = character << 6 | (at[i] & 0x3fU);
    }
    return character < smallest[length] || character > 0x10ffff ||
                   (character >= 0xd800 && character < 0xe000)
               ? 0
               : length;
}

/* True when a text ends in the middle of the character that it begins with. */
static bool is_unfinished(const char *text)
{
    size_t length = strlen(text);
    unsigned char first = (unsigned char)*text;

    for (size_t i = 1; i < length; ++i) {
        if (((unsigned char)text[i] & 0xc0) != 0x80) {
            return false;
        }
    }
    return first >= 0xc2 && first <= 0xf4 &&
           length < (first >= 0xf0   ? 4U
                     : first >= 0xe0 ? 3U
                                     : 2U);
}

/* Copies what fits, cut between characters and never inside one; invalid bytes become '?'. */
char *xm_text_copy(const char *text, char *buffer, size_t size)
{
    size_t used = 0;

    while (*text != '\0') {
        /* An invalid byte is taken alone, because the next one may begin a good character. */
        size_t length = xm_text_character(text), needed = length > 0 ? length : 1;

        /* A character that does not fit is left out whole, and so is one that the source has
         * cut. */
        if (used + needed >= size || (length == 0 && is_unfinished(text))) {
            break;
        }
        if (length > 0) {
            memcpy(buffer + used, text, length);
        } else {
            buffer[used] = '?';
        }
        used += needed;
        text += needed;
    }
    buffer[used] = '\0';
    return buffer;
}

/* Makes a text safe for a terminal: control characters are written as escapes. */
char *xm_text_printable(const char *text, char *buffer, size_t size)
{
    size_t used = 0;

    while (*text != '\0') {
        size_t length = xm_text_character(text);
        unsigned char c = (unsigned char)*text;
        char shown[8];

        if (length == 0) {
            (void)snprintf(shown, sizeof(shown), "?");
        } else if (c == '\n' || c == '\t' || c == '\r') {
            (void)snprintf(shown, sizeof(shown), "\\%c", c == '\n' ? 'n' : c == '\t' ? 't' : 'r');
        } else if (c < ' ' || c == 0x7f) {
            (void)snprintf(shown, sizeof(shown), "\\x%02x", c);
        } else {
            (void)snprintf(shown, sizeof(shown), "%.*s", (int)length, text);
        }
        /* An escape is written whole or not at all: half of one would mean something else. */
        if (used + strlen(shown) >= size) {
            break;
        }
        memcpy(buffer + used, shown, strlen(shown));
        used += strlen(shown);
        text += length > 0 ? length : 1;
    }
    buffer[used] = '\0';
    return buffer;
}

void xm_text_put_xml(FILE *file, const char *text)
{
    for (const char *c = text; *c != '\0'; ++c) {
        if (*c == '<' || *c == '>' || *c == '&') {
            (void)fputs(*c == '<' ? "&lt;" : *c == '>' ? "&gt;" : "&amp;", file);
        } else if ((unsigned char)*c >= ' ') {
            (void)putc(*c, file);
        }
    }
}
