# SPDX-License-Identifier: Apache-2.0
"""A pipeline whose stages have different numbers of ranks trains as one process does."""

import sys
import unittest

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.tensor import DeviceMesh, Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import ranks
import torch_case
from crossmesh import errors

WIDTH, BATCH, CHUNKS, STEPS = 12, 24, 4, 6


def blocks():
    """The whole model, in three parts."""
    torch.manual_seed(3)
    return [torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh()) for _ in range(3)]


def loss_of(output, target):
    return ((output - target) ** 2).sum() / (BATCH * WIDTH / CHUNKS)


def batches():
    generator = torch.Generator().manual_seed(4)
    for _ in range(STEPS):
        yield torch.randn(BATCH, WIDTH, generator=generator), torch.randn(BATCH, WIDTH, generator=generator)


def alone():
    """What one process computes: losses of the micro-batches, and the parameters in the end."""
    model = torch.nn.Sequential(*blocks())
    losses = []
    for batch, target in batches():
        model.zero_grad()
        for part, wanted in zip(batch.chunk(CHUNKS), target.chunk(CHUNKS)):
            loss = loss_of(model(part), wanted)
            (loss / CHUNKS).backward()
            losses.append(float(loss.detach()))
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.1 * parameter.grad
    return losses, [p.detach() for p in model.parameters()]


def shard_of(whole, placements, mesh):
    """This rank's rows of every micro-batch, in the order of micro-batches."""
    if placements == [Replicate()]:
        return whole
    place, size = mesh.get_coordinate()[0], mesh.size()
    return torch.cat([part.tensor_split(size)[place] for part in whole.chunk(CHUNKS)])


