/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which orders of hosts are worth planning. Stages take consecutive devices, so the order decides
 * which hosts can share a stage, but n! orders are out of reach; and most are equal, as only the
 * kind of host at each place matters. Orders are listed as permutations of a multiset, kept inside
 * racks, of which whole ones change places. Where even those are too many, the list is the orders
 * with each kind together, and the steps of a local search from the best of them.
 */

#include "planner/inter_op/host_order.h"

#include <stdlib.h>
#include <string.h>

/* All orders of up to so many kinds are tried as groups, which are 24; all orders of up to so many
 * hosts are counted one by one. */
enum { MOST_KINDS = 4, MOST_LISTED = 64 };

struct ap_host_orders {
    int hosts, kinds;
    int per_rack; /* hosts of a rack, the last one may have fewer; without racks all */
    int *kind;    /* per host, numbered by first appearance */
};

/* Hosts are of one kind if no price can tell them apart: devices, and NICs. With a memory limit of
 * the user's, their memory does not matter. */
static bool like(const xm_cluster_profile_t *profile, double memory_limit, int a, int b)
{
    xm_cluster_device_t x = xm_cluster_profile_host_device(profile, a);
    xm_cluster_device_t y = xm_cluster_profile_host_device(profile, b);

    return x.flops == y.flops && x.memory_bandwidth == y.memory_bandwidth &&
           (memory_limit > 0.0 || x.memory_bytes == y.memory_bytes) &&
           xm_cluster_profile_host_nic_bandwidth(profile, a) ==
               xm_cluster_profile_host_nic_bandwidth(profile, b);
}

/* Kinds are numbered by first appearance, so they depend on the profile alone. */
xm_status_t ap_host_orders_create(const xm_cluster_profile_t *profile, double memory_limit,
                                  ap_host_orders_t **result)
{
    int hosts = xm_cluster_profile_hosts(profile);
    int per_rack = xm_cluster_profile_hosts_per_rack(profile);
    ap_host_orders_t *orders = calloc(1, sizeof(*orders));
    int *example = malloc((size_t)hosts * sizeof(*example)); /* per kind */

    if (orders != NULL) {
        orders->kind = malloc((size_t)hosts * sizeof(*orders->kind));
    }
    if (orders == NULL || orders->kind == NULL || example == NULL) {
        free(example);
        ap_host_orders_destroy(orders);
        return XM_NO_MEMORY("%d hosts", hosts);
    }
    orders->hosts = hosts;
    /* Without racks, or with one, the whole cluster is one rack. */
    orders->per_rack = per_rack > 0 && per_rack < hosts ? per_rack : hosts;
    for (int host = 0; host < hosts; ++host) {
        int kind = 0;

        while (kind < orders->kinds && !like(profile, memory_limit, host, example[kind])) {
            ++kind;
        }
        if (kind == orders->kinds) {
            example[orders->kinds++] = host;
        }
        orders->kind[host] = kind;
    }
    free(example);
    *result = orders;
    return XM_OK;
}

int ap_host_orders_kinds(const ap_host_orders_t *orders)
{
    return orders->kinds;
}

bool ap_host_orders_same(const ap_host_orders_t *orders, const int *a, const int *b)
{
    for (int i = 0; i < orders->hosts; ++i) {
        if (orders->kind[a[i]] != orders->kind[b[i]]) {
            return false;
        }
    }
    return true;
}

/* Where the rack ends that begins at a place; the last rack may have fewer hosts. */
static int rack_end(const ap_host_orders_t *orders, int first)
{
    int end = first + orders->per_rack;

    return end < orders->hosts ? end : orders->hosts;
}

/* A listing under way: places are filled from the first on. */
typedef struct listing {
    const ap_host_orders_t *orders;
    int capacity, count;
    int *list;
    int *order;        /* so far */
    bool *used;        /* per host */
    bool *rack_used;   /* per rack */
    int first_of_rack; /* the hosts that fill the rack of the next place */
} listing_t;

/* How many hosts of a kind are in a rack. */
static int count_kind(const ap_host_orders_t *orders, int first, int kind)
{
    int count = 0;

    for (int host = first; host < rack_end(orders, first); ++host) {
        count += orders->kind[host] == kind;
    }
    return count;
}

/* Racks are equal if they have as many hosts of each kind: what order they have inside is chosen
 * anyway. */
static bool racks_alike(const ap_host_orders_t *orders, int a, int b)
{
    bool alike = rack_end(orders, a) - a == rack_end(orders, b) - b;

    for (int kind = 0; alike && kind < orders->kinds; ++kind) {
        alike = count_kind(orders, a, kind) == count_kind(orders, b, kind);
    }
    return alike;
}

