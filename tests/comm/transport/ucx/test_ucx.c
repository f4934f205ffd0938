/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/transport/ucx/ucx.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/comm/job/local_job.h"
#include "tests/comm/transport/conformance.h"
#include "xm_test.h"

enum { JOB_LIMIT_S = 90 };
static const double wait_limit_s = 40.0;

/*
 * How the ranks are placed: all on one host, each on an emulated one of its own, or (they are told)
 * each on a machine of its own, which UCX reaches over TCP here. Then with several NICs: the
 * loopback interface named twice, or lists that differ in length and rates; those with somebody
 * else who reports deaths; and the same where they do not stand in for each other. Last, where the
 * machine has them (tests/guest), over its two RDMA devices, told: each rank takes one of them, or
 * both.
 */
typedef enum {
    ONE_HOST,
    EMULATED_HOSTS,
    OTHER_MACHINES,
    TWO_NICS,
    UNLIKE_NICS,
    UNLIKE_NICS_TOLD,
    UNLIKE_NICS_ALONE,
    RDMA_DEVICE,
    RDMA_DEVICES
} placement_t;

static const char *const placement_names[] = {
    "one host",          "emulated hosts",     "other machines", "two NICs",    "unlike NICs",
    "unlike NICs, told", "unlike NICs, alone", "RDMA device",    "RDMA devices"};

/* The list of two devices that $RDMA_DEVICES is; rank by rank one of them, or all. */
static const char *rdma_devices_of(placement_t placement, int rank)
{
    const char *list = getenv("RDMA_DEVICES"), *second = strchr(list, ',');
    static char device[64];

    if (placement != RDMA_DEVICE) {
        return list;
    }
    (void)snprintf(device, sizeof(device), "%.*s", (int)strcspn(list, ","), list);
    return rank % 2 == 1 && second != NULL ? second + 1 : device;
}

/* Rails 0 and 1 join ranks 0 and 1 in the proportion 5 : 2; a third one joins ranks 1 and 2, too
 * slow to be used. */
static const char *nics_of(placement_t placement, int rank)
{
    if (placement < TWO_NICS) {
        return NULL;
    }
    if (placement >= RDMA_DEVICE) {
        return rdma_devices_of(placement, rank);
    }
    if (placement == TWO_NICS) {
        return "lo,lo";
    }
    return rank == 0 ? "lo=1000000000,lo=240000000" : "lo=600000000,lo=900000000,lo=1000";
}

/* Somebody else reports deaths. */
static bool is_told(placement_t placement)
{
    return placement >= UNLIKE_NICS_TOLD;
}

typedef struct {
    const conformance_case_t *which;
    placement_t placement;
} run_t;

static void barrier(conformance_slot_t *slot)
{
    xm_bootstrap_t *bootstrap = slot->arg;
    double deadline = local_now() + wait_limit_s;
    xm_status_t status;

    local_expect_ok(xm_bootstrap_allgather_post(bootstrap, NULL, NULL, 0));
    while ((status = xm_bootstrap_allgather_test(bootstrap)) == XM_IN_PROGRESS) {
        local_expect(local_now() < deadline, "barrier did not end");
        (void)xm_transport_progress(slot->transport);
        local_sleep(0.0005);
    }
    local_expect(status == XM_OK, "barrier: %s", xm_last_error());
}

static void ignore(xm_op_t *op, xm_status_t status)
{
    (void)op;
    (void)status;
}

static void die(conformance_slot_t *slot)
{
    (void)slot;
    (void)raise(SIGKILL);
}

static xm_counters_t *counters; /* of the transports that are opened; NULL: none */

static xm_transport_t *open_transport(xm_bootstrap_t *bootstrap, placement_t placement, bool spin)
{
    xm_transport_ucx_params_t params = XM_TRANSPORT_UCX_PARAMS_INIT;
    int host[LOCAL_JOB_MAX], machine[LOCAL_JOB_MAX] = {0};
    xm_transport_t *transport;

    for (int rank = 0; rank < LOCAL_JOB_MAX; ++rank) {
        host[rank] = placement == ONE_HOST ? 0 : rank;
        machine[rank] = placement >= OTHER_MACHINES ? rank : 0;
    }
    if (placement >= OTHER_MACHINES) {
        const char *tls = placement < RDMA_DEVICE ? "tcp" : "rc_verbs,ud_verbs";

        local_expect(setenv("UCX_TLS", tls, 1) == 0, "setenv");
    }
    params.host = host;
    params.machine = machine;
    params.spin = spin;
    params.timeout = wait_limit_s;
    params.nics = nics_of(placement, xm_bootstrap_rank(bootstrap));
    params.fault_channel = is_told(placement);
    params.counters = counters;
    params.failover = placement != UNLIKE_NICS_ALONE;
    local_expect_ok(xm_transport_ucx_create(bootstrap, &params, &transport));
    return transport;
}

