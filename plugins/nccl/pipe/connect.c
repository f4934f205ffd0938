/* SPDX-License-Identifier: Apache-2.0 */
/* How a pipe is made: the listener, and the handshake of both ends, none of which blocks. The
 * listener's handle carries a random number; both ends prove by a keyed hash that they have it,
 * so the open port admits nobody else. Then each opens a UCX transport of two ranks, sends the
 * blob of its addresses and joins with that of the other. Each stage of the handshake waits for
 * a known number of bytes, so a slow or hostile end can neither block the caller nor make it
 * allocate much. */
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include <xxhash.h>

#include "comm/job.h"
#include "comm/base.h"
#include "comm/topology.h"
#include "plugins/nccl/pipe/progress_thread.h"
#include "plugins/nccl/pipe/pipe_private.h"
#include "comm/transport/ucx.h"

/* The number of handshakes that a listener holds at a time; more wait in the kernel's queue. */
enum { GUESTS_MAX = 16, LENGTH_SIZE = 4, SENDER = 0, RECEIVER = 1 };

/* attempt_s: the time that one of several addresses gets to take the connection before the next
 * is tried. stranger_s: the time that whoever has connected gets to prove that it may. */
static const double attempt_s = 2.0, stranger_s = 10.0;

struct xm_pipe_listener {
    int fd;
    char *nics;
    double timeout;
    xm_pipe_handle_t handle;
    xm_pipe_t *guests[GUESTS_MAX];
};

/* Watches the connection: if the machine of the other end loses its power, the kernel says so
 * after 4 seconds. */
static void watch_connection(int fd)
{
    int one = 1, probes = 3;

    (void)setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof(one));
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &one, sizeof(one));
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &one, sizeof(one));
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof(probes));
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
}

/* Puts bytes behind what is still to be written. */
static xm_status_t say(xm_pipe_t *pipe, const void *bytes, size_t length)
{
    uint8_t *grown = realloc(pipe->out, pipe->out_length + length);

    XM_NEED_MEMORY(grown, "%zu bytes of a handshake", length);
    memcpy(grown + pipe->out_length, bytes, length);
    pipe->out = grown;
    pipe->out_length += length;
    return XM_OK;
}

static xm_status_t broken(const xm_pipe_t *pipe, const char *why)
{
    return xm_error_set(XM_ERR_UNREACHABLE, "the %s ended the handshake of a pipe: %s",
                        pipe->sender ? "receiver" : "sender", why);
}

/* Writes what the socket takes now. */
static xm_status_t write_out(xm_pipe_t *pipe)
{
    while (pipe->out_at < pipe->out_length) {
        ssize_t count = send(pipe->fd, pipe->out + pipe->out_at, pipe->out_length - pipe->out_at,
                             MSG_NOSIGNAL | MSG_DONTWAIT);

        if (count < 0 && (errno == EAGAIN || errno == EINTR)) {
            return XM_IN_PROGRESS;
        }
        if (count < 0) {
            return broken(pipe, strerror(errno));
        }
        pipe->out_at += (size_t)count;
    }
    pipe->out_at = pipe->out_length = 0;
    return XM_OK;
}

/* Sets how many bytes are waited for next. */
static xm_status_t expect(xm_pipe_t *pipe, size_t length)
{
    uint8_t *grown = realloc(pipe->in, length);

    XM_NEED_MEMORY(grown, "%zu bytes of a handshake", length);
    pipe->in = grown;
    pipe->in_have = 0;
    pipe->in_want = length;
    return XM_OK;
}

/* An end that closes here has turned this one away, or has died: the handshake cannot tell. */
static xm_status_t read_in(xm_pipe_t *pipe)
{
    while (pipe->in_have < pipe->in_want) {
        ssize_t count =
            recv(pipe->fd, pipe->in + pipe->in_have, pipe->in_want - pipe->in_have, MSG_DONTWAIT);

        if (count < 0 && (errno == EAGAIN || errno == EINTR)) {
            return XM_IN_PROGRESS;
        }
        if (count <= 0) {
            return broken(pipe, count == 0 ? "it closed the connection" : strerror(errno));
        }
        pipe->in_have += (size_t)count;
    }
    return XM_OK;
}

