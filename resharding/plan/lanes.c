/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Makes lanes. Classes that can come in by the same rails are laid end to end, every host
 * cuts their bytes among its rails as one, and a lane lies between two cuts of any host: so
 * few tasks are cut, and what one rail takes in comes from few holders.
 */
#include "resharding/plan/lanes.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "comm/base.h"
#include "resharding/flow.h"

enum {
    SHORTEST_LANE = 4096, /* bytes; longer than any element, so that no lane is empty */
    SEARCH_STEPS = 40
};
static const double WORTHWHILE = 0.997;

/* The rails that a class can come in by, in the order of hosts. */
typedef struct {
    int64_t class;
    uint64_t hash;
    const int *rails;
    int count;
} options_t;

/* Bytes of a group of classes up to `end`, from where the stretch before ended. */
typedef struct {
    int64_t end;
    const int *rails; /* as in xm_lane_t */
} stretch_t;

typedef struct {
    const xm_network_t *network;
    const xm_classes_t *classes;
    xm_lanes_t *lanes;
    options_t *options; /* by class, sorted */
    double single;
    bool near;
    double *load; /* by rail: bytes that it takes in so far */
    /* Of the group of classes at hand. */
    int64_t *cut; /* by option: where its share ends */
    int *choice;  /* by host: the option at hand */
    stretch_t *stretches;
} making_t;

static xm_status_t no_memory(const making_t *m)
{
    return XM_NO_MEMORY("the rails of %" PRId64 " classes of tasks", m->classes->count);
}

/* Those with fewer choices come first, so that the others can fill what they leave; classes
 * with the same choices stand together. */
static int compare_options(const void *a, const void *b)
{
    const options_t *x = a, *y = b;
    int order;

    XM_ORDER_BY(x->count, y->count);
    XM_ORDER_BY(x->hash, y->hash);
    order = memcmp(x->rails, y->rails, (size_t)x->count * sizeof(int));
    return order != 0 ? order : (x->class > y->class) - (x->class < y->class);
}

static bool same_options(const options_t *a, const options_t *b)
{
    return a->count == b->count && a->hash == b->hash &&
           memcmp(a->rails, b->rails, (size_t)a->count * sizeof(int)) == 0;
}

/* Takes the rails of ranks into the arena, host by host as the ranks stand, each once and ascending
 * within a host. */
static int *take_rails(making_t *m, const int *ranks, int count, int *rails)
{
    int *list = xm_ints_take(&m->lanes->arena, (size_t)count + 1), first = 0;

    *rails = 0;
    for (int i = 0; list != NULL && i < count; ++i) {
        if (xm_network_host_of(m->network, ranks[i]) !=
            xm_network_host_of(m->network, ranks[i > 0 ? i - 1 : 0])) {
            first = *rails;
        }
        *rails = first + xm_set_insert(list + first, *rails - first, m->lanes->rail_of[ranks[i]]);
    }
    return list;
}

/* Takes the rails of the ranks that hold a class, or can send it on; each once, ascending. */
static int *take_holders(making_t *m, const xm_class_t *class, int *rails)
{
    int near = m->near ? class->near_count : 0;
    int *list = xm_ints_take(&m->lanes->arena, (size_t) class->holder_count + (size_t)near + 1);

    *rails = 0;
    for (int i = 0; list != NULL && i < class->holder_count + near; ++i) {
        int rank = i < class->holder_count ? class->holders[i]
                                           : class->near_ranks[i - class->holder_count];

        *rails = xm_set_insert(list, *rails, m->lanes->rail_of[rank]);
    }
    return list;
}

/* Lists the rails that hold each class, and those by which it can come in. */
static xm_status_t list_rails(making_t *m)
{
    for (int64_t k = 0; k < m->classes->count; ++k) {
        const xm_class_t *class = &m->classes->classes[k];
        xm_rail_list_t *holders = &m->lanes->holders[k];
        options_t *options = &m->options[k];
        int *held = take_holders(m, class, &holders->count);

        options->class = k;
        options->rails = take_rails(m, class->remote, class->remote_count, &options->count);
        if (held == NULL || options->rails == NULL) {
            return no_memory(m);
        }
        holders->rails = held;
        options->hash = xm_hash_list(0, options->rails, options->count);
    }
    return XM_OK;
}

