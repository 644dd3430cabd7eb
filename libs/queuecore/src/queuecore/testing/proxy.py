"""A TCP proxy that loses replies at chosen commands, drops messages, resets, or stops forwarding without closing."""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import struct
from typing import Final, Self

# A published message as RESP2 pushes it. It comes by itself on its connection, or with others of its kind.
_MESSAGE: Final = re.compile(rb"\A\*[34]\r\n\$[78]\r\np?message\r\n")


class SwallowingProxy:
    """Forwards to a Redis port; ``swallow`` loses the next such reply and closes, ``freeze`` goes silent."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._swallow: tuple[bytes, ...] = ()
        self._flowing = asyncio.Event()
        self._flowing.set()
        self.port = 0
        self.accepted = 0
        self.muted = False
        self._resetting = False
        self.dropped = 0  # pieces with messages that did not pass

    def swallow(self, *commands: str) -> None:
        """The next of these commands runs, and its reply never arrives."""
        self._swallow = tuple(f"\r\n{command}\r\n".encode() for command in commands)

    def mute(self) -> None:
        """From now on no published message passes; subscriptions stand and everything else works."""
        self.muted = True

    async def reset(self) -> int:
        """Break every connection off with a RST, towards both sides; how many there were."""
        tasks, self._resetting = list(self._tasks), True
        for task in tasks:
            _ = task.cancel()
        _ = await asyncio.gather(*tasks, return_exceptions=True)
        self._resetting = False
        return len(tasks)

    def freeze(self) -> None:
        """From now on nothing passes, and nobody is told."""
        self._flowing.clear()

    def thaw(self) -> None:
        """Forward again."""
        self._flowing.set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_exit: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in list(self._tasks):
            _ = task.cancel()
        _ = await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self._target)
        try:
            # A cancelled callback of the server would be logged as an error of asyncio's own.
            with contextlib.suppress(asyncio.CancelledError):
                await self._pass_both_ways(reader, writer, up_reader, up_writer)
        finally:
            for one in (writer, up_writer):
                if self._resetting:
                    linger = struct.pack("ii", 1, 0)  # close() sends a RST
                    one.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                one.close()
                with contextlib.suppress(OSError):
                    await one.wait_closed()

    async def _pass_both_ways(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        up_reader: asyncio.StreamReader,
        up_writer: asyncio.StreamWriter,
    ) -> None:
        lose = asyncio.Event()
        try:
            async with asyncio.TaskGroup() as group:
                _ = group.create_task(self._forward(reader, up_writer, lose, inspect=True))
                _ = group.create_task(self._forward(up_reader, writer, lose, inspect=False))
        except* (OSError, ConnectionError):
            pass

    async def _forward(
        self, source: asyncio.StreamReader, target: asyncio.StreamWriter, lose: asyncio.Event, *, inspect: bool
    ) -> None:
        while data := await source.read(65536):
            _ = await self._flowing.wait()
            if inspect and any(word in data for word in self._swallow):
                self._swallow = ()
                lose.set()
            elif not inspect and lose.is_set():
                raise ConnectionResetError("this reply is lost")
            elif not inspect and self.muted and _MESSAGE.search(data):
                self.dropped += 1
                continue
            target.write(data)
            await target.drain()
        raise ConnectionResetError("closed")
