# SPDX-License-Identifier: Apache-2.0
"""Plans on the ranks of a job: this rank's stage with its parameters as DTensors, and the schedule that runs it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DeviceMesh, DTensor, Placement, Replicate, Shard, distribute_tensor

from ..errors import InputError
from ..job import Job
from ._export import batch_of, micro_batch
from ._clip import guard_clipping, grad_norm, is_first_copy
from ._execute import Executor
from ._groups import mesh_of
from ._job import default_job
from ._optimizer import Optimizer
from ._partition import StageModule, register
from ._plan import Plan
from ._schedule import devices_of
from ._shared import SharedParameters

__all__ = ["Applied", "apply", "apply_alone"]


def _agree(plan: Plan) -> None:
    """Every rank must have the plan, and be in it."""
    if not dist.is_available() or not dist.is_initialized():
        raise InputError("torch.distributed has no default group yet: call init_process_group() first")
    size = len({rank for stage in plan.stages for rank in stage.ranks})
    if dist.get_world_size() != size:
        raise InputError(f"the plan is for {size} devices, and the job has {dist.get_world_size()} ranks")
    mine = f"{plan.digest} of {plan.model} with {len(plan.program.operators)} operators"
    seen: list[Any] = [None] * size
    dist.all_gather_object(seen, mine)
    for rank, other in enumerate(seen):
        if other != mine:
            raise InputError(f"rank {rank} has the plan {other}, and rank {dist.get_rank()} has {mine}: all need the same")


def _device(model: torch.nn.Module, device: torch.device | str | None) -> torch.device:
    if device is not None:
        return torch.device(device)
    kinds = {parameter.device.type for parameter in model.parameters()} - {"meta"}
    kind = kinds.pop() if len(kinds) == 1 else "cpu"
    return torch.device(kind, torch.cuda.current_device()) if kind == "cuda" else torch.device(kind)


def _planned(model: torch.nn.Module, plan: Plan) -> dict[str, torch.nn.Parameter]:
    """The parameters of the model, which must be the one that was planned; all ranks look at all of them."""
    if model.training != plan.kept["training"]:
        modes = ("training" if plan.kept["training"] else "evaluation", "training" if model.training else "evaluation")
        raise InputError(f"the plan is of {plan.model} in {modes[0]} mode, and the model is in {modes[1]} mode")
    there = dict(model.named_parameters(remove_duplicate=False))
    for name, planned in plan.program.parameters.items():
        found = there.get(name)
        if found is None or tuple(found.shape) != planned.shape:
            has = "no such parameter" if found is None else f"one of shape {tuple(found.shape)}"
            raise InputError(f"the plan has a parameter '{name}' of shape {planned.shape}, and the model {has}")
        if found.dtype != planned.dtype:
            raise InputError(f"'{name}' is planned as {planned.dtype}, and the model has it as {found.dtype}")
    return there


def _distributed(
    whole: torch.nn.Parameter, mesh: DeviceMesh, placements: tuple[Placement, ...], device: torch.device
) -> torch.nn.Parameter:
    """The values are those of the first rank of the mesh; of a model without memory they are still to come."""
    if whole.is_meta:
        shape = list(whole.shape)
        for axis, placement in enumerate(placements):
            if isinstance(placement, Shard):
                shape[placement.dim] //= mesh.size(axis)
        part = torch.empty(shape, dtype=whole.dtype, device=device)
        laid: Any = DTensor.from_local(part, mesh, placements, run_check=False)
    else:
        laid = distribute_tensor(whole.detach().to(device), mesh, placements)
    return torch.nn.Parameter(laid, requires_grad=whole.requires_grad)


class Applied:
    """A model on the ranks of its plan.

        >>> optimizer = applied.optimizer(torch.optim.AdamW, lr=1e-4)
        >>> optimizer.zero_grad()
        >>> loss = applied.step(batch, target)      # on all ranks, with the whole batch
        >>> applied.clip_grad_norm_(1.0)
        >>> optimizer.step()

    Parameters are those of this rank's stages, under the model's names, DTensors on the mesh of the stages.
    """

    def __init__(
        self, plan: Plan, device: int, stages: dict[int, StageModule], parameters: dict[str, torch.nn.Parameter],
        executor: Executor, shared: SharedParameters,
    ) -> None:  # fmt: skip
        self.plan, self.stages = plan, stages
        self.stage_number = min(stages)  # of several the first
        self._place = stages[self.stage_number].device
        self._device, self._parameters, self._executor, self._shared = device, parameters, executor, shared
        self._root = torch.nn.Module()
        for name, parameter in parameters.items():
            register(self._root, name, parameter)
            if len(plan.devices) > 1:
                guard_clipping(parameter)
        self._closed = False

    @property
    def mesh(self) -> DeviceMesh:
        """Of this rank's stages."""
        return self.stages[self.stage_number].mesh

    def parameters(self) -> Iterator[torch.nn.Parameter]:
        yield from self._parameters.values()

    def named_parameters(self) -> Iterator[tuple[str, torch.nn.Parameter]]:
        yield from self._parameters.items()

    def optimizer(self, factory: Callable[..., torch.optim.Optimizer], **options: Any) -> Optimizer:
        """One of torch.optim over the parameters, with its state cut as planned (`zero=1`), and a state_dict() that other
        plans can load. `factory(applied.parameters(), **options)` does as well, slower: each of its operators goes through
        DTensor then."""
        buckets = [bucket for module in self.stages.values() for bucket in module.buckets]
        return Optimizer(self._parameters, factory, self.plan.kept["zero"] == 1, buckets, **options)

    def state_dict(self) -> dict[str, Any]:
        """The parameters of these stages: what reshard_state_dict() and torch's distributed checkpoints take."""
        state: dict[str, Any] = self._root.state_dict()
        return state

    def load_state_dict(self, state: Mapping[str, Any], strict: bool = True) -> Any:
        return self._root.load_state_dict(state, strict=strict)

    def _inputs(self, given: tuple[torch.Tensor, ...], named: Mapping[str, torch.Tensor]) -> list[dict[str, torch.Tensor]]:
        names, plan = self.plan.program.arguments, self.plan
        keywords = plan.kept["keywords"]
        if named.keys() != set(keywords):
            raise InputError(f"keywords {sorted(named)} of a step of {plan.model}; the plan has {sorted(keywords)}")
        inputs = [*(named[name] for name in keywords), *given]
        if self._closed:
            raise InputError(f"{plan.model} was closed: apply() it again")
        if len(inputs) != len(names):
            raise InputError(
                f"{len(inputs)} tensors for a step of {plan.model}, which takes {len(names)} (the target is the last)"
            )
        if batch_of(inputs) != plan.batch:
            raise InputError(f"a batch of {batch_of(inputs)} samples; the plan is for {plan.batch}")
        there = [value.detach().to(self._place, non_blocking=True) for value in inputs]
        found = [
            dict(zip(names, micro_batch(there, plan.batch, plan.micro_batches, number)))
            for number in range(plan.micro_batches)
        ]
        for name, value in found[0].items():
            planned = plan.program.inputs[name]
            if (tuple(value.shape), value.dtype) != (planned.shape, planned.dtype):
                raise InputError(
                    f"'{name}' has micro-batches of {value.dtype} {tuple(value.shape)}; the plan is for "
                    f"{planned.dtype} {planned.shape}"
                )
        with torch.no_grad():
            return [values | {name: number.of(values) for name, number in plan.program.derived.items()} for values in found]

    def _run(self, given: tuple[torch.Tensor, ...], named: Mapping[str, torch.Tensor], training: bool) -> None:
        """All passes."""
        batches = self._inputs(given, named)
        for module in self.stages.values():
            module.begin(batches, training)
        self._executor.run(training)

    def _mean_loss(self, meanwhile: Callable[[], None] = lambda: None) -> torch.Tensor:
        """On all ranks; what is called meanwhile has it travel beside."""
        last = self.stages.get(len(self.plan.stages) - 1)
        if last is not None:
            found = last.mean_loss()
        else:
            found = torch.empty((), dtype=self.plan.program.operators[-1].dtype, device=self._place)
        sent = None
        if len(self.plan.devices) > 1:  # else all ranks have it
            sent = dist.broadcast(found, src=self.plan.stages[-1].ranks[0], async_op=True)
        meanwhile()
        if sent is not None:
            sent.wait()
        return found

    def step(self, *inputs: torch.Tensor, **named: torch.Tensor) -> torch.Tensor:
        """One step, forward and backward, of a whole batch, which every rank gives: the model's arguments and, if the
        plan has a loss function, the target. Gradients are added to those of the parameters, as DTensors, averaged over
        the micro-batches. Returns the loss, on all ranks. Collective."""
        if not torch.is_grad_enabled():
            raise InputError("step() under torch.no_grad() would find no gradients: evaluate() gives the loss alone")
        self._run(inputs, named, True)
        grads: dict[str, Any] = {}
        for module in self.stages.values():
            for name, grad in module.gradients().items():
                grads[name] = grad if name not in grads else grads[name] + grad
        loss = self._mean_loss(lambda: self._shared.settle(grads))
        for name, grad in grads.items():
            parameter = self._parameters[name]
            parameter.grad = grad if parameter.grad is None else parameter.grad + grad
        return loss

    def evaluate(self, *inputs: torch.Tensor, **named: torch.Tensor) -> torch.Tensor:
        """The loss of a batch without gradients, by the operators that were planned. Collective."""
        with torch.no_grad():
            self._run(inputs, named, False)
            return self._mean_loss()

    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0, error_if_nonfinite: bool = False) -> torch.Tensor:
        """As torch.nn.utils.clip_grad_norm_, over the whole model: the parameters of all stages, each once, on however many
        ranks its parts or copies are. Returns the norm before. Collective."""
        total = grad_norm(self._own_grads(), norm_type, self._place)
        if error_if_nonfinite and not torch.isfinite(total):
            raise InputError(f"the gradients of {self.plan.model} have the norm {total.item()}")
        scale = torch.clamp(max_norm / (total + 1e-6), max=1.0)
        for parameter in self.parameters():
            if parameter.grad is not None:
                parameter.grad.to_local().mul_(scale)
        return total

    def _own_grads(self) -> Iterator[torch.Tensor]:
        """The parts of gradients that this rank counts: of copies the first."""
        for name, parameter in self._parameters.items():
            first = min(device for device, homes in enumerate(self._shared.homes_of(name)) if homes)
            if parameter.grad is not None and first == self._device and is_first_copy(parameter.grad):
                yield parameter.grad.to_local()

    def close(self) -> None:
        """Frees what the stages exchange their tensors by. Collective."""
        if not self._closed:
            self._closed = True
            self._shared.close()
            self._executor.close()


