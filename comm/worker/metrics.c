/* SPDX-License-Identifier: Apache-2.0 */
/* Metrics as a text file in the Prometheus format, for a node exporter's text collector or
 * anything else that reads it. The rank writes it from its own waits, in the communicating
 * thread, so there is no thread and no lock, and a rank that computes writes late. A file that
 * cannot be written is complained about once, and the job goes on. */
#include "comm/worker/metrics.h"

#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "comm/base.h"

struct xm_metrics {
    const xm_counters_t *counters;
    char path[PATH_MAX];
    char transport[16];
    int rank;
    int64_t interval, due;
    bool complained;
    xm_versions_t versions;
    char **host; /* by peer */
};

/* Host names are copied, because a shrink replaces the worker's. */
xm_status_t xm_metrics_create(const xm_metrics_params_t *params, xm_metrics_t **metrics)
{
    int peers = xm_counters_peers(params->counters);
    xm_metrics_t *self = calloc(1, sizeof(*self));
    bool copied = true;

    XM_NEED_MEMORY(self, "metrics");
    self->counters = params->counters;
    self->rank = params->rank;
    self->interval = (int64_t)(params->interval * 1e9);
    (void)snprintf(self->transport, sizeof(self->transport), "%s", params->transport);
    /* The pattern is expanded once: the file keeps its name after a shrink. */
    if (!xm_path_pattern_expand(params->path, params->rank, params->host[params->rank], self->path,
                                sizeof(self->path))) {
        free(self);
        return XM_INVALID("XM_METRICS_FILE=%s is not a path", params->path);
    }
    self->host = calloc((size_t)peers, sizeof(*self->host));
    /* `copied` also covers the array itself, so a job without memory has one way out. */
    for (int peer = 0; copied && peer < peers; ++peer) {
        copied = self->host != NULL && (self->host[peer] = strdup(params->host[peer])) != NULL;
    }
    if (!copied) {
        xm_metrics_destroy(self);
        return XM_NO_MEMORY("the names of %d peers", peers);
    }
    xm_versions_read("", &self->versions);
    *metrics = self;
    return XM_OK;
}

void xm_metrics_destroy(xm_metrics_t *metrics)
{
    if (metrics == NULL) {
        return;
    }
    for (int peer = 0; metrics->host != NULL && peer < xm_counters_peers(metrics->counters);
         ++peer) {
        free(metrics->host[peer]);
    }
    free((void *)metrics->host);
    free(metrics);
}

/* ---- the format ------------------------------------------------------------------------------ */

/* The format wants HELP and TYPE once for each metric, before its first sample. */
static void print_head(FILE *file, const char *name, const char *type, const char *help)
{
    (void)fprintf(file, "# HELP crossmesh_%s %s\n# TYPE crossmesh_%s %s\n", name, help, name, type);
}

/* Prints a label's value, with what the format wants escaped. */
static void print_label(FILE *file, const char *name, const char *value)
{
    (void)fprintf(file, ",%s=\"", name);
    for (const char *c = value; *c != '\0'; ++c) {
        if (*c == '\n') {
            (void)fputs("\\n", file);
        } else if (*c == '\\' || *c == '"') {
            (void)fprintf(file, "\\%c", *c);
        } else {
            (void)fputc(*c, file);
        }
    }
    (void)fputc('"', file);
}

/* The rank is on every sample, so files of several ranks can be read together. */
static void begin_sample(FILE *file, const xm_metrics_t *metrics, const char *name)
{
    (void)fprintf(file, "crossmesh_%s{rank=\"%d\"", name, metrics->rank);
}

static void end_sample(FILE *file, uint64_t value)
{
    (void)fprintf(file, "} %" PRIu64 "\n", value);
}

/* ---- what there is to say -------------------------------------------------------------------- */

/* A gauge that is always 1 is how Prometheus carries texts: as labels. */
static void print_info(FILE *file, const xm_metrics_t *metrics)
{
    print_head(file, "build_info", "gauge",
               "Versions of crossmesh and of what it stands on; always 1.");
    begin_sample(file, metrics, "build_info");
    print_label(file, "host", metrics->host[metrics->rank]);
    print_label(file, "transport", metrics->transport);
    print_label(file, "version", metrics->versions.crossmesh);
    print_label(file, "ucx", metrics->versions.ucx);
    print_label(file, "libibverbs", metrics->versions.verbs);
    print_label(file, "hwloc", metrics->versions.hwloc);
    print_label(file, "nvidia_driver", metrics->versions.nvidia);
    end_sample(file, 1);
}

/* A metric of every peer that has something to count, with or without a direction. */
typedef struct {
    const char *name, *type, *help;
    bool directed;
    size_t offset; /* of the number, or those of the directions, in xm_peer_counts_t */
    uint64_t (*value)(const xm_peer_counts_t *counts, xm_direction_t direction); /* instead */
} peer_metric_t;

