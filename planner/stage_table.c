#include "planner/stage_table.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "planner/planner.h"
#include "planner/stage_table_private.h"

static int min_int(int a, int b)
{
    return a < b ? a : b;
}

static int most_stages(const ap_stage_table_t *table)
{
    return min_int(table->layers, table->params.hosts * table->params.devices_per_host);
}

static void list_variants(ap_stage_table_t *table, int submesh)
{
    int devices = table->submeshes[submesh].hosts * table->submeshes[submesh].devices;
    bool one_axis = table->params.space != NULL && table->params.space->one_axis;
    int count = 0;

    /* n x 1 is 1 x n with its axis renamed. */
    for (int d0 = 1; (d0 < devices && !one_axis) || d0 == 1; ++d0) {
        if (devices % d0 == 0 && count < AP_TABLE_VARIANTS) {
            table->variants[submesh][count++] = (ap_stage_variant_t){.shape = {d0, devices / d0}};
        }
    }
    table->variant_count[submesh] = count;
    table->max_variants = count > table->max_variants ? count : table->max_variants;
}

/* Whether a stage of the space may be so large. */
static bool in_space(const ap_stage_table_t *table, const ap_submesh_t *submesh)
{
    int most = table->params.space != NULL ? table->params.space->stage_devices : 0;

    return most == 0 || submesh->hosts * submesh->devices <= most;
}

static bool ranges_equal(const uint64_t *hash, int layers, int a, int b, int length)
{
    return (a == 0) == (b == 0) && (a + length == layers) == (b + length == layers) &&
           memcmp(hash + a, hash + b, (size_t)length * sizeof(*hash)) == 0;
}

static xm_status_t find_equal_ranges(ap_stage_table_t *table)
{
    int layers = table->layers;
    uint64_t *hash = malloc((size_t)layers * sizeof(*hash));

    if (hash == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "out of memory for %d layers", layers);
    }
    for (int layer = 0; layer < layers; ++layer) {
        hash[layer] = ap_graph_layer_hash(table->params.graph, layer);
    }
    for (int length = 1; length <= layers; ++length) {
        for (int first = 0; first + length <= layers; ++first) {
            int earlier = table->params.pins != NULL ? first : 0; /* pins are told apart */

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

        if (first <= last) {
            table->row[range] =
                table->same_as[range] == range ? table->rows++ : table->row[table->same_as[range]];
        }
    }
    return XM_OK;
}

/* Stages that can follow this one in any pipeline over all devices; -1: it can be in none. */
static int most_successors(const ap_stage_table_t *table, int first, int last, int submesh)
{
    int total = table->params.hosts * table->params.devices_per_host;
    int left = total - table->submeshes[submesh].hosts * table->submeshes[submesh].devices;
    bool all_layers = first == 0 && last == table->layers - 1;

    if ((left == 0) != all_layers) {
        return -1;
    }
    return min_int(table->layers - 1 - last, left);
}

static ap_stage_query_t base_query(const ap_stage_table_t *table, int first, int last, int submesh,
                                   const ap_stage_variant_t *variant)
{
    ap_stage_query_t query = AP_STAGE_QUERY_INIT;

    query.first = first;
    query.last = last;
    query.hosts = table->submeshes[submesh].hosts;
    query.devices = table->submeshes[submesh].devices;
    query.shape[0] = variant->shape[0];
    query.shape[1] = variant->shape[1];
    return query;
}

static xm_status_t ask(ap_stage_table_t *table, int submesh, const ap_stage_query_t *query,
                       ap_stage_cost_t *cost)
{
    ++table->evaluated;
    return ap_stage_evaluate(table->context[table->class_of[submesh]], query, cost);
}

/* Bytes that one device of a submesh may use. */
static double memory_of(const ap_stage_table_t *table, int submesh)
{
    return table->params.memory_limit > 0.0
               ? table->params.memory_limit
               : table->params.classes->classes[table->class_of[submesh]].device.memory_bytes;
}

/* Stages that may follow one of this cost within the memory limit; -1: it does not fit. */
static int32_t successors_of(const ap_stage_table_t *table, int submesh,
                             const ap_stage_cost_t *cost)
{
    double limit = memory_of(table, submesh);
    int most = most_stages(table), in_flight = 0;

    while (in_flight < most && ap_stage_memory(cost, in_flight + 1) <= limit) {
        ++in_flight;
    }
    /* 1F1B never has more than all micro-batches in flight. */
    return in_flight >= table->params.micro_batches ? most : in_flight - 1;
}

