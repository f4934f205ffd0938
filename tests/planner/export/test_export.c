/* SPDX-License-Identifier: Apache-2.0 */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "planner/export/hlo.h"
#include "planner/export/jax.h"
#include "planner/export/spec.h"
#include "planner/export/torch.h"
#include "planner/intra_op/report.h"
#include "tests/planner/cost/profile_fixture.h"
#include "xm_test.h"

static const char module_text[] =
    "HloModule jit_step\n"
    "\n"
    "twice.10 {\n"
    "  p.11 = f32[8,32]{1,0} parameter(0)\n"
    "  ROOT n.12 = f32[8,32]{1,0} negate(p.11)\n"
    "}\n"
    "\n"
    "ENTRY main.1 {\n"
    "  x.2 = f32[8,16]{1,0} parameter(0)\n"
    "  w.3 = f32[16,32]{1,0} parameter(1), sharding={replicated}\n"
    "  dot.4 = f32[8,32]{1,0} dot(x.2, w.3), lhs_contracting_dims={1}, rhs_contracting_dims={0}\n"
    "  exp.5 = f32[8,32]{1,0} exponential(f32[8,32]{1,0} dot.4)\n"
    "  call.6 = f32[8,32]{1,0} call(dot.4), to_apply=twice.10\n"
    "  call.7 = f32[8,32]{1,0} call(exp.5), to_apply=twice.10\n"
    "  ROOT tuple.8 = (f32[8,32]{1,0}, f32[8,32]{1,0}) tuple(call.6, call.7)\n"
    "}\n";

/* Tensors and operators of the module, in the order in which the front end makes them. */
enum { X, W, DOT, EXP, FIRST, SECOND, TENSORS };
enum { OP_DOT, OP_EXP, OP_FIRST, OP_SECOND, OPS };

typedef struct fixture {
    ap_cost_model_t *model;
    ap_cost_mesh_t *mesh;
    ap_graph_t *graph;
    ap_frontend_notes_t *notes;
    ap_shard_solution_t solution;
    ap_spec_t made[TENSORS];
    ap_strategy_t ops[OPS];
} fixture_t;

/* Every operator whole on every device of a 2x4 mesh. */
static void set_up(fixture_t *f)
{
    const ap_alpa_params_t alpa = {.struct_size = sizeof(alpa), .alpha = {1, 1}, .beta = {1, 1}};
    const int shape[] = {2, 4};

    memset(f, 0, sizeof(*f));
    ck_assert_xm_ok(ap_cost_model_create_alpa(&alpa, &f->model));
    ck_assert_xm_ok(ap_cost_mesh_create(f->model, 2, 4, shape, 2, &f->mesh));
    ck_assert_xm_ok(
        ap_hlo_from_text(module_text, strlen(module_text), "test", &f->graph, &f->notes));
    ck_assert_int_eq(ap_graph_tensors(f->graph), TENSORS);
    ck_assert_int_eq(ap_graph_ops(f->graph), OPS);
    f->solution =
        (ap_shard_solution_t){.graph = f->graph, .mesh = f->mesh, .made = f->made, .ops = f->ops};
    for (int o = 0; o < OPS; ++o) {
        ck_assert_xm_ok(ap_strategy_open(&ap_graph_op(f->graph, o)->rule, &f->ops[o]));
    }
}

static void tear_down(fixture_t *f)
{
    for (int o = 0; o < OPS; ++o) {
        ap_strategy_release(&f->ops[o]);
    }
    ap_frontend_notes_destroy(f->notes);
    ap_graph_destroy(f->graph);
    ap_cost_mesh_destroy(f->mesh);
    ap_cost_model_destroy(f->model);
}

/* Cuts the factor of a dimension of a term over an axis, in one operator. */
typedef struct cut {
    int term, dim, axis;
} cut_t;

