/* SPDX-License-Identifier: Apache-2.0 */
/* Which NICs each rank of a host uses. The nearest ones are not always best: ranks must not all
 * take the same, a far NIC may carry far more than a near one, and several NICs may share a PCI
 * link. So each rank gets a list of near NICs, ranks are placed one after the other on the
 * emptiest of theirs, then moved while that helps, and NICs that are left over are given away.
 * The result depends on the topology alone, so all ranks of a host compute the same without
 * talking. */
#include "comm/topology/nic_choice.h"

#include <stdlib.h>
#include <string.h>

#include "comm/topology/nic_choice_private.h"
#include "comm/base.h"

/* KEEP: a nearer NIC is a candidate unless another is worth more than so many times as much.
 * ACROSS: what crosses the link between packages is worth one in so many. */
enum { KEEP = 2, ACROSS = 2 };

/* Sums of rates in another order differ in the last bits, and must not decide. */
static const double rounding = 1e-9;

static bool holds_slot(const xm_nic_choice_t *choice, int uplink, const xm_nic_slot_t *slot)
{
    return slot->gpu >= 0 &&
           xm_topology_uplink_holds(choice->topology, uplink, XM_DEVICE_GPU, slot->gpu);
}

/* Computes what the PCI links between a NIC and a device leave of the NIC's rate. A link above
 * the NIC is shared with the suitable NICs below it. A link above the device limits each NIC
 * that is not below it by itself: which NICs the device uses at the same time is not known yet.
 * Where that limits all NICs alike it is passed over: an idle GPU's link is slower than it will
 * be. */
static void limit_by_uplinks(const xm_nic_choice_t *choice, const xm_nic_slot_t *slot,
                             xm_nic_way_t *way)
{
    double assumed = xm_nic_choice_assumed(choice, way->nic), rate = assumed;

    for (int uplink = 0; uplink < xm_topology_uplink_count(choice->topology); ++uplink) {
        bool below = xm_topology_uplink_holds(choice->topology, uplink, XM_DEVICE_NIC, way->nic);
        double share = xm_topology_uplink(choice->topology, uplink)->bandwidth;

        if (below == holds_slot(choice, uplink, slot) || choice->below[uplink] <= 0) {
            continue;
        }
        share *= below ? assumed / choice->below[uplink] : 1;
        if (share < rate * (1 - rounding)) {
            rate = share;
            way->limit = XM_NIC_LIMIT_UPLINK;
            way->uplink = uplink;
        }
    }
    way->bandwidth = way->limit == XM_NIC_LIMIT_UPLINK ? rate : way->bandwidth;
}

/* Describes the way between a NIC and a rank's place: what it crosses, how fast it is and what
 * limits it. Memory of a node serves as the place where a rank has no GPU. */
static xm_nic_way_t way_to(const xm_nic_choice_t *choice, const xm_nic_slot_t *slot, int nic,
                           int *depth)
{
    const xm_topology_device_t *device = xm_topology_device(choice->topology, XM_DEVICE_NIC, nic);
    double rate = choice->nics[nic].rate;
    xm_nic_way_t way = {.nic = nic, .bandwidth = rate, .uplink = -1};

    *depth = 0;
    if (slot->gpu >= 0) {
        way.path = xm_topology_path_between(choice->topology, XM_DEVICE_NIC, nic, XM_DEVICE_GPU,
                                            slot->gpu, depth);
    } else {
        way.path = xm_topology_path_to_node(choice->topology, XM_DEVICE_NIC, nic, slot->node);
    }
    /* Bridges make a difference below one root only: a deeper place to meet is a nearer one. */
    *depth = way.path == XM_PATH_SWITCH ? *depth : 0;
    if (rate > 0 && (!choice->nics[nic].told || (rate <= device->pci_bandwidth &&
                                                 device->pci_bandwidth < device->link_bandwidth))) {
        way.limit = XM_NIC_LIMIT_SLOT;
    }
    if (choice->rates_known) {
        limit_by_uplinks(choice, slot, &way);
    }
    return way;
}

/* All NICs count alike if no rates are known. */
static double worth_of(const xm_nic_choice_t *choice, const xm_nic_way_t *way)
{
    double worth = way->bandwidth > 0 ? way->bandwidth : choice->fastest;

    return way->path == XM_PATH_MACHINE ? worth / ACROSS : worth;
}

/* Lists the near NICs of a place: first the best worth is found, then the nearest among those
 * worth at least half as much. */