/*
 * Shares out bytes over rails of one host so that the one that takes longest takes as short as
 * can be, like water that fills vessels up to one level. cut[i] is where the share of rail i
 * ends.
 */
static void fill_rails(making_t *m, const int *rails, int count, int64_t bytes, int64_t *cut)
{
    double level = INFINITY, before, at = 0;

    /* Rails above the level take nothing; without them the level falls, until none is above it. */
    do {
        double rate = 0, amount = (double)bytes;

        before = level;
        for (int i = 0; i < count; ++i) {
            double own = xm_network_rail_ingress(m->network, rails[i]);

            if (m->load[rails[i]] < before * own) {
                rate += own;
                amount += m->load[rails[i]];
            }
        }
        level = amount / rate;
    } while (level < before);
    for (int i = 0; i < count; ++i) {
        double own = xm_network_rail_ingress(m->network, rails[i]);
        double share = fmax(0.0, level * own - m->load[rails[i]]);

        at += share;
        m->load[rails[i]] += share;
        cut[i] = llround(at / SHORTEST_LANE) * SHORTEST_LANE;
        cut[i] = i + 1 == count || cut[i] > bytes ? bytes : cut[i];
    }
}

/* Cuts the bytes of a group in every host, and into stretches between all cuts. */
static xm_status_t cut_group(making_t *m, const options_t *group, int64_t bytes, int hosts)
{
    stretch_t *stretch = m->stretches;

    for (int h = 0, first = 0, end; h < hosts; ++h, first = end) {
        int host = xm_network_host_of_rail(m->network, group->rails[first]);

        for (end = first + 1;
             end < group->count && xm_network_host_of_rail(m->network, group->rails[end]) == host;
             ++end) {
        }
        fill_rails(m, group->rails + first, end - first, bytes, m->cut + first);
        m->choice[h] = first;
    }
    for (int64_t at = 0; at < bytes; at = stretch++->end) {
        int *rails = xm_ints_take(&m->lanes->arena, (size_t)hosts);

        if (rails == NULL) {
            return no_memory(m);
        }
        *stretch = (stretch_t){bytes, rails};
        for (int h = 0; h < hosts; ++h) {
            while (m->cut[m->choice[h]] <= at) {
                ++m->choice[h];
            }
            rails[h] = group->rails[m->choice[h]];
            stretch->end =
                m->cut[m->choice[h]] < stretch->end ? m->cut[m->choice[h]] : stretch->end;
        }
        qsort(rails, (size_t)hosts, sizeof(*rails), xm_order_ints);
    }
    return XM_OK;
}

static xm_status_t add_lane(making_t *m, const xm_lane_t *lane)
{
    xm_lanes_t *lanes = m->lanes;

    if (!XM_ARRAY_ROOM(lanes->lanes, lanes->room, lanes->count)) {
        return no_memory(m);
    }
    lanes->lanes[lanes->count++] = *lane;
    return XM_OK;
}

/* The bytes of a class that each receiver gets by itself; for one receiver all are the same. */
static int64_t single_bytes(const making_t *m, const xm_class_t *class)
{
    int64_t bytes;

    if (m->single >= 1) {
        return class->bytes;
    }
    bytes = llround(m->single * (double)class->bytes / SHORTEST_LANE) * SHORTEST_LANE;
    return class->remote_count == class->remote_host_count || bytes > class->bytes ? 0 : bytes;
}

static xm_status_t add_singles(making_t *m, const xm_class_t *class, int64_t bytes)
{
    for (int r = 0; bytes > 0 && r < class->remote_count; ++r) {
        const int *rail = &m->lanes->rail_of[class->remote[r]];

        m->load[*rail] += (double)bytes;
        XM_TRY(add_lane(m, &(xm_lane_t){0, bytes, rail, 1, class->remote[r]}));
    }
    return XM_OK;
}

/* Appends the lanes of one class behind its first bytes, where these start at `start` in its
 * group. A piece that is too short goes with the next one. *stretch is the one that `start` lies
 * in, and moves on. */
