/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sorts unit tasks into classes: those with the same holders and the same receivers,
 * which are one thing to a scheduler. A batch of hundreds of tensors has thousands of
 * tasks but few classes, and bounds and openshop work on these. Sets of ranks are
 * interned, so two tasks compare by a pair of numbers; the order of classes is that of
 * their first tasks, which keeps plans deterministic.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "comm/base.h"
#include "resharding/plan/plan_private.h"

/* A list of ranks that several tiles share. */
typedef struct {
    const int *ranks; /* of one of the layouts that have it */
    int count;
    const int *by_host; /* the same ranks sorted by host; NULL: nobody asked */
} rank_set_t;

typedef struct {
    const xm_plan_t *plan;
    const xm_network_t *network;
    xm_classes_t *out;
    rank_set_t *sets;
    int set_count;
    size_t set_room;
    xm_index_t set_index, class_index; /* classes by source set and destination set */
    int **set_of;                      /* by layout, by tile */
    int (*class_key)[2];
    size_t class_room, key_room;
    int *mark; /* by rank: 1 + class whose holder it is; by host behind the ranks */
} classifier_t;

static xm_status_t no_memory(const classifier_t *c)
{
    return XM_NO_MEMORY("sorting %" PRId64 " unit tasks by who holds and who needs them",
                        c->plan->task_count);
}

/* Writes ranks sorted by host, keeping their order within one: the place as the lower
 * part of the key makes the sort stable. */
static bool sort_by_host(const classifier_t *c, const int *ranks, int count, int *sorted)
{
    int64_t *keys = malloc((size_t)count * sizeof(*keys));

    if (keys == NULL) {
        return false;
    }
    for (int i = 0; i < count; ++i) {
        keys[i] = (int64_t)xm_network_host_of(c->network, ranks[i]) * count + i;
    }
    qsort(keys, (size_t)count, sizeof(*keys), xm_order_int64s);
    for (int i = 0; i < count; ++i) {
        sorted[i] = ranks[keys[i] % count];
    }
    free(keys);
    return true;
}

/*
 * The ranks of a set sorted by host, one list for all classes that have the set; NULL
 * when there is no memory. Most meshes list ranks host by host, and those are only
 * copied.
 */
static const int *sorted_by_host(classifier_t *c, rank_set_t *set)
{
    int *sorted;
    bool in_order = true;

    if (set->by_host != NULL) {
        return set->by_host;
    }
    sorted = xm_ints_take(&c->out->arena, (size_t)set->count);
    if (sorted == NULL) {
        return NULL;
    }
    for (int i = 0; i < set->count; ++i) {
        sorted[i] = set->ranks[i];
        in_order = in_order && (i == 0 || xm_network_host_of(c->network, sorted[i - 1]) <=
                                              xm_network_host_of(c->network, sorted[i]));
    }
    if (!in_order && !sort_by_host(c, set->ranks, set->count, sorted)) {
        return NULL;
    }
    set->by_host = sorted;
    return sorted;
}

/*
 * The number of a list of ranks, which is given anew when the list has not been seen. The
 * list itself is not copied: it belongs to a layout of the plan, which outlives the
 * classes' making.
 */
static xm_status_t intern_set(classifier_t *c, const int *ranks, int count, int *set)
{
    uint64_t hash = xm_hash_list(0, ranks, count);
    int64_t at;

    for (size_t step = 0; (at = xm_index_next(&c->set_index, hash, &step)) >= 0;) {
        if (c->sets[at].count == count &&
            memcmp(c->sets[at].ranks, ranks, (size_t)count * sizeof(int)) == 0) {
            *set = (int)at;
            return XM_OK;
        }
    }
    if (!XM_ARRAY_ROOM(c->sets, c->set_room, c->set_count) ||
        !xm_index_enter(&c->set_index, hash, c->set_count)) {
        return no_memory(c);
    }
    *set = c->set_count++;
    c->sets[*set] = (rank_set_t){ranks, count, NULL};
    return XM_OK;
}

/* Replicas of a tile are a set of ranks; the layouts of one mesh and spec give the same
 * sets again. */
