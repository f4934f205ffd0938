/* Faults at every step of reshards on a simulated fabric: who notices, how it ends, what was
 * written, and whether it goes on. */
#include <stdio.h>

#include "comm/liveness.h"
#include "counting_transport.h"
#include "resharding/execute.h"
#include "sim_job.h"
#include "xm_test.h"

/* 60 and 30 can be cut into 2, 3, 5 and 6. */
enum { RANKS = 6, ROWS = 60, COLUMNS = 30, RUBBISH = 0xa5, GAP = 0xee };

static const int64_t second = INT64_C(1000000000);

enum { KILL, STOP, CUT, ABORT, CANCEL, SLOW, KINDS, NOTHING = KINDS };
static const char *const kind_names[] = {"kill", "stop", "cut", "abort", "cancel", "slow"};

/* A reshard, and those that go on without one of its ranks. */
typedef struct {
    int per_host;
    const char *src_spec, *dst_spec;
    xm_strategy_t strategy;
    bool turns;
    xm_network_t *network;
    xm_plan_t *plan, *without[RANKS];
} scene_t;

typedef struct {
    struct play *play;
    int rank;
    bool dead, stopped, running;
    bool fenced;
    xm_status_t result;
    char sentence[512];
    int64_t ended_at;
    xm_liveness_t *liveness;
    int64_t next_tick, told_at;
    xm_status_t told;
    char told_text[512];
    unsigned char *frozen; /* the destination as it was when the transport was fenced */
} seat_t;

typedef struct play {
    const scene_t *scene;
    sim_job_t job;
    random_t random;
    int kind, victim, other; /* cut: hosts */
    int64_t at, steps;
    int64_t idle_ns; /* time that has passed while nothing was under way on the fabric */
    int64_t injected_at, resume_at;
    bool injected;
    int answers[RANKS * 2]; /* watchers and those who answer */
    uint64_t questions[RANKS];
    int answer_count;
    seat_t seats[RANKS];
    char text[160];
} play_t;

typedef struct {
    int64_t injections, unnoticed, failed_ranks, ok_ranks;
    int64_t *detection; /* ns until the last rank that failed knew, by injection that was noticed */
    int64_t noticed, room;
} tally_t;

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

static void scene_create(scene_t *scene)
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

static void scene_destroy(scene_t *scene)
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

static int host_of(const play_t *play, int rank)
{
    return rank / play->scene->per_host;
}

/* Whether datagrams pass between two ranks. */
static bool reaches(const play_t *play, int rank, int peer)
{
    int a = host_of(play, rank), b = host_of(play, peer);
    bool cut = play->injected && play->kind == CUT &&
               ((a == play->victim && b == play->other) || (a == play->other && b == play->victim));

    return !play->seats[peer].dead && !cut;
}

/* The word goes round; a rank acts on it at its next turn after it has come. */
static void tell(play_t *play, int teller, xm_status_t status, const char *text)
{
    for (int r = 0; r < RANKS; ++r) {
        seat_t *seat = &play->seats[r];

        if (r != teller && seat->told_at == INT64_MAX && reaches(play, teller, r)) {
            seat->told_at = now(play) + random_int(&play->random, 0, 20000);
            seat->told = status;
            (void)snprintf(seat->told_text, sizeof(seat->told_text), "%s", text);
        }
    }
}

/* The group is of no use to a rank any more: it ends what is under way, as a worker does. */
static void leave(play_t *play, seat_t *seat, xm_status_t status, const char *text)
{
    const xm_tensor_buffers_t *buffers = &play->job.buffers[seat->rank][0];

    if (seat->fenced) {
        return;
    }
    xm_transport_fence(play->job.transport[seat->rank]);
    seat->fenced = true;
    ck_assert_msg(counting_transport_in_flight(seat->rank) == 0,
                  "operations of rank %d outlive the fence: %s", seat->rank, play->text);
    if (seat->running) {
        xm_status_t ended = xm_executor_advance(play->job.executor[seat->rank]);

        ck_assert_msg(ended != XM_IN_PROGRESS, "rank %d runs on behind a fence: %s", seat->rank,
                      play->text);
        seat->running = false;
        seat->result = ended == XM_OK ? XM_OK : status;
        seat->ended_at = now(play);
        (void)snprintf(seat->sentence, sizeof(seat->sentence), "%s", text);
    }
    seat->frozen = malloc(buffers->dst_bytes);
    ck_assert_ptr_nonnull(seat->frozen);
    memcpy(seat->frozen, buffers->dst, buffers->dst_bytes);
    tell(play, seat->rank, status, text);
}

