/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/job/launcher.h"

#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "comm/job/bootstrap.h"
#include "tests/comm/job/local_job.h"
#include "xm_test.h"

/* The launched ranks are this program again, in a role that argv[1] names. */
enum { LIMIT_S = 60 };

static const char *program;

/* What goes wrong with waitpid() for one rank, in the tests that want it. Stands before the C
 * library's. */
static enum { HONEST, STOLEN, STUCK } lie;

pid_t waitpid(pid_t pid, int *status, int options)
{
    static pid_t victim;
    pid_t (*wait_for)(pid_t, int *, int);
    void *symbol = dlsym(RTLD_NEXT, "waitpid");

    memcpy(&wait_for, &symbol, sizeof(wait_for));
    if (lie == HONEST || pid <= 0) {
        return wait_for(pid, status, options);
    }
    victim = victim == 0 ? pid : victim;
    if (pid == victim && lie == STUCK) {
        return 0;
    }
    if (pid == victim && wait_for(pid, status, options) == pid) {
        errno = ECHILD;
        return -1;
    }
    return pid == victim ? 0 : wait_for(pid, status, options);
}

static xm_status_t start(int ranks, int per_host, double timeout, const char *role,
                         const char *detail, int *exit_code)
{
    char *argv[] = {(char *)program, (char *)role, (char *)detail, NULL};
    xm_launch_params_t params = XM_LAUNCH_PARAMS_INIT;

    params.ranks = ranks;
    params.ranks_per_host = per_host;
    params.timeout = timeout;
    params.argv = argv;
    return xm_launch(&params, exit_code);
}

static xm_bootstrap_t *join(xm_job_env_t *env)
{
    xm_bootstrap_t *bootstrap;

    local_expect_ok(xm_job_env_read(env));
    local_expect((env->rank == 0) == (xm_launch_listen_fd() >= 0), "rank %d: listening socket %d",
                 env->rank, xm_launch_listen_fd());
    local_expect_ok(xm_bootstrap_create_tcp(env, xm_launch_listen_fd(), LIMIT_S, &bootstrap));
    return bootstrap;
}

/* All ranks meet and check that nothing but the right environment reached them. */
static int role_meet(const char *detail)
{
    xm_job_env_t env;
    xm_bootstrap_t *bootstrap = join(&env);
    char host[32];
    int ranks[LOCAL_JOB_MAX], per_host = atoi(detail);

    local_expect_ok(xm_bootstrap_allgather(bootstrap, &env.rank, ranks, sizeof(env.rank), LIMIT_S));
    for (int rank = 0; rank < env.size; ++rank) {
        local_expect(ranks[rank] == rank, "place %d holds %d", rank, ranks[rank]);
    }
    (void)snprintf(host, sizeof(host), "host%d", per_host > 0 ? env.rank / per_host : 0);
    local_expect(per_host > 0 ? strcmp(getenv("XM_HOST"), host) == 0 : getenv("XM_HOST") == NULL,
                 "XM_HOST is %s", getenv("XM_HOST"));
    local_expect(strcmp(getenv("LAUNCHER_TEST"), "inherited") == 0, "environment was lost");
    xm_bootstrap_destroy(bootstrap);
    return 0;
}

/* The rank that `detail` names kills itself or exits with 7; the others notice and exit with 1. */
static int role_fail(const char *detail)
{
    xm_job_env_t env;
    xm_bootstrap_t *bootstrap = join(&env);
    int failed_rank = -1, pids[LOCAL_JOB_MAX], own = getpid();
    double deadline = local_now() + LIMIT_S / 2.0;

    local_expect_ok(xm_bootstrap_allgather(bootstrap, &own, pids, sizeof(own), LIMIT_S));
    if (env.rank == atoi(detail + 1)) {
        if (detail[0] == 'k') {
            (void)raise(SIGKILL);
        }
        _exit(7);
    }
    while (xm_bootstrap_poll(bootstrap, &failed_rank) == XM_OK) {
        local_sleep(0.001);
    }
    local_expect(failed_rank == atoi(detail + 1), "rank %d failed", failed_rank);
    xm_bootstrap_destroy(bootstrap);
    /* Ends seen in one look have no order: a launcher that is held up gets time to collect the
     * first. */
    while (kill(pids[failed_rank], 0) == 0 && local_now() < deadline) {
        local_sleep(0.001);
    }
    return 1;
}

