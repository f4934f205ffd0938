/* SPDX-License-Identifier: Apache-2.0 */
#include "planner/published/piper/piper.h"

#include <math.h>
#include <stdio.h>

#include "planner/published/piper/import.h"
#include "xm_test.h"

static const double GIB = 1 << 30;

static char *read_text(const char *path, size_t *length)
{
    FILE *file = fopen(path, "rb");
    char *text = NULL;
    FILE *memory = open_memstream(&text, length);
    int c;

    ck_assert_msg(file != NULL && memory != NULL, "cannot read %s", path);
    while ((c = getc(file)) != EOF) {
        (void)putc(c, memory);
    }
    (void)fclose(memory);
    (void)fclose(file);
    return text;
}

static void load_bert(ap_piper_problem_t *problem)
{
    size_t length;
    char *text = read_text(xm_test_source_path("tests/fixtures/piper/bert32a100.json"), &length);

    ck_assert_xm_ok(ap_import_piper("bert32a100.json", text, length, problem));
    free(text);
}

/* What a plan's stages take and hold, from the definition; every layer once, stages in order. */
static double verify(const ap_piper_problem_t *problem, const ap_piper_plan_t *plan)
{
    int *stage_of = malloc((size_t)problem->node_count * sizeof(int));
    int sum = 0, devices = 0;
    double slowest = 0.0;

    for (int i = 0; i < problem->node_count; ++i) {
        stage_of[i] = -1;
    }
    for (int i = 0; i < plan->stage_count; ++i) {
        sum += plan->stages[i].data;
        devices += plan->stages[i].data * plan->stages[i].tensor;
        for (int j = 0; j < plan->stages[i].node_count; ++j) {
            ck_assert_int_eq(stage_of[plan->stages[i].nodes[j]], -1);
            stage_of[plan->stages[i].nodes[j]] = i;
        }
    }
    ck_assert_int_eq(devices, plan->devices);
    ck_assert_int_le(devices, problem->devices);
    ck_assert_int_le(sum, problem->micro_batches);
    for (int e = 0; e < problem->edge_count; ++e) {
        ck_assert_int_le(stage_of[problem->edges[e].before], stage_of[problem->edges[e].after]);
    }
    for (int i = 0; i < plan->stage_count; ++i) {
        const ap_piper_stage_t *stage = &plan->stages[i];
        double bytes = 0.0, reduced = 0.0, compute = 0.0, memory = 0.0;

        ck_assert_int_eq(problem->micro_batches % stage->data, 0);
        ck_assert_int_eq(stage->in_flight, (sum + stage->data - 1) / stage->data);
        for (int j = 0; j < stage->node_count; ++j) {
            const ap_piper_node_t *node = &problem->nodes[stage->nodes[j]];
            const ap_piper_variant_t *variant = NULL;

            for (int k = 0; k < node->degree_count; ++k) {
                if (node->degrees[k].tensor == stage->tensor) {
                    variant = &node->degrees[k].variants[stage->variants[j]];
                }
            }
            ck_assert_ptr_nonnull(variant);
            compute += variant->time;
            memory += variant->memory_each * stage->in_flight + variant->memory;
            reduced += 4.0 * (stage->data - 1) * variant->parameters / stage->data /
                       problem->micro_batches;
            for (int k = 0; k < node->in_count; ++k) {
                if (stage_of[problem->edges[node->in[k]].before] != i) {
                    bytes += 2.0 * (problem->bytes[node->in[k]] + variant->in_bytes[k]);
                }
            }
            for (int k = 0; k < node->out_count; ++k) {
                if (stage_of[problem->edges[node->out[k]].after] != i) {
                    bytes += 2.0 * (problem->bytes[node->out[k]] + variant->out_bytes[k]);
                }
            }
        }
        sum -= stage->data;
        ck_assert_double_le(memory, problem->memory * (1.0 + 1e-12));
        slowest = fmax(slowest, (bytes / stage->data + reduced) / problem->bandwidth +
                                    compute / stage->data);
    }
    ck_assert_int_eq(sum, 0);
    for (int i = 0; i < problem->node_count; ++i) {
        ck_assert_int_ge(stage_of[i], 0);
    }
    free(stage_of);
    ck_assert_double_eq_tol(slowest, plan->seconds, 1e-12 + 1e-9 * slowest);
    return slowest;
}

