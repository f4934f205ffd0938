/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which operators a placement keeps together, and what parting them from others costs. The problem
 * asks for operators of one colour on one device; backward operators mirror the forward graph; and
 * operators on a cycle of groups cannot be parted. Joining all of these (union-find, Tarjan's
 * components) leaves an acyclic graph of groups, whose down-sets are far fewer than those of the
 * operators.
 */

#include "planner/published/placement/groups.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Times below this are none, as in the authors' inputs. */
static const double NO_TIME = 1e-6;

/* The root of a group is its first node, whatever the order of the joins. */
static void join(int *parent, int a, int b)
{
    a = ap_set_root(parent, a);
    b = ap_set_root(parent, b);
    parent[a > b ? a : b] = a < b ? a : b;
}

typedef struct coloured {
    int64_t colour;
    int node;
} coloured_t;

static int compare_colours(const void *a, const void *b)
{
    const coloured_t *left = a, *right = b;

    return left->colour != right->colour ? xm_order(left->colour, right->colour)
                                         : xm_order(left->node, right->node);
}

int *ap_placement_by_colour(const ap_placement_problem_t *problem, xm_arena_t *arena)
{
    size_t count = (size_t)problem->node_count;
    coloured_t *nodes = xm_arena_get(arena, count, sizeof(*nodes));
    int *order = xm_arena_get(arena, count, sizeof(*order));

    if (nodes == NULL || order == NULL) {
        return NULL;
    }
    for (size_t i = 0; i < count; ++i) {
        nodes[i] = (coloured_t){problem->nodes[i].colour, (int)i};
    }
    qsort(nodes, count, sizeof(*nodes), compare_colours);
    for (size_t i = 0; i < count; ++i) {
        order[i] = nodes[i].node;
    }
    return order;
}

static xm_status_t join_colours(const ap_placement_problem_t *problem, int *parent,
                                xm_arena_t *arena)
{
    const int *order = ap_placement_by_colour(problem, arena);

    XM_NEED_MEMORY(order, "%d operators", problem->node_count);
    for (int i = 1; i < problem->node_count; ++i) {
        if (problem->nodes[order[i]].colour == problem->nodes[order[i - 1]].colour) {
            join(parent, order[i], order[i - 1]);
        }
    }
    return XM_OK;
}

int ap_precedence_compare(const void *a, const void *b)
{
    const ap_precedence_t *left = a, *right = b;

    return left->before != right->before ? xm_order(left->before, right->before)
                                         : xm_order(left->after, right->after);
}

/* The forward edges between groups (named by their first node), each once. A group of backward
 * nodes alone has the mirrored edges, so that it keeps to the order of the forward graph. */
static int forward_edges(const ap_placement_problem_t *problem, int *parent, const bool *forward,
                         ap_precedence_t *edges)
{
    int count = 0, kept = 0;

    for (int i = 0; i < problem->edge_count; ++i) {
        int from = problem->edges[i].before, to = problem->edges[i].after;
        int before = ap_set_root(parent, from), after = ap_set_root(parent, to);
        bool back = problem->nodes[from].backward && problem->nodes[to].backward;

        if (before == after) {
            continue;
        }
        if (!problem->nodes[from].backward && !problem->nodes[to].backward) {
            edges[count++] = (ap_precedence_t){before, after};
        } else if (back && (!forward[before] || !forward[after])) {
            edges[count++] = (ap_precedence_t){after, before};
        }
    }
    qsort(edges, (size_t)count, sizeof(*edges), ap_precedence_compare);
    for (int i = 0; i < count; ++i) {
        if (kept == 0 || ap_precedence_compare(&edges[kept - 1], &edges[i]) != 0) {
            edges[kept++] = edges[i];
        }
    }
    return kept;
}

/* Tarjan's algorithm for strongly connected components, without recursion: graphs of thousands of
 * operators in a chain would exhaust the stack. */
typedef struct component_search {
    int *parent, *first, *index, *low, *stack, *calls, *next;
    const ap_precedence_t *edges;
    int stack_count, call_count, number;
    bool *on_stack;
} component_search_t;

static void open_node(component_search_t *search, int node)
{
    search->index[node] = search->low[node] = ++search->number;
    search->next[node] = search->first[node];
    search->on_stack[node] = true;
    search->stack[search->stack_count++] = node;
    search->calls[search->call_count++] = node;
}

static void close_node(component_search_t *search, int node)
{
    int member;

    --search->call_count;
    if (search->call_count > 0) {
        int *low = &search->low[search->calls[search->call_count - 1]];

        *low = search->low[node] < *low ? search->low[node] : *low;
    }
    if (search->low[node] != search->index[node]) {
        return;
    }
    do {
        member = search->stack[--search->stack_count];
        search->on_stack[member] = false;
        join(search->parent, member, node);
    } while (member != node);
}

static void search_from(component_search_t *search, int root)
{
    open_node(search, root);
    while (search->call_count > 0) {
        int node = search->calls[search->call_count - 1];

        if (search->next[node] == search->first[node + 1]) {
            close_node(search, node);
        } else {
            int after = search->edges[search->next[node]++].after;

            if (search->index[after] == 0) {
                open_node(search, after);
            } else if (search->on_stack[after] && search->index[after] < search->low[node]) {
                search->low[node] = search->index[after];
            }
        }
    }
}

