/* SPDX-License-Identifier: Apache-2.0 */
/* The gate before UCX's TCP ports. UCX tells neither its listening sockets nor those that it
 * connects, so both are looked up among the descriptors of this process: the former bear a port
 * that stands in the worker's address, the latter are connecting to a port that a peer has told.
 * Everything that comes from a stranger is of one length, and is believed only with its proof. */
#include "comm/transport/ucx/gate.h"

#include <errno.h>
#include <linux/filter.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "comm/transport/ucx/sockets.h"

/*
 * PERMITS: connections that may be made at a time; an older one that is pushed out is announced
 * again. PERMIT_NS: how long one lasts, which is what a lost SYN takes to be repeated, twice.
 * LOOK_MS: between two looks for connections that UCX makes unseen. CONNECT_MS: in which a host
 * that is there answers, KNOCK_MS: in which a rank's thread does, on a busy machine; a look waits
 * less, since announcements of others wait meanwhile.
 */
enum {
    PERMITS = 128,
    PERMIT_INSTRUCTIONS = 12,
    GUESTS = 16,
    KEY_SIZE = 16,
    PORT_SIZE = 2,
    DOOR_SIZE = XM_ADDRESS_BYTES + 2 * PORT_SIZE,
    ANNOUNCEMENT_SIZE = XM_ADDRESS_BYTES + PORT_SIZE + XM_JOB_PROOF_SIZE,
    LOOK_MS = 200,
    CONNECT_MS = 200,
    KNOCK_MS = 900,
    LOOK_KNOCK_MS = 50
};
static const int64_t PERMIT_NS = INT64_C(5000000000);

typedef struct {
    xm_ucx_end_t end;
    int64_t until;
} permit_t;

/* A port of UCX, and the socket where announcements come to. */
typedef struct {
    xm_ucx_end_t end;
    int fd, knock_fd;
    permit_t permits[PERMITS];
    int next_permit;
} door_t;

/* A port of a peer's UCX. */
typedef struct {
    xm_ucx_end_t end;
    uint16_t knock_port;
    uint8_t key[KEY_SIZE];
} target_t;

typedef struct {
    int fd; /* -1: free */
    int64_t since;
    door_t *door;
    uint8_t nonce[XM_JOB_NONCE_SIZE], bytes[ANNOUNCEMENT_SIZE];
    size_t have;
} guest_t;

struct xm_ucx_gate {
    int *before; /* descriptors that listened already */
    int before_count;
    uint8_t key[KEY_SIZE];
    door_t *doors;
    int door_count;
    bool full; /* nobody is accepted before a stranger has had its time */
    target_t *targets;
    int target_count;
    guest_t guests[GUESTS];
    atomic_bool unseen; /* UCX connects to somebody whom no knock has been for */
    int wake_fd;        /* -1: there is no thread */
    pthread_t thread;
};

static bool note_listener(void *arg, int fd)
{
    xm_ucx_gate_t *gate = arg;
    int *larger;

    if (xm_ucx_socket_listens(fd)) {
        larger = realloc(gate->before, (size_t)(gate->before_count + 1) * sizeof(*larger));
        if (larger == NULL) {
            return true;
        }
        gate->before = larger;
        gate->before[gate->before_count++] = fd;
    }
    return false;
}

xm_status_t xm_ucx_gate_create(xm_ucx_gate_t **gate)
{
    xm_ucx_gate_t *self = calloc(1, sizeof(*self));

    if (self == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "no memory for UCX's gate");
    }
    self->wake_fd = -1;
    for (int i = 0; i < GUESTS; ++i) {
        self->guests[i].fd = -1;
    }
    xm_ucx_sockets_each(note_listener, self);
    *gate = self;
    return xm_job_secret_random(self->key, sizeof(self->key));
}

/* Writes the filter: what is no SYN passes, since those who were let in inherit the filter; a SYN
 * passes if some permit has its port and address. IPv4 addresses are the last word of four. */