static void on_ask(void *arg, int rank, uint64_t question)
{
    seat_t *watcher = arg;
    play_t *play = watcher->play;

    if (reaches(play, watcher->rank, rank) && !play->seats[rank].stopped) {
        play->answers[play->answer_count] = rank;
        play->questions[play->answer_count++] = question;
    }
}

static void on_silent(void *arg, int rank, int64_t silent_ns)
{
    seat_t *watcher = arg;
    char text[128];

    (void)snprintf(text, sizeof(text), "rank %d stopped answering rank %d %.1f s ago", rank,
                   watcher->rank, (double)silent_ns * 1e-9);
    leave(watcher->play, watcher, XM_ERR_PEER_DIED, text);
}

/* The heartbeat of a rank: the lowest asks all, all ask the lowest and whom they wait for. */
static void beat(play_t *play, seat_t *seat, int64_t time)
{
    const xm_liveness_actions_t actions = {on_ask, on_silent, seat};
    uint64_t moved;

    for (int peer = 0; peer < RANKS; ++peer) {
        xm_liveness_watch(seat->liveness, peer,
                          peer != seat->rank &&
                              (peer == 0 || seat->rank == 0 ||
                               xm_transport_waits(play->job.transport[seat->rank], peer, &moved)),
                          time);
    }
    play->answer_count = 0;
    seat->next_tick = xm_liveness_tick(seat->liveness, time, &actions);
    for (int i = 0; i < play->answer_count; ++i) {
        (void)xm_liveness_answered(seat->liveness, play->answers[i], play->questions[i], time);
    }
    seat->next_tick = seat->next_tick < time + second / 2 ? seat->next_tick : time + second / 2;
}

static void inject(play_t *play)
{
    seat_t *victim = &play->seats[play->victim];
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
        play->resume_at = now(play) + 10 * second;
        break;
    case CUT:
        ck_assert_xm_ok(xm_sim_fabric_cut(play->job.fabric, play->victim, play->other, true));
        break;
    case ABORT:
        (void)snprintf(text, sizeof(text), "rank %d gave up: the disk is full", play->victim);
        leave(play, victim, XM_ERR_CANCELED, text);
        break;
    default:
        break;
    }
}

static bool takes_turns(const play_t *play, const seat_t *seat)
{
    bool rests = play->kind == SLOW && play->injected && seat->rank == play->victim &&
                 now(play) < play->resume_at;

    return !seat->dead && !seat->stopped && !rests;
}

/* One rank's part of the loop. True when there was something to do. */
static bool take_turn(play_t *play, seat_t *seat)
{
    xm_executor_t *executor = play->job.executor[seat->rank];
    bool moved;
    xm_status_t status;

    if (seat->told_at <= now(play) && !seat->fenced) {
        leave(play, seat, seat->told, seat->told_text);
        return true;
    }
    if (seat->fenced) {
        return false;
    }
    if (play->kind == CANCEL && play->injected && seat->running) {
        xm_executor_cancel(executor);
    }
    moved = xm_transport_progress(play->job.transport[seat->rank]) > 0;
    if (!seat->running) {
        return moved;
    }
    play->steps += moved;
    status = xm_executor_advance(executor);
    if (status == XM_IN_PROGRESS) {
        return moved || !xm_executor_may_sleep(executor);
    }
    ++play->steps;
    seat->running = false;
    seat->result = status;
    seat->ended_at = now(play);
    if (status < 0) {
        (void)snprintf(seat->sentence, sizeof(seat->sentence), "%s", xm_last_error());
        if (play->kind != CANCEL) {
            leave(play, seat, status, seat->sentence);
        }
    }
    return true;
}

/* Nothing moves on the fabric: on to the next moment at which something else happens. */
static void pass_time(play_t *play)
{
    int64_t next = play->resume_at > now(play) ? play->resume_at : INT64_MAX;

    for (int r = 0; r < RANKS; ++r) {
        const seat_t *seat = &play->seats[r];

        if (!seat->dead && !seat->stopped && !seat->fenced) {
            next = seat->next_tick < next ? seat->next_tick : next;
            next = seat->told_at < next ? seat->told_at : next;
        }
    }
    ck_assert_msg(next != INT64_MAX && next < play->injected_at + 60 * second,
                  "some rank waits for ever: %s", play->text);
    play->idle_ns += next > now(play) ? next - now(play) : 0;
}

