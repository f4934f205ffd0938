# SPDX-License-Identifier: Apache-2.0
"""Megatron-Core's CopyService: what its resharding submits, scheduled as one problem.

    swap_model_weights(train_model, serve_model, refit_method=crossmesh.megatron.CopyService())

Megatron plans sends from one rank to one other, so that a slice which many ranks want leaves its host many times. Here
sends of the same bytes to several ranks are one multicast, and every host takes them once.
"""

from __future__ import annotations

import functools
import hashlib
import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist

from ..errors import InputError
from ..job import Job
from ..layouts import Layout, Mesh
from ..plan import Plan, TensorSpec
from ..reshard import Reshard
from ..torch import default_job
from ..torch._transfer import _is_plain, _stream
from . import _meeting

# Plans that a service keeps, of the batches that it is given in turn.
PLANS = 100
# Elements that are looked at before whole tensors are compared.
SAMPLE = 16

Key = tuple[int, int, int]  # the other rank, the task, and its how manieth tensor: what both ends know of a transfer
Operation = tuple[Key, torch.Tensor]


@dataclass
class Routes:
    """What all ranks' operations together come to. Numbers are of this rank's multicasts and of its receives."""

    plan: Plan | None = None
    ends: list[tuple[int | None, int | None]] = field(default_factory=list)  # by tensor of the plan
    local: list[tuple[int, int]] = field(default_factory=list)


