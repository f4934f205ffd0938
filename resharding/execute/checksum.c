/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Verifies a run end to end by hashes (checksum.h): the holder's hash of each box travels
 * to every receiver and is compared there with what lies in the destination tile. It
 * checks data and not the executor's bookkeeping, so it finds faults of any layer below.
 * Hashing goes in slices between looks at the network, so that messages move on
 * meanwhile.
 */
#include "resharding/execute/checksum.h"

#include <endian.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "resharding/execute/carrier/device.h"

enum {
    SLICE = 4 * 1024 * 1024, /* bytes hashed between two looks at the network */
    SCRATCH = 64 * 1024      /* bytes packed at a time */
};

/* The tag bit that tells hashes from a run's messages; it is above their sequence
 * numbers. The bits of the count below it are no other messages' (execute_private.h). */
static const uint64_t TAG_BIT = UINT64_C(1) << 31, COUNT_BITS = (UINT64_C(1) << 29) - 1;

/* Traffic with one peer in one direction: one message of hashes. */
typedef struct {
    xm_op_t op;
    xm_checksum_t *checksum;
    int64_t first, count; /* in the hashes of that direction */
    int64_t next;         /* filled or compared so far */
    bool busy;
} packet_t;

/* Tasks to hash on one side, in plan order. */
typedef struct {
    int64_t *tasks;
    int64_t count, next;
    int64_t element; /* of the next task: hashed so far */
} todo_t;

struct xm_checksum {
    xm_executor_t *executor;
    bool gave_up; /* on a peer that may live: the hashes may still be read or written */
    int rank, ranks;
    uint64_t tag;
    packet_t *packets[2]; /* by side and peer: what we send (0) and receive (1); the own rank's
                             never travels */
    uint64_t *hashes[2];  /* little-endian while they travel */
    todo_t todo[2];       /* tasks this rank holds first, and those it receives */
    uint64_t *found;      /* by received task: hash of what lies in the destination tile */
    XXH3_state_t *state;
    char *scratch;
    int in_flight;
    bool posted[2]; /* sends, receives */
    bool canceled;
    bool ended;
    xm_error_t failure; /* the first one; XM_OK: none */
};

static xm_unit_task_t task_of(const xm_checksum_t *checksum, int64_t task)
{
    return xm_plan_task(checksum->executor->plan, task);
}

static const xm_layout_t *src_of(const xm_checksum_t *checksum, int64_t task)
{
    return xm_plan_tensor_src(checksum->executor->plan, task_of(checksum, task).tensor);
}

static const xm_layout_t *dst_of(const xm_checksum_t *checksum, int64_t task)
{
    return xm_plan_tensor_dst(checksum->executor->plan, task_of(checksum, task).tensor);
}

/* False for ranks of the meshes that were lost before this plan was made. */
static bool is_left(const xm_checksum_t *checksum, int rank)
{
    return rank < xm_plan_ranks(checksum->executor->plan);
}

/* The first living replica speaks for all; which one does is the same on every rank without a
 * message. −1: none has lived, so there is nothing to compare with. */
static int first_holder(const xm_checksum_t *checksum, int64_t task)
{
    int count;
    const int *holders =
        xm_layout_replicas(src_of(checksum, task), task_of(checksum, task).src_tile, &count);

    for (int i = 0; i < count; ++i) {
        if (is_left(checksum, holders[i])) {
            return holders[i];
        }
    }
    return -1;
}

static const int *receivers_of(const xm_checksum_t *checksum, int64_t task, int *count)
{
    return xm_layout_replicas(dst_of(checksum, task), task_of(checksum, task).dst_tile, count);
}

/* True when this rank is one of the task's receivers. */
static bool receives(const xm_checksum_t *checksum, int64_t task)
{
    return xm_layout_tile_of_rank(dst_of(checksum, task), checksum->rank) ==
           task_of(checksum, task).dst_tile;
}

