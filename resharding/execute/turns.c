/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Turns: hops between hosts that wait for those before them in the plan (execute.h).
 *
 * At creation the plan is read once: for each direction of this rank's rail, which transfer has
 * to be how far before which other may begin. Both ends of that may be hops of this rank; otherwise
 * the turn is a signal between two ranks of the rail. All ranks read it alike, so the turns between
 * two of them are numbered, and nothing else need be said about them.
 *
 * In a run a hop counts what it still waits for: at zero it may begin. There is no other state,
 * because a turn is passed once and never taken back; a failed run cancels the signals.
 */
#include "resharding/execute/turns.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Transfers that are remembered for each NIC direction: more are never under way at once. */
enum { RECENT = 16 };

/* What follows while the NICs still carry this much: a turn's signal, and the handshake of the
 * first chunk, take about a millisecond on a busy host. Slower NICs than those of 1 Gbit/s get this
 * many seconds of their rate, as much more would leave their messages without an order. */
static const double AHEAD_BYTES = 1 << 20, AHEAD_SECONDS = 8e-3;

/* "Your turn", from one rank to another of its rail; or, with this rank as the peer, from hop to
 * hop. */
typedef struct {
    signal_t signal;
    turns_t *turns;
    int64_t hop;       /* of this rank, that has its turn */
    uint32_t sequence; /* among those of the pair of ranks */
    int64_t at;        /* given: after this chunk */
    char byte;         /* what is sent */
} turn_t;

/* What a hop of this rank has to do with turns. */
typedef struct {
    int64_t awaits, await_count; /* turns of other ranks that it waits for */
    int64_t tells, tell_count;   /* turns it gives when it is about to end */
    int64_t local;               /* hops of this rank that it waits for */
    int64_t left;                /* of all that it waits for, in this run */
    bool asked;                  /* those of other ranks are expected */
} gate_t;

struct turns {
    xm_executor_t *executor;
    gate_t *gates; /* of all hops of this rank */
    turn_t *turns; /* those of a hop stand together */
    int64_t count;
    bool kept; /* in this run */
};

/* The directions of a rail. */
typedef enum { EGRESS, INGRESS, DIRECTIONS } direction_t;

/* The latest transfers that used a direction of this rail, in a ring. */
typedef struct {
    int64_t transfer;
    uint64_t bytes; /* through that direction */
} user_t;

typedef struct {
    user_t users[RECENT];
    int64_t count; /* of all so far */
} recent_t;

/* Ranks tell only ranks of their own rail, so a rank looks at its rail alone. */
typedef struct {
    turns_t *turns;
    const xm_executor_t *executor;
    const xm_network_t *network;
    int rail;
    recent_t recent[DIRECTIONS];
    bool *touches;    /* by route: it has a rank of this rail */
    uint32_t *counts; /* by rank: turns awaited from it, then turns for it, so far */
    uint64_t ahead;   /* bytes that may be left when the next one begins */
    bool list;        /* second pass: fill the turns in; first: count them */
} turn_builder_t;

/* One hop between hosts. */
typedef struct {
    int64_t number;
    int end[DIRECTIONS]; /* the rank that sends, the rank that receives */
} crossing_t;

static bool crossing_of(const xm_plan_t *plan, int64_t transfer, int place, crossing_t *crossing)
{
    const xm_transfer_t one = xm_plan_transfer(plan, transfer);
    const xm_route_t *route = xm_plan_route(plan, one.route);

    crossing->number = xm_plan_first_hop(plan, transfer) + place;
    crossing->end[EGRESS] = xm_hop_sender(&one, route, place);
    crossing->end[INGRESS] = route->ranks[place];
    return xm_plan_host_of(plan, crossing->end[EGRESS]) !=
           xm_plan_host_of(plan, crossing->end[INGRESS]);
}

/*
 * The chunk of a hop whose end frees the rail at one of its ends, all but for `ahead` bytes. Where
 * the other end is slower, this one has capacity left: the next hop may begin when as much time has
 * passed as the hop would take at this end's own rate (network.h).
 */
