/* SPDX-License-Identifier: Apache-2.0 */
/* Simulated schedules against the published formulas (pipeline_schedule.h cites them), and against
 * the cost of transfers on a pipeline as the model of equal stages has it. */
#include "planner/pipeline/simulate.h"

#include "planner/pipeline/check.h"
#include "planner/pipeline/step.h"
#include "planner/pipeline/times.h"
#include "xm_test.h"

enum { MOST_STAGES = 64 };

/* Equal stages. */
typedef struct machine {
    ap_schedule_kind_t kind;
    int devices, micro_batches, virtual_stages, batches;
    int64_t forward, backward, weight, transfer;
    bool blocking;
    int64_t activation_bytes, weight_bytes;
    const ap_pipeline_use_t *uses;
    int use_count;
    double jitter, slowdown;
    int64_t send;
    uint64_t seed;
} machine_t;

static void simulate(const machine_t *machine, ap_schedule_t **schedule, ap_pipeline_run_t **run)
{
    ap_schedule_params_t params = AP_SCHEDULE_PARAMS_INIT;
    ap_pipeline_times_t times = AP_PIPELINE_TIMES_INIT;
    static int64_t forward[MOST_STAGES], backward[MOST_STAGES], weight[MOST_STAGES],
        transfer[MOST_STAGES], bytes[MOST_STAGES], weight_bytes[MOST_STAGES];

    for (int i = 0; i < MOST_STAGES; ++i) {
        forward[i] = machine->forward;
        backward[i] = machine->backward;
        weight[i] = machine->weight;
        transfer[i] = machine->transfer;
        bytes[i] = machine->activation_bytes;
        weight_bytes[i] = machine->weight_bytes;
    }
    params.kind = machine->kind;
    params.devices = machine->devices;
    params.micro_batches = machine->micro_batches;
    params.virtual_stages = machine->virtual_stages;
    params.batches = machine->batches;
    params.activation_bytes = bytes;
    params.weight_bytes = weight_bytes;
    times.forward = forward;
    times.backward = backward;
    times.weight = weight;
    times.activation = transfer;
    times.gradient = transfer;
    times.blocking = machine->blocking;
    times.uses = machine->uses;
    times.use_count = machine->use_count;
    times.jitter = machine->jitter;
    times.slowdown = machine->slowdown;
    times.send = machine->send;
    times.seed = machine->seed;
    ck_assert_xm_ok(ap_schedule_create(&params, schedule));
    ck_assert_xm_ok(ap_schedule_check(*schedule, NULL));
    ck_assert_xm_ok(ap_pipeline_simulate(*schedule, &times, run));
}

static int64_t makespan(const machine_t *machine)
{
    ap_schedule_t *schedule;
    ap_pipeline_run_t *run;
    int64_t result;

    simulate(machine, &schedule, &run);
    result = run->makespan_ns;
    ap_pipeline_run_destroy(run);
    ap_schedule_destroy(schedule);
    return result;
}

static int smaller(int a, int b)
{
    return a < b ? a : b;
}

/* Idle time of the whole pipeline, where every device has `work` to do. */
static void check_idle(const machine_t *machine, int64_t idle)
{
    int64_t work =
        machine->micro_batches * (machine->forward + machine->backward + machine->weight);
    ap_schedule_t *schedule;
    ap_pipeline_run_t *run;

    if (machine->virtual_stages > 0) {
        work *= machine->virtual_stages;
    }
    simulate(machine, &schedule, &run);
    ck_assert_int_eq(run->makespan_ns, work + idle);
    ck_assert_double_eq_tol(run->bubble, (double)idle / (double)(work + idle), 1e-12);
    ap_pipeline_run_destroy(run);
    ap_schedule_destroy(schedule);
}

static void check_in_flight(const machine_t *machine, int (*formula)(const machine_t *, int))
{
    ap_schedule_t *schedule;
    ap_pipeline_run_t *run;

    simulate(machine, &schedule, &run);
    for (int device = 0; device < machine->devices; ++device) {
        ck_assert_int_eq(run->device[device].peak_in_flight, formula(machine, device));
    }
    ap_pipeline_run_destroy(run);
    ap_schedule_destroy(schedule);
}

static int all_in_flight(const machine_t *machine, int device)
{
    (void)device;
    return machine->micro_batches;
}

static int in_flight_1f1b(const machine_t *machine, int device)
{
    return smaller(machine->micro_batches * (machine->batches > 0 ? machine->batches : 1),
                   machine->devices - device);
}

static int in_flight_eager(const machine_t *machine, int device)
{
    return smaller(machine->micro_batches, 2 * (machine->devices - device) - 1);
}

