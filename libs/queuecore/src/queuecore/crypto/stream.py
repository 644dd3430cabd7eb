"""Objects as authenticated streams, in the wire format of Google Tink's ``AES256_GCM_HKDF_1MB``.

An object is our header (`queuecore.crypto.header`) and then exactly the bytes Tink would write:

    40 | salt (32) | nonce prefix (7) | segment 0 | segment 1 | … | last segment

    key       HKDF-SHA256(ring key, salt, info = associated data), 32 bytes
    segment   AES-256-GCM, tag behind; nonce = prefix | counter (4, big-endian) | 1 for the last segment, else 0
    lengths   1 MiB of ciphertext a segment, the first one 40 bytes less; the last may be shorter

The associated data is our header and the object's name (the store key, which starts with the job id), so an object
under another name, or with another key id, does not open. Only the last segment carries the flag 1: an object cut at
a segment's border, or longer than written, does not open either. There is one form for each plaintext: the last
segment is empty only if the whole plaintext is.

Source of the format: Tink's documentation, "AES-GCM-HKDF Streaming AEAD". Pure bytes, no I/O.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Final, NamedTuple

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from queuecore.crypto.header import MAX_HEADER_BYTES, Header, parse_header
from queuecore.crypto.keyring import KEY_BYTES, EncryptionKey, KeyRing
from queuecore.errors import BlobCorrupt

SEGMENT_BYTES: Final = 1 << 20
TAG_BYTES: Final = 16
SALT_BYTES: Final = 32
PREFIX_BYTES: Final = 7
STREAM_HEADER_BYTES: Final = 1 + SALT_BYTES + PREFIX_BYTES
MAX_HEAD_BYTES: Final = MAX_HEADER_BYTES + STREAM_HEADER_BYTES
# plaintext bytes of the first segment and of each later one
FIRST_BYTES: Final = SEGMENT_BYTES - STREAM_HEADER_BYTES - TAG_BYTES
LATER_BYTES: Final = SEGMENT_BYTES - TAG_BYTES


class _Cipher:
    """The derived key of one object: seals and opens its segments."""

    __slots__ = ("_aead", "_prefix")

    def __init__(self, key: EncryptionKey, salt: bytes, prefix: bytes, name: str) -> None:
        associated = Header(key.key_id).encode() + name.encode("utf-8")
        derive = HKDF(algorithm=SHA256(), length=KEY_BYTES, salt=salt, info=associated)
        self._aead = AESGCM(derive.derive(key.secret))
        self._prefix = prefix

    def seal(self, index: int, plaintext: memoryview, *, last: bool) -> bytes:
        return self._aead.encrypt(self._nonce(index, last=last), plaintext, None)

    def open(self, index: int, ciphertext: memoryview, *, last: bool) -> bytes:
        return self._aead.decrypt(self._nonce(index, last=last), ciphertext, None)

    def _nonce(self, index: int, *, last: bool) -> bytes:
        # to_bytes refuses a counter past 2^32, so that no nonce can come twice
        return self._prefix + index.to_bytes(4, "big") + (b"\x01" if last else b"\x00")


class _Framer:
    """Cuts a stream into segments. A full one waits until a byte follows it: only then is it not the last.

    The views it gives are valid until the next one is asked for.
    """

    __slots__ = ("_fill", "_held", "_later_bytes", "_size")

    def __init__(self, first_bytes: int, later_bytes: int) -> None:
        self._size = first_bytes
        self._later_bytes = later_bytes
        self._held = bytearray()
        self._fill = 0

    def push(self, chunk: bytes) -> Iterator[memoryview]:
        """The segments that are now known not to be the last."""
        view = memoryview(chunk)
        while view:
            if self._fill == self._size:
                # released before the buffer may grow again
                with memoryview(self._held) as held, held[: self._fill] as segment:
                    yield segment
                self._next()
            if not self._fill and len(view) > self._size:
                # straight from the caller's bytes: large chunks are not copied
                yield view[: self._size]
                view = view[self._size :]
                self._next()
                continue
            end = min(self._size, self._fill + len(view))
            taken = end - self._fill
            # in place once the buffer has grown to a segment; until then it grows, so small objects stay small
            self._held[self._fill : end] = view[:taken]
            self._fill = end
            view = view[taken:]

    def rest(self) -> memoryview:
        """What is held back."""
        return memoryview(self._held)[: self._fill]

    def _next(self) -> None:
        self._fill = 0
        self._size = self._later_bytes


class Encryptor:
    """Encrypts one object: ``update`` with each chunk, then ``finalize`` once; every call gives bytes to store.

    Every instance has a salt and a nonce prefix of its own, so no two of them share a (key, nonce) pair.
    """

    __slots__ = ("_cipher", "_framer", "_head", "_index")

    def __init__(self, key: EncryptionKey, name: str) -> None:
        salt, prefix = os.urandom(SALT_BYTES), os.urandom(PREFIX_BYTES)
        self._head = [Header(key.key_id).encode() + bytes((STREAM_HEADER_BYTES,)) + salt + prefix]
        self._cipher = _Cipher(key, salt, prefix, name)
        self._framer = _Framer(FIRST_BYTES, LATER_BYTES)
        self._index = 0

    def update(self, chunk: bytes) -> list[bytes]:
        """The ciphertext that ``chunk`` completes; often none."""
        sealed, self._head = self._head, []
        for segment in self._framer.push(chunk):
            sealed.append(self._cipher.seal(self._index, segment, last=False))
            self._index += 1
        return sealed

    def finalize(self) -> list[bytes]:
        """The end of the ciphertext."""
        return [*self._head, self._cipher.seal(self._index, self._framer.rest(), last=True)]


class Span(NamedTuple):
    """The segments that hold a range of plaintext: read the object's bytes from ``start`` to ``stop``."""

    start: int
    stop: int
    first: int  # index of the first segment
    reaches_end: bool  # the last segment is among them
    skip: int  # plaintext bytes before the range
    take: int  # plaintext bytes in the range


