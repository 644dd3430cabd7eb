"""Files through the whole product: large, hostile, encrypted, on an S3 server that fails."""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import anyio
import httpx
import pytest

from queuecore.blobs import BlobStore
from queuecore.job import input_key
from queuecore.settings import CommonSettings, read_settings
from queuecore.storage import open_store
from queuecore.testing.clock import eventually
from queuecore.testing.servers import S3Server, ValkeyProcess
from queuecore.testing.yard import Mock, Yard

pytestmark = [pytest.mark.anyio, pytest.mark.s3, pytest.mark.slow]
Store = tuple[BlobStore, dict[str, str]]
GIGABYTE = 1 << 30
RAW = {"content-type": "application/octet-stream"}


@pytest.fixture
async def on_s3(valkey: ValkeyProcess, mock: Mock, tmp_path: Path, s3_store: Store) -> AsyncIterator[Yard]:
    yard = Yard(valkey, mock, tmp_path, store=s3_store)
    await yard.flush()
    yield yard
    await yard.aclose()


def peak_mb(pid: int) -> float:
    """The largest resident set this process ever had (VmHWM); 0 once it has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text("ascii").splitlines()
    except FileNotFoundError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("VmHWM")), 0) / 1024


async def blocks(total: int) -> AsyncIterator[bytes]:
    block = bytes(range(256)) * 1024
    for _ in range(total // len(block)):
        yield block


@pytest.mark.timeout(300)
async def test_a_gigabyte_up_and_a_gigabyte_down_in_little_memory(on_s3: Yard, tell: Callable[[str], None]) -> None:
    gateway = await on_s3.gateway()
    started = time.monotonic()
    async with httpx.AsyncClient(base_url=gateway.url, timeout=120) as client:
        answer = await client.post(f"/jobs/echo?mock_response_bytes={GIGABYTE}", content=blocks(GIGABYTE), headers=RAW)
        assert answer.status_code == 202, answer.text
        job_id, uploaded = answer.json()["job_id"], time.monotonic()
        relay = await on_s3.relay()
        peak = 0.0
        while relay.running:
            peak = max(peak, peak_mb(relay.pid))
            await anyio.sleep(0.05)
        ran = time.monotonic()
        record = await on_s3.finished(job_id, within=1)
        assert (record.status, record.input_size, record.result_size) == ("completed", GIGABYTE, GIGABYTE)
        digest, size = hashlib.sha256(), 0
        async with client.stream("GET", f"/jobs/echo/{job_id}/result") as result:
            async for chunk in result.aiter_bytes():
                digest.update(chunk)
                size += len(chunk)
    downloaded = time.monotonic()
    assert (digest.hexdigest(), size) == (record.result_sha256, GIGABYTE)
    assert peak_mb(gateway.pid) < 150
    assert peak < 150

    source, copy = on_s3.directory / "source", on_s3.directory / "copy"
    with source.open("wb") as file:
        for _ in range(GIGABYTE // (1 << 20)):
            _ = file.write(bytes(1 << 20))
    before = time.monotonic()
    _ = shutil.copyfile(source, copy)
    with copy.open("rb") as file:
        os.fsync(file.fileno())
    plain = time.monotonic() - before
    tell(
        f"1 GB on S3, encrypted: up {uploaded - started:.1f} s, run {ran - uploaded:.1f} s, down {downloaded - ran:.1f} s, "
        f"plain copy {plain:.1f} s; peak RSS gateway {peak_mb(gateway.pid):.0f} MB, relay {peak:.0f} MB"
    )


@pytest.mark.timeout(180)
async def test_a_hundred_clients_killed_in_the_middle_of_their_upload_leave_nothing(on_s3: Yard) -> None:
    gateway = await on_s3.gateway()
    port = int(gateway.url.rpartition(":")[2])

    async def break_off(number: int) -> None:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        head = f"POST /jobs/echo HTTP/1.1\r\nHost: x\r\nContent-Type: application/octet-stream\r\nContent-Length: {40 << 20}\r\n\r\n"
        writer.write(head.encode() + bytes((1 + number % 12) << 20))
        await writer.drain()
        writer.transport.abort()

    for start in range(0, 100, 10):
        async with anyio.create_task_group() as group:
            for number in range(start, start + 10):
                group.start_soon(break_off, number)

    async def store_is_empty() -> bool:
        _ = await on_s3.store.abort_unfinished(older_than_seconds=0)
        return [entry async for entry in on_s3.store.scan()] == []

    await eventually(store_is_empty, within=30)
    assert list((await on_s3.broker.jobs()).jobs) == []
    assert await on_s3.operator.residue() == []
    assert await on_s3.store.abort_unfinished(older_than_seconds=0) == 0


@pytest.mark.timeout(120)
async def test_an_s3_server_away_for_ten_seconds_loses_nothing_that_was_accepted(
    valkey: ValkeyProcess, mock: Mock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, s3: S3Server
) -> None:
    with S3Server() as own:
        own.make_bucket("jobs")
        environ = own.environ | {"BLOBS_URL": "s3://jobs"}
        for name, value in own.environ.items():
            monkeypatch.setenv(name, value)
        store = await open_store(read_settings(CommonSettings, environ))
        yard = Yard(valkey, mock, tmp_path, store=(store, environ))
        await yard.flush()
        gateway = await yard.gateway()
        async with httpx.AsyncClient(base_url=gateway.url, timeout=60) as client:
            accepted = [
                (await client.post("/jobs/echo", content=b"%d" % number, headers=RAW)).json()["job_id"]
                for number in range(3)
            ]
            relays = [await yard.relay(), await yard.relay()]
            own.kill()
            refused = await client.post("/jobs/echo", content=b"while it is away", headers=RAW)
            assert refused.status_code == 503, refused.text
            assert int(refused.headers["retry-after"]) >= 1
            with anyio.move_on_after(10):
                _ = [await relay.ended() for relay in relays]
            _ = own.start()
            _ = [await relay.ended(60) for relay in relays]
            while (await yard.broker.counts()).pending:
                assert await (await yard.relay()).ended() == 0
            for job_id in accepted:
                record = await yard.finished(job_id)
                assert record.status == "completed" or record.error_code == "storage_unavailable", record
            assert (await client.post("/jobs/echo", content=b"again", headers=RAW)).status_code == 202
        await yard.aclose()
        await store.aclose()


async def test_nothing_is_readable_without_the_key_in_the_store_or_in_logs(on_s3: Yard, s3: S3Server) -> None:
    content = b"a sentence that nobody may read " * 100
    gateway = await on_s3.gateway(LOG_LEVEL="DEBUG")
    async with httpx.AsyncClient(base_url=gateway.url) as client:
        job_id = (await client.post("/jobs/echo", content=content, headers=RAW)).json()["job_id"]
        relay = await on_s3.relay(LOG_LEVEL="DEBUG")
        assert await relay.ended() == 0
        assert hashlib.sha256(content).hexdigest() in (await client.get(f"/jobs/echo/{job_id}/result")).text
    stored = [path.read_bytes() for path in s3.data_directory.rglob("*") if path.is_file()]
    assert stored
    for secret in (content[:32], hashlib.sha256(content).hexdigest().encode()):
        assert not [one for one in stored if secret in one]
        for process in (gateway, relay):
            assert secret not in process.log.read_bytes()


@pytest.mark.timeout(120)
async def test_twenty_jobs_across_a_key_rotation_all_finish(
    valkey: ValkeyProcess, mock: Mock, tmp_path: Path, s3_store: Store
) -> None:
    store, environ = s3_store
    new = "k2:" + "/" * 43 + "="
    rotated = environ | {"ENCRYPTION_KEYS": f"{new}\n{environ['ENCRYPTION_KEYS']}"}
    old_and_new = environ | {"ENCRYPTION_KEYS": f"{environ['ENCRYPTION_KEYS']}\n{new}"}
    yard = Yard(valkey, mock, tmp_path, store=s3_store)
    await yard.flush()
    contents = [b"job %d" % number for number in range(20)]
    first = [await yard.submit(content) for content in contents[:10]]
    yard.store = await open_store(read_settings(CommonSettings, rotated))
    second = [await yard.submit(content) for content in contents[10:]]
    rollout = [  # old and new relays side by side
        await yard.relay(ENCRYPTION_KEYS=ring["ENCRYPTION_KEYS"], RELAY_MAX_JOBS="0") for ring in (rotated, old_and_new)
    ]
    assert [await relay.ended(60) for relay in rollout] == [0, 0]
    for job_id, content in zip([*first, *second], contents, strict=True):
        _ = await yard.check_one_good_end(job_id, content)
    await yard.store.aclose()
    yard.store = store
    await yard.aclose()


async def test_objects_swapped_between_jobs_are_refused_and_nothing_reaches_the_model(
    on_s3: Yard, s3: S3Server
) -> None:
    one, other = await on_s3.submit(b"one's file"), await on_s3.submit(b"other's file")
    files = {job_id: next(s3.data_directory.rglob(f"*{input_key(job_id)}")) for job_id in (one, other)}
    swapped = {one: files[other].read_bytes(), other: files[one].read_bytes()}
    for job_id, content in swapped.items():
        _ = files[job_id].write_bytes(content)
    for _ in range(2):
        assert await (await on_s3.relay()).ended() == 0
    for job_id in (one, other):
        record = await on_s3.finished(job_id)
        assert (record.status, record.error_code) == ("failed", "input_corrupt")
