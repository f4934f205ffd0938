/* SPDX-License-Identifier: Apache-2.0 */
/* The paths between the detectors. Datagrams are the usual one: a question and its answer cost no
 * state. Connections are opened when datagrams stay unanswered, and tell something that datagrams
 * cannot: a host that refuses one has no such process any more. That counts only where the address
 * has been heard of as this rank's before, since another machine may have the same address in
 * another network. Reading is by exact lengths, so that a connection can be handed over to the
 * bootstrap without a byte of it being lost here. */
#include "comm/fault/courier.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "comm/base.h"
#include "comm/fault/stream.h"

/* BATCH: datagrams that are read before others get their turn. STRANGERS: connections beyond one
 * for each rank, at most. */
enum { BATCH = 256, RECEIVE_BUFFER = 4 << 20, STRANGERS = 64 };

/* What is known of the ways to a rank. */
typedef struct {
    int best;     /* the address that was heard of last */
    unsigned own; /* bits of the addresses that this host has as well: they lead nowhere else */
    unsigned proven;
    xm_stream_t call;
} peer_t;

struct xm_courier {
    const xm_endpoints_t *endpoints;
    size_t frame_size;
    uint8_t *out; /* the frame that is being sent, behind its length */
    uint8_t *standing;
    peer_t *peers;
    xm_stream_t *guests;
    int guest_count;
    xm_door_t door;
    bool full;        /* the door is looked at again when a stranger has had its time */
    xm_stream_t link; /* for the bootstrap */
    int link_rank;    /* -1: none is wanted */
    uint32_t link_generation;
    int64_t link_again;
};

static xm_door_place_t who_is(void *arg, int place, int64_t *since)
{
    const xm_stream_t *guest = &((const xm_courier_t *)arg)->guests[place];

    *since = guest->since;
    return guest->fd < 0 ? XM_DOOR_FREE : guest->known ? XM_DOOR_KNOWN : XM_DOOR_STRANGER;
}

static void drop(void *arg, int place)
{
    xm_stream_hang_up(&((xm_courier_t *)arg)->guests[place]);
}

/* Finds the addresses of other hosts that this one has, too, such as those of bridges for
 * containers: what is sent there does not leave the machine. */
static void compare_addresses(const xm_courier_t *courier, int rank)
{
    const xm_endpoint_t *there = &courier->endpoints->of[rank];
    const xm_endpoint_t *here = &courier->endpoints->of[courier->endpoints->rank];

    for (int i = 0; i < there->count && there->host_number != here->host_number; ++i) {
        for (int j = 0; j < here->count; ++j) {
            if (memcmp(there->addresses[i], here->addresses[j], XM_ADDRESS_BYTES) == 0 && i > 0) {
                courier->peers[rank].own |= 1u << i;
            }
        }
    }
}

xm_status_t xm_courier_create(const xm_endpoints_t *endpoints, xm_courier_t **courier)
{
    xm_courier_t *self = calloc(1, sizeof(*self));
    size_t size = (size_t)endpoints->size;
    int buffer = RECEIVE_BUFFER;

    XM_NEED_MEMORY(self, "the ways to %zu ranks", size);
    *self = (xm_courier_t){.endpoints = endpoints,
                           .frame_size = xm_frame_max_size(endpoints->size),
                           .guest_count = endpoints->size + STRANGERS,
                           .link = {.fd = -1},
                           .link_rank = -1};
    self->door = (xm_door_t){.fd = endpoints->stream_fd,
                             .places = self->guest_count,
                             .strangers = xm_door_strangers(STRANGERS),
                             .who = who_is,
                             .drop = drop,
                             .arg = self};
    self->out = malloc(XM_STREAM_PREFIX + self->frame_size);
    self->standing = calloc(size, 1);
    self->peers = calloc(size, sizeof(*self->peers));
    self->guests = calloc((size_t)self->guest_count, sizeof(*self->guests));
    if (self->out == NULL || self->standing == NULL || self->peers == NULL ||
        self->guests == NULL) {
        self->guest_count = self->guests == NULL ? 0 : self->guest_count;
        xm_courier_destroy(self);
        return XM_NO_MEMORY("the ways to %zu ranks", size);
    }
    for (int i = 0; i < self->guest_count; ++i) {
        self->guests[i].fd = -1;
    }
    for (int rank = 0; rank < endpoints->size; ++rank) {
        self->peers[rank].call.fd = -1;
        compare_addresses(self, rank);
    }
    /* All may answer at once; the kernel gives what it allows. */
    (void)setsockopt(endpoints->datagram_fd, SOL_SOCKET, SO_RCVBUF, &buffer, sizeof(buffer));
    *courier = self;
    return XM_OK;
}

