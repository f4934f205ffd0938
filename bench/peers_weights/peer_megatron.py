# SPDX-License-Identifier: Apache-2.0
"""Megatron-Core: its planner and its executor, with a copy service over gloo."""

from types import SimpleNamespace

import torch
import torch.distributed as dist
from megatron.core.resharding.copy_services.base import CopyService
from megatron.core.resharding.refit import reshard_model_weights


class GlooService(CopyService):
    """Everything that was submitted as one batch of point-to-point operations; what stays in a rank is copied."""

    def __init__(self):
        self._operations, self._own = [], {}

    def submit_send_with_id(self, task_id, tensor, dest_rank):
        if dest_rank == dist.get_rank():
            self._own.setdefault(task_id, {})["from"] = tensor
        else:
            self._operations.append(dist.P2POp(dist.isend, tensor, dest_rank))

    def submit_recv_with_id(self, task_id, tensor, src_rank):
        if src_rank == dist.get_rank():
            self._own.setdefault(task_id, {})["to"] = tensor
        else:
            self._operations.append(dist.P2POp(dist.irecv, tensor, src_rank))

    def submit_send(self, src_tensor, dest_rank):
        self.submit_send_with_id(None, src_tensor, dest_rank)

    def submit_recv(self, dest_tensor, src_rank):
        self.submit_recv_with_id(None, dest_tensor, src_rank)

    def run(self):
        for copy in self._own.values():
            copy["to"].copy_(copy["from"])
        for request in dist.batch_isend_irecv(self._operations) if self._operations else ():
            request.wait()
        self._operations, self._own = [], {}


class Peer:
    def __init__(self, job):
        if any(self._cut(side) is None for tensor in job.case.tensors for side in (tensor.src, tensor.dst)):
            raise NotImplementedError("its planner knows no cuts but those of tensor parallelism")
        self._job, self._groups = job, {}

    def plan(self):
        job = self._job
        self._models = [self._model(job, "src", job.src), self._model(job, "dst", job.dst)]
        self._service = GlooService()

    @staticmethod
    def _cut(side):
        """The dimension that tensor parallelism cuts; -1: none, None: it is cut otherwise."""
        dims = [dim for dim, axes in enumerate(side.axes) if axes]
        plain = all(axes in ([], [len(side.sizes) - 1]) for axes in side.axes)
        return (dims + [-1])[0] if plain and len(dims) < 2 else None

    def _group(self, ranks):
        if ranks not in self._groups:
            self._groups[ranks] = dist.new_group(list(ranks))
        return self._groups[ranks]

    def _model(self, job, name, tiles):
        """A module of this rank's tiles, marked as Megatron's layers mark theirs."""
        side = getattr(job.case.tensors[0], name)
        tp = side.sizes[-1]  # innermost, so its groups are neighbours
        lines = {rank: {"tp": tuple(side.ranks[at // tp * tp:at // tp * tp + tp]), "dp": tuple(side.ranks[at % tp::tp])}
                 for at, rank in enumerate(side.ranks)}
        groups = {ranks: self._group(ranks) for rank in side.ranks for ranks in lines[rank].values()}
        own = lines.get(job.rank, lines[side.ranks[0]])
        module = torch.nn.Module()
        module.config = SimpleNamespace(num_moe_experts=None)
        module.pg_collection = SimpleNamespace(tp=groups[own["tp"]], dp=groups[own["dp"]], ep=None, pp=None)
        for tensor in job.case.tensors:
            if tensor.name in tiles:
                parameter = torch.nn.Parameter(tiles[tensor.name], requires_grad=False)
                cut = max(self._cut(tensor.src), self._cut(tensor.dst))  # marked on a side of one rank, too
                if cut >= 0:
                    parameter.tensor_model_parallel, parameter.partition_dim = True, cut
                module.register_parameter(tensor.name.replace(".", "/"), parameter)
        return module

    def run(self):
        reshard_model_weights(*self._models, service=self._service)
