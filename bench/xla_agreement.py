#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Holds autopar's shardings against XLA: are its collectives the predicted ones, its results right?

    xla_agreement.py BUILD [--mesh 2x4]... [--route jax|hlo]... [MODEL]... [--markdown FILE]

Each model is lowered by JAX, sharded by autopar, exported, compiled by XLA for 8 CPU devices with
the exported shardings, and run. What is compared, by which rules, is told in docs/xla-agreement.md.
Needs the JAX of `packaging/python-packages.txt`. Exit status 1: something disagrees.
"""
import argparse
import collections
import json
import math
import os
import pathlib
import subprocess
import sys
import tempfile

import xla_memory
from xla_collectives import Unreadable, per_axis, performed, price

DEVICES = 8
DUMPS = tempfile.TemporaryDirectory()  # pylint: disable=consider-using-with
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = (os.environ.get("XLA_FLAGS", "") + f" {xla_memory.FLAGS}"
                           f" --xla_dump_to={DUMPS.name} --xla_dump_hlo_as_text"
                           f" --xla_force_host_platform_device_count={DEVICES}").strip()

# What reads the exported tables.
sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "plugins" / "python" / "src"))

import jax  # noqa: E402
import numpy as np  # noqa: E402

import xla_models  # noqa: E402
from crossmesh.jax import shardings  # noqa: E402

SMALL = [name for name in xla_models.MODELS if name not in ("gpt-32-layers", "decoder-8b")]
BYTES_WITHIN = 0.05
COST_WITHIN = MEMORY_WITHIN = 0.10
ERROR_WITHIN = 1e-3


# What autopar predicts.

def shard(build, text, mesh, folder, options):
    source = folder / "step.hlo"
    source.write_text(text, encoding="utf-8")
    command = [build / "planner/cli/autopar", "shard", source, "--mesh", "x".join(map(str, mesh)),
               "--json", "--export-jax", folder / "shardings.json", "--export-hlo",
               folder / "sharded.hlo", *options]
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    if made.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}: {made.stderr}")
    return json.loads(made.stdout)


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


def copy_of(data):
    """Donated arrays are gone after a run."""
    return jax.tree_util.tree_map(np.array, data)


def through_jax(module, mesh, step, arguments):
    compiled = module.lower(step, mesh, *arguments, donate_argnums=0).compile()
    return compiled.as_text(), compiled.memory_analysis(), lambda data: compiled(*data)


def through_hlo(module, mesh, text, step, arguments):
    """Hands the annotated text itself to XLA, and to its GSPMD: Shardy reads no HLO."""
    from jax._src.lib import _jax, hlo, xla_client as xc  # pylint: disable=import-outside-toplevel
    from jax.sharding import NamedSharding  # pylint: disable=import-outside-toplevel
    proto = hlo.hlo_module_from_text(text).as_serialized_hlo_module_proto()
    program = _jax.mlir.xla_computation_to_mlir_module(hlo.XlaComputation(proto))
    options = xc.CompileOptions()
    options.num_replicas, options.num_partitions = 1, DEVICES
    build = options.executable_build_options
    build.use_spmd_partitioning = True
    build.use_shardy_partitioner = False
    build.num_replicas, build.num_partitions = 1, DEVICES
    build.device_assignment = xc.DeviceAssignment.create(np.arange(DEVICES).reshape(1, DEVICES))
    compiled = jax.devices()[0].client.compile_and_load(
        program, xc.DeviceList(tuple(jax.devices())), options)
    tree = jax.tree_util.tree_structure(jax.eval_shape(step, *arguments))

    def run(data):
        leaves = jax.tree_util.tree_leaves(data)
        places = [NamedSharding(mesh, row[2]) for row in module.parameters]
        made = compiled.execute_sharded(
            [jax.device_put(x, place) for x, place in zip(leaves, places, strict=True)])
        parts = made.disassemble_into_single_device_arrays()
        return jax.tree_util.tree_unflatten(tree, [
            jax.make_array_from_single_device_arrays(row[1], NamedSharding(mesh, row[2]), part)
            for row, part in zip(module.results, parts, strict=True)])

    return compiled.hlo_modules()[0].to_string(), compiled.get_compiled_memory_stats(), run


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


def ratio(found, expected):
    """What XLA does over what is predicted."""
    return found / expected if expected > 0 else math.inf if found > 0 else 1.0


def within(part, limit):
    return 1 / (1 + limit) <= part <= 1 + limit


def lowered(module, devices, folder, route, step, arguments):
    return (through_jax(module, devices, step, arguments) if route == "jax" else
            through_hlo(module, devices, (folder / "sharded.hlo").read_text(), step, arguments))


def dump(optimised, what):
    """What XLA has last written about the buffers of a module."""
    name = optimised.split("HloModule ", 1)[1].split(",", 1)[0]
    found = sorted(pathlib.Path(DUMPS.name).glob(f"module_*.{name}.cpu_after_opt*-{what}.txt"))
    if not found:
        raise Unreadable(f"XLA has written no {what} of {name}")
    return found[-1].read_text(encoding="utf-8")


def only_here(optimised):
    """Bytes that only the CPU backend needs."""
    return xla_memory.only_here(optimised, dump(optimised, "buffer-assignment"),
                                dump(optimised, "live-range"))


# Of XLA's `buffers` the part `here` is the CPU backend's own.
Result = collections.namedtuple(
    "Result", "model mesh route expected found memory buffers here error")


def examine(build, name, mesh, routes, options, keep):
    """A Result per route: collectives, memory and largest error of one model on one mesh."""
    step, arguments = xla_models.MODELS[name]()
    text = xla_memory.depth_first(
        jax.jit(step, donate_argnums=0).lower(*arguments).as_text(dialect="hlo"))
    data = data_of(arguments)
    wanted = jax.jit(step)(*data)
    results = []
    with tempfile.TemporaryDirectory() as directory:
        folder = pathlib.Path(keep or directory)
        report = shard(build, text, mesh, folder, options)
        module = shardings.load(folder / "shardings.json")
        for route in routes:
            optimised, memory, run = lowered(module, module.make_mesh(), folder, route, step,
                                             arguments)
            if keep:
                (folder / f"optimised-{route}.hlo").write_text(optimised, encoding="utf-8")
            results.append(Result(
                name, "x".join(map(str, mesh)), route, per_axis(predicted(report), mesh),
                per_axis(performed(optimised, mesh), mesh), report["memory_bytes"],
                memory.argument_size_in_bytes + memory.output_size_in_bytes -
                memory.alias_size_in_bytes + memory.temp_size_in_bytes, only_here(optimised),
                worst_error(run(copy_of(data)), wanted)))
    return results


def costs(result):
    """Predicted and performed, with the constants of Alpa's model."""
    mesh = tuple(int(n) for n in result.mesh.split("x"))
    return price(result.expected, mesh), price(result.found, mesh)


