/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The stage table: what stages there could be, where they can stand, and how the tables are
 * numbered. The parts are stage_table_bounding_pass.c (bounds), stage_table_fill.c (prices) and
 * stage_table_slice.c (searches). A pipeline of 96 layers on 1,024 devices has hundreds of
 * thousands of (range, submesh, shape) triples, and each price is an intra-operator plan; so ranges
 * of equal layers share one row, and prices are made only when a search shows that a stage can
 * matter.
 */

#include "planner/inter_op/stage_table.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "planner/inter_op/stage_table_private.h"

/* Lists the logical shapes of a submesh: all products of two numbers. */
static void list_variants(ap_stage_table_t *table, int submesh)
{
    int devices = table->submeshes[submesh].hosts * table->submeshes[submesh].devices;
    const ap_space_t *space = table->params.space;
    bool one_axis = space != NULL && space->one_axis;
    /* Of a mesh that is given; 0: of any. */
    int rows = space == NULL ? 0 : space->stage_shape[1] == 1 ? 1 : space->stage_shape[0];
    int count = 0;

    /* n x 1 is left out, because it is 1 x n with its axis renamed. */
    for (int d0 = 1; (d0 < devices && !one_axis) || d0 == 1; ++d0) {
        if (devices % d0 == 0 && count < AP_TABLE_VARIANTS && (rows == 0 || d0 == rows)) {
            table->variants[submesh][count++] = (ap_stage_variant_t){.shape = {d0, devices / d0}};
        }
    }
    table->variant_count[submesh] = count;
    table->max_variants = count > table->max_variants ? count : table->max_variants;
}

/* Whether the part of the space that is searched has stages on so many devices. */
static bool in_space(const ap_stage_table_t *table, const ap_submesh_t *submesh)
{
    const ap_space_t *space = table->params.space;
    int devices = submesh->hosts * submesh->devices;

    return space == NULL || ((space->stage_devices == 0 || devices <= space->stage_devices) &&
                             (space->stage_shape[0] == 0 ||
                              devices == space->stage_shape[0] * space->stage_shape[1]));
}

/* Two ranges are the same problem if their layers are the same, one by one, and both or neither
 * begin or end the model: at the ends no tensor comes in or goes out. Layers are compared by hash;
 * equal hashes stand for equal structure. */
static bool ranges_equal(const uint64_t *hash, int layers, int a, int b, int length)
{
    return (a == 0) == (b == 0) && (a + length == layers) == (b + length == layers) &&
           memcmp(hash + a, hash + b, (size_t)length * sizeof(*hash)) == 0;
}

/* Finds for each range the earliest one that is equal to it, and numbers the different ones. A
 * transformer of equal blocks has a few different ranges of each length, in place of one for
 * each first layer. Pinned stages are told apart, since each of them has its own place and
 * shape. */
static xm_status_t find_equal_ranges(ap_stage_table_t *table)
{
    int layers = table->layers;
    uint64_t *hash = malloc((size_t)layers * sizeof(*hash));

    XM_NEED_MEMORY(hash, "%d layers", layers);
    for (int layer = 0; layer < layers; ++layer) {
        hash[layer] = ap_graph_layer_hash(table->params.graph, layer);
    }
    for (int length = 1; length <= layers; ++length) {
        for (int first = 0; first + length <= layers; ++first) {
            int earlier = table->params.pins != NULL ? first : 0; /* pins stay different */

            /* Ends at the range itself at the latest. */
            while (!ranges_equal(hash, layers, earlier, first, length)) {
                ++earlier;
            }
            table->same_as[first * layers + first + length - 1] =
                earlier * layers + earlier + length - 1;
        }
    }
    free(hash);
    for (int range = 0; range < layers * layers; ++range) {
        int first = range / layers, last = range % layers;

        if (first <= last && ap_stage_table_may_have(table, first, last, -1, NULL)) {
            table->row[range] =
                table->same_as[range] == range ? table->rows++ : table->row[table->same_as[range]];
        }
    }
    return XM_OK;
}

