# SPDX-License-Identifier: Apache-2.0
"""vLLM's registries of weight transfer engines, as small as they can be: not vLLM, but the classes, methods and
signatures that version 0.33 and its documentation of custom engines give, for machines without it. `install()` puts
them where vLLM has them; where the real vLLM is installed the test compares the two."""

import dataclasses
import functools
import inspect
import sys
import types
from abc import ABC, abstractmethod
from typing import Any, ClassVar


@dataclasses.dataclass(frozen=True)
class Replicate:
    pass


@dataclasses.dataclass(frozen=True)
class Shard:
    dim: int


@dataclasses.dataclass(frozen=True)
class ParamMeta:
    name: str
    dtype: Any
    shape: tuple
    owners: tuple | None = dataclasses.field(default=None, kw_only=True)
    mesh_shape: tuple | None = dataclasses.field(default=None, kw_only=True)
    placements: tuple | None = dataclasses.field(default=None, kw_only=True)

    def __post_init__(self):
        if all(isinstance(placement, Replicate) for placement in self.placements or ()):
            object.__setattr__(self, "placements", None)


class WeightSource(ABC):
    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        if not isinstance(cls.__dict__.get("metadata", functools.cached_property(id)), functools.cached_property):
            raise TypeError(f"{cls.__name__}.metadata is no cached_property")

    @property
    @abstractmethod
    def metadata(self): ...

    def implements_iter_full(self):
        return type(self).iter_full is not WeightSource.iter_full

    def implements_iter_local(self):
        return type(self).iter_local is not WeightSource.iter_local

    def iter_full(self):
        raise NotImplementedError

    def iter_local(self):
        raise NotImplementedError


@dataclasses.dataclass
class WeightTransferInitInfo(ABC):  # noqa: B024
    pass


@dataclasses.dataclass
class WeightTransferUpdateInfo(ABC):  # noqa: B024
    pass


@dataclasses.dataclass
class TrainerInitInfo:
    backend: ClassVar[str]
    rank: int = dataclasses.field(kw_only=True)

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        if not getattr(cls, "backend", None):
            raise TypeError(f"{cls.__name__} has no backend")

    @property
    def is_sender(self):
        return self.rank == 0


@dataclasses.dataclass
class SparseWeightPatch:
    name: str
    indices: Any
    values: Any
    full_shape: tuple


class WeightTransferEngine(ABC):
    init_info_cls: type
    update_info_cls: type
    supports_draft_weight_update = True

    def __init__(self, config, vllm_config, device, model):
        self.config, self.vllm_config, self.device, self.model = config, vllm_config, device, model
        self.parallel_config, self.model_config = vllm_config.parallel_config, vllm_config.model_config

    def parse_init_info(self, init_dict):
        return self.init_info_cls(**init_dict)

    def parse_update_info(self, update_dict):
        return self.update_info_cls(**update_dict)

    def update_weights(self, update_info):
        self.receive_weights(self.parse_update_info(update_info))

    @abstractmethod
    def init_transfer_engine(self, init_info): ...

    @abstractmethod
    def start_weight_update(self): ...

    @abstractmethod
    def finish_weight_update(self): ...

    @abstractmethod
    def receive_weights(self, update_info): ...

    @abstractmethod
    def shutdown(self): ...


class TrainerWeightTransferEngine(ABC):
    init_info_cls: type

    def __init__(self, *, client, source=None, is_sender=True, rank=0):
        self.client, self.source, self.is_sender, self.rank = client, source, is_sender, rank

    @classmethod
    @abstractmethod
    def trainer_init(cls, init_info, *, client, source=None): ...

    @abstractmethod
    def send_weights(self): ...

    def shutdown(self): ...


class _Factory:
    @classmethod
    def register_engine(cls, name, module_path_or_cls, class_name=None):
        if name in cls._registry:
            raise ValueError(f"{name} is registered already")
        cls._registry[name] = lambda: module_path_or_cls


class WeightTransferEngineFactory(_Factory):
    _registry: ClassVar[dict] = {}

    @classmethod
    def create_engine(cls, config, vllm_config, device, model):
        return cls._registry[config.backend]()(config, vllm_config, device, model)


class WeightTransferTrainerFactory(_Factory):
    _registry: ClassVar[dict] = {}

    @classmethod
    def trainer_init(cls, init_info, *, client, source=None):
        return cls._registry[init_info.backend]().trainer_init(init_info, client=client, source=source)


def install():
    for name in ("vllm", "vllm.distributed", "vllm.distributed.weight_transfer"):
        sys.modules[name] = types.ModuleType(name)
    for name in ("base", "factory", "sparse_nccl_engine"):
        module = sys.modules["vllm.distributed.weight_transfer." + name] = types.ModuleType(name)
        setattr(sys.modules["vllm.distributed.weight_transfer"], name, module)
        for key, value in globals().items():
            if inspect.isclass(value):
                setattr(module, key, value)
