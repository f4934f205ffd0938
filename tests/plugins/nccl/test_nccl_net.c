/* SPDX-License-Identifier: Apache-2.0 */
/* NCCL's network plugin by its tables: everything that NCCL does with one, between two processes.
 */
#include <arpa/inet.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/plugins/nccl/net_pair.h"
#include "tests/plugins/nccl/real_nccl.h"
#include "xm_test.h"

enum { MIB = 1 << 20, GUARD = 64, IN_FLIGHT = 32, GROUP = 8 };

static void *room(size_t size)
{
    void *memory = malloc(size);

    local_expect(memory != NULL, "no memory");
    return memory;
}

/* One message of each size; the receive may be larger, and nothing behind the message changes. */
static void transfer(pair_t *pair, size_t size, size_t more, bool registered)
{
    uint8_t *bytes = room(size + more + GUARD);
    void *mhandle = NULL, *request = NULL;
    int length = -1, tag = 7;
    double deadline = local_now() + local_timeout(30.0);

    memset(bytes, 0xee, size + more + GUARD);
    if (pair->rank == 0) {
        pair_fill(bytes, size, (uint32_t)size);
    }
    if (registered) {
        pair_ok(
            net_register(&pair->net, pair->comm, bytes, size + more, NCCL_POINTER_HOST, &mhandle));
    }
    while (request == NULL) {
        void *data = bytes;
        size_t all = size + more;

        local_expect(local_now() < deadline, "a message is not taken");
        if (pair->rank == 0) {
            pair_ok(net_send(&pair->net, pair->comm, bytes, size, tag, mhandle, NULL, &request));
        } else {
            pair_ok(net_receive(&pair->net, pair->comm, 1, &data, &all, &tag, &mhandle, NULL,
                                &request));
        }
    }
    pair_ok(pair_wait(pair, request, &length));
    local_expect(length == (int)size, "%d bytes, not %zu", length, size);
    pair_check(bytes, size, (uint32_t)size);
    if (pair->rank == 1) {
        for (size_t i = size; i < size + more + GUARD; ++i) {
            local_expect(bytes[i] == 0xee, "byte %zu behind a message of %zu has changed", i, size);
        }
        pair_ok(net_flush(&pair->net, pair->comm, bytes, (int)size, &request));
        local_expect(request == NULL, "a flush of host memory has something to do");
    }
    pair_ok(net_deregister(&pair->net, pair->comm, mhandle));
    free(bytes);
}

static void sizes(pair_t *pair)
{
    static const size_t list[] = {0,     1,     7,     239,    240, 241, 1000,       4096,
                                  20479, 20481, 65536, 100003, MIB, 0,   4 * MIB + 1};

    for (size_t i = 0; i < sizeof(list) / sizeof(list[0]); ++i) {
        transfer(pair, list[i], i % 3 == 0 ? 0 : 1000, i % 2 == 0);
    }
}

static void large(pair_t *pair)
{
    transfer(pair, 64 * (size_t)MIB, 0, true);
}

/* Receives of several messages at a time: tags say which is which, in whatever order they are sent,
 * also when a second group waits behind the first. */
static void groups(pair_t *pair)
{
    enum { ROUNDS = 6 };
    static const size_t lengths[GROUP] = {100, 0, 70000, 1, 300, 20000, 16, 500000};
    static const int order[GROUP] = {3, 7, 0, 5, 1, 6, 2, 4};
    uint8_t *bytes = room((size_t)ROUNDS * GROUP * MIB);
    void *requests[ROUNDS * GROUP];
    int count = 0;

    for (int round = 0; round < ROUNDS; ++round) {
        int group = round % GROUP + 1;
        void *data[GROUP];
        size_t room_of[GROUP];
        int tags[GROUP];

        for (int i = 0; i < group; ++i) {
            data[i] = bytes + (size_t)(round * GROUP + i) * MIB;
            room_of[i] = lengths[i] + 10;
            tags[i] = 40 + i;
        }
        if (pair->rank == 1) {
            requests[count++] = pair_receive(pair, group, data, room_of, tags);
            continue;
        }
        for (int k = 0; k < GROUP; ++k) {
            int i = order[k];

            if (i < group) {
                pair_fill(data[i], lengths[i], (uint32_t)(round * GROUP + i));
                requests[count++] = pair_send(pair, data[i], lengths[i], tags[i]);
            }
        }
    }
    for (int k = 0; k < count; ++k) {
        int got[GROUP];
        int group = k % GROUP + 1;

        pair_ok(pair_wait(pair, requests[k], got));
        for (int i = 0; i < group && pair->rank == 1; ++i) {
            local_expect(got[i] == (int)lengths[i], "slot %d of %d: %d bytes", i, group, got[i]);
            pair_check(bytes + (size_t)(k * GROUP + i) * MIB, lengths[i],
                       (uint32_t)(k * GROUP + i));
        }
    }
    free(bytes);
}

