/* SPDX-License-Identifier: Apache-2.0 */
/* The timer of rails. Rails are judged by time, but a rank that waits sleeps
 * until a descriptor is ready, and a lost rail makes none ready. So a timer runs while messages
 * are unfinished or a link is in doubt, eight ticks within the timeout, and not otherwise: an
 * idle rank is never woken. */
#include <errno.h>
#include <string.h>
#include <sys/timerfd.h>

#include "comm/transport/rails/rails.h"

xm_status_t xm_rails_timer_open(xm_rails_transport_t *self)
{
    self->timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    return self->timer_fd >= 0 ? XM_OK
                               : xm_error_set(XM_ERR_IO, "timerfd_create: %s", strerror(errno));
}

/* Starts the timer if it does not run. The time of the next check is set as well, so that the
 * idle time before does not look like a check that came late. */
void xm_rails_failover_arm(xm_rails_transport_t *self)
{
    int64_t tick = self->rail_timeout / XM_RAILS_LOOKS;
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
void xm_rails_failover_unwind(xm_rails_transport_t *self)
{
    struct itimerspec never = {.it_value = {.tv_sec = 0}};

    self->armed = false;
    if (self->timer_fd >= 0) {
        (void)timerfd_settime(self->timer_fd, 0, &never, NULL);
    }
}
