/* SPDX-License-Identifier: Apache-2.0 */
#include "resharding/plan/plan.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>

#include "tests/resharding/plan/random_case.h"
#include "xm_test.h"

START_TEST(equal_problems_give_equal_digests)
{
    char first[64] = "";
    int different = 0;

    for (uint64_t seed = 1; seed <= 200; ++seed) {
        char digest[2][64];

        for (int run = 0; run < 2; ++run) {
            random_t random = {seed};
            random_batch_t batch;
            xm_plan_t *plan;

            random_batch_create(&random, &batch);
            ck_assert_xm_ok(xm_plan_create(&batch.params, &plan));
            (void)snprintf(digest[run], sizeof(digest[run]), "%s", xm_plan_digest(plan));
            xm_plan_destroy(plan);
            random_batch_destroy(&batch);
        }
        ck_assert_str_eq(digest[0], digest[1]);
        ck_assert_uint_eq(strlen(digest[0]), 32);
        different += strcmp(digest[0], first) != 0;
        (void)snprintf(first, sizeof(first), "%s", digest[0]);
    }
    ck_assert_int_ge(different, 195);
}
END_TEST

/* The document has every task, route and transfer, number by number. */
static void check_json(const xm_plan_t *plan, const json_t *root)
{
    const json_t *tasks = json_object_get(root, "tasks"), *routes = json_object_get(root, "routes");
    const json_t *transfers = json_object_get(root, "transfers");
    int64_t count;

    (void)plan_tasks(plan, &count);
    ck_assert_str_eq(json_string_value(json_object_get(root, "digest")), xm_plan_digest(plan));
    ck_assert_uint_eq(json_array_size(tasks), (size_t)count);
    ck_assert_uint_eq(json_array_size(routes), (size_t)xm_plan_routes(plan));
    ck_assert_uint_eq(json_array_size(transfers), (size_t)plan_transfer_count(plan));
    ck_assert_uint_eq(json_array_size(json_object_get(root, "tensors")),
                      (size_t)xm_plan_tensors(plan));
    for (int64_t t = 0; t < count; ++t) {
        const json_t *task = json_array_get(tasks, (size_t)t),
                     *sides = json_object_get(task, "box");
        xm_box_t box;

        xm_plan_task_box(plan, t, &box);
        ck_assert_int_eq(json_integer_value(json_object_get(task, "tensor")),
                         plan_task_at(plan, t)->tensor);
        ck_assert_int_eq(json_integer_value(json_object_get(task, "chunk_elements")),
                         xm_plan_chunk_elements(plan, t));
        ck_assert_uint_eq(json_array_size(sides), (size_t)box.dims);
        for (int d = 0; d < box.dims; ++d) {
            const json_t *side = json_array_get(sides, (size_t)d);

            ck_assert_int_eq(json_integer_value(json_array_get(side, 0)), box.lo[d]);
            ck_assert_int_eq(json_integer_value(json_array_get(side, 1)), box.hi[d]);
        }
    }
    for (int64_t t = 0; t < plan_transfer_count(plan); ++t) {
        const json_t *transfer = json_array_get(transfers, (size_t)t);

        ck_assert_int_eq(json_integer_value(json_object_get(transfer, "route")),
                         plan_transfer_at(plan, t)->route);
        ck_assert_int_eq(json_integer_value(json_object_get(transfer, "first")),
                         plan_transfer_at(plan, t)->first);
        ck_assert_int_eq(json_integer_value(json_object_get(transfer, "end")),
                         plan_transfer_at(plan, t)->end);
        ck_assert_int_eq(json_integer_value(json_object_get(transfer, "parent")),
                         plan_transfer_at(plan, t)->parent);
    }
}

START_TEST(json_holds_the_plan)
{
    random_t random = {33};

    for (int i = 0; i < 30; ++i) {
        random_batch_t batch;
        xm_plan_t *plan;
        FILE *file = tmpfile();
        json_t *root;
        json_error_t error;

        random_batch_create(&random, &batch);
        ck_assert_xm_ok(xm_plan_create(&batch.params, &plan));
        ck_assert_ptr_nonnull(file);
        ck_assert_xm_ok(xm_plan_write_json(plan, file));
        rewind(file);
        root = json_loadf(file, 0, &error);
        ck_assert_msg(root != NULL, "line %d: %s", error.line, error.text);
        check_json(plan, root);
        json_decref(root);
        (void)fclose(file);
        xm_plan_destroy(plan);
        random_batch_destroy(&batch);
    }
}
END_TEST

