/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Collectives through NCCL: with stand-ins for NCCL and CUDA's driver (tests/nccl_double,
 * tests/cuda_double), without any library, and under the label gpu with the real ones where there
 * are two devices.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "comm/probe/collective_measure.h"
#include "comm/memory/memory.h"
#include "comm/probe/nccl_library.h"
#include "comm/worker/worker.h"
#include "tests/comm/memory/cuda_case.h"
#include "tests/comm/job/local_job.h"
#include "xm_test.h"

enum { RANKS = 4, DEADLINE_S = 60, MAX_BYTES = 1 << 18 };

/* What a job of two hosts does. */
typedef struct {
    int ranks, per_host;
    double timeout;               /* of NCCL: half of it */
    const char *variable, *value; /* of the environment of rank `where`, or of all: -1 */
    int where;
    xm_status_t expected;
    const char *sentence; /* a part of it, on every rank */
} case_t;

typedef struct {
    xm_worker_t *worker;
    int host_of[RANKS];
    xm_collective_job_t job;
    xm_collective_library_t *library;
    int curves;
} slot_t;

static xm_status_t gather(void *context, const void *send, void *receive, size_t length)
{
    return xm_worker_allgather(((slot_t *)context)->worker, send, receive, length);
}

static xm_status_t look(void *context)
{
    return xm_worker_progress(((slot_t *)context)->worker);
}

static void sit_down(slot_t *slot, const xm_job_env_t *env, int listen_fd, const case_t *c)
{
    xm_worker_params_t params = XM_WORKER_PARAMS_INIT;
    char name[32];

    (void)snprintf(name, sizeof(name), "emulated%d", env->rank / c->per_host);
    params.listen_fd = listen_fd;
    params.host = name;
    params.timeout = local_timeout(DEADLINE_S);
    local_expect_ok(xm_worker_create(env, &params, &slot->worker));
    for (int r = 0; r < c->ranks; ++r) {
        slot->host_of[r] = xm_worker_host_of(slot->worker, r);
    }
    slot->job = (xm_collective_job_t){.rank = env->rank,
                                      .ranks = c->ranks,
                                      .host_of = slot->host_of,
                                      .timeout = c->timeout,
                                      .allgather = gather,
                                      .alive = look,
                                      .context = slot};
}

static xm_status_t visit(void *arg, const xm_collective_axis_t *axis, xm_collective_t kind)
{
    slot_t *slot = arg;
    xm_collective_effort_t effort = {.max_bytes = MAX_BYTES, .repetitions = 2, .seconds = 0.01};
    xm_collective_points_t measured;
    xm_status_t status =
        xm_collective_measure(&slot->job, slot->library, axis, kind, &effort, &measured);

    if (status < 0) {
        return status;
    }
    local_expect(measured.count >= 2 && measured.points[0].bytes >= 1024 &&
                     measured.points[measured.count - 1].bytes < MAX_BYTES + 1024,
                 "%d points up to %llu bytes", measured.count,
                 (unsigned long long)measured.points[measured.count - 1].bytes);
    for (int i = 0; i < measured.count; ++i) {
        local_expect(measured.points[i].seconds > 0 && isfinite(measured.points[i].seconds) &&
                         measured.points[i].bytes % (sizeof(int32_t) * (size_t)axis->size) == 0,
                     "point %d of %s", i, xm_collective_name(kind));
    }
    ++slot->curves;
    return XM_OK;
}

static int measure(const xm_job_env_t *env, int listen_fd, void *arg)
{
    const case_t *c = arg;
    slot_t slot = {0};
    char note[256];
    xm_status_t status;

    if (c->variable != NULL && (c->where < 0 || c->where == env->rank)) {
        (void)setenv(c->variable, c->value, 1);
    }
    sit_down(&slot, env, listen_fd, c);
    status = xm_collective_open("nccl", &slot.job, &slot.library, note, sizeof(note));
    if (status == XM_OK) {
        local_expect(strncmp(slot.library->name, "NCCL 2.", 7) == 0, "%s", slot.library->name);
        status = xm_collective_visit(&slot.job, slot.library, visit, &slot);
    }
    local_expect(status == c->expected, "%s instead of %s: %s", xm_status_string(status),
                 xm_status_string(c->expected), xm_last_error());
    local_expect(status == XM_OK || strstr(xm_last_error(), c->sentence) != NULL, "'%s' lacks '%s'",
                 xm_last_error(), c->sentence);
    if (status == XM_OK) {
        int axes = c->ranks > c->per_host && c->per_host > 1 ? 3 : 1;

        local_expect(slot.curves == axes * XM_COLLECTIVE_COUNT, "%d curves", slot.curves);
    }
    xm_collective_library_destroy(slot.library);
    xm_worker_destroy(slot.worker, NULL);
    return 0;
}