static const peer_metric_t peer_metrics[] = {
    {"operations_posted_total", "counter", "Operations with a peer that were taken on.", true,
     offsetof(xm_peer_counts_t, posted), NULL},
    {"operations_refused_total", "counter", "Posting calls with a peer that failed.", true,
     offsetof(xm_peer_counts_t, refused), NULL},
    {"operations_in_flight", "gauge", "Operations with a peer that have not ended.", true, 0,
     xm_peer_counts_in_flight},
    {"message_bytes_total", "counter", "Bytes of operations with a peer that ended well.", true,
     offsetof(xm_peer_counts_t, bytes), NULL},
    {"direct_copies_total", "counter", "Chunks copied straight out of the memory of a peer.", false,
     offsetof(xm_peer_counts_t, copies), NULL},
    {"direct_copy_bytes_total", "counter", "Bytes copied straight out of the memory of a peer.",
     false, offsetof(xm_peer_counts_t, copied_bytes), NULL},
};

/* Reads a number by its place, so that one table describes all metrics of a kind. */
static uint64_t number_at(const void *counts, size_t offset)
{
    uint64_t number;

    memcpy(&number, (const char *)counts + offset, sizeof(number));
    return number;
}

/* Peers without traffic are left out: a job of a thousand ranks would otherwise write a
 * thousand times as much as it has to say. */
static bool is_idle(const xm_peer_counts_t *counts)
{
    static const xm_peer_counts_t nothing;

    return memcmp(counts, &nothing, sizeof(nothing)) == 0;
}

static void begin_peer(FILE *file, const xm_metrics_t *metrics, const char *name, int peer)
{
    begin_sample(file, metrics, name);
    (void)fprintf(file, ",peer=\"%d\"", peer);
}

static void print_peer_metric(FILE *file, const xm_metrics_t *metrics, const peer_metric_t *metric,
                              const xm_peer_counts_t *counts)
{
    int directions = metric->directed ? XM_DIRECTION_COUNT : 1;

    print_head(file, metric->name, metric->type, metric->help);
    for (int peer = 0; peer < xm_counters_peers(metrics->counters); ++peer) {
        /* A metric without direction is asked once, with the first one. */
        for (int d = 0; d < directions && !is_idle(&counts[peer]); ++d) {
            begin_peer(file, metrics, metric->name, peer);
            if (metric->directed) {
                print_label(file, "direction", xm_direction_name((xm_direction_t)d));
            }
            end_sample(file, metric->value != NULL
                                 ? metric->value(&counts[peer], (xm_direction_t)d)
                                 : number_at(&counts[peer],
                                             metric->offset + (size_t)d * sizeof(uint64_t)));
        }
    }
}

/* Apart from the table, because its samples have a second label. */
static void print_ends(FILE *file, const xm_metrics_t *metrics, const xm_peer_counts_t *counts)
{
    static const char name[] = "operations_total";

    print_head(file, name, "counter", "Operations with a peer by how they ended.");
    for (int peer = 0; peer < xm_counters_peers(metrics->counters); ++peer) {
        for (int i = 0; i < XM_DIRECTION_COUNT * XM_OUTCOME_COUNT && !is_idle(&counts[peer]); ++i) {
            int direction = i / XM_OUTCOME_COUNT, outcome = i % XM_OUTCOME_COUNT;

            begin_peer(file, metrics, name, peer);
            print_label(file, "direction", xm_direction_name((xm_direction_t)direction));
            print_label(file, "status", xm_outcome_name((xm_outcome_t)outcome));
            end_sample(file, counts[peer].ended[direction][outcome]);
        }
    }
}

/* Counts are read once, so that all metrics of a peer are of about the same moment. */
static void print_peers(FILE *file, const xm_metrics_t *metrics)
{
    int peers = xm_counters_peers(metrics->counters);
    xm_peer_counts_t *counts = calloc((size_t)peers + 1, sizeof(*counts));

    /* Without memory the peers are missing from this writing, and the next one tries again. */
    if (counts == NULL) {
        return;
    }
    print_head(file, "peer_info", "gauge", "Host of a peer; always 1.");
    for (int peer = 0; peer < peers; ++peer) {
        xm_counters_peer(metrics->counters, peer, &counts[peer]);
        /* The peers' host names stand in one metric only; others are joined to it by rank and
         * peer. */
        if (!is_idle(&counts[peer])) {
            begin_peer(file, metrics, "peer_info", peer);
            print_label(file, "host", metrics->host[peer]);
            end_sample(file, 1);
        }
    }
    for (size_t i = 0; i < sizeof(peer_metrics) / sizeof(peer_metrics[0]); ++i) {
        print_peer_metric(file, metrics, &peer_metrics[i], counts);
    }
    print_ends(file, metrics, counts);
    free(counts);
}

static void print_nic_directions(FILE *file, const xm_metrics_t *metrics, const char *name,
                                 const char *help, bool of_bytes)
{
    print_head(file, name, "counter", help);
    for (int nic = 0; nic < xm_counters_nics(metrics->counters); ++nic) {
        xm_nic_counts_t counts;

        xm_counters_nic(metrics->counters, nic, &counts);
        for (int d = 0; d < XM_DIRECTION_COUNT; ++d) {
            begin_sample(file, metrics, name);
            print_label(file, "nic", counts.name);
            print_label(file, "direction", xm_direction_name((xm_direction_t)d));
            end_sample(file, of_bytes ? counts.bytes[d] : counts.pieces[d]);
        }
    }
}

