/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/topology/topology.h"

#include <sched.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "comm/topology/sysfs.h"
#include "xm_test.h"

static const char *const machines[] = {"c5n.18xl", "g5.48xl",      "g6.48xl", "p3dn.24xl",
                                       "p4d.24xl", "p6-b200.48xl", "laptop",  "dual-8gpu"};

static char *fixture(const char *machine, const char *suffix)
{
    char relative[128];

    (void)snprintf(relative, sizeof(relative), "tests/fixtures/hwloc/%s%s", machine, suffix);
    return strdup(xm_test_source_path(relative));
}

static xm_topology_t *load(const char *machine, unsigned flags)
{
    char *path = fixture(machine, ".xml");
    xm_topology_t *topology = NULL;

    ck_assert_xm_ok(xm_topology_create(path, flags, &topology));
    free(path);
    return topology;
}

static char *read_text(const char *path)
{
    static char text[1 << 16];
    FILE *file = fopen(path, "r");
    size_t length;

    ck_assert_msg(file != NULL, "cannot open %s", path);
    length = fread(text, 1, sizeof(text) - 1, file);
    text[length] = '\0';
    (void)fclose(file);
    return text;
}

static char *table_of(const xm_topology_t *topology)
{
    char *text = NULL;
    size_t length;
    FILE *stream = open_memstream(&text, &length);

    xm_topology_print(topology, stream);
    (void)fclose(stream);
    return text;
}

START_TEST(machines_match_their_golden_tables)
{
    char *golden = fixture(machines[_i], ".txt");
    xm_topology_t *topology = load(machines[_i], 0);
    char *table = table_of(topology);

    ck_assert_str_eq(table, read_text(golden));
    free(table);
    xm_topology_destroy(topology);
    free(golden);
}
END_TEST

START_TEST(exported_text_gives_the_same_machine)
{
    xm_topology_t *topology = load(machines[_i], 0), *again = NULL;
    char *xml = NULL, *table, *table_again;

    ck_assert_xm_ok(xm_topology_export_xml(topology, &xml));
    ck_assert_xm_ok(xm_topology_create_from_text(xml, 0, &again));
    table = table_of(topology);
    table_again = table_of(again);
    ck_assert_str_eq(table, table_again);
    free(table);
    free(table_again);
    free(xml);
    xm_topology_destroy(again);
    xm_topology_destroy(topology);
}
END_TEST

START_TEST(live_machine_is_seen)
{
    xm_topology_t *topology = NULL, *again = NULL;
    char *xml = NULL;

    ck_assert_xm_ok(xm_topology_create(NULL, 0, &topology));
    ck_assert_int_ge(xm_topology_pus(topology), 1);
    ck_assert_int_ge(xm_topology_cores(topology), 1);
    ck_assert_int_ge(xm_topology_node_count(topology), 1);
    ck_assert_uint_gt(xm_topology_node(topology, 0)->memory_bytes, 0);
    for (int i = 0; i < xm_topology_device_count(topology, XM_DEVICE_NIC); ++i) {
        ck_assert_str_ne(xm_topology_device(topology, XM_DEVICE_NIC, i)->name, "lo");
    }
    ck_assert_xm_ok(xm_topology_export_xml(topology, &xml));
    ck_assert_xm_ok(xm_topology_create_from_text(xml, 0, &again));
    ck_assert_int_eq(xm_topology_pus(topology), xm_topology_pus(again));
    free(xml);
    xm_topology_destroy(again);
    xm_topology_destroy(topology);
}
END_TEST

START_TEST(the_setting_names_a_file)
{
    char *path = fixture("laptop", ".xml");
    xm_topology_t *topology = NULL;

    (void)setenv("XM_TOPOLOGY", path, 1);
    ck_assert_xm_ok(xm_topology_create(NULL, 0, &topology));
    ck_assert_int_eq(xm_topology_cores(topology), 4);
    xm_topology_destroy(topology);
    (void)setenv("XM_TOPOLOGY", "/nonexistent/machine.xml", 1);
    ck_assert_xm_fails(xm_topology_create(NULL, 0, &topology), XM_ERR_NOT_FOUND,
                       "/nonexistent/machine.xml: No such file");
    free(path);
}
END_TEST

START_TEST(the_live_machine_never_stands_in_for_a_bad_file)
{
    static const char *const bad[] = {
        "",
        "hello",
        "<topology>",
        "<!-- only a comment -->",
        "<!-- unclosed <topology version=\"2.0\">",
        "<?xml version=\"1.0\"?>\n<!DOCTYPE topology SYSTEM \"hwloc2.dtd\">\n"
        "<topology version=\"2.0\"><object type=\"Machine\"",
        "<?xml version=\"1.0\"?>\n<!DOCTYPE topology SYSTEM \"hwloc2.dtd\">\n"
        "<topology version=\"2.0\"><object type=\"Toaster\"/></topology>"};
    xm_topology_t *topology = NULL;

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); ++i) {
        ck_assert_xm_fails(xm_topology_create_from_text(bad[i], 0, &topology), XM_ERR_PARSE,
                           "not an hwloc topology");
    }
    ck_assert_xm_fails(xm_topology_create("/", 0, &topology), XM_ERR_INVALID_ARGUMENT,
                       "cannot read /: Is a directory");
    ck_assert_ptr_null(topology);
}
END_TEST

