"""Streaming encryption beside the bare primitive and beside tink: MB/s on one core, and ratios within this run.

    python benchmarks/crypto.py [--megabytes 256] [--rounds 5]

Every contender handles the same bytes in chunks of 64 KiB and of 1 MiB; rounds are interleaved and the median counts,
since only ratios within one run mean anything. "bare" is `AESGCM.encrypt` and `decrypt` of whole segments, no more.
"""

from __future__ import annotations

import argparse
import base64
import io
import json
import os
import statistics
import time
from collections.abc import Callable, Iterator
from typing import BinaryIO, Final, cast

import tink
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from tink import secret_key_access, streaming_aead
from typing_extensions import Buffer

from queuecore.crypto.keyring import KEY_BYTES, EncryptionKey, KeyRing
from queuecore.crypto.stream import LATER_BYTES, MAX_HEAD_BYTES, Decryptor, Encryptor, Envelope

MEGABYTE: Final = 1_000_000
CHUNKS: Final = {"64 KiB": 65_536, "1 MiB": 1 << 20}
NAME: Final = "0192f0c1-2b7e-7d30-8000-000000000001/input"
ASSOCIATED: Final = b"benchmark"


def tink_primitive() -> tuple[bytes, streaming_aead.StreamingAead]:
    """A key that tink made by its template AES256_GCM_HKDF_1MB, and tink's primitive for it."""
    streaming_aead.register()
    template = streaming_aead.streaming_aead_key_templates.AES256_GCM_HKDF_1MB
    handle = tink.new_keyset_handle(template)
    keyset = json.loads(tink.json_proto_keyset_format.serialize(handle, secret_key_access.TOKEN))
    # key_value is the last field of AesGcmHkdfStreamingKey
    secret = base64.b64decode(keyset["key"][0]["keyData"]["value"])[-KEY_BYTES:]
    return secret, handle.primitive(streaming_aead.StreamingAead)


class Counter(io.RawIOBase):
    """A destination that counts and keeps nothing, as ours is given none."""

    def __init__(self) -> None:
        self.stored = 0

    def writable(self) -> bool:
        return True

    def write(self, chunk: Buffer, /) -> int:
        self.stored += len(memoryview(chunk))
        return len(memoryview(chunk))


class Keep(io.BytesIO):
    """A destination that stays readable after tink closed it."""

    kept: bytes = b""

    def close(self) -> None:
        self.kept = self.getvalue()
        super().close()


def pieces(content: bytes, size: int) -> Iterator[bytes]:
    """What a socket or a file would give: separate ``bytes`` objects."""
    return (content[start : start + size] for start in range(0, len(content), size))


def ours_encrypt(key: EncryptionKey, chunks: list[bytes]) -> int:
    encryptor = Encryptor(key, NAME)
    stored = 0
    for chunk in chunks:
        stored += sum(map(len, encryptor.update(chunk)))
    return stored + sum(map(len, encryptor.finalize()))


def ours_decrypt(ring: KeyRing, head: bytes, chunks: list[bytes]) -> int:
    decryptor = Decryptor(Envelope(ring, NAME, head))
    opened = 0
    for chunk in chunks:
        opened += sum(map(len, decryptor.update(chunk)))
    return opened + sum(map(len, decryptor.finalize()))


def bare_encrypt(aead: AESGCM, segments: list[bytes]) -> int:
    return sum(len(aead.encrypt(index.to_bytes(12, "big"), segment, None)) for index, segment in enumerate(segments))


def bare_decrypt(aead: AESGCM, sealed: list[bytes]) -> int:
    return sum(len(aead.decrypt(index.to_bytes(12, "big"), segment, None)) for index, segment in enumerate(sealed))


def tink_encrypt(primitive: streaming_aead.StreamingAead, chunks: list[bytes], target: BinaryIO) -> None:
    with primitive.new_encrypting_stream(target, ASSOCIATED) as stream:
        for chunk in chunks:
            _ = stream.write(chunk)


def tink_decrypt(primitive: streaming_aead.StreamingAead, sealed: bytes, chunk_bytes: int) -> int:
    opened = 0
    with primitive.new_decrypting_stream(io.BytesIO(sealed), ASSOCIATED) as stream:
        while chunk := stream.read(chunk_bytes):
            opened += len(chunk)
    return opened


def contenders(size: int, chunk_bytes: int) -> dict[str, Callable[[], object]]:
    """One call each = ``size`` bytes."""
    secret, primitive = tink_primitive()
    key = EncryptionKey("bench", secret)
    ring = KeyRing([key])
    aead = AESGCM(secret)
    content = os.urandom(size)
    chunks = list(pieces(content, chunk_bytes))
    segments = list(pieces(content, LATER_BYTES))
    sealed_bare = [aead.encrypt(index.to_bytes(12, "big"), segment, None) for index, segment in enumerate(segments)]
    encryptor = Encryptor(key, NAME)
    sealed_ours = b"".join([*encryptor.update(content), *encryptor.finalize()])
    head = sealed_ours[:MAX_HEAD_BYTES]
    sealed_chunks = list(pieces(sealed_ours[Envelope(ring, NAME, head).size :], chunk_bytes))
    kept = Keep()
    tink_encrypt(primitive, chunks, kept)
    sealed_tink = kept.kept
    if ours_decrypt(ring, head, sealed_chunks) != size or tink_decrypt(primitive, sealed_tink, chunk_bytes) != size:
        raise RuntimeError("a contender lost bytes")
    return {
        "encrypt ours": lambda: ours_encrypt(key, chunks),
        "encrypt bare": lambda: bare_encrypt(aead, segments),
        "encrypt tink": lambda: tink_encrypt(primitive, chunks, cast("BinaryIO", Counter())),
        "decrypt ours": lambda: ours_decrypt(ring, head, sealed_chunks),
        "decrypt bare": lambda: bare_decrypt(aead, sealed_bare),
        "decrypt tink": lambda: tink_decrypt(primitive, sealed_tink, chunk_bytes),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    _ = parser.add_argument("--megabytes", type=int, default=256)
    _ = parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    size = options.megabytes * MEGABYTE
    print(f"{options.megabytes} MB, median of {options.rounds} interleaved rounds; MB/s on one core")
    for label, chunk_bytes in CHUNKS.items():
        calls = contenders(size, chunk_bytes)
        seconds: dict[str, list[float]] = {name: [] for name in calls}
        for _ in range(options.rounds):
            for name, call in calls.items():
                begin = time.perf_counter()
                _ = call()
                seconds[name].append(time.perf_counter() - begin)
        for verb in ("encrypt", "decrypt"):
            ours, bare, theirs = (
                size / MEGABYTE / statistics.median(seconds[f"{verb} {who}"]) for who in ("ours", "bare", "tink")
            )
            print(
                f"{verb} in {label:>6} chunks: ours {ours:6.0f}   bare {bare:6.0f}   tink {theirs:6.0f}"
                f"   ours/bare {ours / bare:4.2f}   ours/tink {ours / theirs:4.1f}"
            )


if __name__ == "__main__":
    main()
