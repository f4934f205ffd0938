/* SPDX-License-Identifier: Apache-2.0 */
/* Whoever connects to rank 0's port without being a rank of the job; and the job's secret. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <unistd.h>

#include "comm/job/bootstrap.h"
#include "comm/job/bootstrap_wire.h"
#include "tests/comm/job/local_job.h"
#include "xm_test.h"

enum { JOB_LIMIT_S = 90 };
static const double limit_s = 40.0;
static const char secret[] = "correct horse battery staple";

static xm_bootstrap_t *join(const xm_job_env_t *env, int listen_fd)
{
    xm_bootstrap_t *bootstrap;

    local_expect_ok(xm_bootstrap_create_tcp(env, listen_fd, limit_s, &bootstrap));
    return bootstrap;
}

static void meet_and_leave(const xm_job_env_t *env, int listen_fd)
{
    xm_bootstrap_t *bootstrap = join(env, listen_fd);
    int ranks[8];

    local_expect_ok(
        xm_bootstrap_allgather(bootstrap, &env->rank, ranks, sizeof(env->rank), limit_s));
    for (int rank = 0; rank < env->size; ++rank) {
        local_expect(ranks[rank] == rank, "place %d holds %d", rank, ranks[rank]);
    }
    xm_bootstrap_destroy(bootstrap);
}

/* -1 with errno: nobody listens there. */
static int try_root(const xm_job_env_t *env)
{
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_port = htons((uint16_t)env->master_port),
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct timeval limit = {.tv_sec = (time_t)limit_s};
    int fd = socket(AF_INET, SOCK_STREAM, 0);

    local_expect(fd >= 0, "socket: %s", strerror(errno));
    if (connect(fd, (struct sockaddr *)&address, sizeof(address)) != 0) {
        (void)close(fd);
        return -1;
    }
    (void)setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    return fd;
}

static int connect_to_root(const xm_job_env_t *env)
{
    int fd = try_root(env);

    local_expect(fd >= 0, "connect: %s", strerror(errno));
    return fd;
}

/* Kinds of what strangers send. */
static const struct {
    const char *bytes;
    size_t length;
} garbage[] = {
    {"", 0},
    {"GET / HTTP/1.0\r\n\r\n", 18},
    {"XMB1\4\0\1\0\0\0\0\0\xff\xff\xff\xff", 16},       /* a hello of 4 GiB */
    {"XMB1\4\0\4\0\1\0\0\0\0\0\0\x10", 16},             /* an unasked gather of 256 MiB */
    {"XMB1\4\0\1\0\0\0\0\0\x50\0\0\0half a hello", 28}, /* never completed */
    {"XMB1\4\0\1\0\0\0\0\0\x3e\0\0\0"
     "..............................................................",
     78},                                                     /* an absurd identity */
    {"XMB1\4\0\6\0\0\0\0\0\0\0\0\0", 16},                     /* a goodbye */
    {"XMB1\1\0\1\0\0\0\0\0\x0e\0\0\0", 16},                   /* another version */
    {"\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", 24}, /* zeroes */
};
enum { GARBAGE = sizeof(garbage) / sizeof(garbage[0]) };

static void annoy(const xm_job_env_t *env, int rounds)
{
    for (int i = 0; i < rounds; ++i) {
        int fd = connect_to_root(env);

        (void)send(fd, garbage[i % GARBAGE].bytes, garbage[i % GARBAGE].length, MSG_NOSIGNAL);
        if (i % 5 == 0) {
            (void)close(fd); /* the others stay open until the process ends */
        }
    }
}

static int annoyed(const xm_job_env_t *env, int listen_fd, void *arg)
{
    if (env->rank == 1) {
        annoy(env, *(int *)arg);
        local_sleep(0.1);
    }
    meet_and_leave(env, listen_fd);
    return 0;
}

START_TEST(strangers_do_no_harm)
{
    static const int rounds[] = {GARBAGE, 300};
    int count = rounds[_i];

    local_job_run(4, JOB_LIMIT_S, annoyed, &count);
}
END_TEST

