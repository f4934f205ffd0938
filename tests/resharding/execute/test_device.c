/* SPDX-License-Identifier: Apache-2.0 */
/* Tiles on a CUDA device, on a simulated fabric: every byte, whatever the path. */
#include <stdio.h>

#include "tests/comm/memory/cuda_case.h"
#include "tests/resharding/execute/cuda_transport.h"
#include "resharding/execute/checksum.h"
#include "resharding/execute/carrier.h"
#include "tests/resharding/execute/spoiler.h"
#include "xm_test.h"

enum { CASES = 24 };

static xm_memory_space_t *open_device(void)
{
    xm_memory_space_t *space;

    ck_assert_xm_ok(xm_memory_cuda_create(0, &space));
    return space;
}

/* ---- random plans -----------------------------------------------------------------------------
 */

static int64_t device_messages(const sim_job_t *job)
{
    int64_t messages = 0;

    for (int r = 0; r < job->ranks; ++r) {
        messages += cuda_transport_messages(job->transport[r]);
    }
    return messages;
}

static int64_t mapped_hops(const sim_job_t *job)
{
    int64_t mapped = 0;

    for (int r = 0; r < job->ranks; ++r) {
        for (int64_t h = 0; h < job->executor[r]->hop_count; ++h) {
            mapped += job->executor[r]->hops[h].carrier == &xm_carrier_ipc;
        }
    }
    return mapped;
}

/* What is tried: bits. */
enum { MIXED = 1, DIRECT = 2, PEERS = 4, PROVEN = 8 };

/* Returns how many chunks were sent again. */
static int64_t check_case(uint64_t seed, xm_memory_space_t *space, unsigned what)
{
    random_t random = {seed};
    sim_options_t options = {.window = random_int(&random, 1, 3),
                             .tight_memory = random_int(&random, 0, 2) == 0,
                             .turns = random_int(&random, 0, 1) == 1,
                             .turn_ahead = (uint64_t)random_int(&random, 1, 500),
                             .space = space,
                             .mixed = (what & MIXED) != 0,
                             .direct = (what & DIRECT) != 0,
                             .device_peers = (what & PEERS) != 0};
    batch_t batch;
    sim_job_t job;
    int64_t resends = 0;

    batch_create(&random, &batch);
    sim_job_create(&job, batch.plan, batch.random.network, &options, &random);
    if ((what & PROVEN) != 0) {
        spoiler_attach(&job, seed, 20);
    }
    for (uint64_t round = 0; round < 2; ++round) {
        xm_status_t results[SIM_MAX_RANKS];

        sim_job_fill(&job, seed * 2 + round);
        ck_assert_msg(sim_job_run(&job, results), "seed %d stands still: %s", (int)seed,
                      random_batch_text(&batch.random));
        for (int r = 0; r < job.ranks; ++r) {
            ck_assert_int_eq(results[r], XM_OK);
        }
        sim_job_check(&job, random_batch_text(&batch.random));
    }
    if ((what & PROVEN) != 0) {
        resends += spoiler_resends();
        ck_assert_int_eq(mapped_hops(&job), 0); /* the host sees all that travels */
    }
    sim_job_destroy(&job);
    if ((what & PROVEN) != 0) {
        spoiler_release();
    }
    batch_destroy(&batch);
    return resends;
}

static int64_t check_cases(unsigned what)
{
    xm_memory_space_t *space = open_device();
    int64_t resends = 0;

    for (uint64_t seed = 1; seed <= (uint64_t)xm_test_rounds(CASES); ++seed) {
        resends += check_case(seed, space, what);
    }
    xm_memory_space_destroy(space);
    return resends;
}

START_TEST(tiles_go_by_pinned_buffers)
{
    (void)check_cases(0);
}
END_TEST

START_TEST(tiles_of_host_and_device_are_mixed)
{
    (void)check_cases(MIXED);
}
END_TEST

START_TEST(tiles_go_directly)
{
    (void)check_cases(DIRECT);
}
END_TEST

START_TEST(direct_and_host_tiles_are_mixed)
{
    (void)check_cases(MIXED | DIRECT);
}
END_TEST

START_TEST(neighbours_copy_out_of_tiles)
{
    (void)check_cases(PEERS);
}
END_TEST

START_TEST(neighbours_copy_what_they_can)
{
    (void)check_cases(PEERS | MIXED);
}
END_TEST

/* Flips between ranks are mended, whatever of the tiles is on a device. */
START_TEST(tiles_prove_themselves)
{
    ck_assert_int_eq(setenv("XM_VERIFY", "chunk", 1), 0);
    ck_assert_int_gt(check_cases(PROVEN | PEERS), 0);
    ck_assert_int_gt(check_cases(PROVEN | PEERS | MIXED), 0);
}
END_TEST

