/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file show_topology.h
 * reshard-bench --show-topology: what a host is made of, and which NICs its ranks would use.
 */
#pragma once

#include <stdio.h>

#include "bench/cases.h"

/**
 * Prints the tables of docs/topology.md, one rank for each GPU, of the machine that XM_TOPOLOGY
 * describes, else of this one. --uneven and --nic-gbps count as measured rates of its NICs.
 */
xm_status_t rb_show_topology(const rb_options_t *options, FILE *stream);
