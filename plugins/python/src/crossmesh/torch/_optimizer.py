# SPDX-License-Identifier: Apache-2.0
"""An optimizer of a model that lies as planned. Where the plan says so (ZeRO-1), copies of a parameter share its state out:
each updates its part, and gives it to the others. State has the parameters' names and layouts, so that a checkpoint of one
plan is read under another."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor, Replicate

from ..errors import InputError
from ._gradients import Bucket

__all__ = ["Optimizer"]

# Bytes of parameters that are updated at once: with their gradients, state and what lies between, what a core's own cache
# holds. An update reads and writes each of them a dozen times.
PIECE = 512 << 10


class _Share:
    """What this rank updates of its part of a parameter: elements in a row, as many as of each of its copies."""

    def __init__(self, parameter: Any, cut: bool) -> None:
        self.parameter, mesh = parameter, parameter.device_mesh
        self._groups: list[Any] = []
        at, count = 0, 1
        for axis, placement in enumerate(parameter.placements):
            if cut and isinstance(placement, Replicate) and mesh.size(axis) > 1:
                self._groups.append(mesh.get_group(axis))
                at, count = at * mesh.size(axis) + mesh.get_coordinate()[axis], count * mesh.size(axis)
        self._size = math.ceil(parameter.to_local().numel() / count)
        self._at = at * self._size
        local = parameter.detach().to_local()
        self.same = not self._groups and local.is_contiguous()  # it updates the memory of the parameter itself
        own = local.reshape(-1) if self.same else self.part(parameter.detach())
        self.own = torch.nn.Parameter(own, requires_grad=parameter.requires_grad)

    def arrive(self) -> None:
        """Before an update."""
        grad = self.parameter.grad
        if self.same:
            self.own.grad = None if grad is None else grad._local_tensor.reshape(-1)
        else:
            self.own.grad = None if grad is None else self.part(grad)
            self.own.copy_(self.part(self.parameter))  # which a checkpoint may have changed

    def leave(self) -> None:
        """After it."""
        if not self.same and self.own.grad is not None:
            self.parameter.to_local().copy_(self.whole(self.own.detach()).to_local())

    def part(self, whole: Any) -> torch.Tensor:
        """Of a DTensor that lies as the parameter: zeros where it ends."""
        local = whole.to_local().reshape(-1)[self._at : self._at + self._size]
        return torch.nn.functional.pad(local, (0, self._size - local.numel())).clone()

    def whole(self, part: torch.Tensor) -> Any:
        """The DTensor of everybody's parts. Collective among the copies."""
        for group in reversed(self._groups):
            parts = [torch.empty_like(part) for _ in range(dist.get_world_size(group))]
            dist.all_gather(parts, part.contiguous(), group=group)
            part = torch.cat(parts)
        local = self.parameter.to_local()
        made = part[: local.numel()].view(local.shape)
        return DTensor.from_local(made, self.parameter.device_mesh, self.parameter.placements, run_check=False)


