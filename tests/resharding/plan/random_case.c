/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/resharding/plan/random_case.h"

#include <stdio.h>
#include <string.h>

#include "xm_test.h"

int random_int(random_t *random, int low, int high)
{
    return low + (int)(xm_random_below(random, (uint64_t)(high - low + 1)));
}

static xm_mesh_t *random_mesh(random_t *random, int ranks)
{
    int axes = random_int(random, 0, 3), sizes[3], size = 1, list[32];
    xm_mesh_t *mesh;

    for (int a = 0; a < axes; ++a) {
        int most = ranks / size < 4 ? ranks / size : 4;

        sizes[a] = random_int(random, 1, most);
        size *= sizes[a];
    }
    for (int i = 0; i < ranks; ++i) {
        list[i] = i;
    }
    for (int i = ranks - 1; i > 0; --i) {
        int j = random_int(random, 0, i), swap = list[i];

        list[i] = list[j];
        list[j] = swap;
    }
    ck_assert_xm_ok(xm_mesh_create(axes, sizes, list, &mesh));
    return mesh;
}

static void random_spec(random_t *random, const xm_mesh_t *mesh, int dims, xm_spec_t *spec)
{
    memset(spec, 0, sizeof(*spec));
    spec->dims = dims;
    for (int a = xm_mesh_axes(mesh) - 1; dims > 0 && a >= 0; --a) {
        int d = random_int(random, -1, dims - 1);

        if (d < 0) {
            continue;
        }
        if (random_int(random, 0, 1) == 1) { /* outermost rather than innermost */
            memmove(&spec->axes[d][1], &spec->axes[d][0], (size_t)spec->axis_count[d]);
            spec->axes[d][0] = (uint8_t)a;
        } else {
            spec->axes[d][spec->axis_count[d]] = (uint8_t)a;
        }
        ++spec->axis_count[d];
    }
}

/* An extent that both specs can cut: a multiple of the parts where a partition is even. */
static int64_t random_extent(random_t *random, int src_parts, bool src_even, int dst_parts,
                             bool dst_even)
{
    int64_t step = 1;

    if (src_even) {
        step = src_parts;
    }
    if (dst_even) {
        int64_t a = step, b = dst_parts;

        while (b != 0) {
            int64_t rest = a % b;

            a = b;
            b = rest;
        }
        step = step / a * dst_parts;
    }
    return step * random_int(random, random_int(random, 0, 9) == 0 ? 0 : 1, step > 6 ? 2 : 12);
}

static xm_partition_t random_partition(random_t *random)
{
    return (xm_partition_t)random_int(random, 0, XM_PARTITION_COUNT - 1);
}

static int compare_cuts(const void *a, const void *b)
{
    const int64_t *left = a, *right = b;

    return (*left > *right) - (*left < *right);
}

/* Random cut points of a dimension. Equal ones, and so empty parts, come often. */
static void random_cuts(random_t *random, int parts, int64_t extent, int64_t *cuts)
{
    bool coarse = random_int(random, 0, 3) == 0; /* only 0, the middle and the extent */

    for (int i = 1; i < parts; ++i) {
        cuts[i] =
            coarse ? extent * random_int(random, 0, 2) / 2 : random_int(random, 0, (int)extent);
    }
    cuts[0] = 0;
    cuts[parts] = extent;
    qsort(cuts, (size_t)parts + 1, sizeof(*cuts), compare_cuts);
}

static void random_layout(random_t *random, const xm_mesh_t *mesh, const xm_spec_t *spec,
                          xm_partition_t partition, const int64_t *shape, xm_layout_t **layout)
{
    int64_t points[4][33];
    const int64_t *cuts[4];

    if (partition != XM_PARTITION_EXPLICIT) {
        ck_assert_xm_ok(xm_layout_create(mesh, spec, partition, shape, layout));
        return;
    }
    for (int d = 0; d < spec->dims; ++d) {
        random_cuts(random, xm_spec_parts(spec, mesh, d), shape[d], points[d]);
        cuts[d] = points[d];
    }
    ck_assert_xm_ok(xm_layout_create_explicit(mesh, spec, shape, cuts, layout));
}

void random_case_create(random_t *random, random_case_t *c)
{
    int per_host = random_int(random, 1, 4);

    random_case_create_for(random, random_int(random, 1, 24), per_host, c);
}

