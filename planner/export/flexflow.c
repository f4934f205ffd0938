/* SPDX-License-Identifier: Apache-2.0 */
/*
 * FlexFlow's file knows an operator's output only: how many parts of each dimension, and where each
 * part is. That follows from the spec of the first result and the stage's mesh.
 */

#include "planner/export/flexflow.h"

#include <ctype.h>

#include "planner/export/plan.h"
#include "planner/export/spec.h"

/* The sizes of the axes of one dimension multiplied, and the part of it that a position has. */
static int degree_of(const int shape[2], unsigned axes)
{
    return ((axes & 1U) != 0 ? shape[0] : 1) * ((axes & 2U) != 0 ? shape[1] : 1);
}

/* Sets the positions on the axes of a dimension; the later axis is the finer one. */
static void place(const int shape[2], unsigned axes, int part, int position[2])
{
    for (int a = 1; a >= 0; --a) {
        if ((axes >> a & 1U) != 0) {
            position[a] = part % shape[a];
            part /= shape[a];
        }
    }
}

static void print_devices(const ap_plan_stage_t *stage, ap_spec_t spec, int rank, FILE *stream)
{
    int parts = 1;

    for (int d = 0; d < rank; ++d) {
        parts *= degree_of(stage->shape, ap_spec_axes(spec, d));
    }
    (void)fprintf(stream, "\t%d", parts);
    for (int p = 0; p < parts; ++p) {
        int position[2] = {0}, left = p;

        for (int d = rank - 1; d >= 0; --d) {
            unsigned axes = ap_spec_axes(spec, d);

            place(stage->shape, axes, left % degree_of(stage->shape, axes), position);
            left /= degree_of(stage->shape, axes);
        }
        (void)fprintf(stream, " %d", stage->devices[position[0] * stage->shape[1] + position[1]]);
    }
    (void)fputc('\n', stream);
}

static xm_status_t print_op(const ap_plan_stage_t *stage, const ap_plan_layers_t *layers, int layer,
                            int index, FILE *stream)
{
    const ap_plan_op_t *op = &layers->ops[index];
    ap_export_specs_t results;

    XM_TRY(ap_export_read_specs(op->results, &results));
    (void)fprintf(stream, "%d.%d.", layer, index);
    for (const char *c = op->name; *c != '\0'; ++c) {
        (void)fputc(isspace((unsigned char)*c) != 0 ? '_' : *c, stream);
    }
    (void)fprintf(stream, "\t0\t%d\t", results.rank[0]);
    for (int d = results.rank[0] - 1; d >= 0; --d) {
        (void)fprintf(stream, "%d ", degree_of(stage->shape, ap_spec_axes(results.spec[0], d)));
    }
    print_devices(stage, results.spec[0], results.rank[0], stream);
    return XM_OK;
}

xm_status_t ap_export_flexflow(const ap_plan_t *plan, FILE *stream)
{
    int count = 0;
    xm_status_t status = XM_OK;

    for (int print = 0; print < 2; ++print) {
        for (int s = 0; s < ap_plan_stages(plan); ++s) {
            const ap_plan_stage_t *stage = ap_plan_stage(plan, s);

            for (int l = 0; l < stage->layer_count; ++l) {
                const ap_plan_layers_t *layers = &stage->layers[l];

                for (int i = layers->first_layer; i <= layers->last_layer; ++i) {
                    for (int o = 0; o < layers->op_count && print == 1 && status == XM_OK; ++o) {
                        status = print_op(stage, layers, i, o, stream);
                    }
                    count += print == 0 ? layers->op_count : 0;
                }
            }
        }
        if (print == 0) {
            (void)fprintf(stream, "%d\n", count);
        }
    }
    return status;
}
