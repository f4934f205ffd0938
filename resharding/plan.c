#include "resharding/plan_private.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "comm/config.h"
#include "resharding/bound.h"
#include "resharding/simulate.h"

/* Chunks below this size cost more in handshakes than they gain in overlap. */
enum { SMALLEST_CHUNK = 64 * 1024, LARGEST_ELEMENT = 16 };

/* Below 2^63 by far more than rounding up every transfer adds. */
static const double longest_ns = 9e18;

/* Working state of xm_plan_create(). */
typedef struct {
    xm_plan_t *plan;
    const xm_plan_params_t *params;
    xm_device_load_t load;
    xm_work_t *work; /* what must cross the network */
    int64_t work_count;
    int *receivers; /* the work items' lists, one after the other */
    int *scratch;   /* room for the receivers of one task, three times */
} builder_t;

xm_status_t xm_plan_append(xm_plan_t *plan, int64_t task, int sender, int receiver, int64_t parent,
                           int64_t *index)
{
    if (plan->transfer_count == plan->transfer_capacity) {
        int64_t grown = plan->transfer_capacity > 0 ? plan->transfer_capacity * 2 : 64;
        xm_transfer_t *transfers =
            realloc(plan->transfers, (size_t)grown * sizeof(*plan->transfers));

        if (transfers == NULL) {
            return xm_error_set(XM_ERR_NO_MEMORY, "no memory for %" PRId64 " transfers", grown);
        }
        plan->transfers = transfers;
        plan->transfer_capacity = grown;
    }
    *index = plan->transfer_count;
    plan->transfers[plan->transfer_count++] =
        (xm_transfer_t){.task = task,
                        .parent = parent,
                        .first_chunk = 0,
                        .end_chunk = xm_plan_chunks(plan, task),
                        .sender = sender,
                        .receiver = receiver};
    return XM_OK;
}

static bool on_holding_host(const builder_t *builder, const xm_unit_task_t *task, int rank)
{
    int count;
    const int *holders = xm_layout_replicas(builder->plan->src, task->src_tile, &count);
    int host = xm_network_host_of(builder->params->network, rank);

    for (int i = 0; i < count; ++i) {
        if (xm_network_host_of(builder->params->network, holders[i]) == host) {
            return true;
        }
    }
    return false;
}

static bool is_holder(const builder_t *builder, const xm_unit_task_t *task, int rank)
{
    return xm_layout_tile_of_rank(builder->plan->src, rank) == task->src_tile;
}

static xm_status_t emit(builder_t *builder, const xm_work_t *work)
{
    memcpy(builder->scratch, work->receivers, (size_t)work->receiver_count * sizeof(int));
    return builder->params->strategy == XM_STRATEGY_SEND_RECV
               ? xm_strategy_send_recv_emit(builder->plan, &builder->load, work, builder->scratch)
               : xm_strategy_broadcast_emit(builder->plan, &builder->load, work, builder->scratch);
}

/*
 * What costs no NIC: a receiver that holds the box copies it; one that shares a host with a holder
 * gets it from there. Emitted at once; the others are collected in `remote`.
 */
static xm_status_t serve_locally(builder_t *builder, int64_t index, int *remote, int *remote_count)
{
    const xm_unit_task_t *task = &builder->plan->tasks[index];
    int count, *near = builder->scratch + 2 * xm_mesh_size(xm_layout_mesh(builder->plan->dst));
    const int *receivers = xm_layout_replicas(builder->plan->dst, task->dst_tile, &count);
    int near_count = 0;

    *remote_count = 0;
    for (int i = 0; i < count; ++i) {
        if (is_holder(builder, task, receivers[i])) {
            int64_t transfer;
            xm_status_t status =
                xm_plan_append(builder->plan, index, receivers[i], receivers[i], -1, &transfer);

            if (status < 0) {
                return status;
            }
        } else if (on_holding_host(builder, task, receivers[i])) {
            near[near_count++] = receivers[i];
        } else {
            remote[(*remote_count)++] = receivers[i];
        }
    }
    for (int first = 0, end; first < near_count; first = end) {
        int host = xm_network_host_of(builder->params->network, near[first]);
        xm_work_t work = {.task = index,
                          .bytes = task->elements * builder->plan->element_size,
                          .receivers = near + first,
                          .sender_host = host};
        xm_status_t status;

        for (end = first + 1;
             end < near_count && xm_network_host_of(builder->params->network, near[end]) == host;
             ++end) {
        }
        work.receiver_count = end - first;
        status = emit(builder, &work);
        if (status < 0) {
            return status;
        }
    }
    return XM_OK;
}

