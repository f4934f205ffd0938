#include "planner/planner_library.h"

#include <ctype.h>
#include <dlfcn.h>
#include <link.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "planner/plan_verify.h"
#include "planner/planner_request.h"

enum { VERSION = 1, VERSIONS_KNOWN_TO_COME = 16, NAME_MOST = 64, SENTENCE = 400 };

struct ap_planner_library {
    void *handle;
    const autopar_planner_v1_t *table;
    autopar_planner_host_v1_t host;
    void *context;
};

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

    while (length <= NAME_MOST && isgraph((unsigned char)name[length]) != 0) {
        ++length;
    }
    return length > 0 && length <= NAME_MOST && name[length] == '\0';
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
                              path, NAME_MOST);
}

static xm_status_t start(const char *path, ap_planner_library_t *library)
{
    int result;
    xm_status_t status;

    library->table = find_table(library->handle, VERSION);
    if (library->table == NULL) {
        return no_table(path, library->handle);
    }
    status = check_table(path, library->table);
    if (status != XM_OK) {
        return status;
    }
    result = library->table->init(&library->context, &library->host);
    return result == 0
               ? XM_OK
               : xm_error_set(XM_ERR_INTERNAL, "%s: the planner %s did not start (init: %d)", path,
                              library->table->name, result);
}

xm_status_t ap_planner_library_open(const char *path, const autopar_planner_host_v1_t *host,
                                    ap_planner_library_t **library)
{
    ap_planner_library_t *made = calloc(1, sizeof(*made));
    xm_status_t status;

    if (made == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "no memory for the planner %s", path);
    }
    made->host = host != NULL ? *host : (autopar_planner_host_v1_t){0};
    made->handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (made->handle == NULL) {
        status = xm_error_set(XM_ERR_NOT_FOUND, "cannot load the planner: %s", dlerror());
        goto free_library;
    }
    status = start(path, made);
    if (status != XM_OK) {
        goto close_handle;
    }
    *library = made;
    return XM_OK;

close_handle:
    (void)dlclose(made->handle);
free_library:
    free(made);
    return status;
}

const char *ap_planner_library_name(const ap_planner_library_t *library)
{
    return library->table->name;
}

/* The planner's reason as one printable line. */
static void one_line(const char *reason, char *line)
{
    size_t length = 0;

    for (; reason[length] != '\0' && length + 1 < SENTENCE; ++length) {
        bool prints = (unsigned char)reason[length] >= ' ' && reason[length] != '\x7f';

        line[length] = prints ? reason[length] : ' ';
    }
    while (length > 0 && line[length - 1] == ' ') {
        --length;
    }
    line[length] = '\0';
}

static xm_status_t failed(const ap_planner_library_t *library, int result, const char *reason)
{
    char line[SENTENCE] = "";

    one_line(reason != NULL ? reason : "", line);
    if (line[0] == '\0') {
        (void)snprintf(line, sizeof(line), "failed without a reason (plan: %d)", result);
    }
    return xm_error_set(result == AUTOPAR_PLANNER_NO_SOLUTION ? XM_ERR_NO_SOLUTION
                                                              : XM_ERR_INTERNAL,
                        "planner %s: %s", library->table->name, line);
}

static xm_status_t read_reply(const ap_planner_library_t *library,
                              const ap_planner_params_t *params, const char *reply,
                              ap_plan_t **plan)
{
    char source[NAME_MOST + 32];
    ap_plan_t *made;
    xm_status_t status;

    (void)snprintf(source, sizeof(source), "planner %s: its plan", library->table->name);
    status = ap_plan_parse(source, reply, strlen(reply), &made);
    if (status != XM_OK) {
        return status;
    }
    status = ap_plan_verify(params, made);
    if (status != XM_OK) {
        ap_plan_destroy(made);
        return xm_error_prefix(status, "%s", source);
    }
    *plan = made;
    return XM_OK;
}

xm_status_t ap_planner_library_plan(ap_planner_library_t *library,
                                    const ap_planner_params_t *params, ap_plan_t **plan)
{
    char *request, *reply = NULL;
    xm_status_t status = ap_planner_request_text(params, &request);
    int result;

    if (status != XM_OK) {
        return status;
    }
    result = library->table->plan(library->context, request, strlen(request), &reply);
    free(request);
    if (result != 0) {
        status = failed(library, result, reply);
    } else if (reply == NULL) {
        status =
            xm_error_set(XM_ERR_PARSE, "planner %s: it returned no plan", library->table->name);
    } else {
        status = read_reply(library, params, reply, plan);
    }
    if (reply != NULL) {
        library->table->free(library->context, reply);
    }
    return status;
}

void ap_planner_library_close(ap_planner_library_t *library)
{
    if (library != NULL) {
        library->table->finalize(library->context);
        (void)dlclose(library->handle);
        free(library);
    }
}
