/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The holder: one process that owns an emulated cluster. It makes the switch's namespaces
 * for itself and a process with namespaces of its own for each host, connects them with
 * veth pairs and bridges, and then waits. Everything hangs on this process's life, so the
 * kernel cleans up whatever way it ends, and nothing is ever made in the machine's own
 * namespaces.
 */
#include "bench/cluster/holder.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench/cluster/core_share.h"
#include "bench/cluster/tool.h"

/* HOST_WAIT_MS: how long a host may take to set itself up. */
enum { HOST_WAIT_MS = 60000 };

typedef struct {
    const rb_cluster_shape_t *shape;
    const rb_cluster_claim_t *claim;
    int report_fd;
    rb_cluster_members_t members;
    int channel[RB_CLUSTER_HOSTS]; /* the holder's ends, of hosts that were started */
} holder_t;

#define NEEDS "an emulated cluster needs root or unprivileged user namespaces"

/* --- Steps that hosts and the switch share --------------------------------------------------- */

/* One write, since files under /proc take a value whole or not at all. */
static xm_status_t write_file(const char *path, const char *text)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    ssize_t written = fd >= 0 ? write(fd, text, strlen(text)) : -1;
    int error = errno;

    if (fd >= 0) {
        (void)close(fd);
    }
    if (written != (ssize_t)strlen(text)) {
        return xm_error_set(XM_ERR_IO, "cannot write %s: %s", path, strerror(error));
    }
    return XM_OK;
}

/* Without the right to mount, the cause is most likely a missing privilege, and the
 * sentence says so. */
static xm_status_t mount_over(const char *type, const char *where, const char *options)
{
    if (mount(type, where, type, MS_NOSUID | MS_NODEV, options) == 0) {
        return XM_OK;
    }
    if (errno == EPERM) {
        return XM_UNSUPPORTED(NEEDS ": %s cannot be mounted anew (%s)", where, strerror(errno));
    }
    return xm_error_set(XM_ERR_IO, "cannot mount %s of its own: %s", where, strerror(errno));
}

/* Makes mounts from here on visible in this mount namespace only. */
static xm_status_t leave_mounts(void)
{
    static const char *const ours[] = {"/proc", "/sys", "/dev/shm"};
    bool private_now = mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0;

    /* In a chroot the root is no mount; then those that others are put upon must be
     * private. */
    for (size_t i = 0; !private_now && errno == EINVAL && i < sizeof(ours) / sizeof(ours[0]); ++i) {
        if (mount(NULL, ours[i], NULL, MS_PRIVATE, NULL) != 0) {
            break;
        }
        private_now = i + 1 == sizeof(ours) / sizeof(ours[0]);
    }
    if (!private_now) {
        return xm_error_set(XM_ERR_IO,
                            "cannot make the mounts private: %s (in a chroot /proc, /sys and "
                            "/dev/shm must be mounts)",
                            strerror(errno));
    }
    /* The network devices under /sys are those of the namespace that mounted it. */
    return mount_over("sysfs", "/sys", NULL);
}

typedef void write_orders_t(const holder_t *holder, int host, FILE *orders);

/* Runs ip or tc once with all its orders: hundreds of separate calls would take seconds. */
static xm_status_t configure(const holder_t *holder, int host, const char *tool,
                             write_orders_t *write_orders)
{
    const char *const argv[] = {tool, "-batch", "-", NULL};
    rb_orders_t orders;

    XM_TRY(rb_orders_open(&orders));
    write_orders(holder, host, orders.stream);
    return rb_tool_run_orders(argv, &orders);
}

static void host_links(const holder_t *holder, int host, FILE *orders)
{
    rb_cluster_shape_host_links(holder->shape, host, orders);
}

static void host_queues(const holder_t *holder, int host, FILE *orders)
{
    rb_cluster_shape_host_queues(holder->shape, host, orders);
}

static void switch_links(const holder_t *holder, int host, FILE *orders)
{
    (void)host;
    rb_cluster_shape_switch_links(holder->shape, holder->members.init, orders);
}

