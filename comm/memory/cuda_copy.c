/* SPDX-License-Identifier: Apache-2.0 */
/* Strided copies on a CUDA device, by kernels of ours or by the driver's two-dimensional
 * copies. Small rows are what the driver does badly: one call or one row at a time. The kernels
 * copy units of up to 16 bytes and compute each unit's place by multiplication and shift,
 * because divisions would cost more than the copy. When a kernel cannot be loaded or launched,
 * all copies go by the driver from then on: slower, but right. */
#include <stdio.h>

#include "comm/base.h"
#include "comm/memory/cuda_private.h"

/* PTX as a string; empty where crossmesh was built without it. */
extern const unsigned char xm_cuda_kernels[];
extern const size_t xm_cuda_kernels_size;

/* Blocks that each multiprocessor has at a time; more of a grid than that would only wait. */
enum { BLOCKS_PER_MULTIPROCESSOR = 8 };

/* From this row length on the driver's copies are as good as a kernel. */
static const int64_t long_row = INT64_C(1) << 30;

static const char *const shape_names[XM_KERNEL_SHAPES] = {"d2", "d3", "dn"};

/* Gives the kernels up for good: copies are the driver's from now on. */
static void do_without(xm_cuda_space_t *space, const char *what, int result)
{
    space->base.kernels = false;
    (void)xm_cuda_check(space, what, result);
    xm_log_debug("%s; strided copies are the driver's now", xm_last_error());
}

/* A module of kernels, loaded once. */
static int load(xm_cuda_space_t *space, const unsigned char *image, void **module)
{
    int m = 0, result = XM_CU_SUCCESS;

    while (m < XM_CUDA_MODULES - 1 && space->loaded[m].image != NULL &&
           space->loaded[m].image != image) {
        ++m;
    }
    if (space->loaded[m].image != image) {
        result = space->driver.cuModuleLoadData(&space->loaded[m].module, image);
        space->loaded[m].image = result == XM_CU_SUCCESS ? image : NULL;
    }
    *module = space->loaded[m].module;
    return result;
}

/* As many blocks as run at a time, at most; each thread then takes several items. */
static unsigned blocks_of(const xm_cuda_space_t *space, int64_t items, int each)
{
    const int64_t block = XM_KERNEL_THREADS * (int64_t)each;
    const int64_t most = (int64_t)space->multiprocessors * BLOCKS_PER_MULTIPROCESSOR;
    const int64_t blocks = (items + block - 1) / block;

    return (unsigned)(blocks < most ? blocks : most);
}

xm_status_t xm_cuda_queue_launch(xm_memory_queue_t *base, const xm_memory_kernels_t *kernels,
                                 const char *name, void *args, int64_t items)
{
    xm_cuda_space_t *space = xm_cuda_space_of(base->space);
    void *arguments[] = {args}, *module, *function = NULL;
    xm_status_t status = items > 0 ? xm_cuda_enter(space) : XM_OK;

    if (*kernels->size == 0) {
        status =
            XM_UNSUPPORTED("crossmesh was built without clang, which makes the kernel %s", name);
    }
    if (status < 0 || items == 0) {
        return status;
    }
    status = xm_cuda_check(space, "cuModuleLoadData", load(space, kernels->image, &module));
    if (status == XM_OK) {
        status =
            xm_cuda_check(space, name, space->driver.cuModuleGetFunction(&function, module, name));
    }
    XM_THEN(status, xm_cuda_check(space, "cuLaunchKernel",
                                  space->driver.cuLaunchKernel(function, blocks_of(space, items, 1),
                                                               1, 1, XM_KERNEL_THREADS, 1, 1, 0,
                                                               ((xm_cuda_queue_t *)base)->stream,
                                                               arguments, NULL)));
    xm_cuda_leave(space);
    return status;
}

/* Loads the kernels of this device's architecture, if the build has any. All of them or none
 * are used. */
