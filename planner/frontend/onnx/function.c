/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Functions of an ONNX model: looked through, as if their nodes stood in place of each call. Names
 * within a function are its own, so a call exchanges the builder's tables of names for empty ones,
 * binds the parameters, reads the nodes, and puts the tables back. Values outlive the call, because
 * results are values of it.
 */

#include <string.h>

#include "planner/frontend/onnx/build.h"

enum { MAX_DEPTH = 16 /* of calls */ };

const Onnx__FunctionProto *onnx_find_function(const onnx_build_t *b, const Onnx__NodeProto *proto)
{
    const char *domain = proto->domain != NULL ? proto->domain : "";

    for (size_t i = 0; i < b->function_count; ++i) {
        const Onnx__FunctionProto *function = b->functions[i];

        if (function->name != NULL && strcmp(function->name, proto->op_type) == 0 &&
            strcmp(function->domain != NULL ? function->domain : "", domain) == 0) {
            return function;
        }
    }
    return NULL;
}

/* Reads the nodes of a function in a scope of their own and writes its results' values. Parameters
 * that the call leaves out are unbound. NOLINTNEXTLINE(misc-no-recursion) */
static xm_status_t read_body(onnx_node_t *n, const Onnx__FunctionProto *function,
                             onnx_value_t **results)
{
    onnx_build_t *b = n->b;
    xm_status_t status = XM_OK;

    for (size_t i = 0; i < function->n_input && status == XM_OK; ++i) {
        onnx_value_t *value = onnx_input(n, (int)i);

        if (value != NULL) {
            status = onnx_bind(b, function->input[i], value);
        }
    }
    for (size_t i = 0; i < function->n_node && status == XM_OK; ++i) {
        status = onnx_build_node(b, i, n, function);
    }
    for (size_t r = 0; r < n->proto->n_output && status == XM_OK; ++r) {
        results[r] = r < function->n_output ? onnx_find(b, function->output[r]) : NULL;
        if (results[r] == NULL && n->proto->output[r][0] != '\0') {
            onnx_fail(n, "the function does not make result %zu", r);
            status = n->status;
        }
    }
    return status;
}

/* A function may be written for another version of the operators than its model; its own version
 * holds for its nodes. NOLINTNEXTLINE(misc-no-recursion) */
xm_status_t onnx_call_function(onnx_node_t *n, const Onnx__FunctionProto *function)
{
    onnx_build_t *b = n->b;
    /* What is put back afterwards; the list of values and the arena are not, for they have
     * grown. */
    const onnx_build_t outside = *b;
    onnx_value_t **results =
        xm_arena_get(&b->arena, n->proto->n_output + 1, sizeof(onnx_value_t *));
    xm_status_t status = results == NULL ? XM_NO_MEMORY("the graph of %s", b->file) : XM_OK;

    if (b->depth == MAX_DEPTH) {
        onnx_fail(n, "functions call each other deeper than %d, or in a circle", MAX_DEPTH);
        return n->status;
    }
    ++b->depth;
    b->names = json_object();
    b->declared = json_object();
    b->nodes = function->node;
    b->node_count = function->n_node;
    for (size_t i = 0; i < function->n_opset_import; ++i) {
        const char *domain = function->opset_import[i]->domain;

        b->opset =
            domain == NULL || domain[0] == '\0' ? function->opset_import[i]->version : b->opset;
    }
    if (status == XM_OK && (b->names == NULL || b->declared == NULL)) {
        status = XM_NO_MEMORY("the graph of %s", b->file);
    }
    XM_THEN(status, read_body(n, function, results));
    json_decref(b->names);
    json_decref(b->declared);
    b->names = outside.names;
    b->declared = outside.declared;
    b->nodes = outside.nodes;
    b->node_count = outside.node_count;
    b->opset = outside.opset;
    b->depth = outside.depth;
    n->alias = status == XM_OK ? results[0] : NULL; /* results keep their names */
    return status == XM_OK ? onnx_bind_results(n, results, (int)n->proto->n_output) : status;
}
