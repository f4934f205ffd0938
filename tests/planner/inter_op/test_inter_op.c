/* SPDX-License-Identifier: Apache-2.0 */
#include "planner/inter_op/inter_op.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "xm_test.h"

/* Matsumoto and Nishimura's MT19937 as numpy seeds it, and numpy's rand(): 53 random bits. */
typedef struct mt {
    uint32_t state[624];
    int next;
} mt_t;

static void mt_seed(mt_t *mt, uint32_t seed)
{
    mt->state[0] = seed;
    for (uint32_t i = 1; i < 624; ++i) {
        mt->state[i] = 1812433253U * (mt->state[i - 1] ^ (mt->state[i - 1] >> 30)) + i;
    }
    mt->next = 624;
}

static uint32_t mt_u32(mt_t *mt)
{
    uint32_t y;

    if (mt->next == 624) {
        for (int i = 0; i < 624; ++i) {
            y = (mt->state[i] & 0x80000000U) | (mt->state[(i + 1) % 624] & 0x7fffffffU);
            mt->state[i] = mt->state[(i + 397) % 624] ^ (y >> 1) ^ ((y & 1U) ? 0x9908b0dfU : 0U);
        }
        mt->next = 0;
    }
    y = mt->state[mt->next++];
    y ^= y >> 11;
    y ^= (y << 7) & 0x9d2c5680U;
    y ^= (y << 15) & 0xefc60000U;
    return y ^ (y >> 18);
}

static double mt_rand(mt_t *mt)
{
    uint32_t a = mt_u32(mt) >> 5, b = mt_u32(mt) >> 6;

    return (a * 67108864.0 + b) / 9007199254740992.0;
}

static int mt_below(mt_t *mt, int bound)
{
    return (int)(mt_rand(mt) * bound);
}

START_TEST(generator_is_numpys)
{
    mt_t mt;

    mt_seed(&mt, 42);
    ck_assert_double_eq(mt_rand(&mt), 0.3745401188473625);
    ck_assert_double_eq(mt_rand(&mt), 0.9507143064099162);
    ck_assert_double_eq(mt_rand(&mt), 0.7319939418114051);
}
END_TEST

/* Alpa's own dynamic programme prints 0.29528506 for this table (float32 inside, hence 1e-6). */
static void check_golden(bool ordered)
{
    static double cost[8 * 8 * 4 * 5];
    static int32_t successors[8 * 8 * 4 * 5];
    ap_inter_op_problem_t problem = AP_INTER_OP_PROBLEM_INIT;
    ap_inter_op_result_t result;
    ap_submesh_t shapes[8];
    mt_t mt;

    mt_seed(&mt, 42);
    for (size_t i = 0; i < sizeof(cost) / sizeof(cost[0]); ++i) {
        cost[i] = mt_rand(&mt);
        successors[i] = 4096;
    }
    problem.layers = 8;
    problem.hosts = 1;
    problem.devices_per_host = 8;
    problem.submesh_count = ap_inter_op_submeshes(1, 8, false, shapes, 8);
    problem.submeshes = shapes;
    problem.config_count = 5;
    problem.cost = cost;
    problem.max_successors = successors;
    problem.micro_batches = 16;
    problem.ordered = ordered;
    ck_assert_int_eq(problem.submesh_count, 4);
    ck_assert_xm_ok(ap_inter_op_solve(&problem, &result));
    ck_assert_double_eq_tol(result.objective, 0.29528506, 1e-6 * 0.29528506);
    ck_assert_int_eq(result.stage_count, 2);
    ck_assert_int_eq(result.stages[0].first_layer, 0);
    ck_assert_int_eq(result.stages[0].last_layer, 3);
    ck_assert_int_eq(shapes[result.stages[0].submesh].devices, 4);
    ck_assert_int_eq(result.stages[0].config, 2);
    ck_assert_int_eq(result.stages[1].first_layer, 4);
    ck_assert_int_eq(result.stages[1].last_layer, 7);
    ck_assert_int_eq(shapes[result.stages[1].submesh].devices, 4);
    ck_assert_int_eq(result.stages[1].config, 4);
    ck_assert_int_eq(result.stages[1].first_device, ordered ? 4 : -1);
    ap_inter_op_result_clear(&result);
}

