/* SPDX-License-Identifier: Apache-2.0 */
/* Meeting through PMIx, the interface of mpirun and srun. It serves as an allgather table (publish
 * a value, fence, get the others') for exactly two small exchanges; then the TCP relay takes over,
 * because PMIx would tell nobody of a death. The library is opened at run time, so one build runs
 * with and without it. Its fence is ended by a thread of its own, which touches nothing but one
 * atomic of the request. */
#include "comm/job/bootstrap_private.h"

#ifdef XM_HAVE_PMIX

#include <dlfcn.h>
#include <pmix.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "comm/job/bootstrap_wire.h"

static const char library[] = "libpmix.so.2";

/* The functions that are used of the library, all of them in PMIx 2 to 5. */
typedef struct {
    void *handle;
    pmix_status_t (*init)(pmix_proc_t *proc, pmix_info_t info[], size_t count);
    pmix_status_t (*finalize)(const pmix_info_t info[], size_t count);
    pmix_status_t (*put)(pmix_scope_t scope, const char key[], pmix_value_t *value);
    pmix_status_t (*commit)(void);
    pmix_status_t (*fence_nb)(const pmix_proc_t procs[], size_t count, const pmix_info_t info[],
                              size_t info_count, pmix_op_cbfunc_t done, void *arg);
    pmix_status_t (*get)(const pmix_proc_t *proc, const char key[], const pmix_info_t info[],
                         size_t count, pmix_value_t **value);
    const char *(*error_string)(pmix_status_t status);
} pmix_library_t;

enum { FENCE_RUNS = 1 }; /* no pmix_status_t is positive */

/* One allgather. PMIx's own thread ends the fence. */
typedef struct request {
    struct pmix *pmix;
    struct request *next;
    atomic_int fence; /* FENCE_RUNS, or how it ended */
    char key[32];
    pmix_info_t collect;
    const void *send;
    uint8_t *receive;
    size_t length;
} request_t;

typedef struct pmix {
    pmix_library_t library;
    pmix_proc_t self;
    xm_oob_t oob;
    unsigned gathered; /* allgathers so far: each has a key of its own */
    request_t *requests;
    char sentence[256]; /* what went wrong in the table; "" when nothing has */
} pmix_t;

/* Keeps the sentence: it is made inside a table's functions, whose callers would replace it by
 * a general one. */
static xm_status_t fail(pmix_t *pmix, const char *what, pmix_status_t status)
{
    (void)snprintf(pmix->sentence, sizeof(pmix->sentence), "PMIx: rank %u: %s: %s", pmix->self.rank,
                   what, pmix->library.error_string(status));
    return xm_error_set(XM_ERR_IO, "%s", pmix->sentence);
}

/* Called by PMIx's own thread; the store publishes the end of the fence to the thread that
 * tests. */
static void fence_ended(pmix_status_t status, void *arg)
{
    atomic_store(&((request_t *)arg)->fence, status);
}

/* Publishes this rank's value under a key that no other allgather of the job uses, since PMIx
 * never forgets one. */
static xm_status_t publish(request_t *request)
{
    const pmix_library_t *pmix = &request->pmix->library;
    pmix_value_t value = {.type = PMIX_BYTE_OBJECT};
    pmix_status_t status;

    value.data.bo.bytes = (char *)request->send;
    value.data.bo.size = request->length;
    status = pmix->put(PMIX_GLOBAL, request->key, &value);
    if (status == PMIX_SUCCESS) {
        status = pmix->commit();
    }
    return status == PMIX_SUCCESS ? XM_OK : fail(request->pmix, "cannot publish a value", status);
}

/* Begins an allgather: publishes the value and starts a fence that also collects the values, so
 * that reading them later asks nobody over the network. The request is in the list of the
 * connection before anything can fail, and so is always freed. */
static xm_status_t table_post(void *context, const void *send, void *receive, size_t length,
                              void **result)
{
    pmix_t *pmix = context;
    request_t *request = calloc(1, sizeof(*request));
    pmix_status_t status;
    xm_status_t published;

    XM_NEED_MEMORY(request, "a PMIx request");
    request->pmix = pmix;
    request->next = pmix->requests;
    pmix->requests = request;
    request->send = send;
    request->receive = receive;
    request->length = length;
    (void)snprintf(request->key, sizeof(request->key), "crossmesh.%u", pmix->gathered++);
    published = publish(request);
    if (published < 0) {
        return published;
    }
    (void)snprintf(request->collect.key, sizeof(request->collect.key), "%s", PMIX_COLLECT_DATA);
    request->collect.value.type = PMIX_BOOL;
    request->collect.value.data.flag = true;
    atomic_store(&request->fence, FENCE_RUNS);
    status = pmix->library.fence_nb(NULL, 0, &request->collect, 1, fence_ended, request);
    if (status == PMIX_OPERATION_SUCCEEDED) {
        atomic_store(&request->fence, PMIX_SUCCESS); /* at once, and nobody will call */
    } else if (status != PMIX_SUCCESS) {
        return fail(pmix, "cannot begin a fence", status);
    }
    *result = request;
    return XM_OK;
}

