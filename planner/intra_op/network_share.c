/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds the tensors that several operators read, and the copies that may serve them. A group is a
 * variable of the network whose value is a pair of specs: the one that the tensor is made in, and
 * the copy's. So every cost stays one between two variables, and what follows knows of no groups.
 */

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "planner/intra_op/emit.h"

/* Beyond so many pairs only copies that are one step away are looked at. */
enum { MOST_PAIRS = 100 };

static xm_status_t no_memory(void)
{
    return xm_error_set(XM_ERR_NO_MEMORY, "no memory for the readers of tensors");
}

/* Whether spec `b` is `a` after gathering over some axes, or after moving one to another
 * dimension. */
static bool is_near(ap_spec_t a, ap_spec_t b, int rank)
{
    unsigned added = 0, removed = 0;

    for (int d = 0; d < rank; ++d) {
        added |= ap_spec_axes(b, d) & ~ap_spec_axes(a, d);
        removed |= ap_spec_axes(a, d) & ~ap_spec_axes(b, d);
    }
    return added == 0 || (added == removed && (added & (added - 1)) == 0);
}

static int number_of(const ap_shard_shared_t *group, ap_spec_t spec)
{
    int s = 0;

    while (s < group->specs && group->spec[s] != spec) {
        ++s;
    }
    return s;
}

/* What is paid for the copy, and by a reader. */
static double copy_cost(const ap_shard_shared_t *group, int option)
{
    return group->cost[group->made[option] * group->specs + group->copy[option]];
}

static double read_cost(const ap_shard_shared_t *group, int option, int used)
{
    return fmin(group->cost[group->made[option] * group->specs + used],
                group->cost[group->copy[option] * group->specs + used]);
}

double ap_shard_shared_cost(const ap_shard_shared_t *group, ap_spec_t made, const ap_spec_t *used)
{
    int from = number_of(group, made);
    double best = HUGE_VAL;

    for (int o = 0; o < group->options; ++o) {
        double cost = copy_cost(group, o);

        for (int r = 0; r < group->readers && group->made[o] == from; ++r) {
            cost += read_cost(group, o, number_of(group, used[r]));
        }
        best = group->made[o] == from ? fmin(best, cost) : best;
    }
    return best;
}

/* Counts, per spec, the strategies of the maker and the readers that have it. */
static void count_ends(const ap_shard_problem_t *p, const ap_shard_shared_t *group, bool *made,
                       int *wanted)
{
    for (int r = -1; r < group->readers; ++r) {
        const ap_shard_wire_t *wire = &p->wire[group->wire[r < 0 ? 0 : r]];
        const ap_strategy_table_t *set = ap_strategy_table_of(p, r < 0 ? wire->from : wire->to);
        bool has[AP_MAX_SPECS] = {false};

        for (int s = 0; s < set->count; ++s) {
            has[number_of(
                group, ap_shard_spec_at(set, s, r < 0 ? wire->from_term : wire->to_term))] = true;
        }
        for (int s = 0; s < group->specs; ++s) {
            made[s] = r < 0 ? has[s] : made[s];
            wanted[s] += r >= 0 && has[s];
        }
    }
}

/* Lists the pairs of a group. A copy that costs nothing is none, and one that fewer than two
 * readers could take as it is would not be shared. */
static void list_pairs(ap_shard_shared_t *group, const bool *made, const int *wanted, int rank,
                       bool only_near)
{
    group->options = 0;
    for (int m = 0; m < group->specs; ++m) {
        for (int c = 0; c < group->specs && made[m]; ++c) {
            if (c == m ||
                (wanted[c] >= 2 && (!only_near || is_near(group->spec[m], group->spec[c], rank)) &&
                 group->cost[m * group->specs + c] > 0)) {
                group->made[group->options] = m;
                group->copy[group->options++] = c;
            }
        }
    }
}

static xm_status_t make_pairs(const ap_shard_problem_t *p, ap_shard_shared_t *group)
{
    const ap_shard_wire_t *wire = &p->wire[group->wire[0]];
    const ap_tensor_t *tensor = ap_graph_tensor(p->params.graph, wire->tensor);
    ap_spec_t specs[AP_MAX_SPECS];
    bool made[AP_MAX_SPECS] = {false};
    int wanted[AP_MAX_SPECS] = {0};
    size_t count = (size_t)ap_specs_enumerate(p->params.mesh, &tensor->shape, specs);

    group->specs = (int)count;
    group->spec = malloc(count * sizeof(*group->spec));
    group->cost = malloc(count * count * sizeof(*group->cost));
    group->made = malloc(count * count * sizeof(*group->made));
    group->copy = malloc(count * count * sizeof(*group->copy));
    if (group->spec == NULL || group->cost == NULL || group->made == NULL || group->copy == NULL) {
        return no_memory();
    }
    memcpy(group->spec, specs, count * sizeof(*specs));
    for (size_t cell = 0; cell < count * count; ++cell) {
        group->cost[cell] = ap_shard_wire_cost(p, wire, specs[cell / count], specs[cell % count]);
    }
    count_ends(p, group, made, wanted);
    list_pairs(group, made, wanted, tensor->shape.rank, false);
    if (group->options > MOST_PAIRS) {
        list_pairs(group, made, wanted, tensor->shape.rank, true);
    }
    return XM_OK;
}

/* Whether the wires are those of a group, reader by reader. */
static bool belongs(const ap_shard_problem_t *p, const ap_shard_symmetric_t *alike,
                    const ap_shard_shared_t *group, const int *wires, int count)
{
    bool same = group->readers == count;

    for (int r = 0; r < count && same; ++r) {
        const ap_shard_wire_t *a = &p->wire[group->wire[r]], *b = &p->wire[wires[r]];

        same = alike->class_of[a->from] == alike->class_of[b->from] &&
               a->from_term == b->from_term && alike->class_of[a->to] == alike->class_of[b->to] &&
               a->to_term == b->to_term && a->weight <= b->weight && a->weight >= b->weight;
    }
    return same;
}

