# SPDX-License-Identifier: Apache-2.0
"""The job that the devices of a JAX program make up: one rank for each device."""

from __future__ import annotations

import atexit
import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, TypeVar

import jax

from ..errors import AbortedError, CrossmeshError, InputError
from ..job import Job
from ._store import LocalStore, ServiceStore, StoreAllgather

Result = TypeVar("Result")
_LOOK_S = 0.2  # how long Ctrl-C may go unseen


def _service() -> Any:
    """jax.distributed's client, or None where it was not initialised."""
    from jax._src import distributed

    return distributed.global_state.client


class Devices:
    """A Job for every local device of a backend. Collective: every process of the JAX program makes one.

    `timeout` is the deadline in seconds of every wait, XM_TIMEOUT where it is not given.
    """

    _made = 0

    def __init__(self, backend: str | None = None, *, timeout: float | None = None) -> None:
        everyone = sorted(jax.devices(backend), key=lambda device: device.id)
        self.rank_of: dict[int, int] = {device.id: rank for rank, device in enumerate(everyone)}
        self.platform: str = everyone[0].platform
        self.local = [device for device in everyone if device.process_index == jax.process_index()]
        if not self.local:
            raise InputError(f"process {jax.process_index()} has no {self.platform} device")
        client = _service()
        if client is None and jax.process_count() > 1:
            raise InputError("the JAX program has several processes: call jax.distributed.initialize() first")
        store = LocalStore() if client is None else ServiceStore(client)
        prefix = f"crossmesh/{Devices._made}"
        Devices._made += 1
        self._pool = ThreadPoolExecutor(len(self.local), thread_name_prefix="crossmesh")
        self.jobs: list[Job] = []  # of the local devices
        tables = [StoreAllgather(store, prefix, self.rank_of[d.id], len(everyone)) for d in self.local]
        futures = [self._pool.submit(Job.from_oob, table, timeout=timeout) for table in tables]
        self.jobs = self._collect(futures)
        # Before the threads of pools are joined, which is before atexit's own callbacks.
        getattr(threading, "_register_atexit", atexit.register)(self.close)

    @property
    def closed(self) -> bool:
        return any(job.closed for job in self.jobs)

    @property
    def first(self) -> Job:
        """The job of the first local device, for what is equal on all of them."""
        return self.jobs[0]

    def each(self, function: Callable[[Job, Any], Result]) -> list[Result]:
        """Calls it for every local device at once, since ranks of one process wait for each other as well."""
        if len(self.jobs) == 1:
            return [function(self.jobs[0], self.local[0])]
        return self._collect([self._pool.submit(function, j, d) for j, d in zip(self.jobs, self.local)])

    def _collect(self, futures: list[Future[Result]]) -> list[Result]:
        """All results, or the error that says most: that another rank has given up says least."""
        try:
            while wait(futures, timeout=_LOOK_S).not_done:
                pass
        except (KeyboardInterrupt, SystemExit) as reason:
            for job in self.jobs:
                with contextlib.suppress(CrossmeshError):
                    job.abort(f"interrupted ({type(reason).__name__})")
            wait(futures)
            raise
        errors = [error for error in (future.exception() for future in futures) if error is not None]
        if errors:
            raise next((error for error in errors if not isinstance(error, AbortedError)), errors[0])
        return [future.result() for future in futures]

    def close(self) -> None:
        """Leaves the jobs. Collective; done at exit, too."""
        jobs, self.jobs = self.jobs, []
        if not jobs:
            return
        wait([self._pool.submit(job.close) for job in jobs])
        self._pool.shutdown()


_default: Devices | None = None


def default_devices(**options: Any) -> Devices:
    """The devices of the default backend; made when first asked for, by all processes. `options` are Devices'."""
    global _default
    if _default is None:
        _default = Devices(**options)
    return _default


def shutdown() -> None:
    """Leaves the default job. Done at exit, too. Collective."""
    global _default
    devices, _default = _default, None
    if devices is not None:
        devices.close()
