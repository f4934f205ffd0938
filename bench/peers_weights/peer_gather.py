# SPDX-License-Identifier: Apache-2.0
"""torch.distributed alone, as in torch_peer.py: the first source rank gathers every tensor and broadcasts it, and all
take their slices."""

from torch_peer import GatherBroadcast, Groups


class Peer:
    def __init__(self, job):
        self._case = job.case

    def plan(self):
        groups = Groups()
        self._tensors = [GatherBroadcast(tensor, groups) for tensor in self._case.tensors]

    def run(self):
        for tensor in self._tensors:
            tensor.run()
