/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A planner that is a command. It is foreign code that may crash, hang or never stop writing, and
 * must not take its caller with it: it is a process group of its own, every wait has a deadline,
 * its answer a largest size, and its plan is verified like a plan from anyone.
 *
 * posix_spawn() and not fork(), because the caller may have threads. The request is a file in
 * memory, so that a command which does not read it disturbs nobody.
 */

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "comm/base.h"
#include "planner/explain.h"
#include "planner/plugin.h"

enum {
    SENTENCE = 400,
    COMMAND_SHOWN = 64,    /* characters of the command in sentences */
    MOST_BYTES = 64 << 20, /* of an answer: a plan of a thousand stages has some megabytes */
    NO_SOLUTION = 2,       /* exit status that says so */
    SHELL_SIGNALS = 128,   /* a shell's exit status for signal n is this + n */
    REQUEST = 0,           /* the command's descriptors */
    ANSWER = 1,
    WORDS = 2,
    LIFE = 3,
    DESCRIPTORS = 4
};

/* Seconds that are granted when the caller says nothing. */
static const double PLAN_SECONDS = 600.0;

/* A subshell waits for the end of the caller, which holds the other end of its input, and kills the
 * group then: so the command does not outlive a caller that is killed. */
static char script[] = "(read line; kill -9 0) <&3 >/dev/null 2>&1 & exec 3<&-; eval \"$1\"";

typedef struct asked {
    const ap_planner_params_t *params;
    void (*log)(void *arg, const char *line);
    void *log_arg;
    char name[COMMAND_SHOWN + 8];
    pid_t process;
    int own[DESCRIPTORS], given[DESCRIPTORS]; /* ends of pipes, -1: none; given[]: the command's */
    double seconds, deadline;
    FILE *answer;
    char *text;
    size_t size, length;                 /* of the text: the stream's, and what was taken */
    char line[SENTENCE], last[SENTENCE]; /* being read; the sentence before it, not yet told */
    size_t filled;
    int status; /* as waitpid() has it */
} asked_t;

static void close_end(int *end)
{
    if (*end >= 0) {
        (void)close(*end);
        *end = -1;
    }
}

/* Opens what the command reads and writes, each with a higher number than the command knows it by:
 * so none overwrites one that comes later. */
static xm_status_t open_ends(asked_t *asked, const char *request)
{
    size_t length = strlen(request);
    FILE *file = NULL;
    bool good;

    asked->given[REQUEST] = memfd_create("request", MFD_CLOEXEC);
    if (asked->given[REQUEST] >= 0) {
        int copy = fcntl(asked->given[REQUEST], F_DUPFD_CLOEXEC, DESCRIPTORS);

        file = copy >= 0 ? fdopen(copy, "w") : NULL;
    }
    good = file != NULL && fwrite(request, 1, length, file) == length;
    good =
        file != NULL && fclose(file) == 0 && good && lseek(asked->given[REQUEST], 0, SEEK_SET) == 0;
    for (int d = ANSWER; d < DESCRIPTORS && good; ++d) {
        int ends[2];

        good = pipe2(ends, O_CLOEXEC) == 0;
        if (good) {
            asked->own[d] = ends[d == LIFE];
            asked->given[d] = ends[d != LIFE];
        }
    }
    return good ? XM_OK
                : xm_error_set(XM_ERR_IO, "pipes for the %s: %s", asked->name, strerror(errno));
}

static xm_status_t start(asked_t *asked, const char *command)
{
    char shell[] = "/bin/sh", option[] = "-c", *line = strdup(command);
    char *const argv[] = {shell, option, script, shell, line, NULL};
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t group;
    int result = ENOMEM;

    if (line != NULL && posix_spawn_file_actions_init(&actions) == 0) {
        for (int d = 0; d < DESCRIPTORS; ++d) {
            (void)posix_spawn_file_actions_adddup2(&actions, asked->given[d], d);
        }
        if (posix_spawnattr_init(&group) == 0) {
            (void)posix_spawnattr_setflags(&group, POSIX_SPAWN_SETPGROUP);
            (void)posix_spawnattr_setpgroup(&group, 0);
            result = posix_spawn(&asked->process, shell, &actions, &group, argv, environ);
            (void)posix_spawnattr_destroy(&group);
        }
        (void)posix_spawn_file_actions_destroy(&actions);
    }
    free(line);
    for (int d = 0; d < DESCRIPTORS; ++d) {
        close_end(&asked->given[d]);
    }
    return result == 0
               ? XM_OK
               : xm_error_set(XM_ERR_IO, "a process for the %s: %s", asked->name, strerror(result));
}

