# SPDX-License-Identifier: Apache-2.0
"""torch.distributed over the backend "crossmesh"."""

import multiprocessing
import os
import random
import sys
import time
import unittest
from datetime import timedelta

import ranks
import torch
import torch.distributed as dist
import torch_case
from torch.distributed.tensor import DeviceMesh, Replicate, Shard, distribute_tensor

import crossmesh.torch.backend  # noqa: F401
from crossmesh import Buffer, errors
from crossmesh.torch import redistribute

SIZES = [0, 1, 3, 1000, 300_000]


def join():
    torch.set_num_threads(1)
    dist.init_process_group("crossmesh", timeout=timedelta(seconds=ranks.TIMEOUT))


def data(count, dtype, seed):
    return torch_case.whole((count,), dtype, seed)


def same(a, b):
    return torch.equal(torch_case.bits(a), torch_case.bits(b))


def messages(rank):
    size = dist.get_world_size()
    right, left = (rank + 1) % size, (rank - 1) % size
    # One after the other: even ranks send first.
    for seed, count in enumerate(SIZES):
        for dtype in (torch.float32, torch.bool, torch.bfloat16, torch.complex64, torch.float8_e5m2):
            target = torch.zeros(count, dtype=dtype)
            if rank % 2 == 0:
                dist.send(data(count, dtype, seed + rank), right)
                dist.recv(target, left)
            else:
                dist.recv(target, left)
                dist.send(data(count, dtype, seed + rank), right)
            assert same(target, data(count, dtype, seed + left)), (rank, count, dtype)
    # Many at once, waited for in any order; tags tell them apart, and order those of one tag.
    order = random.Random(rank)
    sent, received = [], []
    for tag in order.sample(range(8), 8):
        for i in range(5):
            sent.append(dist.isend(data(500 + tag, torch.int32, 100 * tag + i + rank), right, tag=tag))
    for tag in order.sample(range(8), 8):
        for i in range(5):
            target = torch.zeros(500 + tag, dtype=torch.int32)
            received.append((dist.irecv(target, left, tag=tag), target, 100 * tag + i + left))
    order.shuffle(received)
    for work, target, seed in received:
        work.wait()
        assert work.is_completed() and work.is_success()
        assert same(target, data(target.numel(), torch.int32, seed)), (rank, seed)
    for work in sent:
        work.wait()
    # Views that are not contiguous.
    target = torch.zeros(6, 4).t()
    work = dist.isend(torch.arange(24.0).reshape(6, 4).t(), right)
    dist.recv(target, left)
    work.wait()
    assert torch.equal(target, torch.arange(24.0).reshape(6, 4).t())
    # As pipelines do it.
    targets = [torch.zeros(70_000), torch.zeros(7)]
    operations = [dist.P2POp(dist.irecv, targets[0], left), dist.P2POp(dist.irecv, targets[1], right)]
    operations.append(dist.P2POp(dist.isend, torch.full((70_000,), float(rank)), right))
    operations.append(dist.P2POp(dist.isend, torch.full((7,), float(rank)), left))
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    assert bool((targets[0] == left).all()) and bool((targets[1] == right).all())


def collectives(rank, group=None):
    members = dist.get_process_group_ranks(group) if group else list(range(dist.get_world_size()))
    for root in members:
        for seed, count in enumerate(SIZES):
            tensor = data(count, torch.float64, seed) if rank == root else torch.zeros(count, dtype=torch.float64)
            dist.broadcast(tensor, root, group=group)
            assert same(tensor, data(count, torch.float64, seed)), (rank, root, count)
    for count in SIZES:
        own = data(count, torch.float16, rank)
        wanted = torch.cat([data(count, torch.float16, member) for member in members])
        whole = torch.zeros(count * len(members), dtype=torch.float16)
        dist.all_gather_into_tensor(whole, own, group=group)
        assert same(whole, wanted), (rank, count)
        blocks = [torch.zeros(count, dtype=torch.float16) for _ in members]
        dist.all_gather(blocks, own, group=group)
        assert same(torch.cat(blocks), wanted), (rank, count)
        dist.barrier(group=group)
    # Several under way, ended in another order than begun.
    tensors = [torch.full((50_000,), float(rank)) for _ in members]
    works = [dist.broadcast(t, root, group=group, async_op=True) for t, root in zip(tensors, members)]
    whole = torch.zeros(9 * len(members))
    works.append(dist.all_gather_into_tensor(whole, torch.full((9,), float(rank)), group=group, async_op=True))
    works.append(dist.barrier(group=group, async_op=True))
    for work in random.Random(rank).sample(works, len(works)):
        work.wait()
    assert all(bool((t == root).all()) for t, root in zip(tensors, members))
    assert whole.reshape(-1, 9)[:, 0].tolist() == [float(m) for m in members]