static int64_t freeing_chunk(const turn_builder_t *builder, const hop_t *hop, direction_t direction,
                             const crossing_t *crossing, uint64_t ahead)
{
    const xm_network_t *network = builder->network;
    double egress =
        xm_network_rail_egress(network, xm_network_rail_of(network, crossing->end[EGRESS]));
    double ingress =
        xm_network_rail_ingress(network, xm_network_rail_of(network, crossing->end[INGRESS]));
    double share = fmin(egress, ingress) / (direction == EGRESS ? egress : ingress);
    int64_t chunk = hop->chunk * builder->executor->tensors[hop->tensor].element_size;
    int64_t at = (int64_t)ceil(share * (double)hop->chunks) - 1 - (int64_t)ahead / chunk;

    return at > 0 ? at : 0;
}

static void on_turn(signal_t *signal);

/* Counts or fills in a turn that the rank's hop `owner` awaits or gives (after chunk `at`). */
static void add_turn(turn_builder_t *builder, int64_t owner, bool awaited, int peer,
                     int64_t successor, int64_t at)
{
    turns_t *turns = builder->turns;
    gate_t *gate = &turns->gates[owner];
    int64_t *count = awaited ? &gate->await_count : &gate->tell_count;
    uint32_t *sequence = &builder->counts[2 * peer + !awaited];

    if (builder->list) {
        turn_t *turn = &turns->turns[(awaited ? gate->awaits : gate->tells) + *count];

        *turn = (turn_t){
            .turns = turns, .hop = awaited ? owner : successor, .sequence = *sequence, .at = at};
        turn->signal = (signal_t){
            .owner = turn, .ended = awaited ? on_turn : NULL, .peer = peer, .sends = !awaited};
    }
    ++*count;
    *sequence += peer != builder->executor->transport->rank;
}

/* The end of `before`, all but for `ahead` bytes, lets `next` have the rail: this rank's part in
 * that. */
static void order_crossings(turn_builder_t *builder, direction_t direction,
                            const crossing_t *before, const crossing_t *next, uint64_t ahead)
{
    const xm_executor_t *executor = builder->executor;
    int rank = executor->transport->rank;
    int from = before->end[direction], to = next->end[direction];
    int64_t giver = from == rank ? xm_executor_find_hop(executor, before->number) : -1;
    int64_t taker = to == rank ? xm_executor_find_hop(executor, next->number) : -1, at = 0;

    if (before->end[EGRESS] == next->end[EGRESS] && before->end[INGRESS] == next->end[INGRESS]) {
        return; /* one lane, which keeps the order */
    }
    if (giver >= 0) {
        at = freeing_chunk(builder, &executor->hops[giver], direction, before, ahead);
        add_turn(builder, giver, false, to, taker, at);
        if (taker >= 0) {
            ++builder->turns->gates[taker].local;
        }
    } else if (taker >= 0) {
        add_turn(builder, taker, true, from, taker, at);
    }
}

/* True when the hop uses that direction of this rail. */
static bool is_here(const turn_builder_t *builder, const crossing_t *crossing,
                    direction_t direction)
{
    return xm_network_rail_of(builder->network, crossing->end[direction]) == builder->rail;
}

/* `next` follows the latest transfer through the rail before which no more than `ahead`
 * bytes are left; those after it may be under way together with `next`. */
static void add_turns(turn_builder_t *builder, direction_t direction, const crossing_t *next)
{
    const xm_plan_t *plan = builder->executor->plan;
    const recent_t *recent = &builder->recent[direction];
    int known = (int)(recent->count < RECENT ? recent->count : RECENT);
    uint64_t ahead = builder->ahead;

    for (int back = 1; back <= known; ++back) {
        const user_t *before = &recent->users[(recent->count - back) % RECENT];
        const xm_route_t *route;

        if (before->bytes <= ahead && back < RECENT) {
            ahead -= before->bytes;
            continue;
        }
        route = xm_plan_route(plan, xm_plan_transfer(plan, before->transfer).route);
        for (int place = 0; place < route->count; ++place) {
            crossing_t crossing;

            if (crossing_of(plan, before->transfer, place, &crossing) &&
                is_here(builder, &crossing, direction)) {
                order_crossings(builder, direction, &crossing, next, ahead);
            }
        }
        return;
    }
}

