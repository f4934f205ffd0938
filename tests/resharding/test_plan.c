#include "resharding/plan.h"

#include <jansson.h>
#include <stdio.h>

#include "random_case.h"
#include "xm_test.h"

static void random_params(random_t *random, random_case_t *c, xm_plan_params_t *params)
{
    random_case_create(random, c);
    *params = (xm_plan_params_t)XM_PLAN_PARAMS_INIT;
    params->src = c->src;
    params->dst = c->dst;
    params->element_size = c->element_size;
    params->network = c->network;
    params->strategy = (xm_strategy_t)random_int(random, 0, 1);
    params->scheduler = (xm_scheduler_t)random_int(random, 0, 1);
}

START_TEST(equal_problems_give_equal_digests)
{
    char first[64] = "";
    int different = 0;

    for (uint64_t seed = 1; seed <= 200; ++seed) {
        char digest[2][64];

        for (int run = 0; run < 2; ++run) {
            random_t random = {seed};
            random_case_t c;
            xm_plan_params_t params;
            xm_plan_t *plan;

            random_params(&random, &c, &params);
            ck_assert_xm_ok(xm_plan_create(&params, &plan));
            (void)snprintf(digest[run], sizeof(digest[run]), "%s", xm_plan_digest(plan));
            xm_plan_destroy(plan);
            random_case_destroy(&c);
        }
        ck_assert_str_eq(digest[0], digest[1]);
        ck_assert_uint_eq(strlen(digest[0]), 32);
        different += strcmp(digest[0], first) != 0;
        (void)snprintf(first, sizeof(first), "%s", digest[0]);
    }
    ck_assert_int_ge(different, 195);
}
END_TEST

START_TEST(what_is_near_costs_no_nic)
{
    random_t random = {31};

    for (int i = 0; i < 500; ++i) {
        random_case_t c;
        xm_plan_params_t params;
        xm_plan_t *plan;
        int64_t count, tasks;
        const xm_transfer_t *transfers;
        uint64_t net = 0;

        random_params(&random, &c, &params);
        ck_assert_xm_ok(xm_plan_create(&params, &plan));
        transfers = xm_plan_transfers(plan, &count);
        for (int64_t t = 0; t < count; ++t) {
            const xm_unit_task_t *task = &xm_plan_tasks(plan, &tasks)[transfers[t].task];
            int holders, receiver_host = xm_network_host_of(c.network, transfers[t].receiver);
            const int *ranks = xm_layout_replicas(c.src, task->src_tile, &holders);

            for (int h = 0; h < holders; ++h) {
                if (ranks[h] == transfers[t].receiver) {
                    ck_assert_int_eq(transfers[t].sender, transfers[t].receiver);
                }
                if (xm_network_host_of(c.network, ranks[h]) == receiver_host) {
                    ck_assert(!transfers[t].crosses);
                }
            }
            net += transfers[t].crosses ? xm_plan_transfer_bytes(plan, t) : 0;
        }
        ck_assert_uint_eq(net, xm_plan_net_bytes(plan));
        xm_plan_destroy(plan);
        random_case_destroy(&c);
    }
}
END_TEST

START_TEST(broadcast_enters_every_host_once)
{
    random_t random = {32};

    for (int i = 0; i < 500; ++i) {
        random_case_t c;
        xm_plan_params_t params;
        xm_plan_t *plan;
        int64_t count;
        const xm_transfer_t *transfers;

        random_params(&random, &c, &params);
        params.strategy = XM_STRATEGY_BROADCAST;
        ck_assert_xm_ok(xm_plan_create(&params, &plan));
        transfers = xm_plan_transfers(plan, &count);
        for (int64_t a = 0; a < count; ++a) {
            for (int64_t b = 0; b < a; ++b) {
                ck_assert(!transfers[a].crosses || !transfers[b].crosses ||
                          transfers[a].task != transfers[b].task ||
                          xm_network_host_of(c.network, transfers[a].receiver) !=
                              xm_network_host_of(c.network, transfers[b].receiver));
            }
        }
        xm_plan_destroy(plan);
        random_case_destroy(&c);
    }
}
END_TEST

