/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The cases of the suites: those of the paper (MLSys'23) and of Alpa's unit tests as a
 * table, and those of whole models from case_model.c. A case names hosts and devices and
 * not ranks, because which ranks these are depends on the job that runs it (placement.c).
 */
#include "bench/cases/case.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/cases/published.h"
#include "resharding/plan.h"

typedef struct {
    int axes;
    int sizes[2];
    int hosts, devices;
    const char *spec;
} table_side_t;

typedef struct {
    rb_suite_t suite;
    const char *name;
    int dims;
    int64_t shape[3];
    table_side_t src, dst;
    int strategy;
} table_case_t;

enum { DEVICES_PER_HOST = 4, SEND_RECV = XM_STRATEGY_SEND_RECV, BROADCAST = XM_STRATEGY_BROADCAST };

/* clang-format off */
/* Suite, name, tensor of int32, source and destination: mesh, hosts, devices per host,
 * spec. Each case is one row, which the formatter would break up. */
static const table_case_t table[] = {
    {RB_SUITE_1M, "1m1", 1, {1 << 28}, {2, {1, 1}, 1, 1, "R"}, {2, {1, 1}, 1, 1, "R"}, RB_ANY},
    {RB_SUITE_1M, "1m2", 1, {1 << 28}, {2, {1, 1}, 1, 1, "R"}, {2, {1, 2}, 1, 2, "R"}, RB_ANY},
    {RB_SUITE_1M, "1m3", 1, {1 << 28}, {2, {1, 1}, 1, 1, "R"}, {2, {1, 3}, 1, 3, "R"}, RB_ANY},
    {RB_SUITE_1M, "1m4", 1, {1 << 28}, {2, {1, 1}, 1, 1, "R"}, {2, {1, 4}, 1, 4, "R"}, RB_ANY},
    {RB_SUITE_1M, "1m5", 1, {1 << 28}, {2, {1, 1}, 1, 1, "R"}, {2, {2, 2}, 2, 2, "R"}, RB_ANY},
    {RB_SUITE_1M, "1m6", 1, {1 << 28}, {2, {1, 1}, 1, 1, "R"}, {2, {3, 2}, 3, 2, "R"}, RB_ANY},
    {RB_SUITE_1M, "1m7", 1, {1 << 28}, {2, {1, 1}, 1, 1, "R"}, {2, {4, 2}, 4, 2, "R"}, RB_ANY},

    {RB_SUITE_NM, "nm1", 3, {1024, 1024, 512},
     {2, {2, 4}, 2, 4, "S0RR"}, {2, {2, 4}, 2, 4, "S0RR"}, RB_ANY},
    {RB_SUITE_NM, "nm2", 3, {1024, 1024, 512},
     {2, {2, 4}, 2, 4, "RRR"}, {2, {2, 4}, 2, 4, "S0RR"}, RB_ANY},
    {RB_SUITE_NM, "nm3", 3, {1024, 1024, 512},
     {2, {2, 4}, 2, 4, "RS0R"}, {2, {2, 4}, 2, 4, "S0RR"}, RB_ANY},
    {RB_SUITE_NM, "nm4", 3, {1024, 1024, 512},
     {2, {2, 4}, 2, 4, "RS01R"}, {2, {2, 4}, 2, 4, "S01RR"}, RB_ANY},
    {RB_SUITE_NM, "nm5", 3, {1024, 1024, 512},
     {2, {2, 4}, 2, 4, "S1RR"}, {2, {2, 4}, 2, 4, "S0RR"}, RB_ANY},
    {RB_SUITE_NM, "nm6", 3, {3072, 1024, 170},
     {2, {2, 4}, 2, 4, "S0RR"}, {2, {3, 4}, 3, 4, "S0RR"}, RB_ANY},
    {RB_SUITE_NM, "nm7", 3, {1024, 1024, 512},
     {2, {1, 4}, 1, 4, "S1RR"}, {2, {2, 4}, 2, 4, "RRR"}, RB_ANY},
    {RB_SUITE_NM, "nm8", 3, {1024, 1024, 512},
     {2, {1, 4}, 1, 4, "S1RR"}, {2, {2, 4}, 2, 4, "RRR"}, RB_ANY},
    {RB_SUITE_NM, "nm9", 3, {1024, 1024, 512},
     {2, {2, 4}, 2, 4, "RS0R"}, {2, {2, 4}, 2, 4, "RRS0"}, RB_ANY},

    {RB_SUITE_TESTS, "t1", 3, {4, 8, 16}, {1, {2}, 1, 2, "RRR"}, {1, {2}, 1, 2, "S0RR"}, SEND_RECV},
    {RB_SUITE_TESTS, "t2", 3, {4, 8, 16}, {1, {2}, 1, 2, "RRR"}, {1, {2}, 1, 2, "S0RR"}, SEND_RECV},
    {RB_SUITE_TESTS, "t3", 3, {4, 8, 16}, {1, {2}, 1, 2, "S0RR"}, {1, {2}, 1, 2, "S0RR"}, SEND_RECV},
    {RB_SUITE_TESTS, "t4", 3, {4, 8, 16}, {1, {2}, 1, 2, "S0RR"}, {1, {2}, 1, 2, "S0RR"}, SEND_RECV},
    {RB_SUITE_TESTS, "t5", 3, {4, 8, 16}, {1, {2}, 1, 2, "RS0R"}, {1, {2}, 1, 2, "S0RR"}, SEND_RECV},
    {RB_SUITE_TESTS, "t6", 3, {4, 8, 16}, {1, {2}, 1, 2, "RS0R"}, {1, {2}, 1, 2, "S0RR"}, SEND_RECV},
    {RB_SUITE_TESTS, "t7", 3, {4, 8, 16}, {1, {2}, 1, 2, "RRR"}, {1, {2}, 1, 2, "RRR"}, SEND_RECV},
    {RB_SUITE_TESTS, "t8", 3, {4, 8, 16}, {1, {2}, 1, 2, "S0RR"}, {1, {2}, 1, 2, "RRR"}, SEND_RECV},
    {RB_SUITE_TESTS, "t9", 3, {4, 8, 16}, {1, {2}, 1, 2, "RS0R"}, {1, {2}, 1, 2, "RRR"}, SEND_RECV},
    {RB_SUITE_TESTS, "t10", 3, {3, 8, 2}, {1, {2}, 1, 2, "RS0R"}, {1, {2}, 1, 2, "RRR"}, SEND_RECV},
    {RB_SUITE_TESTS, "t11", 3, {6, 8, 16}, {1, {4}, 1, 4, "RRR"}, {1, {4}, 1, 4, "RRR"}, SEND_RECV},
    {RB_SUITE_TESTS, "t12", 3, {4, 8, 16}, {1, {2}, 1, 2, "RRR"}, {1, {2}, 1, 2, "S0RR"}, BROADCAST},
    {RB_SUITE_TESTS, "t13", 3, {4, 8, 16}, {1, {2}, 1, 2, "S0RR"}, {1, {2}, 1, 2, "S0RR"}, BROADCAST},
    {RB_SUITE_TESTS, "t14", 3, {4, 8, 16}, {1, {2}, 1, 2, "RS0R"}, {1, {2}, 1, 2, "S0RR"}, BROADCAST},
    {RB_SUITE_TESTS, "t15", 3, {2, 64, 64},
     {2, {2, 2}, 1, 4, "S0S1R"}, {1, {4}, 1, 4, "RRR"}, BROADCAST},
    {RB_SUITE_TESTS, "t16", 3, {64, 64, 64},
     {2, {2, 2}, 1, 4, "S0S1R"}, {2, {2, 2}, 1, 4, "S0RS1"}, BROADCAST},
};
/* clang-format on */

/* The product of the mesh's axes; 1 without axes. */
int rb_side_size(const rb_side_t *side)
{
    int size = 1;

    for (int a = 0; a < side->axes; ++a) {
        size *= side->sizes[a];
    }
    return size;
}

enum { TABLE_CASES = sizeof(table) / sizeof(table[0]) };

/* Cases are numbered through: the table first, then the models. */
int rb_suite_cases(void)
{
    return TABLE_CASES + rb_model_cases();
}

const char *rb_suite_case_name(int index)
{
    return index < TABLE_CASES ? table[index].name : rb_model_case_name(index - TABLE_CASES);
}

/* Two suites are sets of others: `alpa` is the paper's cases, and the ablation runs the
 * many-to-many cases under several schedulers. */
bool rb_suite_holds(rb_suite_t suite, int index)
{
    if (index >= TABLE_CASES) {
        return suite == (rb_published_find(rb_suite_case_name(index)) != NULL ? RB_SUITE_REFIT
                                                                              : RB_SUITE_MODEL);
    }
    if (suite == RB_SUITE_ALPA) {
        return table[index].suite != RB_SUITE_TESTS;
    }
    return table[index].suite == (suite == RB_SUITE_ABLATION ? RB_SUITE_NM : suite);
}

/* Specs are stored as text and parsed here, so the table reads like the paper's. */
static xm_status_t fill_side(const table_side_t *row, rb_side_t *side)
{
    side->axes = row->axes;
    for (int a = 0; a < row->axes; ++a) {
        side->sizes[a] = row->sizes[a];
    }
    side->hosts = row->hosts;
    side->devices = row->devices;
    return xm_spec_parse(row->spec, &side->spec);
}

static xm_status_t fill_row(const table_case_t *row, rb_case_t *result)
{
    rb_case_t filled = {.dtype = "int32",
                        .element_size = sizeof(int32_t),
                        .dims = row->dims,
                        .strategy = row->strategy,
                        .scheduler = RB_ANY,
                        .ranks_per_host = DEVICES_PER_HOST,
                        .pack = row->suite == RB_SUITE_TESTS};

    XM_TRY(fill_side(&row->src, &filled.src));
    XM_TRY(fill_side(&row->dst, &filled.dst));
    (void)snprintf(filled.name, sizeof(filled.name), "%s", row->name);
    memcpy(filled.shape, row->shape, (size_t)row->dims * sizeof(row->shape[0]));
    *result = filled;
    return XM_OK;
}

/* The index continues behind the table with the built-in models. */
xm_status_t rb_suite_case(int index, rb_case_t *result)
{
    if (index < TABLE_CASES) {
        return fill_row(&table[index], result);
    }
    rb_case_of_model(
        &(rb_model_request_t){.name = rb_model_case_name(index - TABLE_CASES), .packed = true},
        result);
    return XM_OK;
}

/* Only dimension 0 is scaled: all cases keep their shape of communication and lose
 * volume. */
xm_status_t rb_case_scale(rb_case_t *scaled, int64_t divisor)
{
    if (divisor == 1) {
        return XM_OK;
    }
    if (scaled->dims == 0 || scaled->shape[0] % divisor != 0) {
        return XM_INVALID("--scale 1/%" PRId64 ": case %s has %" PRId64
                          " elements in dimension 0, which %" PRId64 " does not divide",
                          divisor, scaled->name, scaled->dims == 0 ? 1 : scaled->shape[0], divisor);
    }
    scaled->shape[0] /= divisor;
    return XM_OK;
}

/* Layouts of one tensor count in bytes. */
xm_status_t rb_case_set_dtype(rb_case_t *one, const char *name)
{
    int bits;
    XM_TRY(rb_model_dtype_bits(name, &bits));

    if (bits % 8 != 0) {
        return XM_UNSUPPORTED("dtype '%s' has elements of %d bits; only tensors of a model may",
                              name, bits);
    }
    one->element_size = bits / 8;
    (void)snprintf(one->dtype, sizeof(one->dtype), "%s", name);
    return XM_OK;
}

/* A model's side has a text of its own; other sides are written as mesh and spec. */
char *rb_side_format(const rb_side_t *side, char *buffer, size_t size)
{
    char spec[XM_SPEC_TEXT];
    size_t used = 0;

    if (side->text[0] != '\0') {
        (void)snprintf(buffer, size, "%s", side->text);
        return buffer;
    }
    for (int a = 0; a < side->axes && used < size; ++a) {
        used +=
            (size_t)snprintf(buffer + used, size - used, "%s%d", a > 0 ? "x" : "", side->sizes[a]);
    }
    if (used < size) {
        (void)snprintf(buffer + used, size - used, "%s:%s", side->axes == 0 ? "1" : "",
                       xm_spec_format(&side->spec, spec));
    }
    return buffer;
}

char *rb_case_format_shape(const rb_case_t *one, char *buffer, size_t size)
{
    if (one->model == NULL) {
        return xm_shape_format(one->dims, one->shape, buffer, size);
    }
    (void)snprintf(buffer, size, "%d tensors", one->model->count);
    return buffer;
}

/* Variants of a case share what they point to, and the first of them owns it. */
void rb_case_clear(rb_case_t *cleared)
{
    if (cleared->variant > 0) {
        return;
    }
    rb_model_destroy(cleared->model);
    cleared->model = NULL;
    free(cleared->src.ranks);
    free(cleared->dst.ranks);
    cleared->src.ranks = NULL;
    cleared->dst.ranks = NULL;
}