/* Joins groups that need each other. @p edges are sorted. */
static xm_status_t join_cycles(int *parent, int nodes, const ap_precedence_t *edges, int edge_count,
                               xm_arena_t *arena)
{
    component_search_t search = {.parent = parent, .edges = edges};
    int **const lists[] = {&search.first, &search.index, &search.low,
                           &search.stack, &search.calls, &search.next};

    for (size_t i = 0; i < sizeof(lists) / sizeof(lists[0]); ++i) {
        *lists[i] = xm_arena_get(arena, (size_t)nodes + 1, sizeof(int));
    }
    search.on_stack = xm_arena_get(arena, (size_t)nodes, sizeof(bool));
    XM_NEED_MEMORY(!arena->failed, "%d operators", nodes);
    for (int i = 0; i < edge_count; ++i) {
        ++search.first[edges[i].before + 1];
    }
    for (int i = 0; i < nodes; ++i) {
        search.first[i + 1] += search.first[i];
    }
    for (int i = 0; i < nodes; ++i) {
        if (search.index[i] == 0) {
            search_from(&search, i);
        }
    }
    return XM_OK;
}

/* The only other group that the forward nodes of @p group touch; -1 for none, several, or a
 * backward node. */
static int only_neighbour(const ap_placement_problem_t *problem, int *parent, int group)
{
    int neighbour = -1;

    for (int i = 0; i < problem->edge_count; ++i) {
        int from = problem->edges[i].before, to = problem->edges[i].after, other = -1;

        if (ap_set_root(parent, from) == group && !problem->nodes[from].backward) {
            other = to;
        } else if (ap_set_root(parent, to) == group && !problem->nodes[to].backward) {
            other = from;
        }
        if (other < 0 || (ap_set_root(parent, other) == group && !problem->nodes[other].backward)) {
            continue;
        }
        if (problem->nodes[other].backward ||
            (neighbour >= 0 && ap_set_root(parent, other) != neighbour)) {
            return -1;
        }
        neighbour = ap_set_root(parent, other);
    }
    return neighbour;
}

/* A group without time of its own that touches one other group only is best placed with it. Joining
 * may leave another such group, so it is repeated until nothing joins. */
static xm_status_t absorb_free(const ap_placement_problem_t *problem, int *parent,
                               xm_arena_t *arena)
{
    int count = problem->node_count;
    double *time = xm_arena_get(arena, (size_t)count, sizeof(*time));
    bool again = true;

    XM_NEED_MEMORY(time, "%d operators", count);
    while (again) {
        again = false;
        memset(time, 0, (size_t)count * sizeof(*time));
        for (int i = 0; i < count; ++i) {
            time[ap_set_root(parent, i)] += problem->nodes[i].accelerator + problem->nodes[i].cpu;
        }
        for (int i = 0; i < count; ++i) {
            int neighbour = ap_set_root(parent, i) == i && time[i] < NO_TIME
                                ? only_neighbour(problem, parent, i)
                                : -1;

            if (neighbour >= 0) {
                join(parent, i, neighbour);
                again = true;
                break;
            }
        }
    }
    return XM_OK;
}

static xm_status_t number_groups(const ap_placement_problem_t *problem, int *parent,
                                 ap_placement_groups_t *groups)
{
    int count = problem->node_count;

    groups->group_of = xm_arena_get(&groups->arena, (size_t)count, sizeof(int));
    groups->accelerator = xm_arena_get(&groups->arena, (size_t)count, sizeof(double));
    groups->cpu = xm_arena_get(&groups->arena, (size_t)count, sizeof(double));
    groups->size = xm_arena_get(&groups->arena, (size_t)count, sizeof(double));
    XM_NEED_MEMORY(!groups->arena.failed, "%d operators", count);
    for (int i = 0; i < count; ++i) {
        const ap_placement_node_t *node = &problem->nodes[i];
        int root = ap_set_root(parent, i), group;

        groups->group_of[i] = root == i ? groups->count++ : groups->group_of[root];
        group = groups->group_of[i];
        groups->accelerator[group] += node->on_accelerator ? node->accelerator : INFINITY;
        groups->cpu[group] += node->cpu;
        groups->size[group] += node->size;
    }
    return XM_OK;
}

