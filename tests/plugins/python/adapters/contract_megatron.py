# SPDX-License-Identifier: Apache-2.0
"""Megatron-Core's CopyService as its versions after 0.17 have it, as small as it can be: not Megatron, but the class,
methods and signatures, for machines without it; and the calls that its executor makes. `install()` puts the class where
Megatron has it."""

import sys
import types
from abc import ABC, abstractmethod
from dataclasses import dataclass


@dataclass
class TransferOp:
    """`batch_id`: operations are run batch by batch."""

    param_name: str
    peer_rank: int
    is_send: bool
    my_slice: tuple
    task_id: int
    batch_id: int = 0


@dataclass
class ReshardPlan:
    send_ops: list
    recv_ops: list
    num_batches: int = 1


class CopyService(ABC):
    requires_process_group_barrier = True
    supports_idle_ranks = True
    supports_multiple_runs_per_plan = False

    def __init__(self, group=None):
        raise AssertionError("a service has its own")

    @abstractmethod
    def submit_send(self, src_tensor, dest_rank, task_id=None): ...

    @abstractmethod
    def submit_recv(self, dest_tensor, src_rank, task_id=None): ...

    @abstractmethod
    def run(self): ...

    def close(self): ...

    def set_model_roles(self, *, is_source, is_destination): ...

    def set_plan(self, plan, *, transform=None): ...

    def execute_plan(self, plan, src_tensors, dst_tensors, *, transform=None):
        return False


def install():
    names = ("megatron", "megatron.core", "megatron.core.resharding", "megatron.core.resharding.copy_services")
    for name in names:
        sys.modules[name] = types.ModuleType(name)
    base = sys.modules[names[-1] + ".base"] = types.ModuleType(names[-1] + ".base")
    base.CopyService = CopyService


def execute(plan, sources, targets, service, parts=1):
    """What the executor does: receives go straight into slices that are contiguous, others into buffers that are copied
    afterwards; a transform makes several tensors of a slice (`parts`) under one task."""
    service.set_model_roles(is_source=bool(sources), is_destination=bool(targets))
    service.set_plan(plan, transform=None)
    assert not service.execute_plan(plan, sources, targets)
    for batch in range(plan.num_batches):
        copies = []
        for op in (op for op in plan.send_ops if op.batch_id == batch):
            for part in sources[op.param_name][op.my_slice].contiguous().chunk(parts):
                service.submit_send(part, op.peer_rank, task_id=op.task_id)
        for op in (op for op in plan.recv_ops if op.batch_id == batch):
            view = targets[op.param_name][op.my_slice]
            if view.is_contiguous() and parts == 1:
                service.submit_recv(view, op.peer_rank, task_id=op.task_id)
            else:
                copies.append((view, view.new_empty(view.shape)))
                for part in copies[-1][1].chunk(parts):
                    service.submit_recv(part, op.peer_rank, task_id=op.task_id)
        service.run()
        for view, buffer in copies:
            view.copy_(buffer)
