from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from queuecore.errors import BlobUnavailable
from queuecore.storage.probe import probe
from queuecore.testing.blobs import MemoryStore

pytestmark = pytest.mark.anyio


class Forgetful(MemoryStore):
    async def put(self, key: str, chunks: AsyncIterator[bytes]) -> int:
        return sum([len(chunk) async for chunk in chunks])


class Garbling(MemoryStore):
    async def put(self, key: str, chunks: AsyncIterator[bytes]) -> int:
        size = await super().put(key, chunks)
        self.objects[key] = self.objects[key].upper()
        return size


class Keeping(MemoryStore):
    async def delete(self, key: str) -> None:
        """Says yes and does nothing."""


@pytest.mark.parametrize(
    ("store", "text"),
    [(Forgetful(), "forgot"), (Garbling(), "other bytes"), (Keeping(), "deleted")],
)
async def test_a_store_that_does_not_keep_its_word_is_found_out(store: MemoryStore, text: str) -> None:
    with pytest.raises(BlobUnavailable, match=text):
        await probe(store)


async def test_the_probe_is_removed_also_when_it_fails() -> None:
    store = Garbling()
    with pytest.raises(BlobUnavailable):
        await probe(store)
    assert store.objects == {}
