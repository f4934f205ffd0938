/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file nccl_abi.h
 * The binary interface between NCCL (up to 2.30) and its plugins, as far as this plugin speaks it:
 * network tables v6 to v12, the tuner's v5, and what a network plugin tells profilers. No header of
 * NCCL is needed to build.
 *
 * Names are ours but for the exported symbols; layouts are NCCL's. What changed from version to
 * version:
 *   v7  device offload (handles of connect and accept, two more functions)
 *   v8  sizes of registrations are size_t; regIsGlobal
 *   v9  sizes of messages are size_t; virtual devices; forceFlush, limits of sizes
 *   v10 a configuration for connect, handles of profilers with each message
 *   v11 a context from init to finalize, which takes the configuration; attributes
 *   v12 virtual devices of up to 8 members; rail and plane
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

/** ncclResult_t. */
typedef enum nccl_result {
    NCCL_OK = 0,
    NCCL_UNHANDLED_CUDA = 1,
    NCCL_SYSTEM = 2,
    NCCL_INTERNAL = 3,
    NCCL_INVALID_ARGUMENT = 4,
    NCCL_INVALID_USAGE = 5,
    NCCL_REMOTE = 6,
    NCCL_IN_PROGRESS = 7
} nccl_result_t;

enum {
    NCCL_HANDLE_SIZE = 128,
    NCCL_POINTER_HOST = 1,
    NCCL_POINTER_CUDA = 2,
    NCCL_POINTER_DMABUF = 4,
    NCCL_MEMBERS_MAX = 4,     /**< of a virtual device, up to v11 */
    NCCL_MEMBERS_MAX_V12 = 8, /**< likewise, from v12 on */
    NCCL_ID_UNDEFINED = -1
};

/** Levels and subjects of NCCL's log. */
enum { NCCL_LOG_WARN = 2, NCCL_LOG_INFO = 3 };
enum { NCCL_SUBJECT_INIT = 0x1, NCCL_SUBJECT_NET = 0x10, NCCL_SUBJECT_TUNING = 0x40 };

typedef void (*nccl_log_t)(int level, unsigned long subjects, const char *file, int line,
                           const char *format, ...);

/** What a network plugin tells a profiler: an event of the parent @p phandle begins, ends, changes,
 * or changes and ends. @p data depends on @p plugin, see nccl_profiler_ib_v1_t. */
enum { NCCL_EVENT_START, NCCL_EVENT_STOP, NCCL_EVENT_UPDATE, NCCL_EVENT_UPDATE_AND_STOP };
typedef nccl_result_t (*nccl_profiler_t)(void **event, int type, void *phandle, int64_t plugin,
                                         void *data);

/** The plugin number that promises data in the form below: kind of network and version. */
#define NCCL_PROFILER_IB_V1 ((INT64_C(1) << 16) | 1)
enum { NCCL_PROFILER_QUEUE_PAIR = 1 };

typedef struct nccl_profiler_ib_v1 {
    uint8_t type; /**< NCCL_PROFILER_QUEUE_PAIR */
    union {
        struct {
            int device;
            uint64_t work_request;
            int opcode;
            int queue_pair;
            size_t length;
        } queue_pair;
    } of;
} nccl_profiler_ib_v1_t;

/* The parts of a device's properties that several versions share, in their order: speed in Mbit/s,
 * latency in microseconds. */
/* clang-format off */
#define NCCL_DEVICE \
    char *name; \
    char *pci_path; \
    uint64_t guid; \
    int pointers;

#define NCCL_RATES \
    int speed; \
    int port; \
    float latency; \
    int max_comms; \
    int max_receives;

#define NCCL_DEVICE_OFFLOAD \
    int offload_type; \
    int offload_version;

/* Since v9. */
#define NCCL_PROPERTIES(virtual_type) \
    NCCL_DEVICE \
    int registration_is_global; \
    int force_flush; \
    NCCL_RATES \
    NCCL_DEVICE_OFFLOAD \
    virtual_type members; \
    size_t max_p2p_bytes; \
    size_t max_collective_bytes;
/* clang-format on */

/** Properties of a device. */
typedef struct nccl_properties_v6 {
    NCCL_DEVICE
    NCCL_RATES
} nccl_properties_v6_t;

typedef struct nccl_properties_v7 {
    NCCL_DEVICE
    NCCL_RATES
    NCCL_DEVICE_OFFLOAD
} nccl_properties_v7_t;

