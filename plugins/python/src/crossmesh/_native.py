"""libcrossmesh.so: where it is, and what this package calls in it.

The prototypes and structures below are C's own; a test has the compiler compare them with the headers. Functions
are declared when they are first used, so that importing the package costs nothing.
"""

from __future__ import annotations

import ctypes
import os
import re
import threading
from ctypes import POINTER, Structure, c_bool, c_char, c_char_p, c_double, c_int, c_int64
from ctypes import c_size_t, c_uint64, c_void_p
from typing import Any

from .errors import LibraryNotFoundError, from_status

OK, IN_PROGRESS = 0, 1
ERR_IO, ERR_TIMEOUT, ERR_CANCELED = -21, -61, -62
MAX_DIMS, MAX_AXES = 12, 8

ALLGATHER_POST = ctypes.CFUNCTYPE(c_int, c_void_p, c_void_p, c_void_p, c_size_t, POINTER(c_void_p))
ALLGATHER_TEST = ctypes.CFUNCTYPE(c_int, c_void_p)
ALLGATHER_FREE = ctypes.CFUNCTYPE(None, c_void_p)


class Oob(Structure):
    c_name = "xm_oob_t"
    _fields_ = [
        ("struct_size", c_size_t),
        ("rank", c_int),
        ("size", c_int),
        ("context", c_void_p),
        ("allgather_post", ALLGATHER_POST),
        ("allgather_test", ALLGATHER_TEST),
        ("allgather_free", ALLGATHER_FREE),
    ]


class JobEnv(Structure):
    c_name = "xm_job_env_t"
    _fields_ = [
        ("rank", c_int),
        ("size", c_int),
        ("master_addr", c_char * 256),
        ("master_port", c_int),
        ("pmix", c_bool),
    ]


class WorkerParams(Structure):
    c_name = "xm_worker_params_t"
    _fields_ = [
        ("struct_size", c_size_t),
        ("transport", c_char_p),
        ("host", c_char_p),
        ("listen_fd", c_int),
        ("timeout", c_double),
        ("oob", POINTER(Oob)),
        ("oob_only", c_bool),
    ]


class NetworkParams(Structure):
    c_name = "xm_network_params_t"
    _fields_ = [
        ("struct_size", c_size_t),
        ("ranks", c_int),
        ("host_of_rank", POINTER(c_int)),
        ("nic_bandwidth", c_double),
        ("nic_latency", c_double),
        ("host_bandwidth", c_double),
        ("host_latency", c_double),
        ("egress", POINTER(c_double)),
        ("ingress", POINTER(c_double)),
        ("rack_of_host", POINTER(c_int)),
        ("uplink_bandwidth", c_double),
    ]


class Box(Structure):
    c_name = "xm_box_t"
    _fields_ = [("dims", c_int), ("lo", c_int64 * MAX_DIMS), ("hi", c_int64 * MAX_DIMS)]


class Spec(Structure):
    c_name = "xm_spec_t"
    _fields_ = [
        ("dims", c_int),
        ("axis_count", c_int * MAX_DIMS),
        ("axes", (ctypes.c_uint8 * MAX_AXES) * MAX_DIMS),
    ]


class Tensor(Structure):
    c_name = "xm_tensor_t"
    _fields_ = [
        ("name", c_char_p),
        ("src", c_void_p),
        ("dst", c_void_p),
        ("element_bits", c_int),
    ]


class PlanParams(Structure):
    c_name = "xm_plan_params_t"
    _fields_ = [
        ("struct_size", c_size_t),
        ("tensors", POINTER(Tensor)),
        ("tensor_count", c_int),
        ("src", c_void_p),
        ("dst", c_void_p),
        ("element_size", c_int64),
        ("strategy", c_int),
        ("scheduler", c_int),
        ("chunk_bytes", c_uint64),
        ("seed", c_uint64),
        ("node_budget", c_int64),
        ("network", c_void_p),
    ]


class PlanInfo(Structure):
    c_name = "xm_plan_info_t"
    _fields_ = [
        ("struct_size", c_size_t),
        ("ranks", c_int),
        ("strategy", c_int),
        ("scheduler", c_int),
        ("strategy_name", c_char_p),
        ("scheduler_name", c_char_p),
        ("bytes", c_uint64),
        ("net_bytes", c_uint64),
        ("bound_ns", c_int64),
        ("makespan_ns", c_int64),
        ("hops", c_int64),
        ("digest", c_char * 33),
    ]


