/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file local_job.h
 * Tests with real processes: forks the ranks of a small job on this machine and collects them.
 *
 * Ranks report by their exit status; local_expect() prints what was not as expected and ends the
 * rank with status 1. A rank that runs longer than the job's deadline is killed and counts as
 * failed, so no test hangs.
 */
#pragma once

#include <stdatomic.h>
#include <sys/types.h>

#include "comm/job/bootstrap.h"

enum { LOCAL_JOB_MAX = 64, LOCAL_JOB_KILLED = -9 };

typedef struct local_job {
    int size;
    double deadline; /* seconds from start, under local_timeout() */
    double started;
    pid_t pids[LOCAL_JOB_MAX];
    int results[LOCAL_JOB_MAX]; /* exit status, or minus the signal; valid after local_job_wait() */
} local_job_t;

/* What a rank runs; its result is the exit status. */
typedef int local_main_t(const xm_job_env_t *env, int listen_fd, void *arg);

/* Forks `size` ranks. Rank 0 inherits a listening socket. Ranks whose bit in `absent` is set are
 * not started. */
void local_job_start(local_job_t *job, int size, unsigned absent, double deadline,
                     local_main_t *rank_main, void *arg);

/* Collects all ranks. Fails the test unless each exited with 0, ranks in `doomed` (bit mask)
 * excepted. */
void local_job_wait(local_job_t *job, unsigned doomed);

/* Both, for jobs where nothing special happens. */
void local_job_run(int size, double deadline, local_main_t *rank_main, void *arg);

/* Memory that the ranks and the test share, zeroed; freed by munmap at exit. */
void *local_shared(size_t size);

/* Monotonic seconds. */
double local_now(void);
void local_sleep(double seconds);

/* A limit of so many seconds, longer where a sanitizer or valgrind slows the ranks down
 * (CK_TIMEOUT_MULTIPLIER, set by the build presets). */
double local_timeout(double seconds);

/* Waits until a counter in shared memory has reached a value: instead of a time after which another
 * process is surely where it should be. Ends the rank when that takes very long. */
void local_await(const atomic_int *counter, int value);

/* CPU seconds that this process has used. */
double local_cpu(void);

/* Ends the calling rank with status 1 after printing the sentence. */
void local_fail(const char *file, int line, const char *format, ...)
    __attribute__((noreturn, format(printf, 3, 4)));

#define local_expect(condition, ...)                                                               \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            local_fail(__FILE__, __LINE__, __VA_ARGS__);                                           \
        }                                                                                          \
    } while (0)

#define local_expect_ok(call)                                                                      \
    do {                                                                                           \
        xm_status_t local_status_ = (call);                                                        \
        local_expect(local_status_ == XM_OK, "%s: %s (%s)", #call,                                 \
                     xm_status_string(local_status_), xm_last_error());                            \
    } while (0)

#define local_expect_fails(call, expected, text)                                                   \
    do {                                                                                           \
        xm_status_t local_status_ = (call);                                                        \
        local_expect(local_status_ == (expected), "%s: got %s, expected %s (%s)", #call,           \
                     xm_status_string(local_status_), xm_status_string(expected),                  \
                     xm_last_error());                                                             \
        local_expect(strstr(xm_last_error(), (text)) != NULL, "%s: '%s' lacks '%s'", #call,        \
                     xm_last_error(), (text));                                                     \
    } while (0)