/* The same tag in a sender's second message does not overtake the group: what NCCL does when one of
 * several channels that share a connection is ahead. */
static void ahead(pair_t *pair)
{
    static const int tags_of_sends[] = {1, 1, 2, 2};
    uint8_t bytes[4][32];
    void *requests[4];

    if (pair->rank == 0) {
        for (int i = 0; i < 4; ++i) {
            pair_fill(bytes[i], sizeof(bytes[i]), (uint32_t)(10 * tags_of_sends[i] + i % 2));
            requests[i] = pair_send(pair, bytes[i], sizeof(bytes[i]), tags_of_sends[i]);
        }
        for (int i = 0; i < 4; ++i) {
            pair_ok(pair_wait(pair, requests[i], NULL));
        }
        return;
    }
    for (int group = 0; group < 2; ++group) {
        void *data[] = {bytes[2 * group], bytes[2 * group + 1]};
        size_t room_of[] = {32, 32};
        int tags[] = {1, 2};

        requests[group] = pair_receive(pair, 2, data, room_of, tags);
    }
    for (int group = 0; group < 2; ++group) {
        int got[2];

        pair_ok(pair_wait(pair, requests[group], got));
        pair_check(bytes[2 * group], 32, (uint32_t)(10 + group));
        pair_check(bytes[2 * group + 1], 32, (uint32_t)(20 + group));
    }
}

/* As many requests as NCCL ever has, over and over. */
static void in_flight(pair_t *pair)
{
    enum { ROUNDS = 4, SIZE = 60000 };
    uint8_t *bytes = room((size_t)IN_FLIGHT * SIZE);
    void *requests[IN_FLIGHT];

    for (int round = 0; round < ROUNDS; ++round) {
        for (int i = 0; i < IN_FLIGHT; ++i) {
            void *data = bytes + (size_t)i * SIZE;
            size_t size = (size_t)SIZE - (size_t)(i * 1800);
            int tag = 5;

            if (pair->rank == 0) {
                pair_fill(data, size, (uint32_t)(round * IN_FLIGHT + i));
                requests[i] = pair_send(pair, data, size, tag);
            } else {
                requests[i] = pair_receive(pair, 1, &data, &size, &tag);
            }
        }
        for (int k = 0; k < IN_FLIGHT; ++k) { /* in another order than they were started in */
            int i = (k * 11 + 3) % IN_FLIGHT, got = -1;

            pair_ok(pair_wait(pair, requests[i], &got));
            local_expect(got == SIZE - i * 1800, "%d bytes", got);
            pair_check(bytes + (size_t)i * SIZE, (size_t)got, (uint32_t)(round * IN_FLIGHT + i));
        }
    }
    free(bytes);
}

