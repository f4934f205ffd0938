/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A campaign of updates: two trainers commit version after version to up to three servers, which
 * are away for a while, die in commits, and come anew; some commits are dropped. After every commit
 * each server compares all of its tile, by its sum, with what the test works out by itself, and a
 * thread of it looks for a mixture of two versions meanwhile.
 *
 * Groups follow each other: the test says on a board who is in the next one, and these processes
 * meet there and go on from the updates that they had. Elements change by a rule that everybody
 * knows; some in every row are the number of the step, which is what the thread looks at.
 */
#include <crossmesh/update.h>
#include <errno.h>
#include <arpa/inet.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "comm/base/random.h"
#include "tests/comm/job/local_job.h"
#include "xm_test.h"

enum {
    TRAINERS = 2,
    SERVERS = 3,
    MEMBERS = TRAINERS + SERVERS,
    STAMP_ROWS = 8,  /* every so many rows … */
    STAMPS = 128,    /* … every so many elements are the step */
    GROUP_STEPS = 6, /* at most so many steps in a group */
    STEPS = 1000,
    REST = 10 /* a look's pause, in looks: three threads that only look leave nobody a processor */
};

/* What the test tells the processes, and they the test. */
typedef struct {
    int64_t rows, columns;
    double limit;           /* seconds that a process may take between two agreements */
    atomic_int group, over; /* number of the group that meets */
    atomic_int port;
    int size, member[MEMBERS]; /* in the order of its ranks */
    int steps;                 /* of the group … */
    int first_step;            /* … and those before it */
    int doomed, doomed_at;     /* a member that dies in that step of the group; −1: nobody does */
    unsigned dropped;          /* bits of its steps whose commits are given up at once */
    uint64_t sum[STEPS + 1];   /* of all elements, after each step … */
    atomic_int known;          /* … up to this one */
    atomic_int left[MEMBERS];  /* the last group that each has done with */
    atomic_int commits, failed, compared, caught_up, joined, looks, mixed;
} board_t;

/* A process. */
typedef struct {
    board_t *board;
    int id;
    int64_t first_row, rows; /* of its tile */
    uint16_t *tile;
    int at; /* servers: the step that the tile should be */
    uint64_t version;
    xm_update_t *update;
    pthread_mutex_t looking; /* for the update: the thread's looks and its replacement */
    atomic_bool over;
} member_t;

static uint64_t mix(uint64_t a, uint64_t b)
{
    return xm_random_of(xm_random_of(a) ^ b);
}

/* Elements of a million that change in a step. */
static uint64_t density(int step)
{
    static const uint64_t of[] = {0, 200, 2000, 10000, 10000, 30000, 30000, 100000, 500000};

    return of[mix(1, (uint64_t)step) % (sizeof(of) / sizeof(*of))];
}

/* A sum of all elements, to which a word that is wrong or in another place adds something else. */
static uint64_t sum_of(const board_t *board, const uint16_t *tile)
{
    uint64_t sum = 0;

    for (uint64_t w = 0; w < (uint64_t)(board->rows * board->columns) / 4; ++w) {
        uint64_t value;

        memcpy(&value, tile + 4 * w, sizeof(value));
        value = (value ^ w * XM_GOLDEN) * UINT64_C(0xbf58476d1ce4e5b9);
        sum += (value ^ value >> 32) * UINT64_C(0x94d049bb133111eb);
    }
    return sum;
}

/* Makes rows of step `step` out of those of the step before. */
static void change(const board_t *board, int64_t first, int64_t rows, int step, uint16_t *tile)
{
    const uint64_t columns = (uint64_t)board->columns, share = density(step) * columns;

    for (int64_t r = 0; r < rows; ++r, tile += columns) {
        uint64_t seed = mix((uint64_t)step, (uint64_t)(first + r)), count = share / 1000000;

        count += seed % 1000000 < share % 1000000;
        for (uint64_t i = 0; i < count; ++i) {
            uint64_t pick = xm_random_of(seed + i);

            tile[(pick & 0xffffffff) * columns >> 32] = (uint16_t)(pick >> 48);
        }
        for (uint64_t c = 0; (first + r) % STAMP_ROWS == 0 && c < columns; c += STAMPS) {
            tile[c] = (uint16_t)step;
        }
    }
}

/* ---- A server's thread ----------------------------------------------------------------------- */

static bool is_one_step(const member_t *self)
{
    const volatile uint16_t *tile = self->tile;
    const int64_t columns = self->board->columns;
    bool same = true;

    for (int64_t r = 0; r < self->rows; r += STAMP_ROWS) {
        for (int64_t c = 0; c < columns; c += STAMPS) {
            same = same && tile[r * columns + c] == tile[0];
        }
    }
    return same;
}