/* Rank 1 fails at once, the others sleep on and must be killed. Whoever wants to know that they are
 * there has left a pipe. */
static int role_sleep(const char *detail)
{
    const char *ready = getenv("LAUNCHER_TEST_READY");

    local_expect(ready == NULL || write(atoi(ready), "r", 1) == 1, "nobody listens");
    if (atoi(getenv("RANK")) == 1 && detail[0] == 'f') {
        return 3;
    }
    local_sleep(60);
    return 0;
}

/* The rank that `detail` names is stopped by a signal before it meets the others. */
static int role_freeze(const char *detail)
{
    xm_bootstrap_t *bootstrap;
    xm_job_env_t env;

    if (atoi(getenv("RANK")) == atoi(detail)) {
        (void)raise(SIGSTOP);
    }
    local_expect_ok(xm_job_env_read(&env));
    local_expect(xm_bootstrap_create_tcp(&env, xm_launch_listen_fd(), LIMIT_S, &bootstrap) < 0,
                 "rank %d has met all", env.rank);
    return 1;
}

/* Becomes a launcher whose ranks sleep: for tests that signal the launcher itself. */
static int role_launch(const char *detail)
{
    int exit_code = -1;

    (void)detail;
    (void)start(3, 0, 1.0, "sleep", "on", &exit_code);
    return exit_code;
}

START_TEST(ranks_meet)
{
    int exit_code = -1;

    ck_assert_int_eq(setenv("LAUNCHER_TEST", "inherited", 1), 0);
    ck_assert_int_eq(setenv("RANK", "77", 1), 0);
    ck_assert_xm_ok(start(6, 0, LIMIT_S, "meet", "0", &exit_code));
    ck_assert_int_eq(exit_code, 0);
    ck_assert_xm_ok(start(6, 2, LIMIT_S, "meet", "2", &exit_code));
    ck_assert_xm_ok(start(1, 1, LIMIT_S, "meet", "1", &exit_code));
}
END_TEST

/* Ranks that listen by themselves where they are told to, each with a variable of its own. */
static int role_elsewhere(const char *detail)
{
    xm_job_env_t env;
    xm_bootstrap_t *bootstrap;
    char own[32];

    (void)detail;
    local_expect_ok(xm_job_env_read(&env));
    local_expect(xm_launch_listen_fd() < 0, "rank %d inherited a socket", env.rank);
    local_expect(strcmp(env.master_addr, "127.0.0.1") == 0, "rank 0 is at %s", env.master_addr);
    local_expect_ok(xm_bootstrap_create_tcp(&env, -1, LIMIT_S, &bootstrap));
    (void)snprintf(own, sizeof(own), "of rank %d", env.rank);
    local_expect(strcmp(getenv("LAUNCHER_TEST_OWN"), own) == 0, "rank %d has the variable '%s'",
                 env.rank, getenv("LAUNCHER_TEST_OWN"));
    xm_bootstrap_destroy(bootstrap);
    return 0;
}

typedef struct {
    char text[64];
    const char *list[2];
    int refused; /* the rank that cannot enter, or -1 */
} elsewhere_t;

static const char *const *own_variable(void *arg, int rank)
{
    elsewhere_t *elsewhere = arg;

    (void)snprintf(elsewhere->text, sizeof(elsewhere->text), "LAUNCHER_TEST_OWN=of rank %d", rank);
    elsewhere->list[0] = elsewhere->text;
    return elsewhere->list;
}

static xm_status_t enter(void *arg, int rank)
{
    const elsewhere_t *elsewhere = arg;

    return rank == elsewhere->refused ? xm_error_set(XM_ERR_IO, "no way in for %d", rank) : XM_OK;
}

static int free_port(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof(address);
    int fd = socket(AF_INET, SOCK_STREAM, 0);

    ck_assert_int_eq(bind(fd, (const struct sockaddr *)&address, sizeof(address)), 0);
    ck_assert_int_eq(getsockname(fd, (struct sockaddr *)&address, &length), 0);
    (void)close(fd);
    return ntohs(address.sin_port);
}

