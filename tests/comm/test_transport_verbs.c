/* Needs RDMA devices: a virtual machine with Soft-RoCE has them (docs/transport-verbs.md). Without
 * one it is skipped, with status 77. */
#include "comm/transport_verbs.h"

#include <linux/capability.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "comm/transport_verbs_private.h"
#include "local_job.h"
#include "transport_conformance.h"
#include "xm_test.h"

enum { JOB_LIMIT_S = 60, SKIP = 77, MIB = 1 << 20 };
static const double wait_limit_s = 30.0;

/*
 * Which ports the ranks have: all the same one; the even ones one, the odd ones another, so that
 * what they say crosses the wire; two each, in opposite order; or two unlike ones, of which the
 * even ones use one.
 */
typedef enum { ONE_PORT, ACROSS, TWO_RAILS, UNLIKE_RAILS, PLACEMENTS } placement_t;

static const char *const placement_names[] = {"one port", "across", "two rails", "unlike rails"};

/* Names of the first two devices; twice the same where there is only one. */
static char devices[2][32];

static int find_devices(void)
{
    int count = 0;
    struct ibv_device **list = ibv_get_device_list(&count);

    for (int i = 0; i < 2 && count > 0; ++i) {
        (void)snprintf(devices[i], sizeof(devices[i]), "%s",
                       ibv_get_device_name(list[i < count ? i : 0]));
    }
    if (list != NULL) {
        ibv_free_device_list(list);
    }
    return count;
}

static void nics_of(placement_t placement, int rank, char *text, size_t size)
{
    const char *near = devices[rank % 2], *far = devices[1 - rank % 2];

    switch (placement) {
    case ONE_PORT:
        (void)snprintf(text, size, "%s", devices[0]);
        break;
    case ACROSS:
        (void)snprintf(text, size, "%s:1", near);
        break;
    case TWO_RAILS:
        (void)snprintf(text, size, "%s:1,%s:1", near, far);
        break;
    default:
        (void)snprintf(text, size, "%s:1=1000000000,%s:1=250000000%s%s", near, far,
                       rank % 2 == 1 ? "," : "", rank % 2 == 1 ? far : "");
    }
}

static void barrier(conformance_seat_t *seat)
{
    xm_bootstrap_t *bootstrap = seat->arg;
    double deadline = local_now() + local_patience(wait_limit_s);
    xm_status_t status;

    local_expect_ok(xm_bootstrap_allgather_post(bootstrap, NULL, NULL, 0));
    while ((status = xm_bootstrap_allgather_test(bootstrap)) == XM_IN_PROGRESS) {
        local_expect(local_now() < deadline, "barrier did not end");
        (void)xm_transport_progress(seat->transport);
        local_sleep(0.0005);
    }
    local_expect(status == XM_OK, "barrier: %s", xm_last_error());
}

static void die(conformance_seat_t *seat)
{
    (void)seat;
    (void)raise(SIGKILL);
}

static void take_seat(const xm_job_env_t *env, int listen_fd, placement_t placement,
                      size_t longest_write, conformance_seat_t *seat)
{
    xm_transport_verbs_params_t params = XM_TRANSPORT_VERBS_PARAMS_INIT;
    xm_bootstrap_t *bootstrap;
    char nics[128];

    nics_of(placement, env->rank, nics, sizeof(nics));
    local_expect_ok(xm_bootstrap_create_tcp(env, listen_fd, wait_limit_s, &bootstrap));
    params.nics = nics;
    params.timeout = wait_limit_s;
    params.longest_write = longest_write;
    *seat = (conformance_seat_t){
        .barrier = barrier, .die = die, .arg = bootstrap, .limit = local_patience(wait_limit_s)};
    local_expect_ok(xm_transport_verbs_create(bootstrap, &params, &seat->transport));
}

static void leave(conformance_seat_t *seat)
{
    xm_transport_destroy(seat->transport);
    xm_bootstrap_destroy(seat->arg);
}

typedef struct {
    const conformance_case_t *which;
    placement_t placement;
} run_t;

