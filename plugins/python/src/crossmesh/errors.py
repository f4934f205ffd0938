# SPDX-License-Identifier: Apache-2.0
"""What can go wrong, as exceptions. Their text is the library's sentence."""

from __future__ import annotations

from . import _abi

__all__ = [
    "AbortedError",
    "CorruptDataError",
    "CrossmeshError",
    "DeadlineError",
    "ForkError",
    "InputError",
    "InternalError",
    "LibraryNotFoundError",
    "NetworkError",
    "PeerDiedError",
    "PeerError",
    "ResourceError",
]


class CrossmeshError(Exception):
    """Base of all. `status` is the number of comm/base/status.h, 0 where the failure is not the library's."""

    def __init__(self, sentence: str, status: int = 0) -> None:
        super().__init__(sentence)
        self.status = status

    def __str__(self) -> str:
        return str(self.args[0])

    def __reduce__(self) -> tuple[type, tuple[str, int]]:
        return type(self), (str(self), self.status)


class LibraryNotFoundError(CrossmeshError, ImportError):
    """libcrossmesh.so cannot be found or loaded, or lacks something that this package needs."""


class InputError(CrossmeshError, ValueError):
    """The caller's input; nothing was changed."""


class ResourceError(CrossmeshError):
    """Memory, a file or a socket of this machine."""


class NetworkError(CrossmeshError, ConnectionError):
    """No path to a rank."""


class PeerError(CrossmeshError):
    """Another rank."""


class PeerDiedError(PeerError):
    """A rank is gone; the sentence names it."""


class DeadlineError(PeerError, TimeoutError):
    """A deadline passed; the sentence says who was waited for."""


class AbortedError(PeerError):
    """Some rank gave up, perhaps this one."""


class InternalError(CrossmeshError):
    """A fault of crossmesh."""


class CorruptDataError(InternalError):
    """Data failed a check."""


class ForkError(CrossmeshError):
    """A job was used in a child of the process that it belongs to."""


_BY_STATUS: dict[int, type[CrossmeshError]] = {
    _abi.XM_ERR_PEER_DIED: PeerDiedError,
    _abi.XM_ERR_TIMEOUT: DeadlineError,
    _abi.XM_ERR_CANCELED: AbortedError,
    _abi.XM_ERR_CORRUPT: CorruptDataError,
}
_BY_GROUP: dict[int, type[CrossmeshError]] = {
    0: InputError,
    1: ResourceError,
    2: NetworkError,
    3: PeerError,
    4: InternalError,
}


def from_status(status: int, sentence: str) -> CrossmeshError:
    """The exception for a negative status of the library."""
    kind = _BY_STATUS.get(status) or _BY_GROUP.get(-status // 20, InternalError)
    return kind(sentence or f"status {status}", status)
