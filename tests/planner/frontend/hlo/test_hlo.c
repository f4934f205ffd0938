/* SPDX-License-Identifier: Apache-2.0 */
/* Rules of HLO operators from small texts, control flow, parameters, and refusals. */
#include <stdio.h>

#include "planner/frontend/hlo/hlo.h"
#include "xm_test.h"

static const char add_computation[] = "%add (a: f32[], b: f32[]) -> f32[] {\n"
                                      "  %a = f32[] parameter(0)\n"
                                      "  %b = f32[] parameter(1)\n"
                                      "  ROOT %sum = f32[] add(%a, %b)\n"
                                      "}\n"
                                      "swap {\n"
                                      "  p = f32[] parameter(0)\n"
                                      "  q = f32[] parameter(1)\n"
                                      "  ROOT s = f32[] subtract(q, p)\n"
                                      "}\n";

static xm_status_t read_text(const char *text, ap_graph_t **graph, ap_frontend_notes_t **notes)
{
    return ap_hlo_from_text(text, strlen(text), "test", graph, notes);
}

/* The module whose entry holds `lines`. */
static xm_status_t read_lines(const char *lines, ap_graph_t **graph, ap_frontend_notes_t **notes)
{
    char text[4096];
    int length = snprintf(text, sizeof(text), "HloModule m\n\n%sENTRY main {\n%s}\n",
                          add_computation, lines);

    ck_assert_int_lt(length, (int)sizeof(text));
    return read_text(text, graph, notes);
}

/* Factors of one kind, as letters. */
static const char *letters(const ap_sharding_rule_t *rule, ap_factor_kind_t kind, char *buffer)
{
    size_t length = 0;

    for (int f = 0; f < rule->factors; ++f) {
        if (rule->factor[f].kind == kind) {
            buffer[length++] = rule->factor[f].letter;
        }
    }
    buffer[length] = '\0';
    return buffer;
}

/* x is f32[4,6,8], y f32[4,6,8], w f32[8,10], i s32[4,6], v f32[16], g f32[]. */
static const char inputs[] = "  x = f32[4,6,8]{2,1,0} parameter(0)\n"
                             "  y = f32[4,6,8]{2,1,0:T(8,128)} parameter(1)\n"
                             "  w = f32[8,10]{1,0} parameter(2)\n"
                             "  i = s32[4,6]{1,0} parameter(3)\n"
                             "  v = f32[16]{0} parameter(4)\n"
                             "  g = f32[] parameter(5)\n"
                             "  m = f32[2,9,9,12] parameter(6)\n"
                             "  one = f32[] constant(1)\n"
                             "  zero = s32[] constant(0)\n";

static const struct {
    const char *line, *rule, *whole, *reduced;
} rules[] = {
    {"add(x, y)", "abc,abc->abc", "", ""},
    {"multiply(x, x)", "abc->abc", "", ""},
    {"select(p, x, y)", "abc,abc,abc->abc", "", ""},
    {"clamp(g, x, g)", ",abc->abc", "", ""},
    {"broadcast(v), dimensions={1}", "a->bac", "", ""},
    {"transpose(x), dimensions={2,0,1}", "abc->cab", "", ""},
    {"reshape(x)", "abc->(ab)c", "", ""},
    {"reshape(x), metadata={op_name=\"a(b)\"}", "a(bc)d->abcd", "", ""},
    {"reshape(x), a=b", "abc->acb", "bc", ""},
    {"dot(x, w), lhs_contracting_dims={2}, rhs_contracting_dims={0}", "abc,cd->abd", "", "c"},
    {"dot(x, y), lhs_batch_dims={0}, rhs_batch_dims={0}, lhs_contracting_dims={2}, "
     "rhs_contracting_dims={2}",
     "abc,adc->abd", "", "c"},
    {"reduce(x, one), dimensions={0,2}, to_apply=%add", "abc->b", "", "ac"},
    {"reduce(x, one), dimensions={1}, to_apply=swap", "abc->ac", "b", ""},
    {"slice(x), slice={[0:4], [1:4], [0:8]}", "abc->adc", "bd", ""},
    {"pad(x, g), padding=0_0x1_1x0_0", "abc->adc", "bd", ""},
    {"concatenate(x, y), dimensions={1}", "abc,abc->adc", "bd", ""},
    {"dynamic-slice(x, zero, zero, zero), dynamic_slice_sizes={4,1,8}", "abc->adc", "bd", ""},
    {"dynamic-update-slice(x, u, zero, zero, zero)", "abc,adc->abc", "bd", ""},
    {"gather(w, i), offset_dims={2}, collapsed_slice_dims={0}, start_index_map={0}, "
     "index_vector_dim=2, slice_sizes={1,10}",
     "ab,cd->cdb", "", "a"},
    {"scatter(w, i, z), update_window_dims={2}, inserted_window_dims={0}, "
     "scatter_dims_to_operand_dims={0}, index_vector_dim=2, to_apply=%add",
     "ab,cd,cdb->ab", "", "cd"},
    {"scatter(w, i, z), update_window_dims={2}, inserted_window_dims={0}, "
     "scatter_dims_to_operand_dims={0}, index_vector_dim=2, to_apply=swap",
     "ab,cd,cdb->ab", "cd", ""},
    {"sort(x), dimensions={1}, to_apply=swap", "abc->abc", "b", ""},
    {"cholesky(x), lower=true", "abb->abb", "b", ""},
    {"reduce-window(x, one), window={size=1x3x1 pad=0_0x1_1x0_0}, to_apply=%add", "abc->abc", "b",
     ""},
    {"fft(x), fft_type=FFT, fft_length={8}", "abc->abc", "c", ""},
    {"custom-call(x), custom_call_target=\"Sharding\", sharding={devices=[4,1,1]<=[4]}", "abc->abc",
     "", ""},
    {"custom-call(x), custom_call_target=\"Sharding\", sharding={replicated}", "abc->abc", "", ""},
    {"custom-call(x), custom_call_target=\"Sharding\", sharding={devices=[1,2,1,2]0,1,2,3 "
     "last_tile_dim_replicate}",
     "abc->abc", "", ""},
    {"custom-call(x), custom_call_target=\"mystery\"", "abc->abc", "abc", ""},
    {"convolution(m, k), window={size=3x3}, dim_labels=b01f_01io->b01f", "abbc,ddce->affe", "bdf",
     "c"},
    {"convolution(m, k), window={size=1x1}, dim_labels=b01f_01io->b01f", "abcd,eedf->abcf", "e",
     "d"},
    {"convolution(m, k), window={size=3x3}, dim_labels=b01f_01io->b01f, feature_group_count=4",
     "abb(cd),eed(cf)->agg(cf)", "beg", "d"},
    {"reverse(x), dimensions={1}", "abc->abc", "", ""},
    {"bitcast-convert(x)", "abc->abcd", "d", ""},
    {"custom-call(x), custom_call_target=\"TopK\"", "abc->abd,abd", "cd", ""},
    {"triangular-solve(y, x), left_side=true", "abc,abc->abc", "bc", ""},
    {"custom-call(x), custom_call_target=\"Sharding\", sharding={manual}", "abc->abc", "", ""},
    {"select-and-scatter(x, u, one), window={size=1x3x1 stride=1x3x1}, select=swap, scatter=%add",
     "abc,adc->abc", "bd", ""},
};

