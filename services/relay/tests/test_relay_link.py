"""Connections to the inference server: TLS, addresses, and what an abort does."""

from __future__ import annotations

import asyncio
import datetime
import ipaddress
import socket
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from queuecore.testing.clock import eventually
from queuecore.testing.raw_http import RawExchange, RawHttpServer
from relay import readiness, upstream
from relay.attempt import ExitCode
from relay.link import Address, connect
from relay.readiness import probe

pytestmark = pytest.mark.anyio
Bench = Any  # conftest's


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """A self-signed certificate of 127.0.0.1 with its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "model")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    path = tmp_path / "model.pem"
    _ = path.write_bytes(made.public_bytes(serialization.Encoding.PEM) + private)
    return path


@pytest.fixture
async def secure_model(certificate: Path) -> AsyncIterator[RawHttpServer]:
    async def answer(exchange: RawExchange) -> None:
        _ = await exchange.read_body()
        await exchange.answer("200 OK", b"secure")

    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(certificate)
    async with RawHttpServer(answer, tls) as server:
        yield server


async def test_a_model_behind_https_whose_certificate_is_known_gets_the_job(
    bench: Bench, secure_model: RawHttpServer, certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    job_id = await bench.submit(b"x" * 3_000_000)
    assert await bench.run(inference_url=secure_model.url) is ExitCode.DONE
    assert await bench.result(job_id) == b"secure"
    assert len(secure_model.exchanges[0].body) == 3_000_000


async def test_a_certificate_nobody_vouches_for_is_refused(secure_model: RawHttpServer) -> None:
    assert "CERTIFICATE" in (await probe(Address.parse(secure_model.url))).upper()
    assert secure_model.exchanges == []


async def test_a_cancelled_run_over_tls_hangs_up_too(
    bench: Bench, secure_model: RawHttpServer, certificate: Path, monkeypatch: pytest.MonkeyPatch, hang: Any
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    secure_model.handler = hang
    job_id = await bench.submit()
    running = bench.start(inference_url=secure_model.url)
    _ = await eventually(lambda: secure_model.exchanges)
    _ = await bench.broker.cancel(job_id)
    _ = await asyncio.wait_for(secure_model.exchanges[0].closed.wait(), 2)
    assert await running is ExitCode.DONE


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("http://127.0.0.1:9000", ("127.0.0.1", 9000, False, "", "127.0.0.1:9000")),
        ("http://model", ("model", 80, False, "", "model")),
        ("https://model/base/", ("model", 443, True, "/base", "model")),
        ("http://[::1]:9000/", ("::1", 9000, False, "", "[::1]:9000")),
    ],
)
def test_an_address_is_what_the_url_says(url: str, address: tuple[str, int, bool, str, str]) -> None:
    assert Address.parse(url) == address


async def test_an_abort_ends_a_pending_receive_and_every_later_call(model: RawHttpServer) -> None:
    link = await connect(Address.parse(model.url))
    receiving = asyncio.create_task(link.receive())
    await asyncio.sleep(0)
    link.abort()
    link.abort()
    assert await asyncio.wait_for(receiving, 1) == b""
    with pytest.raises(ConnectionAbortedError):
        await link.send(b"x")


async def test_a_host_without_an_address_is_unavailable(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upstream, "CONNECT_SECONDS", 0.2)
    assert await probe(Address.parse("http://model.invalid:9000")) != "200"


@pytest.mark.parametrize(
    ("greeting", "words"),
    [(b"SSH-2.0-OpenSSH_9\r\n", "not HTTP"), (b"HTTP/1.1 2", "not HTTP"), (b"HTTP/1.1 299 Odd\r\n", "299")],
)
async def test_a_probe_says_what_it_found(greeting: bytes, words: str) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(greeting)
        writer.write_eof()
        _ = await reader.read()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        assert await probe(Address.parse(f"http://127.0.0.1:{port}")) == words


async def test_a_probe_without_an_answer_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readiness, "_PROBE_SECONDS", 0.2)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        _ = await reader.read()  # the head, and then the end when the probe gives up
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        assert await probe(Address.parse(f"http://127.0.0.1:{port}")) == "no answer within 0.2 s"


async def test_a_connection_that_is_given_up_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[socket.socket] = []

    async def never(connection: socket.socket, _: object) -> None:
        tried.append(connection)
        await anyio.sleep_forever()

    monkeypatch.setattr(asyncio.get_running_loop(), "sock_connect", never)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(connect(Address.parse("http://127.0.0.1:9")), 0.2)
    assert tried[0].fileno() == -1
