/* SPDX-License-Identifier: Apache-2.0 */
/* How messages are spread over the rails between two ranks. Both ends compute the same shares
 * from the rates they exchanged, in integers only, so that both use the same rails. A rail that is
 * much slower than the rest is left out: it would finish last, whatever small chunk it got. */
#include "comm/transport/stripe.h"

/* WHOLE: all bytes, in units of a share. THIN: rails below 1 / THIN are not used. */
enum { WHOLE = 65536, THIN = 16 };

/* A transfer is as fast as its slower end; a rate that only one end knows is the best guess. */
static uint64_t weight_of(uint64_t ours, uint64_t theirs)
{
    if (ours == 0 || theirs == 0) {
        return ours + theirs;
    }
    return ours < theirs ? ours : theirs;
}

static bool is_lost(unsigned lost, int rail)
{
    return (lost >> rail & 1) != 0;
}

void xm_stripe_make(xm_stripe_t *stripe, const uint64_t *ours, const uint64_t *theirs, int count)
{
    xm_stripe_make_without(stripe, ours, theirs, count, 0);
}

/* Computes the shares. Lost rails have weight 0 and do not make the others' rates unknown. If
 * any rate is unknown, all rails count as equal: a guess for one would starve it or the others.
 * The thin ones are dropped after that, and what is left is scaled to the whole, in running
 * sums, so that rounding never leaves a byte without a rail. */
void xm_stripe_make_without(xm_stripe_t *stripe, const uint64_t *ours, const uint64_t *theirs,
                            int count, unsigned lost)
{
    uint64_t weight[XM_NICS_MAX], total = 0, thick = 0, sum = 0;
    bool known = true;

    *stripe = (xm_stripe_t){.rails = count};
    for (int rail = 0; rail < count; ++rail) {
        weight[rail] = weight_of(ours[rail], theirs[rail]);
        known = known && (weight[rail] > 0 || is_lost(lost, rail));
    }
    for (int rail = 0; rail < count; ++rail) {
        weight[rail] = is_lost(lost, rail) ? 0 : known ? weight[rail] : 1;
        total += weight[rail];
    }
    for (int rail = 0; rail < count; ++rail) {
        if (weight[rail] < (total + THIN - 1) / THIN) {
            weight[rail] = 0;
        }
        stripe->used += weight[rail] > 0;
        thick += weight[rail];
    }
    for (int rail = 0; rail < count; ++rail) {
        sum += weight[rail];
        stripe->end[rail] = thick > 0 ? (uint32_t)(sum * WHOLE / thick) : 0;
    }
}

/* The product is split so that it cannot overflow for any length; the last end is the length
 * itself. */
size_t xm_stripe_end(const xm_stripe_t *stripe, size_t length, int rail)
{
    size_t share = stripe->end[rail];

    return length / WHOLE * share + length % WHOLE * share / WHOLE;
}
