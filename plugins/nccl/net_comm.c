/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The connections of NCCL and the messages on them, in terms of pipes (plugins/nccl/pipe/pipe.h).
 * NCCL's calls must not block: connecting and accepting return without a connection until
 * there is one, and are repeated.
 */
#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "comm/base.h"
#include "plugins/nccl/net_events.h"
#include "plugins/nccl/plugin_log.h"

/* One end of a connection. */
typedef struct net_comm {
    xm_pipe_t *pipe;
    const net_device_t *device;
    bool announced;       /* what carries it has been told */
    pthread_mutex_t lock; /* of the events */
    net_events_list_t events;
} net_comm_t;

typedef struct net_listener {
    xm_pipe_listener_t *listener;
    const net_device_t *device;
} net_listener_t;

/*
 * A connection that is being made. NCCL calls connect with the same handle until it is;
 * the bytes of the handle that pipes leave to us hold the ticket meanwhile. Callers that
 * give a fresh copy each time are recognised by where and what the handle is.
 */
typedef struct pending {
    struct pending *next;
    uint64_t ticket;
    const void *address;
    int device;
    int64_t touched; /* when NCCL asked for it last */
    uint8_t handle[XM_PIPE_HANDLE_USED];
    xm_pipe_t *pipe;
} pending_t;

_Static_assert((int)NCCL_HANDLE_SIZE == (int)XM_PIPE_HANDLE_SIZE, "handles are of one size");

static struct {
    pthread_mutex_t lock;
    pending_t *first;
    uint64_t tickets;
} pendings = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* Takes the pipe over, also on failure. */
static net_comm_t *make_comm(xm_pipe_t *pipe, const net_device_t *device)
{
    net_comm_t *comm = calloc(1, sizeof(*comm));

    if (comm == NULL || pthread_mutex_init(&comm->lock, NULL) != 0) {
        (void)XM_NO_MEMORY("a connection");
        xm_pipe_destroy(pipe);
        free(comm);
        return NULL;
    }
    comm->pipe = pipe;
    comm->device = device;
    return comm;
}

/* A listener has the NICs of its device, and so have the connections that it accepts. */
nccl_result_t net_listen(int device, void *handle, void **comm)
{
    const net_device_t *nic = net_device(device);
    xm_pipe_params_t params = {0};
    net_listener_t *self;
    xm_status_t status;

    *comm = NULL;
    if (nic == NULL) {
        return NCCL_INVALID_ARGUMENT;
    }
    self = calloc(1, sizeof(*self));
    if (self == NULL) {
        return plugin_fail(xm_error_set(XM_ERR_NO_MEMORY, "no memory"), "listen");
    }
    params.nics = nic->nics;
    self->device = nic;
    status = xm_pipe_listen(&params, handle, &self->listener);
    if (status < 0) {
        free(self);
        return plugin_fail(status, "listen");
    }
    *comm = self;
    return NCCL_OK;
}

/* How long an unfinished connection is kept. NCCL asks again and again; a connection that
 * it does not ask for any more belongs to a communicator that was given up. */
static const int64_t forgotten_ns = INT64_C(60) * 1000000000;

/* Takes what nobody asks for any more off the list; the lock is held, and the caller
 * frees it without. */
static pending_t *take_forgotten(void)
{
    pending_t **link = &pendings.first, *forgotten = NULL;
    int64_t oldest = xm_clock_ns() - forgotten_ns;

    while (*link != NULL) {
        pending_t *pending = *link;

        if (pending->touched < oldest) {
            *link = pending->next;
            pending->next = forgotten;
            forgotten = pending;
        } else {
            link = &pending->next;
        }
    }
    return forgotten;
}

static void free_pendings(pending_t *list)
{
    while (list != NULL) {
        pending_t *next = list->next;

        xm_pipe_destroy(list->pipe);
        free(list);
        list = next;
    }
}

/* Takes the connection of a handle off the list; NULL means that it is new. */
static pending_t *take_pending(const uint8_t *handle, int device)
{
    uint64_t ticket;
    pending_t **link = &pendings.first, *found, *forgotten;

    memcpy(&ticket, handle + XM_PIPE_HANDLE_USED, sizeof(ticket));
    (void)pthread_mutex_lock(&pendings.lock);
    while (*link != NULL &&
           ((*link)->device != device ||
            memcmp((*link)->handle, handle, XM_PIPE_HANDLE_USED) != 0 ||
            (ticket != 0 ? (*link)->ticket != ticket : (*link)->address != handle))) {
        link = &(*link)->next;
    }
    found = *link;
    if (found != NULL) {
        *link = found->next;
    }
    forgotten = take_forgotten();
    (void)pthread_mutex_unlock(&pendings.lock);
    free_pendings(forgotten);
    return found;
}

