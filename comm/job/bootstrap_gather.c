/* SPDX-License-Identifier: Apache-2.0 */
/* The allgathers of the TCP bootstrap: the others send their blocks to rank 0, which sends all of
 * them to everybody. A rank may be one allgather ahead, because it has its result before rank 0 has
 * sent all of them; anything else is out of step, and no later allgather could be trusted. Links
 * may end and be replaced in between, which shows here only in blocks that come twice. */
#include "comm/job/bootstrap_tcp.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/base.h"

/* A block that is there already comes again over a new link, and so does one of the allgather that
 * is complete, from a rank that has not got its result. */
bool xm_bootstrap_tcp_take_block(xm_bootstrap_tcp_t *self, int rank)
{
    xm_bootstrap_peer_t *peer = &self->peers[rank];
    xm_bootstrap_link_t *link = &peer->link;
    /* A rank that has the result of the current allgather already may have posted the next. */
    uint32_t expected = self->sequence + (self->base.posted && !self->gathered ? 0 : 1);

    if (self->guarded && self->bulk != NULL && link->frame.sequence == self->bulk_sequence) {
        if (xm_bootstrap_link_idle(link)) {
            xm_bootstrap_link_send_bulk(link, self->bulk, self->bulk_length);
        }
        return true;
    }
    if (link->frame.sequence != expected || (peer->contributed && !self->guarded)) {
        return self->guarded && link->frame.sequence < expected;
    }
    if (!peer->contributed) {
        peer->block = link->payload;
        peer->block_length = link->frame.length;
        peer->variable = link->frame.type == XM_BOOTSTRAP_GATHERV;
        peer->contributed = true;
        /* The payload changes its owner without a copy. */
        link->payload = NULL;
    }
    return true;
}

/* A result must be that of the allgather in flight, with its length; the buffer behind it is the
 * caller's. */
bool xm_bootstrap_tcp_take_result(xm_bootstrap_tcp_t *self)
{
    xm_bootstrap_link_t *link = &self->peers[0].link;
    bool variable = link->frame.type == XM_BOOTSTRAP_GATHEREDV;
    size_t expected = self->length * (size_t)self->base.size;

    if (self->guarded && link->frame.sequence <= self->sequence &&
        (link->frame.sequence < self->sequence || self->gathered || !self->base.posted)) {
        return true; /* asked for again, and come both times */
    }
    if (!self->base.posted || self->variable != variable ||
        link->frame.sequence != self->sequence || (!variable && link->frame.length != expected)) {
        return false;
    }
    if (variable) {
        self->blobs = link->payload;
        self->blobs_length = link->frame.length;
        link->payload = NULL;
    } else if (expected > 0) {
        memcpy(self->receive, link->payload, expected);
    }
    self->gathered = true;
    return true;
}

static bool has_not_contributed(const xm_bootstrap_peer_t *peer)
{
    return !peer->contributed;
}

/* Rank 0 checks the blocks: a rank that has left can no longer contribute, all must have called
 * the same function, and the blocks of an allgather must have one length. Each violation names
 * the rank. */
static xm_status_t check_blocks(xm_bootstrap_tcp_t *self, bool *complete)
{
    static const char *const functions[] = {"allgather", "allgatherv"};
    xm_bootstrap_fault_t fault = {0};
    char what[128];

    *complete = true;
    for (int rank = 1; rank < self->base.size; ++rank) {
        const xm_bootstrap_peer_t *peer = &self->peers[rank];

        if (!peer->contributed) {
            *complete = false;
            if (!peer->left) {
                continue;
            }
            (void)snprintf(what, sizeof(what), "left the job before allgather %u", self->sequence);
            xm_bootstrap_tcp_fault_of(self, rank, XM_ERR_PEER_DIED, what, &fault);
        } else if (peer->variable != self->variable) {
            (void)snprintf(what, sizeof(what), "called %s as number %u where rank 0 called %s",
                           functions[peer->variable], self->sequence, functions[self->variable]);
            xm_bootstrap_tcp_fault_of(self, rank, XM_ERR_MISMATCH, what, &fault);
        } else if (!self->variable && peer->block_length != self->length) {
            (void)snprintf(what, sizeof(what),
                           "offered %zu bytes in allgather %u where rank 0 offered %zu",
                           peer->block_length, self->sequence, self->length);
            xm_bootstrap_tcp_fault_of(self, rank, XM_ERR_MISMATCH, what, &fault);
        } else {
            continue;
        }
        xm_bootstrap_tcp_settle(self, &fault);
        return xm_bootstrap_fault_status(&self->base);
    }
    return XM_OK;
}

/* Rank 0 computes the bytes of the result, as a frame's payload. Lengths are other ranks'
 * numbers, so the sum is bounded. */
