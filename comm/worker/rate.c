/* SPDX-License-Identifier: Apache-2.0 */
/* Rates of hosts, from the topologies that the ranks have exchanged. */
#include "comm/worker/rate.h"

#include <stdlib.h>
#include <string.h>

#include "comm/topology.h"
#include "comm/worker/worker_private.h"

static xm_status_t rate_of(const char *xml, double *rate)
{
    xm_nic_choice_params_t params = {0};
    xm_topology_t *topology;
    xm_nic_choice_t *choice;
    xm_status_t status;

    XM_TRY(xm_topology_create_from_text(xml, 0, &topology));
    params.topology = topology;
    status = xm_nic_choice_create(&params, &choice);
    if (status == XM_OK) {
        *rate = xm_nic_choice_suitable(choice) > 0 ? xm_nic_choice_rate(choice, true) : 0.0;
        xm_nic_choice_destroy(choice);
    }
    xm_topology_destroy(topology);
    return status;
}

/* Emulated hosts have one machine's topology, which is read once. */
static xm_status_t read_rates(const xm_worker_slots_t *slots, double *rates)
{
    xm_status_t status = XM_OK;

    for (int h = 0; status == XM_OK && h < slots->host_count; ++h) {
        if (h > 0 && strcmp(slots->topology_xml[h], slots->topology_xml[h - 1]) == 0) {
            rates[h] = rates[h - 1];
        } else {
            status = rate_of(slots->topology_xml[h], &rates[h]);
        }
    }
    return status;
}

xm_status_t xm_worker_nic_rates(xm_worker_t *worker, const double **rates)
{
    xm_worker_slots_t *slots = &worker->slots;
    xm_status_t status = XM_OK;

    if (slots->nic_rates == NULL) {
        double *read = calloc((size_t)slots->host_count, sizeof(*read));

        status = read != NULL ? read_rates(slots, read)
                              : XM_NO_MEMORY("rates of %d hosts", slots->host_count);
        if (status < 0) {
            free(read);
            return status;
        }
        slots->nic_rates = read;
    }
    *rates = slots->nic_rates;
    return status;
}