static size_t write_filter(const door_t *door, int64_t now, struct sock_filter *program)
{
    bool ipv4 = IN6_IS_ADDR_V4MAPPED((const struct in6_addr *)door->end.address);
    unsigned at = (unsigned)SKF_NET_OFF + (ipv4 ? 12u : 8u), first = ipv4 ? 3 : 0;
    size_t count = 0;

    program[count++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_B | BPF_ABS, 13);
    program[count++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, 2, 1, 0);
    program[count++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, UINT32_MAX);
    for (int i = 0; i < PERMITS; ++i) {
        const permit_t *permit = &door->permits[i];
        uint8_t left = (uint8_t)(1 + 2 * (4 - first));

        if (permit->until <= now) {
            continue;
        }
        program[count++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_H | BPF_ABS, 0);
        program[count++] =
            (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, permit->end.port, 0, left);
        for (unsigned word = first; word < 4; ++word) {
            uint32_t value;

            left = (uint8_t)(left - 2);
            memcpy(&value, permit->end.address + 4 * word, sizeof(value));
            program[count++] =
                (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, at + 4 * (word - first));
            program[count++] =
                (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, ntohl(value), 0, left);
        }
        program[count++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, UINT32_MAX);
    }
    program[count++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, 0);
    return count;
}

static bool set_filter(const door_t *door, int64_t now)
{
    struct sock_filter program[4 + PERMITS * PERMIT_INSTRUCTIONS];
    struct sock_fprog filter = {.filter = program};

    filter.len = (unsigned short)write_filter(door, now, program);
    return setsockopt(door->fd, SOL_SOCKET, SO_ATTACH_FILTER, &filter, sizeof(filter)) == 0;
}

/* What is looked for among the descriptors. */
typedef struct {
    xm_ucx_gate_t *gate;
    const uint8_t *address;
    size_t length;
    xm_status_t status;
} search_t;

/* Opens the socket for announcements, at the address where UCX itself listens. */
static xm_status_t open_knocker(door_t *door)
{
    xm_address_t address;
    int family;

    xm_ucx_end_address(&door->end, 0, &address);
    family = address.socket.ss_family;
    door->knock_fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (door->knock_fd < 0 ||
        bind(door->knock_fd, (struct sockaddr *)&address.socket, address.length) != 0 ||
        listen(door->knock_fd, SOMAXCONN) != 0) {
        return xm_error_set(XM_ERR_IO, "cannot listen before UCX's ports: %s", strerror(errno));
    }
    return XM_OK;
}

/* A socket is UCX's if it did not listen before, and the worker's address has its port. */
static bool shut_listener(void *arg, int fd)
{
    search_t *search = arg;
    xm_ucx_gate_t *gate = search->gate;
    door_t door = {.fd = fd, .knock_fd = -1}, *larger;
    uint16_t port;

    if (!xm_ucx_socket_listens(fd) || !xm_ucx_socket_own_end(fd, &door.end)) {
        return false;
    }
    for (int i = 0; i < gate->before_count; ++i) {
        if (gate->before[i] == fd) {
            return false;
        }
    }
    port = htons(door.end.port);
    if (memmem(search->address, search->length, &port, sizeof(port)) == NULL ||
        gate->door_count == XM_UCX_GATE_DOORS) {
        return false;
    }
    if (!set_filter(&door, 0)) {
        xm_log_info("port %u of UCX is open to everybody: %s", door.end.port, strerror(errno));
        return false;
    }
    search->status = open_knocker(&door);
    larger = realloc(gate->doors, (size_t)(gate->door_count + 1) * sizeof(*larger));
    if (larger == NULL) {
        (void)close(door.knock_fd);
        search->status = xm_error_set(XM_ERR_NO_MEMORY, "no memory for UCX's gate");
        return true;
    }
    gate->doors = larger;
    gate->doors[gate->door_count++] = door;
    return search->status < 0 || note_listener(gate, fd);
}

xm_status_t xm_ucx_gate_shut(xm_ucx_gate_t *gate, const void *address, size_t length)
{
    search_t search = {.gate = gate, .address = address, .length = length, .status = XM_OK};

    xm_ucx_sockets_each(shut_listener, &search);
    return search.status;
}

