/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The one clock of the product. All deadlines, measured times and time stamps of one process are
 * readings of CLOCK_MONOTONIC, which is never set back; processor times are for measurements only.
 *
 * A deadline is a point on this clock, in the unit of the function that takes it: seconds as a
 * double, where HUGE_VAL stands for "never", or nanoseconds as an int64_t. Readings of different
 * hosts are not comparable. The wall clock is for dates in logs and reports alone.
 *
 * Internal, not installed. Threads: any.
 */
#pragma once

#include <stdint.h>
#include <time.h>

/* Nanoseconds of any POSIX clock. The clocks used here exist on every Linux, so it cannot fail. */
static inline int64_t xm_clock_read_ns(clockid_t clock)
{
    struct timespec now;

    (void)clock_gettime(clock, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* Monotonic nanoseconds. */
static inline int64_t xm_clock_ns(void)
{
    return xm_clock_read_ns(CLOCK_MONOTONIC);
}

/* Monotonic seconds. A double counts single nanoseconds for 104 days after the machine's start, and
 * steps of less than a microsecond for centuries. */
static inline double xm_clock_seconds(void)
{
    return 1e-9 * (double)xm_clock_ns();
}

/* Processor time that all threads of this process have used, in nanoseconds. */
static inline int64_t xm_clock_cpu_ns(void)
{
    return xm_clock_read_ns(CLOCK_PROCESS_CPUTIME_ID);
}

/* The same in seconds. */
static inline double xm_clock_cpu_seconds(void)
{
    return 1e-9 * (double)xm_clock_cpu_ns();
}
