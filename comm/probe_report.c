#include "comm/probe_report.h"

#include <endian.h>
#include <stdlib.h>
#include <string.h>

static uint64_t word_of(double number)
{
    uint64_t word;

    memcpy(&word, &number, sizeof(word));
    return htole64(word);
}

static double number_of(uint64_t word)
{
    double number;

    word = le64toh(word);
    memcpy(&number, &word, sizeof(number));
    return number;
}

void xm_probe_report_encode(const xm_probe_report_t *report, uint64_t words[XM_PROBE_REPORT_WORDS])
{
    uint64_t *word = words;

    *word++ = word_of(report->flops);
    *word++ = word_of(report->copy_bandwidth);
    *word++ = word_of(report->host_memory);
    *word++ = htole64(report->machine);
    for (int link = 0; link < XM_LINK_CLASS_COUNT; ++link) {
        *word++ = htole64((uint64_t)report->points[link]);
        for (int i = 0; i < XM_PROBE_MAX_POINTS; ++i) {
            *word++ = word_of(i < report->points[link] ? report->curve[link][i].seconds : 0);
        }
    }
}

xm_status_t xm_probe_report_decode(const uint64_t words[XM_PROBE_REPORT_WORDS],
                                   const uint64_t sizes[XM_PROBE_MAX_POINTS], int size_count,
                                   xm_probe_report_t *report)
{
    const uint64_t *word = words;
    xm_probe_report_t read = {0};

    read.flops = number_of(*word++);
    read.copy_bandwidth = number_of(*word++);
    read.host_memory = number_of(*word++);
    read.machine = le64toh(*word++);
    for (int link = 0; link < XM_LINK_CLASS_COUNT; ++link) {
        uint64_t points = le64toh(*word++);

        if (points > (uint64_t)size_count) {
            return xm_error_set(XM_ERR_CORRUPT, "probe: a report has %llu points of %d sizes",
                                (unsigned long long)points, size_count);
        }
        read.points[link] = (int)points;
        for (int i = 0; i < XM_PROBE_MAX_POINTS; ++i, ++word) {
            if (i < read.points[link]) {
                read.curve[link][i] = (xm_curve_point_t){sizes[i], number_of(*word)};
            }
        }
    }
    *report = read;
    return XM_OK;
}

xm_status_t xm_probe_report_share(xm_worker_t *worker, const xm_probe_report_t *own,
                                  const uint64_t sizes[XM_PROBE_MAX_POINTS], int size_count,
                                  xm_probe_report_t **reports)
{
    size_t ranks = (size_t)xm_worker_size(worker);
    uint64_t words[XM_PROBE_REPORT_WORDS];
    uint64_t *all = malloc(ranks * sizeof(words));
    xm_probe_report_t *decoded = calloc(ranks, sizeof(*decoded));
    xm_status_t status;

    if (all == NULL || decoded == NULL) {
        status = xm_error_set(XM_ERR_NO_MEMORY, "probe: no memory for %zu reports", ranks);
        goto free_all;
    }
    xm_probe_report_encode(own, words);
    status = xm_worker_allgather(worker, words, all, sizeof(words));
    for (size_t rank = 0; status == XM_OK && rank < ranks; ++rank) {
        status = xm_probe_report_decode(all + rank * XM_PROBE_REPORT_WORDS, sizes, size_count,
                                        &decoded[rank]);
    }
    if (status == XM_OK) {
        *reports = decoded;
        decoded = NULL;
    }

free_all:
    free(decoded);
    free(all);
    return status;
}
