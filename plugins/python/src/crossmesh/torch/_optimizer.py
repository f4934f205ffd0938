# SPDX-License-Identifier: Apache-2.0
"""An optimizer of a model that lies as planned. Where the plan says so (ZeRO-1), copies of a parameter share its state out:
each updates its part, and gives it to the others. State has the parameters' names and layouts, so that a checkpoint of one
plan is read under another."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor, Replicate

from ..errors import InputError

__all__ = ["Optimizer"]


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


class Optimizer:
    """Made by `Applied.optimizer()`: `factory(parameters, **options)` is one of torch.optim that looks at each element
    alone, as SGD and the Adams do."""

    def __init__(
        self, parameters: Mapping[str, torch.nn.Parameter], factory: Callable[..., torch.optim.Optimizer], cut: bool,
        **options: Any,
    ) -> None:  # fmt: skip
        self._shares = {name: _Share(parameter, cut) for name, parameter in parameters.items() if parameter.requires_grad}
        # Those of torch want one parameter at least, and a stage may have none.
        own = [share.own for share in self._shares.values()] or [torch.nn.Parameter(torch.empty(0))]
        self.inner = factory(own, **options)

    def zero_grad(self) -> None:
        for share in self._shares.values():
            share.parameter.grad = None

    def step(self) -> None:
        """Updates the parameters by their gradients. Collective among their copies."""
        with torch.no_grad():
            for share in self._shares.values():
                share.arrive()
            self.inner.step()
            for share in self._shares.values():
                share.leave()

    def _entries(self) -> Iterator[tuple[str, _Share, str, Any]]:
        """By name; before the first step, as that will make them."""
        if not self.inner.state:
            rates = [group["lr"] for group in self.inner.param_groups]
            for share in self._shares.values():
                share.own.grad = torch.zeros_like(share.own)
            for group in self.inner.param_groups:
                group["lr"] = 0.0
            self.inner.step()
            for group, rate in zip(self.inner.param_groups, rates):
                group["lr"] = rate
            for value in itertools.chain(*(state.values() for state in self.inner.state.values())):
                if isinstance(value, torch.Tensor):
                    value.zero_()
        for name, share in self._shares.items():
            for key, value in self.inner.state.get(share.own, {}).items():
                if isinstance(value, torch.Tensor):
                    yield f"{name}:{key}", share, key, value

    def state_dict(self) -> dict[str, Any]:
        """DTensors that lie as their parameters, and numbers. Collective among copies."""
        return {
            name: share.whole(value) if value.shape == share.own.shape else value.clone()
            for name, share, _, value in self._entries()
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """What state_dict() gave, filled by reshard_state_dict() or a checkpoint's reader."""
        for name, share, _, value in self._entries():
            if name not in state:
                raise InputError(f"the state has no '{name}', which {type(self.inner).__name__} needs")
            value.copy_(share.part(state[name]) if isinstance(state[name], DTensor) else state[name])