int xm_nic_choice_near(const xm_nic_choice_t *choice, const xm_nic_slot_t *slot, xm_nic_way_t *ways)
{
    xm_topology_path_t nearest = XM_PATH_MACHINE;
    int deepest = 0, count = 0, depth;
    double best = 0;

    for (int nic = 0; nic < choice->nic_count; ++nic) {
        if (choice->nics[nic].suitable) {
            xm_nic_way_t way = way_to(choice, slot, nic, &depth);
            double worth = worth_of(choice, &way);

            best = worth > best ? worth : best;
        }
    }
    for (int nic = 0; nic < choice->nic_count; ++nic) {
        xm_nic_way_t way;

        if (!choice->nics[nic].suitable) {
            continue;
        }
        way = way_to(choice, slot, nic, &depth);
        if (worth_of(choice, &way) * KEEP < best * (1 - rounding) || way.path > nearest ||
            (way.path == nearest && depth < deepest)) {
            continue;
        }
        if (way.path < nearest || depth > deepest) {
            count = 0;
            nearest = way.path;
            deepest = depth;
        }
        ways[count++] = way;
    }
    return count;
}

/* How full a NIC would be with so many ranks more. */
static double fullness(const xm_nic_choice_t *choice, const xm_nic_way_t *way, int more)
{
    return (choice->nics[way->nic].load + more) / worth_of(choice, way);
}

static const xm_nic_way_t *emptiest(const xm_nic_choice_t *choice,
                                    const xm_nic_assignment_t *assigned)
{
    const xm_nic_way_t *best = NULL;

    for (int i = 0; i < assigned->near_count; ++i) {
        const xm_nic_way_t *way = &assigned->near[i];

        if (best == NULL || fullness(choice, way, 1) < fullness(choice, best, 1) * (1 - rounding)) {
            best = way;
        }
    }
    return best;
}

/* Places the ranks. Those with fewer near NICs come first: they have no choice, and the others
 * can avoid them. */
static void slot_all(xm_nic_choice_t *choice)
{
    for (int near = 1; near <= choice->nic_count; ++near) {
        for (int i = 0; i < choice->slot_count; ++i) {
            xm_nic_assignment_t *assigned = &choice->slots[i];

            if (assigned->near_count == near) {
                assigned->way[0] = *emptiest(choice, assigned);
                assigned->count = 1;
                ++choice->nics[assigned->way[0].nic].load;
            }
        }
    }
}

/* Moves ranks while that makes the fuller of two NICs emptier: the first round may have left
 * such a move where the near NICs of ranks overlap without one set holding the other. Ranks at
 * different places may not agree on what a NIC is worth, so the number of rounds is limited. */
static void even_out(xm_nic_choice_t *choice)
{
    bool moved = true;

    for (int round = 0; moved && round <= choice->slot_count; ++round) {
        moved = false;
        for (int i = 0; i < choice->slot_count; ++i) {
            xm_nic_assignment_t *assigned = &choice->slots[i];
            const xm_nic_way_t *better = assigned->count > 0 ? emptiest(choice, assigned) : NULL;

            if (better != NULL && better->nic != assigned->way[0].nic &&
                fullness(choice, better, 1) <
                    fullness(choice, &assigned->way[0], 0) * (1 - rounding)) {
                --choice->nics[assigned->way[0].nic].load;
                assigned->way[0] = *better;
                ++choice->nics[better->nic].load;
                moved = true;
            }
        }
    }
}

/* Gives each near NIC that no rank has to the rank with the fewest. */
static void add_rails(xm_nic_choice_t *choice)
{
    for (int nic = 0; nic < choice->nic_count; ++nic) {
        xm_nic_assignment_t *chosen = NULL;
        const xm_nic_way_t *way = NULL;

        if (!choice->nics[nic].suitable || choice->nics[nic].load > 0) {
            continue;
        }
        for (int i = 0; i < choice->slot_count; ++i) {
            xm_nic_assignment_t *assigned = &choice->slots[i];

            for (int near = 0; near < assigned->near_count; ++near) {
                if (assigned->near[near].nic == nic && assigned->count < XM_NIC_CHOICE_MAX &&
                    (chosen == NULL || assigned->count < chosen->count)) {
                    chosen = assigned;
                    way = &assigned->near[near];
                }
            }
        }
        if (chosen != NULL) {
            chosen->way[chosen->count++] = *way;
        }
    }
}

/* Sums what the suitable NICs below each uplink would send over it together. */
static void sum_uplinks(xm_nic_choice_t *choice)
{
    for (int uplink = 0; uplink < xm_topology_uplink_count(choice->topology); ++uplink) {
        for (int nic = 0; nic < choice->nic_count; ++nic) {
            if (choice->nics[nic].suitable &&
                xm_topology_uplink_holds(choice->topology, uplink, XM_DEVICE_NIC, nic)) {
                choice->below[uplink] += xm_nic_choice_assumed(choice, nic);
            }
        }
    }
}

