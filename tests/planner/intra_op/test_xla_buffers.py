#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Buffers of small modules, counted by hand: what autopar predicts, what is read of XLA's dumps."""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(os.environ["SOURCE_DIR"]) / "bench"))
import xla_memory  # noqa: E402

AUTOPAR = pathlib.Path(os.environ["BUILD_DIR"]) / "planner/cli/autopar"
TILE = 64 * 64 * 4
TEXT = """HloModule step

ENTRY main {
  x = f32[64,64]{1,0} parameter(0)
  w = f32[64,64]{1,0} parameter(1)
%s
}
"""
# Both arguments live all the time; the numbers count the tiles besides, at the busiest moment.
PEAKS = (
    # The second product reads the first.
    (2, "d = f32[64,64] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}",
     "ROOT e = f32[64,64] dot(d, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}"),
    # The product's place is taken by its sine, and that by the result: t * t is nowhere.
    (1, "d = f32[64,64] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}",
     "t = f32[64,64] sine(d)", "m = f32[64,64] multiply(t, t)", "ROOT a = f32[64,64] add(m, t)"),
    # A transposition is another view of the product.
    (2, "d = f32[64,64] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}",
     "v = f32[64,64] transpose(d), dimensions={1,0}",
     "ROOT e = f32[64,64] dot(v, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}"),
    # What is cheap is computed in the product's readers, but products read buffers.
    (3, "d = f32[64,64] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}",
     "n = f32[64,64] negate(d)",
     "e = f32[64,64] dot(n, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}",
     "ROOT a = f32[64,64] add(e, d)"),
)
OPTIMISED = """HloModule step, is_scheduled=true

ENTRY main (x: f32[4]) -> f32[4] {
  %x = f32[2,2]{1,0} parameter(0)
  %kept = f32[2,2]{1,0} copy(%x)
  %product = f32[2,2]{1,0} dot(%kept, %kept)
  %turned = f32[2,2]{0,1} copy(%product)
  ROOT %sum = f32[2,2]{1,0} dot(%turned, %product)
}
"""
BUFFERS = """BufferAssignment:
allocation 0: size 16, parameter 0, shape |f32[2,2]| at ShapeIndex {}, maybe-live-out:
 value: <0 x @0> (size=16,offset=0): f32[2,2]{1,0}
 value: <4 sum @0> (size=16,offset=0): f32[2,2]{1,0}
allocation 1: size 48, preallocated-temp:
 value: <1 kept @0> (size=16,offset=0): f32[2,2]{1,0}
 value: <2 product @0> (size=16,offset=16): f32[2,2]{1,0}
 value: <3 turned @0> (size=16,offset=32): f32[2,2]{1,0}
"""
TIMES = """HloLiveRange (max 5):
  BufferLiveRange:
    x{}:0-1
    kept{}:1-3
    product{}:2-4
    turned{}:3-4
    sum{}:4-5
"""


def predicted(lines):
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "step.hlo"
        path.write_text(TEXT % "\n".join("  " + line for line in lines), encoding="utf-8")
        made = subprocess.run([AUTOPAR, "shard", path, "--mesh", "1", "--json"], text=True,
                              capture_output=True, check=True)
    return json.loads(made.stdout)["memory_bytes"]


class Buffers(unittest.TestCase):
    def test_fused(self):
        for tiles, *lines in PEAKS:
            with self.subTest(lines=lines):
                self.assertEqual(predicted(lines), (2 + tiles) * TILE)

    def test_depth_first(self):
        # The operand with more readers behind it comes first, whatever the text says.
        lines = ("a = f32[64,64] negate(x)", "b = f32[64,64] sine(w)", "c = f32[64,64] add(b, b)",
                 "d = f32[64,64] add(b, c)", "ROOT e = f32[64,64] add(a, d)")
        text = xla_memory.depth_first(TEXT % "\n".join("  " + line for line in lines))
        names = [line.split(" = ")[0].strip() for line in text.splitlines() if " = " in line]
        self.assertEqual(names, ["w", "b", "c", "d", "x", "a", "ROOT e"])

    def test_only_here(self):
        # Three tiles of 16 bytes beside the argument's at time 3; of them one is a copy of the
        # argument and one has another layout only.
        self.assertEqual(xla_memory.only_here(OPTIMISED, BUFFERS, TIMES), 32)

    def test_unreadable(self):
        with self.assertRaises(xla_memory.Unreadable):
            xla_memory.only_here(OPTIMISED, BUFFERS, "")


if __name__ == "__main__":
    unittest.main()
