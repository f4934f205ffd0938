/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One entry point for all front ends: decides by the beginning of a file what it is, and hands it
 * on. Contents decide and not the file's name, because dumps of XLA are called .txt and models come
 * under any name. What is no file is the name of a built-in model.
 *
 * Sizes that make no sense for the kind of model are refused: a batch that silently did nothing
 * would give a plan for another problem than was asked for.
 */

#include "planner/frontend.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "comm/base.h"
#include "planner/frontend/hlo.h"
#include "planner/frontend/json.h"
#include "planner/frontend/onnx.h"
#include "planner/frontend/zoo.h"

typedef enum file_kind { FILE_HLO, FILE_JSON, FILE_ONNX } file_kind_t;

/* Told by the first characters that are no blanks; comments may stand before HLO's header. */
static xm_status_t look_into(const char *path, file_kind_t *kind)
{
    static const char hlo[] = "HloModule";
    char head[256] = "";
    size_t size, at = 0;
    ssize_t got;
    int fd;

    XM_TRY(xm_file_open(path, XM_FILE_LARGEST, &fd, &size));
    got = read(fd, head, sizeof(head) - 1);
    (void)close(fd);
    if (got < 0) {
        return xm_error_set(XM_ERR_IO, "cannot read %s: %s", path, strerror(errno));
    }
    while (at < (size_t)got && isspace((unsigned char)head[at])) {
        ++at;
    }
    if (strncmp(head + at, hlo, sizeof(hlo) - 1) == 0 || strncmp(head + at, "//", 2) == 0 ||
        strncmp(head + at, "/*", 2) == 0) {
        *kind = FILE_HLO;
    } else {
        *kind = head[at] == '{' ? FILE_JSON : FILE_ONNX;
    }
    return XM_OK;
}

static bool ends_with(const char *name, const char *ending)
{
    size_t length = strlen(name), tail = strlen(ending);

    return length > tail && strcmp(name + length - tail, ending) == 0;
}

/* A name with an ending of a model file counts as a file even if it does not exist, so that a
 * misspelt path is reported as such and not as an unknown built-in model. */
bool ap_frontend_is_file(const char *name)
{
    static const char *const endings[] = {".hlo", ".txt", ".json", ".onnx"};
    struct stat about;

    for (size_t i = 0; i < sizeof(endings) / sizeof(endings[0]); ++i) {
        if (ends_with(name, endings[i])) {
            return true;
        }
    }
    return strchr(name, '/') != NULL || (stat(name, &about) == 0 && S_ISREG(about.st_mode));
}

/* Hands out a graph of which every operator has a rule, with an empty list of notes if asked. */
static xm_status_t hand_out(ap_graph_t *made, ap_graph_t **graph, ap_frontend_notes_t **notes)
{
    xm_status_t status = notes != NULL ? ap_frontend_notes_create(notes) : XM_OK;

    if (status == XM_OK) {
        *graph = made;
    } else {
        ap_graph_destroy(made);
    }
    return status;
}

static xm_status_t load_file(const char *path, const ap_frontend_params_t *params,
                             ap_graph_t **graph, ap_frontend_notes_t **notes)
{
    ap_onnx_params_t onnx = AP_ONNX_PARAMS_INIT;
    file_kind_t kind = FILE_ONNX;
    ap_graph_t *made;

    XM_TRY(look_into(path, &kind));
    if (params->batch != 0 || params->hidden != 0 || params->layers != 0 || params->sequence != 0) {
        return XM_INVALID(
            "batch, hidden, layers and sequence are for built-in models; %s has its own sizes",
            path);
    }
    if (kind == FILE_ONNX) {
        onnx.dims = params->dims;
        onnx.dim_count = params->dim_count;
        return ap_onnx_from_file(path, &onnx, graph, notes);
    }
    if (params->dim_count > 0) {
        return XM_INVALID("dimensions are given by name to ONNX models only; %s is none", path);
    }
    if (kind == FILE_HLO) {
        return ap_hlo_from_file(path, graph, notes);
    }
    XM_TRY(ap_json_from_file(path, &made));
    return hand_out(made, graph, notes);
}

xm_status_t ap_frontend_load(const char *model, const ap_frontend_params_t *params,
                             ap_graph_t **graph, ap_frontend_notes_t **notes)
{
    XM_NEED_ARGUMENTS(model, graph);
    ap_frontend_params_t own = AP_FRONTEND_PARAMS_INIT;
    xm_status_t taken = params != NULL ? XM_PARAMS_COPY(ap_frontend_params_t, &own, params) : XM_OK;

    if (taken != XM_OK) {
        return taken;
    }
    params = &own;

    ap_zoo_params_t zoo = AP_ZOO_PARAMS_INIT;
    ap_graph_t *made;

    if (ap_frontend_is_file(model)) {
        return load_file(model, params, graph, notes);
    }
    if (params->dim_count > 0) {
        return XM_INVALID("dimensions are given by name to ONNX models only; %s is built in",
                          model);
    }
    zoo.batch = params->batch;
    zoo.hidden = params->hidden;
    zoo.layers = params->layers;
    zoo.sequence = params->sequence;
    XM_TRY(ap_zoo_create(model, &zoo, &made));
    return hand_out(made, graph, notes);
}
