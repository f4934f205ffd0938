/* SPDX-License-Identifier: Apache-2.0 */
/* The values of a tensor with several readers, and what they cost its maker and each reader. */

#include "planner/cost/share.h"

#include <math.h>

enum { SETS = 1 << AP_MAX_MESH_RANK };

/* Whether spec `b` is `a` after gathering over some axes, or after moving one to another
 * dimension. */
static bool is_near(ap_spec_t a, ap_spec_t b, int rank)
{
    unsigned added = 0, removed = 0;

    for (int d = 0; d < rank; ++d) {
        added |= ap_spec_axes(b, d) & ~ap_spec_axes(a, d);
        removed |= ap_spec_axes(a, d) & ~ap_spec_axes(b, d);
    }
    return added == 0 || (added == removed && (added & (added - 1)) == 0);
}

static int readers_of(const ap_shared_t *s, int spec)
{
    int readers = 0;

    for (int set = 0; set < SETS; ++set) {
        readers += s->wanted[spec * SETS + set];
    }
    return readers;
}

static bool is_pair(const ap_shared_t *s, int made, int copy)
{
    return s->made[made] &&
           (made == copy ||
            (readers_of(s, copy) >= 2 && is_near(s->spec[made], s->spec[copy], s->rank) &&
             ap_reshard_memo_cost(s->memo, s->tensor, s->spec[made], s->spec[copy]) > 0));
}

/* Whether at least two gradients could be added where the copy is, and it costs something to bring
 * one from there to the maker. */
static bool is_worth_a_sum(const ap_shared_t *s, int made, int copy, unsigned partial)
{
    return s->add != NULL && s->wanted[copy * SETS + (int)partial] >= 2 &&
           ap_reshard_memo_reduce(s->memo, s->tensor, s->spec[copy], partial, s->spec[made]) > 0;
}

int ap_shared_values(const ap_shared_t *s, ap_shared_value_t *values)
{
    int count = 0;

    for (int cell = 0; cell < s->specs * s->specs; ++cell) {
        int made = cell / s->specs, copy = cell % s->specs;

        for (int sum = -1; sum < SETS && is_pair(s, made, copy); ++sum) {
            if (sum >= 0 && !is_worth_a_sum(s, made, copy, (unsigned)sum)) {
                continue;
            }
            if (values != NULL) {
                values[count] = (ap_shared_value_t){s->spec[made], s->spec[copy], sum};
            }
            ++count;
        }
    }
    return count;
}

static double move(const ap_shared_t *s, ap_spec_t from, ap_spec_t to)
{
    double cost = ap_reshard_memo_cost(s->memo, s->tensor, from, to);

    return cost < AP_COST_INFINITE ? s->runs * cost : cost;
}

double ap_shared_make(const ap_shared_t *s, const ap_shared_value_t *value, ap_spec_t made)
{
    return move(s, made, value->made) + move(s, value->made, value->copy);
}

double ap_shared_read(const ap_shared_t *s, const ap_shared_value_t *value, ap_spec_t used)
{
    return fmin(move(s, value->made, used), move(s, value->copy, used));
}

/* By how much adding two gradients takes longer where the sum is than where the tensor is made. */
static double extra(const ap_shared_t *s, const ap_shared_value_t *value)
{
    return fmax(0, s->add(s->adder, value->copy) - s->add(s->adder, value->made));
}

/* Of n gradients n - 1 are added, so one that pays for the addition gets it back. */
double ap_shared_return(const ap_shared_t *s, const ap_shared_value_t *value, ap_spec_t made)
{
    double back = s->add == NULL ? 0 : move(s, value->made, made);

    if (value->sum < 0) {
        return back;
    }
    return back + fmax(0, s->runs * ap_reshard_memo_reduce(s->memo, s->tensor, value->copy,
                                                           (unsigned)value->sum, value->made) -
                              extra(s, value));
}

double ap_shared_give(const ap_shared_t *s, const ap_shared_value_t *value, ap_spec_t used,
                      unsigned partial)
{
    double alone;

    if (s->add == NULL) {
        return 0;
    }
    alone = s->runs * ap_reshard_memo_reduce(s->memo, s->tensor, used, partial, value->made);
    return value->sum >= 0 && (unsigned)value->sum == partial
               ? fmin(alone, move(s, used, value->copy) + extra(s, value))
               : alone;
}
