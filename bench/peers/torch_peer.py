#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Reshards tensors as users of PyTorch do, on the ranks of torchrun, and checks every byte.

The cases come from a document of reshard-bench, so that the same ranks hold the same boxes:

    reshard-bench -n 16 --suite alpa --scale 1/64 --dry-run -J cases.json
    torchrun --nproc-per-node 4 … torch_peer.py cases.json -J result.json     # RANK, WORLD_SIZE, …
    torch_peer.py cases.json -n 16                                            # 16 local processes

docs/peers.md tells what the methods do.
"""

import argparse
import datetime
import json
import math
import os
import re
import signal
import socket
import statistics
import sys
import tempfile
import time

try:
    import torch
    import torch.distributed as dist
except ImportError as error:
    sys.exit(f"torch_peer: PyTorch cannot be imported: {error}")

WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
ELEMENT_SIZES = {
    "int8": 1, "uint8": 1, "bool": 1,
    "int16": 2, "float16": 2, "bfloat16": 2,
    "int32": 4, "float32": 4,
    "int64": 8, "float64": 8, "complex64": 8, "complex128": 16,
    "bf16": 2, "f16": 2, "half": 2, "f32": 4, "float": 4, "f64": 8, "double": 8, "fp8_e4m3": 1, "fp8_e5m2": 1,
}


class BadInput(Exception):
    """What the caller has to put right; the text is the sentence for it."""


# Layouts -------------------------------------------------------------------------------------------
# A box is a tuple of (lo, hi) pairs, one a dimension.


def cut(lo, hi, parts, index, partition):
    """Part `index` of [lo, hi), cut into `parts` as docs/reshard-bench.md says of --partition."""
    size = hi - lo
    if partition == "balanced":
        least, longer = divmod(size, parts)
        start = index * least + min(index, longer)
        return lo + start, lo + start + least + (index < longer)
    if partition == "even" and size % parts != 0:
        raise BadInput(f"{size} elements do not divide into {parts} parts")
    piece = -(-size // parts)
    return lo + min(size, index * piece), lo + min(size, (index + 1) * piece)


class Layout:
    """One side of a case: which rank holds which box."""

    def __init__(self, side, shape):
        self.sizes = [int(size) for size in side["mesh"].split("x")]
        self.ranks = side["ranks"]
        self.shape = shape
        self.partition = side["partition"]
        self.cuts = side.get("cuts")
        self.axes = [
            [int(axis) for axis in token[1:]] for token in re.findall(r"R|S\d+", side["spec"])
        ]
        if len(self.axes) != len(shape) or len(self.ranks) != math.prod(self.sizes):
            raise BadInput(f"mesh, ranks, spec {side['spec']} and shape {shape} do not fit")
        self.boxes = [self._box(position) for position in range(len(self.ranks))]
        self.box_of_rank = dict(zip(self.ranks, self.boxes))
        self.holders = {}  # of each box that is not empty, in mesh order
        for rank, box in self.box_of_rank.items():
            if volume(box) > 0:
                self.holders.setdefault(box, []).append(rank)

    def _coordinate(self, position, axis):
        return position // math.prod(self.sizes[axis + 1 :]) % self.sizes[axis]

    def _range(self, dim, position):
        lo, hi, part = 0, self.shape[dim], 0
        for axis in self.axes[dim]:
            index = self._coordinate(position, axis)
            part = part * self.sizes[axis] + index
            if self.partition != "explicit":
                lo, hi = cut(lo, hi, self.sizes[axis], index, self.partition)
        if self.partition == "explicit" and self.axes[dim]:
            lo, hi = self.cuts[dim][part], self.cuts[dim][part + 1]
        return lo, hi

    def _box(self, position):
        return tuple(self._range(dim, position) for dim in range(len(self.shape)))


def volume(box):
    return math.prod(hi - lo for lo, hi in box)


def intersect(a, b):
    """The common part of two boxes, or None when it is empty."""
    common = tuple((max(x[0], y[0]), min(x[1], y[1])) for x, y in zip(a, b))
    return common if all(lo < hi for lo, hi in common) else None


# One rank's part in one case -----------------------------------------------------------------------


def indices(box, shape):
    """Row-major index in the whole tensor of every element of a box."""
    result = torch.zeros([hi - lo for lo, hi in box], dtype=torch.int64)
    stride = 1
    for dim in reversed(range(len(shape))):
        steps = torch.arange(box[dim][0], box[dim][1], dtype=torch.int64) * stride
        result += steps.reshape([-1] + [1] * (len(shape) - 1 - dim))
        stride *= shape[dim]
    return result


def wire(tensor):
    """A contiguous tensor as the bytes that gloo moves whatever the type is."""
    return tensor.reshape(-1).view(torch.uint8)


class Slot:
    """The tiles of this rank, filled with numbers that follow from their places."""

    def __init__(self, entry, rank):
        self.name = entry["case"]
        self.rank = rank
        if "shape" not in entry:
            raise BadInput(f"case {self.name} has many tensors, and the peers move one at a time")
        self.shape = list(entry["shape"])
        self.dtype = entry["dtype"]
        self.element_size = ELEMENT_SIZES[self.dtype]
        self.bytes = math.prod(self.shape) * self.element_size
        try:
            self.src = Layout(entry["src"], self.shape)
            self.dst = Layout(entry["dst"], self.shape)
        except BadInput as error:
            raise BadInput(f"case {self.name}: {error}") from None
        self.src_box = self.src.box_of_rank.get(rank)
        self.dst_box = self.dst.box_of_rank.get(rank)
        self.src_tile = None if self.src_box is None else self.data(self.src_box)
        self.expected = None if self.dst_box is None else self.data(self.dst_box)
        self.dst_tile = None if self.dst_box is None else torch.empty_like(self.expected)

    def data(self, box):
        """What a box holds. Elements of 16 bytes are two words along a last dimension of their own."""
        index = indices(box, self.shape)
        if self.element_size == 16:
            return torch.stack((index, ~index), dim=-1)
        if self.element_size < 4:
            index = index * 2654435761 >> 13  # neighbours and rows differ in the few bits left
        return index.to(WORDS[self.element_size])

    def empty(self, box):
        words = [2] if self.element_size == 16 else []
        return torch.empty([hi - lo for lo, hi in box] + words,
                           dtype=WORDS[min(self.element_size, 8)])

    def poison(self):
        if self.dst_tile is not None:
            torch.bitwise_not(self.expected, out=self.dst_tile)

    def wrong(self):
        if self.dst_tile is None or torch.equal(self.dst_tile, self.expected):  # which takes no memory
            return 0
        return int((wire(self.dst_tile) != wire(self.expected)).sum())


def part_of(tile, tile_box, box):
    """The view of a box inside a tile."""
    return tile[tuple(slice(lo - base, hi - base) for (lo, hi), (base, _) in zip(box, tile_box))]


# Methods -------------------------------------------------------------------------------------------


class Transfer:
    """A box on its way, straight between tile and wire where it is contiguous there."""

    def __init__(self, slot, tile, tile_box, box, peer):
        self.part = part_of(tile, tile_box, box)
        self.staging = self.part if self.part.is_contiguous() else slot.empty(box)
        self.bytes = wire(self.staging)
        self.peer = peer

    def pack(self):
        if self.staging is not self.part:
            self.staging.copy_(self.part)

    def place(self):
        if self.staging is not self.part:
            self.part.copy_(self.staging)


def exchange(sends, receives):
    """Packs, moves and places the boxes of this rank by one batch of point-to-point operations."""
    for send in sends:
        send.pack()
    operations = [dist.P2POp(dist.irecv, r.bytes, r.peer) for r in receives]
    operations += [dist.P2POp(dist.isend, s.bytes, s.peer) for s in sends]
    if operations:
        for request in dist.batch_isend_irecv(operations):
            request.wait()
    for receive in receives:
        receive.place()


class BatchIsendIrecv:
    """Every destination rank fetches every box it lacks from one rank that holds it."""

    def __init__(self, slot, groups):
        del groups
        self.sends, self.receives, self.copies = [], [], []
        for position, to in enumerate(slot.dst.ranks):
            for tile_box, holders in slot.src.holders.items():
                box = intersect(tile_box, slot.dst.boxes[position])
                if box is None:
                    continue
                sender = to if to in holders else holders[position % len(holders)]
                if sender == to == slot.rank:
                    self.copies.append((part_of(slot.dst_tile, slot.dst_box, box),
                                        part_of(slot.src_tile, slot.src_box, box)))
                elif to == slot.rank:
                    self.receives.append(Transfer(slot, slot.dst_tile, slot.dst_box, box, sender))
                elif sender == slot.rank:
                    self.sends.append(Transfer(slot, slot.src_tile, slot.src_box, box, to))

    def run(self):
        for to, origin in self.copies:
            to.copy_(origin)
        exchange(self.sends, self.receives)


class GatherBroadcast:
    """One source rank gathers the whole tensor and broadcasts it; all take their slices."""

    def __init__(self, slot, groups):
        root = slot.src.ranks[0]
        whole = tuple((0, extent) for extent in slot.shape)
        self.slot, self.root, self.whole = slot, root, whole
        members = tuple(sorted({root, *slot.dst.ranks}))
        self.group = groups.get(members)
        self.full = slot.empty(whole) if slot.rank in members else None
        self.sends, self.receives, self.own = [], [], None
        for box, holders in slot.src.holders.items():
            if root in holders:
                self.own = box
            elif slot.rank == root:
                self.receives.append(Transfer(slot, self.full, whole, box, holders[0]))
            elif slot.rank == holders[0]:
                self.sends.append(Transfer(slot, slot.src_tile, slot.src_box, box, root))

    def run(self):
        slot = self.slot
        if slot.rank == self.root and self.own is not None:
            part_of(self.full, self.whole, self.own).copy_(slot.src_tile)
        exchange(self.sends, self.receives)
        if self.full is not None:
            if self.group is not None:
                dist.broadcast(wire(self.full), self.root, group=self.group)
            if slot.dst_tile is not None:
                slot.dst_tile.copy_(part_of(self.full, self.whole, slot.dst_box))


METHODS = {"gather_broadcast": GatherBroadcast, "batch_isend_irecv": BatchIsendIrecv}


class Groups:
    """Process groups by their ranks, each made once. All ranks ask for the same ones in one order."""

    def __init__(self):
        self.made = {}

    def get(self, ranks):
        if len(ranks) < 2:
            return None
        if ranks not in self.made:
            self.made[ranks] = dist.new_group(list(ranks))
        return self.made[ranks]


# Measuring -----------------------------------------------------------------------------------------


def measure(slot, method, options):
    """What the runs took: each as long as its slowest rank; bytes that were wrong in any of them."""
    seconds, cpu_s, wrong = [], 0.0, 0
    for run in range(options.warmup + options.iterations):
        slot.poison()
        dist.barrier()
        cpu, start = time.process_time(), time.perf_counter()
        method.run()
        slowest = torch.tensor([time.perf_counter() - start], dtype=torch.float64)
        busy = torch.tensor([time.process_time() - cpu], dtype=torch.float64)
        bad = torch.tensor([slot.wrong() if options.validate else 0])
        dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
        dist.all_reduce(busy)
        dist.all_reduce(bad)
        wrong += int(bad)
        if run >= options.warmup:
            seconds.append(float(slowest))
            cpu_s += float(busy) / options.iterations
    return seconds, cpu_s, wrong


def result_of(slot, name, measured, options):
    seconds, cpu_s, wrong = measured
    median = statistics.median(seconds)
    result = {
        "case": slot.name,
        "peer": f"torch-{name}",
        "shape": slot.shape,
        "dtype": slot.dtype,
        "transport": "gloo",
        "bytes": slot.bytes,
        "time_s": {"min": min(seconds), "median": median, "max": max(seconds),
                   "mean": statistics.fmean(seconds), "variance": statistics.pvariance(seconds),
                   "all": seconds},
        "cpu_s": cpu_s,
        "algbw_GBps": slot.bytes / median * 1e-9,
    }
    if options.validate:
        result["wrong"] = wrong
    return result


def print_row(result):
    times = [result["time_s"][key] * 1e6 for key in ("min", "median", "max")]
    print("%12s %13d %-24s %11.1f %11.1f %11.1f %8.3f %8s"
          % (result["case"], result["bytes"], result["peer"], *times, result["algbw_GBps"],
             result.get("wrong", "-")), flush=True)


def run_cases(document, options):
    """All cases by all methods; returns the results, equal on all ranks."""
    groups, results, rank = Groups(), [], dist.get_rank()
    for entry in document["results"]:
        slot = Slot(entry, rank)
        if max(slot.src.ranks + slot.dst.ranks) >= dist.get_world_size():
            raise BadInput(f"case {slot.name} needs rank {max(slot.src.ranks + slot.dst.ranks)}, "
                           f"but the job has {dist.get_world_size()} ranks")
        for name in options.methods:
            method = METHODS[name](slot, groups)
            results.append(result_of(slot, name, measure(slot, method, options), options))
            if rank == 0:
                print_row(results[-1])
    return results


def describe_ranks():
    own = {"rank": dist.get_rank(), "name": socket.gethostname(), "pid": os.getpid()}
    ranks = [None] * dist.get_world_size()
    dist.all_gather_object(ranks, own)
    return ranks


def run_rank(document, options, **rendezvous):
    """This process as one rank of the job: its exit status."""
    dist.init_process_group(
        "gloo", timeout=datetime.timedelta(seconds=options.timeout), **rendezvous
    )
    ranks = describe_ranks()
    if dist.get_rank() == 0:
        print(f"# torch_peer, PyTorch {torch.__version__}, gloo  (us = 1e-6 s, GB = 1e9 B)")
        print(f"# ranks {len(ranks)}, warm-up {options.warmup}, runs {options.iterations}, "
              f"validate {'yes' if options.validate else 'no'}")
        print("#%11s %13s %-24s %11s %11s %11s %8s %8s"
              % ("case", "size (B)", "peer", "min (us)", "median (us)", "max (us)", "GB/s",
                 "#wrong"))
    results = run_cases(document, options)
    wrong = sum(result.get("wrong", 0) for result in results)
    if dist.get_rank() == 0:
        print(f"# Out of bounds values : {wrong} {'OK' if wrong == 0 else 'FAILED'}", flush=True)
        if options.json_file:
            write_document(document, options, ranks, results)
    dist.barrier()
    dist.destroy_process_group()
    return 1 if wrong > 0 else 0


def write_document(document, options, ranks, results):
    config = {
        "ranks": len(ranks),
        "transport": "gloo",
        "library": f"PyTorch {torch.__version__}",
        "partition": document["config"]["partition"],
        "scale_divisor": document["config"]["scale_divisor"],
        "warmup": options.warmup,
        "iterations": options.iterations,
        "validate": options.validate,
    }
    if options.protocol:
        config["protocol"] = options.protocol
    with open(options.json_file, "w", encoding="utf-8") as file:
        json.dump({"version": document["version"], "args": sys.argv, "config": config,
                   "ranks": ranks, "results": results}, file, indent=1)
        file.write("\n")


# The command ---------------------------------------------------------------------------------------


def start_ranks(document, options):
    """Forks local ranks (PyTorch is imported once) and waits for them: the worst exit status."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    running, worst = {}, 0
    with tempfile.TemporaryDirectory() as directory:
        for rank in range(options.ranks):
            pid = os.fork()
            if pid == 0:
                status = guarded(run_rank, document, options, rank=rank, world_size=options.ranks,
                                 init_method=f"file://{directory}/store")
                sys.stdout.flush()
                os._exit(status)
            running[pid] = rank
        while running:
            pid, status = os.wait()
            del running[pid]
            code = os.waitstatus_to_exitcode(status)
            if code != 0 and worst == 0:
                worst = abs(code)
                if code != 1:
                    for other in running:
                        os.kill(other, signal.SIGTERM)
    return worst