/* Types of the results above, and operands that only some lines have. */
static const char *const types[] = {
    "f32[4,6,8]",    "f32[4,6,8]",    "f32[4,6,8]",   "f32[4,6,8]",  "f32[3,16,5]",
    "f32[8,4,6]",    "f32[24,8]",     "f32[4,2,3,8]", "f32[4,8,6]",  "f32[4,6,10]",
    "f32[4,6,6]",    "f32[6]",        "f32[4,8]",     "f32[4,3,8]",  "f32[4,8,8]",
    "f32[4,12,8]",   "f32[4,1,8]",    "f32[4,6,8]",   "f32[4,6,10]", "f32[8,10]",
    "f32[8,10]",     "f32[4,6,8]",    "f32[4,8,8]",   "f32[4,6,8]",  "f32[4,6,8]",
    "f32[4,6,8]",    "f32[4,6,8]",    "f32[4,6,8]",   "f32[4,6,8]",  "f32[2,7,7,20]",
    "f32[2,9,9,20]", "f32[2,7,7,20]", "f32[4,6,8]",   "u8[4,6,8,4]", "(f32[4,6,3], s32[4,6,3])",
    "f32[4,6,8]",    "f32[4,6,8]",    "f32[4,6,8]"};

_Static_assert(sizeof(types) / sizeof(types[0]) == sizeof(rules) / sizeof(rules[0]),
               "a type for each rule");

START_TEST(operators_have_their_rules)
{
    const size_t n = (size_t)_i;
    char lines[2048], buffer[64];
    const char *kernel = strstr(rules[n].line, "size=1x1}") ? "f32[1,1,12,20]"
                         : strstr(rules[n].line, "group")   ? "f32[3,3,3,20]"
                                                            : "f32[3,3,12,20]";
    const char *x = strstr(rules[n].line, "cholesky") ? "f32[4,8,8]" : "f32[4,6,8]";
    ap_graph_t *graph;
    const ap_op_t *op;
    char text[sizeof(inputs) + 64];

    (void)snprintf(text, sizeof(text), "%s", inputs);
    memcpy(strstr(text, "f32[4,6,8]"), x, strlen(x));
    (void)snprintf(lines, sizeof(lines),
                   "%s  k = %s parameter(7)\n  p = pred[4,6,8] parameter(8)\n"
                   "  u = f32[4,2,8] parameter(9)\n  z = f32[4,6,10] parameter(10)\n"
                   "  ROOT r = %s %s\n",
                   text, kernel, types[n], rules[n].line);
    ck_assert_xm_ok(read_lines(lines, &graph, NULL));
    ck_assert_int_eq(ap_graph_ops(graph), 1);
    op = ap_graph_op(graph, 0);
    ck_assert_msg(strcmp(op->rule.text, rules[n].rule) == 0, "%s: %s, expected %s", rules[n].line,
                  op->rule.text, rules[n].rule);
    ck_assert_str_eq(letters(&op->rule, AP_FACTOR_NEED_REPLICATION, buffer), rules[n].whole);
    ck_assert_str_eq(letters(&op->rule, AP_FACTOR_REDUCTION, buffer), rules[n].reduced);
    ck_assert_str_eq(letters(&op->rule, AP_FACTOR_PERMUTATION, buffer),
                     strstr(rules[n].line, "reverse") ? "b" : "");
    ck_assert_str_eq(op->name, "r");
    ap_graph_destroy(graph);
}
END_TEST

