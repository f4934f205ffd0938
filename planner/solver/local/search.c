/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The anytime search: large-neighbourhood search around one state per thread. Each step picks a set
 * of 3 to 96 variables and lets planner/solver/local/region.c find their best values. Which sets
 * pay differs between problems, so a bandit chooses among 24 kinds and sizes by gain per
 * second. To leave local optima the search runs in cycles, as simulated annealing does: costs get
 * noise or a surcharge on usage that fades until the cycle ends.
 *
 * Prices of usage come from the bounding thread. A dual solution says where memory is scarce, which
 * a local search could find out only by trial.
 */

#include "planner/solver/local.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "comm/base.h"
#include "planner/solver/network.h"
#include "planner/solver/local/region.h"

/* How a neighbourhood is made, and of how many variables. */
typedef enum kind {
    KIND_BALL,  /* around a variable */
    KIND_PAIR,  /* balls around several that share a time without slack */
    KIND_ORDER, /* variables of neighbouring numbers */
    KIND_APART, /* pieces in which the state and the dual's choice differ */
    KIND_COUNT
} kind_t;

static const int sizes[] = {3, 6, 12, 24, 48, 96};
enum { SIZE_COUNT = sizeof(sizes) / sizeof(sizes[0]), ARMS = KIND_COUNT * SIZE_COUNT };
/* The bound's rise, as part of the gap, after which a new start is worth it; the largest gap, as
 * part of the bound, that good solutions could have; and the part of the gap that half a cycle has
 * to gain: where it gains less, it polishes what another cycle would leave. */
static const double restart = 0.2, plausible_gap = 0.002, worthwhile = 0.03;
#define CYCLE_LEAST INT64_C(300000000) /* nanoseconds */
#define CYCLE_MOST  INT64_C(4000000000)
/* Steps of the prices of a region, cells of its largest table, and how many balls a neighbourhood
 * may have. */
enum { STEPS = 14, CELLS = 20000, BALLS_MAX = 5, TRIES = 64 };

/* A way of choosing, and what it gained lately; both fade by 2 % per step, so the choice follows
 * what pays now. */
typedef struct arm {
    double gain, seconds;
    double total; /* seconds, of all time */
} arm_t;

struct ap_cfn_search {
    ap_cfn_shared_t *shared;
    const ap_cfn_core_t *core;
    uint64_t random;
    ap_cfn_region_t *region;
    ap_cfn_state_t state;
    bool started;
    double bound;     /* when the search was started */
    int64_t improved; /* when it last was better by that part than at the time before, */
    double noted;     /* and its cost then */
    /* A cycle leads the search away from where it is, at first much, at its end not at all. */
    int64_t created, cycle_begin, cycle_end; /* the last two 0: no cycle */
    double worth;                            /* of usage when the cycle begins, in prices */
    double noise;                            /* on values' costs when the cycle begins */
    double *sums;                            /* of the prices */
    int seen;
    int *stamp, stamps;     /* per variable: the last neighbourhood that it was in */
    int *users, user_count; /* variables with usage */
    arm_t arm[ARMS];
    int list[AP_CFN_REGION_MAX];
    int count;
    int *value;      /* per variable: scratch of a start */
    int *dual;       /* per variable: what the dual suggests at the prices in `sums` */
    xm_arena_t pool; /* all arrays per variable and per time */
};

/* A number below a limit. The upper bits are taken; the lower ones of xorshift64* are weaker. */
static int below(ap_cfn_search_t *self, int limit)
{
    return (int)((ap_cfn_random(&self->random) >> 33) % (uint64_t)limit);
}

static double unit(ap_cfn_search_t *self)
{
    return ap_cfn_random_unit(&self->random);
}

/* Seeds are multiplied by an odd constant, so that neighbouring seeds start far apart; the
 * generator's state must not be 0. */
xm_status_t ap_cfn_search_create(ap_cfn_shared_t *shared, uint64_t seed, ap_cfn_search_t **search)
{
    ap_cfn_search_t *made = calloc(1, sizeof(*made));
    const ap_cfn_core_t *core = shared->core;
    xm_status_t status;

    if (made == NULL) {
        return XM_NO_MEMORY("a search");
    }
    made->shared = shared;
    made->core = core;
    made->created = ap_cfn_shared_now(shared);
    made->random = xm_hash_spread(seed) | 1;
    made->sums = xm_arena_get(&made->pool, (size_t)core->times + 1, sizeof(double));
    made->stamp = xm_arena_get(&made->pool, (size_t)core->variables, sizeof(int));
    made->users = xm_arena_take(&made->pool, (size_t)core->variables * sizeof(int));
    made->value = xm_arena_take(&made->pool, (size_t)core->variables * sizeof(int));
    made->dual = xm_arena_get(&made->pool, (size_t)core->variables, sizeof(int));
    status =
        made->pool.failed ? XM_NO_MEMORY("a search") : ap_cfn_region_create(core, &made->region);
    if (status != XM_OK) {
        ap_cfn_search_destroy(made);
        return status;
    }
    /* Variables with usage, where neighbourhoods around tight times begin. */
    for (int v = 0; v < core->variables; ++v) {
        if (core->variable[v].segments > 0) {
            made->users[made->user_count++] = v;
        }
    }
    *search = made;
    return XM_OK;
}

