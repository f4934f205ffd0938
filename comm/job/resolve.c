/* SPDX-License-Identifier: Apache-2.0 */
/* Looking up host names within a deadline. getaddrinfo() may block for minutes and cannot be
 * cancelled, so it runs in a thread of its own that is left behind when time is up; the result
 * lives in an object that both threads hold, and the last one frees it. Addresses in digits
 * take neither thread nor time. */
#include "comm/job/resolve.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "comm/base.h"

static const double AGAIN_PAUSE_S = 0.2;

/* One look-up, held by the thread that does it and the one that waits; the last to let go frees
 * it. */
typedef struct {
    pthread_mutex_t lock;
    pthread_cond_t ended;
    int holders;
    bool done;
    int error, system_error; /* getaddrinfo()'s, and errno with EAI_SYSTEM */
    xm_addresses_t found;
    char service[16];
    char host[];
} lookup_t;

static void collect(const struct addrinfo *list, xm_addresses_t *addresses)
{
    addresses->count = 0;
    for (; list != NULL && addresses->count < XM_ADDRESSES_MAX; list = list->ai_next) {
        if (list->ai_addrlen <= sizeof(struct sockaddr_storage)) {
            xm_address_t *address = &addresses->list[addresses->count++];

            memset(address, 0, sizeof(*address));
            memcpy(&address->socket, list->ai_addr, list->ai_addrlen);
            address->length = list->ai_addrlen;
        }
    }
}

/* Asks once, and blocks as long as the resolver does. Returns getaddrinfo()'s error. */
static int ask(const char *host, const char *service, int flags, xm_addresses_t *addresses)
{
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = flags};
    struct addrinfo *list;
    int error = getaddrinfo(host, service, &hints, &list);

    if (error == 0) {
        collect(list, addresses);
        freeaddrinfo(list);
    }
    return error;
}

/* The lock decides who was the last holder; the lookup is freed outside of it, when nobody else can
 * reach it. */
static void let_go(lookup_t *lookup)
{
    bool last;

    (void)pthread_mutex_lock(&lookup->lock);
    last = --lookup->holders == 0;
    (void)pthread_mutex_unlock(&lookup->lock);
    if (last) {
        (void)pthread_cond_destroy(&lookup->ended);
        (void)pthread_mutex_destroy(&lookup->lock);
        free(lookup);
    }
}

/* The thread. It works on a local result, because the waiting thread may read the shared one as
 * soon as `done` is set. */
static void *look_up(void *arg)
{
    lookup_t *lookup = arg;
    xm_addresses_t found = {0};
    int error = ask(lookup->host, lookup->service, 0, &found), system_error = errno;

    (void)pthread_mutex_lock(&lookup->lock);
    lookup->found = found;
    lookup->error = error;
    lookup->system_error = system_error;
    lookup->done = true;
    (void)pthread_cond_signal(&lookup->ended);
    (void)pthread_mutex_unlock(&lookup->lock);
    let_go(lookup);
    return NULL;
}

/* The condition uses the monotonic clock: setting the time of day must not change a deadline. */
static lookup_t *lookup_create(const char *host, const char *service)
{
    lookup_t *lookup = calloc(1, sizeof(*lookup) + strlen(host) + 1);
    pthread_condattr_t clock;

    if (lookup == NULL) {
        return NULL;
    }
    memcpy(lookup->host, host, strlen(host) + 1);
    (void)snprintf(lookup->service, sizeof(lookup->service), "%s", service);
    lookup->holders = 2;
    (void)pthread_condattr_init(&clock);
    (void)pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    (void)pthread_mutex_init(&lookup->lock, NULL);
    (void)pthread_cond_init(&lookup->ended, &clock);
    (void)pthread_condattr_destroy(&clock);
    return lookup;
}

/* Starts the thread with all signals blocked, because those that are meant for the program must
 * reach its own threads. */
static int start(lookup_t *lookup)
{
    sigset_t all, before;
    pthread_t thread;
    int error;

    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    error = pthread_create(&thread, NULL, look_up, lookup);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error == 0) {
        (void)pthread_detach(thread);
    }
    return error;
}

/* Waits for the end of a look-up; false when the deadline passes first. */
static bool await(lookup_t *lookup, double deadline)
{
    struct timespec until = {.tv_sec = (time_t)deadline,
                             .tv_nsec = (long)((deadline - (double)(time_t)deadline) * 1e9)};
    int error = 0;
    bool done;

    (void)pthread_mutex_lock(&lookup->lock);
    while (!lookup->done && error != ETIMEDOUT) {
        error = pthread_cond_timedwait(&lookup->ended, &lookup->lock, &until);
    }
    done = lookup->done;
    (void)pthread_mutex_unlock(&lookup->lock);
    return done;
}

/* Makes one look-up in a thread. XM_IN_PROGRESS: the name server says "later". If the thread
 * cannot start, its half of the object is let go as well. */
