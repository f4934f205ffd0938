/* SPDX-License-Identifier: Apache-2.0 */
/* Opens a group's transport, UCX or verbs, with the NICs that the ranks have agreed on. */
#include <stdlib.h>
#include <string.h>

#include "comm/base.h"
#include "comm/job.h"
#include "comm/transport/ucx.h"
#include "comm/transport/verbs.h"
#include "comm/worker/nics.h"
#include "comm/worker/worker_private.h"

/* The ranks tell each other what they use, once a transport with these NICs has been opened. */
static xm_status_t tell_rails(xm_worker_t *worker, const char *nics, xm_status_t opened)
{
    return opened < 0 ? opened
                      : xm_worker_rails_exchange(&worker->slots.rails, worker->bootstrap,
                                                 worker->slots.host_of, nics, worker->timeout);
}

static xm_status_t open_verbs(xm_worker_t *worker)
{
    xm_transport_verbs_params_t params = XM_TRANSPORT_VERBS_PARAMS_INIT;

    params.spin = worker->spin;
    params.timeout = worker->timeout;
    params.counters = worker->counters;
    params.job_rank = worker->job_rank;
    params.nics = xm_config_string(XM_CONFIG_NICS);
    return tell_rails(worker, params.nics,
                      xm_transport_verbs_create(worker->bootstrap, &params, &worker->transport));
}

static bool same_addresses(const xm_endpoint_t *a, const xm_endpoint_t *b)
{
    return a->count == b->count &&
           memcmp(a->addresses, b->addresses, (size_t)a->count * sizeof(*a->addresses)) == 0;
}

/*
 * Where connections to UCX may come from: the hosts of other ranks; and where some of these are on
 * this machine, its loopback interface. Nothing, so that all may come, where the addresses of the
 * ranks are not known, or a host may have more than were told.
 */
static xm_status_t list_callers(const xm_worker_t *worker, uint8_t (**callers)[XM_ADDRESS_BYTES],
                                int *count)
{
    static const uint8_t loopbacks[2][XM_ADDRESS_BYTES] = {
        {[10] = 0xff, [11] = 0xff, [12] = 127, [15] = 1}, {[15] = 1}};
    const xm_worker_slots_t *slots = &worker->slots;
    int size = xm_bootstrap_size(worker->bootstrap), own = xm_bootstrap_rank(worker->bootstrap);
    size_t room = 0;
    bool told = worker->endpoints.of != NULL, shared = false;

    for (int rank = 0; rank < size && told; ++rank) {
        const xm_endpoint_t *endpoint = &worker->endpoints.of[worker->job_rank[rank]];

        told = endpoint->count < XM_ENDPOINT_ADDRESSES;
        if (slots->host_of[rank] == slots->host_of[own]) {
            continue;
        }
        shared = shared || slots->machine_of[rank] == slots->machine_of[own];
        /* The ranks of a host have the same addresses, unless each is in a container. */
        if (rank > 0 &&
            same_addresses(endpoint, &worker->endpoints.of[worker->job_rank[rank - 1]]) &&
            slots->host_of[rank - 1] != slots->host_of[own]) {
            continue;
        }
        XM_NEED_MEMORY(xm_array_reserve(callers, &room,
                                        (size_t)*count + (size_t)endpoint->count + 2,
                                        sizeof(**callers)),
                       "the addresses of %d ranks", size);
        memcpy(*callers + *count, endpoint->addresses, (size_t)endpoint->count * sizeof(**callers));
        *count += endpoint->count;
    }
    if (shared) {
        memcpy(*callers + *count, loopbacks, sizeof(loopbacks));
        *count += 2;
    }
    if (!told && slots->host_count > 1) {
        xm_log_info("connections to UCX may come from everywhere: the addresses of the ranks are "
                    "not known");
    }
    *count = told ? *count : 0;
    return XM_OK;
}

/* Opens UCX with the NICs that all ranks have agreed on, unless the user has named some. A rail
 * is given up after one and a half heartbeat intervals. */
static xm_status_t open_ucx(xm_worker_t *worker)
{
    xm_transport_ucx_params_t params = XM_TRANSPORT_UCX_PARAMS_INIT;
    const char *given = xm_config_string(XM_CONFIG_NICS);
    char chosen[XM_WORKER_NICS_SIZE];
    uint8_t(*callers)[XM_ADDRESS_BYTES] = NULL;
    xm_status_t status =
        xm_worker_nics_choose(&worker->slots, worker->bootstrap, worker->timeout, chosen);

    XM_THEN(status, list_callers(worker, &callers, &params.caller_count));
    if (status < 0) {
        free(callers);
        return status;
    }
    params.callers = (const uint8_t(*)[XM_ADDRESS_BYTES])callers;
    params.host = worker->slots.host_of;
    params.machine = worker->slots.machine_of;
    params.fault_channel = xm_bootstrap_fd(worker->bootstrap) >= 0;
    params.spin = worker->spin;
    params.timeout = worker->timeout;
    params.counters = worker->counters;
    params.job_rank = worker->job_rank;
    params.failover = xm_config_choice(XM_CONFIG_FAILOVER) == 0;
    params.rail_timeout = worker->interval > 0.0 ? 1.5 * worker->interval : params.rail_timeout;
    params.nics = given[0] != '\0' && given[0] != '^' ? given : chosen;
    status = xm_transport_ucx_create(worker->bootstrap, &params, &worker->transport);
    free(callers);
    return tell_rails(worker, params.nics, status);
}

xm_status_t xm_worker_open_transport(xm_worker_t *worker)
{
    return worker->verbs ? open_verbs(worker) : open_ucx(worker);
}
