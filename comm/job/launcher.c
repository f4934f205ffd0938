/* SPDX-License-Identifier: Apache-2.0 */
/* Starting the ranks of a job on this machine, and watching them. Three promises make it more
 * than a loop over fork(): no rank outlives the launcher (the kernel kills them with it,
 * PR_SET_PDEATHSIG), the rank that failed first is named and not one that ended because of it,
 * and the call returns even if a rank hangs in the kernel. Signals are taken through a
 * descriptor, so there is no handler and no race with waitpid(). */
#include "comm/job/launcher.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "comm/base.h"
#include "comm/job/job_secret.h"
#include "comm/job/launcher_env.h"

/* LOOK_MS: ranks are checked this often even without a signal, in case another thread has taken
 * it. INTERRUPT_S: what ranks get to end by themselves after the job was interrupted. DEATH_S:
 * what they get to be gone after SIGKILL; one that hangs in the kernel may never be. SOON_S: what
 * they get where a longer wait is in vain: the job has not begun and never will, or those that
 * could explain its end have ended. FROZEN: intervals of the detector for which a rank may be
 * stopped before it has met the others, which cannot tell it from one that starts late. */
enum { MAX_RANKS = 4096, LOOK_MS = 200, BACKLOG = 1024, MAX_ADDRESS = 45 };
static const double INTERRUPT_S = 2.0, DEATH_S = 10.0, SOON_S = 0.5, FROZEN = 3.0;

/* How the job failed first. */
typedef enum { NOTHING, ENDED_BADLY, NOT_OURS, GIVEN_UP, STOPPED, IMMORTAL } failure_t;

/* What a rank has told, and what has become of it. */
typedef struct {
    pid_t pid;    /* 0: not started, or collected */
    bool met;     /* it has met the others */
    int accuses;  /* the rank that it takes for gone; -1: none */
    bool accused; /* somebody takes it for gone */
    double ends;  /* when it is ended for that reason: not at once, since a rank that is dead is
                     about to be collected, with a status that says more; 0: it is not */
    bool ended;
    double stopped; /* since when it has been stopped by a signal; 0: it is not */
} rank_t;

typedef struct {
    const xm_launch_params_t *params;
    double timeout;
    int listen_fd;
    int port;
    int signal_fd;
    sigset_t old_mask;
    struct sigaction old_child_action;
    int report[2]; /* a pipe: what the ranks have to tell */
    rank_t *ranks;
    int running;
    double kill_at; /* when the rest is killed; infinity before the first failure */
    bool killed;    /* that has happened */
    failure_t failure;
    int first_rank; /* -1: no failure yet */
    int first_wait_status;
    char secret[sizeof("XM_JOB_SECRET=") + XM_JOB_SECRET_TEXT_SIZE]; /* "" when there is one */
    int interrupted;                                                 /* the signal, 0 for none */
} launch_t;

/* Opens a socket that listens at a free port of the loopback interface. Rank 0 inherits it, so
 * the port cannot be taken between its choice and its use. */
static xm_status_t listen_on_loopback(launch_t *launch)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof(address);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    if (fd < 0 || bind(fd, (const struct sockaddr *)&address, sizeof(address)) != 0 ||
        listen(fd, BACKLOG) != 0 || getsockname(fd, (struct sockaddr *)&address, &length) != 0) {
        xm_status_t status =
            xm_error_set(XM_ERR_IO, "launcher: cannot listen on 127.0.0.1: %s", strerror(errno));

        if (fd >= 0) {
            (void)close(fd);
        }
        return status;
    }
    launch->listen_fd = fd;
    launch->port = ntohs(address.sin_port);
    return XM_OK;
}

/* If rank 0 runs in another network namespace, only rank 0 itself can listen there. */
static xm_status_t open_listener(launch_t *launch)
{
    if (launch->params->master_addr == NULL) {
        return listen_on_loopback(launch);
    }
    launch->listen_fd = -1;
    launch->port = launch->params->master_port;
    return XM_OK;
}

/* Makes a secret for the ranks, where the environment has none: other users of the machine can
 * reach the loopback port. */
