/* Arc consistency and contraction on the presolve's graph. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "comm/clock.h"
#include "planner/cfn_reduce_private.h"
#include "planner/cfn_shared.h"

static xm_status_t no_memory(void)
{
    return xm_error_set(XM_ERR_NO_MEMORY, "no memory for the presolve");
}

static bool grow(void **array, int count, int *capacity, size_t size)
{
    if (count == *capacity) {
        int larger = *capacity > 0 ? 2 * *capacity : 16;
        void *grown = realloc(*array, (size_t)larger * size);

        if (grown == NULL) {
            return false;
        }
        *array = grown;
        *capacity = larger;
    }
    return true;
}

xm_status_t ap_reduce_touch(ap_cfn_reduction_t *self, int edge)
{
    if (self->edge[edge].queued || self->edge[edge].gone) {
        return XM_OK;
    }
    if (!grow((void **)&self->work, self->work_count, &self->work_capacity, sizeof(int))) {
        return no_memory();
    }
    self->edge[edge].queued = true;
    self->work[self->work_count++] = edge;
    return XM_OK;
}

xm_status_t ap_reduce_touch_node(ap_cfn_reduction_t *self, int node)
{
    xm_status_t status = XM_OK;

    for (int k = 0; status == XM_OK && k < self->node[node].degree; ++k) {
        status = ap_reduce_touch(self, self->node[node].edge[k]);
    }
    return status;
}

static xm_status_t list_edge(ap_cfn_reduction_t *self, int node, int edge)
{
    ap_reduce_node_t *n = &self->node[node];

    if (!grow((void **)&n->edge, n->degree, &n->capacity, sizeof(int))) {
        return no_memory();
    }
    n->edge[n->degree++] = edge;
    return XM_OK;
}

xm_status_t ap_reduce_add_edge(ap_cfn_reduction_t *self, int a, int b, double *table)
{
    xm_status_t status;

    if (!grow((void **)&self->edge, self->edges, &self->edge_capacity, sizeof(*self->edge))) {
        free(table);
        return no_memory();
    }
    self->edge[self->edges++] = (ap_reduce_edge_t){.a = a, .b = b, .table = table};
    status = list_edge(self, a, self->edges - 1);
    if (status == XM_OK) {
        status = list_edge(self, b, self->edges - 1);
    }
    return status == XM_OK ? ap_reduce_touch(self, self->edges - 1) : status;
}

void ap_reduce_drop_edge(ap_cfn_reduction_t *self, int edge)
{
    free(self->edge[edge].table);
    self->edge[edge].table = NULL;
    self->edge[edge].gone = true;
}

void ap_reduce_tidy(ap_cfn_reduction_t *self, int node)
{
    ap_reduce_node_t *n = &self->node[node];
    int kept = 0;

    for (int k = 0; k < n->degree; ++k) {
        if (!self->edge[n->edge[k]].gone) {
            n->edge[kept++] = n->edge[k];
        }
    }
    n->degree = kept;
}

xm_status_t ap_reduce_log(ap_cfn_reduction_t *self, const ap_reduce_step_t *step)
{
    if (!grow((void **)&self->step, self->steps, &self->step_capacity, sizeof(*self->step))) {
        free(step->value);
        return no_memory();
    }
    self->step[self->steps++] = *step;
    return XM_OK;
}

/* Moves the kept values of a vector to its front. */
static void pack(double *values, int size, const bool *keep)
{
    int kept = 0;

    for (int s = 0; s < size; ++s) {
        if (keep[s]) {
            values[kept++] = values[s];
        }
    }
}

