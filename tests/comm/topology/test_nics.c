/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/topology/nics.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "xm_test.h"

static char root[] = "/tmp/xm-nics-XXXXXX";

static void make_directory(const char *name)
{
    char path[256];

    (void)snprintf(path, sizeof(path), "%s/%s", root, name);
    ck_assert_int_eq(mkdir(path, 0700), 0);
}

static void make_file(const char *name, const char *text)
{
    char path[256];
    FILE *file;

    (void)snprintf(path, sizeof(path), "%s/%s", root, name);
    file = fopen(path, "w");
    ck_assert_ptr_nonnull(file);
    (void)fputs(text, file);
    ck_assert_int_eq(fclose(file), 0);
}

/* What /sys looks like where there are interfaces and an RDMA device of two ports. */
static void set_up(void)
{
    static const char *const directories[] = {
        "class",
        "class/net",
        "class/net/eth0",
        "class/net/veth1",
        "class/infiniband",
        "class/infiniband/mlx5_0",
        "class/infiniband/mlx5_0/ports",
        "class/infiniband/mlx5_0/ports/1",
        "class/infiniband/mlx5_0/ports/2",
    };

    ck_assert_ptr_nonnull(mkdtemp(root));
    for (size_t i = 0; i < sizeof(directories) / sizeof(directories[0]); ++i) {
        make_directory(directories[i]);
    }
    make_file("class/net/eth0/speed", "25000\n");
    make_file("class/net/veth1/speed", "-1\n");
    make_file("class/infiniband/mlx5_0/ports/1/rate", "100 Gb/sec (4X EDR)\n");
    make_file("class/infiniband/mlx5_0/ports/2/rate", "99999999 Gb/sec (odd)\n");
}

static void tear_down(void)
{
    char command[256];

    (void)snprintf(command, sizeof(command), "rm -rf %s", root);
    ck_assert_int_eq(system(command), 0); /* NOLINT(cert-env33-c) */
}

START_TEST(unset_is_one_nameless_nic)
{
    xm_nics_t nics;

    ck_assert_xm_ok(xm_nics_parse(NULL, 0, root, &nics));
    ck_assert_int_eq(nics.count, 1);
    ck_assert_str_eq(nics.nic[0].device, "");
    ck_assert_uint_eq(nics.nic[0].rate, 0);
    ck_assert_xm_ok(xm_nics_parse("", 0, root, &nics));
    ck_assert_int_eq(nics.count, 1);
}
END_TEST

START_TEST(rates_are_given_or_read)
{
    xm_nics_t nics;

    ck_assert_xm_ok(xm_nics_parse("eth0=1000000000,veth1=5,eth0,veth1,mlx5_0:1,mlx5_0:2=7,mlx5_0:2,"
                                  "mlx5_0",
                                  0, root, &nics));
    ck_assert_int_eq(nics.count, 8);
    ck_assert_str_eq(nics.nic[7].device, "mlx5_0:1");
    ck_assert_uint_eq(nics.nic[7].rate, UINT64_C(100000000000));
    ck_assert_str_eq(nics.nic[0].device, "eth0");
    ck_assert_uint_eq(nics.nic[0].rate, UINT64_C(1000000000));
    ck_assert_uint_eq(nics.nic[1].rate, 5);
    ck_assert_uint_eq(nics.nic[2].rate, UINT64_C(25000000000));
    ck_assert_uint_eq(nics.nic[3].rate, 0);
    ck_assert_str_eq(nics.nic[4].device, "mlx5_0:1");
    ck_assert_uint_eq(nics.nic[4].rate, UINT64_C(100000000000));
    ck_assert_uint_eq(nics.nic[5].rate, 7);
    ck_assert_uint_eq(nics.nic[6].rate, (uint64_t)XM_NICS_MAX_RATE);
}
END_TEST

static const struct {
    const char *text;
    xm_status_t status;
    const char *sentence;
} refused[] = {
    {"eth9", XM_ERR_NOT_FOUND, "rank 3: XM_NICS: no network device 'eth9'; this machine has "},
    {"eth0,", XM_ERR_PARSE, "rank 3: XM_NICS: '' is not DEVICE or DEVICE=RATE"},
    {",eth0", XM_ERR_PARSE, "'' is not DEVICE"},
    {"=5", XM_ERR_PARSE, "'=5' is not DEVICE"},
    {"eth0 ,veth1", XM_ERR_PARSE, "'eth0 ' is not DEVICE"},
    {"../net/eth0", XM_ERR_PARSE, "is not DEVICE"},
    {"..", XM_ERR_NOT_FOUND, "no network device '..'"},
    {".", XM_ERR_NOT_FOUND, "no network device '.'"},
    {"mlx5_1", XM_ERR_NOT_FOUND, "mlx5_0:1"},
    {"mlx5_0:3", XM_ERR_NOT_FOUND, "no network device 'mlx5_0:3'"},
    {"mlx5_0:", XM_ERR_NOT_FOUND, "no network device 'mlx5_0:'"},
    {"mlx5_0:.", XM_ERR_NOT_FOUND, "no network device 'mlx5_0:.'"},
    {"eth0:1", XM_ERR_NOT_FOUND, "no network device 'eth0:1'"},
    {"eth0=", XM_ERR_PARSE, "rank 3: XM_NICS: rate of eth0: ''"},
    {"eth0=1Gbit", XM_ERR_PARSE, "rank 3: XM_NICS: rate of eth0: '1Gbit'"},
    {"eth0=0", XM_ERR_INVALID_ARGUMENT, "rate of eth0"},
    {"eth0=-1", XM_ERR_INVALID_ARGUMENT, "rate of eth0"},
    {"veth1=10000000000001", XM_ERR_INVALID_ARGUMENT, "rate of veth1"},
    {"eth0=1=2", XM_ERR_PARSE, "rate of eth0: '1=2'"},
    {"eth0,eth0,eth0,eth0,eth0,eth0,eth0,eth0,eth0", XM_ERR_PARSE, "names more than 8 devices"},
};

START_TEST(bad_lists_are_refused)
{
    xm_nics_t nics;

    ck_assert_xm_fails(xm_nics_parse(refused[_i].text, 3, root, &nics), refused[_i].status,
                       refused[_i].sentence);
}
END_TEST

START_TEST(what_exists_is_listed)
{
    static const char *const expected[] = {"eth0", "veth1", "mlx5_0:1", "mlx5_0:2"};
    xm_nics_t nics;

    ck_assert_int_eq(xm_nics_parse("x", 0, root, &nics), XM_ERR_NOT_FOUND);
    for (size_t i = 0; i < sizeof(expected) / sizeof(expected[0]); ++i) {
        ck_assert_msg(strstr(xm_last_error(), expected[i]) != NULL, "'%s' lacks %s",
                      xm_last_error(), expected[i]);
    }
    ck_assert_xm_fails(xm_nics_parse("x", 0, "/nowhere", &nics), XM_ERR_NOT_FOUND,
                       "this machine has none");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("nics");
    TCase *tcase = tcase_create("all");

    tcase_add_unchecked_fixture(tcase, set_up, tear_down);
    tcase_add_test(tcase, unset_is_one_nameless_nic);
    tcase_add_test(tcase, rates_are_given_or_read);
    tcase_add_loop_test(tcase, bad_lists_are_refused, 0,
                        (int)(sizeof(refused) / sizeof(refused[0])));
    tcase_add_test(tcase, what_exists_is_listed);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