/* Tells the sentence that was held back: the last one may turn out to be the reason of a failure,
 * which nobody wants to read twice. */
static void tell(asked_t *asked)
{
    if (asked->last[0] != '\0' && asked->log != NULL) {
        asked->log(asked->log_arg, asked->last);
    }
    asked->last[0] = '\0';
}

/* One line that the command wrote for us, which may hold anything. */
static void hear(asked_t *asked)
{
    const ap_planner_params_t *params = asked->params;
    int used = 0;
    double part;

    asked->line[asked->filled] = '\0';
    asked->filled = 0;
    /* A number that is none is no progress. NOLINTNEXTLINE(cert-err34-c) */
    if (sscanf(asked->line, "progress %lf %n", &part, &used) == 1 && used > 0 && isfinite(part)) {
        if (params->progress != NULL) {
            params->progress(params->progress_arg, fmin(fmax(part, 0.0), 1.0), asked->line + used);
        }
    } else if (asked->line[0] != '\0') {
        tell(asked);
        (void)xm_text_printable(asked->line, asked->last, sizeof(asked->last));
    }
}

static void take_words(asked_t *asked, const char *bytes, size_t count)
{
    for (size_t i = 0; i < count; ++i) {
        if (bytes[i] == '\n') {
            hear(asked);
        } else if (asked->filled + 1 < sizeof(asked->line) && bytes[i] != '\r') {
            asked->line[asked->filled++] = bytes[i];
        }
    }
}

/* Reads what is there of one of the command's outputs. */
static xm_status_t take(asked_t *asked, int from)
{
    char bytes[1 << 14];
    ssize_t count = read(asked->own[from], bytes, sizeof(bytes));

    if (count < 0 && errno == EINTR) {
        return XM_OK;
    }
    if (count <= 0) {
        close_end(&asked->own[from]);
        return XM_OK;
    }
    if (from == WORDS) {
        take_words(asked, bytes, (size_t)count);
        return XM_OK;
    }
    asked->length += (size_t)count;
    if (asked->length > MOST_BYTES) {
        return XM_MALFORMED("%s: its plan has more than %d MiB", asked->name, MOST_BYTES >> 20);
    }
    return fwrite(bytes, 1, (size_t)count, asked->answer) == (size_t)count
               ? XM_OK
               : XM_NO_MEMORY("the plan of the %s", asked->name);
}

/* Whether the command's own process has ended. It is not reaped, so its group keeps its number. */
static bool has_ended(const asked_t *asked)
{
    siginfo_t info = {0};

    return waitid(P_PID, (id_t)asked->process, &info, WEXITED | WNOHANG | WNOWAIT) != 0 ||
           info.si_pid != 0;
}

/* Listens until the command has closed its outputs, or has ended and nothing more is there: what it
 * left behind may hold them open. */
static xm_status_t listen_to(asked_t *asked)
{
    enum { MOMENT_MS = 10 };

    for (;;) {
        struct pollfd ends[] = {{.fd = asked->own[ANSWER], .events = POLLIN},
                                {.fd = asked->own[WORDS], .events = POLLIN}};
        bool ended = has_ended(asked);
        int ready = poll(ends, 2, MOMENT_MS);
        xm_status_t status = XM_OK;

        if (ready == 0 && ended) {
            return XM_OK;
        }
        if (xm_clock_seconds() > asked->deadline) {
            return xm_error_set(XM_ERR_TIMEOUT, "%s: it was not done within %g s; it was ended",
                                asked->name, asked->seconds);
        }
        if (ready > 0 && ends[0].revents != 0) {
            status = take(asked, ANSWER);
        }
        if (ready > 0 && ends[1].revents != 0 && status == XM_OK) {
            status = take(asked, WORDS);
        }
        XM_TRY(status);
    }
}

