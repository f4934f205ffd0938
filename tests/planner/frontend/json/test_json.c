/* SPDX-License-Identifier: Apache-2.0 */
/* JSON graphs: what is read, what is refused and where, and that writing loses nothing. */
#include <stdio.h>

#include "planner/frontend.h"
#include "planner/passes/training.h"
#include "planner/frontend/json.h"
#include "tests/planner/intra_op/tables_fixture.h"
#include "xm_test.h"

static ap_graph_t *load(const char *model)
{
    ap_frontend_params_t params = AP_FRONTEND_PARAMS_INIT;
    ap_graph_t *graph;

    ck_assert_xm_ok(ap_frontend_load(model, &params, &graph, NULL));
    return graph;
}

static ap_graph_t *load_fixture(const char *file)
{
    char path[128];

    (void)snprintf(path, sizeof(path), "tests/fixtures/%s", file);
    return load(xm_test_source_path(path));
}

static ap_graph_t *read_back(const ap_graph_t *graph)
{
    char *text = ap_json_text(graph);
    ap_graph_t *again;

    ck_assert_ptr_nonnull(text);
    ck_assert_xm_ok(ap_json_from_text(text, strlen(text), "text", &again));
    free(text);
    return again;
}

/* Optimum under Alpa's constants with beta 1 on four devices. */
static double optimum(const ap_graph_t *graph)
{
    static const int shape[] = {1, 4};
    ap_alpa_params_t alpa = AP_ALPA_PARAMS_INIT;
    ap_shard_params_t params = AP_SHARD_PARAMS_INIT;
    ap_intra_op_result_t result;
    ap_cost_model_t *model;
    ap_cost_mesh_t *mesh;
    ap_shard_problem_t *problem;

    alpa.beta[0] = alpa.beta[1] = 1;
    ck_assert_xm_ok(ap_cost_model_create_alpa(&alpa, &model));
    ck_assert_xm_ok(ap_cost_mesh_create(model, 1, 4, shape, 2, &mesh));
    params.graph = graph;
    params.mesh = mesh;
    ck_assert_xm_ok(ap_shard_problem_create(&params, &problem));
    free(tables_solve(problem, &result));
    ap_shard_problem_destroy(problem);
    ap_cost_mesh_destroy(mesh);
    ap_cost_model_destroy(model);
    return result.objective;
}

static void assert_same_op(const ap_op_t *a, const ap_op_t *b)
{
    ck_assert_int_eq(a->kind, b->kind);
    ck_assert_int_eq(a->phase, b->phase);
    ck_assert_int_eq(a->layer, b->layer);
    ck_assert_str_eq(a->rule.text, b->rule.text);
    ck_assert_int_eq(a->rule.factors, b->rule.factors);
    for (int f = 0; f < a->rule.factors; ++f) {
        ck_assert_int_eq(a->rule.factor[f].kind, b->rule.factor[f].kind);
        ck_assert_int_eq(a->rule.factor[f].size, b->rule.factor[f].size);
    }
    ck_assert_double_eq_tol(a->flops, b->flops, 1e-9 * a->flops + 1e-9);
    ck_assert_double_eq(a->repeat, b->repeat);
    ck_assert_int_eq(a->linear, b->linear);
    ck_assert_mem_eq(a->touched, b->touched, sizeof(a->touched));
    ck_assert_int_eq(a->forward, b->forward);
    ck_assert_str_eq(a->label != NULL ? a->label : "(none)",
                     b->label != NULL ? b->label : "(none)");
    for (int r = 0; r < a->result_count && a->forward >= 0; ++r) {
        ck_assert_int_eq(a->differentiates[r], b->differentiates[r]);
    }
}

static void assert_same(const ap_graph_t *a, const ap_graph_t *b)
{
    bool left, right;

    ck_assert_int_eq(ap_graph_ops(a), ap_graph_ops(b));
    ck_assert_int_eq(ap_graph_tensors(a), ap_graph_tensors(b));
    ck_assert_int_eq(ap_graph_layers(a), ap_graph_layers(b));
    ck_assert_double_eq(ap_graph_parameters(a), ap_graph_parameters(b));
    ck_assert_int_eq(ap_graph_loss(a, &left) < 0, ap_graph_loss(b, &right) < 0);
    ck_assert_int_eq(left, right);
    for (int o = 0; o < ap_graph_ops(a); ++o) {
        assert_same_op(ap_graph_op(a, o), ap_graph_op(b, o));
    }
    for (int layer = 0; layer < ap_graph_layers(a); ++layer) {
        ck_assert_uint_eq(ap_graph_layer_hash(a, layer), ap_graph_layer_hash(b, layer));
    }
}

