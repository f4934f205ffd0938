/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file emulated_cluster.h
 * Several hosts on one machine that share nothing but NICs of limited speed.
 *
 * A host is a set of namespaces of its own (network, IPC, host name, processes, mounts with their
 * own /proc, /sys and /dev/shm), so that programs in it see what they would see on a machine of
 * their own: UCX finds shared memory inside a host and nothing but the NICs between hosts, with
 * every setting at its default. bench/cluster/shape.h says what NICs, addresses and rates there
 * are.
 *
 * Everything belongs to one process, the *holder*: the namespace of the switch is its own, and the
 * first process of each host is its child. When it ends, however that happens, the kernel removes
 * hosts, NICs, bridges and every process inside. Nothing is made in the machine's own namespaces.
 *
 * Needs root, or user namespaces that everybody may make; and ip(8) and tc(8).
 *
 * @code
 *     rb_emulated_cluster_params_t params = {0};
 *     rb_emulated_cluster_t *cluster;
 *
 *     params.shape = &shape;
 *     status = rb_emulated_cluster_create(&params, &cluster);
 *     if (status == XM_OK) {
 *         pid_t child = fork();
 *         if (child == 0) {
 *             if (rb_emulated_cluster_enter(cluster, 1) == XM_OK) {
 *                 execlp("hostname", "hostname", NULL);
 *             }
 *             _exit(127);
 *         }
 *         waitpid(child, &wait_status, 0);
 *         rb_emulated_cluster_destroy(cluster);
 *     }
 * @endcode
 *
 * Threads: one thread at a time per cluster; creating and entering fork, so the process should have
 * one thread only.
 */
#pragma once

#include "bench/cluster/shape.h"
#include "bench/cluster/state.h"

typedef struct rb_emulated_cluster rb_emulated_cluster_t;

/** Instead of a host: the head node, in the switch's network, with the machine's processes. */
enum { RB_EMULATED_HEAD = -1 };

typedef struct rb_emulated_cluster_params {
    const rb_cluster_shape_t *shape;
    bool lasting; /**< it outlives its maker and is found by its name; else it dies with the thread
                     that created it */
} rb_emulated_cluster_params_t;

/**
 * Makes a cluster and waits until its hosts are ready. After a failure nothing is left of it; the
 * sentence says what could not be made, or that the right to make it is missing.
 */
xm_status_t rb_emulated_cluster_create(const rb_emulated_cluster_params_t *params,
                                       rb_emulated_cluster_t **cluster);

/** Finds a lasting cluster by its name. */
xm_status_t rb_emulated_cluster_open(const char *name, rb_emulated_cluster_t **cluster);

const rb_cluster_members_t *rb_emulated_cluster_members(const rb_emulated_cluster_t *cluster);

/** True as long as the host's first process lives. */
bool rb_emulated_cluster_host_lives(const rb_emulated_cluster_t *cluster, int host);

/**
 * Moves the calling process, a forked child, into @p host; the working directory stays. Returns in
 * a child of the caller's, because only a new process can be in a host's process namespace: the
 * caller itself stays behind, passes signals on, ends as its child does and takes it along when it
 * is killed. Fails without having forked.
 *
 * RB_EMULATED_HEAD needs no such child.
 */
xm_status_t rb_emulated_cluster_enter(const rb_emulated_cluster_t *cluster, int host);

/** Writes the address of a NIC into @p buffer, which is returned. */
char *rb_emulated_cluster_address(const rb_emulated_cluster_t *cluster, int host, int nic,
                                  char *buffer, size_t size);

/** Ends the cluster with everything in it and waits until it is gone. */
xm_status_t rb_emulated_cluster_end(rb_emulated_cluster_t *cluster);

/** Frees the object, and ends the cluster unless it is a lasting one. NULL is accepted. */
void rb_emulated_cluster_destroy(rb_emulated_cluster_t *cluster);