/* What Piper's own program prints for its BERT-32; its gigabytes are binary. */
START_TEST(published_times_are_reproduced)
{
    static const struct {
        double gibibytes;
        int micro_batches, devices;
        double seconds;
    } rows[] = {{8, 512, 8, 0.165856},    {8, 512, 64, 0.020957},    {8, 512, 512, 0.002845},
                {8, 512, 2048, 0.001221}, {80, 512, 8, 0.123105},    {80, 512, 64, 0.016885},
                {80, 512, 512, 0.002771}, {80, 512, 2048, 0.001185}, {80, 1920, 8, 0.122007},
                {80, 1920, 64, 0.015650}, {80, 1920, 512, 0.002273}, {80, 1920, 2048, 0.000664}};
    ap_piper_problem_t problem;

    load_bert(&problem);
    problem.bandwidth = 25.0 * GIB;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); ++i) {
        ap_piper_plan_t plan;

        if (rows[i].devices > 512 && getenv("TEST_FEW") != NULL) {
            continue;
        }
        problem.memory = rows[i].gibibytes * GIB;
        problem.micro_batches = rows[i].micro_batches;
        problem.devices = rows[i].devices;
        ck_assert_xm_ok(ap_piper_solve(&problem, &plan));
        ck_assert(plan.exact);
        ck_assert_double_eq_tol(verify(&problem, &plan), rows[i].seconds, 0.55e-6);
        ap_piper_plan_clear(&plan);
    }
    ap_piper_problem_clear(&problem);
}
END_TEST

static uint64_t next_random(uint64_t *state)
{
    *state = *state * 6364136223846793005U + 1442695040888963407U;
    return *state >> 33;
}

static double random_amount(uint64_t *state, double most)
{
    return most * (double)(next_random(state) % 1000) / 1000.0;
}

enum { NODES = 5, DEGREES = 2 };

static void random_problem(uint64_t *state, ap_piper_problem_t *problem)
{
    int count = 2 + (int)(next_random(state) % (NODES - 1));

    *problem = (ap_piper_problem_t){.node_count = count,
                                    .devices = 1 + (int)(next_random(state) % 6),
                                    .micro_batches = 1 + (int)(next_random(state) % 6),
                                    .memory = 40.0 + random_amount(state, 60.0),
                                    .bandwidth = 1.0 + random_amount(state, 5.0)};
    problem->nodes = xm_arena_get(&problem->arena, (size_t)count, sizeof(*problem->nodes));
    problem->edges =
        xm_arena_get(&problem->arena, (size_t)(count * count), sizeof(*problem->edges));
    problem->bytes =
        xm_arena_get(&problem->arena, (size_t)(count * count), sizeof(*problem->bytes));
    for (int i = 0; i < count; ++i) {
        problem->nodes[i].in = xm_arena_get(&problem->arena, (size_t)count, sizeof(int));
        problem->nodes[i].out = xm_arena_get(&problem->arena, (size_t)count, sizeof(int));
        problem->nodes[i].id = i;
    }
    for (int i = 0; i < count; ++i) {
        for (int j = i + 1; j < count; ++j) {
            if (next_random(state) % 2 == 0) {
                int e = problem->edge_count++;

                problem->edges[e] = (ap_precedence_t){i, j};
                problem->bytes[e] = random_amount(state, 5.0);
                problem->nodes[i].out[problem->nodes[i].out_count++] = e;
                problem->nodes[j].in[problem->nodes[j].in_count++] = e;
            }
        }
    }
    for (int i = 0; i < count; ++i) {
        ap_piper_node_t *node = &problem->nodes[i];

        node->degree_count = DEGREES;
        node->degrees = xm_arena_get(&problem->arena, DEGREES, sizeof(*node->degrees));
        for (int k = 0; k < DEGREES; ++k) {
            node->degrees[k].tensor = 1 + k;
            node->degrees[k].variant_count = 1 + (int)(next_random(state) % 2);
            for (int l = 0; l < node->degrees[k].variant_count; ++l) {
                ap_piper_variant_t *variant = &node->degrees[k].variants[l];

                variant->id = l == 0 ? "plain" : "other";
                variant->time = random_amount(state, 20.0) / (1 + k);
                variant->parameters = random_amount(state, 10.0);
                variant->memory_each = random_amount(state, 20.0);
                variant->memory = random_amount(state, 20.0);
                variant->in_bytes = xm_arena_get(&problem->arena, (size_t)count, sizeof(double));
                variant->out_bytes = xm_arena_get(&problem->arena, (size_t)count, sizeof(double));
                for (int e = 0; e < count; ++e) {
                    variant->in_bytes[e] = random_amount(state, 2.0);
                    variant->out_bytes[e] = random_amount(state, 2.0);
                }
            }
        }
    }
}