/* Numbers the boundary layouts. A state is ((submesh, variant), input, output, memory level),
 * and its two boundary layouts (ports in the identifiers) are all that its neighbours see: the
 * logical shape with the spec of the input, or of the output. All memory levels have the same
 * layouts, so the search keeps only what is best for them. */
static void number_ports(ap_stage_table_t *table, int states)
{
    for (int state = 0; state < states; ++state) {
        int shape = state / (table->max_specs * table->max_specs * table->level_count);

        table->in_port[state] = shape * table->max_specs +
                                state / (table->max_specs * table->level_count) % table->max_specs;
        table->out_port[state] =
            shape * table->max_specs + state / table->level_count % table->max_specs;
    }
}

/* Tensors of one type and shape cost the same to move. */
static bool alike(const ap_tensor_t *a, const ap_tensor_t *b)
{
    return a->dtype == b->dtype && ap_shape_equal(&a->shape, &b->shape);
}

/* Finds which boundaries lie between the same hosts. */
static void place_boundaries(ap_stage_table_t *table)
{
    int devices = table->params.hosts * table->params.devices_per_host;

    for (int device = 0; device < devices; ++device) {
        table->boundary_place[device] = ap_cross_mesh_place(table->params.cross_mesh, device);
    }
}

/* Boundaries cost the same where tensors of one shape and type pass, with gradients or without, and
 * between the same hosts.
 * The kind of a layer is the first layer before which such a tensor passes. So a transformer has
 * one table of boundary costs for all its blocks. */
static void number_boundaries(ap_stage_table_t *table)
{
    const ap_graph_t *graph = table->params.graph;

    for (int layer = 1; layer < table->layers; ++layer) {
        const ap_tensor_t *tensor = ap_graph_tensor(graph, ap_graph_boundary(graph, layer - 1));
        int frozen = ap_graph_frozen(graph), kind = layer > frozen ? frozen + 1 : 1;

        while (!alike(tensor, ap_graph_tensor(graph, ap_graph_boundary(graph, kind - 1)))) {
            ++kind;
        }
        table->boundary_kind[layer] = kind;
    }
    place_boundaries(table);
}

/* Makes room for the configurations; INFINITY says that none is in the tables yet. */
static xm_status_t make_tables(ap_stage_table_t *table)
{
    size_t states = (size_t)table->submesh_count * (size_t)table->config_count;
    size_t count = (size_t)table->rows * states;
    size_t devices = (size_t)table->params.hosts * (size_t)table->params.devices_per_host;

    table->cost = xm_arena_take(&table->arena, count * sizeof(*table->cost));
    table->certain = xm_arena_take(&table->arena, count * sizeof(*table->certain));
    table->forward = xm_arena_take(&table->arena, count * sizeof(*table->forward));
    table->backward = xm_arena_take(&table->arena, count * sizeof(*table->backward));
    table->once = xm_arena_take(&table->arena, count * sizeof(*table->once));
    table->successors = xm_arena_get(&table->arena, count, sizeof(*table->successors));
    table->in_port = xm_arena_take(&table->arena, states * sizeof(*table->in_port));
    table->out_port = xm_arena_take(&table->arena, states * sizeof(*table->out_port));
    table->boundary_kind = xm_arena_get(&table->arena, (size_t)table->layers, sizeof(int));
    table->boundary_place = xm_arena_get(&table->arena, devices, sizeof(int));
    XM_NEED_MEMORY(!table->arena.failed, "%zu stage costs", count);
    for (size_t i = 0; i < count; ++i) {
        table->cost[i] = table->certain[i] = INFINITY;
    }
    number_ports(table, (int)states);
    number_boundaries(table);
    return XM_OK;
}

