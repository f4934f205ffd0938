/**
 * @file bootstrap_tcp.h
 * The TCP bootstrap's state, shared by its rendezvous (bootstrap_rendezvous.c) and its life
 * afterwards (bootstrap_tcp.c). Internal.
 *
 * A star: rank 0 has a link to every other rank, the others have one link, to rank 0. Rank 0
 * relays allgathers and faults from inside its own calls; there is no thread.
 */
#ifndef XM_COMM_BOOTSTRAP_TCP_H
#define XM_COMM_BOOTSTRAP_TCP_H

#include <sys/socket.h>

#include "comm/bootstrap_link.h"
#include "comm/bootstrap_private.h"

/* What epoll reports for a descriptor: a rank, or one of these. */
enum { XM_BOOTSTRAP_KEY_LISTENER = 1 << 30, XM_BOOTSTRAP_KEY_STRANGER = 1 << 29 };

typedef struct xm_bootstrap_peer {
    xm_bootstrap_link_t link;
    int pid;
    char *host;
    bool left;        /**< said goodbye */
    uint8_t *block;   /**< rank 0: its contribution to the current or next allgather */
    bool contributed; /**< rank 0: block is there (it may have no bytes) */
    size_t block_length;
    uint32_t block_sequence;
} xm_bootstrap_peer_t;

typedef struct xm_bootstrap_tcp {
    xm_bootstrap_t base;
    int epoll;
    char host[XM_BOOTSTRAP_HOST_SIZE]; /**< this rank's, for sentences */
    xm_bootstrap_peer_t *peers;        /**< by rank; links only where the star has them */

    uint32_t sequence; /**< number of the current or last allgather, from 1 */
    const void *send;
    void *receive;
    size_t length;
    bool gathered; /**< the result is in `receive` */
    uint8_t *bulk; /**< rank 0: the result as a frame, until every link has sent it */
} xm_bootstrap_tcp_t;

/** A bootstrap without connections; xm_bootstrap_destroy() frees it. */
xm_status_t xm_bootstrap_tcp_allocate(int rank, int size, xm_bootstrap_tcp_t **bootstrap);

/** Rank 0: accepts the others and welcomes them. Takes over @p listen_fd (-1: makes its own). */
xm_status_t xm_bootstrap_rendezvous_accept(xm_bootstrap_tcp_t *self, const xm_job_env_t *env,
                                           int listen_fd, double timeout);

/** Other ranks: connects to rank 0 and waits for its welcome. */
xm_status_t xm_bootstrap_rendezvous_connect(xm_bootstrap_tcp_t *self, const xm_job_env_t *env,
                                            double timeout);

/** Another rank, for xm_bootstrap_adopt(). */
typedef struct xm_bootstrap_seat {
    int fd; /**< a connection to it, or -1 */
    int pid;
    const char *host;
} xm_bootstrap_seat_t;

/** A bootstrap of ranks that are connected already, in a star around rank 0. Takes the connections
 *  over, also when it fails. */
xm_status_t xm_bootstrap_adopt(int rank, int size, const xm_bootstrap_seat_t *seats,
                               xm_bootstrap_t **bootstrap);

/** The address that others reach this rank at, as the connections of a TCP bootstrap know it; of
 *  several one that is not the loopback interface's. */
xm_status_t xm_bootstrap_own_address(const xm_bootstrap_t *bootstrap,
                                     struct sockaddr_storage *address);

/** The host of this rank, as sentences name it. */
const char *xm_bootstrap_own_host(const xm_bootstrap_t *bootstrap);

/** Writes "rank 3 (host vm, pid 1234)" and returns the buffer. */
char *xm_bootstrap_peer_name(const xm_bootstrap_tcp_t *self, int rank, char *buffer, size_t size);

/** Appends up to 8 ranks for which @p missing is true as "2, 5, 7" (then "…"); returns how many
 * there are. */
int xm_bootstrap_list_ranks(const xm_bootstrap_tcp_t *self,
                            bool (*missing)(const xm_bootstrap_peer_t *peer), char *text,
                            size_t size);

#endif
