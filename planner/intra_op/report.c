/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a solved sharding makes the devices say to each other. The report is made from the finished
 * solution, not from the solver's tables: the exports use it to predict what a compiler will emit.
 * A tensor that several operators want in one spec is resharded once, and gradients that are
 * reduced alike are added first. Totals by kind and axes are what users compare with traces.
 */

#include "planner/intra_op/report.h"

#include <stdlib.h>

#include "planner/intra_op/intra_op_private.h"

/* A use of a tensor in another spec than it is made in, and how often it runs in a step. */
typedef struct reuse {
    int tensor, op;
    ap_spec_t used;
    double runs;
} reuse_t;

typedef struct builder {
    const ap_shard_solution_t *solution;
    ap_shard_report_t *report;
    size_t room;
    reuse_t *uses;
    int use_count;
    int *sum_of;  /* per tensor: ap_gradient_sums_find() */
    double flops; /* of one device */
} builder_t;

/* Adds a collective, unless its axes have one device each, and books it in the totals of its kind
 * and axes. */
static xm_status_t add_transfer(builder_t *b, ap_shard_transfer_t transfer)
{
    ap_shard_report_t *report = b->report;
    ap_shard_total_t *total;

    transfer.axes &= ap_cost_mesh_axes(b->solution->mesh);
    if (transfer.axes == 0) {
        return XM_OK;
    }
    XM_NEED_MEMORY(XM_ARRAY_ROOM(report->transfers, b->room, report->transfer_count),
                   "the report of a sharding");
    transfer.cost =
        transfer.runs * (transfer.gradient ? ap_cost_gradient_collective : ap_cost_collective_over)(
                            b->solution->mesh, transfer.kind, transfer.axes, transfer.bytes);
    total = &report->total[transfer.kind][transfer.axes];
    total->count += transfer.runs;
    total->bytes += transfer.runs * transfer.bytes;
    total->cost += transfer.cost;
    report->transfers[report->transfer_count++] = transfer;
    return XM_OK;
}

/* Whether an earlier part of the same sum of gradients is reduced alike: one reduction serves
 * both. */
static bool is_reduced_with_others(const builder_t *b, const ap_priced_op_t *op, int o, int term)
{
    const ap_graph_t *graph = b->solution->graph;
    int tensor = ap_op_tensor(op->op, term);
    ap_reduction_t of = ap_reduction_of(op, &b->solution->ops[o], term);

    for (int t = tensor - 1; t >= 0 && b->sum_of[tensor] >= 0; --t) {
        if (b->sum_of[t] == b->sum_of[tensor]) {
            int producer = ap_graph_tensor(graph, t)->producer;
            ap_priced_op_t other =
                ap_price_op(graph, b->solution->mesh, producer, b->solution->state_bytes);
            ap_reduction_t with = ap_reduction_of(&other, &b->solution->ops[producer],
                                                  ap_op_result_term(other.op, t));

            if (ap_reduction_equal(&of, &with)) {
                return true;
            }
        }
    }
    return false;
}

/* Adds the collectives of an operator's strategy, and what it computes. */
static xm_status_t add_op(builder_t *b, int o)
{
    const ap_graph_t *graph = b->solution->graph;
    const ap_priced_op_t priced =
        ap_price_op(graph, b->solution->mesh, o, b->solution->state_bytes);
    const ap_op_t *op = priced.op;
    const ap_strategy_t *strategy = &b->solution->ops[o];
    const double times = ap_shard_solution_times(b->solution, o);

    double flops = times * op->flops / strategy->devices;
    unsigned cut = ap_strategy_axes(&op->rule, strategy);

    b->report->compute += times * ap_price_compute(&priced, strategy);
    b->flops += flops;
    for (int a = 0; a < ap_cost_mesh_rank(b->solution->mesh); ++a) {
        b->report->repeated[a] +=
            ((ap_cost_mesh_axes(b->solution->mesh) & ~cut) >> a & 1U) != 0 ? flops : 0;
    }
    for (int c = 0; c < strategy->collective_count; ++c) {
        const ap_collective_t *on = &strategy->collective[c];
        int tensor = ap_op_tensor(op, on->term);
        /* Gradients are summed over the micro-batches first, so their collectives run once. */
        bool once = ap_price_is_once(graph, op, on->term);

        if (is_reduced_with_others(b, &priced, o, on->term)) {
            continue;
        }
        XM_TRY(add_transfer(b, (ap_shard_transfer_t){
                                   .kind = on->kind,
                                   .axes = on->axes,
                                   .op = o,
                                   .tensor = tensor,
                                   .gradient = ap_price_is_parameter_gradient(graph, op, on->term),
                                   .bytes = on->bytes,
                                   .runs = (once ? 1 : times) * op->repeat}));
    }
    return XM_OK;
}

/* By tensor and then by operator, so that uses of one tensor stand together, the earliest first. */
static int by_tensor(const void *left, const void *right)
{
    const reuse_t *a = left, *b = right;

    return a->tensor != b->tensor ? xm_order(a->tensor, b->tensor) : xm_order(a->op, b->op);
}

