/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `verify` of a reshard between real processes, whose bytes are spoiled outside of the library:
 * what goes by sockets in send() (spoil_sends, preloaded), what ranks copy in the copying itself,
 * which the linker leads through this file. The setting of the environment says otherwise
 * throughout.
 */
#include <crossmesh/counters.h>
#include <crossmesh/reshard.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/worker/worker.h"
#include "resharding/layout/view.h"
#include "tests/comm/job/local_job.h"
#include "tests/resharding/plan/random_case.h"
#include "xm_test.h"

enum { RANKS = 4, DEADLINE_S = 60, ROUNDS = 3, ALWAYS = 1, NEVER = 0, ELEMENT = 4 };

/* What becomes of a job. */
typedef struct {
    xm_verify_t verify;
    int hosts;
    const char *dst; /* spec */
    int copies_one_in, sends_one_in;
    int liar; /* the only rank that spoils copies; -1: all do */
    atomic_int wrong, told, liars;
    atomic_int flips, resends;
} scene_t;

/* Of this process. */
static struct {
    int one_in;
    random_t random;
    int flips;
} copies;

void __real_xm_view_copy(const xm_view_t *from, const void *from_buffer, const xm_view_t *to,
                         void *to_buffer, int64_t first, int64_t count);
void __real_xm_view_stream(const xm_view_t *from, const void *from_buffer, const xm_view_t *to,
                           void *to_buffer, int64_t first, int64_t count);
void __wrap_xm_view_copy(const xm_view_t *from, const void *from_buffer, const xm_view_t *to,
                         void *to_buffer, int64_t first, int64_t count);
void __wrap_xm_view_stream(const xm_view_t *from, const void *from_buffer, const xm_view_t *to,
                           void *to_buffer, int64_t first, int64_t count);

/* Flips a bit of one of the elements that have been copied. */
static void spoil(const xm_view_t *to, char *to_buffer, int64_t first, int64_t count)
{
    int64_t offset;

    if (copies.one_in == NEVER || random_int(&copies.random, 1, copies.one_in) > 1) {
        return;
    }
    first += (int64_t)(xm_random_next(&copies.random) % (uint64_t)count);
    (void)xm_view_contiguous(to, first, 1, &offset);
    to_buffer[offset + random_int(&copies.random, 0, ELEMENT - 1)] ^=
        (char)(1 << random_int(&copies.random, 0, 7));
    ++copies.flips;
}

void __wrap_xm_view_copy(const xm_view_t *from, const void *from_buffer, const xm_view_t *to,
                         void *to_buffer, int64_t first, int64_t count)
{
    __real_xm_view_copy(from, from_buffer, to, to_buffer, first, count);
    spoil(to, to_buffer, first, count);
}

void __wrap_xm_view_stream(const xm_view_t *from, const void *from_buffer, const xm_view_t *to,
                           void *to_buffer, int64_t first, int64_t count)
{
    __real_xm_view_stream(from, from_buffer, to, to_buffer, first, count);
    spoil(to, to_buffer, first, count);
}

/* 4 MiB, from rows on all ranks, in memory that neighbours may copy from. */
typedef struct {
    xm_layout_t *src, *dst;
    xm_shared_memory_t *memory[2];
    xm_tensor_t tensor;
    xm_tensor_buffers_t buffers;
    xm_worker_t *worker;
    xm_reshard_t *reshard;
} matrix_t;