START_TEST(ranks_may_run_elsewhere)
{
    char role[] = "elsewhere", detail[] = "", *argv[] = {(char *)program, role, detail, NULL};
    elsewhere_t elsewhere = {.refused = -1};
    xm_launch_params_t params = XM_LAUNCH_PARAMS_INIT;
    int exit_code = -1;

    ck_assert_int_eq(setenv("LAUNCHER_TEST_OWN", "an outer one", 1), 0);
    params.ranks = 3;
    params.timeout = LIMIT_S;
    params.argv = argv;
    params.enter = enter;
    params.variables = own_variable;
    params.arg = &elsewhere;
    params.master_addr = "127.0.0.1";
    params.master_port = free_port();
    ck_assert_xm_ok(xm_launch(&params, &exit_code));
    elsewhere.refused = 1;
    params.timeout = 0.5;
    ck_assert_xm_fails(xm_launch(&params, &exit_code), XM_ERR_PEER_DIED,
                       "rank 1 exited with status 127");
    params.master_port = 0;
    ck_assert_xm_fails(xm_launch(&params, &exit_code), XM_ERR_INVALID_ARGUMENT, "port 0");
}
END_TEST

START_TEST(a_killed_rank_is_named)
{
    int exit_code = -1;

    ck_assert_xm_fails(start(4, 0, LIMIT_S, "fail", "k3", &exit_code), XM_ERR_PEER_DIED,
                       "rank 3 was killed by signal 9 (Killed)");
    ck_assert_int_eq(exit_code, 137);
    ck_assert_xm_fails(start(4, 0, LIMIT_S, "fail", "k0", &exit_code), XM_ERR_PEER_DIED,
                       "rank 0 was killed by signal 9");
}
END_TEST

START_TEST(an_exit_status_is_passed_on)
{
    int exit_code = -1;

    ck_assert_xm_fails(start(3, 0, LIMIT_S, "fail", "e2", &exit_code), XM_ERR_PEER_DIED,
                       "rank 2 exited with status 7");
    ck_assert_int_eq(exit_code, 7);
}
END_TEST

START_TEST(the_rest_is_killed_at_the_deadline)
{
    double started = local_now();
    int exit_code = -1;

    ck_assert_xm_fails(start(4, 0, 0.5, "sleep", "fail", &exit_code), XM_ERR_PEER_DIED,
                       "rank 1 exited with status 3");
    ck_assert_int_eq(exit_code, 3);
    ck_assert_double_ge(local_now() - started, 0.5);
    ck_assert_double_le(local_now() - started, LIMIT_S / 2.0);
    ck_assert_int_eq(waitpid(-1, NULL, WNOHANG), -1);
    ck_assert_int_eq(errno, ECHILD);
}
END_TEST

/* Nobody else can tell a rank that is frozen before it meets the others from one that starts late.
 */
START_TEST(a_rank_that_is_stopped_early_is_ended)
{
    double started = local_now();
    int exit_code = -1;

    ck_assert_xm_fails(start(3, 0, LIMIT_S, "freeze", _i == 0 ? "0" : "2", &exit_code),
                       XM_ERR_PEER_DIED, _i == 0 ? "rank 0 was ended" : "rank 2 was ended");
    ck_assert_ptr_ne(strstr(xm_last_error(), "a signal had stopped it"), NULL);
    ck_assert_double_le(local_now() - started, local_timeout(6.0));
}
END_TEST

/* A stolen exit status is no success. */
START_TEST(a_rank_that_somebody_else_collects_has_failed)
{
    int exit_code = -1;

    lie = STOLEN;
    ck_assert_xm_fails(start(3, 0, LIMIT_S, "succeed", "", &exit_code), XM_ERR_INTERNAL,
                       "rank 0 has ended, but somebody else in this process has collected its exit "
                       "status");
    ck_assert_int_eq(exit_code, 1);
}
END_TEST

/* Of a process that hangs in the kernel the test has only the semblance: one that waitpid() does
 * not report. */
START_TEST(a_rank_that_does_not_end_is_left_behind)
{
    int exit_code = -1;

    lie = STUCK;
    ck_assert_xm_fails(start(3, 0, 0.3, "sleep", "fail", &exit_code), XM_ERR_TIMEOUT,
                       "rank 0 (pid ");
    ck_assert_ptr_nonnull(strstr(xm_last_error(), "has not ended 10 s after SIGKILL"));
    ck_assert_int_eq(exit_code, 1);
}
END_TEST