/* ---- one plan ---------------------------------------------------------------------------------
 */

/* With PEERS, ranks of a host have traffic with each other. */
static void create_plan(fixed_t *fixed, unsigned what)
{
    if ((what & PEERS) != 0) {
        fixed_create(fixed, "2x4", "RS0", "2x4", 0, "S0R", 8, 64, 48);
    } else {
        fixed_default(fixed);
    }
}

static void open_job(sim_job_t *job, const fixed_t *fixed, xm_memory_space_t *space, unsigned what)
{
    random_t random = {1};
    sim_options_t options = {.window = 2,
                             .space = space,
                             .direct = (what & DIRECT) != 0,
                             .device_peers = (what & PEERS) != 0};

    sim_job_create(job, fixed->plan, fixed->network, &options, &random);
    sim_job_fill(job, 1);
}

START_TEST(the_path_is_told)
{
    fixed_t fixed;
    sim_job_t job;
    xm_memory_space_t *space = open_device();
    xm_status_t results[SIM_MAX_RANKS];

    fixed_default(&fixed);
    open_job(&job, &fixed, space, 0);
    ck_assert_ptr_nonnull(strstr(xm_executor_device_path(job.executor[0]), "pinned buffers"));
    sim_job_destroy(&job);
    open_job(&job, &fixed, space, DIRECT);
    ck_assert_ptr_nonnull(strstr(xm_executor_device_path(job.executor[0]), "direct"));
    ck_assert(sim_job_run(&job, results));
    sim_job_check(&job, "direct");
    ck_assert_int_gt(device_messages(&job), 0);
    sim_job_destroy(&job);
    ck_assert_int_eq(setenv("XM_CUDA", "staging", 1), 0);
    open_job(&job, &fixed, space, DIRECT);
    ck_assert_ptr_nonnull(strstr(xm_executor_device_path(job.executor[0]), "pinned buffers"));
    ck_assert(sim_job_run(&job, results));
    sim_job_check(&job, "staging");
    ck_assert_int_eq(device_messages(&job), 0);
    sim_job_destroy(&job);
    open_job(&job, &fixed, NULL, 0);
    ck_assert_str_eq(xm_executor_device_path(job.executor[0]), "");
    sim_job_destroy(&job);
    fixed_destroy(&fixed);
    xm_memory_space_destroy(space);
}
END_TEST

/* A stream of the user's writes the sources while the run is posted; the run reads them after. */
static void check_stream(unsigned what)
{
    fixed_t fixed;
    sim_job_t job;
    xm_memory_space_t *space = open_device();
    xm_status_t results[SIM_MAX_RANKS];
    void *late[SIM_MAX_RANKS] = {NULL};
    bool busy = true;

    create_plan(&fixed, what);
    open_job(&job, &fixed, space, what);
    sim_job_fill(&job, 5);
    for (int r = 0; r < job.ranks; ++r) { /* the right sources wait elsewhere */
        size_t bytes = job.buffers[r][0].src_bytes;
        void *src = (void *)(uintptr_t)job.buffers[r][0].src;

        results[r] = XM_IN_PROGRESS;
        if (bytes > 0) {
            char *wrong = malloc(bytes);

            memset(wrong, 0x11, bytes);
            ck_assert_xm_ok(xm_memory_allocate_pinned(space, bytes, &late[r]));
            ck_assert_xm_ok(xm_memory_copy(space, late[r], src, bytes));
            ck_assert_xm_ok(xm_memory_copy(space, src, wrong, bytes));
            free(wrong);
        }
    }
    for (int r = 0; r < job.ranks; ++r) {
        size_t bytes = job.buffers[r][0].src_bytes;

        if (bytes > 0) {
            cuda_copy_on_default_stream(job.buffers[r][0].src, late[r], bytes);
        }
        ck_assert_xm_ok(xm_executor_post_after(job.executor[r], NULL));
    }
    while (busy) {
        busy = false;
        for (int r = 0; r < job.ranks; ++r) {
            (void)xm_transport_progress(job.transport[r]);
            if (results[r] == XM_IN_PROGRESS) {
                results[r] = xm_executor_advance(job.executor[r]);
            }
            busy = busy || results[r] == XM_IN_PROGRESS;
        }
        (void)xm_sim_fabric_step(job.fabric);
    }
    sim_job_check(&job, "after a stream");
    for (int r = 0; r < job.ranks; ++r) {
        ck_assert_int_eq(results[r], XM_OK);
        xm_memory_release_pinned(space, late[r]);
    }
    sim_job_destroy(&job);
    fixed_destroy(&fixed);
    xm_memory_space_destroy(space);
}

