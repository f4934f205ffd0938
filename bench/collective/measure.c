/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What programs take on ranks, with all results compared; and what their moves cost there, which
 * is measured before, so that predictions know nothing of the runs that they are held against.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "bench/cluster.h"
#include "bench/collective/collective.h"
#include "bench/run.h"
#include "comm/base.h"
#include "comm/probe.h"

enum { REPEATS = 5, REPEATS_LONG = 3, MESSAGE_PIECES = 16, PROBE_BYTES = 1 << 20 };

/* Seconds. */
static const double probe_budget = 3;

int64_t cb_elements(const cb_options_t *o)
{
    int64_t elements = (int64_t)(o->size / xm_elements[o->type].size);

    return o->collective == XM_ALL_TO_ALL ? elements * o->net.devices : elements;
}

/* Small whole numbers, whose sums every type has. */
static int contribution(int rank, int64_t element)
{
    return (int)((xm_random_of((uint64_t)element * 31 + (uint64_t)rank)) % 3);
}

static void put(const cb_options_t *o, uint8_t *data, int64_t element, int value)
{
    const xm_element_t *type = &xm_elements[o->type];

    type->put(data + (size_t)element * type->size, value);
}

/* What a rank has at first, or must have in the end, in each chunk that it has anything of. */
static uint64_t go_through(const cb_options_t *o, const xm_program_t *p, int rank, uint8_t *data,
                           bool result)
{
    const size_t size = xm_elements[o->type].size;
    uint64_t wrong = 0;

    for (int c = 0; c < p->chunks; ++c) {
        int64_t end = xm_program_first(p, c + 1, cb_elements(o));
        int who = result ? p->goal[c] : p->home[c];

        for (int64_t e = xm_program_first(p, c, cb_elements(o)); e < end; ++e) {
            uint8_t expected[8];
            int sum = contribution(p->home[c] < 0 ? rank : p->home[c], e);

            if (!result) {
                put(o, data, e, who >= 0 && who != rank ? 0 : sum);
                continue;
            }
            if (who >= 0 && who != rank) {
                break;
            }
            sum = p->home[c] < 0 ? 0 : sum;
            for (int r = 0; r < p->devices && p->home[c] < 0; ++r) {
                sum += p->group[r] == p->group[rank] ? contribution(r, e) : 0;
            }
            put(o, expected, 0, sum);
            wrong += memcmp(expected, data + (size_t)e * size, size) != 0;
        }
    }
    return wrong;
}

/* Adasum has no result that is told so easily: all ranks have the first one's, which a file gets to
 * be looked at (--result). */
static xm_status_t compare_results(const cb_options_t *o, xm_worker_t *worker, const uint8_t *data,
                                   uint64_t *wrong)
{
    const size_t bytes = (size_t)cb_elements(o) * xm_elements[o->type].size;
    uint64_t *all = calloc((size_t)xm_worker_size(worker), sizeof(*all));
    /* There is room for one element more, which is 0. */
    uint64_t mine = xm_hash_list(0, (const int *)(const void *)data, (int)((bytes + 3) / 4));
    xm_status_t status = all == NULL ? XM_NO_MEMORY("the results of all ranks")
                                     : xm_worker_allgather(worker, &mine, all, sizeof(mine));

    *wrong += status == XM_OK && all[0] != mine;
    free(all);
    if (status == XM_OK && o->result != NULL && xm_worker_rank(worker) == 0) {
        FILE *file = fopen(o->result, "wb");
        bool written = file != NULL && fwrite(data, 1, bytes, file) == bytes;

        status = file != NULL && fclose(file) == 0 && written
                     ? XM_OK
                     : XM_INVALID("cannot write the result '%s'", o->result);
    }
    return status;
}

/* Of each run the time of the slowest rank. */
static xm_status_t slowest(xm_worker_t *worker, double *times, int count)
{
    int ranks = xm_worker_size(worker);
    double *all = calloc((size_t)ranks * (size_t)count, sizeof(*all));
    xm_status_t status =
        all == NULL ? XM_NO_MEMORY("the times of %d ranks", ranks)
                    : xm_worker_allgather(worker, times, all, (size_t)count * sizeof(*all));

    for (int i = 0; status == XM_OK && i < ranks * count; ++i) {
        times[i % count] = fmax(i < count ? 0 : times[i % count], all[i]);
    }
    free(all);
    return status;
}

