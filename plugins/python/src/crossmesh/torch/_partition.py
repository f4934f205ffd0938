# SPDX-License-Identifier: Apache-2.0
"""A stage's operators on the ranks of its mesh: each runs on parts, as planned, with its collectives around it.

Everything is known before the first step: which part of a tensor a rank has, what an operator makes of the parts it is
given (a part, or a part of a sum), and what must be moved before and after. So a step is plain PyTorch on local tensors
with moves between them that autograd knows; the parameters are DTensors.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.distributed.tensor import DeviceMesh, Partial, Shard

from ..errors import InputError
from ._gradients import Bucket, Gradients, Parameter, Use
from ._operators import Local, Operand, Operator, Run, Term
from ._plan import Cut, Placed, Stage, axes_of_term, placements_of
from ._redistribute import Placements, Steps, Way, cut_out, partial_axes, redistributed, summed, way_of

__all__ = ["StageModule", "register"]

End = tuple[str, Placements]  # of a boundary: a tensor may pass in several layouts, one for each reader
Values = dict[End, torch.Tensor]


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
    way: Way | None = None  # of results and parameters
    places: Placements = ()  # of inputs and constants, which every rank has whole
    ready: torch.Tensor | None = None  # a constant's part, or the leaf of a parameter that is read as it lies
    leaf: torch.Tensor | None = None  # of such a parameter

    plain: bool = field(init=False)  # a result as it is

    def __post_init__(self) -> None:
        still = self.way is None and self.operand.cast is None and self.operand.order is None
        self.plain = self.kind == "result" and still


@dataclass(frozen=True)
class _Product:
    """How the parameters of a product get their gradients in the second half of a backward pass: as products, too. For each of
    them autograd would look through the graph to where the stage begins."""

    equation: str
    parameters: list[int]  # operands; of several the first is the product's, others are added to it
    factors: list[int]

    def gradients(self, parts: Sequence[torch.Tensor], grad: torch.Tensor) -> list[torch.Tensor]:
        """Of the parameters as they lie."""
        first = torch.einsum(self.equation, grad, *(parts[n].to(grad.dtype) for n in self.factors))
        return [first, *(grad.sum_to_size(parts[n].shape) for n in self.parameters[1:])]


def _product_of(operator: Operator) -> _Product | None:
    """None where it has no parameter or several, or an extent of that is nowhere else, as of what is repeated."""
    terms = []
    for operand in operator.operands:
        order = operand.order if operand.kind != "parameter" and operand.order is not None else range(len(operand.term))
        terms.append("".join(operand.term[dim] for dim in order))
    mine = [n for n, operand in enumerate(operator.operands) if operand.kind == "parameter"]
    single = all(len(letters) == 1 for term in (*(o.term for o in operator.operands), operator.result) for letters in term)
    if operator.kind != "einsum" or len(mine) != 1 or not single:
        return None
    factors = [n for n in range(len(terms)) if n not in mine]
    given = ["".join(operator.result), *(terms[n] for n in factors)]
    if not set(terms[mine[0]]) <= set("".join(given)):
        return None
    return _Product(f"{','.join(given)}->{terms[mine[0]]}", mine, factors)


@dataclass
class _Step:
    key: str
    run: Run
    reads: list[_Read]
    local: Local
    way: Way | None
    last: list[str]  # results that nothing needs afterwards
    merged: Run | None = None
    product: bool = False  # of a split backward pass its parameters' gradients are the other half
    form: _Product | None = None
    uses: list[Use] = field(default_factory=list)  # of parameters that it reads as they lie


@dataclass
class _Operation:
    """An operator that has read parameters in a pass: what it made, and the leaves it read."""

    made: torch.Tensor
    uses: list[Use]
    step: _Step
    form: _Product | None  # where autograd does not know of the parameters, and what was read
    parts: list[torch.Tensor]
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


def register(root: torch.nn.Module, name: str, parameter: torch.nn.Parameter) -> None:
    """Under the model's name: modules in between are made."""
    *path, last = name.split(".")
    home = root
    for part in path:
        if part not in home._modules:
            home.add_module(part, torch.nn.Module())
        home = home.get_submodule(part)
    home.register_parameter(last, parameter)


