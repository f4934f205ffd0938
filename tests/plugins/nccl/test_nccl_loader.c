/* SPDX-License-Identifier: Apache-2.0 */
/* How NCCL finds the plugin, what it finds there, and what it is told about the devices. */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "tests/plugins/nccl/net_table.h"
#include "xm_test.h"

/* Sizes and places in NCCL's own structures, for 64-bit pointers: counted from its documentation of
 * each version, not from our header. */
START_TEST(layouts)
{
    ck_assert_uint_eq(sizeof(nccl_properties_v6_t), 48);
    ck_assert_uint_eq(sizeof(nccl_properties_v7_t), 56);
    ck_assert_uint_eq(sizeof(nccl_properties_v8_t), 64);
    ck_assert_uint_eq(sizeof(nccl_properties_v9_t), 104);
    ck_assert_uint_eq(sizeof(nccl_properties_v11_t), 112);
    ck_assert_uint_eq(sizeof(nccl_properties_v12_t), 128);
    ck_assert_uint_eq(offsetof(nccl_properties_v9_t, members), 64);
    ck_assert_uint_eq(offsetof(nccl_properties_v12_t, rail), 124);
    ck_assert_uint_eq(sizeof(nccl_net_v6_t), 17 * 8);
    ck_assert_uint_eq(sizeof(nccl_net_v7_t), 19 * 8);
    ck_assert_uint_eq(sizeof(nccl_net_v8_t), 19 * 8);
    ck_assert_uint_eq(sizeof(nccl_net_v9_t), 20 * 8);
    ck_assert_uint_eq(sizeof(nccl_net_v10_t), 20 * 8);
    ck_assert_uint_eq(sizeof(nccl_net_v11_t), 22 * 8);
    ck_assert_uint_eq(sizeof(nccl_net_v12_t), 22 * 8);
    ck_assert_uint_eq(sizeof(nccl_constants_v5_t), (21 + 63 + 60) * 8);
    ck_assert_uint_eq(offsetof(nccl_constants_v5_t, link_latency), 21 * 8);
}
END_TEST

/* NCCL tries the entry of NCCL_NET_PLUGIN as it is, then as libnccl-net-ENTRY.so. */
START_TEST(found_by_name)
{
    void *library = dlopen("crossmesh", RTLD_NOW | RTLD_LOCAL);

    ck_assert_ptr_null(library);
    library = dlopen("libnccl-net-crossmesh.so", RTLD_NOW | RTLD_LOCAL);
    ck_assert_msg(library != NULL, "%s", dlerror());
    ck_assert_int_eq(dlclose(library), 0);
}
END_TEST

/* The newest that NCCL knows is taken: from v12 (2.30) down to v6 (2.19). Nothing else is there
 * that NCCL would take for an offer. */
START_TEST(versions)
{
    static const char *const absent[] = {
        "ncclNetPlugin_v13", "ncclNetPlugin_v5",   "ncclCollNetPlugin_v11", "ncclGinPlugin_v11",
        "ncclProfiler_v5",   "ncclTunerPlugin_v4", "xm_pipe_listen"};
    net_table_t net;

    for (int version = NET_NEWEST; version >= NET_OLDEST; --version) {
        ck_assert_msg(net_table_open(&net, version), "no version %d", version);
        ck_assert_str_eq(net_name(&net), "crossmesh");
        net_table_close(&net);
    }
    ck_assert(net_table_open(&net, NET_NEWEST));
    ck_assert_ptr_nonnull(dlsym(net.library, "ncclTunerPlugin_v5"));
    for (size_t i = 0; i < sizeof(absent) / sizeof(absent[0]) - 1; ++i) {
        ck_assert_msg(dlsym(net.library, absent[i]) == NULL, "there is a %s", absent[i]);
    }
    net_table_close(&net);
}
END_TEST

START_TEST(descriptions)
{
    for (int version = NET_OLDEST; version <= NET_NEWEST; ++version) {
        nccl_properties_v12_t properties;
        net_table_t net;
        int count = 0;

        ck_assert(net_table_open(&net, version));
        ck_assert_int_eq(net_start(&net, NULL), NCCL_OK);
        ck_assert_int_eq(net_count(&net, &count), NCCL_OK);
        ck_assert_int_ge(count, 1);
        for (int device = 0; device < count; ++device) {
            ck_assert_int_eq(net_describe(&net, device, &properties), NCCL_OK);
            ck_assert_uint_gt(strlen(properties.name), 0);
            ck_assert(properties.pci_path == NULL ||
                      strncmp(properties.pci_path, "/sys/devices/", 13) == 0);
            ck_assert_uint_ne(properties.guid, 0);
            ck_assert_int_eq(properties.pointers, NCCL_POINTER_HOST);
            ck_assert_int_gt(properties.speed, 0);
            ck_assert_int_ge(properties.port, 1);
            ck_assert_int_eq(properties.max_receives, 8);
            ck_assert_int_gt(properties.max_comms, 256);
            ck_assert_int_eq(properties.offload_type, 0);
            if (version >= 9) {
                ck_assert_int_eq(properties.members.count, 1);
                ck_assert_int_eq(properties.members.devices[0], device);
                ck_assert_uint_ge(properties.max_p2p_bytes, 64 << 20);
                ck_assert_uint_lt(properties.max_p2p_bytes, (size_t)1 << 31);
            }
            if (version >= 11) {
                ck_assert_int_eq(properties.max_multi_request, 1);
            }
            if (version == 12) {
                ck_assert_int_eq(properties.rail, -1);
                ck_assert_int_eq(properties.plane, -1);
            }
        }
        ck_assert_int_eq(net_finish(&net), NCCL_OK);
        net.context = NULL; /* what NCCL finalizes after an init that failed */
        ck_assert_int_eq(net_finish(&net), NCCL_OK);
        net_table_close(&net);
    }
}
END_TEST

