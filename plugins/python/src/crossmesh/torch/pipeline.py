# SPDX-License-Identifier: Apache-2.0
"""Stages for torch.distributed.pipelining whose meshes differ: each has its own number of ranks and its own placements.

torch's PipelineStage sends what a rank has to one rank of the next stage, so all stages need as many ranks, and the same
placements at both ends. Here activations and gradients are resharded from the layout of one stage to that of the next,
persistent plans of all ranks of both, while schedules stay torch's.

    >>> boundary = Boundary((8, 512), torch.float32, src=(mesh_of_4, [Replicate()]), dst=(mesh_of_2, [Shard(0)]))
    >>> stage = Stage(my_part, stage_index, [boundary], device)
    >>> schedule = Schedule1F1B(stage, n_microbatches=8, loss_fn=loss)
    >>> schedule.step(batch) if stage.is_first else schedule.step(target=target, losses=losses)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage
from torch.distributed.tensor import DeviceMesh, DTensor, Placement

from ..buffers import Buffer
from ..errors import InputError
from ..job import Job
from ..layouts import Layout
from ..plan import Plan, TensorSpec
from ..reshard import Request, Reshard
from ._describe import Described, describe_place, dtype_name
from ._job import default_job
from ._transfer import _stream

__all__ = ["Boundary", "Stage", "Way"]

Place = tuple[DeviceMesh, Sequence[Placement]]


@dataclass(frozen=True)
class Boundary:
    """What passes between a stage and the next: one tensor of a micro-batch, whole shape, and how it lies on both."""

    shape: Sequence[int]
    dtype: torch.dtype
    src: Place
    dst: Place
    strategy: str = "auto"  # of the resharding, see crossmesh.Plan
    scheduler: str = "auto"
    verify: str | None = None  # as of crossmesh.Reshard

    def layouts(self) -> tuple[Layout, Layout]:
        made = []
        for side, (mesh, placements) in (("source", self.src), ("destination", self.dst)):
            name = f"the {side} of a boundary"
            entry = describe_place(name, mesh, placements)
            described = Described(name, None, None, tuple(entry["mesh"]), entry["ranks"], entry["placements"])
            made.append(described.layout(tuple(self.shape)))
        return made[0], made[1]


class Way:
    """One direction of a boundary for one micro-batch: a persistent reshard and this rank's buffers, by whatever names a
    tensor; None of those that it does not have."""

    def __init__(
        self, job: Job, plan: Plan, send: Mapping[Any, torch.Tensor | None], receive: Mapping[Any, torch.Tensor | None],
        **how: Any,
    ) -> None:  # fmt: skip
        self._send, self._receive = dict(send), dict(receive)
        lent = ([self._lend(tensor) for tensor in side.values()] for side in (send, receive))
        self._reshard = Reshard(job, plan, *lent, **how)
        self._request: Request | None = None

    @staticmethod
    def _lend(tensor: torch.Tensor | None) -> Buffer | None:
        if tensor is None:
            return None
        size = tensor.numel() * tensor.element_size()
        return Buffer(tensor.data_ptr(), size, owner=tensor, device=tensor.device.type)

    def post(self, timeout: float | None) -> None:
        self.wait()
        buffers = [tensor for side in (self._send, self._receive) for tensor in side.values() if tensor is not None]
        self._request = self._reshard.post(timeout=timeout, stream=_stream(buffers))

    def send(self, tensors: Mapping[Any, torch.Tensor | None], timeout: float | None) -> None:
        """The buffers may be in use until the last send of them has ended. What has no value is sent as zeros."""
        self.wait()
        with torch.no_grad():
            for name, buffer in self._send.items():
                assert buffer is not None
                value = tensors.get(name)
                if value is None:
                    buffer.zero_()
                else:
                    buffer.copy_(value)
        self.post(timeout)

    def received(self) -> dict[Any, torch.Tensor]:
        self.wait()
        return {name: tensor for name, tensor in self._receive.items() if tensor is not None}

    def wait(self) -> None:
        request, self._request = self._request, None
        if request is not None:
            request.wait()

    def close(self) -> None:
        self._reshard.close()


def _only(values: Sequence[Any], what: str, stage: int) -> torch.Tensor | None:
    if len(values) != 1:
        raise InputError(f"stage {stage} has {len(values)} {what}; a boundary is one tensor")
    value = values[0]
    if isinstance(value, DTensor):
        value = value.to_local()
    return None if value is None else value.detach()


class Stage(PipelineStage):  # type: ignore[misc]
    """A pipeline stage on a mesh of its own, for torch's schedules of one stage a rank (ScheduleGPipe, Schedule1F1B).

    `boundaries` are those of the whole pipeline, equal on all ranks. The submodule gets and gives local tensors: a rank's
    shard by the placements (a DTensor that it gives is taken apart). The gradient of what comes in, and of what goes
    out, lies as that does. All ranks of the job make their stage, and make their first step, together; every rank belongs to one
    stage. `input_args` and `output_args` are examples for the first and the last stage, where they have several.
    Transfers take `timeout` seconds at most, from the time when the receiver begins to wait; None: the job's.
    """

    def __init__(
        self,
        submodule: torch.nn.Module,
        stage_index: int,
        boundaries: Sequence[Boundary],
        device: torch.device | str = "cpu",
        *,
        input_args: Any = None,
        output_args: Any = None,
        job: Job | None = None,
        timeout: float | None = None,
        profile: str | None = None,
    ) -> None:
        self._job = job or default_job(progress_thread=True)
        self._timeout = timeout
        self._ends = list(boundaries)
        self._names = [dtype_name(boundary.dtype) for boundary in boundaries]
        network = self._job.network(profile)
        self._plans: list[tuple[Plan, Plan]] = []
        for number, boundary in enumerate(boundaries):
            src, dst = boundary.layouts()
            bits = 8 * boundary.dtype.itemsize
            how: dict[str, Any] = {"strategy": boundary.strategy, "scheduler": boundary.scheduler}
            self._plans.append((
                Plan([TensorSpec(src, dst, bits, f"activation {number}")], network, **how),
                Plan([TensorSpec(dst, src, bits, f"gradient {number}")], network, **how),
            ))  # fmt: skip
        self._inputs: list[Way] = []
        self._outputs: list[Way] = []
        self._output_grads: list[Way] = []
        self._input_grads: list[Way] = []
        self._others: list[Way] = []
        if not 0 <= stage_index <= len(boundaries):
            raise InputError(f"stage {stage_index} of a pipeline with {len(boundaries)} boundaries")
        device = torch.device(device)
        if stage_index > 0:
            input_args = (self._example(stage_index - 1, "dst", device),)
        if stage_index < len(boundaries):
            output_args = (self._example(stage_index, "src", device),)
        nothing = (torch.empty(0, device=device),)
        super().__init__(
            submodule,
            stage_index,
            len(boundaries) + 1,
            device,
            input_args=nothing if input_args is None else input_args,
            output_args=nothing if output_args is None else output_args,
            group=dist.new_group([dist.get_rank()], use_local_synchronization=True),
        )

    def _example(self, boundary: int, side: str, device: torch.device) -> torch.Tensor:
        """A tensor like this rank's part at an end of a boundary."""
        spec = self._plans[boundary][0].tensors[0]
        shape = (spec.src if side == "src" else spec.dst).tile_shape(self._job.rank)
        if shape is None:
            raise InputError(f"rank {self._job.rank} is not in the {side} mesh of boundary {boundary}")
        dtype = self._ends[boundary].dtype
        return torch.empty(shape, dtype=dtype, device=device, requires_grad=dtype.is_floating_point)

    # What torch asks before the first step ---------------------------------------------------------

    def _warmup_forward_vote(self, *_: Any, **__: Any) -> torch.Tensor:
        """All shapes are known: there is nothing to find out by a step on trial."""
        return torch.ones(1, dtype=torch.int32)

    def _warmup_backward_result(self, *_: Any, **__: Any) -> torch.Tensor:
        return torch.ones(1, dtype=torch.int32)

    def _get_init_p2p_neighbors_ops(self) -> list[dist.P2POp]:
        return []

    def _ways(self, backward: bool, receive: Sequence[torch.Tensor], count: int) -> tuple[list[Way], list[Way]]:
        """Reshards of all boundaries in one direction, for every micro-batch: those that this rank receives by, and
        those that it sends by."""
        receiving: list[Way] = []
        sending: list[Way] = []
        for number, plans in enumerate(self._plans):
            receives = number == (self.stage_index if backward else self.stage_index - 1)
            sends = number == (self.stage_index - 1 if backward else self.stage_index)
            for chunk in range(count):
                send = self._example(number, "dst" if backward else "src", self.device).detach() if sends else None
                into = receive[chunk] if receives else None
                verify = self._ends[number].verify
                way = Way(self._job, plans[backward], {"": send}, {"": into}, dtype=self._names[number], verify=verify)
                (receiving if receives else sending if sends else self._others).append(way)
        return receiving, sending

    def _prepare_forward_infra(self, num_microbatches: int, *args: Any, **kwargs: Any) -> Any:
        self.close()
        result = super()._prepare_forward_infra(num_microbatches, *args, **kwargs)
        buffers = [] if self.is_first else [self.args_recv_info[m][0].buffer for m in range(num_microbatches)]
        self._inputs, self._outputs = self._ways(False, buffers, num_microbatches)
        return result

    def _prepare_backward_infra(self, num_microbatches: int, *args: Any, **kwargs: Any) -> Any:
        result = super()._prepare_backward_infra(num_microbatches, *args, **kwargs)
        buffers = [] if self.is_last else [self.grad_recv_info[m][0].buffer for m in range(num_microbatches)]
        self._output_grads, self._input_grads = self._ways(True, buffers, num_microbatches)
        return result

    # What schedules ask; the operations they are given are none, for ours are under way ----------------

    def get_fwd_recv_ops(self, fwd_chunk_id: int) -> list[dist.P2POp]:
        if not self.is_first:
            self._inputs[fwd_chunk_id].post(self._timeout)
        return []

    def get_fwd_send_ops(self, fwd_chunk_id: int) -> list[dist.P2POp]:
        if not self.is_last:
            outputs = self.fwd_cache[fwd_chunk_id][0]
            self._outputs[fwd_chunk_id].send({"": _only(outputs, "outputs", self.stage_index)}, self._timeout)
        return []

    def get_bwd_recv_ops(self, bwd_chunk_id: int) -> list[dist.P2POp]:
        if self.has_backward and not self.is_last:
            self._output_grads[bwd_chunk_id].post(self._timeout)
        return []

    def get_bwd_send_ops(self, bwd_chunk_id: int) -> list[dist.P2POp]:
        if self.has_backward and not self.is_first:
            grads = self.bwd_cache.pop(bwd_chunk_id)
            self._input_grads[bwd_chunk_id].send({"": _only(grads, "inputs", self.stage_index)}, self._timeout)
        return []

    def forward_one_chunk(self, fwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        if not self.is_first:
            self._inputs[fwd_chunk_id].wait()
        return super().forward_one_chunk(fwd_chunk_id, *args, **kwargs)

    def backward_one_chunk(self, bwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        if self.has_backward and not self.is_last:
            self._output_grads[bwd_chunk_id].wait()
        return super().backward_one_chunk(bwd_chunk_id, *args, **kwargs)

    def clear_runtime_states(self) -> None:
        for way in (*self._outputs, *self._input_grads):
            way.wait()
        super().clear_runtime_states()

    def close(self) -> None:
        """Waits for what is on its way and frees the reshards. Collective."""
        for way in (*self._outputs, *self._input_grads):
            way.wait()
        for ways in (self._inputs, self._outputs, self._output_grads, self._input_grads, self._others):
            for way in ways:
                way.close()
            ways.clear()
