/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/fault/campaign_play.h"

#include <stdio.h>

#include "tests/fault/counting_transport.h"
#include "resharding/execute/execute.h"
#include "xm_test.h"

static const int64_t second = INT64_C(1000000000);

static xm_plan_t *plan_on(const scene_t *scene, const char *shape, const char *ranks,
                          const char *src_spec, const char *dst_spec)
{
    xm_plan_params_t params = XM_PLAN_PARAMS_INIT;
    const int64_t sizes[2] = {ROWS, COLUMNS};
    const char *texts[2] = {src_spec, dst_spec};
    xm_layout_t *layouts[2];
    xm_plan_t *plan;

    for (int side = 0; side < 2; ++side) {
        xm_mesh_t *mesh;
        xm_spec_t spec;

        ck_assert_xm_ok(xm_mesh_parse(shape, ranks, 0, &mesh));
        ck_assert_xm_ok(xm_spec_parse(texts[side], &spec));
        ck_assert_xm_ok(xm_layout_create(mesh, &spec, XM_PARTITION_EVEN, sizes, &layouts[side]));
        xm_mesh_destroy(mesh);
    }
    params.src = layouts[0];
    params.dst = layouts[1];
    params.element_size = 4;
    params.strategy = scene->strategy;
    params.network = scene->network;
    params.chunk_bytes = 256;
    ck_assert_xm_ok(xm_plan_create(&params, &plan));
    xm_layout_destroy(layouts[0]);
    xm_layout_destroy(layouts[1]);
    return plan;
}

void scene_create(scene_t *scene)
{
    xm_network_params_t params = XM_NETWORK_PARAMS_INIT;
    int hosts[RANKS];

    for (int r = 0; r < RANKS; ++r) {
        hosts[r] = r / scene->per_host;
    }
    params.ranks = RANKS;
    params.host_of_rank = hosts;
    params.nic_bandwidth = 1e9;
    params.nic_latency = 2e-6;
    params.host_bandwidth = 1e10;
    params.host_latency = 2e-7;
    ck_assert_xm_ok(xm_network_create(&params, &scene->network));
    scene->plan = plan_on(scene, scene->per_host == 3 ? "2x3" : "3x2", "0-5", scene->src_spec,
                          scene->dst_spec);
    for (int gone = 0; gone < RANKS; ++gone) {
        char ranks[32] = "";

        for (int r = 0; r < RANKS; ++r) {
            size_t length = strlen(ranks);

            if (r != gone) {
                (void)snprintf(ranks + length, sizeof(ranks) - length, "%s%d",
                               length > 0 ? "," : "", r);
            }
        }
        scene->without[gone] = plan_on(scene, "5", ranks, "S0R", "RS0");
    }
}

void scene_destroy(scene_t *scene)
{
    xm_plan_destroy(scene->plan);
    for (int gone = 0; gone < RANKS; ++gone) {
        xm_plan_destroy(scene->without[gone]);
    }
    xm_network_destroy(scene->network);
}

static int64_t now(const play_t *play)
{
    return xm_sim_fabric_now(play->job.fabric) + play->idle_ns;
}

int play_host_of(const play_t *play, int rank)
{
    return rank / play->scene->per_host;
}

/* Whether a datagram gets from one rank to another. */
static bool reaches(play_t *play, int rank, int peer)
{
    int a = play_host_of(play, rank), b = play_host_of(play, peer);
    bool cut = false;

    if (play->injected && a != b) {
        switch (play->kind) {
        case CUT:
            cut = a + b == play->victim + play->other && (a == play->victim || b == play->victim);
            break;
        case DEAF:
            cut = b == play->victim;
            break;
        case MUTE:
            cut = a == play->victim;
            break;
        case FLAP:
            cut = !play->restored && (a == play->victim || b == play->victim);
            break;
        case LOSS:
            cut = random_int(&play->random, 0, 4) == 0;
            break;
        default:
            break;
        }
    }
    return !play->slots[peer].dead && !cut;
}

/* The word goes round; a rank acts on it at its next turn after it has come. */
static void tell(play_t *play, const slot_t *by, xm_status_t status, const char *text)
{
    for (int r = 0; r < RANKS; ++r) {
        slot_t *slot = &play->slots[r];

        if (slot != by && slot->told_at == INT64_MAX && reaches(play, by->rank, r)) {
            slot->told_at = now(play) + random_int(&play->random, 0, 20000);
            slot->told = status;
            slot->told_blamed = by->blamed;
            slot->told_by = by->by;
            (void)snprintf(slot->told_text, sizeof(slot->told_text), "%s", text);
        }
    }
}

