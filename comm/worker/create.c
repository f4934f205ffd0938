/* SPDX-License-Identifier: Apache-2.0 */
/* How a worker comes to be, enters a group, leaves it and ends. All of it is collective, and each
 * step waits for the others; so the detector starts before anything that takes time. */
#include "comm/worker/worker.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "comm/base.h"
#include "comm/job.h"
#include "comm/worker/limits.h"
#include "comm/worker/worker_private.h"

/* Joins the others by the way that the parameters say; a listening socket that is not used is
 * closed. */
static xm_status_t join(const xm_job_env_t *env, const xm_worker_params_t *params, double timeout,
                        xm_bootstrap_t **bootstrap)
{
    if (params->oob == NULL) {
        return xm_bootstrap_create(env, params->listen_fd, timeout, bootstrap);
    }
    if (params->listen_fd >= 0) {
        (void)close(params->listen_fd);
    }
    return params->oob_only ? xm_bootstrap_create_oob(params->oob, bootstrap)
                            : xm_bootstrap_create_relay(params->oob, timeout, bootstrap);
}

/* The ranks of a job that begins are those of its group. */
static xm_status_t number_ranks(xm_worker_t *worker)
{
    int size = xm_bootstrap_size(worker->bootstrap);

    worker->job_rank = calloc((size_t)size, sizeof(*worker->job_rank));
    worker->group_rank = calloc((size_t)size, sizeof(*worker->group_rank));
    worker->cut = calloc((size_t)size, sizeof(*worker->cut));
    if (worker->job_rank == NULL || worker->group_rank == NULL || worker->cut == NULL) {
        return XM_NO_MEMORY("a group of %d ranks", size);
    }
    for (int rank = 0; rank < size; ++rank) {
        worker->job_rank[rank] = worker->group_rank[rank] = rank;
    }
    return XM_OK;
}

/* The sockets of the detector, once for the whole job. Without connections of the bootstrap there
 * is no address to be reached at (a caller's table alone knows none), and so no detector. */
static xm_status_t open_endpoints(xm_worker_t *worker)
{
    if (worker->endpoints.of != NULL || xm_bootstrap_size(worker->bootstrap) == 1 ||
        !worker->bootstrap->ops->connected) {
        return XM_OK;
    }
    return xm_endpoints_open(&worker->endpoints, worker->bootstrap, worker->interval,
                             worker->timeout);
}

/* Starts the detector before anything that takes time, so that a rank that hangs while the others
 * start is found like one that hangs later. From then on the detector guards the bootstrap. After a
 * shrink all this is there already (regroup.c). */
static xm_status_t begin_watch(xm_worker_t *worker)
{
    xm_bootstrap_guard_t guard;

    if (worker->endpoints.of == NULL || worker->detector != NULL) {
        return XM_OK;
    }
    XM_TRY(xm_detector_create(&worker->endpoints, worker->interval, worker->counters,
                              &worker->detector));
    xm_detector_begin(worker->detector, (uint32_t)worker->generation, worker->group_rank);
    XM_TRY(xm_detector_await(worker->detector, worker->bootstrap, worker->timeout));
    guard = xm_detector_guard(worker->detector);
    return xm_bootstrap_set_guard(worker->bootstrap, &guard);
}

/* Everything that a new group needs; used at the start and after each shrink. It fails on all
 * ranks or is made to fail on all by the caller's abort. */
xm_status_t xm_worker_enter(xm_worker_t *worker)
{
    xm_status_t status = open_endpoints(worker);

    XM_THEN(status, begin_watch(worker));
    XM_THEN(status, xm_worker_slots_exchange(&worker->slots, worker->bootstrap, worker->host,
                                             worker->timeout));
    XM_THEN(status, xm_worker_open_transport(worker));
    if (status == XM_OK && worker->detector != NULL && worker->interval > 0.0) {
        status = xm_path_probe_create(worker->transport, worker->detector, &worker->endpoints,
                                      worker->job_rank, worker->interval, &worker->path_probe);
    }
    return status;
}

/* Takes a group apart. The transport ends before the path probe, whose operations it has, and
 * before the bootstrap, by whose fault channel it may still hear. */
void xm_worker_leave(xm_worker_t *worker)
{
    xm_transport_destroy(worker->transport);
    worker->transport = NULL;
    xm_path_probe_destroy(worker->path_probe);
    worker->path_probe = NULL;
    xm_bootstrap_destroy(worker->bootstrap);
    worker->bootstrap = NULL;
    xm_worker_slots_free(&worker->slots);
    worker->slots = (xm_worker_slots_t){0};
}

