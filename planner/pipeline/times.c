/* SPDX-License-Identifier: Apache-2.0 */
/* What entries of a schedule take: the times of their passes, which jitter may change. */
#include "planner/pipeline/times.h"

#include <inttypes.h>

#include "comm/base.h"

int64_t ap_pipeline_jittered(const ap_pipeline_times_t *times, const ap_schedule_op_t *op,
                             int64_t time)
{
    uint64_t x = times->seed;
    const uint64_t key[] = {(uint64_t)op->pass, (uint64_t)op->stage, (uint64_t)op->micro_batch,
                            (uint64_t)op->slice};

    if (times->jitter <= 0.0) {
        return time;
    }
    /* A draw of its own for each entry, so that no order changes another's. */
    for (size_t i = 0; i < sizeof(key) / sizeof(key[0]); ++i) {
        x = xm_random_of(x + key[i]);
    }
    return (int64_t)((double)time *
                     (1.0 + times->jitter * (2.0 * (double)(x >> 11) * 0x1p-53 - 1.0)));
}

int64_t ap_pipeline_pass_time(const ap_schedule_t *schedule, const ap_pipeline_times_t *times,
                              const ap_schedule_op_t *op)
{
    int part = op->stage * schedule->slices + op->slice;
    int64_t time;

    switch (op->pass) {
    case AP_PASS_FORWARD:
        time = times->forward[part];
        break;
    case AP_PASS_BACKWARD:
        time = times->backward[part] + (schedule->split ? 0 : times->weight[part]);
        break;
    case AP_PASS_WEIGHT:
        time = times->weight[part];
        break;
    default:
        time = times->update != NULL ? times->update[op->stage] : 0;
    }
    return ap_pipeline_jittered(times, op, time);
}

static xm_status_t check_times(const char *what, const int64_t *times, int count, double *total)
{
    for (int i = 0; times != NULL && i < count; ++i) {
        if (times[i] < 0) {
            return XM_INVALID("%s time %d is %" PRId64 " ns", what, i, times[i]);
        }
        *total += (double)times[i];
    }
    return XM_OK;
}

xm_status_t ap_pipeline_times_check(const ap_schedule_t *schedule, const ap_pipeline_times_t *times)
{
    int parts = schedule->stages * schedule->slices;
    const struct {
        const char *what;
        const int64_t *times;
        int count;
    } rows[] = {{"forward", times->forward, parts},
                {"backward", times->backward, parts},
                {"weight", times->weight, parts},
                {"activation", times->activation, parts - schedule->slices},
                {"gradient", times->gradient, parts - schedule->slices},
                {"update", times->update, schedule->stages}};
    double total = 0.0;

    if (!(times->slowdown >= 0.0 && times->slowdown <= 100.0)) {
        return XM_INVALID("passes cannot be slowed down by %g of their time", times->slowdown);
    }
    if (!(times->jitter >= 0.0 && times->jitter <= 1.0)) {
        return XM_INVALID("times cannot vary by %g of themselves", times->jitter);
    }
    if (times->send < 0) {
        return XM_INVALID("a send time is %" PRId64 " ns", times->send);
    }
    total += 2.0 * (double)(schedule->stages + times->skip_count) * schedule->slices *
             (double)times->send;
    for (int i = 0; i < times->skip_count; ++i) {
        const ap_pipeline_skip_t *skip = &times->skips[i];

        if (schedule->stages != schedule->devices || schedule->pipelines > 1 ||
            schedule->slices > 1 || skip->from < 0 || skip->from + 1 >= skip->to ||
            skip->to >= schedule->stages || skip->activation < 0 || skip->gradient < 0) {
            return XM_INVALID("%s: what passes from stage %d to stage %d over others needs one "
                              "stage on a device and whole micro-batches",
                              ap_schedule_name(schedule->kind), skip->from, skip->to);
        }
        total += (double)skip->activation + (double)skip->gradient;
    }
    if (times->forward == NULL || times->backward == NULL || times->weight == NULL) {
        return XM_INVALID("times of forward, backward and weight passes are needed");
    }
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); ++i) {
        XM_TRY(check_times(rows[i].what, rows[i].times, rows[i].count, &total));
    }
    /* Twice the total is more than any clock can reach, even if nothing overlaps; so no sum of
     * times overflows. */
    total *= 1.0 + times->slowdown;
    if (total * schedule->micro_batches * schedule->batches * 2.0 > (double)INT64_MAX / 4) {
        return XM_INVALID("the passes of %d micro-batches take %g ns: too long",
                          schedule->micro_batches * schedule->batches, total);
    }
    return XM_OK;
}

/* The channel from a device to another. Stages follow each other round a ring of devices, so two
 * channels leave a device: to the next one and to the one before. Two devices are each other's
 * next. */
int ap_pipeline_channel(int devices, int from, int to)
{
    return 2 * from + (to == (from + 1) % devices ? 1 : 0);
}

int ap_pipeline_skip_channel(int devices, int skip, bool gradient)
{
    return 2 * (devices + skip) + (gradient ? 1 : 0);
}
