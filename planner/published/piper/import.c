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
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/base.h"

enum { PLACE_TEXT = 96, ID_TEXT = 32, MOST_DEGREE = 10000 };

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
static xm_status_t read_sync(ap_piper_problem_t *problem, const char *place, const json_t *object,
                             const int *edges, int count, bool in, double **bytes)
{
    *bytes = xm_arena_get(&problem->arena, (size_t)count, sizeof(**bytes));
    XM_NEED_MEMORY(*bytes, "a graph");
    if (!json_is_object(object) || json_object_size(object) != (size_t)count) {
        return XM_MALFORMED("%s: syncTime%s must have an entry for each of %d edges", place,
                            in ? "Fw" : "Bw", count);
    }
    for (int i = 0; i < count; ++i) {
        const ap_precedence_t *edge = &problem->edges[edges[i]];
        int64_t other = problem->nodes[in ? edge->before : edge->after].id;
        char key[ID_TEXT];
        const json_t *value;

        (void)snprintf(key, sizeof(key), "%" PRId64, other);
        value = json_object_get(object, key);
        if (!json_is_number(value) || !ap_problem_is_amount(json_number_value(value))) {
            return XM_MALFORMED("%s: syncTime%s lacks %s, or it is negative", place,
                                in ? "Fw" : "Bw", key);
        }
        (*bytes)[i] = json_number_value(value);
    }
    return XM_OK;
}

/* The problem owns copies of all it keeps, so the document is not needed afterwards. */
static xm_status_t read_variant(ap_piper_problem_t *problem, const ap_piper_node_t *node,
                                const char *place, json_t *item, ap_piper_variant_t *variant)
{
    json_error_t error;
    json_t *forward, *backward;
    const char *id;
    char *copy;

    if (json_unpack_ex(item, &error, 0, "{s:s, s:F, s:F, s:F, s:F, s:o, s:o}", "id", &id,
                       "timePerSample", &variant->time, "parameterSize", &variant->parameters,
                       "memoryUsageA", &variant->memory_each, "memoryUsageB", &variant->memory,
                       "syncTimeFw", &forward, "syncTimeBw", &backward) != 0) {
        return XM_MALFORMED("%s: %s", place, error.text);
    }
    if (!ap_problem_is_amount(variant->time) || !ap_problem_is_amount(variant->parameters) ||
        !ap_problem_is_amount(variant->memory_each) || !ap_problem_is_amount(variant->memory)) {
        return XM_MALFORMED("%s: a time or size is negative", place);
    }
    copy = xm_arena_get(&problem->arena, strlen(id) + 1, 1);
    XM_NEED_MEMORY(copy, "a graph");
    variant->id = strcpy(copy, id);
    XM_TRY(read_sync(problem, place, forward, node->in, node->in_count, true, &variant->in_bytes));
    return read_sync(problem, place, backward, node->out, node->out_count, false,
                     &variant->out_bytes);
}

