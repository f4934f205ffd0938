/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Resharding between specs: a shortest path over the specs of one tensor. Its edges are single
 * steps over one mesh axis: a slice, an all-gather, an all-to-all. A path of several steps is often
 * cheaper than the one collective that a table of cases would choose, such as cutting by the fast
 * axis before gathering over the slow one, and a search finds all of them without anyone listing
 * cases.
 *
 * There are some hundred specs, so Dijkstra with a linear search for the nearest is fast enough and
 * needs no queue.
 */

#include "planner/cost/cost_private.h"

/* A spec of a tensor of rank r is a number in base r + 1 with one digit per mesh axis: 0 when the
 * axis cuts nothing, d + 1 when it cuts dimension d. 9^4 is the largest count. */
enum { MAX_STATES = 6561 };

typedef struct walk {
    const ap_cost_mesh_t *mesh;
    const ap_shape_t *shape;
    double bytes;
    double distance[MAX_STATES];
    bool done[MAX_STATES];
    int previous[MAX_STATES];
    ap_reshard_step_t step[MAX_STATES]; /* that leads here */
} walk_t;

static int state_of(const walk_t *w, ap_spec_t spec)
{
    int state = 0;

    for (int a = w->mesh->rank - 1; a >= 0; --a) {
        int digit = 0;

        for (int d = 0; d < w->shape->rank; ++d) {
            digit = (ap_spec_axes(spec, d) >> a & 1U) != 0 ? d + 1 : digit;
        }
        state = state * (w->shape->rank + 1) + digit;
    }
    return state;
}

static ap_spec_t spec_of(const walk_t *w, int state)
{
    ap_spec_t spec = AP_SPEC_REPLICATED;

    for (int a = 0; a < w->mesh->rank; ++a) {
        int digit = state % (w->shape->rank + 1);

        if (digit > 0) {
            spec = ap_spec_with(spec, digit - 1, ap_spec_axes(spec, digit - 1) | 1U << a);
        }
        state /= w->shape->rank + 1;
    }
    return spec;
}

/* Whether `axis` could be the minor-most one of dimension d: only then is cutting local and
 * gathering contiguous. (S0 to S01 is a slice; S1 to S01 moves data.) */
static bool is_minor(ap_spec_t spec, int d, int axis)
{
    return ap_spec_axes(spec, d) >> axis <= 1U;
}

static bool divides(const walk_t *w, ap_spec_t spec, int d)
{
    return ap_cost_mesh_cuts(w->mesh, w->shape->dims[d], ap_spec_axes(spec, d));
}

static void relax(walk_t *w, int from, double cost, const ap_reshard_step_t *step)
{
    int to = state_of(w, step->after);

    if (!w->done[to] && w->distance[from] + cost < w->distance[to]) {
        w->distance[to] = w->distance[from] + cost;
        w->previous[to] = from;
        w->step[to] = *step;
    }
}

/* Moves of one axis out of dimension d (or, with d < 0, out of nothing) and into every other. The
 * bytes are those that the collective sees: of the gathered piece. */
static void move_axis(walk_t *w, int state, ap_spec_t spec, int axis, int d)
{
    ap_spec_t without = d < 0 ? spec : ap_spec_with(spec, d, ap_spec_axes(spec, d) & ~(1U << axis));
    ap_reshard_step_t step = {.kind = AP_ALL_GATHER,
                              .axis = axis,
                              .bytes = w->mesh->axis[axis].size *
                                       ap_cost_mesh_local_bytes(w->mesh, w->shape, w->bytes, spec),
                              .after = without};

    if (d >= 0 && !is_minor(spec, d, axis)) {
        return;
    }
    if (d >= 0) {
        relax(w, state, ap_cost_collective(w->mesh, step.kind, axis, step.bytes), &step);
    }
    for (int to = 0; to < w->shape->rank; ++to) {
        step.after = ap_spec_with(without, to, ap_spec_axes(without, to) | 1U << axis);
        if (to == d || !is_minor(step.after, to, axis) || !divides(w, step.after, to)) {
            continue;
        }
        if (d < 0) {
            ap_reshard_step_t slice = {.slice = true, .axis = axis, .after = step.after};

            relax(w, state, 0, &slice);
        } else {
            step.kind = AP_ALL_TO_ALL;
            relax(w, state, ap_cost_collective(w->mesh, step.kind, axis, step.bytes), &step);
        }
    }
}

