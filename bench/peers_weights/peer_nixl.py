# SPDX-License-Identifier: Apache-2.0
"""NIXL over UCX's TCP: one write for every pair of ranks."""

import os
import time

import torch.distributed as dist

os.environ.setdefault("UCX_TLS", "tcp,self")
from nixl_cu12._api import nixl_agent, nixl_agent_config  # noqa: E402  UCX reads its settings at import

from packed import Packed  # noqa: E402


class Peer:
    def __init__(self, job):
        self._job = job
        self._agent = nixl_agent(f"rank{job.rank}", nixl_agent_config(backends=["UCX"]))

    def plan(self):
        job = self._job
        self._packed = Packed(job)
        buffers = [*self._packed.out.values(), *self._packed.into.values()]
        if buffers:
            self._agent.register_memory(buffers)
        about = {"metadata": self._agent.get_agent_metadata(),
                 "into": {rank: self._agent.get_serialized_descs(self._agent.get_xfer_descs([buffer]))
                          for rank, buffer in self._packed.into.items()}}
        peers = [None] * job.size
        dist.all_gather_object(peers, about)
        self._transfers = []
        for to, buffer in self._packed.out.items():
            name = self._agent.add_remote_agent(peers[to]["metadata"])
            there = self._agent.deserialize_descs(peers[to]["into"][job.rank])
            self._transfers.append(self._agent.initialize_xfer("WRITE", self._agent.get_xfer_descs([buffer]), there,
                                                               name))

    def run(self):
        self._packed.pack()
        for transfer in self._transfers:
            self._agent.transfer(transfer)
        waiting = list(self._transfers)
        while waiting:
            states = [(transfer, self._agent.check_xfer_state(transfer)) for transfer in waiting]
            if any(state == "ERR" for _, state in states):
                raise SystemExit("a write failed")
            waiting = [transfer for transfer, state in states if state != "DONE"]
            time.sleep(0.0005)
        dist.barrier()  # a receiver is not told
        self._packed.unpack()
