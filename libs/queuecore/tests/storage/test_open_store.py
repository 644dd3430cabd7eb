from __future__ import annotations

import base64
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from queuecore.errors import ConfigurationError
from queuecore.settings import CommonSettings, Secret
from queuecore.storage import open_store
from queuecore.storage.directory import DirectoryStore
from queuecore.storage.s3 import S3Store
from queuecore.testing.s3_stub import S3Stub

pytestmark = pytest.mark.anyio

KEYS = "k1:" + base64.b64encode(bytes(range(32))).decode()


async def stream(content: bytes) -> AsyncIterator[bytes]:
    yield content


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({}, "BLOBS_URL: required"),
        ({"blobs_url": "file://host/dir"}, "BLOBS_URL: file:///"),
        ({"blobs_url": "file:"}, "BLOBS_URL: file:///"),
        ({"blobs_url": "file:///"}, "BLOBS_URL: file:///"),
        ({"blobs_url": "file:///dev/null/store"}, "BLOBS_URL: /dev/null/store cannot be made"),
        ({"blobs_url": "file:///tmp/x?y=1"}, "BLOBS_URL: no ?"),
        ({"blobs_url": "s3://"}, "BLOBS_URL: the bucket's name"),
        ({"blobs_url": "s3://Upper/x"}, "BLOBS_URL: the bucket's name"),
        ({"blobs_url": "s3://key:secret@bucket/x"}, "BLOBS_URL: the bucket's name"),
        ({"blobs_url": "s3://bucket/a//b"}, "BLOBS_URL: the prefix"),
        ({"blobs_url": "s3://bucket/../b"}, "BLOBS_URL: the prefix"),
        ({"blobs_url": "s3://bucket/a%20b"}, "BLOBS_URL: the prefix"),
        ({"blobs_url": "s3://bucket", "s3_endpoint_url": "minio:9000"}, "S3_ENDPOINT_URL: http"),
        ({"blobs_url": "s3://bucket", "s3_endpoint_url": "http://"}, "S3_ENDPOINT_URL: http"),
        ({"blobs_url": "file:///tmp", "encryption_keys_file": "/nowhere/keys"}, "ENCRYPTION_KEYS_FILE: /nowhere/keys"),
        ({"blobs_url": "file:///tmp", "encryption_keys": Secret("k1:short")}, "ENCRYPTION_KEYS"),
    ],
)
async def test_a_wrong_setting_is_named(settings: dict[str, str], text: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        _ = await open_store(CommonSettings(**settings))  # pyright: ignore[reportArgumentType]  one case has a Secret
    assert text in str(caught.value)
    assert "secret@" not in str(caught.value)


async def test_a_directory_is_made_and_its_name_may_be_escaped(tmp_path: Path) -> None:
    store = await open_store(CommonSettings(blobs_url=f"file://{tmp_path}/a%20new/dir"))
    assert isinstance(store, DirectoryStore)
    _ = await store.put("job/input", stream(b"x"))
    assert content(tmp_path / "a new" / "dir" / "job" / "input") == b"x"


def content(file: Path) -> bytes:
    return file.read_bytes()


async def test_a_bucket_and_its_prefix() -> None:
    async with S3Stub("my-bucket") as stub:
        common = CommonSettings(blobs_url="s3://my-bucket/some/where/", s3_endpoint_url=stub.url)
        store = await open_store(common)
        assert isinstance(store, S3Store)
        assert stub.requests == []
        _ = await store.put("job/input", stream(b"x"))
        assert stub.objects == {"some/where/job/input": b"x"}
        await store.aclose()


@pytest.mark.parametrize("source", ["variable", "file"])
async def test_keys_switch_encryption_on(tmp_path: Path, source: str) -> None:
    (tmp_path / "keys").write_text(KEYS + "\n", "utf-8")
    chosen = (
        CommonSettings(blobs_url=f"file://{tmp_path}/store", encryption_keys=Secret(KEYS))
        if source == "variable"
        else CommonSettings(blobs_url=f"file://{tmp_path}/store", encryption_keys_file=str(tmp_path / "keys"))
    )
    store = await open_store(chosen)
    _ = await store.put("job/input", stream(b"in clear"))
    async with store.get("job/input") as chunks:
        assert b"".join([chunk async for chunk in chunks]) == b"in clear"
    assert b"in clear" not in content(tmp_path / "store" / "job" / "input")


def test_importing_the_stores_imports_no_s3_client_and_no_cipher() -> None:
    script = (
        "import sys, queuecore.storage, queuecore.storage.s3, queuecore.storage.directory;"
        "print(*(name for name in ('aioboto3', 'botocore', 'aiohttp', 'cryptography') if name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", script], check=True, capture_output=True).stdout.strip() == b""


async def test_a_real_server_takes_what_open_store_makes(request: pytest.FixtureRequest) -> None:
    server = request.getfixturevalue("versitygw")
    for style in ("auto", "path"):
        common = CommonSettings(
            blobs_url="s3://bucket/opened", s3_endpoint_url=server.url, s3_addressing_style=style,
            encryption_keys=Secret(KEYS),
        )  # fmt: skip
        store = await open_store(common)
        await store.connect()
        await store.check()
        await store.aclose()