class Service:
    """Ranks are those of `group`, torch's default one if it is not given. `timeout`: the deadline in seconds of every
    wait. All ranks of the group call `run()`, those without an operation as well."""

    # What later versions of Megatron ask. Operations are dropped as a run ends, so a plan may take several runs.
    supports_multiple_runs_per_plan = True
    supports_incremental_runs = True

    def __init__(self, group: Any = None, *, timeout: float = _meeting.TIMEOUT) -> None:
        self.group = group
        self.rank = dist.get_rank() if group is None else group.rank()
        self.world_size = dist.get_world_size() if group is None else group.size()
        self._timeout = timeout
        self._own: Job | None = None
        self._routes: dict[bytes, Routes] = {}
        self._slices: dict[int, Any] = {}
        self._forget()

    def _forget(self) -> None:
        self._sends: list[Operation] = []
        self._receives: list[Operation] = []
        self._turns: dict[tuple[str, int, int], int] = {}

    @property
    def job(self) -> Job:
        """Collective the first time."""
        if self.group is None:
            return default_job(timeout=self._timeout)
        if self._own is None or self._own.closed:

            def allgather(data: bytes) -> Sequence[bytes]:
                told: list[Any] = [None] * self.world_size
                dist.all_gather_object(told, data, group=self.group)
                return told

            self._own = Job.from_allgather(self.rank, self.world_size, allgather, timeout=self._timeout)
        return self._own

    # What Megatron calls ----------------------------------------------------------------------------

    def submit_send(self, src_tensor: torch.Tensor, dest_rank: int, task_id: int | None = None) -> None:
        self._submit(self._sends, "send", src_tensor.detach().contiguous(), dest_rank, task_id)

    def submit_recv(self, dest_tensor: torch.Tensor, src_rank: int, task_id: int | None = None) -> None:
        self._submit(self._receives, "receive", dest_tensor.detach(), src_rank, task_id)

    def set_plan(self, plan: Any, *, transform: Any = None) -> None:
        """Says which slices the tasks are of, so that equal ones need not be found by their bytes."""
        self._slices = {op.task_id: (op.param_name, str(op.my_slice)) for op in plan.send_ops}

    def close(self) -> None:
        """Collective."""
        self._routes.clear()
        self._forget()
        if self._own is not None:
            self._own.close()

    def run(self) -> None:
        """Moves what has been submitted. Collective."""
        sends, receives = self._multicasts(), self._receives
        self._forget()
        routes = self._find(sends, receives)
        with torch.no_grad():
            for send, receive in routes.local:
                receives[receive][1].copy_(sends[send][0][1])
            if routes.plan is not None:
                self._move(routes, sends, receives)

    # -------------------------------------------------------------------------------------------------

    def _submit(
        self, operations: list[Operation], what: str, tensor: torch.Tensor, peer: int, task: int | None
    ) -> None:
        if tensor.numel() > 0:
            task = -1 if task is None else task
            turn = self._turns.setdefault((what, peer, task), 0)
            self._turns[what, peer, task] += 1
            operations.append(((peer, task, turn), tensor))

    def _multicasts(self) -> list[list[Operation]]:
        """Sends of the same bytes to several ranks, together."""
        found: dict[Any, list[list[Operation]]] = {}
        for send in self._sends:
            (peer, task, turn), tensor = send
            known = task in self._slices
            mark = (*self._slices[task], turn) if known else (tensor.shape, tensor.dtype, _sample(tensor))
            alike = found.setdefault(mark, [])
            for group in alike:
                if all(key[0] != peer for key, _ in group) and (known or _equal(group[0][1], tensor)):
                    group.append(send)
                    break
            else:
                alike.append([send])
        return [group for alike in found.values() for group in alike]

    def _find(self, sends: list[list[Operation]], receives: list[Operation]) -> Routes:
        """The routes of these operations of all ranks, kept where they were so before. Collective."""
        mine = [[[key for key, _ in group], group[0][1].nbytes] for group in sends]
        text = json.dumps([mine, [[key, tensor.nbytes] for key, tensor in receives]]).encode()
        cards = self.job._allgather_fixed(hashlib.blake2b(text, digest_size=16).digest(), 16)
        key = hashlib.blake2b(b"".join(cards)).digest()
        if key not in self._routes:
            told = [json.loads(zlib.decompress(other)) for other in self.job.allgather(zlib.compress(text))]
            if len(self._routes) >= PLANS:
                del self._routes[next(iter(self._routes))]
            self._routes[key] = self._plan(told)
        return self._routes[key]

    def _plan(self, told: list[Any]) -> Routes:
        wanted = {
            (source, rank, task, turn): (number, size)
            for rank, (_, receives) in enumerate(told)
            for number, ((source, task, turn), size) in enumerate(receives)
        }
        routes, specs = Routes(), []
        for rank, (sends, _) in enumerate(told):
            for number, (keys, size) in enumerate(sends):
                takers: dict[int, int] = {}
                for peer, task, turn in keys:
                    receive, room = wanted.pop((rank, peer, task, turn), (0, -1))
                    if room != size:
                        takes = "does not receive them" if room < 0 else f"has room for {room}"
                        raise InputError(f"rank {rank} sends {size} bytes{_task(task)} to rank {peer}, which {takes}")
                    takers[peer] = receive
                if rank in takers:
                    local = number, takers.pop(rank)
                    routes.local += [local] if rank == self.rank else []
                if takers:
                    src = Layout(Mesh(1, [rank]), "R", (size,))
                    specs.append(TensorSpec(src, Layout(Mesh(len(takers), takers), "R", (size,)), 8))
                    routes.ends.append((number if rank == self.rank else None, takers.get(self.rank)))
        for (source, rank, task, _), (_, size) in wanted.items():
            what = f"{size} bytes{_task(task)}"
            raise InputError(f"rank {rank} receives {what} from rank {source}, which does not send them")
        if specs:
            routes.plan = Plan(specs, self.job.network())
        return routes

    def _move(self, routes: Routes, sends: list[list[Operation]], receives: list[Operation]) -> None:
        assert routes.plan is not None
        sources = [None if number is None else sends[number][0][1] for number, _ in routes.ends]
        given = [None if number is None else receives[number][1] for _, number in routes.ends]
        targets = [
            tensor if tensor is None or _is_plain(tensor) else tensor.new_empty(tensor.shape) for tensor in given
        ]
        # Megatron makes buffers for every run, so memory is registered for one, and given up with it.
        with Reshard(self.job, routes.plan, list(map(_bytes, sources)), list(map(_bytes, targets))) as reshard:
            used = [tensor for tensor in (*sources, *targets) if tensor is not None]
            reshard.run(stream=_stream(used))
        for tensor, target in zip(given, targets):
            if tensor is not None and target is not tensor:
                tensor.copy_(target)


def _task(task: int) -> str:
    return f" (task {task})" if task >= 0 else ""


def _bytes(tensor: torch.Tensor | None) -> Any:
    return None if tensor is None else tensor.reshape(-1).view(torch.uint8)


def _sample(tensor: torch.Tensor) -> bytes:
    some = tensor.reshape(-1)[:: -(-tensor.numel() // SAMPLE)]
    return bytes(_bytes(some.contiguous()).tolist())


def _equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.data_ptr() == other.data_ptr() or bool(torch.equal(_bytes(one), _bytes(other)))


@functools.cache
def _service() -> type:
    try:
        from megatron.core.resharding.copy_services.base import CopyService
    except ImportError as error:
        raise ImportError(
            f"crossmesh.megatron needs Megatron-Core with resharding (0.16 or later) to derive from: {error}"
        ) from error
    return type("CopyService", (Service, CopyService), {"__module__": "crossmesh.megatron", "__doc__": Service.__doc__})


def __getattr__(name: str) -> Any:
    if name == "CopyService":
        return _service()
    raise AttributeError(f"module {__name__} has no attribute {name}")
