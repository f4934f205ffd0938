/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file xm_test.h
 * What every Check test program shares: a main loop, and assertions on statuses that print the
 * sentence.
 */
#pragma once

#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "comm/base/status.h"

/* Fails with the library's sentence when the call did not succeed. */
#define ck_assert_xm_ok(call)                                                                      \
    do {                                                                                           \
        xm_status_t xm_status_ = (call);                                                           \
        ck_assert_msg(xm_status_ == XM_OK, "%s: %s (%s)", #call, xm_status_string(xm_status_),     \
                      xm_last_error());                                                            \
    } while (0)

/* Fails unless the call gives this status and the sentence contains the text. */
#define ck_assert_xm_fails(call, expected, text)                                                   \
    do {                                                                                           \
        xm_status_t xm_status_ = (call);                                                           \
        ck_assert_msg(xm_status_ == (expected), "%s: got %s, expected %s (%s)", #call,             \
                      xm_status_string(xm_status_), xm_status_string(expected), xm_last_error());  \
        ck_assert_msg(strstr(xm_last_error(), (text)) != NULL, "'%s' lacks '%s'", xm_last_error(), \
                      (text));                                                                     \
    } while (0)

/* Runs the suite as the ctest program expects it: verbose names, exit status by failures. */
int xm_test_run(Suite *suite);

/* How many cases of a random test to run: all of them, or with TEST_SHARE=N in the environment (the
 * presets set it) one in N of them, at least one. The first ones, so a case keeps its number. */
int xm_test_rounds(int all);

/* Path of a file below the source tree, e.g. "tests/fixtures/x.json". Static buffer. */
const char *xm_test_source_path(const char *relative);
