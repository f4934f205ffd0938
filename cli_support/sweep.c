/* SPDX-License-Identifier: Apache-2.0 */
/* The sizes of a sweep. A largest size that no step hits ends the sweep below it, as in
 * nccl-tests. */
#include "cli_support/sweep.h"

bool xm_sweep_given(const xm_sweep_t *sweep)
{
    return sweep->from > 0 || sweep->to > 0 || sweep->factor > 0;
}

xm_status_t xm_sweep_sizes(const xm_sweep_t *sweep, uint64_t *sizes, int *count)
{
    uint64_t factor = sweep->factor > 0 ? (uint64_t)sweep->factor : 2;

    if (sweep->from == 0 || sweep->to == 0) {
        return XM_INVALID("a sweep needs both --min-bytes (-b) and --max-bytes (-e)");
    }
    if (sweep->from > sweep->to) {
        return XM_INVALID("--min-bytes is larger than --max-bytes");
    }
    *count = 0;
    for (uint64_t size = sweep->from; size <= sweep->to; size *= factor) {
        sizes[(*count)++] = size;
        /* The next size may be beyond 64 bits. */
        if (size > sweep->to / factor) {
            break;
        }
    }
    return XM_OK;
}
