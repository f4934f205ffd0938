# SPDX-License-Identifier: Apache-2.0
"""Layouts of real training and serving jobs: what their ranks hold is made by torch itself, and every byte compared."""

import sys
import unittest

import torch
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DeviceMesh, DTensor, Replicate, Shard

import ranks
import torch_case
from crossmesh import maps
from crossmesh.torch import StateDictTransfer

ROUNDS = 2


def mesh_of(members, rank):
    return DeviceMesh("cpu", torch.tensor(members), _init_backend=False, _rank=rank)


def carry(src, dst, expected, **options):
    """Twice, into nothing each time."""
    with StateDictTransfer(src, dst, **options) as transfer:
        for _ in range(ROUNDS):
            for tensor in dst.values():
                tensor.to_local().zero_()
            transfer.run()
            for name, local in expected.items():
                assert torch.equal(torch_case.bits(dst[name].to_local()), torch_case.bits(local)), name
        transfer.verify()


def chunk(tensor, count, number, dim=0):
    """Torch's, with the empty ones that it leaves out."""
    parts = list(torch.chunk(tensor, count, dim))
    return parts[number] if number < len(parts) else tensor.narrow(dim, 0, 0)


class Model(torch.nn.Module):
    """Parameters that tensor parallelism has cut already, by rows and by columns."""

    def __init__(self, full, tp):
        super().__init__()
        for name, tensor in full.items():
            placement = Shard(int(name[0] == "c"))
            local = chunk(tensor, tp.size(), tp.get_local_rank(), placement.dim).clone()
            parameter = DTensor.from_local(local, tp, [placement], run_check=False, shape=tensor.shape,
                                           stride=tensor.stride())  # fmt: skip
            setattr(self, name, torch.nn.Parameter(parameter))


def fsdp_and_tp(rank):
    """FSDP2 over tensor parallelism, of rows that divide by neither; there and back."""
    torch_case.join()
    for sizes in ((2, 2), (4, 1), (1, 4), (3, 2), (2, 3)):
        parts = sizes[0] * sizes[1]
        mesh = DeviceMesh("cpu", torch.arange(parts).reshape(sizes), mesh_dim_names=("dp", "tp"))
        full = {f"{kind}{n}": torch_case.whole((n, 9), torch.bfloat16, n) for kind in "rc" for n in (1, 3, 5, 7, 9, 12, 13)}
        servers = mesh_of([7, 1, 6], rank)
        state, local = {}, {}
        if rank < parts:
            dp, tp = mesh["dp"], mesh["tp"]
            model = fully_shard(Model(full, tp), mesh=dp)
            for name, parameter in model.named_parameters():
                own = chunk(full[name], sizes[1], tp.get_local_rank(), int(name[0] == "c"))
                state[name] = parameter.data
                local[name] = chunk(own, sizes[0], dp.get_local_rank()).contiguous()
                assert torch.equal(torch_case.bits(parameter.to_local()), torch_case.bits(local[name])), (rank, name)
        served = {name: torch_case.make(tensor, servers, [Shard(1)]) for name, tensor in full.items()}
        there = {name: tensor.to_local().clone() for name, tensor in served.items() if rank in (7, 1, 6)}
        carry(state, served, there)
        carry(served, state, local)
    torch_case.leave()


def hsdp(rank):
    """Shards that several groups have, uneven; three of the groups' ranks serve as well."""
    torch_case.join()
    mesh = DeviceMesh("cpu", torch.arange(6).reshape(2, 3), mesh_dim_names=("copies", "shards"))
    full = {f"r{n}": torch_case.whole((n, 4), torch.float32, n) for n in (2, 5, 7, 9)}
    state, servers = {}, mesh_of([5, 7, 0], rank)
    if rank < 6:
        model = torch.nn.Module()
        for name, tensor in full.items():
            setattr(model, name, torch.nn.Parameter(tensor.clone()))
        fully_shard(model, mesh=mesh)
        state = {name: parameter.data for name, parameter in model.named_parameters()}
    served = {name: torch_case.make(tensor, servers, [Shard(0)]) for name, tensor in full.items()}
    there = {name: tensor.to_local().clone() for name, tensor in served.items() if rank in (5, 7, 0)}
    carry(state, served, there)
    local = {name: chunk(full[name], 3, rank % 3) for name in state}
    carry(served, state, local)
    torch_case.leave()


EXPERTS, INTER, HIDDEN = 7, 6, 10


