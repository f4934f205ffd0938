/* SPDX-License-Identifier: Apache-2.0 */
/* Updates on real processes: random layouts and densities, readers, failures, misuse. What every
 * element should be is known from its place and the versions alone. */
#include <crossmesh/update.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>

#include "comm/memory.h"
#include "tests/comm/job/local_job.h"
#include "tests/comm/memory/cuda_case.h"
#include "tests/resharding/plan/random_case.h"
#include "xm_test.h"

enum { RANKS = 6, PER_HOST = 3, DEADLINE_S = 60, CASES = 40, VERSIONS = 8 };

static xm_worker_t *join(const xm_job_env_t *env, int listen_fd)
{
    xm_worker_params_t params = XM_WORKER_PARAMS_INIT;
    xm_worker_t *worker;
    char host[32];

    (void)snprintf(host, sizeof(host), "host%d", env->rank / PER_HOST);
    params.listen_fd = listen_fd;
    params.host = host;
    params.timeout = DEADLINE_S;
    local_expect_ok(xm_worker_create(env, &params, &worker));
    return worker;
}

/* Of 256 elements so many change in a version. */
static int density(uint64_t seed, uint64_t version)
{
    static const int of[] = {0, 1, 3, 20, 128, 256};

    return of[(seed * 31 + version * 7) % 6];
}

/* Makes a tile of a version out of the tile of the version before. The first is all new. */
static void step(const xm_layout_t *layout, int rank, int64_t size, uint64_t seed, uint64_t version,
                 char *tile)
{
    size_t bytes = xm_layout_buffer_bytes(layout, rank, size);
    char *new = malloc(bytes + 1);
    unsigned char *pick = malloc(bytes + 1);

    pattern_fill(layout, rank, size, seed * 1000 + version, new);
    pattern_fill(layout, rank, size, seed * 1000 + 500 + version, pick);
    for (size_t at = 0; at < bytes; at += (size_t)size) {
        if (version == 1 || pick[at] < density(seed, version)) {
            memcpy(tile + at, new + at, (size_t)size);
        }
    }
    free(pick);
    free(new);
}

/* One tensor on this rank: its tiles, and what the destination should be. */
typedef struct {
    random_case_t problem;
    xm_tensor_t tensor;
    xm_tensor_buffers_t buffers;
    char *src, *expected, *before,
        *dst;                 /* what the source is, and the destination should be, was, is */
    xm_memory_space_t *space; /* of the tiles; NULL: the host's */
    xm_reshard_params_t params;
    xm_update_t *update;
} tensor_case_t;

static void *tile_of(const tensor_case_t *c, void *host, uint64_t bytes)
{
    void *tile = host;

    if (c->space != NULL && bytes > 0) {
        local_expect_ok(xm_memory_allocate(c->space, bytes, &tile));
        local_expect_ok(xm_memory_copy(c->space, tile, host, bytes));
    }
    return tile;
}

static void open_case(const xm_worker_t *worker, random_t *random, xm_memory_space_t *space,
                      tensor_case_t *c)
{
    static const xm_strategy_t strategies[] = {XM_STRATEGY_AUTO, XM_STRATEGY_SEND_RECV,
                                               XM_STRATEGY_BROADCAST, XM_STRATEGY_ALLGATHER};
    int rank = xm_worker_rank(worker);

    memset(c, 0, sizeof(*c));
    c->space = space;
    random_case_create_for(random, RANKS, PER_HOST, &c->problem);
    c->tensor =
        (xm_tensor_t){"tensor", c->problem.src, c->problem.dst, (int)(8 * c->problem.element_size)};
    c->buffers.src_bytes = xm_layout_buffer_bytes(c->problem.src, rank, c->problem.element_size);
    c->buffers.dst_bytes = xm_layout_buffer_bytes(c->problem.dst, rank, c->problem.element_size);
    c->src = calloc(1, c->buffers.src_bytes + 1);
    c->expected = calloc(1, c->buffers.dst_bytes + 1);
    c->before = calloc(1, c->buffers.dst_bytes + 1);
    c->dst = calloc(1, c->buffers.dst_bytes + 1);
    c->buffers.src = tile_of(c, c->src, c->buffers.src_bytes);
    c->buffers.dst = tile_of(c, c->dst, c->buffers.dst_bytes);
    c->params = (xm_reshard_params_t)XM_RESHARD_PARAMS_INIT;
    c->params.tensors = &c->tensor;
    c->params.buffers = &c->buffers;
    c->params.strategy = strategies[random_int(random, 0, 3)];
    c->params.verify = random_int(random, 0, 2) == 0 ? XM_VERIFY_RUN : XM_VERIFY_DEFAULT;
    c->params.verify = random_int(random, 0, 4) == 0 ? XM_VERIFY_CHUNK : c->params.verify;
}

