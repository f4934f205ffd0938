/* SPDX-License-Identifier: Apache-2.0 */
/* A large job: rank 0 is this process, the others are threads of one more process, each with the
 * real client code. What is checked is that it works; bench/bootstrap_bench says how fast. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/comm/job/local_job.h"
#include "xm_test.h"

enum { RANKS = 1000, FEWER = 250, JOB_LIMIT_S = 60, LENGTH = 40 };

static const double limit_s = 50.0;

/* Sanitizers make threads expensive. */
static int ranks(void)
{
    return local_timeout(1.0) > 1.0 ? FEWER : RANKS;
}

static uint8_t block_byte(int rank, size_t i)
{
    return (uint8_t)(rank * 7 + (rank >> 8) + (int)i);
}

static size_t block_length(int rank)
{
    return (size_t)(rank % LENGTH);
}

/* Gathers twice and checks every byte. */
static void gather(const xm_job_env_t *env, int listen_fd)
{
    xm_bootstrap_t *bootstrap;
    uint8_t own[LENGTH];
    int *all = malloc((size_t)env->size * sizeof(*all));
    size_t *offsets;
    void *blobs;

    local_expect(all != NULL, "memory");
    local_expect_ok(xm_bootstrap_create_tcp(env, listen_fd, local_timeout(limit_s), &bootstrap));
    local_expect_ok(
        xm_bootstrap_allgather(bootstrap, &env->rank, all, sizeof(*all), local_timeout(limit_s)));
    for (int rank = 0; rank < env->size; ++rank) {
        local_expect(all[rank] == rank, "place %d holds %d", rank, all[rank]);
    }
    free(all);
    for (size_t i = 0; i < block_length(env->rank); ++i) {
        own[i] = block_byte(env->rank, i);
    }
    local_expect_ok(xm_bootstrap_allgatherv(bootstrap, own, block_length(env->rank), &blobs,
                                            &offsets, local_timeout(limit_s)));
    for (int rank = 0; rank < env->size; ++rank) {
        const uint8_t *block = (const uint8_t *)blobs + offsets[rank];

        local_expect(offsets[rank + 1] - offsets[rank] == block_length(rank), "length of rank %d",
                     rank);
        for (size_t i = 0; i < block_length(rank); ++i) {
            local_expect(block[i] == block_byte(rank, i), "byte %zu of rank %d", i, rank);
        }
    }
    free(blobs);
    free(offsets);
    xm_bootstrap_destroy(bootstrap);
}

static void *be_rank(void *arg)
{
    gather(arg, -1);
    return NULL;
}

/* All ranks but 0. */
static int be_the_others(const xm_job_env_t *env)
{
    struct rlimit files = {0};
    xm_job_env_t *envs = calloc((size_t)env->size, sizeof(*envs));
    pthread_t *threads = calloc((size_t)env->size, sizeof(*threads));
    pthread_attr_t small;

    local_expect(envs != NULL && threads != NULL, "memory");
    (void)getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    (void)setrlimit(RLIMIT_NOFILE, &files);
    (void)pthread_attr_init(&small);
    (void)pthread_attr_setstacksize(&small, 256 << 10);
    for (int rank = 1; rank < env->size; ++rank) {
        envs[rank] = *env;
        envs[rank].rank = rank;
        local_expect(pthread_create(&threads[rank], &small, be_rank, &envs[rank]) == 0,
                     "cannot start thread %d", rank);
    }
    for (int rank = 1; rank < env->size; ++rank) {
        (void)pthread_join(threads[rank], NULL);
    }
    (void)pthread_attr_destroy(&small);
    free(threads);
    free(envs);
    return 0;
}

static int be_large(const xm_job_env_t *env, int listen_fd, void *arg)
{
    xm_job_env_t mine = *env;
    struct rlimit files;

    (void)arg;
    mine.size = ranks();
    if (env->rank != 0) {
        return be_the_others(&mine);
    }
    /* What a shell usually gives: rank 0 must ask for more by itself. */
    (void)getrlimit(RLIMIT_NOFILE, &files);
    if (files.rlim_max >= 4096) {
        files.rlim_cur = 256;
        (void)setrlimit(RLIMIT_NOFILE, &files);
    }
    gather(&mine, listen_fd);
    return 0;
}

START_TEST(a_thousand_ranks_meet)
{
    local_job_run(2, JOB_LIMIT_S, be_large, NULL);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("bootstrap_scale");
    TCase *tcase = tcase_create("jobs");

    tcase_set_timeout(tcase, JOB_LIMIT_S + 5);
    tcase_add_test(tcase, a_thousand_ranks_meet);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
