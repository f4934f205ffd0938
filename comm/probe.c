#include "comm/probe.h"

#include <endian.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <xxhash.h>

#include "comm/probe_compute.h"
#include "comm/probe_curve.h"
#include "comm/probe_link.h"
#include "comm/probe_profile.h"
#include "comm/probe_report.h"
#include "comm/version.h"

enum {
    DEFAULT_REPETITIONS = 5,
    COPY_BYTES = 32 << 20,   /* two such buffers a rank exceed the caches */
    STREAM_BYTES = 1 << 20,  /* message size of the concurrent flows */
    STREAM_WINDOW = 4,       /* buffers per flow, see probe_link.c */
    MIN_MESSAGES = 8,        /* of a flow */
    MIN_MAX_BYTES = 64 << 10 /* below, latency noise would hide that time rises with size */
};

static const uint64_t default_max_bytes = UINT64_C(64) << 20;
static const double compute_seconds = 0.2, copy_seconds = 0.4, stream_seconds = 0.5;

/* Parts of the wait limit that one size of a ping-pong may take: the other ranks wait meanwhile. */
static const double budget_share = 1.0 / 300, longest_share = 1.0 / 60;

typedef struct {
    xm_worker_t *worker;
    xm_probe_params_t params;
    int rank, ranks, hosts;
    int *host_of;
    uint64_t sizes[XM_PROBE_MAX_POINTS];
    int size_count;
    xm_probe_report_t own;
    xm_probe_report_t *reports; /* of all ranks, once they are shared */
    double phase_start, phase_end;
    const char *phase;
} probe_t;

/* Steps of a phase are spread over its part of the whole. */
static void report_progress(probe_t *probe, double part)
{
    if (probe->params.progress != NULL && probe->rank == 0) {
        probe->params.progress(probe->params.progress_arg,
                               probe->phase_start + part * (probe->phase_end - probe->phase_start),
                               probe->phase);
    }
}

/* All ranks begin a phase together, and idle ranks sleep until the next one. */
static xm_status_t enter(probe_t *probe, const char *phase, double start, double end)
{
    probe->phase = phase;
    probe->phase_start = start;
    probe->phase_end = end;
    report_progress(probe, 0);
    return xm_worker_barrier(probe->worker);
}

static uint64_t machine_digest(void)
{
    char boot_id[64] = "";
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "re");

    if (file != NULL) {
        if (fgets(boot_id, sizeof(boot_id), file) == NULL) {
            boot_id[0] = '\0';
        }
        (void)fclose(file);
    }
    return XXH3_64bits(boot_id, strlen(boot_id));
}

/* All ranks compute and then copy at the same time, because that is what devices will do. */
static xm_status_t measure_device(probe_t *probe)
{
    unsigned char *from = malloc(COPY_BYTES), *to = malloc(COPY_BYTES);
    xm_status_t status;

    if (from == NULL || to == NULL) {
        status = xm_error_set(XM_ERR_NO_MEMORY, "probe: no memory for two buffers of %d bytes",
                              COPY_BYTES);
        goto free_buffers;
    }
    memset(from, 1, COPY_BYTES); /* pages exist before the clock starts */
    memset(to, 0, COPY_BYTES);
    probe->own.host_memory = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);
    probe->own.machine = machine_digest();
    status = enter(probe, "FLOP/s", 0, 0.1);
    if (status == XM_OK) {
        probe->own.flops = xm_probe_flops(compute_seconds);
        status = enter(probe, "memory bandwidth", 0.1, 0.2);
    }
    if (status == XM_OK) {
        probe->own.copy_bandwidth = xm_probe_copy_bandwidth(to, from, COPY_BYTES, copy_seconds);
        if (memcmp(from, to, COPY_BYTES) != 0) {
            status = xm_error_set(XM_ERR_CORRUPT, "probe: a memory copy on rank %d differs",
                                  probe->rank);
        }
    }

free_buffers:
    free(to);
    free(from);
    return status;
}

