/* SPDX-License-Identifier: Apache-2.0 */
/* What only the verbs transport can get wrong: credits, registrations, and broken connections. */
#include <linux/capability.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "comm/base/random.h"
#include "comm/transport/verbs/transport_verbs_private.h"
#include "tests/comm/transport/verbs/verbs_slot.h"

enum { MIB = 1 << 20 };

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

static void post(conformance_slot_t *slot, bool send, int peer, uint64_t tag, void *bytes,
                 size_t length, request_t *request)
{
    xm_status_t status;

    *request = (request_t){.op = {.done = on_done, .arg = request}, .posted = true};
    status =
        send ? xm_transport_send(slot->transport, peer, tag, bytes, length, NULL, &request->op)
             : xm_transport_receive(slot->transport, peer, tag, bytes, length, NULL, &request->op);
    if (status != XM_IN_PROGRESS) {
        on_done(&request->op, status);
    }
}

static void step(conformance_slot_t *slot)
{
    struct pollfd entry = {.fd = xm_transport_event_fd(slot->transport), .events = POLLIN};

    if (xm_transport_progress(slot->transport) == 0 && xm_transport_arm(slot->transport) == XM_OK) {
        (void)poll(&entry, 1, 20);
    }
}

static void wait_for(conformance_slot_t *slot, const request_t *requests, int count)
{
    double deadline = local_now() + slot->limit;

    for (int i = 0; i < count; ++i) {
        while (!requests[i].ended) {
            local_expect(local_now() < deadline, "rank %d: operation %d of %d did not end",
                         slot->transport->rank, i, count);
            step(slot);
        }
    }
}

static void finish(conformance_slot_t *slot, const request_t *requests, int count)
{
    wait_for(slot, requests, count);
    for (int i = 0; i < count; ++i) {
        local_expect(requests[i].status == XM_OK, "operation %d of %d: %s", i, count,
                     requests[i].sentence);
    }
}

static uint8_t pattern(size_t i, uint64_t seed)
{
    return (uint8_t)((xm_hash_spread(i + 1) + seed * UINT64_C(0xbf58476d1ce4e5b9)) >> 56);
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

/* Far more messages than slots, and than may be stored, while the receiver does not look; then
 * received last first. No packet ever finds its receiver without a slot. */
static int exhaust(const xm_job_env_t *env, int listen_fd, void *arg)
{
    enum { LENGTH = 3000, COUNT = XM_RAILS_COPIES / LENGTH + 100 };
    conformance_slot_t slot;
    request_t *requests = calloc(COUNT, sizeof(*requests));
    uint8_t *bytes = map(NULL, (size_t)COUNT * LENGTH);
    int peer = 1 - env->rank;

    verbs_sit(env, listen_fd, *(placement_t *)arg, 0, &slot);
    if (env->rank == 0) {
        fill(bytes, (size_t)COUNT * LENGTH, 4);
        for (int i = 0; i < COUNT; ++i) {
            post(&slot, true, peer, (uint64_t)i, bytes + (size_t)i * LENGTH, LENGTH, &requests[i]);
        }
        for (int i = 0; i < 20; ++i) {
            step(&slot);
        }
        local_expect(!requests[COUNT - 1].ended, "more was stored than is allowed");
    }
    verbs_barrier(&slot);
    for (int i = COUNT - 1; i >= 0 && env->rank == 1; --i) {
        post(&slot, false, peer, (uint64_t)i, bytes + (size_t)i * LENGTH, LENGTH, &requests[i]);
    }
    finish(&slot, requests, COUNT);
    check(bytes, (size_t)COUNT * LENGTH, 4);
    verbs_barrier(&slot);
    verbs_leave(&slot);
    free(requests);
    (void)munmap(bytes, (size_t)COUNT * LENGTH);
    return 0;
}

START_TEST(credits_are_kept)
{
    placement_t placement = (placement_t)_i;
    long unready = verbs_counter("rcvd_rnr_err") + verbs_counter("send_rnr_err");

    local_job_run(2, VERBS_JOB_LIMIT_S, exhaust, &placement);
    ck_assert_int_eq(verbs_counter("rcvd_rnr_err") + verbs_counter("send_rnr_err"), unready);
}
END_TEST

/* Memory that is freed and comes back at the same address is not taken for what it was. */
static int reuse_addresses(const xm_job_env_t *env, int listen_fd, void *arg)
{
    enum { ROUNDS = 6, LENGTH = 600001 };
    conformance_slot_t slot;
    uint8_t *bytes = map(NULL, LENGTH);

    (void)arg;
    verbs_sit(env, listen_fd, ACROSS, 0, &slot);
    for (int round = 0; round < ROUNDS; ++round) {
        request_t request;

        local_expect(munmap(bytes, LENGTH) == 0, "munmap");
        (void)map(bytes, LENGTH);
        if (env->rank == 0) {
            fill(bytes, LENGTH, (uint64_t)round);
        }
        post(&slot, env->rank == 0, 1 - env->rank, 1, bytes, LENGTH, &request);
        finish(&slot, &request, 1);
        check(bytes, LENGTH, (uint64_t)round);
    }
    verbs_barrier(&slot);
    verbs_leave(&slot);
    (void)munmap(bytes, LENGTH);
    return 0;
}

START_TEST(freed_memory_is_not_remembered)
{
    local_job_run(2, VERBS_JOB_LIMIT_S, reuse_addresses, NULL);
}
END_TEST

/* Longer than one RDMA WRITE may be: of the port, and of a limit that makes hundreds of them. */
static int write_long(const xm_job_env_t *env, int listen_fd, void *arg)
{
    size_t longest = *(size_t *)arg, length = longest == 0 ? 20 * (size_t)MIB + 1 : 3 * (size_t)MIB;
    conformance_slot_t slot;
    uint8_t *bytes = map(NULL, length);
    request_t request;

    verbs_sit(env, listen_fd, longest == 0 ? ACROSS : TWO_RAILS, longest, &slot);
    if (env->rank == 0) {
        fill(bytes, length, 7);
    }
    post(&slot, env->rank == 0, 1 - env->rank, 1, bytes, length, &request);
    finish(&slot, &request, 1);
    check(bytes, length, 7);
    verbs_barrier(&slot);
    verbs_leave(&slot);
    (void)munmap(bytes, length);
    return 0;
}

START_TEST(long_messages_are_several_writes)
{
    size_t longest = _i == 0 ? 0 : 9999;

    local_job_run(2, VERBS_JOB_LIMIT_S, write_long, &longest);
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
                   verbs_devices[1]);
    file = fopen(path, "re");
    if (file == NULL || fscanf(file, "%63s", link) != 1) {
        return -1;
    }
    (void)fclose(file);
    (void)snprintf(text, sizeof(text), "DEV=%s; %s", link, command);
    return system(text);
}

