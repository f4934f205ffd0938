/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages, the table of their hashes, and the answer to it (proven.h).
 *
 * One table is under way at a time. It speaks of the first messages that have not ended, which both
 * ends have in the same order. The receiver answers when all those of them that it has posted have
 * come, and says "later" of the others: it may need the memory of the first to post the next. What
 * it refuses stays in its place and is sent again, and is in the next table; so is what waits. A
 * table that was hit itself, as its own hash tells, is sent again alone.
 */
#include "comm/transport/proven.h"

#include <endian.h>
#include <inttypes.h>
#ifdef XM_HAVE_XXH_DISPATCH
#include <xxh_x86dispatch.h> /* the same hash by the widest vectors */
#else
#include <xxhash.h>
#endif

#include "comm/transport/counters_private.h"

enum { MOST_RESENDS = 10, SELF = 1 + XM_PROOF_MESSAGES };

/* An answer counts by most of the bits of its halves, because it may be hit as well. */
static const uint64_t accepted = UINT64_MAX, later = UINT32_MAX, refused = 0;

static void step(xm_prover_t *prover);

static uint64_t heard(uint64_t answer)
{
    bool low = __builtin_popcount((uint32_t)le64toh(answer)) > 16;

    if (low && __builtin_popcount((uint32_t)(le64toh(answer) >> 32)) > 16) {
        return accepted;
    }
    return low ? later : refused;
}

/* With its number, a message is never taken for another that says the same. */
static uint64_t hash_of(const void *bytes, size_t length, uint64_t number)
{
    return htole64(XXH3_64bits_withSeed(bytes, length, number));
}

static xm_proven_t *entry_of(xm_list_t *link)
{
    return xm_list_entry(link, xm_proven_t, link);
}

/* The first failure takes everything with it, and its sentence is the messages'. */
static void fail(xm_prover_t *prover, xm_status_t status)
{
    if (prover->failure.status != XM_OK) {
        return;
    }
    xm_error_save(&prover->failure, status);
    ++prover->held;
    for (xm_list_t *at = xm_list_first(&prover->messages); at != NULL;
         at = xm_list_next(&prover->messages, at)) {
        if (entry_of(at)->busy) {
            xm_transport_cancel(prover->transport, &entry_of(at)->op);
        }
    }
    if (prover->table_busy) {
        xm_transport_cancel(prover->transport, &prover->table_op);
    }
    if (prover->answer_busy) {
        xm_transport_cancel(prover->transport, &prover->answer_op);
    }
    --prover->held;
}

/* ---- operations ----------------------------------------------------------------------------- */

/* True while it is in flight. */
static bool start(xm_prover_t *prover, bool sends, uint64_t tag, void *bytes, size_t length,
                  xm_memory_t *memory, xm_op_t *op)
{
    xm_status_t status =
        sends
            ? xm_transport_send(prover->transport, prover->peer, tag, bytes, length, memory, op)
            : xm_transport_receive(prover->transport, prover->peer, tag, bytes, length, memory, op);

    prover->busy += status == XM_IN_PROGRESS;
    if (status < 0) {
        fail(prover, status);
    }
    return status == XM_IN_PROGRESS;
}

/* What has come is hashed while it is in the caches. */
static void message_here(xm_proven_t *proven)
{
    xm_prover_t *prover = proven->prover;

    if (!prover->sends) {
        proven->hash = hash_of(proven->buffer, proven->length, proven->number);
    }
    if (!proven->moved && prover->moved != NULL) {
        prover->moved(proven->whole);
    }
    proven->moved = true;
}

static void message_done(xm_op_t *op, xm_status_t status)
{
    xm_proven_t *proven = op->arg;
    xm_prover_t *prover = proven->prover;

    proven->busy = false;
    --prover->busy;
    if (status < 0) {
        fail(prover, status);
    } else {
        message_here(proven);
    }
    step(prover);
}

static void move(xm_proven_t *proven)
{
    xm_prover_t *prover = proven->prover;

    proven->op.done = message_done;
    proven->op.arg = proven;
    proven->busy = start(prover, prover->sends, proven->tag, proven->buffer, proven->length,
                         proven->memory, &proven->op);
    if (!proven->busy && prover->failure.status == XM_OK) {
        message_here(proven);
    }
}

static void side_done(xm_op_t *op, xm_status_t status)
{
    xm_prover_t *prover = op->arg;

    *(op == &prover->table_op ? &prover->table_busy : &prover->answer_busy) = false;
    --prover->busy;
    if (status < 0) {
        fail(prover, status);
    }
    step(prover);
}

