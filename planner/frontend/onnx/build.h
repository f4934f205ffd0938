/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From the nodes of an ONNX graph to operators: values, attributes, and what every operator's
 * reader needs. Private to the ONNX front end.
 */
#pragma once

#include <jansson.h>

#include "planner/frontend/onnx.h"
#include "planner/frontend/common.h"
#include "planner/frontend/onnx/schema/onnx.pb-c.h"
#include "planner/rules.h"

enum {
    ONNX_PLACE_TEXT = 320,
    ONNX_MAX_NUMBERS = 4096 /* elements of a constant whose values are known */
};

/* What a name in the graph stands for. */
typedef struct onnx_value {
    const char *name;
    operand_type_t type;
    int tensor; /* of the graph; OPERATOR_NO_TENSOR: none (yet) */
    bool input; /* becomes an input or a parameter when it is first read as data */
    bool parameter;
    bool literal;    /* written into the graph as a node: a weight where a product reads it */
    double *numbers; /* the elements, where they are known; else NULL */
} onnx_value_t;

typedef struct onnx_build {
    const char *file;
    const Onnx__GraphProto *proto;
    Onnx__FunctionProto *const *functions; /* of the model */
    size_t function_count;
    Onnx__NodeProto *const *nodes; /* being read: of the graph, or of a function */
    size_t node_count;
    int depth, work; /* of calls of functions; nodes read */
    int64_t opset;
    ap_graph_t *graph;
    ap_frontend_notes_t *notes;
    xm_arena_t arena;
    json_t *names;    /* value numbers by name */
    json_t *declared; /* value_info numbers by name */
    onnx_value_t **values;
    int count, room;
    const ap_onnx_params_t *params;
    bool *bound; /* which of the given dimensions were found */
} onnx_build_t;

/* One node being read. */
typedef struct onnx_node {
    onnx_build_t *b;
    const Onnx__NodeProto *proto;
    const struct onnx_node *caller; /* of the function that the node belongs to; NULL: of none */
    const Onnx__FunctionProto *function;
    char place[ONNX_PLACE_TEXT];
    const char *name;
    onnx_value_t **in; /* NULL: left out */
    int inputs;
    shape_rule_t op;
    onnx_value_t *read[OPERATOR_MAX_OPERANDS]; /* operands of `op` */
    int reads;
    double *numbers;     /* of result 0, when they are known */
    onnx_value_t *alias; /* result 0 is this value as it is */
    onnx_value_t *bias;  /* to be added to result 0 */
    int bias_dim;        /* along this dimension; -1: it broadcasts */
    xm_status_t status;
} onnx_node_t;

/* Notes a failure with the node's place. */
void onnx_fail(onnx_node_t *n, const char *format, ...) XM_PRINTF(2, 3);

/* Attributes; the value given is for those that are not there. */
const Onnx__AttributeProto *onnx_attribute(const onnx_node_t *n, const char *name);
int64_t onnx_int(const onnx_node_t *n, const char *name, int64_t otherwise);
/* Number of entries, at most `room`; -1 when the attribute is missing. */
int onnx_ints(onnx_node_t *n, const char *name, int64_t *values, int room);
/* Copies a string attribute; false when it is missing. */
bool onnx_string(const onnx_node_t *n, const char *name, char *text, size_t size);

/* Input `index`, or NULL when it is left out; onnx_need() fails then. */
onnx_value_t *onnx_input(const onnx_node_t *n, int index);
onnx_value_t *onnx_need(onnx_node_t *n, int index);
/* The elements of an input as integers; fails when they are not known. */
bool onnx_numbers(onnx_node_t *n, int index, int64_t *values, int room, int *count);
/* The same from an attribute or, when that is missing, an input; *count is -1 for neither. */
bool onnx_list(onnx_node_t *n, const char *name, int index, int64_t *values, int room, int *count);
/* A dimension of input `of`; negative ones count from the end. */
int onnx_axis(onnx_node_t *n, int of, const char *name, int64_t otherwise);
bool onnx_normal_axis(onnx_node_t *n, int64_t axis, int rank, int *dim);

/* Starts the operator over these inputs, which must be there. */
bool onnx_begin(onnx_node_t *n, const int *inputs, int count);
bool onnx_begin1(onnx_node_t *n, int input);
bool onnx_begin_all(onnx_node_t *n);
/* Element type of a result, once it is inferred. */
void onnx_result_dtype(onnx_node_t *n, int result, ap_dtype_t dtype);

int64_t onnx_elements(const operand_type_t *type);
bool onnx_dtype(int32_t data_type, ap_dtype_t *dtype);

/* A new value; NULL without memory. */
onnx_value_t *onnx_value(onnx_build_t *b, const char *name);
/* The value of a name, or NULL; and giving it one, which must not be taken. */
onnx_value_t *onnx_find(const onnx_build_t *b, const char *name);
xm_status_t onnx_bind(onnx_build_t *b, const char *name, const onnx_value_t *value);
/* The tensor that holds a value's data; inputs and parameters are made when they are first read. */
xm_status_t onnx_tensor(onnx_build_t *b, onnx_value_t *value, int *tensor);
/* Elements of an initialiser or constant, where it has few and they are at hand; else NULL. */
double *onnx_tensor_numbers(onnx_build_t *b, const Onnx__TensorProto *tensor,
                            const operand_type_t *type);
xm_status_t onnx_tensor_type(onnx_build_t *b, const Onnx__TensorProto *tensor, const char *name,
                             operand_type_t *type);
/* Reads one node: values for its results, an operator if it needs data. `caller`: see onnx_node_t.
 */
xm_status_t onnx_build_node(onnx_build_t *b, size_t index, const onnx_node_t *caller,
                            const Onnx__FunctionProto *function);

/* Gives results their names; those that there is no value for are free when the file declares them.
 */
xm_status_t onnx_bind_results(onnx_node_t *n, onnx_value_t *const *made, int results);
/* The function that a node calls, or NULL; and calling it. */
const Onnx__FunctionProto *onnx_find_function(const onnx_build_t *b, const Onnx__NodeProto *proto);
xm_status_t onnx_call_function(onnx_node_t *n, const Onnx__FunctionProto *function);

/* Reads a ValueInfo's type; a failure names the dimension. */
xm_status_t onnx_read_type(onnx_build_t *b, const Onnx__ValueInfoProto *info, operand_type_t *type);

/* Fills in n->op, or n->alias, or n->numbers with a type; false: there is no rule. */
bool onnx_rule(onnx_node_t *n);

/* A table of rules, each for one kind of operator. */
typedef struct {
    const char *op;
    void (*fill)(onnx_node_t *n);
} onnx_rule_t;

/* Applies the rule of the node's operator; false: the table has none. */
bool onnx_rule_of(onnx_node_t *n, const onnx_rule_t *rules, size_t count);
bool onnx_rule_movement(onnx_node_t *n);
bool onnx_rule_window(onnx_node_t *n);
/* Elements of result 0, when those of the inputs are known. */
void onnx_fold(onnx_node_t *n);
