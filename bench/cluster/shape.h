/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file bench/cluster/shape.h
 * What an emulated cluster looks like: hosts, NICs and their rates, racks; and the orders to
 * iproute2's ip(8) and tc(8) that make it so.
 *
 * NIC i of host h is called nic<i> there and has the address 10.77.<i>.<h + 1>. All NICs of a rack
 * are plugged into one bridge, and those of several racks into a core. What a program sends from a
 * NIC's address leaves through that NIC and reaches any NIC of any host. The bridges stand in a
 * network namespace of their own, the switch, in which the head node 10.77.<i>.254 lives.
 *
 * A NIC sends at most at its rate (the queue of the host's end of its cable) and receives at most
 * at its rate (the queue of the switch's end). The queues are token buckets (htb) whose burst is
 * 2 ms of the rate and at least 125 kB; what waits is at most 10 ms of the rate, 20 ms below
 * 500 Mbit/s, and at least 256 KiB. A burst is what passes at once after a pause, so what is
 * measured must be much larger.
 */
#pragma once

#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>

#include "comm/base.h"

enum {
    RB_CLUSTER_HOSTS = 128, /**< most hosts */
    RB_CLUSTER_NICS = 8,    /**< most NICs of a host */
    RB_CLUSTER_NAME = 24    /**< size of a cluster's name with its terminator */
};

typedef struct rb_cluster_shape {
    char name[RB_CLUSTER_NAME]; /**< hosts are called <name>0, <name>1, … */
    int hosts, nics;            /**< nics: of each host */
    int racks;                  /**< of equally many neighbouring hosts; 1: no uplinks */
    int mtu;
    const char *congestion; /**< TCP's congestion control in the hosts; NULL: the machine's */
    int64_t rate[RB_CLUSTER_HOSTS][RB_CLUSTER_NICS]; /**< bit/s on the wire, per direction */
    int64_t queue;  /**< bytes that wait at a port before it drops more; 0: as an ordinary switch */
    int64_t uplink; /**< bit/s of a rack, per direction */
    double core_share; /**< of a core, that each process that enters a host has; 0: no limit */
} rb_cluster_shape_t;

/**
 * Fills in the rates of all NICs from @p host_rates (a NIC's, of the hosts in turn), or, when
 * @p nic_count is not 0, from @p nic_rates (of a host's NICs in turn, in all hosts).
 */
void rb_cluster_shape_set_rates(rb_cluster_shape_t *shape, const int64_t *host_rates,
                                int host_count, const int64_t *nic_rates, int nic_count);

/** Fails unless @p name can be a cluster's: letters, digits and hyphens, starting with a letter. */
xm_status_t rb_cluster_name_check(const char *name);

/** Fails with a sentence when numbers, name or rates are out of range or do not fit together. */
xm_status_t rb_cluster_shape_check(const rb_cluster_shape_t *shape);

/** Says on standard error, in one line, when the rates add up to more than such a machine moves. */
void rb_cluster_shape_warn(const rb_cluster_shape_t *shape, const char *program);

/** Sum of the rates of all NICs of @p host, of all hosts when it is negative. */
int64_t rb_cluster_shape_rate(const rb_cluster_shape_t *shape, int host);

/** The host that @p text names: an index or a host's name. -1 when there is none. */
int rb_cluster_shape_find(const rb_cluster_shape_t *shape, const char *text);

/** Writes the address of a NIC into @p buffer, which is returned. */
char *rb_cluster_shape_address(int host, int nic, char *buffer, size_t size);

/**
 * Writes the NICs @p first, @p first + @p step, … of a host as "nic0=1000000000,nic1=500000000"
 * (see XM_NICS) into @p buffer, which is returned; 0 and 1 for all of them.
 */
char *rb_cluster_shape_nics(const rb_cluster_shape_t *shape, int host, int first, int step,
                            char *buffer, size_t size);

/**
 * Orders for `ip -batch` and `tc -batch` in the switch. @p pids are the processes in whose network
 * namespaces the hosts' ends of the cables are put.
 */
void rb_cluster_shape_switch_links(const rb_cluster_shape_t *shape, const pid_t *pids,
                                   FILE *orders);
void rb_cluster_shape_switch_queues(const rb_cluster_shape_t *shape, FILE *orders);

/** Orders for `ip -batch` and `tc -batch` in a host, after those of the switch's links. */
void rb_cluster_shape_host_links(const rb_cluster_shape_t *shape, int host, FILE *orders);
void rb_cluster_shape_host_queues(const rb_cluster_shape_t *shape, int host, FILE *orders);
