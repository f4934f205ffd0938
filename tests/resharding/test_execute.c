#include "resharding/execute.h"

#include <stdio.h>
#include <time.h>

#include "resharding/plan_private.h"
#include "sim_job.h"
#include "xm_test.h"

enum { CASES = 20000 };

/* ---- allocations: the linker sends ours through here ------------------------------------------
 */

static int64_t allocations;

void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *old, size_t size);
void __real_free(void *old);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_realloc(void *old, size_t size);
void __wrap_free(void *old);

void *__wrap_malloc(size_t size)
{
    ++allocations;
    return __real_malloc(size);
}

void *__wrap_calloc(size_t count, size_t size)
{
    ++allocations;
    return __real_calloc(count, size);
}

void *__wrap_realloc(void *old, size_t size)
{
    ++allocations;
    return __real_realloc(old, size);
}

void __wrap_free(void *old)
{
    ++allocations;
    __real_free(old);
}

/* ---- random plans -----------------------------------------------------------------------------
 */

static void check_case(uint64_t seed)
{
    random_t random = {seed};
    sim_options_t options = {.window = random_int(&random, 1, 3),
                             .tight_memory = random_int(&random, 0, 2) == 0,
                             .packed = random_int(&random, 0, 1) == 1};
    batch_t batch;
    sim_job_t job;

    batch_create(&random, &batch);
    sim_job_create(&job, batch.plan, batch.random.network, &options, &random);
    for (uint64_t round = 0; round < 2; ++round) { /* the second run reuses everything */
        xm_status_t results[SIM_MAX_RANKS];

        sim_job_fill(&job, seed * 2 + round);
        ck_assert_msg(sim_job_run(&job, results), "seed %d stands still: %s", (int)seed,
                      random_batch_text(&batch.random));
        for (int r = 0; r < job.ranks; ++r) {
            ck_assert_int_eq(results[r], XM_OK);
        }
        sim_job_check(&job, random_batch_text(&batch.random));
    }
    sim_job_destroy(&job);
    batch_destroy(&batch);
}

START_TEST(random_plans_move_every_byte)
{
    for (uint64_t seed = 1 + (uint64_t)_i; seed <= (uint64_t)random_rounds(CASES); seed += 4) {
        check_case(seed);
    }
}
END_TEST

/* ---- one plan, for faults and small checks ----------------------------------------------------
 */

typedef struct {
    xm_network_t *network;
    xm_plan_t *plan;
} fixed_t;

static void fixed_create(fixed_t *fixed, const char *src_mesh, const char *src_spec,
                         const char *dst_mesh, int dst_first, const char *dst_spec, int ranks,
                         int64_t rows, int64_t columns)
{
    xm_network_params_t network = XM_NETWORK_PARAMS_INIT;
    xm_plan_params_t params = XM_PLAN_PARAMS_INIT;
    int hosts[SIM_MAX_RANKS];
    int64_t shape[2] = {rows, columns};
    xm_mesh_t *meshes[2];
    xm_layout_t *layouts[2];
    xm_spec_t specs[2];

    ck_assert_xm_ok(xm_mesh_parse(src_mesh, NULL, 0, &meshes[0]));
    ck_assert_xm_ok(xm_mesh_parse(dst_mesh, NULL, dst_first, &meshes[1]));
    ck_assert_xm_ok(xm_spec_parse(src_spec, &specs[0]));
    ck_assert_xm_ok(xm_spec_parse(dst_spec, &specs[1]));
    for (int side = 0; side < 2; ++side) {
        ck_assert_xm_ok(
            xm_layout_create(meshes[side], &specs[side], XM_PARTITION_EVEN, shape, &layouts[side]));
        xm_mesh_destroy(meshes[side]);
    }
    for (int r = 0; r < ranks; ++r) {
        hosts[r] = r / 4;
    }
    network.ranks = ranks;
    network.host_of_rank = hosts;
    network.nic_bandwidth = 1e9;
    network.host_bandwidth = 1e10;
    network.nic_latency = 1e-5;
    ck_assert_xm_ok(xm_network_create(&network, &fixed->network));
    params.src = layouts[0];
    params.dst = layouts[1];
    params.element_size = 4;
    params.network = fixed->network;
    params.chunk_bytes = 256;
    ck_assert_xm_ok(xm_plan_create(&params, &fixed->plan));
    xm_layout_destroy(layouts[0]);
    xm_layout_destroy(layouts[1]);
}