static xm_status_t make_secret(launch_t *launch)
{
    static const char name[] = "XM_JOB_SECRET=";
    xm_status_t status;

    if (xm_config_string(XM_CONFIG_JOB_SECRET)[0] != '\0' ||
        xm_config_string(XM_CONFIG_JOB_SECRET_FILE)[0] != '\0') {
        return XM_OK;
    }
    status = xm_job_secret_make(launch->secret + sizeof(name) - 1);
    if (status == XM_OK) {
        memcpy(launch->secret, name, sizeof(name) - 1);
    }
    return status;
}

/* Rank 0 has its own copy once it runs; the launcher itself never accepts a connection. */
static void close_listener(const launch_t *launch)
{
    if (launch->listen_fd >= 0) {
        (void)close(launch->listen_fd);
    }
}

/* From here on the end of a child and an interruption are read from a descriptor. A signal that
 * was ignored when this process started (a shell's background job, nohup) is left alone: a
 * blocked one would be read even so. UCX takes SIGHUP over before main(), unless
 * UCX_DEBUG_SIGNO says otherwise; then nobody can tell that it was ignored. */
static xm_status_t take_signals(launch_t *launch)
{
    static const int interruptions[] = {SIGINT, SIGTERM, SIGHUP};
    struct sigaction plain = {.sa_handler = SIG_DFL}, found;
    sigset_t mask;

    (void)sigemptyset(&mask);
    (void)sigaddset(&mask, SIGCHLD);
    for (size_t i = 0; i < sizeof(interruptions) / sizeof(interruptions[0]); ++i) {
        if (sigaction(interruptions[i], NULL, &found) == 0 && found.sa_handler != SIG_IGN) {
            (void)sigaddset(&mask, interruptions[i]);
        }
    }
    launch->signal_fd = signalfd(-1, &mask, SFD_CLOEXEC | SFD_NONBLOCK);
    if (launch->signal_fd < 0) {
        return xm_error_set(XM_ERR_IO, "launcher: signalfd: %s", strerror(errno));
    }
    (void)pthread_sigmask(SIG_BLOCK, &mask, &launch->old_mask);
    /* With SIGCHLD ignored the kernel would collect the children itself. */
    (void)sigaction(SIGCHLD, &plain, &launch->old_child_action);
    return XM_OK;
}

static void read_signals(launch_t *launch);

/* Gives the signals back as they were. */
static void return_signals(launch_t *launch)
{
    read_signals(launch); /* one that came last would end this process */
    (void)sigaction(SIGCHLD, &launch->old_child_action, NULL);
    (void)pthread_sigmask(SIG_SETMASK, &launch->old_mask, NULL);
    (void)close(launch->signal_fd);
}

/* Runs in the child, between fork and exec: it does only what a signal handler might do. A
 * caller that wants to enter something else must have one thread. */
static void become_rank(const launch_t *launch, int rank, pid_t parent, char *const *entries)
{
    /* First of all the child ties its life to the parent's, then it looks whether the parent is
     * still there: in that order no moment is left out. */
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) {
        _exit(127); /* the parent died before it could be watched */
    }
    (void)pthread_sigmask(SIG_SETMASK, &launch->old_mask, NULL);
    if (rank == 0 && launch->listen_fd >= 0) {
        (void)fcntl(launch->listen_fd, F_SETFD, 0);
    }
    (void)fcntl(launch->report[1], F_SETFD, 0);
    if (launch->params->enter != NULL && launch->params->enter(launch->params->arg, rank) < 0) {
        (void)dprintf(STDERR_FILENO, "rank %d: %s\n", rank, xm_last_error());
        _exit(127);
    }
    (void)execve("/proc/self/exe", launch->params->argv, entries);
    _exit(127);
}

/* Starts one rank. A failure leaves those before it running; the caller has them killed. */
static xm_status_t start_rank(launch_t *launch, int rank)
{
    pid_t parent = getpid();
    xm_launch_place_t place = {.port = launch->port,
                               .listen_fd = rank == 0 ? launch->listen_fd : -1,
                               .report_fd = launch->report[1],
                               .secret = launch->secret};
    xm_launch_env_t env;

    XM_TRY(xm_launch_env_make(launch->params, rank, &place, &env));
    launch->ranks[rank].pid = fork();
    if (launch->ranks[rank].pid == 0) {
        become_rank(launch, rank, parent, env.entries);
    }
    free(env.entries);
    if (launch->ranks[rank].pid < 0) {
        launch->ranks[rank].pid = 0;
        return xm_error_set(XM_ERR_NO_MEMORY, "launcher: cannot start rank %d of %d: %s", rank,
                            launch->params->ranks, strerror(errno));
    }
    ++launch->running;
    return XM_OK;
}