/* Makes the rows of the bounds: one for each kind of range. Bounds begin as "no plan": the bounding
 * pass lowers them. */
static xm_status_t make_rows(ap_stage_table_t *table)
{
    size_t ranges = (size_t)table->layers * (size_t)table->layers, cells, bounds;

    table->rows = table->params.pins != NULL; /* that of ranges which no stage can have */
    table->same_as = xm_arena_take(&table->arena, ranges * sizeof(int));
    table->row = xm_arena_get(&table->arena, ranges, sizeof(int));
    XM_NEED_MEMORY(!table->arena.failed, "%d layers", table->layers);
    XM_TRY(find_equal_ranges(table));
    cells = (size_t)table->rows * (size_t)table->submesh_count;
    bounds = cells * (size_t)table->recompute_modes;
    table->least = xm_arena_take(&table->arena, bounds * sizeof(*table->least));
    table->least_certain = xm_arena_take(&table->arena, bounds * sizeof(*table->least_certain));
    table->again = xm_arena_get(&table->arena, cells, sizeof(*table->again));
    table->room = xm_arena_take(&table->arena, bounds * sizeof(*table->room));
    table->filled = xm_arena_get(&table->arena, cells, sizeof(*table->filled));
    XM_NEED_MEMORY(!table->arena.failed, "%zu stages", cells);
    for (size_t i = 0; i < bounds; ++i) {
        table->least[i] = table->least_certain[i] = INFINITY;
        table->room[i] = -1;
    }
    return XM_OK;
}

/* Finds on which hosts each submesh can begin: where as many hosts as it has are of its class.
 * After a change of the order of hosts this is all that has to be done anew. */
static void place_submeshes(ap_stage_table_t *table)
{
    const ap_device_classes_t *classes = table->params.classes;
    int hosts = table->params.hosts;

    for (int submesh = 0; submesh < table->submesh_count; ++submesh) {
        for (int host = 0; host < hosts; ++host) {
            int end = host + table->submeshes[submesh].hosts;

            table->allowed[submesh * hosts + host] =
                end <= hosts &&
                ap_device_classes_find(classes, host, end - host) == table->class_of[submesh];
        }
    }
}

/* Lists every shape on every class of devices that it can stand on in some order of the hosts.
 * Submeshes of classes that only other orders have are listed as well, so that one table serves all
 * orders. */
static xm_status_t list_submeshes(ap_stage_table_t *table)
{
    const ap_device_classes_t *classes = table->params.classes;
    ap_submesh_t shapes[AP_TABLE_SUBMESHES];
    int hosts = table->params.hosts, count, wanted = 0;

    count = ap_inter_op_submeshes(hosts, table->params.devices_per_host,
                                  table->params.all_submeshes, shapes, AP_TABLE_SUBMESHES);
    table->allowed = xm_arena_get(&table->arena, (size_t)AP_TABLE_SUBMESHES * (size_t)hosts,
                                  sizeof(*table->allowed));
    XM_NEED_MEMORY(table->allowed, "%d hosts", hosts);
    for (int c = 0; c < classes->count; ++c) {
        for (int s = 0; s < count && s < AP_TABLE_SUBMESHES; ++s) {
            if (!in_space(table, &shapes[s]) || !classes->some[c * hosts + shapes[s].hosts - 1]) {
                continue;
            }
            /* Counting goes on past the end, so that the message can say how many there are. */
            if (wanted < AP_TABLE_SUBMESHES) {
                table->submeshes[wanted] = shapes[s];
                table->class_of[wanted] = c;
            }
            ++wanted;
        }
    }
    if (wanted > AP_TABLE_SUBMESHES || count > AP_TABLE_SUBMESHES) {
        return XM_UNSUPPORTED(
            "%d hosts with %d kinds of devices have %d submeshes; at most %d are planned", hosts,
            classes->count, wanted > count ? wanted : count, AP_TABLE_SUBMESHES);
    }
    table->submesh_count = wanted;
    for (int submesh = 0; submesh < wanted; ++submesh) {
        list_variants(table, submesh);
    }
    place_submeshes(table);
    return XM_OK;
}

