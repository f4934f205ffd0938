/* SPDX-License-Identifier: Apache-2.0 */
/* Every box by MPI_Isend and MPI_Irecv of subarrays, all posted at once: what most
 * programs do by hand. */
#include <stdlib.h>

#include "bench/peers/method.h"
#include "bench/peers/moves.h"

/* One call: a box that is sent or received. */
typedef struct {
    MPI_Datatype type;
    int peer;
} post_t;

typedef struct {
    const rb_peer_slot_t *slot;
    post_t *receives, *sends;
    int receive_count, send_count;
    MPI_Request *requests;
} isend_t;

/* All types that were made are freed, also after a failure half-way. */
static void destroy(void *state)
{
    isend_t *made = state;

    if (made == NULL) {
        return;
    }
    for (int i = 0; i < made->receive_count; ++i) {
        MPI_Type_free(&made->receives[i].type);
    }
    for (int i = 0; i < made->send_count; ++i) {
        MPI_Type_free(&made->sends[i].type);
    }
    free(made->requests);
    free(made->sends);
    free(made->receives);
    free(made);
}

/* A rank that sends to itself has both ends, so it is in both lists. */
static void fill(isend_t *made, const rb_peer_move_t *moves, size_t count)
{
    const rb_peer_slot_t *slot = made->slot;

    for (size_t i = 0; i < count; ++i) {
        if (moves[i].to == slot->rank) {
            made->receives[made->receive_count++] =
                (post_t){rb_peer_datatype_dst(slot, &moves[i].box), moves[i].from};
        }
        if (moves[i].from == slot->rank) {
            made->sends[made->send_count++] =
                (post_t){rb_peer_datatype_src(slot, &moves[i].box), moves[i].to};
        }
    }
}

/* A box can be sent and received by one rank, so there are two requests for each. */
static xm_status_t create(const rb_peer_slot_t *slot, void **state)
{
    isend_t *made = calloc(1, sizeof(*made));
    rb_peer_move_t *moves = NULL;
    size_t count = 0;
    xm_status_t status;

    XM_NEED_MEMORY(made, "sends and receives");
    made->slot = slot;
    status = rb_peer_moves_create(slot->src, slot->dst, slot->rank, &moves, &count);
    if (status == XM_OK) {
        made->receives = malloc((count + 1) * sizeof(*made->receives));
        made->sends = malloc((count + 1) * sizeof(*made->sends));
        made->requests = malloc((2 * count + 1) * sizeof(*made->requests));
        if (made->receives == NULL || made->sends == NULL || made->requests == NULL) {
            status = XM_NO_MEMORY("the requests of %zu boxes", count);
        }
    }
    if (status == XM_OK) {
        fill(made, moves, count);
        *state = made;
    } else {
        destroy(made);
    }
    free(moves);
    return status;
}

/* Posts everything and waits for all. One tag will do: MPI keeps the order of a pair, and
 * both ends have the same order. */
static void run(void *state)
{
    const isend_t *made = state;
    int used = 0;

    for (int i = 0; i < made->receive_count; ++i) {
        MPI_Irecv(made->slot->dst_buffer, 1, made->receives[i].type, made->receives[i].peer, 0,
                  MPI_COMM_WORLD, &made->requests[used++]);
    }
    for (int i = 0; i < made->send_count; ++i) {
        MPI_Isend(made->slot->src_buffer, 1, made->sends[i].type, made->sends[i].peer, 0,
                  MPI_COMM_WORLD, &made->requests[used++]);
    }
    MPI_Waitall(used, made->requests, MPI_STATUSES_IGNORE);
}

const rb_peer_method_t rb_peer_isend = {
    .name = "isend", .create = create, .run = run, .destroy = destroy};
