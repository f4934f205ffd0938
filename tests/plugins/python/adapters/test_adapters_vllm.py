# SPDX-License-Identifier: Apache-2.0
"""vLLM's weight transfer: four trainers (TP2 x PP2) and four workers (TP2 x DP2) in processes of their own."""

import functools
import importlib.util
import inspect
import os
import subprocess
import sys
import time
import types
import unittest

import torch
from torch.distributed.tensor import DeviceMesh

import adapters_case as case
import contract_vllm
import ranks
import torch_case
from crossmesh import errors
from crossmesh.torch._parts import Own
from crossmesh.torch._tracing import play, trace

INSTALLED = importlib.util.find_spec("vllm")  # before the tests put something in its place
WORKERS = 4


def trainer(rank, port, client, source, **changes):
    from crossmesh.adapters import vllm as adapter
    from vllm.distributed.weight_transfer.factory import WeightTransferTrainerFactory

    about = {"trainer_world_size": case.TRAINERS, "inference_world_size": WORKERS, "timeout": ranks.TIMEOUT, **changes}
    info = adapter.TrainerInitInfo("127.0.0.1", port, rank=rank, **about)
    return WeightTransferTrainerFactory.trainer_init(info, client=client, source=source)


class Client:
    """VLLMWeightSyncClient, to all workers."""

    def __init__(self, crew):
        self.crew = crew

    def init_weight_transfer_engine(self, init_info):
        self.crew.call("init", init_info)

    def start_weight_update(self):
        self.crew.call("start")

    def update_weights(self, update_info):
        self.crew.call("update", update_info)

    def finish_weight_update(self, weight_version=None):
        self.crew.call("finish")


def worker(number, crew, model, dtype):
    """What vLLM's worker does with the calls, and what the test asks it."""
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

    config = types.SimpleNamespace(backend="crossmesh")
    vllm_config = types.SimpleNamespace(parallel_config=None, model_config=None)
    engine = WeightTransferEngineFactory.create_engine(config, vllm_config, torch.device("cpu"), model)
    peaks = []

    def answer(name, argument):
        if name == "init":
            engine.init_transfer_engine(engine.parse_init_info(argument))
        elif name == "start":
            engine.start_weight_update()
        elif name == "update":
            peak = case.Peak()
            engine.update_weights(argument)
            peaks.append(peak.bytes())
        elif name == "finish":
            engine.finish_weight_update()
        elif name == "check":
            case.check(model, dtype, argument, f"worker {number}")
        elif name == "check steps":
            case.check(model, dtype, argument, f"worker {number}", case.stepwise)
        return peaks

    crew.serve(number, answer)
    engine.shutdown()


def role(rank, crew, main, dtype, *arguments, **sizes):
    """Starts a process as worker, or as trainer with `main`."""
    from crossmesh.adapters import vllm as adapter

    contract_vllm.install()
    adapter.register()
    adapter.register()
    torch.set_num_threads(1)
    if rank >= case.TRAINERS:
        number = rank - case.TRAINERS
        worker(number, crew, case.Served(number % case.TP, dtype, **sizes), dtype)
        return
    if rank == 0:
        crew.lead()
    else:
        crew.look_on()
    main(rank, crew, *arguments)


def versions(rank, crew, ports):
    from crossmesh.adapters.vllm import ShardSource

    case.join_trainers(rank, ports[0])
    state = case.training(rank, torch.float32, 0)
    # Trained in float32 and served in bfloat16.
    source = ShardSource(state, dtype=torch.bfloat16)
    engine = trainer(rank, ports[1], Client(crew), source)
    for meta, (name, shape, placement, stage) in zip(source.metadata, case.weights(), strict=True):
        assert (meta.name, meta.shape, meta.dtype) == (name, shape, torch.bfloat16), meta
        assert meta.owners == (2 * stage, 2 * stage + 1) and meta.mesh_shape == (2,), meta
        assert [p.dim for p in meta.placements or ()] == ([placement.dim] if placement.is_shard() else []), meta
    assert source.implements_iter_full() and source.implements_iter_local()
    for version in range(3):
        for name, tensor in state.items():
            wanted = case.whole(name, tensor.shape, torch.bfloat16, version)
            local = torch_case.shard(wanted, tensor.device_mesh, tensor.placements)
            tensor.to_local().copy_(local)
        engine.send_weights()
        if rank == 0:
            crew.call("check", version)
    engine.shutdown()
    case.leave()


