/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Prices of the tensors between pipeline stages, kept: a plan (planned.c) costs milliseconds and
 * the search asks thousands of times, so answers lie under a canonical key: where all hosts are
 * alike, only whether the two stages share a host matters, not where they stand.
 *
 * Several threads work at once. The lock is held to look up and to store, never while planning; two
 * threads may thus plan the same resharding, and the first to finish keeps it.
 */

#include "planner/boundary.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "planner/boundary/cross_mesh_bound.h"
#include "planner/boundary/planned.h"

/* All that a cost depends on. There is no padding, so keys compare as memory. */
typedef struct cost_key {
    XXH128_hash_t tensors; /* shapes, element sizes and specs: a list too long for a key */
    int count;             /* tensors */
    int src_shape[2], dst_shape[2];
    int src_first, dst_first; /* of the same hosts from the first on, where all are alike */
    int one_way;
} cost_key_t;

typedef struct cost_entry {
    cost_key_t key;
    ap_cross_mesh_cost_t cost;
    ap_link_load_t *links; /* in the hosts of the key */
    int link_count;
} cost_entry_t;

struct ap_cross_mesh {
    const xm_cluster_profile_t *profile;
    bool alike; /* all hosts have the same NICs, and none shares an uplink */
    pthread_mutex_t mutex;
    cost_entry_t *entries;
    size_t used, room;
    xm_index_t index; /* of entries, by their keys */
};

xm_status_t ap_cross_mesh_create(const xm_cluster_profile_t *profile, ap_cross_mesh_t **result)
{
    ap_cross_mesh_t *cross_mesh = calloc(1, sizeof(*cross_mesh));

    XM_NEED_MEMORY(cross_mesh, "boundary costs");
    if (pthread_mutex_init(&cross_mesh->mutex, NULL) != 0) {
        free(cross_mesh);
        return XM_NO_MEMORY("boundary costs");
    }
    cross_mesh->profile = profile;
    cross_mesh->alike = !xm_cluster_profile_hosts_differ(profile) &&
                        xm_cluster_profile_hosts_per_rack(profile) == 0;
    *result = cross_mesh;
    return XM_OK;
}

/* The entry of a key, or NULL. */
static const cost_entry_t *find_entry(const ap_cross_mesh_t *cross_mesh, const cost_key_t *key)
{
    uint64_t hash = XXH3_64bits(key, sizeof(*key));
    int64_t i;

    for (size_t step = 0; (i = xm_index_next(&cross_mesh->index, hash, &step)) >= 0;) {
        if (memcmp(&cross_mesh->entries[i].key, key, sizeof(*key)) == 0) {
            return &cross_mesh->entries[i];
        }
    }
    return NULL;
}

/* How hosts of a transfer were renumbered for its key. */
typedef struct moved_hosts {
    int src_host, dst_host; /* first true hosts */
    int src_hosts;          /* hosts of the source side, which come first; 0: the sides share hosts
                               and were moved together, to begin with the lower of both */
} moved_hosts_t;

/* Moves both sides to the front of the cluster: only what they share, and where they begin on their
 * hosts, matters where all hosts are alike. */
static moved_hosts_t move_sides(int per_host, const ap_cross_mesh_transfer_t *transfer,
                                cost_key_t *key)
{
    int src_size = transfer->src.shape[0] * transfer->src.shape[1];
    int dst_size = transfer->dst.shape[0] * transfer->dst.shape[1];
    int src = transfer->src.first_device, dst = transfer->dst.first_device;
    int src_last = (src + src_size - 1) / per_host, dst_last = (dst + dst_size - 1) / per_host;
    moved_hosts_t moved = {src / per_host, dst / per_host, 0};
    int lower = moved.src_host < moved.dst_host ? moved.src_host : moved.dst_host;

    if (src_last == dst_last && moved.src_host == src_last && moved.dst_host == dst_last) {
        key->src_first = 0;
        key->dst_first = src_size;
    } else if (moved.src_host <= dst_last && moved.dst_host <= src_last) {
        key->src_first = src - lower * per_host;
        key->dst_first = dst - lower * per_host;
    } else {
        moved.src_hosts = src_last - moved.src_host + 1;
        key->src_first = moved.src_hosts == 1 ? 0 : src % per_host;
        key->dst_first =
            moved.src_hosts * per_host + (dst_last == moved.dst_host ? 0 : dst % per_host);
        return moved;
    }
    moved.src_host = lower;
    return moved;
}

