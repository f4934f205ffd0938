/* Stage slicing over a finished table: what a boundary costs, and what a result's stages are. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "planner/stage_table.h"
#include "planner/stage_table_private.h"

/* So many micro-batches that filling the pipeline counts for nothing beside the bottleneck. */
static const int64_t STEADY = 1 << 30;

/* Port = (submesh * variants + variant) * specs + spec. */
static void side_of_port(const ap_stage_table_t *table, int port, ap_cross_mesh_side_t *side)
{
    int shape = port / table->max_specs;
    const ap_stage_variant_t *variant =
        &table->variants[shape / table->max_variants][shape % table->max_variants];

    side->shape[0] = variant->shape[0];
    side->shape[1] = variant->shape[1];
    side->spec = variant->specs[port % table->max_specs];
}

static bool port_exists(const ap_stage_table_t *table, int port)
{
    int shape = port / table->max_specs, submesh = shape / table->max_variants;
    int v = shape % table->max_variants;

    return v < table->variant_count[submesh] &&
           port % table->max_specs < table->variants[submesh][v].spec_count;
}

static double boundary_seconds(void *arg, const ap_inter_op_boundary_t *at)
{
    ap_stage_table_t *table = arg;
    const ap_tensor_t *tensor =
        ap_graph_tensor(table->params.graph, ap_graph_boundary(table->params.graph, at->layer - 1));
    ap_cross_mesh_side_t src, dst;
    ap_cross_mesh_cost_t cost;

    if (table->failed || !port_exists(table, at->src_port) || !port_exists(table, at->dst_port)) {
        return INFINITY;
    }
    side_of_port(table, at->src_port, &src);
    side_of_port(table, at->dst_port, &dst);
    dst.first_device = at->dst_first_device;
    src.first_device = at->dst_first_device - src.shape[0] * src.shape[1];
    if (ap_cross_mesh_cost(table->params.cross_mesh, &tensor->shape, ap_dtype_bytes(tensor->dtype),
                           &src, &dst, &cost) != XM_OK) {
        table->failed = true;
        (void)snprintf(table->failure, sizeof(table->failure), "%s", xm_last_error());
        return INFINITY;
    }
    return cost.forward + cost.backward;
}

static bool alike(const ap_tensor_t *a, const ap_tensor_t *b)
{
    return a->dtype == b->dtype && a->shape.rank == b->shape.rank &&
           memcmp(a->shape.dims, b->shape.dims, (size_t)a->shape.rank * sizeof(a->shape.dims[0])) ==
               0;
}

/* Boundaries cost the same where tensors of one shape and type pass: per layer, the first layer
 * before which such a tensor passes. NULL: no memory. */
static int *boundary_kinds(const ap_stage_table_t *table)
{
    const ap_graph_t *graph = table->params.graph;
    int *kind = calloc((size_t)table->layers, sizeof(*kind));

    for (int layer = 1; layer < table->layers && kind != NULL; ++layer) {
        const ap_tensor_t *tensor = ap_graph_tensor(graph, ap_graph_boundary(graph, layer - 1));

        kind[layer] = 1;
        while (!alike(tensor, ap_graph_tensor(graph, ap_graph_boundary(graph, kind[layer] - 1)))) {
            ++kind[layer];
        }
    }
    return kind;
}

static xm_status_t slice(ap_stage_table_t *table, int min_stages, int max_stages, bool use_memory,
                         ap_inter_op_result_t *result)
{
    ap_inter_op_problem_t problem = AP_INTER_OP_PROBLEM_INIT;
    int *kinds = boundary_kinds(table);
    xm_status_t status;

    if (kinds == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "out of memory for %d layers", table->layers);
    }
    problem.layers = table->layers;
    problem.hosts = table->params.hosts;
    problem.devices_per_host = table->params.devices_per_host;
    problem.submeshes = table->submeshes;
    problem.submesh_count = table->submesh_count;
    problem.config_count = table->config_count;
    problem.cost = table->cost;
    problem.max_successors = use_memory ? table->successors : NULL;
    problem.micro_batches = table->params.steady ? STEADY : table->params.micro_batches;
    problem.min_stages = min_stages;
    problem.max_stages = max_stages;
    problem.ordered = true;
    problem.boundary = table->params.free_boundaries ? NULL : boundary_seconds;
    problem.boundary_arg = table;
    problem.boundary_kind = kinds;
    problem.in_port = table->in_port;
    problem.out_port = table->out_port;
    status = ap_inter_op_solve(&problem, result);
    free(kinds);
    if (table->failed) {
        if (status == XM_OK) {
            ap_inter_op_result_clear(result);
        }
        return xm_error_set(XM_ERR_INTERNAL, "the cost of a stage boundary: %s", table->failure);
    }
    if (status == XM_OK) {
        result->objective =
            result->sum + (double)(table->params.micro_batches - 1) * result->bottleneck;
    }
    return status;
}

xm_status_t ap_stage_table_solve(ap_stage_table_t *table, int min_stages, int max_stages,
                                 ap_inter_op_result_t *result)
{
    return slice(table, min_stages, max_stages, true, result);
}

xm_status_t ap_stage_table_bound(ap_stage_table_t *table, int min_stages, int max_stages,
                                 double *seconds)
{
    ap_inter_op_result_t result;
    xm_status_t status = slice(table, min_stages, max_stages, false, &result);

    if (status == XM_OK) {
        *seconds = result.objective;
        ap_inter_op_result_clear(&result);
    }
    return status;
}

void ap_stage_table_config(const ap_stage_table_t *table, const ap_inter_op_stage_t *stage,
                           ap_stage_config_t *config)
{
    int state = stage->submesh * table->config_count + stage->config;
    ap_cross_mesh_side_t in, out;

    side_of_port(table, table->in_port[state], &in);
    side_of_port(table, table->out_port[state], &out);
    *config = (ap_stage_config_t){.submesh = table->submeshes[stage->submesh],
                                  .shape = {in.shape[0], in.shape[1]},
                                  .has_input = stage->first_layer > 0,
                                  .has_output = stage->last_layer < table->layers - 1,
                                  .input = in.spec,
                                  .output = out.spec,
                                  .in_flight = table->levels[stage->config % table->level_count]};
}