START_TEST(names_of_the_author_are_kept)
{
    ap_graph_t *graph;

    ck_assert_xm_ok(read_lines("  x = f32[4] parameter(0)\n"
                               "  y = f32[4] tanh(x), metadata={op_type=\"tanh\" "
                               "op_name=\"jit(f)/layers_3/it\\'s\"}\n"
                               "  ROOT z = f32[4] negate(y)\n",
                               &graph, NULL));
    ck_assert_str_eq(ap_graph_op(graph, 0)->label, "jit(f)/layers_3/it's");
    ck_assert_ptr_null(ap_graph_op(graph, 1)->label);
    ap_graph_destroy(graph);
}
END_TEST

/* Look-ups and updates of rows touch those rows; ones that make their array write all of it. */
START_TEST(rows_are_told_from_tables)
{
    static const char sums[] = ", update_window_dims={2}, inserted_window_dims={0}, "
                               "scatter_dims_to_operand_dims={0}, index_vector_dim=2, to_apply=";
    static const struct {
        const char *type, *line, *more;
        int touched[4];
    } lines[] = {
        {"f32[4,6,10]",
         "gather(w, i), offset_dims={2}, collapsed_slice_dims={0}, start_index_map={0}, "
         "index_vector_dim=2, slice_sizes={1,10}",
         "",
         {3, 0, 0}},
        {"f32[8,10]", "scatter(w, i, z)", "%add", {3, 0, 0, 3}},
        {"f32[8,10]", "scatter(w, i, z)", "replace", {-1, 0, 0, 3}},
        {"f32[8,10]", "scatter(none, i, z)", "%add", {0, 0, 0}}, /* the zeros are written, too */
        {"f32[4,1,8]", "dynamic-slice(x, zero, zero, zero)", "", {2, 0}},
        {"f32[4,3,8]", "slice(x), slice={[0:4], [1:4], [0:8]}", "", {2, 0}},
        {"f32[4,6,8]", "dynamic-update-slice(x, u, zero, zero, zero)", "", {-1, 0, 2}},
        {"f32[4,6,8]", "dynamic-update-slice(blank, u, zero, zero, zero)", "", {0, 0}},
        {"f32[4,6,8]", "add(x, y)", "", {0, 0, 0}},
    };

    for (size_t n = 0; n < sizeof(lines) / sizeof(lines[0]); ++n) {
        char text[2048];
        ap_graph_t *graph;
        const ap_op_t *op;

        (void)snprintf(text, sizeof(text),
                       "HloModule m\n\n%sreplace {\n  old = f32[] parameter(0)\n"
                       "  ROOT new = f32[] parameter(1)\n}\nENTRY main {\n"
                       "%s  u = f32[4,2,8] parameter(7)\n  z = f32[4,6,10] parameter(8)\n"
                       "  none = f32[8,10] broadcast(one), dimensions={}\n"
                       "  blank = f32[4,6,8] broadcast(one), dimensions={}\n"
                       "  ROOT r = %s %s%s%s\n}\n",
                       add_computation, inputs, lines[n].type, lines[n].line,
                       lines[n].more[0] != '\0' ? sums : "", lines[n].more);
        ck_assert_xm_ok(read_text(text, &graph, NULL));
        ck_assert_int_eq(ap_graph_ops(graph), 1);
        op = ap_graph_op(graph, 0);
        for (int t = 0; t < op->operand_count + op->result_count; ++t) {
            ck_assert_msg(op->touched[t] == lines[n].touched[t], "%s: term %d like %d, not %d",
                          lines[n].line, t, op->touched[t], lines[n].touched[t]);
        }
        ap_graph_destroy(graph);
    }
}
END_TEST

START_TEST(flops_are_counted)
{
    ap_graph_t *graph;

    ck_assert_xm_ok(read_lines("  x = f32[4,6,8] parameter(0)\n  w = f32[8,10] parameter(1)\n"
                               "  ROOT d = f32[4,6,10] dot(x, w), lhs_contracting_dims={2}, "
                               "rhs_contracting_dims={0}\n",
                               &graph, NULL));
    ck_assert_double_eq_tol(ap_graph_op(graph, 0)->flops, 2.0 * 4 * 6 * 8 * 10, 1e-6);
    ap_graph_destroy(graph);
    ck_assert_xm_ok(
        read_lines("  m = f32[2,9,9,12] parameter(0)\n  k = f32[3,3,3,20] parameter(1)\n"
                   "  ROOT c = f32[2,7,7,20] convolution(m, k), window={size=3x3}, "
                   "dim_labels=b01f_01io->b01f, feature_group_count=4\n",
                   &graph, NULL));
    ck_assert_double_eq_tol(ap_graph_op(graph, 0)->flops, 2.0 * 2 * 49 * 20 * 3 * 9, 1e-6);
    ap_graph_destroy(graph);
}
END_TEST

START_TEST(what_needs_no_data_vanishes)
{
    ap_graph_t *graph;

    ck_assert_xm_ok(read_lines("  x = f32[4,6] parameter(0)\n"
                               "  c = f32[] constant(2)\n"
                               "  b = f32[4,6] broadcast(c), dimensions={}\n"
                               "  n = f32[4,6] iota(), iota_dimension=1\n"
                               "  s = f32[4,6] add(b, n)\n"
                               "  big = f32[4,6] constant({ { 1, 2, /*i=5*/ ... } })\n"
                               "  t = f32[4,6] multiply(s, big)\n"
                               "  dead = f32[4,6] negate(x)\n"
                               "  /* a comment */ ROOT r = f32[4,6] multiply(t, x)\n",
                               &graph, NULL));
    ck_assert_int_eq(ap_graph_ops(graph), 1);
    ck_assert_int_eq(ap_graph_tensors(graph), 2);
    ck_assert_str_eq(ap_graph_op(graph, 0)->rule.text, "ab->ab");
    ap_graph_destroy(graph);
}
END_TEST

