"""What every blob store does (queuecore/blobs.py), whatever lies below it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator

import pytest

from queuecore.blobs import BlobStore
from queuecore.errors import BlobNotFound
from queuecore.storage.multipart import FIRST_PART_BYTES

pytestmark = pytest.mark.anyio

MIB = 1 << 20
SIZES = [0, 1, 65_536, 5 * MIB - 1, 5 * MIB, 5 * MIB + 1, FIRST_PART_BYTES - 1, FIRST_PART_BYTES, FIRST_PART_BYTES + 1,
         10 * MIB, 10 * MIB + 1, 3 * FIRST_PART_BYTES + 7]  # fmt: skip
KEY = "0199-job/input"


class Unlucky(Exception):
    """Raised by a stream in the middle."""


async def stream(content: bytes, piece_bytes: int = 65_536) -> AsyncIterator[bytes]:
    for start in range(0, len(content), piece_bytes):
        yield content[start : start + piece_bytes]


async def breaking(content: bytes) -> AsyncIterator[bytes]:
    async for piece in stream(content):
        yield piece
    raise Unlucky


async def read(store: BlobStore, key: str, *, offset: int = 0, length: int | None = None) -> bytes:
    async with store.get(key, offset=offset, length=length) as chunks:
        return b"".join([chunk async for chunk in chunks])


async def keys(store: BlobStore, prefix: str = "", after: str = "") -> list[str]:
    return [entry.key async for entry in store.scan(prefix, after=after)]


@pytest.mark.parametrize("size", SIZES)
async def test_an_object_comes_back_as_it_was_put(store: BlobStore, size: int) -> None:
    content = os.urandom(size)
    assert await store.put(KEY, stream(content)) == size
    assert await store.size(KEY) == size
    assert await read(store, KEY) == content


async def test_the_pieces_of_a_stream_do_not_matter(store: BlobStore) -> None:
    for piece_bytes, size in ((1, 3_000), (7, 3_000), (100_001, 17 * MIB), (20 * MIB, 20 * MIB)):
        content = os.urandom(size)
        assert await store.put(KEY, stream(content, piece_bytes)) == size
        assert await read(store, KEY) == content, piece_bytes


async def test_empty_pieces_are_nothing(store: BlobStore) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for piece in (b"", b"a", b"", b"b", b""):
            yield piece

    assert await store.put(KEY, pieces()) == 2
    assert await read(store, KEY) == b"ab"


async def test_a_range_gives_exactly_those_bytes(store: BlobStore) -> None:
    end = 9 * MIB
    content = os.urandom(end)
    _ = await store.put(KEY, stream(content))
    for offset, length in [
        (0, None), (0, 1), (5, 10), (MIB, None), (MIB - 1, 2), (0, end), (0, 99 * MIB), (2 * MIB, 99 * MIB),
        (end - 1, None), (end - 1, 1), (end, None), (end, 5), (end + 5, 3), (0, 0), (7, 0),
    ]:  # fmt: skip
        expected = content[offset:] if length is None else content[offset : offset + length]
        assert await read(store, KEY, offset=offset, length=length) == expected, (offset, length)


async def test_any_range_of_an_empty_object_is_empty(store: BlobStore) -> None:
    _ = await store.put(KEY, stream(b""))
    for offset, length in [(0, None), (0, 5), (3, None), (3, 2), (0, 0)]:
        assert await read(store, KEY, offset=offset, length=length) == b"", (offset, length)


async def test_a_second_put_replaces_the_object(store: BlobStore) -> None:
    _ = await store.put(KEY, stream(os.urandom(9 * MIB)))
    _ = await store.put(KEY, stream(b"short"))
    assert await read(store, KEY) == b"short"
    assert await store.size(KEY) == 5
    assert await keys(store) == [KEY]


async def test_a_missing_object_is_reported_on_entering(store: BlobStore) -> None:
    for length in (None, 0, 3):
        with pytest.raises(BlobNotFound):
            async with store.get("0199-job/nothing", length=length):
                pytest.fail("entered")
    with pytest.raises(BlobNotFound):
        _ = await store.size("0199-job/nothing")


async def test_deleting_twice_is_no_error(store: BlobStore) -> None:
    _ = await store.put(KEY, stream(b"x"))
    await store.delete(KEY)
    await store.delete(KEY)
    with pytest.raises(BlobNotFound):
        _ = await read(store, KEY)
    assert await keys(store) == []


async def test_deleting_one_object_of_a_job_keeps_the_others(store: BlobStore) -> None:
    for key in ("job/input", "job/1-a/result", "job/2-b/result"):
        _ = await store.put(key, stream(b"x"))
    await store.delete("job/1-a/result")
    assert await keys(store) == ["job/2-b/result", "job/input"]


async def test_scan_gives_keys_and_sizes_in_key_order(store: BlobStore) -> None:
    names = ["b/1", "a/10/x", "a-b/1", "a/2", "a/10/y", "a/1", "a0/1", "c"]
    for name in names:
        _ = await store.put(name, stream(b"x"))
    assert await keys(store) == sorted(names)
    assert await keys(store, "a/") == ["a/1", "a/10/x", "a/10/y", "a/2"]
    assert await keys(store, "a") == ["a-b/1", "a/1", "a/10/x", "a/10/y", "a/2", "a0/1"]
    assert await keys(store, "a/1") == ["a/1", "a/10/x", "a/10/y"]
    assert await keys(store, "nothing") == []
    assert {entry.size for entry in [entry async for entry in store.scan()]} != {0}


async def test_scan_goes_on_behind_any_key(store: BlobStore) -> None:
    names = sorted(["b/1", "a/10/x", "a-b/1", "a/2", "a/10/y", "a/1", "a0/1", "c"])
    for name in names:
        _ = await store.put(name, stream(b"x"))
    for after in [*names, "a/10", "a/10/", "a/10/xx", "a/", "a", "b", "zz"]:
        assert await keys(store, after=after) == [name for name in names if name > after], after
    assert await keys(store, "a/", after="a/10/x") == ["a/10/y", "a/2"]
    assert await keys(store, "b", after="a/10/x") == ["b/1"]


@pytest.mark.parametrize("size", [0, 100_000, FIRST_PART_BYTES, 40 * MIB])
async def test_a_stream_that_breaks_leaves_nothing_and_its_error_is_the_callers(store: BlobStore, size: int) -> None:
    with pytest.raises(Unlucky):
        _ = await store.put(KEY, breaking(bytes(size)))
    assert await keys(store) == []
    assert await store.abort_unfinished(older_than_seconds=0) == 0


async def test_a_stream_that_breaks_leaves_the_older_object(store: BlobStore) -> None:
    _ = await store.put(KEY, stream(b"older"))
    with pytest.raises(Unlucky):
        _ = await store.put(KEY, breaking(bytes(9 * MIB)))
    assert await read(store, KEY) == b"older"


@pytest.mark.parametrize("size", [0, 100_000, FIRST_PART_BYTES + 1, 40 * MIB])
async def test_a_cancelled_put_leaves_nothing(store: BlobStore, size: int) -> None:
    waiting = asyncio.Event()

    async def hanging() -> AsyncIterator[bytes]:
        async for piece in stream(bytes(size)):
            yield piece
        waiting.set()
        _ = await asyncio.Event().wait()

    task = asyncio.create_task(store.put(KEY, hanging()))
    _ = await waiting.wait()
    _ = task.cancel()
    with pytest.raises(asyncio.CancelledError):
        _ = await task
    assert await keys(store) == []
    assert await store.abort_unfinished(older_than_seconds=0) == 0


async def test_puts_and_gets_at_once_do_not_mix(store: BlobStore) -> None:
    contents = {f"job-{number}/input": os.urandom(number * 700_000) for number in range(8)}
    _ = await asyncio.gather(*(store.put(key, stream(content)) for key, content in contents.items()))
    found = await asyncio.gather(*(read(store, key) for key in contents))
    assert list(found) == list(contents.values())


async def test_of_puts_of_one_key_at_once_one_is_stored_whole(store: BlobStore) -> None:
    contents = [bytes([number]) * 3_000_000 for number in range(4)]
    _ = await asyncio.gather(*(store.put(KEY, stream(content)) for content in contents))
    assert await read(store, KEY) in contents
    assert await store.abort_unfinished(older_than_seconds=0) == 0


async def test_a_reader_that_leaves_early_disturbs_nobody(store: BlobStore) -> None:
    content = os.urandom(9 * MIB)
    _ = await store.put(KEY, stream(content))
    for _ in range(3):
        async with store.get(KEY) as chunks:
            async for _chunk in chunks:
                break
    assert await read(store, KEY) == content


async def test_a_reader_may_be_cancelled(store: BlobStore) -> None:
    content = os.urandom(9 * MIB)
    _ = await store.put(KEY, stream(content))
    started = asyncio.Event()

    async def slow_reader() -> None:
        async with store.get(KEY) as chunks:
            async for _chunk in chunks:
                started.set()
                _ = await asyncio.Event().wait()

    task = asyncio.create_task(slow_reader())
    _ = await started.wait()
    _ = task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await read(store, KEY) == content


async def test_a_working_store_passes_its_check_and_keeps_nothing_of_it(store: BlobStore) -> None:
    await store.connect()
    await store.connect()
    await store.check()
    assert await keys(store) == []
