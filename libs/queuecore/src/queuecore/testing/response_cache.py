"""Kept answers in memory: the executable specification of ``ResponseCache``."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from queuecore.errors import BrokerUnavailable
from queuecore.response_cache import PREFIX, ResponseCache


class MemoryResponseCache(ResponseCache):
    """See ``ResponseCache``. ``away`` makes it unreachable; ``pointers`` gives the queues' kept results."""

    def __init__(self, clock: Callable[[], int], pointers: Callable[[], Iterable[dict[str, str]]]) -> None:
        self._clock = clock
        self._pointers = pointers
        self.bodies: dict[str, tuple[str, int]] = {}
        self.away = False

    async def get(self, key: str) -> str | None:
        self._reach()
        body, until = self.bodies.get(key, ("", 0))
        return body if until > self._clock() else None

    async def put(self, key: str, body: str, *, keep_ms: int) -> None:
        self._reach()
        self.bodies[key] = body, self._clock() + keep_ms

    async def drop(self, key: str) -> None:
        self._reach()
        _ = self.bodies.pop(key, None)

    async def clear(self, prefix: str = PREFIX) -> int:
        self._reach()
        kept: list[dict[str, tuple[str, int]] | dict[str, str]] = [self.bodies, *self._pointers()]
        removed = 0
        for one in kept:
            for key in [key for key in one if key.startswith(prefix)]:
                del one[key]
                removed += 1
        return removed

    def _reach(self) -> None:
        if self.away:
            raise BrokerUnavailable("the response cache is away")