static void switch_queues(const holder_t *holder, int host, FILE *orders)
{
    (void)host;
    rb_cluster_shape_switch_queues(holder->shape, orders);
}

/* --- A host ---------------------------------------------------------------------------------- */

/* Gives a host its own /proc, /dev/shm and name, so that programs see what a machine
 * would show them. */
static xm_status_t furnish_host(const holder_t *holder, int host)
{
    char name[RB_CLUSTER_NAME + 16];
    xm_status_t status = leave_mounts();

    XM_THEN(status, mount_over("proc", "/proc", NULL));
    XM_THEN(status, mount_over("tmpfs", "/dev/shm", "mode=1777"));
    (void)snprintf(name, sizeof(name), "%s%d", holder->shape->name, host);
    if (status == XM_OK && sethostname(name, strlen(name)) != 0) {
        status = xm_error_set(XM_ERR_IO, "cannot be called %s: %s", name, strerror(errno));
    }
    if (status == XM_OK && holder->shape->congestion != NULL) {
        status = write_file("/proc/sys/net/ipv4/tcp_congestion_control", holder->shape->congestion);
    }
    /* A NIC that went dead is noticed within seconds, not within a quarter of an hour. */
    return status == XM_OK ? write_file("/proc/sys/net/ipv4/tcp_retries2", "3") : status;
}

static xm_status_t connect_host(const holder_t *holder, int host)
{
    XM_TRY(configure(holder, host, "ip", host_links));

    return configure(holder, host, "tc", host_queues);
}

/*
 * The first process of a host: it sets the host up, reports in one write how that went,
 * and then collects whatever ends in it, as the first process of a process namespace
 * must.
 */
static void be_host(const holder_t *holder, int host, int channel)
{
    xm_status_t status;
    xm_error_t report = {0};
    sigset_t all;
    char go;

    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    (void)prctl(PR_SET_NAME, "emulated-host");
    /* A holder that died before this process was tied to it has closed its end of the
     * channel, which ends the read below. */
    status = furnish_host(holder, host);
    if (read(channel, &go, 1) != 1) {
        _exit(EXIT_FAILURE);
    }
    XM_THEN(status, connect_host(holder, host));
    xm_error_save(&report, status);
    if (write(channel, &report, sizeof(report)) != (ssize_t)sizeof(report)) {
        _exit(EXIT_FAILURE);
    }
    (void)close(channel);
    (void)sigfillset(&all);
    (void)sigprocmask(SIG_SETMASK, &all, NULL);
    for (;;) {
        (void)sigwaitinfo(&all, NULL);
        while (waitpid(-1, NULL, WNOHANG) > 0) {
        }
    }
}

/* Starts a host's first process in its new namespaces; it stays until the holder ends. */
static xm_status_t start_host(holder_t *holder, int host)
{
    const unsigned long flags =
        CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWNS | CLONE_NEWPID | SIGCHLD;
    int ends[2];
    long pid;

    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
        return xm_error_set(XM_ERR_IO, "host %d: no channel: %s", host, strerror(errno));
    }
    /* The system call works as fork() does: a NULL stack stands for a copy of ours. */
    pid = syscall(SYS_clone, flags, NULL, NULL, NULL, NULL);
    if (pid == 0) {
        /* Whoever has these open counts as the living holder. */
        for (int h = 0; h < host; ++h) {
            (void)close(holder->channel[h]);
        }
        (void)close(holder->report_fd);
        if (holder->claim->fd >= 0) {
            (void)close(holder->claim->fd);
        }
        (void)close(ends[0]);
        be_host(holder, host, ends[1]);
    }
    (void)close(ends[1]);
    if (pid < 0) {
        int error = errno;

        (void)close(ends[0]);
        return xm_error_set(XM_ERR_IO, "host %d: no namespaces for it: %s", host, strerror(error));
    }
    holder->channel[host] = ends[0];
    holder->members.init[host] = (pid_t)pid;
    return XM_OK;
}

/* A host's failure keeps its own kind where the machine lacks something, so that callers
 * can tell. */
