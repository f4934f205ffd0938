# SPDX-License-Identifier: Apache-2.0
"""libautopar.so: pipelines of sharded stages for an operator graph."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
from collections.abc import Mapping, Sequence
from ctypes import c_int, c_int64, c_void_p
from dataclasses import dataclass
from typing import Any

from . import _abi
from ._abi import Layering, PlannerParams, Space
from ._abi import PlannerPin as Pin
from ._planner import lib, text_of
from .errors import InputError, InternalError

DATA, TENSOR = _abi.AP_ROLE_DATA, _abi.AP_ROLE_TENSOR

Cluster = str | os.PathLike[str] | Mapping[str, Any]


@dataclass(frozen=True)
class Options:
    """What a pipeline must be like; None: to be found."""

    global_batch: int
    micro_batches: int
    stages: int | None = None
    data_parallel: int | None = None  # with tensor_parallel: the mesh of every stage
    tensor_parallel: int | None = None
    layers: int | str | None = None  # a number, or a pattern of modules' paths
    hosts: int | None = None
    devices_per_host: int | None = None
    memory_limit: float | None = None
    memory_reserve: float | None = None
    schedule: str = "1f1b"
    time_limit: float = 0.0


class _Planning:
    """The handles of one search."""

    def __init__(self, stack: contextlib.ExitStack, options: Options) -> None:
        self._stack, self._options = stack, options
        self.graph = self.profile = c_void_p()
        self.name = b""
        self.hosts = self.devices_per_host = 0

    def _made(self, destroy: str, call: Any, *arguments: Any) -> c_void_p:
        handle = c_void_p()
        call(*arguments, handle)
        self._stack.callback(getattr(lib, destroy), handle)
        return handle

    def read_cluster(self, cluster: Cluster) -> None:
        asked, free = self._options, "ap_profile_destroy"
        if isinstance(cluster, Mapping):
            text = json.dumps(dict(cluster)).encode()
            self.profile = self._made(free, lib.ap_profile_from_text, text, len(text), b"cluster")
        else:
            self.profile = self._made(free, lib.ap_profile_load, os.fsencode(cluster))
        self.hosts = asked.hosts or lib.ap_profile_hosts(self.profile)
        self.devices_per_host = asked.devices_per_host or lib.ap_profile_devices_per_host(self.profile)
        if asked.hosts or asked.devices_per_host:
            self.profile = self._made(
                free, lib.ap_profile_resize, self.profile, self.hosts, self.devices_per_host
            )

    def read_graph(self, document: Mapping[str, Any]) -> Any:
        """The graph in layers, which is what comes back."""
        text, self.name = json.dumps(document).encode(), str(document["name"]).encode()
        forward = self._made("ap_graph_destroy", lib.ap_json_from_text, text, len(text), b"the model")
        how = Layering()
        how.one_tensor = True  # what torch's stages hand on
        if isinstance(self._options.layers, str):
            how.pattern = self._options.layers.encode()
        else:
            how.layers = self._options.layers or 0
        self.graph = self._made("ap_graph_destroy", lib.ap_graph_make_layers, forward, how)
        return json.loads(text_of(lib.ap_json_text(self.graph)))

    def stage_mesh(self) -> tuple[int, int] | None:
        """The mesh of every stage, where it is given."""
        asked = self._options
        if asked.data_parallel is None and asked.tensor_parallel is None:
            return None
        return asked.data_parallel or 1, asked.tensor_parallel or 1

    def _submesh(self, devices: int) -> tuple[int, int]:
        """Hosts of a stage, and its devices on each."""
        if devices <= self.devices_per_host and self.devices_per_host % devices == 0:
            return 1, devices
        if devices % self.devices_per_host == 0 and self.hosts % (devices // self.devices_per_host) == 0:
            return devices // self.devices_per_host, self.devices_per_host
        raise InputError(
            f"stages of {devices} devices do not tile {self.hosts} hosts of {self.devices_per_host} devices"
        )

    def search(self, pins: Sequence[Pin] = (), space: Space | None = None, stages: int | None = None) -> Any:
        asked, plan = self._options, c_void_p()
        counts = (c_int64 * 1)(asked.micro_batches)
        kept = (Pin * max(1, len(pins)))(*pins)
        params = PlannerParams(
            model=self.name,
            graph=self.graph,
            profile=self.profile,
            global_batch=asked.global_batch,
            micro_batches=counts,
            micro_batch_count=1,
            min_stages=stages or 0,
            max_stages=stages or 0,
            memory_limit=asked.memory_limit or 0.0,
            memory_reserve=(
                _abi.AP_MEMORY_RESERVE_DEFAULT if asked.memory_reserve is None else asked.memory_reserve
            ),
            recompute=_abi.AP_RECOMPUTE_OFF,
            schedule=asked.schedule.encode(),
            space=ctypes.pointer(space if space is not None else _space()),
            pins=kept if pins else None,
            pin_count=len(pins),
            time_limit=asked.time_limit,
        )
        lib.ap_planner_plan(params, plan, None)
        try:
            return json.loads(text_of(lib.ap_plan_text(plan)))
        finally:
            lib.ap_plan_destroy(plan)


def _space(roles: tuple[int, int] | None = None, stage_devices: int = 0) -> Space:
    """Parameters lie as their operators want them, and are kept whole otherwise; nothing is computed twice. With roles,
    products of matrices are cut over both axes."""
    roles = roles or (_abi.AP_ROLES_ALL, _abi.AP_ROLES_ALL)
    return Space(
        parameter_modes=1 << _abi.AP_PARAMETER_REPLICATED, stage_devices=stage_devices, recompute=False, mixed=False,
        roles=(*roles, _abi.AP_ROLES_ALL), cut_products=roles != (_abi.AP_ROLES_ALL, _abi.AP_ROLES_ALL),
    )  # fmt: skip


def plan_stages(document: Mapping[str, Any], cluster: Cluster, options: Options) -> tuple[Any, Any]:
    """The graph in layers (docs/graph.md) and the plan for it (docs/plan.md)."""
    with contextlib.ExitStack() as stack:
        planning = _Planning(stack, options)
        planning.read_cluster(cluster)
        layered = planning.read_graph(document)
        mesh = planning.stage_mesh()
        if mesh is None:
            return layered, planning.search(stages=options.stages)
        size, devices = mesh[0] * mesh[1], planning.hosts * planning.devices_per_host
        stages = options.stages or devices // size
        if stages * size != devices:
            raise InputError(
                f"{stages} stages of {mesh[0]} x {mesh[1]} devices are {stages * size} devices, and the cluster has "
                f"{devices}"
            )
        hosts, each = planning._submesh(size)
        roles = (DATA, TENSOR)
        if mesh[0] == 1 or mesh[1] == 1:
            roles = (TENSOR, TENSOR) if mesh[0] == 1 else (DATA, DATA)
        # First where to cut, with stages of that size but free otherwise; then the meshes.
        free = planning.search(space=_space(stage_devices=size), stages=stages)
        pins = [Pin(first, last, hosts, each, (c_int * 2)(*mesh)) for first, last in (s["layers"] for s in free["stages"])]
        submeshes = {s["submesh"] for s in free["stages"]}
        if submeshes != {f"{hosts}x{each}"}:
            raise InternalError(f"the planner made stages of {sorted(submeshes)} devices, not of {hosts}x{each}")
        return layered, planning.search(pins=pins, space=_space(roles), stages=stages)
