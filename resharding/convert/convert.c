/* SPDX-License-Identifier: Apache-2.0 */
/* Cuts the rows of a tile where blocks of its tensor end, and converts the parts. */
#include <crossmesh/convert.h>

#include "comm/base.h"
#include "comm/memory.h"
#include "resharding/convert/arithmetic.h"
#include "resharding/convert/convert_kernel.h"
#include "resharding/convert/kernels.h"

/* Blocks of a kind; 0 columns: a row has one block. */
typedef struct {
    int64_t rows, columns;
    bool is_byte; /* the scale */
} blocks_t;

static const blocks_t blocks_of[XM_CONVERT_KINDS] = {[XM_CONVERT_BFLOAT16] = {1, 0, false},
                                                     [XM_CONVERT_FP8_BLOCKS] = {128, 128, false},
                                                     [XM_CONVERT_MXFP8] = {1, 32, true},
                                                     [XM_CONVERT_INT8_ROWS] = {1, 0, false}};

/* Seconds that a device may take for one step of a tile. */
static const double timeout = 60;

/* Blocks of a row whose scales are looked up together. */
enum { MOST_BLOCKS = 64 };

/* A part of a row: within one block, or of whole blocks. */
typedef struct {
    int64_t row, column, count; /* in the tile */
    int64_t block, blocks;      /* the first, of the tensor, and how many */
    int64_t block_columns;
} part_t;

static void set_scales(const xm_convert_params_t *p, int64_t block, int64_t count)
{
    const float *maxima = (const float *)p->maxima + block;

    if (blocks_of[p->kind].is_byte) {
        for (int64_t b = 0; b < count; ++b) {
            ((uint8_t *)p->scales)[block + b] = e8m0_of(xm_bits_of(maxima[b]));
        }
    } else {
        for (int64_t b = 0; b < count; ++b) {
            ((float *)p->scales)[block + b] = scale_of(p->kind == XM_CONVERT_INT8_ROWS, maxima[b]);
        }
    }
}

static void get_factors(const xm_convert_params_t *p, bool widens, int64_t block, int64_t count,
                        float *factors)
{
    const uint8_t *bytes = (const uint8_t *)p->scales + block;
    const float *scales = (const float *)p->scales + block;

    if (blocks_of[p->kind].is_byte) {
        for (int64_t b = 0; b < count; ++b) {
            factors[b] = e8m0_factor(bytes[b], widens);
        }
    } else {
        for (int64_t b = 0; b < count; ++b) {
            factors[b] = float_factor(scales[b], widens);
        }
    }
}

static void convert_scaled(const xm_convert_kernels_t *kernels, const xm_convert_params_t *p,
                           xm_convert_step_t step, const part_t *part, char *wide)
{
    const bool is_int8 = p->kind == XM_CONVERT_INT8_ROWS;
    float factors[MOST_BLOCKS];
    uint8_t *narrow;

    if (step == XM_CONVERT_MAXIMA) {
        kernels->maxima(wide, p->float32, (uint32_t *)p->maxima + part->block, part->block_columns,
                        part->count);
        return;
    }
    narrow = (uint8_t *)p->narrow + part->row * p->narrow_stride + part->column;
    get_factors(p, step == XM_CONVERT_WIDEN, part->block, part->blocks, factors);
    if (step == XM_CONVERT_NARROW) {
        (is_int8 ? kernels->to_int8 : kernels->to_fp8)(wide, p->float32, factors, narrow,
                                                       part->block_columns, part->count);
    } else {
        (is_int8 ? kernels->from_int8 : kernels->from_fp8)(narrow, factors, wide, p->float32,
                                                           part->block_columns, part->count);
    }
}

static void convert_part(const xm_convert_kernels_t *kernels, const xm_convert_params_t *p,
                         xm_convert_step_t step, const part_t *part)
{
    const int64_t at = part->row * p->wide_stride + part->column;
    uint16_t *narrow;
    char *wide;

    if (step == XM_CONVERT_SCALES) { /* needs no elements */
        set_scales(p, part->block, part->blocks);
        return;
    }
    wide = (char *)p->wide + at * (p->float32 ? 4 : 2);
    if (p->kind != XM_CONVERT_BFLOAT16) {
        convert_scaled(kernels, p, step, part, wide);
        return;
    }
    narrow = (uint16_t *)p->narrow + part->row * p->narrow_stride + part->column;
    if (step == XM_CONVERT_NARROW) {
        kernels->to_bfloat16(wide, narrow, part->count);
    } else {
        kernels->from_bfloat16(narrow, wide, part->count);
    }
}

/* The part of a row that starts in this column of the tile. */
static part_t part_at(const xm_convert_params_t *p, int64_t row, int64_t column)
{
    const blocks_t blocks = blocks_of[p->kind];
    const int64_t width = blocks.columns == 0 ? p->column + p->columns : blocks.columns;
    const int64_t within = (p->column + column) % width, left = p->columns - column;
    const int64_t whole = left / width < MOST_BLOCKS ? left / width : MOST_BLOCKS;
    const int64_t rest = width - within < left ? width - within : left;

    return (part_t){.row = row,
                    .column = column,
                    .count = within == 0 && whole > 0 ? whole * width : rest,
                    .block = (p->row + row) / blocks.rows * p->scale_stride +
                             (p->column + column) / width,
                    .blocks = within == 0 && whole > 0 ? whole : 1,
                    .block_columns = width};
}

