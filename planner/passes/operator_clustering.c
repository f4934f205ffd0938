/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Cuts a sequence of operators into layers by dynamic programming, exactly as Alpa's equation 5
 * asks (OSDI'22, section 5.2): the least bottleneck of received bytes, with an evenness constraint
 * on FLOPs. Many cuts share that bottleneck, so a second pass of the same form, restricted to it,
 * takes the least sum of bytes and then the evenest FLOPs; ties are thus decided by something that
 * means something, and the result does not depend on the order of the search.
 *
 * Only places where a layer may begin count, so K is their number and not that of operators.
 */

#include "planner/passes/operator_clustering.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A way to have the layers up to some piece. Pieces lie between places that may be cut. */
typedef struct way {
    double worst;   /* first pass: largest bytes */
    double bytes;   /* second pass: sum of bytes … */
    double squares; /* … and of squared FLOPs */
    int begin;      /* first piece of the last layer; -1: there is no way */
} way_t;

typedef struct solver {
    const ap_operator_clustering_t *problem;
    int pieces;
    int *first;    /* per piece, and one more: first operator */
    double *flops; /* per piece */
    int *heavy;    /* per piece */
    int *before;   /* per entry of use_tensor: the operator that used (or made) the tensor last */
    double *row;   /* bytes received by a layer from one piece on, up to each piece */
    way_t *way;    /* [layers of the way - 1][last piece] */
    double share;  /* most FLOPs of a layer */
    xm_arena_t arena;
} solver_t;

static bool may_begin(const ap_operator_clustering_t *problem, int op)
{
    return op == 0 || problem->may_begin == NULL || problem->may_begin[op];
}

static void find_pieces(solver_t *s)
{
    const ap_operator_clustering_t *problem = s->problem;

    for (int o = 0; o < problem->ops; ++o) {
        if (may_begin(problem, o)) {
            s->first[s->pieces++] = o;
        }
        s->flops[s->pieces - 1] += problem->flops[o];
        s->heavy[s->pieces - 1] += problem->heavy != NULL && problem->heavy[o];
    }
    s->first[s->pieces] = problem->ops;
}

/* A tensor comes into a layer once, with its first use there: the use whose predecessor lies before
 * the layer. With the predecessor at hand, a sum over uses needs no set of tensors seen. */
static xm_status_t chain_uses(solver_t *s)
{
    const ap_operator_clustering_t *problem = s->problem;
    int *last = malloc(((size_t)problem->tensors + 1) * sizeof(*last));

    XM_NEED_MEMORY(last, "%d tensors", problem->tensors);
    for (int t = 0; t < problem->tensors; ++t) {
        last[t] = problem->maker[t];
    }
    for (int o = 0; o < problem->ops; ++o) {
        for (int u = problem->use_begin[o]; u < problem->use_begin[o + 1]; ++u) {
            s->before[u] = last[problem->use_tensor[u]];
            last[problem->use_tensor[u]] = o;
        }
    }
    free(last);
    return XM_OK;
}

/* C(begin, …): what layers from one piece on receive, each from the one before by adding a piece.
 * Pieces beyond what a layer can hold are left out; returns how many it can hold at most. */
static int receive(solver_t *s, int begin)
{
    const ap_operator_clustering_t *problem = s->problem;
    int from = s->first[begin], piece = begin;
    double bytes = 0, flops = 0;

    for (; piece < s->pieces; ++piece) {
        flops += s->flops[piece];
        if (flops > s->share) {
            break;
        }
        for (int u = problem->use_begin[s->first[piece]];
             u < problem->use_begin[s->first[piece + 1]]; ++u) {
            bytes += s->before[u] < from ? problem->bytes[problem->use_tensor[u]] : 0;
        }
        s->row[piece] = bytes;
    }
    return piece - begin;
}

static way_t *way_at(const solver_t *s, int layers, int last)
{
    return &s->way[(size_t)(layers - 1) * (size_t)s->pieces + (size_t)last];
}

/* The second pass compares sums of squares only where the bytes are equal. */
static bool better(const way_t *a, const way_t *b, bool first_pass)
{
    if (b->begin < 0) {
        return true;
    }
    if (first_pass) {
        return a->worst < b->worst;
    }
    return a->bytes < b->bytes || (a->bytes <= b->bytes && a->squares < b->squares);
}

/* Offers the layer begin … last to the ways of every number of layers that it can end. The last
 * layer ends with the last piece and no other does; the ends of the model are excused from the
 * number of heavy operators. */
static void offer(solver_t *s, int begin, int last, double flops, int heavy, bool first_pass)
{
    int wanted = s->problem->layers;
    bool ends = last == s->pieces - 1;

    for (int layers = begin == 0 ? 1 : 2; layers <= (begin == 0 ? 1 : wanted); ++layers) {
        const way_t *prefix = begin == 0 ? NULL : way_at(s, layers - 1, begin - 1);
        way_t made = {
            .worst = s->row[last], .bytes = s->row[last], .squares = flops * flops, .begin = begin};
        way_t *best = way_at(s, layers, last);

        if ((begin > 0 && prefix->begin < 0) || ends != (layers == wanted) ||
            (begin > 0 && !ends && heavy < s->problem->min_heavy)) {
            continue;
        }
        if (begin > 0) {
            made.worst = fmax(made.worst, prefix->worst);
            made.bytes += prefix->bytes;
            made.squares += prefix->squares;
        }
        if (better(&made, best, first_pass)) {
            *best = made;
        }
    }
}

/* One pass over all layers; those that receive more than `most` are left out. A begin is taken up
 * only when all ways that end before it are final. */
static const way_t *pass(solver_t *s, double most, bool first_pass)
{
    for (int w = 0; w < s->problem->layers * s->pieces; ++w) {
        s->way[w].begin = -1;
    }
    for (int begin = 0; begin < s->pieces; ++begin) {
        int held = receive(s, begin), heavy = 0;
        double flops = 0;

        for (int last = begin; last < begin + held; ++last) {
            flops += s->flops[last];
            heavy += s->heavy[last];
            if (s->row[last] <= most) {
                offer(s, begin, last, flops, heavy, first_pass);
            }
        }
    }
    return way_at(s, s->problem->layers, s->pieces - 1);
}

static xm_status_t fill_result(const solver_t *s, ap_operator_clusters_t *result)
{
    int layers = s->problem->layers, last = s->pieces - 1;
    ap_operator_clusters_t made = {.layers = layers, .first = malloc((size_t)layers * sizeof(int))};

    XM_NEED_MEMORY(made.first, "%d layers", layers);
    made.sum_bytes = way_at(s, layers, last)->bytes;
    made.largest_bytes = way_at(s, layers, last)->worst;
    for (int layer = layers; layer >= 1; --layer) {
        int begin = way_at(s, layer, last)->begin;
        double flops = 0;

        for (int piece = begin; piece <= last; ++piece) {
            flops += s->flops[piece];
        }
        made.largest_flops = fmax(made.largest_flops, flops);
        made.first[layer - 1] = s->first[begin];
        last = begin - 1;
    }
    *result = made;
    return XM_OK;
}

/* The sentence has the numbers that a user could change. */
static xm_status_t refuse(const solver_t *s, double total)
{
    const ap_operator_clustering_t *problem = s->problem;
    double largest = 0;

    for (int piece = 0; piece < s->pieces; ++piece) {
        largest = fmax(largest, s->flops[piece]);
    }
    return XM_NO_SOLUTION("%d operators with %d places to cut do not make %d layers of at most "
                          "%.3g FLOP (the mean and %g of it) and at least %d heavy operators: the "
                          "largest part that cannot be cut has %.3g of %.3g FLOP",
                          problem->ops, s->pieces - 1, problem->layers, s->share, problem->delta,
                          problem->min_heavy, largest, total);
}

static xm_status_t check(const ap_operator_clustering_t *problem)
{
    if (problem->ops < 1 || problem->layers < 1 || !(problem->delta >= 0)) {
        return XM_INVALID("%d operators in %d layers with FLOPs up to %g above the mean: there "
                          "must be one of each, and nothing below",
                          problem->ops, problem->layers, problem->delta);
    }
    for (int o = 0; o < problem->ops; ++o) {
        if (!(problem->flops[o] >= 0) || !isfinite(problem->flops[o])) {
            return XM_INVALID("operator %d has %g FLOP", o, problem->flops[o]);
        }
        for (int u = problem->use_begin[o]; u < problem->use_begin[o + 1]; ++u) {
            int tensor = problem->use_tensor[u];

            if (tensor < 0 || tensor >= problem->tensors || problem->maker[tensor] < 0 ||
                problem->maker[tensor] >= o) {
                return XM_INVALID("operator %d uses tensor %d, which nothing before it makes", o,
                                  tensor);
            }
        }
    }
    return XM_OK;
}

/* Both passes; the arrays are there. */
static xm_status_t solve(solver_t *s, ap_operator_clusters_t *result)
{
    double total = 0;
    const way_t *found;

    for (int o = 0; o < s->problem->ops; ++o) {
        total += s->problem->flops[o];
    }
    /* Two sums of the same FLOPs in another order differ in their last digits; those must not
     * decide. */
    s->share = (1 + s->problem->delta) * total / s->problem->layers * (1 + 1e-12);
    find_pieces(s);
    XM_TRY(chain_uses(s));
    if (s->problem->layers > s->pieces) {
        return refuse(s, total);
    }
    s->way =
        xm_arena_get(&s->arena, (size_t)s->problem->layers * (size_t)s->pieces, sizeof(*s->way));
    XM_NEED_MEMORY(s->way, "cutting %d pieces into %d layers", s->pieces, s->problem->layers);
    found = pass(s, HUGE_VAL, true);
    if (found->begin < 0) {
        return refuse(s, total);
    }
    /* The second pass cannot fail: it finds at least the way of the first. */
    (void)pass(s, found->worst, false);
    return fill_result(s, result);
}

xm_status_t ap_operator_clustering_solve(const ap_operator_clustering_t *problem,
                                         ap_operator_clusters_t *result)
{
    solver_t s = {.problem = problem};
    xm_status_t status = check(problem);
    size_t ops;

    if (status != XM_OK) {
        return status;
    }
    ops = (size_t)problem->ops;
    s.first = xm_arena_get(&s.arena, ops + 1, sizeof(*s.first));
    s.flops = xm_arena_get(&s.arena, ops, sizeof(*s.flops));
    s.heavy = xm_arena_get(&s.arena, ops, sizeof(*s.heavy));
    s.before = xm_arena_get(&s.arena, ((size_t)problem->use_begin[ops] + 1), sizeof(*s.before));
    s.row = xm_arena_get(&s.arena, ops, sizeof(*s.row));
    if (s.arena.failed) {
        status = XM_NO_MEMORY("%zu operators", ops);
    } else {
        status = solve(&s, result);
    }
    xm_arena_clear(&s.arena);
    return status;
}

void ap_operator_clusters_clear(ap_operator_clusters_t *result)
{
    if (result != NULL) {
        free(result->first);
        *result = (ap_operator_clusters_t){0};
    }
}
