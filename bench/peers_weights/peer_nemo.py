# SPDX-License-Identifier: Apache-2.0
"""NeMo-RL's algorithm, after its description: the replicas of a destination tile receive a stripe of it each, from
the ranks that hold it, and gather the stripes among themselves. One tensor after the other."""

import torch
import torch.distributed as dist

from case import holders_of, intersect, part_of


class Peer:
    def __init__(self, job):
        self._rank, self._groups = job.rank, {}
        self._steps = [self._step(job, tensor) for tensor in job.case.tensors]

    def _group(self, ranks):
        if ranks not in self._groups:
            self._groups[ranks] = dist.new_group(list(ranks))
        return self._groups[ranks]

    @staticmethod
    def _stripes(box, replicas):
        """Equal runs of rows, and the last ones shorter: (rank, stripe or None)."""
        (first, end), rows = box[0], -(-(box[0][1] - box[0][0]) // len(replicas))
        for place, rank in enumerate(replicas):
            start = first + place * rows
            yield rank, intersect(((start, start + rows), *box[1:]), ((first, end), *box[1:]))

    def _step(self, job, tensor):
        """This rank's part in a tensor: sends, receives and copies into its stripe, and the gathering."""
        tiles = {}
        for rank, box in tensor.dst.boxes.items():
            tiles.setdefault(box, []).append(rank)
        moves, gather = [], None
        for box, replicas in tiles.items():
            group = self._group(tuple(replicas)) if len(replicas) > 1 else None
            for place, (to, stripe) in enumerate(self._stripes(box, replicas)):
                for part, ranks in holders_of(tensor.src, stripe) if stripe else ():
                    sender = to if to in ranks else ranks[place % len(ranks)]
                    if job.rank in (sender, to):
                        moves.append((sender, to, part))
            if job.rank in replicas:
                own = dict(self._stripes(box, replicas))[job.rank]
                gather = (box, own, group, len(replicas))
        return tensor, job.src.get(tensor.name), job.dst.get(tensor.name), moves, gather

    def _move(self, tensor, source, into, stripe, moves):
        operations, places = [], []
        for sender, to, part in moves:
            if sender == self._rank:
                piece = part_of(source, tensor.src.boxes[sender], part)
                if to == self._rank:
                    part_of(into, stripe, part).copy_(piece)
                else:
                    operations.append(dist.P2POp(dist.isend, piece.contiguous(), to))
            else:
                view = part_of(into, stripe, part)
                buffer = view if view.is_contiguous() else torch.empty_like(view, memory_format=torch.contiguous_format)
                operations.append(dist.P2POp(dist.irecv, buffer, sender))
                places.append((view, buffer))
        for request in dist.batch_isend_irecv(operations) if operations else ():
            request.wait()
        for view, buffer in places:
            if view is not buffer:
                view.copy_(buffer)

    def run(self):
        for tensor, source, target, moves, gather in self._steps:
            box, own, group, replicas = gather or (None, None, None, 0)
            if group is None:
                self._move(tensor, source, target, own, moves)
                continue
            rows = -(-target.shape[0] // replicas)
            stripe = target.new_empty((rows, *target.shape[1:]))
            self._move(tensor, source, stripe, own, moves)
            whole = target if rows * replicas == target.shape[0] else target.new_empty((rows * replicas, *target.shape[1:]))
            dist.all_gather_into_tensor(whole, stripe, group=group)
            if whole is not target:
                target.copy_(whole[:target.shape[0]])