START_TEST(bad_parameters_are_named)
{
    xm_layout_t *src = layout_from_text("2", "S0R", "4x6", XM_PARTITION_EVEN);
    xm_layout_t *dst = layout_from_text("2", "RS0", "4x6", XM_PARTITION_EVEN);
    xm_plan_params_t params = XM_PLAN_PARAMS_INIT;
    xm_plan_t *plan;
    xm_network_params_t small = XM_NETWORK_PARAMS_INIT;
    xm_network_t *network;
    xm_strategy_t strategy;
    xm_scheduler_t scheduler;
    xm_tensor_t tensors[2];
    int host = 0, hosts[] = {0, 1};

    small.ranks = 2;
    small.host_of_rank = hosts;
    small.nic_bandwidth = small.host_bandwidth = 1e9;
    ck_assert_xm_ok(xm_network_create(&small, &network));
    params.src = src;
    params.dst = dst;
    params.network = network;
    params.element_size = 17;
    ck_assert_xm_fails(xm_plan_create(&params, &plan), XM_ERR_INVALID_ARGUMENT,
                       "an element has 1 to 16 bytes, not 17");
    tensors[0] = (xm_tensor_t){"weights", src, dst, 32};
    tensors[1] = (xm_tensor_t){"biases", src, dst, 12};
    params.tensors = tensors;
    params.tensor_count = 2;
    ck_assert_xm_fails(xm_plan_create(&params, &plan), XM_ERR_INVALID_ARGUMENT,
                       "tensor biases: an element has 1 to 16 bytes, or 1, 2 or 4 bits, not 12");
    params.tensor_count = 0;
    ck_assert_xm_fails(xm_plan_create(&params, &plan), XM_ERR_INVALID_ARGUMENT,
                       "a batch has at least one tensor, not 0");
    xm_network_destroy(network);
    params.tensors = NULL;
    params.element_size = 4;
    small.ranks = 1;
    small.host_of_rank = &host;
    ck_assert_xm_ok(xm_network_create(&small, &network));
    params.network = network;
    ck_assert_xm_fails(xm_plan_create(&params, &plan), XM_ERR_INVALID_ARGUMENT,
                       "but the job has ranks 0 … 0");
    xm_network_destroy(network);
    xm_layout_destroy(dst);
    xm_layout_destroy(src);
    ck_assert_xm_fails(xm_strategy_parse("brodcast", &strategy), XM_ERR_INVALID_ARGUMENT,
                       "did you mean broadcast?");
    ck_assert_xm_fails(xm_scheduler_parse("nave", &scheduler), XM_ERR_INVALID_ARGUMENT,
                       "did you mean naive?");
    small.nic_bandwidth = 0;
    ck_assert_xm_fails(xm_network_create(&small, &network), XM_ERR_INVALID_ARGUMENT,
                       "bandwidths must be positive");
    small.nic_bandwidth = INFINITY;
    ck_assert_xm_fails(xm_network_create(&small, &network), XM_ERR_INVALID_ARGUMENT,
                       "bandwidths must be positive");
    small.nic_bandwidth = 1;
    host = 1;
    ck_assert_xm_fails(xm_network_create(&small, &network), XM_ERR_INVALID_ARGUMENT,
                       "rank 0 is on host 1");
}
END_TEST

