/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file case.h
 * A case: one resharding as it is asked for, before it is known which ranks take part.
 *
 * Cases come from the suites below, from the command line, or from a boundary of a parallel plan
 * (select.h). Suites, after the microbenchmarks of MLSys'23 and the resharding tests of Alpa:
 *
 *  - alpa-1m (1m1 … 1m7): 1 GiB from one device to every device of another mesh;
 *  - alpa-nm (nm1 … nm9): 2 GiB between meshes of several hosts;
 *  - alpa: both of them;
 *  - alpa-ablation: the cases of alpa-nm, each by broadcast under every scheduler of the paper's
 *    ablation and openshop (select.h makes the variants);
 *  - alpa-tests (t1 … t16): small tensors, each with the strategy its test is for. t1 and t2, t3
 *    and t4, t5 and t6 are pairs that differ in Alpa only in its local all-gather;
 *  - model: all tensors of a model, from its training to its serving ranks (model.h);
 *  - refit: the same, of weight refits that others have published (published.h).
 */
#pragma once

#include <stdbool.h>

#include "bench/model.h"
#include "resharding/layout.h"

/** Suites in the order of the option's choices. */
typedef enum rb_suite {
    RB_SUITE_ALPA,
    RB_SUITE_1M,
    RB_SUITE_NM,
    RB_SUITE_ABLATION,
    RB_SUITE_TESTS,
    RB_SUITE_MODEL,
    RB_SUITE_REFIT
} rb_suite_t;
#define RB_SUITE_NAMES "alpa|alpa-1m|alpa-nm|alpa-ablation|alpa-tests|model|refit"

enum {
    RB_CASE_NAME = 64,
    RB_DTYPE_TEXT = 16,
    RB_SIDE_TEXT = 160,
    RB_SHAPE_TEXT = 160,
    RB_ANY = -1
};

/** One side of a case. */
typedef struct rb_side {
    int axes; /**< mesh shape */
    int sizes[XM_MAX_AXES];
    xm_spec_t spec;
    int hosts; /**< placed on `devices` ranks of each of so many hosts; 0: placed by rank */
    int devices;
    int *ranks;    /**< explicit ranks in mesh order (owned), or NULL */
    char text[48]; /**< what reports call it instead of mesh and spec: a model's axes; "": those */
} rb_side_t;

typedef struct rb_case {
    char name[RB_CASE_NAME];
    char dtype[RB_DTYPE_TEXT];
    int64_t element_size;
    int dims;
    int64_t shape[XM_MAX_DIMS];
    rb_side_t src, dst;
    xm_partition_t partition;
    int seed;                   /**< of randomised schedulers */
    int strategy;               /**< xm_strategy_t the case is made for, or RB_ANY */
    int scheduler;              /**< xm_scheduler_t likewise */
    int ranks_per_host;         /**< of the cluster the case is made for; 0: one host */
    bool pack;                  /**< both sides share a host when they fit into one */
    rb_model_request_t request; /**< of a model: what it is loaded from */
    int variant, variants;      /**< place and number among those of the same case that differ in
                                   strategy and scheduler (select.h); number 0 owns */
    rb_model_t *model;          /**< all tensors of the case (owned), once loaded; NULL: one tensor,
                                   described by the above */
} rb_case_t;

/** Number of devices of a side. */
int rb_side_size(const rb_side_t *side);

/** Number of cases in all suites. */
int rb_suite_cases(void);
/** Name of case @p index, and whether a suite holds it. */
const char *rb_suite_case_name(int index);
bool rb_suite_holds(rb_suite_t suite, int index);
/** Fills @p result with case @p index. A model is not loaded yet. */
xm_status_t rb_suite_case(int index, rb_case_t *result);

/** A case of the model that @p request describes, which is not loaded yet. */
void rb_case_of_model(const rb_model_request_t *request, rb_case_t *result);

/** True for the cases that rb_case_load_model() is for. */
bool rb_case_is_model(const rb_case_t *one);

/** Loads the model that one->request says, and names the sides and the type. */
xm_status_t rb_case_load_model(rb_case_t *one);

/** Gives the case's tensor another element type, by any of the names that models' files know. */
xm_status_t rb_case_set_dtype(rb_case_t *one, const char *name);

/** Divides the extent of dimension 0 by @p divisor; fails when that leaves a remainder. */
xm_status_t rb_case_scale(rb_case_t *scaled, int64_t divisor);

/** "2x4:S01RR" into @p buffer, which is returned. */
char *rb_side_format(const rb_side_t *side, char *buffer, size_t size);

/** "1024x1024x512", or "723 tensors", into @p buffer, which is returned. */
char *rb_case_format_shape(const rb_case_t *one, char *buffer, size_t size);

void rb_case_clear(rb_case_t *cleared);
