"""Case K3: what the inference server may do, and what becomes of the job; one call of the model each."""

from __future__ import annotations

import asyncio
import errno
import hashlib
from typing import Any

import pytest

from queuecore.clock import monotonic
from queuecore.config import Retries
from queuecore.testing.clock import eventually
from queuecore.testing.raw_http import Handler, RawExchange
from relay import upstream
from relay.attempt import ExitCode
from relay.link import Address, Link, connect

pytestmark = pytest.mark.anyio
Bench = Any  # conftest's


def raw(content: bytes) -> Handler:
    async def handler(exchange: RawExchange) -> None:
        _ = await exchange.read_body()
        await exchange.send(content)

    return handler


@pytest.mark.parametrize(
    ("answer", "body", "content_type"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 2\r\n\r\nok", b"ok", "text/plain"),
        (b"HTTP/1.1 204 No Content\r\n\r\n", b"", "application/octet-stream"),
        (b"HTTP/1.1 201 Created\r\nContent-Length: 0\r\n\r\n", b"", "application/octet-stream"),
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Type: a/b\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
            b"abc",
            "a/b",
        ),
        (b"HTTP/1.0 200 OK\r\nContent-Type: a/b\r\n\r\nuntil the end", b"until the end", "a/b"),
        (
            b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx",
            b"x",
            "application/octet-stream",
        ),
        (b"HTTP/1.1 200 OK\r\nContent-Type: a/b\r\ncontent-type: c/d\r\nContent-Length: 1\r\n\r\nx", b"x", "a/b"),
        (b"HTTP/1.1 200 OK\r\nContent-Type: \xff\r\nContent-Length: 1\r\n\r\nx", b"x", "application/octet-stream"),
        (
            b"HTTP/1.1 200 OK\r\nContent-Encoding: identity\r\nContent-Length: 1\r\n\r\nx",
            b"x",
            "application/octet-stream",
        ),
    ],
)
async def test_every_whole_2xx_answer_is_a_result(bench: Bench, answer: bytes, body: bytes, content_type: str) -> None:
    bench.model.handler = raw(answer)
    job_id = await bench.submit(b"in")
    assert await bench.run() is ExitCode.DONE

    record = await bench.record(job_id)
    assert record.status == "completed", record.error_message
    assert await bench.result(job_id) == body
    assert (record.result_size, record.result_content_type) == (len(body), content_type)
    assert record.result_sha256 == hashlib.sha256(body).hexdigest()
    assert record.http_status in {200, 201, 204}
    assert len(bench.model.exchanges) == 1


