/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tables that NCCL looks for, v6 to v12: what each version calls, in terms of net.h.
 * NCCL takes the newest version that it knows; older ones are thin wrappers that widen
 * types and drop arguments.
 */
#include <string.h>

#include "plugins/nccl/net.h"
#include "plugins/nccl/plugin_log.h"

#define EXPORT __attribute__((visibility("default")))

/* No offload to a device is offered, so *offload stays as it is. */
static nccl_result_t connect_v7(int device, void *handle, void **comm, void **offload)
{
    (void)offload;
    return net_connect(device, handle, comm);
}

static nccl_result_t accept_v7(void *listener, void **comm, void **offload)
{
    (void)offload;
    return net_accept(listener, comm);
}

/* The configuration carries the traffic class, which is UCX's to set
 * (UCX_IB_TRAFFIC_CLASS). */
static nccl_result_t connect_v10(int device, nccl_config_t *config, void *handle, void **comm,
                                 void **offload)
{
    (void)config;
    (void)offload;
    return net_connect(device, handle, comm);
}

static nccl_result_t listen_v11(void *context, int device, void *handle, void **comm)
{
    (void)context;
    return net_listen(device, handle, comm);
}

static nccl_result_t connect_v11(void *context, int device, void *handle, void **comm,
                                 void **offload)
{
    (void)context;
    (void)offload;
    return net_connect(device, handle, comm);
}

static nccl_result_t init_v6(nccl_log_t log)
{
    return net_init(log, NULL);
}

/* Communicators share all there is, so their contexts are one. NCCL finalizes what failed
 * as well, and may do so twice. */
static char everybody;

static nccl_result_t init_v11(void **context, uint64_t job, nccl_config_t *config, nccl_log_t log,
                              nccl_profiler_t profiler)
{
    (void)job;
    (void)config;
    *context = &everybody;
    return net_init(log, profiler);
}

/* There is nothing to give up by communicator. */
static nccl_result_t finalize_v11(void *context)
{
    (void)context;
    return NCCL_OK;
}

/* Lengths were ints up to v8; negative ones would become huge. Nothing is made of those. */
static nccl_result_t refuse(int size, const char *what, void **made)
{
    *made = NULL;
    return plugin_fail(XM_INVALID("%d bytes", size), what);
}

static nccl_result_t register_v6(void *comm, void *data, int size, int type, void **mhandle)
{
    if (size < 0) {
        return refuse(size, "register memory", mhandle);
    }
    return net_register(comm, data, (size_t)size, type, mhandle);
}

static nccl_result_t send_v6(void *comm, void *data, int size, int tag, void *mhandle,
                             void **request)
{
    if (size < 0) {
        return refuse(size, "send", request);
    }
    return net_send(comm, data, (size_t)size, tag, mhandle, NULL, request);
}

static nccl_result_t receive_v6(void *comm, int count, void **data, int *sizes, int *tags,
                                void **mhandles, void **request)
{
    size_t wide[XM_PIPE_GROUP_MAX] = {0};

    for (int i = 0; i < count && i < XM_PIPE_GROUP_MAX; ++i) {
        if (sizes[i] < 0) {
            return refuse(sizes[i], "receive", request);
        }
        wide[i] = (size_t)sizes[i];
    }
    return net_receive(comm, count, data, wide, tags, mhandles, NULL, request);
}

/* From v9 on, lengths are size_t. */
static nccl_result_t send_v9(void *comm, void *data, size_t size, int tag, void *mhandle,
                             void **request)
{
    return net_send(comm, data, size, tag, mhandle, NULL, request);
}

static nccl_result_t receive_v9(void *comm, int count, void **data, size_t *sizes, int *tags,
                                void **mhandles, void **request)
{
    return net_receive(comm, count, data, sizes, tags, mhandles, NULL, request);
}

static nccl_result_t receive_v10(void *comm, int count, void **data, size_t *sizes, int *tags,
                                 void **mhandles, void **phandles, void **request)
{
    return net_receive(comm, count, data, sizes, tags, mhandles, phandles, request);
}

/* Virtual devices and properties. The members of each version's structure have another
 * limit. */

static nccl_result_t make_virtual_v9(int *device, nccl_virtual_v9_t *members)
{
    if (members->count < 1 || members->count > NCCL_MEMBERS_MAX) {
        return NCCL_INVALID_ARGUMENT;
    }
    return net_make_virtual(device, members->count, members->devices);
}

static nccl_result_t make_virtual_v12(int *device, nccl_virtual_v12_t *members)
{
    if (members->count < 1 || members->count > NCCL_MEMBERS_MAX_V12) {
        return NCCL_INVALID_ARGUMENT;
    }
    return net_make_virtual(device, members->count, members->devices);
}

/* Fills what all versions have of a device's properties, under the same names. */
#define FILL(properties, nic)                                                                      \
    do {                                                                                           \
        (properties)->name = (nic)->name;                                                          \
        (properties)->pci_path = (nic)->pci_path;                                                  \
        (properties)->guid = (nic)->guid;                                                          \
        (properties)->pointers = NCCL_POINTER_HOST;                                                \
        (properties)->speed = (nic)->speed;                                                        \
        (properties)->port = (nic)->port;                                                          \
        (properties)->latency = (nic)->latency;                                                    \
        (properties)->max_comms = NET_MAX_COMMS;                                                   \
        (properties)->max_receives = NET_MAX_RECEIVES;                                             \
    } while (0)