/* A card: the key, the number of doors, and of each its address, its port and where to knock. */
size_t xm_ucx_gate_card(const xm_ucx_gate_t *gate, uint8_t card[XM_UCX_GATE_CARD])
{
    uint8_t *at = card + KEY_SIZE;

    memcpy(card, gate->key, KEY_SIZE);
    *at++ = (uint8_t)gate->door_count;
    for (int i = 0; i < gate->door_count; ++i, at += DOOR_SIZE) {
        xm_ucx_end_t knock = {.port = 0};

        (void)xm_ucx_socket_own_end(gate->doors[i].knock_fd, &knock);
        memcpy(at, gate->doors[i].end.address, XM_ADDRESS_BYTES);
        xm_put_le(at + XM_ADDRESS_BYTES, gate->doors[i].end.port, PORT_SIZE);
        xm_put_le(at + XM_ADDRESS_BYTES + PORT_SIZE, knock.port, PORT_SIZE);
    }
    return gate->door_count > 0 ? (size_t)(at - card) : 0;
}

xm_status_t xm_ucx_gate_learn(xm_ucx_gate_t *gate, const uint8_t *card, size_t length)
{
    int count = length > KEY_SIZE ? card[KEY_SIZE] : 0;
    const uint8_t *at = card + KEY_SIZE + 1;
    target_t *larger;

    if (count == 0 || length != KEY_SIZE + 1 + (size_t)count * DOOR_SIZE) {
        return XM_OK; /* its ports are open, or it has none */
    }
    larger = realloc(gate->targets, (size_t)(gate->target_count + count) * sizeof(*larger));
    if (larger == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "no memory for the ports of the peers");
    }
    gate->targets = larger;
    for (int i = 0; i < count; ++i, at += DOOR_SIZE) {
        target_t *target = &gate->targets[gate->target_count++];

        memcpy(target->key, card, KEY_SIZE);
        memcpy(target->end.address, at, XM_ADDRESS_BYTES);
        target->end.port = (uint16_t)xm_get_le(at + XM_ADDRESS_BYTES, PORT_SIZE);
        target->knock_port = (uint16_t)xm_get_le(at + XM_ADDRESS_BYTES + PORT_SIZE, PORT_SIZE);
    }
    return XM_OK;
}

/* The proof that a rank of the job announces this end. */
static void prove(const uint8_t key[KEY_SIZE], const uint8_t nonce[XM_JOB_NONCE_SIZE],
                  const uint8_t bytes[XM_ADDRESS_BYTES + PORT_SIZE],
                  uint8_t proof[XM_JOB_PROOF_SIZE])
{
    static const uint8_t none[XM_JOB_NONCE_SIZE];
    xm_job_secret_t secret;

    xm_job_secret_set(&secret, key, KEY_SIZE);
    xm_job_secret_prove(&secret, "UCX", none, nonce, bytes, XM_ADDRESS_BYTES + PORT_SIZE, proof);
}

/* Announces an end to a peer's gate. True: it may connect. */
static bool announce(const target_t *target, const xm_ucx_end_t *end, int wait_ms)
{
    const struct timeval limit = {.tv_usec = 1000 * wait_ms},
                         connect_limit = {.tv_usec = 1000 * CONNECT_MS};
    uint8_t nonce[XM_JOB_NONCE_SIZE], bytes[ANNOUNCEMENT_SIZE], answer;
    xm_address_t address;
    bool done;
    int fd;

    xm_ucx_end_address(&target->end, target->knock_port, &address);
    fd = socket(address.socket.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) {
        return false;
    }
    (void)setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &connect_limit, sizeof(connect_limit));
    (void)setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    memcpy(bytes, end->address, XM_ADDRESS_BYTES);
    xm_put_le(bytes + XM_ADDRESS_BYTES, end->port, PORT_SIZE);
    done = connect(fd, (struct sockaddr *)&address.socket, address.length) == 0 &&
           recv(fd, nonce, sizeof(nonce), MSG_WAITALL) == (ssize_t)sizeof(nonce);
    if (done) {
        prove(target->key, nonce, bytes, bytes + XM_ADDRESS_BYTES + PORT_SIZE);
        done = send(fd, bytes, sizeof(bytes), MSG_NOSIGNAL) == (ssize_t)sizeof(bytes) &&
               recv(fd, &answer, 1, 0) == 1;
    }
    (void)close(fd);
    return done;
}

static const target_t *find_target(const xm_ucx_gate_t *gate, const xm_ucx_end_t *end)
{
    for (int i = 0; i < gate->target_count; ++i) {
        if (xm_ucx_end_equal(&gate->targets[i].end, end)) {
            return &gate->targets[i];
        }
    }
    return NULL;
}