static void enter(const xm_job_env_t *env, int listen_fd, const scene_t *scene, matrix_t *m)
{
    xm_worker_params_t worker_params = XM_WORKER_PARAMS_INIT;
    xm_reshard_params_t params = XM_RESHARD_PARAMS_INIT;
    char host[32], one_in[32];

    local_expect(setenv("XM_VERIFY", scene->verify == XM_VERIFY_OFF ? "chunk" : "off", 1) == 0,
                 "setenv");
    (void)snprintf(host, sizeof(host), "host%d", env->rank * scene->hosts / RANKS);
    worker_params.listen_fd = listen_fd;
    worker_params.host = host;
    worker_params.timeout = DEADLINE_S;
    local_expect_ok(xm_worker_create(env, &worker_params, &m->worker));
    local_expect_ok(xm_layout_parse("1024x1024", "4", NULL, "S0R", XM_PARTITION_CHUNK, &m->src));
    local_expect_ok(
        xm_layout_parse("1024x1024", "4", NULL, scene->dst, XM_PARTITION_CHUNK, &m->dst));
    m->tensor = (xm_tensor_t){"matrix", m->src, m->dst, 8 * ELEMENT};
    m->buffers.src_bytes = xm_layout_buffer_bytes(m->src, env->rank, ELEMENT);
    m->buffers.dst_bytes = xm_layout_buffer_bytes(m->dst, env->rank, ELEMENT);
    local_expect_ok(xm_shared_memory_create(m->buffers.src_bytes, &m->memory[0]));
    local_expect_ok(xm_shared_memory_create(m->buffers.dst_bytes, &m->memory[1]));
    m->buffers.src = xm_shared_memory_address(m->memory[0]);
    m->buffers.dst = xm_shared_memory_address(m->memory[1]);
    params.tensors = &m->tensor;
    params.buffers = &m->buffers;
    params.dtype = "int32";
    params.verify = scene->verify;
    local_expect_ok(xm_reshard_create(m->worker, &params, &m->reshard));
    local_expect_ok(xm_worker_barrier(m->worker));
    copies.random = (random_t){(uint64_t)env->rank + 1};
    copies.one_in = scene->liar < 0 || scene->liar == env->rank ? scene->copies_one_in : NEVER;
    (void)snprintf(one_in, sizeof(one_in), "%d", scene->sends_one_in);
    local_expect(scene->sends_one_in == NEVER || setenv("SPOIL_ONE_IN", one_in, 1) == 0, "setenv");
}

static void fill(const matrix_t *m, uint64_t seed)
{
    pattern_fill(m->src, xm_worker_rank(m->worker), ELEMENT, seed,
                 (void *)(uintptr_t)m->buffers.src);
    memset(m->buffers.dst, 0x5a, m->buffers.dst_bytes);
}

static int count_wrong(const matrix_t *m, uint64_t seed)
{
    return (int)pattern_wrong(m->dst, xm_worker_rank(m->worker), ELEMENT, seed, m->buffers.dst);
}

static void leave(matrix_t *m, scene_t *scene)
{
    xm_rank_counts_t counts;

    local_expect_ok(xm_worker_rank_counts(m->worker, &counts));
    atomic_fetch_add(&scene->resends, (int)counts.resends);
    atomic_fetch_add(&scene->flips, copies.flips);
    xm_reshard_destroy(m->reshard);
    xm_shared_memory_destroy(m->memory[0]);
    xm_shared_memory_destroy(m->memory[1]);
    xm_layout_destroy(m->src);
    xm_layout_destroy(m->dst);
    xm_worker_destroy(m->worker, NULL);
}

/* Runs end well on all ranks. */
static int run_well(const xm_job_env_t *env, int listen_fd, void *arg)
{
    scene_t *scene = arg;
    matrix_t m = {0};

    enter(env, listen_fd, scene, &m);
    for (uint64_t round = 0; round < ROUNDS; ++round) {
        fill(&m, round);
        local_expect_ok(xm_reshard_run(m.reshard, 0));
        atomic_fetch_add(&scene->wrong, count_wrong(&m, round));
    }
    local_expect_ok(xm_worker_barrier(m.worker));
    leave(&m, scene);
    return 0;
}

/* Who has found wrong bytes says so; all others get its sentence, in the run or in what they do
 * next. */
static int hear(const xm_job_env_t *env, int listen_fd, void *arg)
{
    scene_t *scene = arg;
    matrix_t m = {0};
    xm_status_t status;

    enter(env, listen_fd, scene, &m);
    fill(&m, 1);
    status = xm_reshard_run(m.reshard, 0);
    status = status == XM_OK ? xm_worker_barrier(m.worker) : status;
    local_expect(status == XM_ERR_CORRUPT || status == XM_ERR_CANCELED, "rank %d: %s (%s)",
                 env->rank, xm_status_string(status), xm_last_error());
    local_expect(strstr(xm_last_error(), scene->verify == XM_VERIFY_RUN ? "holds data with hash"
                                                                        : "11 times") != NULL,
                 "rank %d: %s", env->rank, xm_last_error());
    atomic_fetch_add(&scene->told, 1);
    atomic_fetch_add(&scene->liars, status == XM_ERR_CORRUPT);
    leave(&m, scene);
    return 0;
}

