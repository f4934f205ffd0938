/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file nics.h
 * The network devices that a rank uses towards other machines (XM_NICS). Internal.
 *
 * The text is `DEVICE[=RATE]{,DEVICE[=RATE]}`: devices as UCX names them, `eth0` for a network
 * interface and `mlx5_0:1` for a port of an RDMA device (`mlx5_0`: its first); rates in bit/s. A
 * device may be named twice: two connections over one NIC.
 */
#pragma once

#include <stdint.h>

#include "comm/base.h"

enum { XM_NICS_MAX = 8, XM_NICS_NAME_SIZE = 64 };

typedef struct xm_nic {
    char device[XM_NICS_NAME_SIZE]; /**< empty: whatever UCX chooses */
    uint64_t rate;                  /**< bit/s, at most XM_NICS_MAX_RATE; 0: nobody knows */
} xm_nic_t;

/** 10 Tbit/s: shares of XM_NICS_MAX such rates are computed in 64 bits. */
#define XM_NICS_MAX_RATE INT64_C(10000000000000)

typedef struct xm_nics {
    int count; /**< at least 1 */
    xm_nic_t nic[XM_NICS_MAX];
} xm_nics_t;

/**
 * Reads the text; empty or NULL gives one nameless NIC. Rates that it leaves out come from
 * @p sysfs ("/sys" on a live machine) where the driver tells one. Fails with a sentence about @p
 * rank when the text is malformed, or names a device that is not below @p sysfs (and lists what
 * is).
 */
xm_status_t xm_nics_parse(const char *text, int rank, const char *sysfs, xm_nics_t *nics);