def holds(result, memory):
    expected, found = costs(result)
    return (within(ratio(found, expected), COST_WITHIN) and result.error <= ERROR_WITHIN and
            (not memory or
             within(ratio(result.buffers - result.here, result.memory), MEMORY_WITHIN)))


def table(head, rows):
    return "\n".join("| " + " | ".join(map(str, row)) + " |"
                     for row in (head, ["---"] * len(head), *rows))


def summary(results):
    def row(r):
        expected, found = costs(r)
        return (r.model, r.mesh, r.route, f"{expected:.0f}", f"{found:.0f}",
                f"{ratio(found, expected):.2f}", f"{r.memory:.0f}", f"{r.buffers}", f"{r.here}",
                f"{ratio(r.buffers - r.here, r.memory):.2f}", f"{r.error:.0e}")
    return table(("model", "mesh", "route", "predicted cost", "XLA's", "ratio", "predicted memory",
                  "XLA's", "of it CPU's", "ratio", "error"), map(row, results))


def details(results):
    rows = []
    for r in results:
        for kind, axis in sorted(set(r.expected) | set(r.found)):
            expected, found = (side.get((kind, axis), [0, 0.0]) for side in (r.expected, r.found))
            rows.append((r.model, r.mesh, r.route, kind, axis, expected[0], found[0],
                         f"{expected[1]:.0f}", f"{found[1]:.0f}",
                         "yes" if agree(expected, found) else "**no**"))
    return table(("model", "mesh", "route", "collective", "axis", "predicted", "XLA",
                  "predicted bytes", "XLA bytes", "agree"), rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("model", nargs="*", help="one of " + ", ".join(SMALL))
    parser.add_argument("--mesh", action="append", help="e.g. 2x4 (default: 2x4 and 1x8)")
    parser.add_argument("--route", action="append", choices=("jax", "hlo"))
    parser.add_argument("--memory", action="store_true", help="fail on the memory, too")
    parser.add_argument("--markdown", type=pathlib.Path, help="write both tables here, too")
    parser.add_argument("--keep", help="folder for the text of the last model")
    parser.add_argument("--option", action="append", default=[], help="of autopar shard")
    given = parser.parse_intermixed_args()
    for name in set(given.model) - set(SMALL):
        parser.error(f"no model is called {name}")
    meshes = [tuple(int(n) for n in text.split("x")) for text in given.mesh or ("2x4", "1x8")]
    results = []
    for name in given.model or SMALL:
        for mesh in meshes:
            try:
                made = examine(given.build, name, mesh, given.route or ("jax", "hlo"),
                               given.option, given.keep)
            except Unreadable as error:
                sys.exit(f"{name} on {'x'.join(map(str, mesh))}: {error}")
            results += made
            print(details(made), end="\n\n", flush=True)
    text = summary(results) + "\n\n" + details(results) + "\n"
    if given.markdown:
        given.markdown.write_text(text, encoding="utf-8")
    wrong = [f"{r.model} {r.mesh} {r.route}" for r in results if not holds(r, given.memory)]
    print(summary(results))
    print(f"{len(results) - len(wrong)} of {len(results)} agree" +
          (": not " + ", ".join(wrong) if wrong else ""))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
