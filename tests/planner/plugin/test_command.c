/* SPDX-License-Identifier: Apache-2.0 */
#include "planner/plugin.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "planner/plugin/request.h"
#include "tests/planner/search/planner_fixture.h"
#include "xm_test.h"

/* Our own planner as a command. */
static const char OWN[] = AUTOPAR " plan --request -";

static const int64_t b8[] = {8};
static char directory[] = "/tmp/test-planner-command-XXXXXX";
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

/* What a command said besides its plan: the last line, and how far it was. */
static char logged[256];
static double progressed;

static void keep_log(void *arg, const char *line)
{
    (void)snprintf(arg, sizeof(logged), "%s", line);
}

static void keep_progress(void *arg, double fraction, const char *what)
{
    (void)arg;
    ck_assert_str_eq(what, "half");
    progressed = fraction;
}

/* Asks one command. No process is left behind. */
static xm_status_t ask(const char *command, const ap_planner_params_t *params, ap_plan_t **plan)
{
    xm_status_t status;

    logged[0] = '\0';
    status = ap_planner_command_plan(command, params, keep_log, logged, plan);
    ck_assert_int_eq(waitpid(-1, NULL, WNOHANG), -1);
    ck_assert_int_eq(errno, ECHILD);
    return status;
}

/* The planner for tests, with the file of a plan. */
static const char *double_of(const char *mode)
{
    static char command[1024];

    (void)snprintf(command, sizeof(command), "'%s' %s %s",
                   xm_test_source_path("tests/planner/plugin/planner_double.py"), mode, plan_path);
    return command;
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
}

static void tear_down(void)
{
    (void)unlink(plan_path);
    (void)rmdir(directory);
}

START_TEST(our_own_command_gives_our_own_plan)
{
    xm_cluster_profile_t *profile = planner_fixture_profile(2, 2, 64e9);
    ap_planner_params_t params = params_of(profile);
    ap_plan_t *own = own_plan(&params), *through;

    ck_assert_xm_ok(ask(OWN, &params, &through));
    ck_assert_str_eq(ap_plan_digest(through), ap_plan_digest(own));
    ap_plan_destroy(through);
    ap_plan_destroy(own);
    params.min_stages = params.max_stages = 3;
    params.memory_limit = 1e6;
    ck_assert_xm_fails(ask(OWN, &params, &through), XM_ERR_NO_SOLUTION,
                       "autopar plan: gpt-125m does not fit into");
    xm_cluster_profile_destroy(profile);
}
END_TEST

START_TEST(a_file_passes_as_a_graph)
{
    xm_cluster_profile_t *profile = planner_fixture_profile(1, 2, 64e9);
    ap_planner_params_t params = AP_PLANNER_PARAMS_INIT;
    ap_plan_t *own, *through;

    params.model = xm_test_source_path("tests/fixtures/hlo/transformer2.hlo");
    params.profile = profile;
    params.global_batch = 64;
    own = own_plan(&params);
    ck_assert_xm_ok(ask(OWN, &params, &through));
    /* In a JSON graph names that come twice are told apart, so the digests may differ. */
    ck_assert_int_eq(ap_plan_stages(through), ap_plan_stages(own));
    ck_assert_double_eq_tol(ap_plan_info(through)->step, ap_plan_info(own)->step,
                            1e-12 * ap_plan_info(own)->step);
    ap_plan_destroy(through);
    ap_plan_destroy(own);
    xm_cluster_profile_destroy(profile);
}
END_TEST

static const struct {
    const char *mode;
    double progress;
    const char *log;
} answers[] = {{"reply", 0.5, "progress report"},
               {"unread", 0.0, ""},
               {"leaves-child", 0.5, "progress report"}};