static xm_status_t wait_for(xm_pipe_t *pipe, xm_pipe_stage_t stage, size_t length)
{
    pipe->stage = stage;
    return expect(pipe, length);
}

/* Host and machine go as hashes: only their equality matters. The nonce is new for each pipe. */
static xm_status_t introduce(xm_pipe_t *pipe)
{
    xm_host_identity_t identity;

    xm_host_identity_read(NULL, &identity);
    pipe->own.host = XXH64(identity.host, strlen(identity.host), 0);
    pipe->own.machine = XXH64(identity.machine, strlen(identity.machine), 0);
    pipe->own.pid = (uint32_t)getpid();
    (void)snprintf(pipe->own.name, sizeof(pipe->own.name), "%.63s", identity.name);
    return xm_job_secret_random(pipe->own.nonce, sizeof(pipe->own.nonce));
}

static xm_status_t say_hello(xm_pipe_t *pipe)
{
    uint8_t bytes[XM_PIPE_HELLO_SIZE];

    xm_pipe_pack_hello(&pipe->own, &pipe->secret, pipe->sender ? "sender" : "receiver",
                       pipe->other.nonce, bytes);
    return say(pipe, bytes, sizeof(bytes));
}

/* Both ends know each other now: opens the transport and tells where it can be reached.
 * `fault_channel` is set because the TCP connection reports the other's death; `spin`, because
 * the pipe is polled by its user. */
static xm_status_t open_transport(xm_pipe_t *pipe)
{
    bool same_host = pipe->own.host == pipe->other.host,
         same_machine = pipe->own.machine == pipe->other.machine;
    int host[] = {0, same_host ? 0 : 1}, machine[] = {0, same_machine ? 0 : 1};
    xm_transport_ucx_params_t params = XM_TRANSPORT_UCX_PARAMS_INIT;
    uint8_t length[LENGTH_SIZE];

    XM_TRY(xm_counters_create(2, &pipe->counters));
    params.host = host;
    params.machine = machine;
    params.fault_channel = true;
    params.spin = true;
    params.nics = pipe->nics;
    params.counters = pipe->counters;
    params.failover = xm_config_choice(XM_CONFIG_FAILOVER) == 0;
    XM_TRY(xm_transport_ucx_open(pipe->sender ? SENDER : RECEIVER, 2, &params, &pipe->transport,
                                 &pipe->blob, &pipe->blob_length));
    xm_put_le(length, pipe->blob_length, sizeof(length));
    XM_TRY(say(pipe, length, sizeof(length)));
    XM_TRY(say(pipe, pipe->blob, pipe->blob_length));
    return wait_for(pipe, XM_PIPE_STAGE_LENGTH, LENGTH_SIZE);
}

/* The other end's blob is there: joins both, in the order of the ranks, which is the same at
 * both ends. A sender's pipe is then given to the progress thread. */
static xm_status_t join_transport(xm_pipe_t *pipe)
{
    const void *blobs[2];
    size_t lengths[2], offsets[3] = {0};
    uint8_t *all = malloc(pipe->blob_length + pipe->in_want);

    XM_NEED_MEMORY(all, "the addresses of a pipe");
    blobs[pipe->sender ? SENDER : RECEIVER] = pipe->blob;
    lengths[pipe->sender ? SENDER : RECEIVER] = pipe->blob_length;
    blobs[pipe->sender ? RECEIVER : SENDER] = pipe->in;
    lengths[pipe->sender ? RECEIVER : SENDER] = pipe->in_want;
    for (int rank = 0; rank < 2; ++rank) {
        memcpy(all + offsets[rank], blobs[rank], lengths[rank]);
        offsets[rank + 1] = offsets[rank] + lengths[rank];
    }
    XM_TRY(xm_transport_ucx_join(pipe->transport, all, offsets));
    XM_TRY(xm_pipe_start(pipe));
    if (pipe->sender) {
        XM_TRY(xm_pipe_progress_thread_add(pipe));
    }
    pipe->stage = XM_PIPE_STAGE_OPEN;
    return XM_OK;
}

