/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/worker/message.h"

#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include "comm/worker/worker.h"
#include "tests/comm/job/local_job.h"
#include "xm_test.h"

enum { DEADLINE_S = 60, LARGE = 3 << 20, ROUNDS = 20 };

static xm_worker_t *join(const xm_job_env_t *env, int listen_fd)
{
    xm_worker_params_t params = XM_WORKER_PARAMS_INIT;
    xm_worker_t *worker;

    params.listen_fd = listen_fd;
    params.timeout = DEADLINE_S;
    local_expect_ok(xm_worker_create(env, &params, &worker));
    return worker;
}

static xm_status_t wait_for(xm_worker_t *worker, xm_message_t *message)
{
    xm_status_t status;

    while ((status = xm_message_test(message)) == XM_IN_PROGRESS) {
        (void)xm_worker_wait(worker, xm_worker_deadline(worker));
    }
    return status;
}

static unsigned char pattern(int from, int to, int round, size_t i)
{
    return (unsigned char)(i * 31 + i / 251 + (size_t)(from * 7 + to * 13 + round * 17));
}

/* Everybody to everybody, several at once, small and large; the last posted is waited for first. */
static int exchange(const xm_job_env_t *env, int listen_fd, void *arg)
{
    xm_worker_t *worker = join(env, listen_fd);
    xm_message_t *messages[2][8][ROUNDS];
    unsigned char *buffers[2][8][ROUNDS];

    (void)arg;
    for (int peer = 0; peer < env->size; ++peer) {
        for (int round = 0; round < ROUNDS && peer != env->rank; ++round) {
            size_t length = round == 5 ? LARGE : (size_t)round * 37 + 1;

            for (int way = 0; way < 2; ++way) {
                buffers[way][peer][round] = malloc(length);
                local_expect(buffers[way][peer][round] != NULL, "no memory");
            }
            for (size_t i = 0; i < length; ++i) {
                buffers[0][peer][round][i] = pattern(env->rank, peer, round, i);
            }
            local_expect_ok(xm_message_receive(worker, peer, (uint64_t)round,
                                               buffers[1][peer][round], length,
                                               &messages[1][peer][round]));
            local_expect_ok(xm_message_send(worker, peer, (uint64_t)round, buffers[0][peer][round],
                                            length, &messages[0][peer][round]));
        }
    }
    for (int peer = env->size - 1; peer >= 0; --peer) {
        for (int round = ROUNDS - 1; round >= 0 && peer != env->rank; --round) {
            size_t length = round == 5 ? LARGE : (size_t)round * 37 + 1;

            for (int way = 0; way < 2; ++way) {
                local_expect_ok(wait_for(worker, messages[way][peer][round]));
                xm_message_destroy(messages[way][peer][round]);
            }
            for (size_t i = 0; i < length; ++i) {
                local_expect(buffers[1][peer][round][i] == pattern(peer, env->rank, round, i),
                             "byte %zu of message %d from rank %d is wrong", i, round, peer);
            }
            free(buffers[0][peer][round]);
            free(buffers[1][peer][round]);
        }
    }
    local_expect_ok(xm_worker_barrier(worker));
    xm_worker_destroy(worker, NULL);
    return 0;
}

START_TEST(everybody_to_everybody)
{
    local_job_run(4, DEADLINE_S, exchange, NULL);
}
END_TEST

static int refuse(const xm_job_env_t *env, int listen_fd, void *arg)
{
    xm_worker_t *worker = join(env, listen_fd);
    xm_message_t *message = NULL;
    char byte = 0, other = 0, two[2] = {0};
    uint64_t beyond = XM_MESSAGE_MAX_TAG + 1;

    (void)arg;
    local_expect_fails(xm_message_send(worker, env->rank, 0, &byte, 1, &message),
                       XM_ERR_INVALID_ARGUMENT, "of 2");
    local_expect_fails(xm_message_receive(worker, 2, 0, &byte, 1, &message),
                       XM_ERR_INVALID_ARGUMENT, "rank 2 of 2");
    local_expect_fails(xm_message_send(worker, 1 - env->rank, beyond, &byte, 1, &message),
                       XM_ERR_INVALID_ARGUMENT, "tag 1099511627776");
    local_expect_fails(xm_message_receive(worker, 1 - env->rank, 0, &byte, 0, &message),
                       XM_ERR_INVALID_ARGUMENT, "0 bytes");
    local_expect(message == NULL, "something was made");
    xm_message_destroy(NULL);

    /* A receive that nobody answers is given up, and its number serves again. */
    local_expect_ok(xm_message_receive(worker, 1 - env->rank, 9, &other, 1, &message));
    local_expect(xm_message_test(message) == XM_IN_PROGRESS, "something came");
    xm_message_destroy(message);
    local_expect_ok(xm_worker_barrier(worker));

    /* A message of another length is an error of the receive. */
    if (env->rank == 0) {
        local_expect_ok(xm_message_send(worker, 1, 10, two, 2, &message));
        local_expect_ok(wait_for(worker, message));
    } else {
        local_expect_ok(xm_message_receive(worker, 0, 10, &other, 1, &message));
        local_expect(wait_for(worker, message) < 0 && xm_last_error()[0] != '\0', "accepted");
    }
    xm_message_destroy(message);
    local_expect_ok(xm_worker_barrier(worker));
    xm_worker_destroy(worker, NULL);
    return 0;
}

START_TEST(bad_messages)
{
    local_job_run(2, DEADLINE_S, refuse, NULL);
}
END_TEST

/* Rank 1 dies while rank 0 waits for it. */
/* The death is known when the message is posted, or only later. */
static xm_status_t receive_from_the_dead(xm_worker_t *worker)
{
    xm_message_t *message;
    char byte;
    xm_status_t status = xm_message_receive(worker, 1, 0, &byte, 1, &message);

    if (status == XM_OK) {
        status = wait_for(worker, message);
        xm_message_destroy(message);
    }
    return status;
}

static int outlive(const xm_job_env_t *env, int listen_fd, void *arg)
{
    xm_worker_t *worker = join(env, listen_fd);

    (void)arg;
    local_expect_ok(xm_worker_barrier(worker));
    if (env->rank == 1) {
        (void)raise(SIGKILL);
    }
    local_expect_fails(receive_from_the_dead(worker), XM_ERR_PEER_DIED, "rank 1");
    xm_worker_destroy(worker, NULL);
    return 0;
}

START_TEST(a_death_ends_a_message)
{
    local_job_t job;

    local_job_start(&job, 2, 0, DEADLINE_S, outlive, NULL);
    local_job_wait(&job, 1u << 1);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("message");
    TCase *tcase = tcase_create("message");

    tcase_set_timeout(tcase, 3 * DEADLINE_S);
    tcase_add_test(tcase, everybody_to_everybody);
    tcase_add_test(tcase, bad_messages);
    tcase_add_test(tcase, a_death_ends_a_message);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