/* Keeps the first failure and its sentence: what is cancelled after it sets others. */
static void fail(xm_checksum_t *checksum, xm_status_t status)
{
    if (checksum->failure.status == XM_OK) {
        xm_error_save(&checksum->failure, status);
    }
}

/* Completion of one message, also called directly when a post ends at once or fails. */
static void packet_done(xm_op_t *op, xm_status_t status)
{
    packet_t *packet = op->arg;

    packet->busy = false;
    --packet->checksum->in_flight;
    if (status < 0) {
        fail(packet->checksum, status);
    }
}

/*
 * Counts the tasks of both sides and the hashes that go to and come from every peer; with
 * `fill` the tasks are listed instead. Both passes go in plan order, as do those of the
 * peer, so hashes need no labels in their message.
 */
static void count_tasks(xm_checksum_t *checksum, int64_t tasks, bool fill)
{
    for (int64_t t = 0; t < tasks; ++t) {
        int holder = first_holder(checksum, t), count;

        if (holder == checksum->rank) {
            const int *receivers = receivers_of(checksum, t, &count);

            if (fill) {
                checksum->todo[0].tasks[checksum->todo[0].count] = t;
            }
            ++checksum->todo[0].count;
            for (int r = 0; !fill && r < count; ++r) {
                if (is_left(checksum, receivers[r])) {
                    ++checksum->packets[0][receivers[r]].count;
                }
            }
        }
        if (holder >= 0 && receives(checksum, t)) {
            if (fill) {
                checksum->todo[1].tasks[checksum->todo[1].count] = t;
            } else {
                ++checksum->packets[1][holder].count;
            }
            ++checksum->todo[1].count;
        }
    }
}

/* Lays out the hashes of each direction peer by peer, in one array, so that each message
 * is contiguous. */
static bool make_arrays(xm_checksum_t *checksum, int64_t tasks)
{
    size_t ranks = (size_t)checksum->ranks;

    checksum->state = XXH3_createState();
    checksum->scratch = malloc(SCRATCH);
    for (int side = 0; side < 2; ++side) {
        checksum->packets[side] = calloc(ranks, sizeof(packet_t));
    }
    if (checksum->state == NULL || checksum->scratch == NULL || checksum->packets[0] == NULL ||
        checksum->packets[1] == NULL) {
        return false;
    }
    count_tasks(checksum, tasks, false);
    for (int side = 0; side < 2; ++side) {
        todo_t *todo = &checksum->todo[side];
        int64_t next = 0;

        for (size_t r = 0; r < ranks; ++r) {
            packet_t *packet = &checksum->packets[side][r];

            packet->checksum = checksum;
            packet->op.done = packet_done;
            packet->op.arg = packet;
            packet->first = next;
            next += packet->count;
        }
        checksum->hashes[side] = malloc(((size_t)next + 1) * sizeof(uint64_t));
        todo->tasks = malloc(((size_t)todo->count + 1) * sizeof(int64_t));
        if (checksum->hashes[side] == NULL || todo->tasks == NULL) {
            return false;
        }
        todo->count = 0;
    }
    count_tasks(checksum, tasks, true);
    checksum->found = malloc(((size_t)checksum->todo[1].count + 1) * sizeof(uint64_t));
    return checksum->found != NULL;
}

/* Frees the object. After a peer had to be given up, a late message could still write its
 * hashes, so they are kept for ever rather than reused for something else. */
static void free_checksum(xm_checksum_t *checksum)
{
    for (int side = 0; side < 2; ++side) {
        free(checksum->todo[side].tasks);
        if (checksum->gave_up) {
            xm_keep_for_ever(checksum->hashes[side]);
        } else {
            free(checksum->hashes[side]);
        }
        free(checksum->packets[side]);
    }
    free(checksum->found);
    free(checksum->scratch);
    (void)XXH3_freeState(checksum->state);
    free(checksum);
}

/*
 * Only a run that has ended well can be verified: the buffers of a failed one hold
 * anything. The tag contains the number of verifications, so that those of one run do not
 * mix.
 */
