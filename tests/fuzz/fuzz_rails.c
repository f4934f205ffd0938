/* SPDX-License-Identifier: Apache-2.0 */
/* Whatever frames a peer may send over two lanes, in whatever order, between posts, cancels, losses
 * of lanes and progress: nothing is read or written outside of the buffers, every operation ends
 * exactly once, and a receive that ends well has bytes of one length. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/transport/rails/rails.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { LANES = 2, OPS = 12, MOST = 700, EAGER = 64, TAGS = 3, SEGMENTS = 5000 };

static void expect(bool condition)
{
    if (!condition) {
        abort();
    }
}

typedef struct {
    const uint8_t *bytes;
    size_t left;
} input_t;

static unsigned take(input_t *input)
{
    unsigned byte = input->left > 0 ? *input->bytes : 0;

    input->bytes += input->left > 0;
    input->left -= input->left > 0;
    return byte;
}

typedef struct {
    xm_op_t op;
    uint8_t *buffer; /* exactly as long as the message */
    bool in_flight;
} slot_t;

typedef struct {
    xm_rails_transport_t rails;
    xm_rails_peer_t peers[2];
    slot_t slots[OPS];
    int64_t now;
} end_t;

static void done(xm_op_t *op, xm_status_t status)
{
    slot_t *slot = op->arg;

    (void)status;
    expect(slot->in_flight);
    slot->in_flight = false;
    free(slot->buffer);
    slot->buffer = NULL;
}

/* A lane reads all bytes of a packet, and has sent them. */
static void post(xm_rails_peer_t *peer, int lane, xm_rails_packet_t *packet)
{
    volatile uint8_t sum = 0;

    (void)peer;
    (void)lane;
    for (size_t i = 0; packet->bytes != NULL && i < packet->length; ++i) {
        sum = (uint8_t)(sum + packet->bytes[i]);
    }
    xm_rails_frame_encode(&packet->frame, packet->head);
    xm_rails_sent(packet, true);
}

static bool join(xm_rails_peer_t *peer)
{
    peer->connected = true;
    return true;
}

static bool attempt(xm_rails_peer_t *peer, int lane)
{
    (void)peer;
    (void)lane;
    return true;
}

static void retire(xm_rails_peer_t *peer, int lane)
{
    (void)peer;
    (void)lane;
}

static unsigned down(xm_rails_transport_t *self)
{
    (void)self;
    return 0;
}

/* Nothing is registered with anything. */
static xm_status_t hold(xm_rails_transport_t *self, void *buffer, size_t length, bool written,
                        xm_memory_t **memory)
{
    (void)self;
    (void)buffer;
    (void)length;
    (void)written;
    (void)memory;
    return XM_OK;
}

static void release(xm_rails_transport_t *self, xm_memory_t *memory)
{
    (void)self;
    (void)memory;
}

static uint32_t key(const xm_memory_t *memory, int rail)
{
    (void)memory;
    return (uint32_t)rail;
}

static void told(xm_rails_peer_t *peer, const xm_rails_frame_t *frame)
{
    (void)peer;
    (void)frame;
}

/* The whole place is written, so that one that is too large is found. */
static void fetch(xm_rails_peer_t *peer, int lane, const void *bytes, void *to,
                  xm_rails_fetch_t *wanted)
{
    (void)peer;
    (void)lane;
    (void)bytes;
    memset(to, 1, wanted->length);
    xm_rails_fetched(wanted, NULL);
}

static const xm_rails_lanes_t lanes = {.post = post,
                                       .connect = join,
                                       .attempt = attempt,
                                       .ready = attempt,
                                       .retire = retire,
                                       .down = down,
                                       .hold = hold,
                                       .release = release,
                                       .key = key,
                                       .told = told,
                                       .fetch = fetch};

static int64_t now(const xm_transport_t *transport)
{
    return ((const end_t *)transport)->now;
}

static const xm_transport_ops_t ops = {.name = "fuzz", .now = now};

/* A time passes between two looks, so that silence and comebacks happen as well. */
static void progress(end_t *end, unsigned steps)
{
    end->now += (int64_t)steps * 1000000;
    end->rails.clock = end->now;
    xm_rails_failover_look(&end->rails);
    xm_rails_progress(&end->rails);
    (void)xm_rails_deliver(&end->rails);
}

