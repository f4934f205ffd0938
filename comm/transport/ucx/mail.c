/* Mail between two ranks: what UCX is given. */
#include "comm/transport/ucx/mail.h"

#include <stdlib.h>
#include <string.h>

/*
 * The datatype of a parcel's bytes. UCX asks for them when it has room, which for a rail that is
 * gone may be never, or long after their owner has freed them. The last byte tells the receiver
 * whether all others were what they should be.
 */

static void *start_pack(void *context, const void *parcel, size_t count)
{
    (void)context;
    (void)count;
    return (void *)(uintptr_t)parcel;
}

static void *start_unpack(void *context, void *buffer, size_t count)
{
    (void)context;
    (void)count;
    return buffer; /* never: receivers get the bytes as they are */
}

static size_t packed_size(void *state)
{
    return ((const xm_ucx_parcel_t *)state)->length + 1;
}

static size_t pack(void *state, size_t offset, void *bytes, size_t room)
{
    const xm_ucx_parcel_t *parcel = state;
    size_t left = parcel->length + 1 - offset;
    size_t size = room < left ? room : left, copied = size - (size == left);

    if (parcel->bytes == NULL) {
        memset(bytes, 0, size);
        return size;
    }
    memcpy(bytes, parcel->bytes + offset, copied);
    if (size == left) {
        ((uint8_t *)bytes)[copied] = 1;
    }
    return size;
}

static ucs_status_t unpack(void *state, size_t offset, const void *bytes, size_t length)
{
    (void)state;
    (void)offset;
    (void)bytes;
    (void)length;
    return UCS_OK;
}

static void finish(void *state)
{
    (void)state;
}

static const ucp_generic_dt_ops_t parcel_ops = {.start_pack = start_pack,
                                                .start_unpack = start_unpack,
                                                .packed_size = packed_size,
                                                .pack = pack,
                                                .unpack = unpack,
                                                .finish = finish};

ucs_status_t xm_ucx_mail_make_type(xm_ucx_transport_t *self)
{
    ucs_status_t status = UCS_OK;

    if (!self->has_parcel_type) {
        status = ucp_dt_create_generic(&parcel_ops, NULL, &self->parcel_type);
        self->has_parcel_type = status == UCS_OK;
    }
    return status;
}

void xm_ucx_mail_set_due(xm_ucx_mail_t *mail)
{
    xm_ucx_transport_t *self = mail->peer->owner;

    if (!mail->due) {
        mail->due = true;
        mail->next_due = self->due_mail;
        self->due_mail = mail;
    }
}

static void free_parcel(xm_ucx_parcel_t *parcel)
{
    xm_ucx_transport_t *self = parcel->mail->peer->owner;

    xm_list_prepend(&self->free_parcels, &parcel->link);
}

static xm_ucx_parcel_t *take_parcel(xm_ucx_mail_t *mail, const xm_ucx_frame_t *frame)
{
    xm_ucx_transport_t *self = mail->peer->owner;
    xm_ucx_parcel_t *parcel;

    if (!xm_list_is_empty(&self->free_parcels)) {
        parcel = xm_list_entry(self->free_parcels.next, xm_ucx_parcel_t, link);
        xm_list_remove(&parcel->link);
    } else {
        parcel = malloc(sizeof(*parcel));
    }
    if (parcel == NULL) {
        xm_ucx_report(mail->peer, UCS_ERR_NO_MEMORY);
        return NULL;
    }
    *parcel = (xm_ucx_parcel_t){.mail = mail, .frame = *frame};
    return parcel;
}

/* What it takes of the lane's room: small ones are not for nothing. */
static size_t cost_of(const xm_ucx_parcel_t *parcel)
{
    return parcel->length + sizeof(*parcel);
}

static void forget_parcel(xm_ucx_parcel_t *parcel)
{
    xm_ucx_mail_t *mail = parcel->mail;

    xm_list_remove(&parcel->link);
    mail->lanes[parcel->lane].given -= cost_of(parcel);
    if (parcel->message != NULL) {
        --parcel->message->parcels;
    }
    free_parcel(parcel);
}