/* A process id is 0 once its rank has been collected, so no stranger with a reused id is hit. */
static void signal_ranks(const launch_t *launch, int signal_number)
{
    for (int rank = 0; rank < launch->params->ranks; ++rank) {
        if (launch->ranks[rank].pid > 0) {
            (void)kill(launch->ranks[rank].pid, signal_number);
        }
    }
}

/* The earliest time wins: an interruption may shorten the wait after a failure, never prolong
 * it. */
static void set_kill_time(launch_t *launch, double seconds)
{
    double at = xm_clock_seconds() + seconds;

    launch->kill_at = at < launch->kill_at ? at : launch->kill_at;
}

/* The failure of one rank explains the whole job's end, with the status that the kernel gave. */
static void note_failure(launch_t *launch, failure_t failure, int rank, int wait_status)
{
    launch->failure = failure;
    launch->first_rank = rank;
    launch->first_wait_status = wait_status;
}

/* Collects the ranks that have ended. One that a signal killed counts as the first, even when
 * it is seen later: the others end because of it, and a large process may take longer to be
 * gone than they need to notice. */
static void collect(launch_t *launch)
{
    bool failed_before = launch->first_rank >= 0;

    for (int rank = 0; rank < launch->params->ranks; ++rank) {
        rank_t *its = &launch->ranks[rank];
        int wait_status = 0;
        pid_t ended =
            its->pid > 0 ? waitpid(its->pid, &wait_status, WNOHANG | WUNTRACED | WCONTINUED) : 0;

        if (ended == 0 || (ended < 0 && errno == EINTR)) {
            continue;
        }
        if (ended > 0 && (WIFSTOPPED(wait_status) || WIFCONTINUED(wait_status))) {
            its->stopped = WIFSTOPPED(wait_status) ? xm_clock_seconds() : 0.0;
            continue;
        }
        its->pid = 0;
        --launch->running;
        if (its->ended) {
            if (launch->first_rank < 0) {
                note_failure(launch, its->met ? GIVEN_UP : STOPPED, rank, wait_status);
            }
            continue;
        }
        if (ended < 0) {
            /* Whatever it ended with, nobody can say that it was success. */
            if (launch->first_rank < 0) {
                note_failure(launch, NOT_OURS, rank, 0);
            }
        } else if (wait_status != 0 &&
                   (launch->first_rank < 0 ||
                    (!launch->killed && launch->interrupted == 0 && WIFSIGNALED(wait_status) &&
                     !WIFSIGNALED(launch->first_wait_status)))) {
            note_failure(launch, ENDED_BADLY, rank, wait_status);
        }
    }
    if (launch->first_rank >= 0 && !failed_before) {
        bool began = launch->ranks[launch->first_rank].met;

        set_kill_time(launch, began || launch->timeout < SOON_S ? launch->timeout : SOON_S);
    }
}

/* Reads what the ranks have reported. Nothing of it is believed further than it can harm: a rank
 * may only accuse another one, and counts once. */
static void read_reports(launch_t *launch)
{
    int ranks = launch->params->ranks;
    xm_launch_report_t report;

    while (read(launch->report[0], &report, sizeof(report)) == (ssize_t)sizeof(report)) {
        if (report.rank < 0 || report.rank >= ranks || report.given_up >= ranks) {
            continue;
        }
        launch->ranks[report.rank].met = true;
        if (report.given_up >= 0 && report.given_up != report.rank) {
            launch->ranks[report.rank].accuses = report.given_up;
            launch->ranks[report.given_up].accused = true;
        }
    }
}

/* True when all that run and are not accused themselves take the rank for gone. */
static bool is_given_up(const launch_t *launch, int rank)
{
    for (int other = 0; other < launch->params->ranks; ++other) {
        const rank_t *judge = &launch->ranks[other];

        if (other != rank && judge->pid > 0 && !judge->accused && judge->accuses != rank) {
            return false;
        }
    }
    return launch->ranks[rank].accused;
}

