#include "planner/export_jax.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "planner/export_site.h"
#include "planner/export_spec.h"
#include "planner/hlo_build.h"

/* Opcodes whose operands and results are pinned. */
static const char *const anchors[] = {"dot", "convolution", "gather", "scatter", "reduce"};
enum { ANCHORS = sizeof(anchors) / sizeof(anchors[0]) };

typedef struct exporter {
    const ap_shard_solution_t *solution;
    const hlo_source_t *source;
    ap_export_mesh_t mesh;
    FILE *stream;
} exporter_t;

static const char head[] =
    "from jax.sharding import Mesh, NamedSharding, PartitionSpec as P\n"
    "\n"
    "# Name and size of each axis of the mesh; device k is number k in row-major order.\n";

static const char body[] =
    "\n"
    "_OPCODES = {\"dot_general\": \"dot\", \"conv_general_dilated\": \"convolution\", \"gather\": "
    "\"gather\",\n"
    "            \"scatter\": \"scatter\", \"scatter-add\": \"scatter\", \"scatter-mul\": "
    "\"scatter\",\n"
    "            \"scatter-min\": \"scatter\", \"scatter-max\": \"scatter\", \"reduce_sum\": "
    "\"reduce\",\n"
    "            \"reduce_max\": \"reduce\", \"reduce_min\": \"reduce\", \"reduce_prod\": "
    "\"reduce\",\n"
    "            \"reduce_and\": \"reduce\", \"reduce_or\": \"reduce\", \"argmax\": \"reduce\", "
    "\"argmin\": \"reduce\"}\n"
    "_CALLS = {\"pjit\": \"jaxpr\", \"jit\": \"jaxpr\", \"closed_call\": \"call_jaxpr\",\n"
    "          \"custom_jvp_call\": \"call_jaxpr\", \"custom_vjp_call\": \"call_jaxpr\",\n"
    "          \"custom_vjp_call_jaxpr\": \"fun_jaxpr\"}\n"
    "\n"
    "\n"
    "def make_mesh(devices=None):\n"
    "    \"\"\"The mesh of the plan over the first devices, or over those given.\"\"\"\n"
    "    shape = tuple(MESH.values())\n"
    "    devices = jax.devices() if devices is None else devices\n"
    "    return Mesh(np.array(devices[:math.prod(shape)]).reshape(shape), tuple(MESH))\n"
    "\n"
    "\n"
    "def _pin(value, spec, mesh):\n"
    "    return jax.lax.with_sharding_constraint(value, NamedSharding(mesh, spec))\n"
    "\n"
    "\n"
    "def _next(opcode, shape, left):\n"
    "    found = next(left[opcode], None)\n"
    "    if found is None or (found[0] is not None and found[0] != shape):\n"
    "        raise ValueError(f\"this function is not the one that was sharded: {opcode} makes "
    "{shape} \"\n"
    "                         f\"where the plan has {found[0] if found else 'none left'}\")\n"
    "    return found\n"
    "\n"
    "\n"
    "def _run(jaxpr, consts, arguments, mesh, left):\n"
    "    values = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*consts, *arguments)))\n"
    "    free = set(jaxpr.constvars)  # made of nothing: each device takes its part by itself\n"
    "    read = lambda v: v.val if hasattr(v, \"val\") else values[v]\n"
    "    for eqn in jaxpr.eqns:\n"
    "        name, given = eqn.primitive.name, [read(v) for v in eqn.invars]\n"
    "        if name in _CALLS:\n"
    "            inner = eqn.params[_CALLS[name]]\n"
    "            made = _run(inner.jaxpr, inner.consts, given, mesh, left)\n"
    "        elif name == \"checkpoint\":\n"
    "            inner = jax.make_jaxpr(lambda *a: _run(eqn.params[\"jaxpr\"], (), a, mesh, "
    "left))(*given)\n"
    "            made = eqn.primitive.bind(*inner.consts, *given, **{\n"
    "                **eqn.params, \"jaxpr\": partial_eval.convert_constvars_jaxpr(inner.jaxpr)})\n"
    "        elif name in _OPCODES and eqn.params.get(\"axes\") != ():\n"
    "            shape, result, operands = _next(_OPCODES[name], eqn.outvars[0].aval.shape, left)\n"
    "            for number, path in operands.items():\n"
    "                for spec in path:\n"
    "                    given[number] = _pin(given[number], spec, mesh)\n"
    "            made = eqn.primitive.bind(*given, **eqn.params)\n"
    "            if result is not None:\n"
    "                made = _pin(made, result, mesh)\n"
    "        else:\n"
    "            made = eqn.primitive.bind(*given, **eqn.params)\n"
    "        made = made if isinstance(made, (list, tuple)) else [made]\n"
    "        if all(hasattr(v, \"val\") or v in free for v in eqn.invars):\n"
    "            free.update(eqn.outvars)\n"
    "            made = [_pin(x, P(), mesh) if v.aval.shape else x for v, x in zip(eqn.outvars, "
    "made)]\n"
    "        values.update(zip(eqn.outvars, made))\n"
    "    return [read(v) for v in jaxpr.outvars]\n"
    "\n"
    "\n"
    "def _check(what, avals, table):\n"
    "    if [a.shape for a in avals] != [row[1] for row in table]:\n"
    "        raise ValueError(f\"this function is not the one that was sharded: its {what} have "
    "\"\n"
    "                         \"other shapes\")\n"
    "\n"
    "\n"
    "def lower(function, mesh, *arguments, **options):\n"
    "    \"\"\"Lowers `function` with the plan's shardings; .compile() of the result takes the "
    "same "
    "arguments.\n"
    "\n"
    "    `options` are those of jax.jit, such as donate_argnums; shapes are enough as arguments.\n"
    "    \"\"\"\n"
    "    flat, tree = jax.tree_util.tree_flatten(arguments)\n"
    "    closed, made = jax.make_jaxpr(function, return_shape=True)(*arguments)\n"
    "    jaxpr, used = partial_eval.dce_jaxpr(closed.jaxpr, [True] * len(closed.jaxpr.outvars))\n"
    "    consts = dict(zip(closed.jaxpr.constvars, closed.consts))\n"
    "    _check(\"arguments\", [v.aval for v, u in zip(closed.jaxpr.invars, used) if u], "
    "PARAMETERS)\n"
    "    _check(\"results\", [v.aval for v in jaxpr.outvars], RESULTS)\n"
    "    rows = iter(PARAMETERS)\n"
    "    places = [NamedSharding(mesh, next(rows)[2] if u else P()) for u in used]\n"
    "\n"
    "    def sharded(*arguments):\n"
    "        given = [a for a, u in zip(jax.tree_util.tree_leaves(arguments), used) if u]\n"
    "        left = {opcode: iter(table) for opcode, table in OPERATORS.items()}\n"
    "        made = _run(jaxpr, [consts[v] for v in jaxpr.constvars], given, mesh, left)\n"
    "        for opcode, rest in left.items():\n"
    "            if next(rest, None) is not None:\n"
    "                raise ValueError(f\"this function is not the one that was sharded: the plan "
    "has more \"\n"
    "                                 f\"operators of the kind {opcode}\")\n"
    "        return jax.tree_util.tree_unflatten(out, made)\n"
    "\n"
    "    out = jax.tree_util.tree_structure(made)\n"
    "    results = [NamedSharding(mesh, row[2]) for row in RESULTS]\n"
    "    return jax.jit(sharded, in_shardings=jax.tree_util.tree_unflatten(tree, places),\n"
    "                   out_shardings=jax.tree_util.tree_unflatten(out, results), "
    "**options).lower(*arguments)\n";

