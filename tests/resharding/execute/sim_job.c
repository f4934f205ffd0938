/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/resharding/execute/sim_job.h"

#include <stdio.h>

#include "tests/resharding/execute/cuda_transport.h"
#include "tests/resharding/plan/random_relay.h"
#include "resharding/order.h"
#include "xm_test.h"

enum { RUBBISH = 0xa5, GAP = 0xee };

static void random_network(random_t *random, int ranks, const int *host_of_rank,
                           xm_network_t **network)
{
    static const double weights[] = {1, 3, 2, 1.5};
    xm_network_params_t params = XM_NETWORK_PARAMS_INIT;
    double egress[SIM_MAX_RANKS], ingress[SIM_MAX_RANKS];
    int rack_of_host[SIM_MAX_RANKS];

    for (int h = 0; h < SIM_MAX_RANKS; ++h) {
        egress[h] = random_int(random, 1, 4) * 0.7e9;
        ingress[h] = random_int(random, 1, 4) * 0.9e9;
        rack_of_host[h] = h / 2;
    }
    params.ranks = ranks;
    params.host_of_rank = host_of_rank;
    params.nic_bandwidth = 1e9;
    params.nics_per_host = random_int(random, 0, 1) * random_int(random, 1, 4);
    params.nic_weights = random_int(random, 0, 1) == 1 ? weights : NULL;
    params.nic_latency = random_int(random, 0, 3) * 1.7e-8;
    params.host_bandwidth = 1e10;
    params.host_latency = random_int(random, 0, 2) * 1.1e-9;
    if (random_int(random, 0, 1) == 1) {
        params.egress = egress;
        params.ingress = ingress;
    }
    if (random_int(random, 0, 3) == 0) {
        params.rack_of_host = rack_of_host;
        params.uplink_bandwidth = 0.8e9;
    }
    ck_assert_xm_ok(xm_network_create(&params, network));
}

void batch_create(random_t *random, batch_t *batch)
{
    static const char *const names[SIM_MAX_TENSORS] = {"w0", "w1", NULL, "w3"};
    random_batch_t *b = &batch->random;

    random_batch_create(random, b);
    xm_network_destroy(b->network);
    random_network(random, b->ranks, b->host_of_rank, &b->network);
    for (int t = 0; t < b->count; ++t) {
        b->tensors[t].name = names[t];
    }
    b->params.network = b->network;
    b->params.chunk_bytes = (uint64_t)random_int(random, 1, 4) * 24;
    ck_assert_xm_ok(xm_plan_create(&b->params, &batch->plan));
    batch->forwards = random_int(random, 0, 2) == 0 ? random_forwards(random, batch->plan) : 0;
}

void batch_destroy(batch_t *batch)
{
    xm_plan_destroy(batch->plan);
    random_batch_destroy(&batch->random);
}

void fixed_create(fixed_t *fixed, const char *src_mesh, const char *src_spec, const char *dst_mesh,
                  int dst_first, const char *dst_spec, int ranks, int64_t rows, int64_t columns)
{
    xm_network_params_t network = XM_NETWORK_PARAMS_INIT;
    xm_plan_params_t params = XM_PLAN_PARAMS_INIT;
    int hosts[SIM_MAX_RANKS];
    int64_t shape[2] = {rows, columns};
    xm_mesh_t *meshes[2];
    xm_layout_t *layouts[2];
    xm_spec_t specs[2];

    ck_assert_xm_ok(xm_mesh_parse(src_mesh, NULL, 0, &meshes[0]));
    ck_assert_xm_ok(xm_mesh_parse(dst_mesh, NULL, dst_first, &meshes[1]));
    ck_assert_xm_ok(xm_spec_parse(src_spec, &specs[0]));
    ck_assert_xm_ok(xm_spec_parse(dst_spec, &specs[1]));
    for (int side = 0; side < 2; ++side) {
        ck_assert_xm_ok(
            xm_layout_create(meshes[side], &specs[side], XM_PARTITION_EVEN, shape, &layouts[side]));
        xm_mesh_destroy(meshes[side]);
    }
    for (int r = 0; r < ranks; ++r) {
        hosts[r] = r / 4;
    }
    network.ranks = ranks;
    network.host_of_rank = hosts;
    network.nic_bandwidth = 1e9;
    network.host_bandwidth = 1e10;
    network.nic_latency = 1e-5;
    ck_assert_xm_ok(xm_network_create(&network, &fixed->network));
    params.src = layouts[0];
    params.dst = layouts[1];
    params.element_size = 4;
    params.network = fixed->network;
    params.chunk_bytes = 256;
    ck_assert_xm_ok(xm_plan_create(&params, &fixed->plan));
    xm_layout_destroy(layouts[0]);
    xm_layout_destroy(layouts[1]);
}