START_TEST(golden_table_of_alpa)
{
    check_golden(false);
    check_golden(true);
}
END_TEST

enum { MAX_LAYERS = 5, MAX_SHAPES = 8, MAX_CONFIGS = 3, MAX_HOSTS = 3, MAX_DEVICES = 9 };

/* A random instance, its boundary table, and exhaustive search over it. */
typedef struct instance {
    ap_inter_op_problem_t problem;
    ap_submesh_t shapes[MAX_SHAPES];
    double cost[MAX_LAYERS * MAX_LAYERS * MAX_SHAPES * MAX_CONFIGS];
    int32_t successors[MAX_LAYERS * MAX_LAYERS * MAX_SHAPES * MAX_CONFIGS];
    int in_port[MAX_SHAPES * MAX_CONFIGS];
    int out_port[MAX_SHAPES * MAX_CONFIGS];
    int kind[MAX_LAYERS];
    int row[MAX_LAYERS * MAX_LAYERS];
    int place[MAX_DEVICES];
    bool allowed[MAX_SHAPES * MAX_HOSTS];
    uint32_t boundary_seed;
    double boundary_scale;
    long asked; /* boundary() */
    /* exhaustive search */
    int stack[MAX_LAYERS][3]; /* first, last, state */
    double best;
    long plans;
} instance_t;

static double boundary(void *arg, const ap_inter_op_boundary_t *at)
{
    instance_t *instance = arg;
    uint32_t hash = instance->boundary_seed;
    const int *kind = instance->problem.boundary_kind;
    const int *place = instance->problem.boundary_place;
    const int words[] = {kind != NULL ? kind[at->layer] : at->layer, at->src_port, at->dst_port,
                         place != NULL && at->dst_first_device >= 0 ? place[at->dst_first_device]
                                                                    : at->dst_first_device};

    ++instance->asked;
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); ++i) {
        hash = (hash ^ (uint32_t)(words[i] + 7)) * 2654435761U;
        hash ^= hash >> 15;
    }
    return hash % 13 == 0 ? INFINITY : instance->boundary_scale * (double)(hash % 1000) / 1000.0;
}

/* A bound of it: nothing for some ports, a part, or the cost itself. */
static double boundary_lower_bound(void *arg, const ap_inter_op_boundary_t *at)
{
    instance_t *instance = arg;
    double seconds = boundary(arg, at);
    int parts = (at->src_port + 3 * at->dst_port) % 4;

    --instance->asked;
    if (isinf(seconds)) {
        return parts == 3 ? seconds : parts;
    }
    return parts == 3 ? seconds : parts / 3.0 * seconds;
}

static size_t entry(const ap_inter_op_problem_t *problem, int first, int last, int state)
{
    int range = first * problem->layers + last;

    range = problem->range_row != NULL ? problem->range_row[range] : range;
    return (size_t)(range * problem->submesh_count * problem->config_count + state);
}

