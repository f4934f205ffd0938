/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A core and its dual with fewer values, for a node of the search tree. The new core is a copy and
 * not a view: most nodes lose a large part of their values, and a sweep over a compact core is
 * worth far more than the copy costs. Variables with one value leave the core, with their costs in
 * the constant or in their neighbours and their usage off the capacities.
 *
 * Leaves without usage leave it as well: what they add to a neighbour's values can be reckoned once
 * for all nodes below. What value such a variable then has is the caller's to find out, in the
 * order in which they went, as the neighbour may be folded later.
 *
 * Messages and prices come along. Any messages are valid, so those of the parent need no
 * correction, and the new dual starts where the parent's was.
 */

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "planner/solver/bound.h"

typedef struct restriction {
    const ap_cfn_dual_t *from;
    const ap_cfn_core_t *core;
    const bool *keep;
    int *number;            /* per variable: its new number, or -1 - value */
    double *capacity;       /* per time, of what is left */
    double *constant_costs; /* costs by value, with those of links to settled variables */
    double *most;           /* per time: scratch */
    int *time;              /* per time: number of the first kept one at or after */
    int times;
    int *links; /* per variable: to others that are left */
} restriction_t;

/* The value of a variable that has left. */
static int value_of(const restriction_t *r, int variable)
{
    return -1 - r->number[variable];
}

/* Takes what a settled variable uses off the capacities. */
static void take_off(const ap_cfn_variable_t *variable, int value, double *capacity)
{
    for (int k = 0; k < variable->segments; ++k) {
        for (int t = variable->segment[k].from; t < variable->segment[k].to; ++t) {
            capacity[t] -= variable->segment[k].usage[value];
        }
    }
}

/* Decides which variables are left, and takes the usage of the others off the capacities. Returns
 * their costs and the constant. A variable of which no value is kept
 * gets value 0: the node then is an assignment like any other, with its true costs and usage, so
 * nothing wrong can come of it. */
static double settle(restriction_t *r)
{
    const ap_cfn_core_t *core = r->core;
    double constant = core->constant;

    for (int v = 0; v < core->variables; ++v) {
        const bool *keep = r->keep + r->from->at[v];
        int kept = 0, last = 0;

        for (int x = 0; x < core->variable[v].size; ++x) {
            if (keep[x]) {
                ++kept;
                last = x;
            }
        }
        r->number[v] = kept > 1 ? 0 : -1 - last;
        if (kept <= 1) {
            constant += core->variable[v].cost[last];
            take_off(&core->variable[v], last, r->capacity);
        }
    }
    return constant;
}

/* Links with one settled end become costs of the other end's values; with two they are part of the
 * constant, which may become infinite by that: then the node has no solution. */
static double add_links(restriction_t *r)
{
    const ap_cfn_core_t *core = r->core;
    double constant = 0.0;

    for (int k = 0; k < core->links; ++k) {
        const ap_cfn_link_t *link = &core->link[k];
        int columns = core->variable[link->b].size;
        bool a = r->number[link->a] < 0, b = r->number[link->b] < 0;

        if (a && b) {
            constant += ap_cfn_cell(core, link, value_of(r, link->a), value_of(r, link->b));
        } else if (a) {
            for (int y = 0; y < columns; ++y) {
                r->constant_costs[r->from->at[link->b] + (size_t)y] +=
                    ap_cfn_cell(core, link, value_of(r, link->a), y);
            }
        } else if (b) {
            for (int x = 0; x < core->variable[link->a].size; ++x) {
                r->constant_costs[r->from->at[link->a] + (size_t)x] +=
                    ap_cfn_cell(core, link, x, value_of(r, link->b));
            }
        }
    }
    return constant;
}

/* Finds the times at which the variables that are left could use too much. A capacity below 0 is
 * kept as a time even if no variable is left that uses any: it says that the node does not fit. */