/* Fills the members of a version whose list is a prefix of that of a virtual device. */
#define FILL_MEMBERS(properties, nic, most)                                                        \
    do {                                                                                           \
        (properties)->members.count = (nic)->count < (most) ? (nic)->count : (most);               \
        memcpy((properties)->members.devices, (nic)->members,                                      \
               sizeof((properties)->members.devices));                                             \
        (properties)->max_p2p_bytes = NET_MAX_BYTES;                                               \
        (properties)->max_collective_bytes = NET_MAX_BYTES;                                        \
    } while (0)

/*
 * Defines the function of one version; @p more fills in what v6 does not have. Offload is
 * of type 0, version 0, which means none. regIsGlobal (registrations belong to a
 * connection) and forceFlush are zero too.
 */
#define PROPERTIES(version, more)                                                                  \
    static nccl_result_t properties_##version(int device,                                          \
                                              nccl_properties_##version##_t *properties)           \
    {                                                                                              \
        const net_device_t *nic = net_device(device);                                              \
                                                                                                   \
        memset(properties, 0, sizeof(*properties));                                                \
        if (nic == NULL) {                                                                         \
            return NCCL_INVALID_ARGUMENT;                                                          \
        }                                                                                          \
        FILL(properties, nic);                                                                     \
        more;                                                                                      \
        return NCCL_OK;                                                                            \
    }

#define SINCE_V11(most)                                                                            \
    FILL_MEMBERS(properties, nic, most);                                                           \
    properties->max_multi_request = 1

PROPERTIES(v6, (void)0)
PROPERTIES(v7, (void)0)
PROPERTIES(v8, (void)0)
PROPERTIES(v9, FILL_MEMBERS(properties, nic, NCCL_MEMBERS_MAX))
PROPERTIES(v11, SINCE_V11(NCCL_MEMBERS_MAX))
PROPERTIES(v12, SINCE_V11(NCCL_MEMBERS_MAX_V12); properties->rail = NCCL_ID_UNDEFINED;
           properties->plane = NCCL_ID_UNDEFINED)

/* The entries that every table has. */
#define COMMON                                                                                     \
    .name = NET_NAME, .devices = net_devices, .register_dmabuf = net_register_dmabuf,              \
    .deregister_memory = net_deregister, .flush = net_flush, .test = net_test,                     \
    .close_send = net_close_send, .close_receive = net_close_receive,                              \
    .close_listen = net_close_listen

/* The entries that several versions have in common. */
#define MESSAGES_V6 .init = init_v6, .send = send_v6, .receive = receive_v6
#define OPEN_V7     .listen = net_listen, .connect = connect_v7, .accept = accept_v7
#define MOVE_V10                                                                                   \
    .accept = accept_v7, .register_memory = net_register, .send = net_send, .receive = receive_v10
#define OPEN_V11                                                                                   \
    .init = init_v11, .listen = listen_v11, .connect = connect_v11, .finalize = finalize_v11

/* Offload and attributes are not offered: those entries stay NULL, which NCCL checks. */
EXPORT extern const nccl_net_v6_t ncclNetPlugin_v6;
EXPORT extern const nccl_net_v7_t ncclNetPlugin_v7;
EXPORT extern const nccl_net_v8_t ncclNetPlugin_v8;
EXPORT extern const nccl_net_v9_t ncclNetPlugin_v9;
EXPORT extern const nccl_net_v10_t ncclNetPlugin_v10;
EXPORT extern const nccl_net_v11_t ncclNetPlugin_v11;
EXPORT extern const nccl_net_v12_t ncclNetPlugin_v12;

const nccl_net_v6_t ncclNetPlugin_v6 = {COMMON,
                                        MESSAGES_V6,
                                        .properties = properties_v6,
                                        .listen = net_listen,
                                        .connect = net_connect,
                                        .accept = net_accept,
                                        .register_memory = register_v6};

const nccl_net_v7_t ncclNetPlugin_v7 = {COMMON, MESSAGES_V6, OPEN_V7, .properties = properties_v7,
                                        .register_memory = register_v6};

const nccl_net_v8_t ncclNetPlugin_v8 = {COMMON, MESSAGES_V6, OPEN_V7, .properties = properties_v8,
                                        .register_memory = net_register};

const nccl_net_v9_t ncclNetPlugin_v9 = {COMMON,
                                        OPEN_V7,
                                        .init = init_v6,
                                        .properties = properties_v9,
                                        .register_memory = net_register,
                                        .send = send_v9,
                                        .receive = receive_v9,
                                        .make_virtual = make_virtual_v9};

const nccl_net_v10_t ncclNetPlugin_v10 = {COMMON,
                                          MOVE_V10,
                                          .init = net_init,
                                          .properties = properties_v9,
                                          .listen = net_listen,
                                          .connect = connect_v10,
                                          .make_virtual = make_virtual_v9};

const nccl_net_v11_t ncclNetPlugin_v11 = {COMMON, MOVE_V10, OPEN_V11, .properties = properties_v11,
                                          .make_virtual = make_virtual_v9};

const nccl_net_v12_t ncclNetPlugin_v12 = {COMMON, MOVE_V10, OPEN_V11, .properties = properties_v12,
                                          .make_virtual = make_virtual_v12};