static void assign(fixture_t *f, int o, const cut_t *cuts, int count)
{
    const ap_op_t *op = ap_graph_op(f->graph, o);
    ap_strategy_context_t instance = {.rule = &op->rule, .mesh = f->mesh};
    unsigned axes[8] = {0};

    instance.element_bytes = 4;
    for (int c = 0; c < count; ++c) {
        axes[op->rule.dim[cuts[c].term][cuts[c].dim].factor[0]] |= 1U << cuts[c].axis;
    }
    ck_assert(ap_strategy_assign(&instance, axes, &f->ops[o]));
    f->made[op->results[0]] = f->ops[o].spec[op->operand_count];
}

/* Batch over hosts, sums over the devices inside: x S0S1, w S1R, dot S0R; one call as the product
 * is, the other whole. */
static void shard(fixture_t *f)
{
    const cut_t dot[] = {{0, 0, 0}, {0, 1, 1}}, rows[] = {{0, 0, 0}};

    f->made[X] = ap_spec_with(ap_spec_with(0, 0, 1), 1, 2);
    f->made[W] = ap_spec_with(0, 0, 2);
    assign(f, OP_DOT, dot, 2);
    assign(f, OP_EXP, NULL, 0);
    assign(f, OP_FIRST, rows, 1);
    assign(f, OP_SECOND, NULL, 0);
}

static void check_format(const ap_cost_mesh_t *mesh, ap_spec_t of, int rank, const char *expected)
{
    const ap_export_mesh_t exported = ap_export_mesh_of(mesh);
    char text[AP_HLO_SHARDING_TEXT];

    ck_assert_str_eq(ap_export_hlo_sharding(&exported, of, rank, text, sizeof(text)), expected);
}

START_TEST(specs_are_written_as_xla_reads_them)
{
    const int flat[] = {1, 8}, four[] = {1, 2, 2, 2};
    ap_cost_mesh_t *line;
    fixture_t f;

    set_up(&f);
    check_format(f.mesh, 0, 2, "{replicated}");
    check_format(f.mesh, ap_spec_with(0, 0, 1), 2,
                 "{devices=[2,1,4]<=[8] last_tile_dim_replicate}");
    check_format(f.mesh, ap_spec_with(0, 1, 1), 2,
                 "{devices=[1,2,4]<=[8] last_tile_dim_replicate}");
    check_format(f.mesh, ap_spec_with(0, 0, 2), 2,
                 "{devices=[4,1,2]<=[2,4]T(1,0) last_tile_dim_replicate}");
    check_format(f.mesh, ap_spec_with(0, 0, 3), 2, "{devices=[8,1]<=[8]}");
    check_format(f.mesh, ap_spec_with(ap_spec_with(0, 0, 1), 1, 2), 3, "{devices=[2,4,1]<=[8]}");
    check_format(f.mesh, ap_spec_with(ap_spec_with(0, 0, 2), 1, 1), 2,
                 "{devices=[4,2]<=[2,4]T(1,0)}");
    check_format(f.mesh, 0, 0, "{replicated}");

    ck_assert_xm_ok(ap_cost_mesh_create(f.model, 1, 8, flat, 2, &line));
    check_format(line, ap_spec_with(0, 0, 2), 1, "{devices=[8]<=[8]}");
    check_format(line, ap_spec_with(0, 0, 1), 1, "{replicated}");
    ap_cost_mesh_destroy(line);
    ck_assert_xm_ok(ap_cost_mesh_create(f.model, 2, 4, four, 4, &line));
    check_format(line, ap_spec_with(ap_spec_with(0, 0, 8), 1, 2), 2,
                 "{devices=[2,2,2]<=[2,2,2]T(2,0,1) last_tile_dim_replicate}");
    ap_cost_mesh_destroy(line);
    tear_down(&f);
}
END_TEST

/* What an export writes; the caller frees it. */
static char *written(const fixture_t *f, int which)
{
    char *text = NULL;
    size_t size;
    FILE *stream = open_memstream(&text, &size);

    ck_assert_ptr_nonnull(stream);
    switch (which) {
    case 0:
        ck_assert_xm_ok(ap_export_hlo(&f->solution, f->notes, module_text, strlen(module_text),
                                      "test", stream));
        break;
    case 1:
        ck_assert_xm_ok(ap_export_jax(&f->solution, f->notes, stream));
        break;
    case 2:
        ck_assert_xm_ok(ap_export_jax(&f->solution, NULL, stream));
        break;
    default:
        ck_assert_xm_ok(ap_export_torch(&f->solution, stream));
    }
    ck_assert_int_eq(fclose(stream), 0);
    return text;
}