/* (2,4) → (2,4), R S0 → S0 R: every receiver needs strided boxes from both source hosts. */
static void fixed_default(fixed_t *fixed)
{
    fixed_create(fixed, "2x4", "RS0", "2x4", 8, "S0R", 16, 64, 48);
}

static void fixed_destroy(fixed_t *fixed)
{
    xm_plan_destroy(fixed->plan);
    xm_network_destroy(fixed->network);
}

static void fixed_job(sim_job_t *job, const fixed_t *fixed)
{
    random_t random = {1};
    sim_options_t options = {.window = 2};

    sim_job_create(job, fixed->plan, fixed->network, &options, &random);
    sim_job_fill(job, 1);
}

START_TEST(a_dead_rank_ends_every_run_that_needs_it)
{
    for (int victim = 0; victim < 16; ++victim) {
        fixed_t fixed;
        sim_job_t job;
        xm_status_t results[SIM_MAX_RANKS];
        int died = 0;

        fixed_default(&fixed);
        fixed_job(&job, &fixed);
        xm_sim_fabric_kill(job.fabric, victim);
        /* Ranks behind a relay that gave up are not told by this fabric; a worker's fault channel
         * does. */
        (void)sim_job_run(&job, results);
        for (int r = 0; r < job.ranks; ++r) {
            ck_assert(results[r] == XM_OK || results[r] == XM_ERR_PEER_DIED ||
                      results[r] == XM_IN_PROGRESS);
            died += r != victim && results[r] == XM_ERR_PEER_DIED;
            ck_assert_int_le(job.done[r][0], results[r] == XM_OK ? 1 : 0);
        }
        ck_assert_msg(victim < 8 || died > 0, "nobody noticed the death of receiver %d", victim);
        ck_assert(!job.incomplete);
        sim_job_destroy(&job);
        fixed_destroy(&fixed);
    }
}
END_TEST

START_TEST(a_cancelled_run_ends_and_can_be_repeated)
{
    fixed_t fixed;
    sim_job_t job;
    xm_status_t results[SIM_MAX_RANKS], first[SIM_MAX_RANKS];

    fixed_default(&fixed);
    fixed_job(&job, &fixed);
    for (int r = 0; r < job.ranks; ++r) {
        ck_assert_xm_ok(xm_executor_post(job.executor[r]));
        first[r] = xm_executor_advance(job.executor[r]);
    }
    ck_assert_int_eq(first[8], XM_IN_PROGRESS);
    ck_assert_xm_fails(xm_executor_post(job.executor[8]), XM_ERR_INVALID_ARGUMENT, "has not ended");
    for (int r = 0; r < job.ranks; ++r) {
        xm_executor_cancel(job.executor[r]);
    }
    for (int round = 0; round < 100; ++round) {
        for (int r = 0; r < job.ranks; ++r) {
            (void)xm_transport_progress(job.transport[r]);
            results[r] = xm_executor_advance(job.executor[r]);
        }
        (void)xm_sim_fabric_step(job.fabric);
    }
    for (int r = 0; r < job.ranks; ++r) {
        /* Ranks without work had ended before. */
        ck_assert_int_eq(results[r], first[r] == XM_OK ? XM_OK : XM_ERR_CANCELED);
        ck_assert_int_eq(job.done[r][0], first[r] == XM_OK);
    }
    sim_job_fill(&job, 2);
    ck_assert(sim_job_run(&job, results));
    sim_job_check(&job, "after a cancelled run");
    sim_job_destroy(&job);
    fixed_destroy(&fixed);
}
END_TEST