static bool anything_due(const play_t *play)
{
    for (int r = 0; r < RANKS; ++r) {
        if (takes_turns(play, &play->seats[r]) && !play->seats[r].fenced &&
            xm_transport_arm(play->job.transport[r]) == XM_IN_PROGRESS) {
            return true;
        }
    }
    return false;
}

/* Until every living rank has ended. */
static void run(play_t *play)
{
    for (;;) {
        int running = 0, stopped = 0;
        bool busy = false;

        for (int r = 0; r < RANKS; ++r) {
            seat_t *seat = &play->seats[r];

            if (!play->injected && play->steps >= play->at && play->kind != NOTHING) {
                inject(play);
            }
            if (!seat->dead && !seat->stopped && !seat->fenced && seat->next_tick <= now(play)) {
                beat(play, seat, now(play));
            }
            if (takes_turns(play, seat)) {
                busy = take_turn(play, seat) || busy;
            }
            running += seat->running && !seat->stopped;
            stopped += seat->running && seat->stopped;
        }
        if (running == 0 && stopped > 0) { /* it wakes up when all is over */
            play->seats[play->victim].stopped = false;
        } else if (running == 0) {
            return;
        } else if (!busy && !anything_due(play) && !xm_sim_fabric_step(play->job.fabric)) {
            pass_time(play);
        }
    }
}

/* Every rank has heard of the others for some time when the run begins. */
static void begin(play_t *play)
{
    int64_t start = second * 5 + random_int(&play->random, 0, 999999) * INT64_C(1000);

    for (int r = 0; r < RANKS; ++r) {
        seat_t *seat = &play->seats[r];

        *seat = (seat_t){.play = play, .rank = r, .running = true, .told_at = INT64_MAX};
        ck_assert_xm_ok(xm_liveness_create(RANKS, second, &seat->liveness));
    }
    for (int r = 0; r < RANKS; ++r) {
        seat_t *seat = &play->seats[r];

        for (seat->next_tick = r * second / RANKS; seat->next_tick <= start;) {
            beat(play, seat, seat->next_tick);
        }
    }
    play->idle_ns = start;
    play->injected_at = start;
    for (int r = 0; r < RANKS; ++r) {
        ck_assert_xm_ok(xm_executor_post(play->job.executor[r]));
    }
}

/* What a rank says of its failure names who is to blame. */
static void check_sentence(const play_t *play, const seat_t *seat)
{
    char name[32];
    int silent, watcher;

    (void)snprintf(name, sizeof(name), "rank %d", play->victim);
    if (play->kind == CANCEL) {
        ck_assert_msg(seat->result == XM_ERR_CANCELED &&
                          strstr(seat->sentence, "the run was cancelled") != NULL,
                      "rank %d: %s: %s", seat->rank, seat->sentence, play->text);
        return;
    }
    ck_assert_msg(seat->result == (play->kind == ABORT ? XM_ERR_CANCELED : XM_ERR_PEER_DIED),
                  "rank %d: %s (%s): %s", seat->rank, xm_status_string(seat->result),
                  seat->sentence, play->text);
    if (play->kind != CUT) {
        ck_assert_msg(strstr(seat->sentence, name) != NULL, "rank %d: '%s' does not name %s: %s",
                      seat->rank, seat->sentence, name, play->text);
        return;
    }
    ck_assert_msg(
        sscanf(seat->sentence, "rank %d stopped answering rank %d", &silent, &watcher) == 2 &&
            host_of(play, silent) + host_of(play, watcher) == play->victim + play->other &&
            (host_of(play, silent) == play->victim || host_of(play, silent) == play->other),
        "rank %d: '%s' does not name the cut: %s", seat->rank, seat->sentence, play->text);
}

/* Sources are as they were, nothing was written between the buffers, and every byte of a
 * destination is either untouched or right. */
