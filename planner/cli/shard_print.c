/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Prints the strategies that autopar shard has chosen, as a table or as JSON. Names of operators
 * come from files of others, so the table of strategies and the line about memory let through only
 * printable characters: a name must not be able to move the cursor of the terminal.
 */

#include "planner/cli/shard_print.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "comm/base.h"

enum { STRATEGY_TEXT = 256, BYTES_TEXT = 32, NAME_TEXT = 1024 };

/* Says at which operator the most memory is used, and for what. Parts below one byte are left
 * out. */
static void print_memory(const ap_graph_t *graph, const ap_shard_plan_t *plan)
{
    const ap_shard_result_t *result = ap_shard_plan_result(plan);
    const ap_shard_memory_t *peak = ap_shard_plan_memory(plan, result->peak_op);
    char bytes[BYTES_TEXT], name[NAME_TEXT];

    (void)printf("memory %s at most, in %s:",
                 xm_text_format_bytes((uint64_t)result->peak, bytes, sizeof(bytes)),
                 xm_text_printable(ap_graph_op(graph, result->peak_op)->name, name, sizeof(name)));
    for (int part = 0, parts = 0; part < AP_SHARD_PARTS; ++part) {
        if (peak->part[part] >= 1) {
            (void)printf("%s %s %s", parts++ > 0 ? "," : "",
                         ap_shard_part_name((ap_shard_part_t)part),
                         xm_text_format_bytes((uint64_t)peak->part[part], bytes, sizeof(bytes)));
        }
    }
    (void)printf("\n");
}

/* An axis whose size divides nothing makes all its devices do the same. */
static void print_useless_axes(const ap_shard_problem_t *problem)
{
    const ap_cost_mesh_t *mesh = ap_shard_problem_params(problem)->mesh;
    unsigned useless = ap_cost_mesh_axes(mesh) & ~ap_shard_problem_axes(problem);

    for (int a = 0; a < ap_cost_mesh_rank(mesh); ++a) {
        if ((useless >> a & 1U) != 0) {
            (void)printf("no operator can be cut by axis %d: its %d devices all do the same\n", a,
                         ap_cost_mesh_size(mesh, a));
        }
    }
}

/* Says how many of the updated parameters are kept in which of ZeRO's ways. The solver chooses
 * shardings of parameters, gradients and states freely, so the stage of ZeRO is read off the
 * solution for each parameter; it is not an option that was set. */
static void print_stages(const ap_graph_t *graph, const ap_shard_problem_t *problem,
                         const int *choice)
{
    int count[4] = {0};

    for (int t = 0; t < ap_graph_tensors(graph); ++t) {
        int stage = ap_shard_problem_zero_stage(problem, choice, t);

        if (stage >= 0) {
            ++count[stage];
        }
    }
    if (count[1] + count[2] + count[3] > 0) {
        (void)printf("of %d parameters %d have their optimizer state sharded (ZeRO-1), %d their "
                     "gradients too (ZeRO-2), %d are gathered for use (ZeRO-3)\n",
                     count[0] + count[1] + count[2] + count[3], count[1], count[2], count[3]);
    }
}

/* Names the operators of a file that have no sharding rule: they stay whole on every device, which
 * can be why a plan is slow. */
static void print_unknown(const ap_frontend_notes_t *notes)
{
    for (int i = 0; notes != NULL && i < ap_frontend_notes_count(notes); ++i) {
        int count;
        const char *name = ap_frontend_notes_get(notes, i, &count);

        (void)printf("%s%s x%d%s", i == 0 ? "without a rule, kept whole: " : ", ", name, count,
                     i + 1 == ap_frontend_notes_count(notes) ? "\n" : "");
    }
}

/* Prints strategy by strategy and then how far the result can be trusted: whether it is proved
 * optimal, whether that holds only among solutions with like layers alike, and whether another run
 * would find the same. */