/* Opens one context per recompute mode and class of devices. A context keeps the tables of layers,
 * which all ranges share; it is what makes a price cheap. */
static xm_status_t open_contexts(ap_stage_table_t *table)
{
    ap_stage_context_params_t context = AP_STAGE_CONTEXT_PARAMS_INIT;
    const ap_device_classes_t *classes = table->params.classes;
    xm_status_t status = XM_OK;

    table->context =
        xm_arena_get(&table->arena, (size_t)table->recompute_modes * (size_t)classes->count,
                     sizeof(ap_stage_context_t *));
    XM_NEED_MEMORY(table->context, "the stage table");
    context.graph = table->params.graph;
    context.space = table->params.space;
    context.micro_batches = table->accumulated;
    for (int i = 0; i < table->recompute_modes * classes->count && status == XM_OK; ++i) {
        context.rematerialize = table->recomputes[i / classes->count];
        context.cost = classes->classes[i % classes->count].cost;
        status = ap_stage_context_create(&context, &table->context[i]);
    }
    return status;
}

/* Lists the recompute modes that stages may choose between. */
static void list_recompute_modes(ap_stage_table_t *table)
{
    table->recompute_modes = table->params.recompute == AP_RECOMPUTE_AUTO ? 2 : 1;
    table->recomputes[0] = table->params.recompute == AP_RECOMPUTE_ON;
    table->recomputes[1] = true;
}

bool ap_stage_table_has_room(const ap_device_classes_t *classes, int devices_per_host,
                             bool all_submeshes)
{
    ap_submesh_t shapes[AP_TABLE_SUBMESHES];
    int found = ap_inter_op_submeshes(classes->hosts, devices_per_host, all_submeshes, shapes,
                                      AP_TABLE_SUBMESHES);
    int count = 0;

    for (int c = 0; c < classes->count; ++c) {
        for (int s = 0; s < found && s < AP_TABLE_SUBMESHES; ++s) {
            count += classes->some[c * classes->hosts + shapes[s].hosts - 1];
        }
    }
    return found <= AP_TABLE_SUBMESHES && count <= AP_TABLE_SUBMESHES;
}

/* Pinned stages must be among those that there can be. */
static xm_status_t check_pins(const ap_stage_table_t *table)
{
    for (int i = 0; i < table->params.pin_count; ++i) {
        const ap_planner_pin_t *pin = &table->params.pins[i];
        bool known = false;

        if (pin->first_layer < 0 || pin->last_layer < pin->first_layer ||
            pin->last_layer >= table->layers) {
            return XM_INVALID("layers %d to %d are not a range of 0 to %d", pin->first_layer,
                              pin->last_layer, table->layers - 1);
        }
        /* The bounding pass would pass a stage that is in no submesh over in silence. */
        for (int s = 0; s < table->submesh_count; ++s) {
            for (int v = 0; v < table->variant_count[s]; ++v) {
                known = known || ap_stage_table_may_have(table, pin->first_layer, pin->last_layer,
                                                         s, &table->variants[s][v]);
            }
        }
        if (!known) {
            return XM_INVALID("a stage on %d x %d devices in the shape %d x %d is not in the space",
                              pin->hosts, pin->devices, pin->shape[0], pin->shape[1]);
        }
    }
    return XM_OK;
}

/* Creates the table with its bounds; prices come later. The order matters: the bounding pass needs
 * the submeshes and contexts, and it finds the specs that give the number of configurations. */
