/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One sharding spec in three notations. They agree on what a spec says (which mesh axes cut which
 * dimension, in ascending order) and differ in what they list: JAX axes per dimension, DTensor
 * dimensions per axis, XLA tiles per dimension and the order in which devices fill them. Axes of
 * one device are left out wherever the notation allows it.
 */

#include "planner/export/spec.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "comm/base.h"

ap_export_mesh_t ap_export_mesh_of(const ap_cost_mesh_t *mesh)
{
    ap_export_mesh_t made = {.rank = ap_cost_mesh_rank(mesh)};

    for (int a = 0; a < made.rank; ++a) {
        made.size[a] = ap_cost_mesh_size(mesh, a);
    }
    return made;
}

static const char *axis_name(int axis)
{
    static const char *const names[AP_MAX_MESH_RANK] = {"x", "y", "z", "w"};

    return names[axis];
}

void ap_export_put_mesh(FILE *stream, const ap_export_mesh_t *mesh)
{
    for (int a = 0; a < mesh->rank; ++a) {
        (void)fprintf(stream, "%s\"%s\": %d", a == 0 ? "{" : ", ", axis_name(a), mesh->size[a]);
    }
    (void)putc('}', stream);
}

/* The axes with more than one device. */
static unsigned axes_of(const ap_export_mesh_t *mesh)
{
    unsigned axes = 0;

    for (int a = 0; a < mesh->rank; ++a) {
        axes |= mesh->size[a] > 1 ? 1U << a : 0;
    }
    return axes;
}

static int devices_of(const ap_export_mesh_t *mesh, unsigned axes)
{
    int devices = 1;

    for (int a = 0; a < mesh->rank; ++a) {
        devices *= (axes >> a & 1U) != 0 ? mesh->size[a] : 1;
    }
    return devices;
}

void ap_export_put_partition_spec(FILE *stream, const ap_export_mesh_t *mesh, ap_spec_t spec,
                                  int rank)
{
    (void)fputs("P(", stream);
    for (int d = 0; d < rank; ++d) {
        unsigned cut = ap_spec_axes(spec, d) & axes_of(mesh);
        bool several = (cut & (cut - 1)) != 0, first = true;

        (void)fputs(d == 0 ? "" : ", ", stream);
        (void)fputs(cut == 0 ? "None" : several ? "(" : "", stream);
        for (int a = 0; a < mesh->rank; ++a) {
            if ((cut >> a & 1U) != 0) {
                (void)fprintf(stream, "%s\"%s\"", first ? "" : ", ", axis_name(a));
                first = false;
            }
        }
        (void)fputs(several ? ")" : "", stream);
    }
    (void)putc(')', stream);
}

json_t *ap_export_spec_json(const ap_export_mesh_t *mesh, ap_spec_t spec, int rank)
{
    json_t *list = json_array();

    for (int d = 0; d < rank; ++d) {
        unsigned cut = ap_spec_axes(spec, d) & axes_of(mesh);
        json_t *axes = json_array();

        for (int a = 0; a < mesh->rank; ++a) {
            if ((cut >> a & 1U) != 0) {
                (void)json_array_append_new(axes, json_integer(a));
            }
        }
        (void)json_array_append_new(list, axes);
    }
    return list;
}

json_t *ap_export_name_json(const char *name)
{
    json_t *text = json_string(name);
    char *plain;

    if (text != NULL) {
        return text;
    }
    plain = strdup(name);
    for (char *at = plain; at != NULL && *at != '\0'; ++at) {
        *at = (unsigned char)*at < 0x80 ? *at : '?';
    }
    text = plain != NULL ? json_string(plain) : NULL;
    free(plain);
    return text;
}

/* Python reads UTF-8; only quotes, backslashes, control characters and bytes that are no character
 * are escaped. */
void ap_export_put_string(FILE *stream, const char *text)
{
    (void)putc('"', stream);
    while (*text != '\0') {
        size_t length = xm_text_character(text);

        if (*text == '"' || *text == '\\') {
            (void)fprintf(stream, "\\%c", *text);
        } else if (length == 0 || (unsigned char)*text < ' ' || *text == 0x7f) {
            (void)fprintf(stream, "\\x%02x", (unsigned char)*text);
        } else {
            (void)fwrite(text, 1, length, stream);
        }
        text += length > 0 ? length : 1;
    }
    (void)putc('"', stream);
}

/* Appends to a buffer of which `length` bytes are used; returns the new length. A full buffer stays
 * full, and never overflows. */
static size_t append(char *buffer, size_t size, size_t length, const char *format, ...)
    XM_PRINTF(4, 5);