/* Stamps tell in constant time whether a variable is in the present neighbourhood, without clearing
 * anything between two of them. */
static bool add(ap_cfn_search_t *self, int v)
{
    if (self->stamp[v] == self->stamps) {
        return false;
    }
    self->stamp[v] = self->stamps;
    self->list[self->count++] = v;
    return true;
}

/* Adds a variable and some around it, until there are `size` in all, by following random links of
 * random members. Tries are limited, because a small component may have no more variables. */
static void add_ball(ap_cfn_search_t *self, int centre, int size)
{
    int first = self->count;

    if (!add(self, centre)) {
        return;
    }
    for (int tries = 4 * size; tries > 0 && self->count < size; --tries) {
        const ap_cfn_variable_t *from =
            &self->core->variable[self->list[first + below(self, self->count - first)]];

        if (from->degree > 0) {
            int link = from->link[below(self, from->degree)];
            const ap_cfn_link_t *l = &self->core->link[link];

            (void)add(self, below(self, 2) ? l->a : l->b);
        }
    }
}

/* Whether a variable has any usage at a time. */
static bool uses(const ap_cfn_search_t *self, int v, int time)
{
    const ap_cfn_variable_t *variable = &self->core->variable[v];

    for (int k = 0; k < variable->segments; ++k) {
        if (variable->segment[k].from <= time && time < variable->segment[k].to) {
            return true;
        }
    }
    return false;
}

/* A time without slack, or one with nearly the smallest slack there is. It begins at a random time,
 * so that tight times take turns. */
static int tight_time(ap_cfn_search_t *self)
{
    int times = self->core->times, from = below(self, times);
    double least = ap_cfn_state_least_slack(&self->state);
    double limit = least < 0.0 ? 0.0 : 1.5 * least + 1.0;
    int found = ap_cfn_slack_first_below(&self->state.slack, from, times, limit);

    return found >= 0 ? found : ap_cfn_slack_first_below(&self->state.slack, 0, times, limit);
}

/* Balls around several users of one tight time. Where memory binds, one tensor can only grow if
 * another one that is live at the same time shrinks; the two need not be near each other in the
 * graph. */
static void add_pair(ap_cfn_search_t *self, int size)
{
    int time = tight_time(self), balls = 2 + below(self, BALLS_MAX - 1);

    for (int ball = 1; ball <= balls; ++ball) {
        for (int tries = 0; tries < TRIES; ++tries) {
            int v = self->users[below(self, self->user_count)];

            if (time < 0 || uses(self, v, time)) {
                add_ball(self, v, size * ball / balls);
                break;
            }
        }
    }
}

static bool is_apart(const ap_cfn_search_t *self, int v)
{
    return self->state.value[v] != self->dual[v];
}

/* The next variable from a random one on that differs from the dual's choice and is not chosen yet;
 * -1: none. */
static int find_apart(ap_cfn_search_t *self)
{
    int variables = self->core->variables, from = below(self, variables);

    for (int k = 0; k < variables; ++k) {
        int v = from + k < variables ? from + k : from + k - variables;

        if (is_apart(self, v) && self->stamp[v] != self->stamps) {
            return v;
        }
    }
    return -1;
}

/* Whole connected pieces in which the state differs from the dual's choice, in no order. Where
 * memory binds, a state is often stuck as one piece took the room that several others, anywhere in
 * the graph, would make more of; near the optimum most of them are as the dual has them. Changing
 * them together is a knapsack of pieces, which no ball contains. */
static void add_apart(ap_cfn_search_t *self, int size)
{
    while (self->count < size) {
        int first = self->count, seed = find_apart(self);

        if (seed < 0) {
            break;
        }
        (void)add(self, seed);
        for (int at = first; at < self->count && self->count < size; ++at) {
            const ap_cfn_variable_t *from = &self->core->variable[self->list[at]];

            for (int k = 0; k < from->degree && self->count < size; ++k) {
                const ap_cfn_link_t *link = &self->core->link[from->link[k]];
                int other = ap_cfn_other(link, self->list[at]);

                if (is_apart(self, other)) {
                    (void)add(self, other);
                }
            }
        }
    }
}