START_TEST(spans_cover_what_the_rank_does)
{
    fixed_t fixed;
    sim_job_t job;
    xm_status_t results[SIM_MAX_RANKS];
    int64_t count;
    const xm_transfer_t *transfers;

    fixed_default(&fixed);
    fixed_job(&job, &fixed);
    ck_assert(sim_job_run(&job, results));
    transfers = xm_plan_transfers(fixed.plan, &count);
    for (int64_t t = 0; t < count; ++t) {
        const xm_route_t *route = xm_plan_route(fixed.plan, transfers[t].route);

        for (int i = 0; i < route->count; ++i) {
            for (int r = 0; r < job.ranks; ++r) {
                xm_span_t span;

                xm_executor_span(job.executor[r], xm_plan_first_hop(fixed.plan, t) + i, &span);
                if (route->ranks[i] == r || xm_hop_sender(&transfers[t], route, i) == r) {
                    ck_assert_int_gt(span.end_ns, span.start_ns);
                } else {
                    ck_assert_int_eq(span.end_ns, 0);
                }
            }
        }
    }
    sim_job_destroy(&job);
    fixed_destroy(&fixed);
}
END_TEST

/* ---- plans made by hand -----------------------------------------------------------------------
 */

/* A transfer to one receiver. */
typedef struct {
    int64_t task;
    int sender, receiver;
    int64_t parent, first, end;
} edge_t;

/* Replaces the transfers of a plan of two tasks. */
static void rewrite(xm_plan_t *plan, const edge_t *edges, int count, int64_t chunk_elements)
{
    xm_draft_clear(&plan->draft);
    ck_assert_xm_ok(xm_draft_init(&plan->draft, plan));
    plan->draft.chunk_elements[0] = plan->draft.chunk_elements[1] = chunk_elements;
    for (int i = 0; i < count; ++i) {
        xm_transfer_t transfer = {.task = edges[i].task,
                                  .parent = edges[i].parent,
                                  .first = edges[i].first,
                                  .end = edges[i].end,
                                  .sender = edges[i].sender};
        int parent = -1;

        ck_assert_xm_ok(
            xm_draft_route(&plan->draft, 1, &edges[i].receiver, &parent, &transfer.route));
        ck_assert_xm_ok(xm_draft_append(&plan->draft, &transfer, NULL));
    }
    ck_assert_xm_ok(xm_draft_number_hops(&plan->draft));
    ck_assert_xm_ok(xm_plan_verify(plan));
}

/*
 * Parts of what a transfer brings, with chunks that begin elsewhere, by two relays. The boxes are
 * strided in the destination, so that a chunk sent too early is packed too early.
 */
START_TEST(parts_of_a_transfer_are_relayed)
{
    const edge_t edges[] = {{0, 0, 2, -1, 0, 12}, {0, 2, 3, 0, 5, 9},  {0, 0, 3, -1, 0, 5},
                            {0, 0, 3, -1, 9, 12}, {0, 3, 4, 1, 6, 8},  {0, 2, 4, 0, 0, 6},
                            {0, 3, 4, 3, 9, 12},  {0, 3, 4, 1, 8, 9},  {1, 1, 2, -1, 0, 12},
                            {1, 1, 3, -1, 0, 12}, {1, 1, 4, -1, 0, 12}};

    for (int64_t chunk = 1; chunk <= 12; ++chunk) {
        fixed_t fixed;
        sim_job_t job;
        xm_status_t results[SIM_MAX_RANKS];

        fixed_create(&fixed, "2", "RS0", "3", 2, "RR", 5, 3, 8);
        rewrite(fixed.plan, edges, sizeof(edges) / sizeof(edges[0]), chunk);
        fixed_job(&job, &fixed);
        ck_assert(sim_job_run(&job, results));
        sim_job_check(&job, "edges made by hand");
        sim_job_destroy(&job);
        fixed_destroy(&fixed);
    }
}
END_TEST

/* ---- creation ---------------------------------------------------------------------------------
 */

