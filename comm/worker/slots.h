/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file comm/worker/slots.h
 * Who sits where: the hosts and machines of all ranks, their settings and topologies, exchanged
 * when a worker is created. Internal.
 */
#pragma once

#include "comm/job.h"
#include "comm/worker/rails.h"

typedef struct xm_worker_slots {
    int *host_of;    /**< by rank; hosts are numbered by their lowest rank */
    int *machine_of; /**< by rank; differs from host_of for emulated hosts */
    int host_count;
    const char **host_name;    /**< by host */
    const char **topology_xml; /**< by host */
    double *nic_rates;         /**< by host (comm/worker/rate.h); NULL: nobody has asked yet */
    xm_worker_rails_t rails;   /**< exchanged once a transport has been opened */
    void *cards;               /**< what the ranks sent; the names point into it */
    void *topologies;          /**< the same for the XML texts */
} xm_worker_slots_t;

/**
 * Exchanges and compares. Fails on every rank alike when a uniform setting differs, naming it and
 * the rank. @p host: this rank's host identity; NULL means XM_HOST, else the machine's own.
 */
xm_status_t xm_worker_slots_exchange(xm_worker_slots_t *slots, xm_bootstrap_t *bootstrap,
                                     const char *host, double timeout);

void xm_worker_slots_free(xm_worker_slots_t *slots);