/* Rank 0 starts late and finds two ranks in front of a flood. */
static int flooded(const xm_job_env_t *env, int listen_fd, void *arg)
{
    (void)arg;
    if (env->rank == 0) {
        local_sleep(1.0);
    } else if (env->rank == 1) {
        local_sleep(0.5);
        annoy(env, 300);
    }
    meet_and_leave(env, listen_fd);
    return 0;
}

START_TEST(a_flood_does_not_push_out_a_rank)
{
    local_job_run(4, JOB_LIMIT_S, flooded, NULL);
}
END_TEST

/* Rank 4 is none: it opens more connections than rank 0 has room for and sends a byte of a hello on
 * each, now and then, until the others have met. */
static int drip(const xm_job_env_t *env, int *met)
{
    enum { CONNECTIONS = 600, PER_ROUND = 50 };
    struct rlimit limit;
    int *fds = malloc(CONNECTIONS * sizeof(*fds)), open_fds = 0;
    double deadline = local_now() + limit_s;

    local_expect(fds != NULL && getrlimit(RLIMIT_NOFILE, &limit) == 0, "resources");
    for (int byte = 0; __atomic_load_n(met, __ATOMIC_SEQ_CST) < 4 && local_now() < deadline;
         ++byte) {
        for (int i = 0; i < PER_ROUND && open_fds < CONNECTIONS; ++i) {
            fds[open_fds] = try_root(env);
            if (fds[open_fds] < 0) { /* the ranks have met: nobody listens any more */
                break;
            }
            ++open_fds;
        }
        for (int i = 0; i < open_fds; ++i) {
            (void)send(fds[i], garbage[4].bytes + byte % 28, 1, MSG_NOSIGNAL);
        }
        local_sleep(0.02);
    }
    for (int i = 0; i < open_fds; ++i) {
        (void)close(fds[i]);
    }
    free(fds);
    return 0;
}

/* What the ranks and the stranger share. */
typedef struct {
    int met;
    bool few_files; /* rank 0 may open 128 */
} drip_t;

static int dripped(const xm_job_env_t *env, int listen_fd, void *arg)
{
    xm_job_env_t mine = *env;
    int *met = &((drip_t *)arg)->met;
    bool few_files = ((drip_t *)arg)->few_files;

    mine.size = 4;
    if (env->rank == 4) {
        return drip(env, met);
    }
    if (env->rank == 0 && few_files) {
        local_expect(setrlimit(RLIMIT_NOFILE, &(struct rlimit){128, 128}) == 0, "setrlimit");
    }
    local_sleep(env->rank == 3 ? 0.5 : 0.0); /* the last one comes into the thick of it */
    meet_and_leave(&mine, listen_fd);
    (void)__atomic_add_fetch(met, 1, __ATOMIC_SEQ_CST);
    return 0;
}

START_TEST(slow_strangers_do_not_hold_up_the_job)
{
    drip_t *drips = local_shared(sizeof(*drips));

    drips->few_files = _i == 1;
    local_job_run(5, JOB_LIMIT_S, dripped, drips);
}
END_TEST

/* Secrets */

static void set_secret(const char *text)
{
    local_expect(setenv("XM_JOB_SECRET", text, 1) == 0, "setenv");
}

static int share_secret(const xm_job_env_t *env, int listen_fd, void *arg)
{
    const char *path = arg;

    /* From the environment or from a file: that is each rank's own affair. */
    if (env->rank % 2 == 0) {
        set_secret(secret);
    } else {
        local_expect(unsetenv("XM_JOB_SECRET") == 0, "unsetenv");
        local_expect(setenv("XM_JOB_SECRET_FILE", path, 1) == 0, "setenv");
    }
    meet_and_leave(env, listen_fd);
    return 0;
}

/* A file with the secret in it; returns its path. */
static char *secret_file(const char *text, mode_t mode)
{
    static char path[64];
    int fd;

    (void)snprintf(path, sizeof(path), "/tmp/test_job_secret_XXXXXX");
    fd = mkstemp(path);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(write(fd, text, strlen(text)), (int)strlen(text));
    ck_assert_int_eq(fchmod(fd, mode), 0);
    (void)close(fd);
    return path;
}

START_TEST(ranks_with_the_secret_meet)
{
    char *path = secret_file("correct horse battery staple\n", 0600);

    local_job_run(4, JOB_LIMIT_S, share_secret, path);
    (void)unlink(path);
}
END_TEST