xm_status_t cb_measure(const cb_options_t *o, xm_worker_t *worker, const xm_program_t *p,
                       double *median, uint64_t *wrong)
{
    uint8_t *data = calloc((size_t)cb_elements(o) + 1, xm_elements[o->type].size);
    uint64_t *all = calloc((size_t)p->devices, sizeof(*all)), mine = 0;
    double times[REPEATS + 1];
    int repeats = REPEATS;
    /* Each run begins with all of a NIC's burst, as it is simulated. */
    struct timespec pause = {
        .tv_nsec =
            lround(fmin(0.9, o->priced.dimension[1].burst / o->priced.dimension[1].rate) * 1e9)};
    xm_dependencies_t dependencies = {0};
    xm_element_t element = xm_elements[o->type];
    xm_status_t status = data != NULL && all != NULL ? xm_dependencies_find(p, &dependencies)
                                                     : XM_NO_MEMORY("the data of a rank");

    element.add = o->adasum ? element.adasum : element.add;
    for (int i = 0; i <= repeats && status == XM_OK; ++i) {
        int64_t start;

        (void)go_through(o, p, xm_worker_rank(worker), data, false);
        (void)nanosleep(&pause, NULL);
        status = xm_worker_barrier(worker);
        start = xm_worker_now(worker);
        XM_THEN(status, xm_program_run(p, &dependencies, worker, &element, data, cb_elements(o)));
        times[i] = (double)(xm_worker_now(worker) - start) * 1e-9;
        XM_THEN(status, slowest(worker, &times[i], 1));
        repeats = i == 0 && times[0] > 1 ? REPEATS_LONG : repeats;
        if (status == XM_OK && o->adasum) {
            status = compare_results(o, worker, data, &mine);
        } else if (status == XM_OK && (i == 0 || i == repeats)) {
            mine += go_through(o, p, xm_worker_rank(worker), data, true);
        }
    }
    XM_THEN(status, xm_worker_allgather(worker, &mine, all, sizeof(mine)));
    for (int r = 0; status == XM_OK && r < p->devices; ++r) {
        *wrong += all[r];
    }
    *median = status == XM_OK ? xm_array_median(times + 1, repeats) : NAN;
    xm_dependencies_clear(&dependencies);
    free(all);
    free(data);
    return status;
}

/* Times an all-reduce of so many bytes a piece along one dimension, to each at once, and simulates
 * it. */
static xm_status_t time_along(const cb_options_t *o, xm_worker_t *worker, int dimension, int pieces,
                              uint64_t piece, double *seconds, double *simulated, double *moves)
{
    cb_options_t small = *o;
    xm_build_t build = {.kind = XM_ALL_REDUCE,
                        .devices = o->net.devices,
                        .pieces = pieces,
                        .factors = 1,
                        .factor = {{dimension > 0 ? o->net.dimension[0].extent : 1,
                                    o->net.dimension[dimension].extent, true}}};
    xm_program_t *p;
    uint64_t wrong = 0;
    xm_status_t status;

    XM_TRY(xm_build_factored(&build, &p));
    small.collective = XM_ALL_REDUCE;
    small.adasum = 0;
    small.size = (uint64_t)pieces * piece;
    *moves = (double)p->count;
    status = cb_measure(&small, worker, p, seconds, &wrong);
    status = status == XM_OK
                 ? xm_program_simulate_queues(p, &o->priced, (int64_t)small.size, simulated)
                 : status;
    xm_program_destroy(p);
    return status == XM_OK && wrong > 0
               ? xm_error_set(XM_ERR_CORRUPT, "sums that were made to be timed are wrong")
               : status;
}

/* What a move costs processors besides its bytes: programs of many moves of an element each, along
 * one dimension, take as long as all processors need for them. */