void fixed_default(fixed_t *fixed)
{
    fixed_create(fixed, "2x4", "RS0", "2x4", 8, "S0R", 16, 64, 48);
}

void fixed_destroy(fixed_t *fixed)
{
    xm_plan_destroy(fixed->plan);
    xm_network_destroy(fixed->network);
}

enum { SRC, DST };

static void *buffer_of(const sim_job_t *job, int rank, int tensor, int side, size_t *bytes)
{
    const xm_tensor_buffers_t *buffers = &job->buffers[rank][tensor];

    *bytes = side == SRC ? buffers->src_bytes : buffers->dst_bytes;
    return side == SRC ? (void *)(uintptr_t)buffers->src : buffers->dst;
}

/* A buffer as the host may read it: one on a device is copied. */
static const void *look(const sim_job_t *job, int rank, int tensor, int side)
{
    size_t bytes;
    void *buffer = buffer_of(job, rank, tensor, side, &bytes), *copy = buffer;

    if (job->on_device[rank][tensor][side]) {
        copy = malloc(bytes);
        ck_assert_xm_ok(xm_memory_copy(job->space, copy, buffer, bytes));
    }
    return copy;
}

static void look_away(const sim_job_t *job, int rank, int tensor, int side, const void *seen)
{
    if (job->on_device[rank][tensor][side]) {
        free((void *)(uintptr_t)seen);
    }
}

/* Writes the pattern of the job's seed, or rubbish. */
static void paint(sim_job_t *job, int rank, int tensor, int side)
{
    size_t bytes;
    void *buffer = buffer_of(job, rank, tensor, side, &bytes), *painted = buffer;

    if (job->on_device[rank][tensor][side]) {
        painted = malloc(bytes);
    }
    if (side == SRC) {
        pattern_fill(xm_plan_tensor_src(job->plan, tensor), rank,
                     xm_plan_tensor_element_size(job->plan, tensor),
                     job->seed * SIM_MAX_TENSORS + (uint64_t)tensor, painted);
    } else if (bytes > 0) {
        memset(painted, RUBBISH, bytes);
    }
    if (painted != buffer) {
        ck_assert_xm_ok(xm_memory_copy(job->space, buffer, painted, bytes));
        free(painted);
    }
}

/* A buffer of its own. */
static void *allocate_buffer(sim_job_t *job, int rank, int tensor, int side, size_t bytes,
                             bool on_device)
{
    void *made = NULL;

    if (bytes == 0) {
        return NULL;
    }
    job->on_device[rank][tensor][side] = on_device;
    if (on_device) {
        ck_assert_xm_ok(xm_memory_allocate(job->space, bytes, &made));
        return made;
    }
    return malloc(bytes);
}

static void free_buffer(sim_job_t *job, int rank, int tensor, int side)
{
    size_t bytes;
    void *buffer = buffer_of(job, rank, tensor, side, &bytes);

    if (job->on_device[rank][tensor][side]) {
        xm_memory_release(job->space, buffer);
    } else {
        free(buffer);
    }
}

static void tensor_done(void *arg, int tensor)
{
    struct sim_call *call = arg;
    sim_job_t *job = call->job;
    const void *dst = look(job, call->rank, tensor, DST);

    ++job->done[call->rank][tensor];
    job->incomplete =
        job->incomplete || pattern_wrong(xm_plan_tensor_dst(job->plan, tensor), call->rank,
                                         xm_plan_tensor_element_size(job->plan, tensor),
                                         job->seed * SIM_MAX_TENSORS + (uint64_t)tensor, dst) != 0;
    look_away(job, call->rank, tensor, DST, dst);
}

static void set_order(const sim_job_t *job)
{
    xm_sim_slot_t *slots;
    int64_t count;

    ck_assert_xm_ok(xm_plan_messages(job->plan, &slots, &count));
    ck_assert_xm_ok(xm_sim_fabric_set_order(job->fabric, slots, (size_t)count));
    free(slots);
}

