# SPDX-License-Identifier: Apache-2.0
"""What is moved: the tensors of a plan that reshard-bench wrote, as torch_peer.py lays one out."""

import itertools
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "../peers"))
from torch_peer import Slot, indices, intersect, volume  # noqa: E402


def holders_of(side, box):
    """The distinct tiles of a layout that have a part of `box`: (part, ranks that hold it)."""
    return [(part, ranks) for tile, ranks in side.holders.items() if (part := intersect(tile, box)) is not None]


class Case:
    """`rank` has tiles; −1 has none. With `colocated` the ranks of the destination begin with those of the source."""

    def __init__(self, plan, colocated, rank):
        first = min(min(entry["dst"]["ranks"]) for entry in plan["tensors"]) if colocated else 0
        self.tensors = []
        for index, entry in enumerate(plan["tensors"]):
            to = {**entry["dst"], "ranks": [rank - first for rank in entry["dst"]["ranks"]]}
            self.tensors.append(Slot({**entry, "case": entry["name"], "dtype": "bfloat16", "dst": to}, rank))
            self.tensors[-1].index = index
        self.bytes = sum(tensor.bytes for tensor in self.tensors)

    def change(self, number, density):
        """Other bytes in so many per cent of the elements, the same ones at both ends; `number` says which."""
        for tensor in self.tensors:
            for tile, box in ((tensor.src_tile, tensor.src_box), (tensor.expected, tensor.dst_box)):
                if tile is not None:
                    mixed = (indices(box, tensor.shape) + number * 7919) * 0x2545F4914F6CDD1D
                    tile[(mixed ^ mixed >> 29) * 0x5851F42D4C957F2D >> 24 & 0xFFFFFF < density / 100 * 2**24] ^= 1 + number

    @staticmethod
    def fetches(tensor, to):
        """What one rank fetches by itself: (box, from whom), from itself where it can, else holders in turn."""
        for box, ranks in holders_of(tensor.src, tensor.dst.box_of_rank[to]):
            yield box, to if to in ranks else ranks[tensor.dst.ranks.index(to) % len(ranks)]

    def least_carried(self, per_host):
        """Bytes that the busiest NIC carries at least: into a host what none of its ranks holds; out of a set of
        hosts, each by an equal share, what only they hold and another wants."""
        into, held = {}, {}
        for tensor in self.tensors:
            sides = tensor.src.box_of_rank, tensor.dst.box_of_rank
            edges = [sorted({edge for side in sides for box in side.values() for edge in box[dim]})
                     for dim in range(len(tensor.shape))]
            for cell in itertools.product(*(list(zip(cut, cut[1:])) for cut in edges)):
                size = volume(cell) * tensor.element_size
                have, want = ({r // per_host for r, box in side.items() if intersect(cell, box)} for side in sides)
                for host in want - have:
                    into[host] = into.get(host, 0) + size
                if want - have:
                    held[frozenset(have)] = held.get(frozenset(have), 0) + size
        out = [sum(size for hosts, size in held.items() if hosts <= group) / len(group) for group in held]
        return max([*into.values(), *out], default=0)
