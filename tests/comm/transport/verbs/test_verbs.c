/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/transport/verbs.h"

#include <stdio.h>

#include "tests/comm/transport/verbs/verbs_slot.h"

typedef struct {
    const conformance_case_t *which;
    placement_t placement;
} run_t;

static int run_case(const xm_job_env_t *env, int listen_fd, void *arg)
{
    const run_t *run = arg;
    conformance_slot_t slot;

    verbs_sit(env, listen_fd, run->placement, 0, &slot);
    run->which->run(&slot);
    if (run->which->doomed == 0) {
        verbs_barrier(&slot);
    }
    verbs_leave(&slot);
    return 0;
}

static void conform(int index, placement_t placement)
{
    run_t run = {.which = &conformance_cases[index], .placement = placement};
    local_job_t job;
    double started = local_now();

    if (placement == ONE_PORT || placement == UNLIKE_RAILS) {
        /* Deaths take seconds, and are the same there; the rest is left to ./test long. */
        if (run.which->doomed != 0 || xm_test_rounds(2) < 2) {
            return;
        }
    }
    local_job_start(&job, run.which->ranks, 0, VERBS_JOB_LIMIT_S, run_case, &run);
    local_job_wait(&job, run.which->doomed);
    (void)printf("%-26s %-14s %.2f s\n", run.which->name, placement_names[placement],
                 local_now() - started);
    (void)fflush(stdout);
}

START_TEST(conforms_on_one_port)
{
    conform(_i, ONE_PORT);
}
END_TEST

START_TEST(conforms_across_the_wire)
{
    conform(_i, ACROSS);
}
END_TEST

START_TEST(conforms_over_two_rails)
{
    conform(_i, TWO_RAILS);
}
END_TEST

START_TEST(conforms_over_unlike_rails)
{
    conform(_i, UNLIKE_RAILS);
}
END_TEST

/* Lists of ports that are refused, by rank 1 alone; %s is a device. */
static const struct {
    const char *nics;
    xm_status_t status;
    const char *sentence;
} refused[] = {
    {"nosuch0", XM_ERR_NOT_FOUND, "rank 1: XM_NICS: no network device 'nosuch0'"},
    {"lo", XM_ERR_NOT_FOUND, "rank 1: XM_NICS: 'lo' is no RDMA device; there is"},
    {"%s:7", XM_ERR_NOT_FOUND, "rank 1: XM_NICS: no network device"},
    {"%s:1=fast", XM_ERR_PARSE, "rank 1: XM_NICS: rate of"},
};

static int refuse(const xm_job_env_t *env, int listen_fd, void *arg)
{
    int index = *(const int *)arg;
    xm_transport_verbs_params_t params = XM_TRANSPORT_VERBS_PARAMS_INIT;
    xm_bootstrap_t *bootstrap;
    xm_transport_t *transport;
    char nics[128];

    local_expect_ok(xm_bootstrap_create_tcp(env, listen_fd, VERBS_WAIT_LIMIT_S, &bootstrap));
    params.timeout = VERBS_WAIT_LIMIT_S;
    if (env->rank == 1) {
        const char *wild = strstr(refused[index].nics, "%s");

        (void)snprintf(nics, sizeof(nics), "%s%s",
                       wild != NULL ? verbs_devices[0] : refused[index].nics,
                       wild != NULL ? wild + 2 : "");
        params.nics = nics;
        local_expect_fails(xm_transport_verbs_create(bootstrap, &params, &transport),
                           refused[index].status, refused[index].sentence);
        xm_bootstrap_abort(bootstrap, xm_last_error());
    } else {
        local_expect_fails(xm_transport_verbs_create(bootstrap, &params, &transport),
                           XM_ERR_CANCELED, refused[index].sentence);
    }
    xm_bootstrap_destroy(bootstrap);
    return 0;
}

START_TEST(unusable_ports_are_refused)
{
    local_job_run(2, VERBS_JOB_LIMIT_S, refuse, &_i);
}
END_TEST

/* Without a list all ports are used; a spinning transport has nothing to sleep on; one rank alone
 * is a job, and registrations that were forgotten do no harm. */
static int look_around(const xm_job_env_t *env, int listen_fd, void *arg)
{
    static uint8_t bytes[100000];
    xm_transport_verbs_params_t params = XM_TRANSPORT_VERBS_PARAMS_INIT;
    conformance_slot_t slot = {.barrier = verbs_barrier,
                               .limit = local_timeout(VERBS_WAIT_LIMIT_S)};
    xm_bootstrap_t *bootstrap;
    xm_memory_t *memory;
    char lanes[256], expected[256];

    (void)arg;
    local_expect_ok(xm_bootstrap_create_tcp(env, listen_fd, VERBS_WAIT_LIMIT_S, &bootstrap));
    slot.arg = bootstrap;
    params.timeout = VERBS_WAIT_LIMIT_S;
    params.spin = true;
    local_expect_ok(xm_transport_verbs_create(bootstrap, &params, &slot.transport));
    local_expect(xm_transport_event_fd(slot.transport) == -1, "a descriptor");
    local_expect(xm_transport_arm(slot.transport) == XM_IN_PROGRESS, "allowed to sleep");
    local_expect_ok(xm_transport_memory_register(slot.transport, bytes, sizeof(bytes), &memory));
    if (env->size > 1) {
        (void)snprintf(expected, sizeof(expected), "%s:1 > %s:1", verbs_devices[0],
                       verbs_devices[0]);
        local_expect_ok(
            xm_transport_verbs_lanes(slot.transport, 1 - env->rank, lanes, sizeof(lanes)));
        local_expect(strncmp(lanes, expected, strlen(expected)) == 0, "lanes are '%s'", lanes);
        conformance_cases[0].run(&slot);
    }
    local_expect_fails(xm_transport_verbs_lanes(slot.transport, env->rank, lanes, sizeof(lanes)),
                       XM_ERR_INVALID_ARGUMENT, "no verbs peer");
    verbs_barrier(&slot);
    xm_transport_destroy(slot.transport);
    xm_bootstrap_destroy(bootstrap);
    return 0;
}

START_TEST(ports_are_found)
{
    local_job_run(_i, VERBS_JOB_LIMIT_S, look_around, NULL);
}
END_TEST

static void fill(Suite *suite)
{
    TCase *tcase = verbs_add_case(suite, "ports");

    tcase_add_loop_test(tcase, ports_are_found, 1, 3);
    tcase_add_loop_test(tcase, unusable_ports_are_refused, 0,
                        (int)(sizeof(refused) / sizeof(refused[0])));
    tcase = verbs_add_case(suite, "across");
    tcase_add_loop_test(tcase, conforms_across_the_wire, 0, conformance_case_count);
    tcase = verbs_add_case(suite, "rails");
    tcase_add_loop_test(tcase, conforms_over_two_rails, 0, conformance_case_count);
    tcase = verbs_add_case(suite, "unlike");
    tcase_add_loop_test(tcase, conforms_over_unlike_rails, 0, conformance_case_count);
    tcase = verbs_add_case(suite, "one");
    tcase_add_loop_test(tcase, conforms_on_one_port, 0, conformance_case_count);
}

int main(void)
{
    return verbs_run(fill, "transport_verbs");
}
