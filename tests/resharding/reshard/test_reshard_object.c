/* SPDX-License-Identifier: Apache-2.0 */
/* The reshard object on real processes: many runs, several at once, ranks that disagree, refuse,
 * cancel and die. */
#include <crossmesh/group.h>
#include <crossmesh/reshard.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <unistd.h>

#include "comm/worker/worker.h"
#include "tests/comm/job/local_job.h"
#include "tests/resharding/plan/random_case.h"
#include "xm_test.h"

enum { RANKS = 4, PER_HOST = 2, DEADLINE_S = 60, CASES = 150, CHANNELS = 254 };

static xm_worker_t *join(const xm_job_env_t *env, int listen_fd)
{
    xm_worker_params_t params = XM_WORKER_PARAMS_INIT;
    xm_worker_t *worker;
    char host[32];

    (void)snprintf(host, sizeof(host), "host%d", env->rank / PER_HOST);
    params.listen_fd = listen_fd;
    params.host = host;
    params.timeout = DEADLINE_S;
    local_expect_ok(xm_worker_create(env, &params, &worker));
    return worker;
}

/* A matrix of 32-bit numbers from rows on all ranks to columns on all ranks. */
typedef struct {
    xm_layout_t *src, *dst;
    xm_tensor_t tensor;
    xm_tensor_buffers_t buffers;
    xm_reshard_params_t params;
    xm_reshard_t *reshard;
} matrix_t;

static void open_matrix(const xm_worker_t *worker, const char *shape, matrix_t *m)
{
    int size = xm_worker_size(worker), rank = xm_worker_rank(worker);
    char mesh[16];

    (void)snprintf(mesh, sizeof(mesh), "%d", size);
    memset(m, 0, sizeof(*m));
    local_expect_ok(xm_layout_parse(shape, mesh, NULL, "S0R", XM_PARTITION_CHUNK, &m->src));
    local_expect_ok(xm_layout_parse(shape, mesh, NULL, "RS0", XM_PARTITION_CHUNK, &m->dst));
    m->tensor = (xm_tensor_t){"matrix", m->src, m->dst, 32};
    m->buffers.src_bytes = xm_layout_buffer_bytes(m->src, rank, 4);
    m->buffers.dst_bytes = xm_layout_buffer_bytes(m->dst, rank, 4);
    m->buffers.src = malloc(m->buffers.src_bytes + 1);
    m->buffers.dst = malloc(m->buffers.dst_bytes + 1);
    m->params = (xm_reshard_params_t)XM_RESHARD_PARAMS_INIT;
    m->params.tensors = &m->tensor;
    m->params.buffers = &m->buffers;
    m->params.dtype = "int32";
}

static void close_matrix(matrix_t *m)
{
    xm_reshard_destroy(m->reshard);
    xm_layout_destroy(m->src);
    xm_layout_destroy(m->dst);
    free((void *)(uintptr_t)m->buffers.src);
    free(m->buffers.dst);
}

static void fill(const xm_worker_t *worker, const matrix_t *m, uint64_t seed)
{
    pattern_fill(m->src, xm_worker_rank(worker), 4, seed, (void *)(uintptr_t)m->buffers.src);
    memset(m->buffers.dst, 0x5a, m->buffers.dst_bytes);
}

static void check(const xm_worker_t *worker, const matrix_t *m, uint64_t seed)
{
    int64_t wrong = pattern_wrong(m->dst, xm_worker_rank(worker), 4, seed, m->buffers.dst);

    local_expect(wrong == 0, "rank %d: %d wrong bytes", xm_worker_rank(worker), (int)wrong);
}

/* ---- Runs ----------------------------------------------------------------------------------- */

static void count_done(void *arg, int tensor)
{
    *(int *)arg += tensor + 1;
}

