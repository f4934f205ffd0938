#include "planner/inter_op.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "planner/inter_op_private.h"

int ap_inter_op_submeshes(int hosts, int devices_per_host, ap_submesh_t *shapes, int capacity)
{
    int count = 0;

    for (int m = 1;; m = m * 2 < devices_per_host ? m * 2 : devices_per_host) {
        if (count < capacity) {
            shapes[count] = (ap_submesh_t){1, m};
        }
        ++count;
        if (m == devices_per_host) {
            break;
        }
    }
    for (int n = 2; n <= hosts; ++n) {
        if (count < capacity) {
            shapes[count] = (ap_submesh_t){n, devices_per_host};
        }
        ++count;
    }
    return count;
}

/* The search, where its plans are traced to, and the best plan so far. */
typedef struct walk {
    ap_inter_op_search_t *search;
    ap_inter_op_stage_t *scratch;
    ap_inter_op_result_t *best;
} walk_t;

static void measure(const ap_inter_op_problem_t *problem, const ap_inter_op_stage_t *stages,
                    int count, ap_inter_op_result_t *result)
{
    result->sum = 0.0;
    result->bottleneck = 0.0;
    for (int i = 0; i < count; ++i) {
        result->sum += stages[i].seconds + stages[i].boundary_seconds;
        result->bottleneck = fmax(result->bottleneck, stages[i].seconds);
        result->bottleneck = fmax(result->bottleneck, stages[i].boundary_seconds);
    }
    result->objective = result->sum + (double)(problem->micro_batches - 1) * result->bottleneck;
    result->stage_count = count;
}

/* One run below @p limit. False: no plan. Otherwise the plan is kept if it is the best so far. */
static bool try_limit(walk_t *walk, double limit, double *sum, double *bottleneck)
{
    ap_inter_op_search_t *search = walk->search;
    ap_inter_op_result_t found;
    int level;

    search->use_max = false;
    search->limit = limit;
    *sum = ap_inter_op_search_run(search, &level);
    if (!(*sum < INFINITY)) {
        return false;
    }
    ++walk->best->limits_tried;
    measure(search->problem, walk->scratch, ap_inter_op_search_trace(search, level, walk->scratch),
            &found);
    if (found.objective < walk->best->objective) {
        memcpy(walk->best->stages, walk->scratch,
               (size_t)found.stage_count * sizeof(*walk->scratch));
        found.stages = walk->best->stages;
        found.limits_tried = walk->best->limits_tried;
        *walk->best = found;
    }
    *bottleneck = found.bottleneck;
    return true;
}

/*
 * Walks the Pareto front of (sum, bottleneck) downwards. Good plans lie where the bottleneck is not
 * much above its minimum m0, so a few limits there are tried first; a plan whose bottleneck m has
 * smallest sum + (B - 1) * m above their T cannot win, and the walk starts below such m.
 */
static bool walk_front(walk_t *walk)
{
    static const double probes[] = {1.0, 1.01, 1.05, 1.2, 1.5};
    ap_inter_op_search_t *search = walk->search;
    double rounds = (double)(search->problem->micro_batches - 1);
    double m0, smallest_sum, sum, bottleneck, limit;
    int level;

    walk->best->objective = INFINITY;
    walk->best->limits_tried = 0;
    search->use_max = true;
    search->limit = INFINITY;
    m0 = ap_inter_op_search_run(search, &level);
    if (!(m0 < INFINITY) || !try_limit(walk, INFINITY, &smallest_sum, &bottleneck)) {
        return false;
    }
    for (size_t i = 0; i < sizeof(probes) / sizeof(probes[0]) && m0 * probes[i] < bottleneck; ++i) {
        double probed;

        (void)try_limit(walk, m0 * probes[i], &sum, &probed);
    }
    limit = nextafter(bottleneck, 0.0);
    if (rounds > 0.0) {
        double hopeless = (walk->best->objective - smallest_sum) / rounds * (1.0 + 1e-9);

        limit = hopeless < limit ? hopeless : limit;
    }
    while (rounds > 0.0 && limit >= m0 && try_limit(walk, limit, &sum, &bottleneck) &&
           sum + rounds * m0 < walk->best->objective) {
        limit = nextafter(bottleneck, 0.0);
    }
    return true;
}

static bool fits_memory(const ap_inter_op_problem_t *problem, const ap_inter_op_result_t *result)
{
    size_t configs = (size_t)problem->config_count;
    size_t states = (size_t)problem->submesh_count * configs;

    for (int i = 0; problem->max_successors != NULL && i < result->stage_count; ++i) {
        const ap_inter_op_stage_t *stage = &result->stages[i];
        size_t range =
            (size_t)stage->first_layer * (size_t)problem->layers + (size_t)stage->last_layer;
        size_t state = (size_t)stage->submesh * configs + (size_t)stage->config;

        if (problem->max_successors[range * states + state] < result->stage_count - 1 - i) {
            return false;
        }
    }
    return true;
}

