/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads words rather than lines, as FlexFlow does. What a file leaves open – whether an axis sums
 * or repeats where the output has fewer parts than there are devices – is taken as it is cheapest.
 */

#include "planner/published/like/flexflow.h"

#include <ctype.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "comm/base.h"

enum { NAME = 256, MOST_DEGREES = AP_MAX_RANK };

typedef struct entry {
    char name[NAME];
    int rank, degree[MOST_DEGREES]; /* the last dimension first */
} entry_t;

/* The next number, or -1. */
static int number(const char **at)
{
    char *end;
    long value = strtol(*at, &end, 10);
    bool is = end != *at && (*end == '\0' || isspace((unsigned char)*end) != 0);

    *at = end;
    return is && value >= 0 && value < 1 << 30 ? (int)value : -1;
}

static bool read_entry(const char **at, entry_t *entry)
{
    int length = 0, device, parts, product = 1;

    while (isspace((unsigned char)**at) != 0) {
        ++*at;
    }
    for (; **at != '\0' && isspace((unsigned char)**at) == 0; ++*at) {
        if (length == NAME - 1) {
            return false;
        }
        entry->name[length++] = **at;
    }
    entry->name[length] = '\0';
    device = number(at);
    entry->rank = number(at);
    if (length == 0 || device < 0 || entry->rank < 0 || entry->rank > MOST_DEGREES) {
        return false;
    }
    for (int d = 0; d < entry->rank; ++d) {
        entry->degree[d] = number(at);
        if (entry->degree[d] < 1 || entry->degree[d] > (1 << 20) / product) {
            return false;
        }
        product *= entry->degree[d];
    }
    parts = number(at);
    for (int p = 0; p < parts; ++p) {
        if (number(at) < 0) {
            return false;
        }
    }
    return parts == product;
}

/* The variable of "3.4.qkv", operator 4 of layer 3; -1: there is none. */
static int find(const ap_stage_network_t *network, const char *name)
{
    char *end;
    long layer = strtol(name, &end, 10), node = *end == '.' ? strtol(end + 1, &end, 10) : -1;

    return *end == '.' && layer >= 0 && node >= 0 && layer < INT_MAX && node < INT_MAX
               ? ap_stage_network_variable(network, (int)layer, (int)node)
               : -1;
}

static bool has_degrees(const ap_op_t *op, const ap_strategy_t *strategy, const int shape[2],
                        const entry_t *entry)
{
    int term = op->operand_count, rank = op->rule.rank[term];
    bool same = entry->rank == rank;

    for (int d = 0; d < rank && same; ++d) {
        unsigned axes = ap_spec_axes(strategy->spec[term], d);
        int degree = ((axes & 1U) != 0 ? shape[0] : 1) * ((axes & 2U) != 0 ? shape[1] : 1);

        same = degree == entry->degree[rank - 1 - d];
    }
    return same;
}

static xm_status_t take(const ap_stage_network_t *network, const entry_t *entry, const int shape[2],
                        int *assignment)
{
    const ap_cfn_core_t *core = ap_stage_network_choices(network);
    int layer, first, found = find(network, entry->name), best = -1;
    const ap_op_t *op;

    if (found < 0) {
        return XM_INVALID("the strategies are of '%s', which the model does not have", entry->name);
    }
    op = ap_stage_network_op(network, found, &layer, &first);
    for (int x = 0; x < core->variable[found].size; ++x) {
        if (has_degrees(op, ap_stage_network_strategy(network, found, x), shape, entry) &&
            (best < 0 || core->variable[found].cost[x] < core->variable[found].cost[best])) {
            best = x;
        }
    }
    assignment[found] = best;
    return best >= 0 ? XM_OK
                     : XM_NO_SOLUTION("no way to shard '%s' on %d x %d devices has the degrees of "
                                      "the strategies",
                                      entry->name, shape[0], shape[1]);
}

xm_status_t ap_like_read_flexflow(const ap_stage_network_t *network, const char *text,
                                  const int shape[2], int *assignment)
{
    const char *at = text;
    int count = number(&at);
    xm_status_t status = count < 0 ? XM_MALFORMED("strategies begin with their number") : XM_OK;

    for (int v = 0; v < ap_stage_network_choices(network)->variables; ++v) {
        assignment[v] = -1;
    }
    for (int i = 0; i < count && status == XM_OK; ++i) {
        entry_t entry;

        status =
            read_entry(&at, &entry)
                ? take(network, &entry, shape, assignment)
                : XM_MALFORMED("strategy %d of %d is no name, device type, degrees and as many "
                               "devices as their product",
                               i + 1, count);
    }
    return status;
}
