#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What bench/xla_agreement.py reads of a compiled module: groups written by hand for each form."""
import os
import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(os.environ["SOURCE_DIR"]) / "bench"))
import xla_collectives as xla  # noqa: E402

ROWS = [[0, 1, 2, 3], [4, 5, 6, 7]]
COLUMNS = [[0, 4], [1, 5], [2, 6], [3, 7]]
GROUPS = {
    "replica_groups={{0,1,2,3},{4,5,6,7}}": ROWS,
    "replica_groups={}": [list(range(8))],
    "replica_groups=[2,4]<=[8]": ROWS,
    "replica_groups=[4,2]<=[2,4]T(1,0)": COLUMNS,
    "replica_groups=[1,8]<=[8]": [list(range(8))],
    "replica_groups=mesh['axis_0'=2,'axis_1'=4] {'axis_1'}": ROWS,
    "replica_groups=mesh['axis_0'=2,'axis_1'=4] {'axis_0'}": COLUMNS,
    "replica_groups=mesh['x'=2,'y'=4] {'x','y'}": [list(range(8))],
    "replica_groups=mesh[x=2,y=4] {y}": ROWS,
    # The first or the last part of an axis of four.
    "replica_groups=mesh['x'=2,'y'=4] {'y':(1)2}": [[0, 2], [1, 3], [4, 6], [5, 7]],
    "replica_groups=mesh['x'=2,'y'=4] {y:(2)2}": [[0, 1], [2, 3], [4, 5], [6, 7]],
    "replica_groups=mesh['a'=4,'b'=1,'c'=2], device_ids=([2,4]T(1,0)) {'c'}": COLUMNS,
    "replica_groups=mesh['a'=4,'b'=1,'c'=2], device_ids=([2,4]T(1,0)) {'a'}": ROWS,
    "replica_groups=mesh['a'=2,'b'=2,'c'=2], device_ids=(0,4,1,5,2,6,3,7) {'c'}": COLUMNS,
    "source_target_pairs={{0,1},{1,2}}": [[0, 1], [1, 2]],
}
UNREADABLE = (
    "replica_groups=[2,4]<=[4]",                              # four devices of eight
    "replica_groups=[2,4]<=[2,4]T(1)",
    "replica_groups={{0,1},{2,3,4}}",
    "replica_groups={{0,1,2,3},{3,4,5,6}}",
    "replica_groups=mesh['x'=2,'y'=4] {'z'}",
    "replica_groups=mesh['x'=2,'y'=2] {'x'}",
    "replica_groups=mesh['x'=2,'y'=4] {'y':(1)2,'y':(2)2}",
    "replica_groups=mesh['x'=2,'y'=4], device_ids=(something) {'x'}",
    "replica_groups=ring(8)",
    "dimensions={0}",
)
MODULE = """HloModule jit_step

add {
  %l = f32[] parameter(0)
}

body {
  %p = (s32[], f32[8]{0}) parameter(0)
  %part = f32[8]{0} get-tuple-element(%p), index=1
  %sum = f32[8]{0} all-reduce(%part), replica_groups=mesh['x'=2,'y'=4] {'y'}, to_apply=%add
}

condition {
  %q = (s32[], f32[8]{0}) parameter(0)
}

ENTRY main {
  %a = f32[8]{0} parameter(0)
  %one = f32[] constant(1)
  %ones = f32[16]{0} all-gather(%one), replica_groups=[4,2]<=[2,4]T(1,0), dimensions={0}
  %both = (f32[8]{0}, f32[4]{0}) all-reduce(%a, %a), replica_groups=[1,8]<=[8], to_apply=%add
  %state = (s32[], f32[8]{0}) tuple(%one, %a)
  %loop = (s32[], f32[8]{0}) while(%state), condition=%condition, body=%body, backend_config={"known_trip_count":{"n":"3"}}
}
"""


def line(groups):
    return f"%x = f32[8]{{0}} all-gather(%y), channel_id=1, {groups}, metadata={{op_name=\"a\"}}"


class Collectives(unittest.TestCase):
    def test_groups(self):
        for text, groups in GROUPS.items():
            with self.subTest(text):
                self.assertEqual(xla.groups_of(line(text), 8), groups)

    def test_refusals(self):
        for text in UNREADABLE:
            with self.subTest(text), self.assertRaises(xla.Unreadable) as raised:
                xla.groups_of(line(text), 8)
            self.assertIn(text, str(raised.exception))
        with self.assertRaises(xla.Unreadable):
            xla.collective_of("%x = f32[8] ragged-all-to-all(%y), replica_groups=[2,4]<=[8]")
        with self.assertRaises(xla.Unreadable):
            xla.trip_count({"c": []}, "%w = (s32[]) while(%s), condition=%c, body=%b")

    def test_what_is_counted(self):
        found = xla.performed(MODULE, (2, 4))
        # A loop's counts as often as it runs, an operand of a combined one by itself, constants not.
        self.assertEqual(dict(found), {("all-reduce", (1,)): [3, 3 * 32.0],
                                       ("all-reduce", (0, 1)): [2, 48.0]})
        self.assertEqual(dict(xla.per_axis(found, (2, 4))), {("all-reduce", 0): [2, 48.0],
                                                            ("all-reduce", 1): [5, 144.0]})
        self.assertAlmostEqual(xla.price(xla.per_axis(found, (2, 4)), (2, 4)),
                               2 + 48 + 5 + 0.1 * 1.5 * 144)


if __name__ == "__main__":
    unittest.main()
