# SPDX-License-Identifier: Apache-2.0
"""Adasum by ranks of collective-bench against its definition, in numpy.

Environment: COLLECTIVE_BENCH.
"""

import os
import subprocess
import sys
import tempfile
import unittest

import numpy

BENCH = os.environ["COLLECTIVE_BENCH"]
MASK = (1 << 64) - 1


def contributions(ranks, elements):
    """What the bench's ranks begin with: 0, 1 or 2, by splitmix64."""
    x = numpy.add.outer(numpy.arange(ranks, dtype=numpy.uint64), numpy.arange(elements, dtype=numpy.uint64) * numpy.uint64(31))
    with numpy.errstate(over="ignore"):
        x = x + numpy.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> numpy.uint64(30))) * numpy.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> numpy.uint64(27))) * numpy.uint64(0x94D049BB133111EB)
    return ((x ^ (x >> numpy.uint64(31))) % numpy.uint64(3)).astype(numpy.float64)


def adasum(a, b):
    return (1 - a @ b / (2 * (a @ a))) * a + (1 - a @ b / (2 * (b @ b))) * b


def of_pairs(vectors):
    while len(vectors) > 1:
        vectors = [adasum(*vectors[i : i + 2]) if i + 1 < len(vectors) else vectors[i] for i in range(0, len(vectors), 2)]
    return vectors[0]


def bfloat16(data):
    return (numpy.frombuffer(data, numpy.uint16).astype(numpy.uint32) << 16).view(numpy.float32)


READ = {"float32": (lambda data: numpy.frombuffer(data, numpy.float32), 4, 1e-6),
        "float16": (lambda data: numpy.frombuffer(data, numpy.float16), 2, 2e-3),
        "bfloat16": (bfloat16, 2, 1.6e-2)}


class Adasum(unittest.TestCase):
    def test_definition(self):
        a, b = numpy.array([1.0, 0.0]), numpy.array([0.0, 2.0])
        self.assertTrue((adasum(a, b) == a + b).all())  # orthogonal: the sum
        self.assertTrue((adasum(a, a) == a).all())      # parallel: the mean

    def test_ranks(self):
        for mesh, ranks, elements, pieces in (("2x2", 4, 9001, 1), ("1x3", 3, 5000, 1), ("2x2", 4, 8000, 4)):
            for name, (read, size, tolerance) in READ.items():
                with self.subTest(mesh=mesh, type=name), tempfile.TemporaryDirectory() as place:
                    file = os.path.join(place, "result")
                    done = subprocess.run([BENCH, "--mesh", mesh, "--gbps", "1,20", "--run", "--reduction", "adasum", "--dtype", name,
                                           "--size", str(elements * size), "--pieces", str(pieces), "--result", file],
                                          capture_output=True, text=True, timeout=120)
                    self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
                    with open(file, "rb") as opened:
                        result = read(opened.read()).astype(numpy.float64)
                    whole = contributions(ranks, elements).reshape(ranks, pieces, -1)
                    expected = numpy.concatenate([of_pairs(list(whole[:, p])) for p in range(pieces)])
                    self.assertLess(numpy.abs(result - expected).max(), tolerance * numpy.abs(expected).max())
                    self.assertGreater(numpy.abs(expected - whole.sum(0).reshape(-1)).max(), 0.5)  # it is no sum


if __name__ == "__main__":
    sys.exit(unittest.main())
