/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Published planners as constant data. What distinguishes them is which plans they can express, how
 * they search, for which schedule, and which costs they see; each of these exists once as code and
 * is chosen here by name. So a comparison of two rows compares exactly these differences, on the
 * same prices.
 *
 * Each row says what its paper describes; docs/other-planners.md lists where a row departs from it.
 */

#include "planner/published/like/row.h"

#include "comm/base.h"

enum {
    REPLICATED = 1U << AP_PARAMETER_REPLICATED,
    SHARDED = 1U << AP_PARAMETER_SHARDED,
    ANY_MODE = (1U << AP_PARAMETER_MODES) - 1U
};

#define DATA_ONLY                                                                                  \
    {                                                                                              \
        AP_ROLE_DATA, AP_ROLE_DATA, AP_ROLE_DATA                                                   \
    }
#define DATA_AND_TENSOR                                                                            \
    {                                                                                              \
        AP_ROLE_DATA, AP_ROLE_TENSOR, AP_ROLE_TENSOR                                               \
    }
#define EVERYTHING                                                                                 \
    {                                                                                              \
        AP_ROLES_ALL, AP_ROLES_ALL, AP_ROLES_ALL                                                   \
    }

static const ap_planner_preset_t rows[] = {
    /* A lattice of (pipeline, data, tensor) degrees; equal stages; the layers' own pattern. */
    {.name = "megatron",
     .source = "Narayanan, SC'21",
     .space = {.roles = DATA_AND_TENSOR,
               .parameter_modes = REPLICATED,
               .pipeline = true,
               .recompute = true,
               .keep = true},
     .search = AP_SEARCH_GRID,
     .schedule = {.kind = "1f1b"},
     .costs = {.memory = true}},
    /* One device to a stage, equal numbers of layers, activations recomputed. */
    {.name = "gpipe",
     .source = "Huang, NeurIPS'19",
     .space = {.roles = DATA_ONLY,
               .parameter_modes = REPLICATED,
               .one_axis = true,
               .pipeline = true,
               .stage_devices = 1,
               .recompute = true},
     .search = AP_SEARCH_GRID,
     .schedule = {.kind = "gpipe"}},
    /* The same with stages balanced by time. */
    {.name = "torchgpipe",
     .source = "Kim, 2020",
     .space = {.roles = DATA_ONLY,
               .parameter_modes = REPLICATED,
               .one_axis = true,
               .pipeline = true,
               .stage_devices = 1,
               .recompute = true},
     .search = AP_SEARCH_STAGES,
     .schedule = {.kind = "gpipe"},
     .costs = {.steady = true}},
    {.name = "pipedream",
     .source = "Narayanan, SOSP'19",
     .space = {.roles = DATA_ONLY,
               .parameter_modes = REPLICATED,
               .one_axis = true,
               .pipeline = true,
               .keep = true},
     .search = AP_SEARCH_STAGES,
     .schedule = {.kind = "pipedream-2bw", .stash = true},
     .costs = {.transfers = true, .steady = true}},
    {.name = "pipedream-2bw",
     .source = "Narayanan, ICML'21",
     .space = {.roles = DATA_ONLY,
               .parameter_modes = REPLICATED,
               .one_axis = true,
               .pipeline = true,
               .recompute = true,
               .keep = true},
     .search = AP_SEARCH_GRID,
     .schedule = {.kind = "pipedream-2bw"},
     .costs = {.transfers = true, .memory = true}},
    {.name = "dapple",
     .source = "Fan, PPoPP'21",
     .space = {.roles = DATA_ONLY,
               .parameter_modes = REPLICATED,
               .one_axis = true,
               .pipeline = true,
               .recompute = true,
               .keep = true},
     .search = AP_SEARCH_STAGES,
     .schedule = {.kind = "1f1b"},
     .costs = {.transfers = true, .memory = true}},
    {.name = "dnn-partitioning",
     .source = "Tarnawski, NeurIPS'20",
     .space = {.roles = DATA_ONLY,
               .parameter_modes = REPLICATED,
               .one_axis = true,
               .pipeline = true,
               .stage_devices = 1,
               .keep = true},
     .search = AP_SEARCH_PLACEMENT,
     .schedule = {.kind = "pipedream-2bw", .stash = true},
     .costs = {.transfers = true, .memory = true, .steady = true}},
    {.name = "piper",
     .source = "Tarnawski, NeurIPS'21",
     .space = {.roles = DATA_AND_TENSOR,
               .parameter_modes = REPLICATED,
               .pipeline = true,
               .recompute = true,
               .keep = true},
     .search = AP_SEARCH_IDEALS,
     .schedule = {.kind = "1f1b"},
     .costs = {.transfers = true, .memory = true, .steady = true}},
    {.name = "optcnn",
     .source = "Jia, ICML'18",
     .space = {.roles = EVERYTHING, .parameter_modes = REPLICATED, .keep = true},
     .search = AP_SEARCH_REDUCTION,
     .schedule = {.kind = "1f1b"}},
    {.name = "pase",
     .source = "Elango, IPDPS'21",
     .space = {.roles = EVERYTHING, .parameter_modes = REPLICATED, .keep = true},
     .search = AP_SEARCH_ORDERING,
     .schedule = {.kind = "1f1b"}},
    {.name = "flexflow",
     .source = "Jia, SysML'19",
     .space = {.roles = EVERYTHING, .parameter_modes = REPLICATED, .keep = true},
     .search = AP_SEARCH_MCMC,
     .schedule = {.kind = "1f1b"},
     .costs = {.memory = true}},
    {.name = "tofu",
     .source = "Wang, EuroSys'19",
     .space = {.roles = EVERYTHING, .parameter_modes = REPLICATED, .keep = true},
     .search = AP_SEARCH_RECURSIVE,
     .schedule = {.kind = "1f1b"}},
    {.name = "double-recursive",
     .source = "Wang, Euro-Par'21",
     .space = {.roles = EVERYTHING, .parameter_modes = REPLICATED, .keep = true},
     .search = AP_SEARCH_GREEDY,
     .schedule = {.kind = "1f1b"}},
    {.name = "tensoropt",
     .source = "Cai, TPDS'21",
     .space = {.roles = EVERYTHING, .parameter_modes = REPLICATED, .keep = true},
     .search = AP_SEARCH_FRONTIER,
     .schedule = {.kind = "1f1b"},
     .costs = {.memory = true}},
    /* Each layer data parallel, sharded data parallel (ZeRO-3) or tensor parallel on each axis. */
    {.name = "galvatron",
     .source = "Miao, VLDB'23",
     .space = {.roles = EVERYTHING,
               .parameter_modes = REPLICATED | SHARDED,
               .pipeline = true,
               .recompute = true,
               .keep = true},
     .search = AP_SEARCH_LAYERWISE,
     .schedule = {.kind = "1f1b"},
     .costs = {.memory = true}},
    {.name = "alpa",
     .source = "Zheng, OSDI'22",
     .space = {.roles = EVERYTHING,
               .parameter_modes = ANY_MODE,
               .scatter = true,
               .pipeline = true,
               .recompute = true,
               .keep = true},
     .search = AP_SEARCH_STAGES,
     .schedule = {.kind = "1f1b"},
     .costs = {.memory = true}},
    {.name = "default",
     .source = "crossmesh",
     .space = {.roles = EVERYTHING,
               .parameter_modes = ANY_MODE,
               .scatter = true,
               .pipeline = true,
               .recompute = true,
               .keep = true,
               .mixed = true},
     .search = AP_SEARCH_STAGES,
     .schedule = {.kind = "auto"},
     .costs = {.transfers = true, .memory = true}},
};

