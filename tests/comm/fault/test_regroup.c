/* SPDX-License-Identifier: Apache-2.0 */
/* Regroupings of small jobs that start out with everything but a worker. */
#include "comm/fault/regroup.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "comm/job/bootstrap_private.h"
#include "tests/comm/job/local_job.h"
#include "xm_test.h"

enum { DEADLINE_S = 60, MOST = 4 };

/* Of the heartbeat: a process that does not get to run for 3.5 of them is taken for dead. */
static const double interval = 1.0;

typedef struct {
    xm_bootstrap_t *bootstrap;
    xm_endpoints_t endpoints;
    xm_heartbeat_t *heartbeat;
    bool dead[MOST];
} slot_t;

static void sit_down(const xm_job_env_t *env, int listen_fd, slot_t *slot)
{
    int rank_of[] = {0, 1, 2, 3};

    local_expect_ok(xm_bootstrap_create_tcp(env, listen_fd, DEADLINE_S, &slot->bootstrap));
    local_expect_ok(xm_endpoints_open(&slot->endpoints, slot->bootstrap, DEADLINE_S));
    local_expect_ok(xm_heartbeat_create(&slot->endpoints, interval, &slot->heartbeat));
    xm_heartbeat_begin(slot->heartbeat, 0, rank_of);
    xm_heartbeat_await(slot->heartbeat);
    local_expect_ok(xm_bootstrap_barrier(slot->bootstrap, DEADLINE_S));
    xm_heartbeat_mute(slot->heartbeat);
    xm_bootstrap_destroy(slot->bootstrap);
}

static void regroup(slot_t *slot)
{
    xm_regroup_params_t params = {.endpoints = &slot->endpoints,
                                  .heartbeat = slot->heartbeat,
                                  .interval = interval,
                                  .timeout = DEADLINE_S / 2.0};
    uint32_t generation = 0;

    local_expect_ok(xm_regroup(&params, slot->dead, &slot->bootstrap, &generation));
    local_expect(generation == 1, "generation %u", generation);
    local_expect(xm_bootstrap_size(slot->bootstrap) == slot->endpoints.size, "%d of %d ranks",
                 xm_bootstrap_size(slot->bootstrap), slot->endpoints.size);
}

static void get_up(slot_t *slot)
{
    xm_heartbeat_destroy(slot->heartbeat);
    xm_endpoints_close(&slot->endpoints);
    xm_bootstrap_destroy(slot->bootstrap);
}

/* Rank 1 is stopped while it waits for the others, and finds two messages of rank 0 when it goes
 * on: that the group has been formed, and that rank 0 gives up. The latter is the new group's. */
static int read_both(const xm_job_env_t *env, int listen_fd, void *arg)
{
    _Atomic pid_t *stopped = arg;
    slot_t slot = {0};
    double deadline;
    xm_status_t status = XM_OK;
    int failed = -1;

    sit_down(env, listen_fd, &slot);
    if (env->rank == 1) {
        atomic_store(stopped, getpid());
    }
    if (env->rank == 2) {
        double limit = local_now() + DEADLINE_S / 2.0;

        while (atomic_load(stopped) == 0 && local_now() < limit) {
            local_sleep(0.001);
        }
        local_expect(atomic_load(stopped) != 0, "rank 1 has not come");
        local_sleep(0.3);
        local_expect(kill(atomic_load(stopped), SIGSTOP) == 0, "kill");
    }
    regroup(&slot);
    if (env->rank == 0) {
        xm_bootstrap_abort(slot.bootstrap, "the disk is full");
    } else if (env->rank == 2) {
        local_sleep(0.2);
        local_expect(kill(atomic_load(stopped), SIGCONT) == 0, "kill");
    }
    deadline = local_now() + DEADLINE_S / 2.0;
    while (env->rank == 1 && status == XM_OK && local_now() < deadline) {
        status = xm_bootstrap_poll(slot.bootstrap, &failed);
        local_sleep(0.001);
    }
    local_expect(env->rank != 1 || (status == XM_ERR_CANCELED &&
                                    strstr(xm_last_error(), "the disk is full") != NULL),
                 "%s (%s)", xm_status_string(status), xm_last_error());
    get_up(&slot);
    return 0;
}

START_TEST(what_follows_the_welcome_is_the_groups)
{
    local_job_run(3, DEADLINE_S, read_both, local_shared(sizeof(pid_t)));
}
END_TEST

