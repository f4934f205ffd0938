/* SPDX-License-Identifier: Apache-2.0 */
/* What a launcher and its ranks tell each other: by the environment, in which a rank finds its
 * place and the descriptors that it inherits, and by reports over a pipe. */
#include "comm/job/launcher_env.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "comm/base.h"

#define LISTEN_FD_VARIABLE "CROSSMESH_LISTEN_FD"
#define REPORT_FD_VARIABLE "CROSSMESH_REPORT_FD"

/* True for an entry that one of the new ones replaces; two entries of one name would leave it
 * to the program which of them counts. */
static bool is_replaced(const xm_launch_env_t *env, int count, const char *entry)
{
    size_t name = strcspn(entry, "=") + 1;

    for (int i = 0; i < count; ++i) {
        if (strncmp(env->texts[i], entry, name) == 0) {
            return true;
        }
    }
    for (const char *const *text = env->more; *text != NULL; ++text) {
        if (strncmp(*text, entry, name) == 0) {
            return true;
        }
    }
    /* Only rank 0 gets one; an outer launcher's must not leak through. */
    return strncmp(entry, LISTEN_FD_VARIABLE "=", sizeof(LISTEN_FD_VARIABLE)) == 0;
}

/* Builds the environment of a rank. Texts that are kept are shared with `environ` and not
 * copied. */
xm_status_t xm_launch_env_make(const xm_launch_params_t *params, int rank,
                               const xm_launch_place_t *place, xm_launch_env_t *env)
{
    static const char *const nothing[] = {NULL};
    size_t kept = 0, total = XM_LAUNCH_VARIABLES + 1;
    int count = 0;

    env->more = params->variables != NULL ? params->variables(params->arg, rank) : nothing;
    (void)snprintf(env->texts[count++], XM_LAUNCH_VARIABLE_SIZE, "RANK=%d", rank);
    (void)snprintf(env->texts[count++], XM_LAUNCH_VARIABLE_SIZE, "WORLD_SIZE=%d", params->ranks);
    (void)snprintf(env->texts[count++], XM_LAUNCH_VARIABLE_SIZE, "MASTER_ADDR=%s",
                   params->master_addr != NULL ? params->master_addr : "127.0.0.1");
    (void)snprintf(env->texts[count++], XM_LAUNCH_VARIABLE_SIZE, "MASTER_PORT=%d", place->port);
    if (params->ranks_per_host > 0) {
        (void)snprintf(env->texts[count++], XM_LAUNCH_VARIABLE_SIZE, "XM_HOST=host%d",
                       rank / params->ranks_per_host);
    }
    if (place->secret[0] != '\0') {
        (void)snprintf(env->texts[count++], XM_LAUNCH_VARIABLE_SIZE, "%s", place->secret);
    }
    (void)snprintf(env->texts[count++], XM_LAUNCH_VARIABLE_SIZE, REPORT_FD_VARIABLE "=%d",
                   place->report_fd);
    if (place->listen_fd >= 0) {
        (void)snprintf(env->texts[count++], XM_LAUNCH_VARIABLE_SIZE, LISTEN_FD_VARIABLE "=%d",
                       place->listen_fd);
    }
    for (char **entry = environ; *entry != NULL; ++entry) {
        ++total;
    }
    for (const char *const *text = env->more; *text != NULL; ++text) {
        ++total;
    }
    env->entries = malloc(total * sizeof(*env->entries));
    if (env->entries == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "launcher: no memory for an environment");
    }
    for (char **entry = environ; *entry != NULL; ++entry) {
        if (!is_replaced(env, count, *entry)) {
            env->entries[kept++] = *entry;
        }
    }
    for (int i = 0; i < count; ++i) {
        env->entries[kept++] = env->texts[i];
    }
    for (const char *const *text = env->more; *text != NULL; ++text) {
        env->entries[kept++] = (char *)*text;
    }
    env->entries[kept] = NULL;
    return XM_OK;
}

/* Finds the inherited socket of rank 0. It is checked to be a listening socket: the number may
 * mean something else by now. */
int xm_launch_listen_fd(void)
{
    const char *text = getenv(LISTEN_FD_VARIABLE);
    int64_t fd;
    int listening = 0;
    socklen_t length = sizeof(listening);

    /* The variable may have been inherited further than the descriptor. */
    if (text == NULL || xm_text_parse_int(LISTEN_FD_VARIABLE, text, 0, INT32_MAX, &fd) < 0 ||
        getsockopt((int)fd, SOL_SOCKET, SO_ACCEPTCONN, &listening, &length) != 0 ||
        listening == 0) {
        return -1;
    }
    (void)fcntl((int)fd, F_SETFD, FD_CLOEXEC);
    return (int)fd;
}

/* Writes a report where there is a launcher to read it. The descriptor is looked at before it is
 * used: the variable may have been inherited further than the pipe. */
void xm_launch_report(int rank, int given_up)
{
    const char *text = getenv(REPORT_FD_VARIABLE);
    xm_launch_report_t report = {.rank = rank, .given_up = given_up};
    struct stat found;
    int64_t fd;

    if (text == NULL || xm_text_parse_int(REPORT_FD_VARIABLE, text, 0, INT32_MAX, &fd) < 0 ||
        fstat((int)fd, &found) != 0 || !S_ISFIFO(found.st_mode)) {
        return;
    }
    (void)fcntl((int)fd, F_SETFD, FD_CLOEXEC);
    (void)!write((int)fd, &report, sizeof(report));
}