/* Has UCX's socket connect once more, from the port that was announced. Only between two calls of
 * UCX, which would take a socket that is not connecting for a failed one. */
static void connect_again(int fd, const xm_ucx_end_t *here, const xm_ucx_end_t *there)
{
    const struct sockaddr nowhere = {.sa_family = AF_UNSPEC};
    xm_address_t own, other;

    xm_ucx_end_address(here, here->port, &own);
    xm_ucx_end_address(there, there->port, &other);
    if (xm_ucx_socket_connects(fd)) {
        (void)connect(fd, &nowhere, sizeof(nowhere));
        (void)bind(fd, (struct sockaddr *)&own.socket, own.length);
        (void)connect(fd, (struct sockaddr *)&other.socket, other.length);
    }
}

static bool knock(xm_ucx_gate_t *gate, int fd, int wait_ms, bool again)
{
    const target_t *target;
    xm_ucx_end_t here, there;

    if (xm_ucx_socket_connects(fd) && xm_ucx_socket_own_end(fd, &here) &&
        xm_ucx_socket_other_end(fd, &there)) {
        target = find_target(gate, &there);
        if (target != NULL && announce(target, &here, wait_ms)) {
            if (again) {
                connect_again(fd, &here, &there);
            } else {
                atomic_store(&gate->unseen, true);
            }
        }
    }
    return false;
}

static bool knock_now(void *arg, int fd)
{
    return knock(arg, fd, KNOCK_MS, true);
}

static bool knock_later(void *arg, int fd)
{
    return knock(arg, fd, LOOK_KNOCK_MS, false);
}

bool xm_ucx_gate_has_unseen(const xm_ucx_gate_t *gate)
{
    return gate != NULL && atomic_load_explicit(&gate->unseen, memory_order_relaxed);
}

void xm_ucx_gate_knock(xm_ucx_gate_t *gate)
{
    atomic_store(&gate->unseen, false);
    if (gate->target_count > 0) {
        xm_ucx_sockets_each(knock_now, gate);
    }
}

/* Lets an end in. One that is there already lasts longer. */
static bool permit(door_t *door, const xm_ucx_end_t *end, int64_t now)
{
    int place = door->next_permit;

    for (int i = 0; i < PERMITS; ++i) {
        place = xm_ucx_end_equal(&door->permits[i].end, end) ? i : place;
    }
    door->next_permit = (door->next_permit + 1) % PERMITS;
    door->permits[place] = (permit_t){.end = *end, .until = now + PERMIT_NS};
    return set_filter(door, now);
}

static xm_door_place_t who_is(void *arg, int place, int64_t *since)
{
    const guest_t *guest = &((const xm_ucx_gate_t *)arg)->guests[place];

    *since = guest->since;
    return guest->fd < 0 ? XM_DOOR_FREE : XM_DOOR_STRANGER;
}

static void drop(void *arg, int place)
{
    guest_t *guest = &((xm_ucx_gate_t *)arg)->guests[place];

    (void)close(guest->fd);
    guest->fd = -1;
}

static void accept_guests(xm_ucx_gate_t *gate, door_t *door)
{
    xm_door_t at = {.fd = door->knock_fd,
                    .places = GUESTS,
                    .strangers = xm_door_strangers(GUESTS),
                    .who = who_is,
                    .drop = drop,
                    .arg = gate};
    int64_t now = xm_clock_ns();
    int place, fd;

    while ((place = xm_door_accept(&at, now, &fd)) >= 0) {
        guest_t *guest = &gate->guests[place];

        *guest = (guest_t){.fd = fd, .since = now, .door = door};
        if (xm_job_secret_random(guest->nonce, sizeof(guest->nonce)) < 0 ||
            send(fd, guest->nonce, sizeof(guest->nonce), MSG_NOSIGNAL) < 0) {
            drop(gate, place);
        }
    }
    gate->full = gate->full || place == XM_DOOR_FULL;
}

