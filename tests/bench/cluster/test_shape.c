/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/cluster/shape.h"

#include <unistd.h>

#include "bench/cluster/tool.h"
#include "xm_test.h"

static rb_cluster_shape_t make(int hosts, int racks)
{
    static const int64_t rates[] = {200000000, 1000000000};
    rb_cluster_shape_t shape = {
        .name = "xm", .hosts = hosts, .nics = 2, .racks = racks, .mtu = 1500, .uplink = 600000000};

    rb_cluster_shape_set_rates(&shape, rates, 2, NULL, 0);
    return shape;
}

START_TEST(rates_go_in_turn)
{
    static const int64_t uneven[] = {3000000, 2000000};
    rb_cluster_shape_t shape = make(3, 1);
    char text[128];

    ck_assert_int_eq(shape.rate[1][1], 1000000000);
    ck_assert_int_eq(shape.rate[2][0], 200000000);
    ck_assert_int_eq(rb_cluster_shape_rate(&shape, -1), 2800000000);
    ck_assert_int_eq(rb_cluster_shape_rate(&shape, 1), 2000000000);
    rb_cluster_shape_set_rates(&shape, NULL, 0, uneven, 2);
    ck_assert_str_eq(rb_cluster_shape_nics(&shape, 2, 0, 1, text, sizeof(text)),
                     "nic0=3000000,nic1=2000000");
    ck_assert_str_eq(rb_cluster_shape_nics(&shape, 2, 1, 2, text, sizeof(text)), "nic1=2000000");
    ck_assert_str_eq(rb_cluster_shape_address(127, 1, text, sizeof(text)), "10.77.1.128");
}
END_TEST

START_TEST(hosts_have_numbers_and_names)
{
    rb_cluster_shape_t shape = make(12, 1);

    ck_assert_int_eq(rb_cluster_shape_find(&shape, "0"), 0);
    ck_assert_int_eq(rb_cluster_shape_find(&shape, "xm11"), 11);
    ck_assert_int_eq(rb_cluster_shape_find(&shape, "12"), -1);
    ck_assert_int_eq(rb_cluster_shape_find(&shape, "xm"), -1);
    ck_assert_int_eq(rb_cluster_shape_find(&shape, "xm01"), -1);
    ck_assert_int_eq(rb_cluster_shape_find(&shape, "xm-1"), -1);
    ck_assert_int_eq(rb_cluster_shape_find(&shape, ""), -1);
}
END_TEST

START_TEST(impossible_shapes_are_refused)
{
    rb_cluster_shape_t shape = make(4, 2);

    ck_assert_xm_ok(rb_cluster_shape_check(&shape));
    shape.hosts = 5;
    ck_assert_xm_fails(rb_cluster_shape_check(&shape), XM_ERR_INVALID_ARGUMENT,
                       "5 hosts do not fill 2 racks evenly");
    shape = make(129, 1);
    ck_assert_xm_fails(rb_cluster_shape_check(&shape), XM_ERR_INVALID_ARGUMENT, "129 hosts");
    shape = make(2, 1);
    shape.rate[1][0] = 1000;
    ck_assert_xm_fails(rb_cluster_shape_check(&shape), XM_ERR_INVALID_ARGUMENT,
                       "a NIC of host 1 has 1000 bit/s");
    shape = make(2, 2);
    shape.uplink = 0;
    ck_assert_xm_fails(rb_cluster_shape_check(&shape), XM_ERR_INVALID_ARGUMENT, "uplink");
    shape = make(2, 1);
    shape.mtu = 100;
    ck_assert_xm_fails(rb_cluster_shape_check(&shape), XM_ERR_INVALID_ARGUMENT, "MTU of 100");
    for (size_t i = 0; i < 5; ++i) {
        static const char *const names[] = {"", "1x", "a/b", "a b", "head"};

        ck_assert_xm_fails(rb_cluster_name_check(names[i]), XM_ERR_INVALID_ARGUMENT, names[i]);
    }
}
END_TEST

static char *text_of(rb_orders_t *orders)
{
    ck_assert_int_eq(fclose(orders->stream), 0);
    return orders->text;
}

