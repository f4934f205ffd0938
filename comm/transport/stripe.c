#include "comm/transport/stripe.h"

#include "comm/base.h"

/* WHOLE: all of a message, in units of a share. THIN: rails below 1 / THIN are not used.
 * ALIGNMENT: of the boundaries between pieces, one cache line. A piece is at least
 * XM_STRIPE_THRESHOLD / THIN less a little, far more than that. */
enum { WHOLE = 65536, THIN = 16, ALIGNMENT = 64 };

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

size_t xm_stripe_end(const xm_stripe_t *stripe, size_t length, int rail)
{
    size_t share = stripe->end[rail];
    size_t end = length / WHOLE * share + length % WHOLE * share / WHOLE;

    return end == length ? end : end / ALIGNMENT * ALIGNMENT;
}