START_TEST(calls_tuples_and_branches_are_looked_through)
{
    static const char text[] =
        "HloModule m\n"
        "f { p = (f32[4], (f32[4], s32[])) parameter(0)\n"
        "  a = f32[4] get-tuple-element(p), index=0\n"
        "  q = (f32[4], s32[]) get-tuple-element(p), index=1\n"
        "  b = f32[4] get-tuple-element(q), index=0\n"
        "  ROOT r = f32[4] add(a, b) }\n"
        "g { p = (f32[4], (f32[4], s32[])) parameter(0)\n"
        "  ROOT r = f32[4] call(p), to_apply=f }\n"
        "h { p = (f32[4], (f32[4], s32[])) parameter(0)\n"
        "  ROOT a = f32[4] get-tuple-element(p), index=0 }\n"
        "ENTRY main { x = f32[4] parameter(0)\n"
        "  y = f32[4] parameter(1)\n  n = s32[] parameter(2)\n"
        "  t = (f32[4], s32[]) tuple(y, n)\n"
        "  u = (f32[4], /*index=1*/ (f32[4], s32[])) tuple(x, t)\n"
        "  o = (f32[4], (f32[4], s32[])) opt-barrier(u)\n"
        "  ROOT c = f32[4] conditional(n, o, o), branch_computations={g, h}\n}\n";
    ap_graph_t *graph;

    ck_assert_xm_ok(read_text(text, &graph, NULL));
    ck_assert_int_eq(ap_graph_ops(graph), 2); /* the addition, and the choice */
    ck_assert_str_eq(ap_graph_op(graph, 0)->rule.text, "a,a->a");
    ck_assert_str_eq(ap_graph_op(graph, 1)->name, "c");
    ap_graph_destroy(graph);
}
END_TEST

/* A loop of seven runs over x = tanh(x * w), with the bound in the state and an accumulator that
 * starts from a constant. */
static const char loop_text[] =
    "HloModule m, input_output_alias={ {1}: (1, {}, may-alias) }\n"
    "body { s = (s32[], f32[8,8], f32[8,8], s32[], f32[8,8]) parameter(0)\n"
    "  i = s32[] get-tuple-element(s), index=0\n  one = s32[] constant(1)\n"
    "  j = s32[] add(i, one)\n"
    "  x = f32[8,8] get-tuple-element(s), index=1\n"
    "  w = f32[8,8] get-tuple-element(s), index=2\n"
    "  n = s32[] get-tuple-element(s), index=3\n"
    "  acc = f32[8,8] get-tuple-element(s), index=4\n"
    "  d = f32[8,8] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}\n"
    "  t = f32[8,8] tanh(d)\n  sum = f32[8,8] add(acc, t)\n"
    "  ROOT r = (s32[], f32[8,8], f32[8,8], s32[], f32[8,8]) tuple(j, t, w, n, sum) }\n"
    "cond { s = (s32[], f32[8,8], f32[8,8], s32[], f32[8,8]) parameter(0)\n"
    "  i = s32[] get-tuple-element(s), index=0\n  n = s32[] get-tuple-element(s), index=3\n"
    "  ROOT less = pred[] compare(i, n), direction=LT }\n"
    "ENTRY main { x = f32[8,8] parameter(0)\n  w = f32[8,8] parameter(1)\n"
    "  zero = s32[] constant(0)\n  n = s32[] constant(%s)\n  f = f32[] constant(0)\n"
    "  acc = f32[8,8] broadcast(f), dimensions={}\n"
    "  init = (s32[], f32[8,8], f32[8,8], s32[], f32[8,8]) tuple(zero, x, w, n, acc)\n"
    "  l = (s32[], f32[8,8], f32[8,8], s32[], f32[8,8]) while(init), condition=cond, body=body\n"
    "  out = f32[8,8] get-tuple-element(l), index=4\n"
    "  new = f32[8,8] add(w, out)\n"
    "  ROOT r = (f32[8,8], f32[8,8]) tuple(out, new) }\n";

START_TEST(loops_run_their_body)
{
    char text[sizeof(loop_text) + 16];
    ap_frontend_notes_t *notes;
    ap_graph_t *graph;
    int aliases = 0, count;

    (void)snprintf(text, sizeof(text), loop_text, "7");
    ck_assert_xm_ok(read_text(text, &graph, &notes));
    ck_assert_int_eq(ap_frontend_notes_count(notes), 0);
    ap_frontend_notes_destroy(notes);
    for (int o = 0; o < ap_graph_ops(graph); ++o) {
        const ap_op_t *op = ap_graph_op(graph, o);

        if (op->kind == AP_OP_EINSUM) {
            ck_assert_double_eq_tol(op->repeat, 7, 1e-9);
            ck_assert_double_eq_tol(op->flops, 7.0 * 2 * 8 * 8 * 8, 1e-6);
        }
        aliases += ap_graph_tensor(graph, op->results[0])->alias_of >= 0;
    }
    ck_assert_int_eq(aliases, 3); /* x and the accumulator in the loop, w in the step */
    ap_graph_destroy(graph);

    (void)snprintf(text, sizeof(text), loop_text, "unknown"); /* no number */
    ck_assert_xm_ok(read_text(text, &graph, &notes));
    ck_assert_int_eq(ap_frontend_notes_count(notes), 1);
    ck_assert_str_eq(ap_frontend_notes_get(notes, 0, &count), "while of unknown length");
    ck_assert_int_eq(count, 1);
    ap_frontend_notes_destroy(notes);
    ap_graph_destroy(graph);

    (void)snprintf(text, sizeof(text), loop_text, "0"); /* never runs: w + 0 is left */
    ck_assert_xm_ok(read_text(text, &graph, NULL));
    ck_assert_int_eq(ap_graph_ops(graph), 1);
    ap_graph_destroy(graph);
}
END_TEST

