#include "bench/records.h"

#include <stdlib.h>

static bool takes_part(const xm_transfer_t *transfer, int rank)
{
    return transfer->sender == rank || transfer->receiver == rank;
}

xm_status_t rb_records_take(const xm_plan_t *plan, const xm_executor_t *executor, int rank,
                            int64_t start_ns, rb_record_t **records, size_t *count)
{
    int64_t transfers;
    const xm_transfer_t *list = xm_plan_transfers(plan, &transfers);
    size_t parts = 0;
    rb_record_t *taken;

    for (int64_t i = 0; i < transfers; ++i) {
        parts += takes_part(&list[i], rank);
    }
    taken = malloc((parts + 1) * sizeof(*taken));
    if (taken == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "no memory for %zu records", parts);
    }
    parts = 0;
    for (int64_t i = 0; i < transfers; ++i) {
        xm_span_t span;

        if (takes_part(&list[i], rank)) {
            xm_executor_span(executor, i, &span);
            taken[parts++] = (rb_record_t){.transfer = i,
                                           .rank = rank,
                                           .start_ns = span.start_ns - start_ns,
                                           .end_ns = span.end_ns - start_ns};
        }
    }
    *records = taken;
    *count = parts;
    return XM_OK;
}
