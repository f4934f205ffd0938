# SPDX-License-Identifier: Apache-2.0
"""Arrays that go from one compiled program to another, on other devices, while both run."""

from __future__ import annotations

import atexit
import ctypes
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from ..errors import CrossmeshError, InputError
from ..job import Job
from ..plan import Plan, TensorSpec
from ..reshard import Reshard
from . import _xla
from ._devices import Devices
from ._sharding import Placed

_made = 0


class _Slots:
    """A job whose workers belong to the threads that serve programs."""

    def __init__(self, timeout: float | None) -> None:
        _xla.register()
        self.devices = Devices("cpu", timeout=timeout)
        self.slots: dict[int, ctypes.c_void_p] = {}
        for job in self.devices.jobs:
            slot = ctypes.c_void_p()
            _xla.lib.xm_xla_slot_open(job._worker, slot)
            self.slots[job.rank] = slot
        atexit.register(shutdown_programs)  # before the jobs are left

    def close(self) -> None:
        for slot in self.slots.values():
            _xla.lib.xm_xla_slot_close(slot)
        self.slots.clear()
        self.devices.close()


_slots: _Slots | None = None
_transfers: list[Transfer] = []


def shutdown_programs() -> None:
    """Closes all transfers and leaves their job. Collective."""
    global _slots
    for transfer in list(_transfers):
        transfer.close()
    slots, _slots = _slots, None
    if slots is not None:
        slots.close()


def _shard_map(function: Any, mesh: Any, in_specs: Any, out_specs: Any) -> Any:
    if hasattr(jax, "shard_map"):
        return jax.shard_map(function, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False)
    from jax.experimental.shard_map import shard_map

    return shard_map(function, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_rep=False)


class Transfer:
    """One array's way from programs on one mesh to programs on another: made once, by all processes, used in each run.

        hidden = crossmesh.jax.Transfer((8, 512), "float32", src=on_stage_0, dst=on_stage_1)

        @jax.jit
        def stage_0(weights, batch): return hidden.send(batch @ weights)

        @jax.jit
        def stage_1(weights): return hidden.receive() @ weights

    `src` and `dst` are NamedShardings without a common device. The n-th send of a run meets the n-th receive. Sending and
    receiving go on while the programs compute what does not depend on them. Calls of one transfer inside one program
    come in order when the ticket of one is given to the next as `after`.
    """

    def __init__(
        self,
        shape: Sequence[int],
        dtype: Any,
        src: NamedSharding,
        dst: NamedSharding,
        *,
        timeout: float | None = None,
        strategy: str = "auto",
        scheduler: str = "auto",
        profile: str | None = None,
    ) -> None:
        global _slots, _made
        self.shape, self.dtype, self.src, self.dst = tuple(shape), np.dtype(dtype), src, dst
        for side, sharding in (("src", src), ("dst", dst)):
            if not isinstance(sharding, NamedSharding):
                raise InputError(f"{side} is a {type(sharding).__name__}; programs need a NamedSharding")
        common = src.device_set & dst.device_set
        if common:
            raise InputError(f"{sorted(map(str, common))[0]} is in both meshes; one program runs on it at a time")
        if _slots is None:
            _slots = _Slots(timeout)
        self._id, _made = _made, _made + 1
        self._timeout = timeout or 0.0
        devices = _slots.devices
        source = Placed("the source", self.shape, src, devices.rank_of)
        target = Placed("the destination", self.shape, dst, devices.rank_of)
        spec = TensorSpec(source.layout(), target.layout(), 8 * self.dtype.itemsize, f"transfer {self._id}")
        plan = Plan([spec], devices.first.network(profile), strategy=strategy, scheduler=scheduler)
        self.plan = plan
        self._kept: list[tuple[Any, Any, Reshard]] = []
        self._kept = [kept for kept in devices.each(lambda job, device: self._join(job, device, plan)) if kept]
        _transfers.append(self)

    def _join(self, job: Job, device: Any, plan: Plan) -> Any:
        """One rank's part."""
        assert _slots is not None
        slot = _slots.slots[job.rank]
        sends = device in self.src.device_set
        side = self.src if sends else self.dst
        layout = plan.tensors[0].src if sends else plan.tensors[0].dst
        shape = layout.tile_shape(job.rank)
        buffer = None if shape is None else np.empty(shape, self.dtype)
        _xla.lib.xm_xla_lock(slot)
        try:
            reshard = Reshard(job, plan, buffer if sends else None, None if sends else buffer, dtype=str(self.dtype))
            if buffer is None:
                reshard.close()
                return None
            part = _xla.Part(
                struct_size=ctypes.sizeof(_xla.Part),
                id=self._id,
                position=list(side.mesh.devices.flat).index(device),
                sends=sends,
                reshard=reshard._handle,
                buffer=_xla.address(buffer),
                bytes=buffer.nbytes,
                timeout=self._timeout,
            )
            _xla.lib.xm_xla_add(slot, part)
            return slot, buffer, reshard
        finally:
            _xla.lib.xm_xla_unlock(slot)

    def _call(self, mesh: Any, results: Any, operands: Sequence[Any], in_specs: Any, out_specs: Any, after: Any) -> Any:
        """The custom call on every device of a mesh; a ticket for each of them is among the results."""
        names = PartitionSpec(*mesh.axis_names)
        places = np.arange(mesh.devices.size, dtype=np.int32).reshape(mesh.devices.shape)
        if after is None:
            after = np.zeros(mesh.devices.shape, np.int32)

        def local(place: Any, after: Any, *shards: Any) -> Any:
            call = jax.ffi.ffi_call(_xla.TARGET, results, has_side_effect=True)
            made = call(place.reshape(()), after.reshape(()), *shards, id=np.int64(self._id))
            made = list(made) if isinstance(made, (list, tuple)) else [made]
            return (*made[:-1], made[-1].reshape((1,) * mesh.devices.ndim))

        mapped = _shard_map(local, mesh, (names, names, *in_specs), (*out_specs, names))
        return mapped(places, after, *operands)

    def send(self, x: Any, after: Any = None) -> Any:
        """Inside a program on the source's mesh: the array leaves. Gives a ticket."""
        if tuple(x.shape) != self.shape or np.dtype(x.dtype) != self.dtype:
            raise InputError(f"an array {x.dtype}{list(x.shape)} for a transfer of {self.dtype}{list(self.shape)}")
        ticket = jax.ShapeDtypeStruct((), np.int32)
        return self._call(self.src.mesh, (ticket,), (x,), (self.src.spec,), (), after)[0]

    def receive(self, after: Any = None, *, ticket: bool = False) -> Any:
        """Inside a program on the destination's mesh: the array; with `ticket` that as well."""
        shard = jax.ShapeDtypeStruct(self.dst.shard_shape(self.shape), self.dtype)
        results = (shard, jax.ShapeDtypeStruct((), np.int32))
        x, number = self._call(self.dst.mesh, results, (), (), (self.dst.spec,), after)
        return (x, number) if ticket else x

    def close(self) -> None:
        """Frees the transfer; runs in flight fail. Collective."""
        if self not in _transfers:
            return
        _transfers.remove(self)
        for slot, _, reshard in self._kept:
            _xla.lib.xm_xla_lock(slot)
            try:
                _xla.lib.xm_xla_remove(slot, self._id, b"the transfer was closed")
                reshard.close()
            except CrossmeshError:
                pass  # a run that was given up has ended the job
            finally:
                _xla.lib.xm_xla_unlock(slot)
        self._kept = []
