# SPDX-License-Identifier: Apache-2.0
"""Where the ranks of a JAX job meet: the service of jax.distributed, or this process alone."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from .._oob import OutOfBand


class LocalStore:
    """All ranks are in this process."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}
        self._lock = threading.Lock()

    def set(self, key: str, value: bytes) -> None:
        with self._lock:
            self._values[key] = value

    def get(self, key: str) -> bytes | None:
        with self._lock:
            return self._values.get(key)


class ServiceStore:
    """The key-value service that jax.distributed.initialize() has started or joined."""

    NAP_MS = 20

    def __init__(self, client: Any) -> None:
        self._client = client
        self._try = getattr(client, "key_value_try_get", None)

    def set(self, key: str, value: bytes) -> None:
        self._client.key_value_set(key, value.hex())

    def get(self, key: str) -> bytes | None:
        try:
            if self._try is not None:
                return bytes.fromhex(self._try(key))
            return bytes.fromhex(self._client.blocking_key_value_get(key, self.NAP_MS))
        except Exception as error:  # its class has changed from version to version
            if "NOT_FOUND" in str(error) or "DEADLINE_EXCEEDED" in str(error):
                return None
            raise


class StoreAllgather(OutOfBand):
    """Keys are never used twice."""

    def __init__(self, store: LocalStore | ServiceStore, prefix: str, rank: int, size: int) -> None:
        super().__init__(rank, size)
        self._store, self._prefix, self._started = store, prefix, 0

    def start(self, data: bytes) -> Any:
        round_prefix = f"{self._prefix}/{self._started}"
        self._started += 1
        self._store.set(f"{round_prefix}/{self.rank}", data)
        parts: list[bytes | None] = [None] * self.size
        return round_prefix, parts

    def test(self, token: Any) -> Sequence[bytes] | None:
        round_prefix, parts = token
        for rank, part in enumerate(parts):
            if part is None:
                parts[rank] = part = self._store.get(f"{round_prefix}/{rank}")
                if part is None:
                    return None
        return list(parts)