static void check_bytes(const play_t *play, const seat_t *seat)
{
    const xm_tensor_buffers_t *buffers = &play->job.buffers[seat->rank][0];
    const xm_layout_t *dst = xm_plan_tensor_dst(play->scene->plan, 0);
    const unsigned char *got = buffers->dst, *arena = (unsigned char *)play->job.arena[seat->rank];
    uint64_t seed = play->job.seed * SIM_MAX_TENSORS;
    unsigned char *right = malloc(buffers->dst_bytes);
    int64_t wrong = 0, missing = 0, strayed = 0;

    ck_assert_ptr_nonnull(right);
    pattern_fill(dst, seat->rank, 4, seed, right);
    for (uint64_t i = 0; i < buffers->dst_bytes; ++i) {
        wrong += got[i] != right[i] && got[i] != RUBBISH;
        missing += got[i] != right[i];
    }
    free(right);
    ck_assert_msg(wrong == 0, "rank %d: %lld wrong bytes: %s", seat->rank, (long long)wrong,
                  play->text);
    ck_assert_msg(seat->dead || seat->result != XM_OK || missing == 0,
                  "rank %d ended well and lacks %lld bytes: %s", seat->rank, (long long)missing,
                  play->text);
    ck_assert_msg(pattern_wrong(xm_plan_tensor_src(play->scene->plan, 0), seat->rank, 4, seed,
                                buffers->src) == 0,
                  "rank %d: the source has changed: %s", seat->rank, play->text);
    ck_assert_msg(seat->frozen == NULL || memcmp(seat->frozen, got, buffers->dst_bytes) == 0,
                  "rank %d: written to behind the fence: %s", seat->rank, play->text);
    for (size_t i = 0; arena != NULL && i < play->job.arena_bytes[seat->rank]; ++i) {
        const unsigned char *at = arena + i, *src = buffers->src;
        bool inside = (at >= src && at < src + buffers->src_bytes) ||
                      (at >= got && at < got + buffers->dst_bytes);

        strayed += !inside && *at != GAP;
    }
    ck_assert_msg(strayed == 0, "rank %d wrote %lld bytes between its buffers: %s", seat->rank,
                  (long long)strayed, play->text);
}

static void check(const play_t *play, tally_t *tally)
{
    int64_t known = -1;

    ck_assert_msg(counting_transport_surplus() == 0, "an operation ended twice: %s", play->text);
    ck_assert_msg(!play->job.incomplete, "a tensor was called done too early: %s", play->text);
    for (int r = 0; r < RANKS; ++r) {
        const seat_t *seat = &play->seats[r];

        check_bytes(play, seat);
        if (seat->dead) {
            continue;
        }
        ck_assert_int_le(play->job.done[r][0], 1);
        if (seat->result == XM_OK) {
            ck_assert_msg(play->job.done[r][0] == 1, "rank %d: called done %d times: %s", r,
                          play->job.done[r][0], play->text);
            ++tally->ok_ranks;
            continue;
        }
        ck_assert_msg(play->kind != SLOW, "rank %d failed (%s) though all live: %s", r,
                      seat->sentence, play->text);
        check_sentence(play, seat);
        ++tally->failed_ranks;
        if (r != play->victim || play->kind != STOP) { /* who was stopped hears of it later */
            known = seat->ended_at - play->injected_at > known ? seat->ended_at - play->injected_at
                                                               : known;
        }
    }
    ++tally->injections;
    if (known < 0) {
        ++tally->unnoticed;
        return;
    }
    if (tally->noticed == tally->room) {
        tally->room = 2 * tally->room + 64;
        tally->detection = realloc(tally->detection, (size_t)tally->room * sizeof(int64_t));
        ck_assert_ptr_nonnull(tally->detection);
    }
    tally->detection[tally->noticed++] = known;
}