static xm_status_t measure_self(probe_t *probe)
{
    xm_status_t status = enter(probe, "copy inside a process", 0.2, 0.3);
    size_t largest = probe->sizes[probe->size_count - 1];
    unsigned char *from, *to;

    if (status < 0 || probe->rank != 0) {
        return status;
    }
    from = malloc(largest);
    to = malloc(largest);
    if (from == NULL || to == NULL) {
        status = xm_error_set(XM_ERR_NO_MEMORY, "probe: no memory for two buffers of %zu bytes",
                              largest);
        goto free_buffers;
    }
    memset(from, 1, largest);
    memset(to, 0, largest);
    for (int i = 0; i < probe->size_count; ++i) {
        report_progress(probe, (double)i / probe->size_count);
        probe->own.curve[XM_LINK_SELF][i] =
            (xm_curve_point_t){probe->sizes[i], xm_probe_copy_seconds(to, from, probe->sizes[i],
                                                                      probe->params.repetitions)};
    }
    if (memcmp(from, to, largest) != 0) {
        status = xm_error_set(XM_ERR_CORRUPT, "probe: a memory copy on rank 0 differs");
        goto free_buffers;
    }
    probe->own.points[XM_LINK_SELF] = probe->size_count;

free_buffers:
    free(to);
    free(from);
    return status;
}

static void ping_step(void *arg, int index)
{
    probe_t *probe = arg;

    report_progress(probe, (double)index / probe->size_count);
}

static xm_status_t measure_link(probe_t *probe, xm_link_class_t class, const char *phase,
                                double start, double end)
{
    double timeout = xm_worker_timeout(probe->worker);
    xm_probe_ping_t ping = {.sizes = probe->sizes,
                            .size_count = probe->size_count,
                            .repetitions = probe->params.repetitions,
                            .budget = timeout * budget_share,
                            .longest = timeout * longest_share,
                            .step = ping_step,
                            .step_arg = probe};
    xm_probe_link_t *link = NULL;
    int a, b;
    xm_status_t status;

    if (!xm_probe_pair(probe->host_of, probe->ranks, probe->hosts, class, &a, &b)) {
        return XM_OK;
    }
    status = enter(probe, phase, start, end);
    if (status < 0 || (probe->rank != a && probe->rank != b)) {
        return status;
    }
    status = xm_probe_link_create(probe->worker, probe->rank == a ? b : a,
                                  probe->sizes[probe->size_count - 1], &link);
    if (status == XM_OK) {
        status = probe->rank == a ? xm_probe_link_ping(link, &ping, probe->own.curve[class],
                                                       &probe->own.points[class])
                                  : xm_probe_link_pong(link);
    }
    xm_probe_link_destroy(link);
    return status;
}

/* Ranks flow_index of hosts 0 and 1 stream if flow_index < flows; *start and *end stay 0 on all but
 * the senders. */
static xm_status_t run_flow(probe_t *probe, int flows, size_t bytes, uint64_t messages,
                            int64_t *start, int64_t *end)
{
    xm_probe_link_t *link = NULL;
    int sender = -1, receiver = -1;
    xm_status_t status;

    for (int flow = 0; flow < flows && sender != probe->rank && receiver != probe->rank; ++flow) {
        sender = xm_probe_rank_on(probe->host_of, probe->ranks, 0, flow);
        receiver = xm_probe_rank_on(probe->host_of, probe->ranks, 1, flow);
    }
    if (sender != probe->rank && receiver != probe->rank) {
        return XM_OK;
    }
    status = xm_probe_link_create(probe->worker, probe->rank == sender ? receiver : sender,
                                  bytes * STREAM_WINDOW, &link);
    if (status == XM_OK) {
        status = probe->rank == sender ? xm_probe_link_stream(link, bytes, messages, start, end)
                                       : xm_probe_link_drain(link, bytes, messages);
    }
    xm_probe_link_destroy(link);
    return status;
}

/* Bytes per second of all flows together. Senders are on one host, so their clocks agree. */
static xm_status_t measure_flows(probe_t *probe, int flows, size_t bytes, uint64_t messages,
                                 double *bandwidth)
{
    int64_t start = 0, end = 0, first = INT64_MAX, last = 0;
    uint64_t own[2], *all = malloc((size_t)probe->ranks * sizeof(own));
    xm_status_t status;

    if (all == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "probe: out of memory");
    }
    status = run_flow(probe, flows, bytes, messages, &start, &end);
    if (status == XM_OK) {
        own[0] = htole64((uint64_t)start);
        own[1] = htole64((uint64_t)end);
        status = xm_worker_allgather(probe->worker, own, all, sizeof(own));
    }
    for (int flow = 0; status == XM_OK && flow < flows; ++flow) {
        const uint64_t *times = &all[2 * xm_probe_rank_on(probe->host_of, probe->ranks, 0, flow)];

        start = (int64_t)le64toh(times[0]);
        end = (int64_t)le64toh(times[1]);
        first = start < first ? start : first;
        last = end > last ? end : last;
    }
    if (status == XM_OK) {
        *bandwidth = last > first ? (double)flows * (double)messages * (double)bytes * 1e9 /
                                        (double)(last - first)
                                  : 0;
    }
    free(all);
    return status;
}