static int run_case(const xm_job_env_t *env, int listen_fd, void *arg)
{
    const run_t *run = arg;
    conformance_seat_t seat;

    take_seat(env, listen_fd, run->placement, 0, &seat);
    run->which->run(&seat);
    if (run->which->doomed == 0) {
        barrier(&seat);
    }
    leave(&seat);
    return 0;
}

static void conform(int index, placement_t placement)
{
    run_t run = {.which = &conformance_cases[index], .placement = placement};
    local_job_t job;
    double started = local_now();

    local_job_start(&job, run.which->ranks, 0, JOB_LIMIT_S, run_case, &run);
    local_job_wait(&job, run.which->doomed);
    (void)printf("%-26s %-14s %.2f s\n", run.which->name, placement_names[placement],
                 local_now() - started);
    (void)fflush(stdout);
}

START_TEST(conforms_on_one_port)
{
    conform(_i, ONE_PORT);
}
END_TEST

START_TEST(conforms_across_the_wire)
{
    conform(_i, ACROSS);
}
END_TEST

START_TEST(conforms_over_two_rails)
{
    conform(_i, TWO_RAILS);
}
END_TEST

START_TEST(conforms_over_unlike_rails)
{
    conform(_i, UNLIKE_RAILS);
}
END_TEST

/* An operation and what became of it. */
typedef struct {
    xm_op_t op;
    bool posted, ended;
    xm_status_t status;
    char sentence[512];
} request_t;

static void on_done(xm_op_t *op, xm_status_t status)
{
    request_t *request = op->arg;

    local_expect(!request->ended, "an operation ended twice");
    request->ended = true;
    request->status = status;
    (void)snprintf(request->sentence, sizeof(request->sentence), "%s",
                   status < 0 ? xm_last_error() : "");
}

static void post(conformance_seat_t *seat, bool send, int peer, uint64_t tag, void *bytes,
                 size_t length, request_t *request)
{
    xm_status_t status;

    *request = (request_t){.op = {.done = on_done, .arg = request}, .posted = true};
    status =
        send ? xm_transport_send(seat->transport, peer, tag, bytes, length, NULL, &request->op)
             : xm_transport_receive(seat->transport, peer, tag, bytes, length, NULL, &request->op);
    if (status != XM_IN_PROGRESS) {
        on_done(&request->op, status);
    }
}

static void step(conformance_seat_t *seat)
{
    struct pollfd entry = {.fd = xm_transport_event_fd(seat->transport), .events = POLLIN};

    if (xm_transport_progress(seat->transport) == 0 && xm_transport_arm(seat->transport) == XM_OK) {
        (void)poll(&entry, 1, 20);
    }
}

static void wait_for(conformance_seat_t *seat, const request_t *requests, int count)
{
    double deadline = local_now() + seat->limit;

    for (int i = 0; i < count; ++i) {
        while (!requests[i].ended) {
            local_expect(local_now() < deadline, "rank %d: operation %d of %d did not end",
                         seat->transport->rank, i, count);
            step(seat);
        }
    }
}

static void finish(conformance_seat_t *seat, const request_t *requests, int count)
{
    wait_for(seat, requests, count);
    for (int i = 0; i < count; ++i) {
        local_expect(requests[i].status == XM_OK, "operation %d of %d: %s", i, count,
                     requests[i].sentence);
    }
}

static uint8_t pattern(size_t i, uint64_t seed)
{
    return (
        uint8_t)(((i + 1) * UINT64_C(0x9e3779b97f4a7c15) + seed * UINT64_C(0xbf58476d1ce4e5b9)) >>
                 56);
}

static void fill(uint8_t *bytes, size_t length, uint64_t seed)
{
    for (size_t i = 0; i < length; ++i) {
        bytes[i] = pattern(i, seed);
    }
}

static void check(const uint8_t *bytes, size_t length, uint64_t seed)
{
    for (size_t i = 0; i < length; ++i) {
        local_expect(bytes[i] == pattern(i, seed), "byte %zu of %zu of message %d is wrong", i,
                     length, (int)seed);
    }
}

static uint8_t *map(void *where, size_t length)
{
    void *bytes = mmap(where, length, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | (where != NULL ? MAP_FIXED : 0), -1, 0);

    local_expect(bytes != MAP_FAILED, "mmap");
    return bytes;
}

