#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How long a full plan takes as layers, hosts and devices of a host grow.

Every row resizes one measured profile, so that only the sizes differ between rows. CROSSMESH_LIBRARY names the library
(default: that of build/release).
"""
import argparse
import itertools
import json
import pathlib
import resource
import time

from planner_runs import plan, positive, run

BLOCKS = 48  # where it is not the blocks that grow


def memory_for(options, blocks, devices):
    """What a device gets: what the model needs for parameters and their state, as much again for activations, and at
    least that of the profile. Without this, large rows would be infeasible at once and measure nothing."""
    own = 2 * blocks * 12.0 * 8192 * 8192 * 16 / devices
    return max(own, json.loads(options.cluster.read_text(encoding="utf-8"))["device"]["memory_bytes"])


def head(title):
    print(f"# {title}\n#{'blocks':>6} {'hosts':>6} {'devices':>8} {'memory':>8} {'plan s':>9} {'cpu s':>9} {'stages':>7} "
          f"{'priced':>9} {'step s':>11} {'gap %':>7} {'RSS MiB':>8}")


def row(options, blocks, hosts, devices):
    """Planning is deterministic and noise only adds, so the least time counts."""
    memory, spent = memory_for(options, blocks, hosts * devices), []
    for _ in range(options.repeat):
        start, cpu = time.perf_counter(), time.process_time()
        made, info = plan(options.cluster, hosts, devices, model=options.model.encode(), layers=blocks,
                          global_batch=1024, memory_limit=memory)
        spent.append((time.perf_counter() - start, time.process_time() - cpu))
    wall, cpu = map(min, zip(*spent))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024  # of the whole process so far
    print(f"{blocks:7} {hosts:6} {hosts * devices:8} {memory * 1e-9:7.1f}G {wall:9.3f} {cpu:9.3f} "
          f"{len(made['stages']):7} {info.stages_priced:9} {info.objective:11.4f} "
          f"{100 * (1 - info.bound / info.objective):7.3f} {peak:8.0f}", flush=True)


def sizes(text):
    """Blocks, hosts and devices of a host."""
    numbers = text.split("x")
    if len(numbers) != 3 or not all(n.isdecimal() and 1 <= int(n) <= 4096 for n in numbers):
        raise argparse.ArgumentTypeError(f"{text} is not BLOCKSxHOSTSxDEVICES, each 1 to 4096")
    return [int(n) for n in numbers]


def doubled(first, last):
    return itertools.takewhile(lambda n: n <= last, (first << i for i in itertools.count()))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cluster", type=pathlib.Path, required=True, help="cluster profile; resized for every row")
    parser.add_argument("--model", default="gpt-39b", help="built-in language model whose block is repeated (%(default)s)")
    parser.add_argument("--hosts", type=positive, default=128, help="most hosts (%(default)s)")
    parser.add_argument("--devices", type=positive, default=16, help="most devices of a host (%(default)s)")
    parser.add_argument("--layers", type=positive, default=96, help="most blocks (%(default)s)")
    parser.add_argument("--row", type=sizes, help="only this row: blocks, hosts and devices of a host, such as 96x128x8")
    parser.add_argument("--repeat", type=positive, default=1, help="plan each row so often (%(default)s)")
    options = parser.parse_args()
    blocks = min(options.layers, BLOCKS)
    # One size grows at a time, from a common middle.
    tables = {"layers, on 8 x 8 devices": [(n, 8, 8) for n in doubled(12, options.layers)],
              "hosts of 8 devices": [(blocks, n, 8) for n in doubled(1, options.hosts)],
              "devices of a host, 8 hosts": [(blocks, 8, n) for n in doubled(1, options.devices)],
              "all together": [(96, 128, 8)] if options.hosts >= 128 else []}
    print(f"# {options.model}, batch 1024, blocks as given, micro-batches 1 to 1024, recomputation on and off")
    for title, rows in ({"as asked for": [options.row]} if options.row else tables).items():
        if rows:
            head(title)
        for one in rows:
            row(options, *one)


if __name__ == "__main__":
    run(main)
