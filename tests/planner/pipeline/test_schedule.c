/* SPDX-License-Identifier: Apache-2.0 */
#include "planner/pipeline/schedule.h"

#include "planner/pipeline/check.h"
#include "planner/pipeline/simulate.h"
#include "xm_test.h"

static uint64_t next_random(uint64_t *state)
{
    *state = *state * 6364136223846793005U + 1442695040888963407U;
    return *state >> 33;
}

static int random_in(uint64_t *state, int low, int high)
{
    return low + (int)(next_random(state) % (uint64_t)(high - low + 1));
}

static void random_params(uint64_t *state, ap_schedule_params_t *params)
{
    *params = (ap_schedule_params_t)AP_SCHEDULE_PARAMS_INIT;
    params->kind = (ap_schedule_kind_t)random_in(state, 0, AP_SCHEDULE_KINDS - 1);
    params->devices = random_in(state, 1, 9);
    params->micro_batches = random_in(state, 1, 24);
    switch (params->kind) {
    case AP_SCHEDULE_INTERLEAVED:
        params->virtual_stages = random_in(state, 1, 4);
        params->micro_batches = params->devices * random_in(state, 1, 4);
        break;
    case AP_SCHEDULE_CHIMERA:
        params->devices *= 2;
        break;
    case AP_SCHEDULE_TERAPIPE:
        params->slices = random_in(state, 1, 6);
        break;
    case AP_SCHEDULE_DUALPIPEV:
        params->micro_batches += 2 * params->devices;
        break;
    case AP_SCHEDULE_PIPEDREAM_2BW:
        params->micro_batches += params->devices;
        params->batches = random_in(state, 1, 4);
        break;
    case AP_SCHEDULE_PIPEDREAM:
    case AP_SCHEDULE_PIPEMARE:
    case AP_SCHEDULE_HETPIPE:
        params->batches = random_in(state, 0, 4);
        break;
    default:
        break;
    }
}

/* Room for every array that a schedule of random_params() takes. */
enum { MOST = 9 * 4 * 6 };

typedef struct numbers {
    int64_t bytes[MOST], weight_bytes[MOST];
    int64_t forward[MOST], backward[MOST], weight[MOST], activation[MOST], gradient[MOST],
        update[MOST];
} numbers_t;

static void random_numbers(uint64_t *state, numbers_t *numbers, ap_pipeline_times_t *times)
{
    for (int i = 0; i < MOST; ++i) {
        numbers->bytes[i] = random_in(state, 0, 1000);
        numbers->weight_bytes[i] = numbers->bytes[i] / random_in(state, 1, 3);
        numbers->forward[i] = random_in(state, 0, 100);
        numbers->backward[i] = random_in(state, 0, 100);
        numbers->weight[i] = random_in(state, 0, 100);
        numbers->activation[i] = random_in(state, 0, 100);
        numbers->gradient[i] = random_in(state, 0, 100);
        numbers->update[i] = random_in(state, 0, 100);
    }
    *times = (ap_pipeline_times_t){.forward = numbers->forward,
                                   .backward = numbers->backward,
                                   .weight = numbers->weight,
                                   .activation = numbers->activation,
                                   .gradient = numbers->gradient,
                                   .update = numbers->update,
                                   .blocking = random_in(state, 0, 1) == 1,
                                   .send = random_in(state, 0, 20),
                                   .jitter = random_in(state, 0, 1) * 0.5,
                                   .seed = next_random(state)};
}

static int by_start(const void *a, const void *b)
{
    const ap_pipeline_span_t *one = a, *other = b;

    return one->start_ns != other->start_ns
               ? (one->start_ns < other->start_ns ? -1 : 1)
               : (one->end_ns > other->end_ns) - (one->end_ns < other->end_ns);
}

/* varuna does not keep to the order of its list: what it computes does not overlap, and a backward
 * pass follows its forward pass. */
