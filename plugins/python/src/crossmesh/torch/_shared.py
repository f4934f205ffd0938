# SPDX-License-Identifier: Apache-2.0
"""Parameters that stages of several devices use, as a table of tokens that is also the last layer's: each device has one
of its own, with placements of its own, and they stay equal because each adds the gradients of all."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from ..job import Job
from ._plan import Plan
from ._transfer import StateDictTransfer

__all__ = ["SharedParameters"]


def _local(tensor: Any) -> torch.Tensor:
    """The memory of a DTensor's part."""
    part: torch.Tensor = tensor.detach().to_local()
    return part


class SharedParameters:
    """Made by all ranks together. `own` are the parameters of this rank's device, number `mine`."""

    def __init__(
        self, plan: Plan, mine: int, own: Mapping[str, torch.nn.Parameter], job: Job | None, profile: str | None
    ) -> None:
        self._mine, self._own, self._plan = mine, own, plan
        everywhere = {name: [d for d, there in enumerate(self.homes_of(name)) if there] for name in plan.homes}
        self._homes = {name: homes for name, homes in everywhere.items() if len(homes) > 1}
        self._sent = {name: self._like(own[name]) for name, homes in self._homes.items() if mine in homes}
        self._received = {
            (name, source): self._like(own[name]) for name in self._sent for source in self._homes[name] if source != mine
        }
        # All ways are one transfer, so that what crosses a link in both directions does so at once.
        ways = {
            f"{name} of device {source} for {destination}": (name, source, destination)
            for name, homes in self._homes.items()
            for source, destination in itertools.permutations(homes, 2)
        }
        src = {way: self._sent[name] for way, (name, source, _) in ways.items() if source == mine}
        dst = {way: self._received[name, source] for way, (name, source, there) in ways.items() if there == mine}
        self._transfer = StateDictTransfer(src, dst, job=job, profile=profile) if ways else None
        self._begin()

    def homes_of(self, name: str) -> list[bool]:
        """By device, whether it has the parameter."""
        return [any(name in self._plan.stages[number].parameters for number in numbers) for numbers in self._plan.devices]

    @staticmethod
    def _like(parameter: Any) -> Any:
        part = torch.empty_like(_local(parameter))
        return DTensor.from_local(part, parameter.device_mesh, parameter.placements, run_check=False)

    def _exchange(self, values: Mapping[str, Any]) -> None:
        for name, buffer in self._sent.items():
            if name in values:
                _local(buffer).copy_(_local(values[name]))
        if self._transfer is not None:
            self._transfer.run()

    def _begin(self) -> None:
        """All take the values of the first device that has them."""
        self._exchange(self._own)
        for name in self._sent:
            first = self._homes[name][0]
            if first != self._mine:
                _local(self._own[name]).copy_(_local(self._received[name, first]))

    def settle(self, grads: Mapping[str, Any]) -> None:
        """Adds the gradients of a step up, in one order everywhere, so that sums are equal to the last bit. Collective."""
        self._exchange(grads)
        for name in self._sent.keys() & grads.keys():
            parts = [self._sent[name] if n == self._mine else self._received[name, n] for n in self._homes[name]]
            total = _local(parts[0]).clone()
            for part in parts[1:]:
                total += _local(part)
            _local(grads[name]).copy_(total)

    def close(self) -> None:
        if self._transfer is not None:
            self._transfer.close()
        self._transfer = None