static int in_flight_interleaved(const machine_t *machine, int device)
{
    int devices = machine->devices, chunks = machine->virtual_stages;

    return smaller(machine->micro_batches * chunks,
                   2 * (devices - device - 1) + (chunks - 1) * devices + 1);
}

static int in_flight_chimera(const machine_t *machine, int device)
{
    int half = machine->devices / 2;

    return smaller(half, machine->devices - device) + smaller(half, device + 1);
}

static const int sizes[][2] = {{1, 1}, {1, 5},  {2, 2}, {2, 3},  {3, 7},  {4, 4},  {4, 8},
                               {4, 2}, {5, 20}, {8, 8}, {8, 32}, {8, 64}, {16, 40}};

enum { SIZES = sizeof(sizes) / sizeof(sizes[0]) };

START_TEST(gpipe_1f1b_and_eager_idle_as_published)
{
    static const struct {
        ap_schedule_kind_t kind;
        int (*in_flight)(const machine_t *, int);
        bool split;
    } rows[] = {{AP_SCHEDULE_GPIPE, all_in_flight, false},
                {AP_SCHEDULE_1F1B, in_flight_1f1b, false},
                {AP_SCHEDULE_EAGER_1F1B, in_flight_eager, false},
                {AP_SCHEDULE_EAGER_1F1B_W, in_flight_eager, true}};

    for (size_t row = 0; row < sizeof(rows) / sizeof(rows[0]); ++row) {
        for (int i = 0; i < SIZES; ++i) {
            const machine_t machine = {.kind = rows[row].kind,
                                       .devices = sizes[i][0],
                                       .micro_batches = sizes[i][1],
                                       .forward = 10,
                                       .backward = 13,
                                       .weight = 7};

            check_idle(&machine, (machine.devices - 1) * (machine.forward + machine.backward +
                                                          (rows[row].split ? 0 : machine.weight)));
            check_in_flight(&machine, rows[row].in_flight);
        }
    }
}
END_TEST

START_TEST(interleaved_idles_a_share_of_1f1b)
{
    for (int devices = 1; devices <= 8; ++devices) {
        for (int chunks = 1; chunks <= 4; ++chunks) {
            for (int rounds = 1; rounds <= 4; ++rounds) {
                const machine_t machine = {.kind = AP_SCHEDULE_INTERLEAVED,
                                           .devices = devices,
                                           .micro_batches = rounds * devices,
                                           .virtual_stages = chunks,
                                           .forward = 10,
                                           .backward = 13,
                                           .weight = 7};

                check_idle(&machine,
                           (devices - 1) * (machine.forward + machine.backward + machine.weight));
                check_in_flight(&machine, in_flight_interleaved);
            }
        }
    }
}
END_TEST

START_TEST(chimera_idles_in_both_directions)
{
    for (int devices = 2; devices <= 16; devices += 2) {
        machine_t machine = {.kind = AP_SCHEDULE_CHIMERA,
                             .devices = devices,
                             .micro_batches = devices,
                             .forward = 10,
                             .backward = 13,
                             .weight = 7};

        /* One unit, backward twice the forward: p forwards and 2p - 2 backwards on the longest
         * chain. */
        check_idle(&machine, (devices - 2) * (machine.backward + machine.weight));
        check_in_flight(&machine, in_flight_chimera);
        /* Passes of equal length: (p - 2) / (2m + p - 2) for any number of units. */
        machine.backward = 6;
        machine.weight = 4;
        for (int units = 1; units <= 4; ++units) {
            machine.micro_batches = units * devices;
            check_idle(&machine, (devices - 2) * machine.forward);
            check_in_flight(&machine, in_flight_chimera);
        }
    }
}
END_TEST

/* Bytes that the two halves of zero-bubble hold, and the idle time inside a device's own span. */
static void check_zero_bubble(const machine_t *machine, int64_t idle)
{
    int64_t work =
        machine->micro_batches * (machine->forward + machine->backward + machine->weight);
    bool second = machine->kind == AP_SCHEDULE_ZB_H2;
    int64_t longest = 0;
    ap_schedule_t *schedule;
    ap_pipeline_run_t *run;

    simulate(machine, &schedule, &run);
    for (int device = 0; device < machine->devices; ++device) {
        const ap_pipeline_device_t *of = &run->device[device];
        int ahead = second ? 2 * (machine->devices - device) - 1 : machine->devices - device;
        int waiting = second ? 2 * device : device;
        int64_t span = of->last_ns - (second ? of->first_ns : 0);

        longest = span > longest ? span : longest;
        ck_assert_int_eq(of->peak_in_flight, ahead);
        ck_assert_int_eq(of->peak_bytes,
                         ahead * machine->activation_bytes + waiting * machine->weight_bytes);
    }
    ck_assert_int_eq(longest, work + idle);
    ap_pipeline_run_destroy(run);
    ap_schedule_destroy(schedule);
}

