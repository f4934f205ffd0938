/* ONNX models: PyTorch's exports, small models made here, and what is refused. */
#include <stdarg.h>
#include <stdio.h>

#include "planner/frontend.h"
#include "planner/passes/training.h"
#include "planner/frontend/onnx.h"
#include "planner/frontend/onnx/schema/onnx.pb-c.h"
#include "planner/frontend/onnx/wire.h"
#include "tests/planner/intra_op/tables_fixture.h"
#include "xm_test.h"

enum { MOST = 32 };

/* A model under construction; everything lives in it. */
typedef struct model {
    Onnx__ModelProto proto;
    Onnx__OperatorSetIdProto opset, *opsets[1];
    Onnx__GraphProto graph;
    Onnx__NodeProto node[MOST], *nodes[MOST];
    Onnx__AttributeProto attribute[MOST], *attributes[MOST][2];
    char *names[MOST][8];
    Onnx__TensorProto tensor[MOST], *tensors[MOST];
    int64_t dims[MOST][4], numbers[MOST][4];
    Onnx__ValueInfoProto info[MOST], *inputs[MOST], *outputs[MOST];
    Onnx__TypeProto type[MOST];
    Onnx__TypeProto__Tensor tensor_type[MOST];
    Onnx__TensorShapeProto shape[MOST];
    Onnx__TensorShapeProto__Dimension dim[MOST][4], *dim_list[MOST][4];
    int infos, attribute_count;
} model_t;

static void begin(model_t *m)
{
    memset(m, 0, sizeof(*m));
    onnx__model_proto__init(&m->proto);
    onnx__graph_proto__init(&m->graph);
    onnx__operator_set_id_proto__init(&m->opset);
    m->opset.has_version = 1;
    m->opset.version = 17;
    m->opsets[0] = &m->opset;
    m->proto.n_opset_import = 1;
    m->proto.opset_import = m->opsets;
    m->proto.graph = &m->graph;
    m->proto.has_ir_version = 1;
    m->proto.ir_version = 8;
    m->graph.name = (char *)"test";
    m->graph.node = m->nodes;
    m->graph.initializer = m->tensors;
    m->graph.input = m->inputs;
    m->graph.output = m->outputs;
}

/* Dimensions end at -1; -2 is one called "batch". */
static Onnx__ValueInfoProto *describe(model_t *m, const char *name, const int64_t *dims)
{
    int i = m->infos++, rank = 0;

    onnx__value_info_proto__init(&m->info[i]);
    onnx__type_proto__init(&m->type[i]);
    onnx__type_proto__tensor__init(&m->tensor_type[i]);
    onnx__tensor_shape_proto__init(&m->shape[i]);
    m->info[i].name = (char *)name;
    m->info[i].type = &m->type[i];
    m->type[i].value_case = ONNX__TYPE_PROTO__VALUE_TENSOR_TYPE;
    m->type[i].tensor_type = &m->tensor_type[i];
    m->tensor_type[i].has_elem_type = 1;
    m->tensor_type[i].elem_type = ONNX__TENSOR_PROTO__DATA_TYPE__FLOAT;
    m->tensor_type[i].shape = &m->shape[i];
    for (; dims[rank] != -1; ++rank) {
        onnx__tensor_shape_proto__dimension__init(&m->dim[i][rank]);
        m->dim_list[i][rank] = &m->dim[i][rank];
        if (dims[rank] == -2) {
            m->dim[i][rank].value_case = ONNX__TENSOR_SHAPE_PROTO__DIMENSION__VALUE_DIM_PARAM;
            m->dim[i][rank].dim_param = (char *)"batch";
        } else {
            m->dim[i][rank].value_case = ONNX__TENSOR_SHAPE_PROTO__DIMENSION__VALUE_DIM_VALUE;
            m->dim[i][rank].dim_value = dims[rank];
        }
    }
    m->shape[i].n_dim = (size_t)rank;
    m->shape[i].dim = m->dim_list[i];
    return &m->info[i];
}