/* Bytes of messages are counted, and the answers are not. */
static void count_parcel(const xm_ucx_parcel_t *parcel, xm_status_t status)
{
    if (parcel->frame.kind == XM_UCX_FRAME_EAGER || parcel->frame.kind == XM_UCX_FRAME_CHUNK) {
        xm_count_piece(xm_ucx_rail_of(parcel->mail->peer, parcel->lane)->counters, XM_SENT,
                       parcel->length, status);
    }
}

/* The lane carries what another one did not. */
static void count_retry(const xm_ucx_mail_t *mail, int lane, int before)
{
    if (before != XM_UCX_MAIL_NO_LANE && !xm_ucx_mail_uses(mail, before)) {
        xm_count_retry(xm_ucx_rail_of(mail->peer, lane)->counters);
    }
}

static void on_parcel_sent(void *request, ucs_status_t status, void *user_data)
{
    xm_ucx_parcel_t *parcel = user_data;
    xm_ucx_mail_t *mail = parcel->mail;
    xm_ucx_health_t *lane = &mail->lanes[parcel->lane];

    ucp_request_free(request);
    count_parcel(parcel, xm_ucx_status(status, false));
    if (status != UCS_OK) {
        xm_ucx_failover_broken(mail->peer, parcel->lane, status);
    } else if (parcel->length > 0) {
        lane->moved_at = mail->peer->owner->clock;
        lane->asked_at = lane->alone_at = 0;
    }
    forget_parcel(parcel);
    xm_ucx_mail_set_due(mail);
}

/* Hands a parcel to UCX. It may be gone afterwards. */
static void post_parcel(xm_ucx_parcel_t *parcel, int index)
{
    xm_ucx_mail_t *mail = parcel->mail;
    xm_ucx_transport_t *self = mail->peer->owner;
    ucp_request_param_t param = {.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK |
                                                 UCP_OP_ATTR_FIELD_USER_DATA |
                                                 UCP_OP_ATTR_FIELD_FLAGS,
                                 .flags = UCP_AM_SEND_FLAG_EAGER,
                                 .cb.send = on_parcel_sent,
                                 .user_data = parcel};
    ucs_status_ptr_t request;

    parcel->lane = index;
    parcel->frame.sender = self->base.rank;
    parcel->frame.dead = mail->dead;
    xm_ucx_frame_encode(&parcel->frame, parcel->head);
    if (parcel->length > 0) {
        param.op_attr_mask |= UCP_OP_ATTR_FIELD_DATATYPE;
        param.datatype = self->parcel_type;
    }
    xm_list_append(&mail->lanes[index].posted, &parcel->link);
    mail->lanes[index].given += cost_of(parcel);
    if (parcel->message != NULL) {
        ++parcel->message->parcels;
    }
    request = ucp_am_send_nbx(mail->peer->lanes[index].ep, XM_UCX_MAIL_FRAMES, parcel->head,
                              XM_UCX_FRAME_SIZE, parcel->length > 0 ? parcel : NULL,
                              parcel->length > 0 ? parcel->length + 1 : 0, &param);
    if (UCS_PTR_IS_ERR(request)) {
        xm_ucx_failover_broken(mail->peer, index, UCS_PTR_STATUS(request));
    }
    if (request == NULL || UCS_PTR_IS_ERR(request)) {
        count_parcel(parcel, request == NULL ? XM_OK : XM_ERR_IO);
        forget_parcel(parcel);
    }
}

