/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/topology/nic_network.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <sys/stat.h>

#include "xm_test.h"

static const struct {
    const char *address, *mask, *subnet; /* subnet NULL: none */
} subnets[] = {
    {"10.1.2.3", "255.255.0.0", "ip 10.1.0.0/255.255.0.0"},
    {"10.1.200.1", "255.255.0.0", "ip 10.1.0.0/255.255.0.0"},
    {"192.168.1.77", "255.255.255.192", "ip 192.168.1.64/255.255.255.192"},
    {"169.254.3.1", "255.255.0.0", NULL},
    {"fd00:1::5", "ffff:ffff:ffff:ffff::", "ip fd00:1::/ffff:ffff:ffff:ffff::"},
    {"fe80::1", "ffff:ffff:ffff:ffff::", NULL},
};

static void fill(struct sockaddr_storage *address, const char *text)
{
    struct sockaddr_in four = {.sin_family = AF_INET};
    struct sockaddr_in6 six = {.sin6_family = AF_INET6};

    memset(address, 0, sizeof(*address));
    if (inet_pton(AF_INET, text, &four.sin_addr) == 1) {
        memcpy(address, &four, sizeof(four));
    } else {
        ck_assert_int_eq(inet_pton(AF_INET6, text, &six.sin6_addr), 1);
        memcpy(address, &six, sizeof(six));
    }
}

START_TEST(addresses_have_subnets)
{
    struct sockaddr_storage address, mask;
    char text[128] = "";
    bool has;

    fill(&address, subnets[_i].address);
    fill(&mask, subnets[_i].mask);
    has = xm_nic_network_subnet((struct sockaddr *)&address, (struct sockaddr *)&mask, text,
                                sizeof(text));
    ck_assert_int_eq(has, subnets[_i].subnet != NULL);
    ck_assert_str_eq(text, has ? subnets[_i].subnet : "");
    ck_assert(!xm_nic_network_subnet((struct sockaddr *)&address, NULL, text, sizeof(text)));
    ck_assert(!xm_nic_network_subnet(NULL, (struct sockaddr *)&mask, text, sizeof(text)));
}
END_TEST

static void add_port(const char *root, const char *device, const char *gid)
{
    static const char *const parts[] = {"", "/ports", "/ports/1", "/ports/1/gids"};
    char path[256];
    FILE *file;

    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); ++i) {
        (void)snprintf(path, sizeof(path), "%s/class/infiniband/%s%s", root, device, parts[i]);
        ck_assert_int_eq(mkdir(path, 0700), 0);
    }
    (void)snprintf(path, sizeof(path), "%s/class/infiniband/%s/ports/1/gids/0", root, device);
    file = fopen(path, "w");
    ck_assert_ptr_nonnull(file);
    (void)fputs(gid, file);
    ck_assert_int_eq(fclose(file), 0);
}

START_TEST(nics_of_one_network_have_one_key)
{
    xm_topology_device_t nics[3] = {{.interface = "ib0", .rdma_name = "a", .rdma_port = 1},
                                    {.interface = "ib1", .rdma_name = "b", .rdma_port = 1},
                                    {.interface = "ib2", .rdma_name = "c", .rdma_port = 1}};
    xm_topology_device_t bare = {.interface = "", .rdma_name = "efa_0", .rdma_port = 1};
    xm_topology_device_t loopback = {.interface = "lo", .rdma_name = ""};
    char root[] = "/tmp/xm-network-XXXXXX", path[64];
    xm_nic_networks_t *networks;
    uint64_t keys[3];

    ck_assert_ptr_nonnull(mkdtemp(root));
    (void)snprintf(path, sizeof(path), "%s/class", root);
    ck_assert_int_eq(mkdir(path, 0700), 0);
    (void)snprintf(path, sizeof(path), "%s/class/infiniband", root);
    ck_assert_int_eq(mkdir(path, 0700), 0);
    add_port(root, "a", "fe80:0000:0000:0000:0002:c903:00a1:0001\n");
    add_port(root, "b", "fe80:0000:0000:0000:0002:c903:00a1:0002\n");
    add_port(root, "c", "fec0:0000:0000:0001:0002:c903:00a1:0003\n");
    ck_assert_xm_ok(xm_nic_networks_create(root, &networks));
    for (int i = 0; i < 3; ++i) {
        keys[i] = xm_nic_network_key(networks, &nics[i], XM_FABRIC_INFINIBAND);
        ck_assert_uint_ne(keys[i], 0);
        /* No such interface, so no address. */
        ck_assert_uint_eq(xm_nic_network_key(networks, &nics[i], XM_FABRIC_IP), 0);
    }
    ck_assert_uint_eq(keys[0], keys[1]);
    ck_assert_uint_ne(keys[0], keys[2]);
    /* One network for all RDMA devices without an address. */
    ck_assert_uint_eq(xm_nic_network_key(networks, &bare, XM_FABRIC_RDMA),
                      xm_nic_network_key(networks, &nics[0], XM_FABRIC_RDMA));
    ck_assert_uint_ne(xm_nic_network_key(networks, &bare, XM_FABRIC_RDMA), 0);
    ck_assert_uint_eq(xm_nic_network_key(networks, &bare, XM_FABRIC_IP), 0);
    ck_assert_uint_ne(xm_nic_network_key(networks, &loopback, XM_FABRIC_IP), 0);
    xm_nic_networks_destroy(networks);
    xm_nic_networks_destroy(NULL);
    (void)snprintf(path, sizeof(path), "rm -rf %s", root);
    ck_assert_int_eq(system(path), 0); /* NOLINT(cert-env33-c) */
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("nic_network");
    TCase *tcase = tcase_create("all");

    tcase_add_loop_test(tcase, addresses_have_subnets, 0,
                        (int)(sizeof(subnets) / sizeof(subnets[0])));
    tcase_add_test(tcase, nics_of_one_network_have_one_key);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
