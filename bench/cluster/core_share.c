/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Control groups that give each rank its part of a core. Both versions of the kernel's interface do
 * the same by files of other names. A group bears the number of the process that made it, so that
 * those whose makers were killed are known.
 */
#include "bench/cluster/core_share.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define PREFIX "emulated-cluster-"

/* QUOTA_US is the least quota that Linux takes; a group has one of QUOTAS, STEP_US apart. A process
 * that has ended leaves its group a moment later. LOOK_US: each core is interrupted so often, see
 * rb_core_share_keep_exact(). */
enum {
    QUOTA_US = 1000,
    STEP_US = 8,
    QUOTAS = 31,
    ATTEMPTS = 20,
    PAUSE_US = 10000,
    LOOK_US = QUOTA_US / 2
};

/* What a group's files say, in the order in which they take it. */
typedef struct {
    const char *root, *sign; /* a file that says that this version is there */
    struct {
        const char *file, *value;
        bool quota, period; /* come behind the value, in microseconds */
    } write[3];
} version_t;

static const version_t versions[] = {
    {"/sys/fs/cgroup/cpu",
     "cpu.cfs_quota_us",
     {{"cpu.cfs_period_us", "", false, true},
      {"cpu.cfs_quota_us", "", true, false},
      {"cpu.shares", "262144", false, false}}},
    {"/sys/fs/cgroup",
     "cgroup.subtree_control",
     {{"../cgroup.subtree_control", "+cpu", false, false},
      {"cpu.max", "", true, true},
      {"cpu.weight", "10000", false, false}}},
};

static const version_t *find_version(void)
{
    for (size_t i = 0; i < sizeof(versions) / sizeof(versions[0]); ++i) {
        char path[128];

        (void)snprintf(path, sizeof(path), "%s/%s", versions[i].root, versions[i].sign);
        if (access(path, F_OK) == 0) {
            return &versions[i];
        }
    }
    return NULL;
}

/* Groups that nobody will close: the numbers of living processes are left alone. */
static void sweep(DIR *root)
{
    struct dirent *entry;

    while ((entry = readdir(root)) != NULL) {
        char *end;
        long maker;

        if (strncmp(entry->d_name, PREFIX, strlen(PREFIX)) != 0) {
            continue;
        }
        maker = strtol(entry->d_name + strlen(PREFIX), &end, 10);
        if (*end == '\0' && maker > 0 && kill((pid_t)maker, 0) != 0 && errno == ESRCH) {
            (void)unlinkat(dirfd(root), entry->d_name, AT_REMOVEDIR);
        }
    }
}

static xm_status_t refuse(const char *what)
{
    return XM_UNSUPPORTED("a share of a core needs root and the cpu controller of control groups "
                          "in /sys/fs/cgroup: %s: %s",
                          what, strerror(errno));
}

static xm_status_t write_value(const char *folder, const char *file, const char *value)
{
    char path[192];
    int fd;
    bool written;
    xm_status_t status;

    (void)snprintf(path, sizeof(path), "%s/%s", folder, file);
    fd = open(path, O_WRONLY | O_CLOEXEC);
    written = fd >= 0 && write(fd, value, strlen(value)) == (ssize_t)strlen(value);
    status = written ? XM_OK : refuse(path);
    if (fd >= 0) {
        (void)close(fd);
    }
    return status;
}

xm_status_t rb_core_share_open(double share, rb_core_share_t *made)
{
    const version_t *version = find_version();
    xm_status_t status = XM_OK;
    int quota_us = QUOTA_US + STEP_US * (int)(getpid() % QUOTAS);
    char path[192], quota[16], period[16];
    DIR *root;

    made->processes = -1;
    if (share == 0) {
        return XM_OK;
    }
    errno = ENOENT;
    root = version != NULL ? opendir(version->root) : NULL;
    if (root == NULL) {
        return refuse(versions[0].root);
    }
    sweep(root);
    made->root = fcntl(dirfd(root), F_DUPFD_CLOEXEC, 0);
    (void)closedir(root);
    (void)snprintf(made->folder, sizeof(made->folder), "%s/" PREFIX "%d", version->root,
                   (int)getpid());
    if (mkdir(made->folder, 0755) != 0 && errno != EEXIST) {
        status = refuse(made->folder);
    }
    (void)snprintf(quota, sizeof(quota), "%d", quota_us);
    (void)snprintf(period, sizeof(period), "%d", (int)(quota_us / share));
    for (int i = 0; i < 3 && status == XM_OK; ++i) {
        char value[48];

        (void)snprintf(value, sizeof(value), "%s%s%s%s", version->write[i].value,
                       version->write[i].quota ? quota : "",
                       version->write[i].quota && version->write[i].period ? " " : "",
                       version->write[i].period ? period : "");
        status = write_value(made->folder, version->write[i].file, value);
    }
    if (status == XM_OK) {
        (void)snprintf(path, sizeof(path), "%s/cgroup.procs", made->folder);
        made->processes = open(path, O_WRONLY | O_CLOEXEC);
        status = made->processes >= 0 ? XM_OK : refuse(path);
    }
    if (status < 0) {
        (void)rmdir(made->folder);
        (void)close(made->root);
    }
    return status;
}

xm_status_t rb_core_share_join(const rb_core_share_t *share)
{
    if (share->processes >= 0 && write(share->processes, "0", 1) != 1) {
        return refuse(share->folder);
    }
    return XM_OK;
}

static void *interrupt_core(void *core)
{
    const struct sched_param first = {.sched_priority = sched_get_priority_min(SCHED_FIFO)};
    const struct timespec pause = {.tv_nsec = LOOK_US * 1000L};
    cpu_set_t only;

    CPU_ZERO(&only);
    CPU_SET((size_t)core, &only);
    (void)pthread_setaffinity_np(pthread_self(), sizeof(only), &only);
    (void)pthread_setschedparam(pthread_self(), SCHED_FIFO, &first);
    for (;;) {
        (void)clock_nanosleep(CLOCK_MONOTONIC, 0, &pause, NULL);
    }
    return NULL;
}

xm_status_t rb_core_share_keep_exact(void)
{
    cpu_set_t cores;
    sigset_t all, before;
    int error = sched_getaffinity(0, sizeof(cores), &cores) != 0 ? errno : 0;

    /* Signals are the caller's. */
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    for (size_t core = 0; core < CPU_SETSIZE && error == 0; ++core) {
        pthread_t thread;

        if (CPU_ISSET(core, &cores)) {
            error = pthread_create(&thread, NULL, interrupt_core, (void *)core);
        }
    }
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error == 0 ? XM_OK
                      : xm_error_set(XM_ERR_IO, "shares of cores: no threads that watch them: %s",
                                     strerror(error));
}

void rb_core_share_close(rb_core_share_t *share)
{
    if (share->processes < 0) {
        return;
    }
    (void)close(share->processes);
    share->processes = -1;
    errno = EBUSY;
    for (int i = 0; i < ATTEMPTS && errno == EBUSY; ++i) {
        if (unlinkat(share->root, strrchr(share->folder, '/') + 1, AT_REMOVEDIR) == 0) {
            break;
        }
        (void)usleep(PAUSE_US);
    }
    (void)close(share->root);
}
