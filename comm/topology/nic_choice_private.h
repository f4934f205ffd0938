/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file nic_choice_private.h
 * A choice's state, shared by its making (nic_choice.c), what makes a NIC suitable
 * (nic_choice_suitability.c) and its table (nic_choice_print.c). Internal.
 */
#pragma once

#include "comm/topology/nic_choice.h"

typedef struct xm_nic_assignment {
    xm_nic_slot_t slot;
    xm_nic_way_t *near; /* part of `ways` of the choice */
    int near_count;
    int count;
    xm_nic_way_t way[XM_NIC_CHOICE_MAX];
} xm_nic_assignment_t;

struct xm_nic_choice {
    const xm_topology_t *topology;
    xm_nic_suitability_t *nics; /* by NIC of the topology */
    int nic_count, suitable;
    xm_fabric_t fabric;
    bool rates_known; /* of at least one suitable NIC */
    double fastest;   /* bytes/s of the fastest suitable NIC; 1 when nobody knows any */
    xm_nic_assignment_t *slots;
    int slot_count;
    xm_nic_way_t *ways;
    double *below; /* by uplink of the topology: bytes/s of the suitable NICs below it */
};

/** Fills in choice->nics and what follows from them. */
xm_status_t xm_nic_choice_evaluate(xm_nic_choice_t *choice, const xm_nic_choice_params_t *params);

/** Rate of a suitable NIC in comparisons: an unknown one counts as the fastest. */
static inline double xm_nic_choice_assumed(const xm_nic_choice_t *choice, int nic)
{
    return choice->nics[nic].rate > 0 ? choice->nics[nic].rate : choice->fastest;
}