static xm_status_t result_size(const xm_bootstrap_tcp_t *self, size_t *total)
{
    size_t size = (size_t)self->base.size;

    *total = self->length * size;
    if (!self->variable) {
        return XM_OK;
    }
    *total = self->length + 4 * size;
    for (size_t rank = 1; rank < size; ++rank) {
        *total += self->peers[rank].block_length;
    }
    if (*total > XM_BOOTSTRAP_MAX_GATHER) {
        return XM_INVALID("allgatherv %u: %d ranks offer %zu bytes together; %d are possible",
                          self->sequence, self->base.size, *total, XM_BOOTSTRAP_MAX_GATHER);
    }
    return XM_OK;
}

/* Rank 0 writes everybody's block in a row, behind their lengths where these differ. */
static void fill_result(const xm_bootstrap_tcp_t *self, uint8_t *payload)
{
    size_t size = (size_t)self->base.size;
    uint8_t *next = payload + (self->variable ? 4 * size : 0);

    for (size_t rank = 0; rank < size; ++rank) {
        size_t length = rank == 0 ? self->length : self->peers[rank].block_length;

        if (self->variable) {
            xm_bootstrap_length_encode((uint32_t)length, payload + 4 * rank);
        }
        if (length > 0) {
            memcpy(next, rank == 0 ? self->send : self->peers[rank].block, length);
        }
        next += length;
    }
}

/* Rank 0 keeps the result for its own caller, since the frame lives only until all links have
 * sent it. */
static xm_status_t keep_result(xm_bootstrap_tcp_t *self, const uint8_t *payload, size_t total)
{
    if (self->variable) {
        self->blobs = malloc(total);
        if (self->blobs == NULL) {
            return xm_error_set(XM_ERR_NO_MEMORY, "allgatherv: no memory for %zu bytes", total);
        }
        self->blobs_length = total;
    }
    if (total > 0) {
        memcpy(self->variable ? self->blobs : self->receive, payload, total);
    }
    return XM_OK;
}

/* All ranks have contributed: rank 0 makes the result and starts sending it, one frame for all
 * links. The contributions are freed before, and the flags reset for a rank that is one ahead. */
static xm_status_t publish(xm_bootstrap_tcp_t *self)
{
    xm_bootstrap_header_t header = {.type = self->variable ? XM_BOOTSTRAP_GATHEREDV
                                                           : XM_BOOTSTRAP_GATHERED,
                                    .sequence = self->sequence};
    size_t total;
    xm_status_t status = result_size(self, &total);

    if (status < 0) {
        xm_bootstrap_fault_t fault = {.rank = -1, .status = status};

        (void)snprintf(fault.sentence, sizeof(fault.sentence), "%s", xm_last_error());
        xm_bootstrap_tcp_settle(self, &fault);
        return xm_bootstrap_fault_status(&self->base);
    }
    free(self->bulk);
    self->bulk_length = XM_BOOTSTRAP_HEADER_SIZE + total;
    self->bulk_sequence = self->sequence;
    self->bulk = malloc(self->bulk_length);
    if (self->bulk == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "allgather: no memory for %zu bytes", total);
    }
    header.length = (uint32_t)total;
    xm_bootstrap_header_encode(&header, self->bulk);
    fill_result(self, self->bulk + XM_BOOTSTRAP_HEADER_SIZE);
    XM_TRY(keep_result(self, self->bulk + XM_BOOTSTRAP_HEADER_SIZE, total));
    self->gathered = true;
    for (int rank = 1; rank < self->base.size; ++rank) {
        xm_bootstrap_peer_t *peer = &self->peers[rank];

        free(peer->block);
        peer->block = NULL;
        peer->contributed = false;
        if (peer->link.fd >= 0) {
            xm_bootstrap_link_send_bulk(&peer->link, self->bulk, self->bulk_length);
        }
    }
    return XM_OK;
}

static bool all_sent(const xm_bootstrap_tcp_t *self)
{
    for (int rank = 1; rank < self->base.size; ++rank) {
        if (!xm_bootstrap_link_idle(&self->peers[rank].link)) {
            return false;
        }
    }
    return true;
}

/* Rank 0's allgather ends when every link has handed the result to the kernel: only then may
 * the frame be freed, and rank 0 go away without losing it for others. */
static xm_status_t test_as_root(xm_bootstrap_tcp_t *self)
{
    bool complete = true;
    xm_status_t status = XM_OK;

    if (!self->gathered) {
        status = check_blocks(self, &complete);
        if (status == XM_OK && complete) {
            status = publish(self);
        }
    }
    if (status < 0 || !complete || !all_sent(self)) {
        return status < 0 ? status : XM_IN_PROGRESS;
    }
    /* The result is kept for a rank whose link ends before it has arrived. */
    if (!self->guarded) {
        free(self->bulk);
        self->bulk = NULL;
    }
    return XM_OK;
}

/* Tests an allgather. A result that is there counts as success even if a rank has died since,
 * so that all ranks agree about which allgathers have taken place as far as possible. */
