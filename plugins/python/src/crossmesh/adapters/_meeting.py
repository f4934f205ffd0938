# SPDX-License-Identifier: Apache-2.0
"""How the ranks of two programs, which have no process group in common, become one job: at a TCPStore."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from ..errors import NetworkError
from ..job import Job
from ..torch._store import StoreAllgather

TIMEOUT = 120.0


def own_address() -> str:
    """An address of this machine that others reach: that of the interface which has the default route. No packet is
    sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # an address for documentation, so nobody's
        except OSError:
            return "127.0.0.1"
        return str(probe.getsockname()[0])


def open_store(address: str, port: int = 0, timeout: float = TIMEOUT) -> Any:
    """The store at which the others will meet; a free port where `port` is 0."""
    return _store(address, port, timeout, True)


def find_store(address: str, port: int, timeout: float = TIMEOUT) -> Any:
    return _store(address, port, timeout, False)


def _store(address: str, port: int, timeout: float, opens: bool) -> Any:
    try:
        return dist.TCPStore(address, port, is_master=opens, wait_for_workers=False, timeout=timedelta(seconds=timeout))
    except RuntimeError as error:
        reason = str(error).splitlines()[0]
        what = "cannot open a store" if opens else f"have found no store within {timeout:g} s"
        raise NetworkError(f"{what} for the ranks to meet at {address}:{port}: {reason}") from error


class _Meeting(StoreAllgather):
    """Given up when `watch` raises."""

    def __init__(self, store: Any, rank: int, size: int, watch: Callable[[], None] | None) -> None:
        super().__init__(store, rank, size)
        self._watch = watch

    def test(self, token: Any) -> Sequence[bytes] | None:
        if self._watch is not None:
            self._watch()
        return super().test(token)


def join(
    store: Any,
    name: str,
    rank: int,
    size: int,
    *,
    timeout: float = TIMEOUT,
    progress_thread: bool = False,
    watch: Callable[[], None] | None = None,
) -> Job:
    """The job of that name at the store. Collective. `watch` is called while the ranks meet and may give up."""
    meeting = _Meeting(dist.PrefixStore(name, store), rank, size, watch)
    return Job.from_oob(meeting, timeout=timeout, progress_thread=progress_thread)