static void contains(const char *text, const char *part)
{
    if (strstr(text, part) == NULL) {
        ck_abort_msg("'%s' is not in:\n%s", part, text);
    }
}

START_TEST(hlo_text_gets_its_shardings)
{
    ap_graph_t *again;
    fixture_t f;
    char *text;

    set_up(&f);
    shard(&f);
    text = written(&f, 0);
    contains(text, "  x.2 = f32[8,16]{1,0} parameter(0), sharding={devices=[2,4]<=[8]}\n");
    contains(text, "parameter(1), sharding={devices=[4,1,2]<=[2,4]T(1,0) "
                   "last_tile_dim_replicate}\n");
    contains(text, "rhs_contracting_dims={0}, sharding={devices=[2,1,4]<=[8] "
                   "last_tile_dim_replicate}\n");
    /* The exponential wants all of it: resharded on the way, and nowhere else. */
    contains(text, "  exp.5.operand0.step1 = f32[8,32]{1,0} custom-call(dot.4), "
                   "custom_call_target=\"Sharding\", sharding={replicated}\n"
                   "  exp.5 = f32[8,32]{1,0} exponential(f32[8,32]{1,0} exp.5.operand0.step1), "
                   "sharding={replicated}\n");
    ck_assert_ptr_null(strstr(text, "dot.4.operand"));
    /* Called twice, sharded differently: no annotation of its own. */
    contains(text, "  ROOT n.12 = f32[8,32]{1,0} negate(p.11)\n");
    contains(text, "tuple(call.6, call.7), sharding={{devices=[2,1,4]<=[8] "
                   "last_tile_dim_replicate}, {replicated}}\n");
    ck_assert_xm_ok(ap_hlo_from_text(text, strlen(text), "again", &again, NULL));
    ck_assert_int_eq(ap_graph_ops(again), OPS + 1); /* the step of the resharding */
    ap_graph_destroy(again);
    free(text);
    tear_down(&f);
}
END_TEST

START_TEST(jax_gets_specs_and_operators_in_order)
{
    fixture_t f;
    char *text;

    set_up(&f);
    shard(&f);
    text = written(&f, 1);
    contains(text, "\"mesh\":[2,4],");
    contains(text, "\"parameters\":[[\"x.2\",[8,16],[[0],[1]],0],[\"w.3\",[16,32],[[1],[]],1]]");
    contains(text,
             "\"results\":[[\"result 0\",[8,32],[[0],[]],4],[\"result 1\",[8,32],[[],[]],5]]");
    contains(text, "[\"dot\",[0,1],[8,32],2,[[0],[]],{\"0\":[[[0],[1]]],\"1\":[[[1],[]]]}],"
                   "[\"exponential\",[2],[8,32],3,[[],[]],{\"0\":[[[0],[]],[[],[]]]}]");
    free(text);
    text = written(&f, 2);
    contains(text, "[[1],[]]");
    contains(text, "\"operators\":[],\"loops\":[]");
    free(text);
    tear_down(&f);
}
END_TEST

