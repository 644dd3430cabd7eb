"""The object store's contract: inputs and results as streams of bytes.

Keys are made by us (`job.input_key`, `job.result_key`), never from client text. An object is there whole or not at all.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import NamedTuple


class BlobEntry(NamedTuple):
    """One stored object; ``size`` is what the store holds (with encryption: the ciphertext)."""

    key: str
    size: int


class BlobStore(ABC):
    """Put, get and delete streams. Memory use does not depend on an object's size."""

    @abstractmethod
    async def put(self, key: str, chunks: AsyncIterator[bytes]) -> int:
        """Store the stream under ``key``, replacing what was there; bytes read from ``chunks``.

        When ``chunks`` raises, or the caller is cancelled, nothing is stored and nothing is left unfinished.

        Raises:
            BlobUnavailable: the store refused or did not answer; nothing is stored.
        """

    @abstractmethod
    def get(
        self, key: str, *, offset: int = 0, length: int | None = None
    ) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """The bytes from ``offset``, at most ``length`` of them. ``async with store.get(key) as chunks: …``.

        Raises (on entering, or while reading):
            BlobNotFound, BlobUnavailable
            BlobCorrupt: the bytes so far must not be used.
        """

    @abstractmethod
    async def size(self, key: str) -> int:
        """Bytes that ``get`` gives.

        Raises:
            BlobNotFound, BlobUnavailable, BlobCorrupt
        """

    @abstractmethod
    async def delete(self, key: str) -> None:
        """Remove the object; no error when it is not there."""

    @abstractmethod
    def scan(self, prefix: str = "", *, after: str = "") -> AsyncIterator[BlobEntry]:
        """Objects whose key starts with ``prefix`` and sorts behind ``after``, in key order."""

    @abstractmethod
    async def abort_unfinished(self, *, older_than_seconds: float) -> int:
        """Remove what killed writers left (multipart uploads, temporary files), seen this old; how many."""

    async def connect(self) -> None:  # noqa: B027  a store with nothing to load has nothing to do
        """Load the client and its credentials now rather than in the first call.

        Raises:
            BlobUnavailable: they do not make a client; a later call tries again.
        """

    @abstractmethod
    async def check(self) -> None:
        """Put, get and delete a probe object.

        Raises:
            BlobUnavailable: says what to mend.
        """

    @abstractmethod
    async def aclose(self) -> None:
        """Close connections."""
