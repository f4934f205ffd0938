/* SPDX-License-Identifier: Apache-2.0 */
/*
 * memory_copy: how fast this machine copies memory, as a bound for the executor between ranks of a
 * host. K processes, each with a core, copy one shared buffer to a buffer of their own at the same
 * time, as K ranks do that fetch the same slice.
 */
#include <errno.h>
#include <inttypes.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <signal.h>
#include <unistd.h>

#include "cli_support.h"
#include "comm/base.h"
#include <crossmesh/version.h>

static const char program[] = "memory_copy";

static const char summary[] =
    "Copies one buffer to K others at the same time, by K processes with a core each, and prints "
    "how many bytes were written in a second: the bound of a fan-out to K ranks of a host.";

enum { MOST_COPIES = 256, MOST_RUNS = 1000, TIMEOUT_S = 120 };

typedef struct {
    uint64_t bytes;
    int copies, runs;
    bool own;
} options_t;

/* A process that copies, and the socket on which it is told to and says when it has. */
typedef struct {
    pid_t pid;
    int socket;
} copier_t;

/* Pins a process to a core. The first core is left to the rank that has the source, as
 * long as there are others. */
static void pin(int index)
{
    cpu_set_t allowed, own;
    int wanted;

    if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0) {
        return;
    }
    wanted = (index + 1) % CPU_COUNT(&allowed);
    CPU_ZERO(&own);
    for (size_t core = 0; core < CPU_SETSIZE; ++core) {
        if (CPU_ISSET(core, &allowed) && wanted-- == 0) {
            CPU_SET(core, &own);
        }
    }
    (void)sched_setaffinity(0, sizeof(own), &own);
}

/* The life of a process: it copies each time it is told to. The first time brings the
 * pages in. */
static int copy(const void *source, uint64_t bytes, bool own, int index, int socket)
{
    char *target = malloc(bytes), *mine = own ? malloc(bytes) : NULL, go;

    if (target == NULL || (own && mine == NULL)) {
        free(mine);
        free(target);
        return EXIT_FAILURE;
    }
    pin(index);
    if (own) {
        source = memcpy(mine, source, bytes);
    }
    while (recv(socket, &go, 1, 0) == 1) {
        double end;

        memcpy(target, source, bytes);
        end = xm_clock_seconds();
        if (target[bytes - 1] != ((const char *)source)[bytes - 1] ||
            send(socket, &end, sizeof(end), MSG_NOSIGNAL) != (ssize_t)sizeof(end)) {
            break;
        }
    }
    free(mine);
    free(target);
    return EXIT_SUCCESS;
}

/* The wait for an answer is limited, so a copier that dies does not hang the parent. */
static xm_status_t start(const void *source, const options_t *options, int index, copier_t *copier)
{
    struct timeval timeout = {.tv_sec = TIMEOUT_S};
    int sockets[2];

    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets) != 0 ||
        setsockopt(sockets[0], SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout)) != 0) {
        return xm_error_set(XM_ERR_IO, "no socket for process %d: %s", index, strerror(errno));
    }
    copier->pid = fork();
    if (copier->pid == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        (void)close(sockets[0]);
        _exit(copy(source, options->bytes, options->own, index, sockets[1]));
    }
    (void)close(sockets[1]);
    copier->socket = sockets[0];
    return copier->pid > 0
               ? XM_OK
               : xm_error_set(XM_ERR_IO, "cannot start process %d: %s", index, strerror(errno));
}

/* Has all copy at once; the time is that of the last. Clocks agree, since all run on one
 * machine. */
static xm_status_t run_once(const copier_t *copiers, int count, double *seconds)
{
    double begin = xm_clock_seconds(), last = 0;

    for (int i = 0; i < count; ++i) {
        if (send(copiers[i].socket, "", 1, MSG_NOSIGNAL) != 1) {
            return xm_error_set(XM_ERR_IO, "process %d is gone: %s", i, strerror(errno));
        }
    }
    for (int i = 0; i < count; ++i) {
        double end;

        if (recv(copiers[i].socket, &end, sizeof(end), 0) != (ssize_t)sizeof(end)) {
            return xm_error_set(XM_ERR_IO, "process %d has not copied within %d s", i, TIMEOUT_S);
        }
        last = end > last ? end : last;
    }
    *seconds = last - begin;
    return XM_OK;
}

