/* Mail between two ranks: the messages that this rank receives. */
#include <stdlib.h>
#include <string.h>

#include "comm/transport/ucx/mail.h"

/* SLOTS: of a mail that has received something. SPAN: messages after one that is not finished,
 * until that is put aside. MOST_SLOTS: after one that has not come yet; more than its sender gets
 * to send before it notices that the rail is lost. */
enum { SLOTS = 64, SPAN = 4096, MOST_SLOTS = 1 << 24 };

static xm_ucx_slot_t *slot_of(const xm_ucx_mail_t *mail, uint64_t number)
{
    return &mail->slots[number & (mail->slot_count - 1)];
}

/* Takes the first message out of the ring: one that nobody receives must not make it ever larger.
 * Later ones are put aside later, so that list is in the order of the numbers. */
static void put_first_aside(xm_ucx_mail_t *mail)
{
    xm_ucx_slot_t *slot = slot_of(mail, mail->base);

    if (slot->message != NULL) {
        xm_list_append(&mail->aside, &slot->message->aside);
    }
    *slot = (xm_ucx_slot_t){0};
    ++mail->base;
}

/* A message that is known and not finished; NULL: there is none of that number. */
static xm_ucx_incoming_t *find_message(const xm_ucx_mail_t *mail, uint64_t number)
{
    if (number >= mail->base) {
        return number - mail->base < mail->slot_count ? slot_of(mail, number)->message : NULL;
    }
    for (xm_list_t *at = xm_list_first(&mail->aside); at != NULL;
         at = xm_list_next(&mail->aside, at)) {
        xm_ucx_incoming_t *message = xm_list_entry(at, xm_ucx_incoming_t, aside);

        if (message->number >= number) {
            return message->number == number ? message : NULL;
        }
    }
    return NULL;
}

static bool is_done(const xm_ucx_mail_t *mail, uint64_t number)
{
    if (number < mail->base) {
        return find_message(mail, number) == NULL;
    }
    return number - mail->base < mail->slot_count && slot_of(mail, number)->done;
}

/* Makes room for the message of this number. */
static bool grow(xm_ucx_mail_t *mail, uint64_t number)
{
    size_t count = mail->slot_count > 0 ? mail->slot_count : SLOTS;
    xm_ucx_slot_t *slots;

    while (mail->base < mail->started && number - mail->base >= SPAN) {
        put_first_aside(mail);
    }
    if (number - mail->base >= MOST_SLOTS) {
        return false;
    }
    while (number - mail->base >= count) {
        count *= 2;
    }
    if (count == mail->slot_count) {
        return true;
    }
    slots = calloc(count, sizeof(*slots));
    if (slots == NULL) {
        return false;
    }
    for (uint64_t i = mail->base; i - mail->base < mail->slot_count; ++i) {
        slots[i & (count - 1)] = *slot_of(mail, i);
    }
    free(mail->slots);
    mail->slots = slots;
    mail->slot_count = count;
    return true;
}

/* What the sender needs no more is forgotten. */
static void forget(xm_ucx_mail_t *mail)
{
    while (mail->base < mail->started && slot_of(mail, mail->base)->done) {
        *slot_of(mail, mail->base) = (xm_ucx_slot_t){0};
        ++mail->base;
    }
}

static void answer(xm_ucx_mail_t *mail, int lane, uint64_t number, uint64_t offset)
{
    xm_ucx_frame_t frame = {
        .kind = XM_UCX_FRAME_GRANT, .message = number, .offset = offset, .length = 1};

    xm_ucx_mail_answer(mail, lane, &frame);
}

/* What a short message takes of this rank's memory until it is received. */
static size_t cost_of(const xm_ucx_incoming_t *message)
{
    return sizeof(*message) + message->length;
}

/* Nothing more is wanted of a message that was not answered by ALL yet. */
static void end_message(xm_ucx_mail_t *mail, xm_ucx_incoming_t *message)
{
    answer(mail, message->lane, message->number, XM_UCX_FRAME_ALL);
    if (xm_list_is_in(&message->aside)) {
        xm_list_remove(&message->aside);
    } else {
        *slot_of(mail, message->number) = (xm_ucx_slot_t){.done = true};
    }
    free(message);
    forget(mail);
}

/* A receive has met its message. */
static void match(xm_ucx_mail_t *mail, xm_ucx_incoming_t *message, xm_op_t *op)
{
    bool fits = message->length == op->priv.length;

    op->priv.received = message->length;
    if (message->eager) {
        if (fits) {
            memcpy(op->priv.buffer, message->bytes, message->length);
        }
        mail->kept -= cost_of(message);
        if (message->owed) {
            end_message(mail, message);
        } else {
            free(message);
        }
        xm_ucx_end_op(op, fits ? XM_OK : XM_ERR_CORRUPT);
    } else if (!fits) {
        end_message(mail, message);
        xm_ucx_end_op(op, XM_ERR_CORRUPT);
    } else {
        message->op = op;
        op->priv.handle = message;
        answer(mail, message->lane, message->number, 0);
    }
}

