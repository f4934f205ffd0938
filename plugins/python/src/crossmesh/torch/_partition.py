# SPDX-License-Identifier: Apache-2.0
"""A stage's operators on the ranks of its mesh: each runs on parts, as planned, with its collectives around it.

Everything is known before the first step: which part of a tensor a rank has, what an operator makes of the parts it is
given (a part, or a part of a sum), and what must be moved before and after. So a step is plain PyTorch on local tensors
with moves between them that autograd knows; the parameters are DTensors.
"""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DeviceMesh, DTensor, Partial, Placement, Replicate, Shard

from ..errors import InputError
from ._operators import Local, Operand, Run, Term
from ._plan import Cut, Placed, Stage, axes_of_term, placements_of
from ._sums import Steps, add_up, axes_of

__all__ = ["BUCKET", "StageModule", "bucket_bytes", "cut_out", "redistributed", "register"]

Placements = tuple[Placement, ...]
End = tuple[str, Placements]  # of a boundary: a tensor may pass in several layouts, one for each reader
Values = dict[End, torch.Tensor]

# Bytes of gradients that are added up together, while the backward pass finds the next. The first that are found begin
# early; more than in one of the others would no longer make them quicker.
FIRST_BUCKET, BUCKET = 1 << 20, 25 << 20


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
        src = _summed(between)
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
    def forward(ctx: Any, local: torch.Tensor, way: _Way) -> torch.Tensor:
        ctx.way = way
        moved = redistributed(local, way.mesh, *way.there, way.steps)
        return moved.view_as(moved) if moved is local else moved

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        src, dst = ctx.way.back
        return redistributed(grads[0], ctx.way.mesh, src, dst, ctx.way.back_steps), None


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


def _partial_axes(placements: Placements) -> list[int]:
    return [axis for axis, place in enumerate(placements) if isinstance(place, Partial)]


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
    merged: Run | None = None
    product: bool = False  # of a split backward pass its parameters' gradients are the other half


class _Parameter:
    """A parameter's part, what a step has found of its gradient, and where that has to go."""

    def __init__(self, whole: torch.nn.Parameter, placements: Placements, grad: Placements, steps: Steps) -> None:
        self.dtensor, self.placements, self.grad, self.steps = whole, placements, grad, steps
        self.ways: list[_Way | None] = []  # of the uses
        self.begin()

    def begin(self) -> None:
        """Of a step: what a DTensor costs to look into it is paid once."""
        whole: Any = self.dtensor
        self.part: torch.Tensor = whole._local_tensor  # to_local() is an operator, a tenth of a millisecond each
        self.found: dict[_Way | None, torch.Tensor] = {}
        self.missing = 0  # gradients that the last pass has still to find

    def like(self, part: torch.Tensor) -> Any:
        """The DTensor of a part that lies as the parameter's; from_local() asks what is known."""
        whole: Any = self.dtensor
        return DTensor(part, whole._spec, requires_grad=False)

    def add(self, grad: torch.Tensor, way: _Way | None) -> None:
        """Not in place: autograd may need the memory for something else, too."""
        self.found[way] = self.found[way] + grad if way in self.found else grad

    def take(self) -> torch.Tensor | None:
        """What all uses have found; those that read it alike move it back together, in the order of the uses."""
        moved = [
            grad if way is None else redistributed(grad, way.mesh, *way.back, way.back_steps)
            for way, grad in ((way, self.found.pop(way)) for way in self.ways if way in self.found)
        ]
        return sum(moved[1:], moved[0]) if moved else None


@dataclass
class _Bucket:
    """Gradients that are added up in one all-reduce: small ones cost mostly what each costs alone."""

    src: Placements
    steps: Steps
    names: list[str] = field(default_factory=list)
    members: dict[str, torch.Tensor] = field(default_factory=dict)  # that a step has found
    flat: torch.Tensor | None = None
    work: Any = None
    loss: bool = False  # its last element is the loss


_Use = tuple[_Parameter, torch.Tensor, _Way | None]


@dataclass
class _Operation:
    """An operator that has read parameters in a pass: what it made, and the leaves it read."""

    made: torch.Tensor
    uses: list[_Use]
    product: bool
    grad: torch.Tensor | None = None


