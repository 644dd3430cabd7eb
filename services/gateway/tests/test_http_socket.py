"""The public port on a real socket: the raw corpus (data/http, families e7, e8, c8) and clients that misbehave."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from pathlib import Path
from typing import Any

import pytest
from gateway_stack import MakeStack, Stack

from queuecore.testing.clock import eventually

pytestmark = pytest.mark.anyio

DATA = Path(__file__).parent / "data" / "http"
INDEX = {entry["name"]: entry for entry in json.loads((DATA / "index.json").read_text("utf-8"))}
WAV = (DATA.parent / "tiny.wav").read_bytes()


def raw(name: str) -> bytes:
    """The corpus was made for another path; nothing else is changed."""
    return (DATA / f"{name}.raw").read_bytes().replace(b"POST /v1/jobs ", b"POST /jobs/transcription ")


class Wire:
    """One TCP connection to the gateway."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def answer(self, within: float = 5) -> tuple[int, dict[str, str], bytes]:
        """Status, headers, body; the body by its length."""
        async with asyncio.timeout(within):
            head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:] if line)}
            body = await self.reader.readexactly(int(headers.get("content-length", "0")))
        return int(head[0].split()[1]), headers, body

    async def closed(self, within: float = 5) -> bytes:
        """What still comes until the other side closes."""
        async with asyncio.timeout(within):
            try:
                return await self.reader.read()
            except ConnectionError:
                return b""

    def close(self) -> None:
        self.writer.close()


async def connect(stack: Stack) -> Wire:
    port = await stack.listen()
    wire = Wire(*await asyncio.open_connection("127.0.0.1", port))
    _ = stack.stack.callback(wire.close)
    return wire


def code(body: bytes) -> str:
    return json.loads(body)["code"]


def nothing_left(stack: Stack) -> bool:
    return not stack.objects and not stack.job_ids


def test_every_input_of_the_corpus_is_used() -> None:
    assert set(INDEX) == {path.stem for path in DATA.glob("*.raw")} == {
        "h01_length_too_long_then_close", "h02_length_too_long_then_silence", "h04_chunked_ok",
        "h06_length_and_chunked", "h07_negative_length", "h09_expect_continue_over_limit",
        "h11_idempotency_key_quoted", "h12_idempotency_key_bad", "h14_forwarded_for_spoof",
    }  # fmt: skip


# -- the corpus -------------------------------------------------------------------------------------------------