typedef struct {
    const char *name, *type, *help;
    size_t offset; /* of the number in xm_nic_counts_t */
    uint64_t unit; /* it is divided by this */
    bool optional; /* 0 means that nobody knows */
} nic_metric_t;

static const nic_metric_t nic_metrics[] = {
    {"nic_errors_total", "counter", "Pieces that a NIC failed to carry.",
     offsetof(xm_nic_counts_t, errors), 1, false},
    {"nic_retries_total", "counter", "Pieces that a NIC took over from another one.",
     offsetof(xm_nic_counts_t, retries), 1, false},
    {"nic_failovers_total", "counter", "Times that a NIC's traffic was moved to others.",
     offsetof(xm_nic_counts_t, failovers), 1, false},
    {"nic_speed_bytes", "gauge", "Bytes per second that a NIC can carry in each direction.",
     offsetof(xm_nic_counts_t, rate), 8, true},
};

static void print_nics(FILE *file, const xm_metrics_t *metrics)
{
    print_nic_directions(file, metrics, "nic_pieces_total", "Pieces of messages by NIC.", false);
    print_nic_directions(file, metrics, "nic_bytes_total", "Bytes of messages by NIC.", true);
    for (size_t i = 0; i < sizeof(nic_metrics) / sizeof(nic_metrics[0]); ++i) {
        const nic_metric_t *metric = &nic_metrics[i];

        print_head(file, metric->name, metric->type, metric->help);
        for (int nic = 0; nic < xm_counters_nics(metrics->counters); ++nic) {
            xm_nic_counts_t counts;
            uint64_t value;

            xm_counters_nic(metrics->counters, nic, &counts);
            value = number_at(&counts, metric->offset);
            if (value > 0 || !metric->optional) {
                begin_sample(file, metrics, metric->name);
                print_label(file, "nic", counts.name);
                end_sample(file, value / metric->unit);
            }
        }
    }
}

static void print_rank(FILE *file, const xm_metrics_t *metrics)
{
    xm_rank_counts_t counts;

    xm_counters_rank(metrics->counters, &counts);
    print_head(file, "sleeps_total", "counter", "Times the rank slept while it waited.");
    begin_sample(file, metrics, "sleeps_total");
    end_sample(file, counts.sleeps);
    print_head(file, "sleep_seconds_total", "counter", "Time the rank slept while it waited.");
    begin_sample(file, metrics, "sleep_seconds_total");
    /* Nanoseconds as a decimal fraction, without the rounding of a double. */
    (void)fprintf(file, "} %" PRIu64 ".%09" PRIu64 "\n", counts.slept_ns / 1000000000,
                  counts.slept_ns % 1000000000);
    print_head(file, "memory_registrations_total", "counter",
               "Messages whose memory was registered already (hit), or had to be (miss).");
    for (int hit = 0; hit < 2; ++hit) {
        begin_sample(file, metrics, "memory_registrations_total");
        print_label(file, "result", hit ? "hit" : "miss");
        end_sample(file, hit ? counts.registration_hits : counts.registration_misses);
    }
    print_head(file, "resends_total", "counter",
               "Chunks and messages that came wrong and were brought again.");
    begin_sample(file, metrics, "resends_total");
    end_sample(file, counts.resends);
}

void xm_metrics_print(const xm_metrics_t *metrics, FILE *file)
{
    print_info(file, metrics);
    print_rank(file, metrics);
    print_nics(file, metrics);
    print_peers(file, metrics);
}

/* ---- the file -------------------------------------------------------------------------------- */

/* The text is made in memory and replaces the file at once, so a reader never sees half of it. */
void xm_metrics_write(xm_metrics_t *metrics)
{
    char *text = NULL;
    size_t length = 0;
    FILE *file = open_memstream(&text, &length);
    xm_status_t status = XM_ERR_NO_MEMORY;
    bool complete;

    if (file == NULL) {
        return;
    }
    xm_metrics_print(metrics, file);
    complete = ferror(file) == 0;
    /* The memory stream may fail while it is written or while it is closed. */
    if (fclose(file) == 0 && complete) {
        status = xm_text_replace(metrics->path, text, length);
    }
    /* A full disk would otherwise fill the log as well. */
    if (status < 0 && !metrics->complained) {
        metrics->complained = true;
        xm_log_warn("rank %d: no metrics: %s", metrics->rank,
                    status == XM_ERR_NO_MEMORY ? "no memory" : xm_last_error());
    }
    free(text);
}

int64_t xm_metrics_due(const xm_metrics_t *metrics)
{
    return metrics->due;
}

/* The interval counts from the last writing, not from a fixed grid: a late one is not followed
 * by a second at once. */
void xm_metrics_tick(xm_metrics_t *metrics, int64_t now)
{
    if (now >= metrics->due) {
        metrics->due = now + metrics->interval;
        xm_metrics_write(metrics);
    }
}
