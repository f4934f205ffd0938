/* Turns: hops between hosts that wait for those before them in the plan (execute.h). */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "resharding/execute_private.h"

/* Transfers that are remembered for each NIC direction: more are never under way at once. */
enum { RECENT = 16 };

/* What follows while the NICs still carry this much: a turn's note, and the handshake of the first
 * chunk, take about a millisecond on a busy host with NICs of 1 Gbit/s. */
static const uint64_t DEFAULT_AHEAD = 1 << 20;

/* The directions of a host's NICs. */
typedef enum { EGRESS, INGRESS, DIRECTIONS } direction_t;

/* The latest transfers that used a direction of this host's NICs, in a ring. */
typedef struct {
    int64_t transfer;
    uint64_t bytes; /* through that direction */
} user_t;

typedef struct {
    user_t users[RECENT];
    int64_t count; /* of all so far */
} recent_t;

/* Ranks tell only ranks of their own host, so a rank looks at its host's NICs alone. */
typedef struct {
    xm_executor_t *executor;
    int host;
    recent_t recent[DIRECTIONS];
    bool *touches;    /* by route: it has a rank of this host */
    uint32_t *counts; /* by rank: notes awaited from it, then notes for it, so far */
    uint64_t ahead;   /* bytes that may be left when the next one begins */
    bool list;        /* second pass: fill the notes in; first: count them */
} survey_t;

/* One hop between hosts. */
typedef struct {
    int64_t number;
    int end[DIRECTIONS]; /* the rank that sends, the rank that receives */
} crossing_t;

static bool crossing_of(const xm_plan_t *plan, int64_t transfer, int place, crossing_t *crossing)
{
    int64_t count;
    const xm_transfer_t *one = &xm_plan_transfers(plan, &count)[transfer];
    const xm_route_t *route = xm_plan_route(plan, one->route);

    crossing->number = xm_plan_first_hop(plan, transfer) + place;
    crossing->end[EGRESS] = xm_hop_sender(one, route, place);
    crossing->end[INGRESS] = route->ranks[place];
    return xm_plan_host_of(plan, crossing->end[EGRESS]) !=
           xm_plan_host_of(plan, crossing->end[INGRESS]);
}

/*
 * The chunk of a hop whose end frees the NIC at one of its ends, all but for `ahead` bytes. Where
 * the other end is slower, this one has capacity left: the next hop may begin when as much time has
 * passed as the hop would take at this end's own rate (network.h).
 */
static int64_t freeing_chunk(const survey_t *survey, const hop_t *hop, direction_t direction,
                             const crossing_t *crossing, uint64_t ahead)
{
    const xm_network_t *network = xm_plan_network(survey->executor->plan);
    double egress = xm_network_egress(network, xm_network_host_of(network, crossing->end[EGRESS]));
    double ingress =
        xm_network_ingress(network, xm_network_host_of(network, crossing->end[INGRESS]));
    double share = fmin(egress, ingress) / (direction == EGRESS ? egress : ingress);
    int64_t chunk = hop->chunk * survey->executor->tensors[hop->tensor].element_size;
    int64_t at = (int64_t)ceil(share * (double)hop->chunks) - 1 - (int64_t)ahead / chunk;

    return at > 0 ? at : 0;
}

/* Counts or fills in a note that the rank's hop `owner` awaits or gives (after chunk `at`). */
static void add_note(survey_t *survey, int64_t owner, bool awaited, int peer, int64_t successor,
                     int64_t at)
{
    xm_executor_t *executor = survey->executor;
    hop_t *hop = &executor->hops[owner];
    int64_t *count = awaited ? &hop->await_count : &hop->tell_count;
    uint32_t *sequence = &survey->counts[2 * peer + !awaited];

    if (survey->list) {
        executor->notes[(awaited ? hop->awaits : hop->tells) + *count] =
            (note_t){.executor = executor,
                     .op.done = xm_executor_note_done,
                     .peer = peer,
                     .sequence = *sequence,
                     .hop = awaited ? owner : successor,
                     .at = at,
                     .awaited = awaited};
    }
    ++*count;
    *sequence += peer != executor->transport->rank;
}

