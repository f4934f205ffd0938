# SPDX-License-Identifier: Apache-2.0
"""torch.distributed alone: a source rank, another one for each tensor, gathers the whole and broadcasts it; all take
their slices."""

import torch
import torch.distributed as dist

from case import holders_of, part_of


class Peer:
    def __init__(self, job):
        self._job, self._groups = job, {}
        for tensor in job.case.tensors:
            ranks = self._members(tensor)
            if ranks not in self._groups:
                self._groups[ranks] = dist.new_group(list(ranks))

    @staticmethod
    def _root(tensor):
        return tensor.src.ranks[tensor.index % len(tensor.src.ranks)]

    def _members(self, tensor):
        return tuple(sorted({self._root(tensor), *tensor.dst.ranks}))

    def _gather(self, tensor, whole, full):
        """The root gets every tile from its first holder."""
        root, rank = self._root(tensor), self._job.rank
        operations, places = [], []
        for box, ranks in holders_of(tensor.src, whole):
            sender = root if root in ranks else ranks[0]
            if rank == root and sender == root:
                part_of(full, whole, box).copy_(self._job.src[tensor.name])
            elif rank == sender:
                operations.append(dist.P2POp(dist.isend, self._job.src[tensor.name], root))
            elif rank == root:
                buffer = torch.empty([end - start for start, end in box], dtype=full.dtype)
                operations.append(dist.P2POp(dist.irecv, buffer, sender))
                places.append((part_of(full, whole, box), buffer))
        for request in dist.batch_isend_irecv(operations) if operations else ():
            request.wait()
        for view, buffer in places:
            view.copy_(buffer)

    def run(self):
        for tensor in self._job.case.tensors:
            ranks, whole = self._members(tensor), tuple((0, extent) for extent in tensor.shape)
            full = torch.empty(tensor.shape, dtype=torch.bfloat16) if self._job.rank in ranks else None
            self._gather(tensor, whole, full)
            if full is not None:
                dist.broadcast(full, self._root(tensor), group=self._groups[ranks])
                if tensor.name in self._job.dst:
                    self._job.dst[tensor.name].copy_(part_of(full, whole, tensor.dst.boxes[self._job.rank]))
