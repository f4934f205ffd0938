#include "planner/search_mcmc.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "planner/cfn_random.h"

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

/* Proposes a value for a variable and takes it or not. */
static void step(walk_t *walk, double scale)
{
    const ap_choice_network_t *network = walk->network;
    uint64_t drawn = ap_cfn_random(&walk->random);
    int v = (int)((drawn >> 32) % (uint64_t)network->variable_count);
    const ap_choice_variable_t *variable = &network->variables[v];
    int value = (int)((drawn & UINT32_MAX) % (uint64_t)variable->domain);
    double more = ap_choice_local_seconds(network, v, value, walk->at) -
                  ap_choice_local_seconds(network, v, walk->at[v], walk->at);
    double bytes = walk->bytes;
    double change;

    if (variable->bytes != NULL) {
        bytes += variable->bytes[value] - variable->bytes[walk->at[v]];
    }
    change = more + penalty(walk->params, bytes) - penalty(walk->params, walk->bytes);
    if (change <= 0.0 ||
        ap_cfn_random_unit(&walk->random) < exp(-walk->params->beta * change / scale)) {
        walk->at[v] = value;
        walk->seconds += more;
        walk->bytes = bytes;
    }
}

xm_status_t ap_search_mcmc(const ap_choice_network_t *network, const ap_mcmc_params_t *params,
                           int *assignment)
{
    walk_t walk = {.network = network, .params = params, .random = params->seed};
    int64_t patience = params->proposals / 10 + 1, stale = 0;
    double best;

    if (params->struct_size < sizeof(*params) || params->seed == 0 || params->proposals < 0 ||
        !(params->beta >= 0.0)) {
        return xm_error_set(XM_ERR_INVALID_ARGUMENT,
                            "a random walk needs AP_MCMC_PARAMS_INIT to start from, a seed other "
                            "than 0 and a beta of 0 or more");
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
        } else if (++stale > patience && i > params->proposals / 2) {
            stand_at(&walk, assignment);
            stale = 0;
        }
    }
    free(walk.at);
    return XM_OK;
}
