/* SPDX-License-Identifier: Apache-2.0 */
/* Direct hops between real processes: what is copied out of a neighbour's memory, what is not, and
 * how it ends. */
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <unistd.h>

#include "comm/memory/shared_memory.h"
#include "tests/comm/job/local_job.h"
#include "tests/resharding/plan/random_relay.h"
#include "resharding/execute/checksum.h"
#include "resharding/execute/carrier/direct.h"
#include "xm_test.h"

enum { RANKS = 5, DEADLINE_S = 60, ROUNDS = 3, ELEMENT = 4 };

#define ALL_RANKS 0x1fu

/* One matrix on one host, and which ranks share what. */
typedef struct {
    const char *name;
    const char *src_mesh, *src_spec;
    int src_first;
    const char *dst_mesh, *dst_spec;
    int dst_first;
    int64_t rows, columns;
    xm_strategy_t strategy;
    uint64_t chunk_bytes;
    unsigned shared[2]; /* by side (source, destination): ranks whose tiles are shared */
    unsigned off;       /* ranks that run with XM_DIRECT_COPY=off */
    bool forwards;      /* some hops are by way of ranks that have no part in the box */
} scene_t;

typedef struct {
    const scene_t *scene;
    int rank;
    xm_worker_t *worker;
    xm_plan_t *plan;
    xm_executor_t *executor;
    const xm_layout_t *layout[2];
    void *tile[2];
    uint64_t bytes[2];
    xm_shared_memory_t *memory[2];
} rank_t;

static bool has(unsigned ranks, int rank)
{
    return (ranks >> rank & 1) != 0;
}

static xm_plan_t *make_plan(const scene_t *scene)
{
    static const int hosts[RANKS] = {0};
    xm_network_params_t network_params = XM_NETWORK_PARAMS_INIT;
    xm_plan_params_t params = XM_PLAN_PARAMS_INIT;
    int64_t shape[] = {scene->rows, scene->columns};
    xm_mesh_t *src_mesh, *dst_mesh;
    xm_spec_t src_spec, dst_spec;
    xm_layout_t *src, *dst;
    xm_network_t *network;
    xm_plan_t *plan;

    network_params.ranks = RANKS;
    network_params.host_of_rank = hosts;
    network_params.nic_bandwidth = network_params.host_bandwidth = 1e9;
    local_expect_ok(xm_network_create(&network_params, &network));
    local_expect_ok(xm_mesh_parse(scene->src_mesh, NULL, scene->src_first, &src_mesh));
    local_expect_ok(xm_mesh_parse(scene->dst_mesh, NULL, scene->dst_first, &dst_mesh));
    local_expect_ok(xm_spec_parse(scene->src_spec, &src_spec));
    local_expect_ok(xm_spec_parse(scene->dst_spec, &dst_spec));
    local_expect_ok(xm_layout_create(src_mesh, &src_spec, XM_PARTITION_EVEN, shape, &src));
    local_expect_ok(xm_layout_create(dst_mesh, &dst_spec, XM_PARTITION_EVEN, shape, &dst));
    params.src = src;
    params.dst = dst;
    params.element_size = ELEMENT;
    params.strategy = scene->strategy;
    params.network = network;
    params.chunk_bytes = scene->chunk_bytes;
    local_expect_ok(xm_plan_create(&params, &plan));
    if (scene->forwards) {
        random_t random = {7};

        local_expect(random_forwards(&random, plan) > 0, "%s: nobody passes on", scene->name);
    }
    xm_layout_destroy(src);
    xm_layout_destroy(dst);
    xm_mesh_destroy(src_mesh);
    xm_mesh_destroy(dst_mesh);
    xm_network_destroy(network);
    return plan;
}

