/* SPDX-License-Identifier: Apache-2.0 */
/* Ping-pong between two ranks, and what all messages of the probe share: tags, ends,
 * cancelling. One rank begins and tells the other, by control messages, how many round trips of
 * which size follow; so all decisions about repetitions are made in one place. Sizes are
 * checked once with data and then timed in batches that are long enough to contain many sleeps
 * and wake-ups of both ends, because that is what messages meet in a real job. */
#include "comm/probe/link.h"

#include <endian.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "comm/base.h"
#include "comm/probe/compute.h"
#include "comm/profile.h"

enum {
    LEAST_POINTS = 2,   /* of a curve, however long the first message took, which also connects */
    MAX_SAMPLES = 96,   /* of one size */
    BATCH_LIMIT = 512,  /* round trips of one sample */
    CONTROL_BYTES = 24, /* bytes and count of the round trips that follow, and their pool */
    ABANDON_NAPS = 1000 /* of 1 ms, when a cancelled operation does not end */
};

/* Tags are below 2^48. The upper part tells probe messages from a runtime's; the kind and a
 * sequence number make each message of a direction unique. */
#define PROBE_TAG (UINT64_C(0x7052) << 32)
enum { KIND_CONTROL = 0, KIND_DATA = 1, KINDS };
enum { SEQUENCE_BITS = 28 };
enum { OUTGOING, INCOMING, DIRECTIONS };

struct xm_probe_link {
    xm_worker_t *worker;
    xm_transport_t *transport;
    int peer;
    size_t pool;
    unsigned char *out, *in; /* pools */
    unsigned char control[CONTROL_BYTES];
    uint64_t sent[KINDS], received[KINDS];
    uint64_t trips; /* the same at both ends, though only one knows which is the last */
    xm_probe_transfer_t transfers[DIRECTIONS];
};

/* Both kinds of ends come here: from progress, and from cancelling. */
static void transfer_done(xm_op_t *op, xm_status_t status)
{
    xm_probe_transfer_t *transfer = op->arg;

    transfer->status = status;
    transfer->in_flight = false;
    if (transfer->ended != NULL) {
        transfer->ended(transfer);
    }
}

uint64_t xm_probe_tag(int kind, uint64_t sequence)
{
    return PROBE_TAG | (uint64_t)kind << SEQUENCE_BITS |
           (sequence & ((UINT64_C(1) << SEQUENCE_BITS) - 1));
}

/* Prepares a transfer before it is posted, since it may end inside the post. */
xm_op_t *xm_probe_begin(xm_probe_transfer_t *transfer)
{
    transfer->op.done = transfer_done;
    transfer->op.arg = transfer;
    transfer->in_flight = true;
    transfer->status = XM_OK;
    return &transfer->op;
}

/* Handles what the post returned: a transfer that is complete at once has its end here. */
xm_status_t xm_probe_posted(xm_probe_transfer_t *transfer, xm_status_t status)
{
    if (status == XM_IN_PROGRESS) {
        return XM_OK;
    }
    transfer->in_flight = false;
    if (status == XM_OK && transfer->ended != NULL) {
        transfer->ended(transfer);
    }
    return status;
}

/* A message has failed, and the fault channel may know why: it gets a quarter of a second to
 * name the rank that died first. If it stays silent the message's own failure is returned. */
xm_status_t xm_probe_blame(xm_worker_t *worker, int peer, xm_status_t status)
{
    const int64_t grace_ns = 250000000;
    int64_t deadline = xm_worker_now(worker) + grace_ns;
    xm_status_t fault_status = XM_OK;
    xm_error_t error;

    xm_error_save(&error, status);
    while (fault_status == XM_OK) {
        fault_status = xm_worker_wait(worker, deadline);
    }
    if (fault_status == XM_ERR_TIMEOUT) {
        return xm_error_prefix(xm_error_restore(&error), "probe");
    }
    return xm_error_prefix(fault_status, "probe, message with rank %d", peer);
}

static xm_status_t posted(xm_probe_link_t *link, xm_probe_transfer_t *transfer, xm_status_t status)
{
    status = xm_probe_posted(transfer, status);
    return status < 0 ? xm_probe_blame(link->worker, link->peer, status) : XM_OK;
}

