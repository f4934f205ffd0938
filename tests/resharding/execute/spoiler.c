/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/resharding/execute/spoiler.h"

#include <crossmesh/counters.h>
#include <limits.h>

#include "comm/transport/counters_private.h"
#include "xm_test.h"

enum { SPOILED_AT_ONCE = 4096 };

/* A receive whose end passes by the spoiler. */
typedef struct {
    void (*done)(xm_op_t *op, xm_status_t status);
    xm_op_t *op;
    char *buffer;
    size_t length;
    bool answer;
} watched_t;

static struct {
    const xm_transport_ops_t *sim;
    xm_transport_ops_t ops;
    watched_t watched[SPOILED_AT_ONCE];
    random_t random;
    int ranks;
    xm_counters_t *counters[SIM_MAX_RANKS];
    int one_in;      /* messages */
    int64_t spoiled; /* messages that must be sent again */
} network;

static void arrived(xm_op_t *op, xm_status_t status)
{
    watched_t *watched = network.watched;

    while (watched->op != op) {
        ++watched;
    }
    if (status == XM_OK && random_int(&network.random, 1, network.one_in) == 1) {
        size_t byte = xm_random_next(&network.random) % watched->length;

        watched->buffer[byte] ^= (char)(1 << random_int(&network.random, 0, 7));
        network.spoiled += !watched->answer;
    }
    watched->op = NULL;
    op->done = watched->done;
    op->done(op, status);
}

static xm_status_t receive(xm_transport_t *transport, int peer, uint64_t tag, void *buffer,
                           size_t length, xm_memory_t *memory, xm_op_t *op)
{
    uint64_t kind = tag & UINT64_C(0xe0000000);
    watched_t *watched = network.watched;
    xm_status_t status;

    if (kind != 0 && kind != UINT64_C(0xa0000000) && kind != UINT64_C(0xc0000000)) {
        return network.sim->receive(transport, peer, tag, buffer, length, memory, op);
    }
    while (watched->op != NULL) {
        ++watched;
        ck_assert_int_lt(watched - network.watched, SPOILED_AT_ONCE);
    }
    *watched = (watched_t){op->done, op, buffer, length, kind == UINT64_C(0xc0000000)};
    op->done = arrived;
    status = network.sim->receive(transport, peer, tag, buffer, length, memory, op);
    if (status != XM_IN_PROGRESS) {
        op->done = watched->done;
        watched->op = NULL;
    }
    return status;
}

void spoiler_attach(sim_job_t *job, uint64_t seed, int one_in)
{
    network.sim = job->transport[0]->ops;
    network.ops = *network.sim;
    network.ops.receive = receive;
    network.random = (random_t){seed};
    network.one_in = one_in;
    network.spoiled = 0;
    network.ranks = job->ranks;
    memset(network.watched, 0, sizeof(network.watched));
    for (int r = 0; r < job->ranks; ++r) {
        ck_assert_xm_ok(xm_counters_create(job->ranks, &network.counters[r]));
        xm_transport_sim_count(job->transport[r], network.counters[r]);
        job->transport[r]->ops = &network.ops;
    }
}

void spoiler_rest(void)
{
    network.one_in = INT_MAX;
}

int64_t spoiler_hits(void)
{
    return network.spoiled;
}

int64_t spoiler_resends(void)
{
    int64_t count = 0;

    for (int r = 0; r < network.ranks; ++r) {
        xm_rank_counts_t counts;

        xm_counters_rank(network.counters[r], &counts);
        count += (int64_t)counts.resends;
    }
    return count;
}

void spoiler_release(void)
{
    for (int r = 0; r < network.ranks; ++r) {
        xm_counters_destroy(network.counters[r]);
    }
}