static xm_status_t add_lanes(making_t *m, const xm_class_t *class, int64_t start,
                             const stretch_t **stretch)
{
    xm_lane_t lane = {
        .first = single_bytes(m, class), .count = class->remote_host_count, .receiver = -1};
    xm_status_t status = XM_OK;

    /* Where the class would start in the group with all its bytes. */
    start -= lane.first;
    for (; status == XM_OK && lane.first < class->bytes;
         *stretch += lane.end + start == (*stretch)->end) {
        lane.end = (*stretch)->end - start < class->bytes ? (*stretch)->end - start : class->bytes;
        if (lane.end == class->bytes || lane.end - lane.first >= SHORTEST_LANE) {
            lane.rails = (*stretch)->rails;
            status = add_lane(m, &lane);
            lane.first = lane.end;
        }
    }
    return status;
}

/* Makes the lanes of a group of classes that can come in by the same rails. */
static xm_status_t make_group(making_t *m, const options_t *group, int64_t count)
{
    const xm_class_t *classes = m->classes->classes;
    const stretch_t *stretch = m->stretches;
    int64_t bytes = 0, start = 0;
    xm_status_t status;

    for (int64_t i = 0; i < count; ++i) {
        const xm_class_t *class = &classes[group[i].class];

        bytes += class->bytes - single_bytes(m, class);
    }
    status = cut_group(m, group, bytes, classes[group->class].remote_host_count);
    for (int64_t i = 0; status == XM_OK && i < count; ++i) {
        const xm_class_t *class = &classes[group[i].class];
        xm_lane_range_t *range = &m->lanes->by_class[group[i].class];
        int64_t single = single_bytes(m, class);

        range->first = m->lanes->count;
        status = add_singles(m, class, single);
        XM_THEN(status, add_lanes(m, class, start, &stretch));
        start += class->bytes - single;
        range->end = m->lanes->count;
    }
    return status;
}

/* Makes the lanes of all classes, group by group, which lists them in another order than the
 * classes'. */
static xm_status_t make_lanes(making_t *m)
{
    int64_t count = m->classes->count;
    xm_status_t status = XM_OK;

    qsort(m->options, (size_t)count, sizeof(*m->options), compare_options);
    for (int64_t g = 0, end; status == XM_OK && g < count; g = end) {
        for (end = g; end < count && same_options(&m->options[g], &m->options[end]); ++end) {
            m->lanes->by_class[m->options[end].class] = (xm_lane_range_t){0, 0};
        }
        status = m->options[g].count > 0 ? make_group(m, &m->options[g], end - g) : XM_OK;
    }
    return status;
}

/* Where every host has one rail of its own number, the classes' lists serve as they are. */
static xm_status_t whole_lanes(making_t *m)
{
    xm_lanes_t *lanes = m->lanes;

    lanes->lanes = malloc(((size_t)m->classes->count + 1) * sizeof(*lanes->lanes));
    if (lanes->lanes == NULL) {
        return no_memory(m);
    }
    lanes->count = m->classes->count;
    for (int64_t k = 0; k < m->classes->count; ++k) {
        const xm_class_t *class = &m->classes->classes[k];

        lanes->holders[k] = (xm_rail_list_t){class->holder_hosts, class->holder_host_count};
        lanes->lanes[k] =
            (xm_lane_t){0, class->bytes, class->remote_hosts, class->remote_host_count, -1};
        lanes->by_class[k] = (xm_lane_range_t){k, k + (class->remote_count > 0)};
    }
    return XM_OK;
}

static bool is_plain(const xm_network_t *network)
{
    bool plain = xm_network_rails(network) == xm_network_hosts(network);

    for (int r = 0; plain && r < xm_network_rails(network); ++r) {
        plain = xm_network_host_of_rail(network, r) == r;
    }
    return plain;
}

/* The most rails that any class can come in by, and one more. */
static size_t most_options(const making_t *m)
{
    int most = 1;

    for (int64_t k = 0; k < m->classes->count; ++k) {
        most = m->options[k].count > most ? m->options[k].count : most;
    }
    return (size_t)most + 1;
}

