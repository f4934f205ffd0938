# SPDX-License-Identifier: Apache-2.0
"""NeMo-RL's algorithm, after its description: the replicas of a destination tile receive a stripe of it each, from
the ranks that hold it, and gather the stripes among themselves. One tensor after the other."""

import torch.distributed as dist

from case import holders_of
from torch_peer import Transfer, exchange, intersect, part_of, wire


class Peer:
    def __init__(self, job):
        self._job, self._rank, self._groups = job, job.rank, {}

    def plan(self):
        self._steps = [self._step(self._job, tensor) for tensor in self._job.case.tensors]

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
        for rank, box in tensor.dst.box_of_rank.items():
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
        return tensor, tensor.src_tile, tensor.dst_tile, moves, gather

    def _move(self, tensor, source, into, stripe, moves):
        sends, receives = [], []
        for sender, to, part in moves:
            if sender != self._rank:
                receives.append(Transfer(tensor, into, stripe, part, sender))
            elif to != self._rank:
                sends.append(Transfer(tensor, source, tensor.src_box, part, to))
            else:
                part_of(into, stripe, part).copy_(part_of(source, tensor.src_box, part))
        exchange(sends, receives)

    def run(self):
        for tensor, source, target, moves, gather in self._steps:
            box, own, group, replicas = gather or (None, None, None, 0)
            if group is None:
                self._move(tensor, source, target, own, moves)
                continue
            rows = -(-target.shape[0] // replicas)
            stripe = target.new_empty((rows, *target.shape[1:]))
            self._move(tensor, source, stripe, own, moves)
            even = rows * replicas == target.shape[0]
            whole = target if even else target.new_empty((rows * replicas, *target.shape[1:]))
            dist.all_gather_into_tensor(wire(whole), wire(stripe), group=group)
            if whole is not target:
                target.copy_(whole[:target.shape[0]])
