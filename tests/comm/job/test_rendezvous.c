/* SPDX-License-Identifier: Apache-2.0 */
#include <arpa/inet.h>
#include <dlfcn.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "comm/job/bootstrap.h"
#include "tests/comm/job/local_job.h"
#include "xm_test.h"

enum { JOB_LIMIT_S = 90, LIMIT_S = 40 };
static const double limit_s = LIMIT_S;

static xm_bootstrap_t *join(const xm_job_env_t *env, int listen_fd)
{
    xm_bootstrap_t *bootstrap;

    local_expect_ok(xm_bootstrap_create_tcp(env, listen_fd, limit_s, &bootstrap));
    local_expect(xm_bootstrap_rank(bootstrap) == env->rank, "rank");
    local_expect(xm_bootstrap_size(bootstrap) == env->size, "size");
    return bootstrap;
}

/* The others are about to call when rank 0 begins to count, and are told long before their own time
 * is up. */
static int miss_ranks(const xm_job_env_t *env, int listen_fd, void *arg)
{
    atomic_int *calling = arg;
    xm_bootstrap_t *bootstrap;
    double started = local_now();

    if (env->rank == 0) {
        local_await(calling, 2);
    }
    (void)atomic_fetch_add(calling, 1);
    local_expect_fails(
        xm_bootstrap_create_tcp(env, listen_fd, env->rank == 0 ? 4.0 : limit_s, &bootstrap),
        XM_ERR_TIMEOUT, "rendezvous timed out after 4 s: 2 of 5 ranks are missing: 2, 4");
    local_expect(local_now() - started < limit_s / 2, "took %g s", local_now() - started);
    return 0;
}

START_TEST(missing_ranks_are_listed)
{
    local_job_t job;

    local_job_start(&job, 5, 1u << 2 | 1u << 4, JOB_LIMIT_S, miss_ranks,
                    local_shared(sizeof(atomic_int)));
    local_job_wait(&job, 0);
}
END_TEST

static int connect_to(const char *address, int port)
{
    struct sockaddr_in there = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    int fd = socket(AF_INET, SOCK_STREAM, 0);

    local_expect(inet_pton(AF_INET, address, &there.sin_addr) == 1, "%s", address);
    if (connect(fd, (struct sockaddr *)&there, sizeof(there)) != 0) {
        (void)close(fd);
        return -1;
    }
    (void)close(fd);
    return 0;
}

static int miss_root(const xm_job_env_t *env, int listen_fd, void *arg)
{
    double deadline = local_now() + limit_s;
    xm_bootstrap_t *bootstrap;
    char text[64];

    (void)arg;
    (void)listen_fd;
    /* Until the test has closed its listening socket. */
    while (connect_to("127.0.0.1", env->master_port) == 0 && local_now() < deadline) {
        local_sleep(0.005);
    }
    (void)snprintf(text, sizeof(text), "rank 1: no rank 0 at 127.0.0.1 port %d within 0.3 s",
                   env->master_port);
    local_expect_fails(xm_bootstrap_create_tcp(env, -1, 0.3, &bootstrap), XM_ERR_TIMEOUT, text);
    return 0;
}

START_TEST(a_missing_root_is_named)
{
    local_job_t job;

    local_job_start(&job, 2, 1u << 0, JOB_LIMIT_S, miss_root, NULL);
    local_job_wait(&job, 0);
}
END_TEST

/* Names for the tests below, told by a function that stands before the C library's resolver.
 * two.test has two addresses: the first swallows connections (its listener's queue is full), the
 * second is the real one. slow.test is answered too late, again.test at the third question,
 * never.test is to be asked again for ever, and none.test does not exist. */
static struct sockaddr_in swallower;
static int questions;

static int answer(const char *name)
{
    if (strcmp(name, "slow.test") == 0) {
        local_sleep(60);
    }
    if (strcmp(name, "none.test") == 0) {
        return EAI_NONAME;
    }
    ++questions;
    return strcmp(name, "never.test") == 0 || (strcmp(name, "again.test") == 0 && questions < 3)
               ? EAI_AGAIN
               : 0;
}

