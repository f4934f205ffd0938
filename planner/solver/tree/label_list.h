/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lists of labels: partial assignments with what they cost and use. Private to the solver;
 * planner/solver/tree/label_pass.h makes them.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Of each label its bound, its cost with prices on usage, its cost and its usages in `number`, and
 * its row, value and the children's labels in `origin`. */
enum { AP_LABEL_BOUND, AP_LABEL_PRICED, AP_LABEL_COST, AP_LABEL_USAGE };
enum { AP_LABEL_ROW, AP_LABEL_VALUE, AP_LABEL_FROM };

typedef struct ap_label_list {
    size_t count, room;
    int classes, children; /* usages, and children's labels, of each */
    double *number;
    uint32_t *origin;
} ap_label_list_t;

/* What sorting needs, and what it leaves: the work done, the lowest bound of a label that was left
 * out for want of room, and whether memory ran out. */
typedef struct ap_label_sorter {
    struct ap_label_key {
        double first, second;
        uint32_t index;
    } * key;
    size_t room;
    double work; /* nanoseconds of a usual core */
    double open;
    bool failed;
} ap_label_sorter_t;

static inline double *ap_label_number(const ap_label_list_t *list, size_t k)
{
    return list->number + k * (size_t)(AP_LABEL_USAGE + list->classes);
}

static inline uint32_t *ap_label_origin(const ap_label_list_t *list, size_t k)
{
    return list->origin + k * (size_t)(AP_LABEL_FROM + list->children);
}

/* An empty list of labels of another shape. */
void ap_label_shape(ap_label_list_t *list, int classes, int children);

/* Room for one more, at the end; false when memory ran out. */
bool ap_label_reserve(ap_label_sorter_t *sorter, ap_label_list_t *list);

/* Sorts keys of a list's labels by one of their first numbers, and by the sum of their usages where
 * that is equal; false when memory ran out. */
bool ap_label_sort(ap_label_sorter_t *sorter, const ap_label_list_t *list, int by);

/* Copies a label from a list of the same shape. */
void ap_label_copy(const ap_label_list_t *from, size_t k, ap_label_list_t *to, size_t j);

/* Leaves the labels with the lowest bounds, in their order. */
void ap_label_trim(ap_label_sorter_t *sorter, ap_label_list_t *list, size_t most);

/* Drops labels that cost and use no less than another one; the list is then sorted by cost. */
void ap_label_drop_dominated(ap_label_sorter_t *sorter, ap_label_list_t *list,
                             ap_label_list_t *scratch);

void ap_label_clear(ap_label_list_t *list);
