/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every slice by one MPI_Bcast over its sender and the ranks that need it. Communicators
 * are made beforehand, one for each set of ranks. All ranks go through the slices in one
 * order, so that no two of them wait for each other. A slice is broadcast as so many
 * elements, from and to the tile where it lies there in one piece, otherwise packed: a
 * count of 1 of a subarray type would keep MPI from cutting it into the segments of its
 * pipelines.
 */
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "bench/peers/method.h"
#include "bench/peers/moves.h"

/* A set of ranks, ascending. */
typedef struct {
    int *ranks;
    int count;
    bool member; /* this rank is one of them */
    MPI_Comm comm;
} group_t;

/* This rank's part in one slice. */
typedef struct {
    int group; /* -1: a copy from the source to the destination tile */
    int root;  /* in the group */
    bool sends;
    MPI_Datatype type; /* of the box in the tile that is sent from, received into or copied from */
    MPI_Datatype to;   /* of a copy: in the destination tile */
    int elements;      /* of the box */
    unsigned char *place; /* of the box in that tile; NULL when it is not in one piece */
} step_t;

typedef struct {
    const rb_peer_slot_t *slot;
    group_t *groups;
    int group_count;
    step_t *steps;
    size_t step_count;
    MPI_Datatype element;
    unsigned char *staging; /* a packed slice */
    size_t staging_bytes;
} bcast_t;

static int find_rank(const int *ranks, int count, int rank)
{
    const int *found = bsearch(&rank, ranks, (size_t)count, sizeof(*ranks), xm_order_ints);

    return found != NULL ? (int)(found - ranks) : -1;
}

/* Lists the sender and the receivers that do not hold the slice, ascending; returns their
 * number. */
static int list_members(const rb_peer_slot_t *slot, const xm_unit_task_t *task, int sender,
                        int *ranks)
{
    int receivers, count = 0;
    const int *to = xm_layout_replicas(slot->dst, task->dst_tile, &receivers);

    ranks[count++] = sender;
    for (int i = 0; i < receivers; ++i) {
        if (xm_layout_tile_of_rank(slot->src, to[i]) != task->src_tile) {
            ranks[count++] = to[i];
        }
    }
    qsort(ranks, (size_t)count, sizeof(*ranks), xm_order_ints);
    return count;
}

/* Finds the group of these ranks, which is added when it is new. The search is linear
 * because the sets of a case are few. */
static xm_status_t find_group(bcast_t *made, const int *ranks, int count, int *index)
{
    int *copy;

    for (int g = 0; g < made->group_count; ++g) {
        const group_t *group = &made->groups[g];

        if (group->count == count &&
            memcmp(group->ranks, ranks, (size_t)count * sizeof(*ranks)) == 0) {
            *index = g;
            return XM_OK;
        }
    }
    copy = malloc((size_t)count * sizeof(*copy));
    XM_NEED_MEMORY(copy, "a group of %d ranks", count);
    memcpy(copy, ranks, (size_t)count * sizeof(*copy));
    *index = made->group_count++;
    made->groups[*index] = (group_t){.ranks = copy,
                                     .count = count,
                                     .member = find_rank(ranks, count, made->slot->rank) >= 0,
                                     .comm = MPI_COMM_NULL};
    return XM_OK;
}

static void add_copy(bcast_t *made, const xm_box_t *box)
{
    made->steps[made->step_count++] = (step_t){.group = -1,
                                               .type = rb_peer_datatype_src(made->slot, box),
                                               .to = rb_peer_datatype_dst(made->slot, box)};
}

/* Returns where a box begins in the buffer of a tile; NULL when it is not in one piece
 * there, which is when a dimension outside a cut one is longer than 1. */
static unsigned char *find_piece(unsigned char *buffer, const xm_box_t *tile, const xm_box_t *box,
                                 int64_t element_size)
{
    int64_t index = 0;
    bool cut = false; /* an inner dimension is not whole */

    for (int d = box->dims - 1; d >= 0; --d) {
        int64_t length = box->hi[d] - box->lo[d];

        if (cut && length > 1) {
            return NULL;
        }
        cut = cut || length < tile->hi[d] - tile->lo[d];
    }
    for (int d = 0; d < box->dims; ++d) {
        index = index * (tile->hi[d] - tile->lo[d]) + box->lo[d] - tile->lo[d];
    }
    return buffer + index * element_size;
}

