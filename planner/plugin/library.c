/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The host's side of planner plug-ins. A plug-in is foreign code that may crash, hang or write
 * beyond its arrays, and must not take the host with it; so it is loaded in a forked child, which
 * is killed when its time is up, and its answer is verified like a plan from anyone.
 *
 * Fork without exec keeps the plug-in's table of functions simple, at a price that the header
 * names: no other thread may hold locks that the library needs.
 */

#include "planner/plugin.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "comm/base.h"
#include "planner/search.h"
#include "planner/explain.h"
#include "planner/plugin/channel.h"
#include "planner/plugin/request.h"
#include "planner/plugin/service.h"

enum { SENTENCE = 400 };

/* Seconds that are granted when the caller says nothing. */
static const double START_SECONDS = 30.0, PLAN_SECONDS = 600.0;

struct ap_planner_library {
    pid_t process; /* 0: it ended */
    int socket;
    double timeout; /* seconds that starting and finalising may take */
    autopar_planner_host_v1_t host;
    char name[AP_PLANNER_NAME_MOST + 1]; /* the planner's; until it is known that of the library */
};

/* The planner's reason as one printable line: it may hold anything, and stands in a sentence. */
static void one_line(const char *reason, char *line)
{
    size_t length = 0;

    for (; reason[length] != '\0' && length + 1 < SENTENCE; ++length) {
        bool prints = (unsigned char)reason[length] >= ' ' && reason[length] != '\x7f';

        line[length] = prints ? reason[length] : ' ';
    }
    while (length > 0 && line[length - 1] == ' ') {
        --length;
    }
    line[length] = '\0';
}

/* Ends the process, which may have started others, and says in *ended how it ended. The whole group
 * is killed; waiting again after a signal handler makes sure that no zombie is left. */
static void reap(ap_planner_library_t *library, int *ended)
{
    int unused;

    if (library->process > 0) {
        (void)kill(-library->process, SIGKILL);
        while (waitpid(library->process, ended != NULL ? ended : &unused, 0) < 0 &&
               errno == EINTR) {
        }
        library->process = 0;
    }
}

/* The planner's process closed its end of the socket: it ended, or is about to. It gets up to a
 * second for the latter, so that its own status is seen and not that of our signal. */
static void describe_end(ap_planner_library_t *library, char *text, size_t size)
{
    enum { TRIES = 200, MOMENT_US = 5000 };
    siginfo_t info = {0};
    int ended = 0;

    for (int i = 0; i < TRIES && info.si_pid == 0; ++i) {
        if (waitid(P_PID, (id_t)library->process, &info, WEXITED | WNOHANG | WNOWAIT) != 0) {
            break;
        }
        if (info.si_pid == 0) {
            (void)usleep(MOMENT_US);
        }
    }
    reap(library, &ended);
    if (WIFSIGNALED(ended)) {
        (void)snprintf(text, size, "died of signal %d (%s)", WTERMSIG(ended),
                       strsignal(WTERMSIG(ended)));
    } else {
        (void)snprintf(text, size, "ended its process with status %d", WEXITSTATUS(ended));
    }
}

/* Turns a failed exchange into a sentence; the planner is no longer running then. */
static xm_status_t exchange_failed(ap_planner_library_t *library, xm_status_t status,
                                   const char *doing, double seconds)
{
    char end[SENTENCE];

    switch (status) {
    case XM_ERR_TIMEOUT:
        reap(library, NULL);
        return xm_error_set(XM_ERR_TIMEOUT, "planner %s: %s was not done within %g s; it was ended",
                            library->name, doing, seconds);
    case XM_ERR_PEER_DIED:
        describe_end(library, end, sizeof(end));
        return xm_error_set(XM_ERR_INTERNAL, "planner %s: it %s during %s", library->name, end,
                            doing);
    default:
        reap(library, NULL);
        return xm_error_prefix(XM_ERR_INTERNAL, "planner %s: %s", library->name, doing);
    }
}

