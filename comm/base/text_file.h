/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file text_file.h
 * Input and output files: opened without waiting, read at once, replaced at once. Internal.
 *
 * What a user names as an input is a regular file: a directory, a device, a named pipe or a socket
 * is refused with a sentence, at once. "/dev/stdin" is standard input, whatever that is.
 */
#pragma once

#include <limits.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "comm/base/status.h"

/** Largest text that is read whole, and largest model that is mapped: a wrong path could otherwise
 * fill the memory. */
enum { XM_TEXT_LARGEST = 256 << 20 };
#define XM_FILE_LARGEST (UINT64_C(4) << 30)

/** Opens a regular file of at most @p largest bytes for reading; *size is what the file system
 * tells, 0 of a pipe. XM_ERR_NOT_FOUND: it does not exist. */
xm_status_t xm_file_open(const char *path, uint64_t largest, int *fd, size_t *size);

/** Refuses an output file that could not be written, before it is worth anything: "<option>: cannot
 * write '<path>': …". NULL is no file. */
xm_status_t xm_file_check_output(const char *option, const char *path);

/** Makes the file that is to take the place of @p path by rename(): beside it, new and empty. Its
 * name is put into @p temporary; errno tells why not. */
xm_status_t xm_file_beside(const char *path, char temporary[PATH_MAX], int *fd);

/** Writes @p text and a newline beside @p path and renames it: readers see the old file or the
 * new one, whole, whatever happens meanwhile. */
xm_status_t xm_text_save(const char *path, const char *text);

/** The same for a file that means nothing after a crash of the machine: @p length bytes as they
 * are, without waiting for the disk. */
xm_status_t xm_text_replace(const char *path, const char *text, size_t length);

/** Reads a file of at most XM_TEXT_LARGEST bytes. *text ends with a 0 that *length does not count;
 * freed with free(). */
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

/** The unit in which times up to @p end_ns are numbers between one and some thousands. */
const char *xm_svg_time_unit(int64_t end_ns, double *unit_ns);

/** Draws an axis of times from 0 to @p end_ns: lines from @p top to @p bottom, for bars to be drawn
 * over, numbers in one unit under them, and @p label with the unit under these, 40 in all. */
void xm_svg_time_axis(FILE *file, int left, int width, double top, double bottom, int64_t end_ns,
                      const char *label);
