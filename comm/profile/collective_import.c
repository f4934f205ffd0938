/* SPDX-License-Identifier: Apache-2.0 */
/* Importing measured collectives: the output of nccl-tests (text and JSON), OSU benchmarks, and
 * documents of our own. The programs count bytes differently (what a rank sends, contributes or
 * ends up with), while a curve counts the whole tensor, so sizes are scaled by the group's size
 * once or twice. A file does not always tell what it measured; then the caller's hint must, and
 * a guess is never made. */
#include "comm/profile/collective_import.h"

#include <ctype.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/profile/collective_table.h"
#include "comm/profile/curve_json.h"
#include "comm/base.h"
#include "comm/profile/curve_fit.h"

/* The version of our own documents. */
enum { FORMAT_VERSION = 2 };

/* Adds a row. Size 0 says nothing about a curve and is skipped. */
xm_status_t xm_table_add_row(xm_collective_table_t *table, uint64_t size, double microseconds)
{
    if (!isfinite(microseconds) || microseconds <= 0) {
        return XM_MALFORMED("a time of %g us; it must be positive", microseconds);
    }
    if (size == 0) {
        return XM_OK;
    }
    if (table->count == XM_TABLE_ROWS) {
        return XM_MALFORMED("more than %d rows", XM_TABLE_ROWS);
    }
    /* Sizes that do not rise mean several tables in one file, or a damaged one. */
    if (table->count > 0 && size <= table->rows[table->count - 1].bytes) {
        return XM_MALFORMED("size %llu after %llu; sizes must rise", (unsigned long long)size,
                            (unsigned long long)table->rows[table->count - 1].bytes);
    }
    table->rows[table->count++] = (xm_curve_point_t){size, microseconds * 1e-6};
    return XM_OK;
}

xm_status_t xm_table_add_rank(xm_collective_table_t *table, int group, const char *host,
                              size_t length)
{
    xm_table_rank_t *ranks;

    /* The name is not cut: two hosts with a long common beginning would become one. */
    if (length == 0 || length >= XM_TABLE_HOST) {
        return XM_MALFORMED("a host name of %zu bytes; it must have 1 to %d", length,
                            XM_TABLE_HOST - 1);
    }
    if (table->rank_count == XM_TABLE_RANKS) {
        return XM_MALFORMED("more than %d ranks", XM_TABLE_RANKS);
    }
    XM_NEED_MEMORY(XM_ARRAY_ROOM(table->ranks, table->rank_room, table->rank_count), "%zu ranks",
                   table->rank_count + 1);
    ranks = &table->ranks[table->rank_count++];
    ranks->group = group;
    memcpy(ranks->host, host, length);
    ranks->host[length] = '\0';
    return XM_OK;
}

/* Recognises a program of nccl-tests by its name. */
int xm_table_nccl_kind(const char *program, size_t length)
{
    static const struct {
        const char *name;
        xm_collective_t kind;
    } programs[] = {{"all_gather_perf", XM_ALL_GATHER},
                    {"all_reduce_perf", XM_ALL_REDUCE},
                    {"reduce_scatter_perf", XM_REDUCE_SCATTER},
                    {"alltoall_perf", XM_ALL_TO_ALL}};

    /* Only the last part of the program's path counts. */
    for (size_t i = length; i > 0; --i) {
        if (program[i - 1] == '/') {
            program += i;
            length -= i;
            break;
        }
    }
    for (size_t i = 0; i < sizeof(programs) / sizeof(programs[0]); ++i) {
        size_t name = strlen(programs[i].name);

        /* Builds with MPI may have a suffix: all_reduce_perf_mpi. */
        if (length >= name && memcmp(program, programs[i].name, name) == 0 &&
            (length == name || program[name] == '_')) {
            return (int)programs[i].kind;
        }
    }
    return -1;
}

/* NCCL writes 2.19.3 as 21903. */
void xm_table_nccl_version(xm_collective_table_t *table, long version)
{
    /* Other numbers are older than this scheme or wrong; the curve then just says "NCCL". */
    if (version >= 10000 && version < 1000000) {
        (void)snprintf(table->library, sizeof(table->library), "NCCL %ld.%ld.%ld", version / 10000,
                       version / 100 % 100, version % 100);
    }
}