/* Between several NICs nothing is sent that nobody takes: receives
 * that were cancelled, or are of another length. */
static bool carries_all(const run_t *run)
{
    return run->placement < TWO_NICS || run->placement == RDMA_DEVICE ||
           (strcmp(run->which->name, "length mismatch") != 0 &&
            /* Nobody connects any more to a rank that has left or died. */
            strcmp(run->which->name, "destroy in flight") != 0 &&
            strcmp(run->which->name, "death told, sending") != 0 &&
            strncmp(run->which->name, "cancel", strlen("cancel")) != 0);
}

static int run_case(const xm_job_env_t *env, int listen_fd, void *arg)
{
    const run_t *run = arg;
    xm_bootstrap_t *bootstrap;
    conformance_slot_t slot = {.barrier = barrier, .die = die, .limit = wait_limit_s};

    local_expect_ok(xm_bootstrap_create_tcp(env, listen_fd, wait_limit_s, &bootstrap));
    slot.arg = bootstrap;
    local_expect_ok(xm_counters_create(env->size, &counters));
    slot.transport = open_transport(bootstrap, run->placement, false);
    run->which->run(&slot);
    if (run->which->doomed == 0) {
        barrier(&slot);
    }
    xm_transport_destroy(slot.transport);
    conformance_check_counters(counters, carries_all(run));
    xm_counters_destroy(counters);
    xm_bootstrap_destroy(bootstrap);
    return 0;
}

static void conform(int index, placement_t placement)
{
    run_t run = {.which = &conformance_cases[index], .placement = placement};
    local_job_t job;
    double started = local_now();

    if (run.which->needs_detection && (placement < OTHER_MACHINES || is_told(placement))) {
        return; /* UCX's error handling is off; test_worker shows the fault channel instead */
    }
    local_job_start(&job, run.which->ranks, 0, JOB_LIMIT_S, run_case, &run);
    local_job_wait(&job, run.which->doomed);
    (void)printf("%-26s %-18s %.2f s\n", run.which->name, placement_names[placement],
                 local_now() - started);
    (void)fflush(stdout);
}

START_TEST(conforms_on_one_host)
{
    conform(_i, ONE_HOST);
}
END_TEST

START_TEST(conforms_between_emulated_hosts)
{
    conform(_i, EMULATED_HOSTS);
}
END_TEST

START_TEST(conforms_between_machines)
{
    conform(_i, OTHER_MACHINES);
}
END_TEST

START_TEST(conforms_over_two_nics)
{
    conform(_i, TWO_NICS);
}
END_TEST

START_TEST(conforms_over_unlike_nics)
{
    conform(_i, UNLIKE_NICS);
}
END_TEST

START_TEST(conforms_over_unlike_nics_told)
{
    conform(_i, UNLIKE_NICS_TOLD);
}
END_TEST

START_TEST(conforms_over_unlike_nics_alone)
{
    conform(_i, UNLIKE_NICS_ALONE);
}
END_TEST

START_TEST(conforms_over_an_rdma_device)
{
    conform(_i, RDMA_DEVICE);
}
END_TEST

/* Shared memory inside a host, TCP between emulated ones; and both in one job. */
static int look_at_lanes(const xm_job_env_t *env, int listen_fd, void *arg)
{
    placement_t placement = *(placement_t *)arg;
    int peer = 1 - env->rank, value = env->rank;
    xm_bootstrap_t *bootstrap;
    conformance_slot_t slot = {.barrier = barrier};
    char lanes[256];
    xm_op_t op = {.done = ignore};
    bool tcp;

    local_expect_ok(xm_bootstrap_create_tcp(env, listen_fd, wait_limit_s, &bootstrap));
    slot.arg = bootstrap;
    slot.transport = open_transport(bootstrap, placement, false);
    (void)xm_transport_send(slot.transport, peer, 1, &value, sizeof(value), NULL, &op);
    for (int i = 0; i < 100; ++i) {
        (void)xm_transport_progress(slot.transport);
        local_sleep(0.001);
    }
    local_expect_ok(xm_transport_ucx_lanes(slot.transport, peer, lanes, sizeof(lanes)));
    tcp = strstr(lanes, "tcp/") != NULL;
    local_expect(tcp == (placement != ONE_HOST), "lanes are '%s'", lanes);
    local_expect(placement < TWO_NICS || strcmp(lanes, "tcp/lo + tcp/lo") == 0, "lanes are '%s'",
                 lanes);
    local_expect(placement != EMULATED_HOSTS || strcmp(lanes, "tcp/lo") == 0, "lanes are '%s'",
                 lanes);
    local_expect(tcp || strstr(lanes, "sysv") != NULL || strstr(lanes, "posix") != NULL,
                 "lanes are '%s'", lanes);
    local_expect(placement == ONE_HOST || strstr(lanes, "memory") == NULL, "lanes are '%s'", lanes);
    local_expect_fails(xm_transport_ucx_lanes(slot.transport, env->rank, lanes, sizeof(lanes)),
                       XM_ERR_INVALID_ARGUMENT, "no UCX peer");
    barrier(&slot);
    xm_transport_destroy(slot.transport);
    xm_bootstrap_destroy(bootstrap);
    return 0;
}

