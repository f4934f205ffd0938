# SPDX-License-Identifier: Apache-2.0
"""libautopar.so: pipelines of sharded stages for an operator graph."""

from __future__ import annotations

import ctypes
import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from ctypes import c_int64
from dataclasses import dataclass
from typing import Any

from . import _abi
from ._abi import Layering, PlannerParams, SimulationParams, Space
from ._planner import Handles, lib, text_of
from .errors import InputError

# Schedules with several stages to a device, and how many there are unless it is said.
FOLDED = {"interleaved": 2, "zb-v": 2, "dualpipev": 2}
_RECOMPUTE = {"off": _abi.AP_RECOMPUTE_OFF, "on": _abi.AP_RECOMPUTE_ON, "auto": _abi.AP_RECOMPUTE_AUTO}
# How a parameter's state lives on the axes that do not cut it.
_ZERO = {0: _abi.AP_PARAMETER_REPLICATED, 1: _abi.AP_PARAMETER_STATE_SHARDED}

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
    virtual_stages: int | None = None  # to a device
    recompute: str = "off"
    zero: int = 0
    time_limit: float = 0.0


@dataclass(frozen=True)
class Work:
    """What one run of an operator computes, and moves; by these the planner looks it up in a profile's times of operators."""

    kind: str
    dtype: str  # the widest of its operands
    flops: float
    nbytes: float


def training_works(document: Mapping[str, Any]) -> dict[str, tuple[Work, list[Work]]]:
    """By the name of each operator of a forward graph (docs/graph.md): its work, and that of its backward pass, on one
    device."""
    with Handles() as stack:
        text = json.dumps(document).encode()
        graph = stack.made("ap_graph_destroy", lib.ap_json_from_text, text, len(text), b"the model")
        lib.ap_frontend_train(_abi.AP_OPTIMIZER_ADAM, graph)
        step = json.loads(text_of(lib.ap_json_text(graph)))
    dtypes = {tensor["name"]: tensor["dtype"] for tensor in step["tensors"]}
    found: dict[str, tuple[Work, list[Work]]] = {}
    for op in step["ops"]:
        for n in range(len(op["rule"].partition("->")[2].split(","))):
            dtypes[op["name"] + (f".{n}" if n else "")] = op["dtype"]
        read = [dtypes[name] for name in op["operands"] or [op["name"]]]
        work = Work(op["kind"], max(read, key=lambda dtype: ("int" not in dtype, _bits(dtype))), op["flops"], _moved(op, dtypes))
        if "forward" in op:
            found[op["forward"]][1].append(work)
        elif op.get("phase", "forward") == "forward":
            found[op["name"]] = work, []
    return found


def _bits(dtype: str) -> int:
    return int(dtype.lstrip("abcdefghijklmnopqrstuvwxyz"))


def _moved(op: Mapping[str, Any], dtypes: Mapping[str, str]) -> float:
    operands, _, results = op["rule"].partition("->")
    terms = [*operands.split(","), *results.split(",")]
    names = [*op["operands"], *[op["name"]] * (len(terms) - len(op["operands"]))]
    sizes: list[float] = [
        math.prod(op["sizes"][letter] for letter in term if letter not in "()") * _bits(dtypes[name]) / 8
        for term, name in zip(terms, names)
    ]
    touched: Iterable[int] = op.get("touched", range(len(terms)))
    return sum(min(size, sizes[like]) for size, like in zip(sizes, touched) if like >= 0)


def _layering(layers: int | str | None) -> Layering:
    how = Layering()
    if isinstance(layers, str):
        how.pattern = layers.encode()
    else:
        how.layers = layers or 0
    return how


def _chunks(asked: Options) -> int:
    """Stages to a device."""
    count = asked.virtual_stages or FOLDED.get(asked.schedule, 1)
    if count < 1 or (count > 1 and asked.schedule not in FOLDED):
        raise InputError(f"virtual_stages={count}: only {', '.join(FOLDED)} have several stages to a device")
    if asked.schedule in FOLDED and asked.data_parallel is None and asked.tensor_parallel is None:
        raise InputError(f"schedule '{asked.schedule}' needs stages of equal meshes: give data_parallel and tensor_parallel")
    return count


