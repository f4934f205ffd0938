#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures how long operators take on one device, and puts the times into a cluster profile.

    op_times.py CLUSTER.json -o OUT.json [--numpy] [--seconds 0.2] [--threads N] [--types float32,bfloat16,float16]

PyTorch measures where it is installed, on a GPU if there is one; NumPy elsewhere, in 32 bits only.
Every operator runs on numbers of each type and at several sizes, each until its share of the time
is up and at least three times; the median counts. On a GPU the rate of the fastest product of a
type is the device's rate of that type. What the numbers mean: docs/cluster-profile.md.
"""
import argparse
import json
import statistics
import sys
import time

BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
SIZES = (32, 128, 512, 2048)  # rows and columns


class Numpy:
    name = "NumPy"
    types = ("float32",)
    gpu = False

    def __init__(self):
        import numpy  # pylint: disable=import-outside-toplevel
        self.np = numpy
        self.random = numpy.random.default_rng(1)

    def array(self, _dtype, *shape):
        return self.random.standard_normal(shape, dtype=self.np.float32)

    def indices(self, count, limit):
        return self.random.integers(0, limit, count)

    def softmax(self, x):
        e = self.np.exp(x - x.max(axis=-1, keepdims=True))
        return e / e.sum(axis=-1, keepdims=True)

    def layer_norm(self, x, scale, shift):
        centred = x - x.mean(axis=-1, keepdims=True)
        return centred / self.np.sqrt((centred * centred).mean(axis=-1, keepdims=True) + 1e-5) * scale + shift

    @staticmethod
    def finish():
        """All is done when a call returns."""


class Torch:
    types = tuple(BYTES)

    def __init__(self):
        import torch  # pylint: disable=import-outside-toplevel
        self.torch = torch
        self.gpu = torch.cuda.is_available()
        self.device = "cuda" if self.gpu else "cpu"
        self.name = f"PyTorch {torch.__version__} on " + (
            torch.cuda.get_device_name() if self.device == "cuda" else "the CPU")

    def array(self, dtype, *shape):
        return self.torch.randn(*shape, device=self.device, dtype=getattr(self.torch, dtype))

    def indices(self, count, limit):
        return self.torch.randint(0, limit, (count,), device=self.device)

    def softmax(self, x):
        return self.torch.softmax(x, -1)

    def layer_norm(self, x, scale, shift):
        return self.torch.nn.functional.layer_norm(x, x.shape[-1:], scale, shift)

    def finish(self):
        if self.device == "cuda":
            self.torch.cuda.synchronize()


def cases(lib, dtype, n):
    """(kind, FLOPs, bytes, run) of every operator on n x n numbers of a type."""
    a, b, c = (lib.array(dtype, n, n) for _ in range(3))
    vector, rows = lib.array(dtype, n), lib.indices(n, n)
    square, size = n * n, BYTES[dtype]
    yield "einsum", 2 * square * n, 3 * square * size, lambda: a @ b
    yield "elementwise", square, 3 * square * size, lambda: a + b
    yield "reduce", square, square * size, lambda: a.sum(0)
    yield "softmax", 5 * square, 2 * square * size, lambda: lib.softmax(a)
    yield "layer_norm", 8 * square, 2 * square * size, lambda: lib.layer_norm(a, vector, vector)
    yield "embedding", 0, 2 * square * size + 8 * n, lambda: a[rows]
    yield "update", 2 * square, 3 * square * size, lambda: c.__isub__(b * 1e-9)


def median_seconds(lib, run, budget):
    """Of three runs at least; one that takes ten times the budget is run once."""
    start = time.perf_counter()
    run()
    lib.finish()
    first = time.perf_counter() - start
    if first > 10 * budget:
        return first
    times, end = [], time.perf_counter() + budget
    while len(times) < 3 or time.perf_counter() < end:
        start = time.perf_counter()
        run()
        lib.finish()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def measure(lib, types, seconds):
    """The entries of all operators; a type in which the library lacks an operator goes without it."""
    entries = []
    for dtype in types:
        for n in SIZES:
            for kind, flops, moved, run in cases(lib, dtype, n):
                try:
                    took = median_seconds(lib, run, seconds)
                except (NotImplementedError, RuntimeError) as error:
                    print(f"{kind:12} {dtype:8} {n:5} not measured: {error}")
                    continue
                entries.append({"op": kind, "flops": float(flops), "bytes": float(moved), "seconds": took,
                                "type": dtype})
                print(f"{kind:12} {dtype:8} {n:5} {flops:12.4g} FLOP {moved:12.4g} B {1e6 * took:12.2f} us "
                      f"{1e-9 * flops / took:9.2f} GFLOP/s {1e-9 * moved / took:8.2f} GB/s")
    return entries


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("profile", help="cluster profile, as autopar probe writes it")
    parser.add_argument("-o", "--output", required=True, help="where the profile with the times goes")
    parser.add_argument("--numpy", action="store_true", help="NumPy, also where PyTorch is installed")
    parser.add_argument("--seconds", type=float, default=0.2, help="for each operator and size (0.2)")
    parser.add_argument("--types", default=",".join(BYTES), help="of numbers (all that the library has)")
    parser.add_argument("--threads", type=int, help="of PyTorch on the CPU: what one device has")
    given = parser.parse_args()
    with open(given.profile, encoding="utf-8") as file:
        profile = json.load(file)
    try:
        lib = Numpy() if given.numpy else Torch()
    except ImportError:
        lib = Numpy()
    if given.threads and isinstance(lib, Torch):
        lib.torch.set_num_threads(given.threads)
    types = [dtype for dtype in given.types.split(",") if dtype in lib.types]
    if not types or not set(given.types.split(",")) <= set(BYTES):
        parser.error(f"--types: {given.types} is not a list of {', '.join(lib.types)}")
    entries = measure(lib, types, given.seconds)
    if lib.gpu:
        rates = profile["device"].setdefault("flop_per_s_of", {})
        for dtype in types:
            rates[dtype] = max((e["flops"] / e["seconds"] for e in entries
                                if e["op"] == "einsum" and e["type"] == dtype), default=rates.get(dtype))
    profile["version"] = 2
    profile["op_times"] = entries
    profile["provenance"] += f"; times of operators measured with {lib.name}"
    with open(given.output, "w", encoding="utf-8") as file:
        json.dump(profile, file, indent=1)
        file.write("\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