static xm_status_t price_messages(const cb_options_t *o, xm_worker_t *worker, int dimension,
                                  double *seconds)
{
    const uint64_t extent = (uint64_t)o->net.dimension[dimension].extent;
    double moves = 1, simulated;
    xm_status_t status =
        extent < 2 ? XM_OK
                   : time_along(o, worker, dimension, MESSAGE_PIECES,
                                extent * xm_elements[o->type].size, seconds, &simulated, &moves);

    *seconds *= (double)o->priced.processors / moves;
    return status;
}

/* What a NIC lets through in both directions at once, with the acknowledgements of either: from a
 * short and a long time, so that bursts and beginnings do not count, against the same difference
 * simulated. */
static xm_status_t price_nic(const cb_options_t *o, xm_worker_t *worker, xm_dimension_t *nic)
{
    const double times[] = {0.05, 0.25},
                 crossing = 2 * (1 - 1.0 / nic->extent) * o->net.dimension[0].extent;
    double took[2], simulated[2], moves;
    uint64_t size[2];
    xm_status_t status = XM_OK;

    for (int i = 0; i < 2 && status == XM_OK && nic->extent > 1; ++i) {
        size[i] = (uint64_t)(times[i] * nic->rate / crossing) / 64 * 64;
        status = time_along(o, worker, 1, 1, size[i], &took[i], &simulated[i], &moves);
    }
    if (status == XM_OK && nic->extent > 1 && took[1] > took[0]) {
        nic->rate =
            fmin(nic->rate, nic->rate * (simulated[1] - simulated[0]) / (took[1] - took[0]));
    }
    return status;
}

static void print_prices(const xm_interconnect_t *net)
{
    for (int k = net->dimensions - 1; k >= 0; --k) {
        const xm_dimension_t *d = &net->dimension[k];

        (void)printf("# measured %s: %.4f Gbit/s a port, %.0f us, %.0f us and %.2f ns/B of %d "
                     "processors for a move\n",
                     k == 0 ? "inside hosts" : "between hosts", d->rate * 8e-9, d->latency * 1e6,
                     d->message * 1e6, d->cpu * 1e9, net->processors);
    }
}

xm_status_t cb_price(cb_options_t *o, xm_worker_t *worker, bool speaks)
{
    xm_probe_params_t params = XM_PROBE_PARAMS_INIT;
    xm_dimension_t *host = &o->priced.dimension[0], *nic = &o->priced.dimension[1];
    xm_cluster_profile_t *profile = NULL;
    rb_processors_t processors = {0};
    double cores;
    xm_status_t status;

    params.max_bytes = PROBE_BYTES;
    params.budget = probe_budget;
    status = xm_probe_run(worker, &params, &profile);
    if (status == XM_OK) {
        double fabric = xm_cluster_profile_host_fabric(profile);

        nic->latency = xm_cluster_profile_latency(profile, XM_LINK_INTER_HOST);
        nic->burst = rb_nic_rate_payload(
            (double)rb_nic_rate_burst(llround(nic->rate * 8), RB_EMULATION_MTU), RB_EMULATION_MTU);
        host->rate = fabric > 0 ? fabric / host->extent
                                : xm_cluster_profile_bandwidth(profile, XM_LINK_INTRA_HOST);
        host->latency = xm_cluster_profile_latency(profile, XM_LINK_INTRA_HOST);
        xm_cluster_profile_processors(profile, &cores, &nic->cpu, &host->cpu);
        nic->cpu *= 2; /* both ends */
        host->cpu *= 2;
        status = rb_processors_gather(worker, &processors);
    }
    xm_cluster_profile_destroy(profile);
    o->priced.processors = processors.ranks == o->net.devices ? processors.cores : 0;
    for (int k = 0; k < 2 && status == XM_OK; ++k) {
        status = price_messages(o, worker, k, &o->priced.dimension[k].message);
    }
    XM_THEN(status, price_nic(o, worker, nic));
    if (status == XM_OK && speaks) {
        print_prices(&o->priced);
    }
    return status;
}