/* The detector's thread looks at the counters until it ends. */
static void free_worker(xm_worker_t *worker)
{
    if (worker == NULL) {
        return;
    }
    xm_metrics_destroy(worker->metrics);
    xm_detector_destroy(worker->detector);
    xm_counters_destroy(worker->counters);
    xm_endpoints_close(&worker->endpoints);
    free(worker->cut);
    free(worker->group_rank);
    free(worker->job_rank);
    free(worker->host);
    if (worker->wake_fd >= 0) {
        (void)close(worker->wake_fd);
    }
    free(worker);
}

/* What a worker has before it meets others, which free_worker() frees whatever of it is there. */
static xm_status_t allocate(const xm_worker_params_t *params, xm_worker_t **worker)
{
    const char *transport =
        params->transport != NULL ? params->transport : xm_config_string(XM_CONFIG_TRANSPORT);
    bool verbs = strcmp(transport, "verbs") == 0;
    xm_worker_t *self;

    if (!verbs && strcmp(transport, "ucx") != 0) {
        return XM_UNSUPPORTED("no transport '%s'; this build has ucx and verbs", transport);
    }
    *worker = self = calloc(1, sizeof(*self));
    XM_NEED_MEMORY(self, "a worker");
    self->timeout = params->timeout > 0.0 ? params->timeout : xm_config_seconds(XM_CONFIG_TIMEOUT);
    self->spin = strcmp(xm_config_string(XM_CONFIG_PROGRESS), "spin") == 0;
    self->interval = xm_config_seconds(XM_CONFIG_HEARTBEAT);
    self->failed_rank = -1;
    self->verbs = verbs;
    self->host = params->host != NULL ? strdup(params->host) : NULL;
    self->wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    return self->wake_fd >= 0 ? XM_OK : xm_error_set(XM_ERR_IO, "eventfd: %s", strerror(errno));
}

/* Writes the one line at the start. */
static void introduce(const xm_worker_t *worker)
{
    char line[512];

    if (xm_log_enabled(XM_LOG_INFO)) {
        xm_log_info("%s", xm_worker_describe(worker, line, sizeof(line)));
    }
}

/* Creates the worker; collective. The listening socket belongs to this call whatever happens.
 * On failure the others are told, or they would wait for this rank until their deadline. */
xm_status_t xm_worker_create(const xm_job_env_t *env, const xm_worker_params_t *given,
                             xm_worker_t **worker)
{
    xm_worker_params_t params = XM_WORKER_PARAMS_INIT;
    xm_worker_t *self = NULL;
    xm_status_t status = XM_OK;

    XM_TRY(XM_PARAMS_COPY(xm_worker_params_t, &params, given));
    if (XM_IS_NULL(worker) || (params.oob == NULL && XM_IS_NULL(env))) {
        status = XM_ERR_INVALID_ARGUMENT;
    }
    XM_THEN(status, allocate(&params, &self));
    XM_THEN(status,
            xm_worker_limits_check(env != NULL ? env->rank : -1, env != NULL ? env->size : 1));
    if (status == XM_OK) {
        status = join(env, &params, self->timeout, &self->bootstrap);
    } else if (params.listen_fd >= 0) {
        (void)close(params.listen_fd);
    }
    if (status < 0) {
        free_worker(self);
        return status;
    }
    xm_log_set_rank(xm_worker_rank(self));
    status = number_ranks(self);
    XM_THEN(status, xm_worker_open_counters(self));
    XM_THEN(status, xm_worker_enter(self));
    XM_THEN(status, xm_worker_open_metrics(self));
    if (status < 0) {
        xm_bootstrap_abort(self->bootstrap, xm_last_error());
        xm_worker_leave(self);
        free_worker(self);
        return status;
    }
    introduce(self);
    *worker = self;
    return XM_OK;
}

/* Ends the worker. Without a reason all ranks leave together: connections must not be closed
 * while another rank still needs them. */
void xm_worker_destroy(xm_worker_t *worker, const char *reason)
{
    if (worker == NULL) {
        return;
    }
    if (reason != NULL && worker->bootstrap != NULL) {
        xm_bootstrap_abort(worker->bootstrap, reason);
    } else if (worker->fault_status == XM_OK) {
        /* No rank closes its connections while another still needs them. A failure here is the
         * failure of a rank that will report it itself. */
        (void)xm_worker_barrier(worker);
    }
    xm_worker_dismiss_guests(worker);
    xm_worker_leave(worker);
    if (worker->metrics != NULL) {
        xm_metrics_write(worker->metrics);
    }
    free_worker(worker);
}