xm_status_t xm_checksum_create(xm_executor_t *executor, xm_checksum_t **checksum)
{
    xm_checksum_t *created;
    int64_t tasks = xm_plan_task_count(executor->plan);

    if (executor->running || executor->result < 0 || !executor->posted) {
        return XM_INVALID("there is no run of this executor that has ended well to verify");
    }
    created = calloc(1, sizeof(*created));
    XM_NEED_MEMORY(created, "verifying a run");
    created->executor = executor;
    created->rank = executor->transport->rank;
    created->ranks = executor->transport->size;
    if (!make_arrays(created, tasks)) {
        free_checksum(created);
        return XM_NO_MEMORY("verifying a plan of %" PRId64 " tasks", tasks);
    }
    created->tag = xm_executor_tag(executor) | TAG_BIT | (executor->checksums++ & COUNT_BITS);
    *checksum = created;
    return XM_OK;
}

/* Posts one side's messages. What the rank sends to itself is already where it is
 * compared. */
static void post_side(xm_checksum_t *checksum, int side)
{
    xm_transport_t *transport = checksum->executor->transport;

    checksum->posted[side] = true;
    for (int r = 0; r < checksum->ranks && checksum->failure.status == XM_OK; ++r) {
        packet_t *packet = &checksum->packets[side][r];
        uint64_t *hashes = checksum->hashes[side] + packet->first;
        size_t bytes = (size_t)packet->count * sizeof(*hashes);
        xm_status_t status;

        if (packet->count == 0 || r == checksum->rank) {
            continue;
        }
        packet->busy = true;
        ++checksum->in_flight;
        status = side == 0 ? xm_transport_send(transport, r, checksum->tag, hashes, bytes, NULL,
                                               &packet->op)
                           : xm_transport_receive(transport, r, checksum->tag, hashes, bytes, NULL,
                                                  &packet->op);
        if (status != XM_IN_PROGRESS) {
            packet_done(&packet->op, status);
        }
    }
}

/* Feeds elements of a tile on a device into the running hash. This is not the hot path,
 * so it waits for the device. */
static void hash_device_range(xm_checksum_t *checksum, const xm_view_t *view, const char *buffer,
                              int64_t first, int64_t count)
{
    while (count > 0) {
        int64_t part = count;
        const char *bytes;
        xm_status_t status = xm_device_read(checksum->executor, view, buffer, first, &part, &bytes);

        if (status < 0) {
            fail(checksum, status);
            return;
        }
        (void)XXH3_64bits_update(checksum->state, bytes, (size_t)(part * view->element_size));
        first += part;
        count -= part;
    }
}

/*
 * Feeds elements [first, first + count) of a box into the running hash, out of the tile
 * where they are contiguous and through the scratch buffer where they are not. The hash
 * does not depend on which.
 */
static void hash_range(xm_checksum_t *checksum, const xm_view_t *view, const char *buffer,
                       int64_t first, int64_t count)
{
    int64_t most = SCRATCH / view->element_size, offset;

    if (xm_view_contiguous(view, first, count, &offset)) {
        (void)XXH3_64bits_update(checksum->state, buffer + offset,
                                 (size_t)(count * view->element_size));
        return;
    }
    while (count > 0) {
        int64_t part = min_of(count, most);

        xm_view_pack(view, buffer, first, part, checksum->scratch);
        (void)XXH3_64bits_update(checksum->state, checksum->scratch,
                                 (size_t)(part * view->element_size));
        first += part;
        count -= part;
    }
}

/* Puts the hash of a source task into the messages of its receivers. Little-endian order
 * lets machines of different order compare. */