/* Shared tiles lie somewhere inside their memory, at an odd multiple of 8. */
static void allocate(rank_t *r, int side)
{
    r->layout[side] = side == 0 ? xm_plan_src(r->plan) : xm_plan_dst(r->plan);
    r->bytes[side] = xm_layout_buffer_bytes(r->layout[side], r->rank, ELEMENT);
    if (!has(r->scene->shared[side], r->rank) || r->bytes[side] == 0) {
        r->tile[side] = malloc(r->bytes[side] + 1);
        return;
    }
    local_expect_ok(xm_shared_memory_create(r->bytes[side] + 4104, &r->memory[side]));
    r->tile[side] = (char *)xm_shared_memory_address(r->memory[side]) + 4104;
}

static void enter(const xm_job_env_t *env, int listen_fd, const scene_t *scene, rank_t *r)
{
    xm_worker_params_t worker_params = XM_WORKER_PARAMS_INIT;
    xm_executor_params_t params = {0};

    *r = (rank_t){.scene = scene, .rank = env->rank};
    if (has(scene->off, env->rank)) {
        local_expect(setenv("XM_DIRECT_COPY", "off", 1) == 0, "setenv");
    }
    worker_params.listen_fd = listen_fd;
    worker_params.timeout = DEADLINE_S;
    local_expect_ok(xm_worker_create(env, &worker_params, &r->worker));
    r->plan = make_plan(scene);
    allocate(r, 0);
    allocate(r, 1);
    params.plan = r->plan;
    params.transport = xm_worker_transport(r->worker);
    params.src = r->tile[0];
    params.src_bytes = r->bytes[0];
    params.dst = r->tile[1];
    params.dst_bytes = r->bytes[1];
    params.turns = true;
    local_expect_ok(xm_executor_create(&params, &r->executor));
}

/* Memories of others that this process has mapped, and its own. */
static int mapped(void)
{
    FILE *file = fopen("/proc/self/maps", "r");
    char line[512];
    int count = 0;

    local_expect(file != NULL, "no /proc/self/maps");
    while (fgets(line, sizeof(line), file) != NULL) {
        count += strstr(line, "memfd:crossmesh") != NULL;
    }
    (void)fclose(file);
    return count;
}

static void leave(rank_t *r)
{
    xm_executor_destroy(r->executor);
    for (int side = 0; side < 2; ++side) {
        if (r->memory[side] != NULL) {
            xm_shared_memory_destroy(r->memory[side]);
        } else {
            free(r->tile[side]);
        }
    }
    local_expect(mapped() == 0, "rank %d has %d mappings left", r->rank, mapped());
    xm_plan_destroy(r->plan);
    xm_worker_destroy(r->worker, NULL);
}

static void fill(const rank_t *r, uint64_t seed)
{
    pattern_fill(r->layout[0], r->rank, ELEMENT, seed, r->tile[0]);
    memset(r->tile[1], 0x5a, r->bytes[1]);
}

static void check(const rank_t *r, uint64_t seed)
{
    for (int side = 0; side < 2; ++side) {
        int64_t wrong = pattern_wrong(r->layout[side], r->rank, ELEMENT, seed, r->tile[side]);

        local_expect(wrong == 0, "%s: rank %d has %d wrong bytes in its %s tile", r->scene->name,
                     r->rank, (int)wrong, side == 0 ? "source" : "destination");
    }
}

/* Exactly those hops went directly whose sender shares what it sends. */
static void check_pacts(const rank_t *r)
{
    const directs_t *directs = r->executor->directs;

    for (int p = 0; directs != NULL && p < directs->pact_count; ++p) {
        const pact_t *pact = &directs->pacts[p];
        int peer = pact->lane->peer, sender = lane_sends(pact->lane) ? r->rank : peer;
        bool allowed = !has(r->scene->off, r->rank) && !has(r->scene->off, peer);

        for (int64_t i = 0; i < pact->direct_count; ++i) {
            bool is_dst = pact->tiles[pact->directs[i].tile].is_dst;
            bool agreed = pact->directs[i].hop->carrier == &xm_carrier_direct;

            local_expect(agreed == (allowed && has(r->scene->shared[is_dst], sender)),
                         "%s: a hop between ranks %d and %d is%s direct", r->scene->name, r->rank,
                         peer, agreed ? "" : " not");
        }
    }
}