/* The ranks' environment: a secret of their own, unless there is one. */
static int role_tell_secret(const char *detail)
{
    const char *secret = getenv("XM_JOB_SECRET");
    xm_job_env_t env;
    xm_bootstrap_t *bootstrap;
    char own[64] = "", all[4][64];
    char command_line[4096] = "";
    FILE *file = fopen("/proc/self/cmdline", "r");

    if (detail[0] == 'f') {
        local_expect(secret == NULL && getenv("XM_JOB_SECRET_FILE") != NULL,
                     "the file was ignored");
    } else {
        local_expect(secret != NULL && strlen(secret) == 32, "no secret of 32 characters");
        local_expect(detail[0] != 'o' || strcmp(secret, "0123456789abcdef0123456789abcdef") == 0,
                     "the outer secret was replaced");
        (void)snprintf(own, sizeof(own), "%s", secret);
    }
    local_expect(file != NULL && fread(command_line, 1, sizeof(command_line) - 1, file) > 0,
                 "no command line");
    (void)fclose(file);
    local_expect(secret == NULL ||
                     memmem(command_line, sizeof(command_line), secret, strlen(secret)) == NULL,
                 "the secret is on the command line");
    bootstrap = join(&env);
    local_expect_ok(xm_bootstrap_allgather(bootstrap, own, all, sizeof(own), LIMIT_S));
    local_expect(strcmp(all[0], all[env.size - 1]) == 0, "the ranks' secrets differ");
    xm_bootstrap_destroy(bootstrap);
    return 0;
}

START_TEST(ranks_share_a_secret)
{
    char path[] = "/tmp/test_launcher_secret_XXXXXX";
    int exit_code = -1, fd = mkstemp(path);

    ck_assert_int_eq(write(fd, "0123456789abcdef\n", 17), 17);
    (void)close(fd);
    ck_assert_xm_ok(start(3, 0, LIMIT_S, "secret", "made", &exit_code));
    ck_assert_int_eq(setenv("XM_JOB_SECRET_FILE", path, 1), 0);
    ck_assert_xm_ok(start(3, 0, LIMIT_S, "secret", "file", &exit_code));
    ck_assert_int_eq(unsetenv("XM_JOB_SECRET_FILE"), 0);
    ck_assert_int_eq(setenv("XM_JOB_SECRET", "0123456789abcdef0123456789abcdef", 1), 0);
    ck_assert_xm_ok(start(3, 0, LIMIT_S, "secret", "outer", &exit_code));
    (void)unlink(path);
}
END_TEST

static int role_succeed(const char *detail)
{
    (void)detail;
    return 0;
}

/* Waits until this process, the sub-reaper of all, has no child left; collects their number. */
static int children_left(double seconds)
{
    double deadline = local_now() + seconds;
    pid_t ended = 0;

    while (local_now() < deadline && ended >= 0) {
        ended = waitpid(-1, NULL, WNOHANG);
        if (ended == 0) {
            local_sleep(0.005);
        }
    }
    return ended < 0 ? 0 : 1;
}

/* A launcher whose three ranks sleep; with SIGINT ignored, if wanted, as a shell starts background
 * jobs of a script. */
