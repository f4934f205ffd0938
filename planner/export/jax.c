/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writes a solution as tables for JAX, in JSON: specs of parameters and results, then one row per
 * operator in the order of the program, with the path of each operand. What reads them is
 * crossmesh.jax.shardings in the Python package.
 *
 * JAX's tracing gives no names to operators, so rows are found again by order and operands; that is
 * why everything is sorted by the order in which the program was written.
 */

#include "planner/export/jax.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "planner/export/instance.h"
#include "planner/export/spec.h"
#include "planner/frontend/hlo.h"

typedef struct exporter {
    const ap_shard_solution_t *solution;
    const hlo_source_t *source;
    ap_export_mesh_t mesh;
} exporter_t;

static json_t *number_json(int tensor)
{
    return tensor >= 0 ? json_integer(tensor) : json_null();
}

/* A spec as JAX takes it from outside. Arguments and results of jit() are cut evenly only, so an
 * axis whose parts would differ is left out, and with it those after it in the dimension; the
 * constraints of the operators cut further inside. */
static ap_spec_t even_part(const ap_export_mesh_t *mesh, const ap_shape_t *shape, ap_spec_t spec)
{
    ap_spec_t even = AP_SPEC_REPLICATED;

    for (int d = 0; d < shape->rank; ++d) {
        unsigned axes = ap_spec_axes(spec, d), taken = 0;
        int64_t left = shape->dims[d];

        for (int a = 0; a < mesh->rank; ++a) {
            if ((axes >> a & 1U) != 0) {
                if (left % mesh->size[a] != 0) {
                    break;
                }
                left /= mesh->size[a];
                taken |= 1U << a;
            }
        }
        even = ap_spec_with(even, d, taken);
    }
    return even;
}

static json_t *row_json(const exporter_t *e, const char *name, const ap_shape_t *shape,
                        ap_spec_t spec, int tensor)
{
    return json_pack("[o, o, o, o]", ap_export_name_json(name), ap_export_shape_json(shape),
                     ap_export_spec_json(&e->mesh, even_part(&e->mesh, shape, spec), shape->rank),
                     number_json(tensor));
}

static json_t *ports_json(const exporter_t *e, const hlo_port_t *ports, int count)
{
    json_t *list = json_array();

    for (int p = 0; p < count; ++p) {
        char number[32];

        (void)snprintf(number, sizeof(number), "result %d", p);
        (void)json_array_append_new(
            list,
            row_json(e, ports[p].name != NULL ? ports[p].name : number, &ports[p].shape,
                     ports[p].tensor >= 0 ? ap_shard_solution_kept(e->solution, ports[p].tensor)
                                          : AP_SPEC_REPLICATED,
                     ports[p].tensor));
    }
    return list;
}

static json_t *way_json(const exporter_t *e, const ap_spec_t *path, int count, int rank)
{
    json_t *list = json_array();

    for (int s = 0; s < count; ++s) {
        (void)json_array_append_new(list, ap_export_spec_json(&e->mesh, path[s], rank));
    }
    return list;
}

/* The way of an operand from the sharding it is made in to the one it is used in. */
static json_t *path_json(const exporter_t *e, const hlo_instance_t *instance, int operand,
                         ap_spec_t used)
{
    const int tensor = instance->operands[operand];
    ap_spec_t path[AP_MAX_RESHARD_STEPS + 1];
    int count = ap_export_instance_path(
        e->solution, tensor,
        ap_export_instance_found(e->solution, e->source, instance->context, tensor), used, path);

    return way_json(e, path, count, ap_graph_tensor(e->solution->graph, tensor)->shape.rank);
}

/* A row: opcode, operands, shape of the result, the result, its sharding, the ways of the operands
 * by their numbers. Operands at the end that need no data are left out. */
