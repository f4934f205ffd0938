/* SPDX-License-Identifier: Apache-2.0 */
/* How a rank of the TCP bootstrap comes to be. The launcher's variables say where rank 0 is;
 * rank 0 listens there (or at a socket that xm_launch() made before, so that no port can be
 * taken in between) and the others connect. The secret is read, used and wiped here. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "comm/job/bootstrap_listen.h"
#include "comm/job/bootstrap_tcp.h"
#include "comm/job/launcher.h"
#include "comm/base.h"

/* A job of one rank needs no address. */
static xm_status_t check_env(const xm_job_env_t *env)
{
    if (env->size < 1 || env->size > XM_BOOTSTRAP_MAX_RANKS || env->rank < 0 ||
        env->rank >= env->size) {
        return xm_error_set(XM_ERR_INVALID_ARGUMENT,
                            "rank %d of %d ranks: RANK and WORLD_SIZE are not set by a launcher",
                            env->rank, env->size);
    }
    if (env->size > 1 && (env->master_addr[0] == '\0' || env->master_port < 0)) {
        return xm_error_set(XM_ERR_INVALID_ARGUMENT,
                            "%d ranks need MASTER_ADDR and MASTER_PORT to find each other",
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

    if (status < 0) {
        return status;
    }
    (void)snprintf(place, sizeof(place), "%s port %d", env->master_addr, env->master_port);
    return xm_bootstrap_rendezvous_connect(self, &addresses, place, deadline, timeout);
}

/* An inherited socket is preferred, since its port cannot have been taken by somebody else. */
static xm_status_t accept_at_master(xm_bootstrap_tcp_t *self, const xm_job_env_t *env,
                                    int listen_fd, double deadline, double timeout)
{
    xm_status_t status =
        listen_fd >= 0 ? XM_OK : xm_bootstrap_listen_master(env, deadline, &listen_fd);

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

    if (status == XM_OK) {
        status = xm_job_secret_read(&secret);
    }
    if (status == XM_OK) {
        status = xm_bootstrap_tcp_create(env->rank, env->size, &secret, &self);
        explicit_bzero(&secret, sizeof(secret));
    }
    if (status < 0 || env->rank != 0 || env->size == 1) {
        if (listen_fd >= 0) {
            (void)close(listen_fd);
        }
    }
    if (status < 0) {
        return status;
    }
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
