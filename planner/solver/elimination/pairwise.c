/*
 * The solver for problems with one memory sum instead of usage over time: Alpa's formulation
 * (OSDI'22, section 4.2). Presolve, then elimination, exactly; where tables would be too large, a
 * dual bound by diffusion and a decoded choice. planner/solver/solve.h treats usage over time and
 * searches longer; this one is small, has no threads and no clock, and so always gives the same
 * answer.
 *
 * The memory limit becomes a price per byte, found by bisection. Each priced solve gives a
 * Lagrangian bound, and what does not fit is repaired by single changes.
 */

#include "planner/solver/elimination/pairwise.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "comm/base.h"
#include "planner/solver/elimination/elimination.h"
#include "planner/solver/elimination/pairwise_bound.h"
#include "planner/solver/elimination/pairwise_reduce.h"

/* Tables up to QUICK_CELLS are cheaper than a bound that might make them smaller. */
enum { DEFAULT_MAX_CELLS = 4 << 20, QUICK_CELLS = 1 << 15, PRICE_STEPS = 60 };

/* Relative gap that counts as none. */
static const double TOLERANCE = 1e-9;

/* Sums in the order of the nodes, so the same choice always has the same value. */
double ap_intra_op_memory(const ap_intra_op_problem_t *problem, const int *choice)
{
    double memory = 0;

    for (int n = 0; n < problem->nodes && problem->memory != NULL; ++n) {
        memory += problem->memory[n][choice[n]];
    }
    return memory;
}

/* Sums the chosen costs; a forbidden one makes the sum larger than AP_INTRA_OP_INFINITE. */
double ap_intra_op_cost(const ap_intra_op_problem_t *problem, const int *choice)
{
    double cost = 0;

    for (int n = 0; n < problem->nodes; ++n) {
        cost += problem->costs[n][choice[n]];
    }
    for (int e = 0; e < problem->edges; ++e) {
        const ap_intra_op_edge_t *edge = &problem->edge[e];

        cost += edge->costs[choice[edge->a] * problem->strategies[edge->b] + choice[edge->b]];
    }
    return cost;
}

/* Checks only what would lead outside of arrays; costs of any size are fine. */
static xm_status_t check(const ap_intra_op_problem_t *problem)
{
    for (int n = 0; n < problem->nodes; ++n) {
        if (problem->strategies[n] < 1) {
            return xm_error_set(XM_ERR_INVALID_ARGUMENT, "node %d has no strategies", n);
        }
    }
    for (int e = 0; e < problem->edges; ++e) {
        const ap_intra_op_edge_t *edge = &problem->edge[e];

        if (edge->a < 0 || edge->b < 0 || edge->a >= problem->nodes || edge->b >= problem->nodes ||
            edge->a == edge->b) {
            return xm_error_set(XM_ERR_INVALID_ARGUMENT, "edge %d joins nodes %d and %d of %d", e,
                                edge->a, edge->b, problem->nodes);
        }
    }
    return XM_OK;
}

/* Writes the reduced problem as an elimination over all nodes. Nodes that are gone have one value
 * and no table, which costs nothing and keeps their numbers. */
static xm_status_t fill_elimination(const ap_reduced_t *r, ap_elimination_t **elimination)
{
    int *domain = malloc(((size_t)r->nodes + 1) * sizeof(int));
    xm_status_t status;

    if (domain == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "no memory for %d nodes", r->nodes);
    }
    for (int n = 0; n < r->nodes; ++n) {
        domain[n] = r->node[n].gone ? 1 : r->node[n].size;
    }
    status = ap_elimination_create(r->nodes, domain, elimination);
    free(domain);
    for (int n = 0; n < r->nodes && status == XM_OK; ++n) {
        if (!r->node[n].gone) {
            status = ap_elimination_add(*elimination, &n, 1, r->node[n].cost);
        }
    }
    for (int e = 0; e < r->edges && status == XM_OK; ++e) {
        const int ends[] = {r->edge[e].a, r->edge[e].b};

        if (!r->edge[e].gone) {
            status = ap_elimination_add(*elimination, ends, 2, r->edge[e].cost);
        }
    }
    return status;
}

