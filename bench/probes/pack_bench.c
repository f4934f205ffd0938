/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pack-bench: how fast boxes are packed and unpacked on a CUDA device, next to a plain
 * copy there. The plain copy of as many bytes is the bound: it reads and writes each byte
 * once, as packing must.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli_support.h"
#include "comm/base.h"
#include "comm/memory.h"

static const char program[] = "pack-bench";

static const char summary[] =
    "Packs and unpacks boxes of tiles in the memory of a CUDA device, checks every byte, and "
    "compares the rates with that of a copy of as many bytes (cuMemcpy). GB/s count the box's\n"
    "bytes once; GB = 1e9 bytes.";

enum { DIMS = 3, DEFAULT_REPEAT = 20, MAX_REPEAT = 100000 };

/* A box at a corner of a row-major tile. Dimension 0 is as large as the wanted bytes make it. */
typedef struct {
    const char *name;
    int element; /* bytes */
    int64_t tile[DIMS - 1], box[DIMS - 1];
} shape_t;

/* The shapes that resharding packs: parts of rows (a spec that shards the last
 * dimension), parts of planes, columns, and elements that do not fill a vector. */
static const shape_t shapes[] = {
    {"half of long rows", 2, {1, 16384}, {1, 8192}},
    {"rows of 4 KiB", 2, {1, 8192}, {1, 2048}},
    {"rows of 1 KiB", 2, {1, 4096}, {1, 512}},
    {"rows of 256 B", 4, {1, 512}, {1, 64}},
    {"rows of 64 B", 4, {1, 128}, {1, 16}},
    {"rows of 16 B", 4, {1, 32}, {1, 4}},
    {"half of the planes", 2, {64, 1024}, {32, 1024}},
    {"parts of parts", 2, {64, 1024}, {32, 256}},
    {"rows of 1000 B", 4, {1, 1000}, {1, 250}},
    {"odd rows of 2 B", 2, {1, 4097}, {1, 1023}},
    {"rows of 1 B", 1, {1, 4099}, {1, 1021}},
};

typedef struct {
    int device, repeat;
    uint64_t bytes;
} options_t;

typedef struct {
    xm_memory_space_t *space;
    xm_memory_queue_t *queue;
    xm_memory_mark_t *mark;
    int repeat;
} bench_t;

typedef struct {
    void *tile, *packed, *other; /* on the device */
    unsigned char *host, *expected;
    size_t tile_bytes, box_bytes;
} buffers_t;

/* Polls, as an executor does; the mark is behind everything queued so far. */
static xm_status_t wait(const bench_t *bench)
{
    xm_status_t status = xm_memory_mark_set(bench->mark, bench->queue);

    if (status == XM_OK) {
        do {
            status = xm_memory_mark_test(bench->mark);
        } while (status == XM_IN_PROGRESS);
    }
    return status;
}

/* The seconds of one copy, from many in a row after one that does not count. Queued
 * together, their launches overlap, as they do in a run. */
static xm_status_t measure(const bench_t *bench, const xm_strided_copy_t *copy, double *time)
{
    xm_status_t status = xm_memory_queue_copy(bench->queue, copy);
    double start;

    XM_THEN(status, wait(bench));
    start = xm_clock_seconds();
    for (int i = 0; i < bench->repeat && status == XM_OK; ++i) {
        status = xm_memory_queue_copy(bench->queue, copy);
    }
    XM_THEN(status, wait(bench));
    *time = (xm_clock_seconds() - start) / bench->repeat;
    return status;
}

static uint64_t address(const void *memory)
{
    return (uint64_t)(uintptr_t)memory;
}

/* The seconds of one copy of contiguous bytes. */
static xm_status_t measure_plain(const bench_t *bench, const void *to, const void *from,
                                 uint64_t bytes, double *time)
{
    const xm_strided_copy_t copy = {.from = address(from),
                                    .to = address(to),
                                    .dims = 1,
                                    .extent = {(int64_t)bytes},
                                    .from_stride = {1},
                                    .to_stride = {1},
                                    .element_size = 1,
                                    .count = (int64_t)bytes};

    return measure(bench, &copy, time);
}

/* Describes the box inside the tile and the packed box, as a copy in the wanted
 * direction. */
static void describe(const shape_t *shape, int64_t rows, uint64_t tile, uint64_t packed, bool pack,
                     xm_strided_copy_t *copy)
{
    int64_t extent[DIMS] = {rows, shape->box[0], shape->box[1]};
    int64_t strides[2][DIMS];

    strides[0][2] = strides[1][2] = shape->element;
    for (int d = DIMS - 2; d >= 0; --d) {
        strides[0][d] = strides[0][d + 1] * shape->tile[d];
        strides[1][d] = strides[1][d + 1] * extent[d + 1];
    }
    *copy = (xm_strided_copy_t){.from = pack ? tile : packed,
                                .to = pack ? packed : tile,
                                .dims = DIMS,
                                .element_size = shape->element,
                                .count = rows * shape->box[0] * shape->box[1]};
    memcpy(copy->extent, extent, sizeof(extent));
    memcpy(copy->from_stride, strides[pack ? 0 : 1], sizeof(strides[0]));
    memcpy(copy->to_stride, strides[pack ? 1 : 0], sizeof(strides[0]));
}

