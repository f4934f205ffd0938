# SPDX-License-Identifier: Apache-2.0
"""State dicts that are quantized on their way: shards that end anywhere, against torch's arithmetic on whole tensors."""

import os
import random
import sys
import unittest

import torch
import torch.distributed as dist
from torch.distributed.tensor import DeviceMesh, Replicate, Shard

import ranks
import torch_case
from crossmesh import errors, maps
from crossmesh.adapters._weights import WeightTransfer
from crossmesh.torch import StateDictTransfer, default_job

WORLD = 4
KINDS = {"fp8_blocks": (128, 128), "mxfp8": (1, 32), "int8_rows": (1, None)}


def quantized(x, kind):
    """Narrow elements and scales of a tensor, each matrix in blocks from its first element on."""
    if x.dim() > 2:
        each = [quantized(matrix, kind) for matrix in x]
        return torch.stack([e[0] for e in each]), torch.stack([e[1] for e in each])
    rows, columns = KINDS[kind]
    columns = columns or x.shape[1]
    up = -(-x.shape[0] // rows), -(-x.shape[1] // columns)
    wide = torch.zeros(up[0] * rows, up[1] * columns)
    wide[: x.shape[0], : x.shape[1]] = x.float()
    wide = wide.view(up[0], rows, up[1], columns)
    most = wide.abs().amax((1, 3))
    if kind == "fp8_blocks":
        scale = most.clamp(1e-4) / 448.0
    elif kind == "int8_rows":
        scale = (most / 127.0).clamp(2.0**-23)
    else:
        exponent = torch.ceil(torch.log2(most.double() / 448.0)).clamp(-127, 127)
        scale = (2.0**exponent).float()
    narrow = wide * (1.0 / scale)[:, None, :, None]
    narrow = narrow.round().to(torch.int8) if kind == "int8_rows" else narrow.to(torch.float8_e4m3fn)
    narrow = narrow.view(up[0] * rows, -1)[: x.shape[0], : x.shape[1]]
    return narrow.contiguous(), (exponent + 127).to(torch.uint8) if kind == "mxfp8" else scale


def weights(shape, dtype, seed):
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(shape, generator=generator) * 0.02 * (1 + seed % 5)).to(dtype)


def place(rng, full):
    mesh = torch_case.random_mesh(rng, WORLD)
    return torch_case.make(full, mesh, torch_case.random_placements(rng, mesh, list(full.shape)), rng.random() < 0.8)


def same(mine, full, about):
    theirs = torch_case.make(full, mine.device_mesh, mine.placements).to_local()
    assert torch.equal(torch_case.bits(mine.to_local()), torch_case.bits(theirs)), about


def random_dicts(rank, first, count):
    torch_case.join()
    for seed in range(first, first + count):
        rng = random.Random(seed)
        kind, dtype = rng.choice(list(KINDS)), rng.choice([torch.float32, torch.bfloat16])
        update = rng.choice([None, "auto"])
        shapes = [[rng.randint(1, 300), rng.randint(1, 300)] for _ in range(rng.randint(1, 3))]
        if rng.random() < 0.3:
            shapes.append([rng.randint(1, 3), *shapes[0]])
        fulls = {f"{i}.weight": weights(shape, dtype, seed + i) for i, shape in enumerate(shapes)}
        src = {name: place(rng, full) for name, full in fulls.items()}
        src["norm"] = place(rng, weights([40], dtype, seed))
        dst = {"norm": place(rng, torch.zeros(40, dtype=dtype))}
        for name, full in fulls.items():
            for key, made in zip((name, f"{name}_scale"), quantized(full, kind)):
                dst[key] = place(rng, torch.zeros_like(made))
        with StateDictTransfer(src, dst, maps=[maps.quantize("*", kind, "*_scale")], update=update) as transfer:
            for step in range(3):
                transfer.run()
                if update is None and step == 0:
                    transfer.verify()
                for name, full in fulls.items():
                    for key, made in zip((name, f"{name}_scale"), quantized(full, kind)):
                        same(dst[key], made, (seed, step, rank, key, shapes, kind))
                    # A few elements change, one so that its block's scale does.
                    full.view(-1)[rng.randrange(full.numel())] = 3.0 + step
                    full.view(-1)[rng.randrange(full.numel())] = 0.001
                    fresh = torch_case.make(full, src[name].device_mesh, src[name].placements)
                    src[name].to_local().copy_(fresh.to_local())
            if update is not None:
                assert all(not commit.everything for commit in transfer.commits)
    torch_case.leave()


