/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Packing spanning trees by multiplicative weights: each round takes the tree that is shortest when
 * links are long that have much to carry. Any lengths prove a bound: every tree is as long as the
 * shortest at least, so all trees together have no more than the sum of rate times length to share.
 */
#include "resharding/collective/build.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { ROUNDS = 600 };

/* How sharply lengths grow with load. */
static const double growth = 60;

typedef struct {
    const xm_interconnect_t *net;
    double *load, *length;        /* by link; equal in both directions */
    int *parent, *order;          /* of the round's tree: by device; devices, parents first */
    double *near;                 /* scratch */
    int *parents, *orders, *uses; /* of the trees found: parents and orders, one after the other */
    int trees;
} packing_t;

/* Prim's algorithm from device 0; returns the tree's length. */
static double shortest_tree(packing_t *p)
{
    int n = p->net->devices;
    double total = 0;

    for (int d = 0; d < n; ++d) {
        p->near[d] = d == 0 ? 0 : INFINITY;
        p->parent[d] = -1;
    }
    for (int i = 0; i < n; ++i) {
        int next = -1;

        for (int d = 0; d < n; ++d) {
            if (p->near[d] >= 0 && (next < 0 || p->near[d] < p->near[next])) {
                next = d;
            }
        }
        total += p->near[next];
        p->near[next] = -1;
        p->order[i] = next;
        for (int d = 0; d < n; ++d) {
            if (p->net->link[next * n + d] > 0 && p->length[next * n + d] < p->near[d]) {
                p->near[d] = p->length[next * n + d];
                p->parent[d] = next;
            }
        }
    }
    return total;
}

static void remember(packing_t *p)
{
    size_t n = (size_t)p->net->devices, bytes = n * sizeof(int);
    int t = 0;

    while (t < p->trees && memcmp(p->parents + (size_t)t * n, p->parent, bytes) != 0) {
        ++t;
    }
    if (t == p->trees) {
        memcpy(p->parents + (size_t)t * n, p->parent, bytes);
        memcpy(p->orders + (size_t)t * n, p->order, bytes);
        p->uses[p->trees++] = 0;
    }
    ++p->uses[t];
}

/* Bytes/s that all trees found carry together is above 0 when the links connect all devices. */
static xm_status_t search(packing_t *p, double *rate)
{
    int n = p->net->devices, links = n * n;
    double fastest = 0;

    for (int l = 0; l < links; ++l) {
        if (fabs(p->net->link[l] - p->net->link[l % n * n + l / n]) > 1e-9 * p->net->link[l]) {
            return XM_INVALID("trees are packed into links that are equal in both directions");
        }
        fastest = fmax(fastest, p->net->link[l]);
    }
    *rate = INFINITY;
    for (int round = 0; round < ROUNDS; ++round) {
        double worst = 0, sum = 0, tree;

        for (int l = 0; l < links; ++l) {
            worst = fmax(worst, p->load[l]);
        }
        for (int l = 0; l < links; ++l) {
            if (p->net->link[l] > 0) {
                p->length[l] = exp(growth * (p->load[l] - worst)) * fastest / p->net->link[l];
                sum += l / n < l % n ? p->length[l] * p->net->link[l] : 0;
            }
        }
        tree = shortest_tree(p);
        if (isinf(tree)) {
            return XM_INVALID("the links do not connect all devices");
        }
        *rate = fmin(*rate, sum / tree);
        remember(p);
        for (int d = 1; d < n; ++d) {
            int one = p->parent[d] * n + d, other = d * n + p->parent[d];

            /* In units in which a packing of rate `fastest` has a load of 1. */
            p->load[one] += fastest / p->net->link[one] / ROUNDS;
            p->load[other] = p->load[one];
        }
    }
    return XM_OK;
}

/* Chunks: as many to a tree as its share has, all of nearly one size; their moves take turns, a
 * chunk of each tree at a time. */
static xm_status_t emit(const packing_t *p, int pieces, xm_program_t **program)
{
    int n = p->net->devices, most = 0, chunks = 0, made = 0;
    xm_status_t status;

    for (int t = 0; t < p->trees; ++t) {
        most = p->uses[t] > most ? p->uses[t] : most;
    }
    for (int t = 0; t < p->trees; ++t) {
        chunks += (p->uses[t] * pieces + most - 1) / most;
    }
    status = xm_program_create(XM_ALL_REDUCE, n, n, chunks, program);
    for (int piece = 0; status == XM_OK && piece < pieces; ++piece) {
        for (int t = 0; status == XM_OK && t < p->trees; ++t) {
            const int *parent = p->parents + (size_t)t * (size_t)n;
            const int *order = p->orders + (size_t)t * (size_t)n;
            int mine = (p->uses[t] * pieces + most - 1) / most;

            if ((piece + 1) * mine / pieces == piece * mine / pieces) {
                continue;
            }
            (*program)->share[made + 1] =
                (*program)->share[made] + (int64_t)p->uses[t] * 1000000 / mine;
            for (int i = 1; status == XM_OK && i < 2 * n - 1; ++i) {
                bool up = i < n;
                int d = order[up ? n - i : i - n + 1];

                status = xm_program_add(
                    *program, (xm_move_t){made, 1, up ? d : parent[d], up ? parent[d] : d, up});
            }
            ++made;
        }
    }
    return status;
}

xm_status_t xm_build_packed_trees(const xm_interconnect_t *interconnect, int pieces, double *rate,
                                  xm_program_t **program)
{
    size_t n = (size_t)interconnect->devices, links = n * n;
    xm_arena_t arena = {0};
    packing_t p = {.net = interconnect,
                   .load = xm_arena_get(&arena, links, sizeof(double)),
                   .length = xm_arena_get(&arena, links, sizeof(double)),
                   .parent = xm_arena_take(&arena, n * sizeof(int)),
                   .order = xm_arena_take(&arena, n * sizeof(int)),
                   .near = xm_arena_take(&arena, n * sizeof(double)),
                   .parents = xm_arena_take(&arena, ROUNDS * n * sizeof(int)),
                   .orders = xm_arena_take(&arena, ROUNDS * n * sizeof(int)),
                   .uses = xm_arena_take(&arena, ROUNDS * sizeof(int))};
    xm_status_t status = XM_OK;

    *program = NULL;
    if (interconnect->link == NULL) {
        status = XM_INVALID("trees are packed into links, and there are none");
    } else if (arena.failed) {
        status = XM_NO_MEMORY("packing trees of %zu devices", n);
    }
    XM_THEN(status, search(&p, rate));
    XM_THEN(status, emit(&p, pieces, program));
    if (status < 0) {
        xm_program_destroy(*program);
        *program = NULL;
    }
    xm_arena_clear(&arena);
    return status;
}