/* No barrier between runs: whoever is ready changes his source at once. */
static int run_scene(const xm_job_env_t *env, int listen_fd, void *arg)
{
    rank_t r;

    enter(env, listen_fd, arg, &r);
    local_expect_ok(xm_reshard_agree(r.worker, r.plan, "int32"));
    local_expect(r.executor->directs != NULL || r.executor->lane_count == 0 || r.scene->forwards,
                 "%s: rank %d has no hop that may be direct", r.scene->name, r.rank);
    for (uint64_t round = 0; round < ROUNDS; ++round) {
        fill(&r, round);
        local_expect_ok(xm_executor_run(r.worker, r.executor, xm_worker_deadline(r.worker)));
        check(&r, round);
        check_pacts(&r);
    }
    local_expect_ok(xm_executor_verify(r.worker, r.executor, xm_worker_deadline(r.worker)));
    leave(&r);
    return 0;
}

static const scene_t fan_out = {.name = "fan-out",
                                .src_mesh = "1",
                                .src_spec = "RR",
                                .dst_mesh = "4",
                                .dst_first = 1,
                                .dst_spec = "RR",
                                .rows = 1040,
                                .columns = 1023,
                                .strategy = XM_STRATEGY_BROADCAST,
                                .chunk_bytes = 65536,
                                .shared = {ALL_RANKS, ALL_RANKS}};

static void run(scene_t scene, const char *name)
{
    scene.name = name;
    local_job_run(RANKS, DEADLINE_S, run_scene, &scene);
}

START_TEST(a_fan_out_of_every_strategy)
{
    scene_t scene = fan_out;

    run(scene, "chain");
    scene.strategy = XM_STRATEGY_SEND_RECV;
    run(scene, "relay");
    scene.strategy = XM_STRATEGY_ALLGATHER;
    run(scene, "all-gather");
    scene.chunk_bytes = 0;
    run(scene, "chunks as they come");
}
END_TEST

/* Boxes that are strided at one end or at both, and ranks that are in both meshes. */
START_TEST(strided_tiles)
{
    scene_t scene = fan_out;

    scene.src_mesh = "2";
    scene.src_spec = "S0R";
    scene.dst_mesh = "2";
    scene.dst_first = 2;
    scene.dst_spec = "RS0";
    scene.rows = scene.columns = 1024;
    run(scene, "rows to columns");
    scene.dst_first = 1;
    run(scene, "rows to columns, one rank in both");
    scene.src_spec = "RS0";
    scene.dst_mesh = "2x2";
    scene.dst_spec = "RS1";
    run(scene, "columns to columns, twice");
    scene.rows = 2048;
    scene.dst_spec = "S10R";
    run(scene, "columns to rows");
    scene.forwards = true;
    run(scene, "columns to rows by way of others");
    scene.dst_spec = "RS1";
    run(scene, "columns to columns by way of others");
}
END_TEST

/* Every rank decides for itself what it shares. */
START_TEST(some_share_and_some_do_not)
{
    scene_t scene = fan_out;

    scene.shared[0] = scene.shared[1] = 0;
    run(scene, "nobody");
    scene.shared[1] = 1u << 1 | 1u << 3;
    run(scene, "two relays");
    scene.shared[0] = ALL_RANKS;
    scene.shared[1] = 0;
    run(scene, "the source alone");
    scene.shared[1] = ALL_RANKS;
    scene.off = 1u << 2;
    run(scene, "one rank has it off");
    scene.off = ALL_RANKS;
    run(scene, "all have it off");
    scene.src_mesh = scene.dst_mesh = "2";
    scene.src_spec = "S0R";
    scene.dst_first = 2;
    scene.dst_spec = "RS0";
    scene.rows = scene.columns = 1024;
    scene.off = 0;
    scene.shared[0] = 1u << 1;
    run(scene, "one of two sources");
}
END_TEST

/* What went on between the ranks of a job that does not end well. */
typedef struct {
    scene_t scene;
    bool agrees; /* a_silent_receiver_is_named: rank 1 takes part up to there */
    atomic_int stage;
    atomic_int fault_statuses;
} affair_t;

