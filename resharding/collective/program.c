/* SPDX-License-Identifier: Apache-2.0 */
/* Programs and their checker, which does the moves of one chunk after the other with sets of
 * contributions in place of data. */
#include "resharding/collective/program.h"

#include <stdlib.h>
#include <string.h>

xm_status_t xm_program_create(xm_collective_t kind, int devices, int nodes, int chunks,
                              xm_program_t **program)
{
    xm_program_t *p = calloc(1, sizeof(*p));

    chunks = kind == XM_ALL_TO_ALL ? devices * devices : chunks;
    *program = p;
    if (p != NULL) {
        *p = (xm_program_t){.kind = kind, .devices = devices, .nodes = nodes, .chunks = chunks};
        p->share = malloc(((size_t)chunks + 1) * sizeof(*p->share));
        p->home = malloc((size_t)chunks * sizeof(*p->home));
        p->goal = malloc((size_t)chunks * sizeof(*p->goal));
        p->group = calloc((size_t)devices, sizeof(*p->group));
    }
    if (p == NULL || p->share == NULL || p->home == NULL || p->goal == NULL || p->group == NULL) {
        xm_program_destroy(p);
        *program = NULL;
        return XM_NO_MEMORY("a program of %d chunks", chunks);
    }
    for (int c = 0; c <= chunks; ++c) {
        p->share[c] = c;
    }
    for (int c = 0; c < chunks; ++c) {
        p->home[c] = kind == XM_ALL_TO_ALL ? c / devices : -1;
        p->goal[c] = kind == XM_ALL_TO_ALL ? c % devices : -1;
    }
    return XM_OK;
}

void xm_program_destroy(xm_program_t *program)
{
    if (program != NULL) {
        free(program->moves);
        free(program->group);
        free(program->goal);
        free(program->home);
        free(program->share);
        free(program);
    }
}

xm_status_t xm_program_add(xm_program_t *program, xm_move_t move)
{
    /* Dependencies number moves and their ends in 32 bits. */
    if (program->count >= INT32_MAX / 2 ||
        !XM_ARRAY_ROOM(program->moves, program->room, program->count)) {
        return XM_NO_MEMORY("%zu moves", program->count);
    }
    program->moves[program->count++] = move;
    return XM_OK;
}

typedef struct {
    const xm_program_t *program;
    size_t words;
    uint64_t *set;      /* by node: whose contributions its chunk holds */
    int64_t *first;     /* by chunk: its part of `order` */
    uint32_t *order;    /* moves by chunk, in the order of the list */
    uint64_t *expected; /* scratch */
} check_t;

/* Lists the moves of each chunk by counting. */
static xm_status_t sort_by_chunk(check_t *check)
{
    const xm_program_t *p = check->program;

    check->first = calloc((size_t)p->chunks + 2, sizeof(*check->first));
    XM_NEED_MEMORY(check->first, "checking %d chunks", p->chunks);
    for (size_t m = 0; m < p->count; ++m) {
        const xm_move_t *move = &p->moves[m];

        if (move->chunk < 0 || move->count < 1 || move->count > p->chunks - move->chunk ||
            move->from < 0 || move->from >= p->nodes || move->to < 0 || move->to >= p->nodes ||
            move->from == move->to) {
            return XM_INVALID("move %zu names a chunk or a node that is not there", m);
        }
        for (int c = move->chunk; c < move->chunk + move->count; ++c) {
            ++check->first[c + 2];
        }
    }
    for (int c = 0; c < p->chunks; ++c) {
        check->first[c + 2] += check->first[c + 1];
    }
    check->order = malloc(((size_t)check->first[p->chunks + 1] + 1) * sizeof(*check->order));
    XM_NEED_MEMORY(check->order, "checking %zu moves", p->count);
    for (size_t m = 0; m < p->count; ++m) {
        for (int c = p->moves[m].chunk; c < p->moves[m].chunk + p->moves[m].count; ++c) {
            check->order[check->first[c + 1]++] = (uint32_t)m;
        }
    }
    return XM_OK;
}

static uint64_t *set_of(const check_t *check, int node)
{
    return check->set + (size_t)node * check->words;
}

static void put(uint64_t *set, int device)
{
    set[device / 64] |= UINT64_C(1) << (device % 64);
}

static xm_status_t do_move(const check_t *check, int chunk, const xm_move_t *move)
{
    const uint64_t *source = set_of(check, move->from);
    uint64_t *target = set_of(check, move->to), any = 0, both = 0;

    for (size_t w = 0; w < check->words; ++w) {
        any |= source[w];
        both |= source[w] & target[w];
    }
    if (any == 0) {
        return XM_INVALID("chunk %d: node %d sends it to %d before it has anything of it", chunk,
                          move->from, move->to);
    }
    if (move->reduce && both != 0) {
        return XM_INVALID("chunk %d: a contribution would be twice in the sum of node %d", chunk,
                          move->to);
    }
    for (size_t w = 0; w < check->words; ++w) {
        target[w] = source[w] | (move->reduce ? target[w] : 0);
    }
    return XM_OK;
}

/* What a device must have in the end. */
static void expect(const check_t *check, int chunk, int device)
{
    const xm_program_t *p = check->program;

    memset(check->expected, 0, check->words * sizeof(uint64_t));
    for (int d = 0; d < p->devices; ++d) {
        if (p->home[chunk] < 0 ? p->group[d] == p->group[device] : p->home[chunk] == d) {
            put(check->expected, d);
        }
    }
}

static xm_status_t check_chunk(const check_t *check, int chunk)
{
    const xm_program_t *p = check->program;
    int64_t begin = chunk > 0 ? check->first[chunk] : 0, end = check->first[chunk + 1];
    xm_status_t status = XM_OK;

    memset(check->set, 0, (size_t)p->nodes * check->words * sizeof(uint64_t));
    for (int d = 0; d < p->devices; ++d) {
        if (p->home[chunk] < 0 || p->home[chunk] == d) {
            put(set_of(check, d), d);
        }
    }
    for (int64_t i = begin; status == XM_OK && i < end; ++i) {
        status = do_move(check, chunk, &p->moves[check->order[i]]);
    }
    for (int d = 0, known = -1; status == XM_OK && d < p->devices; ++d) {
        if (p->goal[chunk] >= 0 && p->goal[chunk] != d) {
            continue;
        }
        if (p->group[d] != known) {
            expect(check, chunk, d);
            known = p->group[d];
        }
        if (memcmp(check->expected, set_of(check, d), check->words * sizeof(uint64_t)) != 0) {
            status = XM_INVALID("chunk %d: device %d does not have the result", chunk, d);
        }
    }
    return status;
}

xm_status_t xm_program_check(const xm_program_t *program)
{
    check_t check = {.program = program, .words = ((size_t)program->devices + 63) / 64};
    xm_status_t status = sort_by_chunk(&check);

    check.set = malloc(((size_t)program->nodes + 1) * check.words * sizeof(uint64_t));
    check.expected = check.set != NULL ? set_of(&check, program->nodes) : NULL;
    if (status == XM_OK && check.set == NULL) {
        status = XM_NO_MEMORY("checking %d nodes", program->nodes);
    }
    for (int c = 0; status == XM_OK && c < program->chunks; ++c) {
        status = check_chunk(&check, c);
    }
    free(check.set);
    free(check.order);
    free(check.first);
    return status;
}