/* A receiver that comes late: the sender is told to wait, and nothing is lost. */
static void late_receiver(pair_t *pair)
{
    enum { MESSAGES = 700 };
    static void *requests[MESSAGES];
    static uint32_t words[MESSAGES];
    int tag = 9, started = 0, tested = 0;
    bool full = false;

    if (pair->rank == 0) {
        while (started < MESSAGES) {
            void *request = NULL;

            words[started] = (uint32_t)started * 17;
            pair_ok(
                net_send(&pair->net, pair->comm, &words[started], 4, tag, NULL, NULL, &request));
            if (request != NULL) {
                requests[started++] = request;
                continue;
            }
            if (!full) {
                full = true;
                local_expect(started < 300, "%d messages that nobody takes", started);
                pair_meet(pair);
            }
            if (tested < started) {
                pair_ok(pair_wait(pair, requests[tested++], NULL));
            }
        }
        while (tested < MESSAGES) {
            pair_ok(pair_wait(pair, requests[tested++], NULL));
        }
        return;
    }
    pair_meet(pair);
    for (int i = 0; i < MESSAGES; ++i) {
        uint32_t word = 0;
        void *data = &word;
        size_t size = sizeof(word);

        pair_ok(pair_wait(pair, pair_receive(pair, 1, &data, &size, &tag), NULL));
        local_expect(word == (uint32_t)i * 17, "message %d holds %u", i, word);
    }
}

/* What is sent is delivered although the sender closes at once. */
static void close_early(pair_t *pair)
{
    uint8_t bytes[1000];

    if (pair->rank == 0) {
        pair_fill(bytes, sizeof(bytes), 3);
        pair_ok(pair_wait(pair, pair_send(pair, bytes, sizeof(bytes), 1), NULL));
        pair_ok(net_close_send(&pair->net, pair->comm));
        pair->comm = NULL;
    } else {
        void *data = bytes;
        size_t size = sizeof(bytes);
        int tag = 1;

        local_sleep(0.1);
        pair_ok(pair_wait(pair, pair_receive(pair, 1, &data, &size, &tag), NULL));
        pair_check(bytes, sizeof(bytes), 3);
        /* Nothing comes any more. */
        pair_expect(pair_wait(pair, pair_receive(pair, 1, &data, &size, &tag), NULL), NCCL_REMOTE);
    }
}

/* The receiver closes while the sender has large messages under way. */
static void close_under_sends(pair_t *pair)
{
    uint8_t *bytes = room(8 * MIB);
    void *requests[4];
    int tag = 1;

    if (pair->rank == 0) {
        nccl_result_t last = NCCL_OK;

        pair_fill(bytes, 8 * MIB, 1);
        for (int i = 0; i < 4; ++i) {
            requests[i] = pair_send(pair, bytes + i * 2 * MIB, 2 * MIB, tag);
        }
        pair_meet(pair);
        for (int i = 0; i < 4; ++i) {
            last = pair_wait(pair, requests[i], NULL);
        }
        local_expect(last == NCCL_REMOTE, "the last send has ended with %d", (int)last);
    } else {
        void *data = bytes;
        size_t size = 2 * MIB;

        requests[0] = pair_receive(pair, 1, &data, &size, &tag);
        pair_meet(pair);
        pair_ok(net_close_receive(&pair->net, pair->comm));
        pair->comm = NULL;
        memset(bytes, 0x77, 8 * MIB); /* is ours again */
        local_sleep(0.2);
        for (size_t i = 0; i < 8 * MIB; ++i) {
            local_expect(bytes[i] == 0x77, "byte %zu was written after the close", i);
        }
    }
    free(bytes);
}

/* The sender closes while receives wait, and while its own sends do. */
static void close_under_receives(pair_t *pair)
{
    uint8_t *bytes = room(4 * MIB);
    int tag = 1;

    if (pair->rank == 0) {
        (void)pair_send(pair, bytes, MIB, 99); /* that nobody receives */
        pair_meet(pair);
        pair_ok(net_close_send(&pair->net, pair->comm));
        pair->comm = NULL;
    } else {
        void *requests[4];

        for (int i = 0; i < 4; ++i) {
            void *data = bytes + i * MIB;
            size_t size = MIB;

            requests[i] = pair_receive(pair, 1, &data, &size, &tag);
        }
        pair_meet(pair);
        for (int i = 0; i < 4; ++i) {
            pair_expect(pair_wait(pair, requests[i], NULL), NCCL_REMOTE);
        }
    }
    free(bytes);
}