START_TEST(donated_arguments_are_parameters)
{
    static const char text[] =
        "HloModule step, is_scheduled=true, input_output_alias={ {0, 1}: (0, {1}, must-alias) }, "
        "buffer_donor={ (1, {}) }, entry_computation_layout={(f32[4]{0})->f32[4]{0}}, "
        "num_partitions=4\n"
        "FileNames\n1 \"a.py\"\n\nStackFrames\n1 {file_location_id=1}\n\n"
        "ENTRY %main (p: (f32[4], f32[4])) -> ((f32[4], f32[4])) {\n"
        "  %p = (f32[4]{0}, f32[4]{0}) parameter(0), sharding={{replicated}, "
        "{devices=[2]<=[2]}}, metadata={op_name=\"w[\\'a\\']\" source_file=\"x.py\" "
        "source_line=3}\n"
        "  %q = f32[4]{0} parameter(1)\n"
        "  %a = f32[4]{0} get-tuple-element((f32[4]{0}, f32[4]{0}) %p), index=0\n"
        "  %b = f32[4]{0} get-tuple-element((f32[4]{0}, f32[4]{0}) %p), index=1\n"
        "  %s = f32[4]{0} subtract(f32[4]{0} %b, f32[4]{0} %a), backend_config={\"a\":[\"}\"]}\n"
        "  %t = f32[4]{0} add(%s, %q)\n"
        "  %u = (f32[4]{0}, f32[4]{0}) tuple(%s, %t)\n"
        "  ROOT %r = ((f32[4]{0}, f32[4]{0})) tuple(%u)\n"
        "}\n";
    ap_graph_t *graph;

    ck_assert_xm_ok(read_text(text, &graph, NULL));
    ck_assert_str_eq(ap_graph_name(graph), "step");
    ck_assert_str_eq(ap_graph_tensor(graph, 0)->name, "w['a'].0");
    ck_assert_int_eq(ap_graph_tensor(graph, 0)->kind, AP_TENSOR_INPUT);
    ck_assert_int_eq(ap_graph_tensor(graph, 1)->kind, AP_TENSOR_PARAMETER);
    ck_assert_int_eq(ap_graph_tensor(graph, 2)->kind, AP_TENSOR_PARAMETER);
    ck_assert_int_eq(ap_graph_tensor(graph, ap_graph_op(graph, 1)->results[0])->alias_of, 1);
    ap_graph_destroy(graph);
}
END_TEST

/* What annotations demand of the parameter x and of the constraint on it, "?" where it is open. */
static const struct {
    const char *of_x, *of_call, *x, *call;
} annotated[] = {
    {"{devices=[4,1]<=[4]}", "{devices=[1,4]0,1,2,3}", "4x1", "1x4"},
    {"{replicated}", "{devices=[2,1,4]<=[8] last_tile_dim_replicate}", "1x1", "2x1"},
    {"{devices=[2,1,2,2]<=[4,2]T(1,0) last_tile_dims={manual, replicated}}", "{manual}", "?x?",
     "?x?"},
    {"{devices=[2,4]<=[8] metadata={op_name=\"a\"}}", "{maximal device=3}", "2x4", "?x?"},
    {"{replicated}, frontend_attributes={xla.sdy.sharding=\"#sdy.sharding<@mesh, [{?}, {}]>\"}",
     "{devices=[1,8]<=[8]}, backend_config=\"unspecified_dims=[0]\"", "?x1", "?x8"},
    {"{devices=[1,8]<=[8]}, "
     "frontend_attributes={xla.sdy.sharding=\"#sdy.sharding<@mesh, [{}, {\\\"x\\\"}]>\"}",
     "{devices=[1,8]<=[8]}, "
     "frontend_attributes={xla.sdy.sharding=\"#sdy.sharding_per_value<[<@mesh, [{?}, "
     "{\\\"x\\\"}]>]>\"}",
     "1x8", "?x8"},
};

START_TEST(annotations_demand_parts)
{
    char lines[1024], parts[AP_SPEC_TEXT];
    ap_graph_t *graph;

    (void)snprintf(lines, sizeof(lines),
                   "  x = f32[16,8] parameter(0), sharding=%s\n  ROOT r = f32[16,8] "
                   "custom-call(x), custom_call_target=\"Sharding\", sharding=%s\n",
                   annotated[_i].of_x, annotated[_i].of_call);
    ck_assert_xm_ok(read_lines(lines, &graph, NULL));
    ck_assert_str_eq(ap_tensor_parts(ap_graph_tensor(graph, 0), parts, sizeof(parts)),
                     annotated[_i].x);
    ck_assert_str_eq(ap_tensor_parts(ap_graph_tensor(graph, ap_graph_op(graph, 0)->results[0]),
                                     parts, sizeof(parts)),
                     annotated[_i].call);
    ap_graph_destroy(graph);
}
END_TEST