/* How many messages keep one flow of several busy for about stream_seconds. Computed alike on all
 * ranks, from the shared reports. */
static uint64_t messages_per_flow(const probe_t *probe, int flows, size_t bytes)
{
    double best = 0, messages;
    int a, b;

    (void)xm_probe_pair(probe->host_of, probe->ranks, probe->hosts, XM_LINK_INTER_HOST, &a, &b);
    for (int i = 0; i < probe->reports[a].points[XM_LINK_INTER_HOST]; ++i) {
        const xm_curve_point_t *point = &probe->reports[a].curve[XM_LINK_INTER_HOST][i];
        double bandwidth = (double)point->bytes / point->seconds;

        best = bandwidth > best ? bandwidth : best;
    }
    messages = best * stream_seconds / (double)bytes / flows;
    return messages > MIN_MESSAGES ? (uint64_t)messages : MIN_MESSAGES;
}

static xm_status_t measure_nic(probe_t *probe, xm_probe_summary_t *summary)
{
    size_t bytes = probe->params.max_bytes < STREAM_BYTES ? probe->params.max_bytes : STREAM_BYTES;
    int most = probe->ranks;

    if (probe->hosts < 2) {
        return XM_OK;
    }
    for (int host = 0; host < 2; ++host) {
        int count = xm_probe_ranks_on(probe->host_of, probe->ranks, host);

        most = count < most ? count : most;
    }
    /* 1, 2, 4, … flows and all of them. */
    for (int flows = 1; flows <= most;
         flows = flows < most && 2 * flows > most ? most : 2 * flows) {
        double bandwidth = 0;
        xm_status_t status = enter(probe, "NIC capacity", 0.8 + 0.2 * (flows - 1) / most, 1.0);

        if (status == XM_OK) {
            status = measure_flows(probe, flows, bytes, messages_per_flow(probe, flows, bytes),
                                   &bandwidth);
        }
        if (status < 0) {
            return status;
        }
        if (bandwidth > summary->nic_bandwidth) {
            summary->nic_bandwidth = bandwidth;
            summary->nic_flows = flows;
        }
    }
    return XM_OK;
}

static void describe(const probe_t *probe, char *name, char *conditions, size_t size)
{
    char date[32];
    time_t now = time(NULL);
    struct tm utc;

    (void)gmtime_r(&now, &utc);
    (void)strftime(date, sizeof(date), "%Y-%m-%d %H:%M UTC", &utc);
    (void)snprintf(name, size, probe->hosts > 1 ? "%s and %d more" : "%s",
                   xm_worker_host_name(probe->worker, 0), probe->hosts - 1);
    (void)snprintf(conditions, size,
                   "%s by crossmesh %s: %d ranks on %d host%s, transport %s; a device is a rank on "
                   "CPU cores, all ranks at once (%s, copy of %d MiB)",
                   date, XM_VERSION_STRING, probe->ranks, probe->hosts, probe->hosts > 1 ? "s" : "",
                   xm_transport_name(xm_worker_transport(probe->worker)), xm_probe_flops_kind(),
                   COPY_BYTES >> 20);
}

