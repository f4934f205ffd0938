/* SPDX-License-Identifier: Apache-2.0 */
/*
 * FlexFlow's random walk (Jia, SysML'19) over a choice network. A proposal changes one variable, so
 * its cost is that of the variable's edges and not of the network; the sums are kept up to date and
 * computed anew whenever the walk returns to the best. Random numbers come from a generator of our
 * own, so a seed gives the same walk everywhere.
 */

#include "planner/published/choice/mcmc.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "planner/solver/network.h"

enum { PROPAGATED = 12 };

typedef struct walk {
    const ap_cfn_core_t *network;
    const ap_mcmc_params_t *params;
    uint64_t random;
    int *at; /* the walk's assignment */
    double seconds, bytes;
} walk_t;

static double penalty(const ap_mcmc_params_t *params, double bytes)
{
    return params->memory_limit > 0.0 && bytes > params->memory_limit
               ? params->byte_penalty * (bytes - params->memory_limit)
               : 0.0;
}

static void stand_at(walk_t *walk, const int *assignment)
{
    memcpy(walk->at, assignment, (size_t)walk->network->variables * sizeof(*walk->at));
    walk->seconds = ap_cfn_core_cost(walk->network, walk->at);
    walk->bytes = ap_choice_network_bytes(walk->network, walk->at);
}

static double energy(const walk_t *walk)
{
    return walk->seconds + penalty(walk->params, walk->bytes);
}

/* Metropolis' rule for a change of the energy: better is always taken, worse with a probability
 * that falls with the change relative to the best. */
static bool takes(walk_t *walk, double change, double scale)
{
    return change <= 0.0 ||
           ap_cfn_random_unit(&walk->random) < exp(-walk->params->beta * change / scale);
}

/* What another value of a variable would add. */
static double more_seconds(const walk_t *walk, int v, int value)
{
    return ap_cfn_core_cost_of(walk->network, v, value, walk->at) -
           ap_cfn_core_cost_of(walk->network, v, walk->at[v], walk->at);
}

static double more_bytes(const walk_t *walk, int v, int value)
{
    return ap_choice_bytes(walk->network, v, value) -
           ap_choice_bytes(walk->network, v, walk->at[v]);
}

/* Sets a variable; what that changes is added up. */
static void set(walk_t *walk, int v, int value)
{
    walk->seconds += more_seconds(walk, v, value);
    walk->bytes += more_bytes(walk, v, value);
    walk->at[v] = value;
}

/* The value of a variable that is best beside the others as they are. */
static int best_beside(const walk_t *walk, int v)
{
    double least = INFINITY;
    int best = walk->at[v];

    for (int x = 0; x < walk->network->variable[v].size; ++x) {
        double cost = ap_cfn_core_cost_of(walk->network, v, x, walk->at) +
                      penalty(walk->params, walk->bytes + more_bytes(walk, v, x));

        best = cost < least ? x : best;
        least = cost < least ? cost : least;
    }
    return best;
}

/* Proposes a value for a variable together with what then suits the variables around it, up to
 * PROPAGATED of them, breadth first. If it is not taken, all are set back and the sums restored
 * exactly. */
static void propagate(walk_t *walk, int v, int value, double scale)
{
    const ap_cfn_core_t *core = walk->network;
    int changed[PROPAGATED + 1], before[PROPAGATED + 1], count = 1;
    double seconds = walk->seconds, bytes = walk->bytes, start = energy(walk);

    changed[0] = v;
    before[0] = walk->at[v];
    set(walk, v, value);
    for (int c = 0; c < count; ++c) {
        const ap_cfn_variable_t *variable = &core->variable[changed[c]];

        for (int i = 0; i < variable->degree; ++i) {
            int other = ap_cfn_other(&core->link[variable->link[i]], changed[c]), best;
            bool seen = false;

            for (int k = 0; k < count; ++k) {
                seen = seen || changed[k] == other;
            }
            best = seen || count > PROPAGATED ? walk->at[other] : best_beside(walk, other);
            if (best != walk->at[other]) {
                changed[count] = other;
                before[count++] = walk->at[other];
                set(walk, other, best);
            }
        }
    }
    if (!takes(walk, energy(walk) - start, scale)) {
        for (int c = count - 1; c >= 0; --c) {
            walk->at[changed[c]] = before[c];
        }
        walk->seconds = seconds;
        walk->bytes = bytes;
    }
}

/* Proposes a value for a variable and takes it or not. One draw gives variable, value and kind of
 * proposal, from different bits. */
static void step(walk_t *walk, double scale)
{
    const ap_cfn_core_t *core = walk->network;
    uint64_t drawn = ap_cfn_random(&walk->random);
    int v = (int)((drawn >> 32) % (uint64_t)core->variables);
    int value = (int)((drawn & 0xfffffffU) % (uint64_t)core->variable[v].size);
    double more, bytes, change;

    if ((drawn >> 28 & 15U) == 0) {
        propagate(walk, v, value, scale);
        return;
    }
    more = more_seconds(walk, v, value);
    bytes = walk->bytes + more_bytes(walk, v, value);
    change = more + penalty(walk->params, bytes) - penalty(walk->params, walk->bytes);
    if (takes(walk, change, scale)) {
        walk->at[v] = value;
        walk->seconds += more;
        walk->bytes = bytes;
    }
}

xm_status_t ap_search_mcmc(const ap_cfn_core_t *network, const ap_mcmc_params_t *params,
                           int *assignment)
{
    walk_t walk = {.network = network, .params = params, .random = params->seed};
    int64_t timeout = params->proposals / 10 + 1, stale = 0;
    double best;

    if (params->seed == 0 || params->proposals < 0 || !(params->beta >= 0.0)) {
        return XM_INVALID("a random walk needs a seed other than 0 and a beta of 0 or more");
    }
    if (network->variables == 0) {
        return XM_OK;
    }
    walk.at = malloc((size_t)network->variables * sizeof(*walk.at));
    XM_NEED_MEMORY(walk.at, "a random walk");
    stand_at(&walk, assignment);
    best = energy(&walk);
    for (int64_t i = 0; i < params->proposals; ++i) {
        step(&walk, best > 0.0 ? best : 1.0);
        if (energy(&walk) < best) {
            best = energy(&walk);
            memcpy(assignment, walk.at, (size_t)network->variables * sizeof(*walk.at));
            stale = 0;
        } else if (++stale > timeout && i > params->proposals / 2) {
            stand_at(&walk, assignment);
            stale = 0;
        }
    }
    free(walk.at);
    return XM_OK;
}