/* Copies what one rank has published. The length must be the same on all ranks. */
static xm_status_t fetch(request_t *request, int rank)
{
    pmix_t *pmix = request->pmix;
    uint8_t *place = request->receive + (size_t)rank * request->length;
    pmix_proc_t proc = pmix->self;
    pmix_value_t *value = NULL;
    pmix_status_t status;

    proc.rank = (pmix_rank_t)rank;
    status = pmix->library.get(&proc, request->key, NULL, 0, &value);
    if (status == PMIX_SUCCESS &&
        (value->type != PMIX_BYTE_OBJECT || value->data.bo.size != request->length)) {
        status = PMIX_ERR_TYPE_MISMATCH;
    }
    if (status == PMIX_SUCCESS) {
        memcpy(place, value->data.bo.bytes, request->length);
    }
    if (value != NULL) {
        if (value->type == PMIX_BYTE_OBJECT) {
            free(value->data.bo.bytes);
        }
        free(value);
    }
    return status == PMIX_SUCCESS ? XM_OK : fail(pmix, "cannot get another rank's value", status);
}

/* Ends the allgather when the fence has ended. Fetching blocks only on local memory, because
 * the fence has collected the values. */
static xm_status_t table_test(void *arg)
{
    request_t *request = arg;
    int fence = atomic_load(&request->fence);
    xm_status_t status = XM_OK;

    if (fence == FENCE_RUNS) {
        return XM_IN_PROGRESS;
    }
    if (fence != PMIX_SUCCESS) {
        return fail(request->pmix, "a fence failed", fence);
    }
    for (int rank = 0; rank < request->pmix->oob.size && status == XM_OK; ++rank) {
        status = fetch(request, rank);
    }
    return status;
}

/* Frees a request. One whose fence still runs stays until the end of the connection, because
 * PMIx's thread will write into it. */
static void table_free(void *arg)
{
    request_t *request = arg, **link = &request->pmix->requests;

    if (atomic_load(&request->fence) == FENCE_RUNS) {
        return;
    }
    while (*link != request) {
        link = &(*link)->next;
    }
    *link = request->next;
    free(request);
}

/* Copies the pointer as bytes: the standard has no conversion between pointers to objects and
 * functions. */
static xm_status_t find(const pmix_library_t *pmix, const char *name, void *function)
{
    void *symbol = dlsym(pmix->handle, name);

    if (symbol == NULL) {
        return XM_UNSUPPORTED("%s has no %s", library, name);
    }
    memcpy(function, &symbol, sizeof(symbol));
    return XM_OK;
}

/* Opens the library with all that is used of it, or fails as "unsupported", upon which the
 * caller may fall back. */
static xm_status_t open_library(pmix_library_t *pmix)
{
    const struct {
        const char *name;
        void *function;
    } wanted[] = {{"PMIx_Init", &pmix->init},
                  {"PMIx_Finalize", &pmix->finalize},
                  {"PMIx_Put", &pmix->put},
                  {"PMIx_Commit", &pmix->commit},
                  {"PMIx_Fence_nb", &pmix->fence_nb},
                  {"PMIx_Get", &pmix->get},
                  {"PMIx_Error_string", &pmix->error_string}};
    xm_status_t status = XM_OK;

    pmix->handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    if (pmix->handle == NULL) {
        return XM_UNSUPPORTED("PMIx cannot be opened: %s", dlerror());
    }
    for (size_t i = 0; i < sizeof(wanted) / sizeof(wanted[0]) && status == XM_OK; ++i) {
        status = find(pmix, wanted[i].name, wanted[i].function);
    }
    return status;
}

/* Asks how many processes the job has; -1 for more than can be. */
static xm_status_t read_size(pmix_t *pmix, int *size)
{
    pmix_proc_t job = pmix->self;
    pmix_value_t *value = NULL;
    pmix_status_t status;

    job.rank = PMIX_RANK_WILDCARD;
    status = pmix->library.get(&job, PMIX_JOB_SIZE, NULL, 0, &value);
    if (status == PMIX_SUCCESS && value->type != PMIX_UINT32) {
        status = PMIX_ERR_TYPE_MISMATCH;
    }
    if (status == PMIX_SUCCESS) {
        *size = value->data.uint32 <= XM_BOOTSTRAP_MAX_RANKS ? (int)value->data.uint32 : -1;
    }
    free(value);
    return status == PMIX_SUCCESS ? XM_OK : fail(pmix, "cannot get the size of the job", status);
}