/* T of the plan on the stack by the definition in the header, INFINITY if a rule forbids it. */
static double price(instance_t *instance, int count)
{
    const ap_inter_op_problem_t *problem = &instance->problem;
    const ap_inter_op_clock_t *clock = &problem->clock;
    double sum = 0.0, period = 0.0, seconds[MAX_LAYERS], crossing[MAX_LAYERS] = {0.0};
    int device = 0;

    if (count < problem->min_stages || (problem->max_stages > 0 && count > problem->max_stages)) {
        return INFINITY;
    }
    for (int i = 0; i < count; ++i) {
        int state = instance->stack[i][2];
        size_t index = entry(problem, instance->stack[i][0], instance->stack[i][1], state);
        ap_submesh_t shape = problem->submeshes[state / problem->config_count];

        if (problem->max_successors != NULL && problem->max_successors[index] < count - 1 - i) {
            return INFINITY;
        }
        if (problem->ordered && device / problem->devices_per_host !=
                                    (device + shape.devices - 1) / problem->devices_per_host) {
            return INFINITY;
        }
        if (problem->ordered && problem->allowed != NULL &&
            !problem->allowed[state / problem->config_count * problem->hosts +
                              device / problem->devices_per_host]) {
            return INFINITY;
        }
        seconds[i] = problem->cost[index];
        sum += seconds[i];
        period = fmax(period, seconds[i]);
        if (i > 0 && problem->boundary != NULL) {
            int source = instance->stack[i - 1][2];
            ap_inter_op_boundary_t at = {instance->stack[i][0],
                                         problem->out_port != NULL ? problem->out_port[source]
                                                                   : source,
                                         problem->in_port != NULL ? problem->in_port[state] : state,
                                         problem->ordered ? device : -1};

            crossing[i] = boundary(instance, &at);
            sum += crossing[i];
            period = fmax(period, clock->station * crossing[i]);
        }
        device += shape.hosts * shape.devices;
    }
    /* A micro-batch that stage i hands on is back after stages i to j, and j - i of the window's
     * micro-batches more than the last stage's have left by then. */
    for (int i = 0; i < count && clock->ahead > 0; ++i) {
        double whole = clock->delayed * seconds[i];

        for (int j = i; j < count; ++j) {
            whole +=
                (1.0 - clock->delayed) * seconds[j] + (j > i ? clock->certain * crossing[j] : 0.0);
            period = fmax(period, whole / (clock->ahead * (j - i) + 1));
        }
    }
    return sum + (double)(problem->micro_batches - 1) * period;
}

static void enumerate(instance_t *instance, int count, int layer, int devices)
{
    const ap_inter_op_problem_t *problem = &instance->problem;

    if (layer == problem->layers) {
        if (devices == 0 || (problem->spare_hosts && devices % problem->devices_per_host == 0)) {
            instance->best = fmin(instance->best, price(instance, count));
            ++instance->plans;
        }
        return;
    }
    for (int last = layer; last < problem->layers; ++last) {
        for (int state = 0; state < problem->submesh_count * problem->config_count; ++state) {
            ap_submesh_t shape = problem->submeshes[state / problem->config_count];

            if (shape.hosts * shape.devices <= devices) {
                instance->stack[count][0] = layer;
                instance->stack[count][1] = last;
                instance->stack[count][2] = state;
                enumerate(instance, count + 1, last + 1, devices - shape.hosts * shape.devices);
            }
        }
    }
}