static void find_times(restriction_t *r)
{
    const ap_cfn_core_t *core = r->core;
    double *most = r->most, sum = 0.0;

    memset(most, 0, ((size_t)core->times + 1) * sizeof(*most));
    for (int v = 0; v < core->variables; ++v) {
        const bool *keep = r->keep + r->from->at[v];

        for (int k = 0; k < core->variable[v].segments && r->number[v] >= 0; ++k) {
            const ap_cfn_segment_t *segment = &core->variable[v].segment[k];
            double usage = 0.0;

            for (int x = 0; x < core->variable[v].size; ++x) {
                usage = keep[x] && segment->usage[x] > usage ? segment->usage[x] : usage;
            }
            /* A variable can use its largest usage at each time, whatever the others do. */
            most[segment->from] += usage;
            most[segment->to] -= usage;
        }
    }
    /* Prefix sums of the largest usages; time[t] becomes the number of the first kept time at or
     * after t, so a segment's ends can be looked up directly. */
    for (int t = 0; t < core->times; ++t) {
        sum += most[t];
        r->time[t] = r->times;
        r->times += sum > r->capacity[t];
    }
    r->time[core->times] = r->times;
}

/* Whether all kept values of a variable use the same at the kept times. Then the limit has no say
 * in which of them it takes. Times at which nothing can be exceeded do not count: below a node
 * these are most. */
static bool is_flat(const restriction_t *r, int v)
{
    const ap_cfn_variable_t *variable = &r->core->variable[v];
    const bool *keep = r->keep + r->from->at[v];

    for (int k = 0; k < variable->segments; ++k) {
        const ap_cfn_segment_t *segment = &variable->segment[k];
        double least = HUGE_VAL, most = 0.0;

        for (int x = 0; x < variable->size && r->time[segment->from] < r->time[segment->to]; ++x) {
            if (keep[x]) {
                least = fmin(least, segment->usage[x]);
                most = fmax(most, segment->usage[x]);
            }
        }
        if (most > least) {
            return false;
        }
    }
    return true;
}

/* Adds to each value of the link's other end the least that a variable then costs, and notes with
 * which value. Without a link that is one number. Of equal costs the first value wins, as
 * elsewhere. Values of the other end that are not kept get their sums as well; nobody reads them.
 */
static double fold(restriction_t *r, int v, const ap_cfn_link_t *link, int other, int *best)
{
    const bool *keep = r->keep + r->from->at[v];
    const double *cost = r->constant_costs + r->from->at[v];
    double *to = link != NULL ? r->constant_costs + r->from->at[other] : NULL, least = HUGE_VAL;

    for (int y = 0; y < (link != NULL ? r->core->variable[other].size : 1); ++y) {
        least = HUGE_VAL;
        best[y] = -1;
        for (int x = 0; x < r->core->variable[v].size; ++x) {
            double sum = cost[x];

            if (!keep[x]) {
                continue;
            }
            if (link != NULL) {
                sum += link->a == v ? ap_cfn_cell(r->core, link, x, y)
                                    : ap_cfn_cell(r->core, link, y, x);
            }
            if (best[y] < 0 || sum < least) {
                least = sum;
                best[y] = x;
            }
        }
        if (link != NULL) {
            to[y] += least;
        }
    }
    return least;
}

/* The only link of a leaf to what is left; NULL: there is none. The core's own list of links is
 * looked through, as keeping one that shrinks would cost more than this does. */
static const ap_cfn_link_t *link_of(const restriction_t *r, int v, int *other)
{
    const ap_cfn_variable_t *variable = &r->core->variable[v];

    for (int k = 0; k < variable->degree; ++k) {
        *other = ap_cfn_other(&r->core->link[variable->link[k]], v);
        if (r->number[*other] >= 0) {
            return &r->core->link[variable->link[k]];
        }
    }
    *other = -1;
    return NULL;
}

/* Takes leaves off what is left, as long as there are some without usage: their least costs go into
 * their neighbours, which may then be leaves themselves. Near a bound few times and values are
 * left, and of a thousand variables often nine in ten go this way, for all that lies below a node.
 * Returns the costs of those that have no neighbour. */
static double fold_leaves(restriction_t *r, ap_cfn_folds_t *folds)
{
    const ap_cfn_core_t *core = r->core;
    double constant = 0.0;

    for (int k = 0; k < core->links; ++k) {
        const ap_cfn_link_t *link = &core->link[k];
        bool both = r->number[link->a] >= 0 && r->number[link->b] >= 0;

        r->links[link->a] += both;
        r->links[link->b] += both;
    }
    for (int first = 0; first < core->variables; ++first) {
        int v = first, other;

        for (; v >= 0 && r->number[v] >= 0 && r->links[v] <= 1 && is_flat(r, v); v = other) {
            const ap_cfn_link_t *link = link_of(r, v, &other);
            size_t size = link != NULL ? (size_t)core->variable[other].size : 1;
            int *best = xm_arena_take(&folds->pool, size * sizeof(*best));
            double least;

            if (best == NULL) {
                return constant;
            }
            least = fold(r, v, link, other, best);
            take_off(&core->variable[v], best[0], r->capacity); /* what all of its values use */
            if (link == NULL) {
                constant += least;
                r->number[v] = -1 - best[0];
            } else {
                folds->fold[folds->count++] = (ap_cfn_fold_t){v, other, best};
                r->number[v] = AP_CFN_FOLDED;
                --r->links[other];
            }
        }
    }
    return constant;
}

