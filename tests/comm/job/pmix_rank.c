/* SPDX-License-Identifier: Apache-2.0 */
/* One rank of a job that mpirun starts: pmix_rank ROLE. Run by test_bootstrap_pmix.sh. */
#include <dirent.h>
#include <dlfcn.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/comm/job/local_job.h"

static const double limit_s = 40.0;

static xm_bootstrap_t *join(const xm_job_env_t *env)
{
    xm_bootstrap_t *bootstrap;

    local_expect_ok(xm_bootstrap_create(env, -1, local_timeout(limit_s), &bootstrap));
    local_expect(xm_bootstrap_rank(bootstrap) == env->rank, "PMIx says rank %d, mpirun %d",
                 xm_bootstrap_rank(bootstrap), env->rank);
    local_expect(xm_bootstrap_fd(bootstrap) >= 0, "there is no fault channel");
    return bootstrap;
}

/* Twice in one process: the second job after the first must meet as well. */
static int meet(const xm_job_env_t *env)
{
    for (int round = 0; round < 2; ++round) {
        xm_bootstrap_t *bootstrap = join(env);
        size_t *offsets;
        void *all;
        char own[64];
        int rank = 0;

        (void)snprintf(own, sizeof(own), "%.*s", 1 + env->rank * 3,
                       "abcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyz");
        local_expect_ok(xm_bootstrap_allgatherv(bootstrap, own, strlen(own), &all, &offsets,
                                                local_timeout(limit_s)));
        for (; rank < env->size; ++rank) {
            local_expect(offsets[rank + 1] - offsets[rank] == (size_t)(1 + rank * 3) &&
                             ((char *)all)[offsets[rank]] == 'a',
                         "the blob of rank %d is wrong", rank);
        }
        free(all);
        free(offsets);
        local_expect_ok(xm_bootstrap_barrier(bootstrap, local_timeout(limit_s)));
        xm_bootstrap_destroy(bootstrap);
    }
    (void)printf("rank %d of %d met\n", env->rank, env->size);
    return 0;
}

/* MPI may be initialised after the ranks have met, and even when they have parted. */
static int use_mpi(const xm_job_env_t *env)
{
    void *mpi = dlopen("libmpi.so.40", RTLD_NOW | RTLD_GLOBAL), *symbols[2];
    int (*init)(int *, char ***);
    int (*finalize)(void);
    xm_bootstrap_t *bootstrap;

    local_expect(mpi != NULL, "%s", dlerror());
    symbols[0] = dlsym(mpi, "MPI_Init");
    symbols[1] = dlsym(mpi, "MPI_Finalize");
    local_expect(symbols[0] != NULL && symbols[1] != NULL, "%s", dlerror());
    memcpy(&init, &symbols[0], sizeof(init));
    memcpy(&finalize, &symbols[1], sizeof(finalize));
    xm_bootstrap_destroy(join(env));
    local_expect(init(NULL, NULL) == 0, "MPI_Init");
    bootstrap = join(env);
    local_expect(finalize() == 0, "MPI_Finalize");
    local_expect_ok(xm_bootstrap_barrier(bootstrap, local_timeout(limit_s)));
    xm_bootstrap_destroy(bootstrap);
    (void)printf("rank %d used MPI\n", env->rank);
    return 0;
}

/* Rank 1 is killed; the others say so. */
static int die(const xm_job_env_t *env)
{
    xm_bootstrap_t *bootstrap = join(env);
    double deadline = local_now() + local_timeout(limit_s);
    int failed_rank = -1;
    xm_status_t status;

    local_expect_ok(xm_bootstrap_barrier(bootstrap, local_timeout(limit_s)));
    if (env->rank == 1) {
        (void)raise(SIGKILL);
    }
    do {
        struct pollfd entry = {.fd = xm_bootstrap_fd(bootstrap), .events = POLLIN};

        (void)poll(&entry, 1, 100);
        status = xm_bootstrap_poll(bootstrap, &failed_rank);
    } while (status == XM_OK && local_now() < deadline);
    local_expect(status == XM_ERR_PEER_DIED && failed_rank == 1, "%s, rank %d: %s",
                 xm_status_string(status), failed_rank, xm_last_error());
    (void)printf("rank %d: %s\n", env->rank, xm_last_error());
    xm_bootstrap_destroy(bootstrap);
    return 0;
}

/* How many files a folder holds. */
static int count_files(const char *folder)
{
    DIR *directory = opendir(folder);
    int count = 0;

    local_expect(directory != NULL, "no folder %s", folder);
    for (struct dirent *entry = readdir(directory); entry != NULL; entry = readdir(directory)) {
        count += entry->d_name[0] != '.';
    }
    (void)closedir(directory);
    return count;
}

/* Rank 1 does not come; the others' deadline holds. mpirun ends all when rank 1 ends, so it stays
 * until each of them has said so, and left a file in $MARKS. */
static int miss(const xm_job_env_t *env)
{
    double deadline = local_now() + local_timeout(limit_s);
    const char *marks = getenv("MARKS");
    xm_bootstrap_t *bootstrap;
    char mark[256];
    FILE *file;

    local_expect(marks != NULL, "no MARKS");
    if (env->rank == 1) {
        while (count_files(marks) < env->size - 1 && local_now() < deadline) {
            local_sleep(0.05);
        }
        return 0;
    }
    local_expect_fails(xm_bootstrap_create(env, -1, 0.5, &bootstrap), XM_ERR_TIMEOUT,
                       "out-of-band allgather did not end within");
    (void)printf("rank %d timed out\n", env->rank);
    (void)fflush(stdout);
    (void)snprintf(mark, sizeof(mark), "%s/%d", marks, env->rank);
    file = fopen(mark, "w");
    local_expect(file != NULL && fclose(file) == 0, "%s", mark);
    return 0;
}

/* What the environment says and what PMIx says differ. */
static int differ(const xm_job_env_t *env)
{
    xm_job_env_t wrong = *env;
    xm_bootstrap_t *bootstrap;

    ++wrong.size;
    local_expect_fails(xm_bootstrap_create(&wrong, -1, 5.0, &bootstrap), XM_ERR_MISMATCH,
                       "the environment says rank ");
    (void)printf("rank %d: %s\n", env->rank, xm_last_error());
    return 0;
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        int (*run)(const xm_job_env_t *env);
    } roles[] = {
        {"meet", meet}, {"mpi", use_mpi}, {"die", die}, {"miss", miss}, {"differ", differ}};
    xm_job_env_t env;

    local_expect(argc == 2, "usage: pmix_rank ROLE");
    local_expect_ok(xm_job_env_read(&env));
    local_expect(env.pmix, "PMIx is not offered");
    for (size_t i = 0; i < sizeof(roles) / sizeof(roles[0]); ++i) {
        if (strcmp(roles[i].name, argv[1]) == 0) {
            return roles[i].run(&env);
        }
    }
    local_fail(__FILE__, __LINE__, "no role %s", argv[1]);
}