static void make_instance(instance_t *instance, mt_t *mt)
{
    ap_inter_op_problem_t *problem = &instance->problem;
    double impossible = mt_below(mt, 2) == 0 ? 0.0 : 0.4 * mt_rand(mt);
    int grid = mt_below(mt, 3); /* coarse values make ties */
    size_t count;

    *instance = (instance_t){.problem = AP_INTER_OP_PROBLEM_INIT, .best = INFINITY};
    problem->layers = 1 + mt_below(mt, MAX_LAYERS);
    problem->hosts = 1 + mt_below(mt, 3);
    problem->devices_per_host = 1 + mt_below(mt, problem->hosts == 1 ? 8 : 3);
    problem->submeshes = instance->shapes;
    problem->submesh_count =
        ap_inter_op_submeshes(problem->hosts, problem->devices_per_host, mt_below(mt, 2) == 0,
                              instance->shapes, MAX_SHAPES);
    ck_assert_int_le(problem->submesh_count, MAX_SHAPES);
    problem->config_count = 1 + mt_below(mt, problem->layers < MAX_LAYERS ? MAX_CONFIGS : 2);
    problem->cost = instance->cost;
    problem->max_successors = mt_below(mt, 2) == 0 ? NULL : instance->successors;
    problem->micro_batches = 1 + mt_below(mt, 20);
    problem->min_stages = mt_below(mt, 3) == 0 ? mt_below(mt, 4) : 0;
    problem->max_stages = mt_below(mt, 3) == 0 ? problem->min_stages + 1 + mt_below(mt, 2) : 0;
    problem->clock = (ap_inter_op_clock_t){.ahead = mt_below(mt, 3),
                                           .delayed = mt_below(mt, 3) == 0 ? 0.5 : 0.0,
                                           .station = mt_below(mt, 2) == 0 ? 0.5 : 1.0,
                                           .certain = mt_below(mt, 2) == 0 ? 0.75 : 1.0};
    problem->ordered = mt_below(mt, 2) == 0;
    problem->spare_hosts = problem->ordered && mt_below(mt, 2) == 0;
    problem->boundary = mt_below(mt, 2) == 0 ? boundary : NULL;
    problem->boundary_arg = instance;
    problem->in_port = mt_below(mt, 2) == 0 ? instance->in_port : NULL;
    problem->out_port = mt_below(mt, 2) == 0 ? instance->out_port : NULL;
    for (int state = 0; state < problem->submesh_count * problem->config_count; ++state) {
        int submesh = state / problem->config_count, config = state % problem->config_count;

        instance->in_port[state] = submesh;
        instance->out_port[state] = submesh * problem->config_count + config / 2;
    }
    problem->boundary_kind = mt_below(mt, 2) == 0 ? instance->kind : NULL;
    for (int layer = 0; layer < problem->layers; ++layer) {
        instance->kind[layer] = mt_below(mt, problem->layers < 3 ? problem->layers : 3);
    }
    problem->range_row = mt_below(mt, 3) == 0 ? instance->row : NULL;
    for (int range = 0; range < problem->layers * problem->layers; ++range) {
        instance->row[range] = abs(range % problem->layers - range / problem->layers);
    }
    problem->boundary_place = mt_below(mt, 2) == 0 ? instance->place : NULL;
    for (int device = 0; device < problem->hosts * problem->devices_per_host; ++device) {
        instance->place[device] = mt_below(mt, device < 2 ? device + 1 : 2);
    }
    problem->allowed = mt_below(mt, 4) == 0 ? instance->allowed : NULL;
    for (int i = 0; i < MAX_SHAPES * MAX_HOSTS; ++i) {
        instance->allowed[i] = mt_below(mt, 3) > 0;
    }
    instance->boundary_seed = mt_u32(mt);
    instance->boundary_scale = 2.0 * mt_rand(mt);
    count = (size_t)(problem->layers * problem->layers * problem->submesh_count *
                     problem->config_count);
    for (size_t i = 0; i < count; ++i) {
        double value = mt_rand(mt);

        value = grid == 0 ? ceil(4.0 * value) / 4.0 : value;
        instance->cost[i] = mt_rand(mt) < impossible ? INFINITY : value;
        instance->successors[i] = mt_below(mt, 5) - 1;
    }
}

/* The stages cover the layers and devices, and their own numbers give the stated objective. */
static void check_result(instance_t *instance, const ap_inter_op_result_t *result)
{
    const ap_inter_op_problem_t *problem = &instance->problem;
    int layer = 0, devices = 0;

    for (int i = 0; i < result->stage_count; ++i) {
        const ap_inter_op_stage_t *stage = &result->stages[i];
        ap_submesh_t shape = problem->submeshes[stage->submesh];

        ck_assert_int_eq(stage->first_layer, layer);
        ck_assert_int_eq(stage->first_device, problem->ordered ? devices : -1);
        instance->stack[i][0] = stage->first_layer;
        instance->stack[i][1] = stage->last_layer;
        instance->stack[i][2] = stage->submesh * problem->config_count + stage->config;
        layer = stage->last_layer + 1;
        devices += shape.hosts * shape.devices;
    }
    ck_assert_int_eq(layer, problem->layers);
    devices = problem->hosts * problem->devices_per_host - devices;
    ck_assert(devices == 0 || (problem->spare_hosts && devices % problem->devices_per_host == 0));
    ck_assert_double_eq_tol(price(instance, result->stage_count), result->objective, 1e-9);
}

