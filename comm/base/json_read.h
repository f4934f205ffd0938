/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file json_read.h
 * Strict reading of JSON objects, with sentences that name the key and what was expected. Internal.
 */
#pragma once

#include <jansson.h>
#include <stddef.h>

#include "comm/base/status.h"

/** Parses a document, which the caller releases; a failure names @p name, line and column, and so
 * does a key that stands twice: which of them counts would be an accident. XM_ERR_PARSE. */
xm_status_t xm_json_parse(const char *name, const char *text, size_t length, json_t **document);

/** "an object", "nothing" (for NULL) …: what a value is, for sentences. */
const char *xm_json_type(const json_t *value);

/** "<path> is an array; it must be <expected>", or that the key is missing. XM_ERR_PARSE. */
xm_status_t xm_json_wrong_type(const char *path, const char *expected, const json_t *value);

/** Refuses a document of this project that is of another kind than @p wanted, e.g. "a cluster
 * profile", and says which; one of no known kind is let through, for the keys to be checked. */
xm_status_t xm_json_check_kind(const json_t *root, const char *wanted);

/** Refuses keys of @p object that are not among @p keys, with the nearest match. @p prefix is "" or
 * "parent.". */
xm_status_t xm_json_check_keys(const json_t *object, const char *prefix, const char *const *keys,
                               size_t count);

/** Members of an object. Objects and strings stay the document's. */
xm_status_t xm_json_object(const json_t *parent, const char *key, const json_t **object);
xm_status_t xm_json_string(const json_t *parent, const char *key, const char **text);
/** 0 … INT_MAX. */
xm_status_t xm_json_int(const json_t *parent, const char *key, int *number);
/** @p path is "parent.key" or "key"; the key is what follows the last point. */
xm_status_t xm_json_number(const json_t *parent, const char *path, double *number);

/** Like xm_json_number(), for a key that may be missing: *number is then left as it is. */
xm_status_t xm_json_optional_number(const json_t *parent, const char *path, double *number);