START_TEST(bad_buffers_are_refused)
{
    fixed_t fixed;
    xm_sim_fabric_params_t fabric_params = XM_SIM_FABRIC_PARAMS_INIT;
    xm_sim_fabric_t *fabric;
    xm_executor_params_t params = XM_EXECUTOR_PARAMS_INIT;
    xm_executor_t *executor;
    static char buffer[16384];

    fixed_default(&fixed);
    fabric_params.ranks = 16;
    ck_assert_xm_ok(xm_sim_fabric_create(&fabric_params, &fabric));
    params.plan = fixed.plan;
    ck_assert_xm_ok(xm_transport_sim_create(fabric, 9, &params.transport));
    params.dst = buffer;
    params.dst_bytes = 6143;
    ck_assert_xm_fails(
        xm_executor_create(&params, &executor), XM_ERR_BUFFER_TOO_SMALL,
        "rank 9: the destination buffer of tensor 0 has 6143 bytes, its tile needs 6144");
    params.dst_bytes = 6144;
    params.dst = NULL;
    ck_assert_xm_fails(xm_executor_create(&params, &executor), XM_ERR_INVALID_ARGUMENT,
                       "rank 9: the destination buffer of tensor 0 is NULL");
    params.dst = buffer;
    params.window = 65;
    ck_assert_xm_fails(xm_executor_create(&params, &executor), XM_ERR_INVALID_ARGUMENT,
                       "window 65 is outside 0 … 64");
    params.window = 2;
    params.memory_limit = 100;
    ck_assert_xm_fails(xm_executor_create(&params, &executor), XM_ERR_INVALID_ARGUMENT,
                       "a memory limit of 100 bytes is too small: at least 2 pack buffers of 256 "
                       "bytes are needed, 512 in all");
    xm_transport_destroy(params.transport);
    xm_sim_fabric_destroy(fabric);
    fixed_destroy(&fixed);
}
END_TEST

/* Two tensors, R → R on ranks 0 and 1: 48 bytes each. */
START_TEST(overlaps_and_batches_without_buffers_are_refused)
{
    static char memory[256];
    fixed_t fixed;
    xm_tensor_t tensors[2];
    xm_plan_params_t plan_params = XM_PLAN_PARAMS_INIT;
    xm_sim_fabric_params_t fabric_params = XM_SIM_FABRIC_PARAMS_INIT;
    xm_executor_params_t params = XM_EXECUTOR_PARAMS_INIT;
    xm_tensor_buffers_t buffers[2] = {{memory, 48, memory + 48, 48},
                                      {memory, 48, memory + 100, 48}};
    xm_sim_fabric_t *fabric;
    xm_executor_t *executor;
    xm_plan_t *plan;

    fixed_create(&fixed, "2", "RR", "2", 0, "RR", 2, 3, 4);
    for (int t = 0; t < 2; ++t) {
        tensors[t] = (xm_tensor_t){t == 0 ? "wq" : "wk", xm_plan_src(fixed.plan),
                                   xm_plan_dst(fixed.plan), 32};
    }
    plan_params.tensors = tensors;
    plan_params.tensor_count = 2;
    plan_params.network = fixed.network;
    ck_assert_xm_ok(xm_plan_create(&plan_params, &plan));
    fabric_params.ranks = 2;
    ck_assert_xm_ok(xm_sim_fabric_create(&fabric_params, &fabric));
    ck_assert_xm_ok(xm_transport_sim_create(fabric, 1, &params.transport));
    params.plan = plan;
    ck_assert_xm_fails(xm_executor_create(&params, &executor), XM_ERR_INVALID_ARGUMENT,
                       "a batch of 2 tensors needs a list of their buffers");
    params.buffers = buffers;
    ck_assert_xm_ok(xm_executor_create(&params, &executor)); /* sources may overlap */
    xm_executor_destroy(executor);
    buffers[1].dst = memory + 90;
    ck_assert_xm_fails(xm_executor_create(&params, &executor), XM_ERR_INVALID_ARGUMENT,
                       "rank 1: the destination buffer of tensor wq and the destination buffer of "
                       "tensor wk overlap by 6 bytes");
    buffers[1].dst = memory + 8;
    ck_assert_xm_fails(
        xm_executor_create(&params, &executor), XM_ERR_INVALID_ARGUMENT,
        "rank 1: the source buffer of tensor wq and the destination buffer of tensor "
        "wk overlap by 40 bytes");
    buffers[1].dst = memory + 96;
    buffers[1].dst_bytes = 47;
    ck_assert_xm_fails(xm_executor_create(&params, &executor), XM_ERR_BUFFER_TOO_SMALL,
                       "the destination buffer of tensor wk has 47 bytes, its tile needs 48");
    xm_transport_destroy(params.transport);
    xm_sim_fabric_destroy(fabric);
    xm_plan_destroy(plan);
    fixed_destroy(&fixed);
}
END_TEST

