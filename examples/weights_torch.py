# SPDX-License-Identifier: Apache-2.0
"""Weights of a trainer into servers: two torchruns that have nothing in common but an address.

torchrun --master-port 29501 --nproc-per-node 2 weights_torch.py train 127.0.0.1:29500
torchrun --master-port 29502 --nproc-per-node 3 weights_torch.py serve 127.0.0.1:29500

The trainer holds each weight by rows (two ranks), the servers hold it by columns (three, unevenly).
"""

import os
import sys

import torch
import torch.distributed as dist
from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh

import crossmesh
from crossmesh.adapters.ray import WeightTransfer  # which needs no Ray

TRAINERS, SERVERS, STEPS = 2, 3, 3
SHAPES = {"embedding": (1000, 64), "projection": (256, 64)}

role, address = sys.argv[1:]
trains = role == "train"
dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (TRAINERS if trains else SERVERS,))
split = [Shard(0 if trains else 1)]
weights = {name: distribute_tensor(torch.zeros(shape), mesh, split) for name, shape in SHAPES.items()}

# Both programs are one job: the trainer's ranks come first, and its rank 0 is met at the address.
host, port = address.split(":")
rank = dist.get_rank() + (0 if trains else TRAINERS)
os.environ.update(RANK=str(rank), WORLD_SIZE=str(TRAINERS + SERVERS), MASTER_ADDR=host, MASTER_PORT=port)
with crossmesh.Job.from_env() as job:
    transfer = WeightTransfer(job, **{"src" if trains else "dst": weights})
    for step in range(1, STEPS + 1):
        if trains:
            for number, tensor in enumerate(weights.values()):
                tensor.to_local().fill_(10 * step + number)  # what an optimizer does
        transfer.run()
        found = [sorted(set(tensor.to_local().flatten().tolist())) for tensor in weights.values()]
        assert found == [[10.0 * step], [10.0 * step + 1]], found
        print(f"{role} rank {dist.get_rank()}, step {step}: {found}", flush=True)
dist.destroy_process_group()