static void close_case(tensor_case_t *c)
{
    xm_update_destroy(c->update);
    random_case_destroy(&c->problem);
    if (c->space != NULL) {
        xm_memory_release(c->space,
                          c->buffers.src_bytes > 0 ? (void *)(uintptr_t)c->buffers.src : NULL);
        xm_memory_release(c->space, c->buffers.dst_bytes > 0 ? c->buffers.dst : NULL);
    }
    free(c->dst);
    free(c->before);
    free(c->expected);
    free(c->src);
}

static void next_version(const xm_worker_t *worker, tensor_case_t *c, uint64_t seed,
                         uint64_t version)
{
    int rank = xm_worker_rank(worker);

    memcpy(c->before, c->expected, c->buffers.dst_bytes);
    step(c->problem.src, rank, c->problem.element_size, seed, version, c->src);
    if (c->space != NULL && c->buffers.src_bytes > 0) {
        local_expect_ok(xm_memory_copy(c->space, (void *)(uintptr_t)c->buffers.src, c->src,
                                       c->buffers.src_bytes));
    }
    step(c->problem.dst, rank, c->problem.element_size, seed, version, c->expected);
}

static void check(const xm_worker_t *worker, const tensor_case_t *c, uint64_t version)
{
    if (c->space != NULL && c->buffers.dst_bytes > 0) {
        local_expect_ok(xm_memory_copy(c->space, c->dst, c->buffers.dst, c->buffers.dst_bytes));
    }
    local_expect(memcmp(c->dst, c->expected, c->buffers.dst_bytes) == 0,
                 "rank %d is not at version %d of %s", xm_worker_rank(worker), (int)version,
                 random_case_text(&c->problem));
}

/* What a commit says to have written is what differs from before, at least. */
static void check_changed(const tensor_case_t *c, bool everything)
{
    const uint64_t size = (uint64_t)c->problem.element_size, elements = c->buffers.dst_bytes / size;
    uint64_t *bits = malloc((elements / 64 + 1) * sizeof(*bits)), set = 0;

    local_expect_ok(xm_update_changed(c->update, 0, bits));
    for (uint64_t e = 0; e < elements; ++e) {
        bool written = (bits[e / 64] >> e % 64 & 1) != 0;

        set += written;
        local_expect(written || memcmp(c->before + e * size, c->expected + e * size, size) == 0,
                     "element %d has changed and is not said to have", (int)e);
    }
    local_expect(!everything || set == elements, "%d of %d elements", (int)set, (int)elements);
    free(bits);
}

