/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/comm/transport/ucx/fake_ucx.h"

#include <stdlib.h>
#include <string.h>

#include "xm_test.h"

fake_ucx_t fake;

/* The linker sends calls of the library to functions of this file, which call these. */
void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *memory, size_t size);

uint64_t fake_any(uint64_t below)
{
    fake.chance = fake.chance * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (fake.chance >> 33) % below;
}

static void append(fake_queue_t *queue, fake_packet_t *packet)
{
    packet->next = NULL;
    if (queue->first == NULL) {
        queue->first = packet;
    } else {
        queue->last->next = packet;
    }
    queue->last = packet;
}

static fake_packet_t *pop(fake_queue_t *queue)
{
    fake_packet_t *packet = queue->first;

    queue->first = packet->next;
    return packet;
}

/* Neither end of what is fetched keeps a pointer to the other. */
static void free_packet(fake_packet_t *packet)
{
    if (packet->source != NULL) {
        packet->source->announcement = NULL;
    }
    if (packet->announcement != NULL) {
        packet->announcement->source = NULL;
    }
    free(packet->bytes);
    free(packet);
}

static void drop(fake_queue_t *queue)
{
    while (queue->first != NULL) {
        free_packet(pop(queue));
    }
}

void fake_drop(fake_way_t *way)
{
    drop(&way->given);
    drop(&way->wire);
    drop(&way->asked);
    drop(&way->fetches);
}

static void take_out(fake_queue_t *queue, const fake_packet_t *packet)
{
    fake_queue_t rest = {0};

    while (queue->first != NULL) {
        fake_packet_t *first = pop(queue);

        if (first != packet) {
            append(&rest, first);
        }
    }
    *queue = rest;
}

/* As the datatype of packets does. */
static void pack(fake_packet_t *packet)
{
    if (packet->length > 0) {
        packet->bytes = __real_calloc(1, packet->length);
        ck_assert_ptr_nonnull(packet->bytes);
    }
    if (packet->length > 0 && packet->packet->bytes != NULL) {
        memcpy(packet->bytes, packet->packet->bytes, packet->length - 1);
        packet->bytes[packet->length - 1] = 1;
    }
}

/* ---- in the allocator's place: whether posting, progress or frames that come need memory of it
 * ---
 */

void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_realloc(void *memory, size_t size);

void *__wrap_malloc(size_t size)
{
    fake.allocations += fake.counting;
    return __real_malloc(size);
}

void *__wrap_calloc(size_t count, size_t size)
{
    fake.allocations += fake.counting;
    return __real_calloc(count, size);
}

void *__wrap_realloc(void *memory, size_t size)
{
    fake.allocations += fake.counting;
    return __real_realloc(memory, size);
}

/* ---- in UCX's place: the linker sends the multirail's calls here
 * -------------------------------------
 */

ucs_status_ptr_t __wrap_ucp_am_send_nbx(ucp_ep_h ep, unsigned id, const void *header,
                                        size_t header_length, const void *buffer, size_t count,
                                        const ucp_request_param_t *param);
ucs_status_t __wrap_ucp_worker_set_am_recv_handler(ucp_worker_h worker,
                                                   const ucp_am_handler_param_t *param);
ucs_status_ptr_t __wrap_ucp_am_recv_data_nbx(ucp_worker_h worker, void *desc, void *buffer,
                                             size_t count, const ucp_request_param_t *param);
ucs_status_t __wrap_ucp_ep_create(ucp_worker_h worker, const ucp_ep_params_t *params, ucp_ep_h *ep);
ucs_status_ptr_t __wrap_ucp_ep_close_nbx(ucp_ep_h ep, const ucp_request_param_t *param);
void __wrap_ucp_request_free(void *request);

ucs_status_ptr_t __wrap_ucp_am_send_nbx(ucp_ep_h ep, unsigned id, const void *header,
                                        size_t header_length, const void *buffer, size_t count,
                                        const ucp_request_param_t *param)
{
    fake_way_t *way = (fake_way_t *)(void *)ep;
    fake_packet_t *packet = __real_calloc(1, sizeof(*packet));

    fake.counting = false; /* what follows is not the library's */
    (void)id;
    ck_assert_ptr_nonnull(packet);
    ck_assert_uint_eq(header_length, sizeof(packet->head));
    memcpy(packet->head, header, sizeof(packet->head));
    packet->packet = param->user_data;
    if (param->flags == UCP_AM_SEND_FLAG_RNDV) {
        packet->announced = buffer;
    }
    packet->length = count;
    packet->sent = param->cb.send;
    if (packet->announced == NULL && way->given.first == NULL && !way->dead && fake_any(2) == 0) {
        pack(packet);
        append(&way->wire, packet);
        fake.counting = fake.strict;
        return NULL;
    }
    append(&way->given, packet);
    fake.counting = fake.strict;
    return packet;
}

ucs_status_t __wrap_ucp_worker_set_am_recv_handler(ucp_worker_h worker,
                                                   const ucp_am_handler_param_t *param)
{
    fake_way_t *way = (fake_way_t *)(void *)worker;

    way->handler = param->cb;
    way->arg = param->arg;
    return UCS_OK;
}