static void remember(recent_t *recent, int64_t transfer, uint64_t bytes)
{
    user_t *latest = &recent->users[(recent->count + RECENT - 1) % RECENT];

    if (recent->count == 0 || latest->transfer != transfer) {
        latest = &recent->users[recent->count++ % RECENT];
        *latest = (user_t){.transfer = transfer};
    }
    latest->bytes += bytes;
}

static void add_transfer(turn_builder_t *builder, int64_t transfer)
{
    const xm_plan_t *plan = builder->executor->plan;
    const xm_transfer_t one = xm_plan_transfer(plan, transfer);
    const xm_route_t *route = xm_plan_route(plan, one.route);

    if (!builder->touches[one.route] &&
        xm_network_rail_of(builder->network, one.sender) != builder->rail) {
        return;
    }
    /* Hops of one transfer do not wait for each other: first what they wait for, then they. */
    for (int pass = 0; pass < 2; ++pass) {
        for (int place = 0; place < route->count; ++place) {
            crossing_t crossing;

            if (!crossing_of(plan, transfer, place, &crossing)) {
                continue;
            }
            for (int d = 0; d < DIRECTIONS; ++d) {
                if (!is_here(builder, &crossing, (direction_t)d)) {
                    continue;
                }
                if (pass == 0) {
                    add_turns(builder, (direction_t)d, &crossing);
                } else {
                    remember(&builder->recent[d], transfer, xm_plan_transfer_bytes(plan, transfer));
                }
            }
        }
    }
}

/* Where the turns of each hop begin, after the first pass, which has counted them. */
static void number_turns(turns_t *turns)
{
    turns->count = 0;
    for (int64_t i = 0; i < turns->executor->hop_count; ++i) {
        gate_t *gate = &turns->gates[i];

        gate->awaits = turns->count;
        gate->tells = gate->awaits + gate->await_count;
        turns->count += gate->await_count + gate->tell_count;
        gate->await_count = gate->tell_count = gate->local = 0;
    }
}

static void add_plan(turn_builder_t *builder, bool list)
{
    const xm_executor_t *executor = builder->executor;
    int64_t count = xm_plan_transfer_count(executor->plan);
    int rank = executor->transport->rank;

    builder->list = list;
    memset(builder->counts, 0, 2 * (size_t)executor->transport->size * sizeof(*builder->counts));
    memset(builder->recent, 0, sizeof(builder->recent));
    for (int64_t t = xm_plan_next_transfer(executor->plan, rank, 0); t < count;
         t = xm_plan_next_transfer(executor->plan, rank, t + 1)) {
        add_transfer(builder, t);
    }
}

static void find_routes(turn_builder_t *builder)
{
    const xm_plan_t *plan = builder->executor->plan;

    for (int r = 0; r < xm_plan_routes(plan); ++r) {
        const xm_route_t *route = xm_plan_route(plan, r);

        for (int i = 0; i < route->count && !builder->touches[r]; ++i) {
            builder->touches[r] =
                xm_network_rail_of(builder->network, route->ranks[i]) == builder->rail;
        }
    }
}

static xm_status_t no_memory(const xm_executor_t *executor)
{
    return XM_NO_MEMORY("the turns of rank %d", executor->transport->rank);
}

/* What the rail's slower direction may have left. */
static uint64_t default_ahead(const turn_builder_t *builder)
{
    double rate = fmin(xm_network_rail_egress(builder->network, builder->rail),
                       xm_network_rail_ingress(builder->network, builder->rail));

    return (uint64_t)fmin(AHEAD_BYTES, fmax(1, AHEAD_SECONDS * rate));
}

/* Reads the plan twice: first to count the turns, then to fill them in. */
static xm_status_t list_turns(turns_t *turns, uint64_t ahead)
{
    xm_executor_t *executor = turns->executor;
    turn_builder_t builder = {.turns = turns, .executor = executor, .ahead = ahead};
    int rank = executor->transport->rank;
    xm_status_t status = XM_OK;

    builder.touches = calloc((size_t)xm_plan_routes(executor->plan) + 1, sizeof(*builder.touches));
    builder.counts = malloc(2 * (size_t)executor->transport->size * sizeof(*builder.counts));
    if (builder.touches == NULL || builder.counts == NULL) {
        status = no_memory(executor);
    } else if (rank < xm_plan_ranks(executor->plan)) {
        builder.network = xm_plan_network(executor->plan);
        builder.rail = xm_network_rail_of(builder.network, rank);
        builder.ahead = ahead > 0 ? ahead : default_ahead(&builder);
        find_routes(&builder);
        add_plan(&builder, false);
        number_turns(turns);
        turns->turns = calloc((size_t)turns->count + 1, sizeof(*turns->turns));
        if (turns->turns == NULL) {
            status = no_memory(executor);
        } else {
            add_plan(&builder, true);
        }
    }
    free(builder.counts);
    free(builder.touches);
    return status;
}