static void post_one(end_t *end, input_t *input, bool sends)
{
    slot_t *slot = &end->slots[take(input) % OPS];
    size_t length = 1 + take(input) * 3u % MOST;
    uint64_t tag = take(input) % TAGS;
    xm_rails_peer_t *peer = &end->peers[1];
    xm_status_t status;

    if (slot->in_flight || xm_rails_check(&end->rails, 1, tag, slot, length, &slot->op) < 0) {
        return;
    }
    slot->buffer = calloc(1, length);
    expect(slot->buffer != NULL);
    slot->op.done = done;
    slot->op.arg = slot;
    slot->in_flight = true;
    status = sends ? xm_rails_send(peer, tag, slot->buffer, length, NULL, &slot->op)
                   : xm_rails_receive(peer, tag, slot->buffer, length, NULL, &slot->op);
    if (status != XM_IN_PROGRESS) {
        done(&slot->op, status);
    }
}

/* A frame as it comes off the wire: through its encoding, with bytes of any number behind. */
static void hear(end_t *end, input_t *input)
{
    xm_rails_frame_t frame = {.kind = (xm_rails_frame_kind_t)(1 + take(input) % 11), .sender = 1};
    unsigned lane = take(input) % LANES, flags = take(input);
    uint8_t head[XM_RAILS_FRAME_SIZE], *bytes = NULL;
    size_t length = 0;

    frame.message = take(input) % 32;
    frame.tag = take(input) % TAGS;
    frame.length = 1 + take(input) * 3u % MOST;
    frame.offset = (flags & 1) != 0 ? XM_RAILS_FRAME_ALL : (uint64_t)take(input) * EAGER / 4;
    frame.chunk = 1 + take(input);
    frame.credits = (uint16_t)take(input);
    frame.length = (flags & 2) != 0 ? UINT64_MAX - take(input) : frame.length;
    frame.message = (flags & 4) != 0 ? UINT64_MAX - take(input) : frame.message;
    for (int i = 0; i < LANES && (flags & 8) != 0; ++i) {
        frame.life[i] = (uint8_t)take(input);
    }
    xm_rails_frame_encode(&frame, head);
    if (xm_rails_frame_decode(head, sizeof(head), &frame) < 0) {
        return;
    }
    length = (flags & 16) != 0 ? (size_t)take(input) * 3 : (size_t)(frame.length % SEGMENTS);
    length = frame.kind == XM_RAILS_FRAME_CHUNK && (flags & 16) == 0 ? take(input) : length;
    if (length > 0) {
        bytes = calloc(1, length);
        expect(bytes != NULL);
    }
    xm_rails_hear(&end->peers[1], (int)lane, &frame, bytes, length);
    free(bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const uint64_t rates[LANES] = {1, 1};
    input_t input = {data, size};
    end_t *end = calloc(1, sizeof(*end));
    xm_rails_way_t way;

    (void)setenv("XM_LOG", "error", 1); /* each loss of a lane is a warning */
    expect(end != NULL && xm_rails_begin(&end->rails, 0, 2));
    end->rails.base.ops = &ops;
    end->rails.lanes = &lanes;
    end->rails.nic_count = LANES;
    end->rails.failover = true;
    end->rails.rail_timeout = 100000000;
    end->now = 1;
    for (int rank = 0; rank < 2; ++rank) {
        xm_rails_peer_t *peer = &end->peers[rank];

        end->rails.peers[rank] = peer;
        peer->owner = &end->rails;
        peer->rank = rank;
        xm_list_init(&peer->in_flight);
        xm_stripe_make(&peer->stripe, rates, rates, LANES);
    }
    for (int lane = 0; lane < LANES; ++lane) {
        end->rails.nics[lane].name = "nic";
    }
    way = (xm_rails_way_t)(take(&input) % 3);
    expect(xm_rails_open(&end->peers[1], way, EAGER) == XM_OK);
    while (input.left > 0) {
        unsigned what = take(&input) % 8;

        if (what < 4) {
            hear(end, &input);
        } else if (what < 6) {
            post_one(end, &input, what == 4);
        } else if (what == 6) {
            slot_t *slot = &end->slots[take(&input) % OPS];

            if (slot->in_flight && slot->op.priv.kind == XM_RAILS_RECEIVE) {
                xm_rails_rx_cancel(end->peers[1].rails, &slot->op);
            }
        } else {
            unsigned more = take(&input);

            if (more >= 250) {
                xm_rails_broken(&end->peers[1], (int)(more % LANES), "a fuzzer");
            }
            progress(end, more);
        }
    }
    progress(end, 1);
    xm_rails_abandon(&end->peers[1], XM_ERR_CANCELED);
    (void)xm_rails_deliver(&end->rails);
    for (int i = 0; i < OPS; ++i) {
        expect(!end->slots[i].in_flight);
    }
    xm_blocks_clear(&end->rails.blocks);
    free((void *)end->rails.peers);
    free(end);
    return 0;
}