/* Ranks that are about to do what is tested, and that have done it; shared. */
static atomic_int *ready, *finished;

static void share_counters(void)
{
    ready = local_shared(sizeof(*ready));
    finished = local_shared(sizeof(*finished));
}

/* One rank has no secret, or another one. */
static int miss_secret(const xm_job_env_t *env, int listen_fd, void *arg)
{
    const char *wrong = arg;
    xm_bootstrap_t *bootstrap;

    if (env->rank == 0) {
        local_await(ready, 3); /* before its time begins */
    }
    (void)atomic_fetch_add(ready, 1);
    if (env->rank == 2) {
        if (wrong != NULL) {
            set_secret(wrong);
        }
        local_expect_fails(xm_bootstrap_create_tcp(env, -1, limit_s, &bootstrap), XM_ERR_MISMATCH,
                           "rank 2 does not know the secret of the job that listens there");
        return 0;
    }
    set_secret(secret);
    local_expect_fails(
        xm_bootstrap_create_tcp(env, listen_fd, env->rank == 0 ? 4.0 : limit_s, &bootstrap),
        XM_ERR_TIMEOUT,
        "1 of 4 ranks are missing: 2; connections turned away: 1 without the job's "
        "secret");
    return 0;
}

START_TEST(a_rank_without_the_secret_is_turned_away)
{
    static const char *const wrong[] = {NULL, "correct horse battery stapler"};

    share_counters();
    local_job_run(4, JOB_LIMIT_S, miss_secret, (void *)(uintptr_t)wrong[_i]);
}
END_TEST

/* Rank 3 is an intruder that says it is rank 2, before that one comes. */
static int intrude(const xm_job_env_t *env, int listen_fd, void *arg)
{
    xm_job_env_t mine = *env;
    xm_bootstrap_t *bootstrap;

    (void)arg;
    mine.size = 3;
    if (env->rank == 3) {
        mine.rank = 2;
        local_expect_fails(xm_bootstrap_create_tcp(&mine, -1, limit_s, &bootstrap), XM_ERR_MISMATCH,
                           "does not know the secret");
        /* Nor may it end the job by another size. */
        mine.size = 9;
        local_expect_fails(xm_bootstrap_create_tcp(&mine, -1, limit_s, &bootstrap), XM_ERR_MISMATCH,
                           "does not know the secret");
        (void)atomic_fetch_add(finished, 1);
        return 0;
    }
    set_secret(secret);
    if (env->rank == 2) {
        local_await(finished, 1);
    }
    meet_and_leave(&mine, listen_fd);
    return 0;
}

START_TEST(an_intruder_does_not_take_a_place)
{
    share_counters();
    local_job_run(4, JOB_LIMIT_S, intrude, NULL);
}
END_TEST

static int trust_nobody(const xm_job_env_t *env, int listen_fd, void *arg)
{
    xm_bootstrap_t *bootstrap;

    (void)arg;
    if (env->rank == 0) {
        /* It says that the job is open, which would fail this test. */
        local_expect(unsetenv("XM_JOB_SECRET") == 0 && setenv("XM_LOG", "error", 1) == 0, "setenv");
        local_await(ready, 1);
        local_expect_fails(xm_bootstrap_create_tcp(env, listen_fd, 4.0, &bootstrap), XM_ERR_TIMEOUT,
                           "1 of 2 ranks are missing: 1");
        return 0;
    }
    set_secret(secret);
    (void)atomic_fetch_add(ready, 1);
    local_expect_fails(xm_bootstrap_create_tcp(env, -1, limit_s, &bootstrap), XM_ERR_MISMATCH,
                       "rank 1 has a job secret, but rank 0 at 127.0.0.1 port");
    return 0;
}

START_TEST(a_rank_0_without_a_secret_is_not_trusted)
{
    share_counters();
    local_job_run(2, JOB_LIMIT_S, trust_nobody, NULL);
}
END_TEST

static void send_all(int fd, const void *bytes, size_t length)
{
    local_expect(send(fd, bytes, length, MSG_NOSIGNAL) == (ssize_t)length, "send: %s",
                 strerror(errno));
}