static void break_own_queue_pair(const conformance_slot_t *slot, int peer)
{
    const xm_verbs_transport_t *self = (const xm_verbs_transport_t *)slot->transport;
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
    conformance_slot_t slot;
    uint8_t *bytes = map(NULL, MIB), byte = 9;
    request_t requests[2], message;
    double started;

    verbs_sit(env, listen_fd, ACROSS, 0, &slot);
    if (rank != 2) {
        post(&slot, false, other, 1, bytes, 100, &requests[0]);
        post(&slot, false, other, 2, bytes, MIB, &requests[1]);
    }
    verbs_barrier(&slot);
    started = local_now();
    if (rank == 1 && breakage->dies) {
        slot.die(&slot);
    }
    if (rank == 0 && breakage->break_it != NULL) {
        local_expect(with_device(breakage->break_it) == 0, "%s", breakage->break_it);
        started = local_now(); /* the commands themselves take long on a busy machine */
    } else if (rank == 0 && !breakage->dies) {
        break_own_queue_pair(&slot, 1);
    }
    if (rank != 2) {
        wait_for(&slot, requests, 2);
        (void)printf("rank %d noticed after %.2f s\n", rank, local_now() - started);
        local_expect(local_now() - started < local_timeout(10.0), "noticed only after %g s",
                     local_now() - started);
        for (int i = 0; i < 2; ++i) {
            char who[32], device[40];

            (void)snprintf(who, sizeof(who), "rank %d is gone", other);
            (void)snprintf(device, sizeof(device), "over %s:1", verbs_devices[rank]);
            local_expect(
                requests[i].status == XM_ERR_PEER_DIED &&
                    strstr(requests[i].sentence, who) != NULL &&
                    strstr(requests[i].sentence, device) != NULL &&
                    (rank != 0 || strstr(requests[i].sentence, breakage->sentence) != NULL),
                "rank %d: operation %d: %s, %s", rank, i, xm_status_string(requests[i].status),
                requests[i].sentence);
        }
        local_expect(slot.transport->failed_peer == other, "failed peer is %d",
                     slot.transport->failed_peer);
        post(&slot, true, other, 3, &byte, 1, &message);
        local_expect(message.ended && message.status == XM_ERR_PEER_DIED, "a later send: %s",
                     xm_status_string(message.status));
    }
    if (rank != 1) {
        for (int i = 0; i < 3; ++i) {
            fill(bytes, rank == 0 ? MIB : 0, 3);
            post(&slot, rank == 0, 2 - rank, 4, bytes, MIB, &message);
            finish(&slot, &message, 1);
            check(bytes, MIB, 3);
        }
    }
    verbs_leave(&slot);
    (void)munmap(bytes, MIB);
    return 0;
}

