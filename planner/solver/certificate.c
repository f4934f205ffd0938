/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The certificate of a solve. It repeats nothing that the search has done: what the presolve did is
 * listed, and below it a dual is raised and a tree is built anew for the reader's sake, once the
 * optimum is known. The reader replays the presolve, so it needs none of the solver's ideas of time
 * and usage: prices name times of the problem.
 */

#include "planner/solver/certificate.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "planner/solver/bound.h"
#include "planner/solver/tree.h"

enum { CONVERGED_STEPS = 150 };
/* Trees that are tried, the last one without branches. To branch by usage makes the tree small (A
 * of the contest: 16 nodes instead of 1,624) or, rarely, endless. */
static const struct {
    int64_t nodes;
    bool by_usage;
} tries[] = {{500, true}, {20000, false}, {1, false}};
enum { TRIES = sizeof(tries) / sizeof(tries[0]) };
static const double worthwhile = 0.003;
/* Numbers in the file are integers below this many bits, and sums of them fit into 63. */
enum { BITS = 44 };

xm_status_t ap_cfn_check_certifiable(const ap_cfn_t *cfn)
{
    for (size_t edge = 0; edge < cfn->edges; ++edge) {
        if (cfn->scope_at[edge + 1] - cfn->scope_at[edge] > 2) {
            return XM_UNSUPPORTED("a certificate is for edges of two nodes; edge %zu has three",
                                  edge);
        }
    }
    return XM_OK;
}

/* Raises the bound until it has converged, or the time is up. */
static void raise_bound(ap_cfn_shared_t *shared, ap_cfn_dual_t *dual, double cost)
{
    double before = -HUGE_VAL;

    for (int step = 1; dual->best < cost && !ap_cfn_shared_is_over(shared); ++step) {
        (void)ap_cfn_dual_sweep(dual);
        if (step % CONVERGED_STEPS == 0) {
            if (dual->best - before <= worthwhile * (cost - dual->best)) {
                break;
            }
            before = dual->best;
        }
        ap_cfn_dual_move_prices(dual, ap_cfn_dual_aim(dual, cost));
    }
    memcpy(dual->price, dual->best_price, (size_t)dual->core->times * sizeof(double));
    ap_cfn_dual_prices_changed(dual);
}

static void write_presolve(const ap_cfn_reduction_t *reduction, FILE *file)
{
    size_t count;
    const int(*event)[4] = ap_cfn_reduction_events(reduction, &count);

    for (size_t k = 0; k < count; ++k) {
        (void)fprintf(file, "%s[%d,%d,%d,%d]", k > 0 ? "," : "", event[k][0], event[k][1],
                      event[k][2], event[k][3]);
    }
}

/* The records that prove the goal, or the first one and its bound. The tree is written to memory,
 * as only its end tells whether it is a proof. */
static xm_status_t write_proof(const ap_cfn_dual_t *dual, ap_cfn_shared_t *shared, double *goal,
                               int scale, bool optimal, FILE *file)
{
    char *text = NULL;
    size_t length = 0;
    bool closed = false;
    double first;
    xm_status_t status = XM_OK;

    for (int k = optimal ? 0 : TRIES - 1; k < TRIES && status == XM_OK && !closed; ++k) {
        FILE *memory;

        free(text);
        text = NULL;
        memory = open_memstream(&text, &length);
        if (memory == NULL) {
            return XM_NO_MEMORY("a proof");
        }
        status = ap_cfn_prove(dual, shared, *goal, scale, tries[k].nodes, tries[k].by_usage, memory,
                              &closed, &first);
        (void)fclose(memory);
    }
    *goal = closed ? *goal : floor(first);
    if (status == XM_OK && text != NULL) {
        (void)fprintf(file, "\"scale\":%d,\n\"bound\":%.0f,\n\"proof\":[%s]}\n", scale, *goal,
                      text);
    }
    free(text);
    return status;
}

static xm_status_t write_all(FILE *file, const ap_cfn_t *cfn, const ap_cfn_reduction_t *reduction,
                             const int *choice, int64_t deadline, ap_cfn_result_t *result)
{
    const ap_cfn_core_t *core = ap_cfn_reduction_core(reduction);
    double *goal = &result->certified;
    int scale = BITS - (int)ceil(log2(fmax(*goal, 1.0)));
    ap_cfn_shared_t shared;
    ap_cfn_dual_t *dual;
    xm_status_t status = ap_cfn_shared_create(core, deadline, &shared);

    if (status != XM_OK) {
        return status;
    }
    (void)fprintf(file, "{\"version\":1,\n\"choice\":[");
    for (size_t node = 0; node < cfn->nodes; ++node) {
        (void)fprintf(file, "%s%d", node > 0 ? "," : "", choice[node]);
    }
    (void)fprintf(file, "],\n\"presolve\":[");
    write_presolve(reduction, file);
    (void)fprintf(file, "],\n");
    status = ap_cfn_dual_create(core, &dual);
    if (status == XM_OK) {
        raise_bound(&shared, dual, *goal);
        status = write_proof(dual, &shared, goal, scale, result->optimal, file);
        result->certified_late = xm_clock_ns() >= shared.deadline;
        ap_cfn_dual_destroy(dual);
    }
    ap_cfn_shared_destroy(&shared);
    return status;
}

/* The presolve is another than that of the solve, which may drop values for reasons that the file
 * has no words for. */
xm_status_t ap_cfn_certify(const char *path, const ap_cfn_t *cfn, const int *choice, double seconds,
                           ap_cfn_result_t *result)
{
    int64_t begin = xm_clock_ns();
    ap_cfn_reduction_t *reduction;
    FILE *file;
    double spent;
    xm_status_t status = ap_cfn_reduce(
        cfn, HUGE_VAL, begin + (int64_t)(1e9 * AP_CFN_PRESOLVE_PART * seconds), true, &reduction);

    if (status != XM_OK) {
        return status;
    }
    status = xm_file_create(path, &file);
    if (status == XM_OK) {
        result->certified = (double)result->value.cost;
        status = xm_file_close(
            file, path,
            write_all(file, cfn, reduction, choice, begin + (int64_t)(1e9 * seconds), result));
        result->certified_late |= ap_cfn_reduction_cut(reduction, &spent) == AP_CFN_CUT_BY_CLOCK;
    }
    ap_cfn_reduction_destroy(reduction);
    return status;
}