/* Reads an announcement, and answers one that is proved. */
static void hear(xm_ucx_gate_t *gate, int place)
{
    guest_t *guest = &gate->guests[place];
    uint8_t proof[XM_JOB_PROOF_SIZE];
    ssize_t got = recv(guest->fd, guest->bytes + guest->have, ANNOUNCEMENT_SIZE - guest->have, 0);
    xm_ucx_end_t end;

    if (got < 0 && (errno == EAGAIN || errno == EINTR)) {
        return;
    }
    guest->have += got > 0 ? (size_t)got : 0;
    if (got > 0 && guest->have < ANNOUNCEMENT_SIZE) {
        return;
    }
    prove(gate->key, guest->nonce, guest->bytes, proof);
    if (got > 0 && xm_job_secret_equal(proof, guest->bytes + XM_ADDRESS_BYTES + PORT_SIZE)) {
        memcpy(end.address, guest->bytes, XM_ADDRESS_BYTES);
        end.port = (uint16_t)xm_get_le(guest->bytes + XM_ADDRESS_BYTES, PORT_SIZE);
        if (permit(guest->door, &end, xm_clock_ns())) {
            (void)send(guest->fd, "", 1, MSG_NOSIGNAL);
        }
    }
    drop(gate, place);
}

/* The gate's thread: answers announcements, and looks for connections that UCX makes unseen. */
static void *keep(void *arg)
{
    xm_ucx_gate_t *gate = arg;
    int64_t look = 0;

    for (;;) {
        struct pollfd polls[1 + XM_UCX_GATE_DOORS + GUESTS];
        nfds_t count = 0;

        polls[count++] = (struct pollfd){.fd = gate->wake_fd, .events = POLLIN};
        for (int i = 0; i < gate->door_count; ++i) {
            polls[count++] =
                (struct pollfd){.fd = gate->full ? -1 : gate->doors[i].knock_fd, .events = POLLIN};
        }
        for (int i = 0; i < GUESTS; ++i) {
            polls[count++] = (struct pollfd){.fd = gate->guests[i].fd, .events = POLLIN};
        }
        (void)poll(polls, count, gate->full ? (int)(XM_DOOR_STAY_NS / 1000000 / 4) : LOOK_MS);
        if (polls[0].revents != 0) {
            return NULL;
        }
        gate->full = false;
        for (int i = 0; i < GUESTS; ++i) {
            if (gate->guests[i].fd >= 0) {
                hear(gate, i);
            }
        }
        for (int i = 0; i < gate->door_count; ++i) {
            accept_guests(gate, &gate->doors[i]);
        }
        if (gate->target_count > 0 && xm_clock_ns() > look) {
            xm_ucx_sockets_each(knock_later, gate);
            look = xm_clock_ns() + INT64_C(1000000) * LOOK_MS;
        }
    }
}

/* Signals are the business of the program's threads. */
xm_status_t xm_ucx_gate_start(xm_ucx_gate_t *gate)
{
    sigset_t all, old;
    int error;

    if (gate->door_count == 0 && gate->target_count == 0) {
        return XM_OK;
    }
    gate->wake_fd = eventfd(0, EFD_CLOEXEC);
    if (gate->wake_fd < 0) {
        return xm_error_set(XM_ERR_IO, "eventfd: %s", strerror(errno));
    }
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_BLOCK, &all, &old);
    error = pthread_create(&gate->thread, NULL, keep, gate);
    (void)pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (error != 0) {
        (void)close(gate->wake_fd);
        gate->wake_fd = -1;
        return xm_error_set(XM_ERR_NO_MEMORY, "no thread for UCX's gate: %s", strerror(error));
    }
    return XM_OK;
}

void xm_ucx_gate_destroy(xm_ucx_gate_t *gate)
{
    if (gate == NULL) {
        return;
    }
    if (gate->wake_fd >= 0) {
        (void)eventfd_write(gate->wake_fd, 1);
        (void)pthread_join(gate->thread, NULL);
        (void)close(gate->wake_fd);
    }
    for (int i = 0; i < GUESTS; ++i) {
        if (gate->guests[i].fd >= 0) {
            drop(gate, i);
        }
    }
    for (int i = 0; i < gate->door_count; ++i) {
        if (gate->doors[i].knock_fd >= 0) {
            (void)close(gate->doors[i].knock_fd);
        }
    }
    explicit_bzero(gate->key, sizeof(gate->key));
    free(gate->targets);
    free(gate->doors);
    free(gate->before);
    free(gate);
}
