# SPDX-License-Identifier: Apache-2.0
"""vLLM's weight transfer backend "crossmesh": shards of the trainers go to where the workers' models keep them.

In the serving processes (`pip install` registers it as a plugin of vLLM; otherwise call `register()`):

    llm = LLM(model, weight_transfer_config=WeightTransferConfig(backend="crossmesh"))

In every process of the trainer:

    info = crossmesh.adapters.vllm.TrainerInitInfo(
        address, port, trainer_world_size=8, inference_world_size=4, rank=rank)
    source = crossmesh.adapters.vllm.ShardSource(model, dtype=torch.bfloat16)
    engine = WeightTransferTrainerFactory.trainer_init(info, client=client, source=source)
    engine.send_weights()                                              # after every update, on all ranks

The classes of this module derive from vLLM's, and are made when they are first asked for.
"""

from __future__ import annotations

import dataclasses
import functools
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from ..errors import InputError
from ..job import Job
from ..torch._describe import describe_tensor, dtype_name, dtype_of
from . import _meeting, _reload
from ._control import Call
from ._weights import WeightTransfer, close_quietly, receiving

BACKEND = "crossmesh"
FIELDS: list[Any] = [
    ("master_address", str),
    ("master_port", int),
    ("trainer_world_size", int),
    ("inference_world_size", int),
    ("timeout", float, dataclasses.field(default=_meeting.TIMEOUT)),
    ("update", str, dataclasses.field(default="")),  # "auto": only what has changed is sent
]
Tensors = Mapping[str, torch.Tensor]


class _Endpoint:
    """What both sides have."""

    _job: Job | None = None
    _transfer: WeightTransfer | None = None
    _version = 0

    def _ready(self) -> WeightTransfer:
        if self._transfer is None:
            raise InputError("weights cannot be transferred before the engine is initialised, nor after its shutdown")
        return self._transfer

    def shutdown(self) -> None:
        if self._transfer is not None:
            self._transfer.close()
            self._transfer = None
        close_quietly(self._job, "the weight transfer engine of this rank was shut down")
        self._job = None


class Worker(_Endpoint):
    """vLLM's side, one in every worker. The parts of weights that its model keeps are written into the parameters in
    place; where vLLM has processed those, it does so again."""

    supports_draft_weight_update = False
    init_info_cls: ClassVar[type]
    update_info_cls: ClassVar[type]
    model: Any
    model_config: Any
    device: torch.device
    _reloader: _reload.Reloader | None = None

    def init_transfer_engine(self, init_info: Any) -> None:
        store = _meeting.find_store(init_info.master_address, init_info.master_port, init_info.timeout)
        # Workers take the last ranks as they come: replicas that know nothing of each other need no numbers.
        size = init_info.trainer_world_size + init_info.inference_world_size
        self._job = _meeting.join(store, "weights", -1, size, timeout=init_info.timeout)
        self._version = 0
        try:
            if _reload.needed(self.model):
                self._reloader = _reload.Reloader(self.model, self.model_config, self.device)
            dst = self._reloader or receiving(self.model.load_weights, self.model)
            self._transfer = WeightTransfer(self._job, dst=dst, update=init_info.update or None)
        except Exception as error:
            close_quietly(self._job, str(error))
            raise

    def start_weight_update(self) -> None:
        self._ready()

    def receive_weights(self, update_info: Any) -> None:
        transfer = self._ready()
        if update_info.version != self._version + 1:
            raise InputError(
                f"the trainer sends version {update_info.version} of the weights where {self._version + 1} is the next"
            )
        transfer.run()
        transfer.settle()
        if self._reloader is not None:
            self._reloader.reload()
        self._version = update_info.version

    def finish_weight_update(self) -> None:
        self._ready()