def guarded(function, *arguments, **keywords):
    """Calls what returns an exit status; bad input becomes one sentence and status 2."""
    try:
        return function(*arguments, **keywords)
    except (BadInput, OSError) as error:
        print(f"torch_peer: {error}", file=sys.stderr, flush=True)
        return 2
    except RuntimeError as error:  # of gloo: a peer died, a deadline passed
        print(f"torch_peer: {error}", file=sys.stderr, flush=True)
        return 3


def load(options):
    with open(options.cases, encoding="utf-8") as file:
        try:
            document = json.load(file)
        except ValueError as error:
            raise BadInput(f"{options.cases} is not JSON: {error}") from None
    if not isinstance(document, dict) or not document.get("results"):
        raise BadInput(f"{options.cases} has no results; make it by reshard-bench --dry-run -J")
    names = [entry["case"] for entry in document["results"]]
    for name in options.case:
        if name not in names:
            raise BadInput(f"{options.cases} has no case '{name}', only {', '.join(names)}")
    # Of several plans of a case, which are nothing to a peer, the first entry stands for all.
    entries = {entry["case"]: entry for entry in reversed(document["results"])}
    wanted = options.case or dict.fromkeys(names)
    document["results"] = [entries[name] for name in wanted]
    return document


def parse_methods(text):
    names = list(METHODS) if text == "all" else text.split(",")
    for name in names:
        if name not in METHODS:
            raise argparse.ArgumentTypeError(
                f"'{name}' is not one of {', '.join(METHODS)}, all"
            )
    return names


