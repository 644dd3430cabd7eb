"""Records that many requests ask for in the same instant, read in one round trip.

When a job ends, everybody who waits for it looks at it at once. Those looks share one read, and only a read that begins
after all of them asked: one that was under way already might have seen the job as it was before the wake-up (case K2).
"""

from __future__ import annotations

import asyncio

from queuecore.broker import Broker, Server
from queuecore.job import JobRecord


class Gathered:
    """``reader`` tells why a record is not there; ``server`` reads many."""

    def __init__(self, server: Server, reader: Broker) -> None:
        self._server = server
        self._reader = reader
        self._asked: dict[str, asyncio.Future[JobRecord | None]] = {}
        self._reads: set[asyncio.Task[None]] = set()

    async def get(self, job_id: str) -> JobRecord:
        """See ``Broker.get``."""
        if not self._asked:
            _ = asyncio.get_running_loop().call_soon(self._read)
        answer = self._asked.setdefault(job_id, asyncio.get_running_loop().create_future())
        record = await asyncio.shield(answer)
        return await self._reader.get(job_id) if record is None else record

    def _read(self) -> None:
        asked, self._asked = self._asked, {}
        task = asyncio.create_task(self._answer(asked))
        self._reads.add(task)
        task.add_done_callback(self._reads.discard)

    async def _answer(self, asked: dict[str, asyncio.Future[JobRecord | None]]) -> None:
        try:
            found = await self._server.records(list(asked))
        except Exception as error:  # noqa: BLE001  whatever it was, everybody who asked is told, and nobody waits
            for answer in asked.values():
                answer.set_exception(error)
                _ = answer.exception()  # whoever asked may be gone
            return
        for job_id, answer in asked.items():
            answer.set_result(found[job_id])