/* Handles what was waited for, and says what is waited for next. The receiver proves itself
 * only after the sender has: a stranger learns nothing from it. */
static xm_status_t step(xm_pipe_t *pipe)
{
    size_t length;
    xm_status_t status;

    switch (pipe->stage) {
    case XM_PIPE_STAGE_CHALLENGE:
        XM_TRY(xm_pipe_read_challenge(pipe->in, pipe->other.nonce));
        XM_TRY(say_hello(pipe));
        return wait_for(pipe, XM_PIPE_STAGE_HELLO, XM_PIPE_HELLO_SIZE);
    case XM_PIPE_STAGE_HELLO:
        status = xm_pipe_read_hello(pipe->in, &pipe->secret, pipe->sender ? "receiver" : "sender",
                                    pipe->own.nonce, &pipe->other);
        if (status == XM_OK && !pipe->sender) {
            status = say_hello(pipe);
        }
        /* From here on the other end is known, and gets the whole timeout. */
        pipe->attempt_deadline = pipe->deadline = xm_clock_seconds() + pipe->timeout;
        return status == XM_OK ? open_transport(pipe) : status;
    case XM_PIPE_STAGE_LENGTH:
        length = (size_t)xm_get_le(pipe->in, LENGTH_SIZE);
        /* The length is the other's claim and is bounded before memory is taken. */
        if (length == 0 || length > XM_PIPE_BLOB_MAX) {
            return xm_error_set(XM_ERR_CORRUPT, "the other end of a pipe announces %zu bytes",
                                length);
        }
        return wait_for(pipe, XM_PIPE_STAGE_BLOB, length);
    default:
        return join_transport(pipe);
    }
}

static void close_socket(xm_pipe_t *pipe)
{
    if (pipe->fd >= 0) {
        (void)close(pipe->fd);
    }
    pipe->fd = -1;
    pipe->out_at = pipe->out_length = 0;
}

/* Begins to connect to the address that is tried now. The last one has all the time that is
 * left. */
