/* SPDX-License-Identifier: Apache-2.0 */
#include "resharding/execute/checksum.h"

#include <stdio.h>

#include "tests/resharding/execute/sim_job.h"
#include "xm_test.h"
#include "tests/resharding/plan/plan_lists.h"

enum { CASES = 400 };

/* Drives all ranks' checksums; the sentence of the last failure is left in xm_last_error(). */
static bool verify_all(sim_job_t *job, xm_status_t *results)
{
    xm_checksum_t *checksums[SIM_MAX_RANKS];
    int running = job->ranks;
    bool moves = true;

    for (int r = 0; r < job->ranks; ++r) {
        ck_assert_xm_ok(xm_checksum_create(job->executor[r], &checksums[r]));
        results[r] = XM_IN_PROGRESS;
    }
    while (running > 0 && moves) {
        moves = false;
        for (int r = 0; r < job->ranks; ++r) {
            if (results[r] == XM_IN_PROGRESS) {
                moves = xm_transport_progress(job->transport[r]) > 0 || moves;
                moves = moves || !xm_checksum_may_sleep(checksums[r]);
                results[r] = xm_checksum_advance(checksums[r]);
                running -= results[r] != XM_IN_PROGRESS;
            }
        }
        moves = moves || xm_sim_fabric_step(job->fabric);
        for (int r = 0; r < job->ranks && !moves; ++r) {
            moves = xm_transport_arm(job->transport[r]) == XM_IN_PROGRESS;
        }
    }
    for (int r = 0; r < job->ranks; ++r) {
        xm_checksum_destroy(checksums[r]);
    }
    return running == 0;
}

/* A rank and tensor with something to spoil, or false. */
static bool choose_victim(const sim_job_t *job, random_t *random, int *rank, int *tensor)
{
    for (int i = 0; i < 1000; ++i) {
        *rank = random_int(random, 0, job->ranks - 1);
        *tensor = random_int(random, 0, job->tensors - 1);
        if (job->buffers[*rank][*tensor].dst_bytes > 0) {
            return true;
        }
    }
    return false;
}

/* The unit task that covers a byte of a rank's destination tile. */
static int64_t task_at(const xm_plan_t *plan, int rank, int tensor, uint64_t byte, xm_box_t *box)
{
    const xm_layout_t *layout = xm_plan_tensor_dst(plan, tensor);
    int64_t count, rest = (int64_t)byte / xm_plan_tensor_element_size(plan, tensor);
    const xm_unit_task_t *tasks = plan_tasks(plan, &count);
    xm_box_t tile, element, common;

    xm_layout_tile_box(layout, xm_layout_tile_of_rank(layout, rank), &tile);
    element = tile;
    for (int d = tile.dims - 1; d >= 0; --d) {
        element.lo[d] = tile.lo[d] + rest % (tile.hi[d] - tile.lo[d]);
        element.hi[d] = element.lo[d] + 1;
        rest /= tile.hi[d] - tile.lo[d];
    }
    for (int64_t t = 0; t < count; ++t) {
        xm_plan_task_box(plan, t, box);
        if (tasks[t].tensor == tensor && xm_box_intersect(box, &element, &common)) {
            return t;
        }
    }
    ck_abort_msg("no task covers byte %d", (int)byte);
}

static void spoil_and_verify(sim_job_t *job, random_t *random, const char *text)
{
    xm_status_t results[SIM_MAX_RANKS];
    int rank, tensor, holders;
    char expected[1024], box_text[512];
    const xm_layout_t *src;
    int64_t task, count;
    uint64_t byte;
    xm_box_t box;

    if (!choose_victim(job, random, &rank, &tensor)) {
        return;
    }
    byte = xm_random_next(random) % job->buffers[rank][tensor].dst_bytes;
    ((char *)job->buffers[rank][tensor].dst)[byte] ^= (char)(1 << random_int(random, 0, 7));
    task = task_at(job->plan, rank, tensor, byte, &box);
    src = xm_plan_tensor_src(job->plan, tensor);
    (void)snprintf(
        expected, sizeof(expected), "tensor %s, box %s: rank %d holds",
        xm_plan_tensor_name(job->plan, tensor), xm_box_format(&box, box_text, sizeof(box_text)),
        xm_layout_replicas(src, plan_tasks(job->plan, &count)[task].src_tile, &holders)[0]);
    ck_assert_msg(verify_all(job, results), "verifying stands still: %s", text);
    for (int r = 0; r < job->ranks; ++r) {
        ck_assert_int_eq(results[r], r == rank ? XM_ERR_CORRUPT : XM_OK);
    }
    ck_assert_msg(strstr(xm_last_error(), expected) != NULL, "'%s' lacks '%s'", xm_last_error(),
                  expected);
    (void)snprintf(expected, sizeof(expected), "and rank %d received", rank);
    ck_assert_msg(strstr(xm_last_error(), expected) != NULL, "'%s' lacks '%s'", xm_last_error(),
                  expected);
}

