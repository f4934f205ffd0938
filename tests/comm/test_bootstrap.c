#include "comm/bootstrap.h"

#include <arpa/inet.h>
#include <dlfcn.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "local_job.h"
#include "xm_test.h"

enum { JOB_LIMIT_S = 20 };
static const double limit_s = 10.0;

static xm_bootstrap_t *join(const xm_job_env_t *env, int listen_fd)
{
    xm_bootstrap_t *bootstrap;

    local_expect_ok(xm_bootstrap_create_tcp(env, listen_fd, limit_s, &bootstrap));
    local_expect(xm_bootstrap_rank(bootstrap) == env->rank, "rank");
    local_expect(xm_bootstrap_size(bootstrap) == env->size, "size");
    return bootstrap;
}

/* Collectives */

static uint8_t block_byte(int rank, size_t i, int round)
{
    return (uint8_t)(31 * rank + 7 * round + (int)(i % 251));
}

static int gather(const xm_job_env_t *env, int listen_fd, void *arg)
{
    static const size_t lengths[] = {1, 8, 1000, 300000, 0, 17};
    xm_bootstrap_t *bootstrap = join(env, listen_fd);

    (void)arg;
    for (int round = 0; round < 12; ++round) {
        size_t length = lengths[round % 6];
        uint8_t *own = malloc(length + 1), *all = calloc(1, length * (size_t)env->size + 1);

        local_expect(own != NULL && all != NULL, "memory");
        for (size_t i = 0; i < length; ++i) {
            own[i] = block_byte(env->rank, i, round);
        }
        /* Uneven arrival: some are a round ahead of rank 0. */
        local_sleep(0.002 * ((env->rank + round) % 3));
        local_expect_ok(xm_bootstrap_allgather(bootstrap, own, all, length, limit_s));
        for (size_t i = 0; i < length * (size_t)env->size; ++i) {
            local_expect(all[i] == block_byte((int)(i / length), i % length, round), "byte %zu", i);
        }
        free(own);
        free(all);
    }
    xm_bootstrap_destroy(bootstrap);
    return 0;
}

START_TEST(allgather_by_rank)
{
    static const int sizes[] = {1, 2, 3, 8};

    local_job_run(sizes[_i], JOB_LIMIT_S, gather, NULL);
}
END_TEST

static int gather_blobs(const xm_job_env_t *env, int listen_fd, void *arg)
{
    xm_bootstrap_t *bootstrap = join(env, listen_fd);
    size_t length = env->rank == 2 ? 0 : (size_t)(env->rank + 1) * 5000, *offsets;
    uint8_t *own = malloc(length + 1);
    void *all;

    (void)arg;
    for (size_t i = 0; i < length; ++i) {
        own[i] = block_byte(env->rank, i, 0);
    }
    local_expect_ok(xm_bootstrap_allgatherv(bootstrap, own, length, &all, &offsets, limit_s));
    local_expect(offsets[0] == 0, "first offset");
    for (int rank = 0; rank < env->size; ++rank) {
        size_t expected = rank == 2 ? 0 : (size_t)(rank + 1) * 5000;

        local_expect(offsets[rank + 1] - offsets[rank] == expected, "length of rank %d", rank);
        for (size_t i = 0; i < expected; ++i) {
            local_expect(((uint8_t *)all)[offsets[rank] + i] == block_byte(rank, i, 0),
                         "byte %zu of rank %d", i, rank);
        }
    }
    free(all);
    free(offsets);
    free(own);
    local_expect_ok(xm_bootstrap_allgatherv(bootstrap, NULL, 0, &all, &offsets, limit_s));
    local_expect(offsets[env->size] == 0, "nothing from nobody");
    free(all);
    free(offsets);
    xm_bootstrap_destroy(bootstrap);
    return 0;
}

START_TEST(allgatherv_of_uneven_blobs)
{
    local_job_run(5, JOB_LIMIT_S, gather_blobs, NULL);
}
END_TEST

