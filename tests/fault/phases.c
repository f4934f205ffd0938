/* SPDX-License-Identifier: Apache-2.0 */
/* A rank hangs or dies at every moment at which the others are about to wait for it: while the
 * ranks meet, a worker or a reshard is made, a reshard runs, the group shrinks, the worker ends.
 * The linker puts these functions between a room and those of the next one that wait; whoever comes
 * through one is at a moment of its own. */
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <crossmesh/group.h>
#include <crossmesh/reshard.h>
#include "comm/fault.h"
#include "comm/job/bootstrap_link.h"
#include "comm/worker/worker.h"
#include "tests/comm/job/local_job.h"
#include "xm_test.h"

/* AT_ONCE: jobs beside each other, most of which wait. */
enum { RANKS = 4, PER_HOST = 2, DEADLINE_S = 90, MOMENTS = 64, AT_ONCE = 6 };
/* docs/failures.md promises this of the default settings. */
static const double hang_s = 4.0, death_s = 0.5;

/* What others get who wait for a rank that has not met them yet, and may just be late; and what
 * rank 0 gets besides to say whom it misses. */
static const double meet_s = 4.0, answer_s = 1.0;

enum { MEETING, CREATING, PLANNING, RUNNING, SHRINKING, CLOSING, PHASES };
static const char *const phases[PHASES] = {"meeting", "creating",  "planning",
                                           "running", "shrinking", "closing"};
/* What a rank does besides until the test sees that it knows: its machine's topology is read, it
 * opens another transport, it closes connections; and it waits for the processor. */
static const double besides_s[PHASES] = {0.5, 1.5, 0.5, 0.5, 5.0, 2.0};

typedef struct {
    int signal, victim;
    int strike_at;         /* the moment; 0: nothing happens */
    bool unmet;            /* that moment comes before all have met */
    int moments;           /* that the victim has come to … */
    int phase_of[MOMENTS]; /* … and where each was */
    double at;
    double knew[RANKS]; /* seconds after it until a call said so, or the rank was done */
} play_t;

static play_t *play; /* of this rank */
static int own, phase;

static void moment(void)
{
    if (play == NULL || own != play->victim || play->moments + 1 >= MOMENTS) {
        return;
    }
    play->phase_of[++play->moments] = phase;
    if (play->moments == play->strike_at) {
        play->at = local_now();
        (void)raise(play->signal);
    }
}

/* Of the frames by which ranks meet, the first two of each type: when the second is sent, some
 * ranks have had theirs and others have not. */
void __real_xm_bootstrap_link_send(xm_bootstrap_link_t *link, xm_bootstrap_type_t type,
                                   uint32_t sequence, const void *payload, size_t length);
void __wrap_xm_bootstrap_link_send(xm_bootstrap_link_t *link, xm_bootstrap_type_t type,
                                   uint32_t sequence, const void *payload, size_t length);
void __wrap_xm_bootstrap_link_send(xm_bootstrap_link_t *link, xm_bootstrap_type_t type,
                                   uint32_t sequence, const void *payload, size_t length)
{
    static int sent[XM_BOOTSTRAP_ALIVE + 1];

    if (phase == MEETING && ++sent[type] <= 2) {
        moment();
    }
    __real_xm_bootstrap_link_send(link, type, sequence, payload, length);
}

xm_status_t __real_xm_bootstrap_allgather(xm_bootstrap_t *bootstrap, const void *send,
                                          void *receive, size_t length, double timeout);
xm_status_t __wrap_xm_bootstrap_allgather(xm_bootstrap_t *bootstrap, const void *send,
                                          void *receive, size_t length, double timeout);
xm_status_t __wrap_xm_bootstrap_allgather(xm_bootstrap_t *bootstrap, const void *send,
                                          void *receive, size_t length, double timeout)
{
    phase = phase == MEETING ? CREATING : phase;
    moment();
    return __real_xm_bootstrap_allgather(bootstrap, send, receive, length, timeout);
}