static int run_often(const xm_job_env_t *env, int listen_fd, void *arg)
{
    xm_worker_t *worker = join(env, listen_fd);
    int done = 0;
    matrix_t m;

    (void)arg;
    open_matrix(worker, "123x77", &m);
    m.params.tensor_done = count_done;
    m.params.arg = &done;
    local_expect_ok(xm_reshard_create(worker, &m.params, &m.reshard));
    local_expect_ok(xm_reshard_test(m.reshard));
    local_expect(xm_plan_bytes(xm_reshard_plan(m.reshard)) == 123 * 77 * 4, "another plan");
    local_expect(xm_reshard_device_path(m.reshard)[0] == '\0', "a device");
    for (uint64_t round = 1; round <= 100; ++round) {
        fill(worker, &m, round);
        local_expect_ok(xm_reshard_run(m.reshard, 0));
        check(worker, &m, round);
        local_expect(done == (int)round, "told %d times in %d runs", done, (int)round);
    }
    local_expect_ok(xm_reshard_verify(m.reshard, 0));
    ((char *)m.buffers.dst)[5] ^= 1;
    local_expect_fails(xm_reshard_verify(m.reshard, 0), XM_ERR_CORRUPT, "tensor matrix");
    close_matrix(&m);
    xm_worker_destroy(worker, NULL);
    return 0;
}

START_TEST(runs_as_often_as_wanted)
{
    local_job_run(RANKS, DEADLINE_S, run_often, NULL);
}
END_TEST

/* Ranks post and wait in different orders, and destroy when they like. */
static int run_two(const xm_job_env_t *env, int listen_fd, void *arg)
{
    xm_worker_t *worker = join(env, listen_fd);
    int odd = env->rank % 2;
    matrix_t m[2];

    (void)arg;
    for (uint64_t seed = 1; seed <= (uint64_t)xm_test_rounds(CASES); ++seed) {
        const char *shapes[] = {"64x640", "7x3"};

        for (int i = 0; i < 2; ++i) {
            open_matrix(worker, shapes[i], &m[i]);
            m[i].params.turns = seed % 3 == 0;
            local_expect_ok(xm_reshard_create(worker, &m[i].params, &m[i].reshard));
            fill(worker, &m[i], 2 * seed + (uint64_t)i);
        }
        local_expect_ok(xm_reshard_post(m[odd].reshard, 0));
        local_expect_ok(xm_reshard_post(m[1 - odd].reshard, 0));
        local_expect_ok(xm_reshard_wait(m[odd].reshard, INT64_MAX));
        if (seed % 2 == 0) {
            local_expect_ok(xm_worker_barrier(worker)); /* serves the other one as well */
        }
        local_expect_ok(xm_reshard_wait(m[1 - odd].reshard, INT64_MAX));
        for (int i = 0; i < 2; ++i) {
            check(worker, &m[i], 2 * seed + (uint64_t)i);
        }
        close_matrix(&m[odd]);
        close_matrix(&m[1 - odd]);
    }
    xm_worker_destroy(worker, NULL);
    return 0;
}

START_TEST(two_go_on_whichever_is_waited_for)
{
    local_job_run(RANKS, DEADLINE_S, run_two, NULL);
}
END_TEST

/* Rank 0 comes to the making late; the others look after other things. */
static int make_in_pieces(const xm_job_env_t *env, int listen_fd, void *arg)
{
    atomic_int *waiting = arg;
    xm_worker_t *worker = join(env, listen_fd);
    xm_status_t status;
    xm_plan_t *plan = NULL;
    matrix_t m;

    open_matrix(worker, "8x8", &m);
    if (env->rank == 0) {
        local_await(waiting, RANKS - 1);
    }
    local_expect_ok(xm_reshard_begin(worker, &m.params, &m.reshard));
    if (env->rank != 0) {
        local_expect(xm_reshard_test(m.reshard) == XM_IN_PROGRESS, "made without rank 0");
        local_expect_fails(xm_reshard_post(m.reshard, 0), XM_ERR_INVALID_ARGUMENT, "being made");
        (void)atomic_fetch_add(waiting, 1);
    }
    do {
        status = xm_reshard_wait(m.reshard, xm_worker_now(worker) + 1000000);
    } while (status == XM_IN_PROGRESS);
    local_expect_ok(status);
    fill(worker, &m, 5);
    local_expect_ok(xm_reshard_run(m.reshard, 0));
    check(worker, &m, 5);
    /* The same plan once more, by another reshard. */
    plan = (xm_plan_t *)(uintptr_t)xm_reshard_plan(m.reshard);
    m.params.plan = plan;
    m.params.tensors = NULL;
    {
        xm_reshard_t *second;

        local_expect_ok(xm_reshard_create(worker, &m.params, &second));
        local_expect(xm_reshard_plan(second) == plan, "another plan");
        local_expect_ok(xm_reshard_run(second, xm_worker_deadline(worker)));
        xm_reshard_destroy(second);
    }
    close_matrix(&m);
    xm_worker_destroy(worker, NULL);
    return 0;
}

