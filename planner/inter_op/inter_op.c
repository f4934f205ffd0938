/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stage slicing, the outermost loop: thresholds on T, and for each threshold the walk along the
 * Pareto front of (sum, longest station). inter_op.h states the problem and why the result is
 * exact; Alpa (OSDI'22, section 5) has the same objective without boundaries. Alpa tries every
 * stage time as a limit; the walk here computes only points of the Pareto front, of which there are
 * few, and ends as soon as no later point can win.
 *
 * The files: planner/inter_op/space.c lays the tables out, planner/inter_op/relax.c bounds,
 * planner/inter_op/graph.c keeps what can matter, planner/inter_op/run.c is the dynamic programme.
 */

#include "planner/inter_op/inter_op.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "planner/inter_op/inter_op_private.h"

/* Whether @p count is a power of two or divides @p whole. Only such parts tile a host or a cluster
 * together with parts of their own kind. */
static bool is_regular(int count, int whole)
{
    return (count & (count - 1)) == 0 || whole % count == 0;
}

/* Parts of one host first, then whole hosts. Shapes between the two (several hosts, some devices of
 * each) are left out as in Alpa: with them, not every mix of shapes could fill the cluster. */
int ap_inter_op_submeshes(int hosts, int devices_per_host, bool all, ap_submesh_t *shapes,
                          int capacity)
{
    int count = 0;

    for (int m = 1; m <= devices_per_host; ++m) {
        if ((all || is_regular(m, devices_per_host)) && count++ < capacity) {
            shapes[count - 1] = (ap_submesh_t){1, m};
        }
    }
    for (int n = 2; n <= hosts; ++n) {
        if ((all || is_regular(n, hosts)) && count++ < capacity) {
            shapes[count - 1] = (ap_submesh_t){n, devices_per_host};
        }
    }
    return count;
}

/* How far a walk goes down at least where labels were merged, or where the judge chooses: plans
 * with so similar periods are as good as equal to him; and where only rounding keeps a plan. */
static const double SIMILAR = 2e-3, ROUNDING = 1e-9;

/* A graph of stages, where its plans are traced to, and the smallest objective so far. */
typedef struct walk {
    const ap_inter_op_problem_t *problem;
    ap_inter_op_judge_t judge;
    ap_inter_op_graph_t graph;
    ap_inter_op_stage_t *scratch;
    double lowest, threshold;
    double certain; /* no plan that the last walk went past without seeing it has a T below */
    bool above; /* what is looked for is what the judge likes best, not the smallest objective */
} walk_t;

/* The minimum cost of the graph under its limit; INFINITY: there is no plan. Boundaries are lower
 * bounds at first. Those of the best plan are replaced by their true costs, which may make another
 * plan the best, and so on until the best plan has true costs only. Then no plan is better, because
 * all others cost no less than by their bounds. It ends because each round makes at least one more
 * boundary true. */
static double run_graph(walk_t *walk, ap_inter_op_start_t *start)
{
    for (;;) {
        double value = ap_inter_op_graph_run(&walk->graph, start);
        bool changed = false;

        if (value < INFINITY && walk->judge.status == XM_OK) {
            walk->judge.status = ap_inter_op_graph_settle(&walk->graph, start, value, &changed);
        }
        if (walk->judge.status != XM_OK) {
            return INFINITY;
        }
        if (!changed) {
            return value;
        }
    }
}

/* Micro-batches after the first. */
static double rounds_of(const walk_t *walk)
{
    return (double)(walk->problem->micro_batches - 1);
}

/* What plans of the walk must stay below. */
static double goal(const walk_t *walk)
{
    double seconds = walk->judge.best->seconds;

    return walk->above ? seconds : fmin(fmin(seconds, walk->lowest), walk->threshold);
}

/* Where a walk goes on from a point. No plan below the limit before has a smaller sum, so those
 * with a period above this have no T below the goal. The factor covers rounding. */
static double next_limit(const walk_t *walk, double sum, double period)
{
    double hopeful = (goal(walk) - sum) / rounds_of(walk) * (1.0 + ROUNDING);

    return fmin(hopeful, walk->above ? period * (1.0 - SIMILAR) : nextafter(period, 0.0));
}

/* One run under a limit on the period. False: there is no plan. Otherwise the plan is judged. Its
 * period may be above the limit where labels were merged; the sum is a lower bound all the same,
 * and all that is known of plans whose periods are a little below the limit. */
static bool try_limit(walk_t *walk, double limit, double *sum, double *period)
{
    ap_inter_op_result_t found = {0};
    ap_inter_op_start_t start;

    walk->graph.use_max = false;
    walk->graph.limit = limit;
    *sum = run_graph(walk, &start);
    if (!(*sum < INFINITY)) {
        return false;
    }
    ap_inter_op_measure(walk->problem, walk->scratch,
                        ap_inter_op_graph_trace(&walk->graph, &start, walk->scratch), &found);
    ap_inter_op_consider(&walk->judge, walk->scratch, &found);
    walk->lowest = fmin(walk->lowest, found.objective);
    *period = found.period <= limit ? found.period : limit * (1.0 - ROUNDING);
    if (found.period > limit * (1.0 + ROUNDING)) {
        *period = limit * (1.0 - SIMILAR);
        walk->certain = fmin(walk->certain, *sum + rounds_of(walk) * *period);
    }
    return walk->graph.levels || !walk->judge.misfit;
}

/* Walks the Pareto front of (sum, period) downwards from the smallest sum. After a point (S, m),
 * every plan with a period of at least m has a sum of at least S, so its T is no better, and the
 * limit may go just below m. Good plans lie where the period is not much above its minimum m0, so a
 * few limits there are tried first: the better their T, the further down the walk can start. */
static void walk_front(walk_t *walk)
{
    static const double probes[] = {1.0, 1.01, 1.05, 1.2, 1.5};
    enum { POINTS = 64 }; /* that the judge is shown */
    double rounds = rounds_of(walk);
    double m0, smallest_sum, sum, period, limit;
    ap_inter_op_start_t start;

    walk->certain = INFINITY;
    /* The smallest bottleneck of all plans: the same programme with max in place of sum. */
    walk->graph.use_max = true;
    walk->graph.limit = INFINITY;
    m0 = run_graph(walk, &start);
    /* Either no plan's T can be below the best one, by m0 alone or by the smallest sum together
     * with m0, or the first point of the front is known now. */
    if (!(m0 + rounds * m0 < goal(walk)) || !try_limit(walk, INFINITY, &smallest_sum, &period) ||
        !(smallest_sum + rounds * m0 < goal(walk))) { /* no plan is better */
        return;
    }
    /* With a good T known early, most of the front can be skipped. */
    for (size_t i = 0; i < sizeof(probes) / sizeof(probes[0]) && m0 * probes[i] < period; ++i) {
        double probed;

        (void)try_limit(walk, m0 * probes[i], &sum, &probed);
    }
    /* With one micro-batch the period does not count, so the smallest sum was the answer. Else the
     * walk ends below m0, or where the sum is so large that m0 could not make up for it. */
    limit = rounds > 0.0 ? next_limit(walk, smallest_sum, period) : 0.0;
    for (int point = 0;
         limit >= m0 && !ap_inter_op_must_stop(&walk->judge) &&
         (!walk->above || point < (int)POINTS) && try_limit(walk, limit, &sum, &period);
         ++point) {
        limit = next_limit(walk, sum, period);
    }
}

/* What is known of T from the relaxed programme without boundaries. */
typedef struct outlook {
    double least_max; /* no plan's longest stage is below */
    double bound;     /* no plan's T is below */
    double guess;     /* not far above that programme's T */
} outlook_t;

/* Bounds T, and guesses it. The smallest sum and the smallest bottleneck, of different plans
 * perhaps, together bound every plan. The guess is attained in the relaxed problem, under one of
 * a few limits on the longest stage; the best T is usually a little above it, since only
 * boundaries and memory are missing. */
static void look_out(ap_inter_op_space_t *space, outlook_t *outlook)
{
    static const double factors[] = {1.0, 1.01, 1.03, 1.08, 1.2, 1.5, 2.0, 4.0, 16.0};
    double rounds = (double)(space->problem->micro_batches - 1), smallest;
    double *values = space->before;

    ap_inter_op_space_cheapest(space, 0, INFINITY);
    outlook->least_max = ap_inter_op_relax_before(space, true, values);
    smallest = ap_inter_op_relax_before(space, false, values);
    outlook->bound = smallest + rounds * outlook->least_max;
    outlook->guess = smallest + rounds * smallest;
    for (size_t i = 0; smallest < INFINITY && i < sizeof(factors) / sizeof(factors[0]); ++i) {
        double longest = factors[i] * outlook->least_max;

        /* A limit can only help while the smallest sum under it could still beat the guess. */
        if (smallest + rounds * longest < outlook->guess) {
            double sum;

            /* Stages that are longer than the limit are left out of the sum. */
            ap_inter_op_space_cheapest(space, 0, longest);
            sum = ap_inter_op_relax_before(space, false, values);
            outlook->guess = fmin(outlook->guess, sum + rounds * longest);
        }
    }
}

/* Builds a graph, thinned to one configuration per range and submesh where it grows too large. */
static xm_status_t build_graph(walk_t *walk, ap_inter_op_space_t *space, ap_inter_op_build_t *build)
{
    enum { LARGEST = 64 << 20 };
    bool too_large;
    XM_TRY(ap_inter_op_graph_build(space, build, &walk->graph, &too_large));

    if (too_large) {
        /* Thinned, it may become eight times as large before the search gives up. */
        build->thin = true;
        build->most_edges = LARGEST;
        XM_TRY(ap_inter_op_graph_build(space, build, &walk->graph, &too_large));
    }
    if (too_large) {
        return xm_error_set(XM_ERR_NO_MEMORY,
                            "more than %d stages of %d layers on %d devices matter: too many to "
                            "search",
                            LARGEST, space->layers, space->total);
    }
    return XM_OK;
}

/* Raises the threshold from the guess on until a plan is below it. The graph holds all plans below
 * the threshold, so if the best objective is below the threshold itself, it is the best of all. If
 * no plan is, the threshold is a proved bound. The plan of a thinned graph is not proved best, only
 * that no plan is below the threshold before. */
static xm_status_t raise_threshold(walk_t *walk, ap_inter_op_space_t *space, bool levels,
                                   const outlook_t *outlook)
{
    /* Steps grow, since a guess that fails at once was far off. The last one holds every plan. */
    static const double factors[] = {1.004, 1.015, 1.04, 1.1, 1.25, 1.6, 2.5, 5.0, 25.0, INFINITY};
    enum { MOST_EDGES = 8 << 20 };
    ap_inter_op_build_t build = {
        .least_max = outlook->least_max, .levels = levels, .most_edges = MOST_EDGES};
    ap_inter_op_result_t *best = walk->judge.best;
    double proved = outlook->bound;

    /* Where only plans better than `worth` are asked for, an imaginary plan of that T is the best
     * so far. */
    best->seconds = walk->problem->worth > 0.0 ? walk->problem->worth : INFINITY;
    best->stage_count = 0; /* as if there were a plan to beat */
    walk->lowest = INFINITY;
    for (size_t i = 0;
         i < sizeof(factors) / sizeof(factors[0]) && !ap_inter_op_must_stop(&walk->judge); ++i) {
        bool last;

        build.threshold = outlook->guess * factors[i];
        /* Infinity times a factor can be NaN if the guess is 0 or infinite; then everything is
         * allowed. */
        build.threshold = isnan(build.threshold) ? INFINITY : build.threshold;
        /* A T that is known to be attained is the threshold that surely contains the optimum. */
        if (i == 0 && walk->problem->known > 0.0) {
            build.threshold = walk->problem->known * (1.0 + 1e-9);
        }
        /* No threshold above `worth` is needed: nothing above it is asked for. */
        last = walk->problem->worth > 0.0 && build.threshold >= walk->problem->worth;
        build.threshold = last ? walk->problem->worth : build.threshold;
        walk->threshold = build.threshold;
        XM_TRY(build_graph(walk, space, &build));
        walk_front(walk);
        ap_inter_op_graph_free(&walk->graph);
        if (walk->judge.status != XM_OK) {
            return walk->judge.status;
        }
        /* The factor keeps a plan that equals the threshold by rounding from counting as below
         * it. */
        if (!build.thin && !walk->judge.stopped && walk->lowest < build.threshold * (1.0 - 1e-12)) {
            proved = fmax(proved, fmin(walk->certain, walk->lowest));
            break;
        }
        if (build.thin && walk->lowest < INFINITY) {
            break;
        }
        /* Nothing was found below this threshold, which is a bound from now on. A thin graph or one
         * whose search was stopped proves nothing. */
        if (!build.thin && !walk->judge.stopped) {
            proved = fmax(proved, fmin(walk->certain, build.threshold));
        }
        if (last) {
            break;
        }
    }
    /* With a plan that was proved the best, bound and objective are equal. */
    best->bound = fmin(proved, walk->lowest);
    return XM_OK;
}

/* Judges what else could be faster than the best that was judged: all plans whose objective is
 * below that, or as many of them as make no larger a graph than this. */
static xm_status_t search_above(walk_t *walk, ap_inter_op_space_t *space, bool levels,
                                const outlook_t *outlook)
{
    enum { MOST_EDGES = 1 << 17, ATTEMPTS = 5 };
    ap_inter_op_result_t *best = walk->judge.best;
    ap_inter_op_build_t build = {.least_max = outlook->least_max,
                                 .levels = levels,
                                 .most_edges = MOST_EDGES,
                                 .threshold = best->seconds};
    double proved = best->bound, found;
    bool too_large = true;

    for (int i = 0; too_large && i < ATTEMPTS; ++i) {
        XM_TRY(ap_inter_op_graph_build(space, &build, &walk->graph, &too_large));
        if (too_large) {
            build.threshold = best->bound + 0.25 * (build.threshold - best->bound);
        }
    }
    if (too_large) {
        return XM_OK;
    }
    walk->above = true;
    walk_front(walk);
    found = ap_inter_op_enumerate(&walk->judge, &walk->graph, walk->problem->evaluations);
    /* A better plan has taken the place of the other, and its bound with it. */
    best->bound = fmax(proved, fmin(build.threshold, found));
    ap_inter_op_graph_free(&walk->graph);
    return walk->judge.status;
}

/* Finds the best plan. Telling places apart by the number of stages left multiplies the graph by
 * that number. Often the best plan without that distinction fits into memory, and then it is the
 * best, as memory only takes plans away. If it does not fit, its T still is a bound for the second
 * search. */
static xm_status_t find_best(walk_t *walk, ap_inter_op_space_t *space)
{
    outlook_t outlook = {0};
    ap_inter_op_result_t *best = walk->judge.best;
    bool levels = space->counts_stages;
    xm_status_t status = XM_OK;

    look_out(space, &outlook);
    best->bound = outlook.bound;
    if (!(outlook.least_max < INFINITY)) {
        return XM_OK;
    }
    if (!levels) {
        status = raise_threshold(walk, space, false, &outlook);
        levels = walk->judge.misfit;
        outlook.bound = fmax(outlook.bound, best->bound);
        outlook.guess = fmax(outlook.guess, best->bound);
        walk->judge.misfit = false;
    }
    if (status == XM_OK && levels) {
        status = raise_threshold(walk, space, true, &outlook);
    }
    if (status == XM_OK && walk->problem->judge != NULL && !walk->judge.stopped &&
        best->bound < best->seconds) {
        status = search_above(walk, space, levels, &outlook);
    }
    return status;
}

/* Checks what would lead outside of arrays or has no meaning, before anything is allocated. The
 * costs themselves are checked as they are read. */
static xm_status_t check_problem(const ap_inter_op_problem_t *problem)
{
    int hosts = problem->hosts, per_host = problem->devices_per_host;

    if (problem->layers < 1 || hosts < 1 || per_host < 1 || problem->submesh_count < 1 ||
        problem->config_count < 1 || problem->cost == NULL || problem->submeshes == NULL) {
        return XM_INVALID("%d layers on %d x %d devices with %d submeshes and %d configurations: "
                          "each must be at least 1, and the tables given",
                          problem->layers, hosts, per_host, problem->submesh_count,
                          problem->config_count);
    }
    if (problem->micro_batches < 1) {
        return XM_INVALID("%lld micro-batches; at least 1 is needed",
                          (long long)problem->micro_batches);
    }
    if (problem->min_stages < 0 || problem->max_stages < 0 ||
        (problem->max_stages > 0 && problem->min_stages > problem->max_stages)) {
        return XM_INVALID("the stage limits %d to %d are not a range", problem->min_stages,
                          problem->max_stages);
    }
    for (int i = 0; i < problem->submesh_count; ++i) {
        ap_submesh_t shape = problem->submeshes[i];

        /* A submesh of several hosts takes whole hosts; one within a host takes any part. */
        if (shape.hosts < 1 || shape.hosts > hosts || shape.devices < 1 ||
            shape.devices > per_host || (shape.hosts > 1 && shape.devices != per_host)) {
            return XM_INVALID("submesh %d is %d x %d: within %d x %d devices it must be a part of "
                              "one host or whole hosts",
                              i, shape.hosts, shape.devices, hosts, per_host);
        }
    }
    return XM_OK;
}

static xm_status_t solve(const ap_inter_op_problem_t *problem, ap_inter_op_result_t *best,
                         bool *stopped);

/* Says which constraint leaves nothing. Memory is dropped first to see whether there would be a
 * plan; this costs another search, but only when there is no answer anyway. */
static xm_status_t explain_infeasible(const ap_inter_op_problem_t *problem)
{
    int layers = problem->layers, hosts = problem->hosts, per_host = problem->devices_per_host;
    int total = hosts * per_host;

    if (problem->max_successors != NULL) {
        ap_inter_op_problem_t roomy = *problem;
        ap_inter_op_result_t found = {0};
        bool stopped;
        xm_status_t status;

        /* Without memory the same problem shows whether memory was the reason. */
        roomy.max_successors = NULL;
        roomy.judge = NULL;
        status = solve(&roomy, &found, &stopped);
        free(found.stages);
        XM_TRY(status);
        if (found.stage_count > 0) {
            return XM_NO_SOLUTION(
                "no division of %d layers over %d x %d devices fits the device memory", layers,
                hosts, per_host);
        }
    }
    if (problem->min_stages > 1 || problem->max_stages > 0) {
        return XM_NO_SOLUTION(
            "no division of %d layers into %d to %d stages uses exactly %d x %d devices", layers,
            problem->min_stages > 1 ? problem->min_stages : 1,
            problem->max_stages > 0 ? problem->max_stages : (layers < total ? layers : total),
            hosts, per_host);
    }
    return XM_NO_SOLUTION(
        "no division of %d layers uses exactly %d x %d devices with the stages that have a cost",
        layers, hosts, per_host);
}

/* Finds the best plan; it has no stages when there is none. The stages are the caller's, also after
 * a failure. */
static xm_status_t solve(const ap_inter_op_problem_t *problem, ap_inter_op_result_t *best,
                         bool *stopped)
{
    ap_inter_op_space_t space;
    walk_t walk = {.problem = problem, .judge = {.problem = problem, .best = best}};
    xm_status_t status = ap_inter_op_space_open(&space, problem);

    *best = (ap_inter_op_result_t){.objective = INFINITY, .seconds = INFINITY};
    if (status == XM_OK) {
        best->stages = calloc((size_t)problem->layers, sizeof(*best->stages));
        walk.scratch = xm_arena_get(&space.arena, (size_t)problem->layers, sizeof(*walk.scratch));
        if (best->stages == NULL || walk.scratch == NULL) {
            status = XM_NO_MEMORY("%d stages", problem->layers);
        }
    }
    XM_THEN(status, find_best(&walk, &space));
    *stopped = walk.judge.stopped;
    ap_inter_op_space_close(&space);
    return status;
}

/* Tells apart why there is no plan: stopped, none below `worth`, or none at all. */
xm_status_t ap_inter_op_solve(const ap_inter_op_problem_t *problem, ap_inter_op_result_t *result)
{
    ap_inter_op_result_t best = {0};
    bool stopped = false;
    xm_status_t status = check_problem(problem);

    XM_THEN(status, solve(problem, &best, &stopped));
    if (status == XM_OK && best.stage_count == 0) {
        status = stopped ? xm_error_set(XM_ERR_TIMEOUT, "stopped before there was a plan")
                 : problem->worth > 0.0
                     ? XM_NO_SOLUTION("no plan takes less than %g s", problem->worth)
                     : explain_infeasible(problem);
    }
    if (status != XM_OK) {
        free(best.stages);
        *result = (ap_inter_op_result_t){.bound = best.bound};
        return status;
    }
    *result = best;
    return XM_OK;
}

/* How long the stages of one submesh, beginning with so many devices left, may take in a plan below
 * the threshold. before + stage + after bounds the sum of every plan through the stage, and
 * the longest station is at least the stage itself and the smallest bottleneck. */
static void mark_place(const ap_inter_op_space_t *space, int submesh, int devices, double threshold,
                       double least_max, const double *before, const double *after, double *longest)
{
    double rounds = (double)(space->problem->micro_batches - 1);
    int layers = space->layers;
    const double *base = before + ap_inter_op_band_at(&space->everywhere, devices, 0);
    const double *rest =
        after + ap_inter_op_band_at(&space->everywhere, devices - space->size[submesh], 1);

    for (int first = 0; first < layers; ++first) {
        const double *cost = ap_inter_op_stages(space, submesh, first);
        int end = base[first] < INFINITY ? space->reach[submesh * layers + first] : 0;

        for (int last = first; last < end; ++last) {
            /* What is left for the stage itself, and for it and its rounds where it is the longest
             * station. */
            double left = threshold - (base[first] + rest[last]), least = left - rounds * least_max;
            double *most = &longest[(first * layers + last) * space->submeshes + submesh];

            least = least <= least_max ? least : left / (1.0 + rounds);
            if (cost[last] < least) {
                *most = fmax(*most, least);
            }
        }
    }
}

/* A stage is useful if it is at some place, so the marks of all places are joined. */
static void mark_useful(const ap_inter_op_space_t *space, double threshold, double least_max,
                        const double *before, const double *after, double *longest)
{
    size_t columns = (size_t)space->total + 1;

    memset(longest, 0,
           (size_t)space->layers * (size_t)space->layers * (size_t)space->submeshes *
               sizeof(*longest));
    for (int s = 0; s < space->submeshes; ++s) {
        for (int devices = space->size[s]; devices <= space->total; ++devices) {
            if (space->fits[(size_t)s * columns + (size_t)devices]) {
                mark_place(space, s, devices, threshold, least_max, before, after, longest);
            }
        }
    }
}

/* The same bounds, offered to the stage table, which prices only useful ranges in all
 * configurations. Costs may be lower bounds here: then fewer stages are left out, but never one
 * that matters. Memory and boundaries are dropped, which also only lowers costs. */
xm_status_t ap_inter_op_useful(const ap_inter_op_problem_t *problem, double threshold,
                               double *longest)
{
    ap_inter_op_problem_t relaxed = *problem;
    double least_max;
    ap_inter_op_space_t space;
    xm_status_t status;

    XM_TRY(check_problem(problem));
    relaxed.boundary = NULL;
    relaxed.max_successors = NULL;
    status = ap_inter_op_space_open(&space, &relaxed);
    if (status == XM_OK) {
        ap_inter_op_space_cheapest(&space, 0, INFINITY);
        least_max = ap_inter_op_relax_before(&space, true, space.before);
        (void)ap_inter_op_relax_limit(&space, threshold, space.before);
        ap_inter_op_relax_after(&space, &space.everywhere, space.after, space.before, space.after);
        /* The limit makes the sums tighter: stages that are longer than any plan below the
         * threshold can have are dropped from the sums before and after. */
        mark_useful(&space, threshold, least_max, space.before, space.after, longest);
    }
    ap_inter_op_space_close(&space);
    return status;
}

void ap_inter_op_result_clear(ap_inter_op_result_t *result)
{
    if (result != NULL) {
        free(result->stages);
        *result = (ap_inter_op_result_t){0};
    }
}