void xm_ucx_mail_answer(xm_ucx_mail_t *mail, int lane, const xm_ucx_frame_t *frame)
{
    xm_list_t *end = xm_list_last(&mail->answers);
    xm_ucx_parcel_t *last = end != NULL ? xm_list_entry(end, xm_ucx_parcel_t, link) : NULL;
    xm_ucx_parcel_t *parcel;

    /* Messages often end in the order of their numbers. */
    if (last != NULL && frame->kind == XM_UCX_FRAME_GRANT && frame->offset == XM_UCX_FRAME_ALL &&
        last->frame.kind == XM_UCX_FRAME_GRANT && last->frame.offset == XM_UCX_FRAME_ALL &&
        frame->message == last->frame.message + last->frame.length) {
        last->frame.length += frame->length;
        return;
    }
    parcel = take_parcel(mail, frame);
    if (parcel != NULL) {
        parcel->lane = lane;
        xm_list_append(&mail->answers, &parcel->link);
        xm_ucx_mail_set_due(mail);
    }
}

/* The lane for bytes: of those with room that which was given least for its weight, but not `avoid`
 * where there is another one; -1: none. */
static int choose_lane(xm_ucx_mail_t *mail, size_t length, int avoid)
{
    const xm_stripe_t *stripe = &mail->peer->stripe;
    int best = -1, others = 0;

    for (int i = 0; i < stripe->rails; ++i) {
        others += i != avoid && xm_ucx_mail_uses(mail, i);
    }
    for (int i = 0; i < stripe->rails; ++i) {
        if (xm_ucx_mail_uses(mail, i) && (i != avoid || others == 0) &&
            mail->lanes[i].given < XM_UCX_MAIL_ROOM &&
            (best < 0 || mail->lanes[i].load < mail->lanes[best].load)) {
            best = i;
        }
    }
    if (best >= 0) {
        uint32_t share = stripe->end[best] - (best > 0 ? stripe->end[best - 1] : 0);

        mail->lanes[best].load += ((uint64_t)length << 16) / share;
    }
    return best;
}

static void pump_answers(xm_ucx_mail_t *mail)
{
    while (!xm_list_is_empty(&mail->answers)) {
        xm_ucx_parcel_t *parcel = xm_list_entry(mail->answers.next, xm_ucx_parcel_t, link);
        int lane = parcel->lane;

        for (int i = 0; i < mail->peer->stripe.rails && !xm_ucx_mail_uses(mail, lane); ++i) {
            lane = i;
        }
        xm_list_remove(&parcel->link);
        post_parcel(parcel, lane);
    }
}

/* EAGER and START. */
static bool pump_start(xm_ucx_mail_t *mail)
{
    xm_ucx_outgoing_t *message = xm_list_entry(mail->starts.next, xm_ucx_outgoing_t, start);
    bool eager = message->chunk == 0;
    xm_ucx_frame_t frame = {.kind = eager ? XM_UCX_FRAME_EAGER : XM_UCX_FRAME_START,
                            .message = message->number,
                            .tag = message->tag,
                            .length = message->length,
                            .chunk = message->chunk};
    int lane = choose_lane(mail, eager ? message->length : 0,
                           message->elsewhere ? message->start_by : XM_UCX_MAIL_NO_LANE);
    xm_ucx_parcel_t *parcel = lane >= 0 ? take_parcel(mail, &frame) : NULL;

    if (parcel == NULL) {
        return false;
    }
    xm_list_remove(&message->start);
    count_retry(mail, lane, message->start_by);
    message->start_by = (uint8_t)lane;
    parcel->message = message;
    if (eager) {
        parcel->bytes = message->bytes;
        parcel->length = message->length;
    }
    post_parcel(parcel, lane);
    return true;
}

static bool pump_chunk(xm_ucx_mail_t *mail)
{
    xm_ucx_outgoing_t *message = xm_list_entry(mail->ready.next, xm_ucx_outgoing_t, ready);
    int index = __builtin_ctzll(message->todo);
    size_t offset = message->from + (size_t)index * message->chunk;
    size_t left = message->length - offset;
    size_t length = left < message->chunk ? left : message->chunk;
    xm_ucx_frame_t frame = {
        .kind = XM_UCX_FRAME_CHUNK, .message = message->number, .offset = offset};
    int lane = choose_lane(mail, length, XM_UCX_MAIL_NO_LANE);
    xm_ucx_parcel_t *parcel = lane >= 0 ? take_parcel(mail, &frame) : NULL;

    if (parcel == NULL) {
        return false;
    }
    message->todo &= message->todo - 1;
    if (message->todo == 0) {
        xm_list_remove(&message->ready);
    }
    count_retry(mail, lane, message->by[index]);
    message->by[index] = (uint8_t)lane;
    parcel->message = message;
    parcel->bytes = message->bytes + offset;
    parcel->length = length;
    post_parcel(parcel, lane);
    return true;
}