/* Buffers of a rank: exact sizes of their own, so that the sanitizers see any access outside; or
 * all in one piece, with gaps between some of them. */
static void create_buffers(sim_job_t *job, int rank, const sim_options_t *options, random_t *random)
{
    bool packed = options->packed;
    size_t offsets[2 * SIM_MAX_TENSORS], next = 0;

    for (int t = 0; t < job->tensors; ++t) {
        xm_tensor_buffers_t *buffers = &job->buffers[rank][t];
        int64_t size = xm_plan_tensor_element_size(job->plan, t);

        buffers->src_bytes = xm_layout_buffer_bytes(xm_plan_tensor_src(job->plan, t), rank, size);
        buffers->dst_bytes = xm_layout_buffer_bytes(xm_plan_tensor_dst(job->plan, t), rank, size);
        offsets[2 * t] = next;
        next += buffers->src_bytes + (size_t)random_int(random, 0, 2) * 8;
        offsets[2 * t + 1] = next;
        next += buffers->dst_bytes + (size_t)random_int(random, 0, 1) * 5000;
        if (!packed) {
            for (int side = SRC; side <= DST; ++side) {
                bool host = job->space == NULL || (options->mixed && random_int(random, 0, 2) == 0);
                void *made =
                    allocate_buffer(job, rank, t, side,
                                    side == SRC ? buffers->src_bytes : buffers->dst_bytes, !host);

                if (side == SRC) {
                    buffers->src = made;
                } else {
                    buffers->dst = made;
                }
            }
        }
    }
    if (packed) {
        job->arena[rank] = malloc(next + 1);
        job->arena_bytes[rank] = next;
        for (int t = 0; t < job->tensors; ++t) {
            job->buffers[rank][t].src = job->arena[rank] + offsets[2 * t];
            job->buffers[rank][t].dst = job->arena[rank] + offsets[2 * t + 1];
        }
    }
}

/* Finds by trial what a rank needs at least, and checks that it is honoured. */
static void tighten(xm_executor_params_t *params, xm_executor_t **executor, random_t *random)
{
    uint64_t wanted = xm_executor_staging_bytes(*executor);

    if (wanted == 0) {
        return;
    }
    xm_executor_destroy(*executor);
    params->memory_limit = (uint64_t)random_int(random, 1, (int)wanted);
    for (;;) {
        xm_status_t status = xm_executor_create(params, executor);

        if (status == XM_OK) {
            break;
        }
        ck_assert_int_eq(status, XM_ERR_INVALID_ARGUMENT);
        ck_assert_msg(strstr(xm_last_error(), "memory limit of") != NULL, "%s", xm_last_error());
        params->memory_limit += 64;
        ck_assert_uint_le(params->memory_limit, wanted + 64);
    }
    ck_assert_uint_gt(xm_executor_staging_bytes(*executor), 0);
    ck_assert_uint_le(xm_executor_staging_bytes(*executor), params->memory_limit);
}

void sim_job_create(sim_job_t *job, const xm_plan_t *plan, const xm_network_t *network,
                    const sim_options_t *options, random_t *random)
{
    memset(job, 0, sizeof(*job));
    job->ranks = xm_network_ranks(network);
    job->tensors = xm_plan_tensors(plan);
    job->plan = plan;
    job->space = options->space;
    ck_assert_xm_ok(xm_network_fabric(network, options->no_copy, &job->fabric));
    if (options->ordered) {
        set_order(job);
    }
    for (int r = 0; r < job->ranks; ++r) {
        xm_executor_params_t params = {0};

        ck_assert_xm_ok(xm_transport_sim_create(job->fabric, r, &job->transport[r]));
        if (options->direct) {
            cuda_transport_wrap(job->space, &job->transport[r]);
        }
        create_buffers(job, r, options, random);
        job->calls[r] = (struct sim_call){job, r};
        params.plan = plan;
        params.transport = job->transport[r];
        params.buffers = job->buffers[r];
        params.window = options->window;
        params.turns = options->turns;
        params.turn_ahead = options->turn_ahead;
        params.ordered = options->ordered;
        params.no_copy = options->no_copy;
        params.device_peers = options->device_peers;
        params.tensor_done = tensor_done;
        params.arg = &job->calls[r];
        ck_assert_xm_ok(xm_executor_create(&params, &job->executor[r]));
        if (options->tight_memory) {
            tighten(&params, &job->executor[r], random);
        }
    }
}

