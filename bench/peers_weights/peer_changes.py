# SPDX-License-Identifier: Apache-2.0
"""torch.distributed alone, as reinforcement learning frameworks do it today: every rank finds what has changed of its
tiles, the first one gathers positions (four bytes) and values (two) of all tensors and broadcasts them to everybody, and
all write what is theirs."""

import torch
import torch.distributed as dist

from case import holders_of


class Peer:
    def __init__(self, job):
        self._tensors, self._rank, self._size = job.case.tensors, job.rank, job.size

    def plan(self):
        self._root = self._tensors[0].src.ranks[0]
        self._own = []  # (tensor, tile, shadow, row-major index of its elements) of the tiles that this rank tells of
        for tensor in self._tensors:
            whole = tuple((0, extent) for extent in tensor.shape)
            if any(part == tensor.src_box and ranks[0] == self._rank for part, ranks in holders_of(tensor.src, whole)):
                self._own.append((tensor, tensor.src_tile, tensor.src_tile.clone()))
            if tensor.dst_tile is not None:  # all have the first version already
                tensor.dst_tile.copy_(tensor.expected)

    @staticmethod
    def _places(positions, box, shape):
        """Row-major indices within a box as indices within the tensor."""
        index = torch.zeros_like(positions)
        stride = 1
        for (lo, hi), extent in zip(reversed(box), reversed(shape)):
            index += (positions % (hi - lo) + lo) * stride
            positions, stride = positions // (hi - lo), stride * extent
        return index

    def _find(self):
        """Counts by tensor, and the positions and values of all."""
        counts = torch.zeros(len(self._tensors), dtype=torch.int64)
        positions, values = [], []
        for tensor, tile, shadow in self._own:
            found = (tile != shadow).flatten().nonzero().squeeze(1)
            value = tile.flatten()[found]
            shadow.view(-1)[found] = value
            counts[tensor.index] = len(found)
            positions.append(self._places(found, tensor.src_box, tensor.shape).int())
            values.append(value)
        empty = [torch.empty(0, dtype=torch.int32)], [torch.empty(0, dtype=torch.int16)]
        return counts, torch.cat(positions or empty[0]), torch.cat(values or empty[1])

    def _write(self, tensor, index, value):
        inside, at, stride = torch.ones_like(index, dtype=torch.bool), torch.zeros_like(index), 1
        for (lo, hi), extent in zip(reversed(tensor.dst_box), reversed(tensor.shape)):
            place = index % extent
            inside &= (place >= lo) & (place < hi)
            at += (place - lo) * stride
            index, stride = index // extent, stride * (hi - lo)
        tensor.dst_tile.view(-1)[at[inside]] = value[inside]

    def run(self):
        counts, positions, values = self._find()
        table = [torch.empty_like(counts) for _ in range(self._size)]
        dist.all_gather(table, counts)
        totals = [int(row.sum()) for row in table]
        every = [(torch.empty(total, dtype=torch.int32), torch.empty(total, dtype=torch.int16)) for total in totals]
        every[self._rank] = positions, values
        if self._rank == self._root:
            for work in [dist.irecv(part, rank) for rank, parts in enumerate(every) if rank != self._rank
                         for part in parts if len(part) > 0]:
                work.wait()
        elif totals[self._rank] > 0:
            dist.send(positions, self._root)
            dist.send(values, self._root)
        both = (torch.cat([p for p, _ in every]), torch.cat([v for _, v in every]))
        for part in both:
            if len(part) > 0:
                dist.broadcast(part.view(torch.uint8), self._root)
        begin = 0
        for row in table:
            for tensor in self._tensors:
                end = begin + int(row[tensor.index])
                if tensor.dst_tile is not None and end > begin:
                    self._write(tensor, both[0][begin:end].long(), both[1][begin:end])
                begin = end