START_TEST(tensors_beyond_four_gibibytes_are_planned)
{
    xm_mesh_t *src_mesh, *dst_mesh;
    xm_spec_t src_spec, dst_spec;
    int64_t shape[] = {INT64_C(1) << 22, 4096}, overflow[] = {INT64_C(1) << 60, 4};
    xm_network_params_t network_params = XM_NETWORK_PARAMS_INIT;
    xm_plan_params_t params = XM_PLAN_PARAMS_INIT;
    xm_layout_t *src, *dst;
    xm_network_t *network;
    xm_plan_t *plan;
    int hosts[] = {0, 0, 1, 1};

    ck_assert_xm_ok(xm_mesh_parse("2", "0-1", 0, &src_mesh));
    ck_assert_xm_ok(xm_mesh_parse("2", "2-3", 0, &dst_mesh));
    ck_assert_xm_ok(xm_spec_parse("S0R", &src_spec));
    ck_assert_xm_ok(xm_spec_parse("RS0", &dst_spec));
    network_params.ranks = 4;
    network_params.host_of_rank = hosts;
    network_params.nic_bandwidth = 1e9;
    network_params.host_bandwidth = 1e10;
    ck_assert_xm_ok(xm_network_create(&network_params, &network));
    ck_assert_xm_ok(xm_layout_create(src_mesh, &src_spec, XM_PARTITION_EVEN, shape, &src));
    ck_assert_xm_ok(xm_layout_create(dst_mesh, &dst_spec, XM_PARTITION_EVEN, shape, &dst));
    params.src = src;
    params.dst = dst;
    params.element_size = 4;
    params.network = network;
    ck_assert_xm_ok(xm_plan_create(&params, &plan));
    ck_assert_uint_eq(xm_plan_bytes(plan), UINT64_C(1) << 36);
    ck_assert_uint_eq(xm_plan_net_bytes(plan), UINT64_C(1) << 36);
    ck_assert_int_eq(xm_plan_bound_ns(plan), (INT64_C(1) << 36));
    xm_plan_destroy(plan);
    xm_layout_destroy(src);
    xm_layout_destroy(dst);
    ck_assert_xm_ok(xm_layout_create(src_mesh, &src_spec, XM_PARTITION_EVEN, overflow, &src));
    ck_assert_xm_ok(xm_layout_create(dst_mesh, &dst_spec, XM_PARTITION_EVEN, overflow, &dst));
    params.src = src;
    params.dst = dst;
    ck_assert_xm_fails(xm_plan_create(&params, &plan), XM_ERR_INVALID_ARGUMENT,
                       "more than 2^63 bytes (up to dimension 1)");
    params.element_size = 1; /* 2^62 bytes at 1e9 bytes/s: 146 years */
    ck_assert_xm_ok(xm_plan_create(&params, &plan));
    /* Bounds are rounded down by at most 2^-49 of their size. */
    ck_assert_int_le(xm_plan_bound_ns(plan), INT64_C(1) << 62);
    ck_assert_int_ge(xm_plan_bound_ns(plan), (INT64_C(1) << 62) - (INT64_C(1) << 13));
    xm_plan_destroy(plan);
    xm_network_destroy(network);
    network_params.nic_bandwidth = 1e8;
    ck_assert_xm_ok(xm_network_create(&network_params, &network));
    params.network = network;
    ck_assert_xm_fails(xm_plan_create(&params, &plan), XM_ERR_INVALID_ARGUMENT,
                       "all copies have 4611686018427387904 bytes, which take 4.61169e+10 s");
    xm_network_destroy(network);
    network_params.nic_bandwidth = 1e10;
    network_params.host_bandwidth = 1e8; /* a device's port may be slower than the NIC */
    ck_assert_xm_ok(xm_network_create(&network_params, &network));
    params.network = network;
    ck_assert_xm_fails(xm_plan_create(&params, &plan), XM_ERR_INVALID_ARGUMENT,
                       "which take 4.61169e+10 s at 1e+08 bytes/s");
    xm_network_destroy(network);
    network_params.host_bandwidth = 1e10;
    network_params.uplink_bandwidth = 1e8;
    ck_assert_xm_ok(xm_network_create(&network_params, &network));
    params.network = network;
    ck_assert_xm_fails(xm_plan_create(&params, &plan), XM_ERR_INVALID_ARGUMENT,
                       "which take 4.61169e+10 s at 1e+08 bytes/s");
    xm_layout_destroy(dst);
    ck_assert_xm_ok(xm_spec_parse("RR", &dst_spec));
    ck_assert_xm_ok(xm_layout_create(dst_mesh, &dst_spec, XM_PARTITION_EVEN, overflow, &dst));
    params.dst = dst;
    ck_assert_xm_fails(xm_plan_create(&params, &plan), XM_ERR_INVALID_ARGUMENT,
                       "the 2 copies of the tensor at the destination have more than 2^63 bytes");
    xm_layout_destroy(src);
    xm_layout_destroy(dst);
    xm_network_destroy(network);
    xm_mesh_destroy(src_mesh);
    xm_mesh_destroy(dst_mesh);
}
END_TEST

