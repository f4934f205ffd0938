/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file cuda_case.h
 * What tests of CUDA memory share: they run with a stand-in for the driver (tests/cuda_double), and
 * under the label gpu with the real one where there is a device.
 */
#pragma once

#include <check.h>
#include <stdbool.h>
#include <stddef.h>

/* Status of a test that is skipped. */
enum { CUDA_SKIPPED = 77 };

/* True when there is a device; otherwise the reason has been printed. Asks in a child, because
 * CUDA does not survive a fork. */
bool cuda_is_there(void);

/* Runs a suite; CUDA_SKIPPED where its case "cuda" is asked for and there is no device. */
int cuda_run(Suite *suite);

/* How many devices there are, asked in the same way. */
int cuda_devices(void);

/* Makes calls of the stand-in fail (cuda_double.h); "" none. */
void cuda_fail(const char *faults);

/* Logs debug lines into a file of its own from now on; cuda_logged() says whether a text came. */
void cuda_log(void);
bool cuda_logged(const char *text);

/* Puts a copy into CUDA's default stream and does not wait for it. */
void cuda_copy_on_default_stream(const void *to, const void *from, size_t bytes);