static xm_status_t post_send(xm_probe_link_t *link, xm_probe_transfer_t *transfer, int kind,
                             const void *buffer, size_t bytes)
{
    uint64_t tag = xm_probe_tag(kind, link->sent[kind]++);

    return posted(link, transfer,
                  xm_transport_send(link->transport, link->peer, tag, buffer, bytes, NULL,
                                    xm_probe_begin(transfer)));
}

static xm_status_t post_receive(xm_probe_link_t *link, xm_probe_transfer_t *transfer, int kind,
                                void *buffer, size_t bytes)
{
    uint64_t tag = xm_probe_tag(kind, link->received[kind]++);

    return posted(link, transfer,
                  xm_transport_receive(link->transport, link->peer, tag, buffer, bytes, NULL,
                                       xm_probe_begin(transfer)));
}

/* Waits for one transfer; progress for all others is made meanwhile. */
static xm_status_t wait_for(xm_probe_link_t *link, const xm_probe_transfer_t *transfer)
{
    int64_t deadline = xm_worker_deadline(link->worker);
    xm_status_t status;

    while (transfer->in_flight) {
        status = xm_worker_wait(link->worker, deadline);
        if (status < 0) {
            return xm_error_prefix(status, "probe, message with rank %d", link->peer);
        }
    }
    if (transfer->status == XM_OK) {
        return XM_OK;
    }
    (void)xm_error_set(transfer->status, "a message with rank %d ended with '%s'", link->peer,
                       xm_status_string(transfer->status));
    return xm_probe_blame(link->worker, link->peer, transfer->status);
}

static xm_status_t send_now(xm_probe_link_t *link, int kind, const void *buffer, size_t bytes)
{
    xm_status_t status = post_send(link, &link->transfers[OUTGOING], kind, buffer, bytes);

    return status < 0 ? status : wait_for(link, &link->transfers[OUTGOING]);
}

static xm_status_t receive_now(xm_probe_link_t *link, int kind, void *buffer, size_t bytes)
{
    xm_status_t status = post_receive(link, &link->transfers[INCOMING], kind, buffer, bytes);

    return status < 0 ? status : wait_for(link, &link->transfers[INCOMING]);
}

uint64_t xm_probe_word(double number)
{
    uint64_t word;

    memcpy(&word, &number, sizeof(word));
    return htole64(word);
}

double xm_probe_number(const void *bytes)
{
    uint64_t word;
    double number;

    memcpy(&word, bytes, sizeof(word));
    word = le64toh(word);
    memcpy(&number, &word, sizeof(number));
    return number;
}

/* Fills a buffer with reproducible noise, so that the receiver can make the same. */
void xm_probe_fill(unsigned char *buffer, size_t bytes, uint64_t seed)
{
    uint64_t state = xm_hash_spread(seed) + 1;

    for (size_t i = 0; i < bytes; i += sizeof(state)) {
        size_t length = bytes - i < sizeof(state) ? bytes - i : sizeof(state);

        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        memcpy(buffer + i, &state, length);
    }
}

/* The sentence has the first byte that is wrong. */
xm_status_t xm_probe_compare(int peer, const unsigned char *received, const unsigned char *expected,
                             size_t bytes)
{
    if (memcmp(received, expected, bytes) == 0) {
        return XM_OK;
    }
    for (size_t i = 0; i < bytes; ++i) {
        if (received[i] != expected[i]) {
            return xm_error_set(XM_ERR_CORRUPT,
                                "probe: byte %zu of %zu exchanged with rank %d is 0x%02x instead "
                                "of 0x%02x",
                                i, bytes, peer, received[i], expected[i]);
        }
    }
    return XM_OK;
}