static void convert(const xm_convert_params_t *p, xm_convert_step_t step)
{
    const xm_convert_kernels_t *kernels = xm_convert_kernels(0);
    const int64_t rows = step == XM_CONVERT_SCALES ? blocks_of[p->kind].rows : 1;

    /* Of scales one row of each block. */
    for (int64_t r = 0; r < p->rows; r += rows - (p->row + r) % rows) {
        for (int64_t c = 0; c < p->columns;) {
            const part_t part = part_at(p, r, c);

            convert_part(kernels, p, step, &part);
            c += part.count;
        }
    }
}

static uint64_t address(const void *memory)
{
    return (uint64_t)(uintptr_t)memory;
}

/* The same step by the device that has the tile, which is done when this returns. */
static xm_status_t convert_there(const xm_memory_place_t *place, const xm_convert_params_t *p,
                                 xm_convert_step_t step)
{
    static const char *const names[] = {"xm_convert_maxima", "xm_convert_scales",
                                        "xm_convert_narrow", "xm_convert_widen"};
    static const xm_memory_kernels_t kernels = {xm_convert_device, &xm_convert_device_size};
    const blocks_t blocks = blocks_of[p->kind];
    const int64_t end = p->column + p->columns, width = blocks.columns == 0 ? end : blocks.columns;
    const int64_t unit = step == XM_CONVERT_SCALES ? width : XM_CONVERT_STRIP;
    const int64_t height = step == XM_CONVERT_SCALES ? blocks.rows : 1;
    const int64_t high = (p->row + p->rows - 1) / height - p->row / height + 1;
    xm_convert_args_t args = {.wide = address(p->wide),
                              .narrow = address(p->narrow),
                              .maxima = address(p->maxima),
                              .scales = address(p->scales),
                              .columns = p->columns,
                              .row = p->row,
                              .column = p->column,
                              .wide_stride = p->wide_stride,
                              .narrow_stride = p->narrow_stride,
                              .scale_stride = p->scale_stride,
                              .block_rows = blocks.rows,
                              .block_columns = width,
                              .first = p->column / unit,
                              .units = (end - 1) / unit - p->column / unit + 1,
                              .float32 = p->float32,
                              .scaled = p->kind != XM_CONVERT_BFLOAT16,
                              .byte_scale = blocks.is_byte,
                              .int8 = p->kind == XM_CONVERT_INT8_ROWS};
    xm_memory_space_t *space = NULL;
    xm_memory_queue_t *queue = NULL;
    xm_status_t status;

    args.items = high * args.units;
    status = xm_memory_cuda_of(place, &space);
    XM_THEN(status, xm_memory_queue_create(space, &queue));
    XM_THEN(status, xm_memory_queue_launch(queue, &kernels, names[step], &args, args.items));
    XM_THEN(status, xm_memory_queue_finish(queue, timeout));
    xm_memory_queue_destroy(queue);
    xm_memory_space_destroy(space);
    return status;
}

static xm_status_t refuse(const char *name, int64_t value)
{
    return XM_INVALID("xm_convert: params.%s is %lld", name, (long long)value);
}

static xm_status_t missing(const char *name)
{
    return XM_INVALID("xm_convert: %s is NULL", name);
}

/* What a step needs. Rows and columns of nothing need no memory. */
static xm_status_t check_memory(const xm_convert_params_t *p, xm_convert_step_t step)
{
    const bool is_scaled = p->kind != XM_CONVERT_BFLOAT16;
    const bool converts = step == XM_CONVERT_NARROW || step == XM_CONVERT_WIDEN;

    if (!is_scaled && (!converts || !p->float32)) {
        return XM_INVALID("xm_convert: bfloat16 is made of float32, and has no scales");
    }
    if (p->wide == NULL && step != XM_CONVERT_SCALES) {
        return missing("params.wide");
    }
    if (p->narrow == NULL && converts) {
        return missing("params.narrow");
    }
    if (p->maxima == NULL && !converts) {
        return missing("params.maxima");
    }
    return p->scales == NULL && is_scaled && step != XM_CONVERT_MAXIMA ? missing("params.scales")
                                                                       : XM_OK;
}

xm_status_t xm_convert(const xm_convert_params_t *params, xm_convert_step_t step)
{
    if (params == NULL) {
        return missing("params");
    }
    if (params->struct_size < sizeof(*params)) {
        return refuse("struct_size", (int64_t)params->struct_size);
    }
    if (params->kind < 0 || params->kind >= XM_CONVERT_KINDS) {
        return refuse("kind", params->kind);
    }
    if (step < XM_CONVERT_MAXIMA || step > XM_CONVERT_WIDEN) {
        return XM_INVALID("xm_convert: step is %d", (int)step);
    }
    if (params->rows < 0 || params->columns < 0 || params->row < 0 || params->column < 0) {
        return XM_INVALID("xm_convert: a tile of %lld x %lld at row %lld and column %lld",
                          (long long)params->rows, (long long)params->columns,
                          (long long)params->row, (long long)params->column);
    }
    if (params->rows > 0 && params->columns > 0) {
        const void *memory = step == XM_CONVERT_SCALES ? params->maxima : params->wide;
        xm_status_t status = check_memory(params, step);
        xm_memory_place_t place;

        XM_TRY(status);
        xm_memory_recognise(&memory, 1, &place);
        if (place.kind == XM_MEMORY_CUDA) {
            return convert_there(&place, params, step);
        }
        convert(params, step);
    }
    return XM_OK;
}
