/**
 * @file contact.h
 * How the ranks of a job reach each other without the bootstrap: a datagram socket for the
 * heartbeat and a listening socket to gather at when the centre of the bootstrap is gone. Internal.
 *
 * A rank's address is the one its connection to rank 0 has at its own end; rank 0's is the one that
 * the others reach it at. Where some ranks of rank 0's host came over the loopback interface and
 * others from elsewhere, the former count as being at rank 0's address, too. The sockets are bound
 * to the loopback interface when all ranks are on it, as the rendezvous is; else everywhere. Where
 * some came over IPv4 and others over IPv6, the sockets take both, and IPv4 addresses are written
 * as IPv6 ones; a host without IPv6 keeps to IPv4, and does not reach the others.
 *
 * The job's key, random bytes of rank 0, authenticates what comes through these sockets. It travels
 * over the bootstrap and is as secret as that is.
 */
#ifndef XM_COMM_FAULT_CONTACT_H
#define XM_COMM_FAULT_CONTACT_H

#include <sys/socket.h>

#include "comm/job.h"
#include "comm/fault/siphash.h"

typedef struct xm_contact {
    struct sockaddr_storage address;
    socklen_t length;
    uint16_t datagram_port, gathering_port;
    int pid;
    char host[XM_BOOTSTRAP_HOST_SIZE];
} xm_contact_t;

typedef struct xm_contacts {
    int size;
    int rank;         /**< this one's */
    xm_contact_t *of; /**< by rank of the job as it began */
    uint8_t key[XM_SIPHASH_KEY_SIZE];
    int datagram_fd, gathering_fd; /**< non-blocking; -1 when closed */
} xm_contacts_t;

/** Opens the sockets and exchanges addresses. Collective over a TCP bootstrap. */
xm_status_t xm_contacts_open(xm_contacts_t *contacts, xm_bootstrap_t *bootstrap, double timeout);
void xm_contacts_close(xm_contacts_t *contacts);

/** Makes all addresses of one family when they are of both. For xm_contacts_open() and its test. */
void xm_contacts_align(xm_contacts_t *contacts);

/** The address of one of a rank's sockets. */
void xm_contact_datagram(const xm_contact_t *contact, struct sockaddr_storage *address);
void xm_contact_gathering(const xm_contact_t *contact, struct sockaddr_storage *address);

#endif