static int run_versions(const xm_job_env_t *env, int listen_fd, void *arg)
{
    xm_worker_t *worker = join(env, listen_fd);
    xm_memory_space_t *space = NULL;
    random_t random = {41};

    if (arg != NULL) {
        local_expect_ok(xm_memory_cuda_create(0, &space));
    }
    for (uint64_t seed = 1; seed <= (uint64_t)xm_test_rounds(CASES); ++seed) {
        tensor_case_t c;

        /* Some ranks have theirs in host memory all the same. */
        open_case(worker, &random, (seed + (uint64_t)env->rank) % 3 == 0 ? NULL : space, &c);
        local_expect_ok(xm_update_create(worker, &c.params, &c.update));
        local_expect(xm_update_read_begin(c.update) == 0, "a version before the first");
        for (uint64_t version = 1; version <= VERSIONS; ++version) {
            xm_update_info_t info = XM_UPDATE_INFO_INIT;

            next_version(worker, &c, seed, version);
            local_expect_ok(xm_update_commit(c.update, 0, &info));
            check(worker, &c, version);
            check_changed(&c, version == 1);
            local_expect(info.version == version && info.everything == (version == 1),
                         "version %d instead of %d", (int)info.version, (int)version);
            local_expect(xm_update_read_begin(c.update) == version, "another version to read");
            local_expect(density(seed, version) > 0 || version == 1 || info.changed == 0,
                         "%d elements changed", (int)info.changed);
            local_expect(info.sent_bytes <= info.dense_bytes + 12 * info.dense_bytes,
                         "%d bytes for %d", (int)info.sent_bytes, (int)info.dense_bytes);
        }
        close_case(&c);
    }
    xm_worker_destroy(worker, NULL);
    xm_memory_space_destroy(space);
    return 0;
}

START_TEST(every_version_arrives)
{
    local_job_run(RANKS, DEADLINE_S, run_versions, NULL);
}
END_TEST

START_TEST(every_version_arrives_on_devices)
{
    bool on_device = true;

    local_job_run(RANKS, DEADLINE_S, run_versions, &on_device);
}
END_TEST

/* A matrix of numbers that are all the version: a mixture shows at once. */
typedef struct {
    const xm_update_t *update;
    const volatile uint16_t *tile;
    size_t count;
    atomic_bool over;
    atomic_int seen, mixed;
} reader_t;

static void *read_versions(void *arg)
{
    reader_t *reader = arg;

    while (!atomic_load(&reader->over)) {
        uint64_t version = xm_update_read_begin(reader->update);
        bool same = true;

        for (size_t i = 0; version != 0 && i < reader->count; i += 7) {
            same = same && reader->tile[i] == version;
        }
        if (version != 0 && xm_update_read_end(reader->update, version)) {
            (void)atomic_fetch_add(&reader->seen, 1);
            (void)atomic_fetch_add(&reader->mixed, !same);
        }
    }
    return NULL;
}

static int serve_readers(const xm_job_env_t *env, int listen_fd, void *arg)
{
    xm_worker_t *worker = join(env, listen_fd);
    xm_reshard_params_t params = XM_RESHARD_PARAMS_INIT;
    xm_tensor_t tensor = {"numbers", NULL, NULL, 16};
    xm_tensor_buffers_t buffers = {NULL, 0, NULL, 0};
    reader_t reader = {NULL, NULL, 0, false, 0, 0};
    xm_layout_t *src, *dst;
    xm_update_t *update;
    pthread_t thread;
    uint16_t *rows, *columns;

    (void)arg;
    local_expect_ok(xm_layout_parse("512x384", "3", "0-2", "S0R", XM_PARTITION_CHUNK, &src));
    local_expect_ok(xm_layout_parse("512x384", "3", "3-5", "RS0", XM_PARTITION_CHUNK, &dst));
    buffers.src_bytes = xm_layout_buffer_bytes(src, env->rank, 2);
    buffers.dst_bytes = xm_layout_buffer_bytes(dst, env->rank, 2);
    rows = calloc(1, buffers.src_bytes + 1);
    columns = calloc(1, buffers.dst_bytes + 1);
    buffers.src = rows;
    buffers.dst = columns;
    tensor.src = src;
    tensor.dst = dst;
    params.tensors = &tensor;
    params.buffers = &buffers;
    local_expect_ok(xm_update_create(worker, &params, &update));
    reader.update = update;
    reader.tile = columns;
    reader.count = buffers.dst_bytes / 2;
    local_expect(pthread_create(&thread, NULL, read_versions, &reader) == 0, "no thread");
    for (uint16_t version = 1; version <= 60; ++version) {
        for (size_t i = 0; i < buffers.src_bytes / 2; ++i) {
            rows[i] = version;
        }
        local_expect_ok(xm_update_commit(update, 0, NULL));
    }
    atomic_store(&reader.over, true);
    (void)pthread_join(thread, NULL);
    local_expect(atomic_load(&reader.mixed) == 0, "%d of %d looks saw two versions",
                 atomic_load(&reader.mixed), atomic_load(&reader.seen));
    local_expect(reader.count == 0 || atomic_load(&reader.seen) > 0, "nobody looked");
    xm_update_destroy(update);
    xm_layout_destroy(src);
    xm_layout_destroy(dst);
    free(rows);
    free(columns);
    xm_worker_destroy(worker, NULL);
    return 0;
}

