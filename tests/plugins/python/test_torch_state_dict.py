# SPDX-License-Identifier: Apache-2.0
"""State dicts between a training and a serving part of one job."""

import os
import sys
import tempfile
import time
import unittest

import torch
import torch.distributed as dist
from torch.distributed.tensor import DeviceMesh, DTensor, Partial, Replicate, Shard

import ranks
import torch_case
from crossmesh import errors
from crossmesh.torch import StateDictTransfer, default_job, redistribute, reshard_state_dict, shutdown

LAYERS = 4


def mesh_of(ranks_of_it):
    return DeviceMesh(torch_case.DEVICE, torch.tensor(ranks_of_it), _init_backend=False, _rank=dist.get_rank())


def parameters():
    """Name, shape, dtype and how tensor parallelism splits it, of a small transformer."""
    for layer in range(LAYERS):
        yield f"layers.{layer}.qkv", (24, 10), torch.bfloat16, Shard(0)
        yield f"layers.{layer}.out", (10, 8), torch.bfloat16, Shard(1)
        yield f"layers.{layer}.up", (31, 10), torch.bfloat16, Shard(0)  # uneven
        yield f"layers.{layer}.norm", (10,), torch.float32, Replicate()


def whole(index, step):
    name, shape, dtype, _ = list(parameters())[index]
    return torch_case.whole(shape, dtype, 1000 * step + index)


def training(step, rank):
    """TP4 x PP2 on ranks 0 ... 7: a stage has the parameters of half the layers."""
    if rank >= 8:
        return None
    stage = rank // 4
    mesh, state = mesh_of(list(range(4 * stage, 4 * stage + 4))), {}
    for index, (name, _, _, placement) in enumerate(parameters()):
        if int(name.split(".")[1]) * 2 // LAYERS == stage:
            state[name] = torch_case.make(whole(index, step), mesh, [placement])
    state[f"steps.{stage}"] = torch.tensor(step)
    state["format"] = "not a tensor"
    return state


def serving(rank, copies_by_mesh):
    """TP2 x DP2 on ranks 8 ... 11, either as one mesh or as two that know nothing of each other."""
    if rank < 8:
        return {}
    if copies_by_mesh:
        first = 8 + (rank - 8) // 2 * 2
        mesh, replicas = mesh_of([first, first + 1]), []
    else:
        mesh, replicas = mesh_of([[8, 9], [10, 11]]), [Replicate()]
    state = {}
    for name, shape, dtype, placement in parameters():
        state[name] = torch_case.make(torch.zeros(shape, dtype=dtype), mesh, [*replicas, placement])
    state["steps.0"] = torch.tensor(-1)
    state["steps.1"] = torch.tensor(-1)
    return state


def transfer(rank):
    torch_case.join()
    for copies_by_mesh, update in ((False, None), (True, None), (True, "auto")):
        src, dst = training(0, rank), serving(rank, copies_by_mesh)
        with StateDictTransfer(src, dst, update=update) as weights:
            if rank == 0:
                print(repr(weights.plan))
            assert len(weights.plan.tensors) == 4 * LAYERS + 2
            for step in range(3):
                for name, tensor in (training(step, rank) or {}).items():
                    if isinstance(tensor, DTensor):
                        src[name].to_local().copy_(tensor.to_local())
                    elif isinstance(tensor, torch.Tensor):
                        src[name].copy_(tensor)
                weights.run()
                for index, (name, _, _, _) in enumerate(parameters()):
                    if rank >= 8:
                        wanted = torch_case.make(whole(index, step), dst[name].device_mesh, dst[name].placements)
                        assert torch.equal(torch_case.bits(dst[name].to_local()), torch_case.bits(wanted.to_local())), (
                            rank,
                            name,
                        )
                if rank >= 8:
                    assert dst["steps.0"] == dst["steps.1"] == step
                if update is None:
                    weights.verify()
            if update is not None:
                weights.run()  # nothing is new
                assert all(c.version == 4 and not c.everything and c.changed == 0 for c in weights.commits), weights.commits
                if rank < 4:
                    src["layers.0.norm"].to_local()[3] = 41
                weights.run()
                assert sum(c.changed for c in weights.commits) == (rank < 4)
                if rank >= 8:
                    assert dst["layers.0.norm"].to_local()[3] == 41
    torch_case.leave()