static void count_spec(ap_stage_variant_t *variant, ap_spec_t spec)
{
    int i = 0;

    while (i < variant->spec_count && variant->specs[i] != spec) {
        ++i;
    }
    if (i == AP_TABLE_TALLY) {
        return;
    }
    if (i == variant->spec_count) {
        variant->specs[variant->spec_count] = spec;
        variant->uses[variant->spec_count++] = 0;
    }
    ++variant->uses[i];
    for (; i > 0 && variant->uses[i] > variant->uses[i - 1]; --i) {
        int uses = variant->uses[i];
        ap_spec_t moved = variant->specs[i];

        variant->uses[i] = variant->uses[i - 1];
        variant->specs[i] = variant->specs[i - 1];
        variant->uses[i - 1] = uses;
        variant->specs[i - 1] = moved;
    }
}

static size_t cell_index(const ap_stage_table_t *table, int first, int last, int submesh)
{
    return (size_t)table->row[first * table->layers + last] * (size_t)table->submesh_count +
           (size_t)submesh;
}

static void keep_least(ap_stage_table_t *table, size_t cell, const ap_stage_cost_t *cost)
{
    double seconds = ap_stage_objective(cost, table->params.micro_batches);

    table->least[cell] = seconds < table->least[cell] ? seconds : table->least[cell];
}

/* What any plan keeps is at least what one device would, divided by the devices: stages that could
 * follow if it were no more. */
static xm_status_t find_room(ap_stage_table_t *table, int first, int last)
{
    ap_stage_query_t query = base_query(table, first, last, 0, &table->variants[0][0]);
    int most = most_stages(table);
    ap_stage_cost_t whole;
    xm_status_t status = ask(table, 0, &query, &whole);

    if (status == XM_ERR_NO_SOLUTION) { /* nothing is known, so anything might fit */
        whole = (ap_stage_cost_t){0};
        status = XM_OK;
    }
    for (int submesh = 0; submesh < table->submesh_count && status == XM_OK; ++submesh) {
        int devices = table->submeshes[submesh].hosts * table->submeshes[submesh].devices;
        double left = memory_of(table, submesh) * devices - whole.mem_stage;
        int in_flight = 0;

        while (in_flight < most && (in_flight + 1) * whole.mem_act <= left) {
            ++in_flight;
        }
        table->room[cell_index(table, first, last, submesh)] =
            in_flight >= table->params.micro_batches ? most : in_flight - 1;
    }
    return status;
}

/* No plan divides a stage's FLOP among more than its devices. */
static void find_again(ap_stage_table_t *table, int first, int last)
{
    const ap_graph_t *graph = table->params.graph;
    double flops = 0.0;

    for (int o = 0; o < ap_graph_ops(graph); ++o) {
        const ap_op_t *op = ap_graph_op(graph, o);

        if (op->phase == AP_PHASE_FORWARD && op->layer >= first && op->layer <= last) {
            flops += op->flops;
        }
    }
    for (int submesh = 0; submesh < table->submesh_count; ++submesh) {
        int devices = table->submeshes[submesh].hosts * table->submeshes[submesh].devices;
        double rate = table->params.classes->classes[table->class_of[submesh]].device.flops;

        table->again[cell_index(table, first, last, submesh)] = flops / (devices * rate);
    }
}

/* Plans every range freely: which specs do its ends like, and does memory ever bind? */
static xm_status_t survey_range(ap_stage_table_t *table, int first, int last)
{
    xm_status_t found = find_room(table, first, last);

    if (found != XM_OK) {
        return found;
    }
    find_again(table, first, last);
    for (int submesh = 0; submesh < table->submesh_count; ++submesh) {
        int most = most_successors(table, first, last, submesh);

        for (int v = 0; most >= 0 && v < table->variant_count[submesh]; ++v) {
            ap_stage_variant_t *variant = &table->variants[submesh][v];
            ap_stage_query_t query = base_query(table, first, last, submesh, variant);
            ap_stage_cost_t cost;
            xm_status_t status = ask(table, submesh, &query, &cost);

            if (status == XM_ERR_NO_SOLUTION) {
                continue;
            }
            if (status != XM_OK) {
                return status;
            }
            if (cost.input_tensor >= 0) {
                count_spec(variant, cost.input);
            }
            if (cost.output_tensor >= 0) {
                count_spec(variant, cost.output);
            }
            table->memory_binds =
                table->memory_binds || successors_of(table, submesh, &cost) < most;
            keep_least(table, cell_index(table, first, last, submesh), &cost);
        }
    }
    return XM_OK;
}

