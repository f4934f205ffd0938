/* SPDX-License-Identifier: Apache-2.0 */
/* NCCL's calls: communicators, groups, collectives. */
#include "tests/nccl_double/nccl_double.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "cuda_double.h"

/* ---- faults -----------------------------------------------------------------------------------
 */

static bool is_named(const char *variable, const char *name)
{
    const char *value = getenv(variable);

    return value != NULL && strcmp(value, name) == 0;
}

/* The injected result of a call; its n-th since the process began counts. */
static int fault(const char *name)
{
    static struct {
        char name[32];
        int calls;
    } counters[16];
    const char *at = getenv("NCCL_DOUBLE_FAIL");
    int calls = 0;

    for (size_t i = 0; i < sizeof(counters) / sizeof(counters[0]); ++i) {
        if (counters[i].name[0] == '\0') {
            (void)snprintf(counters[i].name, sizeof(counters[i].name), "%s", name);
        }
        if (strcmp(counters[i].name, name) == 0) {
            calls = ++counters[i].calls;
            break;
        }
    }
    while (at != NULL && *at != '\0') {
        char call[32] = "";
        int result = 0, from = 1;

        if (sscanf(at, "%31[^=,]=%d@%d", call, &result, &from) >= 2 && strcmp(call, name) == 0 &&
            calls >= from) {
            return result;
        }
        at = strchr(at, ',');
        at = at != NULL ? at + 1 : NULL;
    }
    return XM_NCCL_SUCCESS;
}

static char last_error[128]; /* of calls without a communicator */

static int fail(nccl_comm_t *comm, int result, const char *text)
{
    char *place = comm != NULL ? comm->last_error : last_error;

    (void)snprintf(place, sizeof(last_error), "%s\n", text);
    return result;
}

int ncclGetVersion(int *version)
{
    const char *given = getenv("NCCL_DOUBLE_VERSION");

    *version = given != NULL ? atoi(given) : 22807;
    return fault("ncclGetVersion");
}

const char *ncclGetErrorString(int result)
{
    static const char *const texts[] = {"no error",
                                        "unhandled cuda error",
                                        "unhandled system error",
                                        "internal error",
                                        "invalid argument",
                                        "invalid usage",
                                        "remote process exited or there was a network error",
                                        "NCCL operation in progress"};

    return result >= 0 && result < (int)(sizeof(texts) / sizeof(texts[0])) ? texts[result]
                                                                           : "unknown result code";
}

const char *ncclGetLastError(void *comm)
{
    return comm != NULL ? ((const nccl_comm_t *)comm)->last_error : last_error;
}

/* ---- communicators ----------------------------------------------------------------------------
 */

/* What an id says: where the shared file is. */
typedef struct {
    int pid, fd;
} where_t;

int ncclGetUniqueId(xm_nccl_id_t *id)
{
    where_t where = {.pid = getpid(), .fd = memfd_create("nccl_double", MFD_CLOEXEC)};
    int result = fault("ncclGetUniqueId");

    if (result == XM_NCCL_SUCCESS &&
        (where.fd < 0 || ftruncate(where.fd, sizeof(nccl_shared_t)) != 0)) {
        result = XM_NCCL_SYSTEM;
    }
    memset(id, 0, sizeof(*id));
    memcpy(id, &where, sizeof(where));
    return result;
}

static nccl_shared_t *open_shared(const xm_nccl_id_t *id)
{
    where_t where;
    char path[64];
    void *made;
    int fd;

    memcpy(&where, id, sizeof(where));
    (void)snprintf(path, sizeof(path), "/proc/%d/fd/%d", where.pid, where.fd);
    fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0) {
        return NULL;
    }
    made = mmap(NULL, sizeof(nccl_shared_t), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    (void)close(fd);
    return made != MAP_FAILED ? made : NULL;
}

static bool is_ready(const nccl_comm_t *comm)
{
    return atomic_load(&comm->shared->joined) == comm->ranks;
}

