#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Holds autopar's shardings against XLA: are its collectives the predicted ones, its results right?

    xla_agreement.py BUILD [--mesh 2x4]... [--route jax|hlo]... [MODEL]... [--markdown FILE]

Each model is lowered by JAX, sharded by autopar, exported, compiled by XLA for 8 CPU devices with
the exported shardings, and run. What is compared, by which rules, is told in docs/xla-agreement.md.
Needs JAX (`bench/xla_requirements.txt`). Exit status 1: something disagrees.
"""
import argparse
import collections
import importlib.util
import itertools
import json
import math
import os
import pathlib
import re
import subprocess
import sys
import tempfile

DEVICES = 8
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = (os.environ.get("XLA_FLAGS", "") +
                           f" --xla_force_host_platform_device_count={DEVICES}").strip()

import jax  # noqa: E402
import numpy as np  # noqa: E402

import xla_models  # noqa: E402

SMALL = [name for name in xla_models.MODELS if name not in ("gpt-32-layers", "decoder-8b")]
KINDS = ("all-gather", "all-reduce", "reduce-scatter", "all-to-all", "collective-permute")
ITEM_BYTES = {"pred": 1, "s8": 1, "u8": 1, "s16": 2, "u16": 2, "f16": 2, "bf16": 2, "s32": 4,
              "u32": 4, "f32": 4, "s64": 8, "u64": 8, "f64": 8, "c64": 8, "c128": 16}
BYTES_WITHIN = 0.05


# What XLA does: the collectives of a compiled module.

def computations(text):
    """Name -> instructions; the entry's name is None."""
    found, name = {}, None
    for line in text.splitlines():
        start = re.match(r"(ENTRY )?%?([\w.-]+) .*\{$", line)
        if start and not line.startswith(" "):
            name = None if start.group(1) else start.group(2)
            found[name] = []
        elif line.startswith(" ") and " = " in line:
            found[name].append(line.strip())
    return found


def trip_count(lines, line):
    known = re.search(r'"known_trip_count":\{"n":"(\d+)"\}', line)
    if known:
        return int(known.group(1))
    condition = re.search(r"condition=%?([\w.-]+)", line).group(1)
    return max((int(n) for text in lines[condition]
                for n in re.findall(r"s32\[\] constant\((\d+)\)", text)), default=1)


def runs(lines):
    """How often each computation runs in one call of the module."""
    total = collections.Counter()

    def visit(name, times):
        total[name] += times
        for line in lines[name]:
            called = re.findall(r"(?:body|to_apply|calls)=%?([\w.-]+)", line)
            called += re.findall(r"%?([\w.-]+)", "".join(
                re.findall(r"(?:branch_computations|called_computations)=\{([^}]*)\}", line)))
            for other in called:
                visit(other, times * (trip_count(lines, line) if " while(" in line else 1))

    visit(None, 1)
    return total


def groups_of(line):
    """The replica groups of a collective, as lists of devices."""
    pairs = re.search(r"source_target_pairs=\{(\{.*?\})\}", line)
    if pairs:
        return [[int(n) for n in pair.split(",")]
                for pair in re.findall(r"\{([\d,]+)\}", pairs.group(1))]
    listed = re.search(r"replica_groups=\{(\{.*?\})\}", line)
    if listed:
        return [[int(n) for n in group.split(",")]
                for group in re.findall(r"\{([\d,]+)\}", listed.group(1))]
    iota = re.search(r"replica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?", line)
    if iota:
        shape, dims = ([int(n) for n in iota.group(i).split(",")] for i in (1, 2))
        order = np.arange(math.prod(dims)).reshape(dims)
        if iota.group(3):
            order = order.transpose([int(n) for n in iota.group(3).split(",")])
        return order.reshape(shape).tolist()
    return [list(range(DEVICES))]


def axes_of(groups, mesh):
    """The mesh axes along which the devices of a group differ."""
    places = list(itertools.product(*(range(n) for n in mesh)))
    return tuple(a for a in range(len(mesh))
                 if any(len({places[d][a] for d in group}) > 1 for group in groups))


def shapes_of(text):
    """Bytes of every array in a type."""
    return [ITEM_BYTES[kind] * math.prod(int(n) for n in dims.split(",") if n)
            for kind, dims in re.findall(r"(\w+)\[([\d,]*)\]", text) if kind in ITEM_BYTES]


