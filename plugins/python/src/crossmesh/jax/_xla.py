"""libcrossmesh-xla.so: the custom call, and what it needs to know of this JAX."""

from __future__ import annotations

import ctypes
import os
import re
from ctypes import Structure, c_bool, c_double, c_int32, c_int64, c_size_t, c_uint64, c_void_p
from typing import Any

import jax

from .. import _native
from ..errors import LibraryNotFoundError

TARGET = "crossmesh_transfer"


class Part(Structure):
    c_name = "xm_xla_part_t"
    _fields_ = [
        ("struct_size", c_size_t),
        ("id", c_int64),
        ("position", c_int32),
        ("sends", c_bool),
        ("reshard", c_void_p),
        ("buffer", c_void_p),
        ("bytes", c_uint64),
        ("timeout", c_double),
    ]


STRUCTURES = (Part,)
HEADERS = ("plugins/xla/ffi_transfer.h",)
PROTOTYPES = """
void xm_xla_set_functions(int create, int set_available, int set_error);
xm_status_t xm_xla_seat_open(xm_worker_t *worker, xm_xla_seat_t **seat);
void xm_xla_lock(xm_xla_seat_t *seat);
void xm_xla_unlock(xm_xla_seat_t *seat);
xm_status_t xm_xla_add(xm_xla_seat_t *seat, const xm_xla_part_t *part);
void xm_xla_remove(xm_xla_seat_t *seat, int64_t id, const char *reason);
void xm_xla_seat_close(xm_xla_seat_t *seat);
"""

_native.know_structures(STRUCTURES)
_loaded: ctypes.CDLL | None = None


def _load() -> ctypes.CDLL:
    global _loaded
    if _loaded is None:
        _loaded = _native.load_beside("libcrossmesh-xla.so")
    return _loaded


lib = _native.Functions(True, _native.by_name(PROTOTYPES), _load)


def _functions_of_this_jax() -> list[str]:
    """The functions of XLA's FFI in the order of this version's header: some have been inserted over time."""
    ffi = getattr(jax, "ffi", None)
    if ffi is None:
        raise LibraryNotFoundError(f"JAX {jax.__version__} has no jax.ffi; transfers inside jit need 0.5 or later")
    with open(os.path.join(ffi.include_dir(), "xla", "ffi", "api", "c_api.h"), encoding="utf-8") as header:
        table = header.read().partition("struct XLA_FFI_Api {")[2].partition("};")[0]
    return re.findall(r"_XLA_FFI_API_STRUCT_FIELD\((\w+)\);", table)


_registered = False


def register() -> None:
    """Makes the custom call known to XLA, once."""
    global _registered
    if _registered:
        return
    functions = _functions_of_this_jax()
    wanted = ["XLA_FFI_Future_Create", "XLA_FFI_Future_SetAvailable", "XLA_FFI_Future_SetError"]
    if any(name not in functions for name in wanted) or functions[0] != "XLA_FFI_Error_Create":
        raise LibraryNotFoundError(f"the FFI of JAX {jax.__version__} knows no asynchronous calls")
    lib.xm_xla_set_functions(*[functions.index(name) for name in wanted])
    handler = ctypes.cast(_load().xm_xla_transfer, c_void_p)
    jax.ffi.register_ffi_target(TARGET, jax.ffi.pycapsule(handler), platform="cpu")
    _registered = True


def address(array: Any) -> int:
    """Of a NumPy array's data."""
    return int(array.ctypes.data)
