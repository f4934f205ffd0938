/* SPDX-License-Identifier: Apache-2.0 */
#include "planner/plugin.h"

#include <errno.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "planner/plugin/request.h"
#include "tests/planner/search/planner_fixture.h"
#include "xm_test.h"

static const int64_t b8[] = {8};
static char directory[] = "/tmp/test-planner-library-XXXXXX";
static char plan_path[64];

static ap_planner_params_t params_of(const xm_cluster_profile_t *profile)
{
    ap_planner_params_t params = AP_PLANNER_PARAMS_INIT;

    params.model = "gpt-125m";
    params.profile = profile;
    params.global_batch = 32;
    params.micro_batches = b8;
    params.micro_batch_count = 1;
    params.min_stages = 2;
    return params;
}

/* What a planner told its host: an aborted finalize, too. */
static char logged[256];
static double progressed;

static void keep_log(void *arg, const char *sentence)
{
    (void)snprintf(arg, sizeof(logged), "%s", sentence);
}

static void keep_progress(void *arg, double fraction, const char *what)
{
    (void)arg;
    ck_assert_str_eq(what, "half");
    progressed = fraction;
}

static const autopar_planner_host_v1_t host = {.arg = logged, .log = keep_log};

/* Asks one library; its environment says what it does. No process is left behind. */
static xm_status_t ask_within(double timeout, const char *path, const ap_planner_params_t *params,
                              ap_plan_t **plan)
{
    ap_planner_library_t *library;
    xm_status_t status = ap_planner_library_open(path, &host, timeout, &library);

    logged[0] = '\0';
    if (status == XM_OK) {
        status = ap_planner_library_plan(library, params, plan);
        ap_planner_library_close(library);
    }
    ck_assert_int_eq(waitpid(-1, NULL, WNOHANG), -1);
    ck_assert_int_eq(errno, ECHILD);
    return status;
}

static xm_status_t ask(const char *path, const ap_planner_params_t *params, ap_plan_t **plan)
{
    xm_status_t status = ask_within(0.0, path, params, plan);

    ck_assert_str_eq(logged, "");
    return status;
}

static ap_plan_t *own_plan(const ap_planner_params_t *params)
{
    ap_planner_result_t result;
    ap_plan_t *plan;

    ck_assert_xm_ok(ap_planner_run(params, &result));
    plan = result.plan;
    result.plan = NULL;
    ap_planner_result_clear(&result);
    return plan;
}

static void set_up(void)
{
    ck_assert_ptr_nonnull(mkdtemp(directory));
    (void)snprintf(plan_path, sizeof(plan_path), "%s/plan.json", directory);
    ck_assert_int_eq(setenv("PLANNER_DOUBLE_PLAN", plan_path, 1), 0);
    ck_assert_int_eq(setenv("PLANNER_DOUBLE", "reply", 1), 0);
}

static void tear_down(void)
{
    (void)unlink(plan_path);
    (void)rmdir(directory);
}

START_TEST(our_own_door_gives_our_own_plan)
{
    xm_cluster_profile_t *profile = planner_fixture_profile(2, 2, 64e9);
    ap_planner_params_t params = params_of(profile);
    ap_plan_t *own = own_plan(&params), *through;

    ck_assert_xm_ok(ask(LIBAUTOPAR, &params, &through));
    ck_assert_str_eq(ap_plan_digest(through), ap_plan_digest(own));
    ap_plan_destroy(through);
    ap_plan_destroy(own);
    params.min_stages = params.max_stages = 3;
    params.memory_limit = 1e6;
    ck_assert_xm_fails(ask(LIBAUTOPAR, &params, &through), XM_ERR_NO_SOLUTION,
                       "planner autopar: gpt-125m does not fit into");
    xm_cluster_profile_destroy(profile);
}
END_TEST