/* One rank comes late, and more have called it meanwhile than its queue takes: the others' calls
 * get no answer. Its heartbeat does. */
static int come_late(const xm_job_env_t *env, int listen_fd, void *arg)
{
    enum { CALLERS = 4 };
    int callers[CALLERS], late = *(int *)arg;
    slot_t slot = {0};

    sit_down(env, listen_fd, &slot);
    if (env->rank == late) {
        struct sockaddr_storage own;

        local_expect(listen(slot.endpoints.gathering_fd, 0) == 0, "listen");
        xm_endpoint_gathering(&slot.endpoints.of[late], &own);
        for (int i = 0; i < CALLERS; ++i) {
            callers[i] = socket(own.ss_family, SOCK_STREAM | SOCK_NONBLOCK, 0);
            (void)connect(callers[i], (struct sockaddr *)&own, slot.endpoints.of[late].length);
        }
        local_sleep(6 * interval);
    }
    regroup(&slot);
    for (int i = 0; i < CALLERS && env->rank == late; ++i) {
        (void)close(callers[i]);
    }
    local_expect_ok(xm_bootstrap_barrier(slot.bootstrap, DEADLINE_S));
    get_up(&slot);
    return 0;
}

START_TEST(a_full_queue_is_no_death)
{
    int late = _i;

    local_job_run(2, DEADLINE_S, come_late, &late);
}
END_TEST

/* Addresses of both families; the sockets of the one who has them take both. */
START_TEST(families_are_aligned)
{
    xm_endpoint_t of[3] = {{.length = sizeof(struct sockaddr_in)}};
    xm_endpoints_t endpoints = {.size = 3, .of = of};
    struct sockaddr_in *ipv4 = (struct sockaddr_in *)&of[0].address;
    struct sockaddr_in6 *ipv6 = (struct sockaddr_in6 *)&of[0].address;
    struct sockaddr_storage bound = {.ss_family = AF_INET6}, to;
    socklen_t length = sizeof(bound);
    struct in6_addr mapped;
    int fd = socket(AF_INET6, SOCK_DGRAM, 0), sender = socket(AF_INET6, SOCK_DGRAM, 0), off = 0;
    char byte = 7;

    if (fd < 0) {
        return; /* no IPv6 here: everything stays as it is */
    }
    ipv4->sin_family = AF_INET;
    ipv4->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    of[1] = of[2] = of[0];
    xm_endpoints_align(&endpoints);
    ck_assert_int_eq(of[0].address.ss_family, AF_INET); /* of one family: nothing to do */
    of[1] = (xm_endpoint_t){.length = sizeof(*ipv6), .address.ss_family = AF_INET6};
    ck_assert_int_eq(
        inet_pton(AF_INET6, "2001:db8::7", &((struct sockaddr_in6 *)&of[1].address)->sin6_addr), 1);
    xm_endpoints_align(&endpoints);
    ck_assert_int_eq(inet_pton(AF_INET6, "::ffff:127.0.0.1", &mapped), 1);
    for (int rank = 0; rank < 3; ++rank) {
        ck_assert_int_eq(of[rank].address.ss_family, AF_INET6);
        ck_assert_uint_eq(of[rank].length, sizeof(*ipv6));
    }
    ck_assert_mem_eq(&ipv6->sin6_addr, &mapped, sizeof(mapped));
    /* A datagram to such an address arrives at a socket of the other family, too. */
    ck_assert_int_eq(setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off)), 0);
    ck_assert_int_eq(bind(fd, (struct sockaddr *)&bound, sizeof(*ipv6)), 0);
    ck_assert_int_eq(getsockname(fd, (struct sockaddr *)&bound, &length), 0);
    of[0].datagram_port = ntohs(((struct sockaddr_in6 *)&bound)->sin6_port);
    xm_endpoint_datagram(&of[0], &to);
    ck_assert_int_eq(sendto(sender, &byte, 1, 0, (struct sockaddr *)&to, of[0].length), 1);
    ck_assert_int_eq(recv(fd, &byte, 1, 0), 1);
    (void)close(fd);
    (void)close(sender);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("regroup");
    TCase *tcase = tcase_create("regroup");

    tcase_set_timeout(tcase, 2 * DEADLINE_S);
    tcase_add_test(tcase, families_are_aligned);
    tcase_add_test(tcase, what_follows_the_welcome_is_the_groups);
    tcase_add_loop_test(tcase, a_full_queue_is_no_death, 0, 2);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
