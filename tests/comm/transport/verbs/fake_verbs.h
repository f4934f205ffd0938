/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file fake_verbs.h
 * RDMA devices that are none: two ranks of one process, whose queue pairs are joined by chance. The
 * linker sends the library's calls of libibverbs here (see CMakeLists.txt). What a real device
 * would not forgive ends the test: a message without a posted receive, and a write to memory that
 * is not registered any more.
 */
#pragma once

#include "comm/transport/verbs/transport_verbs_private.h"

enum { FAKE_RANKS = 2 };

/** What is wrong with one way of a rail. */
typedef enum { FAKE_WELL, FAKE_NO_ANSWERS, FAKE_DEAD } fake_way_t;

/** Makes the transports of two ranks with so many rails each. */
void fake_verbs_open(xm_transport_t *transports[FAKE_RANKS], int rails, uint64_t seed);
void fake_verbs_close(xm_transport_t *transports[FAKE_RANKS]);

/** From now on what @p rank sends over the rail is lost, or only the answers to it. */
void fake_verbs_set(int rank, int rail, fake_way_t way);

/** Something happens on one of the connections, or nothing. */
void fake_verbs_move(void);

/** Whether what is allocated is the library's: false while the devices work. */
extern bool fake_verbs_counting;

/** Time passes, as the transports see it. */
void fake_verbs_pass(int64_t nanoseconds);

/** Bytes that came over a rail, and a number below @p below. */
uint64_t fake_verbs_carried(int rail);
uint64_t fake_verbs_any(uint64_t below);
