# SPDX-License-Identifier: Apache-2.0
"""Persistent reshards: made once for a plan and buffers, run as often as the buffers' contents change."""

from __future__ import annotations

import ctypes
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from . import _abi, _native
from ._native import IN_PROGRESS, lib, raw
from .buffers import Buffer
from .errors import AbortedError, CrossmeshError, InputError, from_status
from .job import Job
from .plan import Plan

__all__ = ["Request", "Reshard"]

_Made = TypeVar("_Made", bound="Made")
_VERIFY = {None: 0, "off": 1, "run": 2, "chunk": 3}


class Request:
    """A run that was posted. The buffers belong to it until it is done."""

    def __init__(self, job: Job, reshard: Reshard | None) -> None:
        self._job, self._reshard = job, reshard
        self._handle = None if reshard is None else reshard._handle
        # Free when the run has ended. No Event: those do not stand Ctrl-C in a wait.
        self._ended = threading.Lock()
        self._ended.acquire()
        self._done = False
        self._error: CrossmeshError | None = None

    @property
    def done(self) -> bool:
        """The run has ended, well or not. Does not make progress."""
        return self._done

    def test(self) -> bool:
        """Makes progress without waiting; true when the run has ended. Raises what ended it."""
        if not self.done:
            with self._job._slot() as worker:
                raw.xm_worker_progress(worker)
                self._step(0)
                self._job._advance({self})
        return self.done and self._result()

    def wait(self, timeout: float | None = None) -> None:
        """Returns when the run has ended; raises what ended it. Where `timeout` seconds pass first, the run goes on and
        TimeoutError is raised; it is the run's own deadline that ends a run. Ctrl-C aborts the job."""
        job = self._job
        limit = None if timeout is None else time.monotonic() + timeout
        try:
            while not self.done:
                job._check()
                if job._thread is not None and job._thread.is_alive():
                    if self._ended.acquire(timeout=0.05):
                        self._ended.release()
                else:
                    job._wait(self)
                if limit is not None and not self.done and time.monotonic() >= limit:
                    raise TimeoutError(f"the run has not ended within {timeout} s; it goes on")
        except (KeyboardInterrupt, SystemExit) as reason:
            if not self._done:
                job.abort(f"interrupted ({type(reason).__name__})")
            raise
        self._result()

    def _result(self) -> bool:
        if self._error is not None:
            raise self._error
        return True

    def _step(self, until: int | None = None) -> bool:
        """Goes on, until some time if that is given. True: do not sleep now. Needs the job's slot."""
        if self.done:
            return False
        if until is None:
            status = raw.xm_reshard_test(self._handle)
        else:
            status = raw.xm_reshard_wait(self._handle, until)
        if status == IN_PROGRESS:
            return False
        self._finish(from_status(status, _native.last_error()) if status < 0 else None)
        return True

    def _finish(self, error: CrossmeshError | None) -> None:
        self._error, self._reshard = error, None
        if self in self._job._requests:
            self._job._requests.remove(self)
        if not self._done:
            self._done = True
            self._ended.release()

    def _drop(self) -> None:
        """The job ends; what belongs to a reshard ends with that."""


def _buffers(what: str, given: Any, count: int) -> list[Buffer | None]:
    """One entry for each tensor; a single buffer will do for a single tensor."""
    if given is None:
        return [None] * count
    if not isinstance(given, (list, tuple)):
        given = [given]
    if len(given) != count:
        raise InputError(f"{len(given)} {what} buffers for a plan of {count} tensors")
    return [None if thing is None else Buffer.of(thing) for thing in given]


def _types(plan: Plan, dtype: str | None) -> bytes:
    """What ranks compare of element types."""
    return (dtype or ",".join(str(tensor.bits) for tensor in plan.tensors) + " bits").encode()


class Made:
    """What a job has made of a plan and this rank's tiles. It is freed by close(), at the end of a block, or in the
    job's turn once nobody has it."""

    _finalizer: weakref.finalize[Any, Any]

    def __init__(self, job: Job, plan: Plan) -> None:
        self._job, self.plan = job, plan
        self._handle: int | None = None

    def _tiles(self, src: Any, dst: Any, verify: str | None) -> Any:
        """This rank's tiles as C wants them. The buffers live as long as this."""
        count = len(self.plan.tensors)
        try:
            if verify not in _VERIFY:
                raise InputError(f"verify={verify!r} is none of off, run and chunk")
            self._buffers = _buffers("source", src, count), _buffers("destination", dst, count)
            table = (_native.TensorBuffers * count)()
            for tensor, (entry, source, target) in enumerate(zip(table, *self._buffers)):
                if target is not None and target.readonly:
                    raise InputError(f"the destination of tensor {tensor} is read-only")
                if source is not None:
                    entry.src, entry.src_bytes = source.address or None, source.nbytes
                if target is not None:
                    entry.dst, entry.dst_bytes = target.address or None, target.nbytes
        except CrossmeshError as error:
            self._job._refuse(error)
            raise
        return table

    def _destroyed_by(self, destroy: Callable[..., Any], *arguments: Any) -> None:
        self._finalizer = weakref.finalize(self, destroy, *arguments)
        self._finalizer.atexit = False

    def _check(self) -> int:
        if self._handle is None:
            raise InputError(f"the {type(self).__name__.lower()} is closed")
        return self._handle

    def _end_run(self) -> None:
        """What is in flight is given up."""

    def close(self) -> None:
        """Frees it. A run in flight is given up, here and on the other ranks."""
        job = self._job
        if self._handle is None or not self._finalizer.alive:
            return
        if job.closed:
            self._finalizer()
        else:
            with job._slot():
                self._end_run()
                self._finalizer()
                job._destroy_orphans()
        self._handle = None

    def _leave(self) -> None:
        """The group ends."""
        self.close()

    def __enter__(self: _Made) -> _Made:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.plan!r}>"