void xm_cuda_load_kernels(xm_cuda_space_t *space)
{
    const xm_cuda_driver_t *driver = &space->driver;
    void *module;
    int result;

    if (xm_cuda_kernels_size == 0) {
        xm_log_debug("built without clang: strided copies on CUDA devices are the driver's");
        return;
    }
    result = load(space, xm_cuda_kernels, &module);
    if (result != XM_CU_SUCCESS) {
        do_without(space, "cuModuleLoadData", result);
        return;
    }
    for (int u = 0; u < XM_KERNEL_UNITS; ++u) {
        for (int s = 0; s < XM_KERNEL_SHAPES; ++s) {
            char name[32];

            (void)snprintf(name, sizeof(name), XM_KERNEL_PREFIX "%d_%s", 1 << u, shape_names[s]);
            result = driver->cuModuleGetFunction(&space->kernels[u][s], module, name);
            if (result != XM_CU_SUCCESS) {
                do_without(space, name, result);
                return;
            }
        }
    }
    space->base.kernels = true;
}

/* Prepares divisions by `divisor`, which is at most 2^31, as a multiplication and a shift. */
static void prepare_division(unsigned divisor, unsigned *magic, unsigned *shift)
{
    uint64_t power = 1;

    for (*shift = 0; power < divisor; ++*shift) {
        power <<= 1;
    }
    *magic = (unsigned)((((power - divisor) << 32) / divisor) + 1);
}

/* A copy in units, and how it is cut into launches. */
typedef struct {
    const xm_strided_copy_t *copy; /* merged */
    int unit;                      /* bytes */
    int outer;     /* dimensions that a launch has only one index of: the others have few units */
    int64_t inner; /* units of the others */
} shape_t;

/* Finds how many of the inner dimensions fit into one launch, whose indices have 32 bits.
 * Returns false when even one row has too many units. */
static bool find_shape(const xm_strided_copy_t *copy, shape_t *shape)
{
    int d = copy->dims - 1;

    *shape = (shape_t){.copy = copy, .unit = xm_strided_unit(copy)};
    shape->inner = copy->extent[d] * copy->element_size / shape->unit;
    while (d > 0 && copy->extent[d - 1] <= XM_KERNEL_MAX_UNITS / shape->inner) {
        shape->inner *= copy->extent[--d];
    }
    shape->outer = d;
    return shape->inner <= XM_KERNEL_MAX_UNITS;
}

static int launch(xm_cuda_space_t *space, const shape_t *shape, xm_kernel_args_t *args,
                  void *stream)
{
    void *arguments[] = {args};
    int u = 0;

    while (1 << u < shape->unit) {
        ++u;
    }
    return space->driver.cuLaunchKernel(space->kernels[u][args->dims == 2   ? 0
                                                          : args->dims == 3 ? 1
                                                                            : 2],
                                        blocks_of(space, args->count, XM_KERNEL_UNROLL), 1, 1,
                                        XM_KERNEL_THREADS, 1, 1, 0, stream, arguments, NULL);
}

/* Fills in the arguments of one launch: the inner dimensions as they are, and one index of each
 * outer dimension, which moves the start addresses. */
static void fill_args(const shape_t *shape, int64_t piece, xm_kernel_args_t *args)
{
    const xm_strided_copy_t *copy = shape->copy;
    int last = copy->dims - 1;

    *args =
        (xm_kernel_args_t){.from = copy->from, .to = copy->to, .dims = copy->dims - shape->outer};
    for (int d = shape->outer; d <= last; ++d) {
        int at = d - shape->outer;

        args->extent[at] = (unsigned)copy->extent[d];
        args->from_stride[at] = copy->from_stride[d];
        args->to_stride[at] = copy->to_stride[d];
        if (d == last) {
            args->extent[at] = (unsigned)(copy->extent[d] * copy->element_size / shape->unit);
            args->from_stride[at] = args->to_stride[at] = shape->unit;
        }
        prepare_division(args->extent[at], &args->magic[at], &args->shift[at]);
    }
    for (int d = shape->outer - 1; d >= 0; --d) {
        int64_t index = piece % copy->extent[d];

        args->from += (uint64_t)(index * copy->from_stride[d]);
        args->to += (uint64_t)(index * copy->to_stride[d]);
        piece /= copy->extent[d];
    }
}

/* Cuts the range of the copy at the borders of launches. A range may begin and end inside a
 * launch's part. */