/* A message that is longer than its receive ends both with an error, and is written nowhere. */
static void too_long(pair_t *pair)
{
    uint8_t bytes[512];
    void *data = bytes;
    size_t size = 200;
    int tag = 1;

    memset(bytes, 0x11, sizeof(bytes));
    if (pair->rank == 0) {
        uint8_t *much = room(MIB);

        memset(much, 0x22, MIB);
        pair_expect(pair_wait(pair, pair_send(pair, much, MIB, tag), NULL), NCCL_INTERNAL);
        local_expect(strstr(net_table_last_warning(), "longer than its receive") != NULL, "%s",
                     net_table_last_warning());
        free(much);
    } else {
        pair_expect(pair_wait(pair, pair_receive(pair, 1, &data, &size, &tag), NULL),
                    NCCL_INTERNAL);
        local_expect(strstr(net_table_last_warning(), "1048576 bytes") != NULL, "%s",
                     net_table_last_warning());
        for (size_t i = 0; i < sizeof(bytes); ++i) {
            local_expect(bytes[i] == 0x11, "byte %zu was written", i);
        }
    }
    pair_meet(pair);
}

/* Several connections by one listener, each with its own messages, whatever becomes of the others.
 */
static void reuse(pair_t *pair)
{
    void *comms[3];
    uint8_t bytes[3][5000];

    if (pair->rank == 1) {
        pair_ok(net_listen(&pair->net, pair->device, pair->board->handles[1], &pair->listener));
    }
    pair_meet(pair);
    for (int i = 0; i < 3; ++i) {
        comms[i] = pair_join(pair, pair->listener, 1);
    }
    for (int round = 0; round < 3; ++round) {
        for (int i = round; i < 3; ++i) {
            void *data = bytes[i];
            size_t size = sizeof(bytes[i]);
            int tag = 1;

            pair->comm = comms[i];
            if (pair->rank == 0) {
                pair_fill(bytes[i], size, (uint32_t)(round * 3 + i));
                pair_ok(pair_wait(pair, pair_send(pair, data, size, tag), NULL));
            } else {
                pair_ok(pair_wait(pair, pair_receive(pair, 1, &data, &size, &tag), NULL));
                pair_check(bytes[i], size, (uint32_t)(round * 3 + i));
            }
        }
        pair_ok(pair->rank == 0 ? net_close_send(&pair->net, comms[round])
                                : net_close_receive(&pair->net, comms[round]));
    }
    pair->comm = NULL;
}

/* Connections that were begun and are never finished, at both ends. */
static void abandoned(pair_t *pair)
{
    void *comm = NULL;

    if (pair->rank == 1) {
        pair_ok(net_listen(&pair->net, pair->device, pair->board->handles[1], &pair->listener));
        pair_meet(pair);
        for (int i = 0; i < 50; ++i) {
            pair_ok(net_accept(&pair->net, pair->listener, &comm));
            local_expect(comm == NULL, "a connection that nobody makes");
            local_sleep(0.001);
        }
    } else {
        pair_meet(pair);
        pair_ok(net_connect(&pair->net, pair->device, pair->board->handles[1], &comm));
    }
    pair_meet(pair);
}

/* Communicators have threads of their own, which connect and move messages at the same time. */
enum { THREADS = 4, THREAD_MESSAGES = 40 };

typedef struct {
    pair_t pair;
    int number;
} thread_t;

static void *thread_main(void *arg)
{
    thread_t *thread = arg;
    pair_t *pair = &thread->pair;
    uint8_t *bytes = room(100000);
    int tag = thread->number;

    pair->comm = pair_join(pair, pair->listener, thread->number);
    for (int i = 0; i < THREAD_MESSAGES; ++i) {
        size_t size = (size_t)((i * 7919 + thread->number * 104729) % 100000);
        uint32_t seed = (uint32_t)(i * THREADS + thread->number);
        void *data = bytes, *mhandle = NULL;

        pair_ok(net_register(&pair->net, pair->comm, bytes, 100000, NCCL_POINTER_HOST, &mhandle));
        if (pair->rank == 0) {
            pair_fill(bytes, size, seed);
            pair_ok(pair_wait(pair, pair_send(pair, data, size, tag), NULL));
        } else {
            pair_ok(pair_wait(pair, pair_receive(pair, 1, &data, &size, &tag), NULL));
            pair_check(bytes, size, seed);
        }
        pair_ok(net_deregister(&pair->net, pair->comm, mhandle));
    }
    pair_ok(pair->rank == 0 ? net_close_send(&pair->net, pair->comm)
                            : net_close_receive(&pair->net, pair->comm));
    free(bytes);
    return NULL;
}

