/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds the tensors that several operators read, and the sums of gradients. A group is a variable
 * of the network, so every cost stays one between two variables, and what follows knows of no
 * groups. The value of a tensor is that of planner/cost/share.h; that of a sum says how gradients
 * that are partial sums themselves are added before one reduction serves all of them.
 */

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "planner/intra_op/emit.h"

static xm_status_t allocate(const ap_shard_problem_t *p, xm_arena_t *arena,
                            ap_shard_shared_t *group)
{
    group->own = xm_arena_get(arena, (size_t)group->options, sizeof(*group->own));
    group->copy = xm_arena_get(arena, (size_t)group->options, sizeof(*group->copy));
    for (int e = 0; e < group->ends; ++e) {
        ap_shard_end_t *end = &group->end[e];
        size_t cells = (size_t)ap_strategy_table_of(p, end->node)->count * (size_t)group->options;

        end->cost = xm_arena_get(arena, cells, sizeof(*end->cost));
        end->again = xm_arena_get(arena, cells, sizeof(*end->again));
    }
    return arena->failed ? XM_NO_MEMORY("the readers of tensors") : XM_OK;
}

static ap_spec_t spec_at(const ap_shard_problem_t *p, const ap_shard_end_t *end, int strategy)
{
    return ap_shard_spec_at(ap_strategy_table_of(p, end->node), strategy, end->term);
}

/* Counts, per spec, the strategies of the maker and the readers that have it. */
static void count_ends(const ap_shard_problem_t *p, const ap_shard_shared_t *group,
                       const ap_shared_t *shared, bool *made, int *wanted)
{
    for (int e = 0; e < group->ends; ++e) {
        const ap_shard_end_t *end = &group->end[e];

        for (int s = 0; s < shared->specs; ++s) {
            bool has = false;

            for (int k = 0; k < ap_strategy_table_of(p, end->node)->count && !has; ++k) {
                has = spec_at(p, end, k) == shared->spec[s];
            }
            made[s] = e == 0 ? has : made[s];
            wanted[s << AP_MAX_MESH_RANK] += e > 0 && has;
        }
    }
}

/* The tables of a tensor: its maker (the first end) fixes where the value's copy is taken from and
 * pays for it, readers pay what is left. */
static xm_status_t fill_tensor(const ap_shard_problem_t *p, int tensor, double weight,
                               xm_arena_t *arena, ap_shard_shared_t *group)
{
    const ap_tensor_t *of = ap_graph_tensor(p->params.graph, tensor);
    ap_spec_t specs[AP_MAX_SPECS];
    bool made[AP_MAX_SPECS] = {false};
    int wanted[AP_MAX_SPECS << AP_MAX_MESH_RANK] = {0};
    ap_shared_t shared = {.memo = p->memo,
                          .runs = weight,
                          .rank = of->shape.rank,
                          .specs = ap_specs_enumerate(p->params.mesh, &of->shape, specs),
                          .spec = specs,
                          .made = made,
                          .wanted = wanted};
    ap_shared_value_t *values = NULL;
    xm_status_t status = ap_reshard_memo_tensor(
        p->memo, &of->shape, ap_graph_tensor_bytes(p->params.graph, tensor), &shared.tensor);

    if (status == XM_OK) {
        count_ends(p, group, &shared, made, wanted);
        group->options = ap_shared_values(&shared, NULL);
        values = xm_arena_take(arena, (size_t)group->options * sizeof(*values));
        status = allocate(p, arena, group);
    }
    XM_TRY(status);
    (void)ap_shared_values(&shared, values);
    for (int e = 0; e < group->ends; ++e) {
        const ap_shard_end_t *end = &group->end[e];

        for (int cell = 0; cell < ap_strategy_table_of(p, end->node)->count * group->options;
             ++cell) {
            const ap_shared_value_t *value = &values[cell % group->options];
            const ap_shared_value_t plain = {.made = value->made, .copy = value->made, .sum = -1};
            ap_spec_t spec = spec_at(p, end, cell / group->options);

            end->cost[cell] = e == 0 ? ap_shared_make(&shared, value, spec)
                                     : ap_shared_read(&shared, value, spec);
            end->again[cell] = e == 0 ? 0 : ap_shared_read(&shared, &plain, spec);
        }
    }
    for (int o = 0; o < group->options; ++o) {
        group->copy[o] =
            values[o].copy == values[o].made ? 0 : ap_shard_local_bytes(p, tensor, values[o].copy);
    }
    return XM_OK;
}