class PlanHop(Structure):
    c_name = "xm_plan_hop_t"
    _fields_ = [
        ("transfer", c_int64),
        ("sender", c_int),
        ("receiver", c_int),
        ("bytes", c_uint64),
        ("start_ns", c_int64),
        ("end_ns", c_int64),
    ]


class TensorBuffers(Structure):
    c_name = "xm_tensor_buffers_t"
    _fields_ = [
        ("src", c_void_p),
        ("src_bytes", c_uint64),
        ("dst", c_void_p),
        ("dst_bytes", c_uint64),
    ]


class ExecutorParams(Structure):
    c_name = "xm_executor_params_t"
    _fields_ = [
        ("struct_size", c_size_t),
        ("plan", c_void_p),
        ("transport", c_void_p),
        ("buffers", POINTER(TensorBuffers)),
        ("src", c_void_p),
        ("src_bytes", c_uint64),
        ("dst", c_void_p),
        ("dst_bytes", c_uint64),
        ("window", c_int),
        ("channel", c_int),
        ("memory_limit", c_uint64),
        ("turns", c_bool),
        ("turn_ahead", c_uint64),
        ("device_peers", c_bool),
        ("ordered", c_bool),
        ("no_copy", c_bool),
        ("tensor_done", c_void_p),
        ("arg", c_void_p),
    ]


STRUCTURES: tuple[Any, ...] = (
    Oob, JobEnv, WorkerParams, NetworkParams, Box, Spec, Tensor, PlanParams, PlanInfo, PlanHop,
    TensorBuffers, ExecutorParams,
)  # fmt: skip

HEADERS = ("crossmesh.h", "comm/worker.h", "resharding/checksum.h", "resharding/execute.h")