void __wrap_ucp_request_free(void *request)
{
    (void)request;
}

ucs_status_ptr_t __wrap_ucp_am_recv_data_nbx(ucp_worker_h worker, void *desc, void *buffer,
                                             size_t count, const ucp_request_param_t *param)
{
    fake_way_t *way = (fake_way_t *)(void *)worker;
    fake_packet_t *packet = desc;

    fake.counting = false;
    ck_assert_uint_eq(packet->length, count);
    fake.counting = fake.strict;
    packet->to = buffer;
    packet->fetch = param->user_data;
    packet->came = param->cb.recv_am;
    append(&way->fetches, packet);
    return packet;
}

/* Endpoints are known by their workers; a new connection is the old one, that works or does not. */
ucs_status_t __wrap_ucp_ep_create(ucp_worker_h worker, const ucp_ep_params_t *params, ucp_ep_h *ep)
{
    fake_way_t *heard = (fake_way_t *)(void *)worker;
    int index = (int)(heard - &fake.ways[0][0]);

    (void)params;
    *ep = (ucp_ep_h)(void *)&fake.ways[1 - index / FAKE_LANES][index % FAKE_LANES];
    return UCS_OK;
}

/* A request of the sender has ended: what is still written is not what was sent. */
static void end_asked(fake_way_t *way, fake_packet_t *packet, ucs_status_t status)
{
    take_out(&way->asked, packet);
    packet->sent(packet, status, (void *)(uintptr_t)packet->packet);
    free_packet(packet);
}

/* A fetch writes as long as it has not ended. */
static void end_fetch(fake_packet_t *packet, ucs_status_t status)
{
    if (packet->source != NULL && status == UCS_OK) {
        memcpy(packet->to, packet->source->announced, packet->length);
    } else {
        memset(packet->to, 0xdd, packet->length);
        status = status == UCS_OK ? UCS_ERR_CANCELED : status;
    }
    packet->came(packet, status, packet->length, packet->fetch);
    free_packet(packet);
}

/* By force: all requests of this end are ended. */
ucs_status_ptr_t __wrap_ucp_ep_close_nbx(ucp_ep_h ep, const ucp_request_param_t *param)
{
    fake_way_t *out = (fake_way_t *)(void *)ep;
    int index = (int)(out - &fake.ways[0][0]);
    fake_way_t *in = &fake.ways[1 - index / FAKE_LANES][index % FAKE_LANES];

    (void)param;
    while (out->asked.first != NULL) {
        end_asked(out, out->asked.first, UCS_ERR_CANCELED);
    }
    while (in->fetches.first != NULL) {
        end_fetch(pop(&in->fetches), UCS_ERR_CANCELED);
    }
    while (out->given.first != NULL) {
        fake_packet_t *packet = pop(&out->given);

        packet->sent(packet, UCS_ERR_CANCELED, (void *)(uintptr_t)packet->packet);
        free_packet(packet);
    }
    return NULL;
}

void fake_move(fake_way_t *way)
{
    fake_packet_t *packet;

    if (way->dead) {
        return;
    }
    if (way->fetches.first != NULL && fake_any(2) == 0) {
        fake_packet_t *source;

        packet = pop(&way->fetches);
        source = packet->source;
        fake.counting = fake.strict;
        end_fetch(packet, UCS_OK);
        if (source != NULL) {
            end_asked(way, source, UCS_OK);
        }
        fake.counting = false;
    }
    if (way->given.first != NULL && way->given.first->announced != NULL && fake_any(2) == 0) {
        fake_packet_t *announcement = __real_calloc(1, sizeof(*announcement));

        ck_assert_ptr_nonnull(announcement);
        packet = pop(&way->given);
        *announcement = *packet;
        announcement->source = packet;
        packet->announcement = announcement;
        append(&way->wire, announcement);
        append(&way->asked, packet);
    } else if (way->given.first != NULL && way->given.first->announced == NULL &&
               fake_any(2) == 0) {
        packet = pop(&way->given);
        pack(packet);
        append(&way->wire, packet);
        /* Nothing of the packet is needed any more: it may be gone afterwards. */
        fake.counting = fake.strict;
        packet->sent(packet, UCS_OK, (void *)(uintptr_t)packet->packet);
        fake.counting = false;
    }
    if (way->wire.first != NULL && fake_any(2) == 0) {
        bool announced;
        ucp_am_recv_param_t param = {0};

        packet = pop(&way->wire);
        announced = packet->announced != NULL;
        param.recv_attr = announced ? (uint64_t)UCP_AM_RECV_ATTR_FLAG_RNDV : 0;
        fake.counting = fake.strict;
        (void)way->handler(way->arg, packet->head, sizeof(packet->head),
                           announced ? (void *)packet : packet->bytes, packet->length, &param);
        fake.counting = false;
        /* Nobody wants it: its sender is told that it has come. */
        if (announced && packet->fetch == NULL && packet->source != NULL) {
            end_asked(way, packet->source, UCS_OK);
        }
        if (packet->fetch == NULL) {
            free_packet(packet);
        }
    }
}

void fake_lose(fake_way_t *way)
{
    drop(&way->wire);
}