/* Four rounds of x = x w[i], in which the product's sharding is pinned down. */
static const char loop_text[] =
    "HloModule jit_rounds\n"
    "\n"
    "body.10 {\n"
    "  s.11 = (s32[], f32[8,16], f32[4,16,16]) parameter(0)\n"
    "  i.12 = s32[] get-tuple-element(s.11), index=0\n"
    "  one.13 = s32[] constant(1)\n"
    "  next.14 = s32[] add(i.12, one.13)\n"
    "  x.15 = f32[8,16] get-tuple-element(s.11), index=1\n"
    "  w.16 = f32[4,16,16] get-tuple-element(s.11), index=2\n"
    "  zero.17 = s32[] constant(0)\n"
    "  part.18 = f32[1,16,16] dynamic-slice(w.16, i.12, zero.17, zero.17), "
    "dynamic_slice_sizes={1,16,16}\n"
    "  flat.19 = f32[16,16] reshape(part.18)\n"
    "  dot.20 = f32[8,16] dot(x.15, flat.19), lhs_contracting_dims={1}, rhs_contracting_dims={0}\n"
    "  pin.21 = f32[8,16] custom-call(dot.20), custom_call_target=\"Sharding\", "
    "sharding={devices=[8,1]<=[8]}\n"
    "  ROOT out.22 = (s32[], f32[8,16], f32[4,16,16]) tuple(next.14, pin.21, w.16)\n"
    "}\n"
    "\n"
    "cond.30 {\n"
    "  s.31 = (s32[], f32[8,16], f32[4,16,16]) parameter(0)\n"
    "  i.32 = s32[] get-tuple-element(s.31), index=0\n"
    "  four.33 = s32[] constant(4)\n"
    "  ROOT less.34 = pred[] compare(i.32, four.33), direction=LT\n"
    "}\n"
    "\n"
    "ENTRY main.1 {\n"
    "  x.2 = f32[8,16] parameter(0)\n"
    "  w.3 = f32[4,16,16] parameter(1)\n"
    "  zero.4 = s32[] constant(0)\n"
    "  init.5 = (s32[], f32[8,16], f32[4,16,16]) tuple(zero.4, x.2, w.3)\n"
    "  while.6 = (s32[], f32[8,16], f32[4,16,16]) while(init.5), condition=cond.30, body=body.10\n"
    "  ROOT x.7 = f32[8,16] get-tuple-element(while.6), index=1\n"
    "}\n";

/* The loop's tensors and operators, in order. */
enum { L_X, L_W, L_IN, L_PART, L_FLAT, L_DOT, L_PIN, L_AGAIN, L_AFTER, L_TENSORS };

/* x is cut by rows inside and outside; the stack is made cut and wanted whole: it is gathered once,
 * before the loop. The product wants all of x: gathered in every round. */
