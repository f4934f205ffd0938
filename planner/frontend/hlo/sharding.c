/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads sharding annotations. They bind the plan, so one that cannot be must be refused here, where
 * its place in the text is known; whether the mesh can hold it is found out later.
 */

#include "planner/frontend/hlo/sharding.h"

#include <inttypes.h>
#include <string.h>

enum { DEVICES_MOST = 1 << 20 };

/* Reads "2,1,4]" and multiplies. */
static void read_numbers(hlo_cursor_t *cursor, int64_t *values, int room, int *count,
                         int64_t *product)
{
    *count = 0;
    *product = 1;
    do {
        size_t at = cursor->at;
        int64_t value = hlo_integer(cursor);

        if (value < 1 || value > DEVICES_MOST / *product || *count == room) {
            (void)hlo_fail(cursor, at,
                           "sharding: at most %d dimensions of positive numbers, and %d devices",
                           room, DEVICES_MOST);
            return;
        }
        *product *= value;
        values[(*count)++] = value;
    } while (hlo_accept(cursor, ","));
    hlo_expect(cursor, "]");
}

/* Reads "<=[2,4]T(1,0)": numbers in row-major order of these sizes, whose dimensions are then
 * permuted. The device at @p at in that order is what the steps of its coordinates add up to. */
static void read_iota(hlo_cursor_t *cursor, const int64_t *at, int wanted, int64_t *found,
                      int64_t *devices)
{
    int64_t sizes[2 * AP_MAX_RANK], step[2 * AP_MAX_RANK];
    int count, order[2 * AP_MAX_RANK];

    hlo_expect(cursor, "[");
    read_numbers(cursor, sizes, 2 * AP_MAX_RANK, &count, devices);
    for (int i = 0; i < count; ++i) {
        order[i] = i;
    }
    if (cursor->status == XM_OK && hlo_accept(cursor, "T") && hlo_accept(cursor, "(")) {
        for (int i = 0; i < count; ++i) {
            int64_t of = hlo_integer(cursor);

            order[i] = of >= 0 && of < count ? (int)of : i;
            (void)hlo_accept(cursor, ",");
        }
    }
    if (cursor->status != XM_OK) {
        return;
    }
    for (int64_t i = count - 1, all = 1; i >= 0; all *= sizes[i--]) {
        step[i] = all;
    }
    for (int w = 0; w < wanted; ++w) {
        int64_t left = at[w];

        found[w] = 0;
        for (int i = count - 1; i >= 0; --i) {
            found[w] += left % sizes[order[i]] * step[order[i]];
            left /= sizes[order[i]];
        }
    }
}

/* Counts the devices behind the tiles, "<=[2,4]" or "0,1,2,3", and finds some of them. */
static void read_devices(hlo_cursor_t *cursor, const int64_t *at, int wanted, int64_t *found,
                         int64_t *devices)
{
    if (hlo_accept(cursor, "<=")) {
        read_iota(cursor, at, wanted, found, devices);
        return;
    }
    *devices = 0;
    do {
        int64_t device = hlo_integer(cursor);

        for (int w = 0; w < wanted; ++w) {
            found[w] = at[w] == *devices ? device : found[w];
        }
        ++*devices;
    } while (hlo_accept(cursor, ","));
}

static bool contains(hlo_slice_t text, const char *word)
{
    size_t length = strlen(word);

    for (size_t i = 0; i + length <= text.length; ++i) {
        if (memcmp(text.at + i, word, length) == 0) {
            return true;
        }
    }
    return false;
}