def positive(text):
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not positive")
    return value


def parse_arguments():
    parser = argparse.ArgumentParser(
        prog="torch_peer", description="Reshards as users of PyTorch do, checks and times it."
    )
    parser.add_argument("cases", metavar="CASES.json", help="document of reshard-bench --dry-run -J")
    parser.add_argument("--method", dest="methods", type=parse_methods, default=list(METHODS),
                        metavar="NAME[,NAME…]", help=f"{', '.join(METHODS)}, or all (default)")
    parser.add_argument("--case", action="append", default=[], metavar="NAME",
                        help="only this case of the document; may be repeated")
    parser.add_argument("-n", "--ranks", type=positive, metavar="N",
                        help="start N local ranks (default: join the job of RANK, WORLD_SIZE, …)")
    parser.add_argument("-w", "--warmup", type=int, metavar="W",
                        help="runs before those that are timed (default 1)")
    parser.add_argument("-i", "--iterations", type=positive, metavar="I",
                        help="timed runs (default 5)")
    parser.add_argument("--protocol", choices=["paper"],
                        help="paper: 13 runs, of which the first 3 are not timed")
    parser.add_argument("--no-validate", dest="validate", action="store_false",
                        help="check nothing")
    parser.add_argument("--timeout", type=positive, default=300, metavar="SECONDS",
                        help="deadline of every operation (default 300)")
    parser.add_argument("-J", "--json-file", metavar="OUT.json",
                        help="write one JSON document to a file")
    options = parser.parse_args()
    if options.protocol and (options.warmup is not None or options.iterations is not None):
        parser.error("--protocol says how many runs there are; leave -w and -i out")
    warmup, iterations = (3, 10) if options.protocol else (1, 5)
    options.warmup = warmup if options.warmup is None else options.warmup
    options.iterations = iterations if options.iterations is None else options.iterations
    return options


def main():
    options = parse_arguments()
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)
    document = load(options)
    if options.ranks:
        return start_ranks(document, options)
    if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
        raise BadInput("no launcher has started this process (RANK and WORLD_SIZE are not set) and "
                       "-n is not given")
    return run_rank(document, options)


if __name__ == "__main__":
    sys.exit(guarded(main))
