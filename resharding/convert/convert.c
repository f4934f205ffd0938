/* SPDX-License-Identifier: Apache-2.0 */
/* Cuts the rows of a tile where blocks of its tensor end, and converts the parts. */
#include <crossmesh/convert.h>

#include "comm/base.h"
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

/* Blocks of a row whose scales are looked up together. */
enum { MOST_BLOCKS = 64 };

/* A part of a row: within one block, or of whole blocks. */
typedef struct {
    int64_t row, column, count; /* in the tile */
    int64_t block, blocks;      /* the first, of the tensor, and how many */
    int64_t block_columns;
} part_t;

/* The exponent of the least power of two that is at least the maximum / 448, as E8M0 has it.
 * 448 is 1.75 * 2^8. */
static uint8_t e8m0_of(uint32_t bits)
{
    const int exponent = (int)(bits >> 23) - 8 + ((bits & 0x7fffffU) > 0x600000U ? 1 : 0);

    if (bits >= 0x7f800000U) {
        return bits > 0x7f800000U ? 255 : 254;
    }
    return (uint8_t)(exponent < 0 ? 0 : exponent);
}

/* 2^(byte - 127), of 255 NaN. */
static float e8m0_value(uint32_t byte)
{
    return xm_float_of(byte == 255 ? 0x7fc00000U : byte == 0 ? 0x00400000U : byte << 23);
}

static float scale_of(xm_convert_kind_t kind, float maximum)
{
    if (kind == XM_CONVERT_FP8_BLOCKS) {
        return (maximum < 1e-4F ? 1e-4F : maximum) / 448.0F;
    }
    maximum /= 127.0F;
    return maximum < 0x1p-23F ? 0x1p-23F : maximum;
}

static void set_scales(const xm_convert_params_t *p, int64_t block, int64_t count)
{
    const float *maxima = (const float *)p->maxima + block;

    if (blocks_of[p->kind].is_byte) {
        for (int64_t b = 0; b < count; ++b) {
            ((uint8_t *)p->scales)[block + b] = e8m0_of(xm_bits_of(maxima[b]));
        }
    } else {
        for (int64_t b = 0; b < count; ++b) {
            ((float *)p->scales)[block + b] = scale_of(p->kind, maxima[b]);
        }
    }
}

/* What elements are multiplied by on their way. */
static void get_factors(const xm_convert_params_t *p, bool widens, int64_t block, int64_t count,
                        float *factors)
{
    const uint8_t *bytes = (const uint8_t *)p->scales + block;
    const float *scales = (const float *)p->scales + block;

    if (blocks_of[p->kind].is_byte) {
        const uint32_t turn = widens ? 0 : 254;

        for (int64_t b = 0; b < count; ++b) {
            factors[b] = e8m0_value(bytes[b] == 255 ? 255 : turn == 0 ? bytes[b] : turn - bytes[b]);
        }
    } else {
        for (int64_t b = 0; b < count; ++b) {
            factors[b] = widens ? scales[b] : 1.0F / scales[b];
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
        xm_status_t status = check_memory(params, step);

        if (status < 0) {
            return status;
        }
        convert(params, step);
    }
    return XM_OK;
}
