/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Options that take several names, such as --strategy broadcast,auto or all. A wrong name
 * is answered with the nearest right one.
 */
#include "bench/cases/choices.h"

#include <stdio.h>
#include <string.h>

#include "cli_support.h"

enum { NAMES_TEXT = 256 };

/* A name given twice would run the same variant twice and is most likely a typing error. */
static xm_status_t add(const char *option, const char *names, const char *word,
                       rb_choices_t *choices)
{
    int index;
    XM_TRY(xm_cli_choose(option, names, word, &index));

    for (int i = 0; i < choices->count; ++i) {
        if (choices->items[i] == index) {
            return XM_INVALID("%s names %s twice", option, word);
        }
    }
    choices->items[choices->count++] = index;
    return XM_OK;
}

/* The choices are written only when every name is right. */
xm_status_t rb_choices_parse(const char *option, const char *names, const char *text,
                             rb_choices_t *choices)
{
    char word[NAMES_TEXT];
    rb_choices_t named = {.count = 0};
    xm_status_t status = XM_OK;

    if (text == NULL) {
        return XM_OK;
    }
    if (strcmp(text, "all") == 0) {
        for (const char *at = names; at != NULL; at = strchr(at + 1, '|')) {
            named.items[named.count] = named.count;
            ++named.count;
        }
        *choices = named;
        return XM_OK;
    }
    for (const char *at = text; status == XM_OK && at != NULL;) {
        (void)xm_text_word(&at, ',', word, sizeof(word));
        status = add(option, names, word, &named);
    }
    if (status == XM_OK) {
        *choices = named;
    }
    return status;
}