/* Chooses the variables. Neighbouring numbers are neighbouring operators, as the presolve keeps
 * their order; so KIND_ORDER takes a piece of the model. Where a kind finds nothing, a ball stands
 * in. */
static void choose_neighbourhood(ap_cfn_search_t *self, int arm)
{
    int size = sizes[arm % SIZE_COUNT], variables = self->core->variables;
    kind_t kind = (kind_t)(arm / SIZE_COUNT);

    size = size < variables ? size : variables;
    self->count = 0;
    ++self->stamps;
    if (kind == KIND_PAIR && self->user_count > 0) {
        add_pair(self, size);
    } else if (kind == KIND_ORDER) {
        int first = below(self, variables - size + 1);

        for (int k = 0; k < size; ++k) {
            (void)add(self, first + k);
        }
    } else if (kind == KIND_APART) {
        add_apart(self, size);
    }
    if (self->count == 0) {
        add_ball(self, below(self, variables), size);
    }
}

/* Chooses mostly what gains most in its time, else what had the smallest share of the time so
 * far, so that every kind goes on being tried and large neighbourhoods do not take all the time.
 * Gains per second are compared by products, which is also right when an arm has no seconds yet. */
static int choose_arm(ap_cfn_search_t *self)
{
    int best = below(self, ARMS);

    if (unit(self) < 0.3) {
        for (int k = 0; k < ARMS; ++k) {
            if (self->arm[k].total < self->arm[best].total) {
                best = k;
            }
        }
        return best;
    }
    for (int k = 0; k < ARMS; ++k) {
        if (self->arm[k].gain * self->arm[best].seconds >
            self->arm[best].gain * self->arm[k].seconds) {
            best = k;
        }
    }
    return best;
}

/* The part of a cycle's surcharge and noise that is left; the last fifth of the cycle is without,
 * so that it ends in a local optimum of the true costs. */
static double heat(const ap_cfn_search_t *self, int64_t now)
{
    double left = (double)(self->cycle_end - now) / (double)(self->cycle_end - self->cycle_begin);

    return self->cycle_end == 0 || left <= 0.2 ? 0.0 : (left - 0.2) / 0.8;
}

/* Tries one neighbourhood. Only improvements outside of cycles count for the bandit: inside one,
 * costs are distorted on purpose. */
static xm_status_t step(ap_cfn_search_t *self)
{
    /* Mostly the dual's own prices; others now and then, because those of a large gap are wrong for
     * good solutions. */
    static const double factors[] = {1.0, 1.0, 1.0, 0.9, 1.1, 0.5, 2.0};
    ap_cfn_region_params_t params = {
        .price_sums = self->sums, .steps = STEPS, .cells = CELLS, .shared = self->shared};
    int arm = choose_arm(self);
    double cost = self->state.cost;
    int64_t begin = ap_cfn_shared_now(self->shared);
    bool changed, better;
    xm_status_t status;

    params.price_factor = factors[below(self, sizeof(factors) / sizeof(factors[0]))];
    params.noise = self->noise * heat(self, begin);
    params.worth = self->worth * heat(self, begin);
    params.random = &self->random;
    choose_neighbourhood(self, arm);
    status = ap_cfn_region_improve(self->region, &self->state, &params, self->list, self->count,
                                   &changed, &better);
    self->arm[arm].seconds =
        0.98 * self->arm[arm].seconds + 1e-9 * (double)(ap_cfn_shared_now(self->shared) - begin);
    self->arm[arm].total += 1e-9 * (double)(ap_cfn_shared_now(self->shared) - begin);
    self->arm[arm].gain *= 0.98;
    if (better && heat(self, begin) == 0.0) {
        /* A repair (less excess at a higher cost) counts as much as saving a part of the cost. */
        self->arm[arm].gain +=
            self->state.cost < cost ? cost - self->state.cost : 1e-4 * fabs(cost);
    }
    if (changed && self->state.cost < cost && ap_cfn_state_is_solution(&self->state)) {
        (void)ap_cfn_shared_offer(self->shared, self->state.value, self->state.cost);
    }
    return status;
}

/* The length of a cycle: short at first and near the deadline, so that a short search has several;
 * it grows with the time that the search has had, up to four seconds. */
static int64_t span(const ap_cfn_search_t *self)
{
    int64_t now = ap_cfn_shared_now(self->shared),
            length = CYCLE_LEAST + (now - self->created) / 10;
    int64_t part = (ap_cfn_shared_end(self->shared) - now) / 2;

    length = length < CYCLE_MOST ? length : CYCLE_MOST;
    return length < part ? length : part;
}