static long read_counter(const char *device, const char *name)
{
    char path[256];
    FILE *file;
    long value = 0;

    (void)snprintf(path, sizeof(path), "/sys/class/infiniband/%s/ports/1/hw_counters/%s", device,
                   name);
    file = fopen(path, "re");
    if (file != NULL) {
        local_expect(fscanf(file, "%ld", &value) == 1, "%s", path);
        (void)fclose(file);
    }
    return value;
}

static long counter(const char *name)
{
    return read_counter(devices[0], name) +
           (strcmp(devices[0], devices[1]) != 0 ? read_counter(devices[1], name) : 0);
}

/* Far more messages than slots, and than may be stored, while the receiver does not look; then
 * received last first. No packet ever finds its receiver without a slot. */
static int exhaust(const xm_job_env_t *env, int listen_fd, void *arg)
{
    enum { COUNT = XM_VERBS_UNMATCHED + 500, LENGTH = 333 };
    conformance_seat_t seat;
    request_t *requests = calloc(COUNT, sizeof(*requests));
    uint8_t *bytes = map(NULL, (size_t)COUNT * LENGTH);
    int peer = 1 - env->rank;

    take_seat(env, listen_fd, *(placement_t *)arg, 0, &seat);
    if (env->rank == 0) {
        fill(bytes, (size_t)COUNT * LENGTH, 4);
        for (int i = 0; i < COUNT; ++i) {
            post(&seat, true, peer, (uint64_t)i, bytes + (size_t)i * LENGTH, LENGTH, &requests[i]);
        }
        for (int i = 0; i < 20; ++i) {
            step(&seat);
        }
        local_expect(!requests[COUNT - 1].ended, "more was stored than is allowed");
    }
    barrier(&seat);
    for (int i = COUNT - 1; i >= 0 && env->rank == 1; --i) {
        post(&seat, false, peer, (uint64_t)i, bytes + (size_t)i * LENGTH, LENGTH, &requests[i]);
    }
    finish(&seat, requests, COUNT);
    check(bytes, (size_t)COUNT * LENGTH, 4);
    barrier(&seat);
    leave(&seat);
    free(requests);
    (void)munmap(bytes, (size_t)COUNT * LENGTH);
    return 0;
}

START_TEST(credits_are_kept)
{
    placement_t placement = (placement_t)_i;
    long unready = counter("rcvd_rnr_err") + counter("send_rnr_err");

    local_job_run(2, JOB_LIMIT_S, exhaust, &placement);
    ck_assert_int_eq(counter("rcvd_rnr_err") + counter("send_rnr_err"), unready);
}
END_TEST

/* Memory that is freed and comes back at the same address is not taken for what it was. */
static int reuse_addresses(const xm_job_env_t *env, int listen_fd, void *arg)
{
    enum { ROUNDS = 6, LENGTH = 600001 };
    conformance_seat_t seat;
    uint8_t *bytes = map(NULL, LENGTH);

    (void)arg;
    take_seat(env, listen_fd, ACROSS, 0, &seat);
    for (int round = 0; round < ROUNDS; ++round) {
        request_t request;

        local_expect(munmap(bytes, LENGTH) == 0, "munmap");
        (void)map(bytes, LENGTH);
        if (env->rank == 0) {
            fill(bytes, LENGTH, (uint64_t)round);
        }
        post(&seat, env->rank == 0, 1 - env->rank, 1, bytes, LENGTH, &request);
        finish(&seat, &request, 1);
        check(bytes, LENGTH, (uint64_t)round);
    }
    barrier(&seat);
    leave(&seat);
    (void)munmap(bytes, LENGTH);
    return 0;
}

START_TEST(freed_memory_is_not_remembered)
{
    local_job_run(2, JOB_LIMIT_S, reuse_addresses, NULL);
}
END_TEST

