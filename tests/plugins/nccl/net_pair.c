/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/plugins/nccl/net_pair.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static const double limit_s = 30.0;

/* A machine name of this process's own, in a namespace of its own. */
static bool be_machine(int rank)
{
    char name[32];

    (void)snprintf(name, sizeof(name), "xm-nccl-test-%d", rank);
    return (unshare(CLONE_NEWUTS) == 0 || unshare(CLONE_NEWUSER | CLONE_NEWUTS) == 0) &&
           sethostname(name, strlen(name)) == 0;
}

bool pair_can_be_machines(void)
{
    int status = 1;
    pid_t pid = fork();

    if (pid == 0) {
        _exit(be_machine(0) ? 0 : 1);
    }
    return pid > 0 && waitpid(pid, &status, 0) == pid && WIFEXITED(status) &&
           WEXITSTATUS(status) == 0;
}

static void place(pair_placement_t placement, int rank)
{
    if (placement == PAIR_HOSTS) {
        local_expect(setenv("XM_HOST", rank == 0 ? "left" : "right", 1) == 0, "setenv");
    } else if (placement == PAIR_MACHINES) {
        local_expect(be_machine(rank), "no machine name of its own");
        local_expect(setenv("UCX_TLS", "tcp", 1) == 0 &&
                         setenv("XM_NICS", "lo=2000000000,lo=1000000000", 1) == 0 &&
                         setenv("XM_NCCL_DEVICES", "merged", 1) == 0,
                     "setenv");
    }
}

void pair_start(pair_t *pair, int version)
{
    int count = 0;

    local_expect(net_table_open(&pair->net, version), "no table of version %d", version);
    pair_ok(net_start(&pair->net, NULL));
    pair_ok(net_count(&pair->net, &count));
    local_expect(count > 0, "no device");
}

void *pair_join(pair_t *pair, void *listener, int number)
{
    double deadline = local_now() + local_timeout(limit_s);
    void *comm = NULL;

    while (comm == NULL) {
        local_expect(local_now() < deadline, "the connection is not made");
        if (pair->rank == 0) {
            pair_ok(net_connect(&pair->net, pair->device, pair->board->handles[number], &comm));
        } else {
            pair_ok(net_accept(&pair->net, listener, &comm));
        }
        if (comm == NULL) {
            local_sleep(0.0005);
        }
    }
    return comm;
}

void pair_meet(pair_t *pair)
{
    double deadline = local_now() + local_timeout(limit_s);
    int stage = ++pair->board->stage[pair->rank];

    while (pair->board->stage[1 - pair->rank] < stage) {
        local_expect(local_now() < deadline, "the other rank does not come");
        local_sleep(0.0005);
    }
}

void *pair_send(pair_t *pair, void *data, size_t size, int tag)
{
    double deadline = local_now() + local_timeout(limit_s);
    void *request = NULL;

    while (request == NULL) {
        local_expect(local_now() < deadline, "a send of %zu bytes is not taken", size);
        pair_ok(net_send(&pair->net, pair->comm, data, size, tag, NULL, NULL, &request));
    }
    return request;
}

void *pair_receive(pair_t *pair, int count, void **data, const size_t *sizes, int *tags)
{
    double deadline = local_now() + local_timeout(limit_s);
    void *mhandles[16] = {NULL};
    void *request = NULL;

    while (request == NULL) {
        local_expect(local_now() < deadline, "a receive of %d is not taken", count);
        request = (void *)1; /* the hint that NCCL may give */
        pair_ok(net_receive(&pair->net, pair->comm, count, data, sizes, tags, mhandles, NULL,
                            &request));
    }
    return request;
}

nccl_result_t pair_wait(pair_t *pair, void *request, int *sizes)
{
    double deadline = local_now() + local_timeout(limit_s);
    nccl_result_t result = NCCL_OK;
    int done = 0;

    while (done == 0 && result == NCCL_OK) {
        local_expect(local_now() < deadline, "a request does not end");
        result = net_test(&pair->net, request, &done, sizes);
        if (done == 0) {
            (void)sched_yield();
        }
    }
    return result;
}

static uint8_t byte_at(size_t at, uint32_t seed)
{
    uint32_t mixed = ((uint32_t)at ^ seed) * 2654435761U;

    return (uint8_t)(mixed >> 24 ^ mixed >> 11);
}

void pair_fill(uint8_t *bytes, size_t size, uint32_t seed)
{
    for (size_t i = 0; i < size; ++i) {
        bytes[i] = byte_at(i, seed);
    }
}

void pair_check(const uint8_t *bytes, size_t size, uint32_t seed)
{
    for (size_t i = 0; i < size; ++i) {
        local_expect(bytes[i] == byte_at(i, seed), "byte %zu of %zu is %u, not %u", i, size,
                     bytes[i], byte_at(i, seed));
    }
}

typedef struct {
    int version;
    pair_placement_t placement;
    bool apart;
    pair_case_t *run;
    pair_board_t *board;
} order_t;

static int rank_main(const xm_job_env_t *env, int listen_fd, void *arg)
{
    const order_t *order = arg;
    pair_t pair = {.rank = env->rank, .board = order->board};

    if (listen_fd >= 0) {
        (void)close(listen_fd);
    }
    place(order->placement, pair.rank);
    pair_start(&pair, order->version);
    if (!order->apart) {
        if (pair.rank == 1) {
            pair_ok(net_listen(&pair.net, pair.device, order->board->handles[0], &pair.listener));
        }
        pair_meet(&pair);
        pair.comm = pair_join(&pair, pair.listener, 0);
    }
    order->run(&pair);
    if (pair.comm != NULL) {
        pair_ok(pair.rank == 0 ? net_close_send(&pair.net, pair.comm)
                               : net_close_receive(&pair.net, pair.comm));
    }
    if (pair.listener != NULL) {
        pair_ok(net_close_listen(&pair.net, pair.listener));
    }
    pair_ok(net_finish(&pair.net));
    return 0;
}

void pair_run(int version, pair_placement_t placement, unsigned doomed, bool apart,
              pair_case_t *run)
{
    order_t order = {.version = version,
                     .placement = placement,
                     .apart = apart,
                     .run = run,
                     .board = local_shared(sizeof(pair_board_t))};
    local_job_t job;

    local_job_start(&job, 2, 0, 60.0, rank_main, &order);
    local_job_wait(&job, doomed);
    (void)munmap(order.board, sizeof(*order.board));
}