static void input(model_t *m, const char *name, int64_t a, int64_t b)
{
    m->inputs[m->graph.n_input++] = describe(m, name, (const int64_t[]){a, b, -1});
}

static void output(model_t *m, const char *name, int64_t a, int64_t b)
{
    m->outputs[m->graph.n_output++] = describe(m, name, (const int64_t[]){a, b, -1});
}

static Onnx__TensorProto *weight(model_t *m, const char *name, int64_t a, int64_t b)
{
    size_t i = m->graph.n_initializer++;

    onnx__tensor_proto__init(&m->tensor[i]);
    m->tensors[i] = &m->tensor[i];
    m->tensor[i].name = (char *)name;
    m->tensor[i].has_data_type = 1;
    m->tensor[i].data_type = ONNX__TENSOR_PROTO__DATA_TYPE__FLOAT;
    m->dims[i][0] = a;
    m->dims[i][1] = b;
    m->tensor[i].n_dims = b < 0 ? 1 : 2;
    m->tensor[i].dims = m->dims[i];
    return &m->tensor[i];
}

/* A list of integers, as shapes are. */
static void integers(model_t *m, const char *name, int64_t a, int64_t b)
{
    Onnx__TensorProto *tensor = weight(m, name, b == INT64_MIN ? 1 : 2, -1);
    size_t i = m->graph.n_initializer - 1;

    tensor->data_type = ONNX__TENSOR_PROTO__DATA_TYPE__INT64;
    m->numbers[i][0] = a;
    m->numbers[i][1] = b;
    tensor->n_int64_data = b == INT64_MIN ? 1 : 2;
    tensor->int64_data = m->numbers[i];
}

static Onnx__NodeProto *node(model_t *m, const char *op, const char *result, const char *first,
                             const char *second)
{
    size_t i = m->graph.n_node++;
    Onnx__NodeProto *made = &m->node[i];

    onnx__node_proto__init(made);
    m->nodes[i] = made;
    made->op_type = (char *)op;
    m->names[i][0] = (char *)result;
    m->names[i][1] = (char *)first;
    m->names[i][2] = (char *)second;
    made->n_output = 1;
    made->output = &m->names[i][0];
    made->n_input = second != NULL ? 2 : 1;
    made->input = &m->names[i][1];
    made->attribute = m->attributes[i];
    return made;
}

static void attribute(model_t *m, Onnx__NodeProto *of, const char *name, int64_t value)
{
    Onnx__AttributeProto *made = &m->attribute[m->attribute_count++];

    onnx__attribute_proto__init(made);
    made->name = (char *)name;
    made->has_i = 1;
    made->i = value;
    of->attribute[of->n_attribute++] = made;
}

static xm_status_t read_with(const model_t *m, const ap_onnx_params_t *params, ap_graph_t **graph,
                             ap_frontend_notes_t **notes)
{
    size_t size = onnx__model_proto__get_packed_size(&m->proto);
    uint8_t *bytes = malloc(size);
    xm_status_t status;

    ck_assert_ptr_nonnull(bytes);
    (void)onnx__model_proto__pack(&m->proto, bytes);
    status = ap_onnx_from_bytes(bytes, size, "m.onnx", params, graph, notes);
    free(bytes);
    return status;
}

static ap_graph_t *read(const model_t *m)
{
    ap_graph_t *graph;

    ck_assert_xm_ok(read_with(m, NULL, &graph, NULL));
    return graph;
}

static const ap_op_t *op_named(const ap_graph_t *graph, const char *name)
{
    for (int o = 0; o < ap_graph_ops(graph); ++o) {
        if (strcmp(ap_graph_op(graph, o)->name, name) == 0) {
            return ap_graph_op(graph, o);
        }
    }
    ck_abort_msg("no operator %s", name);
}

