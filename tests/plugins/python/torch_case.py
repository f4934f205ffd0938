# SPDX-License-Identifier: Apache-2.0
"""Random DTensors for tests, their shards computed by torch itself from the whole tensor."""

import math
import os
import random

import torch
import torch.distributed as dist
from torch.distributed.tensor import DeviceMesh, DTensor, Replicate, Shard
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
from torch.distributed.tensor.placement_types import _StridedShard

DTYPES = [
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64, torch.complex128,
    torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool,
    torch.float8_e4m3fn, torch.float8_e5m2,
]  # fmt: skip


# Where the shards are; all ranks of a test share one device.
DEVICE = os.environ.get("TEST_TORCH_DEVICE", "cpu")


def join():
    """torch.distributed in a forked rank."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")


def leave():
    import crossmesh.torch

    crossmesh.torch.shutdown()
    dist.destroy_process_group()


def whole(shape, dtype, seed):
    """The whole tensor: random bytes, the same on all ranks."""
    generator = torch.Generator().manual_seed(seed)
    count = math.prod(shape)
    high = 2 if dtype == torch.bool else 256
    raw = torch.randint(0, high, (count * dtype.itemsize,), dtype=torch.uint8, generator=generator)
    return raw.view(dtype).reshape(shape)


def bits(tensor):
    """All bytes of a tensor, so that NaNs and zeros with a sign are compared as well."""
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)


def shard(full, mesh, placements):
    """This rank's shard of the whole tensor as torch computes it; a view. Where a _StridedShard makes shards of several
    pieces torch's offset is that of the first only, so such placements are not used here."""
    shape, offset = compute_local_shape_and_global_offset(full.shape, mesh, placements)
    if mesh.get_coordinate() is None:
        return full.new_empty(0)
    local = full
    for dim, (extent, first) in enumerate(zip(shape, offset)):
        local = local.narrow(dim, first if extent else 0, extent)
    return local


def make(full, mesh, placements, contiguous=True):
    """The whole tensor as a DTensor, without communication."""
    # from_local() counts dimensions from the end of the local tensor, which has none of them on ranks outside.
    placements = [Shard(p.dim % full.ndim) if type(p) is Shard else p for p in placements]
    local = shard(full, mesh, placements)
    local = local.clone(memory_format=torch.contiguous_format) if contiguous else local
    if mesh.get_coordinate() is None and full.ndim == 0:
        local = full.new_empty(())  # nor does it take an empty shape
    return DTensor.from_local(local.to(DEVICE), mesh, placements, run_check=False, shape=full.shape, stride=full.stride())


def random_mesh(rng, world):
    sizes = rng.choice([(1,), (2,), (3,), (4,), (6,), (2, 2), (2, 3), (3, 2), (1, 4), (2, 1), (1, 2, 3), (2, 2, 1)])
    while math.prod(sizes) > world:
        sizes = sizes[:-1]
    ranks = rng.sample(range(world), math.prod(sizes))
    if rng.random() < 0.5:
        ranks.sort()
    # No process groups: crossmesh needs none, and making thousands takes long.
    return DeviceMesh(DEVICE, torch.tensor(ranks).reshape(sizes), _init_backend=False, _rank=dist.get_rank())


def random_placements(rng, mesh, shape):
    placements = []
    for _ in range(mesh.ndim):
        if shape and rng.random() < 0.75:
            dim = rng.randrange(len(shape))
            placements.append(Shard(dim - len(shape) if rng.random() < 0.2 else dim))
        else:
            placements.append(Replicate())
    return placements


def strided(rng, mesh, shape):
    """FSDP's order: one dimension split by all mesh dimensions, the last one first. The extent is made to divide."""
    dim = rng.randrange(len(shape))
    parts = math.prod(mesh.mesh.shape)
    shape[dim] = parts * rng.randint(1, 3)
    placements, made = [], 1
    for extent in reversed(mesh.mesh.shape):
        placements.insert(0, _StridedShard(dim, split_factor=made) if made > 1 else Shard(dim))
        made *= extent
    return placements


def random_shape(rng):
    return [rng.choice([0, 1, 2, 3, 4, 5, 6, 7, 8, 11, 16]) for _ in range(rng.randint(0, 4))]


def pair(seed, world):
    """A whole tensor and two ways to lay it out."""
    rng = random.Random(seed)
    shape = random_shape(rng)
    src, dst = random_mesh(rng, world), random_mesh(rng, world)
    sides = []
    for mesh in (src, dst):
        if shape and not sides and mesh.ndim > 1 and rng.random() < 0.15:
            sides.append((mesh, strided(rng, mesh, shape)))
        else:
            sides.append((mesh, random_placements(rng, mesh, shape)))
    return whole(shape, rng.choice(DTYPES), seed), sides[0], sides[1], rng.random() < 0.5


def kinds(full, *sides):
    """What a pair is an example of."""
    (src, have), (dst, want) = sides
    members = set(src.mesh.flatten().tolist()), set(dst.mesh.flatten().tolist())
    found = {"ranks in both" if members[0] & members[1] else "no rank in both"}
    if members[0] == members[1]:
        found.add("one mesh")
    if any(type(p) is _StridedShard for p in (*have, *want)):
        found.add("strided")
    for mesh, placements in sides:
        parts = {}
        for extent, placement in zip(mesh.mesh.shape, placements):
            if isinstance(placement, (Shard, _StridedShard)):
                dim = placement.dim % full.ndim
                parts[dim] = parts.get(dim, 1) * extent
            elif extent > 1:
                found.add("copies")
        for dim, count in parts.items():
            if full.shape[dim] % count:
                found.add("uneven")
            if full.shape[dim] < count and full.shape[dim]:
                found.add("empty shards")
    return found


ROUNDS = int(os.environ.get("CROSSMESH_TEST_ROUNDS", "1000"))