START_TEST(another_planner_is_asked_and_answers)
{
    xm_cluster_profile_t *profile = planner_fixture_profile(2, 2, 64e9);
    ap_planner_params_t params = params_of(profile);
    ap_plan_t *own = own_plan(&params), *through;

    params.progress = keep_progress;
    progressed = 0.0;
    ck_assert_xm_ok(ap_plan_save(own, plan_path));
    ck_assert_xm_ok(ask(double_of(answers[_i].mode), &params, &through));
    ck_assert_str_eq(ap_plan_digest(through), ap_plan_digest(own));
    ck_assert_double_eq(progressed, answers[_i].progress);
    ck_assert_str_eq(logged, answers[_i].log);
    ap_plan_destroy(through);
    ap_plan_destroy(own);
    xm_cluster_profile_destroy(profile);
}
END_TEST

static const struct {
    const char *mode; /* NULL: `command` */
    const char *command;
    xm_status_t status;
    const char *sentence;
} refusals[] = {
    {"fail", NULL, XM_ERR_INTERNAL, ": it rains\\x1b[31m"},
    {"fail-silently", NULL, XM_ERR_INTERNAL, ": progress report"},
    {"no-solution", NULL, XM_ERR_NO_SOLUTION, ": it rains\\x1b[31m"},
    {"nothing", NULL, XM_ERR_PARSE, ": it wrote no plan"},
    {"garbage", NULL, XM_ERR_PARSE, ": its plan: line 1, column 1"},
    {"crash", NULL, XM_ERR_INTERNAL, ": it died of signal 11 (Segmentation fault)"},
    {"endless", NULL, XM_ERR_PARSE, ": its plan has more than 64 MiB"},
    {NULL, "exit 3", XM_ERR_INTERNAL, "planner exit 3: it gave no reason (exit status 3)"},
    {NULL, "exit 2", XM_ERR_NO_SOLUTION, "planner exit 2: it gave no reason (exit status 2)"},
    {NULL, "cat; echo \"it's late\" >&2; exit 1", XM_ERR_INTERNAL, "exit 1: it's late"},
    {NULL, "cat", XM_ERR_PARSE,
     "planner cat: its plan: this is not a plan: format is 'autopar-req"},
    {NULL, "exec cat /dev/stdin", XM_ERR_PARSE, "its plan: this is not a plan"},
    {NULL, "kill -9 $$", XM_ERR_INTERNAL, "planner kill -9 $$: it died of signal 9 (Killed)"},
    {NULL, "/nonexistent/planner", XM_ERR_INTERNAL, "/nonexistent/planner: "},
    {NULL, "", XM_ERR_PARSE, "planner : it wrote no plan"},
};

START_TEST(what_is_no_planner_is_refused)
{
    xm_cluster_profile_t *profile = planner_fixture_profile(2, 2, 64e9);
    ap_planner_params_t params = params_of(profile);
    const char *command =
        refusals[_i].mode != NULL ? double_of(refusals[_i].mode) : refusals[_i].command;
    ap_plan_t *plan;

    ck_assert_xm_fails(ask(command, &params, &plan), refusals[_i].status, refusals[_i].sentence);
    xm_cluster_profile_destroy(profile);
}
END_TEST

/* Every wait for a planner ends. */
static const char *const hanging[] = {"hang", "hang-silently", "hang-with-child", "endless-words"};

START_TEST(a_planner_that_hangs_is_ended)
{
    xm_cluster_profile_t *profile = planner_fixture_profile(2, 2, 64e9);
    ap_planner_params_t params = params_of(profile);
    double start = xm_clock_seconds();
    ap_plan_t *plan;

    params.time_limit = 0.7;
    ck_assert_xm_fails(ask(double_of(hanging[_i]), &params, &plan), XM_ERR_TIMEOUT,
                       ": it was not done within 0.7 s; it was ended");
    ck_assert_double_ge(xm_clock_seconds() - start, 0.7);
    xm_cluster_profile_destroy(profile);
}
END_TEST