class Envelope:
    """The opened head of one object: its key, and where its segments lie.

    ``head`` is the object's first ``MAX_HEAD_BYTES``, or all of it.

    Raises:
        BlobCorrupt: no such head.
        KeyUnknown: its key is not in the ring.
    """

    __slots__ = ("cipher", "header", "name", "size")

    def __init__(self, ring: KeyRing, name: str, head: bytes) -> None:
        self.name = name
        self.header = parse_header(name, head)
        self.size = self.header.size + STREAM_HEADER_BYTES
        key = ring.find(name, self.header.key_id)
        stream = head[self.header.size : self.size]
        if len(stream) != STREAM_HEADER_BYTES or stream[0] != STREAM_HEADER_BYTES:
            raise BlobCorrupt(name, "has no valid stream header")
        self.cipher = _Cipher(key, stream[1 : 1 + SALT_BYTES], stream[1 + SALT_BYTES :], name)

    def span(self, offset: int, length: int | None, ciphertext_bytes: int) -> Span:
        """What to read for the plaintext from ``offset`` of an object of ``ciphertext_bytes``.

        A range that reaches or passes the end includes the last segment, which proves that the end is there.

        Raises:
            BlobCorrupt: no object has this size.
        """
        total = plaintext_size(self.name, ciphertext_bytes, self.header)
        offset = min(offset, total)
        end = total if length is None else min(total, offset + length)
        first = min(_segment_of(offset), _segment_of(total - 1))
        final = max(first, _segment_of(end - 1))
        stop = min(ciphertext_bytes, self.header.size + (final + 1) * SEGMENT_BYTES)
        return Span(
            start=self.header.size + first * SEGMENT_BYTES if first else self.size,
            stop=stop,
            first=first,
            reaches_end=stop == ciphertext_bytes,
            skip=offset - (FIRST_BYTES + (first - 1) * LATER_BYTES if first else 0),
            take=end - offset,
        )


class Decryptor:
    """Decrypts what follows an object's head, or the segments of one span of it; gives verified plaintext only.

    What comes before the end of a whole object must not be acted on until ``finalize`` has returned: only the last
    segment proves that nothing is missing.

    Raises (both methods):
        BlobCorrupt: the object is cut, reordered, foreign, damaged or longer than it was written.
    """

    __slots__ = ("_envelope", "_framer", "_index", "_reaches_end", "_skip", "_take")

    def __init__(self, envelope: Envelope, span: Span | None = None) -> None:
        self._envelope = envelope
        self._index = span.first if span else 0
        self._reaches_end = span is None or span.reaches_end
        self._skip = span.skip if span else 0
        self._take = span.take if span else None
        first_bytes = SEGMENT_BYTES if self._index else SEGMENT_BYTES - STREAM_HEADER_BYTES
        self._framer = _Framer(first_bytes, SEGMENT_BYTES)

    def update(self, chunk: bytes) -> list[bytes]:
        """The plaintext of the segments that ``chunk`` completes; often none."""
        return [plain for segment in self._framer.push(chunk) if (plain := self._open(segment, last=False))]

    def finalize(self) -> list[bytes]:
        """The plaintext of the last segment read."""
        plain = self._open(self._framer.rest(), last=self._reaches_end)
        return [plain] if plain else []

    def _open(self, segment: memoryview, *, last: bool) -> bytes:
        index = self._index
        if index and len(segment) <= TAG_BYTES:
            raise self._corrupt()
        try:
            plain = self._envelope.cipher.open(index, segment, last=last)
        except InvalidTag:
            raise self._corrupt() from None
        self._index = index + 1
        if self._skip:
            plain, self._skip = plain[self._skip :], 0
        if self._take is not None:
            plain = plain[: self._take]
            self._take -= len(plain)
        return plain

    def _corrupt(self) -> BlobCorrupt:
        return BlobCorrupt(
            self._envelope.name,
            f"segment {self._index} does not verify: the object is cut, damaged or written under another name or key",
        )


def ciphertext_size(plaintext_bytes: int, header: Header) -> int:
    """Bytes of the object that holds ``plaintext_bytes``."""
    segments = _segment_of(plaintext_bytes - 1) + 1
    return header.size + STREAM_HEADER_BYTES + plaintext_bytes + segments * TAG_BYTES


def plaintext_size(name: str, ciphertext_bytes: int, header: Header) -> int:
    """Bytes of plaintext in an object of ``ciphertext_bytes``; arithmetic, which reading the end proves.

    Raises:
        BlobCorrupt: no plaintext gives an object of this size.
    """
    stream_bytes = ciphertext_bytes - header.size
    segments = -(-stream_bytes // SEGMENT_BYTES)
    plaintext_bytes = stream_bytes - STREAM_HEADER_BYTES - segments * TAG_BYTES
    if plaintext_bytes < 0 or ciphertext_size(plaintext_bytes, header) != ciphertext_bytes:
        raise BlobCorrupt(name, f"is cut off: no encrypted object has {ciphertext_bytes} bytes")
    return plaintext_bytes


def _segment_of(position: int) -> int:
    """Index of the segment that holds the plaintext byte at ``position``; 0 for -1, the end of an empty one."""
    return (position + STREAM_HEADER_BYTES) // LATER_BYTES