static scene_t *run(scene_t given, local_main_t *rank_main)
{
    scene_t *scene = local_shared(sizeof(*scene));

    *scene = given;
    local_job_run(RANKS, DEADLINE_S, rank_main, scene);
    return scene;
}

/* Every flip of a copy costs one more copy, and no other. */
START_TEST(copies_are_mended)
{
    static const char *const specs[] = {"RS0", "RR", "S0R"}; /* cut, to all, to itself */

    for (size_t s = 0; s < sizeof(specs) / sizeof(*specs); ++s) {
        scene_t *scene = run((scene_t){.verify = XM_VERIFY_CHUNK,
                                       .hosts = 1,
                                       .dst = specs[s],
                                       .copies_one_in = 10,
                                       .liar = -1},
                             run_well);

        ck_assert_int_eq(scene->wrong, 0);
        ck_assert_int_gt(scene->flips, 10);
        ck_assert_int_eq(scene->resends, scene->flips);
    }
}
END_TEST

START_TEST(messages_are_mended)
{
    static const char *const specs[] = {"RS0", "RR"}; /* packed, and from tile to tile */

    for (size_t s = 0; s < sizeof(specs) / sizeof(*specs); ++s) {
        scene_t *scene = run((scene_t){.verify = XM_VERIFY_CHUNK,
                                       .hosts = 4,
                                       .dst = specs[s],
                                       .sends_one_in = 40,
                                       .liar = -1},
                             run_well);

        ck_assert_int_eq(scene->wrong, 0);
        ck_assert_int_gt(scene->resends, 0);
    }
}
END_TEST

/* The same flips, and nobody asked. */
START_TEST(without_it_nobody_notices)
{
    scene_t given = {
        .verify = XM_VERIFY_OFF, .hosts = 1, .dst = "RS0", .copies_one_in = 4, .liar = -1};
    scene_t *scene = run(given, run_well);

    ck_assert_int_gt(scene->wrong, 0);
    ck_assert_int_eq(scene->resends, 0);
    given.hosts = 4;
    given.copies_one_in = NEVER;
    given.sends_one_in = 4;
    scene = run(given, run_well);
    ck_assert_int_gt(scene->wrong, 0);
    ck_assert_int_eq(scene->resends, 0);
}
END_TEST

START_TEST(all_hear_of_what_stays_wrong)
{
    scene_t given = {
        .verify = XM_VERIFY_CHUNK, .hosts = 1, .dst = "RS0", .copies_one_in = ALWAYS, .liar = 2};
    scene_t *scene = run(given, hear);

    ck_assert_int_eq(scene->told, RANKS);
    ck_assert_int_eq(scene->liars, 1);
    ck_assert_int_eq(scene->resends, 10);
    given.hosts = 4;
    given.copies_one_in = NEVER;
    given.sends_one_in = ALWAYS;
    scene = run(given, hear);
    ck_assert_int_eq(scene->told, RANKS);
    ck_assert_int_gt(scene->liars, 0);
    ck_assert_int_gt(scene->resends, 10);
}
END_TEST

START_TEST(all_hear_of_a_wrong_run)
{
    scene_t *scene = run(
        (scene_t){
            .verify = XM_VERIFY_RUN, .hosts = 1, .dst = "RS0", .copies_one_in = ALWAYS, .liar = 2},
        hear);

    ck_assert_int_eq(scene->told, RANKS);
    ck_assert_int_eq(scene->liars, 1);
    ck_assert_int_eq(scene->resends, 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("proof");
    TCase *tcase = tcase_create("all");

    tcase_set_timeout(tcase, 6 * DEADLINE_S);
    tcase_add_test(tcase, copies_are_mended);
    tcase_add_test(tcase, messages_are_mended);
    tcase_add_test(tcase, without_it_nobody_notices);
    tcase_add_test(tcase, all_hear_of_what_stays_wrong);
    tcase_add_test(tcase, all_hear_of_a_wrong_run);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