class _Row:
    """Parameters whose parts and gradients lie together: updated in pieces that a processor's cache holds, however many
    parameters there are in one."""

    def __init__(self, bucket: Bucket) -> None:
        self.bucket, values = bucket, bucket.values
        length = max(1, PIECE // values.element_size()) if values.device.type == "cpu" else values.numel()
        self.own = [torch.nn.Parameter(piece) for piece in values.split(length)]
        self.names = [member.name for member in bucket.members]
        self.shares = [_Share(member.dtensor, False) for member in bucket.members]

    def arrive(self) -> bool:
        """Before an update. False where only some of the parameters have a gradient: they need one each."""
        grad = self.bucket.gradient()
        if grad is None:
            grads = [member.dtensor.grad for member in self.bucket.members]
            if all(each is None for each in grads):
                return True
            if any(each is None for each in grads):
                return False
            grad = torch.cat([each.to_local().reshape(-1) for each in grads])
        for own, piece in zip(self.own, grad.split(self.own[0].numel())):
            own.grad = piece
        return True

    def forget(self) -> None:
        for own in self.own:
            own.grad = None

    def parts(self, state: Mapping[Any, dict[str, Any]]) -> Iterator[tuple[str, _Share, str, list[torch.Tensor]]]:
        """The state of each parameter, as far as it lies in one piece or another."""
        start = 0
        for name, share in zip(self.names, self.shares):
            end, at = start + share.own.numel(), 0
            found: dict[str, list[torch.Tensor]] = {}
            for own in self.own:
                size = own.numel()
                if at < end and start < at + size:
                    for key, value in state.get(own, {}).items():
                        if isinstance(value, torch.Tensor):
                            row = value.shape == own.shape
                            part = value[max(0, start - at) : end - at] if row else value
                            found.setdefault(key, []).append(part)
                at += size
            for key, pieces in found.items():
                yield name, share, key, pieces
            start = end


class Optimizer:
    """Made by `Applied.optimizer()`: `factory(parameters, **options)` is one of torch.optim that looks at each element
    alone, as SGD and the Adams do. `buckets`: parameters that may be updated together."""

    def __init__(
        self, parameters: Mapping[str, torch.nn.Parameter], factory: Callable[..., torch.optim.Optimizer], cut: bool,
        buckets: Iterable[Bucket], **options: Any,
    ) -> None:  # fmt: skip
        self._rows = [] if cut else [_Row(bucket) for bucket in buckets if bucket.still_together()]
        together = {name for row in self._rows for name in row.names}
        self._shares = {n: _Share(p, cut) for n, p in parameters.items() if p.requires_grad and n not in together}
        # Those of torch want one parameter at least, and a stage may have none.
        own = [piece for row in self._rows for piece in row.own] + [share.own for share in self._shares.values()]
        self.inner = factory(own or [torch.nn.Parameter(torch.empty(0))], **options)

    def zero_grad(self) -> None:
        for share in itertools.chain(self._shares.values(), *(row.shares for row in self._rows)):
            share.parameter.grad = share.own.grad = None
        for row in self._rows:
            row.forget()

    def step(self) -> None:
        """Updates the parameters by their gradients. Collective among their copies."""
        with torch.no_grad():
            for row in list(self._rows):
                if not row.arrive():
                    self._part(row)
            for share in self._shares.values():
                share.arrive()
            self.inner.step()
            for share in self._shares.values():
                share.leave()

    def _part(self, row: _Row) -> None:
        """The parameters of a row are updated each by itself from now on."""
        state = self.inner.state
        group = next(group for group in self.inner.param_groups if any(own is row.own[0] for own in group["params"]))
        for _, share, key, pieces in row.parts(state):
            state[share.own][key] = torch.cat(pieces) if pieces[0].dim() else pieces[0].clone()
        gone = {id(own) for own in row.own}
        group["params"] = [own for own in group["params"] if id(own) not in gone] + [share.own for share in row.shares]
        for own in row.own:
            state.pop(own, None)
        self._rows.remove(row)
        self._shares |= zip(row.names, row.shares)

    def _entries(self) -> Iterator[tuple[str, _Share, list[torch.Tensor]]]:
        """By name, and the tensors that one after the other are the state, or which all have its number; before the first
        step, as that will make them."""
        if not self.inner.state:
            rates = [group["lr"] for group in self.inner.param_groups]
            for group in self.inner.param_groups:
                group["lr"] = 0.0
                for own in group["params"]:
                    own.grad = torch.zeros_like(own)
            self.inner.step()
            for group, rate in zip(self.inner.param_groups, rates):
                group["lr"] = rate
            for value in itertools.chain(*(state.values() for state in self.inner.state.values())):
                if isinstance(value, torch.Tensor):
                    value.zero_()
        for name, share in self._shares.items():
            for key, value in self.inner.state.get(share.own, {}).items():
                if isinstance(value, torch.Tensor):
                    yield f"{name}:{key}", share, [value]
        for row in self._rows:
            for name, share, key, pieces in row.parts(self.inner.state):
                yield f"{name}:{key}", share, pieces

    def state_dict(self) -> dict[str, Any]:
        """DTensors that lie as their parameters, and numbers. Collective among copies."""
        return {
            name: share.whole(torch.cat(pieces)) if pieces[0].dim() else pieces[0].clone()
            for name, share, pieces in self._entries()
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """What state_dict() gave, filled by reshard_state_dict() or a checkpoint's reader."""
        for name, share, pieces in self._entries():
            if name not in state:
                raise InputError(f"the state has no '{name}', which {type(self.inner).__name__} needs")
            given = share.part(state[name]) if isinstance(state[name], DTensor) else state[name]
            parts = given.split([piece.numel() for piece in pieces]) if pieces[0].dim() else [given] * len(pieces)
            for piece, part in zip(pieces, parts):
                piece.copy_(part)