def train(rank, schedule_class, sizes, cuts):
    """Stage i has sizes[i] ranks, and cuts[i] says how the batch lies there: rows, or the whole on each."""
    from crossmesh.torch.pipeline import Boundary, Stage

    torch_case.join()
    firsts = [sum(sizes[:i]) for i in range(len(sizes))]
    meshes = [DeviceMesh("cpu", list(range(f, f + n))) for f, n in zip(firsts, sizes)]
    mine = max(i for i, first in enumerate(firsts) if rank >= first)
    shape = (BATCH // CHUNKS, WIDTH)
    boundaries = [
        Boundary(shape, torch.float32, (meshes[i], cuts[i]), (meshes[i + 1], cuts[i + 1])) for i in range(len(sizes) - 1)
    ]
    module = blocks()[mine]
    stage = Stage(module, mine, boundaries)
    # Of the sum over a batch in rows each rank has a part.
    schedule = schedule_class(stage, CHUNKS, loss_fn=loss_of)
    expected, parameters = alone()
    seen = []
    rows = cuts[mine] != [Replicate()]
    for batch, target in batches():
        module.zero_grad()
        losses = []
        if stage.is_first:
            schedule.step(shard_of(batch, cuts[mine], meshes[mine]))
        elif stage.is_last:
            schedule.step(target=shard_of(target, cuts[mine], meshes[mine]), losses=losses)
        else:
            schedule.step()
        for parameter in module.parameters():
            if rows:
                dist.all_reduce(parameter.grad, group=meshes[mine].get_group())
            with torch.no_grad():
                parameter -= 0.1 * parameter.grad
        if stage.is_last:
            total = torch.stack([loss.detach() for loss in losses])
            if rows:
                dist.all_reduce(total, group=meshes[mine].get_group())
            seen += total.tolist()
    if stage.is_last:
        torch.testing.assert_close(seen, expected, rtol=1e-4, atol=1e-5)
    wanted = parameters[2 * mine : 2 * mine + 2]
    for parameter, other in zip(module.parameters(), wanted):
        torch.testing.assert_close(parameter.detach(), other, rtol=1e-4, atol=1e-5)
    # Without gradients: other buffers, made anew.
    if stage.is_last:
        losses = []
        schedule.eval(target=shard_of(target, cuts[mine], meshes[mine]), losses=losses)
        assert len(losses) == CHUNKS
    else:
        schedule.eval(*([shard_of(batch, cuts[mine], meshes[mine])] if stage.is_first else []))
    stage.close()
    torch_case.leave()


def sliced():
    """A model of two stages, each of which tensor parallelism can cut."""
    torch.manual_seed(5)
    return [
        torch.nn.Sequential(
            torch.nn.Linear(WIDTH, 2 * WIDTH), torch.nn.Tanh(), torch.nn.Linear(2 * WIDTH, WIDTH), torch.nn.Tanh()
        )
        for _ in range(2)
    ]


def tensor_parallel(rank, sizes):
    """Two stages of different tensor parallelism; activations are whole on every rank of a stage, or lie in rows."""
    from crossmesh.torch.pipeline import Boundary, Stage

    torch_case.join()
    meshes = [DeviceMesh("cpu", list(range(sizes[0]))), DeviceMesh("cpu", list(range(sizes[0], sum(sizes))))]
    mine = int(rank >= sizes[0])
    # The second layer leaves its result in rows, as sequence parallelism does; the next stage wants it whole.
    place = [Shard(0)]
    boundary = Boundary((BATCH // CHUNKS, WIDTH), torch.float32, (meshes[0], place), (meshes[1], [Replicate()]))
    module = parallelize_module(
        sliced()[mine],
        meshes[mine],
        {"0": ColwiseParallel(), "2": RowwiseParallel(output_layouts=Replicate() if mine else Shard(0))},
    )
    stage = Stage(module, mine, [boundary])
    schedule = Schedule1F1B(stage, CHUNKS, loss_fn=loss_of)
    model = torch.nn.Sequential(*sliced())
    for batch, target in batches():
        model.zero_grad()
        module.zero_grad()
        expected, losses = [], []
        for part, wanted in zip(batch.chunk(CHUNKS), target.chunk(CHUNKS)):
            loss = loss_of(model(part), wanted)
            (loss / CHUNKS).backward()
            expected.append(float(loss.detach()))
        if stage.is_last:
            schedule.step(target=target, losses=losses)
            torch.testing.assert_close([float(loss.detach()) for loss in losses], expected, rtol=1e-4, atol=1e-5)
        else:
            schedule.step(batch)
        for own, whole in zip(module.parameters(), model[mine].parameters()):
            torch.testing.assert_close(own.grad.full_tensor(), whole.grad, rtol=1e-4, atol=1e-5)
        with torch.no_grad():
            for parameter in (*module.parameters(), *model.parameters()):
                parameter -= 0.1 * parameter.grad
    stage.close()
    torch_case.leave()


def refusals(rank):
    from crossmesh.torch.pipeline import Boundary, Stage

    torch_case.join()
    meshes = [DeviceMesh("cpu", [0, 1]), DeviceMesh("cpu", [2])]
    boundary = Boundary((6, WIDTH), torch.float32, (meshes[0], [Shard(0)]), (meshes[1], [Replicate()]))
    for index, text in ((2, "stage 2"), (1 if rank < 2 else 0, f"rank {rank} is not in")):
        try:
            Stage(torch.nn.Identity(), index, [boundary])
            raise AssertionError(f"not refused: {text}")
        except errors.InputError as error:
            assert text in str(error), (text, error)
    # What torch itself says to stages of different size.
    if rank == 0:
        try:
            PipelineStage(torch.nn.Identity(), 0, 2, torch.device("cpu"))
            raise AssertionError("torch can do this now")
        except RuntimeError as error:
            assert "cannot be larger than number of stages" in str(error), error
    torch_case.leave()


class Pipeline(unittest.TestCase):
    def test_wide_to_narrow(self):
        """Rows on three ranks, the whole on two, rows on one."""
        ranks.run(6, train, Schedule1F1B, (3, 2, 1), ([Shard(0)], [Replicate()], [Shard(0)]))

    def test_narrow_to_wide(self):
        ranks.run(6, train, ScheduleGPipe, (1, 2, 3), ([Replicate()], [Shard(0)], [Shard(0)]))

    def test_tensor_parallel_stages(self):
        """TP4 to TP2, and TP2 to TP3."""
        for sizes in ((4, 2), (2, 3)):
            ranks.run(sum(sizes), tensor_parallel, sizes)

    def test_refusals(self):
        ranks.run(3, refusals)


if __name__ == "__main__":
    sys.exit(unittest.main())