static xm_status_t intern_tiles(classifier_t *c, const xm_layout_t *layout, int **sets)
{
    int tiles = xm_layout_tiles(layout);
    xm_status_t status = XM_OK;

    if (*sets != NULL) {
        return XM_OK; /* of another tensor with the same layout */
    }
    *sets = malloc((size_t)tiles * sizeof(**sets));
    if (*sets == NULL) {
        return no_memory(c);
    }
    for (int t = 0; status == XM_OK && t < tiles; ++t) {
        int count;
        const int *ranks = xm_layout_replicas(layout, t, &count);

        status = intern_set(c, ranks, count, &(*sets)[t]);
    }
    return status;
}

/* Writes the hosts of ranks that are sorted by host, each once; `first`, which may be
 * NULL, gets where each host's ranks start. */
static int list_hosts(const classifier_t *c, const int *ranks, int count, int *hosts, int *first)
{
    int found = 0;

    for (int i = 0; i < count; ++i) {
        int host = xm_network_host_of(c->network, ranks[i]);

        if (found == 0 || hosts[found - 1] != host) {
            if (first != NULL) {
                first[found] = i;
            }
            hosts[found++] = host;
        }
    }
    if (first != NULL) {
        first[found] = count;
    }
    return found;
}

/*
 * Sorts the receivers of a new class by what they need: a copy inside the rank, a
 * neighbour on the host, or the network. Marks by rank and by host make this linear; the
 * stamp is the class's number, so marks need not be cleared.
 */
static xm_status_t fill_class(classifier_t *c, int64_t index, rank_set_t *src, rank_set_t *dst)
{
    xm_class_t *class = &c->out->classes[index];
    int *host_mark = c->mark + xm_network_ranks(c->network), stamp = (int)(index + 1);
    size_t room = (size_t)dst->count;
    int *copies = xm_ints_take(&c->out->arena, room),
        *near_ranks = xm_ints_take(&c->out->arena, room);
    int *remote = xm_ints_take(&c->out->arena, room),
        *hosts = xm_ints_take(&c->out->arena, (size_t)src->count);
    int *remote_hosts, *remote_first;
    const int *receivers = sorted_by_host(c, dst);

    *class = (xm_class_t){.holders = sorted_by_host(c, src), .holder_count = src->count};
    if (copies == NULL || near_ranks == NULL || remote == NULL || hosts == NULL ||
        receivers == NULL || class->holders == NULL) {
        return no_memory(c);
    }
    class->holder_host_count = list_hosts(c, class->holders, src->count, hosts, NULL);
    class->holder_hosts = hosts;
    for (int i = 0; i < src->count; ++i) {
        c->mark[src->ranks[i]] = stamp;
    }
    for (int i = 0; i < class->holder_host_count; ++i) {
        host_mark[hosts[i]] = stamp;
    }
    for (int i = 0; i < dst->count; ++i) {
        int rank = receivers[i];

        if (c->mark[rank] == stamp) {
            copies[class->copy_count++] = rank;
        } else if (host_mark[xm_network_host_of(c->network, rank)] == stamp) {
            near_ranks[class->near_count++] = rank;
        } else {
            remote[class->remote_count++] = rank;
        }
    }
    remote_hosts = xm_ints_take(&c->out->arena, (size_t) class->remote_count);
    remote_first = xm_ints_take(&c->out->arena, (size_t) class->remote_count + 1);
    if (remote_hosts == NULL || remote_first == NULL) {
        return no_memory(c);
    }
    class->remote_host_count =
        list_hosts(c, remote, class->remote_count, remote_hosts, remote_first);
    class->widest = 1;
    for (int h = 0; h < class->remote_host_count; ++h) {
        int devices = remote_first[h + 1] - remote_first[h];

        class->widest = devices > class->widest ? devices : class->widest;
    }
    class->copies = copies;
    class->near_ranks = near_ranks;
    class->remote = remote;
    class->remote_hosts = remote_hosts;
    class->remote_first = remote_first;
    return XM_OK;
}

/* The class of a pair of sets. It is entered only when it is filled, so a failure leaves
 * no half-made class behind. */
static xm_status_t find_class(classifier_t *c, int src, int dst, int64_t *index)
{
    uint64_t hash = xm_hash_pair(src, dst);

    for (size_t step = 0; (*index = xm_index_next(&c->class_index, hash, &step)) >= 0;) {
        if (c->class_key[*index][0] == src && c->class_key[*index][1] == dst) {
            return XM_OK;
        }
    }
    if (!XM_ARRAY_ROOM(c->out->classes, c->class_room, c->out->count) ||
        !XM_ARRAY_ROOM(c->class_key, c->key_room, c->out->count)) {
        return no_memory(c);
    }
    *index = c->out->count;
    c->class_key[*index][0] = src;
    c->class_key[*index][1] = dst;
    XM_TRY(fill_class(c, *index, &c->sets[src], &c->sets[dst]));
    return xm_index_enter(&c->class_index, hash, c->out->count++) ? XM_OK : no_memory(c);
}