/* Below a threshold a little above the optimum, its stages may take as long as they do. */
static void check_useful(instance_t *instance, const ap_inter_op_result_t *result)
{
    const ap_inter_op_problem_t *problem = &instance->problem;
    double longest[MAX_LAYERS * MAX_LAYERS * MAX_SHAPES];
    double threshold = result->objective * 1.0001 + 1e-9;

    ck_assert_xm_ok(ap_inter_op_useful(problem, threshold, longest));
    for (int i = 0; i < result->stage_count; ++i) {
        const ap_inter_op_stage_t *stage = &result->stages[i];
        int range = stage->first_layer * problem->layers + stage->last_layer;

        ck_assert_double_ge(longest[range * problem->submesh_count + stage->submesh],
                            stage->seconds);
    }
    ck_assert_xm_ok(ap_inter_op_useful(problem, 0.0, longest));
    for (int range = 0; range < problem->layers * problem->layers; ++range) {
        for (int s = 0; s < problem->submesh_count; ++s) {
            ck_assert_double_eq(longest[range * problem->submesh_count + s], 0.0);
        }
    }
}

/* With bounds at hand fewer boundaries are asked for, and the plan is the very same. */
static void check_least(instance_t *instance, const ap_inter_op_result_t *expected)
{
    ap_inter_op_result_t result;

    instance->problem.boundary_lower_bound = boundary_lower_bound;
    ck_assert_xm_ok(ap_inter_op_solve(&instance->problem, &result));
    instance->problem.boundary_lower_bound = NULL;
    ck_assert_double_eq(result.objective, expected->objective);
    ck_assert_double_eq(result.bound, expected->bound);
    ck_assert_int_eq(result.stage_count, expected->stage_count);
    for (int i = 0; i < result.stage_count; ++i) {
        ck_assert_int_eq(result.stages[i].last_layer, expected->stages[i].last_layer);
        ck_assert_int_eq(result.stages[i].submesh, expected->stages[i].submesh);
        ck_assert_int_eq(result.stages[i].config, expected->stages[i].config);
        ck_assert_double_eq(result.stages[i].boundary_seconds,
                            expected->stages[i].boundary_seconds);
    }
    ap_inter_op_result_clear(&result);
}

/* Of plans below a limit the best is found, and of those below the best there is none. */
static void check_worth(instance_t *instance, double share)
{
    ap_inter_op_result_t result = {0};

    if (instance->best <= 0.0) {
        return;
    }
    instance->problem.worth = instance->best * (1.0 + 1e-9 + share);
    ck_assert_xm_ok(ap_inter_op_solve(&instance->problem, &result));
    ck_assert_double_eq_tol(result.objective, instance->best, 1e-12 * instance->best);
    ap_inter_op_result_clear(&result);
    instance->problem.worth = instance->best * (1.0 - 1e-9 - 0.5 * share);
    ck_assert_xm_fails(ap_inter_op_solve(&instance->problem, &result), XM_ERR_NO_SOLUTION,
                       "no plan takes less than");
    instance->problem.worth = 0.0;
}

