/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds the layers that repeat, so that one choice serves all of them. Graphs from HLO carry no
 * layer marks, so the period is found in the sequence of operators: positions vote for the
 * distances at which the same operator comes again, and the distance that covers most operators in
 * runs of at least one period wins. Forward, backward and update parts have periods of their own,
 * hence several rounds.
 *
 * Nothing here must be right for a plan to be valid: any nodes with the same strategy table may
 * share a choice. A bad guess only loses plans that treat layers differently.
 */

#include "planner/intra_op/symmetric.h"

#include <stdlib.h>
#include <string.h>

enum {
    SHORTEST = 8,   /* period, in operators */
    SAMPLES = 96,   /* positions that vote for a period */
    CANDIDATES = 8, /* periods that are compared in full */
    ROUNDS = 4      /* forward, backward, updates, and one more */
};

/* The search for symmetric nodes. Union-find gives the classes; nodes are tied only if they have
 * the same strategies and costs. */
typedef struct alike {
    const ap_shard_problem_t *p;
    int ops;
    int *looks;        /* per operator: its strategy table */
    bool *tied;        /* per operator: to the one a period later */
    int *parent;       /* per node: union-find */
    int *votes;        /* per period */
    int first, period; /* the first run that was tied, and its period */
} alike_t;

/* The root, with path halving. Roots are the nodes of lowest number, so classes are numbered by
 * their first nodes. */
static int root_of(alike_t *a, int node)
{
    while (a->parent[node] != node) {
        a->parent[node] = a->parent[a->parent[node]];
        node = a->parent[node];
    }
    return node;
}

/* Ties two nodes if one strategy table serves both; the lower number becomes the root. */
static void tie_nodes(alike_t *a, int x, int y)
{
    x = root_of(a, x);
    y = root_of(a, y);
    if (x != y && a->p->node[x].set == a->p->node[y].set) {
        a->parent[x > y ? x : y] = x > y ? y : x;
    }
}

/* Ties two operators, and the inputs and parameters at the same places of them. What a third
 * operator reads as well is tied by whichever comes first. */
static void tie_ops(alike_t *a, int x, int y)
{
    const ap_graph_t *graph = a->p->params.graph;
    const ap_op_t *left = ap_graph_op(graph, x), *right = ap_graph_op(graph, y);

    tie_nodes(a, a->p->op_node[x], a->p->op_node[y]);
    for (int i = 0; i < left->operand_count; ++i) {
        int l = a->p->tensor_node[left->operands[i]], r = a->p->tensor_node[right->operands[i]];

        if (l >= 0 && r >= 0) {
            tie_nodes(a, l, r);
        }
    }
}

/* Counts operators in runs of at least one period that are equal to those a period later; with
 * `tie`, ties them. Shorter runs are coincidences: the same few operators occur everywhere. */
static int covered(alike_t *a, int period, bool tie)
{
    int sum = 0, run = 0;

    for (int o = 0; o + period <= a->ops; ++o) {
        /* The loop goes one past the last operator that has a partner, so that the last run ends,
         * too. */
        if (o + period < a->ops && !a->tied[o] && a->looks[o] == a->looks[o + period]) {
            ++run;
            continue;
        }
        if (run >= period) {
            sum += run;
            /* The first run gives the period that stands for "a layer" elsewhere. */
            if (tie && (a->period == 0 || o - run < a->first)) {
                a->first = o - run;
                a->period = period;
            }
            for (int k = o - run; k < o && tie; ++k) {
                a->tied[k] = true;
                tie_ops(a, k, k + period);
            }
        }
        run = 0;
    }
    return sum;
}

/* Finds the most voted periods, by positions spread over the operators that are not tied yet.
 * Samples make this linear in the operators; all pairs would be quadratic. */
static void vote(const alike_t *a, int *periods, int *count)
{
    int *votes = a->votes, stride = a->ops / SAMPLES + 1;

    memset(votes, 0, ((size_t)a->ops + 1) * sizeof(*votes));
    for (int o = 0; o < a->ops; o += stride) {
        for (int later = o + SHORTEST; later < a->ops && !a->tied[o]; ++later) {
            votes[later - o] += a->looks[o] == a->looks[later];
        }
    }
    /* The best few are chosen by repeated search. Of equal votes the shorter period wins, since a
     * multiple of it ties fewer layers together. */
    for (*count = 0; *count < CANDIDATES; ++*count) {
        int best = 0;

        for (int period = SHORTEST; period <= a->ops / 2; ++period) {
            best = votes[period] > votes[best] ? period : best;
        }
        if (best == 0) {
            break;
        }
        periods[*count] = best;
        votes[best] = 0;
    }
}

/* Each round ties what one period covers, and the next votes over the rest. A period must cover a
 * twentieth of the operators, or the smaller problem is not worth what it loses. */
static void tie_all(alike_t *a)
{
    for (int round = 0; round < ROUNDS; ++round) {
        int periods[CANDIDATES], count, best = 0, most = a->ops / 20;

        vote(a, periods, &count);
        for (int k = 0; k < count; ++k) {
            int sum = covered(a, periods[k], false);

            if (sum > most) {
                most = sum;
                best = periods[k];
            }
        }
        if (best == 0) {
            break;
        }
        (void)covered(a, best, true);
    }
}

/* Without `tie` every node stays a class of its own; all that follows works on classes either
 * way. */
xm_status_t ap_shard_symmetric_create(const ap_shard_problem_t *problem, bool tie,
                                      xm_arena_t *arena, ap_shard_symmetric_t *alike)
{
    alike_t a = {.p = problem, .ops = ap_graph_ops(problem->params.graph)};

    alike->class_of = xm_arena_take(arena, (size_t)problem->nodes * sizeof(int));
    a.parent = xm_arena_take(arena, (size_t)problem->nodes * sizeof(int));
    a.looks = xm_arena_take(arena, (size_t)a.ops * sizeof(int));
    a.tied = xm_arena_get(arena, (size_t)a.ops, sizeof(bool));
    a.votes = xm_arena_take(arena, ((size_t)a.ops + 1) * sizeof(int));
    XM_NEED_MEMORY(!arena->failed, "%d nodes", problem->nodes);
    for (int n = 0; n < problem->nodes; ++n) {
        a.parent[n] = n;
    }
    for (int o = 0; o < a.ops; ++o) {
        a.looks[o] = problem->node[problem->op_node[o]].set;
    }
    if (tie) {
        tie_all(&a);
    }
    /* Classes are numbered in the order of their first nodes. */
    alike->classes = alike->repeats = 0;
    alike->period = a.period;
    for (int n = 0; n < problem->nodes; ++n) {
        int root = root_of(&a, n); /* the first of its class */

        alike->class_of[n] = root == n ? alike->classes++ : alike->class_of[root];
        alike->repeats += root != n;
    }
    return XM_OK;
}
