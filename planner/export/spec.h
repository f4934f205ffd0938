/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file planner/export/spec.h
 * One sharding spec in the words of JAX, XLA and PyTorch.
 */
#pragma once

#include <jansson.h>
#include <stdio.h>

#include "planner/cost.h"

/** A mesh as exports see it. */
typedef struct ap_export_mesh {
    int rank;
    int size[AP_MAX_MESH_RANK];
} ap_export_mesh_t;

enum { AP_HLO_SHARDING_TEXT = 256 };

/** The mesh that costs are bound to. */
ap_export_mesh_t ap_export_mesh_of(const ap_cost_mesh_t *mesh);

/** Writes `{"x": 2, "y": 4}`. */
void ap_export_put_mesh(FILE *stream, const ap_export_mesh_t *mesh);

/** Writes a PartitionSpec: `P("x", None, ("y", "z"))`; axes of one device are left out. */
void ap_export_put_partition_spec(FILE *stream, const ap_export_mesh_t *mesh, ap_spec_t spec,
                                  int rank);

/** Writes a Python string: UTF-8 as it is, control characters escaped. */
void ap_export_put_string(FILE *stream, const char *text);

/** The axes that cut each dimension: `[[0], [], [1, 2]]`; axes of one device are left out. */
json_t *ap_export_spec_json(const ap_export_mesh_t *mesh, ap_spec_t spec, int rank);

/** A name; bytes that are no character become question marks. */
json_t *ap_export_name_json(const char *name);

/**
 * XLA's V2 text: "{replicated}", "{devices=[4,1,2]<=[2,4]T(1,0) last_tile_dim_replicate}". Needs
 * AP_HLO_SHARDING_TEXT bytes; returns @p buffer.
 */
char *ap_export_hlo_sharding(const ap_export_mesh_t *mesh, ap_spec_t spec, int rank, char *buffer,
                             size_t size);

/** DTensor placements, one per mesh axis; axes in @p partial hold sums that are not complete. */
json_t *ap_export_placements(const ap_export_mesh_t *mesh, ap_spec_t spec, int rank,
                             unsigned partial);

/** `{"shape": [2, 4], "mesh_dim_names": ["x", "y"]}` */
json_t *ap_export_mesh_json(const ap_export_mesh_t *mesh);

json_t *ap_export_shape_json(const ap_shape_t *shape);

enum { AP_EXPORT_SPECS = 16 };

/** Specs as a plan lists them: "S0RR,RS1". */
typedef struct ap_export_specs {
    int count;
    int rank[AP_EXPORT_SPECS];
    ap_spec_t spec[AP_EXPORT_SPECS];
} ap_export_specs_t;

xm_status_t ap_export_read_specs(const char *text, ap_export_specs_t *list);
