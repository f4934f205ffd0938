/* SPDX-License-Identifier: Apache-2.0 */
#include "planner/passes/operator_clustering.h"

#include <math.h>
#include <stdint.h>
#include <stdio.h>

#include "xm_test.h"

enum { MOST_OPS = 10, MOST_USES = MOST_OPS * 4 };

/* A random sequence: every operator makes one tensor and uses up to three of earlier ones. */
typedef struct instance {
    ap_operator_clustering_t problem;
    double flops[MOST_OPS], bytes[MOST_OPS];
    bool heavy[MOST_OPS], may_begin[MOST_OPS];
    int maker[MOST_OPS], use_begin[MOST_OPS + 1], use_tensor[MOST_USES];
} instance_t;

static uint64_t state;

static int pick(int below)
{
    state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (int)((state >> 33) % (uint64_t)below);
}

static void make(instance_t *x, bool chain)
{
    const ap_operator_clustering_t start = AP_OPERATOR_CLUSTERING_INIT;
    int uses = 0, ops = 1 + pick(MOST_OPS);

    x->problem = start;
    for (int o = 0; o < ops; ++o) {
        x->flops[o] = pick(6);
        x->bytes[o] = 1 + pick(9);
        x->heavy[o] = pick(2) == 0;
        x->may_begin[o] = pick(4) != 0;
        x->maker[o] = o;
        x->use_begin[o] = uses;
        for (int i = 0; i < 3 && o > 0; ++i) {
            if (chain ? i == 0 : pick(2) == 0) {
                x->use_tensor[uses++] = chain ? o - 1 : pick(o);
            }
        }
    }
    x->use_begin[ops] = uses;
    x->problem.ops = x->problem.tensors = ops;
    x->problem.flops = x->flops;
    x->problem.heavy = x->heavy;
    x->problem.may_begin = pick(3) == 0 ? x->may_begin : NULL;
    x->problem.bytes = x->bytes;
    x->problem.maker = x->maker;
    x->problem.use_begin = x->use_begin;
    x->problem.use_tensor = x->use_tensor;
    x->problem.layers = 1 + pick(ops < 5 ? ops : 5);
    x->problem.delta = 0.25 * pick(9);
    x->problem.min_heavy = pick(3);
}

/* C(first, last): bytes of the distinct tensors of earlier operators. */
static double received(const instance_t *x, int first, int last)
{
    bool seen[MOST_OPS] = {false};
    double bytes = 0;

    for (int o = first; o <= last; ++o) {
        for (int u = x->use_begin[o]; u < x->use_begin[o + 1]; ++u) {
            int tensor = x->use_tensor[u];

            bytes += x->maker[tensor] < first && !seen[tensor] ? x->bytes[tensor] : 0;
            seen[tensor] = true;
        }
    }
    return bytes;
}

typedef struct outcome {
    bool found;
    double worst, sum, squares;
} outcome_t;

static bool layer_allowed(const instance_t *x, int first, int last, double share)
{
    const ap_operator_clustering_t *p = &x->problem;
    double flops = 0;
    int heavy = 0;

    for (int o = first; o <= last; ++o) {
        flops += x->flops[o];
        heavy += x->heavy[o];
    }
    return flops <= share + 1e-9 && (first == 0 || p->may_begin == NULL || x->may_begin[first]) &&
           (heavy >= p->min_heavy || first == 0 || last == p->ops - 1);
}

/* Tries every set of cuts. */
static outcome_t by_trying(const instance_t *x)
{
    const ap_operator_clustering_t *p = &x->problem;
    outcome_t best = {.found = false};
    double total = 0;

    for (int o = 0; o < p->ops; ++o) {
        total += x->flops[o];
    }
    for (unsigned cuts = 0; cuts < 1U << (p->ops - 1); ++cuts) {
        outcome_t way = {.found = true};
        int first = 0;

        if (__builtin_popcount(cuts) != p->layers - 1) {
            continue;
        }
        for (int o = 0; o < p->ops && way.found; ++o) {
            if (o + 1 == p->ops || (cuts >> o & 1U) != 0) {
                double bytes = received(x, first, o), flops = 0;

                for (int i = first; i <= o; ++i) {
                    flops += x->flops[i];
                }
                way.found = layer_allowed(x, first, o, (1 + p->delta) * total / p->layers);
                way.worst = fmax(way.worst, bytes);
                way.sum += bytes;
                way.squares += flops * flops;
                first = o + 1;
            }
        }
        if (way.found &&
            (!best.found || way.worst < best.worst ||
             (way.worst <= best.worst &&
              (way.sum < best.sum || (way.sum <= best.sum && way.squares < best.squares))))) {
            best = way;
        }
    }
    return best;
}

