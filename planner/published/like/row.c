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
#include "planner/published/like/page.h"

enum {
    REPLICATED = 1U << AP_PARAMETER_REPLICATED,
    SHARDED = 1U << AP_PARAMETER_SHARDED,
    ANY_MODE = (1U << AP_PARAMETER_MODES) - 1U
};

/* The spaces of several rows: data parallel stages; those with tensor parallel layers, too; stages
 * of any shardings; and any shardings without stages. */
#define DATA_PIPELINE(...)                                                                         \
    {                                                                                              \
        .roles = {AP_ROLE_DATA, AP_ROLE_DATA, AP_ROLE_DATA, AP_ROLE_DATA},                         \
        .parameter_modes = REPLICATED, .one_axis = true, .pipeline = true, __VA_ARGS__             \
    }
#define PLACED DATA_PIPELINE(.stage_devices = 1, .keep = true)
#define TENSOR_PIPELINE                                                                            \
    {                                                                                              \
        .roles = {AP_ROLE_DATA, AP_ROLE_TENSOR, AP_ROLE_TENSOR, AP_ROLE_TENSOR},                   \
        .parameter_modes = REPLICATED, .pipeline = true, .recompute = true, .keep = true           \
    }
#define ANY_PIPELINE(...)                                                                          \
    {                                                                                              \
        .roles = {AP_ROLES_ALL, AP_ROLES_ALL, AP_ROLES_ALL, AP_ROLES_ALL}, .pipeline = true,       \
        .recompute = true, .keep = true, __VA_ARGS__                                               \
    }
#define OPERATORS                                                                                  \
    {                                                                                              \
        .roles = {AP_ROLES_ALL, AP_ROLES_ALL, AP_ROLES_ALL, AP_ROLES_ALL},                         \
        .parameter_modes = REPLICATED, .keep = true                                                \
    }

/* PipeDream keeps a version of the weights for each micro-batch in flight. */
#define STASHED "pipedream-2bw", .stash = true

/* Whether a planner looks at the memory stands at the end. */
#define ROW(label, paper, of, how, named, ...)                                                     \
    {                                                                                              \
        .name = (label), .source = (paper), .space = of, .search = (how),                          \
        .schedule = {.kind = named}, .memory = __VA_ARGS__                                         \
    }

