/* SPDX-License-Identifier: Apache-2.0 */
/* Status codes and the sentence that goes with a failure. The sentence is one per thread, so
 * that functions return a number and callers that want to know more ask afterwards; it stays
 * until the next failure of the thread, and successes do not touch it. */
#include "comm/base/status.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/base/text.h"

/* QUOTED: most characters of what a sentence quotes; people give whole files by mistake. KEPT: so
 * many of a longer text, with an ellipsis, which is no longer than any three characters. */
enum { SENTENCE_SIZE = sizeof(((xm_error_t *)NULL)->sentence), QUOTED = 80, KEPT = 78 };

static const char ellipsis[] = "…";

static _Thread_local char sentence[SENTENCE_SIZE];

const char *xm_status_string(xm_status_t status)
{
    switch (status) {
    case XM_OK:
        return "ok";
    case XM_IN_PROGRESS:
        return "in progress";
    case XM_ERR_INVALID_ARGUMENT:
        return "invalid argument";
    case XM_ERR_PARSE:
        return "parse error";
    case XM_ERR_NOT_FOUND:
        return "not found";
    case XM_ERR_UNSUPPORTED:
        return "unsupported";
    case XM_ERR_MISMATCH:
        return "ranks disagree";
    case XM_ERR_BUFFER_TOO_SMALL:
        return "buffer too small";
    case XM_ERR_NO_SOLUTION:
        return "no solution";
    case XM_ERR_NO_MEMORY:
        return "out of memory";
    case XM_ERR_IO:
        return "input/output error";
    case XM_ERR_UNREACHABLE:
        return "unreachable";
    case XM_ERR_PEER_DIED:
        return "peer died";
    case XM_ERR_TIMEOUT:
        return "timed out";
    case XM_ERR_CANCELED:
        return "canceled";
    case XM_ERR_INTERNAL:
        return "internal error";
    case XM_ERR_CORRUPT:
        return "corrupt data";
    }
    return "unknown status";
}

/* Codes down to -19 are the caller's own mistakes; below are those of the world around. */
bool xm_status_is_caller(xm_status_t status)
{
    return status < 0 && status > -20;
}

const char *xm_last_error(void)
{
    return sentence;
}

/* The first @p most characters of a text end here; a byte that is no UTF-8 counts as one. */
static const char *after_characters(const char *text, const char *end, int most)
{
    for (int i = 0; i < most && text < end; ++i) {
        size_t length = xm_text_character(text);

        text += length > 0 ? length : 1;
    }
    return text < end ? text : end;
}

/* The quotation mark that ends what is quoted from here on, or NULL. An apostrophe in a word ends
 * nothing. */
static char *closing(char *text)
{
    char *end = strchr(text, '\'');

    while (end != NULL && isalnum((unsigned char)end[1])) {
        end = strchr(end + 1, '\'');
    }
    return end;
}

/* Cuts what stands between quotation marks, in place. */
static void cut_quoted(char *text)
{
    char *open = text;

    while ((open = strchr(open, '\'')) != NULL) {
        bool begins = open == text || !isalnum((unsigned char)open[-1]);
        char *end = begins ? closing(open + 1) : NULL, *cut;

        ++open;
        if (end == NULL) {
            continue;
        }
        if (after_characters(open, end, QUOTED) < end) {
            cut = (char *)after_characters(open, end, KEPT);
            memcpy(cut, ellipsis, sizeof(ellipsis) - 1);
            memmove(cut + sizeof(ellipsis) - 1, end, strlen(end) + 1);
            end = cut + sizeof(ellipsis) - 1;
        }
        open = end + 1;
    }
}

/* Copies a sentence into the room that there is, as valid UTF-8; an ellipsis tells where it was
 * cut. */
static void copy_whole(const char *from, char *to, size_t size)
{
    bool fits = strlen(from) < size;

    (void)xm_text_copy(from, to, fits ? size : size - (sizeof(ellipsis) - 1));
    if (!fits) {
        memcpy(to + strlen(to), ellipsis, sizeof(ellipsis));
    }
}

/* Formats a sentence however long its arguments are, and cuts what it quotes. */
static void XM_PRINTF(3, 0) compose(char *text, size_t size, const char *format, va_list args)
{
    char *whole = NULL;
    va_list again;

    va_copy(again, args);
    if (vasprintf(&whole, format, args) >= 0) {
        cut_quoted(whole);
        copy_whole(whole, text, size);
        free(whole);
    } else {
        (void)vsnprintf(text, size, format, again);
    }
    va_end(again);
}

/* Formats into a local buffer first, because arguments may point into the old sentence. */
xm_status_t xm_error_set_list(xm_status_t status, const char *format, va_list args)
{
    char text[SENTENCE_SIZE];

    compose(text, sizeof(text), format, args);
    memcpy(sentence, text, sizeof(text));
    return status;
}

xm_status_t xm_error_set(xm_status_t status, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    status = xm_error_set_list(status, format, args);
    va_end(args);
    return status;
}

/* Puts a place in front of the sentence, as errors are passed upwards. */
xm_status_t xm_error_prefix(xm_status_t status, const char *format, ...)
{
    char place[SENTENCE_SIZE], text[2 * SENTENCE_SIZE];
    va_list args;

    va_start(args, format);
    compose(place, sizeof(place), format, args);
    va_end(args);
    (void)snprintf(text, sizeof(text), "%s: %s", place, sentence);
    copy_whole(text, sentence, SENTENCE_SIZE);
    return status;
}