def apply(
    model: torch.nn.Module,
    plan: Plan,
    *,
    device: torch.device | str | None = None,
    job: Job | None = None,
    timeout: float | None = None,
    profile: str | None = None,
    seed: int = 0,
) -> Applied:
    """Lays a model out as planned. All ranks of the job call it, with equal plans; each keeps the parameters of its stage.

    The parameters have the values of the model on the first rank of the stages that have them. `device`: where the stages
    run (None: where the model's parameters are). `job`, `timeout` and `profile` are those of crossmesh's reshards, which
    move activations and gradients between stages; a transfer may take `timeout` seconds for each micro-batch in flight.
    `seed`: of dropout.
    """
    _agree(plan)
    place = _device(model, device)
    by_ranks = {
        stage.ranks: mesh_of(place.type, torch.tensor(stage.ranks).reshape(stage.mesh), ("x", "y"))
        for stage in plan.stages
    }
    meshes = [by_ranks[stage.ranks] for stage in plan.stages]
    mine = next(d for d, numbers in enumerate(plan.devices) if dist.get_rank() in plan.stages[numbers[0]].ranks)
    return _laid_out(model, plan, meshes, mine, place, job or default_job(progress_thread=True), timeout, profile, seed)


def apply_alone(model: torch.nn.Module, plan: Plan, device: torch.device) -> Applied:
    """A plan for one device, on each rank by itself: all of them do the whole of it at once."""
    mesh = mesh_of(device.type, torch.tensor([[dist.get_rank()]]), ("x", "y"))
    return _laid_out(model, plan, [mesh], 0, device, None, None, None, 0)


