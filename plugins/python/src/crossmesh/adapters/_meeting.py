# SPDX-License-Identifier: Apache-2.0
"""How the ranks of two programs, which have no process group in common, become one job: they are a world of a meeting."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..job import Job
from ..meeting import TIMEOUT, Meeting, Place, own_address

__all__ = ["TIMEOUT", "find_store", "join", "open_store", "own_address"]


def open_store(address: str, port: int = 0, timeout: float = TIMEOUT) -> Any:
    """The place at which the others will meet; a free port where `port` is 0. It is there as long as the object."""
    return Place(f"tcp://{address}:{port}")


def find_store(address: str, port: int, timeout: float = TIMEOUT) -> Any:
    return f"tcp://{address}:{port}"


def join(
    store: Place | str,
    name: str,
    rank: int,
    size: int,
    *,
    timeout: float = TIMEOUT,
    progress_thread: bool = False,
    watch: Callable[[], None] | None = None,
) -> Job:
    """The job of that name at the place; rank -1 is the last that is free. Collective. `watch` is called while the
    ranks meet and may give up."""
    address = store if isinstance(store, str) else store.address
    meeting = Meeting(address, "peer", name, rank, size, timeout=timeout, watch=watch)
    try:
        return meeting.job(watch=watch, progress_thread=progress_thread)
    finally:
        meeting.close()