START_TEST(zero_bubble_idles_and_holds_as_published)
{
    static const int64_t times[][3] = {
        {10, 10, 10}, {10, 11, 9}, {10, 10, 8}, {10, 12, 6}, {5, 4, 3}};

    for (int devices = 2; devices <= 16; ++devices) {
        for (size_t i = 0; i < sizeof(times) / sizeof(times[0]); ++i) {
            machine_t machine = {.kind = AP_SCHEDULE_ZB_H1,
                                 .devices = devices,
                                 .micro_batches = 2 * devices + 5,
                                 .forward = times[i][0],
                                 .backward = times[i][1],
                                 .weight = times[i][2],
                                 .activation_bytes = 100,
                                 .weight_bytes = 40};
            int64_t f = machine.forward, b = machine.backward, w = machine.weight;

            check_zero_bubble(&machine, (devices - 1) * (f + b - w));
            machine.kind = AP_SCHEDULE_ZB_H2;
            check_zero_bubble(&machine, (devices - 1) * (f + b - 2 * w));
        }
    }
}
END_TEST

static int in_flight_v(const machine_t *machine, int device)
{
    (void)device;
    return 2 * machine->devices + (machine->kind == AP_SCHEDULE_DUALPIPEV);
}

/* Passes of one length: inside its own span a device of zb-v never waits. dualpipev is held against
 * 1f1b, whose stages do both of a device's. */
START_TEST(the_vs_hold_as_published_and_idle_less)
{
    for (int devices = 2; devices <= 16; ++devices) {
        machine_t machine = {.kind = AP_SCHEDULE_ZB_V,
                             .devices = devices,
                             .micro_batches = 2 * devices + 5,
                             .forward = 10,
                             .backward = 10,
                             .weight = 10};
        ap_schedule_t *schedule;
        ap_pipeline_run_t *run;
        int64_t step;

        check_in_flight(&machine, in_flight_v);
        simulate(&machine, &schedule, &run);
        for (int device = 0; device < devices; ++device) {
            ck_assert_int_eq(run->device[device].last_ns - run->device[device].first_ns,
                             (int64_t)60 * machine.micro_batches);
        }
        ap_pipeline_run_destroy(run);
        ap_schedule_destroy(schedule);
        machine.kind = AP_SCHEDULE_DUALPIPEV;
        check_in_flight(&machine, in_flight_v);
        step = makespan(&machine);
        machine.kind = AP_SCHEDULE_1F1B;
        machine.forward = machine.backward = machine.weight = 20;
        ck_assert_int_lt(step, makespan(&machine));
    }
}
END_TEST

/* The papers' numbers, stage i counted from 0: PipeDream keeps p - i versions, and what a forward
 * pass of stage i sees is p - 1 - i updates old; HetPipe's local staleness is p - 1 everywhere;
 * PipeMare's forward passes are (2(p - 1 - i) + 1) / m updates late with one version. */
START_TEST(asynchronous_schedules_keep_and_miss_as_published)
{
    static const ap_schedule_kind_t kinds[] = {AP_SCHEDULE_PIPEDREAM, AP_SCHEDULE_HETPIPE,
                                               AP_SCHEDULE_PIPEMARE};

    for (int p = 2; p <= 8; ++p) {
        for (int m = p; m <= 4 * p; ++m) {
            for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); ++i) {
                const machine_t machine = {.kind = kinds[i],
                                           .devices = p,
                                           .micro_batches = m,
                                           .batches = 4,
                                           .forward = 10,
                                           .backward = 13,
                                           .weight = 7};
                ap_schedule_t *schedule;
                ap_pipeline_run_t *run;

                simulate(&machine, &schedule, &run);
                /* No bubble once full: the last device never waits. */
                ck_assert_int_eq(run->device[p - 1].last_ns - run->device[p - 1].first_ns,
                                 4 * m * 30);
                ck_assert_int_eq(run->step_ns, m * 30);
                for (int s = 0; s < p; ++s) {
                    int after = p - 1 - s;
                    bool mare = kinds[i] == AP_SCHEDULE_PIPEMARE;
                    bool dream = kinds[i] == AP_SCHEDULE_PIPEDREAM;

                    ck_assert_int_eq(ap_schedule_versions(schedule, s), mare    ? 1
                                                                        : dream ? p - s
                                                                                : p);
                    ck_assert_double_eq_tol(ap_schedule_delay(schedule, s),
                                            mare    ? (2 * after + 1) / (double)m
                                            : dream ? after
                                                    : p - 1,
                                            1e-12);
                    ck_assert_int_eq(run->device[s].peak_in_flight, mare ? 2 * (p - s) : p - s);
                }
                ap_pipeline_run_destroy(run);
                ap_schedule_destroy(schedule);
            }
        }
    }
}
END_TEST

