"""Plans: which bytes go where, in which order. They never change."""

from __future__ import annotations

import ctypes
import json
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from . import _native
from ._native import lib
from .errors import InputError
from .layouts import Layout
from .network import Network

__all__ = ["Hop", "Plan", "TensorSpec"]


@dataclass(frozen=True)
class TensorSpec:
    """One tensor of a batch: how it lies, how it is wanted, and how large its elements are.

    `bits` is 1, 2 or 4 for elements packed along the innermost dimension, else 8 to 128 in whole bytes.
    """

    src: Layout
    dst: Layout
    bits: int
    name: str | None = None


class Hop(NamedTuple):
    """One transfer's way from one rank to another, with its simulated times in seconds."""

    transfer: int
    sender: int
    receiver: int
    bytes: int
    start: float
    end: float


class Plan:
    """The transfers that turn source layouts into destination layouts, of one tensor or of a batch of many.

    Equal arguments give equal plans on every machine. Every plan has been verified when you get it.
    """

    def __init__(
        self,
        tensors: TensorSpec | Sequence[TensorSpec],
        network: Network,
        *,
        strategy: str = "auto",
        scheduler: str = "auto",
        chunk_bytes: int = 0,
        seed: int = 0,
        node_budget: int = 0,
    ) -> None:
        self.tensors = (tensors,) if isinstance(tensors, TensorSpec) else tuple(tensors)
        self.network = network
        if not self.tensors:
            raise InputError("a plan needs at least one tensor")
        kinds = ctypes.c_int(), ctypes.c_int()
        lib.xm_strategy_parse(strategy.encode(), kinds[0])
        lib.xm_scheduler_parse(scheduler.encode(), kinds[1])
        batch = (_native.Tensor * len(self.tensors))()
        for entry, tensor in zip(batch, self.tensors):
            entry.name = None if tensor.name is None else tensor.name.encode()
            entry.src, entry.dst = tensor.src._handle, tensor.dst._handle
            entry.element_bits = tensor.bits
        params = _native.PlanParams(
            struct_size=ctypes.sizeof(_native.PlanParams),
            tensors=batch,
            tensor_count=len(batch),
            strategy=kinds[0].value,
            scheduler=kinds[1].value,
            chunk_bytes=chunk_bytes,
            seed=seed,
            node_budget=node_budget,
            network=network._handle,
        )
        handle = ctypes.c_void_p()
        lib.xm_plan_create(params, handle)
        self._handle = handle.value
        weakref.finalize(self, lib.xm_plan_destroy, self._handle).atexit = False

    @property
    def bytes(self) -> int:
        """Of all tensors."""
        return int(lib.xm_plan_bytes(self._handle))

    @property
    def net_bytes(self) -> int:
        """Bytes that cross from one host to another."""
        return int(lib.xm_plan_net_bytes(self._handle))

    @property
    def bound(self) -> float:
        """Seconds that no plan can beat on this network."""
        return float(lib.xm_plan_bound_ns(self._handle)) * 1e-9

    @property
    def makespan(self) -> float:
        """Simulated seconds of this plan."""
        return float(lib.xm_plan_makespan_ns(self._handle)) * 1e-9

    @property
    def digest(self) -> str:
        """32 hexadecimal digits over everything that decides which bytes move where."""
        return str(lib.xm_plan_digest(self._handle).decode())

    @property
    def strategy(self) -> str:
        return str(lib.xm_strategy_name(lib.xm_plan_strategy(self._handle)).decode())

    @property
    def scheduler(self) -> str:
        """Whose schedule this is; `auto` has chosen."""
        return str(lib.xm_scheduler_name(lib.xm_plan_chosen_scheduler(self._handle)).decode())

    @property
    def ranks(self) -> int:
        """The largest rank of all meshes, plus one."""
        return int(lib.xm_plan_ranks(self._handle))

    def host_of(self, rank: int) -> int:
        return self.network.host_of(rank)

    def verify(self) -> None:
        """Proves once more that every destination gets every element exactly once, from a rank that has it."""
        lib.xm_plan_verify(self._handle)

    def to_json(self) -> str:
        """The whole plan (docs/reshard-plan.md)."""
        libc = ctypes.CDLL(None)
        libc.open_memstream.restype = ctypes.c_void_p
        libc.fclose.argtypes = libc.free.argtypes = [ctypes.c_void_p]
        text, length = ctypes.c_void_p(), ctypes.c_size_t()
        stream = libc.open_memstream(ctypes.byref(text), ctypes.byref(length))
        if not stream:
            raise MemoryError("no memory for a plan's text")
        try:
            lib.xm_plan_write_json(self._handle, stream)
        finally:
            libc.fclose(stream)
            written = ctypes.string_at(text, length.value) if text else b""
            libc.free(text)
        return written.decode()

    def as_dict(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(self.to_json())
        return document

    def hops(self, sharing: str = "exclusive") -> list[Hop]:
        """All hops between ranks in plan order, with the times of a simulation.

        `exclusive`: every NIC serves one message at a time, in the order of the plan. `fair`: those that are ready
        share it.
        """
        if sharing not in ("exclusive", "fair"):
            raise InputError(f"sharing is exclusive or fair, not {sharing}")
        spans = (_native.Span * max(1, lib.xm_plan_hops(self._handle)))()
        count, makespan = ctypes.c_int64(), ctypes.c_int64()
        lib.xm_simulate(self._handle, self.network._handle, int(sharing == "fair"), spans, makespan)
        transfers = lib.xm_plan_transfers(self._handle, count)
        found = []
        for t in range(count.value):
            transfer, number = transfers[t], lib.xm_plan_first_hop(self._handle, t)
            route = lib.xm_plan_route(self._handle, transfer.route).contents
            size = lib.xm_plan_transfer_bytes(self._handle, t)
            for i in range(route.count):
                parent, receiver = route.parents[i], route.ranks[i]
                sender = transfer.sender if parent < 0 else route.ranks[parent]
                if sender != receiver:
                    span = spans[number + i]
                    found.append(Hop(t, sender, receiver, size, span.start_ns * 1e-9, span.end_ns * 1e-9))
        return found

    def __repr__(self) -> str:
        return f"<Plan {self.digest[:8]} of {len(self.tensors)} tensors, {self.bytes} bytes>"

    def __str__(self) -> str:
        hops = self.hops()
        share = f"{100 * self.bound / self.makespan:.0f} %" if self.makespan > 0 else "-"
        lines = [
            f"plan {self.digest}",
            f"  {self.bytes} bytes in {len(self.tensors)} tensors, {self.net_bytes} between hosts",
            f"  strategy {self.strategy}, scheduler {self.scheduler}",
            f"  {self.makespan * 1e3:.3f} ms simulated, bound {self.bound * 1e3:.3f} ms ({share})",
            f"  {len(hops)} hops:",
        ]
        for hop in hops[:20]:
            lines.append(
                f"    {hop.start * 1e3:10.3f} … {hop.end * 1e3:.3f} ms  "
                f"rank {hop.sender} -> rank {hop.receiver}  {hop.bytes} bytes"
            )
        if len(hops) > 20:
            lines.append(f"    and {len(hops) - 20} more")
        return "\n".join(lines)

    def _repr_svg_(self) -> str:
        """For notebooks: who sends when, by the simulation."""
        from ._svg import draw

        return draw(self)