static void check_out_of_order(const ap_schedule_t *schedule, const ap_pipeline_run_t *run)
{
    for (int device = 0; device < schedule->devices; ++device) {
        ap_pipeline_span_t spans[2 * 24 + 1];
        int64_t forward[24], busy = 0;
        int count = 0;

        for (int pass = 0; pass < 2; ++pass) {
            for (int i = 0; i < schedule->op_count[device]; ++i) {
                const ap_schedule_op_t *op = &schedule->ops[device][i];

                if (op->pass == (pass == 0 ? AP_PASS_FORWARD : AP_PASS_BACKWARD)) {
                    spans[count] = run->spans[device][i];
                    busy += spans[count].end_ns - spans[count].start_ns;
                    if (pass == 0) {
                        forward[op->micro_batch] = spans[count].end_ns;
                    } else {
                        ck_assert_int_ge(spans[count].start_ns, forward[op->micro_batch]);
                    }
                    ++count;
                }
            }
        }
        ck_assert_int_eq(count, 2 * schedule->micro_batches);
        qsort(spans, (size_t)count, sizeof(spans[0]), by_start);
        for (int i = 1; i < count; ++i) {
            ck_assert_int_ge(spans[i].start_ns, spans[i - 1].end_ns);
        }
        ck_assert_int_le(busy, run->device[device].busy_ns);
        ck_assert_int_le(run->device[device].peak_in_flight, 2 * (schedule->devices - device));
    }
}

/* On every device passes follow each other without overlap, nor with the handing over of messages,
 * and the sums are those of the spans. */
static void check_run(const ap_schedule_t *schedule, const ap_pipeline_run_t *run,
                      const ap_pipeline_times_t *times)
{
    if (schedule->kind == AP_SCHEDULE_VARUNA) {
        check_out_of_order(schedule, run);
        return;
    }
    for (int device = 0; device < schedule->devices; ++device) {
        int64_t clock = 0, busy = 0;

        for (int i = 0; i < schedule->op_count[device]; ++i) {
            const ap_schedule_op_t *op = &schedule->ops[device][i];
            const ap_pipeline_span_t *span = &run->spans[device][i];
            bool send = op->pass == AP_PASS_SEND_ACTIVATION || op->pass == AP_PASS_SEND_GRADIENT;
            bool receive =
                op->pass == AP_PASS_RECEIVE_ACTIVATION || op->pass == AP_PASS_RECEIVE_GRADIENT;

            ck_assert_int_ge(span->end_ns, span->start_ns);
            if (!send || times->blocking) {
                ck_assert_int_ge(span->start_ns, clock);
            }
            clock = send && !times->blocking ? clock + times->send : span->end_ns;
            busy += send || receive ? 0 : span->end_ns - span->start_ns;
        }
        ck_assert_int_eq(clock, run->device[device].last_ns);
        ck_assert_int_eq(busy, run->device[device].busy_ns);
        ck_assert_int_le(clock, run->makespan_ns);
    }
}

START_TEST(random_schedules_are_safe_and_run)
{
    uint64_t state = 1;
    int of_kind[AP_SCHEDULE_KINDS] = {0};

    for (int round = 0; round < 600; ++round) {
        ap_schedule_params_t params;
        ap_pipeline_times_t times;
        ap_pipeline_run_t *run, *again;
        ap_schedule_t *schedule;
        static numbers_t numbers;

        random_params(&state, &params);
        random_numbers(&state, &numbers, &times);
        params.activation_bytes = numbers.bytes;
        params.weight_bytes = numbers.weight_bytes;
        ck_assert_xm_ok(ap_schedule_create(&params, &schedule));
        ck_assert_xm_ok(ap_schedule_check(schedule, NULL));
        ck_assert_xm_ok(ap_pipeline_simulate(schedule, &times, &run));
        ck_assert_xm_ok(ap_pipeline_simulate(schedule, &times, &again));
        check_run(schedule, run, &times);
        ck_assert_int_eq(run->makespan_ns, again->makespan_ns);
        ++of_kind[params.kind];
        ap_pipeline_run_destroy(run);
        ap_pipeline_run_destroy(again);
        ap_schedule_destroy(schedule);
    }
    for (int kind = 0; kind < AP_SCHEDULE_KINDS; ++kind) {
        ck_assert_int_gt(of_kind[kind], 25);
    }
}
END_TEST

