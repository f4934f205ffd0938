/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The formula of a regular all-to-all: tasks and transfers from their numbers alone. Whoever reads
 * a plan comes here, so this file knows nothing of how plans are made.
 */
#include <stdlib.h>

#include "resharding/plan/regular/regular.h"

void xm_regular_destroy(xm_regular_t *regular)
{
    if (regular != NULL) {
        free(regular->dst.place);
        free(regular->dst.tile);
        free(regular->dst.rank);
        free(regular->src.place);
        free(regular->src.tile);
        free(regular->src.rank);
        free(regular);
    }
}

/* All numbers are below 2^32, whose divisions are the quick ones. */
xm_unit_task_t xm_regular_task(const xm_regular_t *regular, int64_t task)
{
    uint32_t number = (uint32_t)task;

    return (xm_unit_task_t){.src_tile = (int)(number % regular->src_tiles),
                            .dst_tile = (int)(number / regular->src_tiles),
                            .elements = regular->elements};
}

/* Takes the last digit off a number. */
static int digit(uint32_t *number, uint32_t base)
{
    uint32_t last = *number % base;

    *number /= base;
    return (int)last;
}

/* Partner of `own` among `count` in a round. */
static int partner(int own, int round, int count)
{
    return own + round < count ? own + round : own + round - count;
}

/* Cuts [*first, *first + length) into parts, the first of them longer by one element. */
static int64_t cut(int64_t *first, int64_t length, int64_t parts, int64_t part)
{
    int64_t size = length / parts, longer = length % parts;

    *first += part * size + (part < longer ? part : longer);
    return size + (part < longer);
}

/* A number is, from its last digit on: device and host on the smaller side, piece, turn, round.
 * Where all devices of a host hold its tile, each receiver has its own sender. */
xm_transfer_t xm_regular_transfer(const xm_regular_t *regular, int64_t transfer)
{
    const xm_side_t *src = &regular->src, *dst = &regular->dst;
    uint32_t number = (uint32_t)transfer;
    int device = digit(&number, regular->devices), host = digit(&number, regular->hosts);
    int piece = digit(&number, regular->pieces), turn = digit(&number, regular->turns);
    int far_host = partner(host, (int)number, (int)regular->rounds);
    int others = regular->by_receiver ? src->devices : dst->devices;
    int far_device = src->whole ? device % others : partner(device, turn, others);
    bool more_send = src->hosts == (int)regular->rounds;
    int to = (more_send ? host : far_host) * dst->devices,
        from = (more_send ? far_host : host) * src->devices;
    xm_transfer_t result = {.parent = XM_PARENT_SOURCE, .end = regular->elements};

    to += regular->by_receiver ? device : far_device;
    from += regular->by_receiver ? far_device : device;
    result.task = (int64_t)dst->tile[to] * regular->src_tiles + src->tile[from];
    result.sender = src->rank[from];
    result.route = to;
    if (dst->whole) {
        int64_t length = cut(&result.first, regular->elements, dst->devices, to % dst->devices);

        result.end = result.first + length;
        length = cut(&result.first, length, regular->pieces, piece);
        result.end = result.first + length;
    }
    return result;
}

/* In each block of transfers, which are of one round, turn and piece, those of a host stand
 * together. */
int64_t xm_regular_next(const xm_regular_t *regular, int host, int64_t transfer, int64_t count)
{
    const xm_side_t *more =
        regular->src.hosts == (int)regular->rounds ? &regular->src : &regular->dst;
    const xm_side_t *fewer = more == &regular->src ? &regular->dst : &regular->src;
    int64_t block = (int64_t)regular->hosts * regular->devices, end;

    for (; transfer < count; transfer = end) {
        int64_t at = transfer / block, round = at / ((int64_t)regular->turns * regular->pieces);
        int64_t places[] = {fewer->place[host], more->place[host] - round}, next;

        places[1] += more->place[host] >= 0 && places[1] < 0 ? regular->rounds : 0;
        next = end = (at + 1) * block;
        for (int i = 0; i < 2; ++i) {
            int64_t first = at * block + places[i] * regular->devices;

            first = first > transfer ? first : transfer;
            if (places[i] >= 0 && places[i] < regular->hosts && first < next &&
                first < at * block + (places[i] + 1) * regular->devices) {
                next = first;
            }
        }
        if (next < end) {
            return next;
        }
    }
    return count;
}
