/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The reserve of memory by default. Context and communication are bytes of a GPU's runtime; on a
 * device with little memory, as a rank of a CPU host has, they count as a part of it, so that the
 * reserve never takes more than a fifth.
 */

#include "planner/cost/memory_budget.h"

#include <math.h>
#include <stdio.h>

static const double MIB = 1 << 20;
/* A CUDA context with the kernels of a framework. */
static const double CONTEXT_MIB = 512;
/* Three communicators (two axes of a mesh, and the stages) of eight channels, each with send and
 * receive buffers of about 10 MiB: NCCL_BUFFSIZE of 4 MiB, and those of its LL and LL128
 * protocols. */
static const double COMMUNICATION_MIB = 3 * 8 * 10;
static const double FRAGMENTATION_PART = 0.05, MOST_PART = 0.05;

ap_memory_reserve_t ap_memory_reserve_of(double device_bytes)
{
    return (ap_memory_reserve_t){.context = fmin(CONTEXT_MIB * MIB, MOST_PART * device_bytes),
                                 .communication =
                                     fmin(COMMUNICATION_MIB * MIB, MOST_PART * device_bytes),
                                 .fragmentation = FRAGMENTATION_PART * device_bytes};
}

static double sum(ap_memory_reserve_t reserve)
{
    return reserve.context + reserve.communication + reserve.fragmentation;
}

static double base(const ap_memory_budget_t *budget, double device_bytes)
{
    return budget->limit > 0 ? budget->limit : device_bytes;
}

/* A limit that is given is what plans may use; only a reserve that is given as well is taken from
 * it. */
double ap_memory_budget_reserve(const ap_memory_budget_t *budget, double device_bytes)
{
    if (budget->reserve < 0) {
        return budget->limit > 0 ? 0 : floor(sum(ap_memory_reserve_of(device_bytes)));
    }
    return budget->reserve < 1 ? floor(budget->reserve * base(budget, device_bytes))
                               : budget->reserve;
}

double ap_memory_budget_usable(const ap_memory_budget_t *budget, double device_bytes)
{
    double usable = base(budget, device_bytes) - ap_memory_budget_reserve(budget, device_bytes);

    return fmax(1, budget->cap > 0 ? fmin(budget->cap, usable) : usable);
}

xm_status_t ap_memory_budget_check(const ap_memory_budget_t *budget, double device_bytes)
{
    char reserve[32], has[32];

    if (!(budget->limit >= 0)) {
        return XM_INVALID("a memory limit of %g bytes: 0 or more", budget->limit);
    }
    if (isnan(budget->reserve)) {
        return XM_INVALID("a memory reserve of %g bytes is no number", budget->reserve);
    }
    if (ap_memory_budget_reserve(budget, device_bytes) < base(budget, device_bytes)) {
        return XM_OK;
    }
    return XM_INVALID(
        "a memory reserve of %s leaves nothing of %s per device",
        xm_text_format_bytes((uint64_t)fmin(ap_memory_budget_reserve(budget, device_bytes), 9e18),
                             reserve, sizeof(reserve)),
        xm_text_format_bytes((uint64_t)base(budget, device_bytes), has, sizeof(has)));
}

static const char *text(double bytes, char buffer[static 32])
{
    return xm_text_format_bytes((uint64_t)bytes, buffer, 32);
}

char *ap_memory_budget_format(double usable, double reserve, char *buffer, size_t size)
{
    const ap_memory_budget_t by_default = {.reserve = -1};
    double device = usable + reserve;
    ap_memory_reserve_t terms = ap_memory_reserve_of(device);
    char has[32], kept[32], left[32], context[32], communication[32], fragmentation[32];
    char of[128] = "";

    if (fabs(ap_memory_budget_reserve(&by_default, device) - reserve) <= 1) {
        (void)snprintf(of, sizeof(of), " (context %s, communication %s, fragmentation %s)",
                       text(terms.context, context), text(terms.communication, communication),
                       text(terms.fragmentation, fragmentation));
    }
    (void)snprintf(buffer, size, "%s a device, %s of it in reserve%s: %s for the plan",
                   text(device, has), text(reserve, kept), of, text(usable, left));
    return buffer;
}
