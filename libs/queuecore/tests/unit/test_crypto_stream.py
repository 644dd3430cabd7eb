"""The encrypted stream by itself: sizes, pieces, ranges, nonces, memory, and Tink's own reading and writing of it."""

from __future__ import annotations

import base64
import io
import json
import tracemalloc
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import tink
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import given, settings
from hypothesis import strategies as st
from tink import secret_key_access, streaming_aead

from queuecore.crypto import stream
from queuecore.crypto.header import Header
from queuecore.crypto.keyring import EncryptionKey, KeyRing
from queuecore.crypto.stream import (
    FIRST_BYTES,
    LATER_BYTES,
    MAX_HEAD_BYTES,
    SEGMENT_BYTES,
    Decryptor,
    Encryptor,
    Envelope,
    ciphertext_size,
    plaintext_size,
)
from queuecore.errors import BlobCorrupt
from queuecore.testing.crypto import chop, decrypt, encrypt

KEY = EncryptionKey("2026-11", bytes(range(32)))
RING = KeyRing([KEY])
NAME = "0192f0c1-2b7e-7d30-8000-000000000001/input"
BORDERS = (FIRST_BYTES, FIRST_BYTES + LATER_BYTES)
SIZES = (0, 1, *(border + step for border in BORDERS for step in (-1, 0, 1)), FIRST_BYTES + 2 * LATER_BYTES + 7)
# byte by byte: a pass over 1 MiB takes a second, and this one crosses the border
BYTE_BY_BYTE = (0, 1, FIRST_BYTES + 1)
PATTERN = bytes(index * 31 % 251 for index in range(SEGMENT_BYTES)) * 4


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("piece_bytes", [1, 7, 65_536, FIRST_BYTES, SEGMENT_BYTES, 1 << 30])
def test_what_was_encrypted_in_pieces_comes_back_and_has_the_predicted_size(size: int, piece_bytes: int) -> None:
    if piece_bytes == 1 and size not in BYTE_BY_BYTE:
        piece_bytes = 1_001

    content = PATTERN[:size]
    sealed = encrypt(KEY, NAME, chop(content, piece_bytes))

    assert len(sealed) == ciphertext_size(size, Header(KEY.key_id))
    assert plaintext_size(NAME, len(sealed), Header(KEY.key_id)) == size
    assert decrypt(RING, NAME, sealed, piece_bytes) == content
    assert decrypt(RING, NAME, sealed) == content


@settings(deadline=None)
@given(sizes=st.lists(st.integers(0, 70_000) | st.integers(-2, 2).map(FIRST_BYTES.__add__), max_size=4), data=st.data())
def test_how_the_bytes_are_cut_into_pieces_does_not_matter(sizes: list[int], data: st.DataObject) -> None:
    content = PATTERN[: sum(sizes)]
    source = io.BytesIO(content)
    sealed = encrypt(KEY, NAME, [source.read(size) for size in sizes])

    envelope = Envelope(RING, NAME, sealed[:MAX_HEAD_BYTES])
    source = io.BytesIO(sealed[envelope.size :])
    decryptor = Decryptor(envelope)
    opened: list[bytes] = []
    while piece := source.read(data.draw(st.integers(1, 70_000) | st.integers(SEGMENT_BYTES - 60, SEGMENT_BYTES + 2))):
        opened += decryptor.update(piece)
    assert b"".join([*opened, *decryptor.finalize()]) == content


@settings(deadline=None)
@given(size=st.integers(0, 1 << 45), id_length=st.integers(1, 64))
def test_the_two_sizes_are_each_others_inverse(size: int, id_length: int) -> None:
    header = Header("k" * id_length)

    assert plaintext_size(NAME, ciphertext_size(size, header), header) == size


@settings(deadline=None)
@given(
    ciphertext_bytes=st.integers(0, 3 * SEGMENT_BYTES) | st.integers(-20, 120).map(lambda step: SEGMENT_BYTES + step)
)
def test_a_size_is_that_of_an_object_or_refused(ciphertext_bytes: int) -> None:
    header = Header("key")
    try:
        size = plaintext_size(NAME, ciphertext_bytes, header)
    except BlobCorrupt:
        assert ciphertext_bytes not in {ciphertext_size(near, header) for near in range(200)}
    else:
        assert ciphertext_size(size, header) == ciphertext_bytes


def positions(total: int) -> st.SearchStrategy[int]:
    near = [edge + step for edge in (0, *BORDERS, total) for step in range(-2, 3)]
    return st.integers(0, total + 5) | st.sampled_from([position for position in near if position >= 0])


SEALED = {size: encrypt(KEY, NAME, [PATTERN[:size]]) for size in SIZES}