static xm_status_t rail_lanes(making_t *m)
{
    size_t most;
    xm_status_t status;

    m->options = malloc(((size_t)m->classes->count + 1) * sizeof(*m->options));
    m->load = calloc((size_t)xm_network_rails(m->network), sizeof(*m->load));
    status = m->options == NULL || m->load == NULL ? no_memory(m) : list_rails(m);
    if (status == XM_OK) {
        most = most_options(m);
        m->cut = malloc(most * sizeof(*m->cut));
        m->choice = malloc(most * sizeof(*m->choice));
        m->stretches = malloc(most * sizeof(*m->stretches));
        status = m->cut == NULL || m->choice == NULL || m->stretches == NULL ? no_memory(m)
                                                                             : make_lanes(m);
    }
    free(m->stretches);
    free(m->choice);
    free(m->cut);
    free(m->load);
    free(m->options);
    return status;
}

/* Says where each task begins in its class. */
static void place_tasks(const xm_plan_t *plan, const xm_classes_t *classes, int64_t *offset)
{
    for (int64_t k = 0; k < classes->count; ++k) {
        const xm_class_t *class = &classes->classes[k];
        int64_t at = 0;

        for (int64_t i = 0; i < class->task_count; ++i) {
            offset[classes->tasks[class->first_task + i]] = at;
            at += xm_task_bytes(plan, classes->tasks[class->first_task + i]);
        }
    }
}

xm_status_t xm_lanes_create(const xm_plan_t *plan, const xm_network_t *network,
                            const xm_classes_t *classes, double single, bool near,
                            xm_lanes_t *lanes)
{
    size_t count = (size_t)classes->count + 1, ranks = (size_t)xm_network_ranks(network);
    making_t m = {
        .network = network, .classes = classes, .lanes = lanes, .single = single, .near = near};
    xm_status_t status;

    *lanes =
        (xm_lanes_t){.by_class = malloc(count * sizeof(*lanes->by_class)),
                     .holders = malloc(count * sizeof(*lanes->holders)),
                     .rail_of = malloc(ranks * sizeof(*lanes->rail_of)),
                     .offset = malloc(((size_t)plan->task_count + 1) * sizeof(*lanes->offset))};
    status = lanes->by_class == NULL || lanes->holders == NULL || lanes->rail_of == NULL ||
                     lanes->offset == NULL
                 ? no_memory(&m)
                 : xm_network_of_rails(network, &lanes->network);
    if (status == XM_OK) {
        for (int r = 0; r < (int)ranks; ++r) {
            lanes->rail_of[r] = xm_network_rail_of(network, r);
        }
        place_tasks(plan, classes, lanes->offset);
        status = single <= 0 && is_plain(network) ? whole_lanes(&m) : rail_lanes(&m);
    }
    if (status < 0) {
        xm_lanes_clear(lanes);
    }
    return status;
}

void xm_lanes_clear(xm_lanes_t *lanes)
{
    xm_network_destroy(lanes->network);
    xm_arena_clear(&lanes->arena);
    free(lanes->offset);
    free(lanes->rail_of);
    free(lanes->holders);
    free(lanes->by_class);
    free(lanes->lanes);
    memset(lanes, 0, sizeof(*lanes));
}

/* What hosts send: bytes of which a first copy must leave holders, and the rates at which those can
 * send that hold anything, and those that hold or receive. */
typedef struct {
    double first, holders, all;
} senders_t;

/* What the devices of a host take in. */
typedef struct {
    double once, again; /* bytes by its rails: the first copies, and all further ones */
    double near, port;  /* bytes by the port of the device that takes in most: those that can come
                           from neighbours only, and those that could come by a rail */
    bool holds;         /* what others need */
} intake_t;

/* The seconds that a batch takes when a part of all copies comes by the rails. */
static double longest(const making_t *m, const intake_t *intake, const senders_t *senders,
                      double single)
{
    double slowest = 0, once = 0, copies = 0;

    for (int h = 0; h < xm_network_hosts(m->network); ++h) {
        double rails = intake[h].once + single * intake[h].again;
        double port = intake[h].near + (1 - single) * intake[h].port;

        slowest = fmax(slowest, fmax(rails / xm_network_ingress(m->network, h),
                                     port / xm_network_host_bandwidth(m->network)));
        once += intake[h].once;
        copies += intake[h].once + intake[h].again;
    }
    /* Single copies come from holders, others also from receivers on other hosts. */
    return fmax(slowest, fmax(((1 - single) * senders->first + single * copies) / senders->holders,
                              ((1 - single) * once + single * copies) / senders->all));
}