/* Per micro-batch, as all costs here. */
static ap_reduction_t reduction_of(const ap_shard_problem_t *p, const ap_shard_end_t *end, int s)
{
    const ap_priced_op_t op =
        ap_price_op(p->params.graph, p->params.mesh, p->node[end->node].op, p->params.state_bytes);
    ap_reduction_t made =
        ap_reduction_of(&op, &ap_strategy_table_of(p, end->node)->strategies.items[s], end->term);

    if (ap_price_is_parameter_gradient(p->params.graph, op.op, end->term)) {
        made.seconds *= ap_shard_per_iteration(p);
    }
    return made;
}

double ap_shard_reduction_seconds(const ap_shard_sharing_t *sharing, const ap_shard_problem_t *p,
                                  const ap_shard_symmetric_t *alike, int class, int strategy)
{
    for (int g = 0; g < sharing->groups; ++g) {
        for (int e = 0; e < sharing->group[g].ends && sharing->group[g].sums; ++e) {
            if (alike->class_of[sharing->group[g].end[e].node] == class) {
                return reduction_of(p, &sharing->group[g].end[e], strategy).seconds;
            }
        }
    }
    return 0;
}

/* By how much an addition takes longer before the gradients are scattered than after. */
static double extra_addition(const ap_shard_problem_t *p, int tensor, const ap_reduction_t *of)
{
    ap_spec_t before = of->spec;

    for (int d = 0; d < AP_MAX_RANK; ++d) {
        before = ap_spec_with(before, d, ap_spec_axes(before, d) & ~(of->partial & ~of->whole));
    }
    return ap_price_gradient_sum(p->params.graph, p->params.mesh, tensor, before) -
           ap_price_gradient_sum(p->params.graph, p->params.mesh, tensor, of->spec);
}

/* The different reductions that strategies of the ends have; the first one is none. */
static int list_reductions(const ap_shard_problem_t *p, const ap_shard_shared_t *group,
                           bool scatters, ap_reduction_t *list, int most)
{
    int count = 1;

    list[0] = (ap_reduction_t){0};
    for (int e = 0; e < group->ends; ++e) {
        for (int s = 0; s < ap_strategy_table_of(p, group->end[e].node)->count; ++s) {
            ap_reduction_t of = reduction_of(p, &group->end[e], s);
            int at = 0;

            while (at < count && !ap_reduction_equal(&list[at], &of)) {
                ++at;
            }
            if (at == count && count < most && of.seconds > 0 &&
                (scatters || of.whole == of.partial)) {
                list[count++] = of;
            }
        }
    }
    return count;
}

enum { MOST_REDUCTIONS = 128 };

/* The tables of a sum: a gradient whose strategy reduces as the group's value says leaves that to
 * the sum. Of n gradients n - 1 are added, so one that pays more for the addition gets it back. */