/* A place must exist in this topology, which may be that of another machine than the caller
 * thinks. */
static xm_status_t check_slots(const xm_nic_choice_params_t *params)
{
    int gpus = xm_topology_device_count(params->topology, XM_DEVICE_GPU);

    for (int i = 0; i < params->slot_count; ++i) {
        const xm_nic_slot_t *slot = &params->slots[i];
        bool known = slot->node < 0;

        for (int n = 0; n < xm_topology_node_count(params->topology); ++n) {
            known = known || xm_topology_node(params->topology, n)->os_index == slot->node;
        }
        if (slot->gpu >= gpus) {
            return XM_INVALID("local rank %d: no GPU %d, the machine has %d", i, slot->gpu, gpus);
        }
        if (slot->gpu < 0 && !known) {
            return XM_INVALID("local rank %d: the machine has no NUMA node %d", i, slot->node);
        }
    }
    return XM_OK;
}

/* Makes the choice. One NIC more than there are is allocated everywhere, so that a machine
 * without any needs no special case. */
xm_status_t xm_nic_choice_create(const xm_nic_choice_params_t *params, xm_nic_choice_t **created)
{
    xm_nic_choice_t *choice;
    size_t nics, slots, uplinks;
    xm_status_t status;

    if (params->topology == NULL || params->slot_count < 0) {
        return XM_INVALID("NIC choice: %d local ranks, or no topology", params->slot_count);
    }
    XM_TRY(check_slots(params));
    nics = (size_t)xm_topology_device_count(params->topology, XM_DEVICE_NIC);
    slots = (size_t)params->slot_count;
    uplinks = (size_t)xm_topology_uplink_count(params->topology);
    choice = calloc(1, sizeof(*choice));
    if (choice != NULL) {
        choice->nics = calloc(nics + 1, sizeof(*choice->nics));
        choice->slots = calloc(slots + 1, sizeof(*choice->slots));
        choice->ways = calloc(nics * slots + 1, sizeof(*choice->ways));
        choice->below = calloc(uplinks + 1, sizeof(*choice->below));
    }
    if (choice == NULL || choice->nics == NULL || choice->slots == NULL || choice->ways == NULL ||
        choice->below == NULL) {
        xm_nic_choice_destroy(choice);
        return xm_error_set(XM_ERR_NO_MEMORY, "NIC choice: no memory for %zu NICs, %zu local ranks",
                            nics, slots);
    }
    choice->topology = params->topology;
    choice->nic_count = (int)nics;
    choice->slot_count = params->slot_count;
    status = xm_nic_choice_evaluate(choice, params);
    if (status < 0) {
        xm_nic_choice_destroy(choice);
        return status;
    }
    sum_uplinks(choice);
    for (size_t i = 0; i < slots; ++i) {
        choice->slots[i].slot = params->slots[i];
        choice->slots[i].near = choice->ways + i * nics;
        choice->slots[i].near_count =
            xm_nic_choice_near(choice, &params->slots[i], choice->slots[i].near);
    }
    slot_all(choice);
    even_out(choice);
    add_rails(choice);
    *created = choice;
    return XM_OK;
}

int xm_nic_choice_suitable(const xm_nic_choice_t *choice)
{
    return choice->suitable;
}

const xm_nic_suitability_t *xm_nic_choice_nic(const xm_nic_choice_t *choice, int nic)
{
    return &choice->nics[nic];
}

/* The sum of rates, or 0 as soon as one is unknown: a partial sum would be compared as if it
 * were whole. */
double xm_nic_choice_rate(const xm_nic_choice_t *choice, bool told)
{
    double sum = 0;

    for (int nic = 0; nic < choice->nic_count; ++nic) {
        const xm_nic_suitability_t *one = &choice->nics[nic];

        if (one->suitable && (one->rate <= 0 || (told && !one->told))) {
            return 0;
        }
        sum += one->suitable ? one->rate : 0;
    }
    return sum;
}

int xm_nic_choice_slot(const xm_nic_choice_t *choice, int slot, const xm_nic_way_t **ways)
{
    *ways = choice->slots[slot].way;
    return choice->slots[slot].count;
}

void xm_nic_choice_destroy(xm_nic_choice_t *choice)
{
    if (choice != NULL) {
        free(choice->below);
        free(choice->ways);
        free(choice->slots);
        free(choice->nics);
        free(choice);
    }
}
