"""An object store in a dictionary: the blob contract's smallest implementation, for tests."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from queuecore.blobs import BlobEntry, BlobStore
from queuecore.errors import BlobNotFound


class MemoryStore(BlobStore):
    """Keeps whole objects in ``objects``, which tests may read and damage; ``get`` gives ``chunk_bytes`` at a time."""

    def __init__(self, chunk_bytes: int = 65_536) -> None:
        self.objects: dict[str, bytes] = {}
        self._chunk_bytes = chunk_bytes

    async def put(self, key: str, chunks: AsyncIterator[bytes]) -> int:
        """Store the stream once it has ended."""
        content = b"".join([chunk async for chunk in chunks])
        self.objects[key] = content
        return len(content)

    def get(
        self, key: str, *, offset: int = 0, length: int | None = None
    ) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """The bytes as they are on entering; a later ``put`` changes nothing for this reader."""
        return self._reading(key, offset, length)

    async def size(self, key: str) -> int:
        """Length of the object."""
        return len(self._content(key))

    async def delete(self, key: str) -> None:
        """Forget the object."""
        _ = self.objects.pop(key, None)

    async def scan(self, prefix: str = "", *, after: str = "") -> AsyncIterator[BlobEntry]:
        """A snapshot of the keys, with the sizes of this moment."""
        for key, content in sorted(self.objects.items()):
            if key.startswith(prefix) and key > after:
                yield BlobEntry(key, len(content))

    async def abort_unfinished(self, *, older_than_seconds: float) -> int:
        """Nothing: an object is stored in one step."""
        return 0

    async def check(self) -> None:
        """A dictionary always answers."""

    async def aclose(self) -> None:
        """Nothing to close; the objects stay readable."""

    def _content(self, key: str) -> bytes:
        if key not in self.objects:
            raise BlobNotFound(key)
        return self.objects[key]

    @asynccontextmanager
    async def _reading(self, key: str, offset: int, length: int | None) -> AsyncGenerator[AsyncIterator[bytes], None]:
        content = self._content(key)
        end = len(content) if length is None else min(len(content), offset + length)
        yield self._pieces(content, offset, end)

    async def _pieces(self, content: bytes, start: int, end: int) -> AsyncIterator[bytes]:
        for position in range(start, end, self._chunk_bytes):
            yield content[position : min(end, position + self._chunk_bytes)]
