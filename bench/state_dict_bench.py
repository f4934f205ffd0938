#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Weight transfer of a whole state dict between a training and a serving job, on an emulated cluster.

    state_dict_bench.py BUILD_DIRECTORY [--layers N] [--hidden H] [--runs R] [--nic RATE] [-J OUT.json]

Twelve processes on three hosts of one NIC each: eight train a decoder in two pipeline stages of four
tensor-parallel ranks (TP4 x PP2), four serve it in two copies of two tensor-parallel ranks (DP2 x TP2). With
the defaults it has 1.06 billion parameters of bfloat16. Two ways move it, taking turns in one run:

    crossmesh   crossmesh.torch.StateDictTransfer, planned once
    gloo        what one writes with torch.distributed alone: every parameter is gathered to the full tensor
                on its stage (DTensor.full_tensor()), broadcast to the serving ranks, and cut there

Every byte is checked after every run. Reported are the medians of the slowest rank's times, their ratio, and
the most memory that any rank needed beyond its own shards. Exit status 1: a byte was wrong, or the ratio or the
memory is not as wanted (3 x, 64 MiB).

The Python that runs it must have torch; the package crossmesh is taken from the source tree.
"""

import argparse
import json
import os
import statistics
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
SOURCES = os.path.dirname(HERE)
HOSTS, RANKS_PER_HOST, STAGES, TENSOR_PARALLEL = 3, 4, 2, 4
TRAINING = STAGES * TENSOR_PARALLEL
SERVING = list(range(TRAINING, HOSTS * RANKS_PER_HOST))
WANTED_RATIO, WANTED_MIB = 3.0, 64
WAYS = ("crossmesh", "gloo")


# The model -----------------------------------------------------------------------------------------------


def parameters(options):
    """Name, shape, dimension that tensor parallelism cuts (None: whole everywhere), and stage of every one."""
    hidden, inner, vocabulary = options.hidden, options.hidden * 11 // 4, options.vocabulary
    yield "embedding", (vocabulary, hidden), 0, 0
    for layer in range(options.layers):
        stage = layer * STAGES // options.layers
        for name in "qkv":
            yield f"layers.{layer}.{name}", (hidden, hidden), 0, stage
        yield f"layers.{layer}.o", (hidden, hidden), 1, stage
        for name in ("gate", "up"):
            yield f"layers.{layer}.{name}", (inner, hidden), 0, stage
        yield f"layers.{layer}.down", (hidden, inner), 1, stage
        yield f"layers.{layer}.norm1", (hidden,), None, stage
        yield f"layers.{layer}.norm2", (hidden,), None, stage
    yield "norm", (hidden,), None, STAGES - 1
    yield "head", (vocabulary, hidden), 0, STAGES - 1


# One rank ------------------------------------------------------------------------------------------------


class Rank:
    """The state dicts of this rank, with numbers that follow from their places."""

    def __init__(self, options):
        import torch
        import torch.distributed as dist
        from torch.distributed.tensor import DeviceMesh, DTensor, Replicate, Shard

        self.torch, self.dist, self.options = torch, dist, options
        self.rank = dist.get_rank()
        stages = [DeviceMesh("cpu", list(range(s * TENSOR_PARALLEL, (s + 1) * TENSOR_PARALLEL)))
                  for s in range(STAGES)]
        serving = DeviceMesh("cpu", torch.tensor(SERVING).reshape(2, 2))
        # The root of a stage and those who serve.
        self.groups = [dist.new_group([s * TENSOR_PARALLEL, *SERVING]) for s in range(STAGES)]
        self.src, self.dst, self.plan = {}, {}, []
        for index, (name, shape, dim, stage) in enumerate(parameters(options)):
            cut = Replicate() if dim is None else Shard(dim)
            self.plan.append((index, name, shape, dim, stage))
            for mesh, placements, tensors in ((stages[stage], [cut], self.src),
                                              (serving, [Replicate(), cut], self.dst)):
                place = mesh.get_coordinate()
                if place is None:
                    continue
                box = self.box(shape, dim, mesh.size(mesh.ndim - 1), place[-1])
                local = self.content(index, shape, box)
                stride = torch.empty(shape, device="meta").stride()
                tensors[name] = DTensor.from_local(local, mesh, placements, run_check=False,
                                                   shape=torch.Size(shape), stride=stride)

    @staticmethod
    def box(shape, dim, parts, part):
        """The (start, length) of a rank's shard in every dimension, by torch's rule for chunks."""
        box = [(0, extent) for extent in shape]
        if dim is not None:
            size = -(-shape[dim] // parts)
            start = min(shape[dim], part * size)
            box[dim] = (start, min(shape[dim], start + size) - start)
        return box

    def content(self, index, shape, box):
        """16-bit words that are a function of the tensor and of the place in the whole of it."""
        torch = self.torch
        place = torch.full([length for _, length in box], index * 40503, dtype=torch.int32)
        stride = 1
        for dim in reversed(range(len(shape))):
            start, length = box[dim]
            steps = torch.arange(start, start + length, dtype=torch.int32) * stride
            place += steps.reshape([-1] + [1] * (len(shape) - 1 - dim))
            stride *= shape[dim]
        place.mul_(-1640531535).bitwise_right_shift_(13)
        return place.to(torch.int16).view(torch.bfloat16)

    def poison(self):
        for tensor in self.dst.values():
            words = tensor.to_local().view(self.torch.int16)
            words.bitwise_not_()

    def wrong(self):
        """Elements of the destination that are not what they should be."""
        count = 0
        for index, name, shape, dim, _ in self.plan:
            if name in self.dst:
                tensor = self.dst[name]
                place = tensor.device_mesh.get_coordinate()
                box = self.box(shape, dim, tensor.device_mesh.size(1), place[1])
                words = tensor.to_local().view(self.torch.int16)
                count += int((words != self.content(index, shape, box).view(self.torch.int16)).sum())
        return count

    def gloo(self):
        """Gather to the full tensor, broadcast it, cut it."""
        torch, dist = self.torch, self.dist
        for _, name, shape, dim, stage in self.plan:
            root, full = stage * TENSOR_PARALLEL, None
            if name in self.src:
                full = self.src[name].full_tensor()
            if self.rank != root and name not in self.dst:
                continue
            if full is None:
                full = torch.empty(shape, dtype=torch.bfloat16)
            dist.broadcast(full, root, group=self.groups[stage])
            if name in self.dst:
                tensor = self.dst[name]
                place = tensor.device_mesh.get_coordinate()
                for axis, (start, length) in enumerate(
                        self.box(shape, dim, tensor.device_mesh.size(1), place[1])):
                    full = full.narrow(axis, start, length)
                tensor.to_local().copy_(full)

    def largest(self, value):
        cell = self.torch.tensor([float(value)], dtype=self.torch.float64)
        self.dist.all_reduce(cell, op=self.dist.ReduceOp.MAX)
        return float(cell)


class Memory:
    """The most that this process held beyond what it held at first, in bytes."""

    def __init__(self):
        with open("/proc/self/clear_refs", "w", encoding="ascii") as file:
            file.write("5")  # forgets the greatest size so far
        self.first = self.field("VmRSS")

    @staticmethod
    def field(name):
        with open("/proc/self/status", encoding="ascii") as file:
            for line in file:
                if line.startswith(name + ":"):
                    return int(line.split()[1]) * 1024
        raise KeyError(name)

    def extra(self):
        return max(0, self.field("VmHWM") - self.first)


def run_rank(options):
    import datetime

    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=600))
    rank = Rank(options)
    sys.path.insert(0, os.path.join(SOURCES, "plugins/python/src"))
    from crossmesh.torch import StateDictTransfer

    result = {way: {"time_s": [], "extra_bytes": 0, "wrong": 0} for way in WAYS}
    memory = Memory()
    start = time.perf_counter()
    transfer = StateDictTransfer(rank.src or None, rank.dst or None)
    result["crossmesh"]["plan_s"] = rank.largest(time.perf_counter() - start)
    result["crossmesh"]["extra_bytes"] = rank.largest(memory.extra())
    for run in range(options.runs + 1):  # the first connects and is not counted
        for way in WAYS:
            rank.poison()
            dist.barrier()
            memory = Memory()
            start = time.perf_counter()
            if way == "crossmesh":
                transfer.run()
            else:
                rank.gloo()
            seconds = rank.largest(time.perf_counter() - start)
            entry = result[way]
            entry["extra_bytes"] = max(entry["extra_bytes"], rank.largest(memory.extra()))
            wrong = rank.largest(rank.wrong())
            entry["wrong"] += int(wrong)
            if run > 0:
                entry["time_s"].append(seconds)
            if rank.rank == 0:
                print(f"# run {run}{' (warm-up)' if run == 0 else ''}: {way} {seconds:.3f} s", flush=True)
    transfer.close()
    status = report(options, result) if rank.rank == 0 else 0
    dist.barrier()
    dist.destroy_process_group()
    return status


def report(options, result):
    count = sum(1 for _ in parameters(options))
    elements = 0
    for _, shape, _, _ in parameters(options):
        size = 1
        for extent in shape:
            size *= extent
        elements += size
    print(f"# {count} tensors, {elements / 1e9:.3f} billion parameters, {2 * elements / 1e9:.3f} GB, planned in "
          f"{result['crossmesh']['plan_s']:.2f} s")
    print("#     way   median (s)   GB/s   extra (MiB)   #wrong")
    median = {}
    for way in WAYS:
        entry = result[way]
        median[way] = statistics.median(entry["time_s"])
        print(f"{way:>9} {median[way]:12.3f} {2 * elements / median[way] * 1e-9:6.3f} "
              f"{entry['extra_bytes'] / 2**20:13.1f} {entry['wrong']:8d}")
    ratio = median["gloo"] / median["crossmesh"]
    extra = result["crossmesh"]["extra_bytes"] / 2**20
    bad = result["crossmesh"]["wrong"] + result["gloo"]["wrong"]
    fine = ratio >= WANTED_RATIO and extra <= WANTED_MIB and bad == 0
    print(f"gloo / crossmesh {ratio:.2f} (wanted {WANTED_RATIO:g}), extra memory {extra:.1f} MiB a rank "
          f"(wanted {WANTED_MIB}): {'OK' if fine else 'FAILED'}", flush=True)
    if options.json_file:
        with open(options.json_file, "w", encoding="utf-8") as file:
            json.dump({"version": 1, "parameters": elements, "nic": options.nic, "results": result,
                       "ratio": ratio}, file, indent=1)
            file.write("\n")
    return 0 if fine else 1


# The cluster ---------------------------------------------------------------------------------------------


def run_cluster(options):
    sys.path.insert(0, os.path.join(HERE, "evaluation"))
    from lab import Cluster, Failed

    library = os.path.join(os.path.abspath(options.build), "libcrossmesh.so")
    if not os.path.exists(library):
        sys.exit(f"state_dict_bench: {library} is missing")
    arguments = [sys.executable, os.path.abspath(__file__), options.build, "--rank",
                 "--layers", str(options.layers), "--hidden", str(options.hidden),
                 "--vocabulary", str(options.vocabulary), "--runs", str(options.runs), "--nic", options.nic]
    if options.json_file:
        arguments += ["-J", os.path.abspath(options.json_file)]
    try:
        with Cluster(options.build, HOSTS, RANKS_PER_HOST, nic=options.nic) as cluster:
            cluster.job(arguments, environment=["GLOO_SOCKET_IFNAME=nic0", "OMP_NUM_THREADS=1",
                                                f"CROSSMESH_LIBRARY={library}"])
    except Failed as error:
        print(f"state_dict_bench: {error}", file=sys.stderr)
        return 1
    return 0


def positive(text):
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not positive")
    return value


def main():
    parser = argparse.ArgumentParser(prog="state_dict_bench", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", metavar="BUILD_DIRECTORY")
    parser.add_argument("--layers", type=positive, default=18, help="of the decoder (default 18)")
    parser.add_argument("--hidden", type=positive, default=2048, help="its width (default 2048)")
    parser.add_argument("--vocabulary", type=positive, default=32000, help="its words (default 32000)")
    parser.add_argument("--runs", type=positive, default=3, help="timed runs of each way (default 3)")
    parser.add_argument("--nic", default="1gbit", help="rate of a host's NIC (default 1gbit)")
    parser.add_argument("-J", "--json-file", metavar="OUT.json", help="write the figures to a file")
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    return run_rank(options) if options.rank else run_cluster(options)


if __name__ == "__main__":
    sys.exit(main())