static bool is_first_of_its_kind(const ap_stage_table_t *table, int first, int last)
{
    int range = first * table->layers + last;

    return table->same_as[range] == range;
}

static void list_levels(ap_stage_table_t *table)
{
    int most = most_stages(table);

    table->levels[0] = 0;
    table->level_count = 1;
    for (int f = 1; f < most; f = f < 4 ? f + 1 : 2 * f) {
        table->levels[table->level_count++] = f;
    }
    table->levels[table->level_count++] = most;
}

static xm_status_t survey(ap_stage_table_t *table)
{
    for (int first = 0; first < table->layers; ++first) {
        for (int last = first; last < table->layers; ++last) {
            if (is_first_of_its_kind(table, first, last)) {
                xm_status_t status = survey_range(table, first, last);

                if (status != XM_OK) {
                    return status;
                }
            }
        }
    }
    table->max_specs = 1;
    for (int submesh = 0; submesh < table->submesh_count; ++submesh) {
        for (int v = 0; v < table->variant_count[submesh]; ++v) {
            ap_stage_variant_t *variant = &table->variants[submesh][v];

            variant->spec_count = min_int(variant->spec_count, AP_TABLE_SPECS);
            if (variant->spec_count > table->max_specs) {
                table->max_specs = variant->spec_count;
            }
        }
    }
    table->level_count = 1;
    if (table->memory_binds && table->params.lean_plans) {
        list_levels(table);
    }
    table->config_count =
        table->max_variants * table->max_specs * table->max_specs * table->level_count;
    return XM_OK;
}

static int config_index(const ap_stage_table_t *table, int variant, int input, int output,
                        int level)
{
    return ((variant * table->max_specs + input) * table->max_specs + output) * table->level_count +
           level;
}

static int submesh_index(const ap_stage_table_t *table, const ap_stage_query_t *query)
{
    int submesh = 0;

    while (table->submeshes[submesh].hosts != query->hosts ||
           table->submeshes[submesh].devices != query->devices) {
        ++submesh;
    }
    return submesh;
}

/* Micro-batches a level plans for: no more than there are, nor than any pipeline puts here. */
static int in_flight_of_level(const ap_stage_table_t *table, const ap_stage_query_t *query,
                              int level)
{
    int most = most_successors(table, query->first, query->last, submesh_index(table, query)) + 1;

    return min_int(min_int(table->levels[level], table->params.micro_batches), most);
}

static void store(ap_stage_table_t *table, const ap_stage_query_t *query, int submesh, int config,
                  const ap_stage_cost_t *cost)
{
    size_t at =
        cell_index(table, query->first, query->last, submesh) * (size_t)table->config_count +
        (size_t)config;

    table->cost[at] = ap_stage_objective(cost, table->params.micro_batches);
    table->successors[at] = successors_of(table, submesh, cost);
}

/* One configuration in all its memory levels. Levels that the last plan serves, or that no pipeline
 * has a use for, are left out. */
static xm_status_t fill_levels(ap_stage_table_t *table, ap_stage_query_t *query, int submesh,
                               int config)
{
    int most = most_successors(table, query->first, query->last, submesh);
    int least = query->last < table->layers - 1 ? 1 : 0;
    int room = table->room[cell_index(table, query->first, query->last, submesh)];
    ap_stage_cost_t cost;
    xm_status_t status;
    int32_t successors;

    query->memory_limit = 0.0;
    query->in_flight = 1;
    status = ask(table, submesh, query, &cost);
    if (status != XM_OK) {
        return status;
    }
    successors = successors_of(table, submesh, &cost);
    store(table, query, submesh, config, &cost);
    for (int level = 1; level < table->level_count && successors < most; ++level) {
        if (table->levels[level] - 1 <= successors || table->levels[level] - 1 < least) {
            continue;
        }
        query->memory_limit = memory_of(table, submesh);
        query->in_flight = in_flight_of_level(table, query, level);
        if (query->in_flight > room + 1) {
            break;
        }
        status = ask(table, submesh, query, &cost);
        if (status != XM_OK) {
            return status;
        }
        successors = successors_of(table, submesh, &cost);
        store(table, query, submesh, config + level, &cost);
    }
    return XM_OK;
}

