/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The inside of the process in which a plug-in runs: loads the library, checks its table, and
 * answers messages until it is told to end. Nothing here is protected against the plug-in, which
 * may do anything to this process; the protection is that it is a process.
 */

#include "planner/plugin/service.h"

#include <ctype.h>
#include <dlfcn.h>
#include <link.h>
#include <math.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "planner/plugin/channel.h"
#include "planner/plugin.h"

enum { VERSION = 1, VERSIONS_KNOWN_TO_COME = 16 };

/* A planner at work; planners may report from threads of their own, so messages are sent under a
 * lock. */
typedef struct service {
    int socket;
    pthread_mutex_t mutex;
    void *handle;
    const autopar_planner_v1_t *table;
    autopar_planner_host_v1_t host;
    void *context;
} service_t;

/* Sends to the host. What cannot be sent has no reader, and then the process ends with the next
 * message it awaits. */
static void tell(service_t *service, const ap_message_t *message, const char *text)
{
    (void)pthread_mutex_lock(&service->mutex);
    (void)ap_channel_send(service->socket, INFINITY, message, text);
    (void)pthread_mutex_unlock(&service->mutex);
}

static void tell_progress(void *arg, double fraction, const char *what)
{
    tell(arg, &(ap_message_t){.kind = AP_MESSAGE_PROGRESS, .fraction = fraction}, what);
}

static void tell_log(void *arg, const char *sentence)
{
    tell(arg, &(ap_message_t){.kind = AP_MESSAGE_LOG}, sentence);
}

/* Looks in the library itself; dlsym() would also find the table of one that it uses. */
static void *find_table(void *handle, int version)
{
    char symbol[32];
    struct link_map *map;
    Dl_info about;
    void *table;

    (void)snprintf(symbol, sizeof(symbol), "autopar_planner_v%d", version);
    table = dlsym(handle, symbol);
    if (table == NULL || dlinfo(handle, RTLD_DI_LINKMAP, &map) != 0 || dladdr(table, &about) == 0 ||
        (uintptr_t)about.dli_fbase != (uintptr_t)map->l_addr) {
        return NULL;
    }
    return table;
}

/* A table of another version is the likeliest reason, so it is looked for and named. */
static xm_status_t no_table(const char *path, void *handle)
{
    for (int version = 0; version <= VERSIONS_KNOWN_TO_COME; ++version) {
        if (version != VERSION && find_table(handle, version) != NULL) {
            return xm_error_set(XM_ERR_UNSUPPORTED,
                                "%s is a planner of version %d (autopar_planner_v%d), this autopar "
                                "loads version %d",
                                path, version, version, VERSION);
        }
    }
    return xm_error_set(XM_ERR_UNSUPPORTED,
                        "%s is no planner: it does not export autopar_planner_v%d", path, VERSION);
}

/* A name is one printable word, for it stands in messages. */
static bool is_name(const char *name)
{
    size_t length = 0;

    while (length <= AP_PLANNER_NAME_MOST && isgraph((unsigned char)name[length]) != 0) {
        ++length;
    }
    return length > 0 && length <= AP_PLANNER_NAME_MOST && name[length] == '\0';
}

static xm_status_t check_table(const char *path, const autopar_planner_v1_t *table)
{
    const struct {
        const char *name;
        bool there;
    } members[] = {{"name", table->name != NULL},
                   {"init", table->init != NULL},
                   {"plan", table->plan != NULL},
                   {"free", table->free != NULL},
                   {"finalize", table->finalize != NULL}};

    for (size_t i = 0; i < sizeof(members) / sizeof(members[0]); ++i) {
        if (!members[i].there) {
            return xm_error_set(XM_ERR_UNSUPPORTED, "%s: autopar_planner_v%d has no %s", path,
                                VERSION, members[i].name);
        }
    }
    return is_name(table->name)
               ? XM_OK
               : xm_error_set(XM_ERR_UNSUPPORTED,
                              "%s: the planner's name is not one word of at most %d characters",
                              path, AP_PLANNER_NAME_MOST);
}

static xm_status_t start(const char *path, service_t *service)
{
    int result;
    xm_status_t status;

    service->handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (service->handle == NULL) {
        return xm_error_set(XM_ERR_NOT_FOUND, "cannot load the planner: %s", dlerror());
    }
    service->table = find_table(service->handle, VERSION);
    if (service->table == NULL) {
        return no_table(path, service->handle);
    }
    status = check_table(path, service->table);
    if (status != XM_OK) {
        return status;
    }
    result = service->table->init(&service->context, &service->host);
    return result == 0
               ? XM_OK
               : xm_error_set(XM_ERR_INTERNAL, "%s: the planner %s did not start (init: %d)", path,
                              service->table->name, result);
}

static void answer(service_t *service, const char *request, size_t length)
{
    ap_message_t message = {.kind = AP_MESSAGE_NO_REPLY};
    char *reply = NULL;

    message.number = service->table->plan(service->context, request, length, &reply);
    if (reply != NULL) {
        message.kind = AP_MESSAGE_REPLY;
    }
    tell(service, &message, reply);
    if (reply != NULL) {
        service->table->free(service->context, reply);
    }
}

/* Answers requests, one after the other. False when the other end is gone: then nobody is left to
 * finalise for. */
static bool answer_all(service_t *service)
{
    for (;;) {
        ap_message_t message;
        char *text;

        if (ap_channel_receive(service->socket, INFINITY, &message, &text) != XM_OK) {
            return false;
        }
        if (message.kind == AP_MESSAGE_PLAN) {
            answer(service, text, (size_t)message.length);
        }
        free(text);
        if (message.kind == AP_MESSAGE_END) {
            return true;
        }
    }
}

int ap_planner_serve(const ap_planner_service_t *how)
{
    service_t service = {.socket = how->socket, .mutex = PTHREAD_MUTEX_INITIALIZER};
    xm_status_t status;

    service.host.arg = &service;
    service.host.progress = how->progress ? tell_progress : NULL;
    service.host.log = how->log ? tell_log : NULL;
    status = start(how->path, &service);
    if (status != XM_OK) {
        tell(&service, &(ap_message_t){.kind = AP_MESSAGE_FAILED, .number = status},
             xm_last_error());
        return 1;
    }
    tell(&service, &(ap_message_t){.kind = AP_MESSAGE_READY}, service.table->name);
    if (!answer_all(&service)) {
        return 1;
    }
    service.table->finalize(service.context);
    (void)dlclose(service.handle);
    tell(&service, &(ap_message_t){.kind = AP_MESSAGE_DONE}, NULL);
    return 0;
}