START_TEST(a_run_follows_a_stream)
{
    check_stream(0);
}
END_TEST

START_TEST(a_direct_run_follows_a_stream)
{
    check_stream(DIRECT);
}
END_TEST

START_TEST(neighbours_follow_a_stream)
{
    check_stream(PEERS);
}
END_TEST

/* Cancelled at any moment, on all ranks or on one; then run well. */
static void check_cancel(unsigned what, int rounds)
{
    fixed_t fixed;
    sim_job_t job;
    xm_memory_space_t *space = open_device();
    xm_status_t results[SIM_MAX_RANKS], first[SIM_MAX_RANKS];

    create_plan(&fixed, what);
    open_job(&job, &fixed, space, what);
    for (int r = 0; r < job.ranks; ++r) {
        ck_assert_xm_ok(xm_executor_post(job.executor[r]));
        first[r] = xm_executor_advance(job.executor[r]);
    }
    for (int i = 0; i < rounds; ++i) {
        for (int r = 0; r < job.ranks; ++r) {
            (void)xm_transport_progress(job.transport[r]);
            first[r] = xm_executor_advance(job.executor[r]);
        }
        (void)xm_sim_fabric_step(job.fabric);
    }
    for (int r = 0; r < job.ranks; ++r) {
        xm_executor_cancel(job.executor[r]);
        results[r] = XM_IN_PROGRESS;
    }
    for (int left = job.ranks; left > 0;) {
        left = 0;
        for (int r = 0; r < job.ranks; ++r) {
            (void)xm_transport_progress(job.transport[r]);
            results[r] = xm_executor_advance(job.executor[r]);
            left += results[r] == XM_IN_PROGRESS;
        }
        (void)xm_sim_fabric_step(job.fabric);
    }
    for (int r = 0; r < job.ranks; ++r) {
        ck_assert_int_eq(results[r], first[r] == XM_OK ? XM_OK : XM_ERR_CANCELED);
    }
    sim_job_fill(&job, 2);
    ck_assert(sim_job_run(&job, results));
    sim_job_check(&job, "after a cancelled run");
    sim_job_destroy(&job);
    fixed_destroy(&fixed);
    xm_memory_space_destroy(space);
}

START_TEST(a_cancelled_run_leaves_nothing_behind)
{
    for (int rounds = 0; rounds < 200; rounds += 20) {
        check_cancel(0, rounds);
        check_cancel(PEERS, rounds);
    }
}
END_TEST

/* The others can go on: it waits for neighbours that copy from it, not for their runs. */
START_TEST(a_rank_that_gives_up_alone_ends)
{
    for (int rounds = 0; rounds < 100; rounds += 20) {
        fixed_t fixed;
        sim_job_t job;
        xm_memory_space_t *space = open_device();
        xm_status_t results[SIM_MAX_RANKS];
        int left = 1;

        create_plan(&fixed, PEERS);
        open_job(&job, &fixed, space, PEERS);
        for (int r = 0; r < job.ranks; ++r) {
            ck_assert_xm_ok(xm_executor_post(job.executor[r]));
        }
        for (int i = 0; left > 0; ++i) {
            left = 0;
            for (int r = 0; r < job.ranks; ++r) {
                (void)xm_transport_progress(job.transport[r]);
                results[r] = xm_executor_advance(job.executor[r]);
                left += results[r] == XM_IN_PROGRESS;
            }
            if (i == rounds) {
                xm_executor_cancel(job.executor[3]);
            }
            if (i > rounds && results[3] != XM_IN_PROGRESS) {
                for (int r = 0; r < job.ranks; ++r) {
                    xm_executor_cancel(job.executor[r]);
                }
            }
            (void)xm_sim_fabric_step(job.fabric);
        }
        sim_job_fill(&job, 2);
        ck_assert(sim_job_run(&job, results));
        sim_job_check(&job, "after one rank gave up");
        sim_job_destroy(&job);
        fixed_destroy(&fixed);
        xm_memory_space_destroy(space);
    }
}
END_TEST

START_TEST(neighbours_open_tiles_unless_told_otherwise)
{
    for (int staging = 0; staging < 2; ++staging) {
        fixed_t fixed;
        sim_job_t job;
        xm_memory_space_t *space = open_device();
        xm_status_t results[SIM_MAX_RANKS];

        ck_assert_int_eq(setenv("XM_CUDA", staging ? "staging" : "auto", 1), 0);
        create_plan(&fixed, PEERS);
        open_job(&job, &fixed, space, PEERS);
        ck_assert(sim_job_run(&job, results));
        sim_job_check(&job, "neighbours");
        ck_assert(staging ? mapped_hops(&job) == 0 : mapped_hops(&job) > 0);
        sim_job_destroy(&job);
        fixed_destroy(&fixed);
        xm_memory_space_destroy(space);
    }
}
END_TEST

