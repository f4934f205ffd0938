# SPDX-License-Identifier: Apache-2.0
"""Sums over several mesh axes in the form that the planner chose: reduce-scatters, all-reduces and all-gathers, one mesh
axis at a time, in the order that the plan has them. On a mesh of hosts and devices this is what keeps most of the bytes
inside the hosts; the price of a plan counts on it."""

from __future__ import annotations

import math

import torch
import torch.distributed as dist
from torch.distributed.tensor import DeviceMesh

# Newer releases of torch have other names for them.
_all_reduce = dist.all_reduce
_reduce_scatter = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)
_all_gather = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)

__all__ = ["Steps", "add_up", "axes_of", "read_sums"]

Steps = tuple[tuple[str, int], ...]  # a collective and the mesh axis that it is over


def read_sums(text: str) -> dict[int, Steps]:
    """By the rule's term: "1: reduce-scatter 1, all-reduce 0, all-gather 1; 2: …"."""
    found: dict[int, Steps] = {}
    for part in filter(None, text.split("; ")):
        term, _, steps = part.partition(": ")
        found[int(term)] = tuple((kind, int(axis)) for kind, axis in (step.split(" ") for step in steps.split(", ")))
    return found


def axes_of(steps: Steps) -> frozenset[int]:
    return frozenset(axis for _, axis in steps)


def add_up(local: torch.Tensor, mesh: DeviceMesh, steps: Steps) -> torch.Tensor:
    """What every rank of the axes has a part of the sum of, added up. The elements are laid out with one dimension per
    mesh axis that they are scattered over, so that scattering and gathering need not be in opposite orders."""
    scattered = sorted({axis for kind, axis in steps if kind == "reduce-scatter"})
    sizes = [mesh.size(axis) for axis in scattered]
    flat = local.reshape(-1)
    rest = -(-flat.numel() // math.prod(sizes))
    flat = torch.nn.functional.pad(flat, (0, rest * math.prod(sizes) - flat.numel()))
    parts = flat.reshape(*sizes, rest).clone()
    for kind, axis in steps:
        group = mesh.get_group(axis)
        if kind == "all-reduce":
            parts = parts.contiguous()
            _all_reduce(parts, group=group)
            continue
        dim = scattered.index(axis)
        given = parts.movedim(dim, 0).contiguous()
        if kind == "reduce-scatter":
            made = torch.empty_like(given[:1])
            _reduce_scatter(made, given, group=group)
        else:
            made = given.new_empty((mesh.size(axis), *given.shape[1:]))
            _all_gather(made, given, group=group)
        parts = made.movedim(0, dim)
    return parts.reshape(-1)[: local.numel()].reshape(local.shape)