def _mesh(asked: Options, devices: int) -> tuple[tuple[int, int] | None, int]:
    """The mesh of every stage, where it is given, and how many there are; 0: to be found. `devices`: with one stage each."""
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


def _space(mesh: tuple[int, int] | None, asked: Options) -> Space:
    """Parameters lie as their operators want them, and are kept whole otherwise; nothing is computed twice. On a given mesh
    the first axis cuts the batch, the second one the rest, and products of matrices are cut over both."""
    first = second = _abi.AP_ROLES_ALL
    cut = mesh is not None and mesh != (1, 1)
    if mesh is not None and cut:
        first, second = (TENSOR if mesh[0] == 1 else DATA), (DATA if mesh[1] == 1 else TENSOR)
    if asked.zero not in _ZERO:
        raise InputError(f"zero={asked.zero}: 0 (none) or 1 (optimizer state is cut over copies of a parameter)")
    return Space(
        parameter_modes=1 << _ZERO[asked.zero], recompute=False, mixed=False, cut_products=cut,
        roles=(first, second, *[_abi.AP_ROLES_ALL] * (_abi.AP_MAX_MESH_RANK - 2)), stage_shape=mesh or (0, 0),
    )  # fmt: skip


def plan_stages(document: Mapping[str, Any], cluster: Cluster, asked: Options) -> tuple[Any, Any, Any]:
    """The graph in layers (docs/graph.md), the plan for it (docs/plan.md), and its schedule, simulated
    (docs/pipeline-schedules.md). With several stages to a device the plan is for as many devices as would have one each;
    the schedule folds them."""
    chunks = _chunks(asked)
    if asked.recompute not in _RECOMPUTE:
        raise InputError(f"recompute='{asked.recompute}': {', '.join(_RECOMPUTE)}")
    with Handles() as stack:
        made = stack.made
        if isinstance(cluster, Mapping):
            text = json.dumps(dict(cluster)).encode()
            profile = made("ap_profile_destroy", lib.ap_profile_from_text, text, len(text), b"cluster")
        else:
            profile = made("ap_profile_destroy", lib.ap_profile_load, os.fsencode(cluster))
        hosts = asked.hosts or lib.ap_profile_hosts(profile)
        each = asked.devices_per_host or lib.ap_profile_devices_per_host(profile)
        if asked.hosts or asked.devices_per_host or chunks > 1:
            profile = made("ap_profile_destroy", lib.ap_profile_resize, profile, hosts * chunks, each)
        text = json.dumps(document).encode()
        forward = made("ap_graph_destroy", lib.ap_json_from_text, text, len(text), b"the model")
        graph = made("ap_graph_destroy", lib.ap_graph_make_layers, forward, _layering(asked.layers))
        mesh, stages = _mesh(asked, hosts * chunks * each)
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
            memory_limit=(asked.memory_limit or 0.0) / chunks,
            memory_reserve=_abi.AP_MEMORY_RESERVE_DEFAULT if reserve is None else reserve,
            recompute=_RECOMPUTE[asked.recompute],
            schedule=b"1f1b" if chunks > 1 else asked.schedule.encode(),
            space=ctypes.pointer(_space(mesh, asked)),
            time_limit=asked.time_limit,
        )
        plan = made("ap_plan_destroy", lambda params, plan: lib.ap_planner_plan(params, plan, None), params)
        how = SimulationParams(fold=chunks > 1)
        if chunks > 1:
            how.schedule, how.virtual_stages = asked.schedule.encode(), chunks
        simulation = made("ap_simulation_destroy", lib.ap_simulation_create, plan, how)
        timeline = ctypes.c_void_p()
        lib.ap_simulation_text(simulation, timeline)
        texts = (lib.ap_json_text(graph), lib.ap_plan_text(plan), timeline.value)
        layered, planned, simulated = (json.loads(text_of(text)) for text in texts)
        return layered, planned, simulated
