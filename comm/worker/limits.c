/* SPDX-License-Identifier: Apache-2.0 */
/* The limits of the process, met before UCX meets them. What a rank needs is measured, and a little
 * more than the least: a job that would fail a moment later is no better than one that does not
 * start. */
#include "comm/worker/limits.h"

#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <sys/resource.h>

/* FILES: a rank's own descriptors, of which it has about 30 between two emulated hosts. THREADS:
 * UCX's and the detector's. STACK_SIZE: of a thread that only waits. */
enum { FILES = 40, THREADS = 2, STACK_SIZE = 64 << 10 };

static int count_open_files(void)
{
    DIR *folder = opendir("/proc/self/fd");
    int count = 0;

    while (folder != NULL && readdir(folder) != NULL) {
        ++count;
    }
    if (folder != NULL) {
        (void)closedir(folder);
    }
    return count;
}

/* Rank 0 holds a connection to each of the others. */
static xm_status_t check_files(int rank, int size)
{
    rlim_t needed = (rlim_t)count_open_files() + FILES + (rlim_t)(rank == 0 ? size - 1 : 0);
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= needed) {
        return XM_OK;
    }
    limit.rlim_cur = needed < limit.rlim_max ? needed : limit.rlim_max;
    (void)setrlimit(RLIMIT_NOFILE, &limit);
    return limit.rlim_cur >= needed
               ? XM_OK
               : xm_error_set(XM_ERR_NO_MEMORY,
                              "a rank needs %llu open files to start, and %llu are allowed: raise "
                              "the limit (ulimit -n)",
                              (unsigned long long)needed, (unsigned long long)limit.rlim_max);
}

static void *wait_for_end(void *arg)
{
    (void)pthread_mutex_lock(arg);
    (void)pthread_mutex_unlock(arg);
    return NULL;
}

/* The kernel counts threads of the user and of the container, and tells neither number; so as many
 * are started, and held until the last is there. */
static xm_status_t check_threads(void)
{
    pthread_mutex_t hold = PTHREAD_MUTEX_INITIALIZER;
    pthread_attr_t attributes;
    pthread_t threads[THREADS];
    int started = 0, error = 0;

    (void)pthread_attr_init(&attributes);
    (void)pthread_attr_setstacksize(&attributes, STACK_SIZE);
    (void)pthread_mutex_lock(&hold);
    while (started < THREADS && error == 0) {
        error = pthread_create(&threads[started], &attributes, wait_for_end, &hold);
        started += error == 0;
    }
    (void)pthread_mutex_unlock(&hold);
    for (int i = 0; i < started; ++i) {
        (void)pthread_join(threads[i], NULL);
    }
    (void)pthread_attr_destroy(&attributes);
    return error == 0 ? XM_OK
                      : xm_error_set(XM_ERR_NO_MEMORY,
                                     "a rank needs %d threads to start, and got %d: %s (ulimit -u, "
                                     "or the container's limit of processes)",
                                     THREADS, started, strerror(error));
}

xm_status_t xm_worker_limits_check(int rank, int size)
{
    XM_TRY(check_files(rank, size));
    return check_threads();
}