static xm_status_t try_once(const char *what, const char *host, const char *service,
                            double deadline, xm_addresses_t *addresses)
{
    lookup_t *lookup = lookup_create(host, service);
    xm_status_t status = XM_OK;
    int error = lookup != NULL ? start(lookup) : ENOMEM;

    if (error != 0) {
        if (lookup != NULL) {
            let_go(lookup);
            let_go(lookup);
        }
        return xm_error_set(XM_ERR_NO_MEMORY, "%s %s: cannot look it up: %s", what, host,
                            strerror(error));
    }
    if (!await(lookup, deadline)) {
        status =
            xm_error_set(XM_ERR_TIMEOUT, "%s %s: the resolver gave no answer in time", what, host);
    } else if (lookup->error == EAI_AGAIN) {
        status = XM_IN_PROGRESS;
    } else if (lookup->error != 0) {
        status = xm_error_set(XM_ERR_UNREACHABLE, "%s %s: %s", what, host,
                              lookup->error == EAI_SYSTEM ? strerror(lookup->system_error)
                                                          : gai_strerror(lookup->error));
    } else {
        *addresses = lookup->found;
    }
    let_go(lookup);
    return status;
}

/* Resolves a name. "Later" is asked again until the deadline: at the start of a job the name
 * server is often overloaded by the job itself. */
xm_status_t xm_resolve(const char *what, const char *host, int port, double deadline,
                       xm_addresses_t *addresses)
{
    struct timespec nap = {.tv_nsec = (long)(AGAIN_PAUSE_S * 1e9)};
    char service[16];
    xm_status_t status;
    bool again = false;

    (void)snprintf(service, sizeof(service), "%d", port);
    if (ask(host, service, AI_NUMERICHOST | AI_NUMERICSERV, addresses) == 0) {
        return XM_OK;
    }
    while ((status = try_once(what, host, service, deadline, addresses)) == XM_IN_PROGRESS &&
           xm_clock_seconds() + AGAIN_PAUSE_S < deadline) {
        again = true;
        (void)nanosleep(&nap, NULL);
    }
    /* If the last question had no time left for an answer, the earlier answers say what is
     * wrong. */
    return status == XM_IN_PROGRESS || (status == XM_ERR_TIMEOUT && again)
               ? xm_error_set(XM_ERR_UNREACHABLE, "%s %s: %s", what, host, gai_strerror(EAI_AGAIN))
               : status;
}

bool xm_resolve_is_numeric(const char *host)
{
    xm_addresses_t found;

    return ask(host, NULL, AI_NUMERICHOST, &found) == 0;
}

/* Also true for a loopback address of IPv4 that is mapped into IPv6. */
bool xm_address_is_loopback(const struct sockaddr_storage *address)
{
    const struct in6_addr *ipv6 = &((const struct sockaddr_in6 *)address)->sin6_addr;

    switch (address->ss_family) {
    case AF_INET:
        return ntohl(((const struct sockaddr_in *)address)->sin_addr.s_addr) >> 24 ==
               IN_LOOPBACKNET;
    case AF_INET6:
        return IN6_IS_ADDR_LOOPBACK(ipv6) ||
               (IN6_IS_ADDR_V4MAPPED(ipv6) && ipv6->s6_addr[12] == IN_LOOPBACKNET);
    default:
        return false;
    }
}

void xm_address_set_port(xm_address_t *address, int port)
{
    if (address->socket.ss_family == AF_INET6) {
        ((struct sockaddr_in6 *)&address->socket)->sin6_port = htons((uint16_t)port);
    } else {
        ((struct sockaddr_in *)&address->socket)->sin_port = htons((uint16_t)port);
    }
}

int xm_address_port(const xm_address_t *address)
{
    return address->socket.ss_family == AF_INET6
               ? ntohs(((const struct sockaddr_in6 *)&address->socket)->sin6_port)
               : ntohs(((const struct sockaddr_in *)&address->socket)->sin_port);
}

void xm_address_write(const struct sockaddr_storage *address, uint8_t bytes[XM_ADDRESS_BYTES])
{
    memset(bytes, 0, XM_ADDRESS_BYTES);
    if (address->ss_family == AF_INET6) {
        memcpy(bytes, &((const struct sockaddr_in6 *)address)->sin6_addr, XM_ADDRESS_BYTES);
    } else {
        memset(bytes + 10, 0xff, 2);
        memcpy(bytes + 12, &((const struct sockaddr_in *)address)->sin_addr, 4);
    }
}

void xm_address_read(const uint8_t bytes[XM_ADDRESS_BYTES], xm_address_t *address)
{
    struct sockaddr_in *ipv4 = (struct sockaddr_in *)&address->socket;
    struct sockaddr_in6 *ipv6 = (struct sockaddr_in6 *)&address->socket;

    memset(address, 0, sizeof(*address));
    if (IN6_IS_ADDR_V4MAPPED((const struct in6_addr *)(const void *)bytes)) {
        ipv4->sin_family = AF_INET;
        memcpy(&ipv4->sin_addr, bytes + 12, 4);
        address->length = sizeof(*ipv4);
    } else {
        ipv6->sin6_family = AF_INET6;
        memcpy(&ipv6->sin6_addr, bytes, XM_ADDRESS_BYTES);
        address->length = sizeof(*ipv6);
    }
}
