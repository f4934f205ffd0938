# SPDX-License-Identifier: Apache-2.0
"""`verify`, and XM_VERIFY where there is no such argument, turn proofs on all the way down: bits that are flipped between
two ranks' sockets (by spoil_sends, a preloaded library) are mended and counted, and stay where proofs are off."""

import ctypes
import multiprocessing
import os
import sys
import unittest

import ranks

ROWS, COLUMNS, RUNS, ONE_IN = 1024, 1024, 5, 40
LIBRARY = os.environ["CROSSMESH_LIBRARY"]

# XM_VERIFY, the argument, and whether flips are mended.
SETTINGS = [("off", "chunk", True), ("chunk", None, True), ("chunk", "off", False)]
ARGUMENT = [SETTINGS[0], SETTINGS[2]]
WITHOUT_ARGUMENT = [("chunk", None, True), ("off", None, False)]


class Tally:
    """Of all ranks: elements that came wrong, and what was sent again."""

    def __init__(self):
        self.wrong, self.resends = multiprocessing.Value("q", 0), multiprocessing.Value("q", 0)

    def add_wrong(self, count):
        with self.wrong.get_lock():
            self.wrong.value += int(count)

    def add_resends(self, job):
        """What the job has counted so far: the last of five numbers (crossmesh/counters.h)."""
        counts = (ctypes.c_uint64 * 5)()
        assert ctypes.CDLL(LIBRARY).xm_worker_rank_counts(ctypes.c_void_p(job._worker), counts) == 0
        with self.resends.get_lock():
            self.resends.value += counts[4]


def spoil():
    """From here on: bytes of this process's large messages are not what they were."""
    os.environ["SPOIL_ONE_IN"] = str(ONE_IN)


def numbers(torch, run):
    return torch.arange(ROWS * COLUMNS, dtype=torch.int32).reshape(ROWS, COLUMNS) + run


def torch_ranks():
    import torch
    from torch.distributed.tensor import DeviceMesh

    import torch_case

    torch_case.join()
    rank = torch.distributed.get_rank()
    meshes = [DeviceMesh("cpu", [r], _init_backend=False, _rank=rank) for r in range(2)]
    return torch, torch_case, meshes


def redistribute(rank, tally, verify):
    torch, torch_case, meshes = torch_ranks()
    from torch.distributed.tensor import Replicate

    import crossmesh.torch

    job = crossmesh.torch.default_job()
    spoil()
    for run in range(RUNS):
        source = torch_case.make(numbers(torch, run), meshes[0], [Replicate()])
        moved = crossmesh.torch.redistribute(source, meshes[1], [Replicate()], job=job, verify=verify)
        if rank == 1:
            tally.add_wrong((moved.to_local() != numbers(torch, run)).sum())
    tally.add_resends(job)
    torch_case.leave()


def state_dict(rank, tally, verify):
    torch, torch_case, _ = torch_ranks()
    import crossmesh.torch

    job = crossmesh.torch.default_job()
    names = ["embedding", "head"]
    state = {name: torch.zeros(ROWS, COLUMNS, dtype=torch.int32) for name in names}
    spoil()
    sides = (state, {}) if rank == 0 else (None, state)
    with crossmesh.torch.StateDictTransfer(*sides, job=job, verify=verify) as transfer:
        for run in range(RUNS):
            for i, name in enumerate(names):
                state[name][:] = numbers(torch, 2 * run + i) if rank == 0 else -1
            transfer.run()
            if rank == 1:
                tally.add_wrong(sum((state[n] != numbers(torch, 2 * run + i)).sum() for i, n in enumerate(names)))
    tally.add_resends(job)
    torch_case.leave()


