/* SPDX-License-Identifier: Apache-2.0 */
/* Status codes and the sentence that goes with a failure. The sentence is one per thread, so
 * that functions return a number and callers that want to know more ask afterwards; it stays
 * until the next failure of the thread, and successes do not touch it. */
#include "comm/base/status.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { SENTENCE_SIZE = sizeof(((xm_error_t *)NULL)->sentence) };

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

/* Formats into a local buffer first, because arguments may point into the old sentence. */
xm_status_t xm_error_set(xm_status_t status, const char *format, ...)
{
    char text[SENTENCE_SIZE]; /* arguments may point into the old sentence */
    va_list args;

    va_start(args, format);
    (void)vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    memcpy(sentence, text, sizeof(text));
    return status;
}

/* Puts a place in front of the sentence, as errors are passed upwards. */
xm_status_t xm_error_prefix(xm_status_t status, const char *format, ...)
{
    char text[SENTENCE_SIZE];
    va_list args;
    int length;

    va_start(args, format);
    length = vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    if (length >= 0 && (size_t)length < sizeof(text)) {
        (void)snprintf(text + length, sizeof(text) - (size_t)length, ": %s", sentence);
    }
    memcpy(sentence, text, sizeof(text));
    return status;
}
