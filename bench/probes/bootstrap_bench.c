/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bootstrap_bench: how long the ranks of a large job need to meet and to exchange a blob
 * each. Rank 0 is this process, the others are threads of one more process, each with the
 * real client code. Threads allow thousands of ranks on one machine; rank 0, where the
 * times are taken, has a process to itself.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli_support.h"
#include "comm/job.h"
#include "comm/base.h"

static const char program[] = "bootstrap_bench";
static const double limit_s = 60.0;

/* The stacks are small because there may be 16384 threads. */
enum { STACK = 128 << 10, FEWEST = 2, MOST = 16384, LARGEST_BLOB = 1 << 16 };

typedef struct {
    int ranks;
    int bytes;
    int repeat;
} options_t;

typedef struct {
    const options_t *options;
    xm_job_env_t env;
    pthread_barrier_t *start; /* of all ranks of both processes */
} slot_t;

/* Seconds since the start: all have met, rank 0 has the blobs, all have them. */
typedef struct {
    double met, gathered, ended;
} times_t;

/* One rank's part: wait for all, then connect, exchange and meet again, with the clock
 * read in between. */
static xm_status_t take_part(const slot_t *slot, int listen_fd, times_t *times)
{
    size_t length = (size_t)slot->options->bytes, *offsets = NULL;
    xm_bootstrap_t *bootstrap;
    double start;
    void *blobs = NULL;
    char *own = calloc(1, length);
    xm_status_t status;

    (void)pthread_barrier_wait(slot->start);
    start = xm_clock_seconds();
    status = own != NULL ? xm_bootstrap_create_tcp(&slot->env, listen_fd, limit_s, &bootstrap)
                         : XM_NO_MEMORY("a blob");
    if (status < 0) {
        free(own);
        return status;
    }
    times->met = xm_clock_seconds() - start;
    status = xm_bootstrap_allgatherv(bootstrap, own, length, &blobs, &offsets, limit_s);
    times->gathered = xm_clock_seconds() - start;
    XM_THEN(status, xm_bootstrap_barrier(bootstrap, limit_s));
    times->ended = xm_clock_seconds() - start;
    free(blobs);
    free(offsets);
    free(own);
    xm_bootstrap_destroy(bootstrap);
    return status;
}

/* A thread's exit value says whether its rank failed. */
static void *be_rank(void *arg)
{
    const slot_t *slot = arg;
    times_t times;
    xm_status_t status = take_part(slot, -1, &times);

    if (status < 0) {
        (void)fprintf(stderr, "%s: rank %d: %s\n", program, slot->env.rank, xm_last_error());
    }
    return (void *)(intptr_t)(status < 0);
}

/* The other process, which is all ranks but rank 0; returns its exit status. It raises
 * its limit of open files first, as every thread has a connection. */
static int be_the_others(const slot_t *slot)
{
    int ranks = slot->env.size, failed = 0;
    slot_t *slots = calloc((size_t)ranks, sizeof(*slots));
    pthread_t *threads = calloc((size_t)ranks, sizeof(*threads));
    struct rlimit files = {0};
    pthread_attr_t small;

    (void)getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    (void)setrlimit(RLIMIT_NOFILE, &files);
    (void)pthread_attr_init(&small);
    (void)pthread_attr_setstacksize(&small, STACK);
    for (int rank = 1; rank < ranks; ++rank) {
        if (slots == NULL || threads == NULL) {
            return EXIT_FAILURE;
        }
        slots[rank] = *slot;
        slots[rank].env.rank = rank;
        if (pthread_create(&threads[rank], &small, be_rank, &slots[rank]) != 0) {
            (void)fprintf(stderr, "%s: cannot start thread %d of %d\n", program, rank, ranks);
            return EXIT_FAILURE;
        }
    }
    for (int rank = 1; rank < ranks; ++rank) {
        void *result = NULL;

        (void)pthread_join(threads[rank], &result);
        failed |= result != NULL;
    }
    (void)pthread_attr_destroy(&small);
    free(threads);
    free(slots);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}