static xm_status_t fill_variant(ap_stage_table_t *table, int first, int last, int submesh, int v)
{
    const ap_stage_variant_t *variant = &table->variants[submesh][v];
    int inputs = first > 0 ? variant->spec_count : 1;
    int outputs = last < table->layers - 1 ? variant->spec_count : 1;

    for (int input = 0; input < inputs; ++input) {
        for (int output = 0; output < outputs; ++output) {
            ap_stage_query_t query = base_query(table, first, last, submesh, variant);
            xm_status_t status;

            query.fix_input = first > 0;
            query.input = variant->specs[input];
            query.fix_output = last < table->layers - 1;
            query.output = variant->specs[output];
            status = fill_levels(table, &query, submesh, config_index(table, v, input, output, 0));
            if (status != XM_OK && status != XM_ERR_NO_SOLUTION) {
                return status;
            }
        }
    }
    return XM_OK;
}

/* The configurations of one kind of range on one submesh, once. */
static xm_status_t fill_cell(ap_stage_table_t *table, int first, int last, int submesh)
{
    bool *filled = &table->filled[cell_index(table, first, last, submesh)];
    xm_status_t status = XM_OK;

    for (int v = 0; !*filled && v < table->variant_count[submesh] && status == XM_OK; ++v) {
        status = fill_variant(table, first, last, submesh, v);
    }
    *filled = true;
    return status;
}

/* n x 1 is 1 x n. */
static bool same_shape(const int *a, const int *b)
{
    int rows_a = a[1] == 1 ? 1 : a[0], rows_b = b[1] == 1 ? 1 : b[0];

    return rows_a == rows_b && a[0] * a[1] == b[0] * b[1];
}

/* The variants of a given stage from @p v on; returns the first, or the number of variants. */
static int next_variant(const ap_stage_table_t *table, const ap_planner_pin_t *pin, int submesh,
                        int v)
{
    while (v < table->variant_count[submesh] && pin->shape[0] != 0 &&
           !same_shape(table->variants[submesh][v].shape, pin->shape)) {
        ++v;
    }
    return v;
}

/* Prices a given stage on its logical shape, or on all, wherever it stands. */
static xm_status_t fill_pin(ap_stage_table_t *table, const ap_planner_pin_t *pin)
{
    bool known = false;
    xm_status_t status = XM_OK;

    if (pin->first_layer < 0 || pin->last_layer < pin->first_layer ||
        pin->last_layer >= table->layers) {
        return xm_error_set(XM_ERR_INVALID_ARGUMENT, "layers %d to %d are not a range of 0 to %d",
                            pin->first_layer, pin->last_layer, table->layers - 1);
    }
    for (int submesh = 0; submesh < table->submesh_count && status == XM_OK; ++submesh) {
        bool *filled =
            &table->filled[cell_index(table, pin->first_layer, pin->last_layer, submesh)];
        int v = next_variant(table, pin, submesh, 0);

        if (table->submeshes[submesh].hosts != pin->hosts ||
            table->submeshes[submesh].devices != pin->devices) {
            continue;
        }
        known = known || v < table->variant_count[submesh];
        while (!*filled && v < table->variant_count[submesh] && status == XM_OK) {
            status = fill_variant(table, pin->first_layer, pin->last_layer, submesh, v);
            v = next_variant(table, pin, submesh, v + 1);
        }
        *filled = true;
    }
    if (status == XM_OK && !known) {
        return xm_error_set(XM_ERR_INVALID_ARGUMENT,
                            "a stage on %d x %d devices in the shape %d x %d is not in the space",
                            pin->hosts, pin->devices, pin->shape[0], pin->shape[1]);
    }
    return status;
}

xm_status_t ap_stage_table_reach(ap_stage_table_t *table, double threshold)
{
    ap_inter_op_problem_t problem;
    int layers = table->layers, submeshes = table->submesh_count;
    bool *useful = calloc((size_t)layers * (size_t)layers * (size_t)submeshes + 1, sizeof(*useful));
    xm_status_t status = XM_OK;

    if (useful == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "out of memory for %d layers", layers);
    }
    for (int i = 0; i < table->params.pin_count && status == XM_OK; ++i) {
        status = fill_pin(table, &table->params.pins[i]);
    }
    if (table->params.pins != NULL || status != XM_OK) {
        free(useful);
        return status;
    }
    ap_stage_table_pose(table, &problem);
    problem.config_count = 1;
    problem.cost = table->least;
    status = ap_inter_op_useful(&problem, threshold, useful);
    for (int range = 0; range < layers * layers && status == XM_OK; ++range) {
        int same = table->same_as[range];

        if (range / layers > range % layers) {
            continue;
        }
        for (int submesh = 0; submesh < submeshes && status == XM_OK; ++submesh) {
            if (useful[range * submeshes + submesh]) {
                status = fill_cell(table, same / layers, same % layers, submesh);
            }
        }
    }
    free(useful);
    return status;
}

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

