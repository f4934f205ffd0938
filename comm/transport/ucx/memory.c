/* The UCX transport: memory that is registered with all rails. */
#include <stdlib.h>

#include "comm/transport/ucx/transport_ucx_private.h"

static void unmap(xm_ucx_transport_t *self, xm_memory_t *memory)
{
    for (int rail = 0; rail < XM_UCX_RAIL_COUNT; ++rail) {
        if (memory->handle[rail] != NULL) {
            (void)ucp_mem_unmap(self->rails[rail].context, memory->handle[rail]);
            memory->handle[rail] = NULL;
        }
    }
}

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
        return xm_error_set(XM_ERR_INVALID_ARGUMENT, "rank %d: register %zu bytes at %p",
                            self->base.rank, length, address);
    }
    made = calloc(1, sizeof(*made));
    if (made == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "no memory for a registration");
    }
    for (int rail = 0; rail < XM_UCX_RAIL_COUNT; ++rail) {
        ucs_status_t status = UCS_OK;

        if (self->rails[rail].open) {
            status = ucp_mem_map(self->rails[rail].context, &params, &made->handle[rail]);
        }
        if (status != UCS_OK) {
            made->handle[rail] = NULL;
            unmap(self, made);
            free(made);
            return xm_error_set(XM_ERR_NO_MEMORY, "rank %d: UCX cannot register %zu bytes: %s",
                                self->base.rank, length, ucs_status_string(status));
        }
    }
    xm_list_append(&self->memory, &made->link);
    *memory = made;
    return XM_OK;
}

void xm_ucx_memory_deregister(xm_transport_t *transport, xm_memory_t *memory)
{
    if (memory != NULL) {
        unmap((xm_ucx_transport_t *)transport, memory);
        xm_list_remove(&memory->link);
        free(memory);
    }
}
