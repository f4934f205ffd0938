/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file sailor_private.h
 * What the files of this room share. Not installed.
 */
#pragma once

#include <jansson.h>
#include <limits.h>

#include "comm/profile.h"
#include "planner/boundary.h"
#include "planner/cost.h"
#include "planner/plan.h"

/* The artifact as it was read. */
typedef struct ap_sailor {
    const char *folder;
    json_t *network, *clusters, *training, *models, *profile;
    const json_t *layers; /* of the model: by tensor parallelism and layer */
    const char *model, *gpu;
    int per_host; /* GPUs of a host */
    xm_cluster_profile_t *cluster;
    ap_cost_model_t *cost;
    ap_cross_mesh_t *cross_mesh;
} ap_sailor_t;

enum { AP_SAILOR_STAGES = 64 };

/* A plan file. Every stage has as many replicas, of as many GPUs each. */
typedef struct ap_sailor_row {
    char name[64];
    const char *gpu;
    int stages, replicas, degree; /* pipeline, data and tensor parallelism */
    int first[AP_SAILOR_STAGES], last[AP_SAILOR_STAGES];
    int samples, batch; /* of a micro-batch, of a step */
    double step, sync, memory;
} ap_sailor_row_t;

/* Reads a document of the artifact. */
xm_status_t ap_sailor_load(const char *path, json_t **document);

/* The links of @p hosts hosts from the fits. */
xm_status_t ap_sailor_cluster(ap_sailor_t *sailor, int hosts);

/* Reads a plan file, which @p document is of; the GPU's name stays the document's. */
xm_status_t ap_sailor_row_read(const char *path, const json_t *document, ap_sailor_row_t *row);

/* The plan at our prices. */
xm_status_t ap_sailor_row_plan(const ap_sailor_t *sailor, const ap_sailor_row_t *row,
                               ap_plan_t **plan);