/* The bytes must differ from row to row, or a wrong stride would go unnoticed. */
static void fill(unsigned char *bytes, size_t count)
{
    uint64_t state = 1;

    for (size_t i = 0; i < count; ++i) {
        state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        bytes[i] = (unsigned char)(state >> 56);
    }
}

/* close_buffers() frees what is allocated here, also after a failure. */
static xm_status_t open_buffers(const bench_t *bench, const shape_t *shape, int64_t rows,
                                buffers_t *buffers)
{
    *buffers = (buffers_t){
        .tile_bytes = (size_t)(rows * shape->tile[0] * shape->tile[1]) * (size_t)shape->element,
        .box_bytes = (size_t)(rows * shape->box[0] * shape->box[1]) * (size_t)shape->element};
    buffers->host = malloc(buffers->tile_bytes);
    buffers->expected = malloc(buffers->tile_bytes);
    if (buffers->host == NULL || buffers->expected == NULL) {
        return XM_NO_MEMORY("tiles of %zu bytes", buffers->tile_bytes);
    }
    fill(buffers->host, buffers->tile_bytes);
    XM_TRY(xm_memory_allocate(bench->space, buffers->tile_bytes, &buffers->tile));
    XM_TRY(xm_memory_allocate(bench->space, buffers->box_bytes, &buffers->packed));
    XM_TRY(xm_memory_allocate(bench->space, buffers->tile_bytes, &buffers->other));
    return xm_memory_copy(bench->space, buffers->tile, buffers->host, buffers->tile_bytes);
}

/* Releasing NULL does nothing, so a half-opened set can be closed. */
static void close_buffers(const bench_t *bench, buffers_t *buffers)
{
    xm_memory_release(bench->space, buffers->tile);
    xm_memory_release(bench->space, buffers->packed);
    xm_memory_release(bench->space, buffers->other);
    free(buffers->host);
    free(buffers->expected);
}

/*
 * Packs the tile's box and unpacks it into a tile of zeros; that must then hold the box,
 * and zeros elsewhere. The reference is made by the host's own copies, which share no
 * code with the device's.
 */
static xm_status_t check(const bench_t *bench, const shape_t *shape, int64_t rows,
                         const buffers_t *buffers)
{
    xm_strided_copy_t pack, unpack, reference;
    xm_memory_space_t *host;
    xm_memory_queue_t *queue;
    xm_status_t status;

    XM_TRY(xm_memory_host_create(&host));
    status = xm_memory_queue_create(host, &queue);
    if (status == XM_OK) {
        memset(buffers->expected, 0, buffers->tile_bytes);
        describe(shape, rows, address(buffers->host), 0, true, &reference);
        reference.to = address(buffers->expected);
        memcpy(reference.to_stride, reference.from_stride, sizeof(reference.to_stride));
        status = xm_memory_queue_copy(queue, &reference);
        xm_memory_queue_destroy(queue);
    }
    xm_memory_space_destroy(host);
    describe(shape, rows, address(buffers->tile), address(buffers->packed), true, &pack);
    describe(shape, rows, address(buffers->other), address(buffers->packed), false, &unpack);
    if (status == XM_OK) {
        memset(buffers->host, 0, buffers->tile_bytes);
        status = xm_memory_copy(bench->space, buffers->other, buffers->host, buffers->tile_bytes);
    }
    XM_THEN(status, xm_memory_queue_copy(bench->queue, &pack));
    XM_THEN(status, xm_memory_queue_copy(bench->queue, &unpack));
    XM_THEN(status, wait(bench));
    XM_THEN(status,
            xm_memory_copy(bench->space, buffers->host, buffers->other, buffers->tile_bytes));
    if (status == XM_OK && memcmp(buffers->host, buffers->expected, buffers->tile_bytes) != 0) {
        status = xm_error_set(XM_ERR_CORRUPT, "'%s': wrong bytes", shape->name);
    }
    return status;
}

