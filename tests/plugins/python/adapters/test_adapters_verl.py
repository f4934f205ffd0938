# SPDX-License-Identifier: Apache-2.0
"""verl's checkpoint engine: four actor ranks and four rollout ranks in processes of their own."""

import asyncio
import dataclasses
import functools
import importlib
import importlib.util
import inspect
import os
import signal
import subprocess
import sys
import time
import unittest

import torch
import torch.distributed as dist
from torch.distributed.tensor import DeviceMesh, DTensor, Replicate, Shard

import adapters_case as case
import contract_verl
import ranks
import torch_case
from crossmesh import errors

INSTALLED = importlib.util.find_spec("verl")  # before the tests put something in its place
ACTORS, ROLLOUTS = 4, 4
EVERYBODY = range(ACTORS + ROLLOUTS)
LARGE = {"vocab": 3000, "hidden": 1024}
WHOLE = LARGE["vocab"] * LARGE["hidden"] * 4


def meshes(rank):
    def mesh(ranks_of_it):
        return DeviceMesh("cpu", torch.tensor(ranks_of_it), _init_backend=False, _rank=rank)

    return {"fsdp": (mesh([0, 1, 2, 3]), [Shard(0)]), "hsdp": (mesh([[0, 1], [2, 3]]), [Replicate(), Shard(0)])}


def generator(rank, how, version, dtype, whole=case.whole, **sizes):
    """What an actor's model engine yields, one tensor at a time: DTensors, or whole tensors that it has gathered."""
    for name, shape, placement, _ in case.weights(**sizes):
        full = whole(name, shape, dtype, version)
        if how in meshes(rank) and not placement.is_replicate():
            full = torch_case.make(full, *meshes(rank)[how])
        yield name, full


def full_tensor(tensor):
    raise AssertionError("a whole weight was gathered")