START_TEST(can_be_made_in_pieces)
{
    local_job_run(RANKS, DEADLINE_S, make_in_pieces, local_shared(sizeof(atomic_int)));
}
END_TEST

/* ---- What cannot be made -------------------------------------------------------------------- */

static void expect_no_reshard(xm_worker_t *worker, matrix_t *m, xm_status_t status,
                              const char *sentence)
{
    local_expect_fails(xm_reshard_create(worker, &m->params, &m->reshard), status, sentence);
    local_expect(m->reshard == NULL, "a failure made a reshard");
}

static int disagree(const xm_job_env_t *env, int listen_fd, void *arg)
{
    xm_worker_t *worker = join(env, listen_fd);
    bool odd = env->rank == 2;
    matrix_t m, other;

    (void)arg;
    open_matrix(worker, "16x16", &m);
    open_matrix(worker, "16x8", &other);
    expect_no_reshard(
        worker, odd ? &other : &m, XM_ERR_MISMATCH,
        "rank 2 has shape 16x8 where rank 0 has 16x16: dimension 1 has 8 elements, not 16");
    m.params.dtype = odd ? "float32" : "int32";
    expect_no_reshard(worker, &m, XM_ERR_MISMATCH,
                      "rank 2 has dtype float32 where rank 0 has int32");
    m.params.dtype = NULL;
    m.params.strategy = odd ? XM_STRATEGY_SEND_RECV : XM_STRATEGY_BROADCAST;
    m.params.scheduler = XM_SCHEDULER_NAIVE;
    m.buffers.dst_bytes -= odd;
    expect_no_reshard(worker, &m, XM_ERR_BUFFER_TOO_SMALL,
                      odd ? "rank 2" : "rank 2 cannot take part in the reshard: ");
    m.buffers.dst_bytes += odd;
    m.params.strategy = XM_STRATEGY_BROADCAST;
    m.params.refusal = odd ? "the disk is full" : NULL;
    expect_no_reshard(worker, &m, XM_ERR_INVALID_ARGUMENT, "the disk is full");
    m.params.refusal = NULL;
    m.tensor.dst = odd ? NULL : m.dst;
    expect_no_reshard(worker, &m, XM_ERR_INVALID_ARGUMENT, "tensor 0 has no destination layout");
    m.tensor.dst = m.dst;
    m.params.tensors = NULL;
    expect_no_reshard(worker, &m, XM_ERR_INVALID_ARGUMENT, "at least one tensor");
    m.params.tensors = &m.tensor;
    m.params.buffers = odd ? NULL : &m.buffers;
    expect_no_reshard(worker, &m, XM_ERR_BUFFER_TOO_SMALL, "rank 2: the source buffer");
    m.params.buffers = &m.buffers;
    local_expect_ok(xm_reshard_create(worker, &m.params, &m.reshard));
    fill(worker, &m, 3);
    local_expect_ok(xm_reshard_run(m.reshard, 0));
    check(worker, &m, 3);
    close_matrix(&m);
    close_matrix(&other);
    xm_worker_destroy(worker, NULL);
    return 0;
}

START_TEST(what_one_rank_cannot_do_all_hear_of)
{
    local_job_run(RANKS, DEADLINE_S, disagree, NULL);
}
END_TEST

static void expect_null_is_told(void)
{
    const xm_status_t refused = XM_ERR_INVALID_ARGUMENT;

    local_expect_fails(xm_reshard_post(NULL, 0), refused, "reshard is NULL");
    local_expect_fails(xm_reshard_post_after(NULL, NULL, 0), refused, "reshard is NULL");
    local_expect_fails(xm_reshard_test(NULL), refused, "reshard is NULL");
    local_expect_fails(xm_reshard_wait(NULL, 0), refused, "reshard is NULL");
    local_expect_fails(xm_reshard_run(NULL, 0), refused, "reshard is NULL");
    local_expect_fails(xm_reshard_verify(NULL, 0), refused, "reshard is NULL");
    local_expect_fails(xm_reshard_continue(NULL, NULL, NULL, NULL), refused, "worker is NULL");
    xm_reshard_cancel(NULL);
    local_expect(xm_reshard_plan(NULL) == NULL && xm_reshard_staging_bytes(NULL) == 0 &&
                     xm_reshard_device_path(NULL)[0] == '\0',
                 "what is no reshard has something");
    xm_reshard_destroy(NULL);
}

