/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes: the importers of other planners' inputs refuse them with a sentence, or make a problem
 * that is solved: the answer's loads are those of the definition. */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>

#include "planner/published/placement/import.h"
#include "planner/published/piper/import.h"

enum { NODES_MAX = 12, DEVICES_MAX = 6, MICRO_BATCHES_MAX = 16 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void expect(bool condition)
{
    if (!condition) {
        abort();
    }
}

static bool is_answer(xm_status_t status)
{
    expect(status == XM_OK || status == XM_ERR_NO_SOLUTION || status == XM_ERR_INVALID_ARGUMENT);
    return status == XM_OK;
}

static void place(const char *text, size_t size)
{
    ap_placement_problem_t problem;
    ap_placement_t placement;
    double loads[2 * DEVICES_MAX], most = 0.0;

    if (ap_import_dnn_partitioning("fuzz", text, size, &problem) != XM_OK) {
        expect(xm_last_error()[0] != '\0');
        return;
    }
    if (problem.node_count <= NODES_MAX && problem.accelerators <= DEVICES_MAX &&
        problem.cpus <= DEVICES_MAX && is_answer(ap_placement_solve(&problem, &placement))) {
        expect(ap_placement_loads(&problem, placement.device_of, loads) == XM_OK);
        for (int i = 0; i < placement.devices; ++i) {
            most = fmax(most, loads[i]);
        }
        expect(most == placement.load);
        ap_placement_clear(&placement);
    }
    ap_placement_problem_clear(&problem);
}

static void plan(const char *text, size_t size)
{
    ap_piper_problem_t problem;
    ap_piper_plan_t found;

    if (ap_import_piper("fuzz", text, size, &problem) != XM_OK) {
        expect(xm_last_error()[0] != '\0');
        return;
    }
    if (problem.node_count <= NODES_MAX && problem.devices <= DEVICES_MAX &&
        problem.micro_batches <= MICRO_BATCHES_MAX && is_answer(ap_piper_solve(&problem, &found))) {
        int layers = 0;

        for (int i = 0; i < found.stage_count; ++i) {
            layers += found.stages[i].node_count;
        }
        expect(layers == problem.node_count && found.devices <= problem.devices);
        ap_piper_plan_clear(&found);
    }
    ap_piper_problem_clear(&problem);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    place((const char *)data, size);
    plan((const char *)data, size);
    return 0;
}
