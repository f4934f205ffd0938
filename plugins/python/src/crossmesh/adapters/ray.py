# SPDX-License-Identifier: Apache-2.0
"""Ray's tensor transport "crossmesh": objects of actors go from actor to actor by crossmesh's transport.

In the driver, before the actors are made:

    crossmesh.adapters.ray.register()
    actors = [Worker.remote() for _ in range(4)]           # @ray.remote(enable_tensor_transport=True)
    crossmesh.adapters.ray.create_group(actors)            # their methods: @ray.method(tensor_transport="crossmesh")

Inside an actor `group_job()` is the group's Job: with it a `WeightTransfer` moves whole models between actors that hold
them in shards.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import threading
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, NamedTuple

import torch

from ..errors import AbortedError, InputError
from ..job import Job
from ..torch.backend import Flow, ProcessGroupCrossmesh, Script, _Memory
from . import _meeting
from ._weights import WeightTransfer

__all__ = ["WeightTransfer", "create_group", "destroy_group", "group_job", "register"]

TRANSPORT = "CROSSMESH"  # Ray's names are in capitals
# A message's number: that of the transfer, and in it that of the tensor.
TENSOR_BITS = 14
TRANSFER_BITS = 25  # below the numbers of collectives


class Group(NamedTuple):
    """What the driver knows of a group."""

    name: str
    ranks: dict[str, int]  # by the actor's id


class _Slot:
    """An actor's part in its group."""

    def __init__(self, store: Any, name: str, rank: int, size: int, timeout: float) -> None:
        job = _meeting.join(store, name, rank, size, timeout=timeout, progress_thread=True)
        self.messages = ProcessGroupCrossmesh(job, rank, size, timedelta(seconds=timeout), name)
        self.flows: dict[int, Flow] = {}
        self.aborted: set[int] = set()
        self.lock = threading.Lock()


_groups: dict[str, Group] = {}
_slots: dict[str, _Slot] = {}


class Transport:
    """Tensors in host memory. Both actors take part; a transfer that Ray gives up ends on both; the group goes on."""

    def __init__(self) -> None:
        self._transfers = int.from_bytes(os.urandom(4), "little")

    def tensor_transport_backend(self) -> str:
        return TRANSPORT

    @staticmethod
    def is_one_sided() -> bool:
        return False

    @staticmethod
    def can_abort_transport() -> bool:
        return True

    def actor_has_tensor_transport(self, actor: Any) -> bool:
        return any(_id(actor) in group.ranks for group in _groups.values())

    def extract_tensor_transport_metadata(self, obj_id: str, rdt_object: Sequence[torch.Tensor]) -> Any:
        kinds = {tensor.device.type for tensor in rdt_object}
        if kinds - {"cpu"}:
            raise InputError(f"transport {TRANSPORT} moves tensors in host memory, not on {', '.join(sorted(kinds))}")
        return _classes()["TransportMetadata"](
            tensor_meta=[(tensor.shape, tensor.dtype) for tensor in rdt_object],
            tensor_device="cpu" if kinds else None,
        )

    def get_communicator_metadata(self, src_actor: Any, dst_actor: Any, backend: str | None = None) -> Any:
        for group in _groups.values():
            if _id(src_actor) in group.ranks and _id(dst_actor) in group.ranks:
                self._transfers += 1
                return _classes()["CommunicatorMetadata"](
                    group=group.name,
                    src_rank=group.ranks[_id(src_actor)],
                    dst_rank=group.ranks[_id(dst_actor)],
                    transfer=self._transfers % (1 << TRANSFER_BITS),
                )
        raise InputError(
            f"actors {_id(src_actor)} and {_id(dst_actor)} are in no group of transport {TRANSPORT}: call "
            "crossmesh.adapters.ray.create_group() with both in this process"
        )

    def send_multiple_tensors(
        self, tensors: Sequence[torch.Tensor], tensor_transport_metadata: Any, communicator_metadata: Any
    ) -> None:
        about = communicator_metadata
        self._move(about, [_Memory(tensor) for tensor in tensors], about.dst_rank, sends=True)

    def recv_multiple_tensors(
        self,
        obj_id: str,
        tensor_transport_metadata: Any,
        communicator_metadata: Any,
        target_buffers: Sequence[torch.Tensor] | None = None,
    ) -> list[torch.Tensor]:
        meta = tensor_transport_metadata.tensor_meta
        tensors = list(target_buffers or [torch.empty(shape, dtype=dtype) for shape, dtype in meta])
        for tensor, (shape, dtype) in zip(tensors, meta, strict=True):
            if tuple(tensor.shape) != tuple(shape) or tensor.dtype != dtype:
                raise InputError(
                    f"object {obj_id}: a buffer of {tuple(tensor.shape)} {tensor.dtype} for a tensor of {tuple(shape)} "
                    f"{dtype}"
                )
        self._move(communicator_metadata, [_Memory(tensor) for tensor in tensors], communicator_metadata.src_rank)
        return tensors

    def _move(self, about: Any, memories: Sequence[_Memory], peer: int, sends: bool = False) -> None:
        if len(memories) > 1 << TENSOR_BITS:
            raise InputError(f"an object of {len(memories)} tensors; transport {TRANSPORT} moves {1 << TENSOR_BITS}")
        slot = _slot(about.group)
        first = about.transfer << TENSOR_BITS
        post = slot.messages._send if sends else slot.messages._receive

        def script() -> Script:
            messages: list[int] = []
            for number, memory in enumerate(memories):
                messages += post(peer, first + number, memory.address, memory.size)
            yield messages
            for memory in memories if not sends else ():
                memory.unpack()

        with slot.lock:
            if about.transfer in slot.aborted:
                slot.aborted.discard(about.transfer)
                raise _given_up(about)
            work = slot.messages._begin(script())
            (slot.flows[about.transfer],) = work._flows
        try:
            work.wait()
        finally:
            with slot.lock:
                del slot.flows[about.transfer]

    def garbage_collect(self, obj_id: str, tensor_transport_meta: Any, tensors: Sequence[torch.Tensor]) -> None:
        """Nothing is kept for an object."""

    def abort_transport(self, obj_id: str, communicator_metadata: Any) -> None:
        """Ends the transfer on this actor, also if it has not begun here."""
        about = communicator_metadata
        slot = _slots.get(about.group)
        if slot is None:
            return
        with slot.lock:
            flow = slot.flows.get(about.transfer)
            if flow is None:
                slot.aborted.add(about.transfer)
        if flow is not None:
            with flow._job._slot():
                if not flow.done:
                    flow._finish(_given_up(about))


