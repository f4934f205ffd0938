/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/plugins/nccl/net_table.h"

#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/plugins/nccl/real_nccl.h"

static int warnings;
static char last_warning[1024];

static void __attribute__((format(printf, 5, 6)))
take_line(int level, unsigned long subjects, const char *file, int line, const char *format, ...)
{
    char text[1024];
    va_list arguments;

    (void)subjects;
    va_start(arguments, format);
    (void)vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    if (level == NCCL_LOG_WARN) {
        ++warnings;
        memcpy(last_warning, text, sizeof(last_warning));
    }
    if (getenv("TEST_NCCL_LOG") != NULL) {
        (void)fprintf(stderr, "%d %s:%d %s\n", level, file, line, text);
    }
}

int net_table_warnings(void)
{
    return warnings;
}

const char *net_table_last_warning(void)
{
    return last_warning;
}

bool net_table_open(net_table_t *net, int version)
{
    char symbol[32];
    const char *nccl = getenv("NCCL_LIBRARY");

    *net = (net_table_t){.version = version};
    net->library = nccl != NULL ? real_nccl_open(nccl, "crossmesh")
                                : dlopen("libnccl-net-crossmesh.so", RTLD_NOW | RTLD_LOCAL);
    if (net->library == NULL) {
        (void)fprintf(stderr, "%s\n", nccl != NULL ? "NCCL finds no plugin" : dlerror());
        return false;
    }
    if (nccl != NULL) {
        net->table = real_nccl_table(nccl, version, net->library);
        net->version = REAL_NCCL_TABLE;
        return net->table != NULL;
    }
    (void)snprintf(symbol, sizeof(symbol), "ncclNetPlugin_v%d", version);
    net->table = dlsym(net->library, symbol);
    return net->table != NULL;
}

void net_table_close(net_table_t *net)
{
    (void)dlclose(net->library);
    net->library = NULL;
}

/* The table as version `number`. */
#define T(number) ((const nccl_net_v##number##_t *)net->table)

/* Calls the same function of whatever version it is, with the same arguments. */
#define CALL_FROM_11(function, ...)                                                                \
    (net->version == 11 ? T(11)->function(__VA_ARGS__) : T(12)->function(__VA_ARGS__))
#define CALL_ANY(function, ...)                                                                    \
    (net->version == 6    ? T(6)->function(__VA_ARGS__)                                            \
     : net->version == 7  ? T(7)->function(__VA_ARGS__)                                            \
     : net->version == 8  ? T(8)->function(__VA_ARGS__)                                            \
     : net->version == 9  ? T(9)->function(__VA_ARGS__)                                            \
     : net->version == 10 ? T(10)->function(__VA_ARGS__)                                           \
                          : CALL_FROM_11(function, __VA_ARGS__))

const char *net_name(const net_table_t *net)
{
    return T(6)->name; /* the first member of all */
}

nccl_result_t net_start(net_table_t *net, nccl_profiler_t profiler)
{
    nccl_config_t config = {.traffic_class = -1};

    if (net->version < 10) {
        return T(6)->init(take_line);
    }
    return net->version == 10 ? T(10)->init(take_line, profiler)
                              : CALL_FROM_11(init, &net->context, 42, &config, take_line, profiler);
}

nccl_result_t net_finish(net_table_t *net)
{
    return net->version < 11 ? NCCL_OK : CALL_FROM_11(finalize, net->context);
}

nccl_result_t net_count(const net_table_t *net, int *count)
{
    return T(6)->devices(count);
}

#define COPY(from)                                                                                 \
    do {                                                                                           \
        properties->name = (from).name;                                                            \
        properties->pci_path = (from).pci_path;                                                    \
        properties->guid = (from).guid;                                                            \
        properties->pointers = (from).pointers;                                                    \
        properties->speed = (from).speed;                                                          \
        properties->port = (from).port;                                                            \
        properties->latency = (from).latency;                                                      \
        properties->max_comms = (from).max_comms;                                                  \
        properties->max_receives = (from).max_receives;                                            \
    } while (0)
#define COPY_MEMBERS(from)                                                                         \
    do {                                                                                           \
        COPY(from);                                                                                \
        properties->members.count = (from).members.count;                                          \
        memcpy(properties->members.devices, (from).members.devices,                                \
               sizeof((from).members.devices));                                                    \
        properties->max_p2p_bytes = (from).max_p2p_bytes;                                          \
        properties->max_collective_bytes = (from).max_collective_bytes;                            \
    } while (0)

nccl_result_t net_describe(const net_table_t *net, int device, nccl_properties_v12_t *properties)
{
    union {
        nccl_properties_v6_t v6;
        nccl_properties_v7_t v7;
        nccl_properties_v8_t v8;
        nccl_properties_v9_t v9;
        nccl_properties_v11_t v11;
        nccl_properties_v12_t v12;
        char room[512];
    } got;
    nccl_result_t result;

    memset(&got, 0xa5, sizeof(got));
    memset(properties, 0, sizeof(*properties));
    switch (net->version) {
    case 6:
        result = T(6)->properties(device, &got.v6);
        COPY(got.v6);
        break;
    case 7:
        result = T(7)->properties(device, &got.v7);
        COPY(got.v7);
        break;
    case 8:
        result = T(8)->properties(device, &got.v8);
        COPY(got.v8);
        break;
    case 9:
    case 10:
        result = T(9)->properties(device, &got.v9);
        COPY_MEMBERS(got.v9);
        break;
    case 11:
        result = T(11)->properties(device, &got.v11);
        COPY_MEMBERS(got.v11);
        properties->max_multi_request = got.v11.max_multi_request;
        break;
    default:
        result = T(12)->properties(device, properties);
    }
    return result;
}

