"""Connections to Redis with three outcomes: done, did not run, unknown (G11).

redis-py's own retries are off: one swallowed reply made one pop take two jobs (docs/adr/0002). Its pool is not used
either, because it cannot say whether a command was sent; a failed connect is ``BrokerUnavailable``, anything after the
first byte is ``OutcomeUnknown``.
"""

from __future__ import annotations

import asyncio
import math
import socket
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

from redis.asyncio.connection import Connection, SSLConnection, UnixDomainSocketConnection, parse_url
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import (
    BusyLoadingError,
    ClusterDownError,
    MasterDownError,
    NoPermissionError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
    TryAgainError,
)

from queuecore.errors import BrokerUnavailable, OutcomeUnknown
from queuecore.settings import CommonSettings

AnyConnection = Connection | SSLConnection | UnixDomainSocketConnection

# Answers that mean "not now": nothing ran. redis-py has classes for some and leaves the word in the text for others.
_NOT_NOW_WORDS: Final = ("MISCONF", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "BUSY ", "NOREPLICAS", "OOM")
_NOT_NOW: Final = (OutOfMemoryError, ReadOnlyError, MasterDownError, ClusterDownError, TryAgainError)
_KEEPALIVE: Final = {
    getattr(socket, name): value
    for name, value in (("TCP_KEEPIDLE", 15), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3), ("TCP_USER_TIMEOUT", 30_000))
    if hasattr(socket, name)
}


class PermissionMissing(BrokerUnavailable):
    """The server's ACL forbids a command that this user needs; the text names it."""


class Link:
    """A bounded set of connections. Every command of the adapter goes through ``call`` or a held connection."""

    def __init__(self, common: CommonSettings, *, name: str, protocol: int = 2, limit: int = 64) -> None:
        options: dict[str, Any] = dict(parse_url(common.redis_url.reveal()))
        self._kind: type[AnyConnection] = options.pop("connection_class", Connection)
        if self._kind is not UnixDomainSocketConnection:
            options |= {"socket_keepalive": True, "socket_keepalive_options": _KEEPALIVE}
        if common.redis_username:
            options["username"] = common.redis_username
        if common.redis_password:
            options["password"] = common.redis_password.reveal()
        self._options: dict[str, Any] = options | {
            "client_name": name,
            "driver_info": None,
            "protocol": protocol,
            "decode_responses": True,
            "encoding_errors": "surrogateescape",  # a damaged id comes back byte for byte and can be removed
            "retry": Retry(NoBackoff(), 0),
            "socket_connect_timeout": 5,
            "socket_timeout": 15,  # bounds a reply; blocking commands say their own
        }
        self._idle: list[AnyConnection] = []
        self._free = asyncio.Semaphore(limit)
        self._closed = False

    def new_connection(self, **options: Any) -> AnyConnection:
        """An unconnected connection of the caller's own."""
        return self._kind(**(self._options | options))

    async def open(self, connection: AnyConnection) -> None:
        """Connect and log in.

        Raises:
            BrokerUnavailable: names the server's answer.
        """
        try:
            await connection.connect()
        except (RedisError, OSError, TimeoutError) as error:
            raise BrokerUnavailable(f"Redis: {_say(error)}") from error

    @asynccontextmanager
    async def connection(self) -> AsyncGenerator[AnyConnection, None]:
        """A connection that nobody else uses meanwhile; whatever goes wrong inside closes it."""
        async with self._free:
            connection = self._idle.pop() if self._idle else self.new_connection()
            try:
                if connection.is_connected and await _is_stale(connection):
                    await connection.disconnect(nowait=True)
                if not connection.is_connected:
                    await self.open(connection)
                yield connection
            except BaseException:
                # A half-read reply would answer the next command.
                await connection.disconnect(nowait=True)
                raise
            finally:
                if self._closed:
                    await connection.disconnect(nowait=True)
                else:
                    self._idle.append(connection)

    async def call(self, *command: str | int | float, reply_seconds: float | None = None) -> Any:
        """One command and its reply.

        Raises:
            BrokerUnavailable, PermissionMissing: it did not run.
            OutcomeUnknown: it may have run.
            ResponseError: the server refused it for a reason that the caller should know.
        """
        problem: ResponseError | None = None
        async with self.connection() as connection:
            try:
                return await exchange(connection, command, reply_seconds)
            except ResponseError as error:
                problem = error  # the reply was read whole: the connection is good
        raise_refusal(str(command[0]), problem)
        raise problem

    async def pipeline(self, commands: Sequence[Sequence[str | int | float]]) -> list[Any]:
        """Many reads in one round trip; a refused one gives its ``ResponseError`` as its value."""
        if not commands:
            return []
        async with self.connection() as connection:
            try:
                await _send(connection, connection.pack_commands(commands))
                return [await _read_or_error(connection) for _ in commands]
            except BusyLoadingError as error:
                raise BrokerUnavailable(f"Redis: {_say(error)}") from error
            except (RedisError, OSError, TimeoutError) as error:
                raise OutcomeUnknown(f"Redis: {_say(error)}") from error

    async def aclose(self) -> None:
        """Close every idle connection; the others close when they come back."""
        self._closed = True
        while self._idle:
            await self._idle.pop().disconnect(nowait=True)


async def exchange(connection: AnyConnection, command: Sequence[str | int | float], reply_seconds: float | None) -> Any:
    """Send and read on a connected connection.

    Raises:
        OutcomeUnknown: the link broke on the way.
        ResponseError: the server's refusal.
    """
    try:
        await _send(connection, connection.pack_command(*command))
        if reply_seconds is None:
            return await connection.read_response()
        # redis-py answers its own timeout with None, which a nil reply is too.
        async with asyncio.timeout(reply_seconds):
            return await connection.read_response(timeout=math.inf)
    except BusyLoadingError as error:
        raise BrokerUnavailable(f"Redis: {_say(error)}") from error
    except ResponseError:
        raise
    except (RedisError, OSError, TimeoutError) as error:
        raise OutcomeUnknown(f"{command[0]}: {_say(error)}") from error


async def _send(connection: AnyConnection, packed: Iterable[bytes]) -> None:
    try:
        await connection.send_packed_command(packed)
    except RuntimeError as error:
        # uvloop's word for a transport that a reset has closed meanwhile: not a byte was sent.
        raise BrokerUnavailable(f"Redis: {_say(error)}") from error


async def _read_or_error(connection: AnyConnection) -> Any:
    try:
        return await connection.read_response()
    except ResponseError as error:
        return error


async def _is_stale(connection: AnyConnection) -> bool:
    """Closed by the server, or holding a reply nobody read: either way not to be used again."""
    writer = connection._writer  # noqa: SLF001  can_read() sees an end of file, but not a reset
    if writer is None or writer.is_closing():
        return True
    try:
        return bool(await connection.can_read())
    except (RedisError, OSError, TimeoutError):
        return True


def raise_refusal(what: str, error: ResponseError) -> None:
    """Raise the translation of refusals that concern no caller; return for the others."""
    if isinstance(error, NoScriptError):
        return
    if isinstance(error, NoPermissionError):
        raise PermissionMissing(f"the Redis user may not run {what}: {error}") from error
    if isinstance(error, _NOT_NOW) or str(error).startswith(_NOT_NOW_WORDS):
        raise BrokerUnavailable(f"Redis refused {what}: {error}") from error


def _say(error: BaseException) -> str:
    return str(error) or type(error).__name__
