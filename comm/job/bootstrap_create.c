/* Which kind of bootstrap a job gets: over PMIx where the launcher offers that, otherwise over TCP.
 */
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
    if (status != XM_ERR_UNSUPPORTED || env->master_addr[0] == '\0' || env->master_port < 0) {
        return status;
    }
    xm_log_info("%s; the ranks meet at %s port %d instead", xm_last_error(), env->master_addr,
                env->master_port);
    return xm_bootstrap_create_tcp(env, -1, timeout, bootstrap);
}
