"""Many clients of one gateway that wait for one job, each on a connection of its own: event streams and long polls."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import NamedTuple

from queuecore.broker import Result, Worker
from queuecore.clock import monotonic
from queuecore.names import new_claim_id
from queuecore.testing.yard import Yard


class Told(NamedTuple):
    """When each client was told, seconds after the verdict, in order; and the gateway's memory a client."""

    seconds: list[float]
    bytes_each: float


async def crowd(yard: Yard, *, streams: int, polls: int) -> Told:
    """Let so many wait for a running job on a gateway of its own, complete the job, and wait until all are told."""
    gateway = await yard.gateway()
    port = int(gateway.url.rpartition(":")[2])
    job_id = await yard.submit()
    claim = await yard.broker.claim(Worker("w"), new_claim_id())
    assert claim is not None
    path = f"/jobs/echo/{job_id}"
    etag = await _etag(port, path)
    heads = [f"GET {path}/events HTTP/1.1\r\nHost: x\r\n\r\n"] * streams
    heads += [f"GET {path}?wait=60 HTTP/1.1\r\nHost: x\r\nIf-None-Match: {etag}\r\n\r\n"] * polls
    before = _resident_bytes(gateway.pid)
    limit = asyncio.Semaphore(100)

    async def wait(head: str) -> asyncio.Task[float]:
        async with limit:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(head.encode())
            await writer.drain()
            if "/events" in head:  # its first document is what it waits behind
                _ = await reader.readuntil(b"event: status")
        return asyncio.create_task(_completed(reader, writer))

    waits = await asyncio.gather(*(wait(head) for head in heads))
    each = (_resident_bytes(gateway.pid) - before) / len(heads)
    _ = await yard.broker.complete(claim, Result("nowhere", 1, "text/plain", "00"))
    verdict = monotonic()
    return Told(sorted(moment - verdict for moment in await asyncio.gather(*waits)), each)


async def _etag(port: int, path: str) -> str:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    writer.close()
    return next(line.partition(":")[2].strip() for line in head.splitlines() if line.lower().startswith("etag:"))


async def _completed(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> float:
    try:
        _ = await reader.readuntil(b'"status":"completed"')
        return monotonic()
    finally:
        writer.close()


def _resident_bytes(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text("ascii").splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmRSS"))
