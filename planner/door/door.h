/* SPDX-License-Identifier: Apache-2.0 */
/* For functions that only the public headers have: what the inside prints becomes text. */
#pragma once

#include <stdio.h>

#include "comm/base.h"

/* A stream into memory. */
typedef struct ap_door_text {
    FILE *stream;
    char *text;
    size_t size;
} ap_door_text_t;

/* Opens the stream for `function`, which gives the text to `*text`. */
xm_status_t ap_door_text_open(ap_door_text_t *door, const char *function, char **text);

/* Closes it: with XM_OK the text is the caller's, otherwise `status` is passed on. */
xm_status_t ap_door_text_close(ap_door_text_t *door, xm_status_t status, char **text);
