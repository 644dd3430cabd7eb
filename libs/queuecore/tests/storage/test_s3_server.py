"""A real S3 server: what a stub cannot show."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import random
import signal
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator

import psutil
import pytest

from queuecore.blobs import BlobStore
from queuecore.clock import monotonic
from queuecore.errors import BlobUnavailable
from queuecore.storage.multipart import FIRST_PART_BYTES
from queuecore.storage.s3 import S3Connection, S3Store
from queuecore.storage.s3_target import S3Target
from queuecore.testing.clock import eventually
from queuecore.testing.servers import S3Server

pytestmark = [pytest.mark.anyio, pytest.mark.s3]

MIB = 1 << 20


async def stream(size: int, piece_bytes: int = 65_536) -> AsyncIterator[bytes]:
    piece = os.urandom(piece_bytes)
    for start in range(0, size, piece_bytes):
        yield piece[: min(piece_bytes, size - start)]


async def length(store: BlobStore, key: str) -> int:
    async with store.get(key) as chunks:
        return sum([len(chunk) async for chunk in chunks])


@pytest.fixture
async def store(versitygw: S3Server) -> AsyncIterator[S3Store]:
    made = make(versitygw)
    yield made
    await made.aclose()


def make(server: S3Server, bucket: str = "bucket") -> S3Store:
    return S3Store(S3Connection(S3Target(bucket, server.url)), f"server/{uuid.uuid4()}")


async def test_fifty_uploads_cancelled_at_any_moment_leave_nothing(
    store: S3Store, caplog: pytest.LogCaptureFixture
) -> None:
    chance = random.Random(7)
    for number in range(50):
        task = asyncio.create_task(store.put(f"job-{number}/input", stream(40 * MIB)))
        _ = await asyncio.wait([task], timeout=chance.uniform(0, 0.12))
        _ = task.cancel()
        _ = await asyncio.wait([task])
    _ = gc.collect()
    assert await store.abort_unfinished(older_than_seconds=0) == 0
    assert [entry.size for entry in [entry async for entry in store.scan()] if entry.size != 40 * MIB] == []
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


async def test_five_hundred_abandoned_downloads_cost_the_next_one_nothing(store: S3Store) -> None:
    _ = await store.put("job/input", stream(2 * MIB))
    assert await length(store, "job/input") == 2 * MIB

    async def abandon() -> None:
        async with store.get("job/input") as chunks:
            _ = await anext(chunks)

    for _ in range(50):
        _ = await asyncio.gather(*(abandon() for _ in range(10)))
    started = monotonic()
    assert await length(store, "job/input") == 2 * MIB
    assert monotonic() - started < 1
    assert await eventually(lambda: sockets() <= 3), "connections stay open"


def sockets() -> int:
    return len([link for link in psutil.Process().net_connections("tcp") if link.status == "ESTABLISHED"])


async def test_a_listing_goes_on_over_its_pages(store: S3Store) -> None:
    async def put(numbers: range) -> None:
        for number in numbers:
            _ = await store.put(f"job-{number:04}/input", stream(1, 1))

    _ = await asyncio.gather(*(put(range(start, 1_005, 8)) for start in range(8)))
    expected = [f"job-{number:04}/input" for number in range(1_005)]
    assert [entry.key async for entry in store.scan()] == expected
    assert [entry.key async for entry in store.scan(after="job-0002/input")] == expected[3:]


async def test_a_writer_killed_in_the_middle_leaves_an_upload_that_the_sweep_removes(
    store: S3Store, versitygw: S3Server
) -> None:
    script = f"""
import asyncio, os, sys
from queuecore.storage.s3 import S3Connection, S3Store
from queuecore.storage.s3_target import S3Target

async def endless():
    while True:
        yield os.urandom(1 << 20)
        print("more", flush=True)
        await asyncio.sleep(0)

asyncio.run(S3Store(S3Connection(S3Target("bucket", {versitygw.url!r})), {store._prefix!r}).put("job/input", endless()))
"""
    writer = await asyncio.create_subprocess_exec(sys.executable, "-c", script, stdout=subprocess.PIPE)
    assert writer.stdout is not None
    for _ in range(30):
        _ = await writer.stdout.readline()
    writer.send_signal(signal.SIGKILL)
    _ = await writer.communicate()
    assert [entry async for entry in store.scan()] == []
    assert await store.abort_unfinished(older_than_seconds=3600) == 0
    assert await store.abort_unfinished(older_than_seconds=0) == 1
    assert await store.abort_unfinished(older_than_seconds=0) == 0


async def test_a_server_that_goes_away_for_a_moment_is_waited_for() -> None:
    with S3Server() as server:
        server.make_bucket("bucket")
        store = make(server)
        _ = await store.put("job/input", stream(5 * MIB))
        pieces = 0

        async def interrupted() -> AsyncIterator[bytes]:
            nonlocal pieces
            async for piece in stream(30 * MIB):
                pieces += 1
                if pieces == 200:
                    server.kill()
                    _ = asyncio.get_running_loop().call_later(1.5, server.start)
                yield piece

        assert await store.put("job/result", interrupted()) == 30 * MIB
        assert await length(store, "job/result") == 30 * MIB
        await store.aclose()


async def test_a_missing_bucket_and_wrong_keys_are_named(versitygw: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    store = make(versitygw, "no-such-bucket")
    for size in (1, 2 * FIRST_PART_BYTES):
        with pytest.raises(BlobUnavailable, match="there is no bucket no-such-bucket"):
            _ = await store.put("job/input", stream(size))
    with pytest.raises(BlobUnavailable, match="there is no bucket"):
        _ = await store.size("job/input")
    await store.aclose()
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    store = make(versitygw)
    with pytest.raises(BlobUnavailable, match="credentials are wrong"):
        await store.check()
    await store.aclose()