/* Of such a matrix no annotation can hold on any devices. */
static const struct {
    const char *text, *sentence;
} impossible[] = {
    {"{devices=[1,7]<=[8]}", "7 tiles do not lie on 8 devices"},
    {"{devices=[2,2]0,1,2}", "4 tiles do not lie on 3 devices"},
    {"{devices=[8]<=[8]}", "1 numbers of tiles do not go with 2 dimensions"},
    {"{devices=[2,2,2]<=[8]}", "3 numbers of tiles do not go with 2 dimensions"},
    {"{devices=[2,2] last_tile_dim_replicate}", "a number is expected here"},
    {"{devices=[1,16]<=[16]}", "dimension 1 of 8 elements cannot be cut into 16"},
    {"{devices=[0,2]<=[2]}", "positive numbers"},
    {"{devices=[4294967296,4294967296]<=[1]}", "positive numbers"},
    {"{devices=[1,9223372036854775808]<=[8]}", "does not fit into 64 bits"},
    {"{scattered}", "sharding: '{scattered}' is none"},
};

START_TEST(impossible_annotations_are_refused)
{
    char lines[1024];
    ap_graph_t *graph;

    (void)snprintf(lines, sizeof(lines),
                   "  x = f32[16,8] parameter(0), sharding=%s\n  ROOT r = f32[16,8] negate(x)\n",
                   impossible[_i].text);
    ck_assert_xm_fails(read_lines(lines, &graph, NULL), XM_ERR_PARSE, impossible[_i].sentence);
}
END_TEST

/* Donated buffers that the header pairs with no result go to those of their type, in order. */
START_TEST(donated_buffers_find_their_results)
{
    static const char text[] =
        "HloModule step, buffer_donor={ (0, {}), (1, {}), (2, {}) }\n"
        "ENTRY main {\n"
        "  a = f32[4] parameter(0)\n  b = f32[4] parameter(1)\n  c = f32[8] parameter(2)\n"
        "  x = f32[4] add(a, b)\n  y = f32[4] multiply(a, b)\n  l = f32[8] negate(c)\n"
        "  ROOT r = (f32[4], f32[8], f32[4]) tuple(x, l, y)\n"
        "}\n";
    static const char *const made[] = {"x", "y", "l"};
    ap_graph_t *graph;

    ck_assert_xm_ok(read_text(text, &graph, NULL));
    for (int t = 0; t < 3; ++t) {
        int taken_by = ap_graph_tensor(graph, t)->taken_by;

        ck_assert_int_ge(taken_by, 0);
        ck_assert_str_eq(ap_graph_tensor(graph, taken_by)->name, made[t]);
    }
    ap_graph_destroy(graph);
}
END_TEST

START_TEST(unknown_operators_are_listed_and_whole)
{
    ap_frontend_notes_t *notes;
    ap_graph_t *graph;
    int count;

    /* Five operands of different shapes, two results: more than one operator of ours can hold. */
    ck_assert_xm_ok(read_lines("  a = f32[2,3] parameter(0)\n  b = f32[5,7] parameter(1)\n"
                               "  c = f32[11] parameter(2)\n  d = f32[13] parameter(3)\n"
                               "  e = f32[17,19] parameter(4)\n"
                               "  x = (f32[23], s32[29]) custom-call(a, b, c, d, e), "
                               "custom_call_target=\"mine\"\n"
                               "  f = f32[23] get-tuple-element(x), index=0\n"
                               "  y = f32[23] all-reduce(f), replica_groups={{0,1}}, "
                               "to_apply=%add\n"
                               "  ROOT z = f32[23] all-reduce(y), to_apply=%add\n",
                               &graph, &notes));
    ck_assert_int_eq(ap_frontend_notes_count(notes), 2);
    ck_assert_str_eq(ap_frontend_notes_get(notes, 0, &count), "custom-call mine");
    ck_assert_int_eq(count, 1);
    ck_assert_str_eq(ap_frontend_notes_get(notes, 1, &count), "all-reduce");
    ck_assert_int_eq(count, 2);
    for (int o = 0; o < ap_graph_ops(graph); ++o) {
        const ap_sharding_rule_t *rule = &ap_graph_op(graph, o)->rule;

        for (int f = 0; f < rule->factors; ++f) {
            ck_assert_int_eq(rule->factor[f].kind, AP_FACTOR_NEED_REPLICATION);
        }
    }
    ap_frontend_notes_destroy(notes);
    ap_graph_destroy(graph);
}
END_TEST

/* One operator for each, of as many operands and results as it has: concatenated dimensions are
 * whole, those of one size by one factor, and the others pass from every operand. */
