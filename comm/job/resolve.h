/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file resolve.h
 * Addresses of a host name, within a deadline. Internal.
 *
 * The C library's resolver may block far longer than a job wants to wait and cannot be interrupted,
 * so names are looked up by a thread of their own, which is left behind when time is up. Numeric
 * addresses need neither.
 */
#pragma once

#include <stdint.h>
#include <sys/socket.h>

#include "comm/base.h"

enum { XM_ADDRESSES_MAX = 16 };

typedef struct xm_address {
    struct sockaddr_storage socket;
    socklen_t length;
} xm_address_t;

typedef struct xm_addresses {
    int count; /**< the first are to be preferred; more than fit are left out */
    xm_address_t list[XM_ADDRESSES_MAX];
} xm_addresses_t;

/**
 * TCP addresses of @p host with @p port, until @p deadline (xm_clock_seconds()). "Try again
 * later" of the name server is tried again. @p what names the setting in the failure sentence.
 */
xm_status_t xm_resolve(const char *what, const char *host, int port, double deadline,
                       xm_addresses_t *addresses);

/** An address as it travels: IPv6, or IPv4 mapped into it, without the port. */
enum { XM_ADDRESS_BYTES = 16 };
void xm_address_write(const struct sockaddr_storage *address, uint8_t bytes[XM_ADDRESS_BYTES]);
/** The opposite, with port 0. Mapped addresses become IPv4 ones. */
void xm_address_read(const uint8_t bytes[XM_ADDRESS_BYTES], xm_address_t *address);

/** True when @p host is an address in digits. */
bool xm_resolve_is_numeric(const char *host);

/** True for an address of the loopback network, also where IPv6 wraps one of IPv4. */
bool xm_address_is_loopback(const struct sockaddr_storage *address);

/** Changes the port. */
void xm_address_set_port(xm_address_t *address, int port);

/** The port of a socket address. */
int xm_address_port(const xm_address_t *address);
