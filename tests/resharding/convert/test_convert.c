/* SPDX-License-Identifier: Apache-2.0 */
/* Conversions by every kernel of this processor, against the nearest of all values that the narrow
 * type has. */
#include "resharding/convert.h"

#include <crossmesh/convert.h>
#include <math.h>

#include "comm/memory.h"
#include "tests/comm/memory/cuda_case.h"
#include "tests/resharding/plan/random_case.h"
#include "xm_test.h"

enum { ALL = 1 << 16, MOST_ROWS = 300, MOST_COLUMNS = 400 };

static float float_of(uint32_t bits)
{
    float value;

    memcpy(&value, &bits, sizeof(value));
    return value;
}

static uint32_t bits_of(float value)
{
    uint32_t bits;

    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

/* e4m3 from its definition: sign, 4 bits of exponent, 3 of mantissa; 0x7f is NaN. */
static double e4m3(int byte)
{
    const int exponent = byte >> 3 & 15, mantissa = byte & 7;
    const double value =
        exponent == 0 ? ldexp(mantissa, -9) : ldexp(8 + mantissa, exponent - 7 - 3);

    if ((byte & 0x7f) == 0x7f) {
        return NAN;
    }
    return (byte & 0x80) != 0 ? -value : value;
}

static int nearest_e4m3(double value)
{
    int best = 0;

    for (int byte = 1; byte < 0x7f; ++byte) {
        const double old = fabs(fabs(value) - e4m3(best)), now = fabs(fabs(value) - e4m3(byte));

        /* Of two that are equally near the even one. Infinity is as far from all of them. */
        best = now < old || (now == old && (byte % 2 == 0 || isinf(value))) ? byte : best;
    }
    return isnan(value) ? 0x7f : best;
}

/* A value of all kinds: from any bits, with few places (ties), small, special. */
static uint32_t random_bits(random_t *random)
{
    static const uint32_t special[] = {0, 0x7f800000, 0x7fc00000, 0x7f800001, 1, 0x00800000};
    const uint32_t any = (uint32_t)xm_random_next(random);

    switch (random_int(random, 0, 7)) {
    case 0:
        return any;
    case 1:
        return (any & 0x80000000U) | special[random_int(random, 0, 5)];
    case 2:
        return (any & 0x80ffffffU) | 0x3c000000U;
    case 3:
        return any & 0xffff8000U;
    default:
        return (any & 0x81ff8000U) | 0x3c000000U;
    }
}

START_TEST(narrow_elements_are_the_nearest)
{
    static uint32_t wide[ALL];
    static uint16_t halves[ALL], words[ALL];
    static uint8_t bytes[ALL];
    const xm_convert_kernels_t *kernels;
    random_t random = {3};

    for (int k = 0; (kernels = xm_convert_kernels(k)) != NULL; ++k) {
        for (int round = 0; round < xm_test_rounds(8); ++round) {
            float factors[ALL / 1000 + 1];
            const bool float32 = round % 2 == 0;
            const void *from = float32 ? (const void *)wide : halves;
            const int count = ALL - random_int(&random, 0, 100);

            for (int i = 0; i < ALL; ++i) {
                wide[i] = float32 ? random_bits(&random) : (uint32_t)i << 16;
                halves[i] = (uint16_t)(wide[i] >> 16);
            }
            for (int b = 0; b <= ALL / 1000; ++b) {
                factors[b] = ldexpf((float)random_int(&random, 1 << 22, 1 << 23), -22);
            }
            kernels->to_fp8(from, float32, factors, bytes, 1000, count);
            for (int i = 0; i < count; ++i) {
                const int sign = (int)(wide[i] >> 24 & 0x80);
                const float factor = factors[i / 1000];

                ck_assert_msg(bytes[i] == (nearest_e4m3(float_of(wide[i]) * factor) | sign),
                              "%s: %a * %a is %x", kernels->name, (double)float_of(wide[i]),
                              (double)factor, bytes[i]);
            }
            kernels->to_int8(from, float32, factors, bytes, 1000, count);
            for (int i = 0; i < count; ++i) {
                const float value = float_of(wide[i]) * factors[i / 1000];
                const double whole = isnan(value) ? 0 : nearbyint(value);

                ck_assert_int_eq((int8_t)bytes[i], (int)fmin(127, fmax(-127, whole)));
            }
            kernels->to_bfloat16(wide, words, count);
            for (int i = 0; i < count; ++i) {
                const double value = float_of(wide[i]), got = float_of((uint32_t)words[i] << 16);
                const double down = float_of(wide[i] & 0xffff0000U);
                const double up = float_of((wide[i] & 0xffff0000U) + 0x10000U);
                const bool is_tie = (wide[i] & 0xffffU) == 0x8000U;

                if (isnan(value)) {
                    ck_assert_uint_eq(words[i], (wide[i] >> 16 & 0x8000U) | 0x7fc0U);
                } else if (!isfinite(up)) {
                    ck_assert(got == ((wide[i] & 0xffffU) >= 0x8000U ? up : down));
                } else if (is_tie) {
                    ck_assert_uint_eq(words[i] & 1U, 0);
                    ck_assert(got == up || got == down);
                } else {
                    ck_assert(got == (fabs(value - down) < fabs(up - value) ? down : up));
                }
            }
        }
    }
    ck_assert_int_ge(xm_convert_kernels(0) == NULL ? 0 : 1, 1);
}
END_TEST

START_TEST(wide_elements_are_value_times_scale)
{
    static uint8_t bytes[256];
    static uint32_t wide[256];
    static uint16_t halves[256], again[256];
    const float factor = 0.37F;
    const xm_convert_kernels_t *kernels;

    for (int i = 0; i < 256; ++i) {
        bytes[i] = (uint8_t)i;
    }
    for (int k = 0; (kernels = xm_convert_kernels(k)) != NULL; ++k) {
        kernels->from_fp8(bytes, &factor, wide, true, 256, 256);
        kernels->from_fp8(bytes, &factor, halves, false, 256, 256);
        kernels->to_bfloat16(wide, again, 256);
        ck_assert_mem_eq(halves, again, sizeof(again));
        for (int i = 0; i < 256; ++i) {
            const float value = (float)e4m3(i) * factor;

            ck_assert(isnan(value) ? isnan(float_of(wide[i])) : bits_of(value) == wide[i]);
        }
        kernels->from_int8(bytes, &factor, wide, true, 256, 256);
        for (int i = 0; i < 256; ++i) {
            ck_assert_uint_eq(wide[i], bits_of((float)(int8_t)i * factor));
        }
        kernels->from_bfloat16(again, wide, 255);
        for (int i = 0; i < 255; ++i) {
            ck_assert_uint_eq(wide[i], (uint32_t)again[i] << 16);
        }
    }
}
END_TEST

static xm_convert_params_t matrix(xm_convert_kind_t kind, int rows, int columns)
{
    xm_convert_params_t params = XM_CONVERT_PARAMS_INIT;

    params.kind = kind;
    params.float32 = true;
    params.rows = rows;
    params.columns = columns;
    params.wide_stride = params.narrow_stride = columns;
    params.scale_stride = columns; /* more than there are */
    return params;
}

/* A quarter of a matrix around (row, column), as a tile of its own. */
static xm_convert_params_t quarter(const xm_convert_params_t *whole, int number, int64_t row,
                                   int64_t column)
{
    const size_t size = whole->kind == XM_CONVERT_BFLOAT16 ? 2 : 1;
    xm_convert_params_t part = *whole;
    size_t at;

    part.row = number / 2 == 0 ? 0 : row;
    part.column = number % 2 == 0 ? 0 : column;
    part.rows = number / 2 == 0 ? row : whole->rows - row;
    part.columns = number % 2 == 0 ? column : whole->columns - column;
    at = (size_t)(part.row * whole->wide_stride + part.column);
    part.wide = (float *)whole->wide + at;
    part.narrow = (char *)whole->narrow + at * size;
    return part;
}

/* Whatever the tiles are, as long as the maxima are those of whole blocks. */
START_TEST(tiles_give_what_the_matrix_gives)
{
    static float wide[MOST_ROWS * MOST_COLUMNS], back[MOST_ROWS * MOST_COLUMNS];
    static float maxima[MOST_ROWS * MOST_COLUMNS];
    static uint32_t scales[2][MOST_ROWS * MOST_COLUMNS];
    static uint16_t narrow[2][MOST_ROWS * MOST_COLUMNS];
    random_t random = {5};

    for (int round = 0; round < xm_test_rounds(64); ++round) {
        const int rows = random_int(&random, 1, MOST_ROWS);
        const int columns = random_int(&random, 1, MOST_COLUMNS);
        const int row = random_int(&random, 0, rows), column = random_int(&random, 0, columns);
        const xm_convert_kind_t kind = (xm_convert_kind_t)(round % XM_CONVERT_KINDS);
        const bool is_scaled = kind != XM_CONVERT_BFLOAT16;
        xm_convert_params_t whole = matrix(kind, rows, columns);

        for (int i = 0; i < rows * columns; ++i) {
            wide[i] = (float)random_int(&random, -1000000, 1000000) * 1e-7F;
        }
        memset(scales, 0, sizeof(scales));
        memset(narrow, 0, sizeof(narrow));
        for (int way = 0; way < 2; ++way) {
            whole.wide = wide;
            whole.narrow = narrow[way];
            whole.maxima = maxima;
            whole.scales = scales[way];
            memset(maxima, 0, sizeof(maxima));
            for (int step = is_scaled ? XM_CONVERT_MAXIMA : XM_CONVERT_NARROW;
                 step <= XM_CONVERT_NARROW; ++step) {
                for (int q = 0; way == 1 && q < 4; ++q) {
                    const xm_convert_params_t part = quarter(&whole, q, row, column);

                    ck_assert_xm_ok(xm_convert(&part, (xm_convert_step_t)step));
                }
                if (way == 0) {
                    ck_assert_xm_ok(xm_convert(&whole, (xm_convert_step_t)step));
                }
            }
        }
        ck_assert_mem_eq(scales[0], scales[1], sizeof(scales[0]));
        ck_assert_mem_eq(narrow[0], narrow[1], sizeof(narrow[0]));
        whole.wide = back;
        ck_assert_xm_ok(xm_convert(&whole, XM_CONVERT_WIDEN));
        /* A half of the last place of the largest value: 2^-4 of it in e4m3, as 448 has 3 bits,
         * and for MXFP8 of up to twice that. */
        for (int i = 0; i < rows * columns; ++i) {
            ck_assert(fabsf(back[i] - wide[i]) <= (is_scaled ? 0.1F / 16.0F : 0.1F / 256.0F));
        }
    }
}
END_TEST

START_TEST(scales_are_as_the_types_say)
{
    static const struct {
        xm_convert_kind_t kind;
        float maximum, scale;
    } cases[] = {
        {XM_CONVERT_FP8_BLOCKS, 448, 1},
        {XM_CONVERT_FP8_BLOCKS, 0, 1e-4F / 448},
        {XM_CONVERT_FP8_BLOCKS, 3, 3.0F / 448},
        {XM_CONVERT_INT8_ROWS, 127, 1},
        {XM_CONVERT_INT8_ROWS, 0, 0x1p-23F},
        {XM_CONVERT_MXFP8, 448, 127},
        {XM_CONVERT_MXFP8, 448.0001F, 128},
        {XM_CONVERT_MXFP8, 224, 126},
        {XM_CONVERT_MXFP8, 1, 119},
        {XM_CONVERT_MXFP8, 0, 0},
        {XM_CONVERT_MXFP8, INFINITY, 254},
        {XM_CONVERT_MXFP8, NAN, 255},
        {XM_CONVERT_MXFP8, 0x1p-130F, 0},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); ++i) {
        xm_convert_params_t params = matrix(cases[i].kind, 1, 1);
        float maximum = cases[i].maximum, scale = -1;
        uint8_t byte = 99;

        params.maxima = &maximum;
        params.scales = cases[i].kind == XM_CONVERT_MXFP8 ? (void *)&byte : &scale;
        ck_assert_xm_ok(xm_convert(&params, XM_CONVERT_SCALES));
        ck_assert(cases[i].scale == (cases[i].kind == XM_CONVERT_MXFP8 ? (float)byte : scale));
    }
}
END_TEST