void xm_courier_destroy(xm_courier_t *courier)
{
    if (courier == NULL) {
        return;
    }
    for (int rank = 0; rank < courier->endpoints->size && courier->peers != NULL; ++rank) {
        xm_stream_hang_up(&courier->peers[rank].call);
    }
    for (int i = 0; i < courier->guest_count; ++i) {
        xm_stream_hang_up(&courier->guests[i]);
    }
    xm_stream_hang_up(&courier->link);
    free(courier->guests);
    free(courier->peers);
    free(courier->standing);
    free(courier->out);
    free(courier);
}

/* Sends one datagram. Failures are ignored: datagrams get lost anyway. */
static void send_datagram(const xm_courier_t *courier, const struct sockaddr_storage *address,
                          socklen_t length, size_t bytes)
{
    (void)sendto(courier->endpoints->datagram_fd, courier->out + XM_STREAM_PREFIX, bytes,
                 MSG_NOSIGNAL, (const struct sockaddr *)address, length);
}

void xm_courier_send(xm_courier_t *courier, int rank, xm_frame_t *frame, bool urgent)
{
    const xm_endpoints_t *endpoints = courier->endpoints;
    peer_t *peer = &courier->peers[rank];
    struct sockaddr_storage address;
    size_t bytes;

    frame->sender = endpoints->rank;
    frame->receiver = rank;
    bytes =
        xm_frame_encode(frame, endpoints->size, endpoints->key, courier->out + XM_STREAM_PREFIX);
    for (int i = 0; i < endpoints->of[rank].count; ++i) {
        socklen_t length = xm_endpoint_address(endpoints, rank, i, false, &address);

        if (length > 0 && (peer->own >> i & 1) == 0 && (urgent || i == peer->best)) {
            send_datagram(courier, &address, length, bytes);
        }
    }
    if (peer->call.fd >= 0) {
        xm_stream_send(&peer->call, frame, courier->endpoints->size, courier->out);
    }
}

void xm_courier_reply(xm_courier_t *courier, int rank, xm_frame_t *frame,
                      const xm_courier_way_t *way)
{
    const xm_endpoints_t *endpoints = courier->endpoints;

    frame->sender = endpoints->rank;
    frame->receiver = rank;
    if (way->guest >= 0) {
        xm_stream_send(&courier->guests[way->guest], frame, courier->endpoints->size, courier->out);
    } else if (way->call >= 0) {
        xm_stream_send(&courier->peers[way->call].call, frame, courier->endpoints->size,
                       courier->out);
    } else {
        send_datagram(courier, &way->from, way->length,
                      xm_frame_encode(frame, endpoints->size, endpoints->key,
                                      courier->out + XM_STREAM_PREFIX));
    }
}