static size_t append(char *buffer, size_t size, size_t length, const char *format, ...)
{
    va_list args;
    int written;

    if (length >= size) {
        return length;
    }
    va_start(args, format);
    written = vsnprintf(buffer + length, size - length, format, args);
    va_end(args);
    return length + (written > 0 ? (size_t)written : 0);
}

/* Lists the mesh axes in the order in which an array of tiles runs through them: dimension by
 * dimension, then those that repeat. Returns their number. */
static int tile_order(const ap_export_mesh_t *mesh, ap_spec_t spec, int rank, int *order)
{
    unsigned rest = axes_of(mesh) & ~ap_spec_used_axes(spec);
    int count = 0;

    for (int d = 0; d <= rank; ++d) {
        unsigned axes = d < rank ? ap_spec_axes(spec, d) & axes_of(mesh) : rest;

        for (int a = 0; a < mesh->rank; ++a) {
            if ((axes >> a & 1U) != 0) {
                order[count++] = a;
            }
        }
    }
    return count;
}

/* Writes the devices in that order: "<=[2,4]T(1,0)", or "<=[8]" where the order is the mesh's
 * own. */
static size_t append_devices(char *buffer, size_t size, size_t length, const ap_export_mesh_t *mesh,
                             const int *order, int count)
{
    int place[AP_MAX_MESH_RANK] = {0}, places = 0;
    bool sorted = true;

    for (int i = 1; i < count; ++i) {
        sorted = sorted && order[i - 1] < order[i];
    }
    if (sorted) {
        return append(buffer, size, length, "<=[%d]", devices_of(mesh, axes_of(mesh)));
    }
    for (int a = 0; a < mesh->rank; ++a) {
        if (mesh->size[a] > 1) {
            length = append(buffer, size, length, "%s%d", places == 0 ? "<=[" : ",", mesh->size[a]);
            place[a] = places++;
        }
    }
    for (int i = 0; i < count; ++i) {
        length = append(buffer, size, length, "%s%d", i == 0 ? "]T(" : ",", place[order[i]]);
    }
    return append(buffer, size, length, ")");
}

/* XLA counts the replicas as one more dimension of tiles, the last one. */
char *ap_export_hlo_sharding(const ap_export_mesh_t *mesh, ap_spec_t spec, int rank, char *buffer,
                             size_t size)
{
    const unsigned used = ap_spec_used_axes(spec) & axes_of(mesh);
    const int repeats = devices_of(mesh, axes_of(mesh) & ~used);
    int order[AP_MAX_MESH_RANK], count = tile_order(mesh, spec, rank, order);
    size_t length;

    if (used == 0) {
        (void)snprintf(buffer, size, "{replicated}");
        return buffer;
    }
    length = append(buffer, size, 0, "{devices=[");
    for (int d = 0; d < rank; ++d) {
        length = append(buffer, size, length, "%s%d", d == 0 ? "" : ",",
                        devices_of(mesh, ap_spec_axes(spec, d)));
    }
    length = repeats > 1 ? append(buffer, size, length, ",%d]", repeats)
                         : append(buffer, size, length, "]");
    length = append_devices(buffer, size, length, mesh, order, count);
    (void)append(buffer, size, length, "%s}", repeats > 1 ? " last_tile_dim_replicate" : "");
    return buffer;
}

/* Placements are per mesh axis, so an axis that cuts two dimensions could not be said; a spec has
 * none. */
json_t *ap_export_placements(const ap_export_mesh_t *mesh, ap_spec_t spec, int rank,
                             unsigned partial)
{
    json_t *list = json_array();

    for (int a = 0; a < mesh->rank; ++a) {
        const char *placement = (partial >> a & 1U) != 0 ? "Partial()" : "Replicate()";
        char text[24];

        for (int d = 0; d < rank; ++d) {
            if ((ap_spec_axes(spec, d) >> a & 1U) != 0) {
                (void)snprintf(text, sizeof(text), "Shard(%d)", d);
                placement = text;
            }
        }
        (void)json_array_append_new(list, json_string(placement));
    }
    return list;
}

json_t *ap_export_mesh_json(const ap_export_mesh_t *mesh)
{
    json_t *shape = json_array(), *names = json_array();

    for (int a = 0; a < mesh->rank; ++a) {
        (void)json_array_append_new(shape, json_integer(mesh->size[a]));
        (void)json_array_append_new(names, json_string(axis_name(a)));
    }
    return json_pack("{s:o, s:o}", "shape", shape, "mesh_dim_names", names);
}

json_t *ap_export_shape_json(const ap_shape_t *shape)
{
    json_t *list = json_array();

    for (int d = 0; d < shape->rank; ++d) {
        (void)json_array_append_new(list, json_integer(shape->dims[d]));
    }
    return list;
}