static int compare_ranks(const void *a, const void *b)
{
    const xm_table_rank_t *left = a, *right = b;
    int hosts = strcmp(left->host, right->host);

    return hosts != 0 ? hosts : (left->group > right->group) - (left->group < right->group);
}

/* Finds how the groups lie on the hosts, from the list of ranks: all hosts must have as many
 * groups, and every group as many ranks on each of its hosts. Anything uneven has no place in a
 * profile. */
static xm_status_t shape_of(const xm_collective_table_t *table, xm_collective_hint_t *shape)
{
    xm_table_rank_t *sorted = malloc(table->rank_count * sizeof(*sorted));
    size_t parts = 0, hosts = 0, groups = 0, part = 0;
    bool even = true;

    XM_NEED_MEMORY(sorted, "%zu ranks", table->rank_count);
    memcpy(sorted, table->ranks, table->rank_count * sizeof(*sorted));
    qsort(sorted, table->rank_count, sizeof(*sorted), compare_ranks);
    /* A part is what one group has on one host; sorting makes its ranks neighbours. */
    for (size_t i = 0, size = 0; i < table->rank_count; ++i) {
        bool last = i + 1 == table->rank_count || compare_ranks(&sorted[i], &sorted[i + 1]) != 0;

        ++size;
        if (i == 0 || strcmp(sorted[i].host, sorted[i - 1].host) != 0) {
            ++hosts;
        }
        if (last) {
            even = even && (parts == 0 || size == part);
            part = size;
            ++parts;
            size = 0;
        }
    }
    for (size_t i = 0; i < table->rank_count; ++i) {
        /* Quadratic, but XM_TABLE_RANKS bounds it. */
        bool seen = false;

        for (size_t k = 0; k < i && !seen; ++k) {
            seen = sorted[k].group == sorted[i].group;
        }
        groups += !seen;
    }
    free(sorted);
    /* The divisions below are exact because of these two tests. */
    if (!even || parts % hosts != 0 || parts % groups != 0) {
        return XM_UNSUPPORTED("its %zu ranks do not lie evenly on %zu hosts in %zu groups; --axis "
                              "must say what was measured",
                              table->rank_count, hosts, groups);
    }
    shape->hosts = (int)(parts / groups);
    shape->devices_per_host = (int)part;
    shape->groups_per_host = (int)(parts / hosts);
    return XM_OK;
}

/* Makes the curve of a table, with what the hint adds. The hint outranks the file, for a user
 * may know better. Times that fall are smoothed, as for own measurements. */
static xm_status_t finish(xm_collective_table_t *table, const xm_collective_hint_t *hint,
                          const char *library, xm_collective_curve_t **curves, size_t *count)
{
    xm_collective_curve_t curve = {0}, *made;
    xm_collective_hint_t shape = *hint;
    double spread[XM_TABLE_ROWS] = {0};
    uint64_t factor = 1;
    xm_status_t status;

    /* A kind below 0 stands for "unknown", in the hint as in the table. */
    shape.kind = hint->kind >= 0 ? hint->kind : table->kind;
    if (shape.kind < 0) {
        return XM_MALFORMED("it does not tell which collective it is; --collective must");
    }
    if (shape.hosts == 0) {
        if (table->rank_count == 0) {
            return XM_MALFORMED("it does not tell how its ranks lie on hosts; --axis must");
        }
        XM_TRY(shape_of(table, &shape));
    }
    curve.kind = (xm_collective_t)shape.kind;
    curve.hosts = shape.hosts;
    curve.devices_per_host = shape.devices_per_host;
    curve.groups_per_host = shape.groups_per_host;
    curve.library = table->library[0] != '\0' ? table->library : library;
    /* Bytes are scaled to the whole tensor, with a check for overflow: the sizes are a
     * stranger's. */
    for (uint64_t i = 0; i < table->scale_power; ++i) {
        factor *= (uint64_t)xm_collective_curve_devices(&curve);
    }
    for (size_t i = 0; i < table->count; ++i) {
        if (__builtin_mul_overflow(table->rows[i].bytes, factor, &table->rows[i].bytes) ||
            table->rows[i].bytes > INT64_MAX) {
            return XM_MALFORMED("row %zu: the whole tensor has more than 2^63 bytes", i + 1);
        }
    }
    if (table->count < 2) {
        return XM_MALFORMED("it has %zu rows; a curve needs at least 2", table->count);
    }
    /* The curve borrows the rows; xm_collective_curve_copy() makes its own. */
    curve.points = table->rows;
    curve.count = (size_t)xm_curve_smooth(table->rows, spread, (int)table->count);
    XM_TRY(xm_collective_curve_check("the curve", &curve));
    made = calloc(1, sizeof(*made));
    XM_NEED_MEMORY(made, "a curve");
    status = xm_collective_curve_copy(&curve, made);
    if (status < 0) {
        free(made);
        return status;
    }
    *curves = made;
    *count = 1;
    return XM_OK;
}