/* Pools hold the largest size, so that no size needs an allocation while it is timed. */
xm_status_t xm_probe_link_create(xm_worker_t *worker, int peer, size_t pool, xm_probe_link_t **link)
{
    xm_probe_link_t *made = calloc(1, sizeof(*made));

    if (made == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "probe: out of memory");
    }
    made->worker = worker;
    made->transport = xm_worker_transport(worker);
    made->peer = peer;
    made->pool = pool;
    made->out = xm_probe_memory(pool);
    made->in = xm_probe_memory(pool);
    if (made->out == NULL || made->in == NULL) {
        xm_probe_link_destroy(made);
        return XM_ERR_NO_MEMORY;
    }
    xm_probe_fill(made->out, pool, (uint64_t)xm_worker_rank(worker));
    *link = made;
    return XM_OK;
}

/* Announces @p count round trips of @p bytes; a count of 0 sends the other end home. */
static xm_status_t announce(xm_probe_link_t *link, uint64_t bytes, uint64_t count, uint64_t pool)
{
    uint64_t words[3] = {htole64(bytes), htole64(count), htole64(pool)};

    memcpy(link->control, words, CONTROL_BYTES);
    return send_now(link, KIND_CONTROL, link->control, CONTROL_BYTES);
}

/* The receive is posted before the send, so that the answer never comes unexpected. Messages take
 * turns in the pools. */
static xm_status_t round_trips(xm_probe_link_t *link, size_t bytes, int count, size_t pool)
{
    for (int i = 0; i < count; ++i) {
        size_t at = xm_probe_place(pool, bytes, link->trips++);
        xm_status_t status =
            post_receive(link, &link->transfers[INCOMING], KIND_DATA, link->in + at, bytes);

        if (status < 0 || (status = send_now(link, KIND_DATA, link->out + at, bytes)) < 0 ||
            (status = wait_for(link, &link->transfers[INCOMING])) < 0) {
            return status;
        }
    }
    return XM_OK;
}

static double clamp(double value, double low, double high)
{
    return value < low ? low : value > high ? high : value;
}

/* Takes more samples of a size, `batch` round trips each, into `times`. An extra round trip
 * that is not timed may come first. */
static xm_status_t add_samples(xm_probe_link_t *link, size_t bytes, int batch, bool extra,
                               size_t pool, double *times, int samples)
{
    xm_status_t status = announce(link, bytes, (uint64_t)samples * (uint64_t)batch + extra, pool);

    if (status < 0 || (status = round_trips(link, bytes, extra, pool)) < 0) {
        return status;
    }
    for (int i = 0; i < samples; ++i) {
        double start = xm_clock_seconds();

        XM_TRY(round_trips(link, bytes, batch, pool));
        times[i] = (xm_clock_seconds() - start) / (2.0 * batch);
    }
    return XM_OK;
}

/* Finds the median one-way time of a size and its spread; @p first is a round trip's time to
 * plan with. It takes samples until the median is known well enough or the budget is spent. */
static xm_status_t sample(xm_probe_link_t *link, const xm_probe_ping_t *ping, size_t bytes,
                          double first, double *seconds, double *spread)
{
    const double shortest = 5e-3; /* a sample spans many sleeps and wake-ups of both ends */
    double times[MAX_SAMPLES];
    int batch = (int)clamp(shortest / first, 1, BATCH_LIMIT), count = 0, next = 1;
    int least = ping->repetitions < MAX_SAMPLES ? ping->repetitions : MAX_SAMPLES;
    double start = xm_clock_seconds();

    do {
        /* An extra round trip absorbs the announcement, where that is worth its time. */
        xm_status_t status = add_samples(link, bytes, batch, first < shortest,
                                         ping->hot ? bytes : link->pool, times + count, next);
        double spent = xm_clock_seconds() - start;

        if (status < 0) {
            return status;
        }
        count += next;
        *seconds = xm_array_median(times, count);
        *spread = xm_curve_spread(times, count);
        /* Next come as many as are needed, then half as many again, as far as the budget allows. */
        next = count < least ? least - count : count / 2;
        next = next < MAX_SAMPLES - count ? next : MAX_SAMPLES - count;
        next = (int)clamp((ping->budget - spent) * count / spent, 0, next);
    } while ((count < least || *spread > XM_PROBE_TIGHT) && next > 0);
    return XM_OK;
}