def exchanges(rank, group=None):
    """What is sent from each to each, and to and from one."""
    members = dist.get_process_group_ranks(group) if group else list(range(dist.get_world_size()))
    size, place = len(members), members.index(rank)

    def block(sender, receiver, count):
        return data(count, torch.bfloat16, 100 * sender + receiver)

    for count in SIZES:
        for root in members:
            blocks = [torch.zeros(count, dtype=torch.bfloat16) for _ in members] if rank == root else None
            dist.gather(block(rank, root, count), blocks, dst=root, group=group)
            assert rank != root or all(same(b, block(m, root, count)) for b, m in zip(blocks, members)), (rank, count)
            target = torch.zeros(count, dtype=torch.bfloat16)
            given = [block(root, m, count) for m in members] if rank == root else None
            dist.scatter(target, given, src=root, group=group)
            assert same(target, block(root, rank, count)), (rank, root, count)
        # Each sends each another length.
        into = [torch.zeros(count + 10 * m + rank, dtype=torch.bfloat16) for m in members]
        out = [block(rank, m, count + 10 * rank + m) for m in members]
        dist.all_to_all(into, out, group=group)
        assert all(same(t, block(m, rank, count + 10 * m + rank)) for t, m in zip(into, members)), (rank, count)
    # Rows: equally many for each, and told for each, out of a tensor that is not contiguous.
    rows = torch.arange(3.0 * size).reshape(3, size).t() + 100 * rank
    target = torch.zeros(size, 3)
    dist.all_to_all_single(target, rows, group=group)
    assert torch.equal(target, torch.stack([torch.arange(3.0) * size + place + 100 * m for m in members]))
    sizes = [2 * m + rank for m in members]
    target = torch.zeros(sum(rank * 2 + m for m in members), 2, dtype=torch.int64)
    source = torch.full((sum(sizes), 2), rank)
    dist.all_to_all_single(target, source, [rank * 2 + m for m in members], sizes, group=group)
    assert target[:, 0].tolist() == [m for m in members for _ in range(rank * 2 + m)], (rank, target)


def objects(rank):
    """What torch makes of tensors: objects, and DTensors laid out anew on their mesh."""
    size = dist.get_world_size()
    everyone = [None] * size
    dist.all_gather_object(everyone, {"rank": rank, "text": "x" * rank})
    assert everyone == [{"rank": r, "text": "x" * r} for r in range(size)]
    shared = [("from", 2)] if rank == 2 else [None]
    dist.broadcast_object_list(shared, src=2)
    assert shared == [("from", 2)]
    gathered = [None] * size if rank == 1 else None
    dist.gather_object(rank * "y", gathered, dst=1)
    assert rank != 1 or gathered == [r * "y" for r in range(size)]
    given = [None]
    dist.scatter_object_list(given, [[r] for r in range(size)] if rank == 0 else None, src=0)
    assert given == [[rank]]
    mesh, full = DeviceMesh("cpu", list(range(size))), torch.arange(8.0 * size * 3).reshape(2 * size, 12)
    for have, want in ((Shard(0), Shard(1)), (Shard(1), Replicate()), (Replicate(), Shard(0)), (Shard(0), Shard(0))):
        there = distribute_tensor(full, mesh, [have]).redistribute(placements=[want])
        assert torch.equal(there.to_local(), torch_case.shard(full, mesh, [want])), (rank, have, want)
        assert torch.equal(there.full_tensor(), full), (rank, have, want)