START_TEST(wrong_parameters_are_named)
{
    float value = 1, maximum = 0;
    char narrow[4];
    xm_convert_params_t params = matrix(XM_CONVERT_FP8_BLOCKS, 1, 1);

    ck_assert_xm_fails(xm_convert(NULL, XM_CONVERT_NARROW), XM_ERR_INVALID_ARGUMENT,
                       "xm_convert: params is NULL");
    ck_assert_xm_fails(xm_convert(&params, XM_CONVERT_MAXIMA), XM_ERR_INVALID_ARGUMENT,
                       "params.wide is NULL");
    params.wide = &value;
    ck_assert_xm_fails(xm_convert(&params, XM_CONVERT_MAXIMA), XM_ERR_INVALID_ARGUMENT,
                       "params.maxima is NULL");
    params.maxima = &maximum;
    ck_assert_xm_fails(xm_convert(&params, XM_CONVERT_NARROW), XM_ERR_INVALID_ARGUMENT,
                       "params.narrow is NULL");
    params.narrow = narrow;
    ck_assert_xm_fails(xm_convert(&params, XM_CONVERT_SCALES), XM_ERR_INVALID_ARGUMENT,
                       "params.scales is NULL");
    ck_assert_xm_fails(xm_convert(&params, (xm_convert_step_t)7), XM_ERR_INVALID_ARGUMENT,
                       "step is 7");
    params.kind = XM_CONVERT_BFLOAT16;
    ck_assert_xm_fails(xm_convert(&params, XM_CONVERT_MAXIMA), XM_ERR_INVALID_ARGUMENT,
                       "made of float32");
    params.kind = XM_CONVERT_KINDS;
    ck_assert_xm_fails(xm_convert(&params, XM_CONVERT_NARROW), XM_ERR_INVALID_ARGUMENT,
                       "params.kind is 4");
    params.kind = XM_CONVERT_MXFP8;
    params.row = -1;
    ck_assert_xm_fails(xm_convert(&params, XM_CONVERT_NARROW), XM_ERR_INVALID_ARGUMENT,
                       "at row -1");
    params.row = 0;
    params.struct_size = 8;
    ck_assert_xm_fails(xm_convert(&params, XM_CONVERT_NARROW), XM_ERR_INVALID_ARGUMENT,
                       "struct_size is 8");
    params = matrix(XM_CONVERT_INT8_ROWS, 0, 5);
    ck_assert_xm_ok(xm_convert(&params, XM_CONVERT_NARROW)); /* of nothing */
}
END_TEST