static xm_status_t fill_sum(const ap_shard_problem_t *p, bool scatters, xm_arena_t *arena,
                            ap_shard_shared_t *group)
{
    int tensor = ap_graph_op(p->params.graph, p->node[group->end[0].node].op)->results[0];
    ap_reduction_t list[MOST_REDUCTIONS];
    xm_status_t status;

    group->options = list_reductions(p, group, scatters, list, MOST_REDUCTIONS);
    status = allocate(p, arena, group);
    for (int o = 1; o < group->options && status == XM_OK; ++o) {
        group->own[o] = fmax(0, list[o].seconds - extra_addition(p, tensor, &list[o]));
    }
    for (int e = 0; e < group->ends && status == XM_OK; ++e) {
        for (int s = 0; s < ap_strategy_table_of(p, group->end[e].node)->count; ++s) {
            ap_reduction_t of = reduction_of(p, &group->end[e], s);

            for (int o = 0; o < group->options; ++o) {
                group->end[e].cost[s * group->options + o] =
                    o > 0 && ap_reduction_equal(&of, &list[o])
                        ? fmin(of.seconds, extra_addition(p, tensor, &of))
                        : of.seconds;
            }
        }
    }
    return status;
}

/* Whether the ends are those of a group. */
static bool belongs(const ap_shard_symmetric_t *alike, const ap_shard_shared_t *group,
                    const ap_shard_shared_t *other)
{
    bool same = group->ends == other->ends && group->sums == other->sums &&
                group->weight <= other->weight && group->weight >= other->weight;

    for (int e = 0; e < group->ends && same; ++e) {
        same = alike->class_of[group->end[e].node] == alike->class_of[other->end[e].node] &&
               group->end[e].term == other->end[e].term;
    }
    return same;
}

/* Counts one more tensor of a group, or begins a group with it, which then has its ends. */
static xm_status_t add_tensor(const ap_shard_symmetric_t *alike, ap_shard_shared_t *tensor,
                              ap_shard_sharing_t *sharing, int *group, bool *begun)
{
    ap_shard_shared_t *made = &sharing->group[sharing->groups];
    size_t bytes = (size_t)tensor->ends * sizeof(*made->end);

    *begun = false;
    for (*group = 0; *group < sharing->groups; ++*group) {
        if (belongs(alike, &sharing->group[*group], tensor)) {
            ++sharing->group[*group].count;
            return XM_OK;
        }
    }
    *made = *tensor;
    made->count = 1;
    made->end = xm_arena_take(sharing->arena, bytes);
    XM_NEED_MEMORY(made->end, "the readers of tensors");
    memcpy(made->end, tensor->end, bytes);
    ++sharing->groups;
    *begun = true;
    return XM_OK;
}

/* Adds the gradients of a sum, of which tensor `t` is the first. Sums themselves are among its
 * parts, and have nothing to reduce. */
static xm_status_t add_sum(const ap_shard_problem_t *p, const ap_shard_symmetric_t *alike,
                           const int *sum_of, int t, bool scatters, ap_shard_end_t *ends,
                           ap_shard_sharing_t *sharing)
{
    const ap_graph_t *graph = p->params.graph;
    ap_shard_shared_t group = {.sums = true, .end = ends};
    bool begun;
    int g;
    xm_status_t status;

    for (int part = t; part < sum_of[t]; ++part) {
        const ap_tensor_t *of = ap_graph_tensor(graph, part);

        if (sum_of[part] == sum_of[t] && ap_graph_op(graph, of->producer)->forward >= 0) {
            ends[group.ends++] =
                (ap_shard_end_t){.node = p->op_node[of->producer],
                                 .term = ap_op_result_term(ap_graph_op(graph, of->producer), part)};
        }
    }
    if (group.ends < 2) {
        return XM_OK;
    }
    status = add_tensor(alike, &group, sharing, &g, &begun);
    return status == XM_OK && begun ? fill_sum(p, scatters, sharing->arena, &sharing->group[g])
                                    : status;
}

