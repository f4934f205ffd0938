# SPDX-License-Identifier: Apache-2.0
"""The caller's own allgather, through which the ranks of a job can meet, as the table of functions that C wants."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

from . import _abi, _native
from .errors import InputError

__all__ = ["CallerAllgather", "OutOfBand"]


class OutOfBand:
    """An allgather in two parts; subclasses say how. All ranks start the same ones in the same order."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size

    def start(self, data: bytes) -> Any:
        """Starts gathering `data`, which is as long on all ranks; gives something to ask `test` with."""
        raise NotImplementedError

    def test(self, token: Any) -> Sequence[bytes] | None:
        """Every rank's data by rank, or None while some are missing. Does not wait."""
        raise NotImplementedError


class CallerAllgather(OutOfBand):
    """A function that waits, such as mpi4py's `comm.allgather`."""

    def __init__(self, rank: int, size: int, allgather: Callable[[bytes], Sequence[bytes]]) -> None:
        super().__init__(rank, size)
        self._allgather = allgather

    def start(self, data: bytes) -> Any:
        return self._allgather(data)

    def test(self, token: Any) -> Sequence[bytes] | None:
        gathered: Sequence[bytes] = token
        return gathered


class Table:
    """An OutOfBand as C's xm_oob_t. Must live as long as C may call it."""

    def __init__(self, source: OutOfBand) -> None:
        self._source = source
        self._live: dict[int, tuple[Any, int, int]] = {}
        self._next = 1
        self._pending: BaseException | None = None
        self.oob = _native.Oob(
            struct_size=ctypes.sizeof(_native.Oob),
            rank=source.rank,
            size=source.size,
            allgather_post=_abi.OOB_ALLGATHER_POST(self._post),
            allgather_test=_abi.OOB_ALLGATHER_TEST(self._test),
            allgather_free=_abi.OOB_ALLGATHER_FREE(self._free),
        )

    def raise_pending(self) -> None:
        """An exception cannot pass through C, so it is raised again here."""
        error, self._pending = self._pending, None
        if error is not None:
            raise error

    def _fail(self, error: BaseException) -> int:
        self._pending = error
        interrupted = not isinstance(error, Exception)
        return _native.ERR_CANCELED if interrupted else _native.ERR_IO

    def _post(self, _context: int, send: int, receive: int, length: int, request: Any) -> int:
        try:
            token = self._source.start(ctypes.string_at(send, length))
            self._live[self._next] = token, receive, length
            request[0] = self._next
            self._next += 1
        except BaseException as error:
            return self._fail(error)
        return _native.OK

    def _test(self, request: int) -> int:
        try:
            token, receive, length = self._live[request]
            parts = self._source.test(token)
            if parts is None:
                return _native.IN_PROGRESS
            if len(parts) != self._source.size or any(len(part) != length for part in parts):
                raise InputError(
                    f"the allgather of {length} bytes on {self._source.size} ranks has given "
                    f"{[len(part) for part in parts]} bytes"
                )
            ctypes.memmove(receive, b"".join(parts), length * len(parts))
        except BaseException as error:
            return self._fail(error)
        return _native.OK

    def _free(self, request: int) -> None:
        self._live.pop(request, None)
