# SPDX-License-Identifier: Apache-2.0
"""Where a tile lies: memory of NumPy, PyTorch, JAX, CuPy, or of anything that speaks one of their protocols.

`Buffer.of()` understands `__cuda_array_interface__`, `__dlpack__`, `__array_interface__` and Python's buffer
protocol. Nothing is copied. Tiles are row-major without padding, so anything else is refused.
"""

from __future__ import annotations

import ctypes
import re
import weakref
from collections.abc import Callable, Sequence
from ctypes import POINTER, Structure, c_int32, c_int64, c_uint8, c_uint16, c_uint32, c_uint64
from ctypes import c_void_p
from typing import Any

from .errors import InputError

__all__ = ["Buffer"]


class _DLDevice(Structure):
    _fields_ = [("device_type", c_int32), ("device_id", c_int32)]


class _DLDataType(Structure):
    _fields_ = [("code", c_uint8), ("bits", c_uint8), ("lanes", c_uint16)]


class _DLTensor(Structure):
    _fields_ = [
        ("data", c_void_p),
        ("device", _DLDevice),
        ("ndim", c_int32),
        ("dtype", _DLDataType),
        ("shape", POINTER(c_int64)),
        ("strides", POINTER(c_int64)),
        ("byte_offset", c_uint64),
    ]


# A deleter may belong to Python, so it is called with the interpreter's lock held.
_DELETER = ctypes.PYFUNCTYPE(None, c_void_p)


class _DLManagedTensor(Structure):
    _fields_ = [("dl_tensor", _DLTensor), ("manager_ctx", c_void_p), ("deleter", c_void_p)]


class _DLManagedTensorVersioned(Structure):
    _fields_ = [
        ("major", c_uint32),
        ("minor", c_uint32),
        ("manager_ctx", c_void_p),
        ("deleter", c_void_p),
        ("flags", c_uint64),
        ("dl_tensor", _DLTensor),
    ]


_READ_ONLY, _IS_COPIED = 1, 2
_HOST_KINDS = {1: "cpu", 3: "cuda_host"}
_CUDA_KINDS = {2: "cuda", 13: "cuda_managed"}
# Names of capsules; they must outlive the capsules that have them.
_NEW, _NEW_USED = b"dltensor_versioned", b"used_dltensor_versioned"
_OLD, _OLD_USED = b"dltensor", b"used_dltensor"

_capsule_is = ctypes.pythonapi.PyCapsule_IsValid
_capsule_is.argtypes, _capsule_is.restype = [ctypes.py_object, ctypes.c_char_p], ctypes.c_int
_capsule_get = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_get.argtypes, _capsule_get.restype = [ctypes.py_object, ctypes.c_char_p], c_void_p
_capsule_name = ctypes.pythonapi.PyCapsule_SetName
_capsule_name.argtypes, _capsule_name.restype = [ctypes.py_object, ctypes.c_char_p], ctypes.c_int


