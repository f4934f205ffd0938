/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Solves the input file of another planner with our version of its algorithm: Piper's graph of
 * layers, or the operator graph of DNN-partitioning. The files carry their own costs, in their own
 * units, and no model, cluster profile or cost model of ours takes part; this is how our versions
 * are checked against the results that the authors published. Numbers on the command line override
 * those of the file.
 */

#include "planner/cli/plan/input.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli_support.h"
#include "comm/base.h"
#include "planner/published/like.h"
#include "planner/published/piper.h"
#include "planner/published/placement.h"

enum { TEXT = 32 };

/* Gives the document where --json and -J say, and to -o. Takes it over. */
static xm_status_t give_document(const ap_plan_input_t *like, json_t *document)
{
    xm_status_t status = xm_cli_give_json(like->json, json_incref(document));
    xm_status_t saved = xm_cli_give_json(&(xm_cli_json_t){.file = like->output}, document);

    return status == XM_OK ? saved : status;
}

/* Writes a stage with the ids of the nodes and of the variants as the input file has them, so that
 * an answer can be read beside its question. */
static json_t *piper_stage_to_json(const ap_piper_problem_t *problem, const ap_piper_stage_t *stage)
{
    json_t *nodes = json_array(), *variants = json_object();

    for (int i = 0; i < stage->node_count; ++i) {
        const ap_piper_node_t *node = &problem->nodes[stage->nodes[i]];
        char key[TEXT];

        (void)snprintf(key, sizeof(key), "%" PRId64, node->id);
        (void)json_array_append_new(nodes, json_integer(node->id));
        for (int j = 0; j < node->degree_count; ++j) {
            if (node->degrees[j].tensor == stage->tensor) {
                (void)json_object_set_new(
                    variants, key, json_string(node->degrees[j].variants[stage->variants[i]].id));
            }
        }
    }
    return json_pack("{s:o, s:i, s:i, s:o, s:i, s:f, s:f}", "nodes", nodes, "dataParallelDegree",
                     stage->data, "tensorParallelDegree", stage->tensor, "TMPCids", variants,
                     "in_flight", stage->in_flight, "seconds_per_sample", stage->seconds,
                     "memory_bytes", stage->memory);
}

static json_t *piper_to_json(const ap_piper_problem_t *problem, const ap_piper_plan_t *plan)
{
    json_t *stages = json_array();

    for (int i = 0; i < plan->stage_count; ++i) {
        (void)json_array_append_new(stages, piper_stage_to_json(problem, &plan->stages[i]));
    }
    return json_pack("{s:s, s:f, s:b, s:i, s:o}", "planner", "piper", "seconds_per_sample",
                     plan->seconds, "exact", plan->exact, "devices", plan->devices, "stages",
                     stages);
}

static void print_piper(const ap_piper_problem_t *problem, const ap_piper_plan_t *plan)
{
    char memory[TEXT];

    (void)printf("# piper: %d layers on %d devices with %s each, %d micro-batches\n",
                 problem->node_count, problem->devices,
                 xm_text_format_bytes((uint64_t)problem->memory, memory, sizeof(memory)),
                 problem->micro_batches);
    (void)printf("# %5s %6s %4s %6s %9s %14s %12s\n", "stage", "layers", "data", "tensor",
                 "in flight", "s per sample", "memory");
    for (int i = 0; i < plan->stage_count; ++i) {
        const ap_piper_stage_t *stage = &plan->stages[i];

        (void)printf("  %5d %6d %4d %6d %9d %14.6f %12s\n", i, stage->node_count, stage->data,
                     stage->tensor, stage->in_flight, stage->seconds,
                     xm_text_format_bytes((uint64_t)stage->memory, memory, sizeof(memory)));
    }
    (void)printf("time per sample %.6f s on %d devices, %s; %d contiguous beginnings, %" PRId64
                 " stages priced\n",
                 plan->seconds, plan->devices,
                 plan->exact ? "no plan is faster" : "the best along one order", plan->ideals,
                 plan->stages_priced);
}

/* Options stand above the numbers of the file: the authors' experiments use one file with many
 * numbers of devices and memory sizes. */
static xm_status_t run_piper(const ap_plan_input_t *like, const char *text, size_t length)
{
    ap_piper_problem_t problem;
    ap_piper_plan_t plan = {0};
    xm_status_t status;

    XM_TRY(ap_import_piper(like->input, text, length, &problem));
    problem.devices = like->devices > 0 ? like->devices : problem.devices;
    problem.micro_batches = like->micro_batches > 0 ? like->micro_batches : problem.micro_batches;
    problem.memory = like->memory > 0.0 ? like->memory : problem.memory;
    problem.bandwidth = like->bandwidth > 0.0 ? like->bandwidth : problem.bandwidth;
    status = ap_piper_solve(&problem, &plan);
    if (status == XM_OK) {
        if (!like->json->print) {
            print_piper(&problem, &plan);
        }
        status = give_document(like, piper_to_json(&problem, &plan));
    }
    ap_piper_plan_clear(&plan);
    ap_piper_problem_clear(&problem);
    return status;
}

