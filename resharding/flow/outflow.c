#include "resharding/flow/outflow.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "comm/base.h"
#include "resharding/flow/flow.h"

/* Times are cut here. */
static const int64_t longest_ns = INT64_C(3) << 61;

/* Data held by the same set of at least two nodes. */
typedef struct {
    uint64_t hash;
    int64_t bytes;
    size_t first; /* of its holders in `holder` */
    int count;
} group_t;

struct xm_outflow {
    int nodes;
    double *rate;
    int64_t *own; /* by node: bytes that nobody else holds */
    int64_t total;
    group_t *group;
    int groups, group_capacity;
    int *holder;
    size_t holders, holder_capacity;
    int *slot; /* hash table of groups, open addressing; −1: free */
    size_t slots;
};

int64_t xm_outflow_capacity(double rate, int64_t ns, int64_t limit)
{
    double bytes = floor((double)ns * rate / 1e9 * (1 + 0x1p-50));

    return bytes < (double)limit ? (int64_t)bytes : limit;
}

xm_status_t xm_outflow_create(int nodes, const double *rate, xm_outflow_t **outflow)
{
    xm_outflow_t *created = calloc(1, sizeof(*created));

    if (created == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "no memory for a bound");
    }
    created->nodes = nodes;
    created->rate = malloc((size_t)nodes * sizeof(*created->rate));
    created->own = calloc((size_t)nodes, sizeof(*created->own));
    if (created->rate == NULL || created->own == NULL) {
        xm_outflow_destroy(created);
        return xm_error_set(XM_ERR_NO_MEMORY, "no memory for the bound of %d hosts", nodes);
    }
    memcpy(created->rate, rate, (size_t)nodes * sizeof(*rate));
    *outflow = created;
    return XM_OK;
}

void xm_outflow_destroy(xm_outflow_t *outflow)
{
    if (outflow != NULL) {
        free(outflow->slot);
        free(outflow->holder);
        free(outflow->group);
        free(outflow->own);
        free(outflow->rate);
        free(outflow);
    }
}

static xm_status_t grow_table(xm_outflow_t *outflow)
{
    size_t slots = outflow->slots > 0 ? outflow->slots * 2 : 64;
    int *slot = malloc(slots * sizeof(*slot));

    if (slot == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "no memory for the bound of %d sets of holders",
                            outflow->groups);
    }
    memset(slot, -1, slots * sizeof(*slot));
    for (int g = 0; g < outflow->groups; ++g) {
        size_t i = (size_t)outflow->group[g].hash & (slots - 1);

        while (slot[i] >= 0) {
            i = (i + 1) & (slots - 1);
        }
        slot[i] = g;
    }
    free(outflow->slot);
    outflow->slot = slot;
    outflow->slots = slots;
    return XM_OK;
}

/* Room for one more group of `count` holders. */
static xm_status_t reserve(xm_outflow_t *outflow, int count)
{
    if (outflow->groups == outflow->group_capacity) {
        int grown = outflow->group_capacity > 0 ? outflow->group_capacity * 2 : 32;
        group_t *group = realloc(outflow->group, (size_t)grown * sizeof(*group));

        if (group == NULL) {
            return xm_error_set(XM_ERR_NO_MEMORY, "no memory for the bound of %d sets of holders",
                                grown);
        }
        outflow->group = group;
        outflow->group_capacity = grown;
    }
    if (outflow->holders + (size_t)count > outflow->holder_capacity) {
        size_t grown = 2 * outflow->holder_capacity + (size_t)count;
        int *holder = realloc(outflow->holder, grown * sizeof(*holder));

        if (holder == NULL) {
            return xm_error_set(XM_ERR_NO_MEMORY, "no memory for the bound of %zu holders", grown);
        }
        outflow->holder = holder;
        outflow->holder_capacity = grown;
    }
    return (size_t)outflow->groups * 2 >= outflow->slots ? grow_table(outflow) : XM_OK;
}

static xm_status_t add_to_group(xm_outflow_t *outflow, const int *holders, int count, int64_t bytes)
{
    uint64_t hash = xm_hash_list(0, holders, count);
    size_t i;
    xm_status_t status = reserve(outflow, count);

    if (status < 0) {
        return status;
    }
    for (i = (size_t)hash & (outflow->slots - 1); outflow->slot[i] >= 0;
         i = (i + 1) & (outflow->slots - 1)) {
        group_t *group = &outflow->group[outflow->slot[i]];

        if (group->hash == hash && group->count == count &&
            memcmp(outflow->holder + group->first, holders, (size_t)count * sizeof(int)) == 0) {
            group->bytes += bytes;
            return XM_OK;
        }
    }
    memcpy(outflow->holder + outflow->holders, holders, (size_t)count * sizeof(int));
    outflow->group[outflow->groups] = (group_t){hash, bytes, outflow->holders, count};
    outflow->holders += (size_t)count;
    outflow->slot[i] = outflow->groups++;
    return XM_OK;
}

xm_status_t xm_outflow_add(xm_outflow_t *outflow, const int *holders, int count, int64_t bytes)
{
    if (bytes > INT64_MAX - outflow->total) {
        return xm_error_set(XM_ERR_INVALID_ARGUMENT, "the data of a resharding exceeds %lld bytes",
                            (long long)INT64_MAX);
    }
    if (count == 1) {
        outflow->own[holders[0]] += bytes;
    } else {
        xm_status_t status = add_to_group(outflow, holders, count, bytes);

        if (status < 0) {
            return status;
        }
    }
    outflow->total += bytes;
    return XM_OK;
}

