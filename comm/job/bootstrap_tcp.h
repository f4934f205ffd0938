/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file bootstrap_tcp.h
 * The TCP bootstrap's state, shared by its rendezvous (bootstrap_rendezvous.c at rank 0,
 * bootstrap_connect.c at the others) and its life afterwards (bootstrap_tcp.c). Internal.
 *
 * A relay: rank 0 has a link to every other rank, the others have one link, to rank 0. Rank 0
 * relays allgathers and faults from inside its own calls; there is no thread.
 */
#pragma once

#include <sys/socket.h>

#include "comm/job/bootstrap_link.h"
#include "comm/job/bootstrap_private.h"
#include "comm/job/job_secret.h"
#include "comm/job/resolve.h"

/* What epoll reports for a descriptor: a rank, or one of these. */
enum { XM_BOOTSTRAP_KEY_LISTENER = 1 << 30, XM_BOOTSTRAP_KEY_STRANGER = 1 << 29 };

/* Room for the name of a rank in sentences. */
enum { XM_BOOTSTRAP_NAME_SIZE = XM_BOOTSTRAP_HOST_SIZE + 64 };

typedef struct xm_bootstrap_peer {
    xm_bootstrap_link_t link;
    int pid;
    char *host;
    bool left;        /**< said goodbye */
    uint8_t *block;   /**< rank 0: its contribution to the current or next allgather */
    bool contributed; /**< rank 0: block is there (it may have no bytes) */
    bool variable;    /**< rank 0: which may have a length of its own */
    size_t block_length;
} xm_bootstrap_peer_t;

typedef struct xm_bootstrap_tcp {
    xm_bootstrap_t base;
    int epoll;
    char host[XM_BOOTSTRAP_HOST_SIZE]; /**< this rank's, for sentences */
    xm_job_secret_t secret;
    xm_bootstrap_peer_t *peers; /**< by rank; rank 0 has all of them, the others rank 0 only */
    int peer_count;

    uint32_t sequence; /**< number of the current or last allgather, from 1 */
    const void *send;
    void *receive;
    size_t length;
    bool variable; /**< the lengths differ, and the result goes to `blobs` */
    void *blobs;   /**< lengths and blocks as in a GATHEREDV frame */
    size_t blobs_length;
    bool gathered; /**< the result is in `receive` or `blobs` */
    uint8_t *bulk; /**< rank 0: the result as a frame, until every link has sent it */
} xm_bootstrap_tcp_t;

/**
 * A rank of the relay before its rendezvous; @p secret is copied. The caller holds the rendezvous
 * next, and destroys the object when that fails.
 */
xm_status_t xm_bootstrap_tcp_create(int rank, int size, const xm_job_secret_t *secret,
                                    xm_bootstrap_tcp_t **self);

/** Says goodbye, closes, frees: what xm_bootstrap_destroy() does. */
void xm_bootstrap_tcp_destroy(xm_bootstrap_tcp_t *self);

/** Rank 0: accepts the others and welcomes them, until @p deadline. Takes over @p listen_fd.
 * @p timeout is what sentences call the time allowed. */
xm_status_t xm_bootstrap_rendezvous_accept(xm_bootstrap_tcp_t *self, int listen_fd, double deadline,
                                           double timeout);

/** Other ranks: connects to rank 0 at one of @p addresses and waits for its welcome. @p place names
 * them in sentences. */
xm_status_t xm_bootstrap_rendezvous_connect(xm_bootstrap_tcp_t *self,
                                            const xm_addresses_t *addresses, const char *place,
                                            double deadline, double timeout);

/** The proof of who says @p identity in @p role ("rank", "root"), see xm_job_secret_prove(). */
void xm_bootstrap_prove(const xm_job_secret_t *secret, const char *role,
                        const uint8_t own[XM_JOB_NONCE_SIZE],
                        const uint8_t other[XM_JOB_NONCE_SIZE],
                        const xm_bootstrap_identity_t *identity, uint8_t proof[XM_JOB_PROOF_SIZE]);

/** This rank, as it introduces itself. */
void xm_bootstrap_identify(const xm_bootstrap_tcp_t *self, xm_bootstrap_identity_t *identity);

/** Another rank, for xm_bootstrap_adopt(). */
typedef struct xm_bootstrap_slot {
    int fd; /**< a connection to it, or -1 */
    int pid;
    const char *host;
} xm_bootstrap_slot_t;

/** A bootstrap of ranks that are connected already, in a relay around rank 0. Takes the connections
 *  over, also when it fails. */
xm_status_t xm_bootstrap_adopt(int rank, int size, const xm_bootstrap_slot_t *slots,
                               xm_bootstrap_t **bootstrap);

/** The address that others reach this rank at, as the connections of a TCP bootstrap know it; of
 *  several one that is not the loopback interface's. */
xm_status_t xm_bootstrap_own_address(const xm_bootstrap_t *bootstrap,
                                     struct sockaddr_storage *address);

/** Writes "rank 3 (host vm, pid 1234)" and returns the buffer. */
char *xm_bootstrap_peer_name(const xm_bootstrap_tcp_t *self, int rank, char *buffer, size_t size);

/** Appends up to 8 ranks for which @p missing is true as "2, 5, 7" (then "…"); returns how many
 * there are. */
int xm_bootstrap_list_ranks(const xm_bootstrap_tcp_t *self,
                            bool (*missing)(const xm_bootstrap_peer_t *peer), char *text,
                            size_t size);