xm_status_t ap_reduce_shrink(ap_cfn_reduction_t *self, int node, const bool *keep)
{
    ap_reduce_node_t *n = &self->node[node];
    int kept = 0;

    for (int s = 0; s < n->size; ++s) {
        kept += keep[s];
    }
    if (kept == n->size) {
        return XM_OK;
    }
    if (kept == 0) {
        return xm_error_set(XM_ERR_NO_SOLUTION,
                            "no choice of finite cost: nothing is left for node %d", node);
    }
    ap_reduce_tidy(self, node);
    for (int k = 0; k < n->degree; ++k) {
        ap_reduce_edge_t *edge = &self->edge[n->edge[k]];
        int width = self->node[edge->b].size;

        if (edge->a == node) {
            double *to = edge->table;

            for (int s = 0; s < n->size; ++s) {
                if (keep[s]) {
                    memmove(to, edge->table + (size_t)s * (size_t)width,
                            (size_t)width * sizeof(double));
                    to += width;
                }
            }
        } else {
            for (int s = 0; s < self->node[edge->a].size; ++s) {
                double *row = edge->table + (size_t)s * (size_t)width;

                pack(row, width, keep);
                memmove(edge->table + (size_t)s * (size_t)kept, row, (size_t)kept * sizeof(double));
            }
        }
    }
    for (int k = 0; k < n->segments; ++k) {
        pack(n->segment[k].usage, n->size, keep);
    }
    pack(n->cost, n->size, keep);
    for (int s = 0, to = 0; s < n->size; ++s) {
        if (keep[s]) {
            n->origin[to++] = n->origin[s];
        }
    }
    n->size = kept;
    return ap_reduce_touch_node(self, node);
}

/* Removes the values of both ends that have no finite partner. */
static xm_status_t make_consistent(ap_cfn_reduction_t *self, int edge, bool *keep)
{
    xm_status_t status = XM_OK;

    for (int end = 0; status == XM_OK && end < 2; ++end) {
        const ap_reduce_edge_t *e = &self->edge[edge];
        int node = end ? e->b : e->a, other = end ? e->a : e->b;
        int size = self->node[node].size;
        bool all = true;

        for (int s = 0; s < size; ++s) {
            keep[s] = false;
            for (int t = 0; t < self->node[other].size && !keep[s]; ++t) {
                keep[s] = *ap_reduce_cell(self, e, node, s, t) < HUGE_VAL;
            }
            all = all && keep[s];
        }
        if (!all) {
            status = ap_reduce_shrink(self, node, keep);
        }
    }
    return status;
}

/* Moves a table that is a sum of a vector per end into the nodes. */
static bool separate(ap_cfn_reduction_t *self, int edge)
{
    ap_reduce_edge_t *e = &self->edge[edge];
    ap_reduce_node_t *a = &self->node[e->a], *b = &self->node[e->b];
    double corner = e->table[0];

    for (int s = 0; s < a->size; ++s) {
        const double *row = e->table + (size_t)s * (size_t)b->size;

        for (int t = 0; t < b->size; ++t) {
            if (!(row[t] < HUGE_VAL) || row[t] - row[0] != e->table[t] - corner) {
                return false;
            }
        }
    }
    for (int t = 0; t < b->size; ++t) {
        b->cost[t] += e->table[t];
    }
    for (int s = 0; s < a->size; ++s) {
        a->cost[s] += e->table[(size_t)s * (size_t)b->size] - corner;
    }
    ap_reduce_drop_edge(self, edge);
    return true;
}

/* Whether every value of `x` leaves one partner in the other end; writes it to f. */
static bool is_functional(const ap_cfn_reduction_t *self, int edge, int x, int *f)
{
    const ap_reduce_edge_t *e = &self->edge[edge];
    int y = ap_reduce_other(e, x);

    for (int s = 0; s < self->node[x].size; ++s) {
        f[s] = -1;
        for (int t = 0; t < self->node[y].size; ++t) {
            if (*ap_reduce_cell(self, e, x, s, t) < HUGE_VAL) {
                if (f[s] >= 0) {
                    return false;
                }
                f[s] = t;
            }
        }
    }
    return true;
}

/* Replaces the edge (y, z) by (x, z), or adds it to the one that exists. */
static xm_status_t move_edge(ap_cfn_reduction_t *self, int edge, int x, int y, const int *f)
{
    int z = ap_reduce_other(&self->edge[edge], y), there = self->mark[z];
    const ap_reduce_node_t *nx = &self->node[x], *nz = &self->node[z];
    xm_status_t status = XM_OK;

    if (there >= 0) {
        for (int s = 0; s < nx->size; ++s) {
            for (int t = 0; t < nz->size; ++t) {
                *ap_reduce_cell(self, &self->edge[there], x, s, t) +=
                    *ap_reduce_cell(self, &self->edge[edge], y, f[s], t);
            }
        }
        status = ap_reduce_touch(self, there);
    } else {
        double *table = malloc((size_t)nx->size * (size_t)nz->size * sizeof(double));

        if (table == NULL) {
            return no_memory();
        }
        for (int s = 0; s < nx->size; ++s) {
            for (int t = 0; t < nz->size; ++t) {
                table[(size_t)s * (size_t)nz->size + (size_t)t] =
                    *ap_reduce_cell(self, &self->edge[edge], y, f[s], t);
            }
        }
        status = ap_reduce_add_edge(self, x, z, table);
        if (status == XM_OK) {
            self->mark[z] = self->edges - 1;
        }
    }
    ap_reduce_drop_edge(self, edge);
    return status;
}