/* The limit that a device's list just meets is kept; one byte less is refused. */
START_TEST(memory_limits_hold)
{
    uint64_t state = 2;

    for (int round = 0; round < 200; ++round) {
        ap_schedule_params_t params;
        ap_pipeline_times_t times;
        ap_schedule_t *schedule;
        int64_t limits[32] = {0};
        static numbers_t numbers;

        random_params(&state, &params);
        random_numbers(&state, &numbers, &times);
        params.activation_bytes = numbers.bytes;
        ck_assert_xm_ok(ap_schedule_create(&params, &schedule));
        for (int device = 0; device < schedule->devices; ++device) {
            for (int i = 0; i < schedule->op_count[device]; ++i) {
                int64_t held = schedule->ops[device][i].held;

                limits[device] = held > limits[device] ? held : limits[device];
            }
        }
        ck_assert_xm_ok(ap_schedule_check(schedule, limits));
        --limits[random_in(&state, 0, schedule->devices - 1)];
        ck_assert_xm_fails(ap_schedule_check(schedule, limits), XM_ERR_NO_SOLUTION,
                           "exceed the limit");
        ap_schedule_destroy(schedule);
    }
}
END_TEST

static bool same_op(const ap_schedule_op_t *a, const ap_schedule_op_t *b)
{
    return a->pass == b->pass && a->pipeline == b->pipeline && a->stage == b->stage &&
           a->micro_batch == b->micro_batch && a->slice == b->slice && a->version == b->version &&
           a->held == b->held;
}

static void drop(ap_schedule_t *schedule, int device, int entry)
{
    ap_schedule_op_t *ops = schedule->ops[device];

    --schedule->op_count[device];
    memmove(&ops[entry], &ops[entry + 1],
            (size_t)(schedule->op_count[device] - entry) * sizeof(*ops));
}

/* One entry of a list is dropped, doubled, moved to another device, or changed in one number. */
static bool mutate(uint64_t *state, ap_schedule_t *schedule)
{
    int device = random_in(state, 0, schedule->devices - 1), count = schedule->op_count[device];
    int entry = random_in(state, 0, count - 1), other = random_in(state, 0, count - 1);
    ap_schedule_op_t *ops = schedule->ops[device], before = ops[entry];

    switch (random_in(state, 0, 7)) {
    case 0:
        drop(schedule, device, entry);
        return true;
    case 1:
        ops[entry] = ops[other];
        break;
    case 2:
        ops[entry].micro_batch = random_in(state, -1, schedule->micro_batches);
        break;
    case 3:
        ops[entry].stage = random_in(state, -1, schedule->stages);
        break;
    case 4:
        ops[entry].pass = (ap_pass_t)random_in(state, 0, AP_PASSES - 1);
        break;
    case 5:
        ops[entry].version += random_in(state, -2, 2);
        break;
    case 6:
        ops[entry].held += random_in(state, -1, 1);
        break;
    default:
        ops[entry].pipeline += random_in(state, -1, 1);
        break;
    }
    return !same_op(&before, &ops[entry]);
}

START_TEST(mutated_schedules_are_refused)
{
    uint64_t state = 3;
    int tried = 0;

    while (tried < 1500) {
        ap_schedule_params_t params;
        ap_schedule_t *schedule;

        random_params(&state, &params);
        ck_assert_xm_ok(ap_schedule_create(&params, &schedule));
        if (mutate(&state, schedule)) {
            ck_assert_int_eq(ap_schedule_check(schedule, NULL), XM_ERR_CORRUPT);
            ++tried;
        }
        ap_schedule_destroy(schedule);
    }
}
END_TEST

/* Entries that change places: whatever the checker accepts must run, what it refuses as stuck must
 * not. Its judgement and the simulator's are written apart. */
