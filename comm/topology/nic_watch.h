/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file nic_watch.h
 * Hears from the kernel when network interfaces go up or down, or lose their addresses. Internal.
 *
 * One netlink socket; what it says is only taken as the reason to look at all interfaces anew, so
 * lost messages do no harm. Without netlink (a sandbox that forbids it) nothing is ever down.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "comm/topology/nics.h"

typedef struct xm_nic_watch {
    int fd;              /**< readable when there is news; -1: closed */
    unsigned ipv4, ipv6; /**< NICs that were up when the watch began, and had an address of that
                            kind: only those can go down */
    unsigned down; /**< those that are down now, or have lost the kind they had (IPv4 of both) */
} xm_nic_watch_t;

/** Begins; never fails. */
void xm_nic_watch_open(xm_nic_watch_t *watch, const xm_nics_t *nics);
void xm_nic_watch_close(xm_nic_watch_t *watch);

/** Reads news, if there is any; true when `down` has changed. */
bool xm_nic_watch_read(xm_nic_watch_t *watch, const xm_nics_t *nics);
