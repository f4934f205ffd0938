/* SPDX-License-Identifier: Apache-2.0 */
/* A TCP bootstrap without a rendezvous, and what a bootstrap's connections know of addresses. After
 * a shrink the survivors have met by way of their detectors (fault/regroup.c), which also make the
 * connections of the relay, as they do in place of those that end. */
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "comm/job/bootstrap_tcp.h"

/* The ranks have proved who they are, so there is no second handshake and no secret. */
xm_status_t xm_bootstrap_adopt(int rank, int size, const xm_bootstrap_slot_t *slots,
                               const xm_bootstrap_guard_t *guard, xm_bootstrap_t **bootstrap)
{
    const xm_job_secret_t none = {0};
    xm_bootstrap_tcp_t *self = NULL;
    xm_status_t status = xm_bootstrap_tcp_create(rank, size, &none, &self);

    for (int other = 0; status == XM_OK && other < self->peer_count; ++other) {
        if (other != rank) {
            self->peers[other].host = strdup(slots[other].host);
            self->peers[other].pid = slots[other].pid;
        }
    }
    if (status == XM_OK && guard != NULL) {
        status = xm_bootstrap_set_guard(&self->base, guard);
    }
    if (status < 0) {
        if (self != NULL) {
            xm_bootstrap_destroy(&self->base);
        }
        return status;
    }
    *bootstrap = &self->base;
    return XM_OK;
}

/* The address at which others reach this rank, as its own end of the connections tells it. A
 * loopback address is replaced by any other one: ranks on other hosts could do nothing with it. */
xm_status_t xm_bootstrap_own_address(const xm_bootstrap_t *bootstrap,
                                     struct sockaddr_storage *address)
{
    const xm_bootstrap_tcp_t *self = (const xm_bootstrap_tcp_t *)bootstrap;
    bool found = false;

    for (int rank = 0; rank < self->peer_count; ++rank) {
        struct sockaddr_storage here = {0};
        socklen_t length = sizeof(here);

        if (self->peers[rank].link.fd >= 0 &&
            getsockname(self->peers[rank].link.fd, (struct sockaddr *)&here, &length) == 0 &&
            (!found || xm_address_is_loopback(address))) {
            *address = here;
            found = true;
        }
    }
    return found
               ? XM_OK
               : xm_error_set(XM_ERR_UNSUPPORTED,
                              "rank %d has no connection that tells its address", bootstrap->rank);
}
