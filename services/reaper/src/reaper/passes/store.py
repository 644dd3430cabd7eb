"""Phase 2: objects without a record, results of claims that lost, and what killed writers left unfinished."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from typing import Final

from queuecore.blobs import BlobStore
from queuecore.broker import Server
from queuecore.job import JobRecord
from queuecore.storage.sweep import sweep_objects
from queuecore.telemetry import metrics
from queuecore.telemetry.names import Event

PAGES_A_ROUND: Final = 10  # of 1000 objects each

_log = logging.getLogger(__name__)


class StoreSweep:
    """Walks through one store, some pages a round; the rules are those of ``queuecore.storage.sweep``."""

    def __init__(self, store: BlobStore, server: Server, *, orphan_min_age_seconds: int) -> None:
        self._store = store
        self._server = server
        self._min_age_seconds = orphan_min_age_seconds
        self._cursor = ""

    async def sweep(self) -> None:
        """One round, from where the last one stopped."""
        for _ in range(PAGES_A_ROUND):
            done = await sweep_objects(
                self._store,
                self._records,
                _Register(self._server),
                min_age_ms=self._min_age_seconds * 1000,
                cursor=self._cursor,
            )
            self._cursor = done.cursor
            for swept in done.deleted:
                metrics.OBJECTS_SWEPT.labels(swept.kind).inc()
                fields = {"event": Event.OBJECT_SWEPT, "key": swept.key, "kind": swept.kind}
                _log.info("an object that nothing refers to was removed", extra=fields)
            if not self._cursor:
                break
        unfinished = await self._store.abort_unfinished(older_than_seconds=self._min_age_seconds)
        if unfinished:
            metrics.OBJECTS_SWEPT.labels("unfinished").inc(unfinished)
            _log.info("unfinished uploads were removed", extra={"event": Event.OBJECT_SWEPT, "count": unfinished})

    async def _records(self, job_ids: Collection[str]) -> Mapping[str, JobRecord | None]:
        return await self._server.records(list(job_ids))


class _Register:
    """The server's register as the sweep asks for it."""

    def __init__(self, server: Server) -> None:
        self._server = server

    async def first_seen(self, keys: Collection[str]) -> Mapping[str, int]:
        return await self._server.first_seen(list(keys))

    async def forget(self, keys: Collection[str]) -> None:
        await self._server.forget(list(keys))