enum { ROWS = sizeof(rows) / sizeof(rows[0]) };

const ap_planner_preset_t *ap_planner_presets(int *count)
{
    *count = ROWS;
    return rows;
}

xm_status_t ap_planner_preset_find(const char *name, const ap_planner_preset_t **row)
{
    const char *names[ROWS];
    int index;
    xm_status_t status;

    for (int i = 0; i < ROWS; ++i) {
        names[i] = rows[i].name;
    }
    status = xm_text_choose("planner", name, names, ROWS, &index);
    if (status == XM_OK) {
        *row = &rows[index];
    }
    return status;
}

const char *ap_search_kind_name(ap_search_kind_t kind)
{
    static const char *const names[] = {
        [AP_SEARCH_STAGES] = "stage slicing",
        [AP_SEARCH_GRID] = "grid",
        [AP_SEARCH_REDUCTION] = "elimination",
        [AP_SEARCH_ORDERING] = "ordering DP",
        [AP_SEARCH_MCMC] = "MCMC",
        [AP_SEARCH_RECURSIVE] = "axis by axis",
        [AP_SEARCH_GREEDY] = "axis by axis, greedy",
        [AP_SEARCH_FRONTIER] = "frontier DP",
        [AP_SEARCH_LAYERWISE] = "grid, layer DP",
        [AP_SEARCH_IDEALS] = "DP over down-sets",
        [AP_SEARCH_PLACEMENT] = "DP over down-sets",
    };

    return names[kind];
}