/* Longer than one RDMA WRITE may be: of the port, and of a limit that makes hundreds of them. */
static int write_long(const xm_job_env_t *env, int listen_fd, void *arg)
{
    size_t longest = *(size_t *)arg, length = longest == 0 ? 20 * (size_t)MIB + 1 : 3 * (size_t)MIB;
    conformance_seat_t seat;
    uint8_t *bytes = map(NULL, length);
    request_t request;

    take_seat(env, listen_fd, longest == 0 ? ACROSS : TWO_RAILS, longest, &seat);
    if (env->rank == 0) {
        fill(bytes, length, 7);
    }
    post(&seat, env->rank == 0, 1 - env->rank, 1, bytes, length, &request);
    finish(&seat, &request, 1);
    check(bytes, length, 7);
    barrier(&seat);
    leave(&seat);
    (void)munmap(bytes, length);
    return 0;
}

START_TEST(long_messages_are_several_writes)
{
    size_t longest = _i == 0 ? 0 : 9999;

    local_job_run(2, JOB_LIMIT_S, write_long, &longest);
}
END_TEST

/* How a connection is broken, and what the survivors say of it. */
typedef struct {
    const char *name;
    const char *break_it; /* command for the shell; NULL: see below */
    const char *mend_it;
    const char *sentence; /* of rank 0 */
    bool dies;            /* rank 1 is killed */
} breakage_t;

/* Brings a link down and up again, with the routes that it loses meanwhile. */
#define DOWN                                                                                       \
    "ip -d route show table all dev $DEV | grep 'table [0-9]' | sed 's/^unicast //' >/tmp/routes;" \
    "ip link set $DEV down"
#define UP                                                                                         \
    "ip link set $DEV up; while read -r route; do ip route replace $route dev $DEV; done "         \
    "</tmp/routes"

static const breakage_t breakages[] = {
    {"peer killed", NULL, NULL, "transport retry counter exceeded", true},
    {"queue pair broken", NULL, NULL, "Work Request Flushed Error", false},
    {"port down", DOWN, UP, "transport retry counter exceeded", false},
    {"cable cut", "tc qdisc add dev $DEV root netem loss 100%", "tc qdisc del dev $DEV root",
     "transport retry counter exceeded", false},
};

static int with_device(const char *command)
{
    char text[1024], link[64] = "", path[256];
    FILE *file;

    (void)snprintf(path, sizeof(path), "/sys/class/infiniband/%s/ports/1/gid_attrs/ndevs/0",
                   devices[1]);
    file = fopen(path, "re");
    if (file == NULL || fscanf(file, "%63s", link) != 1) {
        return -1;
    }
    (void)fclose(file);
    (void)snprintf(text, sizeof(text), "DEV=%s; %s", link, command);
    return system(text);
}

static void break_own_queue_pair(const conformance_seat_t *seat, int peer)
{
    const xm_verbs_transport_t *self = (const xm_verbs_transport_t *)seat->transport;
    struct ibv_qp_attr broken = {.qp_state = IBV_QPS_ERR};

    local_expect(ibv_modify_qp(self->peers[peer].lanes[0].qp, &broken, IBV_QP_STATE) == 0,
                 "ibv_modify_qp");
}

/* Ranks 0 and 2 are on one port, rank 1 is on another. All have receives posted that never come;
 * then the connection to rank 1 breaks. Whoever waits for rank 1, or is rank 1, learns it within
 * seconds although he only receives; ranks 0 and 2 go on. */