static xm_status_t await_host(const holder_t *holder, int host)
{
    struct pollfd entry = {.fd = holder->channel[host], .events = POLLIN};
    xm_error_t report;

    if (poll(&entry, 1, HOST_WAIT_MS) <= 0) {
        return xm_error_set(XM_ERR_TIMEOUT, "host %d was not ready after %d s", host,
                            HOST_WAIT_MS / 1000);
    }
    if (read(entry.fd, &report, sizeof(report)) != (ssize_t)sizeof(report)) {
        return xm_error_set(XM_ERR_IO, "host %d ended before it was ready", host);
    }
    if (report.status < 0) {
        (void)xm_error_restore(&report);
        return report.status == XM_ERR_UNSUPPORTED
                   ? report.status
                   : xm_error_prefix(report.status, "host %d", host);
    }
    return XM_OK;
}

/* --- The holder ------------------------------------------------------------------------------ */

/* Closes all descriptors but the standard ones and these two (the second may be −1). */
static void close_others(int kept, int also_kept)
{
    unsigned low = (unsigned)(also_kept >= 0 && also_kept < kept ? also_kept : kept);
    unsigned high = (unsigned)(also_kept > kept ? also_kept : kept);

    (void)close_range(STDERR_FILENO + 1, low - 1, 0);
    if (high > low + 1) {
        (void)close_range(low + 1, high - 1, 0);
    }
    (void)close_range(high + 1, ~0U, 0);
}

/* Leaves the maker: keeps two descriptors only, moves into a session that no terminal
 * speaks to, and resets what the maker did about signals. */
static void leave_maker(int report_fd, int claim_fd)
{
    int nothing = open("/dev/null", O_RDWR | O_CLOEXEC);
    sigset_t none;

    (void)setsid();
    (void)chdir("/");
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; ++fd) {
        (void)dup2(nothing, fd);
    }
    close_others(report_fd, claim_fd);
    for (int number = 1; number < NSIG; ++number) {
        (void)signal(number, SIG_DFL);
    }
    (void)signal(SIGPIPE, SIG_IGN);
    (void)sigemptyset(&none);
    (void)sigprocmask(SIG_SETMASK, &none, NULL);
    (void)prctl(PR_SET_NAME, "emulated-clust");
}

/* Maps this user to root inside the new user namespace; setgroups must be denied first. */
static xm_status_t map_ids(uid_t uid, gid_t gid)
{
    char uids[64], gids[64];
    xm_status_t status = write_file("/proc/self/setgroups", "deny");

    (void)snprintf(uids, sizeof(uids), "0 %u 1", (unsigned)uid);
    (void)snprintf(gids, sizeof(gids), "0 %u 1", (unsigned)gid);
    XM_THEN(status, write_file("/proc/self/uid_map", uids));
    return status == XM_OK ? write_file("/proc/self/gid_map", gids) : status;
}

static xm_status_t lack_of_namespaces(int error)
{
    return XM_UNSUPPORTED(NEEDS ": %s", error == ENOSPC ? "the limit on namespaces has been reached"
                                                        : strerror(error));
}

/* Enters the switch's namespaces; without the right to make them, inside a user
 * namespace. */
static xm_status_t enter_switch(void)
{
    const int flags = CLONE_NEWNET | CLONE_NEWNS | CLONE_NEWUTS;
    uid_t uid = geteuid();
    gid_t gid = getegid();

    if (unshare(flags) != 0) {
        xm_status_t status;

        if (errno != EPERM || unshare(CLONE_NEWUSER) != 0) {
            return lack_of_namespaces(errno);
        }
        status = map_ids(uid, gid);
        if (status < 0) {
            return xm_error_prefix(XM_ERR_UNSUPPORTED, NEEDS);
        }
        if (unshare(flags) != 0) {
            return lack_of_namespaces(errno);
        }
    }
    return leave_mounts();
}

/* The hosts' processes must exist before the links, since one end of each link goes into
 * their namespace. */