xm_status_t xm_bootstrap_tcp_test(xm_bootstrap_t *bootstrap)
{
    xm_bootstrap_tcp_t *self = (xm_bootstrap_tcp_t *)bootstrap;
    xm_bootstrap_fault_t fault = {0};
    xm_status_t status = bootstrap->ops->poll(bootstrap);

    if (bootstrap->rank != 0 && self->gathered) {
        return XM_OK; /* complete, even if somebody died since */
    }
    if (status < 0) {
        return status;
    }
    if (bootstrap->rank == 0) {
        return test_as_root(self);
    }
    if (self->peers[0].left) {
        char what[64];

        (void)snprintf(what, sizeof(what), "left the job before allgather %u", self->sequence);
        xm_bootstrap_tcp_fault_of(self, 0, XM_ERR_PEER_DIED, what, &fault);
        xm_bootstrap_tcp_settle(self, &fault);
        return xm_bootstrap_fault_status(bootstrap);
    }
    return XM_IN_PROGRESS;
}

/* Sends the own block to rank 0, also once more when the link that carried it has been replaced. */
void xm_bootstrap_tcp_offer(xm_bootstrap_tcp_t *self)
{
    if (self->base.rank != 0 && !self->gathered) {
        xm_bootstrap_link_send(&self->peers[0].link,
                               self->variable ? XM_BOOTSTRAP_GATHERV : XM_BOOTSTRAP_GATHER,
                               self->sequence, self->send, self->length);
    }
}

/* Begins an allgather. Other ranks send their block at once; rank 0 waits for them in its tests. */
static void begin(xm_bootstrap_tcp_t *self, const void *send, void *receive, size_t length,
                  bool variable)
{
    ++self->sequence;
    self->send = send;
    self->receive = receive;
    self->length = length;
    self->variable = variable;
    self->gathered = false;
    free(self->blobs);
    self->blobs = NULL;
    xm_bootstrap_tcp_offer(self);
}

xm_status_t xm_bootstrap_tcp_post(xm_bootstrap_t *bootstrap, const void *send, void *receive,
                                  size_t length)
{
    begin((xm_bootstrap_tcp_t *)bootstrap, send, receive, length, false);
    return XM_OK;
}

xm_status_t xm_bootstrap_tcp_post_blobs(xm_bootstrap_t *bootstrap, const void *send, size_t length)
{
    begin((xm_bootstrap_tcp_t *)bootstrap, send, NULL, length, true);
    return XM_OK;
}

/* Hands the gathered blocks over. The lengths come over the wire and must fit the payload
 * exactly. */
xm_status_t xm_bootstrap_tcp_take_blobs(xm_bootstrap_t *bootstrap, void **blobs, size_t *offsets)
{
    xm_bootstrap_tcp_t *self = (xm_bootstrap_tcp_t *)bootstrap;
    size_t table = 4 * (size_t)bootstrap->size;
    xm_bootstrap_fault_t fault;
    xm_status_t status =
        xm_bootstrap_lengths_decode(self->blobs, self->blobs_length, bootstrap->size, offsets);

    if (status < 0) {
        xm_bootstrap_tcp_fault_of(self, 0, status, "sent blocks that do not fit their lengths",
                                  &fault);
        xm_bootstrap_tcp_settle(self, &fault);
        return xm_bootstrap_fault_status(bootstrap);
    }
    memmove(self->blobs, (uint8_t *)self->blobs + table, self->blobs_length - table);
    *blobs = self->blobs;
    self->blobs = NULL;
    return XM_OK;
}

/* Gives up an allgather, with the sentence that fits: rank 0 knows which ranks are missing, the
 * others know only that rank 0 did not answer. Rank 0 tells them. */
xm_status_t xm_bootstrap_tcp_abandon(xm_bootstrap_t *bootstrap, double waited)
{
    xm_bootstrap_tcp_t *self = (xm_bootstrap_tcp_t *)bootstrap;
    xm_bootstrap_fault_t fault = {.rank = -1, .status = XM_ERR_TIMEOUT};
    char list[128];

    if (bootstrap->rank == 0 && !self->gathered) {
        int missing = xm_bootstrap_list_ranks(self, has_not_contributed, list, sizeof(list));

        (void)snprintf(fault.sentence, sizeof(fault.sentence),
                       "allgather %u timed out after %g s: %d of %d ranks did not call it: %s",
                       self->sequence, waited, missing, bootstrap->size, list);
    } else if (bootstrap->rank == 0) {
        (void)snprintf(fault.sentence, sizeof(fault.sentence),
                       "allgather %u timed out after %g s: a rank did not read the result",
                       self->sequence, waited);
    } else {
        (void)snprintf(fault.sentence, sizeof(fault.sentence),
                       "rank %d: allgather %u timed out after %g s without an answer of rank 0",
                       bootstrap->rank, self->sequence, waited);
    }
    xm_bootstrap_tcp_settle(self, &fault);
    return xm_bootstrap_fault_status(bootstrap);
}
