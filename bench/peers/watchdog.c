/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A deadline by timer and signal, since MPI's calls have none. The handler ends the
 * process, upon which mpirun ends the job.
 */
#include "bench/peers/watchdog.h"

#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/time.h>
#include <unistd.h>

#include "comm/base.h"

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
