/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file rates.h
 * The network's rates that plans, bounds and simulations of a job use, and where they come from.
 */
#pragma once

#include <stdbool.h>

#include "bench/cases.h"
#include "comm/worker.h"
#include "resharding/network.h"

typedef struct rb_rates {
    double nic_bandwidth[RB_NIC_RATES]; /**< bytes/s of the hosts in turn, per direction */
    int nic_rates;                      /**< entries of nic_bandwidth, at least 1 */
    int nics_per_host; /**< NICs dealt to a host's ranks in turn; 0: all ranks use all of them */
    int rails;         /**< of all hosts, once a network has been made */
    double nic_weights[RB_UNEVEN_NICS]; /**< of NICs that differ; all 0: they are alike */
    double nic_latency;                 /**< seconds */
    double host_bandwidth;
    double host_latency;
    double cores_per_host, nic_cpu, host_cpu; /**< as in xm_network_params_t; 0: not known */
    int racks;                                /**< of equally many neighbouring hosts; 0: one */
    double uplink_bandwidth; /**< bytes/s of a rack, per direction; 0: never the limit */
    bool emulated;           /**< NICs of an emulated cluster; rates are those of TCP's data */
    char source[1024];       /**< for the report, e.g. "probed at start" */
} rb_rates_t;

/**
 * Rates of --profile or --nic-gbps. *known tells whether one of them is given. In a rank of an
 * emulated cluster the rates are what the headers of TCP leave of --nic-gbps.
 */
xm_status_t rb_rates_read(const rb_options_t *options, rb_rates_t *rates, bool *known);

/** What is assumed where nothing is measured and nothing is given: NICs of 10 Gbit/s; where all of
 * @p selection are published refits, the DGX H100 that they ran on. */
void rb_rates_assume(const rb_selection_t *selection, rb_rates_t *rates);

/** Collective: a short probe of the job's links. @p show draws a progress line (one rank only). */
xm_status_t rb_rates_probe(xm_worker_t *worker, bool show, rb_rates_t *rates);

/** The racks and uplinks of the options, after the rates have been read or probed. */
void rb_rates_set_uplinks(const rb_options_t *options, rb_rates_t *rates);

/** "1.250" or "1.250/3.125", GB/s, into @p buffer, which is returned. */
char *rb_rates_format_nic(const rb_rates_t *rates, char *buffer, size_t size);

/**
 * The network of these rates and hosts, with the rails of a job's ranks, or without a job (NULL)
 * those of the options. Fails when there are more racks than hosts.
 */
xm_status_t rb_rates_network(rb_rates_t *rates, const rb_host_map_t *hosts,
                             const xm_worker_rails_t *rails, xm_network_t **network);