static void move_table(xm_prover_t *prover)
{
    prover->table_op.done = side_done;
    prover->table_op.arg = prover;
    prover->table_busy = start(prover, prover->sends, prover->table_tag, prover->table,
                               sizeof(prover->table), NULL, &prover->table_op);
}

static void move_answer(xm_prover_t *prover)
{
    prover->answer_op.done = side_done;
    prover->answer_op.arg = prover;
    prover->answer_busy = start(prover, !prover->sends, prover->answer_tag, prover->answer,
                                sizeof(prover->answer), NULL, &prover->answer_op);
}

/* ---- what has been said of the messages ----------------------------------------------------- */

/* The message has ended; whoever hears of it may add others. */
static void end(xm_proven_t *proven, xm_status_t status)
{
    xm_list_remove(&proven->link);
    proven->whole->done(proven->whole, status);
}

/* The receiver says no more then: the sender would hear of it as the one to blame. */
static void is_wrong(xm_prover_t *prover, int *times, const char *what, size_t length)
{
    if (++*times > MOST_RESENDS) {
        fail(prover,
             prover->sends
                 ? xm_error_set(XM_ERR_CORRUPT,
                                "rank %d asked rank %d for %s of %zu bytes again %d times, "
                                "which no receiver does",
                                prover->peer, prover->transport->rank, what, length, *times)
                 : xm_error_set(XM_ERR_CORRUPT,
                                "%s of %zu bytes from rank %d came to rank %d wrong %d "
                                "times in a row",
                                what, length, prover->peer, prover->transport->rank, *times));
    }
}

static void move_again(xm_proven_t *proven)
{
    is_wrong(proven->prover, &proven->wrong, "a message", proven->length);
    if (proven->prover->failure.status == XM_OK) {
        move(proven);
    }
}

/* Takes the answer in, at both ends: what was accepted ends, what was refused is sent again. */
static void settle(xm_prover_t *prover)
{
    xm_list_t *at = xm_list_first(&prover->messages), *next;
    int count = prover->count;

    prover->count = 0;
    if (heard(prover->answer[XM_PROOF_MESSAGES]) != accepted) {
        if (prover->sends) {
            is_wrong(prover, &prover->wrong, "a table", sizeof(prover->table));
        }
        return;
    }
    prover->wrong = 0;
    for (int i = 0; i < count && at != NULL && prover->failure.status == XM_OK; ++i, at = next) {
        xm_proven_t *proven = entry_of(at);
        uint64_t answer = heard(prover->answer[i]);

        next = xm_list_next(&prover->messages, at);
        if (answer == accepted) {
            end(proven, XM_OK);
        } else if (answer == refused && prover->sends) {
            move_again(proven);
        }
    }
}

/* Of the first messages that are on their way. */
static bool propose(xm_prover_t *prover)
{
    xm_list_t *at = xm_list_first(&prover->messages);

    for (; at != NULL && entry_of(at)->posted && prover->count < XM_PROOF_MESSAGES;
         at = xm_list_next(&prover->messages, at)) {
        prover->table[1 + prover->count++] = entry_of(at)->hash;
    }
    if (prover->count == 0) {
        return false;
    }
    prover->table[0] = htole64((uint64_t)prover->count);
    for (int i = prover->count; i < XM_PROOF_MESSAGES; ++i) {
        prover->table[1 + i] = 0;
    }
    prover->table[SELF] = hash_of(prover->table, SELF * sizeof(*prover->table), 0);
    move_answer(prover);
    if (prover->failure.status == XM_OK) {
        move_table(prover);
    }
    return true;
}

/* True: something has happened, so there may be more to do. */
static bool step_sender(xm_prover_t *prover)
{
    xm_list_t *at = xm_list_first(&prover->messages);

    if (prover->count == 0) {
        return propose(prover);
    }
    if (prover->table_busy || prover->answer_busy) {
        return false;
    }
    for (int i = 0; i < prover->count; ++i, at = xm_list_next(&prover->messages, at)) {
        if (entry_of(at)->busy && heard(prover->answer[i]) != later) {
            return false;
        }
    }
    settle(prover);
    return true;
}

/* The answers to the table that has come; false: it is too early. What is refused is received
 * again, before the sender hears of it. */
