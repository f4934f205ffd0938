/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads Sailor's artifact and writes what it says in our formats. Files are found by their places,
 * since the artifact's folders name models and GPUs.
 */

#include "planner/published/sailor.h"

#include <ctype.h>
#include <errno.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "planner/published/sailor/sailor_private.h"

xm_status_t ap_sailor_load(const char *path, json_t **document)
{
    size_t length;
    char *text;
    xm_status_t status = xm_text_load(path, &text, &length);

    if (status == XM_OK) {
        status = xm_json_parse(path, text, length, document);
        free(text);
    }
    return status;
}

static xm_status_t join(const char *folder, const char *name, char path[PATH_MAX])
{
    return snprintf(path, PATH_MAX, "%s/%s", folder, name) < PATH_MAX
               ? XM_OK
               : XM_INVALID("%s: too long a name", folder);
}

static xm_status_t load_in(const char *folder, const char *name, json_t **document)
{
    char path[PATH_MAX];
    XM_TRY(join(folder, name, path));

    return ap_sailor_load(path, document);
}

/* The files of a pattern in a folder, at least one. */
static xm_status_t find_files(const char *folder, const char *pattern, glob_t *found)
{
    char path[PATH_MAX];
    xm_status_t status = join(folder, pattern, path);

    *found = (glob_t){0};
    if (status == XM_OK && glob(path, 0, NULL, found) != 0) {
        return XM_NOT_FOUND(
            "%s: no such files; a folder of Sailor's artifact has plans/*/*.json, profiles/*.json, "
            "training_*.json, model_info.json, clusters.json and network_coeffs.json",
            path);
    }
    return status;
}

/* The file whose name ends with that of the GPU in small letters. */
static xm_status_t load_profile(ap_sailor_t *sailor)
{
    char wanted[64];
    glob_t found;
    size_t length;
    xm_status_t status = find_files(sailor->folder, "profiles/*.json", &found);

    length = (size_t)snprintf(wanted, sizeof(wanted), "-%.40s.json", sailor->gpu);
    for (size_t i = 0; i < length; ++i) {
        wanted[i] = (char)tolower((unsigned char)wanted[i]);
    }
    for (size_t i = 0; i < found.gl_pathc && status == XM_OK && sailor->profile == NULL; ++i) {
        const char *path = found.gl_pathv[i];

        if (strlen(path) > length && strcmp(path + strlen(path) - length, wanted) == 0) {
            status = ap_sailor_load(path, &sailor->profile);
        }
    }
    globfree(&found);
    return status == XM_OK && sailor->profile == NULL
               ? XM_NOT_FOUND("%s/profiles: no file of %s", sailor->folder, sailor->gpu)
               : status;
}

/* What all plans share. The first plan says which GPU it is about. */
static xm_status_t open_sailor(ap_sailor_t *sailor, int hosts)
{
    glob_t found;
    xm_status_t status = find_files(sailor->folder, "training_*.json", &found);

    XM_THEN(status, ap_sailor_load(found.gl_pathv[0], &sailor->training));
    globfree(&found);
    if (status < 0 ||
        (status = load_in(sailor->folder, "network_coeffs.json", &sailor->network)) < 0 ||
        (status = load_in(sailor->folder, "clusters.json", &sailor->clusters)) < 0 ||
        (status = load_in(sailor->folder, "model_info.json", &sailor->models)) < 0 ||
        (status = load_profile(sailor)) < 0 ||
        (status = xm_json_string(sailor->training, "model", &sailor->model)) < 0 ||
        (status = xm_json_object(sailor->models, sailor->model, &sailor->layers)) < 0 ||
        (status = ap_sailor_cluster(sailor, hosts)) < 0 ||
        (status = ap_cost_model_create_profile(sailor->cluster, &sailor->cost)) < 0) {
        return status;
    }
    return ap_cross_mesh_create(sailor->cluster, &sailor->cross_mesh);
}

static void close_sailor(ap_sailor_t *sailor)
{
    ap_cross_mesh_destroy(sailor->cross_mesh);
    ap_cost_model_destroy(sailor->cost);
    xm_cluster_profile_destroy(sailor->cluster);
    json_decref(sailor->network);
    json_decref(sailor->clusters);
    json_decref(sailor->training);
    json_decref(sailor->models);
    json_decref(sailor->profile);
}

/* How far the predictions of Sailor's own simulator lie from the measured steps, in percent, run on
 * these plans with their profile. */
