/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Labels are made step by step in the order of the elimination. A label of a step's row stands for
 * values of all variables that were eliminated into it. It has what they cost, the same with prices
 * on their usage, and their usage in classes of times: times at which the subtree uses the same
 * are one class, unless they have a price.
 *
 * Usage counts above the least of every variable. What is so little that even the most of all
 * variables outside would fit counts as that much more: then labels differ only where it matters,
 * and the price of the difference, which no completion can use, raises the label's bound.
 */

#include "planner/solver/tree/label_pass.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "planner/solver/tree/label_classes.h"

/* Nanoseconds of a usual core per number of a label that was made or compared, and per cell. */
static const double number_time = 3.0, cell_time = 2.0, tell_after = 1e6;

/* Tells what has been done so far. True when there is no more work for the pass, or no time: what
 * it has made is of no use then. */
static bool is_stopped(ap_label_pass_t *pass)
{
    if (pass->sorter.work > tell_after) {
        ap_cfn_shared_spend(pass->tree->shared, pass->sorter.work);
        pass->most_work -= pass->sorter.work;
        pass->sorter.work = 0.0;
        pass->stopped = pass->most_work < 0.0 || ap_cfn_shared_is_over(pass->tree->shared);
    }
    return pass->stopped;
}

/* Adds the labels of a child's row to all partial labels; `rest` is what bounds all else. */
static void join(ap_label_pass_t *pass, const ap_label_step_t *step, int j, size_t row, double rest)
{
    const ap_label_step_t *child = &pass->step[step->child[j]];
    const ap_label_list_t *labels = &child->labels;
    const int *inner = step->inner + j * pass->times;

    ap_label_shape(&pass->next, step->classes, step->children);
    for (size_t k = 0; k < pass->part.count && !is_stopped(pass); ++k) {
        for (uint32_t b = child->first[row]; b < child->first[row + 1] && !pass->sorter.failed;
             ++b) {
            const double *part = ap_label_number(&pass->part, k),
                         *other = ap_label_number(labels, b);
            double bound = part[AP_LABEL_PRICED] + other[AP_LABEL_PRICED] + rest, *made;
            bool fits = true;

            pass->sorter.work += number_time * (double)(step->classes + 4);
            /* The child's labels are sorted by their priced costs, so all further ones are too
             * dear as well. The marginals make this bound exact at the prices. */
            if (bound >= pass->goal) {
                break;
            }
            if (!ap_label_reserve(&pass->sorter, &pass->next)) {
                return;
            }
            made = ap_label_number(&pass->next, pass->next.count);
            made[AP_LABEL_BOUND] = bound;
            made[AP_LABEL_PRICED] = part[AP_LABEL_PRICED] + other[AP_LABEL_PRICED];
            made[AP_LABEL_COST] = part[AP_LABEL_COST] + other[AP_LABEL_COST];
            for (int c = 0; c < step->classes && fits; ++c) {
                made[AP_LABEL_USAGE + c] = part[AP_LABEL_USAGE + c] +
                                           (inner[c] >= 0 ? other[AP_LABEL_USAGE + inner[c]] : 0.0);
                fits = made[AP_LABEL_USAGE + c] <= step->limit[c];
            }
            if (fits) {
                uint32_t *from = ap_label_origin(&pass->next, pass->next.count);

                memcpy(from, ap_label_origin(&pass->part, k),
                       (size_t)(AP_LABEL_FROM + step->children) * sizeof(*from));
                from[AP_LABEL_FROM + j] = b;
                ++pass->next.count;
                if (pass->next.count > 8 * pass->width) {
                    ap_label_trim(&pass->sorter, &pass->next, 4 * pass->width);
                }
            }
        }
    }
    {
        ap_label_list_t old = pass->part;

        pass->part = pass->next;
        pass->next = old;
    }
}

/* Usage that no completion can make too much counts as the most that is so. */
static void settle_usage(const ap_label_step_t *step, double *label)
{
    for (int c = 0; c < step->classes; ++c) {
        if (label[AP_LABEL_USAGE + c] < step->low[c]) {
            double more = step->price[c] * (step->low[c] - label[AP_LABEL_USAGE + c]);

            label[AP_LABEL_BOUND] += more;
            label[AP_LABEL_PRICED] += more;
            label[AP_LABEL_USAGE + c] = step->low[c];
        }
    }
}

