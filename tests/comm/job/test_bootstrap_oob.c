/* SPDX-License-Identifier: Apache-2.0 */
/* A caller's own allgather: used for everything, or once, to build the relay. */
#include <arpa/inet.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "comm/job/bootstrap.h"
#include "tests/comm/job/relay_table.h"
#include "xm_test.h"

enum { JOB_LIMIT_S = 90 };
static const double limit_s = 40.0;

/* Threads of one process that meet in shared arrays. */

enum { OOB_RANKS = 3, OOB_MAX = 64 };

typedef struct {
    pthread_mutex_t lock;
    int posts[OOB_RANKS];                     /* how many each rank has posted */
    uint8_t blocks[OOB_MAX][OOB_RANKS][1024]; /* by allgather and rank */
    bool broken, stuck;
} oob_room_t;

typedef struct {
    oob_room_t *room;
    int rank;
    uint8_t *receive;
    size_t length;
    int number;
    int freed;
} oob_slot_t;

static xm_status_t room_post(void *context, const void *send_buffer, void *receive, size_t length,
                             void **request)
{
    oob_slot_t *slot = context;

    ck_assert_uint_ge(length, 1);
    (void)pthread_mutex_lock(&slot->room->lock);
    slot->number = slot->room->posts[slot->rank];
    memcpy(slot->room->blocks[slot->number][slot->rank], send_buffer, length);
    ++slot->room->posts[slot->rank];
    (void)pthread_mutex_unlock(&slot->room->lock);
    slot->receive = receive;
    slot->length = length;
    *request = slot;
    return XM_OK;
}

static xm_status_t room_test(void *request)
{
    oob_slot_t *slot = request;
    oob_room_t *room = slot->room;
    bool all = true;

    if (room->broken) {
        return XM_ERR_IO;
    }
    (void)pthread_mutex_lock(&room->lock);
    for (int rank = 0; rank < OOB_RANKS; ++rank) {
        all = all && room->posts[rank] > slot->number;
    }
    for (int rank = 0; rank < OOB_RANKS && all; ++rank) {
        memcpy(slot->receive + (size_t)rank * slot->length, room->blocks[slot->number][rank],
               slot->length);
    }
    (void)pthread_mutex_unlock(&room->lock);
    return all && !room->stuck ? XM_OK : XM_IN_PROGRESS;
}

static void room_free(void *request)
{
    ++((oob_slot_t *)request)->freed;
}

static xm_oob_t room_table(oob_slot_t *slot)
{
    return (xm_oob_t){.struct_size = sizeof(xm_oob_t),
                      .rank = slot->rank,
                      .size = OOB_RANKS,
                      .context = slot,
                      .allgather_post = room_post,
                      .allgather_test = room_test,
                      .allgather_free = room_free};
}

static void *sit(void *arg)
{
    oob_slot_t *slot = arg;
    xm_oob_t oob = room_table(slot);
    xm_bootstrap_t *bootstrap;
    size_t *offsets;
    char text[32];
    void *all;
    int ranks[OOB_RANKS];

    ck_assert_xm_ok(xm_bootstrap_create_oob(&oob, &bootstrap));
    ck_assert_int_eq(xm_bootstrap_fd(bootstrap), -1);
    for (int i = 0; i < 5; ++i) {
        ck_assert_xm_ok(
            xm_bootstrap_allgather(bootstrap, &slot->rank, ranks, sizeof(int), limit_s));
        ck_assert_int_eq(ranks[2], 2);
        ck_assert_xm_ok(xm_bootstrap_barrier(bootstrap, limit_s));
    }
    (void)snprintf(text, sizeof(text), "%.*s", slot->rank + 1, "abc");
    ck_assert_xm_ok(
        xm_bootstrap_allgatherv(bootstrap, text, strlen(text), &all, &offsets, limit_s));
    ck_assert_mem_eq(all, "aababc", 6);
    ck_assert_uint_eq(offsets[2], 3);
    free(all);
    free(offsets);
    ck_assert_xm_ok(xm_bootstrap_poll(bootstrap, NULL));
    xm_bootstrap_abort(bootstrap, "nobody hears it");
    ck_assert_int_eq(slot->freed, slot->room->posts[slot->rank]);
    xm_bootstrap_destroy(bootstrap);
    return NULL;
}

static oob_room_t room = {.lock = PTHREAD_MUTEX_INITIALIZER};

START_TEST(a_callers_table_works)
{
    oob_slot_t slots[OOB_RANKS];
    pthread_t threads[OOB_RANKS];

    for (int rank = 0; rank < OOB_RANKS; ++rank) {
        slots[rank] = (oob_slot_t){.room = &room, .rank = rank};
        ck_assert_int_eq(pthread_create(&threads[rank], NULL, sit, &slots[rank]), 0);
    }
    for (int rank = 0; rank < OOB_RANKS; ++rank) {
        ck_assert_int_eq(pthread_join(threads[rank], NULL), 0);
    }
}
END_TEST