static double sailors_own(const char *name)
{
    static const struct {
        const char *name;
        double percent;
    } table[] = {
        {"N1_D1_M4_G1", 12.7}, {"N1_D1_M4_G32", 15.8}, {"N2_D1", -4.9},   {"N2_D2", -9.7},
        {"N4_D1", -1.9},       {"N4_D2", 5.4},         {"N4_D4", -16.1},  {"N8_D2", -14.7},
        {"N8_D4", -4.1},       {"N16_D4", -15.5},      {"N16_D8", -4.5},  {"N16_D16", -2.2},
        {"N32_D8", -15.7},     {"N32_D16", -4.7},      {"N32_D32", -6.0},
    };

    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); ++i) {
        if (strcmp(table[i].name, name) == 0) {
            return 1 + 0.01 * table[i].percent;
        }
    }
    return 0;
}

static xm_status_t write_row(const ap_sailor_t *sailor, const ap_sailor_row_t *row,
                             const char *output, json_t *rows)
{
    char file[80], path[PATH_MAX];
    ap_plan_t *plan;
    xm_status_t status;

    XM_TRY(ap_sailor_row_plan(sailor, row, &plan));
    (void)snprintf(file, sizeof(file), "%s.json", row->name);
    status = join(output, file, path);
    XM_THEN(status, ap_plan_save(plan, path));
    ap_plan_destroy(plan);
    if (status == XM_OK &&
        json_array_append_new(
            rows, json_pack("{s:s,s:s,s:f,s:f,s:f,s:f}", "name", row->name, "plan", file, "step_s",
                            row->step, "sync_s", row->sync, "memory_bytes", row->memory,
                            "other_step_s", row->step * sailors_own(row->name))) != 0) {
        return XM_NO_MEMORY("%s", row->name);
    }
    return status;
}

/* DeepSpeed, which ran these, sends and receives on the stream that computes. */
static xm_status_t write_measured(const char *output, json_t *rows)
{
    json_t *document = json_pack("{s:s,s:i,s:s,s:b,s:s,s:O}", "format", "crossmesh-measured",
                                 "version", 1, "source", "Sailor, SOSP'25, artifact", "blocking", 1,
                                 "other", "Sailor", "rows", rows);
    char *text = json_dumps(document, JSON_INDENT(1) | JSON_REAL_PRECISION(12));
    char path[PATH_MAX];
    xm_status_t status = join(output, "measured.json", path);

    if (text == NULL) {
        status = XM_NO_MEMORY("%s", path);
    }
    XM_THEN(status, xm_text_save(path, text));
    free(text);
    json_decref(document);
    return status;
}

static xm_status_t write_all(ap_sailor_t *sailor, const ap_sailor_row_t *rows, size_t count,
                             const char *output)
{
    json_t *list = json_array();
    char path[PATH_MAX];
    xm_status_t status = join(output, "cluster.json", path);

    if (mkdir(output, 0777) != 0 && errno != EEXIST) {
        status = xm_error_set(XM_ERR_IO, "cannot make %s: %s", output, strerror(errno));
    }
    XM_THEN(status, xm_cluster_profile_save(sailor->cluster, path));
    for (size_t i = 0; i < count && status == XM_OK; ++i) {
        status = write_row(sailor, &rows[i], output, list);
    }
    XM_THEN(status, write_measured(output, list));
    json_decref(list);
    return status;
}

/* As many hosts as the largest plan needs; GPUs of a host are at least as many as a replica has
 * here, which the prices check. */
static int hosts_of(const ap_sailor_row_t *rows, size_t count)
{
    int most = 1;

    for (size_t i = 0; i < count; ++i) {
        int hosts = rows[i].stages * rows[i].replicas;

        most = hosts > most ? hosts : most;
    }
    return most;
}

xm_status_t ap_sailor_import(const char *folder, const char *output)
{
    ap_sailor_t sailor = {.folder = folder};
    glob_t found;
    xm_status_t status = find_files(folder, "plans/*/*.json", &found);
    size_t count = status == XM_OK ? found.gl_pathc : 0;
    ap_sailor_row_t *rows = calloc(count + 1, sizeof(*rows));
    json_t **documents = calloc(count + 1, sizeof(*documents));

    if (rows == NULL || documents == NULL) {
        status = XM_NO_MEMORY("%zu plans", count);
    }
    for (size_t i = 0; i < count && status == XM_OK; ++i) {
        status = ap_sailor_load(found.gl_pathv[i], &documents[i]);
        XM_THEN(status, ap_sailor_row_read(found.gl_pathv[i], documents[i], &rows[i]));
        if (status == XM_OK && strcmp(rows[i].gpu, rows[0].gpu) != 0) {
            status = XM_UNSUPPORTED("%s: plans of %s and of %s", folder, rows[0].gpu, rows[i].gpu);
        }
    }
    if (status == XM_OK) {
        sailor.gpu = rows[0].gpu;
        status = open_sailor(&sailor, hosts_of(rows, count));
    }
    XM_THEN(status, write_all(&sailor, rows, count, output));
    close_sailor(&sailor);
    for (size_t i = 0; documents != NULL && i < count; ++i) {
        json_decref(documents[i]);
    }
    free(documents);
    free(rows);
    globfree(&found);
    return status;
}