static int launch_all(xm_cuda_space_t *space, const shape_t *shape, void *stream)
{
    int64_t at = shape->copy->first * shape->copy->element_size / shape->unit;
    int64_t end = at + shape->copy->count * shape->copy->element_size / shape->unit;
    int result = XM_CU_SUCCESS;

    while (at < end && result == XM_CU_SUCCESS) {
        int64_t piece = at / shape->inner, begin = piece * shape->inner;
        int64_t stop = begin + shape->inner < end ? begin + shape->inner : end;
        xm_kernel_args_t args;

        fill_args(shape, piece, &args);
        args.first = (unsigned)(at - begin);
        args.count = (unsigned)(stop - at);
        result = launch(space, shape, &args, stream);
        at = stop;
    }
    return result;
}

static int copy_row(const xm_cuda_space_t *space, uint64_t to, uint64_t from, int64_t bytes,
                    void *stream)
{
    return space->driver.cuMemcpyAsync(to, from, (size_t)bytes, stream);
}

/* Copies rows by one call where the driver's pitch allows it, else row by row. */
static int copy_rows(const xm_cuda_space_t *space, const xm_strided_rows_t *rows, void *stream)
{
    xm_cu_memcpy2d_t copy = {.src_type = XM_CU_MEMORYTYPE_UNIFIED,
                             .src_device = rows->from,
                             .src_pitch = (size_t)rows->from_pitch,
                             .dst_type = XM_CU_MEMORYTYPE_UNIFIED,
                             .dst_device = rows->to,
                             .dst_pitch = (size_t)rows->to_pitch,
                             .width = (size_t)rows->bytes,
                             .height = (size_t)rows->rows};
    int result = XM_CU_SUCCESS;

    if (rows->rows > 1 && rows->from_pitch <= space->max_pitch &&
        rows->to_pitch <= space->max_pitch) {
        return space->driver.cuMemcpy2DAsync_v2(&copy, stream);
    }
    for (int64_t r = 0; r < rows->rows && result == XM_CU_SUCCESS; ++r) {
        result = copy_row(space, rows->to + (uint64_t)(r * rows->to_pitch),
                          rows->from + (uint64_t)(r * rows->from_pitch), rows->bytes, stream);
    }
    return result;
}

/* Copies by the driver: without kernels, and where they are no better. */
static xm_status_t copy_by_driver(xm_cuda_space_t *space, const xm_strided_copy_t *copy,
                                  void *stream)
{
    xm_strided_cursor_t cursor;
    xm_strided_rows_t rows;
    int result = XM_CU_SUCCESS;

    xm_strided_begin(&cursor, copy);
    while (result == XM_CU_SUCCESS && xm_strided_next(&cursor, &rows)) {
        result = copy_rows(space, &rows, stream);
    }
    return xm_cuda_check(space, "cuMemcpyAsync", result);
}

/* True when the range is one piece on both sides, or its rows are long. */
static bool suits_driver(const xm_strided_copy_t *copy)
{
    int64_t row = copy->extent[copy->dims - 1];

    return copy->dims == 1 || row * copy->element_size >= long_row ||
           copy->first % row + copy->count <= row;
}

/* Queues the copy; nothing is waited for. Neighbouring dimensions are merged first, so
 * contiguous data is one long row. */
xm_status_t xm_cuda_queue_copy(xm_memory_queue_t *base, const xm_strided_copy_t *given)
{
    xm_cuda_space_t *space = xm_cuda_space_of(base->space);
    void *stream = ((xm_cuda_queue_t *)base)->stream;
    xm_strided_copy_t copy = *given;
    xm_status_t status = xm_cuda_enter(space);
    shape_t shape;
    bool done = false;

    XM_TRY(status);
    xm_strided_merge(&copy);
    if (space->base.kernels && !suits_driver(&copy) && find_shape(&copy, &shape)) {
        int result = launch_all(space, &shape, stream);

        done = result == XM_CU_SUCCESS;
        if (!done) {
            do_without(space, "cuLaunchKernel", result);
        }
    }
    if (!done) {
        status = copy_by_driver(space, &copy, stream);
    }
    xm_cuda_leave(space);
    return status;
}
