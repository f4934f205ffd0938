# SPDX-License-Identifier: Apache-2.0
"""libautopar.so: pipelines of sharded stages for an operator graph."""

from __future__ import annotations

import ctypes
import json
import os
from collections.abc import Mapping, Sequence
from ctypes import c_int64
from dataclasses import dataclass
from typing import Any

from . import _abi
from ._abi import Layering, PlannerParams, Space
from ._planner import Handles, lib, text_of
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


def _layering(layers: int | str | None) -> Layering:
    how = Layering(one_tensor=True)  # what torch's stages hand on
    if isinstance(layers, str):
        how.pattern = layers.encode()
    else:
        how.layers = layers or 0
    return how


def _mesh(asked: Options, devices: int) -> tuple[tuple[int, int] | None, int]:
    """The mesh of every stage, where it is given, and how many there are; 0: to be found."""
    if asked.data_parallel is None and asked.tensor_parallel is None:
        return None, asked.stages or 0
    mesh = asked.data_parallel or 1, asked.tensor_parallel or 1
    size = mesh[0] * mesh[1]
    stages = asked.stages or devices // size
    if stages * size != devices:
        raise InputError(
            f"{stages} stages of {mesh[0]} x {mesh[1]} devices are {stages * size} devices, and the cluster has {devices}"
        )
    return mesh, stages


def _space(mesh: tuple[int, int] | None) -> Space:
    """Parameters lie as their operators want them, and are kept whole otherwise; nothing is computed twice. On a given mesh
    the first axis cuts the batch, the second one the rest, and products of matrices are cut over both."""
    first = second = _abi.AP_ROLES_ALL
    cut = mesh is not None and mesh != (1, 1)
    if mesh is not None and cut:
        first, second = (TENSOR if mesh[0] == 1 else DATA), (DATA if mesh[1] == 1 else TENSOR)
    return Space(
        parameter_modes=1 << _abi.AP_PARAMETER_REPLICATED, recompute=False, mixed=False, cut_products=cut,
        roles=(first, second, *[_abi.AP_ROLES_ALL] * (_abi.AP_MAX_MESH_RANK - 2)), stage_shape=mesh or (0, 0),
    )  # fmt: skip


def plan_stages(document: Mapping[str, Any], cluster: Cluster, asked: Options) -> tuple[Any, Any]:
    """The graph in layers (docs/graph.md) and the plan for it (docs/plan.md)."""
    with Handles() as stack:
        made = stack.made
        if isinstance(cluster, Mapping):
            text = json.dumps(dict(cluster)).encode()
            profile = made("ap_profile_destroy", lib.ap_profile_from_text, text, len(text), b"cluster")
        else:
            profile = made("ap_profile_destroy", lib.ap_profile_load, os.fsencode(cluster))
        hosts = asked.hosts or lib.ap_profile_hosts(profile)
        each = asked.devices_per_host or lib.ap_profile_devices_per_host(profile)
        if asked.hosts or asked.devices_per_host:
            profile = made("ap_profile_destroy", lib.ap_profile_resize, profile, hosts, each)
        text = json.dumps(document).encode()
        forward = made("ap_graph_destroy", lib.ap_json_from_text, text, len(text), b"the model")
        graph = made("ap_graph_destroy", lib.ap_graph_make_layers, forward, _layering(asked.layers))
        mesh, stages = _mesh(asked, hosts * each)
        counts, reserve = asked.micro_batches or (), asked.memory_reserve
        params = PlannerParams(
            model=str(document["name"]).encode(),
            graph=graph,
            profile=profile,
            global_batch=asked.global_batch,
            micro_batches=(c_int64 * len(counts))(*counts) if counts else None,
            micro_batch_count=len(counts),
            min_stages=stages,
            max_stages=stages,
            memory_limit=asked.memory_limit or 0.0,
            memory_reserve=_abi.AP_MEMORY_RESERVE_DEFAULT if reserve is None else reserve,
            recompute=_abi.AP_RECOMPUTE_OFF,
            schedule=asked.schedule.encode(),
            space=ctypes.pointer(_space(mesh)),
            time_limit=asked.time_limit,
        )
        plan = made("ap_plan_destroy", lambda params, plan: lib.ap_planner_plan(params, plan, None), params)
        return json.loads(text_of(lib.ap_json_text(graph))), json.loads(text_of(lib.ap_plan_text(plan)))