START_TEST(loops_keep_what_they_carry)
{
    static const char state[] = "sharding={{replicated}, {devices=[2,1,4]<=[8] "
                                "last_tile_dim_replicate}, {replicated}}";
    ap_spec_t made[L_TENSORS] = {0}, rows = ap_spec_with(0, 0, 1);
    ap_strategy_t ops[L_TENSORS];
    ap_shard_report_t *report;
    ap_graph_t *graph;
    size_t size;
    char *text = NULL;
    const char *at;
    FILE *stream;
    fixture_t f;

    set_up(&f);
    graph = f.graph;
    ap_frontend_notes_destroy(f.notes);
    ck_assert_xm_ok(ap_hlo_from_text(loop_text, strlen(loop_text), "test", &f.graph, &f.notes));
    ap_graph_destroy(graph);
    ck_assert_int_eq(ap_graph_tensors(f.graph), L_TENSORS);
    ck_assert_int_eq(ap_graph_ops(f.graph), L_TENSORS - L_IN);
    f.solution = (ap_shard_solution_t){.graph = f.graph, .mesh = f.mesh, .made = made, .ops = ops};
    memset(ops, 0, sizeof(ops));
    for (int o = 0; o < ap_graph_ops(f.graph); ++o) {
        const ap_op_t *op = ap_graph_op(f.graph, o);

        ck_assert_xm_ok(ap_strategy_open(&op->rule, &ops[o]));
        if (o + L_IN == L_IN || o + L_IN >= L_PIN) { /* what x passes through */
            ops[o].spec[0] = ops[o].spec[1] = made[op->results[0]] = rows;
        }
        ck_assert((o + L_IN == L_IN || o + L_IN >= L_AGAIN) == ap_op_passes_on(op));
    }
    made[L_X] = rows;
    made[L_W] = ap_spec_with(0, 1, 2);
    ck_assert_double_eq(ap_graph_tensor_turns(f.graph, L_IN), 4);
    ck_assert_double_eq(ap_graph_tensor_turns(f.graph, L_W), 1);
    ck_assert_int_eq(ap_graph_tensor(f.graph, L_AGAIN)->alias_of, L_IN);

    ck_assert_xm_ok(ap_shard_report_create(&f.solution, &report));
    ck_assert_double_eq(report->total[AP_ALL_GATHER][1].count, 4);
    ck_assert_double_eq(report->total[AP_ALL_GATHER][2].count, 1);
    ck_assert_double_eq(report->total[AP_ALL_GATHER][2].bytes, 4 * 16 * 16 * 4);
    ap_shard_report_destroy(report);

    stream = open_memstream(&text, &size);
    ck_assert_xm_ok(
        ap_export_hlo(&f.solution, f.notes, loop_text, strlen(loop_text), "test", stream));
    ck_assert_int_eq(fclose(stream), 0);
    contains(text, "  w.3 = f32[4,16,16] parameter(1), sharding={devices=[1,4,1,2]<=[2,4]T(1,0) "
                   "last_tile_dim_replicate}\n");
    at = text;
    for (int i = 0; i < 4; ++i) { /* parameter and root of the body, of the condition, the loop */
        at = strstr(at, state);
        ck_assert_msg(at != NULL, "the state is not told %d times in:\n%s", i + 1, text);
        ++at;
    }
    contains(text, "  w.16.carried = f32[4,16,16] get-tuple-element(s.11), index=2, "
                   "sharding={replicated}\n  w.16 = f32[4,16,16] custom-call(w.16.carried), "
                   "custom_call_target=\"Sharding\", sharding={replicated}\n");
    contains(text, "  init.5.carried2.step1 = f32[4,16,16] custom-call(w.3), "
                   "custom_call_target=\"Sharding\", sharding={replicated}\n"
                   "  init.5 = (s32[], f32[8,16], f32[4,16,16]) tuple(zero.4, "
                   "init.5.carried1.step0, init.5.carried2.step1)");
    ck_assert_ptr_null(strstr(text, "part.18.operand"));
    contains(text, "dot.20.operand0.step1 = f32[8,16] custom-call(x.15)");
    ck_assert_xm_ok(ap_hlo_from_text(text, strlen(text), "again", &graph, NULL));
    ap_graph_destroy(graph);
    free(text);

    stream = open_memstream(&text, &size);
    ck_assert_xm_ok(ap_export_jax(&f.solution, f.notes, stream));
    ck_assert_int_eq(fclose(stream), 0);
    contains(text, "\"loops\":[[[[[],null,null,null,[[]],[[]]],"
                   "[[8,16],0,2,8,[[[0],[]]],[[[0],[]]]],"
                   "[[4,16,16],1,1,1,[[[],[1],[]],[[],[],[]]],[[[],[],[]]]]],[");
    contains(text, "[\"dot\",[2,4],[8,16],5,[[],[]],"
                   "{\"0\":[[[0],[]],[[],[]]],\"1\":[[[],[]]]}]");
    free(text);
    for (int o = 0; o < ap_graph_ops(f.graph); ++o) {
        ap_strategy_release(&ops[o]);
    }
    tear_down(&f);
}
END_TEST

/* A constraint in the body of a loop demands the parts that it says. */
START_TEST(constraints_in_loops_are_kept)
{
    ap_graph_t *graph;
    const ap_op_t *pin;

    ck_assert_xm_ok(ap_hlo_from_text(loop_text, strlen(loop_text), "test", &graph, NULL));
    pin = ap_graph_op(graph, L_PIN - L_IN);
    ck_assert_str_eq(pin->name, "pin.21");
    ck_assert_str_eq(pin->rule.text, "ab->ab");
    ck_assert_int_eq(ap_graph_tensor(graph, pin->results[0])->cut[0].parts, 8);
    ck_assert_int_eq(ap_graph_tensor(graph, pin->results[0])->cut[1].parts, 1);
    ck_assert_double_eq(pin->repeat, 4);
    ap_graph_destroy(graph);
}
END_TEST

