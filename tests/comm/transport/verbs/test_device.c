/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/transport/verbs/device.h"

#include <arpa/inet.h>

#include "comm/transport/verbs.h"
#include "xm_test.h"

static struct ibv_gid_entry entry(const char *address, uint32_t type)
{
    struct ibv_gid_entry made = {.gid_type = type, .port_num = 1};

    ck_assert_int_eq(inet_pton(AF_INET6, address, made.gid.raw), 1);
    return made;
}

#define V1 IBV_GID_TYPE_ROCE_V1
#define V2 IBV_GID_TYPE_ROCE_V2

/* Tables of GIDs as ports have them, and what is chosen of each kind. */
static const struct {
    struct {
        const char *address;
        uint32_t type;
    } table[6];
    int chosen[XM_VERBS_GID_KINDS]; /* IPv4, IPv6, link-local */
} tables[] = {
    /* a usual one: each address in both versions */
    {{{"fe80::1", V1}, {"fe80::1", V2}, {"::ffff:10.0.0.7", V1}, {"::ffff:10.0.0.7", V2}},
     {3, -1, 1}},
    /* version 1 only, InfiniBand, and nothing at all */
    {{{"fe80::1", V1}, {"::ffff:10.0.0.7", V1}}, {-1, -1, -1}},
    {{{"fe80::2:c903:0:1", IBV_GID_TYPE_IB}}, {-1, -1, -1}},
    {{{NULL, 0}}, {-1, -1, -1}},
    /* an interface without IPv4; a global address of IPv6 */
    {{{"fe80::1", V2}}, {-1, -1, 0}},
    {{{"fe80::1", V2}, {"2001:db8::7", V2}, {"fd00::7", V2}}, {-1, 1, 0}},
    /* addresses that stay on the host or the link give way, in either order */
    {{{"::ffff:127.0.0.1", V2}, {"::ffff:10.0.0.7", V2}, {"::ffff:10.0.1.7", V2}}, {1, -1, -1}},
    {{{"::ffff:10.0.0.7", V2}, {"::ffff:169.254.3.4", V2}}, {0, -1, -1}},
    {{{"::ffff:169.254.3.4", V2}}, {0, -1, -1}},
    {{{"::1", V2}, {"::ffff:127.0.0.1", V2}}, {1, 0, -1}},
};

START_TEST(addresses_are_chosen_by_kind)
{
    struct ibv_gid_entry entries[6];
    int chosen[XM_VERBS_GID_KINDS], count = 0;

    while (count < 6 && tables[_i].table[count].address != NULL) {
        entries[count] = entry(tables[_i].table[count].address, tables[_i].table[count].type);
        ++count;
    }
    xm_verbs_choose_gids(entries, count, chosen);
    for (int kind = 0; kind < XM_VERBS_GID_KINDS; ++kind) {
        ck_assert_int_eq(chosen[kind], tables[_i].chosen[kind]);
    }
}
END_TEST

/* On a machine without RDMA, as most that run this are, the sentence says so. */
START_TEST(no_device_is_one_sentence)
{
    struct ibv_device **list;
    xm_verbs_port_t ports[XM_NICS_MAX];
    int count = 0, opened = 0;

    list = ibv_get_device_list(&count);
    if (list != NULL) {
        ibv_free_device_list(list);
    }
    if (count > 0) {
        return;
    }
    ck_assert_xm_fails(xm_verbs_ports_open(NULL, 3, ports, &opened), XM_ERR_NOT_FOUND,
                       "rank 3: this machine has no RDMA device");
    ck_assert_xm_fails(xm_verbs_ports_open("lo", 3, ports, &opened), XM_ERR_NOT_FOUND,
                       "rank 3: this machine has no RDMA device");
    ck_assert_xm_fails(xm_verbs_ports_open("mlx5_0:1", 3, ports, &opened), XM_ERR_NOT_FOUND,
                       "rank 3: XM_NICS: no network device 'mlx5_0:1'");
    ck_assert_int_eq(opened, 0);
}
END_TEST

/* Which ports a list leaves out. */
START_TEST(ports_are_named)
{
    xm_nics_t list = {.count = 3,
                      .nic = {{.device = "mlx5_0:1"}, {.device = "rxe0:2"}, {.device = "eth0"}}};

    ck_assert(xm_verbs_names_port(&list, "mlx5_0", 1));
    ck_assert(!xm_verbs_names_port(&list, "mlx5_0", 2));
    ck_assert(!xm_verbs_names_port(&list, "mlx5_", 1));
    ck_assert(!xm_verbs_names_port(&list, "rxe0", 1));
    ck_assert(xm_verbs_names_port(&list, "rxe0", 2));
    ck_assert(!xm_verbs_names_port(&list, "eth0", 1));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("transport_verbs_device");
    TCase *tcase = tcase_create("device");

    tcase_add_loop_test(tcase, addresses_are_chosen_by_kind, 0,
                        (int)(sizeof(tables) / sizeof(tables[0])));
    tcase_add_test(tcase, no_device_is_one_sentence);
    tcase_add_test(tcase, ports_are_named);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
