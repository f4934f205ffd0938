/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Times a method: the slowest rank's time between barriers, and the processor time of all
 * ranks. Every step starts the watchdog again, as MPI itself would wait for a dead rank
 * for ever.
 */
#include "bench/peers/timing.h"

#include <mpi.h>
#include <stdlib.h>

#include "bench/run.h"
#include "bench/peers/together.h"
#include "comm/base.h"

/* What one run took, and how it ended. */
typedef struct {
    double seconds, cpu_s;
    uint64_t wrong;
} run_t;

/* The clock stops before the check and the reductions. */
static run_t run_once(const rb_peer_slot_t *slot, const rb_peer_method_t *method, void *state,
                      uint64_t salt, bool validate)
{
    run_t run = {0};

    rb_peer_watchdog_start();
    rb_peer_slot_fill(slot, salt);
    MPI_Barrier(MPI_COMM_WORLD);
    rb_peer_watchdog_start();
    run.cpu_s = xm_clock_cpu_seconds();
    run.seconds = MPI_Wtime();
    method->run(state);
    run.seconds = MPI_Wtime() - run.seconds;
    run.cpu_s = xm_clock_cpu_seconds() - run.cpu_s;
    rb_peer_watchdog_start();
    if (validate) {
        run.wrong = rb_peer_slot_check(slot, salt);
    }
    MPI_Allreduce(MPI_IN_PLACE, &run.seconds, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    MPI_Allreduce(MPI_IN_PLACE, &run.cpu_s, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    MPI_Allreduce(MPI_IN_PLACE, &run.wrong, 1, MPI_UINT64_T, MPI_SUM, MPI_COMM_WORLD);
    return run;
}

/* Warm-up runs are checked like the others, but not timed. */
static void run_all(const rb_peer_slot_t *slot, const rb_peer_method_t *method, void *state,
                    const rb_options_t *options, int index, rb_peer_result_t *result)
{
    for (int i = 0; i < options->warmup + options->iterations; ++i) {
        run_t run = run_once(slot, method, state, rb_pattern_salt(options->seed, index, i),
                             options->validate);

        result->wrong += run.wrong;
        if (i >= options->warmup) {
            result->seconds[result->runs++] = run.seconds;
            result->cpu_s += run.cpu_s / options->iterations;
        }
    }
}

/* destroy() accepts NULL, so a failed creation needs no other path; agreement comes
 * before anything collective. */
xm_status_t rb_peer_time(const rb_peer_slot_t *slot, const rb_peer_method_t *method,
                         const rb_options_t *options, int index, rb_peer_result_t *result)
{
    rb_peer_result_t made = {.validated = options->validate};
    void *state = NULL;
    xm_status_t status;

    made.seconds = malloc((size_t)options->iterations * sizeof(*made.seconds));
    status = made.seconds != NULL ? method->create(slot, &state)
                                  : XM_NO_MEMORY("%d times", options->iterations);
    status = rb_peer_agree(status);
    if (status < 0) {
        method->destroy(state);
        rb_peer_result_clear(&made);
        return status;
    }
    rb_peer_watchdog_start();
    if (method->connect != NULL) {
        method->connect(state);
    }
    run_all(slot, method, state, options, index, &made);
    method->destroy(state);
    *result = made;
    return XM_OK;
}

void rb_peer_result_clear(rb_peer_result_t *result)
{
    free(result->seconds);
    *result = (rb_peer_result_t){0};
}