/* Steady times: the same step as 1f1b's. Times that vary, the same for both: seldom longer, and
 * shorter in the sum, by more where they vary more. */
START_TEST(varuna_gains_where_times_vary)
{
    double gain[2];

    for (int wide = 0; wide < 2; ++wide) {
        int64_t steps[2] = {0, 0};

        for (int p = 2; p <= 8; ++p) {
            for (int m = p; m <= 4 * p; m += p) {
                machine_t machine = {
                    .devices = p, .micro_batches = m, .forward = 1000, .backward = 2000};

                machine.kind = AP_SCHEDULE_VARUNA;
                check_idle(&machine, (int64_t)(p - 1) * 3000);
                machine.jitter = wide == 0 ? 0.1 : 0.5;
                for (machine.seed = 1; machine.seed <= 5; ++machine.seed) {
                    machine.kind = AP_SCHEDULE_VARUNA;
                    steps[0] += makespan(&machine);
                    machine.kind = AP_SCHEDULE_1F1B;
                    steps[1] += makespan(&machine);
                }
            }
        }
        gain[wide] = 1.0 - (double)steps[0] / (double)steps[1];
    }
    ck_assert_double_gt(gain[0], 0.0);
    ck_assert_double_gt(gain[1], 2 * gain[0]);
}
END_TEST

START_TEST(pipedream_2bw_never_idles_once_full)
{
    for (int devices = 1; devices <= 8; ++devices) {
        const machine_t machine = {.kind = AP_SCHEDULE_PIPEDREAM_2BW,
                                   .devices = devices,
                                   .micro_batches = devices + 3,
                                   .batches = 5,
                                   .forward = 10,
                                   .backward = 13,
                                   .weight = 7};
        ap_schedule_t *schedule;
        ap_pipeline_run_t *run;

        simulate(&machine, &schedule, &run);
        ck_assert_int_eq(schedule->versions, 2);
        ck_assert_int_eq(run->step_ns, (devices + 3) * 30);
        ap_pipeline_run_destroy(run);
        ap_schedule_destroy(schedule);
        check_in_flight(&machine, in_flight_1f1b);
    }
}
END_TEST

/* K stages and slices of unequal length: sum + (K - 1) max, forwards and backwards. */
START_TEST(terapipe_takes_the_published_latency)
{
    enum { STAGES = 6, SLICES = 5, SEQUENCES = 3 };
    static const int64_t slice_forward[SLICES] = {30, 20, 17, 15, 9};
    static const int64_t slice_backward[SLICES] = {50, 45, 31, 33, 20};
    ap_schedule_params_t params = AP_SCHEDULE_PARAMS_INIT;
    ap_pipeline_times_t times = AP_PIPELINE_TIMES_INIT;
    int64_t forward[STAGES * SLICES], backward[STAGES * SLICES], weight[STAGES * SLICES] = {0};
    int64_t sum = 0;
    ap_schedule_t *schedule;
    ap_pipeline_run_t *run;

    for (int i = 0; i < STAGES * SLICES; ++i) {
        forward[i] = slice_forward[i % SLICES];
        backward[i] = slice_backward[i % SLICES];
        sum += i < SLICES ? SEQUENCES * (forward[i] + backward[i]) : 0;
    }
    params.kind = AP_SCHEDULE_TERAPIPE;
    params.devices = STAGES;
    params.micro_batches = SEQUENCES;
    params.slices = SLICES;
    times.forward = forward;
    times.backward = backward;
    times.weight = weight;
    ck_assert_xm_ok(ap_schedule_create(&params, &schedule));
    ck_assert_xm_ok(ap_schedule_check(schedule, NULL));
    ck_assert_xm_ok(ap_pipeline_simulate(schedule, &times, &run));
    ck_assert_int_eq(run->makespan_ns, sum + (STAGES - 1) * (30 + 50));
    ck_assert_int_eq(run->device[0].peak_in_flight, SLICES * SEQUENCES);
    ap_pipeline_run_destroy(run);
    ap_schedule_destroy(schedule);
}
END_TEST

/*
 * What transfers cost (On Optimizing the Communication of Model Parallelism, MLSys'23, section 4):
 * n equal stages, backward twice the forward, 32 micro-batches, a transfer of c forwards each way.
 * Iteration time over the time without transfers.
 */