PROTOTYPES = """
const char *xm_last_error(void);
const char *xm_status_string(xm_status_t status);
xm_status_t xm_mesh_create(int axes, const int *sizes, const int *ranks, xm_mesh_t **mesh);
xm_status_t xm_mesh_parse(const char *shape, const char *ranks, int first_rank, xm_mesh_t **mesh);
void xm_mesh_destroy(xm_mesh_t *mesh);
int xm_mesh_axes(const xm_mesh_t *mesh);
int xm_mesh_axis_size(const xm_mesh_t *mesh, int axis);
int xm_mesh_size(const xm_mesh_t *mesh);
int xm_mesh_rank(const xm_mesh_t *mesh, int position);
int xm_mesh_position(const xm_mesh_t *mesh, int rank);
xm_status_t xm_spec_parse(const char *text, xm_spec_t *spec);
xm_status_t xm_layout_create(const xm_mesh_t *mesh, const xm_spec_t *spec, xm_partition_t partition, const int64_t *shape, xm_layout_t **layout);
xm_status_t xm_layout_create_explicit(const xm_mesh_t *mesh, const xm_spec_t *spec, const int64_t *shape, const int64_t *const *cuts, xm_layout_t **layout);
void xm_layout_destroy(xm_layout_t *layout);
int xm_layout_parts(const xm_layout_t *layout, int dim);
const int64_t *xm_layout_cuts(const xm_layout_t *layout, int dim);
int xm_layout_tile_of_rank(const xm_layout_t *layout, int rank);
void xm_layout_tile_box(const xm_layout_t *layout, int tile, xm_box_t *box);
uint64_t xm_layout_buffer_bytes(const xm_layout_t *layout, int rank, int64_t element_size);
xm_status_t xm_partition_parse(const char *name, xm_partition_t *partition);
xm_status_t xm_strategy_parse(const char *name, xm_strategy_t *strategy);
xm_status_t xm_scheduler_parse(const char *name, xm_scheduler_t *scheduler);
xm_status_t xm_network_create(const xm_network_params_t *params, xm_network_t **network);
xm_status_t xm_network_from_profile(const xm_cluster_profile_t *profile, int ranks, const int *host_of_rank, xm_network_t **network);
void xm_network_destroy(xm_network_t *network);
int xm_network_ranks(const xm_network_t *network);
int xm_network_hosts(const xm_network_t *network);
int xm_network_host_of(const xm_network_t *network, int rank);
xm_status_t xm_cluster_profile_load(const char *path, xm_cluster_profile_t **profile);
xm_status_t xm_cluster_profile_from_text(const char *text, size_t length, const char *source, xm_cluster_profile_t **profile);
xm_status_t xm_cluster_profile_resize(const xm_cluster_profile_t *profile, int hosts, int devices_per_host, xm_cluster_profile_t **resized);
int xm_cluster_profile_hosts(const xm_cluster_profile_t *profile);
int xm_cluster_profile_devices_per_host(const xm_cluster_profile_t *profile);
void xm_cluster_profile_destroy(xm_cluster_profile_t *profile);
xm_status_t xm_plan_create(const xm_plan_params_t *params, xm_plan_t **plan);
void xm_plan_destroy(xm_plan_t *plan);
xm_status_t xm_plan_info(const xm_plan_t *plan, xm_plan_info_t *info);
xm_status_t xm_plan_simulate(const xm_plan_t *plan, const xm_network_t *network, xm_sharing_t sharing, xm_plan_hop_t *hops, int64_t *makespan_ns);
xm_status_t xm_plan_verify(const xm_plan_t *plan);
xm_status_t xm_plan_to_json(const xm_plan_t *plan, char **text);
xm_status_t xm_job_env_read(xm_job_env_t *env);
xm_status_t xm_worker_create(const xm_job_env_t *env, const xm_worker_params_t *params, xm_worker_t **worker);
void xm_worker_destroy(xm_worker_t *worker, const char *reason);
int xm_worker_rank(const xm_worker_t *worker);
int xm_worker_size(const xm_worker_t *worker);
int xm_worker_host_of(const xm_worker_t *worker, int rank);
const char *xm_worker_host_name(const xm_worker_t *worker, int host);
xm_transport_t *xm_worker_transport(xm_worker_t *worker);
double xm_worker_timeout(const xm_worker_t *worker);
int64_t xm_worker_now(const xm_worker_t *worker);
xm_status_t xm_worker_wait(xm_worker_t *worker, int64_t deadline);
void xm_worker_wake(xm_worker_t *worker);
xm_status_t xm_worker_progress(xm_worker_t *worker);
xm_status_t xm_worker_allgather_post(xm_worker_t *worker, const void *send, void *receive, size_t length);
xm_status_t xm_worker_allgather_test(xm_worker_t *worker);
xm_status_t xm_worker_allgather_abandon(xm_worker_t *worker, double waited);
xm_status_t xm_message_send(xm_worker_t *worker, int peer, uint64_t tag, const void *buffer, size_t length, xm_message_t **message);
xm_status_t xm_message_receive(xm_worker_t *worker, int peer, uint64_t tag, void *buffer, size_t length, xm_message_t **message);
xm_status_t xm_message_test(const xm_message_t *message);
void xm_message_destroy(xm_message_t *message);
xm_status_t xm_group_abort(xm_worker_t *worker, const char *sentence);
xm_status_t xm_group_shrink(xm_worker_t *worker, double timeout);
int xm_group_generation(const xm_worker_t *worker);
int xm_group_job_rank(const xm_worker_t *worker, int rank);
xm_status_t xm_executor_create(const xm_executor_params_t *params, xm_executor_t **executor);
xm_status_t xm_executor_post(xm_executor_t *executor);
xm_status_t xm_executor_post_after(xm_executor_t *executor, void *stream);
xm_status_t xm_executor_advance(xm_executor_t *executor);
bool xm_executor_may_sleep(const xm_executor_t *executor);
uint64_t xm_executor_staging_bytes(const xm_executor_t *executor);
const char *xm_executor_device_path(const xm_executor_t *executor);
void xm_executor_destroy(xm_executor_t *executor);
xm_status_t xm_reshard_agree(xm_worker_t *worker, const xm_plan_t *plan, const char *dtype);
xm_status_t xm_reshard_wait(xm_worker_t *worker, xm_executor_t *executor, int64_t until, int64_t deadline);
xm_status_t xm_reshard_verify(xm_worker_t *worker, xm_executor_t *executor, int64_t deadline);
"""

_SCALARS: dict[str, Any] = {
    "void": None,
    "int": c_int,
    "bool": c_bool,
    "double": c_double,
    "int64_t": c_int64,
    "uint64_t": c_uint64,
    "size_t": c_size_t,
    "xm_status_t": c_int,
    "xm_partition_t": c_int,
    "xm_strategy_t": c_int,
    "xm_scheduler_t": c_int,
    "xm_sharing_t": c_int,
}
_BY_C_NAME: dict[str, Any] = {kind.c_name: kind for kind in STRUCTURES}


def know_structures(kinds: Any) -> None:
    """Lets prototypes name them."""
    _BY_C_NAME.update({kind.c_name: kind for kind in kinds})