START_TEST(random_instances_match_exhaustive_search)
{
    static instance_t instance;
    int solved = 0, impossible = 0;
    long plans = 0, asked = 0, asked_least = 0;
    mt_t mt;

    mt_seed(&mt, 20221);
    for (int round = 0; round < 6000; ++round) {
        ap_inter_op_result_t result = {0};
        xm_status_t status;

        make_instance(&instance, &mt);
        enumerate(&instance, 0, 0, instance.problem.hosts * instance.problem.devices_per_host);
        plans += instance.plans;
        instance.asked = 0;
        status = ap_inter_op_solve(&instance.problem, &result);
        if (isinf(instance.best)) {
            ck_assert_msg(status == XM_ERR_NO_SOLUTION, "round %d: %s", round,
                          xm_status_string(status));
            ++impossible;
            continue;
        }
        ck_assert_msg(status == XM_OK, "round %d: %s", round, xm_last_error());
        ck_assert_msg(fabs(result.objective - instance.best) <= 1e-12 * instance.best,
                      "round %d: %.17g, exhaustive %.17g", round, result.objective, instance.best);
        ck_assert_double_eq(result.bound, result.objective);
        asked += instance.asked;
        check_result(&instance, &result);
        check_useful(&instance, &result);
        instance.asked = 0;
        check_least(&instance, &result);
        asked_least += instance.asked;
        ap_inter_op_result_clear(&result);
        instance.problem.known = instance.best * (1.0 + 0.5 * mt_rand(&mt));
        ck_assert_xm_ok(ap_inter_op_solve(&instance.problem, &result));
        ck_assert_double_eq_tol(result.objective, instance.best, 1e-12 * instance.best);
        ap_inter_op_result_clear(&result);
        check_worth(&instance, mt_rand(&mt));
        ++solved;
    }
    (void)printf("%d solved, %d without solution, %ld plans enumerated\n", solved, impossible,
                 plans);
    (void)printf("%ld boundaries asked for, %ld where there are bounds\n", asked, asked_least);
    ck_assert_int_lt(2 * asked_least, asked);
    ck_assert_int_ge(solved, 2000);
    ck_assert_int_ge(impossible, 300);
}
END_TEST

START_TEST(submesh_shapes)
{
    ap_submesh_t shapes[16];

    ck_assert_int_eq(ap_inter_op_submeshes(2, 4, false, shapes, 16), 4);
    ck_assert_int_eq(shapes[2].devices, 4);
    ck_assert_int_eq(shapes[3].hosts, 2);
    ck_assert_int_eq(ap_inter_op_submeshes(1, 6, false, shapes, 16), 5);
    ck_assert_int_eq(shapes[2].devices, 3);
    ck_assert_int_eq(shapes[4].devices, 6);
    ck_assert_int_eq(ap_inter_op_submeshes(6, 1, false, shapes, 16), 5);
    ck_assert_int_eq(shapes[3].hosts, 4);
    ck_assert_int_eq(ap_inter_op_submeshes(8, 8, false, shapes, 2), 7);
    ck_assert_int_eq(ap_inter_op_submeshes(8, 8, true, shapes, 16), 15);
    ck_assert_int_eq(ap_inter_op_submeshes(1, 3, true, shapes, 16), 3);
    ck_assert_int_eq(ap_inter_op_submeshes(1, 1, true, shapes, 16), 1);
}
END_TEST

/* Two layers on two devices; only the part of the table that a row names is possible. */
static void small(ap_inter_op_problem_t *problem, double *cost, int32_t *successors)
{
    static const ap_submesh_t shapes[] = {{1, 1}, {1, 2}};

    *problem = (ap_inter_op_problem_t)AP_INTER_OP_PROBLEM_INIT;
    problem->layers = 2;
    problem->hosts = 1;
    problem->devices_per_host = 2;
    problem->submeshes = shapes;
    problem->submesh_count = 2;
    problem->config_count = 1;
    problem->micro_batches = 4;
    problem->cost = cost;
    problem->max_successors = successors;
    for (int i = 0; i < 8; ++i) {
        cost[i] = 1.0;
        successors[i] = 8;
    }
}

