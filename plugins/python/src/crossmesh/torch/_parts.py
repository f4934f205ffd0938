# SPDX-License-Identifier: Apache-2.0
"""What is moved, as the tensors of a plan: boxes of sources, laid out as the ranks have them and as they want them."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from ..conversions import derived
from ..errors import InputError
from ..layouts import Layout, Mesh
from ..maps import Box, Piece, common, extents, show, whole
from ._convert import Made, Scaled
from ._describe import Described, dtype_of


Holder = tuple[int, Box]  # a rank, and the box that it has or wants


class Own(NamedTuple):
    """A box of a source in this rank's memory: a view of the box's shape."""

    box: Box
    tensor: torch.Tensor


def part_of(owns: Iterable[Own], region: Box) -> torch.Tensor | None:
    """What of a region is in one of these; None where nothing is."""
    for own in owns:
        inside = common(own.box, region)
        if inside is not None:
            view = own.tensor
            for d, ((low, high), (first, _)) in enumerate(zip(inside, own.box)):
                view = view.narrow(d, low - first, high - low)
            return view
    return None


@dataclass
class Item:
    """A box of a source on its way: who has which parts of it, who wants which, and what of that this rank has and
    wants. `layouts` are those of the whole `region`, where they are known."""

    name: str
    source: str
    region: Box
    dtypes: tuple[torch.dtype, torch.dtype]
    have: tuple[Holder, ...]
    want: tuple[Holder, ...]
    mine: Sequence[Own]
    wanted: Sequence[Own]
    layouts: tuple[Layout, Layout] | None = None
    scaled: Scaled | None = None

    @property
    def wire(self) -> torch.dtype:
        """On the way: whichever is smaller, so that a cast is made where it saves bytes."""
        return min(self.dtypes, key=lambda dtype: dtype.itemsize)

    def parts(self, region: Box | None = None) -> list[Part]:
        """As tensors of a plan."""
        if region is None and self.layouts is not None:
            return [Part(self, self.region, *self.layouts)]
        return [Part(self, *found) for found in lay_out(region or self.region, self.have, self.want)]


@dataclass
class Part:
    """One tensor of a plan."""

    item: Item
    region: Box
    src: Layout
    dst: Layout

    @property
    def name(self) -> str:
        return self.item.name if self.region == self.item.region else f"{self.item.name} {show(self.region)}"

    def needs(self, side: int) -> dict[int, int]:
        """Bytes of what ranks have (0) or want (1) of it."""
        holders = _within(self.region, (self.item.have, self.item.want)[side])
        return {rank: math.prod(extents(box)) * self.item.wire.itemsize for rank, box in holders}

    def slabs(self, count: int) -> list[Part]:
        """Cut into about as many along the first dimension that can be cut."""
        d = next((d for d, (low, high) in enumerate(self.region) if high - low > 1), None)
        if d is None:
            return [self]
        low, high = self.region[d]
        step = -(-(high - low) // count)
        sides = [(at, min(at + step, high)) for at in range(low, high, step)]
        return [part for side in sides for part in self.item.parts((*self.region[:d], side, *self.region[d + 1 :]))]


def _grid(region: Box, holders: Sequence[Holder]) -> Layout | None:
    """Boxes of ranks as a layout of the region, where they are a grid over it, each on as many ranks."""
    boxes: dict[Box, list[int]] = {}
    for rank, box in holders:
        boxes.setdefault(box, []).append(rank)
    points = [sorted({end for box in boxes for end in box[d]}) for d in range(len(region))]
    if any((along[0], along[-1]) != side for along, side in zip(points, region)):
        return None
    copies = len(holders) // len(boxes)
    cells = math.prod(len(along) - 1 for along in points)
    ranks = [rank for box in sorted(boxes) for rank in boxes[box]]
    if cells != len(boxes) or any(len(own) != copies for own in boxes.values()) or len(set(ranks)) != len(ranks):
        return None
    if any(box not in boxes for box in itertools.product(*(tuple(itertools.pairwise(along)) for along in points))):
        return None
    tokens = ""
    sizes: list[int] = []
    cuts: list[list[int] | None] = []
    for along, (low, _) in zip(points, region):
        split = len(along) > 2
        tokens += f"S{len(sizes)}" if split else "R"
        cuts.append([point - low for point in along] if split else None)
        if split:
            sizes.append(len(along) - 1)
    return Layout(_mesh((*sizes, copies), tuple(ranks)), tokens, extents(region), cuts=cuts)


@functools.lru_cache(4096)
def _mesh(sizes: tuple[int, ...], ranks: tuple[int, ...]) -> Mesh:
    return Mesh(sizes, ranks)


@functools.lru_cache(4096)
def lay_out(region: Box, have: tuple[Holder, ...], want: tuple[Holder, ...]) -> tuple[tuple[Box, Layout, Layout], ...]:
    """The region as few boxes in which both what ranks have and what they want are grids."""
    have, want = (_within(region, side) for side in (have, want))
    if not want:
        return ()
    needed = tuple((min(b[d][0] for _, b in want), max(b[d][1] for _, b in want)) for d in range(len(region)))
    if needed != region:
        return lay_out(needed, have, want)
    src = _grid(region, have) if have else None
    dst = _grid(region, want)
    if src is not None and dst is not None:
        return ((region, src, dst),)
    for side, layout in ((want, dst), (have, src)):
        for d, (low, high) in enumerate(region):
            inner = sorted({end for _, box in side for end in box[d]} - {low, high}) if layout is None else []
            if inner:
                middle = inner[len(inner) // 2]
                halves = ((*region[:d], part, *region[d + 1 :]) for part in ((low, middle), (middle, high)))
                return tuple(part for half in halves for part in lay_out(half, have, want))
    raise InputError(f"no rank has the box {region}")


def _within(region: Box, holders: Iterable[Holder]) -> tuple[Holder, ...]:
    return tuple((rank, inside) for rank, box in holders if (inside := common(box, region)) is not None)


def turned(piece: Piece, view: torch.Tensor) -> torch.Tensor:
    """The memory for a piece with the dimensions as the source has them."""
    kept = [d for d, axis in enumerate(piece.axes) if axis >= 0]
    order = sorted(kept, key=lambda d: piece.axes[d])
    for d in reversed(range(view.dim())):
        if d not in kept:
            view = view.select(d, 0)
    view = view.permute([kept.index(d) for d in order])
    for axis in range(len(piece.box)):
        if axis not in piece.axes:
            view = view.unsqueeze(axis)
    return view


def owns(name: str, about: Described, rank: int, local: torch.Tensor | None, side: str) -> list[Own]:
    """This rank's boxes of a tensor, after a look at what it has of it."""
    shape, boxes = about.part(rank)
    if shape is None or (local is not None and 0 in shape and local.numel() == 0):
        return []  # FSDP2 gives shards without elements shapes of its own
    if local is None:
        raise InputError(f"{name}: rank {rank} is in the {side} mesh but has no tensor")
    if tuple(local.shape) != shape:
        raise InputError(
            f"{name}: rank {rank} has a {side} shard of shape {tuple(local.shape)} where the placements give {shape}"
        )
    if local.device.type not in ("cpu", "cuda"):
        raise InputError(f"{name} is on device {local.device}; only cpu and cuda are moved")
    found = []
    for _, box, start in boxes:
        at = tuple((s, s + high - low) for s, (low, high) in zip(start, box))
        view = local if len(boxes) == 1 else part_of([Own(whole(shape), local)], at)
        found.append(Own(box, local if view is None else view))
    return found


