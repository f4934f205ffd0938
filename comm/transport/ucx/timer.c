/* The timer of the multi-rail channel. Rails are judged by time, but a rank that waits sleeps
 * until a descriptor is ready, and a lost rail makes none ready. So a timer runs while messages
 * are unfinished or a link is in doubt, eight ticks within the timeout, and not otherwise: an
 * idle rank is never woken. */
#include <sys/timerfd.h>
#include <unistd.h>

#include "comm/transport/ucx/multirail.h"

/* Starts the timer if it does not run. The time of the next check is set as well, so that the
 * idle time before does not look like a check that came late. */
void xm_ucx_failover_arm(xm_ucx_transport_t *self)
{
    int64_t tick = self->rail_timeout / XM_UCX_MULTIRAIL_LOOKS;
    struct timespec interval = {.tv_sec = tick / 1000000000, .tv_nsec = tick % 1000000000};
    struct itimerspec period = {.it_value = interval, .it_interval = interval};

    if (!self->armed) {
        self->armed = true;
        self->clock = xm_transport_now(&self->base);
        self->next_look = self->clock + tick;
        if (self->timer_fd >= 0) {
            (void)timerfd_settime(self->timer_fd, 0, &period, NULL);
        }
    }
}

/* Stops the timer: nothing is left to look after. */
void xm_ucx_failover_unwind(xm_ucx_transport_t *self)
{
    struct itimerspec never = {.it_value = {.tv_sec = 0}};

    self->armed = false;
    if (self->timer_fd >= 0) {
        (void)timerfd_settime(self->timer_fd, 0, &never, NULL);
    }
}

/* Asked before sleeping. Reading the timer clears it, and the caller makes progress if it had
 * fired. A changed link starts the timer, because whether it stays down has to be checked later. */
bool xm_ucx_failover_rings(xm_ucx_transport_t *self)
{
    uint64_t times;
    bool rings = self->timer_fd >= 0 && read(self->timer_fd, &times, sizeof(times)) > 0;

    if (xm_nic_watch_read(&self->watch, &self->nics)) {
        xm_ucx_failover_arm(self);
        rings = true;
    }
    return rings;
}