START_TEST(readers_see_one_version_at_a_time)
{
    local_job_run(RANKS, DEADLINE_S, serve_readers, NULL);
}
END_TEST

/* Chunks that lie in one piece at both ends are encoded all the same; they are so large that a lane
 * has a single pack buffer for the several that it may have in flight. */
static int send_large_chunks(const xm_job_env_t *env, int listen_fd, void *arg)
{
    const size_t count = 8 * 1024 * 1024;
    xm_worker_t *worker = join(env, listen_fd);
    xm_reshard_params_t params = XM_RESHARD_PARAMS_INIT;
    xm_tensor_t tensor = {"numbers", NULL, NULL, 16};
    xm_tensor_buffers_t buffers = {NULL, 0, NULL, 0};
    uint16_t *tile = calloc(count, sizeof(*tile));
    xm_layout_t *src, *dst;
    xm_update_t *update;
    size_t wrong = 0;

    (void)arg;
    local_expect_ok(xm_layout_parse("4096x2048", "1", "0", "RR", XM_PARTITION_EVEN, &src));
    local_expect_ok(xm_layout_parse("4096x2048", "1", "1", "RR", XM_PARTITION_EVEN, &dst));
    buffers.src_bytes = xm_layout_buffer_bytes(src, env->rank, 2);
    buffers.dst_bytes = xm_layout_buffer_bytes(dst, env->rank, 2);
    buffers.src = buffers.src_bytes > 0 ? tile : NULL;
    buffers.dst = buffers.dst_bytes > 0 ? tile : NULL;
    tensor.src = src;
    tensor.dst = dst;
    params.tensors = &tensor;
    params.buffers = &buffers;
    local_expect_ok(xm_update_create(worker, &params, &update));
    for (size_t version = 1; version <= 3; ++version) {
        for (size_t i = 0; i < count && buffers.src != NULL; i += version == 1 ? 1 : 17) {
            tile[i] = (uint16_t)(i * 31 + version);
        }
        local_expect_ok(xm_update_commit(update, 0, NULL));
        for (size_t i = 0; i < count && buffers.dst != NULL; ++i) {
            wrong += tile[i] != (uint16_t)(i * 31 + (i % 17 == 0 ? version : 1));
        }
    }
    local_expect(wrong == 0, "%zu wrong elements", wrong);
    xm_update_destroy(update);
    xm_layout_destroy(src);
    xm_layout_destroy(dst);
    free(tile);
    xm_worker_destroy(worker, NULL);
    return 0;
}

START_TEST(large_chunks_do_not_share_a_buffer)
{
    local_job_run(RANKS, DEADLINE_S, send_large_chunks, NULL);
}
END_TEST

