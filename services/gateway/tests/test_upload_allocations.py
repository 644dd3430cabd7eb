"""What a chunk of an upload costs in memory on its way: counted, so that one more copy of every chunk is seen."""

from __future__ import annotations

import tracemalloc

from gateway.form import FormReader
from queuecore.crypto.keyring import EncryptionKey
from queuecore.crypto.stream import SEGMENT_BYTES, Encryptor

CHUNK_BYTES = 65_536
CHUNKS = 256
HEAD = b'--b\r\ncontent-disposition: form-data; name="file"; filename="f"\r\n\r\n'


def test_a_chunk_of_a_form_is_not_copied_and_kept_nowhere() -> None:
    reader = FormReader(b"b")
    reader.feed(HEAD)
    chunk = bytes(CHUNK_BYTES)
    tracemalloc.start()
    try:
        for _ in range(CHUNKS):
            reader.feed(chunk)
            assert sum(map(len, reader.take())) == CHUNK_BYTES
        kept, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 0.5 * CHUNK_BYTES, f"{peak / CHUNK_BYTES:.1f} chunks at once"
    assert kept < CHUNK_BYTES / 4


def test_encrypting_holds_two_segments_and_no_more() -> None:
    encryptor = Encryptor(EncryptionKey("k", bytes(range(32))), "job/input")
    chunk = bytes(CHUNK_BYTES)
    tracemalloc.start()
    try:
        for _ in range(CHUNKS):
            _ = sum(map(len, encryptor.update(chunk)))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2.5 * SEGMENT_BYTES, f"{peak / SEGMENT_BYTES:.1f} segments at once"