def of_data(listed):
    """The instructions that depend on an argument; the others are constants to XLA."""
    depend = set()
    for line in listed:
        match = re.match(r"(?:ROOT )?%?([\w.-]+) = .*? ([\w-]+)\((.*)", line)
        if match and (match.group(2) == "parameter" or
                      depend & set(re.findall(r"%([\w.-]+)", match.group(3)))):
            depend.add(match.group(1))
    return depend


def performed(text, mesh):
    """(kind, axes) -> [count, bytes], as docs/xla-agreement.md defines them."""
    lines = computations(text)
    times = runs(lines)
    found = collections.defaultdict(lambda: [0, 0.0])
    pattern = re.compile(r"= (.*?) (" + "|".join(KINDS) + r")(?:-start)?\(")
    for name, listed in lines.items():
        depend = of_data(listed)
        for line in listed:
            match = pattern.search(line)
            if (not match or not times[name] or
                    re.match(r"(?:ROOT )?%?([\w.-]+)", line).group(1) not in depend):
                continue
            kind, groups = match.group(2), groups_of(line)
            axes, parts = axes_of(groups, mesh), shapes_of(match.group(1))
            size = len(groups[0])
            if kind == "all-to-all":
                parts = [sum(parts) * size]
            elif kind == "reduce-scatter":
                parts = [part * size for part in parts]
            if not axes:
                continue
            entry = found[kind.replace("collective-", ""), axes]
            entry[0] += len(parts) * times[name]
            entry[1] += sum(parts) * times[name]
    return found


def per_axis(found, mesh):
    """Collectives over several axes as what they amount to, axis by axis, the last one first."""
    made = collections.defaultdict(lambda: [0, 0.0])
    for (kind, axes), (count, size) in found.items():
        for axis in reversed(axes):
            entry = made[kind, axis]
            entry[0] += count
            entry[1] += size / (math.prod(mesh[a] for a in axes if a < axis)
                                if kind == "all-gather" else 1)
            if kind == "reduce-scatter":
                size /= mesh[axis]
    return made


# What autopar predicts.

def shard(build, text, mesh, folder, options):
    source = folder / "step.hlo"
    source.write_text(text, encoding="utf-8")
    command = [build / "planner/cli/autopar", "shard", source, "--mesh", "x".join(map(str, mesh)),
               "--json", "--export-jax", folder / "shardings.py", "--export-hlo",
               folder / "sharded.hlo", *options]
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    if made.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}: {made.stderr}")
    return json.loads(made.stdout)