static void await(const rank_t *r, const atomic_int *counter, int least)
{
    double start = local_now();

    while (atomic_load(counter) < least) {
        local_expect(local_now() - start < local_timeout(30), "rank %d waits in vain", r->rank);
        (void)xm_worker_progress(r->worker);
        local_sleep(0.001);
    }
}

static bool settled(const rank_t *r)
{
    for (int l = 0; l < r->executor->lane_count; ++l) {
        if (r->executor->lanes[l].unsettled > 0) {
            return false;
        }
    }
    return true;
}

static void progress_until_settled(const rank_t *r)
{
    double start = local_now();

    while (!settled(r)) {
        local_expect(local_now() - start < local_timeout(30), "rank %d settles nothing", r->rank);
        local_expect_ok(xm_worker_progress(r->worker));
    }
}

/* Rank 0 takes everything back after it has told rank 1 that it is there. */
static int take_back(const xm_job_env_t *env, int listen_fd, void *arg)
{
    affair_t *affair = arg;
    rank_t r;

    enter(env, listen_fd, &affair->scene, &r);
    fill(&r, 1);
    local_expect_ok(xm_worker_barrier(r.worker));
    if (r.rank == 0) {
        local_expect_ok(xm_executor_post(r.executor));
        while (!r.executor->directs->directs[0]
                    .copied.busy) { /* expects the end: all has been announced */
            local_expect(xm_executor_advance(r.executor) == XM_IN_PROGRESS, "%s", xm_last_error());
            local_expect_ok(xm_worker_progress(r.worker));
        }
        xm_executor_cancel(r.executor);
        while (xm_executor_advance(r.executor) == XM_IN_PROGRESS) {
            local_expect_ok(xm_worker_progress(r.worker));
        }
        local_expect(xm_executor_advance(r.executor) == XM_ERR_CANCELED, "%s", xm_last_error());
        memset(r.tile[0], 0xee, r.bytes[0]);
        atomic_store(&affair->stage, 1);
    } else if (r.rank == 1) {
        local_expect_ok(xm_executor_post(r.executor));
        progress_until_settled(&r);
        await(&r, &affair->stage, 1);
        while (xm_executor_advance(r.executor) == XM_IN_PROGRESS) {
            local_expect_ok(xm_worker_progress(r.worker));
        }
        local_expect_fails(xm_executor_advance(r.executor), XM_ERR_UNREACHABLE,
                           "rank 0 gave the run up while rank 1 copied from its memory");
    }
    local_expect_ok(xm_worker_barrier(r.worker));
    fill(&r, 2);
    local_expect_ok(xm_executor_run(r.worker, r.executor, xm_worker_deadline(r.worker)));
    check(&r, 2);
    check_pacts(&r);
    leave(&r);
    return 0;
}

START_TEST(what_was_taken_back_is_not_delivered)
{
    affair_t *affair = local_shared(sizeof(*affair));

    affair->scene = fan_out;
    affair->scene.dst_mesh = "1";
    local_job_run(2, DEADLINE_S, take_back, affair);
}
END_TEST

