# SPDX-License-Identifier: Apache-2.0
"""Where the ranks of separate launches meet: `rendezvous()` and what it gives."""

from __future__ import annotations

import ctypes
import os
import secrets
import socket
import weakref
from collections.abc import Callable
from typing import Any

from . import _abi, _native
from ._native import IN_PROGRESS, lib, raw
from ._signals import hear, shielded
from .errors import CrossmeshError, InputError, from_status
from .job import Job, _BackgroundCall

__all__ = ["Meeting", "Place", "rendezvous"]

ROLES = {"trainer": _abi.XM_ROLE_SOURCE, "server": _abi.XM_ROLE_TARGET, "peer": _abi.XM_ROLE_PEER}
TIMEOUT = 120.0
# Seconds for which a wait for the place stays in C.
SLICE = 0.05


def own_address() -> str:
    """An address of this machine that others reach: that of the interface which has the default route. No packet is
    sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # an address for documentation, so nobody's
        except OSError:
            return "127.0.0.1"
        return str(probe.getsockname()[0])


class Place:
    """The address at which members meet, in this process. `port` is what "tcp://host:0" has become."""

    def __init__(self, address: str, secret: str | None = None) -> None:
        place, port = ctypes.c_void_p(), ctypes.c_int()
        lib.xm_place_open(address.encode(), None if secret is None else secret.encode(), place, port)
        self.port = int(port.value)
        self.address = f"{address.rpartition(':')[0]}:{self.port}"
        self._finalizer = weakref.finalize(self, raw.xm_place_close, place.value)

    def close(self) -> None:
        """Ends the meeting for all who are still there."""
        self._finalizer()


class Meeting:
    """This process's membership (crossmesh/meeting.h). `rank` is that in its world."""

    def __init__(self, address: str, role: str, world: str, rank: int, size: int, secret: str | None = None,
                 place: Place | None = None, watch: Callable[[], None] | None = None, **more: Any) -> None:  # fmt: skip
        self.role, self.world, self.size, self._place = role, world, size, place
        self.timeout = more.get("timeout") or TIMEOUT
        self.passes_on = bool(more.get("passes_on"))
        params = _native.MeetingParams(
            struct_size=ctypes.sizeof(_native.MeetingParams),
            address=address.encode(),
            world=world.encode(),
            role=ROLES[role],
            rank=rank,
            size=size,
            secret=None if secret is None else secret.encode(),
            **{"version": -1, "targets": 1, "skew": 4.0, "timeout": self.timeout, **more},
        )
        meeting, own = ctypes.c_void_p(), ctypes.c_int()
        join, leave = raw.xm_meeting_join, raw.xm_meeting_leave
        call = _BackgroundCall(lambda: int(join(params, meeting, own)), lambda: leave(meeting))
        try:
            with shielded():
                status, sentence = call.result(watch)
            if status < 0:
                raise from_status(status, sentence)
        except BaseException:
            if place is not None:
                place.close()
            raise
        self._handle, self.rank = meeting.value, int(own.value)
        self.oob: Any = None  # of the round

    def ready(self, version: int = 0) -> None:
        lib.xm_meeting_say(self._handle, _abi.XM_MEETING_READY, version, None)

    def cancel(self) -> None:
        lib.xm_meeting_say(self._handle, _abi.XM_MEETING_CANCEL, 0, None)

    def next(self, timeout: float) -> Any:
        """The next event (xm_meeting_event_t), whose `error` is what a round was settled with, or None when none has
        come. Raises what ends the meeting for this process."""
        event = _native.MeetingEvent(struct_size=ctypes.sizeof(_native.MeetingEvent))
        if lib.xm_meeting_next(self._handle, timeout, event) == IN_PROGRESS:
            return None
        self.oob = event.oob.contents if event.oob else None
        event.error = from_status(event.status, _native.last_error()) if event.status < 0 else None
        return event

    def done(self, error: BaseException | None = None) -> None:
        """This rank's part of the round has ended."""
        status, sentence = _native.OK, b""
        if error is not None:
            status = getattr(error, "status", 0) or _abi.XM_ERR_INVALID_ARGUMENT
            sentence = (str(error) or type(error).__name__).encode()
        lib.xm_meeting_say(self._handle, _abi.XM_MEETING_DONE, status, sentence)

    def raise_pending(self) -> None:
        """As Job._create() wants it of a table; nothing of Python's runs in this one."""

    def job(self, timeout: float | None = None, watch: Callable[[], None] | None = None, **options: Any) -> Job:
        """The job of this world, for the role "peer". Collective. `watch` is called meanwhile and may give up."""
        self.ready()
        while (event := self.next(SLICE)) is None:
            hear()
            if watch is not None:
                watch()
        if event.error is not None:
            raise event.error
        try:
            job = Job._from_table(self, timeout=timeout or self.timeout, **options)
        except CrossmeshError as error:
            self.done(error)
            raise
        self.done()
        return job

    def close(self) -> None:
        """Leaves; ends the meeting where this process has opened it."""
        handle, self._handle = self._handle, None
        raw.xm_meeting_leave(handle)
        if self._place is not None:
            self._place.close()
            self._place = None


def _launched(name: str, given: int | None, default: int) -> int:
    return int(os.environ.get(name, default)) if given is None else given


def _own_world(role: str) -> str:
    run = os.environ.get("TORCHELASTIC_RUN_ID", "none")
    return role if run == "none" else f"{role} {run}"


def rendezvous(
    where: Any,
    role: str,
    *,
    secret: str | None = None,
    world: str | None = None,
    rank: int | None = None,
    size: int | None = None,
    opens: bool | None = None,
    servers: int = 1,
    timeout: float = TIMEOUT,
    skew: float = 4.0,
    passes_on: bool = True,
) -> Meeting:
    """Meets the ranks of other launches; returns when all ranks of this one have come.

    `where` is "tcp://host:port", or a torch Store that all can reach. `role` is "trainer" or "server". `rank` and
    `size` are this launch's (RANK, WORLD_SIZE), `world` is its name, equal on its ranks and no other's: torchrun's run
    id with the role, unless it is given. `opens`: this process listens at the address; rank 0 of the trainer does.
    `secret`: what all have to know, 16 characters or more; XM_JOB_SECRET where it is not given, with a Store a random
    one. `servers`: how many worlds of servers a trainer's first transfer waits for. `timeout`: seconds for a world to
    come together, and that a trainer waits for servers that are there. `skew`: seconds in which all ranks of a
    world call start(). `passes_on`: late servers may get a version from this one; not where it renames or loads what it
    gets.
    """
    if role not in ROLES:
        raise InputError(f"role '{role}' is none of {', '.join(ROLES)}")
    rank, size = _launched("RANK", rank, 0), _launched("WORLD_SIZE", size, 1)
    opens = role == "trainer" and rank == 0 if opens is None else opens
    place = None
    if isinstance(where, str):
        place = Place(where, secret) if opens else None
    elif opens:
        secret = secret or secrets.token_hex(16)
        place = Place(f"tcp://{own_address()}:0", secret)
        where.set("crossmesh/meeting", f"{place.address} {secret}")
        where = place.address
    else:
        where, secret = where.get("crossmesh/meeting").decode().split(" ", 1)
    return Meeting(where, role, world or _own_world(role), rank, size, secret, place, timeout=timeout,
                   targets=servers, skew=skew, passes_on=passes_on and role == "server")  # fmt: skip
