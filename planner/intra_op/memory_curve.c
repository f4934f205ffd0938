/*
 * How many bytes a device uses while each operator runs, for figures. This is a plain count from
 * the finished solution: live ranges in the order of the graph, nothing fused, nothing computed
 * again. planner/intra_op/network.c counts more finely for the solver; this one can be computed for
 * any solution, whoever made it.
 */

#include "planner/intra_op/memory_curve.h"

#include <stdlib.h>

enum { STATE, RESULTS, COPIES, PARTS };

/* A use of a tensor in another spec than it is made in. */
typedef struct copy {
    int tensor, op;
    ap_spec_t spec;
} copy_t;

typedef struct builder {
    const ap_shard_solution_t *solution;
    ap_memory_curve_t *curve;
} builder_t;

static xm_status_t no_memory(void)
{
    return xm_error_set(XM_ERR_NO_MEMORY, "no memory for a memory curve");
}

/* The part of a tensor on one device, if it divides evenly. */
static double local_bytes(const builder_t *b, int tensor, ap_spec_t spec)
{
    return ap_graph_tensor_bytes(b->solution->graph, tensor) /
           ap_cost_mesh_devices(b->solution->mesh, ap_spec_used_axes(spec));
}

/* Adds bytes to the points first … last of one part, as a rise and a fall that integrate() sums up;
 * so long ranges cost no more than short ones. There is one entry more than points. */
static void occupy(const builder_t *b, int part, int first, int last, double bytes)
{
    b->curve->bytes[part][first] += bytes;
    b->curve->bytes[part][last + 1] -= bytes;
}

static void integrate(ap_memory_curve_t *curve)
{
    for (int part = 0; part < curve->parts; ++part) {
        for (int o = 1; o < curve->points; ++o) {
            curve->bytes[part][o] += curve->bytes[part][o - 1];
        }
    }
}

/* Inputs, parameters and results live from being made to the last use. What nobody uses is a result
 * of the graph and stays to the end; what takes over storage has none of its own. */
static xm_status_t occupy_tensors(const builder_t *b)
{
    const ap_graph_t *graph = b->solution->graph;
    const int tensors = ap_graph_tensors(graph), end = b->curve->points - 1;
    int *last = malloc(((size_t)tensors + 1) * sizeof(*last));

    if (last == NULL) {
        return no_memory();
    }
    for (int t = 0; t < tensors; ++t) {
        last[t] = -1;
    }
    for (int o = 0; o <= end; ++o) {
        const ap_op_t *op = ap_graph_op(graph, o);

        for (int i = 0; i < op->operand_count; ++i) {
            last[op->operands[i]] = o;
        }
    }
    for (int t = 0; t < tensors; ++t) {
        const ap_tensor_t *tensor = ap_graph_tensor(graph, t);
        double bytes = local_bytes(b, t, b->solution->made[t]);

        if (tensor->producer < 0) {
            occupy(b, STATE, 0, end, bytes);
        } else if (tensor->alias_of < 0) {
            occupy(b, RESULTS, tensor->producer, last[t] < 0 ? end : last[t], bytes);
        }
    }
    free(last);
    return XM_OK;
}

/* By tensor and spec, then by operator, so that the uses of one copy are neighbours. */
static int by_copy(const void *left, const void *right)
{
    const copy_t *a = left, *b = right;

    if (a->tensor != b->tensor) {
        return a->tensor < b->tensor ? -1 : 1;
    }
    if (a->spec != b->spec) {
        return a->spec < b->spec ? -1 : 1;
    }
    return a->op < b->op ? -1 : a->op > b->op;
}

/* Each resharded copy live ranges from the first to the last operator that uses it: a runtime makes
 * it once. */
static xm_status_t occupy_copies(const builder_t *b)
{
    const ap_graph_t *graph = b->solution->graph;
    copy_t *copies = calloc((size_t)ap_graph_ops(graph) * AP_MAX_OPERANDS + 1, sizeof(*copies));
    int count = 0;

    if (copies == NULL) {
        return no_memory();
    }
    for (int o = 0; o < ap_graph_ops(graph); ++o) {
        const ap_op_t *op = ap_graph_op(graph, o);

        for (int i = 0; i < op->operand_count; ++i) {
            ap_spec_t used = ap_shard_solution_used(b->solution, o, i);

            if (used != b->solution->made[op->operands[i]]) {
                copies[count++] = (copy_t){.tensor = op->operands[i], .op = o, .spec = used};
            }
        }
    }
    qsort(copies, (size_t)count, sizeof(*copies), by_copy);
    for (int first = 0, next; first < count; first = next) {
        next = first + 1;
        while (next < count && copies[next].tensor == copies[first].tensor &&
               copies[next].spec == copies[first].spec) {
            ++next;
        }
        occupy(b, COPIES, copies[first].op, copies[next - 1].op,
               local_bytes(b, copies[first].tensor, copies[first].spec));
    }
    free(copies);
    return XM_OK;
}

/* Reduce-scatters need their whole input while they run; reshardings are counted as copies. */
xm_status_t ap_memory_curve_create(const ap_shard_solution_t *solution,
                                   const ap_shard_report_t *report, ap_memory_curve_t **curve)
{
    static const char *const names[PARTS] = {"inputs and parameters", "results of operators",
                                             "copies and partial sums"};
    builder_t b = {.solution = solution, .curve = calloc(1, sizeof(*b.curve))};
    xm_status_t status = b.curve == NULL ? no_memory() : XM_OK;

    if (status != XM_OK) {
        return status;
    }
    b.curve->points = ap_graph_ops(solution->graph);
    b.curve->parts = PARTS;
    for (int part = 0; part < PARTS; ++part) {
        b.curve->name[part] = names[part];
        b.curve->bytes[part] = calloc((size_t)b.curve->points + 1, sizeof(double));
        status = b.curve->bytes[part] == NULL ? no_memory() : status;
    }
    if (status == XM_OK) {
        status = occupy_tensors(&b);
    }
    if (status == XM_OK) {
        status = occupy_copies(&b);
    }
    if (status != XM_OK) {
        ap_memory_curve_destroy(b.curve);
        return status;
    }
    for (int c = 0; c < report->transfer_count; ++c) {
        const ap_shard_transfer_t *of = &report->transfers[c];

        if (of->kind == AP_REDUCE_SCATTER && !of->reshard) {
            occupy(&b, COPIES, of->op, of->op, of->bytes);
        }
    }
    integrate(b.curve);
    *curve = b.curve;
    return XM_OK;
}

double ap_memory_curve_sum(const ap_memory_curve_t *curve, int point, int parts)
{
    double sum = 0;

    for (int part = 0; part < parts; ++part) {
        sum += curve->bytes[part][point];
    }
    return sum;
}

/* The first one, if several points have the most. */
int ap_memory_curve_peak(const ap_memory_curve_t *curve)
{
    double most = -1;
    int peak = 0;

    for (int o = 0; o < curve->points; ++o) {
        double bytes = ap_memory_curve_sum(curve, o, curve->parts);

        if (bytes > most) {
            most = bytes;
            peak = o;
        }
    }
    return peak;
}

void ap_memory_curve_destroy(ap_memory_curve_t *curve)
{
    if (curve != NULL) {
        for (int part = 0; part < curve->parts; ++part) {
            free(curve->bytes[part]);
        }
        free(curve);
    }
}
