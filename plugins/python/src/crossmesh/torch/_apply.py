# SPDX-License-Identifier: Apache-2.0
"""Plans on the ranks of a job: this rank's stage with its parameters as DTensors, and the schedule that runs it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DeviceMesh, DTensor, Placement, Replicate, Shard, distribute_tensor

from ..errors import InputError
from ..job import Job
from ._export import batch_of, micro_batch
from ._partition import StageModule
from ._plan import Plan
from ._shared import SharedParameters

__all__ = ["Applied", "apply"]


def _agree(plan: Plan) -> None:
    """Every rank must have the plan, and be in it."""
    if not dist.is_available() or not dist.is_initialized():
        raise InputError("torch.distributed has no default group yet: call init_process_group() first")
    size = sum(len(stage.ranks) for stage in plan.stages)
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


def _parameter(model: torch.nn.Module, plan: Plan, name: str) -> torch.nn.Parameter:
    """The model's, which must be the one that was planned."""
    planned = plan.program.parameters[name].shape
    found = dict(model.named_parameters(remove_duplicate=False)).get(name)
    if found is None or tuple(found.shape) != planned:
        has = "no such parameter" if found is None else f"one of shape {tuple(found.shape)}"
        raise InputError(f"the plan has a parameter '{name}' of shape {planned}, and the model {has}")
    return found


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

        >>> optimizer = torch.optim.AdamW(applied.parameters())
        >>> optimizer.zero_grad()
        >>> loss = applied.step(batch, target)      # on all ranks, with the whole batch
        >>> optimizer.step()

    Parameters are those of this rank's stage, under the model's names, DTensors on the mesh of the stage.
    """

    def __init__(
        self, plan: Plan, module: StageModule, stage: Any, schedule: Any, number: int, shared: SharedParameters
    ) -> None:
        self.plan, self.module, self.stage, self.schedule = plan, module, stage, schedule
        self.stage_number, self._shared = number, shared

    @property
    def mesh(self) -> DeviceMesh:
        """Of this rank's stage."""
        return self.module.mesh

    def parameters(self) -> Iterator[torch.nn.Parameter]:
        found: Iterator[torch.nn.Parameter] = self.module.parameters()
        return found

    def named_parameters(self) -> Iterator[tuple[str, torch.nn.Parameter]]:
        found: Iterator[tuple[str, torch.nn.Parameter]] = self.module.named_parameters()
        return found

    def state_dict(self) -> dict[str, Any]:
        """The parameters of this stage: what reshard_state_dict() and torch's distributed checkpoints take."""
        state: dict[str, Any] = self.module.state_dict()
        return state

    def load_state_dict(self, state: Mapping[str, Any], strict: bool = True) -> Any:
        return self.module.load_state_dict(state, strict=strict)

    def _inputs(self, inputs: tuple[torch.Tensor, ...]) -> list[dict[str, torch.Tensor]]:
        names, plan = self.plan.program.arguments, self.plan
        if len(inputs) != len(names):
            raise InputError(
                f"{len(inputs)} tensors for a step of {plan.model}, which takes {len(names)} (the target is the last)"
            )
        if batch_of(inputs) != plan.batch:
            raise InputError(f"a batch of {batch_of(inputs)} samples; the plan is for {plan.batch}")
        there = [value.to(self.module.device, non_blocking=True) for value in inputs]
        return [
            dict(zip(names, micro_batch(there, plan.batch, plan.micro_batches, number)))
            for number in range(plan.micro_batches)
        ]

    def _run(self, run: Callable[..., Any], inputs: tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
        self.module.begin(self._inputs(inputs))
        losses: list[torch.Tensor] = []
        if self.stage.is_last:
            # The loss is what the stage gives; its target is among the inputs.
            run(target=torch.empty(self.plan.micro_batches), losses=losses, return_outputs=False)
        else:
            run(return_outputs=False)
        return losses

    def _mean(self, losses: list[torch.Tensor]) -> torch.Tensor:
        """Of the micro-batches, on all ranks."""
        if losses:
            found = torch.stack([loss.detach() for loss in losses]).mean()
        else:
            found = torch.empty((), dtype=self.plan.program.operators[-1].dtype, device=self.module.device)
        dist.broadcast(found, src=self.plan.stages[-1].ranks[0])
        return found

    def step(self, *inputs: torch.Tensor) -> torch.Tensor:
        """One step, forward and backward, of a whole batch, which every rank gives: the model's arguments and, if the
        plan has a loss function, the target. Gradients are added to those of the parameters, as DTensors, averaged over
        the micro-batches. Returns the loss, on all ranks. Collective."""
        losses = self._run(self.schedule.step, inputs)
        grads = self.module.gradients(1.0 / self.plan.micro_batches)
        self._shared.settle(grads)
        self.module.add_gradients(grads)
        return self._mean(losses)

    def evaluate(self, *inputs: torch.Tensor) -> torch.Tensor:
        """The loss of a batch without gradients, by the operators that were planned. Collective."""
        with torch.no_grad():
            return self._mean(self._run(self.schedule.eval, inputs))

    def close(self) -> None:
        """Frees what the stages exchange their tensors by. Collective."""
        self._shared.close()
        self.stage.close()


def _result(output: torch.Tensor, _: Any) -> torch.Tensor:
    return output


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

    The parameters have the values of the model on the first rank of a stage. `device`: where the stage runs (None: where
    the model's parameters are). `job`, `timeout` and `profile` are those of crossmesh.torch.pipeline.Stage, which moves
    activations and gradients between stages. `seed`: of dropout.
    """
    from torch.distributed.pipelining import Schedule1F1B, ScheduleGPipe

    from . import pipeline

    _agree(plan)
    place = _device(model, device)
    meshes = [
        DeviceMesh(place.type, torch.tensor(stage.ranks).reshape(stage.mesh), mesh_dim_names=("x", "y"))
        for stage in plan.stages
    ]
    number = next(n for n, stage in enumerate(plan.stages) if dist.get_rank() in stage.ranks)
    mine, mesh = plan.stages[number], meshes[number]
    before = plan.boundaries[number - 1] if number > 0 else None
    after = plan.boundaries[number] if number + 1 < len(plan.stages) else None
    parameters = {
        name: _distributed(_parameter(model, plan, name), mesh, placements, place)
        for name, placements in mine.parameters.items()
    }
    module = StageModule(
        mine, mesh, parameters,
        arrives=None if before is None else (before.tensor, before.dst),
        leaves=(plan.program.loss, (Replicate(),) * mesh.ndim) if after is None else (after.tensor, after.src),
        device=place, seed=seed,
    )  # fmt: skip
    boundaries = [
        pipeline.Boundary(
            entry.shape, entry.dtype, (meshes[n], entry.src), (meshes[n + 1], entry.dst), entry.strategy, entry.scheduler
        )
        for n, entry in enumerate(plan.boundaries)
    ]
    stage = pipeline.Stage(module, number, boundaries, place, job=job, timeout=timeout, profile=profile)
    schedules: dict[str, Any] = {"1f1b": Schedule1F1B, "gpipe": ScheduleGPipe}
    schedule = schedules[plan.schedule](stage, plan.micro_batches, loss_fn=_result, scale_grads=False)
    shared = SharedParameters(plan, number, parameters, job, profile)
    return Applied(plan, module, stage, schedule, number, shared)