static bool run_checksums(sim_job_t *job, xm_status_t *results)
{
    xm_checksum_t *checksums[SIM_MAX_RANKS];
    bool moved = true;

    for (int r = 0; r < job->ranks; ++r) {
        ck_assert_xm_ok(xm_checksum_create(job->executor[r], &checksums[r]));
        results[r] = XM_IN_PROGRESS;
    }
    for (int left = job->ranks; left > 0 && moved;) {
        left = 0;
        moved = false;
        for (int r = 0; r < job->ranks; ++r) {
            moved = xm_transport_progress(job->transport[r]) > 0 || moved;
            if (results[r] == XM_IN_PROGRESS) {
                moved = !xm_checksum_may_sleep(checksums[r]) || moved;
                results[r] = xm_checksum_advance(checksums[r]);
            }
            left += results[r] == XM_IN_PROGRESS;
        }
        moved = xm_sim_fabric_step(job->fabric) || moved || left == 0;
    }
    for (int r = 0; r < job->ranks; ++r) {
        xm_checksum_destroy(checksums[r]);
    }
    return moved;
}

START_TEST(checksums_read_the_device)
{
    fixed_t fixed;
    sim_job_t job;
    xm_memory_space_t *space = open_device();
    xm_status_t results[SIM_MAX_RANKS];
    int corrupt = 0;

    fixed_default(&fixed);
    open_job(&job, &fixed, space, 0);
    ck_assert(sim_job_run(&job, results));
    ck_assert(run_checksums(&job, results));
    for (int r = 0; r < job.ranks; ++r) {
        ck_assert_int_eq(results[r], XM_OK);
    }
    ck_assert_xm_ok(xm_memory_copy(space, (char *)job.buffers[9][0].dst + 77, "wrong", 5));
    ck_assert(run_checksums(&job, results));
    for (int r = 0; r < job.ranks; ++r) {
        ck_assert_int_eq(results[r], r == 9 ? XM_ERR_CORRUPT : XM_OK);
        corrupt += results[r] == XM_ERR_CORRUPT;
    }
    ck_assert_int_eq(corrupt, 1);
    sim_job_destroy(&job);
    fixed_destroy(&fixed);
    xm_memory_space_destroy(space);
}
END_TEST

/* ---- faults, with the stand-in only -----------------------------------------------------------
 */

START_TEST(tiles_on_two_devices_are_refused)
{
    fixed_t fixed;
    xm_memory_space_t *spaces[2];
    xm_sim_fabric_params_t fabric_params = {0};
    xm_executor_params_t params = {0};
    xm_sim_fabric_t *fabric;
    xm_executor_t *executor;
    xm_transport_t *transport;
    void *buffers[2];

    fixed_create(&fixed, "2", "S0R", "2", 0, "RS0", 2, 64, 48); /* all ranks hold both */
    fabric_params.ranks = 2;
    ck_assert_xm_ok(xm_sim_fabric_create(&fabric_params, &fabric));
    ck_assert_xm_ok(xm_transport_sim_create(fabric, 0, &transport));
    for (int d = 0; d < 2; ++d) {
        ck_assert_xm_ok(xm_memory_cuda_create(d, &spaces[d]));
        ck_assert_xm_ok(xm_memory_allocate(spaces[d], 65536, &buffers[d]));
    }
    params.plan = fixed.plan;
    params.transport = transport;
    params.src = buffers[0];
    params.dst = buffers[1];
    params.src_bytes = params.dst_bytes = 65536;
    ck_assert_xm_fails(xm_executor_create(&params, &executor), XM_ERR_UNSUPPORTED,
                       "on CUDA device 0, one of tensor");
    for (int d = 0; d < 2; ++d) {
        xm_memory_release(spaces[d], buffers[d]);
        xm_memory_space_destroy(spaces[d]);
    }
    xm_transport_destroy(transport);
    xm_sim_fabric_destroy(fabric);
    fixed_destroy(&fixed);
}
END_TEST

