/* SPDX-License-Identifier: Apache-2.0 */
/*
 * List scheduling in the exclusive-host model, event by event: whenever a host becomes
 * free, the demands that could start are sorted by how much work their hosts still have,
 * and started in that order as long as their hosts are free. This is the classic rule for
 * open shops (longest remaining work first); with noise on the priorities the same code
 * gives many different good schedules for greedy to choose from. Work is counted in
 * steps, not in seconds, so that results are reproducible.
 */
#include "comm/base.h"
#include "resharding/solve/exclusive.h"

#include <stdlib.h>

enum {
    WINDOW_WORK = 1 << 17, /* demands looked at for each resource, over all events */
    MIN_WINDOW = 4
};

typedef struct candidate {
    int64_t key;
    uint64_t tie;
    int64_t demand;
} candidate_t;

/* The demands that use a resource (a sender or a receiver) and have not started. */
typedef struct waiting {
    int64_t *first; /* by resource, one more at the end */
    int64_t *left;  /* by resource */
    int64_t *next;  /* by resource: where the next look begins */
    int64_t *demand;
} waiting_t;

typedef struct list {
    const xm_exclusive_t *x;
    const xm_list_params_t *params;
    xm_random_t random;
    int64_t *work;
    int64_t now;
    int64_t *egress, *ingress; /* when each is free */
    int64_t *to_receive;       /* by receiver: ns of what has not started */
    int64_t *to_send;          /* by sender: its share of what it holds and nobody has started */
    waiting_t by_sender, by_receiver;
    candidate_t *candidates;
    int64_t *seen; /* by demand: the last event that made it a candidate, −1 once it has started */
    int64_t event, placed;
    int64_t window; /* demands of a resource looked at in an event */
    xm_step_t *steps;
    xm_arena_t arena;
} list_t;

/* The largest remaining work first. Ties fall to a random number when noise is asked for,
 * and to the lower demand otherwise, so the order never depends on qsort(). */
static int by_key(const void *left, const void *right)
{
    const candidate_t *a = left, *b = right;

    XM_ORDER_BY(b->key, a->key);
    XM_ORDER_BY(b->tie, a->tie);
    return a->demand < b->demand ? -1 : a->demand > b->demand;
}

/*
 * Sorts the demands by the resource they use, by counting. The lists are arrays with an
 * end that moves down, so that a started demand is removed by putting the last one in its
 * place.
 */
static xm_status_t make_waiting(waiting_t *waiting, int64_t count, int resources,
                                const int64_t *first, const int *resource)
{
    waiting->first = calloc((size_t)resources + 2, sizeof(int64_t));
    waiting->left = calloc((size_t)resources + 1, sizeof(int64_t));
    waiting->next = calloc((size_t)resources + 1, sizeof(int64_t));
    waiting->demand = malloc(((size_t)first[count] + 1) * sizeof(int64_t));
    if (waiting->first == NULL || waiting->left == NULL || waiting->next == NULL ||
        waiting->demand == NULL) {
        return XM_NO_MEMORY("scheduling %lld demands", (long long)count);
    }
    for (int64_t k = 0; k < first[count]; ++k) {
        ++waiting->first[resource[k] + 1];
    }
    for (int r = 0; r < resources; ++r) {
        waiting->first[r + 1] += waiting->first[r];
    }
    for (int64_t d = 0; d < count; ++d) {
        for (int64_t k = first[d]; k < first[d + 1]; ++k) {
            int r = resource[k];

            waiting->demand[waiting->first[r] + waiting->left[r]++] = d;
        }
    }
    return XM_OK;
}

static void free_waiting(waiting_t *waiting)
{
    free(waiting->demand);
    free(waiting->next);
    free(waiting->left);
    free(waiting->first);
}

/* Counts a demand as not started (sign 1) or as started (−1). A receiver will take in the
 * whole demand; of its holders only one will send it, so each is charged its share. */
static void count_loads(list_t *l, int64_t d, int sign)
{
    const xm_exclusive_t *x = l->x;
    int64_t holders = x->first_holder[d + 1] - x->first_holder[d];

    for (int64_t k = x->first_receiver[d]; k < x->first_receiver[d + 1]; ++k) {
        l->to_receive[x->receiver[k]] += sign * x->shortest[d];
    }
    for (int64_t k = x->first_holder[d]; k < x->first_holder[d + 1]; ++k) {
        l->to_send[x->holder[k]] += sign * (x->duration[k] / holders);
    }
}