static int survive(const xm_job_env_t *env, int listen_fd, void *arg)
{
    const breakage_t *breakage = arg;
    int rank = env->rank, other = rank == 0 ? 1 : 0;
    conformance_seat_t seat;
    uint8_t *bytes = map(NULL, MIB), byte = 9;
    request_t requests[2], message;
    double started;

    take_seat(env, listen_fd, ACROSS, 0, &seat);
    if (rank != 2) {
        post(&seat, false, other, 1, bytes, 100, &requests[0]);
        post(&seat, false, other, 2, bytes, MIB, &requests[1]);
    }
    barrier(&seat);
    started = local_now();
    if (rank == 1 && breakage->dies) {
        die(&seat);
    }
    if (rank == 0 && breakage->break_it != NULL) {
        local_expect(with_device(breakage->break_it) == 0, "%s", breakage->break_it);
        started = local_now(); /* the commands themselves take long on a busy machine */
    } else if (rank == 0 && !breakage->dies) {
        break_own_queue_pair(&seat, 1);
    }
    if (rank != 2) {
        wait_for(&seat, requests, 2);
        (void)printf("rank %d noticed after %.2f s\n", rank, local_now() - started);
        local_expect(local_now() - started < local_patience(10.0), "noticed only after %g s",
                     local_now() - started);
        for (int i = 0; i < 2; ++i) {
            char who[32], device[40];

            (void)snprintf(who, sizeof(who), "rank %d is gone", other);
            (void)snprintf(device, sizeof(device), "over %s:1", devices[rank]);
            local_expect(
                requests[i].status == XM_ERR_PEER_DIED &&
                    strstr(requests[i].sentence, who) != NULL &&
                    strstr(requests[i].sentence, device) != NULL &&
                    (rank != 0 || strstr(requests[i].sentence, breakage->sentence) != NULL),
                "rank %d: operation %d: %s, %s", rank, i, xm_status_string(requests[i].status),
                requests[i].sentence);
        }
        local_expect(seat.transport->failed_peer == other, "failed peer is %d",
                     seat.transport->failed_peer);
        post(&seat, true, other, 3, &byte, 1, &message);
        local_expect(message.ended && message.status == XM_ERR_PEER_DIED, "a later send: %s",
                     xm_status_string(message.status));
    }
    if (rank != 1) {
        for (int i = 0; i < 3; ++i) {
            fill(bytes, rank == 0 ? MIB : 0, 3);
            post(&seat, rank == 0, 2 - rank, 4, bytes, MIB, &message);
            finish(&seat, &message, 1);
            check(bytes, MIB, 3);
        }
    }
    leave(&seat);
    (void)munmap(bytes, MIB);
    return 0;
}

/* A port comes back a moment after its link. */
static void wait_until_active(void)
{
    double deadline = local_now() + local_patience(10.0);

    for (int i = 0; i < 2; ++i) {
        char path[256], state[64] = "";

        (void)snprintf(path, sizeof(path), "/sys/class/infiniband/%s/ports/1/state", devices[i]);
        while (strstr(state, "ACTIVE") == NULL) {
            FILE *file = fopen(path, "re");

            ck_assert_msg(local_now() < deadline, "%s: %s", path, state);
            if (file == NULL || fgets(state, sizeof(state), file) == NULL) {
                state[0] = '\0';
            }
            if (file != NULL) {
                (void)fclose(file);
            }
            local_sleep(0.01);
        }
    }
}

START_TEST(broken_connections_are_noticed)
{
    breakage_t breakage = breakages[_i];
    bool commands = breakage.break_it != NULL;
    int status = 0;
    local_job_t job;
    pid_t child;
    double started = local_now();

    if (commands && (geteuid() != 0 || strcmp(devices[0], devices[1]) == 0 ||
                     with_device("ip link show $DEV && tc qdisc show dev $DEV") != 0)) {
        (void)printf("%s: skipped, needs root, ip, tc and two devices on Ethernet\n",
                     breakage.name);
        return;
    }
    /* In a process of its own: whatever happens there, the device is mended. */
    child = fork();
    ck_assert_int_ge(child, 0);
    if (child == 0) {
        local_job_start(&job, 3, 0, JOB_LIMIT_S, survive, &breakage);
        local_job_wait(&job, breakage.dies ? 1u << 1 : 0);
        _exit(0);
    }
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    if (breakage.mend_it != NULL) {
        ck_assert_int_eq(with_device(breakage.mend_it), 0);
        wait_until_active();
    }
    ck_assert_int_eq(status, 0);
    (void)printf("%-26s %.2f s\n", breakage.name, local_now() - started);
}
END_TEST

/* Root may lock any amount of memory, unless it gives that right up. */
static void limit_locked_memory(size_t bytes)
{
    const struct rlimit limit = {bytes, bytes};
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3];

    local_expect(setrlimit(RLIMIT_MEMLOCK, &limit) == 0, "setrlimit");
    local_expect(syscall(SYS_capget, &header, data) == 0, "capget");
    data[CAP_TO_INDEX(CAP_IPC_LOCK)].effective &= ~CAP_TO_MASK(CAP_IPC_LOCK);
    local_expect(syscall(SYS_capset, &header, data) == 0, "capset");
}