/* x[batch,8] · w[8,6] + b, the batch bound by name. */
START_TEST(a_layer_is_read)
{
    static const char *const dims[] = {"batch=32"};
    ap_onnx_params_t params = AP_ONNX_PARAMS_INIT;
    ap_frontend_notes_t *notes;
    ap_graph_t *graph;
    static model_t m;

    begin(&m);
    input(&m, "x", -2, 8);
    (void)weight(&m, "w", 8, 6);
    (void)weight(&m, "b", 6, -1);
    (void)node(&m, "MatMul", "h", "x", "w");
    (void)node(&m, "Add", "y", "h", "b");
    (void)node(&m, "Relu", "z", "y", NULL);
    output(&m, "z", -2, 6);
    params.dims = dims;
    params.dim_count = 1;
    ck_assert_xm_ok(read_with(&m, &params, &graph, &notes));
    ck_assert_int_eq(ap_frontend_notes_count(notes), 0);
    ck_assert_int_eq(ap_graph_ops(graph), 3);
    ck_assert_double_eq(ap_graph_parameters(graph), 8 * 6 + 6);
    ck_assert_str_eq(op_named(graph, "h")->rule.text, "ab,bc->ac");
    ck_assert_double_eq_tol(op_named(graph, "h")->flops, 2.0 * 32 * 8 * 6, 1);
    ck_assert_str_eq(op_named(graph, "y")->rule.text, "ab,b->ab");
    ck_assert_xm_ok(ap_frontend_train(AP_OPTIMIZER_SGD, &graph));
    ck_assert_int_eq(op_named(graph, "new_w")->phase, AP_PHASE_UPDATE);
    ck_assert_int_eq(op_named(graph, "new_b")->phase, AP_PHASE_UPDATE);
    ap_frontend_notes_destroy(notes);
    ap_graph_destroy(graph);
    ck_assert_xm_fails(read_with(&m, NULL, &graph, NULL), XM_ERR_INVALID_ARGUMENT,
                       "dimension 0 of 'x' is called 'batch': give its size with --dim batch=SIZE");
}
END_TEST

/* Shape → Gather → Concat → Reshape, as PyTorch writes view(b, -1). */
START_TEST(shapes_are_folded)
{
    ap_graph_t *graph;
    static model_t m;
    Onnx__NodeProto *concat;

    begin(&m);
    input(&m, "x", 4, 24);
    (void)weight(&m, "w", 6, 6);
    integers(&m, "zero", 0, INT64_MIN);
    integers(&m, "rest", -1, 6);
    (void)node(&m, "Shape", "s", "x", NULL);
    (void)node(&m, "Gather", "b", "s", "zero");
    concat = node(&m, "Concat", "to", "b", "rest");
    attribute(&m, concat, "axis", 0);
    (void)node(&m, "Reshape", "r", "x", "to");
    (void)node(&m, "MatMul", "y", "r", "w");
    m.outputs[m.graph.n_output++] = describe(&m, "y", (const int64_t[]){4, 4, 6, -1});
    graph = read(&m);
    ck_assert_int_eq(ap_graph_ops(graph), 2);
    ck_assert_str_eq(op_named(graph, "r")->rule.text, "a(bc)->abc");
    ck_assert_int_eq(ap_graph_tensor(graph, op_named(graph, "y")->results[0])->shape.dims[1], 4);
    ap_graph_destroy(graph);
}
END_TEST

/* Of nothing, everything is known, but it does not become something. */
START_TEST(an_empty_list_is_not_reshaped_to_a_full_one)
{
    ap_graph_t *graph = NULL;
    static model_t m;

    begin(&m);
    input(&m, "x", 4, 24);
    (void)weight(&m, "empty", 0, -1);
    m.tensor[0].data_type = ONNX__TENSOR_PROTO__DATA_TYPE__INT64;
    integers(&m, "to", 4096, INT64_MIN);
    (void)node(&m, "Reshape", "list", "empty", "to");
    (void)node(&m, "Reshape", "y", "x", "list");
    ck_assert_xm_fails(read_with(&m, NULL, &graph, NULL), XM_ERR_PARSE,
                       "node 0 'list' (Reshape): 0 elements do not make 4096");
    ck_assert_ptr_null(graph);
}
END_TEST