/* Rank 1 relays to the others and is killed when a part of the matrix has come to it. */
static int die_in_the_middle(const xm_job_env_t *env, int listen_fd, void *arg)
{
    affair_t *affair = arg;
    rank_t r;
    char *before;
    xm_status_t status;

    enter(env, listen_fd, &affair->scene, &r);
    fill(&r, 1);
    local_expect_ok(xm_worker_barrier(r.worker));
    if (r.rank == 1) {
        const hop_t *incoming = r.executor->directs->directs[0].hop;

        if (lane_sends(&r.executor->lanes[incoming->lane])) {
            incoming = r.executor->directs->directs[1].hop;
        }
        local_expect_ok(xm_executor_post(r.executor));
        while (incoming->arrived == incoming->first) {
            local_expect(xm_executor_advance(r.executor) == XM_IN_PROGRESS, "%s", xm_last_error());
            local_expect_ok(xm_worker_progress(r.worker));
        }
        local_expect(incoming->arrived < incoming->end, "all has come at once");
        (void)kill(getpid(), SIGKILL);
    }
    status = xm_executor_run(r.worker, r.executor, xm_worker_deadline(r.worker));
    local_expect(status == XM_ERR_PEER_DIED && strstr(xm_last_error(), "rank 1") != NULL,
                 "rank %d: %s (%s)", r.rank, xm_status_string(status), xm_last_error());
    before = malloc(r.bytes[1] + 1);
    memcpy(before, r.tile[1], r.bytes[1]);
    atomic_fetch_add(&affair->fault_statuses, 1);
    for (double start = local_now(); atomic_load(&affair->fault_statuses) < RANKS - 1;) {
        local_expect(local_now() - start < local_timeout(30), "rank %d waits in vain", r.rank);
        (void)xm_worker_wait(r.worker, xm_worker_now(r.worker) + 10000000);
        local_sleep(0.001);
    }
    local_expect(memcmp(before, r.tile[1], r.bytes[1]) == 0,
                 "rank %d: the tile changed after the run", r.rank);
    free(before);
    leave(&r);
    return 0;
}

START_TEST(a_killed_relay_ends_the_others)
{
    affair_t *affair = local_shared(sizeof(*affair));
    local_job_t job;

    affair->scene = fan_out;
    affair->scene.rows = 4096;
    local_job_start(&job, RANKS, 0, DEADLINE_S, die_in_the_middle, affair);
    local_job_wait(&job, 1u << 1);
    ck_assert_int_eq(atomic_load(&affair->fault_statuses), RANKS - 1);
}
END_TEST

/* Rank 1 does not post at all, or agrees and then copies nothing. */
static int stand_still(const xm_job_env_t *env, int listen_fd, void *arg)
{
    affair_t *affair = arg;
    rank_t r;

    enter(env, listen_fd, &affair->scene, &r);
    fill(&r, 1);
    local_expect_ok(xm_worker_barrier(r.worker));
    if (r.rank == 0) {
        local_expect_fails(
            xm_executor_run(r.worker, r.executor,
                            xm_worker_now(r.worker) +
                                (affair->agrees ? INT64_C(3000000000) : INT64_C(500000000))),
            XM_ERR_TIMEOUT,
            affair->agrees ? "rank 0 waits for rank 1 to copy transfer 0 (tensor 0) after"
                           : "rank 0 waits for rank 1 to agree on how chunks to it go after");
        atomic_store(&affair->fault_statuses, 1);
    } else {
        if (affair->agrees) {
            local_expect_ok(xm_executor_post(r.executor));
        }
        await(&r, &affair->fault_statuses, 1);
    }
    leave(&r);
    return 0;
}

START_TEST(a_silent_receiver_is_named)
{
    affair_t *affair = local_shared(sizeof(*affair));

    affair->scene = fan_out;
    affair->scene.dst_mesh = "1";
    local_job_run(2, DEADLINE_S, stand_still, affair);
    atomic_store(&affair->fault_statuses, 0);
    affair->agrees = true;
    local_job_run(2, DEADLINE_S, stand_still, affair);
}
END_TEST

/* Two cases, run as two tests: UCX logs the broken connections of the second. */
int main(void)
{
    Suite *suite = suite_create("execute_direct");
    TCase *local = tcase_create("local"), *fault = tcase_create("fault");

    tcase_set_timeout(local, 90);
    tcase_add_test(local, a_fan_out_of_every_strategy);
    tcase_add_test(local, strided_tiles);
    tcase_add_test(local, some_share_and_some_do_not);
    tcase_add_test(local, what_was_taken_back_is_not_delivered);
    suite_add_tcase(suite, local);
    tcase_set_timeout(fault, 90);
    tcase_add_test(fault, a_killed_relay_ends_the_others);
    tcase_add_test(fault, a_silent_receiver_is_named);
    suite_add_tcase(suite, fault);
    return xm_test_run(suite);
}