/* Forward graphs by name, whole steps from HLO with loops and aliases, and our own expansion. */
START_TEST(what_is_written_is_read_back)
{
    static const char *const fixtures[] = {"hlo/mlp2-b1024-h128.hlo",
                                           "hlo/scan12-b1024-h128.hlo",
                                           "hlo/transformer1.before_optimizations.txt",
                                           "hlo/convnet.hlo",
                                           "hlo/moe.hlo",
                                           "graph/mlp2.json",
                                           "graph/kinds.json"};
    static const char *const models[] = {"mlp3", "gpt-125m", "moe-380m", "unet-470m",
                                         "wresnet-250m"};
    ap_graph_t *graph, *again;

    for (size_t i = 0; i < sizeof(fixtures) / sizeof(fixtures[0]); ++i) {
        graph = load_fixture(fixtures[i]);
        again = read_back(graph);
        assert_same(graph, again);
        ap_graph_destroy(again);
        ap_graph_destroy(graph);
    }
    for (size_t i = 0; i < sizeof(models) / sizeof(models[0]); ++i) {
        graph = load(models[i]);
        ck_assert_xm_ok(ap_frontend_train(AP_OPTIMIZER_ADAM, &graph));
        again = read_back(graph);
        assert_same(graph, again);
        ap_graph_destroy(again);
        ap_graph_destroy(graph);
    }
}
END_TEST

/* The way through JSON does not change what is best. */
START_TEST(optimum_survives)
{
    static const struct {
        const char *fixture;
        double objective; /* what Alpa's ILP prints, or 0 */
    } cases[] = {{"hlo/mlp2-b128-h1024.hlo", 786437.00},
                 {"graph/mlp2.json", 196614.02},
                 {"hlo/transformer1.hlo", 0},
                 {"hlo/moe.hlo", 0}};

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); ++i) {
        ap_graph_t *graph = load_fixture(cases[i].fixture), *again;
        double before;

        ck_assert_xm_ok(ap_frontend_train(AP_OPTIMIZER_SGD, &graph));
        again = read_back(graph);
        before = optimum(graph);
        ck_assert_double_eq_tol(optimum(again), before, 1e-9 * before);
        if (cases[i].objective > 0) {
            ck_assert_double_eq_tol(before, cases[i].objective, 1e-3 * cases[i].objective);
        }
        ap_graph_destroy(again);
        ap_graph_destroy(graph);
    }
}
END_TEST

static const ap_op_t *op_named(const ap_graph_t *graph, const char *name)
{
    for (int o = 0; o < ap_graph_ops(graph); ++o) {
        if (strcmp(ap_graph_op(graph, o)->name, name) == 0) {
            return ap_graph_op(graph, o);
        }
    }
    ck_abort_msg("no operator %s", name);
}

