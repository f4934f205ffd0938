/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The maker's side of an emulated cluster: starts the holder and waits for its report,
 * finds lasting clusters again, and ends them. Processes are signalled by descriptor, so
 * a number that was given to another process in the meantime is never hit.
 */
#include "bench/cluster/emulated_cluster.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench/cluster/holder.h"
#include "comm/base.h"

/* Each host's own limit is shorter, so that its sentence comes first. */
enum { READY_MS = 90000, END_MS = 15000 };

struct rb_emulated_cluster {
    rb_cluster_members_t members;
    bool lasting;
    bool child; /* the holder is a child of this process */
};

/* Waits until the process is gone, at most END_MS. */
static bool await_end(int pidfd)
{
    struct pollfd entry = {.fd = pidfd, .events = POLLIN};

    return poll(&entry, 1, END_MS) == 1;
}

static int open_process(pid_t pid)
{
    return (int)syscall(SYS_pidfd_open, pid, 0);
}

/* The holder reports once, in one write, so a short read means that it died. */
static xm_status_t read_report(int fd, rb_holder_report_t *report)
{
    struct pollfd entry = {.fd = fd, .events = POLLIN};
    int ready;

    do {
        ready = poll(&entry, 1, READY_MS);
    } while (ready < 0 && errno == EINTR);
    if (ready == 0) {
        return xm_error_set(XM_ERR_TIMEOUT, "the emulated cluster was not ready after %d s",
                            READY_MS / 1000);
    }
    if (read(fd, report, sizeof(*report)) != (ssize_t)sizeof(*report)) {
        return xm_error_set(XM_ERR_IO, "the holder of the emulated cluster ended before it was "
                                       "ready");
    }
    return report->error.status < 0 ? xm_error_restore(&report->error) : XM_OK;
}

static void collect(pid_t holder)
{
    while (waitpid(holder, NULL, 0) < 0 && errno == EINTR) {
    }
}

/* Buffers are flushed before the fork, or both processes would write them. */
static xm_status_t start_holder(const rb_cluster_shape_t *shape, const rb_cluster_claim_t *claim,
                                rb_emulated_cluster_t *cluster)
{
    rb_holder_report_t report;
    xm_status_t status;
    int ends[2];
    pid_t holder;

    if (pipe2(ends, O_CLOEXEC) != 0) {
        return xm_error_set(XM_ERR_IO, "no pipe to the emulated cluster: %s", strerror(errno));
    }
    (void)fflush(NULL);
    holder = fork();
    if (holder == 0) {
        (void)close(ends[0]);
        rb_cluster_hold(shape, claim, ends[1]);
    }
    (void)close(ends[1]);
    if (holder < 0) {
        status = xm_error_set(XM_ERR_NO_MEMORY,
                              "cannot start the holder of the emulated "
                              "cluster: %s",
                              strerror(errno));
        goto close_pipe;
    }
    status = read_report(ends[0], &report);
    if (status < 0) {
        (void)kill(holder, SIGKILL);
        collect(holder);
        goto close_pipe;
    }
    cluster->members.shape = *shape;
    cluster->members.holder = holder;
    memcpy(cluster->members.init, report.init, sizeof(report.init));
    cluster->child = true;

close_pipe:
    (void)close(ends[0]);
    return status;
}

/* On failure a claimed file is removed here too, since a holder that was killed could not
 * do it. */
xm_status_t rb_emulated_cluster_create(const rb_emulated_cluster_params_t *params,
                                       rb_emulated_cluster_t **cluster)
{
    rb_cluster_claim_t claim = {.fd = -1};
    rb_emulated_cluster_t *made;
    xm_status_t status = XM_OK;

    if (params->shape == NULL) {
        return XM_INVALID("emulated cluster: no shape");
    }
    XM_TRY(rb_cluster_shape_check(params->shape));
    made = calloc(1, sizeof(*made));
    XM_NEED_MEMORY(made, "an emulated cluster");
    made->lasting = params->lasting;
    if (params->lasting) {
        status = rb_cluster_state_claim(params->shape->name, &claim);
    }
    if (status == XM_OK) {
        status = start_holder(params->shape, &claim, made);
        if (status < 0) {
            rb_cluster_state_remove(&claim); /* a holder that was killed could not */
        }
    }
    if (claim.fd >= 0) {
        (void)close(claim.fd);
    }
    if (status < 0) {
        free(made);
        return status;
    }
    *cluster = made;
    return XM_OK;
}

xm_status_t rb_emulated_cluster_open(const char *name, rb_emulated_cluster_t **cluster)
{
    rb_emulated_cluster_t *found = calloc(1, sizeof(*found));
    xm_status_t status;

    XM_NEED_MEMORY(found, "an emulated cluster");
    found->lasting = true;
    status = rb_cluster_state_read(name, &found->members);
    if (status < 0) {
        free(found);
        return status;
    }
    *cluster = found;
    return XM_OK;
}

const rb_cluster_members_t *rb_emulated_cluster_members(const rb_emulated_cluster_t *cluster)
{
    return &cluster->members;
}

/* A host lives while its first process is the holder's child and has not ended; the
 * number alone could be another process's. */
bool rb_emulated_cluster_host_lives(const rb_emulated_cluster_t *cluster, int host)
{
    char path[64], line[512];
    FILE *stream;
    const char *after;
    char state = 'X';
    int parent = 0;

    (void)snprintf(path, sizeof(path), "/proc/%d/stat", (int)cluster->members.init[host]);
    stream = fopen(path, "re");
    if (stream == NULL) {
        return false;
    }
    /* The command's name, in parentheses, may hold anything, so the text behind its last
     * bracket is parsed. */
    after = fgets(line, sizeof(line), stream) != NULL ? strrchr(line, ')') : NULL;
    if (after == NULL || sscanf(after, ") %c %d", &state, &parent) != 2) { // NOLINT(cert-err34-c)
        parent = 0;
    }
    (void)fclose(stream);
    return parent == (int)cluster->members.holder && state != 'Z' && state != 'X';
}

char *rb_emulated_cluster_address(const rb_emulated_cluster_t *cluster, int host, int nic,
                                  char *buffer, size_t size)
{
    (void)cluster;
    return rb_cluster_shape_address(host, nic, buffer, size);
}

xm_status_t rb_emulated_cluster_end(rb_emulated_cluster_t *cluster)
{
    pid_t holder = cluster->members.holder;
    int pidfd;
    bool ended;

    if (holder == 0) {
        return XM_OK;
    }
    pidfd = open_process(holder);
    if (pidfd >= 0) {
        /* The holder ends after its hosts; when it is killed, it takes them along. */
        (void)syscall(SYS_pidfd_send_signal, pidfd, SIGTERM, NULL, 0);
        ended = await_end(pidfd);
        if (!ended) {
            (void)syscall(SYS_pidfd_send_signal, pidfd, SIGKILL, NULL, 0);
            ended = await_end(pidfd);
        }
        (void)close(pidfd);
        if (!ended) {
            return xm_error_set(XM_ERR_TIMEOUT,
                                "process %d, the holder of the emulated cluster, "
                                "does not end",
                                (int)holder);
        }
    }
    if (cluster->child) {
        collect(holder);
    }
    cluster->members.holder = 0;
    return XM_OK;
}

void rb_emulated_cluster_destroy(rb_emulated_cluster_t *cluster)
{
    if (cluster != NULL) {
        if (!cluster->lasting) {
            (void)rb_emulated_cluster_end(cluster);
        }
        free(cluster);
    }
}