/* Lists the tasks by class with a counting pass first, and adds up the classes' bytes. */
static xm_status_t list_tasks(classifier_t *c)
{
    xm_classes_t *out = c->out;
    int64_t next = 0;

    out->tasks = malloc(((size_t)c->plan->task_count + 1) * sizeof(*out->tasks));
    if (out->tasks == NULL) {
        return no_memory(c);
    }
    for (int64_t t = 0; t < c->plan->task_count; ++t) {
        ++out->classes[out->class_of[t]].task_count;
    }
    for (int64_t k = 0; k < out->count; ++k) {
        out->classes[k].first_task = next;
        next += out->classes[k].task_count;
        out->classes[k].task_count = 0;
    }
    for (int64_t t = 0; t < c->plan->task_count; ++t) {
        xm_class_t *class = &out->classes[out->class_of[t]];

        out->tasks[class->first_task + class->task_count++] = t;
        class->bytes += xm_task_bytes(c->plan, t);
    }
    return XM_OK;
}

/* Pieces of tasks have sets of their own (without.c). */
static xm_status_t find_sets(classifier_t *c, int64_t task, int *src, int *dst)
{
    const xm_unit_task_t *unit = &c->plan->tasks[task];
    const xm_sides_t *sides = c->plan->sides;

    if (sides == NULL) {
        *src = c->set_of[c->plan->tensors[unit->tensor].src_index][unit->src_tile];
        *dst = c->set_of[c->plan->tensors[unit->tensor].dst_index][unit->dst_tile];
        return XM_OK;
    }
    XM_TRY(intern_set(c, sides[task].holders, sides[task].holder_count, src));
    return intern_set(c, sides[task].receivers, sides[task].receiver_count, dst);
}

/* On failure the classes are cleared. The interned sets are needed only here. */
xm_status_t xm_classes_create(const xm_plan_t *plan, const xm_network_t *network,
                              xm_classes_t *classes)
{
    classifier_t c = {.plan = plan, .network = network, .out = classes};
    xm_status_t status = XM_OK;

    memset(classes, 0, sizeof(*classes));
    classes->class_of = malloc(((size_t)plan->task_count + 1) * sizeof(*classes->class_of));
    c.set_of = calloc((size_t)plan->layout_count + 1, sizeof(*c.set_of));
    c.mark = calloc((size_t)xm_network_ranks(network) + (size_t)xm_network_hosts(network),
                    sizeof(*c.mark));
    if (classes->class_of == NULL || c.set_of == NULL || c.mark == NULL) {
        status = no_memory(&c);
    }
    for (int i = 0; status == XM_OK && plan->sides == NULL && i < plan->tensor_count; ++i) {
        status = intern_tiles(&c, plan->tensors[i].src, &c.set_of[plan->tensors[i].src_index]);
        XM_THEN(status,
                intern_tiles(&c, plan->tensors[i].dst, &c.set_of[plan->tensors[i].dst_index]));
    }
    for (int64_t t = 0; status == XM_OK && t < plan->task_count; ++t) {
        int src = 0, dst = 0;

        status = find_sets(&c, t, &src, &dst);
        XM_THEN(status, find_class(&c, src, dst, &classes->class_of[t]));
    }
    XM_THEN(status, list_tasks(&c));
    for (int l = 0; c.set_of != NULL && l < plan->layout_count; ++l) {
        free(c.set_of[l]);
    }
    free(c.mark);
    free(c.class_key);
    xm_index_clear(&c.class_index);
    free(c.set_of);
    xm_index_clear(&c.set_index);
    free(c.sets);
    if (status < 0) {
        xm_classes_clear(classes);
    }
    return status;
}

void xm_classes_clear(xm_classes_t *classes)
{
    xm_arena_clear(&classes->arena);
    free(classes->tasks);
    free(classes->class_of);
    free(classes->classes);
    memset(classes, 0, sizeof(*classes));
}
