/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NICs that are dealt to the ranks of their host in turn, as the choice of NICs does where all are
 * alike to all ranks (docs/topology.md, rule 3). Networks that are only described know no more of
 * the NICs than their number.
 */
#include "resharding/network/deal.h"

#include <math.h>
#include <stdlib.h>

#include "comm/base.h"

enum { MOST_NICS = 65536 };

/* By host. */
typedef struct {
    int ranks;
    int first; /* rail */
    int rails; /* as many as NICs, but no more than ranks */
    int dealt; /* ranks so far */
} hand_t;

/* Both directions of all rails, and the rail of each rank: there are no more rails than ranks. */
typedef struct {
    hand_t *hands;
    double *egress, *ingress;
    int *rail_of_rank;
} deal_t;

/* Ranks are counted before rails are numbered: of more NICs than ranks some form one rail. */
static void number_rails(const xm_network_params_t *params, int hosts, hand_t *hands)
{
    int rails = 0;

    for (int r = 0; r < params->ranks; ++r) {
        ++hands[params->host_of_rank[r]].ranks;
    }
    for (int h = 0; h < hosts; ++h) {
        hands[h].first = rails;
        hands[h].rails =
            params->nics_per_host < hands[h].ranks ? params->nics_per_host : hands[h].ranks;
        rails += hands[h].rails;
    }
}

/* The part of a host's rate that one of its rails has: the NICs rail, rail + rails, … of it. */
static double share_of(const xm_network_params_t *params, int rail, int rails)
{
    double own = 0.0, all = 0.0;

    for (int n = 0; n < params->nics_per_host; ++n) {
        double weight = params->nic_weights != NULL ? params->nic_weights[n] : 1.0;

        all += weight;
        own += n % rails == rail ? weight : 0.0;
    }
    return own / all;
}

static void deal(const xm_network_params_t *params, int hosts, deal_t *dealt)
{
    number_rails(params, hosts, dealt->hands);
    for (int h = 0; h < hosts; ++h) {
        const hand_t *hand = &dealt->hands[h];
        double egress = params->egress != NULL ? params->egress[h] : params->nic_bandwidth;
        double ingress = params->ingress != NULL ? params->ingress[h] : params->nic_bandwidth;

        for (int r = 0; r < hand->rails; ++r) {
            double share = share_of(params, r, hand->rails);

            dealt->egress[hand->first + r] = egress * share;
            dealt->ingress[hand->first + r] = ingress * share;
        }
    }
    for (int r = 0; r < params->ranks; ++r) {
        hand_t *hand = &dealt->hands[params->host_of_rank[r]];

        dealt->rail_of_rank[r] = hand->first + hand->dealt++ % hand->rails;
    }
}

static xm_status_t check(const xm_network_params_t *params)
{
    if (params->nics_per_host < 0 || params->nics_per_host > MOST_NICS) {
        return XM_INVALID("%d NICs a host; from 0 to %d can be told of", params->nics_per_host,
                          MOST_NICS);
    }
    if (params->rail_of_rank != NULL || params->rail_egress != NULL ||
        params->rail_ingress != NULL) {
        return XM_INVALID("nics_per_host and rails both say which NICs ranks have; give one");
    }
    for (int n = 0; params->nic_weights != NULL && n < params->nics_per_host; ++n) {
        if (!isfinite(params->nic_weights[n]) || params->nic_weights[n] <= 0) {
            return XM_INVALID("NIC %d of every host has the weight %g, which is not positive", n,
                              params->nic_weights[n]);
        }
    }
    return XM_OK;
}

xm_status_t xm_network_deal_nics(xm_network_params_t *params, int hosts, void **memory)
{
    size_t ranks = (size_t)params->ranks;
    deal_t dealt;
    char *block;

    XM_TRY(check(params));
    block = calloc(ranks, sizeof(*dealt.hands) + 2 * sizeof(double) + sizeof(int));
    XM_NEED_MEMORY(block, "the NICs of %d ranks", params->ranks);
    /* One piece, the widest first. */
    dealt.egress = (double *)(void *)block;
    dealt.ingress = dealt.egress + ranks;
    dealt.hands = (hand_t *)(void *)(dealt.ingress + ranks);
    dealt.rail_of_rank = (int *)(void *)(dealt.hands + ranks);
    deal(params, hosts, &dealt);
    params->rail_of_rank = dealt.rail_of_rank;
    params->rail_egress = dealt.egress;
    params->rail_ingress = dealt.ingress;
    *memory = block;
    return XM_OK;
}
