/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bytes that choose a resharding problem: meshes that may overlap, specs, partitions, element
 * sizes, several tensors, hosts and rates, strategy and scheduler. The planner refuses it with a
 * sentence, or makes a plan that its verifier accepts, that is not below its bound, that comes out
 * the same a second time, and that is written as well-formed JSON.
 */
#include <jansson.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "resharding/plan/plan.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { RANKS = 16, TENSORS = 3, MOST_DIMS = 3, MOST_EXTENT = 12, MOST_AXES = 3 };

typedef struct {
    const uint8_t *at;
    size_t left;
} input_t;

static void expect(bool condition)
{
    if (!condition) {
        abort();
    }
}

/* A number below @p limit; 0 when the input is at its end. */
static int choose(input_t *input, int limit)
{
    if (input->left == 0) {
        return 0;
    }
    --input->left;
    return *input->at++ % limit;
}

/* Any ranks below RANKS, each once. */
static xm_mesh_t *make_mesh(input_t *input)
{
    int sizes[MOST_AXES], ranks[RANKS], axes = choose(input, MOST_AXES + 1), count = 1;
    xm_mesh_t *mesh = NULL;

    for (int a = 0; a < axes; ++a) {
        sizes[a] = 1 + choose(input, 4);
        sizes[a] = count * sizes[a] <= RANKS ? sizes[a] : 1;
        count *= sizes[a];
    }
    for (int r = 0; r < RANKS; ++r) {
        ranks[r] = r;
    }
    for (int r = 0; r < count; ++r) {
        int other = r + choose(input, RANKS - r), rank = ranks[r];

        ranks[r] = ranks[other];
        ranks[other] = rank;
    }
    expect(xm_mesh_create(axes, sizes, ranks, &mesh) == XM_OK);
    return mesh;
}

/* Any axes, also such that do not exist or are used twice. */
static void make_spec(input_t *input, int dims, xm_spec_t *spec)
{
    *spec = (xm_spec_t){.dims = dims};
    for (int d = 0; d < dims; ++d) {
        spec->axis_count[d] = choose(input, 3);
        for (int a = 0; a < spec->axis_count[d]; ++a) {
            spec->axes[d][a] = (uint8_t)choose(input, MOST_AXES);
        }
    }
}

/* Rising cut points, if the bytes will have it. */
static xm_status_t make_explicit(input_t *input, const xm_mesh_t *mesh, const xm_spec_t *spec,
                                 const int64_t *shape, xm_layout_t **layout)
{
    int64_t points[MOST_DIMS][RANKS + 1];
    const int64_t *cuts[MOST_DIMS];
    xm_status_t status = xm_spec_check(spec, mesh);

    if (status < 0) {
        return status;
    }
    for (int d = 0; d < spec->dims; ++d) {
        int parts = xm_spec_parts(spec, mesh, d);

        for (int p = 0; p <= parts; ++p) {
            points[d][p] = p == 0 ? 0 : p == parts ? shape[d] : choose(input, MOST_EXTENT);
        }
        cuts[d] = points[d];
    }
    return xm_layout_create_explicit(mesh, spec, shape, cuts, layout);
}

static xm_layout_t *make_layout(input_t *input, int dims, const int64_t *shape)
{
    xm_partition_t partition = (xm_partition_t)choose(input, XM_PARTITION_COUNT);
    xm_mesh_t *mesh = make_mesh(input);
    xm_layout_t *layout = NULL;
    xm_spec_t spec;
    xm_status_t status;

    make_spec(input, dims, &spec);
    status = partition == XM_PARTITION_EXPLICIT
                 ? make_explicit(input, mesh, &spec, shape, &layout)
                 : xm_layout_create(mesh, &spec, partition, shape, &layout);
    expect(status == XM_OK || (layout == NULL && xm_last_error()[0] != '\0'));
    xm_mesh_destroy(mesh);
    return layout;
}