/* Work for the scheduler: one item per remote receiver under send_recv, one per task under
 * broadcast. */
static xm_status_t collect_work(builder_t *builder)
{
    xm_plan_t *plan = builder->plan;
    bool single = builder->params->strategy == XM_STRATEGY_SEND_RECV;
    int *next = builder->receivers;

    for (int64_t t = 0; t < plan->task_count; ++t) {
        int count;
        xm_status_t status = serve_locally(builder, t, next, &count);

        if (status < 0) {
            return status;
        }
        for (int i = 0; i < count; i += single ? 1 : count) {
            builder->work[builder->work_count++] =
                (xm_work_t){.task = t,
                            .bytes = plan->tasks[t].elements * plan->element_size,
                            .receivers = next + i,
                            .receiver_count = single ? 1 : count};
        }
        next += count;
    }
    return XM_OK;
}

static xm_status_t schedule(builder_t *builder)
{
    const xm_network_t *network = builder->params->network;
    xm_status_t status;

    status = builder->params->scheduler == XM_SCHEDULER_NAIVE
                 ? xm_schedule_naive(builder->plan, network, builder->work, builder->work_count)
                 : xm_schedule_balance(builder->plan, network, builder->work, builder->work_count);
    for (int64_t i = 0; status == XM_OK && i < builder->work_count; ++i) {
        status = emit(builder, &builder->work[i]);
    }
    return status;
}

/* Most hops a chain of this task can have: its receiving hosts, or the ranks of one of them. */
static int chain_hops(const builder_t *builder, const xm_unit_task_t *task)
{
    int count, hosts = 0, last = -1, ranks = 0, most = 0;
    const int *receivers = xm_layout_replicas(builder->plan->dst, task->dst_tile, &count);

    if (builder->params->strategy == XM_STRATEGY_SEND_RECV) {
        return 1;
    }
    for (int i = 0; i < count; ++i) {
        int host = xm_network_host_of(builder->params->network, receivers[i]);

        ranks = host == last ? ranks + 1 : 1;
        hosts += host != last;
        most = ranks > most ? ranks : most;
        last = host;
    }
    return hosts + most - 1;
}

/*
 * A chain of h hops over n bytes in chunks of c takes (n / c + h − 1) · (latency + c / bandwidth),
 * which is least at c = sqrt(n · latency · bandwidth / (h − 1)).
 */
static void choose_chunks(builder_t *builder)
{
    xm_plan_t *plan = builder->plan;
    uint64_t limit = builder->params->chunk_bytes > 0 ? builder->params->chunk_bytes
                                                      : xm_config_bytes(XM_CONFIG_CHUNK_SIZE);
    double product = xm_network_nic_latency(builder->params->network) *
                     xm_network_nic_bandwidth(builder->params->network);

    for (int64_t t = 0; t < plan->task_count; ++t) {
        int64_t elements = plan->tasks[t].elements;
        int hops = chain_hops(builder, &plan->tasks[t]);
        double bytes = (double)limit;

        if (hops > 1) {
            double best =
                sqrt((double)(elements * plan->element_size) * product / (double)(hops - 1));

            bytes = fmin(bytes, fmax(best, SMALLEST_CHUNK));
        }
        elements = llrint(bytes) / plan->element_size < elements
                       ? llrint(bytes) / plan->element_size
                       : elements;
        plan->chunk_elements[t] = elements > 0 ? elements : 1;
    }
}