/* The end of `before`, all but for `ahead` bytes, lets `next` have the NIC: this rank's part in
 * that. */
static void add_turn(survey_t *survey, direction_t direction, const crossing_t *before,
                     const crossing_t *next, uint64_t ahead)
{
    const xm_executor_t *executor = survey->executor;
    int rank = executor->transport->rank;
    int from = before->end[direction], to = next->end[direction];
    int64_t giver = from == rank ? xm_executor_find_hop(executor, before->number) : -1;
    int64_t taker = to == rank ? xm_executor_find_hop(executor, next->number) : -1, at = 0;

    if (before->end[EGRESS] == next->end[EGRESS] && before->end[INGRESS] == next->end[INGRESS]) {
        return; /* one lane, which keeps the order */
    }
    if (giver >= 0) {
        at = freeing_chunk(survey, &executor->hops[giver], direction, before, ahead);
        add_note(survey, giver, false, to, taker, at);
        if (taker >= 0) {
            ++survey->executor->hops[taker].local_turns;
        }
    } else if (taker >= 0) {
        add_note(survey, taker, true, from, taker, at);
    }
}

/* True when the hop uses that direction of this host's NICs. */
static bool is_here(const survey_t *survey, const crossing_t *crossing, direction_t direction)
{
    return xm_plan_host_of(survey->executor->plan, crossing->end[direction]) == survey->host;
}

/* `next` follows the latest transfer through the NIC before which no more than `ahead`
 * bytes are left; those after it may be under way together with `next`. */