@settings(deadline=None)
@given(data=st.data(), size=st.sampled_from(SIZES), piece_bytes=st.integers(1_000, 2 * SEGMENT_BYTES))
def test_any_range_is_the_slice_and_reads_only_the_segments_it_touches(
    data: st.DataObject, size: int, piece_bytes: int
) -> None:
    sealed = SEALED[size]
    offset = data.draw(positions(size))
    length = data.draw(st.none() | positions(size))
    expected = PATTERN[:size][offset : None if length is None else offset + length]

    envelope = Envelope(RING, NAME, sealed[:MAX_HEAD_BYTES])
    span = envelope.span(offset, length, len(sealed))
    decryptor = Decryptor(envelope, span)
    pieces = [part for piece in chop(sealed[span.start : span.stop], piece_bytes) for part in decryptor.update(piece)]
    got = b"".join([*pieces, *decryptor.finalize()])

    assert got == expected
    assert span.take == len(expected)
    touched = len({(at + 40) // LATER_BYTES for at in (offset, offset + max(0, len(expected) - 1))})
    if touched == 1:
        assert span.stop - span.start <= SEGMENT_BYTES
    assert span.stop - span.start <= len(expected) + 2 * SEGMENT_BYTES


def test_two_encryptions_of_the_same_bytes_differ_from_the_salt_on() -> None:
    one, two = (encrypt(KEY, NAME, [PATTERN[:100]]) for _ in range(2))

    salt_at = Header(KEY.key_id).size + 1
    assert one[:salt_at] == two[:salt_at]
    assert one[salt_at : salt_at + 4] != two[salt_at : salt_at + 4]
    assert one[-16:] != two[-16:]


def test_no_key_and_nonce_pair_is_used_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[tuple[bytes, bytes]] = []

    class Recording:
        def __init__(self, key: bytes) -> None:
            self._key, self._aead = key, AESGCM(key)

        def encrypt(self, nonce: bytes, content: memoryview, associated: bytes | None) -> bytes:
            used.append((self._key, nonce))
            return self._aead.encrypt(nonce, content, associated)

    monkeypatch.setattr(stream, "AESGCM", Recording)
    for _ in range(20):
        _ = encrypt(KEY, NAME, chop(PATTERN[: SIZES[-1]], 100_000))

    assert len(used) == 80
    assert len(set(used)) == 80
    assert len({key for key, _ in used}) == 20, "each object has a key of its own"


def test_memory_does_not_grow_with_the_stream() -> None:
    envelope_head: list[bytes] = []

    def sealed_stream(total_bytes: int) -> Iterator[bytes]:
        encryptor = Encryptor(KEY, NAME)
        for _ in range(total_bytes // 65_536):
            yield from encryptor.update(PATTERN[:65_536])
        yield from encryptor.finalize()

    tracemalloc.start()
    try:
        parts = sealed_stream(64 << 20)
        envelope_head.append(next(parts))
        decryptor = Decryptor(Envelope(RING, NAME, envelope_head[0]))
        opened = sum(len(plain) for part in parts for plain in decryptor.update(part))
        opened += sum(map(len, decryptor.finalize()))
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert opened == 64 << 20
    assert peak_bytes < 8 << 20


def test_a_small_object_does_not_cost_a_segment_of_memory() -> None:
    tracemalloc.start()
    try:
        _ = encrypt(KEY, NAME, [b"x" * 1_000])
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert peak_bytes < 100_000


@pytest.fixture(scope="module")
def theirs() -> SimpleNamespace:
    """A key that tink made by its own template, tink's primitive for it, and the same key in our ring."""
    streaming_aead.register()
    handle = tink.new_keyset_handle(streaming_aead.streaming_aead_key_templates.AES256_GCM_HKDF_1MB)
    keyset = json.loads(tink.json_proto_keyset_format.serialize(handle, secret_key_access.TOKEN))
    # key_value is the last field of AesGcmHkdfStreamingKey
    key = EncryptionKey("tinks", base64.b64decode(keyset["key"][0]["keyData"]["value"])[-32:])
    return SimpleNamespace(
        primitive=handle.primitive(streaming_aead.StreamingAead),
        key=key,
        ring=KeyRing([key]),
        associated=Header("tinks").encode() + NAME.encode(),
    )


class Keep(io.BytesIO):
    kept: bytes = b""

    def close(self) -> None:
        self.kept = self.getvalue()
        super().close()


def tink_pieces(size: int) -> Callable[[int], int]:
    # tink crosses into C++ for every piece
    return lambda piece_bytes: 1_001 if piece_bytes == 1 and size > 1_000 else piece_bytes


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("piece_bytes", [1, FIRST_BYTES, LATER_BYTES, 1 << 30])
def test_tink_reads_what_we_write(theirs: Any, size: int, piece_bytes: int) -> None:
    piece_bytes = tink_pieces(size)(piece_bytes)
    sealed = encrypt(theirs.key, NAME, chop(PATTERN[:size], piece_bytes))

    tinks_part = io.BytesIO(sealed[Header("tinks").size :])
    with theirs.primitive.new_decrypting_stream(tinks_part, theirs.associated) as source:
        assert b"".join(iter(lambda: source.read(min(piece_bytes, 1 << 22)), b"")) == PATTERN[:size]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("piece_bytes", [1, FIRST_BYTES, LATER_BYTES, 1 << 30])
def test_we_read_what_tink_writes(theirs: Any, size: int, piece_bytes: int) -> None:
    piece_bytes = tink_pieces(size)(piece_bytes)
    target = Keep()
    with theirs.primitive.new_encrypting_stream(target, theirs.associated) as sink:
        for piece in chop(PATTERN[:size], piece_bytes):
            _ = sink.write(piece)
    sealed = Header("tinks").encode() + target.kept

    assert len(sealed) == ciphertext_size(size, Header("tinks"))
    assert decrypt(theirs.ring, NAME, sealed, piece_bytes) == PATTERN[:size]
    assert decrypt(theirs.ring, NAME, sealed) == PATTERN[:size]


def test_tink_refuses_our_object_under_another_name(theirs: Any) -> None:
    sealed = encrypt(theirs.key, "another/input", [b"x"])

    tinks_part = io.BytesIO(sealed[Header("tinks").size :])
    with pytest.raises(tink.TinkError), theirs.primitive.new_decrypting_stream(tinks_part, theirs.associated) as source:
        _ = source.read()
