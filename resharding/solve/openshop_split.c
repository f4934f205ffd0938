/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Turns amounts into transfers: who sends which range of a group to whom. The flow of the
 * relay bound says only how much each host sends; these ranges carry it out so that every
 * byte takes two hops at most, and no host sends more than its amount, which is what
 * keeps the bound within reach.
 */
#include <stdlib.h>
#include <string.h>

#include "resharding/solve/openshop.h"

enum { MOST_TRANSFERS = 1000000 };

/*
 * How a group of b bytes with n receivers is split when host h is to send sent[h] of its n b copied
 * bytes. Receiver r, which is to relay sent[r], gets a range of sent[r] / (n − 1) bytes from
 * holders and sends it to all others, so no byte takes more than two hops. The ranges are disjoint
 * because the relays send at most (n − 1) b in all; what lies outside them comes to everyone from
 * holders.
 */
typedef struct {
    const xm_shop_t *shop;
    xm_shop_transfers_t *transfers;
    int64_t group;
    const int64_t *sent; /* by holder, then by receiver */
    int64_t *quota;      /* by host: what it still has to send as a holder */
    int64_t *got;        /* by host: how far the direct range was given to it */
} split_t;

/*
 * Appends a transfer and marks its parent as one that feeds others. The limit on
 * transfers is what makes openshop decline a problem before its memory grows without
 * bounds.
 */
static xm_status_t add_transfer(split_t *split, int sender, int receiver, int64_t first,
                                int64_t bytes, int64_t parent)
{
    xm_shop_transfers_t *transfers = split->transfers;

    if (transfers->count == MOST_TRANSFERS) {
        return XM_UNSUPPORTED("open shop schedules have at most %d transfers between hosts; %d "
                              "hosts with demands of up to %d receivers need more",
                              MOST_TRANSFERS, split->shop->hosts,
                              split->shop->group[split->group].hosts->receiver_count);
    }
    XM_NEED_MEMORY(XM_ARRAY_ROOM(transfers->at, transfers->capacity, transfers->count),
                   "%lld transfers", (long long)transfers->count + 1);
    transfers->at[transfers->count++] =
        (xm_shop_transfer_t){split->group, first, bytes, parent, sender, receiver, false};
    if (parent >= 0) {
        transfers->at[parent].feeds = true;
    }
    return XM_OK;
}

/* A holder sends [first, first + bytes) to `relay`, which sends it to all others. The
 * parent stands before its children, as the recorder requires. */
static xm_status_t add_relayed(split_t *split, int holder, int relay, int64_t first, int64_t bytes)
{
    const xm_demand_t *hosts = split->shop->group[split->group].hosts;
    int64_t parent = split->transfers->count;
    XM_TRY(add_transfer(split, holder, relay, first, bytes, -1));

    for (int i = 0; i < hosts->receiver_count; ++i) {
        if (hosts->receivers[i] != relay) {
            XM_TRY(add_transfer(split, relay, hosts->receivers[i], first, bytes, parent));
        }
    }
    return XM_OK;
}

/*
 * Gives every relay its range; *end is where the ranges end. A relay's range is what it
 * is to send over the number of others, rounded up over the sum, so that rounding costs a
 * byte in all and not a byte for each relay. Holders are used up in order; the flow gave
 * them at least b bytes together.
 */
static xm_status_t split_relayed(split_t *split, int64_t *end)
{
    const xm_demand_t *hosts = split->shop->group[split->group].hosts;
    int64_t others = hosts->receiver_count - 1, relayed = 0, at = 0;
    xm_status_t status = XM_OK;
    int holder = 0;

    for (int i = 0; status == XM_OK && others > 0 && i < hosts->receiver_count; ++i) {
        int relay = hosts->receivers[i];
        int64_t range_end;

        relayed += split->sent[hosts->holder_count + i];
        range_end = (relayed + others - 1) / others;
        while (status == XM_OK && at < range_end) {
            int64_t bytes = range_end - at;

            while (split->quota[hosts->holders[holder]] == 0) {
                ++holder;
            }
            if (split->quota[hosts->holders[holder]] < bytes) {
                bytes = split->quota[hosts->holders[holder]];
            }
            split->quota[hosts->holders[holder]] -= bytes;
            status = add_relayed(split, hosts->holders[holder], relay, at, bytes);
            at += bytes;
        }
    }
    *end = at;
    return status;
}

/* Gives every receiver what is not relayed. */
static xm_status_t split_direct(split_t *split)
{
    const xm_shop_group_t *group = &split->shop->group[split->group];
    const int *holders = group->hosts->holders;
    xm_status_t status = XM_OK;
    int from = 0;

    for (int i = 0; i < group->hosts->receiver_count; ++i) {
        int receiver = group->hosts->receivers[i];

        /* Holders without quota at the front of the list need not be looked at again. */
        while (from < group->hosts->holder_count && split->quota[holders[from]] == 0) {
            ++from;
        }
        for (int j = from; status == XM_OK && j < group->hosts->holder_count &&
                           split->got[receiver] < group->bytes;
             ++j) {
            int64_t bytes = group->bytes - split->got[receiver];

            if (split->quota[holders[j]] == 0) {
                continue;
            }
            bytes = split->quota[holders[j]] < bytes ? split->quota[holders[j]] : bytes;
            status = add_transfer(split, holders[j], receiver, split->got[receiver], bytes, -1);
            split->quota[holders[j]] -= bytes;
            split->got[receiver] += bytes;
        }
    }
    return status;
}

/* Splits one group: first the relayed ranges, then the rest of it for everyone from `end`
 * on. */
static xm_status_t split_group(split_t *split)
{
    const xm_demand_t *hosts = split->shop->group[split->group].hosts;
    xm_status_t status;
    int64_t end;

    for (int i = 0; i < hosts->holder_count; ++i) {
        split->quota[hosts->holders[i]] = split->sent[i];
    }
    status = split_relayed(split, &end);
    for (int i = 0; i < hosts->receiver_count; ++i) {
        split->got[hosts->receivers[i]] = end;
    }
    return status < 0 ? status : split_direct(split);
}

/* Splits all groups. On failure the transfers are freed and the list is left empty. */
xm_status_t xm_shop_split(const xm_shop_t *shop, const int64_t *sent,
                          xm_shop_transfers_t *transfers)
{
    split_t split = {.shop = shop, .transfers = transfers};
    xm_status_t status = XM_OK;

    *transfers = (xm_shop_transfers_t){0};
    split.quota = calloc((size_t)shop->hosts, sizeof(*split.quota));
    split.got = calloc((size_t)shop->hosts, sizeof(*split.got));
    if (split.quota == NULL || split.got == NULL) {
        status = XM_NO_MEMORY("%d hosts", shop->hosts);
    }
    for (split.group = 0; status == XM_OK && split.group < shop->groups; ++split.group) {
        split.sent = &sent[shop->group[split.group].first_entry];
        status = split_group(&split);
    }
    free(split.got);
    free(split.quota);
    if (status < 0) {
        free(transfers->at);
        *transfers = (xm_shop_transfers_t){0};
    }
    return status;
}
