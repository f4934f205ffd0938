/* SPDX-License-Identifier: Apache-2.0 */
/* libautopar's door: NULL in each required pointer of each function, and structures that callers of
 * other versions have made. */
#include <autopar.h>

#include <stdio.h>

#include "xm_test.h"

/* Any pointer that is not NULL: none is looked at where another is missing. */
static max_align_t anything[16];
static void *const some = anything;

/* The call leaves the sentence "function: argument is NULL". */
static void expect_sentence(const char *call, const char *argument)
{
    char expected[128];

    (void)snprintf(expected, sizeof(expected), "%.*s: %s is NULL", (int)strcspn(call, "("), call,
                   argument);
    ck_assert_msg(strcmp(ap_last_error(), expected) == 0, "%s says '%s', not '%s'", call,
                  ap_last_error(), expected);
}

#define FAILS(argument, call)                                                                      \
    do {                                                                                           \
        ck_assert_int_eq((call), XM_ERR_INVALID_ARGUMENT);                                         \
        expect_sentence(#call, argument);                                                          \
    } while (0)

#define GIVES(value, argument, call)                                                               \
    do {                                                                                           \
        ck_assert((call) == (value));                                                              \
        expect_sentence(#call, argument);                                                          \
    } while (0)

#define LEAVES(argument, call)                                                                     \
    do {                                                                                           \
        call;                                                                                      \
        expect_sentence(#call, argument);                                                          \
    } while (0)

START_TEST(models_and_shardings_need_their_pointers)
{
    FAILS("model", ap_cost_mesh_create(NULL, 0, 0, some, 0, some));
    FAILS("shape", ap_cost_mesh_create(some, 0, 0, NULL, 0, some));
    FAILS("mesh", ap_cost_mesh_create(some, 0, 0, some, 0, NULL));
    FAILS("params", ap_cost_model_create_alpa(NULL, some));
    FAILS("model", ap_cost_model_create_alpa(some, NULL));
    FAILS("profile", ap_cost_model_create_profile(NULL, some));
    FAILS("model", ap_cost_model_create_profile(some, NULL));
    FAILS("plan", ap_export_plan_text(NULL, AP_EXPORT_JAX, some));
    FAILS("text", ap_export_plan_text(some, AP_EXPORT_JAX, NULL));
    FAILS("sharding", ap_export_sharding(NULL, some, AP_EXPORT_JAX, some));
    FAILS("text", ap_export_sharding(some, some, AP_EXPORT_JAX, NULL));
    FAILS("sharding", ap_export_sharding_hlo(NULL, some, some, 0, some, some));
    FAILS("notes", ap_export_sharding_hlo(some, NULL, some, 0, some, some));
    FAILS("hlo", ap_export_sharding_hlo(some, some, NULL, 0, some, some));
    FAILS("name", ap_export_sharding_hlo(some, some, some, 0, NULL, some));
    FAILS("text", ap_export_sharding_hlo(some, some, some, 0, some, NULL));
    FAILS("model", ap_frontend_load(NULL, some, some, some));
    FAILS("graph", ap_frontend_load(some, some, NULL, some));
    FAILS("graph", ap_frontend_train(AP_OPTIMIZER_SGD, NULL));
    FAILS("graph", ap_graph_add_op(NULL, some, some));
    FAILS("params", ap_graph_add_op(some, NULL, some));
    FAILS("results", ap_graph_add_op(some, some, NULL));
    FAILS("graph", ap_graph_add_tensor(NULL, some, AP_TENSOR_INPUT, some, AP_DTYPE_F32, some));
    FAILS("name", ap_graph_add_tensor(some, NULL, AP_TENSOR_INPUT, some, AP_DTYPE_F32, some));
    FAILS("shape", ap_graph_add_tensor(some, some, AP_TENSOR_INPUT, NULL, AP_DTYPE_F32, some));
    FAILS("tensor", ap_graph_add_tensor(some, some, AP_TENSOR_INPUT, some, AP_DTYPE_F32, NULL));
    FAILS("name", ap_graph_create(NULL, some));
    FAILS("graph", ap_graph_create(some, NULL));
    FAILS("graph", ap_graph_finish(NULL));
    FAILS("forward", ap_graph_make_layers(NULL, some, some));
    FAILS("how", ap_graph_make_layers(some, NULL, some));
    FAILS("layered", ap_graph_make_layers(some, some, NULL));
    FAILS("graph", ap_graph_set_alias(NULL, 0, 0));
    FAILS("graph", ap_graph_set_gradient(NULL, 0, 0));
    FAILS("graph", ap_graph_set_layer(NULL, 0));
    FAILS("graph", ap_graph_set_loss(NULL, 0, false));
    FAILS("text", ap_hlo_from_text(NULL, 0, some, some, some));
    FAILS("name", ap_hlo_from_text(some, 0, NULL, some, some));
    FAILS("graph", ap_hlo_from_text(some, 0, some, NULL, some));
    FAILS("text", ap_json_from_text(NULL, 0, some, some));
    FAILS("name", ap_json_from_text(some, 0, NULL, some));
    FAILS("graph", ap_json_from_text(some, 0, some, NULL));
    FAILS("bytes", ap_onnx_from_bytes(NULL, 0, some, some, some, some));
    FAILS("name", ap_onnx_from_bytes(some, 0, NULL, some, some, some));
    FAILS("graph", ap_onnx_from_bytes(some, 0, some, some, NULL, some));
    FAILS("text", ap_profile_from_text(NULL, 0, some, some));
    FAILS("source", ap_profile_from_text(some, 0, NULL, some));
    FAILS("profile", ap_profile_from_text(some, 0, some, NULL));
    FAILS("path", ap_profile_load(NULL, some));
    FAILS("profile", ap_profile_load(some, NULL));
    FAILS("profile", ap_profile_resize(NULL, 0, 0, some));
    FAILS("resized", ap_profile_resize(some, 0, 0, NULL));
    FAILS("profile", ap_profile_text(NULL, some));
    FAILS("text", ap_profile_text(some, NULL));
    FAILS("params", ap_sharding_create(NULL, some));
    FAILS("sharding", ap_sharding_create(some, NULL));
}
END_TEST

START_TEST(plans_need_their_pointers)
{
    FAILS("plan", ap_explanation_create(NULL, some, 0, some));
    FAILS("profile", ap_explanation_create(some, NULL, 0, some));
    FAILS("explanation", ap_explanation_create(some, some, 0, NULL));
    FAILS("explanation", ap_explanation_table(NULL, some));
    FAILS("text", ap_explanation_table(some, NULL));
    FAILS("name", ap_like_plan(NULL, some, some, some));
    FAILS("params", ap_like_plan(some, NULL, some, some));
    FAILS("plan", ap_like_plan(some, some, NULL, some));
    FAILS("path", ap_plan_load(NULL, some));
    FAILS("plan", ap_plan_load(some, NULL));
    FAILS("name", ap_plan_parse(NULL, some, 0, some));
    FAILS("text", ap_plan_parse(some, NULL, 0, some));
    FAILS("plan", ap_plan_parse(some, some, 0, NULL));
    FAILS("plan", ap_plan_plot(NULL, some));
    FAILS("path", ap_plan_plot(some, NULL));
    FAILS("plan", ap_plan_save(NULL, some));
    FAILS("path", ap_plan_save(some, NULL));
    FAILS("plan", ap_plan_table(NULL, some));
    FAILS("text", ap_plan_table(some, NULL));
    FAILS("params", ap_plan_verify(NULL, some));
    FAILS("plan", ap_plan_verify(some, NULL));
    FAILS("command", ap_planner_command_plan(NULL, some, NULL, NULL, some));
    FAILS("params", ap_planner_command_plan(some, NULL, NULL, NULL, some));
    FAILS("plan", ap_planner_command_plan(some, some, NULL, NULL, NULL));
    FAILS("params", ap_planner_plan(NULL, some, some));
    FAILS("plan", ap_planner_plan(some, NULL, some));
    FAILS("plan", ap_simulation_create(NULL, some, some));
    FAILS("simulation", ap_simulation_create(some, some, NULL));
    FAILS("simulation", ap_simulation_plot(NULL, some, some));
    FAILS("title", ap_simulation_plot(some, NULL, some));
    FAILS("path", ap_simulation_plot(some, some, NULL));
    FAILS("simulation", ap_simulation_text(NULL, some));
    FAILS("text", ap_simulation_text(some, NULL));
    FAILS("simulation", ap_simulation_trace(NULL, some));
    FAILS("path", ap_simulation_trace(some, NULL));
}
END_TEST

START_TEST(what_is_read_of_nothing_is_nothing)
{
    GIVES(0, "mesh", ap_cost_collective(NULL, AP_ALL_REDUCE, 0, 0));
    GIVES(NULL, "mesh", ap_cost_explain_collective(NULL, AP_ALL_REDUCE, 0, 0, some, 0));
    GIVES(NULL, "buffer", ap_cost_explain_collective(some, AP_ALL_REDUCE, 0, 0, NULL, 0));
    LEAVES("mesh", ap_cost_mesh_allow_uneven(NULL));
    GIVES(0, "mesh", ap_cost_op(NULL, AP_OP_EINSUM, AP_DTYPE_F32, 0, 0));
    GIVES(NULL, "explanation", ap_explanation_text(NULL));
    GIVES(0, "notes", ap_frontend_notes_count(NULL));
    GIVES(NULL, "notes", ap_frontend_notes_get(NULL, 0, some));
    GIVES(0, "graph", ap_graph_layers(NULL));
    GIVES(NULL, "graph", ap_graph_name(NULL));
    GIVES(0, "graph", ap_graph_ops(NULL));
    GIVES(0, "graph", ap_graph_parameters(NULL));
    GIVES(0, "graph", ap_graph_tensors(NULL));
    GIVES(NULL, "graph", ap_json_text(NULL));
    GIVES(NULL, "plan", ap_like_difference(NULL, some, some, 0));
    GIVES(NULL, "other", ap_like_difference(some, NULL, some, 0));
    GIVES(NULL, "buffer", ap_like_difference(some, some, NULL, 0));
    GIVES(0, "plan", ap_plan_boundaries(NULL));
    GIVES(NULL, "plan", ap_plan_boundary(NULL, 0));
    GIVES(NULL, "plan", ap_plan_digest(NULL));
    GIVES(NULL, "plan", ap_plan_info(NULL));
    GIVES(NULL, "plan", ap_plan_stage(NULL, 0));
    GIVES(0, "stage", ap_plan_stage_memory(NULL));
    GIVES(0, "plan", ap_plan_stages(NULL));
    GIVES(NULL, "plan", ap_plan_text(NULL));
    GIVES(0, "profile", ap_profile_devices_per_host(NULL));
    GIVES(0, "profile", ap_profile_hosts(NULL));
    GIVES(NULL, "profile", ap_profile_name(NULL));
    GIVES(0, "sharding", ap_sharding_recomputes(NULL, 0));
    GIVES(NULL, "sharding", ap_sharding_result(NULL));
    GIVES(NULL, "sharding", ap_sharding_spec(NULL, 0, some, 0));
    GIVES(NULL, "buffer", ap_sharding_spec(some, 0, NULL, 0));
    GIVES(NULL, "simulation", ap_simulation_result(NULL));
}
END_TEST

START_TEST(nothing_can_be_destroyed)
{
    ap_cost_mesh_destroy(NULL);
    ap_cost_model_destroy(NULL);
    ap_explanation_destroy(NULL);
    ap_free(NULL);
    ap_frontend_notes_destroy(NULL);
    ap_graph_destroy(NULL);
    ap_plan_destroy(NULL);
    ap_profile_destroy(NULL);
    ap_sharding_destroy(NULL);
    ap_simulation_destroy(NULL);
}
END_TEST

/* A structure as a newer header has it: its first members are ours. */
#define NEWER(type)                                                                                \
    struct {                                                                                       \
        type known;                                                                                \
        double later;                                                                              \
    }

/* Structures that say nothing of their size are refused, and so is what is not known here. */
#define CHECK_SIZES(type, init, call)                                                              \
    do {                                                                                           \
        NEWER(type) newer = {.known = init, .later = 1};                                           \
        type *params = &newer.known;                                                               \
                                                                                                   \
        params->struct_size = 0;                                                                   \
        ck_assert_int_eq((call), XM_ERR_INVALID_ARGUMENT);                                         \
        ck_assert_ptr_nonnull(strstr(ap_last_error(), "struct_size of " #type));                   \
        params->struct_size = sizeof(newer);                                                       \
        ck_assert_int_eq((call), XM_ERR_UNSUPPORTED);                                              \
        ck_assert_ptr_nonnull(strstr(ap_last_error(), "only a newer library has"));                \
    } while (0)

START_TEST(every_structure_says_its_size)
{
    ap_graph_t *graph;
    void *made;

    ck_assert_xm_ok(ap_frontend_load("mlp2", NULL, &graph, NULL));
    CHECK_SIZES(ap_op_params_t, AP_OP_PARAMS_INIT, ap_graph_add_op(some, params, some));
    CHECK_SIZES(ap_layering_t, AP_LAYERING_INIT,
                ap_graph_make_layers(graph, params, (ap_graph_t **)&made));
    CHECK_SIZES(ap_frontend_params_t, AP_FRONTEND_PARAMS_INIT,
                ap_frontend_load("mlp2", params, (ap_graph_t **)&made, NULL));
    CHECK_SIZES(ap_onnx_params_t, AP_ONNX_PARAMS_INIT,
                ap_onnx_from_bytes("", 0, "none", params, (ap_graph_t **)&made, NULL));
    CHECK_SIZES(ap_alpa_params_t, AP_ALPA_PARAMS_INIT,
                ap_cost_model_create_alpa(params, (ap_cost_model_t **)&made));
    CHECK_SIZES(ap_sharding_params_t, AP_SHARDING_PARAMS_INIT,
                ap_sharding_create(params, (ap_sharding_t **)&made));
    CHECK_SIZES(ap_planner_params_t, AP_PLANNER_PARAMS_INIT,
                ap_planner_plan(params, (ap_plan_t **)&made, NULL));
    CHECK_SIZES(ap_planner_params_t, AP_PLANNER_PARAMS_INIT, ap_plan_verify(params, some));
    CHECK_SIZES(ap_planner_params_t, AP_PLANNER_PARAMS_INIT,
                ap_like_plan("default", params, (ap_plan_t **)&made, NULL));
    CHECK_SIZES(ap_planner_params_t, AP_PLANNER_PARAMS_INIT,
                ap_planner_command_plan(some, params, NULL, NULL, (ap_plan_t **)&made));
    CHECK_SIZES(ap_simulation_params_t, AP_SIMULATION_PARAMS_INIT,
                ap_simulation_create(some, params, (ap_simulation_t **)&made));
    ap_graph_destroy(graph);
}
END_TEST

START_TEST(a_newer_caller_that_asks_nothing_new_is_served)
{
    NEWER(ap_frontend_params_t) newer = {.known = AP_FRONTEND_PARAMS_INIT};
    ap_graph_t *graph;

    newer.known.struct_size = sizeof(newer);
    newer.known.hidden = 64;
    ck_assert_xm_ok(ap_frontend_load("mlp2", &newer.known, &graph, NULL));
    ck_assert_double_eq_tol(ap_graph_parameters(graph), 2 * 64 * 64, 0.5);
    ap_graph_destroy(graph);
}
END_TEST

/* Members behind the older structure's end are not looked at: they keep their defaults. */
START_TEST(an_older_caller_has_the_defaults)
{
    ap_frontend_params_t older = AP_FRONTEND_PARAMS_INIT;
    ap_graph_t *graph;

    older.struct_size = offsetof(ap_frontend_params_t, hidden);
    older.hidden = 64;
    ck_assert_xm_ok(ap_frontend_load("mlp2", &older, &graph, NULL));
    ck_assert_double_eq_tol(ap_graph_parameters(graph), 2 * 128 * 128, 0.5);
    ap_graph_destroy(graph);
}
END_TEST

static ap_profile_t *load_profile(void)
{
    ap_profile_t *profile;

    ck_assert_xm_ok(
        ap_profile_load(xm_test_source_path("tests/fixtures/profiles/lab-2x4.json"), &profile));
    return profile;
}

/* A plan, and what the door says of it, by callers of this and of other versions. */
START_TEST(a_plan_from_the_door)
{
    ap_planner_params_t params = AP_PLANNER_PARAMS_INIT;
    NEWER(ap_planner_info_t) info = {.known = AP_PLANNER_INFO_INIT, .later = 1};
    ap_profile_t *profile = load_profile();
    ap_simulation_t *simulation;
    ap_space_t space = AP_SPACE_INIT;
    ap_plan_t *plan;
    char *text;

    info.known.struct_size = sizeof(info);
    space.pipeline = false;
    params.model = "gpt-125m";
    params.profile = profile;
    params.global_batch = 16;
    params.max_stages = 1;
    params.space = &space;
    ck_assert_xm_ok(ap_planner_plan(&params, &plan, &info.known));
    ck_assert_double_eq_tol(info.known.objective, ap_plan_info(plan)->step, 1e-9);
    ck_assert_double_lt(info.later, 0.5);
    ck_assert_int_eq(ap_plan_stages(plan), 1);
    ck_assert_xm_ok(ap_plan_verify(&params, plan));
    ck_assert_xm_ok(ap_plan_table(plan, &text));
    ck_assert_ptr_nonnull(strstr(text, "gpt-125m"));
    ap_free(text);
    ck_assert_xm_ok(ap_export_plan_text(plan, AP_EXPORT_TORCH, &text));
    ck_assert_int_eq(text[0], '{');
    ap_free(text);
    ck_assert_xm_ok(ap_simulation_create(plan, NULL, &simulation));
    ck_assert_double_eq_tol((double)ap_simulation_result(simulation)->step_ns * 1e-9,
                            ap_plan_info(plan)->step, 1e-3 * ap_plan_info(plan)->step);
    ap_simulation_destroy(simulation);
    space.struct_size = 0;
    ck_assert_int_eq(ap_plan_verify(&params, plan), XM_ERR_INVALID_ARGUMENT);
    ap_plan_destroy(plan);
    ap_profile_destroy(profile);
}
END_TEST

START_TEST(a_sharding_from_the_door)
{
    const int shape[] = {2, 4};
    ap_sharding_params_t params = AP_SHARDING_PARAMS_INIT;
    ap_alpa_params_t alpa = AP_ALPA_PARAMS_INIT;
    ap_cost_model_t *model;
    ap_cost_mesh_t *mesh;
    ap_sharding_t *sharding;
    ap_graph_t *graph;
    char spec[AP_SPEC_TEXT], *text;

    ck_assert_xm_ok(ap_frontend_load("mlp2", NULL, &graph, NULL));
    ck_assert_xm_ok(ap_frontend_train(AP_OPTIMIZER_SGD, &graph));
    ck_assert_xm_ok(ap_cost_model_create_alpa(&alpa, &model));
    ck_assert_xm_ok(ap_cost_mesh_create(model, 2, 4, shape, 2, &mesh));
    FAILS("params.graph", ap_sharding_create(&params, &sharding));
    params.graph = graph;
    FAILS("params.mesh", ap_sharding_create(&params, &sharding));
    params.mesh = mesh;
    ck_assert_xm_ok(ap_sharding_create(&params, &sharding));
    ck_assert(ap_sharding_result(sharding)->optimal);
    ck_assert_uint_eq(strlen(ap_sharding_spec(sharding, 0, spec, sizeof(spec))) >= 2, 1);
    ck_assert_xm_ok(ap_export_sharding(sharding, NULL, AP_EXPORT_JAX, &text));
    ck_assert_ptr_nonnull(strstr(text, "autopar shardings for JAX"));
    ap_free(text);
    ck_assert_int_eq(ap_export_sharding(sharding, NULL, AP_EXPORT_HLO, &text), XM_ERR_UNSUPPORTED);
    ap_sharding_destroy(sharding);
    ap_cost_mesh_destroy(mesh);
    ap_cost_model_destroy(model);
    ap_graph_destroy(graph);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("door");
    TCase *tcase = tcase_create("door");

    tcase_set_timeout(tcase, 60);
    tcase_add_test(tcase, models_and_shardings_need_their_pointers);
    tcase_add_test(tcase, plans_need_their_pointers);
    tcase_add_test(tcase, what_is_read_of_nothing_is_nothing);
    tcase_add_test(tcase, nothing_can_be_destroyed);
    tcase_add_test(tcase, every_structure_says_its_size);
    tcase_add_test(tcase, a_newer_caller_that_asks_nothing_new_is_served);
    tcase_add_test(tcase, an_older_caller_has_the_defaults);
    tcase_add_test(tcase, a_plan_from_the_door);
    tcase_add_test(tcase, a_sharding_from_the_door);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
