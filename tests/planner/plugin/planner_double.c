/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Planner plug-ins for tests, compiled several times: one that does as its environment says, one of
 * another version, one with a hole in its table, and a library that is no planner.
 *
 * PLANNER_DOUBLE says what: "reply" (default) returns the file PLANNER_DOUBLE_PLAN, others as
 * below. PLANNER_DOUBLE_REQUEST, if set, is where the request is written.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <autopar/planner_plugin.h>

typedef struct planner {
    const autopar_planner_host_v1_t *host;
    int replies; /* that are out */
} planner_t;

static const char *mode(void)
{
    const char *text = getenv("PLANNER_DOUBLE");

    return text != NULL ? text : "reply";
}

/* Does what no planner should, where the mode says so: "hang", "crash" or "exit", and where. */
static void misbehave(const char *where)
{
    const char *dash = strchr(mode(), '-');

    if (dash == NULL || strcmp(dash, where) != 0) {
        return;
    }
    if (strncmp(mode(), "hang", 4) == 0) {
        for (;;) {
            (void)sleep(1);
        }
    }
    if (strncmp(mode(), "crash", 5) == 0) {
        (void)signal(SIGSEGV, SIG_DFL); /* no sanitizer's handler: the signal itself */
        (void)raise(SIGSEGV);
    }
    if (strncmp(mode(), "exit", 4) == 0) {
        _exit(5);
    }
}

static int init(void **context, const autopar_planner_host_v1_t *host)
{
    planner_t *planner;

    misbehave("-in-init");
    if (strcmp(mode(), "no-start") == 0) {
        return 7;
    }
    planner = calloc(1, sizeof(*planner));
    if (planner == NULL) {
        return 1;
    }
    planner->host = host;
    *context = planner;
    return 0;
}

static char *read_file(const char *path)
{
    FILE *file = path != NULL ? fopen(path, "rb") : NULL;
    char *text = NULL;
    size_t size = 0;

    if (file != NULL) {
        text = calloc(1, (1U << 22) + 1);
        size = text != NULL ? fread(text, 1, 1U << 22, file) : 0;
        (void)fclose(file);
    }
    return size > 0 ? text : NULL;
}

static void keep_request(const char *request, size_t length)
{
    const char *path = getenv("PLANNER_DOUBLE_REQUEST");
    FILE *file = path != NULL ? fopen(path, "wb") : NULL;

    if (file != NULL) {
        (void)fwrite(request, 1, length, file);
        (void)fclose(file);
    }
}

static int plan(void *context, const char *request, size_t length, char **reply)
{
    planner_t *planner = context;
    const autopar_planner_host_v1_t *host = planner->host;

    if (request[length] != '\0' || strlen(request) != length) {
        return 1;
    }
    keep_request(request, length);
    misbehave("-in-plan");
    if (host->progress != NULL) {
        host->progress(host->arg, 0.5, "half");
    }
    if (host->log != NULL && strcmp(mode(), "log") == 0) {
        host->log(host->arg, "a word from the planner");
    }
    *reply = NULL;
    if (strcmp(mode(), "nothing") == 0 || strcmp(mode(), "fail-silently") == 0) {
        return strcmp(mode(), "nothing") == 0 ? 0 : 3;
    }
    if (strcmp(mode(), "fail") == 0 || strcmp(mode(), "no-solution") == 0) {
        *reply = strdup("it rains\nand pours\n");
        ++planner->replies;
        return strcmp(mode(), "fail") == 0 ? 1 : AUTOPAR_PLANNER_NO_SOLUTION;
    }
    *reply = strcmp(mode(), "garbage") == 0 ? strdup("{\"format\": ")
                                            : read_file(getenv("PLANNER_DOUBLE_PLAN"));
    planner->replies += *reply != NULL;
    return 0;
}

static void take_back(void *context, char *reply)
{
    --((planner_t *)context)->replies;
    free(reply);
}

static void finalize(void *context)
{
    planner_t *planner = context;

    misbehave("-in-finalize");
    if (planner->replies != 0) {
        abort(); /* the host keeps what is not its own */
    }
    free(planner);
}

#if defined(PLANNER_HOLES)
const autopar_planner_v1_t autopar_planner_v1 = {"holes", init, plan, NULL, finalize};
void (*const planner_double_unused)(void *, char *) = take_back;
#elif defined(PLANNER_OTHER_VERSION)
extern const autopar_planner_v1_t autopar_planner_v3;
__attribute__((visibility("default")))
const autopar_planner_v1_t autopar_planner_v3 = {"later", init, plan, take_back, finalize};
#else
const autopar_planner_v1_t autopar_planner_v1 = {"double", init, plan, take_back, finalize};
#endif