class ModelEngine:
    """What an actor has of verl's. `how` its specs say where shards are: by mesh and placements, as blocks of rows and
    columns, each on one rank or on two, or as an offset in the flat weight."""

    def __init__(self, rank, how, version, dtype, sizes):
        self.rank, self.how, self.version, self.dtype, self.sizes = rank, how, version, dtype, sizes

    def get_per_tensor_param(self, **options):
        for name, tensor in generator(self.rank, "fsdp", self.version, self.dtype, **self.sizes):
            yield name, tensor.full_tensor()

    def get_per_tensor_param_shard(self):
        return self.shards(), None

    def shards(self):
        from verl.workers.engine.spec import ShardSpec

        for name, shape, placement, _ in case.weights(**self.sizes):
            full = case.whole(name, shape, self.dtype, self.version)
            if placement.is_replicate():
                yield name, full.reshape(-1), ShardSpec(shape)
            elif self.how == "mesh":
                mesh, placements = meshes(self.rank)["hsdp"]
                part = torch_case.shard(full, mesh, placements)
                yield name, part.reshape(-1), ShardSpec(shape, mesh, tuple(placements))
            else:
                yield name, *self.block(full)

    def block(self, full):
        from verl.workers.engine.spec import BlockPlacement, ShardSpec

        where = {"place": 0, "gather_group": dist.group.WORLD}
        if self.how == "offset":
            part = full.chunk(2)[self.rank // 2]
            where["place"] = self.rank // 2 * full.chunk(2)[0].numel()
        elif self.how == "blocks":
            rows = full.chunk(2)[self.rank // 2]
            part = rows.chunk(2, 1)[self.rank % 2]
            low = (self.rank // 2 * full.chunk(2)[0].shape[0], self.rank % 2 * rows.chunk(2, 1)[0].shape[1])
            where["place"] = BlockPlacement(tuple(part.shape), low, tuple(full.shape))
        else:
            part = full.chunk(2, 1)[self.rank % 2]  # each on two ranks
            low = (0, self.rank % 2 * full.chunk(2, 1)[0].shape[1])
            where["place"] = BlockPlacement(tuple(part.shape), low, tuple(full.shape))
            where["contributes"] = self.rank < 2
        if self.how == "bad" and self.rank == 3:
            part, where["place"] = full[:1], BlockPlacement((1, full.shape[1]), (1, 0), tuple(full.shape))
        return part.reshape(-1), ShardSpec(tuple(full.shape), **where)


def flushed(engine, model, apply, dtype, step):
    """A rollout rank's part of an update by flushes; how many elements they had places for."""
    places, ended = 0, False
    for named, last in engine.receive_weights(global_steps=step):
        assert not ended, "a flush after the last"
        apply(model, named)
        ended = last
        places += dict(named).get("__positions__", torch.empty(0)).numel() // 4
    case.check(model, dtype, step // 2, f"step {step}", case.stepwise)
    return places


def process(rank, crew, port, dtype, sizes, options, backend="crossmesh"):
    from verl.checkpoint_engine.base import CheckpointEngineRegistry

    torch.set_num_threads(1)
    DTensor.full_tensor = full_tensor
    if rank < ACTORS:
        case.join_trainers(rank, port)
        options = {**options, "is_master": rank == 0}
    engine = CheckpointEngineRegistry.new(backend, bucket_size=20000, timeout=ranks.TIMEOUT, **options)
    apply = contract_verl.apply_delta()
    model = case.Served(rank % case.TP, dtype, **sizes) if rank >= ACTORS else None
    told = {}

    async def send(global_steps):
        if "specs" in told:
            weights = list(ModelEngine(rank, told["specs"], global_steps, dtype, sizes).get_per_tensor_param()[0])
        elif engine.wire_format == "delta_flush":
            weights = list(generator(rank, told["how"], global_steps // 2, dtype, case.stepwise))
        else:
            weights = list(generator(rank, told["how"], global_steps, dtype, **sizes))
        if told.get("backwards"):
            weights.reverse()
        peak = case.Peak()
        await engine.send_weights(weights, global_steps=global_steps)
        return peak.bytes()

    async def receive(global_steps):
        peak = case.Peak()
        async for pair in engine.receive_weights(global_steps=global_steps):
            model.load_weights([pair])
        most = peak.bytes()
        case.check(model, dtype, global_steps, f"rank {rank}")
        return most

    def answer(name, about):
        if name == "tell":
            told.update(about)
        elif name == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        elif name == "update_weights" and rank >= ACTORS and engine.wire_format == "delta_flush":
            return flushed(engine, model, apply, dtype, about["global_steps"])
        elif name == "update_weights":
            return asyncio.run((send if rank < ACTORS else receive)(**about))
        else:
            return getattr(engine, name)(**about)

    crew.serve(rank, answer)


class Processes(unittest.TestCase):
    install = staticmethod(contract_verl.install)

    @classmethod
    def setUpClass(cls):
        cls.install()
        # As verl imports it by the option custom_backend_module; that registers the engine where verl's own is there.
        importlib.import_module("verl.checkpoint_engine.base")
        importlib.import_module("crossmesh.adapters.verl").export_shards(ModelEngine)

    def crew(self, dtype, sizes=None, doomed=(), backend="crossmesh", **options):
        """Starts the processes; the crew calls them."""
        crew = case.Crew(len(EVERYBODY))
        main = functools.partial(process, crew=crew, port=ranks.free_port(), dtype=dtype, sizes=sizes or {},
                                 backend=backend, options={"device": "cpu", "address": "127.0.0.1", **options})  # fmt: skip
        pids = ranks.start(len(EVERYBODY), main)
        crew.lead()
        self.addCleanup(ranks.wait, pids, doomed)
        self.addCleanup(crew.dismiss)
        return crew

    def update(self, crew, step, rollouts=range(ACTORS, ACTORS + ROLLOUTS), prepare="prepare", **tell):
        crew.call_some(EVERYBODY, "tell", [tell] * len(EVERYBODY))
        return contract_verl.update(crew.call_some, range(ACTORS), rollouts, step, prepare)


class Updates(Processes):
    def test_versions(self):
        crew = self.crew(torch.float32, keep_buffers=True)
        for step, how in enumerate(("fsdp", "fsdp", "hsdp", "whole")):
            self.update(crew, step, how=how)

    def test_replicas_come_and_go(self):
        crew = self.crew(torch.bfloat16)
        self.update(crew, 0, how="fsdp")
        self.update(crew, 1, how="fsdp", rollouts=[4, 5])
        self.update(crew, 2, how="hsdp", rollouts=[6], prepare="prepare_temporary")
        self.update(crew, 3, how="whole")

    def test_deltas(self):
        """Every second update changes one element in 37, the others nothing."""
        elements = sum(torch.Size(shape).numel() for _, shape, _, _ in case.weights())
        crew = self.crew(torch.bfloat16, backend="crossmesh_delta")
        for step, how in enumerate(("fsdp", "fsdp", "fsdp", "fsdp", "fsdp", "hsdp", "hsdp", "hsdp")):
            places = self.update(crew, step, how=how)[ACTORS:]
            if step in (0, 5):
                self.assertEqual(places, [0] * ROLLOUTS, step)  # all values
            else:
                self.assertTrue(all(most <= 3 * elements / 37 for most in places), (step, places, elements))
                self.assertTrue(all((most > 0) == (step % 2 == 0) for most in places), (step, places))

    def test_actors_gather_nothing(self):
        crew = self.crew(torch.float32, LARGE)
        peaks = self.update(crew, 0, how="fsdp")
        print("bytes that ranks took for the update:", peaks)
        self.assertLess(max(peaks[:ACTORS]), WHOLE * 3 // 4)
        # verl's interface has rollout ranks take whole weights: two buckets of them, never the model.
        self.assertLess(max(peaks[ACTORS:]), WHOLE * 5 // 2)

    def test_shards_by_their_specs(self):
        crew = self.crew(torch.bfloat16, keep_buffers=True)
        for step, specs in enumerate(("mesh", "blocks", "blocks", "copies", "offset")):
            self.update(crew, step, specs=specs)
        with self.assertRaisesRegex(errors.InputError, "blocks of ranks .* are no even grid over"):
            self.update(crew, 9, specs="bad")

    def test_what_does_not_fit(self):
        crew = self.crew(torch.bfloat16, rebuild_group=True)
        self.update(crew, 0, how="fsdp")
        crew.call_some([1], "tell", [{"backwards": True}])
        with self.assertRaisesRegex(errors.InputError, "actor rank 1 sends other weights than rank 0"):
            contract_verl.update(crew.call_some, range(ACTORS), range(ACTORS, ACTORS + ROLLOUTS), 1)
        crew.call_some([1], "tell", [{"backwards": False}])
        self.update(crew, 2, how="fsdp")  # a failure is no end


class Faults(Processes):
    def test_a_death(self):
        crew = self.crew(torch.bfloat16, doomed=(1,))
        self.update(crew, 0, how="fsdp")
        crew.send([1], "die", [{}])
        left = [rank for rank in EVERYBODY if rank != 1]
        started = time.monotonic()
        answers = crew.call_some(left, "update_weights", [{"global_steps": 1}] * len(left), raises=False)
        self.assertLess(time.monotonic() - started, ranks.SOON)
        for answer in answers:
            self.assertIsInstance(answer, errors.PeerError)
            self.assertIn("rank 1", str(answer))


class Contract(unittest.TestCase):
    def test_without_verl(self):
        if INSTALLED:
            self.skipTest("verl is installed")
        code = "import crossmesh.adapters.verl as a\ntry: a.register()\nexcept ImportError as error: print(error)"
        result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        self.assertIn("crossmesh.adapters.verl needs verl", result.stdout, result.stderr)


@unittest.skipUnless(INSTALLED, "verl is not installed")
class RealVerl(Processes):
    """By the real verl's registry and specs."""

    install = staticmethod(contract_verl.install_real)
    test_versions = Updates.test_versions
    test_deltas = Updates.test_deltas
    test_shards_by_their_specs = Updates.test_shards_by_their_specs

    def test_the_contract_is_verls(self):
        from verl.checkpoint_engine import base
        from verl.workers.engine import spec

        from verl.checkpoint_engine import delta_sync

        for name, module in (("ShardSpec", spec), ("BlockPlacement", spec), ("DeltaParam", delta_sync)):
            self.assertEqual(
                [field.name for field in dataclasses.fields(getattr(contract_verl, name))],
                [field.name for field in dataclasses.fields(getattr(module, name))],
            )
        for name in ("CheckpointEngine", "CheckpointEngineRegistry"):
            ours, theirs = getattr(contract_verl, name), getattr(base, name)
            self.assertGreaterEqual(
                getattr(ours, "__abstractmethods__", set()), getattr(theirs, "__abstractmethods__", set())
            )
            for method, function in inspect.getmembers(ours, inspect.isroutine):
                if not method.startswith("__"):
                    mine, other = inspect.signature(function), inspect.signature(getattr(theirs, method))
                    self.assertEqual(list(mine.parameters), list(other.parameters), (name, method))


if __name__ == "__main__":
    sys.exit(unittest.main())
