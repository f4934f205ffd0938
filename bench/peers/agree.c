#include "bench/peers/agree.h"

#include <limits.h>
#include <mpi.h>
#include <stdio.h>

typedef struct {
    int status;
    char sentence[1024];
} verdict_t;

xm_status_t rb_peer_agree(xm_status_t mine)
{
    verdict_t verdict = {.status = (int)mine};
    int rank, first = INT_MAX;

    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    (void)snprintf(verdict.sentence, sizeof(verdict.sentence), "%s", xm_last_error());
    if (mine < 0) {
        first = rank;
    }
    MPI_Allreduce(MPI_IN_PLACE, &first, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
    if (first == INT_MAX) {
        return XM_OK;
    }
    MPI_Bcast(&verdict, (int)sizeof(verdict), MPI_BYTE, first, MPI_COMM_WORLD);
    return xm_error_set((xm_status_t)verdict.status, "%s", verdict.sentence);
}