/* Tiles behind those of the tensor's dimensions hold copies. */
static xm_status_t read_tiles(hlo_cursor_t *cursor, const hlo_instruction_t *of, hlo_slice_t text,
                              const ap_shape_t *shape, hlo_sharding_t *sharding)
{
    bool more = contains(text, "last_tile_dim");
    int64_t tiles[AP_MAX_RANK + 2], product, devices, left;
    int64_t at[AP_MAX_RANK + 1] = {0}, found[AP_MAX_RANK + 1] = {0};
    int count;

    read_numbers(cursor, tiles, AP_MAX_RANK + 2, &count, &product);
    /* Where the first tile stands, and behind it the second tile of each dimension. */
    left = product;
    for (int d = 0; d < shape->rank && d < count && cursor->status == XM_OK; ++d) {
        left /= tiles[d];
        at[d + 1] = tiles[d] > 1 ? left : 0;
    }
    read_devices(cursor, at, shape->rank + 1, found, &devices);
    if (cursor->status != XM_OK) {
        return cursor->status;
    }
    if (more ? count <= shape->rank : count != shape->rank) {
        return hlo_error(cursor->text, of->at,
                         "sharding: %d numbers of tiles do not go with %d dimensions", count,
                         shape->rank);
    }
    if (product != devices) {
        return hlo_error(cursor->text, of->at,
                         "sharding: %" PRId64 " tiles do not lie on %" PRId64 " devices", product,
                         devices);
    }
    for (int d = 0; d < shape->rank; ++d) {
        if (tiles[d] > shape->dims[d]) {
            return hlo_error(cursor->text, of->at,
                             "sharding: dimension %d of %" PRId64
                             " elements cannot be cut into %" PRId64,
                             d, shape->dims[d], tiles[d]);
        }
        sharding->cut[d] = (ap_cut_t){(int)tiles[d], (int)(found[d + 1] - found[0])};
    }
    sharding->demands = true;
    return XM_OK;
}

/* Shardy writes "[{?}, {\"x\"}]": the groups are the dimensions. */
static void open_shardy_dims(hlo_slice_t text, int rank, hlo_sharding_t *sharding)
{
    int dim = -1;
    bool inside = false;

    for (size_t i = 0; i < text.length && dim < rank; ++i) {
        inside = inside || text.at[i] == '[';
        dim += inside && text.at[i] == '{';
        if (inside && text.at[i] == '?' && dim >= 0 && dim < rank &&
            sharding->cut[dim].parts == 1) {
            sharding->cut[dim].parts = 0;
        }
        if (inside && text.at[i] == ']') {
            return;
        }
    }
}

/* What the author leaves to the partitioner: "unspecified_dims=[0,1]", or Shardy's "{?}". */
static xm_status_t open_dims(const hlo_module_t *module, const hlo_instruction_t *of, int rank,
                             hlo_sharding_t *sharding)
{
    hlo_slice_t config = hlo_attribute(of, "backend_config");
    hlo_cursor_t cursor = hlo_cursor_of(&module->text, config);

    open_shardy_dims(hlo_attribute(of, "frontend_attributes"), rank, sharding);
    if (hlo_accept(&cursor, "unspecified_dims") && hlo_accept(&cursor, "=") &&
        hlo_accept(&cursor, "[")) {
        do {
            int64_t dim = hlo_integer(&cursor);

            if (cursor.status == XM_OK && dim >= 0 && dim < rank) {
                sharding->cut[dim].parts = 0;
            }
        } while (hlo_accept(&cursor, ","));
    }
    return cursor.status;
}

xm_status_t hlo_sharding_read(const hlo_module_t *module, const hlo_instruction_t *of,
                              const ap_shape_t *shape, hlo_sharding_t *sharding)
{
    hlo_slice_t text = hlo_attribute(of, "sharding"), word;
    hlo_cursor_t cursor = hlo_cursor_of(&module->text, text);
    xm_status_t status = XM_OK;

    *sharding = (hlo_sharding_t){.demands = false};
    if (!hlo_accept(&cursor, "{") || hlo_peek(&cursor) == '{' || contains(text, "manual")) {
        return XM_OK;
    }
    word = hlo_word(&cursor);
    if (hlo_slice_is(word, "replicated")) {
        sharding->demands = true;
        for (int d = 0; d < shape->rank; ++d) {
            sharding->cut[d].parts = 1;
        }
    } else if (hlo_slice_is(word, "devices") && hlo_accept(&cursor, "=") &&
               hlo_accept(&cursor, "[")) {
        status = read_tiles(&cursor, of, text, shape, sharding);
    } else if (!hlo_slice_is(word, "maximal") && !hlo_slice_is(word, "unknown") &&
               !hlo_slice_is(word, "unreduced")) {
        return hlo_error(&module->text, of->at, "sharding: '%.*s' is none",
                         (int)(text.length > 60 ? 60 : text.length), text.at);
    }
    return status == XM_OK && sharding->demands ? open_dims(module, of, shape->rank, sharding)
                                                : status;
}
