"""Persistent reshards: made once for a plan and buffers, run as often as the buffers' contents change."""

from __future__ import annotations

import ctypes
import threading
import time
import weakref
from collections.abc import Sequence
from typing import Any

from . import _native
from ._native import IN_PROGRESS, lib, raw
from .buffers import Buffer
from .errors import AbortedError, CrossmeshError, InputError, from_status
from .job import Grave, Job
from .plan import Plan

__all__ = ["Request", "Reshard"]


class Request:
    """A run that was posted. The buffers belong to it until it is done."""

    def __init__(self, job: Job, reshard: Reshard | None, deadline: int) -> None:
        self._reshard = reshard
        self._executor = None if reshard is None else reshard._executor
        self._job, self._deadline = job, deadline
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
            with self._job._seat() as worker:
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
        """Goes on, until some time if that is given. True: go on without sleeping. Needs the job's seat."""
        if self.done:
            return False
        job = self._job
        if until is None:
            status = raw.xm_executor_advance(self._executor)
            if status == IN_PROGRESS and job._now() < self._deadline:
                return not raw.xm_executor_may_sleep(self._executor)
        status = raw.xm_executor_wait(job._worker, self._executor, until or 0, self._deadline)
        if status == IN_PROGRESS:
            return not raw.xm_executor_may_sleep(self._executor)
        self._finish(from_status(status, _native.last_error()) if status < 0 else None)
        return True

    def _finish(self, error: CrossmeshError | None) -> None:
        reshard = self._reshard
        if error is not None and reshard is not None:
            reshard._spent[0] = True
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


class Reshard:
    """Runs a plan between buffers of all ranks: `Reshard(job, plan, src=my_tile, dst=other_tile)`. Collective.

    `src` and `dst` are this rank's tiles: a buffer for a plan of one tensor, else one for each tensor, None where the
    rank holds nothing. `dtype` is compared on all ranks, as is the plan, before a byte moves. Sources are never
    written. The buffers are kept alive, and belong to a run from `post()` to its end.
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
    ) -> None:
        self._job, self.plan = job, plan
        self._executor: int | None = None
        count = len(plan.tensors)
        try:
            if plan.ranks > job.size:
                raise InputError(f"the plan names rank {plan.ranks - 1} of {job.size} ranks")
            sources, targets = _buffers("source", src, count), _buffers("destination", dst, count)
            for tensor, target in enumerate(targets):
                if target is not None and target.readonly:
                    raise InputError(f"the destination of tensor {tensor} is read-only")
        except CrossmeshError:
            job._refuse()
            raise
        if dtype is None:
            dtype = ",".join(str(tensor.bits) for tensor in plan.tensors) + " bits"
        with job._seat() as worker:
            channel = job._agree_on_channel()
            lib.xm_reshard_agree(worker, plan._handle, dtype.encode())
            table = (_native.TensorBuffers * count)()
            for entry, source, target in zip(table, sources, targets):
                if source is not None:
                    entry.src, entry.src_bytes = source.address or None, source.nbytes
                if target is not None:
                    entry.dst, entry.dst_bytes = target.address or None, target.nbytes
            params = _native.ExecutorParams(
                struct_size=ctypes.sizeof(_native.ExecutorParams),
                plan=plan._handle,
                transport=raw.xm_worker_transport(worker),
                buffers=table,
                window=window,
                channel=channel,
                memory_limit=memory_limit,
                turns=turns,
                turn_ahead=turn_ahead,
                device_peers=device_peers,
            )
            executor = ctypes.c_void_p()
            status = raw.xm_executor_create(params, executor)
            failure = _native.last_error() if status < 0 else ""
            # A rank without an executor would leave the others waiting, so all hear of it.
            try:
                verdicts = job._allgather_fixed(status.to_bytes(4, "little", signed=True), 4)
            except BaseException:
                raw.xm_executor_destroy(executor)
                raise
            failed = [r for r, v in enumerate(verdicts) if int.from_bytes(v, "little") != 0]
            if failed and status >= 0:
                raw.xm_executor_destroy(executor)
                first = int.from_bytes(verdicts[failed[0]], "little", signed=True)
                raise from_status(first, f"rank {failed[0]} could not prepare its part of the reshard")
            if status < 0:
                raise from_status(status, failure)
            job._channels &= ~(1 << channel)
            assert executor.value is not None
            self._executor = executor.value
            self._buffers = sources, targets
            self._request: Request | None = None
            self._spent = [False]
            self._finalizer = weakref.finalize(
                self, _bequeath, job, self._executor, channel, self._spent, (plan, self._buffers)
            )
            self._finalizer.atexit = False
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
        with job._seat():
            if self._executor is None:
                raise InputError("the reshard is closed")
            if self._request is not None and not self._request.done:
                raise InputError("the former run of this reshard has not ended")
            if stream is None:
                lib.xm_executor_post(self._executor)
            else:
                lib.xm_executor_post_after(self._executor, stream or None)
            seconds = job.timeout if timeout is None else timeout
            self._request = request = Request(job, self, job._now() + int(seconds * 1e9))
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
        job = self._job
        with job._seat() as worker:
            if self._executor is None:
                raise InputError("the reshard is closed")
            deadline = job._now() + int(job.timeout * 1e9)
            lib.xm_executor_verify(worker, self._executor, deadline)

    @property
    def staging_bytes(self) -> int:
        """Memory of this rank for packing, beside the buffers."""
        with self._job._seat():
            if self._executor is None:
                return 0
            return int(raw.xm_executor_staging_bytes(self._executor))

    @property
    def device_path(self) -> str:
        """How tiles on a CUDA device reach the network; empty where there are none."""
        with self._job._seat():
            if self._executor is None:
                return ""
            return str(raw.xm_executor_device_path(self._executor).decode())

    def close(self) -> None:
        """Frees the reshard. A run in flight is given up, here and on the other ranks."""
        job = self._job
        if self._executor is None or job.closed or not self._finalizer.alive:
            return
        with job._seat():
            if self._request is not None and not self._request.done:
                job._abort("a reshard was closed while it ran")
                if not self._request.done:
                    self._request._finish(AbortedError("the reshard was closed while it ran"))
            self._finalizer()
            job._bury()
            self._executor = None

    def __enter__(self) -> Reshard:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Reshard of {self.plan!r}>"


def _bequeath(job: Job, executor: int, channel: int, spent: list[bool], kept: tuple[Any, ...]) -> None:
    """The collector may call this at any time, so the executor is only put aside. Buffers stay until it is gone."""
    job._graves.append(Grave(executor, channel, spent, kept))
