/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Moves a process into a host of an emulated cluster. A process namespace takes in only
 * children, so the caller forks: the child goes on inside, and the parent stays outside
 * and behaves as the child does, in signals and in its end, so that a shell or launcher
 * notices no difference.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench/cluster/core_share.h"
#include "bench/cluster/emulated_cluster.h"

/* True when the process is in another user namespace than this one. */
static bool is_foreign(pid_t pid)
{
    char path[64];
    struct stat own, theirs;

    (void)snprintf(path, sizeof(path), "/proc/%d/ns/user", (int)pid);
    return stat("/proc/self/ns/user", &own) == 0 && stat(path, &theirs) == 0 &&
           (own.st_ino != theirs.st_ino || own.st_dev != theirs.st_dev);
}

/* Joins namespaces of a process. Other mounts set the root back to theirs, so the process' own is
 * taken: that of a cluster made inside a chroot. The working directory is looked up again in it. */
static xm_status_t join(pid_t pid, int pidfd, int flags, const char *name)
{
    char folder[PATH_MAX], path[64];
    int death_signal = 0, root;
    xm_status_t status = XM_OK;

    (void)prctl(PR_GET_PDEATHSIG, &death_signal);
    if (getcwd(folder, sizeof(folder)) == NULL) {
        return xm_error_set(XM_ERR_IO, "the working directory has no path: %s", strerror(errno));
    }
    (void)snprintf(path, sizeof(path), "/proc/%d/root", (int)pid);
    root = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (root < 0 || setns(pidfd, flags | (is_foreign(pid) ? CLONE_NEWUSER : 0)) != 0 ||
        fchdir(root) != 0 || chroot(".") != 0) {
        status = xm_error_set(XM_ERR_IO, "cannot enter %s: %s", name, strerror(errno));
    } else if (chdir(folder) != 0) {
        status = xm_error_set(XM_ERR_IO, "%s has no folder %s: %s", name, folder, strerror(errno));
    }
    /* Another user namespace undoes the death signal, so it is set again. */
    (void)prctl(PR_SET_PDEATHSIG, death_signal);
    if (root >= 0) {
        (void)close(root);
    }
    return status;
}

/* Ends as the child did, without writing a second core. */
static void end_like(int wait_status)
{
    struct rlimit none = {0};
    sigset_t all;

    if (WIFSIGNALED(wait_status)) {
        (void)setrlimit(RLIMIT_CORE, &none);
        (void)signal(WTERMSIG(wait_status), SIG_DFL);
        (void)raise(WTERMSIG(wait_status));
        (void)sigfillset(&all);
        (void)sigprocmask(SIG_UNBLOCK, &all, NULL);
        _exit(128 + WTERMSIG(wait_status));
    }
    _exit(WEXITSTATUS(wait_status));
}

/* The part that stays outside of the host: passes signals on until the child ends. All
 * signals are blocked. */
static void attend(pid_t child, rb_core_share_t *share)
{
    sigset_t all;

    (void)sigfillset(&all);
    for (;;) {
        siginfo_t info;
        int wait_status = 0, number = sigwaitinfo(&all, &info);

        if (number > 0 && number != SIGCHLD) {
            (void)kill(child, number);
        }
        if (waitpid(child, &wait_status, WNOHANG | WUNTRACED) != child) {
            continue;
        }
        if (WIFSTOPPED(wait_status)) {
            (void)raise(SIGSTOP);
            (void)kill(child, SIGCONT);
        } else {
            rb_core_share_close(share);
            end_like(wait_status);
        }
    }
}

/* In the child: dies with the parent. The parent may have died already, which only a pipe
 * can tell from inside another process namespace. */
static void tie_to_parent(const int *pipe_ends)
{
    struct pollfd entry = {.fd = pipe_ends[0], .events = POLLIN};

    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    (void)close(pipe_ends[1]);
    if (poll(&entry, 1, 0) != 0) {
        _exit(EXIT_FAILURE);
    }
    (void)close(pipe_ends[0]);
}

/* Returns in the child only. Signals are blocked before the fork, so none is lost in
 * between. */
static xm_status_t fork_inside(const char *name, rb_core_share_t *share)
{
    sigset_t all, old;
    int ends[2];
    pid_t child;

    if (pipe2(ends, O_CLOEXEC) != 0) {
        return xm_error_set(XM_ERR_IO, "%s: no pipe: %s", name, strerror(errno));
    }
    (void)sigfillset(&all);
    (void)sigprocmask(SIG_SETMASK, &all, &old);
    (void)signal(SIGCHLD, SIG_DFL);
    child = fork();
    if (child < 0) {
        xm_status_t status =
            xm_error_set(XM_ERR_IO, "no process can be started on %s: %s", name, strerror(errno));

        (void)sigprocmask(SIG_SETMASK, &old, NULL);
        return status;
    }
    if (child > 0) {
        (void)close(ends[0]);
        attend(child, share);
    }
    tie_to_parent(ends);
    (void)sigprocmask(SIG_SETMASK, &old, NULL);
    return rb_core_share_join(share);
}

/* The head is the machine itself in the switch's network: nothing needs to be forked for
 * it. */
xm_status_t rb_emulated_cluster_enter(const rb_emulated_cluster_t *cluster, int host)
{
    const rb_cluster_members_t *members = rb_emulated_cluster_members(cluster);
    pid_t pid = host == RB_EMULATED_HEAD ? members->holder : members->init[host];
    int flags = CLONE_NEWNET | CLONE_NEWUTS | CLONE_NEWNS;
    char name[RB_CLUSTER_NAME + 16];
    int pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
    rb_core_share_t share = {.processes = -1};
    xm_status_t status = XM_OK;

    (void)snprintf(name, sizeof(name), host == RB_EMULATED_HEAD ? "%s-head" : "%s%d",
                   members->shape.name, host);
    if (pidfd < 0 || (host != RB_EMULATED_HEAD && !rb_emulated_cluster_host_lives(cluster, host))) {
        status = xm_error_set(XM_ERR_PEER_DIED, "%s has ended", name);
        goto close_pidfd;
    }
    if (host != RB_EMULATED_HEAD) {
        flags |= CLONE_NEWIPC | CLONE_NEWPID;
        status = rb_core_share_open(members->shape.core_share, &share);
    }
    XM_THEN(status, join(pid, pidfd, flags, name));
    if (status == XM_OK && host != RB_EMULATED_HEAD) {
        status = fork_inside(name, &share);
    }
    if (status < 0) {
        rb_core_share_close(&share);
    }

close_pidfd:
    if (pidfd >= 0) {
        (void)close(pidfd);
    }
    return status;
}