/* What one priced solve found. `bound` is on cost + price · memory. */
typedef struct priced {
    double bound;
    bool exact;
    int nodes_left;
    size_t cells;
} priced_t;

/* The function that a priced solve minimises, evaluated on the original tables: reduced costs were
 * moved about and would carry their rounding. */
static double priced_cost(const ap_intra_op_problem_t *problem, double price, const int *choice)
{
    return ap_intra_op_cost(problem, choice) + price * ap_intra_op_memory(problem, choice);
}

/* Solves what is left by elimination; XM_ERR_UNSUPPORTED when it is too wide, which callers take as
 * "try otherwise". */
static xm_status_t eliminate(const ap_reduced_t *reduced, size_t max_cells, int *choice,
                             priced_t *found)
{
    int *assignment = calloc((size_t)reduced->nodes + 1, sizeof(int));
    ap_elimination_t *elimination = NULL;
    xm_status_t status = assignment == NULL
                             ? xm_error_set(XM_ERR_NO_MEMORY, "no memory for an assignment")
                             : fill_elimination(reduced, &elimination);

    if (status == XM_OK) {
        status = ap_elimination_run(elimination, NULL, max_cells);
    }
    if (status == XM_OK) {
        ap_elimination_trace(elimination, assignment);
        ap_reduced_restore(reduced, assignment, choice);
        found->cells = ap_elimination_width(elimination);
    }
    ap_elimination_destroy(elimination);
    free(assignment);
    return status;
}

/* The way round a wide problem: diffusion gives a bound and a choice, the two rule out strategies,
 * and elimination is tried on what is left. When it is still too wide, the decoded choice is the
 * answer and `exact` stays false. After a successful elimination the answer is exact, because
 * ap_intra_op_fix() drops only what no better choice has. */
static xm_status_t solve_wide(const ap_intra_op_problem_t *problem, double price, size_t max_cells,
                              ap_reduced_t *reduced, int *choice, priced_t *found)
{
    int *assignment = calloc((size_t)reduced->nodes + 1, sizeof(int));
    double cost;
    xm_status_t status =
        assignment == NULL
            ? xm_error_set(XM_ERR_NO_MEMORY, "no memory for an assignment")
            : ap_intra_op_diffuse(reduced, TOLERANCE, assignment, &cost, &found->bound);

    if (status == XM_OK) {
        ap_reduced_restore(reduced, assignment, choice);
        /* The reduced costs were moved about, so the cost is taken from the problem itself. */
        cost = priced_cost(problem, price, choice);
        found->exact = cost - found->bound <= TOLERANCE * fabs(cost);
    }
    if (status == XM_OK && !found->exact) {
        status = ap_intra_op_fix(reduced, cost);
        if (status == XM_OK) {
            status = eliminate(reduced, max_cells, choice, found);
            found->exact = status == XM_OK;
        }
        status = status == XM_ERR_UNSUPPORTED ? XM_OK : status;
    }
    free(assignment);
    return status;
}

/* Finds the best choice at a price, and a lower bound. Small tables first: where they are enough, a
 * bound would cost more than it saves. */
static xm_status_t solve_priced(const ap_intra_op_problem_t *problem, double price,
                                size_t max_cells, int *choice, priced_t *found)
{
    size_t quick = max_cells < QUICK_CELLS ? max_cells : QUICK_CELLS;
    ap_reduced_t *reduced = NULL;
    xm_status_t status = ap_reduced_create(problem, price, &reduced);

    memset(found, 0, sizeof(*found));
    if (status == XM_OK) {
        for (int n = 0; n < reduced->nodes; ++n) {
            found->nodes_left += !reduced->node[n].gone && reduced->node[n].size > 1;
        }
        status = eliminate(reduced, quick, choice, found);
        found->exact = status == XM_OK;
    }
    if (status == XM_ERR_UNSUPPORTED) {
        status = solve_wide(problem, price, max_cells, reduced, choice, found);
    }
    /* An exact solve is its own bound. */
    if (status == XM_OK && found->exact) {
        found->bound = priced_cost(problem, price, choice);
    }
    ap_reduced_destroy(reduced);
    return status;
}