typedef struct nccl_properties_v8 {
    NCCL_DEVICE
    int registration_is_global;
    NCCL_RATES
    NCCL_DEVICE_OFFLOAD
} nccl_properties_v8_t;

typedef struct nccl_virtual_v9 {
    int count;
    int devices[NCCL_MEMBERS_MAX];
} nccl_virtual_v9_t;

/** Also v10. */
typedef struct nccl_properties_v9 {
    NCCL_PROPERTIES(nccl_virtual_v9_t)
} nccl_properties_v9_t;

typedef struct nccl_properties_v11 {
    NCCL_PROPERTIES(nccl_virtual_v9_t)
    int max_multi_request;
} nccl_properties_v11_t;

typedef struct nccl_virtual_v12 {
    int count;
    int devices[NCCL_MEMBERS_MAX_V12];
} nccl_virtual_v12_t;

typedef struct nccl_properties_v12 {
    NCCL_PROPERTIES(nccl_virtual_v12_t)
    int max_multi_request;
    int16_t rail, plane;
} nccl_properties_v12_t;

/** Of connect in v10, of init from v11 on. */
typedef struct nccl_config {
    int traffic_class;
} nccl_config_t;

/* The parts of the tables that several versions share, in their order. */
/* clang-format off */
#define NCCL_REGISTER(size_type) \
    nccl_result_t (*register_memory)(void *comm, void *data, size_type size, int type, void **mhandle); \
    nccl_result_t (*register_dmabuf)(void *comm, void *data, size_t size, int type, uint64_t offset, int fd, \
                                     void **mhandle); \
    nccl_result_t (*deregister_memory)(void *comm, void *mhandle);

/* NOLINTBEGIN(bugprone-macro-parentheses): a type */
#define NCCL_MESSAGES(size_type) \
    nccl_result_t (*send)(void *comm, void *data, size_type size, int tag, void *mhandle, void **request); \
    nccl_result_t (*receive)(void *comm, int count, void **data, size_type *sizes, int *tags, void **mhandles, \
                             void **request);

/* NOLINTEND(bugprone-macro-parentheses) */
#define NCCL_PROFILED_MESSAGES \
    nccl_result_t (*send)(void *comm, void *data, size_t size, int tag, void *mhandle, void *phandle, \
                          void **request); \
    nccl_result_t (*receive)(void *comm, int count, void **data, size_t *sizes, int *tags, void **mhandles, \
                             void **phandles, void **request);

#define NCCL_ENDS \
    nccl_result_t (*flush)(void *comm, int count, void **data, int *sizes, void **mhandles, void **request); \
    nccl_result_t (*test)(void *request, int *done, int *sizes); \
    nccl_result_t (*close_send)(void *comm); \
    nccl_result_t (*close_receive)(void *comm); \
    nccl_result_t (*close_listen)(void *comm);

#define NCCL_OFFLOAD \
    nccl_result_t (*device_memory)(void *comm, void *mhandle, void **device_mhandle); \
    nccl_result_t (*receive_consumed)(void *comm, int count, void *request);

/* NOLINTBEGIN(bugprone-macro-parentheses): a type */
#define NCCL_DEVICES(properties_type) \
    nccl_result_t (*devices)(int *count); \
    nccl_result_t (*properties)(int device, properties_type *properties);

/* From v7 to v9. */
#define NCCL_OPEN(properties_type) \
    const char *name; \
    nccl_result_t (*init)(nccl_log_t log); \
    NCCL_DEVICES(properties_type) \
    nccl_result_t (*listen)(int device, void *handle, void **comm); \
    nccl_result_t (*connect)(int device, void *handle, void **comm, void **offload); \
    nccl_result_t (*accept)(void *listener, void **comm, void **offload);

/* Since v10. */
#define NCCL_MOVE(virtual_type) \
    nccl_result_t (*accept)(void *listener, void **comm, void **offload); \
    NCCL_REGISTER(size_t) \
    NCCL_PROFILED_MESSAGES \
    NCCL_ENDS \
    NCCL_OFFLOAD \
    nccl_result_t (*make_virtual)(int *device, virtual_type *members);

/* Since v11. */
#define NCCL_NET(properties_type, virtual_type) \
    const char *name; \
    nccl_result_t (*init)(void **context, uint64_t job, nccl_config_t *config, nccl_log_t log, \
                          nccl_profiler_t profiler); \
    NCCL_DEVICES(properties_type) \
    nccl_result_t (*listen)(void *context, int device, void *handle, void **comm); \
    nccl_result_t (*connect)(void *context, int device, void *handle, void **comm, void **offload); \
    NCCL_MOVE(virtual_type) \
    nccl_result_t (*finalize)(void *context); \
    nccl_result_t (*set_attributes)(void *context, void *attributes);
