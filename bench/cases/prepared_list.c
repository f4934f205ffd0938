/* SPDX-License-Identifier: Apache-2.0 */
/*
 * All cases of a selection, prepared before the first one runs, so that a case that
 * cannot be planned is found at once. Models are only checked, since their plans are
 * large; they are planned when their turn comes.
 */
#include "bench/cases/prepared_list.h"

#include <stdlib.h>

static xm_status_t prepare_or_check(rb_prepared_list_t *list, int index)
{
    const rb_case_t *one = &list->selection->cases[index];

    return one->model != NULL ? rb_prepare_check(one, list->hosts)
                              : rb_prepare(one, list->hosts, list->network, &list->prepared[index]);
}

xm_status_t rb_prepared_list_create(const rb_selection_t *selection, const rb_host_map_t *hosts,
                                    const xm_network_t *network, rb_prepared_list_t *list)
{
    rb_prepared_list_t made = {.selection = selection, .hosts = hosts, .network = network};
    xm_status_t status = XM_OK;

    made.prepared = calloc((size_t)selection->count + 1, sizeof(*made.prepared));
    if (made.prepared == NULL) {
        return XM_NO_MEMORY("%d cases", selection->count);
    }
    for (int i = 0; status == XM_OK && i < selection->count; ++i) {
        status = prepare_or_check(&made, i);
    }
    if (status < 0) {
        rb_prepared_list_clear(&made);
        return status;
    }
    *list = made;
    return XM_OK;
}

/* Moves the plan to the caller, or makes it now. */
xm_status_t rb_prepared_list_take(rb_prepared_list_t *list, int index, rb_prepared_t *prepared)
{
    rb_prepared_t *held = &list->prepared[index];

    if (held->plan == NULL) {
        return rb_prepare(&list->selection->cases[index], list->hosts, list->network, prepared);
    }
    *prepared = *held;
    *held = (rb_prepared_t){0};
    return XM_OK;
}

void rb_prepared_list_clear(rb_prepared_list_t *list)
{
    for (int i = 0; list->prepared != NULL && i < list->selection->count; ++i) {
        rb_prepared_clear(&list->prepared[i]);
    }
    free(list->prepared);
    *list = (rb_prepared_list_t){0};
}
