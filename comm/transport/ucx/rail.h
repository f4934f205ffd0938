/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file comm/transport/ucx/rail.h
 * One way through UCX: a context, a worker, its address. Internal.
 */
#pragma once

#include <ucp/api/ucp.h>

#include "comm/transport.h"
#include "comm/topology.h"
#include "comm/base.h"

/* All rails a rank may have. The array has a fixed size; rails that are not needed stay closed. */
typedef enum xm_ucx_rail_kind {
    XM_UCX_RAIL_TCP,  /**< TCP only, for peers that count as another host on this machine */
    XM_UCX_RAIL_HOST, /**< for peers on this host: whatever UCX finds best */
    XM_UCX_RAIL_NIC,  /**< for peers on other machines; the first of up to XM_NICS_MAX */
    XM_UCX_RAIL_COUNT = XM_UCX_RAIL_NIC + XM_NICS_MAX
} xm_ucx_rail_kind_t;

/*
 * UCX's error handling is on only where nobody else reports deaths (no fault channel) and the peer
 * is on another machine, because UCX 1.13 pays for it:
 *  - With it, shared memory is copied through a FIFO of small cells, sender and receiver in lock
 *    step, which on shared cores is up to twenty times slower than one copy by the kernel (cma).
 *  - With it, a survivor whose peer is killed while both stream over TCP is aborted by an assertion
 *    of UCX ("comp->count > 0") or a wild pointer in uct_tcp_iface_progress, once in about 40
 *    times.
 * Without it a failed peer's operations are ended here: receives are cancelled, and what UCX cannot
 * cancel is abandoned. UCX keeps such requests for ever, so a rail that has some is not closed.
 */
typedef struct xm_ucx_rail {
    bool open;
    bool cuda;     /**< UCX can move CUDA memory this way */
    bool tcp_only; /**< nothing else can carry messages this way */
    int abandoned; /**< requests that UCX will never end */
    int stuck;     /**< the same of requests and endpoints that name no memory of users */
    ucp_context_h context;
    ucp_worker_h worker;
    ucp_address_t *address;
    size_t address_length;
    int event_fd;                /**< -1 without wake-up */
    xm_nic_counters_t *counters; /**< NULL: not counted */
} xm_ucx_rail_t;

/** Active messages: frames; and what is sent only to know that all before has left, and dropped. */
enum { XM_UCX_AM_FRAME = 1, XM_UCX_AM_EMPTY };

typedef struct xm_ucx_rail_params {
    xm_ucx_rail_kind_t kind;
    const char *device; /**< the only network device to be used; empty: what UCX chooses */
    int rank, ranks;    /**< this rank, and how many the job has */
    int ranks_here;     /**< of the job, on this machine */
    bool wakeup;        /**< with a descriptor to sleep on */
    bool frames;        /**< for active messages as well */
} xm_ucx_rail_params_t;

/**
 * Opens context and worker. Fails with a sentence about the rank when UCX cannot use the device.
 * Where /dev/shm has little room for all ranks of the machine (a container's 64 MiB), UCX shares
 * memory without it, by System V segments: it would fail otherwise.
 */
xm_status_t xm_ucx_rail_open(xm_ucx_rail_t *rail, const xm_ucx_rail_params_t *params);

/** What a rail is called where traffic is counted: its device, or "auto", "shm", "tcp". */
const char *xm_ucx_rail_name(xm_ucx_rail_kind_t kind, const char *device);

/** The network devices that UCX can use here, with blanks between, e.g. "eth0 mlx5_0:1". UCX_TLS
 * and UCX_NET_DEVICES have been respected. To be freed. */
xm_status_t xm_ucx_rail_devices(char **devices);

/** What every UCX request of ours carries in its private area. */
typedef struct xm_ucx_request {
    bool abandoned; /**< its operation has ended without UCX; the callback must not touch it */
} xm_ucx_request_t;

/** Closes what is open, unless UCX still holds abandoned or stuck requests. All memory of the
 * context must have been unmapped. */
void xm_ucx_rail_close(xm_ucx_rail_t *rail);

/**
 * Appends what carries @p ep to @p buffer, as "transport/device …" without repetitions.
 */
xm_status_t xm_ucx_rail_lanes(ucp_ep_h ep, char *buffer, size_t size);

/** Appends @p word (not terminated) to words with blanks between, unless the text has it. */
void xm_ucx_append_word(char *text, size_t size, const char *word, size_t length);

/** UCX's status as ours. @p peer_failed says what a cancelled operation means. */
xm_status_t xm_ucx_status(ucs_status_t status, bool peer_failed);
