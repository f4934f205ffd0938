# SPDX-License-Identifier: Apache-2.0
"""A stage's operators on the ranks of its mesh: each runs on parts, as planned, with its collectives around it.

Everything is known before the first step: which part of a tensor a rank has, what an operator makes of the parts it is
given (a part, or a part of a sum), and what must be moved before and after. So a step is plain PyTorch on local tensors
with moves between them that autograd knows; the parameters are DTensors.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.tensor import DeviceMesh, DTensor, Partial, Placement, Replicate, Shard

from ..errors import InputError
from ._operators import Local, Operand, Run, Term
from ._plan import Cut, Placed, Stage, axes_of_term, placements_of
from ._sums import Steps, add_up, axes_of

__all__ = ["StageModule", "cut_out"]

Placements = tuple[Placement, ...]


def cut_out(whole: torch.Tensor, mesh: DeviceMesh, placements: Sequence[Placement]) -> torch.Tensor:
    """This rank's part of a tensor that it has whole."""
    coordinate = mesh.get_coordinate()
    assert coordinate is not None
    for axis, placement in enumerate(placements):
        if isinstance(placement, Shard):
            extent = whole.shape[placement.dim] // mesh.size(axis)
            whole = whole.narrow(placement.dim, coordinate[axis] * extent, extent)
    return whole


def _redistributed(
    local: torch.Tensor, mesh: DeviceMesh, src: Placements, dst: Placements, steps: Steps = ()
) -> torch.Tensor:
    """`steps` add up what is partial over their axes and not scattered on the way."""
    axes = axes_of(steps)
    if axes and all(isinstance(src[axis], Partial) and not isinstance(dst[axis], Partial) for axis in axes):
        # What is scattered is so first, so that fewer bytes are summed.
        between = tuple(place if axis in axes else dst[axis] for axis, place in enumerate(src))
        local = add_up(_redistributed(local, mesh, src, between), mesh, steps)
        src = _summed(between)
    if src == dst:
        return local
    there = DTensor.from_local(local.contiguous(), mesh, src, run_check=False).redistribute(placements=dst)
    return there.to_local()


class _Move(torch.autograd.Function):  # type: ignore[misc]
    """From one layout to another; the gradient comes in a layout of its own and leaves in another."""

    @staticmethod
    def forward(ctx: Any, local: torch.Tensor, way: _Way) -> torch.Tensor:
        ctx.way = way
        moved = _redistributed(local, way.mesh, *way.there, way.steps)
        return moved.view_as(moved) if moved is local else moved

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        src, dst = ctx.way.back
        return _redistributed(grads[0], ctx.way.mesh, src, dst, ctx.way.back_steps), None


@dataclass(frozen=True)
class _Way:
    mesh: DeviceMesh
    there: tuple[Placements, Placements]
    back: tuple[Placements, Placements]
    steps: Steps = ()  # of sums, there and back
    back_steps: Steps = ()

    def __call__(self, local: torch.Tensor) -> torch.Tensor:
        moved: torch.Tensor = _Move.apply(local, self)
        return moved


def _way(
    mesh: DeviceMesh, src: Placements, dst: Placements, grad_src: Placements, grad_dst: Placements,
    steps: Steps = (), back_steps: Steps = (),
) -> _Way | None:  # fmt: skip
    """None where nothing moves."""
    still = src == dst and grad_src == grad_dst
    return None if still else _Way(mesh, (src, dst), (grad_src, grad_dst), steps, back_steps)


def _summed(placements: Placements) -> Placements:
    return tuple(Replicate() if isinstance(p, Partial) else p for p in placements)


def _gradient(term: Term, cut: Cut, mesh_rank: int) -> Placements:
    """How an operator's rank has the gradient of an operand: part of a sum over the axes that cut what it lacks."""
    places = list(placements_of(axes_of_term(term, cut), mesh_rank))
    carried = {letter for letters in term for letter in letters}
    for letter, axes in cut.items():
        for axis in axes:
            if letter not in carried:
                places[axis] = Partial()
    return tuple(places)


@dataclass
class _Read:
    """How a step gets one operand."""

    key: str
    kind: str
    operand: Operand
    way: _Way | None = None  # of results and parameters
    places: Placements = ()  # of inputs and constants, which every rank has whole
    part: torch.Tensor | None = None  # of a constant


@dataclass
class _Step:
    key: str
    run: Run
    reads: list[_Read]
    local: Local
    way: _Way | None
    last: list[str]  # results that nothing needs afterwards


