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

enum { SHORTEST_LANE = 4096 /* bytes; longer than any element, so that no lane is empty */ };

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
    double *load;       /* by rail: bytes that it takes in so far */
    /* Of the group of classes at hand. */
    int64_t *cut; /* by option: where its share ends */
    int *choice;  /* by host: the option at hand */
    stretch_t *stretches;
} making_t;

static xm_status_t no_memory(const making_t *m)
{
    return xm_error_set(XM_ERR_NO_MEMORY, "no memory for the rails of %" PRId64 " classes of tasks",
                        m->classes->count);
}

/* Sorts a list of rails by host, then by number, and drops repeated ones. The list comes nearly
 * sorted, as ranks of a host stand together. */
static int sort_rails(const xm_network_t *network, int *rails, int count)
{
    int kept = 0;

    for (int i = 0; i < count; ++i) {
        int rail = rails[i], at = kept, host = xm_network_host_of_rail(network, rail);

        while (at > 0 && (xm_network_host_of_rail(network, rails[at - 1]) > host ||
                          (xm_network_host_of_rail(network, rails[at - 1]) == host &&
                           rails[at - 1] > rail))) {
            --at;
        }
        if (at == 0 || rails[at - 1] != rail) {
            memmove(rails + at + 1, rails + at, (size_t)(kept - at) * sizeof(*rails));
            rails[at] = rail;
            ++kept;
        }
    }
    return kept;
}

static int compare_ints(const void *a, const void *b)
{
    return *(const int *)a - *(const int *)b;
}

/* Those with fewer choices come first, so that the others can fill what they leave; classes
 * with the same choices stand together. */
static int compare_options(const void *a, const void *b)
{
    const options_t *x = a, *y = b;
    int order;

    if (x->count != y->count) {
        return x->count < y->count ? -1 : 1;
    }
    if (x->hash != y->hash) {
        return x->hash < y->hash ? -1 : 1;
    }
    order = memcmp(x->rails, y->rails, (size_t)x->count * sizeof(int));
    return order != 0 ? order : (x->class > y->class) - (x->class < y->class);
}

static bool same_options(const options_t *a, const options_t *b)
{
    return a->count == b->count && a->hash == b->hash &&
           memcmp(a->rails, b->rails, (size_t)a->count * sizeof(int)) == 0;
}

/* Takes the rails of ranks into the arena, by host and each once. */
static int *take_rails(making_t *m, const int *ranks, int count, int *rails)
{
    int *list = xm_ints_take(&m->lanes->arena, (size_t)count + 1);

    for (int i = 0; list != NULL && i < count; ++i) {
        list[i] = m->lanes->rail_of[ranks[i]];
    }
    *rails = list == NULL ? 0 : sort_rails(m->network, list, count);
    return list;
}

/* Lists the rails that hold each class, and those by which it can come in. */
static xm_status_t list_rails(making_t *m)
{
    for (int64_t k = 0; k < m->classes->count; ++k) {
        const xm_class_t *class = &m->classes->classes[k];
        xm_rail_list_t *holders = &m->lanes->holders[k];
        options_t *options = &m->options[k];
        int *held = take_rails(m, class->holders, class->holder_count, &holders->count);

        options->class = k;
        options->rails = take_rails(m, class->remote, class->remote_count, &options->count);
        if (held == NULL || options->rails == NULL) {
            return no_memory(m);
        }
        qsort(held, (size_t)holders->count, sizeof(*held), compare_ints);
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
        qsort(rails, (size_t)hosts, sizeof(*rails), compare_ints);
    }
    return XM_OK;
}

/* Appends the lanes of one class, whose bytes start at `start` in its group. A piece that is too
 * short goes with the next one. *stretch is the one that `start` lies in, and moves on. */
static xm_status_t add_lanes(making_t *m, int64_t start, int64_t bytes, const stretch_t **stretch)
{
    xm_lanes_t *lanes = m->lanes;
    xm_lane_t lane = {0};

    for (; lane.first < bytes; *stretch += lane.end + start == (*stretch)->end) {
        lane.end = (*stretch)->end - start < bytes ? (*stretch)->end - start : bytes;
        if (lane.end < bytes && lane.end - lane.first < SHORTEST_LANE) {
            continue;
        }
        if (lanes->count == lanes->capacity) {
            int64_t grown = lanes->capacity > 0 ? 2 * lanes->capacity : 64;
            xm_lane_t *at = realloc(lanes->lanes, (size_t)grown * sizeof(*at));

            if (at == NULL) {
                return no_memory(m);
            }
            lanes->lanes = at;
            lanes->capacity = grown;
        }
        lane.rails = (*stretch)->rails;
        lanes->lanes[lanes->count++] = lane;
        lane.first = lane.end;
    }
    return XM_OK;
}

/* Makes the lanes of all classes, group by group, which lists them in another order than the
 * classes': `first` and `count` say where those of a class are. */
static xm_status_t make_lanes(making_t *m)
{
    int64_t count = m->classes->count;
    xm_status_t status = XM_OK;

    qsort(m->options, (size_t)count, sizeof(*m->options), compare_options);
    for (int64_t g = 0, end; status == XM_OK && g < count; g = end) {
        const stretch_t *stretch = m->stretches;
        int hosts = m->classes->classes[m->options[g].class].remote_host_count;
        int64_t bytes = 0, start = 0;

        for (end = g; end < count && same_options(&m->options[g], &m->options[end]); ++end) {
            bytes += m->classes->classes[m->options[end].class].bytes;
        }
        status = hosts > 0 ? cut_group(m, &m->options[g], bytes, hosts) : XM_OK;
        for (int64_t i = g; status == XM_OK && i < end; ++i) {
            int64_t class = m->options[i].class;

            m->lanes->by_class[class].first = m->lanes->count;
            if (hosts > 0) {
                status = add_lanes(m, start, m->classes->classes[class].bytes, &stretch);
            }
            m->lanes->by_class[class].end = m->lanes->count;
            start += m->classes->classes[class].bytes;
        }
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
    for (int64_t k = 0; k < m->classes->count; ++k) {
        const xm_class_t *class = &m->classes->classes[k];

        lanes->holders[k] = (xm_rail_list_t){class->holder_hosts, class->holder_host_count};
        lanes->lanes[k] = (xm_lane_t){0, class->bytes, class->remote_hosts};
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
                            const xm_classes_t *classes, xm_lanes_t *lanes)
{
    size_t count = (size_t)classes->count + 1, ranks = (size_t)xm_network_ranks(network);
    making_t m = {.network = network, .classes = classes, .lanes = lanes};
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
        status = is_plain(network) ? whole_lanes(&m) : rail_lanes(&m);
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
