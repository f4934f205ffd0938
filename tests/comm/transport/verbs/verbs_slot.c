/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/comm/transport/verbs/verbs_slot.h"

#include <infiniband/verbs.h>
#include <signal.h>
#include <stdio.h>

#include "comm/transport/verbs.h"

enum { SKIP = 77 };

const char *const placement_names[] = {"one port", "across", "two rails", "unlike rails"};

char verbs_devices[2][32];

static xm_counters_t *counters; /* of the slot */

static int find_devices(void)
{
    int count = 0;
    struct ibv_device **list = ibv_get_device_list(&count);

    for (int i = 0; i < 2 && count > 0; ++i) {
        (void)snprintf(verbs_devices[i], sizeof(verbs_devices[i]), "%s",
                       ibv_get_device_name(list[i < count ? i : 0]));
    }
    if (list != NULL) {
        ibv_free_device_list(list);
    }
    return count;
}

static void nics_of(placement_t placement, int rank, char *text, size_t size)
{
    const char *near = verbs_devices[rank % 2], *far = verbs_devices[1 - rank % 2];

    switch (placement) {
    case ONE_PORT:
        (void)snprintf(text, size, "%s", verbs_devices[0]);
        break;
    case ACROSS:
        (void)snprintf(text, size, "%s:1", near);
        break;
    case TWO_RAILS:
        (void)snprintf(text, size, "%s:1,%s:1", near, far);
        break;
    case THREE_RAILS:
        (void)snprintf(text, size, "%s:1,%s:1,%s:1", near, far, near);
        break;
    default:
        (void)snprintf(text, size, "%s:1=1000000000,%s:1=250000000%s%s", near, far,
                       rank % 2 == 1 ? "," : "", rank % 2 == 1 ? far : "");
    }
}

void verbs_barrier(conformance_slot_t *slot)
{
    xm_bootstrap_t *bootstrap = slot->arg;
    double deadline = local_now() + local_timeout(VERBS_WAIT_LIMIT_S);
    xm_status_t status;

    local_expect_ok(xm_bootstrap_allgather_post(bootstrap, NULL, NULL, 0));
    while ((status = xm_bootstrap_allgather_test(bootstrap)) == XM_IN_PROGRESS) {
        local_expect(local_now() < deadline, "barrier did not end");
        (void)xm_transport_progress(slot->transport);
        local_sleep(0.0005);
    }
    local_expect(status == XM_OK, "barrier: %s", xm_last_error());
}

static void die(conformance_slot_t *slot)
{
    (void)slot;
    (void)raise(SIGKILL);
}

void verbs_sit(const xm_job_env_t *env, int listen_fd, placement_t placement, size_t longest_write,
               conformance_slot_t *slot)
{
    xm_transport_verbs_params_t params = XM_TRANSPORT_VERBS_PARAMS_INIT;
    xm_bootstrap_t *bootstrap;
    char nics[128];

    nics_of(placement, env->rank, nics, sizeof(nics));
    local_expect_ok(xm_bootstrap_create_tcp(env, listen_fd, VERBS_WAIT_LIMIT_S, &bootstrap));
    params.nics = nics;
    params.timeout = VERBS_WAIT_LIMIT_S;
    params.longest_write = longest_write;
    local_expect_ok(xm_counters_create(env->size, &counters));
    params.counters = counters;
    *slot = (conformance_slot_t){.barrier = verbs_barrier,
                                 .die = die,
                                 .arg = bootstrap,
                                 .limit = local_timeout(VERBS_WAIT_LIMIT_S)};
    local_expect_ok(xm_transport_verbs_create(bootstrap, &params, &slot->transport));
}

void verbs_leave(conformance_slot_t *slot)
{
    xm_transport_destroy(slot->transport);
    conformance_check_counters(counters, false); /* what nobody wants ends well at its sender */
    xm_counters_destroy(counters);
    counters = NULL;
    xm_bootstrap_destroy(slot->arg);
}

static long read_counter(const char *device, const char *name)
{
    char path[256], text[32] = "";
    FILE *file;

    (void)snprintf(path, sizeof(path), "/sys/class/infiniband/%s/ports/1/hw_counters/%s", device,
                   name);
    file = fopen(path, "re");
    if (file != NULL) {
        local_expect(fgets(text, sizeof(text), file) != NULL, "%s", path);
        (void)fclose(file);
    }
    return strtol(text, NULL, 10);
}

long verbs_counter(const char *name)
{
    return read_counter(verbs_devices[0], name) + (strcmp(verbs_devices[0], verbs_devices[1]) != 0
                                                       ? read_counter(verbs_devices[1], name)
                                                       : 0);
}

TCase *verbs_add_case(Suite *suite, const char *name)
{
    TCase *tcase = tcase_create(name);

    tcase_set_timeout(tcase, VERBS_JOB_LIMIT_S + 10);
    suite_add_tcase(suite, tcase);
    return tcase;
}

int verbs_run(void (*fill)(Suite *suite), const char *name)
{
    Suite *suite;
    long received;
    int result;

    if (find_devices() == 0) {
        (void)printf("skipped: this machine has no RDMA device\n");
        return SKIP;
    }
    received = verbs_counter("rcvd_pkts");
    suite = suite_create(name);
    fill(suite);
    result = xm_test_run(suite);
    /* The kernel's driver counts; hardware may not have this counter. */
    if (result == 0 && strncmp(verbs_devices[0], "rxe", 3) == 0 &&
        verbs_counter("rcvd_pkts") == received) {
        (void)printf("nothing went over %s\n", verbs_devices[0]);
        return 1;
    }
    return result;
}
