# SPDX-License-Identifier: Apache-2.0
"""The gradients that the passes of a step find of a stage's parameters: autograd adds them up over micro-batches, and the
ranks do so in buckets, each as soon as the last pass has what is in it."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch._utils import _unflatten_dense_tensors
from torch.distributed.tensor import DeviceMesh, DTensor, Partial, Replicate

from ._redistribute import Placements, Steps, Way, partial_axes, redistributed, summed

__all__ = ["BUCKET", "Gradients", "Parameter", "Use", "bucket_bytes"]

# Bytes of gradients, or a few more, that are added up together while the backward pass finds the next. The first that are
# found begin early; more than in one of the others would no longer make them quicker. Nothing hides the last, so that the
# others take what they can.
FIRST_BUCKET, BUCKET = 1 << 20, 25 << 20

# Of a memory, how many tensors lie in it. Releases of torch that cannot say it get new memory for each step.
_holders: Callable[[int], int] | None = getattr(torch._C, "_storage_Use_Count", None)


def bucket_bytes(sizes: Iterable[int]) -> float:
    """Of the buckets for gradients of these sizes, in the middle."""
    total = sum(sizes)
    return total / (1 + math.ceil(max(0, total - FIRST_BUCKET) / BUCKET))


class Parameter:
    """A parameter's part, what a step has found of its gradient, and where that has to go."""

    def __init__(
        self, name: str, whole: torch.nn.Parameter, placements: Placements, grad: Placements, steps: Steps
    ) -> None:
        self.name, self.placements, self.grad, self.steps = name, placements, grad, steps
        self.dtensor: Any = whole
        self.leaves: list[torch.Tensor] = []  # of the uses that read the part as it lies
        self.ways: list[Way] = []  # of the others
        self.bucket: Bucket | None = None
        self.place: torch.Tensor | None = None  # of the gradient in its bucket, where one leaf finds all of it
        self.found: dict[Way, torch.Tensor] = {}
        self.part: torch.Tensor = torch.empty(0)
        self.begin()

    def begin(self) -> None:
        """Of a step: what a DTensor costs to look into it is paid once."""
        # to_local() is an operator, a tenth of a millisecond each.
        before, self.part = self.part, self.dtensor._local_tensor
        self.found.clear()
        for leaf in self.leaves:
            leaf.grad = None
            if self.part is not before:
                leaf.data = self.part
            leaf.requires_grad_(self.dtensor.requires_grad)

    def leaf(self) -> torch.Tensor:
        """For each use one of its own, so that its gradient can be asked for apart from all others."""
        self.leaves.append(self.part.detach().requires_grad_(self.dtensor.requires_grad))
        return self.leaves[-1]

    def like(self, part: torch.Tensor) -> Any:
        """The DTensor of a part that lies as the parameter's; from_local() asks what is known."""
        return DTensor(part, self.dtensor._spec, requires_grad=False)

    def add(self, leaf: torch.Tensor, grad: torch.Tensor, way: Way | None) -> None:
        """Of a use. Not in place: autograd may need the memory for something else, too."""
        if way is None:
            leaf.grad = grad if leaf.grad is None else leaf.grad + grad
        else:
            self.found[way] = self.found[way] + grad if way in self.found else grad

    def take(self) -> torch.Tensor | None:
        """What all uses have found; those that read it alike move it back together, in the order of the uses."""
        found = [leaf.grad for leaf in self.leaves if leaf.grad is not None]
        for leaf in self.leaves:
            leaf.grad = None
        for way in self.ways:
            if way in self.found:
                found.append(redistributed(self.found.pop(way), way.mesh, *way.back, way.back_steps))
        return sum(found[1:], found[0]) if found else None


Use = tuple[Parameter, torch.Tensor, Way | None]  # and the leaf that is read


