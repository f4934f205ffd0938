/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/base/clock.h"
#include "resharding/execute/execute.h"

#include <stdio.h>
#include <time.h>

#include "resharding/execute/execute_private.h"
#include "resharding/plan/plan_private.h"
#include "tests/resharding/execute/sim_job.h"
#include "xm_test.h"

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

/* ---- creation ---------------------------------------------------------------------------------
 */

START_TEST(bad_buffers_are_refused)
{
    fixed_t fixed;
    xm_sim_fabric_params_t fabric_params = {0};
    xm_sim_fabric_t *fabric;
    xm_executor_params_t params = {0};
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

/* Where sends wait for an answer there is more in flight, unless somebody has said how much. */
START_TEST(answers_widen_the_window)
{
    static const struct {
        bool acknowledges;
        const char *variable;
        int given, window;
    } cases[] = {{false, NULL, 0, 2}, {true, NULL, 0, 4}, {true, "3", 0, 3}, {true, NULL, 5, 5}};
    static char buffer[6144];
    fixed_t fixed;
    xm_sim_fabric_params_t fabric_params = {0};
    xm_executor_params_t params = {0};
    xm_sim_fabric_t *fabric;

    fixed_default(&fixed);
    fabric_params.ranks = 16;
    ck_assert_xm_ok(xm_sim_fabric_create(&fabric_params, &fabric));
    params.plan = fixed.plan;
    ck_assert_xm_ok(xm_transport_sim_create(fabric, 9, &params.transport));
    params.dst = buffer;
    params.dst_bytes = sizeof(buffer);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); ++i) {
        xm_executor_t *executor;

        ck_assert_int_eq(cases[i].variable != NULL ? setenv("XM_WINDOW", cases[i].variable, 1)
                                                   : unsetenv("XM_WINDOW"),
                         0);
        params.transport->acknowledges = cases[i].acknowledges;
        params.window = cases[i].given;
        ck_assert_xm_ok(xm_executor_create(&params, &executor));
        ck_assert_int_eq(executor->window, cases[i].window);
        xm_executor_destroy(executor);
    }
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
    xm_sim_fabric_params_t fabric_params = {0};
    xm_executor_params_t params = {0};
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

/* Boxes of 4 rows of 4 MiB that are strided in the destination, from two peers. */
static xm_status_t create_large(uint64_t chunk_bytes, uint64_t *staging)
{
    xm_transport_t transport = {.ops = &null_ops, .rank = 2, .size = 3};
    xm_executor_params_t params = {0};
    xm_plan_params_t plan_params = XM_PLAN_PARAMS_INIT;
    xm_executor_t *executor;
    xm_status_t status;
    xm_plan_t *plan;
    fixed_t fixed;

    fixed_create(&fixed, "2", "RS0", "1", 2, "RR", 3, 4, 2 * 1024 * 1024);
    plan_params.src = xm_plan_src(fixed.plan);
    plan_params.dst = xm_plan_dst(fixed.plan);
    plan_params.element_size = 4;
    plan_params.chunk_bytes = chunk_bytes;
    plan_params.network = fixed.network;
    ck_assert_xm_ok(xm_plan_create(&plan_params, &plan));
    params.plan = plan;
    params.transport = &transport;
    params.window = 64;
    params.dst_bytes = 32 * 1024 * 1024;
    params.dst = malloc(params.dst_bytes);
    status = xm_executor_create(&params, &executor);
    if (status == XM_OK) {
        *staging = xm_executor_staging_bytes(executor);
        xm_executor_destroy(executor);
    }
    free(params.dst);
    xm_plan_destroy(plan);
    fixed_destroy(&fixed);
    return status;
}

START_TEST(pack_buffers_stay_below_8_mib_a_peer)
{
    enum { MIB = 1024 * 1024 };
    uint64_t staging = 0;

    ck_assert_xm_ok(create_large(3 * 100 * 1024, &staging));
    ck_assert_uint_gt(staging, 8 * MIB);
    ck_assert_uint_le(staging, 2 * 8 * MIB + MIB);
    ck_assert_xm_ok(create_large(1 * MIB, &staging)); /* rows are whole chunks: nothing to pack */
    ck_assert_uint_eq(staging, 0);
    ck_assert_xm_ok(create_large(9 * MIB, &staging)); /* plans cap chunks at 8 MiB */
    ck_assert_uint_le(staging, 3 * 8 * MIB);          /* two peers, and the reserve of one buffer */
}
END_TEST

START_TEST(a_run_allocates_nothing)
{
    for (int rank = 0; rank < 16; ++rank) {
        xm_transport_t transport = {.ops = &null_ops, .rank = rank, .size = 16};
        xm_executor_params_t params = {0};
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
    xm_executor_params_t params = {0};
    int hosts[RANKS], ranks[RANKS], parents[RANKS];
    int64_t shape[] = {PARTS, 16};
    xm_mesh_t *src_mesh, *dst_mesh;
    xm_network_t *network;
    xm_executor_t *executor;
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
    xm_builder_clear(&plan->builder);
    ck_assert_xm_ok(xm_builder_init(&plan->builder, plan));
    for (int i = 0; i < PARTS; ++i) { /* chains that begin at every rank in turn */
        xm_transfer_t transfer = {.parent = -1, .first = i * 16, .end = i * 16 + 16};

        for (int p = 0; p < RANKS - 1; ++p) {
            ranks[p] = 1 + (i + p) % (RANKS - 1);
            parents[p] = p - 1;
        }
        ck_assert_xm_ok(
            xm_builder_route(&plan->builder, RANKS - 1, ranks, parents, &transfer.route));
        ck_assert_xm_ok(xm_builder_append(&plan->builder, &transfer, NULL));
    }
    ck_assert_xm_ok(xm_builder_number_hops(&plan->builder));
    params.plan = plan;
    params.transport = &transport;
    params.dst_bytes = PARTS * 16 * 4;
    params.dst = malloc(params.dst_bytes);
    seconds = xm_clock_cpu_seconds();
    ck_assert_xm_ok(xm_executor_create(&params, &executor));
    seconds = xm_clock_cpu_seconds() - seconds;
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
    Suite *suite = suite_create("execute_create");
    TCase *tcase = tcase_create("all");

    tcase_set_timeout(tcase, 60);
    tcase_add_test(tcase, bad_buffers_are_refused);
    tcase_add_test(tcase, answers_widen_the_window);
    tcase_add_test(tcase, overlaps_and_batches_without_buffers_are_refused);
    tcase_add_test(tcase, pack_buffers_stay_below_8_mib_a_peer);
    tcase_add_test(tcase, a_run_allocates_nothing);
    tcase_add_test(tcase, creation_is_quick);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
