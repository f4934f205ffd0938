# SPDX-License-Identifier: Apache-2.0
"""verl's checkpoint engine "crossmesh": weights stream from all actor ranks to all rollout ranks, bucket by bucket.

    actor_rollout_ref.rollout.checkpoint_engine.backend=crossmesh
    actor_rollout_ref.rollout.checkpoint_engine.custom_backend_module=crossmesh.adapters.verl

Elsewhere `register()` makes it known, and "crossmesh_delta", which sends only what has changed. Engines take what
verl's generators yield: whole tensors, which all actor ranks have and share the sending of, DTensors, which are sent as
the shards that they are, or shards with a ShardSpec, as `get_per_tensor_param_shard()` yields them. verl asks for those
where `export_shards(engine class)` was called.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import itertools
import json
import struct
import sys
from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from ..errors import InputError
from ..job import Job
from ..torch._describe import describe_tensor, dtype_name, dtype_of
from . import _meeting, _shard_specs
from ._weights import Change, WeightTransfer, close_quietly

BACKEND, DELTA = "crossmesh", "crossmesh_delta"
ALIGNMENT = 256
# Plans that a slot keeps; each has one of the job's message channels.
PLANS = 100
Named = list[tuple[str, torch.Tensor]]
NOWHERE = torch.empty(0, dtype=torch.int32)
# What each rank says of a bucket: its digest, whether it is the last, the trainer's step (-1: none).
CARD = struct.Struct("<16s?q")


@dataclass
class Entry:
    """A weight of a bucket, as all actor ranks see it."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    about: dict[str, Any] = field(default_factory=dict)  # as describe_tensor() has it

    def size(self) -> int:
        return int(torch.Size(self.shape).numel() * dtype_of(self.dtype).itemsize)