/* Translates a host of a key back to the true one. */
static int true_host(const moved_hosts_t *moved, int host)
{
    return moved->src_hosts == 0 || host < moved->src_hosts
               ? host + moved->src_host
               : host - moved->src_hosts + moved->dst_host;
}

int ap_cross_mesh_place(const ap_cross_mesh_t *cross_mesh, int first_device)
{
    int per_host = xm_cluster_profile_devices_per_host(cross_mesh->profile);

    if (!cross_mesh->alike) {
        return first_device;
    }
    return first_device % per_host != 0 ? 1 : 0; /* with or without the stage before on the host */
}

/* A hash of the list of tensors, each with what it needs of its fixed arrays. */
static XXH128_hash_t hash_tensors(const ap_cross_mesh_transfer_t *transfer)
{
    XXH128_hash_t hash = {0, 0};

    for (int i = 0; i < transfer->count; ++i) {
        const ap_cross_mesh_tensor_t *tensor = &transfer->tensors[i];
        struct {
            XXH128_hash_t before;
            int64_t dims[AP_MAX_RANK];
            ap_spec_t src, dst;
            int rank, element_size;
        } item;

        memset(&item, 0, sizeof(item));
        item.before = hash;
        memcpy(item.dims, tensor->shape.dims, (size_t)tensor->shape.rank * sizeof(item.dims[0]));
        item.src = tensor->src;
        item.dst = tensor->dst;
        item.rank = tensor->shape.rank;
        item.element_size = tensor->element_size;
        hash = XXH3_128bits(&item, sizeof(item));
    }
    return hash;
}

static xm_status_t make_key(const ap_cross_mesh_t *cross_mesh,
                            const ap_cross_mesh_transfer_t *transfer, cost_key_t *key,
                            moved_hosts_t *moved)
{
    const ap_cross_mesh_side_t *src = &transfer->src, *dst = &transfer->dst;
    int src_size = src->shape[0] * src->shape[1], dst_size = dst->shape[0] * dst->shape[1];

    if (src->first_device < dst->first_device + dst_size &&
        dst->first_device < src->first_device + src_size) {
        return XM_INVALID("devices %d to %d and %d to %d of two stages overlap", src->first_device,
                          src->first_device + src_size - 1, dst->first_device,
                          dst->first_device + dst_size - 1);
    }
    memset(key, 0, sizeof(*key));
    key->tensors = hash_tensors(transfer);
    key->count = transfer->count;
    key->one_way = transfer->one_way;
    memcpy(key->src_shape, src->shape, sizeof(key->src_shape));
    memcpy(key->dst_shape, dst->shape, sizeof(key->dst_shape));
    key->src_first = src->first_device;
    key->dst_first = dst->first_device;
    *moved = (moved_hosts_t){0, 0, 0};
    if (cross_mesh->alike) {
        *moved =
            move_sides(xm_cluster_profile_devices_per_host(cross_mesh->profile), transfer, key);
    }
    return XM_OK;
}

/* The cost behind a key, if it is known. */
static bool recall(ap_cross_mesh_t *cross_mesh, const cost_key_t *key, ap_cross_mesh_cost_t *cost)
{
    const cost_entry_t *entry;

    (void)pthread_mutex_lock(&cross_mesh->mutex);
    entry = find_entry(cross_mesh, key);
    if (entry != NULL) {
        *cost = entry->cost;
    }
    (void)pthread_mutex_unlock(&cross_mesh->mutex);
    return entry != NULL;
}

/* Keeps an entry, unless another thread has done so meanwhile. The entry's links are taken over, or
 * freed. */
static xm_status_t keep(ap_cross_mesh_t *cross_mesh, const cost_entry_t *entry)
{
    bool taken;
    xm_status_t status = XM_OK;

    (void)pthread_mutex_lock(&cross_mesh->mutex);
    taken = find_entry(cross_mesh, &entry->key) == NULL;
    if (taken && (!XM_ARRAY_ROOM(cross_mesh->entries, cross_mesh->room, cross_mesh->used) ||
                  !xm_index_enter(&cross_mesh->index, XXH3_64bits(&entry->key, sizeof(entry->key)),
                                  (int64_t)cross_mesh->used))) {
        status = XM_NO_MEMORY("%zu boundary costs", cross_mesh->used + 1);
        taken = false;
    }
    if (taken) {
        cross_mesh->entries[cross_mesh->used++] = *entry;
    }
    (void)pthread_mutex_unlock(&cross_mesh->mutex);
    if (!taken) {
        free(entry->links);
    }
    return status;
}