/* Too little memory may be locked: a sentence that says so, and everything else goes on. */
static int lock_too_much(const xm_job_env_t *env, int listen_fd, void *arg)
{
    const size_t length = 32 * (size_t)MIB;
    conformance_seat_t seat;
    uint8_t *bytes = map(NULL, length);
    xm_memory_t *memory;
    request_t request;

    (void)arg;
    if (env->rank == 0) {
        limit_locked_memory(4 * (size_t)MIB);
    }
    take_seat(env, listen_fd, ACROSS, 0, &seat);
    if (env->rank == 0) {
        local_expect_fails(xm_transport_memory_register(seat.transport, bytes, length, &memory),
                           XM_ERR_NO_MEMORY, "ulimit -l is 4096");
        post(&seat, true, 1, 1, bytes, length, &request);
        local_expect(request.status == XM_ERR_NO_MEMORY &&
                         strstr(request.sentence, "cannot register 33554432 bytes") != NULL,
                     "'%s'", request.sentence);
        fill(bytes, 2 * (size_t)MIB, 2);
    }
    post(&seat, env->rank == 0, 1 - env->rank, 1, bytes, 2 * (size_t)MIB, &request);
    finish(&seat, &request, 1);
    check(bytes, 2 * (size_t)MIB, 2);
    barrier(&seat);
    leave(&seat);
    (void)munmap(bytes, length);
    return 0;
}

START_TEST(too_little_memory_may_be_locked)
{
    local_job_run(2, JOB_LIMIT_S, lock_too_much, NULL);
}
END_TEST

/* Lists of ports that are refused, by rank 1 alone; %s is a device. */
static const struct {
    const char *nics;
    xm_status_t status;
    const char *sentence;
} refused[] = {
    {"nosuch0", XM_ERR_NOT_FOUND, "rank 1: XM_NICS: no network device 'nosuch0'"},
    {"lo", XM_ERR_NOT_FOUND, "rank 1: XM_NICS: 'lo' is no RDMA device; there is"},
    {"%s:7", XM_ERR_NOT_FOUND, "rank 1: XM_NICS: no network device"},
    {"%s:1=fast", XM_ERR_PARSE, "rank 1: XM_NICS: rate of"},
};

static int refuse(const xm_job_env_t *env, int listen_fd, void *arg)
{
    int index = *(const int *)arg;
    xm_transport_verbs_params_t params = XM_TRANSPORT_VERBS_PARAMS_INIT;
    xm_bootstrap_t *bootstrap;
    xm_transport_t *transport;
    char nics[128];

    local_expect_ok(xm_bootstrap_create_tcp(env, listen_fd, wait_limit_s, &bootstrap));
    params.timeout = wait_limit_s;
    if (env->rank == 1) {
        const char *wild = strstr(refused[index].nics, "%s");

        (void)snprintf(nics, sizeof(nics), "%s%s", wild != NULL ? devices[0] : refused[index].nics,
                       wild != NULL ? wild + 2 : "");
        params.nics = nics;
        local_expect_fails(xm_transport_verbs_create(bootstrap, &params, &transport),
                           refused[index].status, refused[index].sentence);
        xm_bootstrap_abort(bootstrap, xm_last_error());
    } else {
        local_expect_fails(xm_transport_verbs_create(bootstrap, &params, &transport),
                           XM_ERR_CANCELED, refused[index].sentence);
    }
    xm_bootstrap_destroy(bootstrap);
    return 0;
}

START_TEST(unusable_ports_are_refused)
{
    local_job_run(2, JOB_LIMIT_S, refuse, &_i);
}
END_TEST

/* Without a list all ports are used; a spinning transport has nothing to sleep on; one rank alone
 * is a job, and registrations that were forgotten do no harm. */