START_TEST(a_file_passes_the_door_as_a_graph)
{
    xm_cluster_profile_t *profile = planner_fixture_profile(1, 2, 64e9);
    ap_planner_params_t params = AP_PLANNER_PARAMS_INIT;
    ap_plan_t *own, *through;

    params.model = xm_test_source_path("tests/fixtures/hlo/transformer2.hlo");
    params.profile = profile;
    params.global_batch = 64;
    own = own_plan(&params);
    ck_assert_xm_ok(ask(LIBAUTOPAR, &params, &through));
    /* In a JSON graph names that come twice are told apart, so the digests may differ. */
    ck_assert_int_eq(ap_plan_stages(through), ap_plan_stages(own));
    ck_assert_double_eq_tol(ap_plan_info(through)->step, ap_plan_info(own)->step,
                            1e-12 * ap_plan_info(own)->step);
    ap_plan_destroy(through);
    ap_plan_destroy(own);
    xm_cluster_profile_destroy(profile);
}
END_TEST

START_TEST(another_planner_is_asked_and_answers)
{
    xm_cluster_profile_t *profile = planner_fixture_profile(2, 2, 64e9);
    ap_planner_params_t params = params_of(profile);
    ap_plan_t *own = own_plan(&params), *through;

    ck_assert_xm_ok(ap_plan_save(own, plan_path));
    ck_assert_xm_ok(ask(PLANNER_DOUBLE, &params, &through));
    ck_assert_str_eq(ap_plan_digest(through), ap_plan_digest(own));
    ap_plan_destroy(through);
    ap_plan_destroy(own);
    xm_cluster_profile_destroy(profile);
}
END_TEST

static const struct {
    const char *library, *mode;
    xm_status_t status;
    const char *sentence;
} refusals[] = {
    {PLANNER_DOUBLE, "no-start", XM_ERR_INTERNAL, "the planner double did not start (init: 7)"},
    {PLANNER_DOUBLE, "fail", XM_ERR_INTERNAL, "planner double: it rains and pours"},
    {PLANNER_DOUBLE, "fail-silently", XM_ERR_INTERNAL,
     "planner double: failed without a reason (plan: 3)"},
    {PLANNER_DOUBLE, "no-solution", XM_ERR_NO_SOLUTION, "planner double: it rains and pours"},
    {PLANNER_DOUBLE, "nothing", XM_ERR_PARSE, "planner double: it returned no plan"},
    {PLANNER_DOUBLE, "garbage", XM_ERR_PARSE, "planner double: its plan: line 1, column 1"},
    {PLANNER_HOLES_LIBRARY, "reply", XM_ERR_UNSUPPORTED, "autopar_planner_v1 has no free"},
    {PLANNER_LATER, "reply", XM_ERR_UNSUPPORTED, "is a planner of version 3 (autopar_planner_v3)"},
    {LIBCROSSMESH, "reply", XM_ERR_UNSUPPORTED,
     "is no planner: it does not export autopar_planner_v1"},
    {"/nonexistent/libplanner.so", "reply", XM_ERR_NOT_FOUND, "cannot load the planner: /nonexist"},
};

START_TEST(what_is_no_planner_is_refused)
{
    xm_cluster_profile_t *profile = planner_fixture_profile(2, 2, 64e9);
    ap_planner_params_t params = params_of(profile);
    ap_plan_t *plan;

    ck_assert_int_eq(setenv("PLANNER_DOUBLE", refusals[_i].mode, 1), 0);
    ck_assert_xm_fails(ask(refusals[_i].library, &params, &plan), refusals[_i].status,
                       refusals[_i].sentence);
    xm_cluster_profile_destroy(profile);
}
END_TEST

