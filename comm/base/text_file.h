/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file text_file.h
 * Whole files of text: read at once, or replaced at once. Internal.
 */
#pragma once

#include <stddef.h>

#include "comm/base/status.h"

/** Writes @p text and a newline beside @p path and renames it: readers see the old file or the
 * new one, whole, whatever happens meanwhile. */
xm_status_t xm_text_save(const char *path, const char *text);

/** The same for a file that means nothing after a crash of the machine: @p length bytes as they
 * are, without waiting for the disk. */
xm_status_t xm_text_replace(const char *path, const char *text, size_t length);

/** Reads a file of at most 256 MiB. *text ends with a 0 that *length does not count; freed with
 * free(). */
xm_status_t xm_text_load(const char *path, char **text, size_t *length);
