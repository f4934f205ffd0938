/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Agreement among MPI ranks: after each step that can fail on one rank alone, all ranks
 * get the first failing rank's status and sentence. The lowest rank counts, so the
 * outcome does not depend on timing.
 */
#include "bench/peers/agree.h"

#include <limits.h>
#include <mpi.h>

xm_status_t rb_peer_agree(xm_status_t mine)
{
    xm_error_t verdict = {0};
    int rank, first = INT_MAX;

    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    xm_error_save(&verdict, mine);
    if (mine < 0) {
        first = rank;
    }
    MPI_Allreduce(MPI_IN_PLACE, &first, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
    if (first == INT_MAX) {
        return XM_OK;
    }
    MPI_Bcast(&verdict, (int)sizeof(verdict), MPI_BYTE, first, MPI_COMM_WORLD);
    return xm_error_restore(&verdict);
}