static int meet_late(const xm_job_env_t *env, int listen_fd, void *arg)
{
    double *arrived = arg;
    xm_bootstrap_t *bootstrap = join(env, listen_fd);

    local_sleep(0.05 * env->rank);
    arrived[env->rank] = local_now();
    local_expect_ok(xm_bootstrap_barrier(bootstrap, limit_s));
    local_expect(arrived[env->size - 1] > 0.0, "left before the last one came");
    xm_bootstrap_destroy(bootstrap);
    return 0;
}

START_TEST(barrier_waits_for_the_last)
{
    local_job_run(4, JOB_LIMIT_S, meet_late, local_shared(4 * sizeof(double)));
}
END_TEST

static int misuse(const xm_job_env_t *env, int listen_fd, void *arg)
{
    xm_bootstrap_t *bootstrap = join(env, listen_fd);
    char byte = 0, bytes[2];

    (void)arg;
    local_expect_fails(xm_bootstrap_allgather_test(bootstrap), XM_ERR_INVALID_ARGUMENT,
                       "none was posted");
    local_expect_fails(xm_bootstrap_allgather(bootstrap, NULL, NULL, 4, limit_s),
                       XM_ERR_INVALID_ARGUMENT, "NULL buffer for 4 bytes");
    local_expect_fails(xm_bootstrap_allgather(bootstrap, &byte, bytes, (size_t)1 << 40, limit_s),
                       XM_ERR_INVALID_ARGUMENT, "exceed");
    local_expect_ok(xm_bootstrap_barrier(bootstrap, limit_s));
    if (env->rank == 0) {
        local_expect_ok(xm_bootstrap_allgather_post(bootstrap, &byte, bytes, 1));
        local_expect_fails(xm_bootstrap_allgather_post(bootstrap, &byte, bytes, 1),
                           XM_ERR_INVALID_ARGUMENT, "another one is in flight");
        while (xm_bootstrap_allgather_test(bootstrap) == XM_IN_PROGRESS) {
            local_sleep(0.001);
        }
    } else {
        local_expect_ok(xm_bootstrap_allgather(bootstrap, &byte, bytes, 1, limit_s));
    }
    xm_bootstrap_destroy(bootstrap);
    xm_bootstrap_destroy(NULL);
    return 0;
}

START_TEST(misuse_is_refused)
{
    local_job_run(2, JOB_LIMIT_S, misuse, NULL);
}
END_TEST

/* Faults */

typedef struct {
    int victim;
    int state; /* 0: others poll, 1: in an allgather, 2: asleep on the descriptor */
    double died_at;
} death_t;

static int outlive(const xm_job_env_t *env, int listen_fd, void *arg)
{
    death_t *death = arg;
    xm_bootstrap_t *bootstrap = join(env, listen_fd);
    double deadline = local_now() + limit_s, noticed;
    char name[64], bytes[16];
    int failed_rank = -1;
    xm_status_t status = XM_OK;

    (void)snprintf(name, sizeof(name), "rank %d (host ", death->victim);
    local_expect_ok(xm_bootstrap_barrier(bootstrap, limit_s));
    local_expect_ok(xm_bootstrap_poll(bootstrap, &failed_rank));
    if (env->rank == death->victim) {
        local_sleep(0.05);
        death->died_at = local_now();
        (void)raise(SIGKILL);
    }
    if (death->state == 1) {
        status = xm_bootstrap_allgather(bootstrap, name, bytes, 1, limit_s);
    }
    while (status == XM_OK && local_now() < deadline) {
        struct pollfd entry = {.fd = xm_bootstrap_fd(bootstrap), .events = POLLIN};

        if (death->state == 2) {
            local_expect(poll(&entry, 1, 5000) == 1, "the descriptor stayed silent");
        }
        status = xm_bootstrap_poll(bootstrap, &failed_rank);
    }
    noticed = local_now() - death->died_at;
    local_expect(status == XM_ERR_PEER_DIED, "%s", xm_status_string(status));
    local_expect(strstr(xm_last_error(), name) != NULL && strstr(xm_last_error(), ") died") != NULL,
                 "'%s' lacks '%s'", xm_last_error(), name);
    local_expect(noticed < local_patience(2.0), "noticed after %g s", noticed);
    /* The verdict is sticky, whatever is called. */
    failed_rank = -1;
    local_expect_fails(xm_bootstrap_poll(bootstrap, &failed_rank), XM_ERR_PEER_DIED, name);
    local_expect(failed_rank == death->victim, "rank %d is blamed", failed_rank);
    local_expect_fails(xm_bootstrap_barrier(bootstrap, limit_s), XM_ERR_PEER_DIED, name);
    local_sleep(0.05 * env->rank);
    local_expect_fails(xm_bootstrap_poll(bootstrap, NULL), XM_ERR_PEER_DIED, name);
    xm_bootstrap_destroy(bootstrap);
    return 0;
}

