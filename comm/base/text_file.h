/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file text_file.h
 * Whole files of text: read at once, or replaced at once. Internal.
 */
#pragma once

#include <stddef.h>
#include <stdio.h>

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

/** Opens a file to be written from the beginning; closed by xm_file_close(). XM_ERR_IO. */
xm_status_t xm_file_create(const char *path, FILE **file);

/** Closes it. @p status is that of what was written: a failure that no write has shown yet counts
 * where that is none. */
xm_status_t xm_file_close(FILE *file, const char *path, xm_status_t status);

/** Begins a figure in SVG of this size: a title, which is escaped, and a white ground. It ends with
 * "</svg>". */
void xm_svg_begin(FILE *file, int width, int height, const char *title);

/** Writes a text of this size into a figure; @p anchor: what of it stands at the place, "start",
 * "middle" or "end". */
void xm_svg_text(FILE *file, double x, double y, int size, const char *anchor, const char *format,
                 ...) XM_PRINTF(6, 7);
