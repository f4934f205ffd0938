#include "comm/probe_link.h"

#include <endian.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "comm/probe_compute.h"
#include "comm/probe_curve.h"

enum {
    WINDOW = 4,         /* messages in flight of a stream */
    MAX_SAMPLES = 64,   /* of one size */
    BATCH_LIMIT = 512,  /* round trips of one sample */
    CONTROL_BYTES = 16, /* bytes and count of the round trips that follow */
    ABANDON_NAPS = 1000 /* of 1 ms, when a cancelled operation does not end */
};

/* Tags are below 2^48. The upper part tells probe messages from a runtime's, the kind and a
 * sequence number make each message of a direction unique. */
#define PROBE_TAG (UINT64_C(0x7052) << 32)
enum { KIND_CONTROL = 0, KIND_DATA = 1, KIND_READY = 2 };
enum { SEQUENCE_BITS = 28 };

typedef struct {
    xm_op_t op;
    bool in_flight;
    xm_status_t status;
} transfer_t;

struct xm_probe_link {
    xm_worker_t *worker;
    xm_transport_t *transport;
    int peer;
    size_t max_bytes;
    unsigned char *out, *in; /* max_bytes each, WINDOW slots for streams */
    unsigned char control[CONTROL_BYTES];
    uint64_t sent[3], received[3]; /* per kind */
    transfer_t outgoing[WINDOW], incoming[WINDOW];
};

static void transfer_done(xm_op_t *op, xm_status_t status)
{
    transfer_t *transfer = op->arg;

    transfer->status = status;
    transfer->in_flight = false;
}

static uint64_t tag_of(int kind, uint64_t sequence)
{
    return PROBE_TAG | (uint64_t)kind << SEQUENCE_BITS |
           (sequence & ((UINT64_C(1) << SEQUENCE_BITS) - 1));
}

/* An operation failed with @p status and a sentence. If a rank is gone the worker will know which
 * died first, and that is the better sentence. */
static xm_status_t blame(xm_probe_link_t *link, xm_status_t status)
{
    const int64_t grace_ns = 250000000;
    int64_t deadline = xm_worker_now(link->worker) + grace_ns;
    xm_status_t verdict = XM_OK;
    char reason[1024];

    (void)snprintf(reason, sizeof(reason), "%s", xm_last_error());
    while (verdict == XM_OK) {
        verdict = xm_worker_wait(link->worker, deadline);
    }
    if (verdict == XM_ERR_TIMEOUT) {
        return xm_error_set(status, "probe: %s", reason);
    }
    return xm_error_prefix(verdict, "probe, message with rank %d", link->peer);
}

static xm_status_t posted(xm_probe_link_t *link, transfer_t *transfer, xm_status_t status)
{
    transfer->in_flight = status == XM_IN_PROGRESS;
    return status < 0 ? blame(link, status) : XM_OK;
}

static xm_op_t *begin(transfer_t *transfer)
{
    transfer->op.done = transfer_done;
    transfer->op.arg = transfer;
    transfer->in_flight = true;
    transfer->status = XM_OK;
    return &transfer->op;
}

static xm_status_t post_send(xm_probe_link_t *link, transfer_t *transfer, int kind,
                             const void *buffer, size_t bytes)
{
    uint64_t tag = tag_of(kind, link->sent[kind]++);

    return posted(
        link, transfer,
        xm_transport_send(link->transport, link->peer, tag, buffer, bytes, NULL, begin(transfer)));
}

static xm_status_t post_receive(xm_probe_link_t *link, transfer_t *transfer, int kind, void *buffer,
                                size_t bytes)
{
    uint64_t tag = tag_of(kind, link->received[kind]++);

    return posted(link, transfer,
                  xm_transport_receive(link->transport, link->peer, tag, buffer, bytes, NULL,
                                       begin(transfer)));
}

static xm_status_t wait_for(xm_probe_link_t *link, const transfer_t *transfer)
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
    return blame(link, transfer->status);
}

static xm_status_t send_now(xm_probe_link_t *link, int kind, const void *buffer, size_t bytes)
{
    xm_status_t status = post_send(link, &link->outgoing[0], kind, buffer, bytes);

    return status < 0 ? status : wait_for(link, &link->outgoing[0]);
}

static xm_status_t receive_now(xm_probe_link_t *link, int kind, void *buffer, size_t bytes)
{
    xm_status_t status = post_receive(link, &link->incoming[0], kind, buffer, bytes);

    return status < 0 ? status : wait_for(link, &link->incoming[0]);
}

/* Bytes that differ by position and seed; a longer fill begins like a shorter one. */
static void fill(unsigned char *buffer, size_t bytes, uint64_t seed)
{
    uint64_t state = seed * UINT64_C(0x9e3779b97f4a7c15) + 1;

    for (size_t i = 0; i < bytes; i += sizeof(state)) {
        size_t length = bytes - i < sizeof(state) ? bytes - i : sizeof(state);

        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        memcpy(buffer + i, &state, length);
    }
}

