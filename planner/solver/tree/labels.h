/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Solutions and bounds by dynamic programming with labels
 * (planner/solver/tree/label_pass.h). Private to the solver.
 */
#pragma once

#include "planner/solver/bound.h"
#include "planner/solver/network.h"

typedef enum ap_cfn_label_end {
    AP_CFN_LABEL_DONE,  /* all below the cap was seen */
    AP_CFN_LABEL_LARGE, /* tables or work are too much: a smaller cap leaves fewer values */
    AP_CFN_LABEL_LOOSE, /* what was found does not fit: more times have to be looked at */
    AP_CFN_LABEL_MANY   /* labels had to be left out: a larger width keeps them */
} ap_cfn_label_end_t;

/*
 * One pass over what solutions below `cap` can be made of. It looks at the limit at `times` times,
 * keeps about `width` labels per step, offers the best solution that they lead to, and raises the
 * shared bound: to the cap, where nothing had to be left out. `work` limits it, in nanoseconds of a
 * usual core.
 */
xm_status_t ap_cfn_label(const ap_cfn_dual_t *root, ap_cfn_shared_t *shared, double cap, int times,
                         size_t width, double work, ap_cfn_label_end_t *end);

/* What passes have learnt: times, labels per step, and the part of the gap that they look at. */
typedef struct ap_cfn_labels {
    int times;
    size_t width;
    double reach;
} ap_cfn_labels_t;

#define AP_CFN_LABELS_INIT                                                                         \
    {                                                                                              \
        .times = 4, .width = 500, .reach = 1.0                                                     \
    }

/* Passes until a proof, or until so much work was done. Can be called again. */
xm_status_t ap_cfn_labels(const ap_cfn_dual_t *root, ap_cfn_shared_t *shared,
                          ap_cfn_labels_t *labels, double work);
