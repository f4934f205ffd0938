/* The doctor's look at clocks: the source, because reading the time happens at every wait; the
 * resolution, because deadlines and measurements need it; the synchronisation, because logs of
 * several hosts are laid side by side. */
#include <string.h>

#include "comm/doctor/doctor_private.h"

/* Checks the clock source: reading the clock happens at every wait, and one that takes a system
 * call and a bus cycle is felt. */
static void check_source(xm_doctor_t *doctor)
{
    static const char *const slow[] = {"hpet", "acpi_pm", "pit", "jiffies", "refined-jiffies"};
    static const char subject[] = "clock source";
    char source[64], available[128] = "";

    if (!xm_doctor_read(doctor, source, sizeof(source),
                        "/sys/devices/system/clocksource/clocksource0/current_clocksource")) {
        xm_doctor_note(doctor, XM_SEVERITY_ABSENT, subject, "", "the kernel does not tell");
        return;
    }
    (void)xm_doctor_read(doctor, available, sizeof(available),
                         "/sys/devices/system/clocksource/clocksource0/available_clocksource");
    for (size_t i = 0; i < sizeof(slow) / sizeof(slow[0]); ++i) {
        if (strcmp(source, slow[i]) == 0) {
            xm_doctor_note(doctor, XM_SEVERITY_WARN, subject,
                           "Use the processor's own counter: see in the kernel's log why it was "
                           "found unstable, or start the kernel with tsc=reliable.",
                           "%s, of %s: reading the time takes a microsecond or more", source,
                           available);
            return;
        }
    }
    xm_doctor_note(doctor, XM_SEVERITY_OK, subject, "", "%s", source);
}

/* A clock that counts in ticks of the kernel makes every timeout and measurement wrong. */
static void check_resolution(xm_doctor_t *doctor)
{
    static const char subject[] = "clock resolution";
    double resolution = doctor->facts->clock_resolution;

    if (resolution <= 0) {
        xm_doctor_note(doctor, XM_SEVERITY_ABSENT, subject, "", "the kernel does not tell");
        return;
    }
    xm_doctor_note(doctor, resolution > 1e-6 ? XM_SEVERITY_FAIL : XM_SEVERITY_OK, subject,
                   "Use a kernel with high-resolution timers (CONFIG_HIGH_RES_TIMERS, no "
                   "highres=off).",
                   "CLOCK_MONOTONIC counts in steps of %g ns", resolution * 1e9);
}

/* Only logs depend on a clock that is kept in step: nothing in a job looks at the time of day. */
static void check_synchronisation(xm_doctor_t *doctor)
{
    static const char subject[] = "clock synchronisation";
    /* The bound is rounded up, for the estimate grows by the second, and ranks that agree share
     * a row. */
    double bound = 1e-3;

    if (!doctor->facts->clock_known) {
        xm_doctor_note(doctor, XM_SEVERITY_ABSENT, subject, "", "the kernel does not tell");
    } else if (!doctor->facts->clock_synchronised) {
        xm_doctor_note(doctor, XM_SEVERITY_WARN, subject,
                       "Run chrony, ntpd or ptp4l, so that logs and traces of several hosts can be "
                       "laid side by side.",
                       "nobody keeps the clock in step");
    } else {
        while (bound < doctor->facts->clock_error) {
            bound *= 10;
        }
        xm_doctor_note(doctor, XM_SEVERITY_OK, subject, "", "kept in step, to within %g ms",
                       bound * 1e3);
    }
}

void xm_doctor_check_clocks(xm_doctor_t *doctor)
{
    check_source(doctor);
    check_resolution(doctor);
    check_synchronisation(doctor);
}