static xm_status_t compare(const xm_probe_link_t *link, const unsigned char *received,
                           const unsigned char *expected, size_t bytes)
{
    if (memcmp(received, expected, bytes) == 0) {
        return XM_OK;
    }
    for (size_t i = 0; i < bytes; ++i) {
        if (received[i] != expected[i]) {
            return xm_error_set(XM_ERR_CORRUPT,
                                "probe: byte %zu of %zu exchanged with rank %d is 0x%02x instead "
                                "of 0x%02x",
                                i, bytes, link->peer, received[i], expected[i]);
        }
    }
    return XM_OK;
}

xm_status_t xm_probe_link_create(xm_worker_t *worker, int peer, size_t max_bytes,
                                 xm_probe_link_t **link)
{
    xm_probe_link_t *made = calloc(1, sizeof(*made));

    if (made == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "probe: out of memory");
    }
    made->worker = worker;
    made->transport = xm_worker_transport(worker);
    made->peer = peer;
    made->max_bytes = max_bytes;
    made->out = malloc(max_bytes);
    made->in = malloc(max_bytes);
    if (made->out == NULL || made->in == NULL) {
        xm_probe_link_destroy(made);
        return xm_error_set(XM_ERR_NO_MEMORY, "probe: no memory for two buffers of %zu bytes",
                            max_bytes);
    }
    fill(made->out, max_bytes, (uint64_t)xm_worker_rank(worker));
    memset(made->in, 0, max_bytes);
    *link = made;
    return XM_OK;
}

/* Announces @p count round trips of @p bytes; a count of 0 sends the other end home. */
static xm_status_t announce(xm_probe_link_t *link, uint64_t bytes, uint64_t count)
{
    uint64_t words[2] = {htole64(bytes), htole64(count)};

    memcpy(link->control, words, CONTROL_BYTES);
    return send_now(link, KIND_CONTROL, link->control, CONTROL_BYTES);
}

static xm_status_t round_trips(xm_probe_link_t *link, size_t bytes, int count)
{
    for (int i = 0; i < count; ++i) {
        xm_status_t status = post_receive(link, &link->incoming[0], KIND_DATA, link->in, bytes);

        if (status < 0 || (status = send_now(link, KIND_DATA, link->out, bytes)) < 0 ||
            (status = wait_for(link, &link->incoming[0])) < 0) {
            return status;
        }
    }
    return XM_OK;
}

static double clamp(double value, double low, double high)
{
    return value < low ? low : value > high ? high : value;
}

/* Median one-way time of a size; @p first is a round trip's time to plan with. */
static xm_status_t sample(xm_probe_link_t *link, const xm_probe_ping_t *ping, size_t bytes,
                          double first, double *seconds)
{
    const double shortest = 5e-3; /* a sample spans many sleeps and wake-ups of both ends */
    double times[MAX_SAMPLES];
    int batch = (int)clamp(shortest / first, 1, BATCH_LIMIT);
    int most = ping->repetitions < MAX_SAMPLES ? ping->repetitions : MAX_SAMPLES;
    int samples = (int)clamp(ping->budget / (first * batch), 1, most);
    /* An extra round trip absorbs the announcement, where that is worth its time. */
    int extra = first < shortest ? 1 : 0;
    xm_status_t status =
        announce(link, bytes, (uint64_t)samples * (uint64_t)batch + (uint64_t)extra);

    if (status < 0 || (status = round_trips(link, bytes, extra)) < 0) {
        return status;
    }
    for (int i = 0; i < samples; ++i) {
        double start = xm_probe_clock();

        status = round_trips(link, bytes, batch);
        if (status < 0) {
            return status;
        }
        times[i] = (xm_probe_clock() - start) / (2.0 * batch);
    }
    *seconds = xm_probe_median(times, samples);
    return XM_OK;
}

static xm_status_t checked_round_trip(xm_probe_link_t *link, size_t bytes, double *seconds)
{
    xm_status_t status;
    double start;

    memset(link->in, 0, bytes);
    start = xm_probe_clock();
    if ((status = announce(link, bytes, 1)) < 0 || (status = round_trips(link, bytes, 1)) < 0) {
        return status;
    }
    *seconds = xm_probe_clock() - start;
    return compare(link, link->in, link->out, bytes);
}

xm_status_t xm_probe_link_ping(xm_probe_link_t *link, const xm_probe_ping_t *ping,
                               xm_curve_point_t *curve, int *points)
{
    double first = 0;
    int measured = 0;
    xm_status_t status;

    while (measured < ping->size_count && first <= ping->longest) {
        size_t bytes = ping->sizes[measured];

        if (ping->step != NULL) {
            ping->step(ping->step_arg, measured);
        }
        status = checked_round_trip(link, bytes, &first);
        if (status < 0) {
            return status;
        }
        curve[measured].bytes = bytes;
        status = sample(link, ping, bytes, first, &curve[measured].seconds);
        if (status < 0) {
            return status;
        }
        ++measured;
    }
    status = announce(link, 0, 0);
    if (status == XM_OK) {
        *points = measured;
    }
    return status;
}