/*
 * How long the demand's busiest receiver, or the least busy of its holders, still has to
 * work. The least busy holder counts because a demand with one idle holder is not urgent
 * on the senders' side. Noise is relative, in 1/1024 of the key.
 */
static int64_t priority(list_t *l, int64_t d)
{
    const xm_exclusive_t *x = l->x;
    int64_t key = 0, send = INT64_MAX;

    for (int64_t k = x->first_receiver[d]; k < x->first_receiver[d + 1]; ++k) {
        int64_t ns = l->to_receive[x->receiver[k]];

        key = ns > key ? ns : key;
    }
    for (int64_t k = x->first_holder[d]; k < x->first_holder[d + 1]; ++k) {
        int64_t ns = l->to_send[x->holder[k]];

        send = ns < send ? ns : send;
    }
    key = key > send ? key : send;
    if (l->params->noise > 0) {
        uint64_t range = ((uint64_t)key >> 10) * (uint64_t)l->params->noise + 1;

        key += (int64_t)(xm_random_below(&l->random, range));
    }
    return key;
}

/*
 * Chooses the holder (as a place in x->holder) that would finish demand d first, −1 when
 * the demand has to wait. A patient schedule also considers holders that are busy now,
 * and waits when one of those is the best; otherwise only free holders count. Equal ends
 * fall to the holder with less to send.
 */
static int64_t pick_sender(const list_t *l, int64_t d)
{
    const xm_exclusive_t *x = l->x;
    int64_t best = -1, best_end = INT64_MAX;

    for (int64_t k = x->first_receiver[d]; k < x->first_receiver[d + 1]; ++k) {
        if (l->ingress[x->receiver[k]] > l->now) {
            return -1;
        }
    }
    for (int64_t k = x->first_holder[d]; k < x->first_holder[d + 1]; ++k) {
        int s = x->holder[k];
        bool free_now = l->egress[s] <= l->now;
        int64_t end = (free_now ? l->now : l->egress[s]) + x->duration[k];

        if ((free_now || l->params->patient) &&
            (end < best_end || (end == best_end && l->to_send[s] < l->to_send[x->holder[best]]))) {
            best = k;
            best_end = end;
        }
    }
    return best >= 0 && l->egress[x->holder[best]] <= l->now ? best : -1;
}

/*
 * Adds the demands of a free resource that could start now. Only a window of a long list
 * is looked at, and the next look begins where this one ends: an event then costs a
 * bounded amount, and over several events all demands are seen.
 */
static int64_t gather(list_t *l, waiting_t *waiting, int resource, int64_t candidates)
{
    int64_t *demand = waiting->demand + waiting->first[resource];
    int64_t *left = &waiting->left[resource], *at = &waiting->next[resource];

    for (int64_t looked = 0; looked < *left && looked < l->window; ++looked, ++*at) {
        int64_t d;

        *at = *at < *left ? *at : 0;
        while (*at < *left && l->seen[demand[*at]] < 0) {
            demand[*at] = demand[--*left];
        }
        if (*at == *left) {
            continue;
        }
        d = demand[*at];
        *l->work -= 3;
        /* A demand is listed under several resources, but the stamp of the event admits
         * it once. */
        if (l->seen[d] != l->event && pick_sender(l, d) >= 0) {
            l->seen[d] = l->event;
            l->candidates[candidates++] = (candidate_t){
                .key = priority(l, d),
                .tie = l->params->noise > 0 ? xm_random_next(&l->random) : 0,
                .demand = d,
            };
            *l->work -= 16;
        }
    }
    return candidates;
}

/* Starts demand d from holder k as early as its hosts allow, and books all of them until
 * its end. */
static void start(list_t *l, int64_t d, int64_t k)
{
    const xm_exclusive_t *x = l->x;
    int64_t end = l->egress[x->holder[k]];

    for (int64_t r = x->first_receiver[d]; r < x->first_receiver[d + 1]; ++r) {
        end = end > l->ingress[x->receiver[r]] ? end : l->ingress[x->receiver[r]];
    }
    end = (end > l->now ? end : l->now) + x->duration[k];
    l->egress[x->holder[k]] = end;
    for (int64_t r = x->first_receiver[d]; r < x->first_receiver[d + 1]; ++r) {
        l->ingress[x->receiver[r]] = end;
    }
    count_loads(l, d, -1);
    l->seen[d] = -1;
    l->steps[l->placed++] = (xm_step_t){.demand = d, .sender = x->host_of_sender[x->holder[k]]};
}

/* Only what became free just now can allow a start, unless windows hid some of the list
 * before. */
