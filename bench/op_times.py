#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures how long operators take on one device, and puts the times into a cluster profile.

    op_times.py CLUSTER.json -o OUT.json [--numpy] [--seconds 0.2] [--threads N]

PyTorch measures where it is installed, on a GPU if there is one; NumPy elsewhere. Every operator
runs at several sizes, each until its share of the time is up and at least three times; the median
counts. What the numbers mean: docs/cluster-profile.md.
"""
import argparse
import json
import statistics
import sys
import time

BYTES = 4  # everything in 32 bits
SIZES = (32, 128, 512, 2048)  # rows and columns


class Numpy:
    name = "NumPy"

    def __init__(self):
        import numpy  # pylint: disable=import-outside-toplevel
        self.np = numpy
        self.random = numpy.random.default_rng(1)

    def array(self, *shape):
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
    def __init__(self):
        import torch  # pylint: disable=import-outside-toplevel
        self.torch = torch
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self.name = f"PyTorch {torch.__version__} on " + (
            torch.cuda.get_device_name() if self.device == "cuda" else "the CPU")

    def array(self, *shape):
        return self.torch.randn(*shape, device=self.device)

    def indices(self, count, limit):
        return self.torch.randint(0, limit, (count,), device=self.device)

    def softmax(self, x):
        return self.torch.softmax(x, -1)

    def layer_norm(self, x, scale, shift):
        return self.torch.nn.functional.layer_norm(x, x.shape[-1:], scale, shift)

    def finish(self):
        if self.device == "cuda":
            self.torch.cuda.synchronize()


def cases(lib, n):
    """(kind, FLOPs, bytes, run) of every operator on n x n numbers."""
    a, b, c = (lib.array(n, n) for _ in range(3))
    vector, rows = lib.array(n), lib.indices(n, n)
    square = n * n
    yield "einsum", 2 * square * n, 3 * square * BYTES, lambda: a @ b
    yield "elementwise", square, 3 * square * BYTES, lambda: a + b
    yield "reduce", square, square * BYTES, lambda: a.sum(0)
    yield "softmax", 5 * square, 2 * square * BYTES, lambda: lib.softmax(a)
    yield "layer_norm", 8 * square, 2 * square * BYTES, lambda: lib.layer_norm(a, vector, vector)
    yield "embedding", 0, 2 * square * BYTES + 8 * n, lambda: a[rows]
    yield "update", 2 * square, 3 * square * BYTES, lambda: c.__isub__(b * 1e-9)


def median_seconds(lib, run, budget):
    run()
    lib.finish()
    times, end = [], time.perf_counter() + budget
    while len(times) < 3 or time.perf_counter() < end:
        start = time.perf_counter()
        run()
        lib.finish()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("profile", help="cluster profile, as autopar probe writes it")
    parser.add_argument("-o", "--output", required=True, help="where the profile with the times goes")
    parser.add_argument("--numpy", action="store_true", help="NumPy, also where PyTorch is installed")
    parser.add_argument("--seconds", type=float, default=0.2, help="for each operator and size (0.2)")
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
    entries = []
    for n in SIZES:
        for kind, flops, moved, run in cases(lib, n):
            seconds = median_seconds(lib, run, given.seconds)
            entries.append({"op": kind, "flops": float(flops), "bytes": float(moved), "seconds": seconds})
            print(f"{kind:12} {n:5} {flops:12.4g} FLOP {moved:12.4g} B {1e6 * seconds:12.2f} us "
                  f"{1e-9 * flops / seconds:9.2f} GFLOP/s {1e-9 * moved / seconds:8.2f} GB/s")
    profile["version"] = 2
    profile["op_times"] = entries
    profile["provenance"] += f"; times of operators measured with {lib.name}"
    with open(given.output, "w", encoding="utf-8") as file:
        json.dump(profile, file, indent=1)
        file.write("\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