START_TEST(unknown_operators_are_listed_and_whole)
{
    ap_frontend_notes_t *notes;
    ap_graph_t *graph;
    static model_t m;
    Onnx__NodeProto *strange;
    int count;

    begin(&m);
    input(&m, "x", 8, 8);
    (void)weight(&m, "w", 8, 8);
    (void)node(&m, "MatMul", "h", "x", "w");
    strange = node(&m, "Strange", "y", "h", NULL);
    strange->domain = (char *)"com.example";
    output(&m, "y", 8, 8);
    ck_assert_xm_ok(read_with(&m, NULL, &graph, &notes));
    ck_assert_int_eq(ap_frontend_notes_count(notes), 1);
    ck_assert_str_eq(ap_frontend_notes_get(notes, 0, &count), "Strange");
    ck_assert_int_eq(count, 1);
    for (int f = 0; f < op_named(graph, "y")->rule.factors; ++f) {
        ck_assert_int_eq(op_named(graph, "y")->rule.factor[f].kind, AP_FACTOR_NEED_REPLICATION);
    }
    ck_assert_xm_ok(ap_frontend_train(AP_OPTIMIZER_SGD, &graph));
    ap_frontend_notes_destroy(notes);
    ap_graph_destroy(graph);
    m.graph.n_output = 0;
    ck_assert_xm_fails(read_with(&m, NULL, &graph, &notes), XM_ERR_PARSE,
                       "node 1 'y' (Strange): there is no rule for this operator, and the file "
                       "does not tell the shape of its result 'y'");
    strange->n_output = 0; /* and one that makes nothing is nothing */
    ck_assert_xm_ok(read_with(&m, NULL, &graph, NULL));
    ck_assert_int_eq(ap_graph_ops(graph), 1);
    ap_graph_destroy(graph);
}
END_TEST

START_TEST(bad_models_are_refused_by_node)
{
    ap_graph_t *graph = NULL;
    static model_t m;

    begin(&m);
    input(&m, "x", 4, 8);
    (void)weight(&m, "w", 6, 6);
    (void)node(&m, "MatMul", "h", "x", "w");
    output(&m, "h", 4, 6);
    ck_assert_xm_fails(read_with(&m, NULL, &graph, NULL), XM_ERR_PARSE,
                       "m.onnx: node 0 'h' (MatMul): the inner dimensions of the operands differ");
    begin(&m); /* a circle */
    input(&m, "x", 4, 8);
    (void)node(&m, "Add", "a", "x", "b");
    (void)node(&m, "Relu", "b", "a", NULL);
    output(&m, "b", 4, 8);
    ck_assert_xm_fails(read_with(&m, NULL, &graph, NULL), XM_ERR_PARSE,
                       "node 0 'a' (Add): input 1, 'b', is made by this node or a later one");
    begin(&m); /* what the file says is not what comes out */
    input(&m, "x", 4, 8);
    (void)node(&m, "Relu", "y", "x", NULL);
    output(&m, "y", 4, 9);
    ck_assert_xm_fails(read_with(&m, NULL, &graph, NULL), XM_ERR_PARSE,
                       "the result 'y' is [4,8], the file says [4,9]");
    begin(&m);
    input(&m, "x", (int64_t)1 << 40, (int64_t)1 << 40);
    (void)node(&m, "Relu", "y", "x", NULL);
    ck_assert_xm_fails(read_with(&m, NULL, &graph, NULL), XM_ERR_PARSE, "larger than 2^62");
    begin(&m);
    input(&m, "x", 4, 8);
    (void)node(&m, "Relu", "x", "x", NULL);
    ck_assert_xm_fails(read_with(&m, NULL, &graph, NULL), XM_ERR_PARSE, "'x' is made twice");
    begin(&m);
    input(&m, "x", 4, 8);
    (void)node(&m, "Relu", "y", "z", NULL);
    ck_assert_xm_fails(read_with(&m, NULL, &graph, NULL), XM_ERR_PARSE,
                       "input 0, 'z', is made by nothing");
    begin(&m);
    ck_assert_xm_fails(read_with(&m, NULL, &graph, NULL), XM_ERR_PARSE, "no graph");
    ck_assert_xm_fails(ap_onnx_from_bytes("\x3a\x7f", 2, "cut.onnx", NULL, &graph, NULL),
                       XM_ERR_PARSE, "cut.onnx: byte 0: a field is longer than what holds it");
    ck_assert_ptr_null(graph);
}
END_TEST

