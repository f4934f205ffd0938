# SPDX-License-Identifier: Apache-2.0
"""redistribute() against torch's own full-tensor reference, bit for bit."""

import collections
import sys
import time
import unittest

import torch
from torch.distributed.tensor import DeviceMesh, DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.placement_types import _StridedShard

import ranks
import torch_case
from crossmesh import errors
from crossmesh.torch import default_job, redistribute, shutdown

WORLD = 6


def random_pairs(rank):
    torch_case.join()
    started = time.monotonic()
    seen = collections.Counter()
    for seed in range(torch_case.ROUNDS):
        full, (src, src_placements), (dst, dst_placements), contiguous = torch_case.pair(seed, WORLD)
        seen.update(torch_case.kinds(full, (src, src_placements), (dst, dst_placements)))
        before = torch_case.make(full, src, src_placements, contiguous)
        # Ranks outside the source may have nothing at all.
        given = None if src.get_coordinate() is None and seed % 2 else before
        after = redistribute(given, dst, dst_placements)
        wanted = torch_case.shard(full, dst, after.placements)
        local = after.to_local()
        what = f"seed {seed}, rank {rank}: {full.dtype} {src.mesh} {src_placements} -> {dst.mesh} {dst_placements}"
        assert local.shape == wanted.shape and local.dtype == full.dtype, what
        assert torch.equal(torch_case.bits(local), torch_case.bits(wanted)), what
        assert after.shape == full.shape and after.device_mesh is dst, what
    if rank == 0:
        print(f"{torch_case.ROUNDS} pairs in {time.monotonic() - started:.1f} s, of which {dict(sorted(seen.items()))}")
    # Chance gives what this is about.
    wanted = ("uneven", "empty shards", "ranks in both", "no rank in both", "one mesh", "strided", "copies")
    rare = {kind: seen[kind] for kind in wanted if seen[kind] < torch_case.ROUNDS // 50}
    assert not rare, rare
    torch_case.leave()


def with_groups(rank):
    """Meshes with process groups: torch distributes the source, and gathers the result. Their ranks are in order,
    because torch's groups are, whatever the mesh says."""
    meshes = [DeviceMesh("cpu", m) for m in ([[0, 1], [2, 3]], [[1, 4, 5]], [2, 3, 4, 5])]
    generator = torch.Generator().manual_seed(3)
    full = torch.randint(-1000, 1000, (7, 8), generator=generator).double()
    choices = [Shard(0), Shard(1), Shard(-1), Replicate(), Partial(), Partial("max")]
    done = 0
    for i, src in enumerate(meshes):
        for j, dst in enumerate(meshes):
            for k in range(4):
                have = [choices[(i + j + k * 2 + d) % 6] for d in range(src.ndim)]
                want = [choices[(i * 2 + j + k + d) % 4] for d in range(dst.ndim)]
                if len({p.reduce_op for p in have if isinstance(p, Partial)}) > 1:
                    continue  # torch does not mix them
                before = distribute_tensor(full, src, have)
                after = redistribute(before, dst, want)
                what = f"rank {rank}: {src.mesh} {have} -> {dst.mesh} {want}"
                expected = distribute_tensor(full, dst, want)
                assert torch.equal(after.to_local(), expected.to_local()), what
                assert after._spec.tensor_meta == expected._spec.tensor_meta, what
                assert after.placements == expected.placements, what
                if dst.get_coordinate() is not None:
                    assert torch.equal(after.full_tensor(), full), what
                done += 1
    assert done > 20, done
    # A gradient stays behind, and what torch says without crossmesh.
    leaf = distribute_tensor(full, meshes[0], [Shard(0), Shard(1)]).requires_grad_()
    assert not redistribute(leaf, meshes[2], [Shard(0)]).requires_grad
    try:
        leaf.redistribute(meshes[2], [Shard(0)])
        raise AssertionError("torch can do this now")
    except NotImplementedError as error:
        assert "Cross device mesh comm not supported yet!" in str(error), error


def shard_order(rank):
    """FSDP's strided shards, those of several boxes as well, as torch makes them."""
    mesh, dst = DeviceMesh("cpu", [[0, 1], [2, 3]]), DeviceMesh("cpu", [1, 2, 5])
    strided = [_StridedShard(0, split_factor=2), Shard(0)]
    full = torch.arange(24.0).reshape(8, 3)
    before = distribute_tensor(full, mesh, strided)
    after = redistribute(before, dst, [Shard(0)])
    assert torch.equal(after.to_local(), distribute_tensor(full, dst, [Shard(0)]).to_local())
    back = redistribute(after, mesh, strided)
    assert torch.equal(back.to_local(), before.to_local()) and back.placements == before.placements
    for odd, rows in (
        (strided, 6),
        (strided, 3),
        ([_StridedShard(0, split_factor=3), Shard(0)], 13),
        ([_StridedShard(0, split_factor=2), Replicate()], 7),
    ):
        full = torch.arange(rows * 3.0).reshape(rows, 3)
        before, expected = distribute_tensor(full, dst, [Shard(0)]), full
        after = redistribute(before, mesh, odd)
        if rank < 4:
            for placement, index in zip(odd, mesh.get_coordinate()):  # distribute_tensor() cannot do all of these
                if not isinstance(placement, Replicate):
                    expected = placement._split_tensor(expected, 2, with_padding=False)[0][index]
            assert torch.equal(after.to_local(), expected), (rank, odd, rows)
        assert torch.equal(redistribute(after, dst, [Shard(0)]).to_local(), before.to_local()), (rank, odd, rows)
    for bad, shape, text in (
        ([Partial(), Replicate()], (8, 3), "Partial"),
        ([Shard(2), Replicate()], (8, 3), "Shard(2)"),
        ([Shard(0)], (8, 3), "1 placements for a mesh of 2"),
    ):
        source = distribute_tensor(torch.zeros(shape), dst, [Replicate()])
        try:
            redistribute(source, mesh, bad)
            raise AssertionError(f"{bad} was accepted")
        except errors.InputError as error:
            assert text in str(error), (text, error)


def refusals(rank):
    """What differs between ranks is named on all of them, and nobody waits for a deadline."""
    src, dst = DeviceMesh("cpu", [0, 1, 2]), DeviceMesh("cpu", [3, 4, 5])
    # Whoever waited for a deadline would wait longer than this test may take.
    shutdown()
    default_job(timeout=100 * ranks.TIMEOUT)
    local = torch.zeros(2, 4)

    def dtensor(shape, dtype=torch.float32, part=None):
        mine = (local if part is None else part).to(dtype) if rank < 3 else torch.empty(0, dtype=dtype)
        return DTensor.from_local(mine, src, [Shard(0)], shape=torch.Size(shape), stride=(4, 1))

    for given, text in (
        (dtensor((6, 4), torch.float64 if rank == 1 else torch.float32), "dtype"),
        (dtensor((6, 4)) if rank != 2 else dtensor((7, 4)), "shape"),
        (dtensor((6, 4), part=local if rank != 1 else local[:1]), "rank 1"),
        (None, "no rank has given"),
        (None if rank == 1 else dtensor((6, 4)), "rank 1"),
    ):
        try:
            redistribute(given, dst, [Shard(0)])
            raise AssertionError(f"not refused: {text}")
        except errors.CrossmeshError as error:
            assert text in str(error), (text, error)
    after = redistribute(dtensor((6, 4)), dst, [Replicate()])
    assert after.to_local().numel() == (24 if rank >= 3 else 0)
    # A complex tensor that is conjugated only in name, and one that is transposed.
    mesh = DeviceMesh("cpu", [0, 1])
    whole = torch.complex(torch.arange(6.0), torch.ones(6)).reshape(2, 3)
    for view in (whole.conj(), whole.t(), whole.conj().imag):
        given = DTensor.from_local(view if rank < 2 else torch.empty(0, dtype=view.dtype), mesh, [Replicate()],
                                   shape=view.shape, stride=view.stride())  # fmt: skip
        after = redistribute(given, dst, [Replicate()])
        assert rank < 3 or torch.equal(after.to_local(), view.resolve_conj().resolve_neg())


def memory(rank):
    """No rank ever has more than its own shards: peak memory grows by the new shard and a little."""
    torch_case.join()
    src, dst = DeviceMesh("cpu", [0, 1]), DeviceMesh("cpu", [2, 3])
    rows, columns = 1 << 12, 1 << 12  # 64 MiB in all
    local = torch.ones(rows // 2, columns) if rank < 2 else torch.empty(0)
    before = DTensor.from_local(local, src, [Shard(0)], shape=torch.Size((rows, columns)), stride=(columns, 1))
    redistribute(before, dst, [Shard(1)])

    def peak():
        with open("/proc/self/status") as status:
            return next(int(line.split()[1]) << 10 for line in status if line.startswith("VmHWM"))

    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")
    start = peak()
    after = redistribute(before, dst, [Shard(1)])
    grown = peak() - start
    shard = rows * columns * 4 // 2 if rank in (2, 3) else 0
    assert grown < shard + (24 << 20), (rank, grown)
    assert rank not in (2, 3) or bool((after.to_local() == 1).all())
    torch_case.leave()


def one_after_the_other(rank):
    torch_case.join()
    for part in (with_groups, shard_order, refusals):
        part(rank)
    torch_case.leave()


class Redistribute(unittest.TestCase):
    def test_random_pairs(self):
        ranks.run(WORLD, random_pairs, timeout=8 * ranks.TIMEOUT)

    def test_special_cases(self):
        """Process groups, shard orders, what is refused."""
        ranks.run(WORLD, one_after_the_other, timeout=3 * ranks.TIMEOUT)

    def test_memory(self):
        ranks.run(4, memory)


if __name__ == "__main__":
    sys.exit(unittest.main())
