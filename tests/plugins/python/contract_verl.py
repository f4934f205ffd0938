# SPDX-License-Identifier: Apache-2.0
"""verl's registry of checkpoint engines, as small as it can be: not verl, but the class, methods and signatures of its
version 0.9, for machines without it; and the calls that its manager makes for an update. `install()` puts the registry
where verl has it; where the real verl is installed the test compares the two."""

import inspect
import sys
import types
from abc import ABC, abstractmethod
from typing import ClassVar


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


def install():
    for name in ("verl", "verl.checkpoint_engine"):
        sys.modules[name] = types.ModuleType(name)
    base = sys.modules["verl.checkpoint_engine.base"] = types.ModuleType("verl.checkpoint_engine.base")
    for key, value in globals().items():
        if inspect.isclass(value):
            setattr(base, key, value)


def update(call, actors, rollouts, step, prepare="prepare"):
    """What CheckpointEngineManager does for an update; `call(workers, method, a list of keyword arguments each)`."""
    backend = CheckpointEngineRegistry._registry["crossmesh"]
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
