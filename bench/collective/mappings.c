/* SPDX-License-Identifier: Apache-2.0 */
/*
 * P²: a collective along one of several axes of parallelism. All ways to lay the axes on the
 * dimensions of a mesh are listed with all programs for each: the factors of the axis in every
 * order, round rings or to each at once, the last of them scattered as the others are or summed
 * along a tree. Reducing and scattering along some factors, summing along the next, and gathering
 * back are all among them.
 */
#include "bench/collective/collective.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "comm/base.h"

enum { TEXT = 64 };

typedef struct {
    char mapping[TEXT], program[TEXT];
    cb_candidate_t candidate;
    double measured;
    uint64_t wrong;
} row_t;

typedef struct {
    const cb_options_t *options;
    row_t *rows;
    size_t count, room;
    xm_status_t status;
} list_t;

/* The parts of each axis, in the order of the mesh's spelling: "2x2 2x2". */
static void name_mapping(const xm_interconnect_t *net, const xm_mapping_t *mapping, char text[TEXT])
{
    text[0] = '\0';
    for (int a = 0; a < mapping->axes; ++a) {
        for (int k = net->dimensions - 1; k >= 0; --k) {
            xm_text_list_add(text, TEXT, k + 1 == net->dimensions ? "," : "x", "%d",
                             mapping->part[a][k]);
        }
    }
}

/* "ring 4@1,2@0": the factors in their order, with the number of the mesh's dimension. */
static void name_program(const xm_interconnect_t *net, const xm_build_t *build,
                         const int *dimension, char text[TEXT])
{
    char list[TEXT] = "";

    for (int f = 0; f < build->factors; ++f) {
        xm_text_list_add(list, TEXT, ",", "%s%d@%d",
                         f + 1 == build->factors && build->last == XM_LAST_TREE ? "tree" : "",
                         build->factor[f].extent, net->dimensions - 1 - dimension[f]);
    }
    (void)snprintf(text, TEXT, "%s %s", build->factor[0].direct ? "direct" : "ring", list);
}

static void add_program(list_t *list, const xm_mapping_t *mapping, const xm_build_t *build,
                        const int *dimension)
{
    const cb_options_t *o = list->options;
    row_t row = {.measured = NAN};

    name_mapping(&o->net, mapping, row.mapping);
    name_program(&o->net, build, dimension, row.program);
    list->status = cb_make_candidate(o, HIERARCHICAL, build, &row.candidate);
    if (list->status == XM_OK && !XM_ARRAY_ROOM(list->rows, list->room, list->count)) {
        xm_program_destroy(row.candidate.program);
        list->status = XM_NO_MEMORY("%zu programs", list->count);
    }
    if (list->status == XM_OK) {
        list->rows[list->count++] = row;
    }
}

/* The factors from `at` on in every order, and then what can be done with them. */
static void add_orders(list_t *list, const xm_mapping_t *mapping, xm_build_t *build, int *dimension,
                       int at)
{
    for (int i = at; i < build->factors && list->status == XM_OK; ++i) {
        xm_factor_t factor = build->factor[i];
        int of = dimension[i];

        build->factor[i] = build->factor[at], build->factor[at] = factor;
        dimension[i] = dimension[at], dimension[at] = of;
        add_orders(list, mapping, build, dimension, at + 1);
        build->factor[at] = build->factor[i], build->factor[i] = factor;
        dimension[at] = dimension[i], dimension[i] = of;
    }
    if (at < build->factors) {
        return;
    }
    for (int way = 0; way < 4 && list->status == XM_OK; ++way) {
        xm_build_t made = *build;
        bool round = false; /* of two it is the same */

        made.last = way % 2 == 0 ? XM_LAST_SCATTER : XM_LAST_TREE;
        for (int f = 0; f < made.factors; ++f) {
            made.factor[f].direct = way / 2 != 0;
            round = round || (made.factor[f].extent > 2 &&
                              !(made.last == XM_LAST_TREE && f + 1 == made.factors));
        }
        if (round || way / 2 == 0) {
            add_program(list, mapping, &made, dimension);
        }
    }
}

static int by_prediction(const void *a, const void *b)
{
    double first = ((const row_t *)a)->candidate.seconds;
    double second = ((const row_t *)b)->candidate.seconds;

    return (first > second) - (first < second);
}

static void print_rows(const list_t *list)
{
    static const xm_table_column_t columns[] = {
        {"mapping", "", -18, false}, {"program", "", -24, false},    {"pieces", "", 7, false},
        {"moves", "", 9, false},     {"predicted", "ms", 12, false}, {"measured", "ms", 12, false},
        {"ratio", "", 6, false},     {"#wrong", "", 7, false}};
    xm_table_t table = {stdout, columns, sizeof(columns) / sizeof(columns[0]),
                        .csv = list->options->csv};

    xm_table_head(&table);
    for (size_t i = 0; i < list->count; ++i) {
        const row_t *row = &list->rows[i];

        xm_table_text(&table, "%s", row->mapping);
        xm_table_text(&table, "%s", row->program);
        xm_table_number(&table, 0, row->candidate.pieces);
        xm_table_number(&table, 0, (double)row->candidate.program->count);
        xm_table_number(&table, 4, row->candidate.seconds * 1e3);
        xm_table_number(&table, 4, row->measured * 1e3);
        xm_table_number(&table, 2, row->measured / row->candidate.seconds);
        xm_table_number(&table, 0, isnan(row->measured) ? NAN : (double)row->wrong);
    }
}

static xm_status_t read_axes(const cb_options_t *o, int *size, int *axes)
{
    double sizes[XM_INTERCONNECT_MOST];
    xm_status_t status = cb_read_list("--axes", o->axes, 'x', 1, 0, sizes, axes);

    for (int a = 0; a < *axes && status == XM_OK; ++a) {
        size[a] = (int)sizes[a];
    }
    return status == XM_OK && o->over >= *axes ? XM_INVALID("--over: there are %d axes", *axes)
                                               : status;
}

xm_status_t cb_list_mappings(const cb_options_t *options, xm_worker_t *worker, uint64_t *wrong)
{
    list_t list = {.options = options};
    xm_mapping_t *mappings = NULL;
    int size[XM_INTERCONNECT_MOST], axes, count = 0;

    list.status = read_axes(options, size, &axes);
    XM_THEN(list.status, xm_mappings_list(&options->net, size, axes, &mappings, &count));
    for (int m = 0; m < count && list.status == XM_OK; ++m) {
        xm_build_t build = {.kind = XM_ALL_REDUCE, .devices = options->net.devices, .servers = 1};
        int dimension[XM_INTERCONNECT_MOST];

        build.factors =
            xm_mapping_factors(&options->net, &mappings[m], options->over, build.factor, dimension);
        if (build.factors > 0) { /* an axis of 1 has nothing to sum */
            add_orders(&list, &mappings[m], &build, dimension, 0);
        }
    }
    free(mappings);
    for (size_t i = 0; i < list.count && list.status == XM_OK && worker != NULL; ++i) {
        row_t *row = &list.rows[i];

        list.status =
            cb_measure(options, worker, row->candidate.program, &row->measured, &row->wrong);
        *wrong += row->wrong;
    }
    if (list.count > 0) {
        qsort(list.rows, list.count, sizeof(*list.rows), by_prediction);
    }
    if (list.status == XM_OK && (worker == NULL || xm_worker_rank(worker) == 0)) {
        print_rows(&list);
    }
    for (size_t i = 0; i < list.count; ++i) {
        xm_program_destroy(list.rows[i].candidate.program);
    }
    free(list.rows);
    return list.status;
}
