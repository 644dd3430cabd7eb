"""`python -m gateway` as a process: ports, signals, exit codes, flat memory, Redis that comes and goes."""

from __future__ import annotations

import asyncio
import hashlib
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import httpx
import pytest
from gateway_process import gateway, queue_of

from queuecore.broker import Result, Worker
from queuecore.job import result_key
from queuecore.names import new_claim_id
from queuecore.settings import CommonSettings
from queuecore.storage import open_store
from queuecore.testing.clock import eventually
from queuecore.testing.requirement import requirement
from queuecore.testing.servers import ValkeyProcess

pytestmark = [pytest.mark.anyio, pytest.mark.redis]

MEBIBYTE = 1 << 20


@pytest.fixture
def valkey() -> Iterator[ValkeyProcess]:
    with ValkeyProcess(appendonly="always") as server:
        yield server


async def mebibytes(count: int, digest: Callable[[bytes], None]) -> AsyncIterator[bytes]:
    for number in range(count):
        piece = number.to_bytes(4, "big") * (MEBIBYTE // 4)
        digest(piece)
        yield piece


# -- start and stop ---------------------------------------------------------------------------------------------


@requirement("start:any:loss-window-said")
async def test_three_ports_serve_and_sigterm_ends_with_0(tmp_path: Path, valkey: ValkeyProcess) -> None:
    async with gateway(tmp_path, valkey.url) as process:
        await process.ready()
        assert (await process.client.get(f"{process.admin}/queues")).json()["queues"][0]["model"] == "echo"
        assert (await process.client.get(f"{process.metrics}/health/ready")).status_code == 200
        assert (await process.client.get("/health/live")).status_code == 200
        assert (await process.client.post("/jobs/echo", content=b"x")).status_code == 202
        text = (await process.client.get(f"{process.metrics}/metrics")).text
        assert 'relayq_jobs_submitted_total{model="echo"} 1.0' in text
        assert 'relayq_http_requests_total{method="POST",route="/jobs/{service_type}",status="202"} 1.0' in text
        assert 'relayq_task_age_seconds{task="outbox echo"}' in text
        assert 'relayq_build_info{service="gateway",version=' in text

        process.child.terminate()
        code, output = await process.ended()

    assert code == 0, output
    assert "Traceback" not in output
    assert '"event":"service.stopped"' in output
    assert "durability: full" in output


async def test_sigterm_ends_long_polls_and_lets_an_upload_finish(tmp_path: Path, valkey: ValkeyProcess) -> None:
    async with gateway(tmp_path, valkey.url) as process:
        await process.ready()
        response = await process.client.post("/jobs/echo", content=b"x")
        url, etag = response.headers["location"], response.headers["etag"]
        poll = asyncio.create_task(process.client.get(f"{url}?wait=60", headers={"if-none-match": etag}))
        gate = asyncio.Event()

        async def slow() -> AsyncIterator[bytes]:
            yield b"first"
            _ = await gate.wait()
            yield b"last"

        upload = asyncio.create_task(process.client.post("/jobs/echo", content=slow()))

        async def both_arrived() -> bool:
            text = (await process.client.get(f"{process.metrics}/metrics")).text
            return "relayq_waiters 1.0" in text and any((tmp_path / "blobs" / ".unfinished").iterdir())

        assert await eventually(both_arrived)
        process.child.terminate()

        assert (await poll).status_code == 304
        gate.set()
        assert (await upload).status_code == 202
        code, output = await process.ended()
        assert code == 0, output
        async with queue_of(tmp_path, valkey) as broker:
            assert len((await broker.jobs()).jobs) == 2


async def test_gateway_told_to_stop_says_so_and_still_takes_requests_until_load_balancers_have_noticed(
    tmp_path: Path, valkey: ValkeyProcess
) -> None:
    async with gateway(tmp_path, valkey.url, GATEWAY_SHUTDOWN_DELAY_SECONDS="2") as process:
        await process.ready()
        process.child.terminate()
        async with httpx.AsyncClient(base_url=process.public) as client:

            async def says_no() -> bool:
                return (await client.get("/health/ready")).status_code == 503

            assert await eventually(says_no, within=2)
            assert "shutting down" in (await client.get("/health/ready")).text
            submitted = await client.post("/jobs/echo", files={"file": ("a.wav", b"a", "audio/wav")})
        code, output = await process.ended()

    assert submitted.status_code == 202
    assert code == 0, output


async def test_upload_that_outlasts_the_drain_is_given_up_and_leaves_nothing(
    tmp_path: Path, valkey: ValkeyProcess
) -> None:
    async with gateway(tmp_path, valkey.url, GATEWAY_DRAIN_SECONDS="1") as process:
        await process.ready()

        reader, writer = await asyncio.open_connection("127.0.0.1", int(process.public.rpartition(":")[2]))
        writer.write(b"POST /jobs/echo HTTP/1.1\r\nHost: g\r\nContent-Length: 100\r\n\r\nfirst")
        unfinished = tmp_path / "blobs" / ".unfinished"
        assert await eventually(lambda: unfinished.is_dir() and any(unfinished.iterdir()))
        process.child.terminate()
        answer = await reader.read()
        code, output = await process.ended()
        writer.close()

    assert answer.startswith(b"HTTP/1.1 503 ")
    assert b'"code":"shutting_down"' in answer
    assert code == 0, output
    assert [path for path in (tmp_path / "blobs").rglob("*") if path.is_file()] == []


@pytest.mark.parametrize(
    ("environ", "word"),
    [
        ({"GATEWAY_AUTH": ""}, "GATEWAY_AUTH: api-key needs GATEWAY_API_KEYS_FILE"),
        ({"GATEWAY_PROT": "1"}, "GATEWAY_PROT"),
        ({"MODELS_FILE": "/nonexistent.yaml"}, "MODELS_FILE"),
        ({"BLOBS_URL": "ftp://x"}, "BLOBS_URL"),
        ({"REDIS_URL": "redis+sentinel://x"}, "REDIS_URL"),
        ({"GATEWAY_HOST": "203.0.113.1", "GATEWAY_AUTH": "header"}, "cannot listen on 203.0.113.1"),
        ({"GATEWAY_ADMIN_TOKEN_FILE": "/nonexistent"}, "GATEWAY_ADMIN_TOKEN_FILE"),
    ],
)
async def test_start_that_cannot_work_ends_with_1_and_says_why(
    tmp_path: Path, valkey: ValkeyProcess, environ: dict[str, str], word: str
) -> None:
    async with gateway(tmp_path, valkey.url, **environ) as process:
        code, output = await process.ended()

    assert code == 1, output
    assert word in output
    assert "Traceback" not in output


async def test_background_task_that_dies_ends_the_process_with_1(tmp_path: Path, valkey: ValkeyProcess) -> None:
    async with gateway(tmp_path, valkey.url) as process:
        await process.ready()
        _, writer = await asyncio.open_connection("127.0.0.1", valkey.port)
        writer.write(b"DEL relay:echo:outbox\r\nSET relay:echo:outbox nonsense\r\n")
        await writer.drain()
        writer.close()
        code, output = await process.ended()

    assert code == 1, output
    assert "the task outbox echo ended" in output
    assert '"event":"service.failed"' in output


@requirement("start:any:eviction-refused")
async def test_redis_that_evicts_stops_the_start(tmp_path: Path) -> None:
    with ValkeyProcess("--maxmemory-policy", "allkeys-lru") as server:
        async with gateway(tmp_path, server.url) as process:
            code, output = await process.ended()

    assert code == 1
    assert "noeviction" in output


async def test_redis_away_at_the_start_or_later_is_waited_for(tmp_path: Path) -> None:
    server = ValkeyProcess(appendonly="always")
    async with gateway(tmp_path, server.url) as process:

        async def answers(status: int) -> bool:
            try:
                return (await process.client.get("/health/ready")).status_code == status
            except httpx.TransportError:
                return False

        assert await eventually(lambda: answers(503), within=20)
        response = await process.client.post("/jobs/echo", content=b"x")
        assert (response.status_code, response.headers["retry-after"]) == (503, "2")
        assert list((tmp_path / "blobs").rglob("input")) == []
        with server:
            await process.ready()
            for _ in range(3):
                assert (await process.client.post("/jobs/echo", content=b"x")).status_code == 202
                server.kill()
                assert await eventually(lambda: answers(503), within=20)
                _ = server.start()
                await process.ready()
            jobs = (await process.client.get("/jobs")).json()["jobs"]
            assert [job["status"] for job in jobs] == ["pending"] * 3
            async with queue_of(tmp_path, server) as broker:
                claim = await broker.claim(Worker("relay"), new_claim_id())
                assert claim is not None
                url = f"/jobs/echo/{claim.job_id}"
                etag = (await process.client.get(url)).headers["etag"]
                poll = asyncio.create_task(process.client.get(f"{url}?wait=30", headers={"if-none-match": etag}))
                begun = time.monotonic()
                _ = await broker.release(claim)
                assert (await poll).json()["status"] == "pending"
                assert time.monotonic() - begun < 5
        process.child.send_signal(signal.SIGTERM)
        code, output = await process.ended()
    assert code == 0, output


# -- memory -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
async def test_memory_stays_flat_over_an_upload_and_a_download_of_200_mb(tmp_path: Path, valkey: ValkeyProcess) -> None:
    async with gateway(tmp_path, valkey.url) as process:
        await process.ready()
        assert (await process.client.post("/jobs/echo", content=b"warm")).status_code == 202
        before = process.rss()
        sent = hashlib.sha256()

        response = await process.client.post("/jobs/echo", content=mebibytes(200, sent.update))

        assert response.status_code == 202
        after_upload = process.rss()
        async with queue_of(tmp_path, valkey) as broker:
            claims = [await broker.claim(Worker("relay"), new_claim_id()) for _ in range(2)]
            claim = claims[1]
            assert claim is not None
            assert (claim.record.input_size, claim.record.input_sha256) == (200 * MEBIBYTE, sent.hexdigest())
            store = await open_store(CommonSettings(blobs_url=f"file://{tmp_path}/blobs"))
            key = result_key(claim.job_id, claim.fence, claim.claim_id)
            made = hashlib.sha256()
            size = await store.put(key, mebibytes(200, made.update))
            _ = await broker.complete(claim, Result(key, size, "application/octet-stream", made.hexdigest()))
        received = hashlib.sha256()
        highest = 0
        async with process.client.stream("GET", f"{response.headers['location']}/result") as answer:
            async for piece in answer.aiter_bytes():
                received.update(piece)
                highest = max(highest, process.rss())

    assert received.digest() == made.digest()
    assert after_upload - before < 16 * MEBIBYTE
    assert highest - before < 24 * MEBIBYTE
    assert highest < 150 * MEBIBYTE


async def test_a_hundred_clients_killed_in_the_middle_leave_no_job_and_no_object(
    tmp_path: Path, valkey: ValkeyProcess
) -> None:
    async with gateway(tmp_path, valkey.url) as process:
        await process.ready()
        port = int(process.public.rpartition(":")[2])
        for number in range(100):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(
                b"POST /jobs/echo HTTP/1.1\r\nHost: g\r\nContent-Length: 10000000\r\n\r\n" + b"x" * number * 999
            )
            await writer.drain()
            if number % 2:
                writer.transport.abort()
            else:
                writer.close()

        def files() -> list[Path]:
            return [path for path in (tmp_path / "blobs").rglob("*") if path.is_file()]

        assert await eventually(lambda: not files())
        assert (await process.client.get("/jobs")).json()["jobs"] == []
