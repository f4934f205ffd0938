#include "comm/topology.h"

#include <stdio.h>
#include <unistd.h>

#include "comm/topology_sysfs.h"
#include "xm_test.h"

static const char *const machines[] = {"c5n.18xl", "g5.48xl", "g6.48xl",  "p3dn.24xl",
                                       "p4d.24xl", "laptop",  "dual-8gpu"};

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
    ck_assert_xm_fails(xm_topology_create("/", 0, &topology), XM_ERR_IO, "/: ");
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
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