int getaddrinfo(const char *restrict node, const char *restrict service,
                const struct addrinfo *restrict hints, struct addrinfo **restrict result)
{
    int (*resolve)(const char *, const char *, const struct addrinfo *, struct addrinfo **);
    void *symbol = dlsym(RTLD_NEXT, "getaddrinfo");
    bool two = node != NULL && strcmp(node, "two.test") == 0, ours;
    struct addrinfo *first;
    int error;

    memcpy(&resolve, &symbol, sizeof(resolve));
    ours = node != NULL && strstr(node, ".test") != NULL && (hints->ai_flags & AI_NUMERICHOST) == 0;
    error = ours ? answer(node) : 0;
    if (error != 0) {
        return error;
    }
    error = resolve(ours ? "127.0.0.1" : node, service, hints, result);
    if (error != 0 || !two) {
        return error;
    }
    error = resolve("127.0.0.1", service, hints, &first);
    if (error == 0) {
        memcpy(first->ai_addr, &swallower, sizeof(swallower));
        first->ai_next = *result;
        *result = first;
    }
    return error;
}

/* Makes connections to `swallower` hang: nobody accepts, and the queue is full. */
static void fill_swallower(void)
{
    socklen_t length = sizeof(swallower);
    int fd = socket(AF_INET, SOCK_STREAM, 0);

    swallower =
        (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    ck_assert_int_eq(bind(fd, (struct sockaddr *)&swallower, sizeof(swallower)), 0);
    ck_assert_int_eq(listen(fd, 0), 0);
    ck_assert_int_eq(getsockname(fd, (struct sockaddr *)&swallower, &length), 0);
    for (int i = 0; i < 8; ++i) {
        int client = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);

        (void)connect(client, (struct sockaddr *)&swallower, sizeof(swallower));
    }
}

static int reach_the_second(const xm_job_env_t *env, int listen_fd, void *arg)
{
    xm_job_env_t mine = *env;

    (void)arg;
    if (env->rank != 0) {
        (void)snprintf(mine.master_addr, sizeof(mine.master_addr), "two.test");
    }
    xm_bootstrap_destroy(join(&mine, listen_fd));
    return 0;
}

START_TEST(a_dead_address_does_not_hide_the_next)
{
    fill_swallower();
    local_job_run(3, JOB_LIMIT_S, reach_the_second, NULL);
}
END_TEST

static int ask_again(const xm_job_env_t *env, int listen_fd, void *arg)
{
    xm_job_env_t mine = *env;

    (void)arg;
    if (env->rank != 0) {
        (void)snprintf(mine.master_addr, sizeof(mine.master_addr), "again.test");
    }
    xm_bootstrap_destroy(join(&mine, listen_fd));
    local_expect(env->rank == 0 || questions == 3, "%d questions", questions);
    return 0;
}

START_TEST(a_busy_name_server_is_asked_again)
{
    local_job_run(2, JOB_LIMIT_S, ask_again, NULL);
}
END_TEST

START_TEST(a_resolver_has_a_deadline)
{
    static const struct {
        const char *name;
        xm_status_t status;
        const char *text;
    } rows[] = {
        {"slow.test", XM_ERR_TIMEOUT, "MASTER_ADDR slow.test: the resolver gave no answer in time"},
        {"never.test", XM_ERR_UNREACHABLE, "MASTER_ADDR never.test: Temporary failure"}};
    xm_job_env_t env = {.rank = 1, .size = 2, .master_port = 7};
    double started = local_now();
    xm_bootstrap_t *bootstrap;

    (void)snprintf(env.master_addr, sizeof(env.master_addr), "%s", rows[_i].name);
    ck_assert_xm_fails(xm_bootstrap_create_tcp(&env, -1, 2.0, &bootstrap), rows[_i].status,
                       rows[_i].text);
    ck_assert_double_lt(local_now() - started, limit_s / 2);
}
END_TEST

/* Rank 0 listens itself, at a name that only its own machine resolves to a loopback address (many
 * systems have their host name in /etc/hosts so). Others must reach it by another address. */
static int listen_by_name(const xm_job_env_t *env, int listen_fd, void *arg)
{
    double deadline = local_now() + limit_s;
    xm_job_env_t mine = *env;
    xm_bootstrap_t *bootstrap;
    xm_status_t status;

    (void)arg;
    (void)close(listen_fd);
    if (env->rank == 0) {
        local_expect(gethostname(mine.master_addr, sizeof(mine.master_addr)) == 0, "gethostname");
    } else {
        (void)snprintf(mine.master_addr, sizeof(mine.master_addr), "127.0.0.77");
    }
    do { /* the port is free once the test and its other processes have closed it */
        status = xm_bootstrap_create_tcp(&mine, -1, limit_s, &bootstrap);
        local_sleep(0.01);
    } while (status == XM_ERR_IO && local_now() < deadline);
    local_expect(status == XM_OK, "%s", xm_last_error());
    xm_bootstrap_destroy(bootstrap);
    return 0;
}

