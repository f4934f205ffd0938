/* SPDX-License-Identifier: Apache-2.0 */
/* Regroupings of small jobs that start out with everything but a worker. */
#include "comm/fault/regroup.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <signal.h>
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
    xm_detector_t *detector;
    bool out[MOST], none[MOST];
} slot_t;

static void sit_down(const xm_job_env_t *env, int listen_fd, slot_t *slot)
{
    int rank_of[] = {0, 1, 2, 3};

    local_expect_ok(xm_bootstrap_create_tcp(env, listen_fd, DEADLINE_S, &slot->bootstrap));
    local_expect_ok(xm_endpoints_open(&slot->endpoints, slot->bootstrap, 0.0, DEADLINE_S));
    local_expect_ok(xm_detector_create(&slot->endpoints, interval, NULL, &slot->detector));
    xm_detector_begin(slot->detector, 0, rank_of);
    local_expect_ok(xm_detector_await(slot->detector, slot->bootstrap, DEADLINE_S));
    local_expect_ok(xm_bootstrap_barrier(slot->bootstrap, DEADLINE_S));
    xm_bootstrap_destroy(slot->bootstrap);
    slot->bootstrap = NULL;
}

static xm_regroup_params_t regroup_params(const slot_t *slot)
{
    return (xm_regroup_params_t){.endpoints = &slot->endpoints,
                                 .detector = slot->detector,
                                 .timeout = DEADLINE_S / 2.0,
                                 .excluded = slot->none,
                                 .cut = slot->none};
}

static void regroup(slot_t *slot)
{
    xm_regroup_params_t params = regroup_params(slot);
    uint32_t generation = 0;

    local_expect_ok(xm_regroup(&params, slot->out, &slot->bootstrap, &generation));
    local_expect(generation == 1, "generation %u", generation);
    local_expect(xm_bootstrap_size(slot->bootstrap) == slot->endpoints.size, "%d of %d ranks",
                 xm_bootstrap_size(slot->bootstrap), slot->endpoints.size);
}

static void get_up(slot_t *slot)
{
    xm_bootstrap_destroy(slot->bootstrap);
    xm_detector_destroy(slot->detector);
    xm_endpoints_close(&slot->endpoints);
}

/* Rank 0 gives up as soon as there is a group, while the others may not be connected yet, and
 * leaves a second later, or at once. */
static int give_up(const xm_job_env_t *env, int listen_fd, void *arg)
{
    slot_t slot = {0};
    xm_status_t status = XM_OK;
    double deadline;

    sit_down(env, listen_fd, &slot);
    regroup(&slot);
    deadline = local_now() + DEADLINE_S / 2.0;
    if (env->rank == 0) {
        xm_bootstrap_abort(slot.bootstrap, "the disk is full");
        local_sleep(*(int *)arg);
    }
    while (status == XM_OK && local_now() < deadline) {
        status = xm_bootstrap_poll(slot.bootstrap, NULL);
        local_sleep(0.001);
    }
    local_expect(
        (status == XM_ERR_CANCELED && strstr(xm_last_error(), "the disk is full") != NULL) ||
            (*(int *)arg == 0 && status == XM_ERR_PEER_DIED &&
             strstr(xm_last_error(), "rank 0 (host ") != NULL),
        "%s (%s)", xm_status_string(status), xm_last_error());
    get_up(&slot);
    return 0;
}

START_TEST(what_follows_the_welcome_is_the_groups)
{
    int seconds = _i;

    local_job_run(3, DEADLINE_S, give_up, &seconds);
}
END_TEST

/* One rank comes late. Its detector answers questions meanwhile. */
static int come_late(const xm_job_env_t *env, int listen_fd, void *arg)
{
    int late = *(int *)arg;
    slot_t slot = {0};

    sit_down(env, listen_fd, &slot);
    if (env->rank == late) {
        local_sleep(6 * interval);
    }
    regroup(&slot);
    local_expect_ok(xm_bootstrap_barrier(slot.bootstrap, DEADLINE_S));
    get_up(&slot);
    return 0;
}