class Trainer(_Endpoint):
    """The trainer's side, one on every rank; rank 0 talks to vLLM."""

    init_info_cls: ClassVar[type]
    client: Any
    is_sender: bool
    _wire: Wire
    _timeout: float

    @classmethod
    def trainer_init(cls, init_info: Any, *, client: Any, source: Any = None) -> Any:
        wire = Wire(source)
        engine: Any = cls(client=client, source=source, is_sender=init_info.is_sender)  # type: ignore[call-arg]
        engine.rank = init_info.rank  # which vLLM before 0.33 does not keep
        engine._open(init_info, wire)
        return engine

    def _open(self, info: Any, wire: Wire) -> None:
        call: Call | None = None
        failure: BaseException | None = None
        self._timeout, self._wire = info.timeout, wire
        size = info.trainer_world_size + info.inference_world_size
        if self.is_sender:
            store = _meeting.open_store(info.master_address, info.master_port, info.timeout)
            call = Call(self.client.init_weight_transfer_engine, {name: getattr(info, name) for name, *_ in FIELDS})
        else:
            store = _meeting.find_store(info.master_address, info.master_port, info.timeout)
        try:
            watch = call.check if call is not None else None
            self._job = _meeting.join(store, "weights", info.rank, size, timeout=info.timeout, watch=watch)
            if call is not None:
                call.ends_with(self._job)
            self._transfer = WeightTransfer(self._job, wire.tensors, about=wire.about, update=info.update or None)
        except Exception as error:
            failure = error
        self._end(call, failure)

    def _end(self, call: Call | None, failure: BaseException | None) -> None:
        """After this rank's part: what it raised, or what the other side has answered."""
        try:
            if call is not None:
                call.wait(self._timeout, failure)
            if failure is not None:
                raise failure
        except BaseException as error:
            # A rank that goes on with the others in doubt would leave them waiting.
            close_quietly(self._job, f"{type(error).__name__}: {error}")
            raise

    def send_weights(self) -> None:
        transfer = self._ready()
        self._version += 1
        call: Call | None = None
        failure: BaseException | None = None
        try:
            self._wire.refresh()
            if self.is_sender:
                self.client.start_weight_update()
                call = Call(self.client.update_weights, {"version": self._version})
                call.ends_with(transfer.job)
            transfer.run()
            transfer.settle()
        except Exception as error:
            failure = error
        self._end(call, failure)
        if self.is_sender:
            self.client.finish_weight_update()


class Wire:
    """What a source's rank has of the weights, always in the same memory, from which it is sent."""

    def __init__(self, source: Any) -> None:
        self.about: dict[str, dict[str, Any]] = {}
        if isinstance(source, Shards):
            self._now: Callable[[], Iterator[tuple[str, torch.Tensor]]] = source.shards
            self.about = {name: describe_tensor(name, tensor) for name, tensor in source.now().items()}
        elif getattr(source, "implements_iter_local", bool)():
            self._now = source.iter_local
            self.about = {meta.name: _described(meta) for meta in source.metadata}
        else:
            raise InputError(
                f"the source is a {type(source).__name__}, which has no iter_local(): the backend {BACKEND} sends "
                "shards, as vLLM's ModuleSource(model) or crossmesh.adapters.vllm.ShardSource(model) have them"
            )
        self.tensors = {name: tensor.detach() for name, tensor in self._now()}

    def refresh(self) -> None:
        """Takes over what the weights are now: those that have been made anew."""
        seen = set()
        with torch.no_grad():
            for name, tensor in self._now():
                kept = self.tensors.get(name)
                seen.add(name)
                if kept is None or kept.shape != tensor.shape or kept.dtype != tensor.dtype:
                    before = "not there" if kept is None else f"{tuple(kept.shape)} {kept.dtype}"
                    raise InputError(f"{name}: in the first version {before}, now {tuple(tensor.shape)} {tensor.dtype}")
                if kept.data_ptr() != tensor.data_ptr():
                    kept.copy_(tensor)
        for name in sorted(self.tensors.keys() - seen):
            raise InputError(f"{name}: there in the first version, now no more")