START_TEST(lanes_differ)
{
    placement_t placement = (placement_t)_i;

    local_job_run(2, JOB_LIMIT_S, look_at_lanes, &placement);
}
END_TEST

/* Lists of NICs that are refused, by rank 1 alone. */
static const struct {
    const char *nics;
    xm_status_t status;
    const char *sentence;
} refused[] = {
    {"lo,nosuch0", XM_ERR_NOT_FOUND, "rank 1: XM_NICS: no network device 'nosuch0'"},
    {"lo;lo", XM_ERR_NOT_FOUND, "no network device 'lo;lo'"},
    {"lo=fast", XM_ERR_PARSE, "rank 1: XM_NICS: rate of lo: 'fast'"},
    {"lo", XM_ERR_UNREACHABLE, "rank 1: XM_NICS: UCX cannot use the device 'lo'"},
};

static int refuse(const xm_job_env_t *env, int listen_fd, void *arg)
{
    int index = *(const int *)arg, machine[] = {0, 1};
    xm_transport_ucx_params_t params = XM_TRANSPORT_UCX_PARAMS_INIT;
    xm_bootstrap_t *bootstrap;
    xm_transport_t *transport;

    local_expect_ok(xm_bootstrap_create_tcp(env, listen_fd, wait_limit_s, &bootstrap));
    params.host = params.machine = machine;
    params.timeout = wait_limit_s;
    if (env->rank == 1) {
        /* Without TCP UCX has no use for the interface. */
        local_expect(setenv("UCX_TLS", index == 3 ? "self,sm" : "tcp", 1) == 0, "setenv");
        params.nics = refused[index].nics;
        local_expect_fails(xm_transport_ucx_create(bootstrap, &params, &transport),
                           refused[index].status, refused[index].sentence);
        xm_bootstrap_abort(bootstrap, xm_last_error());
    } else {
        local_expect_fails(xm_transport_ucx_create(bootstrap, &params, &transport), XM_ERR_CANCELED,
                           refused[index].sentence);
    }
    xm_bootstrap_destroy(bootstrap);
    return 0;
}

START_TEST(unusable_nics_are_refused)
{
    local_job_run(2, JOB_LIMIT_S, refuse, &_i);
}
END_TEST

/* Spinning transports have nothing to sleep on, and work. */
static int spin(const xm_job_env_t *env, int listen_fd, void *arg)
{
    xm_bootstrap_t *bootstrap;
    conformance_slot_t slot = {.barrier = barrier, .limit = wait_limit_s};

    (void)arg;
    local_expect_ok(xm_bootstrap_create_tcp(env, listen_fd, wait_limit_s, &bootstrap));
    slot.arg = bootstrap;
    slot.transport = open_transport(bootstrap, ONE_HOST, true);
    local_expect(xm_transport_event_fd(slot.transport) == -1, "a descriptor");
    local_expect(xm_transport_arm(slot.transport) == XM_IN_PROGRESS, "allowed to sleep");
    conformance_cases[0].run(&slot);
    barrier(&slot);
    xm_transport_destroy(slot.transport);
    xm_bootstrap_destroy(bootstrap);
    return 0;
}

START_TEST(spinning_works)
{
    local_job_run(2, JOB_LIMIT_S, spin, NULL);
}
END_TEST

/* Ranks of a host for which UCX_TLS leaves TCP alone: what holds between hosts holds there. */
static int without_shared_memory(const xm_job_env_t *env, int listen_fd, void *arg)
{
    local_expect(setenv("UCX_TLS", "tcp", 1) == 0, "setenv");
    return run_case(env, listen_fd, arg);
}

static const char *const over_tcp[] = {"sizes", "large in flight", "large wait"};