/* Port 0 lets the kernel choose, so several benches can run at once. */
static xm_status_t listen_locally(int *fd, int *port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof(address);

    *fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (*fd < 0 || bind(*fd, (const struct sockaddr *)&address, sizeof(address)) != 0 ||
        listen(*fd, 4096) != 0 || getsockname(*fd, (struct sockaddr *)&address, &length) != 0) {
        return xm_error_set(XM_ERR_IO, "cannot listen on 127.0.0.1: %s", strerror(errno));
    }
    *port = ntohs(address.sin_port);
    return XM_OK;
}

/* The barrier is in shared memory because its users are in two processes. */
static xm_status_t share_barrier(int ranks, pthread_barrier_t **barrier)
{
    pthread_barrierattr_t shared;

    *barrier =
        mmap(NULL, sizeof(**barrier), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (*barrier == MAP_FAILED) {
        return xm_error_set(XM_ERR_NO_MEMORY, "no shared memory: %s", strerror(errno));
    }
    (void)pthread_barrierattr_init(&shared);
    (void)pthread_barrierattr_setpshared(&shared, PTHREAD_PROCESS_SHARED);
    (void)pthread_barrier_init(*barrier, &shared, (unsigned)ranks);
    (void)pthread_barrierattr_destroy(&shared);
    return XM_OK;
}

static xm_status_t measure(const options_t *options, times_t *times)
{
    slot_t slot = {.options = options, .env = {.size = options->ranks, .master_addr = "127.0.0.1"}};
    pid_t others, parent = getpid();
    int listen_fd, wait_status = 0;
    xm_status_t status;

    XM_TRY(listen_locally(&listen_fd, &slot.env.master_port));
    XM_TRY(share_barrier(options->ranks, &slot.start));
    (void)fflush(NULL);
    others = fork();
    if (others == 0) {
        /* The others must not outlive this process; a parent that is gone already is
         * noticed by its number. */
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        (void)close(listen_fd);
        _exit(getppid() == parent ? be_the_others(&slot) : EXIT_FAILURE);
    }
    if (others < 0) {
        (void)close(listen_fd);
        return xm_error_set(XM_ERR_NO_MEMORY, "fork: %s", strerror(errno));
    }
    status = take_part(&slot, listen_fd, times);
    (void)waitpid(others, &wait_status, 0);
    (void)munmap(slot.start, sizeof(*slot.start));
    return status == XM_OK && wait_status != 0
               ? xm_error_set(XM_ERR_PEER_DIED, "the other ranks failed")
               : status;
}

/* Each repetition is a new job, so that no connection is warm. */
static xm_status_t run(const xm_cli_t *cli, void *arg)
{
    const options_t *options = arg;
    xm_status_t status = XM_OK;

    (void)cli;
    (void)printf("# %d ranks, a blob of %d bytes from each; seconds since the start at rank 0\n"
                 "# %8s %10s %10s\n",
                 options->ranks, options->bytes, "met", "gathered", "all have");
    for (int i = 0; i < options->repeat && status == XM_OK; ++i) {
        times_t times = {0};

        status = measure(options, &times);
        if (status == XM_OK) {
            (void)printf("%10.3f %10.3f %10.3f\n", times.met, times.gathered, times.ended);
        }
    }
    return status == XM_OK ? xm_cli_flush() : status;
}

int main(int argc, char **argv)
{
    options_t options = {.ranks = 1000, .bytes = 200, .repeat = 5};
    const xm_cli_option_t table[] = {
        {"ranks", 'n', XM_CLI_INT, &options.ranks, "RANKS", FEWEST, MOST,
         "Ranks of the job (1000)."},
        {"bytes", 0, XM_CLI_INT, &options.bytes, "BYTES", 1, LARGEST_BLOB,
         "Bytes that each rank contributes (200)."},
        {"repeat", 0, XM_CLI_INT, &options.repeat, "TIMES", 1, 1000,
         "Jobs, one after the other (5)."},
    };
    xm_cli_command_t command = XM_CLI_COMMAND(
        program, NULL, "Times the bootstrap of a job with many ranks.", NULL, table, 0, 0);

    return xm_cli_main(&command, argc, argv, run, &options);
}