/* Least time of one stage with these layers, from the definition; INFINITY: does not fit. */
static double brute_stage(const ap_piper_problem_t *problem, unsigned layers, int tensor, int data,
                          int in_flight)
{
    double best = INFINITY;

    for (unsigned choice = 0; choice < 1U << problem->node_count; ++choice) {
        double seconds = 0.0, memory = 0.0;
        bool good = true;

        for (int i = 0; i < problem->node_count && good; ++i) {
            const ap_piper_node_t *node = &problem->nodes[i];
            const ap_piper_degree_t *degree = &node->degrees[tensor - 1];
            int l = (int)(choice >> i & 1U);
            double bytes = 0.0;

            if ((layers >> i & 1U) == 0) {
                good = l == 0;
                continue;
            }
            if (l >= degree->variant_count) {
                good = false;
                continue;
            }
            for (int k = 0; k < node->in_count; ++k) {
                if ((layers >> problem->edges[node->in[k]].before & 1U) == 0) {
                    bytes += 2.0 * (problem->bytes[node->in[k]] + degree->variants[l].in_bytes[k]);
                }
            }
            for (int k = 0; k < node->out_count; ++k) {
                if ((layers >> problem->edges[node->out[k]].after & 1U) == 0) {
                    bytes +=
                        2.0 * (problem->bytes[node->out[k]] + degree->variants[l].out_bytes[k]);
                }
            }
            bytes /= data;
            bytes +=
                4.0 * (data - 1) * degree->variants[l].parameters / data / problem->micro_batches;
            seconds += bytes / problem->bandwidth + degree->variants[l].time / data;
            memory += degree->variants[l].memory_each * in_flight + degree->variants[l].memory;
        }
        if (good && memory <= problem->memory && seconds < best) {
            best = seconds;
        }
    }
    return best;
}

/* Tries every first stage of what is left: its layers, t, d, and the sum of d over all stages. */
static double brute_force(const ap_piper_problem_t *problem, unsigned left, int devices, int sum)
{
    double best = INFINITY;

    if (left == 0) {
        return sum == 0 ? 0.0 : INFINITY;
    }
    for (unsigned layers = left; layers != 0; layers = (layers - 1) & left) {
        bool first = true;

        for (int e = 0; e < problem->edge_count; ++e) {
            bool before = (left & ~layers) >> problem->edges[e].before & 1U;
            bool after = layers >> problem->edges[e].after & 1U;

            first = first && !(before && after);
        }
        for (int tensor = 1; first && tensor <= DEGREES; ++tensor) {
            for (int data = 1; data * tensor <= devices && data <= sum; ++data) {
                double seconds;

                if (problem->micro_batches % data != 0) {
                    continue;
                }
                seconds = brute_stage(problem, layers, tensor, data, (sum + data - 1) / data);
                if (seconds < best) {
                    double rest =
                        brute_force(problem, left & ~layers, devices - data * tensor, sum - data);

                    best = fmin(best, fmax(seconds, rest));
                }
            }
        }
    }
    return best;
}