/* The group is of no use to a rank any more: it ends what is under way, as a worker does. */
static void leave(play_t *play, slot_t *slot, xm_status_t status, const char *text)
{
    const xm_tensor_buffers_t *buffers = &play->job.buffers[slot->rank][0];

    if (slot->fenced) {
        return;
    }
    xm_transport_fence(play->job.transport[slot->rank]);
    slot->fenced = true;
    ck_assert_msg(counting_transport_in_flight(slot->rank) == 0,
                  "operations of rank %d outlive the fence: %s", slot->rank, play->text);
    if (slot->running) {
        xm_status_t ended = xm_executor_advance(play->job.executor[slot->rank]);

        ck_assert_msg(ended != XM_IN_PROGRESS, "rank %d runs on behind a fence: %s", slot->rank,
                      play->text);
        slot->running = false;
        slot->result = ended == XM_OK ? XM_OK : status;
        slot->ended_at = now(play);
        (void)snprintf(slot->sentence, sizeof(slot->sentence), "%s", text);
    }
    slot->frozen = malloc(buffers->dst_bytes);
    ck_assert_ptr_nonnull(slot->frozen);
    memcpy(slot->frozen, buffers->dst, buffers->dst_bytes);
    tell(play, slot, status, text);
}

/* Questions and answers take no time. */
static void on_ask(void *arg, int rank, uint64_t question, int about, bool urgent)
{
    slot_t *watcher = arg;
    play_t *play = watcher->play;

    xm_liveness_t *other = play->slots[rank].liveness;
    int64_t time = play->beat_at;

    (void)urgent;
    if (reaches(play, watcher->rank, rank) && !play->slots[rank].stopped) {
        xm_opinion_t opinion = XM_OPINION_NONE;

        xm_liveness_asked(other, watcher->rank, xm_liveness_hears(watcher->liveness, rank, time),
                          time);
        if (about >= 0) {
            opinion = xm_liveness_testify(other, about, time);
            play->slots[rank].next_tick = time;
        }
        if (reaches(play, rank, watcher->rank)) {
            (void)xm_liveness_answered(watcher->liveness, rank, question, about, opinion, time);
        }
    }
}

/* The simulated fabric has no connections that could be refused. */
static void on_call(void *arg, int rank)
{
    (void)arg;
    (void)rank;
}

static void on_silent(void *arg, int rank, xm_finding_t finding, int64_t silent_ns, int witness)
{
    slot_t *watcher = arg;
    bool alone = finding == XM_FINDING_ALONE;
    char text[128];

    ck_assert(finding != XM_FINDING_CLOSED);
    watcher->blamed = alone ? watcher->rank : rank;
    watcher->by = alone ? -1 : watcher->rank;
    (void)snprintf(text, sizeof(text), "rank %d %s rank %d %.1f s ago (witness %d)",
                   watcher->blamed,
                   alone                          ? "has heard no other host, as"
                   : finding == XM_FINDING_SILENT ? "stopped answering"
                                                  : "lives, but not for",
                   watcher->rank, (double)silent_ns * 1e-9, witness);
    leave(watcher->play, watcher, XM_ERR_PEER_DIED, text);
}

/* The heartbeat of a rank: the lowest asks all, all ask the lowest and whom they wait for. */
static void beat(play_t *play, slot_t *slot, int64_t time)
{
    const xm_liveness_actions_t actions = {on_ask, on_call, on_silent, slot};
    uint64_t moved;

    for (int peer = 0; peer < RANKS; ++peer) {
        xm_liveness_watch(slot->liveness, peer,
                          peer != slot->rank &&
                              (peer == 0 || slot->rank == 0 ||
                               xm_transport_waits(play->job.transport[slot->rank], peer, &moved)),
                          time);
    }
    for (int peer = 0; peer < RANKS; ++peer) {
        xm_liveness_expect(slot->liveness, peer);
    }
    play->beat_at = time;
    slot->next_tick = xm_liveness_tick(slot->liveness, time, &actions);
    slot->next_tick = slot->next_tick < time + second / 2 ? slot->next_tick : time + second / 2;
}

/* Takes the links of the victim, a host, to all others down or up. */
static void set_links(const play_t *play, bool down)
{
    for (int host = 0; host < RANKS / play->scene->per_host; ++host) {
        if (host != play->victim) {
            ck_assert_xm_ok(xm_sim_fabric_cut(play->job.fabric, play->victim, host, down));
        }
    }
}

void play_restore(play_t *play)
{
    if (play->kind == CUT) {
        ck_assert_xm_ok(xm_sim_fabric_cut(play->job.fabric, play->victim, play->other, false));
    } else {
        set_links(play, false);
    }
    play->restored = true;
}

static void inject(play_t *play)
{
    slot_t *victim = &play->slots[play->victim];
    char text[64];

    play->injected = true;
    play->injected_at = now(play);
    switch (play->kind) {
    case KILL:
        victim->dead = true;
        victim->running = false;
        xm_sim_fabric_kill(play->job.fabric, play->victim);
        break;
    case STOP:
        victim->stopped = true;
        break;
    case SLOW:
    case LOSS: /* it would be over before anybody asks after anybody */
        play->resume_at = now(play) + 10 * second;
        break;
    case CUT:
        ck_assert_xm_ok(xm_sim_fabric_cut(play->job.fabric, play->victim, play->other, true));
        break;
    case FLAP:
        play->resume_at = now(play) + 3 * second / 2;
        /* fall through */
    case DEAF: /* no message of the transport passes that is not acknowledged */
    case MUTE:
        set_links(play, true);
        break;
    case ABORT:
        victim->blamed = play->victim;
        (void)snprintf(text, sizeof(text), "rank %d gave up: the disk is full", play->victim);
        leave(play, victim, XM_ERR_CANCELED, text);
        break;
    default:
        break;
    }
}

