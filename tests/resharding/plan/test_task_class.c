/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/resharding/plan/random_case.h"
#include "resharding/plan/plan_private.h"
#include "xm_test.h"

enum { MOST = 32 };

static bool same_list(const int *a, int a_count, const int *b, int b_count)
{
    return a_count == b_count && (a_count == 0 || memcmp(a, b, (size_t)a_count * sizeof(int)) == 0);
}

/* Ranks of a list by host, in the list's order within one: pick them host by host. */
static int by_host(const xm_network_t *network, const int *ranks, int count, int *sorted)
{
    int found = 0;

    for (int h = 0; h < xm_network_hosts(network); ++h) {
        for (int i = 0; i < count; ++i) {
            if (xm_network_host_of(network, ranks[i]) == h) {
                sorted[found++] = ranks[i];
            }
        }
    }
    return found;
}

static bool contains(const int *list, int count, int value)
{
    for (int i = 0; i < count; ++i) {
        if (list[i] == value) {
            return true;
        }
    }
    return false;
}

/* Hosts of ranks, ascending. */
static int hosts_of(const xm_network_t *network, const int *ranks, int count, int *hosts)
{
    int found = 0;

    for (int h = 0; h < xm_network_hosts(network); ++h) {
        for (int i = 0; i < count; ++i) {
            if (xm_network_host_of(network, ranks[i]) == h) {
                hosts[found++] = h;
                break;
            }
        }
    }
    return found;
}

/* The lists of a task's class from the definitions, one rank after the other. */
static void check_class(const xm_plan_t *plan, const xm_network_t *network, int64_t index,
                        const xm_class_t *class)
{
    const xm_unit_task_t *task = &plan->tasks[index];
    int holder_count, receiver_count, holders[MOST], receivers[MOST], hosts[MOST];
    int copies[MOST], near_ranks[MOST], remote[MOST], remote_hosts[MOST];
    int host_count, copy_count = 0, near_count = 0, remote_count = 0, remote_host_count;
    const int *list =
        xm_layout_replicas(plan->tensors[task->tensor].src, task->src_tile, &holder_count);

    (void)by_host(network, list, holder_count, holders);
    host_count = hosts_of(network, holders, holder_count, hosts);
    list = xm_layout_replicas(plan->tensors[task->tensor].dst, task->dst_tile, &receiver_count);
    (void)by_host(network, list, receiver_count, receivers);
    for (int i = 0; i < receiver_count; ++i) {
        int rank = receivers[i];

        if (contains(holders, holder_count, rank)) {
            copies[copy_count++] = rank;
        } else if (contains(hosts, host_count, xm_network_host_of(network, rank))) {
            near_ranks[near_count++] = rank;
        } else {
            remote[remote_count++] = rank;
        }
    }
    remote_host_count = hosts_of(network, remote, remote_count, remote_hosts);
    ck_assert(same_list(class->holders, class->holder_count, holders, holder_count));
    ck_assert(same_list(class->holder_hosts, class->holder_host_count, hosts, host_count));
    ck_assert(same_list(class->copies, class->copy_count, copies, copy_count));
    ck_assert(same_list(class->near_ranks, class->near_count, near_ranks, near_count));
    ck_assert(same_list(class->remote, class->remote_count, remote, remote_count));
    ck_assert(
        same_list(class->remote_hosts, class->remote_host_count, remote_hosts, remote_host_count));
    for (int h = 0; h < remote_host_count; ++h) {
        for (int i = class->remote_first[h]; i < class->remote_first[h + 1]; ++i) {
            ck_assert_int_eq(xm_network_host_of(network, class->remote[i]), remote_hosts[h]);
        }
    }
    ck_assert_int_eq(class->remote_first[0], 0);
    ck_assert_int_eq(class->remote_first[remote_host_count], remote_count);
}

static bool same_ranks(const xm_layout_t *a, int a_tile, const xm_layout_t *b, int b_tile)
{
    int a_count, b_count;
    const int *a_ranks = xm_layout_replicas(a, a_tile, &a_count);
    const int *b_ranks = xm_layout_replicas(b, b_tile, &b_count);

    return same_list(a_ranks, a_count, b_ranks, b_count);
}

/* The same holders and the same receivers, across tensors. */
static bool alike(const xm_plan_t *plan, int64_t a, int64_t b)
{
    const xm_unit_task_t *x = &plan->tasks[a], *y = &plan->tasks[b];

    return same_ranks(plan->tensors[x->tensor].src, x->src_tile, plan->tensors[y->tensor].src,
                      y->src_tile) &&
           same_ranks(plan->tensors[x->tensor].dst, x->dst_tile, plan->tensors[y->tensor].dst,
                      y->dst_tile);
}

/* Two tasks are in one class if and only if they are alike; a class lists its tasks, ascending. */
static void check_partition(const xm_plan_t *plan, const xm_classes_t *classes)
{
    int64_t listed = 0;

    for (int64_t a = 0; a < plan->task_count; ++a) {
        ck_assert_int_ge(classes->class_of[a], 0);
        ck_assert_int_lt(classes->class_of[a], classes->count);
        for (int64_t b = 0; b < a; ++b) {
            ck_assert_int_eq(classes->class_of[a] == classes->class_of[b], alike(plan, a, b));
        }
    }
    for (int64_t k = 0; k < classes->count; ++k) {
        const xm_class_t *class = &classes->classes[k];
        int64_t bytes = 0;

        ck_assert_int_gt(class->task_count, 0);
        for (int64_t i = 0; i < class->task_count; ++i) {
            int64_t task = classes->tasks[class->first_task + i];

            ck_assert_int_eq(classes->class_of[task], k);
            ck_assert(i == 0 || task > classes->tasks[class->first_task + i - 1]);
            bytes +=
                plan->tasks[task].elements * plan->tensors[plan->tasks[task].tensor].element_size;
        }
        ck_assert_int_eq(class->bytes, bytes);
        listed += class->task_count;
    }
    ck_assert_int_eq(listed, plan->task_count);
}