@dataclass
class Bucket:
    """Gradients that are added up in one all-reduce, as small ones cost mostly what each costs alone; or that are added up
    nowhere, and lie together for what updates them."""

    src: Placements  # how ranks have what they add up, or nothing
    steps: Steps
    members: list[Parameter] = field(default_factory=list)
    uses: int = 0  # of its parameters, in a pass
    products: int = 0  # those by products, whose gradients a split pass leaves to its second half
    missing: int = 0  # uses whose gradients the last pass has still to find
    found: list[bool] = field(default_factory=list)  # of which members a step has a gradient
    memory: torch.Tensor = field(default_factory=lambda: torch.empty(0))  # of all, and a last element for the loss
    places: Sequence[torch.Tensor] = ()  # of the members in it
    holders: int = -1  # of the memory while no gradient is given out
    work: Any = None
    loss: bool = False  # goes along
    values: torch.Tensor = field(default_factory=lambda: torch.empty(0))  # the parameters' own parts, in the same order
    given: list[Any] = field(default_factory=list)  # gradients of the last step, if of all members

    def lie_together(self) -> None:
        """Gives the parameters' parts one memory, so that an optimizer may update them together."""
        if len(self.members) == 1 and self.members[0].part.is_contiguous():
            self.values = self.members[0].part.detach().view(-1)
            return
        self.values = torch.cat([member.part.detach().reshape(-1) for member in self.members])
        for member, part in zip(self.members, self._parts(self.values)):
            member.dtensor._local_tensor = part
            member.begin()

    def _parts(self, row: torch.Tensor) -> Sequence[torch.Tensor]:
        parts: Sequence[torch.Tensor] = _unflatten_dense_tensors(row, [member.part for member in self.members])
        return parts

    def begin(self) -> None:
        """The memory is the last step's, unless somebody still has one of its gradients: new memory costs as much as to
        fill it."""
        self.given, self.found = [], [False] * len(self.members)
        if _holders is None or self.holders != _held(self.memory):
            self.memory = self.values.new_empty(self.values.numel() + 1)
            self.places = self._parts(self.memory[:-1])
            for member, place in zip(self.members, self.places):
                member.place = place if len(member.leaves) == 1 and not member.ways else None
            self.holders = _held(self.memory)

    def fill(self) -> bool:
        """With what is not there yet; false where nothing was found."""
        self.found = []
        for member, place in zip(self.members, self.places):
            grad = member.take()
            if grad is not None and grad is not place:
                place.copy_(grad)
            self.found.append(grad is not None)
        return any(self.found)

    def give(self) -> list[tuple[str, Any]]:
        """The gradients that were found; what the ranks add up is added up when the work has ended."""
        parts = self._parts(self.memory[:-1])  # of their own: who has one is counted
        given = [(m.name, m.like(part)) for m, part, found in zip(self.members, parts, self.found) if found]
        self.given = [grad for _, grad in given] if all(self.found) else []
        return given

    def still_together(self) -> bool:
        """Whether nobody has moved a parameter since, as another stage that uses it does."""
        return all(m.dtensor._local_tensor.data_ptr() == p.data_ptr() for m, p in zip(self.members, self._parts(self.values)))

    def gradient(self) -> torch.Tensor | None:
        """Of all of them, where the parameters have what the last step gave them."""
        here = self.given and all(m.dtensor.grad is grad for m, grad in zip(self.members, self.given))
        return self.memory[:-1] if here else None


