# SPDX-License-Identifier: Apache-2.0
"""Weights of a trainer into servers of other launches, version by version, while both go on with their work."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch

from .. import _abi
from ..errors import CrossmeshError, DeadlineError, InputError
from ..job import Job
from ..meeting import Meeting
from ._describe import describe_tensor
from ._transfer import _local

# Seconds until a thread that sleeps in C sees that it is to end.
SLICE = 0.2


class WeightSync:
    """Copies the tensors `src` of a trainer's ranks into the tensors `dst` of the servers' ranks, in versions.

    `src` and `dst` are what this rank has: DTensors on meshes of its own launch, or tensors that are whole on each rank
    that has them; for `dst` also `receiving(model.load_weights)`. A thread does the work; start() and wait() are called
    by all ranks of a launch. From start() to the end of wait() sources must not change, and destinations hold no
    version. With `copies` start() copies the sources first, so they may change at once. Other options are a
    WeightTransfer's.
    """

    def __init__(
        self,
        meeting: Meeting,
        src: Mapping[str, torch.Tensor] | None = None,
        dst: Any = None,
        *,
        copies: bool = False,
        **options: Any,
    ) -> None:
        if (src is None) != (meeting.role == "server"):
            raise InputError(f"a {meeting.role} gives {'dst' if meeting.role == 'server' else 'src'}")
        if meeting.passes_on and (callable(dst) or options.get("maps")):
            raise InputError("a server that renames or loads what it gets has it in another form than late servers want: "
                             "rendezvous(..., passes_on=False)")  # fmt: skip
        self._meeting, self._src, self._dst, self._options = meeting, src, dst, options
        self._about: dict[str, dict[str, Any]] = {}
        self._copies: dict[str, torch.Tensor] = {}
        if copies and src is not None:
            self._about = {name: describe_tensor(name, tensor) for name, tensor in src.items()}
            self._copies = {name: torch.empty_like(_local(tensor)) for name, tensor in src.items()}
        self._turn = threading.Condition()
        self._pending = self._closing = self._moving = False
        self._error: BaseException | None = None  # of the version that was settled last
        self._ended: BaseException | None = None  # of the meeting
        self._arrived: dict[str, int] = {}  # how many parts of a tensor are still missing
        self._job: Job | None = None
        self._transfer: Any = None
        self._group = 0
        self.version = -1
        self.servers = 0
        self.setup_seconds = 0.0  # what plan and registration took the last time that the members changed
        self.cpu_seconds = 0.0  # processor time of this process's transfers
        self._thread = threading.Thread(target=self._serve, name="crossmesh-sync", daemon=True)
        self._thread.start()

    # What the program calls ------------------------------------------------------------------------

    def start(self, version: int | None = None) -> None:
        """On a trainer: offers what the sources hold, by default as the version after the last. On a server: takes the
        next version that comes, or one that other servers have already. All ranks of the launch call it."""
        with self._turn:
            self._check()
            if self._pending:
                raise InputError("the former start() has not ended: wait() or cancel() comes first")
            self._pending, self._error = True, None
            self._arrived = {}
        if self._src is not None:
            self.version = self.version + 1 if version is None else version
            tensors = [_local(tensor) for tensor in self._src.values()]
            with torch.no_grad():
                for copy, tensor in zip(self._copies.values(), tensors):
                    copy.copy_(tensor)
            if any(tensor.is_cuda for tensor in tensors):
                torch.cuda.current_stream().synchronize()  # another thread sends
        self._meeting.ready(self.version)

    def test(self) -> bool:
        """Whether the version that was started has ended; raises why it has failed."""
        with self._turn:
            return not self._is_waiting() and self._result() is not None

    def wait(self, timeout: float | None = None) -> int:
        """Returns the version when it is everywhere: on a trainer, at all servers that are complete (`servers` of
        them); on a server, here. Raises why it is not; after `timeout` seconds DeadlineError, and it goes on."""
        return self._wait(self._is_waiting, timeout)

    def wait_for(self, name: str, timeout: float | None = None) -> int:
        """On a server: returns when that tensor has arrived, though others may not have. They are one version only if
        wait() gives the same one in the end. A tensor that is not contiguous, or is cast, arrives with the last. With
        `maps` the name is the trainer's."""
        return self._wait(lambda: self._is_waiting() and self._arrived.get(name, 1) > 0, timeout)

    def cancel(self) -> None:
        """Gives up what was started, for all ranks of this launch; wait() raises AbortedError. Servers whose trainer
        cancels wait for its next version."""
        self._meeting.cancel()
        with self._turn:
            job = self._job if self._moving else None
        if job is not None:
            with contextlib.suppress(CrossmeshError):  # it may have ended by itself
                job.abort(f"world '{self._meeting.world}' has cancelled")

    def close(self) -> None:
        """Leaves the meeting."""
        with self._turn:
            self._closing = True
        self._thread.join()
        self._forget("this rank has left the meeting")
        self._meeting.close()

    def __enter__(self) -> WeightSync:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check(self) -> None:
        if self._ended is not None:
            raise self._ended

    def _is_waiting(self) -> bool:
        return self._pending and self._ended is None

    def _result(self) -> int:
        if self._error is not None:
            raise self._error
        if self._pending:
            self._check()
        return self.version

    def _wait(self, goes_on: Callable[[], bool], timeout: float | None) -> int:
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._turn:
            while goes_on():
                left = 1.0 if deadline is None else min(1.0, deadline - time.monotonic())
                if left <= 0:
                    raise DeadlineError(f"version {self.version} has not ended within {timeout:g} s; it goes on")
                self._turn.wait(left)
            return self._result()

    # What the thread does --------------------------------------------------------------------------

    def _serve(self) -> None:
        try:
            while not self._closing:
                event = self._meeting.next(SLICE)
                if event is not None and event.kind == _abi.XM_MEETING_ROUND:
                    self._take_part(event)
                elif event is not None:
                    self._settle(event)
        except BaseException as error:
            with self._turn:
                self._ended = error
                self._turn.notify_all()

    def _settle(self, event: Any) -> None:
        with self._turn:
            self._pending, self._error, self.servers = False, event.error, event.targets
            if event.error is None:
                self.version = event.version
            self._turn.notify_all()

    def _take_part(self, event: Any) -> None:
        failure: Exception | None = None
        began = time.thread_time()
        try:
            if event.group != self._group:
                self._prepare(event)
            with self._turn:
                self._arrived = self._parts()
            self._transfer.run()
        except Exception as error:
            failure = error
            self._forget(f"{type(error).__name__}: {error}")
        with self._turn:
            self._moving = False
            self.cpu_seconds += time.thread_time() - began
        self._meeting.done(failure)

    def _prepare(self, event: Any) -> None:
        """The job of the round, and in it the plan. The ranks of its sources come first."""
        from ..adapters._weights import WeightTransfer

        self._forget("the members of the meeting have changed")
        job = Job._from_table(self._meeting, timeout=self._meeting.timeout)
        job._tensor_done = self._arrive
        with self._turn:
            self._job, self._moving = job, True
        given: dict[str, Any] = {"dst": self._dst}
        if event.rank < event.senders:
            given = {"src": self._copies or self._src or self._dst, "about": self._about}
        began = time.monotonic()
        self._transfer = WeightTransfer(job, **given, **self._options)
        self._group = event.group
        self.setup_seconds = time.monotonic() - began

    def _parts(self) -> dict[str, int]:
        self._moving = True
        parts: dict[str, int] = {}
        for tensor in self._transfer.plan.tensors:
            name = tensor.name.split(" ")[0]
            parts[name] = parts.get(name, 0) + 1
        for name in self._transfer.late:
            parts.pop(name, None)
        return parts

    def _arrive(self, name: str) -> None:
        """Called from inside the library, in whichever thread waits there."""
        name = name.split(" ")[0]
        with self._turn:
            if name in self._arrived:
                self._arrived[name] -= 1
                self._turn.notify_all()

    def _forget(self, reason: str) -> None:
        with self._turn:
            job, self._job, self._moving = self._job, None, False
        if self._transfer is not None:
            with contextlib.suppress(CrossmeshError):
                self._transfer.close()
        self._transfer, self._group = None, 0
        if job is not None and not job.closed:
            with contextlib.suppress(CrossmeshError):  # it has been left all the same
                job.close(reason)
