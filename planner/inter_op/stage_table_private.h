/* SPDX-License-Identifier: Apache-2.0 */
/* The inside of a stage table: stage_table.c (what there is), stage_table_ask.c (questions to
 * stage.h), stage_table_bounding_pass.c (bounds, specs), stage_table_fill.c (prices),
 * stage_table_slice.c (searches), stage_table_judge.c (what plans take). Not installed. */
#pragma once

#include "planner/inter_op/stage_table.h"

enum {
    AP_TABLE_SUBMESHES = 128, /* shapes on classes of devices */
    AP_TABLE_VARIANTS = 32,   /* logical shapes of one submesh */
    AP_TABLE_SPECS = 3,       /* specs of a passing tensor that large tables try on a shape */
    AP_TABLE_TALLY = 16,
    AP_TABLE_RECOMPUTE_MODES = 2, /* without recomputation, with it */
    AP_TABLE_LEVELS = 32          /* ways to trade time for memory, all recompute modes together */
};

/* A way to trade time for memory. */
typedef struct ap_stage_level {
    int recompute_mode;
    int successors; /* stages after it to plan for; -1: memory is not looked at */
} ap_stage_level_t;

/* A logical shape of a submesh, and the specs its free plans use at their ends. */
typedef struct ap_stage_variant {
    int shape[2];
    ap_spec_t specs[AP_TABLE_TALLY]; /* the most frequent first */
    int uses[AP_TABLE_TALLY];
    int spec_count;
} ap_stage_variant_t;

struct ap_stage_table {
    ap_stage_table_params_t params;
    xm_arena_t arena;             /* all arrays */
    ap_stage_context_t **context; /* [recompute mode][class of devices] */
    bool recomputes[AP_TABLE_RECOMPUTE_MODES];
    int recompute_modes;
    int layers;
    ap_submesh_t submeshes[AP_TABLE_SUBMESHES];
    int class_of[AP_TABLE_SUBMESHES]; /* devices of such a submesh */
    bool *allowed;                    /* [submesh][host]: it may begin there */
    int submesh_count;
    ap_stage_variant_t variants[AP_TABLE_SUBMESHES][AP_TABLE_VARIANTS];
    int variant_count[AP_TABLE_SUBMESHES];
    int max_variants, max_specs; /* of any submesh, of any variant */
    ap_stage_level_t
        levels[AP_TABLE_LEVELS]; /* of each recompute mode first the one without a limit */
    int level_count;
    bool memory_binds;
    bool skips; /* some layer reads what another than the one before it has made */
    int config_count;
    int *same_as; /* [first][last]: index of the earlier range of equal layers, or itself */
    int *row;     /* [first][last]: row of the tables below, one per kind of range */
    int rows;
    double *least; /* [row][submesh][recompute mode]: seconds of the best plan, specs and memory
                      aside */
    double *least_certain; /* the same without what is done once a step, but by the first stage */
    double *again; /* [row][submesh]: seconds that running the forward pass again takes at least */
    int32_t *
        room; /* [row][submesh][recompute mode]: stages that any plan could allow after it, or -1 */
    double *filled; /* [row][submesh]: its configurations that take no longer are in the tables */
    /* [row][submesh][configuration]: seconds for each micro-batch, its share of what happens once a
     * step included; seconds that a step has for certain; passes; what happens once. */
    double *cost, *certain, *forward, *backward, *once;
    int32_t *successors;
    int *in_port, *out_port;
    int *boundary_kind, *boundary_place;
    int accumulated;      /* micro-batches to an update of the parameters */
    double forward_share; /* the most of a stage's passes that the paced bound leaves out */
    bool paced;           /* which of two bounds is the better one, see make_bound() */
    double beat;          /* only steps below are looked for; 0: all */
    int64_t evaluated;
    bool failed; /* a boundary cost could not be computed; why */
    char failure[512];
};

static inline int ap_stage_table_most_stages(const ap_stage_table_t *table)
{
    int devices = table->params.hosts * table->params.devices_per_host;

    return table->layers < devices ? table->layers : devices;
}

