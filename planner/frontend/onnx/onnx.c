/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From an ONNX model to a forward graph: initialisers, inputs, nodes in order, and the loss. ONNX
 * says nothing about training, so two conventions stand for it: floating-point initialisers of more
 * than one element are trained, and a scalar output is the loss. A model for inference has no
 * scalar output; then its first output stands for its own gradient, which gives the backward pass
 * its right size.
 *
 * The file is mapped, and shrunk before it is parsed (planner/frontend/onnx/wire.c), so a model of
 * many gigabytes takes the memory of its graph.
 */

#include "planner/frontend/onnx.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/base.h"
#include "planner/frontend/common.h"
#include "planner/frontend/onnx/build.h"
#include "planner/frontend/onnx/wire.h"

static bool is_floating(ap_dtype_t dtype)
{
    return dtype == AP_DTYPE_F16 || dtype == AP_DTYPE_BF16 || dtype == AP_DTYPE_F32 ||
           dtype == AP_DTYPE_F64;
}

/* Floating-point initialisers of more than one element are trained; the others are constants, whose
 * numbers are kept where they are few. */
static xm_status_t add_initializers(onnx_build_t *b)
{
    for (size_t i = 0; i < b->proto->n_initializer; ++i) {
        const Onnx__TensorProto *tensor = b->proto->initializer[i];
        onnx_value_t *value;
        operand_type_t type;

        if (tensor->name == NULL || tensor->name[0] == '\0') {
            return XM_MALFORMED("%s: initialiser %zu has no name", b->file, i);
        }
        XM_TRY(onnx_tensor_type(b, tensor, tensor->name, &type));
        value = onnx_value(b, tensor->name);
        XM_NEED_MEMORY(value, "the graph of %s", b->file);
        value->type = type;
        value->parameter = value->input = is_floating(type.dtype) && onnx_elements(&type) > 1;
        value->numbers = onnx_tensor_numbers(b, tensor, &type);
        XM_TRY(onnx_bind(b, tensor->name, value));
    }
    return XM_OK;
}

/* Initialisers may be listed among the inputs too, as older files do; the initialiser holds. */
static xm_status_t add_inputs(onnx_build_t *b)
{
    for (size_t i = 0; i < b->proto->n_input; ++i) {
        const Onnx__ValueInfoProto *info = b->proto->input[i];
        onnx_value_t *value;
        xm_status_t status;

        if (info->name == NULL || info->name[0] == '\0') {
            return XM_MALFORMED("%s: input %zu has no name", b->file, i);
        }
        if (onnx_find(b, info->name) != NULL) {
            continue;
        }
        value = onnx_value(b, info->name);
        XM_NEED_MEMORY(value, "the graph of %s", b->file);
        value->input = true;
        status = onnx_read_type(b, info, &value->type);
        XM_THEN(status, onnx_bind(b, info->name, value));
        XM_TRY(status);
    }
    return XM_OK;
}

/* Notes where the types of results are declared, by name. Outputs come after the other values, so a
 * number tells which list it is from. */
static xm_status_t list_declared(onnx_build_t *b)
{
    for (size_t i = 0; i < b->proto->n_value_info + b->proto->n_output; ++i) {
        const Onnx__ValueInfoProto *info = i < b->proto->n_value_info
                                               ? b->proto->value_info[i]
                                               : b->proto->output[i - b->proto->n_value_info];

        if (info->name != NULL && json_object_set_new_nocheck(b->declared, info->name,
                                                              json_integer((json_int_t)i)) != 0) {
            return XM_NO_MEMORY("the graph of %s", b->file);
        }
    }
    return XM_OK;
}

/* A scalar is the loss; else the first floating-point output stands for its own gradient. An output
 * that needs no data cannot be trained by. */
static xm_status_t set_loss(onnx_build_t *b)
{
    onnx_value_t *loss = NULL;
    int tensor;

    for (size_t i = 0; i < b->proto->n_output; ++i) {
        const char *name = b->proto->output[i]->name;
        onnx_value_t *value = name != NULL ? onnx_find(b, name) : NULL;

        if (value == NULL) {
            return XM_MALFORMED("%s: output %zu, '%s', is made by nothing", b->file, i,
                                name != NULL ? name : "");
        }
        if (!is_floating(value->type.dtype) || value->tensor == OPERATOR_NO_TENSOR) {
            continue;
        }
        if (loss == NULL || (value->type.shape.rank == 0 && loss->type.shape.rank > 0)) {
            loss = value;
        }
    }
    if (loss == NULL) {
        return XM_OK; /* nothing to train by */
    }
    XM_TRY(onnx_tensor(b, loss, &tensor));
    return ap_graph_set_loss(b->graph, tensor, loss->type.shape.rank > 0);
}

/* A given dimension that no input has is most likely misspelt, so it is refused; this is known only
 * when all is read. */