/* Receivers from last to first: the order that sorting them by host finds hardest. */
START_TEST(chains_go_round_the_hosts)
{
    enum { HOSTS = 64, PER_HOST = 4, RANKS = HOSTS * PER_HOST };
    int host_of[RANKS];
    int64_t shape[] = {HOSTS}, count;
    xm_network_params_t network_params = XM_NETWORK_PARAMS_INIT;
    xm_plan_params_t params = XM_PLAN_PARAMS_INIT;
    xm_mesh_t *src_mesh, *dst_mesh;
    xm_spec_t src_spec, dst_spec;
    xm_layout_t *src, *dst;
    xm_network_t *network;
    xm_plan_t *plan;
    const xm_transfer_t *transfers;

    for (int r = 0; r < RANKS; ++r) {
        host_of[r] = r / PER_HOST;
    }
    network_params.ranks = RANKS;
    network_params.host_of_rank = host_of;
    network_params.nic_bandwidth = network_params.host_bandwidth = 1e9;
    ck_assert_xm_ok(xm_network_create(&network_params, &network));
    ck_assert_xm_ok(xm_mesh_parse("64x4", "0-255", 0, &src_mesh));
    ck_assert_xm_ok(xm_mesh_parse("64x4", "255-0", 0, &dst_mesh));
    ck_assert_xm_ok(xm_spec_parse("S0", &src_spec));
    ck_assert_xm_ok(xm_spec_parse("R", &dst_spec));
    ck_assert_xm_ok(xm_layout_create(src_mesh, &src_spec, XM_PARTITION_EVEN, shape, &src));
    ck_assert_xm_ok(xm_layout_create(dst_mesh, &dst_spec, XM_PARTITION_EVEN, shape, &dst));
    params.src = src;
    params.dst = dst;
    params.element_size = 1;
    params.network = network;
    ck_assert_xm_ok(xm_plan_create(&params, &plan));
    ck_assert_uint_eq(xm_plan_net_bytes(plan), HOSTS * (HOSTS - 1));
    transfers = xm_plan_transfers(plan, &count);
    for (int64_t i = 0; i < count; ++i) {
        if (transfers[i].crosses) {
            ck_assert_int_eq(host_of[transfers[i].receiver],
                             (host_of[transfers[i].sender] + 1) % HOSTS);
        } else if (transfers[i].parent >= 0 && transfers[i].parent == i - 1 &&
                   !transfers[i - 1].crosses) {
            ck_assert_int_lt(transfers[i].receiver, transfers[i - 1].receiver); /* a stable sort */
        }
    }
    xm_plan_destroy(plan);
    xm_layout_destroy(dst);
    xm_layout_destroy(src);
    xm_mesh_destroy(dst_mesh);
    xm_mesh_destroy(src_mesh);
    xm_network_destroy(network);
}
END_TEST

START_TEST(json_holds_the_plan)
{
    random_t random = {33};
    random_case_t c;
    xm_plan_params_t params;
    xm_plan_t *plan;
    FILE *file = tmpfile();
    json_t *root;
    json_error_t error;
    int64_t tasks, transfers;

    random_params(&random, &c, &params);
    ck_assert_xm_ok(xm_plan_create(&params, &plan));
    ck_assert_ptr_nonnull(file);
    ck_assert_xm_ok(xm_plan_write_json(plan, file));
    rewind(file);
    root = json_loadf(file, 0, &error);
    ck_assert_msg(root != NULL, "line %d: %s", error.line, error.text);
    (void)xm_plan_tasks(plan, &tasks);
    (void)xm_plan_transfers(plan, &transfers);
    ck_assert_int_eq(json_integer_value(json_object_get(root, "version")), 1);
    ck_assert_str_eq(json_string_value(json_object_get(root, "digest")), xm_plan_digest(plan));
    ck_assert_uint_eq(json_array_size(json_object_get(root, "tasks")), (size_t)tasks);
    ck_assert_uint_eq(json_array_size(json_object_get(root, "transfers")), (size_t)transfers);
    json_decref(root);
    (void)fclose(file);
    xm_plan_destroy(plan);
    random_case_destroy(&c);
}
END_TEST

START_TEST(bad_parameters_are_named)
{
    random_t random = {34};
    random_case_t c;
    xm_plan_params_t params;
    xm_plan_t *plan;
    xm_network_params_t small = XM_NETWORK_PARAMS_INIT;
    xm_network_t *network;
    xm_strategy_t strategy;
    xm_scheduler_t scheduler;
    int host = 0;

    do {
        random_params(&random, &c, &params);
        if (xm_mesh_max_rank(xm_layout_mesh(c.src)) > 0) {
            break;
        }
        random_case_destroy(&c);
    } while (true);
    params.element_size = 17;
    ck_assert_xm_fails(xm_plan_create(&params, &plan), XM_ERR_INVALID_ARGUMENT,
                       "an element has 1 to 16 bytes, not 17");
    params.element_size = 4;
    small.ranks = 1;
    small.host_of_rank = &host;
    small.nic_bandwidth = small.host_bandwidth = 1e9;
    ck_assert_xm_ok(xm_network_create(&small, &network));
    params.network = network;
    ck_assert_xm_fails(xm_plan_create(&params, &plan), XM_ERR_INVALID_ARGUMENT,
                       "but the job has ranks 0 … 0");
    xm_network_destroy(network);
    random_case_destroy(&c);
    ck_assert_xm_fails(xm_strategy_parse("brodcast", &strategy), XM_ERR_INVALID_ARGUMENT,
                       "did you mean broadcast?");
    ck_assert_xm_fails(xm_scheduler_parse("nave", &scheduler), XM_ERR_INVALID_ARGUMENT,
                       "did you mean naive?");
    small.nic_bandwidth = 0;
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
                       "the tensor has 4611686018427387904 bytes, which take 4.61169e+10 s");
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

int main(void)
{
    Suite *suite = suite_create("plan");
    TCase *tcase = tcase_create("all");

    tcase_set_timeout(tcase, 60);
    tcase_add_test(tcase, equal_problems_give_equal_digests);
    tcase_add_test(tcase, what_is_near_costs_no_nic);
    tcase_add_test(tcase, broadcast_enters_every_host_once);
    tcase_add_test(tcase, chains_go_round_the_hosts);
    tcase_add_test(tcase, json_holds_the_plan);
    tcase_add_test(tcase, bad_parameters_are_named);
    tcase_add_test(tcase, tensors_beyond_four_gibibytes_are_planned);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