static xm_status_t add_sums(const ap_shard_problem_t *p, const ap_shard_symmetric_t *alike,
                            bool scatters, ap_shard_end_t *ends, ap_shard_sharing_t *sharing)
{
    int tensors = ap_graph_tensors(p->params.graph), *sum_of = NULL;
    bool *seen = xm_arena_get(sharing->arena, (size_t)tensors, sizeof(*seen));
    xm_status_t status = seen == NULL ? XM_NO_MEMORY("the readers of tensors")
                                      : ap_gradient_sums_find(p->params.graph, &sum_of);

    for (int t = 0; t < tensors && status == XM_OK; ++t) {
        if (sum_of[t] >= 0 && !seen[sum_of[t]]) {
            seen[sum_of[t]] = true;
            status = add_sum(p, alike, sum_of, t, scatters, ends, sharing);
        }
    }
    free(sum_of);
    return status;
}

/* Adds a tensor by those of its wires that are resharded equally often, and with `phases` in the
 * same part of the step, as a copy would wait for the others long. */
static xm_status_t add_read(const ap_shard_problem_t *p, const ap_shard_symmetric_t *alike, int w,
                            int turn, ap_shard_end_t *ends, ap_shard_sharing_t *sharing)
{
    const ap_shard_wire_t *first = &p->wire[w];
    ap_shard_shared_t group = {.weight = first->weight, .end = ends, .ends = 1};
    bool begun, late = p->node[first->to].op >= turn;
    int g;
    xm_status_t status = XM_OK;

    ends[0] = (ap_shard_end_t){.node = first->from, .term = first->from_term};
    for (int k = first->alias || sharing->group_of[w] >= 0 ? -1 : w; k >= 0; k = sharing->next[k]) {
        const ap_shard_wire_t *wire = &p->wire[k];

        if (!wire->alias && sharing->group_of[k] < 0 && wire->weight <= first->weight &&
            wire->weight >= first->weight && (p->node[wire->to].op >= turn) == late) {
            ends[group.ends++] =
                (ap_shard_end_t){.node = wire->to, .term = wire->to_term, .wire = k};
        }
    }
    if (group.ends < 3) {
        return XM_OK;
    }
    status = add_tensor(alike, &group, sharing, &g, &begun);
    for (int e = 1; e < group.ends && status == XM_OK; ++e) {
        sharing->group_of[ends[e].wire] = g;
    }
    return status == XM_OK && begun
               ? fill_tensor(p, first->tensor, first->weight, sharing->arena, &sharing->group[g])
               : status;
}

/* Whether all nodes of the ends' classes are in as many sums as a group counts. */
static bool is_whole(const ap_shard_problem_t *p, const ap_shard_symmetric_t *alike,
                     const ap_shard_shared_t *group)
{
    for (int e = 0; e < group->ends; ++e) {
        int nodes = 0, ends = 0;

        for (int n = 0; n < p->nodes; ++n) {
            nodes += alike->class_of[n] == alike->class_of[group->end[e].node];
        }
        for (int f = 0; f < group->ends; ++f) {
            ends += alike->class_of[group->end[f].node] == alike->class_of[group->end[e].node];
        }
        if (nodes != group->count * ends) {
            return false;
        }
    }
    return true;
}

/* What a class pays is one number for all its nodes, so sums that only some of them are in are
 * left out. */
static void drop_partial(const ap_shard_problem_t *p, const ap_shard_symmetric_t *alike,
                         ap_shard_sharing_t *sharing)
{
    int kept = 0;

    for (int g = 0; g < sharing->groups; ++g) {
        if (!sharing->group[g].sums || is_whole(p, alike, &sharing->group[g])) {
            sharing->group[kept++] = sharing->group[g];
        }
    }
    sharing->groups = kept;
}

