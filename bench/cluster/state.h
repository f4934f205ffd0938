/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file bench/cluster/state.h
 * The files by which clusters that outlive their maker are found again: one a cluster, named after
 * it, in JSON.
 *
 * A cluster's holder keeps its file locked. So a file that nobody has locked is a leftover of a
 * holder that was killed: it counts as no cluster, and a new one of that name takes it over.
 *
 * The files are in $EMULATED_CLUSTER_DIR when it is set, else in `emulated-cluster` under
 * $XDG_RUNTIME_DIR or (root) /run, else in /tmp/emulated-cluster-<uid>.
 */
#pragma once

#include <limits.h>

#include "bench/cluster/shape.h"

/** The variable that names the folder of the files. */
#define RB_CLUSTER_STATE_DIR "EMULATED_CLUSTER_DIR"

typedef struct rb_cluster_members {
    rb_cluster_shape_t shape;
    pid_t holder;
    pid_t init[RB_CLUSTER_HOSTS]; /**< the first process of each host */
} rb_cluster_members_t;

/** Writes the folder of the files, which is made when it is missing, into @p buffer. */
xm_status_t rb_cluster_state_folder(char *buffer, size_t size);

/** A locked file. The lock lasts as long as any process has the descriptor. */
typedef struct rb_cluster_claim {
    int fd; /**< -1: none */
    char path[PATH_MAX];
} rb_cluster_claim_t;

/** Locks the file of a cluster that is to be made. Fails when one of this name exists. */
xm_status_t rb_cluster_state_claim(const char *name, rb_cluster_claim_t *claim);

/** Fills the locked file. */
xm_status_t rb_cluster_state_write(const rb_cluster_claim_t *claim,
                                   const rb_cluster_members_t *members);

/** Removes the file. */
void rb_cluster_state_remove(const rb_cluster_claim_t *claim);

/** Reads the file of a cluster that lives. */
xm_status_t rb_cluster_state_read(const char *name, rb_cluster_members_t *members);

/** The cluster as a JSON document, to be freed; NULL when memory is short. */
char *rb_cluster_state_dump(const rb_cluster_members_t *members);