static void fill_place(listing_t *listing, int place);

/* Fills the places of a rack with the hosts of each rack that is left. Equal racks would give the
 * same orders again, so only the first of them has its turn. */
static void fill_rack(listing_t *listing, int place)
{
    const ap_host_orders_t *orders = listing->orders;
    int size = rack_end(orders, place) - place;

    for (int first = 0; first < orders->hosts; first += orders->per_rack) {
        int before = 0;

        if (listing->rack_used[first / orders->per_rack] ||
            rack_end(orders, first) - first != size) {
            continue;
        }
        while (before < first && (listing->rack_used[before / orders->per_rack] ||
                                  !racks_alike(orders, before, first))) {
            before += orders->per_rack;
        }
        if (before < first) { /* an equal one had its turn */
            continue;
        }
        listing->rack_used[first / orders->per_rack] = true;
        listing->first_of_rack = first;
        fill_place(listing, place);
        listing->rack_used[first / orders->per_rack] = false;
    }
}

/* Takes in a complete order; beyond the capacity it is only counted. */
static void finish(listing_t *listing)
{
    const ap_host_orders_t *orders = listing->orders;
    size_t hosts = (size_t)orders->hosts;

    if (listing->count > 0 && ap_host_orders_same(orders, listing->order, listing->list)) {
        return; /* it equals the profile's, which is in the list */
    }
    if (listing->count < listing->capacity) {
        memcpy(listing->list + (size_t)listing->count * hosts, listing->order,
               hosts * sizeof(*listing->order));
    }
    ++listing->count;
}

/* Puts the first unused host of each kind into a place, and goes on with the next place. Hosts of
 * one kind in a rack so keep the order of the profile, which makes every multiset permutation
 * appear once. The listing ends as soon as there are more than the caller has room for. */
static void fill_place(listing_t *listing, int place)
{
    const ap_host_orders_t *orders = listing->orders;
    int first = listing->first_of_rack;

    for (int kind = 0; kind < orders->kinds && listing->count <= listing->capacity; ++kind) {
        int host = first, end = rack_end(orders, first);

        while (host < end && (listing->used[host] || orders->kind[host] != kind)) {
            ++host;
        }
        if (host == end) {
            continue;
        }
        listing->used[host] = true;
        listing->order[place] = host;
        if (place + 1 == orders->hosts) {
            finish(listing);
        } else if ((place + 1) % orders->per_rack == 0) {
            fill_rack(listing, place + 1);
        } else {
            fill_place(listing, place + 1);
        }
        /* Deeper levels have left it at another rack. */
        listing->first_of_rack = first;
        listing->used[host] = false;
    }
}

/* The profile's order is the first of any list, so that a tie goes to it. */
static int begin_list(const ap_host_orders_t *orders, int capacity, int *list)
{
    for (int host = 0; capacity > 0 && host < orders->hosts; ++host) {
        list[host] = host;
    }
    return capacity > 0;
}

/* Counting stops at capacity + 1: the caller wants to know whether it has all. */
int ap_host_orders_list(const ap_host_orders_t *orders, int capacity, int *list)
{
    size_t hosts = (size_t)orders->hosts;
    xm_arena_t arena = {0};
    listing_t listing = {.orders = orders,
                         .capacity = capacity,
                         .list = list,
                         .order = xm_arena_get(&arena, hosts, sizeof(int)),
                         .used = xm_arena_get(&arena, hosts, sizeof(bool)),
                         .rack_used = xm_arena_get(&arena, hosts, sizeof(bool))};

    listing.count = begin_list(orders, capacity, list);
    if (arena.failed || (orders->kinds > 1 && orders->hosts > MOST_LISTED)) {
        listing.count = capacity + 1; /* too many; without memory the answer is the same */
    } else if (orders->kinds > 1) {
        fill_rack(&listing, 0);
    }
    xm_arena_clear(&arena);
    return listing.count <= capacity ? listing.count : capacity + 1;
}

/* Keeps the order that was written behind a list, unless an equal one is in the list already. */
static int keep_new(const ap_host_orders_t *orders, const int *list, int count, const int *but)
{
    const int *added = list + (size_t)count * (size_t)orders->hosts;

    if (but != NULL && ap_host_orders_same(orders, added, but)) {
        return count;
    }
    for (int i = 0; i < count; ++i) {
        if (ap_host_orders_same(orders, added, list + (size_t)i * (size_t)orders->hosts)) {
            return count;
        }
    }
    return count + 1;
}

