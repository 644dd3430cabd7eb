"""The encrypted store over one in memory: the blob contract for plaintext, refusals, ranges, rotation."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AbstractAsyncContextManager

import pytest

from queuecore.blobs import BlobEntry
from queuecore.crypto.header import MAX_HEADER_BYTES, Header
from queuecore.crypto.keyring import EncryptionKey, KeyRing
from queuecore.crypto.stream import FIRST_BYTES, LATER_BYTES, MAX_HEAD_BYTES, SEGMENT_BYTES, ciphertext_size
from queuecore.errors import BlobCorrupt, BlobNotFound, KeyUnknown
from queuecore.storage.encrypted import EncryptedStore
from queuecore.testing.blobs import MemoryStore

pytestmark = pytest.mark.anyio

KEY = EncryptionKey("2026-11", bytes(range(32)))
OLD = EncryptionKey("2026-10", bytes(range(1, 33)))
NAME = "0192f0c1-2b7e-7d30-8000-000000000001/input"
OTHER = "0192f0c1-2b7e-7d30-8000-000000000002/input"
CONTENT = bytes(index * 31 % 251 for index in range(FIRST_BYTES)) + b"later" * (LATER_BYTES // 5 * 2 + 3)
SIZES = (0, 1, FIRST_BYTES - 1, FIRST_BYTES, FIRST_BYTES + 1, FIRST_BYTES + LATER_BYTES, FIRST_BYTES + LATER_BYTES + 1)


class CountingStore(MemoryStore):
    """Says which ranges were asked for."""

    def __init__(self, chunk_bytes: int = 65_536) -> None:
        super().__init__(chunk_bytes)
        self.asked: list[tuple[int, int | None]] = []

    def get(
        self, key: str, *, offset: int = 0, length: int | None = None
    ) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        self.asked.append((offset, length))
        return super().get(key, offset=offset, length=length)


async def stream(content: bytes, piece_bytes: int = 100_000) -> AsyncGenerator[bytes, None]:
    for start in range(0, len(content), piece_bytes):
        yield content[start : start + piece_bytes]


async def read(store: EncryptedStore, key: str, offset: int = 0, length: int | None = None) -> bytes:
    async with store.get(key, offset=offset, length=length) as chunks:
        return b"".join([chunk async for chunk in chunks])


async def read_until_refused(store: EncryptedStore, key: str) -> tuple[bytes, str]:
    """What came before ``BlobCorrupt``, and its text."""
    delivered = b""
    try:
        async with store.get(key) as chunks:
            async for chunk in chunks:
                delivered += chunk
    except BlobCorrupt as error:
        return delivered, str(error)
    raise AssertionError("the object was delivered whole")


@pytest.fixture
def inner() -> CountingStore:
    return CountingStore()


@pytest.fixture
def store(inner: CountingStore) -> EncryptedStore:
    return EncryptedStore(inner, KeyRing([KEY, OLD]))


@pytest.mark.parametrize("size", SIZES)
async def test_an_object_comes_back_and_the_store_below_holds_none_of_it(
    store: EncryptedStore, inner: CountingStore, size: int
) -> None:
    assert await store.put(NAME, stream(CONTENT[:size])) == size

    assert await read(store, NAME) == CONTENT[:size]
    assert await store.size(NAME) == size
    assert len(inner.objects[NAME]) == ciphertext_size(size, Header(KEY.key_id))
    assert CONTENT[:16] not in inner.objects[NAME] or size < 16
    assert [entry async for entry in store.scan()] == [BlobEntry(NAME, len(inner.objects[NAME]))]


@pytest.mark.parametrize("chunk_bytes", [7, MAX_HEAD_BYTES, 1 << 30])
async def test_how_the_store_below_cuts_its_chunks_does_not_matter(chunk_bytes: int) -> None:
    store = EncryptedStore(MemoryStore(chunk_bytes), KeyRing([KEY]))
    _ = await store.put(NAME, stream(CONTENT[:50_000]))

    assert await read(store, NAME) == CONTENT[:50_000]
    assert await read(store, NAME, 49_990, 100) == CONTENT[49_990:50_000]


async def test_an_empty_piece_in_the_stream_does_not_matter(store: EncryptedStore) -> None:
    async def pieces() -> AsyncGenerator[bytes, None]:
        for piece in (b"", b"a", b"", b"b", b""):
            yield piece

    assert await store.put(NAME, pieces()) == 2
    assert await read(store, NAME) == b"ab"


@pytest.mark.parametrize(
    ("offset", "length", "segments"),
    [
        pytest.param(0, 1, 1, id="first byte"),
        pytest.param(FIRST_BYTES - 1, 1, 1, id="last byte of the first segment"),
        pytest.param(FIRST_BYTES, 1, 1, id="first byte of the second"),
        pytest.param(FIRST_BYTES - 1, 2, 2, id="across a border"),
        pytest.param(FIRST_BYTES + LATER_BYTES, 5, 1, id="in the third"),
        pytest.param(len(CONTENT) - 3, 100, 1, id="past the end"),
        pytest.param(len(CONTENT) - 3, None, 1, id="to the end"),
        pytest.param(len(CONTENT), 10, 1, id="at the end"),
        pytest.param(len(CONTENT) + 10**12, 10, 1, id="far behind the end"),
    ],
)
async def test_a_range_reads_the_head_and_the_segments_it_touches(
    store: EncryptedStore, inner: CountingStore, offset: int, length: int | None, segments: int
) -> None:
    _ = await store.put(NAME, stream(CONTENT))

    got = await read(store, NAME, offset, length)

    assert got == CONTENT[offset : None if length is None else offset + length]
    head, (_, asked_bytes) = inner.asked
    assert head == (0, MAX_HEAD_BYTES)
    assert asked_bytes is not None
    assert asked_bytes <= segments * SEGMENT_BYTES


async def test_a_stream_that_breaks_leaves_no_object_and_its_error_comes_through(
    store: EncryptedStore, inner: CountingStore
) -> None:
    async def breaks() -> AsyncGenerator[bytes, None]:
        yield CONTENT[: 3 * SEGMENT_BYTES // 2]
        raise ConnectionResetError("the client is gone")

    with pytest.raises(ConnectionResetError):
        _ = await store.put(NAME, breaks())

    assert inner.objects == {}


async def test_an_object_that_is_not_there_is_not_found_by_every_way_of_reading(store: EncryptedStore) -> None:
    with pytest.raises(BlobNotFound):
        _ = await read(store, NAME)
    with pytest.raises(BlobNotFound):
        _ = await read(store, NAME, 5, 5)
    with pytest.raises(BlobNotFound):
        _ = await store.size(NAME)
    with pytest.raises(BlobNotFound):
        _ = await store.key_id(NAME)
    await store.delete(NAME)


async def test_delete_removes_the_object_and_the_other_calls_reach_the_store_below(
    store: EncryptedStore, inner: CountingStore
) -> None:
    _ = await store.put(NAME, stream(b"x"))

    await store.delete(NAME)

    assert inner.objects == {}
    assert await store.abort_unfinished(older_than_seconds=0) == 0
    await store.check()
    await store.aclose()


@pytest.mark.parametrize("plain", [b"", b"R", b"RIFF....WAVEfmt ", b"x" * 5_000_000], ids=len)
async def test_a_plain_object_is_refused_with_a_reason(
    store: EncryptedStore, inner: CountingStore, plain: bytes
) -> None:
    inner.objects[NAME] = plain

    for refused in (read(store, NAME), read(store, NAME, 1, 1), store.size(NAME), store.key_id(NAME)):
        with pytest.raises(BlobCorrupt, match=r"not encrypted|cut off"):
            _ = await refused


async def test_objects_swapped_between_jobs_are_refused(store: EncryptedStore, inner: CountingStore) -> None:
    _ = await store.put(NAME, stream(b"one"))
    _ = await store.put(OTHER, stream(b"two"))
    inner.objects[NAME], inner.objects[OTHER] = inner.objects[OTHER], inner.objects[NAME]

    for name in (NAME, OTHER):
        with pytest.raises(BlobCorrupt, match="another name"):
            _ = await read(store, name)
        with pytest.raises(BlobCorrupt):
            _ = await read(store, name, 1, 1)


@pytest.mark.parametrize("keep", [SEGMENT_BYTES, 2 * SEGMENT_BYTES, 2 * SEGMENT_BYTES + 100])
async def test_a_cut_object_never_ends_as_if_whole(store: EncryptedStore, inner: CountingStore, keep: int) -> None:
    _ = await store.put(NAME, stream(CONTENT))
    inner.objects[NAME] = inner.objects[NAME][: Header(KEY.key_id).size + keep]

    delivered, refusal = await read_until_refused(store, NAME)
    assert CONTENT.startswith(delivered)
    assert "cut" in refusal
    # ranges that end behind the cut, that touch it, or that lie behind it altogether
    for offset, length in ((0, len(CONTENT)), (10, None), (len(CONTENT) - 5, 5), (len(CONTENT) + 5, 5)):
        with pytest.raises(BlobCorrupt, match="cut"):
            _ = await read(store, NAME, offset, length)
    if keep > SEGMENT_BYTES:
        assert await read(store, NAME, 10, 10) == CONTENT[10:20], "a segment before the cut is genuine"


async def test_bytes_behind_the_end_are_refused(store: EncryptedStore, inner: CountingStore) -> None:
    _ = await store.put(NAME, stream(CONTENT[:FIRST_BYTES]))
    inner.objects[NAME] += inner.objects[NAME][-SEGMENT_BYTES:]

    with pytest.raises(BlobCorrupt):
        _ = await read(store, NAME)


async def test_a_segment_is_delivered_only_when_it_has_been_verified(
    store: EncryptedStore, inner: CountingStore
) -> None:
    _ = await store.put(NAME, stream(CONTENT))
    damaged = bytearray(inner.objects[NAME])
    damaged[SEGMENT_BYTES + 1_000] ^= 1
    inner.objects[NAME] = bytes(damaged)

    delivered, refusal = await read_until_refused(store, NAME)

    assert delivered == CONTENT[:FIRST_BYTES]
    assert "segment 1 does not verify" in refusal
    assert await read(store, NAME, 0, FIRST_BYTES) == CONTENT[:FIRST_BYTES]
    with pytest.raises(BlobCorrupt, match="segment 1"):
        _ = await read(store, NAME, FIRST_BYTES, 1)


async def test_after_a_rotation_old_objects_are_read_and_new_ones_use_the_new_key(inner: CountingStore) -> None:
    before = EncryptedStore(inner, KeyRing([OLD]))
    during = EncryptedStore(inner, KeyRing([OLD, KEY]))
    after = EncryptedStore(inner, KeyRing([KEY, OLD]))
    _ = await before.put(NAME, stream(b"old"))
    _ = await after.put(OTHER, stream(b"new"))

    assert await after.key_id(NAME) == OLD.key_id
    assert await after.key_id(OTHER) == KEY.key_id
    for store in (during, after):
        assert await read(store, NAME) == b"old"
        assert await read(store, OTHER) == b"new"
    with pytest.raises(KeyUnknown, match=KEY.key_id):
        _ = await read(before, OTHER)
    with pytest.raises(KeyUnknown):
        _ = await read(before, OTHER, 1, 1)
    assert await before.size(OTHER) == 3, "the size needs no key"


async def test_the_key_id_costs_a_read_of_the_header_alone(store: EncryptedStore, inner: CountingStore) -> None:
    _ = await store.put(NAME, stream(CONTENT))

    assert await store.key_id(NAME) == KEY.key_id
    assert inner.asked == [(0, MAX_HEADER_BYTES)]


async def test_nothing_of_content_or_keys_is_in_logs_or_errors(
    store: EncryptedStore, inner: CountingStore, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        _ = await store.put(NAME, stream(b"a private sentence"))
        inner.objects[OTHER] = inner.objects[NAME]
        with pytest.raises(BlobCorrupt) as caught:
            _ = await read(store, OTHER)

    for text in (caplog.text, str(caught.value), repr(store), repr(caught.value)):
        assert "private" not in text
        assert repr(KEY.secret)[2:12] not in text