static void add_turns(survey_t *survey, direction_t direction, const crossing_t *next)
{
    const xm_plan_t *plan = survey->executor->plan;
    const recent_t *recent = &survey->recent[direction];
    int known = (int)(recent->count < RECENT ? recent->count : RECENT);
    uint64_t ahead = survey->ahead;

    for (int back = 1; back <= known; ++back) {
        const user_t *before = &recent->users[(recent->count - back) % RECENT];
        const xm_route_t *route;
        int64_t count;

        if (before->bytes <= ahead && back < RECENT) {
            ahead -= before->bytes;
            continue;
        }
        route = xm_plan_route(plan, xm_plan_transfers(plan, &count)[before->transfer].route);
        for (int place = 0; place < route->count; ++place) {
            crossing_t crossing;

            if (crossing_of(plan, before->transfer, place, &crossing) &&
                is_here(survey, &crossing, direction)) {
                add_turn(survey, direction, &crossing, next, ahead);
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

static void survey_transfer(survey_t *survey, int64_t transfer)
{
    const xm_plan_t *plan = survey->executor->plan;
    int64_t count;
    const xm_transfer_t *one = &xm_plan_transfers(plan, &count)[transfer];
    const xm_route_t *route = xm_plan_route(plan, one->route);

    if (!survey->touches[one->route] && xm_plan_host_of(plan, one->sender) != survey->host) {
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
                if (!is_here(survey, &crossing, (direction_t)d)) {
                    continue;
                }
                if (pass == 0) {
                    add_turns(survey, (direction_t)d, &crossing);
                } else {
                    remember(&survey->recent[d], transfer, xm_plan_transfer_bytes(plan, transfer));
                }
            }
        }
    }
}

static void survey_plan(survey_t *survey, bool list)
{
    xm_executor_t *executor = survey->executor;
    int64_t count;

    survey->list = list;
    memset(survey->counts, 0, 2 * (size_t)executor->transport->size * sizeof(*survey->counts));
    memset(survey->recent, 0, sizeof(survey->recent));
    for (int64_t i = 0; i < executor->hop_count; ++i) {
        hop_t *hop = &executor->hops[i];

        hop->awaits = executor->note_count;
        hop->tells = hop->awaits + hop->await_count;
        executor->note_count += hop->await_count + hop->tell_count;
        hop->await_count = hop->tell_count = hop->local_turns = 0;
    }
    (void)xm_plan_transfers(executor->plan, &count);
    for (int64_t t = 0; t < count; ++t) {
        survey_transfer(survey, t);
    }
}

static void find_routes(survey_t *survey)
{
    const xm_plan_t *plan = survey->executor->plan;

    for (int r = 0; r < xm_plan_routes(plan); ++r) {
        const xm_route_t *route = xm_plan_route(plan, r);

        for (int i = 0; i < route->count && !survey->touches[r]; ++i) {
            survey->touches[r] = xm_plan_host_of(plan, route->ranks[i]) == survey->host;
        }
    }
}

static xm_status_t allocate_notes(xm_executor_t *executor)
{
    size_t count = 1;

    for (int64_t i = 0; i < executor->hop_count; ++i) {
        count += (size_t)(executor->hops[i].await_count + executor->hops[i].tell_count);
    }
    executor->notes = calloc(count, sizeof(*executor->notes));
    return executor->notes != NULL
               ? XM_OK
               : xm_error_set(XM_ERR_NO_MEMORY, "no memory for the %zu turns of rank %d", count,
                              executor->transport->rank);
}

xm_status_t xm_executor_list_turns(xm_executor_t *executor, uint64_t ahead)
{
    survey_t survey = {.executor = executor, .ahead = ahead > 0 ? ahead : DEFAULT_AHEAD};
    int rank = executor->transport->rank;
    xm_status_t status;

    survey.touches = calloc((size_t)xm_plan_routes(executor->plan) + 1, sizeof(*survey.touches));
    survey.counts = malloc(2 * (size_t)executor->transport->size * sizeof(*survey.counts));
    if (survey.touches == NULL || survey.counts == NULL) {
        status = xm_error_set(XM_ERR_NO_MEMORY, "no memory for the turns of rank %d", rank);
        goto free_survey;
    }
    if (rank < xm_plan_ranks(executor->plan)) {
        survey.host = xm_plan_host_of(executor->plan, rank);
        find_routes(&survey);
        survey_plan(&survey, false);
    }
    status = allocate_notes(executor);
    if (status == XM_OK && rank < xm_plan_ranks(executor->plan)) {
        survey_plan(&survey, true);
    }

free_survey:
    free(survey.counts);
    free(survey.touches);
    return status;
}

/* Starts sending or receiving a note. */
static void post_note(note_t *note)
{
    xm_executor_t *executor = note->executor;
    uint64_t tag = xm_executor_tag(executor) | XM_NOTE_BIT | note->sequence;
    xm_status_t status;

    note->op.arg = note;
    note->busy = true;
    ++executor->signals;
    status = note->awaited ? xm_transport_receive(executor->transport, note->peer, tag, &note->byte,
                                                  1, NULL, &note->op)
                           : xm_transport_send(executor->transport, note->peer, tag, &note->byte, 1,
                                               NULL, &note->op);
    if (status != XM_IN_PROGRESS) {
        xm_executor_note_done(&note->op, status);
    }
}

void xm_executor_reset_turns(xm_executor_t *executor)
{
    for (int64_t i = 0; executor->notes != NULL && i < executor->hop_count; ++i) {
        hop_t *hop = &executor->hops[i];

        hop->turns_left = hop->local_turns + hop->await_count;
        hop->asked = false;
    }
}

bool xm_executor_has_turn(xm_executor_t *executor, hop_t *hop)
{
    if (!hop->asked) {
        hop->asked = true;
        for (int64_t i = 0; i < hop->await_count; ++i) {
            post_note(&executor->notes[hop->awaits + i]);
        }
    }
    return hop->turns_left == 0;
}

void xm_executor_pass_turn(xm_executor_t *executor, const hop_t *hop, int64_t chunk)
{
    for (int64_t i = 0; i < hop->tell_count; ++i) {
        note_t *note = &executor->notes[hop->tells + i];

        if (note->at != chunk) {
            continue;
        }
        if (note->peer == executor->transport->rank) {
            xm_executor_take_turn(executor, &executor->hops[note->hop]);
        } else {
            post_note(note);
        }
    }
}

void xm_executor_cancel_turns(xm_executor_t *executor)
{
    for (int64_t i = 0; executor->signals > 0 && i < executor->note_count; ++i) {
        if (executor->notes[i].busy) {
            xm_transport_cancel(executor->transport, &executor->notes[i].op);
        }
    }
}