/* True when the rank has been stopped for long before it has met the others. */
static bool is_frozen_early(const rank_t *rank)
{
    double interval = xm_config_seconds(XM_CONFIG_HEARTBEAT);

    return !rank->met && rank->stopped > 0.0 && interval > 0.0 &&
           xm_clock_seconds() - rank->stopped > FROZEN * interval;
}

/* Ends the ranks that all others have given up, which may be frozen and would be waited for in
 * vain, and those that are frozen before there are others to say so. When all accusers have ended,
 * whoever is left gets little time: it may be frozen as well, and nobody is there to say so. */
static void end_given_up(launch_t *launch)
{
    bool ended = false, judges = false;

    for (int rank = 0; rank < launch->params->ranks; ++rank) {
        rank_t *its = &launch->ranks[rank];

        if (its->pid > 0 && its->ends == 0.0 &&
            (is_given_up(launch, rank) || is_frozen_early(its))) {
            its->ends = xm_clock_seconds() + LOOK_MS * 1e-3;
        }
        if (its->pid > 0 && !its->ended && its->ends > 0.0 && xm_clock_seconds() >= its->ends) {
            its->ended = true;
            (void)kill(its->pid, SIGKILL);
        }
        ended = ended || its->ended;
        judges = judges || (its->pid > 0 && its->accuses >= 0);
    }
    if (ended && !judges) {
        set_kill_time(launch, SOON_S);
    }
}

/* Gives up the ranks that SIGKILL has not ended; the lowest one is named. */
static void abandon(launch_t *launch)
{
    for (int rank = launch->params->ranks - 1; rank >= 0; --rank) {
        if (launch->ranks[rank].pid > 0) {
            note_failure(launch, IMMORTAL, rank, (int)launch->ranks[rank].pid);
        }
    }
    launch->running = 0;
}

/* Reads all signals that have come. An interruption is passed on to the ranks and starts their
 * deadline. */
static void read_signals(launch_t *launch)
{
    struct signalfd_siginfo info;

    while (read(launch->signal_fd, &info, sizeof(info)) == (ssize_t)sizeof(info)) {
        if (info.ssi_signo == SIGCHLD) {
            continue;
        }
        /* Whoever interrupts twice does not want to wait any longer. */
        set_kill_time(launch, launch->interrupted != 0 ? 0.0 : INTERRUPT_S);
        launch->interrupted = (int)info.ssi_signo;
        signal_ranks(launch, launch->interrupted);
    }
}

/* Waits for the ranks. It wakes up for signals, for the deadline, and from time to time anyway,
 * so a lost signal costs 0.2 s and not for ever. */
static void supervise(launch_t *launch)
{
    while (launch->running > 0) {
        struct pollfd entries[] = {{.fd = launch->signal_fd, .events = POLLIN},
                                   {.fd = launch->report[0], .events = POLLIN}};
        double remaining = launch->kill_at - xm_clock_seconds();

        if (remaining <= 0.0 && !launch->killed) {
            signal_ranks(launch, SIGKILL);
            launch->killed = true;
        }
        if (remaining <= -DEATH_S) {
            abandon(launch);
            return;
        }
        (void)poll(entries, 2,
                   launch->killed || remaining * 1e3 > LOOK_MS ? LOOK_MS
                                                               : (int)(remaining * 1e3) + 1);
        read_signals(launch);
        read_reports(launch);
        collect(launch);
        end_given_up(launch);
    }
}

/* Makes the sentence and exit code. An interruption outranks a rank's failure, which it has
 * caused; a rank that cannot be killed outranks both, for it is left behind. */
