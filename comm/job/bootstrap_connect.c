/* SPDX-License-Identifier: Apache-2.0 */
/* How the other ranks of the TCP bootstrap find rank 0. The difficulty is that many things look
 * alike at the start: rank 0 that has not started yet, a port where something else listens, a
 * rank 0 of another job, and a flooded one. So every attempt ends in an outcome that says
 * whether trying again makes sense, and the last failure's sentence tells which of these it
 * was. Nothing is trusted before the peer has proved that it knows the job's secret. */
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "comm/job/bootstrap_tcp.h"
#include "comm/base.h"

/*
 * ANSWER_GRACE_S: a rank that has said hello waits this much longer than its own deadline, because
 * rank 0, which started about as late, is about to say which ranks are missing. ATTEMPT_S: what one
 * of several addresses of rank 0 gets to answer before the next is tried.
 */
static const double ANSWER_GRACE_S = 1.0, ATTEMPT_S = 2.0;
static const double FIRST_RETRY_S = 0.002, LAST_RETRY_S = 0.1;

/* The outcome of an attempt; it decides whether the search goes on. */
typedef enum {
    WELCOMED,
    OVER,    /* there is no sense in trying again; search->fault_status says why */
    FOREIGN, /* whoever listens there is not rank 0 of this job; search->fault_status says how one
              * knows
              */
    CLOSED,  /* the connection ended without an answer: rank 0 may be flooded, or ending */
    UNREACHED
} outcome_t;

typedef struct {
    xm_bootstrap_tcp_t *self;
    const char *place;
    double timeout, deadline;
    const xm_address_t *reached; /* where somebody has accepted a connection */
    bool several;                /* addresses */
    bool greeted;                /* a rank 0 has spoken */
    int closed;                  /* connections that ended without an answer */
    int error;                   /* of the last attempt to connect */
    xm_bootstrap_fault_t fault_status;
} search_t;

/* Keeps a failure with its sentence, because further attempts overwrite the last error. */
static outcome_t conclude(search_t *search, outcome_t outcome, xm_status_t status)
{
    search->fault_status.status = status;
    (void)snprintf(search->fault_status.sentence, sizeof(search->fault_status.sentence), "%s",
                   xm_last_error());
    return outcome;
}

/* Polls until the deadline, whatever signals come; a signal must neither shorten nor prolong
 * the wait. */
static int poll_uninterrupted(struct pollfd *entry, double deadline)
{
    int count;

    do {
        double remaining = deadline - xm_clock_seconds();

        count = poll(entry, 1, remaining > 0.0 ? (int)(remaining * 1000.0) + 1 : 0);
    } while (count < 0 && errno == EINTR);
    return count;
}

/* A port of the ephemeral range where nobody listens may be chosen as the local port of the
 * very connection, which then connects to itself; that looks like success and has to be undone. */
static bool is_connected_to_itself(int fd)
{
    struct sockaddr_storage here, there;
    socklen_t here_length = sizeof(here), there_length = sizeof(there);

    return getsockname(fd, (struct sockaddr *)&here, &here_length) == 0 &&
           getpeername(fd, (struct sockaddr *)&there, &there_length) == 0 &&
           here_length == there_length && memcmp(&here, &there, here_length) == 0;
}

/* Tries one address. Returns the socket, or -1 with errno. The connect does not block, so an
 * address that swallows packets costs no more than its deadline. */
static int try_connect(const xm_address_t *address, double deadline)
{
    int fd = socket(address->socket.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    int error = 0;

    if (fd < 0) {
        return -1;
    }
    if (connect(fd, (const struct sockaddr *)&address->socket, address->length) != 0) {
        struct pollfd entry = {.fd = fd, .events = POLLOUT};
        socklen_t length = sizeof(error);

        error = errno;
        if (error == EINPROGRESS) {
            error = ETIMEDOUT;
            if (poll_uninterrupted(&entry, deadline) > 0 &&
                getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length) != 0) {
                error = errno;
            }
        }
    }
    if (error == 0 && is_connected_to_itself(fd)) {
        error = ECONNREFUSED;
    }
    if (error != 0) {
        (void)close(fd);
        errno = error;
        return -1;
    }
    return fd;
}

/* Answers rank 0's challenge with the identity and a proof over both nonces; @p nonce is this
 * rank's, which rank 0's welcome has to prove in turn. */
static xm_status_t say_hello(search_t *search, const xm_bootstrap_challenge_t *challenge,
                             uint8_t nonce[XM_JOB_NONCE_SIZE])
{
    xm_bootstrap_tcp_t *self = search->self;
    uint8_t bytes[XM_BOOTSTRAP_HELLO_SIZE];
    xm_bootstrap_hello_t hello;

    XM_TRY(xm_job_secret_random(nonce, XM_JOB_NONCE_SIZE));
    /* To prove knowledge of a secret to somebody who has none would not fail, so it is refused
     * here: the settings differ. */
    if (self->secret.length > 0 && !challenge->secret) {
        return XM_MISMATCH("rank %d has a job secret, but rank 0 at %s has none: XM_JOB_SECRET or "
                           "XM_JOB_SECRET_FILE must be equal on all ranks",
                           self->base.rank, search->place);
    }
    xm_bootstrap_identify(self, &hello.identity);
    memcpy(hello.nonce, nonce, sizeof(hello.nonce));
    xm_bootstrap_prove(&self->secret, "rank", nonce, challenge->nonce, &hello.identity,
                       hello.proof);
    xm_bootstrap_link_send(&self->peers[0].link, XM_BOOTSTRAP_HELLO, 0, bytes,
                           xm_bootstrap_hello_encode(&hello, bytes));
    return XM_OK;
}