/* A new group on the same fabric, of all ranks or of all but one, does its reshard right. */
static void go_on(const play_t *play, const xm_plan_t *plan, int gone)
{
    xm_transport_t *transport[RANKS] = {NULL};
    xm_executor_t *executor[RANKS] = {NULL};
    xm_executor_params_t all[RANKS];
    bool ended[RANKS] = {false};
    const uint64_t seed = 77;

    for (int r = 0; r < RANKS; ++r) {
        xm_executor_params_t *params = &all[r];
        void *src;

        if (r == gone) {
            continue;
        }
        *params = (xm_executor_params_t)XM_EXECUTOR_PARAMS_INIT;
        ck_assert_xm_ok(xm_transport_sim_create(play->job.fabric, r, &transport[r]));
        counting_transport_wrap(transport[r]);
        params->plan = plan;
        params->transport = transport[r];
        params->turns = play->scene->turns;
        params->src_bytes = xm_layout_buffer_bytes(xm_plan_tensor_src(plan, 0), r, 4);
        params->dst_bytes = xm_layout_buffer_bytes(xm_plan_tensor_dst(plan, 0), r, 4);
        params->src = src = malloc(params->src_bytes);
        params->dst = malloc(params->dst_bytes);
        pattern_fill(xm_plan_tensor_src(plan, 0), r, 4, seed, src);
        memset(params->dst, RUBBISH, params->dst_bytes);
        ck_assert_xm_ok(xm_executor_create(params, &executor[r]));
        ck_assert_xm_ok(xm_executor_post(executor[r]));
    }
    for (int left = RANKS - (gone >= 0); left > 0;) {
        bool busy = false;

        for (int r = 0; r < RANKS; ++r) {
            xm_status_t status;

            if (r == gone || ended[r]) {
                continue;
            }
            busy = xm_transport_progress(transport[r]) > 0 || busy;
            status = xm_executor_advance(executor[r]);
            busy = busy || status != XM_IN_PROGRESS || !xm_executor_may_sleep(executor[r]);
            ck_assert_msg(status >= 0, "the new group: rank %d: %s: %s", r, xm_last_error(),
                          play->text);
            ended[r] = status == XM_OK;
            left -= ended[r];
        }
        if (!busy && !xm_sim_fabric_step(play->job.fabric)) {
            for (int r = 0; r < RANKS; ++r) {
                busy = busy || (r != gone && xm_transport_arm(transport[r]) == XM_IN_PROGRESS);
            }
            ck_assert_msg(busy, "the new group stands still: %s", play->text);
        }
    }
    for (int r = 0; r < RANKS; ++r) {
        if (r != gone) {
            ck_assert_msg(pattern_wrong(xm_plan_tensor_dst(plan, 0), r, 4, seed, all[r].dst) == 0,
                          "the new group: rank %d has wrong bytes: %s", r, play->text);
            xm_executor_destroy(executor[r]);
        }
    }
    for (int r = 0; r < RANKS; ++r) {
        if (r != gone) {
            xm_transport_destroy(transport[r]);
            free((void *)(uintptr_t)all[r].src);
            free(all[r].dst);
        }
    }
}

/* A cancelled run can be repeated by the same executors. */
static void repeat(play_t *play)
{
    xm_status_t results[SIM_MAX_RANKS];

    sim_job_fill(&play->job, 9);
    ck_assert_msg(sim_job_run(&play->job, results), "the second run stands still: %s", play->text);
    sim_job_check(&play->job, play->text);
}

/* Everybody leaves the old group; then the next one. */
static void regroup(play_t *play)
{
    bool lost = play->kind == KILL || play->kind == STOP;

    if (play->kind == STOP) { /* who was taken for dead stays out */
        xm_sim_fabric_kill(play->job.fabric, play->victim);
    } else if (play->kind == CUT) {
        ck_assert_xm_ok(xm_sim_fabric_cut(play->job.fabric, play->victim, play->other, false));
    }
    for (int r = 0; r < RANKS; ++r) {
        xm_transport_fence(play->job.transport[r]);
        if (play->seats[r].dead) {
            counting_transport_bury(r);
        }
    }
    for (int r = 0; r < RANKS; ++r) {
        xm_executor_destroy(play->job.executor[r]);
        play->job.executor[r] = NULL;
    }
    for (int r = 0; r < RANKS; ++r) {
        xm_transport_destroy(play->job.transport[r]);
        play->job.transport[r] = NULL;
    }
    counting_transport_reset();
    go_on(play, lost ? play->scene->without[play->victim] : play->scene->plan,
          lost ? play->victim : -1);
    for (int r = 0; r < RANKS; ++r) {
        check_bytes(play, &play->seats[r]); /* nothing of the new group's went to the old buffers */
    }
}

