"""libautopar.so: shardings for a program's operators, found by the planner.

The prototypes and structures below are C's own; a test has the compiler compare them with the headers.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Sequence
from ctypes import POINTER, Structure, c_bool, c_char_p, c_double, c_int, c_size_t, c_uint64, c_void_p
from dataclasses import dataclass
from typing import Any

from . import _native
from .errors import InputError

MAX_MESH_RANK = 3


class AlpaParams(Structure):
    c_name = "ap_alpa_params_t"
    _fields_ = [
        ("struct_size", c_size_t),
        ("alpha", c_double * MAX_MESH_RANK),
        ("beta", c_double * MAX_MESH_RANK),
        ("replicated_penalty", c_double),
        ("force_data_parallel", c_bool),
    ]


class ShardParams(Structure):
    c_name = "ap_shard_params_t"
    _fields_ = [
        ("struct_size", c_size_t),
        ("graph", c_void_p),
        ("mesh", c_void_p),
        ("micro_batches", c_int),
        ("memory_limit", c_double),
        ("state_bytes", c_double),
        ("without_tables", c_bool),
    ]


class ShardOptions(Structure):
    c_name = "ap_shard_options_t"
    _fields_ = [
        ("struct_size", c_size_t),
        ("solver", c_int),
        ("seconds", c_double),
        ("threads", c_int),
        ("seed", c_uint64),
        ("memory_limit", c_double),
        ("recompute", c_bool),
        ("every_layer", c_bool),
        ("progress", c_void_p),
        ("progress_arg", c_void_p),
    ]


class ShardResult(Structure):
    c_name = "ap_shard_result_t"
    _fields_ = [
        ("solver", c_int),
        ("objective", c_double),
        ("bound", c_double),
        ("optimal", c_bool),
        ("repeatable", c_bool),
        ("peak", c_double),
        ("peak_op", c_int),
        ("variables", c_int),
        ("alike", c_int),
        ("recomputed", c_int),
        ("seconds", c_double),
    ]


STRUCTURES = (AlpaParams, ShardParams, ShardOptions, ShardResult)
HEADERS = ("planner/export_jax.h", "planner/frontend_hlo.h", "planner/shard_plan.h", "planner/shard_solution.h")
PROTOTYPES = """
xm_status_t ap_hlo_from_text(const char *text, size_t size, const char *name, ap_graph_t **graph, ap_frontend_notes_t **notes);
void ap_graph_destroy(ap_graph_t *graph);
void ap_frontend_notes_destroy(ap_frontend_notes_t *notes);
xm_status_t ap_cost_model_create_alpa(const ap_alpa_params_t *params, ap_cost_model_t **model);
xm_status_t ap_cost_model_create_profile(const xm_cluster_profile_t *profile, ap_cost_model_t **model);
void ap_cost_model_destroy(ap_cost_model_t *model);
xm_status_t ap_cost_mesh_create(const ap_cost_model_t *model, int hosts, int devices, const int *shape, int rank, ap_cost_mesh_t **mesh);
void ap_cost_mesh_destroy(ap_cost_mesh_t *mesh);
xm_status_t ap_shard_problem_create(const ap_shard_params_t *params, ap_shard_problem_t **problem);
void ap_shard_problem_destroy(ap_shard_problem_t *problem);
xm_status_t ap_shard_solve(const ap_shard_problem_t *problem, const ap_shard_options_t *options, ap_shard_plan_t **plan);
const ap_shard_result_t *ap_shard_plan_result(const ap_shard_plan_t *plan);
const int *ap_shard_plan_strategies(const ap_shard_plan_t *plan);
void ap_shard_plan_destroy(ap_shard_plan_t *plan);
xm_status_t ap_shard_solution_create(const ap_shard_problem_t *problem, const int *choice, ap_shard_solution_t **solution);
void ap_shard_solution_destroy(ap_shard_solution_t *solution);
xm_status_t ap_export_jax(const ap_shard_solution_t *solution, const ap_frontend_notes_t *notes, FILE *stream);
"""  # noqa: E501

_native.know_structures(STRUCTURES)
_loaded: ctypes.CDLL | None = None


def _load() -> ctypes.CDLL:
    global _loaded
    if _loaded is None:
        _loaded = _native.load_beside("libautopar.so")
    return _loaded


lib = _native.Functions(True, _native.by_name(PROTOTYPES), _load)


@dataclass(frozen=True)
class Sharding:
    """What was found for a program on a mesh."""

    module: str  # Python text, as `autopar shard --export-jax` writes it
    objective: float  # seconds of a step with a profile, else Alpa's unit
    bound: float  # no sharding is below
    optimal: bool
    peak_bytes: int  # of a device
    seconds: float  # that the solver took


class _Text:
    """A FILE in memory."""

    def __init__(self) -> None:
        self._c = ctypes.CDLL(None)
        self._c.open_memstream.restype = c_void_p
        self._c.open_memstream.argtypes = [POINTER(c_void_p), POINTER(c_size_t)]
        self._c.fclose.argtypes = self._c.free.argtypes = [c_void_p]
        self._address, self._size = c_void_p(), c_size_t()
        self.stream = self._c.open_memstream(ctypes.byref(self._address), ctypes.byref(self._size))
        if not self.stream:
            raise MemoryError("no stream in memory")

    def close(self) -> str:
        self._c.fclose(self.stream)
        text = ctypes.string_at(self._address, self._size.value).decode()
        self._c.free(self._address)
        return text


def shard_hlo(
    text: str,
    mesh_shape: Sequence[int],
    *,
    hosts: int = 1,
    cluster: str | os.PathLike[str] | None = None,
    memory_limit: float | None = None,
    time_limit: float = 0.0,
    threads: int = 0,
    seed: int = 1,
    recompute: bool = False,
) -> Sharding:
    """The best sharding of a program, given as HLO text, for a mesh of 1 to 3 axes on `hosts` hosts.

    `cluster`: a measured profile (`autopar probe`); without one Alpa's constants rank the collectives. `memory_limit`:
    bytes that a device has. The solver takes `time_limit` seconds at most (0: one second, more if it has no plan yet).
    """
    shape, size = tuple(mesh_shape), 1
    for extent in shape:
        size *= extent
    if not 1 <= len(shape) <= MAX_MESH_RANK or size < 1:
        raise InputError(f"a mesh of shape {shape}; the planner knows meshes of 1 to {MAX_MESH_RANK} axes")
    if hosts < 1 or size % hosts != 0:
        raise InputError(f"the {size} devices of a mesh {shape} do not spread evenly over {hosts} hosts")
    encoded = text.encode()
    with contextlib.ExitStack() as stack:

        def made(destroy: str, call: Any, *arguments: Any) -> c_void_p:
            handle = c_void_p()
            call(*arguments, handle)
            stack.callback(getattr(_native.lib if destroy.startswith("xm_") else lib, destroy), handle)
            return handle

        graph, notes = c_void_p(), c_void_p()
        lib.ap_hlo_from_text(encoded, len(encoded), b"the program", graph, notes)
        stack.callback(lib.ap_graph_destroy, graph)
        stack.callback(lib.ap_frontend_notes_destroy, notes)
        if cluster is None:
            alpa = AlpaParams(struct_size=ctypes.sizeof(AlpaParams), replicated_penalty=2)
            alpa.alpha[:], alpa.beta[:] = (1, 1, 1), (1, 0.1, 0.1)
            model = made("ap_cost_model_destroy", lib.ap_cost_model_create_alpa, alpa)
        else:
            whole = made("xm_cluster_profile_destroy", _native.lib.xm_cluster_profile_load, os.fsencode(cluster))
            fit = made("xm_cluster_profile_destroy", _native.lib.xm_cluster_profile_resize, whole, hosts, size // hosts)
            model = made("ap_cost_model_destroy", lib.ap_cost_model_create_profile, fit)
        mesh = made("ap_cost_mesh_destroy", lib.ap_cost_mesh_create, model, hosts, size // hosts,
                    _native.ints(shape), len(shape))  # fmt: skip
        params = ShardParams(struct_size=ctypes.sizeof(ShardParams), graph=graph, mesh=mesh, without_tables=True)
        problem = made("ap_shard_problem_destroy", lib.ap_shard_problem_create, params)
        options = ShardOptions(
            struct_size=ctypes.sizeof(ShardOptions),
            seconds=time_limit,
            threads=threads,
            seed=seed,
            memory_limit=memory_limit or 0.0,
            recompute=recompute,
        )
        plan = made("ap_shard_plan_destroy", lib.ap_shard_solve, problem, options)
        result = lib.ap_shard_plan_result(plan).contents
        solution = made("ap_shard_solution_destroy", lib.ap_shard_solution_create, problem,
                        lib.ap_shard_plan_strategies(plan))  # fmt: skip
        written = _Text()
        try:
            lib.ap_export_jax(solution, notes, written.stream)
        finally:
            module = written.close()
        return Sharding(module, result.objective, result.bound, result.optimal, int(result.peak), result.seconds)