/* Memory of a tile on both sides; the device's is made of what the host's holds. */
typedef struct {
    size_t bytes;
    unsigned char *host, *there, *back;
} twin_t;

static twin_t make_twin(xm_memory_space_t *space, random_t *random, size_t bytes, bool filled)
{
    twin_t twin = {.bytes = bytes, .host = calloc(1, bytes + 8), .back = calloc(1, bytes + 8)};

    for (size_t at = 0; filled && at + 4 <= bytes; at += 4) {
        uint32_t bits = random_bits(random);

        memcpy(twin.host + at, &bits, sizeof(bits));
    }
    ck_assert_xm_ok(xm_memory_allocate(space, bytes, (void **)&twin.there));
    ck_assert_xm_ok(xm_memory_copy(space, twin.there, twin.host, bytes));
    return twin;
}

/* A NaN has any payload, and a device another than this processor. */
static bool is_same(const twin_t *twin, size_t size, uint32_t infinity)
{
    const uint32_t magnitude = size == 4 ? 0x7fffffff : 0x7fff;
    bool same = true;

    for (size_t at = 0; at < twin->bytes; at += size) {
        uint32_t one = 0, other = 0;

        memcpy(&one, twin->host + at, size);
        memcpy(&other, twin->back + at, size);
        same = same &&
               (one == other || ((one & magnitude) > infinity && (other & magnitude) > infinity));
    }
    return same;
}