static xm_status_t read_degree(ap_piper_problem_t *problem, const ap_piper_node_t *node,
                               const char *key, json_t *list, ap_piper_degree_t *degree)
{
    char place[PLACE_TEXT];
    int64_t tensor;
    xm_status_t status;

    (void)snprintf(place, sizeof(place), "node %" PRId64 ", TMPCs", node->id);
    status = xm_text_parse_int(place, key, 1, MOST_DEGREE, &tensor);
    if (status != XM_OK) {
        return XM_MALFORMED("%s: '%s' is not a number of devices", place, key);
    }
    if (!json_is_array(list) || json_array_size(list) > AP_PIPER_VARIANTS) {
        return XM_MALFORMED("%s, %s devices: at most %d ways to run a layer", place, key,
                            AP_PIPER_VARIANTS);
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
static xm_status_t read_degrees(ap_piper_problem_t *problem, json_t *item, ap_piper_node_t *node)
{
    json_t *degrees = json_object_get(item, "TMPCs"), *list;
    const char *key;
    xm_status_t status = XM_OK;

    if (!json_is_object(degrees)) {
        return XM_MALFORMED("node %" PRId64 ": TMPCs is missing", node->id);
    }
    node->degrees =
        xm_arena_get(&problem->arena, json_object_size(degrees), sizeof(*node->degrees));
    XM_NEED_MEMORY(node->degrees, "a graph");
    json_object_foreach(degrees, key, list)
    {
        XM_THEN(status,
                read_degree(problem, node, key, list, &node->degrees[node->degree_count++]));
    }
    qsort(node->degrees, (size_t)node->degree_count, sizeof(*node->degrees), xm_order_ints);
    for (int i = 1; i < node->degree_count && status == XM_OK; ++i) {
        if (node->degrees[i].tensor == node->degrees[i - 1].tensor) {
            status = XM_MALFORMED("node %" PRId64 ": TMPCs has %d devices twice", node->id,
                                  node->degrees[i].tensor);
        }
    }
    return status;
}

static xm_status_t read_ids(ap_piper_problem_t *problem, const json_t *nodes)
{
    for (size_t i = 0; i < json_array_size(nodes); ++i) {
        const json_t *id = json_object_get(json_array_get(nodes, i), "id");

        if (!json_is_integer(id)) {
            return XM_MALFORMED("nodes[%zu]: id is not an integer", i);
        }
        if (find_id(problem, json_integer_value(id)) >= 0) {
            return XM_MALFORMED("nodes[%zu]: two nodes have the id %" PRId64, i,
                                (int64_t)json_integer_value(id));
        }
        problem->nodes[problem->node_count++].id = json_integer_value(id);
    }
    return XM_OK;
}

static xm_status_t read_edge(ap_piper_problem_t *problem, json_t *item, size_t index)
{
    int64_t source, target;
    double bytes;
    int from, to;

    XM_TRY(ap_problem_edge(item, index, "communicationCost", &source, &target, &bytes));
    from = find_id(problem, source);
    to = find_id(problem, target);
    if (from < 0 || to < 0 || from == to || !ap_problem_is_amount(bytes)) {
        return XM_MALFORMED("edges[%zu]: from %" PRId64 " to %" PRId64
                            " with %g bytes: two different nodes are needed, and a size",
                            index, source, target, bytes);
    }
    for (int i = 0; i < problem->edge_count; ++i) {
        if (problem->edges[i].before == from && problem->edges[i].after == to) {
            return XM_MALFORMED("edges[%zu]: a second edge from %" PRId64 " to %" PRId64, index,
                                source, target);
        }
    }
    /* Whether the edges form a cycle is not checked here; the enumeration of down-sets (ideals.c)
     * finds that out, because it must reach all nodes. */
    problem->edges[problem->edge_count] = (ap_precedence_t){from, to};
    problem->bytes[problem->edge_count++] = bytes;
    ++problem->nodes[from].out_count;
    ++problem->nodes[to].in_count;
    return XM_OK;
}

/* Lists the edges of each node, of which the numbers are known. */
static xm_status_t list_edges(ap_piper_problem_t *problem)
{
    for (int i = 0; i < problem->node_count; ++i) {
        ap_piper_node_t *node = &problem->nodes[i];

        node->in = xm_arena_get(&problem->arena, (size_t)node->in_count, sizeof(int));
        node->out = xm_arena_get(&problem->arena, (size_t)node->out_count, sizeof(int));
        node->in_count = node->out_count = 0;
    }
    XM_NEED_MEMORY(!problem->arena.failed, "a graph");
    for (int e = 0; e < problem->edge_count; ++e) {
        ap_piper_node_t *from = &problem->nodes[problem->edges[e].before];
        ap_piper_node_t *to = &problem->nodes[problem->edges[e].after];

        from->out[from->out_count++] = e;
        to->in[to->in_count++] = e;
    }
    return XM_OK;
}

/* Ids, then edges, then costs: each refers to the ones before. */
static xm_status_t read_graph(ap_piper_problem_t *problem, json_t *nodes, json_t *edges)
{
    size_t node_count = json_array_size(nodes), edge_count = json_array_size(edges);

    if (!ap_problem_is_graph(nodes, edges, INT16_MAX)) {
        return XM_MALFORMED("nodes and edges must be lists, one node at least");
    }
    problem->nodes = xm_arena_get(&problem->arena, node_count, sizeof(*problem->nodes));
    problem->edges = xm_arena_get(&problem->arena, edge_count, sizeof(*problem->edges));
    problem->bytes = xm_arena_get(&problem->arena, edge_count, sizeof(*problem->bytes));
    XM_NEED_MEMORY(!problem->arena.failed, "a graph");
    XM_TRY(read_ids(problem, nodes));
    for (size_t i = 0; i < edge_count; ++i) {
        XM_TRY(read_edge(problem, json_array_get(edges, i), i));
    }
    XM_TRY(list_edges(problem));
    for (size_t i = 0; i < node_count; ++i) {
        XM_TRY(read_degrees(problem, json_array_get(nodes, i), &problem->nodes[i]));
    }
    return XM_OK;
}

/* The number of micro-batches stands under one of two names in the authors' files. */
static xm_status_t read_problem(json_t *document, void *into)
{
    ap_piper_problem_t *problem = into;
    json_error_t error;
    json_t *nodes, *edges;
    const char *batch =
        json_object_get(document, "mbsInBatch") != NULL ? "mbsInBatch" : "maxBatchSize";

    if (json_unpack_ex(document, &error, 0, "{s:F, s:i, s:F, s:i, s:o, s:o}", "maxMemoryPerDevice",
                       &problem->memory, "maxDevices", &problem->devices, "bandwidth",
                       &problem->bandwidth, batch, &problem->micro_batches, "nodes", &nodes,
                       "edges", &edges) != 0) {
        return XM_MALFORMED("%s", error.text);
    }
    if (problem->devices < 1 || problem->micro_batches < 1 || !(problem->bandwidth > 0.0) ||
        !ap_problem_is_amount(problem->memory)) {
        return XM_MALFORMED("%d devices with %g bytes and %g bytes per second, %d micro-batches: "
                            "all must be positive",
                            problem->devices, problem->memory, problem->bandwidth,
                            problem->micro_batches);
    }
    return read_graph(problem, nodes, edges);
}

/* Reads into a problem of its own, so that the caller's stays as it is after a failure. */
xm_status_t ap_import_piper(const char *name, const char *text, size_t length,
                            ap_piper_problem_t *problem)
{
    ap_piper_problem_t read = {0};
    xm_status_t status = ap_problem_read(name, text, length, read_problem, &read);

    if (status != XM_OK) {
        ap_piper_problem_clear(&read);
        return status;
    }
    *problem = read;
    return XM_OK;
}