/* Rank 0 has sent a welcome. Its proof shows that it knows the secret and has seen this rank's
 * nonce, so it is not a recorded one. */
static xm_status_t check_welcome(search_t *search, const xm_bootstrap_challenge_t *challenge,
                                 const uint8_t nonce[XM_JOB_NONCE_SIZE])
{
    xm_bootstrap_tcp_t *self = search->self;
    xm_bootstrap_link_t *link = &self->peers[0].link;
    uint8_t proof[XM_JOB_PROOF_SIZE];
    xm_bootstrap_welcome_t welcome;

    XM_TRY(xm_bootstrap_welcome_decode(link->payload, link->frame.length, &welcome));
    xm_bootstrap_prove(&self->secret, "root", challenge->nonce, nonce, &welcome.identity, proof);
    if (!xm_job_secret_equal(proof, welcome.proof)) {
        return XM_MISMATCH("what listens at %s does not know the secret of rank %d's job",
                           search->place, self->base.rank);
    }
    self->peers[0].pid = welcome.identity.pid;
    self->peers[0].host = strdup(welcome.identity.host);
    XM_NEED_MEMORY(self->peers[0].host, "the name of rank 0");
    return XM_OK;
}

/* Waits for the next frame of rank 0, and sends what is still queued meanwhile. */
static xm_status_t await_frame(search_t *search, double deadline)
{
    xm_bootstrap_link_t *link = &search->self->peers[0].link;
    xm_status_t status;

    while ((status = xm_bootstrap_link_receive(link)) == XM_IN_PROGRESS) {
        struct pollfd entry = {.fd = search->self->epoll, .events = POLLIN};

        if (xm_clock_seconds() >= deadline) {
            return XM_ERR_TIMEOUT;
        }
        (void)poll_uninterrupted(&entry, deadline);
        xm_bootstrap_link_flush(link);
    }
    return status;
}

/* Explains that no frame came. A closed connection is not final, for rank 0 drops connections
 * when strangers flood it. */
static outcome_t explain_silence(search_t *search, xm_status_t status)
{
    int rank = search->self->base.rank;

    if (status == XM_ERR_IO) {
        ++search->closed;
        return CLOSED;
    }
    if (status == XM_ERR_UNSUPPORTED) {
        /* Rank 0 learns of it by a frame that it cannot read either, and need not guess who is
         * missing. */
        xm_bootstrap_link_send(&search->self->peers[0].link, XM_BOOTSTRAP_GOODBYE, 0, NULL, 0);
        return conclude(search, OVER,
                        xm_error_prefix(status,
                                        "rank %d runs another build of crossmesh than rank "
                                        "0 at %s",
                                        rank, search->place));
    }
    if (status != XM_ERR_TIMEOUT) {
        return conclude(search, FOREIGN,
                        xm_error_prefix(status, "what listens at %s is not rank 0 of crossmesh",
                                        search->place));
    }
    if (search->greeted) {
        return conclude(search, OVER,
                        xm_error_set(status,
                                     "rank %d reached rank 0 at %s, which has neither welcomed nor "
                                     "refused it within %g s: it hangs, or waits longer for others",
                                     rank, search->place, search->timeout));
    }
    if (search->closed > 0) {
        return CLOSED; /* as those before, if there had been more time */
    }
    return conclude(
        search, FOREIGN,
        xm_error_set(status,
                     "rank %d is connected to %s, but nothing there has spoken "
                     "crossmesh's protocol within %g s: rank 0 hangs, or something else "
                     "has the port",
                     rank, search->place, search->several ? ATTEMPT_S : search->timeout));
}

/* Rank 0 tells why the rendezvous failed, and its sentence is passed on unchanged: it knows
 * more than this rank. */
static outcome_t read_refusal(search_t *search)
{
    const xm_bootstrap_link_t *link = &search->self->peers[0].link;
    xm_bootstrap_fault_t fault;
    xm_status_t status = xm_bootstrap_fault_decode(link->payload, link->frame.length, &fault);

    return conclude(search, OVER,
                    status < 0 ? status : xm_error_set(fault.status, "%s", fault.sentence));
}

/* Holds the conversation: challenge, hello, welcome. Each step accepts only the frame that may
 * come next, so nothing large is read from somebody who has proved nothing. The challenge gets
 * a short time if there are other addresses to try; the welcome comes only when all ranks are
 * there, so it has the whole deadline and a little more. */
