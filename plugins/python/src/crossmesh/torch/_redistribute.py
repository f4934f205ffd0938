# SPDX-License-Identifier: Apache-2.0
"""Moves of local tensors from one layout on a mesh to another, and autograd's way back.

Sums over several mesh axes have the form that the planner chose: reduce-scatters, all-reduces and all-gathers, one mesh
axis at a time, in the order that the plan has them. On a mesh of hosts and devices this is what keeps most of the bytes
inside the hosts; the price of a plan counts on it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DeviceMesh, DTensor, Partial, Placement, Replicate, Shard

# Newer releases of torch have other names for them.
_all_reduce = dist.all_reduce
_reduce_scatter = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)
_all_gather = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)

__all__ = ["Placements", "Steps", "Way", "cut_out", "partial_axes", "read_sums", "redistributed", "summed", "way_of"]

Placements = tuple[Placement, ...]
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


def cut_out(whole: torch.Tensor, mesh: DeviceMesh, placements: Sequence[Placement]) -> torch.Tensor:
    """This rank's part of a tensor that it has whole."""
    coordinate = mesh.get_coordinate()
    assert coordinate is not None
    for axis, placement in enumerate(placements):
        if isinstance(placement, Shard):
            extent = whole.shape[placement.dim] // mesh.size(axis)
            whole = whole.narrow(placement.dim, coordinate[axis] * extent, extent)
    return whole


def _cuts_evenly(local: torch.Tensor, mesh: DeviceMesh, src: Placements, dst: Placements, axis: int) -> bool:
    """Whether an axis cuts what is here in equal parts that are its own: a later axis has not cut that dimension before."""
    place = dst[axis]
    if not isinstance(place, Shard) or place in src[axis + 1 :]:
        return False
    parts = math.prod(mesh.size(other) for other, at in enumerate(dst) if at == place)
    even: bool = local.shape[place.dim] % parts == 0
    return even


def redistributed(
    local: torch.Tensor, mesh: DeviceMesh, src: Placements, dst: Placements, steps: Steps = ()
) -> torch.Tensor:
    """`steps` add up what is partial over their axes and not scattered on the way."""
    axes = axes_of(steps)
    if axes and all(isinstance(src[axis], Partial) and not isinstance(dst[axis], Partial) for axis in axes):
        # What is scattered is so first, so that fewer bytes are summed.
        between = tuple(place if axis in axes else dst[axis] for axis, place in enumerate(src))
        local = add_up(redistributed(local, mesh, src, between), mesh, steps)
        src = summed(between)
    if src == dst:
        return local
    changed = [axis for axis, (before, after) in enumerate(zip(src, dst)) if before != after]
    if all(isinstance(src[axis], Partial) and dst[axis] == Replicate() for axis in changed):
        # As DTensor would, without what it thinks about on the way: several times the move's own time where that is small.
        local = local.clone(memory_format=torch.contiguous_format)
        for axis in changed:
            dist.all_reduce(local, group=mesh.get_group(axis))
        return local
    if all(src[axis] == Replicate() and _cuts_evenly(local, mesh, src, dst, axis) for axis in changed):
        kept = tuple(place if axis in changed else Replicate() for axis, place in enumerate(dst))
        return cut_out(local, mesh, kept).clone(memory_format=torch.contiguous_format)
    there = DTensor.from_local(local.contiguous(), mesh, src, run_check=False).redistribute(placements=dst)
    return there.to_local()


class _Move(torch.autograd.Function):  # type: ignore[misc]
    """From one layout to another; the gradient comes in a layout of its own and leaves in another."""

    @staticmethod
    def forward(ctx: Any, local: torch.Tensor, way: Way) -> torch.Tensor:
        ctx.way = way
        moved = redistributed(local, way.mesh, *way.there, way.steps)
        return moved.view_as(moved) if moved is local else moved

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        src, dst = ctx.way.back
        return redistributed(grads[0], ctx.way.mesh, src, dst, ctx.way.back_steps), None


@dataclass(frozen=True, eq=False)  # each is looked up by often, and made once
class Way:
    mesh: DeviceMesh
    there: tuple[Placements, Placements]
    back: tuple[Placements, Placements]
    steps: Steps = ()  # of sums, there and back
    back_steps: Steps = ()

    def __call__(self, local: torch.Tensor) -> torch.Tensor:
        moved: torch.Tensor = _Move.apply(local, self)
        return moved


def way_of(
    mesh: DeviceMesh, src: Placements, dst: Placements, grad_src: Placements, grad_dst: Placements,
    steps: Steps = (), back_steps: Steps = (),
) -> Way | None:  # fmt: skip
    """None where nothing moves."""
    still = src == dst and grad_src == grad_dst
    return None if still else Way(mesh, (src, dst), (grad_src, grad_dst), steps, back_steps)


def summed(placements: Placements) -> Placements:
    return tuple(Replicate() if isinstance(p, Partial) else p for p in placements)


def partial_axes(placements: Placements) -> list[int]:
    return [axis for axis, place in enumerate(placements) if isinstance(place, Partial)]
