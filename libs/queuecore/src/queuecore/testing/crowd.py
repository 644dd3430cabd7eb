"""Many clients of a gateway that wait for one job, each on a connection of its own: event streams and long polls."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from queuecore.clock import monotonic


class Wait(NamedTuple):
    """One open request; ``told`` ends when its answer says ``completed``, with the moment (``monotonic``)."""

    told: asyncio.Task[float]


async def open_waits(port: int, path: str, etag: str, *, streams: int, polls: int) -> list[Wait]:
    """Event streams and long polls on the job at ``path``; all of them wait when this returns.

    ``etag`` is that of the document as it is now: a poll waits for another one.
    """
    heads = [f"GET {path}/events HTTP/1.1\r\nHost: x\r\n\r\n"] * streams
    heads += [f"GET {path}?wait=60 HTTP/1.1\r\nHost: x\r\nIf-None-Match: {etag}\r\n\r\n"] * polls
    limit = asyncio.Semaphore(100)

    async def open_one(head: str) -> Wait:
        async with limit:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(head.encode())
            await writer.drain()
            if "/events" in head:  # its first document is what it waits behind
                _ = await reader.readuntil(b"event: status")
        return Wait(asyncio.create_task(_completed(reader, writer)))

    return list(await asyncio.gather(*(open_one(head) for head in heads)))


async def _completed(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> float:
    try:
        _ = await reader.readuntil(b'"status":"completed"')
        return monotonic()
    finally:
        writer.close()


async def told(waits: Sequence[Wait]) -> list[float]:
    """When each was told, in order."""
    return sorted(await asyncio.gather(*(wait.told for wait in waits)))