/* What is behind a key, from the cache or made now, which others need not wait for. */
static xm_status_t look_up(ap_cross_mesh_t *cross_mesh, const ap_cross_mesh_transfer_t *transfer,
                           const cost_key_t *key, ap_cross_mesh_cost_t *cost)
{
    ap_cross_mesh_transfer_t moved = *transfer;
    cost_entry_t entry = {.key = *key};

    if (recall(cross_mesh, key, cost)) {
        return XM_OK;
    }
    moved.src.first_device = key->src_first;
    moved.dst.first_device = key->dst_first;
    XM_TRY(ap_cross_mesh_plan(cross_mesh->profile, &moved, &entry.cost, &entry.links,
                              &entry.link_count));
    *cost = entry.cost;
    return keep(cross_mesh, &entry);
}

/* Nothing takes no time. */
xm_status_t ap_cross_mesh_cost(ap_cross_mesh_t *cross_mesh,
                               const ap_cross_mesh_transfer_t *transfer, ap_cross_mesh_cost_t *cost)
{
    moved_hosts_t moved;
    cost_key_t key;
    XM_TRY(make_key(cross_mesh, transfer, &key, &moved));

    if (transfer->count == 0) {
        *cost = (ap_cross_mesh_cost_t){0};
        return XM_OK;
    }
    return look_up(cross_mesh, transfer, &key, cost);
}

/* A cost that is known is the best bound of itself. Of several tensors, the slowest alone is a
 * bound. */
xm_status_t ap_cross_mesh_lower_bound(ap_cross_mesh_t *cross_mesh,
                                      const ap_cross_mesh_transfer_t *transfer, double *seconds)
{
    ap_cross_mesh_cost_t cost;
    moved_hosts_t moved;
    cost_key_t key;

    XM_TRY(make_key(cross_mesh, transfer, &key, &moved));
    if (recall(cross_mesh, &key, &cost)) {
        *seconds = cost.forward + cost.backward;
        return XM_OK;
    }
    *seconds = 0.0;
    for (int i = 0; i < transfer->count; ++i) {
        double bound =
            ap_cross_mesh_bound(cross_mesh->profile, transfer, i, false) +
            (transfer->one_way ? 0.0 : ap_cross_mesh_bound(cross_mesh->profile, transfer, i, true));

        *seconds = bound > *seconds ? bound : *seconds;
    }
    return XM_OK;
}

xm_status_t ap_cross_mesh_loads(ap_cross_mesh_t *cross_mesh,
                                const ap_cross_mesh_transfer_t *transfer, xm_arena_t *arena,
                                const ap_link_load_t **loads, int *count)
{
    ap_link_load_t *copy = NULL;
    const cost_entry_t *entry;
    ap_cross_mesh_cost_t cost;
    moved_hosts_t moved;
    cost_key_t key;
    xm_status_t status = make_key(cross_mesh, transfer, &key, &moved);

    *count = 0;
    *loads = NULL;
    if (status != XM_OK || transfer->count == 0) {
        return status;
    }
    status = look_up(cross_mesh, transfer, &key, &cost);
    XM_TRY(status);
    (void)pthread_mutex_lock(&cross_mesh->mutex); /* the table may move */
    entry = find_entry(cross_mesh, &key);
    copy = xm_arena_take(arena, (size_t)entry->link_count * sizeof(*copy));
    if (copy == NULL) {
        status = XM_NO_MEMORY("%d NICs", entry->link_count);
    }
    for (int i = 0; status == XM_OK && i < entry->link_count; ++i) {
        copy[i] = entry->links[i];
        copy[i].index = true_host(&moved, copy[i].index);
        *count = i + 1;
    }
    (void)pthread_mutex_unlock(&cross_mesh->mutex);
    *loads = copy;
    return status;
}

size_t ap_cross_mesh_simulated(ap_cross_mesh_t *cross_mesh)
{
    size_t used;

    (void)pthread_mutex_lock(&cross_mesh->mutex);
    used = cross_mesh->used;
    (void)pthread_mutex_unlock(&cross_mesh->mutex);
    return used;
}

const xm_runtime_t *ap_cross_mesh_runtime(const ap_cross_mesh_t *cross_mesh)
{
    return xm_cluster_profile_runtime(cross_mesh->profile);
}

void ap_cross_mesh_destroy(ap_cross_mesh_t *cross_mesh)
{
    if (cross_mesh != NULL) {
        (void)pthread_mutex_destroy(&cross_mesh->mutex);
        for (size_t i = 0; i < cross_mesh->used; ++i) {
            free(cross_mesh->entries[i].links);
        }
        free(cross_mesh->entries);
        xm_index_clear(&cross_mesh->index);
        free(cross_mesh);
    }
}
