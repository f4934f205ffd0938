/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file path_pattern.h
 * Paths with placeholders, so that the ranks of a job write files of their own. Internal.
 *
 * `%r` stands for the rank, `%h` for the host, `%p` for the process id, `%%` for a percent sign.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/** Whether the pattern has only placeholders that there are. */
bool xm_path_pattern_is_valid(const char *pattern);

/** Whether the pattern has the placeholder %@p letter. */
bool xm_path_pattern_has(const char *pattern, char letter);

/** Fills in the placeholders; a rank below 0 becomes "none", a slash in the host's name "_". False
 * when the path does not fit or the pattern is not valid. */
bool xm_path_pattern_expand(const char *pattern, int rank, const char *host, char *path,
                            size_t size);