def load(path):
    spec = importlib.util.spec_from_file_location("shardings", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def predicted(report):
    return {(c["kind"], tuple(c["axes"])): [round(c["count"]), c["bytes"]]
            for c in report["collectives"]}


# Running both ways.

def data_of(arguments):
    """Random arguments that keep a step's numbers in range."""
    random = np.random.default_rng(1)

    def fill(leaf):
        if np.issubdtype(leaf.dtype, np.integer):
            return random.integers(0, 16, leaf.shape, dtype=leaf.dtype)
        scale = 1 / math.sqrt(max(leaf.shape[0], 1)) if len(leaf.shape) > 1 else 1
        return random.normal(0, scale, leaf.shape).astype(leaf.dtype)

    data = jax.tree_util.tree_map(fill, arguments)
    if isinstance(data[0], tuple):  # the second moments of Adam are squares
        weights, first, second = data[0]
        second = jax.tree_util.tree_map(np.square, second)
        data = ((weights, first, second), *data[1:])
    return data


def through_jax(module, mesh, step, arguments):
    compiled = module.lower(step, mesh, *arguments).compile()
    return compiled.as_text(), lambda data: compiled(*data)


def through_hlo(module, mesh, text, step, arguments):
    """Hands the annotated text itself to XLA."""
    from jax._src.lib import xla_client as xc  # pylint: disable=import-outside-toplevel
    from jax.sharding import NamedSharding  # pylint: disable=import-outside-toplevel
    proto = xc._xla.hlo_module_from_text(text).as_serialized_hlo_module_proto()
    program = xc._xla.mlir.xla_computation_to_mlir_module(xc.XlaComputation(proto))
    options = xc.CompileOptions()
    options.num_replicas, options.num_partitions = 1, DEVICES
    build = options.executable_build_options
    build.use_spmd_partitioning = True
    build.num_replicas, build.num_partitions = 1, DEVICES
    build.device_assignment = xc.DeviceAssignment.create(np.arange(DEVICES).reshape(1, DEVICES))
    compiled = jax.devices()[0].client.compile(program, options)
    tree = jax.tree_util.tree_structure(jax.eval_shape(step, *arguments))

    def run(data):
        leaves = jax.tree_util.tree_leaves(data)
        places = [NamedSharding(mesh, row[2]) for row in module.PARAMETERS]
        given = [jax.device_put(x, place) for x, place in zip(leaves, places, strict=True)]
        made = compiled.execute_sharded([[s.data for s in x.addressable_shards] for x in given])
        parts = made.disassemble_into_single_device_arrays()
        return jax.tree_util.tree_unflatten(tree, [
            jax.make_array_from_single_device_arrays(row[1], NamedSharding(mesh, row[2]), part)
            for row, part in zip(module.RESULTS, parts, strict=True)])

    return compiled.hlo_modules()[0].to_string(), run


def worst_error(got, wanted):
    """Largest error relative to the largest number of each result."""
    worst = 0.0
    for a, b in zip(jax.tree_util.tree_leaves(got), jax.tree_util.tree_leaves(wanted), strict=True):
        a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
        worst = max(worst, np.max(np.abs(a - b)) / max(np.max(np.abs(b)), 1e-30))
    return worst


def agree(expected, found):
    return (expected[0] == found[0] and
            abs(expected[1] - found[1]) <= BYTES_WITHIN * max(expected[1], found[1]))


def examine(build, name, mesh, routes, options, keep):
    """Rows of the table: (model, mesh, route, kind, axis, predicted, found, error)."""
    step, arguments = xla_models.MODELS[name]()
    text = jax.jit(step, donate_argnums=0).lower(*arguments).as_text(dialect="hlo")
    data = data_of(arguments)
    wanted = jax.jit(step)(*data)
    rows = []
    with tempfile.TemporaryDirectory() as directory:
        folder = pathlib.Path(keep or directory)
        expected = per_axis(predicted(shard(build, text, mesh, folder, options)), mesh)
        module = load(folder / "shardings.py")
        devices = module.make_mesh()
        for route in routes:
            optimised, run = (
                through_jax(module, devices, step, arguments) if route == "jax" else
                through_hlo(module, devices, (folder / "sharded.hlo").read_text(), step, arguments))
            if keep:
                (folder / f"optimised-{route}.hlo").write_text(optimised, encoding="utf-8")
            found = per_axis(performed(optimised, mesh), mesh)
            error = worst_error(run(data), wanted)
            for key in sorted(set(expected) | set(found)):
                rows.append((name, mesh, route, *key, expected.get(key, [0, 0.0]),
                             found.get(key, [0, 0.0]), error))
            if not expected and not found:
                rows.append((name, mesh, route, "-", 0, [0, 0.0], [0, 0.0], error))
    return rows


def show(rows):
    lines = ["| model | mesh | route | collective | axis | predicted | XLA | predicted bytes | XLA bytes | "
             "agree | error |", "|---|---|---|---|---|---|---|---|---|---|---|"]
    for name, mesh, route, kind, axis, expected, found, error in rows:
        lines.append(f"| {name} | {'x'.join(map(str, mesh))} | {route} | {kind} | {axis} | "
                     f"{expected[0]} | {found[0]} | {expected[1]:.0f} | {found[1]:.0f} | "
                     f"{'yes' if agree(expected, found) else '**no**'} | {error:.1e} |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("model", nargs="*", help="one of " + ", ".join(SMALL))
    parser.add_argument("--mesh", action="append", help="e.g. 2x4 (default: 2x4 and 1x8)")
    parser.add_argument("--route", action="append", choices=("jax", "hlo"))
    parser.add_argument("--markdown", type=pathlib.Path, help="write the table here, too")
    parser.add_argument("--keep", help="folder for the text of the last model")
    parser.add_argument("--option", action="append", default=[], help="of autopar shard")
    given = parser.parse_intermixed_args()
    for name in set(given.model) - set(SMALL):
        parser.error(f"no model is called {name}")
    meshes = [tuple(int(n) for n in text.split("x")) for text in given.mesh or ("2x4", "1x8")]
    rows = []
    for name in given.model or SMALL:
        for mesh in meshes:
            made = examine(given.build, name, mesh, given.route or ("jax", "hlo"), given.option,
                           given.keep)
            rows += made
            print(show(made) if not rows[len(made):] else "\n".join(show(made).splitlines()[2:]),
                  flush=True)
    if given.markdown:
        given.markdown.write_text(show(rows) + "\n", encoding="utf-8")
    wrong = [row for row in rows if not agree(row[5], row[6]) or row[7] > 1e-3]
    print(f"{len(rows) - len(wrong)} of {len(rows)} agree")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
