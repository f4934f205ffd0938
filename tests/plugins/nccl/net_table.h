/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file net_table.h
 * One version of a network plugin's table, opened as NCCL opens it, and called as that version of
 * NCCL calls it. Tests of all versions are written once with it.
 */
#pragma once

#include <stdbool.h>

#include "plugins/nccl/nccl_abi.h"

enum { NET_OLDEST = 6, NET_NEWEST = 12 };

typedef struct net_table {
    void *library;
    const void *table;
    int version;
    void *context;
} net_table_t;

/* Opens the plugin and finds the table of a version; false: it is not exported. With $NCCL_LIBRARY
 * that NCCL does it (real_nccl.h), and the table is of its own version, whatever stands behind it.
 */
bool net_table_open(net_table_t *net, int version);
void net_table_close(net_table_t *net);

/* Warnings that the plugin has written to NCCL's log, and the last one. */
int net_table_warnings(void);
const char *net_table_last_warning(void);

const char *net_name(const net_table_t *net);
nccl_result_t net_start(net_table_t *net, nccl_profiler_t profiler);
nccl_result_t net_finish(net_table_t *net);
nccl_result_t net_count(const net_table_t *net, int *count);
/* What a version does not have is zero. */
nccl_result_t net_describe(const net_table_t *net, int device, nccl_properties_v12_t *properties);
nccl_result_t net_listen(const net_table_t *net, int device, void *handle, void **comm);
nccl_result_t net_connect(const net_table_t *net, int device, void *handle, void **comm);
nccl_result_t net_accept(const net_table_t *net, void *listener, void **comm);
nccl_result_t net_register(const net_table_t *net, void *comm, void *data, size_t size, int type,
                           void **mhandle);
nccl_result_t net_register_dmabuf(const net_table_t *net, void *comm, void *data, size_t size,
                                  void **mhandle);
nccl_result_t net_deregister(const net_table_t *net, void *comm, void *mhandle);
nccl_result_t net_send(const net_table_t *net, void *comm, void *data, size_t size, int tag,
                       void *mhandle, void *phandle, void **request);
nccl_result_t net_receive(const net_table_t *net, void *comm, int count, void **data,
                          const size_t *sizes, int *tags, void **mhandles, void **phandles,
                          void **request);
nccl_result_t net_flush(const net_table_t *net, void *comm, void *data, int size, void **request);
nccl_result_t net_test(const net_table_t *net, void *request, int *done, int *sizes);
nccl_result_t net_close_send(const net_table_t *net, void *comm);
nccl_result_t net_close_receive(const net_table_t *net, void *comm);
nccl_result_t net_close_listen(const net_table_t *net, void *comm);
/* From v9 on. */
nccl_result_t net_make_virtual(const net_table_t *net, int *device, int count, const int *members);