/* Puts a connection back on the list and its ticket into the handle. */
static void keep_pending(pending_t *pending, uint8_t *handle)
{
    (void)pthread_mutex_lock(&pendings.lock);
    if (pending->ticket == 0) {
        pending->ticket = ++pendings.tickets;
    }
    pending->address = handle;
    pending->touched = xm_clock_ns();
    pending->next = pendings.first;
    pendings.first = pending;
    (void)pthread_mutex_unlock(&pendings.lock);
    memcpy(handle + XM_PIPE_HANDLE_USED, &pending->ticket, sizeof(pending->ticket));
}

/* The handle is copied, since the caller's may move. */
static xm_status_t begin_connect(const uint8_t *handle, int device, const net_device_t *nic,
                                 pending_t **pending)
{
    xm_pipe_params_t params = {0};
    pending_t *self = calloc(1, sizeof(*self));
    xm_status_t status;

    XM_NEED_MEMORY(self, "a connection");
    self->device = device;
    memcpy(self->handle, handle, sizeof(self->handle));
    params.nics = nic->nics;
    status = xm_pipe_connect(&params, handle, &self->pipe);
    if (status < 0) {
        free(self);
        return status;
    }
    *pending = self;
    return XM_OK;
}

/* Each call takes the connection off the list while it works on it, so the lock is not
 * held meanwhile. */
nccl_result_t net_connect(int device, void *handle, void **comm)
{
    const net_device_t *nic = net_device(device);
    pending_t *pending;
    xm_status_t status = XM_OK;

    *comm = NULL;
    if (nic == NULL) {
        return NCCL_INVALID_ARGUMENT;
    }
    pending = take_pending(handle, device);
    if (pending == NULL) {
        status = begin_connect(handle, device, nic, &pending);
        if (status < 0) {
            return plugin_fail(status, "connect");
        }
    }
    status = xm_pipe_advance(pending->pipe);
    if (status == XM_IN_PROGRESS) {
        keep_pending(pending, handle);
        return NCCL_OK;
    }
    /* The handle is given back as it came, without the ticket. */
    memset((uint8_t *)handle + XM_PIPE_HANDLE_USED, 0, sizeof(pending->ticket));
    if (status == XM_OK) {
        *comm = make_comm(pending->pipe, nic);
        status = *comm != NULL ? XM_OK : XM_ERR_NO_MEMORY;
    } else {
        xm_pipe_destroy(pending->pipe);
    }
    free(pending);
    return status == XM_OK ? NCCL_OK : plugin_fail(status, "connect");
}

/* Called when nothing else runs any more, so without the lock. */
void net_forget_pending(void)
{
    free_pendings(pendings.first);
    pendings.first = NULL;
}

nccl_result_t net_accept(void *listener, void **comm)
{
    net_listener_t *self = listener;
    xm_pipe_t *pipe;
    xm_status_t status = xm_pipe_accept(self->listener, &pipe);

    *comm = NULL;
    if (status == XM_IN_PROGRESS) {
        return NCCL_OK;
    }
    if (status == XM_OK) {
        *comm = make_comm(pipe, self->device);
        status = *comm != NULL ? XM_OK : XM_ERR_NO_MEMORY;
    }
    return status == XM_OK ? NCCL_OK : plugin_fail(status, "accept");
}

/* Device memory is not offered, so NCCL stages it through host memory by itself. */
nccl_result_t net_register(void *comm, void *data, size_t size, int type, void **mhandle)
{
    xm_memory_t *memory = NULL;
    xm_status_t status = XM_OK;

    *mhandle = NULL;
    if (type != NCCL_POINTER_HOST) {
        status = XM_UNSUPPORTED("memory of type %d: only host memory (%d) is offered, through "
                                "which NCCL stages what is on a device",
                                type, NCCL_POINTER_HOST);
    } else if (size > 0) {
        status = xm_pipe_register(((net_comm_t *)comm)->pipe, data, size, &memory);
    }
    if (status < 0) {
        return plugin_fail(status, "register memory");
    }
    *mhandle = memory;
    return NCCL_OK;
}

nccl_result_t net_register_dmabuf(void *comm, void *data, size_t size, int type, uint64_t offset,
                                  int fd, void **mhandle)
{
    (void)comm;
    *mhandle = NULL;
    return plugin_fail(XM_UNSUPPORTED("DMA-BUF: descriptor %d, %zu bytes at %p, offset %" PRIu64
                                      ", type %d; the properties of the device do not offer it",
                                      fd, size, data, offset, type),
                       "register memory");
}