xm_status_t __real_xm_bootstrap_allgatherv(xm_bootstrap_t *bootstrap, const void *send,
                                           size_t length, void **receive, size_t **offsets,
                                           double timeout);
xm_status_t __wrap_xm_bootstrap_allgatherv(xm_bootstrap_t *bootstrap, const void *send,
                                           size_t length, void **receive, size_t **offsets,
                                           double timeout);
xm_status_t __wrap_xm_bootstrap_allgatherv(xm_bootstrap_t *bootstrap, const void *send,
                                           size_t length, void **receive, size_t **offsets,
                                           double timeout)
{
    moment();
    return __real_xm_bootstrap_allgatherv(bootstrap, send, length, receive, offsets, timeout);
}

xm_status_t __real_xm_bootstrap_allgather_post(xm_bootstrap_t *bootstrap, const void *send,
                                               void *receive, size_t length);
xm_status_t __wrap_xm_bootstrap_allgather_post(xm_bootstrap_t *bootstrap, const void *send,
                                               void *receive, size_t length);
xm_status_t __wrap_xm_bootstrap_allgather_post(xm_bootstrap_t *bootstrap, const void *send,
                                               void *receive, size_t length)
{
    moment();
    return __real_xm_bootstrap_allgather_post(bootstrap, send, receive, length);
}

xm_status_t __real_xm_bootstrap_barrier(xm_bootstrap_t *bootstrap, double timeout);
xm_status_t __wrap_xm_bootstrap_barrier(xm_bootstrap_t *bootstrap, double timeout);
xm_status_t __wrap_xm_bootstrap_barrier(xm_bootstrap_t *bootstrap, double timeout)
{
    moment();
    return __real_xm_bootstrap_barrier(bootstrap, timeout);
}

xm_status_t __real_xm_detector_await(xm_detector_t *detector, xm_bootstrap_t *bootstrap,
                                     double timeout);
xm_status_t __wrap_xm_detector_await(xm_detector_t *detector, xm_bootstrap_t *bootstrap,
                                     double timeout);
xm_status_t __wrap_xm_detector_await(xm_detector_t *detector, xm_bootstrap_t *bootstrap,
                                     double timeout)
{
    moment();
    return __real_xm_detector_await(detector, bootstrap, timeout);
}

void __real_xm_ucx_destroy(xm_transport_t *transport);
void __wrap_xm_ucx_destroy(xm_transport_t *transport);
void __wrap_xm_ucx_destroy(xm_transport_t *transport)
{
    moment();
    __real_xm_ucx_destroy(transport);
}

/* A failure must name the victim, and nobody else. A rank that has not met the others may also be
 * late, or be rank 0 that nobody has heard. */
static void fails(xm_status_t status, const char *what)
{
    bool named, late = play->unmet && status == XM_ERR_TIMEOUT;
    char name[32];

    play->knew[own] = play->at > 0.0 ? local_now() - play->at : 0.0;
    (void)snprintf(name, sizeof(name), play->unmet && play->victim > 0 ? "missing: %d" : "rank %d",
                   play->victim);
    named = strstr(xm_last_error(), name) != NULL;
    (void)snprintf(name, sizeof(name), "rank %d (", play->victim);
    named = strstr(xm_last_error(), name) != NULL || (play->unmet && named);
    local_expect(play->at > 0.0 && (status == XM_ERR_PEER_DIED || late) && named,
                 "rank %d, %s %s, moment %d, %s: %s (%s)", own,
                 play->signal == SIGSTOP ? "hang" : "death", phases[phase], play->strike_at, what,
                 xm_status_string(status), xm_last_error());
}

