# SPDX-License-Identifier: Apache-2.0
"""crossmesh: StateDictTransfer, planned once. The program's DTensors and the job are there before."""

import os
import sys

import torch
from torch.distributed.tensor import DeviceMesh, DTensor, Replicate, Shard

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "../../plugins/python/src"))
from crossmesh.torch import StateDictTransfer, default_job  # noqa: E402


class Peer:
    def __init__(self, job, update=None):
        meshes = {}
        self._sides = {"src": {}, "dst": {}}
        for tensor in job.case.tensors:
            for name, tiles in (("src", job.src), ("dst", job.dst)):
                side = getattr(tensor, name)
                key = (tuple(side.ranks), tuple(side.sizes))
                if key not in meshes:  # all ranks make all meshes, in one order
                    meshes[key] = DeviceMesh("cpu", torch.tensor(side.ranks).reshape(side.sizes))
                if tensor.name in tiles:
                    self._sides[name][tensor.name] = self._wrap(tensor, side, tiles[tensor.name], meshes[key])
        self._update = update
        default_job()

    def plan(self):
        self._transfer = StateDictTransfer(self._sides["src"] or None, self._sides["dst"] or None, update=self._update)

    @staticmethod
    def _wrap(tensor, side, tile, mesh):
        placements = [Replicate()] * len(side.sizes)
        for dim, axes in enumerate(side.axes):
            for axis in axes:
                placements[axis] = Shard(dim)
        stride = torch.empty(tensor.shape, device="meta").stride()
        return DTensor.from_local(tile, mesh, placements, run_check=False, shape=torch.Size(tensor.shape),
                                  stride=stride)

    def run(self):
        self._transfer.run()
