/* SPDX-License-Identifier: Apache-2.0 */
/* Faults at every step of reshards on a simulated fabric: who notices, how it ends, what was
 * written, and whether it goes on. */
#include <stdio.h>

#include "tests/fault/campaign_play.h"
#include "tests/fault/counting_transport.h"
#include "resharding/execute/execute.h"
#include "xm_test.h"

static const char *const kind_names[] = {"kill",  "stop",   "cut",  "deaf", "mute",
                                         "abort", "cancel", "slow", "flap", "loss"};

typedef struct {
    int64_t injections, unnoticed, failed_ranks, ok_ranks;
    int64_t *detection; /* ns until the last rank that failed knew, by injection that was noticed */
    int64_t noticed, room;
} tally_t;

/* Who blames whom where hosts, not ranks, have lost each other: the two ends of what is cut. A host
 * that has lost two others is the one to blame, or says that it is alone. */
static void check_blame(const play_t *play, const slot_t *slot)
{
    bool blames = slot->by >= 0, pair = RANKS / play->scene->per_host == 2;
    int blamed = play_host_of(play, slot->blamed), by = blames ? play_host_of(play, slot->by) : -1;
    bool right;

    if (play->kind == CUT) {
        right = blames && blamed + by == play->victim + play->other &&
                (blamed == play->victim || blamed == play->other);
    } else {
        right = blames && pair ? blamed != by : blamed == play->victim && by != play->victim;
    }
    ck_assert_msg(right, "rank %d: '%s': %s", slot->rank, slot->sentence, play->text);
}

/* What a rank says of its failure names who is to blame. */
static void check_sentence(const play_t *play, const slot_t *slot)
{
    char name[32];

    (void)snprintf(name, sizeof(name), "rank %d", play->victim);
    if (play->kind == CANCEL) {
        ck_assert_msg(slot->result == XM_ERR_CANCELED &&
                          strstr(slot->sentence, "the run was cancelled") != NULL,
                      "rank %d: %s: %s", slot->rank, slot->sentence, play->text);
        return;
    }
    ck_assert_msg(slot->result == (play->kind == ABORT ? XM_ERR_CANCELED : XM_ERR_PEER_DIED),
                  "rank %d: %s (%s): %s", slot->rank, xm_status_string(slot->result),
                  slot->sentence, play->text);
    if (play->kind < CUT || play->kind > MUTE) {
        ck_assert_msg(strstr(slot->sentence, name) != NULL, "rank %d: '%s' does not name %s: %s",
                      slot->rank, slot->sentence, name, play->text);
        return;
    }
    check_blame(play, slot);
}

/* Sources are as they were, nothing was written between the buffers, and every byte of a
 * destination is either untouched or right. */
static void check_bytes(const play_t *play, const slot_t *slot)
{
    const xm_tensor_buffers_t *buffers = &play->job.buffers[slot->rank][0];
    const xm_layout_t *dst = xm_plan_tensor_dst(play->scene->plan, 0);
    const unsigned char *got = buffers->dst, *arena = (unsigned char *)play->job.arena[slot->rank];
    uint64_t seed = play->job.seed * SIM_MAX_TENSORS;
    unsigned char *right = malloc(buffers->dst_bytes);
    int64_t wrong = 0, missing = 0, outside = 0;

    ck_assert_ptr_nonnull(right);
    pattern_fill(dst, slot->rank, 4, seed, right);
    for (uint64_t i = 0; i < buffers->dst_bytes; ++i) {
        wrong += got[i] != right[i] && got[i] != RUBBISH;
        missing += got[i] != right[i];
    }
    free(right);
    ck_assert_msg(wrong == 0, "rank %d: %lld wrong bytes: %s", slot->rank, (long long)wrong,
                  play->text);
    ck_assert_msg(slot->dead || slot->result != XM_OK || missing == 0,
                  "rank %d ended well and lacks %lld bytes: %s", slot->rank, (long long)missing,
                  play->text);
    ck_assert_msg(pattern_wrong(xm_plan_tensor_src(play->scene->plan, 0), slot->rank, 4, seed,
                                buffers->src) == 0,
                  "rank %d: the source has changed: %s", slot->rank, play->text);
    ck_assert_msg(slot->frozen == NULL || memcmp(slot->frozen, got, buffers->dst_bytes) == 0,
                  "rank %d: written to behind the fence: %s", slot->rank, play->text);
    for (size_t i = 0; arena != NULL && i < play->job.arena_bytes[slot->rank]; ++i) {
        const unsigned char *at = arena + i, *src = buffers->src;
        bool inside = (at >= src && at < src + buffers->src_bytes) ||
                      (at >= got && at < got + buffers->dst_bytes);

        outside += !inside && *at != GAP;
    }
    ck_assert_msg(outside == 0, "rank %d wrote %lld bytes between its buffers: %s", slot->rank,
                  (long long)outside, play->text);
}