static const ap_planner_preset_t rows[] = {
    /* A lattice of (pipeline, data, tensor) degrees; equal stages; the layers' own pattern. */
    ROW("megatron", "Narayanan, SC'21", TENSOR_PIPELINE, AP_SEARCH_GRID, "1f1b", true,
        .also = {"distir"}),
    /* One device to a stage, equal numbers of layers, activations recomputed. */
    ROW("gpipe", "Huang, NeurIPS'19", DATA_PIPELINE(.stage_devices = 1, .recompute = true),
        AP_SEARCH_GRID, "gpipe", false),
    /* The same with stages balanced by time. */
    ROW("torchgpipe", "Kim, 2020", DATA_PIPELINE(.stage_devices = 1, .recompute = true),
        AP_SEARCH_STAGES, "gpipe", false),
    ROW("pipedream", "Narayanan, SOSP'19", DATA_PIPELINE(.keep = true), AP_SEARCH_STAGES, STASHED,
        false),
    ROW("pipedream-2bw", "Narayanan, ICML'21", DATA_PIPELINE(.recompute = true, .keep = true),
        AP_SEARCH_GRID, "pipedream-2bw", true),
    ROW("dapple", "Fan, PPoPP'21", DATA_PIPELINE(.recompute = true, .keep = true), AP_SEARCH_STAGES,
        "1f1b", true),
    ROW("dnn-partitioning", "Tarnawski, NeurIPS'20", PLACED, AP_SEARCH_PLACEMENT, STASHED, true,
        .also = {"tapp"}),
    /* Placements that are proposed rather than computed. */
    ROW("colocrl", "Mirhoseini, ICML'17", PLACED, AP_SEARCH_PROPOSALS, STASHED, true,
        .proposals = AP_PLACEMENT_POLICY, .also = {"hdp", "gdp", "spotlight", "auto-map"}),
    ROW("placeto", "Addanki, NeurIPS'19", PLACED, AP_SEARCH_PROPOSALS, STASHED, true,
        .proposals = AP_PLACEMENT_STEPWISE),
    ROW("regal", "Paliwal, ICLR'20", PLACED, AP_SEARCH_PROPOSALS, STASHED, true,
        .proposals = AP_PLACEMENT_BRKGA),
    ROW("pesto", "Hafeez, Middleware'21", PLACED, AP_SEARCH_PROPOSALS, STASHED, true,
        .proposals = AP_PLACEMENT_BRANCH),
    ROW("ftpipe", "Eliad, ATC'21", PLACED, AP_SEARCH_PROPOSALS, STASHED, true,
        .proposals = AP_PLACEMENT_LPT),
    ROW("neo", "Mudigere, ISCA'22", PLACED, AP_SEARCH_PROPOSALS, STASHED, true,
        .proposals = AP_PLACEMENT_KARMARKAR),
    ROW("scotch", "Pellegrini, 1996", PLACED, AP_SEARCH_PROPOSALS, STASHED, true,
        .proposals = AP_PLACEMENT_PART, .also = {"metis", "kernighan-lin"}),
    ROW("piper", "Tarnawski, NeurIPS'21", TENSOR_PIPELINE, AP_SEARCH_IDEALS, "1f1b", true),
    ROW("optcnn", "Jia, ICML'18", OPERATORS, AP_SEARCH_REDUCTION, "1f1b", false),
    ROW("pase", "Elango, IPDPS'21", OPERATORS, AP_SEARCH_ORDERING, "1f1b", false),
    ROW("flexflow", "Jia, SysML'19", OPERATORS, AP_SEARCH_MCMC, "1f1b", true),
    ROW("tofu", "Wang, EuroSys'19", OPERATORS, AP_SEARCH_RECURSIVE, "1f1b", false),
    /* The same halving, into parts as large as the halves are fast. */
    ROW("accpar", "Song, HPCA'20", OPERATORS, AP_SEARCH_RECURSIVE, "1f1b", false, .by_speed = true),
    ROW("automap", "Schaarschmidt, 2021", OPERATORS, AP_SEARCH_TREE, "1f1b", false),
    ROW("unity", "Unger, OSDI'22", OPERATORS, AP_SEARCH_SUBSTITUTION, "1f1b", false,
        .also = {"taso"}),
    ROW("double-recursive", "Wang, Euro-Par'21", OPERATORS, AP_SEARCH_GREEDY, "1f1b", false),
    ROW("tensoropt", "Cai, TPDS'21", OPERATORS, AP_SEARCH_FRONTIER, "1f1b", true),
    /* Each layer data parallel, sharded data parallel (ZeRO-3) or tensor parallel on each axis. */
    ROW("galvatron", "Miao, VLDB'23", ANY_PIPELINE(.parameter_modes = REPLICATED | SHARDED),
        AP_SEARCH_LAYERWISE, "1f1b", true),
    ROW("alpa", "Zheng, OSDI'22", ANY_PIPELINE(.parameter_modes = ANY_MODE, .scatter = true),
        AP_SEARCH_STAGES, "1f1b", true),
    ROW("default", "crossmesh",
        ANY_PIPELINE(.parameter_modes = ANY_MODE, .scatter = true, .mixed = true), AP_SEARCH_STAGES,
        "auto", true),
};

enum { ROWS = sizeof(rows) / sizeof(rows[0]) };

const ap_planner_preset_t *ap_planner_presets(int *count)
{
    *count = ROWS;
    return rows;
}

xm_status_t ap_planner_preset_find(const char *name, const ap_planner_preset_t **row)
{
    const char *names[ROWS * (1 + AP_PRESET_ALSO)];
    int row_of[ROWS * (1 + AP_PRESET_ALSO)], index;
    char told[1024];
    size_t count = 0;
    xm_status_t status;

    for (int i = 0; i < ROWS; ++i) {
        row_of[count] = i;
        names[count++] = rows[i].name;
        for (int j = 0; j < AP_PRESET_ALSO && rows[i].also[j] != NULL; ++j) {
            row_of[count] = i;
            names[count++] = rows[i].also[j];
        }
    }
    status = xm_text_choose("planner", name, names, count, &index);
    if (status == XM_OK) {
        *row = &rows[row_of[index]];
    } else if (ap_published_page_find(name, told, sizeof(told))) {
        status = XM_INVALID("'%s' is no row of planners. %s", name, told);
    }
    return status;
}

const char *ap_planner_preset_search(const ap_planner_preset_t *row)
{
    static const char *const names[] = {
        [AP_SEARCH_STAGES] = "stage slicing",
        [AP_SEARCH_GRID] = "grid",
        [AP_SEARCH_REDUCTION] = "elimination",
        [AP_SEARCH_ORDERING] = "ordering DP",
        [AP_SEARCH_MCMC] = "MCMC",
        [AP_SEARCH_RECURSIVE] = "axis by axis",
        [AP_SEARCH_GREEDY] = "axis by axis, greedy",
        [AP_SEARCH_TREE] = "tree search",
        [AP_SEARCH_SUBSTITUTION] = "substitutions",
        [AP_SEARCH_FRONTIER] = "frontier DP",
        [AP_SEARCH_LAYERWISE] = "grid, layer DP",
        [AP_SEARCH_IDEALS] = "DP over down-sets",
        [AP_SEARCH_PLACEMENT] = "DP over down-sets",
    };

    return row->search == AP_SEARCH_PROPOSALS ? ap_placement_search_name(row->proposals)
                                              : names[row->search];
}