START_TEST(who_comes_late_is_waited_for)
{
    int late = _i;

    local_job_run(2, DEADLINE_S, come_late, &late);
}
END_TEST

/* Rank 2 of four cannot be reached by the transport of ranks 0 and 3, or is left out by the
 * application; or more are wanted than there are. */
static int leave_out(const xm_job_env_t *env, int listen_fd, void *arg)
{
    enum { CUT, EXCLUDED, TOO_MANY };
    int how = *(int *)arg;
    bool without[MOST] = {false, false, true, false};
    slot_t slot = {0};
    uint32_t generation = 0;
    xm_regroup_params_t params;

    sit_down(env, listen_fd, &slot);
    params = regroup_params(&slot);
    params.least = how == TOO_MANY ? 5 : 0;
    if (how == CUT && (env->rank == 0 || env->rank == 3)) {
        params.cut = without;
    }
    if (how == EXCLUDED) {
        params.excluded = without;
    }
    if (how == EXCLUDED && env->rank == 2) {
        local_sleep(3 * interval);
    } else if (how == TOO_MANY) {
        local_expect_fails(xm_regroup(&params, slot.out, &slot.bootstrap, &generation),
                           XM_ERR_UNREACHABLE, "only 4 ranks of the job are left (0, 1, 2, 3)");
    } else if (env->rank == 2) {
        /* "go on without this rank" or, where the detector is first to hear it, "take … for dead"
         */
        local_expect_fails(xm_regroup(&params, slot.out, &slot.bootstrap, &generation),
                           XM_ERR_PEER_DIED, "the others ");
    } else {
        local_expect_ok(xm_regroup(&params, slot.out, &slot.bootstrap, &generation));
        local_expect(xm_bootstrap_size(slot.bootstrap) == 3 && slot.out[2], "%d ranks",
                     xm_bootstrap_size(slot.bootstrap));
        local_expect_ok(xm_bootstrap_barrier(slot.bootstrap, DEADLINE_S));
    }
    get_up(&slot);
    return 0;
}

START_TEST(a_rank_is_left_out)
{
    int how = _i;

    local_job_run(4, DEADLINE_S, leave_out, &how);
}
END_TEST

/* The connections of the bootstrap are reset, at both ends or at one, in the middle of allgathers:
 * none is lost, and nobody is taken for dead. */
static int lose_links(const xm_job_env_t *env, int listen_fd, void *arg)
{
    enum { ROUNDS = 60 };
    struct linger hard = {.l_onoff = 1};
    slot_t slot = {0};
    int values[MOST];

    (void)arg;
    sit_down(env, listen_fd, &slot);
    regroup(&slot);
    for (int round = 0; round < ROUNDS; ++round) {
        int own = 1000 * round + env->rank;

        if (round % 5 == 4 && round / 5 % env->size == env->rank) {
            for (int fd = 3; fd < 256; ++fd) {
                struct sockaddr_storage peer;
                socklen_t length = sizeof(peer);

                if (getpeername(fd, (struct sockaddr *)&peer, &length) == 0) {
                    (void)setsockopt(fd, SOL_SOCKET, SO_LINGER, &hard, sizeof(hard));
                    (void)shutdown(fd, SHUT_RDWR);
                }
            }
        }
        local_expect_ok(
            xm_bootstrap_allgather(slot.bootstrap, &own, values, sizeof(own), DEADLINE_S / 3.0));
        for (int rank = 0; rank < env->size; ++rank) {
            local_expect(values[rank] == 1000 * round + rank, "round %d: rank %d sent %d", round,
                         rank, values[rank]);
        }
    }
    local_expect_ok(xm_bootstrap_barrier(slot.bootstrap, DEADLINE_S / 3.0));
    local_sleep(0.3); /* the last answer may have to be asked for once more */
    get_up(&slot);
    return 0;
}

