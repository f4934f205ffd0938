/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A model file as the planner takes it: read, reduced to its forward pass, cut into layers, fused.
 * The four passes know nothing of each other; this file is the order in which they must run. Fusion
 * comes last, because layers are told by operators of the file, which fusion would merge.
 *
 * A file that has layers of its own keeps them, and its operators are not fused: whoever wrote
 * layers by hand has decided what an operator is.
 */

#include "planner/search/model.h"

#include "planner/passes.h"
#include "planner/frontend.h"

bool ap_planner_model_is_given(const ap_layering_t *how)
{
    return how->layers != 0 || how->pattern != NULL || how->marks != NULL;
}

bool ap_planner_model_recomputes(const ap_planner_model_t *model)
{
    return model->step.again > 0.5;
}

/* Each graph is freed once it has been turned into the next; destroying NULL does nothing. */
xm_status_t ap_planner_model_read(const char *path, const char *const *dims, size_t dim_count,
                                  const ap_layering_t *how, ap_planner_model_t *model)
{
    ap_frontend_params_t params = AP_FRONTEND_PARAMS_INIT;
    ap_planner_model_t made = {0};
    ap_graph_t *file = NULL, *forward = NULL, *layered = NULL;
    xm_status_t status;

    params.dims = dims;
    params.dim_count = dim_count;
    XM_TRY(ap_frontend_load(path, &params, &file, NULL));
    made.file_ops = ap_graph_ops(file);
    status = ap_forward_pass(file, &forward, &made.step);
    if (status != XM_OK) {
        status = xm_error_prefix(status, "%s", path);
        goto destroy_file;
    }
    made.forward_ops = ap_graph_ops(forward);
    made.own_layers = ap_graph_layers(forward) > 1 && !ap_planner_model_is_given(how);
    if (made.own_layers) {
        made.graph = forward;
        forward = NULL;
        ap_layering_describe(made.graph, &made.layering);
    } else {
        status = ap_layering_apply(forward, how, &layered, &made.layering);
        XM_THEN(status, ap_elementwise_fuse(layered, &made.graph));
        status = status == XM_OK ? XM_OK : xm_error_prefix(status, "%s", path);
    }
    if (status == XM_OK) {
        *model = made;
    }
    ap_graph_destroy(layered);
    ap_graph_destroy(forward);

destroy_file:
    ap_graph_destroy(file);
    return status;
}

/* The batch is the first dimension that most inputs have: inputs such as positions may lack it.
 * Ties go to the first input. */
int64_t ap_planner_model_samples(const ap_graph_t *forward)
{
    int64_t best = 1;
    int most = 0;

    for (int t = 0; t < ap_graph_tensors(forward); ++t) {
        const ap_tensor_t *input = ap_graph_tensor(forward, t);
        int count = 0;

        if (input->kind != AP_TENSOR_INPUT || input->shape.rank == 0) {
            continue;
        }
        for (int other = 0; other < ap_graph_tensors(forward); ++other) {
            const ap_tensor_t *tensor = ap_graph_tensor(forward, other);

            count += tensor->kind == AP_TENSOR_INPUT && tensor->shape.rank > 0 &&
                     tensor->shape.dims[0] == input->shape.dims[0];
        }
        if (count > most) {
            most = count;
            best = input->shape.dims[0];
        }
    }
    return best;
}

void ap_planner_model_clear(ap_planner_model_t *model)
{
    if (model != NULL) {
        ap_graph_destroy(model->graph);
        *model = (ap_planner_model_t){0};
    }
}