xm_status_t ap_stage_table_create(const ap_stage_table_params_t *params, ap_stage_table_t **result)
{
    ap_stage_table_t *table = calloc(1, sizeof(*table));
    xm_status_t status;

    XM_NEED_MEMORY(table, "the stage table");
    table->params = *params;
    table->accumulated = ap_schedule_accumulated(params->schedule, params->micro_batches);
    table->layers = ap_graph_layers(params->graph);
    for (int t = 0; t < ap_graph_tensors(params->graph); ++t) {
        table->skips = table->skips || ap_graph_rests_until(params->graph, t) >= 0;
    }
    list_recompute_modes(table);
    status = list_submeshes(table);
    XM_THEN(status, check_pins(table));
    XM_THEN(status, open_contexts(table));
    XM_THEN(status, make_rows(table));
    if (status == XM_OK) {
        /* The bounding pass needs rows and contexts, and finds how many configurations there
         * are. */
        status = ap_stage_table_bounding_pass(table);
    }
    XM_THEN(status, make_tables(table));
    if (status != XM_OK) {
        goto destroy_table;
    }
    *result = table;
    return XM_OK;

destroy_table:
    ap_stage_table_destroy(table);
    return status;
}

/* Only where submeshes stand and what boundaries cost depends on the order of hosts. Stage prices
 * stay, as they depend on the class alone. */
void ap_stage_table_arrange(ap_stage_table_t *table, const ap_device_classes_t *classes,
                            ap_cross_mesh_t *cross_mesh)
{
    table->params.classes = classes;
    table->params.cross_mesh = cross_mesh;
    place_submeshes(table);
    place_boundaries(table);
}

void ap_stage_table_beat(ap_stage_table_t *table, double seconds)
{
    table->beat = seconds;
}

/* Repeats the question whose answer is the price of a stage of the result. Where its memory level
 * plans for a certain number of successors, the limit is part of the question. */
void ap_stage_table_query(const ap_stage_table_t *table, const ap_inter_op_stage_t *stage,
                          ap_stage_query_t *query)
{
    ap_stage_config_t config;

    ap_stage_table_config(table, stage, &config);
    *query = (ap_stage_query_t)AP_STAGE_QUERY_INIT;
    query->first = stage->first_layer;
    query->last = stage->last_layer;
    query->hosts = config.submesh.hosts;
    query->devices = config.submesh.devices;
    query->shape[0] = config.shape[0];
    query->shape[1] = config.shape[1];
    query->fix_input = config.has_input;
    query->fix_output = config.has_output;
    query->input = config.input;
    query->output = config.output;
    /* Levels without a limit ask for the fastest plan. */
    if (table->levels[stage->config % table->level_count].successors >= 0) {
        query->memory_limit = ap_stage_table_memory(table, stage->submesh);
        query->in_flight =
            ap_stage_table_level_in_flight(table, query, stage->config % table->level_count);
    }
}

/* Finds the context by the class of the hosts and by the recompute mode. */
ap_stage_context_t *ap_stage_table_context(ap_stage_table_t *table, int first_host, int hosts,
                                           bool recompute)
{
    int recompute_mode = 0;

    while (recompute_mode < table->recompute_modes &&
           table->recomputes[recompute_mode] != recompute) {
        ++recompute_mode;
    }
    return recompute_mode < table->recompute_modes
               ? table->context[recompute_mode * table->params.classes->count +
                                ap_device_classes_find(table->params.classes, first_host, hosts)]
               : NULL;
}

const ap_stage_table_params_t *ap_stage_table_params(const ap_stage_table_t *table)
{
    return &table->params;
}

int64_t ap_stage_table_evaluated(const ap_stage_table_t *table)
{
    return table->evaluated;
}

/* Accepts a table that is only partly made, and NULL. */
void ap_stage_table_destroy(ap_stage_table_t *table)
{
    if (table == NULL) {
        return;
    }
    for (int i = 0;
         table->context != NULL && i < table->recompute_modes * table->params.classes->count; ++i) {
        ap_stage_context_destroy(table->context[i]);
    }
    xm_arena_clear(&table->arena);
    free(table);
}