/* Puts y = f(x) into x. */
static xm_status_t contract(ap_cfn_reduction_t *self, int edge, int x, const int *f, bool *keep)
{
    int y = ap_reduce_other(&self->edge[edge], x);
    ap_reduce_node_t *nx = &self->node[x], *ny = &self->node[y];
    ap_reduce_step_t step = {.node = y, .leaders = 1, .leader = {x, -1}, .width = 1};
    xm_status_t status;

    step.value = malloc((size_t)self->strategies[x] * sizeof(int));
    if (step.value == NULL) {
        return no_memory();
    }
    for (int s = 0; s < self->strategies[x]; ++s) {
        step.value[s] = -1;
    }
    for (int s = 0; s < nx->size; ++s) {
        nx->cost[s] += *ap_reduce_cell(self, &self->edge[edge], x, s, f[s]) + ny->cost[f[s]];
        step.value[nx->origin[s]] = ny->origin[f[s]];
    }
    status = ap_reduce_log(self, &step);
    ap_reduce_drop_edge(self, edge);
    ap_reduce_tidy(self, x);
    ap_reduce_tidy(self, y);
    for (int k = 0; k < nx->degree; ++k) {
        self->mark[ap_reduce_other(&self->edge[nx->edge[k]], x)] = nx->edge[k];
    }
    for (int k = 0; status == XM_OK && k < ny->degree; ++k) {
        status = move_edge(self, ny->edge[k], x, y, f);
    }
    for (int k = 0; k < nx->degree; ++k) {
        self->mark[ap_reduce_other(&self->edge[nx->edge[k]], x)] = -1;
    }
    ny->gone = true;
    ny->degree = 0;
    for (int s = 0; s < nx->size; ++s) {
        keep[s] = nx->cost[s] < HUGE_VAL;
    }
    return status == XM_OK ? ap_reduce_shrink(self, x, keep) : status;
}

/* Once usages have been put together, what has some stays where it is. */
static bool may_go(const ap_cfn_reduction_t *self, int node)
{
    return !self->profiled || self->node[node].segments == 0;
}

static xm_status_t look_at(ap_cfn_reduction_t *self, int edge, int *f, bool *keep)
{
    xm_status_t status = make_consistent(self, edge, keep);
    int a = self->edge[edge].a, b = self->edge[edge].b;

    if (status != XM_OK || self->edge[edge].gone || separate(self, edge)) {
        return status;
    }
    if (may_go(self, b) && is_functional(self, edge, a, f)) {
        return contract(self, edge, a, f, keep);
    }
    if (may_go(self, a) && is_functional(self, edge, b, f)) {
        return contract(self, edge, b, f, keep);
    }
    return XM_OK;
}

xm_status_t ap_reduce_propagate(ap_cfn_reduction_t *self)
{
    xm_status_t status = XM_OK;
    int largest = 1;
    bool *keep;
    int *f;

    for (int n = 0; n < self->nodes; ++n) {
        largest = self->node[n].size > largest ? self->node[n].size : largest;
    }
    keep = malloc((size_t)largest * sizeof(*keep));
    f = malloc((size_t)largest * sizeof(*f));
    if (keep == NULL || f == NULL) {
        status = no_memory();
    }
    while (status == XM_OK && self->work_count > 0 && xm_clock_ns() < self->deadline) {
        int edge = self->work[--self->work_count];

        self->edge[edge].queued = false;
        if (!self->edge[edge].gone) {
            status = look_at(self, edge, f, keep);
        }
    }
    free(keep);
    free(f);
    return status;
}
