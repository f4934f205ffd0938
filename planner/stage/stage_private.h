/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The inside of a stage context: stage.c (queries), planner/stage/mesh.c (tables per submesh and
 * price), planner/stage/ties.c (shared parameters), planner/stage/solution.c (what was chosen).
 */
#pragma once

#include <stdint.h>

#include "planner/stage/layers.h"

/*
 * Memory prices are a fixed multiplier steps, so that tables are shared by all queries: multiplier
 * 0 is free, multiplier k costs 1e-16·2^(k/2) seconds per byte, which ends where a byte is worth 2
 * ms.
 */
enum { AP_STAGE_MULTIPLIERS = 90 };

/* All ranges that start at one layer: row `last - first` is a table [in][out]. */
typedef struct ap_stage_prefix {
    int rows;
    double **cost;
    uint16_t **through; /* spec index of the boundary before the row's last layer */
    int borrowed;       /* so many rows, the first, are those of an earlier chain of equal layers */
} ap_stage_prefix_t;

/* Everything solved at one memory price and with one tie. */
typedef struct ap_stage_multiplier {
    int multiplier, in_flight; /* in_flight is 0 on multiplier 0, where it does not matter */
    ap_layer_weights_t weights;
    ap_layer_table_t **table; /* per distinct layer, NULL until needed */
    ap_stage_prefix_t *chain; /* per first layer; of a tie, where the first layer that reads the
                                 parameter has it alone and later ones find it held */
} ap_stage_multiplier_t;

/* A submesh in a logical shape. */
typedef struct ap_stage_mesh {
    int hosts, devices, shape[2];
    ap_cost_mesh_t *cost;
    ap_reshard_memo_t *memo;
    ap_layer_problem_t **problem; /* per distinct layer, NULL until needed */
    int multipliers;
    size_t multiplier_room;
    ap_stage_multiplier_t **multiplier;
} ap_stage_mesh_t;

struct ap_stage_context {
    xm_arena_t arena; /* all that it finds, but the lists that grow */
    ap_graph_t *training;
    const ap_cost_model_t *cost;
    int micro_batches;
    bool rematerialize;
    ap_space_t part;          /* valid when `space.space` points at it */
    ap_layer_space_t space;   /* all zero: the whole space */
    ap_factor_roles_t *roles; /* per operator, NULL with the whole space */
    int layers;
    int distinct;     /* layers that differ */
    int *distinct_of; /* per layer */
    int *example;     /* per distinct layer: the first such layer */
    int tied;         /* the largest parameter that several operators read, or -1 */
    int *ties;        /* per layer: operators that read it */
    int meshes;
    size_t mesh_room;
    ap_stage_mesh_t **mesh;
};

/* A plan of a range: per layer the cell of the table of a multiplier. */
typedef struct ap_stage_cell {
    ap_stage_multiplier_t *multiplier;
    int in, out;
} ap_stage_cell_t;

typedef struct ap_stage_plan {
    ap_stage_mesh_t *mesh;
    int first, last;
    ap_stage_cell_t *cells;
    ap_parts_t parts;
    double bound;
    ap_layer_tie_t tie; /* the best one when memory costs nothing */
} ap_stage_plan_t;

/* The mesh and multiplier objects, made on first use. */
xm_status_t ap_stage_mesh_get(ap_stage_context_t *context, const ap_stage_query_t *query,
                              ap_stage_mesh_t **mesh);
xm_status_t ap_stage_multiplier_get(ap_stage_context_t *context, ap_stage_mesh_t *mesh,
                                    int multiplier, int in_flight, ap_layer_tie_t tie,
                                    ap_stage_multiplier_t **found);
/* That of a layer in the ranges from `first` on, which differs where a tie does not apply or the
 * parameter is held. */
xm_status_t ap_stage_multiplier_at(ap_stage_context_t *context, ap_stage_mesh_t *mesh,
                                   const ap_stage_multiplier_t *multiplier, int first, int layer,
                                   ap_stage_multiplier_t **found);
xm_status_t ap_stage_problem_get(ap_stage_context_t *context, ap_stage_mesh_t *mesh, int layer,
                                 const ap_layer_problem_t **problem);
/* Extends the chain of a first layer up to `last`. */
xm_status_t ap_stage_prefix_get(ap_stage_context_t *context, ap_stage_mesh_t *mesh,
                                ap_stage_multiplier_t *multiplier, int first, int last,
                                const ap_stage_prefix_t **chain);
/* Frees what is not in the context's arena. */
void ap_stage_mesh_release(const ap_stage_context_t *context, ap_stage_mesh_t *mesh);

/* The ends of a plan, and the tables that have it. */
typedef struct ap_stage_ends {
    const ap_stage_multiplier_t *multiplier;
    const ap_stage_prefix_t *chain;
    int in, out;
    double priced;
} ap_stage_ends_t;

/* Looks for better ends than those known, at a memory price and with a tie, or with all of them; of
 * the ties that are left out, *least becomes a bound if it is below. */
xm_status_t ap_stage_improve_ends(ap_stage_context_t *context, const ap_stage_query_t *query,
                                  int number, ap_layer_tie_t tie, const ap_stage_plan_t *plan,
                                  ap_stage_ends_t *best);
xm_status_t ap_stage_try_ties(ap_stage_context_t *context, const ap_stage_query_t *query,
                              int number, const ap_stage_plan_t *plan, ap_stage_ends_t *best,
                              double *least);
/* Finds the parameter that ties apply to, and its readers. */
xm_status_t ap_stage_find_tied(ap_stage_context_t *context);

/* Answers a query with a plan; free it with ap_stage_plan_free(). */
xm_status_t ap_stage_plan(ap_stage_context_t *context, const ap_stage_query_t *query,
                          ap_stage_plan_t *plan);
void ap_stage_plan_cost(const ap_stage_context_t *context, const ap_stage_plan_t *plan,
                        ap_stage_cost_t *cost);
void ap_stage_plan_free(ap_stage_plan_t *plan);