/* Wires stand in the order of their readers, so chains by tensor keep it. */
xm_status_t ap_shard_sharing_create(const ap_shard_problem_t *problem,
                                    const ap_shard_symmetric_t *alike, bool share, bool limited,
                                    int turn, xm_arena_t *arena, ap_shard_sharing_t *sharing)
{
    const ap_graph_t *graph = problem->params.graph;
    size_t wires = (size_t)problem->wires + 1, tensors = (size_t)ap_graph_tensors(graph) + 1;
    ap_shard_end_t *ends = xm_arena_take(arena, (wires + 1) * sizeof(*ends));
    xm_status_t status = XM_OK;

    sharing->arena = arena;
    sharing->group =
        xm_arena_get(arena, wires + (size_t)ap_graph_ops(graph), sizeof(*sharing->group));
    sharing->next = xm_arena_take(arena, wires * sizeof(int));
    sharing->first = xm_arena_take(arena, tensors * sizeof(int));
    sharing->group_of = xm_arena_take(arena, wires * sizeof(int));
    XM_NEED_MEMORY(!arena->failed, "the readers of tensors");
    memset(sharing->first, -1, tensors * sizeof(int));
    memset(sharing->group_of, -1, wires * sizeof(int));
    for (int w = problem->wires - 1; w >= 0; --w) {
        sharing->next[w] = sharing->first[problem->wire[w].tensor];
        sharing->first[problem->wire[w].tensor] = w;
    }
    for (int w = 0; w < problem->wires && share && status == XM_OK; ++w) {
        status = add_read(problem, alike, w, limited ? turn : 0, ends, sharing);
    }
    if (status == XM_OK && share) {
        status = add_sums(problem, alike, !limited, ends, sharing);
    }
    if (status == XM_OK) {
        drop_partial(problem, alike, sharing);
    }
    return status;
}

/* No choice pays more than the dearest value with the dearest strategy of every end. */
double ap_shard_shared_largest(const ap_shard_emission_t *e, int group)
{
    const ap_shard_shared_t *of = &e->n->sharing.group[group];
    double sum = 0;

    for (int k = -1; k < of->ends; ++k) {
        int strategies = k < 0 ? 1 : ap_strategy_table_of(e->n->problem, of->end[k].node)->count;
        double largest = 0;

        for (int cell = 0; cell < strategies * of->options; ++cell) {
            double cost = k < 0 ? of->own[cell] : of->end[k].cost[cell] + of->end[k].again[cell];

            largest = cost < AP_COST_INFINITE ? fmax(largest, cost) : largest;
        }
        sum += largest;
    }
    return of->count * sum;
}

int ap_shard_next_reader(const ap_shard_sharing_t *sharing, int w)
{
    int next = sharing->next[w];

    while (next >= 0 && sharing->group_of[next] != sharing->group_of[w]) {
        next = sharing->next[next];
    }
    return next;
}

double ap_shard_end_cost(const ap_shard_shared_t *of, int end, const ap_shard_option_t *option,
                         int value)
{
    size_t cell = (size_t)option->strategy * (size_t)of->options + (size_t)value;

    return of->end[end].cost[cell] +
           (option->keep == AP_SHARD_REMATERIALISED ? of->end[end].again[cell] : 0);
}

/* The variable of a group, and a table to each of its ends. */
void ap_shard_emit_shared(ap_shard_emission_t *e, int group)
{
    const ap_shard_shared_t *of = &e->n->sharing.group[group];
    int node = (int)e->n->cfn->nodes;
    size_t at = ap_shard_emit_node(e->n->cfn, of->options);

    for (int o = 0; o < of->options; ++o) {
        e->n->cfn->costs[at + (size_t)o] = ap_shard_emit_cost(e, of->count * of->own[o]);
    }
    for (int end = 0; end < of->ends; ++end) {
        int class = ap_shard_class_of(e, of->end[end].node);
        const ap_shard_variable_t *variable = &e->n->variable[class];
        int64_t *cell = ap_shard_emit_table(e->n->cfn, class, node);

        for (int v = 0; v < variable->options; ++v) {
            for (int o = 0; o < of->options; ++o) {
                *cell++ = ap_shard_emit_cost(
                    e, of->count * ap_shard_end_cost(of, end, &variable->option[v], o));
            }
        }
    }
}