/* Lists, for each node's output, the groups that take it, each once. */
static xm_status_t list_sources(const ap_placement_problem_t *problem,
                                ap_placement_groups_t *groups)
{
    int count = problem->edge_count, takers = 0;
    xm_arena_t *arena = &groups->arena;
    ap_precedence_t *edges = xm_arena_get(arena, (size_t)count, sizeof(*edges));

    groups->sources = xm_arena_get(arena, (size_t)problem->node_count, sizeof(*groups->sources));
    groups->takers = xm_arena_get(arena, (size_t)count, sizeof(*groups->takers));
    XM_NEED_MEMORY(!arena->failed, "%d operators", problem->node_count);
    for (int i = 0; i < count; ++i) {
        edges[i] =
            (ap_precedence_t){problem->edges[i].before, groups->group_of[problem->edges[i].after]};
    }
    qsort(edges, (size_t)count, sizeof(*edges), ap_precedence_compare);
    for (int i = 0; i < count; ++i) {
        int node = edges[i].before, group = groups->group_of[node];
        ap_group_source_t *last =
            groups->source_count > 0 ? &groups->sources[groups->source_count - 1] : NULL;

        if (edges[i].after == group ||
            (i > 0 && ap_precedence_compare(&edges[i - 1], &edges[i]) == 0)) {
            continue;
        }
        if (last == NULL || last->node != node) {
            last = &groups->sources[groups->source_count++];
            *last = (ap_group_source_t){node, group, problem->nodes[node].transfer, takers, 0};
        }
        groups->takers[takers++] = edges[i].after;
        ++last->count;
    }
    return XM_OK;
}

/* Lists sources by group: those in it, and those that it takes from. */
static xm_status_t index_sources(ap_placement_groups_t *groups)
{
    size_t count = (size_t)groups->count + 2;
    xm_arena_t *arena = &groups->arena;
    int takers = 0;

    for (int i = 0; i < groups->source_count; ++i) {
        takers += groups->sources[i].count;
    }
    groups->first_own = xm_arena_get(arena, count, sizeof(int));
    groups->first_into = xm_arena_get(arena, count, sizeof(int));
    groups->own = xm_arena_get(arena, (size_t)groups->source_count, sizeof(int));
    groups->into = xm_arena_get(arena, (size_t)takers, sizeof(int));
    XM_NEED_MEMORY(!arena->failed, "%d operators", groups->count);
    /* Counts go two places up, so that filling the lists leaves their beginnings. */
    for (int i = 0; i < groups->source_count; ++i) {
        const ap_group_source_t *source = &groups->sources[i];

        ++groups->first_own[source->group + 2];
        for (int j = 0; j < source->count; ++j) {
            ++groups->first_into[groups->takers[source->first + j] + 2];
        }
    }
    for (int i = 2; i <= groups->count + 1; ++i) {
        groups->first_own[i] += groups->first_own[i - 1];
        groups->first_into[i] += groups->first_into[i - 1];
    }
    for (int i = 0; i < groups->source_count; ++i) {
        const ap_group_source_t *source = &groups->sources[i];

        groups->own[groups->first_own[source->group + 1]++] = i;
        for (int j = 0; j < source->count; ++j) {
            groups->into[groups->first_into[groups->takers[source->first + j] + 1]++] = i;
        }
    }
    return XM_OK;
}

/* Edges that joining has made internal are dropped by moving the last edge into their place. */
static xm_status_t find_groups(const ap_placement_problem_t *problem, bool absorb, int *parent,
                               bool *forward, ap_placement_groups_t *groups)
{
    XM_TRY(join_colours(problem, parent, &groups->arena));
    for (int i = 0; i < problem->node_count; ++i) {
        int root = ap_set_root(parent, i);

        forward[root] = forward[root] || !problem->nodes[i].backward;
    }
    groups->order_count = forward_edges(problem, parent, forward, groups->order);
    XM_TRY(join_cycles(parent, problem->node_count, groups->order, groups->order_count,
                       &groups->arena));
    if (absorb) {
        XM_TRY(absorb_free(problem, parent, &groups->arena));
    }
    XM_TRY(number_groups(problem, parent, groups));
    for (int i = 0; i < groups->order_count; ++i) {
        groups->order[i].before = groups->group_of[groups->order[i].before];
        groups->order[i].after = groups->group_of[groups->order[i].after];
        if (groups->order[i].before == groups->order[i].after) {
            groups->order[i--] = groups->order[--groups->order_count];
        }
    }
    XM_TRY(list_sources(problem, groups));
    return index_sources(groups);
}

xm_status_t ap_placement_groups_create(const ap_placement_problem_t *problem, bool absorb,
                                       ap_placement_groups_t *groups)
{
    xm_arena_t *arena = &groups->arena;
    size_t count = (size_t)problem->node_count;
    bool *forward;
    int *parent;
    xm_status_t status;

    *groups = (ap_placement_groups_t){0};
    parent = xm_arena_get(arena, count, sizeof(*parent));
    forward = xm_arena_get(arena, count, sizeof(*forward));
    groups->order = xm_arena_get(arena, (size_t)problem->edge_count, sizeof(*groups->order));
    for (size_t i = 0; !arena->failed && i < count; ++i) {
        parent[i] = (int)i;
    }
    status = arena->failed ? XM_NO_MEMORY("%d operators", problem->node_count)
                           : find_groups(problem, absorb, parent, forward, groups);
    if (status != XM_OK) {
        ap_placement_groups_clear(groups);
    }
    return status;
}

void ap_placement_groups_clear(ap_placement_groups_t *groups)
{
    xm_arena_clear(&groups->arena);
    *groups = (ap_placement_groups_t){0};
}