static xm_op_t *find_receive(const xm_ucx_peer_t *peer, uint64_t tag)
{
    for (xm_list_t *at = xm_list_first(&peer->in_flight); at != NULL;
         at = xm_list_next(&peer->in_flight, at)) {
        xm_op_t *op = xm_op_of(at);

        if (op->priv.kind == XM_UCX_RECEIVE && op->priv.tag == tag && op->priv.handle == NULL) {
            return op;
        }
    }
    return NULL;
}

void xm_ucx_inbox_receive(xm_ucx_mail_t *mail, xm_op_t *op)
{
    for (xm_list_t *at = xm_list_first(&mail->unclaimed); at != NULL;
         at = xm_list_next(&mail->unclaimed, at)) {
        xm_ucx_incoming_t *message = xm_list_entry(at, xm_ucx_incoming_t, link);

        if (message->tag == op->priv.tag) {
            xm_list_remove(at);
            match(mail, message, op);
            xm_ucx_mail_pump(mail->peer->owner);
            return;
        }
    }
}

void xm_ucx_inbox_cancel(xm_ucx_mail_t *mail, xm_op_t *op)
{
    xm_ucx_incoming_t *message = op->priv.handle;

    if (op->priv.kind != XM_UCX_RECEIVE || op->priv.status != XM_IN_PROGRESS) {
        return; /* a send, or it has ended already and waits for `done` */
    }
    if (message != NULL) {
        end_message(mail, message);
        xm_ucx_mail_pump(mail->peer->owner);
    }
    xm_ucx_end_op(op, XM_ERR_CANCELED);
}

/* Messages whose turn it is meet their receives, or wait for them. */
static void take_up(xm_ucx_mail_t *mail)
{
    while (mail->started - mail->base < mail->slot_count) {
        xm_ucx_slot_t *slot = slot_of(mail, mail->started);
        xm_ucx_incoming_t *message = slot->message;
        xm_op_t *op;

        if (message == NULL) {
            break;
        }
        ++mail->started;
        if (message->eager && !message->owed) {
            slot->message = NULL;
        }
        op = find_receive(mail->peer, message->tag);
        if (op != NULL) {
            match(mail, message, op);
        } else {
            xm_list_append(&mail->unclaimed, &message->link);
        }
    }
    forget(mail);
}

/* EAGER or START. */
static void on_start(xm_ucx_mail_t *mail, int lane, const xm_ucx_frame_t *frame,
                     const uint8_t *bytes, size_t length)
{
    bool eager = frame->kind == XM_UCX_FRAME_EAGER;
    size_t kept = eager ? length : 0;
    xm_ucx_incoming_t *message = find_message(mail, frame->message);
    xm_ucx_slot_t *slot;

    if (message != NULL) { /* announced again: perhaps the answer was lost */
        message->lane = lane;
        if (message->op != NULL) {
            answer(mail, lane, message->number, message->from);
        }
        return;
    }

    if ((eager && frame->length != length) || frame->length > SIZE_MAX / 2 ||
        !grow(mail, frame->message)) {
        xm_ucx_report(mail->peer, UCS_ERR_NO_MEMORY);
        return;
    }
    slot = slot_of(mail, frame->message);
    message = malloc(sizeof(*message) + kept);
    if (message == NULL) {
        xm_ucx_report(mail->peer, UCS_ERR_NO_MEMORY);
        return;
    }
    *message = (xm_ucx_incoming_t){.number = frame->message,
                                   .tag = frame->tag,
                                   .length = (size_t)frame->length,
                                   .chunk = frame->chunk,
                                   .lane = lane,
                                   .eager = eager};
    if (kept > 0) {
        memcpy(message->bytes, bytes, kept);
    }
    slot->message = message;
    if (eager) {
        xm_count_piece(xm_ucx_rail_of(mail->peer, lane)->counters, XM_RECEIVED, length, XM_OK);
        mail->kept += cost_of(message);
        /* Too much waits here: the sender gets no answer, and announces what follows, too. */
        message->owed = mail->kept > XM_UCX_MAIL_KEPT;
        slot->done = !message->owed;
    }
    if (slot->done) {
        answer(mail, lane, message->number, XM_UCX_FRAME_ALL);
    }
    take_up(mail);
}