static bool judge(xm_prover_t *prover)
{
    xm_list_t *at = xm_list_first(&prover->messages);
    uint64_t count = le64toh(prover->table[0]);
    bool good = hash_of(prover->table, SELF * sizeof(*prover->table), 0) == prover->table[SELF] &&
                count >= 1 && count <= XM_PROOF_MESSAGES;

    for (uint64_t i = 0; good && i < count && at != NULL;
         ++i, at = xm_list_next(&prover->messages, at)) {
        if (entry_of(at)->busy || (i == 0 && !entry_of(at)->posted)) {
            return false;
        }
    }
    prover->answer[XM_PROOF_MESSAGES] = good ? accepted : refused;
    prover->count = good ? (int)count : 1;
    if (!good) {
        xm_transport_count_resend(prover->transport);
        is_wrong(prover, &prover->wrong, "a table", sizeof(prover->table));
    }
    at = xm_list_first(&prover->messages);
    for (int i = 0; i < XM_PROOF_MESSAGES; ++i) {
        xm_proven_t *proven = at != NULL ? entry_of(at) : NULL;

        prover->answer[i] = htole64(later);
        if (good && i < prover->count && proven != NULL && proven->posted) {
            prover->answer[i] = proven->hash == prover->table[1 + i] ? accepted : refused;
        }
        if (prover->answer[i] == refused) {
            xm_transport_count_resend(prover->transport);
            move_again(proven);
        }
        at = proven != NULL ? xm_list_next(&prover->messages, at) : NULL;
    }
    return true;
}

static bool step_receiver(xm_prover_t *prover)
{
    if (prover->table_busy || prover->answer_busy) {
        return false;
    }
    if (prover->answered) {
        prover->answered = false;
        settle(prover);
        return true;
    }
    if (xm_list_is_empty(&prover->messages)) {
        return false;
    }
    if (!prover->expects) {
        prover->expects = true;
        move_table(prover);
        return true;
    }
    if (!judge(prover)) {
        return false;
    }
    prover->expects = false;
    prover->answered = true;
    if (prover->failure.status == XM_OK) {
        move_answer(prover);
    }
    return true;
}

/* After a failure, when nothing is in flight any more. */
static void give_up(xm_prover_t *prover)
{
    xm_list_t *at = xm_list_first(&prover->messages), *next;

    for (; at != NULL; at = next) {
        next = xm_list_next(&prover->messages, at);
        if (entry_of(at)->posted) {
            end(entry_of(at), xm_error_restore(&prover->failure));
        }
    }
}

static void step(xm_prover_t *prover)
{
    if (prover->held > 0) {
        return; /* whoever holds it looks after it */
    }
    ++prover->held;
    while (prover->failure.status == XM_OK &&
           (prover->sends ? step_sender(prover) : step_receiver(prover))) {
    }
    if (prover->failure.status < 0 && prover->busy == 0) {
        give_up(prover);
    }
    --prover->held;
}

void xm_prover_begin(xm_prover_t *prover, xm_transport_t *transport, int peer, bool sends,
                     uint64_t table_tag, uint64_t answer_tag, void (*moved)(xm_op_t *whole))
{
    *prover = (xm_prover_t){.transport = transport,
                            .peer = peer,
                            .sends = sends,
                            .table_tag = table_tag,
                            .answer_tag = answer_tag,
                            .moved = moved,
                            .failure.status = XM_OK};
    xm_list_init(&prover->messages);
}

void xm_prover_add(xm_prover_t *prover, xm_proven_t *proven, xm_op_t *whole)
{
    *proven = (xm_proven_t){.prover = prover, .whole = whole, .number = prover->added++};
    xm_list_append(&prover->messages, &proven->link);
}

/* The sender's data are on their way while it hashes them. */
void xm_proven_post(xm_proven_t *proven, uint64_t tag, const void *buffer, size_t length,
                    xm_memory_t *memory)
{
    xm_prover_t *prover = proven->prover;

    proven->tag = tag;
    proven->buffer = (void *)(uintptr_t)buffer;
    proven->length = length;
    proven->memory = memory;
    proven->posted = true;
    if (prover->failure.status == XM_OK) {
        ++prover->held;
        move(proven);
        if (prover->sends) {
            proven->hash = hash_of(buffer, length, proven->number);
        }
        --prover->held;
    }
    step(prover);
}

void xm_prover_cancel(xm_prover_t *prover)
{
    if (!xm_list_is_empty(&prover->messages)) {
        fail(prover,
             xm_error_set(XM_ERR_CANCELED, "messages with rank %d were cancelled", prover->peer));
        step(prover);
    }
}