/* A device belongs to one rank. The visible numbers are told apart by who sees them. */
static bool is_device_taken(const nccl_comm_t *comm)
{
    for (int r = 0; r < comm->ranks; ++r) {
        if (r != comm->rank && atomic_load(&comm->shared->device[r]) ==
                                   atomic_load(&comm->shared->device[comm->rank])) {
            return true;
        }
    }
    return false;
}

static void free_comm(nccl_comm_t *comm)
{
    (void)munmap(comm->shared, sizeof(*comm->shared));
    free(comm);
}

static int current_device(void)
{
    void *context = NULL;
    int device = -1;

    if (cuCtxPopCurrent_v2(&context) == XM_CU_SUCCESS) {
        (void)cuCtxPushCurrent_v2(context);
        device = cuda_double_device(context);
    }
    return device;
}

int ncclCommInitRankConfig(void **made, int ranks, xm_nccl_id_t id, int rank,
                           xm_nccl_config_t *config)
{
    int result = fault("ncclCommInitRankConfig"), device = current_device();
    nccl_comm_t *comm;

    *made = NULL;
    if (result != XM_NCCL_SUCCESS) {
        return fail(NULL, result, "injected");
    }
    if (config->magic != XM_NCCL_CONFIG_MAGIC || config->version < XM_NCCL_OLDEST ||
        config->size < sizeof(*config) || ranks > NCCL_DOUBLE_RANKS || rank >= ranks) {
        return fail(NULL, XM_NCCL_INVALID_ARGUMENT, "a wrong configuration");
    }
    if (device < 0) {
        return fail(NULL, XM_NCCL_UNHANDLED_CUDA, "no current context");
    }
    comm = calloc(1, sizeof(*comm));
    if (comm == NULL || (comm->shared = open_shared(&id)) == NULL) {
        free(comm);
        return fail(NULL, XM_NCCL_SYSTEM, "the id leads nowhere");
    }
    comm->rank = rank;
    comm->ranks = ranks;
    comm->blocking = config->blocking != 0;
    atomic_store(&comm->shared->device[rank], device + 1);
    if (!is_named("NCCL_DOUBLE_HANG", "init")) {
        (void)atomic_fetch_add(&comm->shared->joined, 1);
    }
    *made = comm;
    while (comm->blocking && !is_ready(comm)) {
        (void)usleep(50);
    }
    return comm->blocking ? XM_NCCL_SUCCESS : XM_NCCL_IN_PROGRESS;
}

int ncclCommGetAsyncError(void *given, int *result)
{
    nccl_comm_t *comm = given;
    int asked = fault("ncclCommGetAsyncError");

    *result = atomic_load(&comm->error);
    if (*result == XM_NCCL_SUCCESS && !is_ready(comm)) {
        *result = XM_NCCL_IN_PROGRESS;
    } else if (*result == XM_NCCL_SUCCESS && is_device_taken(comm)) {
        *result = fail(comm, XM_NCCL_INVALID_USAGE, "Duplicate GPU detected");
    }
    if (*result == XM_NCCL_SUCCESS && comm->questions++ == 0) {
        *result = XM_NCCL_IN_PROGRESS;
    }
    return asked;
}

int ncclCommFinalize(void *given)
{
    nccl_comm_t *comm = given;
    int result = fault("ncclCommFinalize");

    comm->finalised = true;
    comm->questions = 0;
    return result != XM_NCCL_SUCCESS ? result
           : comm->blocking          ? XM_NCCL_SUCCESS
                                     : XM_NCCL_IN_PROGRESS;
}

int ncclCommDestroy(void *given)
{
    nccl_comm_t *comm = given;

    if (!comm->finalised || comm->questions < 2 || atomic_load(&comm->pending) > 0) {
        return fail(comm, XM_NCCL_INVALID_USAGE, "not finalised, or work is under way");
    }
    free_comm(comm);
    return XM_NCCL_SUCCESS;
}

int ncclCommAbort(void *given)
{
    nccl_comm_t *comm = given;

    atomic_store(&comm->aborted, true);
    while (atomic_load(&comm->pending) > 0) {
        (void)usleep(50);
    }
    free_comm(comm);
    return XM_NCCL_SUCCESS;
}

/* ---- work in streams --------------------------------------------------------------------------
 */

