/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Branch and bound for the exclusive-host model (the paper's DFS with pruning, MLSys'23,
 * section 3.2), with a bound that never cuts the optimum off. Schedules are built in the
 * order of their start times, which makes every schedule the result of one order; a
 * memory of states and rules on exchangeable demands and senders remove most of the
 * repetitions. The node budget counts nodes, not seconds, so the same input gives the
 * same plan everywhere.
 */
#include "resharding/solve/exclusive.h"

#include <stdlib.h>
#include <string.h>

#include "resharding/solve/dominance.h"

enum {
    MOST_DEMANDS = 64,  /* a set of demands is one word */
    MOST_OPTIONS = 4096 /* pairs of a demand and a holder; there is room for them at every depth */
};

/* A demand sent by a holder next. */
typedef struct option {
    int64_t start, end;
    int64_t urgency; /* what its busiest receiver or its sender still has to do */
    int demand, sender;
} option_t;

/*
 * Orders are built by start time, so nothing starts before what was placed last, and a resource is
 * as good as busy until the first time that anything could use it: these heads replace the clocks.
 */
typedef struct search {
    const xm_exclusive_t *x;
    const xm_sender_sets_t *sets;
    int count;
    int64_t *egress, *ingress; /* when each is free */
    int64_t *saved;            /* by depth: what ingress was before */
    int64_t *to_receive;       /* by receiver: ns of what is left */
    int64_t *set_work;         /* by set: ns of what is left and held only inside */
    uint64_t *inside;          /* by set: the demands held only inside */
    uint64_t *held;            /* by sender: the demands it holds */
    int *twin;            /* by demand: the previous one that is exchangeable with it, or −1 */
    int64_t *head;        /* senders, receivers, the end so far: what the memo compares */
    int64_t *set_heads;   /* room for the heads of a set */
    option_t *options;    /* by depth */
    int64_t option_count; /* of all demands */
    xm_dominance_t *memo;
    xm_step_t *path, *best;
    int64_t best_ns, bound_ns;
    int64_t nodes, node_budget;
    bool stopped; /* out of nodes */
    xm_arena_t arena;
} search_t;