xm_status_t xm_turns_create(xm_executor_t *executor, uint64_t ahead, turns_t **turns)
{
    turns_t *created = calloc(1, sizeof(*created));
    xm_status_t status;

    if (created == NULL) {
        return no_memory(executor);
    }
    created->executor = executor;
    created->gates = calloc((size_t)executor->hop_count + 1, sizeof(*created->gates));
    status = created->gates != NULL ? list_turns(created, ahead) : no_memory(executor);
    if (status < 0) {
        xm_turns_destroy(created);
        return status;
    }
    *turns = created;
    return XM_OK;
}

void xm_turns_destroy(turns_t *turns)
{
    if (turns != NULL) {
        xm_executor_let_go(turns->executor, turns->turns); /* each has the byte of a message */
        free(turns->gates);
        free(turns);
    }
}

/* ---- a run ---------------------------------------------------------------------------------- */

/* Starts sending or receiving a turn. */
static void post_turn(turn_t *turn)
{
    xm_signal_post(turn->turns->executor, &turn->signal, XM_TURN_BIT | turn->sequence, &turn->byte,
                   1);
}

/* One thing less that the hop waits for. Its lane may be at another hop; looking at it is cheap. */
static void take_turn(turns_t *turns, int64_t hop)
{
    if (--turns->gates[hop].left == 0) {
        xm_executor_revisit(&turns->executor->lanes[turns->executor->hops[hop].lane]);
    }
}

/* Another rank has passed a turn to a hop of this one. */
static void on_turn(signal_t *signal)
{
    const turn_t *turn = signal->owner;

    take_turn(turn->turns, turn->hop);
}

static gate_t *gate_of(const turns_t *turns, const hop_t *hop)
{
    return &turns->gates[hop - turns->executor->hops];
}

void xm_turns_start(turns_t *turns, bool kept)
{
    turns->kept = kept;
    for (int64_t i = 0; i < turns->executor->hop_count; ++i) {
        gate_t *gate = &turns->gates[i];

        gate->left = kept ? gate->local + gate->await_count : 0;
        gate->asked = !kept;
    }
}

bool xm_turns_may_begin(turns_t *turns, const hop_t *hop)
{
    gate_t *gate = gate_of(turns, hop);

    if (!gate->asked) {
        gate->asked = true;
        for (int64_t i = 0; i < gate->await_count; ++i) {
            post_turn(&turns->turns[gate->awaits + i]);
        }
    }
    return gate->left == 0;
}

bool xm_turns_waits(const turns_t *turns, const hop_t *hop)
{
    return gate_of(turns, hop)->left > 0;
}

/* A hop has few turns to give, each after a chunk of its own, so they are all looked at. */
void xm_turns_moved(turns_t *turns, const hop_t *hop, int64_t chunk)
{
    const gate_t *gate = gate_of(turns, hop);

    for (int64_t i = 0; i < gate->tell_count && turns->kept; ++i) {
        turn_t *turn = &turns->turns[gate->tells + i];

        if (turn->at != chunk) {
            continue;
        }
        if (turn->signal.peer == turns->executor->transport->rank) {
            take_turn(turns, turn->hop);
        } else {
            post_turn(turn);
        }
    }
}

/* Only those in flight are busy; a turn from hop to hop of this rank never is. */
bool xm_turns_next(const turns_t *turns, int64_t *next, xm_turn_t *turn)
{
    while (*next < turns->count) {
        const turn_t *found = &turns->turns[(*next)++];

        if (found->signal.busy) {
            turn->hop = found->signal.sends ? NULL : &turns->executor->hops[found->hop];
            turn->peer = found->signal.peer;
            return true;
        }
    }
    return false;
}