START_TEST(eager_1f1b_hides_transfers)
{
    static const struct {
        int devices;
        double share; /* of a forward pass */
        double blocking, overlapped, eager;
    } rows[] = {{2, 0.25, 1.162, 1.081, 1.005}, {2, 0.5, 1.323, 1.162, 1.010},
                {2, 1.0, 1.646, 1.323, 1.020},  {4, 0.25, 1.300, 1.124, 1.014},
                {4, 0.5, 1.600, 1.248, 1.029},  {4, 1.0, 2.210, 1.495, 1.057},
                {8, 0.25, 1.286, 1.145, 1.030}, {8, 0.5, 1.573, 1.291, 1.060},
                {8, 1.0, 2.154, 1.581, 1.120}};

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); ++i) {
        machine_t machine = {.kind = AP_SCHEDULE_1F1B,
                             .devices = rows[i].devices,
                             .micro_batches = 32,
                             .forward = 1000,
                             .backward = 1000,
                             .weight = 1000,
                             .transfer = (int64_t)(1000 * rows[i].share),
                             .blocking = true};
        double ideal = 3000.0 * (32 + rows[i].devices - 1);

        ck_assert_double_eq_tol((double)makespan(&machine) / ideal, rows[i].blocking,
                                0.001 * rows[i].blocking);
        machine.blocking = false;
        ck_assert_double_eq_tol((double)makespan(&machine) / ideal, rows[i].overlapped,
                                0.001 * rows[i].overlapped);
        machine.kind = AP_SCHEDULE_EAGER_1F1B;
        ck_assert_double_eq_tol((double)makespan(&machine) / ideal, rows[i].eager,
                                0.001 * rows[i].eager);
        machine.kind = AP_SCHEDULE_GPIPE;
        ck_assert_double_eq_tol((double)makespan(&machine) / ideal, rows[i].eager,
                                0.001 * rows[i].eager);
        /* Delaying the weight half lets a gradient leave sooner. */
        machine.kind = AP_SCHEDULE_EAGER_1F1B_W;
        ck_assert_double_lt((double)makespan(&machine) / ideal, rows[i].eager);
    }
}
END_TEST

/* A channel carries one message at a time: transfers longer than a stage set the pace. */
START_TEST(a_slow_channel_is_the_bottleneck)
{
    const machine_t machine = {.kind = AP_SCHEDULE_GPIPE,
                               .devices = 2,
                               .micro_batches = 10,
                               .forward = 10,
                               .backward = 10,
                               .weight = 0,
                               .transfer = 25};

    /* First forward, ten messages, last forward; then the same backwards: the second stage ends its
     * forward passes one pass after the last message. */
    ck_assert_int_eq(makespan(&machine), 10 + 250 + 10 + 10 + 250 + 10);
}
END_TEST

/*
 * Forward passes of 10 on three devices, transfers of 20, two micro-batches. Message 1 to device 1
 * is under way from 30 to 50, message 0 to device 2 from 40 to 60. Over one NIC both go at half the
 * pace from 40 on: the one has 10 to go and is there at 60, the other has the NIC for itself then
 * and is there at 70. Everything after that is 10 later.
 */
START_TEST(two_boundaries_on_one_host_share_its_nic)
{
    const ap_pipeline_use_t uses[] = {{ap_pipeline_channel(3, 0, 1), 0, 1.0},
                                      {ap_pipeline_channel(3, 1, 2), 0, 1.0}};
    const int64_t there[][2] = {{30, 60}, {70, 90}}; /* boundary, message */
    machine_t machine = {
        .kind = AP_SCHEDULE_GPIPE, .devices = 3, .micro_batches = 2, .forward = 10, .transfer = 20};
    ap_schedule_t *schedule;
    ap_pipeline_run_t *run;

    /* Four transfers of gradients, of 20, come after: two on the longest way, one behind another.
     */
    ck_assert_int_eq(makespan(&machine), 90 + 60);
    machine.uses = uses;
    machine.use_count = 2;
    simulate(&machine, &schedule, &run);
    for (int device = 0; device < 2; ++device) {
        int message = 0;

        for (int i = 0; i < schedule->op_count[device]; ++i) {
            if (schedule->ops[device][i].pass == AP_PASS_SEND_ACTIVATION) {
                ck_assert_int_eq(run->spans[device][i].end_ns, there[device][message++]);
            }
        }
        ck_assert_int_eq(message, 2);
    }
    ck_assert_int_eq(run->makespan_ns, 100 + 60);
    ap_pipeline_run_destroy(run);
    ap_schedule_destroy(schedule);
}
END_TEST

/*
 * Two stages, passes of 10 each way, transfers of 30. Activation 1 is under way from 40 to 70,
 * gradient 0 from 60 to 90. Where they share a NIC, the one is there at 80 and the other at 100;
 * gradient 1 then leaves at 100 instead of 90.
 */