/* The exponential of 6 x 10 numbers: 6 does not divide by 4, 10 by 2 but not by 8. */
START_TEST(jax_is_given_even_arguments)
{
    static const char text[] = "HloModule m\n\nENTRY e {\n"
                               "  x = f32[6,10]{1,0} parameter(0)\n"
                               "  ROOT y = f32[6,10]{1,0} exponential(x)\n}\n";
    const ap_spec_t cuts[] = {ap_spec_with(0, 1, 3), ap_spec_with(ap_spec_with(0, 0, 2), 1, 1)};
    const char *const inside[] = {"1,[[],[0,1]],{\"0\":[[[],[0,1]]]}",
                                  "1,[[1],[0]],{\"0\":[[[1],[0]]]}"};
    fixture_t f;

    set_up(&f);
    ap_frontend_notes_destroy(f.notes);
    ap_graph_destroy(f.graph);
    ck_assert_xm_ok(ap_hlo_from_text(text, strlen(text), "test", &f.graph, &f.notes));
    f.solution.graph = f.graph;
    for (int i = 0; i < 2; ++i) {
        char *module;

        f.made[0] = f.made[1] = f.ops[0].spec[0] = f.ops[0].spec[1] = cuts[i];
        module = written(&f, 1);
        contains(module, "[\"x\",[6,10],[[],[0]],0]");
        contains(module, "[\"result 0\",[6,10],[[],[0]],1]");
        contains(module, inside[i]); /* the plan's own cut */
        free(module);
    }
    tear_down(&f);
}
END_TEST

static const char *placement(const json_t *list, const char *key, size_t axis)
{
    return json_string_value(json_array_get(json_object_get(list, key), axis));
}

START_TEST(torch_gets_placements_per_mesh_axis)
{
    const json_t *dot, *result;
    json_t *document;
    json_error_t error;
    fixture_t f;
    char *text;

    set_up(&f);
    shard(&f);
    text = written(&f, 3);
    document = json_loads(text, 0, &error);
    ck_assert_ptr_nonnull(document);
    ck_assert_uint_eq(json_array_size(json_object_get(document, "tensors")), 2);
    ck_assert_str_eq(
        placement(json_array_get(json_object_get(document, "tensors"), 1), "placements", 1),
        "Shard(0)");
    dot = json_array_get(json_object_get(document, "operators"), OP_DOT);
    ck_assert_str_eq(
        placement(json_array_get(json_object_get(dot, "operands"), 0), "placements", 0),
        "Shard(0)");
    ck_assert_str_eq(
        placement(json_array_get(json_object_get(dot, "operands"), 0), "placements", 1),
        "Shard(1)");
    result = json_array_get(json_object_get(dot, "results"), 0);
    ck_assert_str_eq(placement(result, "computed", 0), "Shard(0)");
    ck_assert_str_eq(placement(result, "computed", 1), "Partial()");
    ck_assert_str_eq(placement(result, "placements", 1), "Replicate()");
    json_decref(document);
    free(text);
    tear_down(&f);
}
END_TEST