/* NOLINTEND(bugprone-macro-parentheses) */
/* clang-format on */

typedef struct nccl_net_v6 {
    const char *name;
    nccl_result_t (*init)(nccl_log_t log);
    NCCL_DEVICES(nccl_properties_v6_t)
    nccl_result_t (*listen)(int device, void *handle, void **comm);
    nccl_result_t (*connect)(int device, void *handle, void **comm);
    nccl_result_t (*accept)(void *listener, void **comm);
    NCCL_REGISTER(int)
    NCCL_MESSAGES(int)
    NCCL_ENDS
} nccl_net_v6_t;

typedef struct nccl_net_v7 {
    NCCL_OPEN(nccl_properties_v7_t)
    NCCL_REGISTER(int)
    NCCL_MESSAGES(int)
    NCCL_ENDS
    NCCL_OFFLOAD
} nccl_net_v7_t;

typedef struct nccl_net_v8 {
    NCCL_OPEN(nccl_properties_v8_t)
    NCCL_REGISTER(size_t)
    NCCL_MESSAGES(int)
    NCCL_ENDS
    NCCL_OFFLOAD
} nccl_net_v8_t;

typedef struct nccl_net_v9 {
    NCCL_OPEN(nccl_properties_v9_t)
    NCCL_REGISTER(size_t)
    NCCL_MESSAGES(size_t)
    NCCL_ENDS
    NCCL_OFFLOAD
    nccl_result_t (*make_virtual)(int *device, nccl_virtual_v9_t *members);
} nccl_net_v9_t;

typedef struct nccl_net_v10 {
    const char *name;
    nccl_result_t (*init)(nccl_log_t log, nccl_profiler_t profiler);
    NCCL_DEVICES(nccl_properties_v9_t)
    nccl_result_t (*listen)(int device, void *handle, void **comm);
    nccl_result_t (*connect)(int device, nccl_config_t *config, void *handle, void **comm,
                             void **offload);
    NCCL_MOVE(nccl_virtual_v9_t)
} nccl_net_v10_t;

typedef struct nccl_net_v11 {
    NCCL_NET(nccl_properties_v11_t, nccl_virtual_v9_t)
} nccl_net_v11_t;

typedef struct nccl_net_v12 {
    NCCL_NET(nccl_properties_v12_t, nccl_virtual_v12_t)
} nccl_net_v12_t;

/** The tuner: its tables have a row per algorithm and a column per protocol. */
enum {
    NCCL_TREE = 0,
    NCCL_RING = 1,
    NCCL_ALGORITHMS = 7,
    NCCL_LL = 0,
    NCCL_LL128 = 1,
    NCCL_SIMPLE = 2,
    NCCL_PROTOCOLS = 3,
    NCCL_LINK_NETWORK = 2,
    NCCL_LINKS = 3
};

/** ncclFunc_t. */
enum {
    NCCL_BROADCAST,
    NCCL_REDUCE,
    NCCL_ALL_GATHER,
    NCCL_REDUCE_SCATTER,
    NCCL_ALL_REDUCE,
    NCCL_COLLECTIVES
};

/** Cost of what is not to be used. */
#define NCCL_FORBIDDEN (-1.0F)

typedef struct nccl_domains_v5 {
    int count, fewest, most;
} nccl_domains_v5_t;

/** What NCCL's own model knows; microseconds and GB/s. */
typedef struct nccl_constants_v5 {
    double base_latency[NCCL_ALGORITHMS][NCCL_PROTOCOLS];
    double link_latency[NCCL_LINKS][NCCL_ALGORITHMS][NCCL_PROTOCOLS];
    double bandwidths[5][4][3];
} nccl_constants_v5_t;

typedef struct nccl_tuner_v5 {
    const char *name;
    nccl_result_t (*init)(void **context, uint64_t job, size_t ranks, size_t nodes, nccl_log_t log,
                          nccl_domains_v5_t *domains, nccl_constants_v5_t *constants);
    nccl_result_t (*collective)(void *context, int collective, size_t bytes, int operations,
                                float **costs, int algorithms, int protocols, int registered,
                                int *channels);
    nccl_result_t (*finalize)(void *context);
} nccl_tuner_v5_t;