START_TEST(forward_and_backward_at_once_share_a_nic)
{
    const ap_pipeline_use_t uses[] = {{ap_pipeline_channel(2, 0, 1), 5, 1.0},
                                      {ap_pipeline_channel(2, 1, 0), 5, 1.0}};
    machine_t machine = {.kind = AP_SCHEDULE_1F1B,
                         .devices = 2,
                         .micro_batches = 2,
                         .forward = 10,
                         .backward = 10,
                         .transfer = 30};

    ck_assert_int_eq(makespan(&machine), 130);
    machine.uses = uses;
    machine.use_count = 2;
    ck_assert_int_eq(makespan(&machine), 140);
}
END_TEST

/* Every channel has links, but none has those of another, or they fit together. */
START_TEST(disjoint_hosts_take_the_times_that_they_took)
{
    enum { DEVICES = 4, USES = 8 * DEVICES };
    ap_pipeline_use_t uses[USES];
    int count = 0;

    for (int from = 0; from < DEVICES; ++from) {
        for (int step = -1; step <= 1; step += 2) {
            int channel = ap_pipeline_channel(DEVICES, from, (from + step + DEVICES) % DEVICES);

            uses[count++] = (ap_pipeline_use_t){channel, 2 * channel, 1.0};
            uses[count++] = (ap_pipeline_use_t){channel, 2 * channel + 1, 1.0};
            uses[count++] = (ap_pipeline_use_t){channel, 1000, 1.0 / (2 * DEVICES)};
        }
    }
    for (int kind = 0; kind < AP_SCHEDULE_KINDS; ++kind) {
        for (int blocking = 0; blocking < 2; ++blocking) {
            machine_t machine = {.kind = (ap_schedule_kind_t)kind,
                                 .devices = DEVICES,
                                 .micro_batches = 8,
                                 .forward = 10,
                                 .backward = 13,
                                 .weight = 7,
                                 .transfer = 9,
                                 .blocking = blocking == 1};
            int64_t alone = makespan(&machine);

            machine.uses = uses;
            machine.use_count = count;
            ck_assert_int_eq(makespan(&machine), alone);
        }
    }
}
END_TEST

/* A NIC that all transfers go through is never busy for less than all of them together. */
START_TEST(a_shared_nic_carries_everything_in_turn)
{
    enum { DEVICES = 4, MICRO_BATCHES = 12, TRANSFER = 40 };
    ap_pipeline_use_t uses[2 * DEVICES];

    for (int channel = 0; channel < 2 * DEVICES; ++channel) {
        uses[channel] = (ap_pipeline_use_t){channel, 0, 1.0};
    }
    for (int kind = 0; kind < AP_SCHEDULE_KINDS; ++kind) {
        const machine_t machine = {.kind = (ap_schedule_kind_t)kind,
                                   .devices = DEVICES,
                                   .micro_batches = MICRO_BATCHES,
                                   .forward = 10,
                                   .backward = 13,
                                   .weight = 7,
                                   .transfer = TRANSFER,
                                   .uses = uses,
                                   .use_count = 2 * DEVICES};

        ck_assert_int_ge(makespan(&machine), (int64_t)2 * (DEVICES - 1) * MICRO_BATCHES * TRANSFER);
    }
}
END_TEST

/* One micro-batch on three devices, by hand. Stage 2 waits for the long way over stage 1 until 110,
 * computes until 140; its gradients are with stage 1 at 141, and over it with stage 0 at 190. */
START_TEST(what_passes_over_stages_is_waited_for)
{
    const int64_t forward[] = {10, 10, 10}, backward[] = {20, 20, 20}, none[] = {0, 0, 0};
    const int64_t transfer[] = {1, 1};
    const ap_pipeline_skip_t skip = {0, 2, 100, 50}, near = {0, 1, 1, 1};
    const ap_pipeline_use_t uses[] = {{ap_pipeline_skip_channel(3, 0, false), 0, 1.0},
                                      {ap_pipeline_channel(3, 0, 1), 0, 1.0}};
    ap_pipeline_times_t times = {.forward = forward,
                                 .backward = backward,
                                 .weight = none,
                                 .activation = transfer,
                                 .gradient = transfer,
                                 .skips = &skip,
                                 .skip_count = 1};
    ap_schedule_params_t params = AP_SCHEDULE_PARAMS_INIT;
    ap_schedule_t *schedule;
    ap_pipeline_run_t *run;

    params.kind = AP_SCHEDULE_1F1B;
    params.devices = 3;
    params.micro_batches = 1;
    ck_assert_xm_ok(ap_schedule_create(&params, &schedule));
    ck_assert_xm_ok(ap_pipeline_simulate(schedule, &times, &run));
    ck_assert_int_eq(run->makespan_ns, 210);
    ap_pipeline_run_destroy(run);
    /* Both messages of stage 0 want all of one NIC: each takes twice as long while both are there,
     * so the short one ends at 12 and the long one at 111. */
    times.uses = uses;
    times.use_count = 2;
    ck_assert_xm_ok(ap_pipeline_simulate(schedule, &times, &run));
    ck_assert_int_eq(run->makespan_ns, 211);
    ap_pipeline_run_destroy(run);
    /* A blocked sender sends one after the other: the long message leaves at 11, and its gradient
     * at 142. */
    times.use_count = 0;
    times.blocking = true;
    ck_assert_xm_ok(ap_pipeline_simulate(schedule, &times, &run));
    ck_assert_int_eq(run->makespan_ns, 212);
    ap_pipeline_run_destroy(run);
    times.skips = &near;
    ck_assert_xm_fails(ap_pipeline_simulate(schedule, &times, &run), XM_ERR_INVALID_ARGUMENT,
                       "what passes from stage 0 to stage 1 over others");
    ap_schedule_destroy(schedule);
}
END_TEST