/* Makes the labels of one value in a row. */
static void make_labels(ap_label_pass_t *pass, const ap_label_step_t *step, size_t row, int x,
                        double priced, double cost, double outside, const size_t *rows,
                        const double *least)
{
    double rest = outside + pass->offset, *label;

    ap_label_shape(&pass->part, step->classes, step->children);
    if (!ap_label_reserve(&pass->sorter, &pass->part)) {
        return;
    }
    label = ap_label_number(&pass->part, 0);
    label[AP_LABEL_PRICED] = priced;
    label[AP_LABEL_COST] = cost;
    for (int c = 0; c < step->classes; ++c) {
        label[AP_LABEL_USAGE + c] =
            step->segment[c] >= 0 ? ap_label_used(pass, step->own, step->segment[c], x) : 0.0;
        if (label[AP_LABEL_USAGE + c] > step->limit[c]) {
            return;
        }
    }
    /* The bound of a label that has not met all children counts the least of the others. It only
     * rises as they are joined, so what is dropped here would be dropped later. */
    for (int j = 0; j < step->children; ++j) {
        rest += least[j];
    }
    label[AP_LABEL_BOUND] = priced + rest;
    ap_label_origin(&pass->part, 0)[AP_LABEL_ROW] = (uint32_t)row;
    ap_label_origin(&pass->part, 0)[AP_LABEL_VALUE] = (uint32_t)x;
    pass->part.count = 1;
    for (int j = 0;
         j < step->children && pass->part.count > 0 && !pass->sorter.failed && !pass->stopped;
         ++j) {
        rest -= least[j];
        join(pass, step, j, rows[j], rest);
        if (j > 0 && j + 1 < step->children) {
            ap_label_drop_dominated(&pass->sorter, &pass->part, &pass->next);
        }
    }
    for (size_t k = 0; k < pass->part.count && !pass->sorter.failed; ++k) {
        settle_usage(step, ap_label_number(&pass->part, k));
        if (ap_label_number(&pass->part, k)[AP_LABEL_BOUND] < pass->goal &&
            ap_label_reserve(&pass->sorter, &pass->row)) {
            ap_label_copy(&pass->part, k, &pass->row, pass->row.count++);
        }
    }
}

/* Moves a row's labels to the step, those with the lowest bounds first, as joins end at the first
 * one that is too dear. */
static void end_row(ap_label_pass_t *pass, ap_label_step_t *step)
{
    ap_label_list_t *to = &step->labels;

    /* Labels of one row differ in nothing that is outside but cost and usage, whatever values the
     * variables have that are gone; so one that is no worse in all of these replaces another. */
    ap_label_drop_dominated(&pass->sorter, &pass->row, &pass->next);
    ap_label_trim(&pass->sorter, &pass->row, 2 * pass->width);
    if (!ap_label_sort(&pass->sorter, &pass->row, AP_LABEL_PRICED)) {
        return;
    }
    for (size_t k = 0; k < pass->row.count && ap_label_reserve(&pass->sorter, to); ++k) {
        size_t from = pass->sorter.key[k].index;
        double *made = ap_label_number(to, to->count);
        const double *label = ap_label_number(&pass->row, from);

        memcpy(made, label, AP_LABEL_USAGE * sizeof(double));
        for (int c = 0; c < step->classes; ++c) {
            if (step->kept[c] >= 0) {
                made[AP_LABEL_USAGE + step->kept[c]] = label[AP_LABEL_USAGE + c];
            }
        }
        memcpy(ap_label_origin(to, to->count), ap_label_origin(&pass->row, from),
               (size_t)(AP_LABEL_FROM + step->children) * sizeof(uint32_t));
        ++to->count;
    }
    if (to->count > 4 * pass->width) {
        ap_label_trim(&pass->sorter, to, 2 * pass->width);
    }
}

/* Makes the labels of a row of a step of the elimination. */
static xm_status_t visit(void *context, const ap_elimination_step_t *of, size_t row,
                         const double *const *rows)
{
    ap_label_pass_t *pass = context;
    ap_label_step_t *step = pass->now;
    const ap_cfn_dual_t *dual = pass->node->dual;
    const double *priced = dual->priced + dual->at[of->variable];
    const double *costs = pass->paid + dual->at[of->variable];
    const bool *keep = pass->node->keep + dual->at[of->variable];
    int size = pass->e->size[of->variable];
    size_t at[AP_LABEL_CHILDREN];
    double least[AP_LABEL_CHILDREN];

    pass->sorter.work += cell_time * (1.0 + (double)size);
    if (is_stopped(pass)) {
        return XM_ERR_TIMEOUT;
    }
    if (of->least[row] + of->outside[row] + pass->offset >= pass->goal) {
        return XM_OK;
    }
    ap_label_shape(&pass->row, step->classes, step->children);
    for (int x = 0; x < size && !pass->sorter.failed; ++x) {
        double links = 0.0, below = 0.0;
        int children = 0;

        for (int j = 0; j < of->terms; ++j) {
            if (of->term[j].child >= 0) {
                least[children] = rows[j][x];
                at[children] =
                    (size_t)(rows[j] - pass->e->step[of->term[j].child].least) + (size_t)x;
                below += least[children++];
            } else {
                links += rows[j][x];
            }
        }
        if (keep[x] && priced[x] + links + below + of->outside[row] + pass->offset < pass->goal) {
            make_labels(pass, step, row, x, priced[x] + links, costs[x] + links, of->outside[row],
                        at, least);
        }
    }
    end_row(pass, step);
    return pass->sorter.failed ? XM_ERR_NO_MEMORY : XM_OK;
}

