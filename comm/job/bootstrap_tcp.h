/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file bootstrap_tcp.h
 * The TCP bootstrap's state, shared by its rendezvous (bootstrap_rendezvous.c at rank 0,
 * bootstrap_connect.c at the others) and its life afterwards (bootstrap_tcp.c). Internal.
 *
 * A relay: rank 0 has a link to every other rank, the others have one link, to rank 0. Rank 0
 * relays allgathers and faults from inside its own calls; there is no thread.
 *
 * A link that ends is replaced, when there is a guard (bootstrap_private.h). Nothing has to be
 * counted for that: what a rank has offered to the current allgather is still its caller's and is
 * offered again, a second offer is ignored, and one to the last allgather, which is complete, is
 * taken as the wish to have its result once more.
 */
#pragma once

#include <sys/socket.h>

#include "comm/job/bootstrap_link.h"
#include "comm/job/bootstrap_private.h"
#include "comm/job/job_secret.h"
#include "comm/job/resolve.h"

/* What epoll reports for a descriptor: a rank, or one of these. */
enum {
    XM_BOOTSTRAP_KEY_LISTENER = 1 << 30,
    XM_BOOTSTRAP_KEY_STRANGER = 1 << 29,
    XM_BOOTSTRAP_KEY_GUARD = 1 << 28
};

/* Room for the name of a rank in sentences. */
enum { XM_BOOTSTRAP_NAME_SIZE = XM_BOOTSTRAP_HOST_SIZE + 64 };

typedef struct xm_bootstrap_peer {
    xm_bootstrap_link_t link;
    int pid;
    char *host;
    bool left;        /**< said goodbye */
    int64_t heard_at; /**< when something has come last; while ranks are attended to */
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
    uint8_t *bulk; /**< rank 0: the last result as a frame, until there is another */
    size_t bulk_length;
    uint32_t bulk_sequence;
    int64_t looked_at, said_at; /**< of xm_bootstrap_attend() */
    bool guarded;
    xm_bootstrap_guard_t guard;
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

/** Asks whoever has connected by @p fd, which is closed on failure, for its proof over a new @p
 * nonce, so a recorded answer is worth nothing. */
xm_status_t xm_bootstrap_challenge(xm_bootstrap_link_t *link, int fd, int epoll, uint64_t key,
                                   const xm_job_secret_t *secret, uint8_t nonce[XM_JOB_NONCE_SIZE]);

/** Whether a hello proves that its sender knows the secret. Without one the proof has an empty key
 * and shows only that nothing was garbled. */
bool xm_bootstrap_is_proven(const xm_job_secret_t *secret, const uint8_t nonce[XM_JOB_NONCE_SIZE],
                            const xm_bootstrap_hello_t *hello);

/** Sends a frame that has a fault. */
void xm_bootstrap_send_fault(xm_bootstrap_link_t *link, xm_bootstrap_type_t type,
                             const xm_bootstrap_fault_t *fault);

/** This rank, as it introduces itself. */
void xm_bootstrap_identify(const xm_bootstrap_tcp_t *self, xm_bootstrap_identity_t *identity);

/** Another rank, for xm_bootstrap_adopt(). */
typedef struct xm_bootstrap_slot {
    int pid;
    const char *host;
} xm_bootstrap_slot_t;

/** A bootstrap of ranks that know each other already, in a relay around rank 0. The guard gives the
 * connections; NULL: there is one rank. */
xm_status_t xm_bootstrap_adopt(int rank, int size, const xm_bootstrap_slot_t *slots,
                               const xm_bootstrap_guard_t *guard, xm_bootstrap_t **bootstrap);

/* Of the allgathers (bootstrap_gather.c). */

/** Makes a fault the sticky status, unless there is one, and on rank 0 tells everybody. */
void xm_bootstrap_tcp_settle(xm_bootstrap_tcp_t *self, const xm_bootstrap_fault_t *fault);
/** Fills in a fault whose sentence begins with the rank's name. */
void xm_bootstrap_tcp_fault_of(const xm_bootstrap_tcp_t *self, int rank, xm_status_t status,
                               const char *what, xm_bootstrap_fault_t *fault);
/** Rank 0: takes a rank's block out of its link. False: it is out of step. */
bool xm_bootstrap_tcp_take_block(xm_bootstrap_tcp_t *self, int rank);
/** The others: takes the result out of the link. False: it makes no sense. */
bool xm_bootstrap_tcp_take_result(xm_bootstrap_tcp_t *self);
/** The others: offers the own block, unless the result is there. */
void xm_bootstrap_tcp_offer(xm_bootstrap_tcp_t *self);
xm_status_t xm_bootstrap_tcp_post(xm_bootstrap_t *bootstrap, const void *send, void *receive,
                                  size_t length);
xm_status_t xm_bootstrap_tcp_post_blobs(xm_bootstrap_t *bootstrap, const void *send, size_t length);
xm_status_t xm_bootstrap_tcp_take_blobs(xm_bootstrap_t *bootstrap, void **blobs, size_t *offsets);
xm_status_t xm_bootstrap_tcp_test(xm_bootstrap_t *bootstrap);
xm_status_t xm_bootstrap_tcp_abandon(xm_bootstrap_t *bootstrap, double waited);

/**
 * Until there is a guard: all ranks do little else than wait in allgathers, and meanwhile each says
 * that it lives; one that is waited for and has said nothing for @p seconds hangs. 0: none does.
 */
void xm_bootstrap_attend(xm_bootstrap_t *bootstrap, double seconds);

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
