#include "resharding/solve/bound.h"

#include "tests/resharding/plan/random_case.h"
#include "xm_test.h"

/* The bound by its definition: all 2^hosts sets of source hosts, one by one. */
static int64_t reference_ns(const random_case_t *c, const xm_unit_task_t *tasks, int64_t count)
{
    int hosts = xm_network_hosts(c->network);
    int64_t worst = 0, received[32] = {0};
    uint32_t holds[4096], needs[4096];

    ck_assert_int_le(count, 4096);
    for (int64_t t = 0; t < count; ++t) {
        int n;
        const int *ranks = xm_layout_replicas(c->src, tasks[t].src_tile, &n);

        holds[t] = needs[t] = 0;
        for (int i = 0; i < n; ++i) {
            holds[t] |= 1u << xm_network_host_of(c->network, ranks[i]);
        }
        ranks = xm_layout_replicas(c->dst, tasks[t].dst_tile, &n);
        for (int i = 0; i < n; ++i) {
            needs[t] |= 1u << xm_network_host_of(c->network, ranks[i]);
        }
        needs[t] &= ~holds[t];
        for (int h = 0; h < hosts; ++h) {
            received[h] += (needs[t] >> h & 1) ? tasks[t].elements * c->element_size : 0;
        }
    }
    for (int h = 0; h < hosts; ++h) {
        int64_t ns = xm_network_egress_ns(c->network, 0, (uint64_t)received[h]);

        worst = ns > worst ? ns : worst;
    }
    for (uint32_t set = 1; set < 1u << hosts; ++set) {
        int64_t bytes = 0, members = __builtin_popcount(set), ns;

        for (int64_t t = 0; t < count; ++t) {
            bytes +=
                needs[t] != 0 && (holds[t] & ~set) == 0 ? tasks[t].elements * c->element_size : 0;
        }
        ns = xm_network_egress_ns(c->network, 0, (uint64_t)((bytes + members - 1) / members));
        worst = ns > worst ? ns : worst;
    }
    return worst;
}

START_TEST(the_flow_finds_the_tightest_set_of_hosts)
{
    random_t random = {3};
    int tight_sets = 0, checked = 0;

    while (checked < 1500) {
        random_case_t c;
        xm_unit_task_t *tasks;
        int64_t count;
        xm_bound_t bound;

        random_case_create(&random, &c);
        if (xm_network_hosts(c.network) <= 10) {
            ck_assert_xm_ok(xm_unit_tasks_create(c.src, c.dst, 0, &tasks, &count));
            ck_assert_xm_ok(
                xm_bound_compute(c.src, c.dst, tasks, count, c.element_size, c.network, &bound));
            ck_assert_msg(bound.ns == reference_ns(&c, tasks, count), "%s", random_case_text(&c));
            tight_sets += bound.send_ns > bound.receive_ns;
            ++checked;
            free(tasks);
        }
        random_case_destroy(&c);
    }
    ck_assert_int_gt(tight_sets,
                     50); /* the harder half of the bound decides often enough to be tested */
}
END_TEST

START_TEST(no_plan_beats_the_bound)
{
    random_t random = {4};

    for (int i = 0; i < xm_test_rounds(2000); ++i) {
        random_batch_t batch;
        xm_plan_t *plan;

        random_batch_create(&random, &batch);
        ck_assert_xm_ok(xm_plan_create(&batch.params, &plan));
        ck_assert_msg(xm_plan_makespan_ns(plan) >= xm_plan_bound_ns(plan),
                      "makespan %lld ns, bound %lld ns: %s", (long long)xm_plan_makespan_ns(plan),
                      (long long)xm_plan_bound_ns(plan), random_batch_text(&batch));
        xm_plan_destroy(plan);
        random_batch_destroy(&batch);
    }
}
END_TEST

/* Tiles times hosts exceed what an int counts. */
START_TEST(many_tiles_on_many_hosts_are_bounded)
{
    enum { RANKS = 60000, SOURCES = 40000 };
    int *host_of = malloc(RANKS * sizeof(*host_of)), sizes[] = {SOURCES};
    int64_t shape[] = {100 * SOURCES}, count;
    xm_network_params_t params = XM_NETWORK_PARAMS_INIT;
    xm_network_t *network;
    xm_mesh_t *src_mesh, *dst_mesh;
    xm_spec_t spec;
    xm_layout_t *src, *dst;
    xm_unit_task_t *tasks;
    xm_bound_t bound;

    ck_assert_ptr_nonnull(host_of);
    for (int r = 0; r < RANKS; ++r) {
        host_of[r] = r;
    }
    params.ranks = RANKS;
    params.host_of_rank = host_of;
    params.nic_bandwidth = params.host_bandwidth = 1e9;
    ck_assert_xm_ok(xm_network_create(&params, &network));
    ck_assert_xm_ok(xm_mesh_create(1, sizes, NULL, &src_mesh));
    ck_assert_xm_ok(xm_mesh_parse("20000", NULL, SOURCES, &dst_mesh));
    ck_assert_xm_ok(xm_spec_parse("S0", &spec));
    ck_assert_xm_ok(xm_layout_create(src_mesh, &spec, XM_PARTITION_EVEN, shape, &src));
    ck_assert_xm_ok(xm_layout_create(dst_mesh, &spec, XM_PARTITION_EVEN, shape, &dst));
    ck_assert_xm_ok(xm_unit_tasks_create(src, dst, 0, &tasks, &count));
    ck_assert_int_eq(count, SOURCES);
    ck_assert_xm_ok(xm_bound_compute(src, dst, tasks, count, 1, network, &bound));
    ck_assert_int_eq(bound.send_ns, 100);
    ck_assert_int_eq(bound.receive_ns, 200);
    free(tasks);
    xm_layout_destroy(dst);
    xm_layout_destroy(src);
    xm_mesh_destroy(dst_mesh);
    xm_mesh_destroy(src_mesh);
    xm_network_destroy(network);
    free(host_of);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("bound");
    TCase *tcase = tcase_create("all");

    tcase_set_timeout(tcase, 120);
    tcase_add_test(tcase, the_flow_finds_the_tightest_set_of_hosts);
    tcase_add_test(tcase, no_plan_beats_the_bound);
    tcase_add_test(tcase, many_tiles_on_many_hosts_are_bounded);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