START_TEST(a_death_is_named)
{
    death_t *death = local_shared(sizeof(*death));
    local_job_t job;

    death->victim = _i % 4;
    death->state = _i / 4;
    local_job_start(&job, 4, 0, JOB_LIMIT_S, outlive, death);
    local_job_wait(&job, 1u << death->victim);
}
END_TEST

static int abort_one(const xm_job_env_t *env, int listen_fd, void *arg)
{
    int quitter = *(int *)arg, failed_rank = -1;
    double deadline = local_now() + limit_s;
    xm_bootstrap_t *bootstrap = join(env, listen_fd);
    char name[64];
    xm_status_t status;

    (void)snprintf(name, sizeof(name), "rank %d (host ", quitter);
    local_expect_ok(xm_bootstrap_barrier(bootstrap, limit_s));
    if (env->rank == quitter) {
        xm_bootstrap_abort(bootstrap, "tensor 3 has no shape");
        xm_bootstrap_abort(bootstrap, "a later thought");
        local_expect_fails(xm_bootstrap_barrier(bootstrap, limit_s), XM_ERR_CANCELED,
                           "tensor 3 has no shape");
        xm_bootstrap_destroy(bootstrap);
        return 0;
    }
    do {
        status = xm_bootstrap_poll(bootstrap, &failed_rank);
    } while (status == XM_OK && local_now() < deadline);
    local_expect(status == XM_ERR_CANCELED && failed_rank == quitter, "%s of rank %d",
                 xm_status_string(status), failed_rank);
    local_expect(strstr(xm_last_error(), name) != NULL &&
                     strstr(xm_last_error(), "gave up: tensor 3 has no shape") != NULL,
                 "'%s'", xm_last_error());
    xm_bootstrap_destroy(bootstrap);
    return 0;
}

START_TEST(an_abort_is_quoted)
{
    int quitter = _i;

    local_job_run(4, JOB_LIMIT_S, abort_one, &quitter);
}
END_TEST

typedef struct {
    int leaver;
    int looked; /* ranks that saw no fault */
} leave_t;

/* One rank leaves in order; nobody minds until he is needed. */
static int leave(const xm_job_env_t *env, int listen_fd, void *arg)
{
    leave_t *shared = arg;
    int leaver = shared->leaver;
    xm_bootstrap_t *bootstrap = join(env, listen_fd);
    char name[64];

    (void)snprintf(name, sizeof(name), "rank %d (host ", leaver);
    local_expect_ok(xm_bootstrap_barrier(bootstrap, limit_s));
    if (env->rank == leaver) {
        xm_bootstrap_destroy(bootstrap);
        return 0;
    }
    for (int i = 0; i < 50; ++i) {
        local_expect_ok(xm_bootstrap_poll(bootstrap, NULL));
        local_sleep(0.002);
    }
    (void)__atomic_add_fetch(&shared->looked, 1, __ATOMIC_SEQ_CST);
    while (__atomic_load_n(&shared->looked, __ATOMIC_SEQ_CST) < env->size - 1) {
        local_sleep(0.001);
    }
    local_expect_fails(xm_bootstrap_barrier(bootstrap, limit_s), XM_ERR_PEER_DIED, name);
    local_expect(strstr(xm_last_error(), "left the job before allgather 2") != NULL, "'%s'",
                 xm_last_error());
    xm_bootstrap_destroy(bootstrap);
    return 0;
}

START_TEST(leaving_in_order_is_no_fault)
{
    leave_t *shared = local_shared(sizeof(*shared));

    shared->leaver = _i;
    local_job_run(3, JOB_LIMIT_S, leave, shared);
}
END_TEST

