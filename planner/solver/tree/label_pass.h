/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Dynamic programming that sees the limit as a knapsack. Private to the solver.
 *
 * A price per time pays for usage in parts, so its bound is that of assignments mixed from several.
 * Here an elimination keeps, for every row of a table, the partial assignments (labels) that are
 * not worse than another one in cost and in the usage of every time that is still open; what is
 * outside is bounded by the marginals at the prices, as in shortest paths with resources
 * (Desrochers and Soumis, "A generalized permanent labelling algorithm", 1988).
 */
#pragma once

#include "planner/solver/tree/tree.h"

/*
 * One pass over a node with a dual that eliminates, for solutions below the tree's goal. It looks
 * at the limit at the `times` times with the highest prices, pays for usage at all others, keeps
 * about `width` labels per step, those with the lowest bounds, and offers the best solution that
 * they lead to. No other one costs less than *bound; HUGE_VAL: nothing had to be left out; *loose:
 * what was found may exceed the limit at other times. It is not *finished where that would take
 * more than `work` nanoseconds of a usual core; the bound is that of the prices then.
 */
xm_status_t ap_cfn_label_pass(ap_cfn_tree_t *tree, ap_cfn_node_t *node, int times, size_t width,
                              double work, double *bound, bool *finished, bool *loose);