START_TEST(tcp_works_within_a_host)
{
    run_t run = {.placement = ONE_HOST};

    for (int i = 0; i < conformance_case_count; ++i) {
        if (strcmp(conformance_cases[i].name, over_tcp[_i]) == 0) {
            run.which = &conformance_cases[i];
        }
    }
    ck_assert_ptr_nonnull(run.which);
    local_job_run(run.which->ranks, JOB_LIMIT_S, without_shared_memory, &run);
}
END_TEST

/* Rank 0 sends, a few messages at once, and then computes for seconds without looking at its
 * transport: rank 1 has them long before. Sockets hold less than a segment of UCX's, so that it
 * cannot give all to the kernel at once, but more than the short messages: of those that a full
 * socket cuts the rest does wait (with 16 KiB a socket, of the third of 15,000 bytes). */
enum { AT_ONCE = 3, COMPUTES_S = 4 };

typedef struct {
    xm_op_t op;
    xm_status_t status;
    uint8_t *bytes;
} letter_t;

static void on_letter(xm_op_t *op, xm_status_t status)
{
    ((letter_t *)op->arg)->status = status;
}

static void carry(xm_transport_t *transport, size_t length)
{
    double began = local_now(), limit = local_timeout(COMPUTES_S / 2.0);
    letter_t letters[AT_ONCE] = {0};
    bool sends = transport->rank == 0;

    for (int i = 0; i < AT_ONCE; ++i) {
        letter_t *letter = &letters[i];
        uint64_t tag = length * AT_ONCE + (unsigned)i;

        letter->op.done = on_letter;
        letter->op.arg = letter;
        letter->bytes = malloc(length);
        local_expect(letter->bytes != NULL, "no memory");
        for (size_t b = 0; b < length; ++b) {
            letter->bytes[b] = sends ? (uint8_t)(b * 7 + b / 251 + (size_t)i) : 0;
        }
        letter->status =
            sends
                ? xm_transport_send(transport, 1, tag, letter->bytes, length, NULL, &letter->op)
                : xm_transport_receive(transport, 0, tag, letter->bytes, length, NULL, &letter->op);
    }
    for (int i = 0; i < AT_ONCE; ++i) {
        while (letters[i].status == XM_IN_PROGRESS) {
            (void)xm_transport_progress(transport);
            local_expect(local_now() < began + limit,
                         "rank %d: message %d of %zu bytes is not over", transport->rank, i,
                         length);
        }
        local_expect(letters[i].status == XM_OK, "message %d: %s", i, xm_last_error());
        for (size_t b = 0; b < length; ++b) {
            local_expect(letters[i].bytes[b] == (uint8_t)(b * 7 + b / 251 + (size_t)i),
                         "byte %zu of %zu", b, length);
        }
        free(letters[i].bytes);
    }
    if (sends) {
        local_sleep(local_timeout(COMPUTES_S));
    }
}

static int compute_after_sending(const xm_job_env_t *env, int listen_fd, void *arg)
{
    static const size_t lengths[] = {100, 15000, 300000, 1 << 20, 5000000};
    xm_bootstrap_t *bootstrap;
    conformance_slot_t slot = {.barrier = barrier, .limit = wait_limit_s};

    local_expect(setenv("UCX_TCP_SNDBUF", "256k", 1) == 0, "setenv");
    local_expect(setenv("UCX_TCP_RCVBUF", "256k", 1) == 0, "setenv");
    local_expect_ok(xm_bootstrap_create_tcp(env, listen_fd, wait_limit_s, &bootstrap));
    slot.arg = bootstrap;
    slot.transport = open_transport(bootstrap, *(placement_t *)arg, false);
    conformance_cases[0].run(&slot);
    for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); ++i) {
        barrier(&slot);
        carry(slot.transport, lengths[i]);
    }
    barrier(&slot);
    xm_transport_destroy(slot.transport);
    xm_bootstrap_destroy(bootstrap);
    return 0;
}

START_TEST(what_was_sent_has_left)
{
    static const placement_t placements[] = {EMULATED_HOSTS, OTHER_MACHINES, TWO_NICS};
    placement_t placement = placements[_i];

    local_job_run(2, JOB_LIMIT_S, compute_after_sending, &placement);
}
END_TEST