START_TEST(reordered_schedules_run_exactly_when_they_are_safe)
{
    uint64_t state = 4;
    int stuck = 0;

    for (int round = 0; round < 1200; ++round) {
        ap_schedule_params_t params;
        ap_pipeline_times_t times;
        ap_pipeline_run_t *run = NULL;
        ap_schedule_t *schedule;
        ap_schedule_op_t *ops, kept;
        static numbers_t numbers;
        xm_status_t safe, ran;
        int device, entry;

        random_params(&state, &params);
        params.slices = params.kind == AP_SCHEDULE_TERAPIPE ? 1 : 0;
        random_numbers(&state, &numbers, &times);
        memset(numbers.bytes, 0, sizeof(numbers.bytes));
        params.activation_bytes = numbers.bytes;
        ck_assert_xm_ok(ap_schedule_create(&params, &schedule));
        device = random_in(&state, 0, schedule->devices - 1);
        entry = random_in(&state, 0, schedule->op_count[device] - 2);
        ops = schedule->ops[device];
        kept = ops[entry];
        ops[entry] = ops[entry + 1];
        ops[entry + 1] = kept;
        safe = ap_schedule_check(schedule, NULL);
        ran = ap_pipeline_simulate(schedule, &times, &run);
        if (safe == XM_OK) {
            ck_assert_xm_ok(ran);
        } else if (ran != XM_OK) {
            ++stuck;
        }
        ap_pipeline_run_destroy(run);
        ap_schedule_destroy(schedule);
    }
    ck_assert_int_gt(stuck, 10);
}
END_TEST

START_TEST(impossible_numbers_have_a_sentence)
{
    static const struct {
        ap_schedule_kind_t kind;
        int devices, micro_batches, virtual_stages, slices, batches;
        const char *sentence;
    } rows[] = {
        {AP_SCHEDULE_CHIMERA, 3, 4, 0, 0, 0, "even number of devices, not 3"},
        {AP_SCHEDULE_INTERLEAVED, 4, 6, 2, 0, 0, "multiples of the 4 devices, not 6"},
        {AP_SCHEDULE_PIPEDREAM_2BW, 4, 3, 0, 0, 2, "as many micro-batches as devices: 3 for 4"},
        {AP_SCHEDULE_DUALPIPEV, 4, 7, 0, 0, 0, "two micro-batches to each of the 4 devices, not 7"},
        {AP_SCHEDULE_ZB_V, 4, 8, 3, 0, 0, "two stages on a device, not 3"},
        {AP_SCHEDULE_1F1B, 0, 4, 0, 0, 0, "4 micro-batches on 0 devices"},
        {AP_SCHEDULE_1F1B, 2, 0, 0, 0, 0, "0 micro-batches on 2 devices"},
        {AP_SCHEDULE_1F1B, 2, 2, 2, 0, 0, "one stage on a device, not 2"},
        {AP_SCHEDULE_GPIPE, 2, 2, 0, 3, 0, "does not cut micro-batches into 3 slices"},
        {AP_SCHEDULE_ZB_H1, 2, 2, 0, 0, 2, "empties the pipeline"},
        {AP_SCHEDULE_1F1B, 4096, 1 << 20, 0, 0, 0, "more than 4194304 passes"},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); ++i) {
        ap_schedule_params_t params = AP_SCHEDULE_PARAMS_INIT;
        ap_schedule_t *schedule;

        params.kind = rows[i].kind;
        params.devices = rows[i].devices;
        params.micro_batches = rows[i].micro_batches;
        params.virtual_stages = rows[i].virtual_stages;
        params.slices = rows[i].slices;
        params.batches = rows[i].batches;
        ck_assert_xm_fails(ap_schedule_create(&params, &schedule), XM_ERR_INVALID_ARGUMENT,
                           rows[i].sentence);
    }
}
END_TEST

START_TEST(names_are_found)
{
    for (int kind = 0; kind < AP_SCHEDULE_KINDS; ++kind) {
        ap_schedule_kind_t found;

        ck_assert_xm_ok(ap_schedule_find(ap_schedule_name((ap_schedule_kind_t)kind), &found));
        ck_assert_int_eq(found, kind);
    }
    ck_assert_xm_fails(ap_schedule_find("zb-h3", &(ap_schedule_kind_t){0}), XM_ERR_INVALID_ARGUMENT,
                       "zb-h");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("pipeline_schedule");
    TCase *unit = tcase_create("unit");

    tcase_set_timeout(unit, 60);
    tcase_add_test(unit, random_schedules_are_safe_and_run);
    tcase_add_test(unit, memory_limits_hold);
    tcase_add_test(unit, mutated_schedules_are_refused);
    tcase_add_test(unit, reordered_schedules_run_exactly_when_they_are_safe);
    tcase_add_test(unit, impossible_numbers_have_a_sentence);
    tcase_add_test(unit, names_are_found);
    suite_add_tcase(suite, unit);
    return xm_test_run(suite);
}