/* Begins to lead the search away from where it is. */
static void begin_cycle(ap_cfn_search_t *self, double worth, double noise)
{
    self->cycle_begin = ap_cfn_shared_now(self->shared);
    self->cycle_end = self->cycle_begin + span(self);
    self->noted = HUGE_VAL;
    self->worth = worth;
    self->noise = noise;
}

/* Goes on from the best solution, or from the shared start (what the dual suggests) with a cycle
 * that fades a full price on usage. The price of a forbidden cell is far above all other costs:
 * the state counts as a solution when its cost is below half of it, so a single one is enough to
 * tell. */
static xm_status_t start(ap_cfn_search_t *self, bool from_best)
{
    ap_cfn_shared_t *shared = self->shared;
    int *value = self->value;
    xm_status_t status;

    (void)pthread_mutex_lock(&shared->mutex);
    memcpy(value, from_best ? shared->best : shared->start,
           (size_t)self->core->variables * sizeof(*value));
    self->bound = shared->bound;
    (void)pthread_mutex_unlock(&shared->mutex);
    ap_cfn_state_destroy(&self->state);
    status = ap_cfn_state_create(self->core, value, 1e3 + 64.0 * fabs(self->bound), &self->state);
    self->started = status == XM_OK;
    self->improved = ap_cfn_shared_now(self->shared);
    self->noted = HUGE_VAL;
    self->cycle_begin = self->cycle_end = 0;
    if (!from_best) {
        begin_cycle(self, 1.0, 0.0);
    }
    if (self->started && ap_cfn_state_is_solution(&self->state)) {
        (void)ap_cfn_shared_offer(shared, self->state.value, self->state.cost);
    }
    return status;
}

/* Decides what to go on with. The search starts anew when the bound has risen so much that the
 * prices must be much better than those it was started with. When nothing better was found for a
 * while, another cycle begins: from the shared start, which leads far away, or from the best
 * solution. */
static xm_status_t maybe_start(ap_cfn_search_t *self)
{
    static const double worths[] = {0.0, 0.1, 0.2, 0.5, 1.0}, noises[] = {0.0, 1.0, 1.0, 4.0, 16.0};
    double cost, bound, gap;
    xm_status_t status = XM_OK;

    if (self->started && ap_cfn_shared_now(self->shared) < self->cycle_end) {
        return XM_OK;
    }
    (void)pthread_mutex_lock(&self->shared->mutex);
    cost = self->shared->cost;
    bound = self->shared->bound;
    (void)pthread_mutex_unlock(&self->shared->mutex);
    gap = fmin(cost - bound, plausible_gap * fabs(bound));
    if (!self->started || bound - self->bound > restart * gap) {
        return start(self, !self->started && self->shared->warm);
    }
    /* Without any solution the search keeps repairing what it has; after a recent success it goes
     * on as it is. */
    if (self->state.cost < self->noted - worthwhile * (cost - bound)) {
        self->noted = self->state.cost;
        self->improved = ap_cfn_shared_now(self->shared);
    }
    if (!(cost < HUGE_VAL) || ap_cfn_shared_now(self->shared) - self->improved <= span(self) / 2) {
        return XM_OK;
    }
    if (below(self, 2) == 0) {
        return start(self, false);
    }
    /* Another thread has found a better solution, or this state is none: the cycle leaves from the
     * best. */
    if (cost < self->state.cost || !ap_cfn_state_is_solution(&self->state)) {
        status = start(self, true);
    }
    /* The noise is in units of what one variable has of the gap. */
    begin_cycle(self, worths[below(self, (int)(sizeof(worths) / sizeof(worths[0])))],
                noises[below(self, (int)(sizeof(noises) / sizeof(noises[0])))] * (cost - bound) /
                    self->core->variables);
    return status;
}

/* Looks at the prices and at the clock's verdict every 16 steps only, as both take the shared
 * lock. */
xm_status_t ap_cfn_search_run(ap_cfn_search_t *self, int64_t until)
{
    xm_status_t status = XM_OK;

    if (self->core->variables == 0) {
        return XM_OK;
    }
    while (status == XM_OK && !ap_cfn_shared_is_over(self->shared) &&
           ap_cfn_shared_now(self->shared) < until) {
        (void)ap_cfn_shared_prices(self->shared, self->sums, self->dual, &self->seen);
        status = maybe_start(self);
        for (int k = 0; status == XM_OK && k < 16 && ap_cfn_shared_now(self->shared) < until &&
                        !ap_cfn_shared_is_over(self->shared);
             ++k) {
            status = step(self);
        }
    }
    return status;
}

void ap_cfn_search_destroy(ap_cfn_search_t *search)
{
    if (search == NULL) {
        return;
    }
    ap_cfn_region_destroy(search->region);
    ap_cfn_state_destroy(&search->state);
    xm_arena_clear(&search->pool);
    free(search);
}
