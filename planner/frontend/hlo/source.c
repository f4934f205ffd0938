/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The way back from a graph into the HLO text: which instruction, in which call, made which
 * operators and tensors. Exports need it to write shardings where the text has the instructions;
 * the graph itself keeps no trace of its file.
 *
 * Lists grow while the module is evaluated, so everything refers to everything else by number.
 * Orders come from the numbers at the end of XLA's names, because the text's order is not that in
 * which the program was written.
 */

#include "planner/frontend/hlo/source.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The number behind the last dot of a name, 0 without one. It stops before it could overflow. */
static int64_t order_of(hlo_slice_t name)
{
    int64_t number = 0, place = 1;

    for (size_t i = name.length; i > 0 && place < INT64_MAX / 100; --i) {
        char c = name.at[i - 1];

        if (c == '.') {
            return number;
        }
        if (c < '0' || c > '9') {
            break;
        }
        number += place * (c - '0');
        place *= 10;
    }
    return 0;
}

/* Calls and fusions are looked through; loops and conditionals are not, because what they call runs
 * another number of times than they do. */
static bool looks_through(const hlo_instruction_t *of)
{
    return of == NULL || hlo_slice_is(of->opcode, "call") || hlo_slice_is(of->opcode, "fusion");
}

xm_status_t hlo_source_enter(hlo_source_t *source, int parent, const hlo_instruction_t *of,
                             int *context)
{
    hlo_context_t *made;

    XM_NEED_MEMORY(XM_ARRAY_ROOM(source->contexts, source->context_room, source->context_count),
                   "the places in an HLO module");
    made = &source->contexts[source->context_count];
    *made =
        (hlo_context_t){.parent = parent, .called = looks_through(of), .loop = !looks_through(of)};
    if (of != NULL) {
        made->order = order_of(of->name);
        made->at = of->at;
        made->loop = made->loop || source->contexts[parent].loop;
    }
    *context = source->context_count++;
    return XM_OK;
}

xm_status_t hlo_source_add(hlo_source_t *source, const hlo_instruction_t *of,
                           const hlo_instance_t *instance)
{
    const size_t bytes = (size_t)instance->operand_count * sizeof(*instance->operands);
    int *operands = xm_arena_take(&source->arena, bytes);
    hlo_instance_t *made;

    if (operands == NULL ||
        !XM_ARRAY_ROOM(source->instances, source->instance_room, source->instance_count)) {
        return XM_NO_MEMORY("the places in an HLO module");
    }
    memcpy(operands, instance->operands, bytes);
    made = &source->instances[source->instance_count++];
    *made = *instance;
    made->operands = operands;
    made->at = of->at;
    made->order = order_of(of->name);
    (void)snprintf(made->opcode, sizeof(made->opcode), "%.*s",
                   (int)(of->opcode.length < HLO_INSTANCE_OPCODE ? of->opcode.length
                                                                 : HLO_INSTANCE_OPCODE - 1),
                   of->opcode.at);
    return XM_OK;
}

xm_status_t hlo_source_add_loop(hlo_source_t *source, const hlo_instruction_t *of,
                                const hlo_loop_t *loop, int *number)
{
    size_t bytes = ((size_t)loop->count + 1) * sizeof(*loop->state);
    hlo_carried_t *state = xm_arena_take(&source->arena, bytes);
    hlo_loop_t *made;

    if (state == NULL || !XM_ARRAY_ROOM(source->loops, source->loop_room, source->loop_count)) {
        return XM_NO_MEMORY("the places in an HLO module");
    }
    memcpy(state, loop->state, (size_t)loop->count * sizeof(*state));
    made = &source->loops[source->loop_count];
    *made = *loop;
    made->at = of->at;
    made->order = order_of(of->name);
    made->state = state;
    *number = source->loop_count++;
    return XM_OK;
}

/* Walks from the context outwards, through calls alone. The innermost loop whose body is met is the
 * answer. */
const hlo_loop_t *hlo_source_loop_of(const hlo_source_t *source, int context)
{
    for (; context >= 0; context = source->contexts[context].parent) {
        for (int l = 0; l < source->loop_count; ++l) {
            if (source->loops[l].body == context) {
                return &source->loops[l];
            }
        }
        if (!source->contexts[context].called) {
            break; /* a branch, or the condition of a loop */
        }
    }
    return NULL;
}

/* The name is made last: a port is counted only when it is complete, so the destructor needs no
 * check. */
xm_status_t hlo_source_add_port(hlo_source_t *source, const char *name, const operand_type_t *type,
                                int tensor)
{
    hlo_port_t made = {.shape = type->shape, .dtype = type->dtype, .tensor = tensor};

    if (name == NULL) {
        XM_NEED_MEMORY(XM_ARRAY_ROOM(source->results, source->result_room, source->result_count),
                       "the places in an HLO module");
        source->results[source->result_count++] = made;
        return XM_OK;
    }
    XM_NEED_MEMORY(
        XM_ARRAY_ROOM(source->parameters, source->parameter_room, source->parameter_count),
        "the places in an HLO module");
    made.name = xm_arena_get(&source->arena, strlen(name) + 1, 1);
    XM_NEED_MEMORY(made.name, "the places in an HLO module");
    (void)strcpy(made.name, name);
    source->parameters[source->parameter_count++] = made;
    return XM_OK;
}

static int depth_of(const hlo_source_t *source, int context)
{
    int depth = 0;

    for (; context >= 0; context = source->contexts[context].parent) {
        ++depth;
    }
    return depth;
}

/* A step of the way from the entry to a instance: its own order, or that of the call it runs in. */
typedef struct step {
    int64_t order;
    size_t at;
    int context;
} step_t;

static step_t caller_of(const hlo_source_t *source, step_t step)
{
    const hlo_context_t *in = &source->contexts[step.context];

    return (step_t){.order = in->order, .at = in->at, .context = in->parent};
}

/* Compares two places of one program by climbing to the context that both are in: first to equal
 * depth, then together. They meet in the entry at the latest. Equal orders are told apart by the
 * place in the text, so the order is total and the same in every run. */
static bool is_before(const hlo_source_t *source, step_t left, step_t right)
{
    int depth[2] = {depth_of(source, left.context), depth_of(source, right.context)};

    for (; depth[0] > depth[1]; --depth[0]) {
        left = caller_of(source, left);
    }
    for (; depth[1] > depth[0]; --depth[1]) {
        right = caller_of(source, right);
    }
    while (left.context != right.context) {
        left = caller_of(source, left);
        right = caller_of(source, right);
    }
    return left.order != right.order ? left.order < right.order : left.at < right.at;
}

bool hlo_source_before(const hlo_source_t *source, const hlo_instance_t *a, const hlo_instance_t *b)
{
    return is_before(source, (step_t){.order = a->order, .at = a->at, .context = a->context},
                     (step_t){.order = b->order, .at = b->at, .context = b->context});
}

bool hlo_source_loop_before(const hlo_source_t *source, const hlo_loop_t *a, const hlo_loop_t *b)
{
    return is_before(source, (step_t){.order = a->order, .at = a->at, .context = a->context},
                     (step_t){.order = b->order, .at = b->at, .context = b->context});
}

void hlo_source_destroy(void *of)
{
    hlo_source_t *source = of;

    free(source->loops);
    free(source->instances);
    free(source->contexts);
    free(source->parameters);
    free(source->results);
    xm_arena_clear(&source->arena);
    free(source);
}
