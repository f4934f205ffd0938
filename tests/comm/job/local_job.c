/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/comm/job/local_job.h"

#include <arpa/inet.h>
#include <check.h>
#include <errno.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "comm/base/clock.h"

double local_now(void)
{
    return xm_clock_seconds();
}

void local_sleep(double seconds)
{
    struct timespec nap = {.tv_sec = (time_t)seconds,
                           .tv_nsec = (long)((seconds - (double)(time_t)seconds) * 1e9)};

    while (nanosleep(&nap, &nap) != 0 && errno == EINTR) {
        continue;
    }
}

double local_timeout(double seconds)
{
    const char *factor = getenv("CK_TIMEOUT_MULTIPLIER");

    return factor != NULL && atof(factor) > 1.0 ? seconds * atof(factor) : seconds;
}

void local_await(const atomic_int *counter, int value)
{
    double deadline = local_now() + local_timeout(60.0);

    while (atomic_load(counter) < value) {
        local_expect(local_now() < deadline, "%d of %d have come", atomic_load(counter), value);
        local_sleep(0.001);
    }
}

double local_cpu(void)
{
    return xm_clock_cpu_seconds();
}

void *local_shared(size_t size)
{
    void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    ck_assert_ptr_ne(memory, MAP_FAILED);
    return memory;
}

void local_fail(const char *file, int line, const char *format, ...)
{
    char text[2048];
    va_list args;

    va_start(args, format);
    (void)vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    (void)fprintf(stderr, "%s:%d: process %d: %s\n", file, line, (int)getpid(), text);
    (void)fflush(stderr);
    _exit(1);
}

static int listener(int *port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof(address);
    int fd = socket(AF_INET, SOCK_STREAM, 0);

    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(bind(fd, (struct sockaddr *)&address, sizeof(address)), 0);
    ck_assert_int_eq(listen(fd, 1024), 0);
    ck_assert_int_eq(getsockname(fd, (struct sockaddr *)&address, &length), 0);
    *port = ntohs(address.sin_port);
    return fd;
}

void local_job_start(local_job_t *job, int size, unsigned absent, double deadline,
                     local_main_t *rank_main, void *arg)
{
    xm_job_env_t env = {.size = size, .master_addr = "127.0.0.1"};
    int listen_fd = listener(&env.master_port);
    pid_t parent = getpid();

    *job = (local_job_t){.size = size, .deadline = deadline, .started = local_now()};
    (void)fflush(NULL);
    for (int rank = 0; rank < size; ++rank) {
        if ((absent >> rank & 1) != 0) {
            continue;
        }
        job->pids[rank] = fork();
        ck_assert_int_ge(job->pids[rank], 0);
        if (job->pids[rank] == 0) {
            (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
            if (getppid() != parent) {
                _exit(1);
            }
            env.rank = rank;
            if (rank != 0) {
                (void)close(listen_fd);
            }
            exit(rank_main(&env, rank == 0 ? listen_fd : -1, arg));
        }
    }
    (void)close(listen_fd);
}

static void collected(local_job_t *job, int rank, int status)
{
    job->results[rank] = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
    job->pids[rank] = 0;
}

/* Collects who has ended, at once: UCX takes a dead process for alive while it is a zombie. */
static int collect(local_job_t *job)
{
    int left = 0;

    for (int rank = 0; rank < job->size; ++rank) {
        int status = 0;

        if (job->pids[rank] > 0 && waitpid(job->pids[rank], &status, WNOHANG) > 0) {
            collected(job, rank, status);
        }
        left += job->pids[rank] > 0;
    }
    return left;
}

void local_job_wait(local_job_t *job, unsigned doomed)
{
    bool late = false;

    while (collect(job) > 0 && !late) {
        late = local_now() - job->started > local_timeout(job->deadline);
        local_sleep(0.002);
    }
    for (int rank = 0; rank < job->size; ++rank) {
        int status = 0;

        if (job->pids[rank] > 0) {
            (void)fprintf(stderr, "rank %d did not end within %g s\n", rank,
                          local_timeout(job->deadline));
            (void)kill(job->pids[rank], SIGKILL);
            (void)waitpid(job->pids[rank], &status, 0);
            collected(job, rank, status);
        }
    }
    for (int rank = 0; rank < job->size; ++rank) {
        ck_assert_msg((doomed >> rank & 1) != 0 || job->results[rank] == 0, "rank %d ended with %d",
                      rank, job->results[rank]);
    }
    ck_assert_msg(!late, "a rank did not end in time");
}

void local_job_run(int size, double deadline, local_main_t *rank_main, void *arg)
{
    local_job_t job;

    local_job_start(&job, size, 0, deadline, rank_main, arg);
    local_job_wait(&job, 0);
}
