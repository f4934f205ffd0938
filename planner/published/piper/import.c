/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads Piper's inputs (NeurIPS'21). A layer's costs are given per tensor-parallel degree and
 * variant, with the bytes that each cut edge would synchronise; so edges are read before costs, and
 * a variant must name exactly the edges of its node. Nodes are looked up linearly: these graphs
 * have some dozens.
 */

#include "planner/published/piper/import.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/base.h"

enum { PLACE_TEXT = 96, ID_TEXT = 32, MOST_DEGREE = 10000 };

static xm_status_t no_memory(void)
{
    return xm_error_set(XM_ERR_NO_MEMORY, "out of memory for a graph");
}

/* Times and sizes may be 0 but not negative, infinite or no number: one such value would make every
 * sum over layers meaningless without any error later. */
static bool is_amount(double value)
{
    return value >= 0.0 && isfinite(value);
}

static int find_id(const ap_piper_problem_t *problem, json_int_t id)
{
    for (int i = 0; i < problem->node_count; ++i) {
        if (problem->nodes[i].id == id) {
            return i;
        }
    }
    return -1;
}

/* Reads what the edges of one side synchronise: an object with an entry for each neighbour. Equal
 * counts and an entry for every edge together mean that no entry is left over, since edges between
 * the same two nodes are refused before. */
static xm_status_t read_sync(const ap_piper_problem_t *problem, const char *place,
                             const json_t *object, const int *edges, int count, bool in,
                             double **bytes)
{
    *bytes = calloc((size_t)count + 1, sizeof(**bytes));
    if (*bytes == NULL) {
        return no_memory();
    }
    if (!json_is_object(object) || json_object_size(object) != (size_t)count) {
        return xm_error_set(XM_ERR_PARSE, "%s: syncTime%s must have an entry for each of %d edges",
                            place, in ? "Fw" : "Bw", count);
    }
    for (int i = 0; i < count; ++i) {
        const ap_precedence_t *edge = &problem->edges[edges[i]];
        int64_t other = problem->nodes[in ? edge->before : edge->after].id;
        char key[ID_TEXT];
        const json_t *value;

        (void)snprintf(key, sizeof(key), "%" PRId64, other);
        value = json_object_get(object, key);
        if (!json_is_number(value) || !is_amount(json_number_value(value))) {
            return xm_error_set(XM_ERR_PARSE, "%s: syncTime%s lacks %s, or it is negative", place,
                                in ? "Fw" : "Bw", key);
        }
        (*bytes)[i] = json_number_value(value);
    }
    return XM_OK;
}

/* The problem owns copies of all it keeps; whatever was allocated before a failure is freed with
 * the problem, and the document is not needed afterwards. */
static xm_status_t read_variant(const ap_piper_problem_t *problem, const ap_piper_node_t *node,
                                const char *place, json_t *item, ap_piper_variant_t *variant)
{
    json_error_t error;
    json_t *forward, *backward;
    const char *id;
    xm_status_t status;

    if (json_unpack_ex(item, &error, 0, "{s:s, s:F, s:F, s:F, s:F, s:o, s:o}", "id", &id,
                       "timePerSample", &variant->time, "parameterSize", &variant->parameters,
                       "memoryUsageA", &variant->memory_each, "memoryUsageB", &variant->memory,
                       "syncTimeFw", &forward, "syncTimeBw", &backward) != 0) {
        return xm_error_set(XM_ERR_PARSE, "%s: %s", place, error.text);
    }
    if (!is_amount(variant->time) || !is_amount(variant->parameters) ||
        !is_amount(variant->memory_each) || !is_amount(variant->memory)) {
        return xm_error_set(XM_ERR_PARSE, "%s: a time or size is negative", place);
    }
    variant->id = strdup(id);
    if (variant->id == NULL) {
        return no_memory();
    }
    status = read_sync(problem, place, forward, node->in, node->in_count, true, &variant->in_bytes);
    return status == XM_OK ? read_sync(problem, place, backward, node->out, node->out_count, false,
                                       &variant->out_bytes)
                           : status;
}

/* The variant is counted before it is read, so that a failure inside it leaves nothing that is not
 * freed. */