/* A batch from one host's devices to those of others, whole on all. */
static xm_status_t plan_openshop(int hosts, int devices, const int64_t *elements, const int *bits,
                                 int count, xm_plan_t **plan)
{
    enum { MOST_RANKS = 32, MOST_TENSORS = 8 };
    int host_of[MOST_RANKS], sizes[2] = {devices, (hosts - 1) * devices};
    xm_network_params_t network_params = XM_NETWORK_PARAMS_INIT;
    xm_plan_params_t params = XM_PLAN_PARAMS_INIT;
    xm_tensor_t tensors[MOST_TENSORS];
    xm_layout_t *layouts[2][MOST_TENSORS];
    xm_mesh_t *meshes[2];
    xm_network_t *network;
    xm_spec_t whole;
    xm_status_t status;
    int ranks[MOST_RANKS];

    for (int r = 0; r < hosts * devices; ++r) {
        ranks[r] = r;
        host_of[r] = r / devices;
    }
    network_params.ranks = hosts * devices;
    network_params.host_of_rank = host_of;
    network_params.nic_bandwidth = 5e10;
    network_params.host_bandwidth = 3e11;
    ck_assert_xm_ok(xm_network_create(&network_params, &network));
    ck_assert_xm_ok(xm_spec_parse("R", &whole));
    for (int side = 0; side < 2; ++side) {
        ck_assert_xm_ok(xm_mesh_create(1, &sizes[side], ranks + side * devices, &meshes[side]));
        for (int i = 0; i < count; ++i) {
            ck_assert_xm_ok(xm_layout_create(meshes[side], &whole, XM_PARTITION_EVEN, &elements[i],
                                             &layouts[side][i]));
        }
    }
    for (int i = 0; i < count; ++i) {
        tensors[i] = (xm_tensor_t){NULL, layouts[0][i], layouts[1][i], bits[i]};
    }
    params.tensors = tensors;
    params.tensor_count = count;
    params.scheduler = XM_SCHEDULER_OPENSHOP;
    params.network = network;
    status = xm_plan_create(&params, plan);
    for (int side = 0; side < 2; ++side) {
        for (int i = 0; i < count; ++i) {
            xm_layout_destroy(layouts[side][i]);
        }
        xm_mesh_destroy(meshes[side]);
    }
    xm_network_destroy(network);
    return status;
}

/* Relays of odd amounts leave hops of a few bytes, which must not set the size of all chunks. */
START_TEST(odd_amounts_keep_their_chunks)
{
    const int64_t elements[] = {10000019, 100000007};
    const int bits[] = {16, 16};

    for (int i = 0; i < 2; ++i) {
        xm_plan_t *plan;

        ck_assert_xm_ok(plan_openshop(8, 2, &elements[i], &bits[i], 1, &plan));
        ck_assert_int_eq(xm_plan_chosen_scheduler(plan), XM_SCHEDULER_OPENSHOP);
        ck_assert_int_ge(xm_plan_chunk_elements(plan, 0) * 2, 65536);
        xm_plan_destroy(plan);
    }
}
END_TEST

/* Cuts fall into elements, and leave relays nothing of some tensors: verified by xm_plan_create().
 */
START_TEST(cuts_fall_between_elements)
{
    static const int widths[] = {8, 16, 32, 128, 128};
    random_t random = {4711};
    int relayed = 0, parts = 0;

    for (int round = 0; round < 60; ++round) {
        int64_t elements[8];
        int bits[8], count = random_int(&random, 1, 8), hosts = random_int(&random, 3, 8);
        int devices = random_int(&random, 1, 4);
        xm_plan_t *plan;

        for (int i = 0; i < count; ++i) {
            elements[i] = random_int(&random, 0, 40);
            bits[i] = widths[random_int(&random, 0, 4)];
        }
        ck_assert_xm_ok(plan_openshop(hosts, devices, elements, bits, count, &plan));
        for (int64_t t = 0; t < plan_transfer_count(plan); ++t) {
            const xm_transfer_t *transfer = plan_transfer_at(plan, t);

            relayed += transfer->parent >= 0;
            parts += transfer->end - transfer->first < plan_task_at(plan, transfer->task)->elements;
        }
        xm_plan_destroy(plan);
    }
    ck_assert_int_gt(relayed, 0);
    ck_assert_int_gt(parts, 0);
}
END_TEST

