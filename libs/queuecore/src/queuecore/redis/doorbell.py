"""How a worker waits where no pop blocks: for a token, a second at the most, and then it looks in any case.

A token is a wake-up only, so a relay that eats one and dies costs the others that second. Scripts ring while fewer
tokens lie there than workers listen (``_include/bell.lua``).
"""

from __future__ import annotations

import asyncio
from typing import Final

from redis.exceptions import ResponseError

from queuecore.clock import monotonic
from queuecore.errors import ScriptContractError
from queuecore.names import new_claim_id
from queuecore.redis.client import AnyConnection, Link, exchange, raise_refusal
from queuecore.redis.records import server_ms

LONGEST_WAIT_SECONDS: Final = 1.0
_LISTENS_MS: Final = 1_500


class Doorbell:
    """One worker's ear at one bell."""

    def __init__(self, link: Link, key: str) -> None:
        self._link = link
        self._key = key
        self._name = new_claim_id()
        self._connection: AnyConnection | None = None
        self._server_ahead_ms: float | None = None  # of our monotonic clock
        self._stopped = asyncio.Event()

    async def listening(self) -> list[tuple[str | int, ...]]:
        """Commands to send before the look that precedes ``wait``, so that no ring in between is lost."""
        if self._server_ahead_ms is None:
            self._server_ahead_ms = await server_ms(self._link) - 1000 * monotonic()
        until = int(1000 * monotonic() + self._server_ahead_ms) + _LISTENS_MS
        listeners = f"{self._key}:listeners"
        return [("ZADD", listeners, until, self._name), ("PEXPIRE", listeners, 60_000)]

    async def wait(self, seconds: float | None) -> None:
        """Until a token, ``interrupt``, or the time is over."""
        block = LONGEST_WAIT_SECONDS if seconds is None else min(max(seconds, 0.001), LONGEST_WAIT_SECONDS)
        connection = await self._connected()
        ringing = asyncio.ensure_future(exchange(connection, ("BLPOP", self._key, f"{block:.3f}"), block + 10))
        stopped = asyncio.ensure_future(self._stopped.wait())
        try:
            _ = await asyncio.wait({ringing, stopped}, return_when=asyncio.FIRST_COMPLETED)
            if ringing.done():
                _ = ringing.result()
        except ResponseError as error:
            raise_refusal("BLPOP", error)
            raise ScriptContractError(f"BLPOP: {error}") from error
        finally:
            _ = stopped.cancel()
            if not ringing.done():
                _ = ringing.cancel()
                _ = await asyncio.wait({ringing})
                await connection.disconnect(nowait=True)  # a token that arrives now is lost: that costs a second

    async def interrupt(self) -> None:
        """End this and every later wait."""
        self._stopped.set()

    async def _connected(self) -> AnyConnection:
        if self._connection is None:
            self._connection = self._link.new_connection()
        if not self._connection.is_connected:
            await self._link.open(self._connection)
        return self._connection

    async def aclose(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            await self._connection.disconnect(nowait=True)