static void spread_hash(xm_checksum_t *checksum, int64_t task, uint64_t hash)
{
    int count;
    const int *receivers = receivers_of(checksum, task, &count);

    for (int r = 0; r < count; ++r) {
        int side = receivers[r] == checksum->rank ? 1 : 0;

        if (is_left(checksum, receivers[r])) {
            packet_t *packet = &checksum->packets[side][receivers[r]];

            checksum->hashes[side][packet->first + packet->next++] = htole64(hash);
        }
    }
}

/*
 * Hashes at most SLICE bytes of one side and then returns to the network. A task may be
 * left in the middle; the running hash keeps its state, which is why only one side is
 * hashed at a time.
 */
static void hash_some(xm_checksum_t *checksum, int side)
{
    todo_t *todo = &checksum->todo[side];
    int64_t budget = SLICE;

    while (budget > 0 && todo->next < todo->count) {
        int64_t task = todo->tasks[todo->next], elements = task_of(checksum, task).elements, count;
        const xm_layout_t *layout = side == 0 ? src_of(checksum, task) : dst_of(checksum, task);
        const tensor_t *tensor = &checksum->executor->tensors[task_of(checksum, task).tensor];
        xm_box_t tile, box;
        xm_view_t view;

        if (todo->element == 0) {
            (void)XXH3_64bits_reset(checksum->state);
        }
        xm_layout_tile_box(
            layout, side == 0 ? task_of(checksum, task).src_tile : task_of(checksum, task).dst_tile,
            &tile);
        xm_plan_task_box(checksum->executor->plan, task, &box);
        xm_view_init(&view, &tile, &box, tensor->element_size);
        count = min_of(elements - todo->element,
                       (budget + tensor->element_size - 1) / tensor->element_size);
        if (side == 0 ? tensor->src_on_device : tensor->dst_on_device) {
            hash_device_range(checksum, &view, side == 0 ? tensor->src : tensor->dst, todo->element,
                              count);
        } else {
            hash_range(checksum, &view, side == 0 ? tensor->src : tensor->dst, todo->element,
                       count);
        }
        todo->element += count;
        budget -= count * tensor->element_size;
        if (todo->element == elements) {
            uint64_t hash = XXH3_64bits_digest(checksum->state);

            if (side == 0) {
                spread_hash(checksum, task, hash);
            } else {
                checksum->found[todo->next] = hash;
            }
            ++todo->next;
            todo->element = 0;
        }
    }
}

static xm_status_t name_box(const xm_checksum_t *checksum, int64_t task, int holder,
                            uint64_t expected, uint64_t found)
{
    char text[512];
    xm_box_t box;

    xm_plan_task_box(checksum->executor->plan, task, &box);
    return xm_error_set(
        XM_ERR_CORRUPT,
        "tensor %.200s, box %s: rank %d holds data with hash %016" PRIx64
        " and rank %d received data with hash %016" PRIx64,
        xm_plan_tensor_name(checksum->executor->plan, task_of(checksum, task).tensor),
        xm_box_format(&box, text, sizeof(text)), holder, expected, checksum->rank, found);
}

/* Compares all hashes in plan order and names the first box that differs, so the sentence
 * is the same in every run. */
static xm_status_t compare(xm_checksum_t *checksum)
{
    const todo_t *todo = &checksum->todo[1];

    for (int r = 0; r < checksum->ranks; ++r) {
        checksum->packets[1][r].next = 0;
    }
    for (int64_t i = 0; i < todo->count; ++i) {
        int holder = first_holder(checksum, todo->tasks[i]);
        packet_t *packet = &checksum->packets[1][holder];
        uint64_t expected = le64toh(checksum->hashes[1][packet->first + packet->next++]);

        if (expected != checksum->found[i]) {
            return name_box(checksum, todo->tasks[i], holder, expected, checksum->found[i]);
        }
    }
    return XM_OK;
}

/* Cancels what is in flight, each operation once. */
static void cancel_packets(xm_checksum_t *checksum)
{
    if (checksum->canceled) {
        return;
    }
    checksum->canceled = true;
    for (int side = 0; side < 2; ++side) {
        for (int r = 0; r < checksum->ranks; ++r) {
            if (checksum->packets[side][r].busy) {
                xm_transport_cancel(checksum->executor->transport, &checksum->packets[side][r].op);
            }
        }
    }
}

