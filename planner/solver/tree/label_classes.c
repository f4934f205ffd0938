/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which times the labels of a step have to tell apart. Times at which a subtree uses the same are
 * one class, and a time is no longer looked at once nothing outside the subtree differs in it: so
 * most labels have a few numbers, however many times there are.
 */

#include "planner/solver/tree/label_classes.h"

#include <math.h>

#include "planner/solver/tree/label_price.h"

/* The segment of a variable at a time of the core in which its values differ; -1: none. */
static int segment_at(const ap_label_pass_t *pass, int v, int time)
{
    const ap_cfn_variable_t *variable = &pass->node->dual->core->variable[v];

    for (int k = 0; k < variable->segments; ++k) {
        if (variable->segment[k].from <= time && time < variable->segment[k].to) {
            for (int x = 0; x < variable->size; ++x) {
                if (ap_label_used(pass, v, k, x) > 0.0) {
                    return k;
                }
            }
        }
    }
    return -1;
}

/* The most that a variable uses in a segment, above its least. Values that were dropped count as
 * well: asking would take longer than the little more room that they seem to need. */
static double most_of(const ap_label_pass_t *pass, int v, int segment)
{
    double most = 0.0;

    for (int x = 0; x < pass->node->dual->core->variable[v].size; ++x) {
        most = fmax(most, ap_label_used(pass, v, segment, x));
    }
    return most;
}

/* Finds the times at which the limit can be exceeded. */
void ap_label_find_times(ap_label_pass_t *pass)
{
    const ap_cfn_core_t *core = pass->node->dual->core;
    double *most = xm_arena_get(&pass->pool, (size_t)core->times + 1, sizeof(double));

    pass->when = xm_arena_take(&pass->pool, ((size_t)core->times + 1) * sizeof(int));
    pass->capacity = xm_arena_take(&pass->pool, ((size_t)core->times + 1) * sizeof(double));
    pass->most = most;
    pass->done = xm_arena_get(&pass->pool, (size_t)core->times + 1, sizeof(bool));
    pass->least = xm_arena_take(&pass->pool, ((size_t)core->variables + 1) * sizeof(double *));
    if (pass->pool.failed) {
        return;
    }
    for (int t = 0; t < core->times; ++t) {
        pass->capacity[t] = core->capacity[t];
    }
    for (int v = 0; v < core->variables; ++v) {
        const ap_cfn_variable_t *variable = &core->variable[v];
        const bool *keep = pass->node->keep + pass->node->dual->at[v];

        pass->least[v] =
            xm_arena_take(&pass->pool, ((size_t)variable->segments + 1) * sizeof(double));
        for (int k = 0; k < variable->segments && !pass->pool.failed; ++k) {
            const ap_cfn_segment_t *segment = &variable->segment[k];
            double least = HUGE_VAL, largest = 0.0;

            for (int x = 0; x < variable->size; ++x) {
                least = keep[x] ? fmin(least, segment->usage[x]) : least;
                largest = fmax(largest, segment->usage[x]);
            }
            pass->least[v][k] = least;
            for (int t = segment->from; t < segment->to; ++t) {
                pass->capacity[t] -= least;
                most[t] += largest - least;
            }
        }
    }
    /* Where all variables' largest usages fit together, no label is ever too large; these times are
     * left out, and what is counted below relies on that. */
    for (int t = 0; t < core->times; ++t) {
        if (most[t] > pass->capacity[t]) {
            pass->when[pass->times++] = t;
        }
    }
    pass->paid = xm_arena_take(&pass->pool, ap_cfn_core_values(core) * sizeof(double));
    if (pass->pool.failed) {
        return;
    }
    pass->loose = pass->times > pass->most_times;
    pass->times = ap_label_price(pass->node->dual, pass->when, pass->times, pass->most_times,
                                 pass->paid, &pass->pool);
    for (int k = 0; k < pass->times; ++k) {
        most[k] = most[pass->when[k]];
        pass->capacity[k] = pass->capacity[pass->when[k]];
    }
}

/* The class of a time: one with the same segment and the same classes of the children, or a new
 * one. `key` has those; times with a price are alone. */
static int find_class(ap_label_pass_t *pass, ap_label_step_t *step, const int *key, double price)
{
    int c = 0;

    for (; c < step->classes; ++c) {
        bool same = !(price > 0.0) && !(step->price[c] > 0.0) && step->segment[c] == key[0];

        for (int j = 0; j < step->children && same; ++j) {
            same = step->inner[j * pass->times + c] == key[1 + j];
        }
        if (same) {
            return c;
        }
    }
    step->segment[c] = key[0];
    for (int j = 0; j < step->children; ++j) {
        step->inner[j * pass->times + c] = key[1 + j];
    }
    step->price[c] = price;
    step->low[c] = step->limit[c] = HUGE_VAL;
    step->kept[c] = -1;
    ++step->classes;
    return c;
}

/* Finds a step's classes of times, and which of them its labels must keep. */
bool ap_label_find_classes(ap_label_pass_t *pass, ap_label_step_t *step)
{
    size_t times = (size_t)pass->times + 1;
    int key[1 + AP_LABEL_CHILDREN], kept = 0;

    step->segment = xm_arena_take(&pass->pool, times * sizeof(int));
    step->inner = xm_arena_take(&pass->pool, (size_t)step->children * times * sizeof(int));
    step->low = xm_arena_take(&pass->pool, times * sizeof(double));
    step->limit = xm_arena_take(&pass->pool, times * sizeof(double));
    step->price = xm_arena_take(&pass->pool, times * sizeof(double));
    step->kept = xm_arena_take(&pass->pool, times * sizeof(int));
    step->at = xm_arena_take(&pass->pool, times * sizeof(int));
    step->most = xm_arena_get(&pass->pool, times, sizeof(double));
    if (pass->pool.failed) {
        return false;
    }
    for (int t = 0; t < pass->times; ++t) {
        bool any;
        int c;

        step->at[t] = -1;
        key[0] = step->own >= 0 ? segment_at(pass, step->own, pass->when[t]) : -1;
        step->most[t] = key[0] >= 0 ? most_of(pass, step->own, key[0]) : 0.0;
        any = key[0] >= 0;
        for (int j = 0; j < step->children; ++j) {
            const ap_label_step_t *child = &pass->step[step->child[j]];

            key[1 + j] = child->at[t];
            step->most[t] += child->most[t];
            any = any || key[1 + j] >= 0;
        }
        if (!any || pass->done[t]) {
            continue;
        }
        c = find_class(pass, step, key, pass->node->dual->price[pass->when[t]]);
        step->limit[c] = fmin(step->limit[c], pass->capacity[t]);
        step->low[c] = fmin(step->low[c], pass->capacity[t] - (pass->most[t] - step->most[t]));
        /* Once nothing outside differs at a time, the check against the limit is the last that
         * has to be known of it; no later step looks at it. */
        pass->done[t] = !(pass->most[t] > step->most[t]);
        if (!pass->done[t]) {
            step->kept[c] = step->kept[c] < 0 ? kept++ : step->kept[c];
            step->at[t] = step->kept[c];
        }
    }
    step->labels = (ap_label_list_t){.classes = kept, .children = step->children};
    return true;
}
