# SPDX-License-Identifier: Apache-2.0
"""libcrossmesh.so: where it is, and what this package calls in it.

Prototypes, structures and numbers are in _abi.py, which the build makes of the headers (scripts/generate-python-abi) and which
has what this package names. Functions are declared when they are first used, so
that importing the package costs nothing.
"""

from __future__ import annotations

import ctypes
import functools
import os
import threading
from collections.abc import Callable
from ctypes import c_int, c_int64, c_void_p
from typing import Any

from . import _abi
from ._abi import Box as Box
from ._abi import ConvertParams as ConvertParams
from ._abi import GroupShrinkParams as GroupShrinkParams
from ._abi import JobEnv as JobEnv
from ._abi import MeetingEvent as MeetingEvent
from ._abi import MeetingParams as MeetingParams
from ._abi import NetworkParams as NetworkParams
from ._abi import Oob as Oob
from ._abi import PlanHop as PlanHop
from ._abi import PlanInfo as PlanInfo
from ._abi import PlanParams as PlanParams
from ._abi import ReshardParams as ReshardParams
from ._abi import Spec as Spec
from ._abi import Tensor as Tensor
from ._abi import TensorBuffers as TensorBuffers
from ._abi import UpdateInfo as UpdateInfo
from ._abi import WorkerParams as WorkerParams
from .errors import LibraryNotFoundError, from_status

OK, IN_PROGRESS = _abi.XM_OK, _abi.XM_IN_PROGRESS
ERR_IO, ERR_TIMEOUT, ERR_CANCELED = _abi.XM_ERR_IO, _abi.XM_ERR_TIMEOUT, _abi.XM_ERR_CANCELED
MAX_DIMS, MAX_AXES = _abi.XM_MAX_DIMS, _abi.XM_MAX_AXES

_lock = threading.Lock()
_loaded: ctypes.CDLL | None = None
_path = ""


def _candidates() -> list[str]:
    given = os.environ.get("CROSSMESH_LIBRARY")
    if given:
        return [given]
    bundled = os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib", "libcrossmesh.so.1")
    return ([bundled] if os.path.exists(bundled) else []) + ["libcrossmesh.so.1", "libcrossmesh.so"]


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


@functools.cache
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


class Functions:
    """Attributes are a library's functions, of a table of _abi.py. With `sentence`, which has the library's words about
    the last failure on this thread, statuses that are failures are raised."""

    def __init__(
        self,
        table: dict[str, tuple[bool, Any, tuple[Any, ...]]],
        load: Callable[[], ctypes.CDLL],
        sentence: Callable[[], str] | None = None,
    ) -> None:
        self._table, self._load, self._sentence = table, load, sentence

    def __getattr__(self, name: str) -> Any:
        if name not in self._table:
            raise AttributeError(name)
        is_status, result, arguments = self._table[name]
        library = self._load()
        try:
            function = ctypes.CFUNCTYPE(result, *arguments)((name, library))
        except AttributeError:
            raise LibraryNotFoundError(
                f"{library._name} has no function {name}: it is of another version than this package"
            ) from None
        if self._sentence is not None and is_status:
            function.errcheck = self._raise_failure
        setattr(self, name, function)
        return function

    def _raise_failure(self, status: Any, _function: Any, _arguments: Any) -> Any:
        if status < 0 and self._sentence is not None:
            raise from_status(status, self._sentence())
        return status


lib = Functions(_abi.CROSSMESH, _load, last_error)
raw = Functions(_abi.CROSSMESH, _load)


def handle() -> c_void_p:
    """Where C puts a handle."""
    return c_void_p()


def ints(values: Any) -> Any:
    """A C array of int."""
    values = list(values)
    return (c_int * max(1, len(values)))(*values)


def doubles(values: Any) -> Any:
    """A C array of double; None for None."""
    return None if values is None else (ctypes.c_double * max(1, len(values)))(*values)


def int64s(values: Any) -> Any:
    """A C array of int64_t."""
    values = list(values)
    return (c_int64 * max(1, len(values)))(*values)