/* Named NICs are devices; NCCL joins them, to what it can be told. */
START_TEST(virtual_devices)
{
    const int both[] = {0, 1}, beyond[] = {0, 2};
    nccl_properties_v12_t properties;
    net_table_t net;
    int count = 0, device = -1;

    ck_assert_int_eq(setenv("XM_NICS", "lo=2000000000,lo=1000000000", 1), 0);
    ck_assert(net_table_open(&net, 9 + _i));
    ck_assert_int_eq(net_start(&net, NULL), NCCL_OK);
    ck_assert_int_eq(net_count(&net, &count), NCCL_OK);
    ck_assert_int_eq(count, 2);
    ck_assert_int_eq(net_make_virtual(&net, &device, 2, beyond), NCCL_INVALID_ARGUMENT);
    ck_assert_int_eq(net_make_virtual(&net, &device, 0, both), NCCL_INVALID_ARGUMENT);
    ck_assert_int_eq(net_make_virtual(&net, &device, 2, both), NCCL_OK);
    ck_assert_int_eq(device, 2);
    ck_assert_int_eq(net_describe(&net, device, &properties), NCCL_OK);
    ck_assert_str_eq(properties.name, "lo+lo");
    ck_assert_int_eq(properties.speed, 3000);
    ck_assert_int_eq(properties.members.count, 2);
    ck_assert_int_eq(properties.members.devices[1], 1);
    /* One device alone is itself. */
    ck_assert_int_eq(net_make_virtual(&net, &device, 1, both + 1), NCCL_OK);
    ck_assert_int_eq(device, 1);
    net_table_close(&net);
}
END_TEST

/* For a NCCL that cannot join devices: all NICs are one. */
START_TEST(merged)
{
    nccl_properties_v12_t properties;
    net_table_t net;
    int count = 0;

    ck_assert_int_eq(setenv("XM_NICS", "lo=2000000000,lo=1000000000", 1), 0);
    ck_assert_int_eq(setenv("XM_NCCL_DEVICES", "merged", 1), 0);
    ck_assert(net_table_open(&net, 6 + 5 * _i));
    ck_assert_int_eq(net_start(&net, NULL), NCCL_OK);
    ck_assert_int_eq(net_count(&net, &count), NCCL_OK);
    ck_assert_int_eq(count, 1);
    ck_assert_int_eq(net_describe(&net, 0, &properties), NCCL_OK);
    ck_assert_str_eq(properties.name, "lo+lo");
    ck_assert_int_eq(properties.speed, 3000);
    if (net.version == 11) {
        ck_assert_int_eq(properties.members.count, 1);
        ck_assert_int_eq(properties.members.devices[0], 0);
    }
    net_table_close(&net);
}
END_TEST

/* Settings that are wrong end the start, with a sentence in NCCL's log. */
START_TEST(bad_settings)
{
    static const struct {
        const char *name, *value, *sentence;
    } rows[] = {{"XM_NICS", "nonsuch0", "nonsuch0"},
                {"XM_NCCL_DEVICES", "some", "each|merged"},
                {"XM_TIMEOUT", "soon", "XM_TIMEOUT"}};
    net_table_t net;

    ck_assert_int_eq(setenv(rows[_i].name, rows[_i].value, 1), 0);
    ck_assert(net_table_open(&net, NET_NEWEST));
    ck_assert_int_ne(net_start(&net, NULL), NCCL_OK);
    ck_assert_msg(strstr(net_table_last_warning(), rows[_i].sentence) != NULL, "'%s' lacks '%s'",
                  net_table_last_warning(), rows[_i].sentence);
    ck_assert_int_eq(net_finish(&net), NCCL_OK);
    net_table_close(&net);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("nccl loader");
    TCase *tcase = tcase_create("loader");

    tcase_add_test(tcase, layouts);
    tcase_add_test(tcase, found_by_name);
    tcase_add_test(tcase, versions);
    tcase_add_test(tcase, descriptions);
    tcase_add_loop_test(tcase, virtual_devices, 0, 4);
    tcase_add_loop_test(tcase, merged, 0, 2);
    tcase_add_loop_test(tcase, bad_settings, 0, 3);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
