"""A blob store that encrypts what it hands to another one. There is no way around it to plaintext."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager

from queuecore.blobs import BlobEntry, BlobStore
from queuecore.crypto.header import MAX_HEADER_BYTES, Header, parse_header
from queuecore.crypto.keyring import KeyRing
from queuecore.crypto.stream import MAX_HEAD_BYTES, Decryptor, Encryptor, Envelope, plaintext_size


class EncryptedStore(BlobStore):
    """Objects of ``inner``, encrypted with the current key of ``ring`` and bound to their key (`queuecore.crypto`).

    Reading raises, besides the contract's errors, ``KeyUnknown`` when the ring lacks the object's key. A segment of
    1 MiB is encrypted in well under a millisecond, so it is done on the loop: a thread per segment costs more.
    """

    def __init__(self, inner: BlobStore, ring: KeyRing) -> None:
        self._inner = inner
        self._ring = ring

    @property
    def key_ids(self) -> tuple[str, ...]:
        """Ids of the ring's keys, the current one first."""
        return self._ring.key_ids

    async def put(self, key: str, chunks: AsyncIterator[bytes]) -> int:
        """Encrypt the stream under a fresh salt and store it; bytes of plaintext."""
        plaintext_bytes = 0

        async def ciphertext() -> AsyncGenerator[bytes, None]:
            nonlocal plaintext_bytes
            encryptor = Encryptor(self._ring.current, key)
            async for chunk in chunks:
                plaintext_bytes += len(chunk)
                for piece in encryptor.update(chunk):
                    yield piece
            for piece in encryptor.finalize():
                yield piece

        async with aclosing(ciphertext()) as pieces:
            _ = await self._inner.put(key, pieces)
        return plaintext_bytes

    def get(
        self, key: str, *, offset: int = 0, length: int | None = None
    ) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """Plaintext, each piece verified before it is given. A range reads the head and the segments it touches.

        Of a whole object only the end of the iteration proves that nothing is missing.
        """
        return self._whole(key) if offset == 0 and length is None else self._range(key, offset, length)

    async def size(self, key: str) -> int:
        """Bytes of plaintext, computed from the object's size and header; reading proves them."""
        header = await self._header(key)
        return plaintext_size(key, await self._inner.size(key), header)

    async def key_id(self, key: str) -> str:
        """Id of the key that encrypted the object; reads its header only.

        Raises:
            BlobNotFound, BlobUnavailable
            BlobCorrupt: it is not an encrypted object.
        """
        return (await self._header(key)).key_id

    async def delete(self, key: str) -> None:
        """Remove the object."""
        await self._inner.delete(key)

    def scan(self, prefix: str = "", *, after: str = "") -> AsyncIterator[BlobEntry]:
        """The objects with the size of their ciphertext, which is what the store holds."""
        return self._inner.scan(prefix, after=after)

    async def abort_unfinished(self, *, older_than_seconds: float) -> int:
        """Remove what killed writers left."""
        return await self._inner.abort_unfinished(older_than_seconds=older_than_seconds)

    async def connect(self) -> None:
        """Connect the store below."""
        await self._inner.connect()

    async def check(self) -> None:
        """Check the store below."""
        await self._inner.check()

    async def aclose(self) -> None:
        """Close the store below."""
        await self._inner.aclose()

    @asynccontextmanager
    async def _whole(self, key: str) -> AsyncGenerator[AsyncIterator[bytes], None]:
        async with self._inner.get(key) as chunks:
            head = b""
            async for chunk in chunks:
                head += chunk
                if len(head) >= MAX_HEAD_BYTES:
                    break
            envelope = Envelope(self._ring, key, head)
            async with aclosing(_decrypted(Decryptor(envelope), chunks, head[envelope.size :])) as plaintext:
                yield plaintext

    @asynccontextmanager
    async def _range(self, key: str, offset: int, length: int | None) -> AsyncGenerator[AsyncIterator[bytes], None]:
        envelope = Envelope(self._ring, key, await self._head(key, MAX_HEAD_BYTES))
        span = envelope.span(offset, length, await self._inner.size(key))
        async with (
            self._inner.get(key, offset=span.start, length=span.stop - span.start) as chunks,
            aclosing(_decrypted(Decryptor(envelope, span), chunks)) as plaintext,
        ):
            yield plaintext

    async def _header(self, key: str) -> Header:
        return parse_header(key, await self._head(key, MAX_HEADER_BYTES))

    async def _head(self, key: str, head_bytes: int) -> bytes:
        async with self._inner.get(key, offset=0, length=head_bytes) as chunks:
            return b"".join([chunk async for chunk in chunks])


async def _decrypted(
    decryptor: Decryptor, chunks: AsyncIterator[bytes], start: bytes = b""
) -> AsyncGenerator[bytes, None]:
    """Plaintext of ``start`` and then ``chunks``."""
    for plain in decryptor.update(start):
        yield plain
    async for chunk in chunks:
        for plain in decryptor.update(chunk):
            yield plain
    for plain in decryptor.finalize():
        yield plain