def _given_up(about: Any) -> AbortedError:
    return AbortedError(f"Ray has given up the transfer from rank {about.src_rank} to rank {about.dst_rank}")


def _id(actor: Any) -> str:
    return str(actor._actor_id.hex())


def _slot(name: str) -> _Slot:
    if name not in _slots:
        raise InputError(f"this actor is not in group {name}: create_group() makes it")
    return _slots[name]


# Groups --------------------------------------------------------------------------------------------


def _open(_actor: Any, name: str, timeout: float) -> tuple[str, int]:
    """On rank 0: where the others will meet it."""
    import ray

    address = ray.util.get_node_ip_address().strip("[]")
    store = _meeting.open_store(address, 0, timeout)
    _opened[name] = store
    return address, int(store.port)


_opened: dict[str, Any] = {}


def _join(_actor: Any, name: str, address: str, port: int, rank: int, size: int, timeout: float) -> None:
    _leave(_actor, name)
    store = _opened.pop(name, None)
    if store is None:
        store = _meeting.find_store(address, port, timeout)
    _slots[name] = _Slot(store, name, rank, size, timeout)


def _leave(_actor: Any, name: str) -> None:
    slot = _slots.pop(name, None)
    if slot is not None and not slot.messages._job.closed:
        slot.messages._job.close("this actor leaves its group")


def create_group(actors: Sequence[Any], name: str = "crossmesh", timeout: float = _meeting.TIMEOUT) -> None:
    """Makes the actors a group, ranks in this order; called in the driver. A former group of that name is left, which
    is how actors that were restarted get in again. `timeout`: the deadline in seconds of every wait."""
    import ray

    _classes()
    address, port = ray.get(actors[0].__ray_call__.remote(_open, name, timeout), timeout=timeout)
    calls = [
        actor.__ray_call__.remote(_join, name, address, port, rank, len(actors), timeout)
        for rank, actor in enumerate(actors)
    ]
    ray.get(calls, timeout=timeout)
    _groups[name] = Group(name, {_id(actor): rank for rank, actor in enumerate(actors)})


def destroy_group(actors: Sequence[Any], name: str = "crossmesh") -> None:
    import ray

    _groups.pop(name, None)
    ray.get([actor.__ray_call__.remote(_leave, name) for actor in actors])


def group_job(name: str = "crossmesh") -> Job:
    """Inside an actor: the job of its group."""
    return _slot(name).messages._job


# Ray's classes -------------------------------------------------------------------------------------


@functools.cache
def _classes() -> dict[str, type]:
    try:
        from ray.experimental import register_tensor_transport  # noqa: F401
        from ray.experimental.rdt import tensor_transport_manager as base
    except ImportError as error:
        raise ImportError(
            f"crossmesh.adapters.ray needs a Ray with custom tensor transports (ray.experimental.rdt): {error}"
        ) from error

    def data(name: str, parent: type, fields: list[Any]) -> type:
        return dataclasses.make_dataclass(name, fields, bases=(parent,), namespace={"__module__": __name__})

    fields: list[Any] = [("group", str, ""), ("src_rank", int, 0), ("dst_rank", int, 0), ("transfer", int, 0)]
    return {
        "TransportMetadata": data("TransportMetadata", base.TensorTransportMetadata, []),
        "CommunicatorMetadata": data("CommunicatorMetadata", base.CommunicatorMetadata, fields),
        "TensorTransport": type(
            "TensorTransport",
            (Transport, base.TensorTransportManager),
            {"__module__": __name__, "__doc__": Transport.__doc__},
        ),
    }


def __getattr__(name: str) -> Any:
    if name in ("TransportMetadata", "CommunicatorMetadata", "TensorTransport"):
        return _classes()[name]
    raise AttributeError(f"module {__name__} has no attribute {name}")


def register() -> None:
    """Makes the transport "crossmesh" known to Ray; in the driver, before the actors that use it are made. May be
    called again."""
    transport = _classes()["TensorTransport"]
    from ray.experimental import register_tensor_transport
    from ray.experimental.rdt import util

    if TRANSPORT not in util.transport_manager_info:
        register_tensor_transport(TRANSPORT, ["cpu"], transport, torch.Tensor)