/* Sums of bytes and of nanoseconds are 64 bits wide: the most that any plan adds up must fit. */
static xm_status_t check_sums(const xm_plan_params_t *params, int64_t bytes)
{
    int copies = xm_mesh_size(xm_layout_mesh(params->dst)) / xm_layout_tiles(params->dst);
    double rate = xm_network_nic_bandwidth(params->network);
    int64_t all_bytes;
    double ns;

    if (__builtin_mul_overflow(bytes, copies, &all_bytes)) {
        return xm_error_set(XM_ERR_INVALID_ARGUMENT,
                            "the %d copies of the tensor at the destination have more than 2^63 "
                            "bytes",
                            copies);
    }
    ns = (double)(params->strategy == XM_STRATEGY_SEND_RECV ? all_bytes : bytes) * 1e9 / rate;
    if (ns >= longest_ns) {
        return xm_error_set(XM_ERR_INVALID_ARGUMENT,
                            "the tensor has %" PRId64 " bytes, which take %g s at %g bytes/s; at "
                            "most %g s can be planned",
                            bytes, ns * 1e-9, rate, longest_ns * 1e-9);
    }
    return XM_OK;
}

static xm_status_t check_params(const xm_plan_params_t *params)
{
    const xm_layout_t *layouts[] = {params->src, params->dst};
    int64_t bytes = params->element_size;

    if (params->element_size < 1 || params->element_size > LARGEST_ELEMENT) {
        return xm_error_set(XM_ERR_INVALID_ARGUMENT, "an element has 1 to %d bytes, not %" PRId64,
                            LARGEST_ELEMENT, params->element_size);
    }
    for (int i = 0; i < 2; ++i) {
        int rank = xm_mesh_max_rank(xm_layout_mesh(layouts[i]));

        if (rank >= xm_network_ranks(params->network)) {
            return xm_error_set(
                XM_ERR_INVALID_ARGUMENT, "the %s mesh names rank %d, but the job has ranks 0 … %d",
                i == 0 ? "source" : "destination", rank, xm_network_ranks(params->network) - 1);
        }
    }
    for (int d = 0; d < xm_layout_dims(params->src); ++d) {
        if (__builtin_mul_overflow(bytes, xm_layout_shape(params->src)[d], &bytes)) {
            return xm_error_set(XM_ERR_INVALID_ARGUMENT,
                                "the tensor has more than 2^63 bytes (up to dimension %d)", d);
        }
    }
    return check_sums(params, bytes);
}

static xm_status_t allocate_builder(builder_t *builder)
{
    xm_plan_t *plan = builder->plan;
    size_t receivers = (size_t)plan->task_count * (size_t)(xm_mesh_size(xm_layout_mesh(plan->dst)) /
                                                           xm_layout_tiles(plan->dst));
    size_t devices = (size_t)xm_mesh_size(xm_layout_mesh(plan->dst));

    /* One entry more than needed, so that an empty tensor allocates too. */
    plan->chunk_elements = calloc((size_t)plan->task_count + 1, sizeof(*plan->chunk_elements));
    builder->work = malloc((receivers + 1) * sizeof(*builder->work));
    builder->receivers = malloc((receivers + devices) * sizeof(int));
    builder->scratch = malloc(3 * devices * sizeof(int));
    builder->load.network = builder->params->network;
    builder->load.sent =
        calloc((size_t)xm_network_ranks(builder->params->network), sizeof(*builder->load.sent));
    if (plan->chunk_elements == NULL || builder->work == NULL || builder->receivers == NULL ||
        builder->scratch == NULL || builder->load.sent == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "no memory to plan %" PRId64 " unit tasks",
                            plan->task_count);
    }
    return XM_OK;
}

static xm_status_t finish(builder_t *builder)
{
    xm_plan_t *plan = builder->plan;
    const xm_network_t *network = builder->params->network;
    xm_bound_t bound;
    xm_status_t status;

    for (int64_t i = 0; i < plan->transfer_count; ++i) {
        xm_transfer_t *transfer = &plan->transfers[i];

        transfer->crosses = xm_network_host_of(network, transfer->sender) !=
                            xm_network_host_of(network, transfer->receiver);
        if (transfer->crosses) {
            plan->net_bytes += xm_plan_transfer_bytes(plan, i);
        }
    }
    status = xm_plan_hash(plan);
    if (status < 0) {
        return status;
    }
    status = xm_plan_verify(plan);
    if (status < 0) {
        return xm_error_prefix(XM_ERR_INTERNAL, "the new plan is wrong");
    }
    status = xm_bound_compute(plan->src, plan->dst, plan->tasks, plan->task_count,
                              plan->element_size, network, &bound);
    if (status < 0) {
        return status;
    }
    plan->bound_ns = bound.ns;
    return xm_simulate(plan, network, NULL, &plan->makespan_ns);
}

