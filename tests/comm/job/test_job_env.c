/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/job/bootstrap.h"
#include "xm_test.h"

static const char *const variables[] = {"RANK",
                                        "WORLD_SIZE",
                                        "LOCAL_WORLD_SIZE",
                                        "MASTER_ADDR",
                                        "MASTER_PORT",
                                        "OMPI_COMM_WORLD_RANK",
                                        "OMPI_COMM_WORLD_SIZE",
                                        "OMPI_COMM_WORLD_LOCAL_SIZE",
                                        "OMPI_MCA_ess_base_jobid",
                                        "PMIX_NAMESPACE",
                                        "PMIX_RANK",
                                        "PMI_RANK",
                                        "PMI_SIZE",
                                        "PMI_JOBID",
                                        "MPI_LOCALNRANKS",
                                        "SLURM_PROCID",
                                        "SLURM_NTASKS",
                                        "SLURM_STEP_NUM_NODES",
                                        "SLURM_JOB_ID",
                                        "SLURM_STEP_ID",
                                        "SLURM_STEP_NODELIST",
                                        "TORCHELASTIC_RUN_ID"};

static void forget_launchers(void)
{
    for (size_t i = 0; i < sizeof(variables) / sizeof(variables[0]); ++i) {
        ck_assert_int_eq(unsetenv(variables[i]), 0);
    }
}

static void set(const char *name, const char *value)
{
    ck_assert_int_eq(setenv(name, value, 1), 0);
}

START_TEST(nothing_set)
{
    xm_job_env_t env;

    ck_assert_xm_ok(xm_job_env_read(&env));
    ck_assert_int_eq(env.rank, -1);
    ck_assert_int_eq(env.size, -1);
    ck_assert_int_eq(env.master_port, -1);
    ck_assert_str_eq(env.master_addr, "");
}
END_TEST

START_TEST(torchrun)
{
    xm_job_env_t env;

    set("RANK", "3");
    set("WORLD_SIZE", "8");
    set("MASTER_ADDR", "node7");
    set("MASTER_PORT", "29500");
    set("SLURM_PROCID", "0");
    set("SLURM_NTASKS", "2");
    ck_assert_xm_ok(xm_job_env_read(&env));
    ck_assert_int_eq(env.rank, 3);
    ck_assert_int_eq(env.size, 8);
    ck_assert_int_eq(env.master_port, 29500);
    ck_assert_str_eq(env.master_addr, "node7");
}
END_TEST

START_TEST(mpirun_on_one_machine)
{
    xm_job_env_t first, second;

    set("OMPI_COMM_WORLD_RANK", "1");
    set("OMPI_COMM_WORLD_SIZE", "4");
    set("OMPI_COMM_WORLD_LOCAL_SIZE", "4");
    set("PMIX_NAMESPACE", "3371565057");
    ck_assert_xm_ok(xm_job_env_read(&first));
    ck_assert_int_eq(first.rank, 1);
    ck_assert_int_eq(first.size, 4);
    ck_assert_str_eq(first.master_addr, "127.0.0.1");
    ck_assert_int_ge(first.master_port, 1024);
    ck_assert_int_lt(first.master_port, 32768);
    set("OMPI_COMM_WORLD_RANK", "2");
    ck_assert_xm_ok(xm_job_env_read(&second));
    ck_assert_int_eq(first.master_port, second.master_port);
    set("PMIX_NAMESPACE", "3371565058");
    ck_assert_xm_ok(xm_job_env_read(&second));
    ck_assert_int_ne(first.master_port, second.master_port);
}
END_TEST

START_TEST(mpirun_on_two_machines)
{
    xm_job_env_t env;

    set("OMPI_COMM_WORLD_RANK", "1");
    set("OMPI_COMM_WORLD_SIZE", "4");
    set("OMPI_COMM_WORLD_LOCAL_SIZE", "2");
    ck_assert_xm_ok(xm_job_env_read(&env));
    ck_assert_str_eq(env.master_addr, "");
    ck_assert_int_eq(env.master_port, -1);
}
END_TEST

START_TEST(other_launchers)
{
    xm_job_env_t env;

    set("PMI_RANK", "5");
    set("PMI_SIZE", "6");
    set("MPI_LOCALNRANKS", "6");
    set("PMI_JOBID", "kvs_17");
    ck_assert_xm_ok(xm_job_env_read(&env));
    ck_assert_int_eq(env.rank, 5);
    ck_assert_str_eq(env.master_addr, "127.0.0.1");
    ck_assert_int_gt(env.master_port, 0);
    forget_launchers();
    set("SLURM_PROCID", "2");
    set("SLURM_NTASKS", "3");
    set("SLURM_STEP_NUM_NODES", "1");
    set("SLURM_JOB_ID", "99");
    ck_assert_xm_ok(xm_job_env_read(&env));
    ck_assert_int_eq(env.rank, 2);
    ck_assert_int_eq(env.size, 3);
    ck_assert_str_eq(env.master_addr, "127.0.0.1");
    set("MASTER_PORT", "4000");
    ck_assert_xm_ok(xm_job_env_read(&env));
    ck_assert_int_eq(env.master_port, 4000);
}
END_TEST