START_TEST(no_solution_names_the_constraint)
{
    ap_inter_op_problem_t problem;
    ap_inter_op_result_t result = {0};
    double cost[8];
    int32_t successors[8];

    small(&problem, cost, successors);
    problem.min_stages = 3;
    ck_assert_xm_fails(ap_inter_op_solve(&problem, &result), XM_ERR_NO_SOLUTION,
                       "no division of 2 layers into 3 to 2 stages uses exactly 1 x 2 devices");
    small(&problem, cost, successors);
    for (int i = 0; i < 8; ++i) {
        successors[i] = -1;
    }
    ck_assert_xm_fails(ap_inter_op_solve(&problem, &result), XM_ERR_NO_SOLUTION,
                       "fits the device memory");
    small(&problem, cost, successors);
    for (int i = 0; i < 8; ++i) {
        cost[i] = INFINITY;
    }
    ck_assert_xm_fails(ap_inter_op_solve(&problem, &result), XM_ERR_NO_SOLUTION,
                       "with the stages that have a cost");
    ck_assert_ptr_null(result.stages);
}
END_TEST

/* Stops at the so-manieth question. */
static bool count_down(void *arg)
{
    int *left = arg;

    return --*left < 0;
}

/* A stopped search says how far its plan may be from the best, and never lies. */
START_TEST(a_stopped_search_gives_its_bound)
{
    static instance_t instance;
    int early = 0, plans = 0, whole = 0;
    mt_t mt;

    mt_seed(&mt, 5);
    for (int round = 0; round < 600; ++round) {
        int left = round % 6;
        ap_inter_op_result_t best, result = {0};
        xm_status_t status;

        make_instance(&instance, &mt);
        if (ap_inter_op_solve(&instance.problem, &best) != XM_OK) {
            continue;
        }
        instance.problem.stop = count_down;
        instance.problem.stop_arg = &left;
        status = ap_inter_op_solve(&instance.problem, &result);
        if (status == XM_ERR_TIMEOUT) {
            ++early;
        } else {
            ck_assert_xm_ok(status);
            ck_assert_double_le(result.bound, best.objective * (1.0 + 1e-12));
            ck_assert_double_ge(result.objective, best.objective * (1.0 - 1e-12));
            check_result(&instance, &result);
            whole += result.bound == result.objective;
            ++plans;
            ap_inter_op_result_clear(&result);
        }
        ap_inter_op_result_clear(&best);
    }
    ck_assert_int_gt(early, 20);
    ck_assert_int_gt(plans - whole, 0);
    ck_assert_int_gt(whole, 20);
}
END_TEST

static double one_second(void *arg, const ap_inter_op_boundary_t *at)
{
    (void)arg;
    return at->dst_first_device % 4 == 0 ? 1.0 : 0.01;
}

static double two_seconds(void *arg, const ap_inter_op_boundary_t *at)
{
    (void)arg;
    (void)at;
    return 2.0;
}