static int gather_late(const xm_job_env_t *env, int listen_fd, void *arg)
{
    xm_bootstrap_t *bootstrap = join(env, listen_fd);
    char byte = 0, bytes[4];

    (void)arg;
    if (env->rank == 2) {
        local_sleep(0.6);
        local_expect(xm_bootstrap_poll(bootstrap, NULL) < 0, "rank 2 was not told");
    } else if (env->rank == 0) {
        local_expect_fails(xm_bootstrap_allgather(bootstrap, &byte, bytes, 1, 0.3), XM_ERR_TIMEOUT,
                           "allgather 1 timed out after 0.3 s: 1 of 4 ranks did not call it: 2");
        local_expect_fails(xm_bootstrap_barrier(bootstrap, 0.3), XM_ERR_TIMEOUT, "allgather 1");
    } else {
        local_expect_fails(xm_bootstrap_allgather(bootstrap, &byte, bytes, 1, 2.0), XM_ERR_TIMEOUT,
                           "1 of 4 ranks did not call it: 2");
    }
    local_sleep(0.6);
    xm_bootstrap_destroy(bootstrap);
    return 0;
}

START_TEST(allgather_times_out_with_names)
{
    local_job_run(4, JOB_LIMIT_S, gather_late, NULL);
}
END_TEST

static int gather_unequal(const xm_job_env_t *env, int listen_fd, void *arg)
{
    xm_bootstrap_t *bootstrap = join(env, listen_fd);
    char own[8] = {0}, bytes[64];

    (void)arg;
    local_expect_fails(
        xm_bootstrap_allgather(bootstrap, own, bytes, env->rank == 2 ? 8 : 4, limit_s),
        XM_ERR_MISMATCH, "offered 8 bytes in allgather 1 where rank 0 offered 4");
    xm_bootstrap_destroy(bootstrap);
    return 0;
}

START_TEST(unequal_lengths_are_named)
{
    local_job_run(3, JOB_LIMIT_S, gather_unequal, NULL);
}
END_TEST

/* Rendezvous */

static int miss_ranks(const xm_job_env_t *env, int listen_fd, void *arg)
{
    xm_bootstrap_t *bootstrap;
    double started = local_now();

    (void)arg;
    local_expect_fails(xm_bootstrap_create_tcp(env, listen_fd, 0.5, &bootstrap), XM_ERR_TIMEOUT,
                       "rendezvous timed out after 0.5 s: 2 of 5 ranks are missing: 2, 4");
    local_expect(local_now() - started < local_patience(3.0), "took %g s", local_now() - started);
    return 0;
}

START_TEST(missing_ranks_are_listed)
{
    local_job_t job;

    local_job_start(&job, 5, 1u << 2 | 1u << 4, JOB_LIMIT_S, miss_ranks, NULL);
    local_job_wait(&job, 0);
}
END_TEST

