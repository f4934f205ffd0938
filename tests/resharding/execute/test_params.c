/* SPDX-License-Identifier: Apache-2.0 */
/* Structs of callers that were compiled with older and newer headers, for every struct with a
 * struct_size. */
#include "comm/base/params.h"

#include <stdio.h>
#include <unistd.h>

#include "comm/job/bootstrap.h"
#include "comm/profile/cluster_profile.h"
#include "comm/job/launcher.h"
#include "comm/probe/probe.h"
#include "comm/worker/worker.h"
#include "resharding/plan.h"
#include "xm_test.h"

enum { EXTRA = 24, SENTENCE = 1024 };

static xm_mesh_t *mesh;
static xm_layout_t *layout;
static xm_network_t *network;
static xm_plan_t *plan;

static void set_up(void)
{
    const int host_of_rank[] = {0, 1};
    const int64_t shape[] = {8};
    xm_network_params_t rates = XM_NETWORK_PARAMS_INIT;
    xm_plan_params_t params = XM_PLAN_PARAMS_INIT;
    xm_spec_t spec;

    rates.ranks = 2;
    rates.host_of_rank = host_of_rank;
    rates.nic_bandwidth = rates.host_bandwidth = 1e9;
    ck_assert_xm_ok(xm_network_create(&rates, &network));
    ck_assert_xm_ok(xm_mesh_parse("2", NULL, 0, &mesh));
    ck_assert_xm_ok(xm_spec_parse("S0", &spec));
    ck_assert_xm_ok(xm_layout_create(mesh, &spec, XM_PARTITION_EVEN, shape, &layout));
    params.src = params.dst = layout;
    params.element_size = 4;
    params.network = network;
    params.strategy = XM_STRATEGY_BROADCAST;
    params.scheduler = XM_SCHEDULER_BALANCE;
    ck_assert_xm_ok(xm_plan_create(&params, &plan));
}

static void tear_down(void)
{
    xm_plan_destroy(plan);
    xm_layout_destroy(layout);
    xm_mesh_destroy(mesh);
    xm_network_destroy(network);
}

/* Each takes a struct that its function understands and then refuses for a reason of its own,
 * before it has done anything: the reason tells that the fields were read. */

static xm_status_t call_worker(const void *params)
{
    xm_job_env_t env = {.rank = 0, .size = 1, .master_port = -1};
    xm_worker_t *worker;

    return xm_worker_create(&env, params, &worker);
}

static xm_status_t call_oob(const void *params)
{
    xm_bootstrap_t *bootstrap;

    return xm_bootstrap_create_oob(params, &bootstrap);
}

static xm_status_t call_network(const void *params)
{
    xm_network_t *made;

    return xm_network_create(params, &made);
}

static xm_status_t call_plan(const void *params)
{
    xm_plan_t *made;

    return xm_plan_create(params, &made);
}

static xm_status_t call_profile(const void *params)
{
    xm_cluster_profile_t *made;

    return xm_cluster_profile_create(params, &made);
}

static xm_status_t call_probe(const void *params)
{
    xm_cluster_profile_t *made;

    return xm_probe_run(NULL, params, &made);
}

static xm_status_t call_launch(const void *params)
{
    int exit_code;

    return xm_launch(params, &exit_code);
}

typedef struct {
    const char *name;
    size_t size, old_size; /* the latter: of a caller who does not know the last field */
    xm_status_t (*call)(const void *params);
    const char *reason; /* of the refusal */
} rule_t;

#define RULE(type, last, call, reason)                                                             \
    {                                                                                              \
#type, sizeof(type), offsetof(type, last), call, reason                                    \
    }

static const rule_t rules[] = {
    RULE(xm_worker_params_t, oob_only, call_worker, "no transport 'pigeon'"),
    RULE(xm_oob_t, allgather_free, call_oob, ""),
    RULE(xm_network_params_t, rail_ingress, call_network, "at least one rank, not -3"),
    RULE(xm_plan_params_t, network, call_plan, ""),
    RULE(xm_cluster_profile_params_t, gradient_overlap, call_profile, "provenance is empty"),
    RULE(xm_probe_params_t, progress_arg, call_probe, "-5 repetitions"),
    RULE(xm_launch_params_t, master_port, call_launch, "no argv"),
};

