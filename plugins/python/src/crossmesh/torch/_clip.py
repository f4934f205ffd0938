# SPDX-License-Identifier: Apache-2.0
"""The norm of all gradients of a model whose parameters lie on several meshes, in parts and in copies."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import Replicate
from torch.nn.utils import clip_grad

from ..errors import InputError

__all__ = ["grad_norm", "guard_clipping", "is_first_copy"]

_guarded: weakref.WeakSet[Any] = weakref.WeakSet()


def is_first_copy(grad: Any) -> bool:
    """Whether this rank's part of a DTensor is the one of its copies that is counted."""
    coordinate = grad.device_mesh.get_coordinate()
    return all(at == 0 for at, placement in zip(coordinate, grad.placements) if isinstance(placement, Replicate))


def grad_norm(parts: Iterable[torch.Tensor], norm_type: float, device: torch.device) -> torch.Tensor:
    """Of parts that all ranks of the default group have, each element on one of them. Collective."""
    most = norm_type == float("inf")
    total = torch.zeros((), device=device, dtype=torch.float64 if device.type == "cpu" else torch.float32)
    for part in parts:
        norm = torch.linalg.vector_norm(part, norm_type, dtype=total.dtype if not part.is_complex() else None)
        total = torch.maximum(total, norm) if most else total + norm**norm_type
    dist.all_reduce(total, op=dist.ReduceOp.MAX if most else dist.ReduceOp.SUM)
    return (total if most else total ** (1.0 / norm_type)).to(torch.float32)


def guard_clipping(parameter: torch.nn.Parameter) -> None:
    """torch's own clipping would take the norm of this rank's stages for that of the model, and say nothing; it is given
    gradients, and asks for their norm by this function."""
    if not _guarded:
        norm_of = clip_grad._get_total_norm

        def checked(tensors: Any, *args: Any, **kwargs: Any) -> Any:
            grads = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
            mine = {id(parameter.grad) for parameter in _guarded}
            if any(id(grad) in mine for grad in grads):
                raise InputError("torch's clip_grad_norm_() sees the gradients of this rank's stages only: applied.clip_grad_norm_()")
            return norm_of(grads, *args, **kwargs)

        if not getattr(norm_of, "_crossmesh", False):
            checked._crossmesh = True  # type: ignore[attr-defined]
            clip_grad._get_total_norm = checked
    _guarded.add(parameter)