/* A commit that fails leaves every destination as it was; the next brings what both would have. */
static int fail_between(const xm_job_env_t *env, int listen_fd, void *arg)
{
    xm_worker_t *worker = join(env, listen_fd);
    random_t random = {43};

    (void)arg;
    for (uint64_t seed = 1; seed <= 5; ++seed) {
        xm_update_info_t info = XM_UPDATE_INFO_INIT;
        tensor_case_t c;
        char *before;

        open_case(worker, &random, NULL, &c);
        local_expect_ok(xm_update_create(worker, &c.params, &c.update));
        for (uint64_t version = 1; version <= 3; ++version) {
            next_version(worker, &c, seed, version);
            local_expect_ok(xm_update_commit(c.update, 0, NULL));
        }
        before = malloc(c.buffers.dst_bytes + 1);
        memcpy(before, c.buffers.dst, c.buffers.dst_bytes);
        next_version(worker, &c, seed, 4);
        if (env->rank == 1) { /* it takes its time; the others' deadline passes */
            local_expect(xm_update_commit(c.update, 1, &info) < 0, "a commit in the past");
        } else {
            local_expect(xm_update_commit(c.update, 1, &info) < 0, "a commit without rank 1");
        }
        local_expect(memcmp(before, c.buffers.dst, c.buffers.dst_bytes) == 0,
                     "rank %d was written by a commit that failed", env->rank);
        local_expect(xm_update_read_begin(c.update) == 3, "another version than before");
        next_version(worker, &c, seed, 5);
        local_expect_ok(xm_update_commit(c.update, 0, &info));
        local_expect(!info.everything && info.version == 4, "version %d", (int)info.version);
        check(worker, &c, 5);
        free(before);
        close_case(&c);
    }
    xm_worker_destroy(worker, NULL);
    return 0;
}

START_TEST(a_failed_commit_is_none)
{
    local_job_run(RANKS, DEADLINE_S, fail_between, NULL);
}
END_TEST

static int misuse(const xm_job_env_t *env, int listen_fd, void *arg)
{
    xm_worker_t *worker = join(env, listen_fd);
    random_t random = {47};
    xm_reshard_t *reshard = NULL;
    tensor_case_t c;

    (void)arg;
    local_expect_fails(xm_update_create(NULL, NULL, NULL), XM_ERR_INVALID_ARGUMENT,
                       "worker is NULL");
    local_expect_fails(xm_update_continue(worker, NULL, NULL, NULL), XM_ERR_INVALID_ARGUMENT,
                       "update is NULL");
    local_expect_fails(xm_update_commit(NULL, 0, NULL), XM_ERR_INVALID_ARGUMENT, "update is NULL");
    local_expect(xm_update_read_begin(NULL) == 0 && !xm_update_read_end(NULL, 0) &&
                     xm_update_plan(NULL) == NULL,
                 "what is no update has a version");
    xm_update_destroy(NULL);
    open_case(worker, &random, NULL, &c);
    c.params.verify = XM_VERIFY_OFF;
    local_expect_fails(env->rank == 2 ? xm_reshard_create(worker, &c.params, &reshard)
                                      : xm_update_create(worker, &c.params, &c.update),
                       XM_ERR_MISMATCH, "of what has changed");
    close_case(&c);
    xm_worker_destroy(worker, NULL);
    return 0;
}

START_TEST(what_is_no_update_is_told)
{
    local_job_run(RANKS, DEADLINE_S, misuse, NULL);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("update");
    TCase *tcase = tcase_create("all");

    tcase_set_timeout(tcase, 2 * DEADLINE_S);
    tcase_add_test(tcase, every_version_arrives);
    tcase_add_test(tcase, readers_see_one_version_at_a_time);
    tcase_add_test(tcase, large_chunks_do_not_share_a_buffer);
    tcase_add_test(tcase, a_failed_commit_is_none);
    tcase_add_test(tcase, what_is_no_update_is_told);
    suite_add_tcase(suite, tcase);
    tcase = tcase_create("cuda");
    tcase_set_timeout(tcase, 2 * DEADLINE_S);
    tcase_add_test(tcase, every_version_arrives_on_devices);
    suite_add_tcase(suite, tcase);
    return cuda_run(suite);
}
