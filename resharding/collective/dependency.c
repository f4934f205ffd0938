/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which moves wait for which. Both ends of a wait are at one node, so nodes are gone through one by
 * one: for each chunk there are the moves that wrote it since it was last copied over, and those
 * that read it since.
 */
#include "resharding/collective/program.h"

#include <stdlib.h>
#include <string.h>

/* Lists of moves; 0 ends a list. */
typedef struct {
    uint32_t move, next;
} cell_t;

typedef struct {
    const xm_program_t *program;
    int64_t *begin;  /* by node: its part of `event` */
    uint32_t *event; /* moves that a node sends or receives, in the order of the list */
    cell_t *cell;    /* from 1 on */
    size_t cells, room;
    uint32_t *writers, *readers; /* by chunk */
    uint64_t *seen;              /* by move: the last move that waits for it, and which end */
    struct {
        uint32_t before, after;
    } * pair;
    size_t pairs, pair_room;
    bool failed;
} find_t;

static void wait_for(find_t *find, uint32_t before, size_t move, bool at_receiver)
{
    uint64_t after = 2 * (uint64_t)move + at_receiver;

    if (find->seen[before] == after + 1 || before == move) {
        return;
    }
    find->seen[before] = after + 1;
    if (!XM_ARRAY_ROOM(find->pair, find->pair_room, find->pairs)) {
        find->failed = true;
        return;
    }
    find->pair[find->pairs].before = before;
    find->pair[find->pairs++].after = (uint32_t)after;
}

static void wait_for_all(find_t *find, uint32_t list, size_t move, bool at_receiver,
                         bool copies_only)
{
    for (; list != 0; list = find->cell[list].next) {
        uint32_t before = find->cell[list].move;

        if (!copies_only || !find->program->moves[before].reduce) {
            wait_for(find, before, move, at_receiver);
        }
    }
}

static void push(find_t *find, uint32_t *list, uint32_t move)
{
    if (!XM_ARRAY_ROOM(find->cell, find->room, find->cells)) {
        find->failed = true;
        return;
    }
    find->cell[find->cells] = (cell_t){move, *list};
    *list = (uint32_t)find->cells++;
}

static void visit(find_t *find, int node, uint32_t m)
{
    const xm_move_t *move = &find->program->moves[m];

    for (int c = move->chunk; c < move->chunk + move->count; ++c) {
        if (move->from == node) {
            wait_for_all(find, find->writers[c], m, false, false);
            push(find, &find->readers[c], m);
            continue;
        }
        wait_for_all(find, find->readers[c], m, true, false);
        wait_for_all(find, find->writers[c], m, true, move->reduce && !find->program->ordered);
        if (!move->reduce) {
            find->writers[c] = find->readers[c] = 0;
        }
        push(find, &find->writers[c], m);
    }
}

static void visit_node(find_t *find, int node)
{
    int64_t begin = node > 0 ? find->begin[node] : 0, end = find->begin[node + 1];

    find->cells = 1;
    for (int64_t i = begin; i < end && !find->failed; ++i) {
        visit(find, node, find->event[i]);
    }
    for (int64_t i = begin; i < end; ++i) {
        const xm_move_t *move = &find->program->moves[find->event[i]];

        memset(&find->writers[move->chunk], 0, (size_t)move->count * sizeof(uint32_t));
        memset(&find->readers[move->chunk], 0, (size_t)move->count * sizeof(uint32_t));
    }
}

/* Lists by the move waited for, made of the pairs by counting. */
static void gather(const find_t *find, xm_dependencies_t *d)
{
    for (size_t i = 0; i < find->pairs; ++i) {
        uint32_t after = find->pair[i].after;

        ++d->first[find->pair[i].before + 2];
        ++(after % 2 != 0 ? d->receive_waits : d->send_waits)[after / 2];
    }
    for (size_t m = 0; m < find->program->count; ++m) {
        d->first[m + 2] += d->first[m + 1];
    }
    for (size_t i = 0; i < find->pairs; ++i) {
        d->next[d->first[find->pair[i].before + 1]++] = find->pair[i].after;
    }
}

static void list_events(find_t *find)
{
    const xm_program_t *p = find->program;

    for (size_t m = 0; m < p->count; ++m) {
        ++find->begin[p->moves[m].from + 2];
        ++find->begin[p->moves[m].to + 2];
    }
    for (int n = 0; n < p->nodes; ++n) {
        find->begin[n + 2] += find->begin[n + 1];
    }
    for (size_t m = 0; m < p->count; ++m) {
        find->event[find->begin[p->moves[m].from + 1]++] = (uint32_t)m;
        find->event[find->begin[p->moves[m].to + 1]++] = (uint32_t)m;
    }
}

xm_status_t xm_dependencies_find(const xm_program_t *program, xm_dependencies_t *dependencies)
{
    size_t count = program->count, chunks = (size_t)program->chunks;
    xm_arena_t arena = {0};
    find_t find = {.program = program,
                   .begin = xm_arena_get(&arena, (size_t)program->nodes + 2, sizeof(int64_t)),
                   .event = xm_arena_take(&arena, (2 * count + 1) * sizeof(uint32_t)),
                   .writers = xm_arena_get(&arena, chunks, sizeof(uint32_t)),
                   .readers = xm_arena_get(&arena, chunks, sizeof(uint32_t)),
                   .seen = xm_arena_get(&arena, count + 1, sizeof(uint64_t))};
    xm_dependencies_t d = {.first = calloc(count + 2, sizeof(*d.first)),
                           .send_waits = calloc(count + 1, sizeof(int)),
                           .receive_waits = calloc(count + 1, sizeof(int))};

    find.failed =
        arena.failed || d.first == NULL || d.send_waits == NULL || d.receive_waits == NULL;
    if (!find.failed) {
        list_events(&find);
    }
    for (int n = 0; n < program->nodes && !find.failed; ++n) {
        visit_node(&find, n);
    }
    d.next = find.failed ? NULL : malloc((find.pairs + 1) * sizeof(*d.next));
    if (d.next != NULL) {
        gather(&find, &d);
    } else {
        xm_dependencies_clear(&d);
    }
    free(find.pair);
    free(find.cell);
    xm_arena_clear(&arena);
    *dependencies = d;
    return d.next != NULL ? XM_OK : XM_NO_MEMORY("the order of %zu moves", count);
}

void xm_dependencies_clear(xm_dependencies_t *dependencies)
{
    free(dependencies->first);
    free(dependencies->next);
    free(dependencies->send_waits);
    free(dependencies->receive_waits);
    *dependencies = (xm_dependencies_t){0};
}
