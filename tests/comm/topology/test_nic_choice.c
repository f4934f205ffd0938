/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/topology/nic_choice.h"

#include <hwloc.h>
#include <stdio.h>

#include "tests/comm/topology/random_machine.h"
#include "xm_test.h"

enum { RANDOM_MACHINES = 90, BLOCK = 30, MAX_NICS = 256, MAX_SLOTS = 256 };

static const char *const machines[] = {"c5n.18xl",
                                       "g5.48xl",
                                       "g6.48xl",
                                       "p3dn.24xl",
                                       "p4d.24xl",
                                       "p6-b200.48xl",
                                       "laptop",
                                       "dual-8gpu",
                                       "own/bare",
                                       "own/laptop-wifi",
                                       "own/guest",
                                       "own/dgx-8gpu-8nic",
                                       "own/hgx-8gpu-board",
                                       "own/unequal-nics",
                                       "own/two-sockets",
                                       "own/one-sided",
                                       "own/sriov",
                                       "own/mixed-networks",
                                       "own/eight-nodes",
                                       "own/narrow-uplink",
                                       "own/nested-switches",
                                       "own/desktop-one-node",
                                       "own/old-format"};

static char *fixture(const char *machine, const char *suffix)
{
    char relative[128];

    (void)snprintf(relative, sizeof(relative), "tests/fixtures/hwloc/%s%s", machine, suffix);
    return strdup(xm_test_source_path(relative));
}

static xm_topology_t *load(const char *machine)
{
    char *path = fixture(machine, ".xml");
    xm_topology_t *topology = NULL;

    ck_assert_xm_ok(xm_topology_create(path, 0, &topology));
    free(path);
    return topology;
}

static xm_nic_choice_t *choose(const xm_nic_choice_params_t *params)
{
    xm_nic_choice_t *choice = NULL;

    ck_assert_xm_ok(xm_nic_choice_create(params, &choice));
    return choice;
}

/* One local rank for each GPU. */
static xm_nic_choice_params_t params_of(const xm_topology_t *topology, xm_nic_slot_t *slots)
{
    xm_nic_choice_params_t params = {0};

    params.topology = topology;
    params.slots = slots;
    params.slot_count = xm_topology_device_count(topology, XM_DEVICE_GPU);
    ck_assert_int_le(params.slot_count, MAX_SLOTS);
    for (int i = 0; i < params.slot_count; ++i) {
        slots[i] = (xm_nic_slot_t){.gpu = i, .node = -1, .rank = -1};
    }
    return params;
}

