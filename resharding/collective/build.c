/* SPDX-License-Identifier: Apache-2.0 */
/* Builders of programs over factors of the devices, and of all-to-all. */
#include "resharding/collective/build.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    const xm_build_t *build;
    xm_program_t *program;
    int *at; /* by device: where the chunks that it works on begin */
    int length;
    xm_factor_t factor[XM_FACTORS_MOST]; /* in this piece's order */
    double load[XM_FACTORS_MOST];        /* seconds, by factor of the build */
    xm_status_t status;
} builder_t;

static int place(const xm_factor_t *factor, int device)
{
    return device / factor->stride % factor->extent;
}

/* The device of a line that is `steps` further, in a circle. */
static int further(const xm_factor_t *factor, int device, int steps)
{
    int old = place(factor, device), place = (old + steps) % factor->extent;

    return device + (place - old) * factor->stride;
}

static void add(builder_t *b, int chunk, int count, int from, int to, bool reduce)
{
    XM_THEN(b->status, xm_program_add(b->program, (xm_move_t){chunk, count, from, to, reduce}));
}

/* Along a factor, each device ends with the part of its place. */
static void scatter(builder_t *b, const xm_factor_t *factor)
{
    int part = b->length / factor->extent;

    for (int step = 1; step < factor->extent; ++step) {
        for (int d = 0; d < b->build->devices; ++d) {
            int to = further(factor, d, factor->direct ? step : 1);
            int which =
                place(factor, further(factor, d, factor->direct ? step : factor->extent - step));

            add(b, b->at[d] + which * part, part, d, to, true);
        }
    }
    for (int d = 0; d < b->build->devices; ++d) {
        b->at[d] += place(factor, d) * part;
    }
    b->length = part;
}

static void gather(builder_t *b, const xm_factor_t *factor)
{
    for (int d = 0; d < b->build->devices; ++d) {
        b->at[d] -= place(factor, d) * b->length;
    }
    for (int step = 1; step < factor->extent; ++step) {
        for (int d = 0; d < b->build->devices; ++d) {
            int to = further(factor, d, factor->direct ? step : 1);
            int which =
                place(factor, factor->direct ? d : further(factor, d, factor->extent + 1 - step));

            add(b, b->at[d] + which * b->length, b->length, d, to, false);
        }
    }
    b->length *= factor->extent;
}

/* A binary tree over the places of a line, from the first or from the last; parents come first. */
static void tree(builder_t *b, const xm_factor_t *factor, int first, bool from_last)
{
    int last = factor->extent - 1;

    for (int up = 1; up >= 0; --up) {
        for (int step = 1; step <= last; ++step) {
            int child = up ? factor->extent - step : step, parent = (child - 1) / 2;
            int c = further(factor, first, from_last ? last - child : child);
            int p = further(factor, first, from_last ? last - parent : parent);

            add(b, b->at[first], b->length, up ? c : p, up ? p : c, up);
        }
    }
}

/* Pairs of neighbours, of pairs, and so on; the sums of all levels come back the same ways. */
static void pairs(builder_t *b, const xm_factor_t *factor, int first)
{
    int reach = 1;

    for (; reach < factor->extent; reach *= 2) {
        for (int i = 0; i + reach < factor->extent; i += 2 * reach) {
            add(b, b->at[first], b->length, further(factor, first, i + reach),
                further(factor, first, i), true);
        }
    }
    while (reach /= 2, reach > 0) {
        for (int i = 0; i + reach < factor->extent; i += 2 * reach) {
            add(b, b->at[first], b->length, further(factor, first, i),
                further(factor, first, i + reach), false);
        }
    }
}

/* All add to one node, which brings the sum back. */
static void serve(builder_t *b, const xm_factor_t *factor, int first, int server)
{
    for (int up = 1; up >= 0; --up) {
        for (int i = 0; i < factor->extent; ++i) {
            int d = further(factor, first, i);

            if (d != server) {
                add(b, b->at[first], b->length, up ? d : server, up ? server : d, up);
            }
        }
    }
}

/* Sums over a line without scattering. The pieces that fall back are spread evenly. */
static void sum_line(builder_t *b, const xm_factor_t *factor, int first, int piece)
{
    const xm_build_t *build = b->build;
    bool falls_back = floor((piece + 1) * build->fallback) > floor(piece * build->fallback);
    int server = further(factor, first, build->servers > 0 ? piece % build->servers : 0);

    switch (build->last) {
    case XM_LAST_TREE:
    case XM_LAST_DOUBLE_TREE:
        tree(b, factor, first, build->last == XM_LAST_DOUBLE_TREE && piece % 2 != 0);
        return;
    case XM_LAST_PAIRS:
        pairs(b, factor, first);
        return;
    case XM_LAST_SWITCH:
        serve(b, factor, first, falls_back ? server : build->devices + first);
        return;
    default:
        serve(b, factor, first, server);
    }
}

