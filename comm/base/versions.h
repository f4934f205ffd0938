/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file versions.h
 * Versions of crossmesh and of what it stands on, as they are in this process.
 *
 * Threads: read once, then shared freely.
 */
#pragma once

#include <stddef.h>

#include "comm/base/status.h"

enum { XM_VERSION_SIZE = 32 };

/** Texts; "" where there is no such thing here. */
typedef struct xm_versions {
    char crossmesh[XM_VERSION_SIZE];
    char ucx[XM_VERSION_SIZE];
    char verbs[XM_VERSION_SIZE]; /**< libibverbs, from the name of the library that was loaded */
    char hwloc[XM_VERSION_SIZE];
    char nvidia[XM_VERSION_SIZE]; /**< NVIDIA's kernel driver */
    char kernel[XM_VERSION_SIZE]; /**< Linux */
} xm_versions_t;

/** Reads them; those of drivers below @p root ("" is this machine). */
void xm_versions_read(const char *root, xm_versions_t *versions);

/** "UCX 1.13.1, libibverbs 1.14.44.0, hwloc 2.9.0, Linux 6.1.0-18-amd64": what crossmesh stands
 * on. Returns @p buffer. */
char *xm_versions_format(const xm_versions_t *versions, char *buffer, size_t size);
