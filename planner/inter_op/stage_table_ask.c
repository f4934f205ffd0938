/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The questions that a stage table puts to stage.h, and what their answers leave room for. The
 * arithmetic of memory is here and nowhere else: how many stages may follow one whose micro-batches
 * in flight depend on exactly that number.
 */

#include "planner/inter_op/stage_table_private.h"

int ap_stage_table_most_successors(const ap_stage_table_t *table, int first, int last, int submesh)
{
    int total = table->params.hosts * table->params.devices_per_host;
    int left = total - table->submeshes[submesh].hosts * table->submeshes[submesh].devices;
    bool all_layers = first == 0 && last == table->layers - 1;

    if (all_layers) {
        return left == 0 || table->params.spare_hosts ? 0 : -1;
    }
    if (left == 0) {
        return -1;
    }
    return table->layers - 1 - last < left ? table->layers - 1 - last : left;
}

double ap_stage_table_memory(const ap_stage_table_t *table, int submesh)
{
    return table->params.memory_limit > 0.0
               ? table->params.memory_limit
               : table->params.classes->classes[table->class_of[submesh]].device.memory_bytes;
}

int ap_stage_table_in_flight(const ap_stage_table_t *table, int first, int successors)
{
    int fewest = first > 0 ? 1 : 0, before = table->params.stages - 1 - successors;

    return (int)ap_schedule_in_flight(table->params.schedule, before > fewest ? before : fewest,
                                      successors, table->params.micro_batches);
}

/* Micro-batches in flight do not fall with the number of stages that follow, so the search may stop
 * at the first that does not fit. */
int32_t ap_stage_table_fitting(const ap_stage_table_t *table, int first, double bytes,
                               double activations, double limit)
{
    int most = ap_stage_table_most_stages(table), successors = -1;

    while (successors < most &&
           bytes + ap_stage_table_in_flight(table, first, successors + 1) * activations <= limit) {
        ++successors;
    }
    return successors;
}

int32_t ap_stage_table_successors(const ap_stage_table_t *table, int first, int submesh,
                                  const ap_stage_cost_t *cost)
{
    return ap_stage_table_fitting(table, first, cost->mem_stage + cost->mem_work, cost->mem_act,
                                  ap_stage_table_memory(table, submesh));
}

/* n x 1 and 1 x n are the same shape, and the table has only the latter. */
static bool same_shape(const int *a, const int *b)
{
    int rows_a = a[1] == 1 ? 1 : a[0], rows_b = b[1] == 1 ? 1 : b[0];

    return rows_a == rows_b && a[0] * a[1] == b[0] * b[1];
}

bool ap_stage_table_may_have(const ap_stage_table_t *table, int first, int last, int submesh,
                             const ap_stage_variant_t *variant)
{
    bool may = table->params.pins == NULL;

    for (int i = 0; i < table->params.pin_count && !may; ++i) {
        const ap_planner_pin_t *pin = &table->params.pins[i];

        may = pin->first_layer == first && pin->last_layer == last &&
              (submesh < 0 || (table->submeshes[submesh].hosts == pin->hosts &&
                               table->submeshes[submesh].devices == pin->devices &&
                               (pin->shape[0] == 0 || same_shape(variant->shape, pin->shape))));
    }
    return may;
}

ap_stage_query_t ap_stage_table_ask_for(const ap_stage_table_t *table, int first, int last,
                                        int submesh, const ap_stage_variant_t *variant)
{
    ap_stage_query_t query = AP_STAGE_QUERY_INIT;

    query.first = first;
    query.last = last;
    query.hosts = table->submeshes[submesh].hosts;
    query.devices = table->submeshes[submesh].devices;
    query.shape[0] = variant->shape[0];
    query.shape[1] = variant->shape[1];
    return query;
}

/* The caller's clock is looked at before every question: one may take a tenth of a second, and the
 * others next to nothing. */
xm_status_t ap_stage_table_ask(ap_stage_table_t *table, int recompute_mode, int submesh,
                               const ap_stage_query_t *query, ap_stage_cost_t *cost)
{
    if (table->params.stop != NULL && table->params.stop(table->params.stop_arg)) {
        return xm_error_set(XM_ERR_TIMEOUT, "time is up");
    }
    ++table->evaluated;
    return ap_stage_evaluate(
        table->context[recompute_mode * table->params.classes->count + table->class_of[submesh]],
        query, cost);
}
