"""The stores that hold the blob contract, each fresh for every test."""

from __future__ import annotations

import base64
import logging
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from queuecore.blobs import BlobStore
from queuecore.crypto.keyring import KeyRing
from queuecore.storage.directory import DirectoryStore
from queuecore.storage.encrypted import EncryptedStore
from queuecore.storage.s3 import S3Connection, S3Store
from queuecore.storage.s3_target import S3Target
from queuecore.testing.blobs import MemoryStore
from queuecore.testing.lacking import lacking
from queuecore.testing.servers import S3Server, s3_binary

KEYS = "k1:" + base64.b64encode(bytes(range(32))).decode()


@pytest.fixture(autouse=True)
def aws(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Credentials of the test servers, and nothing of the machine's own."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", S3Server.ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", S3Server.SECRET_KEY)
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "no-config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "no-credentials"))
    for name in ("AWS_SESSION_TOKEN", "AWS_PROFILE", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="session")
def versitygw() -> Iterator[S3Server]:
    """A real S3 server with the bucket ``bucket``."""
    if s3_binary() is None:
        lacking("no versitygw here: `make tools/versitygw` builds it (needs Go)")
    with S3Server() as server:
        server.make_bucket("bucket")
        yield server


@pytest.fixture(scope="session")
def moto_url() -> Iterator[str]:
    """moto's S3, with the bucket ``bucket``."""
    import urllib.request

    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    with urllib.request.urlopen(urllib.request.Request(f"http://{host}:{port}/bucket", method="PUT"), timeout=10):
        yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture(
    params=[
        "memory",
        "directory",
        "encrypted",
        pytest.param("moto", marks=pytest.mark.s3),
        pytest.param("versitygw", marks=pytest.mark.s3),
    ]
)
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[BlobStore]:
    """One store of each kind, empty."""
    made = _make(request.param, request, tmp_path)
    yield made
    await made.aclose()


def _make(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> BlobStore:
    if kind == "memory":
        return MemoryStore()
    if kind == "directory":
        return DirectoryStore(tmp_path)
    if kind == "encrypted":
        return EncryptedStore(DirectoryStore(tmp_path), KeyRing.parse(KEYS, "test"))
    url = request.getfixturevalue("moto_url") if kind == "moto" else request.getfixturevalue("versitygw").url
    return S3Store(S3Connection(S3Target("bucket", url)), f"tests/{uuid.uuid4()}")
