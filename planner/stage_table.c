#include "planner/stage_table.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

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

/* Keeps the submeshes that a stage of the space may have. */
static void drop_large_submeshes(ap_stage_table_t *table)
{
    int most = table->params.space != NULL ? table->params.space->stage_devices : 0, kept = 0;

    for (int submesh = 0; submesh < table->submesh_count && most > 0; ++submesh) {
        if (table->submeshes[submesh].hosts * table->submeshes[submesh].devices <= most) {
            table->submeshes[kept++] = table->submeshes[submesh];
        }
    }
    table->submesh_count = most > 0 ? kept : table->submesh_count;
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
            int earlier = 0;

            while (!ranges_equal(hash, layers, earlier, first, length)) {
                ++earlier;
            }
            table->same_as[first * layers + first + length - 1] =
                earlier * layers + earlier + length - 1;
        }
    }
    free(hash);
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

static xm_status_t ask(ap_stage_table_t *table, const ap_stage_query_t *query,
                       ap_stage_cost_t *cost)
{
    ++table->evaluated;
    return ap_stage_evaluate(table->context, query, cost);
}

/* Stages that may follow one of this cost within the memory limit; -1: it does not fit. */
static int32_t successors_of(const ap_stage_table_t *table, const ap_stage_cost_t *cost)
{
    double limit = table->params.memory_limit;
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

/* Plans every range freely: which specs do its ends like, and does memory ever bind? */
static xm_status_t survey_range(ap_stage_table_t *table, int first, int last)
{
    for (int submesh = 0; submesh < table->submesh_count; ++submesh) {
        int most = most_successors(table, first, last, submesh);

        for (int v = 0; most >= 0 && v < table->variant_count[submesh]; ++v) {
            ap_stage_variant_t *variant = &table->variants[submesh][v];
            ap_stage_query_t query = base_query(table, first, last, submesh, variant);
            ap_stage_cost_t cost;
            xm_status_t status = ask(table, &query, &cost);

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
            table->memory_binds = table->memory_binds || successors_of(table, &cost) < most;
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

static size_t row_index(const ap_stage_table_t *table, int first, int last)
{
    return ((size_t)first * (size_t)table->layers + (size_t)last) * (size_t)table->submesh_count *
           (size_t)table->config_count;
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
    size_t at = row_index(table, query->first, query->last) +
                (size_t)(submesh * table->config_count + config);

    table->cost[at] = ap_stage_objective(cost, table->params.micro_batches);
    table->successors[at] = successors_of(table, cost);
}

/* One configuration in all its memory levels. Levels that the last plan serves, or that no pipeline
 * has a use for, are left out. */
static xm_status_t fill_levels(ap_stage_table_t *table, ap_stage_query_t *query, int submesh,
                               int config)
{
    int most = most_successors(table, query->first, query->last, submesh);
    int least = query->last < table->layers - 1 ? 1 : 0;
    ap_stage_cost_t cost;
    xm_status_t status;
    int32_t successors;

    query->memory_limit = 0.0;
    query->in_flight = 1;
    status = ask(table, query, &cost);
    if (status != XM_OK) {
        return status;
    }
    successors = successors_of(table, &cost);
    store(table, query, submesh, config, &cost);
    for (int level = 1; level < table->level_count && successors < most; ++level) {
        if (table->levels[level] - 1 <= successors || table->levels[level] - 1 < least) {
            continue;
        }
        query->memory_limit = table->params.memory_limit;
        query->in_flight = in_flight_of_level(table, query, level);
        status = ask(table, query, &cost);
        if (status != XM_OK) {
            return status;
        }
        successors = successors_of(table, &cost);
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

static xm_status_t fill_range(ap_stage_table_t *table, int first, int last)
{
    size_t width = (size_t)table->submesh_count * (size_t)table->config_count;
    size_t to = row_index(table, first, last);
    int range = first * table->layers + last, source = table->same_as[range];

    if (source != range) {
        size_t from = row_index(table, source / table->layers, source % table->layers);

        memcpy(table->cost + to, table->cost + from, width * sizeof(*table->cost));
        memcpy(table->successors + to, table->successors + from,
               width * sizeof(*table->successors));
        return XM_OK;
    }
    for (int submesh = 0; submesh < table->submesh_count; ++submesh) {
        bool useful = most_successors(table, first, last, submesh) >= 0;

        for (int v = 0; useful && v < table->variant_count[submesh]; ++v) {
            xm_status_t status = fill_variant(table, first, last, submesh, v);

            if (status != XM_OK) {
                return status;
            }
        }
    }
    return XM_OK;
}

static xm_status_t fill(ap_stage_table_t *table)
{
    size_t count = row_index(table, table->layers, 0);
    size_t states = (size_t)table->submesh_count * (size_t)table->config_count;

    table->cost = malloc(count * sizeof(*table->cost));
    table->successors = calloc(count, sizeof(*table->successors));
    table->in_port = malloc(states * sizeof(*table->in_port));
    table->out_port = malloc(states * sizeof(*table->out_port));
    if (table->cost == NULL || table->successors == NULL || table->in_port == NULL ||
        table->out_port == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "out of memory for %zu stage costs", count);
    }
    for (size_t i = 0; i < count; ++i) {
        table->cost[i] = INFINITY;
    }
    for (int state = 0; state < (int)states; ++state) {
        int shape = state / (table->max_specs * table->max_specs * table->level_count);

        table->in_port[state] = shape * table->max_specs +
                                state / (table->max_specs * table->level_count) % table->max_specs;
        table->out_port[state] =
            shape * table->max_specs + state / table->level_count % table->max_specs;
    }
    for (int first = 0; first < table->layers; ++first) {
        for (int last = first; last < table->layers; ++last) {
            xm_status_t status = fill_range(table, first, last);

            if (status != XM_OK) {
                return status;
            }
        }
    }
    return XM_OK;
}

xm_status_t ap_stage_table_create(const ap_stage_table_params_t *params, ap_stage_table_t **result)
{
    ap_stage_context_params_t context = AP_STAGE_CONTEXT_PARAMS_INIT;
    ap_stage_table_t *table = calloc(1, sizeof(*table));
    xm_status_t status = xm_error_set(XM_ERR_NO_MEMORY, "out of memory for the stage table");

    if (table == NULL) {
        return status;
    }
    table->params = *params;
    table->layers = ap_graph_layers(params->graph);
    table->same_as = malloc((size_t)table->layers * (size_t)table->layers * sizeof(int));
    if (table->same_as == NULL) {
        goto destroy_table;
    }
    table->submesh_count = ap_inter_op_submeshes(params->hosts, params->devices_per_host,
                                                 table->submeshes, AP_TABLE_SUBMESHES);
    if (table->submesh_count > AP_TABLE_SUBMESHES) {
        status = xm_error_set(XM_ERR_UNSUPPORTED,
                              "a cluster of %d hosts has %d submesh shapes; at most %d are planned",
                              params->hosts, table->submesh_count, AP_TABLE_SUBMESHES);
        goto destroy_table;
    }
    drop_large_submeshes(table);
    for (int submesh = 0; submesh < table->submesh_count; ++submesh) {
        list_variants(table, submesh);
    }
    context.graph = params->graph;
    context.space = params->space;
    context.cost = params->cost;
    context.micro_batches = params->micro_batches;
    context.rematerialize = params->rematerialize;
    status = ap_stage_context_create(&context, &table->context);
    if (status == XM_OK) {
        status = find_equal_ranges(table);
    }
    if (status == XM_OK) {
        status = survey(table);
    }
    if (status == XM_OK) {
        status = fill(table);
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

bool ap_stage_table_memory_binds(const ap_stage_table_t *table)
{
    return table->memory_binds;
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
        query->memory_limit = table->params.memory_limit;
        query->in_flight = in_flight_of_level(table, query, stage->config % table->level_count);
    }
}

ap_stage_context_t *ap_stage_table_context(ap_stage_table_t *table)
{
    return table->context;
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
    ap_stage_context_destroy(table->context);
    free(table->out_port);
    free(table->in_port);
    free(table->successors);
    free(table->cost);
    free(table->same_as);
    free(table);
}
