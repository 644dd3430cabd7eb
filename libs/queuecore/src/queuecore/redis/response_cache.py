"""Kept answers on Redis."""

from __future__ import annotations

from typing import Final

from redis.exceptions import ResponseError

from queuecore.errors import BrokerUnavailable
from queuecore.redis.client import Link
from queuecore.response_cache import PREFIX, ResponseCache

KEYS_AT_ONCE: Final = 500


class RedisResponseCache(ResponseCache):
    """``bodies`` may be a server of its own, with an eviction policy; what results are kept stands in the queue's."""

    def __init__(self, queue: Link, bodies: Link) -> None:
        self._bodies = bodies
        self._links = {queue, bodies}

    async def get(self, key: str) -> str | None:
        try:
            return await self._bodies.call("GET", key)
        except ResponseError as error:
            raise BrokerUnavailable(f"the response cache: {error}") from error

    async def put(self, key: str, body: str, *, keep_ms: int) -> None:
        try:
            _ = await self._bodies.call("SET", key, body, "PX", keep_ms)
        except ResponseError as error:
            raise BrokerUnavailable(f"the response cache: {error}") from error

    async def drop(self, key: str) -> None:
        _ = await self._bodies.call("UNLINK", key)

    async def clear(self, prefix: str = PREFIX) -> int:
        return sum([await _clear(link, prefix) for link in self._links])


async def _clear(link: Link, prefix: str) -> int:
    cursor, removed = "0", 0
    while True:
        cursor, found = await link.call("SCAN", cursor, "MATCH", f"{prefix}*", "COUNT", KEYS_AT_ONCE)
        for at in range(0, len(found), KEYS_AT_ONCE):  # a scan may give more than it was asked for
            removed += int(await link.call("UNLINK", *found[at : at + KEYS_AT_ONCE]))
        if cursor == "0":
            return removed