/* Ends the group with whatever the command has started. Waiting again after a signal handler makes
 * sure that no zombie is left. */
static void end(asked_t *asked)
{
    if (asked->process > 0) {
        (void)kill(-asked->process, SIGKILL);
        while (waitpid(asked->process, &asked->status, 0) < 0 && errno == EINTR) {
        }
    }
    for (int d = 0; d < DESCRIPTORS; ++d) {
        close_end(&asked->own[d]);
        close_end(&asked->given[d]);
    }
    hear(asked);
}

/* What the command says by its exit status. */
static xm_status_t judge_end(asked_t *asked)
{
    int code = WIFEXITED(asked->status) ? WEXITSTATUS(asked->status)
                                        : SHELL_SIGNALS + WTERMSIG(asked->status);
    int signal = code - SHELL_SIGNALS;
    xm_status_t status = code == NO_SOLUTION ? XM_ERR_NO_SOLUTION : XM_ERR_INTERNAL;

    if (code == 0 || signal > 0) {
        tell(asked);
    }
    if (code == 0) {
        return asked->length > 0 ? XM_OK : XM_MALFORMED("%s: it wrote no plan", asked->name);
    }
    if (signal > 0) {
        return xm_error_set(XM_ERR_INTERNAL, "%s: it died of signal %d (%s)", asked->name, signal,
                            strsignal(signal));
    }
    return asked->last[0] != '\0'
               ? xm_error_set(status, "%s: %s", asked->name, asked->last)
               : xm_error_set(status, "%s: it gave no reason (exit status %d)", asked->name, code);
}

/* A plan from a command is seen by nobody before it is verified against the very question. */
static xm_status_t read_plan(const asked_t *asked, ap_plan_t **plan)
{
    char source[sizeof(asked->name) + 16];
    ap_plan_t *made;
    xm_status_t status;

    (void)snprintf(source, sizeof(source), "%s: its plan", asked->name);
    XM_TRY(ap_plan_parse(source, asked->text, asked->length, &made));
    status = ap_plan_verify(asked->params, made);
    if (status != XM_OK) {
        ap_plan_destroy(made);
        return xm_error_prefix(status, "%s", source);
    }
    *plan = made;
    return XM_OK;
}

static xm_status_t ask(asked_t *asked, const char *command, const char *request)
{
    xm_status_t status = open_ends(asked, request);

    asked->answer = open_memstream(&asked->text, &asked->size);
    if (status == XM_OK && asked->answer == NULL) {
        status = XM_NO_MEMORY("the %s", asked->name);
    }
    XM_THEN(status, start(asked, command));
    XM_THEN(status, listen_to(asked));
    end(asked);
    if (asked->answer != NULL && fclose(asked->answer) != 0 && status == XM_OK) {
        status = XM_NO_MEMORY("the plan of the %s", asked->name);
    }
    return status == XM_OK ? judge_end(asked) : status;
}

xm_status_t ap_planner_command_plan(const char *command, const ap_planner_params_t *params,
                                    void (*log)(void *arg, const char *line), void *log_arg,
                                    ap_plan_t **plan)
{
    XM_NEED_ARGUMENTS(command, plan);
    asked_t asked = {
        .log = log, .log_arg = log_arg, .own = {-1, -1, -1, -1}, .given = {-1, -1, -1, -1}};
    ap_door_planner_t own;
    char *request = NULL;
    xm_status_t status;

    XM_TRY(ap_door_planner_params(&own, __func__, params));
    XM_TRY(ap_planner_request_text(&own.params, &request));
    (void)snprintf(asked.name, sizeof(asked.name), "planner %.*s", COMMAND_SHOWN - 1, command);
    asked.params = &own.params;
    asked.seconds = own.params.time_limit > 0.0 ? own.params.time_limit : PLAN_SECONDS;
    asked.deadline = xm_clock_seconds() + asked.seconds;
    status = ask(&asked, command, request);
    XM_THEN(status, read_plan(&asked, plan));
    free(asked.text);
    free(request);
    return status;
}