START_TEST(virtual_interfaces_only_when_asked_for)
{
    xm_topology_t *topology = load("laptop", 0);

    ck_assert_int_eq(xm_topology_device_count(topology, XM_DEVICE_NIC), 2);
    xm_topology_destroy(topology);
    topology = load("laptop", XM_TOPOLOGY_VIRTUAL_NICS);
    ck_assert_int_eq(xm_topology_device_count(topology, XM_DEVICE_NIC), 3);
    ck_assert_str_eq(xm_topology_device(topology, XM_DEVICE_NIC, 2)->name, "docker0");
    ck_assert_str_eq(xm_topology_device(topology, XM_DEVICE_NIC, 2)->pci, "");
    xm_topology_destroy(topology);
}
END_TEST

START_TEST(devices_carry_units)
{
    xm_topology_t *topology = load("dual-8gpu", 0);
    const xm_topology_device_t *nic = xm_topology_device(topology, XM_DEVICE_NIC, 5);
    const xm_topology_device_t *gpu = xm_topology_device(topology, XM_DEVICE_GPU, 3);

    ck_assert_str_eq(nic->name, "ib5");
    ck_assert_str_eq(nic->rdma_name, "mlx5_5");
    ck_assert_double_eq(nic->link_bandwidth, 50e9);
    ck_assert_int_eq(nic->numa_node, 1);
    ck_assert_str_eq(gpu->name, "cuda3");
    ck_assert_str_eq(gpu->pci, "0000:53:00.0");
    ck_assert_double_eq_tol(gpu->pci_bandwidth, 63.015385e9, 1e4);
    xm_topology_destroy(topology);
    xm_topology_destroy(NULL);
}
END_TEST

START_TEST(paths_grow_with_distance)
{
    xm_topology_t *topology = load("dual-8gpu", 0);

    ck_assert_int_eq(xm_topology_path(topology, 0, 1), XM_PATH_SWITCH);
    ck_assert_int_eq(xm_topology_path(topology, 2, 1), XM_PATH_NUMA);
    ck_assert_int_eq(xm_topology_path(topology, 4, 1), XM_PATH_MACHINE);
    xm_topology_destroy(topology);
    topology = load("p4d.24xl", 0);
    ck_assert_int_eq(xm_topology_path(topology, 0, 0), XM_PATH_HOST_BRIDGE);
    xm_topology_destroy(topology);
}
END_TEST

static void make(const char *root, const char *name, const char *text)
{
    char path[512];
    FILE *file;

    (void)snprintf(path, sizeof(path), "%s/%s", root, name);
    if (text == NULL) {
        ck_assert_int_eq(mkdir(path, 0700), 0);
        return;
    }
    file = fopen(path, "w");
    ck_assert_ptr_nonnull(file);
    (void)fputs(text, file);
    ck_assert_int_eq(fclose(file), 0);
}

static const char *info_of(hwloc_topology_t hwloc, const char *device, const char *name)
{
    for (hwloc_obj_t object = NULL; (object = hwloc_get_next_osdev(hwloc, object)) != NULL;) {
        if (strcmp(object->name, device) == 0) {
            return hwloc_obj_get_info_by_name(object, name);
        }
    }
    return NULL;
}