/* ---- a transport that ends everything at once: nothing but the executor runs -------------------
 */

static xm_status_t null_register(xm_transport_t *transport, void *address, size_t length,
                                 xm_memory_t **memory)
{
    (void)transport;
    (void)address;
    (void)length;
    *memory = NULL;
    return XM_OK;
}

static xm_status_t null_send(xm_transport_t *transport, int peer, uint64_t tag, const void *buffer,
                             size_t length, xm_memory_t *memory, xm_op_t *op)
{
    (void)transport;
    (void)peer;
    (void)tag;
    (void)buffer;
    (void)length;
    (void)memory;
    (void)op;
    return XM_OK;
}

static xm_status_t null_receive(xm_transport_t *transport, int peer, uint64_t tag, void *buffer,
                                size_t length, xm_memory_t *memory, xm_op_t *op)
{
    memset(buffer, 0, length);
    return null_send(transport, peer, tag, buffer, length, memory, op);
}

static int64_t null_now(const xm_transport_t *transport)
{
    (void)transport;
    return 0;
}

static const xm_transport_ops_t null_ops = {.name = "null",
                                            .memory_register = null_register,
                                            .send = null_send,
                                            .receive = null_receive,
                                            .now = null_now};

START_TEST(a_run_allocates_nothing)
{
    for (int rank = 0; rank < 16; ++rank) {
        xm_transport_t transport = {.ops = &null_ops, .rank = rank, .size = 16};
        xm_executor_params_t params = XM_EXECUTOR_PARAMS_INIT;
        xm_executor_t *executor;
        xm_status_t status;
        fixed_t fixed;
        int64_t before, after;
        int statuses = 0;

        fixed_default(&fixed);
        params.plan = fixed.plan;
        params.transport = &transport;
        params.src_bytes = xm_layout_buffer_bytes(xm_plan_src(fixed.plan), rank, 4);
        params.dst_bytes = xm_layout_buffer_bytes(xm_plan_dst(fixed.plan), rank, 4);
        params.src = calloc(1, params.src_bytes + 1);
        params.dst = calloc(1, params.dst_bytes + 1);
        before = allocations;
        ck_assert_xm_ok(xm_executor_create(&params, &executor));
        after = allocations;
        ck_assert_int_gt(after, before); /* the counter works */
        before = allocations;
        for (int round = 0; round < 3; ++round) {
            status = xm_executor_post(executor);
            do {
                status = status < 0 ? status : xm_executor_advance(executor);
            } while (status == XM_IN_PROGRESS);
            statuses += status;
        }
        after = allocations;
        ck_assert_int_eq(statuses, 3 * XM_OK);
        ck_assert_int_eq(after, before);
        xm_executor_destroy(executor);
        free((void *)(uintptr_t)params.src);
        free(params.dst);
        fixed_destroy(&fixed);
    }
}
END_TEST

/* A plan of thousands of transfers along chains over hundreds of ranks: one rank's part of it is
 * found without searching every chain for every transfer. */