/* What is said without anybody else. */
static int misuse(const xm_job_env_t *env, int listen_fd, void *arg)
{
    xm_worker_t *worker = join(env, listen_fd);
    struct {
        xm_reshard_params_t known;
        int64_t unknown;
    } newer = {.known = XM_RESHARD_PARAMS_INIT};
    xm_reshard_t *older;
    xm_layout_t *layout;
    matrix_t m;

    (void)arg;
    open_matrix(worker, "16x16", &m);
    expect_no_reshard(NULL, &m, XM_ERR_INVALID_ARGUMENT, "worker is NULL");
    local_expect_fails(xm_reshard_create(worker, NULL, &m.reshard), XM_ERR_INVALID_ARGUMENT,
                       "params is NULL");
    local_expect_fails(xm_reshard_begin(worker, &m.params, NULL), XM_ERR_INVALID_ARGUMENT,
                       "reshard is NULL");
    m.params.struct_size = 7; /* less than its own size needs */
    expect_no_reshard(worker, &m, XM_ERR_INVALID_ARGUMENT, "struct_size of xm_reshard_params_t");
    newer.known = m.params;
    newer.known.struct_size = sizeof(newer);
    newer.unknown = 1;
    local_expect_fails(xm_reshard_create(worker, &newer.known, &m.reshard), XM_ERR_UNSUPPORTED,
                       "only a newer library");
    newer.unknown = 0;
    local_expect_ok(xm_reshard_create(worker, &newer.known, &m.reshard));
    m.params.struct_size = offsetof(xm_reshard_params_t, refusal);
    m.params.refusal = "not part of an older caller's struct";
    local_expect_ok(xm_reshard_create(worker, &m.params, &older));
    xm_reshard_destroy(older);
    expect_null_is_told();
    local_expect_fails(xm_layout_parse("4x4", "2", NULL, "S0", XM_PARTITION_EVEN, &layout),
                       XM_ERR_INVALID_ARGUMENT, "2 dimensions");
    local_expect(xm_layout_parse("4x", "2", NULL, "S0", XM_PARTITION_EVEN, &layout) < 0, "4x");
    local_expect(xm_layout_parse("4", "2", "0", "S0", XM_PARTITION_EVEN, &layout) < 0, "one rank");
    local_expect(xm_layout_parse("5", "2", NULL, "S0", XM_PARTITION_EVEN, &layout) < 0, "5 by 2");
    close_matrix(&m);
    xm_worker_destroy(worker, NULL);
    return 0;
}

START_TEST(misuse_is_told)
{
    local_job_run(1, DEADLINE_S, misuse, NULL);
}
END_TEST

/* ---- Channels and failed runs --------------------------------------------------------------- */

static int use_up_channels(const xm_job_env_t *env, int listen_fd, void *arg)
{
    xm_worker_t *worker = join(env, listen_fd);
    xm_reshard_t *kept[CHANNELS];
    matrix_t m;

    (void)arg;
    open_matrix(worker, "2x2", &m);
    for (int i = 0; i < CHANNELS; ++i) {
        local_expect_ok(xm_reshard_create(worker, &m.params, &kept[i]));
    }
    expect_no_reshard(worker, &m, XM_ERR_UNSUPPORTED, "254 channels");
    /* Rank 1 gives another one back than the others: none is free on all. */
    xm_reshard_destroy(kept[env->rank == 1]);
    expect_no_reshard(worker, &m, XM_ERR_UNSUPPORTED, "254 channels");
    xm_reshard_destroy(kept[env->rank != 1]);
    for (int i = 0; i < 2; ++i) {
        local_expect_ok(xm_reshard_create(worker, &m.params, &kept[i]));
        fill(worker, &m, (uint64_t)i);
        local_expect_ok(xm_reshard_run(kept[i], 0));
        check(worker, &m, (uint64_t)i);
    }
    for (int i = 0; i < CHANNELS; ++i) {
        xm_reshard_destroy(kept[i]);
    }
    close_matrix(&m);
    xm_worker_destroy(worker, NULL);
    return 0;
}

START_TEST(channels_are_the_librarys)
{
    local_job_run(2, DEADLINE_S, use_up_channels, NULL);
}
END_TEST