static pid_t start_launcher(bool ignores)
{
    char role[] = "launch", detail[] = "", *argv[] = {(char *)program, role, detail, NULL};
    char number[16], bytes[3];
    int ends[2];
    pid_t launcher;

    ck_assert_int_eq(prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
    ck_assert_int_eq(pipe(ends), 0);
    (void)snprintf(number, sizeof(number), "%d", ends[1]);
    ck_assert_int_eq(setenv("LAUNCHER_TEST_READY", number, 1), 0);
    (void)fflush(NULL);
    launcher = fork();
    ck_assert_int_ge(launcher, 0);
    if (launcher == 0) {
        (void)signal(SIGINT, ignores ? SIG_IGN : SIG_DFL); /* whatever this test was started with */
        (void)execv("/proc/self/exe", argv);
        _exit(127);
    }
    (void)close(ends[1]);
    for (int rank = 0; rank < 3; ++rank) {
        ck_assert_int_eq(read(ends[0], &bytes[rank], 1), 1);
    }
    (void)close(ends[0]);
    return launcher;
}

static void signal_launcher(int signal_number, int expected_exit)
{
    int status = 0;
    pid_t launcher = start_launcher(false);

    ck_assert_int_eq(kill(launcher, signal_number), 0);
    ck_assert_int_eq(waitpid(launcher, &status, 0), launcher);
    if (expected_exit >= 0) {
        ck_assert(WIFEXITED(status));
        ck_assert_int_eq(WEXITSTATUS(status), expected_exit);
    }
    /* The ranks that it left would now be ours. */
    ck_assert_int_eq(children_left(LIMIT_S / 3.0), 0);
}

START_TEST(an_interrupted_launcher_leaves_nobody)
{
    signal_launcher(SIGINT, 128 + SIGINT);
    signal_launcher(SIGTERM, 128 + SIGTERM);
}
END_TEST

START_TEST(an_ignored_signal_stays_ignored)
{
    int status = 0;
    pid_t launcher = start_launcher(true);

    ck_assert_int_eq(kill(launcher, SIGINT), 0);
    local_sleep(3.0); /* longer than interrupted ranks get */
    ck_assert_int_eq(waitpid(launcher, &status, WNOHANG), 0);
    ck_assert_int_eq(kill(launcher, SIGTERM), 0);
    ck_assert_int_eq(waitpid(launcher, &status, 0), launcher);
    ck_assert(WIFEXITED(status));
    ck_assert_int_eq(WEXITSTATUS(status), 128 + SIGTERM);
    ck_assert_int_eq(children_left(LIMIT_S / 3.0), 0);
}
END_TEST

START_TEST(a_killed_launcher_leaves_nobody)
{
    signal_launcher(SIGKILL, -1);
}
END_TEST

START_TEST(bad_parameters_are_refused)
{
    int exit_code = -1;

    ck_assert_xm_fails(start(0, 0, 1.0, "meet", "0", &exit_code), XM_ERR_INVALID_ARGUMENT,
                       "0 ranks");
    ck_assert_int_eq(exit_code, -1);
    ck_assert_int_eq(setenv("CROSSMESH_LISTEN_FD", "1", 1), 0);
    ck_assert_int_eq(xm_launch_listen_fd(), -1);
}
END_TEST

static int run_role(const char *role, const char *detail)
{
    static const struct {
        const char *name;
        int (*run)(const char *detail);
    } roles[] = {{"meet", role_meet},           {"fail", role_fail},
                 {"sleep", role_sleep},         {"launch", role_launch},
                 {"secret", role_tell_secret},  {"succeed", role_succeed},
                 {"elsewhere", role_elsewhere}, {"freeze", role_freeze}};

    for (size_t i = 0; i < sizeof(roles) / sizeof(roles[0]); ++i) {
        if (strcmp(roles[i].name, role) == 0) {
            return roles[i].run(detail);
        }
    }
    return 127;
}

int main(int argc, char **argv)
{
    Suite *suite;
    TCase *tcase;

    program = argv[0];
    if (argc == 3) {
        return run_role(argv[1], argv[2]);
    }
    (void)unsetenv("XM_JOB_SECRET"); /* that of all tests */
    suite = suite_create("launcher");
    tcase = tcase_create("processes");
    tcase_set_timeout(tcase, LIMIT_S);
    tcase_add_test(tcase, ranks_meet);
    tcase_add_test(tcase, ranks_may_run_elsewhere);
    tcase_add_test(tcase, a_killed_rank_is_named);
    tcase_add_test(tcase, an_exit_status_is_passed_on);
    tcase_add_test(tcase, the_rest_is_killed_at_the_deadline);
    tcase_add_loop_test(tcase, a_rank_that_is_stopped_early_is_ended, 0, 2);
    tcase_add_test(tcase, a_rank_that_somebody_else_collects_has_failed);
    tcase_add_test(tcase, a_rank_that_does_not_end_is_left_behind);
    tcase_add_test(tcase, ranks_share_a_secret);
    tcase_add_test(tcase, an_interrupted_launcher_leaves_nobody);
    tcase_add_test(tcase, an_ignored_signal_stays_ignored);
    tcase_add_test(tcase, a_killed_launcher_leaves_nobody);
    tcase_add_test(tcase, bad_parameters_are_refused);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
