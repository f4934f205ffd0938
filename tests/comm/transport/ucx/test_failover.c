/* SPDX-License-Identifier: Apache-2.0 */
/* Two ranks over two rails, which are two connections over the loopback interface; one of them is
 * cut, or swallows what it gets, while messages of all sizes go both ways; and comes back. */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "comm/base/random.h"
#include "comm/transport/ucx/ucx.h"
#include "tests/comm/transport/ucx/lane_strike.h"
#include "tests/comm/job/local_job.h"
#include "xm_test.h"

enum { JOB_LIMIT_S = 60, MESSAGES = 24, LARGEST = 1200007, LANES = LANE_STRIKE_LANES };
static const double wait_limit_s = 20.0;

/* Short ones, and some that are announced. */
static const size_t sizes[] = {1,      700,   19000,  20479,   20480,  70001,
                               262144, 65537, 524288, 1000003, 300000, LARGEST};

typedef enum { NOTHING, RESET, SWALLOW, SWALLOW_FOR_A_WHILE, ALL_RESET, PAUSE } fault_t;

typedef struct {
    fault_t fault;
    int step;  /* messages that have ended when it happens */
    bool told; /* somebody else reports deaths: UCX's error handling is off */
    bool two;  /* messages only, of two segments each */
    bool back; /* the rail comes back, and carries all when the other one is cut */
} plan_t;

static const size_t two_segments = 34u << 20; /* 64 chunks of 512 KiB, and some more */

static bool is_reset(const plan_t *plan)
{
    return plan->fault == RESET || plan->fault == ALL_RESET;
}

/* With silent rails. Where a checker slows everything down, a little more. */
static double rail_timeout(void)
{
    return local_timeout(1.0) > 1.0 ? 1.0 : 0.5;
}

static uint8_t pattern(size_t i, uint64_t seed)
{
    uint64_t x = xm_hash_spread(i + 1) + seed * UINT64_C(0xbf58476d1ce4e5b9);

    return (uint8_t)(x >> 56);
}

static bool only_two;

static int messages(void)
{
    return only_two ? 2 : MESSAGES;
}

static size_t size_of(int message)
{
    return only_two ? two_segments : sizes[(size_t)message % (sizeof(sizes) / sizeof(sizes[0]))];
}

typedef struct {
    xm_op_t op;
    bool busy;
    xm_status_t status;
    uint8_t *bytes;
} request_t;

static int ended; /* receives of this rank */

static void on_done(xm_op_t *op, xm_status_t status)
{
    request_t *request = op->arg;

    local_expect(request->busy, "an operation ended twice");
    request->busy = false;
    request->status = status;
    ++ended;
}

static void post(xm_transport_t *transport, request_t *request, int message, bool send)
{
    int peer = 1 - transport->rank;
    uint64_t tag = (uint64_t)message % 5; /* messages of one tag keep their order */
    xm_status_t status;

    request->op.done = on_done;
    request->op.arg = request;
    request->busy = true;
    status = send ? xm_transport_send(transport, peer, tag, request->bytes, size_of(message), NULL,
                                      &request->op)
                  : xm_transport_receive(transport, peer, tag, request->bytes, size_of(message),
                                         NULL, &request->op);
    if (status != XM_IN_PROGRESS) {
        on_done(&request->op, status);
    }
}

static void step(xm_transport_t *transport)
{
    struct pollfd entry = {.fd = xm_transport_event_fd(transport), .events = POLLIN};

    if (xm_transport_progress(transport) == 0 && xm_transport_arm(transport) == XM_OK) {
        (void)poll(&entry, 1, 1000);
    }
}

static void barrier(xm_transport_t *transport, xm_bootstrap_t *bootstrap)
{
    double deadline = local_now() + local_timeout(wait_limit_s);
    xm_status_t status;

    local_expect_ok(xm_bootstrap_allgather_post(bootstrap, NULL, NULL, 0));
    while ((status = xm_bootstrap_allgather_test(bootstrap)) == XM_IN_PROGRESS) {
        local_expect(local_now() < deadline, "barrier did not end");
        (void)xm_transport_progress(transport);
        local_sleep(0.0005);
    }
    local_expect(status == XM_OK, "barrier: %s", xm_last_error());
}

static xm_transport_t *open_transport(xm_bootstrap_t *bootstrap, const plan_t *plan)
{
    xm_transport_ucx_params_t params = XM_TRANSPORT_UCX_PARAMS_INIT;
    int machine[] = {0, 1};
    xm_transport_t *transport;

    local_expect(setenv("UCX_TLS", "tcp", 1) == 0, "setenv");
    params.host = params.machine = machine;
    params.timeout = wait_limit_s;
    params.nics = "lo,lo";
    params.fault_channel = plan->told;
    params.rail_timeout = rail_timeout();
    lane_strike_begin();
    local_expect_ok(xm_transport_ucx_create(bootstrap, &params, &transport));
    return transport;
}