/* The change of cost when node n alone takes strategy s. It goes through all edges, which is quick
 * enough for a repair. */
static double change(const ap_intra_op_problem_t *problem, const int *choice, int n, int s)
{
    double delta = problem->costs[n][s] - problem->costs[n][choice[n]];

    for (int e = 0; e < problem->edges; ++e) {
        const ap_intra_op_edge_t *edge = &problem->edge[e];
        int columns = problem->strategies[edge->b];

        if (edge->a == n) {
            delta += edge->costs[s * columns + choice[edge->b]] -
                     edge->costs[choice[n] * columns + choice[edge->b]];
        } else if (edge->b == n) {
            delta += edge->costs[choice[edge->a] * columns + s] -
                     edge->costs[choice[edge->a] * columns + choice[n]];
        }
    }
    return delta;
}

/* Makes single changes that bring a choice within the limit at the smallest cost per byte, then
 * single changes that lower its cost and stay within. It ends: the first kind lowers memory each
 * time, the second kind never leaves the limit and lowers the cost each time by more than
 * rounding. */
static void repair(const ap_intra_op_problem_t *problem, int *choice)
{
    double memory = ap_intra_op_memory(problem, choice);

    for (;;) {
        bool over = memory > problem->memory_limit;
        double best_rate = over ? HUGE_VAL : 0;
        int best = -1, best_strategy = 0;

        for (int n = 0; n < problem->nodes; ++n) {
            for (int s = 0; s < problem->strategies[n]; ++s) {
                double bytes = problem->memory[n][s] - problem->memory[n][choice[n]];
                double delta, rate;

                /* While the choice is too large, only changes that free bytes count; afterwards,
                 * only those that stay within the limit. */
                if (s == choice[n] || (over && bytes >= 0) ||
                    (!over && memory + bytes > problem->memory_limit)) {
                    continue;
                }
                delta = change(problem, choice, n, s);
                rate = over ? delta / -bytes : delta;
                if (delta < AP_INTRA_OP_INFINITE && rate < best_rate - (over ? 0 : 1e-12)) {
                    best_rate = rate;
                    best = n;
                    best_strategy = s;
                }
            }
        }
        if (best < 0) {
            return;
        }
        choice[best] = best_strategy;
        memory = ap_intra_op_memory(problem, choice);
    }
}

/* Repairs a candidate, and keeps it if it fits and is cheaper than the best choice so far. */
static void consider(const ap_intra_op_problem_t *problem, int *candidate, double price, int *best,
                     ap_intra_op_result_t *result)
{
    double cost, memory;

    repair(problem, candidate);
    memory = ap_intra_op_memory(problem, candidate);
    cost = ap_intra_op_cost(problem, candidate);
    if (memory <= problem->memory_limit && cost < result->objective) {
        result->objective = cost;
        result->memory = memory;
        result->price = price;
        memcpy(best, candidate, (size_t)problem->nodes * sizeof(int));
    }
}

/* Names the smallest memory that any priced solve found, so that the user knows by how much the
 * limit falls short. */
static xm_status_t does_not_fit(const ap_intra_op_problem_t *problem, double least)
{
    char need[32], limit[32];

    return xm_error_set(XM_ERR_NO_SOLUTION,
                        "no choice of strategies within %s was found; the smallest found needs %s",
                        xm_text_format_bytes((uint64_t)problem->memory_limit, limit, sizeof(limit)),
                        xm_text_format_bytes((uint64_t)least, need, sizeof(need)));
}

/* The first price to try: the one at which the choice's memory would cost as much as everything
 * else does. */
static double first_price(const ap_intra_op_problem_t *problem, const int *choice)
{
    double memory = ap_intra_op_memory(problem, choice);

    return fmax(fabs(ap_intra_op_cost(problem, choice)), 1e-9) / fmax(memory, 1);
}

