/**
 * @file probe_report.h
 * What one rank has measured, and how ranks tell each other. Internal to the probe.
 *
 * On the wire a report is a fixed number of 64-bit little-endian words; a number is the bit pattern
 * of an IEEE double. The sizes of the curves are not sent: every rank knows them.
 */
#ifndef XM_COMM_PROBE_REPORT_H
#define XM_COMM_PROBE_REPORT_H

#include "comm/probe_curve.h"
#include "comm/worker.h"

typedef struct xm_probe_report {
    double flops;                    /**< FLOP/s with all ranks computing */
    double copy_bandwidth;           /**< bytes/s read plus written with all ranks copying */
    double host_memory;              /**< bytes of physical memory */
    uint64_t machine;                /**< digest of the machine's boot id: equal on one machine */
    int points[XM_LINK_CLASS_COUNT]; /**< 0: this rank measured no such curve */
    xm_curve_point_t curve[XM_LINK_CLASS_COUNT][XM_PROBE_MAX_POINTS];
} xm_probe_report_t;

enum { XM_PROBE_REPORT_WORDS = 4 + XM_LINK_CLASS_COUNT * (1 + XM_PROBE_MAX_POINTS) };

void xm_probe_report_encode(const xm_probe_report_t *report, uint64_t words[XM_PROBE_REPORT_WORDS]);

/** @p sizes are the sizes of the curves' points. */
xm_status_t xm_probe_report_decode(const uint64_t words[XM_PROBE_REPORT_WORDS],
                                   const uint64_t sizes[XM_PROBE_MAX_POINTS], int size_count,
                                   xm_probe_report_t *report);

/** Every rank's report, by rank; freed with free(). Collective. */
xm_status_t xm_probe_report_share(xm_worker_t *worker, const xm_probe_report_t *own,
                                  const uint64_t sizes[XM_PROBE_MAX_POINTS], int size_count,
                                  xm_probe_report_t **reports);

#endif