static outcome_t converse(search_t *search)
{
    xm_bootstrap_link_t *link = &search->self->peers[0].link;
    double last = search->deadline + ANSWER_GRACE_S;
    double first = search->several ? xm_clock_seconds() + ATTEMPT_S : last;
    xm_bootstrap_challenge_t challenge;
    uint8_t nonce[XM_JOB_NONCE_SIZE];
    xm_status_t status;

    link->expected = 1u << XM_BOOTSTRAP_CHALLENGE;
    status = await_frame(search, first < last ? first : last);
    XM_THEN(status, xm_bootstrap_challenge_decode(link->payload, link->frame.length, &challenge));
    if (status < 0) {
        return explain_silence(search, status);
    }
    search->greeted = true;
    status = say_hello(search, &challenge, nonce);
    if (status < 0) {
        return conclude(search, FOREIGN, status);
    }
    link->expected = 1u << XM_BOOTSTRAP_WELCOME | 1u << XM_BOOTSTRAP_REFUSAL;
    status = await_frame(search, last);
    if (status < 0) {
        return explain_silence(search, status);
    }
    if (link->frame.type == XM_BOOTSTRAP_REFUSAL) {
        return read_refusal(search);
    }
    link->expected = 0;
    status = check_welcome(search, &challenge, nonce);
    return status < 0 ? conclude(search, FOREIGN, status) : WELCOMED;
}

/* Connects to one address and talks to whoever is there. */
static outcome_t attempt(search_t *search, const xm_address_t *address)
{
    xm_bootstrap_link_t *link = &search->self->peers[0].link;
    double end = xm_clock_seconds() + ATTEMPT_S;
    int fd = try_connect(address, end < search->deadline ? end : search->deadline);
    outcome_t outcome;
    xm_status_t status;

    if (fd < 0) {
        search->error = errno;
        /* Nobody listens any more where somebody did: rank 0 has ended, and waiting for it
         * would be in vain. */
        if (address != search->reached || search->error != ECONNREFUSED) {
            return UNREACHED;
        }
        return conclude(search, OVER,
                        xm_error_set(XM_ERR_PEER_DIED, "rank 0 ended before it welcomed rank %d",
                                     search->self->base.rank));
    }
    search->reached = address;
    status = xm_bootstrap_link_open(link, fd, search->self->epoll, 0);
    if (status < 0) {
        return conclude(search, OVER, status);
    }
    outcome = converse(search);
    if (outcome != WELCOMED) {
        xm_bootstrap_link_close(link); /* no goodbye without a welcome */
    }
    return outcome;
}

/* Makes the sentence for a search that ended without a welcome: the last conclusion if there is
 * one, else what was seen of the connections. */
static xm_status_t explain_end(const search_t *search)
{
    int rank = search->self->base.rank;

    if (search->fault_status.status < 0) {
        return xm_error_set(search->fault_status.status, "%s", search->fault_status.sentence);
    }
    if (search->closed > 0 && search->greeted) {
        return xm_error_set(XM_ERR_TIMEOUT,
                            "rank %d: rank 0 at %s closed %d connections without a welcome within "
                            "%g s",
                            rank, search->place, search->closed, search->timeout);
    }
    if (search->closed > 0) {
        return xm_error_set(XM_ERR_TIMEOUT,
                            "rank %d: what listens at %s closed %d connections without a word "
                            "within %g s: it is not rank 0 of crossmesh",
                            rank, search->place, search->closed, search->timeout);
    }
    return xm_error_set(XM_ERR_TIMEOUT, "rank %d: no rank 0 at %s within %g s: %s", rank,
                        search->place, search->timeout, strerror(search->error));
}

/* Searches for rank 0. It may not have started yet, and when strangers flood it, it drops
 * connections, so addresses are tried in turn until the deadline, with pauses that double up to
 * 0.1 s: a thousand ranks must not hammer one port. Only a refusal where somebody listened
 * before means that rank 0 is gone. */
xm_status_t xm_bootstrap_rendezvous_connect(xm_bootstrap_tcp_t *self,
                                            const xm_addresses_t *addresses, const char *place,
                                            double deadline, double timeout)
{
    search_t search = {.self = self,
                       .place = place,
                       .timeout = timeout,
                       .deadline = deadline,
                       .several = addresses->count > 1};
    struct timespec nap = {0};
    double pause = FIRST_RETRY_S;

    while (true) {
        for (int i = 0; i < addresses->count; ++i) {
            outcome_t outcome = attempt(&search, &addresses->list[i]);

            if (outcome == WELCOMED) {
                return XM_OK;
            }
            if (outcome == OVER || (outcome == FOREIGN && !search.several)) {
                return explain_end(&search);
            }
        }
        if (xm_clock_seconds() + pause >= search.deadline) {
            return explain_end(&search);
        }
        nap.tv_nsec = (long)(pause * 1e9);
        (void)nanosleep(&nap, NULL);
        pause = pause * 2 < LAST_RETRY_S ? pause * 2 : LAST_RETRY_S;
    }
}