/* A function with an attribute that the caller gives; and one that calls itself. */
START_TEST(functions_are_looked_through)
{
    Onnx__FunctionProto function = ONNX__FUNCTION_PROTO__INIT, *functions[] = {&function};
    Onnx__AttributeProto handed = ONNX__ATTRIBUTE_PROTO__INIT, *handed_list[] = {&handed};
    Onnx__NodeProto body = ONNX__NODE_PROTO__INIT, *bodies[] = {&body};
    char *in[] = {(char *)"in"}, *out[] = {(char *)"out"};
    Onnx__NodeProto *call;
    ap_graph_t *graph;
    static model_t m;

    begin(&m);
    input(&m, "x", 4, 8);
    (void)weight(&m, "w", 8, 6);
    (void)node(&m, "MatMul", "h", "x", "w");
    call = node(&m, "Normalise", "y", "h", NULL);
    call->domain = (char *)"mine";
    attribute(&m, call, "along", 0);
    output(&m, "y", 4, 6);
    function.name = (char *)"Normalise";
    function.domain = (char *)"mine";
    function.n_input = function.n_output = function.n_node = 1;
    function.input = in;
    function.output = out;
    function.node = bodies;
    body.op_type = (char *)"Softmax";
    body.n_input = body.n_output = body.n_attribute = 1;
    body.input = in;
    body.output = out;
    body.attribute = handed_list;
    handed.name = (char *)"axis";
    handed.ref_attr_name = (char *)"along";
    m.proto.n_functions = 1;
    m.proto.functions = functions;
    graph = read(&m);
    ck_assert_int_eq(op_named(graph, "y/out")->kind, AP_OP_SOFTMAX);
    ck_assert_int_eq(op_named(graph, "y/out")->rule.factor[0].kind, AP_FACTOR_NEED_REPLICATION);
    ck_assert_int_eq(op_named(graph, "y/out")->rule.factor[1].kind, AP_FACTOR_PASS_THROUGH);
    ap_graph_destroy(graph);
    body.op_type = (char *)"Normalise";
    body.domain = (char *)"mine";
    ck_assert_xm_fails(read_with(&m, NULL, &graph, NULL), XM_ERR_PARSE,
                       "functions call each other deeper than 16, or in a circle");
}
END_TEST

/* Large weights are gone before the model is parsed, and everything else is still there. */
START_TEST(weights_are_left_out)
{
    const size_t large = (size_t)8 << 20;
    uint8_t *data = calloc(1, large), *shrunk, *bytes;
    Onnx__TensorProto *tensor;
    size_t size, length;
    ap_graph_t *graph;
    static model_t m;

    ck_assert_ptr_nonnull(data);
    begin(&m);
    input(&m, "x", 4, 1024);
    tensor = weight(&m, "w", 1024, 2048);
    tensor->has_raw_data = 1;
    tensor->raw_data.data = data;
    tensor->raw_data.len = large;
    (void)node(&m, "MatMul", "y", "x", "w");
    output(&m, "y", 4, 2048);
    size = onnx__model_proto__get_packed_size(&m.proto);
    bytes = malloc(size);
    ck_assert_ptr_nonnull(bytes);
    (void)onnx__model_proto__pack(&m.proto, bytes);
    ck_assert_xm_ok(onnx_wire_shrink(bytes, size, "m.onnx", &shrunk, &length));
    ck_assert_uint_gt(size, large);
    ck_assert_uint_lt(length, 1000);
    ck_assert_xm_ok(ap_onnx_from_bytes(bytes, size, "m.onnx", NULL, &graph, NULL));
    ck_assert_double_eq(ap_graph_parameters(graph), 1024 * 2048);
    ap_graph_destroy(graph);
    free(shrunk);
    free(bytes);
    free(data);
}
END_TEST

