/* SPDX-License-Identifier: Apache-2.0 */
/* The completion queue and the slots of a port. One completion queue serves all peers of a
 * port, so progress polls once for each port and not for each peer; it is as large as
 * everything that can be posted, because a queue that overflows destroys the connections. Slots
 * come from mmap, page-aligned, since registration pins whole pages. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "comm/transport/verbs/transport_verbs_private.h"

static uint8_t *pages(size_t size)
{
    void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    return memory != MAP_FAILED ? memory : NULL;
}

/* Equips a port once all offers are known, which say how large the peers' slots are. On failure
 * the parts made so far are left to xm_verbs_strip_port() in destroy. */
xm_status_t xm_verbs_equip_port(xm_verbs_transport_t *self, xm_verbs_port_t *port, size_t send_size)
{
    size_t peers = (size_t)self->base.base.size - (self->base.base.size > 1);
    size_t entries = peers * (self->offer.slots + XM_VERBS_QUEUE);

    if (entries > (size_t)port->max_cqe) {
        /* A queue that could overflow is refused now, with a sentence, instead of failing under
         * load. */
        return XM_UNSUPPORTED(
            "rank %d: %s has completion queues of at most %d entries, %d ranks need %zu",
            self->base.base.rank, port->offer.name, port->max_cqe, self->base.base.size, entries);
    }
    /* Completions of sends and receives of all peers go into this one. */
    port->cq = ibv_create_cq(port->context, (int)entries, NULL, port->channel, 0);
    if (port->cq == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY,
                            "rank %d: %s cannot have a completion queue of %zu entries: %s",
                            self->base.base.rank, port->offer.name, entries, strerror(errno));
    }
    port->send_size = send_size;
    port->ring_size = peers * self->offer.slots * self->offer.slot_size;
    port->ring = pages(port->ring_size);
    port->sends = pages(XM_VERBS_SENDS * send_size);
    port->free_sends = calloc(XM_VERBS_SENDS, sizeof(*port->free_sends));
    if (port->ring == NULL || port->sends == NULL || port->free_sends == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "rank %d: no memory for %zu bytes of slots",
                            self->base.base.rank, port->ring_size + XM_VERBS_SENDS * send_size);
    }
    while (port->free_send_count < XM_VERBS_SENDS) {
        port->free_sends[port->free_send_count] = port->free_send_count;
        ++port->free_send_count;
    }
    /* Receive slots are written by the device, send slots only read. */
    port->ring_mr = xm_verbs_pin(self, port, port->ring, port->ring_size, IBV_ACCESS_LOCAL_WRITE);
    if (port->ring_mr != NULL) {
        port->sends_mr = xm_verbs_pin(self, port, port->sends, XM_VERBS_SENDS * send_size, 0);
    }
    return port->sends_mr != NULL ? XM_OK : XM_ERR_NO_MEMORY;
}

/* Takes the slots from a port. Regions are given back before their memory is unmapped. */
void xm_verbs_strip_port(xm_verbs_port_t *port)
{
    if (port->sends_mr != NULL) {
        (void)ibv_dereg_mr(port->sends_mr);
    }
    if (port->ring_mr != NULL) {
        (void)ibv_dereg_mr(port->ring_mr);
    }
    if (port->sends != NULL) {
        (void)munmap(port->sends, XM_VERBS_SENDS * port->send_size);
    }
    if (port->ring != NULL) {
        (void)munmap(port->ring, port->ring_size);
    }
    free(port->free_sends);
}