def _described(meta: Any) -> dict[str, Any]:
    """vLLM's ParamMeta as describe_tensor() would have it."""
    entry = {"shape": list(meta.shape), "dtype": dtype_name(meta.dtype)}
    if meta.owners is not None and meta.placements is not None:
        entry["mesh"], entry["ranks"] = list(meta.mesh_shape), list(meta.owners)
        entry["placements"] = [["S", p.dim, 1, -1] if hasattr(p, "dim") else "R" for p in meta.placements]
    return entry


class Shards:
    """A trainer's weights as they lie: `ShardSource(model)`, `ShardSource({name: tensor})` with the names that the
    serving model loads, or a function that gives such a dictionary for every version; the first one's tensors are kept
    then, and filled anew for each.

    Tensors are DTensors, or whole on each rank that has them; a rank has those of its pipeline stage. Floating-point
    weights become what the serving model stores on their way; `dtype` is for vLLM's other backends, which want to be told
    before. Ranks of meshes are those of torch's default group, and have to be the trainer's.
    """

    def __init__(
        self, weights: torch.nn.Module | Tensors | Callable[[], Tensors], dtype: torch.dtype | None = None
    ) -> None:
        self._weights, self._dtype = weights, dtype

    def now(self) -> Tensors:
        if isinstance(self._weights, torch.nn.Module):
            return dict(self._weights.named_parameters())
        return self._weights() if callable(self._weights) else self._weights

    def _sent_as(self, tensor: torch.Tensor) -> torch.dtype:
        return self._dtype if self._dtype is not None and tensor.is_floating_point() else tensor.dtype

    def about(self) -> dict[str, dict[str, Any]]:
        """Of this rank's weights, as crossmesh has it: _StridedShard too."""
        described = {}
        for name, tensor in self.now().items():
            described[name] = describe_tensor(name, tensor)
            described[name]["dtype"] = dtype_name(self._sent_as(tensor))
        return described

    def shards(self) -> Iterator[tuple[str, torch.Tensor]]:
        """What this rank has, as it is."""
        for name, tensor in self.now().items():
            if not isinstance(tensor, DTensor):
                yield name, tensor.detach()
            elif tensor.device_mesh.get_coordinate() is not None:
                yield name, tensor.to_local().detach()

    def iter_local(self) -> Iterator[tuple[str, torch.Tensor]]:
        for name, tensor in self.shards():
            yield name, tensor.to(self._sent_as(tensor))

    # What else vLLM's WeightSource has, for its other backends: the first two since 0.33, the others before it.

    metadata: Any = functools.cached_property(lambda self: self._everyone)

    def iter_full(self) -> Iterator[tuple[str, torch.Tensor]]:
        return ((name, tensor) for name, tensor in self if tensor is not None)

    def held_names(self) -> list[str] | None:
        own = self.now()
        return None if len(own) == len(self._everyone) else list(own)

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor | None]]:
        """Whole tensors, gathered one at a time by torch; None for those of which this rank has no part."""
        now = self.now()
        for meta in self._everyone:
            tensor = now.get(meta.name)
            if isinstance(tensor, DTensor):
                tensor = None if tensor.device_mesh.get_coordinate() is None else tensor.full_tensor()
            yield meta.name, None if tensor is None else tensor.detach().to(meta.dtype)

    @functools.cached_property
    def _everyone(self) -> list[Any]:
        """The metadata of all ranks' weights. Collective the first time."""
        everyone: list[Any] = [self.about()]
        if dist.is_initialized():
            everyone = [None] * dist.get_world_size()
            dist.all_gather_object(everyone, self.about())
        entries: dict[str, tuple[dict[str, Any], list[int]]] = {}
        for rank, described in enumerate(everyone):
            for name, entry in described.items():
                entries.setdefault(name, (entry, []))[1].append(rank)
        return [_meta(name, entry, ranks) for name, (entry, ranks) in entries.items()]