static int64_t later(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* The order in which options are tried: what can start first, then what is most urgent,
 * then what ends first. The demand and the sender as last keys make the order total. */
static int by_start(const void *left, const void *right)
{
    const option_t *a = left, *b = right;

    XM_ORDER_BY(a->start, b->start);
    XM_ORDER_BY(b->urgency, a->urgency);
    XM_ORDER_BY(a->end, b->end);
    XM_ORDER_BY(a->demand, b->demand);
    return a->sender < b->sender ? -1 : a->sender > b->sender;
}

static void lower(int64_t *value, int64_t limit)
{
    *value = limit < *value ? limit : *value;
}

/*
 * Lists every way to go on and sets the heads: the first time that any option could use a
 * sender or a receiver. *earliest_end is the earliest end of all options; the function
 * returns a lower bound, the latest over all demands of the end that each would have if
 * it were next.
 */
static int64_t list_options(search_t *s, uint64_t left, int64_t floor, option_t *options,
                            int64_t *option_count, int64_t *earliest_end)
{
    const xm_exclusive_t *x = s->x;
    int64_t bound = 0, listed = 0, *head_in = s->head + x->senders;

    for (int i = 0; i < x->senders + x->receivers; ++i) {
        s->head[i] = INT64_MAX;
    }
    *earliest_end = INT64_MAX;
    for (uint64_t rest = left; rest != 0; rest &= rest - 1) {
        int d = __builtin_ctzll(rest);
        int64_t ready = floor, urgency = 0, soonest = INT64_MAX, ends = INT64_MAX;

        for (int64_t k = x->first_receiver[d]; k < x->first_receiver[d + 1]; ++k) {
            ready = later(ready, s->ingress[x->receiver[k]]);
            urgency = later(urgency, s->to_receive[x->receiver[k]]);
        }
        for (int64_t k = x->first_holder[d]; k < x->first_holder[d + 1]; ++k) {
            int64_t start = later(ready, s->egress[x->holder[k]]);

            options[listed++] = (option_t){start, start + x->duration[k], urgency, d, x->holder[k]};
            lower(&s->head[x->holder[k]], start);
            lower(&soonest, start);
            lower(&ends, start + x->duration[k]);
        }
        for (int64_t k = x->first_receiver[d]; k < x->first_receiver[d + 1]; ++k) {
            lower(&head_in[x->receiver[k]], soonest);
        }
        lower(earliest_end, ends);
        bound = later(bound, ends);
    }
    *option_count = listed;
    return bound;
}

/*
 * The least T at which the senders of a set, each busy until its head, could have sent
 * what only they hold: the least T with Σ max(0, T − head) ≥ work. Senders that start
 * after the average are dropped until none does; each round drops at least one or is the
 * last. A set with work left has a sender with an option, so `kept` is never 0.
 */
static int64_t set_end(search_t *s, int set)
{
    const uint64_t *members = s->sets->members + (size_t)set * (size_t)s->sets->words;
    int64_t sum = s->set_work[set], end;
    int kept = 0, before;

    for (int w = 0; w < s->sets->words; ++w) {
        for (uint64_t rest = members[w]; rest != 0; rest &= rest - 1) {
            int64_t head = s->head[64 * w + __builtin_ctzll(rest)];

            if (head != INT64_MAX) {
                s->set_heads[kept++] = head;
                sum += head;
            }
        }
    }
    do { /* leave out who is busy beyond the average */
        end = (sum + kept - 1) / kept;
        before = kept;
        kept = 0;
        for (int i = 0; i < before; ++i) {
            if (s->set_heads[i] > end) {
                sum -= s->set_heads[i];
            } else {
                s->set_heads[kept++] = s->set_heads[i];
            }
        }
    } while (kept < before);
    return end;
}

/*
 * A lower bound of every way to finish from here: for each receiver its head plus what it
 * still has to receive, for each set of senders the time above (docs/resharding.md,
 * "Exclusive hosts"). The sets are asked only until the bound prunes.
 */
static int64_t node_bound(search_t *s, int64_t bound)
{
    const int64_t *head_in = s->head + s->x->senders;

    for (int r = 0; r < s->x->receivers; ++r) {
        if (s->to_receive[r] > 0) {
            bound = later(bound, head_in[r] + s->to_receive[r]);
        }
    }
    for (int i = 0; i < s->sets->count && bound < s->best_ns; ++i) {
        if (s->set_work[i] > 0) {
            bound = later(bound, set_end(s, i));
        }
    }
    return bound;
}

/*
 * True when a lower-numbered holder of the demand is the same sender for all that is
 * left: free at the same time, with the same rate, and holding the same remaining
 * demands. Exchanging the two in any schedule changes nothing, so only one of them is
 * tried.
 */
static bool has_double(const search_t *s, uint64_t left, const option_t *option)
{
    const xm_exclusive_t *x = s->x;
    const xm_network_t *network = x->problem->network;
    double rate = xm_network_egress(network, x->host_of_sender[option->sender]);

    for (int64_t k = x->first_holder[option->demand]; x->holder[k] < option->sender; ++k) {
        int other = x->holder[k];
        double difference = xm_network_egress(network, x->host_of_sender[other]) - rate;

        if (s->head[other] == s->head[option->sender] &&
            ((s->held[other] ^ s->held[option->sender]) & left) == 0 && !(difference < 0) &&
            !(difference > 0)) {
            return true;
        }
    }
    return false;
}

/*
 * Drops what need not be tried. An option that starts when another could have ended
 * already is dropped, since that one could be moved before it for nothing (the active
 * schedules of Giffler and Thompson); so is a demand whose twin is left, as the twin goes
 * first, and a sender whose double is tried.
 */
static int64_t choose_options(search_t *s, uint64_t left, int64_t earliest_end, option_t *options,
                              int64_t count)
{
    int64_t kept = 0;

    for (int64_t i = 0; i < count; ++i) {
        int twin = s->twin[options[i].demand];

        if (options[i].start < earliest_end && (twin < 0 || (left >> twin & 1) == 0) &&
            !has_double(s, left, &options[i])) {
            options[kept++] = options[i];
        }
    }
    qsort(options, (size_t)kept, sizeof(*options), by_start);
    return kept;
}

/* Takes a demand out of what is left (sign −1) or puts it back (1). Shortest durations
 * are counted, so that the sums stay below what any schedule needs. */
static void count_loads(search_t *s, int d, int sign)
{
    const xm_exclusive_t *x = s->x;

    for (int64_t k = x->first_receiver[d]; k < x->first_receiver[d + 1]; ++k) {
        s->to_receive[x->receiver[k]] += sign * x->shortest[d];
    }
    for (int i = 0; i < s->sets->count; ++i) {
        if (s->inside[i] >> d & 1) {
            s->set_work[i] += sign * x->shortest[d];
        }
    }
}

static void descend(search_t *s, int depth, uint64_t left, int64_t floor, int64_t end);

/*
 * Places one demand, searches on, and takes the placement back. The receivers' clocks are
 * saved by depth because a demand can have many of them; the sender's single clock fits
 * on the stack.
 */
static void try_option(search_t *s, int depth, uint64_t left, int64_t end, const option_t *option)
{
    const xm_exclusive_t *x = s->x;
    int64_t first = x->first_receiver[option->demand];
    int64_t receivers = x->first_receiver[option->demand + 1] - first;
    int64_t egress = s->egress[option->sender], *ingress = s->saved + depth * x->receivers;

    for (int64_t i = 0; i < receivers; ++i) {
        ingress[i] = s->ingress[x->receiver[first + i]];
        s->ingress[x->receiver[first + i]] = option->end;
    }
    s->egress[option->sender] = option->end;
    s->path[depth] = (xm_step_t){option->demand, x->host_of_sender[option->sender]};
    count_loads(s, option->demand, -1);
    descend(s, depth + 1, left & ~(UINT64_C(1) << option->demand), option->start,
            later(end, option->end));
    count_loads(s, option->demand, 1);
    s->egress[option->sender] = egress;
    for (int64_t i = 0; i < receivers; ++i) {
        s->ingress[x->receiver[first + i]] = ingress[i];
    }
}

/*
 * One node of the search. `floor` is the start of what was placed last, before which
 * nothing may start any more; `end` is the latest end so far. The memory also compares
 * `end`, since a state that has already ended later is worse even when all its hosts are
 * free again.
 */
static void descend(search_t *s, int depth, uint64_t left, int64_t floor, int64_t end)
{
    option_t *options = s->options + depth * s->option_count;
    int64_t count, earliest_end, bound;

    if (left == 0) {
        if (end < s->best_ns) {
            s->best_ns = end;
            memcpy(s->best, s->path, (size_t)s->count * sizeof(*s->best));
        }
        return;
    }
    if (s->node_budget > 0 && s->nodes >= s->node_budget) {
        s->stopped = true;
        return;
    }
    ++s->nodes;
    bound = list_options(s, left, floor, options, &count, &earliest_end);
    bound = node_bound(s, later(later(bound, end), s->bound_ns));
    s->head[s->x->senders + s->x->receivers] = end;
    if (bound >= s->best_ns || xm_dominance_seen(s->memo, left, s->head)) {
        return;
    }
    count = choose_options(s, left, earliest_end, options, count);
    for (int64_t i = 0; i < count && bound < s->best_ns && !s->stopped; ++i) {
        try_option(s, depth, left, end, &options[i]);
    }
}

static bool equal_demands(const xm_demand_t *a, const xm_demand_t *b)
{
    return a->bytes == b->bytes && a->holder_count == b->holder_count &&
           a->receiver_count == b->receiver_count &&
           memcmp(a->holders, b->holders, (size_t)a->holder_count * sizeof(int)) == 0 &&
           memcmp(a->receivers, b->receivers, (size_t)a->receiver_count * sizeof(int)) == 0;
}

static xm_status_t allocate(search_t *s)
{
    const xm_exclusive_t *x = s->x;
    size_t count = (size_t)s->count, senders = (size_t)x->senders;
    size_t receivers = (size_t)x->receivers, sets = (size_t)s->sets->count;

    s->egress = xm_arena_get(&s->arena, senders, sizeof(int64_t));
    s->ingress = xm_arena_get(&s->arena, receivers, sizeof(int64_t));
    s->saved = xm_arena_take(&s->arena, count * receivers * sizeof(int64_t));
    s->to_receive = xm_arena_get(&s->arena, receivers, sizeof(int64_t));
    s->set_work = xm_arena_get(&s->arena, sets, sizeof(int64_t));
    s->inside = xm_arena_get(&s->arena, sets, sizeof(uint64_t));
    s->held = xm_arena_get(&s->arena, senders, sizeof(uint64_t));
    s->twin = xm_arena_take(&s->arena, count * sizeof(int));
    s->head = xm_arena_take(&s->arena, (senders + receivers + 1) * sizeof(int64_t));
    s->set_heads = xm_arena_take(&s->arena, senders * sizeof(int64_t));
    s->options = xm_arena_take(&s->arena, count * (size_t)s->option_count * sizeof(option_t));
    s->path = xm_arena_take(&s->arena, count * sizeof(xm_step_t));
    XM_NEED_MEMORY(!s->arena.failed, "searching schedules of %d demands", s->count);
    return xm_dominance_create(s->count, x->senders + x->receivers + 1, &s->memo);
}

/*
 * Computes what does not change during the search: the demands inside each set, those
 * each sender holds, and for each demand its previous twin. Twins form chains, so that
 * equal demands are tried in one order only.
 */
static void prepare(search_t *s)
{
    const xm_exclusive_t *x = s->x;

    for (int d = 0; d < s->count; ++d) {
        for (int i = 0; i < s->sets->count; ++i) {
            if (xm_sender_set_contains(s->sets, i, x, d)) {
                s->inside[i] |= UINT64_C(1) << d;
            }
        }
        for (int64_t k = x->first_holder[d]; k < x->first_holder[d + 1]; ++k) {
            s->held[x->holder[k]] |= UINT64_C(1) << d;
        }
        for (s->twin[d] = d - 1; s->twin[d] >= 0; --s->twin[d]) {
            if (equal_demands(&x->problem->demands[d], &x->problem->demands[s->twin[d]])) {
                break;
            }
        }
        count_loads(s, d, 1);
    }
}

xm_status_t xm_exclusive_search(const xm_exclusive_t *x, int64_t node_budget, int64_t bound_ns,
                                xm_step_t *steps, int64_t best_ns, bool *optimal)
{
    search_t s = {.x = x,
                  .count = (int)x->count,
                  .option_count = x->first_holder[x->count],
                  .node_budget = node_budget,
                  .best = steps,
                  .best_ns = best_ns,
                  .bound_ns = bound_ns};
    xm_sender_sets_t *sets;
    xm_status_t status;

    /* Problems that do not fit the one-word sets are left as they are; they are still
     * optimal when they meet the bound. */
    if (x->count < 1 || x->count > MOST_DEMANDS || s.option_count > MOST_OPTIONS) {
        *optimal = best_ns <= bound_ns;
        return XM_OK;
    }
    XM_TRY(xm_sender_sets_create(x, &sets));
    s.sets = sets;
    status = allocate(&s);
    if (status == XM_OK) {
        uint64_t all = s.count == 64 ? UINT64_MAX : (UINT64_C(1) << s.count) - 1;

        prepare(&s);
        descend(&s, 0, all, 0, 0);
        /* A search that ran to its end has proved its best schedule; one that was stopped
         * proves nothing but what the bound proves. */
        *optimal = !s.stopped || s.best_ns <= bound_ns;
    }
    xm_dominance_destroy(s.memo);
    xm_arena_clear(&s.arena);
    xm_sender_sets_destroy(sets);
    return status;
}
