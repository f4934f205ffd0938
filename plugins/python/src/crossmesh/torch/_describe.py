# SPDX-License-Identifier: Apache-2.0
"""DTensors as crossmesh's layouts, and what every rank tells the others of its tensors."""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DeviceMesh, DTensor, Placement, Replicate, Shard

from ..errors import InputError
from ..job import Job
from ..layouts import Layout, Mesh

AXIS_DIGITS = 8


def _is_strided(placement: object) -> bool:
    return type(placement).__name__ == "_StridedShard"


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def dtype_of(name: str) -> torch.dtype:
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise InputError(f"this PyTorch ({torch.__version__}) has no dtype {name}")
    return dtype


def write_placements(name: str, placements: Sequence[Placement], order: Any) -> list[Any]:
    """One entry a mesh dimension: "R", or ["S", tensor dimension, split factor, place in the shard order]."""
    ranks: dict[int, int] = {}
    for entry in order or ():
        for place, mesh_dim in enumerate(entry.mesh_dims):
            ranks[mesh_dim] = place
    written: list[Any] = []
    for mesh_dim, placement in enumerate(placements):
        if isinstance(placement, Replicate):
            written.append("R")
        elif _is_strided(placement):
            written.append(["S", placement.dim, placement.split_factor, -1])
        elif isinstance(placement, Shard):
            written.append(["S", placement.dim, 1, ranks.get(mesh_dim, -1)])
        else:
            raise InputError(
                f"{name}: placement {placement} is neither Shard nor Replicate; a Partial destination has no one value"
            )
    return written


class _Uneven(InputError):
    """Shards that are not boxes, or not those of nested chunks."""


def _order_axes(
    name: str, dim: int, extent: int, axes: list[tuple[int, Any]], sizes: Sequence[int], nested: bool
) -> list[int]:
    """Mesh dimensions that split a tensor dimension, outermost first.

    Default: from left to right. A _StridedShard's split factor is the number of shards that mesh dimensions to the
    right of it have made before; as nested chunks that holds only where everything divides, or `nested` says so.
    """
    if all(entry[3] >= 0 for _, entry in axes):
        return [axis for axis, _ in sorted(axes, key=lambda pair: pair[1][3])]
    order: list[int] = []
    for axis, entry in reversed(axes):
        place, shards = 0, 1
        while shards < entry[2] and place < len(order):
            shards *= sizes[order[place]]
            place += 1
        if shards != entry[2]:
            raise _Uneven(
                f"{name}: _StridedShard(dim={dim}, split_factor={entry[2]}) on mesh dimension {axis} is "
                f"no order of the mesh dimensions that split dimension {dim}"
            )
        order.insert(place, axis)
    parts = 1
    for axis in order:
        parts *= sizes[axis]
    if order != sorted(order) and extent % parts != 0 and not nested:
        raise _Uneven(f"{name}: _StridedShard(dim={dim}) of {extent} elements, which do not divide into {parts} parts")
    return order


def read_spec(
    name: str, shape: Sequence[int], sizes: Sequence[int], placements: list[Any], nested: bool = False
) -> str:
    """Alpa's notation of placements, for a tensor of that shape on a mesh of those sizes."""
    if len(placements) != len(sizes):
        raise InputError(f"{name}: {len(placements)} placements for a mesh of {len(sizes)} dimensions")
    split: list[list[tuple[int, Any]]] = [[] for _ in shape]
    for axis, entry in enumerate(placements):
        if entry == "R":
            continue
        dim = entry[1]
        if not -len(shape) <= dim < len(shape):
            raise InputError(f"{name}: Shard({dim}) of a tensor of {len(shape)} dimensions")
        if axis >= AXIS_DIGITS:
            raise InputError(f"{name}: Shard on mesh dimension {axis}; crossmesh has {AXIS_DIGITS}")
        split[dim].append((axis, entry))
    tokens = []
    for dim, axes in enumerate(split):
        order = _order_axes(name, dim, shape[dim], axes, sizes, nested) if axes else []
        tokens.append("S" + "".join(map(str, order)) if order else "R")
    return "".join(tokens)


