"""Phase 2: what killed writers left in the store."""

from __future__ import annotations

from queuecore.blobs import BlobStore
from queuecore.broker import Server
from queuecore.telemetry import metrics


class StoreSweep:
    """Sweeps one store."""

    def __init__(self, store: BlobStore, server: Server, *, orphan_min_age_seconds: int) -> None:
        self._store = store
        self._server = server
        self._min_age_seconds = orphan_min_age_seconds

    async def sweep(self) -> None:
        """One look."""
        removed = await self._store.abort_unfinished(older_than_seconds=self._min_age_seconds)
        metrics.OBJECTS_SWEPT.labels("unfinished").inc(removed)
