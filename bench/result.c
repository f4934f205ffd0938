#include "bench/result.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static int compare(const void *a, const void *b)
{
    double left = *(const double *)a, right = *(const double *)b;

    return (left > right) - (left < right);
}

rb_times_t rb_result_times(const rb_result_t *result)
{
    rb_times_t times = {result->seconds[0], result->seconds[0], result->seconds[0]};
    size_t count = (size_t)result->runs;
    double *sorted = malloc(count * sizeof(double));

    if (sorted == NULL) {
        return times;
    }
    memcpy(sorted, result->seconds, count * sizeof(double));
    qsort(sorted, count, sizeof(double), compare);
    times = (rb_times_t){sorted[0], (sorted[(count - 1) / 2] + sorted[count / 2]) / 2,
                         sorted[count - 1]};
    free(sorted);
    return times;
}

double rb_result_gap(const rb_result_t *result)
{
    double bound = (double)xm_plan_bound_ns(result->prepared->plan);

    return bound > 0 ? (double)xm_plan_makespan_ns(result->prepared->plan) / bound - 1 : NAN;
}

void rb_result_clear(rb_result_t *result)
{
    free(result->seconds);
    free(result->records);
    *result = (rb_result_t){0};
}