START_TEST(rules_follow_from_kinds)
{
    static const struct {
        const char *op, *rule;
        double flops;
    } expected[] = {{"conv", "a(bc)dd,(be)cff->a(be)dd", 2.0 * 16 * 8 * 8 * 8 * 2 * 3 * 3},
                    {"biased", "abcd,b->abcd", 16.0 * 8 * 8 * 8},
                    {"bn", "abcc,b,b->abcc", 8.0 * 16 * 8 * 8 * 8},
                    {"pool", "abcc->abdd", 4.0 * 16 * 8 * 4 * 4},
                    {"mean", "abcd->ab", 16.0 * 8 * 4 * 4},
                    {"words", "ab,cd->abd", 0},
                    {"norm", "abc,c,c->abc", 8.0 * 16 * 6 * 8},
                    {"qkv", "abc,cd->abd", 2.0 * 16 * 6 * 24 * 8},
                    {"keys", "abc->acb", 0},
                    {"softmax", "abc->abc", 6.0 * 16 * 6 * 6},
                    {"losses", "abc,ab->ab", 4.0 * 16 * 6 * 16},
                    {"loss", "ab->", 16.0 * 6}};
    ap_graph_t *graph = load_fixture("graph/kinds.json");

    for (size_t i = 0; i < sizeof(expected) / sizeof(expected[0]); ++i) {
        const ap_op_t *op = op_named(graph, expected[i].op);

        ck_assert_str_eq(op->rule.text, expected[i].rule);
        ck_assert_double_eq_tol(op->flops, expected[i].flops, 1e-6 * expected[i].flops + 1e-9);
    }
    /* All of it can be trained: every parameter gets its update. */
    ck_assert_xm_ok(ap_frontend_train(AP_OPTIMIZER_SGD, &graph));
    for (int t = 0; t < ap_graph_tensors(graph); ++t) {
        char name[64];

        if (ap_graph_tensor(graph, t)->kind == AP_TENSOR_PARAMETER) {
            (void)snprintf(name, sizeof(name), "new_%s", ap_graph_tensor(graph, t)->name);
            ck_assert_int_eq(op_named(graph, name)->phase, AP_PHASE_UPDATE);
        }
    }
    ap_graph_destroy(graph);
}
END_TEST

/* Names in any script, with control characters, and too long for the file: cut between characters,
 * and told apart. */
START_TEST(names_survive)
{
    static const ap_shape_t shape = {1, {8}};
    static const char *const names[] = {("gewichte.gr\xc3\xb6\xc3\x9f"
                                         "e"),
                                        "\xe6\x9d\x83\xe9\x87\x8d\xf0\x9f\x98\x80",
                                        "line\nand\ttab \"quoted\" \\ \x01", "bad\xff\xc3("};
    ap_graph_t *graph, *again;
    char longest[402] = "x";
    ap_op_params_t op = AP_OP_PARAMS_INIT;
    int id, result;

    for (int i = 0; i < 200; ++i) {
        (void)strcat(longest, "\xc3\xa9");
    }
    ck_assert_xm_ok(ap_graph_create("mod\xc3\xa8le", &graph));
    for (int i = 0; i < 4; ++i) {
        ck_assert_xm_ok(
            ap_graph_add_tensor(graph, names[i], AP_TENSOR_INPUT, &shape, AP_DTYPE_F32, &id));
    }
    for (int i = 0; i < 2; ++i) { /* the same twice */
        ck_assert_xm_ok(
            ap_graph_add_tensor(graph, longest, AP_TENSOR_INPUT, &shape, AP_DTYPE_F32, &id));
    }
    op.kind = AP_OP_ELEMENTWISE;
    op.name = "\xce\xa3";
    op.rule = "a->a";
    op.operand_count = 1;
    op.operands = (const int[]){id};
    ck_assert_xm_ok(ap_graph_add_op(graph, &op, &result));
    ck_assert_xm_ok(ap_graph_finish(graph));
    again = read_back(graph);
    ck_assert_str_eq(ap_graph_name(again), "mod\xc3\xa8le");
    for (int i = 0; i < 3; ++i) {
        ck_assert_str_eq(ap_graph_tensor(again, i)->name, names[i]);
    }
    ck_assert_str_eq(ap_graph_tensor(again, 3)->name, "bad?\?(");
    ck_assert_uint_eq(strlen(ap_graph_tensor(again, 4)->name), 179); /* x and 89 of them */
    ck_assert_int_eq(memcmp(ap_graph_tensor(again, 4)->name, longest, 179), 0);
    ck_assert_str_eq(ap_graph_tensor(again, 5)->name + 179, "~2");
    ck_assert_str_eq(ap_graph_op(again, 0)->name, "\xce\xa3");
    ap_graph_destroy(again);
    ap_graph_destroy(graph);
}
END_TEST

#define HEAD "{\"format\": \"autopar-graph\", \"version\": 1, \"name\": \"g\",\n"
#define TENSORS                                                                                    \
    "\"tensors\": [{\"name\": \"x\", \"kind\": \"input\", \"shape\": [4, 8]},\n"                   \
    " {\"name\": \"w\", \"kind\": \"parameter\", \"shape\": [8, 8]}],\n"