/* Ranks give up a run that rank 0 does not begin; it can be run again, for some time. */
static int cancel(const xm_job_env_t *env, int listen_fd, void *arg)
{
    xm_worker_t *worker = join(env, listen_fd);
    matrix_t m;

    (void)arg;
    open_matrix(worker, "64x64", &m);
    local_expect_ok(xm_reshard_create(worker, &m.params, &m.reshard));
    if (env->rank == 0) {
        local_expect_ok(xm_worker_barrier(worker));
    }
    local_expect_ok(xm_reshard_post(m.reshard, 0));
    local_expect(env->rank == 0 || xm_reshard_test(m.reshard) == XM_IN_PROGRESS, "it has ended");
    xm_reshard_cancel(m.reshard);
    local_expect_fails(xm_reshard_wait(m.reshard, INT64_MAX), XM_ERR_CANCELED, "cancelled");
    local_expect_fails(xm_reshard_test(m.reshard), XM_ERR_CANCELED, "cancelled");
    if (env->rank != 0) {
        local_expect_ok(xm_worker_barrier(worker));
    }
    for (uint64_t round = 0; round < 255; ++round) {
        fill(worker, &m, round);
        local_expect_ok(xm_reshard_run(m.reshard, 0));
        check(worker, &m, round);
    }
    local_expect_fails(xm_reshard_run(m.reshard, 0), XM_ERR_UNSUPPORTED, "make another");
    xm_reshard_destroy(m.reshard);
    local_expect_ok(xm_reshard_create(worker, &m.params, &m.reshard));
    fill(worker, &m, 1000);
    local_expect_ok(xm_reshard_run(m.reshard, 0));
    check(worker, &m, 1000);
    close_matrix(&m);
    xm_worker_destroy(worker, NULL);
    return 0;
}

START_TEST(a_cancelled_run_is_followed_by_others)
{
    local_job_run(RANKS, DEADLINE_S, cancel, NULL);
}
END_TEST

/* Rank 2 dies; the others go on without it. One reshard is left to its fate. */
static int lose_a_rank(const xm_job_env_t *env, int listen_fd, void *arg)
{
    xm_worker_t *worker = join(env, listen_fd);
    xm_status_t status = XM_OK;
    matrix_t m, left_over, last;

    (void)arg;
    open_matrix(worker, "64x64", &m);
    open_matrix(worker, "8x8", &left_over);
    local_expect_ok(xm_reshard_create(worker, &m.params, &m.reshard));
    local_expect_ok(xm_reshard_create(worker, &left_over.params, &left_over.reshard));
    for (uint64_t round = 0; status == XM_OK; ++round) {
        if (env->rank == 2 && round == 3) {
            (void)raise(SIGKILL);
        }
        fill(worker, &m, round);
        status = xm_reshard_run(m.reshard, 0);
    }
    local_expect(status == XM_ERR_PEER_DIED, "%s (%s)", xm_status_string(status), xm_last_error());
    close_matrix(&m);
    local_expect_ok(xm_group_shrink(worker, 0));
    local_expect(xm_worker_size(worker) == RANKS - 1, "%d ranks", xm_worker_size(worker));
    local_expect_fails(xm_reshard_run(left_over.reshard, 0), XM_ERR_CANCELED, "is no more");
    local_expect_fails(xm_reshard_wait(left_over.reshard, 0), XM_ERR_CANCELED, "is no more");
    local_expect(xm_reshard_staging_bytes(left_over.reshard) == 0, "buffers");
    open_matrix(worker, "60x60", &last);
    local_expect_ok(xm_reshard_create(worker, &last.params, &last.reshard));
    for (uint64_t round = 0; round < 10; ++round) {
        fill(worker, &last, round);
        local_expect_ok(xm_reshard_run(last.reshard, 0));
        check(worker, &last, round);
    }
    close_matrix(&left_over);
    xm_worker_destroy(worker, NULL);
    close_matrix(&last); /* after its worker */
    return 0;
}

START_TEST(survivors_make_new_ones)
{
    local_job_t job;

    local_job_start(&job, RANKS, 0, DEADLINE_S, lose_a_rank, NULL);
    local_job_wait(&job, 1u << 2);
}
END_TEST