def barrier_waits(rank, late):
    if rank == 2:
        time.sleep(0.3)
        late.set()
    dist.barrier()
    assert late.is_set()


def refusals(rank):
    ones = [torch.ones(1) for _ in range(4)]
    for call, text in (
        (lambda: dist.all_reduce(torch.ones(1)), "no all_reduce"),
        (lambda: dist.reduce(torch.ones(1), 0), "no reduce:"),
        (lambda: dist.reduce_scatter(torch.ones(1), ones), "no reduce_scatter:"),
        (lambda: dist.reduce_scatter_tensor(torch.ones(1), torch.ones(4)), "no reduce_scatter_tensor"),
        (lambda: dist.all_reduce_coalesced([torch.ones(1)]), "no all_reduce_coalesced"),
        (lambda: dist.all_to_all_single(torch.ones(4), torch.ones(5)), "input of 5 rows"),
        (lambda: dist.all_to_all_single(torch.ones(4), torch.ones(4), [1, 1, 1, 2]), "parts of [1, 1, 1, 2]"),
        (lambda: dist.recv(torch.ones(1)), "from any"),
        (lambda: dist.send(torch.ones(1), (rank + 1) % 4, tag=0xFFFF), "tag 65535"),
        (lambda: dist.all_gather_into_tensor(torch.ones(3), torch.ones(1)), "into 3"),
        (lambda: dist.send(torch.ones(1, device="meta"), (rank + 1) % 4), "meta"),
    ):
        try:
            call()
            raise AssertionError(f"not refused: {text}")
        except errors.InputError as error:
            assert text in str(error), (text, error)
    # The way out that the sentence names.
    total = torch.full((3,), float(rank))
    dist.all_reduce(total, group=dist.new_group(backend="gloo"))
    assert total.tolist() == [6.0, 6.0, 6.0]


def everything(rank, late):
    join()
    messages(rank)
    collectives(rank)
    exchanges(rank)
    objects(rank)
    barrier_waits(rank, late)
    group = dist.new_group([1, 2, 3])
    if rank > 0:
        collectives(rank, group)
        exchanges(rank, group)
    refusals(rank)
    # DTensors over this backend, and the rest of crossmesh beside it.
    src, dst = DeviceMesh("cpu", [0, 1]), DeviceMesh("cpu", [1, 2, 3])
    full = torch.arange(35.0).reshape(7, 5)
    there = redistribute(torch_case.make(full, src, [Shard(0)]), dst, [Shard(1)])
    assert torch.equal(there.to_local(), torch_case.shard(full, dst, [Shard(1)]))
    torch_case.leave()


def dies(rank, death):
    join()
    dist.barrier()
    death.meet(rank)
    started = time.monotonic()
    work = dist.irecv(torch.zeros(5), 1) if rank == 0 else None
    for wait in (work.wait if work else dist.barrier, dist.barrier):
        try:
            while True:
                wait()
        except errors.PeerDiedError as error:
            assert "rank 1" in str(error), error
    assert time.monotonic() - started < ranks.SOON
    death.survive()


class Backend(unittest.TestCase):
    def test_tensors_lend_their_memory(self):
        """What Buffer.of() makes of real tensors."""
        for dtype in torch_case.DTYPES:
            tensor = data(12, dtype, 3).reshape(3, 4)
            buffer = Buffer.of(tensor)
            self.assertEqual((buffer.address, buffer.nbytes), (tensor.data_ptr(), 12 * dtype.itemsize), dtype)
            self.assertFalse(buffer.readonly)
        for bad, text in (
            (torch.zeros(3, 4)[:, 1:], "row-major"),
            (torch.zeros(3, requires_grad=True), "does not lend its memory"),
            (torch.zeros(3, dtype=torch.complex64).conj(), "does not lend its memory"),
        ):
            with self.assertRaises(errors.InputError) as caught:
                Buffer.of(bad)
            self.assertIn(text, str(caught.exception))

    def test_everything(self):
        ranks.run(4, everything, multiprocessing.Event())


class Faults(unittest.TestCase):
    def test_a_death(self):
        ranks.run(3, dies, ranks.Death(1, 3), doomed=(1,))


if __name__ == "__main__":
    sys.exit(unittest.main())