static xm_status_t build(holder_t *holder)
{
    char name[RB_CLUSTER_NAME + 16];
    xm_status_t status = XM_OK;

    (void)snprintf(name, sizeof(name), "%s-head", holder->shape->name);
    if (sethostname(name, strlen(name)) != 0) {
        return xm_error_set(XM_ERR_IO, "cannot be called %s: %s", name, strerror(errno));
    }
    for (int h = 0; h < holder->shape->hosts && status == XM_OK; ++h) {
        status = start_host(holder, h);
    }
    XM_THEN(status, configure(holder, 0, "ip", switch_links));
    XM_THEN(status, configure(holder, 0, "tc", switch_queues));
    for (int h = 0; h < holder->shape->hosts && status == XM_OK; ++h) {
        (void)send(holder->channel[h], "", 1, MSG_NOSIGNAL); /* a dead host is noticed below */
    }
    for (int h = 0; h < holder->shape->hosts && status == XM_OK; ++h) {
        status = await_host(holder, h);
    }
    for (int h = 0; h < holder->shape->hosts && holder->members.init[h] > 0; ++h) {
        (void)close(holder->channel[h]);
    }
    if (status == XM_OK && holder->claim->fd >= 0) {
        status = rb_cluster_state_write(holder->claim, &holder->members);
    }
    return status;
}

/* Ends the hosts, which die with their first processes, before those can be collected. */
static void end_hosts(const holder_t *holder)
{
    for (int h = 0; h < holder->shape->hosts; ++h) {
        if (holder->members.init[h] > 0) {
            (void)kill(holder->members.init[h], SIGKILL);
        }
    }
    while (waitpid(-1, NULL, 0) > 0 || errno == EINTR) {
    }
}

/* Waits for SIGTERM, and forgets the process ids of hosts that end before, so they are
 * not killed later when the number belongs to another process. */
static void wait_for_end(holder_t *holder)
{
    sigset_t awaited;
    int number;

    (void)sigemptyset(&awaited);
    (void)sigaddset(&awaited, SIGTERM);
    (void)sigaddset(&awaited, SIGCHLD);
    (void)sigprocmask(SIG_BLOCK, &awaited, NULL);
    do {
        pid_t ended;

        /* A host that was killed is a host that failed: the others live on. */
        while ((ended = waitpid(-1, NULL, WNOHANG)) > 0) {
            for (int h = 0; h < holder->shape->hosts; ++h) {
                holder->members.init[h] =
                    holder->members.init[h] == ended ? 0 : holder->members.init[h];
            }
        }
        number = sigwaitinfo(&awaited, NULL);
    } while (number != SIGTERM);
}

void rb_cluster_hold(const rb_cluster_shape_t *shape, const rb_cluster_claim_t *claim,
                     int report_fd)
{
    holder_t holder = {
        .shape = shape, .claim = claim, .report_fd = report_fd, .members.shape = *shape};
    rb_holder_report_t report = {0};
    struct pollfd maker = {.fd = report_fd};
    xm_status_t status;

    leave_maker(report_fd, claim->fd);
    holder.members.holder = getpid();
    status = enter_switch();
    /* The death signal is set only now, because a change of user namespace would undo it.
     * A maker that died before has closed its end. */
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (poll(&maker, 1, 0) != 0) {
        rb_cluster_state_remove(claim);
        _exit(EXIT_FAILURE);
    }
    XM_THEN(status, build(&holder));
    if (status == XM_OK && shape->core_share > 0) {
        status = rb_core_share_keep_exact();
    }
    xm_error_save(&report.error, status);
    if (status < 0) {
        end_hosts(&holder);
        rb_cluster_state_remove(claim);
    }
    /* A lasting cluster outlives its maker from here on. */
    if (claim->fd >= 0) {
        (void)prctl(PR_SET_PDEATHSIG, 0);
    }
    memcpy(report.init, holder.members.init, sizeof(report.init));
    if (write(report_fd, &report, sizeof(report)) == (ssize_t)sizeof(report) && status == XM_OK) {
        (void)close(report_fd);
        wait_for_end(&holder);
    }
    rb_cluster_state_remove(claim);
    end_hosts(&holder);
    _exit(EXIT_SUCCESS);
}
