/* SPDX-License-Identifier: Apache-2.0 */
/* Registered memory of the UCX transport. A handle of UCX belongs to one context, and each rail
 * has its own, so a registration is one handle for each open rail; a message then finds that of
 * the rail it takes. All registrations are in a ring, because UCX aborts the process if a
 * context is cleaned up while one of its regions is still mapped, and callers do forget them. */
#include <stdlib.h>

#include "comm/transport/ucx/transport_ucx_private.h"

/* Handles of rails that were not open are NULL. UCX's answer is ignored, since memory that is to go
 * cannot be kept because of it. */
static void unmap(xm_ucx_transport_t *self, xm_memory_t *memory)
{
    for (int rail = 0; rail < XM_UCX_RAIL_COUNT; ++rail) {
        if (memory->handle[rail] != NULL) {
            (void)ucp_mem_unmap(self->rails[rail].context, memory->handle[rail]);
            memory->handle[rail] = NULL;
        }
    }
}

/* Registers with all rails or with none, so that no message finds a rail without a handle. */
xm_status_t xm_ucx_memory_register(xm_transport_t *transport, void *address, size_t length,
                                   xm_memory_t **memory)
{
    xm_ucx_transport_t *self = (xm_ucx_transport_t *)transport;
    ucp_mem_map_params_t params = {.field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS |
                                                 UCP_MEM_MAP_PARAM_FIELD_LENGTH,
                                   .address = address,
                                   .length = length};
    xm_memory_t *made;

    if (address == NULL || length == 0) {
        return XM_INVALID("rank %d: register %zu bytes at %p", self->base.base.rank, length,
                          address);
    }
    made = calloc(1, sizeof(*made));
    XM_NEED_MEMORY(made, "a registration");
    /* A failure on one rail undoes those before; the caller gets one sentence with UCX's reason. */
    for (int rail = 0; rail < XM_UCX_RAIL_COUNT; ++rail) {
        ucs_status_t status = UCS_OK;

        if (self->rails[rail].open) {
            status = ucp_mem_map(self->rails[rail].context, &params, &made->handle[rail]);
        }
        /* UCX fails here mostly for want of lockable memory, which is what the status tells. */
        if (status != UCS_OK) {
            made->handle[rail] = NULL;
            unmap(self, made);
            free(made);
            return xm_error_set(XM_ERR_NO_MEMORY, "rank %d: UCX cannot register %zu bytes: %s",
                                self->base.base.rank, length, ucs_status_string(status));
        }
    }
    /* The ring lets destroy find what its callers have forgotten. */
    xm_list_append(&self->memory, &made->link);
    *memory = made;
    return XM_OK;
}

/* Takes the registration back; NULL is allowed, as for free(). */
void xm_ucx_memory_deregister(xm_transport_t *transport, xm_memory_t *memory)
{
    if (memory != NULL) {
        unmap((xm_ucx_transport_t *)transport, memory);
        /* It leaves the ring after it is unmapped, so destroy never meets a region twice. */
        xm_list_remove(&memory->link);
        free(memory);
    }
}
