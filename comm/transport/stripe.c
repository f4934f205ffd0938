/* SPDX-License-Identifier: Apache-2.0 */
/* How messages are spread over the rails between two ranks. Both ends compute the same shares
 * from the rates they exchanged, in integers only, so that no difference in floating point can
 * make them cut a message at different places; nothing about the cut travels with a message.
 * Shares are proportional to rates, which makes all fragments of a message end at about the
 * same time. A rail that is much slower than the rest is left out: it would finish last,
 * whatever small fragment it got. */
#include "comm/transport/stripe.h"

#include "comm/base.h"

/* WHOLE: all of a message, in units of a share. THIN: rails below 1 / THIN are not used.
 * ALIGNMENT: of the boundaries between fragments, one cache line. A fragment is at least
 * XM_STRIPE_THRESHOLD / THIN less a little, far more than that. */
enum { WHOLE = 65536, THIN = 16, ALIGNMENT = 64 };

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

/* The rail of a short message. All messages with a tag take the same one, because their order
 * must be kept and rails do not keep it among each other. The last share ends at WHOLE, above
 * every value of `at`, so the loop ends. */
int xm_stripe_rail(const xm_stripe_t *stripe, uint64_t tag)
{
    /* Tags are often small counters: a multiplication spreads their low bits to the top. */
    uint32_t at = (uint32_t)(xm_hash_spread(tag + 1) >> 48);
    int rail = 0;

    while (at >= stripe->end[rail]) {
        ++rail;
    }
    return rail;
}

/* The end of a rail's fragment. The product is split so that it cannot overflow for any length; the
 * last end is the length itself. */
size_t xm_stripe_end(const xm_stripe_t *stripe, size_t length, int rail)
{
    size_t share = stripe->end[rail];
    size_t end = length / WHOLE * share + length % WHOLE * share / WHOLE;

    return end == length ? end : end / ALIGNMENT * ALIGNMENT;
}