/* Reads one frame; returns the length of its payload. */
static size_t read_frame(int fd, xm_bootstrap_type_t type, uint8_t *payload)
{
    uint8_t bytes[XM_BOOTSTRAP_HEADER_SIZE];
    xm_bootstrap_header_t header;

    local_expect(recv(fd, bytes, sizeof(bytes), MSG_WAITALL) == (ssize_t)sizeof(bytes), "recv: %s",
                 strerror(errno));
    local_expect_ok(xm_bootstrap_header_decode(bytes, &header));
    local_expect(header.type == type, "frame type %d instead of %d", (int)header.type, (int)type);
    local_expect(recv(fd, payload, header.length, MSG_WAITALL) == (ssize_t)header.length, "recv");
    return header.length;
}

static void send_frame(int fd, xm_bootstrap_type_t type, const uint8_t *payload, size_t length)
{
    xm_bootstrap_header_t header = {.type = type, .length = (uint32_t)length};
    uint8_t bytes[XM_BOOTSTRAP_HEADER_SIZE];

    xm_bootstrap_header_encode(&header, bytes);
    send_all(fd, bytes, sizeof(bytes));
    send_all(fd, payload, length);
}

/* What a listener in rank 0's place records of a hello. */
typedef struct {
    uint8_t hello[XM_BOOTSTRAP_HELLO_SIZE];
    size_t length;
} record_t;

/* Stands in for rank 0 without knowing the secret. */
static void deceive(int listen_fd, record_t *record)
{
    xm_bootstrap_challenge_t challenge = {.secret = true, .nonce = "no random one."};
    xm_bootstrap_welcome_t welcome = {.identity = {.size = 2, .pid = 1, .host = "evil"}};
    uint8_t bytes[XM_BOOTSTRAP_WELCOME_SIZE];
    int fd = accept(listen_fd, NULL, NULL);

    xm_bootstrap_challenge_encode(&challenge, bytes);
    send_frame(fd, XM_BOOTSTRAP_CHALLENGE, bytes, XM_BOOTSTRAP_CHALLENGE_SIZE);
    record->length = read_frame(fd, XM_BOOTSTRAP_HELLO, record->hello);
    /* The rank's own proof, sent back to it. */
    memcpy(welcome.proof, record->hello + XM_JOB_NONCE_SIZE, sizeof(welcome.proof));
    send_frame(fd, XM_BOOTSTRAP_WELCOME, bytes, xm_bootstrap_welcome_encode(&welcome, bytes));
    local_expect(recv(fd, bytes, 1, 0) == 0, "the rank stayed");
    (void)close(fd);
}

static int deceived(const xm_job_env_t *env, int listen_fd, void *arg)
{
    xm_bootstrap_t *bootstrap;

    if (env->rank == 0) {
        deceive(listen_fd, arg);
        return 0;
    }
    set_secret(secret);
    local_expect_fails(xm_bootstrap_create_tcp(env, -1, limit_s, &bootstrap), XM_ERR_MISMATCH,
                       "does not know the secret of rank 1's job");
    local_expect(xm_bootstrap_create_tcp(env, -1, 0.2, &bootstrap) < 0, "nobody is left");
    return 0;
}

/* The hello recorded above, at a real rank 0 of the same job: its challenge is another. */
static int replay(const xm_job_env_t *env, int listen_fd, void *arg)
{
    const record_t *record = arg;
    uint8_t payload[XM_BOOTSTRAP_FAULT_SIZE];
    xm_bootstrap_t *bootstrap;
    xm_bootstrap_fault_t fault;
    size_t length;
    int fd;

    set_secret(secret);
    if (env->rank == 0) {
        local_await(ready, 1);
        local_expect_fails(xm_bootstrap_create_tcp(env, listen_fd, 4.0, &bootstrap), XM_ERR_TIMEOUT,
                           "connections turned away: 1 without the job's secret");
        return 0;
    }
    fd = connect_to_root(env);
    (void)atomic_fetch_add(ready, 1);
    (void)read_frame(fd, XM_BOOTSTRAP_CHALLENGE, payload);
    send_frame(fd, XM_BOOTSTRAP_HELLO, record->hello, record->length);
    length = read_frame(fd, XM_BOOTSTRAP_REFUSAL, payload);
    local_expect_ok(xm_bootstrap_fault_decode(payload, length, &fault));
    local_expect(strstr(fault.sentence, "does not know the secret") != NULL, "%s", fault.sentence);
    (void)close(fd);
    return 0;
}

