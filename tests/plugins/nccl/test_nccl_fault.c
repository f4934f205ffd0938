/* SPDX-License-Identifier: Apache-2.0 */
/* The other process is killed: whatever waits for it ends with an error, soon. */
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "tests/plugins/nccl/net_pair.h"
#include "xm_test.h"

enum { MIB = 1 << 20, REQUESTS = 8 };
static const double soon_s = 5.0;

/* Both ends keep messages of a size going; then one of them is killed. */
static void killed(pair_t *pair, int victim, size_t size)
{
    uint8_t *bytes = malloc(REQUESTS * (size + 1));
    void *requests[REQUESTS];
    double begun;

    local_expect(bytes != NULL, "no memory");
    for (int i = 0; i < REQUESTS; ++i) {
        void *data = bytes + (size_t)i * size;
        int tag = 1;

        /* Of those that come first some meet their receive, the rest waits. */
        requests[i] = pair->rank == 0 ? pair_send(pair, data, size, i < 2 ? tag : 99)
                                      : pair_receive(pair, 1, &data, &size, &tag);
    }
    pair_ok(pair_wait(pair, requests[0], NULL));
    pair_meet(pair);
    if (pair->rank == victim) {
        pair->board->value = (int)(local_now() * 1e3);
        (void)raise(SIGKILL);
    }
    begun = local_now();
    for (int i = 1; i < REQUESTS; ++i) {
        nccl_result_t result = pair_wait(pair, requests[i], NULL);

        /* What is short has left the sender. */
        local_expect(result == NCCL_REMOTE || i == 1 || (pair->rank == 0 && size < MIB),
                     "request %d has ended with %d", i, (int)result);
    }
    local_expect(local_now() - begun < local_timeout(soon_s), "that took %.1f s",
                 local_now() - begun);
    if (getenv("TEST_VERBOSE") != NULL) {
        (void)fprintf(stderr, "noticed after %.3f s\n", local_now() - begun);
    }
    free(bytes);
}

static void sender_killed(pair_t *pair)
{
    killed(pair, 0, MIB);
}

static void receiver_killed(pair_t *pair)
{
    killed(pair, 1, MIB);
}

static void sender_of_short_ones_killed(pair_t *pair)
{
    killed(pair, 0, 100);
}

/* A listener's process dies while somebody connects to it. */
static void listener_killed(pair_t *pair)
{
    nccl_result_t result = NCCL_OK;
    void *comm = NULL;
    double begun;

    if (pair->rank == 1) {
        pair_ok(net_listen(&pair->net, pair->device, pair->board->handles[0], &pair->listener));
        pair_meet(pair);
        pair_meet(pair);
        (void)raise(SIGKILL);
    }
    pair_meet(pair);
    pair_ok(net_connect(&pair->net, pair->device, pair->board->handles[0], &comm));
    pair_meet(pair);
    begun = local_now();
    while (result == NCCL_OK) {
        local_expect(local_now() - begun < local_timeout(soon_s), "it is not noticed");
        result = net_connect(&pair->net, pair->device, pair->board->handles[0], &comm);
        local_expect(comm == NULL, "connected to nobody");
    }
    local_expect(result == NCCL_SYSTEM, "the connection has ended with %d", (int)result);
}

static const struct {
    pair_case_t *run;
    unsigned doomed;
    bool apart;
} rows[] = {{sender_killed, 1, false},
            {receiver_killed, 2, false},
            {sender_of_short_ones_killed, 1, false},
            {listener_killed, 2, true}};
enum { ROWS = sizeof(rows) / sizeof(rows[0]) };

START_TEST(on_one_host)
{
    pair_run(NET_NEWEST, PAIR_HOST, rows[_i].doomed, rows[_i].apart, rows[_i].run);
}
END_TEST

START_TEST(on_two_hosts)
{
    pair_run(NET_OLDEST, PAIR_HOSTS, rows[_i].doomed, rows[_i].apart, rows[_i].run);
}
END_TEST

START_TEST(over_two_nics)
{
    if (pair_can_be_machines()) {
        pair_run(11, PAIR_MACHINES, rows[_i].doomed, rows[_i].apart, rows[_i].run);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("nccl net, faults");
    TCase *tcase = tcase_create("killed");

    tcase_set_timeout(tcase, 60);
    tcase_add_loop_test(tcase, on_one_host, 0, ROWS);
    tcase_add_loop_test(tcase, on_two_hosts, 0, ROWS);
    tcase_add_loop_test(tcase, over_two_nics, 0, ROWS);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