/* A struct of rule @p i, complete, in the place that has room for one of a newer caller. */
static void fill(int i, void *at)
{
    const int host_of_rank[] = {0};
    union {
        xm_worker_params_t worker;
        xm_oob_t oob;
        xm_network_params_t network;
        xm_plan_params_t plan;
        xm_cluster_profile_params_t profile;
        xm_probe_params_t probe;
        xm_launch_params_t launch;
    } of;

    memset(&of, 0, sizeof(of));
    of.worker.struct_size = rules[i].size; /* the first field of all */
    if (rules[i].call == call_worker) {
        of.worker.transport = "pigeon";
        of.worker.listen_fd = -1;
    } else if (rules[i].call == call_oob) {
        of.oob.rank = 5; /* the functions are missing, too, which is found first */
        of.oob.size = 2;
    } else if (rules[i].call == call_network) {
        of.network.ranks = -3;
        of.network.host_of_rank = host_of_rank;
    } else if (rules[i].call == call_plan) {
        of.plan.src = of.plan.dst = layout;
    } else if (rules[i].call == call_profile) {
        of.profile.name = "somewhere";
    } else if (rules[i].call == call_probe) {
        of.probe.repetitions = -5;
    }
    memcpy(at, &of, rules[i].size);
}

static void set_size(void *at, size_t size)
{
    memcpy(at, &size, sizeof(size));
}

/* What the call says to a struct of just the library's size. */
static xm_status_t say(int i, char *sentence)
{
    char *given = calloc(1, rules[i].size);
    xm_status_t status;

    fill(i, given);
    status = rules[i].call(given);
    ck_assert_int_lt(status, 0);
    (void)snprintf(sentence, SENTENCE, "%s", xm_last_error());
    ck_assert_msg(strstr(sentence, rules[i].reason) != NULL, "%s: %s", rules[i].name, sentence);
    free(given);
    return status;
}

START_TEST(a_newer_struct_with_a_zero_tail_is_taken)
{
    char sentence[SENTENCE];
    xm_status_t status = say(_i, sentence);
    char *given = calloc(1, rules[_i].size + EXTRA);

    fill(_i, given);
    set_size(given, rules[_i].size + EXTRA);
    ck_assert_int_eq(rules[_i].call(given), status);
    ck_assert_str_eq(xm_last_error(), sentence);
    free(given);
}
END_TEST

START_TEST(a_newer_struct_that_asks_for_more_is_refused)
{
    char *given = calloc(1, rules[_i].size + EXTRA), sizes[64];

    (void)snprintf(sizes, sizeof(sizes), "%s has %zu bytes and this library knows %zu",
                   rules[_i].name, rules[_i].size + EXTRA, rules[_i].size);
    for (int byte = 0; byte < EXTRA; ++byte) {
        fill(_i, given);
        memset(given + rules[_i].size, 0, EXTRA);
        set_size(given, rules[_i].size + EXTRA);
        given[rules[_i].size + (size_t)byte] = 1;
        ck_assert_xm_fails(rules[_i].call(given), XM_ERR_UNSUPPORTED, sizes);
    }
    free(given);
}
END_TEST

START_TEST(an_older_struct_is_taken_and_nothing_behind_it_is_read)
{
    char sentence[SENTENCE];
    xm_status_t status = say(_i, sentence);
    char *whole = calloc(1, rules[_i].size), *given = malloc(rules[_i].old_size);

    fill(_i, whole);
    memcpy(given, whole, rules[_i].old_size);
    set_size(given, rules[_i].old_size);
    ck_assert_int_eq(rules[_i].call(given), status);
    ck_assert_str_eq(xm_last_error(), sentence);
    free(given);
    free(whole);
}
END_TEST