/* Finds the uses in another spec, also results that end in another spec than they are made in. */
static xm_status_t find_uses(builder_t *b)
{
    const ap_graph_t *graph = b->solution->graph;

    b->uses = calloc(ap_graph_terms(graph) + 1, sizeof(*b->uses));
    XM_NEED_MEMORY(b->uses, "the report of a sharding");
    for (int o = 0; o < ap_graph_ops(graph); ++o) {
        const ap_op_t *op = ap_graph_op(graph, o);

        for (int i = 0; i < op->operand_count; ++i) {
            ap_spec_t used = ap_shard_solution_used(b->solution, o, i);

            if (used != b->solution->made[op->operands[i]]) {
                b->uses[b->use_count++] =
                    (reuse_t){.tensor = op->operands[i],
                              .op = o,
                              .used = used,
                              .runs = ap_shard_solution_runs(b->solution, op->operands[i], o)};
            }
        }
        for (int r = 0; r < op->result_count; ++r) {
            ap_spec_t kept = ap_shard_solution_kept(b->solution, op->results[r]);

            if (kept != b->solution->made[op->results[r]]) {
                b->uses[b->use_count++] =
                    (reuse_t){.tensor = op->results[r],
                              .op = o,
                              .used = kept,
                              .runs = ap_shard_solution_times(b->solution, o) * op->repeat};
            }
        }
    }
    qsort(b->uses, (size_t)b->use_count, sizeof(*b->uses), by_tensor);
    return XM_OK;
}

/* Whether an earlier resharding of the same tensor, which runs as often, has been at `spec` on its
 * way. Then the steps up to there have happened already. Paths are computed again rather than
 * stored; few tensors are resharded more than once. */
static bool was_at(const builder_t *b, int use, ap_spec_t spec)
{
    const reuse_t *of = &b->uses[use];
    const ap_tensor_t *tensor = ap_graph_tensor(b->solution->graph, of->tensor);
    ap_reshard_step_t steps[AP_MAX_RESHARD_STEPS];

    for (int u = use - 1; u >= 0 && b->uses[u].tensor == of->tensor; --u) {
        int count = 0;

        if (b->uses[u].runs != of->runs) {
            continue;
        }
        (void)ap_cost_reshard(b->solution->mesh, &tensor->shape,
                              ap_graph_tensor_bytes(b->solution->graph, of->tensor),
                              b->solution->made[of->tensor], b->uses[u].used, steps, &count);
        for (int s = 0; s < count; ++s) {
            if (steps[s].after == spec) {
                return true;
            }
        }
    }
    return false;
}

/* Adds the steps of one resharding, without slices, which move nothing, and without those that an
 * earlier resharding shares. */
static xm_status_t add_reshard(builder_t *b, int use)
{
    const reuse_t *of = &b->uses[use];
    const ap_tensor_t *tensor = ap_graph_tensor(b->solution->graph, of->tensor);
    ap_reshard_step_t steps[AP_MAX_RESHARD_STEPS];
    int count = 0;

    (void)ap_cost_reshard(b->solution->mesh, &tensor->shape,
                          ap_graph_tensor_bytes(b->solution->graph, of->tensor),
                          b->solution->made[of->tensor], of->used, steps, &count);
    for (int s = 0; s < count; ++s) {
        if (steps[s].slice || was_at(b, use, steps[s].after)) {
            continue;
        }
        XM_TRY(add_transfer(b, (ap_shard_transfer_t){.kind = steps[s].kind,
                                                     .axes = 1U << steps[s].axis,
                                                     .reshard = true,
                                                     .op = of->op,
                                                     .tensor = of->tensor,
                                                     .bytes = steps[s].bytes,
                                                     .runs = of->runs}));
    }
    return XM_OK;
}

/* By operator; of one operator, first what its operands need. Ties go by tensor and axes, so the
 * report does not depend on the sort. */
static int by_op(const void *left, const void *right)
{
    const ap_shard_transfer_t *a = left, *b = right;

    return a->op != b->op             ? xm_order(a->op, b->op)
           : a->reshard != b->reshard ? xm_order(b->reshard, a->reshard)
           : a->tensor != b->tensor   ? xm_order(a->tensor, b->tensor)
                                      : xm_order(a->axes, b->axes);
}

/* Collects all transfers in the order in which they are found, and sorts them at the end. */
xm_status_t ap_shard_report_create(const ap_shard_solution_t *solution, ap_shard_report_t **report)
{
    builder_t b = {.solution = solution, .report = calloc(1, sizeof(*b.report))};
    xm_status_t status =
        b.report == NULL ? XM_NO_MEMORY("the report of a sharding") : find_uses(&b);

    XM_THEN(status, ap_gradient_sums_find(solution->graph, &b.sum_of));

    for (int o = 0; status == XM_OK && o < ap_graph_ops(solution->graph); ++o) {
        status = add_op(&b, o);
    }
    for (int u = 0; status == XM_OK && u < b.use_count; ++u) {
        status = add_reshard(&b, u);
    }
    if (status == XM_OK && b.report->transfer_count > 0) {
        qsort(b.report->transfers, (size_t)b.report->transfer_count, sizeof(*b.report->transfers),
              by_op);
    }
    for (int a = 0; a < AP_MAX_MESH_RANK && status == XM_OK && b.flops > 0; ++a) {
        b.report->repeated[a] /= b.flops;
    }
    free(b.uses);
    free(b.sum_of);
    if (status != XM_OK) {
        ap_shard_report_destroy(b.report);
        return status;
    }
    *report = b.report;
    return XM_OK;
}

void ap_shard_report_destroy(ap_shard_report_t *report)
{
    if (report != NULL) {
        free(report->transfers);
        free(report);
    }
}
