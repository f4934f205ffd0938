/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file plugins/nccl/pipe/device.h
 * The network devices of this machine that pipes (pipe.h) can be bound to.
 *
 * These are, in this order of precedence: the NICs that XM_NICS names; one device that stands for
 * whatever UCX chooses, where UCX_NET_DEVICES is set; the suitable NICs of the topology
 * (nic_choice.h; those of XM_NICS=^… left out), in PCI order; one device that stands for whatever
 * UCX chooses.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "comm/base.h"

enum { XM_PIPE_DEVICES_MAX = 32, XM_PIPE_DEVICE_NAME_SIZE = 64, XM_PIPE_DEVICE_PATH_SIZE = 512 };

typedef struct xm_pipe_device {
    char name[XM_PIPE_DEVICE_NAME_SIZE];      /**< as UCX names it: "mlx5_0:1", "eth0"; "auto" */
    char nics[XM_PIPE_DEVICE_NAME_SIZE + 24]; /**< for ::xm_pipe_params_t; "" for "auto" */
    char pci_path[XM_PIPE_DEVICE_PATH_SIZE];  /**< canonical, in /sys; "" when it has none */
    uint64_t guid; /**< equal for the ports of one RDMA device, else unlike all others */
    int port;      /**< from 1 */
    double rate;   /**< bit/s; 0: nobody knows */
} xm_pipe_device_t;

/** Lists up to @p max devices, at least one. @p sysfs: "/sys" on a live machine. */
xm_status_t xm_pipe_devices_list(const char *sysfs, xm_pipe_device_t *devices, int max, int *count);

/**
 * The PCI function in a canonical path of /sys, as a path of its own: what hangs below it is cut
 * off, so that "…/0000:3b:00.0/virtio1" becomes "…/0000:3b:00.0". False when there is none.
 */
bool xm_pipe_device_pci_path(char *path);