def _meta(name: str, entry: dict[str, Any], ranks: list[int]) -> Any:
    from vllm.distributed.weight_transfer import base

    shape, dtype = tuple(entry["shape"]), dtype_of(entry["dtype"])
    if not hasattr(base, "Shard"):
        return base.ParamMeta(name, dtype, shape)
    if "mesh" not in entry:
        return base.ParamMeta(name, dtype, shape, owners=tuple(ranks))
    placements = []
    for placement in entry["placements"]:
        if placement != "R" and placement[2] != 1:
            raise InputError(f"{name} has a _StridedShard, of which vLLM's metadata cannot tell other backends")
        placements.append(base.Replicate() if placement == "R" else base.Shard(placement[1] % len(shape)))
    return base.ParamMeta(
        name, dtype, shape, owners=tuple(entry["ranks"]), mesh_shape=tuple(entry["mesh"]), placements=tuple(placements)
    )


@functools.cache
def _classes() -> dict[str, type]:
    try:
        from vllm.distributed.weight_transfer import base
    except ImportError as error:
        raise ImportError(f"crossmesh.adapters.vllm needs vLLM to derive from its engines: {error}") from error
    if not hasattr(base, "WeightSource"):
        import vllm

        raise ImportError(
            "crossmesh.adapters.vllm needs a vLLM with weight sources (weight_transfer.base.WeightSource), as 0.32 "
            f"has; this is {vllm.__version__}"
        )
    before_033 = {} if hasattr(base.WeightSource, "iter_local") else {"metadata": lambda source: source._everyone}

    def data(name: str, parent: type, fields: list[Any], **namespace: Any) -> type:
        return dataclasses.make_dataclass(
            name, fields, bases=(parent,), namespace={"__module__": __name__, **namespace}
        )

    init = data("InitInfo", base.WeightTransferInitInfo, FIELDS)
    update = data("UpdateInfo", base.WeightTransferUpdateInfo, [("version", int)])
    trainer_init = data("TrainerInitInfo", base.TrainerInitInfo, FIELDS, backend=BACKEND)

    def engine(name: str, own: type, parent: type, **namespace: Any) -> type:
        return type(name, (own, parent), {"__module__": __name__, "__doc__": own.__doc__, **namespace})

    return {
        "InitInfo": init,
        "UpdateInfo": update,
        "TrainerInitInfo": trainer_init,
        "WorkerEngine": engine(
            "WorkerEngine", Worker, base.WeightTransferEngine, init_info_cls=init, update_info_cls=update
        ),
        "TrainerEngine": engine("TrainerEngine", Trainer, base.TrainerWeightTransferEngine, init_info_cls=trainer_init),
        "ShardSource": engine("ShardSource", Shards, base.WeightSource, **before_033),
    }


def __getattr__(name: str) -> Any:
    if name in ("InitInfo", "UpdateInfo", "TrainerInitInfo", "WorkerEngine", "TrainerEngine", "ShardSource"):
        return _classes()[name]
    raise AttributeError(f"module {__name__} has no attribute {name}")


def patches(transfer: WeightTransfer) -> list[Any]:
    """What a transfer with update="auto" has just brought here, as vLLM's backend "sparse_nccl" sends it: for trainers
    whose sender keeps whole weights, and gets what has changed of them from the ranks that have shards."""
    from vllm.distributed.weight_transfer.sparse_nccl_engine import SparseWeightPatch

    return [
        SparseWeightPatch(name=name, indices=places, values=values, full_shape=shape)
        for name, shape, places, values in transfer.changed()
    ]


def register() -> None:
    """Makes the backend "crossmesh" known to both of vLLM's factories. May be called again."""
    classes = _classes()
    from vllm.distributed.weight_transfer import factory

    for registry, name in (
        (factory.WeightTransferEngineFactory, "WorkerEngine"),
        (factory.WeightTransferTrainerFactory, "TrainerEngine"),
    ):
        if BACKEND not in registry._registry:
            registry.register_engine(BACKEND, classes[name])


def plugin() -> None:
    """What vLLM calls where crossmesh is installed. Programs that do not want it are not kept from starting."""
    try:
        register()
    except ImportError as error:
        warnings.warn(str(error), stacklevel=2)