/* A run whose results were wrong is refused: its times mean nothing. */
static xm_status_t read_nccl_rows(const json_t *results, xm_collective_table_t *table)
{
    if (!json_is_array(results)) {
        return xm_json_wrong_type("results", "an array of objects", results);
    }
    for (size_t i = 0; i < json_array_size(results); ++i) {
        const json_t *row = json_array_get(results, i);
        const json_t *size = json_object_get(row, "size");
        const json_t *body = json_object_get(row, "out_of_place"), *wrong;
        char path[64];
        double microseconds = 0;
        xm_status_t status;

        /* Out of place is preferred; a run may have measured only one of the two. */
        body = json_is_object(body) ? body : json_object_get(row, "in_place");
        wrong = json_object_get(body, "nwrong");
        (void)snprintf(path, sizeof(path), "results[%zu].size", i);
        if (!json_is_integer(size) || json_integer_value(size) < 0) {
            return xm_json_wrong_type(path, "an integer of at least 0", size);
        }
        if (json_is_number(wrong) && json_number_value(wrong) > 0) {
            return XM_MALFORMED(
                "results[%zu]: %g wrong elements; a run with wrong results is not imported", i,
                json_number_value(wrong));
        }
        (void)snprintf(path, sizeof(path), "results[%zu].time", i);
        status = xm_json_number(body, path, &microseconds);
        XM_THEN(status, xm_table_add_row(table, (uint64_t)json_integer_value(size), microseconds));
        if (status < 0) {
            return xm_error_prefix(status, "results[%zu]", i);
        }
    }
    return XM_OK;
}

static xm_status_t read_nccl_ranks(const json_t *devices, xm_collective_table_t *table)
{
    for (size_t i = 0; i < json_array_size(devices); ++i) {
        const json_t *device = json_array_get(devices, i);
        const json_t *group = json_object_get(device, "group");
        const char *host = json_string_value(json_object_get(device, "hostname"));
        xm_status_t status;

        if (!json_is_integer(group) || host == NULL) {
            return XM_MALFORMED("devices[%zu] must have an integer 'group' and a string 'hostname'",
                                i);
        }
        /* The names may be padded with blanks. */
        while (isspace((unsigned char)*host)) {
            ++host;
        }
        status = xm_table_add_rank(table, (int)json_integer_value(group), host, strlen(host));
        if (status < 0) {
            return xm_error_prefix(status, "devices[%zu]", i);
        }
    }
    return XM_OK;
}

/* Reads nccl-tests' JSON: the program is the first of its arguments. */
static xm_status_t read_nccl_json(const json_t *root, xm_collective_table_t *table)
{
    const char *program = json_string_value(json_array_get(json_object_get(root, "args"), 0));
    const json_t *version = json_object_get(root, "nccl_version");
    xm_status_t status;

    if (program != NULL) {
        table->kind = xm_table_nccl_kind(program, strlen(program));
    }
    if (json_is_integer(version)) {
        xm_table_nccl_version(table, (long)json_integer_value(version));
    }
    status = read_nccl_ranks(json_object_get(root, "devices"), table);
    return status < 0 ? status : read_nccl_rows(json_object_get(root, "results"), table);
}