static xm_status_t read_degree(const ap_piper_problem_t *problem, const ap_piper_node_t *node,
                               const char *key, json_t *list, ap_piper_degree_t *degree)
{
    char place[PLACE_TEXT];
    int64_t tensor;
    xm_status_t status;

    (void)snprintf(place, sizeof(place), "node %" PRId64 ", TMPCs", node->id);
    status = xm_text_parse_int(place, key, 1, MOST_DEGREE, &tensor);
    if (status != XM_OK) {
        return xm_error_set(XM_ERR_PARSE, "%s: '%.20s' is not a number of devices", place, key);
    }
    if (!json_is_array(list) || json_array_size(list) > AP_PIPER_VARIANTS) {
        return xm_error_set(XM_ERR_PARSE, "%s, %s devices: at most %d ways to run a layer", place,
                            key, AP_PIPER_VARIANTS);
    }
    degree->tensor = (int)tensor;
    for (size_t i = 0; i < json_array_size(list) && status == XM_OK; ++i) {
        (void)snprintf(place, sizeof(place), "node %" PRId64 ", %.20s devices, variant %zu",
                       node->id, key, i);
        ++degree->variant_count;
        status = read_variant(problem, node, place, json_array_get(list, i), &degree->variants[i]);
    }
    return status;
}

/* The order of an object's keys in a file is arbitrary; degrees are sorted so that equal problems
 * are searched alike, and a degree that stands there twice, as "2" and "02", becomes two
 * neighbours. */
static int compare_degrees(const void *a, const void *b)
{
    const ap_piper_degree_t *left = a, *right = b;

    return (left->tensor > right->tensor) - (left->tensor < right->tensor);
}

static xm_status_t read_degrees(const ap_piper_problem_t *problem, json_t *item,
                                ap_piper_node_t *node)
{
    json_t *degrees = json_object_get(item, "TMPCs"), *list;
    const char *key;
    xm_status_t status = XM_OK;

    if (!json_is_object(degrees)) {
        return xm_error_set(XM_ERR_PARSE, "node %" PRId64 ": TMPCs is missing", node->id);
    }
    node->degrees = calloc(json_object_size(degrees) + 1, sizeof(*node->degrees));
    if (node->degrees == NULL) {
        return no_memory();
    }
    json_object_foreach(degrees, key, list)
    {
        if (status == XM_OK) {
            status = read_degree(problem, node, key, list, &node->degrees[node->degree_count++]);
        }
    }
    qsort(node->degrees, (size_t)node->degree_count, sizeof(*node->degrees), compare_degrees);
    for (int i = 1; i < node->degree_count && status == XM_OK; ++i) {
        if (node->degrees[i].tensor == node->degrees[i - 1].tensor) {
            status = xm_error_set(XM_ERR_PARSE, "node %" PRId64 ": TMPCs has %d devices twice",
                                  node->id, node->degrees[i].tensor);
        }
    }
    return status;
}

static xm_status_t read_ids(ap_piper_problem_t *problem, const json_t *nodes)
{
    for (size_t i = 0; i < json_array_size(nodes); ++i) {
        const json_t *id = json_object_get(json_array_get(nodes, i), "id");

        if (!json_is_integer(id)) {
            return xm_error_set(XM_ERR_PARSE, "nodes[%zu]: id is not an integer", i);
        }
        if (find_id(problem, json_integer_value(id)) >= 0) {
            return xm_error_set(XM_ERR_PARSE, "nodes[%zu]: two nodes have the id %" PRId64, i,
                                (int64_t)json_integer_value(id));
        }
        problem->nodes[problem->node_count++].id = json_integer_value(id);
    }
    return XM_OK;
}

/* Grows by one at a time: a node of these graphs has few edges. */
static xm_status_t add_edge(int **list, int *count, int edge)
{
    int *grown = realloc(*list, ((size_t)*count + 1) * sizeof(*grown));

    if (grown == NULL) {
        return no_memory();
    }
    *list = grown;
    (*list)[(*count)++] = edge;
    return XM_OK;
}

