/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Any text as a layout, one word to a line: mesh shape, ranks, sharding spec, tensor shape,
 * partition, strategy. Each is refused with a sentence, or makes a value that is written
 * as a text that gives the same value; and a layout's tiles cover the tensor.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "resharding/layout/layout.h"
#include "resharding/plan/plan.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { WORDS = 6, LONGEST = 256, MANY = 4096 };
enum { MESH, RANKS, SPEC, SHAPE, PARTITION, STRATEGY };

static void expect(bool condition)
{
    if (!condition) {
        abort();
    }
}

static void split(const uint8_t *data, size_t size, char words[WORDS][LONGEST])
{
    int word = 0;
    size_t length = 0;

    for (size_t i = 0; i < size && word < WORDS; ++i) {
        if (data[i] == '\n') {
            ++word;
            length = 0;
        } else if (length + 1 < LONGEST) {
            words[word][length++] = (char)data[i];
        }
    }
}

/* The product of the numbers in a text, or their largest. A mesh of millions of devices is sound,
 * and takes too long to make here again and again. */
static bool is_huge(const char *text, bool product)
{
    double all = 1;

    while (*text != '\0') {
        char *end;
        double number = (double)strtoul(text, &end, 10);

        if (end == text) {
            ++text;
            continue;
        }
        all = product ? all * (number > 1 ? number : 1) : number > all ? number : all;
        text = end;
    }
    return all > MANY;
}

static xm_mesh_t *try_mesh(char words[WORDS][LONGEST])
{
    xm_mesh_t *mesh = NULL, *again = NULL;
    const char *ranks = words[RANKS][0] != '\0' ? words[RANKS] : NULL;
    char shape[256], list[LONGEST];

    if (is_huge(words[MESH], true) || is_huge(words[RANKS], false)) {
        return NULL;
    }
    if (xm_mesh_parse(words[MESH], ranks, 5, &mesh) < 0) {
        expect(mesh == NULL && xm_last_error()[0] != '\0');
        return NULL;
    }
    expect(xm_mesh_size(mesh) >= 1 && xm_mesh_axes(mesh) <= XM_MAX_AXES);
    for (int p = 0; p < xm_mesh_size(mesh); ++p) {
        expect(xm_mesh_position(mesh, xm_mesh_rank(mesh, p)) == p);
    }
    if (strlen(xm_mesh_format_ranks(mesh, list, sizeof(list))) < sizeof(list) - 1) {
        (void)xm_mesh_format_shape(mesh, shape, sizeof(shape));
        expect(xm_mesh_parse(shape, list, 0, &again) == XM_OK);
        expect(memcmp(xm_mesh_ranks(mesh), xm_mesh_ranks(again),
                      (size_t)xm_mesh_size(mesh) * sizeof(int)) == 0);
        xm_mesh_destroy(again);
    }
    return mesh;
}

static bool try_spec(const char *text, xm_spec_t *spec)
{
    char written[XM_SPEC_TEXT];
    xm_spec_t again;

    if (xm_spec_parse(text, spec) < 0) {
        expect(xm_last_error()[0] != '\0');
        return false;
    }
    expect(xm_spec_parse(xm_spec_format(spec, written), &again) == XM_OK);
    expect(again.dims == spec->dims);
    for (int d = 0; d < spec->dims; ++d) {
        expect(again.axis_count[d] == spec->axis_count[d] &&
               memcmp(again.axes[d], spec->axes[d], (size_t)spec->axis_count[d]) == 0);
    }
    return true;
}

static bool try_shape(const char *text, int *dims, int64_t shape[XM_MAX_DIMS])
{
    char written[LONGEST];
    int64_t again[XM_MAX_DIMS];
    int again_dims = 0;

    if (xm_shape_parse(text, dims, shape) < 0) {
        expect(xm_last_error()[0] != '\0');
        return false;
    }
    (void)xm_shape_format(*dims, shape, written, sizeof(written));
    if (*dims > 0) {
        expect(xm_shape_parse(written, &again_dims, again) == XM_OK && again_dims == *dims);
        expect(memcmp(shape, again, (size_t)*dims * sizeof(*shape)) == 0);
    }
    return true;
}

/* Tiles are where their cuts say, and each position has one. */
static void look(const xm_layout_t *layout)
{
    int64_t held = 0, elements = 1;

    if (xm_layout_tiles(layout) > MANY) {
        return;
    }
    for (int d = 0; d < xm_layout_dims(layout); ++d) {
        elements *= xm_layout_shape(layout)[d];
    }
    for (int t = 0; t < xm_layout_tiles(layout); ++t) {
        int64_t volume = 1;
        xm_box_t box;

        xm_layout_tile_box(layout, t, &box);
        for (int d = 0; d < xm_layout_dims(layout); ++d) {
            expect(box.lo[d] <= box.hi[d] && box.hi[d] <= xm_layout_shape(layout)[d]);
            volume *= box.hi[d] - box.lo[d];
        }
        held += volume;
    }
    expect(held == elements);
    for (int p = 0; p < xm_mesh_size(xm_layout_mesh(layout)); ++p) {
        int tile = xm_layout_tile_at(layout, p);

        expect(tile >= 0 && tile < xm_layout_tiles(layout));
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char words[WORDS][LONGEST] = {{0}};
    int64_t shape[XM_MAX_DIMS];
    int dims = 0;
    xm_spec_t spec;
    xm_partition_t partition = XM_PARTITION_EVEN;
    xm_strategy_t strategy;
    xm_layout_t *layout = NULL;
    xm_mesh_t *mesh;
    bool spec_good, shape_good;

    split(data, size, words);
    mesh = try_mesh(words);
    spec_good = try_spec(words[SPEC], &spec);
    shape_good = try_shape(words[SHAPE], &dims, shape);
    (void)xm_partition_parse(words[PARTITION], &partition);
    (void)xm_strategy_parse(words[STRATEGY], &strategy);
    if (mesh != NULL && spec_good && shape_good && dims == spec.dims) {
        if (xm_layout_create(mesh, &spec, partition, shape, &layout) < 0) {
            expect(layout == NULL && xm_last_error()[0] != '\0');
        } else {
            look(layout);
        }
    }
    xm_layout_destroy(layout);
    xm_mesh_destroy(mesh);
    return 0;
}