static xm_status_t build(onnx_build_t *b)
{
    XM_TRY(list_declared(b));
    XM_TRY(add_initializers(b));
    XM_TRY(add_inputs(b));
    b->nodes = b->proto->node;
    b->node_count = b->proto->n_node;
    for (size_t i = 0; i < b->node_count; ++i) {
        XM_TRY(onnx_build_node(b, i, NULL, NULL));
    }
    if (ap_graph_ops(b->graph) == 0) {
        return XM_MALFORMED("%s: the model computes nothing from its inputs", b->file);
    }
    XM_TRY(set_loss(b));
    for (size_t i = 0; b->params != NULL && i < b->params->dim_count; ++i) {
        if (!b->bound[i]) {
            return XM_NOT_FOUND("%s: --dim %s: no dimension is called that", b->file,
                                b->params->dims[i]);
        }
    }
    return ap_graph_finish(b->graph);
}

/* Each must be "name=size", so that bound_size() need not check again. */
static xm_status_t check_dims(const ap_onnx_params_t *params)
{
    for (size_t i = 0; params != NULL && i < params->dim_count; ++i) {
        const char *equals = strchr(params->dims[i], '=');
        int64_t size;

        if (equals == NULL || equals == params->dims[i]) {
            return XM_INVALID("--dim: '%s' is not NAME=SIZE", params->dims[i]);
        }
        XM_TRY(xm_text_parse_int("--dim", equals + 1, 1, (int64_t)1 << 40, &size));
    }
    return XM_OK;
}

static xm_status_t read_model(const Onnx__ModelProto *model, const char *name,
                              const ap_onnx_params_t *params, ap_graph_t **graph,
                              ap_frontend_notes_t *notes)
{
    onnx_build_t b = {.file = name,
                      .proto = model->graph,
                      .functions = model->functions,
                      .function_count = model->n_functions,
                      .params = params,
                      .notes = notes};
    char title[100];
    xm_status_t status;

    if (model->graph == NULL || model->graph->n_node == 0) {
        return XM_MALFORMED("%s: the model has no graph, or one without nodes", name);
    }
    for (size_t i = 0; i < model->n_opset_import; ++i) {
        const char *domain = model->opset_import[i]->domain;

        if (domain == NULL || domain[0] == '\0' || strcmp(domain, "ai.onnx") == 0) {
            b.opset = model->opset_import[i]->version;
        }
    }
    (void)snprintf(title, sizeof(title), "%s",
                   model->graph->name != NULL && model->graph->name[0] != '\0' ? model->graph->name
                                                                               : "onnx");
    b.names = json_object();
    b.declared = json_object();
    b.bound = calloc(params != NULL ? params->dim_count + 1 : 1, sizeof(bool));
    status = b.names == NULL || b.declared == NULL || b.bound == NULL
                 ? XM_NO_MEMORY("the graph of %s", name)
                 : XM_OK;
    XM_THEN(status, ap_graph_create(title, &b.graph));
    XM_THEN(status, build(&b));
    json_decref(b.names);
    json_decref(b.declared);
    free(b.bound);
    xm_arena_clear(&b.arena);
    if (status != XM_OK) {
        ap_graph_destroy(b.graph);
        return status;
    }
    *graph = b.graph;
    return XM_OK;
}

/* Dimensions are checked first, before the file costs any time. The shrunk copy is freed as soon as
 * it is parsed. */
xm_status_t ap_onnx_from_bytes(const void *bytes, size_t size, const char *name,
                               const ap_onnx_params_t *params, ap_graph_t **graph,
                               ap_frontend_notes_t **notes)
{
    XM_NEED_ARGUMENTS(bytes, name, graph);
    ap_onnx_params_t own = AP_ONNX_PARAMS_INIT;
    ap_frontend_notes_t *unknown = NULL;
    Onnx__ModelProto *model = NULL;
    uint8_t *shrunk = NULL;
    size_t length;
    xm_status_t status = params != NULL ? XM_PARAMS_COPY(ap_onnx_params_t, &own, params) : XM_OK;

    params = params != NULL ? &own : NULL;
    XM_THEN(status, check_dims(params));

    XM_THEN(status, onnx_wire_shrink(bytes, size, name, &shrunk, &length));
    if (status == XM_OK) {
        model = onnx__model_proto__unpack(NULL, length, shrunk);
        if (model == NULL) {
            status = XM_MALFORMED(
                "%s: the bytes do not follow ONNX's schema: no ONNX model, or cut off", name);
        }
    }
    free(shrunk);
    XM_THEN(status, ap_frontend_notes_create(&unknown));
    XM_THEN(status, read_model(model, name, params, graph, unknown));
    if (model != NULL) {
        onnx__model_proto__free_unpacked(model, NULL);
    }
    if (status == XM_OK && notes != NULL) {
        *notes = unknown;
    } else {
        ap_frontend_notes_destroy(unknown);
    }
    return status;
}

xm_status_t ap_onnx_from_file(const char *path, const ap_onnx_params_t *params, ap_graph_t **graph,
                              ap_frontend_notes_t **notes)
{
    ap_frontend_file_t file;
    xm_status_t status = ap_frontend_file_map(path, "an ONNX model", &file);

    if (status == XM_OK) {
        status = ap_onnx_from_bytes(file.bytes, file.size, path, params, graph, notes);
        ap_frontend_file_unmap(&file);
    }
    return status;
}
