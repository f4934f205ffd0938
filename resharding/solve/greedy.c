/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The randomised greedy scheduler of the paper (MLSys'23, section 3.2), and more: it
 * tries up to 30 schedules of several kinds (balance, naive, list schedules with noise,
 * the paper's rounds) and keeps the shortest, stopping at the first that meets the lower
 * bound. One kind alone fails on some problems, and trying many is cheap. All effort is
 * counted in steps, so that a seed gives the same schedule on every machine.
 */
#include "comm/base.h"
#include "resharding/solve/exclusive.h"

#include <stdlib.h>
#include <string.h>

enum {
    MAX_PERMUTATIONS = 100, /* of an iteration, as in the paper's code */
    ATTEMPTS = 30,          /* whole schedules tried unless one meets the bound */
    LISTS_PER_ROUND = 2,    /* list schedules tried for each one made of rounds */
    /* Elementary steps of all attempts, a few ns each: some tens of milliseconds, and a schedule or
     * two of thousands of demands. */
    WORK = 12000000,
    WORK_PER_DEMAND = 1000,
    MOST_WORK = 60000000
};

/* The paper's greedy: rounds of demands that share no host, each the best of several permutations.
 */
typedef struct rounds {
    const xm_exclusive_t *x;
    xm_random_t random;
    int64_t *work;
    int64_t *left; /* demands to do, in any order */
    int64_t left_count;
    int64_t *load; /* by sender: ns of what it sends in the rounds so far */
    int64_t max_load;
    int64_t *sender_used, *receiver_used; /* the last trial that used it */
    int64_t trial;
    int64_t *chosen, *best; /* pairs: a demand, its sender's place in x->holder */
    bool *done;             /* by demand */
    xm_arena_t arena;
} rounds_t;

/* A trial's number marks what it uses, so that nothing needs to be cleared between
 * trials. */
static bool receivers_free(const rounds_t *r, int64_t d)
{
    const xm_exclusive_t *x = r->x;

    for (int64_t k = x->first_receiver[d]; k < x->first_receiver[d + 1]; ++k) {
        if (r->receiver_used[x->receiver[k]] == r->trial) {
            return false;
        }
    }
    return true;
}

/* Draws a free holder, the more likely the less it has sent; −1 when none is free. Every
 * free holder has a weight of at least 1, so the second loop always returns. */
static int64_t draw_sender(rounds_t *r, int64_t d)
{
    const xm_exclusive_t *x = r->x;
    uint64_t total = 0, drawn;

    for (int64_t k = x->first_holder[d]; k < x->first_holder[d + 1]; ++k) {
        if (r->sender_used[x->holder[k]] != r->trial) {
            total += (uint64_t)(r->max_load - r->load[x->holder[k]] + 1);
        }
    }
    if (total == 0) {
        return -1;
    }
    drawn = xm_random_below(&r->random, total);
    for (int64_t k = x->first_holder[d];; ++k) {
        uint64_t weight = (uint64_t)(r->max_load - r->load[x->holder[k]] + 1);

        if (r->sender_used[x->holder[k]] == r->trial) {
            continue;
        }
        if (drawn < weight) {
            return k;
        }
        drawn -= weight;
    }
}

/*
 * Walks one random permutation and keeps each demand whose hosts are still free; returns
 * how many. *worst is the largest load then. The permutation is drawn as it is used
 * (Fisher and Yates), since a round is full long before its end when demands are many.
 */
static int64_t permute(rounds_t *r, int64_t *worst)
{
    const xm_exclusive_t *x = r->x;
    int64_t kept = 0, receivers_left = x->receivers;

    ++r->trial;
    *worst = r->max_load;
    for (int64_t i = 0; i < r->left_count && kept < x->senders && receivers_left > 0; ++i) {
        int64_t j = i + (int64_t)xm_random_below(&r->random, (uint64_t)(r->left_count - i));
        int64_t d = r->left[j], k;

        r->left[j] = r->left[i];
        r->left[i] = d;
        *r->work -= 2 + x->first_receiver[d + 1] - x->first_receiver[d];
        if (!receivers_free(r, d)) {
            continue;
        }
        *r->work -= x->first_holder[d + 1] - x->first_holder[d];
        k = draw_sender(r, d);
        if (k < 0) {
            continue;
        }
        r->sender_used[x->holder[k]] = r->trial;
        for (int64_t n = x->first_receiver[d]; n < x->first_receiver[d + 1]; ++n) {
            r->receiver_used[x->receiver[n]] = r->trial;
            --receivers_left;
        }
        if (r->load[x->holder[k]] + x->duration[k] > *worst) {
            *worst = r->load[x->holder[k]] + x->duration[k];
        }
        r->chosen[2 * kept] = d;
        r->chosen[2 * kept++ + 1] = k;
    }
    return kept;
}

/* Exchanges two buffers, so that the best permutation is kept without copying. */
static void swap(int64_t **a, int64_t **b)
{
    int64_t *c = *a;

    *a = *b;
    *b = c;
}

/* Returns how many permutations of the remaining demands the allowance pays for, if each
 * further round keeps `kept` of them. At least one is always tried, so that rounds go on. */
static int64_t permutations(const rounds_t *r, int64_t kept, int64_t allowance)
{
    int64_t rounds_left = r->left_count / kept + 1;
    int64_t afford = allowance / (4 * r->left_count * rounds_left);
    int64_t most = 4 * r->left_count;

    most = most < MAX_PERMUTATIONS ? most : MAX_PERMUTATIONS;
    return afford < 1 ? 1 : afford < most ? afford : most;
}

/*
 * One iteration of the paper: the permutation that keeps the most demands, and of those
 * the one with the most even load, is appended to the schedule. A round keeps at least
 * one demand, because the first of any permutation finds all its hosts free.
 */
static int64_t add_round(rounds_t *r, int64_t trials, xm_step_t *steps)
{
    const xm_exclusive_t *x = r->x;
    int64_t most = 0, worst = 0, left = 0;

    for (int64_t p = 0; p < trials; ++p) {
        int64_t load, fits = permute(r, &load);

        if (fits > most || (fits == most && load < worst)) {
            most = fits;
            worst = load;
            swap(&r->chosen, &r->best);
        }
    }
    for (int64_t i = 0; i < most; ++i) {
        int64_t d = r->best[2 * i], k = r->best[2 * i + 1];
        int sender = x->holder[k];

        r->load[sender] += x->duration[k];
        r->max_load = r->load[sender] > r->max_load ? r->load[sender] : r->max_load;
        r->done[d] = true;
        steps[i] = (xm_step_t){.demand = d, .sender = x->host_of_sender[sender]};
    }
    /* Demands that stay keep their order, so the next round starts from the same state on
     * every machine. */
    for (int64_t i = 0; i < r->left_count; ++i) {
        if (!r->done[r->left[i]]) {
            r->left[left++] = r->left[i];
        }
    }
    r->left_count = left;
    return most;
}

/* `chosen` and `best` hold no more pairs than there are senders, as each sender is used
 * once a round. */
static xm_status_t allocate(rounds_t *r)
{
    size_t count = (size_t)r->x->count, senders = (size_t)r->x->senders;

    r->left = xm_arena_take(&r->arena, count * sizeof(int64_t));
    r->done = xm_arena_get(&r->arena, count, sizeof(bool));
    r->load = xm_arena_get(&r->arena, senders, sizeof(int64_t));
    r->sender_used = xm_arena_get(&r->arena, senders, sizeof(int64_t));
    r->receiver_used = xm_arena_get(&r->arena, (size_t)r->x->receivers, sizeof(int64_t));
    r->chosen = xm_arena_take(&r->arena, 2 * senders * sizeof(int64_t));
    r->best = xm_arena_take(&r->arena, 2 * senders * sizeof(int64_t));
    XM_NEED_MEMORY(!r->arena.failed, "scheduling %lld demands", (long long)r->x->count);
    return XM_OK;
}

/*
 * Schedules in rounds; *complete is false when the work was used up before all demands
 * had their place. A quarter of the usual work is the attempt's allowance for trying
 * several permutations; beyond it a round tries one.
 */
static xm_status_t schedule_rounds(const xm_exclusive_t *x, uint64_t seed, int64_t *work,
                                   xm_step_t *steps, bool *complete)
{
    rounds_t r = {.x = x, .random = {seed}, .work = work, .left_count = x->count};
    int64_t kept = x->senders < x->receivers ? x->senders : x->receivers, placed = 0;
    int64_t reserve = *work - WORK / 4 > 0 ? *work - WORK / 4 : 0;
    xm_status_t status = allocate(&r);

    if (status == XM_OK) {
        for (int64_t d = 0; d < x->count; ++d) {
            r.left[d] = d;
        }
        while (r.left_count > 0 && *work > 0) {
            kept = add_round(&r, permutations(&r, kept, *work - reserve), steps + placed);
            placed += kept;
        }
        *complete = r.left_count == 0;
    }
    xm_arena_clear(&r.arena);
    return status;
}

/* Takes a complete schedule over when it is strictly shorter, so the first of equals
 * stays. */
static xm_status_t consider(const xm_problem_t *problem, const xm_step_t *steps, xm_step_t *best,
                            int64_t *best_ns)
{
    int64_t ns;
    XM_TRY(xm_steps_makespan(problem, steps, &ns));

    if (ns < *best_ns) {
        *best_ns = ns;
        memcpy(best, steps, (size_t)problem->count * sizeof(*best));
    }
    return XM_OK;
}

/*
 * Makes one more schedule, of a kind that depends on how many were tried. The
 * deterministic ones come first: they are cheap and often meet the bound, which ends the
 * attempts.
 */
static xm_status_t attempt(const xm_exclusive_t *x, int number, xm_random_t *random, int64_t *work,
                           xm_step_t *steps, bool *complete)
{
    xm_list_params_t params = {.seed = xm_random_next(random)};

    *complete = true;
    if (number == 0) {
        return xm_schedule_balance(x->problem, steps);
    }
    if (number == 1) {
        return xm_exclusive_list(x, &params, work, steps);
    }
    if (number == 2) {
        return xm_schedule_naive(x->problem, steps);
    }
    if (number % (LISTS_PER_ROUND + 1) == 0) {
        return schedule_rounds(x, params.seed, work, steps, complete);
    }
    /* The noise goes through five strengths from 1/16 to the whole of a priority. To wait
     * for a faster sender only makes sense where rates differ. */
    params.noise = 64 << (number % 5);
    params.patient = number % 2 == 0 && !xm_network_uniform(x->problem->network);
    return xm_exclusive_list(x, &params, work, steps);
}

/*
 * The paper's randomised greedy (MLSys'23 section 3.2) with durations from bytes, as one of several
 * kinds of schedule that are tried until one meets the bound: naive and balance, so that greedy is
 * never worse than they are, list schedules, and restarts.
 */
xm_status_t xm_schedule_greedy(const xm_problem_t *problem, uint64_t seed, xm_step_t *steps)
{
    size_t size = ((size_t)problem->count + 1) * sizeof(xm_step_t);
    xm_step_t *trial = malloc(size), *best = malloc(size);
    xm_exclusive_t *x = NULL;
    int64_t bound, best_ns = INT64_MAX, work = WORK + WORK_PER_DEMAND * problem->count;
    xm_random_t random = {seed};
    xm_status_t status;

    /* Naive and balance always complete, so there is a schedule even when the work is
     * used up at once. */
    work = work < MOST_WORK ? work : MOST_WORK;
    if (trial == NULL || best == NULL) {
        status = XM_NO_MEMORY("scheduling %lld demands", (long long)problem->count);
        goto free_steps;
    }
    status = xm_exclusive_create(problem, &x);
    if (status < 0) {
        goto free_steps;
    }
    status = xm_exclusive_bound(x, &bound);
    for (int i = 0; i < ATTEMPTS && status == XM_OK && best_ns > bound && work > 0; ++i) {
        bool complete;

        status = attempt(x, i, &random, &work, trial, &complete);
        if (status == XM_OK && complete) {
            status = consider(problem, trial, best, &best_ns);
        }
    }
    if (status == XM_OK) {
        memcpy(steps, best, (size_t)problem->count * sizeof(*steps));
    }
    xm_exclusive_destroy(x);
free_steps:
    free(best);
    free(trial);
    return status;
}