/* Adds this rank's part in the broadcast of a box. Counts are ints in MPI, so longer
 * slices are refused. */
static xm_status_t add_broadcast(bcast_t *made, const xm_box_t *box, int group, int root,
                                 bool sends)
{
    const rb_peer_slot_t *slot = made->slot;
    int64_t elements = xm_box_volume(box), element_size = slot->one->element_size;
    step_t step = {.group = group, .root = root, .sends = sends, .elements = (int)elements};

    step.place = sends ? find_piece(slot->src_buffer, &slot->src_box, box, element_size)
                       : find_piece(slot->dst_buffer, &slot->dst_box, box, element_size);
    if (elements > INT_MAX || (step.place == NULL && elements > INT_MAX / element_size)) {
        return XM_UNSUPPORTED(
            "a slice has %" PRId64 " elements of %" PRId64 " bytes, but %s counts to %d", elements,
            element_size, step.place == NULL ? "MPI_Pack in bytes" : "MPI_Bcast", INT_MAX);
    }
    if (step.place == NULL && (size_t)(elements * element_size) > made->staging_bytes) {
        made->staging_bytes = (size_t)(elements * element_size);
    }
    step.type = sends ? rb_peer_datatype_src(slot, box) : rb_peer_datatype_dst(slot, box);
    made->steps[made->step_count++] = step;
    return XM_OK;
}

/* Adds this rank's part in a slice that @p sender broadcasts: a copy, a part in the
 * broadcast, or nothing. */
static xm_status_t add_slice(bcast_t *made, const xm_unit_task_t *task, int sender, int *ranks)
{
    const rb_peer_slot_t *slot = made->slot;
    bool holds = xm_layout_tile_of_rank(slot->src, slot->rank) == task->src_tile;
    bool needs = xm_layout_tile_of_rank(slot->dst, slot->rank) == task->dst_tile;
    int count = list_members(slot, task, sender, ranks), group = 0;
    xm_box_t box;

    xm_unit_task_box(slot->src, slot->dst, task, &box);
    if (holds && needs) {
        add_copy(made, &box);
    }
    if (count == 1) {
        return XM_OK;
    }
    XM_TRY(find_group(made, ranks, count, &group));
    if (made->groups[group].member) {
        XM_TRY(add_broadcast(made, &box, group, find_rank(ranks, count, sender),
                             slot->rank == sender));
    }
    return XM_OK;
}

/* Goes through the slices; those of a source tile are dealt out evenly among its holders,
 * as a user would do to balance the senders. */
static xm_status_t add_slices(bcast_t *made, const xm_unit_task_t *tasks, int64_t count)
{
    const rb_peer_slot_t *slot = made->slot;
    size_t tiles = (size_t)xm_layout_tiles(slot->src);
    int64_t *slices = calloc(tiles, sizeof(*slices)), *dealt = calloc(tiles, sizeof(*dealt));
    int *ranks = malloc(((size_t)xm_mesh_size(xm_layout_mesh(slot->dst)) + 1) * sizeof(*ranks));
    xm_status_t status = XM_OK;

    if (slices == NULL || dealt == NULL || ranks == NULL) {
        status = XM_NO_MEMORY("%zu source tiles", tiles);
    }
    for (int64_t t = 0; status == XM_OK && t < count; ++t) {
        ++slices[tasks[t].src_tile];
    }
    for (int64_t t = 0; status == XM_OK && t < count; ++t) {
        int tile = tasks[t].src_tile, holders;
        const int *from = xm_layout_replicas(slot->src, tile, &holders);

        status = add_slice(made, &tasks[t], from[dealt[tile]++ * holders / slices[tile]], ranks);
    }
    free(ranks);
    free(dealt);
    free(slices);
    return status;
}