static json_t *placement_to_json(const ap_placement_problem_t *problem,
                                 const ap_placement_t *placement)
{
    json_t *devices = json_array();

    for (int device = 0; device < placement->devices; ++device) {
        json_t *nodes = json_array();

        for (int i = 0; i < problem->node_count; ++i) {
            if (placement->device_of[i] == device) {
                (void)json_array_append_new(nodes, json_integer(problem->nodes[i].id));
            }
        }
        (void)json_array_append_new(
            devices, json_pack("{s:s, s:f, s:o}", "kind",
                               device < problem->accelerators ? "accelerator" : "cpu", "load",
                               placement->loads[device], "nodes", nodes));
    }
    return json_pack("{s:f, s:b, s:o}", "load", placement->load, "exact", placement->exact,
                     "devices", devices);
}

static void print_placement(const ap_planner_preset_t *row, const ap_placement_problem_t *problem,
                            const ap_placement_t *contiguous, const ap_placement_t *free_form)
{
    (void)printf("# %s: %d operators in %d groups on %d accelerators and %d CPUs\n", row->name,
                 problem->node_count, contiguous->groups, problem->accelerators, problem->cpus);
    (void)printf("# %6s %12s %12s %16s\n", "device", "kind", "load", "not contiguous");
    for (int device = 0; device < contiguous->devices; ++device) {
        (void)printf("  %6d %12s %12.4f %16.4f\n", device,
                     device < problem->accelerators ? "accelerator" : "cpu",
                     contiguous->loads[device], free_form->loads[device]);
    }
    (void)printf("largest load %.4f contiguous (%s; %d contiguous beginnings, %" PRId64
                 " parts), %.4f not contiguous (%s)\n",
                 contiguous->load, contiguous->exact ? "optimal" : "best along one order",
                 contiguous->ideals, contiguous->pairs, free_form->load,
                 ap_placement_search_name(row->proposals));
}

/* Solves the problem twice: with contiguous parts, which a pipeline needs and for which the answer
 * is exact where the down-sets are few enough, and without that condition by the planner's search.
 * That of dnn-partitioning starts from the first answer, so it is never worse; others know nothing
 * of it. */
static xm_status_t run_placement(const ap_plan_input_t *like, const ap_planner_preset_t *row,
                                 const char *text, size_t length)
{
    ap_placement_query_t query = {row->proposals, (uint64_t)like->seed, like->budget, NULL};
    ap_placement_problem_t problem;
    ap_placement_t contiguous = {0}, free_form = {0};
    xm_status_t status;

    XM_TRY(ap_import_dnn_partitioning(like->input, text, length, &problem));
    problem.accelerators = like->devices > 0 ? like->devices : problem.accelerators;
    problem.memory = like->memory > 0.0 ? like->memory : problem.memory;
    status = ap_placement_solve(&problem, &contiguous);
    if (status == XM_OK) {
        query.start = row->search == AP_SEARCH_PLACEMENT ? &contiguous : NULL;
        status = ap_placement_search(&problem, &query, &free_form);
    }
    if (status == XM_OK) {
        if (!like->json->print) {
            print_placement(row, &problem, &contiguous, &free_form);
        }
        status = give_document(like,
                               json_pack("{s:s, s:o, s:o}", "planner", row->name, "contiguous",
                                         placement_to_json(&problem, &contiguous), "not_contiguous",
                                         placement_to_json(&problem, &free_form)));
    }
    ap_placement_clear(&free_form);
    ap_placement_clear(&contiguous);
    ap_placement_problem_clear(&problem);
    return status;
}

/* Rows that place the operators of a graph read its file; piper reads its own. */
xm_status_t ap_plan_input_run(const ap_plan_input_t *like)
{
    const ap_planner_preset_t *row;
    char *text;
    size_t length;
    bool piper, places;
    xm_status_t status;

    XM_TRY(ap_planner_preset_find(like->planner, &row));
    piper = row->search == AP_SEARCH_IDEALS;
    places = row->search == AP_SEARCH_PLACEMENT || row->search == AP_SEARCH_PROPOSALS;
    if (!piper && !places) {
        return XM_INVALID("--like %s needs --model: it has no input file of its own", row->name);
    }
    if (places && (like->micro_batches > 0 || like->bandwidth > 0.0)) {
        return XM_INVALID("--%s has no meaning with --like %s",
                          like->micro_batches > 0 ? "micro-batches" : "bandwidth", row->name);
    }
    status = xm_text_load(like->input, &text, &length);
    if (status == XM_OK) {
        status = piper ? run_piper(like, text, length) : run_placement(like, row, text, length);
        free(text);
    }
    return status;
}
