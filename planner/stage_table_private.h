/* The inside of a stage table: stage_table.c (which fills it), stage_table_slice.c. Not installed.
 */
#ifndef AP_PLANNER_STAGE_TABLE_PRIVATE_H
#define AP_PLANNER_STAGE_TABLE_PRIVATE_H

#include "planner/stage_table.h"

enum {
    AP_TABLE_SUBMESHES = 128, /* shapes on classes of devices */
    AP_TABLE_VARIANTS = 32,   /* logical shapes of one submesh */
    AP_TABLE_SPECS = 3,       /* specs of a passing tensor that are tried on one logical shape */
    AP_TABLE_TALLY = 16,
    AP_TABLE_LEVELS = 16
};

/* A logical shape of a submesh, and the specs its free plans use at their ends. */
typedef struct ap_stage_variant {
    int shape[2];
    ap_spec_t specs[AP_TABLE_TALLY]; /* the most frequent first */
    int uses[AP_TABLE_TALLY];
    int spec_count;
} ap_stage_variant_t;

struct ap_stage_table {
    ap_stage_table_params_t params;
    ap_stage_context_t **context; /* per class of devices */
    int layers;
    ap_submesh_t submeshes[AP_TABLE_SUBMESHES];
    int class_of[AP_TABLE_SUBMESHES]; /* devices of such a submesh */
    bool *allowed;                    /* [submesh][host]: it may begin there */
    int submesh_count;
    ap_stage_variant_t variants[AP_TABLE_SUBMESHES][AP_TABLE_VARIANTS];
    int variant_count[AP_TABLE_SUBMESHES];
    int max_variants, max_specs; /* of any submesh, of any variant */
    int levels[AP_TABLE_LEVELS]; /* micro-batches in flight to plan for; level 0: no limit */
    int level_count;
    bool memory_binds;
    int config_count;
    int *same_as; /* [first][last]: index of the earlier range of equal layers, or itself */
    int *row;     /* [first][last]: row of the tables below, one per kind of range */
    int rows;
    double *least; /* [row][submesh]: seconds of the best plan, specs and memory aside */
    double *again; /* [row][submesh]: seconds that running the forward pass again takes at least */
    int32_t *room; /* [row][submesh]: stages that any plan could allow after it; -1: none fits */
    bool *filled;  /* [row][submesh]: its configurations are in the tables */
    double *cost;  /* [row][submesh][configuration] */
    int32_t *successors;
    int *in_port, *out_port;
    int *boundary_kind, *boundary_place;
    int64_t evaluated;
    bool failed; /* a boundary cost could not be computed; why */
    char failure[512];
};

/* The table as a problem of stage slicing. */
void ap_stage_table_pose(ap_stage_table_t *table, ap_inter_op_problem_t *problem);

/* Prices the stages that a plan with T below @p threshold can have. */
xm_status_t ap_stage_table_reach(ap_stage_table_t *table, double threshold);

#endif