/* Registrations that were forgotten do not abort the process, and one rank alone is a job. */
static int forget(const xm_job_env_t *env, int listen_fd, void *arg)
{
    static char bytes[100000];
    xm_bootstrap_t *bootstrap;
    xm_transport_t *transport;
    xm_memory_t *memory;

    (void)arg;
    local_expect_ok(xm_bootstrap_create_tcp(env, listen_fd, wait_limit_s, &bootstrap));
    transport = open_transport(bootstrap, ONE_HOST, false);
    local_expect_ok(xm_transport_memory_register(transport, bytes, sizeof(bytes), &memory));
    local_expect_ok(xm_transport_memory_register(transport, bytes, 10, &memory));
    local_expect(xm_transport_now(transport) > 0, "no clock");
    xm_transport_destroy(transport);
    xm_transport_destroy(NULL);
    xm_bootstrap_destroy(bootstrap);
    return 0;
}

START_TEST(forgotten_registrations)
{
    local_job_run(1, JOB_LIMIT_S, forget, NULL);
}
END_TEST

/* The bytes did take the devices. */
static int look_at_rdma_lanes(const xm_job_env_t *env, int listen_fd, void *arg)
{
    xm_bootstrap_t *bootstrap;
    conformance_slot_t slot = {.barrier = barrier};
    char lanes[256];

    (void)arg;
    local_expect_ok(xm_bootstrap_create_tcp(env, listen_fd, wait_limit_s, &bootstrap));
    slot.arg = bootstrap;
    slot.transport = open_transport(bootstrap, RDMA_DEVICES, false);
    local_expect_ok(xm_transport_ucx_lanes(slot.transport, 1 - env->rank, lanes, sizeof(lanes)));
    /* There may be one of ud_verbs on each as well, which sets the connection up. */
    local_expect(strstr(lanes, "rc_verbs/rxe0:1") != NULL, "lanes are '%s'", lanes);
    local_expect(strstr(lanes, " + rc_verbs/rxe1:1") != NULL, "lanes are '%s'", lanes);
    local_expect(strstr(lanes, "tcp") == NULL && strstr(lanes, "memory") == NULL, "lanes are '%s'",
                 lanes);
    barrier(&slot);
    xm_transport_destroy(slot.transport);
    xm_bootstrap_destroy(bootstrap);
    return 0;
}

START_TEST(lanes_are_rdma)
{
    local_job_run(2, JOB_LIMIT_S, look_at_rdma_lanes, NULL);
}
END_TEST

static TCase *make_rdma_case(void)
{
    TCase *tcase = tcase_create("rdma");

    tcase_set_timeout(tcase, JOB_LIMIT_S + 10);
    tcase_add_test(tcase, lanes_are_rdma);
    tcase_add_loop_test(tcase, conforms_over_an_rdma_device, 0, conformance_case_count);
    return tcase;
}

/* The cases from `first` to `end` in all placements. */
static TCase *make_cases(const char *name, int first, int end)
{
    TCase *tcase = tcase_create(name);

    tcase_set_timeout(tcase, JOB_LIMIT_S + 10);
    tcase_add_loop_test(tcase, conforms_on_one_host, first, end);
    tcase_add_loop_test(tcase, conforms_between_emulated_hosts, first, end);
    tcase_add_loop_test(tcase, conforms_between_machines, first, end);
    tcase_add_loop_test(tcase, conforms_over_two_nics, first, end);
    tcase_add_loop_test(tcase, conforms_over_unlike_nics, first, end);
    tcase_add_loop_test(tcase, conforms_over_unlike_nics_told, first, end);
    tcase_add_loop_test(tcase, conforms_over_unlike_nics_alone, first, end);
    return tcase;
}

/* Those with deaths are a case of their own: a survivor may be about to connect to the rank that
 * dies, which UCX reports as an error. */
int main(void)
{
    Suite *suite = suite_create("transport_ucx");
    int deaths = 0;
    TCase *tcase;

    while (deaths < conformance_case_count && conformance_cases[deaths].doomed == 0) {
        ++deaths;
    }
    suite_add_tcase(suite, make_cases("deaths", deaths, conformance_case_count));
    tcase = make_cases("jobs", 0, deaths);
    tcase_add_loop_test(tcase, unusable_nics_are_refused, 0,
                        (int)(sizeof(refused) / sizeof(refused[0])));
    tcase_add_loop_test(tcase, lanes_differ, 0, RDMA_DEVICE);
    tcase_add_test(tcase, spinning_works);
    tcase_add_loop_test(tcase, tcp_works_within_a_host, 0,
                        (int)(sizeof(over_tcp) / sizeof(over_tcp[0])));
    tcase_add_loop_test(tcase, what_was_sent_has_left, 0, 3);
    tcase_add_test(tcase, forgotten_registrations);
    suite_add_tcase(suite, tcase);
    if (getenv("RDMA_DEVICES") != NULL) {
        suite_add_tcase(suite, make_rdma_case());
    }
    return xm_test_run(suite);
}
