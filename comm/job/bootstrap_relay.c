/* SPDX-License-Identifier: Apache-2.0 */
/* A TCP relay whose ranks learn through an allgather of somebody else's (PMIx, a caller's table)
 * where rank 0 listens. Two small exchanges are enough: first whether all ranks share one network
 * stack, which decides whether rank 0 listens at loopback or everywhere; then rank 0's card with
 * its addresses, port and a random secret. A failure of rank 0 must still reach the second
 * exchange, or the others would wait for it. */
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <xxhash.h>

#include "comm/job/bootstrap_listen.h"
#include "comm/job/bootstrap_tcp.h"
#include "comm/base.h"

/* A number that tells one network stack from another: the machine's name and boot, and the
 * network namespace. Containers of one host may have different stacks, and then share no
 * loopback interface. */
static uint64_t own_stack(void)
{
    char text[64 + 256] = "";
    struct stat namespace = {0};
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);

    if (fd >= 0) {
        (void)!read(fd, text, 63);
        (void)close(fd);
    }
    (void)gethostname(text + 64, sizeof(text) - 64);
    (void)stat("/proc/self/ns/net", &namespace);
    return XXH64(text, sizeof(text), namespace.st_ino);
}

/* Finds out whether the loopback interface of this rank is that of all. */
static xm_status_t compare_stacks(xm_bootstrap_t *bootstrap, double deadline, bool *local)
{
    size_t size = (size_t)bootstrap->size;
    uint64_t own = own_stack(), *all = malloc(size * sizeof(*all));
    xm_status_t status;

    XM_NEED_MEMORY(all, "the hosts of %zu ranks", size);
    /* Never read as a number: equal bytes mean the same machine. */
    status =
        xm_bootstrap_allgather(bootstrap, &own, all, sizeof(own), deadline - xm_clock_seconds());
    *local = status == XM_OK;
    for (size_t rank = 0; rank < size && status == XM_OK; ++rank) {
        *local = *local && all[rank] == own;
    }
    free(all);
    return status;
}

/* Rank 0 listens and writes its card. A card without a port tells the others that it failed,
 * which ends them with a sentence instead of a timeout. */
static xm_status_t make_card(bool local, int *listen_fd, xm_bootstrap_card_t *card)
{
    xm_addresses_t addresses;

    XM_TRY(xm_bootstrap_listen_free(local, listen_fd, &addresses));
    XM_TRY(xm_job_secret_random(card->secret, sizeof(card->secret)));
    for (int i = 0; i < addresses.count && i < XM_BOOTSTRAP_CARD_ADDRESSES; ++i) {
        xm_address_write(&addresses.list[i].socket, card->addresses[card->count++]);
    }
    card->port = xm_address_port(&addresses.list[0]);
    return XM_OK;
}

/* Gives every rank rank 0's card. All ranks contribute one, because that is what an allgather
 * is; only the first is read. */
static xm_status_t share_card(xm_bootstrap_t *bootstrap, xm_bootstrap_card_t *card, double deadline)
{
    size_t size = (size_t)bootstrap->size;
    uint8_t own[XM_BOOTSTRAP_CARD_SIZE], *all = malloc(size * sizeof(own));
    xm_status_t status;

    XM_NEED_MEMORY(all, "the cards of %zu ranks", size);
    xm_bootstrap_card_encode(card, own);
    status =
        xm_bootstrap_allgather(bootstrap, own, all, sizeof(own), deadline - xm_clock_seconds());
    XM_THEN(status, xm_bootstrap_card_decode(all, card));
    free(all);
    return status;
}

/* Connects to rank 0 at the addresses of its card, in their order. The text of all addresses
 * goes into sentences. */
static xm_status_t connect_by_card(xm_bootstrap_tcp_t *self, const xm_bootstrap_card_t *card,
                                   double deadline, double timeout)
{
    xm_addresses_t addresses = {.count = card->count};
    char place[XM_BOOTSTRAP_CARD_ADDRESSES * (INET6_ADDRSTRLEN + 2) + 16] = "",
                                                                      text[INET6_ADDRSTRLEN];

    if (card->port == 0 || card->count == 0) {
        return xm_error_set(XM_ERR_UNREACHABLE, "rank 0 cannot listen for the other ranks");
    }
    for (int i = 0; i < card->count; ++i) {
        xm_address_read(card->addresses[i], &addresses.list[i]);
        xm_address_set_port(&addresses.list[i], card->port);
        if (getnameinfo((const struct sockaddr *)&addresses.list[i].socket,
                        addresses.list[i].length, text, sizeof(text), NULL, 0,
                        NI_NUMERICHOST) == 0) {
            xm_text_list_add(place, sizeof(place), ", ", "%s", text);
        }
    }
    xm_text_list_add(place, sizeof(place), " ", "port %d", card->port);
    return xm_bootstrap_rendezvous_connect(self, &addresses, place, deadline, timeout);
}

/* Holds the rendezvous of the relay, after `card` has been shared. */
static xm_status_t meet(xm_bootstrap_tcp_t *self, const xm_bootstrap_card_t *card, int listen_fd,
                        double deadline, double timeout)
{
    if (self->base.rank != 0) {
        return connect_by_card(self, card, deadline, timeout);
    }
    return xm_bootstrap_rendezvous_accept(self, listen_fd, deadline, timeout);
}

/* Makes the relay. Rank 0 takes part in sharing the card even if its own steps have failed, and
 * reports its error only afterwards. */
static xm_status_t make_relay(xm_bootstrap_t *table, double timeout, xm_bootstrap_tcp_t **relay)
{
    double deadline = xm_clock_seconds() + timeout;
    xm_bootstrap_card_t card = {0};
    xm_job_secret_t secret;
    int listen_fd = -1;
    bool local = false;
    xm_error_t made = {0};
    xm_status_t shared, status = compare_stacks(table, deadline, &local);

    XM_TRY(status);
    if (table->rank == 0) {
        xm_error_save(&made, make_card(local, &listen_fd, &card));
    }
    shared = share_card(table, &card, deadline);
    status = made.status < 0 ? xm_error_restore(&made) : shared;
    if (status == XM_OK) {
        xm_job_secret_set(&secret, card.secret, sizeof(card.secret));
        status = xm_bootstrap_tcp_create(table->rank, table->size, &secret, relay);
        /* The relay has a copy of the secret; this one is wiped. */
        explicit_bzero(&secret, sizeof(secret));
    }
    if (status < 0) {
        if (listen_fd >= 0) {
            (void)close(listen_fd);
        }
        return status;
    }
    status = meet(*relay, &card, listen_fd, deadline, timeout);
    if (status < 0) {
        xm_bootstrap_tcp_destroy(*relay);
    }
    return status;
}

/* The table serves only until the relay exists. */
xm_status_t xm_bootstrap_create_relay(const xm_oob_t *oob, double timeout,
                                      xm_bootstrap_t **bootstrap)
{
    xm_bootstrap_tcp_t *relay;
    xm_bootstrap_t *table;
    xm_status_t status;

    XM_TRY(xm_bootstrap_create_oob(oob, &table));
    status = make_relay(table, timeout, &relay);
    xm_bootstrap_destroy(table);
    if (status == XM_OK) {
        *bootstrap = &relay->base;
    }
    return status;
}
