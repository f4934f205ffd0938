/* SPDX-License-Identifier: Apache-2.0 */
/* A model's file, mapped and not loaded. */
#pragma once

#include <stddef.h>

#include "comm/base.h"

typedef struct ap_frontend_file {
    char *bytes;
    size_t size;
} ap_frontend_file_t;

/* Refused: a file that cannot be read, is empty or is no regular file; `format`, e.g. "HLO text",
 * is for the sentence. */
xm_status_t ap_frontend_file_map(const char *path, const char *format, ap_frontend_file_t *file);

void ap_frontend_file_unmap(ap_frontend_file_t *file);
