/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file memory_budget.h
 * What a plan may use of a device's memory. A runtime takes some of it that no plan counts: the
 * context of the device with its kernels, the buffers of the communication library, and what the
 * allocator cannot hand out in one piece. That is the *reserve*; docs/planner.md has its sources.
 *
 * All bytes. Threads: no state.
 */
#pragma once

#include <stddef.h>

#include "comm/base.h"

/** What is asked for. */
typedef struct ap_memory_budget {
    double limit;   /**< of a device, whatever it has; 0: what it has */
    double reserve; /**< bytes, below 1 a part; negative: by default, which is nothing of a limit */
    double cap;     /**< plans use no more than this, whatever the others leave them; 0: all */
} ap_memory_budget_t;

/** The terms of the default reserve of a device. */
typedef struct ap_memory_reserve {
    double context, communication, fragmentation;
} ap_memory_reserve_t;

ap_memory_reserve_t ap_memory_reserve_of(double device_bytes);

/** Refused: what is no number of bytes, and a reserve that leaves nothing of @p device_bytes. */
xm_status_t ap_memory_budget_check(const ap_memory_budget_t *budget, double device_bytes);

/** What is left free of a device of @p device_bytes, and what plans may use of it. */
double ap_memory_budget_reserve(const ap_memory_budget_t *budget, double device_bytes);
double ap_memory_budget_usable(const ap_memory_budget_t *budget, double device_bytes);

/** "14.44 GiB a device, 1.44 GiB of it in reserve (…): 13.00 GiB for the plan", into @p buffer of
 * AP_MEMORY_BUDGET_TEXT bytes, which is returned. The default's terms are told where it is that. */
enum { AP_MEMORY_BUDGET_TEXT = 256 };
char *ap_memory_budget_format(double usable, double reserve, char *buffer, size_t size);