/* Every wait for a planner ends, and what it breaks is its own. */
static const struct {
    const char *mode;
    xm_status_t status;
    const char *sentence;
} accidents[] = {
    {"hang-in-init", XM_ERR_TIMEOUT,
     "planner libplanner_double.so: its start was not done within 0.3 s; it was ended"},
    {"crash-in-init", XM_ERR_INTERNAL,
     "planner libplanner_double.so: it died of signal 11 (Segmentation fault) during its start"},
    {"hang-in-plan", XM_ERR_TIMEOUT,
     "planner double: its planning was not done within 0.4 s; it was ended"},
    {"crash-in-plan", XM_ERR_INTERNAL,
     "planner double: it died of signal 11 (Segmentation fault) during its planning"},
    {"exit-in-plan", XM_ERR_INTERNAL,
     "planner double: it ended its process with status 5 during its planning"},
};

START_TEST(a_planner_that_hangs_or_crashes_is_a_sentence)
{
    xm_cluster_profile_t *profile = planner_fixture_profile(2, 2, 64e9);
    ap_planner_params_t params = params_of(profile);
    bool at_start = strstr(accidents[_i].mode, "init") != NULL;
    ap_plan_t *plan;

    params.time_limit = strcmp(accidents[_i].mode, "hang-in-plan") == 0 ? 0.4 : 0.0;
    ck_assert_int_eq(setenv("PLANNER_DOUBLE", accidents[_i].mode, 1), 0);
    ck_assert_xm_fails(ask_within(at_start && accidents[_i].status == XM_ERR_TIMEOUT ? 0.3 : 0.0,
                                  PLANNER_DOUBLE, &params, &plan),
                       accidents[_i].status, accidents[_i].sentence);
    xm_cluster_profile_destroy(profile);
}
END_TEST

START_TEST(an_end_that_goes_wrong_is_told)
{
    /* The start has as long as the end, also on a busy machine. */
    static const struct {
        const char *mode;
        double timeout;
        const char *sentence;
    } ends[] = {
        {"hang-in-finalize", 8.0, "planner double: its end was not done within 8 s; it was ended"},
        {"crash-in-finalize", 0.0,
         "planner double: it died of signal 11 (Segmentation fault) during its end"}};
    xm_cluster_profile_t *profile = planner_fixture_profile(2, 2, 64e9);
    ap_planner_params_t params = params_of(profile);
    ap_plan_t *own = own_plan(&params), *through;

    ck_assert_int_eq(setenv("PLANNER_DOUBLE", ends[_i].mode, 1), 0);
    ck_assert_xm_ok(ap_plan_save(own, plan_path));
    ck_assert_xm_ok(ask_within(ends[_i].timeout, PLANNER_DOUBLE, &params, &through));
    ck_assert_str_eq(logged, ends[_i].sentence);
    ap_plan_destroy(through);
    ap_plan_destroy(own);
    xm_cluster_profile_destroy(profile);
}
END_TEST

START_TEST(an_ended_planner_is_not_asked_again)
{
    xm_cluster_profile_t *profile = planner_fixture_profile(2, 2, 64e9);
    ap_planner_params_t params = params_of(profile);
    ap_planner_library_t *library;
    ap_plan_t *plan;

    ck_assert_int_eq(setenv("PLANNER_DOUBLE", "crash-in-plan", 1), 0);
    ck_assert_xm_ok(ap_planner_library_open(PLANNER_DOUBLE, NULL, 0.0, &library));
    ck_assert_str_eq(ap_planner_library_name(library), "double");
    ck_assert_xm_fails(ap_planner_library_plan(library, &params, &plan), XM_ERR_INTERNAL,
                       "during its planning");
    ck_assert_xm_fails(ap_planner_library_plan(library, &params, &plan), XM_ERR_INTERNAL,
                       "planner double: it is no longer running");
    ap_planner_library_close(library);
    ap_planner_library_close(NULL);
    xm_cluster_profile_destroy(profile);
}
END_TEST

