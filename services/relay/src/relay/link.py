"""One TCP (or TLS) connection to the inference server.

Plain connections use the socket itself and not an asyncio transport: a transport closes both directions when a write
fails, and loses the answer of a server that refused a large upload early and closed.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from abc import ABC, abstractmethod
from collections.abc import Generator
from typing import Final, NamedTuple
from urllib.parse import urlsplit

RECEIVE_BYTES: Final = 262_144
# A peer that vanished without a word (its node is gone) is noticed after 30 + 3 * 10 s; a silent model is not affected.
_KEEPALIVE: Final = (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3))


class Address(NamedTuple):
    """Where an inference server listens."""

    host: str
    port: int
    tls: bool
    path: str  # what stands before every request's path; "" or "/…" without a slash at its end
    authority: str  # for the Host header

    @classmethod
    def parse(cls, url: str) -> Address:
        """From a checked ``http(s)://`` URL."""
        parts = urlsplit(url)
        tls = parts.scheme == "https"
        host = parts.hostname or ""
        return cls(host, parts.port or (443 if tls else 80), tls, parts.path.rstrip("/"), parts.netloc)


class Link(ABC):
    """Both directions at once: one task may send while another receives."""

    @abstractmethod
    async def send(self, content: bytes) -> None:
        """Hand over all bytes; raises ``OSError``."""

    @abstractmethod
    async def receive(self) -> bytes:
        """The next bytes, b"" at the end; raises ``OSError``."""

    @abstractmethod
    def abort(self) -> None:
        """Close at once, from either side's view; repeatable. A pending ``receive`` ends."""


async def connect(address: Address) -> Link:
    """Try every address of the host in turn; raises ``OSError``. The caller bounds the time."""
    loop = asyncio.get_running_loop()
    failure: OSError = OSError(f"{address.host} has no address")
    for family, kind, protocol, _, target in await loop.getaddrinfo(
        address.host, address.port, type=socket.SOCK_STREAM
    ):
        connection = socket.socket(family, kind, protocol)
        try:
            connection.setblocking(False)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in _KEEPALIVE:
                if hasattr(socket, name):
                    connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
            await loop.sock_connect(connection, target)
            return await _over_tls(connection, address.host) if address.tls else _Plain(connection)
        except OSError as error:
            connection.close()
            failure = error
        except BaseException:
            connection.close()
            raise
    raise failure


class _Plain(Link):
    def __init__(self, connection: socket.socket) -> None:
        self._loop = asyncio.get_running_loop()
        self._socket = connection
        self._pending = 0
        self._aborted = False

    async def send(self, content: bytes) -> None:
        with self._pending_call():
            await self._loop.sock_sendall(self._socket, content)

    async def receive(self) -> bytes:
        with self._pending_call():
            return await self._loop.sock_recv(self._socket, RECEIVE_BYTES)

    def abort(self) -> None:
        if not self._aborted:
            self._aborted = True
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
            self._close_when_idle()

    @contextlib.contextmanager
    def _pending_call(self) -> Generator[None, None, None]:
        if self._aborted:
            raise ConnectionAbortedError("this connection was aborted")
        self._pending += 1
        try:
            yield
        finally:
            self._pending -= 1
            if self._aborted:
                self._close_when_idle()

    def _close_when_idle(self) -> None:
        # The shutdown wakes what is pending; a descriptor closed under the event loop might be another's by then.
        if not self._pending:
            self._socket.close()


async def _over_tls(connection: socket.socket, host: str) -> Link:
    import ssl  # noqa: PLC0415  only for https

    reader, writer = await asyncio.open_connection(
        sock=connection, ssl=ssl.create_default_context(), server_hostname=host
    )
    return _Tls(reader, writer)


class _Tls(Link):
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def send(self, content: bytes) -> None:
        self._writer.write(content)
        await self._writer.drain()

    async def receive(self) -> bytes:
        return await self._reader.read(RECEIVE_BYTES)

    def abort(self) -> None:
        self._writer.transport.abort()