START_TEST(a_recorded_hello_is_worthless)
{
    record_t *record = local_shared(sizeof(*record));

    local_job_run(2, JOB_LIMIT_S, deceived, record);
    ck_assert_uint_gt(record->length, 0);
    share_counters();
    local_job_run(2, JOB_LIMIT_S, replay, record);
}
END_TEST

START_TEST(bad_secrets_are_named)
{
    static const struct {
        const char *text, *file_text;
        mode_t mode;
        xm_status_t status;
        const char *sentence;
    } rows[] = {
        {"swordfish", NULL, 0, XM_ERR_INVALID_ARGUMENT,
         "XM_JOB_SECRET: a secret of 9 characters; it must have 16 to 1024"},
        {NULL, "swordfish\n", 0600, XM_ERR_INVALID_ARGUMENT,
         "XM_JOB_SECRET_FILE: a secret of 9 characters"},
        {NULL, "", 0600, XM_ERR_INVALID_ARGUMENT, "XM_JOB_SECRET_FILE: a secret of 0 characters"},
        {NULL, "correct horse battery staple", 0644, XM_ERR_INVALID_ARGUMENT, "(mode 0644, owner "},
        {"correct horse battery staple", "correct horse battery staple", 0600,
         XM_ERR_INVALID_ARGUMENT, "XM_JOB_SECRET and XM_JOB_SECRET_FILE are both set"},
    };
    xm_job_env_t env = {.rank = 0, .size = 1, .master_port = -1};
    xm_bootstrap_t *bootstrap;

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); ++i) {
        const char *path =
            rows[i].file_text != NULL ? secret_file(rows[i].file_text, rows[i].mode) : "";

        ck_assert_int_eq(setenv("XM_JOB_SECRET", rows[i].text != NULL ? rows[i].text : "", 1), 0);
        ck_assert_int_eq(setenv("XM_JOB_SECRET_FILE", path, 1), 0);
        ck_assert_xm_fails(xm_bootstrap_create_tcp(&env, -1, 1.0, &bootstrap), rows[i].status,
                           rows[i].sentence);
        if (path[0] != '\0') {
            ck_assert_int_eq(unlink(path), 0);
        }
    }
    ck_assert_int_eq(setenv("XM_JOB_SECRET", "", 1), 0);
    ck_assert_int_eq(setenv("XM_JOB_SECRET_FILE", "/nowhere/secret", 1), 0);
    ck_assert_xm_fails(xm_bootstrap_create_tcp(&env, -1, 1.0, &bootstrap), XM_ERR_NOT_FOUND,
                       "XM_JOB_SECRET_FILE: cannot read /nowhere/secret: No such file");
    ck_assert_int_eq(setenv("XM_JOB_SECRET_FILE", "/tmp", 1), 0);
    ck_assert_xm_fails(xm_bootstrap_create_tcp(&env, -1, 1.0, &bootstrap), XM_ERR_INVALID_ARGUMENT,
                       "cannot read /tmp: Is a directory");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("rendezvous_strangers");
    TCase *tcase = tcase_create("jobs");

    tcase_set_timeout(tcase, 2 * JOB_LIMIT_S + 5);
    tcase_add_loop_test(tcase, strangers_do_no_harm, 0, 2);
    tcase_add_test(tcase, a_flood_does_not_push_out_a_rank);
    tcase_add_loop_test(tcase, slow_strangers_do_not_hold_up_the_job, 0, 2);
    tcase_add_test(tcase, ranks_with_the_secret_meet);
    tcase_add_loop_test(tcase, a_rank_without_the_secret_is_turned_away, 0, 2);
    tcase_add_test(tcase, an_intruder_does_not_take_a_place);
    tcase_add_test(tcase, a_rank_0_without_a_secret_is_not_trusted);
    tcase_add_test(tcase, a_recorded_hello_is_worthless);
    tcase_add_test(tcase, bad_secrets_are_named);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