static ap_graph_t *load_fixture(const char *file, const char *const *dims, size_t count)
{
    ap_frontend_params_t params = AP_FRONTEND_PARAMS_INIT;
    ap_frontend_notes_t *notes;
    char path[128];
    ap_graph_t *graph;

    (void)snprintf(path, sizeof(path), "tests/fixtures/onnx/%s.onnx", file);
    params.dims = dims;
    params.dim_count = count;
    ck_assert_xm_ok(ap_frontend_load(xm_test_source_path(path), &params, &graph, &notes));
    ck_assert_msg(ap_frontend_notes_count(notes) == 0, "%s has operators without a rule", file);
    ap_frontend_notes_destroy(notes);
    return graph;
}

/* The best sharding of the derived training step, with Alpa's constants. */
static double optimum(const ap_graph_t *graph, int a, int b, char *spec, const char *tensor)
{
    const int shape[] = {a, b};
    ap_alpa_params_t alpa = AP_ALPA_PARAMS_INIT;
    ap_shard_params_t params = AP_SHARD_PARAMS_INIT;
    ap_intra_op_result_t result;
    ap_cost_model_t *model;
    ap_cost_mesh_t *mesh;
    ap_shard_problem_t *problem;
    int *choice;

    alpa.beta[0] = alpa.beta[1] = 1;
    ck_assert_xm_ok(ap_cost_model_create_alpa(&alpa, &model));
    ck_assert_xm_ok(ap_cost_mesh_create(model, a, b, shape, 2, &mesh));
    params.graph = graph;
    params.mesh = mesh;
    ck_assert_xm_ok(ap_shard_problem_create(&params, &problem));
    choice = tables_solve(problem, &result);
    for (int t = 0; t < ap_graph_tensors(graph) && tensor != NULL; ++t) {
        if (strcmp(ap_graph_tensor(graph, t)->name, tensor) == 0) {
            (void)ap_spec_format(ap_shard_problem_spec(problem, choice, t),
                                 ap_graph_tensor(graph, t)->shape.rank, spec, AP_SPEC_TEXT);
        }
    }
    free(choice);
    ap_shard_problem_destroy(problem);
    ap_cost_mesh_destroy(mesh);
    ap_cost_model_destroy(model);
    return result.objective;
}

/* The golden costs of Alpa's ILP, of the same models exported by PyTorch. */
START_TEST(objectives_are_alpas)
{
    static const struct {
        const char *file;
        double objective;
    } golden[] = {{"mlp2-b1024-h128", 196614.02}, {"mlp2-b128-h1024", 786437.00}};

    for (size_t i = 0; i < sizeof(golden) / sizeof(golden[0]); ++i) {
        ap_graph_t *graph = load_fixture(golden[i].file, NULL, 0);

        ck_assert_xm_ok(ap_frontend_train(AP_OPTIMIZER_SGD, &graph));
        ck_assert_double_eq_tol(optimum(graph, 4, 1, NULL, NULL), golden[i].objective,
                                1e-3 * golden[i].objective);
        ap_graph_destroy(graph);
    }
}
END_TEST

static double einsum_flops(const ap_graph_t *graph)
{
    double flops = 0;

    for (int o = 0; o < ap_graph_ops(graph); ++o) {
        const ap_op_t *op = ap_graph_op(graph, o);

        flops += op->kind == AP_OP_EINSUM && op->phase == AP_PHASE_FORWARD ? op->flops : 0;
    }
    return flops;
}

