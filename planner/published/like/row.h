/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file planner/published/like/row.h
 * Published planners as rows of a table. A row has four independent parts:
 *
 *  - a *space*: which plans the planner may choose from (space.h);
 *  - a *search*: how it chooses;
 *  - a *schedule* of the pipeline that it plans for;
 *  - whether it looks at *memory*: else its plans may not fit.
 *
 * like.h runs a row on a model and a cluster. All rows plan on the same graph and the same measured
 * costs, and their plans are judged alike; so a row says what a planner's space and search cost
 * here, not how fast its authors' program is.
 *
 * Constant data, shared freely.
 */
#pragma once

#include "planner/published/choice.h"
#include "planner/plan.h"
#include "planner/published/placement.h"
#include "planner/stage.h"

typedef enum ap_search_kind {
    AP_SEARCH_STAGES,    /**< stage slicing over exact plans of layers (planner.h) */
    AP_SEARCH_GRID,      /**< equal stages, every combination of degrees judged */
    AP_SEARCH_REDUCTION, /**< node and edge elimination (OptCNN, Jia, ICML'18) */
    AP_SEARCH_ORDERING, /**< DP over an order of the operators (planner/published/choice/ordering.h)
                         */
    AP_SEARCH_MCMC,     /**< random walk from data parallelism (planner/published/choice/mcmc.h) */
    AP_SEARCH_RECURSIVE, /**< one mesh axis after the other, exactly
                            (planner/published/choice/recursive.h) */
    AP_SEARCH_GREEDY,    /**< one mesh axis after the other, greedily
                            (planner/published/choice/recursive.h) */
    AP_SEARCH_FRONTIER,  /**< curve of time over memory (planner/published/choice/frontier.h) */
    AP_SEARCH_LAYERWISE, /**< grid of equal stages, within them one uniform sharding per layer under
                            the memory limit */
    AP_SEARCH_IDEALS,    /**< DP over down-sets with data and tensor degrees (piper.h) */
    AP_SEARCH_PLACEMENT, /**< DP over down-sets, one device each (placement.h) */
    AP_SEARCH_TREE,      /**< tree search with propagation (planner/published/choice/mcts.h) */
    AP_SEARCH_SUBSTITUTION, /**< best-first over substitutions
                               (planner/published/choice/substitution.h) */
    AP_SEARCH_PROPOSALS     /**< placements proposed by the row's `proposals` (placement.h) */
} ap_search_kind_t;

typedef struct ap_row_schedule {
    const char *kind; /**< a name of planner/pipeline/schedule.h; "auto": the fastest that a plan
                         can have */
    bool stash;       /**< a version of the parameters for every micro-batch in flight */
} ap_row_schedule_t;

enum { AP_PRESET_ALSO = 4 };

typedef struct ap_planner_preset {
    const char *name;
    const char *source; /**< authors, venue and year */
    ap_space_t space;
    ap_search_kind_t search;
    ap_row_schedule_t schedule;
    bool memory;                      /**< it looks at the memory of a device */
    bool by_speed;                    /**< devices take parts as large as they are fast */
    ap_placement_kind_t proposals;    /**< of AP_SEARCH_PROPOSALS */
    const char *also[AP_PRESET_ALSO]; /**< others whose planner is this one here; NULL after them */
} ap_planner_preset_t;

/** What a search that takes as long as it is let may be told; 0: its own default. */
typedef struct ap_like_effort {
    uint64_t seed;
    int64_t budget; /**< proposals of a random walk, completions of a tree search */
    double alpha;   /**< how unwilling a random walk is to get worse; how much worse than the best
                       a start of substitutions may be, 1 or more */
    const struct ap_like_rules *rules; /**< of substitutions (moves.h); NULL: any cut */
    const char
        *strategies; /**< FlexFlow's file (flexflow.h): no search but what it says; or NULL */
    /** Is told every plan that the judge has seen, hopeless points of a grid too; or NULL. */
    void (*tell)(const ap_plan_t *judged, double over_bytes);
    const struct ap_galvatron *galvatron; /**< a file of Galvatron, in the same way */
} ap_like_effort_t;

/** A network to search by a row. */
typedef struct ap_like_choice {
    const ap_planner_preset_t *row;
    ap_like_effort_t effort;
    const ap_cfn_core_t *network;
    const uint8_t *const *part; /**< as planner/published/choice/recursive.h has them */
    int axes;
    double memory_limit; /**< of a random walk; 0: none */
} ap_like_choice_t;

/** Searches by the rows that choose one sharding; @p assignment: where a random walk starts, then
 * what was found. */
xm_status_t ap_like_choose(const ap_like_choice_t *choice, int *assignment);

/** The table, `default` (ours) last. */
const ap_planner_preset_t *ap_planner_presets(int *count);

/** The row of this name or one of its others; an unknown name is an error that gives what
 * docs/published-systems.md says of it, or the nearest row. */
xm_status_t ap_planner_preset_find(const char *name, const ap_planner_preset_t **row);

/** "stage slicing", "grid", … */
const char *ap_planner_preset_search(const ap_planner_preset_t *row);
