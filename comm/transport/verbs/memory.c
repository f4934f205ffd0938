/* SPDX-License-Identifier: Apache-2.0 */
/* Registered memory of the verbs transport. The caller's registrations live until they are
 * given back. Buffers of operations without one are registered from post to end, and only
 * operations on exactly the same bytes share that: there is no cache beyond, since a cache has
 * to know when memory is unmapped, and hooks into the allocator are what makes such caches
 * fail. Each registration is one region for each port, because protection domains belong to
 * devices. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "comm/transport/verbs/transport_verbs_private.h"

static const unsigned writable = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;

/* Makes the sentence for a registration that failed. Most of them fail because of the limit on
 * locked memory, so the limit is part of the sentence. */
static xm_status_t pin_error(const xm_verbs_transport_t *self, const xm_verbs_port_t *port,
                             size_t length, int error)
{
    struct rlimit limit = {.rlim_cur = RLIM_INFINITY};
    char hint[128] = "";

    (void)getrlimit(RLIMIT_MEMLOCK, &limit);
    /* Without a limit, or with another error, the hint would mislead. */
    if (limit.rlim_cur != RLIM_INFINITY && (error == ENOMEM || error == EAGAIN)) {
        (void)snprintf(hint, sizeof(hint),
                       "; this process may lock %" PRIu64 " bytes (ulimit -l is %" PRIu64 ")",
                       (uint64_t)limit.rlim_cur, (uint64_t)limit.rlim_cur / 1024);
    }
    return xm_error_set(error == EFAULT || error == EINVAL ? XM_ERR_INVALID_ARGUMENT
                                                           : XM_ERR_NO_MEMORY,
                        "rank %d: %s cannot register %zu bytes: %s%s", self->base.base.rank,
                        port->offer.name, length, strerror(error), hint);
}

struct ibv_mr *xm_verbs_pin(const xm_verbs_transport_t *self, const xm_verbs_port_t *port,
                            void *address, size_t length, unsigned access)
{
    struct ibv_mr *mr = ibv_reg_mr(port->pd, address, length, access);

    if (mr == NULL) {
        (void)pin_error(self, port, length, errno);
    }
    return mr;
}

/* Takes the memory off its ring and gives all its regions back; works on one that is registered
 * with some ports only. */
static void unpin(xm_verbs_transport_t *self, xm_memory_t *memory)
{
    for (int i = 0; i < self->port_count; ++i) {
        if (memory->mr[i] != NULL) {
            (void)ibv_dereg_mr(memory->mr[i]);
        }
    }
    xm_list_remove(&memory->link);
    free(memory);
}

/* Registers with all ports or with none. A buffer that is only read gets no remote rights, so
 * no peer can write into a send buffer by mistake. */
static xm_status_t pin(xm_verbs_transport_t *self, void *address, size_t length, bool written,
                       xm_list_t *list, xm_memory_t **memory)
{
    xm_memory_t *made = calloc(1, sizeof(*made));

    if (made == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "rank %d: no memory for a registration",
                            self->base.base.rank);
    }
    made->start = (uintptr_t)address;
    made->length = length;
    made->written = written;
    /* The registration is on the ring before its regions are made, so that a failure can be
     * undone by unpin(). */
    xm_list_append(list, &made->link);
    for (int i = 0; i < self->port_count; ++i) {
        made->mr[i] = ibv_reg_mr(self->ports[i].pd, address, length, written ? writable : 0);
        if (made->mr[i] == NULL) {
            xm_status_t status = pin_error(self, &self->ports[i], length, errno);

            unpin(self, made);
            return status;
        }
    }
    *memory = made;
    return XM_OK;
}

xm_status_t xm_verbs_memory_register(xm_transport_t *transport, void *address, size_t length,
                                     xm_memory_t **memory)
{
    xm_verbs_transport_t *self = (xm_verbs_transport_t *)transport;

    if (address == NULL || length == 0) {
        return XM_INVALID("rank %d: register %zu bytes at %p", self->base.base.rank, length,
                          address);
    }
    return pin(self, address, length, true, &self->memory, memory);
}

void xm_verbs_memory_deregister(xm_transport_t *transport, xm_memory_t *memory)
{
    if (memory != NULL) {
        unpin((xm_verbs_transport_t *)transport, memory);
    }
}

/* Registers the buffer of an operation, or joins another that has it registered. */
xm_status_t xm_verbs_memory_hold(xm_rails_transport_t *transport, void *address, size_t length,
                                 bool written, xm_memory_t **memory)
{
    xm_verbs_transport_t *self = (xm_verbs_transport_t *)transport;
    uintptr_t start = (uintptr_t)address;
    xm_status_t status;

    if (*memory != NULL) {
        xm_count_registration(self->base.base.counters, true);
        return XM_OK;
    }
    /* Only exactly the same bytes are shared: then all of them belong to an operation in
     * flight. Of a larger registration the rest may have been freed by its owner and mapped
     * elsewhere since. */
    for (xm_list_t *at = xm_list_first(&self->temporary); at != NULL;
         at = xm_list_next(&self->temporary, at)) {
        xm_memory_t *held = xm_list_entry(at, xm_memory_t, link);

        if (held->start == start && held->length == length && held->written == written) {
            ++held->users;
            xm_count_registration(self->base.base.counters, true);
            *memory = held;
            return XM_OK;
        }
    }
    xm_count_registration(self->base.base.counters, false);
    status = pin(self, address, length, written, &self->temporary, memory);
    if (status == XM_OK) {
        (*memory)->users = 1;
    }
    return status;
}

/* The last user unpins: nothing stays registered that no operation uses. */
void xm_verbs_memory_release(xm_rails_transport_t *transport, xm_memory_t *memory)
{
    if (--memory->users == 0) {
        unpin((xm_verbs_transport_t *)transport, memory);
    }
}

/* At the end: frees what callers have forgotten, too. */
void xm_verbs_memory_forget(xm_verbs_transport_t *self)
{
    xm_list_t *lists[] = {&self->memory, &self->temporary};

    for (int i = 0; i < 2; ++i) {
        while (!xm_list_is_empty(lists[i])) {
            unpin(self, xm_list_entry(lists[i]->next, xm_memory_t, link));
        }
    }
}