/* Writes the hosts of a rack by the rank of their kind, hosts of one kind in the profile's
 * order. */
static void sort_rack(const ap_host_orders_t *orders, const int *rank, int first, int *hosts)
{
    int count = 0;

    for (int wanted = 0; wanted < orders->kinds; ++wanted) {
        for (int host = first; host < rack_end(orders, first); ++host) {
            if (rank[orders->kind[host]] == wanted) {
                hosts[count++] = host;
            }
        }
    }
}

/* Whether the first rack, sorted, comes before the second one: by its first kind, then by its
 * next. */
static bool rack_before(const ap_host_orders_t *orders, const int *rank, const int *a, const int *b)
{
    for (int i = 0; i < orders->per_rack; ++i) {
        int x = rank[orders->kind[a[i]]], y = rank[orders->kind[b[i]]];

        if (x != y) {
            return x < y;
        }
    }
    return false;
}

static void exchange(int *a, int *b)
{
    int value = *a;

    *a = *b;
    *b = value;
}

static void exchange_racks(const ap_host_orders_t *orders, int *a, int *b)
{
    for (int i = 0; i < orders->per_rack; ++i) {
        exchange(&a[i], &b[i]);
    }
}

/* Sorts the hosts by the rank of their kind, first inside racks, then the racks among each other; a
 * last rack of fewer hosts stays the last. Racks move as a whole, so a kind may be together only as
 * far as racks allow. */
static void sort_hosts(const ap_host_orders_t *orders, const int *rank, int *order)
{
    int size = orders->per_rack, whole = orders->hosts / size * size;

    for (int first = 0; first < orders->hosts; first += size) {
        sort_rack(orders, rank, first, order + first);
    }
    for (int i = size; i < whole; i += size) {
        for (int at = i; at > 0 && rack_before(orders, rank, order + at, order + at - size);
             at -= size) {
            exchange_racks(orders, order + at, order + at - size);
        }
    }
}

/* The next permutation in lexicographic order; false after the last. */
static bool next_permutation(int *values, int count)
{
    int at = count - 2, with = count - 1;

    while (at >= 0 && values[at] > values[at + 1]) {
        --at;
    }
    /* The values fall from the first on: this was the last permutation. */
    if (at < 0) {
        return false;
    }
    /* The last value above the one that grows takes its place; what follows is then turned
     * round. */
    while (values[with] < values[at]) {
        --with;
    }
    exchange(&values[at], &values[with]);
    for (int low = at + 1, high = count - 1; low < high; ++low, --high) {
        exchange(&values[low], &values[high]);
    }
    return true;
}

/* All orders of the kinds where those are few; otherwise the kinds in order of appearance, and
 * reversed. */
int ap_host_orders_grouped(const ap_host_orders_t *orders, int capacity, int *list)
{
    int count = begin_list(orders, capacity, list), kinds = orders->kinds;
    int *rank = malloc((size_t)kinds * sizeof(*rank));
    bool more = rank != NULL;

    for (int kind = 0; more && kind < kinds; ++kind) {
        rank[kind] = kind;
    }
    while (more && count < capacity) {
        /* The order is written behind the list and kept if it is new. */
        sort_hosts(orders, rank, list + (size_t)count * (size_t)orders->hosts);
        count = keep_new(orders, list, count, NULL);
        if (kinds <= MOST_KINDS) {
            more = next_permutation(rank, kinds);
        } else {
            /* The first round has the kinds in order; after the reversed one there is none. */
            more = rank[0] == 0;
            for (int kind = 0; kind < kinds; ++kind) {
                rank[kind] = kinds - 1 - kind;
            }
        }
    }
    free(rank);
    return count;
}

/* A list of neighbours that grows, without repetition. */
typedef struct steps {
    const ap_host_orders_t *orders;
    const int *order; /* whose neighbours they are */
    int capacity, count;
    int *list;
} steps_t;

/* Where the next neighbour is made, as a copy of the order; NULL: there is no room. */
static int *next_step(const steps_t *steps)
{
    size_t hosts = (size_t)steps->orders->hosts;
    int *made = steps->list + (size_t)steps->count * hosts;

    if (steps->count == steps->capacity) {
        return NULL;
    }
    memcpy(made, steps->order, hosts * sizeof(*made));
    return made;
}

/* Puts hosts of one kind in a rack into the profile's order again: of all orders with the same
 * kinds in the same places there is one representative. */