/* Two layouts of one random tensor. */
static void random_layouts(random_t *random, int ranks, int dims, xm_partition_t src_partition,
                           xm_partition_t dst_partition, xm_layout_t **src, xm_layout_t **dst)
{
    xm_mesh_t *src_mesh = random_mesh(random, ranks), *dst_mesh = random_mesh(random, ranks);
    xm_spec_t src_spec, dst_spec;
    int64_t shape[4];

    random_spec(random, src_mesh, dims, &src_spec);
    random_spec(random, dst_mesh, dims, &dst_spec);
    for (int d = 0; d < dims; ++d) {
        shape[d] = random_extent(
            random, xm_spec_parts(&src_spec, src_mesh, d), src_partition == XM_PARTITION_EVEN,
            xm_spec_parts(&dst_spec, dst_mesh, d), dst_partition == XM_PARTITION_EVEN);
    }
    random_layout(random, src_mesh, &src_spec, src_partition, shape, src);
    random_layout(random, dst_mesh, &dst_spec, dst_partition, shape, dst);
    xm_mesh_destroy(src_mesh);
    xm_mesh_destroy(dst_mesh);
}

void random_case_create_for(random_t *random, int ranks, int per_host, random_case_t *c)
{
    static const int64_t sizes[] = {1, 2, 4, 8, 16, 3};
    xm_network_params_t network = XM_NETWORK_PARAMS_INIT;
    int dims = random_int(random, 0, 4);
    xm_partition_t src_partition = random_partition(random);
    xm_partition_t dst_partition = random_partition(random);

    memset(c, 0, sizeof(*c));
    c->ranks = ranks;
    c->element_size = sizes[random_int(random, 0, 5)];
    for (int r = 0; r < c->ranks; ++r) {
        c->host_of_rank[r] = r / per_host;
    }
    random_layouts(random, ranks, dims, src_partition, dst_partition, &c->src, &c->dst);
    network.ranks = c->ranks;
    network.host_of_rank = c->host_of_rank;
    network.nic_bandwidth = 1e9;
    network.nic_latency = 1e-5;
    network.host_bandwidth = 1e10;
    network.host_latency = 1e-6;
    ck_assert_xm_ok(xm_network_create(&network, &c->network));
}

static void random_hosts(random_t *random, random_batch_t *batch)
{
    int per_host = random_int(random, 1, 4);

    batch->hosts = (batch->ranks + per_host - 1) / per_host;
    for (int r = 0; r < batch->ranks; ++r) {
        batch->host_of_rank[r] = r / per_host;
    }
    for (int r = batch->ranks - 1; random_int(random, 0, 1) == 1 && r > 0; --r) {
        int other = random_int(random, 0, r), swap = batch->host_of_rank[r];

        batch->host_of_rank[r] = batch->host_of_rank[other];
        batch->host_of_rank[other] = swap;
    }
}

/* Deals every host's ranks to at most three rails. Draws from a copy, so that the batch is the same
 * with rails and without. */
static void random_rails(random_t random, const random_batch_t *batch, int *rail_of_rank)
{
    int rail_of[32][3], next = 0;

    memset(rail_of, -1, sizeof(rail_of));
    for (int r = 0; r < batch->ranks; ++r) {
        int *rail = &rail_of[batch->host_of_rank[r]][random_int(&random, 0, 2)];

        if (*rail < 0) {
            *rail = next++;
        }
        rail_of_rank[r] = *rail;
    }
}