static void *look(void *arg)
{
    member_t *self = arg;

    while (!atomic_load(&self->over)) {
        double start = local_now();

        (void)pthread_mutex_lock(&self->looking);
        if (self->update != NULL) {
            uint64_t version = xm_update_read_begin(self->update);
            bool same = version == 0 || is_one_step(self);

            if (version != 0 && xm_update_read_end(self->update, version)) {
                (void)atomic_fetch_add(&self->board->looks, 1);
                (void)atomic_fetch_add(&self->board->mixed, !same);
            }
        }
        (void)pthread_mutex_unlock(&self->looking);
        local_sleep(1e-4 + REST * (local_now() - start));
    }
    return NULL;
}

/* ---- A group --------------------------------------------------------------------------------- */

static xm_worker_t *meet(board_t *board, int rank)
{
    xm_worker_params_t params = XM_WORKER_PARAMS_INIT;
    xm_job_env_t env = {.rank = rank, .size = board->size, .master_addr = "127.0.0.1"};
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof(address);
    xm_worker_t *worker;
    char host[32];

    params.listen_fd = -1;
    if (rank == 0) {
        params.listen_fd = socket(AF_INET, SOCK_STREAM, 0);
        local_expect(bind(params.listen_fd, (struct sockaddr *)&address, length) == 0 &&
                         listen(params.listen_fd, MEMBERS) == 0 &&
                         getsockname(params.listen_fd, (struct sockaddr *)&address, &length) == 0,
                     "no port: errno %d", errno);
        atomic_store(&board->port, ntohs(address.sin_port));
    }
    local_await(&board->port, 1);
    env.master_port = atomic_load(&board->port);
    (void)snprintf(host, sizeof(host), "host%d", rank / TRAINERS);
    params.host = host;
    params.timeout = board->limit;
    local_expect_ok(xm_worker_create(&env, &params, &worker));
    return worker;
}

/* Rows of the trainers to all servers, each of which has all of it. */
static void go_on(member_t *self, xm_worker_t *worker)
{
    const board_t *board = self->board;
    xm_reshard_params_t params = XM_RESHARD_PARAMS_INIT;
    size_t bytes = (size_t)(self->rows * board->columns) * sizeof(*self->tile);
    xm_tensor_buffers_t tiles = {0};
    xm_tensor_t tensor = {"weights", NULL, NULL, 16};
    xm_update_t *next = NULL;
    xm_layout_t *src, *dst;
    char shape[64], mesh[16], ranks[32];

    (void)snprintf(shape, sizeof(shape), "%dx%d", (int)board->rows, (int)board->columns);
    (void)snprintf(mesh, sizeof(mesh), "%d", board->size - TRAINERS);
    (void)snprintf(ranks, sizeof(ranks), "%d-%d", TRAINERS, board->size - 1);
    local_expect_ok(xm_layout_parse(shape, "2", "0-1", "S0R", XM_PARTITION_CHUNK, &src));
    local_expect_ok(xm_layout_parse(shape, mesh, ranks, "RR", XM_PARTITION_CHUNK, &dst));
    tensor.src = src;
    tensor.dst = dst;
    if (self->id < TRAINERS) {
        tiles = (xm_tensor_buffers_t){self->tile, bytes, NULL, 0};
    } else {
        tiles = (xm_tensor_buffers_t){NULL, 0, self->tile, bytes};
    }
    params.tensors = &tensor;
    params.buffers = &tiles;
    local_expect_ok(xm_update_continue(worker, &params, self->update, &next));
    (void)pthread_mutex_lock(&self->looking);
    xm_update_destroy(self->update);
    self->update = next;
    (void)pthread_mutex_unlock(&self->looking);
    xm_layout_destroy(src);
    xm_layout_destroy(dst);
}

static void *die(void *arg)
{
    local_sleep((double)(mix((uint64_t)getpid(), *(uint64_t *)arg) % 12000) * 1e-6);
    (void)kill(getpid(), SIGKILL);
    return NULL;
}

/* What a server has must be what its version should be: that of `step`, if the commit has come to
 * an end here, and otherwise still the one before. */