static void destroy(void *state)
{
    bcast_t *made = state;

    if (made == NULL) {
        return;
    }
    for (size_t i = 0; i < made->step_count; ++i) {
        MPI_Type_free(&made->steps[i].type);
        if (made->steps[i].group < 0) {
            MPI_Type_free(&made->steps[i].to);
        }
    }
    for (int g = 0; g < made->group_count; ++g) {
        if (made->groups[g].comm != MPI_COMM_NULL) {
            MPI_Comm_free(&made->groups[g].comm);
        }
        free(made->groups[g].ranks);
    }
    MPI_Type_free(&made->element);
    free(made->staging);
    free(made->steps);
    free(made->groups);
    free(made);
}

static xm_status_t create(const rb_peer_slot_t *slot, void **state)
{
    bcast_t *made = calloc(1, sizeof(*made));
    xm_unit_task_t *tasks = NULL;
    int64_t count = 0;
    xm_status_t status;

    XM_NEED_MEMORY(made, "broadcasts");
    made->slot = slot;
    MPI_Type_contiguous((int)slot->one->element_size, MPI_BYTE, &made->element);
    MPI_Type_commit(&made->element);
    status = xm_unit_tasks_create(slot->src, slot->dst, 0, &tasks, &count);
    if (status == XM_OK) {
        /* A slice needs at most a copy and a part in its broadcast. */
        made->groups = malloc(((size_t)count + 1) * sizeof(*made->groups));
        made->steps = malloc((2 * (size_t)count + 1) * sizeof(*made->steps));
        status = made->groups != NULL && made->steps != NULL
                     ? add_slices(made, tasks, count)
                     : XM_NO_MEMORY("%zu slices", (size_t)count);
    }
    free(tasks);
    if (status == XM_OK && made->staging_bytes > 0) {
        made->staging = malloc(made->staging_bytes);
        if (made->staging == NULL) {
            status =
                xm_error_set(XM_ERR_NO_MEMORY, "rank %d has no memory for a slice of %zu bytes",
                             slot->rank, made->staging_bytes);
        }
    }
    if (status < 0) {
        destroy(made);
        return status;
    }
    *state = made;
    return XM_OK;
}

/* Makes the communicators, each by its members only. All ranks have the groups in one
 * order, so members meet in the same order everywhere. */
static void connect_groups(void *state)
{
    bcast_t *made = state;
    MPI_Group world, members;

    MPI_Comm_group(MPI_COMM_WORLD, &world);
    for (int g = 0; g < made->group_count; ++g) {
        group_t *group = &made->groups[g];

        if (group->member) {
            MPI_Group_incl(world, group->count, group->ranks, &members);
            MPI_Comm_create_group(MPI_COMM_WORLD, members, 0, &group->comm);
            MPI_Group_free(&members);
        }
    }
    MPI_Group_free(&world);
}

static void broadcast(const bcast_t *made, const step_t *step)
{
    const rb_peer_slot_t *slot = made->slot;
    MPI_Comm comm = made->groups[step->group].comm;
    int bytes = (int)made->staging_bytes, position = 0;

    if (step->place != NULL) {
        MPI_Bcast(step->place, step->elements, made->element, step->root, comm);
    } else if (step->sends) {
        MPI_Pack(slot->src_buffer, 1, step->type, made->staging, bytes, &position, comm);
        MPI_Bcast(made->staging, step->elements, made->element, step->root, comm);
    } else {
        MPI_Bcast(made->staging, step->elements, made->element, step->root, comm);
        MPI_Unpack(made->staging, bytes, &position, slot->dst_buffer, 1, step->type, comm);
    }
}

/* A copy inside a rank is a message to itself, with both types. */
static void run(void *state)
{
    const bcast_t *made = state;
    const rb_peer_slot_t *slot = made->slot;

    for (size_t i = 0; i < made->step_count; ++i) {
        const step_t *step = &made->steps[i];

        if (step->group >= 0) {
            broadcast(made, step);
        } else {
            MPI_Sendrecv(slot->src_buffer, 1, step->type, slot->rank, 0, slot->dst_buffer, 1,
                         step->to, slot->rank, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        }
    }
}

const rb_peer_method_t rb_peer_bcast = {
    .name = "bcast", .create = create, .connect = connect_groups, .run = run, .destroy = destroy};
