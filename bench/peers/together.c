/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What keeps MPI's ranks together. After each step that can fail on one rank alone, all ranks get
 * the first failing rank's status and sentence; the lowest rank counts, so the outcome does not
 * depend on timing. A timer and a signal are the deadline that MPI's calls have not: the handler
 * ends the process, upon which mpirun ends the job.
 */
#include "bench/peers/together.h"

#include <limits.h>
#include <math.h>
#include <mpi.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/time.h>
#include <unistd.h>

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

/* Runs in a signal handler, where nothing but a write is allowed. */
static void bark(int number)
{
    static const char sentence[] =
        "reshard-peer-mpi: a step did not end within XM_TIMEOUT; a rank hangs or has died\n";

    (void)number;
    (void)!write(STDERR_FILENO, sentence, sizeof(sentence) - 1);
    _exit(EXIT_FAILURE);
}

static void set_timer(double seconds)
{
    double whole = floor(seconds);
    struct itimerval timer = {
        .it_value = {.tv_sec = (time_t)whole, .tv_usec = (suseconds_t)((seconds - whole) * 1e6)}};

    (void)setitimer(ITIMER_REAL, &timer, NULL);
}

/* Setting the timer again replaces what was left of it. */
void rb_peer_watchdog_start(void)
{
    struct sigaction action = {.sa_handler = bark};

    (void)sigaction(SIGALRM, &action, NULL);
    set_timer(xm_config_seconds(XM_CONFIG_TIMEOUT));
}

void rb_peer_watchdog_stop(void)
{
    set_timer(0);
}