static void pump(xm_ucx_mail_t *mail)
{
    xm_ucx_peer_t *peer = mail->peer;

    if (peer->failed || peer->reported || peer->owner->fenced || mail->broken_at != 0 ||
        xm_ucx_mail_is_closed(peer)) {
        return;
    }
    if (!peer->connected && xm_ucx_connect(peer) < 0) {
        xm_ucx_report(peer, UCS_ERR_UNREACHABLE);
        return;
    }
    if (mail->broken_at != 0) {
        return; /* a lane did not connect: first that is acted upon */
    }
    pump_answers(mail);
    while (!xm_list_is_empty(&mail->starts) && pump_start(mail)) {
        continue;
    }
    while (!xm_list_is_empty(&mail->ready) && pump_chunk(mail)) {
        continue;
    }
}

void xm_ucx_mail_pump(xm_ucx_transport_t *self)
{
    while (self->due_mail != NULL) {
        xm_ucx_mail_t *mail = self->due_mail;

        self->due_mail = mail->next_due;
        mail->due = false;
        pump(mail);
    }
}

void xm_ucx_mail_void(xm_ucx_mail_t *mail, const xm_ucx_outgoing_t *message)
{
    for (int lane = 0; lane < mail->peer->stripe.rails && message->parcels > 0; ++lane) {
        const xm_list_t *posted = &mail->lanes[lane].posted;

        for (xm_list_t *at = xm_list_first(posted); at != NULL; at = xm_list_next(posted, at)) {
            xm_ucx_parcel_t *parcel = xm_list_entry(at, xm_ucx_parcel_t, link);

            if (parcel->message == message) {
                parcel->message = NULL;
                parcel->bytes = NULL;
            }
        }
    }
}

bool xm_ucx_mail_has_parcels(const xm_ucx_mail_t *mail)
{
    bool any = !xm_list_is_empty(&mail->answers) || !xm_list_is_empty(&mail->starts) ||
               !xm_list_is_empty(&mail->ready);

    for (int lane = 0; lane < mail->peer->stripe.rails; ++lane) {
        /* At the end there is no progress on a rail with abandoned requests. */
        any =
            any || (xm_ucx_mail_uses(mail, lane) && !xm_list_is_empty(&mail->lanes[lane].posted) &&
                    xm_ucx_rail_of(mail->peer, lane)->abandoned == 0);
    }
    return any;
}

xm_status_t xm_ucx_mail_open(xm_ucx_peer_t *peer)
{
    xm_ucx_mail_t *mail = calloc(1, sizeof(*mail));

    if (mail == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "no memory for messages to rank %d", peer->rank);
    }
    mail->peer = peer;
    xm_list_init(&mail->unfinished);
    xm_list_init(&mail->starts);
    xm_list_init(&mail->ready);
    xm_list_init(&mail->answers);
    xm_list_init(&mail->unclaimed);
    xm_list_init(&mail->aside);
    for (int lane = 0; lane < XM_NICS_MAX; ++lane) {
        xm_list_init(&mail->lanes[lane].posted);
    }
    peer->mail = mail;
    return XM_OK;
}

void xm_ucx_mail_free_parcels(xm_list_t *list)
{
    while (!xm_list_is_empty(list)) {
        xm_ucx_parcel_t *parcel = xm_list_entry(list->next, xm_ucx_parcel_t, link);

        xm_list_remove(&parcel->link);
        free(parcel);
    }
}
