# SPDX-License-Identifier: Apache-2.0
"""Copies of tensors in other layouts that are kept up to date: only what has changed moves."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from . import _native
from ._native import lib, raw
from .job import Job
from .plan import Plan
from .reshard import _VERIFY, Made, _types

__all__ = ["Commit", "Update"]


def _destroy(handle: int, _kept: object) -> None:
    """Of an update whose group is no more, which any thread may destroy at any time."""
    raw.xm_update_destroy(handle)


@dataclass(frozen=True)
class Commit:
    """What a commit came to on this rank."""

    version: int
    everything: bool  # no destination had a version: all elements have moved
    changed: int  # elements of this rank's source tiles
    sent_bytes: int
    dense_bytes: int  # that it would have sent of everything
    held_bytes: int  # what waited here to be written


class Update(Made):
    """Keeps destinations what the sources are: `update = Update(job, plan, src=my_tile, dst=other_tile)`, then
    `update.commit()` after every step. Collective.

    Arguments are those of `Reshard`. A commit finds what differs from the last version, moves that, and writes it on
    all ranks when all have theirs. After one that failed, all destinations are still the version that they were, and
    the next commit brings what both would have. A shadow takes as much as the source tiles; a tile on a device has a
    mirror in host memory besides, and has to be ready when a commit begins.

    In another group, after `job.shrink()` or in a job with others who have come, `Update(…, previous=update)` goes on
    from what this rank had, with the same tiles at the same place: whoever has no version is sent everything, whoever
    was away what has changed since. Ranks that are new give None.
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
        verify: str | None = None,
        previous: Update | None = None,
    ) -> None:
        super().__init__(job, plan)
        params = _native.ReshardParams(
            struct_size=ctypes.sizeof(_native.ReshardParams),
            plan=plan._handle,
            buffers=self._tiles(src, dst, verify),
            dtype=_types(plan, dtype),
            memory_limit=memory_limit,
            verify=_VERIFY[verify],
        )
        handle = ctypes.c_void_p()
        with job._slot() as worker:
            lib.xm_update_continue(worker, params, None if previous is None else previous._check(), handle)
            self._handle = handle.value
            self._destroyed_by(job._orphans.append, (raw.xm_update_destroy, handle.value or 0, (plan, self._buffers)))
            job._reshards.add(self)
        if previous is not None:
            previous.close()

    def _leave(self) -> None:
        """The group ends. What this rank has stays, for an update that goes on from it."""
        if self._handle is not None and self._finalizer.detach() is not None:
            self._destroyed_by(_destroy, self._handle, (self.plan, self._buffers))

    def commit(self, *, timeout: float | None = None) -> Commit:
        """Makes all destinations what the sources are now; `timeout`: seconds, the job's otherwise. Collective."""
        with self._job._slot():
            info = _native.UpdateInfo(struct_size=ctypes.sizeof(_native.UpdateInfo))
            deadline = 0 if timeout is None else self._job._now() + int(timeout * 1e9)
            lib.xm_update_commit(self._check(), deadline, info)
        return Commit(
            info.version, info.everything, info.changed, info.sent_bytes, info.dense_bytes, info.held_bytes
        )

    def changed(self, tensor: int = 0) -> bytes:
        """Which elements of this rank's destination tile of a tensor the last commit has written: a bit for each, in
        the order of the tile, the lowest bit of a byte first."""
        elements = self.plan.tensors[tensor].dst.tile_bytes(self._job.rank, 1)
        bits = (ctypes.c_uint64 * (-(-elements // 64) or 1))()
        lib.xm_update_changed(self._check(), tensor, bits)
        return bytes(bits)[: -(-elements // 8)]

    @property
    def version(self) -> int:
        """The version that this rank's destinations have; 0 while there is none. Any thread may ask."""
        return 0 if self._handle is None else int(raw.xm_update_read_begin(self._handle))

    def read(self, look: Callable[[], Any]) -> tuple[int, Any]:
        """A version and what `look()` gave while the destinations were of that version: it is called again where they
        were written meanwhile. Version 0: there is none."""
        while True:
            version = self.version
            seen = look() if version else None
            if version == 0 or raw.xm_update_read_end(self._check(), version):
                return version, seen
