/* SPDX-License-Identifier: Apache-2.0 */
/* Where the launcher put this process: the variables of torchrun, mpirun, mpiexec and srun.
 * They are read in one order, since launchers are nested, and only one family is believed.
 * Where the launcher names no meeting point, address and port are derived from the job's name,
 * so that all ranks come to the same without talking; a secret then keeps two jobs apart that
 * derive the same port. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

#include "comm/job/bootstrap.h"
#include "comm/job/bootstrap_wire.h"
#include "comm/base.h"

typedef struct {
    const char *rank;
    const char *size;
    const char *local_size; /* ranks on this host; NULL when hosts are counted instead */
    const char *hosts;      /* number of hosts */
    const char *job;        /* differs between jobs that run at the same time */
    const char *step;       /* NULL, or what differs between launches of one job */
    const char *nodes;      /* NULL, or the hosts, that of rank 0 first */
} launcher_t;

/* The first whose rank variable is set wins: torchrun may itself run under srun. */
static const launcher_t launchers[] = {
    {"RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", NULL, "TORCHELASTIC_RUN_ID", NULL, NULL},
    {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", NULL,
     "PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", NULL},
    {"PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS", NULL, "PMI_JOBID", NULL, NULL},
    {"SLURM_PROCID", "SLURM_NTASKS", NULL, "SLURM_STEP_NUM_NODES", "SLURM_JOB_ID", "SLURM_STEP_ID",
     "SLURM_STEP_NODELIST"},
};

/* Ports for jobs that name none: below the range from which kernels pick ephemeral ports, so
 * that no outgoing connection has taken one. */
enum { FIRST_DERIVED_PORT = 12000, DERIVED_PORTS = 20000 };

/* An unset variable leaves the value alone; one that is set must be valid. */
static xm_status_t read_int(const char *name, int minimum, int maximum, int *value)
{
    const char *text = getenv(name);
    int64_t parsed;
    xm_status_t status;

    if (text == NULL) {
        return XM_OK;
    }
    status = xm_text_parse_int(name, text, minimum, maximum, &parsed);
    if (status == XM_OK) {
        *value = (int)parsed;
    }
    return status;
}

static xm_status_t read_rank_and_size(const launcher_t *launcher, xm_job_env_t *env)
{
    XM_TRY(read_int(launcher->rank, 0, XM_BOOTSTRAP_MAX_RANKS - 1, &env->rank));
    XM_TRY(read_int(launcher->size, 1, XM_BOOTSTRAP_MAX_RANKS, &env->size));
    if (env->size < 0) {
        return XM_MALFORMED("%s is set but %s is not", launcher->rank, launcher->size);
    }
    if (env->rank >= env->size) {
        return XM_INVALID("%s=%d is not below %s=%d", launcher->rank, env->rank, launcher->size,
                          env->size);
    }
    return XM_OK;
}

/* Decides whether to meet through PMIx: if it is offered and the user has not said where to
 * meet. PMIx may be all there is (prun); it tells the size when it is asked. */
static xm_status_t read_pmix(const launcher_t *launcher, xm_job_env_t *env)
{
    env->pmix = getenv("PMIX_NAMESPACE") != NULL && getenv("PMIX_RANK") != NULL &&
                getenv("MASTER_ADDR") == NULL && getenv("RANK") == NULL;
    return env->pmix && launcher == NULL
               ? read_int("PMIX_RANK", 0, XM_BOOTSTRAP_MAX_RANKS - 1, &env->rank)
               : XM_OK;
}

/* True when the launcher says that all ranks run on this machine. Without such a word the
 * answer is no: a wrong yes would make ranks wait at their own loopback interfaces. */
static bool all_local(const launcher_t *launcher, int size)
{
    const char *name = launcher->local_size != NULL ? launcher->local_size : launcher->hosts;
    int64_t value;

    if (getenv(name) == NULL || xm_text_parse_int(name, getenv(name), 1, INT32_MAX, &value) < 0) {
        return false;
    }
    return launcher->local_size != NULL ? value == size : value == 1;
}

/* Writes the first host of a list as Slurm writes it: "node[03-05,07],login1" begins with
 * node03. Leaves the buffer alone when the list is nothing of the kind. */
static void first_host(const char *list, char *host, size_t size)
{
    size_t prefix = strcspn(list, "[,"), number = 0;
    const char *rest = list + prefix;

    if (*rest == '[') {
        ++rest;
        number = strspn(rest, "0123456789");
        if (number == 0 || strchr("-,]", rest[number]) == NULL || strchr(rest, ']') == NULL) {
            return;
        }
    }
    if (prefix + number > 0 && prefix + number < size) {
        const char *end = number > 0 ? strchr(rest, ']') + 1 : rest;
        size_t suffix = number > 0 ? strcspn(end, "[,") : 0;

        (void)snprintf(host, size, "%.*s%.*s%.*s", (int)prefix, list, (int)number, rest,
                       (int)suffix, end);
    }
}

/* A port that the ranks of this job agree on without talking; -1 when the launcher names no job. */
static int derived_port(const launcher_t *launcher)
{
    const char *job = getenv(launcher->job);
    const char *step = launcher->step != NULL ? getenv(launcher->step) : NULL;
    char text[512];

    if (job == NULL && step == NULL) {
        return -1;
    }
    (void)snprintf(text, sizeof(text), "%s.%s", job != NULL ? job : "", step != NULL ? step : "");
    return FIRST_DERIVED_PORT + (int)(XXH64(text, strlen(text), 0) % DERIVED_PORTS);
}

/* Reads everything into a local struct, so that a failure leaves the caller's untouched. */
xm_status_t xm_job_env_read(xm_job_env_t *env)
{
    XM_NEED_ARGUMENTS(env);
    xm_job_env_t result = {.rank = -1, .size = -1, .master_port = -1};
    const launcher_t *launcher = NULL;
    const char *address = getenv("MASTER_ADDR");
    xm_status_t status = read_int("MASTER_PORT", 1, 65535, &result.master_port);

    for (size_t i = 0; i < sizeof(launchers) / sizeof(launchers[0]) && launcher == NULL; ++i) {
        launcher = getenv(launchers[i].rank) != NULL ? &launchers[i] : NULL;
    }
    if (status == XM_OK && launcher != NULL) {
        status = read_rank_and_size(launcher, &result);
    } else if (status == XM_OK && getenv("WORLD_SIZE") != NULL) {
        status = XM_MALFORMED("WORLD_SIZE is set but RANK is not");
    }
    XM_THEN(status, read_pmix(launcher, &result));
    XM_TRY(status);
    if (address != NULL && strlen(address) >= sizeof(result.master_addr)) {
        return XM_INVALID("MASTER_ADDR: longer than %zu characters",
                          sizeof(result.master_addr) - 1);
    }
    if (address != NULL) {
        (void)snprintf(result.master_addr, sizeof(result.master_addr), "%s", address);
    } else if (launcher != NULL && all_local(launcher, result.size)) {
        (void)snprintf(result.master_addr, sizeof(result.master_addr), "127.0.0.1");
    } else if (launcher != NULL && launcher->nodes != NULL && getenv(launcher->nodes) != NULL) {
        first_host(getenv(launcher->nodes), result.master_addr, sizeof(result.master_addr));
    }
    if (launcher != NULL && result.master_port < 0) {
        result.master_port = derived_port(launcher);
    }
    *env = result;
    return XM_OK;
}