/* One init serves several requests; progress and words arrive in this process. */
START_TEST(a_planner_reports_to_its_host)
{
    const autopar_planner_host_v1_t both = {
        .arg = logged, .progress = keep_progress, .log = keep_log};
    xm_cluster_profile_t *profile = planner_fixture_profile(2, 2, 64e9);
    ap_planner_params_t params = params_of(profile);
    ap_plan_t *own = own_plan(&params), *through;
    ap_planner_library_t *library;

    ck_assert_int_eq(setenv("PLANNER_DOUBLE", "log", 1), 0);
    ck_assert_xm_ok(ap_plan_save(own, plan_path));
    ck_assert_xm_ok(ap_planner_library_open(PLANNER_DOUBLE, &both, 0.0, &library));
    for (int i = 0; i < 3; ++i) {
        progressed = 0.0;
        logged[0] = '\0';
        ck_assert_xm_ok(ap_planner_library_plan(library, &params, &through));
        ck_assert_str_eq(ap_plan_digest(through), ap_plan_digest(own));
        ck_assert_double_eq(progressed, 0.5);
        ck_assert_str_eq(logged, "a word from the planner");
        ap_plan_destroy(through);
    }
    logged[0] = '\0';
    ap_planner_library_close(library);
    ck_assert_str_eq(logged, "");
    ap_plan_destroy(own);
    xm_cluster_profile_destroy(profile);
}
END_TEST

START_TEST(a_request_survives_its_text)
{
    xm_cluster_profile_t *profile = planner_fixture_profile(2, 2, 64e9);
    ap_planner_params_t params = params_of(profile);
    ap_planner_request_t request;
    char *text;

    params.schedule = "gpipe";
    params.recompute = AP_RECOMPUTE_OFF;
    params.memory_limit = 3e9;
    ck_assert_xm_ok(ap_planner_request_text(&params, &text));
    ck_assert_xm_ok(ap_planner_request_parse(text, strlen(text), &request));
    ck_assert_str_eq(request.params.model, "gpt-125m");
    ck_assert_ptr_null(request.params.graph);
    ck_assert_str_eq(request.params.schedule, "gpipe");
    ck_assert_int_eq(request.params.recompute, AP_RECOMPUTE_OFF);
    ck_assert_int_eq(request.params.global_batch, 32);
    ck_assert_uint_eq(request.params.micro_batch_count, 1);
    ck_assert_int_eq(request.params.micro_batches[0], 8);
    ck_assert_int_eq(request.params.min_stages, 2);
    ck_assert_int_eq(request.params.max_stages, 0);
    ck_assert_double_eq(request.params.memory_limit, 3e9);
    ck_assert_int_eq(xm_cluster_profile_hosts(request.params.profile), 2);
    ap_planner_request_clear(&request);
    text[strlen(text) - 1] = '\0';
    ck_assert_xm_fails(ap_planner_request_parse(text, strlen(text), &request), XM_ERR_PARSE,
                       "the request: line 1");
    free(text);
    ck_assert_xm_fails(ap_planner_request_parse("{}", 2, &request), XM_ERR_PARSE, "the request:");
    xm_cluster_profile_destroy(profile);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("planner_library");
    TCase *tcase = tcase_create("planner_library");

    tcase_add_checked_fixture(tcase, set_up, tear_down);
    tcase_set_timeout(tcase, 60);
    tcase_add_test(tcase, our_own_door_gives_our_own_plan);
    tcase_add_test(tcase, a_file_passes_the_door_as_a_graph);
    tcase_add_test(tcase, another_planner_is_asked_and_answers);
    tcase_add_loop_test(tcase, what_is_no_planner_is_refused, 0,
                        (int)(sizeof(refusals) / sizeof(refusals[0])));
    tcase_add_loop_test(tcase, a_planner_that_hangs_or_crashes_is_a_sentence, 0,
                        (int)(sizeof(accidents) / sizeof(accidents[0])));
    tcase_add_loop_test(tcase, an_end_that_goes_wrong_is_told, 0, 2);
    tcase_add_test(tcase, an_ended_planner_is_not_asked_again);
    tcase_add_test(tcase, a_planner_reports_to_its_host);
    tcase_add_test(tcase, a_request_survives_its_text);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