/* Waits for the end of a process that is not a child; who collects it may take a moment. */
static bool is_gone(pid_t process)
{
    char path[64], state = 'Z';
    FILE *file;

    for (int i = 0; i < 1000; ++i) {
        (void)snprintf(path, sizeof(path), "/proc/%d/stat", (int)process);
        file = fopen(path, "r");
        if (file == NULL) {
            return true;
        }
        if (fscanf(file, "%*d %*s %c", &state) != 1) {
            state = 'Z';
        }
        (void)fclose(file);
        if (state == 'Z') {
            return true;
        }
        (void)usleep(10000);
    }
    return false;
}

/* The planner and what it has started, by its file. */
static bool read_processes(int *planner, int *child)
{
    FILE *file = fopen(plan_path, "r");
    bool read = file != NULL && fscanf(file, "%d %d\n", planner, child) == 2;

    if (file != NULL) {
        (void)fclose(file);
    }
    return read;
}

START_TEST(a_planner_does_not_outlive_its_caller)
{
    xm_cluster_profile_t *profile = planner_fixture_profile(2, 2, 64e9);
    ap_planner_params_t params = params_of(profile);
    const char *command = double_of("hang-with-child");
    int planner = 0, child = 0;
    ap_plan_t *plan;
    pid_t caller = fork();

    if (caller == 0) {
        (void)ap_planner_command_plan(command, &params, NULL, NULL, &plan);
        _exit(0);
    }
    for (int i = 0; i < 1000 && !read_processes(&planner, &child); ++i) {
        (void)usleep(10000);
    }
    ck_assert_int_gt(planner, 0);
    ck_assert_int_gt(child, 0);
    ck_assert_int_eq(kill(caller, SIGKILL), 0);
    ck_assert_int_eq(waitpid(caller, NULL, 0), caller);
    ck_assert(is_gone(planner));
    ck_assert(is_gone(child));
    xm_cluster_profile_destroy(profile);
}
END_TEST

/* Who asks may not have looked at what it was given as standard streams. */
START_TEST(a_caller_without_standard_streams_may_ask)
{
    xm_cluster_profile_t *profile = planner_fixture_profile(2, 2, 64e9);
    ap_planner_params_t params = params_of(profile);
    ap_plan_t *own = own_plan(&params), *through;
    pid_t caller;
    int status;

    ck_assert_xm_ok(ap_plan_save(own, plan_path));
    caller = fork();
    if (caller == 0) {
        for (int stream = 0; stream < 3; ++stream) {
            (void)close(stream);
        }
        status = ap_planner_command_plan(double_of("reply"), &params, NULL, NULL, &through);
        _exit(status == XM_OK && strcmp(ap_plan_digest(own), ap_plan_digest(through)) == 0 ? 0 : 1);
    }
    ck_assert_int_eq(waitpid(caller, &status, 0), caller);
    ck_assert_int_eq(status, 0);
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
    Suite *suite = suite_create("planner_command");
    TCase *tcase = tcase_create("planner_command");

    tcase_add_checked_fixture(tcase, set_up, tear_down);
    tcase_set_timeout(tcase, 60);
    tcase_add_test(tcase, our_own_command_gives_our_own_plan);
    tcase_add_test(tcase, a_file_passes_as_a_graph);
    tcase_add_loop_test(tcase, another_planner_is_asked_and_answers, 0,
                        (int)(sizeof(answers) / sizeof(answers[0])));
    tcase_add_loop_test(tcase, what_is_no_planner_is_refused, 0,
                        (int)(sizeof(refusals) / sizeof(refusals[0])));
    tcase_add_loop_test(tcase, a_planner_that_hangs_is_ended, 0,
                        (int)(sizeof(hanging) / sizeof(hanging[0])));
    tcase_add_test(tcase, a_planner_does_not_outlive_its_caller);
    tcase_add_test(tcase, a_caller_without_standard_streams_may_ask);
    tcase_add_test(tcase, a_request_survives_its_text);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
