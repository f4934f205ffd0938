/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where two plans of one model differ, in a few words, for the table of a comparison. Differences
 * are named from the outside in (stages, micro-batches, recomputation, hosts, schedule, then single
 * stages and operators), and at most three of them, because the first ones explain the others.
 */

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "comm/base.h"
#include "planner/published/like.h"

enum { MOST_WORDS = 3, RECOMPUTE_TEXT = 64 };

typedef struct words {
    char *text;
    size_t size, length;
    int count;
} words_t;

static void say(words_t *words, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void say(words_t *words, const char *format, ...)
{
    va_list arguments;
    int wrote;

    if (words->count++ >= MOST_WORDS || words->length >= words->size) {
        return;
    }
    if (words->count > 1) {
        words->length +=
            (size_t)snprintf(words->text + words->length, words->size - words->length, "; ");
    }
    if (words->length < words->size) {
        va_start(arguments, format);
        wrote =
            vsnprintf(words->text + words->length, words->size - words->length, format, arguments);
        va_end(arguments);
        words->length += wrote > 0 ? (size_t)wrote : 0;
    }
}

static void compare_stage(words_t *words, int index, const ap_plan_stage_t *a,
                          const ap_plan_stage_t *b)
{
    if (a->first_layer != b->first_layer || a->last_layer != b->last_layer) {
        say(words, "stage %d: layers %d-%d, not %d-%d", index, a->first_layer, a->last_layer,
            b->first_layer, b->last_layer);
    }
    if (a->shape[0] != b->shape[0] || a->shape[1] != b->shape[1]) {
        say(words, "stage %d: mesh %dx%d, not %dx%d", index, a->shape[0], a->shape[1], b->shape[0],
            b->shape[1]);
    }
}

static const ap_plan_layers_t *layers_of(const ap_plan_stage_t *stage, int layer)
{
    const ap_plan_layers_t *found = NULL;

    for (int i = 0; i < stage->layer_count; ++i) {
        if (layer >= stage->layers[i].first_layer && layer <= stage->layers[i].last_layer) {
            found = &stage->layers[i];
        }
    }
    return found;
}

/* The first operator of the layers that both stages have which is cut otherwise. */
static bool compare_operators(words_t *words, const ap_plan_stage_t *a, const ap_plan_stage_t *b)
{
    for (int layer = a->first_layer; layer <= a->last_layer; ++layer) {
        const ap_plan_layers_t *x = layers_of(a, layer), *y = layers_of(b, layer);

        for (int o = 0; x != NULL && y != NULL && o < x->op_count && o < y->op_count; ++o) {
            if (strcmp(x->ops[o].operands, y->ops[o].operands) != 0 ||
                strcmp(x->ops[o].results, y->ops[o].results) != 0) {
                say(words, "layer %d %s: %s->%s, not %s->%s", layer, x->ops[o].name,
                    x->ops[o].operands, x->ops[o].results, y->ops[o].operands, y->ops[o].results);
                return true;
            }
        }
    }
    return false;
}

static bool orders_differ(const ap_plan_info_t *a, const ap_plan_info_t *b)
{
    if (a->host_order == NULL || b->host_order == NULL || a->hosts != b->hosts) {
        return a->host_order != b->host_order;
    }
    return memcmp(a->host_order, b->host_order, (size_t)a->hosts * sizeof(*a->host_order)) != 0;
}

char *ap_like_difference(const ap_plan_t *plan, const ap_plan_t *other, char *buffer, size_t size)
{
    if (XM_IS_NULL(plan) || XM_IS_NULL(other) || XM_IS_NULL(buffer)) {
        return NULL;
    }
    const ap_plan_info_t *a = ap_plan_info(plan), *b = ap_plan_info(other);
    int stages = ap_plan_stages(plan);
    words_t words = {.text = buffer, .size = size};
    char texts[2][RECOMPUTE_TEXT];
    const char *ours = ap_plan_recompute_text(plan, texts[0], sizeof(texts[0]));

    buffer[0] = '\0';
    if (stages != ap_plan_stages(other)) {
        say(&words, "%d stage%s, not %d", stages, stages == 1 ? "" : "s", ap_plan_stages(other));
    }
    if (a->micro_batches != b->micro_batches) {
        say(&words, "%" PRId64 " micro-batches, not %" PRId64, a->micro_batches, b->micro_batches);
    }
    if (strcmp(ours, ap_plan_recompute_text(other, texts[1], sizeof(texts[1]))) != 0) {
        if (strcmp(ours, "on") == 0 || strcmp(ours, "off") == 0) {
            say(&words, a->rematerialize ? "recomputes" : "does not recompute");
        } else {
            say(&words, "recomputes %s", ours);
        }
    }
    if (stages > 1 && orders_differ(a, b)) {
        say(&words, "hosts in %s order", a->host_order == NULL ? "the profile's" : "another");
    }
    if (strcmp(a->schedule, b->schedule) != 0 && (stages > 1 || ap_plan_stages(other) > 1)) {
        say(&words, "%s, not %s", a->schedule, b->schedule);
    }
    for (int i = 0; i < stages && stages == ap_plan_stages(other); ++i) {
        compare_stage(&words, i, ap_plan_stage(plan, i), ap_plan_stage(other, i));
    }
    for (int i = 0; i < stages && words.count == 0; ++i) {
        (void)compare_operators(&words, ap_plan_stage(plan, i), ap_plan_stage(other, i));
    }
    if (words.count == 0 && a->step != b->step) {
        say(&words, "parameters are kept otherwise");
    }
    return buffer;
}