static const struct {
    const char *text, *sentence;
} refused[] = {
    {"", "line 1, column 0"},
    {"[]", "line 1, column 1: the document is no object"},
    {HEAD "\"tensors\": [", "line 2"},
    {"{\"format\": \"other\"}", "line 1, column 12: the format is 'other'"},
    {"{\"format\": \"autopar-graph\",\n \"version\": 7}", "line 2, column 13: version 7"},
    {HEAD "\"opps\": []}", "did you mean 'ops'?"},
    {HEAD "\"tensors\": [], \"ops\": 3}", "line 2, column 23: 'ops' must be a list"},
    {HEAD "\"tensors\": [{\"name\": \"x\", \"kind\": \"input\", \"shape\": [4, 0]}], \"ops\": []}",
     "line 2, column 57: entry 1 of 'shape' is no integer in 1 to"},
    {HEAD "\"tensors\": [{\"name\": \"x\", \"kind\": \"input\",\n"
          "\"shape\": [4294967296, 4294967296]}], \"ops\": []}",
     "line 3, column 10: 'shape' has more than 2^48 elements"},
    {HEAD "\"tensors\": [{\"name\": \"x\", \"kind\": \"weight\", \"shape\": []}], \"ops\": []}",
     "unknown kind 'weight'"},
    {HEAD "\"tensors\": [{\"name\": \"x\", \"kind\": \"input\", \"shape\": [], \"dtype\": "
          "\"float31\"}], \"ops\": []}",
     "did you mean float32?"},
    {HEAD TENSORS "\"ops\": [{\"name\": \"a\", \"kind\": \"matmul\", \"operands\": [\"x\",\n"
                  " \"v\"]}]}",
     "line 5, column 2: there is no tensor 'v'"},
    {HEAD TENSORS "\"ops\": [{\"name\": \"a\", \"kind\": \"elementwise\", \"operands\": [\"b\"]},\n"
                  " {\"name\": \"b\", \"kind\": \"elementwise\", \"operands\": [\"a\"]}]}",
     "line 4, column 59: 'b' is made by a later operator"},
    {HEAD TENSORS "\"ops\": [{\"name\": \"a\", \"kind\": \"elementwise\", \"operands\": [\"a\"]}]}",
     "or by this one"},
    {HEAD TENSORS "\"ops\": [{\"name\": \"x\", \"kind\": \"elementwise\", \"operands\": [\"w\"]}]}",
     "line 4, column 9: the name 'x' is taken"},
    {HEAD TENSORS "\"ops\": [{\"name\": \"a\", \"kind\": \"matmull\", \"operands\": [\"x\"]}]}",
     "line 4, column 31: unknown kind of operator without a rule 'matmull'; did you mean matmul?"},
    {HEAD TENSORS
     "\"ops\": [{\"name\": \"a\", \"kind\": \"matmul\", \"operands\": [\"w\", \"x\"]}]}",
     "line 4, column 9: operator 'a': the inner dimensions of the operands differ"},
    {HEAD TENSORS
     "\"ops\": [{\"name\": \"a\", \"kind\": \"einsum\", \"operands\": [\"x\", \"w\"],\n"
     " \"rule\": \"ab,cd->ab\"}, {\"name\": \"b\", \"kind\": \"einsum\",\n"
     " \"operands\": [\"x\", \"w\"], \"rule\": \"ab,ac->bc\"}]}",
     "line 6, column 34: rule 'ab,ac->bc': operand 1 dimension 0 is 8"},
    {HEAD TENSORS
     "\"ops\": [{\"name\": \"a\", \"kind\": \"einsum\", \"operands\": [\"x\", \"w\"],\n"
     " \"rule\": \"ab,bc->ac\", \"flops\": -1}]}",
     "line 5, column 32: 'flops' is -1"},
    {HEAD TENSORS
     "\"ops\": [{\"name\": \"a\", \"kind\": \"einsum\", \"operands\": [\"x\", \"w\"],\n"
     " \"rule\": \"ab,bc->ac\", \"flops\": NaN}]}",
     "line 5"},
    {HEAD TENSORS
     "\"ops\": [{\"name\": \"a\", \"kind\": \"einsum\", \"operands\": [\"x\", \"w\"],\n"
     " \"rule\": \"ab,bc->ac\", \"flops\": 1e999}]}",
     "line 5"},
    {HEAD TENSORS
     "\"ops\": [{\"name\": \"a\", \"kind\": \"custom\", \"operands\": [\"x\"],\n"
     " \"rule\": \"ab->(ac)(bd)\", \"sizes\": {\"c\": 4611686018427387904, \"d\": 1}}]}",
     "larger than 2^63"},
    {HEAD TENSORS "\"ops\": [{\"name\": \"a\", \"kind\": \"conv\", \"operands\": [\"x\", \"w\"]}]}",
     "a convolution needs a weight with a window"},
    {HEAD TENSORS "\"ops\": [{\"name\": \"a\", \"kind\": \"reshape\", \"operands\": [\"x\"], "
                  "\"shape\": [5, 7]}]}",
     "32 elements do not make 35"},
    {HEAD TENSORS "\"ops\": [{\"name\": \"a\", \"kind\": \"custom\", \"operands\": [\"x\"]}]}",
     "needs 'results'"},
    {HEAD TENSORS "\"ops\": [{\"name\": \"a\", \"kind\": \"elementwise\", \"operands\": [\"x\"],\n"
                  " \"repeat\": 0}]}",
     "line 5, column 12: an operator runs at least once, not 0 times"},
    {HEAD TENSORS "\"ops\": [], \"loss\": {\"tensor\": \"x\"}}", "line 4, column 20: the loss 'x'"},
    {HEAD TENSORS "\"ops\": []}", "no operators"},
    {HEAD TENSORS "\"ops\": [{\"name\": \"a\", \"kind\": \"elementwise\", \"operands\": [\"x\"], "
                  "\"layer\": 3}]}",
     "in layer 3 after layer 0"},
    {HEAD TENSORS
     "\"ops\": [{\"name\": \"a\", \"kind\": \"elementwise\", \"operands\": [\"x\"]}],\n"
     "\"aliases\": {\"a\": \"w\"}}",
     "line 5, column 18: tensors 'a' and 'w' differ in shape"},
};

