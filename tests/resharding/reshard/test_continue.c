/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Real processes: ranks die in the middle of a large reshard, the others shrink the group, continue
 * it and have every byte; what the rest moves is what the records say is missing.
 */
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

#include <crossmesh/group.h>
#include <crossmesh/reshard.h>
#include "comm/worker.h"
#include "resharding/plan.h"
#include "resharding/reshard/continue.h"
#include "tests/comm/job/local_job.h"
#include "tests/resharding/plan/random_case.h"
#include "xm_test.h"

enum { RANKS = 6, DEADLINE_S = 60, SEED = 77, STEPS = 40 };

typedef struct {
    const char *src, *dst; /* specs on meshes of 2x3 */
    unsigned doomed;       /* bits of ranks that die */
    int per_host;
    bool gone;  /* they take something along that nobody else has */
    bool abort; /* nobody dies: rank 1 gives the run up */
    bool again; /* and the last rank dies in the rest */
} story_t;

typedef struct {
    xm_layout_t *src, *dst;
    xm_tensor_t tensor;
    xm_tensor_buffers_t buffers;
    xm_reshard_params_t params;
    xm_reshard_t *reshard;
} matrix_t;

static void open_matrix(xm_worker_t *worker, const story_t *story, matrix_t *m)
{
    int rank = xm_worker_rank(worker);

    *m = (matrix_t){.params = XM_RESHARD_PARAMS_INIT};
    local_expect_ok(
        xm_layout_parse("3072x1536", "2x3", NULL, story->src, XM_PARTITION_EVEN, &m->src));
    local_expect_ok(
        xm_layout_parse("3072x1536", "2x3", NULL, story->dst, XM_PARTITION_EVEN, &m->dst));
    m->tensor = (xm_tensor_t){"matrix", m->src, m->dst, 32};
    m->buffers.src_bytes = xm_layout_buffer_bytes(m->src, rank, 4);
    m->buffers.dst_bytes = xm_layout_buffer_bytes(m->dst, rank, 4);
    m->buffers.src = malloc(m->buffers.src_bytes);
    m->buffers.dst = malloc(m->buffers.dst_bytes);
    pattern_fill(m->src, rank, 4, SEED, (void *)(uintptr_t)m->buffers.src);
    memset(m->buffers.dst, 0x5a, m->buffers.dst_bytes);
    m->params.tensors = &m->tensor;
    m->params.buffers = &m->buffers;
    m->params.dtype = "int32";
    local_expect_ok(xm_reshard_create(worker, &m->params, &m->reshard));
    /* One run that nobody dies in opens the connections: UCX may not survive a death in that
     * (docs/failures.md). It is forgotten before the next begins anywhere. */
    local_expect_ok(xm_reshard_run(m->reshard, 0));
    memset(m->buffers.dst, 0x5a, m->buffers.dst_bytes);
    local_expect_ok(xm_worker_barrier(worker));
    /* What the reshard was made of need not be there for its continuation. */
    m->tensor = (xm_tensor_t){0};
}

static void close_matrix(matrix_t *m)
{
    xm_reshard_destroy(m->reshard);
    free((void *)(uintptr_t)m->buffers.src);
    free(m->buffers.dst);
    xm_layout_destroy(m->src);
    xm_layout_destroy(m->dst);
}

/* Dies, or gives up, after some steps of its run; at once where nobody may have what it has. */
static void die_in_the_middle(xm_worker_t *worker, const story_t *story, xm_reshard_t *reshard)
{
    if (story->gone) {
        (void)raise(SIGKILL);
    }
    local_expect_ok(xm_reshard_post(reshard, 0));
    for (int step = 0; step < STEPS && xm_reshard_test(reshard) == XM_IN_PROGRESS; ++step) {
        (void)xm_worker_progress(worker);
    }
    if (!story->abort) {
        (void)raise(SIGKILL);
    }
    local_expect_ok(xm_group_abort(worker, "the disk is full"));
}

static int64_t read_number(const unsigned char *bytes)
{
    uint64_t value = 0;

    for (int i = 7; i >= 0; --i) {
        value = value << 8 | bytes[i];
    }
    return (int64_t)value;
}

