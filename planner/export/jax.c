/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writes a solution as a Python module for JAX. The tables are printed here: specs of parameters
 * and results, then one row per operator in the order of the program, with the path of each
 * operand. What interprets them is crossmesh.jax.shardings in the Python package.
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
    FILE *stream;
} exporter_t;

static void put_shape(const exporter_t *e, const ap_shape_t *shape)
{
    (void)putc('(', e->stream);
    for (int d = 0; d < shape->rank; ++d) {
        (void)fprintf(e->stream, "%s%" PRId64, d == 0 ? "" : ", ", shape->dims[d]);
    }
    (void)fputs(shape->rank == 1 ? ",)" : ")", e->stream);
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

static void put_row(const exporter_t *e, const char *name, const ap_shape_t *shape, ap_spec_t spec,
                    int tensor)
{
    (void)fputs("    (", e->stream);
    ap_export_put_string(e->stream, name);
    (void)fputs(", ", e->stream);
    put_shape(e, shape);
    (void)fputs(", ", e->stream);
    ap_export_put_partition_spec(e->stream, &e->mesh, even_part(&e->mesh, shape, spec),
                                 shape->rank);
    (void)fprintf(e->stream, tensor >= 0 ? ", %d),\n" : ", None),\n", tensor);
}

static void put_ports(const exporter_t *e, const hlo_port_t *ports, int count)
{
    for (int p = 0; p < count; ++p) {
        char number[32];

        (void)snprintf(number, sizeof(number), "result %d", p);
        put_row(e, ports[p].name != NULL ? ports[p].name : number, &ports[p].shape,
                ports[p].tensor >= 0 ? ap_shard_solution_kept(e->solution, ports[p].tensor)
                                     : AP_SPEC_REPLICATED,
                ports[p].tensor);
    }
}

/* Writes shardings one after the other, as a tuple; one of a single entry needs a comma in
 * Python. */
static void put_way(const exporter_t *e, const ap_spec_t *path, int count, int rank)
{
    (void)putc('(', e->stream);
    for (int s = 0; s < count; ++s) {
        ap_export_put_partition_spec(e->stream, &e->mesh, path[s], rank);
        (void)fputs(s + 1 < count ? ", " : s == 0 ? ",)" : ")", e->stream);
    }
}

/* Writes the way of an operand from the sharding it is made in to the one it is used in. */
static void put_path(const exporter_t *e, const hlo_instance_t *instance, int operand,
                     ap_spec_t used)
{
    const int tensor = instance->operands[operand];
    ap_spec_t path[AP_MAX_RESHARD_STEPS + 1];
    int count = ap_export_instance_path(
        e->solution, tensor,
        ap_export_instance_found(e->solution, e->source, instance->context, tensor), used, path);

    (void)fprintf(e->stream, "%d: ", operand);
    put_way(e, path, count, ap_graph_tensor(e->solution->graph, tensor)->shape.rank);
}

/* Writes a row: opcode, operands, shape of the result, the result, its sharding, the ways of the
 * operands. Operands at the end that need no data are left out. */
static void put_operator(const exporter_t *e, const hlo_instance_t *instance, int indent)
{
    const ap_graph_t *graph = e->solution->graph;
    int operands = instance->operand_count;
    bool first = true;

    (void)fprintf(e->stream, "%*s(", indent, "");
    ap_export_put_string(e->stream, instance->opcode);
    (void)fputs(", (", e->stream);
    while (operands > 0 && instance->operands[operands - 1] < 0) {
        --operands;
    }
    for (int o = 0; o < operands; ++o) {
        (void)fprintf(e->stream, instance->operands[o] < 0 ? "%sNone," : "%s%d,", o == 0 ? "" : " ",
                      instance->operands[o]);
    }
    (void)fputs("), ", e->stream);
    if (instance->tensor >= 0) {
        const ap_shape_t *shape = &ap_graph_tensor(graph, instance->tensor)->shape;

        put_shape(e, shape);
        (void)fprintf(e->stream, ", %d, ", instance->tensor);
        ap_export_put_partition_spec(e->stream, &e->mesh, e->solution->made[instance->tensor],
                                     shape->rank);
    } else {
        (void)fputs("None, None, None", e->stream);
    }
    (void)fputs(", {", e->stream);
    for (int o = 0; o < operands && instance->tensor >= 0; ++o) {
        ap_spec_t used;

        if (ap_export_instance_used(e->solution, instance, o, &used)) {
            (void)fputs(first ? "" : ", ", e->stream);
            put_path(e, instance, o, used);
            first = false;
        }
    }
    (void)fputs("}),\n", e->stream);
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

static xm_status_t put_operators(const exporter_t *e, const hlo_loop_t *loop, int indent)
{
    const hlo_source_t *source = e->source;
    ordered_t *list = calloc((size_t)source->instance_count + 1, sizeof(*list));
    int count = 0;

    if (list == NULL) {
        return XM_NO_MEMORY("%d operators", source->instance_count);
    }
    for (int s = 0; s < source->instance_count; ++s) {
        if (is_given(e, &source->instances[s], loop)) {
            list[count++] = (ordered_t){.source = source, .instance = &source->instances[s]};
        }
    }
    qsort(list, (size_t)count, sizeof(*list), by_order);
    for (int i = 0; i < count; ++i) {
        put_operator(e, list[i].instance, indent);
    }
    free(list);
    return XM_OK;
}

/* Writes a tensor by its number, or None; with a comma. */
static void put_number(const exporter_t *e, int tensor)
{
    (void)fprintf(e->stream, tensor >= 0 ? "%d, " : "None, ", tensor);
}

/* Writes what a loop carries: shape, numbers outside, in the body and after the loop, and its ways
 * into the sharding that it is carried in: from outside, and from the end of the body. */
static void put_state(const exporter_t *e, const hlo_loop_t *loop, int indent)
{
    for (int i = 0; i < loop->count; ++i) {
        const hlo_carried_t *of = &loop->state[i];
        ap_spec_t path[AP_MAX_RESHARD_STEPS + 1];
        int count;

        (void)fprintf(e->stream, "%*s(", indent, "");
        put_shape(e, &of->shape);
        (void)fputs(", ", e->stream);
        put_number(e, of->outside);
        put_number(e, of->inside);
        put_number(e, of->after);
        count = ap_export_instance_way(e->solution, e->source, loop, i, false, path);
        put_way(e, path, count, of->shape.rank);
        (void)fputs(", ", e->stream);
        count = ap_export_instance_way(e->solution, e->source, loop, i, true, path);
        put_way(e, path, count, of->shape.rank);
        (void)fputs("),\n", e->stream);
    }
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

/* Writes the loops in the body of `outer`, or with NULL those in none, with all that is in them: as
 * deep as calls nest. NOLINTNEXTLINE(misc-no-recursion) */
static xm_status_t put_loops(const exporter_t *e, const hlo_loop_t *outer, int indent)
{
    const hlo_source_t *source = e->source;
    ordered_loop_t *list = calloc((size_t)source->loop_count + 1, sizeof(*list));
    xm_status_t status = XM_OK;
    int count = 0;

    if (list == NULL) {
        return XM_NO_MEMORY("%d loops", source->loop_count);
    }
    for (int l = 0; l < source->loop_count; ++l) {
        if (stands_in(e, source->loops[l].context, outer)) {
            list[count++] = (ordered_loop_t){.source = source, .loop = &source->loops[l]};
        }
    }
    qsort(list, (size_t)count, sizeof(*list), by_loop_order);
    for (int i = 0; i < count && status == XM_OK; ++i) {
        (void)fprintf(e->stream, "%*s((\n", indent, "");
        put_state(e, list[i].loop, indent + 4);
        (void)fprintf(e->stream, "%*s), (\n", indent, "");
        status = put_operators(e, list[i].loop, indent + 4);
        (void)fprintf(e->stream, "%*s), (\n", indent, "");
        if (status == XM_OK) {
            status = put_loops(e, list[i].loop, indent + 4);
        }
        (void)fprintf(e->stream, "%*s)),\n", indent, "");
    }
    free(list);
    return status;
}

/* A graph that came from no text has specs by name and nothing to find again. */
xm_status_t ap_export_jax(const ap_shard_solution_t *solution, const ap_frontend_notes_t *notes,
                          FILE *stream)
{
    const exporter_t e = {.solution = solution,
                          .source = notes != NULL ? ap_frontend_notes_source(notes) : NULL,
                          .mesh = ap_export_mesh_of(solution->mesh),
                          .stream = stream};
    xm_status_t status;

    (void)fputs("\"\"\"Shardings found and written by autopar.\"\"\"\n", stream);
    (void)fputs(e.source != NULL ? "from crossmesh.jax.shardings import Shardings\n" : "", stream);
    (void)fputs("from jax.sharding import PartitionSpec as P\n\nMODEL = ", stream);
    ap_export_put_string(stream, ap_graph_name(solution->graph));
    (void)fputs("\n# Name and size of each axis of the mesh; device k is number k in row-major "
                "order.\nMESH = ",
                stream);
    ap_export_put_mesh(stream, &e.mesh);
    (void)putc('\n', stream);
    (void)fputs(
        "\n# Name, shape, sharding and number of each parameter, in order. JAX cuts these evenly "
        "only: an axis that does not\n# divide its dimension is left out here, and cuts in the "
        "operators.\nPARAMETERS = (\n",
        stream);
    if (e.source == NULL) {
        for (int t = 0; t < ap_graph_tensors(solution->graph); ++t) {
            const ap_tensor_t *tensor = ap_graph_tensor(solution->graph, t);

            if (tensor->producer < 0) {
                put_row(&e, tensor->name, &tensor->shape, solution->made[t], t);
            }
        }
        (void)fputs(")\n", stream);
        return XM_OK;
    }
    put_ports(&e, e.source->parameters, e.source->parameter_count);
    (void)fputs(")\n\n# The same of each result.\nRESULTS = (\n", stream);
    put_ports(&e, e.source->results, e.source->result_count);
    (void)fputs(
        ")\n\n# Opcode, operands (tensors by number, as in the last column above), shape of the "
        "result, the result,\n# its sharding, and the way of each operand to the one it "
        "is used in; in the order of the program.\nOPERATORS = (\n",
        stream);
    status = put_operators(&e, NULL, 4);
    (void)fputs(
        ")\n\n# Each loop: the arrays that it carries (shape, number outside, in the body and "
        "after it, the ways into\n# its sharding: from outside, and from the end of the body), the "
        "operators and the loops of its body.\nLOOPS = (\n",
        stream);
    if (status == XM_OK) {
        status = put_loops(&e, NULL, 4);
    }
    (void)fputs(")\n\n_tables = Shardings(MESH, PARAMETERS, RESULTS, OPERATORS, LOOPS)\n"
                "make_mesh = _tables.make_mesh\nlower = _tables.lower\n",
                stream);
    return status;
}
