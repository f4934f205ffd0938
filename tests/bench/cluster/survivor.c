/* SPDX-License-Identifier: Apache-2.0 */
/* A rank that passes messages around its group and gathers bytes of all, again and again, for as
 * many seconds as argv[1] says; after a failure it goes on with the ranks that are left. At the end
 * it prints who was in its last group. Status 3: it is in none. */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <crossmesh/group.h>

#include "comm/base.h"
#include "comm/worker/worker.h"

enum { SHRINK_S = 25, LENGTH = 20000, OUT = 3 };

typedef struct {
    xm_op_t op;
    bool ended;
    char bytes[LENGTH];
} message_t;

static void on_done(xm_op_t *op, xm_status_t status)
{
    message_t *message = op->arg;

    (void)status;
    message->ended = true;
}

static xm_status_t post(xm_worker_t *worker, message_t *message, int peer, bool send)
{
    xm_transport_t *transport = xm_worker_transport(worker);
    xm_status_t status;

    message->op = (xm_op_t){.done = on_done, .arg = message};
    message->ended = false;
    status =
        send ? xm_transport_send(transport, peer, 5, message->bytes, LENGTH, NULL, &message->op)
             : xm_transport_receive(transport, peer, 5, message->bytes, LENGTH, NULL, &message->op);
    message->ended = message->ended || status == XM_OK;
    return status < 0 ? status : XM_OK;
}

/* One round: a message to each next rank, then a byte of everybody. *over: it was the last. */
static xm_status_t pass_around(xm_worker_t *worker, message_t *in, message_t *out, char last,
                               bool *over)
{
    int rank = xm_worker_rank(worker), size = xm_worker_size(worker);
    char all[256] = "";
    xm_status_t status = XM_OK;

    if (size > 1) {
        status = post(worker, in, (rank + size - 1) % size, false);
    }
    if (size > 1 && status == XM_OK) {
        status = post(worker, out, (rank + 1) % size, true);
        while (status == XM_OK && (!in->ended || !out->ended)) {
            status = xm_worker_wait(worker, xm_worker_deadline(worker));
        }
    }
    if (status == XM_OK) {
        status = xm_worker_allgather(worker, &last, all, 1);
    }
    for (int other = 0; other < size && status == XM_OK; ++other) {
        *over = *over || all[other] != 0;
    }
    return status;
}

int main(int argc, char **argv)
{
    xm_worker_params_t params = XM_WORKER_PARAMS_INIT;
    double end = xm_clock_seconds() + (argc > 1 ? atof(argv[1]) : 5.0);
    message_t *in = calloc(1, sizeof(*in)), *out = calloc(1, sizeof(*out));
    bool over = false;
    xm_worker_t *worker;
    xm_job_env_t env;
    xm_status_t status = xm_job_env_read(&env);

    status = status < 0 ? status : xm_worker_create(&env, &params, &worker);
    if (status < 0 || in == NULL || out == NULL) {
        (void)fprintf(stderr, "%s\n", xm_last_error());
        return 1;
    }
    (void)setvbuf(stdout, NULL, _IOLBF, 0);
    (void)printf("READY %d\n", (int)getpid());
    while (!over) {
        struct timespec nap = {.tv_nsec = 5000000};

        status = pass_around(worker, in, out, xm_clock_seconds() >= end, &over);
        if (status < 0) {
            (void)printf("FAILED at %.3f: %s\n", xm_clock_seconds(), xm_last_error());
            (void)xm_group_abort(worker, "a message was not passed");
            status = xm_group_shrink(worker, SHRINK_S);
            over = false;
        }
        if (status < 0) {
            (void)printf("OUT: %s\n", xm_last_error());
            xm_worker_destroy(worker, "left out");
            return OUT;
        }
        (void)nanosleep(&nap, NULL);
    }
    (void)printf("ENDED in generation %d:", xm_group_generation(worker));
    for (int rank = 0; rank < xm_worker_size(worker); ++rank) {
        (void)printf(" %d", xm_group_job_rank(worker, rank));
    }
    (void)printf("\n");
    xm_worker_destroy(worker, NULL);
    free(out);
    free(in);
    return 0;
}