void ap_shard_print(const ap_graph_t *graph, const ap_shard_problem_t *problem,
                    const ap_shard_plan_t *plan, const ap_frontend_notes_t *notes, bool seconds)
{
    const ap_shard_result_t *result = ap_shard_plan_result(plan);
    const int *choice = ap_shard_plan_strategies(plan);

    (void)printf("# %-28s %s\n", "node", "strategy: operands -> results {factor: axes}");
    for (int node = 0; node < ap_shard_problem_nodes(problem); ++node) {
        int op = ap_shard_problem_node_op(problem, node);
        char strategy[STRATEGY_TEXT], name[NAME_TEXT];

        (void)printf(
            "  %-28s %s%s\n",
            xm_text_printable(ap_shard_problem_node_name(problem, node), name, sizeof(name)),
            ap_shard_problem_strategy(problem, node, choice[node], strategy, sizeof(strategy)),
            op >= 0 && ap_shard_plan_recomputes(plan, op) ? " twice" : "");
    }
    print_useless_axes(problem);
    print_memory(graph, plan);
    print_stages(graph, problem, ap_shard_plan_strategies(plan));
    if (result->recomputed > 0) {
        (void)printf("%d operators run a second time in the backward pass\n", result->recomputed);
    }
    (void)printf("objective %.8g%s", result->objective, seconds ? " s" : "");
    if (!(result->bound > 0)) {
        (void)printf(", no bound");
    } else if (result->optimal) {
        (void)printf(", bound %.8g (proved optimal%s)", result->bound,
                     result->alike > 0 ? " for like layers alike" : "");
    } else {
        (void)printf(", bound %.8g (gap %.3g %%%s)", result->bound,
                     100 * (result->objective - result->bound) / fmax(result->objective, 1e-300),
                     result->alike > 0 ? " for like layers alike" : "");
    }
    if (!result->repeatable) {
        (void)printf(" when %s: another run may choose otherwise",
                     result->optimal ? "one of several was found" : "the time was over");
    }
    (void)printf("; solver cfn, %d choices for %d nodes, %.2f s\n", result->variables,
                 ap_shard_problem_nodes(problem), result->seconds);
    print_unknown(notes);
}

static json_t *unknown_json(const ap_frontend_notes_t *notes)
{
    json_t *list = json_array();

    for (int i = 0; notes != NULL && i < ap_frontend_notes_count(notes); ++i) {
        int count;
        const char *name = ap_frontend_notes_get(notes, i, &count);

        (void)json_array_append_new(list, json_pack("{s:s, s:i}", "name", name, "count", count));
    }
    return list;
}

xm_status_t ap_shard_give_json(const ap_graph_t *graph, const ap_shard_problem_t *problem,
                               const ap_shard_plan_t *plan, const ap_frontend_notes_t *notes,
                               json_t *more, const xm_cli_json_t *json)
{
    const ap_shard_result_t *result = ap_shard_plan_result(plan);
    const ap_shard_memory_t *peak = ap_shard_plan_memory(plan, result->peak_op);
    const int *choice = ap_shard_plan_strategies(plan);
    int nodes = ap_shard_problem_nodes(problem);
    json_t *list = json_array(), *memory = json_object(), *document;

    for (int node = 0; node < nodes; ++node) {
        int op = ap_shard_problem_node_op(problem, node);
        char strategy[STRATEGY_TEXT];
        json_t *entry = json_pack(
            "{s:s, s:s}", "node", ap_shard_problem_node_name(problem, node), "strategy",
            ap_shard_problem_strategy(problem, node, choice[node], strategy, sizeof(strategy)));

        if (op >= 0 && ap_shard_plan_recomputes(plan, op)) {
            (void)json_object_set_new(entry, "recomputed", json_true());
        }
        (void)json_array_append_new(list, entry);
    }
    for (int part = 0; part < AP_SHARD_PARTS; ++part) {
        (void)json_object_set_new(memory, ap_shard_part_name((ap_shard_part_t)part),
                                  json_real(peak->part[part]));
    }
    document = json_pack(
        "{s:i, s:f, s:f, s:b, s:b, s:s, s:f, s:i, s:i, s:f, s:s, s:o, s:o, s:o}", "version", 1,
        "objective", result->objective, "bound", result->bound, "optimal", result->optimal,
        "repeatable", result->repeatable, "solver", "cfn", "solver_s", result->seconds, "choices",
        result->variables, "recomputed_operators", result->recomputed, "memory_bytes", result->peak,
        "memory_peak_in", ap_graph_op(graph, result->peak_op)->name, "memory_at_peak", memory,
        "unknown_operators", unknown_json(notes), "nodes", list);
    if (document != NULL && json_object_update(document, more) != 0) {
        json_decref(document);
        document = NULL;
    }
    return xm_cli_give_json(json, document);
}