START_TEST(bad_problems_are_refused)
{
    ap_inter_op_problem_t problem;
    ap_inter_op_result_t result = {0};
    static const int mixed_ports[] = {0, 0}, wrong_kinds[] = {0, 2};
    ap_submesh_t wide = {1, 3};
    double cost[8];
    int32_t successors[8];

    small(&problem, cost, successors);
    problem.layers = 0;
    ck_assert_xm_fails(ap_inter_op_solve(&problem, &result), XM_ERR_INVALID_ARGUMENT, "0 layers");
    small(&problem, cost, successors);
    problem.micro_batches = 0;
    ck_assert_xm_fails(ap_inter_op_solve(&problem, &result), XM_ERR_INVALID_ARGUMENT,
                       "0 micro-batches");
    small(&problem, cost, successors);
    problem.min_stages = 3;
    problem.max_stages = 2;
    ck_assert_xm_fails(ap_inter_op_solve(&problem, &result), XM_ERR_INVALID_ARGUMENT, "3 to 2");
    small(&problem, cost, successors);
    cost[0] = -1.0;
    ck_assert_xm_fails(ap_inter_op_solve(&problem, &result), XM_ERR_INVALID_ARGUMENT,
                       "layers 0 to 0 on submesh 0, configuration 0: the cost -1");
    small(&problem, cost, successors);
    cost[2] = NAN;
    ck_assert_xm_fails(ap_inter_op_solve(&problem, &result), XM_ERR_INVALID_ARGUMENT,
                       "layers 0 to 1");
    small(&problem, cost, successors);
    problem.boundary = one_second;
    problem.in_port = mixed_ports;
    ck_assert_xm_fails(ap_inter_op_solve(&problem, &result), XM_ERR_INVALID_ARGUMENT,
                       "port 0 belongs to stages of 1 and of 2 devices");
    small(&problem, cost, successors);
    problem.boundary = one_second;
    problem.boundary_kind = wrong_kinds;
    ck_assert_xm_fails(ap_inter_op_solve(&problem, &result), XM_ERR_INVALID_ARGUMENT,
                       "the boundary before layer 1 is of kind 2, not 0 to 1");
    small(&problem, cost, successors);
    problem.boundary = one_second;
    problem.boundary_lower_bound = two_seconds;
    problem.min_stages = 2;
    ck_assert_xm_fails(ap_inter_op_solve(&problem, &result), XM_ERR_INVALID_ARGUMENT,
                       "the boundary before layer 1 costs 0.01, less than its bound, 2");
    small(&problem, cost, successors);
    problem.submeshes = &wide;
    problem.submesh_count = 1;
    ck_assert_xm_fails(ap_inter_op_solve(&problem, &result), XM_ERR_INVALID_ARGUMENT,
                       "submesh 0 is 1 x 3");
    ap_inter_op_result_clear(NULL);
}
END_TEST

/* Equal layers on 2 x 4 devices, twice as many devices half the time: the dear boundary between
 * the hosts has to be crossed once, and with 8 micro-batches it costs more than one stage saves. */
START_TEST(boundary_costs_move_the_cut)
{
    ap_inter_op_problem_t problem = AP_INTER_OP_PROBLEM_INIT;
    ap_inter_op_result_t result;
    ap_submesh_t shapes[4];
    double cost[4 * 4 * 4];

    problem.layers = 4;
    problem.hosts = 2;
    problem.devices_per_host = 4;
    problem.submesh_count = ap_inter_op_submeshes(2, 4, false, shapes, 4);
    problem.submeshes = shapes;
    problem.config_count = 1;
    problem.cost = cost;
    problem.micro_batches = 8;
    problem.ordered = true;
    for (int first = 0; first < 4; ++first) {
        for (int last = first; last < 4; ++last) {
            for (int s = 0; s < 4; ++s) {
                double devices = (double)(shapes[s].hosts * shapes[s].devices);

                cost[(first * 4 + last) * 4 + s] =
                    0.4 * (last - first + 1) / devices * (1.0 + 0.05 * devices);
            }
        }
    }
    ck_assert_xm_ok(ap_inter_op_solve(&problem, &result));
    ck_assert_int_gt(result.stage_count, 1);
    ap_inter_op_result_clear(&result);
    problem.boundary = one_second;
    problem.clock.station = 1.0;
    ck_assert_xm_ok(ap_inter_op_solve(&problem, &result));
    ck_assert_int_eq(result.stage_count, 1);
    ap_inter_op_result_clear(&result);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("inter_op");
    TCase *tcase = tcase_create("all");

    tcase_set_timeout(tcase, 50);
    tcase_add_test(tcase, generator_is_numpys);
    tcase_add_test(tcase, golden_table_of_alpa);
    tcase_add_test(tcase, random_instances_match_exhaustive_search);
    tcase_add_test(tcase, submesh_shapes);
    tcase_add_test(tcase, no_solution_names_the_constraint);
    tcase_add_test(tcase, a_stopped_search_gives_its_bound);
    tcase_add_test(tcase, bad_problems_are_refused);
    tcase_add_test(tcase, boundary_costs_move_the_cut);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
