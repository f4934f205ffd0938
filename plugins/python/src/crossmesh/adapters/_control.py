# SPDX-License-Identifier: Apache-2.0
"""Calls of a framework's control plane while this rank does its part of the transfer."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any

from ..errors import CrossmeshError
from ..job import Job

# Seconds for the other side to say why, after a transfer has failed.
TIMEOUT = 5.0


class Call:
    """A call that waits for the other side, made by a thread of its own. When it fails first, so does the transfer."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self._function, self._arguments = function, arguments
        self._error: BaseException | None = None
        self._job: Job | None = None
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._make, name="crossmesh-control", daemon=True)
        self._thread.start()

    def _make(self) -> None:
        try:
            self._function(*self._arguments)
        except BaseException as error:
            with self._lock:
                self._error = error
                job, self._job = self._job, None
            if job is not None:
                self._give_up(job)

    def _give_up(self, job: Job) -> None:
        with contextlib.suppress(CrossmeshError):  # the job may have ended by itself
            job.abort(f"{self._name()} failed: {self._error}")

    def _name(self) -> str:
        return getattr(self._function, "__name__", "a call of the control plane")

    def check(self) -> None:
        """Raises what the call has raised."""
        if self._error is not None:
            raise self._error

    def ends_with(self, job: Job) -> None:
        """From now on the call's failure ends what the job does."""
        with self._lock:
            if self._error is None:
                self._job = job
                return
        self._give_up(job)

    def wait(self, timeout: float, failure: BaseException | None = None) -> None:
        """For the call's end, after that of the transfer. Raises what the call has raised, as the cause of the
        transfer's failure where that has failed as well."""
        with self._lock:
            self._job = None
        self._thread.join(timeout if failure is None else min(timeout, TIMEOUT))
        if failure is not None and failure is not self._error:
            raise failure from self._error
        self.check()
        if self._thread.is_alive():
            raise TimeoutError(f"{self._name()} has not returned within {timeout:g} s after the transfer")