static int miss_root(const xm_job_env_t *env, int listen_fd, void *arg)
{
    xm_bootstrap_t *bootstrap;
    char text[64];

    (void)arg;
    (void)listen_fd;
    local_sleep(0.3); /* until the test has closed the listening socket */
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

/* A name with two addresses, for the test below: the first swallows connections (its listener's
 * queue is full), the second is the real one. Stands before the C library's resolver. */
static struct sockaddr_in swallower;

int getaddrinfo(const char *restrict node, const char *restrict service,
                const struct addrinfo *restrict hints, struct addrinfo **restrict result)
{
    int (*resolve)(const char *, const char *, const struct addrinfo *, struct addrinfo **);
    void *symbol = dlsym(RTLD_NEXT, "getaddrinfo");
    bool two = node != NULL && strcmp(node, "two.test") == 0;
    struct addrinfo *first;
    int error;

    memcpy(&resolve, &symbol, sizeof(resolve));
    error = resolve(two ? "127.0.0.1" : node, service, hints, result);
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

/* A header of version 2 from the one of the two ranks that is not a real one. */
static const char other_version[] = "XMB1\2\0\1\0\0\0\0\0\x10\0\0";

/* Rank 1 speaks another version; it is told which rank 0 does. */
static int called_by_another_version(const xm_job_env_t *env, int listen_fd, void *arg)
{
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_port = htons((uint16_t)env->master_port),
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    char answer[2048] = "";
    xm_bootstrap_t *bootstrap;
    size_t length = 0;
    ssize_t got = 1;
    int fd;

    (void)arg;
    if (env->rank == 0) {
        local_expect_fails(xm_bootstrap_create_tcp(env, listen_fd, limit_s, &bootstrap),
                           XM_ERR_MISMATCH, "version 2, this build speaks 1");
        return 0;
    }
    fd = socket(AF_INET, SOCK_STREAM, 0);
    local_expect(connect(fd, (struct sockaddr *)&address, sizeof(address)) == 0, "connect");
    local_expect(send(fd, other_version, sizeof(other_version), 0) == sizeof(other_version),
                 "send");
    while (got > 0 && length < sizeof(answer) - 1) {
        got = recv(fd, answer + length, sizeof(answer) - 1 - length, 0);
        length += got > 0 ? (size_t)got : 0;
    }
    local_expect(length > 26 && memcmp(answer, "XMB1\1\0\3\0", 8) == 0, "%zu bytes", length);
    local_expect(strstr(answer + 26, "version 2, this build speaks 1") != NULL, "%s", answer + 26);
    (void)close(fd);
    return 0;
}

/* Rank 0 speaks another version. */
static int answered_by_another_version(const xm_job_env_t *env, int listen_fd, void *arg)
{
    xm_bootstrap_t *bootstrap;
    char hello[512];
    int fd;

    (void)arg;
    if (env->rank == 1) {
        local_expect_fails(xm_bootstrap_create_tcp(env, -1, limit_s, &bootstrap), XM_ERR_MISMATCH,
                           "rank 0 runs another version of crossmesh: bootstrap frame: version 2, "
                           "this build speaks 1");
        return 0;
    }
    fd = accept(listen_fd, NULL, NULL);
    local_expect(fd >= 0 && recv(fd, hello, sizeof(hello), 0) > 16, "no hello");
    local_expect(send(fd, other_version, sizeof(other_version), 0) == sizeof(other_version),
                 "send");
    local_sleep(0.2);
    (void)close(fd);
    return 0;
}

START_TEST(another_version_is_named)
{
    local_job_run(2, JOB_LIMIT_S, _i == 0 ? called_by_another_version : answered_by_another_version,
                  NULL);
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

static int die_early(const xm_job_env_t *env, int listen_fd, void *arg)
{
    xm_bootstrap_t *bootstrap;

    (void)arg;
    if (env->rank == 3) {
        (void)signal(SIGALRM, SIG_DFL);
        (void)ualarm(200000, 0);
    }
    local_expect_fails(xm_bootstrap_create_tcp(env, listen_fd, limit_s, &bootstrap),
                       XM_ERR_PEER_DIED, "died during the rendezvous");
    local_expect(strstr(xm_last_error(), "rank 3 (host ") != NULL, "'%s'", xm_last_error());
    return 0;
}

START_TEST(a_death_during_the_rendezvous_is_named)
{
    local_job_t job;

    local_job_start(&job, 4, 1u << 2, JOB_LIMIT_S, die_early, NULL);
    local_job_wait(&job, 1u << 3);
}
END_TEST

/* Strangers that connect to the port before the ranks do. Kinds of what they send. */
static const struct {
    const char *bytes;
    size_t length;
} garbage[] = {
    {"", 0},
    {"GET / HTTP/1.0\r\n\r\n", 18},
    {"XMB1\1\0\1\0\0\0\0\0\xff\xff\xff\xff", 16},             /* a hello of 4 GiB */
    {"XMB1\1\0\4\0\1\0\0\0\0\0\0\x10", 16},                   /* an unasked gather of 256 MiB */
    {"XMB1\1\0\1\0\0\0\0\0\x40\0\0\0half a hello", 28},       /* never completed */
    {"XMB1\1\0\1\0\0\0\0\0\x10\0\0\0................", 32},   /* an absurd identity */
    {"XMB1\1\0\6\0\0\0\0\0\0\0\0\0", 16},                     /* a goodbye */
    {"\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", 24}, /* zeroes */
};
enum { GARBAGE = sizeof(garbage) / sizeof(garbage[0]) };

static void annoy(const xm_job_env_t *env, int rounds)
{
    for (int i = 0; i < rounds; ++i) {
        struct sockaddr_in address = {.sin_family = AF_INET,
                                      .sin_port = htons((uint16_t)env->master_port),
                                      .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        int fd = socket(AF_INET, SOCK_STREAM, 0);

        local_expect(fd >= 0, "socket");
        local_expect(connect(fd, (struct sockaddr *)&address, sizeof(address)) == 0, "connect");
        (void)send(fd, garbage[i % GARBAGE].bytes, garbage[i % GARBAGE].length, MSG_NOSIGNAL);
        if (i % 3 == 0) {
            (void)close(fd); /* the others stay open until the process ends */
        }
    }
}

static int annoyed(const xm_job_env_t *env, int listen_fd, void *arg)
{
    int rounds = *(int *)arg, ranks[4];
    xm_bootstrap_t *bootstrap;

    if (env->rank == 1) {
        annoy(env, rounds);
        local_sleep(0.1);
    }
    bootstrap = join(env, listen_fd);
    local_expect_ok(
        xm_bootstrap_allgather(bootstrap, &env->rank, ranks, sizeof(env->rank), limit_s));
    local_expect(ranks[3] == 3, "rank 3 is %d", ranks[3]);
    xm_bootstrap_destroy(bootstrap);
    return 0;
}

START_TEST(strangers_do_no_harm)
{
    static const int rounds[] = {GARBAGE, 300};
    int count = rounds[_i];

    local_job_run(4, JOB_LIMIT_S, annoyed, &count);
}
END_TEST

/* Rank 0 starts late and finds the hellos of two ranks in front of a flood. */
static int flooded(const xm_job_env_t *env, int listen_fd, void *arg)
{
    xm_bootstrap_t *bootstrap;

    (void)arg;
    if (env->rank == 0) {
        local_sleep(1.0);
    } else if (env->rank == 1) {
        local_sleep(0.5);
        annoy(env, 300);
    }
    bootstrap = join(env, listen_fd);
    local_expect_ok(xm_bootstrap_barrier(bootstrap, limit_s));
    xm_bootstrap_destroy(bootstrap);
    return 0;
}

START_TEST(a_flood_does_not_push_out_a_rank)
{
    local_job_run(4, JOB_LIMIT_S, flooded, NULL);
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
    local_expect_fails(xm_bootstrap_create_tcp(env, -1, local_patience(limit_s), &bootstrap),
                       XM_ERR_PEER_DIED, "rank 0 ");
    local_expect(local_now() - started < local_patience(limit_s) / 2, "took %g s",
                 local_now() - started);
    return 0;
}

START_TEST(a_rank_0_that_dies_unwelcoming_is_named)
{
    local_job_run(2, JOB_LIMIT_S, die_unread, NULL);
}
END_TEST

/* A rank whose connection turns to garbage after the rendezvous is a fault, not a hang. */
static int corrupt(const xm_job_env_t *env, int listen_fd, void *arg)
{
    static const char noise[] = "garbage garbage garbage garbage";
    xm_bootstrap_t *bootstrap = join(env, listen_fd);

    (void)arg;
    local_expect_ok(xm_bootstrap_barrier(bootstrap, limit_s));
    if (env->rank == 1) {
        /* Whatever sockets this process has: the only one is the bootstrap's. */
        for (int fd = 3; fd < 64; ++fd) {
            (void)send(fd, noise, sizeof(noise), MSG_NOSIGNAL);
        }
    }
    local_expect_fails(xm_bootstrap_barrier(bootstrap, limit_s), XM_ERR_CORRUPT,
                       "sent bytes that are no bootstrap frame");
    local_expect(strstr(xm_last_error(), "rank 1 (host ") != NULL, "'%s'", xm_last_error());
    xm_bootstrap_destroy(bootstrap);
    return 0;
}

START_TEST(a_corrupt_connection_is_a_fault)
{
    local_job_run(3, JOB_LIMIT_S, corrupt, NULL);
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
    (void)snprintf(env.master_addr, sizeof(env.master_addr), "no.such.host.invalid");
    env.master_port = 1;
    env.rank = 1;
    ck_assert_xm_fails(xm_bootstrap_create_tcp(&env, -1, 1.0, &bootstrap), XM_ERR_UNREACHABLE,
                       "MASTER_ADDR no.such.host.invalid");
    ck_assert_ptr_null(bootstrap);
    env.size = 1;
    env.rank = 0;
    ck_assert_xm_ok(xm_bootstrap_create_tcp(&env, -1, 1.0, &bootstrap));
    ck_assert_xm_ok(xm_bootstrap_barrier(bootstrap, 1.0));
    xm_bootstrap_destroy(bootstrap);
}
END_TEST

/* A caller's own allgather: threads of one process that meet in shared arrays. */

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
} oob_seat_t;

static xm_status_t room_post(void *context, const void *send_buffer, void *receive, size_t length,
                             void **request)
{
    oob_seat_t *seat = context;

    ck_assert_uint_ge(length, 1);
    (void)pthread_mutex_lock(&seat->room->lock);
    seat->number = seat->room->posts[seat->rank];
    memcpy(seat->room->blocks[seat->number][seat->rank], send_buffer, length);
    ++seat->room->posts[seat->rank];
    (void)pthread_mutex_unlock(&seat->room->lock);
    seat->receive = receive;
    seat->length = length;
    *request = seat;
    return XM_OK;
}

static xm_status_t room_test(void *request)
{
    oob_seat_t *seat = request;
    oob_room_t *room = seat->room;
    bool all = true;

    if (room->broken) {
        return XM_ERR_IO;
    }
    (void)pthread_mutex_lock(&room->lock);
    for (int rank = 0; rank < OOB_RANKS; ++rank) {
        all = all && room->posts[rank] > seat->number;
    }
    for (int rank = 0; rank < OOB_RANKS && all; ++rank) {
        memcpy(seat->receive + (size_t)rank * seat->length, room->blocks[seat->number][rank],
               seat->length);
    }
    (void)pthread_mutex_unlock(&room->lock);
    return all && !room->stuck ? XM_OK : XM_IN_PROGRESS;
}

static void room_free(void *request)
{
    ++((oob_seat_t *)request)->freed;
}

static xm_oob_t room_table(oob_seat_t *seat)
{
    return (xm_oob_t){.struct_size = sizeof(xm_oob_t),
                      .rank = seat->rank,
                      .size = OOB_RANKS,
                      .context = seat,
                      .allgather_post = room_post,
                      .allgather_test = room_test,
                      .allgather_free = room_free};
}

static void *sit(void *arg)
{
    oob_seat_t *seat = arg;
    xm_oob_t oob = room_table(seat);
    xm_bootstrap_t *bootstrap;
    size_t *offsets;
    char text[32];
    void *all;
    int ranks[OOB_RANKS];

    ck_assert_xm_ok(xm_bootstrap_create_oob(&oob, &bootstrap));
    ck_assert_int_eq(xm_bootstrap_fd(bootstrap), -1);
    for (int i = 0; i < 5; ++i) {
        ck_assert_xm_ok(
            xm_bootstrap_allgather(bootstrap, &seat->rank, ranks, sizeof(int), limit_s));
        ck_assert_int_eq(ranks[2], 2);
        ck_assert_xm_ok(xm_bootstrap_barrier(bootstrap, limit_s));
    }
    (void)snprintf(text, sizeof(text), "%.*s", seat->rank + 1, "abc");
    ck_assert_xm_ok(
        xm_bootstrap_allgatherv(bootstrap, text, strlen(text), &all, &offsets, limit_s));
    ck_assert_mem_eq(all, "aababc", 6);
    ck_assert_uint_eq(offsets[2], 3);
    free(all);
    free(offsets);
    ck_assert_xm_ok(xm_bootstrap_poll(bootstrap, NULL));
    xm_bootstrap_abort(bootstrap, "nobody hears it");
    ck_assert_int_eq(seat->freed, seat->room->posts[seat->rank]);
    xm_bootstrap_destroy(bootstrap);
    return NULL;
}

static oob_room_t room = {.lock = PTHREAD_MUTEX_INITIALIZER};

START_TEST(a_callers_table_works)
{
    oob_seat_t seats[OOB_RANKS];
    pthread_t threads[OOB_RANKS];

    for (int rank = 0; rank < OOB_RANKS; ++rank) {
        seats[rank] = (oob_seat_t){.room = &room, .rank = rank};
        ck_assert_int_eq(pthread_create(&threads[rank], NULL, sit, &seats[rank]), 0);
    }
    for (int rank = 0; rank < OOB_RANKS; ++rank) {
        ck_assert_int_eq(pthread_join(threads[rank], NULL), 0);
    }
}
END_TEST

START_TEST(a_callers_table_may_fail)
{
    oob_seat_t seat = {.room = &room};
    xm_oob_t oob = room_table(&seat);
    xm_bootstrap_t *bootstrap;

    ck_assert_xm_ok(xm_bootstrap_create_oob(&oob, &bootstrap));
    ck_assert_xm_fails(xm_bootstrap_barrier(bootstrap, 0.05), XM_ERR_TIMEOUT,
                       "did not end within 0.05 s");
    ck_assert_xm_fails(xm_bootstrap_poll(bootstrap, NULL), XM_ERR_TIMEOUT, "out-of-band");
    ck_assert_int_eq(seat.freed, 1);
    xm_bootstrap_destroy(bootstrap);
    room.broken = true;
    ck_assert_xm_ok(xm_bootstrap_create_oob(&oob, &bootstrap));
    ck_assert_xm_fails(xm_bootstrap_barrier(bootstrap, 1.0), XM_ERR_IO,
                       "allgather failed on rank 0");
    ck_assert_int_eq(seat.freed, 2);
    xm_bootstrap_destroy(bootstrap);
    oob.rank = OOB_RANKS;
    ck_assert_xm_fails(xm_bootstrap_create_oob(&oob, &bootstrap), XM_ERR_INVALID_ARGUMENT,
                       "rank 3 of 3");
    oob.allgather_free = NULL;
    ck_assert_xm_fails(xm_bootstrap_create_oob(&oob, &bootstrap), XM_ERR_INVALID_ARGUMENT,
                       "three functions");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("bootstrap");
    TCase *tcase = tcase_create("jobs");

    tcase_set_timeout(tcase, JOB_LIMIT_S + 5);
    tcase_add_loop_test(tcase, allgather_by_rank, 0, 4);
    tcase_add_test(tcase, allgatherv_of_uneven_blobs);
    tcase_add_test(tcase, barrier_waits_for_the_last);
    tcase_add_test(tcase, misuse_is_refused);
    tcase_add_loop_test(tcase, a_death_is_named, 0, 12);
    tcase_add_loop_test(tcase, an_abort_is_quoted, 0, 4);
    tcase_add_loop_test(tcase, leaving_in_order_is_no_fault, 0, 3);
    tcase_add_test(tcase, allgather_times_out_with_names);
    tcase_add_test(tcase, unequal_lengths_are_named);
    tcase_add_test(tcase, missing_ranks_are_listed);
    tcase_add_test(tcase, a_missing_root_is_named);
    tcase_add_test(tcase, a_dead_address_does_not_hide_the_next);
    tcase_add_test(tcase, a_host_name_is_listened_to_everywhere);
    tcase_add_test(tcase, differing_sizes_are_named);
    tcase_add_test(tcase, a_duplicate_rank_is_named);
    tcase_add_test(tcase, a_death_during_the_rendezvous_is_named);
    tcase_add_loop_test(tcase, another_version_is_named, 0, 2);
    tcase_add_loop_test(tcase, strangers_do_no_harm, 0, 2);
    tcase_add_test(tcase, a_flood_does_not_push_out_a_rank);
    tcase_add_test(tcase, a_dropped_connection_is_made_again);
    tcase_add_test(tcase, a_rank_0_that_dies_unwelcoming_is_named);
    tcase_add_test(tcase, a_corrupt_connection_is_a_fault);
    tcase_add_test(tcase, impossible_jobs_are_refused);
    tcase_add_test(tcase, a_callers_table_works);
    tcase_add_test(tcase, a_callers_table_may_fail);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
