/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file output_file.h
 * A file that a command writes: whole, or not at all.
 *
 * It is written beside its place and renamed when it is complete. So an error half-way leaves the
 * file that was there, and a command may write to the file that it reads. What a symbolic link
 * points to is replaced, not the link; devices and pipes are written to as they are.
 *
 * @code
 *     status = ap_output_file_write("plan.py", put_plan, plan);
 * @endcode
 */
#pragma once

#include <stdio.h>

#include "comm/base.h"

/** Puts the text; errors of the stream itself are told by its caller. */
typedef xm_status_t ap_output_put_t(const void *context, FILE *stream);

xm_status_t ap_output_file_write(const char *path, ap_output_put_t *put, const void *context);
