/* SPDX-License-Identifier: Apache-2.0 */
/* The counters of a rank: operations by peer, fragments by NIC. The communicating thread counts
 * with plain relaxed additions, since a locked one for each message would be felt; any other
 * thread may read at any time. What a reader sees is therefore no snapshot, and the order of
 * its reads is chosen so that the errors go one way: an operation may be seen in flight
 * although it has ended, never the reverse. */
#include "comm/transport/counters.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/transport/counters_private.h"
#include "comm/base.h"

/* The names are those of the metrics' labels, and dashboards depend on them. */
const char *xm_direction_name(xm_direction_t direction)
{
    static const char *const names[] = {"send", "receive"};

    return names[direction];
}

const char *xm_outcome_name(xm_outcome_t outcome)
{
    static const char *const names[] = {"ok", "canceled", "peer_died", "corrupt", "failed"};

    return names[outcome];
}

/* Makes the counters; NIC slots are part of it and are filled as rails are opened. */
xm_status_t xm_counters_create(int peers, xm_counters_t **counters)
{
    xm_counters_t *self =
        peers < 0 ? NULL : calloc(1, sizeof(*self) + (size_t)peers * sizeof(self->peer[0]));

    /* A negative number of peers takes the same way as missing memory. */
    XM_NEED_MEMORY(self, "the counters of %d peers", peers);
    self->peer_count = peers;
    self->trace = xm_log_enabled(XM_LOG_TRACE);
    *counters = self;
    return XM_OK;
}

void xm_counters_destroy(xm_counters_t *counters)
{
    free(counters);
}

int xm_counters_peers(const xm_counters_t *counters)
{
    return counters->peer_count;
}

void xm_counters_peer(const xm_counters_t *counters, int peer, xm_peer_counts_t *counts)
{
    const xm_peer_counters_t *from = &counters->peer[peer];

    /* Each number is read for itself: together they are no snapshot, and need not be. */
    *counts = (xm_peer_counts_t){.copies = xm_counted(&from->copies),
                                 .copied_bytes = xm_counted(&from->copied_bytes)};
    for (int d = 0; d < XM_DIRECTION_COUNT; ++d) {
        /* Ends before posts: an operation that ends meanwhile is then seen in flight, and never
         * the other way round. */
        for (int o = 0; o < XM_OUTCOME_COUNT; ++o) {
            counts->ended[d][o] = atomic_load_explicit(&from->ended[d][o], memory_order_acquire);
        }
        counts->bytes[d] = xm_counted(&from->bytes[d]);
        counts->refused[d] = xm_counted(&from->refused[d]);
        counts->posted[d] = xm_counted(&from->posted[d]);
    }
}

int64_t xm_counters_received_at(const xm_counters_t *counters, int peer)
{
    return (int64_t)xm_counted(&counters->peer[peer].received_at);
}

/* The difference cannot be negative, by the order in which xm_counters_peer() reads. */
uint64_t xm_peer_counts_in_flight(const xm_peer_counts_t *counts, xm_direction_t direction)
{
    uint64_t ended = 0;

    for (int o = 0; o < XM_OUTCOME_COUNT; ++o) {
        ended += counts->ended[direction][o];
    }
    return counts->posted[direction] - ended;
}

/* Acquire: a reader that sees the number sees the names of all of them. */
int xm_counters_nics(const xm_counters_t *counters)
{
    return atomic_load_explicit(&counters->nic_count, memory_order_acquire);
}

/* Copies one NIC's counts; names never change once they are counted in. */
void xm_counters_nic(const xm_counters_t *counters, int nic, xm_nic_counts_t *counts)
{
    const xm_nic_counters_t *from = &counters->nic[nic];

    *counts = (xm_nic_counts_t){.rate = xm_counted(&from->rate),
                                .errors = xm_counted(&from->errors),
                                .retries = xm_counted(&from->retries),
                                .failovers = xm_counted(&from->failovers)};
    /* The name was complete before the number of NICs grew, so it can be read without a lock. */
    memcpy(counts->name, from->name, sizeof(counts->name));
    for (int d = 0; d < XM_DIRECTION_COUNT; ++d) {
        counts->pieces[d] = xm_counted(&from->pieces[d]);
        counts->bytes[d] = xm_counted(&from->bytes[d]);
    }
}

/* What a rank counts besides messages: its sleeps and the use of registered memory. */
void xm_counters_rank(const xm_counters_t *counters, xm_rank_counts_t *counts)
{
    *counts = (xm_rank_counts_t){.sleeps = xm_counted(&counters->sleeps),
                                 .slept_ns = xm_counted(&counters->slept_ns),
                                 .registration_hits = xm_counted(&counters->registration_hits),
                                 .registration_misses = xm_counted(&counters->registration_misses),
                                 .resends = xm_counted(&counters->resends)};
}

/* Finds or makes the counters of a NIC. The table is fixed, so readers need no lock; if it is
 * full the last entry takes all further NICs. A second transport of the same group finds the
 * entry of the first, and its counts go on. NULL stays NULL: counting is optional. */
xm_nic_counters_t *xm_counters_open_nic(xm_counters_t *counters, const char *name, uint64_t rate)
{
    xm_nic_counters_t *nic;
    int count;

    if (counters == NULL) {
        return NULL;
    }
    count = xm_counters_nics(counters);
    for (int i = 0; i < count; ++i) {
        if (strcmp(counters->nic[i].name, name) == 0) {
            return &counters->nic[i];
        }
    }
    /* More NICs than the table holds are rare, and their traffic should still appear in the sum. */
    if (count == XM_COUNTERS_MAX_NICS) {
        return &counters->nic[count - 1];
    }
    nic = &counters->nic[count];
    (void)snprintf(nic->name, sizeof(nic->name), "%s", name);
    atomic_store_explicit(&nic->rate, rate, memory_order_relaxed);
    /* Release: the name is complete before the number says that it is there. */
    atomic_store_explicit(&counters->nic_count, count + 1, memory_order_release);
    return nic;
}

/* Out of line because hardly anybody traces: the callers test a flag first. */
void xm_counters_trace(int rank, int peer, xm_direction_t direction, uint64_t tag, size_t length,
                       const char *what)
{
    xm_log_trace("%s of %zu bytes, rank %d with rank %d, tag %" PRIx64 ": %s",
                 xm_direction_name(direction), length, rank, peer, tag, what);
}