/* Rows on all ranks become columns on all ranks. */
static xm_status_t reshard(xm_worker_t *worker, int runs)
{
    xm_layout_t *src, *dst;
    xm_tensor_t tensor;
    xm_reshard_params_t params = XM_RESHARD_PARAMS_INIT;
    xm_tensor_buffers_t buffers = {.dst = NULL};
    xm_reshard_t *made = NULL;
    xm_status_t status;
    char mesh[16];

    phase = PLANNING;
    (void)snprintf(mesh, sizeof(mesh), "%d", xm_worker_size(worker));
    local_expect_ok(xm_layout_parse("120x96", mesh, NULL, "S0R", XM_PARTITION_CHUNK, &src));
    local_expect_ok(xm_layout_parse("120x96", mesh, NULL, "RS0", XM_PARTITION_CHUNK, &dst));
    buffers.src_bytes = xm_layout_buffer_bytes(src, xm_worker_rank(worker), 4);
    buffers.dst_bytes = xm_layout_buffer_bytes(dst, xm_worker_rank(worker), 4);
    buffers.src = calloc(1, buffers.src_bytes);
    buffers.dst = calloc(1, buffers.dst_bytes);
    tensor = (xm_tensor_t){"matrix", src, dst, 32};
    params.tensors = &tensor;
    params.buffers = &buffers;
    params.dtype = "int32";
    status = xm_reshard_create(worker, &params, &made);
    phase = RUNNING;
    for (int run = 0; run < runs && status == XM_OK; ++run) {
        moment();
        status = xm_reshard_run(made, 0);
    }
    xm_reshard_destroy(made);
    xm_layout_destroy(src);
    xm_layout_destroy(dst);
    free((void *)(uintptr_t)buffers.src);
    free(buffers.dst);
    return status;
}

/* Whatever happens to the victim, the others go on without it; also when nothing has happened. */
static xm_status_t shrink(xm_worker_t *worker)
{
    phase = SHRINKING;
    moment();
    return xm_group_shrink(worker, 0.0);
}

static int live(const xm_job_env_t *env, int listen_fd, void *arg)
{
    xm_worker_params_t params = XM_WORKER_PARAMS_INIT;
    xm_worker_t *worker;
    xm_status_t status;
    char host[32];

    play = arg;
    own = env->rank;
    (void)snprintf(host, sizeof(host), "host%d", own / PER_HOST);
    params.listen_fd = listen_fd;
    params.host = host;
    if (play->unmet) { /* rank 0, which knows who is missing, shall be the first to speak */
        params.timeout = local_timeout(meet_s) + (own > 0 && play->victim > 0 ? 2.0 : 0.0);
    }
    moment();
    status = xm_worker_create(env, &params, &worker);
    if (status < 0) {
        fails(status, "create");
        return 0;
    }
    status = reshard(worker, 2);
    if (status == XM_OK) {
        status = xm_worker_barrier(worker);
    }
    if (status == XM_OK) {
        local_expect_ok(shrink(worker));
        if (play->at > 0.0) {
            play->knew[own] = local_now() - play->at;
        }
        status = reshard(worker, 1);
    }
    if (status < 0) {
        fails(status, "reshard");
        local_expect_ok(shrink(worker));
        local_expect_ok(reshard(worker, 1));
    }
    phase = CLOSING;
    moment();
    xm_worker_destroy(worker, NULL);
    if (play->at > 0.0 && play->knew[own] == 0.0) {
        play->knew[own] = local_now() - play->at;
    }
    return 0;
}

/* Waits for those that are not frozen, then for the victim. */
static void finish(local_job_t *job, const play_t *its)
{
    double end = local_now() + local_timeout(DEADLINE_S);
    bool left = true;

    while (left && local_now() < end) {
        left = false;
        for (int rank = 0; rank < RANKS; ++rank) {
            siginfo_t info = {.si_pid = 0};

            if (rank != its->victim || its->strike_at == 0) {
                ck_assert_int_eq(
                    waitid(P_PID, (id_t)job->pids[rank], &info, WEXITED | WNOHANG | WNOWAIT), 0);
                left = left || info.si_pid == 0;
            }
        }
        local_sleep(0.01);
    }
    if (its->strike_at > 0) {
        (void)kill(job->pids[its->victim], SIGKILL);
    }
    local_job_wait(job, its->strike_at > 0 ? 1u << its->victim : 0);
}