/* A document with "collectives" is one of ours, anything else nccl-tests'. */
static xm_status_t import_json(const char *text, size_t length, const xm_collective_hint_t *hint,
                               xm_collective_table_t *table, xm_collective_curve_t **curves,
                               size_t *count)
{
    json_error_t error;
    json_t *root = json_loadb(text, length, JSON_REJECT_DUPLICATES, &error);
    const json_t *own;
    xm_status_t status;

    if (root == NULL) {
        return XM_MALFORMED("line %d, column %d: %s", error.line, error.column, error.text);
    }
    own = json_object_get(root, "collectives");
    if (own != NULL) {
        status = xm_collectives_from_json(own, curves, count);
    } else {
        status = read_nccl_json(root, table);
        if (status == XM_OK) {
            table->scale_power = table->kind == XM_ALL_TO_ALL || hint->kind == XM_ALL_TO_ALL;
            status = finish(table, hint, "NCCL", curves, count);
        }
    }
    json_decref(root);
    return status;
}

/* The text may hold zero bytes, so strstr() would not do. */
static bool contains(const char *text, size_t length, const char *word)
{
    return memmem(text, length, word, strlen(word)) != NULL;
}

/* Recognises the format by the beginning and by OSU's comment line. */
xm_status_t xm_collective_import(const char *text, size_t length, const char *source,
                                 const xm_collective_hint_t *hint, xm_collective_curve_t **curves,
                                 size_t *count)
{
    xm_collective_table_t table = {.kind = -1};
    size_t start = 0;
    xm_status_t status;

    /* A document begins with a brace; tables never do. */
    while (start < length && isspace((unsigned char)text[start])) {
        ++start;
    }
    if (start < length && text[start] == '{') {
        status = import_json(text, length, hint, &table, curves, count);
    } else if (contains(text, length, "# OSU ")) {
        status = xm_table_read_osu_text(text, length, &table);
        if (status == XM_OK) {
            int kind = hint->kind >= 0 ? hint->kind : table.kind;

            /* OSU counts what a rank sends to one other in an all-to-all, and what it
             * contributes to an all-gather. */
            table.scale_power = kind == XM_ALL_TO_ALL ? 2 : kind == XM_ALL_GATHER ? 1 : 0;
            status = finish(&table, hint, "MPI", curves, count);
        }
    } else {
        status = xm_table_read_nccl_text(text, length, &table);
        if (status == XM_OK) {
            table.scale_power = (hint->kind >= 0 ? hint->kind : table.kind) == XM_ALL_TO_ALL;
            status = finish(&table, hint, "NCCL", curves, count);
        }
    }
    free(table.ranks);
    return status < 0 ? xm_error_prefix(status, "%s", source) : XM_OK;
}

/* Writes a document of our own, which import reads again. */
xm_status_t xm_collective_export(const xm_collective_curve_t *curves, size_t count,
                                 const char *path)
{
    json_t *array = json_array();
    json_t *root = json_pack("{s:i,s:o}", "version", FORMAT_VERSION, "collectives", array);
    xm_status_t status;
    char *text;

    for (size_t i = 0; i < count; ++i) {
        (void)json_array_append_new(array, xm_collective_to_json(&curves[i]));
    }
    text = root != NULL ? json_dumps(root, JSON_INDENT(1) | JSON_REAL_PRECISION(12)) : NULL;
    status = text != NULL ? xm_text_save(path, text) : XM_NO_MEMORY("%zu curves", count);
    free(text);
    json_decref(root);
    return status;
}

/* Errors begin with the path, as those of all files. */
xm_status_t xm_collective_import_file(const char *path, const xm_collective_hint_t *hint,
                                      xm_collective_curve_t **curves, size_t *count)
{
    char *text = NULL;
    size_t length = 0;
    xm_status_t status = xm_text_load(path, &text, &length);

    XM_THEN(status, xm_collective_import(text, length, path, hint, curves, count));
    free(text);
    return status;
}