static void compare(member_t *self, int step, bool whole)
{
    board_t *board = self->board;
    uint64_t version = xm_update_read_begin(self->update);

    local_expect(!whole || version > self->version, "version %d after %d", (int)version,
                 (int)self->version);
    if (version > self->version) {
        (void)atomic_fetch_add(&board->joined, self->version == 0);
        (void)atomic_fetch_add(&board->caught_up, self->version > 0 && version > self->version + 1);
        self->at = step;
    }
    local_expect(version == 0 || version >= self->version, "version %d after %d", (int)version,
                 (int)self->version);
    self->version = version;
    if (version > 0) {
        local_await(&board->known, self->at);
        local_expect(sum_of(board, self->tile) == board->sum[self->at],
                     "server %d is not at step %d, version %d", self->id, self->at, (int)version);
        (void)atomic_fetch_add(&board->compared, 1);
    }
}

static void run_group(member_t *self, int rank)
{
    board_t *board = self->board;
    xm_worker_t *worker = meet(board, rank);
    uint64_t group = (uint64_t)atomic_load(&board->group);
    xm_status_t status = XM_OK;
    bool may_fail = false;
    int ended = board->first_step;
    pthread_t killer;

    go_on(self, worker);
    for (int s = 0; s < board->steps; ++s) {
        bool drop = (board->dropped >> s & 1) != 0;
        int step = board->first_step + s + 1;

        /* Whoever gives up a commit may have to give up connections too, which ends the group. */
        may_fail = may_fail || drop || board->doomed >= 0;
        if (self->id < TRAINERS) {
            change(board, self->first_row, self->rows, step, self->tile);
        }
        if (self->id == board->doomed && s == board->doomed_at) {
            local_expect(pthread_create(&killer, NULL, die, &group) == 0, "no thread");
        }
        if (status < 0) {
            continue;
        }
        ended = step;
        status = xm_update_commit(self->update, drop ? 1 : 0, NULL);
        local_expect(!drop || status < 0, "a commit in the past");
        local_expect(status == XM_OK || may_fail, "member %d, step %d: %s", self->id, step,
                     xm_last_error());
        if (rank == 0) {
            (void)atomic_fetch_add(status == XM_OK ? &board->commits : &board->failed, 1);
        }
        if (self->id >= TRAINERS) {
            compare(self, step, status == XM_OK);
        }
        status = drop ? XM_OK : status;
    }
    if (rank == 0) {
        (void)atomic_fetch_add(&board->failed, board->first_step + board->steps - ended);
    }
    xm_worker_destroy(worker, NULL);
}

static void live(board_t *board, int id)
{
    member_t self = {.board = board, .id = id, .rows = board->rows};
    int group = atomic_load(&board->left[id]);
    pthread_t looker;

    if (id < TRAINERS) {
        self.rows = board->rows / TRAINERS;
        self.first_row = id * self.rows;
    }
    self.tile = calloc((size_t)(self.rows * board->columns), sizeof(*self.tile));
    local_expect(self.tile != NULL, "no memory");
    (void)pthread_mutex_init(&self.looking, NULL);
    local_expect(id < TRAINERS || pthread_create(&looker, NULL, look, &self) == 0, "no thread");
    while (!atomic_load(&board->over)) {
        int now = atomic_load(&board->group);

        for (int rank = 0; now != group && rank < board->size; ++rank) {
            if (board->member[rank] == id) {
                run_group(&self, rank);
            }
        }
        group = now;
        atomic_store(&board->left[id], group);
        local_sleep(1e-3);
    }
    atomic_store(&self.over, true);
    if (id >= TRAINERS) {
        (void)pthread_join(looker, NULL);
    }
    xm_update_destroy(self.update);
    free(self.tile);
}

/* ---- The test -------------------------------------------------------------------------------- */

static pid_t start(board_t *board, int id)
{
    pid_t parent = getpid(), pid;

    atomic_store(&board->left[id], atomic_load(&board->group));
    (void)fflush(NULL);
    pid = fork();
    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() == parent) {
            live(board, id);
        }
        _exit(0);
    }
    return pid;
}

/* Who meets next, and what happens to them: servers stay away, and few die. */
static void plan_group(board_t *board, const pid_t *pids, uint64_t number, int total)
{
    uint64_t luck = mix(7, number);

    board->first_step += board->steps;
    board->steps = 1 + (int)(luck % GROUP_STEPS);
    if (board->steps > total - board->first_step) {
        board->steps = total - board->first_step;
    }
    board->size = TRAINERS;
    board->member[0] = 0;
    board->member[1] = 1;
    for (int id = TRAINERS; id < MEMBERS; ++id) {
        bool last = id == MEMBERS - 1 && board->size == TRAINERS;

        if (pids[id] > 0 && (last || (luck >> (8 + 2 * id)) % 4 != 0)) {
            board->member[board->size++] = id;
        }
    }
    board->doomed = -1;
    board->dropped = 0;
    for (int s = 0; s < board->steps; ++s) {
        uint64_t chance = mix(luck, (uint64_t)s) % 1000;

        board->dropped |= (unsigned)(chance >= 960) << s;
        if ((chance < 10 * GROUP_STEPS / 2 || number == 4 || number == 8) &&
            board->size > TRAINERS + 1 && s == board->steps - 1) {
            board->doomed = board->member[board->size - 1];
            board->doomed_at = s;
            board->dropped &= ~(1u << s);
        }
    }
}