/* Whatever fails at creation or in a run: a status, a sentence, and nothing hangs or leaks. */
static void check_fault(const char *faults, bool at_creation, xm_status_t expected,
                        const char *text)
{
    fixed_t fixed;
    sim_job_t job;
    xm_memory_space_t *space = open_device();
    xm_status_t results[SIM_MAX_RANKS];
    int failed = 0;

    fixed_default(&fixed);
    open_job(&job, &fixed, space, 0);
    cuda_fail(faults);
    if (at_creation) {
        xm_executor_params_t params = {0};
        xm_executor_t *executor;

        params.plan = fixed.plan;
        params.transport = job.transport[0];
        params.buffers = job.buffers[0];
        ck_assert_xm_fails(xm_executor_create(&params, &executor), expected, text);
        ck_assert_ptr_nonnull(strstr(xm_last_error(), "rank 0: "));
    } else {
        (void)sim_job_run(&job, results); /* this fabric tells nobody who gave up */
        for (int r = 0; r < job.ranks; ++r) {
            failed += results[r] == expected;
        }
        ck_assert_int_gt(failed, 0);
        ck_assert_msg(strstr(xm_last_error(), text) != NULL, "'%s' lacks '%s'", xm_last_error(),
                      text);
    }
    cuda_fail("");
    sim_job_destroy(&job);
    fixed_destroy(&fixed);
    xm_memory_space_destroy(space);
}

START_TEST(full_pinned_memory_fails_the_creation)
{
    check_fault("cuMemHostAlloc=2", true, XM_ERR_NO_MEMORY, "cuMemHostAlloc of ");
}
END_TEST

START_TEST(a_driver_without_streams_fails_the_creation)
{
    check_fault("cuStreamCreate=999", true, XM_ERR_IO, "cuStreamCreate: unknown result (999");
}
END_TEST

START_TEST(a_device_that_is_lost_fails_the_run)
{
    check_fault("step=700@20", false, XM_ERR_IO, "CUDA_ERROR_ILLEGAL_ADDRESS");
}
END_TEST

START_TEST(copies_that_cannot_start_fail_the_run)
{
    check_fault("cuLaunchKernel=700,cuMemcpy2DAsync_v2=700,cuMemcpyAsync=700", false, XM_ERR_IO,
                "cuMemcpyAsync");
}
END_TEST

START_TEST(kernels_that_do_not_start_are_done_without)
{
    xm_memory_space_t *space = open_device();

    cuda_fail("cuLaunchKernel=701@5");
    for (uint64_t seed = 1; seed <= 10; ++seed) {
        (void)check_case(seed, space, 0);
    }
    xm_memory_space_destroy(space);
}
END_TEST

/* The programs that run on any machine, and on one with a device, are the same. */
static bool lacks_device(void)
{
    const char *chosen = getenv("CK_RUN_CASE");

    return chosen != NULL && strcmp(chosen, "cuda") == 0 && !cuda_is_there();
}

int main(void)
{
    Suite *suite;
    TCase *cuda, *fault;

    if (lacks_device()) {
        return CUDA_SKIPPED;
    }
    suite = suite_create("execute on a device");
    cuda = tcase_create("cuda");
    fault = tcase_create("fault");
    tcase_set_timeout(cuda, 120);
    tcase_add_test(cuda, a_cancelled_run_leaves_nothing_behind);
    tcase_add_test(cuda, tiles_go_by_pinned_buffers);
    tcase_add_test(cuda, tiles_of_host_and_device_are_mixed);
    tcase_add_test(cuda, tiles_go_directly);
    tcase_add_test(cuda, direct_and_host_tiles_are_mixed);
    tcase_add_test(cuda, neighbours_copy_out_of_tiles);
    tcase_add_test(cuda, neighbours_copy_what_they_can);
    tcase_add_test(cuda, tiles_prove_themselves);
    tcase_add_test(cuda, neighbours_follow_a_stream);
    tcase_add_test(cuda, the_path_is_told);
    tcase_add_test(cuda, a_run_follows_a_stream);
    tcase_add_test(cuda, a_direct_run_follows_a_stream);
    tcase_add_test(cuda, a_rank_that_gives_up_alone_ends);
    tcase_add_test(cuda, neighbours_open_tiles_unless_told_otherwise);
    tcase_add_test(cuda, checksums_read_the_device);
    tcase_set_timeout(fault, 60);
    tcase_add_test(fault, tiles_on_two_devices_are_refused);
    tcase_add_test(fault, full_pinned_memory_fails_the_creation);
    tcase_add_test(fault, a_driver_without_streams_fails_the_creation);
    tcase_add_test(fault, a_device_that_is_lost_fails_the_run);
    tcase_add_test(fault, copies_that_cannot_start_fail_the_run);
    tcase_add_test(fault, kernels_that_do_not_start_are_done_without);
    suite_add_tcase(suite, cuda);
    suite_add_tcase(suite, fault);
    return xm_test_run(suite);
}
