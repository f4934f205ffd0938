# SPDX-License-Identifier: Apache-2.0
"""verl's registry of checkpoint engines, as small as it can be: not verl, but the class, methods and signatures of its
version 0.9, for machines without it; and the calls that its manager makes for an update. `install()` puts the registry
where verl has it; `install_real()` the real verl's, with which the test compares the other."""

import importlib.util
import inspect
import json
import os
import sys
import types
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import torch


class CheckpointEngineRegistry:
    _registry: ClassVar[dict] = {}

    def register(backend):  # noqa: N805
        def wrapper(cls):
            CheckpointEngineRegistry._registry[backend] = cls
            return cls

        return wrapper

    @classmethod
    def new(cls, backend, *args, **kwargs):
        return cls._registry[backend](*args, **kwargs)


class CheckpointEngine(ABC):
    wire_format = "named_tensors"

    @abstractmethod
    def prepare(self): ...

    @classmethod
    @abstractmethod
    def build_topology(cls, actor_wg_world_size, rollout_world_size, metadata): ...

    @abstractmethod
    def init_process_group(self, **kwargs): ...

    @abstractmethod
    def finalize(self): ...

    @abstractmethod
    async def send_weights(self, weights, global_steps=None): ...

    @abstractmethod
    async def receive_weights(self, global_steps=None): ...


@dataclass(frozen=True)
class BlockPlacement:
    local_shape: tuple
    global_offset: tuple
    full_shape: tuple


@dataclass
class ShardSpec:
    full_shape: tuple
    mesh: Any = None
    placements: tuple | None = None
    place: int | BlockPlacement | None = None
    gather_group: Any = None
    contributes: bool = True
    to_hf_chunk: Any = None
    hf_slots: list | None = None


@dataclass
class DeltaParam:
    name: str
    dtype: str
    shape: list
    pos_start: int
    pos_end: int
    pos_width: int
    val_start: int
    val_end: int


def checksum(positions, values):
    return _hash(positions) ^ _hash(values) << 1


def _hash(tensor):
    return int(torch.hash_tensor(tensor).item()) if tensor.numel() else 0


class Flushed:
    """What delta flushes make of a model, by their format: values at places of whole weights."""

    def __init__(self):
        self.weights = {}

    def __call__(self, model, named):
        tensors = dict(named)
        spec = json.loads(bytes(tensors["__delta_spec__"].tolist()))
        values, places = tensors["__values__"], tensors.get("__positions__", torch.empty(0, dtype=torch.uint8))
        assert spec["checksum"] == checksum(places, values)
        assert (spec["encoding"] == "dense") == ("__positions__" not in tensors), spec["encoding"]
        for about in (DeltaParam(**param) for param in spec["params"]):
            new = values[about.val_start : about.val_end]
            assert about.dtype == str(new.dtype).removeprefix("torch."), about
            if spec["encoding"] == "dense":
                self.weights[about.name] = new.clone().view(about.shape)
            else:
                at = places[about.pos_start : about.pos_end].view(torch.int32)
                assert about.pos_width == 4 and list(self.weights[about.name].shape) == about.shape, about
                self.weights[about.name].view(-1)[at.long()] = new
        model.load_weights(self.weights.items())


def install():
    for name in ("verl", "verl.checkpoint_engine", "verl.workers", "verl.workers.engine"):
        sys.modules[name] = types.ModuleType(name)
    sys.modules["verl.checkpoint_engine.delta_sync"] = sys.modules[__name__]
    for name in ("verl.checkpoint_engine.base", "verl.workers.engine.spec"):
        module = sys.modules[name] = types.ModuleType(name)
        for key, value in globals().items():
            if inspect.isclass(value):
                setattr(module, key, value)


def apply_delta():
    """What takes flushes: verl's own loader for SGLang, which needs nothing but torch, where verl is installed."""
    root = getattr(sys.modules["verl"], "__path__", None)
    if root is None:
        return Flushed()
    path = os.path.join(root[0], "workers", "rollout", "sglang_rollout", "delta_loader.py")
    spec = importlib.util.spec_from_file_location("delta_loader", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.apply_delta


class _Anything(type):
    def __getattr__(cls, name):
        return None


class _Surroundings(types.ModuleType):
    """A module that has every name, as a class and as a decorator."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        members = {"__init__": lambda own, *args, **kwargs: None, "__call__": lambda own, decorated: decorated}
        setattr(self, name, _Anything(name, (), members))
        return getattr(self, name)


def install_real():
    """The real verl's files of checkpoint engines and specs. What they import beside, for clusters of Ray,
    configurations and rollouts, is not needed here, and not there."""
    (root,) = importlib.util.find_spec("verl").submodule_search_locations
    for name in ("verl", "verl.checkpoint_engine", "verl.workers", "verl.workers.engine"):
        module = sys.modules[name] = types.ModuleType(name)
        module.__path__ = [os.path.join(root, *name.split(".")[1:])]
    controller, utils, workers = "verl.single_controller.", "verl.utils.", "verl.workers."
    for name in ("ray", controller + "base", controller + "base.decorator", controller + "ray", utils + "distributed",
                 utils + "import_utils", utils + "ray_utils", workers + "config", workers + "rollout",
                 workers + "rollout.utils"):  # fmt: skip
        sys.modules[name] = _Surroundings(name)


def update(call, actors, rollouts, step, prepare="prepare"):
    """What CheckpointEngineManager does for an update; `call(workers, method, a list of keyword arguments each)`."""
    backend = sys.modules["verl.checkpoint_engine.base"].CheckpointEngineRegistry._registry["crossmesh"]
    everyone = [*actors, *rollouts]
    metadata = call(everyone, prepare, [{}] * len(everyone))
    sides = backend.build_topology(len(actors), len(rollouts), metadata)
    arguments = []
    for workers, side in zip((actors, rollouts), sides):
        assert all(len(values) == len(workers) for values in side.values()), side
        arguments += [{key: values[i] for key, values in side.items()} for i in range(len(workers))]
    call(everyone, "init_process_group", arguments)
    try:
        return call(everyone, "update_weights", [{"global_steps": step}] * len(everyone))
    finally:
        call(everyone, "finalize", [{}] * len(everyone))
