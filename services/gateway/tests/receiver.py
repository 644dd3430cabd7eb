"""A webhook receiver on a socket: what it was sent, and whatever it shall answer."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import NamedTuple

Behaviour = Callable[[asyncio.StreamWriter, int], Awaitable[None]]


class Seen(NamedTuple):
    """One request. ``peer`` counts connections."""

    path: str
    headers: dict[str, str]
    body: bytes


def answers(*statuses: int, head: str = "", body: bytes = b"") -> Behaviour:
    """The first request gets the first status, and so on; the last one stays."""

    async def behave(writer: asyncio.StreamWriter, number: int) -> None:
        status = statuses[min(number, len(statuses) - 1)]
        writer.write(f"HTTP/1.1 {status} X\r\n{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        await writer.drain()

    return behave


async def closes(writer: asyncio.StreamWriter, number: int) -> None:
    """No answer at all."""
    del writer, number


async def hangs(writer: asyncio.StreamWriter, number: int) -> None:
    """Accepts and never answers."""
    del writer, number
    _ = await asyncio.Event().wait()


async def trickles(writer: asyncio.StreamWriter, _: int) -> None:
    """One byte now and then, for ever."""
    while True:
        writer.write(b"H")
        await writer.drain()
        await asyncio.sleep(0.02)


class Receiver:
    """``seen`` grows with each whole request; ``dialled`` with each connection."""

    def __init__(self, behave: Behaviour) -> None:
        self.seen: list[Seen] = []
        self.dialled = 0
        self.port = 0
        self._behave = behave

    @property
    def url(self) -> str:
        """By address."""
        return f"http://127.0.0.1:{self.port}/hook?a=b"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.dialled += 1
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:] if line)}
            body = await reader.readexactly(int(headers.get("content-length", "0")))
            self.seen.append(Seen(head[0].split(" ")[1], headers, body))
            await self._behave(writer, len(self.seen) - 1)
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        finally:
            writer.close()


@asynccontextmanager
async def receiving(behave: Behaviour, tls: ssl.SSLContext | None = None) -> AsyncGenerator[Receiver, None]:
    """A receiver on a free port of loopback."""
    receiver = Receiver(behave)
    tasks: set[asyncio.Task[None]] = set()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(receiver.serve(reader, writer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    server = await asyncio.start_server(accept, "127.0.0.1", 0, ssl=tls, backlog=500)
    receiver.port = server.sockets[0].getsockname()[1]
    try:
        yield receiver
    finally:
        server.close()
        for task in list(tasks):
            _ = task.cancel()
        if tasks:
            _ = await asyncio.wait(tasks)