static void threads(pair_t *pair)
{
    thread_t list[THREADS];
    pthread_t ids[THREADS];

    for (int i = 0; i < THREADS; ++i) {
        list[i] = (thread_t){.pair = *pair, .number = i};
        if (pair->rank == 1) {
            pair_ok(net_listen(&pair->net, pair->device, pair->board->handles[i],
                               &list[i].pair.listener));
        }
    }
    pair_meet(pair);
    for (int i = 0; i < THREADS; ++i) {
        local_expect(pthread_create(&ids[i], NULL, thread_main, &list[i]) == 0, "no thread");
    }
    for (int i = 0; i < THREADS; ++i) {
        local_expect(pthread_join(ids[i], NULL) == 0, "join");
        if (pair->rank == 1) {
            pair_ok(net_close_listen(&pair->net, list[i].pair.listener));
        }
    }
}

/* Where the listener is, from the handle: the port and the address behind the nonce. */
static int dial(const uint8_t *handle)
{
    struct sockaddr_in address = {.sin_family = AF_INET};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    local_expect(handle[26] == 4, "the first address is not of IPv4");
    address.sin_port = htons((uint16_t)(handle[24] | handle[25] << 8));
    memcpy(&address.sin_addr, handle + 27, 4);
    local_expect(fd >= 0 && connect(fd, (struct sockaddr *)&address, sizeof(address)) == 0,
                 "cannot connect");
    return fd;
}

/* Who does not have the handle is turned away, and the right one comes in all the same. */
static void strangers(pair_t *pair)
{
    uint8_t forged[NCCL_HANDLE_SIZE];
    void *comm = NULL;
    double deadline = local_now() + local_timeout(20.0);
    nccl_result_t result = NCCL_OK;
    int silent, loud;

    if (pair->rank == 1) {
        pair_ok(net_listen(&pair->net, pair->device, pair->board->handles[1], &pair->listener));
        pair_meet(pair);
        pair->comm = pair_join(pair, pair->listener, 1);
        transfer(pair, 1000, 0, false);
        return;
    }
    pair_meet(pair);
    memset(forged, 0, sizeof(forged));
    pair_expect(net_connect(&pair->net, pair->device, forged, &comm), NCCL_INTERNAL);
    memset(forged, 0xff, sizeof(forged));
    pair_expect(net_connect(&pair->net, pair->device, forged, &comm), NCCL_INTERNAL);
    silent = dial(pair->board->handles[1]);
    loud = dial(pair->board->handles[1]);
    local_expect(write(loud, "GET / HTTP/1.0\r\n\r\n", 18) == 18, "write");
    memcpy(forged, pair->board->handles[1], sizeof(forged));
    forged[8] ^= 1; /* the first byte of what only the owner of the handle knows */
    while (result == NCCL_OK) {
        local_expect(local_now() < deadline && comm == NULL, "the wrong one came in");
        result = net_connect(&pair->net, pair->device, forged, &comm);
    }
    pair->comm = pair_join(pair, NULL, 1);
    transfer(pair, 1000, 0, false);
    (void)close(silent);
    (void)close(loud);
}