static char *table_of(const xm_nic_choice_t *choice)
{
    char *text = NULL;
    size_t length;
    FILE *stream = open_memstream(&text, &length);

    ck_assert_xm_ok(xm_nic_choice_print(choice, stream));
    (void)fclose(stream);
    return text;
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

START_TEST(machines_match_their_golden_tables)
{
    char *golden = fixture(machines[_i], ".choice.txt"), *table;
    xm_nic_slot_t slots[MAX_SLOTS];
    xm_topology_t *topology = load(machines[_i]);
    xm_nic_choice_params_t params = params_of(topology, slots);
    xm_nic_choice_t *choice = choose(&params);

    table = table_of(choice);
    ck_assert_str_eq(table, read_text(golden));
    free(table);
    xm_nic_choice_destroy(choice);
    xm_topology_destroy(topology);
    free(golden);
}
END_TEST

/* As an lstopo of hwloc 1.x would have written it. hwloc itself cannot always read our files, which
 * have comments; so they come by way of ours. */
static char *in_old_format(const char *machine)
{
    xm_topology_t *topology = load(machine);
    char *xml = NULL, *buffer = NULL, *text;
    hwloc_topology_t hwloc;
    int length = 0;

    ck_assert_xm_ok(xm_topology_export_xml(topology, &xml));
    xm_topology_destroy(topology);
    ck_assert_int_eq(hwloc_topology_init(&hwloc), 0);
    (void)hwloc_topology_set_io_types_filter(hwloc, HWLOC_TYPE_FILTER_KEEP_ALL);
    ck_assert_int_eq(hwloc_topology_set_xmlbuffer(hwloc, xml, (int)strlen(xml) + 1), 0);
    ck_assert_int_eq(hwloc_topology_load(hwloc), 0);
    ck_assert_int_eq(
        hwloc_topology_export_xmlbuffer(hwloc, &buffer, &length, HWLOC_TOPOLOGY_EXPORT_XML_FLAG_V1),
        0);
    text = strdup(buffer);
    hwloc_free_xmlbuffer(hwloc, buffer);
    hwloc_topology_destroy(hwloc);
    free(xml);
    return text;
}

START_TEST(the_format_of_hwloc_1_gives_the_same)
{
    char *golden = fixture(machines[_i], ".choice.txt"), *xml, *table;
    xm_nic_slot_t slots[MAX_SLOTS];
    xm_topology_t *topology = NULL;
    xm_nic_choice_params_t params;
    xm_nic_choice_t *choice;

    xml = in_old_format(machines[_i]);
    ck_assert(strstr(xml, "<topology>") != NULL);
    ck_assert_xm_ok(xm_topology_create_from_text(xml, 0, &topology));
    params = params_of(topology, slots);
    choice = choose(&params);
    table = table_of(choice);
    ck_assert_str_eq(table, read_text(golden));
    free(table);
    free(xml);
    free(golden);
    xm_nic_choice_destroy(choice);
    xm_topology_destroy(topology);
}
END_TEST

static void expect_first(const xm_nic_choice_t *choice, int slot, const char *device)
{
    const xm_nic_way_t *ways;

    ck_assert_int_ge(xm_nic_choice_slot(choice, slot, &ways), 1);
    ck_assert_str_eq(xm_nic_choice_nic(choice, ways[0].nic)->device, device);
}

START_TEST(measured_rates_replace_those_of_the_cable)
{
    xm_nic_slot_t slots[MAX_SLOTS];
    double rates[3] = {0};
    xm_topology_t *topology = load("own/unequal-nics");
    xm_nic_choice_params_t params = params_of(topology, slots);
    xm_nic_choice_t *choice = choose(&params);

    /* 25 Gbit/s next to it, 200 a root away. */
    expect_first(choice, 0, "mlx5_1:1");
    xm_nic_choice_destroy(choice);
    /* As measured, the fast ones are not: the near one wins. */
    rates[1] = rates[2] = 5e9;
    params.rates = rates;
    choice = choose(&params);
    expect_first(choice, 0, "mlx5_0:1");
    ck_assert_double_eq(xm_nic_choice_nic(choice, 1)->rate, 5e9);
    ck_assert_double_eq_tol(xm_nic_choice_rate(choice, true), 10e9 + 25e9 / 8, 1);
    xm_nic_choice_destroy(choice);
    xm_topology_destroy(topology);
}
END_TEST

START_TEST(loads_follow_the_rates_of_equally_near_nics)
{
    xm_nic_slot_t slots[6];
    xm_topology_t *topology = load("own/unequal-nics");
    xm_nic_choice_params_t params = params_of(topology, slots);
    xm_nic_choice_t *choice;

    /* Six ranks on GPU 2, whose switch has NICs of 200 and 100 Gbit/s. */
    for (int i = 0; i < 6; ++i) {
        slots[i] = (xm_nic_slot_t){.gpu = 2, .node = -1, .rank = i};
    }
    params.slots = slots;
    params.slot_count = 6;
    choice = choose(&params);
    ck_assert_int_eq(xm_nic_choice_nic(choice, 0)->load, 0);
    ck_assert_int_eq(xm_nic_choice_nic(choice, 1)->load, 4);
    ck_assert_int_eq(xm_nic_choice_nic(choice, 2)->load, 2);
    xm_nic_choice_destroy(choice);
    xm_topology_destroy(topology);
}
END_TEST

START_TEST(few_ranks_use_all_near_nics)
{
    xm_nic_slot_t slots[2] = {{.gpu = -1, .node = 0, .rank = 0}, {.gpu = -1, .node = 1, .rank = 1}};
    xm_topology_t *topology = load("dual-8gpu");
    xm_nic_choice_params_t params = {0};
    const xm_nic_way_t *ways;
    xm_nic_choice_t *choice, *alone;

    params.topology = topology;
    params.slots = slots;
    params.slot_count = 2;
    choice = choose(&params);
    for (int slot = 0; slot < 2; ++slot) {
        ck_assert_int_eq(xm_nic_choice_slot(choice, slot, &ways), 4);
        for (int i = 0; i < 4; ++i) {
            ck_assert_int_eq(ways[i].nic, 4 * slot + i);
            ck_assert_int_eq(ways[i].path, XM_PATH_NUMA);
        }
    }
    /* A rank that may be anywhere uses them all. */
    slots[0].node = -1;
    params.slot_count = 1;
    alone = choose(&params);
    ck_assert_int_eq(xm_nic_choice_slot(alone, 0, &ways), 8);
    xm_nic_choice_destroy(alone);
    xm_nic_choice_destroy(choice);
    xm_topology_destroy(topology);
}
END_TEST

START_TEST(a_network_that_not_every_host_has_is_left_out)
{
    xm_nic_slot_t slot = {.gpu = -1, .node = -1, .rank = 0};
    xm_topology_t *mixed = load("own/mixed-networks");
    xm_nic_choice_params_t params = {0};
    xm_nic_choice_t *choice;

    params.topology = mixed;
    params.slots = &slot;
    params.slot_count = 1;
    params.fabrics = 1U << XM_FABRIC_RDMA;
    choice = choose(&params);
    expect_first(choice, 0, "mlx5_2:1");
    ck_assert_str_eq(xm_nic_choice_nic(choice, 0)->reason, "InfiniBand, which not every host has");
    xm_nic_choice_destroy(choice);
    xm_topology_destroy(mixed);
}
END_TEST

START_TEST(users_and_ucx_have_a_say)
{
    xm_nic_slot_t slot = {.gpu = -1, .node = -1, .rank = 0};
    xm_topology_t *topology = load("own/mixed-networks");
    xm_nic_choice_params_t params = {0};
    xm_nic_choice_t *choice = NULL;

    params.topology = topology;
    params.slots = &slot;
    params.slot_count = 1;
    params.unwanted = "mlx5_1";
    choice = choose(&params);
    ck_assert_int_eq(xm_nic_choice_suitable(choice), 1);
    expect_first(choice, 0, "mlx5_0:1");
    xm_nic_choice_destroy(choice);
    params.unwanted = "mlx5_1:1,ib0";
    choice = choose(&params);
    expect_first(choice, 0, "mlx5_2:1");
    xm_nic_choice_destroy(choice);
    params.unwanted = "ib0,mlx5";
    ck_assert_xm_fails(xm_nic_choice_create(&params, &choice), XM_ERR_NOT_FOUND,
                       "no NIC 'mlx5' to leave out");
    params.unwanted = "";
    ck_assert_xm_fails(xm_nic_choice_create(&params, &choice), XM_ERR_NOT_FOUND, "no NIC ''");
    params.unwanted = NULL;
    /* Where UCX has TCP only, an interface over InfiniBand is an interface. */
    params.usable = "ib0 lo ib1";
    choice = choose(&params);
    ck_assert_int_eq(xm_nic_choice_suitable(choice), 2);
    expect_first(choice, 0, "ib0");
    ck_assert_str_eq(xm_nic_choice_nic(choice, 1)->reason, "UCX cannot use it");
    xm_nic_choice_destroy(choice);
    params.usable = "";
    choice = choose(&params);
    ck_assert_int_eq(xm_nic_choice_suitable(choice), 0);
    xm_nic_choice_destroy(choice);
    xm_topology_destroy(topology);
}
END_TEST

START_TEST(wrong_slots_are_refused)
{
    xm_nic_slot_t slot = {.gpu = 2, .node = -1, .rank = 0};
    xm_topology_t *topology = load("own/mixed-networks");
    xm_nic_choice_params_t params = {0};
    xm_nic_choice_t *choice = NULL;

    params.topology = topology;
    params.slots = &slot;
    params.slot_count = 1;
    ck_assert_xm_fails(xm_nic_choice_create(&params, &choice), XM_ERR_INVALID_ARGUMENT,
                       "local rank 0: no GPU 2, the machine has 2");
    slot = (xm_nic_slot_t){.gpu = -1, .node = 7};
    ck_assert_xm_fails(xm_nic_choice_create(&params, &choice), XM_ERR_INVALID_ARGUMENT,
                       "local rank 0: the machine has no NUMA node 7");
    ck_assert_ptr_null(choice);
    xm_nic_choice_destroy(NULL);
    xm_topology_destroy(topology);
}
END_TEST

/* A random machine, its ranks (on GPUs and in memory), and its choice. */
typedef struct {
    xm_topology_t *topology;
    xm_nic_slot_t slots[MAX_SLOTS];
    xm_nic_choice_params_t params;
    xm_nic_choice_t *choice;
    int nics, slot_count;
} host_t;

static host_t *host_of(uint64_t seed, bool equal, bool reverse)
{
    const random_machine_params_t machine = {.seed = seed, .equal = equal, .reverse = reverse};
    host_t *host = calloc(1, sizeof(*host));
    char *xml = random_machine_xml(&machine);
    int ranks = (int)(seed % 5);

    ck_assert(host != NULL && xml != NULL);
    ck_assert_xm_ok(xm_topology_create_from_text(xml, 0, &host->topology));
    free(xml);
    host->params = params_of(host->topology, host->slots);
    for (int i = 0; i < ranks; ++i) {
        int node = i % (xm_topology_node_count(host->topology) + 1) - 1;

        host->slots[host->params.slot_count++] = (xm_nic_slot_t){.gpu = -1, .node = node};
    }
    host->choice = choose(&host->params);
    host->nics = xm_topology_device_count(host->topology, XM_DEVICE_NIC);
    host->slot_count = host->params.slot_count;
    ck_assert_int_le(host->nics, MAX_NICS);
    return host;
}

static void free_host(host_t *host)
{
    xm_nic_choice_destroy(host->choice);
    xm_topology_destroy(host->topology);
    free(host);
}

static void everybody_has_suitable_nics_and_no_others(int seed)
{
    host_t *host = host_of((uint64_t)seed, false, false);
    bool used[MAX_NICS] = {false}, near_somebody[MAX_NICS] = {false};
    int loads[MAX_NICS] = {0}, fabric = -1;
    bool full = false;

    for (int slot = 0; slot < host->slot_count; ++slot) {
        const xm_nic_way_t *ways;
        xm_nic_way_t near[MAX_NICS];
        int count = xm_nic_choice_slot(host->choice, slot, &ways);

        ck_assert_int_le(count, XM_NIC_CHOICE_MAX);
        ck_assert_int_eq(count > 0, xm_nic_choice_suitable(host->choice) > 0);
        for (int i = 0; i < count; ++i) {
            ck_assert(xm_nic_choice_nic(host->choice, ways[i].nic)->suitable);
            ck_assert_str_eq(xm_nic_choice_nic(host->choice, ways[i].nic)->reason, "");
            for (int other = 0; other < i; ++other) {
                ck_assert_int_ne(ways[i].nic, ways[other].nic);
            }
            used[ways[i].nic] = true;
        }
        loads[ways[0].nic] += count > 0;
        full = full || count == XM_NIC_CHOICE_MAX;
        count = xm_nic_choice_near(host->choice, &host->slots[slot], near);
        for (int i = 0; i < count; ++i) {
            near_somebody[near[i].nic] = true;
        }
    }
    for (int nic = 0; nic < host->nics; ++nic) {
        const xm_nic_suitability_t *suitability = xm_nic_choice_nic(host->choice, nic);

        ck_assert_int_eq(suitability->load, loads[nic]);
        ck_assert_int_eq(suitability->suitable, suitability->reason[0] == '\0');
        ck_assert_int_ge(near_somebody[nic], used[nic]);
        ck_assert_msg(used[nic] || !near_somebody[nic] || full, "NIC %d is near and not used", nic);
        ck_assert(!suitability->suitable || fabric < 0 || (int)suitability->fabric == fabric);
        fabric = suitability->suitable ? (int)suitability->fabric : fabric;
    }
    free_host(host);
}

/* Load that moving a rank to another of its near NICs would even out. */
static void near_nics_are_loaded_evenly(int seed)
{
    bool equal = seed % 2 == 0;
    host_t *host = host_of((uint64_t)seed, equal, false);

    for (int slot = 0; slot < host->slot_count; ++slot) {
        const xm_nic_way_t *ways;
        xm_nic_way_t near[MAX_NICS];
        int count = xm_nic_choice_near(host->choice, &host->slots[slot], near);
        double fastest = 0, own = 0;

        if (xm_nic_choice_slot(host->choice, slot, &ways) == 0) {
            continue;
        }
        for (int nic = 0; nic < host->nics; ++nic) {
            const xm_nic_suitability_t *suitability = xm_nic_choice_nic(host->choice, nic);

            fastest =
                suitability->suitable && suitability->rate > fastest ? suitability->rate : fastest;
        }
        fastest = fastest > 0 ? fastest : 1;
        own = xm_nic_choice_nic(host->choice, ways[0].nic)->load /
              (ways[0].bandwidth > 0 ? ways[0].bandwidth : fastest);
        for (int i = 0; i < count; ++i) {
            int load = xm_nic_choice_nic(host->choice, near[i].nic)->load;
            double bandwidth = near[i].bandwidth > 0 ? near[i].bandwidth : fastest;

            ck_assert_int_eq(near[i].path, ways[0].path);
            ck_assert_msg(near[i].nic == ways[0].nic || own <= (load + 1) / bandwidth * (1 + 1e-6),
                          "seed %d: rank %d should move from NIC %d to %d", seed, slot, ways[0].nic,
                          near[i].nic);
        }
    }
    free_host(host);
}

/* In words of the rule: among NICs that one group of ranks finds equally near and nobody else does,
 * loads differ by one at most. */
static void loads_of_equal_nics_differ_by_one(int seed)
{
    host_t *host = host_of((uint64_t)seed, true, false);

    for (int slot = 0; slot < host->slot_count; ++slot) {
        xm_nic_way_t near[MAX_NICS], other[MAX_NICS];
        int count = xm_nic_choice_near(host->choice, &host->slots[slot], near);
        int least = INT32_MAX, most = 0;
        bool alone = true;

        for (int rank = 0; rank < host->slot_count; ++rank) {
            int others = xm_nic_choice_near(host->choice, &host->slots[rank], other), common = 0;

            for (int i = 0; i < count; ++i) {
                for (int j = 0; j < others; ++j) {
                    common += near[i].nic == other[j].nic;
                }
            }
            alone = alone && (common == 0 || (common == count && others == count));
        }
        for (int i = 0; i < count; ++i) {
            int load = xm_nic_choice_nic(host->choice, near[i].nic)->load;

            alone = alone && near[i].limit == XM_NIC_LIMIT_CABLE;
            least = load < least ? load : least;
            most = load > most ? load : most;
        }
        ck_assert_msg(!alone || count == 0 || most - least <= 1, "seed %d: loads of %d to %d", seed,
                      least, most);
    }
    free_host(host);
}

static int compare_ints(const void *a, const void *b)
{
    return *(const int *)a - *(const int *)b;
}

static void the_order_of_equal_devices_changes_no_loads(int seed)
{
    int loads[2][MAX_NICS] = {{0}};
    int nics = 0;

    for (int reverse = 0; reverse < 2; ++reverse) {
        host_t *host = host_of((uint64_t)seed, true, reverse == 1);

        nics = host->nics;
        for (int nic = 0; nic < nics; ++nic) {
            loads[reverse][nic] = xm_nic_choice_nic(host->choice, nic)->load;
        }
        qsort(loads[reverse], (size_t)nics, sizeof(int), compare_ints);
        free_host(host);
    }
    ck_assert_mem_eq(loads[0], loads[1], sizeof(loads[0]));
}

/* Each end has its own copy of the other's description, as text. */
static void both_ends_choose_the_same(int seed)
{
    host_t *b = host_of((uint64_t)seed, false, false);
    xm_nic_choice_params_t params = b->params;
    xm_topology_t *copy;
    xm_nic_choice_t *sent;
    char *xml, *table, *table_sent;

    ck_assert_xm_ok(xm_topology_export_xml(b->topology, &xml));
    ck_assert_xm_ok(xm_topology_create_from_text(xml, 0, &copy));
    params.topology = copy;
    sent = choose(&params);
    table = table_of(b->choice);
    table_sent = table_of(sent);
    ck_assert_str_eq(table, table_sent);
    free(table);
    free(table_sent);
    free(xml);
    xm_nic_choice_destroy(sent);
    xm_topology_destroy(copy);
    free_host(b);
}

typedef void property_t(int seed);

static property_t *const properties[] = {
    everybody_has_suitable_nics_and_no_others,
    near_nics_are_loaded_evenly,
    loads_of_equal_nics_differ_by_one,
    the_order_of_equal_devices_changes_no_loads,
    both_ends_choose_the_same,
};

enum {
    PROPERTIES = sizeof(properties) / sizeof(properties[0]),
    BLOCKS = RANDOM_MACHINES / BLOCK * PROPERTIES
};

START_TEST(properties_hold_on_random_machines)
{
    for (int i = 0; i < xm_test_rounds(BLOCK); ++i) {
        properties[_i % PROPERTIES](_i / PROPERTIES * BLOCK + i);
    }
}
END_TEST

/* Machines on which serving the ranks with fewest near NICs first does not even out the loads, as
 * near NICs of ranks overlap without one set holding the other. */
START_TEST(loads_are_even_where_near_nics_overlap)
{
    static const int seeds[] = {361, 543, 2073};

    near_nics_are_loaded_evenly(seeds[_i]);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("nic_choice");
    TCase *tcase = tcase_create("all"), *random = tcase_create("random machines");
    int count = (int)(sizeof(machines) / sizeof(machines[0]));

    tcase_add_loop_test(tcase, machines_match_their_golden_tables, 0, count);
    tcase_add_loop_test(tcase, the_format_of_hwloc_1_gives_the_same, 0, count);
    tcase_add_test(tcase, measured_rates_replace_those_of_the_cable);
    tcase_add_test(tcase, loads_follow_the_rates_of_equally_near_nics);
    tcase_add_test(tcase, few_ranks_use_all_near_nics);
    tcase_add_test(tcase, a_network_that_not_every_host_has_is_left_out);
    tcase_add_test(tcase, users_and_ucx_have_a_say);
    tcase_add_test(tcase, wrong_slots_are_refused);
    suite_add_tcase(suite, tcase);
    tcase_add_loop_test(random, properties_hold_on_random_machines, 0, BLOCKS);
    tcase_add_loop_test(random, loads_are_even_where_near_nics_overlap, 0, 3);
    suite_add_tcase(suite, random);
    return xm_test_run(suite);
}