/* Adds up what hosts take in, and the most of any of a host's devices; `ports` has two entries by
 * rank. */
static void add_intake(const making_t *m, intake_t *intake, double *ports)
{
    for (int64_t k = 0; k < m->classes->count; ++k) {
        const xm_class_t *class = &m->classes->classes[k];
        double bytes = (double)class->bytes;

        for (int i = 0; i < class->near_count; ++i) {
            ports[2 * class->near_ranks[i]] += bytes;
        }
        for (int h = 0; h < class->remote_host_count; ++h) {
            int first = class->remote_first[h], count = class->remote_first[h + 1] - first;

            intake[class->remote_hosts[h]].once += bytes;
            intake[class->remote_hosts[h]].again += bytes * (count - 1);
            for (int i = first; i < first + count; ++i) {
                ports[2 * class->remote[i] + 1] += bytes * (count - 1) / count;
            }
        }
        for (int h = 0; class->remote_count > 0 && h < class->holder_host_count; ++h) {
            intake[class->holder_hosts[h]].holds = true;
        }
    }
    for (int r = 0; r < xm_network_ranks(m->network); ++r) {
        intake_t *host = &intake[xm_network_host_of(m->network, r)];

        host->near = fmax(host->near, ports[2 * r]);
        host->port = fmax(host->port, ports[2 * r + 1]);
    }
}

static senders_t add_senders(const making_t *m, const intake_t *intake)
{
    senders_t senders = {0};

    for (int64_t k = 0; k < m->classes->count; ++k) {
        const xm_class_t *class = &m->classes->classes[k];

        senders.first += class->remote_count > 0 ? (double)class->bytes : 0;
    }
    for (int h = 0; h < xm_network_hosts(m->network); ++h) {
        double rate = xm_network_egress(m->network, h);

        senders.holders += intake[h].holds ? rate : 0;
        senders.all += intake[h].holds || intake[h].once > 0 ? rate : 0;
    }
    return senders;
}

/* The time is convex in the part, so a search by thirds finds the least. */
xm_status_t xm_lanes_single(const xm_network_t *network, const xm_classes_t *classes,
                            double *single)
{
    const making_t m = {.network = network, .classes = classes};
    intake_t *intake = calloc((size_t)xm_network_hosts(network), sizeof(*intake));
    double *ports = calloc(2 * (size_t)xm_network_ranks(network), sizeof(*ports));
    double low = 0, high = 1;
    senders_t senders;
    xm_status_t status = XM_OK;

    *single = 0;
    if (intake == NULL || ports == NULL) {
        status = no_memory(&m);
        goto free_all;
    }
    add_intake(&m, intake, ports);
    senders = add_senders(&m, intake);
    for (int i = 0; i < SEARCH_STEPS; ++i) {
        double left = (2 * low + high) / 3, right = (low + 2 * high) / 3;

        if (longest(&m, intake, &senders, left) <= longest(&m, intake, &senders, right)) {
            high = right;
        } else {
            low = left;
        }
    }
    /* Not worth it for a small gain. */
    if (longest(&m, intake, &senders, low) < WORTHWHILE * longest(&m, intake, &senders, 0)) {
        *single = low;
    }

free_all:
    free(ports);
    free(intake);
    return status;
}

xm_part_t xm_lane_part(const xm_lanes_t *lanes, const xm_plan_t *plan, const xm_lane_t *lane,
                       int64_t task)
{
    int64_t size = plan->tensors[plan->tasks[task].tensor].element_size;
    int64_t elements = plan->tasks[task].elements;
    int64_t first = lane->first - lanes->offset[task], end = lane->end - lanes->offset[task];

    if (first >= elements * size || end <= 0) {
        return (xm_part_t){0, 0};
    }
    return (xm_part_t){first > 0 ? first / size : 0, end < elements * size ? end / size : elements};
}