def _leaves(arrived: Values) -> Values:
    """To autograd what arrives is the beginning."""
    return {name: value.detach().requires_grad_(value.is_floating_point()) for name, value in arrived.items()}


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
        last: bool,  # what leaves is the loss
        splits: bool,  # backward passes come in halves
        device: torch.device,
        seed: int,
    ) -> None:
        self.mesh, self.device, self.splits = mesh, device, splits
        self.micro_batches: list[dict[str, torch.Tensor]] = []
        self.draws = _Draws(seed)
        self._own: dict[str, Parameter] = {}
        self._ways: dict[Any, Way] = {}  # one of each, as they are looked up by
        self._arrives, self._leaves, self._recompute = arrives, leaves, stage.recompute
        self._late_names = late
        self._late: Placements = ()
        self._late_steps: Steps = ()
        self._held: dict[int, _Held] = {}
        self._last = last
        self._losses: list[torch.Tensor] = []  # of a step's micro-batches so far
        self._steps = self._compile(stage, parameters)
        self._gradients = Gradients(mesh, self._own, partial_axes(self._late))
        self._passed = 0  # backward passes of a step so far
        for step in self._steps:
            for read in step.reads:
                if read.kind == "parameter":
                    self._gradients.expect(self._own[read.key], step.product)
                if read.leaf is not None:
                    step.uses.append((self._own[read.key], read.leaf, None))
                    self._gradients.watch(step.uses[-1])

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
            self._own[name] = Parameter(name, parameters[name], places, uses[0][1] if alike else places, uses[0][2])
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
            (name, places): None if late else self._way(kept[name], places, places, kept[name])
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
                plain = all(read.kind == "parameter" and read.operand.order is None for read in step.reads[1:])
                form = before.form if plain else None
                if form is not None:
                    form = replace(form, parameters=[*form.parameters, *range(len(before.reads), len(reads))])
                step = _Step(step.key, step.merged, reads, step.local, step.way, [], None, before.product, form)
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

    def _way(
        self, src: Placements, dst: Placements, grad_src: Placements, grad_dst: Placements, steps: Steps = (),
        back_steps: Steps = (),
    ) -> Way | None:  # fmt: skip
        made = way_of(self.mesh, src, dst, grad_src, grad_dst, steps, back_steps)
        return made and self._ways.setdefault((src, dst, grad_src, grad_dst, steps, back_steps), made)

    def mean_loss(self) -> torch.Tensor:
        """Of the micro-batches and all ranks, once gradients() has ended. Collective."""
        if self._gradients.loss is not None:
            return self._gradients.loss
        loss = torch.stack(self._losses).mean()
        return redistributed(loss, self.mesh, self._late, summed(self._late), self._late_steps) if self._late else loss

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
                reads.append(_Read(operand.name, operand.kind, operand, ready=part))
                continue
            key = next(names)
            if operand.kind == "input":
                reads.append(_Read(key, operand.kind, operand, places=layout))
            elif operand.kind == "parameter":
                own = self._own[operand.name]
                way = self._way(own.placements, layout, grad, own.grad, back_steps=own.steps)
                reads.append(_Read(operand.name, operand.kind, operand, way))
                if way is not None:
                    own.ways += [] if way in own.ways else [way]
                else:
                    leaf = reads[-1].leaf = own.leaf()
                    reads[-1].ready = leaf if operand.cast is None and operand.order is None else None
            else:
                way = None if kept[key] == late else self._way(kept[key], layout, grad, kept[key])
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
        way = None if late else self._way(computed, placed.result, placed.result, summed(computed), steps)
        product = operator.kind == "einsum"
        return _Step(placed.name, operator.run, reads, local, way, [], operator.merged, product, _product_of(operator))

    def _get(
        self, read: _Read, results: dict[str, torch.Tensor], moved: dict[str, dict[Way | None, torch.Tensor]],
        inputs: dict[str, torch.Tensor], uses: list[Use],
    ) -> torch.Tensor:  # fmt: skip
        if read.kind == "input":
            return cut_out(inputs[read.key], self.mesh, read.places)
        # Readers that want a tensor alike share what was moved, and their gradients are added before they move back: one
        # collective each way, as the planner counts.
        if read.leaf is not None:
            value = read.leaf
        elif read.way is None:
            value = results[read.key]
        else:
            copies = moved.setdefault(read.key, {})
            if read.kind == "result":
                if read.way not in copies:
                    copies[read.way] = read.way(results[read.key])
                value = copies[read.way]
            else:
                own, way = self._own[read.key], read.way
                if way not in copies:
                    copies[way] = redistributed(own.part, way.mesh, *way.there, way.steps)
                value = copies[way].detach().requires_grad_(own.dtensor.requires_grad)
                if value.requires_grad:
                    uses.append((own, value, way))
        if read.operand.cast is not None:
            value = value.to(read.operand.cast)
        return value if read.operand.order is None else value.permute(read.operand.order)

    def begin(self, micro_batches: list[dict[str, torch.Tensor]], training: bool) -> None:
        """The inputs of a step, whole on every rank."""
        self.micro_batches = micro_batches
        self._held.clear()
        self._losses.clear()
        self._passed = 0
        self._gradients.begin(len(micro_batches), training)
        self.draws.step += 1

    def _run(self, k: int, arrived: Values) -> _Held:
        results, operations = {name: arrived[name, places] for name, places in reversed(self._arrives)}, []
        moved: dict[str, dict[Way | None, torch.Tensor]] = {}
        inputs = self.micro_batches[k]
        self.draws.micro_batch = k
        for step in self._steps:
            uses: list[Use] = []
            parts = [
                read.ready if read.ready is not None
                else results[read.key] if read.plain
                else self._get(read, results, moved, inputs, uses)
                for read in step.reads
            ]  # fmt: skip
            form = step.form if self.splits and torch.is_grad_enabled() else None
            if form is not None:
                for n in form.parameters:
                    parts[n] = parts[n].detach()
            made = step.run(parts, step.local)
            if form is not None and any(leaf.requires_grad for _, leaf, _ in step.uses + uses):
                made.requires_grad_()
            if (uses or step.uses) and made.requires_grad:
                operations.append(_Operation(made, step.uses + uses, step, form, parts if form is not None else []))
                for use in uses:
                    self._gradients.watch(use)
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
                left = self._run(k, arrived).ends
            if training:
                self._held[k] = _Held(arrived, {}, [])
        else:
            self._held[k] = held = self._run(k, _leaves(arrived))
            left = {name: value.detach() for name, value in held.ends.items()}
        if self._last:
            self._losses += left.values()
        return left

    def backward_pass(self, k: int, grads: dict[End, list[torch.Tensor]], split: bool) -> Values:
        """Gradients of what arrived. `grads` are those of what has left, one from each place; the loss has none. Split,
        those of products' parameters are left to weight_pass(): what they need is kept. Others are next to no work, or come
        from the same kernel as the gradient of the input."""
        held = self._held[k]
        if not held.ends:
            self._held[k] = held = self._run(k, _leaves(held.arrived))
        ends, given = [], []
        for name, end in held.ends.items():
            if end.requires_grad:
                came = grads.get(name)
                ends.append(end)
                given.append(torch.ones_like(end) if came is None else came[0] if len(came) == 1 else sum(came[1:], came[0]))
        self._passed += 1
        if split:
            return self._first_half(held, ends, given)
        self._announce_last(k, half=False)
        if ends:
            torch.autograd.backward(ends, given)
        del self._held[k]
        return {name: value.grad for name, value in held.arrived.items() if value.grad is not None}

    def _first_half(self, held: _Held, ends: list[torch.Tensor], given: list[torch.Tensor]) -> Values:
        """Up to what products have made."""
        names = [name for name, value in held.arrived.items() if value.requires_grad]
        later = [operation for operation in held.operations if operation.step.product]
        uses = [use for o in held.operations if not o.step.product for use in o.uses if use[1].requires_grad]
        wanted = [held.arrived[name] for name in names] + [operation.made for operation in later]
        wanted += [leaf for _, leaf, _ in uses]
        found: Sequence[torch.Tensor | None] = [None] * len(wanted)
        if ends and wanted:
            found = torch.autograd.grad(ends, wanted, given, retain_graph=True, allow_unused=True)
        for operation, grad in zip(later, found[len(names) :]):
            operation.grad = grad
        for (parameter, leaf, way), grad in zip(uses, found[len(names) + len(later) :]):
            if grad is not None:
                parameter.add(leaf, grad, way)
        return {name: grad for name, grad in zip(names, found) if grad is not None}

    def weight_pass(self, k: int) -> None:
        """The other half: each product's parameters from the gradient of what it made, and no further back. In the last of
        a step the sums of what is complete begin on the way, in about the order of the buckets."""
        self._announce_last(k, half=True)
        for operation in reversed(self._held.pop(k).operations):
            uses = [use for use in operation.uses if use[1].requires_grad]
            if operation.grad is None or not uses:
                continue
            if operation.form is None:
                torch.autograd.backward(operation.made, operation.grad, inputs=[leaf for _, leaf, _ in uses])
                continue
            by_name = {use[0].name: use for use in uses}
            with torch.no_grad():
                found = operation.form.gradients(operation.parts, operation.grad)
                for read, grad in zip((operation.step.reads[n] for n in operation.form.parameters), found):
                    if read.key in by_name:
                        self._gradients.found(by_name[read.key], grad.to(by_name[read.key][1].dtype))

    def _announce_last(self, k: int, half: bool) -> None:
        """That no micro-batch but k has gradients of parameters to find, where it is so."""
        if self._passed == len(self.micro_batches) and self._held.keys() == {k}:
            self._gradients.last_pass(self._losses if self._late else (), half)

    @property
    def buckets(self) -> list[Bucket]:
        """Of its parameters and their gradients, those that lie together."""
        return self._gradients.buckets

    def gradients(self) -> dict[str, Any]:
        """Those of the micro-batches of a step together, their mean, added up over the ranks, as DTensors."""
        return self._gradients.taken()