xm_status_t xm_probe_link_pong(xm_probe_link_t *link)
{
    for (;;) {
        uint64_t words[2];
        xm_status_t status = receive_now(link, KIND_CONTROL, link->control, CONTROL_BYTES);

        if (status < 0) {
            return status;
        }
        memcpy(words, link->control, CONTROL_BYTES);
        words[0] = le64toh(words[0]);
        words[1] = le64toh(words[1]);
        if (words[1] == 0) {
            return XM_OK;
        }
        if (words[0] == 0 || words[0] > link->max_bytes) {
            return xm_error_set(XM_ERR_CORRUPT, "probe: rank %d announces messages of %llu bytes",
                                link->peer, (unsigned long long)words[0]);
        }
        for (uint64_t i = 0; i < words[1]; ++i) {
            status = receive_now(link, KIND_DATA, link->in, words[0]);
            if (status == XM_OK) {
                status = send_now(link, KIND_DATA, link->in, words[0]);
            }
            if (status < 0) {
                return status;
            }
        }
    }
}

xm_status_t xm_probe_link_stream(xm_probe_link_t *link, size_t bytes, uint64_t messages,
                                 int64_t *start, int64_t *end)
{
    unsigned char ready[1];
    int64_t begin;
    xm_status_t status = receive_now(link, KIND_READY, ready, sizeof(ready));

    begin = xm_worker_now(link->worker);
    for (uint64_t m = 0; status == XM_OK && m < messages; ++m) {
        transfer_t *slot = &link->outgoing[m % WINDOW];

        status = wait_for(link, slot);
        if (status == XM_OK) {
            status = post_send(link, slot, KIND_DATA, link->out + (m % WINDOW) * bytes, bytes);
        }
    }
    for (int slot = 0; status == XM_OK && slot < WINDOW; ++slot) {
        status = wait_for(link, &link->outgoing[slot]);
    }
    if (status == XM_OK) {
        status = receive_now(link, KIND_READY, ready, sizeof(ready));
    }
    if (status == XM_OK) {
        *start = begin;
        *end = xm_worker_now(link->worker);
    }
    return status;
}

xm_status_t xm_probe_link_drain(xm_probe_link_t *link, size_t bytes, uint64_t messages)
{
    const unsigned char ready[1] = {1};
    uint64_t posted_messages = 0;
    xm_status_t status = XM_OK;

    for (; status == XM_OK && posted_messages < messages && posted_messages < WINDOW;
         ++posted_messages) {
        status = post_receive(link, &link->incoming[posted_messages], KIND_DATA,
                              link->in + posted_messages * bytes, bytes);
    }
    if (status == XM_OK) {
        status = send_now(link, KIND_READY, ready, sizeof(ready));
    }
    for (uint64_t m = 0; status == XM_OK && m < messages; ++m) {
        size_t slot = m % WINDOW;

        status = wait_for(link, &link->incoming[slot]);
        if (status == XM_OK && posted_messages < messages) {
            ++posted_messages;
            status = post_receive(link, &link->incoming[slot], KIND_DATA, link->in + slot * bytes,
                                  bytes);
        }
    }
    if (status == XM_OK) {
        status = send_now(link, KIND_READY, ready, sizeof(ready));
    }
    if (status == XM_OK) {
        /* What the sender's buffer holds; only the filled slots of a short stream. */
        size_t filled = (messages < WINDOW ? (size_t)messages : WINDOW) * bytes;

        fill(link->out, filled, (uint64_t)link->peer);
        status = compare(link, link->in, link->out, filled);
    }
    return status;
}

static bool any_in_flight(const xm_probe_link_t *link)
{
    bool any = false;

    for (int i = 0; i < WINDOW; ++i) {
        any = any || link->outgoing[i].in_flight || link->incoming[i].in_flight;
    }
    return any;
}

void xm_probe_link_destroy(xm_probe_link_t *link)
{
    const struct timespec nap = {.tv_nsec = 1000000};
    char reason[1024];

    if (link == NULL) {
        return;
    }
    (void)snprintf(reason, sizeof(reason), "%s", xm_last_error());
    for (int i = 0; i < WINDOW; ++i) {
        if (link->outgoing[i].in_flight) {
            xm_transport_cancel(link->transport, &link->outgoing[i].op);
        }
        if (link->incoming[i].in_flight) {
            xm_transport_cancel(link->transport, &link->incoming[i].op);
        }
    }
    for (int naps = 0; any_in_flight(link) && naps < ABANDON_NAPS; ++naps) {
        (void)xm_transport_progress(link->transport);
        (void)nanosleep(&nap, NULL);
    }
    (void)xm_error_set(XM_OK, "%s", reason); /* what is cancelled has sentences of its own */
    if (any_in_flight(link)) {
        return; /* the transport still owns ops and buffers */
    }
    free(link->in);
    free(link->out);
    free(link);
}