/* Where the tables have a range on a submesh. */
static inline size_t ap_stage_table_cell(const ap_stage_table_t *table, int first, int last,
                                         int submesh)
{
    return (size_t)table->row[first * table->layers + last] * (size_t)table->submesh_count +
           (size_t)submesh;
}

/* Stages that can follow this one in any pipeline over all devices; -1: it can be in none. */
int ap_stage_table_most_successors(const ap_stage_table_t *table, int first, int last, int submesh);

/* Bytes that one device of a submesh may use. */
double ap_stage_table_memory(const ap_stage_table_t *table, int submesh);

/* Micro-batches in flight on a stage from layer `first` on with so many stages after it. */
int ap_stage_table_in_flight(const ap_stage_table_t *table, int first, int successors);

/* Stages that may follow one of so many bytes, and so many for each micro-batch in flight; -1: it
 * does not fit. */
int32_t ap_stage_table_fitting(const ap_stage_table_t *table, int first, double bytes,
                               double activations, double limit);

/* Whether there may be stages of a range on a submesh in a logical shape: pins leave out most. With
 * a submesh of -1: on any. */
bool ap_stage_table_may_have(const ap_stage_table_t *table, int first, int last, int submesh,
                             const ap_stage_variant_t *variant);

/* The question for a range on a logical shape, specs and memory aside; and its answer. */
ap_stage_query_t ap_stage_table_ask_for(const ap_stage_table_t *table, int first, int last,
                                        int submesh, const ap_stage_variant_t *variant);
xm_status_t ap_stage_table_ask(ap_stage_table_t *table, int recompute_mode, int submesh,
                               const ap_stage_query_t *query, ap_stage_cost_t *cost);
int32_t ap_stage_table_successors(const ap_stage_table_t *table, int first, int submesh,
                                  const ap_stage_cost_t *cost);

/* Plans every range freely: bounds, the specs that its ends like, the levels that are needed. */
xm_status_t ap_stage_table_bounding_pass(ap_stage_table_t *table);

/* Micro-batches in flight that a level plans for. */
int ap_stage_table_level_in_flight(const ap_stage_table_t *table, const ap_stage_query_t *query,
                                   int level);

/* What a stage's cost has more than its seconds, for each host: of plans that are as fast, the one
 * that leaves hosts out comes first. */
static const double AP_TABLE_HOST = 1e-7;

/* The table as a problem of stage slicing. */
void ap_stage_table_problem(const ap_stage_table_t *table, double share,
                            ap_inter_op_problem_t *problem);

/* The part of a stage's gradients that no other stage waits for: weight halves, where there are. */
double ap_stage_table_delayed(const ap_stage_table_t *table);

/* The share of the sum in the objective of the search that proposes. */
double ap_stage_table_share(const ap_stage_table_t *table);
void ap_stage_table_note_share(ap_stage_table_t *table, const ap_stage_cost_t *cost);

/* Prices the stages that a plan with an objective below @p threshold can have, by a problem over
 * the costs of the bounding pass, as far as their own cost is at most @p most, or with 0 the
 * longest that such a plan allows. With @p open it only adds up how many are not priced. */
xm_status_t ap_stage_table_reach(ap_stage_table_t *table, const ap_inter_op_problem_t *problem,
                                 double threshold, double most, int *open);

/* A search over this table at work. */
typedef struct ap_stage_slicing {
    ap_stage_table_t *table;
    double share;
    xm_arena_t arena;            /* the arrays below */
    xm_arena_t links;            /* of the plan that the judge looks at */
    ap_pipeline_stage_t *stages; /* scratch of the judge */
    ap_pipeline_transfer_t *transfers;
    ap_passing_t passing;
} ap_stage_slicing_t;

/* How the stages of a port cut the tensor of their boundary; *side: their logical shape. */
ap_spec_t ap_stage_table_side(const ap_stage_table_t *table, int port, ap_cross_mesh_side_t *side);

/* Keeps why a boundary has no price; returns its seconds. */
double ap_stage_table_failed(ap_stage_table_t *table);

/* The search's judge and its floor, in the units of the search; @p arg is the search at work. */
double ap_stage_table_judge(void *arg, const ap_inter_op_stage_t *stages, int count);
double ap_stage_table_floor(void *arg, const ap_inter_op_stage_t *stages, int count, double rest);