/* One run with one fault; returns the number of steps. */
static int64_t perform(const scene_t *scene, int kind, int64_t at, tally_t *tally)
{
    static play_t play;
    sim_options_t options = {.window = 3, .turns = scene->turns, .packed = at % 2 == 1};
    int hosts = RANKS / scene->per_host;

    memset(&play, 0, sizeof(play));
    play.scene = scene;
    play.kind = kind;
    play.at = at;
    play.random.state = (uint64_t)(at * 8 + kind) * 1000 + (uint64_t)scene->strategy;
    if (kind == CUT) {
        play.victim = random_int(&play.random, 0, hosts - 1);
        play.other = (play.victim + random_int(&play.random, 1, hosts - 1)) % hosts;
    } else {
        play.victim = random_int(&play.random, 0, RANKS - 1);
    }
    options.turn_ahead = scene->turns ? 512 : 0;
    (void)snprintf(play.text, sizeof(play.text),
                   "%s of %d at step %d: %d ranks a host, %s to %s, %s%s",
                   kind == NOTHING ? "nothing" : kind_names[kind], play.victim, (int)at,
                   scene->per_host, scene->src_spec, scene->dst_spec,
                   xm_strategy_name(scene->strategy), scene->turns ? ", turns" : "");
    sim_job_create(&play.job, scene->plan, scene->network, &options, &play.random);
    sim_job_fill(&play.job, (uint64_t)at + 1);
    counting_transport_reset();
    for (int r = 0; r < RANKS; ++r) {
        counting_transport_wrap(play.job.transport[r]);
    }
    begin(&play);
    run(&play);
    check(&play, tally);
    if (kind == CANCEL) {
        repeat(&play);
    } else {
        regroup(&play);
    }
    for (int r = 0; r < RANKS; ++r) {
        xm_liveness_destroy(play.seats[r].liveness);
        free(play.seats[r].frozen);
    }
    sim_job_destroy(&play.job);
    return play.steps;
}

static int by_value(const void *a, const void *b)
{
    int64_t left = *(const int64_t *)a, right = *(const int64_t *)b;

    return (left > right) - (left < right);
}

static void print_tally(int kind, tally_t *tally)
{
    (void)printf("%-6s %5d injections, %5d of them unnoticed; ranks: %6d failed, %6d ended well",
                 kind_names[kind], (int)tally->injections, (int)tally->unnoticed,
                 (int)tally->failed_ranks, (int)tally->ok_ranks);
    if (tally->noticed > 0) {
        qsort(tally->detection, (size_t)tally->noticed, sizeof(int64_t), by_value);
        (void)printf("; all knew after %.6f s (median), %.6f s (most)",
                     (double)tally->detection[tally->noticed / 2] * 1e-9,
                     (double)tally->detection[tally->noticed - 1] * 1e-9);
    }
    (void)printf("\n");
    free(tally->detection);
}

/* Every fault at every step of a run; CAMPAIGN_STEPS: at so many of them only. */
static void play_scene(const scene_t *scene, tally_t *tallies)
{
    const char *limit = getenv("CAMPAIGN_STEPS");
    tally_t none = {0};
    int64_t steps = perform(scene, NOTHING, 0, &none), stride = 1;

    ck_assert_int_eq(none.failed_ranks, 0);
    ck_assert_int_gt(steps, 10);
    if (limit != NULL && atoi(limit) > 0) {
        stride = (steps + atoi(limit) - 1) / atoi(limit);
    }
    for (int kind = 0; kind < KINDS; ++kind) {
        for (int64_t at = 0; at < steps; at += stride) {
            (void)perform(scene, kind, at, &tallies[kind]);
        }
    }
}

START_TEST(faults_at_every_step)
{
    /* Pieces that are contiguous at both ends, and strided ones. */
    static const char *const specs[2][2] = {{"S01R", "S1R"}, {"S1S0", "RS1"}};
    tally_t tallies[KINDS] = {{0}};
    int64_t total = 0;

    for (int i = 0; i < 2 * 2 * 2 * 3; ++i) {
        scene_t scene = {.per_host = i % 2 == 0 ? 3 : 2,
                         .src_spec = specs[i / 2 % 2][0],
                         .dst_spec = specs[i / 2 % 2][1],
                         .turns = i / 4 % 2 == 1,
                         .strategy = (xm_strategy_t)(i / 8)};

        scene_create(&scene);
        play_scene(&scene, tallies);
        scene_destroy(&scene);
    }
    for (int kind = 0; kind < KINDS; ++kind) {
        ck_assert_msg(kind == SLOW ? tallies[kind].failed_ranks == 0
                                   : tallies[kind].failed_ranks > 0,
                      "%s: %d ranks failed", kind_names[kind], (int)tallies[kind].failed_ranks);
        total += tallies[kind].injections;
        print_tally(kind, &tallies[kind]);
    }
    (void)printf("%d injections\n", (int)total);
    ck_assert(getenv("CAMPAIGN_STEPS") != NULL || total >= 2000);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("fault campaign");
    TCase *tcase = tcase_create("simulated");

    tcase_set_timeout(tcase, 110);
    tcase_add_test(tcase, faults_at_every_step);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
