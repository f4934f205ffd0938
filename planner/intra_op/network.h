/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A sharding problem as a cost function network (planner/solver/network/network.h). Private;
 * planner/intra_op/plan.h solves it.
 *
 * A variable stands for a class of nodes (planner/intra_op/symmetric.h). Its *options* are the
 * strategies of the nodes, some of them twice or more:
 *
 *  - what an operator of the forward part makes is kept for the backward part, computed again there
 *    (costs its time again, uses less memory), or, where only others that are computed again would
 *    need it, given up (planner/intra_op/live_range.h);
 *  - the gradient of a parameter that is scattered is so after the last micro-batch (cheap), or
 *    after each (less memory).
 *
 * Under a memory limit what the tensors use over their live ranges becomes usage. A parameter or
 * large tensor that is used in another spec than it is kept in has a copy then, a variable of its
 * own.
 */
#pragma once

#include "planner/solver/network.h"
#include "planner/intra_op/live_range.h"
#include "planner/intra_op/plan.h"
#include "planner/intra_op/times.h"

typedef enum ap_shard_keep {
    AP_SHARD_KEPT,
    AP_SHARD_REMATERIALISED,
    AP_SHARD_DROPPED
} ap_shard_keep_t;

typedef struct ap_shard_option {
    int strategy;
    ap_shard_keep_t keep;
    bool early; /* scatters a gradient after every micro-batch */
    double cost;
} ap_shard_option_t;

/* Rows of usage of a variable; -1: none. */
typedef struct ap_shard_rows {
    int *result;    /* per result: what live ranges without a pause, or up to it */
    int kept, late; /* of the first result: during the pause, after it */
    int passing;    /* while the operator runs */
    int state;      /* of the optimizer, all the time */
} ap_shard_rows_t;

typedef struct ap_shard_variable {
    int node; /* the first of its class; -1: a copy of a tensor for its user */
    int copies;
    int options;
    ap_shard_option_t *option;
    bool modes; /* there are options of several ap_shard_keep_t */
    ap_shard_rows_t rows;
} ap_shard_variable_t;

/* Memory that one choice decides. */
typedef struct ap_shard_buffer {
    int variable;
    ap_shard_part_t part;
    double *bytes; /* per option */
} ap_shard_buffer_t;

/*
 * What several operators share (planner/intra_op/network_share.c). A tensor that is resharded for
 * one reader serves the others: a copy of it in another spec is made once, and every reader takes
 * from the tensor or from the copy whichever is cheaper. So k, v and q share one gather of their
 * input, and one reduction of its gradient. Where a network has a memory limit the copy takes
 * memory until its last reader, so only readers of the same part of the step share.
 */

/* A node whose strategy the shared costs depend on. */
typedef struct ap_shard_end {
    int node, term, wire;
    double *cost;  /* [strategy][option] */
    double *again; /* the same, of a reader that is computed again, besides */
} ap_shard_end_t;

/* Tensors, or sums of gradients, between the same terms of the same classes. */
typedef struct ap_shard_shared {
    int count; /* of such tensors */
    bool sums; /* a sum of gradients; else the first end makes a tensor and the others read it */
    double weight;
    int ends;
    ap_shard_end_t *end; /* of the first tensor */
    int options;
    double *own;  /* per option: what no end bears */
    double *copy; /* per option: bytes of the copy */
} ap_shard_shared_t;

typedef struct ap_shard_sharing {
    xm_arena_t *arena; /* the network's */
    int groups;
    ap_shard_shared_t *group;
    int *group_of; /* per wire: what it is a part of, or -1 */
    int *first;    /* per tensor: its first wire, or -1 */
    int *next;     /* per wire: the tensor's next one, or -1 */
} ap_shard_sharing_t;

typedef struct ap_shard_network {
    const ap_shard_problem_t *problem;
    xm_arena_t arena; /* all arrays but those that grow */
    ap_shard_symmetric_t alike;
    ap_shard_live_ranges_t live_ranges;
    ap_shard_sharing_t sharing;
    ap_shard_variable_t *variable; /* per class */
    bool *gradient;                /* per tensor: of a parameter */
    bool *state;                   /* per tensor: the optimizer's */
    double copied_bytes;           /* copies of smaller activations are not counted */
    int rows, uses;
    size_t row_capacity, use_capacity;
    ap_shard_buffer_t *row;
    ap_shard_use_t *use;
    int copies;   /* variables between those of the classes and those of what is shared */
    double scale; /* costs in the network per unit of the model's */
    ap_cfn_t *cfn;
} ap_shard_network_t;

/* `limited`: with the options' limit and what serves to meet it. */
xm_status_t ap_shard_network_create(const ap_shard_problem_t *problem,
                                    const ap_shard_options_t *options, bool limited,
                                    ap_shard_network_t **network);

/* Memory of a choice (an option per node of `cfn`) at every operator, in parts. */
void ap_shard_network_memory(const ap_shard_network_t *network, const int *choice,
                             ap_shard_memory_t *memory);

/* A bound from below on the peak of every choice, and the operator that it belongs to. */
xm_status_t ap_shard_network_lower_bound(const ap_shard_network_t *network, double *least, int *op);

/* Refuses a limit below that bound, by a sentence that names the operator. */
xm_status_t ap_shard_network_check_least(const ap_shard_network_t *network, double limit);

/* Says why nothing was found under a limit (0: none), and returns the status. */
xm_status_t ap_shard_network_explain(const ap_shard_network_t *network, double limit,
                                     xm_status_t status);

/* What a choice costs, from the problem itself. */
double ap_shard_network_cost(const ap_shard_network_t *network, const int *choice);

void ap_shard_network_destroy(ap_shard_network_t *network);

/* Whether the users of a wire have copies that are counted, where they use it in another spec. */
bool ap_shard_has_copies(const ap_shard_network_t *network, const ap_shard_wire_t *wire);

/* Whether the two ends of a wire can be computed again at the same time. */
bool ap_shard_same_segment(const ap_shard_network_t *network, const ap_shard_wire_t *wire);

/* A new row of zeroes for `options` options, and a use of a row. */
xm_status_t ap_shard_buffer_add(ap_shard_network_t *network, int variable, int options,
                                ap_shard_part_t part, int *row);
xm_status_t ap_shard_use_add(ap_shard_network_t *network, int row, int first, int end);

/* Fills `cfn` of a network whose variables and uses are there (planner/intra_op/network_emit.c). */
xm_status_t ap_shard_network_emit(ap_shard_network_t *network, double memory_limit);

/* With `share` false there are no groups. `limited`: memory counts; `turn`: the first operator of
 * the backward pass. */
xm_status_t ap_shard_sharing_create(const ap_shard_problem_t *problem,
                                    const ap_shard_symmetric_t *alike, bool share, bool limited,
                                    int turn, xm_arena_t *arena, ap_shard_sharing_t *sharing);

/* The next wire of the same shared tensor, or -1. */
int ap_shard_next_reader(const ap_shard_sharing_t *sharing, int wire);

/* What an end pays under its option and a value of the group. */
double ap_shard_end_cost(const ap_shard_shared_t *group, int end, const ap_shard_option_t *option,
                         int value);

/* What a strategy of a class pays for reducing a gradient, if a group has that. */
double ap_shard_reduction_seconds(const ap_shard_sharing_t *sharing, const ap_shard_problem_t *p,
                                  const ap_shard_symmetric_t *alike, int class, int strategy);