class _Parameter:
    """A parameter's part, what a step has found of its gradient, and where that has to go."""

    def __init__(self, whole: torch.nn.Parameter, placements: Placements, grad: Placements, steps: Steps) -> None:
        self.dtensor, self.placements, self.grad, self.steps = whole, placements, grad, steps
        self.leaf: torch.Tensor | None = None

    def lend(self) -> torch.Tensor:
        if self.leaf is None:
            data: Any = self.dtensor.data
            self.leaf = data.to_local().detach().requires_grad_(self.dtensor.requires_grad)
        return self.leaf

    def gradient(self, mesh: DeviceMesh, scale: float) -> Any:
        """That of the step, added up over the ranks once, as a DTensor."""
        leaf, self.leaf = self.leaf, None
        if leaf is None or leaf.grad is None:
            return None
        local = _redistributed(leaf.grad.mul_(scale), mesh, self.grad, self.placements, self.steps)
        return DTensor.from_local(local, mesh, self.placements, run_check=False)


class _Draws:
    """Random numbers: the same for copies of one part, different for parts, operators, micro-batches and steps."""

    def __init__(self, seed: int) -> None:
        self.seed, self.step, self.micro_batch = seed, 0, 0

    def source(self, name: str, place: tuple[int, ...]) -> Callable[[torch.device], torch.Generator]:
        def generator(device: torch.device) -> torch.Generator:
            text = repr((self.seed, self.step, self.micro_batch, name, place)).encode()
            seed = int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") >> 1
            return torch.Generator(device).manual_seed(seed)

        return generator