/* Starts connecting to the next address. True: it was refused. */
static bool open_stream(const xm_courier_t *courier, int rank, xm_stream_t *stream, int64_t now)
{
    const xm_endpoints_t *endpoints = courier->endpoints;
    struct sockaddr_storage address;
    socklen_t length;
    int one = 1;

    xm_stream_hang_up(stream);
    stream->since = now;
    length = xm_endpoint_address(endpoints, rank, stream->address, true, &address);
    if (length == 0 || (courier->peers[rank].own >> stream->address & 1) != 0) {
        return false;
    }
    stream->fd = socket(endpoints->family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (stream->fd < 0) {
        return false;
    }
    (void)setsockopt(stream->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    if (connect(stream->fd, (struct sockaddr *)&address, length) != 0 && errno != EINPROGRESS) {
        bool refused = errno == ECONNREFUSED;

        xm_stream_hang_up(stream);
        return refused;
    }
    return false;
}

/* Whether an address is known to be that of the rank's host: its first one is what the bootstrap
 * has used; of the others some rank of that host has been heard. */
static bool is_proven(const xm_courier_t *courier, int rank, int address)
{
    const xm_endpoint_t *of = courier->endpoints->of;
    int own = courier->endpoints->rank;
    bool proven = address == 0 || of[rank].host_number == of[own].host_number;

    for (int other = 0; other < courier->endpoints->size && !proven; ++other) {
        proven = of[other].host_number == of[rank].host_number &&
                 (courier->peers[other].proven >> address & 1) != 0;
    }
    return proven;
}

/* A refusal at an address of this host comes from the own kernel, which knows. */
static void tell_refusal(const xm_courier_t *courier, int rank, int address,
                         const xm_courier_events_t *events)
{
    const xm_endpoint_t *own = &courier->endpoints->of[courier->endpoints->rank];
    bool sure = false;

    for (int i = 0; i < own->count; ++i) {
        sure = sure || memcmp(own->addresses[i], courier->endpoints->of[rank].addresses[address],
                              XM_ADDRESS_BYTES) == 0;
    }
    if (is_proven(courier, rank, address)) {
        events->refused(events->arg, rank, sure);
    }
}

/* The other addresses come in turn; with few of them a rank is tried at the proven ones soon. */
static void next_address(const xm_courier_t *courier, int rank, xm_stream_t *stream)
{
    stream->address = (stream->address + 1) % courier->endpoints->of[rank].count;
}

void xm_courier_call(xm_courier_t *courier, int rank, int64_t now, int64_t limit)
{
    xm_stream_t *stream = &courier->peers[rank].call;

    if (stream->fd >= 0 && (stream->keyed || now - stream->since < limit)) {
        return;
    }
    if (stream->fd >= 0) {
        next_address(courier, rank, stream);
    } else if (!is_proven(courier, rank, stream->address)) {
        stream->address = courier->peers[rank].best;
    }
    /* A refusal is told when connections are read, like one that comes later. */
    stream->refused = open_stream(courier, rank, stream, now);
}

void xm_courier_attach(xm_courier_t *courier, int rank, uint32_t generation)
{
    if (rank != courier->link_rank || generation != courier->link_generation) {
        xm_stream_hang_up(&courier->link);
    }
    courier->link_rank = rank;
    courier->link_generation = generation;
    courier->link_again = 0;
    courier->link.address = rank >= 0 ? courier->peers[rank].best : 0;
}

int xm_courier_attaches(const xm_courier_t *courier)
{
    return courier->link_rank;
}

int xm_courier_take(xm_courier_t *courier, const xm_courier_way_t *way)
{
    xm_stream_t *stream = way->guest >= 0 ? &courier->guests[way->guest] : &courier->link;
    int fd = stream->fd;

    stream->fd = -1;
    xm_stream_hang_up(stream);
    return fd;
}

int xm_courier_poll_count(const xm_courier_t *courier)
{
    return 3 + courier->endpoints->size + courier->guest_count;
}

static int add_poll(const xm_stream_t *stream, struct pollfd *polls, int count)
{
    if (stream->fd >= 0) {
        polls[count++] =
            (struct pollfd){.fd = stream->fd, .events = stream->open ? POLLIN : POLLOUT};
    }
    return count;
}

int xm_courier_polls(const xm_courier_t *courier, struct pollfd *polls)
{
    int count = 0;

    polls[count++] = (struct pollfd){.fd = courier->endpoints->datagram_fd, .events = POLLIN};
    polls[count++] = (struct pollfd){.fd = courier->full ? -1 : courier->door.fd, .events = POLLIN};
    count = add_poll(&courier->link, polls, count);
    for (int rank = 0; rank < courier->endpoints->size; ++rank) {
        count = add_poll(&courier->peers[rank].call, polls, count);
    }
    for (int i = 0; i < courier->guest_count; ++i) {
        count = add_poll(&courier->guests[i], polls, count);
    }
    return count;
}

/* An address of a rank has been heard of. */
static void prove(xm_courier_t *courier, int rank, int address)
{
    courier->peers[rank].proven |= 1u << address;
    courier->peers[rank].best = address;
}

static void prove_source(xm_courier_t *courier, int rank, const struct sockaddr_storage *from)
{
    uint8_t bytes[XM_ADDRESS_BYTES];

    xm_address_write(from, bytes);
    for (int i = 0; i < courier->endpoints->of[rank].count; ++i) {
        if (memcmp(courier->endpoints->of[rank].addresses[i], bytes, sizeof(bytes)) == 0) {
            prove(courier, rank, i);
        }
    }
}

/* Decodes a frame for this rank. */
static bool decode(xm_courier_t *courier, const uint8_t *bytes, size_t length, const uint8_t *key,
                   xm_frame_t *frame)
{
    *frame = (xm_frame_t){.standing = courier->standing};
    return xm_frame_decode(bytes, length, courier->endpoints->size, key, frame) == XM_OK &&
           frame->receiver == courier->endpoints->rank && frame->sender != courier->endpoints->rank;
}

/* Reads what has come, but not endlessly: the ticks have to go on under a flood. Datagrams with a
 * wrong code, or for another rank, are dropped without a word. */
static void read_datagrams(xm_courier_t *courier, const xm_courier_events_t *events)
{
    uint8_t *bytes = malloc(courier->frame_size + 1);

    for (int i = 0; i < BATCH && bytes != NULL; ++i) {
        xm_courier_way_t way = {.guest = -1, .call = -1, .length = sizeof(way.from)};
        ssize_t length = recvfrom(courier->endpoints->datagram_fd, bytes, courier->frame_size + 1,
                                  0, (struct sockaddr *)&way.from, &way.length);
        xm_frame_t frame;

        if (length < 0) {
            break;
        }
        if (decode(courier, bytes, (size_t)length, courier->endpoints->key, &frame)) {
            prove_source(courier, frame.sender, &way.from);
            events->frame(events->arg, &frame, &way);
        }
    }
    free(bytes);
}

/* Whoever calls is told a nonce, by which it has to make its key. */
static void accept_guests(xm_courier_t *courier, int64_t now)
{
    uint8_t nonce[XM_STREAM_NONCE];
    int fd, place, one = 1;

    while ((place = xm_door_accept(&courier->door, now, &fd)) >= 0) {
        xm_stream_t *guest = &courier->guests[place];

        if (getrandom(nonce, sizeof(nonce), 0) != (ssize_t)sizeof(nonce)) {
            (void)close(fd);
            continue;
        }
        *guest = (xm_stream_t){.fd = fd, .open = true, .since = now};
        (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
        xm_stream_make_key(guest, courier->endpoints->key, nonce);
        (void)send(fd, nonce, sizeof(nonce), MSG_NOSIGNAL);
    }
    courier->full = place == XM_DOOR_FULL;
}

/* Reads the frames of a connection, and ends it with the first that makes no sense. */
static void read_stream(xm_courier_t *courier, xm_stream_t *stream, xm_courier_way_t way,
                        const xm_courier_events_t *events)
{
    while (stream->fd >= 0) {
        size_t length;
        xm_status_t status =
            xm_stream_read(stream, courier->endpoints->key, courier->endpoints->size, &length);
        xm_frame_t frame;

        if (status == XM_IN_PROGRESS) {
            return;
        }
        if (status == XM_OK && length == 0) {
            continue; /* the nonce */
        }
        if (status < 0 ||
            !decode(courier, stream->bytes + XM_STREAM_PREFIX, length, stream->key, &frame)) {
            xm_stream_hang_up(stream);
            return;
        }
        stream->have = 0;
        stream->known = true;
        events->frame(events->arg, &frame, &way);
    }
}

/* Looks after a connection to a rank. */
static void tend_call(xm_courier_t *courier, int rank, const xm_courier_events_t *events)
{
    xm_stream_t *stream = &courier->peers[rank].call;
    xm_courier_way_t way = {.guest = -1, .call = rank};
    bool refused = stream->refused, known = stream->known;

    stream->refused = false;
    refused = xm_stream_finish(stream) == ECONNREFUSED || refused;
    if (refused) {
        tell_refusal(courier, rank, stream->address, events);
        next_address(courier, rank, stream);
    }
    if (stream->fd >= 0 && stream->open) {
        read_stream(courier, stream, way, events);
        if (stream->fd >= 0 && stream->known && !known) {
            prove(courier, rank, stream->address);
        }
    }
}

/* Looks after the connection that the bootstrap wants: makes it at one address after the other,
 * asks for it, and hands it over. */
static int64_t tend_link(xm_courier_t *courier, int64_t now, int64_t limit,
                         const xm_courier_events_t *events)
{
    xm_stream_t *stream = &courier->link;
    xm_frame_t frame = {.type = XM_FRAME_ATTACH, .generation = courier->link_generation};
    size_t length;
    int rank = courier->link_rank, error;

    if (rank < 0) {
        return INT64_MAX;
    }
    if (stream->fd >= 0 && now - stream->since > limit) {
        xm_stream_hang_up(stream);
        next_address(courier, rank, stream);
        courier->link_again = now;
    }
    if (stream->fd < 0) {
        if (now < courier->link_again) {
            return courier->link_again;
        }
        courier->link_again = now + limit / 8;
        if (open_stream(courier, rank, stream, now)) {
            tell_refusal(courier, rank, stream->address, events);
            next_address(courier, rank, stream);
        }
        return courier->link_again;
    }
    error = xm_stream_finish(stream);
    if (error == ECONNREFUSED) {
        tell_refusal(courier, rank, stream->address, events);
    }
    if (stream->fd < 0) {
        next_address(courier, rank, stream);
    }
    if (stream->fd >= 0 && stream->open) {
        bool keyed = stream->keyed;
        xm_status_t status =
            xm_stream_read(stream, courier->endpoints->key, courier->endpoints->size, &length);

        if (status == XM_OK && !keyed) {
            frame.sender = courier->endpoints->rank;
            frame.receiver = rank;
            frame.about = -1;
            xm_stream_send(stream, &frame, courier->endpoints->size, courier->out);
        } else if (status == XM_OK &&
                   decode(courier, stream->bytes + XM_STREAM_PREFIX, length, stream->key, &frame) &&
                   frame.type == XM_FRAME_ATTACHED && frame.sender == rank) {
            courier->link_rank = -1;
            prove(courier, rank, stream->address);
            events->attached(events->arg, rank,
                             xm_courier_take(courier, &(xm_courier_way_t){.guest = -1}));
            return INT64_MAX;
        } else if (status != XM_IN_PROGRESS) {
            xm_stream_hang_up(stream); /* it does not know of the group yet, or is none of it */
        }
    }
    return stream->fd >= 0 ? stream->since + limit : courier->link_again;
}

int64_t xm_courier_read(xm_courier_t *courier, int64_t now, int64_t limit,
                        const xm_courier_events_t *events)
{
    int64_t again;

    read_datagrams(courier, events);
    accept_guests(courier, now);
    for (int i = 0; i < courier->guest_count; ++i) {
        xm_courier_way_t way = {.guest = i, .call = -1};

        if (courier->guests[i].fd >= 0) {
            read_stream(courier, &courier->guests[i], way, events);
        }
    }
    for (int rank = 0; rank < courier->endpoints->size; ++rank) {
        tend_call(courier, rank, events);
    }
    again = tend_link(courier, now, limit, events);
    return courier->full && now + XM_DOOR_STAY_NS < again ? now + XM_DOOR_STAY_NS : again;
}