def updates(rank, crew, ports):
    """What has changed, into parameters that serve: TP2 x PP2 to TP2 x DP2."""
    from crossmesh.adapters.vllm import ShardSource

    case.join_trainers(rank, ports[0])
    state = case.training(rank, torch.bfloat16, 0)
    engine = trainer(rank, ports[1], Client(crew), ShardSource(state), update="auto")
    for version in range(3):
        for name, tensor in state.items():
            wanted = case.stepwise(name, tensor.shape, torch.bfloat16, version)
            tensor.to_local().copy_(torch_case.shard(wanted, tensor.device_mesh, tensor.placements))
        engine.send_weights()
        commits = engine._transfer.commits
        assert all(commit.everything == (version == 0) for commit in commits), commits
        assert version == 0 or 5 * sum(c.sent_bytes for c in commits) < sum(c.dense_bytes for c in commits), commits
        if rank == 0:
            crew.call("check steps", version)
    engine.shutdown()
    case.leave()


class Checkpoint(torch.nn.Module):
    """A model of whole weights under their own names."""

    def __init__(self, held):
        super().__init__()
        self.held = held

    def load_weights(self, weights):
        for name, weight in weights:
            self.held[name].copy_(weight)


def loader():
    """Applies patches to a Checkpoint: vLLM's own, which needs nothing but torch, where that is installed."""
    root = INSTALLED and INSTALLED.submodule_search_locations[0]
    if not root:
        return lambda model, patches: [model.held[p.name].view(-1).put_(p.indices.long(), p.values) for p in patches]
    path = os.path.join(root, "model_executor", "model_loader", "checkpoint_weight_patch.py")
    spec = importlib.util.spec_from_file_location("checkpoint_weight_patch", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    def load(model, patches):
        module.load_checkpoint_weight_patches(model, [
            module.CheckpointWeightPatch(p.name, p.full_shape, p.values.dtype, p.values, p.indices) for p in patches
        ])  # fmt: skip

    return load


def patched(rank):
    """Two ranks with shards of rows and columns; what has changed comes to the third, which keeps whole weights."""
    from crossmesh import Job
    from crossmesh.adapters import vllm as adapter
    from crossmesh.adapters._weights import WeightTransfer

    contract_vllm.install()
    job = Job.from_env(timeout=ranks.TIMEOUT)
    mesh, load = DeviceMesh("cpu", [0, 1], _init_backend=False, _rank=rank), loader()
    shapes = {name: (shape, placement) for name, shape, placement, _ in case.weights()}
    first = {name: case.stepwise(name, shape, torch.bfloat16, 0) for name, (shape, _) in shapes.items()}
    src = {name: torch_case.make(first[name], mesh, [placement]) for name, (_, placement) in shapes.items()}
    dst = {name: torch.zeros(shape, dtype=torch.bfloat16) for name, (shape, _) in shapes.items()}
    model = Checkpoint({name: torch.zeros_like(tensor) for name, tensor in dst.items()})
    transfer = WeightTransfer(job, src if rank < 2 else None, dst if rank == 2 else None, update="auto")
    for version in range(4):
        now = {name: case.stepwise(name, shape, torch.bfloat16, version) for name, (shape, _) in shapes.items()}
        for name, tensor in src.items() if rank < 2 else ():
            tensor.to_local().copy_(torch_case.shard(now[name], mesh, tensor.placements))
        transfer.run()
        if rank == 2:
            patches = adapter.patches(transfer)
            most = sum(tensor.numel() for tensor in dst.values()) * (1 if version == 0 else 3 / 37)
            assert 0 < sum(patch.indices.numel() for patch in patches) <= most, version
            assert all(patch.indices.dtype == torch.int32 for patch in patches)
            load(model, patches)
            for name, tensor in now.items():
                assert torch.equal(torch_case.bits(model.held[name]), torch_case.bits(tensor)), (name, version)
    transfer.close()
    job.close()


def foreign_source(state):
    """A WeightSource of somebody else's that yields shards, as vLLM's ModuleSource does."""
    from vllm.distributed.weight_transfer import base

    class Source(base.WeightSource):
        @functools.cached_property
        def metadata(self):
            metas = []
            for name, shape, placement, stage in case.weights(**LARGE):
                split = base.Shard(placement.dim) if placement.is_shard() else base.Replicate()
                owners = tuple(range(case.TP * stage, case.TP * (stage + 1)))
                metas.append(base.ParamMeta(name, torch.float32, shape, owners=owners, mesh_shape=(case.TP,),
                                            placements=(split,)))  # fmt: skip
            return metas

        def iter_local(self):
            for name, tensor in state.items():
                yield name, tensor.to_local()

    return Source()


def one_dtype(rank, crew, ports, limit):
    """Large enough to see that nobody has a whole weight."""
    case.join_trainers(rank, ports[0])
    state = case.training(rank, torch.float32, 5, **LARGE)
    engine = trainer(rank, ports[1], Client(crew), foreign_source(state))
    peak = case.Peak()
    engine.send_weights()
    own = peak.bytes()
    assert own < limit, f"trainer {rank} took {own} bytes"
    if rank == 0:
        peaks = [worker[-1] for worker in crew.call("check", 5)]
        print("bytes that ranks took for the transfer:", own, peaks)
        assert max(peaks) < limit, peaks
    engine.shutdown()
    case.leave()


LARGE = {"vocab": 6000, "hidden": 1024}
WHOLE = LARGE["vocab"] * LARGE["hidden"] * 4


def dies(rank, crew, ports, death):
    from crossmesh.adapters import _control
    from crossmesh.adapters.vllm import ShardSource

    _control.TIMEOUT = ranks.TIMEOUT  # however slow the workers are, what they say is to be seen
    case.join_trainers(rank, ports[0])
    engine = trainer(rank, ports[1], Client(crew), ShardSource(case.training(rank, torch.bfloat16, 0)))
    engine.send_weights()
    death.meet(rank)
    started = time.monotonic()
    try:
        while True:  # a rank may have sent its part before it hears of the death
            engine.send_weights()
    except errors.PeerDiedError as error:
        assert "rank 1" in str(error), error
        if rank == 0:
            assert "rank 1" in str(error.__cause__), error.__cause__  # what the workers have answered
    assert time.monotonic() - started < ranks.SOON
    death.survive()


def refuses(rank, crew, ports):
    from crossmesh.adapters.vllm import ShardSource

    case.join_trainers(rank, ports[0])
    state = case.training(rank, torch.bfloat16, 0)
    without = {name: tensor for name, tensor in state.items() if "k_proj" not in name}
    try:
        trainer(rank, ports[2], Client(crew), ShardSource(without | odd(rank)))
        raise AssertionError("a weight is too short, and is taken")
    except errors.CrossmeshError as error:
        assert "k_proj" in str(error), (rank, error)
    try:
        trainer(rank, ports[3], Client(crew), object())
        raise AssertionError("any source is taken")
    except errors.InputError as error:
        assert "the source is a object, which has no iter_local()" in str(error), error
    case.leave()


def odd(rank):
    """A weight that is too short for the model's loader."""
    short = {"model.layers.0.self_attn.k_proj.weight": torch.zeros(8, case.HIDDEN, dtype=torch.bfloat16)}
    return short if rank < 2 else {}


def ports():
    return [ranks.free_port() for _ in range(4)]


class Transfers(unittest.TestCase):
    def run_roles(self, main, dtype, *arguments, doomed=(), **sizes):
        crew = case.Crew(WORKERS)
        pids = ranks.start(case.TRAINERS + WORKERS, lambda rank: role(rank, crew, main, dtype, *arguments, **sizes))
        crew.look_on()
        ranks.wait(pids, doomed)

    def test_versions(self):
        self.run_roles(versions, torch.bfloat16, ports())

    def test_updates(self):
        self.run_roles(updates, torch.bfloat16, ports())

    def test_patches(self):
        ranks.run(3, patched)

    def test_nobody_has_a_whole_weight(self):
        self.run_roles(one_dtype, torch.float32, ports(), WHOLE * 3 // 4, **LARGE)

    def test_what_does_not_fit(self):
        self.run_roles(refuses, torch.bfloat16, ports())


class Faults(unittest.TestCase):
    def test_a_death(self):
        Transfers.run_roles(self, dies, torch.bfloat16, ports(), ranks.Death(1, case.TRAINERS), doomed=(1,))


class Tracing(unittest.TestCase):
    def refused(self, text, loader, shape=(6, 4), dtype=torch.float32):
        with self.assertRaisesRegex(errors.InputError, text):
            trace(loader, {"w": (shape, dtype)})

    def test_what_a_loader_takes(self):
        param = torch.full((3, 2, 2, 4), 7.0)

        def load(weights):
            for _, weight in weights:
                param[0, 0].copy_(weight.narrow(0, 2, 2))
                param[1].view(4, 4)[:, :1].copy_(weight[1:5, 3:])
                param[2, :, :, 1].copy_(weight.t()[0:2, 4:6])  # transposed
                param[2, 0, :, 2].copy_(weight.unsqueeze(0)[0, 5, 1:3])
                weight[3:3].clone()
                param[2, 0, :0].copy_(weight[:0])

        pieces = trace(load, {"w": ((6, 4), torch.float32)}).owns()["w"]
        self.assertTrue(bool((param == 7).all()), "tracing has written")
        boxes = [piece.box for piece in pieces]
        self.assertEqual(boxes, [((2, 4), (0, 4)), ((1, 5), (3, 4)), ((4, 6), (0, 2)), ((5, 6), (1, 3))])
        whole = torch.arange(24.0).reshape(6, 4)
        for (rows, columns), tensor in pieces:
            tensor.copy_(whole[slice(*rows), slice(*columns)])
        traced = param.clone()
        param.fill_(7)
        load([("w", whole)])
        self.assertTrue(torch.equal(param, traced))
        # The loader once more, out of what was received beside.
        held = {"w": [Own(box, whole[slice(*box[0]), slice(*box[1])]) for box in boxes]}
        param.fill_(7)
        play(load, {"w": ((6, 4), torch.float32)}, held)
        self.assertTrue(torch.equal(param, traced))

    def test_what_is_no_copy(self):
        param = torch.zeros(6, 4)

        def each(do):
            return lambda weights: [do(weight) for _, weight in weights]

        self.refused(r"w: .*computes \(aten.mul", each(lambda w: param.copy_(w * 2)))
        self.refused(r"w: .*computes \(aten.mul", each(lambda w: param.copy_((w * 2)[:].contiguous())))
        self.refused(r"w: the model stores \(4,\) elements in \(6, 4\)", each(lambda w: param.copy_(w[0])))
        self.refused("w: .*without values", each(lambda w: param.fill_(w.sum().item())))
        rows = torch.zeros(4500, 2)  # each of which would be a box
        self.refused("w: .*no box", each(lambda w: rows.copy_(w[::2])), (9000, 2))
        self.refused("w: .*KeyError", each(lambda w: {}["x"]))


class Contract(unittest.TestCase):
    def test_without_vllm(self):
        code = (
            "import crossmesh.adapters.vllm as a\n"
            "try: a.register()\n"
            "except ImportError as error: print(error)\n"
            "a.plugin()"
        )
        if INSTALLED:
            self.skipTest("vLLM is installed")
        result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("crossmesh.adapters.vllm needs vLLM", result.stdout)
        self.assertIn("UserWarning: crossmesh.adapters.vllm needs vLLM", result.stderr)

    def test_the_contract_is_vllms(self):
        if not INSTALLED:
            self.skipTest("vLLM is not installed")
        from vllm.distributed.weight_transfer import base, factory

        for ours, theirs in (
            (contract_vllm.WeightTransferEngine, base.WeightTransferEngine),
            (contract_vllm.TrainerWeightTransferEngine, base.TrainerWeightTransferEngine),
            (contract_vllm.WeightSource, base.WeightSource),
            (contract_vllm.WeightTransferEngineFactory, factory.WeightTransferEngineFactory),
            (contract_vllm.WeightTransferTrainerFactory, factory.WeightTransferTrainerFactory),
        ):
            self.assertGreaterEqual(
                getattr(ours, "__abstractmethods__", set()), getattr(theirs, "__abstractmethods__", set())
            )
            for name, method in inspect.getmembers(ours, inspect.isroutine):  # and no others are relied upon
                if not name.startswith("__") or name == "__init__":
                    mine, other = inspect.signature(method), inspect.signature(getattr(theirs, name))
                    self.assertEqual(list(mine.parameters), list(other.parameters), (ours, name))


if __name__ == "__main__":
    sys.exit(unittest.main())