def pipeline(rank, tally, verify):
    """Activations and gradients are products of small numbers, so exact."""
    torch, torch_case, meshes = torch_ranks()
    from torch.distributed.pipelining import ScheduleGPipe
    from torch.distributed.tensor import Replicate

    import crossmesh.torch
    from crossmesh.torch.pipeline import Boundary, Stage

    class Scale(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.tensor(3.0))
            self.seen = []

        def forward(self, x):
            y = x * self.weight
            if y.requires_grad:
                y.register_hook(lambda gradient: self.seen.append(gradient.clone()))
            return y

    chunks = 4
    job = crossmesh.torch.default_job(progress_thread=True)
    place = [Replicate()]
    boundary = Boundary((ROWS // chunks, COLUMNS), torch.float32, (meshes[0], place), (meshes[1], place), verify=verify)
    module = Scale()
    stage = Stage(module, rank, [boundary], job=job)
    schedule = ScheduleGPipe(stage, chunks, loss_fn=lambda output, target: (output * target).sum(), scale_grads=False)
    spoil()
    for run in range(RUNS):
        batch, target = numbers(torch, run).remainder(1000).float(), numbers(torch, 7 * run).remainder(997).float()
        module.seen.clear()
        if rank == 0:
            schedule.step(batch)
            tally.add_wrong((torch.cat(module.seen) != 3 * target).sum())
        else:
            output = schedule.step(target=target, losses=[])
            tally.add_wrong((output != 9 * batch).sum())
    stage.close()
    tally.add_resends(job)
    torch_case.leave()


def backend(rank, tally, verify):
    """Messages of 256 KiB, because one that is hit eleven times in a row is given up."""
    import torch
    import torch.distributed as dist

    import crossmesh.torch.backend  # noqa: F401

    assert verify is None
    torch.set_num_threads(1)
    dist.init_process_group("crossmesh")
    dist.barrier()
    spoil()
    for run in range(100):
        message = numbers(torch, run)[:64]
        if rank == 0:
            dist.send(message, 1)
        else:
            target = torch.zeros_like(message)
            dist.recv(target, 0)
            tally.add_wrong((target != message).sum())
    tally.add_resends(dist.distributed_c10d._get_default_group()._job)
    dist.barrier()
    dist.destroy_process_group()


def device_put(rank, tally, verify, port):
    os.environ.update(XLA_FLAGS="--xla_force_host_platform_device_count=1", JAX_PLATFORMS="cpu")
    import jax
    import numpy

    jax.distributed.initialize(f"127.0.0.1:{port}", 2, rank)
    import crossmesh.jax

    first, last = (jax.sharding.SingleDeviceSharding(device) for device in jax.devices())
    job = crossmesh.jax.default_devices().first
    spoil()
    for run in range(RUNS):
        whole = numpy.arange(ROWS * COLUMNS, dtype=numpy.int32).reshape(ROWS, COLUMNS) + run
        shape = jax.ShapeDtypeStruct(whole.shape, whole.dtype, sharding=first)
        moved = crossmesh.jax.device_put(jax.device_put(whole, first) if rank == 0 else shape, last, verify=verify)
        if rank == 1:
            tally.add_wrong((numpy.asarray(moved) != whole).sum())
    tally.add_resends(job)
    crossmesh.jax.shutdown()
    jax.distributed.shutdown()


class Case(unittest.TestCase):
    def check(self, main, settings, ports=False):
        for environment, verify, mended in settings:
            with self.subTest(main=main.__name__, XM_VERIFY=environment, verify=verify):
                tally = Tally()
                os.environ["XM_VERIFY"] = environment
                ranks.run(2, main, tally, verify, *([ranks.free_port()] if ports else []), hosts=2)
                print(f"{main.__name__}, XM_VERIFY={environment}, verify={verify}: {tally.wrong.value} wrong numbers, "
                      f"{tally.resends.value} sent again")  # fmt: skip
                self.assertEqual(tally.wrong.value == 0, mended)
                self.assertEqual(tally.resends.value > 0, mended)


class Torch(Case):
    def test_redistribute(self):
        self.check(redistribute, SETTINGS)

    def test_state_dict(self):
        self.check(state_dict, ARGUMENT)

    def test_pipeline(self):
        self.check(pipeline, ARGUMENT)

    def test_backend(self):
        self.check(backend, WITHOUT_ARGUMENT)


class Jax(Case):
    def test_device_put(self):
        self.check(device_put, SETTINGS, ports=True)


if __name__ == "__main__":
    sys.exit(unittest.main())
