/* SPDX-License-Identifier: Apache-2.0 */
#include "plugins/nccl/pipe/device.h"

#include <limits.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "xm_test.h"

START_TEST(pci_paths)
{
    static const struct {
        const char *path, *function;
    } rows[] = {
        {"/sys/devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0",
         "/sys/devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0"},
        {"/sys/devices/pci0000:00/0000:00:03.0/virtio0", "/sys/devices/pci0000:00/0000:00:03.0"},
        {"/sys/devices/virtual/net/lo", ""},
        {"", ""}};
    char path[128];

    (void)snprintf(path, sizeof(path), "%s", rows[_i].path);
    ck_assert_int_eq(xm_pipe_device_pci_path(path), rows[_i].function[0] != '\0');
    ck_assert_str_eq(path, rows[_i].function);
}
END_TEST

/* A /sys of our own: an interface behind a virtio function, one without any function, and an RDMA
 * device with two ports. */
static char sysfs[] = "/tmp/xm-pipe-device-XXXXXX", real[PATH_MAX];

static void make_folder(const char *path)
{
    char whole[512];

    (void)snprintf(whole, sizeof(whole), "%s/", path);
    for (char *at = whole + 1; *at != '\0'; ++at) {
        if (*at == '/') {
            *at = '\0';
            (void)mkdir(whole, 0700);
            *at = '/';
        }
    }
}

static void write_file(const char *path, const char *text)
{
    FILE *stream = fopen(path, "w");

    ck_assert_ptr_nonnull(stream);
    ck_assert_int_ge(fputs(text, stream), 0);
    ck_assert_int_eq(fclose(stream), 0);
}

static void make_sysfs(void)
{
    static const char *const folders[] = {"devices/pci0000:00/0000:00:03.0/virtio0",
                                          "devices/pci0000:3a/0000:3b:00.1",
                                          "class/net/eth0",
                                          "class/net/dummy0",
                                          "class/infiniband/mlx5_1/ports/1",
                                          "class/infiniband/mlx5_1/ports/2"};
    static const char *const links[][2] = {
        {"devices/pci0000:00/0000:00:03.0/virtio0", "class/net/eth0/device"},
        {"devices/pci0000:3a/0000:3b:00.1", "class/infiniband/mlx5_1/device"}};
    static const char *const files[][2] = {
        {"class/net/eth0/speed", "25000\n"},
        {"class/infiniband/mlx5_1/sys_image_guid", "b8ce:f603:0012:3456\n"},
        {"class/infiniband/mlx5_1/ports/1/rate", "200 Gb/sec (4X HDR)\n"},
        {"class/infiniband/mlx5_1/ports/2/rate", "100 Gb/sec (4X EDR)\n"}};
    char from[512], to[512];

    ck_assert_ptr_nonnull(mkdtemp(sysfs));
    ck_assert_ptr_nonnull(realpath(sysfs, real));
    for (size_t i = 0; i < sizeof(folders) / sizeof(folders[0]); ++i) {
        (void)snprintf(to, sizeof(to), "%s/%s", sysfs, folders[i]);
        make_folder(to);
    }
    for (size_t i = 0; i < sizeof(links) / sizeof(links[0]); ++i) {
        (void)snprintf(from, sizeof(from), "%s/%s", sysfs, links[i][0]);
        (void)snprintf(to, sizeof(to), "%s/%s", sysfs, links[i][1]);
        ck_assert_int_eq(symlink(from, to), 0);
    }
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); ++i) {
        (void)snprintf(to, sizeof(to), "%s/%s", sysfs, files[i][0]);
        write_file(to, files[i][1]);
    }
}

static void remove_sysfs(void)
{
    char command[64];

    (void)snprintf(command, sizeof(command), "rm -r %s", sysfs);
    ck_assert_int_eq(system(command), 0);
}

START_TEST(named)
{
    xm_pipe_device_t devices[4];
    char path[PATH_MAX + 64];
    int count = 0;

    make_sysfs();
    ck_assert_int_eq(setenv("XM_NICS", "mlx5_1:2,eth0,dummy0,mlx5_1", 1), 0);
    ck_assert_xm_ok(xm_pipe_devices_list(sysfs, devices, 4, &count));
    ck_assert_int_eq(count, 4);
    ck_assert_str_eq(devices[0].name, "mlx5_1:2");
    ck_assert_str_eq(devices[0].nics, "mlx5_1:2=100000000000");
    (void)snprintf(path, sizeof(path), "%s/devices/pci0000:3a/0000:3b:00.1", real);
    ck_assert_str_eq(devices[0].pci_path, path);
    ck_assert_int_eq(devices[0].port, 2);
    ck_assert_uint_eq(devices[0].guid, UINT64_C(0xb8cef60300123456));
    ck_assert_str_eq(devices[1].nics, "eth0=25000000000");
    (void)snprintf(path, sizeof(path), "%s/devices/pci0000:00/0000:00:03.0", real);
    ck_assert_str_eq(devices[1].pci_path, path);
    ck_assert_double_eq(devices[1].rate, 25e9);
    ck_assert_str_eq(devices[2].nics, "dummy0");
    ck_assert_str_eq(devices[2].pci_path, "");
    ck_assert_uint_ne(devices[1].guid, devices[2].guid);
    /* The ports of one card have one GUID. */
    ck_assert_str_eq(devices[3].name, "mlx5_1:1");
    ck_assert_uint_eq(devices[3].guid, devices[0].guid);
    ck_assert_int_eq(devices[3].port, 1);
    /* No more than there is room for. */
    ck_assert_xm_ok(xm_pipe_devices_list(sysfs, devices, 2, &count));
    ck_assert_int_eq(count, 2);
    ck_assert_int_eq(setenv("XM_NICS", "eth7", 1), 0);
    ck_assert_xm_fails(xm_pipe_devices_list(sysfs, devices, 4, &count), XM_ERR_NOT_FOUND, "eth7");
    remove_sysfs();
}
END_TEST

/* Where UCX has been told what to use, it is left to it. */
START_TEST(left_to_ucx)
{
    xm_pipe_device_t device;
    int count = 0;

    ck_assert_int_eq(setenv("UCX_NET_DEVICES", "eth0", 1), 0);
    ck_assert_xm_ok(xm_pipe_devices_list("/sys", &device, 1, &count));
    ck_assert_int_eq(count, 1);
    ck_assert_str_eq(device.name, "auto");
    ck_assert_str_eq(device.nics, "");
    ck_assert_uint_ne(device.guid, 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("pipe device");
    TCase *tcase = tcase_create("devices");

    tcase_add_loop_test(tcase, pci_paths, 0, 4);
    tcase_add_test(tcase, named);
    tcase_add_test(tcase, left_to_ucx);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
