/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who sends which box to whom when every receiver is served by itself. Receivers take the
 * holders in turn by their position in the mesh, and a receiver that holds the box serves
 * itself.
 */
#include "bench/peers/moves.h"

#include <stdlib.h>

int rb_peer_sender(const xm_layout_t *src, const xm_layout_t *dst, const xm_unit_task_t *task,
                   int position)
{
    int receiver = xm_mesh_rank(xm_layout_mesh(dst), position), count;
    const int *holders = xm_layout_replicas(src, task->src_tile, &count);

    return xm_layout_tile_of_rank(src, receiver) == task->src_tile ? receiver
                                                                   : holders[position % count];
}

/* Writes the rank's moves where there is room for them (NULL only counts) and returns
 * their number. */
static size_t list_moves(const xm_layout_t *src, const xm_layout_t *dst, int rank,
                         const xm_unit_task_t *tasks, int64_t task_count, rb_peer_move_t *moves)
{
    size_t used = 0;

    for (int64_t t = 0; t < task_count; ++t) {
        int receivers;
        const int *to = xm_layout_replicas(dst, tasks[t].dst_tile, &receivers);

        for (int i = 0; i < receivers; ++i) {
            int from =
                rb_peer_sender(src, dst, &tasks[t], xm_mesh_position(xm_layout_mesh(dst), to[i]));

            if (from != rank && to[i] != rank) {
                continue;
            }
            if (moves != NULL) {
                moves[used] = (rb_peer_move_t){.from = from, .to = to[i]};
                xm_unit_task_box(src, dst, &tasks[t], &moves[used].box);
            }
            ++used;
        }
    }
    return used;
}

xm_status_t rb_peer_moves_create(const xm_layout_t *src, const xm_layout_t *dst, int rank,
                                 rb_peer_move_t **moves, size_t *count)
{
    xm_unit_task_t *tasks;
    rb_peer_move_t *listed;
    int64_t task_count;
    size_t needed;
    xm_status_t status = XM_OK;

    XM_TRY(xm_unit_tasks_create(src, dst, 0, &tasks, &task_count));
    needed = list_moves(src, dst, rank, tasks, task_count, NULL);
    listed = malloc((needed + 1) * sizeof(*listed));
    if (listed == NULL) {
        status = XM_NO_MEMORY("the %zu moves of rank %d", needed, rank);
    } else {
        (void)list_moves(src, dst, rank, tasks, task_count, listed);
        *moves = listed;
        *count = needed;
    }
    free(tasks);
    return status;
}

/* Makes a committed type, which the caller frees. The extents fit an int:
 * rb_peer_slot_create() has seen to it. */
static MPI_Datatype box_type(const xm_box_t *tile, const xm_box_t *box, int64_t element_size)
{
    int sizes[XM_MAX_DIMS], lengths[XM_MAX_DIMS], starts[XM_MAX_DIMS];
    MPI_Datatype element, type;

    MPI_Type_contiguous((int)element_size, MPI_BYTE, &element);
    for (int d = 0; d < box->dims; ++d) {
        sizes[d] = (int)(tile->hi[d] - tile->lo[d]);
        lengths[d] = (int)(box->hi[d] - box->lo[d]);
        starts[d] = (int)(box->lo[d] - tile->lo[d]);
    }
    /* MPI knows no subarray of no dimensions. */
    if (box->dims == 0) {
        MPI_Type_dup(element, &type);
    } else {
        MPI_Type_create_subarray(box->dims, sizes, lengths, starts, MPI_ORDER_C, element, &type);
    }
    MPI_Type_free(&element);
    MPI_Type_commit(&type);
    return type;
}

MPI_Datatype rb_peer_datatype_src(const rb_peer_slot_t *slot, const xm_box_t *box)
{
    return box_type(&slot->src_box, box, slot->one->element_size);
}

MPI_Datatype rb_peer_datatype_dst(const rb_peer_slot_t *slot, const xm_box_t *box)
{
    return box_type(&slot->dst_box, box, slot->one->element_size);
}
