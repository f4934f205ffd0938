/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file net.h
 * NCCL's network plugin on crossmesh's pipes (plugins/nccl/pipe/pipe.h): the one implementation
 * behind the tables of all versions (net_versions.c). Internal.
 *
 * A device of NCCL is one NIC or several: those that NCCL has merged (from v9 on), or all of the
 * host (XM_NCCL_DEVICES=merged). A connection over a device of several NICs uses them together.
 *
 * NCCL calls from several threads: of each communicator one that makes progress and others that
 * connect and register memory. What is shared has a lock here, or is a pipe, which has its own.
 */
#pragma once

#include "plugins/nccl/pipe.h"
#include "plugins/nccl/nccl_abi.h"

#define NET_NAME "crossmesh"

/** What a device is. All strings live as long as the process. */
typedef struct net_device {
    char *name;
    char *pci_path; /**< NULL: none */
    char *nics;     /**< for xm_pipe_params_t */
    uint64_t guid;
    int speed; /**< Mbit/s */
    int port;
    float latency; /**< microseconds; 0: unknown */
    int count;
    int members[NCCL_MEMBERS_MAX_V12]; /**< devices that it consists of; itself when it is one NIC
                                        */
} net_device_t;

/* What all devices have in common. NCCL may ask for sizes up to a TiB, but tells lengths in ints.
 */
enum {
    NET_MAX_BYTES = 1 << 30,
    NET_MAX_COMMS = 4096,
    NET_MAX_RECEIVES = XM_PIPE_GROUP_MAX,
    NET_DEVICES_MAX = 2 * XM_PIPE_DEVICES_MAX
};

/* net.c */

/** Finds the devices at the first call, and checks the settings. */
nccl_result_t net_init(nccl_log_t log, nccl_profiler_t profiler);
nccl_result_t net_devices(int *count);

/** NULL, with a line in the log, when there is no such device. */
const net_device_t *net_device(int device);

/** Joins devices to a new one, and tells its number. */
nccl_result_t net_make_virtual(int *device, int count, const int *members);

/** The callback of a profiler; NULL: there is none. */
nccl_profiler_t net_profiler(void);

/* net_comm.c */
nccl_result_t net_listen(int device, void *handle, void **comm);
nccl_result_t net_connect(int device, void *handle, void **comm);
nccl_result_t net_accept(void *listener, void **comm);
nccl_result_t net_register(void *comm, void *data, size_t size, int type, void **mhandle);
nccl_result_t net_register_dmabuf(void *comm, void *data, size_t size, int type, uint64_t offset,
                                  int fd, void **mhandle);
nccl_result_t net_deregister(void *comm, void *mhandle);
nccl_result_t net_send(void *comm, void *data, size_t size, int tag, void *mhandle, void *phandle,
                       void **request);
nccl_result_t net_receive(void *comm, int count, void **data, const size_t *sizes, int *tags,
                          void **mhandles, void **phandles, void **request);
nccl_result_t net_flush(void *comm, int count, void **data, int *sizes, void **mhandles,
                        void **request);
nccl_result_t net_test(void *request, int *done, int *sizes);
nccl_result_t net_close_send(void *comm);
nccl_result_t net_close_receive(void *comm);
nccl_result_t net_close_listen(void *comm);

/** Forgets connections that were begun and never finished. */
void net_forget_pending(void);
