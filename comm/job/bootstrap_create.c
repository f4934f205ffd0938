/* SPDX-License-Identifier: Apache-2.0 */
/* Chooses the kind of bootstrap: over PMIx where the launcher offers that, otherwise over TCP.
 * PMIx comes first because it needs no address, but a build or host without the library must
 * still start, so the derived address is the fallback where there is one. A socket that was
 * inherited from xm_launch() decides for TCP at once. */
#include "comm/job/bootstrap.h"

#include "comm/job/bootstrap_pmix.h"
#include "comm/base.h"

xm_status_t xm_bootstrap_create(const xm_job_env_t *env, int listen_fd, double timeout,
                                xm_bootstrap_t **bootstrap)
{
    xm_status_t status;

    if (!env->pmix || listen_fd >= 0) {
        return xm_bootstrap_create_tcp(env, listen_fd, timeout, bootstrap);
    }
    status = xm_bootstrap_create_pmix(env, timeout, bootstrap);
    /* Only a missing PMIx is replaced; one that is there and fails is a fault to report. */
    if (status != XM_ERR_UNSUPPORTED || env->master_addr[0] == '\0' || env->master_port < 0) {
        return status;
    }
    xm_log_info("%s; the ranks meet at %s port %d instead", xm_last_error(), env->master_addr,
                env->master_port);
    return xm_bootstrap_create_tcp(env, -1, timeout, bootstrap);
}