@dataclass
class _Held:
    """What the forward pass of a micro-batch leaves for its backward pass."""

    arrived: Values
    ends: Values
    operations: list[_Operation]


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


def bucket_bytes(sizes: Iterable[int]) -> float:
    """Of the buckets for gradients of these sizes, in the middle."""
    total = sum(sizes)
    return total / (1 + math.ceil(max(0, total - FIRST_BUCKET) / BUCKET))


def register(root: torch.nn.Module, name: str, parameter: torch.nn.Parameter) -> None:
    """Under the model's name: modules in between are made."""
    *path, last = name.split(".")
    home = root
    for part in path:
        if part not in home._modules:
            home.add_module(part, torch.nn.Module())
        home = home.get_submodule(part)
    home.register_parameter(last, parameter)


class StageModule:
    """The part of a model that a stage runs; its parameters have the model's names and are DTensors on its mesh."""

    def __init__(
        self,
        stage: Stage,
        mesh: DeviceMesh,
        parameters: dict[str, torch.nn.Parameter],
        *,
        arrives: Sequence[End],  # what comes from stages before
        leaves: Sequence[End],  # what goes to others, or the loss
        late: set[str],  # operators that nothing but the loss needs, see Program.late()
        device: torch.device,
        seed: int,
    ) -> None:
        self.mesh, self.device = mesh, device
        self.micro_batches: list[dict[str, torch.Tensor]] = []
        self.draws = _Draws(seed)
        self._own: dict[str, _Parameter] = {}
        self._arrives, self._leaves, self._recompute = arrives, leaves, stage.recompute
        self._late_names = late
        self._late: Placements = ()
        self._late_steps: Steps = ()
        self._held: dict[int, _Held] = {}
        self._losses: list[torch.Tensor] = []  # of a step's micro-batches so far, where they are added up with gradients
        self._loss: torch.Tensor | None = None  # of the step, added up so
        self._steps = self._compile(stage, parameters)
        self._buckets = self._bucketed()
        self._begun, self._passed = 0, 0  # buckets that are on their way, and backward passes

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
        kept: dict[str, Placements] = dict(reversed(self._arrives))  # of a tensor that comes twice, the first
        for name, uses in self._uses(stage).items():
            # One sum at the end of the step is enough where all uses see the parameter alike.
            places = tuple(getattr(parameters[name], "placements"))
            alike = all(use[:2] == (places, uses[0][1]) for use in uses)
            self._own[name] = _Parameter(parameters[name], places, uses[0][1] if alike else places, uses[0][2])
        steps: list[_Step] = []
        late = self._lately([placed for placed in stage.operators if placed.operator.name in self._late_names])
        for placed in stage.operators:
            if late and placed.operator.name in self._late_names:
                kept[placed.name] = late
                steps.append(self._step(placed, kept, late))
                self._late_steps = self._late_steps or placed.sums.get(len(placed.operator.planned), ())
            else:
                steps.append(self._step(placed, kept))
                kept[placed.name] = placed.result
        for name, _ in self._leaves:
            if name not in kept:
                raise InputError(f"stage of ranks {stage.ranks}: '{name}' is not computed in it")
        self._late = late
        self._ends = {
            (name, places): None if late else _way(self.mesh, kept[name], places, places, kept[name])
            for name, places in self._leaves
        }
        steps = self._merged(steps)
        seen = {name for name, _ in self._leaves}
        for step in reversed(steps):
            names = {read.key for read in step.reads if read.kind == "result"}
            step.last = sorted(names - seen)
            seen |= names
        return steps

    def _merged(self, steps: list[_Step]) -> list[_Step]:
        """With operators as torch runs them: a product and its bias are one, where nothing comes between."""
        readers: dict[str, int] = {name: 1 for name, _ in self._leaves}
        for read in (read for step in steps for read in step.reads):
            readers[read.key] = readers.get(read.key, 0) + 1
        found: dict[str, _Step] = {}
        for step in steps:
            first = step.reads[0] if step.reads else None
            whole = first is not None and first.way is None and first.operand.cast is None and first.operand.order is None
            before = found.get(first.key) if first is not None and whole and readers[first.key] == 1 else None
            if step.merged is not None and before is not None and before.way is None:
                del found[before.key]
                reads = [*before.reads, *step.reads[1:]]
                step = _Step(step.key, step.merged, reads, step.local, step.way, [], product=before.product)
            found[step.key] = step
        return list(found.values())

    def _computed(self, placed: Placed) -> Placements:
        """What an operator's ranks have of its result before its collectives: parts, and parts of sums."""
        return _gradient(placed.operator.result, placed.cut, self.mesh.ndim)  # the same rule

    def _lately(self, placed: Sequence[Placed]) -> Placements:
        """How a pass leaves the loss, where ranks may add up what they have of it when the step is done: all that it is a
        sum of is here and cut alike. Empty where they must do so in each pass."""
        sums = {self._computed(entry) for entry in placed if entry.operator.kind != "elementwise"}
        if {entry.operator.name for entry in placed} != self._late_names or len(sums) != 1:
            return ()
        places = sums.pop()
        return places if any(isinstance(place, Partial) for place in places) else ()

    def summed_loss(self, loss: torch.Tensor) -> torch.Tensor:
        """Of all ranks, from what the passes of a step gave."""
        if self._loss is not None:
            return self._loss
        return redistributed(loss, self.mesh, self._late, _summed(self._late), self._late_steps) if self._late else loss

    def _step(self, placed: Placed, kept: dict[str, Placements], late: Placements = ()) -> _Step:
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
                own.ways += [] if way in own.ways else [way]
                reads.append(_Read(operand.name, operand.kind, operand, way))
            else:
                way = None if kept[key] == late else _way(self.mesh, kept[key], layout, grad, kept[key])
                reads.append(_Read(key, operand.kind, operand, way))
        computed = self._computed(placed)
        sizes = dict(operator.sizes)
        for letter, axes in cut.items():
            for axis in axes:
                sizes[letter] //= self.mesh.size(axis)
        coordinate = self.mesh.get_coordinate()
        assert coordinate is not None
        place = tuple(coordinate[axis] if isinstance(p, Shard) else -1 for axis, p in enumerate(computed))
        local = Local(sizes, self.draws.source(operator.name, place))
        steps = placed.sums.get(len(operator.planned), ())
        way = None if late else _way(self.mesh, computed, placed.result, placed.result, _summed(computed), steps)
        return _Step(placed.name, operator.run, reads, local, way, [], operator.merged, operator.kind == "einsum")

    def _get(
        self, read: _Read, results: dict[str, torch.Tensor], moved: dict[str, dict[_Way | None, torch.Tensor]],
        inputs: dict[str, torch.Tensor], uses: list[_Use],
    ) -> torch.Tensor:  # fmt: skip
        if read.part is not None:
            return read.part
        if read.kind == "input":
            return cut_out(inputs[read.key], self.mesh, read.places)
        # Readers that want a tensor alike share what was moved, and their gradients are added before they move back: one
        # collective each way, as the planner counts.
        copies = moved.setdefault(read.key, {})
        if read.kind == "parameter":
            own = self._own[read.key]
            if read.way not in copies:
                way = read.way
                copies[way] = own.part if way is None else redistributed(own.part, way.mesh, *way.there, way.steps)
            # For each use a leaf of its own, so that its gradient can be asked for apart from all others.
            value = copies[read.way].detach().requires_grad_(own.dtensor.requires_grad)
            if value.requires_grad:
                uses.append((own, value, read.way))
        elif read.way is None:
            value = results[read.key]
        else:
            if read.way not in copies:
                copies[read.way] = read.way(results[read.key])
            value = copies[read.way]
        if read.operand.cast is not None:
            value = value.to(read.operand.cast)
        return value if read.operand.order is None else value.permute(read.operand.order)

    def begin(self, micro_batches: list[dict[str, torch.Tensor]]) -> None:
        """The inputs of a step, whole on every rank."""
        self.micro_batches = micro_batches
        self._held.clear()
        self._losses.clear()
        self._loss = None
        self._begun = self._passed = 0
        for parameter in self._own.values():
            parameter.begin()
        self.draws.step += 1

    def _run(self, k: int, arrived: Values) -> _Held:
        results, operations = {name: arrived[name, places] for name, places in reversed(self._arrives)}, []
        moved: dict[str, dict[_Way | None, torch.Tensor]] = {}
        self.draws.micro_batch = k
        for step in self._steps:
            uses: list[_Use] = []
            parts = [self._get(read, results, moved, self.micro_batches[k], uses) for read in step.reads]
            made = step.run(parts, step.local)
            if uses and made.requires_grad:
                operations.append(_Operation(made, uses, step.product))
            results[step.key] = made if step.way is None else step.way(made)
            for name in step.last:
                results.pop(name, None)
                moved.pop(name, None)
        ends = {end: results[end[0]] if way is None else way(results[end[0]]) for end, way in self._ends.items()}
        return _Held(arrived, ends, operations)

    def forward_pass(self, k: int, arrived: Values, training: bool) -> Values:
        """What leaves, of micro-batch k. A stage that recomputes keeps what arrived, and nothing else."""
        if not training or self._recompute:
            with torch.no_grad():
                held = self._run(k, arrived)
            if training:
                self._held[k] = _Held(arrived, {}, [])
            return held.ends
        leaves = {name: value.detach().requires_grad_(value.is_floating_point()) for name, value in arrived.items()}
        self._held[k] = held = self._run(k, leaves)
        left = {name: value.detach() for name, value in held.ends.items()}
        if self._late:
            self._losses += left.values()
        return left

    def backward_pass(self, k: int, grads: dict[End, list[torch.Tensor]], split: bool) -> Values:
        """Gradients of what arrived. `grads` are those of what has left, one from each place; the loss has none. Split,
        those of products' parameters are left to weight_pass(): what they need is kept. Others are next to no work, or come
        from the same kernel as the gradient of the input."""
        held = self._held[k]
        if not held.ends:
            leaves = {name: value.detach().requires_grad_(value.is_floating_point()) for name, value in held.arrived.items()}
            self._held[k] = held = self._run(k, leaves)
        ends, given = [], []
        for name, end in held.ends.items():
            if end.requires_grad:
                came = grads.get(name)
                ends.append(end)
                given.append(torch.ones_like(end) if came is None else came[0] if len(came) == 1 else sum(came[1:], came[0]))
        names = [name for name, value in held.arrived.items() if value.requires_grad]
        later = [operation for operation in held.operations if operation.product] if split else []
        uses = [use for operation in held.operations if not (split and operation.product) for use in operation.uses]
        wanted = [held.arrived[name] for name in names] + [leaf for _, leaf, _ in uses]
        wanted += [operation.made for operation in later]
        self._passed += 1
        overlapped = not split and self._is_last(k)
        if overlapped:  # the sums of what is complete begin while autograd goes on
            for parameter, _, _ in uses:
                parameter.missing += 1
            for parameter, leaf, way in uses:
                leaf.register_hook(functools.partial(self._last, parameter, way))
        found: Sequence[torch.Tensor | None] = [None] * len(wanted)
        if ends and wanted:
            found = torch.autograd.grad(ends, wanted, given, retain_graph=split, allow_unused=True)
        rest = found[len(names) :]
        for (parameter, _, way), grad in zip(uses, rest):
            if grad is not None and not overlapped:
                parameter.add(grad, way)
        for operation, grad in zip(later, rest[len(uses) :]):
            operation.grad = grad
        if not split:
            del self._held[k]
        return {name: grad for name, grad in zip(names, found) if grad is not None}

    def weight_pass(self, k: int) -> None:
        """The other half: each product's parameters from the gradient of what it made, and no further back. In the last of
        a step the sums of what is complete begin on the way, in about the order of the buckets."""
        last = self._is_last(k)
        operations = [o for o in reversed(self._held.pop(k).operations) if o.grad is not None]
        for parameter, _, _ in (use for operation in operations if last for use in operation.uses):
            parameter.missing += 1
        for operation in operations:
            leaves = [leaf for _, leaf, _ in operation.uses]
            found = torch.autograd.grad(operation.made, leaves, operation.grad, allow_unused=True)
            for (parameter, _, way), grad in zip(operation.uses, found):
                if last:
                    self._last(parameter, way, grad)
                elif grad is not None:
                    parameter.add(grad, way)

    def _is_last(self, k: int) -> bool:
        """Whether no micro-batch but k has gradients of parameters to find."""
        return self._passed == len(self.micro_batches) and self._held.keys() == {k}

    def _bucketed(self) -> list[_Bucket]:
        """In the order in which backward passes complete them, about the reverse of the uses; equal on all ranks."""
        made: list[_Bucket] = []
        filling: dict[Any, tuple[_Bucket, int]] = {}
        for name, own in reversed(self._own.items()):
            if own.grad == own.placements or own.placements != _summed(own.grad) or not own.dtensor.requires_grad:
                continue
            alike = own.part.dtype, tuple(p if isinstance(p, Partial) else Replicate() for p in own.grad), own.steps
            bucket, nbytes = filling.get(alike, (None, 0))
            if bucket is None or nbytes + own.part.nbytes > (FIRST_BUCKET if bucket is made[0] else BUCKET):
                bucket, nbytes = _Bucket(*alike[1:]), 0
                made.append(bucket)
            bucket.names.append(name)
            filling[alike] = bucket, nbytes + own.part.nbytes
        return made

    def _last(self, parameter: _Parameter, way: _Way | None, grad: torch.Tensor | None) -> None:
        """A gradient that the last pass has found. Buckets begin in their order, so that ranks agree in it."""
        if grad is not None:
            parameter.add(grad, way)
        parameter.missing -= 1
        while self._begun < len(self._buckets):
            bucket = self._buckets[self._begun]
            if any(self._own[name].missing or not self._own[name].found for name in bucket.names):
                return
            self._begin_sum(bucket)

    def _begin_sum(self, bucket: _Bucket) -> None:
        self._begun += 1
        taken = ((name, self._own[name].take()) for name in bucket.names)
        bucket.members = {name: grad for name, grad in taken if grad is not None}
        if not bucket.members:
            return
        flat = self._mean(torch.cat([grad.reshape(-1) for grad in bucket.members.values()]))
        axes = _partial_axes(bucket.src)
        if bucket.steps or len(axes) > 1:  # one after the other, at the end
            bucket.flat = flat
        else:
            # The last one takes the loss along where the same ranks add it up: a collective less, which takes longer
            # than so few bytes.
            if bucket is self._buckets[-1] and self._losses and self._losses[0].dtype == flat.dtype:
                bucket.loss = axes == _partial_axes(self._late)
                flat = torch.cat([flat, torch.stack(self._losses).mean().reshape(1)]) if bucket.loss else flat
            bucket.flat, bucket.work = flat, dist.all_reduce(flat, group=self.mesh.get_group(axes[0]), async_op=True)

    def _mean(self, grad: torch.Tensor) -> torch.Tensor:
        return grad if len(self.micro_batches) == 1 else grad * (1.0 / len(self.micro_batches))

    def gradients(self) -> dict[str, Any]:
        """Those of the micro-batches of a step together, their mean, added up over the ranks."""
        found: dict[str, torch.Tensor] = {}
        while self._begun < len(self._buckets):
            self._begin_sum(self._buckets[self._begun])
        for name, own in self._own.items():
            grad = own.take()
            if grad is not None:
                found[name] = redistributed(self._mean(grad), self.mesh, own.grad, own.placements, own.steps)
        for bucket in self._buckets:
            flat, bucket.flat = bucket.flat, None
            if flat is None:
                continue
            if bucket.work is None:
                flat = redistributed(flat, self.mesh, bucket.src, _summed(bucket.src), bucket.steps)
            else:
                bucket.work.wait()
                bucket.work = None
            if bucket.loss:
                flat, self._loss = flat[:-1], flat[-1].clone()
                bucket.loss = False
            parts = flat.split([grad.numel() for grad in bucket.members.values()])
            found |= {name: part.view(grad.shape) for (name, grad), part in zip(bucket.members.items(), parts)}
            bucket.members = {}
        return {name: self._own[name].like(grad) for name, grad in found.items()}