/* Waits until all of the group are done with it; who has died meanwhile is nobody's any more. */
static void await_group(board_t *board, pid_t *pids)
{
    double deadline = local_now() + local_timeout(3.0 * board->limit);
    int group = atomic_load(&board->group), left = 1;

    while (left > 0) {
        left = 0;
        for (int id = 0; id < MEMBERS; ++id) {
            int status = 0;

            if (pids[id] > 0 && waitpid(pids[id], &status, WNOHANG) == pids[id]) {
                ck_assert_msg(id == board->doomed && WIFSIGNALED(status), "member %d has ended: %d",
                              id, status);
                pids[id] = 0;
            }
            left += pids[id] > 0 && atomic_load(&board->left[id]) != group;
        }
        ck_assert_msg(local_now() < deadline, "group %d does not end", group);
        local_sleep(1e-3);
    }
    if (board->doomed >= 0 && pids[board->doomed] > 0) { /* it has survived its last commit */
        (void)kill(pids[board->doomed], SIGKILL);
        (void)waitpid(pids[board->doomed], NULL, 0);
        pids[board->doomed] = 0;
    }
}

START_TEST(a_thousand_versions)
{
    const int total = xm_test_rounds(STEPS);
    board_t *board = local_shared(sizeof(*board));
    pid_t pids[MEMBERS] = {0};
    uint16_t *expected;
    int deaths = 0;

    board->rows = board->columns = getenv("TEST_SHARE") != NULL ? 1024 : 10000;
    board->limit = getenv("TEST_SHARE") != NULL ? 60 : 300;
    board->doomed = -1;
    expected = calloc((size_t)(board->rows * board->columns), sizeof(*expected));
    ck_assert_ptr_nonnull(expected);
    ck_assert_int_le(total, STEPS);
    for (uint64_t number = 0; board->first_step + board->steps < total; ++number) {
        for (int id = 0; id < MEMBERS;
             ++id) { /* the last one comes at once, so there is a server */
            if (pids[id] == 0 &&
                (number == 0 || id == MEMBERS - 1 || mix(number, (uint64_t)id) % 3 == 0)) {
                pids[id] = start(board, id);
            }
        }
        plan_group(board, pids, number, total);
        atomic_store(&board->port, 0);
        (void)atomic_fetch_add(&board->group, 1);
        for (int step = board->first_step + 1; step <= board->first_step + board->steps; ++step) {
            change(board, 0, board->rows, step, expected);
            board->sum[step] = sum_of(board, expected);
            atomic_store(&board->known, step);
        }
        await_group(board, pids);
        deaths += board->doomed >= 0;
        if ((board->first_step + board->steps) / 100 > board->first_step / 100) {
            (void)fprintf(stderr, "%d steps\n", board->first_step + board->steps);
        }
    }
    free(expected);
    atomic_store(&board->over, 1);
    for (int id = 0; id < MEMBERS; ++id) {
        int status = 0;

        ck_assert(pids[id] == 0 || (waitpid(pids[id], &status, 0) == pids[id] && status == 0));
    }
    (void)fprintf(stderr,
                  "%d steps: %d commits, %d that failed, %d deaths; tiles compared %d times; %d "
                  "servers came, %d caught up; %d looks, %d of them saw a mixture\n",
                  total, board->commits, board->failed, deaths, board->compared, board->joined,
                  board->caught_up, board->looks, board->mixed);
    ck_assert_int_eq(board->mixed, 0);
    ck_assert_int_eq(board->commits + board->failed, total);
    ck_assert(board->looks > 0 && board->compared >= board->commits &&
              board->joined >= SERVERS - 1);
    ck_assert(total < 100 || (deaths > 0 && board->caught_up > 0 && board->failed > 0));
    exit(EXIT_SUCCESS); /* libcheck cannot tell the time of what returns after 2^31 us */
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("campaign");
    TCase *tcase = tcase_create("all");

    tcase_set_timeout(tcase, 3 * 3600);
    tcase_add_test(tcase, a_thousand_versions);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