START_TEST(a_flipped_bit_is_found_and_named)
{
    for (uint64_t seed = 1; seed <= (uint64_t)xm_test_rounds(CASES); ++seed) {
        random_t random = {seed * 31337};
        sim_options_t options = {.window = 2, .packed = true};
        xm_status_t results[SIM_MAX_RANKS];
        batch_t batch;
        sim_job_t job;

        batch_create(&random, &batch);
        sim_job_create(&job, batch.plan, batch.random.network, &options, &random);
        for (uint64_t round = 0; round < 2; ++round) {
            sim_job_fill(&job, seed * 2 + round);
            ck_assert(sim_job_run(&job, results));
            for (int again = 0; again < 2; ++again) { /* the same run twice */
                ck_assert_msg(verify_all(&job, results), "seed %d: verifying stands still",
                              (int)seed);
                for (int r = 0; r < job.ranks; ++r) {
                    ck_assert_msg(results[r] == XM_OK, "seed %d, rank %d: %s", (int)seed, r,
                                  xm_last_error());
                }
            }
            spoil_and_verify(&job, &random, random_batch_text(&batch.random));
        }
        sim_job_destroy(&job);
        batch_destroy(&batch);
    }
}
END_TEST

START_TEST(only_a_run_that_ended_well_is_verified)
{
    random_t random = {17};
    sim_options_t options = {.window = 2};
    xm_checksum_t *checksum;
    batch_t batch;
    sim_job_t job;

    batch_create(&random, &batch);
    sim_job_create(&job, batch.plan, batch.random.network, &options, &random);
    ck_assert_xm_fails(xm_checksum_create(job.executor[0], &checksum), XM_ERR_INVALID_ARGUMENT,
                       "no run of this executor that has ended well");
    sim_job_destroy(&job);
    batch_destroy(&batch);
}
END_TEST

START_TEST(a_dead_holder_ends_the_verification)
{
    int noticed = 0;

    for (uint64_t seed = 1; seed <= 20; ++seed) {
        random_t random = {seed};
        sim_options_t options = {.window = 2};
        xm_status_t results[SIM_MAX_RANKS];
        batch_t batch;
        sim_job_t job;

        batch_create(&random, &batch);
        sim_job_create(&job, batch.plan, batch.random.network, &options, &random);
        sim_job_fill(&job, seed);
        ck_assert(sim_job_run(&job, results));
        xm_sim_fabric_kill(job.fabric, 0);
        (void)verify_all(&job, results);
        for (int r = 1; r < job.ranks; ++r) {
            /* One that waits for a rank that gave up is not told by this fabric. */
            ck_assert(results[r] == XM_OK || results[r] == XM_ERR_PEER_DIED ||
                      results[r] == XM_IN_PROGRESS);
            noticed += results[r] == XM_ERR_PEER_DIED;
        }
        sim_job_destroy(&job);
        batch_destroy(&batch);
    }
    ck_assert_int_gt(noticed, 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("checksum");
    TCase *tcase = tcase_create("all");

    tcase_set_timeout(tcase, 100);
    tcase_add_test(tcase, a_flipped_bit_is_found_and_named);
    tcase_add_test(tcase, only_a_run_that_ended_well_is_verified);
    tcase_add_test(tcase, a_dead_holder_ends_the_verification);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
