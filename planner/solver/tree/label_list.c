/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lists of labels lie in two arrays, as thousands are made, compared and dropped for each row of a
 * table.
 */

#include "planner/solver/tree/label_list.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* With how many others a label is compared: those that cost least dominate most. */
enum { COMPARED_MOST = 600 };
/* Nanoseconds of a usual core per number that is compared, and per label that is sorted. */
static const double number_time = 3.0, sort_time = 30.0;

/* Arrays are kept from one row to the next, as long as labels have the same numbers. */
void ap_label_shape(ap_label_list_t *list, int classes, int children)
{
    if (list->classes != classes || list->children != children) {
        ap_label_clear(list);
        *list = (ap_label_list_t){.classes = classes, .children = children};
    }
    list->count = 0;
}

/* Both arrays grow together; where one cannot, the list stays as it is and the pass ends. */
bool ap_label_reserve(ap_label_sorter_t *sorter, ap_label_list_t *list)
{
    if (list->count == list->room) {
        size_t room = 2 * list->room + 64;
        double *numbers =
            realloc(list->number, room * (size_t)(AP_LABEL_USAGE + list->classes) * sizeof(double));
        uint32_t *origins = realloc(list->origin, room * (size_t)(AP_LABEL_FROM + list->children) *
                                                      sizeof(uint32_t));

        list->number = numbers != NULL ? numbers : list->number;
        list->origin = origins != NULL ? origins : list->origin;
        sorter->failed = sorter->failed || numbers == NULL || origins == NULL;
        list->room = sorter->failed ? list->room : room;
    }
    return !sorter->failed;
}

/* The index decides where all else is equal, so the order does not depend on the sorting. */
static int compare_keys(const void *left, const void *right)
{
    const struct ap_label_key *a = left, *b = right;

    if (a->first != b->first) {
        return a->first < b->first ? -1 : 1;
    }
    if (a->second != b->second) {
        return a->second < b->second ? -1 : 1;
    }
    return a->index < b->index ? -1 : 1;
}

bool ap_label_sort(ap_label_sorter_t *sorter, const ap_label_list_t *list, int by)
{
    if (list->count > sorter->room) {
        struct ap_label_key *keys = realloc(sorter->key, 2 * list->count * sizeof(*keys));

        sorter->failed = sorter->failed || keys == NULL;
        sorter->key = keys != NULL ? keys : sorter->key;
        sorter->room = keys != NULL ? 2 * list->count : sorter->room;
    }
    if (sorter->failed) {
        return false;
    }
    for (size_t k = 0; k < list->count; ++k) {
        const double *label = ap_label_number(list, k);
        double sum = 0.0;

        for (int c = 0; c < list->classes; ++c) {
            sum += label[AP_LABEL_USAGE + c];
        }
        sorter->key[k] = (struct ap_label_key){label[by], sum, (uint32_t)k};
    }
    sorter->work += (sort_time + number_time * list->classes) * (double)list->count;
    if (list->count > 1) {
        qsort(sorter->key, list->count, sizeof(*sorter->key), compare_keys);
    }
    return true;
}

void ap_label_copy(const ap_label_list_t *from, size_t k, ap_label_list_t *to, size_t j)
{
    memcpy(ap_label_number(to, j), ap_label_number(from, k),
           (size_t)(AP_LABEL_USAGE + to->classes) * sizeof(double));
    memcpy(ap_label_origin(to, j), ap_label_origin(from, k),
           (size_t)(AP_LABEL_FROM + to->children) * sizeof(uint32_t));
}

static int compare_indices(const void *left, const void *right)
{
    const struct ap_label_key *a = left, *b = right;

    return a->index < b->index ? -1 : 1;
}

/* Labels only move towards the front, in their order, so none is overwritten before it moves. */
void ap_label_trim(ap_label_sorter_t *sorter, ap_label_list_t *list, size_t most)
{
    if (list->count <= most || !ap_label_sort(sorter, list, AP_LABEL_BOUND)) {
        return;
    }
    sorter->open = fmin(sorter->open, sorter->key[most].first);
    qsort(sorter->key, most, sizeof(*sorter->key), compare_indices);
    for (size_t k = 0; k < most; ++k) {
        if (sorter->key[k].index != k) {
            ap_label_copy(list, sorter->key[k].index, list, k);
        }
    }
    list->count = most;
}

/* A label that dominates another comes before it in the order of costs, and of sums of usages where
 * those are equal; so each is compared only with those that were kept before it. */
void ap_label_drop_dominated(ap_label_sorter_t *sorter, ap_label_list_t *list,
                             ap_label_list_t *scratch)
{
    size_t width = (size_t)list->classes, kept = 0;
    ap_label_list_t old;

    if (list->count < 2 || !ap_label_sort(sorter, list, AP_LABEL_COST)) {
        return;
    }
    ap_label_shape(scratch, list->classes, list->children);
    while (scratch->room < list->count && !sorter->failed) {
        scratch->count = scratch->room;
        (void)ap_label_reserve(sorter, scratch);
    }
    scratch->count = 0;
    if (sorter->failed) {
        return;
    }
    for (size_t k = 0; k < list->count; ++k) {
        const double *label = ap_label_number(list, sorter->key[k].index);
        bool dominated = false;

        for (size_t j = 0; j < kept && j < COMPARED_MOST && !dominated; ++j) {
            const double *other = ap_label_number(scratch, j);
            size_t c = 0;

            while (c < width && other[AP_LABEL_USAGE + c] <= label[AP_LABEL_USAGE + c]) {
                ++c;
            }
            sorter->work += number_time * (double)(c + 1);
            dominated = c == width;
        }
        if (!dominated) {
            ap_label_copy(list, sorter->key[k].index, scratch, kept++);
        }
    }
    scratch->count = kept;
    old = *list;
    *list = *scratch;
    *scratch = old;
}

void ap_label_clear(ap_label_list_t *list)
{
    free(list->number);
    free(list->origin);
    *list = (ap_label_list_t){.count = 0};
}