/* A switch of two racks: who is plugged in where, and with which rates. */
START_TEST(the_switch_is_ordered)
{
    static const pid_t pids[] = {100, 101, 102, 103};
    rb_cluster_shape_t shape = make(4, 2);
    rb_orders_t orders;
    char *text;

    ck_assert_xm_ok(rb_orders_open(&orders));
    rb_cluster_shape_switch_links(&shape, pids, orders.stream);
    text = text_of(&orders);
    ck_assert_ptr_nonnull(strstr(text, "link add p1h2 mtu 1500 type veth peer name nic1 address "
                                       "02:78:6d:01:00:03 mtu 1500 gso_max_size 50000 netns 102\n"
                                       "link set p1h2 master b1 up\n"));
    ck_assert_ptr_nonnull(strstr(text, "link set p0h1 master b0 up\n"));
    ck_assert_ptr_nonnull(strstr(text, "link set u1 master b1 up\n"
                                       "link set d1 master core up\n"));
    free(text);
    ck_assert_xm_ok(rb_orders_open(&orders));
    rb_cluster_shape_switch_queues(&shape, orders.stream);
    text = text_of(&orders);
    /* 2 ms of the rate, but two segments at least; 20 ms below 500 Mbit/s, else 10. */
    ck_assert_ptr_nonnull(strstr(text,
                                 "class add dev p0h0 parent 1: classid 1:1 htb rate 200000000bit "
                                 "ceil 200000000bit burst 100000 cburst 100000 quantum 60000\n"
                                 "qdisc add dev p0h0 parent 1:1 bfifo limit 500000\n"));
    ck_assert_ptr_nonnull(strstr(text, "rate 1000000000bit ceil 1000000000bit burst 250000 cburst "
                                       "250000 quantum 60000\n"
                                       "qdisc add dev p1h3 parent 1:1 bfifo limit 1250000\n"));
    /* The uplink, in both directions. */
    ck_assert_ptr_nonnull(strstr(text, "dev u1 parent 1: classid 1:1 htb rate 600000000bit"));
    ck_assert_ptr_nonnull(strstr(text, "dev d0 parent 1: classid 1:1 htb rate 600000000bit"));
    free(text);
}
END_TEST

START_TEST(one_rack_has_no_uplink)
{
    rb_cluster_shape_t shape = make(2, 1);
    rb_orders_t orders;
    char *text;

    ck_assert_xm_ok(rb_orders_open(&orders));
    rb_cluster_shape_switch_queues(&shape, orders.stream);
    rb_cluster_shape_host_links(&shape, 1, orders.stream);
    text = text_of(&orders);
    ck_assert_ptr_null(strstr(text, "dev u0 "));
    ck_assert_ptr_nonnull(strstr(text, "address add 10.77.1.2/24 dev nic1\n"));
    ck_assert_ptr_nonnull(strstr(text, "neighbour add 10.77.0.1 lladdr 02:78:6d:00:00:01 nud "
                                       "permanent dev nic0\n"));
    /* Every NIC reaches those of all numbers, from its own address. */
    ck_assert_ptr_nonnull(strstr(text, "neighbour add 10.77.0.1 lladdr 02:78:6d:00:00:01 nud "
                                       "permanent dev nic1\n"));
    ck_assert_ptr_nonnull(strstr(text, "rule add from 10.77.1.2 lookup 101\n"
                                       "route add 10.77.0.0/16 dev nic1 table 101\n"));
    ck_assert_ptr_null(strstr(text, "neighbour add 10.77.0.2 "));
    free(text);
}
END_TEST

/* Tools get their orders and are heard. */
START_TEST(tools_are_run)
{
    static const char *const good[] = {"sh", "-c", "test \"$(cat)\" = 'some orders'", NULL};
    static const char *const bad[] = {"sh", "-c", "echo this is wrong >&2; echo more >&2; exit 3",
                                      NULL};
    static const char *const absent[] = {"no-such-tool", NULL};
    rb_orders_t orders;

    ck_assert_xm_ok(rb_orders_open(&orders));
    (void)fprintf(orders.stream, "some orders\n");
    ck_assert_xm_ok(rb_tool_run_orders(good, &orders));
    ck_assert_xm_ok(rb_orders_open(&orders));
    ck_assert_xm_fails(rb_tool_run_orders(bad, &orders), XM_ERR_IO, "sh: this is wrong");
    ck_assert_ptr_null(strstr(xm_last_error(), "more"));
    ck_assert_xm_ok(rb_orders_open(&orders));
    ck_assert_xm_fails(rb_tool_run_orders(absent, &orders), XM_ERR_NOT_FOUND,
                       "cannot run no-such-tool");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("cluster_shape");
    TCase *tcase = tcase_create("shape");

    tcase_add_test(tcase, rates_go_in_turn);
    tcase_add_test(tcase, hosts_have_numbers_and_names);
    tcase_add_test(tcase, impossible_shapes_are_refused);
    tcase_add_test(tcase, the_switch_is_ordered);
    tcase_add_test(tcase, one_rack_has_no_uplink);
    tcase_add_test(tcase, tools_are_run);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