typedef enum { ALL_GATHER, ALL_REDUCE, REDUCE_SCATTER, SEND, RECV } kind_t;

static const char *const names[] = {"ncclAllGather", "ncclAllReduce", "ncclReduceScatter",
                                    "ncclSend", "ncclRecv"};

typedef struct {
    kind_t kind;
    const void *in;
    void *out;
    size_t count;
    int peer;
} operation_t;

/* What is put into a stream at once. */
typedef struct {
    nccl_comm_t *comm;
    void *stream;
    operation_t operations[2 * NCCL_DOUBLE_RANKS];
    int count;
} work_t;

static _Thread_local work_t group;
static _Thread_local int depth;

/* Sums the inputs of all ranks, which lie one after the other. */
static void add_up(int32_t *out, const int32_t *inputs, int ranks, size_t count)
{
    for (size_t i = 0; i < count; ++i) {
        uint32_t sum = 0;

        for (int r = 0; r < ranks; ++r) {
            sum += (uint32_t)inputs[(size_t)r * count + i];
        }
        out[i] = (int32_t)sum;
    }
}

/* Everybody's part for this rank arrives in @p all, one after the other. */
static bool collect(nccl_comm_t *comm, const char *in, size_t step, char *all, size_t bytes)
{
    nccl_exchange_t exchange = {.count = 0};

    for (int peer = 0; peer < comm->ranks; ++peer) {
        nccl_double_add(&exchange, peer, true, in + (size_t)peer * step, bytes);
        nccl_double_add(&exchange, peer, false, all + (size_t)peer * bytes, bytes);
    }
    return nccl_double_run(comm, &exchange);
}

static int do_collective(nccl_comm_t *comm, const operation_t *o)
{
    size_t ranks = (size_t)comm->ranks, bytes = o->count * sizeof(int32_t);
    size_t in_bytes = o->kind == REDUCE_SCATTER ? ranks * bytes : bytes;
    size_t out_bytes = o->kind == ALL_GATHER ? ranks * bytes : bytes;
    char *in = cuda_double_bytes(o->in, in_bytes), *out = cuda_double_bytes(o->out, out_bytes);
    char *all = o->kind == ALL_GATHER ? out : malloc(ranks * bytes);

    if (in == NULL || out == NULL || all == NULL) {
        return fail(comm, XM_NCCL_UNHANDLED_CUDA, "illegal address");
    }
    if (collect(comm, in, o->kind == REDUCE_SCATTER ? bytes : 0, all, bytes) &&
        o->kind != ALL_GATHER) {
        add_up((int32_t *)(void *)out, (const int32_t *)(const void *)all, comm->ranks, o->count);
    }
    if (o->kind != ALL_GATHER) {
        free(all);
    }
    if (is_named("NCCL_DOUBLE_WRONG", names[o->kind])) {
        out[out_bytes / 2] ^= 1;
    }
    return XM_NCCL_SUCCESS;
}

static int do_group(nccl_comm_t *comm, const work_t *work)
{
    nccl_exchange_t exchange = {.count = 0};

    for (int i = 0; i < work->count; ++i) {
        const operation_t *o = &work->operations[i];
        bool send = o->kind == SEND;
        size_t bytes = o->count * sizeof(int32_t);
        char *at = cuda_double_bytes(send ? o->in : o->out, bytes);

        if (at == NULL) {
            return fail(comm, XM_NCCL_UNHANDLED_CUDA, "illegal address");
        }
        nccl_double_add(&exchange, o->peer, send, at, bytes);
    }
    (void)nccl_double_run(comm, &exchange);
    if (is_named("NCCL_DOUBLE_WRONG", "ncclRecv")) {
        const operation_t *o = &work->operations[work->count - 1];

        *cuda_double_bytes(o->out, 1) ^= 1;
    }
    return XM_NCCL_SUCCESS;
}