static void settle_rack(const ap_host_orders_t *orders, int *hosts, int count)
{
    for (int i = 0; i < count; ++i) {
        for (int k = i + 1; k < count; ++k) {
            if (orders->kind[hosts[k]] == orders->kind[hosts[i]] && hosts[k] < hosts[i]) {
                exchange(&hosts[i], &hosts[k]);
            }
        }
    }
}

/* Takes in the neighbour that next_step() began, whose rack at @p first was changed. */
static void add_step(steps_t *steps, int *made, int first)
{
    settle_rack(steps->orders, made + first, rack_end(steps->orders, first) - first);
    steps->count = keep_new(steps->orders, steps->list, steps->count, steps->order);
}

/* Where a run of hosts of one kind ends. */
static int run_end(const ap_host_orders_t *orders, const int *order, int begin, int end)
{
    int kind = orders->kind[order[begin]];

    while (begin < end && orders->kind[order[begin]] == kind) {
        ++begin;
    }
    return begin;
}

/* Moves the places begin … end - 1 to stand before place @p to. `made` begins as a copy of the
 * order, so only the places in between are written. */
static void move_places(const int *order, int begin, int end, int to, int *made)
{
    size_t count = (size_t)(end - begin);

    if (to < begin) {
        memcpy(made + to, order + begin, count * sizeof(*made));
        memcpy(made + to + count, order + to, (size_t)(begin - to) * sizeof(*made));
    } else {
        memcpy(made + begin, order + end, (size_t)(to - end) * sizeof(*made));
        memcpy(made + to - count, order + begin, count * sizeof(*made));
    }
}

/* Exchanges the places a … b - 1 and c … d - 1, which come later. The runs may differ in length, so
 * what is in between moves as well. */
static void exchange_places(const int *order, int a, int b, int c, int d, int *made)
{
    int *to = made + a;

    memcpy(to, order + c, (size_t)(d - c) * sizeof(*to));
    to += d - c;
    memcpy(to, order + b, (size_t)(c - b) * sizeof(*to));
    to += c - b;
    memcpy(to, order + a, (size_t)(b - a) * sizeof(*to));
}

/* Moves one host of a run, and the whole run, before each other run of its rack and behind the last
 * one. Moves to inside a run would give what a move to its end gives. */
static void move_run(steps_t *steps, int first, int begin, int end)
{
    const ap_host_orders_t *orders = steps->orders;
    int last = rack_end(orders, first);

    for (int to = first; to <= last;
         to = to < last ? run_end(orders, steps->order, to, last) : last + 1) {
        /* A count of 1, then the whole run. */
        for (int count = 1; count <= end - begin; count += end - begin > 1 ? end - begin - 1 : 1) {
            int *made = to < begin || to > end ? next_step(steps) : NULL;

            if (made != NULL) {
                move_places(steps->order, end - count, end, to, made);
                add_step(steps, made, first);
            }
        }
    }
}

/* Exchanges a run with each later one of its rack. */
static void exchange_run(steps_t *steps, int first, int begin, int end)
{
    const ap_host_orders_t *orders = steps->orders;
    int last = rack_end(orders, first), other_end;

    for (int other = end; other < last; other = other_end) {
        int *made = next_step(steps);

        other_end = run_end(orders, steps->order, other, last);
        if (made != NULL) {
            exchange_places(steps->order, begin, end, other, other_end, made);
            add_step(steps, made, first);
        }
    }
}

/* The neighbourhood of the local search: about as many orders as the square of the runs. It does
 * not mix racks, and the last rack, if it is smaller, keeps its place. */
int ap_host_orders_near(const ap_host_orders_t *orders, const int *order, int capacity, int *list)
{
    steps_t steps = {.orders = orders, .order = order, .capacity = capacity, .list = list};
    int size = orders->per_rack, whole = orders->hosts / size * size;

    for (int first = 0; first < orders->hosts; first += size) {
        int last = rack_end(orders, first), end;

        for (int begin = first; begin < last; begin = end) {
            /* Each run is exchanged with later ones and moved; earlier ones have been exchanged
             * with it. */
            end = run_end(orders, order, begin, last);
            exchange_run(&steps, first, begin, end);
            move_run(&steps, first, begin, end);
        }
        /* Whole racks change places only with whole racks. */
        for (int other = first + size; other < whole; other += size) {
            int *made = next_step(&steps);

            if (made != NULL) {
                exchange_racks(orders, made + first, made + other);
                add_step(&steps, made, first);
            }
        }
    }
    return steps.count;
}

void ap_host_orders_destroy(ap_host_orders_t *orders)
{
    if (orders != NULL) {
        free(orders->kind);
        free(orders);
    }
}
