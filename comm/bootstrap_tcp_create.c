/* How a rank of the TCP bootstrap comes to be, and what it calls itself and others. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "comm/bootstrap_listen.h"
#include "comm/bootstrap_tcp.h"
#include "comm/clock.h"
#include "comm/config.h"

enum { LISTED_RANKS = 8 };

void xm_bootstrap_own_host(char *host, size_t size)
{
    const char *configured = xm_config_string(XM_CONFIG_HOST);

    if (configured[0] != '\0') {
        (void)snprintf(host, size, "%s", configured);
    } else if (gethostname(host, size) != 0) {
        (void)snprintf(host, size, "?");
    }
    host[size - 1] = '\0';
}

void xm_bootstrap_identify(const xm_bootstrap_tcp_t *self, xm_bootstrap_identity_t *identity)
{
    *identity = (xm_bootstrap_identity_t){
        .rank = self->base.rank, .size = self->base.size, .pid = (int)getpid()};
    (void)snprintf(identity->host, sizeof(identity->host), "%s", self->host);
}

void xm_bootstrap_prove(const xm_job_secret_t *secret, const char *role,
                        const uint8_t own[XM_JOB_NONCE_SIZE],
                        const uint8_t other[XM_JOB_NONCE_SIZE],
                        const xm_bootstrap_identity_t *identity, uint8_t proof[XM_JOB_PROOF_SIZE])
{
    uint8_t bytes[XM_BOOTSTRAP_IDENTITY_SIZE];

    xm_job_secret_prove(secret, role, own, other, bytes,
                        xm_bootstrap_identity_encode(identity, bytes), proof);
}

char *xm_bootstrap_peer_name(const xm_bootstrap_tcp_t *self, int rank, char *buffer, size_t size)
{
    const xm_bootstrap_peer_t *peer = rank < self->peer_count ? &self->peers[rank] : NULL;
    bool own = rank == self->base.rank;
    const char *host = own ? self->host : peer != NULL ? peer->host : NULL;

    (void)snprintf(buffer, size, "rank %d (host %s, pid %d)", rank, host != NULL ? host : "?",
                   own            ? (int)getpid()
                   : peer != NULL ? peer->pid
                                  : 0);
    return buffer;
}

int xm_bootstrap_list_ranks(const xm_bootstrap_tcp_t *self,
                            bool (*missing)(const xm_bootstrap_peer_t *peer), char *text,
                            size_t size)
{
    size_t used = 0;
    int count = 0;

    text[0] = '\0';
    for (int rank = 1; rank < self->base.size; ++rank) {
        if (!missing(&self->peers[rank])) {
            continue;
        }
        ++count;
        if (count <= LISTED_RANKS && used < size) {
            used += (size_t)snprintf(text + used, size - used, "%s%d", count > 1 ? ", " : "", rank);
        } else if (count == LISTED_RANKS + 1 && used < size) {
            used += (size_t)snprintf(text + used, size - used, " …");
        }
    }
    return count;
}

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

static xm_status_t accept_at_master(xm_bootstrap_tcp_t *self, const xm_job_env_t *env,
                                    int listen_fd, double deadline, double timeout)
{
    xm_status_t status =
        listen_fd >= 0 ? XM_OK : xm_bootstrap_listen_master(env, deadline, &listen_fd);

    return status < 0 ? status : xm_bootstrap_rendezvous_accept(self, listen_fd, deadline, timeout);
}

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
    *bootstrap = &self->base;
    return XM_OK;
}
