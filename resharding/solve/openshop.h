/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file openshop.h
 * The parts of the `openshop` scheduler (docs/openshop.md). Not installed.
 *
 * Demands with the same holders and receivers form a group, whose bytes are the demands' laid end
 * to end. A group is split into transfers: ranges of its bytes that go from one host to one other.
 * A transfer is either sent by a holder (parent −1) or relayed by the receiver of its parent, which
 * covers exactly the same range. Builders of a schedule hand parts of transfers to the recorder in
 * an order of their choice, and the recorder gives each the earliest
 * start behind what was recorded before it.
 */
#pragma once

#include "resharding/solve/problem.h"

typedef struct xm_shop_group {
    const xm_demand_t *hosts; /* any of its demands, for holders and receivers */
    int64_t bytes;
    int64_t first_member, members; /* its demands: entries of `member` */
    int64_t first_entry; /* in an array with an entry for each holder and then each receiver */
    bool relayed;        /* further copies come from receivers only, where there are relays */
} xm_shop_group_t;

typedef struct xm_shop {
    const xm_problem_t *problem;
    const xm_network_t *network;
    int hosts;
    int64_t groups;
    int64_t entries; /* holders and receivers of all groups */
    xm_shop_group_t *group;
    int64_t *member;       /* demands by group */
    int64_t *offset;       /* by entry of `member`: where the demand starts in its group's bytes */
    int64_t most_bytes;    /* of a hop */
    int64_t ingress_bytes; /* most that a host receives */
    int64_t ingress_ns;    /* the busiest ingress, were it never idle */
} xm_shop_t;

xm_status_t xm_shop_create(const xm_problem_t *problem, xm_shop_t *shop);
void xm_shop_free(xm_shop_t *shop);

/*
 * Whether it suffices when each host's egress is busy for ns[host] at most, with relays or without.
 * When it does: bytes that each host sends of each group, at [group * hosts + host].
 */
xm_status_t xm_shop_fits(const xm_shop_t *shop, const int64_t *ns, bool relays, bool *fits,
                         int64_t *sent);

/*
 * The earliest time that suffices as the makespan, not before `from_ns`, when hosts with
 * fixed[host] > 0 have that time instead (NULL: none). When that is later than `from_ns` and `cut`
 * is not NULL, cut[host] marks hosts of which some must be busy for all of it; otherwise none.
 */
xm_status_t xm_shop_earliest(const xm_shop_t *shop, int64_t from_ns, bool relays,
                             const int64_t *fixed, int64_t *ns, bool *cut);

/*
 * Times for the hosts' egresses that suffice, the longest as short as can be, then the next ones.
 * Those below `least_ns` are not made shorter.
 */
xm_status_t xm_shop_balance(const xm_shop_t *shop, int64_t least_ns, bool relays, int64_t *ns);

typedef struct xm_shop_transfer {
    int64_t group;
    int64_t first, bytes; /* of the group's bytes */
    int64_t parent;       /* −1: `sender` is a holder */
    int sender, receiver;
    bool feeds; /* is the parent of others */
} xm_shop_transfer_t;

typedef struct xm_shop_transfers {
    xm_shop_transfer_t *at;
    int64_t count;
    size_t capacity;
} xm_shop_transfers_t;

/* Splits the groups by what each host sends of each (xm_shop_fits()). Parents come before children.
 */
xm_status_t xm_shop_split(const xm_shop_t *shop, const int64_t *sent,
                          xm_shop_transfers_t *transfers);

/* ---- recording --------------------------------------------------------------------------------
 */

typedef struct xm_recorder xm_recorder_t;

xm_status_t xm_recorder_create(const xm_shop_t *shop, const xm_shop_transfers_t *transfers,
                               xm_recorder_t **recorder);
void xm_recorder_destroy(xm_recorder_t *recorder);

/*
 * Records bytes [first, first + bytes) of a transfer (counted from its start). Parts of one
 * transfer come in rising order, and a child's after the parent's.
 */
xm_status_t xm_recorder_add(xm_recorder_t *recorder, int64_t transfer, int64_t first,
                            int64_t bytes);

/* When the host's NIC is free. */
int64_t xm_recorder_egress_free(const xm_recorder_t *recorder, int host);
int64_t xm_recorder_ingress_free(const xm_recorder_t *recorder, int host);

/* When the NICs of both, and the uplinks between them, are free. */
int64_t xm_recorder_free_for(const xm_recorder_t *recorder, int sender, int receiver);

/*
 * What of a relayed transfer can follow: *ready_ns is when the byte at `first` has arrived at the
 * relay, *bytes how many arrive with it (0: not recorded yet).
 */