Interval = tuple[int, int]
Tile = tuple[int, tuple[Interval, ...], tuple[int, ...]]  # a rank, a box that it has, and where in its part that starts


def _chunk(extent: int, parts: int, number: int) -> Interval:
    size = -(-extent // parts)
    return min(number * size, extent), min((number + 1) * size, extent)


def _intervals(extent: int, steps: Iterable[tuple[int, int, int]]) -> list[Interval]:
    """What DTensor's own rule leaves to a rank along a dimension, in the order of its part. A step has parts, the
    number of the rank's, and into how many chunks all is cut before each is cut into those parts."""
    own = [(0, extent)]
    for parts, number, factor in steps:
        length = sum(high - low for low, high in own)
        left: list[Interval] = []
        for low, high in (_chunk(length, factor, k) for k in range(factor)):
            first, last = _chunk(high - low, parts, number)
            first, last, at = low + first, low + last, 0
            for start, end in own:
                piece = start + max(first - at, 0), start + min(last - at, end - start)
                at += end - start
                if piece[1] > piece[0] and left and left[-1][1] == piece[0]:
                    left[-1] = left[-1][0], piece[1]
                elif piece[1] > piece[0]:
                    left.append(piece)
        own = left
    return own or [(0, 0)]


@dataclass
class Described:
    """One tensor, as all ranks together know it."""

    name: str
    shape: tuple[int, ...] | None  # None: nobody on this side knows it
    dtype: str | None
    sizes: tuple[int, ...] | None  # of the mesh; None: a plain tensor, whole on the ranks that have it
    ranks: list[int]
    placements: list[Any]
    nested: bool = False  # the shards of a _StridedShard are chunks of chunks where these are not DTensor's

    def layout(self, shape: tuple[int, ...]) -> Layout:
        if self.sizes is None:
            return Layout(Mesh((len(self.ranks),), self.ranks), "R" * len(shape), shape)
        spec = read_spec(self.name, shape, self.sizes, self.placements, self.nested)
        return Layout(Mesh(self.sizes, self.ranks), spec, shape, "chunk")

    @functools.cached_property
    def _place(self) -> _Place:
        """What boxes follow from; models have the same again in every layer."""
        assert self.shape is not None
        place = self.shape, self.sizes, tuple(self.ranks), json.dumps(self.placements), self.nested
        try:
            _boxes(place)
        except InputError as error:
            raise InputError(f"{self.name}{error}") from None
        return place

    def boxes(self) -> Layout | None:
        """The layout; None where ranks have several boxes."""
        return _boxes(self._place)

    def tiles(self) -> tuple[Tile, ...]:
        """All boxes that ranks have."""
        return _tiles(self._place)

    def part(self, rank: int) -> tuple[tuple[int, ...] | None, tuple[Tile, ...]]:
        """A rank's boxes, and the shape of its part, all of them together; None where it has none."""
        return _part(self._place, rank)


_Place = tuple[tuple[int, ...], tuple[int, ...] | None, tuple[int, ...], str, bool]


@functools.lru_cache(4096)
def _boxes(place: _Place) -> Layout | None:
    shape, sizes, ranks, placements, nested = place
    try:
        return Described("", shape, None, sizes, list(ranks), json.loads(placements), nested).layout(shape)
    except _Uneven:
        return None


@functools.lru_cache(4096)
def _part(place: _Place, rank: int) -> tuple[tuple[int, ...] | None, tuple[Tile, ...]]:
    own = tuple(tile for tile in _tiles(place) if tile[0] == rank)
    if not own:
        return None, own
    return tuple(max(at[d] + box[d][1] - box[d][0] for _, box, at in own) for d in range(len(place[0]))), own


@functools.lru_cache(4096)
def _tiles(place: _Place) -> tuple[Tile, ...]:
    shape, sizes, ranks, placements, _ = place
    if sizes is None:
        return tuple((rank, tuple((0, n) for n in shape), (0,) * len(shape)) for rank in ranks)
    split, layout = json.loads(placements), _boxes(place)
    if layout is not None:
        boxes = [(rank, layout.tile(rank) or ()) for rank in ranks]
        return tuple((rank, tuple((s.start, s.stop) for s in tile), (0,) * len(shape)) for rank, tile in boxes)
    found: list[Tile] = []
    for rank, position in zip(ranks, itertools.product(*map(range, sizes))):
        along = []
        for d, extent in enumerate(shape):
            axes = [a for a, p in enumerate(split) if p != "R" and p[1] % len(shape) == d]
            own = _intervals(extent, [(sizes[a], position[a], split[a][2]) for a in axes])
            ends = itertools.accumulate(high - low for low, high in own)
            along.append([(side, end - side[1] + side[0]) for side, end in zip(own, ends)])
        for cell in itertools.product(*along):
            found.append((rank, tuple(side for side, _ in cell), tuple(start for _, start in cell)))
    return tuple(found)


def describe_tensor(name: str, tensor: torch.Tensor) -> dict[str, Any]:
    entry: dict[str, Any] = {"shape": list(tensor.shape), "dtype": dtype_name(tensor.dtype)}
    if isinstance(tensor, DTensor):
        order = getattr(tensor._spec, "shard_order", None)
        entry.update(describe_place(name, tensor.device_mesh, tensor.placements, order))
        if any(p != "R" and p[2] > 1 for p in entry["placements"]) and _is_nested(name, entry, tensor):
            entry["nested"] = True
    return entry


def _is_nested(name: str, entry: dict[str, Any], tensor: DTensor) -> bool:
    """FSDP2 cuts a tensor-parallel shard into chunks. Where they are uneven, DTensor's own rule for the placements that
    FSDP2 writes gives others: what this rank has tells which they are."""
    rank = own_rank(tensor.device_mesh)
    if rank is None:
        return False
    shapes = []
    for nested in (False, True):
        about = Described(name, tuple(entry["shape"]), None, tuple(entry["mesh"]), entry["ranks"],
                          _normal(entry)["placements"], nested)  # fmt: skip
        if not nested and about.boxes() is not None:
            return False
        shapes.append(about.part(rank)[0])
    return shapes[0] != shapes[1] == tuple(tensor.to_local().shape)


@functools.lru_cache(64)
def _read_mesh(mesh: DeviceMesh, _rank: int) -> tuple[list[int], list[int]]:
    """Sizes and ranks, which torch makes anew for whoever asks; of a slice those of the part that this rank is in."""
    return list(mesh.mesh.shape), mesh.mesh.flatten().tolist()


def _mesh_of(mesh: DeviceMesh) -> tuple[list[int], list[int]]:
    return _read_mesh(mesh, dist.get_rank() if dist.is_initialized() else -1)


def own_rank(mesh: DeviceMesh) -> int | None:
    """This rank's number; None outside the mesh."""
    position, number = mesh.get_coordinate(), 0
    if position is None:
        return None
    sizes, ranks = _mesh_of(mesh)
    for size, at in zip(sizes, position):
        number = number * size + at
    return ranks[number]


def describe_place(name: str, mesh: DeviceMesh, placements: Sequence[Placement], order: Any = None) -> dict[str, Any]:
    sizes, ranks = _mesh_of(mesh)
    return {"mesh": sizes, "ranks": ranks, "placements": write_placements(name, placements, order)}


def _normal(entry: dict[str, Any]) -> dict[str, Any]:
    """Without differences that mean nothing: dimensions counted from the end."""
    shape = entry.get("shape")
    if shape is None or "placements" not in entry:
        return entry
    placements = [p if p == "R" or p[1] >= 0 else ["S", p[1] + len(shape), *p[2:]] for p in entry["placements"]]
    return {**entry, "placements": placements}


_CARD = struct.Struct("<16sq16sqB")  # of each side digest and length; whether there is a fault
_NOTHING = b"{}"


def exchange(
    job: Job, sides: tuple[dict[str, Any], dict[str, Any]], fault: str = ""
) -> tuple[dict[str, Described], dict[str, Described]]:
    """Tells all ranks what each of them knows of its tensors, on the source's side and on the destination's.

    Ranks that know the same tell it once, so this costs two allgathers, a small one and one that is as long as the
    longest text. Raises where two ranks disagree, or one has a fault, on all of them. Collective.
    """
    texts = [json.dumps(side, sort_keys=True, separators=(",", ":")).encode() for side in sides]
    card = [(hashlib.blake2b(text, digest_size=16).digest(), len(text)) for text in texts]
    cards = [_CARD.unpack(c) for c in job._allgather_fixed(_CARD.pack(*card[0], *card[1], bool(fault)), _CARD.size)]
    if any(c[4] for c in cards):
        for rank, told in enumerate(job.allgather(fault.encode())):
            if told:
                raise InputError(fault if rank == job.rank else f"rank {rank}: {told.decode()}")
    # By side: who knows the same, from the first who does.
    groups: list[dict[bytes, list[int]]] = [{}, {}]
    for rank, (*about, _) in enumerate(cards):
        for side in (0, 1):
            if about[2 * side + 1] > len(_NOTHING):
                groups[side].setdefault(about[2 * side], []).append(rank)
    tells = [[cards[r][2 * s + 1] if groups[s].get(cards[r][2 * s], [-1])[0] == r else 0 for s in (0, 1)]
             for r in range(job.size)]  # fmt: skip
    own = b"".join(text for text, length in zip(texts, tells[job.rank]) if length)
    longest = max(sum(lengths) for lengths in tells)
    answers = job._allgather_fixed(own.ljust(longest, b"\0"), longest) if longest else []
    merged = []
    for side in (0, 1):
        known = []
        for ranks in groups[side].values():
            first = tells[ranks[0]][0] if side else 0
            known.append((json.loads(answers[ranks[0]][first : first + tells[ranks[0]][side]]), ranks))
        merged.append(_merge(known))
    return merged[0], merged[1]


def _merge(groups: Sequence[tuple[dict[str, Any], list[int]]]) -> dict[str, Described]:
    """Puts together what groups of ranks know. One tensor may lie on several meshes without a common rank, as models on
    slices of a mesh do: then each of them has a copy."""
    known: dict[str, tuple[dict[str, Any], int]] = {}
    holders: dict[str, list[int]] = {}
    nested = {name for entries, _ in groups for name, entry in entries.items() if entry.get("nested")}
    meshes: dict[str, list[list[int]]] = {}
    for entries, ranks in groups:
        for name, entry in entries.items():
            holders.setdefault(name, []).extend(ranks)
            mine = _normal(entry)
            theirs, teller = known.setdefault(name, (mine, ranks[0]))
            for key in sorted((mine.keys() | theirs.keys()) - {"ranks", "nested"}):
                if mine.get(key) != theirs.get(key):
                    raise InputError(
                        f"{name}: rank {ranks[0]} has {key} {mine.get(key)} where rank {teller} has {theirs.get(key)}"
                    )
            listed = mine.get("ranks")
            if listed is None or listed in meshes.setdefault(name, []):
                continue
            for other in meshes[name]:
                common = sorted(set(other) & set(listed))
                if common:
                    raise InputError(
                        f"{name}: rank {ranks[0]} has a mesh of ranks {listed}, rank {teller} one of {other}, and both "
                        f"have rank {common[0]}"
                    )
            meshes[name].append(listed)
    found = {}
    for name, (entry, _) in sorted(known.items()):
        shape, sizes = entry.get("shape"), entry.get("mesh")
        described = Described(
            name,
            None if shape is None else tuple(shape),
            entry.get("dtype"),
            None if sizes is None else tuple(sizes),
            sorted(holders[name]),
            entry.get("placements", []),
            name in nested,
        )
        if described.sizes is not None:
            copies = sorted(meshes[name])
            described.ranks = [rank for copy in copies for rank in copy]
            if len(copies) > 1:
                described.sizes = (len(copies), *described.sizes)
                described.placements = ["R", *described.placements]
        found[name] = described
    return found