START_TEST(sysfs_tells_what_hwloc_does_not)
{
    static const char *const names[] = {"class",
                                        "class/net",
                                        "class/net/ib0",
                                        "class/net/wlan0",
                                        "class/net/wlan0/wireless",
                                        "class/infiniband",
                                        "class/infiniband/mlx5_0",
                                        "class/infiniband/mlx5_0/ports",
                                        "class/infiniband/mlx5_0/ports/1",
                                        "class/infiniband/mlx5_0/device"};
    char root[] = "/tmp/xm-sysfs-XXXXXX", command[64], *xml;
    xm_topology_t *topology = load("own/two-sockets", 0);
    hwloc_topology_t hwloc;

    ck_assert_ptr_nonnull(mkdtemp(root));
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); ++i) {
        make(root, names[i], NULL);
    }
    make(root, "class/net/ib0/operstate", "lowerlayerdown\n");
    make(root, "class/net/ib0/speed", "56000\n");
    make(root, "class/infiniband/mlx5_0/ports/1/link_layer", "Ethernet\n");
    make(root, "class/infiniband/mlx5_0/ports/1/rate", "100 Gb/sec (4X EDR)\n");
    (void)snprintf(command, sizeof(command), "%s/class/infiniband/mlx5_0/device/physfn", root);
    ck_assert_int_eq(symlink("../0000:5e:00.0", command), 0);
    ck_assert_int_eq(hwloc_topology_init(&hwloc), 0);
    (void)hwloc_topology_set_io_types_filter(hwloc, HWLOC_TYPE_FILTER_KEEP_IMPORTANT);
    ck_assert_xm_ok(xm_topology_export_xml(topology, &xml));
    ck_assert_int_eq(hwloc_topology_set_xmlbuffer(hwloc, xml, (int)strlen(xml) + 1), 0);
    ck_assert_int_eq(hwloc_topology_load(hwloc), 0);
    xm_topology_sysfs_annotate(hwloc, root);
    ck_assert_str_eq(info_of(hwloc, "ib0", XM_TOPOLOGY_STATE_INFO), "down");
    ck_assert_str_eq(info_of(hwloc, "mlx5_0", XM_TOPOLOGY_LINK_INFO), "100000");
    ck_assert_str_eq(info_of(hwloc, "mlx5_0", XM_TOPOLOGY_FUNCTION_INFO), "0000:5e:00.0");
    ck_assert_ptr_null(info_of(hwloc, "ib1", XM_TOPOLOGY_STATE_INFO));
    hwloc_topology_destroy(hwloc);
    xm_topology_destroy(topology);
    free(xml);
    (void)snprintf(command, sizeof(command), "rm -rf %s", root);
    ck_assert_int_eq(system(command), 0); /* NOLINT(cert-env33-c) */
}
END_TEST

START_TEST(nics_tell_their_state_and_kind)
{
    xm_topology_t *topology = load("own/sriov", 0);
    const xm_topology_device_t *nic;

    ck_assert_int_eq(xm_topology_device_count(topology, XM_DEVICE_NIC), 6);
    nic = xm_topology_device(topology, XM_DEVICE_NIC, 0);
    ck_assert(!nic->down && !nic->wireless && !nic->infiniband);
    ck_assert_str_eq(nic->interface, "ens1f0");
    ck_assert_str_eq(nic->physical_function, "");
    for (int i = 1; i < 5; ++i) {
        nic = xm_topology_device(topology, XM_DEVICE_NIC, i);
        ck_assert_str_eq(nic->physical_function, "0000:12:00.0");
    }
    ck_assert_str_eq(nic->name, "0000:12:00.4");
    ck_assert_str_eq(nic->interface, "");
    ck_assert(xm_topology_device(topology, XM_DEVICE_NIC, 5)->down);
    xm_topology_destroy(topology);
    topology = load("own/old-format", 0);
    ck_assert_int_eq(xm_topology_device_count(topology, XM_DEVICE_NIC), 3);
    nic = xm_topology_device(topology, XM_DEVICE_NIC, 2);
    ck_assert_str_eq(nic->rdma_name, "mlx4_0");
    ck_assert_int_eq(nic->rdma_port, 2);
    ck_assert(nic->infiniband && nic->down);
    xm_topology_destroy(topology);
    topology = load("own/laptop-wifi", 0);
    ck_assert(xm_topology_device(topology, XM_DEVICE_NIC, 0)->wireless);
    xm_topology_destroy(topology);
}
END_TEST

START_TEST(paths_between_any_devices)
{
    xm_topology_t *topology = load("own/nested-switches", 0);
    int near = 0, far = 0;

    /* GPU 0 and NIC 0 meet at the inner switch, NIC 1 at the outer one. */
    ck_assert_int_eq(xm_topology_path_between(topology, XM_DEVICE_GPU, 0, XM_DEVICE_NIC, 0, &near),
                     XM_PATH_SWITCH);
    ck_assert_int_eq(xm_topology_path_between(topology, XM_DEVICE_GPU, 0, XM_DEVICE_NIC, 1, &far),
                     XM_PATH_SWITCH);
    ck_assert_int_gt(near, far);
    ck_assert_int_eq(xm_topology_path_between(topology, XM_DEVICE_NIC, 1, XM_DEVICE_NIC, 1, NULL),
                     XM_PATH_DEVICE);
    xm_topology_destroy(topology);
    topology = load("own/eight-nodes", 0);
    ck_assert_int_eq(xm_topology_path_to_node(topology, XM_DEVICE_NIC, 0, 0), XM_PATH_NUMA);
    ck_assert_int_eq(xm_topology_path_to_node(topology, XM_DEVICE_NIC, 0, 1), XM_PATH_PACKAGE);
    ck_assert_int_eq(xm_topology_path_to_node(topology, XM_DEVICE_NIC, 0, 7), XM_PATH_MACHINE);
    ck_assert_int_eq(xm_topology_path_to_node(topology, XM_DEVICE_NIC, 0, -1), XM_PATH_MACHINE);
    ck_assert_int_eq(xm_topology_path_between(topology, XM_DEVICE_NIC, 0, XM_DEVICE_NIC, 1, NULL),
                     XM_PATH_PACKAGE);
    ck_assert_int_eq(xm_topology_path_between(topology, XM_DEVICE_NIC, 0, XM_DEVICE_NIC, 3, NULL),
                     XM_PATH_MACHINE);
    xm_topology_destroy(topology);
}
END_TEST

