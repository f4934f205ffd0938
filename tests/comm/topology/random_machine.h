/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file random_machine.h
 * Random hosts as hwloc XML, for properties that must hold on any: packages, NUMA nodes, switches
 * in switches, GPUs, and NICs of all kinds, speeds and states.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

typedef struct random_machine_params {
    uint64_t seed;
    bool equal;   /* all NICs alike, and fit to be used */
    bool reverse; /* the devices of each PCI bus in the opposite order */
} random_machine_params_t;

/* The same text for the same parameters. To be freed. */
char *random_machine_xml(const random_machine_params_t *params);
