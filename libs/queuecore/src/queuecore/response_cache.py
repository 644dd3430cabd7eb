"""Answers that are used again (seed 004): ``cache:<endpoint_hash>:<params_hash>``. See ADR 0009."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from typing import Final

import msgspec

PREFIX: Final = "cache:"


def endpoint_prefix(endpoint: object) -> str:
    """What the keys of one endpoint begin with. ``endpoint`` is anything that is JSON in one way only."""
    return f"{PREFIX}{_digest(endpoint)}:"


def cache_key(endpoint: object, params: object) -> str:
    """The key of one request: a SHA-256 (hex) of its endpoint and one of all that decides its answer."""
    return endpoint_prefix(endpoint) + _digest(params)


def _digest(value: object) -> str:
    return hashlib.sha256(msgspec.json.encode(value, order="deterministic")).hexdigest()


class ResponseCache(ABC):
    """Bodies of reads, on a server that may evict them; and forgetting, which covers kept results of jobs too."""

    @abstractmethod
    async def get(self, key: str) -> str | None:
        """The body that was kept.

        Raises:
            BrokerError: the cache is away.
        """

    @abstractmethod
    async def put(self, key: str, body: str, *, keep_ms: int) -> None:
        """Keep a body.

        Raises:
            BrokerError: the cache is away, or full.
        """

    @abstractmethod
    async def drop(self, key: str) -> None:
        """Forget one body.

        Raises:
            BrokerError: the cache is away.
        """

    @abstractmethod
    async def clear(self, prefix: str = PREFIX) -> int:
        """Forget everything whose key begins so, in steps of bounded work; how many keys that were.

        Raises:
            BrokerError
        """