/* Bytes that this rank has received by its record: 53 bytes of head, then stretches. */
static uint64_t received(const xm_reshard_t *reshard, int rank)
{
    const xm_plan_t *plan = xm_reshard_plan(reshard);
    uint64_t sum = 0;
    unsigned char *record;
    void *bytes;
    size_t length;

    local_expect_ok(xm_reshard_delivered(reshard, &bytes, &length));
    record = bytes;
    for (int64_t t = 0; t < plan_transfer_count(plan); ++t) {
        const xm_transfer_t *transfer = plan_transfer_at(plan, t);
        const xm_route_t *route = xm_plan_route(plan, transfer->route);
        bool mine = false;

        for (int i = 0; i < route->count; ++i) {
            mine = mine || route->ranks[i] == rank;
        }
        for (size_t at = 53; mine && at + 24 <= length; at += 24) {
            if (t >= read_number(record + at) && t < read_number(record + at + 8)) {
                sum += (uint64_t)(transfer->end - transfer->first) * 4;
            } else if (t == read_number(record + at + 8)) {
                sum += (uint64_t)read_number(record + at + 16) * 4;
            }
        }
    }
    free(bytes);
    return sum;
}

/* Of all hops of a plan. */
static uint64_t moved(const xm_plan_t *plan)
{
    uint64_t sum = 0;

    for (int64_t t = 0; t < plan_transfer_count(plan); ++t) {
        sum += xm_plan_transfer_bytes(plan, t) *
               (uint64_t)xm_plan_route(plan, plan_transfer_at(plan, t)->route)->count;
    }
    return sum;
}

static void count_gap(void *arg, const xm_plan_gap_t *gap)
{
    *(int *)arg += gap->end > gap->first;
}

/* Shrinks and continues; checks that the rest moves what this and all other ranks miss. */
static void go_on(xm_worker_t *worker, const story_t *story, matrix_t *m, int old_rank)
{
    xm_reshard_continue_params_t params = XM_RESHARD_CONTINUE_PARAMS_INIT;
    xm_plan_info_t info = XM_PLAN_INFO_INIT;
    uint64_t missing, kept, all[RANKS], sum = 0;
    xm_reshard_t *rest = NULL;
    int gaps = 0;

    (void)xm_group_abort(worker, xm_last_error());
    local_expect_ok(xm_group_shrink(worker, 0));
    local_expect_fails(xm_reshard_post(m->reshard, 0), XM_ERR_CANCELED, "only be continued");
    kept = received(m->reshard, old_rank);
    missing = m->buffers.dst_bytes - kept;
    local_expect_ok(xm_worker_allgather(worker, &missing, all, sizeof(missing)));
    for (int r = 0; r < xm_worker_size(worker); ++r) {
        sum += all[r];
    }
    if (story->gone) {
        local_expect_fails(xm_reshard_continue(worker, m->reshard, NULL, &rest), XM_ERR_NO_SOLUTION,
                           "tensor matrix: no rank that is left holds");
        params.gap = count_gap;
        params.arg = &gaps;
    }
    local_expect_ok(xm_reshard_continue(worker, m->reshard, &params, &rest));
    local_expect_ok(xm_plan_get_info(xm_reshard_plan(rest), &info));
    local_expect(moved(xm_reshard_plan(rest)) + info.gone_bytes == sum,
                 "%llu bytes are moved and %llu gone, %llu are missing",
                 (unsigned long long)moved(xm_reshard_plan(rest)),
                 (unsigned long long)info.gone_bytes, (unsigned long long)sum);
    local_expect((gaps > 0) == story->gone && (info.gone_bytes > 0) == story->gone,
                 "%llu bytes are gone", (unsigned long long)info.gone_bytes);
    xm_reshard_destroy(m->reshard);
    m->reshard = rest;
}