START_TEST(names_that_json_cannot_hold_are_refused)
{
    xm_layout_t *src = layout_from_text("2", "S0R", "4x6", XM_PARTITION_EVEN);
    xm_layout_t *dst = layout_from_text("2", "RS0", "4x6", XM_PARTITION_EVEN);
    const xm_tensor_t tensor = {"\xff", src, dst, 8};
    xm_network_params_t network_params = XM_NETWORK_PARAMS_INIT;
    xm_plan_params_t params = XM_PLAN_PARAMS_INIT;
    int hosts[] = {0, 1};
    FILE *file = tmpfile();
    xm_network_t *network;
    xm_plan_t *plan;

    network_params.ranks = 2;
    network_params.host_of_rank = hosts;
    network_params.nic_bandwidth = network_params.host_bandwidth = 1e9;
    ck_assert_xm_ok(xm_network_create(&network_params, &network));
    params.tensors = &tensor;
    params.tensor_count = 1;
    params.network = network;
    ck_assert_xm_ok(xm_plan_create(&params, &plan));
    ck_assert_ptr_nonnull(file);
    ck_assert_xm_fails(xm_plan_write_json(plan, file), XM_ERR_INVALID_ARGUMENT,
                       "the name of tensor 0 is not UTF-8");
    ck_assert_int_eq(ftell(file), 0);
    (void)fclose(file);
    xm_plan_destroy(plan);
    xm_network_destroy(network);
    xm_layout_destroy(dst);
    xm_layout_destroy(src);
}
END_TEST

/* Bytes per chunk of a 64 MiB tensor that goes from rank 0 to rank 1. */
static int64_t chunk_between(int second_host, const char *src_text, const char *dst_text,
                             uint64_t chunk_bytes)
{
    static const int64_t shape[] = {4096, 4096};
    int hosts[] = {0, second_host, second_host};
    xm_network_params_t network_params = XM_NETWORK_PARAMS_INIT;
    xm_plan_params_t params = XM_PLAN_PARAMS_INIT;
    xm_mesh_t *src_mesh, *dst_mesh;
    xm_spec_t src_spec, dst_spec;
    xm_layout_t *src, *dst;
    xm_network_t *network;
    xm_plan_t *plan;
    int64_t chunk;

    ck_assert_xm_ok(xm_mesh_parse("1", "0", 0, &src_mesh));
    ck_assert_xm_ok(xm_mesh_parse("2", "1-2", 0, &dst_mesh));
    ck_assert_xm_ok(xm_spec_parse(src_text, &src_spec));
    ck_assert_xm_ok(xm_spec_parse(dst_text, &dst_spec));
    ck_assert_xm_ok(xm_layout_create(src_mesh, &src_spec, XM_PARTITION_EVEN, shape, &src));
    ck_assert_xm_ok(xm_layout_create(dst_mesh, &dst_spec, XM_PARTITION_EVEN, shape, &dst));
    network_params.ranks = 3;
    network_params.host_of_rank = hosts;
    network_params.nic_bandwidth = 1e9;
    network_params.host_bandwidth = 1e10;
    ck_assert_xm_ok(xm_network_create(&network_params, &network));
    params.src = src;
    params.dst = dst;
    params.element_size = 4;
    params.strategy = XM_STRATEGY_SEND_RECV;
    params.chunk_bytes = chunk_bytes;
    params.network = network;
    ck_assert_xm_ok(xm_plan_create(&params, &plan));
    chunk = 4 * xm_plan_chunk_elements(plan, 0);
    xm_plan_destroy(plan);
    xm_network_destroy(network);
    xm_layout_destroy(dst);
    xm_layout_destroy(src);
    xm_mesh_destroy(dst_mesh);
    xm_mesh_destroy(src_mesh);
    return chunk;
}

/* Larger where nothing leaves the host and nothing is packed, unless the caller says how large. */
START_TEST(chunks_inside_a_host_are_larger)
{
    ck_assert_int_eq(chunk_between(1, "RR", "S0R", 0), 512 << 10);
    ck_assert_int_eq(chunk_between(0, "RR", "S0R", 0), 4 << 20);
    ck_assert_int_eq(chunk_between(0, "RR", "RS0", 0), 512 << 10);
    ck_assert_int_eq(chunk_between(0, "RR", "S0R", 1 << 20), 1 << 20);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("plan");
    TCase *tcase = tcase_create("all");

    tcase_set_timeout(tcase, 60);
    tcase_add_test(tcase, equal_problems_give_equal_digests);
    tcase_add_test(tcase, json_holds_the_plan);
    tcase_add_test(tcase, bad_parameters_are_named);
    tcase_add_test(tcase, tensors_beyond_four_gibibytes_are_planned);
    tcase_add_test(tcase, odd_amounts_keep_their_chunks);
    tcase_add_test(tcase, cuts_fall_between_elements);
    tcase_add_test(tcase, chunks_inside_a_host_are_larger);
    tcase_add_test(tcase, names_that_json_cannot_hold_are_refused);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