xm_status_t xm_plan_create(const xm_plan_params_t *params, xm_plan_t **plan)
{
    builder_t builder = {.params = params};
    xm_status_t status;

    status = check_params(params);
    if (status < 0) {
        return status;
    }
    builder.plan = calloc(1, sizeof(*builder.plan));
    if (builder.plan == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "no memory for a plan");
    }
    builder.plan->element_size = params->element_size;
    builder.plan->strategy = params->strategy;
    builder.plan->scheduler = params->scheduler;
    status = xm_layout_clone(params->src, &builder.plan->src);
    if (status == XM_OK) {
        status = xm_layout_clone(params->dst, &builder.plan->dst);
    }
    if (status == XM_OK) {
        status = xm_unit_tasks_create(params->src, params->dst, &builder.plan->tasks,
                                      &builder.plan->task_count);
    }
    if (status == XM_OK) {
        status = allocate_builder(&builder);
    }
    if (status == XM_OK) {
        choose_chunks(&builder);
        status = collect_work(&builder);
    }
    if (status == XM_OK) {
        status = schedule(&builder);
    }
    if (status == XM_OK) {
        status = finish(&builder);
    }
    free(builder.load.sent);
    free(builder.scratch);
    free(builder.receivers);
    free(builder.work);
    if (status < 0) {
        xm_plan_destroy(builder.plan);
        return status;
    }
    *plan = builder.plan;
    return XM_OK;
}

void xm_plan_destroy(xm_plan_t *plan)
{
    if (plan != NULL) {
        free(plan->transfers);
        free(plan->chunk_elements);
        free(plan->tasks);
        xm_layout_destroy(plan->dst);
        xm_layout_destroy(plan->src);
        free(plan);
    }
}

const xm_layout_t *xm_plan_src(const xm_plan_t *plan)
{
    return plan->src;
}

const xm_layout_t *xm_plan_dst(const xm_plan_t *plan)
{
    return plan->dst;
}

int64_t xm_plan_element_size(const xm_plan_t *plan)
{
    return plan->element_size;
}

xm_strategy_t xm_plan_strategy(const xm_plan_t *plan)
{
    return plan->strategy;
}

xm_scheduler_t xm_plan_scheduler(const xm_plan_t *plan)
{
    return plan->scheduler;
}

const xm_unit_task_t *xm_plan_tasks(const xm_plan_t *plan, int64_t *count)
{
    *count = plan->task_count;
    return plan->tasks;
}

const xm_transfer_t *xm_plan_transfers(const xm_plan_t *plan, int64_t *count)
{
    *count = plan->transfer_count;
    return plan->transfers;
}

int64_t xm_plan_chunk_elements(const xm_plan_t *plan, int64_t task)
{
    return plan->chunk_elements[task];
}

int64_t xm_plan_chunks(const xm_plan_t *plan, int64_t task)
{
    return (plan->tasks[task].elements + plan->chunk_elements[task] - 1) /
           plan->chunk_elements[task];
}

uint64_t xm_plan_transfer_bytes(const xm_plan_t *plan, int64_t transfer)
{
    const xm_transfer_t *t = &plan->transfers[transfer];
    int64_t chunk = plan->chunk_elements[t->task], elements = plan->tasks[t->task].elements;
    int64_t first = t->first_chunk * chunk, end = t->end_chunk * chunk;

    end = end < elements ? end : elements;
    return (uint64_t)((end - first) * plan->element_size);
}

uint64_t xm_plan_bytes(const xm_plan_t *plan)
{
    uint64_t bytes = (uint64_t)plan->element_size;

    for (int d = 0; d < xm_layout_dims(plan->src); ++d) {
        bytes *= (uint64_t)xm_layout_shape(plan->src)[d];
    }
    return bytes;
}

uint64_t xm_plan_net_bytes(const xm_plan_t *plan)
{
    return plan->net_bytes;
}

int64_t xm_plan_bound_ns(const xm_plan_t *plan)
{
    return plan->bound_ns;
}

int64_t xm_plan_makespan_ns(const xm_plan_t *plan)
{
    return plan->makespan_ns;
}

const char *xm_plan_digest(const xm_plan_t *plan)
{
    return plan->digest;
}