static bool alike(const ap_tensor_t *a, const ap_tensor_t *b)
{
    return a->dtype == b->dtype && a->shape.rank == b->shape.rank &&
           memcmp(a->shape.dims, b->shape.dims, (size_t)a->shape.rank * sizeof(a->shape.dims[0])) ==
               0;
}

/* Boundaries cost the same where tensors of one shape and type pass (per layer, the first layer
 * before which such a tensor passes), and between the same hosts. */
static void number_boundaries(ap_stage_table_t *table)
{
    const ap_graph_t *graph = table->params.graph;
    int devices = table->params.hosts * table->params.devices_per_host;

    for (int layer = 1; layer < table->layers; ++layer) {
        const ap_tensor_t *tensor = ap_graph_tensor(graph, ap_graph_boundary(graph, layer - 1));
        int kind = 1;

        while (!alike(tensor, ap_graph_tensor(graph, ap_graph_boundary(graph, kind - 1)))) {
            ++kind;
        }
        table->boundary_kind[layer] = kind;
    }
    for (int device = 0; device < devices; ++device) {
        table->boundary_place[device] = ap_cross_mesh_place(table->params.cross_mesh, device);
    }
}

/* Room for the configurations; none is in the tables yet. */
static xm_status_t make_tables(ap_stage_table_t *table)
{
    size_t states = (size_t)table->submesh_count * (size_t)table->config_count;
    size_t count = (size_t)table->rows * states;
    size_t devices = (size_t)table->params.hosts * (size_t)table->params.devices_per_host;

    table->cost = malloc(count * sizeof(*table->cost));
    table->successors = calloc(count, sizeof(*table->successors));
    table->in_port = malloc(states * sizeof(*table->in_port));
    table->out_port = malloc(states * sizeof(*table->out_port));
    table->boundary_kind = calloc((size_t)table->layers, sizeof(int));
    table->boundary_place = calloc(devices, sizeof(int));
    if (table->cost == NULL || table->successors == NULL || table->in_port == NULL ||
        table->out_port == NULL || table->boundary_kind == NULL || table->boundary_place == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "out of memory for %zu stage costs", count);
    }
    for (size_t i = 0; i < count; ++i) {
        table->cost[i] = INFINITY;
    }
    number_ports(table, (int)states);
    number_boundaries(table);
    return XM_OK;
}

static xm_status_t make_rows(ap_stage_table_t *table)
{
    size_t ranges = (size_t)table->layers * (size_t)table->layers, cells;
    xm_status_t status;

    table->same_as = malloc(ranges * sizeof(int));
    table->row = calloc(ranges, sizeof(int));
    if (table->same_as == NULL || table->row == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "out of memory for %d layers", table->layers);
    }
    status = find_equal_ranges(table);
    if (status != XM_OK) {
        return status;
    }
    cells = (size_t)table->rows * (size_t)table->submesh_count;
    table->least = malloc(cells * sizeof(*table->least));
    table->again = calloc(cells, sizeof(*table->again));
    table->room = calloc(cells, sizeof(*table->room));
    table->filled = calloc(cells, sizeof(*table->filled));
    if (table->least == NULL || table->again == NULL || table->room == NULL ||
        table->filled == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "out of memory for %zu stages", cells);
    }
    for (size_t cell = 0; cell < cells; ++cell) {
        table->least[cell] = INFINITY;
    }
    return XM_OK;
}