/* Whether a host name resolves to nothing but addresses of the loopback network. */
static bool is_local_name(const char *name)
{
    struct addrinfo hints = {.ai_family = AF_INET, .ai_socktype = SOCK_STREAM}, *found;
    bool local;

    if (getaddrinfo(name, NULL, &hints, &found) != 0) {
        return false;
    }
    local = (ntohl(((const struct sockaddr_in *)(const void *)found->ai_addr)->sin_addr.s_addr) >>
             24) == 127;
    freeaddrinfo(found);
    return local;
}

START_TEST(a_host_name_is_listened_to_everywhere)
{
    char name[256];

    ck_assert_int_eq(gethostname(name, sizeof(name)), 0);
    if (!is_local_name(name)) {
        return; /* this machine's name has a real address: nothing to go wrong */
    }
    local_job_run(2, JOB_LIMIT_S, listen_by_name, NULL);
}
END_TEST

static int wrong_size(const xm_job_env_t *env, int listen_fd, void *arg)
{
    xm_job_env_t mine = *env;
    xm_bootstrap_t *bootstrap;

    (void)arg;
    mine.size = env->rank == 1 ? 9 : env->size;
    local_expect_fails(xm_bootstrap_create_tcp(&mine, listen_fd, limit_s, &bootstrap),
                       XM_ERR_MISMATCH, "was started for 9 ranks, rank 0 for 3");
    return 0;
}

START_TEST(differing_sizes_are_named)
{
    local_job_t job;

    /* Rank 2 is absent, so that nobody can be refused before he has arrived. */
    local_job_start(&job, 3, 1u << 2, JOB_LIMIT_S, wrong_size, NULL);
    local_job_wait(&job, 0);
}
END_TEST

static int same_rank(const xm_job_env_t *env, int listen_fd, void *arg)
{
    xm_job_env_t mine = *env;
    xm_bootstrap_t *bootstrap;

    (void)arg;
    mine.rank = env->rank == 0 ? 0 : 1;
    mine.size = 4;
    local_expect_fails(xm_bootstrap_create_tcp(&mine, listen_fd, limit_s, &bootstrap),
                       XM_ERR_MISMATCH, "rank 1 exists twice: host ");
    return 0;
}

START_TEST(a_duplicate_rank_is_named)
{
    local_job_run(3, JOB_LIMIT_S, same_rank, NULL);
}
END_TEST

static atomic_int *hellos; /* of rank 1; shared */
static bool counts_hellos, dies_after_sending;
static bool is_another_build; /* its version differs in a bit, in what it says and what it reads */

enum { VERSION_AT = 4, HEADER = 16, OTHER_BIT = 0x40 };

/* Stand before the C library's. All that a rank sends before its welcome is its hello. */
ssize_t send(int fd, const void *bytes, size_t length, int flags)
{
    ssize_t (*send_bytes)(int, const void *, size_t, int);
    void *symbol = dlsym(RTLD_NEXT, "send");
    uint8_t changed[HEADER];
    ssize_t sent;

    memcpy(&send_bytes, &symbol, sizeof(send_bytes));
    if (is_another_build && length >= HEADER) {
        memcpy(changed, bytes, HEADER);
        changed[VERSION_AT] ^= OTHER_BIT;
        bytes = changed;
        length = HEADER;
    }
    sent = send_bytes(fd, bytes, length, flags);
    if (counts_hellos) {
        (void)atomic_fetch_add(hellos, 1);
    }
    if (dies_after_sending) {
        (void)raise(SIGKILL);
    }
    return sent;
}

ssize_t recv(int fd, void *bytes, size_t length, int flags)
{
    ssize_t (*receive_bytes)(int, void *, size_t, int);
    void *symbol = dlsym(RTLD_NEXT, "recv");
    ssize_t received;

    memcpy(&receive_bytes, &symbol, sizeof(receive_bytes));
    received = receive_bytes(fd, bytes, length, flags);
    if (is_another_build && received == HEADER) {
        ((uint8_t *)bytes)[VERSION_AT] ^= OTHER_BIT;
    }
    return received;
}

