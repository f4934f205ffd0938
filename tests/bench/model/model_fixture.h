/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file model_fixture.h
 * Files of the model tests: the recorded ones by name, and small ones written for one test.
 */
#pragma once

#include <stdio.h>
#include <unistd.h>

#include "xm_test.h"

#define QWEN_MODEL "tests/fixtures/models/qwen3-32b.model.json"
#define QWEN_H100  "tests/fixtures/models/qwen3-32b-tp4pp4dp2-to-tp4dp8-64gpus-h100.json"
#define QWEN_GB200 "tests/fixtures/models/qwen3-32b-tp2pp4dp2-to-tp1dp16-32gpus-gb200.json"

enum { MODEL_FIXTURE_PATH = 512 };

/* Path of a recorded file in a buffer of the caller's, who may need several. */
static inline const char *model_fixture_path(const char *relative, char path[MODEL_FIXTURE_PATH])
{
    (void)snprintf(path, MODEL_FIXTURE_PATH, "%s", xm_test_source_path(relative));
    return path;
}

/* Writes a file of its own in the current directory; the caller unlinks it. */
static inline const char *model_fixture_write(const char *text, char path[MODEL_FIXTURE_PATH])
{
    FILE *file;
    int fd;

    (void)snprintf(path, MODEL_FIXTURE_PATH, "model-fixture-XXXXXX");
    fd = mkstemp(path);
    ck_assert_int_ge(fd, 0);
    file = fdopen(fd, "w");
    ck_assert_ptr_nonnull(file);
    ck_assert_int_ge(fputs(text, file), 0);
    ck_assert_int_eq(fclose(file), 0);
    return path;
}