START_TEST(random_problems_equal_brute_force)
{
    uint64_t state = 7;
    int solved = 0;

    for (int round = 0; round < 250; ++round) {
        ap_piper_problem_t problem;
        ap_piper_plan_t plan;
        double best = INFINITY;
        xm_status_t status;

        random_problem(&state, &problem);
        for (int sum = 1; sum <= problem.devices && sum <= problem.micro_batches; ++sum) {
            best = fmin(
                best, brute_force(&problem, (1U << problem.node_count) - 1, problem.devices, sum));
        }
        status = ap_piper_solve(&problem, &plan);
        if (isinf(best)) {
            ck_assert_int_eq(status, XM_ERR_NO_SOLUTION);
        } else {
            ck_assert_xm_ok(status);
            ck_assert(plan.exact);
            ck_assert_double_eq_tol(verify(&problem, &plan), best, 1e-9 * best);
            ap_piper_plan_clear(&plan);
            ++solved;
        }
        ap_piper_problem_clear(&problem);
    }
    ck_assert_int_gt(solved, 100);
}
END_TEST

START_TEST(bad_inputs_have_a_sentence)
{
#define HEAD "{\"maxMemoryPerDevice\": 1, \"maxDevices\": 2, \"bandwidth\": 3, \"mbsInBatch\": 4, "
#define NODE(id)                                                                                   \
    "{\"id\": " #id ", \"TMPCs\": {\"1\": [{\"id\": \"a\", \"timePerSample\": 1, "                 \
    "\"parameterSize\": 1, \"memoryUsageA\": 1, \"memoryUsageB\": 1, \"syncTimeFw\": {}, "         \
    "\"syncTimeBw\": {}}]}}"
    static const struct {
        const char *text, *sentence;
    } rows[] = {
        {"{", "in.json: line 1, column 1"},
        {"[]", "in.json:"},
        {HEAD "\"nodes\": [], \"edges\": []}", "one node at least"},
        {HEAD "\"nodes\": [{\"id\": \"x\"}], \"edges\": []}", "nodes[0]: id is not an integer"},
        {HEAD "\"nodes\": [" NODE(1) ", " NODE(1) "], \"edges\": []}", "two nodes have the id 1"},
        {HEAD "\"nodes\": [" NODE(1) "], \"edges\": [{\"sourceId\": 1, \"destId\": 5, "
                                     "\"communicationCost\": 1}]}",
         "edges[0]: from 1 to 5"},
        {HEAD "\"nodes\": [" NODE(1) ", " NODE(2) "], \"edges\": [{\"sourceId\": 1, \"destId\": 2, "
                                                  "\"communicationCost\": 1}]}",
         "node 1, 1 devices, variant 0: syncTimeBw must have an entry for each of 1 edges"},
        {HEAD "\"nodes\": [{\"id\": 1, \"TMPCs\": {\"x\": []}}], \"edges\": []}",
         "'x' is not a number of devices"},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); ++i) {
        ap_piper_problem_t problem;

        ck_assert_xm_fails(ap_import_piper("in.json", rows[i].text, strlen(rows[i].text), &problem),
                           XM_ERR_PARSE, rows[i].sentence);
    }
}
END_TEST

START_TEST(cycles_and_too_little_memory_are_refused)
{
    uint64_t state = 9;
    ap_piper_problem_t problem;
    ap_piper_plan_t plan;

    random_problem(&state, &problem);
    problem.memory = -1.0;
    ck_assert_xm_fails(ap_piper_solve(&problem, &plan), XM_ERR_NO_SOLUTION, "no plan fits");
    ck_assert_int_gt(problem.edge_count, 0);
    problem.edges[problem.edge_count] =
        (ap_precedence_t){problem.edges[0].after, problem.edges[0].before};
    problem.nodes[problem.edges[0].after].out[0] = problem.edge_count;
    ++problem.edge_count;
    ck_assert_xm_fails(ap_piper_solve(&problem, &plan), XM_ERR_INVALID_ARGUMENT, "cycle");
    ap_piper_problem_clear(&problem);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("piper");
    TCase *unit = tcase_create("unit");

    tcase_set_timeout(unit, 120);
    tcase_add_test(unit, published_times_are_reproduced);
    tcase_add_test(unit, random_problems_equal_brute_force);
    tcase_add_test(unit, bad_inputs_have_a_sentence);
    tcase_add_test(unit, cycles_and_too_little_memory_are_refused);
    suite_add_tcase(suite, unit);
    return xm_test_run(suite);
}
