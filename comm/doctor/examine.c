/* SPDX-License-Identifier: Apache-2.0 */
/* The examination of a rank: all checks, one after the other. The network comes first, because
 * later checks depend on whether there is RDMA. A fault does not end the examination: all faults of
 * a machine are reported at once, and only missing memory makes it fail. */
#include "comm/doctor/doctor_private.h"
#include "comm/base.h"

xm_status_t xm_doctor_examine(const xm_doctor_params_t *params, xm_findings_t **findings)
{
    xm_doctor_t doctor = {.params = params};

    if (params->facts == NULL || params->local_ranks < 1 || params->ranks < params->local_ranks) {
        return XM_INVALID("xm_doctor_examine: %d of %d ranks, %s facts", params->local_ranks,
                          params->ranks, params->facts != NULL ? "with" : "without");
    }
    doctor.facts = params->facts;
    XM_TRY(xm_findings_create(&doctor.findings));
    xm_doctor_check_network(&doctor); /* first: it finds out whether there is RDMA */
    xm_doctor_check_devices(&doctor);
    xm_doctor_check_process(&doctor);
    xm_doctor_check_clocks(&doctor);
    if (doctor.no_memory) {
        xm_findings_destroy(doctor.findings);
        return XM_NO_MEMORY("findings");
    }
    *findings = doctor.findings;
    return XM_OK;
}