def mesh_of(numbers):
    return DeviceMesh("cpu", torch.tensor(numbers), _init_backend=False, _rank=dist.get_rank())


def deepseek(rank):
    """Trained in float32 in rows that end within blocks; served fused, as vLLM has it: values and scales in one map."""
    torch_case.join()
    trainers, servers = mesh_of([0, 1, 2]), mesh_of([3])
    shapes = {"0.q_proj.weight": (512, 320), "0.k_proj.weight": (128, 320), "0.v_proj.weight": (128, 320)}
    fulls = {name: weights(shape, torch.float32, i) for i, (name, shape) in enumerate(shapes.items())}
    src = {name: torch_case.make(full, trainers, [Shard(i % 2)]) for i, (name, full) in enumerate(fulls.items())}
    made = [quantized(full, "fp8_blocks") for full in fulls.values()]
    whole = {"0.qkv_proj.weight": torch.cat([m[0] for m in made]),
             "0.qkv_proj.weight_scale_inv": torch.cat([m[1] for m in made])}  # fmt: skip
    dst = {name: torch_case.make(torch.zeros_like(full), servers, [Replicate()]) for name, full in whole.items()}
    parts = [f"*.{letter}_proj.weight*" for letter in "qkv"]
    given = [maps.quantize("*_proj.weight", "fp8_blocks"), maps.fuse("*.qkv_proj.weight*", parts)]
    with StateDictTransfer(src, dst, maps=given) as transfer:
        transfer.run()
    for name, full in whole.items():
        same(dst[name], full, name)
    # The same between programs: only those who have something name it.
    job = default_job()
    side = {"src": src} if rank < 3 else {"dst": {name: torch.zeros_like(full) for name, full in whole.items()}}
    weight = WeightTransfer(job, **side, maps=given)
    weight.run()
    for name, full in whole.items():
        if rank == 3:
            assert torch.equal(torch_case.bits(side["dst"][name]), torch_case.bits(full)), name
    assert weight.unwanted == [] and weight.late == set()
    weight.close()
    # Of the wire: a byte an element, and four for a scale.
    assert transfer.plan.bytes == sum(full.numel() * full.element_size() for full in whole.values())
    torch_case.leave()


def refusals(rank):
    torch_case.join()
    trainers, servers = mesh_of([0, 1]), mesh_of([2, 3])

    def refuse(text, given, dtype=torch.bfloat16, want=torch.float8_e4m3fn, scales=(1, 1)):
        src = {"w": torch_case.make(torch.zeros(6, 8, dtype=dtype), trainers, [Shard(0)])}
        dst = {"w": torch_case.make(torch.zeros(6, 8).to(want), servers, [Shard(0)])}
        if scales:
            dst["w_scale_inv"] = torch_case.make(torch.zeros(scales), servers, [Replicate()])
        with unittest.TestCase().assertRaisesRegex(errors.InputError, text):
            StateDictTransfer(src, dst, maps=given)

    fp8 = maps.quantize("*", "fp8_blocks")
    refuse("quantize: 'fp9' is not one of fp8_blocks, mxfp8, int8_rows", [maps.quantize("*", "fp9")])
    refuse("w is float16; what is quantized is float32 or bfloat16", [fp8], torch.float16)
    refuse("w is int8 in dst and the map casts it to float8_e4m3fn", [fp8], want=torch.int8)
    refuse(r"w_scale_inv has shape \(1, 1\) in src and \(2, 1\) in dst", [fp8], scales=(2, 1))
    refuse("w_scale_inv is in src but no rank wants it", [fp8], scales=None)
    refuse("w is quantized after another map has fused, split, turned or cast it: quantize comes first",
           [maps.transpose("w", (0, 1)), maps.cast("w", "float32"), fp8])  # fmt: skip
    torch_case.leave()


class Quantized(unittest.TestCase):
    def test_random_state_dicts(self):
        count = int(os.environ.get("CROSSMESH_TEST_ROUNDS", "24"))
        ranks.run(WORLD, random_dicts, 0, count, timeout=4 * ranks.TIMEOUT)

    def test_fused_as_served(self):
        ranks.run(WORLD, deepseek)

    def test_refusals(self):
        ranks.run(WORLD, refusals)


if __name__ == "__main__":
    sys.exit(unittest.main())
