/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file nccl_library.h
 * The part of NCCL that is used here, opened at run time. No header or library of NCCL is needed to
 * build; the declarations below follow its binary interface, which has been stable since 2.14 (the
 * first that can be used without blocking). Not installed.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "comm/base.h"

/* Results. */
enum {
    XM_NCCL_SUCCESS = 0,
    XM_NCCL_UNHANDLED_CUDA = 1,
    XM_NCCL_SYSTEM = 2,
    XM_NCCL_INTERNAL = 3,
    XM_NCCL_INVALID_ARGUMENT = 4,
    XM_NCCL_INVALID_USAGE = 5,
    XM_NCCL_REMOTE = 6,
    XM_NCCL_IN_PROGRESS = 7
};

/* Constants of the interface, under its own numbers. */
enum { XM_NCCL_INT32 = 2, XM_NCCL_SUM = 0, XM_NCCL_ID_SIZE = 128, XM_NCCL_OLDEST = 21400 };

typedef struct xm_nccl_id {
    char internal[XM_NCCL_ID_SIZE];
} xm_nccl_id_t;

/* The configuration as of 2.14: later versions give what it lacks their defaults, because it says
 * how old it is. */
typedef struct xm_nccl_config {
    size_t size;
    unsigned magic, version;
    int blocking;
} xm_nccl_config_t;

#define XM_NCCL_CONFIG_MAGIC 0xcafebeefU

/* Communicators and streams are pointers. */
/* clang-format off */
#define XM_NCCL_TABLE(ENTRY) \
    ENTRY(int, ncclGetVersion, (int *version)) \
    ENTRY(const char *, ncclGetErrorString, (int result)) \
    ENTRY(const char *, ncclGetLastError, (void *comm)) \
    ENTRY(int, ncclGetUniqueId, (xm_nccl_id_t *id)) \
    ENTRY(int, ncclCommInitRankConfig, (void **comm, int ranks, xm_nccl_id_t id, int rank, \
                                        xm_nccl_config_t *config)) \
    ENTRY(int, ncclCommGetAsyncError, (void *comm, int *result)) \
    ENTRY(int, ncclCommFinalize, (void *comm)) \
    ENTRY(int, ncclCommDestroy, (void *comm)) \
    ENTRY(int, ncclCommAbort, (void *comm)) \
    ENTRY(int, ncclAllGather, (const void *in, void *out, size_t count, int type, void *comm, void *stream)) \
    ENTRY(int, ncclAllReduce, (const void *in, void *out, size_t count, int type, int sum, void *comm, \
                               void *stream)) \
    ENTRY(int, ncclReduceScatter, (const void *in, void *out, size_t count, int type, int sum, void *comm, \
                                   void *stream)) \
    ENTRY(int, ncclSend, (const void *in, size_t count, int type, int peer, void *comm, void *stream)) \
    ENTRY(int, ncclRecv, (void *out, size_t count, int type, int peer, void *comm, void *stream)) \
    ENTRY(int, ncclGroupStart, (void)) \
    ENTRY(int, ncclGroupEnd, (void))
/* clang-format on */

typedef struct xm_nccl_library {
    void *library;
    int version; /**< 22807 is 2.28.7 */
#define XM_NCCL_MEMBER(result, name, parameters)                                                   \
    result(*name) parameters; /* NOLINT(bugprone-macro-parentheses) */
    XM_NCCL_TABLE(XM_NCCL_MEMBER)
#undef XM_NCCL_MEMBER
} xm_nccl_library_t;

/** Opens libnccl.so.2. XM_ERR_UNSUPPORTED: there is none, or it is too old; the sentence says
 * which. It stays loaded: its threads outlive us. */
xm_status_t xm_nccl_library_open(xm_nccl_library_t *nccl);

/** The status of a result that is no success, with a sentence "NCCL: WHAT: text (detail)". @p comm
 * may be NULL. */
xm_status_t xm_nccl_error(const xm_nccl_library_t *nccl, void *comm, const char *what, int result);
