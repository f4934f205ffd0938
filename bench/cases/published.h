/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file published.h
 * Weight refits whose times others have published: the cases of the suite `refit`. The model suite
 * has their tensors and meshes under the same names (docs/model-suite.md).
 */
#pragma once

/** What a public document says of a refit. */
typedef struct rb_published {
    const char *name; /**< of the case */
    const char *model, *mapping;
    double least_s, most_s; /**< of the times that it gives */
    const char *source;
    const char *assumed; /**< here, of what it leaves open; NULL: nothing */
} rb_published_t;

/** The row of a case; NULL when it is of no published refit. */
const rb_published_t *rb_published_find(const char *name);
