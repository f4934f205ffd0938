/* The network as a worker knows it: the hosts of its ranks, and the NICs in their topologies. */
#include <crossmesh/reshard.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "comm/nic_choice.h"

/* What is assumed where nothing is known, in bytes per second and seconds. */
static const double nic_bandwidth = 1.25e9, nic_latency = 20e-6, host_bandwidth = 10e9,
                    host_latency = 1e-6;

/* Bytes/s of the NICs of a host that are suitable for tensors; 0: nobody knows. */
static xm_status_t rate_of(const char *xml, double *rate)
{
    xm_nic_choice_params_t params = XM_NIC_CHOICE_PARAMS_INIT;
    xm_topology_t *topology;
    xm_nic_choice_t *choice;
    xm_status_t status = xm_topology_create_from_text(xml, 0, &topology);

    if (status < 0) {
        return status;
    }
    params.topology = topology;
    status = xm_nic_choice_create(&params, &choice);
    if (status == XM_OK) {
        *rate = xm_nic_choice_suitable(choice) > 0 ? xm_nic_choice_rate(choice) : 0.0;
        xm_nic_choice_destroy(choice);
    }
    xm_topology_destroy(topology);
    return status;
}

/* Emulated hosts have one machine's topology, which is read once. */
static xm_status_t read_rates(const xm_worker_t *worker, double *rates)
{
    const char *former = NULL;

    for (int h = 0; h < xm_worker_host_count(worker); ++h) {
        const char *xml = xm_worker_topology_xml(worker, h);
        xm_status_t status = XM_OK;

        if (former != NULL && strcmp(former, xml) == 0) {
            rates[h] = rates[h - 1];
        } else {
            status = rate_of(xml, &rates[h]);
        }
        if (status < 0) {
            return status;
        }
        former = xml;
    }
    return XM_OK;
}

static void assume_unknown(double *rates, int hosts)
{
    double slowest = INFINITY;

    for (int h = 0; h < hosts; ++h) {
        slowest = rates[h] > 0 ? fmin(slowest, rates[h]) : slowest;
    }
    for (int h = 0; h < hosts; ++h) {
        if (!(rates[h] > 0)) {
            rates[h] = isfinite(slowest) ? slowest : nic_bandwidth;
        }
    }
}

xm_status_t xm_network_from_worker(const xm_worker_t *worker, xm_network_t **network)
{
    xm_network_params_t params = XM_NETWORK_PARAMS_INIT;
    int size = xm_worker_size(worker), hosts = xm_worker_host_count(worker);
    int *host_of = calloc((size_t)size, sizeof(*host_of));
    double *rates = calloc((size_t)hosts, sizeof(*rates));
    xm_status_t status;

    if (host_of == NULL || rates == NULL) {
        status = xm_error_set(XM_ERR_NO_MEMORY, "no memory for a network of %d ranks", size);
        goto free_lists;
    }
    status = read_rates(worker, rates);
    if (status < 0) {
        goto free_lists;
    }
    assume_unknown(rates, hosts);
    for (int r = 0; r < size; ++r) {
        host_of[r] = xm_worker_host_of(worker, r);
    }
    params.ranks = size;
    params.host_of_rank = host_of;
    params.egress = params.ingress = rates;
    params.nic_latency = nic_latency;
    params.host_bandwidth = host_bandwidth;
    params.host_latency = host_latency;
    status = xm_network_create(&params, network);

free_lists:
    free(rates);
    free(host_of);
    return status;
}