/* Memory that was not registered has no handle. */
nccl_result_t net_deregister(void *comm, void *mhandle)
{
    if (mhandle != NULL) {
        xm_pipe_deregister(((net_comm_t *)comm)->pipe, mhandle);
    }
    return NCCL_OK;
}

/* Says once what carries a connection, when UCX knows: after its first message. */
static void announce(net_comm_t *comm)
{
    char path[256], peer[128];

    comm->announced = true;
    plugin_info(NCCL_SUBJECT_INIT | NCCL_SUBJECT_NET,
                "NET/crossmesh: connection to %s over device %s: %s",
                xm_pipe_peer(comm->pipe, peer, sizeof(peer)), comm->device->name,
                xm_pipe_path(comm->pipe, path, sizeof(path)));
}

/* A pipe that cannot take a message now gives no request, and NCCL asks again. */
nccl_result_t net_send(void *comm, void *data, size_t size, int tag, void *mhandle, void *phandle,
                       void **request)
{
    net_comm_t *self = comm;
    xm_pipe_request_t *started = NULL;
    xm_status_t status = xm_pipe_send(self->pipe, data, size, tag, mhandle, &started);

    *request = started;
    if (status < 0) {
        return plugin_fail(status, "send");
    }
    if (started != NULL && phandle != NULL) {
        (void)pthread_mutex_lock(&self->lock);
        net_events_start(&self->events, started, self->device, true, &size, &phandle);
        (void)pthread_mutex_unlock(&self->lock);
    }
    if (started != NULL && !self->announced) {
        announce(self);
    }
    return NCCL_OK;
}

/* A group of receives is one request; NCCL tests it as a whole. */
nccl_result_t net_receive(void *comm, int count, void **data, const size_t *sizes, int *tags,
                          void **mhandles, void **phandles, void **request)
{
    net_comm_t *self = comm;
    xm_memory_t *memories[XM_PIPE_GROUP_MAX] = {NULL};
    xm_pipe_request_t *started = NULL;
    xm_status_t status;

    for (int i = 0; i < count && i < XM_PIPE_GROUP_MAX && mhandles != NULL; ++i) {
        memories[i] = mhandles[i];
    }
    /* The value of *request before the call may be a hint that nobody will ask for the
     * lengths; we always know them. */
    status = xm_pipe_receive(self->pipe, count, data, sizes, tags, memories, &started);
    *request = started;
    if (status < 0) {
        return plugin_fail(status, "receive");
    }
    if (started != NULL && phandles != NULL) {
        (void)pthread_mutex_lock(&self->lock);
        net_events_start(&self->events, started, self->device, false, sizes, phandles);
        (void)pthread_mutex_unlock(&self->lock);
    }
    return NCCL_OK;
}

/* Nothing needs flushing: what has arrived is in the host's memory, where everybody sees
 * it. */
nccl_result_t net_flush(void *comm, int count, void **data, int *sizes, void **mhandles,
                        void **request)
{
    (void)comm;
    (void)count;
    (void)data;
    (void)sizes;
    (void)mhandles;
    *request = NULL;
    return NCCL_OK;
}

/* The events are taken out of the request before it is tested, because a request that is
 * done is gone. */
nccl_result_t net_test(void *request, int *done, int *sizes)
{
    xm_pipe_request_t *self = request;
    size_t lengths[XM_PIPE_GROUP_MAX];
    int count = xm_pipe_request_count(self);
    net_events_t *events = xm_pipe_request_user(self);
    xm_status_t status = xm_pipe_test(self, lengths);

    *done = status != XM_IN_PROGRESS;
    if (status == XM_IN_PROGRESS) {
        return NCCL_OK;
    }
    if (events != NULL) {
        net_events_stop(events, status == XM_OK ? lengths : NULL);
    }
    if (status < 0) {
        *done = 0;
        return plugin_fail(status, "a message failed");
    }
    for (int i = 0; i < count && sizes != NULL; ++i) {
        sizes[i] = (int)lengths[i];
    }
    return NCCL_OK;
}

static nccl_result_t close_comm(net_comm_t *comm)
{
    if (comm != NULL) {
        net_events_stop_all(&comm->events);
        xm_pipe_destroy(comm->pipe);
        (void)pthread_mutex_destroy(&comm->lock);
        free(comm);
    }
    return NCCL_OK;
}

nccl_result_t net_close_send(void *comm)
{
    return close_comm(comm);
}

nccl_result_t net_close_receive(void *comm)
{
    return close_comm(comm);
}

nccl_result_t net_close_listen(void *comm)
{
    net_listener_t *self = comm;

    if (self != NULL) {
        xm_pipe_listener_destroy(self->listener);
        free(self);
    }
    return NCCL_OK;
}