/* Two devices and micro-batches, and everything takes as long. */
static const machine_t two_of_ten = {.kind = AP_SCHEDULE_GPIPE,
                                     .devices = 2,
                                     .micro_batches = 2,
                                     .forward = 10,
                                     .backward = 10,
                                     .transfer = 10};

/* By hand, at half the pace beside a message: device 0 goes forward from 0 to 10 and from 10 to 25,
 * with a message until 20; device 1 from 20 to 35, the second message being on its way from 25, and
 * to 45; backwards the same mirrored, until 90. Without, it is 80. */
START_TEST(messages_slow_passes_down)
{
    machine_t machine = two_of_ten;
    ap_schedule_t *schedule;
    ap_pipeline_run_t *run;

    for (int slow = 0; slow < 2; ++slow) {
        machine.slowdown = slow;
        simulate(&machine, &schedule, &run);
        ck_assert_int_eq(run->makespan_ns, slow ? 90 : 80);
        ck_assert_int_eq(run->device[0].busy_ns, slow ? 50 : 40);
        ck_assert_int_eq(run->device[1].busy_ns, slow ? 50 : 40);
        ap_pipeline_run_destroy(run);
        ap_schedule_destroy(schedule);
    }
}
END_TEST

/* Two devices, two micro-batches: the second forward pass of the first device begins when the first
 * message has been handed over, at 13, and the first message is there at 20 all the same; the
 * second one at 33, and it is ready at 43. The way back is the same mirrored. */
START_TEST(messages_keep_their_senders_busy)
{
    machine_t machine = two_of_ten;
    ap_schedule_t *schedule;
    ap_pipeline_run_t *run;

    machine.send = 3;
    simulate(&machine, &schedule, &run);
    ck_assert_int_eq(run->makespan_ns, 86);
    for (int device = 0; device < 2; ++device) {
        ck_assert_int_eq(run->device[device].busy_ns, 40);
        ck_assert_int_eq(run->device[device].transfer_ns, 6);
    }
    ap_pipeline_run_destroy(run);
    ap_schedule_destroy(schedule);
    /* Where transfers block, a message keeps its sender busy for all of its time anyway. */
    machine.blocking = true;
    ck_assert_int_eq(makespan(&machine), 100);
}
END_TEST

static double step_of(ap_schedule_kind_t kind, double backward, bool recompute, double split,
                      double weight)
{
    const ap_pipeline_stage_t stage = {
        .forward = 0.02, .backward = backward, .once = 0.01, .recompute = recompute};
    const ap_pipeline_stage_t stages[] = {stage, stage, stage};
    const ap_pipeline_step_t step = {.kind = kind,
                                     .micro_batches = 6,
                                     .split = split,
                                     .weight = weight,
                                     .stages = stages,
                                     .stage_count = 3};
    double seconds;

    ck_assert_xm_ok(ap_pipeline_step_seconds(&step, &seconds));
    return seconds;
}

/* Both halves take longer, and with recomputation only what is not the forward pass again;
 * schedules with whole backward passes take as long as ever. */
START_TEST(halves_of_backward_passes_take_longer)
{
    for (double weight = 0.0; weight < 0.9; weight += 0.3) {
        ck_assert_double_eq_tol(step_of(AP_SCHEDULE_ZB_H1, 0.04, false, 1.5, weight),
                                step_of(AP_SCHEDULE_ZB_H1, 0.06, false, 0.0, weight), 1e-8);
        ck_assert_double_eq_tol(step_of(AP_SCHEDULE_ZB_H1, 0.06, true, 1.5, weight),
                                step_of(AP_SCHEDULE_ZB_H1, 0.08, true, 0.0, weight), 1e-8);
        ck_assert_double_eq(step_of(AP_SCHEDULE_ZB_H1, 0.04, false, 0.5, weight),
                            step_of(AP_SCHEDULE_ZB_H1, 0.04, false, 0.0, weight));
        ck_assert_double_eq(step_of(AP_SCHEDULE_1F1B, 0.04, false, 1.5, weight),
                            step_of(AP_SCHEDULE_1F1B, 0.04, false, 0.0, 0.0));
    }
}
END_TEST