static void random_network(random_t *random, random_batch_t *batch)
{
    static const double rates[] = {1e9, 1.25e9, 3e9, 7e8, 2.5e10};
    xm_network_params_t params = XM_NETWORK_PARAMS_INIT;
    int rack[32], racks = random_int(random, 1, batch->hosts < 3 ? batch->hosts : 3);
    double egress[32], ingress[32];
    int rails[32];

    random_rails(*random, batch, rails);
    params.rail_of_rank = random->state % 2 == 0 ? rails : NULL;
    for (int h = 0; h < batch->hosts; ++h) {
        rack[h] = h < racks ? h : random_int(random, 0, racks - 1);
        egress[h] = rates[random_int(random, 0, 4)];
        ingress[h] = rates[random_int(random, 0, 4)];
    }
    params.ranks = batch->ranks;
    params.host_of_rank = batch->host_of_rank;
    params.nic_bandwidth = rates[random_int(random, 0, 4)];
    params.nic_latency = 1e-9 * random_int(random, 0, 1) * random_int(random, 1, 20000);
    params.host_bandwidth = random_int(random, 0, 1) == 0 ? 1e10 : 1.7e11;
    params.host_latency = 1e-9 * random_int(random, 0, 1) * random_int(random, 1, 2000);
    if (random_int(random, 0, 1) == 1) {
        params.egress = egress;
        params.ingress = ingress;
    }
    if (random_int(random, 0, 1) == 1) {
        params.rack_of_host = rack;
        params.uplink_bandwidth = random_int(random, 0, 2) * 1.1e9;
    }
    params.nics_per_host = params.rail_of_rank == NULL ? random_int(random, 0, 4) : 0;
    ck_assert_xm_ok(xm_network_create(&params, &batch->network));
}

void random_batch_create(random_t *random, random_batch_t *batch)
{
    static const int bits[] = {8, 16, 32, 64, 128, 24};
    uint64_t most = 0;

    memset(batch, 0, sizeof(*batch));
    batch->ranks = random_int(random, 1, 24);
    batch->count = random_int(random, 0, 1) == 0 ? 1 : random_int(random, 2, RANDOM_BATCH_TENSORS);
    random_hosts(random, batch);
    random_network(random, batch);
    for (int i = 0; i < batch->count; ++i) {
        xm_layout_t *src, *dst;

        random_layouts(random, batch->ranks, random_int(random, 0, 3), random_partition(random),
                       random_partition(random), &src, &dst);
        batch->tensors[i] =
            (xm_tensor_t){.src = src, .dst = dst, .element_bits = bits[random_int(random, 0, 5)]};
        for (int t = 0; t < xm_layout_tiles(dst); ++t) {
            xm_box_t box;
            uint64_t bytes;

            xm_layout_tile_box(dst, t, &box);
            bytes = (uint64_t)(xm_box_volume(&box) * batch->tensors[i].element_bits / 8);
            most = bytes > most ? bytes : most;
        }
    }
    batch->params = (xm_plan_params_t)XM_PLAN_PARAMS_INIT;
    batch->params.tensors = batch->tensors;
    batch->params.tensor_count = batch->count;
    batch->params.network = batch->network;
    batch->params.strategy = (xm_strategy_t)random_int(random, 0, XM_STRATEGY_COUNT - 1);
    batch->params.scheduler = (xm_scheduler_t)random_int(random, 0, XM_SCHEDULER_COUNT - 1);
    batch->params.chunk_bytes =
        random_int(random, 0, 3) > 0 ? 1 + most / (uint64_t)random_int(random, 1, 300) : 0;
    batch->params.seed = xm_random_next(random);
    batch->params.node_budget = random_int(random, 1, 200);
}

void random_batch_destroy(random_batch_t *batch)
{
    for (int i = 0; i < batch->count; ++i) {
        xm_layout_destroy((xm_layout_t *)(uintptr_t)batch->tensors[i].src);
        xm_layout_destroy((xm_layout_t *)(uintptr_t)batch->tensors[i].dst);
    }
    xm_network_destroy(batch->network);
}

void random_case_destroy(random_case_t *c)
{
    xm_network_destroy(c->network);
    xm_layout_destroy(c->src);
    xm_layout_destroy(c->dst);
}

static int format_layout(const xm_layout_t *layout, char *text, size_t size)
{
    char shape[64], ranks[256], spec[XM_SPEC_TEXT], partition[512];

    return snprintf(text, size, "mesh %s [%s] spec '%s' %s",
                    xm_mesh_format_shape(xm_layout_mesh(layout), shape, sizeof(shape)),
                    xm_mesh_format_ranks(xm_layout_mesh(layout), ranks, sizeof(ranks)),
                    xm_spec_format(xm_layout_spec(layout), spec),
                    xm_layout_format_partition(layout, partition, sizeof(partition)));
}

