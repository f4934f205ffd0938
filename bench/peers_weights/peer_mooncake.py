# SPDX-License-Identifier: Apache-2.0
"""Mooncake's transfer engine over TCP: one write for every pair of ranks."""

import threading

import torch.distributed as dist
from mooncake.engine import TransferEngine

from packed import Packed


class Peer:
    def __init__(self, job):
        self._job, self._rank = job, job.rank
        self._engine = TransferEngine()
        if self._engine.initialize(job.address, "P2PHANDSHAKE", "tcp", "") != 0:
            raise SystemExit("the transfer engine cannot be initialised")

    def plan(self):
        self._packed = Packed(self._job)
        for buffer in (*self._packed.out.values(), *self._packed.into.values()):
            if self._engine.register_memory(buffer.data_ptr(), buffer.nbytes) != 0:
                raise SystemExit("memory cannot be registered")
        about = {"name": f"{self._job.address}:{self._engine.get_rpc_port()}",
                 "into": {rank: buffer.data_ptr() for rank, buffer in self._packed.into.items()}}
        self._peers = [None] * self._job.size
        dist.all_gather_object(self._peers, about)

    def _write(self, to, buffer, failed):
        there = self._peers[to]
        if self._engine.transfer_sync_write(there["name"], buffer.data_ptr(), there["into"][self._rank],
                                            buffer.nbytes) != 0:
            failed.append(to)

    def run(self):
        self._packed.pack()
        failed = []
        writers = [threading.Thread(target=self._write, args=(to, buffer, failed))
                   for to, buffer in self._packed.out.items()]
        for writer in writers:
            writer.start()
        for writer in writers:
            writer.join()
        if failed:
            raise SystemExit(f"writes to ranks {failed} failed")
        dist.barrier()  # a receiver is not told
        self._packed.unpack()