START_TEST(a_callers_table_may_fail)
{
    oob_slot_t slot = {.room = &room};
    xm_oob_t oob = room_table(&slot);
    xm_bootstrap_t *bootstrap;

    ck_assert_xm_ok(xm_bootstrap_create_oob(&oob, &bootstrap));
    ck_assert_xm_fails(xm_bootstrap_barrier(bootstrap, 0.05), XM_ERR_TIMEOUT,
                       "did not end within 0.05 s");
    ck_assert_xm_fails(xm_bootstrap_poll(bootstrap, NULL), XM_ERR_TIMEOUT, "out-of-band");
    ck_assert_int_eq(slot.freed, 1);
    xm_bootstrap_destroy(bootstrap);
    room.broken = true;
    ck_assert_xm_ok(xm_bootstrap_create_oob(&oob, &bootstrap));
    ck_assert_xm_fails(xm_bootstrap_barrier(bootstrap, 1.0), XM_ERR_IO,
                       "allgather failed on rank 0");
    ck_assert_int_eq(slot.freed, 2);
    xm_bootstrap_destroy(bootstrap);
    oob.rank = OOB_RANKS;
    ck_assert_xm_fails(xm_bootstrap_create_oob(&oob, &bootstrap), XM_ERR_INVALID_ARGUMENT,
                       "rank 3 of 3");
    oob.allgather_free = NULL;
    ck_assert_xm_fails(xm_bootstrap_create_oob(&oob, &bootstrap), XM_ERR_INVALID_ARGUMENT,
                       "three functions");
}
END_TEST

/* Processes, and a table that has nothing to do with TCP. */

static uint8_t block_byte(int rank, size_t i)
{
    return (uint8_t)(31 * rank + (int)(i % 251));
}

/* Gathers blocks of differing lengths and checks every byte. */
static void gather(xm_bootstrap_t *bootstrap)
{
    int rank = xm_bootstrap_rank(bootstrap), size = xm_bootstrap_size(bootstrap);
    size_t length = (size_t)rank * 1000, *offsets;
    uint8_t *own = malloc(length + 1);
    void *all;

    local_expect(own != NULL, "memory");
    for (size_t i = 0; i < length; ++i) {
        own[i] = block_byte(rank, i);
    }
    local_expect_ok(xm_bootstrap_allgatherv(bootstrap, own, length, &all, &offsets, limit_s));
    for (int r = 0; r < size; ++r) {
        local_expect(offsets[r + 1] - offsets[r] == (size_t)r * 1000, "length of rank %d", r);
        for (size_t i = 0; i < (size_t)r * 1000; ++i) {
            local_expect(((uint8_t *)all)[offsets[r] + i] == block_byte(r, i),
                         "byte %zu of rank %d", i, r);
        }
    }
    free(all);
    free(offsets);
    free(own);
}

/* What the relay's only listening socket of rank 0 was bound to is not visible afterwards; that its
 * connections are on the loopback interface is. */
static bool is_local_connection(void)
{
    for (int fd = 3; fd < 64; ++fd) {
        struct sockaddr_in peer;
        socklen_t length = sizeof(peer);

        if (getpeername(fd, (struct sockaddr *)&peer, &length) == 0 && peer.sin_family == AF_INET) {
            return ntohl(peer.sin_addr.s_addr) == INADDR_LOOPBACK;
        }
    }
    return false;
}

static int be_relay(const xm_job_env_t *env, int listen_fd, void *arg)
{
    relay_slot_t slot;
    xm_oob_t oob = relay_table(arg, env->rank, &slot);
    xm_bootstrap_t *bootstrap;

    (void)close(listen_fd);
    local_expect_ok(xm_bootstrap_create_relay(&oob, limit_s, &bootstrap));
    local_expect(slot.posts == 2 && slot.frees == 2, "%d allgathers, %d freed", slot.posts,
                 slot.frees);
    (void)close(slot.fd); /* nobody needs the table any more */
    local_expect(xm_bootstrap_fd(bootstrap) >= 0, "there is no fault channel");
    local_expect(is_local_connection(), "ranks of one machine meet elsewhere than on loopback");
    gather(bootstrap);
    xm_bootstrap_destroy(bootstrap);
    return 0;
}

START_TEST(a_table_makes_a_relay)
{
    static const int sizes[] = {1, 2, 6};
    relay_t relay;

    relay_start(&relay, sizes[_i]);
    if (sizes[_i] == 1) {
        relay_slot_t slot;
        xm_oob_t oob = relay_table(&relay, 0, &slot);
        xm_bootstrap_t *bootstrap;

        ck_assert_xm_ok(xm_bootstrap_create_relay(&oob, limit_s, &bootstrap));
        gather(bootstrap);
        xm_bootstrap_destroy(bootstrap);
    } else {
        local_job_run(sizes[_i], JOB_LIMIT_S, be_relay, &relay);
    }
    relay_end(&relay);
}
END_TEST

