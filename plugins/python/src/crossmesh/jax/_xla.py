# SPDX-License-Identifier: Apache-2.0
"""libcrossmesh-xla.so: the custom call, and what it needs to know of this JAX."""

from __future__ import annotations

import ctypes
import os
import re
from ctypes import c_void_p
from typing import Any

import jax

from .. import _abi, _native
from ..errors import LibraryNotFoundError

TARGET = "crossmesh_transfer"
Part = _abi.XlaPart


def _load() -> ctypes.CDLL:
    return _native.load_beside("libcrossmesh-xla.so")


lib = _native.Functions(_abi.XLA, _load, _native.last_error)


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