START_TEST(classes_are_those_of_the_definition)
{
    random_t random = {61};
    int64_t shared = 0, between = 0;

    for (int i = 0; i < xm_test_rounds(1500); ++i) {
        random_batch_t batch;
        xm_plan_t *plan;
        xm_classes_t classes;

        random_batch_create(&random, &batch);
        if (batch.count > 1 && i % 2 == 0) { /* the same ranks for two tensors */
            xm_layout_destroy((xm_layout_t *)(uintptr_t)batch.tensors[1].src);
            xm_layout_destroy((xm_layout_t *)(uintptr_t)batch.tensors[1].dst);
            ck_assert_xm_ok(xm_layout_clone(batch.tensors[0].src,
                                            (xm_layout_t **)(uintptr_t)&batch.tensors[1].src));
            ck_assert_xm_ok(xm_layout_clone(batch.tensors[0].dst,
                                            (xm_layout_t **)(uintptr_t)&batch.tensors[1].dst));
        }
        batch.params.scheduler = XM_SCHEDULER_NAIVE;
        ck_assert_xm_ok(xm_plan_create(&batch.params, &plan));
        ck_assert_xm_ok(xm_classes_create(plan, batch.network, &classes));
        for (int64_t t = 0; t < plan->task_count; ++t) {
            check_class(plan, batch.network, t, &classes.classes[classes.class_of[t]]);
        }
        check_partition(plan, &classes);
        shared += plan->task_count - classes.count;
        for (int64_t t = 0; t < plan->task_count; ++t) {
            int64_t first = classes.tasks[classes.classes[classes.class_of[t]].first_task];

            between += plan->tasks[t].tensor != plan->tasks[first].tensor;
        }
        xm_classes_clear(&classes);
        xm_plan_destroy(plan);
        random_batch_destroy(&batch);
    }
    ck_assert_int_gt(shared, 0);
    ck_assert_int_gt(between, 0);
}
END_TEST

/* More classes than the tables start with, and longer lists than one block of memory holds. */
START_TEST(many_classes_and_long_lists)
{
    enum { RANKS = 600, HALF = RANKS / 2 };
    int host_of[RANKS];
    int64_t shape[] = {HALF, HALF};
    xm_network_params_t network_params = XM_NETWORK_PARAMS_INIT;
    xm_plan_params_t params = XM_PLAN_PARAMS_INIT;
    xm_mesh_t *meshes[2];
    xm_spec_t specs[2];
    xm_network_t *network;
    xm_layout_t *src, *dst;
    xm_plan_t *plan;
    xm_classes_t classes;

    for (int r = 0; r < RANKS; ++r) {
        host_of[r] = RANKS - 1 - r; /* ranks are not in the order of their hosts */
    }
    network_params.ranks = RANKS;
    network_params.host_of_rank = host_of;
    network_params.nic_bandwidth = network_params.host_bandwidth = 1e9;
    ck_assert_xm_ok(xm_network_create(&network_params, &network));
    ck_assert_xm_ok(xm_mesh_parse("2x150", NULL, 0, &meshes[0]));
    ck_assert_xm_ok(xm_mesh_parse("150x2", NULL, HALF, &meshes[1]));
    ck_assert_xm_ok(xm_spec_parse("S1R", &specs[0]));
    ck_assert_xm_ok(xm_spec_parse("RS0", &specs[1]));
    ck_assert_xm_ok(xm_layout_create(meshes[0], &specs[0], XM_PARTITION_EVEN, shape, &src));
    ck_assert_xm_ok(xm_layout_create(meshes[1], &specs[1], XM_PARTITION_EVEN, shape, &dst));
    params.src = src;
    params.dst = dst;
    params.element_size = 1;
    params.network = network;
    params.scheduler = XM_SCHEDULER_NAIVE;
    ck_assert_xm_ok(xm_plan_create(&params, &plan));
    ck_assert_xm_ok(xm_classes_create(plan, network, &classes));
    ck_assert_int_eq(plan->task_count, 150 * 150);
    ck_assert_int_eq(classes.count, 150 * 150);
    for (int64_t k = 0; k < classes.count; ++k) {
        const xm_class_t *class = &classes.classes[k];

        ck_assert_int_eq(class->task_count, 1);
        ck_assert_int_eq(class->holder_count, 2);
        ck_assert_int_eq(class->remote_count, 2);
        ck_assert_int_gt(class->holders[0], class->holders[1]);
        /* Sorting is for each tile, not for each pair of tiles. */
        ck_assert_ptr_eq(class->holders, classes.classes[k % 150].holders);
        ck_assert_int_gt(class->remote[0], class->remote[1]);
    }
    xm_classes_clear(&classes);
    xm_plan_destroy(plan);
    xm_layout_destroy(dst);
    xm_layout_destroy(src);
    xm_mesh_destroy(meshes[1]);
    xm_mesh_destroy(meshes[0]);
    xm_network_destroy(network);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("task_class");
    TCase *tcase = tcase_create("all");

    tcase_set_timeout(tcase, 600);
    tcase_add_test(tcase, classes_are_those_of_the_definition);
    tcase_add_test(tcase, many_classes_and_long_lists);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
