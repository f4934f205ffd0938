# SPDX-License-Identifier: Apache-2.0
"""libautopar.so: pipelines of sharded stages for an operator graph."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
from collections.abc import Mapping, Sequence
from ctypes import c_int64, c_void_p
from dataclasses import dataclass
from typing import Any

from . import _abi
from ._abi import Layering, PlannerParams, Space
from ._planner import lib, text_of
from .errors import InputError

DATA, TENSOR = _abi.AP_ROLE_DATA, _abi.AP_ROLE_TENSOR

Cluster = str | os.PathLike[str] | Mapping[str, Any]


@dataclass(frozen=True)
class Options:
    """What a pipeline must be like; None: to be found."""

    global_batch: int
    micro_batches: Sequence[int] | None = None  # numbers of them to choose from
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

    def search(self, space: Space, stages: int | None) -> Any:
        asked, plan = self._options, c_void_p()
        counts = asked.micro_batches or ()
        params = PlannerParams(
            model=self.name,
            graph=self.graph,
            profile=self.profile,
            global_batch=asked.global_batch,
            micro_batches=(c_int64 * len(counts))(*counts) if counts else None,
            micro_batch_count=len(counts),
            min_stages=stages or 0,
            max_stages=stages or 0,
            memory_limit=asked.memory_limit or 0.0,
            memory_reserve=(
                _abi.AP_MEMORY_RESERVE_DEFAULT if asked.memory_reserve is None else asked.memory_reserve
            ),
            recompute=_abi.AP_RECOMPUTE_OFF,
            schedule=asked.schedule.encode(),
            space=ctypes.pointer(space),
            time_limit=asked.time_limit,
        )
        lib.ap_planner_plan(params, plan, None)
        try:
            return json.loads(text_of(lib.ap_plan_text(plan)))
        finally:
            lib.ap_plan_destroy(plan)


def _space(mesh: tuple[int, int] | None) -> Space:
    """Parameters lie as their operators want them, and are kept whole otherwise; nothing is computed twice. On a given mesh
    the first axis cuts the batch, the second one the rest, and products of matrices are cut over both."""
    first = second = _abi.AP_ROLES_ALL
    cut = mesh is not None and mesh != (1, 1)
    if mesh is not None and cut:
        first, second = (TENSOR if mesh[0] == 1 else DATA), (DATA if mesh[1] == 1 else TENSOR)
    return Space(
        parameter_modes=1 << _abi.AP_PARAMETER_REPLICATED, recompute=False, mixed=False, cut_products=cut,
        roles=(first, second, _abi.AP_ROLES_ALL), stage_shape=mesh or (0, 0),
    )  # fmt: skip


def plan_stages(document: Mapping[str, Any], cluster: Cluster, options: Options) -> tuple[Any, Any]:
    """The graph in layers (docs/graph.md) and the plan for it (docs/plan.md)."""
    with contextlib.ExitStack() as stack:
        planning = _Planning(stack, options)
        planning.read_cluster(cluster)
        layered, mesh, stages = planning.read_graph(document), planning.stage_mesh(), options.stages
        if mesh is not None:
            size, devices = mesh[0] * mesh[1], planning.hosts * planning.devices_per_host
            stages = stages or devices // size
            if stages * size != devices:
                raise InputError(
                    f"{stages} stages of {mesh[0]} x {mesh[1]} devices are {stages * size} devices, and the cluster has "
                    f"{devices}"
                )
        return layered, planning.search(_space(mesh), stages)