def _ctype(text: str) -> Any:
    """The ctypes type of a C type, written without the name of what has it."""
    text = re.sub(r"\bconst\b", "", text).strip()
    base = text.rstrip("* ")
    depth = text.count("*")
    if depth == 0:
        return _SCALARS[base]
    if base == "char" and depth == 1:
        return c_char_p
    if base in _SCALARS and _SCALARS[base] is not None or base in _BY_C_NAME:
        kind = _SCALARS.get(base) or _BY_C_NAME[base]
    else:
        kind, depth = c_void_p, depth - 1  # handles are addresses
    for _ in range(depth):
        kind = POINTER(kind)
    return kind


def _parse(line: str) -> tuple[str, Any, list[Any]]:
    match = re.fullmatch(r"(.*?)(\w+)\((.*)\);", line)
    assert match is not None, line
    result, name, arguments = match.groups()
    kinds = [] if arguments == "void" else [_ctype(a[: re.search(r"\w+$", a).start()])  # type: ignore[union-attr]
                                            for a in arguments.split(", ")]  # fmt: skip
    return name, _ctype(result), kinds


def by_name(prototypes: str) -> dict[str, str]:
    """The lines of a list of prototypes."""
    return {line[: line.index("(")].split()[-1].lstrip("*"): line for line in prototypes.strip().splitlines()}


_LINES = by_name(PROTOTYPES)
_lock = threading.Lock()
_loaded: ctypes.CDLL | None = None
_path = ""


def _candidates() -> list[str]:
    given = os.environ.get("CROSSMESH_LIBRARY")
    if given:
        return [given]
    bundled = os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib", "libcrossmesh.so.0")
    return ([bundled] if os.path.exists(bundled) else []) + ["libcrossmesh.so.0", "libcrossmesh.so"]


def _load() -> ctypes.CDLL:
    global _loaded, _path
    with _lock:
        reasons = []
        for path in _candidates() if _loaded is None else ():
            try:
                _loaded, _path = ctypes.CDLL(path), path
                break
            except OSError as error:
                reasons.append(str(error))
        if _loaded is None:
            raise LibraryNotFoundError(
                "libcrossmesh.so cannot be loaded (CROSSMESH_LIBRARY may name it): " + "; ".join(reasons)
            )
        return _loaded


def library_path() -> str:
    """The library that is used, as it was given to the dynamic loader."""
    _load()
    return _path


def load_beside(name: str) -> ctypes.CDLL:
    """Another library of crossmesh: from the folder that libcrossmesh.so came from, else the installed one."""
    folder = os.path.dirname(library_path())
    beside = os.path.join(folder, name)
    path = beside if folder and os.path.exists(beside) else name
    try:
        return ctypes.CDLL(path)
    except OSError as error:
        raise LibraryNotFoundError(f"{name} cannot be loaded: {error}") from None


def last_error() -> str:
    """The library's sentence about the last failure on this thread."""
    text: bytes = raw.xm_last_error()
    return text.decode(errors="replace")


def _raise_failure(status: Any, _function: Any, _arguments: Any) -> Any:
    if status < 0:
        raise from_status(status, last_error())
    return status


class Functions:
    """Attributes are a library's functions. With `check`, statuses that are failures are raised."""

    def __init__(self, check: bool, lines: dict[str, str], load: Any) -> None:
        self._check, self._lines, self._load = check, lines, load

    def __getattr__(self, name: str) -> Any:
        line = self._lines.get(name)
        if line is None:
            raise AttributeError(name)
        _, result, arguments = _parse(line)
        library = self._load()
        try:
            function = ctypes.CFUNCTYPE(result, *arguments)((name, library))
        except AttributeError:
            raise LibraryNotFoundError(
                f"{library._name} has no function {name}: it is of another version than this package"
            ) from None
        if self._check and line.startswith("xm_status_t "):
            function.errcheck = _raise_failure
        setattr(self, name, function)
        return function


lib = Functions(True, _LINES, _load)
raw = Functions(False, _LINES, _load)


def handle() -> c_void_p:
    """Where C puts a handle."""
    return c_void_p()


def ints(values: Any) -> Any:
    """A C array of int."""
    values = list(values)
    return (c_int * max(1, len(values)))(*values)


def int64s(values: Any) -> Any:
    """A C array of int64_t."""
    values = list(values)
    return (c_int64 * max(1, len(values)))(*values)
