/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Passes with labels, one after the other. Each looks at what can be part of a solution below a
 * cap: the nearer that is to the bound, the fewer values are left, and the smaller the tables. So
 * the cap falls until a pass is possible, and rises where it was complete: the bound is then there,
 * or a solution was found.
 */

#include "planner/solver/tree/labels.h"

#include <math.h>

#include "planner/solver/tree/label_pass.h"

/* Cells that a pass may look at, and the work that each stands for, with all that is made of it;
 * part of the gap below which no cap is tried, and that a new try begins with at least; what is
 * taken for the gap, as a part of the bound, while there is no solution. */
static const double most_cells = 3e7, cell_work = 60.0, least_reach = 1e-3, unknown_gap = 0.5,
                    first_reach = 0.06;
enum { ROUNDS = 10 };

/* Narrows a node until what is left no longer shrinks, or nothing is. */
static xm_status_t shrink(ap_cfn_tree_t *tree, ap_cfn_node_t *node, bool *closed)
{
    size_t dropped = 1;

    *closed = false;
    while (node->dual->core->variables > 0 && dropped > 0 && !ap_cfn_shared_is_over(tree->shared)) {
        ap_cfn_node_t next;
        xm_status_t status;

        *closed = ap_cfn_node_tighten(tree, node, ROUNDS, &dropped);
        if (*closed || dropped == 0) {
            break;
        }
        status = ap_cfn_node_narrow(tree, node, &next);
        if (status != XM_OK) {
            return status;
        }
        ap_cfn_node_destroy(node);
        *node = next;
    }
    return XM_OK;
}

xm_status_t ap_cfn_label(const ap_cfn_dual_t *root, ap_cfn_shared_t *shared, double cap, int times,
                         size_t width, double work, ap_cfn_label_end_t *end)
{
    ap_cfn_tree_t tree;
    ap_cfn_node_t node;
    double bound = HUGE_VAL;
    bool closed;
    xm_status_t status = ap_cfn_tree_create(root, shared, false, &tree, &node);

    if (status != XM_OK) {
        return status;
    }
    *end = AP_CFN_LABEL_DONE;
    tree.cap = cap;
    status = shrink(&tree, &node, &closed);
    /* Where messages have left few enough values, elimination moves the prices on, and more go. */
    if (status == XM_OK && !closed && node.dual->exact == NULL && node.dual->core->variables > 0) {
        status = ap_cfn_dual_eliminate(node.dual, fmin(most_cells, work / cell_work));
        if (status == XM_OK && node.dual->exact != NULL) {
            status = shrink(&tree, &node, &closed);
        }
    }
    if (status == XM_OK && !closed && node.dual->core->variables == 0) {
        ap_cfn_node_offer(&tree, &node);
    } else if (status == XM_OK && !closed) {
        bool finished = false, loose = false;

        bound = node.dual->best;
        if (node.dual->exact != NULL) {
            status = ap_cfn_label_pass(&tree, &node, times, width, work, &bound, &finished, &loose);
        }
        *end = bound >= fmin(cap, ap_cfn_tree_goal(&tree)) ? AP_CFN_LABEL_DONE
               : !finished                                 ? AP_CFN_LABEL_LARGE
               : loose                                     ? AP_CFN_LABEL_LOOSE
                                                           : AP_CFN_LABEL_MANY;
    }
    if (status == XM_OK) {
        ap_cfn_shared_raise(shared, fmin(fmin(bound, cap), ap_cfn_shared_cost(shared)));
    }
    ap_cfn_node_destroy(&node);
    ap_cfn_tree_destroy(&tree);
    return status;
}

/* Half of the work that is left goes into one pass, so that one that is too large leaves time for
 * one with a smaller cap. Decisions look at counted work, so equal seeds take the same way. */
xm_status_t ap_cfn_labels(const ap_cfn_dual_t *root, ap_cfn_shared_t *shared,
                          ap_cfn_labels_t *labels, double work)
{
    int64_t begin = ap_cfn_shared_now(shared);
    double spent = 0.0;
    /* What was too large may be smaller now, as bound and cost are nearer to each other. */
    labels->reach = fmax(labels->reach, first_reach);
    xm_status_t status = XM_OK;

    while (status == XM_OK && spent < work && labels->reach > least_reach &&
           !ap_cfn_shared_is_over(shared)) {
        double bound = ap_cfn_shared_bound(shared);
        double upper = fmin(ap_cfn_shared_cost(shared), bound + unknown_gap * fabs(bound) + 1.0);
        double cap = labels->reach < 1.0 ? bound + labels->reach * (upper - bound) : HUGE_VAL;
        ap_cfn_label_end_t end;

        status = ap_cfn_label(root, shared, cap, labels->times, labels->width, 0.5 * (work - spent),
                              &end);
        if (end == AP_CFN_LABEL_DONE) {
            labels->reach = fmin(1.0, 2.0 * labels->reach);
        } else if (end == AP_CFN_LABEL_LARGE) {
            labels->reach *= 0.5;
        } else if (end == AP_CFN_LABEL_LOOSE) {
            labels->times *= 2;
        } else {
            labels->width *= 4;
        }
        spent = (double)(ap_cfn_shared_now(shared) - begin);
    }
    return status;
}