/* Waits for the next message that is an answer; what comes before it goes to the host. */
static xm_status_t await(ap_planner_library_t *library, double deadline, ap_message_t *message,
                         char **text)
{
    for (;;) {
        xm_status_t status = ap_channel_receive(library->socket, deadline, message, text);

        if (status != XM_OK) {
            return status;
        }
        if (message->kind == AP_MESSAGE_PROGRESS && library->host.progress != NULL) {
            library->host.progress(library->host.arg, message->fraction, *text);
        } else if (message->kind == AP_MESSAGE_LOG && library->host.log != NULL) {
            library->host.log(library->host.arg, *text);
        } else if (message->kind != AP_MESSAGE_PROGRESS && message->kind != AP_MESSAGE_LOG) {
            return XM_OK;
        }
        free(*text);
    }
}

/* The child's part of the fork. Standard streams hold nothing at this point, so nothing is written
 * twice; _exit() runs none of the host's exit handlers. */
static _Noreturn void serve(const ap_planner_service_t *service, pid_t parent)
{
    int status = 1;

    (void)setpgid(0, 0);
    /* A parent that is killed takes a planner at work with it. The second test is for a parent that
     * ended before the first call. */
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) == 0 && getppid() == parent) {
        status = ap_planner_serve(service);
    }
    (void)fflush(NULL);
    _exit(status);
}

/* Both processes set the group, whoever comes first, so that a kill reaches it from the start. */
static xm_status_t start_process(const char *path, ap_planner_library_t *library)
{
    ap_planner_service_t service = {
        .path = path, .progress = library->host.progress != NULL, .log = library->host.log != NULL};
    pid_t parent = getpid();
    int ends[2];

    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
        return xm_error_set(XM_ERR_IO, "a socket for the planner %s: %s", path, strerror(errno));
    }
    (void)fflush(NULL);
    library->process = fork();
    if (library->process == 0) {
        (void)close(ends[0]);
        service.socket = ends[1];
        serve(&service, parent);
    }
    (void)close(ends[1]);
    if (library->process < 0) {
        (void)close(ends[0]);
        return xm_error_set(XM_ERR_IO, "a process for the planner %s: %s", path, strerror(errno));
    }
    (void)setpgid(library->process, library->process); /* whoever of the two is first */
    library->socket = ends[0];
    return XM_OK;
}

static xm_status_t await_start(ap_planner_library_t *library)
{
    ap_message_t message;
    char *text;
    xm_status_t status = await(library, xm_clock_seconds() + library->timeout, &message, &text);

    if (status != XM_OK) {
        return exchange_failed(library, status, "its start", library->timeout);
    }
    if (message.kind == AP_MESSAGE_READY) {
        (void)snprintf(library->name, sizeof(library->name), "%s", text);
    } else {
        status = xm_error_set((xm_status_t)message.number, "%s", text);
    }
    free(text);
    return status;
}

xm_status_t ap_planner_library_open(const char *path, const autopar_planner_host_v1_t *host,
                                    double timeout, ap_planner_library_t **library)
{
    if (XM_IS_NULL(path) || XM_IS_NULL(library)) {
        return XM_ERR_INVALID_ARGUMENT;
    }
    ap_planner_library_t *made = calloc(1, sizeof(*made));
    const char *file = strrchr(path, '/');
    xm_status_t status;

    if (made == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "no memory for the planner %s", path);
    }
    made->host = host != NULL ? *host : (autopar_planner_host_v1_t){0};
    made->timeout = timeout > 0.0 ? timeout : START_SECONDS;
    (void)snprintf(made->name, sizeof(made->name), "%.*s", AP_PLANNER_NAME_MOST,
                   file != NULL ? file + 1 : path);
    status = start_process(path, made);
    if (status != XM_OK) {
        free(made);
        return status;
    }
    status = await_start(made);
    if (status != XM_OK) {
        reap(made, NULL);
        (void)close(made->socket);
        free(made);
        return status;
    }
    *library = made;
    return XM_OK;
}

const char *ap_planner_library_name(const ap_planner_library_t *library)
{
    if (XM_IS_NULL(library)) {
        return NULL;
    }
    return library->name;
}

