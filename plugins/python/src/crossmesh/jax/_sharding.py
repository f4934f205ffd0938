# SPDX-License-Identifier: Apache-2.0
"""JAX shardings of every kind as crossmesh's layouts."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import InputError
from ..layouts import Layout, Mesh

Range = tuple[int, int]


def _ranges(index: Sequence[Any], shape: Sequence[int]) -> tuple[Range, ...]:
    return tuple(part.indices(extent)[:2] for part, extent in zip(index, shape))


def _cuts(name: str, dim: int, extent: int, ranges: set[Range]) -> list[int]:
    """The cut points of a dimension, when its ranges lie end to end."""
    listed = sorted(ranges)
    points = [0, *(high for _, high in listed)]
    if [low for low, _ in listed] != points[:-1] or points[-1] != extent:
        raise InputError(f"{name}: the shards of dimension {dim} are {listed}, which do not lie end to end")
    return points


class Placed:
    """Which rank holds which box of an array: hashable, so that plans can be found again."""

    def __init__(self, name: str, shape: Sequence[int], sharding: Any, rank_of: Mapping[int, int]) -> None:
        self.shape = tuple(shape)
        held: dict[tuple[Range, ...], list[int]] = {}
        for device, index in sharding.devices_indices_map(self.shape).items():
            if device.id not in rank_of:
                raise InputError(f"{name}: {device} is not a device of this job's backend")
            held.setdefault(_ranges(index, self.shape), []).append(rank_of[device.id])
        self._cuts = [
            _cuts(name, dim, extent, {box[dim] for box in held}) for dim, extent in enumerate(self.shape)
        ]
        boxes = list(itertools.product(*(zip(points, points[1:]) for points in self._cuts)))
        copies = {len(held.get(box, ())) for box in boxes}
        if len(copies) != 1 or copies == {0}:
            raise InputError(f"{name}: the shards of {sharding} are held by {sorted(copies)} devices each, not by equally "
                             "many")  # fmt: skip
        self._split = [dim for dim, points in enumerate(self._cuts) if len(points) > 2]
        self._sizes = tuple(len(self._cuts[dim]) - 1 for dim in self._split) + (copies.pop(),)
        self.ranks = tuple(rank for box in boxes for rank in sorted(held[box]))

    def layout(self) -> Layout:
        """Mesh axes are the dimensions that are split, and one for the copies."""
        spec = "".join(f"S{self._split.index(d)}" if d in self._split else "R" for d in range(len(self.shape)))
        cuts = [self._cuts[dim] if dim in self._split else None for dim in range(len(self.shape))]
        return Layout(Mesh(self._sizes, self.ranks), spec, self.shape, cuts=cuts)

    @property
    def key(self) -> tuple[Any, ...]:
        return self.shape, tuple(map(tuple, self._cuts)), self.ranks