static void put_shape(const exporter_t *e, const ap_shape_t *shape)
{
    (void)putc('(', e->stream);
    for (int d = 0; d < shape->rank; ++d) {
        (void)fprintf(e->stream, "%s%" PRId64, d == 0 ? "" : ", ", shape->dims[d]);
    }
    (void)fputs(shape->rank == 1 ? ",)" : ")", e->stream);
}

static void put_row(const exporter_t *e, const char *name, const ap_shape_t *shape, ap_spec_t spec)
{
    (void)fputs("    (", e->stream);
    ap_export_put_string(e->stream, name);
    (void)fputs(", ", e->stream);
    put_shape(e, shape);
    (void)fputs(", ", e->stream);
    ap_export_put_partition_spec(e->stream, &e->mesh, spec, shape->rank);
    (void)fputs("),\n", e->stream);
}

static void put_ports(const exporter_t *e, const hlo_port_t *ports, int count)
{
    for (int p = 0; p < count; ++p) {
        char number[32];

        (void)snprintf(number, sizeof(number), "result %d", p);
        put_row(e, ports[p].name != NULL ? ports[p].name : number, &ports[p].shape,
                ports[p].tensor >= 0 ? ap_shard_solution_kept(e->solution, ports[p].tensor)
                                     : AP_SPEC_REPLICATED);
    }
}

/* One operator: the shape it makes, its sharding, and the ways of its operands from the sharding
 * they are made in to the one they are used in. */