static void run(case_t c)
{
    c.ranks = c.ranks > 0 ? c.ranks : RANKS;
    c.per_host = c.per_host > 0 ? c.per_host : 2;
    c.timeout = c.timeout > 0 ? c.timeout : local_timeout(DEADLINE_S);
    local_job_run(c.ranks, 2 * DEADLINE_S, measure, &c);
}

/* Two hosts of two devices: three axes, four collectives; the data is checked inside. */
START_TEST(test_axes)
{
    (void)setenv("CUDA_DOUBLE_DEVICES", "4", 1);
    run((case_t){.expected = XM_OK});
}
END_TEST

START_TEST(test_one_host)
{
    (void)setenv("CUDA_DOUBLE_DEVICES", "3", 1);
    run((case_t){.ranks = 3, .per_host = 3, .expected = XM_OK});
}
END_TEST

static const case_t failures[] = {
    {.variable = "CUDA_DOUBLE_DEVICES",
     .value = "0",
     .where = 1,
     .expected = XM_ERR_UNSUPPORTED,
     .sentence = "no CUDA: the driver knows no device"},
    {.variable = "CUDA_DOUBLE_FAIL",
     .value = "cuInit=100",
     .where = 2,
     .expected = XM_ERR_UNSUPPORTED,
     .sentence = "no CUDA"},
    {.ranks = 3,
     .per_host = 3,
     .variable = "CUDA_DOUBLE_DEVICES",
     .value = "2",
     .where = -1,
     .expected = XM_ERR_UNSUPPORTED,
     .sentence = "NCCL needs a device for each rank, and a host has 3 ranks and 2 CUDA devices"},
    /* Both emulated hosts take the devices of one machine. */
    {.variable = "CUDA_DOUBLE_DEVICES",
     .value = "2",
     .where = -1,
     .expected = XM_ERR_UNSUPPORTED,
     .sentence = "invalid usage (Duplicate GPU detected)"},
    {.variable = "NCCL_DOUBLE_VERSION",
     .value = "21304",
     .where = -1,
     .expected = XM_ERR_UNSUPPORTED,
     .sentence = "is version number 21304; 2.14 (21400) or later is needed"},
    {.variable = "NCCL_DOUBLE_VERSION",
     .value = "21805",
     .where = 1,
     .expected = XM_ERR_MISMATCH,
     .sentence = "NCCL is version"},
    {.variable = "NCCL_COMM_BLOCKING",
     .value = "1",
     .where = 0,
     .expected = XM_ERR_UNSUPPORTED,
     .sentence = "NCCL_COMM_BLOCKING=1 would let NCCL wait without a deadline"},
    {.variable = "NCCL_DOUBLE_FAIL",
     .value = "ncclGetUniqueId=2",
     .where = 0,
     .expected = XM_ERR_IO,
     .sentence = "NCCL: ncclGetUniqueId: unhandled system error"},
    {.variable = "NCCL_DOUBLE_WRONG",
     .value = "ncclAllGather",
     .where = 1,
     .expected = XM_ERR_CORRUPT,
     .sentence = "of the result of all-gather on 2 devices is"},
    {.variable = "NCCL_DOUBLE_WRONG",
     .value = "ncclAllReduce",
     .where = 0,
     .expected = XM_ERR_CORRUPT,
     .sentence = "of the result of all-reduce on 2 devices is"},
    {.variable = "NCCL_DOUBLE_WRONG",
     .value = "ncclReduceScatter",
     .where = 3,
     .expected = XM_ERR_CORRUPT,
     .sentence = "of the result of reduce-scatter on 2 devices is"},
    {.variable = "NCCL_DOUBLE_WRONG",
     .value = "ncclRecv",
     .where = 2,
     .expected = XM_ERR_CORRUPT,
     .sentence = "of the result of all-to-all on 2 devices is"},
    {.variable = "CUDA_DOUBLE_FAIL",
     .value = "cuMemAlloc_v2=2@5",
     .where = 1,
     .expected = XM_ERR_NO_MEMORY,
     .sentence = "cuMemAlloc of"},
};

/* Here some ranks wait for others in vain. */
static const case_t waits[] = {
    {.timeout = 8,
     .variable = "NCCL_DOUBLE_FAIL",
     .value = "ncclCommInitRankConfig=3",
     .where = 3,
     .expected = XM_ERR_INTERNAL,
     .sentence = "NCCL: ncclCommInitRankConfig: internal error (injected)"},
    {.timeout = 8,
     .variable = "NCCL_DOUBLE_HANG",
     .value = "init",
     .where = 1,
     .expected = XM_ERR_TIMEOUT,
     .sentence = "NCCL: ncclCommInitRankConfig of 2 devices has not ended in 4 s"},
    {.timeout = 8,
     .variable = "NCCL_DOUBLE_HANG",
     .value = "ncclReduceScatter",
     .where = 1,
     .expected = XM_ERR_TIMEOUT,
     .sentence = "NCCL: reduce-scatter of 2 devices has not ended in 4 s"},
    /* The others wait for rank 2 in vain; its sentence is told, not theirs. */
    {.timeout = 8,
     .variable = "NCCL_DOUBLE_FAIL",
     .value = "ncclAllReduce=1@8",
     .where = 2,
     .expected = XM_ERR_IO,
     .sentence = "NCCL: ncclAllReduce: unhandled cuda error (injected)"},
    {.timeout = 8,
     .variable = "NCCL_DOUBLE_FAIL",
     .value = "ncclSend=5",
     .where = 2,
     .expected = XM_ERR_UNSUPPORTED,
     .sentence = "NCCL: ncclSend and ncclRecv in a group: invalid usage (injected)"},
};

