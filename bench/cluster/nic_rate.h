/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file nic_rate.h
 * Rates of network interfaces as texts: `1gbit`, `500mbit`, `2.5Gbit`, as tc(8) writes them.
 *
 * Rates are bits per second on the wire, frames with their headers. Threads: no shared state.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "comm/base.h"

/** Least and greatest rate that can be emulated, bit/s. */
#define RB_NIC_RATE_MIN INT64_C(64000)
#define RB_NIC_RATE_MAX INT64_C(400000000000)

/** Parses a number with the unit bit, kbit, mbit or gbit (10^n, in any case). @p what names the
 * value in the failure sentence. */
xm_status_t rb_nic_rate_parse(const char *what, const char *text, int64_t *rate);

/** Parses rates with commas between them into @p rates (at most @p capacity). */
xm_status_t rb_nic_rate_parse_list(const char *what, const char *text, int64_t *rates, int capacity,
                                   int *count);

/** Writes "1 Gbit/s" or "62.5 Mbit/s" into @p buffer, which is returned. */
char *rb_nic_rate_format(int64_t rate, char *buffer, size_t size);

/**
 * What is left of @p rate for the data of TCP connections: of every frame of an MTU and an Ethernet
 * header (14 bytes), 52 bytes are headers of IP and TCP. 0.9564 of the rate at an MTU of 1500.
 */
double rb_nic_rate_payload(double rate, int mtu);

/** Bytes that TCP may hand to a NIC of so many bit/s at once: 2 ms of its rate and at least two
 * frames, but no more than TCP does by itself (62,500). */
int64_t rb_nic_rate_segment(int64_t rate, int mtu);

/** Bytes that an emulated NIC of so many bit/s lets through at once after a pause: 2 ms of its
 * rate, and at least two such segments. */
int64_t rb_nic_rate_burst(int64_t rate, int mtu);