/* Counting stages is dear; often the best plan without that fits into memory, and is the best. */
static bool find_best(walk_t *walk)
{
    ap_inter_op_search_t *search = walk->search;
    int levels = search->levels;

    if (levels > 0 && !search->counts_stages) {
        search->levels = 0;
        if (!walk_front(walk)) {
            return false;
        }
        if (fits_memory(search->problem, walk->best)) {
            return true;
        }
        search->levels = levels;
    }
    return walk_front(walk);
}

static xm_status_t check_problem(const ap_inter_op_problem_t *problem)
{
    int hosts = problem->hosts, per_host = problem->devices_per_host;

    if (problem->struct_size < sizeof(*problem)) {
        return xm_error_set(XM_ERR_INVALID_ARGUMENT,
                            "struct_size is %zu, not %zu: start from AP_INTER_OP_PROBLEM_INIT",
                            problem->struct_size, sizeof(*problem));
    }
    if (problem->layers < 1 || hosts < 1 || per_host < 1 || problem->submesh_count < 1 ||
        problem->config_count < 1 || problem->cost == NULL || problem->submeshes == NULL) {
        return xm_error_set(XM_ERR_INVALID_ARGUMENT,
                            "%d layers on %d x %d devices with %d submeshes and %d configurations: "
                            "each must be at least 1, and the tables given",
                            problem->layers, hosts, per_host, problem->submesh_count,
                            problem->config_count);
    }
    if (problem->micro_batches < 1) {
        return xm_error_set(XM_ERR_INVALID_ARGUMENT, "%lld micro-batches; at least 1 is needed",
                            (long long)problem->micro_batches);
    }
    if (problem->min_stages < 0 || problem->max_stages < 0 ||
        (problem->max_stages > 0 && problem->min_stages > problem->max_stages)) {
        return xm_error_set(XM_ERR_INVALID_ARGUMENT, "the stage limits %d to %d are not a range",
                            problem->min_stages, problem->max_stages);
    }
    for (int i = 0; i < problem->submesh_count; ++i) {
        ap_submesh_t shape = problem->submeshes[i];

        if (shape.hosts < 1 || shape.hosts > hosts || shape.devices < 1 ||
            shape.devices > per_host || (shape.hosts > 1 && shape.devices != per_host)) {
            return xm_error_set(XM_ERR_INVALID_ARGUMENT,
                                "submesh %d is %d x %d: within %d x %d devices it must be a part "
                                "of one host or whole hosts",
                                i, shape.hosts, shape.devices, hosts, per_host);
        }
    }
    return XM_OK;
}

/* Which constraint leaves nothing? Each is dropped in turn. */
static xm_status_t explain_nothing(ap_inter_op_search_t *search)
{
    const ap_inter_op_problem_t *problem = search->problem;
    int level, layers = problem->layers, hosts = problem->hosts;
    int per_host = problem->devices_per_host;

    search->use_memory = false;
    search->use_max = true;
    search->limit = INFINITY;
    if (ap_inter_op_search_run(search, &level) < INFINITY) {
        return xm_error_set(XM_ERR_NO_SOLUTION,
                            "no division of %d layers over %d x %d devices fits the device memory",
                            layers, hosts, per_host);
    }
    if (problem->min_stages > 1 || problem->max_stages > 0) {
        return xm_error_set(XM_ERR_NO_SOLUTION,
                            "no division of %d layers into %d to %d stages uses exactly %d x %d "
                            "devices",
                            layers, problem->min_stages > 1 ? problem->min_stages : 1,
                            problem->max_stages > 0
                                ? problem->max_stages
                                : (layers < search->total ? layers : search->total),
                            hosts, per_host);
    }
    return xm_error_set(XM_ERR_NO_SOLUTION,
                        "no division of %d layers uses exactly %d x %d devices with the stages "
                        "that have a cost",
                        layers, hosts, per_host);
}

xm_status_t ap_inter_op_solve(const ap_inter_op_problem_t *problem, ap_inter_op_result_t *result)
{
    ap_inter_op_search_t search = {0};
    ap_inter_op_result_t best = {0};
    ap_inter_op_stage_t *scratch = NULL;
    walk_t walk;
    xm_status_t status = check_problem(problem);

    if (status != XM_OK) {
        return status;
    }
    status = ap_inter_op_search_open(&search, problem);
    if (status != XM_OK) {
        goto close_search;
    }
    best.stages = calloc((size_t)problem->layers, sizeof(*best.stages));
    scratch = calloc((size_t)problem->layers, sizeof(*scratch));
    if (best.stages == NULL || scratch == NULL) {
        status = xm_error_set(XM_ERR_NO_MEMORY, "out of memory for %d stages", problem->layers);
        goto free_stages;
    }
    walk = (walk_t){&search, scratch, &best};
    if (!find_best(&walk)) {
        status = explain_nothing(&search);
        goto free_stages;
    }
    *result = best;
    best.stages = NULL;

free_stages:
    free(scratch);
    free(best.stages);
close_search:
    ap_inter_op_search_close(&search);
    return status;
}

void ap_inter_op_result_clear(ap_inter_op_result_t *result)
{
    if (result != NULL) {
        free(result->stages);
        *result = (ap_inter_op_result_t){0};
    }
}