static xm_status_t read_edge(ap_piper_problem_t *problem, json_t *item, size_t index)
{
    json_error_t error;
    json_int_t source, target;
    double bytes;
    int from, to;
    xm_status_t status;

    if (json_unpack_ex(item, &error, 0, "{s:I, s:I, s:F}", "sourceId", &source, "destId", &target,
                       "communicationCost", &bytes) != 0) {
        return xm_error_set(XM_ERR_PARSE, "edges[%zu]: %s", index, error.text);
    }
    from = find_id(problem, source);
    to = find_id(problem, target);
    if (from < 0 || to < 0 || from == to || !is_amount(bytes)) {
        return xm_error_set(XM_ERR_PARSE,
                            "edges[%zu]: from %" PRId64 " to %" PRId64 " with %g bytes: two "
                            "different nodes are needed, and a size",
                            index, (int64_t)source, (int64_t)target, bytes);
    }
    for (int i = 0; i < problem->nodes[from].out_count; ++i) {
        if (problem->edges[problem->nodes[from].out[i]].after == to) {
            return xm_error_set(XM_ERR_PARSE,
                                "edges[%zu]: a second edge from %" PRId64 " to %" PRId64, index,
                                (int64_t)source, (int64_t)target);
        }
    }
    /* Whether the edges form a cycle is not checked here; the enumeration of down-sets (ideals.c)
     * finds that out, because it must reach all nodes. */
    problem->edges[problem->edge_count] = (ap_precedence_t){from, to};
    problem->bytes[problem->edge_count] = bytes;
    status =
        add_edge(&problem->nodes[from].out, &problem->nodes[from].out_count, problem->edge_count);
    if (status == XM_OK) {
        status =
            add_edge(&problem->nodes[to].in, &problem->nodes[to].in_count, problem->edge_count);
    }
    ++problem->edge_count;
    return status;
}

/* Ids, then edges, then costs: each refers to the ones before. */
static xm_status_t read_graph(ap_piper_problem_t *problem, json_t *nodes, json_t *edges)
{
    xm_status_t status = XM_OK;

    if (!json_is_array(nodes) || !json_is_array(edges) || json_array_size(nodes) == 0 ||
        json_array_size(nodes) > INT16_MAX || json_array_size(edges) > INT32_MAX / 2) {
        return xm_error_set(XM_ERR_PARSE, "nodes and edges must be lists, one node at least");
    }
    problem->nodes = calloc(json_array_size(nodes), sizeof(*problem->nodes));
    problem->edges = calloc(json_array_size(edges) + 1, sizeof(*problem->edges));
    problem->bytes = calloc(json_array_size(edges) + 1, sizeof(*problem->bytes));
    if (problem->nodes == NULL || problem->edges == NULL || problem->bytes == NULL) {
        return no_memory();
    }
    status = read_ids(problem, nodes);
    for (size_t i = 0; i < json_array_size(edges) && status == XM_OK; ++i) {
        status = read_edge(problem, json_array_get(edges, i), i);
    }
    for (size_t i = 0; i < json_array_size(nodes) && status == XM_OK; ++i) {
        status = read_degrees(problem, json_array_get(nodes, i), &problem->nodes[i]);
    }
    return status;
}

/* The number of micro-batches stands under one of two names in the authors' files. */
static xm_status_t read_problem(json_t *document, ap_piper_problem_t *problem)
{
    json_error_t error;
    json_t *nodes, *edges;
    const char *batch =
        json_object_get(document, "mbsInBatch") != NULL ? "mbsInBatch" : "maxBatchSize";

    if (json_unpack_ex(document, &error, 0, "{s:F, s:i, s:F, s:i, s:o, s:o}", "maxMemoryPerDevice",
                       &problem->memory, "maxDevices", &problem->devices, "bandwidth",
                       &problem->bandwidth, batch, &problem->micro_batches, "nodes", &nodes,
                       "edges", &edges) != 0) {
        return xm_error_set(XM_ERR_PARSE, "%s", error.text);
    }
    if (problem->devices < 1 || problem->micro_batches < 1 || !(problem->bandwidth > 0.0) ||
        !is_amount(problem->memory)) {
        return xm_error_set(XM_ERR_PARSE,
                            "%d devices with %g bytes and %g bytes per second, %d micro-batches: "
                            "all must be positive",
                            problem->devices, problem->memory, problem->bandwidth,
                            problem->micro_batches);
    }
    return read_graph(problem, nodes, edges);
}

/* Reads into a problem of its own, so that the caller's stays as it is after a failure. Duplicate
 * keys are refused, because a reader of JSON would silently take one of them. */
xm_status_t ap_import_piper(const char *name, const char *text, size_t length,
                            ap_piper_problem_t *problem)
{
    ap_piper_problem_t read = {0};
    json_error_t error;
    json_t *document = json_loadb(text, length, JSON_REJECT_DUPLICATES, &error);
    xm_status_t status;

    if (document == NULL) {
        return xm_error_set(XM_ERR_PARSE, "%s: line %d, column %d: %s", name, error.line,
                            error.column, error.text);
    }
    status = read_problem(document, &read);
    json_decref(document);
    if (status != XM_OK) {
        ap_piper_problem_clear(&read);
        return xm_error_prefix(status, "%s", name);
    }
    *problem = read;
    return XM_OK;
}