/* Every shape on every class of devices that it can stand on. */
static xm_status_t list_submeshes(ap_stage_table_t *table)
{
    const ap_device_classes_t *classes = table->params.classes;
    ap_submesh_t shapes[AP_TABLE_SUBMESHES];
    int hosts = table->params.hosts, count, wanted = 0;

    count = ap_inter_op_submeshes(hosts, table->params.devices_per_host,
                                  table->params.all_submeshes, shapes, AP_TABLE_SUBMESHES);
    table->allowed = calloc((size_t)AP_TABLE_SUBMESHES * (size_t)hosts, sizeof(*table->allowed));
    if (table->allowed == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "out of memory for %d hosts", hosts);
    }
    for (int c = 0; c < classes->count; ++c) {
        for (int s = 0; s < count && s < AP_TABLE_SUBMESHES; ++s) {
            bool found = false;

            for (int host = 0; in_space(table, &shapes[s]) && host + shapes[s].hosts <= hosts;
                 ++host) {
                bool here = ap_device_classes_find(classes, host, shapes[s].hosts) == c;

                found = found || here;
                if (wanted < AP_TABLE_SUBMESHES) {
                    table->allowed[wanted * hosts + host] = here;
                }
            }
            if (found && wanted < AP_TABLE_SUBMESHES) {
                table->submeshes[wanted] = shapes[s];
                table->class_of[wanted] = c;
            }
            wanted += found;
        }
    }
    if (wanted > AP_TABLE_SUBMESHES || count > AP_TABLE_SUBMESHES) {
        return xm_error_set(XM_ERR_UNSUPPORTED,
                            "%d hosts with %d kinds of devices have %d submeshes; at most %d are "
                            "planned",
                            hosts, classes->count, wanted > count ? wanted : count,
                            AP_TABLE_SUBMESHES);
    }
    table->submesh_count = wanted;
    for (int submesh = 0; submesh < wanted; ++submesh) {
        list_variants(table, submesh);
    }
    return XM_OK;
}

static xm_status_t open_contexts(ap_stage_table_t *table)
{
    ap_stage_context_params_t context = AP_STAGE_CONTEXT_PARAMS_INIT;
    const ap_device_classes_t *classes = table->params.classes;
    xm_status_t status = XM_OK;

    table->context = calloc((size_t)classes->count, sizeof(ap_stage_context_t *));
    if (table->context == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "out of memory for the stage table");
    }
    context.graph = table->params.graph;
    context.space = table->params.space;
    context.micro_batches = table->params.micro_batches;
    context.rematerialize = table->params.rematerialize;
    for (int c = 0; c < classes->count && status == XM_OK; ++c) {
        context.cost = classes->classes[c].cost;
        status = ap_stage_context_create(&context, &table->context[c]);
    }
    return status;
}

xm_status_t ap_stage_table_create(const ap_stage_table_params_t *params, ap_stage_table_t **result)
{
    ap_stage_table_t *table = calloc(1, sizeof(*table));
    xm_status_t status;

    if (table == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "out of memory for the stage table");
    }
    table->params = *params;
    table->layers = ap_graph_layers(params->graph);
    status = list_submeshes(table);
    if (status == XM_OK) {
        status = open_contexts(table);
    }
    if (status == XM_OK) {
        status = make_rows(table);
    }
    if (status == XM_OK) {
        status = survey(table);
    }
    if (status == XM_OK) {
        status = make_tables(table);
    }
    if (status != XM_OK) {
        goto destroy_table;
    }
    *result = table;
    return XM_OK;

destroy_table:
    ap_stage_table_destroy(table);
    return status;
}

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
    if (config.in_flight > 0) {
        query->memory_limit = memory_of(table, stage->submesh);
        query->in_flight = in_flight_of_level(table, query, stage->config % table->level_count);
    }
}

ap_stage_context_t *ap_stage_table_context(ap_stage_table_t *table, int first_host, int hosts)
{
    return table->context[ap_device_classes_find(table->params.classes, first_host, hosts)];
}

const ap_stage_table_params_t *ap_stage_table_params(const ap_stage_table_t *table)
{
    return &table->params;
}

int64_t ap_stage_table_evaluated(const ap_stage_table_t *table)
{
    return table->evaluated;
}

void ap_stage_table_destroy(ap_stage_table_t *table)
{
    if (table == NULL) {
        return;
    }
    for (int c = 0; table->context != NULL && c < table->params.classes->count; ++c) {
        ap_stage_context_destroy(table->context[c]);
    }
    free(table->context);
    free(table->allowed);
    free(table->boundary_place);
    free(table->boundary_kind);
    free(table->out_port);
    free(table->in_port);
    free(table->successors);
    free(table->cost);
    free(table->filled);
    free(table->room);
    free(table->again);
    free(table->least);
    free(table->row);
    free(table->same_as);
    free(table);
}
