/**
 * @file rates.h
 * The network's rates that plans, bounds and simulations of a job use, and where they come from.
 */
#ifndef RB_RATES_H
#define RB_RATES_H

#include <stdbool.h>

#include "bench/host_map.h"
#include "bench/options.h"
#include "resharding/network.h"

typedef struct rb_rates {
    double nic_bandwidth; /**< bytes/s of a host, per direction */
    double nic_latency;   /**< seconds */
    double host_bandwidth;
    double host_latency;
    char source[1024]; /**< for the report, e.g. "probed at start" */
} rb_rates_t;

/** Rates of --profile or --nic-gbps. *known tells whether one of them is given. */
xm_status_t rb_rates_read(const rb_options_t *options, rb_rates_t *rates, bool *known);

/** What is assumed where nothing is measured and nothing is given: NICs of 10 Gbit/s. */
void rb_rates_assume(rb_rates_t *rates);

/** Collective: a short probe of the job's links. @p show draws a progress line (one rank only). */
xm_status_t rb_rates_probe(xm_worker_t *worker, bool show, rb_rates_t *rates);

/** The network of these rates and hosts. */
xm_status_t rb_rates_network(const rb_rates_t *rates, const rb_host_map_t *hosts,
                             xm_network_t **network);

#endif