static void check(const play_t *play, tally_t *tally)
{
    int64_t known = -1;

    ck_assert_msg(counting_transport_surplus() == 0, "an operation ended twice: %s", play->text);
    ck_assert_msg(!play->job.incomplete, "a tensor was called done too early: %s", play->text);
    for (int r = 0; r < RANKS; ++r) {
        const slot_t *slot = &play->slots[r];

        check_bytes(play, slot);
        if (slot->dead) {
            continue;
        }
        ck_assert_int_le(play->job.done[r][0], 1);
        if (slot->result == XM_OK) {
            ck_assert_msg(play->job.done[r][0] == 1, "rank %d: called done %d times: %s", r,
                          play->job.done[r][0], play->text);
            ++tally->ok_ranks;
            continue;
        }
        ck_assert_msg(play->kind < SLOW, "rank %d failed (%s) though all live: %s", r,
                      slot->sentence, play->text);
        check_sentence(play, slot);
        ++tally->failed_ranks;
        if (r != play->victim || play->kind != STOP) { /* who was stopped hears of it later */
            known = slot->ended_at - play->injected_at > known ? slot->ended_at - play->injected_at
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
    ck_assert_msg(known <= INT64_C(4500000000), "all knew only after %.3f s: %s",
                  (double)known * 1e-9, play->text);
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
        *params = (xm_executor_params_t){0};
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
    } else if ((play->kind >= CUT && play->kind <= MUTE) || play->kind == FLAP) {
        play_restore(play);
    }
    for (int r = 0; r < RANKS; ++r) {
        xm_transport_fence(play->job.transport[r]);
        if (play->slots[r].dead) {
            counting_transport_forget(r);
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
        check_bytes(play, &play->slots[r]); /* nothing of the new group's went to the old buffers */
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
    } else if (kind == DEAF || kind == MUTE || kind == FLAP) {
        play.victim = random_int(&play.random, 0, hosts - 1);
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
    play_begin(&play);
    play_run(&play);
    check(&play, tally);
    if (kind == CANCEL) {
        repeat(&play);
    } else {
        regroup(&play);
    }
    for (int r = 0; r < RANKS; ++r) {
        xm_liveness_destroy(play.slots[r].liveness);
        free(play.slots[r].frozen);
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

/* Every fault at every step of a run; CAMPAIGN_STEPS: at so many of them only; TEST_SHARE=N: at one
 * in N. */
static void play_scene(const scene_t *scene, tally_t *tallies)
{
    const char *limit = getenv("CAMPAIGN_STEPS");
    tally_t none = {0};
    int64_t steps = perform(scene, NOTHING, 0, &none), stride = 1;

    ck_assert_int_eq(none.failed_ranks, 0);
    ck_assert_int_gt(steps, 10);
    if (limit != NULL && atoi(limit) > 0) {
        stride = (steps + atoi(limit) - 1) / atoi(limit);
    } else {
        stride = steps / xm_test_rounds((int)steps);
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
        ck_assert_msg(kind >= SLOW ? tallies[kind].failed_ranks == 0
                                   : tallies[kind].failed_ranks > 0,
                      "%s: %d ranks failed", kind_names[kind], (int)tallies[kind].failed_ranks);
        total += tallies[kind].injections;
        print_tally(kind, &tallies[kind]);
    }
    (void)printf("%d injections\n", (int)total);
    ck_assert(getenv("CAMPAIGN_STEPS") != NULL || total >= xm_test_rounds(20000));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("fault campaign");
    TCase *tcase = tcase_create("simulated");

    tcase_set_timeout(tcase, 600);
    tcase_add_test(tcase, faults_at_every_step);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
