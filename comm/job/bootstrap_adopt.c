/* SPDX-License-Identifier: Apache-2.0 */
/* A TCP bootstrap over connections that exist already, and what its connections know of addresses.
 * After a shrink the survivors have met over sockets of their own (regroup.c), so the relay is
 * built from those and no port is needed. The ranks have proved who they are by then, so there is
 * no second handshake and no secret. */
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "comm/job/bootstrap_tcp.h"

/* Takes every descriptor over, whatever happens: after a failure, or for ranks that this one needs
 * no link to, it is closed. On success the relay looks like one that a rendezvous has made. */
xm_status_t xm_bootstrap_adopt(int rank, int size, const xm_bootstrap_slot_t *slots,
                               xm_bootstrap_t **bootstrap)
{
    const xm_job_secret_t none = {0}; /* they have proved who they are */
    xm_bootstrap_tcp_t *self = NULL;
    xm_status_t status = xm_bootstrap_tcp_create(rank, size, &none, &self);

    for (int other = 0; other < size; ++other) {
        xm_bootstrap_peer_t *peer =
            status == XM_OK && other < self->peer_count ? &self->peers[other] : NULL;

        if (peer != NULL && other != rank) {
            peer->host = strdup(slots[other].host);
            peer->pid = slots[other].pid;
        }
        if (peer != NULL && slots[other].fd >= 0) {
            status =
                xm_bootstrap_link_open(&peer->link, slots[other].fd, self->epoll, (uint64_t)other);
            peer->link.expected = 0;
        } else if (slots[other].fd >= 0) {
            (void)close(slots[other].fd);
        }
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