/* `infinity`: of floats of that size; 0: every bit counts. */
static void end_twin(xm_memory_space_t *space, twin_t *twin, size_t size, uint32_t infinity,
                     const char *what)
{
    ck_assert_xm_ok(xm_memory_copy(space, twin->back, twin->there, twin->bytes));
    ck_assert_msg(infinity > 0 ? is_same(twin, size, infinity)
                               : memcmp(twin->host, twin->back, twin->bytes) == 0,
                  "%s differ", what);
    xm_memory_release(space, twin->there);
    free(twin->host);
    free(twin->back);
}

START_TEST(devices_give_the_same_bits)
{
    xm_memory_space_t *space;
    random_t random = {13};

    ck_assert_xm_ok(xm_memory_cuda_create(0, &space));
    for (int round = 0; round < xm_test_rounds(60); ++round) {
        xm_convert_params_t host = matrix((xm_convert_kind_t)(round % XM_CONVERT_KINDS),
                                          random_int(&random, 1, 150), random_int(&random, 1, 300));
        const bool scaled = host.kind != XM_CONVERT_BFLOAT16;
        const size_t wide = (size_t)(host.rows * host.columns) * 4;
        xm_convert_params_t there;
        size_t blocks;

        host.float32 = !scaled || random_int(&random, 0, 1) == 0;
        host.row = random_int(&random, 0, 200);
        host.column = random_int(&random, 0, 200);
        host.scale_stride = host.column + host.columns; /* more than any kind has */
        blocks = (size_t)((host.row + host.rows) * host.scale_stride);
        twin_t elements = make_twin(space, &random, wide, true);
        twin_t narrow = make_twin(space, &random, wide / 2, false);
        twin_t maxima = make_twin(space, &random, blocks * 4, false);
        twin_t scales = make_twin(space, &random, blocks * 4, false);

        there = host;
        host.wide = elements.host;
        host.narrow = narrow.host;
        host.maxima = maxima.host;
        host.scales = scales.host;
        there.wide = elements.there;
        there.narrow = narrow.there;
        there.maxima = maxima.there;
        there.scales = scales.there;
        for (int step = scaled ? XM_CONVERT_MAXIMA : XM_CONVERT_NARROW; step <= XM_CONVERT_WIDEN;
             ++step) {
            ck_assert_xm_ok(xm_convert(&host, (xm_convert_step_t)step));
            ck_assert_xm_ok(xm_convert(&there, (xm_convert_step_t)step));
        }
        end_twin(space, &maxima, 4, 0, "maxima");
        end_twin(space, &scales, 4, host.kind == XM_CONVERT_MXFP8 ? 0 : 0x7f800000, "scales");
        end_twin(space, &narrow, 1, 0, "narrow elements");
        end_twin(space, &elements, host.float32 ? 4 : 2, host.float32 ? 0x7f800000 : 0x7f80,
                 "wide elements");
    }
    xm_memory_space_destroy(space);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("convert");
    TCase *tcase = tcase_create("core");

    tcase_set_timeout(tcase, 120);
    tcase_add_test(tcase, narrow_elements_are_the_nearest);
    tcase_add_test(tcase, wide_elements_are_value_times_scale);
    tcase_add_test(tcase, tiles_give_what_the_matrix_gives);
    tcase_add_test(tcase, scales_are_as_the_types_say);
    tcase_add_test(tcase, wrong_parameters_are_named);
    suite_add_tcase(suite, tcase);
    tcase = tcase_create("cuda");
    tcase_set_timeout(tcase, 200);
    tcase_add_test(tcase, devices_give_the_same_bits);
    suite_add_tcase(suite, tcase);
    return cuda_run(suite);
}