/* Adds a tensor by those of its wires that are resharded equally often. */
static xm_status_t add_tensor(const ap_shard_problem_t *p, const ap_shard_symmetric_t *alike,
                              const int *wires, int count, ap_shard_sharing_t *sharing)
{
    ap_shard_shared_t *made = &sharing->group[sharing->groups];

    for (int r = 0; r < count; ++r) {
        sharing->covers[wires[r]] = true;
    }
    for (int g = 0; g < sharing->groups; ++g) {
        if (belongs(p, alike, &sharing->group[g], wires, count)) {
            ++sharing->group[g].count;
            return XM_OK;
        }
    }
    ++sharing->groups;
    made->count = 1;
    made->readers = count;
    made->wire = malloc((size_t)count * sizeof(int));
    if (made->wire == NULL) {
        return no_memory();
    }
    memcpy(made->wire, wires, (size_t)count * sizeof(int));
    return make_pairs(p, made);
}

/* Wires stand in the order of their readers, so chains by tensor keep it. */
xm_status_t ap_shard_sharing_create(const ap_shard_problem_t *problem,
                                    const ap_shard_symmetric_t *alike, bool share,
                                    ap_shard_sharing_t *sharing)
{
    size_t wires = (size_t)problem->wires + 1;
    int *group = malloc(wires * sizeof(int));
    int tensors = ap_graph_tensors(problem->params.graph);
    int *last = malloc(((size_t)tensors + 1) * sizeof(int));
    xm_status_t status = XM_OK;

    sharing->group = calloc(wires, sizeof(*sharing->group));
    sharing->next = malloc(wires * sizeof(int));
    sharing->covers = calloc(wires, sizeof(bool));
    sharing->used = calloc(wires, sizeof(*sharing->used));
    if (sharing->next == NULL || group == NULL || last == NULL || sharing->group == NULL ||
        sharing->covers == NULL || sharing->used == NULL) {
        status = no_memory();
        goto release;
    }
    memset(last, -1, ((size_t)tensors + 1) * sizeof(int));
    for (int w = problem->wires - 1; w >= 0; --w) {
        sharing->next[w] = last[problem->wire[w].tensor];
        last[problem->wire[w].tensor] = w;
    }
    for (int w = 0; w < problem->wires && share && status == XM_OK; ++w) {
        int count = 0;

        for (int k = w; k >= 0 && !sharing->covers[w] && !problem->wire[w].alias;
             k = sharing->next[k]) {
            const ap_shard_wire_t *wire = &problem->wire[k];

            if (!wire->alias && !sharing->covers[k] && wire->weight <= problem->wire[w].weight &&
                wire->weight >= problem->wire[w].weight) {
                group[count++] = k;
            }
        }
        if (count > 1) {
            status = add_tensor(problem, alike, group, count, sharing);
        }
    }

release:
    free(group);
    free(last);
    return status;
}

void ap_shard_sharing_release(ap_shard_sharing_t *sharing)
{
    for (int g = 0; g < sharing->groups; ++g) {
        free(sharing->group[g].wire);
        free(sharing->group[g].spec);
        free(sharing->group[g].cost);
        free(sharing->group[g].made);
        free(sharing->group[g].copy);
    }
    free(sharing->group);
    free(sharing->covers);
    free(sharing->next);
    free(sharing->used);
}

/* No choice pays more than the dearest resharding for every reader and the copy. */
double ap_shard_shared_largest(const ap_shard_emission_t *e, int group)
{
    const ap_shard_shared_t *of = &e->n->sharing.group[group];
    double largest = 0;

    for (int cell = 0; cell < of->specs * of->specs; ++cell) {
        largest = of->cost[cell] < AP_COST_INFINITE ? fmax(largest, of->cost[cell]) : largest;
    }
    return of->count * (of->readers + 1) * largest;
}

/* The table between a shared tensor and its maker (reader -1), who fixes the first spec of the pair
 * and pays for the copy, or a reader, who pays what is left. */
static void emit_end(ap_shard_emission_t *e, const ap_shard_shared_t *of, int node, int reader)
{
    const ap_shard_problem_t *p = e->n->problem;
    const ap_shard_wire_t *wire = &p->wire[of->wire[reader < 0 ? 0 : reader]];
    int end = reader < 0 ? wire->from : wire->to;
    const ap_strategy_table_t *set = ap_strategy_table_of(p, end);
    const ap_shard_variable_t *variable = &e->n->variable[ap_shard_class_of(e, end)];
    int64_t *cell = ap_shard_emit_table(e->n->cfn, ap_shard_class_of(e, end), node);

    for (int v = 0; v < variable->options; ++v) {
        int spec = number_of(of, ap_shard_spec_at(set, variable->option[v].strategy,
                                                  reader < 0 ? wire->from_term : wire->to_term));

        for (int o = 0; o < of->options; ++o) {
            double cost = reader >= 0           ? read_cost(of, o, spec)
                          : of->made[o] == spec ? copy_cost(of, o)
                                                : AP_COST_INFINITE;

            *cell++ = ap_shard_emit_cost(e, of->count * cost);
        }
    }
}

void ap_shard_emit_shared(ap_shard_emission_t *e, int group)
{
    const ap_shard_shared_t *of = &e->n->sharing.group[group];
    int node = (int)e->n->cfn->nodes;

    (void)ap_shard_emit_node(e->n->cfn, of->options);
    for (int end = -1; end < of->readers; ++end) {
        emit_end(e, of, node, end);
    }
}