static void expand(walk_t *w, int state)
{
    ap_spec_t spec = spec_of(w, state);

    for (int a = 0; a < w->mesh->rank; ++a) {
        int holder = -1;

        if (w->mesh->axis[a].size == 1) {
            continue;
        }
        for (int d = 0; d < w->shape->rank; ++d) {
            holder = (ap_spec_axes(spec, d) >> a & 1U) != 0 ? d : holder;
        }
        move_axis(w, state, spec, a, holder);
    }
}

/* The steps on the path to `state`, the first one first. */
static int collect(const walk_t *w, int start, int state, ap_reshard_step_t *steps)
{
    int count = 0;

    for (int s = state; s != start && count < AP_MAX_RESHARD_STEPS; s = w->previous[s]) {
        steps[count++] = w->step[s];
    }
    for (int i = 0; i < count / 2; ++i) {
        ap_reshard_step_t swap = steps[i];

        steps[i] = steps[count - 1 - i];
        steps[count - 1 - i] = swap;
    }
    return count;
}

static void set_up(walk_t *w, const ap_cost_mesh_t *mesh, const ap_shape_t *shape, double bytes)
{
    w->mesh = mesh;
    w->shape = shape;
    w->bytes = bytes;
}

/* Dijkstra from `from`; stops at `goal` unless that is negative. Costs are not negative, so a spec
 * that is taken is final. Ties go to the lower number, so the path is the same in every run. */
static int run(walk_t *w, ap_spec_t from, int goal)
{
    int start = state_of(w, from), states = 1;

    for (int a = 0; a < w->mesh->rank; ++a) {
        states *= w->shape->rank + 1;
    }
    for (int s = 0; s < states; ++s) {
        w->distance[s] = 2 * AP_COST_INFINITE;
        w->done[s] = false;
    }
    w->distance[start] = 0;
    for (;;) {
        int nearest = -1;

        for (int s = 0; s < states; ++s) {
            if (!w->done[s] && (nearest < 0 || w->distance[s] < w->distance[nearest])) {
                nearest = s;
            }
        }
        if (nearest < 0 || nearest == goal || w->distance[nearest] >= 2 * AP_COST_INFINITE) {
            return start;
        }
        w->done[nearest] = true;
        expand(w, nearest);
    }
}

double ap_cost_reshard(const ap_cost_mesh_t *mesh, const ap_shape_t *shape, double bytes,
                       ap_spec_t from, ap_spec_t to, ap_reshard_step_t *steps, int *step_count)
{
    walk_t w;
    int start, goal;

    set_up(&w, mesh, shape, bytes);
    goal = state_of(&w, to);
    if (step_count != NULL) {
        *step_count = 0;
    }
    if (from == to) {
        return 0;
    }
    start = run(&w, from, goal);
    if (steps != NULL && step_count != NULL && w.distance[goal] < 2 * AP_COST_INFINITE) {
        *step_count = collect(&w, start, goal, steps);
    }
    return w.distance[goal];
}

/* One run of the search gives the costs to all specs. */
void ap_cost_reshard_many(const ap_cost_mesh_t *mesh, const ap_shape_t *shape, double bytes,
                          ap_spec_t from, const ap_spec_t *to, int count, double *costs)
{
    walk_t w;

    set_up(&w, mesh, shape, bytes);
    (void)run(&w, from, -1);
    for (int i = 0; i < count; ++i) {
        costs[i] = w.distance[state_of(&w, to[i])];
    }
}
