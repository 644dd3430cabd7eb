"""An HTTP server for tests that keeps every byte it was sent and answers byte for byte what a test says."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Awaitable, Callable
from typing import Final, Self

from queuecore.testing.clock import eventually

_END: Final = b"\r\n\r\n"


class RawExchange:
    """One request on its connection, as far as it was read."""

    def __init__(self, head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.head = head
        self.body = b""
        self.reader = reader
        self.writer = writer
        self.closed = asyncio.Event()  # the client is gone

    @property
    def target(self) -> str:
        """Path and query."""
        return self.head.split(b" ", 2)[1].decode()

    @property
    def header_lines(self) -> list[str]:
        """As sent, in order."""
        return self.head.decode("latin-1").removesuffix("\r\n\r\n").split("\r\n")[1:]

    def header(self, name: str) -> str | None:
        """The first header of that name."""
        for line in self.header_lines:
            key, _, value = line.partition(":")
            if key.lower() == name.lower():
                return value.strip()
        return None

    async def read_body(self) -> bytes:
        """The whole body, with or without chunked encoding; `IncompleteReadError` when it is cut."""
        if self.header("transfer-encoding") == "chunked":
            while size := int(await self.reader.readline(), 16):
                self.body += (await self.reader.readexactly(size + 2))[:-2]
            _ = await self.reader.readline()
        else:
            self.body += await self.reader.readexactly(int(self.header("content-length") or 0))
        return self.body

    async def answer(self, status: str = "200 OK", body: bytes = b"", *headers: str) -> None:
        """A whole answer with a length."""
        lines = (f"HTTP/1.1 {status}", *headers, f"Content-Length: {len(body)}", "", "")
        await self.send("\r\n".join(lines).encode("latin-1") + body)

    async def send(self, content: bytes) -> None:
        """Raw bytes."""
        self.writer.write(content)
        await self.writer.drain()

    async def until_closed(self) -> None:
        """Read on until the client has closed, and say so in ``closed``."""
        with contextlib.suppress(OSError):
            while await self.reader.read(65_536):
                pass
        self.closed.set()


Handler = Callable[[RawExchange], Awaitable[None]]


class RawHttpServer:
    """``async with RawHttpServer(handler) as server: server.url``. Its `/health` answers ``health``."""

    def __init__(self, handler: Handler, tls: ssl.SSLContext | None = None) -> None:
        self.handler = handler
        self.health = "200 OK"
        self.health_path = "/health"
        self.health_asked = 0
        self.exchanges: list[RawExchange] = []
        self._tls = tls
        self._server: asyncio.Server | None = None
        self._port = 0
        self._writers: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

    @property
    def url(self) -> str:
        """Without a slash at its end."""
        return f"http{'s' if self._tls else ''}://127.0.0.1:{self._port}"

    async def open(self) -> None:
        """Listen; on the same port as before after ``close``."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self._port, limit=2**20, ssl=self._tls)
        self._port = int(self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        """Refuse connections; open ones stay."""
        if self._server:
            self._server.close()
            self._server = None

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *how: object) -> None:
        await self.close()
        await asyncio.sleep(0)  # whatever was accepted has its task now
        for writer in self._writers.values():
            writer.transport.abort()
        for task in self._writers:
            _ = task.cancel()
        if self._writers:
            _ = await asyncio.wait(self._writers)
        await asyncio.sleep(0)  # and the transports hear of their end

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._writers[task] = writer
        task.add_done_callback(self._writers.pop)
        # A handler that still waits when the test is over is cancelled; asyncio 3.11 would log that as an error.
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            exchange = RawExchange(await reader.readuntil(_END), reader, writer)
            if exchange.target == self.health_path:
                self.health_asked += 1
                await exchange.answer(self.health)
            else:
                self.exchanges.append(exchange)
                await self.handler(exchange)
        writer.close()


class HeldModel(RawHttpServer):
    """A model that answers ``<n>`` to its n-th request, once it may ``go_on``; it sees who hangs up before."""

    def __init__(self) -> None:
        super().__init__(self._answer)
        self.go_on = asyncio.Event()

    async def asked(self, times: int) -> RawExchange:
        """The last exchange, once there were so many."""
        _ = await eventually(lambda: len(self.exchanges) >= times, within=30)
        return self.exchanges[times - 1]

    async def _answer(self, exchange: RawExchange) -> None:
        number = len(self.exchanges)
        _ = await exchange.read_body()
        waits = (asyncio.create_task(self.go_on.wait()), asyncio.create_task(exchange.until_closed()))
        _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            _ = wait.cancel()
        if not exchange.closed.is_set():
            await exchange.answer("200 OK", str(number).encode())