/* Whichever of the two is the other build: each ends with one sentence that says so. */
static int meet_another_build(const xm_job_env_t *env, int listen_fd, void *arg)
{
    double started = local_now();
    xm_bootstrap_t *bootstrap;

    is_another_build = env->rank == *(const int *)arg;
    if (env->rank == 0) {
        local_expect_fails(xm_bootstrap_create_tcp(env, listen_fd, 2.0, &bootstrap), XM_ERR_TIMEOUT,
                           "1 of 2 ranks are missing: 1; connections turned away: 1 of another "
                           "version of crossmesh");
        return 0;
    }
    local_expect_fails(xm_bootstrap_create_tcp(env, -1, limit_s, &bootstrap), XM_ERR_UNSUPPORTED,
                       "rank 1 runs another build of crossmesh than rank 0 at 127.0.0.1 port ");
    local_expect(local_now() - started < limit_s / 2, "took %g s", local_now() - started);
    return 0;
}

START_TEST(another_build_is_refused)
{
    int odd = _i;

    local_job_run(2, JOB_LIMIT_S, meet_another_build, &odd);
}
END_TEST

static int die_early(const xm_job_env_t *env, int listen_fd, void *arg)
{
    xm_bootstrap_t *bootstrap;

    (void)arg;
    counts_hellos = env->rank == 1;
    if (env->rank == 3) {
        local_await(hellos, 1); /* or rank 1 might find nobody any more */
        dies_after_sending = true;
    }
    local_expect_fails(xm_bootstrap_create_tcp(env, listen_fd, limit_s, &bootstrap),
                       XM_ERR_PEER_DIED, "died during the rendezvous");
    local_expect(strstr(xm_last_error(), "rank 3 (host ") != NULL, "'%s'", xm_last_error());
    return 0;
}

START_TEST(a_death_during_the_rendezvous_is_named)
{
    local_job_t job;

    hellos = local_shared(sizeof(*hellos));
    local_job_start(&job, 4, 1u << 2, JOB_LIMIT_S, die_early, NULL);
    local_job_wait(&job, 1u << 3);
}
END_TEST

/* Whatever listens first closes the connection; then rank 0 takes over. */
static int closed_once(const xm_job_env_t *env, int listen_fd, void *arg)
{
    xm_bootstrap_t *bootstrap;

    (void)arg;
    if (env->rank == 0) {
        (void)close(accept(listen_fd, NULL, NULL));
    }
    bootstrap = join(env, listen_fd);
    local_expect_ok(xm_bootstrap_barrier(bootstrap, limit_s));
    xm_bootstrap_destroy(bootstrap);
    return 0;
}

START_TEST(a_dropped_connection_is_made_again)
{
    local_job_run(3, JOB_LIMIT_S, closed_once, NULL);
}
END_TEST

/* Rank 0 dies with the hellos unread: the others learn it at once, not after their limit. */
static int die_unread(const xm_job_env_t *env, int listen_fd, void *arg)
{
    double started = local_now();
    xm_bootstrap_t *bootstrap;

    (void)arg;
    if (env->rank == 0) {
        (void)close(accept(listen_fd, NULL, NULL));
        local_sleep(0.2);
        _exit(0);
    }
    local_expect_fails(xm_bootstrap_create_tcp(env, -1, limit_s, &bootstrap), XM_ERR_PEER_DIED,
                       "rank 0 ended before it welcomed rank 1");
    local_expect(local_now() - started < limit_s / 2, "took %g s", local_now() - started);
    return 0;
}

START_TEST(a_rank_0_that_dies_unwelcoming_is_named)
{
    local_job_run(2, JOB_LIMIT_S, die_unread, NULL);
}
END_TEST

/* What may listen at the master port instead of rank 0, and for how long the other rank lets it:
 * what is said is found out at once. */
