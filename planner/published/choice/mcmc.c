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
    const ap_choice_network_t *network;
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
    memcpy(walk->at, assignment, (size_t)walk->network->variable_count * sizeof(*walk->at));
    walk->seconds = ap_choice_network_seconds(walk->network, walk->at);
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

/* Sets a variable; what that changes is added up. */
static void set(walk_t *walk, int v, int value)
{
    const ap_choice_variable_t *variable = &walk->network->variables[v];

    walk->seconds += ap_choice_local_seconds(walk->network, v, value, walk->at) -
                     ap_choice_local_seconds(walk->network, v, walk->at[v], walk->at);
    if (variable->bytes != NULL) {
        walk->bytes += variable->bytes[value] - variable->bytes[walk->at[v]];
    }
    walk->at[v] = value;
}

/* The value of a variable that is best beside the others as they are. */
static int best_beside(const walk_t *walk, int v)
{
    const ap_choice_variable_t *variable = &walk->network->variables[v];
    double least = INFINITY;
    int best = walk->at[v];

    for (int x = 0; x < variable->domain; ++x) {
        double bytes = variable->bytes == NULL
                           ? walk->bytes
                           : walk->bytes + variable->bytes[x] - variable->bytes[walk->at[v]];
        double cost =
            ap_choice_local_seconds(walk->network, v, x, walk->at) + penalty(walk->params, bytes);

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
    const ap_choice_network_t *network = walk->network;
    int changed[PROPAGATED + 1], before[PROPAGATED + 1], count = 1;
    double seconds = walk->seconds, bytes = walk->bytes, start = energy(walk);

    changed[0] = v;
    before[0] = walk->at[v];
    set(walk, v, value);
    for (int c = 0; c < count; ++c) {
        for (int i = network->first[changed[c]]; i < network->first[changed[c] + 1]; ++i) {
            const ap_choice_edge_t *edge = &network->edges[network->touching[i]];
            int other = edge->a == changed[c] ? edge->b : edge->a, best;
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
    const ap_choice_network_t *network = walk->network;
    uint64_t drawn = ap_cfn_random(&walk->random);
    int v = (int)((drawn >> 32) % (uint64_t)network->variable_count);
    const ap_choice_variable_t *variable = &network->variables[v];
    int value = (int)((drawn & 0xfffffffU) % (uint64_t)variable->domain);
    double more, bytes = walk->bytes, change;

    if ((drawn >> 28 & 15U) == 0) {
        propagate(walk, v, value, scale);
        return;
    }
    more = ap_choice_local_seconds(network, v, value, walk->at) -
           ap_choice_local_seconds(network, v, walk->at[v], walk->at);
    if (variable->bytes != NULL) {
        bytes += variable->bytes[value] - variable->bytes[walk->at[v]];
    }
    change = more + penalty(walk->params, bytes) - penalty(walk->params, walk->bytes);
    if (takes(walk, change, scale)) {
        walk->at[v] = value;
        walk->seconds += more;
        walk->bytes = bytes;
    }
}

xm_status_t ap_search_mcmc(const ap_choice_network_t *network, const ap_mcmc_params_t *params,
                           int *assignment)
{
    walk_t walk = {.network = network, .params = params, .random = params->seed};
    int64_t timeout = params->proposals / 10 + 1, stale = 0;
    double best;

    if (params->seed == 0 || params->proposals < 0 || !(params->beta >= 0.0)) {
        return xm_error_set(XM_ERR_INVALID_ARGUMENT,
                            "a random walk needs a seed other than 0 and a beta of 0 or more");
    }
    if (network->variable_count == 0) {
        return XM_OK;
    }
    walk.at = malloc((size_t)network->variable_count * sizeof(*walk.at));
    if (walk.at == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "out of memory for a random walk");
    }
    stand_at(&walk, assignment);
    best = energy(&walk);
    for (int64_t i = 0; i < params->proposals; ++i) {
        step(&walk, best > 0.0 ? best : 1.0);
        if (energy(&walk) < best) {
            best = energy(&walk);
            memcpy(assignment, walk.at, (size_t)network->variable_count * sizeof(*walk.at));
            stale = 0;
        } else if (++stale > timeout && i > params->proposals / 2) {
            stand_at(&walk, assignment);
            stale = 0;
        }
    }
    free(walk.at);
    return XM_OK;
}