/* Where each row's labels begin; the list is in the order of rows. */
static bool index_rows(ap_label_pass_t *pass, ap_label_step_t *step, size_t rows)
{
    size_t next = 0;

    ap_label_trim(&pass->sorter, &step->labels, pass->width);
    step->first = malloc((rows + 1) * sizeof(*step->first));
    for (size_t row = 0; row <= rows && step->first != NULL; ++row) {
        while (next < step->labels.count &&
               ap_label_origin(&step->labels, next)[AP_LABEL_ROW] < row) {
            ++next;
        }
        step->first[row] = (uint32_t)next;
    }
    return step->first != NULL;
}

/* The components of the elimination, by their last steps. Near a bound there are hundreds: most
 * links have gone with the values that they told apart, and the limit alone is what ties them. */
static bool list_components(ap_label_pass_t *pass)
{
    pass->component = xm_arena_take(&pass->pool, ((size_t)pass->e->steps + 1) * sizeof(int));
    for (int k = 0; k < pass->e->steps && pass->component != NULL; ++k) {
        if (pass->e->step[k].count == 0) {
            pass->component[pass->components++] = k;
        }
    }
    /* A single one is joined with nothing. */
    pass->steps = pass->e->steps + (pass->components > 1 ? pass->components - 1 : 1);
    pass->step = xm_arena_get(&pass->pool, (size_t)pass->steps, sizeof(*pass->step));
    return !pass->pool.failed;
}

/* Lists the children of a step; false: there are too many. Components are joined one by one: what
 * the limit no longer ties to the others is forgotten after each. */
static bool list_children(ap_label_pass_t *pass, int k, ap_label_step_t *step)
{
    const ap_elimination_t *e = pass->e;
    int join = k - e->steps, terms = join < 0 ? e->step[k].terms : 2;

    step->own = join < 0 ? e->step[k].variable : -1;
    step->child = xm_arena_take(&pass->pool, (size_t)terms * sizeof(int));
    if (step->child == NULL) {
        return terms == 0;
    }
    if (join < 0) {
        for (int j = 0; j < terms; ++j) {
            if (e->step[k].term[j].child >= 0) {
                step->child[step->children++] = e->step[k].term[j].child;
            }
        }
        return step->children <= AP_LABEL_CHILDREN;
    }
    step->child[step->children++] = join == 0 ? pass->component[0] : k - 1;
    if (pass->components > 1) {
        step->child[step->children++] = pass->component[join + 1];
    }
    return true;
}

/* Writes the values of a label and of all that it was made of. Joins have no variable. The depth is
 * that of the steps' tree, in which the joins are a path: at most as many frames as variables. */
static void trace(const ap_label_pass_t *pass, int k, uint32_t label, int *value)
{
    const ap_label_step_t *step = &pass->step[k];
    const uint32_t *from = ap_label_origin(&step->labels, label);

    if (step->own >= 0) {
        value[step->own] = (int)from[AP_LABEL_VALUE];
    }
    for (int j = 0; j < step->children; ++j) {
        trace(pass, step->child[j], from[AP_LABEL_FROM + j], value);
    }
}

/* Each join is a step of its own, with its own classes of times, and so with labels that dominate
 * each other: joined all at once, hundreds of components would make more labels than there is room
 * for, and each would have to remember its part of every component.
 *
 * Components are tied by the limit alone, so their labels are joined as if a variable with one
 * value had them as children. `joined` is the least that those joined before cost. */