/* Ends the connection. Requests that have not ended are freed after PMIx's thread has ended. */
static void disconnect(pmix_t *pmix)
{
    /* Ends the thread that would end the fences. */
    (void)pmix->library.finalize(NULL, 0);
    while (pmix->requests != NULL) {
        request_t *request = pmix->requests;

        pmix->requests = request->next;
        free(request);
    }
    free(pmix);
}

/* Connects to the launcher. It may wait for the launcher's server, but not for other ranks. */
static xm_status_t connect_to_launcher(pmix_t **pmix)
{
    pmix_t *self = calloc(1, sizeof(*self));
    pmix_status_t connected;
    xm_status_t status;

    XM_NEED_MEMORY(self, "PMIx");
    status = open_library(&self->library);
    if (status < 0) {
        goto free_self;
    }
    connected = self->library.init(&self->self, NULL, 0);
    if (connected != PMIX_SUCCESS) {
        status = xm_error_set(XM_ERR_UNREACHABLE,
                              "PMIx: cannot connect to the launcher that PMIX_NAMESPACE names: %s",
                              self->library.error_string(connected));
        goto free_self;
    }
    self->oob = (xm_oob_t){.struct_size = sizeof(self->oob),
                           .rank = (int)self->self.rank,
                           .context = self,
                           .allgather_post = table_post,
                           .allgather_test = table_test,
                           .allgather_free = table_free};
    status = read_size(self, &self->oob.size);
    if (status < 0) {
        disconnect(self);
        return status;
    }
    *pmix = self;
    return XM_OK;

free_self:
    /* The library stays: it cannot be unloaded once its threads have run. */
    free(self);
    return status;
}

/* The one connection of this process. PMIx can be connected to once in the life of a process:
 * an MPI that is initialised after PMIx_Finalize() finds its launcher gone, and a process that
 * ends without it counts as failed. So it is shared by all bootstraps until the process exits. */
static struct {
    pthread_mutex_t lock;
    pmix_t *pmix; /* NULL before the first use */
    pid_t owner;
} connection = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void disconnect_at_exit(void)
{
    /* A child that was forked since has nothing to do with it. */
    if (connection.owner == getpid()) {
        disconnect(connection.pmix);
    }
}

/* Finds or makes the connection, under a lock, since several threads may create workers. A
 * forked child must not use its parent's: it would speak as the same rank. */
static xm_status_t use_connection(pmix_t **pmix)
{
    xm_status_t status = XM_OK;

    (void)pthread_mutex_lock(&connection.lock);
    if (connection.pmix == NULL) {
        status = connect_to_launcher(&connection.pmix);
        if (status == XM_OK) {
            connection.owner = getpid();
            (void)atexit(disconnect_at_exit);
        }
    } else if (connection.owner != getpid()) {
        status = XM_UNSUPPORTED("PMIx: this process was forked by one that has connected to it");
    }
    *pmix = connection.pmix;
    (void)pthread_mutex_unlock(&connection.lock);
    return status;
}

/* Makes a relay whose ranks meet through PMIx. The environment must agree with PMIx, or two
 * launchers have been mixed. */
xm_status_t xm_bootstrap_create_pmix(const xm_job_env_t *env, double timeout,
                                     xm_bootstrap_t **bootstrap)
{
    pmix_t *pmix = NULL;
    const xm_oob_t *oob;
    xm_status_t status = XM_OK;

    XM_TRY(use_connection(&pmix));
    pmix->sentence[0] = '\0';
    oob = &pmix->oob;
    if (env->size >= 0 && (env->rank != oob->rank || env->size != oob->size)) {
        status = XM_MISMATCH("the environment says rank %d of %d, PMIx says rank %d of %d",
                             env->rank, env->size, oob->rank, oob->size);
    } else {
        status = xm_bootstrap_create_relay(oob, timeout, bootstrap);
        if (status < 0 && pmix->sentence[0] != '\0') {
            (void)xm_error_set(status, "%s", pmix->sentence);
        } else if (status < 0) {
            (void)xm_error_prefix(status, "meeting through PMIx");
        }
    }
    return status;
}

#else

xm_status_t xm_bootstrap_create_pmix(const xm_job_env_t *env, double timeout,
                                     xm_bootstrap_t **bootstrap)
{
    (void)env;
    (void)timeout;
    (void)bootstrap;
    return XM_UNSUPPORTED("this build of crossmesh has no PMIx (libpmix-dev was not there)");
}

#endif
