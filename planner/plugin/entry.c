/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Our own planner behind the table that planner plug-ins export, so that any host of such plug-ins
 * can load libautopar.so as one. The request is parsed, planned and answered as text, like any
 * other plug-in would; nothing is shared with the host but the two texts and reports of progress.
 */

#include <stdlib.h>
#include <string.h>

#include <autopar/planner_plugin.h>
#include "planner/plugin/request.h"

typedef struct door {
    const autopar_planner_host_v1_t *host;
} door_t;

static int open_door(void **context, const autopar_planner_host_v1_t *host)
{
    door_t *door = calloc(1, sizeof(*door));

    if (door == NULL) {
        return 1;
    }
    door->host = host;
    *context = door;
    return 0;
}

static void progress(void *arg, double fraction, const char *what)
{
    const autopar_planner_host_v1_t *host = ((const door_t *)arg)->host;

    if (host != NULL && host->progress != NULL) {
        host->progress(host->arg, fraction, what);
    }
}

/* Every failure becomes a reason in the reply. The last error is copied before anything else can
 * overwrite it. */
static int answer(void *context, const char *request, size_t length, char **reply)
{
    ap_planner_request_t asked;
    ap_planner_result_t result = {0};
    xm_status_t status = ap_planner_request_parse(request, length, &asked);

    *reply = NULL;
    if (status == XM_OK) {
        asked.params.progress = progress;
        asked.params.progress_arg = context;
        status = ap_planner_run(&asked.params, &result);
        if (status == XM_OK) {
            *reply = ap_plan_text(result.plan);
            status =
                *reply != NULL ? XM_OK : xm_error_set(XM_ERR_NO_MEMORY, "no memory for a plan");
        }
        ap_planner_result_clear(&result);
        ap_planner_request_clear(&asked);
    }
    if (status != XM_OK) {
        *reply = strdup(xm_last_error());
    }
    return status == XM_OK ? 0 : status == XM_ERR_NO_SOLUTION ? AUTOPAR_PLANNER_NO_SOLUTION : 1;
}

static void take_back(void *context, char *reply)
{
    (void)context;
    free(reply);
}

static void close_door(void *context)
{
    free(context);
}

const autopar_planner_v1_t autopar_planner_v1 = {.name = "autopar",
                                                 .init = open_door,
                                                 .plan = answer,
                                                 .free = take_back,
                                                 .finalize = close_door};