class Slot:
    """Memory for one bucket, and the plans that have used it, by what was in the bucket."""

    def __init__(self) -> None:
        self.memory = torch.empty(0, dtype=torch.uint8)
        self.plans: dict[bytes, tuple[WeightTransfer | None, dict[str, torch.Tensor]]] = {}

    def reserve(self, size: int, device: torch.device) -> None:
        if self.memory.numel() < size or self.memory.device != device:
            self.clear()
            self.memory = torch.empty(size, dtype=torch.uint8, device=device)

    def carve(self, parts: Iterable[tuple[str, tuple[int, ...], torch.dtype]]) -> dict[str, torch.Tensor]:
        offset, tensors = 0, {}
        for name, shape, dtype in parts:
            size = torch.Size(shape).numel() * dtype.itemsize
            tensors[name] = self.memory[offset : offset + size].view(dtype).view(shape)
            offset += -(-size // ALIGNMENT) * ALIGNMENT
        return tensors

    def forget(self, key: bytes | None) -> None:
        """That plan; else the oldest where there are many."""
        if key is None and len(self.plans) >= PLANS:
            key = next(iter(self.plans))
        transfer = self.plans.pop(key)[0] if key is not None else None
        if transfer is not None:
            transfer.close()

    def clear(self) -> None:
        while self.plans:
            self.forget(next(iter(self.plans)))
        self.memory = torch.empty(0, dtype=torch.uint8)


def _room(parts: Iterable[tuple[str, tuple[int, ...], torch.dtype]]) -> int:
    return sum(-(-torch.Size(shape).numel() * dtype.itemsize // ALIGNMENT) * ALIGNMENT for _, shape, dtype in parts)


class Engine:
    """`bucket_size` bytes of weights are moved at a time, while the next ones are gathered or the former ones loaded: a
    rank needs twice that, where it sends shards its share. A larger weight has a bucket of its own.

    `device`: where rollout ranks get the weights. `keep_buffers`: between updates, too, with the plans for them;
    `rebuild_group`: meet anew for every update. `timeout`: the deadline in seconds of every wait. `address`: this
    machine's, for the others.
    """

    update: str | None = None  # of WeightTransfer
    home: torch.device | None = None  # where weights lie on their way; None: where they come from, and `device`

    def __init__(
        self,
        bucket_size: int,
        is_master: bool = False,
        rebuild_group: bool = False,
        keep_buffers: bool = False,
        timeout: float = _meeting.TIMEOUT,
        device: str | None = None,
        address: str | None = None,
    ) -> None:
        self.bucket_size, self.is_master = bucket_size, is_master
        self._rebuild, self._keep, self._timeout = rebuild_group, keep_buffers, timeout
        self._device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        self._address = address
        self._store: Any = None
        self._meetings = itertools.count()
        self._job: Job | None = None
        self._member: list[Any] | None = None  # of which group: its name, this rank, its size
        self._temporary = False
        self._slots = Slot(), Slot()

    # The group -------------------------------------------------------------------------------------

    def prepare(self) -> dict[str, Any]:
        member = None if self._job is None or self._job.closed else self._member
        metadata: dict[str, Any] = {"member": member}
        if self.is_master:
            if self._store is None:
                self._address = self._address or _meeting.own_address()
                self._store = _meeting.open_store(self._address, 0, self._timeout)
            metadata["group"] = {
                "address": self._address,
                "port": self._store.port,
                "name": f"update {next(self._meetings)}",
            }
        return metadata

    def prepare_temporary(self) -> dict[str, Any]:
        self._leave()
        self._temporary = True
        return self.prepare()

    @classmethod
    def build_topology(
        cls, actor_wg_world_size: int, rollout_world_size: int, metadata: list[dict[str, Any]]
    ) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
        size = actor_wg_world_size + rollout_world_size
        groups = [about["group"] for about in metadata if about and "group" in about]
        if len(metadata) != size or len(groups) != 1:
            raise InputError(
                f"{len(metadata)} workers with {len(groups)} masters have prepared, where {actor_wg_world_size} actors "
                f"and {rollout_world_size} rollouts need one master"
            )
        members = [about.get("member") for about in metadata]
        first = members[0][0] if members[0] else None
        stays = first is not None and all(member == [first, rank, size] for rank, member in enumerate(members))

        def side(ranks: range) -> dict[str, list[Any]]:
            values = {"world_size": size, "senders": actor_wg_world_size, "group": None if stays else groups[0]}
            return {"rank": list(ranks), **{key: [value] * len(ranks) for key, value in values.items()}}

        return side(range(actor_wg_world_size)), side(range(actor_wg_world_size, size))

    def init_process_group(self, rank: int, world_size: int, senders: int, group: dict[str, Any] | None) -> None:
        """Joins the group that `build_topology()` has named; None: all are in one already."""
        self._senders = senders
        if group is None:
            return
        self._leave()
        store = self._store
        if store is None:
            store = _meeting.find_store(group["address"], group["port"], self._timeout)
        self._job = _meeting.join(store, group["name"], rank, world_size, timeout=self._timeout)
        self._member = [group["name"], rank, world_size]

    def finalize(self) -> None:
        if self._rebuild or self._temporary:
            self._leave()
        elif not self._keep:
            for slot in self._slots:
                slot.clear()
        self._temporary = False

    def _leave(self) -> None:
        for slot in self._slots:
            slot.clear()
        close_quietly(self._job, "this rank has left the checkpoint engine's group")
        self._job = self._member = None

    def _group(self) -> Job:
        if self._job is None:
            raise InputError("weights cannot be moved before init_process_group()")
        return self._job

    # The weights -----------------------------------------------------------------------------------

    async def send_weights(self, weights: Any, global_steps: int | None = None) -> None:
        job = self._group()
        if job.rank >= self._senders:
            raise InputError(f"rank {job.rank} is a rollout rank and receives weights")
        under_way: asyncio.Future[Any] | None = None
        try:
            for slot, (bucket, last) in zip(itertools.cycle(self._slots), self._buckets(weights)):
                own = self._pack(slot, bucket)
                if under_way is not None:
                    await under_way
                under_way = self._start(slot, [entry for entry, _ in bucket], own, last, global_steps)
            if under_way is not None:
                await under_way
        except BaseException as error:
            self._give_up(job, error)
            raise

    async def receive_weights(self, global_steps: int | None = None) -> AsyncIterator[tuple[str, torch.Tensor]]:
        """A bucket's tensors stay valid until one of the next bucket is asked for."""
        job = self._group()
        if job.rank < self._senders:
            raise InputError(f"rank {job.rank} is an actor rank and sends weights")
        try:
            slots = itertools.cycle(self._slots)
            received, last = await self._start(next(slots), [], {}, False, global_steps)
            while not last:
                under_way = self._start(next(slots), [], {}, False, global_steps)
                for pair in received.items():
                    yield pair
                received, last = await under_way
            for pair in received.items():
                yield pair
        except BaseException as error:
            self._give_up(job, error)
            raise

    def _start(self, *arguments: Any) -> asyncio.Future[tuple[dict[str, torch.Tensor], bool]]:
        """A bucket's way, in a thread, so that others get on; one after the other."""
        return asyncio.get_running_loop().run_in_executor(None, functools.partial(self._exchange, *arguments))

    def _give_up(self, job: Job, error: BaseException) -> None:
        close_quietly(job, f"{type(error).__name__}: {error}")

    def _buckets(
        self, weights: Iterable[tuple[str, torch.Tensor] | tuple[str, torch.Tensor, Any]]
    ) -> Iterator[tuple[list[tuple[Entry, torch.Tensor]], bool]]:
        """Weights by their whole size, so that all ranks make the same; the last with a mark."""
        bucket: list[tuple[Entry, torch.Tensor]] = []
        filled = 0
        specs = _shard_specs.ShardSpecs()
        for name, tensor, *spec in weights:
            if spec:
                about, tensor = specs.describe(name, tensor, *spec)
            else:
                about = describe_tensor(name, tensor)
            entry = Entry(name, tuple(about["shape"]), about["dtype"], about)
            if bucket and filled + entry.size() > self.bucket_size:
                specs.settle()
                yield bucket, False
                bucket, filled = [], 0
            bucket.append((entry, tensor))
            filled += entry.size()
        specs.settle()
        yield bucket, True

    def _pack(self, slot: Slot, bucket: list[tuple[Entry, torch.Tensor]]) -> dict[str, torch.Tensor]:
        """This rank's parts in the slot's memory."""
        if not bucket:
            return {}
        local = {e.name: (t.to_local() if isinstance(t, DTensor) else t).detach() for e, t in bucket}
        parts = [(name, tuple(tensor.shape), tensor.dtype) for name, tensor in local.items()]
        slot.reserve(_room(parts), self.home or bucket[0][1].device)
        own = slot.carve(parts)
        for name, tensor in local.items():
            own[name].copy_(tensor)
        if slot.memory.is_cuda:
            torch.cuda.current_stream().synchronize()  # another thread sends, on another stream
        return own

    def _exchange(
        self, slot: Slot, entries: list[Entry], own: dict[str, torch.Tensor], last: bool, step: int | None
    ) -> tuple[dict[str, torch.Tensor], bool]:
        """One bucket. Collective. What rollout ranks got of it, and whether it was the last."""
        job = self._group()
        text = json.dumps([[entry.name, entry.about] for entry in entries], separators=(",", ":")).encode()
        card = CARD.pack(hashlib.blake2b(text, digest_size=16).digest(), last, -1 if step is None else step)
        cards = [CARD.unpack(other) for other in job._allgather_fixed(card, CARD.size)]
        key, last, _ = cards[0]
        for rank, (digest, ends, _) in enumerate(cards[: self._senders]):
            if digest != key or ends != last:
                raise InputError(f"actor rank {rank} sends other weights than rank 0, or in another order")
        steps = {number: rank for rank, (_, _, number) in enumerate(cards) if number >= 0}
        if len(steps) > 1:
            (one, some), (other, someone) = sorted(steps.items())[:2]
            raise InputError(f"rank {some} is at step {one} and rank {someone} at step {other}")
        # A rank whose memory has moved has no plan any more.
        if b"\0" in job._allgather_fixed(bytes([key in slot.plans]), 1):
            self._plan(job, slot, key, text, own, {entry.name: entry.about for entry in entries})
        transfer, received = slot.plans[key]
        if transfer is not None:
            transfer.run()
        return received, last

    def _plan(
        self,
        job: Job,
        slot: Slot,
        key: bytes,
        text: bytes,
        own: dict[str, torch.Tensor],
        about: dict[str, dict[str, Any]],
    ) -> None:
        told = json.loads(job.allgather(text if job.rank == 0 else b"")[0])
        for other in [*slot.plans] if self.update else [key if key in slot.plans else None]:
            slot.forget(other)  # an update has the slot for itself
        received: dict[str, torch.Tensor] = {}
        if job.rank >= self._senders and told:
            parts = [(name, tuple(about["shape"]), dtype_of(about["dtype"])) for name, about in told]
            slot.reserve(_room(parts), self.home or self._device)
            received = slot.carve(parts)
        transfer = WeightTransfer(job, own, received, about=about, update=self.update) if told else None
        slot.plans[key] = transfer, received


class DeltaEngine(Engine):
    """Sends what has changed since the last update, as shards, and yields it on rollout ranks as verl's delta flushes,
    of `bucket_size` bytes or one weight: all values after a group was made, later places and values, and nothing where
    nothing has changed.

    An actor rank keeps a copy of its shards and a shadow of that, a rollout rank a copy of the weights, in host memory.
    """

    wire_format = "delta_flush"
    update = "auto"
    home = torch.device("cpu")

    def __init__(self, bucket_size: int, *args: Any, **options: Any) -> None:
        super().__init__(bucket_size, *args, **{**options, "keep_buffers": True})
        self._flush_size, self.bucket_size = bucket_size, sys.maxsize

    def receive_weights(self, global_steps: int | None = None) -> Iterator[tuple[Named, bool]]:  # type: ignore[override]
        job, slot = self._group(), self._slots[0]
        if job.rank < self._senders:
            raise InputError(f"rank {job.rank} is an actor rank and sends weights")
        try:
            received, _ = self._exchange(slot, [], {}, False, global_steps)
            transfer = next(iter(slot.plans.values()))[0]
            if transfer is None:
                return
            if all(commit.everything for commit in transfer.commits):
                whole = [Change(n, tuple(t.shape), NOWHERE, t.reshape(-1)) for n, t in received.items()]
                flushes = [(batch, True) for batch in self._batches(whole)]
            else:
                flushes = [(batch, False) for batch in self._batches(transfer.changed())]
            for number, (batch, dense) in enumerate(flushes, 1):
                yield self._flush(batch, dense), number == len(flushes)
        except BaseException as error:
            self._give_up(job, error)
            raise

    def _batches(self, changes: Iterable[Change]) -> Iterator[list[Change]]:
        """Of one dtype each."""
        batch: list[Change] = []
        filled = 0
        for change in sorted(changes, key=lambda change: str(change.values.dtype)):
            size = change.places.nbytes + change.values.nbytes
            if batch and (filled + size > self._flush_size or change.values.dtype != batch[0].values.dtype):
                yield batch
                batch, filled = [], 0
            batch.append(change)
            filled += size
        if batch:
            yield batch

    def _flush(self, batch: list[Change], dense: bool) -> Named:
        from verl.checkpoint_engine.delta_sync import DeltaParam, checksum

        params, at = [], 0
        for name, shape, places, change in batch:
            end, width = at + change.numel(), places.element_size()
            where = (0, 0) if dense else (at * width, end * width)
            params.append(vars(DeltaParam(name, dtype_name(change.dtype), list(shape), *where, width, at, end)))
            at = end
        values = torch.cat([change.values for change in batch]).to(self._device)
        positions = torch.cat([change.places for change in batch]).view(torch.uint8).to(self._device)
        spec = {"encoding": "dense" if dense else "indices", "params": params, "checksum": checksum(positions, values)}
        text = torch.frombuffer(bytearray(json.dumps(spec).encode()), dtype=torch.uint8).to(self._device)
        named = [("__delta_spec__", text), ("__positions__", positions), ("__values__", values)]
        return [pair for pair in named if not dense or pair[1] is not positions]


@functools.cache
def _engines() -> dict[str, type]:
    try:
        from verl.checkpoint_engine.base import CheckpointEngine
    except ImportError as error:
        raise ImportError(
            f"crossmesh.adapters.verl needs verl to derive from its checkpoint engine: {error}"
        ) from error

    def engine(name: str, own: type) -> type:
        return type(name, (own, CheckpointEngine), {"__module__": __name__, "__doc__": own.__doc__})

    return {
        "CheckpointEngine": engine("CheckpointEngine", Engine),
        "DeltaCheckpointEngine": engine("DeltaCheckpointEngine", DeltaEngine),
    }


def __getattr__(name: str) -> Any:
    if name in ("CheckpointEngine", "DeltaCheckpointEngine"):
        return _engines()[name]
    raise AttributeError(f"module {__name__} has no attribute {name}")


def export_shards(engine: type) -> None:
    """Makes model engines of that class (verl's FSDPEngine, or one of your own) yield shards where verl asks for
    weights to send, instead of gathering each of them on all ranks."""
    gathers: Any = engine.get_per_tensor_param  # type: ignore[attr-defined]

    @functools.wraps(gathers)
    def export(self: Any, **options: Any) -> Any:
        # Colocated rollouts ask with options, and load whole tensors.
        return gathers(self, **options) if options else self.get_per_tensor_param_shard()

    engine.get_per_tensor_param = export  # type: ignore[attr-defined]


def register() -> None:
    """Makes the backends "crossmesh" and "crossmesh_delta" known to verl. May be called again."""
    engines = _engines()
    from verl.checkpoint_engine.base import CheckpointEngineRegistry

    CheckpointEngineRegistry.register(BACKEND)(engines["CheckpointEngine"])
    CheckpointEngineRegistry.register(DELTA)(engines["DeltaCheckpointEngine"])


# verl imports the module that its option custom_backend_module names, and expects to find the backend registered then.
if "verl.checkpoint_engine.base" in sys.modules:
    register()