static bool takes_turns(const play_t *play, const slot_t *slot)
{
    bool rests = (play->kind == SLOW || play->kind == LOSS) && play->injected &&
                 slot->rank == play->victim && now(play) < play->resume_at;

    return !slot->dead && !slot->stopped && !rests;
}

/* One rank's part of the loop. True when there was something to do. */
static bool take_turn(play_t *play, slot_t *slot)
{
    xm_executor_t *executor = play->job.executor[slot->rank];
    bool moved;
    xm_status_t status;

    if (slot->told_at <= now(play) && !slot->fenced) {
        slot->blamed = slot->told_blamed;
        slot->by = slot->told_by;
        leave(play, slot, slot->told, slot->told_text);
        return true;
    }
    if (slot->fenced) {
        return false;
    }
    if (play->kind == CANCEL && play->injected && slot->running) {
        xm_executor_cancel(executor);
    }
    moved = xm_transport_progress(play->job.transport[slot->rank]) > 0;
    if (!slot->running) {
        return moved;
    }
    play->steps += moved;
    status = xm_executor_advance(executor);
    if (status == XM_IN_PROGRESS) {
        return moved || !xm_executor_may_sleep(executor);
    }
    ++play->steps;
    slot->running = false;
    slot->result = status;
    slot->ended_at = now(play);
    if (status < 0) {
        (void)snprintf(slot->sentence, sizeof(slot->sentence), "%s", xm_last_error());
        if (play->kind != CANCEL) {
            slot->blamed = play->victim; /* check_sentence() looks at the text */
            leave(play, slot, status, slot->sentence);
        }
    }
    return true;
}

/* Nothing moves on the fabric: on to the next moment at which something else happens. */
static void pass_time(play_t *play)
{
    int64_t next = play->resume_at > now(play) ? play->resume_at : INT64_MAX;

    for (int r = 0; r < RANKS; ++r) {
        const slot_t *slot = &play->slots[r];

        if (!slot->dead && !slot->stopped && !slot->fenced) {
            next = slot->next_tick < next ? slot->next_tick : next;
            next = slot->told_at < next ? slot->told_at : next;
        }
    }
    ck_assert_msg(next != INT64_MAX && next < play->injected_at + 60 * second,
                  "some rank waits for ever: %s", play->text);
    play->idle_ns += next > now(play) ? next - now(play) : 0;
}

static bool anything_due(const play_t *play)
{
    for (int r = 0; r < RANKS; ++r) {
        if (takes_turns(play, &play->slots[r]) && !play->slots[r].fenced &&
            xm_transport_arm(play->job.transport[r]) == XM_IN_PROGRESS) {
            return true;
        }
    }
    return false;
}

void play_run(play_t *play)
{
    for (;;) {
        int running = 0, stopped = 0;
        bool busy = false;

        for (int r = 0; r < RANKS; ++r) {
            slot_t *slot = &play->slots[r];

            if (!play->injected && play->steps >= play->at && play->kind != NOTHING) {
                inject(play);
            }
            if (play->kind == FLAP && play->injected && !play->restored &&
                now(play) >= play->resume_at) {
                play_restore(play);
            }
            if (!slot->dead && !slot->stopped && !slot->fenced && slot->next_tick <= now(play)) {
                beat(play, slot, now(play));
            }
            if (takes_turns(play, slot)) {
                busy = take_turn(play, slot) || busy;
            }
            running += slot->running && !slot->stopped;
            stopped += slot->running && slot->stopped;
        }
        if (running == 0 && stopped > 0) { /* it wakes up when all is over */
            play->slots[play->victim].stopped = false;
        } else if (running == 0) {
            return;
        } else if (!busy && !anything_due(play) && !xm_sim_fabric_step(play->job.fabric)) {
            pass_time(play);
        }
    }
}

void play_begin(play_t *play)
{
    int64_t start = second * 5 + random_int(&play->random, 0, 999999) * INT64_C(1000);

    for (int r = 0; r < RANKS; ++r) {
        slot_t *slot = &play->slots[r];

        *slot = (slot_t){.play = play, .rank = r, .running = true, .told_at = INT64_MAX, .by = -1};
        ck_assert_xm_ok(xm_liveness_create(RANKS, r, second, true, &slot->liveness));
        for (int other = 0; other < RANKS; ++other) {
            xm_liveness_set_host(slot->liveness, other, play_host_of(play, other));
        }
    }
    for (int r = 0; r < RANKS; ++r) {
        slot_t *slot = &play->slots[r];

        for (slot->next_tick = r * second / RANKS; slot->next_tick <= start;) {
            beat(play, slot, slot->next_tick);
        }
    }
    play->idle_ns = start;
    play->injected_at = start;
    for (int r = 0; r < RANKS; ++r) {
        ck_assert_xm_ok(xm_executor_post(play->job.executor[r]));
    }
}
