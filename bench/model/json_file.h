/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file json_file.h
 * Reading the JSON files that users write (model lists, parallel configurations, sharding tables):
 * sentences that name the file's place, the key and the number. Keys that start with "_" are
 * comments everywhere.
 */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "comm/base.h"

/** Reads a file whose document is an object; keys given twice are refused. The caller releases
 * *root. */
xm_status_t rb_json_load(const char *path, json_t **root);

/** True for keys that the reader skips. */
bool rb_json_is_comment(const char *key);

/**
 * Refuses keys of @p object that are neither comments nor among @p keys, with the nearest match.
 * @p where names the object in the sentence ("train").
 */
xm_status_t rb_json_check_keys(const json_t *object, const char *where, const char *const *keys,
                               size_t count);

/** An integer in [minimum, maximum]; @p value is left alone when @p key is absent. */
xm_status_t rb_json_int(const json_t *object, const char *where, const char *key, int64_t minimum,
                        int64_t maximum, int64_t *value);