START_TEST(reports_count_a_shared_resharding_once)
{
    const cut_t rows[] = {{0, 0, 0}};
    ap_shard_report_t *report;
    fixture_t f;

    set_up(&f);
    shard(&f);
    ck_assert_xm_ok(ap_shard_report_create(&f.solution, &report));
    /* The product's sum of 8 x 32 / 2 numbers, and its gathering for the exponential. */
    ck_assert_int_eq(report->transfer_count, 2);
    ck_assert_double_eq(report->total[AP_ALL_REDUCE][1U << 1].count, 1);
    ck_assert_double_eq(report->total[AP_ALL_REDUCE][1U << 1].bytes, 512);
    ck_assert_double_eq(report->total[AP_ALL_GATHER][1U << 0].count, 1);
    ck_assert_double_eq(report->total[AP_ALL_GATHER][1U << 0].bytes, 1024);
    ck_assert_double_eq_tol(report->total[AP_ALL_GATHER][1U << 0].cost, 1 + 0.5 * 1024 + 0.1, 1e-9);
    ap_shard_report_destroy(report);

    assign(&f, OP_FIRST, NULL, 0); /* now both users want all of the product */
    ck_assert_xm_ok(ap_shard_report_create(&f.solution, &report));
    ck_assert_double_eq(report->total[AP_ALL_GATHER][1U << 0].count, 1);
    ap_shard_report_destroy(report);

    assign(&f, OP_EXP, rows, 1);
    assign(&f, OP_FIRST, rows, 1); /* the exponential is gathered instead */
    ck_assert_xm_ok(ap_shard_report_create(&f.solution, &report));
    ck_assert_double_eq(report->total[AP_ALL_GATHER][1U << 0].count, 1);
    ck_assert_int_eq(report->transfers[1].tensor, EXP);
    ck_assert_int_eq(report->transfers[1].op, OP_SECOND);
    ck_assert(report->transfers[1].reshard && !report->transfers[0].reshard);
    ap_shard_report_destroy(report);
    tear_down(&f);
}
END_TEST

/* The product's sum over all 8 devices, hosts of 4 apart: one all-reduce, cheaper than two. */
START_TEST(reports_price_a_sum_over_several_axes_as_one)
{
    const cut_t sums[] = {{0, 1, 0}, {0, 1, 1}};
    const int shape[] = {2, 4};
    xm_cluster_profile_t *profile = fixture_profile();
    ap_cost_model_t *model;
    ap_cost_mesh_t *mesh;
    ap_shard_report_t *report;
    fixture_t f;

    set_up(&f);
    ck_assert_xm_ok(ap_cost_model_create_profile(profile, &model));
    ck_assert_xm_ok(ap_cost_mesh_create(model, 2, 4, shape, 2, &mesh));
    f.solution.mesh = mesh;
    assign(&f, OP_DOT, sums, 2);
    for (int o = OP_EXP; o < OPS; ++o) {
        assign(&f, o, NULL, 0);
    }
    f.made[X] = f.ops[OP_DOT].spec[0];
    f.made[W] = f.ops[OP_DOT].spec[1];
    ck_assert_int_eq(f.ops[OP_DOT].collective_count, 1);
    ck_assert_xm_ok(ap_shard_report_create(&f.solution, &report));
    ck_assert_int_eq(report->transfer_count, 1);
    ck_assert_uint_eq(report->transfers[0].axes, 3);
    ck_assert_double_eq(report->transfers[0].bytes, 1024);
    ck_assert_double_eq_tol(report->transfers[0].cost,
                            ap_cost_collective_over(mesh, AP_ALL_REDUCE, 3, 1024), 1e-15);
    ck_assert_double_gt(report->transfers[0].cost,
                        1.01 * ap_cost_collective(mesh, AP_ALL_REDUCE, 0, 1024));
    ck_assert_double_eq(report->total[AP_ALL_REDUCE][3].count, 1);
    ck_assert_double_eq(report->total[AP_ALL_REDUCE][1U << 0].count, 0);
    ap_shard_report_destroy(report);
    ap_cost_mesh_destroy(mesh);
    ap_cost_model_destroy(model);
    xm_cluster_profile_destroy(profile);
    tear_down(&f);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("export");
    TCase *tcase = tcase_create("all");

    tcase_add_test(tcase, specs_are_written_as_xla_reads_them);
    tcase_add_test(tcase, hlo_text_gets_its_shardings);
    tcase_add_test(tcase, jax_gets_specs_and_operators_in_order);
    tcase_add_test(tcase, loops_keep_what_they_carry);
    tcase_add_test(tcase, constraints_in_loops_are_kept);
    tcase_add_test(tcase, jax_is_given_even_arguments);
    tcase_add_test(tcase, torch_gets_placements_per_mesh_axis);
    tcase_add_test(tcase, reports_count_a_shared_resharding_once);
    tcase_add_test(tcase, reports_price_a_sum_over_several_axes_as_one);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