/* True when the bytes of a chunk are in place, of a message whose chunks were asked for. */
static bool put_chunk(xm_ucx_incoming_t *message, const xm_ucx_frame_t *frame, const uint8_t *bytes,
                      size_t length)
{
    size_t offset = (size_t)frame->offset, index, expected;

    if (message->op == NULL || frame->offset < message->from || frame->offset >= message->length) {
        return false;
    }
    index = (offset - message->from) / message->chunk;
    expected = message->length - offset < message->chunk ? message->length - offset
                                                         : (size_t)message->chunk;
    if (index >= XM_UCX_FRAME_CHUNKS || offset % message->chunk != 0 || length != expected ||
        (message->have >> index & 1) != 0) {
        return false;
    }
    memcpy((uint8_t *)message->op->priv.buffer + offset, bytes, length);
    message->have |= UINT64_C(1) << index;
    return true;
}

static void on_chunk(xm_ucx_mail_t *mail, int lane, const xm_ucx_frame_t *frame,
                     const uint8_t *bytes, size_t length)
{
    xm_ucx_incoming_t *message = find_message(mail, frame->message);
    size_t left, segment;
    uint64_t all;
    xm_op_t *op;

    if (message == NULL || message->eager || !put_chunk(message, frame, bytes, length)) {
        return;
    }
    xm_count_piece(xm_ucx_rail_of(mail->peer, lane)->counters, XM_RECEIVED, length, XM_OK);
    message->lane = lane;
    ++mail->peer->moved;
    left = message->length - message->from;
    segment = (size_t)message->chunk * XM_UCX_FRAME_CHUNKS;
    all = left > segment - message->chunk
              ? UINT64_MAX
              : (UINT64_C(1) << (left + message->chunk - 1) / message->chunk) - 1;
    if (message->have != all) {
        return;
    }
    if (left > segment) {
        message->from += segment;
        message->have = 0;
        answer(mail, lane, message->number, message->from);
        return;
    }
    op = message->op;
    end_message(mail, message);
    xm_ucx_end_op(op, XM_OK);
}

void xm_ucx_inbox_on_frame(xm_ucx_mail_t *mail, int lane, const xm_ucx_frame_t *frame,
                           const uint8_t *bytes, size_t length)
{
    /* What has arrived before, and came again: perhaps the answer was lost. */
    if (is_done(mail, frame->message)) {
        answer(mail, lane, frame->message, XM_UCX_FRAME_ALL);
    } else if (frame->kind == XM_UCX_FRAME_CHUNK) {
        on_chunk(mail, lane, frame, bytes, length);
    } else {
        on_start(mail, lane, frame, bytes, length);
    }
}

/* Says by every lane that these messages have arrived. */
static void answer_everywhere(xm_ucx_mail_t *mail, uint64_t first, uint64_t count)
{
    xm_ucx_frame_t frame = {
        .kind = XM_UCX_FRAME_GRANT, .message = first, .offset = XM_UCX_FRAME_ALL, .length = count};

    for (int lane = 0; lane < mail->peer->stripe.rails && count > 0; ++lane) {
        if (xm_ucx_mail_uses(mail, lane)) {
            xm_ucx_mail_answer(mail, lane, &frame);
        }
    }
}

void xm_ucx_inbox_farewell(xm_ucx_mail_t *mail)
{
    xm_ucx_frame_t bye = {.kind = XM_UCX_FRAME_BYE};
    uint64_t first = 0;

    if (!mail->peer->connected || mail->left) {
        return;
    }
    for (xm_list_t *at = xm_list_first(&mail->aside); at != NULL;
         at = xm_list_next(&mail->aside, at)) {
        const xm_ucx_incoming_t *message = xm_list_entry(at, xm_ucx_incoming_t, aside);

        answer_everywhere(mail, first, message->number - first);
        first = message->number + 1;
    }
    for (uint64_t i = mail->base; i - mail->base < mail->slot_count; ++i) {
        if (!slot_of(mail, i)->done) {
            answer_everywhere(mail, first, i - first);
            first = i + 1;
        }
    }
    answer_everywhere(mail, first, mail->base + mail->slot_count - first);
    for (int lane = 0; lane < mail->peer->stripe.rails; ++lane) {
        if (xm_ucx_mail_uses(mail, lane)) {
            xm_ucx_mail_answer(mail, lane, &bye);
        }
    }
}

void xm_ucx_inbox_clear(xm_ucx_mail_t *mail)
{
    while (!xm_list_is_empty(&mail->unclaimed)) {
        xm_ucx_incoming_t *message = xm_list_entry(mail->unclaimed.next, xm_ucx_incoming_t, link);

        xm_list_remove(&message->link);
        if (message->eager && !message->owed) {
            free(message); /* nothing else names it */
        }
    }
    while (!xm_list_is_empty(&mail->aside)) {
        xm_ucx_incoming_t *message = xm_list_entry(mail->aside.next, xm_ucx_incoming_t, aside);

        xm_list_remove(&message->aside);
        free(message);
    }
    for (size_t i = 0; i < mail->slot_count; ++i) {
        free(mail->slots[i].message);
    }
    free(mail->slots);
    mail->slots = NULL;
    mail->slot_count = 0;
}
