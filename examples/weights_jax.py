# SPDX-License-Identifier: Apache-2.0
"""Weights of a trainer in JAX into servers in PyTorch: two programs that have nothing in common but an address.

python weights_jax.py train RANK 127.0.0.1:29500 127.0.0.1:29501      for ranks 0 and 1
python weights_jax.py serve RANK 127.0.0.1:29500                      for ranks 0 and 1

JAX's processes (which meet at the second address) hold each weight by rows, those of PyTorch by columns.
"""

import os
import sys

import crossmesh

TRAINERS, SERVERS, STEPS = 2, 2, 3
SHAPES = {"embedding": (1000, 64), "projection": (256, 64)}

role, number, address = sys.argv[1], int(sys.argv[2]), sys.argv[3]
if role == "train":
    import jax
    import jax.numpy as jnp
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    jax.distributed.initialize(sys.argv[4], TRAINERS, number)
    rows = NamedSharding(Mesh(jax.devices(), "model"), PartitionSpec("model"))
    train = jax.jit(
        lambda step: [jnp.full(shape, 10 * step + i, jnp.float32) for i, shape in enumerate(SHAPES.values())],
        out_shardings=[rows] * len(SHAPES),
    )
else:
    import torch

    held = [torch.zeros(extent, width // SERVERS) for extent, width in SHAPES.values()]

# Both programs are one job: the trainer's ranks come first, and its rank 0 is met at the address.
host, port = address.split(":")
rank = number + (0 if role == "train" else TRAINERS)
os.environ.update(RANK=str(rank), WORLD_SIZE=str(TRAINERS + SERVERS), MASTER_ADDR=host, MASTER_PORT=port)
with crossmesh.Job.from_env() as job:
    trainers = crossmesh.Mesh(TRAINERS)
    servers = crossmesh.Mesh(SERVERS, range(TRAINERS, TRAINERS + SERVERS))
    tensors = [
        crossmesh.TensorSpec(crossmesh.Layout(trainers, "S0R", shape), crossmesh.Layout(servers, "RS0", shape), 32, name)
        for name, shape in SHAPES.items()
    ]
    plan = crossmesh.Plan(tensors, job.network())
    for step in range(1, STEPS + 1):
        if role == "train":
            # JAX has new arrays after every step. Their memory is read where it is.
            src, dst = [array.addressable_data(0) for array in jax.block_until_ready(train(step))], None
        else:
            src, dst = None, held
        with crossmesh.Reshard(job, plan, src, dst, dtype="float32") as reshard:
            reshard.run()
        if role == "serve":
            found = [sorted(set(tensor.flatten().tolist())) for tensor in held]
            assert found == [[10.0 * step], [10.0 * step + 1]], found
            print(f"serve rank {number}, step {step}: {found}", flush=True)
if role == "train":
    jax.distributed.shutdown()
