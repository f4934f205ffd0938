# SPDX-License-Identifier: Apache-2.0
"""Other runtimes run the planner's schedules: torch's own, from the lists as CSV."""

import os
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, ScheduleDualPipeV, ScheduleZBVZeroBubble
from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime

import ranks
import test_schedules
import torch_case
from crossmesh.torch._schedule import devices_of

WIDTH, BATCH, MICRO_BATCHES, DEVICES = 8, 16, 8, 2


def parts():
    torch.manual_seed(3)
    return [torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh()) for _ in range(2 * DEVICES)]


def loss_of(output, target):
    return ((output - target) ** 2).mean()


def batch():
    generator = torch.Generator().manual_seed(4)
    return torch.randn(BATCH, WIDTH, generator=generator), torch.randn(BATCH, WIDTH, generator=generator)


def alone():
    model, (x, y) = torch.nn.Sequential(*parts()), batch()
    losses = [loss_of(model(a), b) for a, b in zip(x.chunk(MICRO_BATCHES), y.chunk(MICRO_BATCHES))]
    (sum(losses) / MICRO_BATCHES).backward()
    return [loss.item() for loss in losses], [p.grad for p in model.parameters()]


def same_order(order, other):
    """torch's lists, written apart from ours: without idle places, and whole backward passes as halves."""
    for device, passes in enumerate(order):
        wanted = []
        for action in other[device]:
            for entry in () if action is None else action.sub_actions or (action,):
                halves = "IW" if entry.computation_type.value == "B" else entry.computation_type.value
                wanted += [f"{entry.stage_index}{half}{entry.microbatch_index}" for half in halves]
        assert [str(entry) for entry in passes] == wanted, (device, passes, wanted)


def run(rank, plans, expected):
    """torch's runtime and stages; nothing of crossmesh."""
    torch_case.join()
    x, y = batch()
    for order, path, its in plans:
        stages, device_of = parts(), devices_of(order)
        mine = [number for number, device in device_of.items() if device == rank]
        made = [PipelineStage(stages[number], number, 2 * DEVICES, torch.device("cpu")) for number in sorted(mine)]
        if its is not None:
            same_order(order, its(made, MICRO_BATCHES, loss_fn=loss_of).pipeline_order)
        runtime = _PipelineScheduleRuntime(made, MICRO_BATCHES, loss_fn=loss_of)
        runtime._load_csv(path)
        losses = []
        runtime.step(*([x] if 0 in mine else []), target=y if 2 * DEVICES - 1 in mine else None, losses=losses)
        if 2 * DEVICES - 1 in mine:
            torch.testing.assert_close([loss.item() for loss in losses], expected[0])
        for number in mine:
            for own, other in zip(stages[number].parameters(), expected[1][2 * number :]):
                torch.testing.assert_close(own.grad, other)
        dist.barrier()
    torch_case.leave()


class Torch(unittest.TestCase):
    def test_its_runtime_runs_them(self):
        torch.set_num_threads(1)
        with tempfile.TemporaryDirectory() as folder:
            plans = []
            for schedule, its in (("interleaved", None), ("zb-v", ScheduleZBVZeroBubble), ("dualpipev", ScheduleDualPipeV)):
                made, path = test_schedules.planned(schedule), os.path.join(folder, schedule + ".csv")
                with open(path, "w", encoding="utf-8") as file:
                    file.write(made.schedule_csv())
                plans.append((made.order, path, its))
            ranks.run(DEVICES, run, plans, alone(), timeout=3 * ranks.TIMEOUT)


if __name__ == "__main__":
    sys.exit(unittest.main())
