"""The mock as its own process: what only a real server, real sockets and real signals show."""

from __future__ import annotations

import asyncio
import hashlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from pathlib import Path
from typing import Any, Self

import httpx
import psutil
import pytest

from queuecore.testing.clock import eventually
from queuecore.testing.servers import free_port

pytestmark = pytest.mark.anyio

Start = Callable[..., "Mock"]


class Mock:
    """A running mock."""

    def __init__(self, **variables: str) -> None:
        self.port = int(variables.get("MOCK_PORT", "0")) or free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        environ = {name: value for name, value in os.environ.items() if not name.startswith("MOCK_")}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "mock_inference"],
            env={**environ, "MOCK_PORT": str(self.port), **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def listening(self) -> Self:
        """Returns when it says so."""
        assert self.process.stdout is not None
        assert any("running on" in line for line in self.process.stdout), "it ended instead"
        return self

    async def health(self) -> int:
        try:
            async with httpx.AsyncClient() as client:
                return (await client.get(f"{self.url}/health")).status_code
        except httpx.TransportError:
            return 0

    async def requests(self) -> list[dict[str, Any]]:
        async with httpx.AsyncClient() as client:
            return (await client.get(f"{self.url}/journal")).json()["requests"]

    async def in_state(self, state: str, *, within: float = 5) -> dict[str, Any]:
        """The last request, once it is in this state."""

        async def last() -> dict[str, Any] | None:
            found = await self.requests()
            return found[-1] if found and found[-1]["state"] == state else None

        entry = await eventually(last, within=within)
        assert entry is not None
        return entry

    def leave(self) -> tuple[int, float]:
        """SIGTERM: the exit code and the seconds it took."""
        begin = time.monotonic()
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(10), time.monotonic() - begin

    def stop(self) -> str:
        """End it, whatever it does; its output."""
        self.process.kill()
        return self.process.communicate(timeout=10)[0]


@pytest.fixture
def start() -> Iterator[Start]:
    started: list[Mock] = []

    def start(**variables: str) -> Mock:
        started.append(Mock(**variables))
        return started[-1]

    yield start
    for mock in started:
        _ = mock.stop()


@pytest.fixture(scope="module")
def shared() -> Iterator[Mock]:
    """One for all tests that leave it alive."""
    mock = Mock().listening()
    yield mock
    _ = mock.stop()


@pytest.fixture
async def mock(shared: Mock) -> Mock:
    async with httpx.AsyncClient() as client:
        _ = await client.delete(f"{shared.url}/journal")
    return shared


@pytest.fixture
async def client(mock: Mock) -> AsyncGenerator[httpx.AsyncClient, None]:
    async with httpx.AsyncClient(base_url=mock.url, timeout=20) as client:
        yield client


async def count(answer: httpx.Response, sizes: list[int]) -> None:
    """Adds the size of each chunk as it comes."""
    async for chunk in answer.aiter_raw():
        sizes.append(len(chunk))


FILE = {"file": ("a.wav", b"RIFF", "audio/wav")}


async def test_health_and_the_model_answer_503_until_ready(start: Start) -> None:
    mock = start(MOCK_READY_AFTER_SECONDS="1.5")
    assert await eventually(mock.health, within=20) == 503
    async with httpx.AsyncClient() as client:
        loading = await client.post(f"{mock.url}/echo", content=b"x")

    assert (loading.status_code, loading.json()["error"]["code"]) == (503, "loading")

    async def ready() -> bool:
        return await mock.health() == 200

    assert await eventually(ready, within=10)
    assert [entry["state"] for entry in await mock.requests()] == ["refused"]


async def test_a_hanging_request_is_seen_to_end_when_its_caller_closes(mock: Mock, client: httpx.AsyncClient) -> None:
    asking = asyncio.create_task(client.post("/v1/audio/transcriptions", data={"mock_hang": "true"}, files=FILE))
    running = await mock.in_state("running")
    assert (running["behaviour"], running["ended_at"]) == ({"hang": True}, None)

    _ = asking.cancel()

    entry = await mock.in_state("disconnected", within=2)
    assert entry["status"] is None


async def test_a_caller_that_closes_during_a_delay_or_a_drip_is_seen_too(mock: Mock, client: httpx.AsyncClient) -> None:
    for query, state in (("mock_delay_seconds=60", "running"), ("mock_drip_seconds=0.05", "answering")):
        asking = asyncio.create_task(client.post(f"/echo?{query}", content=b"x"))
        _ = await mock.in_state(state)
        _ = asking.cancel()
        _ = await mock.in_state("disconnected", within=2)


async def test_a_caller_that_closes_within_its_upload_is_seen(mock: Mock) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", mock.port)
    writer.write(
        b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Type: audio/wav\r\nContent-Length: 1000\r\n\r\n" + b"x" * 99
    )
    await writer.drain()

    async def arrived() -> bool:
        found = await mock.requests()
        return bool(found) and found[0]["bytes"] == 99

    assert await eventually(arrived)
    writer.close()
    entry = await mock.in_state("disconnected", within=2)
    assert entry["received_at"] is None
    assert await reader.read() == b""


async def test_an_answer_can_be_delayed(client: httpx.AsyncClient) -> None:
    begin = time.monotonic()
    answer = await client.post("/echo", json={"mock_delay_seconds": 0.4})

    assert answer.status_code == 200
    assert time.monotonic() - begin >= 0.4


async def test_mock_die_ends_the_process_and_breaks_the_connection(start: Start) -> None:
    mock = start().listening()
    async with httpx.AsyncClient() as client:
        with pytest.raises(httpx.RemoteProtocolError):
            _ = await client.post(f"{mock.url}/v1/audio/transcriptions", data={"mock_die": "true"}, files=FILE)

    assert mock.process.wait(5) == 70


async def test_a_dripping_answer_comes_byte_by_byte(client: httpx.AsyncClient) -> None:
    begin = time.monotonic()
    async with client.stream("POST", "/echo?mock_response_bytes=8&mock_drip_seconds=0.05", content=b"x") as answer:
        sizes = [len(chunk) async for chunk in answer.aiter_raw()]

    assert sizes == [1] * 8
    assert time.monotonic() - begin >= 7 * 0.05


@pytest.mark.parametrize("query", ["mock_response_bytes=1000", "mock_ndjson_lines=100"])
async def test_a_cut_answer_ends_the_connection_within_its_body(
    mock: Mock, client: httpx.AsyncClient, query: str
) -> None:
    received: list[int] = []
    async with client.stream("POST", f"/echo?{query}&mock_cut_after_bytes=300", content=b"x") as answer:
        assert answer.status_code == 200
        with pytest.raises(httpx.RemoteProtocolError):
            await count(answer, received)

    assert sum(received) == 300
    entry = await mock.in_state("cut")
    assert entry["response_bytes"] == 300


async def test_an_answer_cut_before_its_first_byte_has_a_head(client: httpx.AsyncClient) -> None:
    with pytest.raises(httpx.RemoteProtocolError, match="body"):
        _ = await client.post("/echo?mock_cut_after_bytes=0", content=b"x")


async def test_huge_uploads_and_answers_are_streamed(mock: Mock, client: httpx.AsyncClient) -> None:
    block = os.urandom(1 << 20)
    expected = hashlib.sha256()

    async def body() -> AsyncGenerator[bytes, None]:
        yield b'--b\r\nContent-Disposition: form-data; name="file"; filename="big"\r\n\r\n'
        for _ in range(200):
            expected.update(block)
            yield block
        yield b"\r\n--b--\r\n"

    process = psutil.Process(mock.process.pid)
    _ = await client.post("/echo", files=FILE)
    before = process.memory_info().rss
    facts = (
        await client.post("/echo", content=body(), headers={"content-type": "multipart/form-data; boundary=b"})
    ).json()
    assert facts["sha256"] == expected.hexdigest()

    received = 0
    async with client.stream("POST", f"/echo?mock_response_bytes={500 << 20}", content=b"x") as answer:
        async for chunk in answer.aiter_raw(1 << 20):
            received += len(chunk)

    assert received == 500 << 20
    assert process.memory_info().rss - before < 32 << 20


async def test_an_idle_connection_is_closed_after_the_keep_alive(start: Start) -> None:
    mock = start(MOCK_KEEP_ALIVE_SECONDS="1").listening()
    reader, writer = await asyncio.open_connection("127.0.0.1", mock.port)
    writer.write(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
    _ = await reader.readuntil(b"}")

    begin = time.monotonic()
    async with asyncio.timeout(5):
        assert await reader.read() == b""
    assert 0.5 < time.monotonic() - begin < 4
    writer.close()


def test_sigterm_ends_an_idle_mock_at_once_with_0(start: Start) -> None:
    code, seconds = start().listening().leave()

    assert code == 0
    assert seconds < 2


async def test_sigterm_lets_a_request_finish_that_is_about_to_and_breaks_one_that_hangs(start: Start) -> None:
    mock = start().listening()
    async with httpx.AsyncClient(base_url=mock.url, timeout=20) as client:
        hanging = asyncio.create_task(client.post("/echo?mock_hang=true", content=b"x"))
        _ = await mock.in_state("running")
        short = asyncio.create_task(client.post("/echo?mock_delay_seconds=0.4", content=b"y"))

        async def both() -> bool:
            return [entry["state"] for entry in await mock.requests()] == ["running", "running"]

        assert await eventually(both)
        code, seconds = await asyncio.to_thread(mock.leave)

        assert code == 0
        assert seconds < 3
        assert (await short).status_code == 200
        with pytest.raises(httpx.RemoteProtocolError):
            _ = await hanging


@pytest.mark.parametrize("after_seconds", [0, 0.1, 0.3])
async def test_sigterm_while_it_starts_ends_it_with_0(start: Start, after_seconds: float) -> None:
    mock = start()

    def handles_sigterm() -> bool:
        status = Path(f"/proc/{mock.process.pid}/status").read_text("ascii")
        caught = next(line for line in status.splitlines() if line.startswith("SigCgt:"))
        return bool(int(caught.split()[1], 16) >> (signal.SIGTERM - 1) & 1)

    assert await eventually(handles_sigterm, within=20, every=0.001)
    # the moment of the signal is what this test is about
    await asyncio.sleep(after_seconds)

    assert mock.leave()[0] == 0
    assert "Traceback" not in mock.stop()


@pytest.mark.parametrize(
    ("variables", "text"),
    [
        ({"MOCK_READY_AFTER": "1"}, "MOCK_READY_AFTER: unknown setting (did you mean MOCK_READY_AFTER_SECONDS?)"),
        ({"MOCK_READY_AFTER_SECONDS": "-1"}, "MOCK_READY_AFTER_SECONDS: a number from 0 to 86400"),
    ],
)
def test_a_wrong_variable_stops_the_start_and_is_named(start: Start, variables: dict[str, str], text: str) -> None:
    mock = start(**variables)

    assert mock.process.wait(20) == 1
    assert text in mock.stop()


def test_a_port_in_use_stops_the_start(start: Start) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        mock = start(MOCK_PORT=str(taken.getsockname()[1]))

        assert mock.process.wait(20) == 1
    assert f"mock-inference: cannot listen on 127.0.0.1:{mock.port}: Address already in use" in mock.stop()