/* One round trip whose bytes come back and are compared. */
static xm_status_t checked_round_trip(xm_probe_link_t *link, size_t bytes, double *seconds)
{
    xm_status_t status;
    double start;

    memset(link->in, 0, bytes);
    start = xm_clock_seconds();
    if ((status = announce(link, bytes, 1, bytes)) < 0 ||
        (status = round_trips(link, bytes, 1, bytes)) < 0) {
        return status;
    }
    *seconds = xm_clock_seconds() - start;
    return xm_probe_compare(link->peer, link->in, link->out, bytes);
}

/* Measures sizes until one takes too long; at least LEAST_POINTS, since the first message also
 * makes the connection and may be slow. */
xm_status_t xm_probe_link_ping(xm_probe_link_t *link, const xm_probe_ping_t *ping, double *seconds,
                               double *spread, int *points)
{
    double first = 0;
    int measured = 0;
    xm_status_t status;

    while (measured < ping->size_count && (measured < LEAST_POINTS || first <= ping->longest)) {
        size_t bytes = ping->sizes[measured];

        if (ping->step != NULL) {
            ping->step(ping->step_arg, measured);
        }
        XM_TRY(checked_round_trip(link, bytes, &first));
        XM_TRY(sample(link, ping, bytes, first, &seconds[measured], &spread[measured]));
        ++measured;
    }
    status = announce(link, 0, 0, 0);
    if (status == XM_OK) {
        *points = measured;
    }
    return status;
}

/* The other end: does as it is told until it is sent home. Sizes are checked, because they come
 * over the network. What has just come is in a cache, so from a pool of several places another one
 * is sent back. */
xm_status_t xm_probe_link_pong(xm_probe_link_t *link)
{
    for (;;) {
        uint64_t words[3];
        xm_status_t status = receive_now(link, KIND_CONTROL, link->control, CONTROL_BYTES);

        if (status < 0) {
            return status;
        }
        memcpy(words, link->control, CONTROL_BYTES);
        words[0] = le64toh(words[0]);
        words[1] = le64toh(words[1]);
        words[2] = le64toh(words[2]);
        if (words[1] == 0) {
            return XM_OK;
        }
        if (words[0] == 0 || words[0] > words[2] || words[2] > link->pool) {
            return xm_error_set(XM_ERR_CORRUPT, "probe: rank %d announces messages of %llu bytes",
                                link->peer, (unsigned long long)words[0]);
        }
        for (uint64_t i = 0; i < words[1]; ++i) {
            size_t at = xm_probe_place(words[2], words[0], link->trips++);

            status = receive_now(link, KIND_DATA, link->in + at, words[0]);
            XM_THEN(status, send_now(link, KIND_DATA,
                                     (words[2] > words[0] ? link->out : link->in) + at, words[0]));
            if (status < 0) {
                return status;
            }
        }
    }
}

/* Cancels transfers and makes progress until they have ended, but no longer than a second.
 * False: the transport still owns some of them. It keeps the caller's sentence, which says why
 * there is anything to cancel. */
bool xm_probe_cancel(xm_transport_t *transport, xm_probe_transfer_t *transfers, int count)
{
    const struct timespec nap = {.tv_nsec = 1000000};
    bool any = true;
    xm_error_t error;

    xm_error_save(&error, XM_OK);
    for (int i = 0; i < count; ++i) {
        transfers[i].ended = NULL;
        if (transfers[i].in_flight) {
            xm_transport_cancel(transport, &transfers[i].op);
        }
    }
    for (int naps = 0; any && naps < ABANDON_NAPS; ++naps) {
        any = false;
        for (int i = 0; i < count; ++i) {
            any = any || transfers[i].in_flight;
        }
        if (any) {
            (void)xm_transport_progress(transport);
            (void)nanosleep(&nap, NULL);
        }
    }
    (void)xm_error_restore(&error); /* what is cancelled has sentences of its own */
    return !any;
}

void xm_probe_link_destroy(xm_probe_link_t *link)
{
    /* Buffers stay where the transport still owns operations: freeing them would let it write
     * into freed memory. */
    if (link != NULL && xm_probe_cancel(link->transport, link->transfers, DIRECTIONS)) {
        free(link->in);
        free(link->out);
        free(link);
    }
}