def received(piece: Piece, targets: Iterable[Own]) -> list[Own]:
    """Boxes of the source that go into these boxes of the target."""
    found = []
    for own in targets:
        inside = piece.cut(own.box)
        view = None if inside is None else part_of([own], inside.at)
        if inside is not None and view is not None:
            found.append(Own(inside.box, turned(inside, view)))
    return found


class Holdings:
    """What this rank has of sources, by their names and by those of what is made of them."""

    def __init__(self, known: Mapping[str, Described], owned: Callable[[str], list[Own]]) -> None:
        self._known, self._owned = known, functools.cache(owned)
        self._scaled: dict[tuple[str, str], Scaled] = {}

    def of(self, name: str) -> tuple[str, list[Own], Scaled | None]:
        """The source, this rank's boxes, and what makes them of the source's."""
        made, about = derived(name), self._known[name]
        if made is None or not isinstance(about, Made):
            return name, self._owned(name), None
        key = made.source, made.kind
        if key not in self._scaled:
            self._scaled[key] = Scaled(about, self._owned(made.source))
        scaled = self._scaled[key]
        mine = [Own(*own) for own in scaled.owns()] if made.scales else self._owned(made.source)
        return made.source, mine, scaled


def items(
    given: Sequence[Piece],
    known: Mapping[str, Described],
    wanted: Mapping[str, Described],
    rank: int,
    locals_: tuple[Mapping[str, Any], Mapping[str, Any]],
) -> Iterator[Item]:
    """Pieces as what all ranks know of their sources and targets has them."""
    moved = [piece for piece in given if piece.source]
    holdings = Holdings(known, lambda name: owns(name, known[name], rank, locals_[0].get(name), "source"))
    targets = {
        name: owns(name, wanted[name], rank, locals_[1].get(name), "destination") for name in {p.target for p in moved}
    }
    for piece in moved:
        have, want = known[piece.source], wanted[piece.target]
        assert have.shape is not None and want.shape is not None and have.dtype and want.dtype
        straight = piece.box == whole(have.shape) and piece.at == whole(want.shape)
        straight = straight and piece.axes == tuple(range(len(have.shape)))
        pair = (have.boxes(), want.boxes()) if straight else (None, None)
        source, mine, scaled = holdings.of(piece.source)
        cuts = [(holder, piece.cut(box)) for holder, box, _ in want.tiles()]
        yield Item(
            piece.target if piece.at == whole(want.shape) else f"{piece.target} {show(piece.at)}",
            source,
            piece.box,
            (dtype_of(have.dtype), dtype_of(want.dtype)),
            tuple((holder, box) for holder, box, _ in have.tiles()),
            tuple((holder, cut.box) for holder, cut in cuts if cut is not None),
            mine,
            received(piece, targets[piece.target]),
            None if pair[0] is None or pair[1] is None else (pair[0], pair[1]),
            scaled,
        )