def _contiguous(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Row-major without padding; strides count elements. A tensor without elements always is."""
    expected = 1
    if 0 in shape:
        return True
    for extent, stride in zip(reversed(shape), reversed(strides)):
        if extent != 1 and stride != expected:
            return False
        expected *= extent
    return True


def _volume(shape: Sequence[int]) -> int:
    count = 1
    for extent in shape:
        count *= extent
    return count


class Buffer:
    """An address, its size, and what keeps the memory alive."""

    def __init__(
        self,
        address: int,
        nbytes: int,
        *,
        owner: object = None,
        readonly: bool = False,
        device: str = "cpu",
    ) -> None:
        self.address, self.nbytes = address, nbytes
        self.readonly, self.device, self.owner = readonly, device, owner
        self._release: Callable[[], Any] | None = None

    @classmethod
    def of(cls, thing: object) -> Buffer:
        """The memory of an array."""
        if isinstance(thing, Buffer):
            return thing
        if hasattr(thing, "__cuda_array_interface__"):
            return cls._of_interface(thing, thing.__cuda_array_interface__, "cuda")
        if hasattr(thing, "__dlpack__"):
            try:
                return cls._of_dlpack(thing)
            except (BufferError, TypeError, RuntimeError) as error:
                # Read-only arrays and some element types are not exported; there may be another way.
                if not hasattr(thing, "__array_interface__"):
                    raise InputError(f"a {type(thing).__name__} does not lend its memory: {error}") from error
        if hasattr(thing, "__array_interface__"):
            return cls._of_interface(thing, thing.__array_interface__, "cpu")
        return cls._of_memory(thing)

    @classmethod
    def _of_interface(cls, thing: object, about: dict[str, Any], device: str) -> Buffer:
        shape, kind = tuple(about["shape"]), about["typestr"]
        itemsize = int(re.match(r"\d+", kind[2:])[0])  # type: ignore[index]
        itemsize *= 4 if kind[1] == "U" else 1  # characters
        strides = about.get("strides")
        if about.get("data") is None:
            raise InputError("an array without an address cannot be moved")
        address, readonly = about["data"]
        steps = None if strides is None else [s // max(1, itemsize) for s in strides]
        if steps is not None and not _contiguous(shape, steps):
            raise InputError(f"an array of shape {shape} and strides {strides} is not row-major")
        size = _volume(shape) * itemsize
        return cls(address or 0, size, owner=thing, readonly=bool(readonly), device=device)

    @classmethod
    def _of_memory(cls, thing: object) -> Buffer:
        try:
            view = memoryview(thing)  # type: ignore[arg-type]
        except TypeError:
            raise InputError(f"{type(thing).__name__} has neither DLPack nor an array or buffer interface") from None
        if not view.c_contiguous:
            raise InputError("a buffer that is not row-major cannot be moved")
        if view.nbytes == 0:
            return cls(0, 0, owner=view, readonly=view.readonly)
        # ctypes gives the address of writable memory only, so the buffer's own structure is asked.
        raw = _PyBuffer()
        get, release = ctypes.pythonapi.PyObject_GetBuffer, ctypes.pythonapi.PyBuffer_Release
        get.argtypes = [ctypes.py_object, POINTER(_PyBuffer), ctypes.c_int]
        release.argtypes, release.restype = [POINTER(_PyBuffer)], None
        get(view, ctypes.byref(raw), 0)
        address = raw.buf
        release(ctypes.byref(raw))
        # The view itself holds the memory from here on.
        return cls(address, view.nbytes, owner=view, readonly=view.readonly)

    @classmethod
    def _of_dlpack(cls, thing: Any) -> Buffer:
        kind = 1
        if hasattr(thing, "__dlpack_device__"):
            kind = int(thing.__dlpack_device__()[0])
        # CUDA: the producer orders its work before the default stream, which a reshard follows.
        options: dict[str, Any] = {"stream": 1} if kind in _CUDA_KINDS else {}
        try:
            capsule = thing.__dlpack__(max_version=(1, 1), **options)
        except TypeError:
            capsule = thing.__dlpack__(**options)
        return cls._of_capsule(capsule)

    @classmethod
    def _of_capsule(cls, capsule: object) -> Buffer:
        managed: _DLManagedTensor | _DLManagedTensorVersioned
        readonly = False
        if _capsule_is(capsule, _NEW):
            address = _capsule_get(capsule, _NEW)
            managed = _DLManagedTensorVersioned.from_address(address)
            _capsule_name(capsule, _NEW_USED)
            if managed.major != 1:
                version = f"{managed.major}.{managed.minor}"
                _delete(address, managed.deleter)
                raise InputError(f"DLPack {version} is not understood, only 1.x and before")
            readonly = bool(managed.flags & _READ_ONLY)
        elif _capsule_is(capsule, _OLD):
            address = _capsule_get(capsule, _OLD)
            managed = _DLManagedTensor.from_address(address)
            _capsule_name(capsule, _OLD_USED)
        else:
            raise InputError("__dlpack__ has given no DLPack capsule, or one that was used before")
        deleter = managed.deleter
        try:
            buffer = cls._of_dltensor(managed.dl_tensor, readonly)
            if isinstance(managed, _DLManagedTensorVersioned) and managed.flags & _IS_COPIED:
                raise InputError("DLPack has given a copy, which nothing could be received into")
        except BaseException:
            _delete(address, deleter)
            raise
        # Called once: by release(), or else when nobody has the buffer any more.
        buffer._release = weakref.finalize(buffer, _delete, address, deleter)
        return buffer

    @classmethod
    def _of_dltensor(cls, tensor: _DLTensor, readonly: bool) -> Buffer:
        kind = tensor.device.device_type
        if kind not in _HOST_KINDS and kind not in _CUDA_KINDS:
            raise InputError(f"DLPack device type {kind} is neither host memory nor CUDA")
        shape = [tensor.shape[d] for d in range(tensor.ndim)]
        bits = tensor.dtype.bits * tensor.dtype.lanes
        if tensor.strides and not _contiguous(shape, [tensor.strides[d] for d in range(tensor.ndim)]):
            raise InputError(f"a DLPack tensor of shape {tuple(shape)} is not row-major")
        size = (_volume(shape) * bits + 7) // 8
        address = (tensor.data or 0) + tensor.byte_offset
        device = "cuda" if kind in _CUDA_KINDS else "cpu"
        return cls(address, size, readonly=readonly, device=device)

    def release(self) -> None:
        """Gives the memory back to who has lent it. Nothing may be using the buffer any more."""
        if self._release is not None:
            self._release()
        self.owner, self.address, self.nbytes = None, 0, 0

    def __repr__(self) -> str:
        return f"<Buffer of {self.nbytes} bytes at {self.address:#x} ({self.device})>"


class _PyBuffer(Structure):
    """Python's Py_buffer."""

    _fields_ = [
        ("buf", c_void_p),
        ("obj", c_void_p),
        ("len", ctypes.c_ssize_t),
        ("itemsize", ctypes.c_ssize_t),
        ("readonly", ctypes.c_int),
        ("ndim", ctypes.c_int),
        ("format", ctypes.c_char_p),
        ("shape", c_void_p),
        ("strides", c_void_p),
        ("suboffsets", c_void_p),
        ("internal", c_void_p),
    ]


def _delete(address: int, deleter: int | None) -> None:
    if deleter:
        _DELETER(deleter)(address)
