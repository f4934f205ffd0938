#include "bench/peers/timing.h"

#include <mpi.h>
#include <stdlib.h>

#include "bench/pattern.h"
#include "bench/peers/agree.h"

static double run_once(const rb_peer_seat_t *seat, const rb_peer_method_t *method, void *state,
                       uint64_t salt, const rb_options_t *options, uint64_t *wrong)
{
    double seconds;
    uint64_t own = 0;

    rb_peer_seat_fill(seat, salt);
    MPI_Barrier(MPI_COMM_WORLD);
    seconds = MPI_Wtime();
    method->run(state);
    seconds = MPI_Wtime() - seconds;
    if (options->validate) {
        own = rb_peer_seat_check(seat, salt);
    }
    MPI_Allreduce(MPI_IN_PLACE, &seconds, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    MPI_Allreduce(MPI_IN_PLACE, &own, 1, MPI_UINT64_T, MPI_SUM, MPI_COMM_WORLD);
    *wrong += own;
    return seconds;
}

xm_status_t rb_peer_time(const rb_peer_seat_t *seat, const rb_peer_method_t *method,
                         const rb_options_t *options, int index, rb_result_t *result)
{
    rb_result_t made = {.validated = options->validate};
    void *state = NULL;
    xm_status_t status;

    made.seconds = malloc((size_t)options->iterations * sizeof(*made.seconds));
    status = made.seconds != NULL
                 ? method->create(seat, &state)
                 : xm_error_set(XM_ERR_NO_MEMORY, "no memory for %d times", options->iterations);
    status = rb_peer_agree(status);
    if (status < 0) {
        goto destroy;
    }
    if (method->connect != NULL) {
        method->connect(state);
    }
    for (int i = 0; i < options->warmup + options->iterations; ++i) {
        uint64_t salt = rb_pattern_salt(options->seed, index, i);
        double seconds = run_once(seat, method, state, salt, options, &made.wrong);

        if (i >= options->warmup) {
            made.seconds[made.runs++] = seconds;
        }
    }

destroy:
    method->destroy(state);
    if (status < 0) {
        rb_result_clear(&made);
        return status;
    }
    *result = made;
    return XM_OK;
}