static void run_work(void *arg)
{
    work_t *work = arg;
    nccl_comm_t *comm = work->comm;
    kind_t kind = work->operations[0].kind;
    int result;

    while (is_named("NCCL_DOUBLE_HANG", names[kind]) && !atomic_load(&comm->aborted)) {
        (void)usleep(50);
    }
    result = kind == SEND || kind == RECV ? do_group(comm, work)
                                          : do_collective(comm, &work->operations[0]);
    if (result != XM_NCCL_SUCCESS) {
        atomic_store(&comm->error, result);
    }
    free(work);
    (void)atomic_fetch_sub(&comm->pending, 1);
}

static int launch(const work_t *work)
{
    nccl_comm_t *comm = work->comm;
    work_t *copy;

    if (!comm->blocking && comm->questions < 2) {
        return fail(comm, XM_NCCL_INVALID_USAGE, "the call before is in progress");
    }
    copy = malloc(sizeof(*copy));
    if (copy == NULL) {
        return XM_NCCL_SYSTEM;
    }
    *copy = *work;
    comm->questions = 0;
    (void)atomic_fetch_add(&comm->pending, 1);
    if (cuLaunchHostFunc(work->stream, run_work, copy) != XM_CU_SUCCESS) {
        (void)atomic_fetch_sub(&comm->pending, 1);
        free(copy);
        return fail(comm, XM_NCCL_UNHANDLED_CUDA, "the stream takes nothing");
    }
    return comm->blocking ? XM_NCCL_SUCCESS : XM_NCCL_IN_PROGRESS;
}

static int put(nccl_comm_t *comm, void *stream, const operation_t *operation, int type)
{
    int result = fault(names[operation->kind]);

    if (result != XM_NCCL_SUCCESS) {
        return fail(comm, result, "injected");
    }
    if (type != XM_NCCL_INT32 || operation->peer < 0 || operation->peer >= comm->ranks) {
        return fail(comm, XM_NCCL_INVALID_ARGUMENT, "a wrong type or peer");
    }
    if (depth == 0) {
        work_t work = {.comm = comm, .stream = stream, .operations = {*operation}, .count = 1};

        return launch(&work);
    }
    if (group.count > 0 && (group.comm != comm || group.stream != stream)) {
        return fail(comm, XM_NCCL_INVALID_USAGE, "one communicator and stream to a group");
    }
    group.comm = comm;
    group.stream = stream;
    group.operations[group.count++] = *operation;
    return XM_NCCL_SUCCESS;
}

int ncclAllGather(const void *in, void *out, size_t count, int type, void *comm, void *stream)
{
    operation_t operation = {.kind = ALL_GATHER, .in = in, .out = out, .count = count};

    return put(comm, stream, &operation, type);
}

int ncclAllReduce(const void *in, void *out, size_t count, int type, int sum, void *comm,
                  void *stream)
{
    operation_t operation = {.kind = ALL_REDUCE, .in = in, .out = out, .count = count};

    return sum == XM_NCCL_SUM ? put(comm, stream, &operation, type) : XM_NCCL_INVALID_ARGUMENT;
}

int ncclReduceScatter(const void *in, void *out, size_t count, int type, int sum, void *comm,
                      void *stream)
{
    operation_t operation = {.kind = REDUCE_SCATTER, .in = in, .out = out, .count = count};

    return sum == XM_NCCL_SUM ? put(comm, stream, &operation, type) : XM_NCCL_INVALID_ARGUMENT;
}

int ncclSend(const void *in, size_t count, int type, int peer, void *comm, void *stream)
{
    operation_t operation = {.kind = SEND, .in = in, .count = count, .peer = peer};

    return put(comm, stream, &operation, type);
}

int ncclRecv(void *out, size_t count, int type, int peer, void *comm, void *stream)
{
    operation_t operation = {.kind = RECV, .out = out, .count = count, .peer = peer};

    return put(comm, stream, &operation, type);
}

int ncclGroupStart(void)
{
    if (depth++ == 0) {
        group.count = 0;
    }
    return XM_NCCL_SUCCESS;
}

int ncclGroupEnd(void)
{
    int result = fault("ncclGroupEnd");

    if (depth == 0) {
        return fail(NULL, XM_NCCL_INVALID_USAGE, "no group was started");
    }
    --depth;
    if (depth > 0 || group.count == 0 || result != XM_NCCL_SUCCESS) {
        return result;
    }
    return launch(&group);
}