def matching(rank):
    torch_case.join()
    mesh, other = mesh_of([0, 1]), mesh_of([1, 2])

    def state(mesh, dtype=torch.float32, shape=(4, 4), names=("w",), placement=None):
        placement = placement or Shard(0)
        return {name: torch_case.make(torch.ones(shape, dtype=dtype), mesh, [placement]) for name in names}

    # Whoever waited for a deadline would wait longer than this test may take.
    default_job(timeout=100 * ranks.TIMEOUT)
    for src, dst, text in (
        (state(mesh), state(other, torch.bfloat16), "w is float32 in src and bfloat16 in dst"),
        (state(mesh), state(other, shape=(4, 5)), "w has shape (4, 4) in src and (4, 5) in dst"),
        (state(mesh), state(other, names=("v",)), "v is wanted but no rank has it"),
        (state(mesh, names=("w", "v")), state(other), "v is in src but no rank wants it"),
        (state(mesh), {}, "no rank wants any tensor"),
        (state(mesh), {"w": 3} if rank == 1 else state(other), "w is a int, not a tensor"),
        (state(mesh), state(other, placement=Partial()), "Partial on the destination"),
        (state(mesh, dtype=torch.float16 if rank == 2 else torch.float32), state(other), "dtype"),
    ):
        try:
            reshard_state_dict(src, dst)
            raise AssertionError(f"not refused: {text}")
        except errors.InputError as error:
            assert text in str(error), (text, error)
    wanted = state(other)
    reshard_state_dict(state(mesh, names=("w", "v")), wanted, strict=False)
    # Destinations that are not contiguous are filled all the same, and a Partial is summed.
    there = torch.zeros(4, 6).t() if rank else torch.empty(0)
    target = DTensor.from_local(there, other, [Replicate()], shape=torch.Size((6, 4)), stride=(4, 1))
    summed = DeviceMesh("cpu", [0, 1])
    part = torch.full((6, 4), 2.0) if rank < 2 else torch.empty(0)
    source = DTensor.from_local(part, summed, [Partial()], shape=torch.Size((6, 4)), stride=(4, 1))
    with StateDictTransfer({"w": source}, {"w": target}) as weights:
        for factor in (1, 3):
            part.fill_(2.0 * factor)
            weights.run()
            assert rank == 0 or bool((there == 4.0 * factor).all())
    torch_case.leave()


def dies(rank, death):
    torch_case.join()
    mesh, other = mesh_of([0, 1]), mesh_of([2, 3])
    full = torch.ones(64, 64)
    src, dst = {"w": torch_case.make(full, mesh, [Shard(0)])}, {"w": torch_case.make(full, other, [Shard(1)])}
    weights = StateDictTransfer(src, dst)
    weights.run()
    death.meet(rank)
    started = time.monotonic()
    for call in (weights.run, lambda: redistribute(dst["w"], mesh, [Shard(0)])):
        try:
            while True:  # rank 0 has sent its part before it hears of the death
                call()
        except errors.PeerDiedError as error:
            assert "rank 1" in str(error), error
    assert time.monotonic() - started < ranks.SOON
    death.survive()


def second_group(rank, file):
    """A new default group has a new job; the ranks meet through whatever Store that one has."""
    for where in ("env://", f"file://{file}"):
        dist.init_process_group("gloo", init_method=where, rank=rank, world_size=2)
        job = default_job()
        assert default_job() is job and job.size == 2
        job.barrier()
        shutdown()
        assert job.closed
        dist.barrier()
        dist.destroy_process_group()
    try:
        default_job()
        raise AssertionError("there is no group")
    except errors.InputError as error:
        assert "init_process_group" in str(error)


class StateDicts(unittest.TestCase):
    def test_training_to_serving(self):
        ranks.run(12, transfer, timeout=4 * ranks.TIMEOUT)

    def test_what_does_not_match(self):
        ranks.run(3, matching, timeout=2 * ranks.TIMEOUT)

    def test_groups(self):
        with tempfile.TemporaryDirectory() as folder:
            ranks.run(2, second_group, os.path.join(folder, "store"))


class Faults(unittest.TestCase):
    def test_a_death(self):
        ranks.run(4, dies, ranks.Death(1, 4), doomed=(1,))


if __name__ == "__main__":
    sys.exit(unittest.main())