static void join_component(ap_label_pass_t *pass, ap_label_step_t *step, int join, double *joined)
{
    static const size_t first[2] = {0, 0};
    const ap_elimination_t *e = pass->e;
    double least[2] = {*joined}, outside = 0.0;

    for (int j = 0; j < pass->components; ++j) {
        double cost = e->step[pass->component[j]].least[0];

        least[0] += join == 0 && j == 0 ? cost : 0.0;
        least[1] = j == join + 1 ? cost : least[1];
        outside += j > join + 1 ? cost : 0.0;
    }
    *joined = least[0] + least[1];
    ap_label_shape(&pass->row, step->classes, step->children);
    make_labels(pass, step, 0, 0, 0.0, 0.0, outside, first, least);
    if (!is_stopped(pass)) {
        end_row(pass, step);
    }
}

/* All steps, then those that join the components. Each step's labels are final when the next one
 * begins; a step that makes more than there is work for ends the pass, and its bound is lost. */
static xm_status_t run(ap_label_pass_t *pass)
{
    const ap_elimination_t *e = pass->e;
    double joined = 0.0;
    xm_status_t status = XM_OK;

    for (int k = 0; k < pass->steps && status == XM_OK; ++k) {
        ap_label_step_t *step = pass->now = &pass->step[k];

        if (!list_children(pass, k, step)) {
            pass->stopped = !pass->pool.failed;
            return pass->stopped ? XM_OK : XM_NO_MEMORY("labels");
        }
        if (!ap_label_find_classes(pass, step)) {
            return XM_NO_MEMORY("labels");
        }
        if (k < e->steps) {
            status = ap_elimination_walk(e, &e->step[k], visit, pass);
        } else {
            join_component(pass, step, k - e->steps, &joined);
        }
        if (pass->stopped) {
            return XM_OK;
        }
        if (pass->sorter.failed || !index_rows(pass, step, k < e->steps ? e->step[k].rows : 1)) {
            return XM_NO_MEMORY("labels");
        }
    }
    return status;
}

/* The prices are the best that were found: the marginals are exact at them, and the nearer they are
 * to the best bound, the fewer labels stay below the goal. What the elimination drops at them goes
 * first. */
xm_status_t ap_cfn_label_pass(ap_cfn_tree_t *tree, ap_cfn_node_t *node, int times, size_t width,
                              double work, double *bound, bool *finished, bool *loose)
{
    ap_cfn_dual_t *dual = node->dual;
    ap_label_pass_t pass = {.tree = tree,
                            .node = node,
                            .e = dual->exact,
                            .width = width,
                            .most_times = times,
                            .most_work = work,
                            .goal = ap_cfn_tree_goal(tree),
                            .sorter.open = HUGE_VAL,
                            .offset = dual->core->constant};
    xm_status_t status;

    memcpy(dual->price, dual->best_price, (size_t)dual->core->times * sizeof(double));
    ap_cfn_dual_prices_changed(dual);
    (void)ap_cfn_dual_fix(dual, pass.goal, node->keep);
    ap_cfn_shared_spend(tree->shared, dual->nanoseconds + dual->fixing);
    *bound = dual->bound;
    *finished = false;
    if (dual->bound >= pass.goal) {
        *bound = HUGE_VAL;
        return XM_OK;
    }
    for (int t = 0; t < dual->core->times; ++t) {
        pass.offset -= dual->price[t] * dual->core->capacity[t];
    }
    ap_label_find_times(&pass);
    status = pass.pool.failed || !list_components(&pass) ? XM_NO_MEMORY("labels") : run(&pass);
    ap_cfn_shared_spend(tree->shared, pass.sorter.work);
    if (status == XM_OK && !pass.stopped) {
        const ap_label_list_t *last = &pass.step[pass.steps - 1].labels;

        *loose = false;
        if (last->count > 0) {
            trace(&pass, pass.steps - 1, 0, dual->choice);
            ap_cfn_node_offer_choice(tree, node);
            if (pass.loose && ap_label_number(last, 0)[AP_LABEL_BOUND] < pass.sorter.open) {
                pass.sorter.open = ap_label_number(last, 0)[AP_LABEL_BOUND];
                *loose = true;
            }
        }
        *bound = pass.sorter.open < pass.goal ? fmax(pass.sorter.open, dual->bound) : HUGE_VAL;
        *finished = true;
    }
    for (int k = 0; k < pass.steps && pass.step != NULL; ++k) {
        ap_label_clear(&pass.step[k].labels);
        free(pass.step[k].first);
    }
    ap_label_clear(&pass.row);
    ap_label_clear(&pass.part);
    ap_label_clear(&pass.next);
    free(pass.sorter.key);
    xm_arena_clear(&pass.pool);
    return status;
}