/* One round: all messages both ways, the receives a few messages ahead; the fault after so many
 * have come. Every byte is looked at. */
static void exchange(xm_transport_t *transport, const plan_t *plan, int round, request_t *sends,
                     request_t *receives)
{
    enum { AHEAD = 6 };
    double deadline = local_now() + local_timeout(wait_limit_s);
    int rank = transport->rank, posted = 0, done = 0;
    bool struck = plan->fault == NOTHING || round != 1 || rank == 0;

    for (int i = 0; i < messages(); ++i) {
        uint64_t seed = (uint64_t)(1000 * round + 500 * rank + i);

        for (size_t byte = 0; byte < size_of(i); ++byte) {
            sends[i].bytes[byte] = pattern(byte, seed);
        }
        memset(receives[i].bytes, 0, size_of(i));
    }
    while (done < messages() || !struck) {
        local_expect(local_now() < deadline, "rank %d, round %d: %d of %d messages have ended",
                     rank, round, done, messages());
        while (posted < messages() && posted < done + AHEAD) {
            post(transport, &receives[posted], posted, false);
            post(transport, &sends[posted], posted, true);
            ++posted;
        }
        while (done < posted && !receives[done].busy && !sends[done].busy) {
            ++done;
        }
        if (!struck && done >= plan->step) {
            struck = true;
            if (plan->fault == PAUSE) {
                local_sleep(3.0 * rail_timeout()); /* a rank that computes answers on no rail */
                continue;
            }
            for (int lane = plan->fault == ALL_RESET ? 0 : 1; lane < LANES; ++lane) {
                local_expect(lane_strike(rank, lane, is_reset(plan) ? lane_cut : lane_swallow) > 0,
                             "no connection of lane %d to strike", lane);
            }
        }
        if (done < messages()) {
            step(transport);
        }
    }
}

static void check(const request_t *sends, const request_t *receives, int rank, int round)
{
    for (int i = 0; i < messages(); ++i) {
        uint64_t seed = (uint64_t)(1000 * round + 500 * (1 - rank) + i);

        local_expect(sends[i].status == XM_OK && receives[i].status == XM_OK,
                     "message %d: %s, %s (%s)", i, xm_status_string(sends[i].status),
                     xm_status_string(receives[i].status), xm_last_error());
        for (size_t byte = 0; byte < size_of(i); ++byte) {
            local_expect(receives[i].bytes[byte] == pattern(byte, seed),
                         "round %d, message %d: byte %zu of %zu is wrong", round, i, byte,
                         size_of(i));
        }
    }
}

/* What this rank has logged must be a warning for each loss, or nothing. */
static int lines_of(const char *text)
{
    int count = 0;

    for (; *text != '\0'; ++text) {
        count += *text == '\n';
    }
    return count;
}

static void check_log(const char *path, const plan_t *plan, int rank)
{
    static char text[65536];
    char expected[64];
    FILE *file = fopen(path, "r");
    unsigned long long moved = 0;
    size_t length;
    char *at;

    local_expect(file != NULL, "no log");
    length = fread(text, 1, sizeof(text) - 1, file);
    text[length] = '\0';
    (void)fclose(file);
    (void)unlink(path);
    if (plan->fault == NOTHING || plan->fault == ALL_RESET || plan->fault == PAUSE) {
        local_expect(length == 0, "rank %d logged '%s'", rank, text);
        return;
    }
    (void)snprintf(expected, sizeof(expected), "rank %d: NIC lo towards rank %d is lost (", rank,
                   1 - rank);
    at = strstr(text, expected);
    local_expect(at != NULL, "rank %d logged '%s'", rank, text);
    local_expect(lines_of(text) == (plan->back ? 2 : 1), "rank %d logged '%s'", rank, text);
    local_expect(!plan->back || strstr(at + 1, expected) != NULL, "rank %d logged '%s'", rank,
                 text);
    at = strstr(at, "): ");
    local_expect(at != NULL && sscanf(at, "): %llu fragments", &moved) == 1, "'%s'", text);
    for (at = text; (at = strstr(at, " WARN ")) != NULL; ++at) {
        (void)printf("  %.*s\n", (int)strcspn(at, "\n") - 6, at + 6);
    }
    (void)fflush(stdout);
}

