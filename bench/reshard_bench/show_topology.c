/* SPDX-License-Identifier: Apache-2.0 */
/*
 * --show-topology: prints what hwloc finds on this host and which NICs each GPU would
 * use, by the same code that jobs choose with.
 */
#include "bench/reshard_bench/show_topology.h"

#include <stdlib.h>

#include "comm/base.h"
#include "comm/topology.h"

/* Gbit/s to bytes/s. */
static const double gbps = 1e9 / 8;

/* The rate of each NIC as the options say, 0 where they say nothing. */
static void read_rates(const rb_options_t *options, double *rates, int nics)
{
    for (int nic = 0; nic < nics; ++nic) {
        if (nic < options->uneven_rates) {
            rates[nic] = options->uneven_gbps[nic] * gbps;
        } else if (options->uneven_rates == 0 && options->nic_rates > 0) {
            rates[nic] = options->nic_gbps[0] / options->nics_per_host * gbps;
        }
    }
}

/* Prints what nic_choice decides for these places. */
static xm_status_t print_choice(const xm_nic_choice_params_t *params, FILE *stream)
{
    xm_nic_choice_t *choice;
    xm_status_t status = xm_nic_choice_create(params, &choice);

    if (status == XM_OK) {
        status = xm_nic_choice_print(choice, stream);
        xm_nic_choice_destroy(choice);
    }
    return status;
}

xm_status_t rb_show_topology(const rb_options_t *options, FILE *stream)
{
    xm_nic_choice_params_t params = {0};
    const char *given = xm_config_string(XM_CONFIG_NICS);
    xm_topology_t *topology;
    xm_nic_slot_t *slots = NULL;
    double *rates = NULL;
    int nics, gpus;
    xm_status_t status = XM_OK;

    XM_TRY(xm_topology_create(NULL, 0, &topology));
    nics = xm_topology_device_count(topology, XM_DEVICE_NIC);
    gpus = xm_topology_device_count(topology, XM_DEVICE_GPU);
    slots = calloc((size_t)gpus + 1, sizeof(*slots));
    rates = calloc((size_t)nics + 1, sizeof(*rates));
    if (slots == NULL || rates == NULL) {
        status = XM_NO_MEMORY("%d GPUs and %d NICs", gpus, nics);
        goto free_arrays;
    }
    for (int gpu = 0; gpu < gpus; ++gpu) {
        slots[gpu] = (xm_nic_slot_t){.gpu = gpu, .node = -1, .rank = -1};
    }
    read_rates(options, rates, nics);
    params.topology = topology;
    params.slots = slots;
    params.slot_count = gpus;
    params.rates = rates;
    /* A leading ^ excludes NICs; any other list replaces the choice altogether. */
    params.unwanted = given[0] == '^' ? given + 1 : NULL;
    xm_topology_print(topology, stream);
    (void)fputc('\n', stream);
    if (given[0] != '\0' && given[0] != '^') {
        (void)fprintf(stream, "XM_NICS=%s is used instead of this:\n", given);
    }
    status = print_choice(&params, stream);

free_arrays:
    free(rates);
    free(slots);
    xm_topology_destroy(topology);
    return status;
}
