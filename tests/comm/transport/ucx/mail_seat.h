/**
 * @file mail_seat.h
 * A rank of a UCX transport that has mail with all others (comm/transport/ucx/mail.h), and nothing
 * of UCX: for tests that put frames in by hand, or stand in for UCX.
 */
#ifndef XM_TESTS_COMM_TRANSPORT_UCX_MAIL_SEAT_H
#define XM_TESTS_COMM_TRANSPORT_UCX_MAIL_SEAT_H

#include "comm/transport/ucx/mail.h"

typedef struct mail_seat {
    xm_ucx_transport_t transport;
    xm_ucx_peer_t *peers;
    xm_counters_t *counters;
} mail_seat_t;

/* All lanes have equal rates; their NICs are called n0, n1 … and are counted in this order. */
mail_seat_t *mail_seat_open(int rank, int ranks, int lanes);

/* Ends what is in flight. */
void mail_seat_close(mail_seat_t *seat);

#endif
