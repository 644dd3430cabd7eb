"""Wake-ups over pub/sub, on a connection that notices when the path is dead.

A half-open path reads nothing for ever (case C3): a PING whose PONG does not come in time ends the connection. Every
(re)connection reports itself, so that its listener reads the state again.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Final

from redis.exceptions import RedisError, ResponseError

from queuecore.broker import Signals
from queuecore.errors import BrokerError, OutcomeUnknown
from queuecore.redis import keys as names
from queuecore.redis.client import AnyConnection, Link, exchange
from queuecore.redis.server import parse_info

PING_EVERY_SECONDS: Final = 5.0
PONG_WITHIN_SECONDS: Final = 5.0
_BACKOFF_SECONDS: Final = (0.05, 0.1, 0.2, 0.4, 0.8)  # well under the death grace


class RedisSignals(Signals):
    """Each iteration holds one connection of its own."""

    def __init__(self, link: Link) -> None:
        self._link = link

    async def changes(self) -> AsyncIterator[str]:
        patterns = (names.changed_channel("*"), names.completed_channel("*"))
        async for channel, payload in self._listen("PSUBSCRIBE", patterns, lambda _: None):
            if channel == "":
                yield ""
            elif channel.endswith(":changed"):
                yield payload
            else:
                yield _job_id(payload)

    async def cancels(self, model: str, on_connected: Callable[[str], None]) -> AsyncIterator[str]:
        channel = names.QueueKeys(model).cancel
        async for source, payload in self._listen("SUBSCRIBE", (channel,), on_connected):
            if source:
                yield _job_id(payload)

    async def completions(self, model: str) -> AsyncIterator[str]:
        async for source, payload in self._listen("SUBSCRIBE", (names.completed_channel(model),), lambda _: None):
            if source:
                yield payload

    async def _listen(
        self, command: str, channels: Sequence[str], on_connected: Callable[[str], None]
    ) -> AsyncIterator[tuple[str, str]]:
        """(channel, payload) of each message; ("", "") after each (re)connection. Never ends by itself."""
        failures = 0
        while True:
            connection = self._link.new_connection(protocol=2)
            try:
                await self._link.open(connection)
                info = parse_info(await exchange(connection, ("INFO", "server"), None))
                client_id = await exchange(connection, ("CLIENT", "ID"), None)
                await _subscribe(connection, command, channels)
                failures = 0
                on_connected(f"{info.get('run_id', '')}:{client_id}")
                yield "", ""
                while True:
                    message = await _next(connection)
                    if message is not None:
                        yield message
            except (BrokerError, ResponseError):
                await asyncio.sleep(_BACKOFF_SECONDS[min(failures, len(_BACKOFF_SECONDS) - 1)])
                failures += 1
            finally:
                await connection.disconnect(nowait=True)


async def _subscribe(connection: AnyConnection, command: str, channels: Sequence[str]) -> None:
    _ = await exchange(connection, (command, *channels), None)
    for _ in channels[1:]:  # one confirmation each
        _ = await _read(connection, PONG_WITHIN_SECONDS)


async def _next(connection: AnyConnection) -> tuple[str, str] | None:
    """The next message; None after an idle PING was answered."""
    reply = await _read(connection, PING_EVERY_SECONDS)
    if reply is None:
        try:
            await connection.send_command("PING")
        except (RedisError, OSError) as error:
            raise OutcomeUnknown(f"PING: {error}") from error
        reply = await _read(connection, PONG_WITHIN_SECONDS)
        if reply is None:
            raise OutcomeUnknown("no PONG: the path is dead")
    match reply:
        case ["message", channel, payload]:
            return str(channel), str(payload)
        case ["pmessage", _, channel, payload]:
            return str(channel), str(payload)
        case _:
            return None


async def _read(connection: AnyConnection, seconds: float) -> Any:
    """One reply; None when none came in time (the connection stays good)."""
    try:
        return await connection.read_response(timeout=seconds, disconnect_on_error=False)
    except (RedisError, OSError) as error:
        raise OutcomeUnknown(f"subscription: {error}") from error


def _job_id(payload: str) -> str:
    """The id in a JSON payload or a bare one; "" (look at everything) when it is neither."""
    try:
        found = json.loads(payload)
    except ValueError:
        return payload
    return str(found.get("job_id", "")) if isinstance(found, dict) else ""
