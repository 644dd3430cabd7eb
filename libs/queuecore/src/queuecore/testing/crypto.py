"""Whole objects encrypted and decrypted in one call, in pieces of any size."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from queuecore.crypto.keyring import EncryptionKey, KeyRing
from queuecore.crypto.stream import MAX_HEAD_BYTES, Decryptor, Encryptor, Envelope


def chop(content: bytes, piece_bytes: int) -> Iterator[bytes]:
    """``content`` in pieces, the last one shorter."""
    return (content[start : start + piece_bytes] for start in range(0, len(content), piece_bytes))


def encrypt(key: EncryptionKey, name: str, pieces: Iterable[bytes]) -> bytes:
    """The object that ``pieces`` make."""
    encryptor = Encryptor(key, name)
    sealed = [part for piece in pieces for part in encryptor.update(piece)]
    return b"".join([*sealed, *encryptor.finalize()])


def decrypt(ring: KeyRing, name: str, content: bytes, piece_bytes: int = 1 << 30) -> bytes:
    """The plaintext of an object whose stream is read in pieces."""
    envelope = Envelope(ring, name, content[:MAX_HEAD_BYTES])
    decryptor = Decryptor(envelope)
    opened = [part for piece in chop(content[envelope.size :], piece_bytes) for part in decryptor.update(piece)]
    return b"".join([*opened, *decryptor.finalize()])