START_TEST(creation_is_quick)
{
    enum { RANKS = 513, PARTS = 5600 };
    xm_transport_t transport = {.ops = &null_ops, .rank = 300, .size = RANKS};
    xm_network_params_t network_params = XM_NETWORK_PARAMS_INIT;
    xm_plan_params_t plan_params = XM_PLAN_PARAMS_INIT;
    xm_executor_params_t params = XM_EXECUTOR_PARAMS_INIT;
    int hosts[RANKS], ranks[RANKS], parents[RANKS];
    int64_t shape[] = {PARTS, 16};
    xm_mesh_t *src_mesh, *dst_mesh;
    xm_network_t *network;
    xm_executor_t *executor;
    struct timespec from, to;
    xm_layout_t *src, *dst;
    xm_spec_t spec;
    xm_plan_t *plan;
    double seconds;

    for (int r = 0; r < RANKS; ++r) {
        hosts[r] = r;
    }
    network_params.ranks = RANKS;
    network_params.host_of_rank = hosts;
    network_params.nic_bandwidth = network_params.host_bandwidth = 1e9;
    ck_assert_xm_ok(xm_network_create(&network_params, &network));
    ck_assert_xm_ok(xm_mesh_parse("1", NULL, 0, &src_mesh));
    ck_assert_xm_ok(xm_mesh_parse("512", NULL, 1, &dst_mesh));
    ck_assert_xm_ok(xm_spec_parse("RR", &spec));
    ck_assert_xm_ok(xm_layout_create(src_mesh, &spec, XM_PARTITION_EVEN, shape, &src));
    ck_assert_xm_ok(xm_layout_create(dst_mesh, &spec, XM_PARTITION_EVEN, shape, &dst));
    plan_params.src = src;
    plan_params.dst = dst;
    plan_params.element_size = 4;
    plan_params.network = network;
    ck_assert_xm_ok(xm_plan_create(&plan_params, &plan));
    xm_draft_clear(&plan->draft);
    ck_assert_xm_ok(xm_draft_init(&plan->draft, plan));
    for (int i = 0; i < PARTS; ++i) { /* chains that begin at every rank in turn */
        xm_transfer_t transfer = {.parent = -1, .first = i * 16, .end = i * 16 + 16};

        for (int p = 0; p < RANKS - 1; ++p) {
            ranks[p] = 1 + (i + p) % (RANKS - 1);
            parents[p] = p - 1;
        }
        ck_assert_xm_ok(xm_draft_route(&plan->draft, RANKS - 1, ranks, parents, &transfer.route));
        ck_assert_xm_ok(xm_draft_append(&plan->draft, &transfer, NULL));
    }
    ck_assert_xm_ok(xm_draft_number_hops(&plan->draft));
    params.plan = plan;
    params.transport = &transport;
    params.dst_bytes = PARTS * 16 * 4;
    params.dst = malloc(params.dst_bytes);
    (void)clock_gettime(CLOCK_MONOTONIC, &from);
    ck_assert_xm_ok(xm_executor_create(&params, &executor));
    (void)clock_gettime(CLOCK_MONOTONIC, &to);
    seconds = (double)(to.tv_sec - from.tv_sec) + (double)(to.tv_nsec - from.tv_nsec) * 1e-9;
    (void)printf("created in %.1f ms\n", seconds * 1e3);
    ck_assert_double_lt(seconds, 2);
    xm_executor_destroy(executor);
    free(params.dst);
    xm_plan_destroy(plan);
    xm_layout_destroy(src);
    xm_layout_destroy(dst);
    xm_mesh_destroy(src_mesh);
    xm_mesh_destroy(dst_mesh);
    xm_network_destroy(network);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("execute");
    TCase *tcase = tcase_create("all");

    tcase_set_timeout(tcase, 120);
    tcase_add_loop_test(tcase, random_plans_move_every_byte, 0, 4);
    tcase_add_test(tcase, a_dead_rank_ends_every_run_that_needs_it);
    tcase_add_test(tcase, a_cancelled_run_ends_and_can_be_repeated);
    tcase_add_test(tcase, spans_cover_what_the_rank_does);
    tcase_add_test(tcase, parts_of_a_transfer_are_relayed);
    tcase_add_test(tcase, bad_buffers_are_refused);
    tcase_add_test(tcase, overlaps_and_batches_without_buffers_are_refused);
    tcase_add_test(tcase, a_run_allocates_nothing);
    tcase_add_test(tcase, creation_is_quick);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