async def test_client_that_closes_before_its_body_is_whole_leaves_nothing(
    stack: Stack, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    wire = await connect(stack)
    await wire.send(raw("h01_length_too_long_then_close"))
    wire.close()

    assert await eventually(lambda: "went away" in caplog.text)
    assert nothing_left(stack)
    assert {record.levelname for record in caplog.records if record.name.startswith(("gateway", "uvicorn"))} == {"INFO"}


async def test_client_that_falls_silent_is_given_up_and_told(make_stack: MakeStack) -> None:
    stack = await make_stack(upload_idle_seconds=0.2)
    wire = await connect(stack)
    await wire.send(raw("h02_length_too_long_then_silence"))

    status, headers, body = await wire.answer()

    assert (status, code(body), headers["connection"]) == (408, "upload_timeout", "close")
    assert await wire.closed() == b""
    assert nothing_left(stack)


async def test_client_that_trickles_is_given_up_and_told(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.uploads.SLOW_SECONDS", 0.2)
    wire = await connect(stack)
    await wire.send(b"POST /jobs/echo HTTP/1.1\r\nHost: g\r\nContent-Length: 1000000\r\n\r\n")
    answer = asyncio.create_task(wire.answer())
    while not answer.done():
        await wire.send(b"x")
        await asyncio.sleep(0.02)

    status, _, body = await answer

    assert (status, code(body)) == (408, "upload_timeout")
    assert nothing_left(stack)


async def test_chunked_form_is_taken(stack: Stack) -> None:
    wire = await connect(stack)
    await wire.send(raw("h04_chunked_ok"))

    status, _, _ = await wire.answer()

    assert status == 202
    assert list(stack.objects.values()) == [WAV]
    wire.close()


@pytest.mark.parametrize("name", ["h06_length_and_chunked", "h07_negative_length"])
async def test_length_that_cannot_be_trusted_is_400_and_closes(stack: Stack, name: str) -> None:
    wire = await connect(stack)
    await wire.send(raw(name))

    status, headers, body = await wire.answer()

    assert (status, code(body)) == (400, "invalid_http")
    assert (headers["content-type"], headers["connection"]) == ("application/problem+json", "close")
    assert await wire.closed() == b""
    assert nothing_left(stack)


async def test_expected_body_over_the_limit_is_413_without_100_continue(stack: Stack) -> None:
    wire = await connect(stack)
    begun = time.monotonic()
    await wire.send(raw("h09_expect_continue_over_limit"))

    status, headers, body = await wire.answer()

    assert (status, code(body), headers["connection"]) == (413, "upload_too_large", "close")
    assert await wire.closed() == b""
    assert time.monotonic() - begun < 1


# -- of the same kinds ------------------------------------------------------------------------------------------


async def test_expected_body_within_the_limit_is_asked_for(stack: Stack) -> None:
    wire = await connect(stack)
    await wire.send(b"POST /jobs/echo HTTP/1.1\r\nHost: g\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n")
    async with asyncio.timeout(5):
        assert await wire.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    await wire.send(b"abc")

    assert (await wire.answer())[0] == 202
    assert list(stack.objects.values()) == [b"abc"]
    wire.close()


@pytest.mark.parametrize("chunked", [False, True], ids=["length", "chunked"])
async def test_body_that_passes_the_limit_is_413_while_it_still_comes(make_stack: MakeStack, chunked: bool) -> None:
    cap = 1_000_000
    stack = await make_stack(max_upload_bytes=cap)
    wire = await connect(stack)
    # A form: its length alone does not say that the file in it is too large.
    start = (
        b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\nlarge\r\n'
        b'--b\r\nContent-Disposition: form-data; name="file"; filename="f"\r\n\r\n'
    )
    framing = b"Transfer-Encoding: chunked" if chunked else b"Content-Length: 3900000"

    def piece(content: bytes) -> bytes:
        return b"%x\r\n%b\r\n" % (len(content), content) if chunked else content

    await wire.send(
        b"POST /jobs/echo HTTP/1.1\r\nHost: g\r\nContent-Type: multipart/form-data; boundary=b\r\n%b\r\n\r\n" % framing
    )
    await wire.send(piece(start))
    sent = 0
    answer = asyncio.create_task(wire.answer())
    while not answer.done() and sent < 3_500_000:
        await wire.send(piece(b"x" * 10_000))
        sent += 10_000
        await asyncio.sleep(0.001)  # a client on a real line: what is on its way is not much

    status, headers, body = await answer

    assert (status, code(body), headers["connection"]) == (413, "upload_too_large", "close")
    assert sent <= cap + (1 << 20)
    assert nothing_left(stack)
    wire.close()


async def test_client_that_sends_on_after_413_can_read_the_answer(make_stack: MakeStack) -> None:
    """Without throwing away what still comes, the kernel would reset the connection under the answer."""
    stack = await make_stack(max_upload_bytes=100_000)
    wire = await connect(stack)
    await wire.send(b"POST /jobs/echo?model=large HTTP/1.1\r\nHost: g\r\nTransfer-Encoding: chunked\r\n\r\n")
    for _ in range(60):
        await wire.send(b"8000\r\n" + b"x" * 0x8000 + b"\r\n")
        await asyncio.sleep(0.002)  # the refusal comes while the client is still sending
    await wire.send(b"0\r\n\r\n")

    status, _, body = await wire.answer()

    assert (status, code(body)) == (413, "upload_too_large")
    assert await wire.closed() == b""


async def test_client_that_never_stops_sending_is_cut_off(
    make_stack: MakeStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.frame.LINGER_SECONDS", 0.3)
    stack = await make_stack(max_upload_bytes=1000)
    wire = await connect(stack)
    await wire.send(b"POST /jobs/echo?model=large HTTP/1.1\r\nHost: g\r\nTransfer-Encoding: chunked\r\n\r\n")
    begun = time.monotonic()

    async def flood() -> None:
        while time.monotonic() - begun < 10:
            await wire.send(b"400\r\n" + b"x" * 0x400 + b"\r\n")
            await asyncio.sleep(0.005)

    with pytest.raises(ConnectionError):
        await flood()

    assert time.monotonic() - begun < 5
    assert nothing_left(stack)


@pytest.mark.parametrize(
    ("request_head", "status", "problem"),
    [
        (b"POST /jobs/none HTTP/1.1\r\n", 404, "service_type_not_found"),
        (
            b"POST /jobs/echo?model=none HTTP/1.1\r\nContent-Type: multipart/form-data; boundary=b\r\n",
            400,
            "model_not_found",
        ),
        (b"POST /nowhere HTTP/1.1\r\n", 404, "route_not_found"),
        (b"DELETE /models HTTP/1.1\r\n", 405, "method_not_allowed"),
    ],
    ids=["service", "model", "route", "method"],
)
async def test_refused_request_whose_body_was_not_read_closes_the_connection(
    stack: Stack, request_head: bytes, status: int, problem: str
) -> None:
    wire = await connect(stack)
    await wire.send(request_head + b"Host: g\r\nContent-Length: 1000000\r\n\r\n" + b"x" * 1000)

    got, headers, body = await wire.answer()

    assert (got, code(body), headers["connection"]) == (status, problem, "close")
    assert await wire.closed() == b""


async def test_refused_request_that_was_read_keeps_the_connection(stack: Stack) -> None:
    wire = await connect(stack)
    for _ in range(2):
        await wire.send(
            b"POST /jobs/chat HTTP/1.1\r\nHost: g\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
        )
        status, headers, _ = await wire.answer()
        assert status == 400
        assert "connection" not in headers
    wire.close()


@pytest.mark.parametrize(
    "data",
    [b"nonsense\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"GET /\xff HTTP/1.1\r\nHost: g\r\n\r\n", b"\x16\x03\x01\x02\0\x01\0",
     b"POST /jobs/echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
     b"GET / HTTP/1.1\r\nA\0: b\r\n\r\n", b"CONNECT g:80 HTTP/1.1\r\nHost: g\r\n\r\n"],
)  # fmt: skip
async def test_what_is_not_http_is_answered_as_a_problem_too(stack: Stack, data: bytes) -> None:
    wire = await connect(stack)
    await wire.send(data)

    status, headers, body = await wire.answer()

    assert 400 <= status < 500
    assert headers["content-type"] == "application/problem+json"
    assert json.loads(body)["status"] == status
    wire.close()


async def test_head_that_is_too_large_or_too_slow_is_refused(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    wire = await connect(stack)
    await wire.send(b"GET /models HTTP/1.1\r\nHost: g\r\n")
    with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):  # noqa: PT012  it may close while we send
        for _ in range(100):
            await wire.send(b"X-Padding: " + b"x" * 4000 + b"\r\n")
            await asyncio.sleep(0)
        status, _, body = await wire.answer()
        assert (status, code(body)) == (431, "head_too_large")
        raise ConnectionError

    monkeypatch.setattr("gateway.protocol.HEAD_SECONDS", 0.2)
    slow = await connect(stack)
    await slow.send(b"GET /models HTTP/1.1\r\nHost: g\r\n")
    status, _, body = await slow.answer()
    assert (status, code(body)) == (408, "head_timeout")
    silent = await connect(stack)
    assert await silent.closed() == b""


async def test_forwarded_headers_of_strangers_change_nothing(stack: Stack) -> None:
    wire = await connect(stack)
    await wire.send(
        b"GET /models HTTP/1.1\r\nHost: g\r\nX-Forwarded-For: 203.0.113.9\r\nX-Forwarded-Proto: https\r\n\r\n"
    )

    status, headers, _ = await wire.answer()

    assert status == 200
    assert "server" not in headers
    wire.close()


async def test_body_is_not_read_faster_than_the_store_takes_it(make_stack: MakeStack) -> None:
    from collections.abc import AsyncIterator

    from queuecore.testing.blobs import MemoryStore

    class SlowStore(MemoryStore):
        gate = asyncio.Event()

        async def put(self, key: str, chunks: AsyncIterator[bytes]) -> int:
            _ = await anext(chunks)
            _ = await self.gate.wait()
            return await super().put(key, chunks)

    store = SlowStore()
    stack = await make_stack(store=store)
    port = await stack.listen()
    link = socket.create_connection(("127.0.0.1", port))
    link.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65_536)
    link.setblocking(False)
    link.sendall(b"POST /jobs/echo?model=large HTTP/1.1\r\nHost: g\r\nContent-Length: 100000000\r\n\r\n")
    sent = 0
    stalled = 0
    while stalled < 20 and sent < 90_000_000:
        try:
            sent += link.send(b"x" * 65_536)
            stalled = 0
        except BlockingIOError:
            stalled += 1
        await asyncio.sleep(0.005)

    assert sent < 20_000_000
    store.gate.set()
    link.close()


async def test_waiting_clients_that_hang_up_are_forgotten(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    """Case c8: 150 clients wait while 50 submit; the waiting ones hang up."""
    monkeypatch.setattr("gateway.waiters.FIRST_LOOK_SECONDS", 0.1)
    monkeypatch.setattr("gateway.waiters.LONGEST_LOOK_SECONDS", 0.2)
    port = await stack.listen()
    response = await stack.client.post("/jobs/echo?model=large", content=b"x")
    url, etag = response.headers["location"], response.headers["etag"]
    wires = [Wire(*await asyncio.open_connection("127.0.0.1", port)) for _ in range(150)]
    for wire in wires:
        await wire.send(f"GET {url}?wait=60 HTTP/1.1\r\nHost: g\r\nIf-None-Match: {etag}\r\n\r\n".encode())
    waiters = stack.gateway.edge.waiters
    assert await eventually(lambda: waiters._count == 150)
    submitted: list[Any] = await asyncio.gather(
        *(stack.client.post("/jobs/echo?model=large", content=b"y") for _ in range(50))
    )
    for wire in wires:
        wire.close()

    assert {one.status_code for one in submitted} == {202}
    assert await eventually(lambda: waiters._count == 0)
    assert waiters._by_job == {}
    assert len(stack.queue.listeners) == 1


async def test_health_answers_while_a_hostile_form_is_parsed(stack: Stack) -> None:
    port = await stack.listen()
    hostile = Wire(*await asyncio.open_connection("127.0.0.1", port))
    body = b"\r\n" * 400_000 + b"--b\r\n" + b"A: b\r\n" * 1000
    await hostile.send(
        b"POST /jobs/echo HTTP/1.1\r\nHost: g\r\nContent-Type: multipart/form-data; boundary=b\r\n"
        b"Content-Length: %d\r\n\r\n" % len(body)
    )
    slowest = 0.0
    for start in range(0, len(body), 50_000):
        hostile.writer.write(body[start : start + 50_000])
        probe = Wire(*await asyncio.open_connection("127.0.0.1", port))
        begun = time.monotonic()
        await probe.send(b"GET /health/live HTTP/1.1\r\nHost: g\r\n\r\n")
        assert (await probe.answer())[0] == 200
        slowest = max(slowest, time.monotonic() - begun)
        probe.close()

    assert slowest < 1
    hostile.close()
