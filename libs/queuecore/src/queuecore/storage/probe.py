"""Whether a store does what we need, found by doing it."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from typing import Final

from queuecore.blobs import BlobStore
from queuecore.errors import BlobNotFound, BlobUnavailable

PROBE_PREFIX: Final = "check/"

_CONTENT: Final = b"relayq looks whether this store works"


async def probe(store: BlobStore) -> None:
    """Put, get and delete a small object, and see that it is then reported as missing.

    Raises:
        BlobUnavailable: says what to mend.
    """
    key = PROBE_PREFIX + secrets.token_hex(8)
    _ = await store.put(key, _content())
    try:
        async with store.get(key) as chunks:
            found = b"".join([chunk async for chunk in chunks])
    except BlobNotFound as error:
        raise BlobUnavailable(key, "the store forgot an object it had just taken") from error
    finally:
        await store.delete(key)
    if found != _CONTENT:
        raise BlobUnavailable(key, "the store gives back other bytes than it was given")
    try:
        _ = await store.size(key)
    except BlobNotFound:
        return
    raise BlobUnavailable(key, "the store still has an object that was deleted; switch versioning markers off")


async def _content() -> AsyncIterator[bytes]:
    yield _CONTENT
