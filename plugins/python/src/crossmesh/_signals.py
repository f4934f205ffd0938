# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C at times when it does no harm.

Python may raise KeyboardInterrupt after any call, also between one that takes a lock and the statement that would give
it back. What must not be torn apart stands in `shielded()`: Ctrl-C is kept until its end, or until it calls `hear()`.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from signal import SIGINT
from typing import Any

try:  # the functions themselves: those of signal make enumerators of what they give, which takes twenty microseconds
    from _signal import getsignal, signal  # type: ignore[import-not-found]
except ImportError:
    from signal import getsignal, signal

_kept: list[tuple[int, Any]] = []
_meant_for: Any = None


def _keep(number: int, frame: Any) -> None:
    _kept.append((number, frame))


def _pass_on(handler: Any) -> None:
    number, frame = _kept[-1]
    _kept.clear()
    handler(number, frame)


@contextlib.contextmanager
def shielded() -> Iterator[None]:
    """Does nothing in other threads, which Python does not interrupt, nor where the program ignores Ctrl-C."""
    global _meant_for
    handler = getsignal(SIGINT)
    if handler is _keep or not callable(handler) or threading.current_thread() is not threading.main_thread():
        yield
        return
    _kept.clear()
    _meant_for = handler
    signal(SIGINT, _keep)
    try:
        yield
    finally:
        signal(SIGINT, handler)
        if _kept:
            _pass_on(handler)


def hear() -> None:
    """In a shield: if Ctrl-C has come, now is a good time, and KeyboardInterrupt is raised."""
    if _kept and threading.current_thread() is threading.main_thread():
        _pass_on(_meant_for)
