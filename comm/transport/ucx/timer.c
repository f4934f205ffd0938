/* Multirail between two ranks: the clock that makes sleepers look after rails from time to time. */
#include <sys/timerfd.h>
#include <unistd.h>

#include "comm/transport/ucx/multirail.h"

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

void xm_ucx_failover_unwind(xm_ucx_transport_t *self)
{
    struct itimerspec never = {.it_value = {.tv_sec = 0}};

    self->armed = false;
    if (self->timer_fd >= 0) {
        (void)timerfd_settime(self->timer_fd, 0, &never, NULL);
    }
}

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
