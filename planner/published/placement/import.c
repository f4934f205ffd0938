/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads the inputs of Tarnawski et al.'s placement programs (NeurIPS'20). The files were written
 * for their C++ reader, which asks nothing; so everything that a solver relies on is checked here:
 * ids are unique, edges join nodes that exist, a node's output costs the same on every edge (the
 * problem charges it once), and there is no cycle.
 */

#include "planner/published/placement/import.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>

/* Colours of nodes that have none are counted down from here, so that each is alone in its own. */
static const int64_t NO_COLOUR = INT64_MAX;

static const double COST_TOLERANCE = 1e-6;

typedef struct by_id {
    int64_t id; /* stands first: it is what is sorted by */
    int node;
} by_id_t;

/* Some inputs write 0 and 1, others false and true. */
static bool read_flag(const json_t *value, bool *flag)
{
    *flag = json_is_true(value) || json_integer_value(value) != 0;
    return json_is_boolean(value) || json_is_integer(value);
}

static xm_status_t read_node(const json_t *item, size_t index, ap_placement_node_t *node)
{
    json_error_t error;
    json_int_t id, colour = NO_COLOUR - (json_int_t)index;
    json_t *supported, *backward;
    double size = 0.0;

    if (json_unpack_ex((json_t *)item, &error, 0, "{s:I, s:o, s:F, s:F, s:o, s?F, s?I}", "id", &id,
                       "supportedOnFpga", &supported, "cpuLatency", &node->cpu, "fpgaLatency",
                       &node->accelerator, "isBackwardNode", &backward, "size", &size, "colorClass",
                       &colour) != 0) {
        return XM_MALFORMED("nodes[%zu]: %s", index, error.text);
    }
    if (!read_flag(supported, &node->on_accelerator) || !read_flag(backward, &node->backward)) {
        return XM_MALFORMED("nodes[%zu]: supportedOnFpga and isBackwardNode are 0 or 1", index);
    }
    if (!ap_problem_is_amount(node->cpu) || !ap_problem_is_amount(node->accelerator) ||
        !ap_problem_is_amount(size)) {
        return XM_MALFORMED("nodes[%zu]: a time or size is negative", index);
    }
    node->id = id;
    node->colour = colour;
    node->size = size;
    node->transfer = -1.0;
    return XM_OK;
}

/* By bisection over sorted ids: files have thousands of edges. */
static xm_status_t find_node(const ap_placement_problem_t *problem, const by_id_t *ids,
                             size_t index, int64_t id, int *node)
{
    const by_id_t key = {id, 0};
    const by_id_t *found =
        bsearch(&key, ids, (size_t)problem->node_count, sizeof(key), xm_order_int64s);

    if (found == NULL) {
        return XM_MALFORMED("edges[%zu]: there is no node %" PRId64, index, id);
    }
    *node = found->node;
    return XM_OK;
}

static xm_status_t read_edge(ap_placement_problem_t *problem, const by_id_t *ids, json_t *item,
                             size_t index)
{
    ap_precedence_t *edge = &problem->edges[index];
    ap_placement_node_t *from;
    int64_t source, target;
    double cost;

    XM_TRY(ap_problem_edge(item, index, "cost", &source, &target, &cost));
    XM_TRY(find_node(problem, ids, index, source, &edge->before));
    XM_TRY(find_node(problem, ids, index, target, &edge->after));
    from = &problem->nodes[edge->before];
    if (!ap_problem_is_amount(cost) ||
        (from->transfer >= 0.0 && fabs(from->transfer - cost) > COST_TOLERANCE)) {
        return XM_MALFORMED("edges[%zu]: node %" PRId64 " sends at a cost of %g, and of %g before",
                            index, from->id, cost, from->transfer);
    }
    from->transfer = cost;
    if (from->backward && !problem->nodes[edge->after].backward) {
        return XM_MALFORMED("edges[%zu]: from backward node %" PRId64 " to forward node %" PRId64,
                            index, from->id, problem->nodes[edge->after].id);
    }
    return XM_OK;
}

static xm_status_t read_edges(ap_placement_problem_t *problem, const json_t *list)
{
    by_id_t *ids = xm_arena_get(&problem->arena, (size_t)problem->node_count, sizeof(*ids));
    xm_status_t status = XM_OK;

    XM_NEED_MEMORY(ids, "a graph");
    for (int i = 0; i < problem->node_count; ++i) {
        ids[i] = (by_id_t){problem->nodes[i].id, i};
    }
    qsort(ids, (size_t)problem->node_count, sizeof(*ids), xm_order_int64s);
    for (int i = 1; i < problem->node_count && status == XM_OK; ++i) {
        if (ids[i].id == ids[i - 1].id) {
            status = XM_MALFORMED("two nodes have the id %" PRId64, ids[i].id);
        }
    }
    for (size_t i = 0; i < (size_t)problem->edge_count && status == XM_OK; ++i) {
        status = read_edge(problem, ids, json_array_get(list, i), i);
    }
    return status;
}

/* A cycle leaves no order of all nodes. */
static xm_status_t check_acyclic(ap_placement_problem_t *problem)
{
    int *order = xm_arena_get(&problem->arena, (size_t)problem->node_count, sizeof(*order)), placed;
    XM_TRY(order == NULL ? XM_NO_MEMORY("a graph")
                         : ap_precedence_order(problem->node_count, problem->edges,
                                               problem->edge_count, true, order, &placed));

    return placed < problem->node_count ? XM_MALFORMED("the graph has a cycle") : XM_OK;
}

static xm_status_t read_problem(json_t *document, void *into)
{
    ap_placement_problem_t *problem = into;
    json_error_t error;
    json_t *nodes, *edges;
    xm_status_t status = XM_OK;

    if (json_unpack_ex(document, &error, 0, "{s:F, s:i, s:i, s:o, s:o}", "maxSizePerFPGA",
                       &problem->memory, "maxFPGAs", &problem->accelerators, "maxCPUs",
                       &problem->cpus, "nodes", &nodes, "edges", &edges) != 0) {
        return XM_MALFORMED("%s", error.text);
    }
    if (!ap_problem_is_graph(nodes, edges, INT32_MAX / 2) || problem->accelerators < 0 ||
        problem->cpus < 0) {
        return XM_MALFORMED(
            "nodes and edges must be lists, one node at least, and devices counted");
    }
    problem->node_count = (int)json_array_size(nodes);
    problem->edge_count = (int)json_array_size(edges);
    problem->nodes =
        xm_arena_get(&problem->arena, (size_t)problem->node_count, sizeof(*problem->nodes));
    problem->edges =
        xm_arena_get(&problem->arena, (size_t)problem->edge_count, sizeof(*problem->edges));
    XM_NEED_MEMORY(!problem->arena.failed, "a graph");
    for (size_t i = 0; i < (size_t)problem->node_count && status == XM_OK; ++i) {
        status = read_node(json_array_get(nodes, i), i, &problem->nodes[i]);
    }
    XM_THEN(status, read_edges(problem, edges));
    for (int i = 0; i < problem->node_count; ++i) {
        problem->nodes[i].transfer = fmax(problem->nodes[i].transfer, 0.0);
    }
    return status == XM_OK ? check_acyclic(problem) : status;
}

xm_status_t ap_import_dnn_partitioning(const char *name, const char *text, size_t length,
                                       ap_placement_problem_t *problem)
{
    ap_placement_problem_t read = {0};
    xm_status_t status = ap_problem_read(name, text, length, read_problem, &read);

    if (status != XM_OK) {
        ap_placement_problem_clear(&read);
        return status;
    }
    *problem = read;
    return XM_OK;
}