START_TEST(links_that_end_are_replaced)
{
    local_job_run(4, DEADLINE_S, lose_links, NULL);
}
END_TEST

/* Rank 2 dies when all know where it is, and before it has answered anything: nobody waits for its
 * answer. */
static int die_before_the_first_answer(const xm_job_env_t *env, int listen_fd, void *arg)
{
    const int rank_of[] = {0, 1, 2};
    slot_t slot = {0};
    double began;

    (void)arg;
    local_expect_ok(xm_bootstrap_create_tcp(env, listen_fd, DEADLINE_S, &slot.bootstrap));
    local_expect_ok(xm_endpoints_open(&slot.endpoints, slot.bootstrap, 0.0, DEADLINE_S));
    local_expect_ok(xm_bootstrap_barrier(slot.bootstrap, DEADLINE_S));
    if (env->rank == 2) {
        (void)raise(SIGKILL);
    }
    local_expect_ok(xm_detector_create(&slot.endpoints, interval, NULL, &slot.detector));
    began = local_now();
    xm_detector_begin(slot.detector, 0, rank_of);
    local_expect_fails(xm_detector_await(slot.detector, slot.bootstrap, DEADLINE_S),
                       XM_ERR_PEER_DIED, "rank 2 (");
    local_expect(local_now() - began < local_timeout(1.5), "waited %.1f s", local_now() - began);
    get_up(&slot);
    return 0;
}

START_TEST(nobody_waits_for_the_dead)
{
    local_job_t job;

    local_job_start(&job, 3, 0, DEADLINE_S, die_before_the_first_answer, NULL);
    local_job_wait(&job, 1u << 2);
}
END_TEST

/* Addresses of both families are written for a socket that takes both, or left for one of IPv4. */
START_TEST(addresses_fit_the_socket)
{
    xm_endpoint_t of[1] = {{.count = 2, .datagram_port = 77, .stream_port = 78}};
    xm_endpoints_t endpoints = {.size = 1, .of = of, .family = AF_INET6};
    struct sockaddr_storage to;
    const struct sockaddr_in6 *ipv6 = (const struct sockaddr_in6 *)&to;

    ck_assert_int_eq(inet_pton(AF_INET6, "::ffff:192.0.2.7", of[0].addresses[0]), 1);
    ck_assert_int_eq(inet_pton(AF_INET6, "2001:db8::7", of[0].addresses[1]), 1);
    for (int number = 0; number < 2; ++number) {
        ck_assert_uint_eq(xm_endpoint_address(&endpoints, 0, number, number != 0, &to),
                          sizeof(struct sockaddr_in6));
        ck_assert_int_eq(to.ss_family, AF_INET6);
        ck_assert_mem_eq(&ipv6->sin6_addr, of[0].addresses[number], XM_ADDRESS_BYTES);
        ck_assert_int_eq(ntohs(ipv6->sin6_port), 77 + number);
    }
    endpoints.family = AF_INET;
    ck_assert_uint_eq(xm_endpoint_address(&endpoints, 0, 0, false, &to),
                      sizeof(struct sockaddr_in));
    ck_assert_int_eq(to.ss_family, AF_INET);
    ck_assert_uint_eq(ntohl(((struct sockaddr_in *)&to)->sin_addr.s_addr), 0xc0000207);
    ck_assert_uint_eq(xm_endpoint_address(&endpoints, 0, 1, false, &to), 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("regroup");
    TCase *tcase = tcase_create("regroup");

    tcase_set_timeout(tcase, 2 * DEADLINE_S);
    tcase_add_test(tcase, addresses_fit_the_socket);
    tcase_add_loop_test(tcase, what_follows_the_welcome_is_the_groups, 0, 2);
    tcase_add_loop_test(tcase, who_comes_late_is_waited_for, 0, 2);
    tcase_add_loop_test(tcase, a_rank_is_left_out, 0, 3);
    tcase_add_test(tcase, nobody_waits_for_the_dead);
    tcase_add_test(tcase, links_that_end_are_replaced);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
