/* SPDX-License-Identifier: Apache-2.0 */
/* What profilers hear of the network plugin: an event for each NIC that carries a part of a
 * message. */
#include <stdio.h>
#include <string.h>

#include "tests/plugins/nccl/net_pair.h"
#include "xm_test.h"

enum { EVENTS = 64, MIB = 1 << 20 };

/* What the profiler has heard. */
static struct {
    int started, stopped;
    size_t bytes[2]; /* at the end, of either NIC */
    int devices[EVENTS], opcodes[EVENTS];
    size_t lengths[EVENTS];
    void *parents[EVENTS];
} heard;

static nccl_result_t listen_to(void **event, int type, void *phandle, int64_t plugin, void *data)
{
    const nccl_profiler_ib_v1_t *told = data;

    if (type == NCCL_EVENT_START) {
        int number = heard.started++;

        local_expect(plugin == ((1 << 16) | 1) && told->type == 1, "a start in another form");
        local_expect(number < EVENTS && *event == NULL, "too many events");
        heard.devices[number] = told->of.queue_pair.device;
        heard.opcodes[number] = told->of.queue_pair.opcode;
        heard.lengths[number] = told->of.queue_pair.length;
        heard.parents[number] = phandle;
        *event = &heard.lengths[number];
        return NCCL_OK;
    }
    local_expect(*event >= (void *)heard.lengths && *event < (void *)(heard.lengths + EVENTS),
                 "the end of an unknown event");
    if (type == NCCL_EVENT_UPDATE_AND_STOP) {
        *(size_t *)*event = told->of.queue_pair.length;
    } else {
        local_expect(type == NCCL_EVENT_STOP, "type %d", type);
    }
    ++heard.stopped;
    return NCCL_OK;
}

/* One message with a parent for its events, one without. */
static void exchange(pair_t *pair)
{
    uint8_t *bytes = malloc(2 * MIB);
    int parent;

    local_expect(bytes != NULL, "no memory");
    for (int i = 0; i < 2; ++i) {
        void *phandle = i == 0 ? &parent : NULL, *request = NULL, *data = bytes, *mhandle = NULL;
        size_t size = 2 * MIB;
        int tag = 1;

        while (request == NULL) {
            if (pair->rank == 0) {
                pair_ok(net_send(&pair->net, pair->comm, bytes, MIB, tag, NULL, phandle, &request));
            } else {
                pair_ok(net_receive(&pair->net, pair->comm, 1, &data, &size, &tag, &mhandle,
                                    &phandle, &request));
            }
        }
        local_expect(heard.started > 0 && heard.stopped == (i == 0 ? 0 : heard.started),
                     "%d events begun, %d ended", heard.started, heard.stopped);
        pair_ok(pair_wait(pair, request, NULL));
    }
    local_expect(heard.started == heard.stopped, "%d events begun, %d ended", heard.started,
                 heard.stopped);
    for (int i = 0; i < heard.started; ++i) {
        local_expect(heard.parents[i] == &parent, "an event of another parent");
        local_expect(heard.opcodes[i] == (pair->rank == 0 ? 2 : 128), "opcode %d",
                     heard.opcodes[i]);
    }
    free(bytes);
}

/* Starts the plugin once more, with a profiler this time. */
static void with_profiler(pair_t *pair)
{
    if (pair->net.version >= 10) {
        pair_ok(net_start(&pair->net, listen_to));
    }
}

static void inside_host(pair_t *pair)
{
    with_profiler(pair);
    exchange(pair);
    local_expect(heard.started == 1 && heard.devices[0] == -1 && heard.lengths[0] == MIB,
                 "%d events, the first of device %d with %zu bytes", heard.started,
                 heard.devices[0], heard.lengths[0]);
}

/* Two NICs in the proportion 2 : 1. */
static void two_nics(pair_t *pair)
{
    with_profiler(pair);
    exchange(pair);
    local_expect(heard.started == 2, "%d events", heard.started);
    local_expect(heard.lengths[0] + heard.lengths[1] == MIB, "%zu and %zu bytes", heard.lengths[0],
                 heard.lengths[1]);
    local_expect(heard.lengths[0] > MIB * 6 / 10 && heard.lengths[0] < MIB * 7 / 10,
                 "%zu and %zu bytes", heard.lengths[0], heard.lengths[1]);
}

/* Events of requests that a close ends are ended, too. */
static void closed(pair_t *pair)
{
    static uint8_t bytes[MIB];
    void *request = NULL, *mhandle = NULL, *data = bytes, *phandle = &data;
    size_t size = sizeof(bytes);
    int tag = 1;

    with_profiler(pair);
    pair_meet(pair); /* an end that is closed cannot be connected to */
    if (pair->rank == 1) {
        pair_ok(net_receive(&pair->net, pair->comm, 1, &data, &size, &tag, &mhandle, &phandle,
                            &request));
        local_expect(heard.started == 1 && heard.stopped == 0, "%d events", heard.started);
        pair_ok(net_close_receive(&pair->net, pair->comm));
        pair->comm = NULL;
        local_expect(heard.stopped == 1, "%d events ended", heard.stopped);
    }
    pair_meet(pair);
}

START_TEST(events)
{
    pair_run(10 + _i, PAIR_HOST, 0, false, inside_host);
}
END_TEST

START_TEST(events_of_nics)
{
    if (pair_can_be_machines()) {
        pair_run(11, PAIR_MACHINES, 0, false, two_nics);
    }
}
END_TEST

START_TEST(events_of_the_closed)
{
    pair_run(12, PAIR_HOST, 0, false, closed);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("nccl events");
    TCase *tcase = tcase_create("events");

    tcase_set_timeout(tcase, 60);
    tcase_add_loop_test(tcase, events, 0, 3);
    tcase_add_test(tcase, events_of_nics);
    tcase_add_test(tcase, events_of_the_closed);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