/* Rank 1 dies instead of making its part: nobody waits for it until the deadline. */
static int die_before(const xm_job_env_t *env, int listen_fd, void *arg)
{
    xm_worker_t *worker = join(env, listen_fd);
    matrix_t m;

    (void)arg;
    if (env->rank == 1) {
        (void)raise(SIGKILL);
    }
    open_matrix(worker, "8x8", &m);
    expect_no_reshard(worker, &m, XM_ERR_PEER_DIED, "rank 1");
    local_expect_ok(xm_group_shrink(worker, 0));
    close_matrix(&m);
    open_matrix(worker, "8x8", &m);
    local_expect_ok(xm_reshard_create(worker, &m.params, &m.reshard));
    fill(worker, &m, 9);
    local_expect_ok(xm_reshard_run(m.reshard, 0));
    check(worker, &m, 9);
    close_matrix(&m);
    xm_worker_destroy(worker, NULL);
    return 0;
}

START_TEST(a_death_ends_the_making)
{
    local_job_t job;

    local_job_start(&job, RANKS, 0, DEADLINE_S, die_before, NULL);
    local_job_wait(&job, 1u << 1);
}
END_TEST

/* ---- The network ---------------------------------------------------------------------------- */

/* The machines of ranks 0 … 3. */
typedef struct {
    const char *machines[RANKS];
    double rates[RANKS]; /* bytes/s by host */
} machines_t;

static const machines_t machines[] = {
    /* 8 of 400 Gbit/s, 1 Gbit/s, and two that do not tell */
    {{"dual-8gpu", "laptop", "c5n.18xl", "p3dn.24xl"}, {400e9, 0.125e9, 0.125e9, 0.125e9}},
    {{"c5n.18xl", "c5n.18xl", "p3dn.24xl", "g5.48xl"}, {1.25e9, 1.25e9, 1.25e9, 1.25e9}},
};

static int know_network(const xm_job_env_t *env, int listen_fd, void *arg)
{
    const machines_t *given = arg;
    xm_worker_params_t params = XM_WORKER_PARAMS_INIT;
    xm_worker_t *worker;
    xm_network_t *network;
    char host[32], path[128];

    (void)snprintf(path, sizeof(path), "tests/fixtures/hwloc/%s.xml", given->machines[env->rank]);
    (void)setenv("XM_TOPOLOGY", xm_test_source_path(path), 1);
    (void)snprintf(host, sizeof(host), "host%d", env->rank);
    params.listen_fd = listen_fd;
    params.host = host;
    local_expect_ok(xm_worker_create(env, &params, &worker));
    local_expect_ok(xm_network_from_worker(worker, &network));
    local_expect(xm_network_ranks(network) == RANKS && xm_network_hosts(network) == RANKS,
                 "%d ranks on %d hosts", xm_network_ranks(network), xm_network_hosts(network));
    for (int h = 0; h < RANKS; ++h) {
        double out = xm_network_egress(network, h), in = xm_network_ingress(network, h);

        local_expect(out > 0.999 * given->rates[h] && out < 1.001 * given->rates[h] && in >= out &&
                         in <= out && xm_network_host_of(network, h) == h,
                     "host %d: %g and %g bytes/s", h, out, in);
    }
    xm_network_destroy(network);
    xm_worker_destroy(worker, NULL);
    return 0;
}

START_TEST(the_worker_knows_its_network)
{
    local_job_run(RANKS, DEADLINE_S, know_network, (void *)(uintptr_t)&machines[_i]);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("reshard_object");
    TCase *tcase = tcase_create("local");

    tcase_set_timeout(tcase, 2 * DEADLINE_S);
    tcase_add_test(tcase, runs_as_often_as_wanted);
    tcase_add_test(tcase, two_go_on_whichever_is_waited_for);
    tcase_add_test(tcase, can_be_made_in_pieces);
    tcase_add_test(tcase, what_one_rank_cannot_do_all_hear_of);
    tcase_add_test(tcase, misuse_is_told);
    tcase_add_test(tcase, channels_are_the_librarys);
    tcase_add_test(tcase, a_cancelled_run_is_followed_by_others);
    tcase_add_test(tcase, survivors_make_new_ones);
    tcase_add_test(tcase, a_death_ends_the_making);
    tcase_add_loop_test(tcase, the_worker_knows_its_network, 0,
                        (int)(sizeof(machines) / sizeof(*machines)));
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