static void begin(local_job_t *job, play_t *its)
{
    local_job_start(job, RANKS, 0, DEADLINE_S, live, its);
}

static int by_size(const void *a, const void *b)
{
    return (*(const double *)a > *(const double *)b) - (*(const double *)a < *(const double *)b);
}

/* Strikes at every moment of a rank, some jobs at a time. */
static void strike_everywhere(int signal, double limit)
{
    static const int victims[] = {0, 3};
    play_t *plays = local_shared(sizeof(*plays) * AT_ONCE);
    local_job_t jobs[AT_ONCE];
    static double knew[PHASES][MOMENTS * RANKS * 2];
    int count[PHASES] = {0}, played = 0, late = 0;

    for (size_t v = 0; v < sizeof(victims) / sizeof(*victims); ++v) {
        int moments, met[MOMENTS];

        plays[0] = (play_t){.signal = signal, .victim = victims[v]};
        begin(&jobs[0], &plays[0]);
        finish(&jobs[0], &plays[0]);
        moments = plays[0].moments;
        memcpy(met, plays[0].phase_of, sizeof(met));
        ck_assert_int_gt(moments, 8);
        ck_assert_int_lt(moments, MOMENTS - 1);
        for (int first = 1; first <= moments; first += AT_ONCE) {
            int running = moments - first + 1 < AT_ONCE ? moments - first + 1 : AT_ONCE;

            for (int i = 0; i < running; ++i) {
                plays[i] = (play_t){.signal = signal, .victim = victims[v], .strike_at = first + i};
                plays[i].unmet = met[first + i] == MEETING;
                begin(&jobs[i], &plays[i]);
            }
            for (int i = 0; i < running; ++i) {
                finish(&jobs[i], &plays[i]);
            }
            for (int i = 0; i < running; ++i, ++played) {
                int where = plays[i].phase_of[plays[i].strike_at];
                double most = plays[i].unmet ? meet_s + answer_s : limit;

                ck_assert_double_gt(plays[i].at, 0.0);
                for (int rank = 0; rank < RANKS; ++rank) {
                    if (rank != victims[v]) {
                        knew[where][count[where]++] = plays[i].knew[rank];
                        late += plays[i].knew[rank] > local_timeout(most + besides_s[where]);
                        if (plays[i].knew[rank] > most + besides_s[where]) {
                            printf("rank %d, %s, moment %d: rank %d knew after %.3f s\n",
                                   victims[v], phases[where], plays[i].strike_at, rank,
                                   plays[i].knew[rank]);
                        }
                    }
                }
            }
        }
    }
    for (int p = 0; p < PHASES; ++p) {
        qsort(knew[p], (size_t)count[p], sizeof(knew[p][0]), by_size);
        if (count[p] > 0) {
            printf("%s while %s: the others knew after %.3f s (median), %.3f s (most) of %d\n",
                   signal == SIGSTOP ? "hang" : "death", phases[p], knew[p][count[p] / 2],
                   knew[p][count[p] - 1], count[p]);
        }
    }
    printf("%d jobs\n", played);
    ck_assert_msg(late == 0, "%d ranks knew later than after %g s", late, limit);
}

START_TEST(a_hang_is_known_everywhere)
{
    strike_everywhere(SIGSTOP, hang_s);
}
END_TEST

START_TEST(a_death_is_known_everywhere)
{
    strike_everywhere(SIGKILL, death_s);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("phases");
    TCase *tcase = tcase_create("phases");

    tcase_set_timeout(tcase, 4 * DEADLINE_S);
    tcase_add_test(tcase, a_hang_is_known_everywhere);
    tcase_add_test(tcase, a_death_is_known_everywhere);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
