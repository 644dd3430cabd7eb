"""Memory use does not depend on an object's size: 300 MB through each store, in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SIZE = 300 << 20
SCRIPT = """
import asyncio, os, resource, sys
from queuecore.settings import CommonSettings, read_settings
from queuecore.storage import open_store

SIZE = int(sys.argv[1])

def peak_mib():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

async def stream(size):
    piece = os.urandom(65_536)
    for _ in range(size // len(piece)):
        yield piece

async def length(store, **span):
    async with store.get("job/input", **span) as chunks:
        return sum([len(chunk) async for chunk in chunks])

async def main():
    store = await open_store(read_settings(CommonSettings, os.environ))
    assert await store.put("job/input", stream(1 << 20)) == 1 << 20
    assert await length(store) == 1 << 20
    before = peak_mib()
    assert await store.put("job/input", stream(SIZE)) == SIZE
    assert await length(store) == SIZE
    assert await length(store, offset=SIZE // 2) == SIZE - SIZE // 2
    await store.aclose()
    print(peak_mib() - before)

asyncio.run(main())
"""


def growth_mib(environ: dict[str, str]) -> float:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(SIZE)], env={**os.environ, **environ}, check=True, capture_output=True
    )
    return float(done.stdout)


def test_a_directory_keeps_a_few_pieces(tmp_path: Path) -> None:
    assert growth_mib({"BLOBS_URL": f"file://{tmp_path}"}) < 16


def test_encryption_keeps_a_few_segments(tmp_path: Path) -> None:
    from base64 import b64encode

    keys = "k1:" + b64encode(bytes(32)).decode()
    assert growth_mib({"BLOBS_URL": f"file://{tmp_path}", "ENCRYPTION_KEYS": keys}) < 24


@pytest.mark.s3
def test_s3_keeps_four_parts(request: pytest.FixtureRequest) -> None:
    server = request.getfixturevalue("versitygw")
    assert growth_mib({"BLOBS_URL": "s3://bucket/memory", **server.environ}) < 64