START_TEST(a_struct_without_a_size_is_refused)
{
    char *given = calloc(1, rules[_i].size), text[128];

    for (size_t size = 0; size < sizeof(size_t); ++size) {
        (void)snprintf(text, sizeof(text), "struct_size of %s is %zu, not %zu", rules[_i].name,
                       size, rules[_i].size);
        fill(_i, given);
        set_size(given, size);
        ck_assert_xm_fails(rules[_i].call(given), XM_ERR_INVALID_ARGUMENT, text);
    }
    ck_assert_xm_fails(rules[_i].call(NULL), XM_ERR_INVALID_ARGUMENT, "params is NULL");
    free(given);
}
END_TEST

START_TEST(initialisers_are_complete)
{
    xm_worker_params_t worker = XM_WORKER_PARAMS_INIT;
    xm_network_params_t rates = XM_NETWORK_PARAMS_INIT;
    xm_plan_params_t params = XM_PLAN_PARAMS_INIT;
    xm_plan_info_t info = XM_PLAN_INFO_INIT;

    ck_assert_uint_eq(worker.struct_size, sizeof(worker));
    ck_assert_int_eq(worker.listen_fd, -1);
    ck_assert(worker.transport == NULL && worker.oob == NULL && !worker.oob_only);
    ck_assert_uint_eq(rates.struct_size, sizeof(rates));
    ck_assert(rates.ranks == 0 && rates.host_of_rank == NULL && rates.rack_of_host == NULL);
    ck_assert_uint_eq(params.struct_size, sizeof(params));
    ck_assert_int_eq(params.strategy, XM_STRATEGY_AUTO);
    ck_assert_int_eq(params.scheduler, XM_SCHEDULER_AUTO);
    ck_assert(params.tensors == NULL && params.network == NULL && params.chunk_bytes == 0);
    ck_assert_uint_eq(info.struct_size, sizeof(info));
    ck_assert_str_eq(info.digest, "");
}
END_TEST

START_TEST(what_is_filled_in_fits_older_and_newer_callers)
{
    struct {
        xm_plan_info_t known;
        char later[EXTRA];
    } newer;
    xm_plan_info_t info = XM_PLAN_INFO_INIT, older;

    ck_assert_xm_ok(xm_plan_get_info(plan, &info));
    ck_assert_uint_eq(info.bytes, 32);
    ck_assert_uint_eq(strlen(info.digest), 32);
    ck_assert_str_eq(info.strategy_name, "broadcast");
    ck_assert_str_eq(info.scheduler_name, "balance");

    memset(&newer, 0x55, sizeof(newer));
    newer.known.struct_size = sizeof(newer);
    ck_assert_xm_ok(xm_plan_get_info(plan, &newer.known));
    ck_assert_uint_eq(newer.known.struct_size, sizeof(newer));
    ck_assert_str_eq(newer.known.digest, info.digest);
    for (int i = 0; i < EXTRA; ++i) {
        ck_assert_int_eq(newer.later[i], 0);
    }

    memset(&older, 0x55, sizeof(older));
    older.struct_size = offsetof(xm_plan_info_t, bound_ns);
    ck_assert_xm_ok(xm_plan_get_info(plan, &older));
    ck_assert_uint_eq(older.net_bytes, info.net_bytes);
    ck_assert_int_eq(older.bound_ns, 0x5555555555555555);
    older.struct_size = 3;
    ck_assert_xm_fails(xm_plan_get_info(plan, &older), XM_ERR_INVALID_ARGUMENT,
                       "struct_size of xm_plan_info_t is 3");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("params");
    TCase *tcase = tcase_create("all");
    int count = (int)(sizeof(rules) / sizeof(rules[0]));

    tcase_add_checked_fixture(tcase, set_up, tear_down);
    tcase_add_loop_test(tcase, a_newer_struct_with_a_zero_tail_is_taken, 0, count);
    tcase_add_loop_test(tcase, a_newer_struct_that_asks_for_more_is_refused, 0, count);
    tcase_add_loop_test(tcase, an_older_struct_is_taken_and_nothing_behind_it_is_read, 0, count);
    tcase_add_loop_test(tcase, a_struct_without_a_size_is_refused, 0, count);
    tcase_add_test(tcase, initialisers_are_complete);
    tcase_add_test(tcase, what_is_filled_in_fits_older_and_newer_callers);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