static xm_status_t failed(const ap_planner_library_t *library, int result, const char *reason)
{
    char line[SENTENCE] = "";

    one_line(reason, line);
    if (line[0] == '\0') {
        (void)snprintf(line, sizeof(line), "failed without a reason (plan: %d)", result);
    }
    return xm_error_set(result == AUTOPAR_PLANNER_NO_SOLUTION ? XM_ERR_NO_SOLUTION
                                                              : XM_ERR_INTERNAL,
                        "planner %s: %s", library->name, line);
}

/* A plan from a plug-in is seen by nobody before it is verified against the very question. */
static xm_status_t read_reply(const ap_planner_library_t *library,
                              const ap_planner_params_t *params, const char *reply,
                              ap_plan_t **plan)
{
    char source[AP_PLANNER_NAME_MOST + 32];
    ap_plan_t *made;
    xm_status_t status;

    (void)snprintf(source, sizeof(source), "planner %s: its plan", library->name);
    status = ap_plan_parse(source, reply, strlen(reply), &made);
    if (status != XM_OK) {
        return status;
    }
    status = ap_plan_verify(params, made);
    if (status != XM_OK) {
        ap_plan_destroy(made);
        return xm_error_prefix(status, "%s", source);
    }
    *plan = made;
    return XM_OK;
}

/* One request and what it brings. */
static xm_status_t ask(ap_planner_library_t *library, double seconds, const char *request,
                       ap_message_t *message, char **text)
{
    const ap_message_t question = {.kind = AP_MESSAGE_PLAN};
    double deadline = xm_clock_seconds() + seconds;
    xm_status_t status = ap_channel_send(library->socket, deadline, &question, request);

    if (status == XM_OK) {
        status = await(library, deadline, message, text);
    }
    return status == XM_OK ? XM_OK : exchange_failed(library, status, "its planning", seconds);
}

xm_status_t ap_planner_library_plan(ap_planner_library_t *library,
                                    const ap_planner_params_t *params, ap_plan_t **plan)
{
    if (XM_IS_NULL(library) || XM_IS_NULL(plan)) {
        return XM_ERR_INVALID_ARGUMENT;
    }
    ap_door_planner_t own;
    ap_message_t message;
    char *request, *text;
    xm_status_t status = ap_door_planner_params(&own, __func__, params);

    if (status != XM_OK) {
        return status;
    }
    if (library->process == 0) {
        return xm_error_set(XM_ERR_INTERNAL, "planner %s: it is no longer running", library->name);
    }
    params = &own.params;
    status = ap_planner_request_text(params, &request);
    if (status != XM_OK) {
        return status;
    }
    status = ask(library, params->time_limit > 0.0 ? params->time_limit : PLAN_SECONDS, request,
                 &message, &text);
    free(request);
    if (status != XM_OK) {
        return status;
    }
    if (message.number != 0) {
        status = failed(library, message.number, text);
    } else if (message.kind != AP_MESSAGE_REPLY) {
        status = xm_error_set(XM_ERR_PARSE, "planner %s: it returned no plan", library->name);
    } else {
        status = read_reply(library, params, text, plan);
    }
    free(text);
    return status;
}

/* Lets the planner finalise. What goes wrong is told to the host and to nobody else: the plans are
 * made by then. */
static void finalize(ap_planner_library_t *library)
{
    const ap_message_t end = {.kind = AP_MESSAGE_END};
    double deadline = xm_clock_seconds() + library->timeout;
    ap_message_t message;
    char *text = NULL;
    xm_status_t status = ap_channel_send(library->socket, deadline, &end, NULL);

    if (status == XM_OK) {
        status = await(library, deadline, &message, &text);
        free(text);
    }
    if (status != XM_OK) {
        (void)exchange_failed(library, status, "its end", library->timeout);
        if (library->host.log != NULL) {
            library->host.log(library->host.arg, xm_last_error());
        }
    }
}

void ap_planner_library_close(ap_planner_library_t *library)
{
    if (library != NULL) {
        if (library->process > 0) {
            finalize(library);
        }
        reap(library, NULL);
        (void)close(library->socket);
        free(library);
    }
}