START_TEST(operators_have_any_number_of_operands)
{
    static const char sums[] =
        "region {\n"
        "  s0 = f32[] parameter(0)\n  s1 = f32[] parameter(1)\n  s2 = f32[] parameter(2)\n"
        "  s3 = f32[] parameter(3)\n  s4 = f32[] parameter(4)\n  s5 = f32[] parameter(5)\n"
        "  s6 = f32[] parameter(6)\n  s7 = f32[] parameter(7)\n  a0 = f32[] add(s0, s4)\n"
        "  a1 = f32[] add(s1, s5)\n  a2 = f32[] add(s2, s6)\n  a3 = f32[] add(s3, s7)\n"
        "  ROOT t = (f32[], f32[], f32[], f32[]) tuple(a0, a1, a2, a3)\n}\n\n"
        "ENTRY main {\n"
        "  a = f32[2,3] parameter(0)\n  b = f32[2,3] parameter(1)\n  c = f32[2,3] parameter(2)\n"
        "  d = f32[2,3] parameter(3)\n  z = f32[] constant(0)\n"
        "  ROOT r = (f32[2], f32[2], f32[2], f32[2]) reduce(a, b, c, d, z, z, z, z), "
        "dimensions={1}, to_apply=region\n}\n";
    ap_graph_t *graph;
    char text[2048];

    ck_assert_xm_ok(read_lines("  a = f32[2,3] parameter(0)\n  b = f32[2,3] parameter(1)\n"
                               "  c = f32[2,4] parameter(2)\n  d = f32[2,3] parameter(3)\n"
                               "  e = f32[2,1] parameter(4)\n"
                               "  ROOT r = f32[2,14] concatenate(a, b, c, d, e), dimensions={1}\n",
                               &graph, NULL));
    ck_assert_int_eq(ap_graph_ops(graph), 1);
    ck_assert_str_eq(ap_graph_op(graph, 0)->rule.text, "ab,ab,ac,ab,ad->ae");
    ck_assert_int_eq(ap_graph_op(graph, 0)->rule.factor[0].kind, AP_FACTOR_PASS_THROUGH);
    ap_graph_destroy(graph);

    (void)snprintf(text, sizeof(text), "HloModule m\n\n%s", sums);
    ck_assert_xm_ok(read_text(text, &graph, NULL));
    ck_assert_int_eq(ap_graph_ops(graph), 1);
    ck_assert_int_eq(ap_graph_op(graph, 0)->operand_count, 4);
    ck_assert_int_eq(ap_graph_op(graph, 0)->result_count, 4);
    ck_assert_int_eq(ap_graph_op(graph, 0)->rule.factor[0].kind, AP_FACTOR_PASS_THROUGH);
    ap_graph_destroy(graph);
}
END_TEST

static const struct {
    const char *lines, *sentence;
} bad_lines[] = {
    {"  x = f32[2 parameter(0)\n", "test: line 14, column 13: ']' is expected here, not 'p'"},
    {"  x = f33[2] parameter(0)\n", "line 14, column 7: 'f33' is not an element type"},
    {"  x = f32[4294967296,4294967296] parameter(0)\n", "more than 2^48 elements"},
    {"  x = f32[2305843009213693952] parameter(0)\n", "more than 2^48 elements"},
    {"  x = f32[0,9223372036854775807] parameter(0)\n", "more than 2^48 elements"},
    {"  x = f32[281474976710656,2] parameter(0)\n", "more than 2^48 elements"},
    {"  x = f32[99999999999999999999] parameter(0)\n", "does not fit into 64 bits"},
    {"  x = f32[1,1,1,1,1,1,1,1,1] parameter(0)\n", "more than 8 dimensions"},
    {"  x = f32[2] parameter(1)\n", "are not 0 to 0"},
    {"  x = f32[2] parameter(-1)\n", "a parameter's number"},
    {"  x = f32[2] parameter(0)\n  x = f32[2] negate(x)\n", "'x' is defined twice"},
    {"  x = f32[2] parameter(0)\n  r = f32[2] negate(y)\n",
     "line 15, column 21: operand 'y' is not defined"},
    {"  x = f32[2] parameter(0)\n  y = f32[2] negate(y)\n", "operand 'y' is not defined"},
    {"  x = f32[2] parameter(0)\n  r = f32[3] negate(x)\n", "line 15, column 3: negate: dimension"},
    {"  x = f32[2] parameter(0)\n  r = f32[2] call(x), to_apply=none\n", "names no computation"},
    {"  x = f32[2] parameter(0)\n  r = f32[2] call(x), to_apply=swap\n", "takes 2 parameters"},
    {"  x = f32[2] parameter(0)\n  r = f32[] call(x, x), to_apply=swap\n", "of another type"},
    {"  x = f32[2] parameter(0)\n  r = f32[2] call(x), to_apply=main\n", "in a circle"},
    {"  x = f32[2,3] parameter(0)\n  r = f32[2,2] dot(x, x), lhs_contracting_dims={1}, "
     "rhs_contracting_dims={0}\n",
     "dot: dimension 0 of operand 1 is 2, 3 is expected"},
    {"  x = f32[2,3] parameter(0)\n  r = f32[2,2] dot(x, x), lhs_contracting_dims={2}, "
     "rhs_contracting_dims={1}\n",
     "lhs_contracting_dims: there is no dimension 2"},
    {"  x = f32[2,3] parameter(0)\n  r = f32[2,2] dot(x, x), lhs_contracting_dims={-1}, "
     "rhs_contracting_dims={1}\n",
     "lhs_contracting_dims: there is no dimension -1"},
    {"  x = f32[2,3] parameter(0)\n  r = f32[3,3] transpose(x), dimensions={1,0}\n",
     "dimension 1 of the result is 3, 2 is expected"},
    {"  x = f32[2,3] parameter(0)\n  r = f32[3,2] transpose(x), dimensions={1,1}\n",
     "a dimension comes twice"},
    {"  x = f32[2,3] parameter(0)\n  r = f32[5] reshape(x)\n", "6 elements do not make 5"},
    {"  x = f32[2,3] parameter(0)\n  z = f32[] constant(0)\n  r = f32[3] reduce(x, z), "
     "dimensions={1}, to_apply=%add\n",
     "reduce: dimension 0 of the result is 3, 2 is expected"},
    {"  x = f32[2,3] parameter(0)\n  r = f32[4,2] broadcast(x), dimensions={1}\n",
     "operand 0 has 2 dimensions, 1 are expected"},
    {"  x = f32[2,3] parameter(0)\n  r = f32[2,7] concatenate(x, x), dimensions={1}\n",
     "sums to 6, not 7"},
    {"  x = f32[2] parameter(0)\n  r = f32[3] slice(x), slice={[0:3]}\n", "larger than"},
    {"  x = f32[2] parameter(0)\n  r = f32[2] get-tuple-element(x), index=0\n", "no element 0"},
    {"  x = f32[2] parameter(0)\n  r = (f32[3]) tuple(x)\n", "operand 0 differs"},
    {"  r = f32[2] constant({1, 2})\n", "computes nothing"},
    {"  x = f32[2] parameter(0), metadata={op_name=\"a\n", "this string does not end"},
    {"  x = f32[2] parameter(0)\n  r = f32[2] negate(x), a={b=[}]\n", "']' is expected here"},
    {"  x = f32[2,2,2] parameter(0)\n  r = f32[2,2,2] convolution(x, x), dim_labels=b0f_0i->b0f\n",
     "needs dim_labels"},
};