/* By hand: two ways of F and of the input half less the weight half fill and drain three stages,
 * beside six micro-batches of 60 ms and an update of 10. */
START_TEST(weight_halves_have_their_part)
{
    ck_assert_double_eq_tol(step_of(AP_SCHEDULE_ZB_H1, 0.04, false, 0.0, 0.0), 0.41, 1e-8);
    ck_assert_double_eq_tol(step_of(AP_SCHEDULE_ZB_H1, 0.04, false, 0.0, 0.5), 0.41, 1e-8);
    ck_assert_double_eq_tol(step_of(AP_SCHEDULE_ZB_H1, 0.04, false, 0.0, 0.25), 0.45, 1e-8);
}
END_TEST

START_TEST(bad_times_have_a_sentence)
{
    ap_schedule_params_t params = AP_SCHEDULE_PARAMS_INIT;
    ap_pipeline_times_t times = AP_PIPELINE_TIMES_INIT;
    int64_t good[2] = {1, 1}, bad[2] = {1, -5}, huge[2] = {INT64_MAX / 4, 1};
    ap_schedule_t *schedule;
    ap_pipeline_run_t *run;

    params.kind = AP_SCHEDULE_1F1B;
    params.devices = 2;
    params.micro_batches = 2;
    ck_assert_xm_ok(ap_schedule_create(&params, &schedule));
    ck_assert_xm_fails(ap_pipeline_simulate(schedule, &times, &run), XM_ERR_INVALID_ARGUMENT,
                       "are needed");
    times.forward = good;
    times.backward = bad;
    times.weight = good;
    ck_assert_xm_fails(ap_pipeline_simulate(schedule, &times, &run), XM_ERR_INVALID_ARGUMENT,
                       "backward time 1 is -5 ns");
    times.backward = huge;
    ck_assert_xm_fails(ap_pipeline_simulate(schedule, &times, &run), XM_ERR_INVALID_ARGUMENT,
                       "too long");
    times.backward = good;
    times.uses = &(ap_pipeline_use_t){4, 0, 0.5};
    times.use_count = 1;
    ck_assert_xm_fails(ap_pipeline_simulate(schedule, &times, &run), XM_ERR_INVALID_ARGUMENT,
                       "channel 4 of 4");
    times.use_count = 0;
    times.send = -1;
    ck_assert_xm_fails(ap_pipeline_simulate(schedule, &times, &run), XM_ERR_INVALID_ARGUMENT,
                       "a send time is -1 ns");
    ap_schedule_destroy(schedule);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("pipeline_simulate");
    TCase *unit = tcase_create("unit");

    tcase_set_timeout(unit, 60);
    tcase_add_test(unit, asynchronous_schedules_keep_and_miss_as_published);
    tcase_add_test(unit, varuna_gains_where_times_vary);
    tcase_add_test(unit, gpipe_1f1b_and_eager_idle_as_published);
    tcase_add_test(unit, interleaved_idles_a_share_of_1f1b);
    tcase_add_test(unit, chimera_idles_in_both_directions);
    tcase_add_test(unit, zero_bubble_idles_and_holds_as_published);
    tcase_add_test(unit, the_vs_hold_as_published_and_idle_less);
    tcase_add_test(unit, pipedream_2bw_never_idles_once_full);
    tcase_add_test(unit, terapipe_takes_the_published_latency);
    tcase_add_test(unit, eager_1f1b_hides_transfers);
    tcase_add_test(unit, a_slow_channel_is_the_bottleneck);
    tcase_add_test(unit, two_boundaries_on_one_host_share_its_nic);
    tcase_add_test(unit, forward_and_backward_at_once_share_a_nic);
    tcase_add_test(unit, disjoint_hosts_take_the_times_that_they_took);
    tcase_add_test(unit, a_shared_nic_carries_everything_in_turn);
    tcase_add_test(unit, what_passes_over_stages_is_waited_for);
    tcase_add_test(unit, messages_slow_passes_down);
    tcase_add_test(unit, messages_keep_their_senders_busy);
    tcase_add_test(unit, halves_of_backward_passes_take_longer);
    tcase_add_test(unit, weight_halves_have_their_part);
    tcase_add_test(unit, bad_times_have_a_sentence);
    suite_add_tcase(suite, unit);
    return xm_test_run(suite);
}
