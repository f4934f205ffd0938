/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file real_nccl.h
 * NCCL's own functions that open a plugin. They are not exported, so they are looked up in the
 * symbol table of a libnccl.so.2 that was not stripped, of the version whose tables are
 * known: 2.28. None of them needs a GPU.
 */
#pragma once

#include <stdbool.h>

/* The version of the tables that this NCCL works with, and gives for plugins of any version. */
enum { REAL_NCCL_TABLE = 11, REAL_NCCL_VERSION = 228 };

/* True when the library is such a one; otherwise says why not, on standard error. */
bool real_nccl_is_known(const char *path);

/* The library that NCCL finds for an entry of NCCL_NET_PLUGIN; NULL: none. */
void *real_nccl_open(const char *path, const char *entry);

/* What getNcclNet_vN() gives for an opened plugin; NULL: nothing. */
const void *real_nccl_table(const char *path, int version, void *plugin);

/* Likewise getNcclTuner_v5(). */
const void *real_nccl_tuner(const char *path, void *plugin);