/* Numbers what is left in its old order, and counts what it needs. Segments are counted as they
 * were; those of times that went take no room later, which is little beside the tables. */
static void number_variables(restriction_t *r, ap_cfn_core_size_t *size)
{
    for (int v = 0; v < r->core->variables; ++v) {
        const bool *keep = r->keep + r->from->at[v];
        size_t kept = 0, segments = (size_t)r->core->variable[v].segments;

        if (r->number[v] >= 0) {
            for (int x = 0; x < r->core->variable[v].size; ++x) {
                kept += keep[x];
            }
            r->number[v] = size->variables++;
            size->values += kept;
            size->segments += segments;
            size->usages += segments * kept;
        }
    }
}

/* Writes the new core. The order of variables and links is that of the old one, so a pass takes
 * them in the same order and ties are decided alike. */
static xm_status_t build_core(restriction_t *r, ap_cfn_core_size_t *size, double constant,
                              ap_cfn_core_t **made)
{
    const ap_cfn_core_t *core = r->core;
    ap_cfn_core_maker_t maker;
    xm_status_t status;

    for (int k = 0; k < core->links; ++k) {
        const ap_cfn_link_t *link = &core->link[k];

        if (r->number[link->a] >= 0 && r->number[link->b] >= 0) {
            ++size->links;
            size->cells += (size_t)core->variable[link->a].size *
                           (size_t)core->variable[link->b].size; /* at most */
        }
    }
    /* Sizes of tables are those of the old variables, as an upper limit; the maker moves on by what
     * is used. */
    size->times = r->times;
    status = ap_cfn_core_begin(size, &maker);
    if (status != XM_OK) {
        return status;
    }
    for (int t = 0; t < core->times; ++t) {
        if (r->time[t + 1] > r->time[t]) {
            maker.capacity[r->time[t]] = r->capacity[t];
            maker.when[r->time[t]] = core->when[t];
        }
    }
    for (int v = 0; v < core->variables; ++v) {
        const ap_cfn_variable_t *variable = &core->variable[v];
        const bool *keep = r->keep + r->from->at[v];
        int kept = 0;

        if (r->number[v] < 0) {
            continue;
        }
        for (int x = 0; x < variable->size; ++x) {
            kept += keep[x];
        }
        (void)ap_cfn_copy_kept(keep, r->constant_costs + r->from->at[v], variable->size,
                               ap_cfn_core_add_variable(&maker, kept));
        for (int k = 0; k < variable->segments; ++k) {
            const ap_cfn_segment_t *segment = &variable->segment[k];
            int from = r->time[segment->from], to = r->time[segment->to];

            if (from < to) {
                (void)ap_cfn_copy_kept(keep, segment->usage, variable->size,
                                       ap_cfn_core_add_segment(&maker, from, to));
            }
        }
    }
    for (int k = 0; k < core->links; ++k) {
        const ap_cfn_link_t *link = &core->link[k];

        if (r->number[link->a] >= 0 && r->number[link->b] >= 0) {
            /* Numbers rise with the old ones, so a < b still holds. */
            double *table = ap_cfn_core_add_link(&maker, r->number[link->a], r->number[link->b]);

            ap_cfn_copy_table(core, link, r->keep + r->from->at[link->a],
                              r->keep + r->from->at[link->b], table);
        }
    }
    *made = ap_cfn_core_finish(&maker);
    (*made)->constant = constant;
    return XM_OK;
}

/* Messages and prices of what is left. The averaged slopes come along as well, so that the next
 * subgradient step goes on as the parent's would. Prices of times that went are lost; they belong
 * to limits that cannot be exceeded any more. */