static void print(const options_t *options, double *seconds)
{
    static const xm_table_column_t columns[] = {{"copies", "", 8, false},
                                                {"min", "us", 11, false},
                                                {"median", "us", 11, false},
                                                {"max", "us", 11, false},
                                                {"algbw", "GB/s", 9, false}};
    xm_table_t table = {stdout, columns, 5, .wide = false};
    const double bytes = (double)options->bytes * options->copies;
    const double median = xm_array_median(seconds, options->runs);

    printf("# memory_copy: %d copies of %" PRIu64 " B at once, %d runs\n", options->copies,
           options->bytes, options->runs);
    xm_table_head(&table);
    xm_table_number(&table, 0, options->copies);
    xm_table_number(&table, 1, seconds[0] * 1e6);
    xm_table_number(&table, 1, median * 1e6);
    xm_table_number(&table, 1, seconds[options->runs - 1] * 1e6);
    xm_table_number(&table, 3, bytes / median * 1e-9);
}

/* Runs once to bring the pages in, which does not count, and then as often as asked. */
static xm_status_t measure(const options_t *options, const copier_t *copiers)
{
    double seconds[MOST_RUNS];

    XM_TRY(run_once(copiers, options->copies, &seconds[0]));
    for (int i = 0; i < options->runs; ++i) {
        XM_TRY(run_once(copiers, options->copies, &seconds[i]));
    }
    print(options, seconds);
    return xm_cli_flush();
}

/* The source is in shared memory, so all processes read the same pages. */
static xm_status_t run(const xm_cli_t *cli, void *arg)
{
    const options_t *options = arg;
    copier_t copiers[MOST_COPIES];
    int started = 0;
    xm_status_t status = XM_OK;
    unsigned char *source;

    (void)cli;
    source = mmap(NULL, options->bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (source == MAP_FAILED) {
        return XM_NO_MEMORY("%" PRIu64 " bytes", options->bytes);
    }
    for (uint64_t i = 0; i < options->bytes; ++i) {
        source[i] = (unsigned char)(i * 31 + (i >> 12));
    }
    while (status == XM_OK && started < options->copies) {
        copiers[started].socket = -1;
        status = start(source, options, started, &copiers[started]);
        started += copiers[started].socket >= 0;
    }
    XM_THEN(status, measure(options, copiers));
    /*
     * A process holds the sockets of those before it, so all are closed before any is
     * waited for: otherwise the others' sockets would stay open and their owners would
     * never end.
     */
    for (int i = 0; i < started; ++i) {
        (void)close(copiers[i].socket);
    }
    for (int i = 0; i < started; ++i) {
        if (copiers[i].pid > 0) {
            (void)waitpid(copiers[i].pid, NULL, 0);
        }
    }
    (void)munmap(source, options->bytes);
    return status;
}

int main(int argc, char **argv)
{
    options_t options = {.bytes = UINT64_C(1) << 30, .copies = 1, .runs = 5};
    const xm_cli_option_t table[] = {
        {"bytes", 'b', XM_CLI_BYTES, &options.bytes, "BYTES", 0, 0,
         "Size of the buffers (default 1GiB)."},
        {"copies", 'k', XM_CLI_INT, &options.copies, "K", 1, MOST_COPIES,
         "Processes that copy at the same time (default 1)."},
        {"own", 'o', XM_CLI_FLAG, &options.own, NULL, 0, 0,
         "Each copies a buffer of its own, as STREAM does, not one for all."},
        {"runs", 'i', XM_CLI_INT, &options.runs, "I", 1, MOST_RUNS, "Timed runs (default 5)."},
    };
    xm_cli_command_t command =
        XM_CLI_COMMAND(program, NULL, summary, "memory_copy -k 1 -b 1M", table, 0, 0);

    command.version = "memory_copy " XM_VERSION_STRING;
    return xm_cli_main(&command, argc, argv, run, &options);
}
