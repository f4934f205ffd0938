/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A list of operators that a front end has no rule for, with how often each came. A user should see
 * why a plan gathers where he expected cuts; a list of a few names tells it better than a warning
 * per operator.
 *
 * The notes also carry the way back from a graph into its source text, as an opaque pointer with
 * its destructor: only exports know what it is, and the graph itself stays free of any file format.
 */

#include "planner/frontend/common/notes.h"

#include <stdlib.h>
#include <string.h>

#include "comm/base.h"

enum { NOTE_TEXT = 80 };

typedef struct note {
    char name[NOTE_TEXT];
    int count;
} note_t;

struct ap_frontend_notes {
    int count;
    size_t room;
    note_t *list;
    void *source;
    void (*destroy)(void *source);
};

xm_status_t ap_frontend_notes_create(ap_frontend_notes_t **notes)
{
    ap_frontend_notes_t *made = calloc(1, sizeof(*made));

    XM_NEED_MEMORY(made, "a list of unknown operators");
    *notes = made;
    return XM_OK;
}

/* A linear search is enough: there are as many entries as kinds of operators without a rule. */
xm_status_t ap_frontend_notes_add(ap_frontend_notes_t *notes, const char *name)
{
    char text[NOTE_TEXT];

    (void)xm_text_copy(name, text, sizeof(text));
    for (int i = 0; i < notes->count; ++i) {
        if (strcmp(notes->list[i].name, text) == 0) {
            ++notes->list[i].count;
            return XM_OK;
        }
    }
    XM_NEED_MEMORY(XM_ARRAY_ROOM(notes->list, notes->room, notes->count),
                   "a list of unknown operators");
    (void)strcpy(notes->list[notes->count].name, text);
    notes->list[notes->count++].count = 1;
    return XM_OK;
}

int ap_frontend_notes_count(const ap_frontend_notes_t *notes)
{
    if (XM_IS_NULL(notes)) {
        return 0;
    }
    return notes->count;
}

const char *ap_frontend_notes_get(const ap_frontend_notes_t *notes, int index, int *count)
{
    if (XM_IS_NULL(notes)) {
        return NULL;
    }
    *count = notes->list[index].count;
    return notes->list[index].name;
}

void ap_frontend_notes_keep(ap_frontend_notes_t *notes, void *source, void (*destroy)(void *source))
{
    notes->source = source;
    notes->destroy = destroy;
}

const void *ap_frontend_notes_source(const ap_frontend_notes_t *notes)
{
    return notes->source;
}

void ap_frontend_notes_destroy(ap_frontend_notes_t *notes)
{
    if (notes != NULL) {
        if (notes->source != NULL) {
            notes->destroy(notes->source);
        }
        free(notes->list);
        free(notes);
    }
}