static json_t *operator_json(const exporter_t *e, const hlo_instance_t *instance)
{
    const ap_graph_t *graph = e->solution->graph;
    json_t *names = json_array(), *ways = json_object();
    int operands = instance->operand_count;
    const ap_shape_t *shape;

    while (operands > 0 && instance->operands[operands - 1] < 0) {
        --operands;
    }
    for (int o = 0; o < operands; ++o) {
        ap_spec_t used;
        char number[16];

        (void)json_array_append_new(names, number_json(instance->operands[o]));
        (void)snprintf(number, sizeof(number), "%d", o);
        if (instance->tensor >= 0 && ap_export_instance_used(e->solution, instance, o, &used)) {
            (void)json_object_set_new(ways, number, path_json(e, instance, o, used));
        }
    }
    if (instance->tensor < 0) {
        return json_pack("[s, o, n, n, n, o]", instance->opcode, names, ways);
    }
    shape = &ap_graph_tensor(graph, instance->tensor)->shape;
    return json_pack(
        "[s, o, o, i, o, o]", instance->opcode, names, ap_export_shape_json(shape),
        instance->tensor,
        ap_export_spec_json(&e->mesh, e->solution->made[instance->tensor], shape->rank), ways);
}

/* Whether a context belongs to the body of a loop, or with NULL to none, by calls alone. */
static bool stands_in(const exporter_t *e, int context, const hlo_loop_t *loop)
{
    return loop == NULL ? !e->source->contexts[context].loop
                        : hlo_source_loop_of(e->source, context) == loop;
}

/* Whether a instance of a loop's body, or with NULL of none, says something about how its operator
 * is sharded. Products, convolutions, gathers, scatters and reductions are listed even without
 * data, because they are what the order is counted by. */
static bool is_given(const exporter_t *e, const hlo_instance_t *instance, const hlo_loop_t *loop)
{
    return (xm_text_in_words("dot convolution gather scatter reduce", instance->opcode,
                             strlen(instance->opcode)) ||
            (instance->tensor >= 0 && strcmp(instance->opcode, "parameter") != 0)) &&
           stands_in(e, instance->context, loop);
}

/* Instances in the order of the program, for qsort(). */
typedef struct ordered {
    const hlo_source_t *source;
    const hlo_instance_t *instance;
} ordered_t;

static int by_order(const void *left, const void *right)
{
    const ordered_t *a = left, *b = right;

    if (a->instance == b->instance) {
        return 0;
    }
    return hlo_source_before(a->source, a->instance, b->instance) ? -1 : 1;
}

static json_t *operators_json(const exporter_t *e, const hlo_loop_t *loop)
{
    const hlo_source_t *source = e->source;
    ordered_t *list = calloc((size_t)source->instance_count + 1, sizeof(*list));
    json_t *rows = json_array();
    int count = 0;

    if (list == NULL) {
        json_decref(rows);
        return NULL;
    }
    for (int s = 0; s < source->instance_count; ++s) {
        if (is_given(e, &source->instances[s], loop)) {
            list[count++] = (ordered_t){.source = source, .instance = &source->instances[s]};
        }
    }
    qsort(list, (size_t)count, sizeof(*list), by_order);
    for (int i = 0; i < count; ++i) {
        (void)json_array_append_new(rows, operator_json(e, list[i].instance));
    }
    free(list);
    return rows;
}

/* What a loop carries: shape, numbers outside, in the body and after the loop, and its ways into
 * the sharding that it is carried in: from outside, and from the end of the body. */
static json_t *state_json(const exporter_t *e, const hlo_loop_t *loop)
{
    json_t *list = json_array();

    for (int i = 0; i < loop->count; ++i) {
        const hlo_carried_t *of = &loop->state[i];
        ap_spec_t in[AP_MAX_RESHARD_STEPS + 1], round[AP_MAX_RESHARD_STEPS + 1];
        int ins = ap_export_instance_way(e->solution, e->source, loop, i, false, in);
        int rounds = ap_export_instance_way(e->solution, e->source, loop, i, true, round);

        (void)json_array_append_new(
            list, json_pack("[o, o, o, o, o, o]", ap_export_shape_json(&of->shape),
                            number_json(of->outside), number_json(of->inside),
                            number_json(of->after), way_json(e, in, ins, of->shape.rank),
                            way_json(e, round, rounds, of->shape.rank)));
    }
    return list;
}