/* Bytes that only the set holds. */
static int64_t held_inside(const xm_outflow_t *outflow, const bool *in_set)
{
    int64_t bytes = 0;

    for (int n = 0; n < outflow->nodes; ++n) {
        bytes += in_set[n] ? outflow->own[n] : 0;
    }
    for (int g = 0; g < outflow->groups; ++g) {
        const group_t *group = &outflow->group[g];
        int i = 0;

        while (i < group->count && in_set[outflow->holder[group->first + (size_t)i]]) {
            ++i;
        }
        bytes += i == group->count ? group->bytes : 0;
    }
    return bytes;
}

/* Whether `bytes` fit through the set in `ns`. */
static bool fits(const xm_outflow_t *outflow, const bool *in_set, int64_t bytes, int64_t ns)
{
    for (int n = 0; n < outflow->nodes && bytes > 0; ++n) {
        bytes -= in_set[n] ? xm_outflow_capacity(outflow->rate[n], ns, bytes) : 0;
    }
    return bytes <= 0;
}

/* Smallest time above `low` in which `bytes` fit through the set; they do not in `low`. */
static int64_t set_time(const xm_outflow_t *outflow, const bool *in_set, int64_t bytes, int64_t low)
{
    double rate = 0, estimate;
    int64_t high, step = 1;

    for (int n = 0; n < outflow->nodes; ++n) {
        rate += in_set[n] ? outflow->rate[n] : 0;
    }
    /* A little below what it takes in fractions of bytes, then on in growing steps. */
    estimate = floor((double)bytes * 1e9 / rate * (1 - 0x1p-40)) - 1;
    if (estimate > (double)longest_ns) {
        return longest_ns;
    }
    if ((int64_t)estimate > low && !fits(outflow, in_set, bytes, (int64_t)estimate)) {
        low = (int64_t)estimate;
    }
    for (;;) {
        high = low < longest_ns - step ? low + step : longest_ns;
        if (high == longest_ns || fits(outflow, in_set, bytes, high)) {
            break;
        }
        low = high;
        step *= 2;
    }
    while (high - low > 1) {
        int64_t middle = low + (high - low) / 2;

        if (fits(outflow, in_set, bytes, middle)) {
            high = middle;
        } else {
            low = middle;
        }
    }
    return high;
}

int64_t xm_outflow_single(double rate, int64_t bytes)
{
    const xm_outflow_t single = {.nodes = 1, .rate = &rate};
    const bool in_set[] = {true};

    return bytes > 0 ? set_time(&single, in_set, bytes, 0) : 0;
}

/* The nodes of a set that needs more than `ns`; *enough when there is none. */
static xm_status_t find_tighter(const xm_outflow_t *outflow, int64_t ns, bool *in_set, bool *enough)
{
    int source = outflow->groups + outflow->nodes, sink = source + 1;
    xm_flow_t *flow = NULL;
    uint64_t value = 0;
    xm_status_t status = xm_flow_create(sink + 1, &flow);

    for (int n = 0; status == XM_OK && n < outflow->nodes; ++n) {
        int64_t capacity = xm_outflow_capacity(outflow->rate[n], ns, outflow->total);

        status = xm_flow_add_edge(flow, outflow->groups + n, sink, capacity);
        if (status == XM_OK && outflow->own[n] > 0) {
            status = xm_flow_add_edge(flow, source, outflow->groups + n, outflow->own[n]);
        }
    }
    for (int g = 0; status == XM_OK && g < outflow->groups; ++g) {
        const group_t *group = &outflow->group[g];
        const int *holder = outflow->holder + group->first;

        status = xm_flow_add_edge(flow, source, g, group->bytes);
        for (int i = 0; status == XM_OK && i < group->count; ++i) {
            status = xm_flow_add_edge(flow, g, outflow->groups + holder[i], group->bytes);
        }
    }
    if (status == XM_OK) {
        status = xm_flow_maximise(flow, source, sink, &value);
    }
    for (int n = 0; status == XM_OK && n < outflow->nodes; ++n) {
        in_set[n] = xm_flow_on_source_side(flow, outflow->groups + n);
    }
    *enough = value == (uint64_t)outflow->total;
    xm_flow_destroy(flow);
    return status;
}

xm_status_t xm_outflow_time(const xm_outflow_t *outflow, int64_t *ns)
{
    bool *in_set, enough = outflow->total == 0;
    int64_t time = 0;
    xm_status_t status = XM_OK;

    in_set = malloc((size_t)outflow->nodes * sizeof(*in_set));
    if (in_set == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "no memory for the bound of %d hosts",
                            outflow->nodes);
    }
    /* What nodes hold alone needs no flow. */
    for (int n = 0; n < outflow->nodes; ++n) {
        int64_t own = xm_outflow_single(outflow->rate[n], outflow->own[n]);

        time = own > time ? own : time;
    }
    enough = enough || outflow->groups == 0;
    while (!enough && time < longest_ns) {
        status = find_tighter(outflow, time, in_set, &enough);
        if (status < 0) {
            break;
        }
        if (!enough) {
            time = set_time(outflow, in_set, held_inside(outflow, in_set), time);
        }
    }
    if (status == XM_OK) {
        *ns = time;
    }
    free(in_set);
    return status;
}
