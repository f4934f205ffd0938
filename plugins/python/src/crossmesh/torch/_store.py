# SPDX-License-Identifier: Apache-2.0
"""The allgather of a job's own torch.distributed Store, through which crossmesh's ranks meet."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .._oob import OutOfBand


class StoreAllgather(OutOfBand):
    """Over any torch.distributed Store. Keys are never reused; nothing listens at a further port."""

    def __init__(self, store: Any, rank: int, size: int) -> None:
        super().__init__(rank, size)
        self._store, self._started = store, 0

    def start(self, data: bytes) -> Any:
        keys = [f"{self._started}/{rank}" for rank in range(self.size)]
        self._started += 1
        self._store.set(keys[self.rank], data.hex())
        return keys

    def test(self, token: Any) -> Sequence[bytes] | None:
        keys: list[str] = token
        if not self._store.check(keys):
            return None
        return [bytes.fromhex(self._store.get(key).decode()) for key in keys]