static xm_network_t *make_network(input_t *input)
{
    static const double rates[] = {1e3, 1.2e8, 1e9, 1.25e11};
    int per_host = 1 + choose(input, 8), hosts = (RANKS + per_host - 1) / per_host;
    int host_of[RANKS], rack_of[RANKS];
    double egress[RANKS], ingress[RANKS];
    xm_network_params_t params = XM_NETWORK_PARAMS_INIT;
    xm_network_t *network = NULL;
    int uneven = choose(input, 2), racks = choose(input, 2);

    for (int r = 0; r < RANKS; ++r) {
        host_of[r] = r / per_host;
    }
    for (int h = 0; h < hosts; ++h) {
        egress[h] = rates[choose(input, 4)];
        ingress[h] = rates[choose(input, 4)];
        rack_of[h] = h / 2;
    }
    params.ranks = RANKS;
    params.host_of_rank = host_of;
    params.nic_bandwidth = rates[choose(input, 4)];
    params.nic_latency = 1e-6 * choose(input, 100);
    params.host_bandwidth = rates[choose(input, 4)];
    params.host_latency = 1e-7 * choose(input, 100);
    params.egress = uneven ? egress : NULL;
    params.ingress = uneven ? ingress : NULL;
    params.rack_of_host = racks ? rack_of : NULL;
    params.uplink_bandwidth = racks ? rates[choose(input, 4)] : 0;
    expect(xm_network_create(&params, &network) == XM_OK);
    return network;
}

static void check_json(const xm_plan_t *plan)
{
    char *text = NULL;
    size_t length = 0;
    FILE *stream = open_memstream(&text, &length);
    json_t *root;

    expect(stream != NULL && xm_plan_write_json(plan, stream) == XM_OK && fclose(stream) == 0);
    root = json_loadb(text, length, JSON_REJECT_DUPLICATES, NULL);
    expect(root != NULL);
    expect(strcmp(json_string_value(json_object_get(root, "digest")), xm_plan_digest(plan)) == 0);
    json_decref(root);
    free(text);
}

static void try_plan(const xm_plan_params_t *params)
{
    xm_plan_t *plan = NULL, *again = NULL;

    if (xm_plan_create(params, &plan) < 0) {
        expect(plan == NULL && xm_last_error()[0] != '\0');
        return;
    }
    expect(xm_plan_verify(plan) == XM_OK);
    expect(xm_plan_makespan_ns(plan) >= xm_plan_bound_ns(plan));
    expect(xm_plan_net_bytes(plan) == 0 || xm_plan_makespan_ns(plan) > 0);
    check_json(plan);
    expect(xm_plan_create(params, &again) == XM_OK);
    expect(strcmp(xm_plan_digest(plan), xm_plan_digest(again)) == 0);
    xm_plan_destroy(again);
    xm_plan_destroy(plan);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const int bits[] = {8, 16, 32, 64, 128, 4, 2, 1};
    input_t input = {.at = data, .left = size};
    xm_plan_params_t params = XM_PLAN_PARAMS_INIT;
    xm_layout_t *layouts[2 * TENSORS] = {NULL};
    xm_tensor_t tensors[TENSORS] = {{0}};
    bool good = true;
    xm_network_t *network;

    params.strategy = (xm_strategy_t)choose(&input, XM_STRATEGY_COUNT);
    params.scheduler = (xm_scheduler_t)choose(&input, XM_SCHEDULER_COUNT);
    params.chunk_bytes = (uint64_t)64 << choose(&input, 4);
    params.seed = (uint64_t)choose(&input, 256);
    params.node_budget = 64;
    params.tensor_count = 1 + choose(&input, TENSORS);
    params.tensors = tensors;
    network = make_network(&input);
    params.network = network;
    for (int t = 0; t < params.tensor_count; ++t) {
        int dims = choose(&input, MOST_DIMS + 1);
        int64_t shape[MOST_DIMS] = {0};

        for (int d = 0; d < dims; ++d) {
            shape[d] = choose(&input, MOST_EXTENT);
        }
        tensors[t].element_bits = bits[choose(&input, 8)];
        layouts[2 * t] = make_layout(&input, dims, shape);
        layouts[2 * t + 1] = make_layout(&input, dims, shape);
        tensors[t].src = layouts[2 * t];
        tensors[t].dst = layouts[2 * t + 1];
        good = good && tensors[t].src != NULL && tensors[t].dst != NULL;
    }
    if (good) {
        try_plan(&params);
    }
    for (int l = 0; l < 2 * TENSORS; ++l) {
        xm_layout_destroy(layouts[l]);
    }
    xm_network_destroy(network);
    return 0;
}