static int die_in_relay(const xm_job_env_t *env, int listen_fd, void *arg)
{
    double deadline = local_now() + limit_s;
    relay_slot_t slot;
    xm_oob_t oob = relay_table(arg, env->rank, &slot);
    xm_bootstrap_t *bootstrap;
    int failed_rank = -1;
    xm_status_t status;

    (void)close(listen_fd);
    local_expect_ok(xm_bootstrap_create_relay(&oob, limit_s, &bootstrap));
    local_expect_ok(xm_bootstrap_barrier(bootstrap, limit_s));
    if (env->rank == 1) {
        (void)raise(SIGKILL);
    }
    do {
        struct pollfd entry = {.fd = xm_bootstrap_fd(bootstrap), .events = POLLIN};

        (void)poll(&entry, 1, 100);
        status = xm_bootstrap_poll(bootstrap, &failed_rank);
    } while (status == XM_OK && local_now() < deadline);
    local_expect(status == XM_ERR_PEER_DIED && failed_rank == 1, "%s, rank %d",
                 xm_status_string(status), failed_rank);
    xm_bootstrap_destroy(bootstrap);
    return 0;
}

START_TEST(a_relay_over_a_table_notices_deaths)
{
    local_job_t job;
    relay_t relay;

    relay_start(&relay, 4);
    local_job_start(&job, 4, 0, JOB_LIMIT_S, die_in_relay, &relay);
    local_job_wait(&job, 1u << 1);
    relay_end(&relay);
}
END_TEST

/* Rank 0 is told to listen at an address that it does not have. */
static int listen_nowhere(const xm_job_env_t *env, int listen_fd, void *arg)
{
    relay_slot_t slot;
    xm_oob_t oob = relay_table(arg, env->rank, &slot);
    xm_bootstrap_t *bootstrap;

    (void)close(listen_fd);
    if (env->rank == 0) {
        local_expect(setenv("XM_BIND", "203.0.113.1", 1) == 0, "setenv");
        local_expect_fails(xm_bootstrap_create_relay(&oob, limit_s, &bootstrap), XM_ERR_IO,
                           "rank 0 cannot listen at 203.0.113.1: ");
    } else {
        local_expect_fails(xm_bootstrap_create_relay(&oob, limit_s, &bootstrap), XM_ERR_UNREACHABLE,
                           "rank 0 cannot listen for the other ranks");
    }
    return 0;
}

START_TEST(a_rank_0_that_cannot_listen_says_so)
{
    relay_t relay;

    relay_start(&relay, 3);
    local_job_run(3, JOB_LIMIT_S, listen_nowhere, &relay);
    relay_end(&relay);
}
END_TEST

static atomic_int *given_up; /* ranks that wait in vain no more */

/* A rank never calls: the others' deadline holds, and the sentence says what hung. */
static int wait_in_vain(const xm_job_env_t *env, int listen_fd, void *arg)
{
    relay_slot_t slot;
    xm_oob_t oob = relay_table(arg, env->rank, &slot);
    xm_bootstrap_t *bootstrap;

    (void)close(listen_fd);
    if (env->rank == 1) {
        local_await(given_up, 2);
        return 0;
    }
    local_expect_fails(xm_bootstrap_create_relay(&oob, 0.3, &bootstrap), XM_ERR_TIMEOUT,
                       "out-of-band allgather did not end within");
    local_expect(slot.frees == slot.posts, "%d allgathers, %d freed", slot.posts, slot.frees);
    (void)atomic_fetch_add(given_up, 1);
    return 0;
}

START_TEST(a_table_that_hangs_has_a_deadline)
{
    relay_t relay;

    given_up = local_shared(sizeof(*given_up));
    relay_start(&relay, 3);
    local_job_run(3, JOB_LIMIT_S, wait_in_vain, &relay);
    relay_end(&relay);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("bootstrap_oob");
    TCase *tcase = tcase_create("jobs");

    tcase_set_timeout(tcase, JOB_LIMIT_S + 5);
    tcase_add_test(tcase, a_callers_table_works);
    tcase_add_test(tcase, a_callers_table_may_fail);
    tcase_add_loop_test(tcase, a_table_makes_a_relay, 0, 3);
    tcase_add_test(tcase, a_relay_over_a_table_notices_deaths);
    tcase_add_test(tcase, a_rank_0_that_cannot_listen_says_so);
    tcase_add_test(tcase, a_table_that_hangs_has_a_deadline);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
