/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What passes from one stage to a later one: the boundary, cut as both stages like, and resting
 * copies, whose cut depends on the meshes and the space alone.
 */
#include "planner/boundary/passing.h"

xm_status_t ap_passing_open(const ap_graph_t *graph, xm_arena_t *arena, ap_passing_t *passing)
{
    size_t most = (size_t)ap_graph_tensors(graph) + 1;

    *passing =
        (ap_passing_t){.graph = graph,
                       .ids = xm_arena_take(arena, most * sizeof(int)),
                       .tensors = xm_arena_take(arena, most * sizeof(ap_cross_mesh_tensor_t)),
                       .resting = xm_arena_take(arena, most * sizeof(int))};
    return arena->failed ? XM_NO_MEMORY("%zu tensors", most) : XM_OK;
}

/* A boundary that lies as the resting copy does goes once. */
static void add(ap_passing_t *passing, int tensor, ap_spec_t src, ap_spec_t dst)
{
    const ap_tensor_t *of = ap_graph_tensor(passing->graph, tensor);
    int count = passing->transfer.count;

    for (int i = 0; i < count; ++i) {
        if (passing->ids[i] == tensor && passing->tensors[i].src == src &&
            passing->tensors[i].dst == dst) {
            return;
        }
    }
    passing->ids[count] = tensor;
    passing->tensors[count] = (ap_cross_mesh_tensor_t){
        .shape = of->shape, .element_size = ap_dtype_bytes(of->dtype), .src = src, .dst = dst};
    passing->transfer.count = count + 1;
}

void ap_passing_between(ap_passing_t *passing, const ap_passing_stage_t *from,
                        const ap_passing_stage_t *to, bool neighbours)
{
    const int there[] = {from->first_layer, from->last_layer};
    const int here[] = {to->first_layer, to->last_layer};
    int count = ap_graph_resting(passing->graph, there, here, passing->resting);

    passing->transfer =
        (ap_cross_mesh_transfer_t){from->side, to->side, passing->tensors, 0,
                                   from->last_layer < ap_graph_frozen(passing->graph)};
    if (neighbours) {
        add(passing, ap_graph_boundary(passing->graph, from->last_layer), from->output, to->input);
    }
    for (int i = 0; i < count; ++i) {
        const ap_shape_t *shape = &ap_graph_tensor(passing->graph, passing->resting[i])->shape;

        add(passing, passing->resting[i],
            ap_spec_resting(shape->rank, shape->dims, from->side.shape, from->batch_axes),
            ap_spec_resting(shape->rank, shape->dims, to->side.shape, to->batch_axes));
    }
}