nccl_result_t net_listen(const net_table_t *net, int device, void *handle, void **comm)
{
    return net->version < 11 ? T(6)->listen(device, handle, comm)
                             : CALL_FROM_11(listen, net->context, device, handle, comm);
}

nccl_result_t net_connect(const net_table_t *net, int device, void *handle, void **comm)
{
    nccl_config_t config = {.traffic_class = -1};
    void *offload = NULL;

    if (net->version == 6) {
        return T(6)->connect(device, handle, comm);
    }
    if (net->version < 10) {
        return T(7)->connect(device, handle, comm, &offload);
    }
    return net->version == 10 ? T(10)->connect(device, &config, handle, comm, &offload)
                              : CALL_FROM_11(connect, net->context, device, handle, comm, &offload);
}

nccl_result_t net_accept(const net_table_t *net, void *listener, void **comm)
{
    void *offload = NULL;

    if (net->version == 6) {
        return T(6)->accept(listener, comm);
    }
    return net->version < 11 ? T(7)->accept(listener, comm, &offload)
                             : CALL_FROM_11(accept, listener, comm, &offload);
}

nccl_result_t net_register(const net_table_t *net, void *comm, void *data, size_t size, int type,
                           void **mhandle)
{
    switch (net->version) {
    case 6:
        return T(6)->register_memory(comm, data, (int)size, type, mhandle);
    case 7:
        return T(7)->register_memory(comm, data, (int)size, type, mhandle);
    case 8:
        return T(8)->register_memory(comm, data, size, type, mhandle);
    case 9:
        return T(9)->register_memory(comm, data, size, type, mhandle);
    case 10:
        return T(10)->register_memory(comm, data, size, type, mhandle);
    default:
        return CALL_FROM_11(register_memory, comm, data, size, type, mhandle);
    }
}

nccl_result_t net_register_dmabuf(const net_table_t *net, void *comm, void *data, size_t size,
                                  void **mhandle)
{
    return CALL_ANY(register_dmabuf, comm, data, size, NCCL_POINTER_CUDA, 0, 3, mhandle);
}

nccl_result_t net_deregister(const net_table_t *net, void *comm, void *mhandle)
{
    return CALL_ANY(deregister_memory, comm, mhandle);
}

nccl_result_t net_send(const net_table_t *net, void *comm, void *data, size_t size, int tag,
                       void *mhandle, void *phandle, void **request)
{
    switch (net->version) {
    case 6:
        return T(6)->send(comm, data, (int)size, tag, mhandle, request);
    case 7:
        return T(7)->send(comm, data, (int)size, tag, mhandle, request);
    case 8:
        return T(8)->send(comm, data, (int)size, tag, mhandle, request);
    case 9:
        return T(9)->send(comm, data, size, tag, mhandle, request);
    case 10:
        return T(10)->send(comm, data, size, tag, mhandle, phandle, request);
    default:
        return CALL_FROM_11(send, comm, data, size, tag, mhandle, phandle, request);
    }
}

nccl_result_t net_receive(const net_table_t *net, void *comm, int count, void **data,
                          const size_t *sizes, int *tags, void **mhandles, void **phandles,
                          void **request)
{
    size_t wide[16];
    int narrow[16];

    for (int i = 0; i < count; ++i) {
        wide[i] = sizes[i];
        narrow[i] = (int)sizes[i];
    }
    switch (net->version) {
    case 6:
        return T(6)->receive(comm, count, data, narrow, tags, mhandles, request);
    case 7:
        return T(7)->receive(comm, count, data, narrow, tags, mhandles, request);
    case 8:
        return T(8)->receive(comm, count, data, narrow, tags, mhandles, request);
    case 9:
        return T(9)->receive(comm, count, data, wide, tags, mhandles, request);
    case 10:
        return T(10)->receive(comm, count, data, wide, tags, mhandles, phandles, request);
    default:
        return CALL_FROM_11(receive, comm, count, data, wide, tags, mhandles, phandles, request);
    }
}

nccl_result_t net_flush(const net_table_t *net, void *comm, void *data, int size, void **request)
{
    void *mhandle = NULL;

    return CALL_ANY(flush, comm, 1, &data, &size, &mhandle, request);
}

nccl_result_t net_test(const net_table_t *net, void *request, int *done, int *sizes)
{
    return CALL_ANY(test, request, done, sizes);
}

nccl_result_t net_close_send(const net_table_t *net, void *comm)
{
    return CALL_ANY(close_send, comm);
}

nccl_result_t net_close_receive(const net_table_t *net, void *comm)
{
    return CALL_ANY(close_receive, comm);
}

nccl_result_t net_close_listen(const net_table_t *net, void *comm)
{
    return CALL_ANY(close_listen, comm);
}

nccl_result_t net_make_virtual(const net_table_t *net, int *device, int count, const int *members)
{
    nccl_virtual_v12_t wide = {.count = count};
    nccl_virtual_v9_t narrow = {.count = count};

    for (int i = 0; i < count; ++i) {
        wide.devices[i] = members[i];
        if (i < NCCL_MEMBERS_MAX) {
            narrow.devices[i] = members[i];
        }
    }
    switch (net->version) {
    case 9:
        return T(9)->make_virtual(device, &narrow);
    case 10:
        return T(10)->make_virtual(device, &narrow);
    case 11:
        return T(11)->make_virtual(device, &narrow);
    default:
        return T(12)->make_virtual(device, &wide);
    }
}