class Gradients:
    """Of the parameters of a stage. `loss_axes`: over which the ranks have parts of the sum that the loss is."""

    def __init__(self, mesh: DeviceMesh, parameters: dict[str, Parameter], loss_axes: Sequence[int]) -> None:
        self._mesh, self._own, self._loss_axes = mesh, parameters, list(loss_axes)
        self.buckets = self._bucketed()
        for bucket in self.buckets:
            bucket.lie_together()
        self._last_sum = next((bucket for bucket in reversed(self.buckets) if bucket.src), None)
        self._count, self._begun, self._last = 1, 0, False
        self._losses: Sequence[torch.Tensor] = ()
        self.loss: torch.Tensor | None = None  # the mean of a step's, where it was added up with gradients

    def _bucketed(self) -> list[Bucket]:
        """In the order in which backward passes complete them, about the reverse of the uses; equal on all ranks. Those of
        gradients that nobody adds up come last."""
        made: list[Bucket] = []
        filling: dict[Any, tuple[Bucket, int]] = {}
        for own in reversed(self._own.values()):
            if own.placements != summed(own.grad) or not own.dtensor.requires_grad:
                continue
            sums = tuple(place if isinstance(place, Partial) else Replicate() for place in own.grad)
            src = sums if partial_axes(sums) else ()
            if own.ways and not src:  # moved back at the end of the step
                continue
            alike = own.part.dtype, src, own.steps
            bucket, nbytes = filling.get(alike, (None, 0))
            if bucket is None or nbytes >= (FIRST_BUCKET if bucket is made[0] else BUCKET):
                bucket, nbytes = Bucket(*alike[1:]), 0
                made.append(bucket)
            bucket.members.append(own)
            own.bucket = bucket
            filling[alike] = bucket, nbytes + own.part.nbytes
        return sorted(made, key=lambda bucket: not bucket.src)

    def expect(self, parameter: Parameter, product: bool) -> None:
        """A use that each pass has."""
        if parameter.bucket is not None:
            parameter.bucket.uses += 1
            parameter.bucket.products += product

    def watch(self, use: Use) -> None:
        """What is found of this leaf is kept, and looked at in the last pass."""
        parameter, leaf, way = use
        if leaf.requires_grad and (way is not None or parameter.bucket is not None):
            leaf.register_post_accumulate_grad_hook(functools.partial(self._arrived, parameter, way))

    def found(self, use: Use, grad: torch.Tensor) -> None:
        """What autograd was asked for, and has not put into the leaf itself."""
        parameter, leaf, way = use
        if leaf.grad is not None and leaf.grad is parameter.place:
            leaf.grad += grad
        else:
            parameter.add(leaf, grad, None)
        if way is not None or parameter.bucket is not None:
            self._arrived(parameter, way, leaf)

    def _arrived(self, parameter: Parameter, way: Way | None, leaf: Any) -> None:
        if way is not None:
            parameter.add(leaf, leaf.grad, way)
        elif parameter.place is not None and leaf.grad is not parameter.place:
            # Of the first micro-batch; autograd adds the others to it there.
            parameter.place.copy_(leaf.grad)
            leaf.grad = parameter.place
        if self._last and parameter.bucket is not None:
            parameter.bucket.missing -= 1
            if parameter.bucket.missing == 0:
                self._begin_complete()

    def begin(self, count: int, training: bool) -> None:
        """A step of so many micro-batches."""
        self._count, self._begun, self._last, self.loss = count, 0, False, None
        for parameter in self._own.values():
            parameter.begin()
        for bucket in self.buckets if training else ():
            bucket.begin()

    def last_pass(self, losses: Sequence[torch.Tensor], half: bool) -> None:
        """The next is the last of the step, or the second half of it; sums begin while it finds what is left."""
        self._last, self._losses = True, losses
        for bucket in self.buckets:
            bucket.missing = bucket.products if half else bucket.uses
        self._begin_complete()

    def _begin_complete(self) -> None:
        """Buckets begin in their order, so that ranks agree in it."""
        while self._begun < len(self.buckets) and not self.buckets[self._begun].missing:
            self._begin_sum(self.buckets[self._begun])

    def _begin_sum(self, bucket: Bucket) -> None:
        self._begun += 1
        if not bucket.fill():
            return
        flat = bucket.memory[:-1]
        if self._count > 1:
            flat *= 1.0 / self._count
        axes = partial_axes(bucket.src)
        if not bucket.steps and len(axes) == 1:  # others one after the other, at the end
            # The last one takes the loss along where the same ranks add it up: a collective less, which takes longer
            # than so few bytes.
            last = bucket is self._last_sum and axes == self._loss_axes
            bucket.loss = last and len(self._losses) > 0 and self._losses[0].dtype == flat.dtype
            if bucket.loss:
                flat = bucket.memory
                flat[-1] = torch.stack(tuple(self._losses)).mean()
            bucket.work = dist.all_reduce(flat, group=self._mesh.get_group(axes[0]), async_op=True)

    def taken(self) -> dict[str, Any]:
        """Those of the micro-batches of a step together, their mean, added up over the ranks."""
        wholes: dict[str, Any] = {}
        while self._begun < len(self.buckets):
            self._begin_sum(self.buckets[self._begun])
        for bucket in self.buckets:  # while the sums are under way
            wholes.update(bucket.give())
        for own in self._own.values():
            grad = own.take() if own.bucket is None else None
            if grad is not None:
                grad = grad if self._count == 1 else grad * (1.0 / self._count)
                wholes[own.name] = own.like(redistributed(grad, self._mesh, own.grad, own.placements, own.steps))
        for bucket in self.buckets:
            if bucket.work is not None:
                bucket.work.wait()
                bucket.work = None
            elif any(bucket.found) and bucket.src:
                flat = bucket.memory[:-1]
                flat.copy_(redistributed(flat, self._mesh, bucket.src, summed(bucket.src), bucket.steps))
            if bucket.loss:
                self.loss = bucket.memory[-1].clone()
                bucket.loss = False
        return wholes


def _held(memory: torch.Tensor) -> int:
    return 0 if _holders is None else _holders(memory.untyped_storage()._cdata)
