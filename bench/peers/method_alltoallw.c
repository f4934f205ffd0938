/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One MPI_Alltoallw: for every pair of ranks one type that covers all boxes of the pair.
 * It is the single call that can express a resharding, and libraries are free to schedule
 * it as a whole.
 */
#include <stdlib.h>

#include "bench/peers/method.h"
#include "bench/peers/moves.h"

/* What passes between this rank and each other in one direction. */
typedef struct {
    int *counts; /* 1 where something passes */
    MPI_Datatype *types;
} flow_t;

typedef struct {
    const rb_peer_slot_t *slot;
    int size;
    int *displacements; /* zeros */
    flow_t send, receive;
} alltoallw_t;

/* Room to join the boxes of a pair. */
typedef struct {
    const rb_peer_move_t *moves;
    size_t count;
    MPI_Datatype *types;
    MPI_Aint *displacements; /* zeros */
    int *lengths;            /* ones */
} joiner_t;

/* A type for every rank is required, also where nothing passes. */
static xm_status_t flow_create(int size, flow_t *flow)
{
    flow->counts = calloc((size_t)size, sizeof(*flow->counts));
    flow->types = malloc((size_t)size * sizeof(*flow->types));
    XM_NEED_MEMORY(flow->counts != NULL && flow->types != NULL, "the types of %d ranks", size);
    for (int r = 0; r < size; ++r) {
        flow->types[r] = MPI_BYTE;
    }
    return XM_OK;
}

/* Only types of ranks with something to pass are ours to free. */
static void flow_clear(const flow_t *flow, int size)
{
    for (int r = 0; flow->counts != NULL && flow->types != NULL && r < size; ++r) {
        if (flow->counts[r] > 0) {
            MPI_Type_free(&flow->types[r]);
        }
    }
    free(flow->types);
    free(flow->counts);
}

static xm_status_t joiner_create(const rb_peer_move_t *moves, size_t count, joiner_t *joiner)
{
    *joiner = (joiner_t){.moves = moves, .count = count};
    joiner->types = malloc((count + 1) * sizeof(*joiner->types));
    joiner->displacements = calloc(count + 1, sizeof(*joiner->displacements));
    joiner->lengths = malloc((count + 1) * sizeof(*joiner->lengths));
    if (joiner->types == NULL || joiner->displacements == NULL || joiner->lengths == NULL) {
        return XM_NO_MEMORY("the types of %zu boxes", count);
    }
    for (size_t i = 0; i < count; ++i) {
        joiner->lengths[i] = 1;
    }
    return XM_OK;
}

static void joiner_clear(const joiner_t *joiner)
{
    free(joiner->lengths);
    free(joiner->displacements);
    free(joiner->types);
}

/*
 * Makes one type of the boxes between this rank and a peer. A struct of subarrays with
 * displacements of zero covers them all; both ends join them in the order of the moves,
 * so the bytes match.
 */
static void join(const joiner_t *joiner, const rb_peer_slot_t *slot, int peer, bool sends,
                 flow_t *flow)
{
    int parts = 0;

    for (size_t i = 0; i < joiner->count; ++i) {
        const rb_peer_move_t *move = &joiner->moves[i];

        if (sends && move->from == slot->rank && move->to == peer) {
            joiner->types[parts++] = rb_peer_datatype_src(slot, &move->box);
        } else if (!sends && move->to == slot->rank && move->from == peer) {
            joiner->types[parts++] = rb_peer_datatype_dst(slot, &move->box);
        }
    }
    if (parts == 0) {
        return;
    }
    flow->counts[peer] = 1;
    if (parts == 1) {
        flow->types[peer] = joiner->types[0];
        return;
    }
    MPI_Type_create_struct(parts, joiner->lengths, joiner->displacements, joiner->types,
                           &flow->types[peer]);
    MPI_Type_commit(&flow->types[peer]);
    for (int i = 0; i < parts; ++i) {
        MPI_Type_free(&joiner->types[i]);
    }
}

/* The moves are needed only while the types are made. */
static xm_status_t join_all(alltoallw_t *made)
{
    rb_peer_move_t *moves;
    joiner_t joiner;
    size_t count;
    xm_status_t status;

    XM_TRY(
        rb_peer_moves_create(made->slot->src, made->slot->dst, made->slot->rank, &moves, &count));
    status = joiner_create(moves, count, &joiner);
    for (int r = 0; status == XM_OK && r < made->size; ++r) {
        join(&joiner, made->slot, r, true, &made->send);
        join(&joiner, made->slot, r, false, &made->receive);
    }
    joiner_clear(&joiner);
    free(moves);
    return status;
}

static void destroy(void *state)
{
    alltoallw_t *made = state;

    if (made != NULL) {
        flow_clear(&made->receive, made->size);
        flow_clear(&made->send, made->size);
        free(made->displacements);
        free(made);
    }
}

static xm_status_t create(const rb_peer_slot_t *slot, void **state)
{
    alltoallw_t *made = calloc(1, sizeof(*made));
    xm_status_t status;

    XM_NEED_MEMORY(made, "an all-to-all");
    made->slot = slot;
    MPI_Comm_size(MPI_COMM_WORLD, &made->size);
    made->displacements = calloc((size_t)made->size, sizeof(*made->displacements));
    status = made->displacements != NULL ? flow_create(made->size, &made->send)
                                         : XM_NO_MEMORY("%d ranks", made->size);
    XM_THEN(status, flow_create(made->size, &made->receive));
    XM_THEN(status, join_all(made));
    if (status < 0) {
        destroy(made);
        return status;
    }
    *state = made;
    return XM_OK;
}

static void run(void *state)
{
    const alltoallw_t *made = state;

    MPI_Alltoallw(made->slot->src_buffer, made->send.counts, made->displacements, made->send.types,
                  made->slot->dst_buffer, made->receive.counts, made->displacements,
                  made->receive.types, MPI_COMM_WORLD);
}

const rb_peer_method_t rb_peer_alltoallw = {
    .name = "alltoallw", .create = create, .run = run, .destroy = destroy};