typedef struct ordered_loop {
    const hlo_source_t *source;
    const hlo_loop_t *loop;
} ordered_loop_t;

static int by_loop_order(const void *left, const void *right)
{
    const ordered_loop_t *a = left, *b = right;

    if (hlo_source_loop_before(a->source, a->loop, b->loop)) {
        return -1;
    }
    return hlo_source_loop_before(a->source, b->loop, a->loop) ? 1 : a->loop > b->loop;
}

/* The loops in the body of `outer`, or with NULL those in none, with all that is in them: as deep
 * as calls nest. NOLINTNEXTLINE(misc-no-recursion) */
static json_t *loops_json(const exporter_t *e, const hlo_loop_t *outer)
{
    const hlo_source_t *source = e->source;
    ordered_loop_t *list = calloc((size_t)source->loop_count + 1, sizeof(*list));
    json_t *rows = json_array();
    int count = 0;

    if (list == NULL) {
        json_decref(rows);
        return NULL;
    }
    for (int l = 0; l < source->loop_count; ++l) {
        if (stands_in(e, source->loops[l].context, outer)) {
            list[count++] = (ordered_loop_t){.source = source, .loop = &source->loops[l]};
        }
    }
    qsort(list, (size_t)count, sizeof(*list), by_loop_order);
    for (int i = 0; i < count; ++i) {
        (void)json_array_append_new(rows, json_pack("[o, o, o]", state_json(e, list[i].loop),
                                                    operators_json(e, list[i].loop),
                                                    loops_json(e, list[i].loop)));
    }
    free(list);
    return rows;
}

/* Of a graph that came from no text: specs by name, and nothing to find again. */
static json_t *inputs_json(const exporter_t *e)
{
    json_t *list = json_array();

    for (int t = 0; t < ap_graph_tensors(e->solution->graph); ++t) {
        const ap_tensor_t *tensor = ap_graph_tensor(e->solution->graph, t);

        if (tensor->producer < 0) {
            (void)json_array_append_new(
                list, row_json(e, tensor->name, &tensor->shape, e->solution->made[t], t));
        }
    }
    return list;
}

xm_status_t ap_export_jax(const ap_shard_solution_t *solution, const ap_frontend_notes_t *notes,
                          FILE *stream)
{
    const exporter_t e = {.solution = solution,
                          .source = notes != NULL ? ap_frontend_notes_source(notes) : NULL,
                          .mesh = ap_export_mesh_of(solution->mesh)};
    const hlo_source_t *of = e.source;
    json_t *mesh = json_array(), *document;
    bool failed;

    for (int a = 0; a < e.mesh.rank; ++a) {
        (void)json_array_append_new(mesh, json_integer(e.mesh.size[a]));
    }
    document = json_pack(
        "{s:s, s:i, s:o, s:o, s:o, s:o, s:o, s:o}", "format", "autopar shardings for JAX",
        "version", 1, "model", ap_export_name_json(ap_graph_name(solution->graph)), "mesh", mesh,
        "parameters",
        of != NULL ? ports_json(&e, of->parameters, of->parameter_count) : inputs_json(&e),
        "results", of != NULL ? ports_json(&e, of->results, of->result_count) : json_array(),
        "operators", of != NULL ? operators_json(&e, NULL) : json_array(), "loops",
        of != NULL ? loops_json(&e, NULL) : json_array());
    failed = document == NULL || json_dumpf(document, stream, JSON_COMPACT) != 0;
    json_decref(document);
    return failed ? XM_NO_MEMORY("the shardings of a program") : XM_OK;
}
