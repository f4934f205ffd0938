# SPDX-License-Identifier: Apache-2.0
"""One-sided byte movers know no boxes: every pair of ranks has one buffer at each end, packed and unpacked by us."""

import torch

from torch_peer import part_of, volume


class Packed:
    """Buffers by rank: `out` to whom, `into` from whom. Each holds the pieces of all tensors one after the other."""

    def __init__(self, job):
        self._copies, sends, receives = [], {}, {}
        for tensor in job.case.tensors:
            for to in tensor.dst.ranks:
                for box, sender in job.case.fetches(tensor, to):
                    if job.rank not in (sender, to):
                        continue
                    source = part_of(job.src[tensor.name], tensor.src_box, box) if job.rank == sender else None
                    target = part_of(job.dst[tensor.name], tensor.dst_box, box) if job.rank == to else None
                    if sender == to:
                        self._copies.append((target, source))
                    elif job.rank == sender:
                        sends.setdefault(to, []).append((source, volume(box)))
                    else:
                        receives.setdefault(sender, []).append((target, volume(box)))
        self._sends, self._receives = sends, receives
        self.out = {rank: self._buffer(pieces) for rank, pieces in sends.items()}
        self.into = {rank: self._buffer(pieces) for rank, pieces in receives.items()}

    @staticmethod
    def _buffer(pieces):
        return torch.zeros(sum(count for _, count in pieces), dtype=torch.bfloat16)

    def pack(self):
        for target, source in self._copies:
            target.copy_(source)
        for rank, pieces in self._sends.items():
            at = 0
            for view, count in pieces:
                self.out[rank][at:at + count].view(view.shape).copy_(view)
                at += count

    def unpack(self):
        for rank, pieces in self._receives.items():
            at = 0
            for view, count in pieces:
                view.copy_(self.into[rank][at:at + count].view(view.shape))
                at += count