void xm_recorder_source(xm_recorder_t *recorder, int64_t transfer, int64_t first, int64_t *ready_ns,
                        int64_t *bytes);

int64_t xm_recorder_makespan(const xm_recorder_t *recorder);

/* Hands over the hops, sorted by start. */
xm_status_t xm_recorder_take(xm_recorder_t *recorder, xm_hop_t **hops, int64_t *count);

/* ---- building ---------------------------------------------------------------------------------
 */

/* A piece of the pattern: bytes [first, first + bytes) of one turn's part of a transfer. */
typedef struct xm_turn_piece {
    int64_t transfer;
    int64_t first, bytes;
    int64_t start; /* in bytes at the common rate */
} xm_turn_piece_t;

/*
 * Orders one part of each transfer (weight[t] bytes; 0: none) such that no host sends or receives
 * two at a time and the whole lasts no longer than the busiest direction: preemptive open shop, at
 * a common rate. Pieces by rising start.
 */
xm_status_t xm_shop_colour(const xm_shop_t *shop, const xm_shop_transfers_t *transfers,
                           const int64_t *weight, xm_turn_piece_t **pieces, int64_t *count);

/*
 * Records all transfers by a list rule that knows any rates: the NIC direction that would be done
 * last, were it never idle again, takes its next piece, from or to the partner that it delays
 * least. A piece lasts `piece_ns` at most, on the slower side.
 */
xm_status_t xm_shop_list(const xm_shop_t *shop, const xm_shop_transfers_t *transfers,
                         int64_t piece_ns, int64_t piece_bytes, xm_recorder_t *recorder);

/*
 * Changes an order of transfers, each of which it names once for every equal part of its own: were
 * a small share of each transfer sent again and again in that order, a turn would take as little
 * longer than its busiest direction as `steps` of work can find. Any rates.
 */
xm_status_t xm_shop_cycle(const xm_shop_t *shop, const xm_shop_transfers_t *transfers,
                          uint64_t seed, int64_t steps, int64_t entries, int64_t *order);

/*
 * Transfers of whole pieces of at most `piece_bytes`, in the order in which they are to be
 * recorded, each entire: for problems whose split has too many transfers. Rates are not looked at.
 */
xm_status_t xm_shop_distribution(const xm_shop_t *shop, int64_t piece_bytes, uint64_t seed,
                                 xm_shop_transfers_t *transfers);

/* ---- schedules of one problem -----------------------------------------------------------------
 */

/* The problem, its split, and the best schedule so far. */
typedef struct xm_openshop {
    xm_shop_t shop;
    xm_shop_transfers_t transfers;
    const xm_openshop_params_t *params;
    int64_t piece_bytes;
    int64_t most_hops, usual_hops;
    int64_t bound_ns;
    bool relays;
    bool many;           /* transfers, so that it was not split */
    xm_recorder_t *best; /* NULL: none yet */
} xm_openshop_t;

enum { XM_SHOP_SOME = 500 /* transfers of a split with relays; with more, turns need more hops */ };

/* Makespans over the shortest possible: good, not worth more work, and worth any. */
static const double XM_SHOP_GOOD = 1.004, XM_SHOP_FAIR = 1.01, XM_SHOP_POOR = 1.03;

/* True when the best schedule so far takes at most `factor` times the bound. */
bool xm_openshop_within(const xm_openshop_t *o, double factor);

/* Keeps the shorter schedule of the two, the earlier one of equals. It takes the recorder over. */
void xm_openshop_offer(xm_openshop_t *o, xm_recorder_t *recorder);

/* Offers schedules of equal turns, for equal rates; without relays there is one turn, whose
 * colouring is optimal. */
xm_status_t xm_openshop_turns(xm_openshop_t *o);

/* Offers schedules that repeat a cyclic order, in which the longest transfer comes in so many
 * parts. */
xm_status_t xm_openshop_cycle(xm_openshop_t *o, int parts);

/* ---- racks -------------------------------------------------------------------------------------
 */

/* A problem whose demands are those of another, one for each rack with receivers: from holders in
 * that rack, or else from all. */
typedef struct xm_rack_problem {
    xm_problem_t problem;
    int64_t *origin;      /* by demand: the other problem's */
    xm_demand_t *demands; /* the problem's */
    int *hosts;           /* their lists */
} xm_rack_problem_t;

/* Marks the groups that come to a rack from others: to come once, and be relayed inside. */
void xm_shop_enter_once(xm_shop_t *shop);

xm_status_t xm_rack_problem_create(const xm_problem_t *problem, xm_rack_problem_t *racks);
void xm_rack_problem_free(xm_rack_problem_t *racks);
