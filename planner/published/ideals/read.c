/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the readers of published problems share. The files were written for their authors' programs,
 * which ask nothing; so everything that a solver relies on is checked when they are read.
 */

#include <inttypes.h>
#include <math.h>

#include "planner/published/ideals.h"

/* Duplicate keys are refused, because a reader of JSON would silently take one of them. */
xm_status_t ap_problem_read(const char *name, const char *text, size_t length,
                            xm_status_t (*read)(json_t *document, void *problem), void *problem)
{
    json_t *document;
    xm_status_t status;

    XM_TRY(xm_json_parse(name, text, length, &document));
    status = read(document, problem);
    json_decref(document);
    return status == XM_OK ? XM_OK : xm_error_prefix(status, "%s", name);
}

bool ap_problem_is_graph(const json_t *nodes, const json_t *edges, size_t most)
{
    return json_is_array(nodes) && json_is_array(edges) && json_array_size(nodes) > 0 &&
           json_array_size(nodes) <= most && json_array_size(edges) <= INT32_MAX / 2;
}

xm_status_t ap_problem_edge(json_t *edge, size_t index, const char *key, int64_t *source,
                            int64_t *target, double *number)
{
    json_error_t error;
    json_int_t from, to;

    if (json_unpack_ex(edge, &error, 0, "{s:I, s:I, s:F}", "sourceId", &from, "destId", &to, key,
                       number) != 0) {
        return XM_MALFORMED("edges[%zu]: %s", index, error.text);
    }
    *source = from;
    *target = to;
    return XM_OK;
}

bool ap_problem_is_amount(double value)
{
    return value >= 0.0 && isfinite(value);
}