/* Checks first, since a wrong copy can be fast. */
static xm_status_t run_shape(const bench_t *bench, const shape_t *shape, uint64_t bytes)
{
    int64_t plane = shape->box[0] * shape->box[1] * shape->element;
    int64_t rows = (int64_t)bytes / plane > 0 ? (int64_t)bytes / plane : 1;
    double pack_s = 0, unpack_s = 0, copy_s = 0, size;
    xm_strided_copy_t copy;
    buffers_t buffers;
    xm_status_t status = open_buffers(bench, shape, rows, &buffers);

    XM_THEN(status, check(bench, shape, rows, &buffers));
    if (status == XM_OK) {
        describe(shape, rows, address(buffers.tile), address(buffers.packed), true, &copy);
        status = measure(bench, &copy, &pack_s);
    }
    if (status == XM_OK) {
        describe(shape, rows, address(buffers.other), address(buffers.packed), false, &copy);
        status = measure(bench, &copy, &unpack_s);
    }
    XM_THEN(status,
            measure_plain(bench, buffers.other, buffers.packed, buffers.box_bytes, &copy_s));
    if (status == XM_OK) {
        size = (double)buffers.box_bytes * 1e-9;
        (void)printf("%-20s %4d %12zu %9.1f %9.1f %9.1f %7.1f %8.1f\n", shape->name, shape->element,
                     buffers.box_bytes, size / pack_s, size / unpack_s, size / copy_s,
                     100 * copy_s / pack_s, 100 * copy_s / unpack_s);
        (void)fflush(stdout);
    }
    close_buffers(bench, &buffers);
    return status;
}

/* What the shapes do not show: the link to the host, with pinned memory as executors have it, and
 * what the launch of a kernel takes that has next to nothing to copy. */
static xm_status_t run_links(const bench_t *bench, uint64_t bytes)
{
    const shape_t tiny = {"tiny", 4, {1, 8}, {1, 4}};
    double down_s = 0, up_s = 0, launch_s = 0;
    void *device = NULL, *pinned = NULL;
    xm_strided_copy_t copy;
    xm_status_t status = xm_memory_allocate(bench->space, bytes, &device);

    XM_THEN(status, xm_memory_allocate_pinned(bench->space, bytes, &pinned));
    if (status == XM_OK) {
        memset(pinned, 1, bytes);
        status = measure_plain(bench, device, pinned, bytes, &down_s);
    }
    XM_THEN(status, measure_plain(bench, pinned, device, bytes, &up_s));
    if (status == XM_OK) {
        describe(&tiny, 16, address(device), address(device) + bytes / 2, true, &copy);
        status = measure(bench, &copy, &launch_s);
    }
    if (status == XM_OK) {
        (void)printf("# host link: %.1f GB/s to the device, %.1f GB/s from it; a launch: %.1f us\n",
                     1e-9 * (double)bytes / down_s, 1e-9 * (double)bytes / up_s, 1e6 * launch_s);
    }
    xm_memory_release_pinned(bench->space, pinned);
    xm_memory_release(bench->space, device);
    return status;
}

/* The header says whether kernels are used, because the driver's own copies are far
 * slower. */
static xm_status_t run(const xm_cli_t *cli, void *arg)
{
    const options_t *options = arg;
    bench_t bench = {.repeat = options->repeat};
    xm_status_t status = xm_memory_cuda_create(options->device, &bench.space);

    (void)cli;
    if (status < 0) {
        return status;
    }
    status = xm_memory_queue_create(bench.space, &bench.queue);
    XM_THEN(status, xm_memory_mark_create(bench.space, &bench.mark));
    if (status == XM_OK) {
        (void)printf("# CUDA device %d, %s; boxes of %" PRIu64 " bytes, %d runs; %s\n",
                     options->device, bench.space->name, options->bytes, options->repeat,
                     bench.space->kernels ? "kernels" : "the driver's copies, no kernels");
        (void)printf("# %-18s %4s %12s %9s %9s %9s %7s %8s\n", "box", "elem", "bytes", "pack",
                     "unpack", "memcpy", "%pack", "%unpack");
        (void)printf("# %-18s %4s %12s %9s %9s %9s\n", "", "(B)", "", "(GB/s)", "(GB/s)", "(GB/s)");
    }
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]) && status == XM_OK; ++i) {
        status = run_shape(&bench, &shapes[i], options->bytes);
    }
    XM_THEN(status, run_links(&bench, options->bytes));
    xm_memory_mark_destroy(bench.mark);
    xm_memory_queue_destroy(bench.queue);
    xm_memory_space_destroy(bench.space);
    return status;
}

int main(int argc, char **argv)
{
    options_t options = {.repeat = DEFAULT_REPEAT, .bytes = UINT64_C(256) << 20};
    const xm_cli_option_t table[] = {
        {"device", 'd', XM_CLI_INT, &options.device, "N", 0, 0, "CUDA device (default 0)."},
        {"bytes", 'b', XM_CLI_BYTES, &options.bytes, "SIZE", 0, 0,
         "Size of the boxes (default 256MiB)."},
        {"repeat", 'r', XM_CLI_INT, &options.repeat, "N", 1, MAX_REPEAT,
         "Copies that are timed in a row (default 20)."},
    };
    const xm_cli_command_t command = XM_CLI_COMMAND(program, NULL, summary, NULL, table, 0, 0);

    return xm_cli_main(&command, argc, argv, run, &options);
}