void sim_job_destroy(sim_job_t *job)
{
    for (int r = 0; r < job->ranks; ++r) {
        xm_executor_destroy(job->executor[r]);
    }
    for (int r = 0; r < job->ranks; ++r) {
        xm_transport_destroy(job->transport[r]);
        for (int t = 0; t < job->tensors && job->arena[r] == NULL; ++t) {
            free_buffer(job, r, t, SRC);
            free_buffer(job, r, t, DST);
        }
        free(job->arena[r]);
    }
    xm_sim_fabric_destroy(job->fabric);
}

void sim_job_fill(sim_job_t *job, uint64_t seed)
{
    job->seed = seed;
    job->incomplete = false;
    memset(job->done, 0, sizeof(job->done));
    for (int r = 0; r < job->ranks; ++r) {
        if (job->arena[r] != NULL) {
            memset(job->arena[r], GAP, job->arena_bytes[r]);
        }
        for (int t = 0; t < job->tensors; ++t) {
            paint(job, r, t, SRC);
            paint(job, r, t, DST);
        }
    }
}

/* Bytes of a rank's arena that belong to no buffer and were written to. */
static int touched_gaps(const sim_job_t *job, int rank)
{
    int touched = 0;

    for (const char *at = job->arena[rank]; at < job->arena[rank] + job->arena_bytes[rank]; ++at) {
        bool inside = false;

        for (int t = 0; t < job->tensors; ++t) {
            const xm_tensor_buffers_t *b = &job->buffers[rank][t];
            const char *src = b->src, *dst = b->dst;

            inside = inside || (at >= src && at < src + b->src_bytes) ||
                     (at >= dst && at < dst + b->dst_bytes);
        }
        touched += !inside && *at != (char)GAP;
    }
    return touched;
}

void sim_job_check(const sim_job_t *job, const char *text)
{
    ck_assert_msg(!job->incomplete, "a tensor was called done too early: %s", text);
    for (int r = 0; r < job->ranks; ++r) {
        for (int t = 0; t < job->tensors; ++t) {
            uint64_t seed = job->seed * SIM_MAX_TENSORS + (uint64_t)t;
            int64_t size = xm_plan_tensor_element_size(job->plan, t);
            const void *dst = look(job, r, t, DST), *src = look(job, r, t, SRC);
            int64_t wrong = pattern_wrong(xm_plan_tensor_dst(job->plan, t), r, size, seed, dst);

            ck_assert_msg(wrong == 0, "rank %d, tensor %d: %lld wrong bytes: %s", r, t,
                          (long long)wrong, text);
            wrong = pattern_wrong(xm_plan_tensor_src(job->plan, t), r, size, seed, src);
            ck_assert_msg(wrong == 0, "rank %d, tensor %d: the source has changed: %s", r, t, text);
            look_away(job, r, t, SRC, src);
            look_away(job, r, t, DST, dst);
            ck_assert_msg(job->done[r][t] == 1, "rank %d, tensor %d: called done %d times: %s", r,
                          t, job->done[r][t], text);
        }
        ck_assert_msg(job->arena[r] == NULL || touched_gaps(job, r) == 0,
                      "rank %d wrote between its buffers: %s", r, text);
    }
}

static bool anything_due(const sim_job_t *job)
{
    for (int r = 0; r < job->ranks; ++r) {
        if (xm_transport_arm(job->transport[r]) == XM_IN_PROGRESS) {
            return true;
        }
    }
    return false;
}

bool sim_job_run(sim_job_t *job, xm_status_t *results)
{
    for (int r = 0; r < job->ranks; ++r) {
        ck_assert_xm_ok(xm_executor_post(job->executor[r]));
        results[r] = XM_IN_PROGRESS;
    }
    for (;;) {
        int running = 0;
        bool busy = false;

        for (int r = 0; r < job->ranks; ++r) {
            if (results[r] != XM_IN_PROGRESS) {
                continue;
            }
            busy = xm_transport_progress(job->transport[r]) > 0 || busy;
            results[r] = xm_executor_advance(job->executor[r]);
            running += results[r] == XM_IN_PROGRESS;
            busy = busy || !xm_executor_may_sleep(job->executor[r]);
        }
        if (running == 0) {
            return true;
        }
        if (!busy && !anything_due(job) && !xm_sim_fabric_step(job->fabric)) {
            return false;
        }
    }
}