START_TEST(pmix)
{
    xm_job_env_t env;

    /* Under mpirun and srun: their variables, and PMIx to meet by. */
    set("OMPI_COMM_WORLD_RANK", "1");
    set("OMPI_COMM_WORLD_SIZE", "4");
    set("PMIX_NAMESPACE", "3371565057");
    set("PMIX_RANK", "1");
    ck_assert_xm_ok(xm_job_env_read(&env));
    ck_assert(env.pmix);
    ck_assert_int_eq(env.rank, 1);
    ck_assert_int_eq(env.size, 4);
    /* Who sets an address wants that one; who comes from torchrun is another job. */
    set("MASTER_ADDR", "node7");
    ck_assert_xm_ok(xm_job_env_read(&env));
    ck_assert(!env.pmix);
    forget_launchers();
    set("PMIX_NAMESPACE", "3371565057");
    set("PMIX_RANK", "1");
    set("RANK", "0");
    set("WORLD_SIZE", "2");
    ck_assert_xm_ok(xm_job_env_read(&env));
    ck_assert(!env.pmix);
    ck_assert_int_eq(env.rank, 0);
    /* PMIx alone: it will tell the size. */
    forget_launchers();
    set("PMIX_NAMESPACE", "prterun-host-1@1");
    set("PMIX_RANK", "7");
    ck_assert_xm_ok(xm_job_env_read(&env));
    ck_assert(env.pmix);
    ck_assert_int_eq(env.rank, 7);
    ck_assert_int_eq(env.size, -1);
    set("PMIX_RANK", "first");
    ck_assert_xm_fails(xm_job_env_read(&env), XM_ERR_PARSE, "PMIX_RANK: 'first'");
}
END_TEST

START_TEST(slurm_without_pmix)
{
    static const char *const lists[][2] = {
        {"node7", "node7"},
        {"node7,node9", "node7"},
        {"node[03-05,07],login1", "node03"},
        {"node[12]", "node12"},
        {"rack1-node[2,4-9]", "rack1-node2"},
        {"n[1-2]-ib,m3", "n1-ib"},
        {"node[", ""},
        {"node[-3]", ""},
        {"node[3", ""},
        {"", ""},
    };
    xm_job_env_t first, second;

    for (size_t i = 0; i < sizeof(lists) / sizeof(lists[0]); ++i) {
        forget_launchers();
        set("SLURM_PROCID", "0");
        set("SLURM_NTASKS", "8");
        set("SLURM_STEP_NUM_NODES", "2");
        set("SLURM_JOB_ID", "99");
        set("SLURM_STEP_ID", "0");
        set("SLURM_STEP_NODELIST", lists[i][0]);
        ck_assert_xm_ok(xm_job_env_read(&first));
        ck_assert_str_eq(first.master_addr, lists[i][1]);
        ck_assert_int_gt(first.master_port, 0);
    }
    /* Steps of one job that run together do not meet each other. */
    set("SLURM_STEP_ID", "1");
    ck_assert_xm_ok(xm_job_env_read(&second));
    ck_assert_int_ne(first.master_port, second.master_port);
}
END_TEST

START_TEST(bad_values_are_named)
{
    static const struct {
        const char *rank, *size, *port;
        xm_status_t status;
        const char *text;
    } rows[] = {
        {"x", "2", NULL, XM_ERR_PARSE, "RANK: 'x'"},
        {"-1", "2", NULL, XM_ERR_INVALID_ARGUMENT, "RANK: -1"},
        {"2", "2", NULL, XM_ERR_INVALID_ARGUMENT, "RANK=2 is not below WORLD_SIZE=2"},
        {"0", NULL, NULL, XM_ERR_PARSE, "RANK is set but WORLD_SIZE is not"},
        {NULL, "2", NULL, XM_ERR_PARSE, "WORLD_SIZE is set but RANK is not"},
        {"0", "0", NULL, XM_ERR_INVALID_ARGUMENT, "WORLD_SIZE: 0"},
        {"0", "2", "70000", XM_ERR_INVALID_ARGUMENT, "MASTER_PORT: 70000"},
        {"0", "2", "29500 ", XM_ERR_PARSE, "MASTER_PORT: '29500 '"},
    };
    xm_job_env_t env = {.rank = 42};

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); ++i) {
        forget_launchers();
        if (rows[i].rank != NULL) {
            set("RANK", rows[i].rank);
        }
        if (rows[i].size != NULL) {
            set("WORLD_SIZE", rows[i].size);
        }
        if (rows[i].port != NULL) {
            set("MASTER_PORT", rows[i].port);
        }
        ck_assert_xm_fails(xm_job_env_read(&env), rows[i].status, rows[i].text);
        ck_assert_int_eq(env.rank, 42);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("job_env");
    TCase *tcase = tcase_create("all");

    tcase_add_checked_fixture(tcase, forget_launchers, NULL);
    tcase_add_test(tcase, nothing_set);
    tcase_add_test(tcase, torchrun);
    tcase_add_test(tcase, mpirun_on_one_machine);
    tcase_add_test(tcase, mpirun_on_two_machines);
    tcase_add_test(tcase, other_launchers);
    tcase_add_test(tcase, pmix);
    tcase_add_test(tcase, slurm_without_pmix);
    tcase_add_test(tcase, bad_values_are_named);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