static bool looks_again(const list_t *l, int64_t free_from, int64_t left)
{
    return free_from == l->now ||
           (free_from < l->now && (left > l->window || l->window == INT64_MAX));
}

/* Starts what the free hosts allow, then moves on to the next time that one becomes free. */
static void advance(list_t *l)
{
    const xm_exclusive_t *x = l->x;
    int64_t candidates = 0, next = INT64_MAX;

    ++l->event;
    for (int s = 0; s < x->senders; ++s) {
        if (looks_again(l, l->egress[s], l->by_sender.left[s])) {
            candidates = gather(l, &l->by_sender, s, candidates);
        }
    }
    for (int r = 0; r < x->receivers; ++r) {
        if (looks_again(l, l->ingress[r], l->by_receiver.left[r])) {
            candidates = gather(l, &l->by_receiver, r, candidates);
        }
    }
    qsort(l->candidates, (size_t)candidates, sizeof(*l->candidates), by_key);
    /* The sender is chosen again, because an earlier candidate may have taken it. */
    for (int64_t i = 0; i < candidates; ++i) {
        int64_t d = l->candidates[i].demand, k = pick_sender(l, d);

        if (k >= 0) {
            start(l, d, k);
        }
    }
    for (int s = 0; s < x->senders; ++s) {
        next = l->egress[s] > l->now && l->egress[s] < next ? l->egress[s] : next;
    }
    for (int r = 0; r < x->receivers; ++r) {
        next = l->ingress[r] > l->now && l->ingress[r] < next ? l->ingress[r] : next;
    }
    if (next == INT64_MAX) { /* all hosts are free, and the windows showed nothing to start */
        l->window = INT64_MAX;
        return;
    }
    l->now = next;
    l->window = WINDOW_WORK / x->count > MIN_WINDOW ? WINDOW_WORK / x->count : MIN_WINDOW;
    *l->work -= x->senders + x->receivers;
}

/* Places the rest in the given order, each from the holder that is free first. This makes
 * the schedule complete when the work is used up, at a cost that is linear. */
static void append_rest(list_t *l)
{
    const xm_exclusive_t *x = l->x;

    for (int64_t d = 0; d < x->count; ++d) {
        int64_t best = x->first_holder[d];

        if (l->seen[d] < 0) {
            continue;
        }
        for (int64_t k = best + 1; k < x->first_holder[d + 1]; ++k) {
            best = l->egress[x->holder[k]] < l->egress[x->holder[best]] ? k : best;
        }
        start(l, d, best);
    }
}

static xm_status_t allocate(list_t *l)
{
    const xm_exclusive_t *x = l->x;

    l->egress = xm_arena_get(&l->arena, (size_t)x->senders + 1, sizeof(int64_t));
    l->to_send = xm_arena_get(&l->arena, (size_t)x->senders + 1, sizeof(int64_t));
    l->ingress = xm_arena_get(&l->arena, (size_t)x->receivers + 1, sizeof(int64_t));
    l->to_receive = xm_arena_get(&l->arena, (size_t)x->receivers + 1, sizeof(int64_t));
    l->candidates = xm_arena_take(&l->arena, ((size_t)x->count + 1) * sizeof(candidate_t));
    l->seen = xm_arena_get(&l->arena, (size_t)x->count + 1, sizeof(int64_t));
    XM_NEED_MEMORY(!l->arena.failed, "scheduling %lld demands", (long long)x->count);
    return XM_OK;
}

/*
 * Each event starts a demand, moves time forward, or opens the windows; with all hosts
 * free and open windows some demand can always start, so the loop ends even without the
 * limit on work.
 */
xm_status_t xm_exclusive_list(const xm_exclusive_t *x, const xm_list_params_t *params,
                              int64_t *work, xm_step_t *steps)
{
    list_t l = {.x = x,
                .params = params,
                .random = {params->seed},
                .work = work,
                .steps = steps,
                .window = INT64_MAX};
    xm_status_t status = allocate(&l);

    XM_THEN(status, make_waiting(&l.by_sender, x->count, x->senders, x->first_holder, x->holder));
    if (status == XM_OK) {
        status =
            make_waiting(&l.by_receiver, x->count, x->receivers, x->first_receiver, x->receiver);
    }
    if (status == XM_OK) {
        for (int64_t d = 0; d < x->count; ++d) {
            count_loads(&l, d, 1);
        }
        while (l.placed<x->count && * work> 0) {
            advance(&l);
        }
        append_rest(&l);
    }
    free_waiting(&l.by_receiver);
    free_waiting(&l.by_sender);
    xm_arena_clear(&l.arena);
    return status;
}
