# SPDX-License-Identifier: Apache-2.0
"""Runs a schedule: this device's list of passes, one after the other, whatever schedule made it.

What a pass gives leaves at once; what the next passes need is received ahead, into as many buffers as micro-batches are
in flight, while this device computes. So the list alone says what waits for what."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.distributed.tensor import DeviceMesh

from ..job import Job
from ..plan import Plan as Reshardings
from ..plan import TensorSpec
from ._describe import dtype_name
from ._partition import End, StageModule, Values
from ._plan import Boundary
from ._redistribute import redistributed
from ._schedule import Order, in_flight
from .pipeline import Boundary as Ends
from .pipeline import Way

__all__ = ["Crossing", "Executor", "LocalCrossing"]



class LocalCrossing:
    """Between two stages of one device."""

    def __init__(self, tensors: Sequence[Boundary], mesh: DeviceMesh) -> None:
        self.tensors, self._mesh = tensors, mesh
        self._there: dict[int, Values] = {}
        self._back: dict[int, list[tuple[End, torch.Tensor]]] = {}

    def begin(self, count: int, training: bool) -> None:
        self._there.clear()
        self._back.clear()

    def send(self, k: int, values: Values) -> None:
        self._there[k] = {
            (t.tensor, t.dst): redistributed(values[t.tensor, t.src], self._mesh, t.src, t.dst) for t in self.tensors
        }

    def arrived(self, k: int) -> Values:
        return self._there.pop(k)

    def send_back(self, k: int, grads: Values) -> None:
        self._back[k] = [
            ((t.tensor, t.src), redistributed(grads[t.tensor, t.dst], self._mesh, t.dst, t.src))
            for t in self.tensors
            if (t.tensor, t.dst) in grads
        ]

    def come_back(self, k: int) -> Sequence[tuple[End, torch.Tensor]]:
        return self._back.pop(k)

    def release(self, k: int) -> None:
        pass

    def wait(self) -> None:
        pass

    def close(self) -> None:
        pass


class Crossing:
    """Between stages of two devices: reshards there and back, a pair for each micro-batch in flight. All ranks of the job
    make it together; those of neither device take part in nothing else."""

    def __init__(
        self, tensors: Sequence[Boundary], meshes: tuple[DeviceMesh, DeviceMesh], slots: int, job: Job, device: torch.device,
        timeout: float | None, profile: str | None,
    ) -> None:  # fmt: skip
        self.tensors, self._slots = tensors, slots
        # A buffer is filled ahead by as many micro-batches as there are.
        self._timeout = (job.timeout if timeout is None else timeout) * (slots + 1)
        self._count, self._training = 0, False
        self._source, self._target = (job.rank in mesh.mesh.flatten().tolist() for mesh in meshes)
        self._there = self._ways(job, tensors, meshes, device, profile, False)
        floats = [t for t in tensors if t.dtype.is_floating_point]
        self._back = self._ways(job, floats, meshes, device, profile, True) if floats else []

    def _ways(
        self, job: Job, tensors: Sequence[Boundary], meshes: tuple[DeviceMesh, DeviceMesh], device: torch.device,
        profile: str | None, back: bool,
    ) -> list[Way]:  # fmt: skip
        specs = []
        for t in tensors:
            ends = Ends(t.shape, t.dtype, (meshes[0], t.src), (meshes[1], t.dst)).layouts()
            specs.append(TensorSpec(ends[back], ends[not back], 8 * t.dtype.itemsize, t.tensor))
        plan = Reshardings(specs, job.network(profile), strategy=tensors[0].strategy, scheduler=tensors[0].scheduler)
        dtype = ",".join(dtype_name(t.dtype) for t in tensors)

        def part(layout: Any, t: Boundary) -> torch.Tensor | None:
            shape = layout.tile_shape(job.rank)
            return None if shape is None else torch.zeros(shape, dtype=t.dtype, device=device)

        made = []
        for _ in range(self._slots):
            send = {t: part(spec.src, t) for spec, t in zip(specs, tensors)}
            receive = {t: part(spec.dst, t) for spec, t in zip(specs, tensors)}
            made.append(Way(job, plan, send, receive, dtype=dtype))
        return made

    def begin(self, count: int, training: bool) -> None:
        self._count, self._training = count, training
        for k in range(-self._slots, 0):
            self.release(k)

    def release(self, k: int) -> None:
        """What came with micro-batch k is used up: its buffers are free for the next that comes there."""
        after = k + self._slots
        if after < self._count:
            if self._target:
                self._there[after % self._slots].post(self._timeout)
            elif self._source and self._training and self._back:
                self._back[after % self._slots].post(self._timeout)

    def send(self, k: int, values: Values) -> None:
        self._there[k % self._slots].send({t: values[t.tensor, t.src] for t in self.tensors}, self._timeout)

    def arrived(self, k: int) -> Values:
        return {(t.tensor, t.dst): value for t, value in self._there[k % self._slots].received().items()}

    def send_back(self, k: int, grads: Values) -> None:
        if self._back:
            self._back[k % self._slots].send({t: grads.get((t.tensor, t.dst)) for t in self.tensors}, self._timeout)

    def come_back(self, k: int) -> Sequence[tuple[End, torch.Tensor]]:
        """Of each tensor that went. One end may have several, which went from one layout into two."""
        return [((t.tensor, t.src), value) for t, value in self._back[k % self._slots].received().items()] if self._back else []

    def wait(self) -> None:
        for way in (*self._there, *self._back):
            way.wait()

    def close(self) -> None:
        """What is still under way, since a step has failed, is given up here and on the other ranks."""
        for way in (*self._there, *self._back):
            way.close()


class Executor:
    """This device's stages under a schedule. `meshes` are those of all stages."""

    def __init__(
        self, order: Order, device_of: Mapping[int, int], device: int, stages: dict[int, StageModule],
        boundaries: Sequence[Boundary], meshes: Sequence[DeviceMesh], micro_batches: int, job: Job | None, place: torch.device,
        timeout: float | None, profile: str | None,
    ) -> None:  # fmt: skip
        self.passes, self.stages, self._count = order[device], stages, micro_batches
        self.crossings: list[Crossing | LocalCrossing] = []
        self._into: dict[int, list[Crossing | LocalCrossing]] = {number: [] for number in stages}
        self._out: dict[int, list[Crossing | LocalCrossing]] = {number: [] for number in stages}
        for (source, target), group in itertools.groupby(boundaries, lambda b: (b.source, b.target)):
            tensors = list(group)
            if device_of[source] == device_of[target]:
                if source not in stages:
                    continue
                crossing: Crossing | LocalCrossing = LocalCrossing(tensors, meshes[source])
            else:
                assert job is not None
                slots = 1 + max(in_flight(order[device_of[stage]], stage) for stage in (source, target))
                pair = (meshes[source], meshes[target])
                crossing = Crossing(tensors, pair, min(slots, micro_batches), job, place, timeout, profile)
            self.crossings.append(crossing)
            for table, stage in ((self._out, source), (self._into, target)):
                if stage in stages:
                    table[stage].append(crossing)

    def run(self, training: bool) -> None:
        """One step."""
        for crossing in self.crossings:
            crossing.begin(self._count, training)
        for stage, kind, k in self.passes:
            if kind == "F":
                self._forward(stage, k, training)
            elif training:
                self._backward(stage, kind, k)
        for crossing in self.crossings:
            crossing.wait()

    def _forward(self, stage: int, k: int, training: bool) -> None:
        arrived: Values = {}
        for crossing in self._into[stage]:
            arrived.update(crossing.arrived(k))
        made = self.stages[stage].forward_pass(k, arrived, training)
        for crossing in self._out[stage]:
            crossing.send(k, made)
        if not training:
            for crossing in self._into[stage]:
                crossing.release(k)

    def _backward(self, stage: int, kind: str, k: int) -> None:
        module = self.stages[stage]
        if kind == "W":
            module.weight_pass(k)
        else:
            grads: dict[End, list[torch.Tensor]] = {}
            for crossing in self._out[stage]:
                for end, grad in crossing.come_back(k):
                    grads.setdefault(end, []).append(grad)
            found = module.backward_pass(k, grads, split=kind == "I")
            for crossing in self._into[stage]:
                crossing.send_back(k, found)
        if kind != "I":
            for crossing in (*self._into[stage], *self._out[stage]):
                crossing.release(k)

    def close(self) -> None:
        for crossing in self.crossings:
            crossing.close()