/* A port comes back a moment after its link. */
static void wait_until_active(void)
{
    double deadline = local_now() + local_timeout(10.0);

    for (int i = 0; i < 2; ++i) {
        char path[256], state[64] = "";

        (void)snprintf(path, sizeof(path), "/sys/class/infiniband/%s/ports/1/state",
                       verbs_devices[i]);
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

    if (commands && (geteuid() != 0 || strcmp(verbs_devices[0], verbs_devices[1]) == 0 ||
                     with_device("ip link show $DEV && tc qdisc show dev $DEV") != 0)) {
        (void)printf("%s: skipped, needs root, ip, tc and two devices on Ethernet\n",
                     breakage.name);
        return;
    }
    /* In a process of its own: whatever happens there, the device is mended. */
    child = fork();
    ck_assert_int_ge(child, 0);
    if (child == 0) {
        local_job_start(&job, 3, 0, VERBS_JOB_LIMIT_S, survive, &breakage);
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

/* Which connections are broken, after how many messages, and by which rank. */
typedef struct {
    placement_t placement;
    int losses;
    bool off; /* one of them is the end of the peer */
    struct {
        int rank, rail, after;
    } loss[2];
} losses_t;

static const losses_t losses[] = {
    {TWO_RAILS, 1, false, {{0, 0, 0}}},
    {TWO_RAILS, 1, false, {{1, 1, 9}}},
    {TWO_RAILS, 1, false, {{1, 0, 23}}},
    {TWO_RAILS, 1, true, {{1, 0, 9}}},
    {THREE_RAILS, 2, false, {{0, 1, 3}, {0, 0, 20}}},
    {THREE_RAILS, 2, false, {{0, 2, 12}, {1, 0, 12}}},
};

enum { LOST_MESSAGES = 40, LOST_AHEAD = 8, LOST_TAGS = 3 };

static size_t lost_length(int message)
{
    static const size_t lengths[] = {1, 200, 225, 3000, 8000, 9000, 65535, 65536, 300001, MIB};

    return lengths[(size_t)message % (sizeof(lengths) / sizeof(lengths[0]))];
}

static void break_rail(const conformance_slot_t *slot, int peer, int rail)
{
    const xm_verbs_transport_t *self = (const xm_verbs_transport_t *)slot->transport;
    struct ibv_qp_attr broken = {.qp_state = IBV_QPS_ERR};
    struct ibv_qp *qp = self->peers[peer].lanes[rail].qp;

    local_expect(qp != NULL && ibv_modify_qp(qp, &broken, IBV_QP_STATE) == 0, "ibv_modify_qp");
}

/* Each lost NIC is said once, and nothing else. */
static void check_log(const char *path, int rank, int count)
{
    FILE *file = fopen(path, "re");
    char line[1024], expected[64];

    local_expect(file != NULL, "no log");
    (void)snprintf(expected, sizeof(expected), "towards rank %d is lost (", 1 - rank);
    for (int i = 0; i < count; ++i) {
        local_expect(fgets(line, sizeof(line), file) != NULL && strstr(line, expected) != NULL,
                     "rank %d: warning %d of %d is missing", rank, i, count);
        (void)printf("  %s", strstr(line, "rank"));
    }
    local_expect(fgets(line, sizeof(line), file) == NULL, "rank %d logged more: %s", rank, line);
    (void)fclose(file);
    (void)unlink(path);
}

/* Messages of all lengths both ways, of few tags, while connections break under them: all arrive,
 * once, whole, and in the order of their tag. */
static int carry_on(const xm_job_env_t *env, int listen_fd, void *arg)
{
    const losses_t *plan = arg;
    int rank = env->rank, peer = 1 - rank, posted = 0, done = 0, lost = 0;
    char path[] = "/tmp/xm_verbs_lost_XXXXXX";
    int log = mkstemp(path);
    request_t sends[LOST_MESSAGES], receives[LOST_MESSAGES];
    uint8_t *bytes = map(NULL, 2 * LOST_MESSAGES * (size_t)MIB);
    conformance_slot_t slot;
    double deadline;

    local_expect(log >= 0 && setenv("XM_LOG_FILE", path, 1) == 0 &&
                     setenv("XM_FAILOVER", plan->off ? "off" : "on", 1) == 0,
                 "environment");
    (void)close(log);
    verbs_sit(env, listen_fd, plan->placement, 0, &slot);
    for (int i = 0; i < LOST_MESSAGES; ++i) {
        fill(bytes + (size_t)i * MIB, lost_length(i), (uint64_t)(100 * rank + i));
    }
    verbs_barrier(&slot);
    deadline = local_now() + slot.limit;
    while (done < LOST_MESSAGES) {
        local_expect(local_now() < deadline, "rank %d: %d of %d messages have ended", rank, done,
                     LOST_MESSAGES);
        for (; posted < LOST_MESSAGES && posted < done + LOST_AHEAD; ++posted) {
            uint8_t *own = bytes + (size_t)posted * MIB;

            post(&slot, false, peer, (uint64_t)posted % LOST_TAGS,
                 own + LOST_MESSAGES * (size_t)MIB, lost_length(posted), &receives[posted]);
            post(&slot, true, peer, (uint64_t)posted % LOST_TAGS, own, lost_length(posted),
                 &sends[posted]);
        }
        for (; lost < plan->losses && done >= plan->loss[lost].after; ++lost) {
            if (plan->loss[lost].rank == rank) {
                break_rail(&slot, peer, plan->loss[lost].rail);
            }
        }
        step(&slot);
        while (done < posted && sends[done].ended && receives[done].ended &&
               (!plan->off || receives[done].status == XM_OK)) {
            ++done;
        }
        if (plan->off && done < posted && receives[done].ended && receives[done].status != XM_OK) {
            local_expect(receives[done].status == XM_ERR_PEER_DIED, "%s", receives[done].sentence);
            wait_for(&slot, sends, posted);
            wait_for(&slot, receives, posted);
            verbs_leave(&slot);
            check_log(path, rank, 0);
            return 0;
        }
    }
    local_expect(!plan->off, "a lost connection was not noticed");
    finish(&slot, sends, LOST_MESSAGES);
    finish(&slot, receives, LOST_MESSAGES);
    verbs_barrier(&slot);
    for (int i = 0; i < LOST_MESSAGES; ++i) {
        check(bytes + (size_t)(LOST_MESSAGES + i) * MIB, lost_length(i),
              (uint64_t)(100 * peer + i));
    }
    verbs_leave(&slot);
    check_log(path, rank, plan->losses);
    (void)munmap(bytes, 2 * LOST_MESSAGES * (size_t)MIB);
    return 0;
}

START_TEST(other_connections_carry_on)
{
    losses_t plan = losses[_i];

    local_job_run(2, VERBS_JOB_LIMIT_S, carry_on, &plan);
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
    conformance_slot_t slot;
    uint8_t *bytes = map(NULL, length);
    xm_memory_t *memory;
    request_t request;

    (void)arg;
    if (env->rank == 0) {
        limit_locked_memory(4 * (size_t)MIB);
    }
    verbs_sit(env, listen_fd, ACROSS, 0, &slot);
    if (env->rank == 0) {
        local_expect_fails(xm_transport_memory_register(slot.transport, bytes, length, &memory),
                           XM_ERR_NO_MEMORY, "ulimit -l is 4096");
        post(&slot, true, 1, 1, bytes, length, &request);
        local_expect(request.status == XM_ERR_NO_MEMORY &&
                         strstr(request.sentence, "cannot register 33554432 bytes") != NULL,
                     "'%s'", request.sentence);
        fill(bytes, 2 * (size_t)MIB, 2);
    }
    post(&slot, env->rank == 0, 1 - env->rank, 1, bytes, 2 * (size_t)MIB, &request);
    finish(&slot, &request, 1);
    check(bytes, 2 * (size_t)MIB, 2);
    verbs_barrier(&slot);
    verbs_leave(&slot);
    (void)munmap(bytes, length);
    return 0;
}

START_TEST(too_little_memory_may_be_locked)
{
    local_job_run(2, VERBS_JOB_LIMIT_S, lock_too_much, NULL);
}
END_TEST

static void add_tests(Suite *suite)
{
    TCase *tcase = verbs_add_case(suite, "messages");

    tcase_add_loop_test(tcase, credits_are_kept, 0, PLACEMENTS);
    tcase_add_test(tcase, freed_memory_is_not_remembered);
    tcase_add_loop_test(tcase, long_messages_are_several_writes, 0, 2);
    tcase_add_test(tcase, too_little_memory_may_be_locked);
    tcase = verbs_add_case(suite, "breakages");
    tcase_add_loop_test(tcase, broken_connections_are_noticed, 0,
                        (int)(sizeof(breakages) / sizeof(breakages[0])));
    tcase = verbs_add_case(suite, "losses");
    tcase_add_loop_test(tcase, other_connections_carry_on, 0,
                        (int)(sizeof(losses) / sizeof(losses[0])));
}

int main(void)
{
    return verbs_run(add_tests, "transport_verbs_fault");
}