START_TEST(uplinks_hold_what_shares_them)
{
    xm_topology_t *topology = load("own/desktop-one-node", 0);
    bool card = false;

    for (int i = 0; i < xm_topology_uplink_count(topology); ++i) {
        const xm_topology_uplink_t *uplink = xm_topology_uplink(topology, i);

        ck_assert_double_gt(uplink->bandwidth, 0);
        if (uplink->card) {
            card = true;
            ck_assert_str_eq(uplink->name, "0000:06:00");
            ck_assert_double_eq_tol(uplink->bandwidth, 31.5e9 / 8, 1e4);
            ck_assert(!xm_topology_uplink_holds(topology, i, XM_DEVICE_NIC, 0));
            ck_assert(xm_topology_uplink_holds(topology, i, XM_DEVICE_NIC, 1));
            ck_assert(xm_topology_uplink_holds(topology, i, XM_DEVICE_NIC, 2));
        }
        if (strcmp(uplink->name, "0000:00:01.0") == 0) {
            ck_assert(xm_topology_uplink_holds(topology, i, XM_DEVICE_GPU, 0));
            ck_assert(!xm_topology_uplink_holds(topology, i, XM_DEVICE_GPU, 1));
        }
    }
    ck_assert(card);
    xm_topology_destroy(topology);
}
END_TEST

START_TEST(a_process_knows_its_node)
{
    xm_topology_t *topology = load("own/two-sockets", 0);
    cpu_set_t before, cpu;
    int first = 0;

    ck_assert_int_eq(sched_getaffinity(0, sizeof(before), &before), 0);
    while (!CPU_ISSET((size_t)first, &before)) {
        ++first;
    }
    CPU_ZERO(&cpu);
    CPU_SET((size_t)first, &cpu);
    ck_assert_int_eq(sched_setaffinity(0, sizeof(cpu), &cpu), 0);
    /* Four threads each; a thread that the machine does not have is in no node. */
    ck_assert_int_eq(xm_topology_own_node(topology), first < 8 ? first / 4 : -1);
    (void)sched_setaffinity(0, sizeof(before), &before);
    xm_topology_destroy(topology);
}
END_TEST

START_TEST(sysfs_speeds_are_read_strictly)
{
    ck_assert_double_eq(xm_topology_sysfs_parse_net_speed("100000\n"), 100000);
    ck_assert_double_eq(xm_topology_sysfs_parse_net_speed("-1\n"), 0);
    ck_assert_double_eq(xm_topology_sysfs_parse_net_speed("fast\n"), 0);
    ck_assert_double_eq(xm_topology_sysfs_parse_net_speed(""), 0);
    ck_assert_double_eq(xm_topology_sysfs_parse_rdma_rate("100 Gb/sec (4X EDR)\n"), 100e3);
    ck_assert_double_eq(xm_topology_sysfs_parse_rdma_rate("2.5 Gb/sec (1X SDR)\n"), 2500);
    ck_assert_double_eq(xm_topology_sysfs_parse_rdma_rate("100000\n"), 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("topology");
    TCase *tcase = tcase_create("all");
    int count = (int)(sizeof(machines) / sizeof(machines[0]));

    tcase_add_loop_test(tcase, machines_match_their_golden_tables, 0, count);
    tcase_add_loop_test(tcase, exported_text_gives_the_same_machine, 0, count);
    tcase_add_test(tcase, live_machine_is_seen);
    tcase_add_test(tcase, the_setting_names_a_file);
    tcase_add_test(tcase, the_live_machine_never_stands_in_for_a_bad_file);
    tcase_add_test(tcase, virtual_interfaces_only_when_asked_for);
    tcase_add_test(tcase, devices_carry_units);
    tcase_add_test(tcase, paths_grow_with_distance);
    tcase_add_test(tcase, sysfs_speeds_are_read_strictly);
    tcase_add_test(tcase, sysfs_tells_what_hwloc_does_not);
    tcase_add_test(tcase, nics_tell_their_state_and_kind);
    tcase_add_test(tcase, paths_between_any_devices);
    tcase_add_test(tcase, uplinks_hold_what_shares_them);
    tcase_add_test(tcase, a_process_knows_its_node);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
