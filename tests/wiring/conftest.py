"""Real processes on a real server, with everything a job touches in one place."""

from __future__ import annotations

import base64
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from queuecore.blobs import BlobStore
from queuecore.settings import CommonSettings, read_settings
from queuecore.storage import open_store
from queuecore.testing.lacking import lacking
from queuecore.testing.raw_http import HeldModel
from queuecore.testing.servers import S3Server, ValkeyProcess, s3_binary
from queuecore.testing.yard import Mock, Yard

KEY: Final = base64.b64encode(bytes(range(32))).decode()


@pytest.fixture(scope="session")
def valkey() -> Iterator[ValkeyProcess]:
    with ValkeyProcess() as server:
        yield server


@pytest.fixture(scope="session")
def mock() -> Iterator[Mock]:
    with Mock() as server:
        yield server


@pytest.fixture(scope="session")
def s3() -> Iterator[S3Server]:
    if s3_binary() is None:
        lacking("no S3 server: `make tools/versitygw` builds one (it needs Go)")
    with S3Server() as server:
        server.make_bucket("jobs")
        yield server


@pytest.fixture
async def s3_store(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[BlobStore, dict[str, str]]]:
    """An encrypted store on a real S3 server, and what makes a process open the same."""
    environ = s3.environ | {"BLOBS_URL": f"s3://jobs/{uuid.uuid4()}", "ENCRYPTION_KEYS": f"k1:{KEY}"}
    for name, value in s3.environ.items():
        monkeypatch.setenv(name, value)
    store = await open_store(read_settings(CommonSettings, environ))
    yield store, environ
    await store.aclose()


@pytest.fixture
async def yard(valkey: ValkeyProcess, mock: Mock, tmp_path: Path) -> AsyncIterator[Yard]:
    made = Yard(valkey, mock, tmp_path)
    await made.flush()
    yield made
    await made.aclose()


@pytest.fixture
async def model() -> AsyncIterator[HeldModel]:
    async with HeldModel() as server:
        yield server


@pytest.fixture
def lasting() -> Iterator[ValkeyProcess]:
    """A server of the test's own that comes back with what it knew."""
    with ValkeyProcess(appendonly="always") as server:
        yield server


@pytest.fixture
def tell(record_property: Callable[[str, object], None]) -> Callable[[str], None]:
    """A line for the end of the report: what was measured."""
    return lambda text: record_property("measured", text)