class StageModule(torch.nn.Module):  # type: ignore[misc]
    """The part of a model that a stage runs; its parameters have the model's names and are DTensors on its mesh."""

    def __init__(
        self,
        stage: Stage,
        mesh: DeviceMesh,
        parameters: dict[str, torch.nn.Parameter],
        *,
        arrives: tuple[str, Placements] | None,  # what comes from the stage before
        leaves: tuple[str, Placements],  # what goes to the next, or the loss
        device: torch.device,
        seed: int,
    ) -> None:
        super().__init__()
        self.mesh, self.device = mesh, device
        self.micro_batches: list[dict[str, torch.Tensor]] = []
        self.draws = _Draws(seed)
        self._own: dict[str, _Parameter] = {}
        for name, parameter in parameters.items():
            self._register(name, parameter)
        self._arrives, self._leaves = arrives, leaves
        self._steps = self._compile(stage, parameters)

    def _register(self, name: str, parameter: torch.nn.Parameter) -> None:
        """Under the model's name: modules in between are made."""
        *path, last = name.split(".")
        home: torch.nn.Module = self
        for part in path:
            if part not in home._modules:
                home.add_module(part, torch.nn.Module())
            home = home.get_submodule(part)
        home.register_parameter(last, parameter)

    def _uses(self, stage: Stage) -> dict[str, list[tuple[Placements, Placements, Steps]]]:
        """Per parameter, the layout of each use and that of its gradient there, and how that is summed."""
        uses: dict[str, list[tuple[Placements, Placements, Steps]]] = {}
        for placed in stage.operators:
            for term, operand in enumerate(placed.operator.planned):
                if operand.kind == "parameter":
                    layout = placements_of(axes_of_term(operand.term, placed.cut))
                    grad = _gradient(operand.term, placed.cut, self.mesh.ndim)
                    uses.setdefault(operand.name, []).append((layout, grad, placed.sums.get(term, ())))
        return uses

    def _compile(self, stage: Stage, parameters: dict[str, torch.nn.Parameter]) -> list[_Step]:
        kept: dict[str, Placements] = {}
        if self._arrives is not None:
            kept[self._arrives[0]] = self._arrives[1]
        for name, uses in self._uses(stage).items():
            # One sum at the end of the step is enough where all uses see the parameter alike.
            places = stage.parameters[name]
            alike = all(use[:2] == (places, uses[0][1]) for use in uses)
            self._own[name] = _Parameter(parameters[name], places, uses[0][1] if alike else places, uses[0][2])
        steps = []
        for placed in stage.operators:
            steps.append(self._step(placed, kept))
            kept[placed.name] = placed.result
        if self._leaves[0] not in kept:
            raise InputError(f"stage of ranks {stage.ranks}: '{self._leaves[0]}' is not computed in it")
        given = kept[self._leaves[0]]
        self._end = _way(self.mesh, given, self._leaves[1], self._leaves[1], given)
        seen = {self._leaves[0]}
        for step in reversed(steps):
            names = {read.key for read in step.reads if read.kind == "result"}
            step.last = sorted(names - seen)
            seen |= names
        return steps

    def _step(self, placed: Placed, kept: dict[str, Placements]) -> _Step:
        operator, cut, rank = placed.operator, placed.cut, self.mesh.ndim
        names = iter(placed.operands)
        reads = []
        for operand in operator.operands:
            layout = placements_of(axes_of_term(operand.term, cut), rank)
            grad = _gradient(operand.term, cut, rank)
            if operand.kind == "constant":
                assert operand.data is not None
                if operand.data.is_meta:
                    raise InputError(f"'{operator.name}' of module '{operator.module}' needs a constant that has no memory")
                part = cut_out(operand.data.to(self.device), self.mesh, layout)
                reads.append(_Read(operand.name, operand.kind, operand, part=part))
                continue
            key = next(names)
            if operand.kind == "input":
                reads.append(_Read(key, operand.kind, operand, places=layout))
            elif operand.kind == "parameter":
                own = self._own[operand.name]
                way = _way(self.mesh, own.placements, layout, grad, own.grad, back_steps=own.steps)
                reads.append(_Read(operand.name, operand.kind, operand, way))
            else:
                reads.append(_Read(key, operand.kind, operand, _way(self.mesh, kept[key], layout, grad, kept[key])))
        made = list(placements_of(axes_of_term(operator.result, cut), rank))
        carried = {letter for letters in operator.result for letter in letters}
        for letter, axes in cut.items():
            for axis in axes:
                if letter not in carried:
                    made[axis] = Partial()
        computed = tuple(made)
        sizes = dict(operator.sizes)
        for letter, axes in cut.items():
            for axis in axes:
                sizes[letter] //= self.mesh.size(axis)
        coordinate = self.mesh.get_coordinate()
        assert coordinate is not None
        place = tuple(coordinate[axis] if isinstance(p, Shard) else -1 for axis, p in enumerate(computed))
        local = Local(sizes, self.draws.source(operator.name, place))
        steps = placed.sums.get(len(operator.planned), ())
        way = _way(self.mesh, computed, placed.result, placed.result, _summed(computed), steps)
        return _Step(placed.name, operator.run, reads, local, way, [])

    def _get(self, read: _Read, results: dict[str, torch.Tensor], inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        if read.part is not None:
            return read.part
        if read.kind == "input":
            return cut_out(inputs[read.key], self.mesh, read.places)
        value = self._own[read.key].lend() if read.kind == "parameter" else results[read.key]
        if read.way is not None:
            value = read.way(value)
        if read.operand.cast is not None:
            value = value.to(read.operand.cast)
        return value if read.operand.order is None else value.permute(read.operand.order)

    def begin(self, micro_batches: list[dict[str, torch.Tensor]]) -> None:
        """The inputs of a step, whole on every rank; forward() takes one micro-batch after the other."""
        self.micro_batches = micro_batches
        for parameter in self._own.values():
            parameter.leaf = None  # the DTensor may have another part by now
        self.draws.step += 1
        self.draws.micro_batch = 0

    def forward(self, *arrived: torch.Tensor) -> torch.Tensor:
        inputs = self.micro_batches[self.draws.micro_batch]
        results: dict[str, torch.Tensor] = {}
        if self._arrives is not None:
            (results[self._arrives[0]],) = arrived
        for step in self._steps:
            made = step.run([self._get(read, results, inputs) for read in step.reads], step.local)
            results[step.key] = made if step.way is None else step.way(made)
            for name in step.last:
                results.pop(name, None)
        self.draws.micro_batch += 1
        end = results[self._leaves[0]]
        return end if self._end is None else self._end(end)

    def gradients(self, scale: float) -> dict[str, Any]:
        """Those of the micro-batches of a step together, added up over the ranks."""
        found = {name: parameter.gradient(self.mesh, scale) for name, parameter in self._own.items()}
        return {name: grad for name, grad in found.items() if grad is not None}

    def add_gradients(self, grads: Mapping[str, Any]) -> None:
        for name, grad in grads.items():
            parameter = self._own[name].dtensor
            parameter.grad = grad if parameter.grad is None else parameter.grad + grad