START_TEST(test_failure)
{
    (void)setenv("CUDA_DOUBLE_DEVICES", "4", 1);
    run(failures[_i]);
}
END_TEST

START_TEST(test_wait)
{
    (void)setenv("CUDA_DOUBLE_DEVICES", "4", 1);
    run(waits[_i]);
}
END_TEST

static bool is_nccl_there(void)
{
    xm_nccl_library_t nccl;

    return xm_nccl_library_open(&nccl) == XM_OK;
}

/* A machine without NCCL, or without CUDA: one sentence that says what is missing. */
static int do_without(const xm_job_env_t *env, int listen_fd, void *arg)
{
    const case_t c = {.ranks = 2, .per_host = 2, .timeout = DEADLINE_S};
    slot_t slot = {0};
    char note[512];

    (void)arg;
    sit_down(&slot, env, listen_fd, &c);
    local_expect_fails(xm_collective_open("nccl", &slot.job, &slot.library, note, sizeof(note)),
                       XM_ERR_UNSUPPORTED, "no ");
    local_expect_ok(xm_collective_open("auto", &slot.job, &slot.library, note, sizeof(note)));
    local_expect(slot.library == NULL &&
                     strncmp(note, "collectives were not measured: ", 31) == 0 &&
                     strstr(note, "; ") != NULL,
                 "'%s'", note);
    local_expect_ok(xm_collective_open("none", &slot.job, &slot.library, note, sizeof(note)));
    local_expect(slot.library == NULL && note[0] == '\0', "'%s'", note);
    local_expect_fails(xm_collective_open("ncl", &slot.job, &slot.library, note, sizeof(note)),
                       XM_ERR_INVALID_ARGUMENT, "nccl");
    xm_worker_destroy(slot.worker, NULL);
    return 0;
}

START_TEST(test_absent)
{
    (void)unsetenv("OMPI_COMM_WORLD_SIZE");
    (void)unsetenv("PMI_SIZE");
    (void)unsetenv("PMIX_RANK");
    local_job_run(2, 2 * DEADLINE_S, do_without, NULL);
}
END_TEST

START_TEST(test_real)
{
    run((case_t){.ranks = 2, .per_host = 2, .expected = XM_OK});
}
END_TEST

/* The case with the real libraries needs two devices, and that without libraries a machine that
 * lacks one. */
static bool is_out_of_place(void)
{
    const char *chosen = getenv("CK_RUN_CASE");
    int devices = cuda_devices();

    if (chosen != NULL && strcmp(chosen, "real") == 0 && (devices < 2 || !is_nccl_there())) {
        (void)printf("two CUDA devices and NCCL are needed: %d devices, %s\n", devices,
                     is_nccl_there() ? "NCCL" : xm_last_error());
        return true;
    }
    if (chosen != NULL && strcmp(chosen, "absent") == 0 && devices > 0 && is_nccl_there()) {
        (void)printf("this machine has NCCL and a device\n");
        return true;
    }
    return false;
}

int main(void)
{
    Suite *suite;
    TCase *nccl, *fault, *wait, *absent, *real;

    if (is_out_of_place()) {
        return CUDA_SKIPPED;
    }
    suite = suite_create("collective_nccl");
    nccl = tcase_create("nccl");
    fault = tcase_create("fault");
    wait = tcase_create("wait");
    absent = tcase_create("absent");
    real = tcase_create("real");
    tcase_set_timeout(nccl, 3 * DEADLINE_S);
    tcase_add_test(nccl, test_axes);
    tcase_add_test(nccl, test_one_host);
    suite_add_tcase(suite, nccl);
    tcase_set_timeout(fault, 3 * DEADLINE_S);
    tcase_add_loop_test(fault, test_failure, 0, (int)(sizeof(failures) / sizeof(failures[0])));
    suite_add_tcase(suite, fault);
    tcase_set_timeout(wait, 3 * DEADLINE_S);
    tcase_add_loop_test(wait, test_wait, 0, (int)(sizeof(waits) / sizeof(waits[0])));
    suite_add_tcase(suite, wait);
    tcase_set_timeout(absent, 3 * DEADLINE_S);
    tcase_add_test(absent, test_absent);
    suite_add_tcase(suite, absent);
    tcase_set_timeout(real, 3 * DEADLINE_S);
    tcase_add_test(real, test_real);
    suite_add_tcase(suite, real);
    return xm_test_run(suite);
}
