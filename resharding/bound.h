/**
 * @file bound.h
 * Lower bound of the time of any resharding between two layouts, from what the hosts' NICs must
 * carry.
 *
 * With every host's NIC at b bytes/s in each direction:
 *  - a destination host must receive every slice that it needs and that none of its own ranks
 * holds;
 *  - for every set S of hosts, the slices held only inside S that some host without a copy needs
 * must each leave S's NICs at least once. The bound is the larger of the two maxima, divided by the
 * rates. The maximum over all sets S is found exactly without enumerating them: a time T is
 * feasible for the senders if and only if every needed slice can be assigned to its holders with no
 * host above b·T (a flow); an infeasible T gives, by the minimum cut, a set S with a larger ratio,
 * from which to go on (Dinkelbach's method).
 *
 * Source: docs/design.md, "Lower bound". Latency is not counted, so the bound is never too high.
 */
#ifndef XM_RESHARDING_BOUND_H
#define XM_RESHARDING_BOUND_H

#include "resharding/network.h"
#include "resharding/unit_task.h"

typedef struct xm_bound {
    int64_t ns;             /**< the bound: the larger of the two below */
    int64_t receive_ns;     /**< of the busiest destination host */
    int64_t send_ns;        /**< of the tightest set of source hosts */
    uint64_t receive_bytes; /**< bytes the busiest destination host must receive */
    int receive_host;       /**< that host, or −1 when nothing must cross */
} xm_bound_t;

/** Computes the bound for the given tasks (of @p src and @p dst) with elements of @p element_size
 * bytes. */
XM_API xm_status_t xm_bound_compute(const xm_layout_t *src, const xm_layout_t *dst,
                                    const xm_unit_task_t *tasks, int64_t count,
                                    int64_t element_size, const xm_network_t *network,
                                    xm_bound_t *bound);

#endif