class Reshard(Made):
    """Runs a plan between buffers of all ranks: `Reshard(job, plan, src=my_tile, dst=other_tile)`. Collective.

    `src` and `dst` are this rank's tiles: a buffer for a plan of one tensor, else one for each tensor, None where the
    rank holds nothing. `dtype` is compared on all ranks, as is the plan, before a byte moves. Sources are never
    written. The buffers are kept alive, and belong to a run from `post()` to its end. `verify` is how runs prove that
    bytes arrive as they were sent: "off", "run" or "chunk"; None: as XM_VERIFY says.
    """

    def __init__(
        self,
        job: Job,
        plan: Plan,
        src: Sequence[Any] | Any = None,
        dst: Sequence[Any] | Any = None,
        *,
        dtype: str | None = None,
        memory_limit: int = 0,
        window: int = 0,
        turns: bool = False,
        turn_ahead: int = 0,
        device_peers: bool = False,
        verify: str | None = None,
    ) -> None:
        super().__init__(job, plan)
        table = self._tiles(src, dst, verify)
        told = _abi.RESHARD_PARAMS_TENSOR_DONE()
        if job._tensor_done is not None:
            names, tell = [tensor.name or "" for tensor in plan.tensors], job._tensor_done
            told = _abi.RESHARD_PARAMS_TENSOR_DONE(lambda _, tensor: tell(names[tensor]))
        with job._slot():
            self._handle = job._make_reshard(
                plan=plan._handle,
                buffers=table,
                dtype=_types(plan, dtype),
                window=window,
                memory_limit=memory_limit,
                turns=turns,
                turn_ahead=turn_ahead,
                device_peers=device_peers,
                verify=_VERIFY[verify],
                tensor_done=told,
            )
            self._request: Request | None = None
            self._destroyed_by(
                job._orphans.append, (raw.xm_reshard_destroy, self._handle, (plan, self._buffers, told))
            )
            job._reshards.add(self)

    def post(self, *, timeout: float | None = None, stream: int | None = None) -> Request:
        """Starts a run; the former one must have ended. `timeout`: seconds until its deadline, the job's otherwise.

        `stream`: a CUDA stream's address; device buffers are touched only after what is in it now. Without one they may
        be touched at once. When a run has ended, so has its work on the device.
        """
        former = self._request
        try:
            return self._post(timeout, stream)
        except (KeyboardInterrupt, SystemExit) as reason:
            if self._request is not former:
                self._give_up(reason)
            raise

    def _post(self, timeout: float | None, stream: int | None) -> Request:
        job = self._job
        with job._slot():
            handle = self._check()
            if self._request is not None and not self._request.done:
                raise InputError("the former run of this reshard has not ended")
            deadline = 0 if timeout is None else job._now() + int(timeout * 1e9)
            if stream is None:
                lib.xm_reshard_post(handle, deadline)
            else:
                lib.xm_reshard_post_after(handle, stream or None, deadline)
            self._request = request = Request(job, self)
            job._requests.append(request)
            with job._posted:
                job._posted.notify_all()
        return request

    def _give_up(self, reason: BaseException) -> None:
        """Whoever is interrupted does not have to know of the run."""
        if self._request is not None and not self._request.done:
            self._job.abort(f"interrupted ({type(reason).__name__})")

    def run(self, *, timeout: float | None = None, stream: int | None = None) -> None:
        """Posts and waits. All ranks that the plan names call it."""
        former = self._request
        try:
            self.post(timeout=timeout, stream=stream).wait()
        except (KeyboardInterrupt, SystemExit) as reason:
            if self._request is not former:
                self._give_up(reason)
            raise

    def verify(self) -> None:
        """After a run that went well on all ranks: proves by checksums that destinations hold what sources hold.
        CorruptDataError names tensor and box. All ranks call it."""
        with self._job._slot():
            lib.xm_reshard_verify(self._check(), 0)

    @property
    def staging_bytes(self) -> int:
        """Memory of this rank for packing, beside the buffers."""
        with self._job._slot():
            if self._handle is None:
                return 0
            return int(raw.xm_reshard_staging_bytes(self._handle))

    @property
    def device_path(self) -> str:
        """How tiles on a CUDA device reach the network; empty where there are none."""
        with self._job._slot():
            if self._handle is None:
                return ""
            return str(raw.xm_reshard_device_path(self._handle).decode())

    def _end_run(self) -> None:
        request = self._request
        if request is not None and not request.done:
            self._job._abort("a reshard was closed while it ran")
            if not request.done:
                request._finish(AbortedError("the reshard was closed while it ran"))