/* What the found layers amount to, and that they are a partition in order. */
static outcome_t of_layers(const instance_t *x, const ap_operator_clusters_t *found)
{
    outcome_t of = {.found = true};
    double largest = 0;

    ck_assert_int_eq(found->layers, x->problem.layers);
    ck_assert_int_eq(found->first[0], 0);
    for (int layer = 0; layer < found->layers; ++layer) {
        int first = found->first[layer];
        int end = layer + 1 < found->layers ? found->first[layer + 1] : x->problem.ops;
        double flops = 0, bytes;

        ck_assert_int_lt(first, end);
        for (int o = first; o < end; ++o) {
            flops += x->flops[o];
        }
        bytes = received(x, first, end - 1);
        of.worst = fmax(of.worst, bytes);
        of.sum += bytes;
        of.squares += flops * flops;
        largest = fmax(largest, flops);
    }
    ck_assert_double_eq(found->largest_bytes, of.worst);
    ck_assert_double_eq(found->sum_bytes, of.sum);
    ck_assert_double_eq(found->largest_flops, largest);
    return of;
}

START_TEST(equals_every_way_to_cut)
{
    int solved = 0;

    state = 42;
    for (int round = 0; round < 3000; ++round) {
        ap_operator_clusters_t found = {0};
        instance_t x;
        outcome_t best, got;
        xm_status_t status;

        make(&x, round % 3 == 0);
        best = by_trying(&x);
        status = ap_operator_clustering_solve(&x.problem, &found);
        ck_assert_msg((status == XM_OK) == best.found, "round %d: %s, but there is %s", round,
                      xm_status_string(status), best.found ? "a way" : "none");
        if (status != XM_OK) {
            ck_assert_int_eq(status, XM_ERR_NO_SOLUTION);
            continue;
        }
        ++solved;
        got = of_layers(&x, &found);
        ck_assert_double_eq(got.worst, best.worst);
        ck_assert_double_eq(got.sum, best.sum);
        ck_assert_double_eq_tol(got.squares, best.squares, 1e-9);
        ap_operator_clusters_clear(&found);
    }
    ck_assert_int_gt(solved, 500);
}
END_TEST

START_TEST(says_why_there_are_no_layers)
{
    static const double flops[] = {1, 1, 10};
    static const int use_begin[] = {0, 0, 0, 0};
    static const int late[] = {0, 1, 1, 1}, itself[] = {0};
    static const int maker[] = {0};
    static const double bytes[] = {8};
    ap_operator_clustering_t problem = AP_OPERATOR_CLUSTERING_INIT;
    ap_operator_clusters_t found = {0};

    problem.ops = 3;
    problem.flops = flops;
    problem.use_begin = use_begin;
    problem.layers = 4;
    ck_assert_xm_fails(ap_operator_clustering_solve(&problem, &found), XM_ERR_NO_SOLUTION,
                       "3 operators with 2 places to cut do not make 4 layers");
    problem.layers = 3;
    ck_assert_xm_fails(ap_operator_clustering_solve(&problem, &found), XM_ERR_NO_SOLUTION,
                       "the largest part that cannot be cut has 10 of 12 FLOP");
    problem.delta = 1.5;
    ck_assert_xm_ok(ap_operator_clustering_solve(&problem, &found));
    ck_assert_int_eq(found.first[2], 2);
    ap_operator_clusters_clear(&found);
    problem.delta = NAN;
    ck_assert_xm_fails(ap_operator_clustering_solve(&problem, &found), XM_ERR_INVALID_ARGUMENT,
                       "3 operators in 3 layers");
    problem.delta = 0.5;
    problem.tensors = 1;
    problem.maker = maker;
    problem.bytes = bytes;
    problem.use_begin = late;
    problem.use_tensor = itself;
    ck_assert_xm_fails(ap_operator_clustering_solve(&problem, &found), XM_ERR_INVALID_ARGUMENT,
                       "operator 0 uses tensor 0");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("operator_clustering");
    TCase *tcase = tcase_create("operator_clustering");

    tcase_add_test(tcase, equals_every_way_to_cut);
    tcase_add_test(tcase, says_why_there_are_no_layers);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