static int look_around(const xm_job_env_t *env, int listen_fd, void *arg)
{
    static uint8_t bytes[100000];
    xm_transport_verbs_params_t params = XM_TRANSPORT_VERBS_PARAMS_INIT;
    conformance_seat_t seat = {.barrier = barrier, .limit = local_patience(wait_limit_s)};
    xm_bootstrap_t *bootstrap;
    xm_memory_t *memory;
    char lanes[256], expected[256];

    (void)arg;
    local_expect_ok(xm_bootstrap_create_tcp(env, listen_fd, wait_limit_s, &bootstrap));
    seat.arg = bootstrap;
    params.timeout = wait_limit_s;
    params.spin = true;
    local_expect_ok(xm_transport_verbs_create(bootstrap, &params, &seat.transport));
    local_expect(xm_transport_event_fd(seat.transport) == -1, "a descriptor");
    local_expect(xm_transport_arm(seat.transport) == XM_IN_PROGRESS, "allowed to sleep");
    local_expect_ok(xm_transport_memory_register(seat.transport, bytes, sizeof(bytes), &memory));
    if (env->size > 1) {
        (void)snprintf(expected, sizeof(expected), "%s:1 > %s:1", devices[0], devices[0]);
        local_expect_ok(
            xm_transport_verbs_lanes(seat.transport, 1 - env->rank, lanes, sizeof(lanes)));
        local_expect(strncmp(lanes, expected, strlen(expected)) == 0, "lanes are '%s'", lanes);
        conformance_cases[0].run(&seat);
    }
    local_expect_fails(xm_transport_verbs_lanes(seat.transport, env->rank, lanes, sizeof(lanes)),
                       XM_ERR_INVALID_ARGUMENT, "no verbs peer");
    barrier(&seat);
    xm_transport_destroy(seat.transport);
    xm_bootstrap_destroy(bootstrap);
    return 0;
}

START_TEST(ports_are_found)
{
    local_job_run(_i, JOB_LIMIT_S, look_around, NULL);
}
END_TEST

/* A case of tests that one can ask for by name (CK_RUN_CASE). */
static TCase *add_case(Suite *suite, const char *name)
{
    TCase *tcase = tcase_create(name);

    tcase_set_timeout(tcase, JOB_LIMIT_S + 10);
    suite_add_tcase(suite, tcase);
    return tcase;
}

int main(void)
{
    Suite *suite = suite_create("transport_verbs");
    TCase *tcase;
    long received;
    int result;

    if (find_devices() == 0) {
        (void)printf("skipped: this machine has no RDMA device\n");
        return SKIP;
    }
    received = counter("rcvd_pkts");
    tcase = add_case(suite, "ports");
    tcase_add_loop_test(tcase, ports_are_found, 1, 3);
    tcase_add_loop_test(tcase, unusable_ports_are_refused, 0,
                        (int)(sizeof(refused) / sizeof(refused[0])));
    tcase = add_case(suite, "across");
    tcase_add_loop_test(tcase, conforms_across_the_wire, 0, conformance_case_count);
    tcase = add_case(suite, "rails");
    tcase_add_loop_test(tcase, conforms_over_two_rails, 0, conformance_case_count);
    tcase = add_case(suite, "unlike");
    tcase_add_loop_test(tcase, conforms_over_unlike_rails, 0, conformance_case_count);
    tcase = add_case(suite, "one");
    tcase_add_loop_test(tcase, conforms_on_one_port, 0, conformance_case_count);
    tcase = add_case(suite, "messages");
    tcase_add_loop_test(tcase, credits_are_kept, 0, PLACEMENTS);
    tcase_add_test(tcase, freed_memory_is_not_remembered);
    tcase_add_loop_test(tcase, long_messages_are_several_writes, 0, 2);
    tcase_add_test(tcase, too_little_memory_may_be_locked);
    tcase = add_case(suite, "breakages");
    tcase_add_loop_test(tcase, broken_connections_are_noticed, 0,
                        (int)(sizeof(breakages) / sizeof(breakages[0])));
    result = xm_test_run(suite);
    /* The kernel's driver counts; hardware may not have this counter. */
    if (result == 0 && strncmp(devices[0], "rxe", 3) == 0 && counter("rcvd_pkts") == received) {
        (void)printf("nothing went over %s\n", devices[0]);
        return 1;
    }
    return result;
}