/* A graph by hand names types as the commands do; sizes are those of the long names. */
START_TEST(short_names_of_types_are_taken)
{
    static const struct {
        const char *name;
        int bytes;
    } types[] = {{"bf16", 2}, {"f16", 2}, {"f32", 4}, {"fp8_e4m3", 1}, {"fp8_e5m2", 1}, {"i64", 8}};

    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); ++i) {
        char text[512];
        ap_graph_t *graph;

        (void)snprintf(text, sizeof(text),
                       HEAD "\"tensors\": [{\"name\": \"x\", \"kind\": \"input\", \"shape\": [4], "
                            "\"dtype\": \"%s\"}], \"ops\": [{\"name\": \"a\", \"kind\": "
                            "\"elementwise\", \"operands\": [\"x\"]}]}",
                       types[i].name);
        ck_assert_xm_ok(ap_json_from_text(text, strlen(text), "g.json", &graph));
        ck_assert_int_eq(ap_dtype_bytes(ap_graph_tensor(graph, 0)->dtype), types[i].bytes);
        ap_graph_destroy(graph);
    }
}
END_TEST

START_TEST(refusals_tell_the_place)
{
    ap_graph_t *graph = NULL;
    xm_status_t status =
        ap_json_from_text(refused[_i].text, strlen(refused[_i].text), "g.json", &graph);

    ck_assert_msg(xm_status_is_caller(status), "%s", xm_status_string(status));
    ck_assert_msg(strncmp(xm_last_error(), "g.json: line ", 13) == 0 &&
                      strstr(xm_last_error(), refused[_i].sentence) != NULL,
                  "'%s' lacks '%s'", xm_last_error(), refused[_i].sentence);
    ck_assert_ptr_null(graph);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("frontend_json");
    TCase *tcase = tcase_create("all");

    tcase_set_timeout(tcase, 60);
    tcase_add_test(tcase, what_is_written_is_read_back);
    tcase_add_test(tcase, optimum_survives);
    tcase_add_test(tcase, names_survive);
    tcase_add_test(tcase, rules_follow_from_kinds);
    tcase_add_test(tcase, short_names_of_types_are_taken);
    tcase_add_loop_test(tcase, refusals_tell_the_place, 0,
                        (int)(sizeof(refused) / sizeof(refused[0])));
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
