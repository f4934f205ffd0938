# SPDX-License-Identifier: Apache-2.0
"""verl's ShardSpec: where a shard lies in its weight, by a DeviceMesh or by a block that a model engine names."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from ..errors import InputError
from ..torch._describe import Described, describe_place, dtype_name

Block = tuple[tuple[int, ...], tuple[int, ...]]  # its shape, and its place in the weight


class ShardSpecs:
    """What a bucket's specs say. Blocks of other ranks are asked for all at once, by `settle()`."""

    def __init__(self) -> None:
        self._placed: dict[Any, dict[str, tuple[dict[str, Any], Block]]] = {}  # by group

    def describe(self, name: str, local: torch.Tensor, spec: Any) -> tuple[dict[str, Any], torch.Tensor]:
        """As describe_tensor() does, and the shard in its own shape, as engines yield it flat."""
        if spec.to_hf_chunk is not None:
            raise InputError(
                f"{name}: its ShardSpec has a converter into other weights (to_hf_chunk); crossmesh moves shards as "
                "they lie"
            )
        full = tuple(spec.full_shape)
        about: dict[str, Any] = {"shape": list(full), "dtype": dtype_name(local.dtype)}
        shape: Sequence[int] = full
        if spec.place is not None and spec.gather_group is not None:
            block = _block(name, local, spec.place, full)
            shape = block[0]
            self._placed.setdefault(spec.gather_group, {})[name] = about, block
        elif spec.mesh is not None:
            shape, _ = compute_local_shape_and_global_offset(full, spec.mesh, list(spec.placements))
            about.update(describe_place(name, spec.mesh, spec.placements))
        if local.numel() != math.prod(shape):
            raise InputError(
                f"{name}: a shard of {local.numel()} elements, where its ShardSpec gives {tuple(shape)} of {full}"
            )
        return about, local.reshape(tuple(shape))

    def settle(self) -> None:
        """Completes what has been described since the last time. Collective in the groups of the blocks."""
        placed, self._placed = self._placed, {}
        for group, weights in placed.items():
            members = dist.get_process_group_ranks(group)
            told: list[Any] = [None] * len(members)
            dist.all_gather_object(told, {name: block for name, (_, block) in weights.items()}, group=group)
            for name, (about, _) in weights.items():
                for rank, blocks in zip(members, told):
                    if name not in blocks:
                        raise InputError(f"{name}: actor rank {rank} yields no block of it")
                blocks = {rank: blocks[name] for rank, blocks in zip(members, told)}
                about.update(_grid(name, tuple(about["shape"]), blocks))


def _block(name: str, local: torch.Tensor, place: Any, full: tuple[int, ...]) -> Block:
    if not isinstance(place, int):
        return tuple(map(int, place.local_shape)), tuple(map(int, place.global_offset))
    row = math.prod(full[1:])  # an offset in the flat weight
    if not full or place % row or local.numel() % row:
        raise InputError(f"{name}: {local.numel()} elements from element {place} on are no rows of {full}")
    return (local.numel() // row, *full[1:]), (place // row, *(0 for _ in full[1:]))


def _grid(name: str, full: tuple[int, ...], blocks: dict[int, Block]) -> dict[str, Any]:
    """Blocks of all ranks as a mesh and placements: they have to be a grid, as torch's chunks split the weight."""
    starts = [sorted({low[d] for _, low in blocks.values()}) for d in range(len(full))]
    cells: dict[tuple[int, ...], list[int]] = {}
    for rank, (_, low) in sorted(blocks.items()):
        cells.setdefault(low, []).append(rank)
    copies = len(next(iter(cells.values())))
    sizes = (*map(len, starts), copies)
    ranks = [rank for low in sorted(cells) for rank in cells[low]]
    placements: list[Any] = [*(["S", d, 1, -1] for d in range(len(full))), "R"]
    fits = len(ranks) == math.prod(sizes) and all(len(cell) == copies for cell in cells.values())
    if fits:
        layout = Described(name, full, None, sizes, ranks, placements).layout(full)
        tiles = {rank: layout.tile(rank) or () for rank in ranks}
        fits = all(
            tuple((part.start, part.stop - part.start) for part in tiles[rank]) == tuple(zip(low, shape))
            for rank, (shape, low) in blocks.items()
        )
    if not fits:
        raise InputError(f"{name}: the blocks of ranks {sorted(blocks)} are no even grid over {full}")
    return {"mesh": list(sizes), "ranks": ranks, "placements": placements}
