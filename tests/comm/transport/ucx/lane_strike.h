/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file lane_strike.h
 * Breaks connections of two ranks whose UCX transport has two rails over the loopback interface.
 *
 * A rank calls lane_strike_begin(), opens its transport, and calls lane_strike_learn(). From then
 * on lane_strike() finds the sockets of a lane by the ports at which the rails listen.
 */
#pragma once

#include "comm/job/bootstrap.h"

enum { LANE_STRIKE_LANES = 2 };

/* Sockets that are there already are none of the transport's. */
void lane_strike_begin(void);

/* Tells the other rank at which ports this rank's rails listen, and learns his; of a job of two. */
void lane_strike_learn(xm_bootstrap_t *bootstrap, double limit);

/* Calls `strike` for this rank's connections of a lane; returns how many there were. */
int lane_strike(int rank, int lane, void (*strike)(int fd));

/* What to strike with. A swallowed connection lets nothing in, acknowledgements included. */
void lane_cut(int fd);
void lane_swallow(int fd);
void lane_let_through(int fd);