/* Rank 0 makes the profile and sends its text, or the sentence that says why there is none. */
static xm_status_t agree(probe_t *probe, xm_probe_summary_t *summary,
                         xm_cluster_profile_t **profile)
{
    char name[512], conditions[512], *text = NULL;
    void *all = NULL;
    size_t *offsets = NULL;
    xm_status_t status = XM_OK, made = XM_OK;

    if (probe->rank == 0) {
        xm_cluster_profile_t *first = NULL;

        describe(probe, name, conditions, sizeof(name));
        summary->name = name;
        summary->conditions = conditions;
        made = xm_probe_profile(summary, &first);
        if (made == XM_OK) {
            made = xm_cluster_profile_to_text(first, &text);
        }
        if (made < 0) {
            text = strdup(xm_last_error());
        }
        xm_cluster_profile_destroy(first);
    }
    status = xm_bootstrap_allgatherv(xm_worker_bootstrap(probe->worker), text,
                                     text != NULL ? strlen(text) : 0, &all, &offsets,
                                     xm_worker_timeout(probe->worker));
    free(text);
    if (status < 0) {
        return status;
    }
    if (offsets[1] > 0 && *(const char *)all == '{') {
        status = xm_cluster_profile_from_text(all, offsets[1], "profile of rank 0", profile);
    } else {
        status = xm_error_set(made < 0 ? made : XM_ERR_CORRUPT, "%.*s",
                              (int)(offsets[1] < 900 ? offsets[1] : 900), (const char *)all);
    }
    free(offsets);
    free(all);
    return status;
}

static xm_status_t measure(probe_t *probe, xm_cluster_profile_t **profile)
{
    xm_probe_summary_t summary = {
        .host_of = probe->host_of, .ranks = probe->ranks, .hosts = probe->hosts};
    xm_status_t status;

    if ((status = measure_device(probe)) < 0 || (status = measure_self(probe)) < 0 ||
        (status = measure_link(probe, XM_LINK_INTRA_HOST, "messages inside a host", 0.3, 0.5)) <
            0 ||
        (status = measure_link(probe, XM_LINK_INTER_HOST, "messages between hosts", 0.5, 0.8)) <
            0 ||
        (status = enter(probe, "NIC capacity", 0.8, 0.8)) < 0 ||
        (status = xm_probe_report_share(probe->worker, &probe->own, probe->sizes, probe->size_count,
                                        &probe->reports)) < 0) {
        return status;
    }
    summary.reports = probe->reports;
    status = measure_nic(probe, &summary);
    if (status == XM_OK) {
        status = agree(probe, &summary, profile);
    }
    if (status == XM_OK) {
        probe->phase_start = probe->phase_end = 1;
        probe->phase = "done";
        report_progress(probe, 1);
    }
    return status;
}

static xm_status_t check_params(const xm_probe_params_t *params)
{
    if (params->struct_size != sizeof(*params)) {
        return xm_error_set(XM_ERR_INVALID_ARGUMENT,
                            "probe parameters have %zu bytes instead of %zu", params->struct_size,
                            sizeof(*params));
    }
    if (params->max_bytes != 0 &&
        (params->max_bytes < MIN_MAX_BYTES || params->max_bytes > UINT64_C(1) << 40)) {
        return xm_error_set(XM_ERR_INVALID_ARGUMENT,
                            "probe: the largest message is %llu bytes; it must be 64 KiB to 1 TiB",
                            (unsigned long long)params->max_bytes);
    }
    if (params->repetitions < 0) {
        return xm_error_set(XM_ERR_INVALID_ARGUMENT,
                            "probe: %d repetitions; there cannot be fewer than 0",
                            params->repetitions);
    }
    return XM_OK;
}

xm_status_t xm_probe_run(xm_worker_t *worker, const xm_probe_params_t *params,
                         xm_cluster_profile_t **profile)
{
    probe_t probe = {.worker = worker, .params = *params};
    xm_status_t status = check_params(params);

    if (status < 0) {
        return status;
    }
    if (probe.params.max_bytes == 0) {
        probe.params.max_bytes = default_max_bytes;
    }
    if (probe.params.repetitions == 0) {
        probe.params.repetitions = DEFAULT_REPETITIONS;
    }
    probe.rank = xm_worker_rank(worker);
    probe.ranks = xm_worker_size(worker);
    probe.hosts = xm_worker_host_count(worker);
    probe.size_count = xm_probe_sizes(probe.params.max_bytes, probe.sizes);
    probe.host_of = calloc((size_t)probe.ranks, sizeof(int));
    if (probe.host_of == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "probe: out of memory");
    }
    for (int rank = 0; rank < probe.ranks; ++rank) {
        probe.host_of[rank] = xm_worker_host_of(worker, rank);
    }
    status = measure(&probe, profile);
    free(probe.reports);
    free(probe.host_of);
    return status;
}
