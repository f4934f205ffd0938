# SPDX-License-Identifier: Apache-2.0
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
        self._info = _native.PlanInfo(struct_size=ctypes.sizeof(_native.PlanInfo))
        lib.xm_plan_get_info(self._handle, self._info)

    @property
    def bytes(self) -> int:
        """Of all tensors."""
        return int(self._info.bytes)

    @property
    def net_bytes(self) -> int:
        """Bytes that cross from one host to another."""
        return int(self._info.net_bytes)

    @property
    def bound(self) -> float:
        """Seconds that no plan among the ranks that take part can beat on this network."""
        return float(self._info.bound_ns) * 1e-9

    @property
    def makespan(self) -> float:
        """Simulated seconds of this plan."""
        return float(self._info.makespan_ns) * 1e-9

    @property
    def digest(self) -> str:
        """32 hexadecimal digits over everything that decides which bytes move where."""
        return str(self._info.digest.decode())

    @property
    def strategy(self) -> str:
        return str(self._info.strategy_name.decode())

    @property
    def scheduler(self) -> str:
        """Whose schedule this is; `auto` has chosen."""
        return str(self._info.scheduler_name.decode())

    @property
    def ranks(self) -> int:
        """The largest rank of all meshes, plus one."""
        return int(self._info.ranks)

    def host_of(self, rank: int) -> int:
        return self.network.host_of(rank)

    def verify(self) -> None:
        """Proves once more that every destination gets every element exactly once, from a rank that has it."""
        lib.xm_plan_verify(self._handle)

    def to_json(self) -> str:
        """The whole plan (docs/reshard-plan.md)."""
        free = ctypes.CDLL(None).free
        free.argtypes = [ctypes.c_void_p]
        text = ctypes.c_void_p()
        lib.xm_plan_to_json(self._handle, text)
        try:
            return ctypes.string_at(text).decode()
        finally:
            free(text)

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
        hops = (_native.PlanHop * max(1, self._info.hops))()
        lib.xm_plan_simulate(self._handle, self.network._handle, int(sharing == "fair"), hops, ctypes.c_int64())
        return [
            Hop(hop.transfer, hop.sender, hop.receiver, hop.bytes, hop.start_ns * 1e-9, hop.end_ns * 1e-9)
            for hop in hops[: self._info.hops]
            if hop.sender != hop.receiver
        ]

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