static const struct {
    const char *bytes;
    size_t length;
    bool closes;
    double limit;
    xm_status_t status;
    const char *text;
} foreigners[] = {
    {"", 0, false, 0.5, XM_ERR_TIMEOUT,
     "nothing there has spoken crossmesh's protocol within 0.5 s"},
    {"", 0, true, 4, XM_ERR_TIMEOUT, "connections without a word within 4 s: it is not rank 0"},
    {"HTTP/1.1 400 Bad Request\r\n\r\n", 28, true, LIMIT_S, XM_ERR_CORRUPT,
     "is not rank 0 of crossmesh: bootstrap frame: not one of crossmesh's"},
    {"XMB1\1\0\x2\0\0\0\0\0\x10\0\0\0", 16, false, LIMIT_S, XM_ERR_UNSUPPORTED,
     "version 1, this build speaks"},
    /* All blocks, 256 MiB of them, before a challenge. */
    {"XMB1\4\0\5\0\1\0\0\0\0\0\0\x10", 16, false, LIMIT_S, XM_ERR_CORRUPT,
     "type 5 before its time"},
    {"XMB1\4\0\x9\0\0\0\0\0\x14\0\0\0\x2\0\0\0................", 36, false, LIMIT_S, XM_ERR_CORRUPT,
     "a challenge of 20 bytes"},
};
enum { FOREIGNERS = sizeof(foreigners) / sizeof(foreigners[0]) };

typedef struct {
    int kind;
    atomic_int listening; /* the foreigner is there */
    int seen;             /* by the other rank */
} encounter_t;

/* Rank 0 is the foreigner. */
static int meet_foreigner(const xm_job_env_t *env, int listen_fd, void *arg)
{
    encounter_t *encounter = arg;
    int kind = encounter->kind;
    double deadline = local_now() + limit_s;
    xm_bootstrap_t *bootstrap;

    if (env->rank != 0) {
        double started;

        local_await(&encounter->listening, 1);
        started = local_now();
        local_expect_fails(xm_bootstrap_create_tcp(env, -1, foreigners[kind].limit, &bootstrap),
                           foreigners[kind].status, foreigners[kind].text);
        local_expect(local_now() - started < limit_s / 2, "took %g s", local_now() - started);
        local_expect(strstr(xm_last_error(), "127.0.0.1 port ") != NULL, "%s", xm_last_error());
        __atomic_store_n(&encounter->seen, 1, __ATOMIC_SEQ_CST);
        return 0;
    }
    atomic_store(&encounter->listening, 1);
    while (local_now() < deadline && __atomic_load_n(&encounter->seen, __ATOMIC_SEQ_CST) == 0) {
        struct pollfd entry = {.fd = listen_fd, .events = POLLIN};
        int fd = poll(&entry, 1, 20) > 0 ? accept(listen_fd, NULL, NULL) : -1;

        if (fd >= 0) {
            (void)send(fd, foreigners[kind].bytes, foreigners[kind].length, MSG_NOSIGNAL);
        }
        if (fd >= 0 && foreigners[kind].closes) {
            (void)close(fd);
        }
    }
    return 0;
}

START_TEST(a_foreign_listener_is_named)
{
    encounter_t *encounter = local_shared(sizeof(*encounter));

    encounter->kind = _i;
    local_job_run(2, JOB_LIMIT_S, meet_foreigner, encounter);
}
END_TEST

/* Rank 0 listens where it is told, and nowhere else. */
static int listen_where_told(const xm_job_env_t *env, int listen_fd, void *arg)
{
    bool by_setting = *(int *)arg != 0;
    xm_job_env_t mine = *env;
    double deadline = local_now() + limit_s / 2;
    xm_bootstrap_t *bootstrap;
    xm_status_t status;

    (void)close(listen_fd);
    (void)snprintf(mine.master_addr, sizeof(mine.master_addr), "127.0.0.5");
    if (env->rank == 0 && by_setting) {
        local_expect(setenv("XM_BIND", "127.0.0.5", 1) == 0, "setenv");
        (void)snprintf(mine.master_addr, sizeof(mine.master_addr), "localhost");
    }
    if (env->rank == 1) {
        while (connect_to("127.0.0.5", env->master_port) != 0 && local_now() < deadline) {
            local_sleep(0.005);
        }
        /* The test's own socket, which nobody uses here, was there and will be gone. */
        while (connect_to("127.0.0.1", env->master_port) == 0 && local_now() < deadline) {
            local_sleep(0.005);
        }
        local_expect(connect_to("127.0.0.1", env->master_port) != 0, "it listens elsewhere, too");
    }
    do { /* the port is free once the test and its other processes have closed it */
        status = xm_bootstrap_create_tcp(&mine, -1, limit_s, &bootstrap);
        local_sleep(0.01);
    } while (status == XM_ERR_IO && local_now() < deadline);
    local_expect(status == XM_OK, "%s", xm_last_error());
    xm_bootstrap_destroy(bootstrap);
    return 0;
}