static bool has_to_hash(const xm_checksum_t *checksum)
{
    return checksum->todo[0].next < checksum->todo[0].count ||
           checksum->todo[1].next < checksum->todo[1].count;
}

/* One step. Receives are posted first, so that peers' hashes have a place when they come;
 * the source side is hashed before the destination side, because others wait for it. */
xm_status_t xm_checksum_advance(xm_checksum_t *checksum)
{
    if (checksum->ended) {
        return checksum->failure.status;
    }
    if (checksum->failure.status == XM_OK && !checksum->posted[1]) {
        post_side(checksum, 1);
    }
    if (checksum->failure.status == XM_OK) {
        hash_some(checksum, checksum->todo[0].next < checksum->todo[0].count ? 0 : 1);
    }
    if (checksum->failure.status == XM_OK && checksum->todo[0].next == checksum->todo[0].count &&
        !checksum->posted[0]) {
        post_side(checksum, 0);
    }
    if (checksum->failure.status < 0 && checksum->in_flight > 0) {
        cancel_packets(checksum);
    }
    /* A failed verification ends only when nothing is in flight, as the buffers are freed
     * afterwards. */
    if (checksum->in_flight > 0 || (checksum->failure.status == XM_OK && has_to_hash(checksum))) {
        return XM_IN_PROGRESS;
    }
    checksum->ended = true;
    if (checksum->failure.status == XM_OK) {
        xm_status_t status = compare(checksum);

        if (status < 0) {
            fail(checksum, status);
        }
    }
    return checksum->failure.status < 0 ? xm_error_restore(&checksum->failure) : XM_OK;
}

bool xm_checksum_may_sleep(const xm_checksum_t *checksum)
{
    return checksum->ended || checksum->failure.status < 0 || !has_to_hash(checksum);
}

/* Lets cancelled operations end. The time is limited, since a peer may never answer. */
static bool drain(xm_checksum_t *checksum)
{
    double until = xm_clock_seconds() + XM_DRAIN_SECONDS;

    while (checksum->in_flight > 0 && xm_clock_seconds() < until) {
        (void)xm_transport_progress(checksum->executor->transport);
    }
    return checksum->in_flight == 0;
}

/* Peers that do not let go are declared failed, which ends their operations without them. */
void xm_checksum_destroy(xm_checksum_t *checksum)
{
    if (checksum == NULL) {
        return;
    }
    cancel_packets(checksum);
    if (!drain(checksum)) {
        checksum->gave_up = true;
        for (int side = 0; side < 2; ++side) {
            for (int r = 0; r < checksum->ranks; ++r) {
                if (checksum->packets[side][r].busy) {
                    xm_transport_peer_failed(checksum->executor->transport, r);
                }
            }
        }
        (void)drain(checksum);
    }
    free_checksum(checksum);
}

static const char *describe_wait(const xm_checksum_t *checksum, char *text, size_t size)
{
    (void)snprintf(text, size, "is still hashing its tiles");
    for (int side = 0; side < 2; ++side) {
        for (int r = 0; r < checksum->ranks; ++r) {
            if (checksum->packets[side][r].busy) {
                (void)snprintf(text, size, "waits for the hashes %s rank %d",
                               side == 0 ? "to" : "from", r);
            }
        }
    }
    return text;
}

xm_status_t xm_checksum_give_up(const xm_checksum_t *checksum, double seconds)
{
    char waits[128];

    if (checksum->failure.status < 0) {
        /* It failed before, and what was cancelled has not ended yet. */
        return xm_error_restore(&checksum->failure);
    }
    return xm_error_set(XM_ERR_TIMEOUT, "rank %d %s after %.1f s", checksum->rank,
                        describe_wait(checksum, waits, sizeof(waits)), seconds);
}