/* Raises the price until a choice fits, then bisects. Memory does not grow with the price, so
 * bisection homes in on the price at which the choice starts to fit; the choices on both sides of
 * it are all that prices can give. The best bound of all prices counts, since each of them is valid
 * by weak duality. */
static xm_status_t meet_limit(const ap_intra_op_problem_t *problem, size_t max_cells, int *choice,
                              int *candidate, ap_intra_op_result_t *result)
{
    double low = 0, high = HUGE_VAL, price = first_price(problem, choice), least = HUGE_VAL;

    /* No choice within the limit is known yet. */
    result->objective = HUGE_VAL;
    memcpy(candidate, choice, (size_t)problem->nodes * sizeof(int));
    /* The choice without a limit, repaired, is the first that fits. */
    consider(problem, candidate, 0, choice, result);
    for (int step = 0; step < PRICE_STEPS; ++step) {
        priced_t found;
        double memory;
        xm_status_t status = solve_priced(problem, price, max_cells, candidate, &found);

        if (status != XM_OK) {
            return status;
        }
        result->eliminated = result->eliminated && found.exact;
        /* Weak duality: a choice within the limit pays at most price · limit for its memory. */
        result->bound = fmax(result->bound, found.bound - price * problem->memory_limit);
        memory = ap_intra_op_memory(problem, candidate);
        least = fmin(least, memory);
        consider(problem, candidate, price, choice, result);
        /* Too large: a higher price, four times until something fits. */
        if (memory > problem->memory_limit) {
            low = price;
            price = high < HUGE_VAL ? (low + high) / 2 : price * 4;
        } else {
            high = price;
            price = (low + high) / 2;
        }
        /* Bound and choice have met, or the interval of prices has become too narrow to change
         * anything. */
        if (result->objective - result->bound <= TOLERANCE * fabs(result->objective) ||
            (high < HUGE_VAL && high - low <= 1e-9 * high)) {
            break;
        }
    }
    return result->objective < AP_INTRA_OP_INFINITE ? XM_OK : does_not_fit(problem, least);
}

/* Solves without the limit first. If that choice fits, it is the answer with its bound; if not, the
 * bound still holds, because a limit only takes choices away. */
xm_status_t ap_intra_op_solve(const ap_intra_op_problem_t *problem,
                              const ap_intra_op_options_t *options, int *choice,
                              ap_intra_op_result_t *result)
{
    size_t max_cells = options->max_cells > 0 ? options->max_cells : DEFAULT_MAX_CELLS;
    size_t size = ((size_t)problem->nodes + 1) * sizeof(int);
    int *best, *candidate;
    ap_intra_op_result_t made = {0};
    priced_t found;
    xm_status_t status = check(problem);

    if (status != XM_OK) {
        return status;
    }
    best = calloc(1, size);
    candidate = calloc(1, size);
    if (best == NULL || candidate == NULL) {
        status = xm_error_set(XM_ERR_NO_MEMORY, "no memory for %d nodes", problem->nodes);
        goto release;
    }
    status = solve_priced(problem, 0, max_cells, best, &found);
    if (status != XM_OK) {
        goto release;
    }
    /* The result without a limit; meet_limit() changes what a limit changes. */
    made.bound = found.bound;
    made.eliminated = found.exact;
    made.nodes_left = found.nodes_left;
    made.cells = found.cells;
    made.objective = ap_intra_op_cost(problem, best);
    made.memory = ap_intra_op_memory(problem, best);
    /* Sums that reach the forbidding cost contain a forbidden term. */
    if (made.objective >= AP_INTRA_OP_INFINITE) {
        status = xm_error_set(XM_ERR_NO_SOLUTION, found.exact ? "every choice of strategies is "
                                                                "forbidden"
                                                              : "no allowed choice was found");
        goto release;
    }
    if (problem->memory_limit > 0 && problem->memory != NULL &&
        made.memory > problem->memory_limit) {
        status = meet_limit(problem, max_cells, best, candidate, &made);
    }
    if (status == XM_OK) {
        memcpy(choice, best, (size_t)problem->nodes * sizeof(int));
        *result = made;
    }

release:
    free(best);
    free(candidate);
    return status;
}