START_TEST(rank_0_listens_only_where_it_is_told)
{
    int by_setting = _i;

    local_job_run(2, JOB_LIMIT_S, listen_where_told, &by_setting);
}
END_TEST

START_TEST(a_bad_place_to_listen_is_named)
{
    xm_job_env_t env = {.rank = 0, .size = 2, .master_port = 12345, .master_addr = "127.0.0.1"};
    xm_bootstrap_t *bootstrap;

    ck_assert_int_eq(setenv("XM_BIND", "eth0", 1), 0);
    ck_assert_xm_fails(xm_bootstrap_create_tcp(&env, -1, 1.0, &bootstrap), XM_ERR_PARSE,
                       "XM_BIND: 'eth0' is not an IPv4 or IPv6 address");
    ck_assert_int_eq(setenv("XM_BIND", "203.0.113.1", 1), 0);
    ck_assert_xm_fails(xm_bootstrap_create_tcp(&env, -1, 1.0, &bootstrap), XM_ERR_IO,
                       "rank 0 cannot listen at 203.0.113.1 port 12345");
}
END_TEST

START_TEST(impossible_jobs_are_refused)
{
    xm_job_env_t env = {.rank = -1, .size = -1, .master_port = -1};
    xm_bootstrap_t *bootstrap = NULL;

    ck_assert_xm_fails(xm_bootstrap_create_tcp(&env, -1, 1.0, &bootstrap), XM_ERR_INVALID_ARGUMENT,
                       "RANK and WORLD_SIZE");
    env.rank = 0;
    env.size = 2;
    ck_assert_xm_fails(xm_bootstrap_create_tcp(&env, -1, 1.0, &bootstrap), XM_ERR_INVALID_ARGUMENT,
                       "need MASTER_ADDR and MASTER_PORT");
    (void)snprintf(env.master_addr, sizeof(env.master_addr), "none.test");
    env.master_port = 1;
    env.rank = 1;
    ck_assert_xm_fails(xm_bootstrap_create_tcp(&env, -1, limit_s, &bootstrap), XM_ERR_UNREACHABLE,
                       "MASTER_ADDR none.test: Name or service not known");
    ck_assert_ptr_null(bootstrap);
    env.size = 1;
    env.rank = 0;
    ck_assert_xm_ok(xm_bootstrap_create_tcp(&env, -1, 1.0, &bootstrap));
    ck_assert_xm_ok(xm_bootstrap_barrier(bootstrap, 1.0));
    xm_bootstrap_destroy(bootstrap);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("rendezvous");
    TCase *tcase = tcase_create("jobs");

    tcase_set_timeout(tcase, JOB_LIMIT_S + 5);
    tcase_add_test(tcase, missing_ranks_are_listed);
    tcase_add_test(tcase, a_missing_root_is_named);
    tcase_add_test(tcase, a_dead_address_does_not_hide_the_next);
    tcase_add_test(tcase, a_busy_name_server_is_asked_again);
    tcase_add_loop_test(tcase, a_resolver_has_a_deadline, 0, 2);
    tcase_add_test(tcase, a_host_name_is_listened_to_everywhere);
    tcase_add_loop_test(tcase, rank_0_listens_only_where_it_is_told, 0, 2);
    tcase_add_test(tcase, a_bad_place_to_listen_is_named);
    tcase_add_test(tcase, differing_sizes_are_named);
    tcase_add_test(tcase, a_duplicate_rank_is_named);
    tcase_add_loop_test(tcase, another_build_is_refused, 0, 2);
    tcase_add_test(tcase, a_death_during_the_rendezvous_is_named);
    tcase_add_test(tcase, a_dropped_connection_is_made_again);
    tcase_add_test(tcase, a_rank_0_that_dies_unwelcoming_is_named);
    tcase_add_loop_test(tcase, a_foreign_listener_is_named, 0, FOREIGNERS);
    tcase_add_test(tcase, impossible_jobs_are_refused);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
