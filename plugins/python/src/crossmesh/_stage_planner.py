"""libautopar.so: pipelines of sharded stages for an operator graph.

The prototypes and structures below are C's own; a test has the compiler compare them with the headers.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
from collections.abc import Mapping, Sequence
from ctypes import POINTER, Structure, c_bool, c_char_p, c_double, c_int, c_int64, c_size_t, c_uint, c_void_p
from dataclasses import dataclass
from typing import Any

from . import _native, _planner
from .errors import InputError, InternalError

ROLE_DATA, ROLE_SEQUENCE, ROLE_TENSOR = 1, 2, 4
ROLES_ALL = ROLE_DATA | ROLE_SEQUENCE | ROLE_TENSOR
PARAMETER_REPLICATED = 0
RECOMPUTE_OFF = 1


class Layering(Structure):
    c_name = "ap_layering_t"
    _fields_ = [
        ("struct_size", c_size_t),
        ("layers", c_int),
        ("pattern", c_char_p),
        ("marks", POINTER(c_char_p)),
        ("mark_count", c_size_t),
    ]


class LayeringInfo(Structure):
    c_name = "ap_layering_info_t"
    _fields_ = [
        ("layers", c_int),
        ("distinct", c_int),
        ("places", c_int),
        ("largest_bytes", c_double),
        ("sum_bytes", c_double),
        ("imbalance", c_double),
    ]


class Pin(Structure):
    c_name = "ap_planner_pin_t"
    _fields_ = [
        ("first_layer", c_int),
        ("last_layer", c_int),
        ("hosts", c_int),
        ("devices", c_int),
        ("shape", c_int * 2),
    ]


class Space(Structure):
    c_name = "ap_space_t"
    _fields_ = [
        ("roles", c_uint * _planner.MAX_MESH_RANK),
        ("parameter_modes", c_uint),
        ("scatter", c_bool),
        ("one_axis", c_bool),
        ("pipeline", c_bool),
        ("stage_devices", c_int),
        ("recompute", c_bool),
        ("keep", c_bool),
        ("mixed", c_bool),
        ("cut_products", c_bool),
    ]


class PlannerParams(Structure):
    c_name = "ap_planner_params_t"
    _fields_ = [
        ("struct_size", c_size_t),
        ("model", c_char_p),
        ("graph", c_void_p),
        ("layering", Layering),
        ("dims", POINTER(c_char_p)),
        ("dim_count", c_size_t),
        ("profile", c_void_p),
        ("layers", c_int),
        ("global_batch", c_int64),
        ("micro_batches", POINTER(c_int64)),
        ("micro_batch_count", c_size_t),
        ("min_stages", c_int),
        ("max_stages", c_int),
        ("memory_limit", c_double),
        ("recompute", c_int),
        ("schedule", c_char_p),
        ("all_submeshes", c_bool),
        ("space", POINTER(Space)),
        ("keep_host_order", c_bool),
        ("free_boundaries", c_bool),
        ("steady", c_bool),
        ("pins", POINTER(Pin)),
        ("pin_count", c_int),
        ("time_limit", c_double),
        ("margin", c_double),
        ("progress", c_void_p),
        ("progress_arg", c_void_p),
    ]


class PlannerModel(Structure):
    c_name = "ap_planner_model_t"
    _fields_ = [
        ("graph", c_void_p),
        ("file_ops", c_int),
        ("forward_ops", c_int),
        ("own_layers", c_bool),
        ("layering", LayeringInfo),
    ]


class PlannerResult(Structure):
    c_name = "ap_planner_result_t"
    _fields_ = [
        ("plan", c_void_p),
        ("trials", c_void_p),
        ("trial_count", c_int),
        ("objective", c_double),
        ("bound", c_double),
        ("stopped", c_bool),
        ("host_orders", c_int),
        ("stages_priced", c_int64),
        ("boundaries_simulated", c_int64),
        ("read", PlannerModel),
    ]


STRUCTURES = (Layering, LayeringInfo, Pin, Space, PlannerParams, PlannerModel, PlannerResult)
HEADERS = ("planner/frontend_json.h", "planner/planner.h")
ENUMERATORS = {
    "AP_ROLE_DATA": ROLE_DATA,
    "AP_ROLE_SEQUENCE": ROLE_SEQUENCE,
    "AP_ROLE_TENSOR": ROLE_TENSOR,
    "AP_PARAMETER_REPLICATED": PARAMETER_REPLICATED,
    "AP_RECOMPUTE_OFF": RECOMPUTE_OFF,
}
PROTOTYPES = """
xm_status_t ap_json_from_text(const char *text, size_t size, const char *name, ap_graph_t **graph);
char *ap_json_text(const ap_graph_t *graph);
void ap_graph_destroy(ap_graph_t *graph);
xm_status_t ap_layering_apply(const ap_graph_t *forward, const ap_layering_t *how, ap_graph_t **layered, ap_layering_info_t *info);
xm_status_t ap_planner_run(const ap_planner_params_t *params, ap_planner_result_t *result);
void ap_planner_result_clear(ap_planner_result_t *result);
char *ap_plan_text(const ap_plan_t *plan);
"""  # noqa: E501

_native.know_structures(STRUCTURES)
lib = _native.Functions(True, _native.by_name(PROTOTYPES), _planner._load)

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
    schedule: str = "1f1b"
    time_limit: float = 0.0


def _document(function: str, handle: c_void_p) -> Any:
    """JSON that C has written into memory of its own."""
    call = ctypes.CFUNCTYPE(c_void_p, c_void_p)((function, _planner._load()))
    address = call(handle)
    if not address:
        raise MemoryError(f"{function}() had no memory")
    try:
        return json.loads(ctypes.string_at(address))
    finally:
        free = ctypes.CDLL(None).free
        free.argtypes, free.restype = [c_void_p], None
        free(address)


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
        self._stack.callback(getattr(_native.lib if destroy.startswith("xm_") else lib, destroy), handle)
        return handle

    def read_cluster(self, cluster: Cluster) -> None:
        asked, free = self._options, "xm_cluster_profile_destroy"
        if isinstance(cluster, Mapping):
            text = json.dumps(dict(cluster)).encode()
            self.profile = self._made(free, _native.lib.xm_cluster_profile_from_text, text, len(text), b"cluster")
        else:
            self.profile = self._made(free, _native.lib.xm_cluster_profile_load, os.fsencode(cluster))
        self.hosts = asked.hosts or _native.lib.xm_cluster_profile_hosts(self.profile)
        self.devices_per_host = asked.devices_per_host or _native.lib.xm_cluster_profile_devices_per_host(self.profile)
        if asked.hosts or asked.devices_per_host:
            self.profile = self._made(
                free, _native.lib.xm_cluster_profile_resize, self.profile, self.hosts, self.devices_per_host
            )

    def read_graph(self, document: Mapping[str, Any]) -> Any:
        """The graph in layers, which is what comes back."""
        text, self.name = json.dumps(document).encode(), str(document["name"]).encode()
        forward = self._made("ap_graph_destroy", lib.ap_json_from_text, text, len(text), b"the model")
        how = Layering(struct_size=ctypes.sizeof(Layering))
        if isinstance(self._options.layers, str):
            how.pattern = self._options.layers.encode()
        else:
            how.layers = self._options.layers or 0
        self.graph = self._made("ap_graph_destroy", lambda *a: lib.ap_layering_apply(*a, None), forward, how)
        return _document("ap_json_text", self.graph)

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
        asked, result = self._options, PlannerResult()
        counts = (c_int64 * 1)(asked.micro_batches)
        kept = (Pin * max(1, len(pins)))(*pins)
        params = PlannerParams(
            struct_size=ctypes.sizeof(PlannerParams),
            model=self.name,
            graph=self.graph,
            layering=Layering(struct_size=ctypes.sizeof(Layering)),
            profile=self.profile,
            global_batch=asked.global_batch,
            micro_batches=counts,
            micro_batch_count=1,
            min_stages=stages or 0,
            max_stages=stages or 0,
            memory_limit=asked.memory_limit or 0.0,
            recompute=RECOMPUTE_OFF,
            schedule=asked.schedule.encode(),
            space=ctypes.pointer(space if space is not None else _space()),
            pins=kept if pins else None,
            pin_count=len(pins),
            time_limit=asked.time_limit,
        )
        lib.ap_planner_run(params, result)
        try:
            return _document("ap_plan_text", c_void_p(result.plan))
        finally:
            lib.ap_planner_result_clear(result)


def _space(roles: tuple[int, int] | None = None, stage_devices: int = 0) -> Space:
    """Parameters lie as their operators want them, and are kept whole otherwise; nothing is computed twice. With roles,
    products of matrices are cut over both axes."""
    space = Space(
        parameter_modes=1 << PARAMETER_REPLICATED, scatter=True, pipeline=True, stage_devices=stage_devices, keep=True,
        cut_products=roles is not None,
    )  # fmt: skip
    space.roles[:] = (*(roles or (ROLES_ALL, ROLES_ALL)), ROLES_ALL)
    return space


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
        roles = (ROLE_DATA, ROLE_TENSOR)
        if mesh[0] == 1 or mesh[1] == 1:
            roles = (ROLE_TENSOR, ROLE_TENSOR) if mesh[0] == 1 else (ROLE_DATA, ROLE_DATA)
        # First where to cut, with stages of that size but free otherwise; then the meshes.
        free = planning.search(space=_space(stage_devices=size), stages=stages)
        pins = [Pin(first, last, hosts, each, (c_int * 2)(*mesh)) for first, last in (s["layers"] for s in free["stages"])]
        submeshes = {s["submesh"] for s in free["stages"]}
        if submeshes != {f"{hosts}x{each}"}:
            raise InternalError(f"the planner made stages of {sorted(submeshes)} devices, not of {hosts}x{each}")
        return layered, planning.search(pins=pins, space=_space(roles), stages=stages)
