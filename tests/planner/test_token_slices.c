#include "planner/token_slices.h"

#include "planner/pipeline_simulate.h"
#include "xm_test.h"

static uint64_t next_random(uint64_t *state)
{
    *state = *state * 6364136223846793005U + 1442695040888963407U;
    return *state >> 33;
}

enum { MOST = 10 };

static int64_t table_time(void *arg, int length, int context)
{
    int64_t(*table)[MOST + 1] = arg;

    return table[context][length];
}

static int64_t larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* Every way to cut: a bit for each place between two tokens. */
static int64_t brute_force(int tokens, int stages, int64_t table[][MOST + 1])
{
    int64_t best = INT64_MAX;

    for (unsigned cuts = 0; cuts < 1U << (tokens - 1); ++cuts) {
        int64_t sum = 0, longest = 0;
        int from = 0;

        for (int to = 1; to <= tokens; ++to) {
            if (to == tokens || (cuts >> (to - 1) & 1U) != 0) {
                sum += table[from][to - from];
                longest = larger(longest, table[from][to - from]);
                from = to;
            }
        }
        if (sum + (stages - 1) * longest < best) {
            best = sum + (stages - 1) * longest;
        }
    }
    return best;
}

START_TEST(random_times_equal_brute_force)
{
    uint64_t state = 1;

    for (int round = 0; round < 500; ++round) {
        int tokens = 1 + (int)(next_random(&state) % MOST);
        int stages = 1 + (int)(next_random(&state) % 12), sum = 0;
        int64_t table[MOST][MOST + 1];
        ap_token_slices_t slices;

        for (int i = 0; i < MOST * (MOST + 1); ++i) {
            table[i / (MOST + 1)][i % (MOST + 1)] = (int64_t)(next_random(&state) % 100);
        }
        ck_assert_xm_ok(ap_token_slices_find(tokens, 1, stages, table_time, table, &slices));
        ck_assert_int_eq(slices.latency_ns, brute_force(tokens, stages, table));
        for (int i = 0; i < slices.count; ++i) {
            sum += slices.lengths[i];
        }
        ck_assert_int_eq(sum, tokens);
        ap_token_slices_clear(&slices);
    }
}
END_TEST

/* A start-up cost, work per token, and attention to all tokens up to the middle of the slice. */
static int64_t attention_time(void *arg, int length, int context)
{
    (void)arg;
    return 20000 + 300 * (int64_t)length + length * (2 * (int64_t)context + length) / 4;
}

/* The best cut of a long sequence, run as a schedule, takes the time it was chosen for; since
 * attention grows, later slices are shorter; and equal slices, or the whole, take longer. */
START_TEST(the_schedule_takes_the_time_of_its_slices)
{
    enum { TOKENS = 2048, STAGES = 24 };
    ap_schedule_params_t params = AP_SCHEDULE_PARAMS_INIT;
    ap_pipeline_times_t times = AP_PIPELINE_TIMES_INIT;
    ap_token_slices_t slices;
    ap_schedule_t *schedule;
    ap_pipeline_run_t *run;
    int64_t *forward, *none, equal = 0, longest = 0;

    ck_assert_xm_ok(ap_token_slices_find(TOKENS, 8, STAGES, attention_time, NULL, &slices));
    ck_assert_int_gt(slices.count, 2);
    ck_assert_int_gt(slices.lengths[0], slices.lengths[slices.count - 1]);
    forward = calloc((size_t)(STAGES * slices.count), sizeof(*forward));
    none = calloc((size_t)(STAGES * slices.count), sizeof(*none));
    for (int stage = 0; stage < STAGES; ++stage) {
        for (int i = 0, context = 0; i < slices.count; context += slices.lengths[i++]) {
            forward[stage * slices.count + i] = attention_time(NULL, slices.lengths[i], context);
        }
    }
    params.kind = AP_SCHEDULE_TERAPIPE;
    params.devices = STAGES;
    params.micro_batches = 1;
    params.slices = slices.count;
    times.forward = forward;
    times.backward = none;
    times.weight = none;
    ck_assert_xm_ok(ap_schedule_create(&params, &schedule));
    ck_assert_xm_ok(ap_pipeline_simulate(schedule, &times, &run));
    ck_assert_int_eq(run->makespan_ns, slices.latency_ns);
    for (int i = 0; i < 16; ++i) {
        int64_t time = attention_time(NULL, TOKENS / 16, i * TOKENS / 16);

        equal += time;
        longest = larger(longest, time);
    }
    ck_assert_int_lt(slices.latency_ns, equal + (STAGES - 1) * longest);
    ck_assert_int_lt(slices.latency_ns, STAGES * attention_time(NULL, TOKENS, 0));
    ap_pipeline_run_destroy(run);
    ap_schedule_destroy(schedule);
    free(none);
    free(forward);
    ap_token_slices_clear(&slices);
}
END_TEST

START_TEST(bad_numbers_have_a_sentence)
{
    int64_t table[MOST][MOST + 1] = {{0, -1}};
    ap_token_slices_t slices;

    ck_assert_xm_fails(ap_token_slices_find(10, 3, 2, table_time, table, &slices),
                       XM_ERR_INVALID_ARGUMENT, "10 tokens in slices of multiples of 3");
    ck_assert_xm_fails(ap_token_slices_find(1, 1, 2, table_time, table, &slices),
                       XM_ERR_INVALID_ARGUMENT, "a slice of 1 tokens after 0 takes -1 ns");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("token_slices");
    TCase *unit = tcase_create("unit");

    tcase_add_test(unit, random_times_equal_brute_force);
    tcase_add_test(unit, the_schedule_takes_the_time_of_its_slices);
    tcase_add_test(unit, bad_numbers_have_a_sentence);
    suite_add_tcase(suite, unit);
    return xm_test_run(suite);
}