static xm_status_t begin_attempt(xm_pipe_t *pipe)
{
    const xm_address_t *address = &pipe->handle.addresses.list[pipe->address];
    bool last = pipe->address + 1 == pipe->handle.addresses.count;

    pipe->stage = XM_PIPE_STAGE_CONNECT;
    pipe->attempt_deadline = last ? pipe->deadline : xm_clock_seconds() + attempt_s;
    pipe->fd = socket(address->socket.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (pipe->fd < 0) {
        return xm_error_set(XM_ERR_IO, "no socket for a pipe: %s", strerror(errno));
    }
    watch_connection(pipe->fd);
    if (connect(pipe->fd, (const struct sockaddr *)&address->socket, address->length) != 0 &&
        errno != EINPROGRESS) {
        return xm_error_set(XM_ERR_UNREACHABLE, "the listener of a pipe cannot be reached: %s",
                            strerror(errno));
    }
    return XM_OK;
}

/* Finds out whether the socket is connected. */
static xm_status_t finish_connect(xm_pipe_t *pipe)
{
    struct pollfd entry = {.fd = pipe->fd, .events = POLLOUT};
    int error = 0;
    socklen_t length = sizeof(error);

    if (poll(&entry, 1, 0) <= 0) {
        return XM_IN_PROGRESS;
    }
    if (getsockopt(pipe->fd, SOL_SOCKET, SO_ERROR, &error, &length) != 0) {
        error = errno;
    }
    if (error != 0) {
        return xm_error_set(XM_ERR_UNREACHABLE, "the listener of a pipe cannot be reached: %s",
                            strerror(error));
    }
    /* The kernel took the connection; the listener may look at it much later, so the short
     * limit of an attempt does not count any more. */
    pipe->attempt_deadline = pipe->deadline;
    return wait_for(pipe, XM_PIPE_STAGE_CHALLENGE, XM_PIPE_CHALLENGE_SIZE);
}

/* Goes as far as it can now. */
static xm_status_t go_on(xm_pipe_t *pipe)
{
    xm_status_t status = XM_OK;

    while (status == XM_OK && pipe->stage != XM_PIPE_STAGE_OPEN) {
        if (pipe->stage == XM_PIPE_STAGE_CONNECT) {
            status = finish_connect(pipe);
            continue;
        }
        status = write_out(pipe);
        XM_THEN(status, read_in(pipe));
        XM_THEN(status, step(pipe));
    }
    /* The last words of the handshake may be either end's, so they are written out here. */
    return status == XM_OK ? write_out(pipe) : status;
}

/* Tries the next address, as long as nobody has proved to be the listener: after that an error
 * is final. */
static xm_status_t try_next(xm_pipe_t *pipe, xm_status_t status)
{
    while (status < 0 && pipe->sender && pipe->stage <= XM_PIPE_STAGE_HELLO &&
           pipe->address + 1 < pipe->handle.addresses.count) {
        close_socket(pipe);
        ++pipe->address;
        status = begin_attempt(pipe);
    }
    return status == XM_OK ? XM_IN_PROGRESS : status;
}

/* One step of the handshake. Its buffers are freed when it has ended in either way. */
xm_status_t xm_pipe_shake_hands(xm_pipe_t *pipe)
{
    xm_status_t status = go_on(pipe);

    if (status == XM_IN_PROGRESS && xm_clock_seconds() > pipe->attempt_deadline) {
        status = xm_error_set(XM_ERR_TIMEOUT, "the %s of a pipe has not answered in time",
                              pipe->sender ? "receiver" : "sender");
    }
    if (status < 0) {
        status = try_next(pipe, status);
    }
    if (status != XM_IN_PROGRESS) {
        free(pipe->out);
        free(pipe->in);
        free(pipe->blob);
        pipe->out = pipe->in = pipe->blob = NULL;
    }
    return status;
}

/* Begins to connect. Errors of the first addresses are not reported as long as there are others. */
xm_status_t xm_pipe_connect(const xm_pipe_params_t *params,
                            const uint8_t handle[XM_PIPE_HANDLE_SIZE], xm_pipe_t **pipe)
{
    xm_pipe_t *self = NULL;
    xm_status_t status;

    XM_TRY(xm_pipe_create(true, params->nics, params->timeout, &self));
    status = xm_pipe_read_handle(handle, &self->handle);
    XM_THEN(status, introduce(self));
    if (status == XM_OK) {
        xm_job_secret_set(&self->secret, self->handle.nonce, sizeof(self->handle.nonce));
        self->deadline = xm_clock_seconds() + self->timeout;
        status = begin_attempt(self);
        status = status < 0 ? try_next(self, status) : status;
    }
    if (status < 0) {
        xm_pipe_destroy(self);
        return status;
    }
    *pipe = self;
    return XM_OK;
}

/* Listens at all addresses of this machine, or at loopback if that is all there is. */
xm_status_t xm_pipe_listen(const xm_pipe_params_t *params, uint8_t handle[XM_PIPE_HANDLE_SIZE],
                           xm_pipe_listener_t **listener)
{
    xm_pipe_listener_t *self;
    xm_addresses_t *addresses;
    xm_status_t status;

    self = calloc(1, sizeof(*self));
    XM_NEED_MEMORY(self, "a listener");
    self->fd = -1;
    self->timeout = params->timeout > 0 ? params->timeout : xm_config_seconds(XM_CONFIG_TIMEOUT);
    self->nics = strdup(params->nics != NULL ? params->nics : "");
    addresses = &self->handle.addresses;
    status = xm_bootstrap_listen_free(false, &self->fd, addresses);
    if (status == XM_ERR_UNREACHABLE) { /* this machine has nothing but its loopback interface */
        self->fd = -1;
        status = xm_bootstrap_listen_free(true, &self->fd, addresses);
    }
    if (status < 0) {
        self->fd = -1;
    } else if (fcntl(self->fd, F_SETFL, O_NONBLOCK) != 0) {
        status = xm_error_set(XM_ERR_IO, "fcntl: %s", strerror(errno));
    } else {
        status = xm_job_secret_random(self->handle.nonce, sizeof(self->handle.nonce));
    }
    if (status == XM_OK && self->nics == NULL) {
        status = XM_NO_MEMORY("a listener");
    }
    if (status < 0) {
        xm_pipe_listener_destroy(self);
        return status;
    }
    addresses->count =
        addresses->count < XM_PIPE_ADDRESSES_MAX ? addresses->count : XM_PIPE_ADDRESSES_MAX;
    xm_pipe_pack_handle(&self->handle, handle);
    *listener = self;
    return XM_OK;
}

/* Takes a connection in and challenges it. It counts as a guest until it has proved itself. */
static xm_status_t receive_guest(const xm_pipe_listener_t *listener, int fd, xm_pipe_t **guest)
{
    uint8_t challenge[XM_PIPE_CHALLENGE_SIZE];
    xm_pipe_t *pipe;
    xm_status_t status = xm_pipe_create(false, listener->nics, listener->timeout, &pipe);

    if (status < 0) {
        (void)close(fd);
        return status;
    }
    pipe->fd = fd;
    watch_connection(fd);
    xm_job_secret_set(&pipe->secret, listener->handle.nonce, sizeof(listener->handle.nonce));
    pipe->deadline = pipe->attempt_deadline = xm_clock_seconds() + stranger_s;
    status = introduce(pipe);
    if (status == XM_OK) {
        xm_pipe_pack_challenge(pipe->own.nonce, challenge);
        status = say(pipe, challenge, sizeof(challenge));
    }
    XM_THEN(status, wait_for(pipe, XM_PIPE_STAGE_HELLO, XM_PIPE_HELLO_SIZE));
    if (status < 0) {
        xm_pipe_destroy(pipe);
        return status;
    }
    *guest = pipe;
    return XM_OK;
}

/* Moves all guests one step, and returns the first that is done. Each free place takes one
 * connection from the kernel, so a flood of strangers fills GUESTS_MAX places at most and each
 * for stranger_s; whoever fails is logged and dropped, and the listener goes on. */
xm_status_t xm_pipe_accept(xm_pipe_listener_t *listener, xm_pipe_t **pipe)
{
    for (int i = 0; i < GUESTS_MAX; ++i) {
        xm_pipe_t **guest = &listener->guests[i];
        xm_status_t status = XM_OK;

        if (*guest == NULL) {
            int fd = accept4(listener->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

            if (fd < 0) {
                continue;
            }
            XM_TRY(receive_guest(listener, fd, guest));
        }
        status = xm_pipe_shake_hands(*guest);
        if (status == XM_OK) {
            *pipe = *guest;
            *guest = NULL;
            return XM_OK;
        }
        if (status < 0) {
            xm_log_write(status == XM_ERR_UNREACHABLE ? XM_LOG_INFO : XM_LOG_WARN, __FILE__,
                         __LINE__, "turned away: %s", xm_last_error());
            xm_pipe_destroy(*guest);
            *guest = NULL;
        }
    }
    return XM_IN_PROGRESS;
}

/* Guests that are not finished end with the listener. */
void xm_pipe_listener_destroy(xm_pipe_listener_t *listener)
{
    if (listener == NULL) {
        return;
    }
    for (int i = 0; i < GUESTS_MAX; ++i) {
        xm_pipe_destroy(listener->guests[i]);
    }
    if (listener->fd >= 0) {
        (void)close(listener->fd);
    }
    free(listener->nics);
    free(listener);
}