START_TEST(bad_text_is_refused)
{
    ap_graph_t *graph;

    ck_assert_xm_fails(read_lines(bad_lines[_i].lines, &graph, NULL), XM_ERR_PARSE,
                       bad_lines[_i].sentence);
}
END_TEST

START_TEST(bad_modules_are_refused)
{
    char deep[4096] = "HloModule m ENTRY e { x = ";
    ap_graph_t *graph;

    ck_assert_xm_fails(read_text("", &graph, NULL), XM_ERR_PARSE, "line 1, column 1");
    ck_assert_xm_fails(read_text("HloModule m", &graph, NULL), XM_ERR_PARSE, "no ENTRY");
    ck_assert_xm_fails(read_text("HloModule m ENTRY e { }", &graph, NULL), XM_ERR_PARSE,
                       "is empty");
    ck_assert_xm_fails(read_text("HloModule m a { x = f32[] parameter(0) } a {", &graph, NULL),
                       XM_ERR_PARSE, "the text ends where '}' is expected");
    ck_assert_xm_fails(read_text("HloModule m, input_output_alias={ {0}: (3, {}) }\n"
                                 "ENTRY e { x = f32[2] parameter(0) y = f32[2] negate(x) }",
                                 &graph, NULL),
                       XM_ERR_PARSE, "aliases or donates parameter 3");
    for (int i = 0; i < 100; ++i) {
        (void)strcat(deep, "(");
    }
    ck_assert_xm_fails(read_text(deep, &graph, NULL), XM_ERR_PARSE, "nested deeper than 32");
}
END_TEST

/* Each computation calls the one before twice: 2^40 calls in a short text. */
START_TEST(exploding_calls_are_refused)
{
    char text[8192] = "HloModule m\nf0 { p = f32[2] parameter(0) }\n";
    ap_graph_t *graph;

    for (int i = 1; i <= 40; ++i) {
        size_t length = strlen(text);

        (void)snprintf(text + length, sizeof(text) - length,
                       "%sf%d { p = f32[2] parameter(0)\n  a = f32[2] call(p), to_apply=f%d\n"
                       "  b = f32[2] call(a), to_apply=f%d\n }\n",
                       i == 40 ? "ENTRY " : "", i, i - 1, i - 1);
    }
    ck_assert_xm_fails(read_text(text, &graph, NULL), XM_ERR_PARSE, "make more than");
}
END_TEST

/* Every prefix of a real dump is refused with a sentence, or read. */
START_TEST(truncated_text_is_no_disaster)
{
    FILE *file = fopen(xm_test_source_path("tests/fixtures/hlo/mlp2-b1024-h128.hlo"), "r");
    char text[8192];
    size_t size;

    ck_assert_ptr_nonnull(file);
    size = fread(text, 1, sizeof(text), file);
    (void)fclose(file);
    ck_assert_uint_gt(size, 1000);
    for (size_t length = 0; length + 3 < size; ++length) {
        char *copy = malloc(length + 1); /* exactly as long, for ASan */
        ap_graph_t *graph;

        memcpy(copy, text, length);
        ck_assert_int_eq(ap_hlo_from_text(copy, length, "cut", &graph, NULL), XM_ERR_PARSE);
        ck_assert_ptr_nonnull(strstr(xm_last_error(), "cut: line "));
        free(copy);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("frontend_hlo");
    TCase *tcase = tcase_create("hlo");

    tcase_set_timeout(tcase, 60);
    tcase_add_loop_test(tcase, operators_have_their_rules, 0,
                        (int)(sizeof(rules) / sizeof(rules[0])));
    tcase_add_test(tcase, names_of_the_author_are_kept);
    tcase_add_test(tcase, rows_are_told_from_tables);
    tcase_add_test(tcase, flops_are_counted);
    tcase_add_test(tcase, what_needs_no_data_vanishes);
    tcase_add_test(tcase, calls_tuples_and_branches_are_looked_through);
    tcase_add_test(tcase, loops_run_their_body);
    tcase_add_test(tcase, donated_arguments_are_parameters);
    tcase_add_loop_test(tcase, annotations_demand_parts, 0,
                        (int)(sizeof(annotated) / sizeof(annotated[0])));
    tcase_add_loop_test(tcase, impossible_annotations_are_refused, 0,
                        (int)(sizeof(impossible) / sizeof(impossible[0])));
    tcase_add_test(tcase, donated_buffers_find_their_results);
    tcase_add_test(tcase, unknown_operators_are_listed_and_whole);
    tcase_add_test(tcase, operators_have_any_number_of_operands);
    tcase_add_loop_test(tcase, bad_text_is_refused, 0,
                        (int)(sizeof(bad_lines) / sizeof(bad_lines[0])));
    tcase_add_test(tcase, bad_modules_are_refused);
    tcase_add_test(tcase, exploding_calls_are_refused);
    tcase_add_test(tcase, truncated_text_is_no_disaster);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