/* The dimension with the least load goes first, as most is sent there (Themis). */
static void order_factors(builder_t *b)
{
    int count = b->build->factors, order[XM_FACTORS_MOST];
    double bytes = 1;

    for (int f = 0; f < count; ++f) {
        int at = f;

        for (; at > 0 && b->build->balance != NULL && b->load[order[at - 1]] > b->load[f]; --at) {
            order[at] = order[at - 1];
        }
        order[at] = f;
    }
    for (int i = 0; i < count; ++i) {
        b->factor[i] = b->build->factor[order[i]];
        if (b->build->balance != NULL) {
            const xm_dimension_t *d = &b->build->balance->dimension[order[i]];

            b->load[order[i]] += bytes * (1 - 1.0 / d->extent) * d->share * d->ratio / d->rate;
            bytes /= d->extent;
        }
    }
}

static void build_piece(builder_t *b, int piece, int chunks)
{
    const xm_build_t *build = b->build;
    int scattered = build->factors - (build->last != XM_LAST_SCATTER);

    order_factors(b);
    b->length = chunks;
    for (int d = 0; d < build->devices; ++d) {
        b->at[d] = piece * chunks;
    }
    if (build->kind == XM_ALL_GATHER) { /* where reducing and scattering would end */
        for (int f = 0; f < scattered; ++f) {
            b->length /= b->factor[f].extent;
            for (int d = 0; d < build->devices; ++d) {
                b->at[d] += place(&b->factor[f], d) * b->length;
            }
        }
    }
    for (int f = 0; f < scattered && build->kind != XM_ALL_GATHER; ++f) {
        scatter(b, &b->factor[f]);
    }
    for (int d = 0; d < build->devices && build->kind != XM_ALL_REDUCE; ++d) {
        (build->kind == XM_ALL_GATHER ? b->program->home : b->program->goal)[b->at[d]] = d;
    }
    for (int d = 0; d < build->devices && scattered < build->factors; ++d) {
        if (place(&b->factor[scattered], d) == 0) {
            sum_line(b, &b->factor[scattered], d, piece);
        }
    }
    for (int f = scattered - 1; f >= 0 && build->kind != XM_REDUCE_SCATTER; --f) {
        gather(b, &b->factor[f]);
    }
}

/* Devices that no factor tells apart, or rather those that differ elsewhere, are groups. */
static void set_groups(const xm_build_t *build, int *group)
{
    for (int d = 0; d < build->devices; ++d) {
        group[d] = d;
        for (int f = 0; f < build->factors; ++f) {
            group[d] -= place(&build->factor[f], d) * build->factor[f].stride;
        }
    }
}

static xm_status_t check_build(const xm_build_t *build, int *chunks)
{
    int product = 1;

    if (build->factors < 1 || build->factors > XM_FACTORS_MOST || build->pieces < 1) {
        return XM_INVALID("a program has 1 to %d factors and at least a piece", XM_FACTORS_MOST);
    }
    for (int f = 0; f < build->factors; ++f) {
        const xm_factor_t *factor = &build->factor[f];

        product *= factor->extent;
        if (factor->extent < 1 || factor->stride < 1 || product > build->devices) {
            return XM_INVALID("factor %d does not fit into %d devices", f, build->devices);
        }
    }
    if (build->kind != XM_ALL_REDUCE &&
        (build->last != XM_LAST_SCATTER || product != build->devices)) {
        return XM_INVALID("%s scatters or gathers over all devices",
                          xm_collective_name(build->kind));
    }
    *chunks = build->last == XM_LAST_SCATTER ? product
                                             : product / build->factor[build->factors - 1].extent;
    return XM_OK;
}

xm_status_t xm_build_factored(const xm_build_t *build, xm_program_t **program)
{
    builder_t b = {.build = build};
    int chunks = 0;
    xm_status_t status = check_build(build, &chunks);

    *program = NULL;
    if (status == XM_OK && (int64_t)build->pieces * chunks > INT32_MAX / 8) {
        status = XM_INVALID("%d pieces of %d chunks are too many", build->pieces, chunks);
    }
    XM_THEN(status, xm_program_create(build->kind, build->devices,
                                      build->devices * (build->last == XM_LAST_SWITCH ? 2 : 1),
                                      build->pieces * chunks, program));
    XM_TRY(status);
    b.program = *program;
    b.program->ordered = build->last == XM_LAST_PAIRS;
    b.at = malloc((size_t)build->devices * sizeof(*b.at));
    b.status = b.at != NULL ? XM_OK : XM_NO_MEMORY("%d devices", build->devices);
    set_groups(build, b.program->group);
    for (int piece = 0; piece < build->pieces && b.status == XM_OK; ++piece) {
        build_piece(&b, piece, chunks);
    }
    free(b.at);
    if (b.status < 0) {
        xm_program_destroy(b.program);
        *program = NULL;
    }
    return b.status;
}

xm_status_t xm_build_all_to_all(int devices, xm_program_t **program)
{
    xm_status_t status = xm_program_create(XM_ALL_TO_ALL, devices, devices, 0, program);

    for (int round = 1; round < devices && status == XM_OK; ++round) {
        for (int d = 0; d < devices && status == XM_OK; ++d) {
            int to = (d + round) % devices;

            status = xm_program_add(*program, (xm_move_t){d * devices + to, 1, d, to, false});
        }
    }
    if (status < 0) {
        xm_program_destroy(*program);
        *program = NULL;
    }
    return status;
}