/* What is not offered is refused by name. */
static void refusals(pair_t *pair)
{
    char bytes[64];
    void *mhandle = bytes, *request = NULL, *data[9];
    size_t room_of[9] = {0};
    int tags[9] = {0}, warnings = net_table_warnings(), expected;
    nccl_properties_v12_t properties;

    pair_expect(
        net_register(&pair->net, pair->comm, bytes, sizeof(bytes), NCCL_POINTER_CUDA, &mhandle),
        NCCL_INVALID_ARGUMENT);
    local_expect(mhandle == NULL, "a handle for refused memory");
    pair_expect(net_register_dmabuf(&pair->net, pair->comm, bytes, sizeof(bytes), &mhandle),
                NCCL_INVALID_ARGUMENT);
    local_expect(strstr(net_table_last_warning(), "DMA-BUF") != NULL, "%s",
                 net_table_last_warning());
    for (int i = 0; i < 9; ++i) {
        data[i] = bytes;
    }
    if (pair->rank == 1 && getenv("NCCL_LIBRARY") == NULL) { /* whose adapters have room for 8 */
        void *mhandles[9] = {NULL};

        pair_expect(
            net_receive(&pair->net, pair->comm, 9, data, room_of, tags, mhandles, NULL, &request),
            NCCL_INVALID_ARGUMENT);
    } else if (pair->rank == 0) {
        pair_expect(net_connect(&pair->net, 1000, pair->board->handles[0], &request),
                    NCCL_INVALID_ARGUMENT);
    }
    pair_expect(net_describe(&pair->net, -1, &properties), NCCL_INVALID_ARGUMENT);
    expected = pair->rank == 1 && getenv("NCCL_LIBRARY") != NULL ? 3 : 4;
    local_expect(net_table_warnings() == warnings + expected, "%d warnings",
                 net_table_warnings() - warnings);
    pair_meet(pair);
}

typedef struct {
    pair_case_t *run;
    bool apart;
} row_t;

static const row_t rows[] = {
    {sizes, false},
    {large, false},
    {groups, false},
    {ahead, false},
    {in_flight, false},
    {late_receiver, false},
    {close_early, false},
    {close_under_sends, false},
    {close_under_receives, false},
    {too_long, false},
    {reuse, true},
    {abandoned, true},
    {threads, true},
    {strangers, true},
    {refusals, false},
};
enum { ROWS = sizeof(rows) / sizeof(rows[0]) };

START_TEST(on_one_host)
{
    pair_run(NET_NEWEST, PAIR_HOST, 0, rows[_i].apart, rows[_i].run);
}
END_TEST

START_TEST(on_two_hosts)
{
    pair_run(11, PAIR_HOSTS, 0, rows[_i].apart, rows[_i].run);
}
END_TEST

START_TEST(over_two_nics)
{
    if (pair_can_be_machines()) {
        pair_run(11, PAIR_MACHINES, 0, rows[_i].apart, rows[_i].run);
    }
}
END_TEST

/* Every version does what NCCL of that version asks of it. */
static void everything(pair_t *pair)
{
    sizes(pair);
    groups(pair);
    in_flight(pair);
    refusals(pair);
}

START_TEST(every_version)
{
    if (getenv("NCCL_LIBRARY") != NULL && NET_OLDEST + _i > REAL_NCCL_TABLE) {
        return; /* it does not know that one */
    }
    pair_run(NET_OLDEST + _i, PAIR_HOST, 0, false, everything);
}
END_TEST

int main(void)
{
    const char *nccl = getenv("NCCL_LIBRARY");
    TCase *tcase, *versions;
    Suite *suite;

    if (nccl != NULL && !real_nccl_is_known(nccl)) {
        return 77;
    }
    suite = suite_create("nccl net");
    tcase = tcase_create("messages");
    versions = tcase_create("versions");
    tcase_set_timeout(tcase, 60);
    tcase_set_timeout(versions, 60);
    tcase_add_loop_test(tcase, on_one_host, 0, ROWS);
    tcase_add_loop_test(tcase, on_two_hosts, 0, ROWS);
    tcase_add_loop_test(tcase, over_two_nics, 0, ROWS);
    tcase_add_loop_test(versions, every_version, 0, NET_NEWEST - NET_OLDEST + 1);
    suite_add_tcase(suite, tcase);
    suite_add_tcase(suite, versions);
    return xm_test_run(suite);
}