def _laid_out(
    model: torch.nn.Module, plan: Plan, meshes: list[DeviceMesh], mine: int, place: torch.device, job: Job | None,
    timeout: float | None, profile: str | None, seed: int,
) -> Applied:  # fmt: skip
    """`meshes` are those of the stages; `mine` is the device of the plan that this rank is of. Only plans that move
    something between devices need a job."""
    values = _planned(model, plan)
    # A parameter that several stages of a device use is there once, as the first of them wants it.
    placements: dict[str, tuple[Placement, ...]] = {}
    for number in plan.devices[mine]:
        for name, places in plan.stages[number].parameters.items():
            placements.setdefault(name, places)
    mesh = meshes[plan.devices[mine][0]]
    parameters = {name: _distributed(values[name], mesh, p, place) for name, p in placements.items()}
    stages, late = {}, plan.program.late()
    for number in plan.devices[mine]:
        leaves = [(entry.tensor, entry.src) for entry in plan.boundaries if entry.source == number]
        stages[number] = StageModule(
            plan.stages[number], mesh, {name: parameters[name] for name in plan.stages[number].parameters},
            arrives=[(entry.tensor, entry.dst) for entry in plan.boundaries if entry.target == number],
            leaves=leaves or [(plan.program.loss, (Replicate(),) * mesh.ndim)], late=set() if leaves else late,
            last=not leaves, splits=any(entry.kind == "I" for entry in plan.order[mine]), device=place, seed=seed,
        )  # fmt: skip
    device_of = devices_of(plan.order)
    executor = Executor(
        plan.order, device_of, mine, stages, plan.boundaries, meshes, plan.micro_batches, job, place, timeout, profile
    )
    shared = SharedParameters(plan, mine, parameters, job, profile)
    return Applied(plan, mine, stages, parameters, executor, shared)