@pytest.mark.parametrize(
    ("answer", "http_status", "words"),
    [
        (b"HTTP/1.1 500 Oh\r\nContent-Length: 4\r\n\r\nboom", 500, "the model answered 500: boom"),
        (b"HTTP/1.1 404 No\r\nContent-Length: 0\r\n\r\n", 404, "the model answered 404"),
        (
            b"HTTP/1.1 302 Go\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n",
            302,
            "the model answered 302",
        ),
        (b"HTTP/1.1 400 No\r\nContent-Length: 9\r\n\r\na\r\n\x1b[1mb", 400, "the model answered 400: a [1mb"),
        (b"HTTP/1.1 400 No\r\nContent-Length: 9000\r\n\r\n" + b"x" * 9000, 400, "the model answered 400: " + "x" * 500),
        (b"HTTP/1.1 400 No\r\nContent-Length: 9\r\n\r\ncut", 400, "the model answered 400: cut"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\ncut", 200, "the model closed the connection within its answer"),
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\ncut",
            200,
            "the model closed the connection within",
        ),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Encoding: gzip\r\n\r\nx", 200, "content-encoding 'gzip'"),
        (b"", None, "before it answered"),
        (b"SSH-2.0-OpenSSH_9\r\n", None, "did not speak HTTP"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"x" * 200_000, None, "did not speak HTTP"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nx", None, "did not speak HTTP"),
    ],
)
async def test_everything_else_fails_the_job_with_a_bounded_printable_reason(
    bench: Bench, answer: bytes, http_status: int | None, words: str
) -> None:
    bench.model.handler = raw(answer)
    job_id = await bench.submit(b"in")
    assert await bench.run() is ExitCode.DONE

    record = await bench.record(job_id)
    assert (record.status, record.error_code, record.http_status) == ("failed", "inference_error", http_status)
    assert words in record.error_message
    assert record.error_message.isprintable()
    assert len(record.error_message) < 600
    assert bench.results() == []
    assert len(bench.model.exchanges) == 1


async def test_the_request_is_one_plain_post_and_its_connection_is_fresh_and_closed(bench: Bench) -> None:
    for _ in range(2):
        _ = await bench.submit(b"in")
    assert await bench.run(max_jobs=2) is ExitCode.DONE
    first, second = bench.model.exchanges
    host = bench.model.url.removeprefix("http://")
    assert first.head.startswith(b"POST /v1/run HTTP/1.1\r\n")
    assert first.header_lines[:-2] == [
        f"Host: {host}", "User-Agent: relayq-relay", "Accept: */*", "Accept-Encoding: identity", "Connection: close",
        "Content-Length: 2", "Content-Type: audio/wav",
    ]  # fmt: skip
    assert first.body == b"in"
    assert first.writer.get_extra_info("peername") != second.writer.get_extra_info("peername")


async def test_a_large_answer_streams_into_the_store(bench: Bench) -> None:
    size = 40 * 1024 * 1024
    block = bytes(range(256)) * 4096

    async def answer(exchange: RawExchange) -> None:
        _ = await exchange.read_body()
        await exchange.send(f"HTTP/1.1 200 OK\r\nContent-Length: {size}\r\n\r\n".encode())
        for _ in range(size // len(block)):
            await exchange.send(block)

    bench.model.handler = answer
    job_id = await bench.submit(b"in")
    assert await bench.run() is ExitCode.DONE
    assert (await bench.record(job_id)).result_size == size
    assert await bench.result(job_id) == block * (size // len(block))


async def test_a_large_answer_that_is_cut_leaves_nothing_in_the_store(bench: Bench) -> None:
    bench.model.handler = raw(b"HTTP/1.1 200 OK\r\nContent-Length: 20000000\r\n\r\n" + b"x" * 10_000_000)
    job_id = await bench.submit(b"in")
    assert await bench.run() is ExitCode.DONE
    assert (await bench.record(job_id)).error_code == "inference_error"
    assert bench.results() == []


async def test_a_model_may_stream_its_answer_while_it_reads(bench: Bench) -> None:
    content = bytes(range(256)) * 4096 * 32  # far more than both socket buffers hold

    async def echo(exchange: RawExchange) -> None:
        await exchange.send(f"HTTP/1.1 200 OK\r\nContent-Length: {len(content)}\r\n\r\n".encode())
        while chunk := await exchange.reader.read(65_536):
            await exchange.send(chunk)

    bench.model.handler = echo
    job_id = await bench.submit(content)
    assert await bench.run() is ExitCode.DONE
    assert await bench.result(job_id) == content


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        (b"HTTP/1.1 413 Too Large\r\nContent-Length: 5\r\n\r\nlarge", "failed"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nenough", "completed"),
    ],
)
async def test_a_model_may_answer_and_close_without_reading_the_input(bench: Bench, answer: bytes, status: str) -> None:
    async def hasty(exchange: RawExchange) -> None:
        await exchange.send(answer)  # and the connection is closed with the input unread: a reset

    bench.model.handler = hasty
    for _ in range(10):
        job_id = await bench.submit(b"x" * 20_000_000)
        assert await bench.run() is ExitCode.DONE
        record = await bench.record(job_id)
        assert (record.status, record.http_status) == (status, int(answer[9:12])), record.error_message


async def test_a_slow_model_has_the_whole_execution_limit(bench: Bench) -> None:
    async def slow(exchange: RawExchange) -> None:
        _ = await exchange.read_body()
        await exchange.send(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n")
        for byte in (b"a", b"b", b"c"):
            try:
                async with asyncio.timeout(2.1):  # silent for longer than any default read timeout divided by three
                    _ = await exchange.reader.read()
            except TimeoutError:
                await exchange.send(byte)

    bench.model.handler = slow
    job_id = await bench.submit()
    assert await bench.run() is ExitCode.DONE
    assert await bench.result(job_id) == b"abc"


async def test_a_hung_model_ends_at_the_execution_limit_and_its_connection_is_closed(bench: Bench, hang: Any) -> None:
    bench.model.handler = hang
    bench.config["execution_timeout_seconds"] = 0.5
    job_id = await bench.submit()
    began = monotonic()
    assert await bench.run() is ExitCode.DONE
    assert 0.5 <= monotonic() - began < 2
    record = await bench.record(job_id)
    assert (record.status, record.error_code) == ("failed", "execution_timeout")
    _ = await eventually((await bench.asked()).closed.is_set, within=2)


async def test_the_models_own_execution_limit_wins_over_the_relays(bench: Bench, hang: Any) -> None:
    bench.model.handler = hang
    bench.config["execution_timeout_seconds"] = 0.3
    job_id = await bench.submit()
    assert await bench.run(execution_timeout_seconds=3600) is ExitCode.DONE
    assert (await bench.record(job_id)).error_code == "execution_timeout"


async def test_a_refused_connection_fails_the_job_as_unavailable(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upstream, "CONNECT_SECONDS", 0.3)
    waiting = bench.start(queue_pop_timeout_seconds=5)
    _ = await eventually(lambda: bench.progress.serving)
    await bench.model.close()
    job_id = await bench.submit()
    assert await waiting is ExitCode.DONE
    record = await bench.record(job_id)
    assert (record.status, record.error_code, record.http_status) == ("failed", "inference_unavailable", None)


async def test_a_model_that_restarts_within_a_moment_gets_the_job(bench: Bench) -> None:
    waiting = bench.start(queue_pop_timeout_seconds=5)
    _ = await eventually(lambda: bench.progress.serving)
    await bench.model.close()
    job_id = await bench.submit()
    _ = await eventually(lambda: bench.progress.phase == "running a job")
    await bench.model.open()
    assert await waiting is ExitCode.DONE
    assert (await bench.record(job_id)).status == "completed"


async def test_a_server_that_vanished_without_a_word_is_a_timeout(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, hang: Any
) -> None:
    async def vanish(_: Link) -> bytes:
        raise TimeoutError(errno.ETIMEDOUT, "Connection timed out")  # what the kernel says when keepalive gave up

    async def plain_connect(address: Address) -> Link:
        link = await connect(address)
        monkeypatch.setattr(type(link), "receive", vanish)
        return link

    bench.model.handler = hang
    monkeypatch.setattr(upstream, "connect", plain_connect)
    bench.config["retries"] = Retries(max_attempts=2)
    job_id = await bench.submit()
    assert await bench.run() is ExitCode.DONE
    record = await bench.record(job_id)
    assert (record.status, record.failures) == ("pending", 1)


async def test_a_path_in_the_inference_url_stands_before_every_request(bench: Bench) -> None:
    job_id = await bench.submit()
    bench.model.health_path = "/base/health"
    assert await bench.run(inference_url=f"{bench.model.url}/base/") is ExitCode.DONE
    assert bench.model.exchanges[-1].target == "/base/v1/run"
    assert (await bench.record(job_id)).status == "completed"
