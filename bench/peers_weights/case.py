# SPDX-License-Identifier: Apache-2.0
"""What is moved: the tensors of a plan that reshard-bench wrote, with the box of every rank on both sides."""

import itertools
import re


class Side:
    """One layout of a tensor."""

    def __init__(self, shape, layout, shift):
        self.sizes = [int(size) for size in layout["mesh"].split("x")]
        self.ranks = [rank - shift for rank in layout["ranks"]]
        # By dimension the mesh axes that cut it, the outermost first.
        self.axes = [tuple(map(int, digits)) for digits in re.findall(r"[RS](\d*)", layout["spec"])]
        places = itertools.product(*map(range, self.sizes))
        self.boxes = {rank: self._box(shape, layout, place) for rank, place in zip(self.ranks, places)}

    def _box(self, shape, layout, place):
        box = []
        for dim, extent in enumerate(shape):
            part, parts = 0, 1
            for axis in self.axes[dim]:
                part, parts = part * self.sizes[axis] + place[axis], parts * self.sizes[axis]
            step = -(-extent // parts)
            cuts = (layout.get("cuts") or {dim: None})[dim]
            start, end = (cuts[part], cuts[part + 1]) if cuts else (part * step, (part + 1) * step)
            box.append((min(start, extent), min(end, extent)))
        return tuple(box)

    def line(self, rank, cut):
        """The ranks that differ from `rank` in the mesh axes that cut something (`cut`), or else in the others."""
        used = {axis for axes in self.axes for axis in axes} or {len(self.sizes) - 1}
        places = list(itertools.product(*map(range, self.sizes)))
        own = places[self.ranks.index(rank)]
        return [other for other, place in zip(self.ranks, places)
                if all(place[axis] == own[axis] for axis in range(len(own)) if (axis in used) != cut)]


class Tensor:
    def __init__(self, index, entry, shift):
        self.index, self.name, self.shape = index, entry["name"], tuple(entry["shape"])
        self.element_size = entry["element_size"]
        self.src, self.dst = Side(self.shape, entry["src"], 0), Side(self.shape, entry["dst"], shift)


def intersect(a, b):
    box = tuple((max(x[0], y[0]), min(x[1], y[1])) for x, y in zip(a, b))
    return box if all(start < end for start, end in box) else None


def volume(box):
    elements = 1
    for start, end in box:
        elements *= end - start
    return elements


def part_of(tile, tile_box, box):
    """The view of a box in a tile."""
    return tile[tuple(slice(start - first, end - first) for (start, end), (first, _) in zip(box, tile_box))]


def holders_of(side, box):
    """The distinct tiles of a layout that have a part of `box`: (part, ranks that hold it)."""
    tiles = {}
    for rank, tile in side.boxes.items():
        tiles.setdefault(tile, []).append(rank)
    return [(part, ranks) for tile, ranks in tiles.items() if (part := intersect(tile, box)) is not None]


class Case:
    """With `colocated` the ranks of the destination are those of the source."""

    def __init__(self, plan, colocated):
        first = min(min(entry["dst"]["ranks"]) for entry in plan["tensors"])
        self.tensors = [Tensor(i, entry, first if colocated else 0) for i, entry in enumerate(plan["tensors"])]
        self.bytes = sum(volume([(0, n) for n in t.shape]) * t.element_size for t in self.tensors)

    def fetches(self, tensor, to):
        """What one rank fetches by itself: (box, from whom), from itself where it can, else holders in turn."""
        for box, ranks in holders_of(tensor.src, tensor.dst.boxes[to]):
            yield box, to if to in ranks else ranks[tensor.dst.ranks.index(to) % len(ranks)]

    def least_carried(self, per_host):
        """Bytes that the busiest NIC carries at least: into a host what none of its ranks holds; out of a set of
        hosts, each by an equal share, what only they hold and another wants."""
        into, held = {}, {}
        for tensor in self.tensors:
            cells = [sorted({edge for side in (tensor.src, tensor.dst) for box in side.boxes.values() for edge in box[d]})
                     for d in range(len(tensor.shape))]
            for cell in itertools.product(*(list(zip(cut, cut[1:])) for cut in cells)):
                size = volume(cell) * tensor.element_size
                have, want = ({rank // per_host for rank, box in side.boxes.items() if intersect(cell, box)}
                              for side in (tensor.src, tensor.dst))
                for host in want - have:
                    into[host] = into.get(host, 0) + size
                if want - have:
                    held[frozenset(have)] = held.get(frozenset(have), 0) + size
        out = [sum(size for hosts, size in held.items() if hosts <= group) / len(group) for group in held]
        return max([*into.values(), *out], default=0)