static void put_operator(const exporter_t *e, const hlo_site_t *site)
{
    const ap_graph_t *graph = e->solution->graph;
    bool first = true;

    (void)fputs("        (", e->stream);
    if (site->tensor >= 0) {
        const ap_shape_t *shape = &ap_graph_tensor(graph, site->tensor)->shape;

        put_shape(e, shape);
        (void)fputs(", ", e->stream);
        ap_export_put_partition_spec(e->stream, &e->mesh, e->solution->made[site->tensor],
                                     shape->rank);
    } else {
        (void)fputs("None, None", e->stream);
    }
    (void)fputs(", {", e->stream);
    for (int o = 0; o < HLO_SITE_OPERANDS; ++o) {
        ap_spec_t used, path[AP_MAX_RESHARD_STEPS + 1];
        int count;

        if (site->tensor < 0 || !ap_export_site_used(e->solution, site, o, &used)) {
            continue;
        }
        count = ap_export_site_path(e->solution, site->operands[o], used, path);
        (void)fprintf(e->stream, "%s%d: (", first ? "" : ", ", o);
        for (int s = 0; s < count; ++s) {
            ap_export_put_partition_spec(e->stream, &e->mesh, path[s],
                                         ap_graph_tensor(graph, site->operands[o])->shape.rank);
            (void)fputs(s == 0 || s + 1 < count ? "," : "", e->stream);
            (void)fputs(s + 1 < count ? " " : ")", e->stream);
        }
        first = false;
    }
    (void)fputs("}),\n", e->stream);
}

/* Sites in the order of the program, for qsort(). */
typedef struct ordered {
    const hlo_source_t *source;
    const hlo_site_t *site;
} ordered_t;

static int by_order(const void *left, const void *right)
{
    const ordered_t *a = left, *b = right;

    if (a->site == b->site) {
        return 0;
    }
    return hlo_source_before(a->source, a->site, b->site) ? -1 : 1;
}

static xm_status_t put_operators(const exporter_t *e)
{
    const hlo_source_t *source = e->source;
    ordered_t *list = calloc((size_t)source->site_count + 1, sizeof(*list));

    if (list == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "no memory for %d operators", source->site_count);
    }
    for (int a = 0; a < ANCHORS; ++a) {
        int count = 0;

        for (int s = 0; s < source->site_count; ++s) {
            const hlo_site_t *site = &source->sites[s];

            if (strcmp(site->opcode, anchors[a]) == 0 && !source->contexts[site->context].loop) {
                list[count++] = (ordered_t){.source = source, .site = site};
            }
        }
        qsort(list, (size_t)count, sizeof(*list), by_order);
        (void)fprintf(e->stream, "    \"%s\": (\n", anchors[a]);
        for (int i = 0; i < count; ++i) {
            put_operator(e, list[i].site);
        }
        (void)fputs("    ),\n", e->stream);
    }
    free(list);
    return XM_OK;
}

xm_status_t ap_export_jax(const ap_shard_solution_t *solution, const ap_hlo_notes_t *notes,
                          FILE *stream)
{
    const exporter_t e = {.solution = solution,
                          .source = notes != NULL ? &notes->source : NULL,
                          .mesh = ap_export_mesh_of(solution->mesh),
                          .stream = stream};
    xm_status_t status;

    (void)fputs("\"\"\"Shardings of ", stream);
    for (const char *c = ap_graph_name(solution->graph); *c != '\0'; ++c) {
        (void)putc(*c == '"' || *c == '\\' || (unsigned char)*c < ' ' ? '?' : *c, stream);
    }
    (void)fputs(", found and written by autopar.\"\"\"\n", stream);
    if (notes != NULL) {
        (void)fputs("import math\n\nimport jax\nimport numpy as np\n"
                    "from jax.interpreters import partial_eval\n",
                    stream);
    }
    (void)fputs(head, stream);
    (void)fputs("MESH = ", stream);
    ap_export_put_mesh(stream, &e.mesh);
    (void)putc('\n', stream);
    (void)fputs("\n# Name, shape and sharding of each parameter, in order.\nPARAMETERS = (\n",
                stream);
    if (notes == NULL) {
        for (int t = 0; t < ap_graph_tensors(solution->graph); ++t) {
            const ap_tensor_t *tensor = ap_graph_tensor(solution->graph, t);

            if (tensor->producer < 0) {
                put_row(&e, tensor->name, &tensor->shape, solution->made[t]);
            }
        }
        (void)fputs(")\n", stream);
        return XM_OK;
    }
    put_ports(&e, e.source->parameters, e.source->parameter_count);
    (void)fputs(")\n\n# The same of each result.\nRESULTS = (\n", stream);
    put_ports(&e, e.source->results, e.source->result_count);
    (void)fputs(")\n\n# By opcode, in the order they run in: shape and sharding of the result, "
                "the way of each operand.\nOPERATORS = {\n",
                stream);
    status = put_operators(&e);
    (void)fputs("}\n", stream);
    (void)fputs(body, stream);
    return status;
}