def experts(rank):
    """Expert parallelism of three times tensor parallelism of two; served fused, five experts ranks' and two halves'."""
    torch_case.join()
    full, src = {}, {}
    for expert in range(EXPERTS):
        group = expert % 3
        mesh = mesh_of([2 * group, 2 * group + 1], rank)
        for part, shape, dim in (("gate", (INTER, HIDDEN), 0), ("up", (INTER, HIDDEN), 0), ("down", (HIDDEN, INTER), 1)):
            name = f"experts.{expert}.{part}"
            full[name] = torch_case.whole(shape, torch.bfloat16, expert * 3 + len(part))
            if rank // 2 == group:
                src[name] = torch_case.make(full[name], mesh, [Shard(dim)])
    halves = [torch.cat([full[f"experts.{e}.gate"], full[f"experts.{e}.up"]]) for e in range(EXPERTS)]
    wanted = {
        "experts.w13": torch.stack(halves),
        "experts.w2": torch.stack([full[f"experts.{e}.down"] for e in range(EXPERTS)]).transpose(1, 2).contiguous(),
    }
    mesh = mesh_of([[7, 3], [6, 0], [1, 2], [4, 5]], rank)
    dst = {
        "experts.w13": torch_case.make(wanted["experts.w13"], mesh, [Shard(0), Shard(2)]),
        "experts.w2": torch_case.make(wanted["experts.w2"], mesh, [Shard(0), Shard(1)]),
    }
    there = {name: tensor.to_local().clone() for name, tensor in dst.items()}
    given = [
        maps.fuse("experts.#.w13", ["experts.#.gate", "experts.#.up"]),
        maps.stack("experts.w13", "experts.#.w13"),
        maps.stack("experts.w2", "experts.#.down"),
        maps.transpose("experts.w2", (0, 2, 1)),
    ]
    carry(src, dst, there, maps=given)
    back = [
        maps.split("experts.w13", ["experts.gates", "experts.ups"], [1, 1], axis=1),
        maps.unstack("experts.gates", "experts.#.gate"),
        maps.unstack("experts.ups", "experts.#.up"),
        maps.transpose("experts.w2", (0, 2, 1)),
        maps.unstack("experts.w2", "experts.#.down"),
    ]
    carry(dst, src, {name: tensor.to_local().clone() for name, tensor in src.items()}, maps=back)
    torch_case.leave()


def tied(rank):
    """Pipeline stages: the embedding is on the first only, or on both ends; the servers want it twice, or once."""
    torch_case.join()
    table = torch_case.whole((11, 6), torch.float32, 5)
    stages, servers = [mesh_of([0, 1], rank), mesh_of([2, 3], rank)], mesh_of([4, 5, 6], rank)
    for both_ends in (False, True):
        src = {}
        for stage in (0, 1) if both_ends else (0,):
            if rank // 2 == stage:
                src["embed"] = torch_case.make(table, stages[stage], [Shard(0)])
        for names in (("embed",), ("embed", "head")):
            dst = {name: torch_case.make(table, servers, [Shard(len(name) - 4 and 0)]) for name in names}
            there = {name: tensor.to_local().clone() for name, tensor in dst.items() if rank in (4, 5, 6)}
            carry(src, dst, there, maps=[maps.tie("embed", "head")] if len(names) > 1 else [])
    # The way back: each end of the pipeline has its copy.
    src = {"embed": torch_case.make(table, servers, [Shard(1)])}
    dst = {"embed": torch_case.make(table, stages[rank // 2], [Shard(0)])} if rank < 4 else {}
    carry(src, dst, {name: tensor.to_local().clone() for name, tensor in dst.items()})
    torch_case.leave()


BLOCK = 4


def quantised(rank):
    """Weights of eight bits with a scale for each block: what a server makes of its shards are shards of the values."""
    torch_case.join()
    generator = torch.Generator().manual_seed(1)
    heads = {"q": 6, "k": 2, "v": 2}
    values, src = {}, {}
    trainers, servers = mesh_of([[0, 1], [2, 3]], rank), mesh_of([5, 4], rank)
    for part, rows in heads.items():
        weight = torch.randint(-127, 128, (rows * BLOCK, 5 * BLOCK), dtype=torch.int8, generator=generator)
        scale = torch.rand(rows, 5, generator=generator)
        values[part] = weight * scale.repeat_interleave(BLOCK, 0).repeat_interleave(BLOCK, 1)
        src[f"0.{part}.weight"] = torch_case.make(weight, trainers, [Shard(0), Shard(1)])
        src[f"0.{part}.weight_scale"] = torch_case.make(scale, trainers, [Shard(1), Replicate()])
    whole = torch.cat([chunk(values[part], 2, group) for group in (0, 1) for part in heads])
    mine = chunk(whole, 2, {5: 0, 4: 1}.get(rank, 0))
    dst = {
        "0.qkv.weight": torch_case.make(torch.zeros(10 * BLOCK, 5 * BLOCK, dtype=torch.int8), servers, [Shard(0)]),
        "0.qkv.weight_scale": torch_case.make(torch.zeros(10, 5), servers, [Shard(0)]),
    }
    fused = maps.fuse("*.qkv.weight*", [f"*.{part}.weight*" for part in heads], groups=2)
    carry(src, dst, {}, maps=[fused])
    if rank in (4, 5):
        weight, scale = (tensor.to_local() for tensor in dst.values())
        assert torch.equal(weight * scale.repeat_interleave(BLOCK, 0).repeat_interleave(BLOCK, 1), mine), rank
    torch_case.leave()


class Layouts(unittest.TestCase):
    def test_fsdp_and_tp(self):
        ranks.run(8, fsdp_and_tp, timeout=2 * ranks.TIMEOUT)

    def test_hsdp(self):
        ranks.run(8, hsdp)

    def test_experts(self):
        ranks.run(8, experts)

    def test_tied(self):
        ranks.run(7, tied)

    def test_quantised(self):
        ranks.run(6, quantised)


if __name__ == "__main__":
    sys.exit(unittest.main())