/* The rail that was lost is tried, and used again by both ranks; then the other one is cut. */
static void come_back(xm_transport_t *transport, xm_bootstrap_t *bootstrap, request_t *sends,
                      request_t *receives)
{
    double started = local_now(), deadline = started + local_timeout(wait_limit_s);
    const plan_t more = {.fault = NOTHING};
    char lanes[128] = "";

    while (strstr(lanes, " + ") == NULL) {
        local_expect(local_now() < deadline, "rank %d: the rail does not come back: %s",
                     transport->rank, lanes);
        (void)xm_transport_progress(transport);
        local_sleep(0.0005);
        local_expect_ok(
            xm_transport_ucx_lanes(transport, 1 - transport->rank, lanes, sizeof(lanes)));
    }
    (void)printf("  back after %.2f s\n", local_now() - started);
    barrier(transport, bootstrap);
    if (transport->rank == 1) {
        local_expect(lane_strike(1, 0, lane_cut) > 0, "no connection of lane 0 to strike");
    }
    exchange(transport, &more, 3, sends, receives);
    barrier(transport, bootstrap);
    check(sends, receives, transport->rank, 3);
    barrier(transport, bootstrap);
}

static int play(const xm_job_env_t *env, int listen_fd, void *arg)
{
    const plan_t *plan = arg;
    request_t sends[MESSAGES] = {0}, receives[MESSAGES] = {0};
    char path[] = "/tmp/xm_failover_XXXXXX";
    int log = mkstemp(path);
    xm_bootstrap_t *bootstrap;
    xm_transport_t *transport;

    local_expect(log >= 0 && setenv("XM_LOG_FILE", path, 1) == 0, "log");
    (void)close(log);
    local_expect_ok(xm_bootstrap_create_tcp(env, listen_fd, wait_limit_s, &bootstrap));
    transport = open_transport(bootstrap, plan);
    lane_strike_learn(bootstrap, wait_limit_s);
    only_two = plan->two;
    for (int i = 0; i < messages(); ++i) {
        sends[i].bytes = malloc(only_two ? two_segments : LARGEST);
        receives[i].bytes = malloc(only_two ? two_segments : LARGEST);
        local_expect(sends[i].bytes != NULL && receives[i].bytes != NULL, "no memory");
    }
    for (int round = 0; round < 3; ++round) {
        exchange(transport, plan, round, sends, receives);
        if (plan->fault == ALL_RESET && round == 1) {
            break;
        }
        if (round == 2 && plan->fault == SWALLOW_FOR_A_WHILE && env->rank == 1) {
            /* What was swallowed comes again, late: into buffers that have new contents. */
            local_expect(lane_strike(1, 1, lane_let_through) > 0, "no connection to release");
        }
        barrier(transport, bootstrap);
        for (int i = 0; i < 100; ++i) {
            (void)xm_transport_progress(transport);
            local_sleep(plan->fault == SWALLOW_FOR_A_WHILE && round == 2 ? 0.01 : 0.0);
        }
        check(sends, receives, env->rank, round);
        barrier(transport, bootstrap);
    }
    if (plan->back) {
        come_back(transport, bootstrap, sends, receives);
    }
    if (plan->fault == ALL_RESET) {
        local_expect(receives[messages() - 1].status == XM_ERR_PEER_DIED, "%s",
                     xm_status_string(receives[messages() - 1].status));
        local_expect(strstr(xm_last_error(), "rank ") != NULL, "'%s'", xm_last_error());
    }
    xm_transport_destroy(transport);
    check_log(path, plan, env->rank);
    xm_bootstrap_destroy(bootstrap);
    for (int i = 0; i < messages(); ++i) {
        free(sends[i].bytes);
        free(receives[i].bytes);
    }
    return 0;
}

static const plan_t plans[] = {
    {NOTHING, 0, true, false, false},
    {RESET, 0, true, false, false},
    {RESET, 5, true, false, false},
    {RESET, 11, true, false, false},
    {RESET, 11, false, false, false},
    {SWALLOW, 0, true, false, false},
    {SWALLOW, 11, true, false, false},
    {SWALLOW, 20, false, false, false},
    {SWALLOW_FOR_A_WHILE, 11, true, false, false},
    {SWALLOW_FOR_A_WHILE, 23, true, false, false},
    {ALL_RESET, 11, true, false, false},
    {PAUSE, 11, true, false, false},
    {NOTHING, 0, true, true, false},
    {RESET, 1, true, true, false},
    {RESET, 5, true, false, true},
    {RESET, 11, false, false, true},
    {SWALLOW_FOR_A_WHILE, 11, true, false, true},
    {SWALLOW_FOR_A_WHILE, 20, false, false, true},
};

START_TEST(messages_survive_a_rail)
{
    plan_t plan = plans[_i];
    double started = local_now();

    local_job_run(2, JOB_LIMIT_S, play, &plan);
    (void)printf("plan %d: %.2f s\n", _i, local_now() - started);
    (void)fflush(stdout);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("transport_ucx_failover");
    TCase *tcase = tcase_create("jobs");

    tcase_set_timeout(tcase, JOB_LIMIT_S + 10);
    tcase_add_loop_test(tcase, messages_survive_a_rail, 0, (int)(sizeof(plans) / sizeof(plans[0])));
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
