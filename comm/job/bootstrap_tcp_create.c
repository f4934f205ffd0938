/* SPDX-License-Identifier: Apache-2.0 */
/* How a rank of a bootstrap comes to be: over PMIx where the launcher offers that, which needs no
 * address, otherwise over TCP, where the launcher's variables say where rank 0 is;
 * rank 0 listens there (or at a socket that xm_launch() made before, so that no port can be
 * taken in between) and the others connect. The secret is read, used and wiped here. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "comm/job/bootstrap_listen.h"
#include "comm/job/bootstrap_private.h"
#include "comm/job/bootstrap_tcp.h"
#include "comm/job/launcher.h"
#include "comm/base.h"

/* A job of one rank needs no address. */
static xm_status_t check_env(const xm_job_env_t *env)
{
    if (env->size < 1 || env->size > XM_BOOTSTRAP_MAX_RANKS || env->rank < 0 ||
        env->rank >= env->size) {
        return XM_INVALID("rank %d of %d ranks: RANK and WORLD_SIZE are not set by a launcher",
                          env->rank, env->size);
    }
    if (env->size > 1 && (env->master_addr[0] == '\0' || env->master_port < 0)) {
        return XM_INVALID("%d ranks need MASTER_ADDR and MASTER_PORT to find each other",
                          env->size);
    }
    return XM_OK;
}

/* The name is resolved once; the search then tries every address until the deadline. */
static xm_status_t connect_to_master(xm_bootstrap_tcp_t *self, const xm_job_env_t *env,
                                     double deadline, double timeout)
{
    char place[sizeof(env->master_addr) + 16];
    xm_addresses_t addresses;
    xm_status_t status =
        xm_resolve("MASTER_ADDR", env->master_addr, env->master_port, deadline, &addresses);

    XM_TRY(status);
    (void)snprintf(place, sizeof(place), "%s port %d", env->master_addr, env->master_port);
    return xm_bootstrap_rendezvous_connect(self, &addresses, place, deadline, timeout);
}

/* An inherited socket is preferred, since its port cannot have been taken by somebody else. */
static xm_status_t accept_at_master(xm_bootstrap_tcp_t *self, const xm_job_env_t *env,
                                    int listen_fd, double deadline, double timeout)
{
    xm_status_t status =
        listen_fd >= 0 ? XM_OK : xm_bootstrap_listen_master(env, deadline, &listen_fd);

    if (status == XM_OK && self->secret.length == 0) {
        xm_log_warn("this job is open: it has no secret, so whoever reaches %s port %d can join it "
                    "or end it; give all ranks one by XM_JOB_SECRET_FILE or XM_JOB_SECRET",
                    env->master_addr, env->master_port);
    }
    return status < 0 ? status : xm_bootstrap_rendezvous_accept(self, listen_fd, deadline, timeout);
}

/* Creates the bootstrap of one rank. The inherited socket is closed by every rank that does not
 * use it, since a second listener would take connections that nobody serves. */
xm_status_t xm_bootstrap_create_tcp(const xm_job_env_t *env, int listen_fd, double timeout,
                                    xm_bootstrap_t **bootstrap)
{
    double deadline = xm_clock_seconds() + timeout;
    xm_bootstrap_tcp_t *self;
    xm_job_secret_t secret;
    xm_status_t status = check_env(env);

    XM_THEN(status, xm_job_secret_read(&secret));
    if (status == XM_OK) {
        status = xm_bootstrap_tcp_create(env->rank, env->size, &secret, &self);
        explicit_bzero(&secret, sizeof(secret));
    }
    if (status < 0 || env->rank != 0 || env->size == 1) {
        if (listen_fd >= 0) {
            (void)close(listen_fd);
        }
    }
    XM_TRY(status);
    if (env->rank != 0) {
        status = connect_to_master(self, env, deadline, timeout);
    } else if (env->size > 1) {
        status = accept_at_master(self, env, listen_fd, deadline, timeout);
    }
    if (status < 0) {
        xm_bootstrap_tcp_destroy(self);
        return status;
    }
    xm_launch_report(env->rank, -1);
    *bootstrap = &self->base;
    return XM_OK;
}

/* A build or host without the library of PMIx must still start, so the derived address is the
 * fallback where there is one. A socket that was inherited from xm_launch() decides for TCP at
 * once. */
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

/* The ranks have proved who they are, so there is no second handshake and no secret. */
xm_status_t xm_bootstrap_adopt(int rank, int size, const xm_bootstrap_slot_t *slots,
                               const xm_bootstrap_guard_t *guard, xm_bootstrap_t **bootstrap)
{
    const xm_job_secret_t none = {0};
    xm_bootstrap_tcp_t *self = NULL;
    xm_status_t status = xm_bootstrap_tcp_create(rank, size, &none, &self);

    for (int other = 0; status == XM_OK && other < self->peer_count; ++other) {
        if (other != rank) {
            self->peers[other].host = strdup(slots[other].host);
            self->peers[other].pid = slots[other].pid;
        }
    }
    if (status == XM_OK && guard != NULL) {
        status = xm_bootstrap_set_guard(&self->base, guard);
    }
    if (status < 0) {
        if (self != NULL) {
            xm_bootstrap_destroy(&self->base);
        }
        return status;
    }
    *bootstrap = &self->base;
    return XM_OK;
}

/* The address at which others reach this rank, as its own end of the connections tells it. A
 * loopback address is replaced by any other one: ranks on other hosts could do nothing with it. */
xm_status_t xm_bootstrap_own_address(const xm_bootstrap_t *bootstrap,
                                     struct sockaddr_storage *address)
{
    const xm_bootstrap_tcp_t *self = (const xm_bootstrap_tcp_t *)bootstrap;
    bool found = false;

    for (int rank = 0; rank < self->peer_count; ++rank) {
        struct sockaddr_storage here = {0};
        socklen_t length = sizeof(here);

        if (self->peers[rank].link.fd >= 0 &&
            getsockname(self->peers[rank].link.fd, (struct sockaddr *)&here, &length) == 0 &&
            (!found || xm_address_is_loopback(address))) {
            *address = here;
            found = true;
        }
    }
    return found ? XM_OK
                 : XM_UNSUPPORTED("rank %d has no connection that tells its address",
                                  bootstrap->rank);
}