/* Every byte of the destination but those that nobody has. The layouts have the old ranks. */
static void check(const matrix_t *m, const story_t *story, int job_rank)
{
    int64_t wrong = pattern_wrong(m->dst, job_rank, 4, SEED, m->buffers.dst);

    local_expect(story->gone || wrong == 0, "rank %d: %d wrong bytes", job_rank, (int)wrong);
    if (story->gone) { /* columns of other ranks' rows are all there */
        const int32_t *dst = m->buffers.dst;
        int64_t rubbish = 0, count = (int64_t)(m->buffers.dst_bytes / 4);

        for (int64_t i = 0; i < count; ++i) {
            rubbish += dst[i] == 0x5a5a5a5a;
        }
        local_expect(wrong <= 4 * rubbish && rubbish <= count / RANKS,
                     "%d bytes are wrong, %d elements not written", (int)wrong, (int)rubbish);
    }
}

static int live(const xm_job_env_t *env, int listen_fd, void *arg)
{
    const story_t *story = arg;
    xm_worker_params_t params = XM_WORKER_PARAMS_INIT;
    bool doomed = (story->doomed >> env->rank & 1) != 0;
    xm_worker_t *worker;
    xm_status_t status;
    matrix_t m;
    char host[32];

    (void)snprintf(host, sizeof(host), "h%d", env->rank / story->per_host);
    params.listen_fd = listen_fd;
    params.host = host;
    params.timeout = DEADLINE_S;
    local_expect_ok(xm_worker_create(env, &params, &worker));
    open_matrix(worker, story, &m);
    if (doomed || (story->abort && env->rank == 1)) {
        die_in_the_middle(worker, story, m.reshard);
        status = XM_ERR_CANCELED;
    } else {
        status = xm_reshard_run(m.reshard, 0);
    }
    /* Some may have ended well before the death; the others cannot, so there is a rest to bring. */
    while (status == XM_OK) {
        status = xm_worker_wait(worker, xm_worker_deadline(worker));
    }
    local_expect(status == XM_ERR_PEER_DIED || status == XM_ERR_CANCELED, "%s (%s)",
                 xm_status_string(status), xm_last_error());
    go_on(worker, story, &m, env->rank);
    if (story->again) {
        int rank = xm_worker_rank(worker);

        if (rank == xm_worker_size(worker) - 1) {
            (void)raise(SIGKILL);
        }
        status = xm_reshard_run(m.reshard, 0);
        while (status == XM_OK) {
            status = xm_worker_wait(worker, xm_worker_deadline(worker));
        }
        (void)xm_group_abort(worker, xm_last_error());
        local_expect_ok(xm_group_shrink(worker, 0));
        {
            xm_reshard_t *rest;

            local_expect_ok(xm_reshard_continue(worker, m.reshard, NULL, &rest));
            xm_reshard_destroy(m.reshard);
            m.reshard = rest;
        }
    }
    local_expect_ok(xm_reshard_run(m.reshard, 0));
    check(&m, story, env->rank);
    local_expect_ok(xm_reshard_verify(m.reshard, 0));
    local_expect_fails(xm_reshard_post(m.reshard, 0), XM_ERR_UNSUPPORTED, "nothing is left to run");
    close_matrix(&m);
    xm_worker_destroy(worker, NULL);
    return 0;
}

static const story_t stories[] = {
    {"S1R", "RS01", .doomed = 1u << 2, .per_host = 2},
    {"RS1", "S01R", .doomed = 1u << 0, .per_host = RANKS},
    {"S1R", "RS1", .doomed = 1u << 4 | 1u << 5, .per_host = 2},
    {"S01R", "RS01", .doomed = 1u << 3, .per_host = 3, .gone = true},
    {"S01R", "RS01", .per_host = 2, .abort = true},
    {"S1R", "S0R", .doomed = 1u << 1, .per_host = 1, .again = true},
};

START_TEST(survivors_continue)
{
    const story_t *story = &stories[_i];
    unsigned doomed = story->doomed;
    local_job_t job;

    if (story->again) {
        doomed |= 1u << (RANKS - 1);
    }
    local_job_start(&job, RANKS, 0, DEADLINE_S, live, (void *)(uintptr_t)story);
    local_job_wait(&job, doomed);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("continue");
    TCase *tcase = tcase_create("reshards");

    tcase_set_timeout(tcase, 2 * DEADLINE_S);
    tcase_add_loop_test(tcase, survivors_continue, 0, (int)(sizeof(stories) / sizeof(*stories)));
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