static xm_status_t fault_status(const launch_t *launch, int *exit_code)
{
    int status = launch->first_wait_status;

    if (launch->failure == IMMORTAL) {
        *exit_code = 1;
        return xm_error_set(XM_ERR_TIMEOUT,
                            "rank %d (pid %d) has not ended %g s after SIGKILL: it hangs in the "
                            "kernel and is left behind",
                            launch->first_rank, status, DEATH_S);
    }
    if (launch->interrupted != 0) {
        *exit_code = 128 + launch->interrupted;
        return xm_error_set(XM_ERR_CANCELED, "interrupted by signal %d (%s)", launch->interrupted,
                            sigdescr_np(launch->interrupted));
    }
    if (launch->first_rank < 0) {
        *exit_code = 0;
        return XM_OK;
    }
    if (launch->failure == NOT_OURS) {
        *exit_code = 1;
        return xm_error_set(
            XM_ERR_INTERNAL,
            "rank %d has ended, but somebody else in this process has collected its "
            "exit status",
            launch->first_rank);
    }
    if (launch->failure == GIVEN_UP) {
        *exit_code = 1;
        return xm_error_set(XM_ERR_PEER_DIED,
                            "rank %d was ended, because all other ranks had found it gone",
                            launch->first_rank);
    }
    if (launch->failure == STOPPED) {
        *exit_code = 1;
        return xm_error_set(XM_ERR_PEER_DIED,
                            "rank %d was ended, because a signal had stopped it before it met the "
                            "others",
                            launch->first_rank);
    }
    if (WIFSIGNALED(status)) {
        const char *name = sigdescr_np(WTERMSIG(status));

        *exit_code = 128 + WTERMSIG(status);
        return xm_error_set(XM_ERR_PEER_DIED, "rank %d was killed by signal %d (%s)",
                            launch->first_rank, WTERMSIG(status), name != NULL ? name : "?");
    }
    *exit_code = WEXITSTATUS(status);
    return xm_error_set(XM_ERR_PEER_DIED, "rank %d exited with status %d", launch->first_rank,
                        WEXITSTATUS(status));
}

static xm_status_t check_params(const xm_launch_params_t *params)
{
    if (params->argv == NULL || params->argv[0] == NULL) {
        return XM_INVALID("launcher: no argv");
    }
    if (params->ranks < 1 || params->ranks > MAX_RANKS || params->ranks_per_host < 0) {
        return XM_INVALID("launcher: %d ranks (1 to %d are possible), %d per host", params->ranks,
                          MAX_RANKS, params->ranks_per_host);
    }
    if (params->master_addr != NULL && (strlen(params->master_addr) > MAX_ADDRESS ||
                                        params->master_port < 1 || params->master_port > 65535)) {
        return XM_INVALID("launcher: rank 0 at '%s' port %d", params->master_addr,
                          params->master_port);
    }
    return XM_OK;
}

/* Runs the whole job. After the signals have been taken there is one way out, which collects
 * every rank that was started and gives the signals back. */
xm_status_t xm_launch(const xm_launch_params_t *given, int *exit_code)
{
    xm_launch_params_t own = XM_LAUNCH_PARAMS_INIT;
    const xm_launch_params_t *params = &own;
    launch_t launch = {.params = params, .kill_at = 1e300, .first_rank = -1};
    xm_status_t status = XM_OK;

    XM_TRY(XM_PARAMS_COPY(xm_launch_params_t, &own, given));
    XM_TRY(check_params(params));
    launch.timeout = params->timeout > 0.0 ? params->timeout : xm_config_seconds(XM_CONFIG_TIMEOUT);
    launch.ranks = calloc((size_t)params->ranks, sizeof(*launch.ranks));
    if (launch.ranks == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "launcher: no memory for %d ranks", params->ranks);
    }
    for (int rank = 0; rank < params->ranks; ++rank) {
        launch.ranks[rank].accuses = -1;
    }
    if (pipe2(launch.report, O_CLOEXEC | O_NONBLOCK) != 0) {
        status = xm_error_set(XM_ERR_IO, "launcher: no pipe: %s", strerror(errno));
        goto free_ranks;
    }
    status = make_secret(&launch);
    XM_THEN(status, open_listener(&launch));
    if (status < 0) {
        goto close_pipe;
    }
    status = take_signals(&launch);
    if (status < 0) {
        goto close_listener;
    }
    /* Every child would otherwise write the buffered output once more. */
    (void)fflush(NULL);
    for (int rank = 0; rank < params->ranks && status == XM_OK; ++rank) {
        status = start_rank(&launch, rank);
    }
    if (status < 0) {
        set_kill_time(&launch, 0.0);
    }
    /* Only rank 0 may hold the socket, or its death would not free the port. */
    close_listener(&launch);
    supervise(&launch);
    return_signals(&launch);
    explicit_bzero(launch.secret, sizeof(launch.secret));
    status = status < 0 ? status : fault_status(&launch, exit_code);
    goto close_pipe;

close_listener:
    close_listener(&launch);
close_pipe:
    (void)close(launch.report[0]);
    (void)close(launch.report[1]);
free_ranks:
    free(launch.ranks);
    return status;
}
