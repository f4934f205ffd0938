/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file like.h
 * Plans a model as another planner would (planner/published/like/row.h), and judges every planner's
 * plan alike.
 *
 * The row's search chooses stages, shardings, recomputation and the number of micro-batches by the
 * costs that the row sees. The judge then takes the plan as it is: the measured costs of every
 * operator, collective and resharding, the row's schedule simulated event by event, and the memory
 * of every device with the micro-batches (and versions of the parameters) that it holds. Where a
 * row leaves a choice to experiment (grids, the number of micro-batches outside 1f1b), it takes
 * what the judge finds fastest.
 *
 * A row that does not look at memory may give a plan that does not fit: `over_bytes`.
 * A row that finds no plan at all is no error: `plan` is NULL and `why` a sentence.
 *
 * Deterministic, but for `search_seconds`. Threads: no shared state.
 *
 * @code
 *     status = ap_planner_preset_find("megatron", &row);
 *     status = ap_like_run(row, NULL, &params, &result);     // params as for ap_planner_run()
 *     printf("%s: %g s\n", row->name, result.step);
 *     ap_like_result_clear(&result);
 * @endcode
 */
#pragma once

#include "planner/cost.h"

#include <autopar/like.h>

#include "planner/search.h"
#include "planner/published/like/galvatron.h"
#include "planner/published/like/moves.h"
#include "planner/published/like/row.h"
#include "planner/published/like/shard.h"
#include "planner/published/like/template.h"

/** A point of a curve of time over memory. */
typedef struct ap_like_point {
    double seconds; /**< of a micro-batch, as the search counts */
    double bytes;   /**< of a device: state and kept activations */
    double step;    /**< judged */
    double memory;  /**< judged: bytes of a device */
    int64_t micro_batches;
} ap_like_point_t;

typedef struct ap_like_result {
    const ap_planner_preset_t *row;
    ap_plan_t *plan;        /**< judged; NULL: none */
    double step;            /**< predicted seconds of a training step */
    double memory;          /**< bytes of the fullest device */
    double over_bytes;      /**< of these beyond the limit; 0: it fits */
    double search_seconds;  /**< wall-clock time of the search, judging included */
    int64_t judged;         /**< plans that the judge has seen */
    ap_like_point_t *curve; /**< tensoropt: of the number of micro-batches and mesh of `plan` */
    int curve_count;
    struct ap_galvatron *galvatron; /**< galvatron's search: the plan as its files have it */
    char why[512];                  /**< why there is no plan */
} ap_like_result_t;

/**
 * Runs a row; @p effort of its search, NULL: its own. Of @p params `space`, `all_devices` and
 * `schedule` are the row's; numbers of stages and recomputation are those that both allow.
 */
xm_status_t ap_like_run(const ap_planner_preset_t *row, const ap_like_effort_t *effort,
                        const ap_planner_params_t *params, ap_like_result_t *result);

/** Frees what it owns. NULL and all-zero are accepted. */
void ap_like_result_clear(ap_like_result_t *result);
