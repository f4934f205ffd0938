# SPDX-License-Identifier: Apache-2.0
"""Meshes whose process groups are made once for the same ranks. A group of gloo has threads that look around a hundred times
a second, whether it is used or not, and meshes of several stages, plans and probes have mostly the same axes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DeviceMesh

__all__ = ["mesh_of"]

# Of the default group that there is now.
_made: list[tuple[Any, dict[tuple[int, ...], Any]]] = []


def _group(ranks: Sequence[int]) -> Any:
    """Collective among the ranks, which all make their groups in one order."""
    world = dist.group.WORLD
    if not _made or _made[0][0] is not world:
        _made[:] = [(world, {tuple(range(dist.get_world_size())): world})]
    groups, key = _made[0][1], tuple(sorted(ranks))
    if key not in groups:
        groups[key] = dist.new_group(list(key), use_local_synchronization=True)
    return groups[key]


def mesh_of(kind: str, ranks: torch.Tensor, names: tuple[str, ...]) -> DeviceMesh:
    """As DeviceMesh(kind, ranks, mesh_dim_names=names). Collective among the ranks that are in it."""
    rank, groups = dist.get_rank(), []
    for axis in range(ranks.ndim):
        lines = ranks.movedim(axis, -1).reshape(-1, ranks.shape[axis]).tolist()
        groups += [_group(line) for line in lines if rank in line]
    if not groups:
        return DeviceMesh(kind, ranks, mesh_dim_names=names, _init_backend=False)
    return DeviceMesh.from_group(groups, kind, ranks, mesh_dim_names=names)
