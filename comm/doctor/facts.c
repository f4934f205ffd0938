/* SPDX-License-Identifier: Apache-2.0 */
/* What system calls and libraries tell of this machine, as opposed to files. It is collected in one
 * struct, so that checks are functions of files and this struct, and tests can invent both. Where 0
 * could be taken for a fact, a flag of its own tells whether the system has told it. */
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/statvfs.h>
#include <sys/timex.h>
#include <time.h>
#include <ucp/api/ucp.h>
#include <unistd.h>

#include "comm/base.h"
#include "comm/doctor/doctor_private.h"
#include "comm/transport/ucx.h"

static void read_clock(xm_doctor_facts_t *facts)
{
    struct timespec step;
    struct timex state = {0};
    int state_code = adjtimex(&state);

    if (clock_getres(CLOCK_MONOTONIC, &step) == 0) {
        facts->clock_resolution = (double)step.tv_sec + (double)step.tv_nsec * 1e-9;
    }
    facts->clock_known = state_code >= 0;
    facts->clock_synchronised =
        state_code >= 0 && state_code != TIME_ERROR && (state.status & STA_UNSYNC) == 0;
    facts->clock_error = (double)state.maxerror * 1e-6;
}

/* Memory without a name is tried, because container profiles forbid the call without any other
 * sign. */
static void read_shared_memory(xm_doctor_facts_t *facts)
{
    struct statvfs shm;
    int fd = memfd_create("crossmesh-doctor", MFD_CLOEXEC);

    facts->memfd = fd >= 0;
    if (fd >= 0) {
        (void)close(fd);
    }
    if (statvfs("/dev/shm", &shm) == 0) {
        facts->has_shm = true;
        facts->shm_size = (uint64_t)shm.f_blocks * shm.f_frsize;
        facts->shm_free = (uint64_t)shm.f_bavail * shm.f_frsize;
    }
}

/* Ports that are not active have no MTU that matters. */
static void read_port(xm_doctor_facts_t *facts, struct ibv_context *context, const char *device,
                      uint8_t number)
{
    struct ibv_port_attr port;

    if (facts->ports == XM_DOCTOR_PORTS || ibv_query_port(context, number, &port) != 0 ||
        port.state != IBV_PORT_ACTIVE) {
        return;
    }
    (void)snprintf(facts->port[facts->ports].name, sizeof(facts->port[0].name), "%s:%d", device,
                   number);
    facts->port[facts->ports].mtu = 128 << port.active_mtu;
    facts->port[facts->ports].max_mtu = 128 << port.max_mtu;
    ++facts->ports;
}

/* Each device is opened and closed again: nothing is left registered. */
static void read_ports(xm_doctor_facts_t *facts)
{
    int count = 0;
    struct ibv_device **devices = ibv_get_device_list(&count);

    for (int i = 0; devices != NULL && i < count; ++i) {
        struct ibv_context *context = ibv_open_device(devices[i]);
        struct ibv_device_attr attributes;

        if (context == NULL) {
            continue;
        }
        if (ibv_query_device(context, &attributes) == 0) {
            for (uint8_t port = 1; port <= attributes.phys_port_cnt; ++port) {
                read_port(facts, context, ibv_get_device_name(devices[i]), port);
            }
        }
        (void)ibv_close_device(context);
    }
    if (devices != NULL) {
        ibv_free_device_list(devices);
    }
}

/* Finds the transports in UCX's report of a context, which has lines "#      resource 1  :  md
 * 1  dev 1  flags -- tcp/eth0". */
static void read_transports(xm_doctor_facts_t *facts, ucp_context_h context)
{
    char *report = NULL;
    size_t size = 0;
    FILE *stream = open_memstream(&report, &size);

    if (stream == NULL) {
        return;
    }
    ucp_context_print_info(context, stream);
    if (fclose(stream) == 0) {
        for (const char *at = report; (at = strstr(at, "resource ")) != NULL; ++at) {
            const char *end = at + strcspn(at, "\n");
            const char *slash = memchr(at, '/', (size_t)(end - at)), *word = slash;

            while (word != NULL && word > at && word[-1] != ' ') {
                --word;
            }
            if (word != NULL) {
                xm_ucx_append_word(facts->ucx_transports, sizeof(facts->ucx_transports), word,
                                   (size_t)(slash - word));
            }
        }
    }
    free(report);
}

/* UCX is started as a transport would start it, so that its refusal is seen here, with its
 * reason. */
static void read_ucx(xm_doctor_facts_t *facts)
{
    ucp_params_t params = {.field_mask = UCP_PARAM_FIELD_FEATURES, .features = UCP_FEATURE_TAG};
    ucp_config_t *config;
    ucp_context_h context;
    ucs_status_t status = ucp_config_read(NULL, NULL, &config);

    (void)snprintf(facts->ucx_version, sizeof(facts->ucx_version), "%s", ucp_get_version_string());
    if (status != UCS_OK) {
        (void)snprintf(facts->ucx_failure, sizeof(facts->ucx_failure),
                       "refuses its UCX_ variables: %s", ucs_status_string(status));
        return;
    }
    status = ucp_init(&params, config, &context);
    ucp_config_release(config);
    if (status != UCS_OK) {
        (void)snprintf(facts->ucx_failure, sizeof(facts->ucx_failure), "does not start: %s",
                       ucs_status_string(status));
        return;
    }
    read_transports(facts, context);
    ucp_cleanup(context);
}

/* Takes a few hundredths of a second, most of it for UCX. */
void xm_doctor_facts_read(xm_doctor_facts_t *facts)
{
    *facts = (xm_doctor_facts_t){0};
    if (xm_config_check() < 0) {
        (void)snprintf(facts->settings, sizeof(facts->settings), "%s", xm_last_error());
    }
    read_clock(facts);
    read_shared_memory(facts);
    read_ports(facts);
    read_ucx(facts);
}
