/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file comm/worker/nics.h
 * The NICs that a rank of a job uses when nobody names them: the ranks of all hosts agree on a kind
 * of network and on what reaches what, and each takes its own NICs (nic_choice.h). Internal.
 *
 * The ranks tell each other the NUMA nodes they run on, and for each kind of network what their
 * host's NICs carry and which networks they are in: IP subnets of interfaces, subnet prefixes of
 * InfiniBand. Used are
 *  - of the kinds that all hosts have in a common network, the one that carries most on the host
 *    where it carries least (IP only when that is four times as much);
 *  - where all is one RDMA network, the rank's own NICs;
 *  - otherwise one NIC in each network that all hosts are in, in the same order everywhere: over IP
 *    the kernel chooses the NIC by the destination's subnet.
 * UCX chooses, as it always did, when the job is on one machine, when no host has more than one
 * suitable NIC, when nothing is common, when a rank has XM_NICS (without ^) or UCX_NET_DEVICES in
 * its environment, and when there are more ranks than messages can be split for. Where a rank's
 * XM_NICS=^… leaves some out it must not: one NIC is then enough for a choice, and the others of
 * these cases are failures.
 */
#pragma once

#include "comm/job.h"
#include "comm/topology.h"
#include "comm/worker/slots.h"

enum { XM_WORKER_NICS_SIZE = XM_NICS_MAX * (XM_NICS_NAME_SIZE + 24) };

/**
 * Writes this rank's NICs as XM_NICS would name them; empty: UCX chooses. Rank 0 logs the choice of
 * its host at info level. Collective.
 */
xm_status_t xm_worker_nics_choose(const xm_worker_slots_t *slots, xm_bootstrap_t *bootstrap,
                                  double timeout, char text[XM_WORKER_NICS_SIZE]);
