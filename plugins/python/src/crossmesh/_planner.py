# SPDX-License-Identifier: Apache-2.0
"""libautopar.so: shardings for a program's operators, found by the planner."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
from collections.abc import Sequence
from ctypes import c_void_p
from dataclasses import dataclass, field
from typing import Any

from . import _abi, _native
from .errors import InputError

def _load() -> ctypes.CDLL:
    return _native.load_beside("libautopar.so.1")


def _last_error() -> str:
    """libautopar's own sentence about the last failure on this thread."""
    text: bytes = lib.ap_last_error()
    return text.decode(errors="replace")


lib = _native.Functions(_abi.AUTOPAR, _load, _last_error)


def text_of(address: int | None) -> str:
    """A text that C has made, which is freed."""
    if not address:
        raise MemoryError("libautopar had no memory for a text")
    try:
        return ctypes.string_at(address).decode()
    finally:
        lib.ap_free(address)


class Handles(contextlib.ExitStack):
    """Handles that C has made, which are given back at the end."""

    def made(self, destroy: str, call: Any, *arguments: Any) -> c_void_p:
        handle = c_void_p()
        call(*arguments, handle)
        self.callback(getattr(lib, destroy), handle)
        return handle


@dataclass(frozen=True)
class Sharding:
    """What was found for a program on a mesh."""

    tables: dict[str, Any] = field(repr=False)  # as `autopar shard --export-jax` writes them
    objective: float  # seconds of a step with a profile, else Alpa's unit
    bound: float  # no sharding is below
    optimal: bool
    peak_bytes: int  # of a device
    seconds: float  # that the solver took


def shard_hlo(
    text: str,
    mesh_shape: Sequence[int],
    *,
    hosts: int = 1,
    cluster: str | os.PathLike[str] | None = None,
    memory_limit: float | None = None,
    memory_reserve: float | None = None,
    time_limit: float = 0.0,
    threads: int = 0,
    seed: int = 1,
    recompute: bool = False,
) -> Sharding:
    """The best sharding of a program, given as HLO text, for a mesh of 1 to 4 axes on `hosts` hosts.

    `cluster`: a measured profile (`autopar probe`); without one Alpa's constants rank the collectives. `memory_limit`:
    bytes that a plan may use of a device (None: what the profile says). `memory_reserve`: bytes of a device that are
    left free, below 1 a part (None: what runtimes need, nothing of a `memory_limit`). The solver takes `time_limit`
    seconds at most (0: one second, more if it has no plan yet).
    """
    shape, size = tuple(mesh_shape), 1
    for extent in shape:
        size *= extent
    if not 1 <= len(shape) <= _abi.AP_MAX_MESH_RANK or size < 1:
        raise InputError(f"a mesh of shape {shape}; the planner knows meshes of 1 to {_abi.AP_MAX_MESH_RANK} axes")
    if hosts < 1 or size % hosts != 0:
        raise InputError(f"the {size} devices of a mesh {shape} do not spread evenly over {hosts} hosts")
    encoded = text.encode()
    with Handles() as stack:
        made = stack.made
        graph, notes = c_void_p(), c_void_p()
        lib.ap_hlo_from_text(encoded, len(encoded), b"the program", graph, notes)
        stack.callback(lib.ap_graph_destroy, graph)
        stack.callback(lib.ap_frontend_notes_destroy, notes)
        if cluster is None:
            model = made("ap_cost_model_destroy", lib.ap_cost_model_create_alpa, _abi.AlpaParams())
        else:
            whole = made("ap_profile_destroy", lib.ap_profile_load, os.fsencode(cluster))
            fit = made("ap_profile_destroy", lib.ap_profile_resize, whole, hosts, size // hosts)
            model = made("ap_cost_model_destroy", lib.ap_cost_model_create_profile, fit)
        mesh = made("ap_cost_mesh_destroy", lib.ap_cost_mesh_create, model, hosts, size // hosts,
                    _native.ints(shape), len(shape))  # fmt: skip
        params = _abi.ShardingParams(
            graph=graph,
            mesh=mesh,
            time_limit=time_limit,
            threads=threads,
            seed=seed,
            memory_limit=memory_limit or 0.0,
            memory_reserve=_abi.AP_MEMORY_RESERVE_DEFAULT if memory_reserve is None else memory_reserve,
            recompute=recompute,
        )
        sharding = made("ap_sharding_destroy", lib.ap_sharding_create, params)
        result = lib.ap_sharding_result(sharding).contents
        text_at = c_void_p()
        lib.ap_export_sharding(sharding, notes, _abi.AP_EXPORT_JAX, text_at)
        return Sharding(
            json.loads(text_of(text_at.value)), result.objective, result.bound, result.optimal, int(result.peak), result.seconds
        )
