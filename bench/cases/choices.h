/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file choices.h
 * Options that name several of a set: "send_recv,broadcast", or "all".
 */
#pragma once

#include <stdbool.h>

#include "comm/base.h"

enum { RB_CHOICES = 8 };

/** Indices into the set, in the order in which they were named. */
typedef struct rb_choices {
    int items[RB_CHOICES];
    int count; /**< 0: nothing was named */
} rb_choices_t;

/**
 * Parses @p text, names of the set @p names ("a|b|c", at most RB_CHOICES) with commas between them;
 * "all" is all of them. @p option starts the sentence of a failure. NULL leaves *choices alone.
 */
xm_status_t rb_choices_parse(const char *option, const char *names, const char *text,
                             rb_choices_t *choices);