const char *random_case_text(const random_case_t *c)
{
    static char text[2048];
    char shape[128];
    int used = snprintf(
        text, sizeof(text), "%d ranks, shape %s, %d-byte elements, from ", c->ranks,
        xm_shape_format(xm_layout_dims(c->src), xm_layout_shape(c->src), shape, sizeof(shape)),
        (int)c->element_size);

    used += format_layout(c->src, text + used, sizeof(text) - (size_t)used);
    used += snprintf(text + used, sizeof(text) - (size_t)used, " to ");
    (void)format_layout(c->dst, text + used, sizeof(text) - (size_t)used);
    return text;
}

const char *random_batch_text(const random_batch_t *batch)
{
    static char text[16384]; /* more than all the parts of it can have */
    int used = snprintf(text, sizeof(text), "%d ranks on %d hosts, %s, %s, chunks of %d bytes",
                        batch->ranks, batch->hosts, xm_strategy_name(batch->params.strategy),
                        xm_scheduler_name(batch->params.scheduler), (int)batch->params.chunk_bytes);

    for (int i = 0; i < batch->count; ++i) {
        const xm_tensor_t *tensor = &batch->tensors[i];
        char shape[128];

        used += snprintf(text + used, sizeof(text) - (size_t)used, "; shape %s, %d bits, from ",
                         xm_shape_format(xm_layout_dims(tensor->src), xm_layout_shape(tensor->src),
                                         shape, sizeof(shape)),
                         tensor->element_bits);
        used += format_layout(tensor->src, text + used, sizeof(text) - (size_t)used);
        used += snprintf(text + used, sizeof(text) - (size_t)used, " to ");
        used += format_layout(tensor->dst, text + used, sizeof(text) - (size_t)used);
    }
    return text;
}

xm_layout_t *layout_from_text(const char *mesh_text, const char *spec_text, const char *shape_text,
                              xm_partition_t partition)
{
    xm_mesh_t *mesh;
    xm_layout_t *layout;
    xm_spec_t spec;
    int64_t shape[XM_MAX_DIMS];
    int dims;

    ck_assert_xm_ok(xm_mesh_parse(mesh_text, NULL, 0, &mesh));
    ck_assert_xm_ok(xm_spec_parse(spec_text, &spec));
    ck_assert_xm_ok(xm_shape_parse(shape_text, &dims, shape));
    ck_assert_int_eq(dims, spec.dims);
    ck_assert_xm_ok(xm_layout_create(mesh, &spec, partition, shape, &layout));
    xm_mesh_destroy(mesh);
    return layout;
}

unsigned char pattern_byte(uint64_t seed, int64_t index, int64_t b)
{
    random_t random = {seed * UINT64_C(0x2545f4914f6cdd1d) + (uint64_t)index * 16 + (uint64_t)b};

    return (unsigned char)(xm_random_next(&random) >> 24);
}

/* Calls for every element of a rank's tile: its number in the tile and its global index. */
static int64_t visit(const xm_layout_t *layout, int rank, int64_t element_size, uint64_t seed,
                     unsigned char *fill, const unsigned char *check)
{
    int tile = xm_layout_tile_of_rank(layout, rank);
    int64_t wrong = 0, volume;
    xm_box_t box;

    if (tile < 0) {
        return 0;
    }
    xm_layout_tile_box(layout, tile, &box);
    volume = xm_box_volume(&box);
    for (int64_t e = 0; e < volume; ++e) {
        int64_t rest = e, index = 0, stride = 1;

        for (int d = box.dims - 1; d >= 0; --d) {
            int64_t extent = box.hi[d] - box.lo[d];

            index += (box.lo[d] + rest % extent) * stride;
            rest /= extent;
            stride *= xm_layout_shape(layout)[d];
        }
        for (int64_t b = 0; b < element_size; ++b) {
            unsigned char byte = pattern_byte(seed, index, b);

            if (fill != NULL) {
                fill[e * element_size + b] = byte;
            } else {
                wrong += check[e * element_size + b] != byte;
            }
        }
    }
    return wrong;
}

void pattern_fill(const xm_layout_t *layout, int rank, int64_t element_size, uint64_t seed,
                  void *buffer)
{
    (void)visit(layout, rank, element_size, seed, buffer, NULL);
}

int64_t pattern_wrong(const xm_layout_t *layout, int rank, int64_t element_size, uint64_t seed,
                      const void *buffer)
{
    return visit(layout, rank, element_size, seed, NULL, buffer);
}