/* With and without symbolic dimensions, by either exporter, PyTorch's block is one and the same. */
START_TEST(a_block_is_the_same_however_exported)
{
    static const char *const dims[] = {"batch=8", "sequence=8"};
    const double b = 8, s = 8, h = 128;
    ap_graph_t *fixed = load_fixture("block", NULL, 0);
    ap_graph_t *bound = load_fixture("block-dynamic", dims, 2);
    ap_graph_t *dynamo = load_fixture("block-dynamo", NULL, 0);
    double expected = 24 * b * s * h * h + 4 * b * s * s * h;

    ck_assert_double_eq_tol(einsum_flops(fixed), expected, 1);
    ck_assert_double_eq_tol(einsum_flops(bound), expected, 1);
    ck_assert_double_eq(ap_graph_parameters(fixed), 12 * h * h + 13 * h);
    ck_assert_double_eq(ap_graph_parameters(bound), 12 * h * h + 13 * h);
    /* The newer exporter: weights are constants, GELU a function. */
    ck_assert_double_eq_tol(einsum_flops(dynamo), expected, 1);
    ck_assert_double_eq(ap_graph_parameters(dynamo), 12 * h * h + 13 * h);
    ap_graph_destroy(dynamo);
    ap_graph_destroy(bound);
    ap_graph_destroy(fixed);
}
END_TEST

/* All PyTorch exports: their parameters, a training step that updates each, a sharding. */
START_TEST(exports_of_pytorch_are_sharded)
{
    static const struct {
        const char *file;
        double parameters;
    } files[] = {{"gpt2layers", 2 * 512 * 128 + 16 * 128 + 2 * (12 * 128 * 128 + 13 * 128) + 256},
                 {"convnet", 32 * 4 * 9 + 64 + 32 * 9 + 32 + 64 + 64 * 64 + 64 + 256 * 16 + 16}};

    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); ++i) {
        ap_graph_t *graph = load_fixture(files[i].file, NULL, 0);
        int parameters = 0, updates = 0;

        ck_assert_double_eq(ap_graph_parameters(graph), files[i].parameters);
        ck_assert_xm_ok(ap_frontend_train(AP_OPTIMIZER_SGD, &graph));
        for (int t = 0; t < ap_graph_tensors(graph); ++t) {
            parameters += ap_graph_tensor(graph, t)->kind == AP_TENSOR_PARAMETER;
        }
        for (int o = 0; o < ap_graph_ops(graph); ++o) {
            updates += ap_graph_op(graph, o)->phase == AP_PHASE_UPDATE;
        }
        ck_assert_int_eq(updates, parameters);
        ck_assert_double_lt(optimum(graph, 1, 4, NULL, NULL), AP_COST_INFINITE);
        ap_graph_destroy(graph);
    }
}
END_TEST

/* One node for each way to use an operator; the file says what ONNX's own inference finds, and the
 * front end refuses to differ. Everything has a rule. */
START_TEST(shapes_are_those_of_onnx)
{
    ap_graph_t *graph = load_fixture("operators", NULL, 0);
    bool cut = false;

    ck_assert_int_gt(ap_graph_ops(graph), 120);
    for (int o = 0; o < ap_graph_ops(graph); ++o) {
        const ap_op_t *op = ap_graph_op(graph, o);

        cut = cut || op->rule.factor[0].kind != AP_FACTOR_NEED_REPLICATION;
        ck_assert_double_ge(op->flops, 0);
    }
    ck_assert(cut);
    ap_graph_destroy(graph);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("frontend_onnx");
    TCase *tcase = tcase_create("all");

    tcase_set_timeout(tcase, 60);
    tcase_add_test(tcase, a_layer_is_read);
    tcase_add_test(tcase, shapes_are_folded);
    tcase_add_test(tcase, an_empty_list_is_not_reshaped_to_a_full_one);
    tcase_add_test(tcase, unknown_operators_are_listed_and_whole);
    tcase_add_test(tcase, bad_models_are_refused_by_node);
    tcase_add_test(tcase, functions_are_looked_through);
    tcase_add_test(tcase, weights_are_left_out);
    tcase_add_test(tcase, objectives_are_alpas);
    tcase_add_test(tcase, a_block_is_the_same_however_exported);
    tcase_add_test(tcase, exports_of_pytorch_are_sharded);
    tcase_add_test(tcase, shapes_are_those_of_onnx);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
