/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Options that take several names, such as --strategy broadcast,auto or all. A wrong name
 * is answered with the nearest right one.
 */
#include "bench/cases/choices.h"

#include <stdio.h>
#include <string.h>

#include "comm/base.h"

enum { NAMES_TEXT = 256 };

/* Cuts "a|b|c", the form that help texts use, into its names; `copy` owns the text. */
static int split(const char *names, char *copy, const char **entries)
{
    int count = 0;

    (void)snprintf(copy, NAMES_TEXT, "%s", names);
    for (char *rest = copy, *name; count < RB_CHOICES && (name = strsep(&rest, "|")) != NULL;) {
        entries[count++] = name;
    }
    return count;
}

/* The nearest name is offered where one is near enough; otherwise all names are listed. */
static xm_status_t refuse(const char *option, const char *names, const char *word,
                          const char *const *entries, int count)
{
    const char *nearest = xm_text_nearest(word, entries, (size_t)count);

    if (nearest != NULL) {
        return xm_error_set(XM_ERR_INVALID_ARGUMENT, "%s: '%s' is unknown; did you mean '%s'?",
                            option, word, nearest);
    }
    return xm_error_set(XM_ERR_INVALID_ARGUMENT, "%s: '%s' is not one of %s", option, word, names);
}

/* A name given twice would run the same variant twice and is most likely a typing error. */
static xm_status_t add(const char *option, const char *names, const char *word,
                       const char *const *entries, int count, rb_choices_t *choices)
{
    int index = 0;

    while (index < count && strcmp(entries[index], word) != 0) {
        ++index;
    }
    if (index == count) {
        return refuse(option, names, word, entries, count);
    }
    for (int i = 0; i < choices->count; ++i) {
        if (choices->items[i] == index) {
            return xm_error_set(XM_ERR_INVALID_ARGUMENT, "%s names %s twice", option, word);
        }
    }
    choices->items[choices->count++] = index;
    return XM_OK;
}

/* The choices are written only when every name is right. */
xm_status_t rb_choices_parse(const char *option, const char *names, const char *text,
                             rb_choices_t *choices)
{
    char copy[NAMES_TEXT], word[NAMES_TEXT];
    const char *entries[RB_CHOICES];
    rb_choices_t named = {.count = 0};
    int count;
    xm_status_t status = XM_OK;

    if (text == NULL) {
        return XM_OK;
    }
    count = split(names, copy, entries);
    if (strcmp(text, "all") == 0) {
        for (named.count = 0; named.count < count; ++named.count) {
            named.items[named.count] = named.count;
        }
        *choices = named;
        return XM_OK;
    }
    for (const char *at = text; status == XM_OK && at != NULL;) {
        size_t length = strcspn(at, ",");

        (void)snprintf(word, sizeof(word), "%.*s", (int)length, at);
        status = add(option, names, word, entries, count, &named);
        at = at[length] == ',' ? at + length + 1 : NULL;
    }
    if (status == XM_OK) {
        *choices = named;
    }
    return status;
}