static void copy_dual(const restriction_t *r, ap_cfn_dual_t *to)
{
    const ap_cfn_core_t *core = r->core;
    int next = 0;

    for (int k = 0; k < core->links; ++k) {
        const ap_cfn_link_t *link = &core->link[k];

        if (r->number[link->a] >= 0 && r->number[link->b] >= 0) {
            /* Links of the new core come in the order in which build_core() made them. */
            (void)ap_cfn_copy_kept(r->keep + r->from->at[link->a], r->from->to_a[k],
                                   core->variable[link->a].size, to->to_a[next]);
            (void)ap_cfn_copy_kept(r->keep + r->from->at[link->b], r->from->to_b[k],
                                   core->variable[link->b].size, to->to_b[next]);
            ++next;
        }
    }
    next = 0;
    for (int v = 0; v < core->variables; ++v) {
        if (r->number[v] >= 0) {
            (void)ap_cfn_copy_kept(r->keep + r->from->at[v], r->from->share + r->from->at[v],
                                   core->variable[v].size, to->share + to->at[next]);
            ++next;
        }
    }
    for (int t = 0; t < core->times; ++t) {
        if (r->time[t + 1] > r->time[t]) {
            to->price[r->time[t]] = r->from->price[t];
            to->slope[r->time[t]] = r->from->slope[t];
        }
    }
    /* The prices at the start count as the best ones until a sweep says otherwise. */
    memcpy(to->best_price, to->price, (size_t)r->times * sizeof(double));
    to->steps = r->from->steps;
    ap_cfn_dual_prices_changed(to);
}

/* Makes both objects, or neither. Elimination is tried again where the parent used it. Fewer values
 * usually make smaller tables; the greedy order may be a little worse, hence twice the work is
 * allowed. */
xm_status_t ap_cfn_dual_restrict(const ap_cfn_dual_t *dual, const bool *keep, ap_cfn_folds_t *folds,
                                 ap_cfn_core_t **core, ap_cfn_dual_t **restricted, int *number)
{
    const ap_cfn_core_t *from = dual->core;
    restriction_t r = {.from = dual, .core = from, .keep = keep, .number = number};
    ap_cfn_core_size_t size = {.variables = 0};
    xm_arena_t pool = {0};
    size_t values = ap_cfn_core_values(from);
    double constant;
    xm_status_t status;

    r.capacity = xm_arena_take(&pool, ((size_t)from->times + 1) * sizeof(double));
    r.most = xm_arena_take(&pool, ((size_t)from->times + 1) * sizeof(double));
    r.time = xm_arena_take(&pool, ((size_t)from->times + 1) * sizeof(int));
    r.constant_costs = xm_arena_take(&pool, values * sizeof(double));
    r.links = xm_arena_get(&pool, (size_t)from->variables, sizeof(int));
    if (folds != NULL) {
        folds->fold = xm_arena_take(&folds->pool, (size_t)from->variables * sizeof(*folds->fold));
    }
    if (pool.failed || (folds != NULL && folds->pool.failed)) {
        status = XM_NO_MEMORY("a branch");
        goto done;
    }
    if (from->times > 0) {
        memcpy(r.capacity, from->capacity, (size_t)from->times * sizeof(double));
    }
    if (values > 0) {
        memcpy(r.constant_costs, ap_cfn_core_costs(from), values * sizeof(double));
    }
    /* First what has only one value, then the links to it, then the times that are left over, then
     * the leaves. */
    constant = settle(&r);
    constant += add_links(&r);
    find_times(&r);
    if (folds != NULL) {
        constant += fold_leaves(&r, folds);
        if (folds->pool.failed) {
            status = XM_NO_MEMORY("a branch");
            goto done;
        }
    }
    number_variables(&r, &size);
    status = build_core(&r, &size, constant, core);
    if (status != XM_OK) {
        goto done;
    }
    /* The core is ready; its dual takes what is left of messages and prices. */
    status = ap_cfn_dual_create(*core, restricted);
    if (status != XM_OK) {
        ap_cfn_core_destroy(*core);
        goto done;
    }
    copy_dual(&r, *restricted);
    if (dual->exact != NULL) {
        status = ap_cfn_dual_eliminate(*restricted, 2.0 * dual->exact->work);
        if (status != XM_OK) {
            ap_cfn_dual_destroy(*restricted);
            ap_cfn_core_destroy(*core);
        }
    }
done:
    xm_arena_clear(&pool);
    return status;
}
