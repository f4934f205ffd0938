/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file counting_transport.h
 * Watches the operations of simulated transports: every one that was posted ends exactly once.
 * One process, one set of transports at a time.
 */
#pragma once

#include "comm/transport/transport.h"

/* Forgets all operations; for a new set of transports. */
void counting_transport_reset(void);

/* From now on the operations of this transport are watched. */
void counting_transport_wrap(xm_transport_t *transport);

/* Operations of a rank that have been posted and have not ended. */
int counting_transport_in_flight(int rank);

/* Ends the operations that a killed rank took along, so that its memory can be freed. */
void counting_transport_forget(int rank);

/* Calls of `done` for operations that were not in flight, since the program began. */
int counting_transport_surplus(void);
