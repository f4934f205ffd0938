# SPDX-License-Identifier: Apache-2.0
"""A job: the ranks that move tensors among each other, and this process's slot among them."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from . import _native
from ._native import IN_PROGRESS, lib, raw
from ._oob import CallerAllgather, OutOfBand, Table
from ._signals import hear, shielded
from .errors import CrossmeshError, ForkError, InputError, from_status
from .network import Network

if TYPE_CHECKING:
    from .plan import Plan
    from .reshard import Request, Reshard

__all__ = ["Job"]

# Longest time that a wait stays in C, so that signals are looked at.
SLICE_NS = 50_000_000
# The same over a caller's allgather, which cannot announce anything.
OOB_SLICE_NS = 1_000_000
# Bytes of all ranks together that an allgather may send in vain.
EAGER = 1 << 16

_forks = 0


def _count_fork() -> None:
    global _forks
    _forks += 1


os.register_at_fork(after_in_child=_count_fork)


class _BackgroundCall:
    """A call that waits in C, where nobody looks at signals: another thread makes it, so that Ctrl-C is heard. What it
    gives to nobody is undone."""

    def __init__(self, call: Callable[[], int], undo: Callable[[], None]) -> None:
        self._call, self._undo = call, undo
        self._turn, self._back = threading.Lock(), threading.Lock()  # the latter is free when the thread is back
        self._left = False
        self._result: tuple[int, str] | None = None
        self._back.acquire()

    def _run(self) -> None:
        status = self._call()
        sentence = _native.last_error() if status < 0 else ""  # which is the thread's own
        with self._turn:
            self._result = status, sentence
            left = self._left
        self._back.release()
        if left and status >= 0:
            self._undo()

    def result(self, watch: Callable[[], None] | None = None) -> tuple[int, str]:
        """Status and sentence. In a shield. `watch` is called meanwhile, and may give up by an exception."""
        threading.Thread(target=self._run, name="crossmesh-call", daemon=True).start()
        try:
            while self._result is None:
                hear()
                if watch is not None:
                    watch()
                self._back.acquire(timeout=0.05)
        except BaseException:
            with self._turn:
                self._left, late = True, self._result
            if late is not None and late[0] >= 0:
                self._undo()
            raise
        return self._result


class Job:
    """This process's slot in a job of `size` ranks. Made by `from_env()`, `from_allgather()`, `from_oob()`, `local()`.

    Making, closing and everything marked *collective* is done by all ranks, in the same order. Waits end with an
    exception when a rank dies or the deadline passes; Ctrl-C ends them, too, and tells the other ranks. Threads may
    share a job. A process that forks keeps its job; its children may not use it.

    `timeout` is the deadline in seconds of every wait, XM_TIMEOUT where it is not given. With `progress_thread`
    posted reshards go on while Python does something else; otherwise they do in waits only.
    """

    rank: int
    size: int
    timeout: float
    hosts: tuple[str, ...]
    host_of_rank: tuple[int, ...]
    _worker: int | None
    _table: Any  # must outlive the worker
    _forks: int
    _gate: threading.Lock  # who has it comes next
    _slot_lock: threading.Lock  # who has it has the worker
    _wake_lock: threading.Lock  # so that nobody wakes a worker that is being destroyed
    _owner_thread: int  # the thread that has the worker
    _requests: list[Request]  # that have not ended
    _posted: threading.Condition  # there are some
    _orphans: list[tuple[Callable[[int], None], int, Any]]  # how to destroy what nobody has any more, and what it uses
    _reshards: weakref.WeakSet[Any]  # and updates
    _slice: int
    _thread: threading.Thread | None
    _tensor_done: Callable[[str], None] | None = None  # told of each tensor of a plan that has ended on this rank

    def __init__(self) -> None:
        raise TypeError("a Job is made by Job.from_env(), .from_allgather(), .from_oob() or .local()")

    @classmethod
    def from_env(
        cls,
        *,
        timeout: float | None = None,
        host: str | None = None,
        progress_thread: bool = False,
    ) -> Job:
        """Joins the job that RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT (torchrun), mpirun or srun describe.
        Collective."""
        env = _native.JobEnv()
        lib.xm_job_env_read(env)
        return cls._create(env, None, timeout, host, progress_thread)

    @classmethod
    def from_allgather(
        cls,
        rank: int,
        size: int,
        allgather: Callable[[bytes], Sequence[bytes]],
        *,
        timeout: float | None = None,
        host: str | None = None,
        progress_thread: bool = False,
    ) -> Job:
        """Meets through the caller's own blocking allgather, such as mpi4py's `comm.allgather`. Collective."""
        return cls.from_oob(
            CallerAllgather(rank, size, allgather),
            timeout=timeout,
            host=host,
            progress_thread=progress_thread,
        )

    @classmethod
    def from_oob(
        cls,
        table: OutOfBand,
        *,
        timeout: float | None = None,
        host: str | None = None,
        progress_thread: bool = False,
        oob_only: bool = False,
    ) -> Job:
        """Meets through `table`. It is used to learn rank 0's address only, or for everything with `oob_only`: then
        the death of a rank is noticed by the transport or a deadline. Collective."""
        return cls._create(None, Table(table), timeout, host, progress_thread, oob_only)

    @classmethod
    def _from_table(cls, table: Any, *, timeout: float | None = None, progress_thread: bool = False) -> Job:
        """Meets through a table of C's own (meeting.py). Collective."""
        return cls._create(None, table, timeout, None, progress_thread)

    @classmethod
    def local(cls, *, timeout: float | None = None, progress_thread: bool = False) -> Job:
        """A job of this process alone."""
        alone = CallerAllgather(0, 1, lambda own: [own])
        return cls.from_oob(alone, timeout=timeout, progress_thread=progress_thread, oob_only=True)

    @classmethod
    def _create(
        cls,
        env: _native.JobEnv | None,
        table: Any,
        timeout: float | None,
        host: str | None,
        progress_thread: bool,
        oob_only: bool = False,
    ) -> Job:
        self = cls.__new__(cls)
        params = _native.WorkerParams(
            struct_size=ctypes.sizeof(_native.WorkerParams),
            host=None if host is None else host.encode(),
            listen_fd=-1,
            timeout=timeout or 0.0,
            oob=None if table is None else ctypes.pointer(table.oob),
            oob_only=oob_only,
        )
        worker = ctypes.c_void_p()
        own = isinstance(table, Table)
        if own:
            # It is the caller's, who may want it to be called in this thread, where Python hears of Ctrl-C.
            status = raw.xm_worker_create(env, params, worker)
            sentence = _native.last_error() if status < 0 else ""
            table.raise_pending()
        with shielded():
            if not own:
                call = _BackgroundCall(
                    lambda: int(raw.xm_worker_create(env, params, worker)),
                    lambda: raw.xm_worker_destroy(worker, b"interrupted while the job was made"),
                )
                status, sentence = call.result()
            if status < 0:
                raise from_status(status, sentence)
            self._take(worker.value, table, progress_thread, oob_only)
        return self

    def _take(self, worker: int | None, table: Any, progress_thread: bool, oob_only: bool) -> None:
        """The worker is this job's from here on."""
        self._worker, self._table, self._forks = worker, table, _forks
        self._gate, self._slot_lock = threading.Lock(), threading.Lock()
        self._wake_lock, self._posted = threading.Lock(), threading.Condition(threading.Lock())
        self._owner_thread = 0
        self._requests, self._orphans = [], []
        self._reshards = weakref.WeakSet()
        self._slice = OOB_SLICE_NS if oob_only else SLICE_NS
        self._read_slots()
        self._thread = None
        if progress_thread:
            self._thread = threading.Thread(target=_make_progress, args=(self,), name="crossmesh", daemon=True)
            self._thread.start()
        _open_jobs.add(self)

    def _read_slots(self) -> None:
        self.rank = raw.xm_worker_rank(self._worker)
        self.size = raw.xm_worker_size(self._worker)
        self.timeout = raw.xm_worker_timeout(self._worker)
        self.host_of_rank = tuple(raw.xm_worker_host_of(self._worker, r) for r in range(self.size))
        self.hosts = tuple(
            raw.xm_worker_host_name(self._worker, h).decode(errors="replace")
            for h in range(max(self.host_of_rank) + 1)
        )

    # The one way to the worker ---------------------------------------------------------------------

    def _check(self) -> None:
        if self._forks != _forks:
            raise ForkError("this process is a child of the one that the job belongs to; it needs a job of its own")
        if self._worker is None:
            raise InputError("the job is closed")

    @contextlib.contextmanager
    def _slot(self) -> Iterator[int]:
        """The worker, for this thread alone. The progress thread is asked to make room. Ctrl-C is heard at the end."""
        self._check()
        assert self._worker is not None
        if self._owner_thread == threading.get_ident():
            yield self._worker
            return
        with shielded():
            with self._gate:
                if not self._slot_lock.acquire(blocking=False):
                    # Who has it sleeps for a slice at most, and less after this.
                    with self._wake_lock:
                        if self._worker is not None:
                            raw.xm_worker_wake(self._worker)
                    self._slot_lock.acquire()
            self._owner_thread = threading.get_ident()
            try:
                self._check()
                self._destroy_orphans()
                yield self._worker
            finally:
                self._owner_thread = 0
                self._slot_lock.release()

    def _destroy_orphans(self) -> None:
        """Destroys what nobody has any more; the collector may not, as it may come at any time."""
        while self._orphans:
            destroy, handle, _kept = self._orphans.pop()
            destroy(handle)

    def _now(self) -> int:
        now: int = raw.xm_worker_now(self._worker)
        return now

    # Collectives -----------------------------------------------------------------------------------

    def barrier(self) -> None:
        """Returns when every rank has called it. Collective."""
        self._allgather_fixed(b"\0", 1)

    def allgather(self, data: bytes) -> list[bytes]:
        """The bytes of every rank, by rank. Lengths may differ. Collective."""
        # With the lengths go as many bytes as cost little; often that is all.
        first = max(0, EAGER // self.size - 8)
        heads = self._allgather_fixed(len(data).to_bytes(8, "little") + data[:first].ljust(first, b"\0"), 8 + first)
        sizes = [int.from_bytes(head[:8], "little") for head in heads]
        parts, rest = [head[8:] for head in heads], max(sizes) - first
        if rest > 0:
            parts = [p + more for p, more in zip(parts, self._allgather_fixed(data[first:].ljust(rest, b"\0"), rest))]
        return [part[:size] for part, size in zip(parts, sizes)]

    def _allgather_fixed(self, data: bytes, length: int) -> list[bytes]:
        send = ctypes.create_string_buffer(data, length)
        receive = ctypes.create_string_buffer(length * self.size)
        with self._slot() as worker:
            start = self._now()
            deadline = start + int(self.timeout * 1e9)
            lib.xm_worker_allgather_post(worker, send, receive, length)
            try:
                while (status := raw.xm_worker_allgather_test(worker)) == IN_PROGRESS:
                    hear()
                    nap = 0 if self._advance(set()) else self._slice
                    waited = raw.xm_worker_wait(worker, min(self._now() + nap, deadline))
                    if waited < 0 and (waited != _native.ERR_TIMEOUT or self._now() >= deadline):
                        status = self._give_up_allgather(worker, waited, start)
                        break
            except (KeyboardInterrupt, SystemExit) as reason:
                self._abort(f"interrupted ({type(reason).__name__})")
                raw.xm_worker_allgather_abandon(worker, (self._now() - start) * 1e-9)
                raise
            if status < 0:
                raise from_status(status, _native.last_error())
        gathered = receive.raw
        return [gathered[r * length : (r + 1) * length] for r in range(self.size)]

    def _give_up_allgather(self, worker: int, waited: int, start: int) -> int:
        """A failed wait says more than the allgather, unless it only says that time is up."""
        sentence = _native.last_error()
        status: int = raw.xm_worker_allgather_test(worker)
        if status == IN_PROGRESS:
            status = raw.xm_worker_allgather_abandon(worker, (self._now() - start) * 1e-9)
        if waited != _native.ERR_TIMEOUT:
            raise from_status(waited, sentence)
        return status

    def _make_reshard(self, **options: Any) -> int:
        """The reshard of these parameters; all ranks make it, or none. Collective."""
        params = _native.ReshardParams(struct_size=ctypes.sizeof(_native.ReshardParams), **options)
        reshard = ctypes.c_void_p()
        with self._slot() as worker:
            lib.xm_reshard_begin(worker, params, reshard)
            try:
                while (status := raw.xm_reshard_wait(reshard, self._now() + self._slice)) == IN_PROGRESS:
                    hear()
                    self._advance(set())
                if status < 0:
                    raise from_status(status, _native.last_error())
            except BaseException as reason:
                if isinstance(reason, (KeyboardInterrupt, SystemExit)):
                    self._abort(f"interrupted ({type(reason).__name__})")
                raw.xm_reshard_destroy(reshard)
                raise
        assert reshard.value is not None
        return reshard.value

    def _refuse(self, error: CrossmeshError) -> None:
        """Instead of the Reshard that the other ranks are making, and that ends there with this error."""
        with contextlib.suppress(InputError):
            self._make_reshard(refusal=str(error).encode())

    # Requests --------------------------------------------------------------------------------------

    def _advance(self, skip: set[Request]) -> bool:
        """One step of every posted request; false when nothing is left to do before something comes in."""
        busy = False
        for request in list(self._requests):
            if request not in skip:
                busy = request._step() or busy
        return busy

    def _wait(self, request: Request) -> None:
        """Makes progress for at most a slice, or until the request has ended."""
        with self._slot() as worker:
            if request.done:
                return
            if len(self._requests) == 1:
                request._step(self._now() + self._slice)
            else:
                self._go_on(worker)

    def _go_on(self, worker: int) -> None:
        """One step of all requests, and of the worker, which sleeps for at most a slice when nothing is to be done."""
        if self._advance(set()):
            status = raw.xm_worker_progress(worker)
        elif self._requests:
            status = raw.xm_worker_wait(worker, self._now() + self._slice)
        else:
            return
        if status < 0 and status != _native.ERR_TIMEOUT:
            for request in list(self._requests):
                request._step(0)  # ends with the reason

    # Failures --------------------------------------------------------------------------------------

    def _abort(self, sentence: str) -> None:
        raw.xm_group_abort(self._worker, sentence.encode())
        for request in list(self._requests):
            request._step(0)

    def abort(self, sentence: str) -> None:
        """Gives up what the job is doing: every wait of every rank ends with AbortedError and this sentence. Nothing
        writes to buffers of this process any more when this returns. Then `shrink()` or `close()`."""
        with self._slot():
            self._abort(sentence)

    def _end_everything(self) -> None:
        for reshard in list(self._reshards):
            reshard._leave()
        for request in list(self._requests):
            request._drop()
        self._destroy_orphans()

    def shrink(self, timeout: float | None = None, min_size: int = 0, exclude: Sequence[int] = ()) -> None:
        """Makes a group of the ranks that are alive, with new numbers; `rank`, `size` and hosts change. Reshards of the
        old group are closed, and an Update can be continued. Collective among the living. The group must have `min_size` ranks, by default more than
        half; the ranks `exclude` are left out, whether they live or not, and must not call it."""
        without = (ctypes.c_int * len(exclude))(*exclude)
        params = _native.GroupShrinkParams(
            struct_size=ctypes.sizeof(_native.GroupShrinkParams),
            timeout=timeout or 0.0,
            min_size=min_size,
            exclude_count=len(without),
            exclude=without,
        )
        with self._slot() as worker:
            self._end_everything()
            lib.xm_group_shrink_with(worker, params)
            self._read_slots()

    @property
    def generation(self) -> int:
        """0 as the job begins, larger after every shrink()."""
        with self._slot() as worker:
            return int(raw.xm_group_generation(worker))

    def original_rank(self, rank: int) -> int:
        """The number that a rank of today had as the job began."""
        if not 0 <= rank < self.size:
            raise InputError(f"rank {rank} in a job of {self.size} ranks")
        with self._slot() as worker:
            return int(raw.xm_group_job_rank(worker, rank))

    # ------------------------------------------------------------------------------------------------

    def network(self, profile: str | None = None, **rates: Any) -> Network:
        """The job's hosts as a network to plan for; rates from a measured profile, or as Network() takes them, or those
        of the hosts' NICs as far as they tell."""
        if profile is not None:
            return Network.from_profile(profile, self.host_of_rank)
        if rates:
            return Network(self.host_of_rank, **rates)
        with self._slot() as worker:
            return Network._from_worker(worker)

    def reshard(self, plan: Plan, src: Any = None, dst: Any = None, **options: Any) -> Reshard:
        """`Reshard(self, plan, src, dst, ...)`. Collective."""
        from .reshard import Reshard

        return Reshard(self, plan, src, dst, **options)

    def close(self, reason: str | None = None) -> None:
        """Leaves the job; waits for the others unless a `reason` tells them why this rank gives up. Collective."""
        if self._worker is None or self._forks != _forks:
            return
        thread = self._thread
        with self._slot() as worker:
            self._end_everything()
            with self._wake_lock:
                self._worker = None
            _open_jobs.discard(self)
            try:
                raw.xm_worker_destroy(worker, None if reason is None else reason.encode())
            finally:
                with self._posted:
                    self._posted.notify_all()
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    @property
    def closed(self) -> bool:
        return self._worker is None

    def __enter__(self) -> Job:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        self.close(None if error is None else f"{type(error).__name__}: {error}")

    def __repr__(self) -> str:
        state = "closed job" if self._worker is None else "Job"
        return f"<{state}: rank {self.rank} of {self.size}, {len(self.hosts)} hosts>"


def _make_progress(job: Job) -> None:
    """The progress thread. Without requests it goes on, too: a run that has ended here may have left bytes with the
    transport, which wait for a connection that is being made or for room, and the other end with them. Either way it
    sleeps in C; on a condition where that fails, since whoever posts next is told why."""
    while not job.closed:
        try:
            with job._slot() as worker:
                if job._requests:
                    job._go_on(worker)
                    continue
                status = raw.xm_worker_wait(worker, job._now() + SLICE_NS)
        except CrossmeshError:
            return  # the job was closed meanwhile
        with job._posted:
            if status not in (0, _native.ERR_TIMEOUT) and not job._requests:
                job._posted.wait(1.0)


# A job lives until it is closed: leaving it concerns the others.
_open_jobs: set[Job] = set()


def _leave_at_exit() -> None:
    """Ranks whose program ends by an exception say so; others leave in order."""
    error = getattr(sys, "last_value", None)
    reason = None if error is None else f"{type(error).__name__}: {error}"
    for job in list(_open_jobs):
        with contextlib.suppress(CrossmeshError):
            job.close(reason)


atexit.register(_leave_at_exit)
