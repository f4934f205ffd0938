/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A message with its hash and its answer (proven.h).
 *
 * Both ends go in rounds. In each the sender has all three parts in flight: data, hash, and the
 * receive of an answer. The receiver has data and hash; when both have come it compares, and sends
 * the answer: alone if it accepts, else after it has posted the receives of the next round, so
 * that what is sent again finds them. A round has nothing in flight at its end.
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

enum {
    MOST_RESENDS = 10,
    ALL = (1U << XM_PROVEN_PARTS) - 1,
    HELD = 1U << XM_PROVEN_PARTS, /* nothing may end meanwhile */
    ANSWER_BITS = 64
};

static void end_round(xm_proven_t *proven);

static void cancel_parts(xm_proven_t *proven)
{
    if (proven->canceled) {
        return;
    }
    proven->canceled = true;
    proven->busy |= HELD;
    for (int part = 0; part < XM_PROVEN_PARTS; ++part) {
        if ((proven->busy & 1U << part) != 0) {
            xm_transport_cancel(proven->transport, &proven->ops[part]);
        }
    }
    proven->busy &= ~(unsigned)HELD;
}

/* The first failure takes the other parts with it, and its sentence is the message's. */
static void fail(xm_proven_t *proven, xm_status_t status)
{
    if (proven->failure.status == XM_OK) {
        xm_error_save(&proven->failure, status);
    }
}

static void part_done(xm_op_t *op, xm_status_t status)
{
    xm_proven_t *proven = op->arg;

    proven->busy &= ~(1U << (op - proven->ops));
    if (status < 0) {
        fail(proven, status);
    }
    if ((proven->busy & HELD) != 0) {
        return;
    }
    if (status < 0) {
        cancel_parts(proven);
    }
    if (proven->busy == 0) {
        end_round(proven);
    }
}

static uint64_t hash_of(const xm_proven_t *proven)
{
    return htole64(XXH3_64bits(proven->buffer, proven->length));
}

/* The sender's data are on their way while it hashes them. */
static xm_status_t post_part(xm_proven_t *proven, int part)
{
    xm_transport_t *transport = proven->transport;
    bool sends = proven->sends != (part == XM_PROVEN_ANSWER);
    void *bytes[XM_PROVEN_PARTS] = {proven->buffer, &proven->hash, &proven->answer};
    size_t length = part == XM_PROVEN_DATA ? proven->length : sizeof(uint64_t);
    xm_memory_t *memory = part == XM_PROVEN_DATA ? proven->memory : NULL;

    if (part == XM_PROVEN_HASH && proven->sends) {
        proven->hash = hash_of(proven);
    }
    proven->ops[part].done = part_done;
    proven->ops[part].arg = proven;
    return sends ? xm_transport_send(transport, proven->peer, proven->tags[part], bytes[part],
                                     length, memory, &proven->ops[part])
                 : xm_transport_receive(transport, proven->peer, proven->tags[part], bytes[part],
                                        length, memory, &proven->ops[part]);
}

static void post_parts(xm_proven_t *proven, unsigned parts)
{
    proven->busy = HELD;
    for (int part = 0; part < XM_PROVEN_PARTS && proven->failure.status == XM_OK; ++part) {
        if ((parts & 1U << part) != 0) {
            xm_status_t status = post_part(proven, part);

            proven->busy |= status == XM_IN_PROGRESS ? 1U << part : 0;
            if (status < 0) {
                fail(proven, status);
            }
        }
    }
    proven->busy &= ~(unsigned)HELD;
    if (proven->failure.status < 0) {
        cancel_parts(proven);
    }
    if (proven->busy == 0) {
        end_round(proven);
    }
}

/* Data and hash of this round are here. */
static void judge(xm_proven_t *proven)
{
    uint64_t found = hash_of(proven);

    proven->accepted = found == proven->hash;
    proven->answer = proven->accepted ? UINT64_MAX : 0;
    if (proven->accepted) {
        post_parts(proven, 1U << XM_PROVEN_ANSWER);
        return;
    }
    xm_transport_count_resend(proven->transport);
    if (++proven->wrong > MOST_RESENDS) {
        fail(proven, xm_error_set(XM_ERR_CORRUPT,
                                  "%zu bytes from rank %d came to rank %d wrong %d times in a row, "
                                  "the last time with hash %016" PRIx64 " instead of %016" PRIx64,
                                  proven->length, proven->peer, proven->transport->rank,
                                  proven->wrong, le64toh(found), le64toh(proven->hash)));
        end_round(proven);
        return;
    }
    post_parts(proven, ALL);
}

/* An answer counts by most of its bits, because it may be hit as well. */
static void end_round(xm_proven_t *proven)
{
    if (proven->sends && __builtin_popcountll(proven->answer) > ANSWER_BITS / 2) {
        proven->accepted = true;
    }
    if (proven->failure.status == XM_OK && !proven->accepted && proven->canceled) {
        fail(proven,
             xm_error_set(XM_ERR_CANCELED, "a message with rank %d was cancelled", proven->peer));
    }
    if (proven->failure.status == XM_OK && !proven->accepted && proven->sends &&
        ++proven->wrong > MOST_RESENDS) {
        fail(proven,
             xm_error_set(XM_ERR_CORRUPT,
                          "rank %d asked rank %d for %zu bytes again %d times, which no "
                          "receiver does",
                          proven->peer, proven->transport->rank, proven->length, proven->wrong));
    }
    if (proven->failure.status < 0) {
        proven->whole->done(proven->whole, xm_error_restore(&proven->failure));
    } else if (proven->accepted) {
        proven->whole->done(proven->whole, XM_OK);
    } else if (proven->sends) {
        post_parts(proven, ALL);
    } else {
        judge(proven);
    }
}

void xm_proven_post(xm_proven_t *proven, xm_transport_t *transport, int peer, bool sends,
                    const uint64_t tags[XM_PROVEN_PARTS], const void *buffer, size_t length,
                    xm_memory_t *memory, xm_op_t *whole)
{
    proven->transport = transport;
    proven->peer = peer;
    proven->sends = sends;
    for (int part = 0; part < XM_PROVEN_PARTS; ++part) {
        proven->tags[part] = tags[part];
    }
    proven->buffer = (char *)(uintptr_t)buffer;
    proven->length = length;
    proven->memory = memory;
    proven->whole = whole;
    proven->wrong = 0;
    proven->accepted = proven->canceled = false;
    proven->failure.status = XM_OK;
    proven->answer = 0;
    post_parts(proven, sends ? ALL : 1U << XM_PROVEN_DATA | 1U << XM_PROVEN_HASH);
}

void xm_proven_cancel(xm_proven_t *proven)
{
    if (proven->busy != 0 && !proven->canceled) {
        cancel_parts(proven);
        if (proven->busy == 0) {
            end_round(proven);
        }
    }
}
